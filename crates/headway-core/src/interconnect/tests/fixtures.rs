//! Machines for tests, built in code.

use super::super::{BatchBlock, Network};
use crate::files::machine::{
    Capacity, CapacityId, CapacityKind, Endpoint, EndpointId, EndpointKind, Engine, EngineClass, EngineId, Machine,
    Route, RouteId,
};
use crate::models::transfer::Method;
use crate::units::{Bytes, Nanos, Rate};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const WHOLE: u32 = 1_000_000;

/// Adds the parts of a machine one by one.
pub(crate) struct Builder(pub(crate) Machine);

impl Builder {
    /// A machine with one memory.
    pub(crate) fn new() -> Self {
        let mut builder =
            Self(Machine { name: "test".into(), description: String::new(), hash: String::new(), ..Machine::none() });
        builder.endpoint("host", EndpointKind::Memory);
        builder
    }

    pub(crate) fn endpoint(&mut self, id: &str, kind: EndpointKind) -> EndpointId {
        self.0.endpoints.push(Endpoint { id: id.into(), kind, numa: None, pci: None, uuid: None });
        EndpointId(self.0.endpoints.len() as u32 - 1)
    }

    fn capacity(&mut self, id: &str, rate: u64, kind: CapacityKind) -> CapacityId {
        self.0.capacities.push(Capacity { id: id.into(), rate: Rate(rate), rate_low: Rate(rate), kind });
        CapacityId(self.0.capacities.len() as u32 - 1)
    }

    pub(crate) fn link(&mut self, id: &str, rate: u64) -> CapacityId {
        self.capacity(id, rate, CapacityKind::Link { from: "a".into(), to: "b".into(), opposite: None })
    }

    pub(crate) fn limit(&mut self, id: &str, rate: u64) -> CapacityId {
        self.capacity(id, rate, CapacityKind::Limit)
    }

    /// Makes two links each other's opposite.
    pub(crate) fn duplex(&mut self, a: (CapacityId, u64), b: (CapacityId, u64)) {
        for ((id, both), other) in [(a, b.0), (b, a.0)] {
            let CapacityKind::Link { opposite, .. } = &mut self.0.capacities[id.at()].kind else {
                panic!("only links have opposites")
            };
            *opposite = Some((other, Rate(both)));
        }
    }

    pub(crate) fn engine(&mut self, id: &str, gpu: EndpointId, class: EngineClass) -> EngineId {
        self.0.engines.push(Engine { id: id.into(), gpu, serves: vec![class], parallel: 1 });
        EngineId(self.0.engines.len() as u32 - 1)
    }

    pub(crate) fn route(&mut self, engines: &[EngineId], uses: &[(CapacityId, u32)], weight: u32) -> RouteId {
        self.0.routes.push(Route {
            from: EndpointId(0),
            to: EndpointId(0),
            method: Method::Dma,
            engines: engines.to_vec(),
            uses: uses.to_vec(),
            weight,
            setup: Nanos::ZERO,
            setup_queued: Nanos::ZERO,
            submit: Nanos::ZERO,
        });
        RouteId(self.0.routes.len() as u32 - 1)
    }

    /// A route over an engine of its own.
    pub(crate) fn own(&mut self, uses: &[CapacityId]) -> RouteId {
        let engine = self.engine("e", EndpointId(0), EngineClass::H2d);
        self.route(&[engine], &uses.iter().map(|&c| (c, WHOLE)).collect::<Vec<_>>(), 1000)
    }

    pub(crate) fn network(&self) -> Network {
        Network::new(&self.0)
    }
}

pub(crate) fn block(route: RouteId, bytes: u64) -> BatchBlock {
    BatchBlock { route, bytes: Bytes(bytes) }
}

/// Figure II.1 and Table I of `verner-2014`: two links of 8 GB/s behind one QPI of 9.6 GB/s.
pub(crate) fn figure_ii_1() -> (Machine, [BatchBlock; 2]) {
    let mut builder = Builder::new();
    let links = [builder.link("gpu0", 8_000_000_000), builder.link("gpu2", 8_000_000_000)];
    let qpi = builder.link("qpi", 9_600_000_000);
    let blocks = [(links[0], 128_000_000), (links[1], 64_000_000)];
    let blocks = blocks.map(|(link, bytes)| block(builder.own(&[link, qpi]), bytes));
    (builder.0, blocks)
}

/// Four H200 with the constants that reproduce the measured sets.
pub(crate) struct H200 {
    pub(crate) machine: Machine,
    pub(crate) h2d: [RouteId; 4],
    pub(crate) d2h: [RouteId; 4],
    /// `peer[from][to]`; the diagonal is unused.
    pub(crate) peer: [[RouteId; 4]; 4],
}

pub(crate) fn h200() -> H200 {
    let mut b = Builder::new();
    let gpus = [0, 1, 2, 3].map(|g| b.endpoint(&format!("gpu{g}"), EndpointKind::Gpu));
    let ports = [0, 1, 2, 3].map(|g| {
        let ins = b.link(&format!("gpu{g}.h2d"), 55_500_000_000);
        let outs = b.link(&format!("gpu{g}.d2h"), 55_400_000_000);
        b.duplex((ins, 52_400_000_000), (outs, 50_650_000_000));
        let peer_out = b.link(&format!("gpu{g}.out"), 395_000_000_000);
        let peer_in = b.link(&format!("gpu{g}.in"), 395_000_000_000);
        b.duplex((peer_out, 390_000_000_000), (peer_in, 390_000_000_000));
        [ins, outs, peer_out, peer_in]
    });
    let io = b.limit("io", 189_200_000_000);
    let write = b.limit("write", 154_800_000_000);
    let classes = [EngineClass::H2d, EngineClass::D2h, EngineClass::Peer, EngineClass::Peer];
    let engines = gpus.map(|gpu| classes.map(|class| b.engine("e", gpu, class)));
    let all = [0, 1, 2, 3];
    H200 {
        h2d: all.map(|g| b.route(&[engines[g][0]], &[(ports[g][0], WHOLE), (io, WHOLE)], 645)),
        d2h: all.map(|g| b.route(&[engines[g][1]], &[(ports[g][1], WHOLE), (io, 1_057_000), (write, WHOLE)], 1000)),
        peer: all.map(|from| {
            all.map(|to| {
                let uses = [(ports[from][2], WHOLE), (ports[to][3], WHOLE)];
                b.route(&[engines[from][2], engines[to][3]], &uses, 1000)
            })
        }),
        machine: b.0,
    }
}

/// Numbers drawn from a seed (SplitMix64).
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// From `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.between(0, from.len() as u64 - 1) as usize]
    }
}

/// A machine drawn from `draw`: 1 to 6 engines with links of their own, some of them duplex, 0 to 3 shared limits with
/// uses between 0.5 and 3, one or two routes per engine, copies that hold two engines, setups, low rates.
pub(crate) fn any_machine(draw: &mut Draw) -> Machine {
    let mut b = Builder::new();
    // Small rates make the rounding visible, large ones are those of real nodes.
    let unit = draw.pick(&[10_000, 1_000_000, 1_000_000_000, 60_000_000_000]);
    let count = draw.between(1, 6);
    let links: Vec<_> = (0..count).map(|n| b.link(&format!("link{n}"), draw.between(unit, 5 * unit))).collect();
    let limits = (0..draw.between(0, 3)).map(|n| b.limit(&format!("limit{n}"), draw.between(unit, 8 * unit)));
    let limits: Vec<_> = limits.collect();
    let gpu = b.endpoint("gpu0", EndpointKind::Gpu);
    let engines: Vec<_> = (0..count).map(|_| b.engine("e", gpu, EngineClass::H2d)).collect();
    for pair in links.chunks_exact(2) {
        if draw.chance(40) {
            let [x, y] = [pair[0], pair[1]].map(|l| (l, b.0.capacities[l.at()].rate.0 / 100 * draw.between(80, 100)));
            b.duplex(x, y);
        }
    }
    for n in 0..count as usize {
        for _ in 0..draw.between(1, 2) {
            let mut uses = vec![(links[n], WHOLE)];
            let mut holds = vec![engines[n]];
            if draw.chance(20) {
                let other = draw.between(0, count - 1) as usize;
                if other != n {
                    uses.push((links[other], WHOLE));
                    holds.push(engines[other]);
                }
            }
            for &limit in &limits {
                if draw.chance(60) {
                    uses.push((limit, draw.pick(&[500_000, 1_000_000, 1_057_000, 2_000_000, 3_000_000])));
                }
            }
            let weight = draw.pick(&[1000, 1000, 645, 3000]);
            let route = b.route(&holds, &uses, weight);
            b.0.routes[route.at()].setup = Nanos(draw.pick(&[0, 0, 7_200, 40_000]));
            b.0.routes[route.at()].setup_queued = Nanos(draw.pick(&[0, 2_400, 7_200]));
        }
    }
    if draw.chance(50) {
        for capacity in &mut b.0.capacities {
            capacity.rate_low = Rate(capacity.rate.0 / 100 * draw.between(85, 100));
        }
    }
    b.0
}

/// Up to `most` blocks over the routes of `machine`, from one byte to about 20 ms each.
pub(crate) fn any_batch(draw: &mut Draw, machine: &Machine, most: u64) -> Vec<BatchBlock> {
    let longest = machine.capacities[0].rate.0 / 50;
    let count = draw.between(1, most);
    let one = |draw: &mut Draw| {
        let bytes = if draw.chance(10) { draw.between(0, 3) } else { draw.between(1, longest) };
        block(RouteId(draw.between(0, machine.routes.len() as u64 - 1) as u32), bytes)
    };
    (0..count).map(|_| one(draw)).collect()
}
