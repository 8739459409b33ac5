//! A batch as the greedy algorithm sees it: what it costs and what it would cost together with others.

use super::cost::{Pricer, SetId};
use crate::files::machine::RouteId;
use crate::interconnect::{Floor, Starved, Total};
use crate::plan::message::{Batch, Elementary, Release, SlotGrid, TIME_MAX, reserve};
use crate::units::{Bytes, Nanos, PPM};

/// Split totals that an item remembers.
const SPLITS_MAX: usize = 16;
/// Fraction bits of ranks.
const RANK_BITS: u32 = 32;

/// What one member moves per slot.
#[derive(Clone, Copy, Debug)]
struct Reserve {
    route: RouteId,
    bytes: Bytes,
    granule: Bytes,
}

#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) grid: SlotGrid,
    pub(super) release: Release,
    pub(super) cost: Nanos,
    /// `ceil(u 2^32)`.
    pub(super) used: u128,
    /// The first elementary message.
    pub(super) first: u32,
    /// By route.
    reserves: Vec<Reserve>,
    set: SetId,
    totals: Vec<Total>,
    splits: Vec<(u64, Vec<Total>)>,
    /// What of `used` is not explained by the loads: no partner gains more than this and its own `used` together.
    pub(super) excess: u128,
}

/// The loads of all items, side by side, and how costs follow from them at least.
#[derive(Debug)]
pub(super) struct Floors {
    floor: Floor,
    width: usize,
    /// Per item and resource.
    setups: Vec<u64>,
    first: Vec<u64>,
    moving: Vec<u64>,
    jitter: u64,
    margin_ppm: u64,
    /// `ceil(2^40 / (1 + margin))`.
    without_margin: u128,
}

impl Floors {
    pub(super) fn new(pricer: &Pricer<'_>, routes: &[RouteId]) -> Self {
        let floor = pricer.network().floor(routes);
        let (margin_ppm, jitter) = pricer.calibration().map_or((0, 0), |c| (c.margin_ppm, c.jitter.0));
        Self {
            width: floor.resources(),
            floor,
            setups: Vec::new(),
            first: Vec::new(),
            moving: Vec::new(),
            jitter,
            margin_ppm,
            without_margin: (u128::from(PPM) << 40).div_ceil(u128::from(PPM) + u128::from(margin_ppm)),
        }
    }

    /// Adds the loads of the next item and returns a cost that its own cannot be below.
    fn push<'t>(&mut self, totals: impl Iterator<Item = (RouteId, &'t Total)>) -> u64 {
        let loads = self.floor.loads(totals);
        let all = loads.setups.iter().zip(&loads.first).zip(&loads.moving);
        let most = all.map(|((&s, &f), &m)| s.saturating_add(f).saturating_add(m)).max().unwrap_or(0);
        self.setups.extend(loads.setups);
        self.first.extend(loads.first);
        self.moving.extend(loads.moving);
        let with_margin = u128::from(most) * (u128::from(PPM) + u128::from(self.margin_ppm)) / u128::from(PPM);
        u64::try_from(with_margin).unwrap_or(u64::MAX).saturating_add(self.jitter)
    }

    /// The largest load with which a batch can cost at most `cost`; `None` = none does.
    fn load_max(&self, cost: u128) -> Option<u64> {
        let rest = cost.min(1 << 60).checked_sub(u128::from(self.jitter))?;
        u64::try_from(((rest * self.without_margin) >> 40) + 1).ok()
    }

    /// Whether `slow` split into `parts` and `fast` together surely cost more than `cost`.
    pub(super) fn exceed(&self, slow: usize, parts: u64, fast: usize, cost: u128) -> bool {
        let Some(most) = self.load_max(cost) else { return true };
        let row = |of: usize| of * self.width..(of + 1) * self.width;
        let [slow, fast] = [row(slow), row(fast)];
        // Rounded down, so that the part is never taken to be longer than it is.
        let share = (1u128 << 64) / u128::from(parts);
        let of_slow = self.setups[slow.clone()].iter().zip(&self.first[slow.clone()]).zip(&self.moving[slow]);
        let of_fast = self.setups[fast.clone()].iter().zip(&self.first[fast.clone()]).zip(&self.moving[fast]);
        of_slow.zip(of_fast).any(|(((s1, f1), m1), ((s2, f2), m2))| {
            let part = ((u128::from(*m1) * share) >> 64) as u64;
            s1 + s2 + f1.max(f2) + part + m2 > most
        })
    }
}

impl Item {
    pub(super) fn new(
        batch: &Batch,
        set: &[Elementary],
        pricer: &mut Pricer<'_>,
        floors: &mut Floors,
    ) -> Result<Self, Starved> {
        let reserve = |member: &crate::plan::message::BatchMember| {
            let of = &set[member.elementary as usize];
            Reserve { route: of.route, bytes: member.reserve, granule: of.granule }
        };
        let mut reserves: Vec<Reserve> = batch.members.iter().map(reserve).collect();
        reserves.sort_by_key(|reserve| reserve.route);
        let (routes, totals) = pricer.totals(&batch.blocks(set));
        let cost = pricer.wcet(routes, &totals)?;
        let parts = (batch.grid, batch.release, batch.first());
        Ok(Self::finished(parts, cost, reserves, (routes, totals), pricer, floors))
    }

    fn finished(
        (grid, release, first): (SlotGrid, Release, u32),
        cost: Nanos,
        reserves: Vec<Reserve>,
        (set, totals): (SetId, Vec<Total>),
        pricer: &Pricer<'_>,
        floors: &mut Floors,
    ) -> Self {
        let least = floors.push(pricer.routes(set).iter().copied().zip(&totals));
        let of = |cost: u64| (u128::from(cost) << RANK_BITS, u128::from(grid.period.0));
        let (used, period) = of(cost.0);
        let used = used.div_ceil(period);
        let excess = (used + 1).saturating_sub(of(least).0 / period);
        Self { grid, release, cost, used, first, reserves, set, totals, splits: Vec::new(), excess }
    }

    /// What each route moves per slot when this item is split.
    fn split(&mut self, parts: u64) -> (SetId, &[Total]) {
        if parts == 1 {
            return (self.set, &self.totals);
        }
        let at = self.splits.iter().position(|(known, _)| *known == parts).unwrap_or_else(|| {
            if self.splits.len() >= SPLITS_MAX {
                self.splits.clear();
            }
            let mut totals: Vec<Total> = Vec::with_capacity(self.totals.len());
            let mut last = None;
            for of in &self.reserves {
                if last != Some(of.route) {
                    totals.push(Total::default());
                    last = Some(of.route);
                }
                if let Some(total) = totals.last_mut() {
                    total.bytes = total.bytes.saturating_add(reserve(of.bytes, parts, of.granule).0);
                    total.blocks += 1;
                }
            }
            self.splits.push((parts, totals));
            self.splits.len() - 1
        });
        (self.set, &self.splits[at].1)
    }

    /// The worst-case time of `slow` split into `parts` and `fast` together.
    pub(super) fn cost_of_both(
        slow: &mut Self,
        parts: u64,
        fast: &Self,
        pricer: &mut Pricer<'_>,
    ) -> Result<Nanos, Starved> {
        pricer.wcet_of_both(slow.split(parts), (fast.set, &fast.totals))
    }

    /// `slow` split into `parts` and `fast` as one.
    pub(super) fn both(
        slow: &mut Self,
        parts: u64,
        fast: &Self,
        cost: Nanos,
        pricer: &mut Pricer<'_>,
        floors: &mut Floors,
    ) -> Self {
        let grid = super::rules::joined_grid(&slow.grid, &fast.grid);
        let first = slow.first.min(fast.first);
        let totals = pricer.merge(slow.split(parts), (fast.set, &fast.totals));
        let split = slow.reserves.iter().map(|r| Reserve { bytes: reserve(r.bytes, parts, r.granule), ..*r });
        let mut reserves: Vec<Reserve> = split.chain(fast.reserves.iter().copied()).collect();
        reserves.sort_by_key(|reserve| reserve.route);
        Self::finished((grid, Release::Periodic, first), cost, reserves, totals, pricer, floors)
    }

    /// The most that a batch of both may cost so that its gain can reach `rank`.
    pub(super) fn cost_max(slow: &Self, fast: &Self, rank: u128) -> Option<u128> {
        let budget = (slow.used + fast.used).checked_sub(rank)?;
        Some((budget * u128::from(fast.grid.period.0)) >> RANK_BITS)
    }

    /// `floor(gain 2^32)` of combining both at this cost, if it is above zero.
    pub(super) fn gain(slow: &Self, fast: &Self, cost: Nanos) -> Option<u128> {
        super::gain((slow.cost, slow.grid.period), (fast.cost, fast.grid.period), cost)
    }

    pub(super) fn is_countable(&self) -> bool {
        self.cost < TIME_MAX
    }
}
