//! Algorithm 1 and what is done with its result.

use std::collections::BTreeMap;

use super::greedy::{Combining, greedy};
use super::rules::{joined, roles};
use super::search::search;
use super::stars::Stars;
use super::{
    Accepts, CombineEffort, CombineError, CombineOptions, Counting, KeptSet, LIMITS, Priced, Pricer, Transformed,
    Utilisation, optimal,
};
use crate::analysis::schedulability::RecurrentTask;
use crate::plan::message::{Batch, MessageSet, TIME_MAX};
use crate::units::Nanos;

/// Lowers the sum of utilisations of `set` by combining messages, and returns the set with the least sum that passes
/// `accepts`, among the given set, every one met on the way, and what the mode adds.
///
/// A set that passes is only ever replaced by one that passes too.
///
/// # Errors
/// [`CombineError`] when a batch of the set has no price, or there are too many messages for the optimum.
pub fn transform(
    set: &MessageSet,
    pricer: &mut Pricer<'_>,
    options: CombineOptions,
    accepts: Accepts<'_>,
) -> Result<Transformed, CombineError> {
    let CombineOptions { mode, counting } = options;
    let given = Start::of(set, pricer)?;
    let started = if mode == CombineEffort::Fast { given.merged(pricer)? } else { given.clone() };
    let steps = greedy(&started.set, pricer, counting, None)?;
    let mut sums = started.sums(&steps);
    if mode == CombineEffort::Fast {
        sums.insert(0, given.sums(&[])[0]);
    }
    let better = match mode {
        CombineEffort::Fast | CombineEffort::Greedy => Vec::new(),
        CombineEffort::Search => started.searched(&steps, counting, pricer)?,
        CombineEffort::Optimal => vec![(KeptSet::Optimal, optimal::optimal(&set.elementary, pricer, counting)?)],
    };
    for (kept, batches) in better {
        let tasks: Vec<RecurrentTask> = batches.iter().map(Priced::task).collect();
        let sum: Utilisation = batches.iter().map(Priced::utilisation).sum();
        if sums.last().is_none_or(|last| sum <= *last) && accepts(&tasks) {
            return Ok(Transformed { batches, kept, accepted: true, sums });
        }
    }
    let mut found = started.last_accepted(&steps, accepts).map(|at| (KeptSet::Prefix(at), started.sums(&steps)[at]));
    let mut guarded = Vec::new();
    if found.is_none_or(|(kept, _)| kept != KeptSet::Prefix(steps.len())) {
        let tolerance = started.tolerance();
        guarded = greedy(&started.set, pricer, counting, Some(&|deadline| tolerance_of(&tolerance, deadline)))?;
        if let Some(at) = started.last_accepted(&guarded, accepts) {
            let sum = started.sums(&guarded)[at];
            if found.is_none_or(|(_, least)| sum < least) {
                found = Some((KeptSet::Guarded(at), sum));
            }
        }
    }
    // Merging unseen can cost more than it saves.
    let least = found.map_or_else(|| sums[sums.len() - 1], |(_, sum)| sum);
    if (found.is_none() || sums[0] < least) && given.last_accepted(&[], accepts).is_some() {
        let batches = given.priced_after(&[], counting);
        return Ok(Transformed { batches, kept: KeptSet::Prefix(0), accepted: true, sums });
    }
    let (kept, steps) = match found {
        Some((kept @ KeptSet::Guarded(at), _)) => (kept, &guarded[..at]),
        Some((kept @ KeptSet::Prefix(at), _)) => (kept, &steps[..at]),
        _ => (KeptSet::Prefix(steps.len()), &steps[..]),
    };
    let accepted = found.is_some();
    Ok(Transformed { batches: started.priced_after(steps, counting), kept, accepted, sums })
}

/// A set with what its batches cost.
#[derive(Clone)]
struct Start {
    set: MessageSet,
    costs: Vec<Nanos>,
}

impl Start {
    fn of(set: &MessageSet, pricer: &mut Pricer<'_>) -> Result<Self, CombineError> {
        let mut costs = Vec::with_capacity(set.batches.len());
        for batch in &set.batches {
            let cost = pricer.price(&batch.blocks(&set.elementary))?;
            if cost >= TIME_MAX {
                let name = set.elementary[batch.first() as usize].name.clone();
                return Err(CombineError::Cost { name, cost });
            }
            costs.push(cost);
        }
        Ok(Self { set: set.clone(), costs })
    }

    /// What the search makes of the set after all combinings, the least sum first.
    fn searched(
        &self,
        steps: &[Combining],
        counting: Counting,
        pricer: &mut Pricer<'_>,
    ) -> Result<Vec<(KeptSet, Vec<Priced>)>, CombineError> {
        let last = self.after(steps, steps.len(), counting);
        let groups = last.batches.iter().map(|batch| batch.members.iter().map(|m| m.elementary).collect());
        let found = search(Stars::new(&self.set.elementary, counting), groups.collect(), pricer)?;
        Ok(found.into_iter().map(|batches| (KeptSet::Searched, batches)).collect())
    }

    /// The set with messages of one grid merged.
    fn merged(&self, pricer: &mut Pricer<'_>) -> Result<Self, CombineError> {
        let mut by_grid: BTreeMap<_, Batch> = BTreeMap::new();
        let mut alone = 0;
        for batch in &self.set.batches {
            let Batch { grid, release, .. } = *batch;
            let by_time = release == crate::plan::message::Release::Periodic;
            alone += u32::from(!by_time);
            let phase = grid.start.0 % grid.period.0;
            let key = (grid.period, phase, grid.window, if by_time { 0 } else { alone });
            let next = match by_grid.remove(&key) {
                Some(same) => joined(same, batch.clone(), 1, &self.set.elementary),
                None => batch.clone(),
            };
            by_grid.insert(key, next);
        }
        let mut batches: Vec<Batch> = by_grid.into_values().collect();
        batches.sort_by_key(Batch::first);
        let costs = batches.iter().map(|batch| pricer.price(&batch.blocks(&self.set.elementary)));
        let costs: Vec<Nanos> = costs.collect::<Result<_, _>>()?;
        if costs.iter().any(|&cost| cost >= TIME_MAX) {
            return Ok(self.clone());
        }
        Ok(Self { set: MessageSet { elementary: self.set.elementary.clone(), batches }, costs })
    }

    /// Cost, period and deadline of every item that is ever made.
    fn items(&self, steps: &[Combining]) -> Vec<RecurrentTask> {
        let task = |(batch, &cost): (&Batch, _)| RecurrentTask::whole(cost, batch.grid.period, batch.grid.window);
        let mut items: Vec<RecurrentTask> = self.set.batches.iter().zip(&self.costs).map(task).collect();
        for step in steps {
            let fast = items[step.fast];
            items.push(RecurrentTask::whole(step.cost, fast.period, fast.deadline));
        }
        items
    }

    fn sums(&self, steps: &[Combining]) -> Vec<Utilisation> {
        let items = self.items(steps);
        let of = |task: &RecurrentTask| Utilisation::of(task.cost, task.period).0;
        let count = self.costs.len();
        let mut sum: u128 = items[..count].iter().map(of).sum();
        let mut sums = vec![Utilisation(sum)];
        for (step, made) in steps.iter().zip(&items[count..]) {
            sum = sum + of(made) - of(&items[step.slow]) - of(&items[step.fast]);
            sums.push(Utilisation(sum));
        }
        sums
    }

    /// The most combinings after which the set passes, of all or, when there are very many, of evenly spaced ones.
    fn last_accepted(&self, steps: &[Combining], accepts: Accepts<'_>) -> Option<usize> {
        let items = self.items(steps);
        let count = self.costs.len();
        let stride = (steps.len() + 1).div_ceil(LIMITS.tests_max);
        let mut alive: Vec<bool> = vec![true; items.len()];
        for step in steps {
            (alive[step.slow], alive[step.fast]) = (false, false);
        }
        for at in (0..=steps.len()).rev() {
            if (steps.len() - at).is_multiple_of(stride) || at == 0 {
                let tasks: Vec<RecurrentTask> =
                    items.iter().zip(&alive).filter(|(_, alive)| **alive).map(|(t, _)| *t).collect();
                if accepts(&tasks) {
                    return Some(at);
                }
            }
            if at > 0 {
                let step = steps[at - 1];
                alive[count + at - 1] = false;
                (alive[step.slow], alive[step.fast]) = (true, true);
            }
        }
        None
    }

    /// The set after the first `count` combinings.
    fn after(&self, steps: &[Combining], count: usize, counting: Counting) -> MessageSet {
        let MessageSet { elementary, batches } = &self.set;
        let mut items: Vec<Option<Batch>> = batches.iter().cloned().map(Some).collect();
        for step in &steps[..count] {
            let taken = items[step.slow].take().zip(items[step.fast].take());
            let (a, b) = taken.expect("a step joins two items that are there");
            let (slow, _, parts) = roles(&a, &b, counting).expect("a step joins what can be joined");
            let (slow, fast) = if slow == &a { (a, b) } else { (b, a) };
            items.push(Some(joined(slow, fast, parts, elementary)));
        }
        let mut batches: Vec<Batch> = items.into_iter().flatten().collect();
        batches.sort_by_key(Batch::first);
        MessageSet { elementary: elementary.clone(), batches }
    }

    fn priced_after(&self, steps: &[Combining], counting: Counting) -> Vec<Priced> {
        let mut costs: BTreeMap<u32, Nanos> = BTreeMap::new();
        let mut firsts: Vec<u32> = self.set.batches.iter().map(Batch::first).collect();
        costs.extend(firsts.iter().copied().zip(self.costs.iter().copied()));
        for step in steps {
            let first = firsts[step.slow].min(firsts[step.fast]);
            firsts.push(first);
            costs.insert(first, step.cost);
        }
        let batches = self.after(steps, steps.len(), counting).batches;
        batches.into_iter().map(|batch| Priced { cost: costs[&batch.first()], batch }).collect()
    }

    /// Per deadline, ascending: how long a batch with a later one may take, so that a job released just after it began still
    /// ends in time.
    fn tolerance(&self) -> Vec<(Nanos, Nanos)> {
        let mut tasks = self.items(&[]);
        tasks.sort_by_key(|task| task.deadline);
        let mut least = Nanos::MAX;
        let of = |task: &RecurrentTask| {
            least = least.min(task.deadline.saturating_sub(task.cost).saturating_add(Nanos(1)));
            (task.deadline, least)
        };
        tasks.iter().map(of).collect()
    }
}

fn tolerance_of(tolerance: &[(Nanos, Nanos)], deadline: Nanos) -> Nanos {
    let shorter = tolerance.partition_point(|(other, _)| *other < deadline);
    shorter.checked_sub(1).map_or(Nanos::MAX, |last| tolerance[last].1)
}
