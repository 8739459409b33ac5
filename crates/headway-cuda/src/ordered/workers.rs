//! Threads that move bytes between slots and the caller's memory. They call nothing of the driver.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use headway_core::models::transfer::Direction;
use headway_core::units::Nanos;
use headway_device::DeviceError;
use headway_os::threads;

use super::Shared;
use super::job::OrderedJob;
use crate::driver::lock;

/// Between two looks at words that a stream is to write: at first, at most while a copy moves, and at most before its turn has come.
const NAP_MIN: Duration = Duration::from_micros(5);
const NAP_MOVING: Duration = Duration::from_micros(50);
const NAP_WAITING: Duration = Duration::from_millis(1);

/// Copies with chunks that no thread has taken yet, in the order in which they were asked for.
#[derive(Default)]
pub(super) struct JobQueue {
    jobs: Mutex<VecDeque<(Arc<OrderedJob>, usize)>>,
    came: Condvar,
    /// Threads that copy a chunk.
    busy: AtomicUsize,
}

/// What a thread finds in the queue.
enum NextChunk {
    /// A chunk that can be copied now.
    Chunk(Arc<OrderedJob>, usize),
    /// Copies, of which none can go on; whether one has begun.
    Nothing { moving: bool },
    /// No copies.
    Empty,
}

impl JobQueue {
    /// Takes a copy and wakes a thread. The others sleep on.
    pub(super) fn push(&self, job: Arc<OrderedJob>) {
        lock(&self.jobs).push_back((job, 0));
        self.came.notify_one();
    }

    /// Leaves only the first `chunks` chunks of a copy: the others would never be ready, since they are not queued.
    pub(super) fn shorten(&self, job: &Arc<OrderedJob>, chunks: usize) {
        let mut jobs = lock(&self.jobs);
        job.shorten(chunks);
        jobs.retain(|(known, next)| !Arc::ptr_eq(known, job) || *next < chunks);
    }

    /// Whether threads have copied all chunks of a copy.
    pub(super) fn is_served(&self, job: &Arc<OrderedJob>) -> bool {
        let jobs = lock(&self.jobs);
        jobs.iter().all(|(known, _)| !Arc::ptr_eq(known, job)) && job.busy().load(Ordering::Acquire) == 0
    }

    /// Leaves a copy's host memory alone; no thread uses it when this returns. What the GPU has stays out of it, too: a stream that waits for chunks to be
    /// filled waits for ever.
    pub(super) fn give_up(&self, job: &Arc<OrderedJob>) {
        let mut jobs = lock(&self.jobs);
        job.give_up();
        if job.of().direction == Direction::H2d {
            jobs.retain(|(known, _)| !Arc::ptr_eq(known, job));
        }
        drop(jobs);
        while job.busy().load(Ordering::Acquire) > 0 {
            std::thread::sleep(NAP_MOVING);
        }
    }

    /// Whether no thread copies, nor will.
    pub(super) fn rests(&self) -> bool {
        // In this order: a chunk that leaves the queue is counted as busy before the lock is free again.
        lock(&self.jobs).is_empty() && self.busy.load(Ordering::Acquire) == 0
    }

    pub(super) fn wake_all(&self) {
        let _jobs = lock(&self.jobs);
        self.came.notify_all();
    }

    fn find(&self, jobs: &mut VecDeque<(Arc<OrderedJob>, usize)>) -> NextChunk {
        if jobs.is_empty() {
            return NextChunk::Empty;
        }
        let Some(at) = jobs.iter().position(|(job, next)| job.is_ready(*next)) else {
            return NextChunk::Nothing { moving: jobs.iter().any(|(job, _)| job.has_begun()) };
        };
        let (job, next) = &mut jobs[at];
        let found = (Arc::clone(job), *next);
        *next += 1;
        if *next >= job.count() {
            jobs.remove(at);
        }
        self.busy.fetch_add(1, Ordering::Relaxed);
        found.0.busy().fetch_add(1, Ordering::Relaxed);
        NextChunk::Chunk(found.0, found.1)
    }

    /// One thread's work until the copier is closed.
    fn serve(&self, shared: &Shared) {
        let mut nap = NAP_MIN;
        let mut jobs = lock(&self.jobs);
        loop {
            if shared.context.has_ended() {
                jobs.clear();
            }
            match self.find(&mut jobs) {
                NextChunk::Chunk(job, at) => {
                    drop(jobs);
                    job.copy(at);
                    job.busy().fetch_sub(1, Ordering::Release);
                    // With the acquire in `rest`: a thread that sees that nobody copies also sees the bytes of this chunk.
                    self.busy.fetch_sub(1, Ordering::Release);
                    nap = NAP_MIN;
                    jobs = lock(&self.jobs);
                }
                NextChunk::Nothing { moving } => {
                    drop(jobs);
                    std::thread::sleep(nap);
                    nap = (nap * 2).min(if moving { NAP_MOVING } else { NAP_WAITING });
                    jobs = lock(&self.jobs);
                }
                NextChunk::Empty if shared.closing.load(Ordering::Acquire) => return,
                NextChunk::Empty => {
                    nap = NAP_MIN;
                    jobs = self.came.wait(jobs).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

pub(super) struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    pub(super) fn start(shared: &Arc<Shared>, count: u32) -> Result<Self, DeviceError> {
        let mut workers = Self { shared: Arc::clone(shared), threads: Vec::new() };
        for _ in 0..count {
            let shared = Arc::clone(shared);
            let work = move || {
                // Else each of its sleeps is 50 us longer; where that is forbidden, it is.
                let _ = headway_os::sched::lower_timer_slack();
                shared.queue.serve(&shared);
            };
            match threads::spawn("headway-ordered", work) {
                Ok(thread) => workers.threads.push(thread),
                Err(error) => {
                    workers.shared.close();
                    workers.join();
                    return Err(DeviceError::Unavailable {
                        what: "threads for copies".into(),
                        reason: error.to_string(),
                        remedy: "ask for fewer threads, or raise the limit of processes (`ulimit -u`)".into(),
                    });
                }
            }
        }
        Ok(workers)
    }

    /// Waits until no copy is left, for `limit` at most.
    pub(super) fn rest(&self, limit: Nanos) -> bool {
        let (start, limit) = (Instant::now(), Duration::from_nanos(limit.0));
        while !self.shared.queue.rests() {
            if start.elapsed() > limit {
                return false;
            }
            std::thread::sleep(NAP_MOVING);
        }
        true
    }

    /// Lets the threads go: they end once the copier is closed and nothing is left to copy.
    pub(super) fn forget(&mut self) {
        self.threads.clear();
    }

    pub(super) fn join(&mut self) {
        for thread in self.threads.drain(..) {
            // A thread that has panicked has said so.
            let _ = thread.join();
        }
    }
}
