//! What Headway keeps for each CUDA context: the kernel, pinned lines, and the words of its streams.
//!
//! A stream is bulk while more than a chunk of copies out of the GPU is under way on it, however small each of them is. That is read from
//! the word that is written behind each chunk ([`StreamLoad`]).

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use headway_core::decisions::cut::StreamLoad;
use headway_core::units::Bytes;

use crate::base::attention::{self, BULK, NEIGHBOURS, NEW};
use crate::base::driver::{
    self, Context, DevicePtr, Driver, KernelCopy, NOT_READY, Relaxed, STREAM_PER_THREAD, SUCCESS, Stream,
};
use crate::base::streams::{KnownStream, Loads, Room, WORDS, chunk, weight};
use crate::base::wait::wait_until;
use crate::base::{link, neighbours, stack};

/// How long a call waits for room, however its stream goes on.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(1);

/// A line is pinned memory that a kernel writes and the calling thread copies on, for copies into ordinary memory.
pub(crate) const LINE_BYTES: usize = 64 << 10;
const LINES: usize = 4;
const WORD_BYTES: usize = 64;
/// How long the first launch may take before a context is used without having been tried.
const TRIAL: Duration = Duration::from_millis(200);

const PTX: &[u8] = concat!(include_str!("../../ptx/aside.ptx"), "\0").as_bytes();

/// `CU_STREAM_NON_BLOCKING`, `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`.
const STREAM_NON_BLOCKING: u32 = 1;
const HOST_MAPPED: u32 = 1 | 2;
/// `CU_DEVICE_ATTRIBUTE_`: `UNIFIED_ADDRESSING`, `COMPUTE_CAPABILITY_MAJOR` and `_MINOR`.
const UNIFIED_ADDRESSING: c_int = 41;
const CAPABILITY_MAJOR: c_int = 75;
const CAPABILITY_MINOR: c_int = 76;
/// The oldest GPU that the kernel's PTX is for.
const CAPABILITY_MIN: (c_int, c_int) = (7, 5);

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
    loads: Mutex<Loads>,
    /// It may be about to be destroyed, with the memory: a thread that waits reads no more.
    is_gone: AtomicBool,
}

// SAFETY: `memory` is pinned memory that lives as long as the context; each line is used only by the thread that took it.
unsafe impl Send for Prepared {}
// SAFETY: `memory` is pinned memory that lives as long as the context; each line is used only by the thread that took
// it; everything else is atomic or behind a lock.
unsafe impl Sync for Prepared {}

enum ContextState {
    /// The program holds it, and has neither allocated memory nor made a copy in it yet.
    Expected,
    /// It was ready, and lives on perhaps: prepared at its next copy.
    ExpectedAgain,
    /// A thread prepares it; meanwhile, and if that fails, its copies are passed on.
    PassedOn,
    Ready(Arc<Prepared>),
}

impl ContextState {
    /// The context may be about to be destroyed.
    fn go(&mut self) {
        if let Self::Ready(ready) = std::mem::replace(self, Self::ExpectedAgain) {
            ready.is_gone.store(true, Ordering::Release);
            // Who reads a word holds this.
            drop(ready.loads());
        }
    }
}

static CONTEXTS: Mutex<Vec<(Context, ContextState)>> = Mutex::new(Vec::new());

fn contexts() -> MutexGuard<'static, Vec<(Context, ContextState)>> {
    CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the reasons for attention by what is known.
fn refresh(known: &[(Context, ContextState)]) {
    let expected = |known: &ContextState| matches!(known, ContextState::Expected | ContextState::ExpectedAgain);
    let new = known.is_empty() || known.iter().any(|(_, known)| expected(known));
    let busy = known.iter().any(|(_, known)| matches!(known, ContextState::Ready(ready) if ready.is_busy()));
    let bits = |new, busy| (if new { NEW } else { 0 }) | (if busy { BULK } else { 0 });
    if attention::queues() {
        attention::attend(bits(new, busy), bits(!new, !busy));
    }
}

fn change(change: impl FnOnce(&mut Vec<(Context, ContextState)>)) {
    if !attention::is_off() {
        let mut known = contexts();
        change(&mut known);
        refresh(&known);
    }
}

/// A context that the program has got hold of: prepared at its first allocation or copy.
pub(crate) fn expect(context: Context) {
    change(|known| {
        if known.iter().all(|(other, _)| *other != context) {
            known.push((context, ContextState::Expected));
        }
    });
}

/// A context that is about to be destroyed. What it owns goes with it.
pub(crate) fn forget(context: Context) {
    change(|known| known.extract_if(.., |(other, _)| *other == context).for_each(|(_, mut known)| known.go()));
}

/// Any of the contexts may be about to be destroyed; those that live on are prepared again.
pub(crate) fn forget_all() {
    change(|known| known.iter_mut().for_each(|(_, known)| known.go()));
}

/// Contexts of a device that may be about to be destroyed; those that live on are prepared again.
pub(crate) fn forget_device(device: c_int) {
    change(|known| {
        let of_device =
            |known: &&mut ContextState| matches!(known, ContextState::Ready(ready) if ready.device == device);
        known.iter_mut().map(|(_, known)| known).filter(of_device).for_each(ContextState::go);
    });
}

/// Prepares the context of this thread if nothing was prepared in it before.
pub(crate) fn prepare_new(driver: &Driver) {
    found(driver, Prepares::New);
}

/// What is kept for the context of this thread; prepared now if nothing is.
pub(crate) fn current(driver: &Driver) -> Option<Arc<Prepared>> {
    found(driver, Prepares::Any)
}

/// Which contexts are prepared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Prepares {
    New,
    /// Also those that were prepared before, and may have been destroyed.
    Any,
}

fn found(driver: &Driver, prepares: Prepares) -> Option<Arc<Prepared>> {
    let context = driver::current_context(driver)?;
    let mut known = contexts();
    match known.iter_mut().find(|(other, _)| *other == context) {
        Some((_, ContextState::Ready(ready))) => return Some(Arc::clone(ready)),
        Some((_, ContextState::PassedOn)) => return None,
        Some((_, ContextState::ExpectedAgain)) if prepares == Prepares::New => return None,
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
    let device = driver::current_device(driver)?;
    let attribute = |number| driver::attribute(driver, device, number);
    let capability = (attribute(CAPABILITY_MAJOR)?, attribute(CAPABILITY_MINOR)?);
    if capability < CAPABILITY_MIN || attribute(UNIFIED_ADDRESSING)? == 0 || attribute(driver::PAGEABLE_ACCESS)? != 0 {
        return None;
    }
    let uuid = driver::uuid(driver, device)?;
    let kernel = driver::load_kernel(driver, CStr::from_bytes_with_nul(PTX).ok()?, c"headway_aside")?;
    let (mut memory, mut memory_seen) = (std::ptr::null_mut(), 0);
    let bytes = LINES * LINE_BYTES + WORDS * WORD_BYTES;
    // SAFETY: both places are valid for the calls to write; the memory is ours for as long as the context lives.
    let got = unsafe {
        (driver.cuMemHostAlloc)(&raw mut memory, bytes, HOST_MAPPED) == SUCCESS
            && (driver.cuMemHostGetDevicePointer_v2)(&raw mut memory_seen, memory, 0) == SUCCESS
    };
    if !got {
        return None;
    }
    let place = neighbours::bulk_place(&uuid);
    if attention::reasons() & NEIGHBOURS != 0 {
        link::begin(uuid, place);
    }
    let prepared = Prepared {
        device,
        place,
        kernel,
        memory: memory.cast(),
        memory_seen,
        taken: [const { AtomicBool::new(false) }; LINES],
        writes: AtomicBool::new(true),
        calls: AtomicU32::new(0),
        loads: Mutex::default(),
        is_gone: AtomicBool::new(false),
    };
    try_out(driver, &prepared).then_some(prepared)
}

/// Launches the kernel for no bytes and writes the word once, in a stream for which no thread waits.
fn try_out(driver: &Driver, prepared: &Prepared) -> bool {
    let mut handle = std::ptr::null_mut();
    // SAFETY: `handle` is valid for the call to write.
    if unsafe { (driver.cuStreamCreate)(&raw mut handle, STREAM_NON_BLOCKING) } != SUCCESS {
        return false;
    }
    let stream = handle.expose_provenance();
    let (to, from) = (prepared.memory_seen, prepared.memory_seen);
    let nothing = KernelCopy { to, from, bytes: 0, blocks: 1, threads: 32 };
    // SAFETY: kernel and stream are of the current context; no byte is copied.
    let launched = unsafe { driver::launch(driver, prepared.kernel, stream, nothing) };
    // Word 0 is nobody's.
    prepared.write(driver, stream, 0, 0);
    let start = Instant::now();
    // SAFETY: the stream is ours.
    while unsafe { (driver.cuStreamQuery)(handle) } == NOT_READY && start.elapsed() < TRIAL {
        std::thread::yield_now();
    }
    // SAFETY: the stream is ours; the driver lets it go when its operations are done.
    unsafe { (driver.cuStreamDestroy_v2)(handle) };
    launched
}

/// The kernel's number of this thread where the handle names a stream of each thread, else 0.
fn thread_of(stream: Stream) -> u64 {
    if stream != STREAM_PER_THREAD {
        return 0;
    }
    // SAFETY: the call has no arguments and cannot fail.
    unsafe { libc::gettid() }.unsigned_abs().into()
}

/// A stream is about to be destroyed.
pub(crate) fn forget_stream(stream: Stream) {
    if attention::is_off() {
        return;
    }
    for (_, known) in contexts().iter() {
        if let ContextState::Ready(ready) = known {
            ready.loads().forget(stream);
        }
    }
}

impl Prepared {
    fn loads(&self) -> MutexGuard<'_, Loads> {
        self.loads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_busy(&self) -> bool {
        self.calls.load(Ordering::Relaxed) > 0 || self.loads().known.iter().any(|known| self.is_bulk(known))
    }

    fn is_bulk(&self, known: &KnownStream) -> bool {
        known.load.under_way(self.read(known.word)) > chunk()
    }

    /// The value that a word has come to; of a context that may be gone, 0.
    fn read(&self, word: usize) -> u32 {
        if self.is_gone.load(Ordering::Acquire) {
            return 0;
        }
        let at = self.memory.wrapping_add(LINES * LINE_BYTES + word * WORD_BYTES).cast::<u32>();
        // SAFETY: the word is on the page-locked memory of this context, aligned, and a GPU writes it as a whole.
        unsafe { at.read_volatile() }
    }

    /// A bulk copy begins to be queued; it is queued, or has been made, when the answer is dropped.
    pub(crate) fn enter(&self, bytes: usize) -> BulkCall<'_> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        attention::attend(BULK, 0);
        self.announce(bytes);
        BulkCall(self)
    }

    /// Tells other programs of the bulk that this context has under way, and of `more` bytes of a call that begins.
    fn announce(&self, more: usize) {
        let under_way = |known: &KnownStream| known.load.under_way(self.read(known.word)).0;
        let known: u64 = self.loads().known.iter().filter(|known| self.is_bulk(known)).map(under_way).sum();
        neighbours::announce(self.place, known.saturating_add(more as u64));
    }

    /// Changes what is known of a stream, which is added if there is a word for it; what `change` gives.
    fn with_load<T>(&self, stream: Stream, change: impl FnOnce(&mut StreamLoad) -> T) -> Option<T> {
        let mut loads = self.loads();
        let at = loads.find(stream, thread_of(stream), |word| self.read(word))?;
        let known = &mut loads.known[at];
        let given = change(&mut known.load);
        if self.is_bulk(known) {
            attention::attend(BULK, 0);
        }
        Some(given)
    }

    /// Room for a word on the stream. Where as many are under way as may be, waits for room as long as the stream goes on. A stream may wait for what this
    /// thread does only later, so nothing waits for one that does not go on.
    pub(crate) fn room(&self, stream: Stream) -> Option<WordRoom<'_>> {
        let (thread, read) = (thread_of(stream), |word| self.read(word));
        let mut reserved = None;
        wait_until(ROOM_WAIT_MAX, || {
            let mut loads = self.loads();
            let Some(at) = loads.find(stream, thread, read) else { return true };
            let room = if self.is_gone.load(Ordering::Acquire) { Room::None } else { loads.room(at, read) };
            let known = &loads.known[at];
            reserved = (room == Room::Reserved).then(|| (known.word, Arc::clone(&known.order)));
            room != Room::Soon
        });
        reserved.map(|(word, order)| WordRoom { context: self, stream, word, order })
    }

    /// A copy of `bytes` bytes is about to be queued: a word goes before it if more than a chunk would follow each other.
    pub(crate) fn before_queue(&self, driver: &Driver, stream: Stream, bytes: usize) {
        if let Some(true) = self.with_load(stream, |load| load.ends_before(weight(bytes), chunk())) {
            self.write_behind(driver, stream);
        }
    }

    /// A copy of `bytes` bytes was queued; a word goes behind it if it ends a chunk.
    pub(crate) fn queued(&self, driver: &Driver, stream: Stream, bytes: usize) {
        if let Some(true) = self.with_load(stream, |load| load.queue(weight(bytes), chunk())) {
            self.write_behind(driver, stream);
        }
    }

    /// Writes a word, unless the stream records, as then it recorded what was queued, too, or has no room.
    fn write_behind(&self, driver: &Driver, stream: Stream) {
        let _relaxed = Relaxed::new(driver);
        let room = if driver::captures(driver, stream) { None } else { self.room(stream) };
        if let Some(room) = room {
            room.write(driver, 0);
            self.announce(0);
        } else {
            self.with_load(stream, StreamLoad::drop_unwritten);
        }
    }

    /// Whose bulk is under way, as seen by a copy in this stream. Bulk of its own stream nothing can overtake.
    pub(crate) fn bulk_before(&self, stream: Stream) -> BulkBefore {
        let loads = self.loads();
        let own = loads.known.iter().any(|known| known.stream == stream && self.is_bulk(known));
        let others = loads.known.iter().any(|known| known.stream != stream && self.is_bulk(known));
        drop(loads);
        let called = self.calls.load(Ordering::Relaxed) > 0;
        if own {
            BulkBefore::SameStream
        } else if others || called {
            BulkBefore::OtherStream
        } else {
            refresh(&contexts());
            BulkBefore::None
        }
    }

    /// Whether words can be written between chunks.
    pub(crate) fn writes_values(&self) -> bool {
        self.writes.load(Ordering::Relaxed)
    }

    /// Writes a word in `stream`, with the memory barrier that makes the engine serve other streams.
    fn write(&self, driver: &Driver, stream: Stream, word: usize, value: u32) {
        let at = self.memory_seen + (LINES * LINE_BYTES + word * WORD_BYTES) as u64;
        // SAFETY: the word is ours, and of the current context.
        if unsafe { (driver.cuStreamWriteValue32_v2)(driver::handle(stream), at, value, 0) } != SUCCESS {
            self.writes.store(false, Ordering::Relaxed);
        }
    }

    /// A free line; `None` if all are in use.
    pub(crate) fn line(&self) -> Option<PinnedLine<'_>> {
        let number = self.taken.iter().position(|taken| !taken.swap(true, Ordering::Acquire))?;
        Some(PinnedLine { owner: self, number })
    }
}

/// Room for one word on a stream.
pub(crate) struct WordRoom<'a> {
    context: &'a Prepared,
    stream: Stream,
    word: usize,
    order: Arc<Mutex<()>>,
}

impl WordRoom<'_> {
    /// Writes the word behind what was queued, of which `bytes` bytes are not counted yet.
    pub(crate) fn write(self, driver: &Driver, bytes: usize) {
        let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        let value = self.known(|known| {
            known.load.queue(Bytes(bytes as u64), Bytes(u64::MAX));
            known.load.word()
        });
        if let Some(value) = value {
            self.context.write(driver, self.stream, self.word, value);
        }
    }

    /// The stream, unless it was destroyed meanwhile.
    fn known<T>(&self, change: impl FnOnce(&mut KnownStream) -> T) -> Option<T> {
        let mut loads = self.context.loads();
        let same = |known: &&mut KnownStream| known.word == self.word && known.stream == self.stream;
        loads.known.iter_mut().find(same).map(change)
    }
}

impl Drop for WordRoom<'_> {
    fn drop(&mut self) {
        self.known(|known| known.load.give_back());
    }
}

/// Bulk that a context has under way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum BulkBefore {
    None,
    SameStream,
    OtherStream,
}

/// A bulk copy that is inside the driver's call now.
pub(crate) struct BulkCall<'a>(&'a Prepared);

impl Drop for BulkCall<'_> {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::Relaxed);
        refresh(&contexts());
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
