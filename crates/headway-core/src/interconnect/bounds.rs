//! Upper bounds on the time of a batch that hold for every subset of its blocks, for smaller blocks, and for capacities
//! anywhere at or above their lowest measured rates.
//!
//! All of them contain the rounding of [`Network::allocate`] and [`Network::completion`]: a shared capacity is taken to be
//! a few bytes per second smaller, and every block may lose a nanosecond at its end.

mod domains;
mod floor;
mod shape;

use serde::{Deserialize, Serialize};

use super::completion::{Fifos, floor_rate};
use super::{BatchBlock, CompiledRoute, Crossing, Network, Pipe, Scratch, Starved};
use crate::files::machine::{Calibration, RouteId};
use crate::units::{Bytes, NANOS_PER_SECOND, Nanos, PPM, Rate};

pub use floor::{Floor, Loads};
pub use shape::{BatchShape, Total};

/// Which formula bounds a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BoundFormula {
    /// One block after the other, each at its lowest rate alone: [`Network::serial`].
    Serial,
    /// The busiest engine plus all foreign traffic through what it crosses: [`Network::load`].
    Load,
    /// The longest path through the engines' queues at guaranteed shares: [`Network::share`].
    Share,
    /// The prediction for a derated machine: [`Network::twin`].
    Twin,
}

/// The worst-case time of a batch and what it was chosen from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wcet {
    /// [`Network::serial`].
    pub serial: Nanos,
    /// [`Network::load`]; `None` where it does not apply.
    pub load: Option<Nanos>,
    /// [`Network::share`]; `None` where some block has no guaranteed share.
    pub share: Option<Nanos>,
    /// [`Network::twin`]; `None` where it does not apply, or without calibration.
    pub twin: Option<Nanos>,
    /// What the model predicts, no bound: [`Network::completion`].
    pub prediction: Nanos,
    /// The bound that `value` is made from.
    pub bound_used: BoundFormula,
    /// The worst-case time: the bound and the time of submission, with the calibration's margin and jitter.
    pub value: Nanos,
}

/// What the engines of a set of routes ask of each capacity.
struct Load<'a> {
    network: &'a Network,
    /// Lowest rate of each capacity while these routes are in use.
    low: Vec<u64>,
    /// Per capacity and engine: the largest use, where the engine serves a route that crosses the capacity.
    use_max: Vec<u64>,
    /// Per capacity and engine: the largest use times weight of the routes counted at their first engine.
    pull_first: Vec<u128>,
    /// Per capacity and engine: the largest use times weight of the routes counted at their last engine.
    pull_last: Vec<u128>,
}

impl<'a> Load<'a> {
    fn new(network: &'a Network, routes: impl Iterator<Item = RouteId>) -> Self {
        let cells = network.pipes.len() * network.engines;
        let (use_max, pulls) = (vec![0; cells], vec![0; cells]);
        let mut load = Self { network, low: Vec::new(), use_max, pull_first: pulls.clone(), pull_last: pulls };
        let mut crossed = vec![false; network.pipes.len()];
        for route in routes {
            let engines = network.engines(route);
            for crossing in network.crossings(route) {
                crossed[crossing.capacity as usize] = true;
                let cell = |engine: &u32| crossing.capacity as usize * network.engines + *engine as usize;
                for engine in engines {
                    let largest = &mut load.use_max[cell(engine)];
                    *largest = crossing.use_ppm.max(*largest);
                }
                if let (Some(first), Some(last)) = (engines.first(), engines.last()) {
                    let (first, last) = (cell(first), cell(last));
                    load.pull_first[first] = load.pull_first[first].max(crossing.product);
                    load.pull_last[last] = load.pull_last[last].max(crossing.product);
                }
            }
        }
        let low = network.pipes.iter().map(|pipe| match pipe.opposite {
            Some((other, rate_both)) if crossed[other as usize] => pipe.rate_low.min(rate_both),
            Some(_) | None => pipe.rate_low,
        });
        load.low = low.collect();
        load
    }

    /// The cells of `capacity`, one per engine.
    fn row<'c, T>(&self, cells: &'c [T], capacity: u32) -> &'c [T] {
        &cells[capacity as usize * self.network.engines..][..self.network.engines]
    }

    /// Engines that can have a transfer through `capacity`.
    fn members(&self, capacity: u32) -> u64 {
        self.row(&self.use_max, capacity).iter().filter(|&&u| u > 0).count() as u64
    }

    /// What `capacity` surely carries while it limits somebody: a rate rounded down loses less than 1 B/s of each
    /// member, what it takes is rounded up by less than 1 B/s.
    fn carried(&self, capacity: u32) -> u64 {
        let low = self.low[capacity as usize];
        if self.members(capacity) < 2 {
            return low;
        }
        let uses = self.row(&self.use_max, capacity).iter().filter(|&&u| u > 0);
        low.saturating_sub(uses.map(|u| u.div_ceil(PPM) + 1).sum())
    }

    /// The lowest rate of `route` alone, less the rounding.
    fn alone(&self, route: RouteId) -> Result<Rate, Starved> {
        let rates = self.network.crossings(route).iter().map(|c| {
            let rate = floor_rate(self.carried(c.capacity), c.use_ppm);
            (rate, c.capacity)
        });
        self.positive(route, rates.min())
    }

    /// The rate that `route` keeps whatever the other engines carry.
    fn guaranteed(&self, route: RouteId) -> Result<Rate, Starved> {
        let weight = self.network.route(route).weight;
        let rates = self.network.crossings(route).iter().map(|c| {
            let sum = |pulls: &[u128]| -> u128 { self.row(pulls, c.capacity).iter().sum() };
            // At any time the transfers under way have different engines; counting each at either of its engines bounds
            // their sum.
            let pull = sum(&self.pull_first).min(sum(&self.pull_last)).max(1);
            let level = (u128::from(self.low[c.capacity as usize]) * u128::from(PPM), pull);
            let lost = (self.members(c.capacity).saturating_sub(1) * PPM).div_ceil(c.use_ppm);
            (super::scaled(weight, level).saturating_sub(lost), c.capacity)
        });
        self.positive(route, rates.min())
    }

    fn positive(&self, route: RouteId, rate: Option<(u64, u32)>) -> Result<Rate, Starved> {
        match rate {
            None => Err(self.network.no_capacity(route)),
            Some((0, capacity)) => Err(self.network.no_share(route, capacity)),
            Some((rate, _)) => Ok(Rate(rate)),
        }
    }
}

impl Network {
    /// The rate that a transfer over `route` has whatever is under way on the engines of `in_use`: its share of every
    /// capacity it crosses, at lowest rates, against one transfer of the heaviest kind on each of these engines.
    ///
    /// A link whose opposite one of the routes crosses counts with its `rate_both` at most.
    ///
    /// # Errors
    /// [`Starved`] when that is less than 1 B/s.
    pub fn guaranteed_rate(&self, route: RouteId, in_use: &[RouteId]) -> Result<Rate, Starved> {
        Load::new(self, in_use.iter().copied().chain([route])).guaranteed(route)
    }

    /// The sum of all blocks' setups and times alone at lowest rates. Holds for any structure, order of the queues,
    /// subset and smaller sizes: some capacity is always full.
    ///
    /// # Errors
    /// [`Starved`] when some block would get no rate.
    pub fn serial(&self, blocks: &[BatchBlock]) -> Result<Nanos, Starved> {
        let load = Load::new(self, blocks.iter().map(|b| b.route));
        let mut total = self.setups_first(blocks).into_iter().fold(Nanos::ZERO, Nanos::saturating_add);
        for block in blocks {
            let moving = load.alone(block.route)?.time_for(block.bytes);
            total = total.saturating_add(self.route(block.route).setup_again()).saturating_add(moving);
        }
        Ok(total.saturating_add(rounding(blocks)))
    }

    /// The largest, over the engines, of its own blocks' setups and times alone plus the time that all other blocks take
    /// in the capacities it crosses. `None` when a block holds two engines: an engine could then wait for another.
    ///
    /// # Errors
    /// [`Starved`] when some block would get no rate.
    pub fn load(&self, blocks: &[BatchBlock]) -> Result<Option<Nanos>, Starved> {
        if blocks.iter().any(|b| self.engines(b.route).len() != 1) {
            return Ok(None);
        }
        let load = Load::new(self, blocks.iter().map(|b| b.route));
        let mut own = self.setups_first(blocks);
        // Bytes of each capacity, in millionths, that each engine's blocks use.
        let mut bytes = vec![0u128; self.pipes.len() * self.engines];
        let mut bytes_all = vec![0u128; self.pipes.len()];
        for block in blocks {
            let engine = self.engines(block.route)[0] as usize;
            let time = load.alone(block.route)?.time_for(block.bytes);
            own[engine] = own[engine].saturating_add(self.route(block.route).setup_queued).saturating_add(time);
            for crossing in self.crossings(block.route) {
                let used = u128::from(block.bytes.0) * u128::from(crossing.use_ppm);
                bytes[crossing.capacity as usize * self.engines + engine] += used;
                bytes_all[crossing.capacity as usize] += used;
            }
        }
        let mut worst = Nanos::ZERO;
        for (engine, &own) in own.iter().enumerate() {
            let mut total = own;
            for (capacity, &all) in (0u32..).zip(&bytes_all) {
                if load.row(&load.use_max, capacity)[engine] > 0 {
                    let others = all - bytes[capacity as usize * self.engines + engine];
                    let others = u64::try_from(others.div_ceil(u128::from(PPM))).unwrap_or(u64::MAX);
                    total = total.saturating_add(Rate(load.carried(capacity)).time_for(Bytes(others)));
                }
            }
            worst = worst.max(total);
        }
        Ok(Some(worst.saturating_add(rounding(blocks))))
    }

    /// The longest path through the engines' queues, in the order given, with every block at its guaranteed rate.
    ///
    /// # Errors
    /// [`Starved`] when some block has no guaranteed rate.
    pub fn share(&self, order: &[BatchBlock]) -> Result<Nanos, Starved> {
        let load = Load::new(self, order.iter().map(|b| b.route));
        let first = self.setups_first(order);
        // Ends of the engines with every setup counted as queued, and as the larger of both.
        let mut queued = vec![Nanos::ZERO; self.engines];
        let mut larger = queued.clone();
        for block in order {
            let (compiled, engines) = (self.route(block.route), self.engines(block.route));
            let moving = load.guaranteed(block.route)?.time_for(block.bytes);
            for (ends, setup) in
                [(&mut queued, compiled.setup_again()), (&mut larger, compiled.setup_queued.max(compiled.setup))]
            {
                let start = engines.iter().map(|&e| ends[e as usize]).max().unwrap_or_default();
                let end = start.saturating_add(setup).saturating_add(moving);
                engines.iter().for_each(|&e| ends[e as usize] = end);
            }
        }
        if order.iter().all(|b| self.engines(b.route).len() == 1) {
            // Each engine pays one whole setup at most: that of its first block.
            return Ok(queued.iter().zip(&first).map(|(end, &f)| end.saturating_add(f)).max().unwrap_or_default());
        }
        let all_first = first.into_iter().fold(Nanos::ZERO, Nanos::saturating_add);
        let queued = queued.into_iter().max().unwrap_or_default().saturating_add(all_first);
        Ok(queued.min(larger.into_iter().max().unwrap_or_default()))
    }

    /// The worst-case time of a batch whose blocks are submitted in this order: the time to submit all blocks but the first,
    /// and the least bound that applies, which counts from when all are submitted; with the calibration's margin and
    /// jitter. Without a calibration only `serial` is used, and nothing is added.
    ///
    /// Not guaranteed: anything about traffic that the plan does not know, or about a node outside its calibration.
    ///
    /// # Errors
    /// [`Starved`] when some block would get no rate.
    pub fn wcet(&self, order: &[BatchBlock], calibration: Option<&Calibration>) -> Result<Wcet, Starved> {
        let serial = self.serial(order)?;
        let load = self.load(order)?;
        // A block without a guaranteed share still ends; only this bound does not apply.
        let share = self.share(order).ok();
        let twin = calibration.map(|c| self.twin(order, c.sigma_ppm)).transpose()?.flatten();
        let prediction = self.run(order, &mut Fifos::default(), &mut Scratch::new(), None)?;
        let mut best = (serial, BoundFormula::Serial);
        let submissions = self.submissions(order);
        let Some(calibration) = calibration else {
            let value = serial.saturating_add(submissions);
            return Ok(Wcet { serial, load, share, twin, prediction, bound_used: best.1, value });
        };
        for (value, bound) in [(load, BoundFormula::Load), (share, BoundFormula::Share), (twin, BoundFormula::Twin)] {
            if let Some(value) = value
                && value < best.0
            {
                best = (value, bound);
            }
        }
        let value = calibration.with_margin(best.0.saturating_add(submissions));
        Ok(Wcet { serial, load, share, twin, prediction, bound_used: best.1, value })
    }

    /// The time from the submission of the first block to that of the last.
    #[must_use]
    pub fn submissions(&self, order: &[BatchBlock]) -> Nanos {
        let before_last = &order[..order.len().saturating_sub(1)];
        before_last.iter().fold(Nanos::ZERO, |sum, block| sum.saturating_add(self.route(block.route).submit))
    }

    /// What the first block on each engine can pay beyond what others do, whichever block that is.
    fn setups_first(&self, blocks: &[BatchBlock]) -> Vec<Nanos> {
        let mut first = vec![Nanos::ZERO; self.engines];
        for block in blocks {
            let compiled = self.route(block.route);
            for &engine in self.engines(block.route) {
                let more = compiled.setup.saturating_sub(compiled.setup_again());
                first[engine as usize] = first[engine as usize].max(more);
            }
        }
        first
    }
}

/// Every block but the last can end up to 1 ns after its last byte.
const fn rounding(blocks: &[BatchBlock]) -> Nanos {
    Nanos(blocks.len().saturating_sub(1) as u64)
}

/// One engine of a regular batch: all its blocks are alike.
struct Member {
    engine: u32,
    weight: u32,
    own_low: u64,
    own_fast: u64,
    /// Capacities that other engines cross too, with their uses.
    shared: Vec<(u32, u64)>,
    bytes: u128,
    setup: Nanos,
}

impl Network {
    /// The prediction for a derated machine without setups: own links at their lowest rates, each shared capacity that can
    /// be full at its lowest rate divided by `sigma` once per level of nesting, blocks larger by what their engine could
    /// have moved during the setup. `None` for a batch that is not regular.
    ///
    /// `sigma_ppm` is the largest quotient of fastest and slowest seen in any rate; quotients that the machine file itself
    /// shows (`rate` over `rate_low` or `rate_both`) are added. Regular: each block holds one engine, blocks of an engine
    /// have equal rates, uses and weights, and the members of the shared capacities are nested, with uses in one
    /// proportion, or disjoint.
    ///
    /// # Errors
    /// [`Starved`] when some block would get no rate.
    pub fn twin(&self, blocks: &[BatchBlock], sigma_ppm: u64) -> Result<Option<Nanos>, Starved> {
        if blocks.iter().any(|b| self.engines(b.route).len() != 1) {
            return Ok(None);
        }
        let load = Load::new(self, blocks.iter().map(|b| b.route));
        let sigma_ppm = self.sigma(&load, blocks, sigma_ppm);
        let Some(members) = self.members(&load, blocks, sigma_ppm) else { return Ok(None) };
        let live: Vec<u32> =
            (0..self.pipes.len() as u32).filter(|&l| is_live(&members, l, load.low[l as usize])).collect();
        let Some(depths) = depths(&members, &live) else { return Ok(None) };
        let derated = Self::derated(&members, &live, &depths, &load, sigma_ppm);
        let mut order = Vec::with_capacity(members.len());
        for (at, member) in (0..).zip(&members) {
            let gap = (u128::from(member.setup.0) * u128::from(member.own_fast)).div_ceil(u128::from(NANOS_PER_SECOND));
            let bytes = Bytes(u64::try_from(member.bytes + gap).unwrap_or(u64::MAX));
            order.push(BatchBlock { route: RouteId(at), bytes });
        }
        let finish = derated.run(&order, &mut Fifos::default(), &mut Scratch::new(), None)?;
        Ok(Some(finish.saturating_add(Nanos(blocks.len() as u64))))
    }

    fn sigma(&self, load: &Load<'_>, blocks: &[BatchBlock], sigma_ppm: u64) -> u64 {
        let crossed = blocks.iter().flat_map(|b| self.crossings(b.route)).map(|c| c.capacity as usize);
        let quotients = crossed
            .map(|l| (u128::from(self.pipes[l].rate) * u128::from(PPM)).div_ceil(u128::from(load.low[l].max(1))));
        let largest = quotients.max().unwrap_or(0);
        sigma_ppm.max(PPM).max(u64::try_from(largest).unwrap_or(u64::MAX))
    }

    /// The engines of the batch, in order; `None` when the blocks of one differ or nothing of its own limits it.
    fn members(&self, load: &Load<'_>, blocks: &[BatchBlock], sigma_ppm: u64) -> Option<Vec<Member>> {
        let mut members: Vec<Member> = Vec::new();
        let first = self.setups_first(blocks);
        for block in blocks {
            let (compiled, engine) = (self.route(block.route), self.engines(block.route)[0]);
            let is_own = |c: &&Crossing| load.members(c.capacity) == 1;
            let own = || self.crossings(block.route).iter().filter(is_own);
            let fastest = |low: u64| u128::from(low) * u128::from(sigma_ppm) / u128::from(PPM);
            let own_low = own().map(|c| floor_rate(load.low[c.capacity as usize], c.use_ppm)).min()?;
            let own_fast = own().map(|c| {
                let fast = fastest(load.low[c.capacity as usize]).max(u128::from(self.pipes[c.capacity as usize].rate));
                u64::try_from((fast * u128::from(PPM)).div_ceil(u128::from(c.use_ppm))).unwrap_or(u64::MAX)
            });
            let own_fast = own_fast.min()?;
            let shared = self.crossings(block.route).iter().filter(|c| !is_own(c));
            let shared: Vec<_> = shared.map(|c| (c.capacity, c.use_ppm)).collect();
            let place = members.iter().position(|m| m.engine == engine);
            let at = place.unwrap_or(members.len());
            if place.is_none() {
                let (weight, setup) = (compiled.weight, first[engine as usize]);
                members.push(Member { engine, weight, own_low, own_fast, shared, bytes: 0, setup });
            } else {
                let same = &members[at];
                if (same.weight, same.own_low, same.own_fast) != (compiled.weight, own_low, own_fast)
                    || same.shared != shared
                {
                    return None;
                }
            }
            members[at].bytes += u128::from(block.bytes.0);
            members[at].setup = members[at].setup.saturating_add(compiled.setup_queued);
        }
        Some(members)
    }

    /// One route per member, over its own link and its live limits.
    fn derated(members: &[Member], live: &[u32], depths: &[u32], load: &Load<'_>, sigma_ppm: u64) -> Self {
        let limits = live.iter().zip(depths).map(|(&limit, &depth)| {
            let low = load.low[limit as usize].saturating_sub(2 * load.members(limit));
            let rate = (0..depth).fold(low, |rate, _| floor_rate(rate, sigma_ppm));
            Pipe { rate, rate_low: rate, opposite: None }
        });
        let owns = members.iter().map(|m| m.own_low.saturating_sub(u64::from(!m.shared.is_empty())));
        let owns = owns.map(|rate| Pipe { rate, rate_low: rate, opposite: None });
        let names = live.iter().map(|&l| load.network.capacity_names[l as usize].clone());
        let mut network = Self {
            routes: Vec::new(),
            crossings: Vec::new(),
            engine_ids: (0..members.len() as u32).collect(),
            engines: members.len(),
            route_names: members.iter().map(|m| format!("the blocks of engine {}", m.engine)).collect(),
            capacity_names: names
                .chain(members.iter().map(|m| format!("the own link of engine {}", m.engine)))
                .collect(),
            pipes: limits.chain(owns).collect(),
            measured: None,
        };
        for (at, member) in (0u32..).zip(members) {
            let first = network.crossings.len() as u32;
            let limits = (0u32..).zip(live).filter_map(|(l, limit)| Some((l, use_of(member, *limit)?)));
            for (capacity, use_ppm) in limits.chain([(live.len() as u32 + at, PPM)]) {
                let product = u128::from(use_ppm) * u128::from(member.weight);
                network.crossings.push(Crossing { capacity, use_ppm, product });
            }
            let crossings = first..network.crossings.len() as u32;
            let (engines, weight, none) = (at..at + 1, member.weight, Nanos::ZERO);
            network.routes.push(CompiledRoute {
                crossings,
                engines,
                weight,
                queue: at,
                setup: none,
                setup_queued: none,
                submit: none,
            });
        }
        network
    }
}

fn use_of(member: &Member, capacity: u32) -> Option<u64> {
    member.shared.iter().find(|(l, _)| *l == capacity).map(|&(_, use_ppm)| use_ppm)
}

/// Whether the members' own links together can carry more than `capacity`.
fn is_live(members: &[Member], capacity: u32, low: u64) -> bool {
    let asked = members.iter().filter_map(|m| Some(u128::from(m.own_fast) * u128::from(use_of(m, capacity)?)));
    asked.fold(0u128, u128::saturating_add) > u128::from(low) * u128::from(PPM)
}

/// How many live limits each one contains in a row, itself included; `None` when two overlap otherwise than nested, or
/// with uses in different proportions. Of two with the same members the lower id counts as the inner one.
fn depths(members: &[Member], live: &[u32]) -> Option<Vec<u32>> {
    let users = |l: u32| -> Vec<usize> { (0..members.len()).filter(|&m| use_of(&members[m], l).is_some()).collect() };
    let mut by_size: Vec<usize> = (0..live.len()).collect();
    by_size.sort_by_key(|&n| (users(live[n]).len(), n));
    let mut depths = vec![1; live.len()];
    for (place, &outer) in by_size.iter().enumerate() {
        let outside = users(live[outer]);
        for &inner in &by_size[..place] {
            let inside = users(live[inner]);
            let common = inside.iter().filter(|m| outside.contains(m)).count();
            if common == 0 {
                continue;
            }
            if common < inside.len() || !in_proportion(members, &inside, live[outer], live[inner]) {
                return None;
            }
            depths[outer] = depths[outer].max(depths[inner] + 1);
        }
    }
    Some(depths)
}

fn in_proportion(members: &[Member], inside: &[usize], outer: u32, inner: u32) -> bool {
    let mut uses = inside.iter().filter_map(|&m| Some((use_of(&members[m], outer)?, use_of(&members[m], inner)?)));
    let Some((a, b)) = uses.next() else { return true };
    uses.all(|(c, d)| u128::from(a) * u128::from(d) == u128::from(c) * u128::from(b))
}
