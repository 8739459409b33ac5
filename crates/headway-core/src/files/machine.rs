//! A node: memories, GPUs, links, shared limits, engines, routes, kernel costs. Read from a *machine file*.
//!
//! The model is Verner's (`verner-2014`, II and III) made precise: fixed routes, engines that serve one operation at a
//! time, and capacities shared max-min. Everything is referred to by index; names are for people.

mod beside;
mod confidence;
mod cpu;
mod file;
mod profile_file;
mod restrict;
mod shipped;
mod write;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use self::confidence::Confidence;
pub use self::cpu::{CpuCores, CpuCost};
pub use self::file::{RATE_MIN, parse};
pub use self::shipped::{SHIPPED, shipped};
pub use self::write::{with_file, write};
use crate::models::cpu::{ChunkWatch, DriverWatch};
pub use crate::models::index::{CapacityId, EndpointId, EngineId, RouteId};
use crate::models::transfer::{Direction, Method, Profile};
use crate::units::{Bytes, Nanos, PPM, RATE_MAX, Rate};

/// One computer with the links between its memories and GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The name that `--machine` and every result quote.
    pub name: String,
    /// One line on what it stands for and where its numbers come from.
    pub description: String,
    /// Memories and GPUs, in the order of the file: all memories first.
    pub endpoints: Vec<Endpoint>,
    /// Links first (a prefix), then limits.
    pub capacities: Vec<Capacity>,
    /// Engines in the order of the file.
    pub engines: Vec<Engine>,
    /// Routes in the order of the file.
    pub routes: Vec<Route>,
    /// Copies that were measured while they ran together; empty = links and limits say all.
    pub sets: Vec<MeasuredSet>,
    /// What kernels cost here.
    pub kernels: Vec<KernelCost>,
    /// The CPU as a processor of streams; `None` = nobody measured it, and [`Machine::cpu_or_assumed`] stands in.
    pub cpu: Option<CpuCores>,
    /// How well the numbers were checked against the node; `None` = uncalibrated: only the `serial` bound is used.
    pub calibration: Option<Calibration>,
    /// What copies cost by which method; empty = not measured.
    pub profile: Profile,
    /// Other programs whose turns at the copy engines its costs contain ([`Machine::beside`]).
    pub others: u32,
    /// The first 16 hexadecimal digits of the SHA-256 of the file's text.
    pub hash: String,
}

/// A memory or a GPU: where a transfer can begin or end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Name, for example `host` or `gpu0`.
    pub id: String,
    /// Memory or GPU.
    pub kind: EndpointKind,
    /// NUMA node, where known.
    pub numa: Option<u32>,
    /// PCI address, where known.
    pub pci: Option<String>,
    /// The driver's UUID of a GPU, where known.
    pub uuid: Option<String>,
}

/// What an [`Endpoint`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndpointKind {
    /// Host memory of one NUMA node, or a device that only produces or takes data (a frame grabber).
    Memory,
    /// A GPU with its own memory and engines.
    Gpu,
}

/// Something with a rate that several transfers share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Name of the link or limit.
    pub id: String,
    /// Typical rate.
    pub rate: Rate,
    /// Lowest rate measured; equal to `rate` where the file gives none. Bounds use this one.
    pub rate_low: Rate,
    /// Link or limit.
    pub kind: CapacityKind,
}

/// What a [`Capacity`] is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CapacityKind {
    /// A directed edge between two named points.
    Link {
        /// Where it starts; an endpoint's or a switch's name.
        from: String,
        /// Where it ends.
        to: String,
        /// The other direction of the same wire, and the rate of *this* link while that one carries a transfer.
        opposite: Option<(CapacityId, Rate)>,
    },
    /// A capacity shared by routes: memory, root complex, half-duplex bus.
    Limit,
}

/// What serves one operation at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Engine {
    /// Name, for example `gpu0.h2d`.
    pub id: String,
    /// The GPU it belongs to.
    pub gpu: EndpointId,
    /// What it serves; one DMA engine for both directions serves both.
    pub serves: Vec<EngineClass>,
    /// Operations it can work on at a time in hardware; plans assume 1.
    pub parallel: u32,
}

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineClass {
    /// Memory to GPU.
    H2d,
    /// GPU to memory.
    D2h,
    /// GPU to GPU.
    Peer,
    Ee,
}

/// The fixed way from one endpoint to another (`verner-2014`, III: "the data route between each two endpoints is fixed").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where it starts.
    pub from: EndpointId,
    /// Where it ends.
    pub to: EndpointId,
    /// How the bytes move.
    pub method: Method,
    /// The engines an operation holds: one, or both ends' for a peer copy.
    pub engines: Vec<EngineId>,
    /// Every capacity it crosses with the bytes of that capacity used per byte moved, in parts per million; links
    /// (always one million) in path order, then limits.
    pub uses: Vec<(CapacityId, u32)>,
    /// Share in a full capacity relative to other routes, 1 to 1,000,000.
    pub weight: u32,
    /// Engine time per operation with no byte moving, when it starts on an idle engine.
    pub setup: Nanos,
    /// Set-up time when another operation was already queued behind the one before.
    pub setup_queued: Nanos,
    /// Time of the submitting thread per operation: each further operation of a batch begins at least this much later. The
    /// first one's is part of `setup`.
    pub submit: Nanos,
}

/// What copies got while they ran together, each of them all the while (specification of messages, 1.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasuredSet {
    /// Their routes between host and GPUs, in ascending order.
    pub routes: Vec<RouteId>,
    /// The median rate of each.
    pub rates: Vec<Rate>,
}

/// The cost of a kernel: `setup + max(bytes / rate, longest chain / chain_rate)`, rounded up; of one whose workload says how many
/// operations each pixel needs, see [`KernelCost::with_operations`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelCost {
    /// Kernel name as workloads write it, for example `aes128-cbc`.
    pub id: String,
    /// GPUs it holds for; empty = all.
    pub gpus: Vec<EndpointId>,
    /// Launch to completion with no data.
    pub setup: Nanos,
    /// All data of one launch together, when there is enough of it to fill the GPU.
    pub rate: Rate,
    /// Data that must be processed one after the other (one chain of blocks); `None` = data of a launch is independent.
    pub chain_rate: Option<Rate>,
    /// Bytes times operations for each pixel, per second, beside what [`KernelCost::rate`] takes; `None` = [`KernelCost::rate`]
    /// stands for [`KernelCost::OPERATIONS`] operations.
    pub operation_rate: Option<Rate>,
}

impl KernelCost {
    /// What a rate without `operation_rate` was measured with: the paper's (`verner-2014`, V-A).
    pub const OPERATIONS: u32 = 1000;

    /// A launch over `bytes` that takes `time`.
    #[must_use]
    pub fn of_launch(id: String, bytes: Bytes, time: Nanos) -> Self {
        let setup = time.saturating_sub(RATE_MAX.time_for(bytes));
        Self { id, gpus: Vec::new(), setup, rate: RATE_MAX, chain_rate: None, operation_rate: None }
    }

    /// Worst-case time of one launch over `total` bytes of images with so many operations for each pixel: `setup + bytes / rate +
    /// bytes operations / operation_rate`. Without `operation_rate` more than [`Self::OPERATIONS`] take in proportion longer, and
    /// fewer no less time.
    #[must_use]
    pub fn with_operations(&self, total: Bytes, operations: u32) -> Nanos {
        let times = |operations: u32| Bytes(total.0.saturating_mul(u64::from(operations)));
        let work = match self.operation_rate {
            Some(rate) => self.rate.time_for(total).saturating_add(rate.time_for(times(operations))),
            None => {
                let most = u128::from(self.rate.time_for(total).0) * u128::from(operations.max(Self::OPERATIONS));
                Nanos(u64::try_from(most.div_ceil(u128::from(Self::OPERATIONS))).unwrap_or(u64::MAX))
            }
        };
        self.setup.saturating_add(work)
    }

    /// Worst-case time of one launch: [`KernelCost::with_operations`] where there is such a number, else [`KernelCost::cost`].
    #[must_use]
    pub fn launch(&self, total: Bytes, chain: Bytes, operations: Option<u32>) -> Nanos {
        operations.map_or_else(|| self.cost(total, chain), |operations| self.with_operations(total, operations))
    }

    /// Worst-case time of one launch over `total` bytes whose longest sequential chain has `chain` bytes.
    #[must_use]
    pub fn cost(&self, total: Bytes, chain: Bytes) -> Nanos {
        let chained = self.chain_rate.map_or(Nanos::ZERO, |rate| rate.time_for(chain));
        self.setup.saturating_add(self.rate.time_for(total).max(chained))
    }
}

/// What is known of the distance between the model and the node (specification of messages, 1.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calibration {
    /// Sets of concurrent transfers measured; 0 = none, the file vouches for its rates.
    pub sets: u32,
    /// Repetitions of each.
    pub repeats: u32,
    /// Random batches that the machine was checked with and not fitted to; 0 = the errors are those of the sets.
    pub batches: u32,
    /// Largest quotient fastest / slowest of any rate seen, in parts per million, at least one million.
    pub sigma_ppm: u64,
    /// Added to every worst-case time, parts per million.
    pub margin_ppm: u64,
    /// Added to every worst-case time: submission to start plus completion to noticed.
    pub jitter: Nanos,
    /// Median of |measured - predicted| / predicted, ppm.
    pub median_ppm: u64,
    /// 95th percentile of the same, ppm.
    pub p95_ppm: u64,
    /// Largest of the same, ppm.
    pub max_ppm: u64,
    /// When it was measured.
    pub date: String,
    /// Driver version it was measured with.
    pub driver: String,
    /// How late the driver's thread would have run while the node was measured; `None` = nobody looked.
    pub driver_watch: Option<DriverWatch>,
    /// How late threads that copy by chunks were; empty = nobody looked.
    pub chunk_watch: BTreeMap<Direction, ChunkWatch>,
}

impl Calibration {
    /// That of a file which vouches for its rates: no transfer is ever slower, however many run beside it.
    #[must_use]
    pub fn vouched() -> Self {
        Self {
            sets: 0,
            repeats: 0,
            batches: 0,
            sigma_ppm: PPM,
            margin_ppm: 0,
            jitter: Nanos::ZERO,
            median_ppm: 0,
            p95_ppm: 0,
            max_ppm: 0,
            date: String::new(),
            driver: "none".to_owned(),
            driver_watch: None,
            chunk_watch: BTreeMap::new(),
        }
    }

    /// Whether nobody measured it: the file vouches for its rates.
    #[must_use]
    pub const fn is_vouched(&self) -> bool {
        self.sets == 0
    }

    /// The worst case that stands for `time` of the model: more by the margin, and the jitter.
    #[must_use]
    pub fn with_margin(&self, time: Nanos) -> Nanos {
        let factor = u128::from(PPM) + u128::from(self.margin_ppm);
        let larger = u128::from(time.0).saturating_mul(factor).div_ceil(u128::from(PPM));
        Nanos(u64::try_from(larger).unwrap_or(u64::MAX)).saturating_add(self.jitter)
    }
}

impl Machine {
    /// No node: servers of demands, which cost what their workload says, and nothing else.
    #[must_use]
    pub fn none() -> Self {
        Self {
            name: "none".to_owned(),
            description: "no node: demands cost what their workload says".to_owned(),
            endpoints: Vec::new(),
            capacities: Vec::new(),
            engines: Vec::new(),
            routes: Vec::new(),
            sets: Vec::new(),
            kernels: Vec::new(),
            cpu: None,
            calibration: None,
            profile: Profile::default(),
            others: 0,
            hash: crate::files::document::hash(""),
        }
    }

    /// The class of an operation over `route`, by what stands at its ends.
    #[must_use]
    pub fn class(&self, route: RouteId) -> EngineClass {
        let route = &self.routes[route.at()];
        match (self.endpoints[route.from.at()].kind, self.endpoints[route.to.at()].kind) {
            (EndpointKind::Memory, _) => EngineClass::H2d,
            (EndpointKind::Gpu, EndpointKind::Memory) => EngineClass::D2h,
            (EndpointKind::Gpu, EndpointKind::Gpu) => EngineClass::Peer,
        }
    }

    /// The GPUs, in order.
    pub fn gpus(&self) -> impl Iterator<Item = EndpointId> + '_ {
        self.ids_of(EndpointKind::Gpu)
    }

    /// The memories, in order.
    pub fn memories(&self) -> impl Iterator<Item = EndpointId> + '_ {
        self.ids_of(EndpointKind::Memory)
    }

    fn ids_of(&self, kind: EndpointKind) -> impl Iterator<Item = EndpointId> + '_ {
        (0..).zip(&self.endpoints).filter(move |(_, e)| e.kind == kind).map(|(i, _)| EndpointId(i))
    }

    /// The endpoint called `id`.
    #[must_use]
    pub fn endpoint(&self, id: &str) -> Option<EndpointId> {
        (0..).zip(&self.endpoints).find(|(_, e)| e.id == id).map(|(i, _)| EndpointId(i))
    }

    /// The `dma` or `peer` route between two endpoints: the one plans use.
    #[must_use]
    pub fn route(&self, from: EndpointId, to: EndpointId) -> Option<RouteId> {
        (0..)
            .zip(&self.routes)
            .find(|(_, r)| r.from == from && r.to == to && r.method != Method::Pageable)
            .map(|(i, _)| RouteId(i))
    }

    /// The execution engine of `gpu`.
    #[must_use]
    pub fn execution_engine(&self, gpu: EndpointId) -> Option<EngineId> {
        (0..)
            .zip(&self.engines)
            .find(|(_, e)| e.gpu == gpu && e.serves.contains(&EngineClass::Ee))
            .map(|(i, _)| EngineId(i))
    }

    /// The CPU as the file has it, else what is assumed of any.
    #[must_use]
    pub fn cpu_or_assumed(&self) -> CpuCores {
        self.cpu.clone().unwrap_or_else(CpuCores::assumed)
    }

    /// The cost entry of kernel `id` on `gpu`.
    #[must_use]
    pub fn kernel(&self, id: &str, gpu: EndpointId) -> Option<&KernelCost> {
        self.kernels.iter().find(|k| k.id == id && (k.gpus.is_empty() || k.gpus.contains(&gpu)))
    }
}
