//! What goes into the dispatcher and what comes out: plain data, all of it in the log.

use serde::{Deserialize, Serialize};

use crate::files::workload::Otherwise;
use crate::units::{Bytes, Nanos};

/// What happened outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DispatchInput {
    /// The run begins: pipelines count from `epoch` and run `cycles` cycles each.
    Start {
        /// Time zero of the plan.
        epoch: Nanos,
        /// Cycles per pipeline.
        cycles: Vec<u64>,
        /// Packets per stream; later ones never arrive.
        packets: Vec<u64>,
    },
    /// The block of a cycle lies in its first buffer; zero bytes = nothing arrived in this cycle.
    Data {
        pipeline: u32,
        cycle: u64,
        /// Size of the block.
        bytes: Bytes,
    },
    /// A submitted operation ended.
    Done {
        operation: u64,
        /// When its engine began with it.
        started: Nanos,
        /// When its engine was done.
        finished: Nanos,
    },
    /// A submitted operation failed; the run cannot go on.
    Failed { operation: u64 },
    /// A producer says that the blocks of a job are there. Those of a part come in the order of jobs. What is said at an
    /// instant counts for the windows that open at it if it is fed before everything else of that instant.
    Ready {
        pipeline: u32,
        /// Which of the batch's operations; 0 where the pipeline is of the message alone.
        part: u32,
        /// The job of the message.
        job: u64,
    },
    /// Somebody asks for one urgent copy. It is the next cycle of its pipeline.
    Urgent {
        /// The pipeline, which is for such requests.
        pipeline: u32,
        /// Size, at most the pipeline's reserve.
        bytes: Bytes,
        /// Relative deadline.
        deadline: Nanos,
        /// What becomes of it if it does not fit.
        otherwise: Otherwise,
    },
    /// The time at which the dispatcher wanted to be called has come.
    Timeout,
}

/// What the driver must do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DispatchAction {
    /// Submit an operation, or a chunk of one, to its engines.
    Submit {
        /// Number to be quoted by [`DispatchInput::Done`].
        operation: u64,
        pipeline: u32,
        cycle: u64,
        step: u32,
        /// Which of the step's operations.
        index: u32,
        /// First byte of the chunk.
        offset: Bytes,
        /// Size of the chunk.
        bytes: Bytes,
    },
    /// All steps of the cycle are complete: hand its block to the user.
    Deliver { pipeline: u32, cycle: u64 },
    /// The cycle is given up: its block is not needed any more and goes to nobody.
    Drop { pipeline: u32, cycle: u64 },
}

/// What happened, for the user and the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DispatchEvent {
    /// A job joined the queue of its server.
    Ready {
        pipeline: u32,
        cycle: u64,
        step: u32,
        /// When its window closes.
        deadline: Nanos,
    },
    /// A job is complete.
    Complete { pipeline: u32, cycle: u64, step: u32 },
    /// Nothing arrived in this cycle; its jobs cost nothing.
    Empty { pipeline: u32, cycle: u64 },
    /// The block of a cycle was not there when its first window opened.
    DataLate {
        pipeline: u32,
        cycle: u64,
        /// By how much.
        by: Nanos,
    },
    /// Bytes of a message were not there when the last slot of its window opened, or came too late for the slots that were
    /// left to take them: the job is given up, and its producer missed it. What moved of it stays.
    Unready {
        pipeline: u32,
        /// Which of its operations.
        part: u32,
        /// The job of the message.
        job: u64,
        /// Bytes that did not move.
        left: Bytes,
    },
    /// A window opened later than the plan's jitter allows, because the driver woke late.
    ReleaseLate {
        pipeline: u32,
        cycle: u64,
        step: u32,
        /// By how much.
        by: Nanos,
    },
    /// A job ended after its window.
    Late {
        pipeline: u32,
        cycle: u64,
        step: u32,
        /// By how much.
        by: Nanos,
    },
    /// A job took longer on its engines than the worst case the plan counts with: the model was exceeded.
    Overrun {
        pipeline: u32,
        cycle: u64,
        step: u32,
        /// What the plan counts with.
        cost: Nanos,
        took: Nanos,
    },
    /// A packet was delivered after its deadline.
    Missed {
        stream: u32,
        packet: u64,
        /// By how much.
        by: Nanos,
    },
    /// More packets of a block were delivered after their deadlines than are named, [`NAMED_MAX`](super::NAMED_MAX).
    MissedMore {
        pipeline: u32,
        cycle: u64,
        /// How many beside those that are named.
        packets: u64,
    },
    /// A packet was given up with its cycle: it was late or its pipeline is paused, and its stream skips.
    Lost { stream: u32, packet: u64 },
    /// More work than planned: this pipeline waits behind all others, or is given up if its streams skip.
    Paused { pipeline: u32 },
    /// The servers of a paused pipeline have caught up: it takes part again.
    Resumed { pipeline: u32 },
    /// What becomes of an urgent request.
    Answered {
        pipeline: u32,
        /// The cycle that the request is.
        cycle: u64,
        bytes: Bytes,
        answer: UrgentAnswer,
    },
    /// An operation failed; nothing more is submitted.
    Halted { pipeline: u32, cycle: u64, step: u32 },
}

/// What becomes of an urgent request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UrgentAnswer {
    /// It fits: it arrives by this time, and nobody misses a deadline for it.
    Guaranteed {
        /// When it is due.
        deadline: Nanos,
    },
    /// It does not fit, and goes behind everything that is guaranteed.
    BestEffort(Unfit),
    /// It does not fit, and never goes.
    Refused(Unfit),
}

/// Why an urgent request does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Unfit {
    /// Some deadline could be missed.
    #[error("within {interval}, {demand} of work could be due")]
    Overload {
        /// Length of an interval.
        interval: Nanos,
        /// What could have to be done in it.
        demand: Nanos,
    },
    /// No test could tell, or there is no time left at all.
    #[error("nothing is left over, or no test could tell")]
    Unknown,
    /// Its server counts with too many others.
    #[error("{limit} requests since the last idle instant are the limit")]
    Full { limit: usize },
}

/// Bounds of everything that could grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DispatcherLimits {
    /// Cycles of one pipeline that may be unfinished at a time. Data beyond it is refused; a message or flow opens its
    /// next window when there is room again.
    pub cycles_in_flight_max: usize,
    /// Operations submitted and not ended, over all servers.
    pub operations_max: usize,
}

impl Default for DispatcherLimits {
    fn default() -> Self {
        // A pipeline of N steps has N + 1 cycles under way; 64 leaves room for jobs that are late by many windows.
        Self { cycles_in_flight_max: 64, operations_max: 4096 }
    }
}

/// The latest time that a run may reach, epoch and jitter included, so that no sum of times overflows: 146 years.
pub const TIME_MAX: Nanos = Nanos(1 << 62);

/// An input that the dispatcher does not take. It changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DispatchRefused {
    /// The plan contradicts itself.
    #[error("the plan is not consistent: {0}")]
    Plan(String),
    /// The run has begun already, or has not begun.
    #[error("the run {0}")]
    Order(&'static str),
    /// No such pipeline, cycle or operation is expected.
    #[error("{what} {number} is not expected now")]
    Unexpected {
        /// What it claims to be.
        what: &'static str,
        number: u64,
    },
    /// Too many cycles of a pipeline are unfinished.
    #[error("pipeline `{pipeline}` already has {limit} unfinished cycles")]
    TooManyCycles {
        /// The pipeline's name.
        pipeline: String,
        limit: usize,
    },
    /// A time of the run would not fit.
    #[error("{what} would reach beyond {limit}; lower its times or its number of cycles")]
    TooLong {
        /// The pipeline or stream.
        what: String,
        /// [`TIME_MAX`].
        limit: Nanos,
    },
    /// The driver may not submit that many operations at once.
    #[error("step `{step}` submits {operations} operations together, and the limit is {limit}")]
    TooManyOperations {
        /// The step's name.
        step: String,
        operations: usize,
        limit: usize,
    },
    #[error("time went back from {from} to {to}")]
    TimeWentBack {
        /// The latest time seen.
        from: Nanos,
        /// The time given.
        to: Nanos,
    },
}
