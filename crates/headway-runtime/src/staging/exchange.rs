//! Where the threads of one transfer meet: the pipeline behind a lock, and the threads that wait for work.
//!
//! The lock is taken once a part of a chunk, to report it and get the next. What a part is copied from and to is claimed once
//! a chunk, by who begins it.
//!
//! A worker that finds nothing to do looks for a while whether there is a new turn, without the lock. Then it parks here and lets go of the
//! transfer, and is called back only when there is more work than workers that look. So no worker is woken to find that another was
//! faster, and none has to be woken at the end.

use headway_core::decisions::staging::{
    BufferedChunk, Census, EngineStep, StagingOutcome, StagingPipeline, WorkerStep,
};
use headway_device::DeviceError;
use headway_os::OsError;

use super::sync::{Arc, AtomicBool, AtomicU32, Mutex, MutexGuard, Ordering, lock, spin_until};
use super::workers::Signal;

/// Spells of looking, of some 200 us each, that a worker stays for after its last part: until what is in all buffers has gone.
const STAYS: u32 = 5;

/// Why a chunk failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// The device refused it, or failed.
    Device(DeviceError),
    /// A page of the source cannot be read.
    Page(OsError),
    /// The copy loop panicked.
    Panic,
}

/// What a worker needs to copy one part of a chunk.
pub(super) trait ChunkPart {
    /// Whether there is nothing to copy.
    fn is_empty(&self) -> bool;
}

/// The end of a chunk on an engine.
pub(super) struct Ended {
    pub(super) link: usize,
    pub(super) buffer: u32,
    pub(super) result: Result<(), Fault>,
}

/// What a round of the driver brought.
#[derive(Default)]
pub(super) struct Round {
    /// Chunks to be submitted, with their links.
    pub(super) tasks: Vec<(usize, BufferedChunk)>,
    /// Workers to be called back, with their links.
    pub(super) called: Vec<(usize, usize)>,
}

struct Inner<P> {
    pipeline: StagingPipeline,
    /// Of each link, the workers that wait.
    waiting: Vec<Vec<usize>>,
    /// Of each link, how many look for a new turn.
    looking: Vec<usize>,
    /// Of each link, its workers by their places in chunks.
    places: Vec<Vec<usize>>,
    /// Of each link and buffer, the parts of its chunk that nobody has yet.
    parts: Vec<Vec<Vec<Option<P>>>>,
    /// Why the first chunk failed.
    fault: Option<Fault>,
}

impl<P> Inner<P> {
    fn keep(&mut self, fault: Fault) {
        if !self.pipeline.is_stopped() {
            self.fault = Some(fault);
        }
    }

    /// Part `part` of the chunk in `task`; the first to come has all parts claimed.
    fn part(
        &mut self,
        link: usize,
        task: BufferedChunk,
        part: u32,
        open: &mut impl FnMut(BufferedChunk) -> Result<Vec<P>, Fault>,
    ) -> Result<P, Fault> {
        let parts = &mut self.parts[link][task.buffer as usize];
        let place = part as usize;
        if parts.get(place).is_none_or(Option::is_none) {
            parts.clear();
            parts.extend(open(task)?.into_iter().map(Some));
        }
        Ok(parts[place].take().expect("each part is given out once, and all of a chunk are claimed at once"))
    }
}

/// What a worker gets.
enum Next<P> {
    /// Copy this part of the chunk, then report.
    Copy(BufferedChunk, P),
    Wait,
    /// Nothing ever again on this link; whether nothing is left at all.
    Done(bool),
}

/// A worker at a link.
#[derive(Clone, Copy)]
struct Worker {
    link: usize,
    me: usize,
    /// Its place in chunks.
    place: u32,
    /// Whether it has been looking for a new turn.
    looked: bool,
    /// Whether it looks for one if there is nothing now.
    looks: bool,
}

/// Counts up when there may be something new for the workers of a link. In a line of its own: they read it all the time.
#[repr(align(128))]
struct Turn(AtomicU32);

/// One transfer's meeting place.
pub(super) struct Exchange<P> {
    inner: Mutex<Inner<P>>,
    turns: Vec<Turn>,
    /// Nothing is on an engine any more.
    over: AtomicBool,
    /// Of the thread that drives the engines.
    driver: Arc<Signal>,
}

impl<P: ChunkPart> Exchange<P> {
    /// `workers`: of each link, as many as may come.
    pub(super) fn new(pipeline: StagingPipeline, workers: &[usize], driver: &Arc<Signal>) -> Self {
        let list = || workers.iter().map(|count| Vec::with_capacity(*count)).collect();
        let buffers = (0..workers.len()).map(|link| pipeline.census(link).empty as usize);
        let parts = buffers.map(|buffers| (0..buffers).map(|_| Vec::new()).collect()).collect();
        let (waiting, places, looking) = (list(), list(), vec![0; workers.len()]);
        let turns = workers.iter().map(|_| Turn(AtomicU32::new(0))).collect();
        let inner = Inner { pipeline, waiting, looking, places, parts, fault: None };
        Self { inner: Mutex::new(inner), turns, over: AtomicBool::new(false), driver: Arc::clone(driver) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<P>> {
        lock(&self.inner)
    }

    /// Tells workers that look for a new turn, where there is something for them or nothing any more.
    fn turn(&self, inner: &Inner<P>) {
        for (link, looking) in inner.looking.iter().enumerate() {
            if *looking > 0 && (inner.pipeline.work(link) > 0 || inner.pipeline.worker_is_done(link)) {
                self.turns[link].0.fetch_add(1, Ordering::Release);
            }
        }
    }

    /// The place of worker `me` in the chunks of `link`.
    fn place(&self, link: usize, me: usize) -> u32 {
        let mut inner = self.lock();
        let places = &mut inner.places[link];
        let place = places.iter().position(|other| *other == me).unwrap_or_else(|| {
            places.push(me);
            places.len() - 1
        });
        place as u32
    }

    /// The report of a worker on its last part, if it had one, and its next.
    fn work(
        &self,
        worker: Worker,
        last: Option<(BufferedChunk, Result<(), Fault>)>,
        open: &mut impl FnMut(BufferedChunk) -> Result<Vec<P>, Fault>,
    ) -> Next<P> {
        let Worker { link, me, place, looked, looks } = worker;
        let mut guard = self.lock();
        let inner = &mut *guard;
        inner.looking[link] -= usize::from(looked);
        let mut tells = false;
        if let Some((task, result)) = last {
            let ok = result.is_ok();
            if let Err(fault) = result {
                inner.keep(fault);
            }
            tells = inner.pipeline.worker_done(link, task.buffer, ok);
        }
        let next = loop {
            let (task, part) = match inner.pipeline.worker_next(link, place) {
                WorkerStep::Fill(task, part) | WorkerStep::Drain(task, part) => (task, part),
                WorkerStep::Wait if looks => {
                    inner.looking[link] += 1;
                    break Next::Wait;
                }
                WorkerStep::Wait => {
                    inner.waiting[link].push(me);
                    break Next::Wait;
                }
                WorkerStep::Done => break Next::Done(inner.pipeline.claimed().is_empty()),
            };
            match inner.part(link, task, part, open) {
                Ok(part) if part.is_empty() => tells |= inner.pipeline.worker_done(link, task.buffer, true),
                Ok(part) => break Next::Copy(task, part),
                Err(fault) => {
                    inner.keep(fault);
                    tells |= inner.pipeline.worker_done(link, task.buffer, false);
                }
            }
        };
        // Work comes from the engine only; what a worker can bring about for others is the end.
        if inner.pipeline.worker_is_done(link) {
            self.turn(inner);
        }
        drop(guard);
        if tells {
            self.driver.raise();
        }
        next
    }

    /// The part of worker `me`, as far as there is something to copy now; whether the worker is free afterwards, rather than
    /// waiting to be called back. `open` claims all parts of a chunk, `copy` copies one.
    pub(super) fn serve(
        &self,
        link: usize,
        me: usize,
        mut open: impl FnMut(BufferedChunk) -> Result<Vec<P>, Fault>,
        mut copy: impl FnMut(BufferedChunk, P) -> Result<(), Fault>,
    ) -> bool {
        let mut worker = Worker { link, me, place: self.place(link, me), looked: false, looks: true };
        let mut last = None;
        loop {
            let turn = &self.turns[link].0;
            // Before the lock: what happens after it is not missed.
            let seen = turn.load(Ordering::Acquire);
            match self.work(worker, last.take(), &mut open) {
                Next::Copy(task, part) => {
                    (worker.looked, worker.looks) = (false, true);
                    last = Some((task, copy(task, part)));
                }
                Next::Wait if worker.looks => {
                    (worker.looked, worker.looks) = (true, spin_until(|| turn.load(Ordering::Acquire) != seen));
                }
                Next::Wait => return false,
                Next::Done(everywhere) => {
                    if everywhere {
                        self.stay();
                    }
                    return true;
                }
            }
        }
    }

    /// Keeps the calling worker's core awake while the engine may still have to read what it has copied: from the cache of a
    /// core that sleeps it does so at a fifth of the rate.
    fn stay(&self) {
        let over = || self.over.load(Ordering::Acquire);
        (0..STAYS).any(|_| spin_until(over));
    }

    /// The driver's round: reports what `ended`, then takes what can be submitted as long as `permit(link, wanted)` grants
    /// the engine.
    pub(super) fn round(
        &self,
        ended: &mut Vec<Ended>,
        mut permit: impl FnMut(usize, bool) -> bool,
        round: &mut Round,
    ) -> Option<StagingOutcome> {
        let mut guard = self.lock();
        let inner = &mut *guard;
        for Ended { link, buffer, result } in ended.drain(..) {
            let ok = result.is_ok();
            if let Err(fault) = result {
                inner.keep(fault);
            }
            let before = inner.pipeline.work(link);
            inner.pipeline.engine_done(link, buffer, ok);
            // A free buffer (in) or a full one (out): work for as many as share a chunk, less those who look for it.
            let work = inner.pipeline.work(link);
            let more = work.saturating_sub(before).min(work.saturating_sub(inner.looking[link] as u64));
            let left = inner.waiting[link].len().saturating_sub(usize::try_from(more).unwrap_or(usize::MAX));
            round.called.extend(inner.waiting[link].drain(left..).map(|worker| (link, worker)));
        }
        for link in 0..inner.waiting.len() {
            loop {
                let ready = inner.pipeline.engine_is_ready(link);
                if !permit(link, ready) || !ready {
                    break;
                }
                if let EngineStep::Submit(task) = inner.pipeline.engine_next(link) {
                    round.tasks.push((link, task));
                }
            }
        }
        self.turn(inner);
        inner.pipeline.outcome()
    }

    /// `link` begins no more chunks; threads that wait for one wake up and find nothing.
    pub(super) fn retire(&self, link: usize, called: &mut Vec<(usize, usize)>) {
        let mut inner = self.lock();
        inner.pipeline.retire(link);
        called.extend(inner.waiting[link].drain(..).map(|worker| (link, worker)));
        self.turn(&inner);
    }

    /// Whether the workers of `link` have nothing to do any more, now and later.
    pub(super) fn worker_is_done(&self, link: usize) -> bool {
        self.lock().pipeline.worker_is_done(link)
    }

    /// No chunk is begun any more.
    pub(super) fn cancel(&self) {
        let mut inner = self.lock();
        inner.pipeline.cancel();
        self.turn(&inner);
        drop(inner);
        self.driver.raise();
    }

    /// Whether no chunk is in a buffer of `link`.
    pub(super) fn is_empty(&self, link: usize) -> bool {
        let census = self.lock().pipeline.census(link);
        census.copying + census.full + census.flying == 0
    }

    /// Where the buffers of each link are, and how many workers wait.
    pub(super) fn census(&self) -> Vec<(Census, usize)> {
        let inner = self.lock();
        inner.waiting.iter().enumerate().map(|(link, who)| (inner.pipeline.census(link), who.len())).collect()
    }

    /// Lets the waiting workers go, with their links, and what nobody will copy.
    pub(super) fn dismiss(&self) -> Vec<(usize, usize)> {
        self.over.store(true, Ordering::Release);
        let mut inner = self.lock();
        inner.parts.iter_mut().flatten().for_each(Vec::clear);
        let links = inner.waiting.iter_mut().enumerate();
        links.flat_map(|(link, who)| who.drain(..).map(move |worker| (link, worker))).collect()
    }

    /// The chunks below which everything is in place, and why the first failure happened.
    pub(super) fn remains(&self) -> (u64, Option<Fault>) {
        let mut inner = self.lock();
        (inner.pipeline.completed_prefix(), inner.fault.take())
    }
}
