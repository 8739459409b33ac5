//! Threads that wait for jobs.
//!
//! A worker is in one place at a time: idle here, with a job in its mailbox, at work, or lent to a transfer that calls it
//! back. Only who has it may give it a job.

use std::time::Duration;

use super::sync::{Arc, AtomicBool, Mutex, MutexGuard, Ordering, Thread, current, lock, park, spin_until};

/// A flag that one thread waits for; raised before the wait, it is not lost.
pub(super) struct Signal {
    raised: AtomicBool,
    thread: Thread,
}

impl Signal {
    /// A signal of the calling thread.
    pub(super) fn here() -> Arc<Self> {
        Arc::new(Self { raised: AtomicBool::new(false), thread: current() })
    }

    pub(super) fn raise(&self) {
        self.raised.store(true, Ordering::Release);
        // No system call unless the thread is parked.
        self.thread.unpark();
    }

    /// Lowers the flag; whether it was raised.
    pub(super) fn take(&self) -> bool {
        // Looking first keeps the line shared while nothing happens.
        self.raised.load(Ordering::Acquire) && self.raised.swap(false, Ordering::Acquire)
    }

    /// Waits until it is raised, and lowers it; spins first, then parks.
    pub(super) fn wait(&self) {
        if spin_until(|| self.take()) {
            return;
        }
        while !self.take() {
            park(None);
        }
    }

    /// Spins for a while; whether it was raised. Who sleeps is woken late: on a virtual machine by 20 to 50 us.
    pub(super) fn comes(&self) -> bool {
        spin_until(|| self.raised.load(Ordering::Acquire))
    }

    /// Sleeps until it is raised or something else wakes the thread, for about `bound` at most.
    pub(super) fn nap(&self, bound: Duration) {
        if !self.raised.load(Ordering::Acquire) {
            park(Some(bound));
        }
    }
}

/// One thread of a pool.
pub(super) struct WorkerThread<J> {
    pub(super) index: usize,
    mailbox: Mutex<Option<J>>,
    signal: Arc<Signal>,
}

/// A job that may have more workers.
struct OpenJob<J> {
    job: J,
    wanted: usize,
}

struct Inner<J> {
    workers: Vec<Arc<WorkerThread<J>>>,
    /// The last to come is the first to go: it may still be spinning.
    idle: Vec<usize>,
    open: Vec<OpenJob<J>>,
    closed: bool,
}

/// The threads of one pool.
pub(super) struct Workers<J> {
    inner: Mutex<Inner<J>>,
}

impl<J: Clone> Workers<J> {
    pub(super) fn new() -> Self {
        Self { inner: Mutex::new(Inner { workers: Vec::new(), idle: Vec::new(), open: Vec::new(), closed: false }) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<J>> {
        lock(&self.inner)
    }

    /// Makes the calling thread a worker.
    pub(super) fn enlist(&self) -> Arc<WorkerThread<J>> {
        let mut inner = self.lock();
        let index = inner.workers.len();
        let worker = Arc::new(WorkerThread { index, mailbox: Mutex::new(None), signal: Signal::here() });
        inner.workers.push(Arc::clone(&worker));
        self.place(inner, index);
        worker
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.lock().workers.len()
    }

    /// Takes `wanted` idle workers, or as many as there are. The caller has them.
    pub(super) fn reserve(&self, wanted: usize) -> Vec<usize> {
        let mut inner = self.lock();
        let at = inner.idle.len() - wanted.min(inner.idle.len());
        inner.idle.drain(at..).collect()
    }

    /// Lets `wanted` of the workers that become idle later join `job`.
    pub(super) fn offer(&self, job: J, wanted: usize) {
        if wanted > 0 {
            self.lock().open.push(OpenJob { job, wanted });
        }
    }

    /// Gives `job` to the worker `index`, which the caller has reserved.
    pub(super) fn call(&self, index: usize, job: J) {
        let worker = Arc::clone(&self.lock().workers[index]);
        worker.give(job);
    }

    /// The worker `index` is free again.
    pub(super) fn release(&self, index: usize) {
        self.place(self.lock(), index);
    }

    fn place(&self, mut inner: MutexGuard<'_, Inner<J>>, index: usize) {
        let Some(open) = inner.open.first_mut() else {
            inner.idle.push(index);
            return;
        };
        let job = open.job.clone();
        open.wanted -= 1;
        if open.wanted == 0 {
            inner.open.remove(0);
        }
        let worker = Arc::clone(&inner.workers[index]);
        drop(inner);
        worker.give(job);
    }

    /// No worker begins a job for which `is` holds any more; workers that were about to are idle again.
    pub(super) fn recall(&self, is: impl Fn(&J) -> bool) {
        let mut inner = self.lock();
        inner.open.retain(|open| !is(&open.job));
        let mut free = Vec::new();
        for worker in &inner.workers {
            let mut mailbox = worker.mailbox();
            if mailbox.as_ref().is_some_and(&is) {
                *mailbox = None;
                free.push(worker.index);
            }
        }
        drop(inner);
        free.into_iter().for_each(|index| self.release(index));
    }

    /// The life of worker `me`: its jobs, until the pool is closed. `work` says whether the worker is free afterwards, rather
    /// than lent to who calls it back.
    pub(super) fn live(&self, me: &WorkerThread<J>, mut work: impl FnMut(&J) -> bool) {
        loop {
            let job = me.mailbox().take();
            if let Some(job) = job {
                if work(&job) {
                    self.release(me.index);
                }
                // This comes last, so that a caller that waits for the job to be let go finds its workers free.
                drop(job);
            } else if self.lock().closed {
                return;
            } else {
                me.signal.wait();
            }
        }
    }

    /// Ends every worker as soon as it has no job.
    pub(super) fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        inner.workers.iter().for_each(|worker| worker.signal.raise());
    }
}

impl<J> WorkerThread<J> {
    fn mailbox(&self) -> MutexGuard<'_, Option<J>> {
        lock(&self.mailbox)
    }

    fn give(&self, job: J) {
        *self.mailbox() = Some(job);
        self.signal.raise();
    }
}
