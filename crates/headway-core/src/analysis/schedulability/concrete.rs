//! Periodic tasks whose offsets are known: every schedule of non-preemptive EDF, explored as far as it does not repeat.
//!
//! A state is how far every task has come and the interval of times at which the engine may become free. States of the
//! same progress whose intervals meet are one. Nasri, Brandenburg, "An Exact and Sustainable Analysis of Non-Preemptive
//! Scheduling" (RTSS 2017), with two changes: the chunks of a job are dispatched one by one, and sets with offsets are
//! followed until all states at a multiple of the hyperperiod were met at an earlier one.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde::{Deserialize, Serialize};

use super::exact::{Utilisation, gcd};
use super::{
    LIMITS, Model, RecurrentTask, TestOutcome, TestStrength, TestVerdict, TestViolation, UndecidedReason, chunked,
    jeffay,
};
use crate::units::Nanos;

/// Steps that a state costs when it is added, beside the copy of its numbers.
const STEPS_OF_SUCCESSOR: u64 = 16;

/// A task with known releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConcreteTask {
    /// Costs, period and deadline. Chunks are of `task.chunk`, the last one of a job is the rest.
    pub task: RecurrentTask,
    /// Nominal release of the first job; job k follows after k periods.
    pub offset: Nanos,
    /// How much later than nominal a job may be released, below the period. Deadlines count from the nominal release.
    pub jitter: Nanos,
}

impl ConcreteTask {
    /// A task that is released exactly at `offset`, `offset + period`, and so on.
    #[must_use]
    pub const fn at(offset: Nanos, task: RecurrentTask) -> Self {
        Self { task, offset, jitter: Nanos::ZERO }
    }
}

/// Which costs jobs may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobCosts {
    /// Anything from zero to the worst case, chunk by chunk: what real operations do.
    UpToWorst,
    /// The worst case, always. A "yes" says nothing about shorter jobs: ending early may let a long one in.
    Exact,
}

/// What the costs of tasks with jitter say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JitterCosts {
    /// A job that is released late may still take its whole cost.
    BesideCosts,
    /// By as much as a job is released late, it takes less than its cost: one allowance for both, as plans have it. Which jobs
    /// were late is not remembered, so that a "no" may be pessimistic.
    WithinCosts,
}

/// Which of two jobs with the same absolute deadline goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ties {
    /// Either: the verdict holds for every rule.
    Any,
    /// The task listed first.
    ByPosition,
}

/// What was explored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExploredWindow {
    /// Least common multiple of the periods; zero where it was not computed.
    pub hyperperiod: Nanos,
    /// Multiples of it after which all states had been met before.
    pub hyperperiods: u64,
    /// Jobs with a nominal release before this time make up the window.
    pub until: Nanos,
    /// States looked at.
    pub states: u64,
    /// Steps that they took.
    #[serde(default)]
    pub steps: u64,
}

/// A verdict on concrete tasks with what it was found in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exploration {
    /// Yes, no or not known.
    pub verdict: TestVerdict,
    /// What was explored.
    pub window: ExploredWindow,
    /// The longest time from nominal release to completion of each task, attained by some costs; empty unless the
    /// verdict is a "yes".
    pub bounds: Vec<Nanos>,
}

/// Whether non-preemptive EDF meets every deadline of periodic tasks with exactly these offsets and jitters.
///
/// Exact with [`JobCosts::UpToWorst`], up to the rule for ties; necessary with [`JobCosts::Exact`], where a "no" is proof and a
/// "yes" only holds for jobs that never end early. Undecided for bulk flows, jitters of a period or more, hyperperiods
/// beyond [`LIMITS`], and when more than [`LIMITS`]`.steps_max` steps are needed. Nothing may join a set accepted by it.
#[must_use]
pub fn concrete(tasks: &[ConcreteTask], costs: JobCosts, ties: Ties) -> Exploration {
    concrete_within(tasks, costs, ties, JitterCosts::BesideCosts, LIMITS.steps_max)
}

/// [`concrete`] with a choice of what jitter means, undecided when more than `steps_max` steps are needed: a step is a task
/// looked at in a state. Each state that is added costs 16 steps and one for every eight tasks.
#[must_use]
pub fn concrete_within(
    tasks: &[ConcreteTask],
    costs: JobCosts,
    ties: Ties,
    lateness: JitterCosts,
    steps_max: u64,
) -> Exploration {
    let plain: Vec<RecurrentTask> = tasks.iter().map(|t| t.task).collect();
    let forgets = lateness == JitterCosts::WithinCosts && tasks.iter().any(|of| of.jitter > Nanos::ZERO);
    let strength = match costs {
        JobCosts::UpToWorst if forgets => TestStrength::Sufficient,
        JobCosts::UpToWorst => TestStrength::Exact,
        JobCosts::Exact => TestStrength::Necessary,
    };
    let model = Model::Concrete { costs };
    let answer = |utilisation_ppm, outcome, window, bounds| Exploration {
        verdict: TestVerdict { outcome, utilisation_ppm, strength, model },
        window,
        bounds,
    };
    if let Some(reason) = unsuitable(tasks) {
        return answer(0, TestOutcome::Undecided(reason), ExploredWindow::default(), Vec::new());
    }
    let utilisation = Utilisation::of(&plain);
    if utilisation.is_above_one() {
        let outcome = TestOutcome::NotSchedulable(TestViolation::Utilisation);
        return answer(utilisation.ppm, outcome, ExploredWindow::default(), Vec::new());
    }
    let mut search = match Search::new(tasks, costs, ties, lateness, steps_max) {
        Ok(search) => search,
        Err(reason) => {
            return answer(utilisation.ppm, TestOutcome::Undecided(reason), ExploredWindow::default(), Vec::new());
        }
    };
    let outcome = match search.explore() {
        Ok(()) => TestOutcome::Schedulable,
        Err(Stop::Late(violation)) => TestOutcome::NotSchedulable(violation),
        Err(Stop::Steps) => TestOutcome::Undecided(UndecidedReason::Steps { max: steps_max }),
    };
    let bounds = if outcome == TestOutcome::Schedulable { search.bounds() } else { Vec::new() };
    answer(utilisation.ppm, outcome, search.window(), bounds)
}

fn unsuitable(tasks: &[ConcreteTask]) -> Option<UndecidedReason> {
    (0..).zip(tasks).find_map(|(task, of)| match of {
        _ if of.task.is_bulk() => Some(UndecidedReason::Bulk { task }),
        _ if of.task.period.0 == 0 => Some(UndecidedReason::PeriodZero { task }),
        _ if of.jitter >= of.task.period => Some(UndecidedReason::Jitter { task }),
        _ => None,
    })
}

/// One task as the search sees it. Times are i128: offsets, deadlines and multiples of periods may each fill 64 bits.
struct Item {
    period: i128,
    offset: i128,
    deadline: i128,
    jitter: i128,
    /// Chunks of a job, at least one.
    chunks: i64,
    chunk: i128,
    last_chunk: i128,
    /// Chunks in a hyperperiod.
    round: i64,
}

/// The next chunk of a task.
struct Next {
    task: usize,
    nominal: i128,
    released_max: i128,
    deadline: i128,
    cost: i128,
}

impl Item {
    fn new(of: &ConcreteTask, hyperperiod: u64) -> Option<Self> {
        let (cost, chunk) = (of.task.cost.0, of.task.chunk.0.clamp(1, of.task.cost.0.max(1)));
        let chunks = i64::try_from(cost.div_ceil(chunk).max(1)).ok()?;
        let jobs = i64::try_from(hyperperiod / of.task.period.0).ok()?;
        Some(Self {
            period: of.task.period.0.into(),
            offset: of.offset.0.into(),
            deadline: of.task.deadline.0.into(),
            jitter: of.jitter.0.into(),
            chunks,
            chunk: chunk.into(),
            last_chunk: i128::from(cost) - i128::from(chunks - 1) * i128::from(chunk),
            round: chunks.checked_mul(jobs)?,
        })
    }

    /// The chunk with this number, counted over all jobs from the nominal release of the first.
    fn next(&self, task: usize, number: i64) -> Next {
        let (job, chunk) = (number.div_euclid(self.chunks), number.rem_euclid(self.chunks));
        let nominal = self.offset + i128::from(job) * self.period;
        // A job that has begun is there; its nominal release is before any time at which the engine may be free.
        let released_max = if chunk == 0 { nominal + self.jitter } else { nominal };
        let cost = if chunk + 1 == self.chunks { self.last_chunk } else { self.chunk };
        Next { task, nominal, released_max, deadline: nominal + self.deadline, cost }
    }
}

/// When the engine may become free, both ends included.
pub(super) type Free = (i128, i128);
type States = BTreeMap<Progress, State>;

/// How far every task has come.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Progress {
    /// A sum over the numbers in which each task has a weight of its own. It is compared first: two progresses of one layer
    /// differ in few places, which may be far behind.
    fingerprint: u64,
    /// Of the next chunk of every task.
    numbers: Box<[i64]>,
}

impl Progress {
    fn new(numbers: Box<[i64]>) -> Self {
        let weighted = numbers.iter().enumerate().map(|(task, &number)| weight(task).wrapping_mul(number as u64));
        Self { fingerprint: weighted.fold(0, u64::wrapping_add), numbers }
    }

    /// The progress after one more chunk of `task`.
    fn after(&self, task: usize) -> Self {
        let mut numbers = self.numbers.clone();
        numbers[task] += 1;
        Self { fingerprint: self.fingerprint.wrapping_add(weight(task)), numbers }
    }
}

const fn weight(task: usize) -> u64 {
    let mixed = (task as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ (mixed >> 29)) | 1
}

/// All states of one progress.
#[derive(Clone)]
struct State {
    /// The tasks by the nominal release of their next chunk. It follows from the progress, and is kept so that a state costs
    /// what it may dispatch, not what is there.
    by_release: Box<[u32]>,
    /// Ascending; they do not meet.
    free: Vec<Free>,
}

enum Stop {
    Late(TestViolation),
    Steps,
}

struct Search {
    items: Vec<Item>,
    costs: JobCosts,
    ties: Ties,
    lateness: JitterCosts,
    hyperperiod: u64,
    /// Chunks of all tasks in a hyperperiod.
    round: i64,
    responses: Vec<i128>,
    hyperperiods: u64,
    until: i128,
    states: u64,
    steps: u64,
    steps_max: u64,
}

impl Search {
    fn new(
        tasks: &[ConcreteTask],
        costs: JobCosts,
        ties: Ties,
        lateness: JitterCosts,
        steps_max: u64,
    ) -> Result<Self, UndecidedReason> {
        let max = LIMITS.hyperperiod_max;
        let mut hyperperiod = 1u64;
        for of in tasks {
            let factor = of.task.period.0 / gcd(hyperperiod, of.task.period.0);
            let longer = hyperperiod.checked_mul(factor).filter(|&h| h <= max.0);
            hyperperiod = longer.ok_or(UndecidedReason::HyperperiodBound { max })?;
        }
        let steps = || UndecidedReason::Steps { max: steps_max };
        let items: Option<Vec<Item>> = tasks.iter().map(|of| Item::new(of, hyperperiod)).collect();
        let items = items.ok_or_else(steps)?;
        let mut round = 0i64;
        for item in &items {
            let sum = round.checked_add(item.round);
            // One state per chunk is the least that the search takes.
            round = sum.filter(|&r| r.unsigned_abs() <= steps_max).ok_or_else(steps)?;
        }
        let responses = vec![0; items.len()];
        Ok(Self {
            items,
            costs,
            ties,
            lateness,
            hyperperiod,
            round,
            responses,
            hyperperiods: 0,
            until: 0,
            states: 0,
            steps: 0,
            steps_max,
        })
    }

    fn window(&self) -> ExploredWindow {
        let until = Nanos(u64::try_from(self.until).unwrap_or(u64::MAX));
        ExploredWindow {
            hyperperiod: Nanos(self.hyperperiod),
            hyperperiods: self.hyperperiods,
            until,
            states: self.states,
            steps: self.steps,
        }
    }

    fn bounds(&self) -> Vec<Nanos> {
        self.responses.iter().map(|&r| Nanos(u64::try_from(r).unwrap_or(u64::MAX))).collect()
    }

    fn explore(&mut self) -> Result<(), Stop> {
        if self.items.is_empty() {
            return Ok(());
        }
        let start = Progress::new(vec![0; self.items.len()].into_boxed_slice());
        let mut by_release: Box<[u32]> = (0..self.items.len() as u32).collect();
        by_release.sort_by_key(|&task| self.items[task as usize].offset);
        let free = vec![self.widened(&start.numbers, &by_release, (0, 0))];
        let mut states = States::from([(start, State { by_release, free })]);
        // What was met at multiples of the hyperperiod, shifted to the first one.
        let mut met = states.clone();
        loop {
            for _ in 0..self.round {
                states = self.dispatched(&states)?;
            }
            self.hyperperiods += 1;
            states = self.unmet(states, &mut met);
            if states.is_empty() {
                return Ok(());
            }
        }
    }

    /// All states after one more chunk.
    fn dispatched(&mut self, states: &States) -> Result<States, Stop> {
        let mut after = States::new();
        for (progress, state) in states {
            for &free in &state.free {
                self.states += 1;
                self.take(self.items.len() as u64)?;
                self.branch(progress, &state.by_release, free, &mut after)?;
            }
        }
        Ok(after)
    }

    fn take(&mut self, steps: u64) -> Result<(), Stop> {
        let taken = self.steps.checked_add(steps);
        self.steps = taken.filter(|taken| *taken <= self.steps_max).ok_or(Stop::Steps)?;
        Ok(())
    }

    fn next(&self, numbers: &[i64], task: u32) -> Next {
        let task = task as usize;
        self.items[task].next(task, numbers[task])
    }

    /// When some task has surely been released.
    fn certain(&self, numbers: &[i64], by_release: &[u32]) -> i128 {
        let mut certain = i128::MAX;
        for &task in by_release {
            let next = self.next(numbers, task);
            if next.nominal >= certain {
                break; // all others are released later still
            }
            certain = certain.min(next.released_max);
        }
        certain
    }

    /// Adds every state that may follow one.
    fn branch(&mut self, progress: &Progress, by_release: &[u32], free: Free, after: &mut States) -> Result<(), Stop> {
        let numbers = &progress.numbers;
        let idle_until = free.1.max(self.certain(numbers, by_release));
        let released = by_release.iter().map(|&task| self.next(numbers, task));
        let mut ready: Vec<Next> = released.take_while(|next| next.nominal <= idle_until).collect();
        // What is surely there when the engine becomes free goes before all that is due later.
        let there = ready.iter().filter(|next| next.released_max <= free.0).map(|next| next.deadline).min();
        ready.retain(|next| there.is_none_or(|due| next.deadline <= due));
        ready.sort_unstable_by_key(|next| (next.deadline, next.task));
        let mut latest = idle_until;
        let ties = self.ties;
        for equals in ready.chunk_by(|a, b| ties == Ties::Any && a.deadline == b.deadline) {
            for one in equals {
                let earliest = free.0.max(one.nominal);
                if earliest > latest {
                    continue;
                }
                let least = if self.costs == JobCosts::Exact { one.cost } else { 0 };
                let begun = match self.lateness {
                    JitterCosts::BesideCosts => latest,
                    // A job that the free engine waits for is late by as long as it waits.
                    JitterCosts::WithinCosts => latest.min(free.1.max(one.nominal)),
                };
                let last = (begun + one.cost).max(latest);
                let first = (earliest + least).min(last);
                self.until = self.until.max(one.nominal.saturating_add(1) + self.shift());
                if last > one.deadline {
                    return Err(Stop::Late(self.late(one.task, numbers[one.task], last)));
                }
                self.responses[one.task] = self.responses[one.task].max(last - one.nominal);
                self.take(STEPS_OF_SUCCESSOR + self.items.len() as u64 / 8)?;
                self.add(progress.after(one.task), by_release, one.task, (first, last), after);
            }
            latest = equals.iter().map(|next| next.released_max - 1).fold(latest, i128::min);
        }
        Ok(())
    }

    /// Adds the state in which `task` has got one chunk further, to `progress`, and the engine becomes free at `free`;
    /// `by_release` is the order before.
    fn add(&self, progress: Progress, by_release: &[u32], task: usize, free: Free, after: &mut States) {
        match after.entry(progress) {
            Entry::Occupied(mut known) => {
                let free = self.widened(&known.key().numbers, &known.get().by_release, free);
                merge(&mut known.get_mut().free, free);
            }
            Entry::Vacant(place) => {
                let numbers = &place.key().numbers;
                let task = task as u32;
                let release = self.next(numbers, task).nominal;
                let mut by_release: Box<[u32]> = by_release.into();
                let from = by_release.iter().position(|&other| other == task).unwrap_or(0);
                let behind = &by_release[from + 1..];
                let passed = behind.partition_point(|&other| self.next(numbers, other).nominal <= release);
                by_release[from..=from + passed].rotate_left(1);
                let free = vec![self.widened(numbers, &by_release, free)];
                place.insert(State { by_release, free });
            }
        }
    }

    /// What times of this round are short of by counting from its start.
    fn shift(&self) -> i128 {
        i128::from(self.hyperperiods) * i128::from(self.hyperperiod)
    }

    fn late(&self, task: usize, number: i64, finish: i128) -> TestViolation {
        let item = &self.items[task];
        let next = item.next(task, number);
        let nanos = |time: i128| Nanos(u64::try_from(time + self.shift()).unwrap_or(u64::MAX));
        let job = i128::from(number.div_euclid(item.chunks)) + self.shift() / item.period;
        TestViolation::Late {
            task,
            job: u64::try_from(job).unwrap_or(u64::MAX),
            release: nanos(next.nominal),
            deadline: nanos(next.deadline),
            finish: nanos(finish),
        }
    }

    /// The widest interval with the same future: before the first possible release nothing starts, and with nothing
    /// released the engine stays free until the first release that is certain.
    fn widened(&self, numbers: &[i64], by_release: &[u32], free: Free) -> Free {
        let first = by_release.first().map_or(0, |&task| self.next(numbers, task).nominal);
        let last = match self.lateness {
            JitterCosts::BesideCosts => self.certain(numbers, by_release),
            // How long the engine waits for a job counts.
            JitterCosts::WithinCosts => first,
        };
        (free.0.max(first), free.1.max(last))
    }

    /// The states that were not met at an earlier multiple of the hyperperiod, shifted back by one; they count as met now.
    fn unmet(&self, states: States, met: &mut States) -> States {
        let mut left = States::new();
        let shift = i128::from(self.hyperperiod);
        for (Progress { mut numbers, .. }, State { by_release, free }) in states {
            for (number, item) in numbers.iter_mut().zip(&self.items) {
                *number -= item.round;
            }
            let progress = Progress::new(numbers);
            let nothing = || State { by_release: by_release.clone(), free: Vec::new() };
            let known = &mut met.entry(progress.clone()).or_insert_with(nothing).free;
            let mut new = Vec::new();
            for (first, last) in free {
                let free = (first - shift, last - shift);
                if !known.iter().any(|k| k.0 <= free.0 && free.1 <= k.1) {
                    new.push(free);
                    merge(known, free);
                }
            }
            if !new.is_empty() {
                left.insert(progress, State { by_release, free: new });
            }
        }
        left
    }
}

/// Adds an interval to disjoint ascending ones; integers next to each other meet.
pub(super) fn merge(frees: &mut Vec<Free>, free: Free) {
    let mut joined = free;
    let mut at = 0;
    frees.retain(|&other| {
        if other.1 + 1 < joined.0 {
            at += 1;
            return true;
        }
        if joined.1 + 1 < other.0 {
            return true;
        }
        joined = (joined.0.min(other.0), joined.1.max(other.1));
        false
    });
    frees.insert(at, joined);
}

/// The set as sporadic tasks. Sufficient with jitter, else exact.
#[must_use]
pub fn sporadic(tasks: &[ConcreteTask]) -> TestVerdict {
    let plain: Vec<RecurrentTask> = tasks.iter().map(|t| t.task).collect();
    if tasks.iter().all(|t| t.jitter == Nanos::ZERO) {
        let whole = plain.iter().all(|t| t.deadline == t.period && t.chunk >= t.cost);
        return if whole { jeffay(&plain) } else { chunked(&plain, 1) };
    }
    // A job released late has less time left; as a blocker it still has its whole deadline.
    let tight = tasks.iter().map(|t| RecurrentTask { deadline: t.task.deadline.saturating_sub(t.jitter), ..t.task });
    let blocking = plain.iter().map(|t| RecurrentTask { cost: Nanos::ZERO, ..*t });
    let all: Vec<RecurrentTask> = tight.chain(blocking).collect();
    TestVerdict { strength: TestStrength::Sufficient, ..chunked(&all, 1) }
}
