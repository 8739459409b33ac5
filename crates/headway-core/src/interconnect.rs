//! What the transfers of a node give each other: rates while they run together, completion times of a batch, bounds on
//! them, and the order of the blocks.
//!
//! Rates are weighted max-min fair, found by progressive filling in exact integer arithmetic: the level of every shared
//! capacity rises until one is full, its members are frozen, and the rest share what is left. Where a machine has measured sets,
//! predictions follow these (see `measured_sets`). The authors name their own
//! model only as "accurate" (`verner-2014`, II); this one fits their Figure II.1 and the concurrent sets of the H200.
//!
//! A predicted completion time is *not* a bound: with less data, or with a faster link, another block can end later. Plans
//! use [`Network::wcet`].

mod bounds;
mod completion;
pub mod fit;
mod measured_sets;
#[cfg(test)]
pub(crate) mod tests;
mod trial;

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::files::machine::{CapacityId, CapacityKind, Machine, RouteId};
use crate::models::wide;
use crate::units::{Nanos, PPM, Rate};

use self::measured_sets::MeasuredSets;
pub use bounds::{BatchShape, BoundFormula, Floor, Loads, Total, Wcet};
pub use completion::{BatchBlock, BatchCompletion, Interval};
pub use trial::{Accuracy, Judged, Trial, TrialErrors, validate};

/// Bounds on the searches of this module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundSearchLimits {
    /// Batches of at most this many blocks have all their orders tried.
    pub blocks_exhaustive_max: usize,
    /// Orders tried for larger batches.
    pub orders_max: usize,
}

/// The limits that every search here uses.
pub const LIMITS: BoundSearchLimits = BoundSearchLimits { blocks_exhaustive_max: 6, orders_max: 256 };

/// A transfer that would never move.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Starved {
    /// The share is below one byte per second.
    #[error(
        "route `{route}` gets less than 1 B/s of `{capacity}`; raise the route's weight or the rate of `{capacity}` in \
         the machine file"
    )]
    NoShare {
        /// Route, as `from -> to`.
        route: String,
        /// Name of the capacity that leaves nothing.
        capacity: String,
    },
    /// Nothing limits the route, so its rate is not defined.
    #[error("route `{route}` crosses no link; name its links in the machine file")]
    NoCapacity {
        /// Route, as `from -> to`.
        route: String,
    },
}

/// What one active transfer gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BandwidthShare {
    pub rate: Rate,
    /// The full capacity that keeps it from being faster; the lowest id where several do.
    pub limited_by: CapacityId,
}

/// One capacity crossed by a route.
#[derive(Clone, Copy, Debug)]
struct Crossing {
    capacity: u32,
    /// Bytes of the capacity per million bytes moved.
    use_ppm: u64,
    /// `use_ppm` times the route's weight.
    product: u128,
}

#[derive(Clone, Debug)]
struct CompiledRoute {
    crossings: std::ops::Range<u32>,
    engines: std::ops::Range<u32>,
    weight: u32,
    /// The engine whose queue operations wait in: of a peer copy the source's.
    queue: u32,
    setup: Nanos,
    setup_queued: Nanos,
    submit: Nanos,
}

impl CompiledRoute {
    /// Engine time of an operation with no byte moving, that finds operations of the queues `before` on its engines. One that
    /// waits for another queue starts on an engine that is idle by then.
    fn setup_behind(&self, mut before: impl Iterator<Item = u32>) -> Nanos {
        match before.next() {
            None => self.setup,
            Some(_) if self.engines.len() == 1 => self.setup_queued,
            Some(first) if first == self.queue && before.all(|queue| queue == self.queue) => self.setup_queued,
            Some(_) => self.setup,
        }
    }

    /// The most that an operation pays which does not find all its engines idle.
    fn setup_again(&self) -> Nanos {
        if self.engines.len() == 1 { self.setup_queued } else { self.setup_queued.max(self.setup) }
    }
}

#[derive(Clone, Copy, Debug)]
struct Pipe {
    rate: u64,
    rate_low: u64,
    /// The link of the other direction and the rate of this one while that one carries a transfer.
    opposite: Option<(u32, u64)>,
}

/// The part of a [`Machine`] that moves bytes, in dense arrays.
#[derive(Clone, Debug)]
pub struct Network {
    routes: Vec<CompiledRoute>,
    crossings: Vec<Crossing>,
    engine_ids: Vec<u32>,
    pipes: Vec<Pipe>,
    engines: usize,
    route_names: Vec<String>,
    capacity_names: Vec<String>,
    measured: Option<MeasuredSets>,
}

/// Where one capacity stands while rates are being filled.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    /// Bytes per second not yet given away.
    left: u64,
    /// Members not yet frozen.
    members: u32,
    /// The level is the smallest one of this round.
    full: bool,
    /// Sum of use times weight of the members not yet frozen.
    pull: u128,
}

impl Level {
    /// The level as an exact fraction: bytes per second, times a million, per unit of weight and use in ppm.
    const fn fraction(&self) -> (u128, u128) {
        (self.left as u128 * PPM as u128, self.pull)
    }
}

/// Memory reused from one allocation of rates to the next.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    levels: Vec<Level>,
    touched: Vec<u32>,
    full: Vec<u32>,
    waiting: Vec<u32>,
    shares: Vec<BandwidthShare>,
    measured: measured_sets::Memory,
}

impl Scratch {
    /// An empty one; it grows to what the first calls need.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Network {
    /// Copies what moves bytes out of `machine`. A capacity or engine that a route names twice counts once, with the sum
    /// of the uses.
    #[must_use]
    pub fn new(machine: &Machine) -> Self {
        let pipes = machine.capacities.iter().map(|capacity| {
            let opposite = match &capacity.kind {
                CapacityKind::Link { opposite: Some((id, rate)), .. } => Some((id.0, rate.0.min(capacity.rate.0))),
                CapacityKind::Link { opposite: None, .. } | CapacityKind::Limit => None,
            };
            Pipe { rate: capacity.rate.0, rate_low: capacity.rate_low.0.min(capacity.rate.0), opposite }
        });
        let mut network = Self {
            routes: Vec::with_capacity(machine.routes.len()),
            crossings: Vec::new(),
            engine_ids: Vec::new(),
            pipes: pipes.collect(),
            engines: machine.engines.len(),
            route_names: Vec::with_capacity(machine.routes.len()),
            capacity_names: machine.capacities.iter().map(|c| c.id.clone()).collect(),
            measured: None,
        };
        for route in &machine.routes {
            let mut uses = BTreeMap::new();
            for &(capacity, use_ppm) in &route.uses {
                *uses.entry(capacity.0).or_insert(0u64) += u64::from(use_ppm);
            }
            let mut engines: Vec<u32> = route.engines.iter().map(|e| e.0).collect();
            engines.sort_unstable();
            engines.dedup();
            let first = (network.crossings.len() as u32, network.engine_ids.len() as u32);
            network.crossings.extend(uses.into_iter().filter(|&(_, use_ppm)| use_ppm > 0).map(
                |(capacity, use_ppm)| Crossing {
                    capacity,
                    use_ppm,
                    product: u128::from(use_ppm) * u128::from(route.weight),
                },
            ));
            network.engine_ids.extend(engines);
            network.routes.push(CompiledRoute {
                crossings: first.0..network.crossings.len() as u32,
                engines: first.1..network.engine_ids.len() as u32,
                weight: route.weight,
                queue: route.engines.first().map_or(0, |engine| engine.0),
                setup: route.setup,
                setup_queued: route.setup_queued,
                submit: route.submit,
            });
            let name = |end: crate::files::machine::EndpointId| machine.endpoints.get(end.at()).map_or("?", |e| &e.id);
            network.route_names.push(format!("{} -> {}", name(route.from), name(route.to)));
        }
        network.measured = MeasuredSets::new(machine, &network);
        network
    }

    fn route(&self, route: RouteId) -> &CompiledRoute {
        &self.routes[route.at()]
    }

    /// The engine time of one operation over `route` with no byte moving, at most.
    #[must_use]
    pub fn setup(&self, route: RouteId) -> Nanos {
        let compiled = self.route(route);
        compiled.setup.max(compiled.setup_queued)
    }

    fn crossings(&self, route: RouteId) -> &[Crossing] {
        let range = &self.routes[route.at()].crossings;
        &self.crossings[range.start as usize..range.end as usize]
    }

    fn engines(&self, route: RouteId) -> &[u32] {
        let range = &self.routes[route.at()].engines;
        &self.engine_ids[range.start as usize..range.end as usize]
    }

    fn no_share(&self, route: RouteId, capacity: u32) -> Starved {
        Starved::NoShare {
            route: self.route_names[route.at()].clone(),
            capacity: self.capacity_names[capacity as usize].clone(),
        }
    }

    fn no_capacity(&self, route: RouteId) -> Starved {
        Starved::NoCapacity { route: self.route_names[route.at()].clone() }
    }

    /// The rates of transfers over `active` while all of them move bytes, in the order given, with what limits each.
    ///
    /// Weighted max-min by progressive filling: exact fractions, rates rounded down, what they take from a capacity
    /// rounded up. A link runs at its `rate_both` while its opposite carries one of `active`. Then what measured sets say more.
    /// No allocation once `scratch` has grown; at most one round per transfer.
    ///
    /// # Errors
    /// [`Starved`] for a transfer that would get nothing.
    pub fn allocate<'s>(&self, active: &[RouteId], scratch: &'s mut Scratch) -> Result<&'s [BandwidthShare], Starved> {
        self.fill_levels(active, scratch)?;
        while !scratch.waiting.is_empty() {
            self.freeze_smallest(active, scratch)?;
        }
        if let Some(measured) = &self.measured {
            measured.correct(self, active, &mut scratch.measured, &mut scratch.shares);
        }
        Ok(&scratch.shares)
    }

    /// Like [`Network::allocate`], rates only, into `out`.
    ///
    /// # Errors
    /// [`Starved`] for a transfer that would get nothing; `out` is then empty.
    pub fn rates(&self, active: &[RouteId], scratch: &mut Scratch, out: &mut Vec<Rate>) -> Result<(), Starved> {
        out.clear();
        out.extend(self.allocate(active, scratch)?.iter().map(|share| share.rate));
        Ok(())
    }

    fn fill_levels(&self, active: &[RouteId], scratch: &mut Scratch) -> Result<(), Starved> {
        for at in scratch.touched.drain(..) {
            scratch.levels[at as usize] = Level::default();
        }
        if scratch.levels.len() < self.pipes.len() {
            scratch.levels.resize(self.pipes.len(), Level::default());
        }
        scratch.shares.clear();
        scratch.waiting.clear();
        for (&route, at) in active.iter().zip(0..) {
            let crossings = self.crossings(route);
            let Some(first) = crossings.first() else { return Err(self.no_capacity(route)) };
            scratch.waiting.push(at);
            scratch.shares.push(BandwidthShare { rate: Rate(0), limited_by: CapacityId(first.capacity) });
            for crossing in crossings {
                let level = &mut scratch.levels[crossing.capacity as usize];
                if level.members == 0 {
                    scratch.touched.push(crossing.capacity);
                }
                level.members += 1;
                level.pull += crossing.product;
            }
        }
        for &at in &scratch.touched {
            let pipe = &self.pipes[at as usize];
            scratch.levels[at as usize].left = match pipe.opposite {
                Some((other, rate_both)) if scratch.levels[other as usize].members > 0 => rate_both,
                Some(_) | None => pipe.rate,
            };
        }
        Ok(())
    }

    /// One round of progressive filling: freezes every waiting transfer that crosses a capacity at the smallest level.
    fn freeze_smallest(&self, active: &[RouteId], scratch: &mut Scratch) -> Result<(), Starved> {
        let Scratch { levels, touched, full, waiting, shares, .. } = scratch;
        full.clear();
        let mut smallest = (u128::MAX, 1);
        for &at in touched.iter() {
            let level = &levels[at as usize];
            if level.members == 0 {
                continue;
            }
            let fraction = level.fraction();
            let order = if full.is_empty() { Ordering::Less } else { compare(fraction, smallest) };
            if order == Ordering::Less {
                full.clear();
                smallest = fraction;
            }
            if order != Ordering::Greater {
                full.push(at);
            }
        }
        for &at in full.iter() {
            levels[at as usize].full = true;
        }
        let frozen_before = waiting.len();
        let mut kept = 0;
        for n in 0..waiting.len() {
            let at = waiting[n];
            let route = active[at as usize];
            let crossings = self.crossings(route);
            // Crossings are sorted by capacity, so that the first one found is the lowest id.
            let Some(by) = crossings.iter().find(|c| levels[c.capacity as usize].full) else {
                waiting[kept] = at;
                kept += 1;
                continue;
            };
            let rate = scaled(self.route(route).weight, smallest);
            if rate == 0 {
                return Err(self.no_share(route, by.capacity));
            }
            shares[at as usize] = BandwidthShare { rate: Rate(rate), limited_by: CapacityId(by.capacity) };
            for crossing in crossings {
                let level = &mut levels[crossing.capacity as usize];
                level.left = level.left.saturating_sub(used(crossing.use_ppm, rate));
                level.members -= 1;
                level.pull -= crossing.product;
            }
        }
        waiting.truncate(kept);
        for &at in full.iter() {
            levels[at as usize].full = false;
        }
        assert!(kept < frozen_before, "a round of progressive filling freezes at least one transfer");
        Ok(())
    }
}

/// Compares `a.0 / a.1` with `b.0 / b.1` exactly.
fn compare(a: (u128, u128), b: (u128, u128)) -> Ordering {
    if (a.0 | a.1 | b.0 | b.1) >> 64 == 0 {
        return (a.0 * b.1).cmp(&(b.0 * a.1));
    }
    wide::multiply(a.0, b.1).cmp(&wide::multiply(b.0, a.1))
}

/// `floor(weight * level)`, at most [`u64::MAX`].
fn scaled(weight: u32, level: (u128, u128)) -> u64 {
    if level.1 == 0 {
        return 0; // only members without weight
    }
    let weight = u64::from(weight);
    if let (Ok(numerator), Ok(pull)) = (u64::try_from(level.0), u64::try_from(level.1)) {
        // The common case in 64-bit divisions, which are several times faster than 128-bit ones.
        let (whole, rest) = (numerator / pull, numerator % pull);
        if let (Some(whole), Some(rest)) = (whole.checked_mul(weight), rest.checked_mul(weight)) {
            return whole.saturating_add(rest / pull);
        }
    }
    u64::try_from(u128::from(weight) * level.0 / level.1).unwrap_or(u64::MAX)
}

/// What `rate` takes from a capacity, rounded up, at most [`u64::MAX`].
const fn used(use_ppm: u64, rate: u64) -> u64 {
    if use_ppm == PPM {
        return rate;
    }
    match use_ppm.checked_mul(rate) {
        Some(product) => product.div_ceil(PPM),
        None => {
            let used = (use_ppm as u128 * rate as u128).div_ceil(PPM as u128);
            if used > u64::MAX as u128 { u64::MAX } else { used as u64 }
        }
    }
}

/// Remembers the rates of the sets of transfers seen so far: a simulation meets the same few again and again.
#[derive(Clone, Debug)]
pub struct RateCache {
    network: Network,
    scratch: Scratch,
    known: BTreeMap<Box<[RouteId]>, Box<[BandwidthShare]>>,
    sets_max: usize,
    key: Vec<RouteId>,
    out: Vec<BandwidthShare>,
}

impl RateCache {
    /// A cache in front of `network` that forgets everything when it holds `sets_max` sets.
    #[must_use]
    pub fn new(network: Network, sets_max: usize) -> Self {
        let (key, out) = (Vec::new(), Vec::new());
        Self { network, scratch: Scratch::new(), known: BTreeMap::new(), sets_max: sets_max.max(1), key, out }
    }

    /// What [`Network::allocate`] gives, from the cache where it was asked before.
    ///
    /// # Errors
    /// [`Starved`] for a transfer that would get nothing.
    pub fn shares(&mut self, active: &[RouteId]) -> Result<&[BandwidthShare], Starved> {
        self.key.clear();
        self.key.extend_from_slice(active);
        self.key.sort_unstable();
        if !self.known.contains_key(self.key.as_slice()) {
            let shares: Box<[BandwidthShare]> = self.network.allocate(&self.key, &mut self.scratch)?.into();
            if self.known.len() >= self.sets_max {
                self.known.clear();
            }
            self.known.insert(self.key.as_slice().into(), shares);
        }
        let shares = &self.known[self.key.as_slice()];
        if active == self.key {
            return Ok(shares);
        }
        // Transfers over the same route have the same share, so that any of their places in the sorted key will do.
        self.out.clear();
        self.out.extend(active.iter().map(|route| shares[self.key.partition_point(|other| other < route)]));
        Ok(&self.out)
    }
}
