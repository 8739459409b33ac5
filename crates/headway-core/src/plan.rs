//! The plan: what runs where, when each step may start and must end, what it costs at worst, and whether that fits.
//!
//! A plan is plain data. The dispatcher runs from it alone, a log carries it whole, and a report needs nothing else.
//! [`planner`] makes it from a machine and a workload; [`combine`] and [`stream`] are the parts of Verner's method that form
//! batches and divide streams.

pub mod block;
pub mod combine;
pub mod message;
mod packets;
mod parted;
pub mod payload;
pub mod planner;
mod sharded;
pub mod stream;
mod times;

use serde::{Deserialize, Serialize};

use crate::files::machine::{CapacityId, EngineClass, EngineId, RouteId};
use crate::files::workload::{OnMiss, Urgent};
use crate::models::transfer::Method;
use crate::plan::message::{BatchMember, Elementary};
use crate::units::{Bytes, Nanos, Rate};

pub use self::packets::WholePackets;
pub use self::parted::Parted;
pub use self::planner::Strategy;
pub use self::sharded::{Shard, Sharded, is_first_kernel};

/// Version of the JSON form of [`Plan`].
pub const SCHEMA: u32 = 1;

/// A file by name and content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// Name that the file gives itself.
    pub name: String,
    /// First 16 hexadecimal digits of the SHA-256 of its text.
    pub hash: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// What runs where and when, and whether it fits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The workload file.
    pub workload: Named,
    /// The machine file.
    pub machine: Named,
    /// How transfers are kept apart.
    pub strategy: Strategy,
    /// How late a window may open, and how long after its end a completion may be noticed, together.
    pub jitter: Nanos,
    /// Other programs whose turns at the copy engines are part of its costs.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub others: u32,
    /// Calls of the thread that submits operations; `None` = nobody measured what one takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<DriverDemand>,
    /// The machine's engines, in its order.
    pub engines: Vec<PlannedEngine>,
    /// The machine's links and limits, in its order.
    pub capacities: Vec<PlannedCapacity>,
    /// What serves one job at a time, in the order of the first step that uses it.
    pub servers: Vec<Server>,
    /// The streams, in the order of the workload.
    pub streams: Vec<PlannedStream>,
    /// Everything that releases jobs.
    pub pipelines: Vec<Pipeline>,
    /// The blocks of messages whose producers say when they are there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub announced: Vec<Announced>,
    /// Predicted and bounding times of the workload's batches.
    pub batches: Vec<PlannedBatch>,
    /// How the streams that may run on either are divided between the CPU and the GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub division: Option<Division>,
    /// Whether every deadline holds, for which model, and why.
    pub verdict: Verdict,
    /// The best answer of every strategy that was tried, this one's included.
    #[serde(default)]
    pub alternatives: Vec<Alternative>,
}

/// What the one thread that submits operations has to do. Looking for ends is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverDemand {
    /// Calls that submit, rounded up; those of urgent copies are not known.
    pub calls_per_second: u64,
    /// The part of one CPU that these calls take, parts per million.
    pub busy_ppm: u64,
    /// What the calls take if all steps open at the same instant.
    pub at_once: Nanos,
}

/// The rectangle of streams that the CPU takes of those that may run on either (`verner-2014`, V-B; the rule is ours).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Division {
    /// `d*`: on the CPU are streams with a shorter deadline, and of those with just this one the first [`Division::ties`].
    pub deadline: Nanos,
    /// Streams with a deadline of exactly `d*` and at most the rate `r*` that are on the CPU, in the order of the workload.
    pub ties: u32,
    /// `r*`: on the CPU are streams with at most this rate, bits per second.
    pub bits_per_second: u64,
    /// Streams that the rectangle puts on the CPU.
    pub on_cpu: u32,
    /// Streams that may run on either.
    pub of: u32,
    /// The largest factor on all costs of the CPU's jobs for which its answer is yes, parts per million.
    pub cpu_margin_ppm: u64,
    /// The largest factor on all costs of the GPUs' jobs for which their answer is yes, parts per million.
    pub gpus_margin_ppm: u64,
    /// Rectangles that were planned to find it.
    pub tried: u32,
}

/// Blocks of a message whose producer says when they are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announced {
    /// Position of the message in the workload.
    pub message: u32,
    /// The pipeline that moves them.
    pub pipeline: u32,
    /// Which of a batch's operations moves them; 0 in a pipeline of the message alone, for all its blocks.
    pub part: u32,
    /// How late they may be. Slots of a batch that carry them open no earlier; a run stands in for the producer up to it.
    pub late: Nanos,
}

/// What a strategy would give.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alternative {
    pub strategy: Strategy,
    /// Yes, no, or not known.
    pub outcome: Outcome,
    /// Largest sum of cost / period over its servers, parts per million.
    pub utilisation_ppm: u64,
    /// The largest factor on all costs for which the answer is yes.
    pub margin_ppm: Option<u64>,
}

/// An engine of the machine file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedEngine {
    /// Name, for example `gpu0.h2d`.
    pub name: String,
    /// Ordinal of its GPU among the machine's GPUs; `None` = a core of the CPU.
    pub gpu: Option<u32>,
    pub serves: Vec<EngineClass>,
}

/// A link or limit of the machine file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedCapacity {
    pub name: String,
    /// Typical rate.
    pub rate: Rate,
}

/// One queue in front of one engine, or of several that are used as one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// Name: the engine's, or `transfers` for all copy engines together, or the server that a demand names.
    pub name: String,
    /// The engines behind it; empty for an abstract server.
    pub engines: Vec<EngineId>,
    /// Chunks that may be in flight at once.
    pub in_flight: u32,
    /// Whether its steps always end inside their windows.
    pub verdict: Verdict,
}

/// A stream with its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedStream {
    pub id: String,
    /// Size of a packet.
    pub packet: Bytes,
    /// Time between packets.
    pub period: Nanos,
    /// Relative deadline of a packet.
    pub deadline: Nanos,
    /// Arrival of packet 0 after the epoch.
    pub start: Nanos,
    /// What a lateness does.
    pub on_miss: OnMiss,
    /// Ordinal of its GPU; `None` = a core of the CPU serves it.
    pub gpu: Option<u32>,
    /// Position in [`Plan::pipelines`].
    pub pipeline: u32,
    /// Position of its portion in that pipeline's blocks.
    #[serde(rename = "lane")]
    pub portion: u32,
}

/// Releases one job per step and cycle.
///
/// Step `i` of cycle `k` has the window `[start + k period + gather + i window, the same + window)`: it is released when
/// the window opens and its data is there, and must be complete when the window closes (`verner-2014`, III). Where windows differ
/// they follow each other in the same way. In a chained [`Gang`] all steps have the window of the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pipeline {
    pub name: String,
    /// What feeds it.
    pub source: PipelineSource,
    /// Ordinal of its GPU, where it has one.
    pub gpu: Option<u32>,
    /// Time between cycles.
    pub period: Nanos,
    /// Start of cycle 0 after the epoch.
    pub start: Nanos,
    /// Time in which the packets of a cycle arrive: the period in the paper's cycles, zero when packets are jobs.
    pub gather: Nanos,
    /// Length of every step's window, of the longest one where they differ.
    pub window: Nanos,
    /// Length of each step's window where they differ; empty = all are alike.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<Nanos>,
    /// Largest block a cycle can carry.
    pub reserve: Bytes,
    /// Steps in order.
    pub steps: Vec<PlannedStep>,
    /// The pipelines that advance together with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang: Option<Gang>,
}

/// Pipelines whose cycles advance together: jobs of the same cycle and step that wait for one server are submitted at once,
/// and end when the last of them does. All have the same period, start, gathering and window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gang {
    /// Pipelines with the same number are in one gang.
    pub number: u32,
    /// Whether all steps share one window, each released when the one before it has ended; else each has its own.
    pub chained: bool,
}

/// What feeds a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PipelineSource {
    /// These streams, by position in [`Plan::streams`], in the order of their portions.
    Streams(Vec<u32>),
    /// A message of the workload: every cycle carries its full blocks.
    Message,
    /// Messages of the workload, combined: a cycle carries what falls into its slot, per operation of its one step.
    Batch(Vec<Carried>),
    /// A demand of the workload: no data, only cost.
    #[serde(alias = "flow")]
    Demand,
    /// A stream whose packets are divided among all GPUs.
    #[serde(rename = "wafer")]
    Sharded(Sharded),
    /// A stream whose packets have parts that go to several processors.
    Parts(Parted),
    /// A stream whose packets are worked on by kernels of the user's own, one in a cycle.
    Packets(WholePackets),
    /// A bulk transfer of so many bytes, or endless. A cycle is one chunk of it, of [`Pipeline::reserve`] bytes but for the
    /// last: the next begins when one is complete, so that period and window mean nothing.
    Bulk(Option<Bytes>),
    /// Urgent requests: a cycle is one of them, of at most [`Pipeline::reserve`] bytes; period and window mean nothing.
    Urgent(Urgent),
}

/// What is served first of what is due at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceClass {
    /// What the plan has windows for.
    Guaranteed,
    /// Single copies that a program requests while others run.
    Urgent,
    /// What has no deadline.
    Bulk,
}

impl PipelineSource {
    /// The streams that feed it.
    #[must_use]
    pub fn streams(&self) -> &[u32] {
        match self {
            Self::Streams(streams) => streams,
            Self::Sharded(sharded) => std::slice::from_ref(&sharded.stream),
            Self::Parts(parted) => std::slice::from_ref(&parted.stream),
            Self::Packets(packets) => std::slice::from_ref(&packets.stream),
            Self::Message | Self::Batch(_) | Self::Demand | Self::Bulk(_) | Self::Urgent(_) => &[],
        }
    }

    /// Whether the copies of a step go one after the other, where each operation works on a region of its own; `None` = none does.
    #[must_use]
    pub const fn copies_one_by_one(&self) -> Option<bool> {
        match self {
            Self::Sharded(sharded) => Some(sharded.one_by_one),
            Self::Parts(parted) => Some(parted.one_by_one),
            _ => None,
        }
    }

    /// The size of the region that operation `index` of step `step` of `steps` works on, where it has one of its own.
    #[must_use]
    pub fn region(&self, steps: &[PlannedStep], step: usize, index: u32) -> Option<Bytes> {
        match self {
            Self::Sharded(sharded) => Some(sharded.bytes(steps, step, index)),
            Self::Parts(parted) => Some(parted.bytes(step, index as usize)),
            Self::Packets(packets) => Some(packets.bytes(step)),
            _ => None,
        }
    }

    /// Whether the operations of `step` are submitted one after the other. A single copy may be cut into chunks instead.
    #[must_use]
    pub fn one_by_one(&self, step: &PlannedStep) -> bool {
        self.copies_one_by_one() == Some(true) && step.operations.len() > 1 && step.only_copies()
    }

    /// Its class, which orders its jobs against others that are due at the same time.
    #[must_use]
    pub const fn class(&self) -> ServiceClass {
        match self {
            Self::Bulk(_) => ServiceClass::Bulk,
            Self::Urgent(_) => ServiceClass::Urgent,
            Self::Streams(_)
            | Self::Message
            | Self::Batch(_)
            | Self::Demand
            | Self::Sharded(_)
            | Self::Parts(_)
            | Self::Packets(_) => ServiceClass::Guaranteed,
        }
    }

    /// Whether the plan has windows for it.
    #[must_use]
    pub fn is_planned(&self) -> bool {
        self.class() == ServiceClass::Guaranteed
    }

    /// Whether its cycles begin with data that comes from outside.
    #[must_use]
    pub const fn is_fed(&self) -> bool {
        matches!(self, Self::Streams(_) | Self::Sharded(_) | Self::Parts(_) | Self::Packets(_))
    }
}

/// A message of the workload inside a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// The message, or one block of it.
    pub message: Elementary,
    /// Which of its bytes go into which cycle.
    pub member: BatchMember,
}

impl Carried {
    /// The job of the message, and bytes of its block, that `cycle` carries.
    #[must_use]
    pub fn in_cycle(&self, cycle: u64) -> Option<(u64, std::ops::Range<u64>)> {
        self.member.carried(&self.message, cycle)
    }

    /// The job of the message in whose window `cycle` begins: the only one of which it can carry anything.
    #[must_use]
    pub fn job_of(&self, cycle: u64) -> Option<u64> {
        let slots = self.member.levels.last()?.grid;
        self.message.grid().last_until(slots.slot(cycle).0)
    }

    /// Jobs of the message whose parts all go with the first `cycles` cycles.
    #[must_use]
    pub fn jobs_within(&self, cycles: u64) -> u64 {
        // The last part of a job is never empty, and jobs follow each other in the slots.
        let last = |job: u64| {
            let levels = self.member.levels.iter();
            let placed = levels.fold((self.message.window(job).0, 0), |(ready, _), level| {
                let slot = level.grid.first_from(ready).saturating_add(level.parts.saturating_sub(1));
                (level.grid.slot(slot).0, slot)
            });
            placed.1
        };
        // A job has a slot at least.
        let (mut fits, mut beyond) = (0, cycles);
        while fits < beyond {
            let middle = fits + (beyond - fits) / 2;
            if last(middle) < cycles { fits = middle + 1 } else { beyond = middle }
        }
        fits
    }
}

/// One step of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedStep {
    /// Name, for example `host -> gpu0` or `aes128-cbc`.
    pub name: String,
    /// Position in [`Plan::servers`].
    pub server: u32,
    /// Worst-case time of one job once it is alone on its server, all chunks together.
    pub cost: Nanos,
    /// Largest chunk in which a copy is submitted; zero = whole.
    pub chunk: Bytes,
    /// Worst-case time of the longest chunk that runs without preemption; the cost, when jobs run whole.
    #[serde(alias = "piece")]
    pub chunk_cost: Nanos,
    /// How long a job of a demand holds its server: the cost that the workload states, without the margin and the jitter that
    /// [`PlannedStep::cost`] adds. `None` where they are the same, and for everything that is not a demand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Nanos>,
    /// The longest time from the opening of its window to its end; `None` = not proven, or not computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<Nanos>,
    /// What is submitted: one operation, or all blocks of a batch.
    pub operations: Vec<PlannedOperation>,
    /// The batch that it moves in, with steps of other pipelines; `None` = by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchPlace>,
}

impl PlannedStep {
    /// How long a job that is only cost holds its server.
    #[must_use]
    pub fn holds(&self) -> Nanos {
        self.hold.unwrap_or(self.cost)
    }

    /// Whether it does nothing but copy.
    #[must_use]
    pub fn only_copies(&self) -> bool {
        self.operations.iter().all(|operation| matches!(operation.work, OperationWork::Copy { .. }))
    }
}

/// The place of a step among those whose jobs are submitted together: jobs on one server with the same deadline and the
/// same batch number are one job of that server (`verner-2014`, IV: synchronous messages of one period).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchPlace {
    /// Number of the batch, unique on its server.
    pub number: u32,
    /// Position in the order of submission.
    pub order: u32,
}

/// One operation on one engine, or on both engines of a peer copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedOperation {
    /// Engines it holds, of a peer copy its source's first; empty on an abstract server.
    pub engines: Vec<EngineId>,
    /// What it does.
    pub work: OperationWork,
}

/// What an operation does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OperationWork {
    /// Moves bytes.
    Copy {
        /// Name of the source.
        from: String,
        /// Name of the destination.
        to: String,
        /// The direction: what the engine must serve.
        class: EngineClass,
        route: RouteId,
        /// How the bytes are moved.
        method: Method,
        /// The most bytes a job moves.
        bytes: Bytes,
        /// Capacities crossed and the bytes of each used per byte moved, in parts per million.
        uses: Vec<(CapacityId, u32)>,
    },
    /// Runs a kernel over the block.
    Compute {
        /// Kernel name.
        kernel: String,
    },
    /// Holds the server for the step's cost.
    Hold,
}

/// Predicted and bounding completion times of a message's batch (specification of messages, 1.3 and 1.6).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedBatch {
    /// The message's name.
    pub name: String,
    /// Predicted time from submission to the last completion: `F`. Not a bound.
    pub predicted: Nanos,
    /// The time used in the test: never below what the model can produce.
    pub worst_case: Nanos,
    /// Bounds by name; the smallest applicable one is used.
    pub bounds: Vec<(String, Nanos)>,
    /// Each block: name and predicted completion.
    pub blocks: Vec<(String, Nanos)>,
    /// Intervals of constant rates.
    pub intervals: Vec<RateInterval>,
}

/// A stretch of time in which no transfer starts or ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateInterval {
    pub from: Nanos,
    pub to: Nanos,
    /// Per active block: its name, its rate, and the capacity that keeps it from being faster.
    pub rates: Vec<(String, Rate, String)>,
}

/// An answer with its model, strength and reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Yes, no, or not known.
    pub outcome: Outcome,
    /// What the answer holds for.
    pub model: String,
    /// How far it reaches.
    pub strength: Strength,
    /// Largest sum of cost / period over the servers concerned, parts per million, rounded up.
    pub utilisation_ppm: u64,
    /// The largest factor on all costs for which the answer is yes, parts per million; below one million for a no.
    pub margin_ppm: Option<u64>,
    /// For a no: the first interval in which more work is due than fits.
    pub violation: Option<Violation>,
    /// Restrictions and warnings, each a sentence.
    pub notes: Vec<String>,
}

/// Whether all deadlines hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Every deadline holds.
    Schedulable,
    /// The test could not tell within its limits.
    Undecided,
    /// Some deadline can be missed.
    NotSchedulable,
}

/// What a verdict proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strength {
    /// Yes and no are both proofs.
    Exact,
    /// Yes is a proof; no may be pessimistic.
    Sufficient,
}

/// More work due in an interval than the interval holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    pub server: String,
    /// The step that blocks: started just before the interval, it cannot be interrupted. `None` = nothing blocks.
    pub blocker: Option<String>,
    /// What is left of the blocking chunk when the interval begins.
    pub blocking: Nanos,
    /// Length of the interval, `L`; zero if utilisation alone exceeds one.
    pub interval: Nanos,
    /// Work that must be done in it, blocking included.
    pub demand: Nanos,
    /// Whose deadlines lie in it: name, jobs, time.
    pub parts: Vec<(String, u64, Nanos)>,
    /// Where utilisation alone exceeds one: whose work it is, the cause, and what would help, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub because: Vec<String>,
}

/// What the planner chose, and could have chosen otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanChoice {
    /// The windows of steps.
    Windows,
    /// The strategy: those that were tried fail whatever the windows.
    Strategy,
}

impl Plan {
    /// Which choice of the planner fails, where another one might hold: then the answer is undecided.
    #[must_use]
    pub fn choice(&self) -> Option<PlanChoice> {
        if self.verdict.outcome != Outcome::Undecided || self.verdict.violation.is_none() {
            return None;
        }
        let all_fail = self.alternatives.iter().all(|other| other.outcome == Outcome::NotSchedulable);
        Some(if all_fail && !self.alternatives.is_empty() { PlanChoice::Strategy } else { PlanChoice::Windows })
    }

    /// The core of the CPU that serves a whole pipeline, counted from 0; `None` = no core does.
    #[must_use]
    pub fn core_of(&self, pipeline: &Pipeline) -> Option<u32> {
        if matches!(pipeline.source, PipelineSource::Parts(_)) {
            return None;
        }
        let engine = pipeline.steps.first()?.operations.first()?.engines.first()?;
        self.core(engine.at())
    }

    /// The core of the CPU that engine `at` is, counted from 0.
    #[must_use]
    pub fn core(&self, at: usize) -> Option<u32> {
        let is_core = |engine: &&PlannedEngine| engine.gpu.is_none();
        is_core(&self.engines.get(at)?).then(|| self.engines[..at].iter().filter(is_core).count() as u32)
    }

    /// Cores of the CPU that serve streams.
    #[must_use]
    pub fn cores(&self) -> u32 {
        self.engines.iter().filter(|engine| engine.gpu.is_none()).count() as u32
    }
}
