//! Fills many places of a GPU's memory from what threads read: the parts of files, for example.
//!
//! Each thread has two page-locked slots. It fills one while the engine empties the other one, so that reading and copying overlap and no
//! slot goes from one thread to another. What lies in one slot may belong to many places: small ones cost one call of the driver each, and
//! no reading of their own.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use headway_core::units::{Bytes, Nanos};
use headway_device::DeviceError;
use headway_device::buffer::Memory;
use headway_os::threads;

use crate::CudaGpu;
use crate::abandoned::{await_rest_for, leave};
use crate::driver::lock;
use crate::lookup::AddressFacts;
use crate::owned::{Context, CopyKind, CudaEvent, Stream};
use crate::pool::SlabPiece;

/// Slots of a thread.
const SLOTS: usize = 2;
/// The smallest slot.
const SLOT_MIN: u64 = 64 << 10;
/// Between two looks whether a slot is empty.
const NAP: Duration = Duration::from_micros(20);

/// What a [`scatter`] may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScatterOptions {
    /// Threads that fill slots.
    pub threads: u32,
    /// Bytes of a slot; each thread has two.
    pub slot: Bytes,
    /// How long the GPU may take to empty a slot.
    pub patience: Nanos,
}

impl Default for ScatterOptions {
    /// Eight threads, 4 MiB (64 MiB of page-locked memory), 10 s.
    fn default() -> Self {
        Self { threads: 8, slot: Bytes(4 << 20), patience: Nanos(10_000_000_000) }
    }
}

/// A place in GPU memory for a part of a slot. The value is the caller's promise that the place may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawPlace {
    to: u64,
    bytes: usize,
    /// Where the slot has what goes there.
    from: usize,
}

impl RawPlace {
    /// `bytes` bytes of GPU memory at address `to`, for the beginning of a slot.
    ///
    /// # Safety
    /// The memory is allocated, and nobody else uses it, until the [`scatter`] that it is given to has returned; if that says that
    /// the GPU did not end in time, for ever.
    #[must_use]
    pub unsafe fn new(to: u64, bytes: usize) -> Self {
        Self { to, bytes, from: 0 }
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.to
    }

    /// Bytes that go there.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The `bytes` bytes behind the first `skipped` of it, for what a slot has from `from` on.
    ///
    /// # Panics
    /// If it has not so many bytes.
    #[must_use]
    pub fn part(&self, skipped: usize, bytes: usize, from: usize) -> Self {
        let fits = skipped.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(fits, "a part lies within its place");
        Self { to: self.to.wrapping_add(skipped as u64), bytes, from }
    }
}

/// What a [`scatter`] copies: chunks, each of which fits into a slot. Threads ask at the same time.
pub trait Chunks: Sync {
    /// Why a chunk could not be read.
    type Error: Send;
    /// How many there are.
    fn count(&self) -> usize;
    /// Where the bytes of chunk `at` go.
    fn places(&self, at: usize) -> &[RawPlace];
    /// Writes the bytes of chunk `at` to `slot`, which starts at a page; the answer is where in the slot they begin. Engines copy faster
    /// if that is aligned as the places are.
    ///
    /// # Errors
    /// What ends the whole copy.
    fn read(&self, at: usize, slot: &mut [u8]) -> Result<usize, Self::Error>;
    /// Waits until a chunk may go to the engine. What this returns is dropped when the engine has copied that chunk; `None` = nobody has to
    /// know when that is.
    ///
    /// # Errors
    /// What ends the whole copy.
    fn turn(&self) -> Result<Option<Box<dyn EngineTurn + '_>>, DeviceError> {
        Ok(None)
    }
}

/// The right to have a chunk on an engine, given back when dropped.
pub trait EngineTurn {}

impl<T> EngineTurn for T {}

/// Why not all was copied. Nothing is known of the places then.
#[derive(Debug, PartialEq, Eq)]
pub enum ScatterError<E> {
    /// A chunk could not be read.
    Read(E),
    /// The GPU, its driver, or memory for it.
    Device(DeviceError),
    /// The caller ended it.
    Stopped,
}

impl<E> From<DeviceError> for ScatterError<E> {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

/// A thread's slot.
struct Slot {
    memory: SlabPiece,
    /// Reached once the engine has emptied it.
    emptied: CudaEvent,
    is_full: bool,
}

/// What the threads of one call share.
struct Shared<'a, C: Chunks> {
    gpu: &'a CudaGpu,
    context: &'a Arc<Context>,
    chunks: &'a C,
    options: ScatterOptions,
    stop: &'a AtomicBool,
    moved: &'a AtomicU64,
    next: AtomicUsize,
    stream: Mutex<Arc<Stream>>,
    /// The first error.
    failed: Mutex<Option<ScatterError<C::Error>>>,
    has_failed: AtomicBool,
}

/// Copies all chunks to their places, in a stream of its own; the bytes are there when it returns. `moved` counts the bytes that were
/// handed to the engine, and the copy ends soon after `stop` becomes true.
///
/// # Errors
/// [`ScatterError`]. Unless it is [`DeviceError::Timeout`], the GPU writes none of the places any more.
pub fn scatter<C: Chunks>(
    gpu: &CudaGpu,
    chunks: &C,
    options: ScatterOptions,
    stop: &AtomicBool,
    moved: &AtomicU64,
) -> Result<(), ScatterError<C::Error>> {
    let context = gpu.context();
    let _before = context.driver.keep_current()?;
    context.driver.here()?;
    context.bind()?;
    if options.threads == 0 || options.slot.0 < SLOT_MIN {
        let reason = "there must be a thread at least, and slots of 64 KiB at least".to_owned();
        return Err(DeviceError::Invalid { what: "options of a load", reason }.into());
    }
    let count = chunks.count();
    let stream = Arc::new(Stream::new(context)?);
    let threads = (options.threads as usize).min(count.div_ceil(SLOTS));
    let mut slots: Vec<[Option<Slot>; SLOTS]> = (0..threads).map(|_| [None, None]).collect();
    let shared = Shared {
        gpu,
        context,
        chunks,
        options,
        stop,
        moved,
        next: AtomicUsize::new(0),
        stream: Mutex::new(Arc::clone(&stream)),
        failed: Mutex::new(None),
        has_failed: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        let mut started = 0;
        for own in &mut slots {
            let thread = std::thread::Builder::new().name("headway-load".into());
            let (shared, mut work) = (&shared, move |shared: &Shared<'_, C>| shared.work(own));
            match threads::without_signals(|| thread.spawn_scoped(scope, move || work(shared))) {
                Ok(_) => started += 1,
                Err(error) if started == 0 => {
                    let (reason, remedy) = (error.to_string(), "raise the limit of processes (`ulimit -u`)".to_owned());
                    let what = "threads for a load".to_owned();
                    shared.fail(DeviceError::Unavailable { what, reason, remedy }.into());
                }
                // Fewer do it, too.
                Err(_) => {}
            }
        }
    });
    let failed = lock(&shared.failed).take();
    drop(shared);
    if let Err(error) = await_rest_for(context, &stream, "a load", options.patience) {
        // The engine may still read the slots.
        leave(context, Some(&stream), slots, None);
        return Err(failed.unwrap_or_else(|| error.into()));
    }
    match failed {
        Some(error) => Err(error),
        None if stop.load(Ordering::Relaxed) => Err(ScatterError::Stopped),
        None => Ok(()),
    }
}

/// Whether all places are memory of the GPU, and within a slot.
fn check(context: &Context, places: &[RawPlace], slot: usize) -> Result<(), DeviceError> {
    let invalid = |reason: &str| DeviceError::Invalid { what: "a place for loaded bytes", reason: reason.into() };
    for place in places.iter().filter(|place| place.bytes > 0) {
        if place.from.checked_add(place.bytes).is_none_or(|end| end > slot) {
            return Err(invalid("it takes more than a slot has"));
        }
        let last =
            place.to.checked_add(place.bytes as u64 - 1).ok_or_else(|| invalid("it goes beyond the end of memory"))?;
        for address in [place.to, last] {
            let known = AddressFacts::of(context, address)?;
            if known.is_managed() || !known.is_on(context) {
                return Err(invalid("it is not all memory of this GPU"));
            }
        }
    }
    Ok(())
}

impl<C: Chunks> Shared<'_, C> {
    fn fail(&self, error: ScatterError<C::Error>) {
        lock(&self.failed).get_or_insert(error);
        self.has_failed.store(true, Ordering::Release);
    }

    fn work(&self, own: &mut [Option<Slot>; SLOTS]) {
        // Else each of its sleeps is 50 us longer; where that is forbidden, it is.
        let _ = headway_os::sched::lower_timer_slack();
        if let Err(error) = self.context.bind() {
            return self.fail(error.into());
        }
        for turn in 0.. {
            let ends = self.has_failed.load(Ordering::Acquire) || self.stop.load(Ordering::Relaxed);
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            if ends || at >= self.chunks.count() {
                return;
            }
            let copied = self.slot(&mut own[turn % SLOTS]).and_then(|slot| self.chunk(at, slot));
            if let Err(error) = copied {
                return self.fail(error);
            }
        }
    }

    /// The slot there, locked in memory when it is first used: meanwhile other threads have begun.
    fn slot<'b>(&self, place: &'b mut Option<Slot>) -> Result<&'b mut Slot, ScatterError<C::Error>> {
        if place.is_none() {
            let memory = self.gpu.pool().take_pages(usize::try_from(self.options.slot.0).unwrap_or(usize::MAX))?;
            // Locking memory may have made another context current.
            self.context.bind()?;
            *place = Some(Slot { memory, emptied: CudaEvent::untimed(self.context)?, is_full: false });
        }
        place.as_mut().ok_or(ScatterError::Stopped)
    }

    fn chunk(&self, at: usize, slot: &mut Slot) -> Result<(), ScatterError<C::Error>> {
        let places = self.chunks.places(at);
        self.await_empty(slot)?;
        let base = slot.memory.base();
        // SAFETY: the slot is this thread's, as long as this, and the engine has emptied it.
        let memory = unsafe { std::slice::from_raw_parts_mut(base, slot.memory.bytes()) };
        let begins = self.chunks.read(at, memory).map_err(ScatterError::Read)?;
        check(self.context, places, slot.memory.bytes().saturating_sub(begins))?;
        let (start, mut bytes) = ((base.expose_provenance() + begins) as u64, 0);
        let turn = self.chunks.turn()?;
        let stream = lock(&self.stream);
        slot.is_full = true;
        for place in places.iter().filter(|place| place.bytes > 0) {
            // SAFETY: the slot stays until the stream has passed this point, and so does the place by the promise of `RawPlace`; both
            // ranges were checked.
            unsafe { stream.copy(CopyKind::HostToDevice, start + place.from as u64, place.to, place.bytes) }?;
            bytes += place.bytes as u64;
        }
        slot.emptied.record(&stream)?;
        drop(stream);
        self.moved.fetch_add(bytes, Ordering::Relaxed);
        if turn.is_some() {
            self.await_empty(slot)?;
        }
        Ok(())
    }

    fn await_empty(&self, slot: &mut Slot) -> Result<(), ScatterError<C::Error>> {
        let start = Instant::now();
        while slot.is_full && !slot.emptied.is_reached()? {
            if self.has_failed.load(Ordering::Acquire) || self.stop.load(Ordering::Relaxed) {
                return Err(ScatterError::Stopped);
            }
            let after = self.options.patience;
            if start.elapsed() > Duration::from_nanos(after.0) {
                let what = format!("a load on GPU {}", self.context.ordinal);
                return Err(DeviceError::Timeout { what, after }.into());
            }
            std::thread::sleep(NAP);
        }
        slot.is_full = false;
        Ok(())
    }
}
