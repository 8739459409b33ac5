//! The event log: every input to the dispatcher, every action it asked for, every event it told, with times.
//!
//! A log is lines of JSON: a [`LogHeader`] with the plan, one [`LogRecord`] per line, and an [`LogEnd`] with their number, so that
//! a truncated log shows. Feeding the inputs to a new dispatcher must produce the same actions and events byte for byte.

use serde::{Deserialize, Serialize};

use crate::decisions::dispatch::{DispatchAction, DispatchEvent, DispatchInput};
use crate::models::cpu;
use crate::models::transfer::Direction;
use crate::plan::Plan;
use crate::units::{Bytes, Nanos};

/// Version of the log's JSON form.
pub const SCHEMA: u32 = 1;
/// A line at the beginning of each page about a log; a folder with such a page is a result that may be replaced.
pub const PAGE_MARK: &str = "<meta name=\"generator\" content=\"Headway\">";

/// Where the figures of a run come from. Never mixed without this label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunSource {
    /// Virtual time over the interconnect model.
    Sim,
    /// Threads and real memory, throttled.
    Emu,
    /// A GPU.
    Cuda,
    /// Whatever the clients of a broker ran on; times are the broker's.
    Broker,
}

impl std::fmt::Display for RunSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Sim => "sim",
            Self::Emu => "emu",
            Self::Cuda => "cuda",
            Self::Broker => "broker",
        })
    }
}

/// First line of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogHeader {
    /// [`SCHEMA`].
    pub schema: u32,
    /// What produced the times.
    pub source: RunSource,
    /// Version of Headway.
    pub version: String,
    /// Commit it was built from, or `unknown`.
    pub commit: String,
    /// Seed of the run.
    pub seed: u64,
    /// The devices by ordinal, as their driver names them.
    pub devices: Vec<String>,
    /// The plan that was run.
    pub plan: Plan,
    /// Cycles each pipeline runs, in the plan's order.
    pub cycles: Vec<u64>,
    /// What each stream had to process, in the plan's order.
    pub streams: Vec<StreamRun>,
    /// How the threads that drove the devices were scheduled, and how late they ran; absent in simulations and in older logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<cpu::Use>,
    /// Other programs that copied over an engine of the plan while it ran, as far as they told of it. The plan counts none of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<OtherCopies>,
}

/// Copies of another program over an engine that a plan counts as its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherCopies {
    pub pid: u32,
    /// Name of the program, as the system has it.
    pub command: String,
    /// The GPU, by ordinal of the run's devices.
    pub gpu: u32,
    pub direction: Direction,
    /// When they were seen first, on the clock of the records.
    pub since: Nanos,
    /// What they moved from then on; before they were seen, at most what passes in the time between two looks (100 ms).
    pub bytes: Bytes,
}

/// How much one stream processes in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamRun {
    /// Packets; the last one may be shorter.
    pub packets: u64,
    /// All bytes together.
    pub bytes: Bytes,
}

/// One line of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRecord {
    /// When: virtual time in a simulation, the host's monotonic clock otherwise.
    pub at: Nanos,
    #[serde(flatten)]
    pub what: RecordBody,
}

/// What a line says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordBody {
    /// Was fed to the dispatcher.
    Input(DispatchInput),
    /// The dispatcher asked for it.
    Action(DispatchAction),
    /// The dispatcher told it.
    Event(DispatchEvent),
}

/// Last line of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEnd {
    /// Number of [`LogRecord`]s before it.
    pub records: u64,
    /// Why the run ended before its last cycle; `None` = it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<Incomplete>,
    /// Records that followed and were left out, as the log had reached its size.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted: u64,
}

/// An end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StreamEnd {
    /// Where its packets come from.
    Source,
    /// Where their results go.
    Sink,
}

impl std::fmt::Display for StreamEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Source => "source",
            Self::Sink => "sink",
        })
    }
}

/// Why a run ended before its last cycle. Its log is whole up to there and replays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Incomplete {
    /// Somebody asked for it.
    Interrupted,
    /// A stream with `on_miss = "stop"` missed a deadline.
    Stopped {
        stream: String,
        packet: u64,
        /// By how much.
        by: Nanos,
    },
    /// A program's callback failed.
    CallbackFailed {
        stream: String,
        packet: u64,
        /// Which of the two.
        end: StreamEnd,
        reason: String,
    },
}

impl std::fmt::Display for Incomplete {
    /// As it continues "the run was".
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Interrupted => f.write_str("interrupted"),
            Self::Stopped { stream, packet, by } => {
                write!(f, "stopped by stream `{stream}`, which missed the deadline of packet {packet} by {by}")
            }
            Self::CallbackFailed { stream, packet, end, reason } => {
                write!(f, "ended by the {end} of stream `{stream}`, which failed at packet {packet}: {reason}")
            }
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}
