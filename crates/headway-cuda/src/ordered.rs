//! Copies in the order of a caller's stream, of memory that the caller allocated; the call returns before the bytes are there.
//!
//! Page-locked memory is copied in the caller's stream. Ordinary memory goes through page-locked slots: everything that the GPU is to
//! do is queued in the call, on a stream of the copier's own, and threads move bytes between slots and the caller's memory. Streams
//! and threads wait for each other by words in page-locked memory:
//!
//! | | the caller's stream | the copier's stream, for each chunk | a thread, for each chunk |
//! |---|---|---|---|
//! | into the GPU | writes *begin*, waits for *done*, writes *passed* | waits for *filled*, copies, writes *drained*; at the end *done* | waits for *begin* and *drained*, copies, writes *filled* |
//! | out of the GPU | writes *begin*, waits for *done*, writes *passed* | waits for *drained*, copies, writes *filled* | waits for *filled*, copies, writes *drained*; the last one *done* |
//!
//! The threads call no function of the driver. A stream that waits for them therefore never waits for a lock that another thread holds
//! inside the driver, while it loads a module for example and waits for all streams.

mod job;
mod pipeline;
mod ticket;
mod workers;

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, TryLockError};
use std::time::Duration;

use headway_core::decisions::engine_line::FlowClass;
use headway_core::models::transfer::{Direction, Method};
use headway_core::units::{Bytes, Nanos};
use headway_device::buffer::Budget;
use headway_device::gpu::Gpu;
use headway_device::{Buffer, DeviceError, HostKind};
use headway_os::board::EngineActivity;
use headway_os::clock;

use self::pipeline::Pipeline;
pub use self::ticket::OrderedTicket;
use self::ticket::Tickets;
use self::workers::Workers;
use crate::CudaGpu;
use crate::abandoned::{DROP_MAX, await_rest_for, leave};
use crate::driver::table::{self, Address, Handle};
use crate::driver::{CurrentContext, call, lock};
use crate::foreign;
use crate::lookup::AddressFacts;
use crate::owned::{Context, Fate};
use crate::pool::Pool;
use crate::words;

/// The driver itself takes ordinary memory of up to this size at once, without waiting for the stream.
const DRIVER_BUFFERS: usize = 64 << 10;
/// The smallest chunk of a staged copy.
const CHUNK_MIN: usize = 512 << 10;
/// How long a copy that could not be queued to its end is served, if it has begun.
const REFUSED_MAX: Nanos = Nanos(60_000_000_000);
/// Between two looks whether a thread still asks the driver.
const LOOK_NAP: Duration = Duration::from_millis(1);
/// Bytes that a bulk copy moves out before it lets other streams in.
const BULK_TURN: usize = 1 << 20;

/// Most threads of a copier, as in machine files. More would only keep others on the computer from theirs.
const THREADS_MAX: u32 = 1_024;

/// What an [`OrderedCopier`] may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderedOptions {
    /// Threads that move bytes, up to 1,024; they sleep while there is nothing to copy.
    pub threads: u32,
    /// Bytes of a slot, and of the largest chunk. A small copy of another stream waits for about one chunk.
    pub slot: Bytes,
    /// Streams of its own for each direction. A copy whose turn has not come in the caller's stream holds up later ones that use the
    /// same of them. Each has eight slots.
    pub pipelines: usize,
    /// Copies that may be under way, or whose ticket lives.
    pub tickets: usize,
}

impl Default for OrderedOptions {
    /// Six threads, 8 MiB, two streams for each direction (256 MiB of page-locked memory once all four are used), 256 copies.
    fn default() -> Self {
        Self { threads: 6, slot: Bytes(8 << 20), pipelines: 2, tickets: 256 }
    }
}

/// A CUDA stream of the caller's: the driver's handle as a number. 0 and 1 are the legacy default stream, 2 the calling thread's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamHandle(pub usize);

/// A copy between addresses, one of a GPU's memory and one of host memory, in the order of a stream. The value is the caller's promise that
/// the copy may be made.
#[derive(Debug, PartialEq, Eq)]
pub struct RawCopy {
    to: u64,
    from: u64,
    bytes: usize,
    stream: StreamHandle,
    is_bulk: bool,
}

impl RawCopy {
    /// How many bytes are copied.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A copy of `bytes` bytes from `from` to `to`.
    ///
    /// # Safety
    /// Both ranges are mapped and stay so until the copy has ended: until the call returns that waits for it, or until its ticket says
    /// so. If that call says that time is up, the copy has ended when the stream has passed it. Until then nobody writes the source, nor uses
    /// the destination, but in the order of the stream. The stream is of the GPU's primary context, and is not destroyed before the call
    /// that queues the copy returns.
    #[must_use]
    pub unsafe fn new(to: u64, from: u64, bytes: usize, stream: StreamHandle) -> Self {
        Self { to, from, bytes, stream, is_bulk: false }
    }

    /// Out of the GPU to page-locked memory, the copy lets small copies of other streams in after each 1 MiB instead of 16 (H100 and H200): they
    /// wait for 25 us instead of 300, and it takes a fifth longer.
    #[must_use]
    pub fn bulk(self) -> Self {
        Self { is_bulk: true, ..self }
    }
}

/// A copy whose ends were looked up.
#[derive(Clone, Copy, Debug)]
struct OrderedCopy {
    direction: Direction,
    device: u64,
    host: *mut u8,
    bytes: usize,
    stream: StreamHandle,
    is_bulk: bool,
    /// Of the host memory.
    kind: HostKind,
}

/// Both ends of a copy of ordinary memory, lent to the threads that make it.
pub struct LentEnds<'a> {
    /// The GPU's memory.
    pub device: &'a Buffer,
    /// The host's.
    pub host: HostEnd<'a>,
}

/// Ordinary host memory as one end of a copy.
pub enum HostEnd<'a> {
    Source(&'a [u8]),
    Destination(&'a mut [u8]),
}

/// How a copy was made whose bytes are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MadeNow<R> {
    /// By the driver, in the caller's stream.
    InStream(Method),
    /// As it was asked for, with this answer.
    Made(R),
}

/// Makes copies in the order of callers' streams, from any thread.
pub struct OrderedCopier {
    shared: Arc<Shared>,
    workers: Workers,
    /// Into the GPU, and out of it.
    activity: [EngineActivity; 2],
}

/// What copies, threads and tickets share.
struct Shared {
    context: Arc<Context>,
    pool: Arc<Pool>,
    budget: Arc<Budget>,
    options: OrderedOptions,
    tickets: Tickets,
    /// By direction: into the GPU, out of it. Made when they are first used.
    pipelines: [Mutex<Vec<Pipeline>>; 2],
    queue: workers::JobQueue,
    /// The first error after which the copier takes no copies any more. Those that it has go on while the context lives.
    broken: OnceLock<DeviceError>,
    /// What [`Shared::ended`] says from the first time on.
    over: OnceLock<DeviceError>,
    closing: AtomicBool,
    /// Whether a thread asks the driver whether streams have failed.
    is_looking: Arc<AtomicBool>,
}

impl Shared {
    fn check(&self) -> Result<(), DeviceError> {
        self.broken.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Takes no copies any more, because of `error`.
    fn fail(&self, error: DeviceError) -> DeviceError {
        let error = self.broken.get_or_init(|| error).clone();
        self.queue.wake_all();
        error
    }

    /// The error with which copies under way have ended. They have once the driver has ended the context, and neither the GPU nor a thread
    /// uses their memory.
    fn ended(&self) -> Result<(), DeviceError> {
        if self.context.has_ended() && self.over.get().is_none() {
            let error = self.broken.get().cloned().unwrap_or(DeviceError::DeviceLost);
            if let Fate::Over(Err(error)) = self.context.fate(Err(error))
                && self.queue.rests()
            {
                let _ = self.over.set(error);
            }
        }
        self.over.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Has the threads end when nothing is left to copy.
    fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.queue.wake_all();
    }

    /// Asks the driver whether the copier's streams have failed, and keeps the error; slow.
    fn look(&self) {
        // Who queues a copy, for as long as the driver's queue is full, sees the same errors.
        let pipelines = self.pipelines.iter().filter_map(|pipelines| pipelines.try_lock().ok());
        // The locks are free again when the driver is asked: it may take long.
        let streams: Vec<_> =
            pipelines.flat_map(|all| all.iter().map(|it| Arc::clone(&it.stream)).collect::<Vec<_>>()).collect();
        for stream in streams {
            if let Err(error) = stream.rests()
                && self.context.has_ended()
            {
                self.fail(error);
            }
        }
        // Another part of the process may have seen it.
        if self.context.has_ended() {
            self.fail(DeviceError::DeviceLost);
        }
    }
}

impl OrderedCopier {
    /// A copier for one GPU, in its primary context.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] for a driver that cannot wait for words (before CUDA 11.7), or where threads cannot be started;
    /// [`DeviceError::OutOfMemory`]; [`DeviceError::Invalid`] for options that are zero, and for too many threads.
    pub fn new(gpu: &CudaGpu, options: OrderedOptions) -> Result<Self, DeviceError> {
        let (context, pool) = (gpu.context(), gpu.pool());
        context.driver.here()?;
        let zero =
            options.threads == 0 || options.slot.0 < CHUNK_MIN as u64 || options.pipelines == 0 || options.tickets == 0;
        if zero {
            return Err(DeviceError::Invalid {
                what: "options of ordered copies",
                reason: "threads, streams and tickets must be above zero, and slots have 512 KiB at least".into(),
            });
        }
        if options.threads > THREADS_MAX {
            let reason = format!("{} threads are too many: ask for {THREADS_MAX} at most", options.threads);
            return Err(DeviceError::Invalid { what: "options of ordered copies", reason });
        }
        words::check(context)?;
        context.bind()?;
        let tickets = Tickets::new(pool, options.tickets)?;
        let shared = Arc::new(Shared {
            context: Arc::clone(context),
            pool: Arc::clone(pool),
            budget: Arc::clone(gpu.budget()),
            options,
            tickets,
            pipelines: [Mutex::default(), Mutex::default()],
            queue: workers::JobQueue::default(),
            broken: OnceLock::new(),
            over: OnceLock::new(),
            closing: AtomicBool::new(false),
            is_looking: Arc::default(),
        });
        let workers = Workers::start(&shared, options.threads)?;
        let activity = EngineActivity::both(gpu.description().board_gpu());
        Ok(Self { shared, workers, activity })
    }

    /// Queues a copy. It begins after everything that the stream was given before, and what the stream is given later begins after it.
    /// The call does not wait for the copy, unless the queues of the driver are full (some copies of a gigabyte).
    ///
    /// The context that is current on the calling thread stays so.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for memory that is not of this GPU, or a stream that is being captured; [`DeviceError::Refused`] beyond
    /// the limit of tickets; [`DeviceError::Driver`], [`DeviceError::DeviceLost`]. After an error nothing is queued that uses the memory.
    pub fn copy(&self, copy: RawCopy) -> Result<OrderedTicket, DeviceError> {
        let _before = self.enter()?;
        let copy = self.ends(&copy)?;
        self.queue(copy)
    }

    /// Makes a copy and returns when the bytes are there. Page-locked memory, and what of ordinary memory the driver takes at once, is copied
    /// in the stream. For more ordinary memory this waits until the stream has come to this point, and then `make` copies. `limit` bounds
    /// each wait.
    ///
    /// # Errors
    /// Those of [`OrderedCopier::copy`], and [`DeviceError::Timeout`]; then a copy in the stream goes on. What `make` gave up has ended, or this
    /// waits for it ([`lend`](headway_device::buffer::lend)).
    pub fn copy_now<R>(
        &self,
        copy: RawCopy,
        limit: Duration,
        make: impl FnOnce(LentEnds<'_>) -> R,
    ) -> Result<MadeNow<R>, DeviceError> {
        let _before = self.enter()?;
        let copy = self.ends(&copy)?;
        let is_small = copy.bytes <= DRIVER_BUFFERS;
        if copy.bytes == 0 || copy.kind == HostKind::Pinned || is_small && copy.direction == Direction::H2d {
            let ticket = self.queue(copy)?;
            return ticket.wait(limit).map(|()| MadeNow::InStream(ticket.method()));
        }
        let stream = copy.stream.handle();
        // The driver's copy to ordinary memory waits for the stream without a limit.
        // SAFETY: the promise of `RawCopy`: the stream is there.
        let is_idle = is_small && unsafe { call!(self.shared.context.driver, cuStreamQuery(stream)) }.is_ok();
        if !is_idle {
            self.queue(OrderedCopy { bytes: 0, ..copy })?.wait(limit)?;
        }
        if is_small {
            // SAFETY: the promise of `RawCopy`, which holds until this returns.
            let made = unsafe {
                let (host, driver) = (copy.host.cast::<c_void>(), &self.shared.context.driver);
                call!(driver, cuMemcpyDtoHAsync_v2(host, copy.device, copy.bytes, stream))
                    // The driver promises no more that it waits for ordinary memory.
                    .and_then(|()| call!(driver, cuStreamSynchronize(stream)))
            };
            let made = self.shared.context.note(made).inspect(|()| self.tell(&copy));
            return made.map(|()| MadeNow::InStream(Method::Pageable));
        }
        self.lend(&copy, make).map(MadeNow::Made)
    }

    /// Has `make` copy between both ends when the stream has come to this point, whatever the host memory is. What the stream is given later
    /// does not wait for the copy. `limit` bounds the wait for the stream.
    ///
    /// # Errors
    /// Those of [`OrderedCopier::copy`], and [`DeviceError::Timeout`].
    pub fn copy_lent<R>(
        &self,
        copy: RawCopy,
        limit: Duration,
        make: impl FnOnce(LentEnds<'_>) -> R,
    ) -> Result<R, DeviceError> {
        let _before = self.enter()?;
        let copy = self.ends(&copy)?;
        // SAFETY: the promise of `RawCopy`: the stream is there.
        let is_idle = unsafe { call!(self.shared.context.driver, cuStreamQuery(copy.stream.handle())) }.is_ok();
        if !is_idle {
            self.queue(OrderedCopy { bytes: 0, ..copy })?.wait(limit)?;
        }
        self.lend(&copy, make)
    }

    fn lend<R>(&self, copy: &OrderedCopy, make: impl FnOnce(LentEnds<'_>) -> R) -> Result<R, DeviceError> {
        // SAFETY: the promise of `RawCopy`, which holds until this returns; the slice does not leave.
        let host = unsafe {
            match copy.direction {
                Direction::D2h if copy.bytes == 0 => HostEnd::Destination(&mut []),
                Direction::D2h => HostEnd::Destination(std::slice::from_raw_parts_mut(copy.host, copy.bytes)),
                _ if copy.bytes == 0 => HostEnd::Source(&[]),
                _ => HostEnd::Source(std::slice::from_raw_parts(copy.host, copy.bytes)),
            }
        };
        // SAFETY: the promise of `RawCopy`, which holds until this returns.
        unsafe {
            let Shared { context, budget, .. } = &*self.shared;
            foreign::lend(context, budget, copy.device, copy.bytes, |device| make(LentEnds { device, host }))
        }
    }

    /// The number of the GPU that has memory at `address`; `None` if no GPU has.
    ///
    /// # Errors
    /// [`DeviceError::Driver`], [`DeviceError::DeviceLost`].
    pub fn gpu_of(&self, address: u64) -> Result<Option<u32>, DeviceError> {
        let _before = self.enter()?;
        Ok(AddressFacts::of(&self.shared.context, address)?.gpu())
    }

    fn enter(&self) -> Result<CurrentContext, DeviceError> {
        self.shared.context.driver.here()?;
        self.shared.check()?;
        let before = self.shared.context.driver.keep_current()?;
        self.shared.context.bind()?;
        Ok(before)
    }

    fn queue(&self, copy: OrderedCopy) -> Result<OrderedTicket, DeviceError> {
        let is_small = copy.bytes == 0 || copy.direction == Direction::H2d && copy.bytes <= DRIVER_BUFFERS;
        let method = match copy.kind {
            HostKind::Pinned => Method::Dma,
            HostKind::Pageable if is_small => Method::Pageable,
            HostKind::Pageable => Method::Staged,
        };
        let ticket = self.shared.tickets.take(&self.shared, method)?;
        // SAFETY: the promise of `RawCopy`, from which the copy was made.
        let queued = unsafe {
            if method == Method::Staged { self.stage(&copy, &ticket) } else { self.copy_in_stream(&copy, &ticket) }
        };
        match queued {
            Ok(()) => {
                self.tell(&copy);
                Ok(ticket)
            }
            Err(error) => {
                ticket.was_not_queued();
                Err(error)
            }
        }
    }

    /// Tells the user's other programs of a copy.
    fn tell(&self, copy: &OrderedCopy) {
        if copy.bytes > 0 {
            let activity = &self.activity[usize::from(copy.direction == Direction::D2h)];
            let is_bulk = copy.bytes as u64 > self.shared.options.slot.0;
            let class = if is_bulk { FlowClass::Bulk } else { FlowClass::Normal };
            activity.moved(class, Bytes(copy.bytes as u64));
            activity.copied(class, Nanos::ZERO);
        }
    }

    /// Which end is the GPU's, and what the host's is.
    fn ends(&self, copy: &RawCopy) -> Result<OrderedCopy, DeviceError> {
        let (context, &RawCopy { to, from, bytes, stream, is_bulk }) = (&self.shared.context, copy);
        let is_gpu = |address: u64| match AddressFacts::of(context, address)? {
            known if known.is_managed() => {
                Err(invalid("memory", "it is managed by the driver; use the driver's own copy"))
            }
            known => Ok(known.is_on(context)),
        };
        let (direction, device, host) = match (is_gpu(to)?, is_gpu(from)?) {
            (true, false) => (Direction::H2d, to, from),
            (false, true) => (Direction::D2h, from, to),
            (true, true) => return Err(invalid("addresses", "both are memory of the GPU; use the driver's own copy")),
            (false, false) => return Err(invalid("addresses", "neither is memory of this GPU")),
        };
        let ends_inside = |start: u64| start.checked_add((bytes as u64).max(1) - 1);
        if host == 0 && bytes > 0 {
            return Err(invalid("host memory", "there is none at address 0"));
        }
        let (Some(last), Some(_)) = (ends_inside(device), ends_inside(host)) else {
            return Err(invalid("addresses", "a range goes beyond the end of memory"));
        };
        if !is_gpu(last)? {
            return Err(invalid("device memory", "the range is not all memory of this GPU"));
        }
        let host: *mut u8 = std::ptr::with_exposed_provenance_mut(host as usize);
        let kind = host_kind(context, host, bytes)?;
        let mut status: c_int = 0;
        // SAFETY: `status` is valid for the call to write; a handle that is none is refused.
        context.note(unsafe { call!(context.driver, cuStreamIsCapturing(stream.handle(), &raw mut status)) })?;
        if status != 0 {
            return Err(invalid("stream", "it is being captured; record the driver's own copy"));
        }
        Ok(OrderedCopy { direction, device, host, bytes, stream, is_bulk, kind })
    }

    /// Page-locked memory, or little ordinary memory into the GPU: the driver copies it in the caller's stream.
    ///
    /// # Safety
    /// The caller keeps the promise of [`RawCopy::new`].
    unsafe fn copy_in_stream(&self, copy: &OrderedCopy, ticket: &OrderedTicket) -> Result<(), DeviceError> {
        let (context, stream) = (&self.shared.context, copy.stream.handle());
        let turn = context.turn_bytes();
        // Where nobody knows what lets others in, copies stay whole.
        let turn = if copy.is_bulk && turn < usize::MAX { turn.min(BULK_TURN) } else { turn };
        let mut at = 0;
        while at < copy.bytes {
            let device = copy.device + at as u64;
            let host = copy.host.wrapping_add(at).cast::<c_void>();
            let is_out = copy.direction == Direction::D2h;
            // Behind each piece the engine serves other streams (`docs/small-copies.md`).
            let len = if is_out { (copy.bytes - at).min(turn) } else { copy.bytes };
            at += len;
            // SAFETY: the caller's promise: the range stays valid until the stream has passed this point.
            let queued = unsafe {
                if is_out {
                    call!(context.driver, cuMemcpyDtoHAsync_v2(host, device, len, stream))
                } else {
                    call!(context.driver, cuMemcpyHtoDAsync_v2(device, host, len, stream))
                }
            };
            let mut queued = context.note(queued);
            if queued.is_ok() && at < copy.bytes {
                // SAFETY: the word is the ticket's own, which lives until it is written again.
                queued = unsafe { words::write(context, stream, ticket.begin().address(), ticket.generation()) };
            }
            if let Err(error) = queued {
                // Earlier pieces still use the memory, which is the caller's again when this returns.
                return Err(self.after(stream, at > 0, error));
            }
        }
        // SAFETY: the word is the ticket's own, which lives until it is written again.
        unsafe { words::write(context, stream, ticket.done().address(), ticket.generation()) }
            .map_err(|error| self.after(stream, copy.bytes > 0, error))
    }

    /// Waits for what was queued before a call failed.
    fn after(&self, stream: Handle, queued: bool, error: DeviceError) -> DeviceError {
        if queued {
            // SAFETY: the stream is the caller's, who uses it in this call.
            let _ = unsafe { call!(self.shared.context.driver, cuStreamSynchronize(stream)) };
        }
        error
    }

    /// Ordinary memory: through the slots of a pipeline.
    ///
    /// # Safety
    /// The caller keeps the promise of [`RawCopy::new`].
    unsafe fn stage(&self, copy: &OrderedCopy, ticket: &OrderedTicket) -> Result<(), DeviceError> {
        let shared = &self.shared;
        let mut pipelines = lock(&shared.pipelines[usize::from(copy.direction == Direction::D2h)]);
        // A copy that failed meanwhile may have left a stream that does not go on.
        shared.check()?;
        let at = pipelines.iter().position(Pipeline::is_free);
        let at = match at {
            Some(at) => at,
            None if pipelines.len() < shared.options.pipelines => {
                pipelines.push(Pipeline::new(&shared.context, &shared.pool, shared.options.slot)?);
                pipelines.len() - 1
            }
            None => (0..pipelines.len()).min_by_key(|at| pipelines[*at].copies()).unwrap_or(0),
        };
        let pipeline = &mut pipelines[at];
        let stream = copy.stream.handle();
        // SAFETY: words of the ticket, which live until their generation is over.
        unsafe { words::write(&shared.context, stream, ticket.begin().address(), ticket.generation()) }?;
        let threads = shared.options.threads as usize;
        let chunk = (copy.bytes / (2 * threads)).next_multiple_of(4096).clamp(CHUNK_MIN, pipeline.slot_bytes());
        // SAFETY: the caller's promise.
        let job = pipeline.job(*copy, chunk, ticket);
        // SAFETY: the caller's promise.
        let queued = unsafe { pipeline.queue(&shared.context, &job, ticket, &shared.queue) };
        let held = queued.and_then(|()| {
            // SAFETY: the caller's promise. *Done* is written by a thread or the copier's stream, whatever the caller does.
            unsafe {
                words::wait(&shared.context, stream, ticket.done().address(), ticket.generation(), table::WAIT_GEQ)
            }?;
            let passed = ticket.awaited();
            // SAFETY: the caller's promise; the word lives until it is written. Without it nobody gets the ticket's memory, and the copy goes on.
            let passed = unsafe { words::write(&shared.context, stream, passed.address(), ticket.generation()) };
            if let Err(error) = passed {
                shared.fail(error);
            }
            Ok(())
        });
        // Some of it is queued and uses the memory: the copier is of no use any more.
        let held = held.map_err(|error| shared.fail(error));
        drop(pipelines);
        held.inspect_err(|_| {
            // What has begun ends, so that nobody waits for the stream for ever.
            let begun = clock::now();
            while !self.settle() && job.has_begun() && !shared.queue.is_served(&job) {
                if shared.context.has_ended() || clock::now() - begun > REFUSED_MAX {
                    break;
                }
            }
            // The caller has its memory back when this returns.
            shared.queue.give_up(&job);
        })
    }

    /// Waits for what the copier's streams and threads were given, for [`DROP_MAX`] in all.
    fn settle(&self) -> bool {
        let (context, end) = (&self.shared.context, clock::now().saturating_add(DROP_MAX));
        let left = || end.saturating_sub(clock::now());
        let mut rests = true;
        for pipelines in &self.shared.pipelines {
            let streams = loop {
                match pipelines.try_lock() {
                    Ok(pipelines) => break Some(pipelines.iter().map(|it| Arc::clone(&it.stream)).collect::<Vec<_>>()),
                    // Another thread queues a copy, which waits where the driver's queue is full.
                    Err(TryLockError::WouldBlock) if left() > Nanos::ZERO => headway_os::sched::yield_now(),
                    Err(_) => break None,
                }
            };
            rests &= streams.is_some();
            for stream in streams.iter().flatten() {
                rests &= await_rest_for(context, stream, "copies", left()).is_ok();
            }
        }
        // The threads use the caller's memory, whether or not the streams rest.
        self.workers.rest(left()) && rests
    }
}

impl Drop for OrderedCopier {
    /// Waits for some seconds at most. Copies that have not ended by then go on.
    fn drop(&mut self) {
        if self.shared.context.driver.here().is_err() {
            // A forked child has none of the threads, and no stream uses its memory.
            return self.workers.forget();
        }
        self.shared.close();
        let rests = self.settle();
        let end = clock::now().saturating_add(DROP_MAX);
        while self.shared.is_looking.load(Ordering::SeqCst) && clock::now() < end {
            std::thread::sleep(LOOK_NAP);
        }
        if rests {
            return self.workers.join();
        }
        // The threads end when they have copied what is left. Until the streams rest nobody else gets slots and words.
        self.workers.forget();
        for pipelines in &self.shared.pipelines {
            for pipeline in std::mem::take(&mut *lock(pipelines)) {
                let stream = Arc::clone(&pipeline.stream);
                leave(&self.shared.context, Some(&stream), (pipeline, Arc::clone(&self.shared)), None);
            }
        }
    }
}

impl StreamHandle {
    /// The handle that names the same stream whatever form of a function it is given to.
    fn handle(self) -> Handle {
        std::ptr::without_provenance_mut(self.0.max(table::STREAM_LEGACY))
    }
}

fn invalid(what: &'static str, reason: &str) -> DeviceError {
    DeviceError::Invalid { what, reason: reason.into() }
}

/// Whether host memory is page-locked, by both of its ends.
fn host_kind(context: &Context, host: *const u8, bytes: usize) -> Result<HostKind, DeviceError> {
    let last = host.addr().wrapping_add(bytes.max(1) - 1);
    let [first, last] = [host.addr(), last]
        .map(|address| AddressFacts::of(context, address as Address).and_then(AddressFacts::host_kind));
    let both = (first?, last?);
    Ok(if both == (HostKind::Pinned, HostKind::Pinned) { HostKind::Pinned } else { HostKind::Pageable })
}
