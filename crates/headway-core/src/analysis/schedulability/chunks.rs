//! How large the chunks of an engine may be.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{LIMITS, RecurrentTask, TestOutcome, TestVerdict, UndecidedReason, chunked, largest, margin_ppm, passes};
use crate::units::{Bytes, Nanos, PPM, Rate};

/// A recurrent transfer on one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkFlow {
    /// Bytes per job.
    pub bytes: Bytes,
    /// Engine time per chunk with no byte moving.
    pub setup: Nanos,
    /// The rate it surely has.
    pub rate: Rate,
    /// Least distance between jobs.
    pub period: Nanos,
    /// Relative deadline; [`Nanos::MAX`] for a bulk flow.
    pub deadline: Nanos,
}

impl ChunkFlow {
    /// The flow as a task when it is cut into chunks of at most `chunk` bytes.
    ///
    /// Every chunk pays the setup and, but for the last, up to 1 ns since chunks end on whole nanoseconds.
    #[must_use]
    pub fn task(&self, chunk: Bytes) -> RecurrentTask {
        let count = self.bytes.0.div_ceil(chunk.0.max(1));
        let overhead = u128::from(count) * u128::from(self.setup.0) + u128::from(count.saturating_sub(1));
        let cost = Nanos(u64::try_from(overhead).unwrap_or(u64::MAX)).saturating_add(self.rate.time_for(self.bytes));
        RecurrentTask { cost, period: self.period, deadline: self.deadline, chunk: self.cost_of(chunk) }
    }

    /// The time of its longest chunk.
    fn cost_of(&self, chunk: Bytes) -> Nanos {
        if self.bytes.0 == 0 {
            return Nanos::ZERO;
        }
        self.setup.saturating_add(self.rate.time_for(self.bytes.min(chunk)))
    }
}

/// No chunk size lets all flows of an engine meet their deadlines.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ChunkRefusal {
    /// The flows ask for too much even if nothing blocked; smaller chunks only cost more.
    #[error(
        "the flows ask for more than the engine gives, whatever the chunks; lower their bytes or raise their periods"
    )]
    Overload {
        /// The test without blocking at `bytes`.
        verdict: Box<TestVerdict>,
        /// The largest chunk not yet excluded.
        bytes: Bytes,
    },
    /// The smallest chunk allowed still blocks too long.
    #[error(
        "even chunks of {bytes} block the engine for too long; raise the shortest deadline or allow smaller chunks"
    )]
    Blocking {
        /// The test with such chunks.
        verdict: Box<TestVerdict>,
        /// The smallest chunk allowed.
        bytes: Bytes,
    },
    /// The test gives no answer.
    #[error("no chunk size could be proven: {0}")]
    Undecided(UndecidedReason),
}

/// Chunks of each flow's own size with which all flows of an engine meet their deadlines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowChunkPlan {
    /// Largest chunk of each flow, in input order; at least its bytes where it runs whole.
    pub bytes: Vec<Bytes>,
    /// The flows with them.
    pub tasks: Vec<RecurrentTask>,
    /// What [`chunked`] says of them.
    pub verdict: TestVerdict,
}

/// The largest chunks, a size per flow, with which every flow of one engine passes [`chunked`] with one chunk at a time:
/// a flow's whole job, or a multiple of `granule`.
///
/// No passing choice has a larger chunk for any flow. A flow is cut only if its deadline is above another's: a chunk delays
/// those that are due before it.
///
/// Whether a size passes is not monotone: small chunks cost set-ups, large ones block. But costs are least with the largest
/// sizes not yet excluded, so that what blocks too long beside *these* costs is excluded for good. With more chunks in flight
/// there is no such largest choice, as what is ahead may be anyone's chunks.
///
/// # Errors
/// [`ChunkRefusal`] when no choice passes, or none could be proven to.
pub fn flow_chunk_sizes(flows: &[ChunkFlow], granule: Bytes) -> Result<FlowChunkPlan, ChunkRefusal> {
    let granule = granule.0.max(1);
    let size = |multiples: u64| Bytes(granule.saturating_mul(multiples));
    let mut multiples: Vec<u64> = flows.iter().map(|f| f.bytes.0.div_ceil(granule).max(1)).collect();
    for _ in 0..LIMITS.rounds_max {
        let tasks: Vec<RecurrentTask> = flows.iter().zip(&multiples).map(|(f, &m)| f.task(size(m))).collect();
        let verdict = chunked(&tasks, 1);
        if verdict.is_schedulable() {
            return Ok(FlowChunkPlan { bytes: multiples.into_iter().map(size).collect(), tasks, verdict });
        }
        let without: Vec<RecurrentTask> = tasks.iter().map(|t| RecurrentTask { chunk: Nanos::ZERO, ..*t }).collect();
        let bytes = size(multiples.iter().copied().max().unwrap_or(1));
        refuse(chunked(&without, 1), |verdict| ChunkRefusal::Overload { verdict, bytes })?;
        let before = multiples.clone();
        // Blocking is the longest chunk of those that are due later, so that each flow can be asked by itself, and flows with
        // one deadline tolerate the same.
        let mut tolerated: BTreeMap<Nanos, Nanos> = BTreeMap::new();
        for (n, flow) in flows.iter().enumerate() {
            let alone = |chunk: Nanos| {
                let blocker = RecurrentTask { cost: Nanos::ZERO, chunk, ..without[n] };
                without.iter().copied().chain([blocker]).collect::<Vec<RecurrentTask>>()
            };
            let longest = match tolerated.get(&flow.deadline) {
                Some(&known) => known,
                None => {
                    let same = flows.iter().zip(&tasks).filter(|(of, _)| of.deadline == flow.deadline);
                    let most = same.map(|(_, task)| task.chunk).max().unwrap_or_default();
                    let longest = Nanos(largest(0, most.0, |chunk| passes(&alone(Nanos(chunk)))));
                    tolerated.insert(flow.deadline, longest);
                    longest
                }
            };
            let least = flow.cost_of(size(1));
            if least > longest {
                refuse(chunked(&alone(least), 1), |verdict| ChunkRefusal::Blocking { verdict, bytes: Bytes(granule) })?;
            }
            multiples[n] = largest(1, multiples[n], |multiples| flow.cost_of(size(multiples)) <= longest);
        }
        if multiples == before {
            break;
        }
    }
    Err(ChunkRefusal::Undecided(UndecidedReason::Steps { max: u64::from(LIMITS.rounds_max) }))
}

/// Chunks of each flow's own size with which all flows of an engine keep the largest margin: of all choices of
/// [`flow_chunk_sizes`] with slower engines, the one with the slowest.
///
/// # Errors
/// Those of [`flow_chunk_sizes`].
pub fn flow_chunk_sizes_with_margin(flows: &[ChunkFlow], granule: Bytes) -> Result<FlowChunkPlan, ChunkRefusal> {
    /// Engines slower by less than this, parts per million, are alike.
    const STEP: u64 = PPM / 1_000;
    let slower = |factor: u64| -> Vec<ChunkFlow> {
        let of = |flow: &ChunkFlow| {
            let setup = (u128::from(flow.setup.0) * u128::from(factor)).div_ceil(u128::from(PPM));
            let rate = u128::from(flow.rate.0) * u128::from(PPM) / u128::from(factor);
            let setup = Nanos(u64::try_from(setup).unwrap_or(u64::MAX));
            ChunkFlow { setup, rate: Rate(rate.max(1) as u64), ..*flow }
        };
        flows.iter().map(of).collect()
    };
    let mut best = flow_chunk_sizes(flows, granule)?;
    let mut margin = margin_ppm(&best.tasks);
    // Costs are never below those of whole jobs.
    let whole: Vec<RecurrentTask> =
        flows.iter().map(|flow| RecurrentTask { chunk: Nanos::ZERO, ..flow.task(flow.bytes) }).collect();
    let (mut low, mut high) = (margin / STEP, margin_ppm(&whole) / STEP + 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        let found = flow_chunk_sizes(&slower(middle * STEP), granule);
        let Ok(found) = found else {
            high = middle;
            continue;
        };
        low = middle;
        let tasks: Vec<RecurrentTask> = flows.iter().zip(&found.bytes).map(|(flow, &bytes)| flow.task(bytes)).collect();
        let kept = margin_ppm(&tasks);
        if kept > margin {
            let verdict = chunked(&tasks, 1);
            (margin, best) = (kept, FlowChunkPlan { bytes: found.bytes, tasks, verdict });
        }
    }
    Ok(best)
}

/// Nothing for a "yes", `refusal` for a "no".
fn refuse(verdict: TestVerdict, refusal: impl FnOnce(Box<TestVerdict>) -> ChunkRefusal) -> Result<(), ChunkRefusal> {
    match verdict.outcome {
        TestOutcome::Schedulable => Ok(()),
        TestOutcome::Undecided(reason) => Err(ChunkRefusal::Undecided(reason)),
        TestOutcome::NotSchedulable(_) => Err(refusal(Box::new(verdict))),
    }
}
