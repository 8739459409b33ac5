//! Worst-case times of many batches over the same routes: everything that only the routes decide is worked out once, so that
//! a batch costs as much to price as it has routes, however many blocks it has.

use super::{Fifos, Load, Member, depths, is_live};
use crate::files::machine::{Calibration, RouteId};
use crate::interconnect::{BatchBlock, Network, Scratch, Starved};
use crate::units::{Bytes, NANOS_PER_SECOND, Nanos, PPM, Rate};

/// Twins of at most this many engines remember the rates of every set of active ones.
const MEMBERS_REMEMBERED_MAX: usize = 10;

/// What a batch moves over one route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// Bytes of all blocks.
    pub bytes: u64,
    pub blocks: u64,
}

/// What copies over one route take, and which capacities they share.
#[derive(Clone, Debug)]
struct RouteCost {
    /// First and last of its engines, as positions in `BatchShape::first`.
    engines: [usize; 2],
    setup_queued: Nanos,
    setup_larger: Nanos,
    submit: Nanos,
    /// The lowest rate alone, less the rounding.
    alone: Rate,
    /// No bound takes it to be faster.
    fastest: Rate,
    guaranteed: Option<Rate>,
    /// Shared capacities and uses, by position in `BatchShape::shared`.
    uses: Vec<(usize, u64)>,
    /// Position among the twin's members.
    member: usize,
}

/// A set of routes, prepared for pricing batches over all of them.
#[derive(Clone, Debug)]
pub struct BatchShape {
    route_costs: Vec<RouteCost>,
    /// Per engine: what its first block can pay beyond `setup_queued`.
    first: Vec<Nanos>,
    is_single: bool,
    /// Capacities that several engines cross: what each surely carries while it is full.
    shared: Vec<Rate>,
    /// Per engine: which of them its routes cross.
    crossed: Vec<Vec<usize>>,
    calibration: Option<(u64, Nanos)>,
    twin: Option<Twin>,
    busy: Vec<Nanos>,
    larger: Vec<Nanos>,
    used: Vec<u128>,
    used_all: Vec<u128>,
}

#[derive(Clone, Debug)]
struct Twin {
    derated: Network,
    /// Per member: its engine and own fastest rate.
    members: Vec<(usize, u64)>,
    rates: Vec<Option<Box<[u64]>>>,
    left: Vec<u128>,
}

impl Network {
    /// Prepares the pricing of batches that move something over each of `routes`, which are ascending and distinct.
    ///
    /// # Errors
    /// [`Starved`] when one of them would get no rate.
    pub fn shape(&self, routes: &[RouteId], calibration: Option<&Calibration>) -> Result<BatchShape, Starved> {
        let load = Load::new(self, routes.iter().copied());
        let blocks: Vec<BatchBlock> = routes.iter().map(|&route| BatchBlock { route, bytes: Bytes(1) }).collect();
        let mut engines: Vec<u32> = routes.iter().flat_map(|&r| self.engines(r)).copied().collect();
        engines.sort_unstable();
        engines.dedup();
        let all_first = self.setups_first(&blocks);
        let first = engines.iter().map(|&engine| all_first[engine as usize]).collect();
        let members: Vec<u64> = (0..self.pipes.len() as u32).map(|capacity| load.members(capacity)).collect();
        let shared: Vec<u32> = (0..self.pipes.len() as u32).filter(|&l| members[l as usize] > 1).collect();
        let crossed = engines.iter().map(|&engine| {
            let crosses = |l: u32| load.row(&load.use_max, l)[engine as usize] > 0;
            (0..shared.len()).filter(|&at| crosses(shared[at])).collect()
        });
        let is_single = routes.iter().all(|&r| self.engines(r).len() == 1);
        let twin = match calibration {
            Some(calibration) if is_single => self.prepared_twin(&load, &blocks, &engines, calibration.sigma_ppm),
            _ => None,
        };
        let route_cost = |&route: &RouteId| self.route_cost(&load, route, &engines, &shared, twin.as_ref());
        Ok(BatchShape {
            route_costs: routes.iter().map(route_cost).collect::<Result<_, _>>()?,
            first,
            is_single,
            shared: shared.iter().map(|&l| Rate(load.carried(l))).collect(),
            crossed: crossed.collect(),
            calibration: calibration.map(|c| (c.margin_ppm, c.jitter)),
            busy: vec![Nanos::ZERO; engines.len()],
            larger: vec![Nanos::ZERO; engines.len()],
            used: vec![0; engines.len() * shared.len()],
            used_all: vec![0; shared.len()],
            twin,
        })
    }

    fn route_cost(
        &self,
        load: &Load<'_>,
        route: RouteId,
        engines: &[u32],
        shared: &[u32],
        twin: Option<&Twin>,
    ) -> Result<RouteCost, Starved> {
        let (compiled, held) = (self.route(route), self.engines(route));
        let place = |engine: Option<&u32>| engine.map_or(0, |e| engines.partition_point(|other| other < e));
        let ends = [place(held.first()), place(held.last())];
        let crossings = self.crossings(route);
        let fastest = crossings.iter().map(|c| {
            let low = u128::from(load.low[c.capacity as usize]);
            u64::try_from((low * u128::from(PPM)).div_ceil(u128::from(c.use_ppm))).unwrap_or(u64::MAX)
        });
        let uses = crossings.iter().filter_map(|c| Some((shared.iter().position(|&l| l == c.capacity)?, c.use_ppm)));
        Ok(RouteCost {
            engines: ends,
            setup_queued: compiled.setup_again(),
            setup_larger: compiled.setup_queued.max(compiled.setup),
            submit: compiled.submit,
            alone: load.alone(route)?,
            fastest: Rate(fastest.min().unwrap_or(u64::MAX)),
            guaranteed: load.guaranteed(route).ok(),
            uses: uses.collect(),
            member: twin.and_then(|t| t.members.iter().position(|m| m.0 == ends[0])).unwrap_or(0),
        })
    }

    fn prepared_twin(&self, load: &Load<'_>, blocks: &[BatchBlock], engines: &[u32], sigma_ppm: u64) -> Option<Twin> {
        let sigma_ppm = self.sigma(load, blocks, sigma_ppm);
        let members = self.members(load, blocks, sigma_ppm)?;
        let live = (0..self.pipes.len() as u32).filter(|&l| is_live(&members, l, load.low[l as usize]));
        let live: Vec<u32> = live.collect();
        let depths = depths(&members, &live)?;
        let derated = Self::derated(&members, &live, &depths, load, sigma_ppm);
        let place = |m: &Member| (engines.partition_point(|&other| other < m.engine), m.own_fast);
        let remembered = if members.len() <= MEMBERS_REMEMBERED_MAX { 1 << members.len() } else { 0 };
        let (rates, left) = (vec![None; remembered], vec![0; members.len()]);
        Some(Twin { derated, members: members.iter().map(place).collect(), rates, left })
    }
}

impl BatchShape {
    /// The worst-case time of a batch with these totals, one per route: never below [`Network::wcet`] of its blocks in the
    /// order of their routes, and above it by less than 2 ns per block.
    ///
    /// # Errors
    /// [`Starved`] when the derated machine leaves some route nothing.
    pub fn wcet(&mut self, totals: &[Total]) -> Result<Nanos, Starved> {
        assert_eq!(totals.len(), self.route_costs.len(), "a bound of fewer routes would be too low");
        let blocks = totals.iter().fold(0, |sum: u64, total| sum.saturating_add(total.blocks));
        let rounding = Nanos(blocks.saturating_sub(1));
        let mut best = self.serial(totals).saturating_add(rounding);
        let submissions = self.submissions(totals);
        let Some((margin_ppm, jitter)) = self.calibration else { return Ok(best.saturating_add(submissions)) };
        if let Some(load) = self.load(totals) {
            best = best.min(load.saturating_add(rounding));
        }
        if let Some(share) = self.share(totals) {
            best = best.min(share);
        }
        // The twin is never below its busiest engine and a nanosecond per block.
        if self.twin.is_some() && best > self.least(totals).saturating_add(Nanos(blocks)) {
            best = best.min(self.finish_of_twin(totals)?.saturating_add(Nanos(blocks)));
        }
        let factor = u128::from(PPM) + u128::from(margin_ppm);
        let best = best.saturating_add(submissions);
        let with_margin = u128::from(best.0).saturating_mul(factor).div_ceil(u128::from(PPM));
        Ok(Nanos(u64::try_from(with_margin).unwrap_or(u64::MAX)).saturating_add(jitter))
    }

    /// Set-ups behind other blocks, moving, and what rounding each block up can add.
    fn time(total: &Total, setup: Nanos, rate: Rate) -> Nanos {
        let setups = Nanos(setup.0.saturating_mul(total.blocks));
        setups.saturating_add(rate.time_for(Bytes(total.bytes))).saturating_add(Nanos(total.blocks.saturating_sub(1)))
    }

    /// The time to submit all blocks but the last.
    fn submissions(&self, totals: &[Total]) -> Nanos {
        let pairs = || self.route_costs.iter().zip(totals).filter(|(_, total)| total.blocks > 0);
        let all = pairs().fold(0u64, |sum, (route_cost, total)| {
            sum.saturating_add(route_cost.submit.0.saturating_mul(total.blocks))
        });
        Nanos(all.saturating_sub(pairs().next_back().map_or(0, |(route_cost, _)| route_cost.submit.0)))
    }

    fn serial(&self, totals: &[Total]) -> Nanos {
        let first = self.first.iter().fold(Nanos::ZERO, |sum, &first| sum.saturating_add(first));
        let times = self
            .route_costs
            .iter()
            .zip(totals)
            .map(|(route_cost, total)| Self::time(total, route_cost.setup_queued, route_cost.alone));
        times.fold(first, Nanos::saturating_add)
    }

    fn load(&mut self, totals: &[Total]) -> Option<Nanos> {
        if !self.is_single {
            return None;
        }
        let width = self.shared.len();
        self.busy.copy_from_slice(&self.first);
        self.used.fill(0);
        self.used_all.fill(0);
        for (route_cost, total) in self.route_costs.iter().zip(totals) {
            let engine = route_cost.engines[0];
            let time = Self::time(total, route_cost.setup_queued, route_cost.alone);
            self.busy[engine] = self.busy[engine].saturating_add(time);
            for &(capacity, use_ppm) in &route_cost.uses {
                let used = u128::from(total.bytes) * u128::from(use_ppm);
                self.used[engine * width + capacity] += used;
                self.used_all[capacity] += used;
            }
        }
        let foreign = |engine: usize, capacity: usize| {
            let others = self.used_all[capacity] - self.used[engine * width + capacity];
            let others = u64::try_from(others.div_ceil(u128::from(PPM))).unwrap_or(u64::MAX);
            self.shared[capacity].time_for(Bytes(others))
        };
        let ends = self.busy.iter().enumerate().map(|(engine, &own)| {
            self.crossed[engine].iter().fold(own, |sum, &capacity| sum.saturating_add(foreign(engine, capacity)))
        });
        ends.max()
    }

    /// The longest path through the queues, blocks in the order of their routes.
    fn share(&mut self, totals: &[Total]) -> Option<Nanos> {
        self.busy.fill(Nanos::ZERO);
        self.larger.fill(Nanos::ZERO);
        for (route_cost, total) in self.route_costs.iter().zip(totals) {
            let rate = route_cost.guaranteed?;
            let [a, b] = route_cost.engines;
            for (ends, setup) in
                [(&mut self.busy, route_cost.setup_queued), (&mut self.larger, route_cost.setup_larger)]
            {
                let end = ends[a].max(ends[b]).saturating_add(Self::time(total, setup, rate));
                (ends[a], ends[b]) = (end, end);
            }
        }
        if self.is_single {
            return self.busy.iter().zip(&self.first).map(|(end, &first)| end.saturating_add(first)).max();
        }
        let first = self.first.iter().fold(Nanos::ZERO, |sum, &first| sum.saturating_add(first));
        let queued = self.busy.iter().max()?.saturating_add(first);
        Some(queued.min(*self.larger.iter().max()?))
    }

    /// What the busiest engine needs at the fastest that any bound lets it be.
    fn least(&mut self, totals: &[Total]) -> Nanos {
        self.busy.copy_from_slice(&self.first);
        for (route_cost, total) in self.route_costs.iter().zip(totals) {
            let moving = u128::from(total.bytes) * u128::from(NANOS_PER_SECOND) / u128::from(route_cost.fastest.0);
            let setups = Nanos(route_cost.setup_queued.0.saturating_mul(total.blocks));
            let busy = &mut self.busy[route_cost.engines[0]];
            *busy = busy.saturating_add(setups).saturating_add(Nanos(u64::try_from(moving).unwrap_or(u64::MAX)));
        }
        self.busy.iter().copied().max().unwrap_or_default()
    }

    fn finish_of_twin(&mut self, totals: &[Total]) -> Result<Nanos, Starved> {
        let Some(twin) = &mut self.twin else { return Ok(Nanos::MAX) };
        self.busy.copy_from_slice(&self.first);
        twin.left.fill(0);
        for (route_cost, total) in self.route_costs.iter().zip(totals) {
            let busy = &mut self.busy[route_cost.engines[0]];
            *busy = busy.saturating_add(Nanos(route_cost.setup_queued.0.saturating_mul(total.blocks)));
            twin.left[route_cost.member] += u128::from(total.bytes);
        }
        for (left, &(engine, own_fast)) in twin.left.iter_mut().zip(&twin.members) {
            let gap = (u128::from(self.busy[engine].0) * u128::from(own_fast)).div_ceil(u128::from(NANOS_PER_SECOND));
            *left = (*left + gap).min(u128::from(u64::MAX));
        }
        twin.finish()
    }
}

impl Twin {
    /// The end of the last of `left` bytes: [`Network::completion`] without queues and set-ups.
    fn finish(&mut self) -> Result<Nanos, Starved> {
        if self.rates.is_empty() {
            let blocks = (0u32..).zip(&self.left).map(|(at, &left)| {
                let bytes = Bytes(u64::try_from(left).unwrap_or(u64::MAX));
                BatchBlock { route: RouteId(at), bytes }
            });
            let order: Vec<BatchBlock> = blocks.collect();
            return self.derated.run(&order, &mut Fifos::default(), &mut Scratch::new(), None);
        }
        self.left.iter_mut().for_each(|left| *left *= u128::from(NANOS_PER_SECOND));
        let mut now = Nanos::ZERO;
        loop {
            let active = self.left.iter().enumerate().fold(0, |set, (at, &left)| set | (usize::from(left > 0) << at));
            if active == 0 {
                return Ok(now);
            }
            if self.rates[active].is_none() {
                self.rates[active] = Some(self.rates_of(active)?);
            }
            let rates = self.rates[active].as_deref().unwrap_or_default();
            let moving = || self.left.iter().zip(rates).filter(|(left, _)| **left > 0);
            let step = moving().map(|(&left, &rate)| left.div_ceil(u128::from(rate))).min().unwrap_or(0);
            for (left, &rate) in self.left.iter_mut().zip(rates) {
                *left = left.saturating_sub(u128::from(rate).saturating_mul(step));
            }
            now = now.saturating_add(Nanos(u64::try_from(step).unwrap_or(u64::MAX)));
        }
    }

    fn rates_of(&self, active: usize) -> Result<Box<[u64]>, Starved> {
        let on = |at: &u32| active >> at & 1 == 1;
        let routes: Vec<RouteId> = (0..self.members.len() as u32).filter(on).map(RouteId).collect();
        let mut rates = vec![0; self.members.len()];
        for (route, share) in routes.iter().zip(self.derated.allocate(&routes, &mut Scratch::new())?) {
            rates[route.at()] = share.rate.0;
        }
        Ok(rates.into())
    }
}
