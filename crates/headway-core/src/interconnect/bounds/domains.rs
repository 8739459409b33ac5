//! Which transfers can ever slow each other down.

use super::Load;
use crate::files::machine::RouteId;
use crate::interconnect::Network;
use crate::units::PPM;

impl Network {
    /// Splits `routes`, all that are ever in use, into domains that share nothing: the domain of each, numbered from 0 in the
    /// order of their first route.
    ///
    /// Two routes are in one domain if they have an engine in common, or a capacity that can be full: one of which the
    /// engines that cross it can together ask for more than its lowest rate. The two directions of one wire do not tie
    /// domains; see [`Network::loaded_by`]. `sigma_ppm` is the largest quotient of fastest and slowest rate seen.
    #[must_use]
    pub fn domains(&self, routes: &[RouteId], sigma_ppm: u64) -> Vec<usize> {
        let load = Load::new(self, routes.iter().copied());
        let is_full = |capacity: u32| {
            let row = load.row(&load.use_max, capacity);
            let low = u128::from(self.pipes[capacity as usize].rate_low) * u128::from(PPM);
            let asked = (0u32..).zip(row).filter(|(_, used)| **used > 0).map(|(engine, &used)| {
                let own = routes.iter().filter(|&&r| self.engines(r).contains(&engine));
                let own = own.filter(|&&r| self.crossings(r).iter().any(|c| c.capacity == capacity));
                let fastest = own.map(|&r| self.fastest_without(&load, r, capacity, sigma_ppm)).max().unwrap_or(0);
                fastest.saturating_mul(u128::from(used))
            });
            load.members(capacity) > 1 && asked.fold(0u128, u128::saturating_add) > low
        };
        let full: Vec<u32> = (0..self.pipes.len() as u32).filter(|&capacity| is_full(capacity)).collect();
        let mut domain: Vec<usize> = (0..routes.len()).collect();
        for a in 0..routes.len() {
            for b in 0..a {
                if domain[a] != domain[b] && self.meet(routes[a], routes[b], &full) {
                    let (low, high) = (domain[a].min(domain[b]), domain[a].max(domain[b]));
                    domain.iter_mut().filter(|d| **d == high).for_each(|d| *d = low);
                }
            }
        }
        let mut order: Vec<usize> = Vec::new();
        for of in &mut domain {
            let at = order.iter().position(|known| known == of).unwrap_or_else(|| {
                order.push(*of);
                order.len() - 1
            });
            *of = at;
        }
        domain
    }

    fn meet(&self, a: RouteId, b: RouteId, full: &[u32]) -> bool {
        let crosses = |route: RouteId, capacity: u32| self.crossings(route).iter().any(|c| c.capacity == capacity);
        self.share_an_engine(a, b) || full.iter().any(|&l| crosses(a, l) && crosses(b, l))
    }

    /// The most bytes a second that `route` can move if `capacity` does not hold it back: by what no other engine crosses.
    fn fastest_without(&self, load: &Load<'_>, route: RouteId, capacity: u32, sigma_ppm: u64) -> u128 {
        let own = self.crossings(route).iter().filter(|c| c.capacity != capacity && load.members(c.capacity) == 1);
        let fastest = own.map(|c| {
            let pipe = &self.pipes[c.capacity as usize];
            let seen = (u128::from(pipe.rate_low) * u128::from(sigma_ppm.max(PPM))).div_ceil(u128::from(PPM));
            (seen.max(u128::from(pipe.rate)) * u128::from(PPM)).div_ceil(u128::from(c.use_ppm))
        });
        fastest.min().unwrap_or(u64::MAX as u128)
    }

    /// The same network while any of `others` may be in use: links whose opposite one of them crosses run at the rate of both
    /// directions.
    #[must_use]
    pub fn loaded_by(&self, others: &[RouteId]) -> Self {
        let mut network = self.clone();
        for &route in others {
            for crossing in self.crossings(route) {
                let Some((opposite, _)) = self.pipes[crossing.capacity as usize].opposite else { continue };
                let pipe = &mut network.pipes[opposite as usize];
                if let Some((_, rate_both)) = pipe.opposite.take() {
                    pipe.rate = pipe.rate.min(rate_both);
                    pipe.rate_low = pipe.rate_low.min(rate_both);
                }
            }
        }
        network
    }
}
