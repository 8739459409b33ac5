//! What the broker knows and decides: clients, tasks, open requests, and the arbiter that they are put before.

use std::collections::{BTreeMap, BTreeSet};

use headway_core::decisions::engine_lock::{self, EngineLockEvent, LockedOperation};
use headway_core::decisions::sharing::log::{BrokerLogLine, Fed, Used};
use headway_core::decisions::sharing::{
    Arbiter, ArbiterAction, ArbiterEvent, ArbiterInput, ArbiterRefused, ClientId, ClusterParameters, GpuId, JobId,
    JobPriority, TaskId, TokenId, TokenOutcome,
};
use headway_core::units::Nanos;
use headway_os::event;
use headway_os::ipc::{Bell, Socket};

use super::about::About;
use super::journal::{Journal, Known};
use super::leases::Leases;
use super::limits::{ACQUIRE_BYTES, Accounts, REQUEST_BYTES, USED_BYTES};
use super::open::{Engines, Open, Slot, Task};
use super::pages::Next;
use super::predecessor::Recovery;
use super::priority::{self, Priority};
use super::session::Session;
use super::turns::{self, Turns};
use super::{BrokerLimits, ServerOptions, UserAccess};
use crate::error::{RefusalReason, ServerError};
use crate::layout::{Code, ENGINES, Entry, RING_ENTRIES};
use crate::status::Counts;

/// What the broker knows of clients, tasks and engines, and what it decides.
pub(super) struct BrokerState {
    pub(super) arbiter: Arbiter,
    pub(super) clusters: Vec<ClusterParameters>,
    pub(super) engines: Option<engine_lock::EngineParameters>,
    pub(super) gpus: Vec<GpuId>,
    pub(super) sessions: BTreeMap<ClientId, Session>,
    pub(super) tasks: BTreeMap<TaskId, Task>,
    pub(super) leases: Leases,
    pub(super) priority: Priority,
    /// What the broker's process does in addition to arbitrating.
    pub(super) about: About,
    pub(super) counts: Counts,
    pub(super) limits: BrokerLimits,
    pub(super) tasks_max: usize,
    /// Of the cluster with most, as the broker was started.
    tokens_per_gpu: u32,
    pub(super) accounts: Accounts,
    pub(super) turns: Turns,
    /// Whether other users than the broker's may come.
    pub(super) is_for_group: bool,
    pub(super) is_logged: bool,
    pub(super) epoch: u64,
    pub(super) started: Nanos,
    /// Whom nothing is granted before, after a start that others survived.
    pub(super) recovering: Option<Recovery>,
    /// Whom the next broker must wait for has changed.
    pub(super) roster_changed: bool,
    pub(super) drain: Nanos,
    pub(super) watchdog: Nanos,
    /// Until then the broker cuts off no client, since it was late itself.
    pub(super) excused_until: Nanos,
    next_client: u64,
    pub(super) next_task: u32,
    pub(super) removed: Vec<ClientId>,
    /// GPUs for which clients have reported errors since the last look.
    pub(super) hints: Vec<GpuId>,
    /// How many such reports there were of each GPU.
    pub(super) faults: BTreeMap<GpuId, u64>,
    pub(super) lost: BTreeSet<GpuId>,
    /// Tasks for which there is no room since a GPU was lost.
    pub(super) without_room: BTreeSet<TaskId>,
    pub(super) journal: Journal,
    /// Grants that are kept back until they can be written down.
    pub(super) withheld: Vec<ArbiterAction>,
}

impl BrokerState {
    pub(super) fn new(options: &ServerOptions, epoch: u64, now: Nanos) -> Result<Self, ServerError> {
        let parameters = options.arbiter.clone();
        let mut arbiter = Arbiter::new(parameters.clone()).map_err(ServerError::Parameters)?;
        let (mut journal, before) = Journal::open(options, epoch, now)?;
        let tokens_per_gpu = parameters.clusters.iter().map(|cluster| cluster.tokens.per_gpu).max().unwrap_or(1);
        let longest = turns::longest_hold(tokens_per_gpu, options.watchdog, options.drain);
        let turns = Turns::new(options.watchdog, longest, before.users, now);
        // The broker before may have been killed together with its guardian.
        before.roster.clients.iter().for_each(priority::take_back);
        let recovering = Recovery::begin(before.roster, now.saturating_add(options.recover));
        // Without former clients this concerns no client, and lost GPUs may be back.
        let memory = before.memory.filter(|_| recovering.is_some());
        if let Some(memory) = &memory {
            arbiter.recall(now, memory);
        }
        let lost = memory.iter().flat_map(|memory| memory.lost.iter().copied()).collect();
        journal.begin(now, &arbiter)?;
        let gpus: Vec<GpuId> = parameters.clusters.iter().flat_map(|cluster| cluster.gpus.clone()).collect();
        // Numbers of earlier brokers are not given again soon: their tasks may come back.
        let (next_client, next_task) = (epoch << 32, (epoch as u32 & 0xfff) << 20);
        event!(
            INFO,
            "headway::broker",
            "broker begins",
            start = epoch,
            gpus = gpus.len(),
            waits_for_others = recovering.is_some()
        );
        Ok(Self {
            arbiter,
            clusters: parameters.clusters,
            engines: parameters.engines,
            leases: Leases::new(gpus.len()),
            gpus,
            sessions: BTreeMap::new(),
            tasks: BTreeMap::new(),
            priority: Priority::new(options.boost, options.lend_realtime),
            about: About::default(),
            counts: Counts::default(),
            limits: options.limits,
            tasks_max: parameters.limits.tasks_max,
            tokens_per_gpu,
            accounts: Accounts::default(),
            turns,
            is_for_group: options.access == UserAccess::Group,
            is_logged: options.log.is_some(),
            epoch,
            started: now,
            recovering,
            roster_changed: true,
            drain: options.drain,
            watchdog: options.watchdog,
            excused_until: Nanos::ZERO,
            next_client,
            next_task,
            removed: Vec::new(),
            hints: Vec::new(),
            faults: BTreeMap::new(),
            lost,
            without_room: BTreeSet::new(),
            journal,
            withheld: Vec::new(),
        })
    }

    // Connections.

    pub(super) fn next_client(&mut self) -> ClientId {
        self.next_client += 1;
        ClientId(self.next_client)
    }

    pub(super) fn admit(&mut self, client: ClientId, session: Session) {
        event!(
            DEBUG,
            "headway::broker",
            "client connected",
            client = client.0,
            pid = session.peer.pid,
            user = session.peer.uid
        );
        self.sessions.insert(client, session);
    }

    pub(super) fn socket(&self, client: ClientId) -> Option<&Socket> {
        Some(&self.sessions.get(&client)?.socket)
    }

    pub(super) fn is_served(&self, client: ClientId) -> bool {
        self.sessions.get(&client).is_some_and(|session| session.gone.is_none())
    }

    pub(super) fn bell(&self, client: ClientId) -> Option<&Bell> {
        Some(&self.sessions.get(&client)?.pages.as_ref()?.bell)
    }

    pub(super) fn is_greeted(&self, client: ClientId) -> bool {
        self.bell(client).is_some()
    }

    /// Sessions that have ended, to be taken out of the poller and then removed.
    pub(super) fn take_removed(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.removed)
    }

    pub(super) fn remove(&mut self, client: ClientId) -> Option<Session> {
        let session = self.sessions.remove(&client)?;
        self.accounts.forget(client, session.peer.pid);
        Some(session)
    }

    // Turns.

    /// Whether nothing was written to any page since the last turn.
    pub(super) fn is_idle(&self) -> bool {
        (self.recovering.is_some() || !self.sessions.values().any(Session::has_entries)) && self.returned().is_none()
    }

    /// One look at everything; whether there was anything to do.
    pub(super) fn turn(&mut self, now: Nanos, share: usize) -> bool {
        self.mend(now);
        if self.turns.are_due_to_be_written(now) {
            self.roster_changed = true;
        }
        let mut busy = self.collect_returns(now);
        if self.recovering.as_ref().is_none_or(|recovery| recovery.is_over(now)) {
            if self.recovering.take().is_some() {
                self.roster_changed = true;
                event!(INFO, "headway::broker", "those of the broker before are back or gone: grants begin");
                // The broker has read no requests until now.
                self.tasks.values_mut().filter_map(|task| task.open.as_mut()).for_each(|open| open.since = now);
                let _ = self.feed(now, ArbiterInput::Recovered);
                self.journal.settle(now, &self.arbiter);
            }
            busy |= self.read_rings(now, share);
        }
        busy |= self.keep_time(now);
        if busy {
            self.settle_leases(now);
            self.priority.apply();
        }
        busy
    }

    fn read_rings(&mut self, now: Nanos, share: usize) -> bool {
        let asking = self.sessions.iter().filter(|(_, session)| session.has_entries());
        let clients: Vec<ClientId> = asking.map(|(client, _)| *client).collect();
        let mut busy = false;
        for client in clients {
            busy |= self.read_ring(now, client, share, true);
        }
        busy
    }

    /// Handles entries of one client; of one that is going only what gives back (`asks` is false). Whether there were any.
    fn read_ring(&mut self, now: Nanos, client: ClientId, share: usize, asks: bool) -> bool {
        // What a client that is gone has left in its ring no longer counts: all that it holds ends with its drain.
        let session = self.sessions.get_mut(&client).filter(|session| session.gone.is_none());
        let Some(pages) = session.and_then(|session| session.pages.as_mut()) else { return false };
        let (mut entries, mut lies, locks) = (Vec::new(), false, self.gpus.len() * ENGINES);
        for _ in 0..share {
            match pages.next() {
                Next::Entry(Entry::Used { lock, .. }) if lock as usize >= locks => {
                    lies = true;
                    break;
                }
                Next::Entry(entry) => entries.push(entry),
                Next::Nothing => break,
                Next::Nonsense => {
                    lies = true;
                    break;
                }
            }
        }
        let busy = lies || !entries.is_empty();
        for entry in entries {
            match entry {
                Entry::Release { job, outcome } => self.release(now, client, job, outcome),
                Entry::Abort { job } => self.abort(now, client, job),
                Entry::Used { lock, job, begin, end, missing } => {
                    self.used(now, client, Used { now, job, lock: self.lock_id(lock as usize), begin, end, missing });
                }
                Entry::Request { .. } | Entry::Acquire { .. } if !asks => {}
                Entry::Request { slot, generation, job, release, acquisition } => {
                    self.request(now, client, Slot { number: slot, generation }, job, release, acquisition);
                }
                Entry::Acquire { slot, generation, job, operation } => {
                    self.acquire(now, client, Slot { number: slot, generation }, job, operation);
                }
            }
        }
        if lies {
            self.cut(now, client, false);
        }
        busy
    }

    /// What a client published in memory comes before what it says, or does, at its socket afterwards.
    pub(super) fn catch_up(&mut self, now: Nanos, client: ClientId, asks: bool) {
        if self.recovering.is_some() {
            return;
        }
        let returned = self.collect_returns(now);
        if self.read_ring(now, client, RING_ENTRIES as usize, asks) || returned {
            self.settle_leases(now);
            self.priority.apply();
        }
    }

    /// When [`BrokerState::turn`] is due although no client rings.
    pub(super) fn wake_time(&self) -> Option<Nanos> {
        let drained = self.sessions.values().filter_map(|session| self.drained_at(session.gone?));
        let watched = self.tasks.values().filter_map(|task| self.overdue_at(task));
        drained
            .chain(watched)
            .chain(self.engine_timeout())
            .chain(self.journal.retry_at())
            .chain(self.turns_due())
            .chain(self.recovering.as_ref().map(|recovery| recovery.next_look(self.started)))
            .min()
    }

    /// When a job with a token has been silent for too long. While the broker reads no requests, no job is overdue.
    fn overdue_at(&self, task: &Task) -> Option<Nanos> {
        if self.recovering.is_some() {
            return None;
        }
        let open = task.open.as_ref().filter(|open| open.granted.is_some())?;
        let is_served = self.sessions.get(&task.client)?.gone.is_none();
        // Where users share: while a user's job keeps an engine, the broker does not cut off another user's job that waits for it.
        let most = Nanos(self.watchdog.0.saturating_mul(u64::from(self.tokens_per_gpu)));
        let waited = match open.asked {
            _ if !self.turns.are_taken(task.shape.cluster) => Nanos::ZERO,
            Some(_) => most,
            None => open.waited.min(most),
        };
        let at = open.since.saturating_add(self.watchdog).saturating_add(waited);
        is_served.then(|| at.max(self.excused_until))
    }

    /// When an engine has been used for too long.
    fn engine_timeout(&self) -> Option<Nanos> {
        self.arbiter.poll_timeout().map(|at| at.max(self.excused_until))
    }

    fn keep_time(&mut self, now: Nanos) -> bool {
        let due = self.wake_time().is_some_and(|time| time <= now);
        if !due {
            return false;
        }
        let is_drained =
            |session: &Session| session.gone.and_then(|gone| self.drained_at(gone)).is_some_and(|at| at <= now);
        let drained: Vec<_> =
            self.sessions.iter().filter(|(_, session)| is_drained(session)).map(|(client, _)| *client).collect();
        for client in drained {
            // One that closed its connection and went on, with a token, kept it for as long as one that hangs.
            if self
                .sessions
                .get(&client)
                .and_then(|session| session.gone)
                .is_some_and(|gone| gone.ended.is_none() && !gone.hung)
            {
                self.strike(now, client);
            }
            self.drained(now, client);
        }
        let mut hung: Vec<_> = self
            .tasks
            .values()
            .filter(|task| self.overdue_at(task).is_some_and(|at| at <= now))
            .map(|task| task.client)
            .collect();
        hung.dedup();
        hung.into_iter().for_each(|client| self.cut(now, client, true));
        if self.engine_timeout().is_some_and(|time| time <= now) {
            let _ = self.feed(now, ArbiterInput::Timeout);
        }
        if self.turns_due().is_some_and(|time| time <= now) {
            self.take_all_turns(now);
        }
        true
    }

    // The arbiter.

    /// Puts an input before the arbiter and does what it says.
    pub(super) fn feed(&mut self, now: Nanos, input: ArbiterInput) -> Result<(), ArbiterRefused> {
        let result = self.arbiter.handle(now, &input);
        let actions: Vec<ArbiterAction> = std::iter::from_fn(|| self.arbiter.poll_action()).collect();
        let fed = Fed { now, input, actions: actions.clone(), refused: result.as_ref().err().cloned() };
        // The outcome is written before the broker answers: the next broker never knows less than the clients.
        self.journal.fed(fed, &self.arbiter, self.recovering.is_some());
        for action in &actions {
            if let ArbiterAction::Run { job, .. } = action
                && let Some(engines) = self.tasks.get(&job.task).and_then(|task| task.open.as_ref()?.engines.as_ref())
            {
                let locks: Vec<_> = engines.locks.iter().map(|lock| self.lock_id(*lock)).collect();
                self.journal.engines(now, &locks, *job);
            }
        }
        for action in actions {
            let is_grant = matches!(
                action,
                ArbiterAction::Grant { .. } | ArbiterAction::Run { .. } | ArbiterAction::Obtained { .. }
            );
            if is_grant && (self.journal.forbids_grants() || !self.withheld.is_empty()) {
                self.withheld.push(action);
            } else {
                self.act(now, action);
            }
        }
        self.take_events(now);
        result
    }

    /// Writes again what could not be written, and tells of the grants that waited for that.
    fn mend(&mut self, now: Nanos) {
        if self.journal.retry_at().is_none_or(|at| now < at)
            || !self.journal.mend(now, &self.arbiter, self.recovering.is_some())
        {
            return;
        }
        for action in std::mem::take(&mut self.withheld) {
            // A job that has given up meanwhile, or has lost the GPU, gets no answer.
            let holds = |(_, held): (TokenId, JobId), job| held == job;
            let stands = match &action {
                ArbiterAction::Grant { job, token, .. } => self.clusters.iter().any(|cluster| {
                    let tokens = self.arbiter.tokens(cluster.id);
                    tokens.is_some_and(|tokens| tokens.holders().any(|held| held.0 == *token && holds(held, *job)))
                }),
                _ => true,
            };
            if stands {
                self.act(now, action);
            }
        }
        self.settle_leases(now);
        self.priority.apply();
    }

    fn take_events(&mut self, now: Nanos) {
        let mut overrun = Vec::new();
        while let Some(event) = self.arbiter.poll_event() {
            match event {
                // Of uses that seem long because the broker was late, nothing is known. The token's watchdog goes on.
                ArbiterEvent::Engine(EngineLockEvent::Overrun { job, .. }) if now >= self.excused_until => {
                    overrun.push(job)
                }
                ArbiterEvent::Inadmissible { task, .. } => {
                    self.without_room.insert(task);
                    self.journal.note(now, &BrokerLogLine::WithoutRoom { now, task });
                }
                ArbiterEvent::Token { .. } | ArbiterEvent::Engine(_) => {}
            }
        }
        for job in overrun {
            if let Some(client) = self.tasks.get(&job.task).map(|task| task.client) {
                self.cut(now, client, true);
            }
        }
    }

    fn act(&mut self, now: Nanos, action: ArbiterAction) {
        match action {
            ArbiterAction::Grant { job, gpu, token, from } => {
                let Some(open) = self.open_mut(job) else { return };
                (open.granted, open.from, open.since) = (Some((gpu, token)), from, now);
                let (slot, key) = (open.slot, open.key);
                let from = from.map_or(0, |from| u64::from(from.0) + 1);
                self.counts.tokens += 1;
                event!(
                    DEBUG,
                    "headway::broker",
                    "token granted",
                    task = job.task.0,
                    job = job.job,
                    gpu = gpu.0,
                    token = token.0
                );
                self.answer(
                    job.task,
                    slot,
                    Code::Granted,
                    [u64::from(gpu.0), u64::from(token.0), from, key.deadline.0],
                );
                let effective = self.arbiter.effective_key(job.task).unwrap_or(key);
                self.priority.set(job.task, Some(effective));
            }
            ArbiterAction::Run { job, .. } => {
                if let Some(open) = self.open_mut(job)
                    && let Some(asked) = open.asked.take()
                {
                    open.waited = open.waited.saturating_add(now.saturating_sub(asked));
                }
                self.run(job);
            }
            ArbiterAction::Obtained { job, .. } => {
                // The second lock is always wanted at once.
                let _ = self.feed(now, ArbiterInput::Next { job });
            }
            ArbiterAction::SetBoost { job, key } => {
                if self.open_mut(job).is_some_and(|open| open.granted.is_some()) {
                    self.priority.set(job.task, Some(key));
                }
            }
            ArbiterAction::Revoke { job, gpu } => {
                self.charge_user(now, job);
                self.revoke(job, gpu);
            }
        }
    }

    fn revoke(&mut self, job: JobId, gpu: GpuId) {
        let Some(task) = self.tasks.get_mut(&job.task) else { return };
        let Some(open) = task.open.take_if(|open| open.key.job == job) else { return };
        let slot = open.slot;
        let why = [u64::from(gpu.0) + 1, 0, 0, 0];
        if let Some(engines) = open.engines {
            if let Some(waiting) = engines.slot.filter(|_| engines.held.is_none()) {
                self.answer(job.task, waiting, Code::Revoked, why);
            }
            for (lock, _) in engines.held.unwrap_or_default() {
                self.take_back(job.task, lock);
            }
        }
        self.priority.set(job.task, None);
        self.answer(job.task, slot, Code::Revoked, why);
    }

    pub(super) fn answer(&self, task: TaskId, slot: Slot, code: Code, answer: [u64; 4]) {
        let session = self.tasks.get(&task).and_then(|task| self.sessions.get(&task.client));
        if let Some(pages) = session.and_then(|session| session.pages.as_ref()) {
            pages.answer(slot.number, slot.generation, code, answer);
        }
    }

    fn refuse(&mut self, client: ClientId, slot: Slot, reason: RefusalReason) {
        self.counts.refused += 1;
        event!(DEBUG, "headway::broker", "request refused", client = client.0, why = format_args!("{reason:?}"));
        if let Some(pages) = self.sessions.get(&client).and_then(|session| session.pages.as_ref()) {
            pages.answer(slot.number, slot.generation, Code::Refused, [reason as u64, 0, 0, 0]);
        }
    }

    pub(super) fn open_mut(&mut self, job: JobId) -> Option<&mut Open> {
        self.tasks.get_mut(&job.task)?.open.as_mut().filter(|open| open.key.job == job)
    }

    /// The open request, if the task is the client's.
    fn own_open(&mut self, client: ClientId, job: JobId) -> Option<&mut Open> {
        self.tasks.get(&job.task).filter(|task| task.client == client)?;
        self.open_mut(job)
    }

    // What clients ask for.

    fn request(&mut self, now: Nanos, client: ClientId, slot: Slot, job: JobId, release: Nanos, acquisition: u32) {
        let Some(task) = self.tasks.get(&job.task).filter(|task| task.client == client) else {
            return self.refuse(client, slot, RefusalReason::NotYours);
        };
        if task.open.is_some() {
            return self.refuse(client, slot, RefusalReason::Busy);
        }
        let [last, counted, deadline] = self.key_times(now, task, release, acquisition);
        if !self.may_ask(client) || !self.may_write(now, client, REQUEST_BYTES) {
            return self.refuse(client, slot, RefusalReason::Limit);
        }
        let Some(task) = self.tasks.get_mut(&job.task) else { return };
        self.counts.clamped += u64::from(counted != release);
        task.last_release = Some(last);
        let key = JobPriority { deadline, release: counted, job };
        task.open = Some(Open { acquisition, ..Open::new(key, slot, now) });
        self.queue(now, job);
    }

    fn release(&mut self, now: Nanos, client: ClientId, job: JobId, outcome: TokenOutcome) {
        let Some(open) = self.own_open(client, job).filter(|open| open.granted.is_some()) else { return };
        match open.engines.take() {
            // It has given up what it did not give back: the word says otherwise only if it lies.
            Some(Engines { held: Some(held), .. }) => {
                held.into_iter().for_each(|(lock, _)| self.take_back(job.task, lock));
                let _ = self.feed(now, ArbiterInput::Complete { job });
            }
            // A job cannot wait and go at once: the watchdog sees to it.
            waiting @ Some(_) => {
                open.engines = waiting;
                return;
            }
            None => {}
        }
        self.charge(now, job);
        if self.feed(now, ArbiterInput::Release { job, outcome }).is_ok() {
            self.close(now, job);
        }
    }

    fn abort(&mut self, now: Nanos, client: ClientId, job: JobId) {
        let Some(open) = self.own_open(client, job) else { return };
        if open.granted.is_some() {
            return self.release(now, client, job, TokenOutcome::Aborted);
        }
        if !open.entered || self.feed(now, ArbiterInput::Abort { job }).is_ok() {
            self.close(now, job);
        }
    }

    fn close(&mut self, now: Nanos, job: JobId) {
        let task = self.tasks.get_mut(&job.task);
        let cluster = task.map(|task| {
            task.open = None;
            task.shape.cluster
        });
        self.priority.set(job.task, None);
        if let Some(cluster) = cluster {
            self.take_turns(now, cluster);
        }
    }

    fn acquire(&mut self, now: Nanos, client: ClientId, slot: Slot, job: JobId, operation: LockedOperation) {
        // The job may have given back its last engine just before it asked for this one.
        self.collect_returns(now);
        let locks = match self.own_open(client, job) {
            None => return self.refuse(client, slot, RefusalReason::NotYours),
            Some(open) if open.engines.is_some() => return self.refuse(client, slot, RefusalReason::Busy),
            Some(Open { granted: Some((gpu, _)), from, .. }) => {
                let (gpu, from) = (*gpu, *from);
                self.locks_of(gpu, from, operation)
            }
            Some(_) => None,
        };
        let Some(locks) = locks else { return self.refuse(client, slot, RefusalReason::Operation) };
        if !self.may_write(now, client, ACQUIRE_BYTES) {
            return self.refuse(client, slot, RefusalReason::Limit);
        }
        for lock in &locks {
            self.end_lease(now, *lock);
        }
        // Ending the lease of another thread of this client may have shown that the task is not free.
        let Some(open) = self.open_mut(job).filter(|open| open.engines.is_none()) else {
            return self.refuse(client, slot, RefusalReason::Busy);
        };
        open.engines = Some(Engines { slot: Some(slot), locks, held: None });
        open.asked = Some(now);
        if let Err(refused) = self.feed(now, ArbiterInput::Acquire { job, operation }) {
            if let Some(open) = self.open_mut(job) {
                open.engines = None;
            }
            self.refuse(client, slot, reason(&refused));
        }
    }

    /// Writes down what a client says of an engine that was leased to it, within what its user may write. Nothing depends on it.
    fn used(&mut self, now: Nanos, client: ClientId, used: Used) {
        let is_theirs = self.tasks.get(&used.job.task).is_some_and(|task| task.client == client);
        // What it wrote was there at `now`.
        if is_theirs && used.end <= now && self.may_write(now, client, USED_BYTES) {
            self.journal.note(now, &BrokerLogLine::Used(used));
        }
    }

    /// Keeps the files of the log within their size, and tells the next broker which clients to wait for.
    pub(super) fn write_down(&mut self, now: Nanos) {
        self.journal.keep_size(now, &self.arbiter);
        if !std::mem::take(&mut self.roster_changed) {
            return;
        }
        let served = self.sessions.values().filter(|session| session.pages.is_some() && session.gone.is_none());
        let served = served.map(|session| Known {
            pid: session.peer.pid,
            started: session.started,
            uid: session.peer.uid,
            tasks: session.tasks.clone(),
            threads: self.priority.threads(&session.tasks),
        });
        let missing = self.recovering.iter().flat_map(Recovery::missing);
        let users = self.turns.written(now);
        self.journal.serve(now, served.chain(missing), users);
    }
}

/// A refusal of the arbiter, in the words of the protocol.
pub(super) fn reason(refused: &ArbiterRefused) -> RefusalReason {
    match refused {
        ArbiterRefused::Token(headway_core::decisions::token::TokenRefused::TooManyRequests { .. }) => {
            RefusalReason::Limit
        }
        ArbiterRefused::Token(headway_core::decisions::token::TokenRefused::NoGpu { .. }) => RefusalReason::NoGpu,
        ArbiterRefused::Token(_) => RefusalReason::Busy,
        ArbiterRefused::UnknownTask { .. } => RefusalReason::NotYours,
        _ => RefusalReason::Operation,
    }
}
