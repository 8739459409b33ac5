//! What Headway keeps for each CUDA context: the kernel, pinned lines, and which bulk copies are under way.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::decide::{self, BULK, NEW};
use crate::driver::{self, Context, DevicePtr, Driver, NOT_READY, Relaxed, SUCCESS, Stream};
use crate::{lookup, neighbours, stack};

/// A line is pinned memory that a kernel writes and the calling thread copies on, for copies into ordinary memory.
pub(crate) const LINE_BYTES: usize = 64 << 10;
const LINES: usize = 4;
/// Bulk copies that are remembered at a time; of more, the oldest is forgotten.
const UNDER_WAY_MAX: usize = 64;
/// How long the first launch may take before a context is used without having been tried.
const TRIAL: Duration = Duration::from_millis(200);

const PTX: &[u8] = concat!(include_str!("../ptx/aside.ptx"), "\0").as_bytes();

/// `CU_STREAM_NON_BLOCKING`, `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`.
const STREAM_NON_BLOCKING: u32 = 1;
const HOST_MAPPED: u32 = 1 | 2;
/// `CU_DEVICE_ATTRIBUTE_`: `UNIFIED_ADDRESSING`, `COMPUTE_CAPABILITY_MAJOR` and `_MINOR`.
const UNIFIED_ADDRESSING: c_int = 41;
const CAPABILITY_MAJOR: c_int = 75;
const CAPABILITY_MINOR: c_int = 76;
/// The oldest GPU that the kernel's PTX is for.
const CAPABILITY_MIN: (c_int, c_int) = (7, 5);

/// A bulk copy that was queued: done when its event is reached.
struct UnderWay {
    event: usize,
    stream: Stream,
}

#[derive(Default)]
struct Bulk {
    under_way: Vec<UnderWay>,
    spare: Vec<usize>,
}

/// A context that is ready. Kernel, events and memory belong to the context and go with it, so nothing is freed here.
pub(crate) struct Prepared {
    pub(crate) device: c_int,
    /// Its GPU's place on the page that guests share.
    pub(crate) place: usize,
    pub(crate) kernel: usize,
    memory: *mut u8,
    memory_seen: DevicePtr,
    taken: [AtomicBool; LINES],
    writes: AtomicBool,
    /// Bulk copies that are inside the driver's call now.
    calls: AtomicU32,
    bulk: Mutex<Bulk>,
}

// SAFETY: `memory` is pinned memory that lives as long as the context; each line is used only by the thread that took it.
unsafe impl Send for Prepared {}
// SAFETY: `memory` is pinned memory that lives as long as the context; each line is used only by the thread that took
// it; everything else is atomic or behind a lock.
unsafe impl Sync for Prepared {}

enum ContextState {
    /// The program holds it, and has made no copy in it yet.
    Expected,
    /// A thread prepares it; meanwhile, and if that fails, its copies are passed on.
    PassedOn,
    Ready(Arc<Prepared>),
}

static CONTEXTS: Mutex<Vec<(Context, ContextState)>> = Mutex::new(Vec::new());

fn contexts() -> MutexGuard<'static, Vec<(Context, ContextState)>> {
    CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the reasons for attention by what is known.
fn refresh(known: &[(Context, ContextState)]) {
    let new = known.is_empty() || known.iter().any(|(_, known)| matches!(known, ContextState::Expected));
    let busy = known.iter().any(|(_, known)| matches!(known, ContextState::Ready(ready) if ready.is_busy()));
    let bits = |new, busy| (if new { NEW } else { 0 }) | (if busy { BULK } else { 0 });
    decide::attend(bits(new, busy), bits(!new, !busy));
}

/// A context that the program has got hold of: prepared at its first copy.
pub(crate) fn expect(context: Context) {
    if lookup::is_off() {
        return;
    }
    let mut known = contexts();
    if known.iter().all(|(other, _)| *other != context) {
        known.push((context, ContextState::Expected));
        refresh(&known);
    }
}

/// A context that is about to be destroyed. What it owns goes with it.
pub(crate) fn forget(context: Context) {
    if lookup::is_off() {
        return;
    }
    let mut known = contexts();
    known.retain(|(other, _)| *other != context);
    refresh(&known);
}

/// Any of the contexts may be about to be destroyed; those that live on are prepared again.
pub(crate) fn forget_all() {
    if lookup::is_off() {
        return;
    }
    let mut known = contexts();
    for (_, known) in known.iter_mut() {
        *known = ContextState::Expected;
    }
    refresh(&known);
}

/// Contexts of a device that may be about to be destroyed; those that live on are prepared again.
pub(crate) fn forget_device(device: c_int) {
    if lookup::is_off() {
        return;
    }
    let mut known = contexts();
    for (_, known) in known.iter_mut() {
        if matches!(known, ContextState::Ready(ready) if ready.device == device) {
            *known = ContextState::Expected;
        }
    }
    refresh(&known);
}

/// What is kept for the context of this thread; prepared now if it is new.
pub(crate) fn current(driver: &Driver) -> Option<Arc<Prepared>> {
    let context = driver::current_context(driver)?;
    let mut known = contexts();
    match known.iter_mut().find(|(other, _)| *other == context) {
        Some((_, ContextState::Ready(ready))) => return Some(Arc::clone(ready)),
        Some((_, ContextState::PassedOn)) => return None,
        // A thread with more stack prepares it.
        _ if !stack::is_enough() => return None,
        Some((_, expected)) => *expected = ContextState::PassedOn,
        None => known.push((context, ContextState::PassedOn)),
    }
    drop(known);
    let relaxed = Relaxed::new(driver);
    let ready = prepare(driver).map(Arc::new);
    drop(relaxed);
    let mut known = contexts();
    if let Some(ready) = &ready
        && let Some((_, place)) = known.iter_mut().find(|(other, _)| *other == context)
    {
        *place = ContextState::Ready(Arc::clone(ready));
    }
    refresh(&known);
    ready
}

/// Loads the kernel and tries it once, so that nothing is loaded in the middle of a copy.
fn prepare(driver: &Driver) -> Option<Prepared> {
    let mut device = 0;
    // SAFETY: `device` is valid for the call to write.
    if unsafe { (driver.ctx_get_device)(&raw mut device) } != SUCCESS {
        return None;
    }
    let attribute = |number| driver::attribute(driver, device, number);
    let capability = (attribute(CAPABILITY_MAJOR)?, attribute(CAPABILITY_MINOR)?);
    if capability < CAPABILITY_MIN || attribute(UNIFIED_ADDRESSING)? == 0 || attribute(driver::PAGEABLE_ACCESS)? != 0 {
        return None;
    }
    let mut uuid = [0; 16];
    // SAFETY: `uuid` is valid for the call to write.
    if unsafe { (driver.device_get_uuid)(&raw mut uuid, device) } != SUCCESS {
        return None;
    }
    let kernel = driver::load_kernel(driver, CStr::from_bytes_with_nul(PTX).ok()?, c"headway_aside")?;
    let (mut memory, mut memory_seen) = (std::ptr::null_mut(), 0);
    // One more line holds the word that is written between pieces.
    let bytes = (LINES + 1) * LINE_BYTES;
    // SAFETY: both places are valid for the calls to write; the memory is ours for as long as the context lives.
    let got = unsafe {
        (driver.mem_host_alloc)(&raw mut memory, bytes, HOST_MAPPED) == SUCCESS
            && (driver.mem_host_get_device_pointer)(&raw mut memory_seen, memory, 0) == SUCCESS
    };
    if !got {
        return None;
    }
    let prepared = Prepared {
        device,
        place: neighbours::place(&uuid),
        kernel,
        memory: memory.cast(),
        memory_seen,
        taken: [const { AtomicBool::new(false) }; LINES],
        writes: AtomicBool::new(true),
        calls: AtomicU32::new(0),
        bulk: Mutex::default(),
    };
    try_out(driver, &prepared).then_some(prepared)
}

/// Launches the kernel for no bytes and writes the word once, in a stream for which no thread waits.
fn try_out(driver: &Driver, prepared: &Prepared) -> bool {
    let mut stream = 0;
    // SAFETY: `stream` is valid for the call to write.
    if unsafe { (driver.stream_create)(&raw mut stream, STREAM_NON_BLOCKING) } != SUCCESS {
        return false;
    }
    let nothing = (prepared.memory_seen, prepared.memory_seen, 0);
    // SAFETY: kernel and stream are of the current context; no byte is copied.
    let launched = unsafe { driver::launch(driver, prepared.kernel, [1, 32], stream, nothing) };
    prepared.write_value(driver, stream);
    let start = Instant::now();
    // SAFETY: the stream is ours.
    while unsafe { (driver.stream_query)(stream) } == NOT_READY && start.elapsed() < TRIAL {
        std::thread::yield_now();
    }
    // SAFETY: the stream is ours; the driver lets it go when its operations are done.
    unsafe { (driver.stream_destroy)(stream) };
    launched
}

impl Prepared {
    fn bulk(&self) -> MutexGuard<'_, Bulk> {
        self.bulk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_busy(&self) -> bool {
        self.calls.load(Ordering::Relaxed) > 0 || !self.bulk().under_way.is_empty()
    }

    /// A bulk copy begins to be queued.
    pub(crate) fn enter(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        decide::attend(BULK, 0);
    }

    /// It is queued, or has been made.
    pub(crate) fn leave(&self) {
        self.calls.fetch_sub(1, Ordering::Relaxed);
        refresh(&contexts());
    }

    /// Notes where in `stream` a bulk copy ends.
    pub(crate) fn remember(&self, driver: &Driver, stream: Stream) {
        let mut bulk = self.bulk();
        if bulk.under_way.len() == UNDER_WAY_MAX {
            let oldest = bulk.under_way.remove(0);
            bulk.spare.push(oldest.event);
        }
        let mut event = bulk.spare.pop().unwrap_or_default();
        // SAFETY: `event` is valid for the call to write.
        if event == 0 && unsafe { (driver.event_create)(&raw mut event, driver::EVENT_WITHOUT_TIME) } != SUCCESS {
            return;
        }
        // SAFETY: the event is ours, the stream the caller's, which uses it in this call.
        if unsafe { (driver.event_record)(event, stream) } == SUCCESS {
            bulk.under_way.push(UnderWay { event, stream });
        } else {
            bulk.spare.push(event);
        }
    }

    /// Whether a bulk copy of another stream of this context is under way. In the same stream nothing can overtake it.
    pub(crate) fn is_busy_elsewhere(&self, driver: &Driver, stream: Stream) -> bool {
        let _relaxed = Relaxed::new(driver);
        let mut bulk = self.bulk();
        let Bulk { under_way, spare } = &mut *bulk;
        let before = under_way.len();
        under_way.retain(|copy| {
            // SAFETY: the event is ours.
            let done = unsafe { (driver.event_query)(copy.event) } != NOT_READY;
            if done {
                spare.push(copy.event);
            }
            !done
        });
        let own = under_way.iter().any(|copy| copy.stream == stream);
        let others = under_way.iter().any(|copy| copy.stream != stream);
        let ended = under_way.len() < before;
        drop(bulk);
        if ended {
            refresh(&contexts());
        }
        !own && (others || self.calls.load(Ordering::Relaxed) > 0)
    }

    /// Whether words can be written between pieces.
    pub(crate) fn writes_values(&self) -> bool {
        self.writes.load(Ordering::Relaxed)
    }

    /// Writes a word in `stream`, with the memory barrier that makes the engine serve other streams.
    pub(crate) fn write_value(&self, driver: &Driver, stream: Stream) {
        let word = self.memory_seen + (LINES * LINE_BYTES) as u64;
        // SAFETY: the word is ours; it is never read.
        if unsafe { (driver.stream_write_value)(stream, word, 0, 0) } != SUCCESS {
            self.writes.store(false, Ordering::Relaxed);
        }
    }

    /// A free line; `None` if all are in use.
    pub(crate) fn line(&self) -> Option<PinnedLine<'_>> {
        let number = self.taken.iter().position(|taken| !taken.swap(true, Ordering::Acquire))?;
        Some(PinnedLine { owner: self, number })
    }
}

/// Pinned memory for one copy; free again when dropped.
pub(crate) struct PinnedLine<'a> {
    owner: &'a Prepared,
    number: usize,
}

impl PinnedLine<'_> {
    pub(crate) fn seen_by_device(&self) -> DevicePtr {
        self.owner.memory_seen + (self.number * LINE_BYTES) as u64
    }

    /// Copies the first `bytes` bytes to the guest's memory; `false` if that cannot be written, without a signal.
    pub(crate) fn give(&self, to: *mut c_void, bytes: usize) -> bool {
        let from = self.owner.memory.wrapping_add(self.number * LINE_BYTES);
        let local = libc::iovec { iov_base: from.cast(), iov_len: bytes };
        let remote = libc::iovec { iov_base: to, iov_len: bytes };
        // SAFETY: the call checks `to` as any system call does and reads the line, which is at least `bytes` long. It touches
        // nothing else.
        let written = unsafe { libc::process_vm_writev(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
        written == bytes as isize
    }
}

impl Drop for PinnedLine<'_> {
    fn drop(&mut self) {
        self.owner.taken[self.number].store(false, Ordering::Release);
    }
}
