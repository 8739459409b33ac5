//! The queues of engine locks: which job starts next, and which inherits a priority (specification of sharing, 4).

use std::collections::BTreeMap;

use super::{
    EngineLockAction, EngineLockEvent, EngineLockRefused, EngineLocks, EngineRole, EngineWork, Lock, LockId, LockJob,
    LockOrder, LockedOperation, Locks, PeerLocks, Reported, State,
};
use crate::decisions::sharing::{JobId, JobPriority, TaskId};
use crate::units::Nanos;

impl EngineLocks {
    /// The locks that an operation of `job` needs, ascending.
    pub(super) fn locks_of(&self, job: JobId, operation: LockedOperation) -> Result<Locks, EngineLockRefused> {
        let known = self.known(job)?;
        if let Some(chunk_bytes) = self.parameters.chunk_bytes
            && operation.bytes > chunk_bytes
        {
            return Err(EngineLockRefused::ChunkTooLarge { bytes: operation.bytes, chunk_bytes });
        }
        let out = if self.parameters.copy_engines == 1 { EngineRole::In } else { EngineRole::Out };
        let here = |engine| Some(LockId { gpu: known.gpu, engine });
        Ok(match operation.work {
            EngineWork::Execute => [here(EngineRole::Execute), None],
            EngineWork::CopyIn => [here(EngineRole::In), None],
            EngineWork::CopyOut => [here(out), None],
            EngineWork::Peer => {
                let gpu = known.from.ok_or(EngineLockRefused::NotMigrating { job })?;
                let mut pair = [Some(LockId { gpu, engine: out }), here(EngineRole::In)];
                pair.sort_unstable();
                pair
            }
        })
    }

    /// Puts an operation into its queues; in nested mode only into that of the lower lock.
    pub(super) fn enqueue(&mut self, task: TaskId, operation: LockedOperation, locks: Locks) {
        let nested = self.parameters.peer == PeerLocks::Nested;
        let queues = if nested { [locks[0], None] } else { locks };
        let mut ahead = 0;
        for lock in queues.into_iter().flatten() {
            let at = self.insert(lock, task);
            ahead = ahead.max(at + usize::from(self.locks[&lock].holder.is_some()));
        }
        let job = self.job_mut(task);
        job.state = State::Waiting { operation, locks, obtained: None };
        let job = job.id;
        if ahead > 0 {
            self.events.push_back(EngineLockEvent::Waiting { job, ahead: u32::try_from(ahead).unwrap_or(u32::MAX) });
        }
    }

    /// Puts a job into a lock's queue; how many are ahead of it there.
    pub(super) fn insert(&mut self, lock: LockId, task: TaskId) -> usize {
        let waiting = &self.locks[&lock].waiting;
        let at = match self.parameters.order {
            LockOrder::Arrival => waiting.len(),
            LockOrder::Urgency => waiting.partition_point(|other| self.rank(*other) < self.rank(task)),
        };
        self.lock_mut(lock).waiting.insert(at, task);
        at
    }

    /// Its place in every queue in the order of urgency. Total, so that groups stand in the same order in each; two holders can
    /// inherit one key.
    pub(super) fn rank(&self, task: TaskId) -> (JobPriority, TaskId) {
        (self.jobs[&task].base, task)
    }

    /// Moves a job to where its key belongs, in every queue it is in.
    pub(super) fn replace(&mut self, task: TaskId) {
        let State::Waiting { locks, .. } = self.jobs[&task].state else { return };
        for lock in locks.into_iter().flatten() {
            self.lock_mut(lock).waiting.retain(|other| *other != task);
            self.insert(lock, task);
        }
    }

    /// The job's operation starts.
    pub(super) fn run(&mut self, task: TaskId, operation: LockedOperation, locks: Locks) {
        let since = self.now;
        let job = self.job_mut(task);
        job.state = State::Running { operation, locks, since, reported: Reported::Nothing, backfill: false };
        let job = job.id;
        self.actions.push_back(EngineLockAction::Run { job, first: locks[0], second: locks[1] });
    }

    /// Removes a job from every queue and frees what it holds.
    pub(super) fn leave_queues(&mut self, task: TaskId) {
        for lock in self.locks.values_mut() {
            lock.waiting.retain(|other| *other != task);
            if lock.holder == Some(task) {
                lock.holder = None;
            }
        }
        self.job_mut(task).state = State::Idle;
    }

    /// Starts every job that can start, then fills locks held idle where that is allowed, then passes keys on.
    pub(super) fn settle(&mut self) {
        let ids: Vec<LockId> = self.locks.keys().copied().collect();
        // A start frees nothing, so that one pass is enough.
        for id in &ids {
            self.start_head(*id);
        }
        if self.parameters.peer == PeerLocks::GroupBackfill {
            for id in &ids {
                self.backfill(*id);
            }
        }
        self.update_boosts();
    }

    fn start_head(&mut self, id: LockId) {
        let Some(task) = self.free_head(id) else { return };
        let State::Waiting { operation, locks, obtained } = self.jobs[&task].state else {
            unreachable!("jobs in queues wait")
        };
        let nested = self.parameters.peer == PeerLocks::Nested && locks[1].is_some();
        if nested {
            self.take(id, task);
            if obtained.is_some() {
                self.run(task, operation, locks);
            } else {
                let job = self.job_mut(task);
                job.state = State::Obtained { operation, locks, lock: id };
                let job = job.id;
                self.actions.push_back(EngineLockAction::Obtained { job, lock: id });
            }
            return;
        }
        if locks.iter().flatten().all(|lock| self.free_head(*lock) == Some(task)) {
            for lock in locks.into_iter().flatten() {
                self.take(lock, task);
            }
            self.run(task, operation, locks);
        }
    }

    /// The first waiter of a lock that nobody holds.
    pub(super) fn free_head(&self, id: LockId) -> Option<TaskId> {
        let lock = &self.locks[&id];
        if lock.holder.is_some() { None } else { lock.waiting.front().copied() }
    }

    fn take(&mut self, id: LockId, task: TaskId) {
        let lock = self.lock_mut(id);
        lock.waiting.retain(|other| *other != task);
        lock.holder = Some(task);
    }

    /// A group is at the head of `id` and waits for its other lock: the first single operation behind it that is predicted
    /// to end before that lock frees runs meanwhile.
    fn backfill(&mut self, id: LockId) {
        let Some(group) = self.free_head(id) else { return };
        let State::Waiting { locks, .. } = self.jobs[&group].state else { return };
        let Some(other) = locks.into_iter().flatten().find(|lock| *lock != id) else { return };
        // Nobody is left in front of the group but who took its place there: filling this lock too would let the two take
        // turns for ever, whenever predictions are wrong.
        let (head, holder) = (self.locks[&other].waiting.front(), self.locks[&other].holder);
        let passed =
            holder.is_some_and(|holder| matches!(self.jobs[&holder].state, State::Running { backfill: true, .. }));
        if passed && head == Some(&group) {
            return;
        }
        let gap = self.predicted_free(other, group);
        let fits = |task: &&TaskId| match self.jobs[*task].state {
            State::Waiting { operation, locks: [_, None], .. } => {
                operation.predicted > Nanos::ZERO && operation.predicted <= gap
            }
            _ => false,
        };
        let Some(task) = self.locks[&id].waiting.iter().find(fits).copied() else { return };
        let State::Waiting { operation, locks, .. } = self.jobs[&task].state else { return };
        self.take(id, task);
        self.events.push_back(EngineLockEvent::Backfilled { job: self.jobs[&task].id, lock: id });
        self.run(task, operation, locks);
        if let State::Running { backfill, .. } = &mut self.job_mut(task).state {
            *backfill = true;
        }
    }

    /// How long until `task` is the head of a free lock, by the predictions of those ahead; never more than that.
    fn predicted_free(&self, id: LockId, task: TaskId) -> Nanos {
        let lock = &self.locks[&id];
        let running = lock.holder.map_or(Nanos::ZERO, |holder| match self.jobs[&holder].state {
            State::Running { operation, since, .. } => {
                since.saturating_add(operation.predicted).saturating_sub(self.now)
            }
            _ => Nanos::ZERO,
        });
        let ahead = lock.waiting.iter().take_while(|other| **other != task);
        ahead.fold(running, |sum, other| match self.jobs[other].state {
            State::Waiting { operation, .. } => sum.saturating_add(operation.predicted),
            _ => sum,
        })
    }

    /// The keys that follow from the queues: everybody has the most urgent key of those that wait for it, and on.
    pub(super) fn inherited(&self) -> BTreeMap<TaskId, JobPriority> {
        let mut keys: BTreeMap<TaskId, JobPriority> = self.jobs.iter().map(|(task, job)| (*task, job.base)).collect();
        // Each round passes keys over one more lock; a chain of waits meets each job once.
        for _ in 0..=self.jobs.len() {
            let mut changed = false;
            for lock in self.locks.values() {
                let mut carried: Option<JobPriority> = None;
                for task in lock.waiting.iter().rev().chain(lock.holder.iter()) {
                    let key = keys.get_mut(task).expect("jobs in queues are known");
                    if let Some(carried) = carried.filter(|carried| *carried < *key) {
                        *key = carried;
                        changed = true;
                    }
                    carried = Some(*key);
                }
            }
            if !changed {
                break;
            }
        }
        keys
    }

    pub(super) fn update_boosts(&mut self) {
        for (task, key) in self.inherited() {
            let job = self.job_mut(task);
            if job.boost != key {
                job.boost = key;
                let job = job.id;
                self.actions.push_back(EngineLockAction::SetBoost { job, key });
            }
        }
    }

    /// When a job's operation gives the next event, and which.
    pub(super) fn next_deadline(&self, task: TaskId) -> Option<(Nanos, Reported)> {
        let State::Running { operation, since, reported, .. } = self.jobs[&task].state else { return None };
        let times = |n: u64| (operation.budget > Nanos::ZERO).then(|| Nanos(operation.budget.0.saturating_mul(n)));
        let watchdog = Some(self.parameters.watchdog).filter(|time| *time > Nanos::ZERO);
        let overrun = times(8).into_iter().chain(watchdog).min().filter(|_| reported < Reported::Overrun);
        let over_budget = times(2).filter(|_| reported < Reported::OverBudget);
        let at = |after: Nanos, what| (since.saturating_add(after), what);
        let overrun = overrun.map(|after| at(after, Reported::Overrun));
        over_budget.map(|after| at(after, Reported::OverBudget)).into_iter().chain(overrun).min()
    }

    /// Whether a lock is held idle: its head or its holder waits for another lock.
    fn is_held_idle(&self, lock: &Lock) -> bool {
        match lock.holder {
            Some(holder) => !matches!(self.jobs[&holder].state, State::Running { .. }),
            None => !lock.waiting.is_empty(),
        }
    }

    pub(super) fn advance(&mut self, now: Nanos) {
        debug_assert!(now >= self.now, "time went back from {} to {now}", self.now);
        let passed = now.saturating_sub(self.now);
        if passed > Nanos::ZERO {
            let idle = |id: &&LockId| self.is_held_idle(&self.locks[*id]);
            for id in self.locks.keys().filter(idle).copied().collect::<Vec<_>>() {
                let lock = self.lock_mut(id);
                lock.idle_held = lock.idle_held.saturating_add(passed);
            }
        }
        self.now = self.now.max(now);
    }

    pub(super) fn job_mut(&mut self, task: TaskId) -> &mut LockJob {
        self.jobs.get_mut(&task).expect("jobs in queues are known")
    }

    pub(super) fn lock_mut(&mut self, id: LockId) -> &mut Lock {
        self.locks.get_mut(&id).expect("tokens are accepted only for GPUs with locks")
    }
}
