//! From a machine and a workload to a [`Plan`]: places streams, forms pipelines, bounds costs, tests every server.
//!
//! The pipeline of a stream follows `verner-2014`, III: with `N` steps and a relative deadline `l`, every step runs once
//! per cycle `T` inside a window of one cycle. Packets that do not arrive exactly when cycles start wait up to one cycle,
//! so gathering counts as a step: `T = floor(l / (N + 1))`. A stream whose packets are further apart than that may make
//! each packet a job of its own instead, released when it arrives: `T = floor(l / N)`.

use std::collections::BTreeMap;

use crate::files::machine::{CpuCores, EndpointId, EngineClass, EngineId, Machine, RouteId};
use crate::files::workload::{CopyEndpoint, Cycle, Grouping, Message, OnMiss, Stream, StreamStep, Workload};
use crate::models::interconnect::{BatchBlock, Network, Starved};
use crate::plan::block::block_bytes;
use crate::plan::combine::CombineError;
use crate::plan::{
    Alternative, Announced, Carried, Named, OperationWork, Outcome, Pipeline, PipelineSource, Plan, PlannedBatch,
    PlannedCapacity, PlannedEngine, PlannedOperation, PlannedStep, PlannedStream, SCHEMA, Server, Strategy, Strength,
    Verdict,
};
use crate::units::{Bytes, Nanos, PPM};

mod batches;
mod combined;
mod cores;
mod demands;
mod division;
mod explored;
mod gangs;
mod holds;
mod models;
mod parted;
mod processors;
mod responses;
mod servers;
mod sharded;
mod stream_batches;
mod uneven;
mod unplanned;

use combined::Domains;
pub(crate) use demands::{demands, steps_on};
pub use division::margins;
pub use models::{Evidence, ModelAnswer, models};
use processors::Processor;
pub use unplanned::rate_alone;

/// What the user may decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanOptions {
    /// Use this strategy only; `None` = of `serial`, `partitioned` and, for messages and wafers, `combined`, the accepted one with the
    /// greatest margin. Without a calibration `None` is `serial`.
    pub strategy: Option<Strategy>,
}

/// A workload that cannot be planned on a machine. `place` is the key of [`crate::files::error::Loaded::error_at`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A name that the machine does not have.
    #[error("{object} names `{name}`, which machine `{machine}` does not have; it has {known}")]
    UnknownName {
        /// Key of the place in the workload file.
        place: String,
        /// What names it.
        object: String,
        name: String,
        machine: String,
        /// The names it has.
        known: String,
    },
    /// A kernel of which the machine says no cost.
    #[error(
        "{object} names kernel `{name}`, of which machine `{machine}` says no cost; it says one of {}",
        or_none(known)
    )]
    UnknownKernel {
        /// Key of the place in the workload file.
        place: String,
        /// What names it.
        object: String,
        name: String,
        machine: String,
        /// The kernels of which it says one; may be empty.
        known: String,
    },
    /// No way leads from one endpoint to the other.
    #[error("{object} has no route from `{from}` to `{to}` on machine `{machine}`")]
    NoRoute {
        /// Key of the place in the workload file.
        place: String,
        /// What needs it.
        object: String,
        /// Where it would start.
        from: String,
        /// Where it would end.
        to: String,
        machine: String,
    },
    /// The windows of the steps would have no length, or a block no size that can be said.
    #[error("{object} cannot be planned: {reason}")]
    Impossible {
        /// Key of the place in the workload file.
        place: String,
        object: String,
        reason: String,
    },
    /// The machine gives a route no rate.
    #[error("a route has no rate")]
    Network(#[from] Starved),
    /// Messages cannot be combined.
    #[error("the messages cannot be combined")]
    Combine(#[from] CombineError),
    /// There is nothing to run transfers on.
    #[error("machine `{machine}` has no GPU, and {object} needs one")]
    NoGpu {
        /// Key of the place in the workload file.
        place: String,
        machine: String,
        /// What needs it.
        object: String,
    },
}

impl PlanError {
    /// Key of the place in the workload file that it is about.
    #[must_use]
    pub fn place(&self) -> &str {
        match self {
            Self::UnknownName { place, .. }
            | Self::UnknownKernel { place, .. }
            | Self::NoRoute { place, .. }
            | Self::Impossible { place, .. }
            | Self::NoGpu { place, .. } => place,
            Self::Network(_) | Self::Combine(_) => "",
        }
    }
}

/// A list of kernels as a sentence has it.
const fn or_none(known: &str) -> &str {
    if known.is_empty() { "no kernel" } else { known }
}

/// A copy or compute step with its ends resolved; streams may share a pipeline only if all of these agree.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Resolved {
    Copy(RouteId),
    Compute(String),
}

/// Streams that will share a pipeline.
#[derive(Debug)]
struct Group {
    processor: Processor,
    steps: Vec<Resolved>,
    gathered: bool,
    /// The window of every step.
    window: Nanos,
    streams: Vec<usize>,
}

/// Plans `workload` on `machine`.
///
/// Every combination of strategy and cycle form that the options and the workload leave open is tried; of those that the
/// tests accept, the one with the greatest margin wins, ties going to `serial` and to the paper's cycles. If none is
/// accepted, the deadlines of streams whose packets are jobs are divided unevenly among their steps, if a division is found that
/// holds. Else the result says why for the plan that comes closest: as a "no" if no windows can hold, else as undecided.
///
/// # Errors
/// [`PlanError`] if a name leads nowhere or a window has no length. A set that is merely not schedulable is a plan whose
/// verdict says so.
///
/// Transfers without windows never keep others out: where their mere traffic would, they are left out and a note says so.
pub fn plan(machine: &Machine, workload: &Workload, options: PlanOptions) -> Result<Plan, PlanError> {
    check(workload)?;
    let mut found = uneven::instead(machine, workload, options, division::best(machine, workload, options)?)?;
    if found.verdict.outcome != Outcome::Schedulable && !workload.unplanned.is_empty() {
        let without = Workload { unplanned: Vec::new(), ..workload.clone() };
        found = uneven::instead(machine, &without, options, division::best(machine, &without, options)?)?;
        if found.verdict.outcome == Outcome::Schedulable {
            let names: Vec<String> = workload.unplanned.iter().map(|of| format!("`{}`", of.id)).collect();
            found.verdict.notes.push(format!("{} left out: they would slow others down too much", names.join(", ")));
        }
    }
    let mut found = if machine.calibration.is_none() { uncalibrated(machine, options, found) } else { found };
    responses::bound(&mut found);
    Ok(found)
}

/// A plan for a machine without calibration, with what that leaves open: only `serial` was tried unless another strategy was
/// asked for, and batches are priced as `serial` prices them.
fn uncalibrated(machine: &Machine, options: PlanOptions, plan: Plan) -> Plan {
    let Plan { strategy, mut verdict, .. } = plan;
    let remedy = "measure the node (`headway measure`), or write `[calibration]` with `vouched = true` into the machine file if its \
                  rates always hold";
    let nothing = format!(
        "machine `{}` is not calibrated, so nothing says how far transfers that run together keep to the model",
        machine.name
    );
    if options.strategy.is_some_and(|asked| !asked.lets_gpus_overlap() && asked != Strategy::Serial) {
        let name = strategy.name();
        verdict.notes.push(format!(
            "{nothing}: `{name}` counts the blocks of a batch one after the other, as `serial` does; {remedy}"
        ));
    }
    let copies = |server: &Server| {
        let serves_copies =
            |engine: &EngineId| machine.engines.get(engine.at()).is_some_and(|of| of.serves != [EngineClass::Ee]);
        server.engines.iter().any(serves_copies)
    };
    let mut failing = plan.servers.iter().filter(|server| server.verdict.outcome == Outcome::NotSchedulable);
    if options.strategy.is_none() && verdict.outcome == Outcome::NotSchedulable && failing.all(copies) {
        (verdict.outcome, verdict.strength) = (Outcome::Undecided, Strength::Sufficient);
        verdict.notes.push(format!(
            "the answer is no for `serial`; other strategies were not tried, because {nothing}: {remedy}, or name one with \
             `--strategy`"
        ));
    }
    Plan { verdict, ..plan }
}

/// The best plan of those that the options leave open, with windows of different lengths where `uneven`.
fn best(machine: &Machine, workload: &Workload, options: PlanOptions, uneven: bool) -> Result<Plan, PlanError> {
    let strategies = match options.strategy {
        Some(asked) => vec![asked],
        // Without a calibration nothing says how far transfers that run together keep to the model.
        None if machine.calibration.is_none() => vec![Strategy::Serial],
        // Only messages, and the shards and parts of a packet, are combined.
        None if workload.messages.is_empty() && workload.streams.iter().all(is_single) => {
            vec![Strategy::Serial, Strategy::Partitioned]
        }
        None => vec![Strategy::Serial, Strategy::Combined, Strategy::Partitioned],
    };
    let cycles: &[Cycle] = match workload.cycle {
        _ if uneven => &[Cycle::Arrival],
        Cycle::Auto => &[Cycle::Paper, Cycle::Arrival],
        Cycle::Paper => &[Cycle::Paper],
        Cycle::Arrival => &[Cycle::Arrival],
    };
    let network = Network::new(machine);
    let cpu = machine.cpu_or_assumed();
    let mut tried: Vec<Plan> = Vec::new();
    for &strategy in &strategies {
        let mut best: Option<Plan> = None;
        for &cycle in cycles {
            let candidate =
                match (Planner { machine, workload, network: &network, cpu: &cpu, strategy, cycle, uneven }.plan()) {
                    // What is too long to be combined can still be carried as it is.
                    Err(PlanError::Combine(_)) if strategies.len() > 1 => continue,
                    candidate => candidate?,
                };
            if best.as_ref().is_none_or(|best| rank(&candidate.verdict) > rank(&best.verdict)) {
                best = Some(candidate);
            }
        }
        tried.extend(best);
    }
    let alternatives: Vec<Alternative> = tried.iter().map(alternative).collect();
    let first_best =
        tried.into_iter().reduce(|best, other| if rank(&other.verdict) > rank(&best.verdict) { other } else { best });
    let best = first_best.expect("at least one strategy and one cycle form are tried");
    Ok(Plan { alternatives, ..best })
}

/// Whether every step of a stream is one operation.
fn is_single(stream: &Stream) -> bool {
    stream.sharding.is_none() && stream.parts.is_empty()
}

fn alternative(plan: &Plan) -> Alternative {
    let Verdict { outcome, utilisation_ppm, margin_ppm, .. } = plan.verdict;
    Alternative { strategy: plan.strategy, outcome, utilisation_ppm, margin_ppm }
}

/// Refuses what no workload file can say, so that the rest may divide.
fn check(workload: &Workload) -> Result<(), PlanError> {
    let impossible = |place: String, reason: &str| {
        let object = if place.is_empty() { "the workload".to_owned() } else { format!("`{place}`") };
        Err(PlanError::Impossible { place, object, reason: reason.to_owned() })
    };
    if let Some(task) = workload.tasks.first() {
        return impossible(
            format!("task.{}", task.id),
            "tasks are given GPUs as they run, so there is no plan to run; `headway plan` bounds what they can suffer",
        );
    }
    for stream in &workload.streams {
        if let Some(reason) = sharded::fault(stream).or_else(|| parted::fault(stream)) {
            return impossible(format!("stream.{}", stream.id), &reason);
        }
        if stream.steps.is_empty() || stream.period == Nanos::ZERO {
            return impossible(format!("stream.{}", stream.id), "it has no steps or no period");
        }
    }
    for message in &workload.messages {
        if message.blocks.is_empty() || message.period == Nanos::ZERO {
            return impossible(format!("message.{}", message.id), "it has no blocks or no period");
        }
    }
    for demand in &workload.demands {
        if demand.period == Nanos::ZERO {
            return impossible(format!("demand.{}", demand.id), "it has no period");
        }
    }
    if workload.streams.is_empty() && workload.messages.is_empty() && workload.demands.is_empty() {
        // Transfers without windows live on what these leave over.
        return impossible(String::new(), "it has no stream, message or demand");
    }
    Ok(())
}

/// Larger is better: accepted, then margin.
fn rank(verdict: &Verdict) -> (u8, u64) {
    let outcome = match verdict.outcome {
        Outcome::Schedulable => 2,
        Outcome::Undecided => 1,
        Outcome::NotSchedulable => 0,
    };
    (outcome, verdict.margin_ppm.unwrap_or(0))
}

struct Planner<'a> {
    machine: &'a Machine,
    workload: &'a Workload,
    network: &'a Network,
    cpu: &'a CpuCores,
    strategy: Strategy,
    cycle: Cycle,
    /// Whether steps of one stream may have windows of different lengths.
    uneven: bool,
}

impl Planner<'_> {
    fn plan(&self) -> Result<Plan, PlanError> {
        let processors = self.place()?;
        let groups = self.group(&processors)?;
        let mut pipelines = Vec::new();
        let mut streams: Vec<Option<PlannedStream>> = vec![None; self.workload.streams.len()];
        for group in &groups {
            let number = pipelines.len() as u32;
            for (portion, &stream) in (0u32..).zip(&group.streams) {
                streams[stream] = Some(self.planned_stream(stream, group.processor, number, portion));
            }
            pipelines.push(self.pipeline(group)?);
        }
        if self.in_gangs() {
            gangs::form(&mut pipelines, self.strategy == Strategy::Generation);
        }
        let mut notes = Vec::new();
        self.sharded(&mut pipelines, &mut streams, &mut notes)?;
        self.parted(&processors, &mut pipelines, &mut streams)?;
        let mut batches: Vec<PlannedBatch> = Vec::new();
        let domains = match self.strategy {
            Strategy::Combined => self.domains(&pipelines)?,
            _ => Domains::whole(self.network),
        };
        match self.strategy {
            Strategy::Combined => self.combined(&mut pipelines, &mut batches, &domains, &mut notes)?,
            // Beside a gang, a message is a batch as any other: one at a time.
            Strategy::Serial | Strategy::Lockstep | Strategy::Generation => {
                self.messages(&mut pipelines, &mut batches)?;
            }
            Strategy::Partitioned | Strategy::PerGpu => self.single_blocks(&mut pipelines, &mut batches)?,
        }
        for demand in &self.workload.demands {
            pipelines.push(self.demand(demand));
        }
        // The last ones, so that others keep their places when some of them are left out.
        self.unplanned(&mut pipelines)?;
        let servers = self.serve(&mut pipelines, &domains, &mut batches)?;
        let mut verdict = self.verdict(&servers);
        let holding = servers.iter().filter(|server| server.verdict.outcome == Outcome::Schedulable);
        notes.extend(holding.flat_map(|server| server.verdict.notes.iter().cloned()));
        notes.extend(self.note_on_cores(&pipelines));
        notes.extend(self.note_on_producers());
        if verdict.outcome == Outcome::Schedulable {
            unplanned::leave_out(&mut pipelines, &mut notes);
        }
        verdict.notes.extend(notes);
        Ok(Plan {
            schema: SCHEMA,
            workload: Named { name: self.workload.name.clone(), hash: self.workload.hash.clone() },
            machine: Named { name: self.machine.name.clone(), hash: self.machine.hash.clone() },
            strategy: self.strategy,
            jitter: self.machine.calibration.as_ref().map_or(Nanos::ZERO, |c| c.jitter),
            engines: self.engines(&pipelines),
            capacities: self
                .machine
                .capacities
                .iter()
                .map(|c| PlannedCapacity { name: c.id.clone(), rate: c.rate })
                .collect(),
            servers,
            streams: streams.into_iter().map(|s| s.expect("every stream is in one group")).collect(),
            announced: self.announced(&pipelines),
            pipelines,
            batches,
            division: None,
            verdict,
            alternatives: Vec::new(),
        })
    }

    /// The machine's engines, and behind them the cores of the CPU that serve streams.
    fn engines(&self, pipelines: &[Pipeline]) -> Vec<PlannedEngine> {
        let engines = self.machine.engines.iter();
        let engines = engines.map(|e| PlannedEngine {
            name: e.id.clone(),
            gpu: Some(self.ordinal(e.gpu)),
            serves: e.serves.clone(),
        });
        engines.chain(self.cores(pipelines)).collect()
    }

    fn planned_stream(&self, index: usize, processor: Processor, pipeline: u32, portion: u32) -> PlannedStream {
        let stream = &self.workload.streams[index];
        PlannedStream {
            id: stream.id.clone(),
            packet: stream.packet,
            period: stream.period,
            deadline: stream.deadline,
            start: stream.start,
            on_miss: stream.on_miss,
            gpu: self.gpu_of(processor),
            pipeline,
            portion,
        }
    }

    fn unknown<'e>(
        &self,
        stream: &Stream,
        key: &str,
        name: &str,
        known: impl Iterator<Item = &'e EndpointId>,
    ) -> PlanError {
        let known: Vec<&str> = known.map(|e| self.machine.endpoints[e.at()].id.as_str()).collect();
        PlanError::UnknownName {
            place: format!("stream.{}.{key}", stream.id),
            object: format!("stream `{}`", stream.id),
            name: name.to_owned(),
            machine: self.machine.name.clone(),
            known: known.join(", "),
        }
    }

    /// The streams that share pipelines, in the order of GPU, form, window and first stream.
    fn group(&self, processors: &[Processor]) -> Result<Vec<Group>, PlanError> {
        let mut shortest: BTreeMap<Processor, Nanos> = BTreeMap::new();
        let mut formed = Vec::new();
        for (index, (stream, &processor)) in self.workload.streams.iter().zip(processors).enumerate() {
            if self.is_sharded(index) || self.is_parted(index) {
                continue;
            }
            let steps = self.resolve(stream, processor)?;
            let (gathered, window) = self.window(stream, processor, steps.len() as u64)?;
            if gathered {
                let least = shortest.entry(processor).or_insert(window);
                *least = window.min(*least);
            }
            formed.push((index, processor, steps, gathered, window));
        }
        // Cores have the classes of the shortest window on any of them.
        let on_cores =
            shortest.iter().filter(|(processor, _)| matches!(processor, Processor::Core(_))).map(|(_, window)| *window);
        let on_cores = on_cores.min().unwrap_or(Nanos::ZERO);
        let on_gpus = shortest.iter().filter(|(processor, _)| matches!(processor, Processor::Gpu(_)));
        let shortest_of_all = on_gpus.map(|(_, window)| *window).min();
        let mut groups: BTreeMap<_, Group> = BTreeMap::new();
        for (index, processor, steps, gathered, window) in formed {
            let on_core = matches!(processor, Processor::Core(_));
            let shared = gathered && self.workload.grouping != Grouping::Each;
            let window = match self.workload.grouping {
                _ if !gathered => window,
                // One cycle for all GPUs, that of the shortest deadline.
                _ if self.in_gangs() && !on_core => shortest_of_all.unwrap_or(window),
                Grouping::Each => window,
                Grouping::Gpu if !on_core => shortest_of_all.unwrap_or(window),
                // Cores have no copies that could move in one batch.
                Grouping::Gpu | Grouping::Class => {
                    // Classes T_min 2^j, rounded down: harmonic, so that all of them start together again and again.
                    let least = if on_core { on_cores } else { shortest[&processor] };
                    Nanos(least.0 << (window.0 / least.0).ilog2())
                }
            };
            let alone = if shared { None } else { Some(index) };
            // Only whole blocks can be given up: streams that skip share none with others.
            let skips = self.workload.streams[index].on_miss == OnMiss::Skip;
            let key = (processor, !gathered, window, steps.clone(), alone, skips);
            let group = groups.entry(key).or_insert(Group { processor, steps, gathered, window, streams: Vec::new() });
            group.streams.push(index);
        }
        Ok(groups.into_values().collect())
    }

    /// Whether the packets of a stream are gathered in cycles, and the window of each of its steps.
    fn window(&self, stream: &Stream, processor: Processor, steps: u64) -> Result<(bool, Nanos), PlanError> {
        // A generation makes all steps in one window.
        let generation = self.strategy == Strategy::Generation && matches!(processor, Processor::Gpu(_));
        let steps = if generation { 1 } else { steps };
        let by_arrival = Nanos(stream.deadline.0 / steps);
        if self.cycle == Cycle::Arrival && generation {
            // Done before the next packet comes.
            return Ok((false, by_arrival.min(stream.period)));
        }
        if self.cycle == Cycle::Arrival && stream.period >= by_arrival && by_arrival > Nanos::ZERO {
            return Ok((false, by_arrival));
        }
        let window = Nanos(stream.deadline.0 / (steps + 1));
        if window == Nanos::ZERO {
            return Err(PlanError::Impossible {
                place: format!("stream.{}.deadline", stream.id),
                object: format!("stream `{}`", stream.id),
                reason: format!("its deadline of {} leaves no time for {steps} steps", stream.deadline),
            });
        }
        Ok((true, window))
    }

    fn resolve(&self, stream: &Stream, processor: Processor) -> Result<Vec<Resolved>, PlanError> {
        let Processor::Gpu(gpu) = processor else { return self.resolve_on_core(stream) };
        let mut steps = Vec::new();
        for (number, step) in stream.steps.iter().enumerate() {
            steps.push(match step {
                StreamStep::Compute { kernel } => {
                    self.kernel_on_gpu(stream, number, kernel, gpu)?;
                    Resolved::Compute(kernel.clone())
                }
                StreamStep::Copy { from, to } => {
                    Resolved::Copy(self.route_of(stream, &format!("steps.{number}.copy"), (from, to), gpu)?)
                }
                StreamStep::Exchange | StreamStep::Parts(_) => {
                    unreachable!("these streams have pipelines of their own")
                }
            });
        }
        Ok(steps)
    }

    fn route(&self, from: EndpointId, to: EndpointId) -> Option<RouteId> {
        self.machine.route(from, to)
    }

    fn end(&self, stream: &Stream, key: &str, place: &CopyEndpoint, gpu: EndpointId) -> Result<EndpointId, PlanError> {
        match place {
            CopyEndpoint::OwnGpu => Ok(gpu),
            CopyEndpoint::Host => {
                let near =
                    |memory: &EndpointId| self.route(*memory, gpu).is_some() && self.route(gpu, *memory).is_some();
                let found = self.machine.memories().find(near);
                found.ok_or_else(|| PlanError::NoRoute {
                    place: format!("stream.{}.{key}", stream.id),
                    object: format!("stream `{}`", stream.id),
                    from: "host".to_owned(),
                    to: self.machine.endpoints[gpu.at()].id.clone(),
                    machine: self.machine.name.clone(),
                })
            }
            CopyEndpoint::Named(name) => {
                let all: Vec<EndpointId> = (0..self.machine.endpoints.len() as u32).map(EndpointId).collect();
                self.machine.endpoint(name).ok_or_else(|| self.unknown(stream, key, name, all.iter()))
            }
        }
    }

    /// The most bytes a stream can add to one block.
    fn portion_bytes(&self, group: &Group, stream: usize) -> u64 {
        let stream = &self.workload.streams[stream];
        let packets = if group.gathered { group.window.0.div_ceil(stream.period.0) } else { 1 };
        packets.saturating_mul(stream.packet.0)
    }

    fn pipeline(&self, group: &Group) -> Result<Pipeline, PlanError> {
        let first = &self.workload.streams[group.streams[0]];
        let reserve = block_bytes(group.streams.iter().map(|&s| self.portion_bytes(group, s)));
        let on = match group.processor {
            Processor::Gpu(gpu) => self.machine.endpoints[gpu.at()].id.clone(),
            Processor::Core(core) => cores::name(core),
        };
        if reserve.0 > u64::from(u32::MAX) {
            return Err(PlanError::Impossible {
                place: format!("stream.{}.packet", first.id),
                object: format!("the pipeline of stream `{}`", first.id),
                reason: format!("one cycle of {} would carry {reserve}, more than 4 GiB", group.window),
            });
        }
        let steps = group.steps.iter().map(|step| self.step(group, step, reserve)).collect::<Result<_, _>>()?;
        let (name, period, start, gather) = if group.gathered {
            let name = match group.streams.as_slice() {
                [_] if self.workload.grouping == Grouping::Each => first.id.clone(),
                streams => format!("{on} {} x{}", group.window, streams.len()),
            };
            (name, group.window, Nanos::ZERO, group.window)
        } else {
            (first.id.clone(), first.period, first.start, Nanos::ZERO)
        };
        let streams = group.streams.iter().map(|&s| s as u32).collect();
        Ok(Pipeline {
            name,
            source: PipelineSource::Streams(streams),
            gpu: self.gpu_of(group.processor),
            period,
            start,
            gather,
            window: group.window,
            reserve,
            steps,
            windows: Vec::new(),
            gang: None,
        })
    }

    /// A step without its server and, for a copy, without its cost: both follow when all steps are known.
    fn step(&self, group: &Group, step: &Resolved, reserve: Bytes) -> Result<PlannedStep, PlanError> {
        let first = &self.workload.streams[group.streams[0]];
        Ok(match step {
            Resolved::Copy(route) => self.copy_step(*route, reserve),
            Resolved::Compute(kernel) => {
                let (engine, cost) = match group.processor {
                    Processor::Gpu(gpu) => {
                        let engine = self.machine.execution_engine(gpu).expect("resolved kernels have an engine");
                        let cost = self.machine.kernel(kernel, gpu).expect("resolved kernels have a cost");
                        let chain = group.streams.iter().map(|&s| self.portion_bytes(group, s)).max().unwrap_or(0);
                        (engine, cost.cost(reserve, Bytes(chain)))
                    }
                    Processor::Core(core) => self.on_core(core, kernel, reserve, group.streams.len() as u64),
                };
                let cost = self.with_margin(cost);
                if cost == Nanos::MAX {
                    return Err(PlanError::Impossible {
                        place: format!("stream.{}", first.id),
                        object: format!("kernel `{kernel}` of stream `{}`", first.id),
                        reason: "its cost does not fit 64 bits of nanoseconds".to_owned(),
                    });
                }
                let operation =
                    PlannedOperation { engines: vec![engine], work: OperationWork::Compute { kernel: kernel.clone() } };
                PlannedStep {
                    name: kernel.clone(),
                    server: 0,
                    cost,
                    chunk: Bytes(0),
                    piece: Nanos::ZERO,
                    hold: None,
                    bound: None,
                    operations: vec![operation],
                    batch: None,
                }
            }
        })
    }

    /// A step of one copy, without its server and its cost.
    fn copy_step(&self, route: RouteId, bytes: Bytes) -> PlannedStep {
        let operation = self.copy(route, bytes);
        let OperationWork::Copy { from, to, .. } = &operation.work else { unreachable!("copy makes a copy") };
        PlannedStep {
            name: format!("{from} -> {to}"),
            server: 0,
            cost: Nanos::ZERO,
            chunk: Bytes(0),
            piece: Nanos::ZERO,
            hold: None,
            bound: None,
            operations: vec![operation],
            batch: None,
        }
    }

    fn copy(&self, route: RouteId, bytes: Bytes) -> PlannedOperation {
        let planned = &self.machine.routes[route.at()];
        let name = |end: EndpointId| self.machine.endpoints[end.at()].id.clone();
        let mut engines = planned.engines.clone();
        engines.sort_by_key(|engine| self.machine.engines[engine.at()].gpu != planned.from);
        PlannedOperation {
            engines,
            work: OperationWork::Copy {
                from: name(planned.from),
                to: name(planned.to),
                class: self.machine.class(route),
                route,
                method: planned.method,
                bytes,
                uses: planned.uses.clone(),
            },
        }
    }

    /// `ceil(time (1 + margin)) + jitter` of the machine's calibration (specification of messages, 1.6).
    fn with_margin(&self, time: Nanos) -> Nanos {
        let Some(calibration) = &self.machine.calibration else { return time };
        let scaled =
            (u128::from(time.0) * (u128::from(PPM) + u128::from(calibration.margin_ppm))).div_ceil(u128::from(PPM));
        u64::try_from(scaled).map_or(Nanos::MAX, Nanos).saturating_add(calibration.jitter)
    }

    fn verdict(&self, servers: &[Server]) -> Verdict {
        let mut notes = Vec::new();
        if let Some(calibration) = &self.machine.calibration {
            let while_what = if calibration.is_vouched() {
                format!("transfers keep to the rates that the file of machine `{}` vouches for", self.machine.name)
            } else {
                "the node stays within its calibration".to_owned()
            };
            notes.push(format!(
                "holds while {while_what}: every cost includes {} ppm and {}",
                calibration.margin_ppm, calibration.jitter
            ));
        } else if servers.iter().all(|s| s.engines.is_empty()) {
            notes.push(format!(
                "machine `{}` is not calibrated: costs of demands are as stated, and nothing is released late",
                self.machine.name
            ));
        } else {
            notes.push(format!(
                "machine `{}` is not calibrated: the answer holds for the model, not for a node",
                self.machine.name
            ));
        }
        let worst = servers.iter().max_by_key(|s| (s.verdict.outcome, s.verdict.utilisation_ppm));
        let Some(worst) = worst else {
            unreachable!("a workload without streams, messages and demands is refused at the start")
        };
        let exact = servers.iter().all(|s| s.verdict.strength == Strength::Exact);
        let narrowest = servers.iter().max_by_key(|s| holds::Holds::of(&s.verdict.model)).unwrap_or(worst);
        Verdict {
            outcome: worst.verdict.outcome,
            model: narrowest.verdict.model.clone(),
            strength: if exact { Strength::Exact } else { Strength::Sufficient },
            utilisation_ppm: servers.iter().map(|s| s.verdict.utilisation_ppm).max().unwrap_or(0),
            margin_ppm: servers.iter().map(|s| s.verdict.margin_ppm).min().flatten(),
            violation: worst.verdict.violation.clone(),
            notes,
        }
    }
}
