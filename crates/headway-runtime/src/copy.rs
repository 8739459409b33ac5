//! `copy`: any host memory to or from GPU memory, by the way that the profile says is fastest, or by the one asked for.

mod bounce;
mod cache;
mod chooser;
mod cpus;
mod decide;
mod engine;
mod error;
mod events;
mod execute;
mod gpu;
mod kinds;
mod many;
mod peer;
mod pieces;
mod pinning;
mod probe;
mod promised;
mod request;
mod run;
mod shares;
mod thread_pool;

use std::sync::{Arc, OnceLock};

use headway_core::decisions::chooser::ChoiceReason;
use headway_core::files::machine::EndpointId;
use headway_core::models::transfer::arbitration::WAIT_COPIES;
use headway_core::models::transfer::learning::Prefer;
use headway_core::models::transfer::{Bounds, Direction, HostMemory, Method, Profile, default_tuning};
use headway_core::units::{Bytes, NANOS_PER_SECOND, Nanos};
use headway_device::buffer::MemoryPlace;
use headway_device::gpu::{Gpu, Mover, Piece};
use headway_device::{Buffer, DeviceError};
use headway_os::fork::Home;

use self::events::Events;
use self::gpu::CopierGpu;
use self::many::Many;
use self::request::{Host, Request};
use self::shares::Shares;
use self::thread_pool::ThreadPool;
use crate::wait::Cancel;

pub use self::chooser::{ChosenCopy, CopyChooser, LearningGpu, LearningOptions};
pub use self::engine::{Promise, PromisedCopy, UNPROMISED_IN_FLIGHT};
pub use self::error::CopyError;
pub use self::promised::{EngineTurns, Turn};
pub use crate::at::At;
use crate::staging::Line;
pub use headway_core::decisions::chooser::MethodWanted as How;

/// How much of everything copies take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyLimits {
    /// Pinned memory of each GPU's staging pool.
    pub pinned_max: Bytes,
    /// Staging threads of each GPU.
    pub threads_max: u32,
    /// CPUs that the copies of each GPU keep busy, that of the thread that asks for one included. With one there is no staging.
    pub cpus_max: u32,
    /// Multiprocessors that a copy keeps busy; with none, as with [`CopyOptions::no_sm`].
    pub multiprocessors_max: u32,
    /// Largest chunk of a long copy: what a small copy may have to wait for, twice.
    pub chunk_max: Bytes,
    /// A copy that makes no progress for this long is given up.
    pub patience: Nanos,
    /// Events kept until they are taken; older ones are counted and dropped.
    pub events_max: usize,
}

impl Default for CopyLimits {
    /// 128 MiB pinned and 16 threads a GPU, all CPUs and multiprocessors, chunks up to 32 MiB, 10 s, 1024 events.
    fn default() -> Self {
        Self {
            pinned_max: Bytes(128 << 20),
            threads_max: 16,
            cpus_max: u32::MAX,
            multiprocessors_max: u32::MAX,
            chunk_max: Bytes(32 << 20),
            patience: Nanos(10 * NANOS_PER_SECOND),
            events_max: 1024,
        }
    }
}

/// What may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyOptions {
    pub limits: CopyLimits,
    /// Keep resident copiers on the GPUs for `auto`.
    pub resident: bool,
    /// Never use multiprocessors for copies.
    pub no_sm: bool,
    /// Never use threads of our own.
    pub no_threads: bool,
    /// Use the links of other GPUs for large copies.
    pub multipath: bool,
    /// Sources may be mapped files: `staged` reads their pages first, so that one that cannot be read is an error value.
    pub mapped_files: bool,
    /// Of methods that are nearly as fast as the fastest, the cheapest in CPU time, or the fastest.
    pub prefer: Prefer,
    /// Copies have fewer threads while other processes of this user copy on the same CPUs.
    pub shares_cpus: bool,
    /// Large destinations in ordinary memory without pages yet may be backed by huge pages (`MADV_HUGEPAGE`), where the kernel
    /// leaves that to the program: twice as fast, with half the CPU time (H200 machine, 2026-11-23).
    pub huge_pages: bool,
}

impl CopyOptions {
    /// The same, with limits that exclude something as options.
    pub(crate) fn normal(mut self) -> Self {
        let limits = &mut self.limits;
        self.no_sm |= limits.multiprocessors_max == 0;
        self.no_threads |= limits.cpus_max < 2;
        limits.threads_max = limits.threads_max.min(limits.cpus_max.saturating_sub(1));
        self
    }

    /// What a tuning is chosen within.
    pub(crate) const fn bounds(&self) -> Bounds {
        let CopyLimits { pinned_max, cpus_max, multiprocessors_max, .. } = self.limits;
        Bounds { cpus_max, pinned_max, multiprocessors_max, prefer: self.prefer }
    }
}

impl Default for CopyOptions {
    /// Everything but resident copiers and other GPUs' links.
    fn default() -> Self {
        Self {
            limits: CopyLimits::default(),
            resident: false,
            no_sm: false,
            no_threads: false,
            multipath: false,
            mapped_files: false,
            prefer: Prefer::Cheapest,
            shares_cpus: true,
            huge_pages: true,
        }
    }
}

/// What one copy did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyReport {
    pub method: Method,
    /// Which rule chose it.
    pub reason: ChoiceReason,
    /// Bytes moved.
    pub bytes: Bytes,
    /// Operations of the engine, or pieces.
    pub chunks: u64,
    /// What the profile said.
    pub predicted: Option<Nanos>,
    /// What it took.
    pub observed: Nanos,
    /// Of that, waiting for engines that others used.
    pub waited: Nanos,
    /// CPU time of all threads; `None` where it is not counted, as of methods that only the calling thread works for.
    pub cpu: Option<Nanos>,
    /// Chunks of others that were ahead of the first one in the engine's queue.
    pub ahead: u64,
    /// The method that was asked for or chosen and could not be used, with the reason.
    pub instead_of: Option<(Method, String)>,
}

/// Something a user should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopierEvent {
    /// When, on the host's clock.
    pub at: Nanos,
    pub what: String,
}

/// Whether one method can be used on one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MethodProbe {
    /// Position of the GPU.
    pub gpu: usize,
    pub method: Method,
    /// `Err`: why not, with the remedy.
    pub usable: Result<(), DeviceError>,
    /// What `auto` uses instead.
    pub fallback: Option<Method>,
}

/// Copies between host and GPU memory, from any thread.
pub struct Copier {
    gpus: Vec<CopierGpu>,
    devices: Vec<Arc<dyn Gpu>>,
    options: CopyOptions,
    /// Of each GPU.
    choosers: Vec<CopyChooser>,
    shares: Shares,
    events: Events,
    /// The process that has the threads and the drivers.
    home: Home,
    cancel: Cancel,
    thread_pool: OnceLock<ThreadPool>,
}

impl Copier {
    /// A copier over `gpus`, each with the name under which `profile` knows it.
    ///
    /// # Errors
    /// [`CopyError::Invalid`] for no GPU, or one given twice.
    pub fn new(
        gpus: Vec<(EndpointId, Arc<dyn Gpu>)>,
        profile: Profile,
        options: CopyOptions,
    ) -> Result<Self, CopyError> {
        Self::with_stale(gpus, profile, options, None)
    }

    /// A copier like [`Copier::new`]'s; `stale` = what has changed since `profile` was measured, so that only the driver's own methods are chosen.
    ///
    /// # Errors
    /// Those of [`Copier::new`].
    pub fn with_stale(
        gpus: Vec<(EndpointId, Arc<dyn Gpu>)>,
        profile: Profile,
        options: CopyOptions,
        stale: Option<String>,
    ) -> Result<Self, CopyError> {
        let invalid = |reason: &str| CopyError::Invalid { what: "GPUs", reason: reason.into() };
        if gpus.is_empty() {
            return Err(invalid("a copier needs one at least"));
        }
        let twice = |at: usize| gpus[..at].iter().any(|(id, gpu)| *id == gpus[at].0 || gpu.id() == gpus[at].1.id());
        if (0..gpus.len()).any(twice) {
            return Err(invalid("one is given twice"));
        }
        let (options, profile, peers) = (options.normal(), Arc::new(profile), Line::new());
        let chooser = |gpu| CopyChooser::new(gpu, Arc::clone(&profile), &options, stale.clone(), gpus.len());
        let copier = Self {
            choosers: gpus.iter().map(|(gpu, _)| chooser(*gpu)).collect(),
            devices: gpus.iter().map(|(_, gpu)| Arc::clone(gpu)).collect(),
            shares: Shares::new(gpus.len()),
            gpus: (0..).zip(gpus).map(|(at, (id, gpu))| CopierGpu::new(id, gpu, options.limits, &peers, at)).collect(),
            events: Events::new(options.limits.events_max),
            options,
            home: Home::here(),
            cancel: Cancel::default(),
            thread_pool: OnceLock::new(),
        };
        match stale {
            Some(what) => copier.events.tell(format!(
                "the profile is stale ({what}): the driver's own methods are used; `headway measure` writes a new one"
            )),
            None => {
                for gpu in &copier.gpus {
                    // What nobody asked stays as the GPU's class has it.
                    if let Some(asked) = profile.arbitration.get(&(gpu.endpoint, Direction::D2h)) {
                        gpu.device.set_turn(asked.advise(WAIT_COPIES).word());
                    }
                }
            }
        }
        Ok(copier)
    }

    /// Has copies of ordinary memory of the GPU at position `gpu` teach ([`CopyChooser::learn`]). `cuda` = the newest version that the
    /// driver supports, if it was asked.
    pub fn learn(&self, gpu: usize, cuda: Option<(u32, u32)>, options: LearningOptions) {
        let about = self.gpus[gpu].device.description();
        let gpu_is = LearningGpu { name: about.name.clone(), uuid: about.uuid.clone(), pci: about.pci.clone(), cuda };
        self.choosers[gpu].learn(&gpu_is, options);
    }

    /// What chooses the methods of the GPU at position `gpu`.
    #[must_use]
    pub fn chooser(&self, gpu: usize) -> Option<&CopyChooser> {
        self.choosers.get(gpu)
    }

    /// Ends the copies that are under way at their next chunk, with [`CopyError::Cancelled`]. Later ones are not touched.
    pub fn cancel(&self) {
        self.cancel.raise();
    }

    /// Lets resident copiers leave their GPUs and closes paged windows, until a copy needs them again.
    ///
    /// # Errors
    /// What a resident copier answers.
    pub fn park(&self) -> Result<(), CopyError> {
        let resident = Method::Resident(None);
        self.gpus.iter().try_for_each(|gpu| gpu.park()).map_err(|error| CopyError::device(resident, error, 0, 0))
    }

    /// Starts the threads and pins the memory of `staged` on all GPUs, and waits until they are there: else the first copies
    /// that would need them go by the driver's own call meanwhile. Threads run on those CPUs near their GPU that the calling
    /// thread may use.
    ///
    /// # Errors
    /// [`CopyError::Unavailable`] for the first GPU whose threads or memory cannot be had.
    pub fn prepare(&self) -> Result<(), CopyError> {
        let buffer =
            [Direction::H2d, Direction::D2h].map(|direction| default_tuning(direction, HostMemory::Touched).buffer);
        self.gpus.iter().try_for_each(|gpu| self.prepare_gpu(gpu, buffer[0].max(buffer[1])))
    }

    #[must_use]
    pub fn gpus(&self) -> &[Arc<dyn Gpu>] {
        &self.devices
    }

    /// Copies `from` to the device; the bytes are there when it returns.
    ///
    /// # Errors
    /// [`CopyError`].
    pub fn copy_in(&self, to: At<'_>, from: &[u8], how: How) -> Result<CopyReport, CopyError> {
        let (gpu, direction, len) = (self.gpu_of(to.buffer)?, Direction::H2d, from.len());
        self.copy(Request::new(gpu, direction, to, Host::In(from), len), how)
    }

    /// Copies from the device to `to`.
    ///
    /// # Errors
    /// [`CopyError`].
    pub fn copy_out(&self, to: &mut [u8], from: At<'_>, how: How) -> Result<CopyReport, CopyError> {
        let (gpu, direction, len) = (self.gpu_of(from.buffer)?, Direction::D2h, to.len());
        self.copy(Request::new(gpu, direction, from, Host::Out(to), len), how)
    }

    /// Copies `from` to the device as was chosen before, for who had to know the method first.
    ///
    /// # Errors
    /// [`CopyError`]; nothing replaces a method that cannot be used.
    pub fn copy_in_as(&self, to: At<'_>, from: &[u8], chosen: ChosenCopy<'_>) -> Result<CopyReport, CopyError> {
        let (gpu, direction, len) = (self.gpu_of(to.buffer)?, Direction::H2d, from.len());
        self.copy_as(Request::new(gpu, direction, to, Host::In(from), len), chosen)
    }

    /// Copies from the device to `to` as was chosen before.
    ///
    /// # Errors
    /// Those of [`Copier::copy_in_as`].
    pub fn copy_out_as(&self, to: &mut [u8], from: At<'_>, chosen: ChosenCopy<'_>) -> Result<CopyReport, CopyError> {
        let (gpu, direction, len) = (self.gpu_of(from.buffer)?, Direction::D2h, to.len());
        self.copy_as(Request::new(gpu, direction, from, Host::Out(to), len), chosen)
    }

    /// Copies between host memory that is a pinned [`Buffer`] and the device.
    ///
    /// # Errors
    /// [`CopyError`]; [`CopyError::Invalid`] for host memory that is not pinned for this GPU's driver.
    pub fn copy_pinned(
        &self,
        direction: Direction,
        device: At<'_>,
        host: At<'_>,
        len: usize,
        how: How,
    ) -> Result<CopyReport, CopyError> {
        let gpu = self.gpu_of(device.buffer)?;
        self.is_pinned_for(gpu, direction, host)?;
        self.copy(Request::new(gpu, direction, device, Host::Held(host), len), how)
    }

    fn is_pinned_for(&self, gpu: usize, direction: Direction, host: At<'_>) -> Result<(), CopyError> {
        let wrong = |what, reason: &str| Err(CopyError::Invalid { what, reason: reason.into() });
        if direction == Direction::Peer {
            return wrong("direction", "`copy_peer` copies between GPUs");
        }
        if host.buffer.place() != (MemoryPlace::Host { pinned: Some(self.gpus[gpu].device.domain()) }) {
            return wrong("host memory", "it is not pinned for this GPU; use `copy_in` or `copy_out` on its bytes");
        }
        Ok(())
    }

    /// Copies between two devices.
    ///
    /// # Errors
    /// [`CopyError`].
    pub fn copy_peer(&self, to: At<'_>, from: At<'_>, len: usize) -> Result<CopyReport, CopyError> {
        self.peer(to, from, len)
    }

    /// Copies many pieces of `from` to the device in one request, their destinations counted from `to`; `None` = the best
    /// mover as far as known.
    ///
    /// # Errors
    /// [`CopyError`]; [`CopyError::Overlap`] where destinations overlap. After an error any piece may be in place or not.
    pub fn copy_many_in(
        &self,
        to: At<'_>,
        from: &[u8],
        pieces: &[Piece],
        by: Option<ManyBy>,
    ) -> Result<CopyReport, CopyError> {
        let many = Many { gpu: self.gpu_of(to.buffer)?, direction: Direction::H2d, device: to, host: Host::In(from) };
        self.many(many, pieces, by)
    }

    /// Copies many pieces from the device in one request, their sources counted from `from`.
    ///
    /// # Errors
    /// Those of [`Copier::copy_many_in`].
    pub fn copy_many_out(
        &self,
        to: &mut [u8],
        from: At<'_>,
        pieces: &[Piece],
        by: Option<ManyBy>,
    ) -> Result<CopyReport, CopyError> {
        let many =
            Many { gpu: self.gpu_of(from.buffer)?, direction: Direction::D2h, device: from, host: Host::Out(to) };
        self.many(many, pieces, by)
    }

    /// Whether each method can be used on each GPU, each tried with random bytes and compared through another method.
    #[must_use]
    pub fn probe(&self) -> Vec<MethodProbe> {
        self.probe_all()
    }

    /// Takes what has happened since the last call.
    #[must_use]
    pub fn events(&self) -> Vec<CopierEvent> {
        self.events.take()
    }

    /// The position of the GPU whose memory `buffer` is.
    ///
    /// # Errors
    /// [`CopyError::Invalid`] for memory of another GPU or of the host, [`CopyError::Unavailable`] in a forked child.
    pub fn gpu_of(&self, buffer: &Buffer) -> Result<usize, CopyError> {
        if !self.home.is_here() {
            return Err(forked());
        }
        let position = match buffer.place() {
            MemoryPlace::Device { id, .. } => self.gpus.iter().position(|gpu| gpu.id == id),
            MemoryPlace::Host { .. } => None,
        };
        position.ok_or_else(|| CopyError::Invalid {
            what: "device memory",
            reason: "the buffer is not memory of a GPU of this copier".into(),
        })
    }

    /// The threads that gather and scatter, started on first use.
    fn thread_pool(&self) -> &ThreadPool {
        self.thread_pool.get_or_init(|| {
            let cpus = headway_os::affinity::allowed().map_or(2, |cpus| cpus.len());
            let limit = self.options.limits.threads_max as usize;
            ThreadPool::start(cpus.saturating_sub(1).clamp(1, many::THREADS_MAX).min(limit))
        })
    }
}

/// The answer to every copy in a forked child.
#[cold]
fn forked() -> CopyError {
    let method = Method::Pageable;
    let source = DeviceError::Unavailable {
        what: "the copier".into(),
        reason: "this process was forked from the one that opened it".into(),
        remedy: "open it after the fork, or start the process anew (`spawn` instead of `fork`)".into(),
    };
    CopyError::Unavailable { method, source }
}

/// How many pieces are copied (specification of transfers, 1.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ManyBy {
    /// A mover of the queue, from memory that is pinned already; ordinary memory goes through pinned buffers piece by piece.
    Queue(Mover),
    /// The CPU gathers into a pinned buffer (or scatters from it), one copy, and a kernel on the device's side if its pieces
    /// are scattered.
    Gather,
    /// Window stores or loads.
    Window,
    /// One command each to a resident copier.
    Resident,
}
