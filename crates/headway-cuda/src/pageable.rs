//! The driver's own copies of ordinary memory, which block, on one helper thread per direction.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use headway_core::files::machine::EngineClass;
use headway_device::{Completion, DeviceError, Span, Waker, wake};
use headway_os::clock;
use headway_os::fork::Home;
use headway_os::sched::{Classes, Role};

use crate::abandoned::abandon;
use crate::checked::lock;
use crate::owned::{Context, CopyKind, copy_pageable};

/// One copy.
pub(crate) struct Job {
    pub(crate) tag: u64,
    pub(crate) from: Span,
    pub(crate) to: Span,
}

/// What helper threads and device share.
#[derive(Default)]
pub(crate) struct Shared {
    /// Completions with their class; bounded by the limits on outstanding operations.
    pub(crate) done: Mutex<VecDeque<(EngineClass, Completion)>>,
    pub(crate) waker: Mutex<Option<Waker>>,
    stop: AtomicBool,
}

/// One helper thread. Dropping it ends the copy that runs and discards those that wait.
pub(crate) struct Helper {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
    home: Home,
}

impl Helper {
    /// Starts it, in a scheduling class of `classes` if there are some.
    pub(crate) fn start(
        context: &Arc<Context>,
        class: EngineClass,
        shared: &Arc<Shared>,
        classes: Option<Arc<Classes>>,
    ) -> Result<Self, DeviceError> {
        let (jobs, incoming) = channel();
        let (context, common) = (Arc::clone(context), Arc::clone(shared));
        let thread = std::thread::Builder::new()
            .name("headway-pageable".into())
            .spawn(move || {
                let _held = classes.map(|classes| classes.take(Role::Helper));
                serve(&context, class, &common, &incoming);
            })
            .map_err(|error| DeviceError::Unavailable {
                what: "a thread for pageable copies".into(),
                reason: error.to_string(),
                remedy: "raise the limit on threads".into(),
            })?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread), shared: Arc::clone(shared), home: Home::here() })
    }

    pub(crate) fn submit(&self, job: Job) -> Result<(), DeviceError> {
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

fn serve(context: &Arc<Context>, class: EngineClass, shared: &Shared, jobs: &Receiver<Job>) {
    let kind = if class == EngineClass::D2h { CopyKind::DeviceToHost } else { CopyKind::HostToDevice };
    while let Ok(Job { tag, from, to }) = jobs.recv() {
        if shared.stop.load(Ordering::Acquire) {
            continue;
        }
        let started = clock::now();
        // SAFETY: the spans are equal in length, the destination is claimed for writing (both checked at submission), and
        // they live until the call has returned.
        let result = unsafe { copy_pageable(context, kind, from.as_ptr(), to.as_ptr(), from.len()) };
        let finished = clock::now();
        if matches!(result, Err(DeviceError::Driver { .. })) && context.is_lost() {
            // Whether the copy still runs is to be found out: the bytes stay claimed until then.
            abandon(context, None, (from, to), None);
        } else {
            drop((from, to));
        }
        let completion = Completion { tag, result, started, finished, noticed: finished };
        lock(&shared.done).push_back((class, completion));
        let waker = lock(&shared.waker).clone();
        if let Some(waker) = waker {
            wake(&waker);
        }
    }
}
