//! From a machine and a workload to a [`Plan`]: places streams, forms pipelines, bounds costs, tests every server.
//!
//! The pipeline of a stream follows `verner-2014`, III: with `N` steps and a relative deadline `l`, every step runs once
//! per cycle `T` inside a window of one cycle. Packets that do not arrive exactly when cycles start wait up to one cycle,
//! so gathering counts as a step: `T = floor(l / (N + 1))`. A stream whose packets are further apart than that may make
//! each packet a job of its own instead, released when it arrives: `T = floor(l / N)`.

use crate::files::machine::{CpuCores, EndpointId, EngineClass, EngineId, Machine};
use crate::files::workload::{Cycle, Stream, Workload, WorkloadError};
use crate::interconnect::{Network, Starved};
use crate::plan::combine::CombineError;
use crate::plan::{
    Alternative, Outcome, Pipeline, Plan, PlannedBatch, PlannedOperation, PlannedStep, PlannedStream, Server, Strength,
    Verdict,
};
use crate::units::{Bytes, Nanos};

mod batches;
mod context;
mod cores;
mod demands;
mod division;
mod driver;
mod explored;
mod gangs;
mod groups;
mod holds;
mod models;
mod packets;
mod parted;
mod prices;
mod processors;
mod responses;
mod servers;
mod sharded;
mod strategies;
mod stream_batches;
mod uneven;
mod unplanned;
mod verdict;

pub(crate) use demands::{demands, steps_on};
pub use division::margins;
pub(crate) use holds::{keeps_distances, streams_of};
pub use models::{Evidence, ModelAnswer, models};
use servers::ServerKey;
pub use strategies::Strategy;
use strategies::{Domains, Tried};
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
    /// What no workload may say.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
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
    /// A kernel of a module of which nothing says the cost.
    #[error("{object} runs {kernel}, and neither the step nor machine `{machine}` says how long it takes")]
    NoCost {
        /// Key of the place in the workload file.
        place: String,
        /// What runs it.
        object: String,
        /// The entry and its module, in quotes.
        kernel: String,
        /// The name under which a machine file says it.
        id: String,
        machine: String,
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
            Self::Workload(error) => error.place(),
            Self::UnknownName { place, .. }
            | Self::UnknownKernel { place, .. }
            | Self::NoCost { place, .. }
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
    let machine = &*workload.with_costs_on(machine);
    let node = Node { machine, network: &Network::new(machine), cpu: &machine.cpu_or_assumed() };
    let has_unplanned = !workload.unplanned.is_empty();
    let without = has_unplanned.then(|| Workload { unplanned: Vec::new(), ..workload.clone() });
    let mut found = None;
    for attempt in [Some(workload), without.as_ref()].into_iter().flatten() {
        let by_place = |placed: &Workload| Ok(best_of(by_strategy(node, placed, options, Windows::Equal)?));
        let (placed, division) = division::place(node.cpu, attempt, by_place)?;
        let equal = by_strategy(node, &placed, options, Windows::Equal)?;
        let mut plan = if uneven::may_help(&equal, &placed, options) {
            // Streams that may run on either were given their places with equal windows.
            let again = division.is_none() && uneven::is_small(&placed);
            // What cannot even be tried so is no answer: equal windows were planned.
            let divided = match again && uneven::is_divisible(&placed) {
                true => by_strategy(node, &placed, options, Windows::Divided).unwrap_or_default(),
                false => Vec::new(),
            };
            uneven::answer(node, equal, divided, again)
        } else {
            best_of(equal)
        };
        plan.division = division;
        let holds = plan.verdict.outcome == Outcome::Schedulable;
        if holds && attempt.unplanned.len() < workload.unplanned.len() {
            let names: Vec<String> = workload.unplanned.iter().map(|of| format!("`{}`", of.id)).collect();
            plan.verdict.notes.push(format!("{} left out: they would slow others down too much", names.join(", ")));
        }
        found = Some(plan);
        if holds {
            break;
        }
    }
    let mut found = found.expect("there is an attempt");
    if machine.calibration.is_none() {
        found = uncalibrated(machine, options, found);
    }
    responses::bound(&mut found);
    Ok(found)
}

/// What plans are made for.
#[derive(Clone, Copy)]
struct Node<'a> {
    machine: &'a Machine,
    network: &'a Network,
    cpu: &'a CpuCores,
}

/// What is planned, where, and how.
#[derive(Clone, Copy)]
struct Context<'a> {
    machine: &'a Machine,
    network: &'a Network,
    cpu: &'a CpuCores,
    workload: &'a Workload,
    strategy: Strategy,
    cycle: Cycle,
    windows: Windows,
}

/// What serves a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Processor {
    Gpu(EndpointId),
    /// A core of the CPU.
    Core(u32),
}

/// How long the windows of a stream's steps are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Windows {
    /// All alike, as in the paper.
    Equal,
    /// As long as the servers need, of streams whose packets are jobs.
    Divided,
}

/// What the passes have made so far.
struct Draft {
    /// By stream.
    processors: Vec<Processor>,
    pipelines: Vec<Pipeline>,
    /// In the order of the workload; `None` = no pass has made its pipeline yet.
    streams: Vec<Option<PlannedStream>>,
    domains: Domains,
    batches: Vec<PlannedBatch>,
    /// By engine, the lowest one that is arbitrated together with it.
    leaders: Vec<EngineId>,
    server_keys: Vec<ServerKey>,
    servers: Vec<Server>,
    notes: Vec<String>,
}

/// Chunks are whole pages of host memory.
const CHUNK_GRANULE: Bytes = Bytes(4096);

type Pass = fn(&Context<'_>, Draft) -> Result<Draft, PlanError>;

/// How a plan is made, in this order.
const PASSES: &[Pass] = &[
    processors::place,
    groups::form,
    gangs::form,
    sharded::add,
    parted::add,
    packets::add,
    |context, draft| (context.strategy.row().messages)(context, draft),
    batches::demands,
    // The last pipelines, so that others keep their places when some of these are left out.
    unplanned::add,
    servers::tie,
    prices::price,
    servers::assign,
    stream_batches::form,
    gangs::price,
    uneven::divide,
    servers::test,
    verdict::notes,
    unplanned::leave_out,
];

fn made(context: &Context<'_>) -> Result<Plan, PlanError> {
    let mut draft = Draft {
        processors: Vec::new(),
        pipelines: Vec::new(),
        streams: vec![None; context.workload.streams.len()],
        domains: Domains::whole(context.network),
        batches: Vec::new(),
        leaders: Vec::new(),
        server_keys: Vec::new(),
        servers: Vec::new(),
        notes: Vec::new(),
    };
    for pass in PASSES {
        draft = pass(context, draft)?;
    }
    Ok(verdict::finished(context, draft))
}

/// A step whose server follows when all steps are known.
fn planned_step(name: String, cost: Nanos, operations: Vec<PlannedOperation>) -> PlannedStep {
    let (server, chunk, chunk_cost) = (0, Bytes(0), cost);
    PlannedStep { name, server, cost, chunk, chunk_cost, hold: None, bound: None, operations, batch: None }
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
    if options.strategy.is_some_and(|asked| !asked.lets_gpus_overlap() && asked.row().tried != Tried::Always) {
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

/// The best plan of every strategy that the options leave open, in the order in which they are tried; one at least.
fn by_strategy(
    node: Node<'_>,
    workload: &Workload,
    options: PlanOptions,
    windows: Windows,
) -> Result<Vec<Plan>, PlanError> {
    let Node { machine, network, cpu } = node;
    let is_calibrated = machine.calibration.is_some();
    let has_batches = !workload.messages.is_empty() || !workload.streams.iter().all(is_single);
    let is_tried = |strategy: &Strategy| match options.strategy {
        Some(asked) => asked == *strategy,
        None => match strategy.row().tried {
            Tried::Always => true,
            Tried::WhereCalibrated => is_calibrated,
            Tried::WhereBatchesAre => is_calibrated && has_batches,
            Tried::Never => false,
        },
    };
    let strategies: Vec<Strategy> = Strategy::ALL.into_iter().filter(is_tried).collect();
    let baseline = options.strategy.filter(|asked| asked.row().gangs.is_some() && workload.streams.is_empty());
    if let (Some(asked), Some(message)) = (baseline, workload.messages.first()) {
        return Err(PlanError::Impossible {
            place: format!("message.{}.blocks", message.id),
            object: format!("message `{}`", message.id),
            reason: format!(
                "strategy `{}` is one of streams, and there are none; choose {}",
                asked.name(),
                strategies::or_of_others()
            ),
        });
    }
    let cycles: &[Cycle] = match workload.cycle {
        _ if windows == Windows::Divided => &[Cycle::Arrival],
        Cycle::Auto => &[Cycle::Paper, Cycle::Arrival],
        Cycle::Paper => &[Cycle::Paper],
        Cycle::Arrival => &[Cycle::Arrival],
    };
    let mut tried: Vec<Plan> = Vec::new();
    for &strategy in &strategies {
        let mut candidates = Vec::new();
        for &cycle in cycles {
            match made(&Context { machine, network, cpu, workload, strategy, cycle, windows }) {
                // What is too long to be combined can still be carried as it is.
                Err(PlanError::Combine(_)) if strategies.len() > 1 => {}
                candidate => candidates.push(candidate?),
            }
        }
        tried.extend(candidates.into_iter().reduce(better));
    }
    Ok(tried)
}

/// The better one, the first where none is.
fn better(one: Plan, other: Plan) -> Plan {
    if rank(&other.verdict) > rank(&one.verdict) { other } else { one }
}

/// The best plan, with the others as its alternatives.
fn best_of(tried: Vec<Plan>) -> Plan {
    let alternatives: Vec<Alternative> = tried.iter().map(alternative).collect();
    let best = tried.into_iter().reduce(better).expect("at least one strategy and one cycle form are tried");
    Plan { alternatives, ..best }
}

/// Whether every step of a stream is one operation.
fn is_single(stream: &Stream) -> bool {
    stream.sharding.is_none() && stream.parts.is_empty()
}

fn alternative(plan: &Plan) -> Alternative {
    let Verdict { outcome, utilisation_ppm, margin_ppm, .. } = plan.verdict;
    Alternative { strategy: plan.strategy, outcome, utilisation_ppm, margin_ppm }
}

/// Refuses tasks, and what no workload may say, so that the rest may divide.
fn check(workload: &Workload) -> Result<(), PlanError> {
    let Some(task) = workload.tasks.first() else { return Ok(workload.check()?) };
    let place = format!("task.{}", task.id);
    let reason =
        "tasks are given GPUs as they run, so there is no plan to run; `headway plan` bounds what they can suffer";
    Err(PlanError::Impossible { object: format!("`{place}`"), place, reason: reason.to_owned() })
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
