//! Engines of GPUs as jobs use them: under a lease while one client alone holds tokens of a GPU, else granted one by one.

use headway_core::decisions::engine_lock::{EngineRole, EngineWork, LockId, LockedOperation};
use headway_core::decisions::sharing::{ArbiterInput, ClientId, GpuId, JobId, TaskId};
use headway_core::units::{Bytes, Nanos};
use headway_os::event;

use super::open::{Engines, Open};
use super::state::BrokerState;
use crate::layout::{Code, ENGINES};
use crate::protocol::lease::{self, Revoked};

impl BrokerState {
    pub(super) fn position(&self, gpu: GpuId) -> Option<usize> {
        self.gpus.iter().position(|known| *known == gpu)
    }

    /// An engine by its place in the pages; that of the last GPU if there is no such place.
    pub(super) fn lock_id(&self, lock: usize) -> LockId {
        let gpu = self.gpus.get(lock / ENGINES).or_else(|| self.gpus.last()).copied().unwrap_or(GpuId(0));
        LockId { gpu, engine: [EngineRole::Execute, EngineRole::In, EngineRole::Out][lock % ENGINES] }
    }

    /// Locks that an operation needs; `None` if it is not possible.
    pub(super) fn locks_of(&self, gpu: GpuId, from: Option<GpuId>, operation: LockedOperation) -> Option<Vec<usize>> {
        let engines = self.engines?;
        let lock = |gpu: GpuId, engine: usize| Some(self.position(gpu)? * ENGINES + engine);
        let out = if engines.copy_engines == 1 { 1 } else { 2 };
        match operation.work {
            EngineWork::Execute => Some(vec![lock(gpu, 0)?]),
            EngineWork::CopyIn if operation.bytes <= engines.unlocked_below => Some(Vec::new()),
            EngineWork::CopyIn => Some(vec![lock(gpu, 1)?]),
            EngineWork::CopyOut => Some(vec![lock(gpu, out)?]),
            EngineWork::Peer => Some(vec![lock(from?, out)?, lock(gpu, 1)?]),
        }
    }

    /// The job holds all locks of its operation.
    pub(super) fn run(&mut self, job: JobId) {
        let Some(open) = self.open_mut(job) else { return };
        let Some(engines) = open.engines.as_mut().filter(|engines| engines.held.is_none()) else { return };
        let (slot, locks) = (engines.slot, engines.locks.clone());
        let client = self.tasks.get(&job.task).map(|task| task.client);
        let session = client.and_then(|client| self.sessions.get(&client));
        // A client that is gone gets nothing; what it was granted is freed when it is drained.
        let Some(pages) = session.filter(|session| session.gone.is_none()).and_then(|session| session.pages.as_ref())
        else {
            return;
        };
        let mut held = Vec::with_capacity(locks.len());
        for lock in locks {
            held.push((lock, lease::grant(pages.lease(lock), self.leases.next_generation(), job.task.0)));
        }
        let mut words = [0; 4];
        held.iter().zip(&mut words).for_each(|((_, word), place)| *place = *word);
        if let Some(engines) = self.open_mut(job).and_then(|open| open.engines.as_mut()) {
            engines.held = Some(held);
        }
        self.leases.running.push(job.task);
        self.counts.engines += 1;
        event!(TRACE, "headway::broker", "engines granted", task = job.task.0, job = job.job);
        if let Some(slot) = slot {
            self.answer(job.task, slot, Code::Granted, words);
        }
    }

    /// A job that has given back all that it held.
    pub(super) fn returned(&self) -> Option<JobId> {
        self.leases.running.iter().find_map(|id| {
            let task = self.tasks.get(id)?;
            let session = self.sessions.get(&task.client).filter(|session| session.gone.is_none())?;
            let pages = session.pages.as_ref()?;
            let open = task.open.as_ref()?;
            let held = open.engines.as_ref()?.held.as_ref()?;
            held.iter().all(|(lock, word)| lease::is_returned(pages.lease(*lock), *word)).then_some(open.key.job)
        })
    }

    /// Tells the arbiter of every lock that was given back; whether there was one.
    pub(super) fn collect_returns(&mut self, now: Nanos) -> bool {
        let mut any = false;
        while let Some(job) = self.returned() {
            any = true;
            self.leases.running.retain(|task| *task != job.task);
            if let Some(open) = self.open_mut(job) {
                open.engines = None;
            }
            let _ = self.feed(now, ArbiterInput::Complete { job });
        }
        any
    }

    /// Takes a granted lock away from the task's client.
    pub(super) fn take_back(&mut self, task: TaskId, lock: usize) {
        self.leases.running.retain(|running| *running != task);
        let generation = self.leases.next_generation();
        let session = self.tasks.get(&task).and_then(|task| self.sessions.get(&task.client));
        if let Some(pages) = session.and_then(|session| session.pages.as_ref()) {
            lease::take_back(pages.lease(lock), generation);
        }
    }

    /// Ends the lease of a lock, if there is one. If the lock is in use, the arbiter, for which it was free, grants it to its user.
    pub(super) fn end_lease(&mut self, now: Nanos, lock: usize) {
        let Some(client) = self.leases.of[lock].take() else { return };
        let Some(pages) = self.sessions.get(&client).and_then(|session| session.pages.as_ref()) else { return };
        let Revoked::Busy { owner, word } = lease::revoke(pages.lease(lock)) else { return };
        // The task may have given back another lock just before it took this one.
        self.collect_returns(now);
        let gpu = self.gpus[lock / ENGINES];
        let owner = TaskId(owner);
        let is_holder =
            |open: &&mut Open| open.engines.is_none() && open.granted.is_some_and(|(granted, _)| granted == gpu);
        let task = self.tasks.get_mut(&owner).filter(|task| task.client == client);
        let Some(open) = task.and_then(|task| task.open.as_mut()).filter(is_holder) else {
            // The word is wrong, or its job has released the token: no known job can use the engine.
            let generation = self.leases.next_generation();
            if let Some(pages) = self.sessions.get(&client).and_then(|session| session.pages.as_ref()) {
                lease::take_back(pages.lease(lock), generation);
            }
            return;
        };
        open.engines = Some(Engines { slot: None, locks: vec![lock], held: Some(vec![(lock, word)]) });
        let job = open.key.job;
        self.leases.running.push(owner);
        let work = match lock % ENGINES {
            0 => EngineWork::Execute,
            1 => EngineWork::CopyIn,
            _ => EngineWork::CopyOut,
        };
        // As large as a chunk may be: what the job moves is not known, and it must be no copy that needs no lock.
        let bytes = self.engines.and_then(|engines| engines.chunk_bytes).unwrap_or(Bytes(u64::MAX));
        let bytes = if work == EngineWork::Execute { Bytes(0) } else { bytes };
        let operation = LockedOperation { work, bytes, predicted: Nanos::ZERO, budget: Nanos::ZERO };
        if self.feed(now, ArbiterInput::Acquire { job, operation }).is_err() {
            if let Some(open) = self.open_mut(job) {
                open.engines = None;
            }
            self.take_back(owner, lock);
        }
    }

    pub(super) fn end_leases_of(&mut self, now: Nanos, client: ClientId) {
        for lock in 0..self.leases.of.len() {
            if self.leases.of[lock] == Some(client) {
                self.end_lease(now, lock);
            }
        }
    }

    /// Leases the free engines of every GPU whose tokens one client alone holds, and ends the other leases.
    pub(super) fn settle_leases(&mut self, now: Nanos) {
        let Some(engines) = self.engines else { return };
        for position in 0..self.gpus.len() {
            let gpu = self.gpus[position];
            let alone = self.only_holder(gpu);
            for lock in position * ENGINES..(position + 1) * ENGINES {
                if self.leases.of[lock] == alone {
                    continue;
                }
                self.end_lease(now, lock);
                let has_lock = lock % ENGINES != 2 || engines.copy_engines > 1;
                let Some(client) = alone.filter(|_| has_lock && !self.is_wanted(lock)) else { continue };
                let generation = self.leases.next_generation();
                if let Some(pages) = self.sessions.get(&client).and_then(|session| session.pages.as_ref()) {
                    lease::lend(pages.lease(lock), generation);
                    self.leases.of[lock] = Some(client);
                    self.counts.leases += 1;
                }
            }
        }
    }

    /// Whether a job holds a lock, or waits for it, that the arbiter knows.
    fn is_wanted(&self, lock: usize) -> bool {
        let open = self.tasks.values().filter_map(|task| task.open.as_ref());
        open.filter_map(|open| open.engines.as_ref()).any(|engines| engines.locks.contains(&lock))
    }

    /// The client that alone holds tokens of a GPU, if no task leaves that GPU with state to copy.
    fn only_holder(&self, gpu: GpuId) -> Option<ClientId> {
        let mut only = None;
        for task in self.tasks.values() {
            let Some(open) = &task.open else { continue };
            if open.granted.is_none_or(|(granted, _)| granted != gpu) {
                continue;
            }
            if only.is_some_and(|client| client != task.client) {
                return None;
            }
            only = Some(task.client);
        }
        only.filter(|client| self.sessions.get(client).is_some_and(|session| session.gone.is_none()))
    }
}
