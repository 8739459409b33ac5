//! The demand of a set of tasks, and walks over it that skip what cannot fail.

use std::cmp::Reverse;

use super::exact::{SHIFT, Utilisation, gcd};
use super::{LIMITS, RecurrentTask, UndecidedReason};

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
    deadline: u64,
    period: u64,
    cost: u64,
}

/// The demand bound function `dbf`.
#[derive(Clone, Debug)]
pub(super) struct Demand {
    /// By deadline, so that a sum can stop at the first one that is too late.
    items: Vec<Item>,
}

impl Demand {
    pub(super) fn new(tasks: &[RecurrentTask]) -> Self {
        let asking = tasks.iter().filter(|t| t.cost.0 > 0 && !t.is_bulk());
        let item = |t: &RecurrentTask| Item { deadline: t.deadline.0, period: t.period.0, cost: t.cost.0 };
        let mut items: Vec<_> = asking.map(item).collect();
        items.sort_by_key(|i| i.deadline);
        Self { items }
    }

    /// Shorter intervals have no demand; `None` = no interval has.
    pub(super) fn first_deadline(&self) -> Option<u64> {
        self.items.first().map(|i| i.deadline)
    }

    fn last_deadline(&self) -> u64 {
        self.items.last().map_or(0, |i| i.deadline)
    }

    /// Cost of all jobs with release and deadline inside an interval of length `t`.
    fn at(&self, t: u64) -> u128 {
        let mut sum = 0;
        for item in &self.items {
            let Some(jobs) = jobs(item.deadline, item.period, t) else { break };
            sum += u128::from(jobs) * u128::from(item.cost);
        }
        sum
    }

    fn pay(&self, budget: &mut u64) -> Result<(), UndecidedReason> {
        let cost = self.items.len() as u64;
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
    for item in &demand.items {
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
    let busy = busy_period(demand, segments, by_slope, budget)?;
    Ok(busy.unwrap_or(by_slope))
}

/// The longest time without idling, if it is below `limit` and found in a few rounds.
pub(super) fn busy_period(
    demand: &Demand,
    segments: &[Segment],
    limit: u64,
    budget: &mut u64,
) -> Result<Option<u64>, UndecidedReason> {
    const ROUNDS_MAX: u32 = 128;
    let blocking = segments.iter().map(|s| s.blocking).max().unwrap_or(0);
    let mut length = blocking + demand.items.iter().map(|i| u128::from(i.cost)).sum::<u128>();
    for _ in 0..ROUNDS_MAX {
        if length >= u128::from(limit) {
            return Ok(None);
        }
        demand.pay(budget)?;
        let cost = |i: &Item| length.div_ceil(u128::from(i.period)) * u128::from(i.cost);
        let next = blocking + demand.items.iter().map(cost).sum::<u128>();
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
    for item in &demand.items {
        let factor = item.period / gcd(common, item.period);
        common = common.checked_mul(factor).filter(|&c| c <= max.0).ok_or(UndecidedReason::Hyperperiod { max })?;
    }
    Ok(common)
}
