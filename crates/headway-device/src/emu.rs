//! The emulated GPU: queues as threads, device memory as memory of this process, paced engines.
//!
//! It exists so that everything runs, and is tested, without a GPU. Its figures are labelled `emu` and say nothing about any GPU.
//! All emulated GPUs share [`MemoryDomain::EMULATED`].

mod gate;
mod memory;
mod pager;
mod queue;
mod resident;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use headway_core::files::machine::{CapacityKind, EndpointId, EngineClass, KernelCost, Machine, RouteId};
use headway_core::models::transfer::{Method, ResidentShape, WindowMapping};
use headway_core::units::{Bytes, Nanos};

use gate::Gate;
pub use gate::OperationPace;
use memory::{PinnedMemory, Registered, WindowedMemory};
use pager::EmuPager;
use queue::EmuQueue;
use resident::{EmuResident, PIECE_MAX};

use crate::buffer::{Budget, Buffer, DeviceId, HeapMemory, HostKind, MemoryDomain, MemoryPlace, Span, lock};
use crate::gpu::{Caching, CpuReach, Gpu, Pager, Queue, Resident, ResidentOptions};
use crate::work::{Demand, Work};
use crate::{Description, DeviceError, DeviceLimits, DeviceSource, check};

/// Queues alive on one GPU at a time.
const QUEUES_MAX: usize = 256;
/// Resident copiers alive on one GPU at a time.
const RESIDENTS_MAX: usize = 8;
/// The two buffers through which ordinary memory is copied have this size each (`cho-2018`, on CUDA's own pinned buffers).
const BOUNCE_BYTES: usize = 1 << 20;
/// Every window form, in the order of preference.
const WINDOWS: [WindowMapping; 3] = [WindowMapping::Gdrdrv, WindowMapping::Vulkan, WindowMapping::DmaBuf];
/// Every resident form.
const RESIDENTS: [ResidentShape; 3] = [ResidentShape::Hub, ResidentShape::Gpc, ResidentShape::Gpc4];

/// Emulated GPUs of this process, for copies between them.
static GPUS: Mutex<Vec<(DeviceId, Weak<Shared>)>> = Mutex::new(Vec::new());

/// What a launch of a work costs beyond its set-up.
pub type LaunchTime = Arc<dyn Fn(&str, Demand) -> Nanos + Send + Sync>;

/// What to build.
#[derive(Clone)]
pub struct EmuSpec {
    /// Name for people.
    pub name: String,
    /// The classes of engines that plans may use; queues copy in every direction.
    pub engines: Vec<EngineClass>,
    /// Copies from the host.
    pub h2d: OperationPace,
    /// Copies to the host.
    pub d2h: OperationPace,
    /// Copies within the device and between devices; between two the slower counts. Outgoing and incoming ones are served
    /// by an engine each.
    pub peer: OperationPace,
    /// One engine serves both directions to and from the host.
    pub half_duplex: bool,
    /// Pieces moved by a kernel.
    pub kernel: OperationPace,
    /// Launches, which take as long as the CPU form at least; the rate is not used.
    pub launch: OperationPace,
    /// What launches cost beyond that set-up; `None` = nothing.
    pub launch_time: Option<LaunchTime>,
    /// One piece of a resident copier.
    pub piece: OperationPace,
    /// What a load of 64 bytes through a window takes.
    pub load_line: Nanos,
    /// The window forms that it has.
    pub windows: Vec<WindowMapping>,
    /// The resident forms that it has.
    pub residents: Vec<ResidentShape>,
    /// Whether copies to and from other emulated GPUs go directly.
    pub peers: bool,
    /// NUMA node to report.
    pub numa: Option<u32>,
    /// Device memory.
    pub memory_bytes: Bytes,
    pub limits: DeviceLimits,
}

impl EmuSpec {
    /// Everything at the pace of the CPU, every form but `gdrdrv`, 8 GiB of memory.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            engines: vec![EngineClass::H2d, EngineClass::D2h, EngineClass::Peer, EngineClass::Ee],
            h2d: OperationPace::FREE,
            d2h: OperationPace::FREE,
            peer: OperationPace::FREE,
            half_duplex: false,
            kernel: OperationPace::FREE,
            launch: OperationPace::FREE,
            launch_time: None,
            piece: OperationPace::FREE,
            load_line: Nanos::ZERO,
            windows: vec![WindowMapping::Vulkan, WindowMapping::DmaBuf],
            residents: RESIDENTS.to_vec(),
            peers: true,
            numa: None,
            memory_bytes: Bytes(8 << 30),
            limits: DeviceLimits::default(),
        }
    }

    /// The engines of `gpu` in `machine`, with the set-up and the rate of the fastest route that each serves alone, and the kernel
    /// costs of the file; the rest as in [`EmuSpec::new`]. Sharing of links between engines is not emulated.
    #[must_use]
    pub fn of_machine(machine: &Machine, gpu: EndpointId) -> Self {
        let mut spec = Self::new(&format!("emulated {} of {}", machine.endpoints[gpu.at()].id, machine.name));
        // A class is served by the first engine that lists it.
        let own = || (0..).zip(&machine.engines).filter(|(_, engine)| engine.gpu == gpu);
        let server = |class| own().find(|(_, engine)| engine.serves.contains(&class)).map(|(index, _)| index);
        let pace = |class| server(class).map_or(OperationPace::FREE, |engine| pace(machine, engine, class));
        (spec.h2d, spec.d2h, spec.peer) = (pace(EngineClass::H2d), pace(EngineClass::D2h), pace(EngineClass::Peer));
        spec.launch = pace(EngineClass::Ee);
        spec.half_duplex = server(EngineClass::H2d).is_some() && server(EngineClass::H2d) == server(EngineClass::D2h);
        spec.engines.retain(|class| server(*class).is_some());
        spec.numa = machine.endpoints[gpu.at()].numa;
        let costs = machine.kernels.clone();
        spec.launch_time = Some(Arc::new(move |work, Demand { bytes, chain, operations }| {
            let here = |cost: &&KernelCost| cost.id == work && (cost.gpus.is_empty() || cost.gpus.contains(&gpu));
            costs.iter().find(here).map_or(Nanos::ZERO, |cost| cost.launch(bytes, chain, operations))
        }));
        spec
    }

    /// The pace of what serves `class`; `None` where nothing does.
    #[must_use]
    pub fn pace(&self, class: EngineClass) -> Option<OperationPace> {
        let pace = match class {
            EngineClass::H2d => self.h2d,
            EngineClass::D2h => self.d2h,
            EngineClass::Peer => self.peer,
            EngineClass::Ee => self.launch,
        };
        self.engines.contains(&class).then_some(pace)
    }
}

/// Set-up and rate of the fastest route of `class` that `engine` serves.
fn pace(machine: &Machine, engine: u32, class: EngineClass) -> OperationPace {
    let routes = (0..).zip(&machine.routes).filter(|(id, route)| {
        machine.class(RouteId(*id)) == class
            && route.method != Method::Pageable
            && route.engines.iter().any(|used| used.0 == engine)
    });
    let rated = routes.filter_map(|(_, route)| {
        let capacities = route.uses.iter().map(|&(id, _)| &machine.capacities[id.at()]);
        let links = capacities.filter(|capacity| matches!(capacity.kind, CapacityKind::Link { .. }));
        links.map(|link| link.rate).min().map(|rate| (rate, route.setup))
    });
    let fastest = rated.max_by_key(|&(rate, setup)| (rate, std::cmp::Reverse(setup)));
    fastest.map_or(OperationPace::FREE, |(rate, setup)| OperationPace { setup, rate: Some(rate) })
}

/// An emulated GPU.
pub struct EmuGpu {
    shared: Arc<Shared>,
}

/// What the GPU, its queues, pagers and resident copiers share.
struct Shared {
    description: Description,
    id: DeviceId,
    budget: Arc<Budget>,
    numa: Option<u32>,
    peers: bool,
    windows: Vec<WindowMapping>,
    residents_forms: Vec<ResidentShape>,
    load_line: Nanos,
    pace_in: OperationPace,
    pace_out: OperationPace,
    pace_peer: OperationPace,
    kernel: OperationPace,
    launch: OperationPace,
    launch_time: Option<LaunchTime>,
    piece: OperationPace,
    h2d: Arc<Gate>,
    d2h: Arc<Gate>,
    peer_out: Gate,
    peer_in: Gate,
    ee: Gate,
    /// The buffers of pageable copies in and out.
    bounce: [Mutex<[Vec<u8>; 2]>; 2],
    lost: AtomicBool,
    queues: AtomicUsize,
    residents: AtomicUsize,
    pager_open: AtomicBool,
}

impl Shared {
    fn alive(&self) -> Result<(), DeviceError> {
        if self.lost.load(Ordering::Acquire) { Err(DeviceError::DeviceLost) } else { Ok(()) }
    }

    fn here(&self) -> (DeviceId, MemoryDomain) {
        (self.id, MemoryDomain::EMULATED)
    }
}

/// The emulated GPU `id`, if it is open.
fn find(id: DeviceId) -> Option<Arc<Shared>> {
    lock(&GPUS).iter().find(|(other, _)| *other == id).and_then(|(_, gpu)| gpu.upgrade())
}

impl EmuGpu {
    /// A GPU; it starts no thread before its first queue.
    #[must_use]
    pub fn open(spec: EmuSpec) -> Self {
        let h2d = Arc::new(Gate::default());
        let d2h = if spec.half_duplex { Arc::clone(&h2d) } else { Arc::default() };
        let shared = Arc::new(Shared {
            description: Description {
                name: spec.name,
                uuid: None,
                pci: None,
                source: DeviceSource::Emu,
                engines: spec.engines,
                memory_bytes: spec.memory_bytes,
                limits: spec.limits,
            },
            id: DeviceId::new(),
            budget: Budget::new(&spec.limits, spec.memory_bytes),
            numa: spec.numa,
            peers: spec.peers,
            windows: spec.windows,
            residents_forms: spec.residents,
            load_line: spec.load_line,
            pace_in: spec.h2d,
            pace_out: spec.d2h,
            pace_peer: spec.peer,
            kernel: spec.kernel,
            launch: spec.launch,
            launch_time: spec.launch_time,
            piece: spec.piece,
            h2d,
            d2h,
            peer_out: Gate::default(),
            peer_in: Gate::default(),
            ee: Gate::default(),
            bounce: Default::default(),
            lost: AtomicBool::new(false),
            queues: AtomicUsize::new(0),
            residents: AtomicUsize::new(0),
            pager_open: AtomicBool::new(false),
        });
        let mut gpus = lock(&GPUS);
        gpus.retain(|(_, gpu)| gpu.strong_count() > 0);
        gpus.push((shared.id, Arc::downgrade(&shared)));
        drop(gpus);
        Self { shared }
    }

    fn place(&self) -> MemoryPlace {
        MemoryPlace::Device { id: self.shared.id, domain: MemoryDomain::EMULATED }
    }

    /// Whether `have` lists `form`.
    fn form<T: PartialEq>(&self, form: T, word: &str, have: &[T]) -> Result<(), DeviceError> {
        self.shared.alive()?;
        if have.contains(&form) {
            return Ok(());
        }
        Err(DeviceError::Unavailable {
            what: format!("the form `{word}` on `{}`", self.shared.description.name),
            reason: "this emulated GPU was built without it".into(),
            remedy: "list it in the GPU's specification, or use another form".into(),
        })
    }
}

/// Counts one more of what may be alive `max` times.
fn count(counter: &AtomicUsize, max: usize, limit: &'static str) -> Result<(), DeviceError> {
    let more = |count: usize| (count < max).then_some(count + 1);
    match counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
        Ok(_) => Ok(()),
        Err(_) => Err(DeviceError::Refused { limit, max: max as u64 }),
    }
}

impl Gpu for EmuGpu {
    fn description(&self) -> &Description {
        &self.shared.description
    }

    fn id(&self) -> DeviceId {
        self.shared.id
    }

    fn domain(&self) -> MemoryDomain {
        MemoryDomain::EMULATED
    }

    fn numa(&self) -> Option<u32> {
        self.shared.numa
    }

    fn reaches(&self, peer: DeviceId) -> bool {
        self.shared.reaches(peer)
    }

    fn device_buffer(&self, bytes: usize, reach: CpuReach) -> Result<Buffer, DeviceError> {
        self.shared.alive()?;
        if let CpuReach::Window(mapping) = reach {
            self.form(mapping, mapping.word(), &self.shared.windows)?;
        }
        let reservation = self.shared.budget.reserve(1, 0, bytes as u64)?;
        Ok(match reach {
            CpuReach::Device => Buffer::new(HeapMemory::new(bytes, self.place())?, reservation),
            CpuReach::Window(mapping) => {
                Buffer::new(WindowedMemory::new(bytes, self.place(), mapping, self.shared.load_line)?, reservation)
            }
        })
    }

    fn pinned_buffer(&self, bytes: usize, _: Caching) -> Result<Buffer, DeviceError> {
        self.shared.alive()?;
        let reservation = self.shared.budget.reserve(1, bytes as u64, 0)?;
        Ok(Buffer::new(PinnedMemory::new(bytes)?, reservation))
    }

    fn register(&self, buffer: &Buffer, range: Range<usize>) -> Result<Buffer, DeviceError> {
        self.shared.alive()?;
        let reservation = self.shared.budget.reserve(1, 0, 0)?;
        Buffer::view(buffer, range, reservation, Registered::new)
    }

    fn host_kind(&self, memory: &[u8]) -> Result<HostKind, DeviceError> {
        Ok(if memory::is_pinned(memory) { HostKind::Pinned } else { HostKind::Pageable })
    }

    fn pageable_buffer(&self, bytes: usize) -> Result<Buffer, DeviceError> {
        self.shared.alive()?;
        let reservation = self.shared.budget.reserve(1, bytes as u64, 0)?;
        Ok(Buffer::new(HeapMemory::pageable(bytes)?, reservation))
    }

    fn load(&self, _: &dyn Work) -> Result<(), DeviceError> {
        self.shared.alive()
    }

    fn queue(&self, _: bool) -> Result<Box<dyn Queue>, DeviceError> {
        self.shared.alive()?;
        count(&self.shared.queues, QUEUES_MAX, "queues of one GPU")?;
        Ok(Box::new(EmuQueue::start(Arc::clone(&self.shared))?))
    }

    fn copy_in(&self, to: &mut Span, from: &[u8]) -> Result<(), DeviceError> {
        self.shared.alive()?;
        check::ordinary(self.shared.here(), to, from.len(), true)?;
        let mut buffers = lock(&self.shared.bounce[0]);
        let to = device_bytes_mut(to);
        for (piece, (from, to)) in from.chunks(BOUNCE_BYTES).zip(to.chunks_mut(BOUNCE_BYTES)).enumerate() {
            let buffer = bounce(&mut buffers[piece % 2], from.len());
            buffer.copy_from_slice(from);
            self.shared.bounce(true, from.len(), || to.copy_from_slice(buffer));
        }
        Ok(())
    }

    fn copy_out(&self, to: &mut [u8], from: &Span) -> Result<(), DeviceError> {
        self.shared.alive()?;
        check::ordinary(self.shared.here(), from, to.len(), false)?;
        let mut buffers = lock(&self.shared.bounce[1]);
        let from = device_bytes(from);
        for (piece, (from, to)) in from.chunks(BOUNCE_BYTES).zip(to.chunks_mut(BOUNCE_BYTES)).enumerate() {
            let buffer = bounce(&mut buffers[piece % 2], from.len());
            self.shared.bounce(false, from.len(), || buffer.copy_from_slice(from));
            to.copy_from_slice(buffer);
        }
        Ok(())
    }

    fn windows(&self) -> Vec<(WindowMapping, Result<(), DeviceError>)> {
        WINDOWS.map(|mapping| (mapping, self.form(mapping, mapping.word(), &self.shared.windows))).into()
    }

    fn pager(&self, mapping: WindowMapping, buffer: &Buffer) -> Result<Box<dyn Pager>, DeviceError> {
        self.form(mapping, mapping.word(), &self.shared.windows)?;
        if self.shared.pager_open.swap(true, Ordering::AcqRel) {
            return Err(DeviceError::Refused { limit: "paged windows of one device", max: 1 });
        }
        match EmuPager::open(Arc::clone(&self.shared), buffer) {
            Ok(pager) => Ok(Box::new(pager)),
            Err(error) => {
                self.shared.pager_open.store(false, Ordering::Release);
                Err(error)
            }
        }
    }

    fn residents(&self) -> Vec<(ResidentShape, Result<(), DeviceError>)> {
        RESIDENTS.map(|shape| (shape, self.form(shape, shape.word(), &self.shared.residents_forms))).into()
    }

    fn resident(&self, shape: ResidentShape, options: ResidentOptions) -> Result<Box<dyn Resident>, DeviceError> {
        self.form(shape, shape.word(), &self.shared.residents_forms)?;
        if !(1..=PIECE_MAX).contains(&options.piece) {
            let reason = format!("pieces of {} bytes: 1 to {PIECE_MAX} can be had", options.piece);
            return Err(DeviceError::Invalid { what: "resident copier", reason });
        }
        let stage = EmuResident::stage()?;
        count(&self.shared.residents, RESIDENTS_MAX, "resident copiers of one GPU")?;
        Ok(Box::new(EmuResident::start(Arc::clone(&self.shared), shape, options, stage)?))
    }
}

/// The bytes of a span of host or emulated device memory.
fn device_bytes(span: &Span) -> &[u8] {
    // SAFETY: `check::operation` and `check::ordinary` admit only spans of host memory and of the domain of emulated devices; both are memory of
    // this process, initialised and valid while the span lives. Nobody writes them: other claims on them only read.
    unsafe { std::slice::from_raw_parts(span.as_ptr(), span.len()) }
}

/// The same, to be written.
fn device_bytes_mut(span: &mut Span) -> &mut [u8] {
    // SAFETY: as in `device_bytes`; both checks admit only spans claimed for writing as destination, so nobody else holds a claim on these bytes.
    unsafe { std::slice::from_raw_parts_mut(span.as_ptr(), span.len()) }
}

/// `len` bytes of `buffer`, made longer as needed.
fn bounce(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Access;
    use crate::conformance::{Xor, finish};
    use crate::gpu::Operation;
    use crate::step::step;
    use crate::work::{CpuArgument, StepMemory};
    use headway_core::plan::block;
    use headway_core::units::Rate;
    use headway_os::clock;

    const HOUR: Nanos = Nanos(3_600_000_000_000);

    fn copy(from: &Buffer, to: &Buffer, at: usize) -> Operation {
        let claim = |buffer: &Buffer, access| buffer.claim(at..at + 64, access).unwrap();
        Operation::Copy { from: claim(from, Access::Read), to: claim(to, Access::Write) }
    }

    #[test]
    fn queues_and_resident_copiers_of_the_parent_can_be_dropped_in_a_forked_child() {
        let gpu = EmuGpu::open(EmuSpec::new("emu0"));
        let options = ResidentOptions { piece: 4096, lease: HOUR, patience: HOUR };
        let queue = gpu.queue(false).unwrap();
        let resident = gpu.resident(ResidentShape::Hub, options).unwrap();
        assert!(headway_os::fork::holds_in_a_child(|| {
            drop((queue, resident));
            true
        }));
    }

    /// What two copies of 64 bytes on two queues take together, if the second goes `inward`.
    fn two_queues(spec: EmuSpec, inward: bool) -> Nanos {
        let gpu = EmuGpu::open(spec);
        let (host, there) =
            (gpu.pinned_buffer(128, Caching::Cached).unwrap(), gpu.device_buffer(128, CpuReach::Device).unwrap());
        let mut queues = [gpu.queue(false).unwrap(), gpu.queue(false).unwrap()];
        let started = clock::now();
        queues[0].submit(copy(&host, &there, 0), 0).unwrap();
        queues[1].submit(if inward { copy(&host, &there, 64) } else { copy(&there, &host, 64) }, 0).unwrap();
        for queue in &mut queues {
            assert_eq!(finish(queue.as_mut(), 1)[0].result, Ok(()));
        }
        clock::now() - started
    }

    #[test]
    fn queues_take_turns_at_an_engine() {
        let pace = OperationPace { setup: Nanos(300_000), rate: Some(Rate(64_000_000)) };
        let spec = EmuSpec { h2d: pace, d2h: pace, ..EmuSpec::new("emu0") };
        assert!(two_queues(spec.clone(), true) >= Nanos(602_000), "two copies in, one after the other");
        assert!(two_queues(EmuSpec { half_duplex: true, ..spec }, false) >= Nanos(602_000), "one engine for both ways");
    }

    #[test]
    fn ordinary_memory_takes_the_time_of_its_engine() {
        let pace = OperationPace { setup: Nanos(200_000), rate: None };
        let gpu = EmuGpu::open(EmuSpec { h2d: pace, ..EmuSpec::new("emu0") });
        let there = gpu.device_buffer((2 << 20) + 1, CpuReach::Device).unwrap();
        let started = clock::now();
        gpu.copy_in(&mut there.claim(0..there.len(), Access::Write).unwrap(), &vec![1; there.len()]).unwrap();
        assert!(clock::now() - started >= Nanos(600_000), "three buffers full");
    }

    #[test]
    fn a_slow_window_takes_its_time_for_every_line() {
        let spec = EmuSpec { load_line: Nanos(100_000), ..EmuSpec::new("emu0") };
        let there = EmuGpu::open(spec).device_buffer(256, CpuReach::Window(WindowMapping::Vulkan)).unwrap();
        let started = clock::now();
        there.claim(0..256, Access::Read).unwrap().load(63, &mut [0; 66]).unwrap();
        assert!(clock::now() - started >= Nanos(300_000), "66 bytes from byte 63 on lie in three lines");
    }

    #[test]
    fn gpus_without_peers_do_not_reach_others() {
        let lonely = EmuGpu::open(EmuSpec { peers: false, ..EmuSpec::new("emu0") });
        let other = EmuGpu::open(EmuSpec::new("emu1"));
        assert!(!lonely.reaches(other.id()) && !other.reaches(lonely.id()) && lonely.reaches(lonely.id()));
        let buffer = |gpu: &EmuGpu| gpu.device_buffer(64, CpuReach::Device).unwrap();
        let refused = other.queue(false).unwrap().submit(copy(&buffer(&lonely), &buffer(&other), 0), 0);
        assert!(matches!(refused, Err(DeviceError::Invalid { .. })), "{refused:?}");
    }

    #[test]
    fn a_resident_copier_that_does_not_answer_is_parked_and_leaves_memory_alone() {
        let pace = OperationPace { setup: HOUR, rate: None };
        let gpu = EmuGpu::open(EmuSpec { piece: pace, ..EmuSpec::new("emu0") });
        let there = gpu.device_buffer(4096, CpuReach::Device).unwrap();
        for shape in RESIDENTS {
            let options = ResidentOptions { piece: 256, lease: HOUR, patience: Nanos(1_000_000) };
            let mut resident = gpu.resident(shape, options).unwrap();
            for _ in 0..2 {
                let mut span = there.claim(0..4096, Access::Write).unwrap();
                let error = resident.copy_in(&mut span, &[1; 4096]).unwrap_err();
                assert!(matches!(error, DeviceError::Timeout { after: Nanos(1_000_000), .. }), "{error}");
            }
        }
    }

    #[test]
    fn a_resident_copier_whose_lease_ends_at_once_copies_all_the_same() {
        let gpu = EmuGpu::open(EmuSpec::new("emu0"));
        let there = gpu.device_buffer(1000, CpuReach::Device).unwrap();
        for shape in RESIDENTS {
            let options = ResidentOptions { piece: 256, lease: Nanos::ZERO, patience: HOUR };
            let mut resident = gpu.resident(shape, options).unwrap();
            for round in 0..50 {
                let mut found = [0; 1000];
                resident.copy_in(&mut there.claim(0..1000, Access::Write).unwrap(), &[round; 1000]).unwrap();
                resident.copy_out(&mut found, &there.claim(0..1000, Access::Read).unwrap()).unwrap();
                assert_eq!(found, [round; 1000]);
            }
        }
    }

    #[test]
    fn queues_and_resident_copiers_are_bounded() {
        let gpu = EmuGpu::open(EmuSpec::new("emu0"));
        let queues: Vec<_> = (0..QUEUES_MAX).map(|_| gpu.queue(false).unwrap()).collect();
        assert!(matches!(gpu.queue(false).err(), Some(DeviceError::Refused { .. })));
        drop(queues);
        gpu.queue(false).unwrap();
        let options = ResidentOptions { piece: 256, lease: HOUR, patience: HOUR };
        let residents: Vec<_> =
            (0..RESIDENTS_MAX).map(|_| gpu.resident(ResidentShape::Hub, options).unwrap()).collect();
        assert!(matches!(gpu.resident(ResidentShape::Hub, options).err(), Some(DeviceError::Refused { .. })));
        drop(residents);
        gpu.resident(ResidentShape::Hub, options).unwrap();
        let wrong = ResidentOptions { piece: PIECE_MAX + 1, ..options };
        assert!(matches!(gpu.resident(ResidentShape::Hub, wrong).err(), Some(DeviceError::Invalid { .. })));
    }

    #[test]
    fn an_operation_lasts_at_least_setup_and_bytes_over_rate() {
        let pace = OperationPace { setup: Nanos(300_000), rate: Some(Rate(64_000_000)) };
        let gpu = EmuGpu::open(EmuSpec { h2d: pace, ..EmuSpec::new("slow") });
        let (host, there) =
            (gpu.pinned_buffer(192, Caching::Cached).unwrap(), gpu.device_buffer(192, CpuReach::Device).unwrap());
        let mut queue = gpu.queue(true).unwrap();
        (0..3).for_each(|at| queue.submit(copy(&host, &there, 64 * at), at as u64).unwrap());
        let done = finish(queue.as_mut(), 3);
        for completion in &done {
            assert!(completion.finished - completion.started >= Nanos(301_000), "{completion:?}");
        }
        assert!(done.windows(2).all(|pair| pair[0].finished <= pair[1].started), "one at a time");
    }

    #[test]
    fn a_wait_for_an_engine_is_no_part_of_an_operation() {
        let pace = OperationPace { setup: Nanos(2_000_000), rate: None };
        let spec = EmuSpec { h2d: pace, d2h: pace, half_duplex: true, ..EmuSpec::new("half") };
        let gpu = EmuGpu::open(spec);
        let (host, there) =
            (gpu.pinned_buffer(128, Caching::Cached).unwrap(), gpu.device_buffer(128, CpuReach::Device).unwrap());
        let mut queues = [gpu.queue(true).unwrap(), gpu.queue(true).unwrap()];
        queues[0].submit(copy(&host, &there, 0), 0).unwrap();
        queues[1].submit(copy(&there, &host, 64), 0).unwrap();
        let [first, second] = queues.each_mut().map(|queue| finish(queue.as_mut(), 1).remove(0));
        let (earlier, later) = if first.started < second.started { (first, second) } else { (second, first) };
        assert!(
            later.started >= earlier.started + Nanos(2_000_000),
            "one at a time, each timed from when it has the engine"
        );
    }

    #[test]
    fn a_step_that_refuses_its_block_fails_the_launch() {
        let gpu = EmuGpu::open(EmuSpec::new("emu0"));
        let [input, output] = [(); 2].map(|()| gpu.device_buffer(256, CpuReach::Device).unwrap());
        let memory = StepMemory {
            input: input.claim(0..256, Access::Read).unwrap(),
            output: output.claim(0..256, Access::Write).unwrap(),
            state: None,
        };
        let work: Arc<dyn Work> = Arc::new(Xor);
        let mut queue = gpu.queue(true).unwrap();
        queue.submit(step(&work, memory, 1).unwrap(), 9).unwrap();
        let done = finish(queue.as_mut(), 1);
        assert!(matches!(done[0].result, Err(DeviceError::Work(_))), "{done:?}");
    }

    #[test]
    fn the_engines_of_a_machine_file_keep_their_rates_and_costs() {
        use headway_core::files::machine::{Capacity, CapacityId, Endpoint, EndpointKind, EngineId, KernelCost, Route};
        let endpoint = |id: &str, kind| Endpoint { id: id.into(), kind, numa: None, pci: None, uuid: None };
        let link = |from: &str, to: &str, rate| Capacity {
            id: format!("{from}-{to}"),
            rate: Rate(rate),
            rate_low: Rate(rate),
            kind: CapacityKind::Link { from: from.into(), to: to.into(), opposite: None },
        };
        let route = |uses: &[u32], method| Route {
            from: EndpointId(0),
            to: EndpointId(1),
            method,
            engines: vec![EngineId(0)],
            uses: uses.iter().map(|&id| (CapacityId(id), 1_000_000)).collect(),
            weight: 1,
            setup: Nanos(7),
            setup_queued: Nanos(3),
            submit: Nanos(0),
        };
        let machine = Machine {
            name: "test".into(),
            description: String::new(),
            endpoints: vec![endpoint("host", EndpointKind::Memory), endpoint("gpu0", EndpointKind::Gpu)],
            capacities: vec![link("host", "switch", 8_000), link("switch", "gpu0", 5_000), link("host", "gpu0", 9_000)],
            engines: vec![headway_core::files::machine::Engine {
                id: "gpu0.h2d".into(),
                gpu: EndpointId(1),
                serves: vec![EngineClass::H2d, EngineClass::D2h],
                parallel: 1,
            }],
            routes: vec![route(&[0, 1], Method::Dma), route(&[2], Method::Pageable)],
            sets: vec![],
            kernels: vec![KernelCost {
                id: "k".into(),
                gpus: vec![],
                setup: Nanos(10),
                rate: Rate(1_000_000_000),
                chain_rate: Some(Rate(100_000_000)),
                operation_rate: None,
            }],
            cpu: None,
            calibration: None,
            profile: headway_core::models::transfer::Profile::default(),
            others: 0,
            hash: String::new(),
        };
        let spec = EmuSpec::of_machine(&machine, EndpointId(1));
        let copies = OperationPace { setup: Nanos(7), rate: Some(Rate(5_000)) };
        assert_eq!(spec.engines, [EngineClass::H2d, EngineClass::D2h]);
        assert_eq!(
            (spec.pace(EngineClass::H2d), spec.pace(EngineClass::D2h)),
            (Some(copies), Some(OperationPace::FREE))
        );
        assert_eq!((spec.pace(EngineClass::Ee), spec.half_duplex), (None, true));
        let mut input = vec![0; 112];
        block::write_header(&mut input, 0, &[32, 48]).unwrap();
        let arguments = [CpuArgument::Read(&input), CpuArgument::Null, CpuArgument::Null, CpuArgument::Int(2)];
        let demand = Xor.demand(&arguments).unwrap();
        let time = spec.launch_time.unwrap();
        assert_eq!(time("k", demand), Nanos(10 + 480), "the longest portion at the chain rate");
        // 80 bytes at 1 GB/s for up to 1000 operations, twice as long for twice as many.
        assert_eq!(time("k", Demand { operations: Some(2000), ..demand }), Nanos(10 + 160));
        assert_eq!(time("unknown", demand), Nanos::ZERO);
    }
}
