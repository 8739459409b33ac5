//! What a flow asks for, what it is promised, and how it is refused.

use serde::{Deserialize, Serialize};

use crate::files::workload::OnMiss;
use crate::models::transfer::Direction;
use crate::units::{Bytes, Nanos, PPM};

/// A flow or an urgent copy; numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FlowId(pub u64);

/// Copies that come again and again, each with a deadline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowContract {
    pub name: String,
    pub gpu: u32,
    /// In or out: copies between GPUs have no promise.
    pub direction: Direction,
    /// The most that one job moves.
    pub bytes: Bytes,
    /// The least distance between the releases of two jobs.
    pub period: Nanos,
    /// From a job's release until all its bytes must be there. It may be longer than the period.
    pub deadline: Nanos,
    pub on_miss: OnMiss,
}

/// A flow that was admitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowAdmitted {
    pub flow: FlowId,
    /// No job takes longer from its release to its end, as long as the assumptions hold and no other flow joins. At most the deadline.
    pub bound: Nanos,
    /// The largest chunk, once the flow is settled.
    pub chunk: Bytes,
    /// The promise holds from now on. Else chunks become smaller for it: the driver waits until all chunks without a promise that are larger
    /// than `chunk` have left the engine, says [`drained`](super::FlowBook::drained), and waits until the flow
    /// [is settled](super::FlowBook::is_settled). No job is accepted before.
    pub is_settled: bool,
    pub assumptions: Vec<FlowAssumption>,
}

/// What a promise rests on, beside the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FlowAssumption {
    /// Nothing but this program's copies through Headway uses the engine.
    OnlyHeadway {
        /// How long a small copy of another process waited beside bulk copies: about what one turn of another process adds. `None` = not
        /// measured.
        turn: Option<Nanos>,
    },
    /// Nothing but so many other processes that have flows under the same broker, and this program's copies through Headway, uses the engine.
    Turns {
        others: u32,
        /// The longest for which each keeps the engine before it changes hands.
        turn: Option<Nanos>,
    },
    /// The threads that drive copies ask for a chunk, and notice its end, within `jitter`.
    Threads {
        jitter: Nanos,
        /// They do so within this time, but for what adds up to `jitter` while the engine is busy; `None` = not measured, each chunk may
        /// be late by `jitter`.
        #[serde(default)]
        each: Option<Nanos>,
    },
    /// Set-up and rate of the engine are not measured on this node.
    NotMeasured,
}

impl std::fmt::Display for FlowAssumption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::OnlyHeadway { turn: None } => {
                f.write_str("only copies of this program through Headway use the engine")
            }
            Self::OnlyHeadway { turn: Some(turn) } => write!(
                f,
                "only copies of this program through Headway use the engine: a turn of another process would add up to {turn}"
            ),
            Self::Turns { others: 0, .. } => f.write_str(
                "only programs that have flows under the same broker use the engine; there is no other one now",
            ),
            Self::Turns { others, turn } => {
                let turn = turn.unwrap_or(Nanos::ZERO);
                write!(
                    f,
                    "only programs that have flows under the same broker use the engine: beside this one {others}, each for at most {turn} \
                     before it changes hands"
                )
            }
            Self::Threads { jitter, each: None } => {
                write!(f, "the threads that drive copies ask and notice within {jitter}")
            }
            Self::Threads { jitter, each: Some(each) } => write!(
                f,
                "the threads that drive copies ask and notice within {each}, but for delays that make {jitter} together while the engine is busy"
            ),
            Self::NotMeasured => f.write_str(
                "the engine's set-up time and rate are not measured here but assumed; `headway measure` measures them",
            ),
        }
    }
}

/// A contract that cannot be tested. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum InvalidContract {
    #[error("a flow has no name; give it one of 1 to {most} bytes without control characters")]
    Name { most: usize },
    #[error("flow `{name}` is open already; close it first, or choose another name")]
    NameTaken { name: String },
    #[error("`{name}` moves no bytes; say how many a job moves at most")]
    NoBytes { name: String },
    #[error("`{name}` moves {bytes} at once, but at most {most} are possible; divide it")]
    TooManyBytes { name: String, bytes: Bytes, most: Bytes },
    #[error("flow `{name}` has a period of {period}; it must be above zero and at most {most}")]
    Period { name: String, period: Nanos, most: Nanos },
    #[error("`{name}` has a deadline of {deadline}; it must be above zero and at most {most}")]
    Deadline { name: String, deadline: Nanos, most: Nanos },
    #[error("there is no engine for copies {} GPU {gpu}, which `{name}` asks for; choose another GPU or direction", direction.preposition())]
    NoEngine { name: String, gpu: u32, direction: Direction },
    #[error(
        "`{name}` would share an engine with another program, and how long that keeps it in turn is not known to the program of \
         `{asks}`; measure it there with `headway measure`"
    )]
    TurnUnknown { name: String, asks: String },
    #[error("the engine has {limit} flows and urgent copies already; close a flow before `{name}` is opened")]
    Full { name: String, limit: usize },
}

/// Why a flow is not admitted. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlowRefused {
    #[error(transparent)]
    Invalid(#[from] InvalidContract),
    #[error(transparent)]
    Unfit(Box<FlowUnfit>),
}

impl FlowRefused {
    /// Whose deadline could be missed; `None` = the contract is not valid.
    #[must_use]
    pub fn suffers(&self) -> Option<&str> {
        match self {
            Self::Invalid(_) => None,
            Self::Unfit(unfit) => Some(&unfit.suffers),
        }
    }

    /// What would be admitted instead.
    #[must_use]
    pub fn proposals(&self) -> &[FlowProposal] {
        match self {
            Self::Invalid(_) => &[],
            Self::Unfit(unfit) => &unfit.proposals,
        }
    }
}

/// A flow that would let a deadline be missed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("`{name}` is refused: {why}{}", proposed(proposals, *turn))]
pub struct FlowUnfit {
    pub name: String,
    /// The flow whose deadline could be missed: another one's name, or the same.
    pub suffers: String,
    /// How late at most, as far as the test tells; zero = it does not.
    pub by: Nanos,
    pub why: UnfitReason,
    /// Each of them was tested: it would be admitted now. Empty = nothing that was tried would.
    pub proposals: Vec<FlowProposal>,
    /// The turn of the program that asks, if the flow is refused because of it: each chunk of another program could wait that long.
    #[serde(default)]
    pub turn: Option<Nanos>,
}

/// A flow that is open and would miss deadlines if the engine cost more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowSuffers {
    pub suffers: String,
    /// How late at most, as far as the test tells; zero = it does not.
    pub by: Nanos,
    pub why: UnfitReason,
}

/// What stands against a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum UnfitReason {
    /// All flows together ask for more than the engine gives, however long one waits.
    Overload {
        /// Of all time of the engine.
        asked_ppm: u64,
    },
    /// The deadline can have passed when a thread of this node asks for the engine.
    AsksLate { suffers: String, jitter: Nanos },
    /// A job could end too late.
    Late {
        suffers: String,
        by: Nanos,
        /// Length of the time in which too much must be done.
        interval: Nanos,
        /// What must be done in it.
        demand: Nanos,
        /// The part of it that had begun before, with the smallest chunks.
        blocking: Nanos,
    },
    /// The test gives no answer within its limits.
    Unknown,
}

impl std::fmt::Display for UnfitReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Overload { asked_ppm } => {
                let percent = asked_ppm * 100 / PPM;
                write!(f, "with it the engine would be asked for {percent} % of its time, 99 % can be promised")
            }
            Self::Late { suffers, by, interval, demand, blocking } => {
                write!(f, "with it `{suffers}` could end {by} too late ({demand} of work within {interval}")?;
                if *blocking > Nanos::ZERO {
                    write!(f, ", {blocking} of it for chunks that had begun before")?;
                }
                f.write_str(")")
            }
            Self::AsksLate { suffers, jitter } => {
                write!(
                    f,
                    "a thread of this node can ask for the engine as late as {jitter} after a release, when `{suffers}` is due already"
                )
            }
            Self::Unknown => f.write_str("the test gives no answer within its limits"),
        }
    }
}

/// A change of the contract with which the flow would be admitted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FlowProposal {
    FewerBytes(Bytes),
    LongerDeadline(Nanos),
    LongerPeriod(Nanos),
    OtherGpu(u32),
}

impl std::fmt::Display for FlowProposal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // What is proposed was tested as it stands here.
            Self::FewerBytes(bytes) => write!(f, "at most {} a copy", bytes.exact()),
            Self::LongerDeadline(deadline) => write!(f, "a deadline of {}", deadline.exact()),
            Self::LongerPeriod(period) => write!(f, "a period of {}", period.exact()),
            Self::OtherGpu(gpu) => write!(f, "GPU {gpu}"),
        }
    }
}

fn proposed(proposals: &[FlowProposal], turn: Option<Nanos>) -> String {
    let texts: Vec<String> = proposals.iter().map(ToString::to_string).collect();
    match (texts.split_last(), turn) {
        (None, None) => "; nothing that was tried fits: ask for less, or close other flows of the engine".to_owned(),
        (None, Some(turn)) => format!(
            ": however little this program copies, each chunk of that flow could wait {turn} for it; open that flow with a longer deadline, or \
             start the broker with `--flow-programs` for as many programs as there are to be"
        ),
        (Some((one, [])), _) => format!("; it would fit with {one}"),
        (Some((last, others)), _) => format!("; it would fit with {}, or with {last}", others.join(", with ")),
    }
}
