//! Streams whose packets have parts that go to several processors (`verner-2014`, III-B): one pipeline, whose steps are sets of
//! copies and kernels.
//!
//! A step is one job: it begins with all of its operations and ends with the last of them, as a batch of the Batch method does that
//! holds kernels as well as copies (`verner-2014`, IV). So all engines that its operations use are one server.

use std::collections::BTreeMap;

use super::{
    CopyEndpoint, Domains, EndpointId, EngineId, Nanos, OperationWork, Pipeline, PipelineSource, PlanError,
    PlannedOperation, PlannedStep, PlannedStream, Planner, Processor, RouteId, Strategy, Stream, StreamStep,
};
use crate::files::workload::{PARTS_MAX, PartStep, PartWork, StreamPlacement};
use crate::plan::Parted;
use crate::units::Bytes;

/// Why no machine can run a stream whose steps are sets as this one.
pub(super) fn fault(stream: &Stream) -> Option<String> {
    let sets = stream.steps.iter().filter(|step| matches!(step, StreamStep::Parts(_))).count();
    if sets == 0 {
        return (!stream.parts.is_empty())
            .then(|| "it has parts, and no step says which of them it works on".to_owned());
    }
    let total = stream.parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.bytes.0));
    let count = stream.parts.len().max(1);
    if stream.parts.len() > PARTS_MAX {
        return Some(format!("its packets have {} parts: let {PARTS_MAX} or fewer be larger", stream.parts.len()));
    }
    if sets != stream.steps.len() {
        return Some("some of its steps are sets and some are not: make all of them sets".to_owned());
    }
    if !stream.parts.is_empty() && (total != stream.packet.0 || stream.parts.iter().any(|part| part.bytes == Bytes(0)))
    {
        return Some(format!("its parts do not add up to its packet of {}, each with a byte at least", stream.packet));
    }
    let mut steps = stream.steps.iter().filter_map(|step| match step {
        StreamStep::Parts(set) => Some(set),
        _ => None,
    });
    let once = |set: &Vec<PartStep>| {
        let known = set.iter().all(|step| (step.part as usize) < count);
        let twice = (0..set.len()).any(|at| set[..at].iter().any(|other| other.part == set[at].part));
        !set.is_empty() && known && !twice
    };
    let wrong = steps.position(|set| !once(set))?;
    Some(format!("step {wrong} is empty, or names a part that it does not have or has twice"))
}

impl Planner<'_> {
    /// Whether stream `index` has parts, or a copy from one GPU to another.
    pub(super) fn is_parted(&self, index: usize) -> bool {
        let stream = &self.workload.streams[index];
        let on_a_gpu =
            matches!(stream.gpu, StreamPlacement::Auto | StreamPlacement::Gpu(_)) && stream.sharding.is_none();
        stream.steps.iter().any(|step| match step {
            StreamStep::Parts(_) => true,
            StreamStep::Copy { from, to } => on_a_gpu && self.is_gpu(from) && self.is_gpu(to),
            StreamStep::Compute { .. } | StreamStep::Exchange => false,
        })
    }

    fn is_gpu(&self, place: &CopyEndpoint) -> bool {
        match place {
            CopyEndpoint::Host => false,
            CopyEndpoint::OwnGpu => true,
            CopyEndpoint::Named(name) => {
                self.machine.endpoint(name).is_some_and(|end| self.machine.gpus().any(|gpu| gpu == end))
            }
        }
    }

    /// The streams that have parts, with a pipeline of its own each.
    pub(super) fn parted(
        &self,
        processors: &[Processor],
        pipelines: &mut Vec<Pipeline>,
        streams: &mut [Option<PlannedStream>],
    ) -> Result<(), PlanError> {
        let engines = self.machine.engines.len();
        let used = pipelines.iter().flat_map(|p| &p.steps).flat_map(|s| &s.operations).flat_map(|o| &o.engines);
        let first = used.map(|engine| (engine.at() + 1).saturating_sub(engines) as u32).max().unwrap_or(0);
        let mut cores = Cores { first, next: 0, count: self.cpu.cores };
        for (index, stream) in self.workload.streams.iter().enumerate().filter(|(index, _)| self.is_parted(*index)) {
            streams[index] = Some(self.planned_stream(index, processors[index], pipelines.len() as u32, 0));
            pipelines.push(self.parted_pipeline(index as u32, stream, processors[index], &mut cores)?);
        }
        Ok(())
    }

    fn parted_pipeline(
        &self,
        index: u32,
        stream: &Stream,
        processor: Processor,
        cores: &mut Cores,
    ) -> Result<Pipeline, PlanError> {
        let impossible = |key: &str, reason: String| PlanError::Impossible {
            place: format!("stream.{}{key}", stream.id),
            object: format!("stream `{}`", stream.id),
            reason,
        };
        if self.in_gangs() {
            let name = self.strategy.name();
            return Err(impossible(
                ".steps",
                format!(
                    "strategy `{name}` knows only streams of one GPU; choose `serial`, `combined`, `partitioned` or `per-gpu`"
                ),
            ));
        }
        let (Some((parts, steps)), Processor::Gpu(own)) = (stream.in_parts(), processor) else {
            return Err(impossible(".steps", "its steps name several processors: leave `processor` out, and write `on = \"cpu\"` where a core computes".to_owned()));
        };
        let (gathered, window) = self.window(stream, processor, steps.len() as u64)?;
        let packets = if gathered { window.0.div_ceil(stream.period.0) } else { 1 };
        let planned = Parted {
            stream: index,
            parts: parts.iter().map(|part| part.bytes).collect(),
            reserves: parts.iter().map(|part| Parted::room(part.bytes, packets)).collect(),
            of: steps.iter().map(|set| set.iter().map(|step| step.part).collect()).collect(),
            one_by_one: self.strategy == Strategy::Serial,
        };
        let reserve = planned.reserves.iter().fold(0u64, |sum, part| sum.saturating_add(part.0));
        if reserve > u64::from(u32::MAX) {
            let reserve = Bytes(reserve);
            return Err(impossible(
                ".packet",
                format!(
                    "one cycle of {window} would carry {reserve}, more than 4 GiB: make packets smaller or the deadline shorter"
                ),
            ));
        }
        let step = |(number, set): (usize, &Vec<PartStep>)| {
            self.parted_step(&StepPlace { stream, number, own }, set, &planned, cores)
        };
        let made = steps.iter().enumerate().map(step).collect::<Result<_, _>>()?;
        let (period, start, gather) =
            if gathered { (window, Nanos::ZERO, window) } else { (stream.period, stream.start, Nanos::ZERO) };
        Ok(Pipeline {
            name: stream.id.clone(),
            source: PipelineSource::Parts(planned),
            gpu: None,
            period,
            start,
            gather,
            window,
            windows: Vec::new(),
            reserve: Bytes(reserve),
            steps: made,
            gang: None,
        })
    }

    /// A step with its operations and what its kernels cost.
    fn parted_step(
        &self,
        place: &StepPlace<'_>,
        set: &[PartStep],
        planned: &Parted,
        cores: &mut Cores,
    ) -> Result<PlannedStep, PlanError> {
        let StepPlace { stream, number, own } = *place;
        let mut operations = Vec::new();
        // Kernels of one engine run one after the other.
        let mut busy: BTreeMap<EngineId, Nanos> = BTreeMap::new();
        for PartStep { part, work } in set {
            let bytes = planned.reserves[*part as usize];
            operations.push(match work {
                PartWork::Copy { from, to } => {
                    let key = format!("steps.{number}.copy");
                    self.copy(self.route_of(stream, &key, (from, to), own)?, bytes)
                }
                PartWork::Compute { kernel, at: here, on_cpu } => {
                    let here = self.end(stream, &format!("steps.{number}.compute"), here, own)?;
                    let (engine, cost) = if *on_cpu {
                        self.is_on_host(place, *part, here)?;
                        self.on_cpu(stream, number, kernel, bytes, cores)?
                    } else {
                        let (engine, cost) = self.kernel_on_gpu(stream, number, kernel, here)?;
                        (engine, cost.cost(bytes, bytes))
                    };
                    let time = busy.entry(engine).or_default();
                    *time = time.saturating_add(self.with_margin(cost));
                    PlannedOperation { engines: vec![engine], work: OperationWork::Compute { kernel: kernel.clone() } }
                }
            });
        }
        let cost = busy.values().copied().max().unwrap_or_default();
        if cost == Nanos::MAX {
            return Err(PlanError::Impossible {
                place: format!("stream.{}.steps.{number}", stream.id),
                object: format!("step {number} of stream `{}`", stream.id),
                reason: "the cost of its kernels does not fit 64 bits of nanoseconds".to_owned(),
            });
        }
        let name = name(&operations);
        Ok(PlannedStep {
            name,
            server: 0,
            cost,
            chunk: Bytes(0),
            piece: cost,
            hold: None,
            bound: None,
            batch: None,
            operations,
        })
    }

    /// Refuses a kernel on a core of the CPU whose data is on a GPU.
    fn is_on_host(&self, place: &StepPlace<'_>, part: u32, here: EndpointId) -> Result<(), PlanError> {
        if self.machine.gpus().all(|gpu| gpu != here) {
            return Ok(());
        }
        let gpu = &self.machine.endpoints[here.at()].id;
        let part = place.stream.parts.get(part as usize);
        let what = part.map_or_else(|| "its data".to_owned(), |part| format!("part `{}`", part.id));
        Err(PlanError::Impossible {
            place: format!("stream.{}.steps.{}", place.stream.id, place.number),
            object: format!("stream `{}`", place.stream.id),
            reason: format!(
                "`on = \"cpu\"` computes in host memory, and {what} is on `{gpu}`: copy it to `host` before"
            ),
        })
    }

    fn on_cpu(
        &self,
        stream: &Stream,
        number: usize,
        kernel: &str,
        bytes: Bytes,
        cores: &mut Cores,
    ) -> Result<(EngineId, Nanos), PlanError> {
        if self.cpu.kernel(kernel).is_none() {
            return Err(self.unknown_on_cpu(stream, number, kernel));
        }
        let core = cores.take().ok_or_else(|| PlanError::Impossible {
            place: format!("stream.{}.steps.{number}", stream.id),
            object: format!("stream `{}`", stream.id),
            reason: format!("no core of machine `{}` may serve streams (`cores = 0`)", self.machine.name),
        })?;
        Ok(self.on_core(core, kernel, bytes, 1))
    }

    /// Cost and longest piece of a step: of its kernels, and of its copies, which run at the same time.
    pub(super) fn price_parts(
        &self,
        planned: &Parted,
        step: &mut PlannedStep,
        used: &[RouteId],
        domains: &Domains,
    ) -> Result<(), PlanError> {
        let copies_only = step.operations.iter().all(|operation| matches!(operation.work, OperationWork::Copy { .. }));
        let copies = if self.strategy.lets_gpus_overlap() {
            // The copies of a set run at the same time, also those of one GPU, which otherwise wait for each other.
            let time = |route, bytes| match step.operations.len() {
                1 => self.copy_time(route, bytes, used, domains),
                _ => self.copy_time_beside(route, bytes, used, domains),
            };
            self.side_by_side(step, time)?.map(|cost| (cost, cost))
        } else {
            self.batch_of_step(step, planned.one_by_one && copies_only, used, domains)?
        };
        let (cost, piece) = copies.unwrap_or_default();
        (step.cost, step.piece) = (step.cost.max(cost), step.cost.max(piece));
        Ok(())
    }
}

/// Where a step is written, and its stream's own GPU.
struct StepPlace<'a> {
    stream: &'a Stream,
    number: usize,
    own: EndpointId,
}

/// Cores of the CPU for kernels of streams in parts: those that serve no whole stream, in turn.
struct Cores {
    /// The first one that serves no whole stream.
    first: u32,
    next: u32,
    count: u32,
}

impl Cores {
    fn take(&mut self) -> Option<u32> {
        let (first, free) = match self.count.checked_sub(self.first) {
            None | Some(0) => (0, self.count),
            Some(free) => (self.first, free),
        };
        let core = first + self.next.checked_rem(free)?;
        self.next += 1;
        Some(core)
    }
}

/// What a step does, in short.
fn name(operations: &[PlannedOperation]) -> String {
    let mut names: Vec<String> = Vec::new();
    for operation in operations {
        let name = match &operation.work {
            OperationWork::Copy { from, to, .. } => format!("{from} -> {to}"),
            OperationWork::Compute { kernel } => kernel.clone(),
            OperationWork::Hold => continue,
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.len() > NAMES_MAX { format!("{} operations", operations.len()) } else { names.join(" + ") }
}

/// Names of operations that the name of a step has at most.
const NAMES_MAX: usize = 3;
