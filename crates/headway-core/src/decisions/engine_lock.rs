//! Engine locks: which of a GPU's token holders runs on which engine. Queues with inheritance, as a sans-IO state machine.
//!
//! Elliott 2013, 4.2 and 4.3; the specification of sharing, 4. A job has one operation at a time: one lock, or for a chunk
//! of a peer copy the outbound lock of the source and the inbound lock of the destination. A peer copy enqueues on both at
//! once (group), or takes the second after the first (nested). No deadlock: groups stand in the same order in every queue,
//! and nested requests ascend. The paper's queues are FIFOs; [`LockOrder::Urgency`] serves the most urgent first (specification of
//! sharing, 9, item 4).
//!
//! The driver feeds inputs with `handle_*`, after each drains [`EngineLocks::poll_action`], then
//! [`EngineLocks::poll_event`], and calls [`EngineLocks::handle_timeout`] at [`EngineLocks::poll_timeout`].

mod check;
mod messages;
mod queues;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

pub use self::check::EngineLockViolation;
pub use self::messages::{
    EngineLockAction, EngineLockEvent, EngineLockRefused, EngineRole, EngineWork, LockId, LockedOperation,
};
use crate::decisions::sharing::{GpuId, JobId, JobPriority, TaskId};
pub use crate::models::sharing::{EngineParameters, LockOrder, PeerLocks};
use crate::units::Nanos;

/// The one or two locks of an operation, ascending.
type Locks = [Option<LockId>; 2];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum State {
    /// No operation.
    Idle,
    /// In the FIFOs of all its locks, or of the second one with the first obtained.
    Waiting { operation: LockedOperation, locks: Locks, obtained: Option<LockId> },
    /// Holds the first lock of a nested pair and has not asked for the second.
    Obtained { operation: LockedOperation, locks: Locks, lock: LockId },
    /// Holds all locks of its operation; `backfill` = it passed a group that waits for another lock.
    Running {
        operation: LockedOperation,
        locks: Locks,
        since: Nanos,
        #[serde(rename = "told")]
        reported: Reported,
        backfill: bool,
    },
}

/// What was reported of an operation that takes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
enum Reported {
    Nothing,
    OverBudget,
    Overrun,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct LockJob {
    id: JobId,
    /// GPU of its token.
    gpu: GpuId,
    /// GPU that its state is on.
    from: Option<GpuId>,
    /// Its key without engine locks.
    base: JobPriority,
    /// The key at which the driver runs it.
    boost: JobPriority,
    state: State,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Lock {
    holder: Option<TaskId>,
    waiting: VecDeque<TaskId>,
    idle_held: Nanos,
}

/// The state machine for the engine locks of some GPUs. See the module's documentation for the order of calls.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EngineLocks {
    parameters: EngineParameters,
    now: Nanos,
    #[serde(with = "crate::decisions::pairs")]
    locks: BTreeMap<LockId, Lock>,
    #[serde(with = "crate::decisions::pairs")]
    jobs: BTreeMap<TaskId, LockJob>,
    #[serde(skip)]
    actions: VecDeque<EngineLockAction>,
    #[serde(skip)]
    events: VecDeque<EngineLockEvent>,
}

impl EngineLocks {
    /// The locks of `gpus`.
    ///
    /// # Errors
    /// [`EngineLockRefused::CopyEngines`] if there are not one or two copy engines per GPU; [`EngineLockRefused::Order`] where urgency is to order
    /// the queues and peer copies are no groups.
    pub fn new(parameters: EngineParameters, gpus: &[GpuId]) -> Result<Self, EngineLockRefused> {
        let engines: &[EngineRole] = match parameters.copy_engines {
            1 => &[EngineRole::Execute, EngineRole::In],
            2 => &[EngineRole::Execute, EngineRole::In, EngineRole::Out],
            copy_engines => return Err(EngineLockRefused::CopyEngines { copy_engines }),
        };
        if parameters.order == LockOrder::Urgency && parameters.peer != PeerLocks::Group {
            return Err(EngineLockRefused::Order);
        }
        let ids = gpus.iter().flat_map(|gpu| engines.iter().map(|engine| LockId { gpu: *gpu, engine: *engine }));
        Ok(Self {
            parameters,
            now: Nanos::ZERO,
            locks: ids.map(|id| (id, Lock::default())).collect(),
            jobs: BTreeMap::new(),
            actions: VecDeque::new(),
            events: VecDeque::new(),
        })
    }

    /// A job was granted a token of `gpu`; its state is on `from`, if elsewhere. `key` is its own.
    ///
    /// # Errors
    /// [`EngineLockRefused::TokenTwice`]; [`EngineLockRefused::NoSuchGpu`] if one of the GPUs has no locks here.
    pub fn handle_token(
        &mut self,
        now: Nanos,
        key: JobPriority,
        gpu: GpuId,
        from: Option<GpuId>,
    ) -> Result<(), EngineLockRefused> {
        let id = key.job;
        if self.jobs.contains_key(&id.task) {
            return Err(EngineLockRefused::TokenTwice { job: id });
        }
        let here = |gpu: &GpuId| self.locks.contains_key(&LockId { gpu: *gpu, engine: EngineRole::Execute });
        if let Some(gpu) = [Some(gpu), from].into_iter().flatten().find(|gpu| !here(gpu)) {
            return Err(EngineLockRefused::NoSuchGpu { gpu });
        }
        self.advance(now);
        let from = from.filter(|from| *from != gpu);
        self.jobs.insert(id.task, LockJob { id, gpu, from, base: key, boost: key, state: State::Idle });
        Ok(())
    }

    /// The key that a job has or inherits through tokens is now `key`.
    ///
    /// # Errors
    /// [`EngineLockRefused::NoToken`].
    pub fn handle_key(&mut self, now: Nanos, job: JobId, key: JobPriority) -> Result<(), EngineLockRefused> {
        self.known(job)?;
        self.advance(now);
        self.job_mut(job.task).base = key;
        if self.parameters.order == LockOrder::Urgency {
            self.replace(job.task);
            // A group that is less urgent now may have kept a lock from others.
            self.settle();
        } else {
            self.update_boosts();
        }
        Ok(())
    }

    /// A job wants the locks of an operation. [`EngineLockAction::Run`] follows, at once or later.
    ///
    /// # Errors
    /// [`EngineLockRefused::NoToken`], [`EngineLockRefused::Busy`], [`EngineLockRefused::NotMigrating`], [`EngineLockRefused::ChunkTooLarge`].
    pub fn handle_acquire(
        &mut self,
        now: Nanos,
        job: JobId,
        operation: LockedOperation,
    ) -> Result<(), EngineLockRefused> {
        if self.known(job)?.state != State::Idle {
            return Err(EngineLockRefused::Busy { job });
        }
        let locks = self.locks_of(job, operation)?;
        self.handle_timeout(now);
        self.enqueue(job.task, operation, locks);
        self.settle();
        Ok(())
    }

    /// A job that obtained the first lock of a nested pair asks for the second.
    ///
    /// # Errors
    /// [`EngineLockRefused::NoToken`], [`EngineLockRefused::NoFirstLock`].
    pub fn handle_next(&mut self, now: Nanos, job: JobId) -> Result<(), EngineLockRefused> {
        let State::Obtained { operation, locks, lock } = self.known(job)?.state else {
            return Err(EngineLockRefused::NoFirstLock { job });
        };
        self.handle_timeout(now);
        self.job_mut(job.task).state = State::Waiting { operation, locks, obtained: Some(lock) };
        if let Some(second) = locks[1] {
            self.lock_mut(second).waiting.push_back(job.task);
        }
        self.settle();
        Ok(())
    }

    /// A job's operation has completed on the device: its locks are free.
    ///
    /// # Errors
    /// [`EngineLockRefused::NoToken`], [`EngineLockRefused::NothingHeld`].
    pub fn handle_complete(&mut self, now: Nanos, job: JobId) -> Result<(), EngineLockRefused> {
        if !matches!(self.known(job)?.state, State::Running { .. }) {
            return Err(EngineLockRefused::NothingHeld { job });
        }
        self.handle_timeout(now);
        self.leave_queues(job.task);
        self.settle();
        Ok(())
    }

    /// A job's token is released.
    ///
    /// # Errors
    /// [`EngineLockRefused::NoToken`]; [`EngineLockRefused::Busy`] while it holds or waits for an engine.
    pub fn handle_token_released(&mut self, now: Nanos, job: JobId) -> Result<(), EngineLockRefused> {
        if self.known(job)?.state != State::Idle {
            return Err(EngineLockRefused::Busy { job });
        }
        self.advance(now);
        self.jobs.remove(&job.task);
        Ok(())
    }

    /// A GPU is lost: the state of the jobs that were to leave it is nowhere.
    pub fn handle_gpu_lost(&mut self, gpu: GpuId) {
        for job in self.jobs.values_mut().filter(|job| job.from == Some(gpu)) {
            job.from = None;
        }
    }

    /// A job's client died: if it waits and holds nothing, it leaves every queue at once. What it holds stays held until
    /// [`EngineLocks::handle_gone`].
    pub fn handle_cancel(&mut self, now: Nanos, job: JobId) {
        let state = self.known(job).map(|known| known.state);
        if let Ok(State::Waiting { obtained: None, .. }) = state {
            self.handle_timeout(now);
            self.leave_queues(job.task);
            self.settle();
        }
    }

    /// A job is gone with its token and everything that it holds or waits for: its GPU work has ended.
    pub fn handle_gone(&mut self, now: Nanos, job: JobId) {
        if self.known(job).is_ok() {
            self.handle_timeout(now);
            self.leave_queues(job.task);
            self.jobs.remove(&job.task);
            self.settle();
        }
    }

    /// Time passes: tells operations that are under way for too long. A spurious call does nothing.
    pub fn handle_timeout(&mut self, now: Nanos) {
        self.advance(now);
        for task in self.jobs.keys().copied().collect::<Vec<_>>() {
            while let Some((at, next)) = self.next_deadline(task)
                && at <= now
            {
                let job = self.job_mut(task);
                if let State::Running { since, reported, .. } = &mut job.state {
                    *reported = next;
                    let (job, since) = (job.id, *since);
                    let event = if next == Reported::Overrun {
                        EngineLockEvent::Overrun { job, since }
                    } else {
                        EngineLockEvent::OverBudget { job, since }
                    };
                    self.events.push_back(event);
                }
            }
        }
    }

    /// The next thing the driver must do.
    pub fn poll_action(&mut self) -> Option<EngineLockAction> {
        self.actions.pop_front()
    }

    /// The next event for the user.
    pub fn poll_event(&mut self) -> Option<EngineLockEvent> {
        self.events.pop_front()
    }

    /// When to call [`EngineLocks::handle_timeout`] at the latest; `None` = not before the next input.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        self.jobs.keys().filter_map(|task| self.next_deadline(*task)).map(|(at, _)| at).min()
    }

    /// The key at which a job runs: its own or the most urgent it inherits; `None` = it has no token.
    #[must_use]
    pub fn effective_key(&self, task: TaskId) -> Option<JobPriority> {
        self.jobs.get(&task).map(|job| job.boost)
    }

    /// Whether a job holds or waits for an engine.
    #[must_use]
    pub fn is_busy(&self, task: TaskId) -> bool {
        self.jobs.get(&task).is_some_and(|job| job.state != State::Idle)
    }

    /// How long a lock was held idle: nobody ran, yet somebody who could not start kept others from it.
    #[must_use]
    pub fn idle_held(&self, lock: LockId) -> Option<Nanos> {
        self.locks.get(&lock).map(|lock| lock.idle_held)
    }

    fn known(&self, job: JobId) -> Result<&LockJob, EngineLockRefused> {
        self.jobs.get(&job.task).filter(|known| known.id == job).ok_or(EngineLockRefused::NoToken { job })
    }
}
