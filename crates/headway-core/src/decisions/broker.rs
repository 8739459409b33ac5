//! What a broker decides for the users and processes that share GPUs.
//!
//! [`Book`] is one state machine without I/O: clients, their tasks and open requests, limits and turns of users, leases of engines, the
//! watchdog, what a client that is gone still holds, and the claims of clients of the broker before. In front of the
//! [`Arbiter`] it decides which requests that sees, and when. The broker's server has the sockets, the shared pages, the record and the
//! log, and the priorities of threads.

mod admission;
mod departure;
mod engines;
mod flows;
mod limits;
pub mod log;
mod messages;
pub mod pace;
mod places;
mod queue;
mod recovery;
mod registration;
mod requests;
mod tasks;
#[cfg(test)]
mod tests;
mod turns;
mod usage;
mod watchdog;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use crate::decisions::engine_lock::{self, LockId};
use crate::decisions::sharing::{self, Arbiter, ArbiterMemory, ClientId, ClusterId, GpuId, JobId, TaskId, TokenId};
use crate::units::Nanos;

pub use flows::ProgramFlow;
use limits::Accounts;
pub use messages::{
    Action, BookParameters, BrokerLimits, ClientProcess, FlowTerms, HeldToken, Input, KnownProcess, LeaseInUse,
    ProgramEngine, RefusalReason, Reply, ResumedTask, Roster, Slot, TASKS_MAX, TaskShape,
};
pub use places::leaves_room;
use recovery::Recovery;
pub use tasks::{BookTask, BrokerClient, ClientEnd, EnginePhase, EngineRequest, GrantedToken, OpenRequest};
pub use turns::UserAccount;
use turns::{Turns, longest_hold};
pub use usage::{Counts, LimitUse, UserStatus};

/// A lock that a client may take without asking.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Lease {
    client: ClientId,
    /// The server was told to end it, and has not said yet whether the lock is in use.
    is_ending: bool,
}

/// The state machine of a broker.
///
/// The server feeds inputs with [`Book::handle`], and after each takes every [`Book::poll_action`] and does it, before the next input
/// other than the answers to these actions. It calls again with [`Input::Timeout`] at [`Book::poll_timeout`]. The same inputs
/// give the same actions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Book {
    parameters: BookParameters,
    /// GPUs of all clusters.
    gpus: Vec<GpuId>,
    arbiter: Arbiter,
    #[serde(with = "crate::decisions::pairs")]
    clients: BTreeMap<ClientId, BrokerClient>,
    #[serde(with = "crate::decisions::pairs")]
    tasks: BTreeMap<TaskId, BookTask>,
    #[serde(with = "crate::decisions::pairs")]
    leases: BTreeMap<LockId, Lease>,
    accounts: Accounts,
    flows: flows::Programs,
    turns: Turns,
    /// Whom nothing is granted before, after a start that others survived.
    recovery: Option<Recovery>,
    /// Until then nobody is cut off for holding something for too long, since the broker was late itself.
    excused_until: Nanos,
    next_task: u32,
    lost: BTreeSet<GpuId>,
    /// Tasks for which there is no room since a GPU was lost.
    without_room: BTreeSet<TaskId>,
    /// How often clients reported errors of each GPU.
    #[serde(with = "crate::decisions::pairs")]
    faults: BTreeMap<GpuId, u64>,
    /// Grants that clients get only after the journal has written them.
    withheld: Vec<sharing::ArbiterAction>,
    /// Engines could be leased, and are not before the journal has written who gave theirs back. No record has what is used under a lease, so
    /// the record must not name an earlier user then.
    withholds_leases: bool,
    now: Nanos,
    #[serde(skip)]
    counts: Counts,
    #[serde(skip)]
    actions: VecDeque<Action>,
}

impl Book {
    /// A book without clients. `memory` is what the arbiter before knew, and counts only if processes of `before` live.
    ///
    /// # Errors
    /// [`sharing::ArbiterRefused`] if the parameters of the arbiter cannot work.
    pub fn new(
        parameters: BookParameters,
        before: Roster,
        memory: Option<&ArbiterMemory>,
        now: Nanos,
    ) -> Result<Self, sharing::ArbiterRefused> {
        let mut arbiter = Arbiter::new(parameters.arbiter.clone())?;
        let clusters = &parameters.arbiter.clusters;
        let gpus = clusters.iter().flat_map(|cluster| cluster.gpus.clone()).collect();
        let tokens_per_gpu = clusters.iter().map(|cluster| cluster.tokens.per_gpu).max().unwrap_or(1);
        let longest = longest_hold(tokens_per_gpu, parameters.watchdog, parameters.drain);
        let turns = Turns::new(parameters.watchdog, longest, before.users.clone(), now);
        let recovery = Recovery::begin(before, now.saturating_add(parameters.recover));
        let mut lost = BTreeSet::new();
        // Without former clients this concerns no client, and lost GPUs may be back.
        if let Some(memory) = memory.filter(|_| recovery.is_some()) {
            arbiter.recall(now, memory);
            lost.extend(memory.lost.iter().copied());
        }
        Ok(Self {
            gpus,
            arbiter,
            clients: BTreeMap::new(),
            tasks: BTreeMap::new(),
            leases: BTreeMap::new(),
            accounts: Accounts::default(),
            flows: flows::Programs::default(),
            turns,
            recovery,
            excused_until: Nanos::ZERO,
            next_task: parameters.first_task,
            lost,
            without_room: BTreeSet::new(),
            faults: BTreeMap::new(),
            withheld: Vec::new(),
            withholds_leases: false,
            now,
            counts: Counts::default(),
            actions: VecDeque::new(),
            parameters,
        })
    }

    /// Takes an input; whether it changed anything. One that did not was refused, or came too late to matter.
    pub fn handle(&mut self, now: Nanos, input: &Input) -> bool {
        let now = now.max(self.now);
        let has_changed = self.take(now, input);
        if !has_changed {
            return false;
        }
        self.now = now;
        self.end_recovery(now);
        self.settle_leases(!self.parameters.must_remember || matches!(input, Input::Written));
        if self.turns.are_due_to_be_written(now) {
            self.turns.set_written(now);
            self.actions.push_back(Action::RecordClients);
        }
        true
    }

    fn take(&mut self, now: Nanos, input: &Input) -> bool {
        match input {
            Input::Greeting { client, process, name, resumed, bytes } => {
                self.greet(now, *client, *process, name, resumed, *bytes)
            }
            Input::Register { client, shape, bytes } => self.handle_register(now, *client, shape, *bytes),
            Input::Withdraw { client, task, bytes } => self.handle_withdraw(now, *client, *task, *bytes),
            Input::Fault { client, gpu, bytes } => self.handle_fault(now, *client, *gpu, *bytes),
            Input::OpenFlow { client, engines, contract, bytes } => {
                self.open_flow(now, *client, engines, contract, *bytes)
            }
            Input::CloseFlow { client, flow, bytes } => self.close_flow(now, *client, *flow, *bytes),
            Input::TermsTaken { client, version } => self.take_terms(now, *client, *version),
            Input::Reconfigure { client, cluster, tokens } => self.reconfigure(now, *client, *cluster, *tokens),
            Input::GpuLost { client, gpu } => self.handle_gpu_lost(now, *client, *gpu),
            Input::Request { client, slot, job, release, acquisition } => {
                self.request(now, *client, *slot, *job, *release, *acquisition)
            }
            Input::Release { client, job, outcome } => self.release(now, *client, *job, *outcome),
            Input::Abort { client, job } => self.abort(now, *client, *job),
            Input::Acquire { client, slot, job, operation } => self.acquire(now, *client, *slot, *job, *operation),
            Input::Used { client, job, end, .. } => self.used(now, *client, *job, *end),
            Input::Returned { job } => self.returned(now, *job),
            Input::LeasesEnded { client, in_use } => self.leases_ended(now, *client, in_use),
            Input::Left { client } => self.leave(now, *client),
            Input::Broke { client } => self.cut(now, *client, false),
            Input::ProcessEnded { client } => self.process_ended(now, *client),
            Input::FormerProcessEnded { pid } => {
                self.recovery.as_mut().is_some_and(|recovery| recovery.has_ended(*pid))
            }
            Input::Late { by } => self.excuse(now, *by),
            Input::Written => self.tell_withheld(now),
            Input::Timeout => self.keep_time(now),
        }
    }

    /// The next thing the server must do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    // The arbiter.

    /// Puts an input before the arbiter and does what it says; grants only once they are written down, where the broker must remember.
    fn feed(&mut self, now: Nanos, input: &sharing::ArbiterInput) -> Result<(), sharing::ArbiterRefused> {
        self.put(now, input, self.parameters.must_remember)
    }

    /// Puts an input before the arbiter by which a job gets what it has already: by the record, or by a lease.
    fn feed_held(&mut self, now: Nanos, input: &sharing::ArbiterInput) -> Result<(), sharing::ArbiterRefused> {
        self.put(now, input, false)
    }

    fn put(
        &mut self,
        now: Nanos,
        input: &sharing::ArbiterInput,
        withholds: bool,
    ) -> Result<(), sharing::ArbiterRefused> {
        let result = self.arbiter.handle(now, input);
        let actions: Vec<sharing::ArbiterAction> = std::iter::from_fn(|| self.arbiter.poll_action()).collect();
        for action in actions {
            let is_grant = matches!(action, sharing::ArbiterAction::Grant { .. } | sharing::ArbiterAction::Run { .. });
            if is_grant && withholds {
                self.withheld.push(action);
            } else {
                self.act(now, action);
            }
        }
        self.take_events(now);
        result
    }

    fn act(&mut self, now: Nanos, action: sharing::ArbiterAction) {
        match action {
            sharing::ArbiterAction::Grant { job, gpu, token, from } => {
                let Some(client) = self.tasks.get(&job.task).map(|task| task.client) else { return };
                let Some(open) = self.open_mut(job) else { return };
                (open.granted, open.from, open.since) = (Some(GrantedToken { gpu, token }), from, now);
                let (slot, key) = (open.slot, open.key);
                self.counts.tokens += 1;
                self.actions.push_back(Action::Grant { client, slot, key, gpu, token, from });
                let effective = self.arbiter.effective_key(job.task).unwrap_or(key);
                self.prioritise(job.task, Some(effective));
            }
            sharing::ArbiterAction::Run { job, .. } => {
                if let Some(open) = self.open_mut(job)
                    && let Some(asked) = open.asked.take()
                {
                    open.waited = open.waited.saturating_add(now.saturating_sub(asked));
                }
                self.run(job);
            }
            sharing::ArbiterAction::Obtained { job, .. } => {
                // The second lock is always wanted at once.
                let _ = self.feed(now, &sharing::ArbiterInput::Next { job });
            }
            sharing::ArbiterAction::SetBoost { job, key } => {
                if self.open_mut(job).is_some_and(|open| open.granted.is_some()) {
                    self.prioritise(job.task, Some(key));
                }
            }
            sharing::ArbiterAction::Revoke { job, gpu } => {
                self.charge_user(now, job);
                self.revoke(job, gpu);
            }
        }
    }

    fn prioritise(&mut self, task: TaskId, key: Option<sharing::JobPriority>) {
        if self.tasks.get(&task).is_some_and(|known| known.has_thread) {
            self.actions.push_back(Action::Prioritise { task, key });
        }
    }

    /// Tells of the grants that waited until they were written down.
    fn tell_withheld(&mut self, now: Nanos) -> bool {
        let withheld = std::mem::take(&mut self.withheld);
        let any = !withheld.is_empty() || self.withholds_leases;
        for action in withheld {
            // A job that has given up meanwhile, or has lost the GPU, gets no answer.
            let stands = match &action {
                sharing::ArbiterAction::Grant { job, .. } => self.holds(*job),
                _ => true,
            };
            if stands {
                self.act(now, action);
            }
        }
        any
    }

    /// Whether a job holds a token, by the arbiter.
    fn holds(&self, job: JobId) -> bool {
        let tokens = self.tasks.get(&job.task).and_then(|task| self.arbiter.tokens(task.cluster));
        tokens.is_some_and(|tokens| tokens.holders().any(|(_, holder)| holder == job))
    }

    fn take_events(&mut self, now: Nanos) {
        let mut overrun = Vec::new();
        while let Some(event) = self.arbiter.poll_event() {
            match event {
                // Of uses that seem long because the broker was late, nothing is known. The token's watchdog goes on.
                sharing::ArbiterEvent::Engine(engine_lock::EngineLockEvent::Overrun { job, .. })
                    if now >= self.excused_until =>
                {
                    overrun.push(job);
                }
                sharing::ArbiterEvent::Inadmissible { task, .. } => {
                    self.without_room.insert(task);
                    self.actions.push_back(Action::WithoutRoom { task });
                }
                sharing::ArbiterEvent::Token { .. } | sharing::ArbiterEvent::Engine(_) => {}
            }
        }
        for job in overrun {
            if let Some(client) = self.tasks.get(&job.task).map(|task| task.client) {
                self.cut(now, client, true);
            }
        }
    }

    // What others may know.

    /// What the server must still do.
    #[must_use]
    pub const fn actions(&self) -> &VecDeque<Action> {
        &self.actions
    }

    /// The jobs that hold tokens, by the arbiter.
    #[must_use]
    pub fn holders(&self) -> BTreeMap<(ClusterId, TokenId), JobId> {
        let ids = self.parameters.arbiter.clusters.iter().map(|cluster| cluster.id);
        let tokens = ids.filter_map(|id| Some((id, self.arbiter.tokens(id)?)));
        tokens.flat_map(|(id, tokens)| tokens.holders().map(move |(token, job)| ((id, token), job))).collect()
    }

    #[must_use]
    pub fn parameters(&self) -> &BookParameters {
        &self.parameters
    }

    /// The GPUs of all clusters.
    #[must_use]
    pub fn gpus(&self) -> &[GpuId] {
        &self.gpus
    }

    #[must_use]
    pub fn arbiter(&self) -> &Arbiter {
        &self.arbiter
    }

    /// Clients, and those that are gone and hold something.
    #[must_use]
    pub fn clients(&self) -> &BTreeMap<ClientId, BrokerClient> {
        &self.clients
    }

    #[must_use]
    pub fn tasks(&self) -> &BTreeMap<TaskId, BookTask> {
        &self.tasks
    }

    #[must_use]
    pub fn lost(&self) -> &BTreeSet<GpuId> {
        &self.lost
    }

    /// Tasks for which there is no room on the GPUs that are left, by what they declare.
    #[must_use]
    pub fn without_room(&self) -> &BTreeSet<TaskId> {
        &self.without_room
    }

    /// How often clients reported errors of a GPU.
    #[must_use]
    pub fn faults(&self, gpu: GpuId) -> u64 {
        self.faults.get(&gpu).copied().unwrap_or(0)
    }

    /// Grants that wait until they are written down; all leases count as one.
    #[must_use]
    pub fn withheld(&self) -> usize {
        self.withheld.len() + usize::from(self.withholds_leases)
    }

    /// What happened since the start.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether a client is served: it has said who it is and is not gone.
    #[must_use]
    pub fn is_served(&self, client: ClientId) -> bool {
        self.clients.get(&client).is_some_and(|client| client.gone.is_none())
    }

    /// Whether clients of the broker before are waited for; nothing is granted meanwhile.
    #[must_use]
    pub const fn is_recovering(&self) -> bool {
        self.recovery.is_some()
    }

    /// Processes of the broker before that live and have not come back.
    pub fn missing(&self) -> impl Iterator<Item = &KnownProcess> {
        self.recovery.iter().flat_map(Recovery::missing)
    }

    /// Whom the next broker must wait for, but for the threads of those that are served.
    #[must_use]
    pub fn served(&self) -> Vec<KnownProcess> {
        let served = self.clients.values().filter(|client| client.gone.is_none()).map(BrokerClient::known);
        served.chain(self.missing().cloned()).collect()
    }

    /// What the next broker must know of users.
    #[must_use]
    pub fn users(&self) -> Vec<UserAccount> {
        self.turns.accounts()
    }
}
