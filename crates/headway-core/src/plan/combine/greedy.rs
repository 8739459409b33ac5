//! Algorithm 1 of `verner-2014`: again and again the pair with the largest gain, found without looking at every pair again.
//!
//! Every pair belongs to the row of one of its two items: of two given ones to the one that uses more, else to the later
//! one. A row knows its best partners at the time of its last scan, and a bound on all others; gains of pairs never change,
//! so that a vanished partner only makes way for the next. A row without one left is scanned when its bound is the largest
//! of all. Scans leave out what cannot pay by the loads of the engines alone.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::item::{Floors, Item};
use super::rules::{combine, parts_max};
use super::{Counting, LIMITS, Pricer};
use crate::files::machine::RouteId;
use crate::interconnect::Starved;
use crate::plan::message::{Batch, MessageSet, Release, SlotGrid};
use crate::units::Nanos;

/// Partners that a scan keeps.
const PARTNERS_MAX: usize = 16;
/// Batches of a group that is combined by itself.
const GROUP: usize = 500;
/// Kinds of grids up to which the parts of all pairs of kinds are worked out once.
const KINDS_MAX: usize = 512;

/// One combining: the items `slow` and `fast` become the next one. The given batches are numbered from 0 in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Combining {
    pub(super) slow: usize,
    pub(super) fast: usize,
    pub(super) cost: Nanos,
}

/// The most that a batch may cost, by its deadline; `None` = anything.
pub(super) type Guard<'g> = Option<&'g dyn Fn(Nanos) -> Nanos>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Partner {
    rank: u128,
    ids: Reverse<(u32, u32)>,
    item: Reverse<u32>,
}

#[derive(Clone, Debug, Default)]
struct Row {
    /// The best last.
    partners: Vec<Partner>,
    /// No pair of the row that is not among them ranks above; `None` = no other pair has a gain.
    rest: Option<u128>,
}

/// What the next thing to look at is: the largest rank, bounds before pairs, then the smallest ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    rank: u128,
    is_bound: bool,
    ids: Reverse<(u32, u32)>,
    row: Reverse<u32>,
}

/// Parts of all pairs of kinds of grids, where there are few.
enum Parts {
    Table { kinds: Vec<u32>, width: usize, parts: Vec<u64> },
    Computed,
}

struct Greedy<'p, 'a> {
    items: Vec<Item>,
    alive: Vec<bool>,
    rows: Vec<Row>,
    /// Given items, by falling use; may hold some that are gone.
    given: Vec<u32>,
    given_count: usize,
    made: Vec<u32>,
    gone: usize,
    used_max: u128,
    excess_max: u128,
    floors: Floors,
    parts: Parts,
    counting: Counting,
    pricer: &'p mut Pricer<'a>,
    heap: BinaryHeap<Key>,
}

/// All combinings of the greedy algorithm, in order.
///
/// Its work grows with the square of the batches. Of more than [`LIMITS`]`.greedy_max` batches, groups are combined by
/// themselves first, then what is left of all of them.
///
/// # Errors
/// [`Starved`] when a batch cannot be priced.
pub(super) fn greedy(
    set: &MessageSet,
    pricer: &mut Pricer<'_>,
    counting: Counting,
    guard: Guard<'_>,
) -> Result<Vec<Combining>, Starved> {
    if set.batches.len() <= LIMITS.greedy_max {
        greedy_of_all(set, pricer, counting, guard)
    } else {
        greedy_in_groups(set, pricer, counting, guard, GROUP)
    }
}

/// [`greedy`] of groups of at most `size` batches, and then of what is left of all.
pub(super) fn greedy_in_groups(
    set: &MessageSet,
    pricer: &mut Pricer<'_>,
    counting: Counting,
    guard: Guard<'_>,
    size: usize,
) -> Result<Vec<Combining>, Starved> {
    let given = set.batches.len();
    let groups = given.div_ceil(size);
    let mut steps: Vec<Combining> = Vec::new();
    let mut items: Vec<Option<Batch>> = set.batches.iter().cloned().map(Some).collect();
    let of_group = |group: usize| (group..given).step_by(groups).collect::<Vec<usize>>();
    for round in 0..=groups {
        let mut numbers = if round < groups {
            of_group(round)
        } else {
            (0..items.len()).filter(|&number| items[number].is_some()).collect()
        };
        let batches = numbers.iter().filter_map(|&number| items[number].clone()).collect();
        let group = MessageSet { elementary: set.elementary.clone(), batches };
        for step in greedy_of_all(&group, pricer, counting, guard)? {
            let step = Combining { slow: numbers[step.slow], fast: numbers[step.fast], ..step };
            numbers.push(items.len());
            let both = items[step.slow].take().zip(items[step.fast].take());
            items.push(both.and_then(|(slow, fast)| combine(&slow, &fast, &set.elementary, counting)));
            steps.push(step);
        }
    }
    Ok(steps)
}

fn greedy_of_all(
    set: &MessageSet,
    pricer: &mut Pricer<'_>,
    counting: Counting,
    guard: Guard<'_>,
) -> Result<Vec<Combining>, Starved> {
    let mut routes: Vec<RouteId> = set.elementary.iter().map(|of| of.route).collect();
    routes.sort_unstable();
    routes.dedup();
    let mut floors = Floors::new(pricer, &routes);
    let items: Result<Vec<Item>, Starved> =
        set.batches.iter().map(|batch| Item::new(batch, &set.elementary, pricer, &mut floors)).collect();
    let items = items?;
    let mut given: Vec<u32> = (0..items.len() as u32).collect();
    given.sort_by_key(|&n| (Reverse(items[n as usize].used), n));
    let mut greedy = Greedy {
        alive: items.iter().map(Item::is_countable).collect(),
        rows: vec![Row::default(); items.len()],
        given,
        given_count: items.len(),
        made: Vec::new(),
        gone: 0,
        used_max: items.iter().map(|item| item.used).max().unwrap_or(0),
        excess_max: items.iter().map(|item| item.excess).max().unwrap_or(0),
        floors,
        parts: Parts::of(&items, counting),
        counting,
        items,
        pricer,
        heap: BinaryHeap::new(),
    };
    greedy.run(guard)
}

impl Parts {
    fn of(items: &[Item], counting: Counting) -> Self {
        let mut numbers: BTreeMap<(SlotGrid, Release), u32> = BTreeMap::new();
        let kind = |item: &Item| {
            // Slots at the same distance, phase and length take the same parts, wherever the first one is.
            let start = Nanos(item.grid.start.0 % item.grid.period.0);
            (SlotGrid { start, ..item.grid }, item.release)
        };
        let mut kinds = Vec::with_capacity(items.len());
        for item in items {
            let next = numbers.len() as u32;
            kinds.push(*numbers.entry(kind(item)).or_insert(next));
        }
        let width = numbers.len();
        if width > KINDS_MAX {
            return Self::Computed;
        }
        let mut parts = vec![0; width * width];
        for (slow, &row) in &numbers {
            for (fast, &column) in &numbers {
                if fast.1 == Release::Periodic && fast.0.period <= slow.0.period {
                    let found = parts_max(&slow.0, slow.1, &fast.0, counting);
                    parts[row as usize * width + column as usize] = found;
                }
            }
        }
        Self::Table { kinds, width, parts }
    }

    /// A combined item is of the kind of its fast side, unless that is sporadic, which it never is.
    fn push(&mut self, fast: usize) {
        if let Self::Table { kinds, .. } = self {
            kinds.push(kinds[fast]);
        }
    }
}

impl Greedy<'_, '_> {
    fn run(&mut self, guard: Guard<'_>) -> Result<Vec<Combining>, Starved> {
        for at in 0..self.given.len() {
            let (row, next) = (self.given[at], self.given.get(at + 1));
            let Some(&next) = next else { break };
            let bound = self.items[row as usize].excess + self.items[next as usize].used;
            self.rows[row as usize].rest = Some(bound);
            self.offer(row as usize);
        }
        let mut steps = Vec::new();
        while let Some(key) = self.heap.pop() {
            let row = key.row.0 as usize;
            if !self.alive[row] {
                continue;
            }
            while self.rows[row].partners.last().is_some_and(|partner| !self.alive[partner.item.0 as usize]) {
                self.rows[row].partners.pop();
            }
            if self.key(row) != Some(key) {
                self.offer(row);
            } else if key.is_bound {
                self.scan(row, guard)?;
                self.offer(row);
            } else if let Some(best) = self.rows[row].partners.pop() {
                steps.push(self.join(row, best.item.0 as usize)?);
            }
        }
        Ok(steps)
    }

    fn key(&self, row: usize) -> Option<Key> {
        let of = &self.rows[row];
        let at = Reverse(row as u32);
        match (of.partners.last(), of.rest) {
            (Some(best), _) => Some(Key { rank: best.rank, is_bound: false, ids: best.ids, row: at }),
            (None, Some(rank)) => Some(Key { rank, is_bound: true, ids: Reverse((0, 0)), row: at }),
            (None, None) => None,
        }
    }

    fn offer(&mut self, row: usize) {
        if let Some(key) = self.key(row) {
            self.heap.push(key);
        }
    }

    /// (slow, fast, parts) of two items; `None` = not combinable.
    fn roles(&self, a: usize, b: usize) -> Option<(usize, usize, u64)> {
        let key = |n: usize| (self.items[n].grid.period, self.items[n].first);
        let (slow, fast) = if key(b) > key(a) { (b, a) } else { (a, b) };
        let parts = self.parts(slow, fast);
        if parts > 0 {
            return Some((slow, fast, parts));
        }
        let parts = if key(a).0 == key(b).0 { self.parts(fast, slow) } else { 0 };
        (parts > 0).then_some((fast, slow, parts))
    }

    fn parts(&self, slow: usize, fast: usize) -> u64 {
        match &self.parts {
            Parts::Table { kinds, width, parts } => parts[kinds[slow] as usize * width + kinds[fast] as usize],
            Parts::Computed => {
                let (slow, fast) = (&self.items[slow], &self.items[fast]);
                if fast.release == Release::Sporadic {
                    return 0;
                }
                parts_max(&slow.grid, slow.release, &fast.grid, self.counting)
            }
        }
    }

    /// Finds the best partners of a row again.
    fn scan(&mut self, row: usize, guard: Guard<'_>) -> Result<(), Starved> {
        let mut found: Vec<Partner> = Vec::with_capacity(PARTNERS_MAX + 1);
        let least = |found: &[Partner]| if found.len() == PARTNERS_MAX { found[PARTNERS_MAX - 1].rank } else { 0 };
        let is_given = row < self.given_count;
        let from = if is_given { self.given.iter().position(|&n| n as usize == row).map_or(0, |at| at + 1) } else { 0 };
        let excess = self.items[row].excess;
        for at in from..self.given.len() {
            let other = self.given[at] as usize;
            if !self.alive[other] {
                continue;
            }
            if excess + self.items[other].used < least(&found) {
                break; // all others use less still
            }
            self.consider(row, other, least(&found), &mut found, guard)?;
        }
        if !is_given {
            for at in 0..self.made.len() {
                let other = self.made[at] as usize;
                if other < row && self.alive[other] {
                    self.consider(row, other, least(&found), &mut found, guard)?;
                }
            }
        }
        let rest = (found.len() == PARTNERS_MAX).then(|| least(&found));
        found.reverse();
        self.rows[row] = Row { partners: found, rest };
        Ok(())
    }

    /// Takes a pair among the best, `found`, if it ranks high enough.
    fn consider(
        &mut self,
        row: usize,
        other: usize,
        least: u128,
        found: &mut Vec<Partner>,
        guard: Guard<'_>,
    ) -> Result<(), Starved> {
        if self.items[other].excess + self.items[row].used < least {
            return Ok(());
        }
        let Some((slow, fast, parts)) = self.roles(row, other) else { return Ok(()) };
        let Some(cost_max) = Item::cost_max(&self.items[slow], &self.items[fast], least) else { return Ok(()) };
        if self.floors.exceed(slow, parts, fast, cost_max) {
            return Ok(());
        }
        let [of_slow, of_fast] = self.items.get_disjoint_mut([slow, fast]).expect("two different items");
        let cost = Item::cost_of_both(of_slow, parts, of_fast, self.pricer)?;
        if u128::from(cost.0) > cost_max || guard.is_some_and(|guard| cost > guard(of_fast.grid.window)) {
            return Ok(());
        }
        let Some(rank) = Item::gain(of_slow, of_fast, cost) else { return Ok(()) };
        let ids = Reverse((of_slow.first.min(of_fast.first), of_slow.first.max(of_fast.first)));
        let partner = Partner { rank, ids, item: Reverse(other as u32) };
        let place = found.partition_point(|better| *better > partner);
        if place < PARTNERS_MAX {
            found.truncate(PARTNERS_MAX - 1);
            found.insert(place, partner);
        }
        Ok(())
    }

    /// Makes one item of two.
    fn join(&mut self, a: usize, b: usize) -> Result<Combining, Starved> {
        let (slow, fast, parts) = self.roles(a, b).expect("the pair was found to be combinable");
        let [of_slow, of_fast] = self.items.get_disjoint_mut([slow, fast]).expect("two different items");
        let cost = Item::cost_of_both(of_slow, parts, of_fast, self.pricer)?;
        let item = Item::both(of_slow, parts, of_fast, cost, self.pricer, &mut self.floors);
        self.parts.push(fast);
        let bound = (item.excess + self.used_max).min(item.used + self.excess_max);
        self.used_max = self.used_max.max(item.used);
        self.excess_max = self.excess_max.max(item.excess);
        for gone in [a, b] {
            self.alive[gone] = false;
            self.rows[gone] = Row::default();
            self.gone += 1;
        }
        let row = self.items.len();
        self.items.push(item);
        self.alive.push(true);
        self.made.push(row as u32);
        self.rows.push(Row { partners: Vec::new(), rest: Some(bound) });
        self.offer(row);
        if self.gone * 4 > self.given.len() + self.made.len() {
            let alive = &self.alive;
            self.given.retain(|&n| alive[n as usize]);
            self.made.retain(|&n| alive[n as usize]);
            self.gone = 0;
        }
        Ok(Combining { slow, fast, cost })
    }
}
