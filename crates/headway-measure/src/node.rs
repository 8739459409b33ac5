//! The node as its driver and the kernel describe it: a machine with every part in its place and no rates yet.

use std::path::Path;
use std::sync::Arc;

use headway_core::files::machine::{
    Capacity, CapacityId, CapacityKind, Endpoint, EndpointId, EndpointKind, Engine, EngineClass, EngineId, Machine,
    Route,
};
use headway_core::models::transfer::Method;
pub use headway_core::units::day as date;
use headway_core::units::{Nanos, PPM, Rate};
use headway_device::gpu::Gpu;
use headway_os::topology;

/// A rate not measured yet.
const UNKNOWN: Rate = Rate(1_000_000_000);
/// The weight of a route that nothing is known of.
const WEIGHT: u32 = 1_000;

/// Names of links and engines of one GPU.
pub fn part(gpu: usize, name: &str) -> String {
    format!("gpu{gpu}.{name}")
}

/// Memories and GPUs of the node, memories first.
pub fn endpoints(devices: &[Arc<dyn Gpu>], sysfs: &Path) -> Vec<Endpoint> {
    let gpus = devices.iter().enumerate().map(|(gpu, device)| Endpoint {
        id: format!("gpu{gpu}"),
        kind: EndpointKind::Gpu,
        numa: device.numa(),
        pci: device.description().pci.clone(),
        uuid: device.description().uuid.clone(),
    });
    memories(sysfs).into_iter().chain(gpus).collect()
}

/// Adds what a fit of pinned copies leaves out: the driver's copies of ordinary memory, and copies between GPUs that
/// `reaches` says go directly. Their rates and set-ups are still to be measured.
pub fn complete(machine: Machine, reaches: impl Fn(usize, usize) -> bool) -> Machine {
    let mut builder = Builder::new(machine);
    let gpus: Vec<EndpointId> = builder.machine.gpus().collect();
    let host = builder.machine.endpoints[0].id.clone();
    // The driver's copies share its threads and buffers.
    let driver = builder.link("driver.in".to_owned(), &host, &host);
    for gpu in 0..gpus.len() {
        builder.driver_copies(gpu, driver);
    }
    builder.peers(&gpus, reaches);
    builder.finish()
}

/// Host memories, one for each NUMA node that has memory; one where the kernel does not say.
fn memories(sysfs: &Path) -> Vec<Endpoint> {
    let memory = |id: String, numa| Endpoint { id, kind: EndpointKind::Memory, numa, pci: None, uuid: None };
    let nodes = topology::numa_nodes(sysfs).unwrap_or_default();
    let nodes: Vec<u32> = nodes.iter().filter(|node| node.memory.is_none_or(|m| m.0 > 0)).map(|n| n.id).collect();
    match nodes[..] {
        [] => vec![memory("host".to_owned(), None)],
        [only] => vec![memory("host".to_owned(), Some(only))],
        _ => nodes.iter().map(|id| memory(format!("host{id}"), Some(*id))).collect(),
    }
}

/// A machine whose limits are set aside while links are added, since links come first.
struct Builder {
    machine: Machine,
    limits: Vec<Capacity>,
}

/// What limits set aside are counted from; no machine has so many links.
const ASIDE: u32 = 1 << 31;

impl Builder {
    fn new(mut machine: Machine) -> Self {
        let is_link = |capacity: &&Capacity| matches!(capacity.kind, CapacityKind::Link { .. });
        let links = machine.capacities.iter().take_while(is_link).count();
        let limits = machine.capacities.split_off(links);
        for (id, _) in machine.routes.iter_mut().flat_map(|route| &mut route.uses) {
            id.0 = if id.at() >= links { id.0 - links as u32 + ASIDE } else { id.0 };
        }
        Self { machine, limits }
    }

    fn link(&mut self, id: String, from: &str, to: &str) -> CapacityId {
        let kind = CapacityKind::Link { from: from.to_owned(), to: to.to_owned(), opposite: None };
        self.machine.capacities.push(Capacity { id, rate: UNKNOWN, rate_low: UNKNOWN, kind });
        CapacityId(self.machine.capacities.len() as u32 - 1)
    }

    /// Two links that are the directions of one wire.
    fn wire(&mut self, ids: [String; 2], ends: [&str; 2]) -> [CapacityId; 2] {
        let [there, back] = ids;
        let there = self.link(there, ends[0], ends[1]);
        let back = self.link(back, ends[1], ends[0]);
        for (link, other) in [(there, back), (back, there)] {
            if let CapacityKind::Link { opposite, .. } = &mut self.machine.capacities[link.at()].kind {
                *opposite = Some((other, UNKNOWN));
            }
        }
        [there, back]
    }

    fn engine(&mut self, id: String, gpu: EndpointId, class: EngineClass) -> EngineId {
        self.machine.engines.push(Engine { id, gpu, serves: vec![class], parallel: 1 });
        EngineId(self.machine.engines.len() as u32 - 1)
    }

    /// The driver's copies of ordinary memory: the routes of pinned memory with links for the driver's own part.
    fn driver_copies(&mut self, gpu: usize, driver: CapacityId) {
        let names = [(part(gpu, "h2d"), "driver-in"), (part(gpu, "d2h"), "driver-out")];
        for (engine, name) in names {
            let of_engine = |route: &&Route| {
                route.method == Method::Dma && route.engines.iter().any(|id| self.machine.engines[id.at()].id == engine)
            };
            let Some(pinned) = self.machine.routes.iter().find(of_engine).cloned() else { continue };
            let inward = name == "driver-in";
            let host = if inward { pinned.from } else { pinned.to };
            let host = self.machine.endpoints[host.at()].id.clone();
            let own = self.link(part(gpu, name), &host, &host);
            let whole = PPM as u32;
            let mut uses = pinned.uses.clone();
            let links = uses.iter().filter(|(id, _)| id.0 < ASIDE).count();
            if inward {
                uses.splice(0..0, [(driver, whole), (own, whole)]);
            } else {
                uses.insert(links, (own, whole));
            }
            self.machine.routes.push(Route { method: Method::Pageable, uses, ..pinned });
        }
    }

    /// Ports of the GPUs that reach each other, and the routes between them. A copy holds `peer-out` of its source and
    /// `peer-in` of its target, so that one may leave and one enter a GPU at a time.
    fn peers(&mut self, gpus: &[EndpointId], reaches: impl Fn(usize, usize) -> bool) {
        let pairs = || (0..gpus.len()).flat_map(|from| (0..gpus.len()).map(move |to| (from, to)));
        let takes_part = |gpu: usize| (0..gpus.len()).any(|other| reaches(gpu, other) || reaches(other, gpu));
        let mut ports = vec![None; gpus.len()];
        for gpu in (0..gpus.len()).filter(|gpu| takes_part(*gpu)) {
            let name = format!("gpu{gpu}");
            let links = self.wire([part(gpu, "peer-out"), part(gpu, "peer-in")], [&name, "nvlink"]);
            let engines =
                [part(gpu, "peer-out"), part(gpu, "peer-in")].map(|id| self.engine(id, gpus[gpu], EngineClass::Peer));
            ports[gpu] = Some((links, engines));
        }
        for (from, to) in pairs().filter(|&(from, to)| reaches(from, to)) {
            if let (Some((out, leave)), Some((into, enter))) = (ports[from], ports[to]) {
                self.machine.routes.push(Route {
                    from: gpus[from],
                    to: gpus[to],
                    method: Method::Peer,
                    engines: vec![leave[0], enter[1]],
                    uses: vec![(out[0], PPM as u32), (into[1], PPM as u32)],
                    weight: WEIGHT,
                    setup: Nanos::ZERO,
                    setup_queued: Nanos::ZERO,
                    submit: Nanos::ZERO,
                });
            }
        }
    }

    /// Puts the limits back behind all links.
    fn finish(self) -> Machine {
        let Self { mut machine, limits } = self;
        let links = machine.capacities.len() as u32;
        for (id, _) in machine.routes.iter_mut().flat_map(|route| &mut route.uses) {
            id.0 = if id.0 >= ASIDE { id.0 - ASIDE + links } else { id.0 };
        }
        machine.capacities.extend(limits);
        machine
    }
}

#[cfg(test)]
mod tests {
    use headway_core::files::machine;

    use super::*;

    #[test]
    fn routes_keep_their_limits_when_links_are_added_before_them() {
        let whole = machine::shipped("h200-x4").unwrap();
        // What a fit gives: links and routes of pinned memory, and limits.
        let mut fitted = machine::shipped("h200-x4").unwrap();
        fitted.routes.retain(|route| route.method == Method::Dma);
        let kept = |id: &str| !id.contains("driver") && !id.contains("peer");
        let ids: Vec<String> = fitted.capacities.iter().map(|capacity| capacity.id.clone()).collect();
        let place = |old: CapacityId| ids[..old.at()].iter().filter(|id| kept(id)).count() as u32;
        for (id, _) in fitted.routes.iter_mut().flat_map(|route| &mut route.uses) {
            *id = CapacityId(place(*id));
        }
        for capacity in &mut fitted.capacities {
            if let CapacityKind::Link { opposite: Some((id, _)), .. } = &mut capacity.kind {
                *id = CapacityId(place(*id));
            }
        }
        fitted.capacities.retain(|capacity| kept(&capacity.id));
        fitted.engines.retain(|engine| kept(&engine.id));

        let complete = complete(fitted, |from, to| from != to);
        let uses = |machine: &Machine| {
            let named = |route: &Route| {
                let uses = route.uses.iter().map(|(id, ppm)| (machine.capacities[id.at()].id.clone(), *ppm));
                let engines = route.engines.iter().map(|id| machine.engines[id.at()].id.clone());
                let ends = [route.from, route.to].map(|end| machine.endpoints[end.at()].id.clone());
                (ends, route.method, engines.collect::<Vec<_>>(), uses.collect::<Vec<_>>())
            };
            let mut routes: Vec<_> = machine.routes.iter().map(named).collect();
            routes.sort();
            routes
        };
        assert_eq!(uses(&complete), uses(&whole));
        let text = machine::write(&complete, &[]);
        machine::parse("complete", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(951_782_400), "2000-02-29");
        assert_eq!(date(1_795_219_199), "2026-11-20");
        assert_eq!(date(1_795_219_200), "2026-11-21");
    }
}
