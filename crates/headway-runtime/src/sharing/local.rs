//! The arbiter of one process: the state machine behind a mutex, one condition for each task.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use headway_broker::TaskShape;
use headway_core::decisions::engine_lock::LockedOperation;
use headway_core::decisions::sharing::{
    Arbiter, ArbiterAction, ArbiterInput, ArbiterParameters, ArbiterRefused, ClientId, GpuId, JobId, JobPriority,
    TaskId, TaskParameters, TokenOutcome,
};
use headway_core::units::Nanos;
use headway_os::clock;

use super::SharingError;

/// All threads of this process die together.
const CLIENT: ClientId = ClientId(0);

pub(super) struct Local {
    state: Mutex<State>,
    has_engine_locks: bool,
}

struct State {
    arbiter: Arbiter,
    tasks: BTreeMap<TaskId, WaitingTask>,
    next_task: u32,
}

/// What a waiting thread looks at.
struct WaitingTask {
    condition: Arc<Condvar>,
    granted: Option<Granted>,
    runs: bool,
    revoked: bool,
}

#[derive(Clone, Copy)]
struct Granted {
    gpu: GpuId,
    from: Option<GpuId>,
}

impl State {
    /// Puts an input before the arbiter, and wakes the threads that are granted something.
    fn feed(&mut self, input: &ArbiterInput) -> Result<(), ArbiterRefused> {
        // Under the lock, so that time never goes back.
        let result = self.arbiter.handle(clock::now(), input);
        while let Some(action) = self.arbiter.poll_action() {
            let job = match &action {
                ArbiterAction::Grant { job, .. }
                | ArbiterAction::Run { job, .. }
                | ArbiterAction::Revoke { job, .. } => *job,
                ArbiterAction::Obtained { job, .. } => {
                    // The second lock is always wanted at once; a refusal cannot be: the job has the first one.
                    let next = self.arbiter.handle(clock::now(), &ArbiterInput::Next { job: *job });
                    assert!(next.is_ok(), "the job would wait for ever: {next:?}");
                    continue;
                }
                // Threads of one process keep their priority.
                ArbiterAction::SetBoost { .. } => continue,
            };
            let Some(known) = self.tasks.get_mut(&job.task) else { continue };
            match action {
                ArbiterAction::Grant { gpu, from, .. } => known.granted = Some(Granted { gpu, from }),
                ArbiterAction::Run { .. } => known.runs = true,
                _ => known.revoked = true,
            }
            known.condition.notify_all();
        }
        while self.arbiter.poll_event().is_some() {}
        result
    }
}

impl Local {
    pub(super) fn new(parameters: ArbiterParameters) -> Result<Self, ArbiterRefused> {
        let has_engine_locks = parameters.engines.is_some();
        let state = State { arbiter: Arbiter::new(parameters)?, tasks: BTreeMap::new(), next_task: 0 };
        Ok(Self { state: Mutex::new(state), has_engine_locks })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn register(&self, shape: TaskShape) -> Result<LocalTask<'_>, SharingError> {
        let mut state = self.lock();
        let id = TaskId(state.next_task);
        let deadline = shape.deadline;
        state.feed(&ArbiterInput::Register(TaskParameters {
            id,
            client: CLIENT,
            cluster: shape.cluster,
            period: shape.period,
            deadline,
            state: shape.state,
            segments: shape.segments,
        }))?;
        state.next_task = state.next_task.wrapping_add(1);
        let condition = Arc::new(Condvar::new());
        let known = WaitingTask { condition: Arc::clone(&condition), granted: None, runs: false, revoked: false };
        state.tasks.insert(id, known);
        Ok(LocalTask { local: self, id, deadline, condition, jobs: 0 })
    }

    /// Waits until `ready` finds something in the task's record; `None` once the time is over.
    fn wait<'a, T>(
        &self,
        mut state: MutexGuard<'a, State>,
        task: &LocalTask<'_>,
        until: Option<Nanos>,
        ready: impl Fn(&mut WaitingTask) -> Option<T>,
    ) -> (MutexGuard<'a, State>, Option<T>) {
        loop {
            if let Some(found) = state.tasks.get_mut(&task.id).and_then(&ready) {
                return (state, Some(found));
            }
            let rest = until.map(|until| until.saturating_sub(clock::now()));
            state = match rest {
                Some(Nanos::ZERO) => return (state, None),
                Some(rest) => {
                    let waited = task.condition.wait_timeout(state, Duration::from_nanos(rest.0));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => task.condition.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

pub(super) struct LocalTask<'local> {
    local: &'local Local,
    id: TaskId,
    deadline: Nanos,
    condition: Arc<Condvar>,
    jobs: u64,
}

impl LocalTask<'_> {
    pub(super) fn id(&self) -> TaskId {
        self.id
    }

    pub(super) fn acquire(
        &mut self,
        release: Nanos,
        acquisition: u32,
        bound: Option<Duration>,
    ) -> Result<LocalToken<'_>, SharingError> {
        let nanos = |bound: Duration| Nanos(u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX));
        let until = bound.map(|bound| clock::now().saturating_add(nanos(bound)));
        self.jobs += u64::from(acquisition == 0);
        let job = JobId { task: self.id, job: self.jobs };
        let key = JobPriority { deadline: release.saturating_add(self.deadline), release, job };
        let mut state = self.local.lock();
        if let Some(known) = state.tasks.get_mut(&self.id) {
            (known.granted, known.runs, known.revoked) = (None, false, false);
        }
        state.feed(&ArbiterInput::Request { key, acquisition })?;
        let (mut state, granted) = self
            .local
            .wait(state, self, until, |known| known.granted.map(Ok).or_else(|| known.revoked.then_some(Err(()))));
        match granted {
            Some(Ok(granted)) => {
                drop(state);
                Ok(LocalToken { task: self, job, granted, open: true })
            }
            Some(Err(())) => Err(SharingError::Broker(headway_broker::ClientError::Revoked)),
            None => {
                state.feed(&ArbiterInput::Abort { job })?;
                Err(SharingError::TimedOut)
            }
        }
    }
}

impl Drop for LocalTask<'_> {
    fn drop(&mut self) {
        let mut state = self.local.lock();
        let withdrawn = state.feed(&ArbiterInput::Withdraw { task: self.id });
        debug_assert!(withdrawn.is_ok(), "its token borrows the task: {withdrawn:?}");
        state.tasks.remove(&self.id);
    }
}

pub(super) struct LocalToken<'task> {
    task: &'task LocalTask<'task>,
    job: JobId,
    granted: Granted,
    open: bool,
}

impl LocalToken<'_> {
    pub(super) fn gpu(&self) -> GpuId {
        self.granted.gpu
    }

    pub(super) fn from(&self) -> Option<GpuId> {
        self.granted.from
    }

    pub(super) fn engine(&mut self, operation: LockedOperation) -> Result<LocalEngine<'_>, SharingError> {
        let local = self.task.local;
        if !local.has_engine_locks {
            return Ok(LocalEngine { token: self, held: false });
        }
        let mut state = local.lock();
        state.feed(&ArbiterInput::Acquire { job: self.job, operation })?;
        let (state, runs) = local.wait(state, self.task, None, |known| {
            if known.revoked { Some(false) } else { std::mem::take(&mut known.runs).then_some(true) }
        });
        drop(state);
        if runs == Some(true) {
            Ok(LocalEngine { token: self, held: true })
        } else {
            Err(SharingError::Broker(headway_broker::ClientError::Revoked))
        }
    }

    pub(super) fn release(mut self, used: Nanos) {
        self.close(TokenOutcome::Complete(used));
    }

    fn close(&mut self, outcome: TokenOutcome) {
        if std::mem::take(&mut self.open) {
            let job = self.job;
            // A token of a lost GPU is gone already.
            let _ = self.task.local.lock().feed(&ArbiterInput::Release { job, outcome });
        }
    }
}

impl Drop for LocalToken<'_> {
    fn drop(&mut self) {
        self.close(TokenOutcome::Aborted);
    }
}

pub(super) struct LocalEngine<'token> {
    token: &'token LocalToken<'token>,
    held: bool,
}

impl Drop for LocalEngine<'_> {
    fn drop(&mut self) {
        if self.held {
            let job = self.token.job;
            // An engine of a lost GPU is gone already.
            let _ = self.token.task.local.lock().feed(&ArbiterInput::Complete { job });
        }
    }
}
