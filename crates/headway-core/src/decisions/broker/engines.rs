//! Engines of GPUs as jobs use them: under a lease while one client alone holds tokens of a GPU, else granted one by one.
//!
//! Of a lock that is leased the book learns only when the lease ends: the server takes the lease back and says whether the lock is in use.
//! For the arbiter, the lock was free; if it is in use, the arbiter grants it to its user then.

use std::collections::BTreeMap;

use super::limits::{ACQUIRE_BYTES, LEASES_BYTES};
use super::messages::{Action, LeaseInUse, RefusalReason, Slot};
use super::{Book, EnginePhase, EngineRequest, Lease};
use crate::decisions::engine_lock::{EngineParameters, EngineRole, EngineWork, LockId, LockedOperation};
use crate::decisions::sharing::{self, ArbiterInput, ClientId, GpuId, JobId, TaskId};
use crate::units::{Bytes, Nanos};

/// The use of an engine of which nothing else is known: as large as a chunk may be, so that it is no copy that needs no lock.
pub(super) fn unknown_use(engine: EngineRole, parameters: Option<EngineParameters>) -> LockedOperation {
    let chunk = parameters.and_then(|engines| engines.chunk_bytes).unwrap_or(Bytes(u64::MAX));
    let (work, bytes) = match engine {
        EngineRole::Execute => (EngineWork::Execute, Bytes(0)),
        EngineRole::In => (EngineWork::CopyIn, chunk),
        EngineRole::Out => (EngineWork::CopyOut, chunk),
    };
    LockedOperation { work, bytes, predicted: Nanos::ZERO, budget: Nanos::ZERO }
}

impl Book {
    /// The client with a lease of an engine of a GPU.
    #[must_use]
    pub fn leased_to(&self, gpu: GpuId) -> Option<ClientId> {
        self.leases.iter().find(|(lock, _)| lock.gpu == gpu).map(|(_, lease)| lease.client)
    }

    /// The locks of a GPU.
    pub(super) fn locks_of_gpu(&self, gpu: GpuId) -> Vec<LockId> {
        let copy_engines = self.parameters.arbiter.engines.map_or(0, |engines| engines.copy_engines);
        let all = [EngineRole::Execute, EngineRole::In, EngineRole::Out];
        let there = if copy_engines == 0 { 0 } else { 1 + copy_engines.min(2) as usize };
        all[..there].iter().map(|engine| LockId { gpu, engine: *engine }).collect()
    }

    /// Locks that an operation needs; `None` if it is not possible.
    fn locks_of(&self, gpu: GpuId, from: Option<GpuId>, operation: LockedOperation) -> Option<Vec<LockId>> {
        let engines = self.parameters.arbiter.engines?;
        let out = if engines.copy_engines == 1 { EngineRole::In } else { EngineRole::Out };
        match operation.work {
            EngineWork::Execute => Some(vec![LockId { gpu, engine: EngineRole::Execute }]),
            EngineWork::CopyIn => Some(vec![LockId { gpu, engine: EngineRole::In }]),
            EngineWork::CopyOut => Some(vec![LockId { gpu, engine: out }]),
            EngineWork::Peer => Some(vec![LockId { gpu: from?, engine: out }, LockId { gpu, engine: EngineRole::In }]),
        }
    }

    /// A token holder wants engines.
    pub(super) fn acquire(
        &mut self,
        now: Nanos,
        client: ClientId,
        slot: Slot,
        job: JobId,
        operation: LockedOperation,
    ) -> bool {
        let Some(open) = self.own_open(client, job) else { return self.refuse(client, slot, RefusalReason::NotYours) };
        if open.engines.is_some() {
            return self.refuse(client, slot, RefusalReason::Busy);
        }
        let (granted, from) = (open.granted, open.from);
        let locks = granted.and_then(|granted| self.locks_of(granted.gpu, from, operation));
        let Some(locks) = locks else { return self.refuse(client, slot, RefusalReason::Operation) };
        let is_leased = locks.iter().any(|lock| self.leases.contains_key(lock));
        if !self.may_write(now, self.account_of(client), ACQUIRE_BYTES + if is_leased { LEASES_BYTES } else { 0 }) {
            return self.refuse(client, slot, RefusalReason::Limit);
        }
        let ends_leases = self.end_leases(|lock, _| locks.contains(lock));
        let phase = if ends_leases { EnginePhase::EndsLeases } else { EnginePhase::Waits };
        if let Some(open) = self.open_mut(job) {
            open.engines = Some(EngineRequest { slot: Some(slot), locks, operation, phase });
        }
        if !ends_leases {
            self.ask_for_engines(now, job);
        }
        true
    }

    /// Puts an engine request before the arbiter.
    fn ask_for_engines(&mut self, now: Nanos, job: JobId) {
        let Some(open) = self.open_mut(job) else { return };
        let Some(engines) = &mut open.engines else { return };
        engines.phase = EnginePhase::Waits;
        open.asked = Some(now);
        let (operation, slot) = (engines.operation, engines.slot);
        let Err(refused) = self.feed(now, &ArbiterInput::Acquire { job, operation }) else { return };
        if let Some(open) = self.open_mut(job) {
            // What is refused is waited for by nobody: the job pays for the whole time of its hold.
            (open.engines, open.asked) = (None, None);
        }
        let client = self.tasks.get(&job.task).map(|task| task.client);
        if let (Some(client), Some(slot)) = (client, slot) {
            self.refuse(client, slot, RefusalReason::from(&refused));
        }
    }

    /// The job holds all locks of its operation.
    pub(super) fn run(&mut self, job: JobId) {
        // A client that is gone gets nothing; what it was granted is freed when it is drained.
        let client = self.tasks.get(&job.task).map(|task| task.client).filter(|client| self.is_served(*client));
        let Some(open) = self.open_mut(job) else { return };
        let (Some(client), Some(engines)) = (client, &mut open.engines) else { return };
        if engines.phase == EnginePhase::Runs {
            return;
        }
        engines.phase = EnginePhase::Runs;
        let (slot, locks) = (engines.slot, engines.locks.clone());
        self.counts.engines += 1;
        self.actions.push_back(Action::Run { client, slot, job, locks });
    }

    /// Engines that jobs get when they are written down.
    pub fn withheld_engines(&self) -> impl Iterator<Item = (JobId, &[LockId])> {
        self.withheld.iter().filter_map(|action| match action {
            sharing::ArbiterAction::Run { job, locks } => Some((*job, locks.as_slice())),
            _ => None,
        })
    }

    /// The job that uses an engine without having asked for it: by a lease that has ended.
    #[must_use]
    pub fn user_by_lease(&self, held: LeaseInUse) -> Option<JobId> {
        let open = self.tasks.get(&held.task)?.open.as_ref()?;
        let engines = open.engines.as_ref()?;
        (engines.slot.is_none() && engines.locks == [held.lock]).then_some(open.key.job)
    }

    /// A job has given back all that it held.
    pub(super) fn returned(&mut self, now: Nanos, job: JobId) -> bool {
        let Some(open) = self.open_mut(job) else { return false };
        if open.engines.take_if(|engines| engines.phase == EnginePhase::Runs).is_none() {
            return false;
        }
        let _ = self.feed(now, &ArbiterInput::Complete { job });
        true
    }

    /// Takes granted locks away from the task's client.
    pub(super) fn take_back(&mut self, task: TaskId, locks: Vec<LockId>) {
        if let Some(client) = self.tasks.get(&task).map(|task| task.client) {
            self.actions.push_back(Action::TakeBack { client, task, locks });
        }
    }

    // Leases.

    /// Has the server end leases; whether there are any of those, or the server is about to end them.
    fn end_leases(&mut self, of: impl Fn(&LockId, ClientId) -> bool) -> bool {
        let mut ending: BTreeMap<ClientId, Vec<LockId>> = BTreeMap::new();
        let mut any = false;
        for (lock, lease) in self.leases.iter_mut().filter(|(lock, lease)| of(lock, lease.client)) {
            any = true;
            if !std::mem::replace(&mut lease.is_ending, true) {
                ending.entry(lease.client).or_default().push(*lock);
            }
        }
        let actions = ending.into_iter().map(|(client, locks)| Action::EndLeases { client, locks });
        self.actions.extend(actions);
        any
    }

    pub(super) fn end_leases_of(&mut self, client: ClientId) -> bool {
        self.end_leases(|_, of| of == client)
    }

    /// The server has ended leases of a client.
    pub(super) fn leases_ended(&mut self, now: Nanos, client: ClientId, in_use: &[LeaseInUse]) -> bool {
        let ended = self.leases.len();
        self.leases.retain(|_, lease| !(lease.client == client && lease.is_ending));
        if self.leases.len() == ended {
            return false;
        }
        for LeaseInUse { lock, task } in in_use {
            self.adopt_lease(now, client, *lock, *task);
        }
        self.go_on_leaving(now, client);
        let waits = |engines: &EngineRequest| {
            let is_free = |lock: &LockId| !self.leases.contains_key(lock);
            engines.phase == EnginePhase::EndsLeases && engines.locks.iter().all(is_free)
        };
        let open = self.tasks.values().filter_map(|task| task.open.as_ref());
        let ready = open.filter(|open| open.engines.as_ref().is_some_and(waits)).map(|open| open.key.job);
        for job in ready.collect::<Vec<_>>() {
            self.ask_for_engines(now, job);
        }
        true
    }

    /// A lock is in use whose lease has ended: the arbiter, for which it was free, grants it to its user.
    fn adopt_lease(&mut self, now: Nanos, client: ClientId, lock: LockId, task: TaskId) {
        let operation = unknown_use(lock.engine, self.parameters.arbiter.engines);
        let found = self.tasks.get_mut(&task).filter(|task| task.client == client).and_then(|task| task.open.as_mut());
        let found = found.filter(|open| open.granted.is_some_and(|granted| granted.gpu == lock.gpu));
        let is_free = |engines: &Option<EngineRequest>| {
            engines.as_ref().is_none_or(|engines| engines.phase == EnginePhase::EndsLeases)
        };
        let Some(open) = found.filter(|open| is_free(&open.engines)) else {
            // The word is wrong, or its job has released the token: no known job can use the engine.
            self.actions.push_back(Action::TakeBack { client, task, locks: vec![lock] });
            return;
        };
        let request = EngineRequest { slot: None, locks: vec![lock], operation, phase: EnginePhase::Runs };
        let asked = open.engines.replace(request);
        let job = open.key.job;
        // The job asked for engines and has one already.
        if let Some(slot) = asked.and_then(|asked| asked.slot) {
            self.refuse(client, slot, RefusalReason::Busy);
        }
        // It uses the engine already, whether that can be written down or not.
        if self.feed_held(now, &ArbiterInput::Acquire { job, operation }).is_err() {
            if let Some(open) = self.open_mut(job) {
                open.engines = None;
            }
            self.take_back(task, vec![lock]);
        }
    }

    /// Leases the free engines of every GPU whose tokens one client alone holds, if it `may_lend` now, and ends the other leases.
    pub(super) fn settle_leases(&mut self, may_lend: bool) {
        if self.parameters.arbiter.engines.is_none() {
            return;
        }
        let alone = self.only_holders();
        self.end_leases(|lock, client| alone.get(&lock.gpu) != Some(&client));
        self.withholds_leases = false;
        for (gpu, client) in alone {
            let mut locks = self.locks_of_gpu(gpu);
            locks.retain(|lock| !self.leases.contains_key(lock) && !self.is_wanted(*lock));
            if locks.is_empty() {
                continue;
            }
            if !may_lend {
                self.withholds_leases = true;
                continue;
            }
            self.leases.extend(locks.iter().map(|lock| (*lock, Lease { client, is_ending: false })));
            self.counts.leases += locks.len() as u64;
            self.actions.push_back(Action::Lend { client, locks });
        }
    }

    /// Whether a job holds a lock, or waits for it, that the arbiter knows.
    fn is_wanted(&self, lock: LockId) -> bool {
        let open = self.tasks.values().filter_map(|task| task.open.as_ref());
        open.filter_map(|open| open.engines.as_ref()).any(|engines| engines.locks.contains(&lock))
    }

    /// For each GPU whose tokens one client alone holds, that client, if it is served.
    fn only_holders(&self) -> BTreeMap<GpuId, ClientId> {
        let mut holders: BTreeMap<GpuId, Option<ClientId>> = BTreeMap::new();
        for task in self.tasks.values() {
            let Some(granted) = task.open.as_ref().and_then(|open| open.granted) else { continue };
            let only = holders.entry(granted.gpu).or_insert(Some(task.client));
            *only = only.filter(|client| *client == task.client);
        }
        let alone = holders.into_iter().filter_map(|(gpu, client)| Some((gpu, client?)));
        alone.filter(|(_, client)| self.is_served(*client)).collect()
    }
}
