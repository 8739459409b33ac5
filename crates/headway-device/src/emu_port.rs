//! The emulated port: queues as threads, device memory as memory of this process, paced engines.
//!
//! It exists so that transfer methods run, and are tested, without a GPU. Its figures are labelled `emu` and say nothing
//! about any GPU. All emulated ports share [`Domain::EMULATED`].

mod gate;
mod memory;
mod pager;
mod queue;
mod resident;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use headway_core::files::machine::{EndpointId, EngineClass, Machine};
use headway_core::models::transfer::{Mapping, Shape};
use headway_core::units::{Bytes, Nanos};

use gate::Gate;
pub use gate::Pace;
use memory::{PinnedMemory, Registered, WindowedMemory};
use pager::EmuPager;
use queue::EmuQueue;
use resident::{EmuResident, PIECE_MAX};

use crate::buffer::{Budget, Buffer, DeviceId, Domain, HeapMemory, HostKind, Place, Span, lock};
use crate::emu::{EmuSpec, device_bytes, device_bytes_mut};
use crate::gpu::{Caching, Gpu, Pager, Queue, Reach, Resident, ResidentOptions};
use crate::{Description, DeviceError, Limits, Source, check};

/// Queues alive on one port at a time.
const QUEUES_MAX: usize = 256;
/// Resident copiers alive on one port at a time.
const RESIDENTS_MAX: usize = 8;
/// The two buffers through which ordinary memory is copied have this size each (`cho-2018`, on CUDA's own pinned buffers).
const BOUNCE_BYTES: usize = 1 << 20;
/// Every window form, in the order of preference.
const WINDOWS: [Mapping; 3] = [Mapping::Gdrdrv, Mapping::Vulkan, Mapping::DmaBuf];
/// Every resident form.
const RESIDENTS: [Shape; 3] = [Shape::Hub, Shape::Gpc, Shape::Gpc4];

/// Emulated ports of this process, for copies between them.
static PORTS: Mutex<Vec<(DeviceId, Weak<Shared>)>> = Mutex::new(Vec::new());

/// What to build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmuPortSpec {
    /// Name for people.
    pub name: String,
    /// Copies from the host.
    pub h2d: Pace,
    /// Copies to the host.
    pub d2h: Pace,
    /// Copies within the device and between devices; between two the slower counts. Outgoing and incoming ones are served
    /// by an engine each.
    pub peer: Pace,
    /// One engine serves both directions to and from the host.
    pub half_duplex: bool,
    /// Pieces moved by a kernel.
    pub kernel: Pace,
    /// Launches, beyond what the CPU form takes; the rate is not used.
    pub launch: Pace,
    /// One piece of a resident copier.
    pub piece: Pace,
    /// What a load of 64 bytes through a window takes.
    pub load_line: Nanos,
    /// The window forms that it has.
    pub windows: Vec<Mapping>,
    /// The resident forms that it has.
    pub residents: Vec<Shape>,
    /// Whether copies to and from other emulated ports go directly.
    pub peers: bool,
    /// NUMA node to report.
    pub numa: Option<u32>,
    /// Device memory.
    pub memory_bytes: Bytes,
    /// Limits.
    pub limits: Limits,
}

impl EmuPortSpec {
    /// Everything at the pace of the CPU, every form but `gdrdrv`, 8 GiB of memory.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            h2d: Pace::FREE,
            d2h: Pace::FREE,
            peer: Pace::FREE,
            half_duplex: false,
            kernel: Pace::FREE,
            launch: Pace::FREE,
            piece: Pace::FREE,
            load_line: Nanos::ZERO,
            windows: vec![Mapping::Vulkan, Mapping::DmaBuf],
            residents: RESIDENTS.to_vec(),
            peers: true,
            numa: None,
            memory_bytes: Bytes(8 << 30),
            limits: Limits::default(),
        }
    }

    /// The engines of `gpu` in `machine`, paced as in [`EmuSpec::of_machine`]; the rest as in [`EmuPortSpec::new`].
    #[must_use]
    pub fn of_machine(machine: &Machine, gpu: EndpointId) -> Self {
        let emulated = EmuSpec::of_machine(machine, gpu);
        let pace = |class| {
            let mut services = emulated.engines.iter().flat_map(|engine| &engine.serves);
            let service = services.find(|service| service.class == class);
            service.map_or(Pace::FREE, |service| Pace { setup: service.setup, rate: service.rate })
        };
        let serves = |class| emulated.engines.iter().position(|e| e.serves.iter().any(|s| s.class == class));
        Self {
            h2d: pace(EngineClass::H2d),
            d2h: pace(EngineClass::D2h),
            peer: pace(EngineClass::Peer),
            half_duplex: serves(EngineClass::H2d).is_some() && serves(EngineClass::H2d) == serves(EngineClass::D2h),
            numa: machine.endpoints[gpu.at()].numa,
            ..Self::new(&emulated.name)
        }
    }
}

/// An emulated port.
pub struct EmuGpu {
    shared: Arc<Shared>,
}

/// What the port, its queues, pagers and resident copiers share.
struct Shared {
    description: Description,
    id: DeviceId,
    budget: Arc<Budget>,
    numa: Option<u32>,
    peers: bool,
    windows: Vec<Mapping>,
    residents_forms: Vec<Shape>,
    load_line: Nanos,
    pace_in: Pace,
    pace_out: Pace,
    pace_peer: Pace,
    kernel: Pace,
    launch: Pace,
    piece: Pace,
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

    fn here(&self) -> (DeviceId, Domain) {
        (self.id, Domain::EMULATED)
    }
}

/// The emulated port `id`, if it is open.
fn find(id: DeviceId) -> Option<Arc<Shared>> {
    lock(&PORTS).iter().find(|(other, _)| *other == id).and_then(|(_, port)| port.upgrade())
}

impl EmuGpu {
    /// A port; it starts no thread until a queue is asked for.
    #[must_use]
    pub fn open(spec: EmuPortSpec) -> Self {
        let h2d = Arc::new(Gate::default());
        let d2h = if spec.half_duplex { Arc::clone(&h2d) } else { Arc::default() };
        let shared = Arc::new(Shared {
            description: Description {
                name: spec.name,
                uuid: None,
                pci: None,
                source: Source::Emu,
                engines: vec![EngineClass::H2d, EngineClass::D2h, EngineClass::Peer, EngineClass::Ee],
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
        let mut ports = lock(&PORTS);
        ports.retain(|(_, port)| port.strong_count() > 0);
        ports.push((shared.id, Arc::downgrade(&shared)));
        drop(ports);
        Self { shared }
    }

    fn place(&self) -> Place {
        Place::Device { id: self.shared.id, domain: Domain::EMULATED }
    }

    /// Whether `have` lists `form`.
    fn form<T: PartialEq + std::fmt::Debug>(&self, form: T, have: &[T]) -> Result<(), DeviceError> {
        self.shared.alive()?;
        if have.contains(&form) {
            return Ok(());
        }
        Err(DeviceError::Unavailable {
            what: format!("the form {form:?} on `{}`", self.shared.description.name),
            reason: "this emulated port was built without it".into(),
            remedy: "list it in the port's specification, or use another form".into(),
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

    fn domain(&self) -> Domain {
        Domain::EMULATED
    }

    fn numa(&self) -> Option<u32> {
        self.shared.numa
    }

    fn reaches(&self, peer: DeviceId) -> bool {
        self.shared.reaches(peer)
    }

    fn device_buffer(&self, bytes: usize, reach: Reach) -> Result<Buffer, DeviceError> {
        self.shared.alive()?;
        if let Reach::Window(mapping) = reach {
            self.form(mapping, &self.shared.windows)?;
        }
        let reservation = self.shared.budget.reserve(1, 0, bytes as u64)?;
        Ok(match reach {
            Reach::Device => Buffer::new(HeapMemory::new(bytes, self.place())?, reservation),
            Reach::Window(mapping) => {
                Buffer::new(WindowedMemory::new(bytes, self.place(), mapping, self.shared.load_line)?, reservation)
            }
        })
    }

    fn pinned_buffer(&self, bytes: usize, _: Caching) -> Result<Buffer, DeviceError> {
        self.shared.alive()?;
        let reservation = self.shared.budget.reserve(1, bytes as u64, 0)?;
        Ok(Buffer::new(PinnedMemory::new(bytes)?, reservation))
    }

    fn register(&self, buffer: &Buffer) -> Result<Buffer, DeviceError> {
        self.shared.alive()?;
        let reservation = self.shared.budget.reserve(1, 0, 0)?;
        Buffer::view(buffer, reservation, Registered::new)
    }

    fn host_kind(&self, memory: &[u8]) -> Result<HostKind, DeviceError> {
        Ok(if memory::is_pinned(memory) { HostKind::Pinned } else { HostKind::Pageable })
    }

    fn queue(&self, keeps_time: bool) -> Result<Box<dyn Queue>, DeviceError> {
        self.shared.alive()?;
        count(&self.shared.queues, QUEUES_MAX, "queues of one port")?;
        Ok(Box::new(EmuQueue::start(Arc::clone(&self.shared), keeps_time)?))
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

    fn windows(&self) -> Vec<(Mapping, Result<(), DeviceError>)> {
        WINDOWS.map(|mapping| (mapping, self.form(mapping, &self.shared.windows))).into()
    }

    fn pager(&self, mapping: Mapping, buffer: &Buffer) -> Result<Box<dyn Pager>, DeviceError> {
        self.form(mapping, &self.shared.windows)?;
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

    fn residents(&self) -> Vec<(Shape, Result<(), DeviceError>)> {
        RESIDENTS.map(|shape| (shape, self.form(shape, &self.shared.residents_forms))).into()
    }

    fn resident(&self, shape: Shape, options: ResidentOptions) -> Result<Box<dyn Resident>, DeviceError> {
        self.form(shape, &self.shared.residents_forms)?;
        if !(1..=PIECE_MAX).contains(&options.piece) {
            let reason = format!("pieces of {} bytes: 1 to {PIECE_MAX} can be had", options.piece);
            return Err(DeviceError::Invalid { what: "resident copier", reason });
        }
        let stage = EmuResident::stage()?;
        count(&self.shared.residents, RESIDENTS_MAX, "resident copiers of one port")?;
        Ok(Box::new(EmuResident::start(Arc::clone(&self.shared), shape, options, stage)?))
    }
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
    use crate::gpu::Move;
    use crate::port_conformance::finish;
    use headway_core::units::Rate;
    use headway_os::clock;

    const HOUR: Nanos = Nanos(3_600_000_000_000);

    fn copy(from: &Buffer, to: &Buffer, at: usize) -> Move {
        let claim = |buffer: &Buffer, access| buffer.claim(at..at + 64, access).unwrap();
        Move::Copy { from: claim(from, Access::Read), to: claim(to, Access::Write) }
    }

    /// What two copies of 64 bytes on two queues take together, if the second goes `inward`.
    fn two_queues(spec: EmuPortSpec, inward: bool) -> Nanos {
        let port = EmuGpu::open(spec);
        let (host, there) =
            (port.pinned_buffer(128, Caching::Cached).unwrap(), port.device_buffer(128, Reach::Device).unwrap());
        let mut queues = [port.queue(false).unwrap(), port.queue(false).unwrap()];
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
        let pace = Pace { setup: Nanos(300_000), rate: Some(Rate(64_000_000)) };
        let spec = EmuPortSpec { h2d: pace, d2h: pace, ..EmuPortSpec::new("emu0") };
        assert!(two_queues(spec.clone(), true) >= Nanos(602_000), "two copies in, one after the other");
        assert!(
            two_queues(EmuPortSpec { half_duplex: true, ..spec }, false) >= Nanos(602_000),
            "one engine for both ways"
        );
    }

    #[test]
    fn ordinary_memory_takes_the_time_of_its_engine() {
        let pace = Pace { setup: Nanos(200_000), rate: None };
        let port = EmuGpu::open(EmuPortSpec { h2d: pace, ..EmuPortSpec::new("emu0") });
        let there = port.device_buffer((2 << 20) + 1, Reach::Device).unwrap();
        let started = clock::now();
        port.copy_in(&mut there.claim(0..there.len(), Access::Write).unwrap(), &vec![1; there.len()]).unwrap();
        assert!(clock::now() - started >= Nanos(600_000), "three buffers full");
    }

    #[test]
    fn a_slow_window_takes_its_time_for_every_line() {
        let spec = EmuPortSpec { load_line: Nanos(100_000), ..EmuPortSpec::new("emu0") };
        let there = EmuGpu::open(spec).device_buffer(256, Reach::Window(Mapping::Vulkan)).unwrap();
        let started = clock::now();
        there.claim(0..256, Access::Read).unwrap().load(63, &mut [0; 66]).unwrap();
        assert!(clock::now() - started >= Nanos(300_000), "66 bytes from byte 63 on lie in three lines");
    }

    #[test]
    fn ports_without_peers_do_not_reach_others() {
        let lonely = EmuGpu::open(EmuPortSpec { peers: false, ..EmuPortSpec::new("emu0") });
        let other = EmuGpu::open(EmuPortSpec::new("emu1"));
        assert!(!lonely.reaches(other.id()) && !other.reaches(lonely.id()) && lonely.reaches(lonely.id()));
        let buffer = |port: &EmuGpu| port.device_buffer(64, Reach::Device).unwrap();
        let refused = other.queue(false).unwrap().submit(copy(&buffer(&lonely), &buffer(&other), 0), 0);
        assert!(matches!(refused, Err(DeviceError::Invalid { .. })), "{refused:?}");
    }

    #[test]
    fn a_resident_copier_that_does_not_answer_is_parked_and_leaves_memory_alone() {
        let pace = Pace { setup: HOUR, rate: None };
        let port = EmuGpu::open(EmuPortSpec { piece: pace, ..EmuPortSpec::new("emu0") });
        let there = port.device_buffer(4096, Reach::Device).unwrap();
        for shape in RESIDENTS {
            let options = ResidentOptions { piece: 256, lease: HOUR, patience: Nanos(1_000_000) };
            let mut resident = port.resident(shape, options).unwrap();
            for _ in 0..2 {
                let mut span = there.claim(0..4096, Access::Write).unwrap();
                let error = resident.copy_in(&mut span, &[1; 4096]).unwrap_err();
                assert!(matches!(error, DeviceError::Timeout { after: Nanos(1_000_000), .. }), "{error}");
            }
        }
    }

    #[test]
    fn a_resident_copier_whose_lease_ends_at_once_copies_all_the_same() {
        let port = EmuGpu::open(EmuPortSpec::new("emu0"));
        let there = port.device_buffer(1000, Reach::Device).unwrap();
        for shape in RESIDENTS {
            let options = ResidentOptions { piece: 256, lease: Nanos::ZERO, patience: HOUR };
            let mut resident = port.resident(shape, options).unwrap();
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
        let port = EmuGpu::open(EmuPortSpec::new("emu0"));
        let queues: Vec<_> = (0..QUEUES_MAX).map(|_| port.queue(false).unwrap()).collect();
        assert!(matches!(port.queue(false).err(), Some(DeviceError::Refused { .. })));
        drop(queues);
        port.queue(false).unwrap();
        let options = ResidentOptions { piece: 256, lease: HOUR, patience: HOUR };
        let residents: Vec<_> = (0..RESIDENTS_MAX).map(|_| port.resident(Shape::Hub, options).unwrap()).collect();
        assert!(matches!(port.resident(Shape::Hub, options).err(), Some(DeviceError::Refused { .. })));
        drop(residents);
        port.resident(Shape::Hub, options).unwrap();
        let wrong = ResidentOptions { piece: PIECE_MAX + 1, ..options };
        assert!(matches!(port.resident(Shape::Hub, wrong).err(), Some(DeviceError::Invalid { .. })));
    }
}
