//! The first GPUs of a machine as a machine of its own.

use std::collections::BTreeMap;

use super::{
    Capacity, CapacityId, CapacityKind, EndpointId, Engine, EngineId, KernelCost, Machine, MeasuredSet, Route, RouteId,
};
use crate::models::transfer::{Curve, CurveKey, Profile, Stamp, TuningKey};

impl Machine {
    /// The same machine with only its first `count` GPUs; `None` if it has fewer, or `count` is zero.
    ///
    /// Routes of the other GPUs go, and with them the links and engines that only they used. Limits stay, as they belong to
    /// the node. Figures of copies and measured sets stay for the GPUs that stay. With all GPUs it is the machine itself; else `-g` and the count are appended to the hash.
    #[must_use]
    pub fn with_gpus(&self, count: usize) -> Option<Self> {
        let total = self.gpus().count();
        if count == 0 || count > total {
            return None;
        }
        if count == total {
            return Some(self.clone());
        }
        let dropped: Vec<EndpointId> = self.gpus().skip(count).collect();
        let stays = |end: EndpointId| !dropped.contains(&end);
        let (kept, gone): (Vec<&Route>, Vec<&Route>) = self.routes.iter().partition(|r| stays(r.from) && stays(r.to));
        let endpoints = positions(self.endpoints.len(), |i| stays(endpoint(i)));
        let capacities = positions(self.capacities.len(), |i| {
            let crosses = |r: &&Route| r.uses.iter().any(|(c, _)| c.at() == i);
            self.capacities[i].kind == CapacityKind::Limit || kept.iter().any(crosses) || !gone.iter().any(crosses)
        });
        let engines = positions(self.engines.len(), |i| {
            let serves = |r: &&Route| r.engines.iter().any(|e| e.at() == i);
            stays(self.engines[i].gpu) && (kept.iter().any(serves) || !gone.iter().any(serves))
        });
        let routes = positions(self.routes.len(), |i| stays(self.routes[i].from) && stays(self.routes[i].to));
        let restricted = Restriction { endpoints, capacities, engines, routes, gpus_gone: total - count };
        Some(Self {
            name: self.name.clone(),
            description: self.description.clone(),
            endpoints: restricted.endpoints.keys().map(|i| self.endpoints[*i].clone()).collect(),
            capacities: restricted.capacities.keys().map(|i| restricted.capacity(&self.capacities[*i])).collect(),
            engines: restricted.engines.keys().map(|i| restricted.engine(&self.engines[*i])).collect(),
            sets: self.sets.iter().filter_map(|set| restricted.set(set)).collect(),
            routes: kept.into_iter().map(|r| restricted.route(r)).collect(),
            kernels: self.kernels.iter().filter_map(|k| restricted.kernel(k)).collect(),
            cpu: self.cpu.clone(),
            calibration: self.calibration.clone(),
            profile: restricted.profile(&self.profile, total),
            others: self.others,
            hash: format!("{}-g{count}", self.hash),
        })
    }
}

/// New position of everything that stays, by its old one.
struct Restriction {
    endpoints: BTreeMap<usize, u32>,
    capacities: BTreeMap<usize, u32>,
    engines: BTreeMap<usize, u32>,
    routes: BTreeMap<usize, u32>,
    gpus_gone: usize,
}

impl Restriction {
    fn end(&self, old: EndpointId) -> EndpointId {
        EndpointId(self.endpoints[&old.at()])
    }

    fn capacity(&self, old: &Capacity) -> Capacity {
        let mut capacity = old.clone();
        if let CapacityKind::Link { opposite, .. } = &mut capacity.kind {
            // A link whose other direction is gone is never slowed by it.
            *opposite = opposite.and_then(|(o, rate)| Some((CapacityId(*self.capacities.get(&o.at())?), rate)));
        }
        capacity
    }

    fn engine(&self, old: &Engine) -> Engine {
        Engine { gpu: self.end(old.gpu), ..old.clone() }
    }

    fn route(&self, old: &Route) -> Route {
        Route {
            from: self.end(old.from),
            to: self.end(old.to),
            engines: old.engines.iter().map(|e| EngineId(self.engines[&e.at()])).collect(),
            uses: old.uses.iter().map(|(c, ppm)| (CapacityId(self.capacities[&c.at()]), *ppm)).collect(),
            ..old.clone()
        }
    }

    /// The set, unless a copy of it is gone.
    fn set(&self, old: &MeasuredSet) -> Option<MeasuredSet> {
        let routes = old.routes.iter().map(|route| self.routes.get(&route.at()).map(|at| RouteId(*at)));
        Some(MeasuredSet { routes: routes.collect::<Option<_>>()?, rates: old.rates.clone() })
    }

    /// The curves and tunings of the GPUs that stay; the stamp with as many GPUs.
    fn profile(&self, old: &Profile, total: usize) -> Profile {
        let stays = |end: &EndpointId| self.endpoints.contains_key(&end.at());
        let curves = |curves: &BTreeMap<CurveKey, Curve>| {
            let kept = curves.iter().filter(|(key, _)| stays(&key.gpu) && key.peer.iter().all(stays));
            let key = |key: &CurveKey| CurveKey {
                gpu: self.end(key.gpu),
                peer: key.peer.map(|p| self.end(p)),
                ..key.clone()
            };
            kept.map(|(old, curve)| (key(old), curve.clone())).collect()
        };
        let count = |list: &[String]| {
            // A list with an entry for each GPU; the first ones stay.
            let gone = if list.len() == total { self.gpus_gone } else { 0 };
            list[..list.len() - gone].to_vec()
        };
        let stamp = old.stamp.as_ref().map(|stamp| Stamp {
            gpus: count(&stamp.gpus),
            pcie: count(&stamp.pcie),
            ..stamp.clone()
        });
        let tunings = old.tunings.iter().filter(|(key, _)| stays(&key.gpu));
        let tunings = tunings.map(|(key, tuning)| (TuningKey { gpu: self.end(key.gpu), ..*key }, *tuning)).collect();
        let asked = old.arbitration.iter().filter(|((gpu, _), _)| stays(gpu));
        let arbitration =
            asked.map(|((gpu, direction), found)| ((self.end(*gpu), *direction), found.clone())).collect();
        let prices = old.prices.iter().filter(|(key, _)| stays(&key.gpu));
        let prices = prices.map(|(key, list)| (TuningKey { gpu: self.end(key.gpu), ..*key }, list.clone())).collect();
        Profile { stamp, curves: curves(&old.curves), posted: curves(&old.posted), tunings, prices, arbitration }
    }

    /// The cost entry, unless it was for GPUs that are all gone.
    fn kernel(&self, old: &KernelCost) -> Option<KernelCost> {
        let gpus: Vec<_> =
            old.gpus.iter().filter(|g| self.endpoints.contains_key(&g.at())).map(|g| self.end(*g)).collect();
        (old.gpus.is_empty() || !gpus.is_empty()).then(|| KernelCost { gpus, ..old.clone() })
    }
}

fn endpoint(at: usize) -> EndpointId {
    EndpointId(u32::try_from(at).expect("positions in a machine fit 32 bits"))
}

fn positions(count: usize, stays: impl Fn(usize) -> bool) -> BTreeMap<usize, u32> {
    (0..count).filter(|i| stays(*i)).zip(0..).collect()
}
