//! Whether every deadline of a set of tasks on one engine holds under non-preemptive earliest deadline first.
//!
//! The tests are exact or sufficient for *sporadic* tasks: any offsets, any distance between releases at or above the
//! period, any costs from zero to the worst case. Jeffay, Stanat, Martel, "On Non-Preemptive Scheduling of Periodic and
//! Sporadic Tasks" (RTSS 1991) is the one that `verner-2014`, IV builds on; the form with chunks adds constrained and
//! arbitrary deadlines, limited preemption, and several operations in flight.
//!
//! [`concrete`] asks the same of periodic tasks whose offsets are known.
//!
//! Every verdict carries its model, its strength and, for a "no", the first interval that asks for too much.

mod chunks;
mod concrete;
#[cfg(test)]
mod concrete_tests;
mod exact;
mod response;
#[cfg(test)]
mod response_tests;
#[cfg(test)]
mod tests;
mod walk;

use std::cmp::Reverse;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::units::{Nanos, PPM};

pub use chunks::{ChunkFlow, ChunkRefusal, FlowChunkPlan, flow_chunk_sizes, flow_chunk_sizes_with_margin};
pub use concrete::{
    ConcreteTask, Exploration, ExploredWindow, JitterCosts, JobCosts, Ties, concrete, concrete_within, sporadic,
};
use exact::Utilisation;
pub use response::{response_with_jitter, responses};
use walk::{Demand, Segment};

/// Bounds on the work of one test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TestLimits {
    /// Tasks looked at, counted once per point in time that is examined.
    pub steps_max: u64,
    /// Largest hyperperiod examined at utilisation 1.
    pub hyperperiod_max: Nanos,
    /// Rounds of [`flow_chunk_sizes`].
    pub rounds_max: u32,
}

/// The limits that every test here uses.
pub const LIMITS: TestLimits = TestLimits { steps_max: 20_000_000, hyperperiod_max: Nanos(1 << 62), rounds_max: 1_000 };

/// A recurrent demand on one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecurrentTask {
    /// Worst-case time on the engine per job.
    pub cost: Nanos,
    /// Least distance between releases.
    pub period: Nanos,
    /// Relative deadline; [`Nanos::MAX`] for a bulk flow, which asks for nothing and only blocks: its `cost` and `period`
    /// do not count.
    pub deadline: Nanos,
    /// Longest piece that runs without preemption; equal to `cost` when jobs run whole.
    pub chunk: Nanos,
}

impl RecurrentTask {
    /// A task whose jobs run whole.
    #[must_use]
    pub const fn whole(cost: Nanos, period: Nanos, deadline: Nanos) -> Self {
        Self { cost, period, deadline, chunk: cost }
    }

    /// An endless flow without deadline, in chunks of at most `chunk`.
    #[must_use]
    pub const fn bulk(chunk: Nanos) -> Self {
        Self { cost: chunk, period: Nanos::MAX, deadline: Nanos::MAX, chunk }
    }

    /// Whether it has no deadline.
    #[must_use]
    pub const fn is_bulk(&self) -> bool {
        self.deadline.0 == Nanos::MAX.0
    }
}

/// A stream of which several steps use one engine: their releases are fixed times apart, but the stream may start at any time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhasedStream {
    pub steps: Vec<PhasedStep>,
}

/// One task of a stream; all of them have the same period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhasedStep {
    /// Position in the input.
    pub task: usize,
    /// One of its releases, if the stream starts at 0.
    pub release: Nanos,
}

/// The answer of a test, with what it rests on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestVerdict {
    /// Yes, no, or not known.
    pub outcome: TestOutcome,
    /// Sum of cost / period, rounded up; bulk flows do not count.
    pub utilisation_ppm: u64,
    /// What a "yes" and a "no" prove in this model.
    pub strength: TestStrength,
    /// What the answer holds for.
    pub model: Model,
}

impl TestVerdict {
    /// Whether every deadline holds.
    #[must_use]
    pub const fn is_schedulable(&self) -> bool {
        matches!(self.outcome, TestOutcome::Schedulable)
    }
}

/// Yes, no, or not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TestOutcome {
    /// No deadline can be missed.
    Schedulable,
    /// The test fails; for an exact test some releases miss a deadline.
    NotSchedulable(TestViolation),
    /// The test does not apply, or its bounds were reached.
    Undecided(UndecidedReason),
}

/// What a test proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TestStrength {
    /// Both answers.
    Exact,
    /// A "yes"; a "no" may be pessimistic.
    Sufficient,
    /// A "no"; a "yes" may be optimistic.
    Necessary,
}

/// What a verdict holds for, on one engine. Unless it says otherwise: sporadic tasks with any offsets, costs from zero to
/// the worst case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Model {
    /// Whole jobs, deadline = period (Jeffay, Stanat, Martel 1991).
    NonPreemptive,
    /// Jobs in chunks, any deadlines, `in_flight` chunks handed to the engine at a time.
    Chunks {
        /// Operations queued on the engine at most.
        in_flight: u32,
    },
    /// As [`Model::Chunks`] with one operation queued, but steps of one stream keep their distances.
    Streams,
    /// Periodic tasks with exactly these offsets and jitters; none may join.
    Concrete {
        /// The costs that jobs may have.
        costs: JobCosts,
    },
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NonPreemptive => f.write_str("sporadic tasks, non-preemptive EDF, deadline = period"),
            Self::Chunks { in_flight: 1 } => f.write_str("sporadic tasks in chunks, EDF, one chunk in flight"),
            Self::Chunks { in_flight } => write!(f, "sporadic tasks in chunks, EDF, {in_flight} chunks in flight"),
            Self::Streams => f.write_str("steps of streams in chunks, EDF, one chunk in flight"),
            Self::Concrete { costs } => {
                let costs = if *costs == JobCosts::Exact {
                    "exactly the worst-case costs"
                } else {
                    "costs up to the worst case"
                };
                write!(f, "periodic tasks with these offsets, non-preemptive EDF, {costs}, no joins")
            }
        }
    }
}

/// Why a test gives no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum UndecidedReason {
    /// A task without period.
    #[error("task {task} has a period of zero; give it at least 1 ns")]
    PeriodZero {
        /// Position in the input.
        task: usize,
    },
    /// The test is for deadline = period.
    #[error("task {task} has a deadline other than its period; use the test for chunks")]
    DeadlineNotPeriod {
        /// Position in the input.
        task: usize,
    },
    /// Utilisation is exactly 1 and the schedule takes too long to repeat.
    #[error("utilisation is exactly 1 and the periods have no common multiple up to {max}; use harmonic periods")]
    Hyperperiod {
        /// Largest one examined.
        max: Nanos,
    },
    /// The periods repeat together too late to be followed.
    #[error("the periods have no common multiple up to {max}; use harmonic periods, or the test for any offsets")]
    HyperperiodBound {
        /// Largest one followed.
        max: Nanos,
    },
    /// A flow without deadline has no releases to follow.
    #[error("task {task} is a bulk flow; only the test for any offsets counts those")]
    Bulk {
        /// Position in the input.
        task: usize,
    },
    /// Releases of one task could change their order.
    #[error("the jitter of task {task} is not below its period; use the test for any offsets")]
    Jitter {
        /// Position in the input.
        task: usize,
    },
    /// Too many points in time would have to be examined.
    #[error("more than {max} steps are needed; lower the utilisation or use fewer distinct periods")]
    Steps { max: u64 },
}

/// Why a set is not schedulable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TestViolation {
    /// The sum of cost / period is above 1.
    Utilisation,
    /// Some interval asks for more than its length.
    Demand {
        /// The task that blocks: the one with the longest piece among those with later deadlines. `None` when nothing
        /// blocks and the tasks themselves ask too much.
        task: Option<usize>,
        /// Length of the interval: the paper's `L`, or `t`. The least one that fails, as far as [`LIMITS`] allow.
        interval: Nanos,
        /// What must be done in it, blocking included.
        demand: Nanos,
        /// The part of it that is blocking.
        blocking: Nanos,
        /// What each task with deadlines in the interval asks for.
        contributions: Vec<Contribution>,
    },
    /// With known offsets, some costs make this job miss its deadline. All times count from the start.
    Late {
        task: usize,
        /// Its number, from 0.
        job: u64,
        /// Its nominal release.
        release: Nanos,
        /// Its absolute deadline.
        deadline: Nanos,
        /// The latest time at which it, or a chunk of it, may end.
        finish: Nanos,
    },
}

/// What one task asks for in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contribution {
    /// Position in the input.
    pub task: usize,
    /// Jobs with release and deadline inside.
    pub jobs: u64,
    /// Their cost.
    pub demand: Nanos,
}

/// Whether non-preemptive EDF meets every deadline of sporadic or periodic tasks with deadline = period and any offsets.
///
/// Exact. Jeffay's conditions for all tasks at once: between neighbouring distinct periods the blocking term
/// is constant and the demand does not fall, so each stretch is walked downwards as in Zhang and Burns' QPA. `chunk` is
/// not looked at: jobs run whole.
///
/// Jeffay, Stanat, Martel (RTSS 1991), theorem 4.1; Zhang, Burns, "Schedulability Analysis for Real-Time Systems with EDF
/// Scheduling" (IEEE TC 2009).
#[must_use]
pub fn jeffay(tasks: &[RecurrentTask]) -> TestVerdict {
    let (strength, model) = (TestStrength::Exact, Model::NonPreemptive);
    if let Some(reason) = not_implicit(tasks) {
        return TestVerdict { outcome: TestOutcome::Undecided(reason), utilisation_ppm: 0, strength, model };
    }
    let whole: Vec<RecurrentTask> = tasks.iter().map(|t| RecurrentTask::whole(t.cost, t.period, t.period)).collect();
    let mut verdict = TestVerdict { strength, model, ..chunked(&whole, 1) };
    if let TestOutcome::NotSchedulable(TestViolation::Demand { interval, demand, blocking, .. }) = &mut verdict.outcome
    {
        // The paper counts the instant before the releases: L = t + 1, and the whole cost of the blocking job.
        for time in [interval, demand, blocking] {
            *time = time.saturating_add(Nanos(1));
        }
    }
    verdict
}

fn not_implicit(tasks: &[RecurrentTask]) -> Option<UndecidedReason> {
    let task = tasks.iter().position(|t| t.deadline != t.period);
    task.map(|task| UndecidedReason::DeadlineNotPeriod { task }).or_else(|| period_zero(tasks))
}

fn period_zero(tasks: &[RecurrentTask]) -> Option<UndecidedReason> {
    let task = tasks.iter().position(|t| t.period.0 == 0 && !t.is_bulk());
    task.map(|task| UndecidedReason::PeriodZero { task })
}

/// Whether EDF among chunks, with at most `in_flight` of them handed to the engine, meets every deadline.
///
/// For every t with demand: `dbf(t) + B(t) <= t`, where `dbf(t)` is the cost of all jobs with release and deadline inside
/// an interval of length t, and `B(t)` is 0 if no task has a deadline above t, else
/// `(in_flight - 1) * longest chunk of all + longest chunk of those with a deadline above t - 1`. Deadlines may be below,
/// at or above periods. Exact with one chunk in flight, sufficient with more: what is ahead may be anyone's. At
/// utilisation 1 a hyperperiod is examined, if it is small enough.
#[must_use]
pub fn chunked(tasks: &[RecurrentTask], in_flight: u32) -> TestVerdict {
    let in_flight = in_flight.max(1);
    let strength = if in_flight == 1 { TestStrength::Exact } else { TestStrength::Sufficient };
    let model = Model::Chunks { in_flight };
    if let Some(reason) = period_zero(tasks) {
        return TestVerdict { outcome: TestOutcome::Undecided(reason), utilisation_ppm: 0, strength, model };
    }
    let utilisation = Utilisation::of(tasks);
    let outcome = if utilisation.is_above_one() {
        TestOutcome::NotSchedulable(TestViolation::Utilisation)
    } else {
        decide(tasks, &Demand::new(tasks, &[]), in_flight, &utilisation)
    };
    TestVerdict { outcome, utilisation_ppm: utilisation.ppm, strength, model }
}

/// As [`chunked`] with one chunk in flight, where the steps of each of `streams` keep their distances: the demand of a stream in an
/// interval is the largest over the step whose release the interval begins with.
///
/// A "yes" is a proof. A "no" may be pessimistic: a stream is counted as blocking its own steps.
#[must_use]
pub fn chunked_streams(tasks: &[RecurrentTask], streams: &[PhasedStream]) -> TestVerdict {
    let (strength, model) = (TestStrength::Sufficient, Model::Streams);
    if let Some(reason) = period_zero(tasks) {
        return TestVerdict { outcome: TestOutcome::Undecided(reason), utilisation_ppm: 0, strength, model };
    }
    let utilisation = Utilisation::of(tasks);
    let outcome = if utilisation.is_above_one() {
        TestOutcome::NotSchedulable(TestViolation::Utilisation)
    } else {
        decide(tasks, &Demand::new(tasks, streams), 1, &utilisation)
    };
    TestVerdict { outcome, utilisation_ppm: utilisation.ppm, strength, model }
}

fn decide(tasks: &[RecurrentTask], demand: &Demand, in_flight: u32, utilisation: &Utilisation) -> TestOutcome {
    match failing(tasks, demand, in_flight, utilisation) {
        Ok(None) => TestOutcome::Schedulable,
        Ok(Some(Failing { segment, low, at })) => {
            let t = demand.first_violation(low, at, segment.blocking);
            TestOutcome::NotSchedulable(evidence(tasks, demand, &segment, t))
        }
        Err(reason) => TestOutcome::Undecided(reason),
    }
}

/// An interval that asks for too much.
struct Failing {
    segment: Segment,
    /// No shorter interval of the segment has any demand.
    low: u64,
    /// The length of the interval, not the least one.
    at: u64,
}

fn failing(
    tasks: &[RecurrentTask],
    demand: &Demand,
    in_flight: u32,
    utilisation: &Utilisation,
) -> Result<Option<Failing>, UndecidedReason> {
    let Some(first_deadline) = demand.first_deadline() else { return Ok(None) };
    let segments = walk::segments(tasks, in_flight);
    let mut budget = LIMITS.steps_max;
    let horizon = walk::horizon(demand, &segments, utilisation, &mut budget)?;
    for segment in segments {
        let (low, high) = (segment.from.max(first_deadline), segment.to.min(horizon));
        if low > high {
            continue;
        }
        if let Some(at) = demand.last_violation(low, high, segment.blocking, &mut budget)? {
            return Ok(Some(Failing { segment, low, at }));
        }
    }
    Ok(None)
}

/// Whether `tasks` pass [`chunked`] with one chunk in flight, without the evidence of a "no", which takes longer to find.
pub(crate) fn passes(tasks: &[RecurrentTask]) -> bool {
    passes_streams(tasks, &[])
}

/// The same for [`chunked_streams`].
pub(crate) fn passes_streams(tasks: &[RecurrentTask], streams: &[PhasedStream]) -> bool {
    let utilisation = match period_zero(tasks) {
        None => Utilisation::of(tasks),
        Some(_) => return false,
    };
    !utilisation.is_above_one() && matches!(failing(tasks, &Demand::new(tasks, streams), 1, &utilisation), Ok(None))
}

fn evidence(tasks: &[RecurrentTask], demand: &Demand, segment: &Segment, t: u64) -> TestViolation {
    let (mut contributions, mut sum) = (Vec::new(), segment.blocking);
    for (task, jobs) in demand.jobs_at(t) {
        let cost = u128::from(jobs) * u128::from(tasks[task].cost.0);
        sum += cost;
        contributions.push(Contribution { task, jobs, demand: saturated(cost) });
    }
    let (interval, demand, blocking) = (Nanos(t), saturated(sum), saturated(segment.blocking));
    TestViolation::Demand { task: blocker(tasks, t), interval, demand, blocking, contributions }
}

/// The task with the longest chunk among those with a deadline above `t`; of equal ones the first by deadline and position.
fn blocker(tasks: &[RecurrentTask], t: u64) -> Option<usize> {
    let later = (0..).zip(tasks).filter(|(_, task)| task.deadline.0 > t && task.chunk.0 > 0);
    later.min_by_key(|&(n, task)| (Reverse(task.chunk), task.deadline, n)).map(|(n, _)| n)
}

fn saturated(time: u128) -> Nanos {
    Nanos(u64::try_from(time).unwrap_or(u64::MAX))
}

/// The largest margin reported: a thousand times the costs.
pub const MARGIN_PPM_MAX: u64 = 1_000 * PPM;

/// Margins are multiples of it: 0.01 %. Finer ones would be spent on sets within a millionth of full utilisation, where
/// every test takes long.
pub const MARGIN_PPM_STEP: u64 = 100;

/// The largest factor on all costs and chunks, in parts per million, with which `tasks` still pass [`chunked`] with one chunk in
/// flight, and so [`jeffay`] where that applies; 1,000,000 = as given, at most [`MARGIN_PPM_MAX`], a multiple of
/// [`MARGIN_PPM_STEP`].
#[must_use]
pub fn margin_ppm(tasks: &[RecurrentTask]) -> u64 {
    streams_margin_ppm(tasks, &[])
}

/// As [`margin_ppm`], for [`chunked_streams`].
#[must_use]
pub fn streams_margin_ppm(tasks: &[RecurrentTask], streams: &[PhasedStream]) -> u64 {
    /// Intervals that bound the factor before it is bisected. More would bound it little: near full utilisation long intervals
    /// fail first, and every test takes long.
    const CUTS: u32 = 3;
    if period_zero(tasks).is_some() {
        return 0;
    }
    // Demand and blocking grow with every cost and nothing else depends on costs, so that a set which passes with a factor
    // passes with all smaller ones, and an interval that fails with one bounds all that pass.
    let by = |factor: u64| tasks.iter().map(|t| scaled(t, factor)).collect::<Vec<RecurrentTask>>();
    let fits = |factor: u64| !Utilisation::of(&by(factor)).is_above_one();
    let mut factor = largest_factor(fits);
    for _ in 0..CUTS {
        let now = by(factor);
        let Ok(found) = failing(&now, &Demand::new(&now, streams), 1, &Utilisation::of(&now)) else { break };
        let Some(Failing { low, at, .. }) = found else { return factor };
        let holds = |factor: u64| [low, at].iter().all(|&t| asked(&by(factor), streams, t) <= u128::from(t));
        factor = largest_factor_between(0, factor.saturating_sub(MARGIN_PPM_STEP), holds);
    }
    // "Undecided" counts as not passing; should it stand below a "yes", the result is smaller than need be, but still a factor
    // that passes.
    largest_factor_between(0, factor, |factor| passes_streams(&by(factor), streams))
}

/// What must be done in an interval of length `t`, blocking included.
fn asked(tasks: &[RecurrentTask], streams: &[PhasedStream], t: u64) -> u128 {
    let blocking = tasks.iter().filter(|task| task.deadline.0 > t).map(|task| task.chunk.0.saturating_sub(1)).max();
    Demand::new(tasks, streams).at(t) + u128::from(blocking.unwrap_or(0))
}

/// The task with cost and chunk times `factor` ppm, rounded up.
pub(crate) fn scaled(task: &RecurrentTask, factor: u64) -> RecurrentTask {
    let scale = |time: Nanos| {
        if time == Nanos::MAX {
            return time;
        }
        saturated((u128::from(time.0) * u128::from(factor)).div_ceil(u128::from(PPM)))
    };
    RecurrentTask { cost: scale(task.cost), chunk: scale(task.chunk), ..*task }
}

/// The largest multiple of [`MARGIN_PPM_STEP`] that passes, at most [`MARGIN_PPM_MAX`], by bisection.
pub(crate) fn largest_factor(passes: impl FnMut(u64) -> bool) -> u64 {
    largest_factor_between(0, MARGIN_PPM_MAX, passes)
}

/// The largest multiple of [`MARGIN_PPM_STEP`] that passes, at most `high`, where `low` does and both are such multiples.
pub(crate) fn largest_factor_between(low: u64, high: u64, mut passes: impl FnMut(u64) -> bool) -> u64 {
    let found = largest(low / MARGIN_PPM_STEP, high / MARGIN_PPM_STEP, |steps| passes(steps * MARGIN_PPM_STEP));
    found * MARGIN_PPM_STEP
}

/// The largest number up to `high` that passes, where `low` does and all below one that does.
fn largest(mut low: u64, mut high: u64, mut passes: impl FnMut(u64) -> bool) -> u64 {
    if high <= low || passes(high) {
        return high;
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if passes(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}
