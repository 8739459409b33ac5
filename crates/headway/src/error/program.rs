//! Why a program cannot bind a stream or ask for a copy.

use std::time::Duration;

use headway_core::decisions::dispatch::Unfit;
use headway_core::log::StreamEnd;
use headway_core::units::{Bytes, Nanos};

/// Why a program cannot bind an end of a stream, or gets no urgent copy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// No stream has that name.
    #[error("workload `{workload}` has no stream `{name}`; {suggestion}")]
    NoStream {
        workload: String,
        name: String,
        /// The name that is nearly the same, or all names.
        suggestion: String,
    },
    /// Something else has that name.
    #[error("`{name}` is a {kind}; only streams have a {end} that a program can be")]
    NotAStream { name: String, kind: &'static str, end: StreamEnd },
    /// That end is bound already.
    #[error("stream `{name}` has a {end} already; bind each end once")]
    Twice { name: String, end: StreamEnd },
    /// No program can give these packets.
    #[error("the packets of stream `{name}` {reason}, so that no program can give them; bind its sink alone")]
    NoSource { name: String, reason: &'static str },
    /// Nothing is moved in such a run.
    #[error("a run of times alone moves no bytes: bind nothing, or leave `time_only` out")]
    TimeOnly,
    /// No urgent copies have that name.
    #[error("workload `{workload}` has no `[[urgent]]` of the name `{name}`; {suggestion}")]
    NoUrgent {
        workload: String,
        name: String,
        /// The name that is nearly the same, or all names.
        suggestion: String,
    },
    /// A simulation has no buffers.
    #[error(
        "a simulation has no memory of GPUs for urgent copies `{name}`; run with the backend `emu` or `cuda`, or write `every` in the workload"
    )]
    Simulated { name: String },
    /// The ends of a copy are not where its path leads.
    #[error(
        "an urgent copy `{name}` moves bytes from {path}, and one of its ends lies elsewhere; take both from `from_place` and `to_place`"
    )]
    Ends { name: String, path: String },
    /// The copy is larger than those of the workload, or than its ends.
    #[error(
        "an urgent copy `{name}` of {asked} does not fit; its ends have room for {room}, and the workload allows {max}"
    )]
    TooLarge { name: String, asked: Bytes, room: Bytes, max: Bytes },
    /// No run is under way.
    #[error("no run takes urgent copies `{name}` now; ask between its start and its end")]
    NoRun { name: String },
    /// The run did not take it.
    #[error("the run did not take an urgent copy `{name}`: too many are under way, or its last window is over")]
    NotTaken { name: String },
    /// It never goes, since somebody could miss a deadline for it, or it would miss its own.
    #[error("an urgent copy `{name}` is refused: {why}")]
    Refused { name: String, why: Unfit },
    /// The run ended before it was there.
    #[error("the run ended before the urgent copy `{name}` was there")]
    Ended { name: String },
    /// Time is up, and the copy goes on.
    #[error("the urgent copy `{name}` has not ended after {}; it goes on", Nanos(after.as_nanos() as u64))]
    Late { name: String, after: Duration },
}

impl ProgramError {
    /// Whether this is a negative answer, rather than a failure to find one.
    pub(crate) fn is_answer(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }
}
