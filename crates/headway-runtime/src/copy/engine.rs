//! Copies by the copy engines: chunks over queues, each chunk through the line of its engine.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use headway_core::decisions::engine_line::{FlowClass, LineEntry, LineParty};
use headway_core::models::transfer::Method;
use headway_core::units::{Bytes, Nanos};
use headway_device::gpu::{Gpu, Operation, Queue};
use headway_device::{Access, DeviceError, Span};
use headway_os::board::EngineActivity;
use headway_os::clock;

use super::{At, CopyError};
use crate::staging::{CopyEngine, Place};
use crate::wait::Patience;

/// Chunks on one engine at a time, of all copies together: two keep it busy (1 MiB chunks reach 40 GB/s one at a time and
/// 49 in pairs on an H200), and a copy that comes waits for no more than these.
const IN_FLIGHT: u32 = 2;
/// Chunks of staged copies on an engine at a time, where copies on it are promised to be in time.
pub(super) const STAGED_BESIDE_PROMISES: u32 = 2;
/// Chunks without a promise on an engine at a time, where copies on it are promised to be in time.
pub const UNPROMISED_IN_FLIGHT: u32 = IN_FLIGHT + STAGED_BESIDE_PROMISES;
/// Queues kept of those that copies gave back.
const QUEUES_KEPT: usize = 16;
/// Promised chunks on one engine at a time: the earliest deadline waits for no more than the one that has begun.
const PROMISED_IN_FLIGHT: u32 = 1;

/// What was promised of one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// When it must have ended, on the clock of [`headway_os::clock`].
    pub deadline: Nanos,
    /// [`FlowClass::Guaranteed`] or [`FlowClass::Urgent`].
    pub class: FlowClass,
    /// What the engine gets at once.
    pub chunk: Bytes,
}

/// What a promised copy did. The *service time* of a chunk is the time from its start in the line, or from the end of the chunk before it on
/// the engine where that is later, until its end was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromisedCopy {
    /// When it asked for the engine.
    pub asked: Nanos,
    /// When its end was seen.
    pub ended: Nanos,
    /// The service times of its chunks together.
    pub engine: Nanos,
    /// The longest of them.
    pub longest_chunk: Nanos,
    pub chunks: u32,
    /// Chunks without a promise that were on the engine when it asked.
    pub unpromised: u32,
    /// The longest service time of a chunk without a promise on this engine since the last promised copy ended.
    pub longest_unpromised: Nanos,
    /// The same of promised chunks, its own among them.
    pub longest_promised: Nanos,
}

/// One copy engine of one GPU, as copies share it.
pub(super) struct Engine {
    pub(super) shared: Arc<CopyEngine>,
    /// Its number in the line.
    index: u32,
    queues: Mutex<Vec<Box<dyn Queue>>>,
}

/// Counts one long copy while it lives.
pub(super) struct Bulk<'a>(&'a AtomicU32);

impl Drop for Bulk<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What bounds one copy.
#[derive(Clone, Copy)]
pub(super) struct Bounds<'a> {
    /// No progress for this long ends it.
    pub(super) patience: Nanos,
    /// So does this.
    pub(super) cancel: &'a AtomicBool,
}

/// What a method did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EngineMoved {
    pub(super) chunks: u64,
    /// Waiting for others' chunks.
    pub(super) waited: Nanos,
    /// Others' chunks ahead of the first one.
    pub(super) ahead: u64,
    /// CPU time of all threads, where it is counted.
    pub(super) cpu: Option<Nanos>,
}

impl EngineMoved {
    /// One operation that waited for nobody.
    pub(super) const ONE: Self = Self { chunks: 1, waited: Nanos::ZERO, ahead: 0, cpu: None };
}

/// A copy that ended early.
#[derive(Debug)]
pub(super) struct Stopped {
    /// At which operation.
    pub(super) chunk: u64,
    /// Every byte below is in place.
    pub(super) prefix: u64,
    pub(super) why: Why,
}

/// Why a copy ended early.
#[derive(Debug)]
pub(super) enum Why {
    Device(DeviceError),
    /// Something that the method needs is not there.
    Absent(DeviceError),
    /// No progress.
    Timeout,
    /// Somebody asked for it.
    Cancelled,
}

impl Stopped {
    /// By the device, before anything moved.
    pub(super) const fn early(error: DeviceError) -> Self {
        Self { chunk: 0, prefix: 0, why: Why::Device(error) }
    }

    /// Because memory cannot be pinned, whatever the reason.
    pub(super) const fn unpinned(error: DeviceError) -> Self {
        Self { chunk: 0, prefix: 0, why: Why::Absent(error) }
    }

    /// As the error of a copy by `method`.
    pub(super) fn error(self, method: Method, bounds: Bounds<'_>) -> CopyError {
        match self.why {
            Why::Device(error) => CopyError::device(method, error, self.chunk, self.prefix),
            Why::Absent(source) => CopyError::Unavailable { method, source },
            Why::Timeout => CopyError::Timeout {
                what: format!("chunk {} of the copy", self.chunk),
                after: bounds.patience,
                completed_prefix: self.prefix,
            },
            Why::Cancelled => CopyError::Cancelled { completed_prefix: self.prefix },
        }
    }
}

/// A piece of work for a queue: one operation, and the bytes it is about.
pub(super) struct QueueStep {
    pub(super) what: Operation,
    pub(super) len: u64,
}

/// Claims the bytes of a copy from `from` to `to` in chunks, all before the first one moves.
pub(super) fn steps(from: At<'_>, to: At<'_>, len: usize, chunk: usize) -> Result<Vec<QueueStep>, DeviceError> {
    if len == 0 {
        return Ok(Vec::new());
    }
    let claim = |at: At<'_>, access| -> Result<Vec<Span>, DeviceError> {
        let outside =
            || DeviceError::OutOfRange { range: at.offset..at.offset.saturating_add(len), len: at.buffer.len() };
        let end = at.offset.checked_add(len).ok_or_else(outside)?;
        Ok(at.buffer.claim(at.offset..end, access)?.cut((chunk..len).step_by(chunk)))
    };
    let chunks = claim(from, Access::Read)?.into_iter().zip(claim(to, Access::Write)?);
    Ok(chunks.map(|(from, to)| QueueStep { len: from.len() as u64, what: Operation::Copy { from, to } }).collect())
}

impl Engine {
    pub(super) fn new(shared: &Arc<CopyEngine>, index: u32) -> Self {
        Self { shared: Arc::clone(shared), index, queues: Mutex::default() }
    }

    /// The number of the engine that takes what comes in, of one for copies between GPUs.
    pub(super) const fn inward(&self) -> u32 {
        self.index + 1
    }

    /// What the user's other programs see of it.
    pub(super) fn activity(&self) -> &EngineActivity {
        self.shared.line.activity()
    }

    /// Announces a long copy.
    pub(super) fn bulk(&self) -> Bulk<'_> {
        self.shared.bulk.fetch_add(1, Ordering::Relaxed);
        Bulk(&self.shared.bulk)
    }

    /// Long copies under way.
    pub(super) fn bulk_count(&self) -> &AtomicU32 {
        &self.shared.bulk
    }

    /// Runs `steps` in order on one queue, each through the line of this engine and, for copies between GPUs, of `second`.
    ///
    /// Returns when nothing of it is on the device any more.
    pub(super) fn run(
        &self,
        gpu: &dyn Gpu,
        second: Option<u32>,
        steps: Vec<QueueStep>,
        bounds: Bounds<'_>,
    ) -> Result<EngineMoved, Stopped> {
        let bytes = steps.first().map_or(Bytes(0), |step| Bytes(step.len));
        let mut run = self.stand(gpu, LineEntry { second, ..self.entry(steps.len(), bytes) }, bounds)?;
        for step in steps {
            run.submit(step)?;
        }
        run.finish()
    }

    /// Runs `steps` in order on one queue, before all that has no promise.
    pub(super) fn run_promised(
        &self,
        gpu: &dyn Gpu,
        steps: Vec<QueueStep>,
        promise: Promise,
        bounds: Bounds<'_>,
    ) -> Result<PromisedCopy, Stopped> {
        let Promise { deadline, class, chunk: _ } = promise;
        let entry = LineEntry {
            deadline: Some(deadline),
            engine: self.index,
            ..LineEntry::new(class, LineParty::Promised, PROMISED_IN_FLIGHT)
        };
        let mut run = self.stand(gpu, entry, bounds)?;
        let asked = clock::now();
        for step in steps {
            // The next chunk stands in the line before the one before it ends: nothing without a promise starts in between.
            run.submit(step)?;
        }
        let [engine, longest_chunk] = run.wait_for_all()?;
        let ended = clock::now();
        if ended > deadline {
            self.activity().missed(class);
        }
        let unpromised = run.place.ahead().unpromised;
        let chunks = u32::try_from(run.finish()?.chunks).unwrap_or(u32::MAX);
        let service = self.shared.line.service();
        let (longest_unpromised, longest_promised) =
            (service.take_longest_unpromised(), service.take_longest_promised());
        Ok(PromisedCopy {
            asked,
            ended,
            engine,
            longest_chunk,
            chunks,
            unpromised,
            longest_unpromised,
            longest_promised,
        })
    }

    /// Whether anybody looks at how long chunks are on this engine.
    pub(super) fn watch(&self, is_watched: bool) {
        self.shared.line.service().is_watched.store(is_watched, Ordering::Relaxed);
    }

    /// Makes a queue for the next copy, since that takes longer than many a copy.
    pub(super) fn prepare(&self, gpu: &dyn Gpu) -> Result<(), DeviceError> {
        let queue = gpu.queue(false)?;
        self.keep(queue);
        Ok(())
    }

    fn keep(&self, queue: Box<dyn Queue>) {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if queues.len() < QUEUES_KEPT {
            queues.push(queue);
        }
    }

    /// A queue of this engine for one copy in `chunks` chunks of at most `bytes` each.
    pub(super) fn open<'a>(
        &'a self,
        gpu: &dyn Gpu,
        chunks: usize,
        bytes: Bytes,
        bounds: Bounds<'a>,
    ) -> Result<Run<'a>, Stopped> {
        self.stand(gpu, self.entry(chunks, bytes), bounds)
    }

    /// A chunk of at most `bytes` of a copy in `chunks` chunks: one of several is bulk.
    fn entry(&self, chunks: usize, bytes: Bytes) -> LineEntry {
        let class = if chunks > 1 { FlowClass::Bulk } else { FlowClass::Normal };
        LineEntry { class, bytes, ..self.bulk_entry() }
    }

    const fn bulk_entry(&self) -> LineEntry {
        LineEntry { engine: self.index, ..LineEntry::new(FlowClass::Bulk, LineParty::Copies, IN_FLIGHT) }
    }

    /// A place in the line for bulk chunks that come to the engine by other means.
    pub(super) fn bulk_place(&self) -> Place {
        Place::new(&self.shared.line, self.bulk_entry())
    }

    fn stand<'a>(&'a self, gpu: &dyn Gpu, entry: LineEntry, bounds: Bounds<'a>) -> Result<Run<'a>, Stopped> {
        let queue = self.queues.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let queue = queue.map_or_else(|| gpu.queue(false), Ok).map_err(Stopped::early)?;
        let patience = Patience::new(bounds.patience);
        Ok(Run {
            engine: self,
            queue: Some(queue),
            bounds,
            patience,
            flying: VecDeque::with_capacity(IN_FLIGHT as usize),
            on_engine: Nanos::ZERO,
            longest: Nanos::ZERO,
            place: Place::new(&self.shared.line, entry),
            has_turn: false,
            moved: EngineMoved::default(),
            submitted: 0,
            prefix: 0,
        })
    }
}

/// One copy on its queue. Dropping it waits for what is on the queue.
pub(super) struct Run<'a> {
    engine: &'a Engine,
    queue: Option<Box<dyn Queue>>,
    bounds: Bounds<'a>,
    patience: Patience,
    /// The length of each operation on the queue.
    flying: VecDeque<u64>,
    /// Service times of chunks, all together, and the longest, if anybody asked.
    on_engine: Nanos,
    longest: Nanos,
    place: Place,
    /// The engine was taken for the next operation.
    has_turn: bool,
    moved: EngineMoved,
    submitted: u64,
    prefix: u64,
}

impl Run<'_> {
    /// Operations on the queue.
    pub(super) fn flying(&self) -> usize {
        self.flying.len()
    }

    /// Whether [`Run::submit`] would not wait; the place in the line is taken by asking. Who drives two runs must not wait in
    /// one of them while operations of the other are to be polled.
    pub(super) fn turn(&mut self) -> bool {
        self.has_turn = self.has_turn || self.place.take();
        self.has_turn
    }

    fn stopped(&self, why: Why) -> Stopped {
        Stopped { chunk: self.moved.chunks, prefix: self.prefix, why }
    }

    /// Waits for this copy's turn and submits `step`; operations that end meanwhile are taken.
    pub(super) fn submit(&mut self, step: QueueStep) -> Result<(), Stopped> {
        if !self.turn() {
            self.wait_for_turn()?;
        }
        if self.bounds.cancel.load(Ordering::Relaxed) {
            return Err(self.stopped(Why::Cancelled));
        }
        let queue = self.queue.as_mut().expect("the queue is there until the end");
        self.has_turn = false;
        if let Err(error) = queue.submit(step.what, self.submitted) {
            self.place.release();
            self.drain();
            return Err(self.stopped(Why::Device(error)));
        }
        self.flying.push_back(step.len);
        self.submitted += 1;
        Ok(())
    }

    fn wait_for_turn(&mut self) -> Result<(), Stopped> {
        let mut alone_since = None;
        while !self.turn() {
            if !self.flying.is_empty() {
                self.poll()?;
                continue;
            }
            // Only now does this copy wait for others and not for itself.
            alone_since.get_or_insert_with(clock::now);
            if !self.patience.pause() {
                return Err(self.stopped(Why::Timeout));
            }
            if self.bounds.cancel.load(Ordering::Relaxed) {
                return Err(self.stopped(Why::Cancelled));
            }
        }
        self.patience.progress();
        if let Some(since) = alone_since {
            self.moved.waited = self.moved.waited.saturating_add(clock::now().saturating_sub(since));
        }
        Ok(())
    }

    /// Takes the oldest operation if it has ended, else lets a moment pass.
    pub(super) fn poll(&mut self) -> Result<(), Stopped> {
        let queue = self.queue.as_mut().expect("the queue is there until the end");
        let Some(done) = queue.poll() else { return self.pause() };
        self.patience.progress();
        let len = self.flying.pop_front().expect("the queue gives back what was submitted, once");
        if let Some(service) = self.place.release() {
            (self.on_engine, self.longest) = (self.on_engine.saturating_add(service), self.longest.max(service));
        }
        if let Err(error) = done.result {
            self.drain();
            return Err(self.stopped(Why::Device(error)));
        }
        self.moved.chunks += 1;
        self.prefix += len;
        self.place.moved(len);
        Ok(())
    }

    /// Lets a moment pass.
    pub(super) fn pause(&mut self) -> Result<(), Stopped> {
        if self.patience.pause() { Ok(()) } else { Err(self.stopped(Why::Timeout)) }
    }

    /// Waits for all operations: how long they were on the engine, and the longest of them.
    fn wait_for_all(&mut self) -> Result<[Nanos; 2], Stopped> {
        while !self.flying.is_empty() {
            self.poll()?;
        }
        Ok([self.on_engine, self.longest])
    }

    /// Waits for all operations and gives the queue back.
    pub(super) fn finish(mut self) -> Result<EngineMoved, Stopped> {
        self.wait_for_all()?;
        if let Some(queue) = self.queue.take() {
            self.engine.keep(queue);
        }
        self.place.copied(self.moved.waited);
        Ok(EngineMoved { ahead: self.place.ahead().all, ..self.moved })
    }

    /// Waits for what is on the queue after a failure; how it ends changes nothing any more.
    fn drain(&mut self) {
        let Some(queue) = &mut self.queue else { return };
        while !self.flying.is_empty() {
            if queue.poll().is_some() {
                self.patience.progress();
                self.flying.pop_front();
                self.place.release();
            } else if !self.patience.pause() {
                return;
            }
        }
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        // The queue waits for what is still on it, whose memory may be the caller's; only then may others have the engine.
        self.queue = None;
    }
}
