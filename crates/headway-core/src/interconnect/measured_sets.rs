//! What transfers get together by measurement, where links and limits alone say otherwise.
//!
//! A limit carries the same whatever number of transfers fill it. Host memory does not: of four H200s three bring out 122 GB/s,
//! four 132, and what a GPU takes in falls with what it brings out, as its read requests queue behind its writes. So a machine
//! keeps the sets that it was fitted to, and a set of transfers is corrected by the one measured set with the same transfers,
//! else by the mean of two or more of the same shape: as many GPUs that only take in, only bring
//! out and do both.

use std::collections::BTreeMap;

use super::{BandwidthShare, Network, Scratch};
use crate::files::machine::{EngineClass, Machine, Route, RouteId};
use crate::models::transfer::Method;
use crate::units::{PPM, Rate};

/// What a transfer does in a set: its direction, and whether the way back is in the set too.
type Role = (EngineClass, bool);

/// Of each role the sum of its factors and how many there are.
type Sums = BTreeMap<Role, (u64, u64)>;

/// Measured rates in parts per million of what limits give.
#[derive(Clone, Debug)]
pub(super) struct MeasuredSets {
    /// Class and way back of every copy between pinned memory and a GPU, by route.
    directions: Vec<Option<(EngineClass, Option<RouteId>)>>,
    /// By routes in ascending order: the factor of each.
    sets: BTreeMap<Box<[RouteId]>, Box<[u64]>>,
    /// By the roles of a set, in ascending order: the mean factor of each.
    shapes: BTreeMap<Box<[Role]>, Box<[u64]>>,
}

/// Memory reused from one correction to the next.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    routes: Vec<RouteId>,
    roles: Vec<Role>,
}

impl MeasuredSets {
    /// What the sets of `machine` say beside what `network`, without corrections, gives; `None` without sets.
    pub(super) fn new(machine: &Machine, network: &Network) -> Option<Self> {
        if machine.sets.is_empty() {
            return None;
        }
        let direction = |(route, it): (RouteId, &Route)| {
            let class = machine.class(route);
            let is_copy = it.method == Method::Dma && class != EngineClass::Peer;
            is_copy.then(|| (class, machine.route(it.to, it.from)))
        };
        let directions = (0..).map(RouteId).zip(&machine.routes).map(direction).collect();
        let mut measured = Self { directions, sets: BTreeMap::new(), shapes: BTreeMap::new() };
        let mut sums: BTreeMap<Box<[Role]>, Sums> = BTreeMap::new();
        let mut scratch = Scratch::new();
        for set in &machine.sets {
            // A transfer that limits leave nothing has no rate to correct.
            let Ok(shares) = network.allocate(&set.routes, &mut scratch) else { continue };
            let factors: Box<[u64]> =
                shares.iter().zip(&set.rates).map(|(share, rate)| factor(*rate, share.rate)).collect();
            let roles: Vec<Role> = set.routes.iter().filter_map(|route| measured.role(*route, &set.routes)).collect();
            let mut shape = roles.clone();
            shape.sort_unstable();
            let sums = sums.entry(shape.into()).or_default();
            for (role, factor) in roles.iter().zip(&factors) {
                let (sum, n) = sums.entry(*role).or_default();
                (*sum, *n) = (sum.saturating_add(*factor), *n + 1);
            }
            measured.sets.insert(set.routes.as_slice().into(), factors);
        }
        // What one set says may be its GPUs' own.
        let several = |sums: &Sums, shape: &[Role]| sums.values().map(|(_, n)| *n).sum::<u64>() > shape.len() as u64;
        for (shape, sums) in sums.into_iter().filter(|(shape, sums)| several(sums, shape)) {
            let factors = shape.iter().map(|role| sums[role].0 / sums[role].1).collect();
            measured.shapes.insert(shape, factors);
        }
        Some(measured)
    }

    fn role(&self, route: RouteId, set: &[RouteId]) -> Option<Role> {
        let (class, back) = self.directions[route.at()]?;
        Some((class, back.is_some_and(|back| set.binary_search(&back).is_ok())))
    }

    /// Corrects what limits give the transfers over `active`. Copies between GPUs and the driver's copies of
    /// ordinary memory neither change nor count.
    pub(super) fn correct(
        &self,
        network: &Network,
        active: &[RouteId],
        memory: &mut Memory,
        shares: &mut [BandwidthShare],
    ) {
        let Memory { routes, roles } = memory;
        routes.clear();
        routes.extend(active.iter().filter(|route| self.directions[route.at()].is_some()));
        routes.sort_unstable();
        routes.dedup();
        let exact = self.sets.get(routes.as_slice());
        let mut shape = None;
        if exact.is_none() {
            roles.clear();
            roles.extend(routes.iter().filter_map(|route| self.role(*route, routes)));
            roles.sort_unstable();
            shape = self.shapes.get(roles.as_slice());
        }
        for (&route, share) in active.iter().zip(shares) {
            let factor = match (exact, shape) {
                (Some(factors), _) => routes.binary_search(&route).ok().map(|at| factors[at]),
                (None, Some(factors)) => {
                    let role = self.role(route, routes);
                    role.and_then(|role| roles.binary_search(&role).ok()).map(|at| factors[at])
                }
                (None, None) => None,
            };
            let Some(factor) = factor else { continue };
            let rate = u128::from(share.rate.0) * u128::from(factor) / u128::from(PPM);
            let most = network.rate_alone(route).map_or(share.rate, |alone| alone.max(share.rate));
            share.rate = Rate(u64::try_from(rate).unwrap_or(u64::MAX).clamp(1, most.0));
        }
    }
}

/// `measured` in parts per million of `given`.
fn factor(measured: Rate, given: Rate) -> u64 {
    let factor = u128::from(measured.0) * u128::from(PPM) / u128::from(given.0.max(1));
    u64::try_from(factor).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::tests::fixtures::{Builder, WHOLE};
    use super::*;
    use crate::files::machine::{EndpointKind, MeasuredSet};

    const GB: u64 = 1_000_000_000;

    /// Three GPUs with links of 50 GB/s in and out, and a limit of 120 GB/s for what they bring out. Routes: in, out of each.
    fn machine() -> Machine {
        let mut builder = Builder::new();
        let limit = builder.limit("write", 120 * GB);
        for gpu in 0..3 {
            let id = builder.endpoint(&format!("gpu{gpu}"), EndpointKind::Gpu);
            for (inward, class) in [(true, EngineClass::H2d), (false, EngineClass::D2h)] {
                let engine = builder.engine(&format!("gpu{gpu}.{class:?}"), id, class);
                let link = builder.link(&format!("gpu{gpu}.{inward}"), 50 * GB);
                let uses: &[_] = if inward { &[(link, WHOLE)] } else { &[(link, WHOLE), (limit, WHOLE)] };
                let route = builder.route(&[engine], uses, 1_000);
                let host = crate::files::machine::EndpointId(0);
                let direction = &mut builder.0.routes[route.at()];
                (direction.from, direction.to) = if inward { (host, id) } else { (id, host) };
            }
        }
        builder.0
    }

    fn set(routes: &[u32], rates: &[u64]) -> MeasuredSet {
        MeasuredSet {
            routes: routes.iter().copied().map(RouteId).collect(),
            rates: rates.iter().map(|rate| Rate(rate * GB)).collect(),
        }
    }

    fn rates(machine: &Machine, routes: &[u32]) -> Vec<u64> {
        let routes: Vec<RouteId> = routes.iter().copied().map(RouteId).collect();
        let (network, mut scratch, mut out) = (Network::new(machine), Scratch::new(), Vec::new());
        network.rates(&routes, &mut scratch, &mut out).expect("every route has a share");
        out.iter().map(|rate| rate.0 / 1_000_000).collect()
    }

    #[test]
    fn a_measured_set_gives_what_was_measured_in_any_order_and_others_of_its_shape_the_mean() {
        let mut machine = machine();
        assert_eq!(rates(&machine, &[1, 3]), [50_000, 50_000]);
        assert_eq!(rates(&machine, &[1, 3, 5]), [40_000, 40_000, 40_000]);
        machine.sets = vec![set(&[1, 3], &[45, 40]), set(&[1, 5], &[50, 45]), set(&[1, 3, 5], &[36, 36, 30])];
        assert_eq!(rates(&machine, &[3, 1]), [40_000, 45_000]);
        assert_eq!(rates(&machine, &[5, 3, 1]), [30_000, 36_000, 36_000]);
        // Out of the second and the third GPU: two out, as in the sets with 0.9, 0.8, 1 and 0.9 of the links' rate.
        assert_eq!(rates(&machine, &[3, 5]), [45_000, 45_000]);
        // One GPU in and another out was not measured, and one transfer alone is its link's.
        assert_eq!(rates(&machine, &[0, 3]), [50_000, 50_000]);
        assert_eq!(rates(&machine, &[3]), [50_000]);
    }

    #[test]
    fn a_gpu_that_does_both_is_told_from_one_that_takes_in_and_another_that_brings_out() {
        let mut machine = machine();
        machine.sets = vec![set(&[0, 1], &[20, 40]), set(&[0, 3], &[30, 50])];
        // One set of a shape says nothing of others.
        assert_eq!(rates(&machine, &[2, 3]), [50_000, 50_000]);
        machine.sets.extend([set(&[4, 5], &[22, 42]), set(&[2, 5], &[32, 48])]);
        assert_eq!(rates(&machine, &[2, 3]), [21_000, 41_000]);
        assert_eq!(rates(&machine, &[4, 1]), [31_000, 49_000]);
        // No set has two that only take in.
        assert_eq!(rates(&machine, &[2, 4]), [50_000, 50_000]);
        // Copies of another kind change nothing.
        machine.routes.push(Route { method: Method::Pageable, ..machine.routes[5].clone() });
        assert_eq!(rates(&machine, &[6, 3, 2]), [50_000, 41_000, 21_000]);
    }

    #[test]
    fn nothing_gets_more_than_alone_and_nothing_less_than_a_byte() {
        let mut machine = machine();
        machine.sets = vec![set(&[1, 3, 5], &[60, 40, 40]), set(&[0, 2], &[0, 50])];
        assert_eq!(rates(&machine, &[1, 3, 5]), [50_000, 40_000, 40_000]);
        let (network, mut scratch) = (Network::new(&machine), Scratch::new());
        let shares = network.allocate(&[RouteId(0), RouteId(2)], &mut scratch).expect("shares");
        assert_eq!(shares[0].rate, Rate(1));
    }

    #[test]
    fn the_first_gpus_keep_their_sets() {
        let mut machine = machine();
        machine.sets = vec![set(&[1, 3], &[45, 40]), set(&[1, 3, 5], &[36, 36, 30])];
        let first = machine.with_gpus(2).expect("it has two");
        assert_eq!(first.sets, [set(&[1, 3], &[45, 40])]);
        assert_eq!(rates(&first, &[1, 3]), [45_000, 40_000]);
    }
}
