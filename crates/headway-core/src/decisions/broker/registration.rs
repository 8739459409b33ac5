//! Control messages: the identity of a client, what it registers, and what it held before the broker was started again.

use super::engines::unknown_use;
use super::limits::{REQUEST_BYTES, declared};
use super::messages::{Action, ClientProcess, HeldToken, Reply, ResumedTask, Slot, TASKS_MAX, TaskShape};
use super::{Book, BookTask, BrokerClient, EnginePhase, EngineRequest, OpenRequest};
use crate::decisions::engine_lock::{EngineRole, LockId};
use crate::decisions::sharing::{
    ArbiterInput, ArbiterRefused, ClientId, ClusterId, GpuId, JobId, JobPriority, TaskId, TaskParameters,
};
use crate::decisions::token::TokenParameters;
use crate::units::Nanos;

/// Parts of a task at most.
const SEGMENTS_MAX: usize = 1_024;

const WROTE_TOO_MUCH: &str = "this user has written too much to the log in too short a time; ask again later";

/// Engines of a token's GPU that its job has in use.
fn engines_in_use(held: &HeldToken) -> impl Iterator<Item = EngineRole> {
    let engines = [EngineRole::Execute, EngineRole::In, EngineRole::Out];
    engines.into_iter().zip(held.locks).filter(|(_, used)| *used).map(|(engine, _)| engine)
}

impl Book {
    pub(super) fn reply(&mut self, client: ClientId, reply: Reply) {
        self.actions.push_back(Action::Reply { client, reply });
    }

    pub(super) fn reply_done(&mut self, client: ClientId, done: Result<(), String>) {
        self.reply(client, done.map_or_else(|reason| Reply::Refused { reason }, |()| Reply::Done));
    }

    /// Charges a message to the log budget of its user. If the budget is spent, the client gets a refusal and the answer is `false`.
    pub(super) fn may_change(&mut self, now: Nanos, client: ClientId, bytes: u64) -> bool {
        if !self.is_served(client) {
            return false;
        }
        let may = self.may_write(now, self.account_of(client), bytes.saturating_add(REQUEST_BYTES));
        if !may {
            self.reply(client, Reply::Refused { reason: WROTE_TOO_MUCH.to_owned() });
        }
        may
    }

    // Clients.

    pub(super) fn greet(
        &mut self,
        now: Nanos,
        client: ClientId,
        process: ClientProcess,
        name: &str,
        resumed: &[ResumedTask],
        bytes: u64,
    ) -> bool {
        // All claims are checked before one is accepted: a refused greeting changes nothing.
        let checked = self
            .check_greeting(client, process)
            .and_then(|()| (0..resumed.len()).try_for_each(|at| self.check_claim(process, resumed, at)));
        if let Err(reason) = checked {
            self.reply(client, Reply::Refused { reason });
            return false;
        }
        if !self.may_write(now, process.account, bytes.saturating_add(REQUEST_BYTES)) {
            self.reply(client, Reply::Refused { reason: WROTE_TOO_MUCH.to_owned() });
            return false;
        }
        self.clients.insert(client, BrokerClient { process, name: name.to_owned(), tasks: Vec::new(), gone: None });
        let back = resumed.iter().try_for_each(|task| self.resume(now, client, task));
        if let Err(reason) = back {
            self.reply(client, Reply::Refused { reason });
            self.undo_greeting(now, client);
            return true;
        }
        if let Some(recovery) = &mut self.recovery {
            recovery.is_back(process.pid);
        }
        self.actions.push_back(Action::RecordClients);
        self.reply(client, Reply::Welcome);
        true
    }

    fn check_greeting(&self, client: ClientId, process: ClientProcess) -> Result<(), String> {
        if self.clients.contains_key(&client) {
            return Err("this connection has said who it is already".to_owned());
        }
        if !self.clients_of(process.account).has_room_for(1) {
            return Err("this user has as many clients as the broker allows; end one of them".to_owned());
        }
        if process.pid == 0 {
            let text = "the broker does not see this process, which is in another PID namespace, and could not wait for its \
                        end; start the broker where all clients are seen, as outside of containers";
            return Err(text.to_owned());
        }
        Ok(())
    }

    // Tasks.

    pub(super) fn handle_register(&mut self, now: Nanos, client: ClientId, shape: &TaskShape, bytes: u64) -> bool {
        if !self.may_change(now, client, bytes) {
            return false;
        }
        let reply = match self.register(now, client, shape, None) {
            Ok(task) => Reply::Registered { task },
            Err(reason) => Reply::Refused { reason },
        };
        self.reply(client, reply);
        true
    }

    fn register(
        &mut self,
        now: Nanos,
        client: ClientId,
        shape: &TaskShape,
        id: Option<TaskId>,
    ) -> Result<TaskId, String> {
        let known = self.clients.get(&client).ok_or("the client is gone")?;
        if known.tasks.len() >= TASKS_MAX || shape.segments.len() > SEGMENTS_MAX {
            return Err(format!("at most {TASKS_MAX} tasks a client and {SEGMENTS_MAX} segments a task"));
        }
        if self.flows.has(client) {
            return Err("a connection has tasks or flows; register tasks on another one".to_owned());
        }
        if shape.period == Nanos::ZERO || shape.deadline == Nanos::ZERO {
            return Err("period and deadline must be above zero".to_owned());
        }
        self.admit(now, client, shape, id)?;
        let id = id.unwrap_or_else(|| self.next_task_id());
        let input = ArbiterInput::Register(TaskParameters {
            id,
            client,
            cluster: shape.cluster,
            period: shape.period,
            deadline: shape.deadline,
            state: shape.state,
            segments: shape.segments.clone(),
        });
        self.feed(now, &input).map_err(|error| error.to_string())?;
        let task = BookTask {
            client,
            name: shape.name.clone(),
            cluster: shape.cluster,
            period: shape.period,
            deadline: shape.deadline,
            declared: declared(shape),
            segments: shape.segments.len(),
            has_thread: shape.thread.is_some(),
            last_release: None,
            open: None,
        };
        self.tasks.insert(id, task);
        if let Some(known) = self.clients.get_mut(&client) {
            known.tasks.push(id);
        }
        self.actions.extend(shape.thread.map(|thread| Action::Follow { client, task: id, thread }));
        self.actions.push_back(Action::RecordClients);
        Ok(id)
    }

    /// A number that no task has, nor had before the broker was started again.
    fn next_task_id(&mut self) -> TaskId {
        loop {
            self.next_task = self.next_task.wrapping_add(1);
            let id = TaskId(self.next_task);
            let was_there = self.recovery.as_ref().is_some_and(|recovery| recovery.has(id));
            if !was_there && !self.tasks.contains_key(&id) {
                return id;
            }
        }
    }

    pub(super) fn handle_withdraw(&mut self, now: Nanos, client: ClientId, task: TaskId, bytes: u64) -> bool {
        if !self.may_change(now, client, bytes) {
            return false;
        }
        let done = self.withdraw(now, client, task);
        self.reply_done(client, done);
        true
    }

    fn withdraw(&mut self, now: Nanos, client: ClientId, task: TaskId) -> Result<(), String> {
        let known = self.tasks.get(&task).filter(|known| known.client == client);
        let known = known.ok_or_else(|| format!("task {} is not this client's", task.0))?;
        // The arbiter does not know of a request that waits for its user's turn.
        if known.open.is_some() {
            return Err(ArbiterRefused::TaskBusy { task }.to_string());
        }
        self.feed(now, &ArbiterInput::Withdraw { task }).map_err(|error| error.to_string())?;
        self.forget_task(task);
        if let Some(known) = self.clients.get_mut(&client) {
            known.tasks.retain(|known| *known != task);
        }
        self.actions.push_back(Action::RecordClients);
        Ok(())
    }

    // GPUs.

    /// A client has met an error of a GPU: a hint, to be looked at.
    pub(super) fn handle_fault(&mut self, now: Nanos, client: ClientId, gpu: GpuId, bytes: u64) -> bool {
        if !self.may_change(now, client, bytes) {
            return false;
        }
        if self.gpus.contains(&gpu) && !self.lost.contains(&gpu) {
            *self.faults.entry(gpu).or_insert(0) += 1;
            self.actions.push_back(Action::Probe { gpu });
        }
        self.reply(client, Reply::Done);
        true
    }

    /// A GPU is lost. Its holders are told, and the others share the remaining GPUs.
    pub(super) fn handle_gpu_lost(&mut self, now: Nanos, client: Option<ClientId>, gpu: GpuId) -> bool {
        let may = client.is_none_or(|client| self.is_owner(client));
        let is_new = may && self.feed(now, &ArbiterInput::GpuLost { gpu }).is_ok();
        if is_new {
            self.lost.insert(gpu);
            self.take_all_turns(now);
            // Whoever hears that it is done finds no engine of the GPU leased any more.
            self.settle_leases(false);
        }
        if let Some(client) = client {
            let done = match may {
                true if is_new => Ok(()),
                true => Err(format!("GPU {} is not shared here, or lost already", gpu.0)),
                false => Err("only the user who runs the broker gives GPUs up".to_owned()),
            };
            self.reply_done(client, done);
        }
        is_new
    }

    pub(super) fn reconfigure(
        &mut self,
        now: Nanos,
        client: ClientId,
        cluster: ClusterId,
        tokens: TokenParameters,
    ) -> bool {
        if !self.is_owner(client) {
            let reason = "only the user who runs the broker reconfigures it".to_owned();
            self.reply(client, Reply::Refused { reason });
            return false;
        }
        let done = self.feed(now, &ArbiterInput::Reconfigure { cluster, tokens });
        self.take_all_turns(now);
        self.reply_done(client, done.map_err(|error| error.to_string()));
        true
    }

    // Former clients.

    /// Whether a process may come back with the task at this place, and what it says that it holds, in addition to those before it.
    fn check_claim(&self, process: ClientProcess, resumed: &[ResumedTask], at: usize) -> Result<(), String> {
        let Some(recovery) = &self.recovery else {
            return Err("too late: the broker no longer waits for the clients of its predecessor".to_owned());
        };
        let (ResumedTask { id, shape, held }, others) = (&resumed[at], &resumed[..at]);
        recovery.may_have(process, *id, shape.cluster, held.as_ref())?;
        if self.tasks.contains_key(id) || others.iter().any(|other| other.id == *id) {
            return Err(ArbiterRefused::TaskExists { task: *id }.to_string());
        }
        let Some(held) = held else { return Ok(()) };
        let (gpu, token) = (held.gpu, held.token);
        let locks = self.locks_of_gpu(gpu);
        for engine in engines_in_use(held) {
            let lock = LockId { gpu, engine };
            if !self.gpus.contains(&gpu) || !locks.contains(&lock) {
                return Err(format!("GPU {} has no lock {}", gpu.0, engine as u32));
            }
            recovery.may_use(lock, JobId { task: *id, job: held.job }, resumed)?;
        }
        if engines_in_use(held).count() > 1 {
            return Err(
                "a task comes back with one engine in use at most; finish the others and greet again".to_owned()
            );
        }
        match self.arbiter.tokens(shape.cluster).and_then(|tokens| tokens.gpu(token)) {
            Some(there) if there == gpu => Ok(()),
            _ => Err(format!("token {} is not one of GPU {}", token.0, gpu.0)),
        }
    }

    /// A task from before the broker was started again, with the token that it holds; its claim was checked.
    fn resume(&mut self, now: Nanos, client: ClientId, resumed: &ResumedTask) -> Result<(), String> {
        let ResumedTask { id, shape, held } = resumed;
        self.register(now, client, shape, Some(*id))?;
        held.as_ref().map_or(Ok(()), |held| self.adopt(now, *id, shape.deadline, held))
    }

    fn adopt(&mut self, now: Nanos, id: TaskId, deadline: Nanos, held: &HeldToken) -> Result<(), String> {
        let job = JobId { task: id, job: held.job };
        // As of a request: no job is due before it asks, and none is released later.
        let release = held.release.clamp(now.saturating_sub(deadline), now);
        let key = JobPriority { deadline: release.saturating_add(deadline), release, job };
        let slot = Slot { number: held.slot, generation: held.generation };
        if let Some(task) = self.tasks.get_mut(&id) {
            task.last_release = Some(release);
            task.open = Some(OpenRequest { entered: true, ..OpenRequest::new(key, slot, now) });
        }
        self.feed_held(now, &ArbiterInput::Adopt { key, token: held.token }).map_err(|error| error.to_string())?;
        for engine in engines_in_use(held) {
            let operation = unknown_use(engine, self.parameters.arbiter.engines);
            let locks = vec![LockId { gpu: held.gpu, engine }];
            if let Some(open) = self.open_mut(job) {
                open.engines = Some(EngineRequest { slot: None, locks, operation, phase: EnginePhase::Waits });
            }
            self.feed_held(now, &ArbiterInput::Acquire { job, operation }).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}
