//! The demand of a set of tasks, and walks over it that skip what cannot fail.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::exact::{SHIFT, Utilisation, gcd};
use super::{LIMITS, PhasedStream, RecurrentTask, UndecidedReason};

/// Jobs with release and deadline inside an interval of length `t`; `None` for none.
pub(super) const fn jobs(deadline: u64, period: u64, t: u64) -> Option<u64> {
    match t.checked_sub(deadline) {
        None => None,
        Some(rest) if rest < period => Some(1),
        Some(rest) => Some((rest / period).saturating_add(1)),
    }
}

/// One task as its demand sees it.
#[derive(Clone, Copy, Debug)]
struct Item {
    task: usize,
    deadline: u64,
    period: u64,
    cost: u64,
}

impl Item {
    fn in_interval(&self, t: u64) -> u64 {
        jobs(self.deadline, self.period, t).unwrap_or(0)
    }
}

/// The steps of a stream, whose releases are fixed times apart.
#[derive(Clone, Debug)]
struct Phased {
    /// With the time of a release, any of them.
    steps: Vec<(u64, Item)>,
}

impl Phased {
    /// The steps with their jobs inside an interval of length `t` that begins with a release of step `first`.
    fn jobs_from(&self, first: usize, t: u64) -> impl Iterator<Item = (&Item, u64)> {
        let from = self.steps[first].0;
        self.steps.iter().map(move |(offset, item)| {
            let after = u128::from(*offset) + u128::from(item.period) - u128::from(from % item.period);
            let after = (after % u128::from(item.period)) as u64;
            (item, t.checked_sub(after).map_or(0, |rest| item.in_interval(rest)))
        })
    }

    /// For each step, the cost of all jobs inside an interval of length `t` that begins with a release of it.
    ///
    /// With a later beginning a step's next release comes sooner, until the beginning passes that release. So the number of its jobs, as a
    /// function of the beginning, goes up by one at one place of the period and down by one at another.
    fn costs(&self, t: u64) -> Vec<u128> {
        let mut counts: BTreeMap<u64, JobCosts> = BTreeMap::new();
        for (release, item) in self.steps.iter().filter(|(_, item)| item.deadline <= t) {
            let of_period = counts.entry(item.period).or_default();
            let (period, cost) = (u128::from(item.period), u128::from(item.cost));
            let phase = u128::from(*release) % period;
            let span = u128::from(t - item.deadline) + period - phase;
            of_period.at_zero += span / period * cost;
            of_period.up.push((period - span % period, cost));
            of_period.down.push((phase + 1, cost));
        }
        for of_period in counts.values_mut() {
            accumulate(&mut of_period.up);
            accumulate(&mut of_period.down);
        }
        let cost = |begin: u64| -> u128 {
            let of_period = |(period, costs): (&u64, &JobCosts)| costs.from(u128::from(begin % period));
            counts.iter().map(of_period).sum()
        };
        self.steps.iter().map(|(release, _)| cost(*release)).collect()
    }

    /// The first step of the interval of length `t` that asks for most: no interval that begins otherwise asks for more.
    fn worst_first(&self, t: u64) -> usize {
        let costs = self.costs(t);
        (0..costs.len()).max_by_key(|&first| costs[first]).unwrap_or(0)
    }
}

/// The cost of the jobs of steps of one period, by the place in the period at which an interval begins.
#[derive(Default)]
struct JobCosts {
    at_zero: u128,
    /// Where it goes up, with the sum of how much it has gone up until there.
    up: Vec<(u128, u128)>,
    down: Vec<(u128, u128)>,
}

impl JobCosts {
    fn from(&self, begin: u128) -> u128 {
        let until = |changes: &[(u128, u128)]| {
            let passed = changes.partition_point(|(place, _)| *place <= begin);
            passed.checked_sub(1).map_or(0, |last| changes[last].1)
        };
        self.at_zero + until(&self.up) - until(&self.down)
    }
}

/// Sorts changes by place, and makes each the sum of all until there.
fn accumulate(changes: &mut [(u128, u128)]) {
    changes.sort_unstable();
    let mut sum = 0;
    for (_, change) in changes {
        sum += *change;
        *change = sum;
    }
}

/// The demand bound function `dbf`.
#[derive(Clone, Debug)]
pub(super) struct Demand {
    /// By deadline, so that a sum can stop at the first one that is too late.
    items: Vec<Item>,
    streams: Vec<Phased>,
}

impl Demand {
    /// Of tasks that release jobs at any time, but for the steps of `streams`.
    pub(super) fn new(tasks: &[RecurrentTask], streams: &[PhasedStream]) -> Self {
        let asks = |t: &RecurrentTask| t.cost.0 > 0 && !t.is_bulk();
        let item =
            |task: usize, t: &RecurrentTask| Item { task, deadline: t.deadline.0, period: t.period.0, cost: t.cost.0 };
        let mut alone = vec![true; tasks.len()];
        let mut phased = Vec::new();
        for stream in streams {
            let steps = stream.steps.iter().filter(|step| asks(&tasks[step.task]));
            stream.steps.iter().for_each(|step| alone[step.task] = false);
            phased.push(Phased { steps: steps.map(|s| (s.release.0, item(s.task, &tasks[s.task]))).collect() });
        }
        let asking = tasks.iter().enumerate().filter(|(at, task)| alone[*at] && asks(task));
        let mut items: Vec<_> = asking.map(|(at, task)| item(at, task)).collect();
        items.sort_by_key(|i| i.deadline);
        Self { items, streams: phased }
    }

    fn all(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().chain(self.streams.iter().flat_map(|stream| stream.steps.iter().map(|(_, item)| item)))
    }

    /// Shorter intervals have no demand; `None` = no interval has.
    pub(super) fn first_deadline(&self) -> Option<u64> {
        self.all().map(|i| i.deadline).min()
    }

    /// Every step of longer intervals asks for a job, whichever release they begin with.
    fn last_deadline(&self) -> u64 {
        let of_steps = self.streams.iter().flat_map(|stream| &stream.steps);
        let of_steps = of_steps.map(|(_, item)| item.deadline.saturating_add(item.period));
        of_steps.chain(self.items.last().map(|i| i.deadline)).max().unwrap_or(0)
    }

    /// Cost of all jobs with release and deadline inside an interval of length `t`.
    pub(super) fn at(&self, t: u64) -> u128 {
        let mut sum = 0;
        for item in &self.items {
            let Some(jobs) = jobs(item.deadline, item.period, t) else { break };
            sum += u128::from(jobs) * u128::from(item.cost);
        }
        for stream in &self.streams {
            sum += stream.costs(t).into_iter().max().unwrap_or(0);
        }
        sum
    }

    /// Tasks with their jobs in an interval of length `t`, by position: what [`Self::at`] counts.
    pub(super) fn jobs_at(&self, t: u64) -> BTreeMap<usize, u64> {
        let alone = self.items.iter().map(|item| (item, item.in_interval(t)));
        let phased = self.streams.iter().filter(|stream| !stream.steps.is_empty());
        let all = alone.chain(phased.flat_map(|stream| stream.jobs_from(stream.worst_first(t), t)));
        all.filter(|(_, jobs)| *jobs > 0).map(|(item, jobs)| (item.task, jobs)).collect()
    }

    fn pay(&self, budget: &mut u64) -> Result<(), UndecidedReason> {
        let steps = self.streams.iter().map(|stream| stream.steps.len());
        let cost = (self.items.len() + steps.sum::<usize>()) as u64;
        *budget = budget.checked_sub(cost).ok_or(UndecidedReason::Steps { max: LIMITS.steps_max })?;
        Ok(())
    }

    /// The largest `t` from `low` to `high` with `dbf(t) + blocking > t`.
    ///
    /// QPA (Zhang, Burns 2009): where the sum g is below t, everything from g to t passes too, since g does not fall.
    pub(super) fn last_violation(
        &self,
        low: u64,
        high: u64,
        blocking: u128,
        budget: &mut u64,
    ) -> Result<Option<u64>, UndecidedReason> {
        let mut t = high;
        while t >= low {
            self.pay(budget)?;
            let sum = self.at(t) + blocking;
            let Ok(sum) = u64::try_from(sum) else { return Ok(Some(t)) };
            if sum > t {
                return Ok(Some(t));
            }
            match if sum < t { Some(sum) } else { t.checked_sub(1) } {
                Some(next) => t = next,
                None => break,
            }
        }
        Ok(None)
    }

    /// The least violation from `low` to `known`, which is one. If that takes too many steps, some violation.
    pub(super) fn first_violation(&self, low: u64, known: u64, blocking: u128) -> u64 {
        let mut budget = LIMITS.steps_max;
        // "There is a violation at or below x" is monotone in x.
        let (mut from, mut least) = (low, known);
        while from < least {
            let middle = from + (least - from) / 2;
            match self.last_violation(low, middle, blocking, &mut budget) {
                Ok(Some(t)) => least = t,
                Ok(None) => from = middle + 1,
                Err(_) => break,
            }
        }
        least
    }
}

/// A stretch of interval lengths with the same blocking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) from: u64,
    /// The last instant of it.
    pub(super) to: u64,
    pub(super) blocking: u128,
}

/// The stretches from 0 on, in ascending order; the last one has no blocking or, with a bulk flow, the least.
pub(super) fn segments(tasks: &[RecurrentTask], in_flight: u32) -> Vec<Segment> {
    let longest = tasks.iter().map(|t| t.chunk.0).max().unwrap_or(0);
    let ahead = u128::from(in_flight - 1) * u128::from(longest);
    let mut blockers: Vec<_> = tasks.iter().filter(|t| t.chunk.0 > 0).map(|t| (t.deadline.0, t.chunk.0)).collect();
    // From the latest deadline down, each longer chunk than all before raises the blocking below its deadline.
    blockers.sort_by_key(|&(deadline, chunk)| (Reverse(deadline), Reverse(chunk)));
    let mut segments = Vec::new();
    let (mut to, mut blocking, mut longest_later) = (u64::MAX, 0u128, 0);
    for (deadline, chunk) in blockers {
        let Some(below) = deadline.checked_sub(1) else { break };
        if chunk <= longest_later {
            continue;
        }
        // Nothing has a deadline beyond that of a bulk flow; of two with one deadline the longer came first.
        if deadline <= to && deadline < u64::MAX {
            segments.push(Segment { from: deadline, to, blocking });
        }
        to = below;
        longest_later = chunk;
        blocking = ahead + u128::from(chunk - 1);
    }
    segments.push(Segment { from: 0, to, blocking });
    segments.reverse();
    segments
}

/// An interval length beyond which nothing new can fail.
pub(super) fn horizon(
    demand: &Demand,
    segments: &[Segment],
    utilisation: &Utilisation,
    budget: &mut u64,
) -> Result<u64, UndecidedReason> {
    let last = demand.last_deadline();
    // Beyond all deadlines dbf(t) <= U t + sum of (T - D) U, and only bulk flows block.
    let bulk = segments.last().map_or(0, |s| s.blocking);
    let (mut above, mut below) = (bulk, 0u128);
    for item in demand.all() {
        let cost = u128::from(item.cost);
        let (period, deadline) = (u128::from(item.period), u128::from(item.deadline));
        if period > deadline {
            above += ((period - deadline) * cost).div_ceil(period);
        } else {
            below += (deadline - period) * cost / period;
        }
    }
    let Some(excess) = above.checked_sub(below).filter(|&excess| excess > 0) else { return Ok(last) };
    if utilisation.is_one() {
        return hyperperiod(demand).map(|h| last.saturating_add(h));
    }
    // Rounded outwards; a utilisation within the rounding of 1 leaves only the busy period.
    let free = (1u128 << SHIFT).saturating_sub(utilisation.high);
    let by_slope = match excess.checked_mul(1 << SHIFT) {
        Some(scaled) if free > 0 => u64::try_from(scaled.div_ceil(free)).unwrap_or(u64::MAX),
        Some(_) | None => u64::MAX,
    };
    let by_slope = by_slope.max(last);
    let busy = busy_period(demand, segments, 0, by_slope, budget)?;
    Ok(busy.unwrap_or(by_slope))
}

/// The longest time without idling, if it is below `limit` and found in a few rounds; jobs may be nearer to each other than periods by
/// `jitter`.
pub(super) fn busy_period(
    demand: &Demand,
    segments: &[Segment],
    jitter: u64,
    limit: u64,
    budget: &mut u64,
) -> Result<Option<u64>, UndecidedReason> {
    const ROUNDS_MAX: u32 = 128;
    let blocking = segments.iter().map(|s| s.blocking).max().unwrap_or(0);
    let mut length = blocking + demand.all().map(|i| u128::from(i.cost)).sum::<u128>();
    for _ in 0..ROUNDS_MAX {
        if length >= u128::from(limit) {
            return Ok(None);
        }
        demand.pay(budget)?;
        let cost = |i: &Item| (length + u128::from(jitter)).div_ceil(u128::from(i.period)) * u128::from(i.cost);
        let next = blocking + demand.all().map(cost).sum::<u128>();
        if next == length {
            return Ok(u64::try_from(length).ok());
        }
        length = next;
    }
    Ok(None)
}

fn hyperperiod(demand: &Demand) -> Result<u64, UndecidedReason> {
    let max = LIMITS.hyperperiod_max;
    let mut common = 1u64;
    for item in demand.all() {
        let factor = item.period / gcd(common, item.period);
        common = common.checked_mul(factor).filter(|&c| c <= max.0).ok_or(UndecidedReason::Hyperperiod { max })?;
    }
    Ok(common)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn steps() -> impl Strategy<Value = Vec<(u64, Item)>> {
        let periods = prop_oneof![Just(7u64), Just(12), 1u64..30];
        let step = (0u64..80, 0u64..70, periods, 0u64..9);
        let step =
            step.prop_map(|(release, deadline, period, cost)| (release, Item { task: 0, deadline, period, cost }));
        prop::collection::vec(step, 1..8)
    }

    proptest! {
        #[test]
        fn the_costs_of_all_beginnings_are_those_of_each(steps in steps(), t in 0u64..200) {
            let stream = Phased { steps };
            let each = |first| stream.jobs_from(first, t).map(|(item, jobs)| u128::from(jobs * item.cost)).sum::<u128>();
            let each: Vec<u128> = (0..stream.steps.len()).map(each).collect();
            prop_assert_eq!(stream.costs(t), each);
        }
    }
}
