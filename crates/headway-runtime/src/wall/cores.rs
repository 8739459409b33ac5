//! The cores of the CPU that a plan uses, for the time of a run.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use headway_core::plan::Plan;
use headway_device::Completion;
use headway_os::affinity::AffinityGuard;
use headway_os::sched::Classes;

use super::{Message, RunError};
use crate::cores::{Core, CoreJob, CoreStage, Stages, apart};
use crate::kernels::{Kernels, OperationKernel};

/// A thread for every core of the plan.
pub(super) struct Cores {
    cores: Vec<Core>,
    /// Kept for the time of the run: this thread keeps off their CPUs.
    _aside: Option<AffinityGuard>,
    /// The CPU of each core, where they have CPUs of their own.
    pub(super) cpus: Vec<u32>,
    /// Jobs handed out and not seen to end.
    outstanding: Cell<usize>,
}

impl Cores {
    /// Starts the threads of `plan` in `classes`, with CPUs of their own if `awake` asks for it and there are enough.
    pub(super) fn start(
        plan: &Plan,
        kernels: &Kernels,
        classes: &Arc<Classes>,
        awake: bool,
        inbox: &Sender<Message>,
    ) -> Result<Self, RunError> {
        let count = plan.cores() as usize;
        if count == 0 {
            return Ok(Self { cores: Vec::new(), _aside: None, cpus: Vec::new(), outstanding: Cell::new(0) });
        }
        let mut stages: Vec<Stages> = (0..count).map(|_| Stages::new()).collect();
        for kernel in kernels.all() {
            let OperationKernel { pipeline, step, index, work, .. } = kernel;
            let operation = &plan.pipelines[*pipeline as usize].steps[*step as usize].operations[*index as usize];
            let core = operation.engines.first().and_then(|engine| plan.core(engine.at()));
            let Some(core) = core else { continue };
            let stage = CoreStage::new(Arc::clone(work), kernels.portions_of(kernel))?;
            stages[core as usize].insert((*pipeline, *step, *index), stage);
        }
        let parts = if awake { apart(count) } else { None };
        let aside = parts.as_ref().and_then(|(_, others)| AffinityGuard::on(others));
        // Threads inherit where this one may run, and take their own CPU then.
        let cpus = if aside.is_some() { parts.map_or_else(Vec::new, |(own, _)| own) } else { Vec::new() };
        let mut cores = Vec::new();
        for (number, stages) in (0u32..).zip(stages) {
            let inbox = inbox.clone();
            // A driver that has ended no longer listens, and need not.
            let waker = Arc::new(move || drop(inbox.send(Message::Wake)));
            let own = cpus.get(number as usize).copied();
            let core = Core::start_in(number, stages, own, waker, Some(Arc::clone(classes)));
            let prepared = |source| RunError::Prepare { what: format!("core {number} of the CPU"), source };
            cores.push(core.map_err(prepared)?);
        }
        Ok(Self { cores, _aside: aside, cpus, outstanding: Cell::new(0) })
    }

    pub(super) fn submit(&self, core: u32, job: CoreJob) {
        self.outstanding.set(self.outstanding.get() + 1);
        self.cores[core as usize].submit(job);
    }

    pub(super) fn poll(&self, done: &mut Vec<Completion>) {
        let before = done.len();
        self.cores.iter().for_each(|core| core.poll(done));
        self.outstanding.set(self.outstanding.get() - (done.len() - before));
    }

    /// Whether the driver should stay awake for the end of a job, as the cores do.
    pub(super) fn must_poll(&self) -> bool {
        !self.cpus.is_empty() && self.outstanding.get() > 0
    }
}
