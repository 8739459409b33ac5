//! Sets of messages combined with one of them directly: no chain of combinings splits finer.
//!
//! Along a chain the counts multiply, `floor(p1 / p2) floor(p2 / p3) <= floor(p1 / p3)` and so on, so that a partition of
//! the messages into stars, each over the slots of its fastest member, holds an optimum.

use std::collections::BTreeMap;

use super::rules::{direct, joined_grid};
use super::{Counting, Priced, Pricer, Utilisation};
use crate::interconnect::Starved;
use crate::plan::message::{Batch, Elementary, Release, SlotGrid, TIME_MAX};
use crate::units::Nanos;

/// Stars whose prices are remembered.
const REMEMBERED_MAX: usize = 1 << 16;

/// Messages that share the slots of one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Star {
    /// Positions of messages, ascending.
    pub(super) members: Vec<u32>,
    base: u32,
    pub(super) cost: Nanos,
    pub(super) used: Utilisation,
}

/// Prices stars of one elementary set.
pub(super) struct Stars<'s> {
    set: &'s [Elementary],
    counting: Counting,
    known: BTreeMap<Box<[u32]>, Option<Star>>,
    /// Members of all stars priced.
    pub(super) work: u64,
}

impl<'s> Stars<'s> {
    pub(super) const fn new(set: &'s [Elementary], counting: Counting) -> Self {
        Self { set, counting, known: BTreeMap::new(), work: 0 }
    }

    pub(super) const fn count(&self) -> usize {
        self.set.len()
    }

    /// The star of these messages, ascending, over the member that makes it cheapest; `None` if no member's slots fit all.
    pub(super) fn star(&mut self, members: &[u32], pricer: &mut Pricer<'_>) -> Result<Option<Star>, Starved> {
        if let Some(known) = self.known.get(members) {
            return Ok(known.clone());
        }
        self.work += members.len() as u64;
        let mut best: Option<Star> = None;
        for base in self.bases(members) {
            let Some(batch) = self.batch_over(members, base) else { continue };
            let cost = pricer.price(&batch.blocks(self.set))?;
            if cost < TIME_MAX && best.as_ref().is_none_or(|best| cost < best.cost) {
                let used = Utilisation::of(cost, batch.grid.period);
                best = Some(Star { members: members.to_vec(), base, cost, used });
            }
        }
        if self.known.len() >= REMEMBERED_MAX {
            self.known.clear();
        }
        self.known.insert(members.into(), best.clone());
        Ok(best)
    }

    /// Members over whose slots the others could be split: one for every grid with the shortest period.
    fn bases(&self, members: &[u32]) -> Vec<u32> {
        let of = |&n: &u32| &self.set[n as usize];
        if members.len() == 1 {
            return members.to_vec();
        }
        let shortest = members.iter().map(|n| of(n).period).min().unwrap_or_default();
        let grid = |n: &u32| SlotGrid { start: Nanos(of(n).start.0 % shortest.0), ..of(n).grid() };
        let mut bases: Vec<u32> = Vec::new();
        for n in members {
            let fits = of(n).period == shortest && of(n).release == Release::Periodic;
            if fits && !bases.iter().any(|other| grid(other) == grid(n)) {
                bases.push(*n);
            }
        }
        bases
    }

    /// All messages that can be split over the slots of `base`, itself included, ascending.
    pub(super) fn joinable(&self, base: u32) -> Vec<u32> {
        let of = &self.set[base as usize];
        let fits = |n: &u32| {
            let other = &self.set[*n as usize];
            let slower = other.period >= of.period && of.release == Release::Periodic;
            *n == base || (slower && direct(*n, other, of.grid(), self.counting).is_some())
        };
        (0..self.set.len() as u32).filter(fits).collect()
    }

    fn batch_over(&self, members: &[u32], base: u32) -> Option<Batch> {
        if let [one] = members {
            return Some(Batch::single(*one, &self.set[*one as usize]));
        }
        let starts = members.iter().map(|&n| self.set[n as usize].start);
        let own = self.set[base as usize].grid();
        let grid = joined_grid(&SlotGrid { start: starts.min().unwrap_or_default(), ..own }, &own);
        let member = |&n: &u32| direct(n, &self.set[n as usize], grid, self.counting);
        let members = members.iter().map(member).collect::<Option<Vec<_>>>()?;
        Some(Batch { grid, members, release: Release::Periodic })
    }

    /// The batches of a partition, by their first message.
    pub(super) fn priced(&self, stars: &[Star]) -> Vec<Priced> {
        let batch = |star: &Star| {
            let batch = self.batch_over(&star.members, star.base).expect("a priced star has a batch");
            Priced { batch, cost: star.cost }
        };
        let mut batches: Vec<Priced> = stars.iter().map(batch).collect();
        batches.sort_by_key(|priced| priced.batch.first());
        batches
    }
}
