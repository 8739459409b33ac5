//! Control messages: the identity of a client, what it registers, and what it held before the broker was started again.

use std::os::fd::AsFd;

use headway_core::decisions::engine_lock::{EngineWork, LockedOperation};
use headway_core::decisions::sharing::log::{BrokerLogLine, TaskLine};
use headway_core::decisions::sharing::{
    ArbiterInput, ArbiterRefused, ClientId, JobId, JobPriority, JobSegment, TaskId, TaskParameters,
};
use headway_core::units::{Bytes, Nanos};
use headway_os::ipc::Words;

use super::limits::{REQUEST_BYTES, is_trusted};
use super::open::{Engines, Open, Slot, Task};
use super::pages::Pages;
use super::state::BrokerState;
use crate::layout::{ENGINES, GENERATIONS, SLOTS, TASKS_MAX};
use crate::message::{FromBroker, FromClient, HeldToken, ResumedTask, TaskShape, VERSION, Welcome};
use crate::text;

/// Parts of a task at most.
const SEGMENTS_MAX: usize = 1_024;

impl BrokerState {
    /// Answers one message; `false` if the client must be cut off.
    pub(super) fn message(&mut self, now: Nanos, client: ClientId, text: &[u8], notice: &Words) -> bool {
        let Ok(message) = serde_json::from_slice::<FromClient>(text) else { return false };
        let greeted = self.is_greeted(client);
        let writes =
            matches!(message, FromClient::Register(_) | FromClient::Withdraw { .. } | FromClient::Fault { .. });
        if greeted && writes && !self.may_write(now, client, text.len() as u64 + REQUEST_BYTES) {
            let reason = "this user has written too much to the log in too short a time; ask again later".to_owned();
            return self.sessions.get(&client).is_some_and(|session| session.send(&FromBroker::Refused { reason }));
        }
        let answer = match message {
            FromClient::Hello { version, name, resumed } if !greeted => {
                return self.hello(now, client, version, &name, resumed, notice);
            }
            FromClient::Status => FromBroker::Status(Box::new(self.status(now, client))),
            FromClient::Register(shape) if greeted => match self.register(now, client, shape, None) {
                Ok(task) => FromBroker::Registered { task },
                Err(reason) => FromBroker::Refused { reason },
            },
            FromClient::Withdraw { task } if greeted => {
                self.catch_up(now, client, true);
                self.withdraw(now, client, task)
            }
            FromClient::Fault { gpu } if greeted => {
                self.fault(now, client, gpu);
                FromBroker::Done
            }
            FromClient::Lost { gpu } if greeted => match self.is_owner(client) {
                true if self.lose(now, gpu) => FromBroker::Done,
                true => FromBroker::Refused { reason: format!("GPU {} is not shared here, or lost already", gpu.0) },
                false => FromBroker::Refused { reason: "only the user who runs the broker gives GPUs up".to_owned() },
            },
            FromClient::Reconfigure { cluster, tokens } if greeted => {
                if self.is_owner(client) {
                    let done = self.feed(now, ArbiterInput::Reconfigure { cluster, tokens });
                    self.take_all_turns(now);
                    done.map_or_else(refused, |()| FromBroker::Done)
                } else {
                    FromBroker::Refused { reason: "only the user who runs the broker reconfigures it".to_owned() }
                }
            }
            _ => return false,
        };
        // The broker does not wait for a client that does not read its answers: it cuts the client off.
        self.sessions.get(&client).is_some_and(|session| session.send(&answer))
    }

    pub(super) fn is_owner(&self, client: ClientId) -> bool {
        self.sessions.get(&client).is_some_and(|session| is_trusted(session.peer.uid))
    }

    fn hello(
        &mut self,
        now: Nanos,
        client: ClientId,
        version: u32,
        name: &str,
        resumed: Vec<ResumedTask>,
        notice: &Words,
    ) -> bool {
        let refused = self.check_greeting(client, version, name);
        let Some(session) = self.sessions.get_mut(&client) else { return false };
        if let Err(reason) = refused {
            session.send(&FromBroker::Refused { reason });
            return false;
        }
        let Ok(pages) = Pages::new() else {
            session.send(&FromBroker::Refused { reason: "no memory or descriptors are left".to_owned() });
            return false;
        };
        session.pages = Some(pages);
        session.name = text::shown(name);
        // All claims are checked before one is accepted: a refused greeting changes nothing.
        let checked = (0..resumed.len()).try_for_each(|at| self.check_claim(client, &resumed[at], &resumed[..at]));
        let back = checked.and_then(|()| resumed.into_iter().try_for_each(|task| self.resume(now, client, task)));
        if let Err(reason) = back {
            if let Some(session) = self.sessions.get(&client) {
                session.send(&FromBroker::Refused { reason });
            }
            self.undo(now, client);
            return false;
        }
        let Some(session) = self.sessions.get(&client) else { return false };
        self.roster_changed = true;
        if let Some(recovery) = &mut self.recovering {
            recovery.is_back(session.peer.pid);
        }
        let Some(pages) = &session.pages else { return false };
        let welcome = Welcome {
            client,
            epoch: self.epoch,
            gpus: self.gpus.clone(),
            engines: self.engines,
            log: self.journal.has_log(),
        };
        let Ok(text) = serde_json::to_vec(&FromBroker::Welcome(welcome)) else { return false };
        let [page, answers, bell] = pages.descriptors();
        session.socket.send(&text, &[page, answers, notice.as_fd(), bell]).is_ok()
    }

    fn check_greeting(&self, client: ClientId, version: u32, name: &str) -> Result<(), String> {
        let session = self.sessions.get(&client).ok_or("the client is gone")?;
        let peer = session.peer;
        if !self.has_room(session.account) {
            return Err("this user has as many clients as the broker allows; end one of them".to_owned());
        }
        if version != VERSION {
            return Err(format!("this broker speaks version {VERSION}, the client {version}; use the same of both"));
        }
        if peer.pid == 0 {
            let text = "the broker does not see this process, which is in another PID namespace, and could not wait for its \
                        end; start the broker where all clients are seen, as outside of containers";
            return Err(text.to_owned());
        }
        text::check("the client", name)
    }

    fn register(
        &mut self,
        now: Nanos,
        client: ClientId,
        mut shape: TaskShape,
        id: Option<TaskId>,
    ) -> Result<TaskId, String> {
        let session = self.sessions.get(&client).ok_or("the client is gone")?;
        let (uid, pid) = (session.peer.uid, session.peer.pid);
        if session.tasks.len() >= TASKS_MAX || shape.segments.len() > SEGMENTS_MAX {
            return Err(format!("at most {TASKS_MAX} tasks a client and {SEGMENTS_MAX} segments a task"));
        }
        if shape.period == Nanos::ZERO || shape.deadline == Nanos::ZERO {
            return Err("period and deadline must be above zero".to_owned());
        }
        text::check("the task", &shape.name)?;
        shape.name = text::shown(&shape.name);
        for segment in &mut shape.segments {
            if let JobSegment::Execute { kernel, .. } = segment {
                text::check("a kernel", kernel)?;
                *kernel = text::shown(kernel);
            }
        }
        self.admit_user(client, &shape, id)?;
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
        self.feed(now, input).map_err(|error| error.to_string())?;
        if let Some(thread) = shape.thread {
            self.priority.manage(id, pid, thread, uid);
        }
        let task = id;
        let name = shape.name.clone();
        self.journal.note(now, &BrokerLogLine::Task(TaskLine { now, task, name, client, pid, uid }));
        self.tasks.insert(id, Task { client, shape, last_release: None, open: None });
        if let Some(session) = self.sessions.get_mut(&client) {
            session.tasks.push(id);
        }
        self.roster_changed = true;
        Ok(id)
    }

    /// A number that no task has, nor had before the broker was started again.
    fn next_task_id(&mut self) -> TaskId {
        loop {
            self.next_task = self.next_task.wrapping_add(1);
            let id = TaskId(self.next_task);
            let was_there = self.recovering.as_ref().is_some_and(|recovery| recovery.has(id));
            if !was_there && !self.tasks.contains_key(&id) {
                return id;
            }
        }
    }

    fn withdraw(&mut self, now: Nanos, client: ClientId, task: TaskId) -> FromBroker {
        if self.tasks.get(&task).is_none_or(|known| known.client != client) {
            return FromBroker::Refused { reason: format!("task {} is not this client's", task.0) };
        }
        // The arbiter does not know of a request that waits for its user's turn.
        if self.tasks.get(&task).is_some_and(|known| known.open.is_some()) {
            return refused(ArbiterRefused::TaskBusy { task });
        }
        if let Err(error) = self.feed(now, ArbiterInput::Withdraw { task }) {
            return refused(error);
        }
        self.priority.forget(task);
        self.tasks.remove(&task);
        if let Some(session) = self.sessions.get_mut(&client) {
            session.tasks.retain(|known| *known != task);
        }
        self.roster_changed = true;
        FromBroker::Done
    }

    /// Whether `client` may come back with this task and the claim about what it holds, in addition to the `others`.
    fn check_claim(&self, client: ClientId, claim: &ResumedTask, others: &[ResumedTask]) -> Result<(), String> {
        let Some(recovery) = &self.recovering else {
            return Err("too late: the broker no longer waits for the clients of its predecessor".to_owned());
        };
        let ResumedTask { id, shape, held } = claim;
        let session = self.sessions.get(&client).ok_or("the client is gone")?;
        let peer = session.peer;
        recovery.may_have(peer.pid, session.started, peer.uid, *id, shape.cluster, held.as_ref())?;
        if self.tasks.contains_key(id) || others.iter().any(|other| other.id == *id) {
            return Err(ArbiterRefused::TaskExists { task: *id }.to_string());
        }
        let Some(HeldToken { job, gpu, token, slot, generation, locks, .. }) = held else { return Ok(()) };
        for (engine, _) in locks.iter().enumerate().filter(|(_, used)| **used) {
            let known = self.engines.filter(|engines| engine < 2 || engines.copy_engines > 1);
            let lock = self.position(*gpu).filter(|_| known.is_some()).map(|at| self.lock_id(at * ENGINES + engine));
            let Some(lock) = lock else { return Err(format!("GPU {} has no lock {engine}", gpu.0)) };
            recovery.may_use(lock, JobId { task: *id, job: *job })?;
        }
        if locks.iter().filter(|used| **used).count() > 1 {
            return Err(
                "a task comes back with one engine in use at most; finish the others and greet again".to_owned()
            );
        }
        let is_token_slot = slot.is_multiple_of(2) && (*slot as usize) < SLOTS;
        if !is_token_slot || *generation == 0 || *generation > GENERATIONS {
            return Err(format!("slot {slot} with generation {generation} is no slot of a token"));
        }
        if others.iter().any(|other| other.held.as_ref().is_some_and(|held| held.slot == *slot)) {
            return Err(format!("slot {slot} is another task's"));
        }
        match self.arbiter.tokens(shape.cluster).and_then(|tokens| tokens.gpu(*token)) {
            Some(there) if there == *gpu => Ok(()),
            _ => Err(format!("token {} is not one of GPU {}", token.0, gpu.0)),
        }
    }

    /// A task from before the broker was started again, with the token that it holds; its claim was checked.
    fn resume(&mut self, now: Nanos, client: ClientId, resumed: ResumedTask) -> Result<(), String> {
        let ResumedTask { id, shape, held } = resumed;
        let deadline = shape.deadline;
        self.register(now, client, shape, Some(id))?;
        held.map_or(Ok(()), |held| self.adopt(now, id, deadline, held))
    }

    fn adopt(&mut self, now: Nanos, id: TaskId, deadline: Nanos, held: HeldToken) -> Result<(), String> {
        let job = JobId { task: id, job: held.job };
        // As of a request: no job is due before it asks, and none is released later.
        let release = held.release.clamp(now.saturating_sub(deadline), now);
        let key = JobPriority { deadline: release.saturating_add(deadline), release, job };
        let slot = Slot { number: held.slot, generation: held.generation };
        if let Some(task) = self.tasks.get_mut(&id) {
            task.last_release = Some(release);
            task.open = Some(Open { entered: true, ..Open::new(key, slot, now) });
        }
        self.feed(now, ArbiterInput::Adopt { key, token: held.token }).map_err(|error| error.to_string())?;
        let works = [EngineWork::Execute, EngineWork::CopyIn, EngineWork::CopyOut];
        let first = self.gpus.iter().position(|gpu| *gpu == held.gpu).unwrap_or(0) * ENGINES;
        for ((engine, used), work) in held.locks.iter().enumerate().zip(works) {
            if !used {
                continue;
            }
            if let Some(open) = self.open_mut(job).filter(|open| open.engines.is_none()) {
                open.engines = Some(Engines { slot: None, locks: vec![first + engine], held: None });
            }
            let bytes = self.engines.and_then(|engines| engines.chunk_bytes).unwrap_or(Bytes(u64::MAX));
            let bytes = if work == EngineWork::Execute { Bytes(0) } else { bytes };
            let operation = LockedOperation { work, bytes, predicted: Nanos::ZERO, budget: Nanos::ZERO };
            self.feed(now, ArbiterInput::Acquire { job, operation }).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

fn refused(error: impl std::fmt::Display) -> FromBroker {
    FromBroker::Refused { reason: error.to_string() }
}
