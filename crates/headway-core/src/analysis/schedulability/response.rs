//! How long jobs of sporadic tasks can take from release to end under non-preemptive earliest deadline first.
//!
//! George, Rivierre, Spuri, "Preemptive and Non-Preemptive Real-Time Uniprocessor Scheduling" (INRIA RR-2966, 1996), 4.3.2:
//! the longest response of a task is found in a *deadline busy period*. A job is released at `a` after its start and due at
//! `a + D_i`; every other task is released at its start and as often as it can be after that; the task with the longest
//! chunk among those with later deadlines has begun an instant before. `L_i(a)` is when the job begins:
//!
//! ```text
//! L_i(a) = max over D_j > a + D_i of (C_j - 1)
//!        + sum over j != i, D_j <= a + D_i of min(1 + floor(L_i(a) / T_j), 1 + floor((a + D_i - D_j) / T_j)) C_j
//!        + floor(a / T_i) C_i
//! r_i = max over a of (L_i(a) + C_i - a), a + D_i = k T_j + D_j, a < L
//! ```
//!
//! `L` is the longest busy period. The letters are the paper's. Of a job in chunks the last one counts as 1 ns long, since any
//! of its chunks may be: jobs with earlier deadlines are let in until then. Tasks of one period and deadline are one task here:
//! any of them may be the last of its kind.

use std::cmp::Reverse;

use super::exact::Utilisation;
use super::walk::{self, Demand};
use super::{RecurrentTask, period_zero};
use crate::units::Nanos;

/// Tasks of one period and deadline.
#[derive(Clone, Copy, Debug)]
struct Kind {
    deadline: u64,
    period: u64,
    /// Of one job of each.
    cost: u128,
    /// What at least runs of a job once its last chunk has begun.
    last: u64,
}

/// The tasks of one engine, by ascending deadline.
struct Kinds {
    kinds: Vec<Kind>,
    /// The cost of one job of each kind before the position.
    costs: Vec<u128>,
    /// Deadlines with the longest chunk of a task with this or a later one; both ascend the other way round.
    blockers: Vec<(u64, u64)>,
    period_min: u64,
    /// Two jobs of a task may be nearer to each other than its period by this.
    jitter: u64,
}

/// The longest response of every task, [`Nanos::MAX`] for a bulk flow. `None` where the work is more than the time, the
/// longest busy period is not found, or more than `steps` tasks and instants would have to be looked at; what was looked at is
/// taken from `steps`.
///
/// Exact for tasks whose jobs run whole, and for the one with the shortest job where several have one period and deadline;
/// else never too short.
#[must_use]
pub fn responses(tasks: &[RecurrentTask], steps: &mut u64) -> Option<Vec<Nanos>> {
    let (all, busy) = prepare(tasks, Nanos::ZERO, steps)?;
    let mut longest = Vec::with_capacity(all.kinds.len());
    for at in 0..all.kinds.len() {
        longest.push(all.response(at, busy, steps)?);
    }
    let of_task = |task: &RecurrentTask| {
        all.position(task).map_or(Nanos::MAX, |at| Nanos(u64::try_from(longest[at]).unwrap_or(u64::MAX)))
    };
    Some(tasks.iter().map(of_task).collect())
}

/// The longest response of one task, where a job may be released up to `jitter` after the instant at which it should have been, and these
/// instants, not the releases, keep the periods. The deadlines of `tasks` and the response count as if each job were released as late as it can
/// be: a deadline is shorter by `jitter` than what is due after the instant, and a response, counted from the instant, longer.
///
/// In the formula above the jobs that can be released until `L_i(a)` become `1 + floor((L_i(a) + jitter) / T_j)` (Spuri, "Holistic Analysis for
/// Deadline Scheduled Real-Time Distributed Systems", INRIA RR-2873, 1996).
#[must_use]
pub fn response_with_jitter(tasks: &[RecurrentTask], of: usize, jitter: Nanos, steps: &mut u64) -> Option<Nanos> {
    let (all, busy) = prepare(tasks, jitter, steps)?;
    let Some(at) = all.position(&tasks[of]) else { return Some(Nanos::MAX) };
    let longest = all.response(at, busy, steps)?;
    Some(Nanos(u64::try_from(longest).unwrap_or(u64::MAX)))
}

/// The tasks by their kinds, and the longest busy period.
fn prepare(tasks: &[RecurrentTask], jitter: Nanos, steps: &mut u64) -> Option<(Kinds, u64)> {
    if period_zero(tasks).is_some() || Utilisation::of(tasks).is_above_one() {
        return None;
    }
    let demand = Demand::new(tasks, &[]);
    let busy = walk::busy_period(&demand, &walk::segments(tasks, 1), jitter.0, u64::MAX, steps).ok()??;
    Some((Kinds::of(tasks, jitter.0), busy))
}

/// Times of 64 bits are divided ten times as fast as longer ones.
fn divided(time: u128, period: u64) -> u128 {
    u64::try_from(time).map_or_else(|_| time / u128::from(period), |time| u128::from(time / period))
}

fn pay(steps: &mut u64, count: usize) -> Option<()> {
    *steps = steps.checked_sub(count as u64)?;
    Some(())
}

impl Kinds {
    fn of(tasks: &[RecurrentTask], jitter: u64) -> Self {
        let mut kinds: Vec<Kind> = Vec::new();
        for task in tasks.iter().filter(|task| !task.is_bulk()) {
            let last = if task.chunk < task.cost { task.chunk.0.min(1) } else { task.cost.0 };
            let (deadline, period) = (task.deadline.0, task.period.0);
            kinds.push(Kind { deadline, period, cost: task.cost.0.into(), last });
        }
        kinds.sort_by_key(|kind| (kind.deadline, kind.period));
        kinds.dedup_by(|next, kept| {
            let same = (next.deadline, next.period) == (kept.deadline, kept.period);
            if same {
                (kept.cost, kept.last) = (kept.cost + next.cost, kept.last.min(next.last));
            }
            same
        });
        let mut costs = vec![0];
        costs.extend(kinds.iter().scan(0, |sum, kind| {
            *sum += kind.cost;
            Some(*sum)
        }));
        let mut chunks: Vec<(u64, u64)> = tasks.iter().map(|task| (task.deadline.0, task.chunk.0)).collect();
        chunks.sort_unstable_by_key(|&(deadline, chunk)| (Reverse(deadline), Reverse(chunk)));
        let mut blockers: Vec<(u64, u64)> = Vec::new();
        for (deadline, chunk) in chunks {
            if blockers.last().is_none_or(|&(_, longest)| chunk > longest) {
                blockers.push((deadline, chunk));
            }
        }
        let period_min = kinds.iter().map(|kind| kind.period).min().unwrap_or(u64::MAX);
        Self { kinds, costs, blockers, period_min, jitter }
    }

    fn position(&self, task: &RecurrentTask) -> Option<usize> {
        let key = (task.deadline.0, task.period.0);
        self.kinds.binary_search_by_key(&key, |kind| (kind.deadline, kind.period)).ok()
    }

    /// What a task with a deadline above `due` has left to do an instant after it began.
    fn blocking(&self, due: u64) -> u128 {
        let later = self.blockers.partition_point(|&(deadline, _)| deadline > due);
        later.checked_sub(1).map_or(0, |at| u128::from(self.blockers[at].1.saturating_sub(1)))
    }

    /// The longest response of a kind, where no busy period is longer than `busy`.
    fn response(&self, of: usize, busy: u64, steps: &mut u64) -> Option<u128> {
        pay(steps, self.kinds.len())?;
        let own = self.kinds[of].deadline;
        let mut releases: Vec<u64> = vec![0];
        for kind in &self.kinds {
            // The deadlines of this kind at which the job may be due, too: from its own deadline up to the busy period later.
            let first = own.saturating_sub(kind.deadline).div_ceil(kind.period);
            let Some(from) = first.checked_mul(kind.period).and_then(|after| after.checked_add(kind.deadline)) else {
                continue;
            };
            let from = from - own;
            if from >= busy {
                if kind.deadline >= own {
                    break; // all others are due later still
                }
                continue;
            }
            let count = (busy - from).div_ceil(kind.period);
            pay(steps, usize::try_from(count).unwrap_or(usize::MAX))?;
            releases.extend((0..count).map(|job| from + job * kind.period));
        }
        releases.sort_unstable();
        releases.dedup();
        let mut longest = 0;
        for release in releases {
            longest = longest.max(self.finish(of, release, steps)?.saturating_sub(u128::from(release)));
        }
        Some(longest)
    }

    /// When the job of a kind ends that is released at `a` after the start of a busy period.
    fn finish(&self, of: usize, a: u64, steps: &mut u64) -> Option<u128> {
        let own = self.kinds[of];
        let due = a.saturating_add(own.deadline);
        let until = self.kinds.partition_point(|kind| kind.deadline <= due);
        let alone = self.blocking(due) + u128::from(a / own.period) * own.cost;
        // One job of each first: less is never there.
        let mut finish = alone + self.costs[until];
        loop {
            let begins = finish.saturating_sub(u128::from(own.last));
            if begins + u128::from(self.jitter) < u128::from(self.period_min) {
                return Some(finish);
            }
            pay(steps, until)?;
            let others = self.kinds[..until].iter().enumerate().map(|(at, kind)| {
                if at == of {
                    return kind.cost;
                }
                let released = divided(begins + u128::from(self.jitter), kind.period);
                let first_due = u128::from((due - kind.deadline) / kind.period);
                (released.min(first_due) + 1) * kind.cost
            });
            let next = alone + others.sum::<u128>();
            if next <= finish {
                return Some(finish);
            }
            finish = next;
        }
    }
}
