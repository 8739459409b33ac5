//! Types that own what the driver hands out and give it back when dropped.
//!
//! Each keeps its context alive, so nothing outlives what it belongs to. A handle that cannot be given back (the context is
//! lost) is left to the driver.

use std::collections::{BTreeSet, HashMap};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr::{null_mut, with_exposed_provenance, with_exposed_provenance_mut, without_provenance_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Weak};

use headway_core::units::{Bytes, Nanos};
use headway_device::buffer::{DeviceId, Memory, MemoryPlace};
use headway_device::{DeviceError, LaunchGrid};
use headway_os::{clock, topology};

use crate::driver::table::{self, Address, Handle, LaunchAttribute, LaunchConfig, Ordinal};
use crate::driver::{self, Driver, call, lock};

/// Size of the log the driver's compiler may fill.
const LOG_BYTES: usize = 8192;
/// Dynamic shared memory that a kernel gets without asking for more.
const SHARED_WITHOUT_ASKING: u32 = 48 << 10;
/// Blocks that a cluster may have without asking for more.
const PORTABLE_CLUSTER: u32 = 8;

/// How long after the end of a context its memory is taken to be in use. The driver ends a context with everything that runs in
/// it; but what it says of a copy that an engine has begun is nowhere documented, and the longest of ours (32 MiB) takes a tenth of this on
/// the slowest link.
const SETTLE: Nanos = Nanos(100_000_000);

/// A handle of the driver. The driver API is thread safe: any thread may use any handle while its context is current.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Raw(Handle);
// SAFETY: the CUDA driver API is thread safe for contexts, streams, events, modules and functions.
unsafe impl Send for Raw {}
// SAFETY: the CUDA driver API is thread safe for contexts, streams, events, modules and functions.
unsafe impl Sync for Raw {}

/// The primary context of a device, shared with the CUDA runtime in this process.
pub(crate) struct Context {
    pub(crate) driver: Arc<Driver>,
    pub(crate) ordinal: Ordinal,
    pub(crate) id: DeviceId,
    /// NUMA node of the GPU, where the system says.
    pub(crate) numa: Option<u32>,
    handle: Raw,
    /// It was given up, or has ended.
    lost: AtomicBool,
    /// When the driver was first seen to have ended it; 0 = never.
    ended: AtomicU64,
    peers: Mutex<BTreeSet<Ordinal>>,
    /// Bytes that a queue copies out before it lets other streams in; 0 = nobody has said so yet.
    turn: AtomicUsize,
}

fn turn(bytes: Option<Bytes>) -> usize {
    bytes.map_or(usize::MAX, |bytes| usize::try_from(bytes.0).unwrap_or(usize::MAX).max(1))
}

/// What is open, so that memory names its context by its device.
static OPEN: LazyLock<Mutex<HashMap<DeviceId, Weak<Context>>>> = LazyLock::new(Mutex::default);

impl Context {
    /// The context of the GPU `ordinal`: one value for everything open on it, until it is lost.
    pub(crate) fn retain(driver: &Arc<Driver>, ordinal: Ordinal) -> Result<Arc<Self>, DeviceError> {
        let id = driver.id(ordinal);
        let mut contexts = lock(&OPEN);
        if let Some(open) = contexts.get(&id).and_then(Weak::upgrade).filter(|context| !context.is_lost()) {
            return Ok(open);
        }
        let pci = driver.pci(ordinal)?;
        let numa = pci.and_then(|pci| topology::pci_numa(Path::new(topology::SYSFS), &pci).ok().flatten());
        let mut handle = null_mut();
        // SAFETY: `handle` is valid for the call to write.
        unsafe { call!(driver, cuDevicePrimaryCtxRetain(&raw mut handle, ordinal)) }?;
        let context = Arc::new(Self {
            driver: Arc::clone(driver),
            ordinal,
            id,
            numa,
            handle: Raw(handle),
            lost: AtomicBool::new(false),
            ended: AtomicU64::new(0),
            peers: Mutex::default(),
            turn: AtomicUsize::new(0),
        });
        contexts.insert(id, Arc::downgrade(&context));
        Ok(context)
    }

    /// Bytes that a queue copies out before it lets other streams in: it writes a word then, at which the engine turns to them.
    pub(crate) fn turn_bytes(&self) -> usize {
        match self.turn.load(Ordering::Relaxed) {
            0 => usize::MAX,
            bytes => bytes,
        }
    }

    /// `None` = copies stay whole. Returns what it was.
    pub(crate) fn set_turn(&self, bytes: Option<Bytes>) -> Option<Bytes> {
        let before = self.turn.swap(turn(bytes), Ordering::Relaxed);
        (before > 0 && before < usize::MAX).then_some(Bytes(before as u64))
    }

    /// Sets the turn, unless it was set before.
    pub(crate) fn begin_turn(&self, bytes: Option<Bytes>) {
        let _ = self.turn.compare_exchange(0, turn(bytes), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The open context of the GPU `id`, if there is one.
    pub(crate) fn of(driver: &Driver, id: DeviceId) -> Option<Arc<Self>> {
        let open = lock(&OPEN).get(&id).and_then(Weak::upgrade);
        open.filter(|context| std::ptr::eq(&raw const *context.driver, driver))
    }

    /// Makes this the calling thread's current context; it stays so.
    pub(crate) fn bind(&self) -> Result<(), DeviceError> {
        if self.lost.load(Ordering::Acquire) {
            return Err(DeviceError::DeviceLost);
        }
        self.bind_anyway()
    }

    /// Binds a context that was given up: what was queued in it before may be asked for.
    pub(crate) fn bind_anyway(&self) -> Result<(), DeviceError> {
        self.driver.relax();
        // Others in this process may change what is current on this thread, so that it is asked for and not remembered.
        if self.is_current()? {
            return Ok(());
        }
        // SAFETY: the context is retained while this value lives.
        self.note(unsafe { call!(self.driver, cuCtxSetCurrent(self.handle.0)) })
    }

    /// Whether this is the calling thread's current context.
    pub(crate) fn is_current(&self) -> Result<bool, DeviceError> {
        let mut current = null_mut();
        // SAFETY: `current` is valid for the call to write.
        self.note(unsafe { call!(self.driver, cuCtxGetCurrent(&raw mut current)) })?;
        Ok(current == self.handle.0)
    }

    /// Remembers an error after which the context answers nothing else.
    pub(crate) fn note<T>(&self, result: Result<T, DeviceError>) -> Result<T, DeviceError> {
        if let Err(DeviceError::Driver { code, .. }) = &result
            && table::ends_the_context(*code)
        {
            let now = clock::now().0.max(1);
            // Only the first time counts.
            let _ = self.ended.compare_exchange(0, now, Ordering::AcqRel, Ordering::Relaxed);
            self.lose();
        }
        result
    }

    /// What an answer of the driver to "has it ended?" means for the memory of what was queued.
    pub(crate) fn fate(&self, ended: Result<bool, DeviceError>) -> Fate {
        match ended {
            Ok(true) => Fate::Over(Ok(())),
            Ok(false) => Fate::UnderWay,
            // A child has copies of the parent's pages, of which no GPU knows.
            Err(error) if self.driver.here().is_err() => Fate::Over(Err(error)),
            Err(error) => match self.settles_in() {
                None => Fate::Unknown(error),
                Some(Nanos::ZERO) => Fate::Over(Err(error)),
                Some(_) => Fate::UnderWay,
            },
        }
    }

    /// Whether the driver has ended it: what was queued does not go on.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire) != 0
    }

    /// If the driver has ended it: how long its memory is still taken to be in use.
    fn settles_in(&self) -> Option<Nanos> {
        match self.ended.load(Ordering::Acquire) {
            0 => None,
            ended => Some(Nanos(ended).saturating_add(SETTLE).saturating_sub(clock::now())),
        }
    }

    /// Waits until nothing of a context that has ended uses memory any more; returns at once from one that has not.
    pub(crate) fn settle(&self) {
        if let Some(time) = self.settles_in() {
            std::thread::sleep(std::time::Duration::from_nanos(time.0));
        }
    }

    /// Whether the GPU has passed everything in the default stream.
    pub(crate) fn default_stream_rests(&self) -> Result<bool, DeviceError> {
        self.bind_anyway()?;
        // SAFETY: null names the default stream.
        self.note(not_ready(unsafe { call!(self.driver, cuStreamQuery(null_mut())) }))
    }

    /// Gives it up: later calls answer [`DeviceError::DeviceLost`]. What is queued may go on.
    pub(crate) fn lose(&self) {
        self.lost.store(true, Ordering::Release);
    }

    /// Whether it is lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Whether this GPU and `peer` use each other's memory directly; asks for it at the first time.
    pub(crate) fn reaches(&self, peer: DeviceId) -> bool {
        Self::of(&self.driver, peer)
            .is_some_and(|peer| self.enable_peer(&peer).is_ok() && peer.enable_peer(self).is_ok())
    }

    /// Lets this context use the memory of `peer`; calls the driver once for each pair.
    pub(crate) fn enable_peer(&self, peer: &Self) -> Result<(), DeviceError> {
        let mut peers = lock(&self.peers);
        if peer.ordinal == self.ordinal || peers.contains(&peer.ordinal) {
            return Ok(());
        }
        if !self.driver.can_access(self.ordinal, peer.ordinal)? {
            return Err(DeviceError::Unavailable {
                what: format!("peer access from GPU {} to GPU {}", self.ordinal, peer.ordinal),
                reason: "the driver reports no direct way".into(),
                remedy: "copy through host memory (d2h, then h2d)".into(),
            });
        }
        self.bind()?;
        // SAFETY: both contexts are retained, this one is current, and the flags must be 0.
        let enabled = unsafe { call!(self.driver, cuCtxEnablePeerAccess(peer.handle.0, 0)) };
        match enabled {
            Err(DeviceError::Driver { code: table::PEER_ACCESS_ALREADY_ENABLED, .. }) => {}
            Err(error @ DeviceError::Driver { code: table::TOO_MANY_PEERS, .. }) => {
                return Err(DeviceError::Unavailable {
                    what: format!("peer access from GPU {} to GPU {}", self.ordinal, peer.ordinal),
                    reason: error.to_string(),
                    remedy: "use fewer GPUs in one process".into(),
                });
            }
            other => self.note(other)?,
        }
        peers.insert(peer.ordinal);
        Ok(())
    }
}

/// What became of something that was queued, as far as its memory is concerned.
#[derive(Debug)]
pub(crate) enum Fate {
    /// It may still run.
    UnderWay,
    /// It uses nothing any more: it has ended, or the driver has ended its context.
    Over(Result<(), DeviceError>),
    /// The driver gave no answer.
    Unknown(DeviceError),
}

/// "Not ready" as an answer.
fn not_ready(result: Result<(), DeviceError>) -> Result<bool, DeviceError> {
    match result {
        Ok(()) => Ok(true),
        Err(DeviceError::Driver { code: table::NOT_READY, .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once by `retain`; everything made in it keeps an `Arc` to this value, so it is gone.
        let _ = unsafe { call!(self.driver, cuDevicePrimaryCtxRelease_v2(self.ordinal)) };
    }
}

/// A stream that does not wait for the default stream.
pub(crate) struct Stream {
    context: Arc<Context>,
    handle: Raw,
}

impl Stream {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        context.bind()?;
        let mut handle = null_mut();
        // SAFETY: `handle` is valid for the call to write; the context is current.
        context.note(unsafe { call!(context.driver, cuStreamCreate(&raw mut handle, table::STREAM_NON_BLOCKING)) })?;
        Ok(Self { context: Arc::clone(context), handle: Raw(handle) })
    }

    /// A stream of a priority; lower numbers go first.
    pub(crate) fn ranked(context: &Arc<Context>, priority: c_int) -> Result<Self, DeviceError> {
        context.bind()?;
        let create = context.driver.table.cuStreamCreateWithPriority.ok_or_else(no_priorities)?;
        let mut handle = null_mut();
        // SAFETY: `handle` is valid for the call to write; the context is current.
        let code = unsafe { create(&raw mut handle, table::STREAM_NON_BLOCKING, priority) };
        context.note(context.driver.check("cuStreamCreateWithPriority", code))?;
        Ok(Self { context: Arc::clone(context), handle: Raw(handle) })
    }

    /// The driver's handle, for calls that take a stream while this value lives.
    pub(crate) fn handle(&self) -> Handle {
        self.handle.0
    }

    /// Whether everything in it is done, also in a context that was given up.
    pub(crate) fn rests(&self) -> Result<bool, DeviceError> {
        self.context.bind_anyway()?;
        self.is_idle()
    }

    /// Queues a copy; the context must be current.
    ///
    /// # Safety
    /// Both ends must stay valid, and the destination unused by others, until the stream has passed this point. `from` is
    /// pinned or device memory as `kind` says, and so is `to`.
    pub(crate) unsafe fn copy(
        &self,
        kind: CopyKind<'_>,
        from: Address,
        to: Address,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        let (driver, stream) = (&self.context.driver, self.handle.0);
        let (from_host, to_host) = (with_exposed_provenance(from as usize), with_exposed_provenance_mut(to as usize));
        // SAFETY: the caller's promise; the stream lives as long as `self`.
        let queued = unsafe {
            match kind {
                CopyKind::HostToDevice => call!(driver, cuMemcpyHtoDAsync_v2(to, from_host, bytes, stream)),
                CopyKind::DeviceToHost => call!(driver, cuMemcpyDtoHAsync_v2(to_host, from, bytes, stream)),
                CopyKind::Within => call!(driver, cuMemcpyDtoDAsync_v2(to, from, bytes, stream)),
                CopyKind::Between(from_context, to_context) => {
                    let (from_context, to_context) = (from_context.handle.0, to_context.handle.0);
                    call!(driver, cuMemcpyPeerAsync(to, to_context, from, from_context, bytes, stream))
                }
            }
        };
        self.context.note(queued)
    }

    /// Whether everything in it is done; the context must be current.
    pub(crate) fn is_idle(&self) -> Result<bool, DeviceError> {
        // SAFETY: the stream lives.
        self.context.note(not_ready(unsafe { call!(self.context.driver, cuStreamQuery(self.handle.0)) }))
    }

    /// Queues a launch of `module` in clusters of `cluster` blocks; the context must be current.
    ///
    /// # Safety
    /// The caller keeps the promise of [`Stream::launch`].
    pub(crate) unsafe fn launch_clusters(
        &self,
        module: &Module,
        grid: LaunchGrid,
        cluster: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<(), DeviceError> {
        self.context.driver.here()?;
        let Some(launch) = self.context.driver.table.cuLaunchKernelEx else { return Err(no_clusters()) };
        module.allow_shared(grid.shared_bytes)?;
        module.allow_clusters(cluster)?;
        let attribute = cluster_attribute(cluster);
        let config = launch_config(grid, self.handle, &attribute);
        // SAFETY: as in `launch`; the driver reads configuration and attribute during the call.
        let code = unsafe { launch(&raw const config, module.function.0, arguments.as_mut_ptr(), null_mut()) };
        self.context.note(self.context.driver.check("cuLaunchKernelEx", code))
    }

    /// Queues a launch of `module`; the context must be current.
    ///
    /// # Safety
    /// `arguments` point to what the entry's parameters are, in number, order and type; the addresses among them may be used
    /// as the kernel uses them until the stream has passed this point.
    pub(crate) unsafe fn launch(
        &self,
        module: &Module,
        grid: LaunchGrid,
        arguments: &mut [*mut c_void],
    ) -> Result<(), DeviceError> {
        module.allow_shared(grid.shared_bytes)?;
        let (function, stream, arguments) = (module.function.0, self.handle.0, arguments.as_mut_ptr());
        let LaunchGrid { blocks: [bx, by, bz], threads: [tx, ty, tz], shared_bytes } = grid;
        // SAFETY: the caller's promise; the driver copies the arguments during the call; function and stream belong to this
        // context.
        self.context.note(unsafe {
            call!(
                self.context.driver,
                cuLaunchKernel(function, bx, by, bz, tx, ty, tz, shared_bytes, stream, arguments, null_mut())
            )
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: made by `new`, destroyed once; the driver finishes what is queued in it.
            let _ = unsafe { call!(self.context.driver, cuStreamDestroy_v2(self.handle.0)) };
        }
    }
}

fn no_priorities() -> DeviceError {
    DeviceError::Unavailable {
        what: "streams with priorities, and streams that wait for events of others".into(),
        reason: "this driver does not have them".into(),
        remedy: "update the NVIDIA driver".into(),
    }
}

/// Where a copy goes.
#[derive(Clone, Copy)]
pub(crate) enum CopyKind<'a> {
    HostToDevice,
    DeviceToHost,
    /// Within this device.
    Within,
    /// From the first context's device to the second's.
    Between(&'a Context, &'a Context),
}

/// An event.
pub(crate) struct CudaEvent {
    context: Arc<Context>,
    handle: Raw,
}

impl CudaEvent {
    /// An event with a time stamp.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        Self::with(context, table::EVENT_DEFAULT)
    }

    /// An event without a time stamp, which costs the GPU less.
    pub(crate) fn untimed(context: &Arc<Context>) -> Result<Self, DeviceError> {
        Self::with(context, table::EVENT_DISABLE_TIMING)
    }

    fn with(context: &Arc<Context>, flags: c_uint) -> Result<Self, DeviceError> {
        context.bind()?;
        let mut handle = null_mut();
        // SAFETY: `handle` is valid for the call to write; the context is current.
        context.note(unsafe { call!(context.driver, cuEventCreate(&raw mut handle, flags)) })?;
        Ok(Self { context: Arc::clone(context), handle: Raw(handle) })
    }

    /// Queues the event; the context must be current.
    pub(crate) fn record(&self, stream: &Stream) -> Result<(), DeviceError> {
        // SAFETY: event and stream live and are of one context.
        self.context.note(unsafe { call!(self.context.driver, cuEventRecord(self.handle.0, stream.handle.0)) })
    }

    /// Has `stream` wait until this is reached; the context must be current.
    pub(crate) fn hold(&self, stream: &Stream) -> Result<(), DeviceError> {
        let wait = self.context.driver.table.cuStreamWaitEvent.ok_or_else(no_priorities)?;
        self.context.driver.here()?;
        // SAFETY: event and stream live and are of one context.
        let code = unsafe { wait(stream.handle.0, self.handle.0, 0) };
        self.context.note(self.context.driver.check("cuStreamWaitEvent", code))
    }

    /// Whether the stream has passed it; the context must be current.
    pub(crate) fn is_reached(&self) -> Result<bool, DeviceError> {
        let driver = &self.context.driver;
        driver.here()?;
        // Not by `call`, which would make a text of every "not ready".
        // SAFETY: the event lives.
        match unsafe { (driver.table.cuEventQuery)(self.handle.0) } {
            table::SUCCESS => Ok(true),
            table::NOT_READY => Ok(false),
            code => self.context.note(driver.check("cuEventQuery", code)).map(|()| false),
        }
    }

    /// Nanoseconds from `self` to `later`, both reached; negative when `later` was earlier. Resolution about 0.5 us.
    pub(crate) fn nanos_to(&self, later: &Self) -> Result<i64, DeviceError> {
        let mut millis = 0f32;
        let (from, to) = (self.handle.0, later.handle.0);
        // SAFETY: both events live and are of one context; `millis` is valid for the call to write.
        self.context.note(unsafe { call!(self.context.driver, cuEventElapsedTime(&raw mut millis, from, to)) })?;
        // A cast from a float saturates, and takes NaN to 0.
        Ok((f64::from(millis) * 1e6) as i64)
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: made by `new`, destroyed once.
            let _ = unsafe { call!(self.context.driver, cuEventDestroy_v2(self.handle.0)) };
        }
    }
}

/// A loaded module with one entry of it.
pub(crate) struct Module {
    context: Arc<Context>,
    handle: Raw,
    function: Raw,
    /// Dynamic shared memory that the function may already use.
    shared: Mutex<u32>,
}

impl Module {
    /// Loads PTX text, a cubin or a fatbin, and finds `entry` in it; `id` is the name for messages.
    pub(crate) fn load(context: &Arc<Context>, id: &str, code: &[u8], entry: &str) -> Result<Self, DeviceError> {
        context.bind()?;
        let invalid = |_| DeviceError::Invalid { what: "kernel", reason: "its entry holds a NUL".into() };
        let name = CString::new(entry).map_err(invalid)?;
        // The driver takes a text up to its zero; an image says itself how long it is.
        let image = [code, &[0]].concat();
        let mut log = vec![0 as c_char; LOG_BYTES];
        let mut options = [table::JIT_ERROR_LOG, table::JIT_ERROR_LOG_BYTES];
        let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), without_provenance_mut(LOG_BYTES)];
        let (count, options, values) = (options.len() as c_uint, options.as_mut_ptr(), values.as_mut_ptr());
        let mut handle = null_mut();
        // SAFETY: a text ends with NUL, and an image is as long as it says or the file is damaged, which is the caller's business;
        // options and values have `count` entries, whose buffer has the stated size; the context is current.
        let loaded = unsafe {
            call!(context.driver, cuModuleLoadDataEx(&raw mut handle, image.as_ptr().cast(), count, options, values))
        };
        let failed = |error: DeviceError, log: String| match error {
            DeviceError::Driver { code, .. } if table::ends_the_context(code) => error,
            DeviceError::Driver { call, name, .. } => {
                DeviceError::KernelLoad { kernel: id.into(), reason: format!("{call}: {name}"), log }
            }
            other => other,
        };
        context.note(loaded.map_err(|error| failed(error, driver::text(&log))))?;
        let mut module = Self {
            context: Arc::clone(context),
            handle: Raw(handle),
            function: Raw(null_mut()),
            shared: Mutex::default(),
        };
        let mut function = null_mut();
        // SAFETY: the module is loaded; the name ends with NUL.
        let found = unsafe { call!(context.driver, cuModuleGetFunction(&raw mut function, handle, name.as_ptr())) };
        context.note(found.map_err(|error| failed(error, format!("entry `{entry}`"))))?;
        module.function = Raw(function);
        if let Some(load) = context.driver.table.cuFuncLoad {
            // Otherwise the first launch may load it, and wait for everything that runs in the context.
            // SAFETY: the function belongs to the loaded module.
            context.note(context.driver.check("cuFuncLoad", unsafe { load(function) }))?;
        }
        Ok(module)
    }

    fn allow_shared(&self, bytes: u32) -> Result<(), DeviceError> {
        let mut allowed = lock(&self.shared);
        if bytes <= SHARED_WITHOUT_ASKING || bytes <= *allowed {
            return Ok(());
        }
        let wanted = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        // SAFETY: the function belongs to the loaded module.
        let set = unsafe {
            let attribute = table::FUNCTION_MAX_DYNAMIC_SHARED_BYTES;
            call!(self.context.driver, cuFuncSetAttribute(self.function.0, attribute, wanted))
        };
        self.context.note(set)?;
        *allowed = bytes;
        Ok(())
    }
}

impl Module {
    /// How many clusters of `blocks` blocks the device holds at once, launched in the shape of `grid`.
    pub(crate) fn clusters_max(&self, grid: LaunchGrid, blocks: u32) -> Result<u32, DeviceError> {
        self.context.bind()?;
        let driver = &self.context.driver;
        let (Some(count), Some(_)) = (driver.table.cuOccupancyMaxActiveClusters, driver.table.cuLaunchKernelEx) else {
            return Err(no_clusters());
        };
        self.allow_shared(grid.shared_bytes)?;
        self.allow_clusters(blocks)?;
        let attribute = cluster_attribute(blocks);
        let config = launch_config(grid, Raw(null_mut()), &attribute);
        let mut clusters: c_int = 0;
        // SAFETY: `clusters` is valid for the call to write; configuration and attribute are read during the call.
        let code = unsafe { count(&raw mut clusters, self.function.0, &raw const config) };
        self.context.note(driver.check("cuOccupancyMaxActiveClusters", code))?;
        Ok(clusters.unsigned_abs())
    }

    /// Allows clusters of more blocks than every device with clusters has.
    fn allow_clusters(&self, blocks: u32) -> Result<(), DeviceError> {
        if blocks <= PORTABLE_CLUSTER {
            return Ok(());
        }
        // SAFETY: the function belongs to the loaded module.
        let set = unsafe {
            let attribute = table::FUNCTION_NON_PORTABLE_CLUSTERS;
            call!(self.context.driver, cuFuncSetAttribute(self.function.0, attribute, 1))
        };
        self.context.note(set)
    }
}

fn cluster_attribute(blocks: u32) -> LaunchAttribute {
    let mut value = [0; 16];
    value[..3].copy_from_slice(&[blocks, 1, 1]);
    LaunchAttribute { id: table::LAUNCH_CLUSTER_DIMENSION, padding: 0, value }
}

fn launch_config(grid: LaunchGrid, stream: Raw, attribute: &LaunchAttribute) -> LaunchConfig {
    LaunchConfig {
        grid: grid.blocks,
        block: grid.threads,
        shared_bytes: grid.shared_bytes,
        stream: stream.0,
        attributes: attribute,
        attribute_count: 1,
    }
}

fn no_clusters() -> DeviceError {
    DeviceError::Unavailable {
        what: "a launch in clusters".into(),
        reason: "the driver does not have cuLaunchKernelEx and cuOccupancyMaxActiveClusters".into(),
        remedy: "update the NVIDIA driver (11.8 or later is needed)".into(),
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: loaded by `load`, unloaded once; the device has finished its launches before it drops its modules.
            let _ = unsafe { call!(self.context.driver, cuModuleUnload(self.handle.0)) };
        }
    }
}

/// Memory of a GPU.
pub(crate) struct DeviceMemory {
    pub(crate) context: Arc<Context>,
    address: Address,
    bytes: usize,
}

impl DeviceMemory {
    /// Allocates and zeroes.
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, DeviceError> {
        context.bind()?;
        let driver = &context.driver;
        let mut address = 0;
        // SAFETY: `address` is valid for the call to write; the context is current.
        match unsafe { call!(driver, cuMemAlloc_v2(&raw mut address, bytes.max(1))) } {
            Err(DeviceError::Driver { code: table::OUT_OF_MEMORY, .. }) => {
                let (mut free, mut total) = (0, 0);
                // SAFETY: both are valid for the call to write.
                unsafe { call!(driver, cuMemGetInfo_v2(&raw mut free, &raw mut total)) }?;
                let (wanted, available) = (Bytes(bytes as u64), Bytes(free as u64));
                return Err(DeviceError::OutOfMemory { what: "device memory", wanted, available });
            }
            other => context.note(other)?,
        }
        let memory = Self { context: Arc::clone(context), address, bytes };
        // SAFETY: the allocation has this size.
        context.note(unsafe { call!(driver, cuMemsetD8_v2(address, 0, bytes.max(1))) })?;
        // SAFETY: null names the default stream, in which the call above runs; it may return before the memory is set.
        context.note(unsafe { call!(driver, cuStreamSynchronize(null_mut())) })?;
        Ok(memory)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: allocated by `new`, freed once; no operation uses it, as operations own spans of it.
            let _ = unsafe { call!(self.context.driver, cuMemFree_v2(self.address)) };
        }
    }
}

// SAFETY: a fresh allocation of the driver of at least `bytes` bytes, zeroed, freed on drop only; not host memory; the three
// answers come from fields that never change.
unsafe impl Memory for DeviceMemory {
    fn base(&self) -> *mut u8 {
        without_provenance_mut(self.address as usize)
    }
    fn bytes(&self) -> usize {
        self.bytes
    }
    fn place(&self) -> MemoryPlace {
        MemoryPlace::Device { id: self.context.id, domain: self.context.driver.domain }
    }
}
