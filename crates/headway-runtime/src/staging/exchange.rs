//! Where the threads of one transfer meet: the pipeline behind a lock, and who waits for work.
//!
//! A worker that finds nothing to do leaves its token here and lets go of the transfer; it is called back for one piece of
//! work. So nobody is woken to find that another was faster, and nobody has to be woken at the end.

use std::sync::PoisonError;

use headway_core::staging::{Census, EngineStep, Outcome, Pipeline, Task, WorkerStep};
use headway_device::DeviceError;
use headway_os::OsError;

use super::crew::Signal;
use super::sync::{Arc, Mutex, MutexGuard};

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
    pub(super) tasks: Vec<(usize, Task)>,
    /// Workers to be called back, with their links.
    pub(super) called: Vec<(usize, usize)>,
}

struct Inner {
    pipeline: Pipeline,
    /// Of each link, the workers that wait.
    waiting: Vec<Vec<usize>>,
    /// Why the first chunk failed.
    fault: Option<Fault>,
}

impl Inner {
    fn keep(&mut self, fault: Fault) {
        if !self.pipeline.is_stopped() {
            self.fault = Some(fault);
        }
    }
}

/// One transfer's meeting place.
pub(super) struct Exchange {
    inner: Mutex<Inner>,
    /// Of the thread that drives the engines.
    driver: Arc<Signal>,
}

impl Exchange {
    /// `workers`: of each link, as many as may come.
    pub(super) fn new(pipeline: Pipeline, workers: &[usize], driver: &Arc<Signal>) -> Self {
        let waiting = workers.iter().map(|count| Vec::with_capacity(*count)).collect();
        Self { inner: Mutex::new(Inner { pipeline, waiting, fault: None }), driver: Arc::clone(driver) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The report of worker `me` on its last task, if it had one, and its next.
    fn work(&self, link: usize, me: usize, last: Option<(Task, Result<(), Fault>)>) -> WorkerStep {
        let mut inner = self.lock();
        let reports = last.is_some();
        if let Some((task, result)) = last {
            let ok = result.is_ok();
            if let Err(fault) = result {
                inner.keep(fault);
            }
            inner.pipeline.worker_done(link, task.buffer, ok);
        }
        let step = inner.pipeline.worker_next(link);
        if step == WorkerStep::Wait {
            inner.waiting[link].push(me);
        }
        drop(inner);
        if reports {
            self.driver.raise();
        }
        step
    }

    /// The part of worker `me`, as far as there is something to `copy` now; whether the worker is free afterwards, rather than
    /// waiting to be called back.
    pub(super) fn serve(&self, link: usize, me: usize, mut copy: impl FnMut(Task, u32) -> Result<(), Fault>) -> bool {
        let mut last = None;
        loop {
            match self.work(link, me, last.take()) {
                WorkerStep::Fill(task, part) | WorkerStep::Drain(task, part) => last = Some((task, copy(task, part))),
                WorkerStep::Wait => return false,
                WorkerStep::Done => return true,
            }
        }
    }

    /// The driver's round: reports what `ended`, then takes what can be submitted as long as `permit(link, wanted)` grants
    /// the engine.
    pub(super) fn round(
        &self,
        ended: &mut Vec<Ended>,
        mut permit: impl FnMut(usize, bool) -> bool,
        round: &mut Round,
    ) -> Option<Outcome> {
        let mut guard = self.lock();
        let inner = &mut *guard;
        for Ended { link, buffer, result } in ended.drain(..) {
            let ok = result.is_ok();
            if let Err(fault) = result {
                inner.keep(fault);
            }
            let before = inner.pipeline.work(link);
            inner.pipeline.engine_done(link, buffer, ok);
            // A free buffer (in) or a full one (out): work for as many as share a chunk.
            let more = inner.pipeline.work(link).saturating_sub(before);
            let left = inner.waiting[link].len().saturating_sub(usize::try_from(more).unwrap_or(usize::MAX));
            // After a stop nothing is handed out, but on the way out somebody must see the end of it.
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
        inner.pipeline.outcome()
    }

    /// `link` begins no more chunks; who waits for one is called, and finds that there is nothing.
    pub(super) fn retire(&self, link: usize, called: &mut Vec<(usize, usize)>) {
        let mut inner = self.lock();
        inner.pipeline.retire(link);
        called.extend(inner.waiting[link].drain(..).map(|worker| (link, worker)));
    }

    /// No chunk is begun any more.
    pub(super) fn cancel(&self) {
        self.lock().pipeline.cancel();
        self.driver.raise();
    }

    /// Where the buffers of each link are, and how many workers wait.
    pub(super) fn census(&self) -> Vec<(Census, usize)> {
        let inner = self.lock();
        inner.waiting.iter().enumerate().map(|(link, who)| (inner.pipeline.census(link), who.len())).collect()
    }

    /// Lets the waiting workers go, with their links.
    pub(super) fn dismiss(&self) -> Vec<(usize, usize)> {
        let mut inner = self.lock();
        let links = inner.waiting.iter_mut().enumerate();
        links.flat_map(|(link, who)| who.drain(..).map(move |worker| (link, worker))).collect()
    }

    /// The chunks below which everything is in place, and why the first failure happened.
    pub(super) fn remains(&self) -> (u64, Option<Fault>) {
        let mut inner = self.lock();
        (inner.pipeline.completed_prefix(), inner.fault.take())
    }
}
