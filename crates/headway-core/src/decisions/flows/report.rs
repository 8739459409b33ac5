//! What became of a job, and what its time went to.

use serde::{Deserialize, Serialize};

use crate::units::{Bytes, Nanos};

/// Whose chunk it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChunkOwner {
    /// A flow, by its name.
    Flow(String),
    /// A copy that was admitted when it was asked for.
    Urgent,
    /// Some promised copy of this program.
    Promised,
    /// Any copy without a promise.
    Unpromised,
}

impl std::fmt::Display for ChunkOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Flow(name) => write!(f, "flow `{name}`"),
            Self::Urgent => f.write_str("an urgent copy"),
            Self::Promised => f.write_str("another promised copy"),
            Self::Unpromised => f.write_str("copies without a promise"),
        }
    }
}

/// What a driver knows of a job that has ended. The *service time* of a chunk begins when the line lets it start, or when the chunk before it on
/// the engine ends, if that is later. It ends when the driver reports the chunk's end to the line. The end of an unpromised chunk may be reported only
/// after the job's chunk behind it has ended. Then the time of both counts as the unpromised chunk's, and for the job as waiting.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobFacts {
    /// When its first chunk asked the line.
    pub asked: Nanos,
    /// From then on, all time in the line and behind chunks of others on the engine.
    pub waited: Nanos,
    /// The service times of its chunks.
    pub engine: Nanos,
    pub chunks: u32,
    /// The longest service time.
    pub longest_chunk: Nanos,
    /// Chunks of others that were on the engine when a chunk of the job asked, or started while one waited; as far as known.
    pub ahead: Vec<ChunksAhead>,
}

/// Chunks of one owner that went before a job's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunksAhead {
    pub owner: ChunkOwner,
    pub chunks: u32,
    /// Their service times; zero = not known.
    pub time: Nanos,
    /// The longest of them; zero = not known.
    pub longest: Nanos,
}

/// An assumption that did not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FlowFault {
    #[error("the thread of {owner} asked {late} after the release, {by} later than assumed", by = late.saturating_sub(*jitter))]
    AskedLate { owner: ChunkOwner, late: Nanos, jitter: Nanos },
    /// One chunk, or all of a job together.
    #[error("{owner} took {took} on the engine where {most} was assumed: others use it, or it is slower than measured")]
    LongChunk { owner: ChunkOwner, took: Nanos, most: Nanos },
    #[error("a chunk of {owner} had {bytes}, {most} are allowed")]
    LargeChunk { owner: ChunkOwner, bytes: Bytes, most: Bytes },
    #[error("{chunks} chunks of {owner} went before it, {most} are allowed")]
    ManyChunks { owner: ChunkOwner, chunks: u32, most: u32 },
    /// No chunk alone took too long, but all together did: threads of several jobs were late.
    #[error(
        "promised copies took {late} longer than their chunks should, in all since the engine last had none; {most} was assumed"
    )]
    LateTogether { late: Nanos, most: Nanos },
    /// Neither in the line nor on the engine: the next chunk was not asked for before the one before had ended.
    #[error("the thread of {owner} let {time} pass between its chunks")]
    Gaps { owner: ChunkOwner, time: Nanos },
}

impl FlowFault {
    fn owner(&self) -> Option<&ChunkOwner> {
        match self {
            Self::AskedLate { owner, .. }
            | Self::LongChunk { owner, .. }
            | Self::LargeChunk { owner, .. }
            | Self::ManyChunks { owner, .. }
            | Self::Gaps { owner, .. } => Some(owner),
            Self::LateTogether { .. } => None,
        }
    }

    /// By how much the assumption was exceeded, in a unit of its own.
    fn excess(&self) -> u64 {
        match self {
            Self::AskedLate { late, jitter, .. } => late.0.saturating_sub(jitter.0),
            Self::LongChunk { took, most, .. } => took.0.saturating_sub(most.0),
            Self::LargeChunk { bytes, most, .. } => bytes.0.saturating_sub(most.0),
            Self::ManyChunks { chunks, most, .. } => u64::from(chunks.saturating_sub(*most)),
            Self::LateTogether { late, most } => late.0.saturating_sub(most.0),
            Self::Gaps { time, .. } => time.0,
        }
    }

    fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other) && self.owner() == other.owner()
    }
}

/// Adds a broken assumption to others: of each kind and owner the worst is kept, and at most `most` in all.
pub(super) fn add_fault(faults: &mut Vec<FlowFault>, fault: FlowFault, most: usize) {
    let known = faults.iter().position(|known| known.is_like(&fault));
    match known {
        Some(at) if faults[at].excess() < fault.excess() => faults[at] = fault,
        None if faults.len() < most => faults.push(fault),
        _ => {}
    }
}

/// What a job's time went to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FlowBlame {
    /// An assumption broke, for this job or since the engine last had nothing promised to do.
    Fault(FlowFault),
    /// Others were before it, as the bound allows.
    Ahead(ChunksAhead),
    /// All waiting.
    Waited(Nanos),
    /// Its own chunks.
    Engine { took: Nanos, worst: Nanos },
    /// The bound was exceeded, and nothing that the driver told explains it.
    Unexplained { by: Nanos },
}

impl std::fmt::Display for FlowBlame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Fault(fault) => fault.fmt(f),
            Self::Ahead(ChunksAhead { owner, chunks, time, .. }) => {
                let chunks = if *chunks == 1 { "1 chunk".to_owned() } else { format!("{chunks} chunks") };
                write!(f, "{chunks} of {owner} went before it")?;
                if *time > Nanos::ZERO { write!(f, " and took {time}") } else { Ok(()) }
            }
            Self::Waited(time) => write!(f, "it waited {time} for the engine"),
            Self::Engine { took, worst } => write!(f, "its own chunks took {took} on the engine, at most {worst}"),
            Self::Unexplained { by } => {
                write!(
                    f,
                    "it took {by} longer than promised, and no assumption is known to be broken: please report it"
                )
            }
        }
    }
}

/// A job that has ended, was given up or failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowJobReport {
    /// From its release to now.
    pub response: Nanos,
    /// What was promised.
    pub bound: Nanos,
    pub end: JobEnd,
    /// It ended after its deadline, or not at all.
    pub missed: bool,
    /// How long it had to wait for its release, since it came earlier than the contract allows. Not part of the response.
    pub held: Nanos,
    /// Faults first, of each kind and owner the worst. Never empty where the response is longer than the bound.
    pub blame: Vec<FlowBlame>,
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobEnd {
    /// All bytes are there.
    Done,
    /// It had not started by its deadline and was given up, as `on_miss = "skip"` asks.
    GivenUp,
    /// The copy failed.
    Failed,
}

/// What is known of a job when it ends, beside the driver's facts.
pub(super) struct EndedJob<'a> {
    pub(super) owner: ChunkOwner,
    pub(super) release: Nanos,
    pub(super) response: Nanos,
    pub(super) bound: Nanos,
    pub(super) jitter: Nanos,
    /// The longest a chunk may take.
    pub(super) chunk_cost: Nanos,
    /// The longest its own chunks may take together.
    pub(super) worst: Nanos,
    /// By how much all promised chunks since the engine last had none were later than each may be, and by how much they may.
    pub(super) late: Nanos,
    pub(super) late_once: Nanos,
    pub(super) unpromised_in_flight: u32,
    /// Faults since the engine last had nothing promised to do.
    pub(super) known: &'a [FlowFault],
}

impl EndedJob<'_> {
    /// The assumptions that `facts` show to be broken.
    pub(super) fn faults(&self, facts: &JobFacts) -> Vec<FlowFault> {
        let mut faults = Vec::new();
        let late = facts.asked.saturating_sub(self.release);
        if late > self.jitter {
            faults.push(FlowFault::AskedLate { owner: self.owner.clone(), late, jitter: self.jitter });
        }
        let most = self.chunk_cost;
        for (took, most) in [(facts.longest_chunk, most), (facts.engine, self.worst)] {
            if took > most {
                add_fault(&mut faults, FlowFault::LongChunk { owner: self.owner.clone(), took, most }, usize::MAX);
            }
        }
        if faults.is_empty() && self.late > self.late_once {
            faults.push(FlowFault::LateTogether { late: self.late, most: self.late_once });
        }
        for ChunksAhead { owner, chunks, longest, .. } in &facts.ahead {
            if *longest > most {
                faults.push(FlowFault::LongChunk { owner: owner.clone(), took: *longest, most });
            }
            let most = self.unpromised_in_flight;
            if *owner == ChunkOwner::Unpromised && *chunks > most {
                faults.push(FlowFault::ManyChunks { owner: owner.clone(), chunks: *chunks, most });
            }
        }
        faults
    }

    /// What its time went to, and what broke where it took longer than promised.
    pub(super) fn blame(&self, facts: &JobFacts, own: &[FlowFault]) -> Vec<FlowBlame> {
        let mut blame = Vec::new();
        if self.response > self.bound {
            let mut faults = own.to_vec();
            self.known.iter().for_each(|fault| add_fault(&mut faults, fault.clone(), usize::MAX));
            blame.extend(faults.into_iter().map(FlowBlame::Fault));
            let late = facts.asked.saturating_sub(self.release);
            let accounted = late.saturating_add(facts.waited).saturating_add(facts.engine);
            let time = self.response.saturating_sub(accounted);
            if time > Nanos::ZERO {
                blame.push(FlowBlame::Fault(FlowFault::Gaps { owner: self.owner.clone(), time }));
            }
            if blame.is_empty() {
                blame.push(FlowBlame::Unexplained { by: self.response.saturating_sub(self.bound) });
            }
        }
        blame.extend(facts.ahead.iter().cloned().map(FlowBlame::Ahead));
        if facts.waited > Nanos::ZERO {
            blame.push(FlowBlame::Waited(facts.waited));
        }
        // Nothing of it was on the engine, or it is not known how long.
        if facts.engine > Nanos::ZERO {
            blame.push(FlowBlame::Engine { took: facts.engine, worst: self.worst });
        }
        blame
    }
}
