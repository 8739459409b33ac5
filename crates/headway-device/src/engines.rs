//! A GPU as a run of a plan sees it: engines that each serve one operation at a time, in the order of submission.
//!
//! Every class of engines has a queue that keeps time. Copies of ordinary memory block their caller in the driver, so that each
//! direction has a thread for them, started at the first one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use headway_core::files::machine::EngineClass;
use headway_core::models::transfer::Method;
use headway_os::fork::Home;
use headway_os::sched::{Classes, Role};
use headway_os::{clock, threads};

use crate::buffer::lock;
use crate::gpu::{Caching, Completion, CpuReach, Gpu, Operation, Queue};
use crate::step::step;
use crate::work::{StepMemory, Work};
use crate::{Buffer, Description, DeviceError, HostKind, Span, Waker, check, wake};

/// The engines of one GPU, driven by one thread.
///
/// Operations of one class run and complete in the order of submission, without preemption. Between classes, and between
/// [`Method::Dma`] and [`Method::Pageable`] of one direction, there is no order, even where one engine serves them all.
///
/// Dropping it waits for what was submitted, as dropping a [`Queue`] does; copies of ordinary memory that wait are discarded.
/// Buffers outlive it.
pub struct Engines {
    lines: Vec<EngineQueue>,
    gpu: Arc<dyn Gpu>,
    shared: Arc<Shared>,
    /// The scheduling class of helpers that start from now on.
    classes: Option<Arc<Classes>>,
    home: Home,
}

/// One class of engines.
struct EngineQueue {
    class: EngineClass,
    queue: Box<dyn Queue>,
    helper: Option<Helper>,
    /// Copies of ordinary memory submitted and not yet polled.
    pageable: usize,
}

impl Engines {
    /// The engines that `gpu` describes. Slow.
    ///
    /// # Errors
    /// What [`Gpu::queue`] gives.
    pub fn open(gpu: Arc<dyn Gpu>) -> Result<Self, DeviceError> {
        let line = |class: &EngineClass| -> Result<EngineQueue, DeviceError> {
            Ok(EngineQueue { class: *class, queue: gpu.queue(true)?, helper: None, pageable: 0 })
        };
        let lines = gpu.description().engines.iter().map(line).collect::<Result<_, _>>()?;
        Ok(Self { lines, gpu, shared: Arc::default(), classes: None, home: Home::here() })
    }

    /// The GPU itself.
    #[must_use]
    pub fn gpu(&self) -> &Arc<dyn Gpu> {
        &self.gpu
    }

    /// What the GPU is.
    #[must_use]
    pub fn description(&self) -> &Description {
        self.gpu.description()
    }

    /// Host memory, zeroed. Slow.
    ///
    /// # Errors
    /// What [`Gpu::pinned_buffer`] and [`Gpu::pageable_buffer`] give.
    pub fn host_buffer(&self, bytes: usize, kind: HostKind) -> Result<Buffer, DeviceError> {
        match kind {
            HostKind::Pinned => self.gpu.pinned_buffer(bytes, Caching::Cached),
            HostKind::Pageable => self.gpu.pageable_buffer(bytes),
        }
    }

    /// Device memory, zeroed. Slow.
    ///
    /// # Errors
    /// What [`Gpu::device_buffer`] gives.
    pub fn device_buffer(&self, bytes: usize) -> Result<Buffer, DeviceError> {
        self.gpu.device_buffer(bytes, CpuReach::Device)
    }

    /// Queues a copy by `method` on the engine of class `class`; never waits for it. A refusal changes nothing, but the spans are
    /// released.
    ///
    /// `h2d`: host to this GPU; `d2h`: this GPU to host; `peer`: between two GPUs of one domain, one of them this one.
    /// [`Method::Dma`] needs pinned host memory, [`Method::Pageable`] takes any.
    ///
    /// # Errors
    /// [`DeviceError::NoEngine`], [`DeviceError::Invalid`], [`DeviceError::Refused`] when the engine has as much as it takes,
    /// [`DeviceError::Driver`], [`DeviceError::DeviceLost`].
    pub fn copy(
        &mut self,
        class: EngineClass,
        method: Method,
        (from, to): (Span, Span),
        tag: u64,
    ) -> Result<(), DeviceError> {
        let here = (self.gpu.id(), self.gpu.domain());
        let at = self.line(class)?;
        check::copy(here, class, method, &from, &to)?;
        self.room(at)?;
        if method == Method::Pageable {
            return self.submit_pageable(at, PageableCopy { tag, from, to });
        }
        self.lines[at].queue.submit(Operation::Copy { from, to }, tag)
    }

    /// Queues a launch of `work` over a block of `portions` portions on the execution engine; otherwise as [`Engines::copy`].
    ///
    /// # Errors
    /// Those of [`Engines::copy`], and those of [`step`].
    pub fn launch(
        &mut self,
        work: &Arc<dyn Work>,
        memory: StepMemory,
        portions: u32,
        tag: u64,
    ) -> Result<(), DeviceError> {
        let at = self.line(EngineClass::Ee)?;
        self.room(at)?;
        self.lines[at].queue.submit(step(work, memory, portions)?, tag)
    }

    fn line(&self, class: EngineClass) -> Result<usize, DeviceError> {
        let missing = || DeviceError::NoEngine { device: self.description().name.clone(), class };
        self.lines.iter().position(|line| line.class == class).ok_or_else(missing)
    }

    /// Refuses what an engine would have beyond its limit.
    fn room(&self, at: usize) -> Result<(), DeviceError> {
        let max = self.description().limits.outstanding_per_engine_max;
        let EngineQueue { queue, pageable, .. } = &self.lines[at];
        if queue.outstanding() + pageable < max {
            return Ok(());
        }
        Err(DeviceError::Refused { limit: "outstanding_per_engine_max", max: max as u64 })
    }

    fn submit_pageable(&mut self, at: usize, job: PageableCopy) -> Result<(), DeviceError> {
        if !self.home.is_here() {
            return Err(DeviceError::Unavailable {
                what: "the thread for copies of ordinary memory".into(),
                reason: "this process was forked from the one that has it".into(),
                remedy: "open the GPU after the fork".into(),
            });
        }
        let line = &mut self.lines[at];
        let helper = match line.helper.take() {
            Some(helper) => helper,
            None => Helper::start(&self.gpu, line.class, &self.shared, self.classes.clone())?,
        };
        let sent = helper.submit(job);
        line.helper = Some(helper);
        sent?;
        line.pageable += 1;
        Ok(())
    }

    /// Appends what has completed since the last poll, each operation exactly once; never blocks.
    pub fn poll(&mut self, done: &mut Vec<Completion>) {
        if self.lines.iter().any(|line| line.pageable > 0) {
            let mut finished = lock(&self.shared.done);
            let noticed = clock::now();
            for (class, completion) in finished.drain(..) {
                if let Some(line) = self.lines.iter_mut().find(|line| line.class == class) {
                    line.pageable -= 1;
                }
                done.push(Completion { noticed, ..completion });
            }
        }
        for line in &mut self.lines {
            while let Some(completion) = line.queue.poll() {
                done.push(completion);
            }
        }
    }

    /// Whether an operation is outstanding whose completion does not call the waker, so that it must be polled for.
    #[must_use]
    pub fn must_poll(&self) -> bool {
        self.lines.iter().any(|line| line.queue.must_poll())
    }

    /// Sets the function that is called when there may be something to poll.
    pub fn set_waker(&mut self, waker: &Waker) {
        *lock(&self.shared.waker) = Some(Arc::clone(waker));
        for line in &mut self.lines {
            line.queue.set_waker(Arc::clone(waker));
        }
    }

    /// Says which scheduling class its threads are to take; `None` = they give it back. Helpers that run already keep theirs.
    pub fn set_classes(&mut self, classes: Option<&Arc<Classes>>) {
        self.classes = classes.cloned();
        for line in &mut self.lines {
            line.queue.set_classes(classes);
        }
    }
}

/// One copy of ordinary memory.
struct PageableCopy {
    tag: u64,
    from: Span,
    to: Span,
}

/// What helper threads and engines share.
#[derive(Default)]
struct Shared {
    /// Completions with their class; bounded by the limits on outstanding operations.
    done: Mutex<VecDeque<(EngineClass, Completion)>>,
    waker: Mutex<Option<Waker>>,
    stop: AtomicBool,
}

/// One helper thread. Dropping it ends the copy that runs and discards those that wait.
struct Helper {
    jobs: Option<Sender<PageableCopy>>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
    home: Home,
}

impl Helper {
    /// Starts it, in a scheduling class of `classes` if there are some.
    fn start(
        gpu: &Arc<dyn Gpu>,
        class: EngineClass,
        shared: &Arc<Shared>,
        classes: Option<Arc<Classes>>,
    ) -> Result<Self, DeviceError> {
        let (jobs, incoming) = channel();
        let (gpu, common) = (Arc::clone(gpu), Arc::clone(shared));
        let thread = threads::spawn("headway-pageable", move || {
            let _held = classes.map(|classes| classes.take(Role::Helper));
            serve(gpu.as_ref(), class, &common, &incoming);
        })
        .map_err(|error| DeviceError::Unavailable {
            what: "a thread for pageable copies".into(),
            reason: error.to_string(),
            remedy: "raise the limit on threads".into(),
        })?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread), shared: Arc::clone(shared), home: Home::here() })
    }

    fn submit(&self, job: PageableCopy) -> Result<(), DeviceError> {
        let sent = self.jobs.as_ref().map(|jobs| jobs.send(job));
        // The thread ends only when this value is dropped.
        if let Some(Ok(())) = sent { Ok(()) } else { Err(DeviceError::DeviceLost) }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.jobs = None;
        let Some(thread) = self.thread.take() else { return };
        if self.home.is_here() {
            // It contains the panics of the waker, the only foreign code it runs.
            let _ = thread.join();
        } else {
            // In a forked child there is no such thread, and to wait for it would last for ever.
            std::mem::forget(thread);
        }
    }
}

fn serve(gpu: &dyn Gpu, class: EngineClass, shared: &Shared, jobs: &Receiver<PageableCopy>) {
    while let Ok(PageableCopy { tag, from, mut to }) = jobs.recv() {
        if shared.stop.load(Ordering::Acquire) {
            continue;
        }
        let started = clock::now();
        // Whatever it answers, the memory is free when it returns.
        let result = if class == EngineClass::D2h {
            to.bytes_mut().and_then(|to| gpu.copy_out(to, &from))
        } else {
            from.bytes().and_then(|from| gpu.copy_in(&mut to, from))
        };
        drop((from, to));
        let finished = clock::now();
        let completion = Completion { tag, result, started, finished, noticed: finished };
        lock(&shared.done).push_back((class, completion));
        let waker = lock(&shared.waker).clone();
        if let Some(waker) = waker {
            wake(&waker);
        }
    }
}
