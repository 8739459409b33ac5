//! The first GPUs of a machine as a machine of its own.

use std::collections::BTreeMap;

use super::{Capacity, CapacityId, CapacityKind, EndpointId, Engine, EngineId, KernelCost, Machine, Route};

impl Machine {
    /// The same machine with only its first `count` GPUs; `None` if it has fewer, or `count` is zero.
    ///
    /// Routes of the other GPUs go, and with them the links and engines that only they used. Limits stay, as they belong to
    /// the node. With all GPUs it is the machine itself; else `-g` and the count are appended to the hash.
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
        let restricted = Restriction { endpoints, capacities, engines };
        Some(Self {
            name: self.name.clone(),
            description: self.description.clone(),
            endpoints: restricted.endpoints.keys().map(|i| self.endpoints[*i].clone()).collect(),
            capacities: restricted.capacities.keys().map(|i| restricted.capacity(&self.capacities[*i])).collect(),
            engines: restricted.engines.keys().map(|i| restricted.engine(&self.engines[*i])).collect(),
            routes: kept.into_iter().map(|r| restricted.route(r)).collect(),
            kernels: self.kernels.iter().filter_map(|k| restricted.kernel(k)).collect(),
            calibration: self.calibration.clone(),
            hash: format!("{}-g{count}", self.hash),
        })
    }
}

/// New position of everything that stays, by its old one.
struct Restriction {
    endpoints: BTreeMap<usize, u32>,
    capacities: BTreeMap<usize, u32>,
    engines: BTreeMap<usize, u32>,
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
