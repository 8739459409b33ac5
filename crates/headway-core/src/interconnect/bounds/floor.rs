//! What a batch takes at least under every bound: for leaving out quickly what cannot pay.

use std::collections::BTreeMap;

use super::{Load, Total};
use crate::files::machine::RouteId;
use crate::interconnect::Network;
use crate::units::{NANOS_PER_SECOND, PPM};

/// Loads of every engine and shared capacity, in nanoseconds rounded down.
///
/// No bound of a batch is below the largest of them, with the set-up of the first block added. They can be added for batches
/// together, and the moving part divided for batches split.
#[derive(Clone, Debug)]
pub struct Floor {
    route_costs: BTreeMap<RouteId, RouteCost>,
    resources: usize,
}

#[derive(Clone, Debug)]
struct RouteCost {
    engines: Vec<usize>,
    /// Resources crossed: position, use in ppm, lowest rate when nothing comes the other way.
    rates: Vec<(usize, u64, u64)>,
    setup_queued: u64,
    /// What the first block can pay beyond.
    first: u64,
}

/// The loads of one batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loads {
    /// Set-ups behind other blocks.
    pub setups: Vec<u64>,
    /// What the first block can pay beyond.
    pub first: Vec<u64>,
    /// Time in which bytes move.
    pub moving: Vec<u64>,
}

impl Network {
    /// The loads of batches over any of `routes`.
    #[must_use]
    pub fn floor(&self, routes: &[RouteId]) -> Floor {
        let load = Load::new(self, routes.iter().copied());
        let mut engines: Vec<u32> = routes.iter().flat_map(|&route| self.engines(route)).copied().collect();
        engines.sort_unstable();
        engines.dedup();
        let shared: Vec<u32> = (0..self.pipes.len() as u32).filter(|&l| load.members(l) > 1).collect();
        let route_cost = |&route: &RouteId| {
            let compiled = self.route(route);
            let held = self.engines(route).iter().map(|e| engines.partition_point(|other| other < e));
            let held: Vec<usize> = held.collect();
            let crossings = self.crossings(route).iter();
            let low = |capacity: u32| self.pipes[capacity as usize].rate_low;
            let slowest = crossings.clone().map(|c| (c.use_ppm, low(c.capacity)));
            let slowest = slowest.max_by_key(|&(use_ppm, low)| (u128::from(use_ppm) << 64) / u128::from(low.max(1)));
            let of_engines = slowest.into_iter().flat_map(|(u, low)| held.iter().map(move |&engine| (engine, u, low)));
            let of_shared = crossings.filter_map(|c| {
                let at = shared.iter().position(|&l| l == c.capacity)?;
                Some((engines.len() + at, c.use_ppm, low(c.capacity)))
            });
            let rates = of_engines.chain(of_shared).collect();
            let first = compiled.setup.saturating_sub(compiled.setup_again()).0;
            (route, RouteCost { engines: held.clone(), rates, setup_queued: compiled.setup_queued.0, first })
        };
        Floor { route_costs: routes.iter().map(route_cost).collect(), resources: engines.len() + shared.len() }
    }
}

impl Floor {
    /// Engines and shared capacities.
    #[must_use]
    pub const fn resources(&self) -> usize {
        self.resources
    }

    /// The loads of a batch with these totals.
    ///
    /// # Panics
    /// If a route is none of those it was made for.
    #[must_use]
    pub fn loads<'t>(&self, totals: impl Iterator<Item = (RouteId, &'t Total)>) -> Loads {
        let none = || vec![0; self.resources];
        let mut loads = Loads { setups: none(), first: none(), moving: none() };
        for (route, total) in totals {
            let route_cost = &self.route_costs[&route];
            for &engine in &route_cost.engines {
                let setups = route_cost.setup_queued.saturating_mul(total.blocks);
                loads.setups[engine] = loads.setups[engine].saturating_add(setups);
                loads.first[engine] = loads.first[engine].max(route_cost.first);
            }
            for &(resource, use_ppm, low) in &route_cost.rates {
                let asked = u128::from(total.bytes) * u128::from(use_ppm) * u128::from(NANOS_PER_SECOND / PPM);
                let time = u64::try_from(asked / u128::from(low.max(1))).unwrap_or(u64::MAX);
                loads.moving[resource] = loads.moving[resource].saturating_add(time);
            }
        }
        loads
    }
}
