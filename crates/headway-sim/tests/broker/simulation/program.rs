//! Programs that share GPUs through the broker: those that keep to the protocol, those that hang, and those that lie.

use headway_core::decisions::broker::{ClientProcess, HeldToken, Input, Reply, ResumedTask, Slot, TaskShape};
use headway_core::decisions::engine_lock::{EngineRole, EngineWork, LockId, LockedOperation};
use headway_core::decisions::sharing::{ClientId, ClusterId, GpuId, JobId, TaskId, TokenId, TokenOutcome};
use headway_core::units::{Bytes, Nanos};

use super::audit::Audit;
use super::server::Server;
use super::{BrokerRun, Chance, LockWord, Page, Pages, SlotAnswer, WATCHDOG};

/// The longest that a message is on its way.
const MESSAGE: u64 = 5_000;
const TASKS: usize = 3;
/// A program that keeps to the protocol begins nothing more with a token after this time.
const HOLD: u64 = WATCHDOG.0 / 8;
/// A job that has waited for a token for this long gives up.
const PATIENCE: Nanos = Nanos(40 * WATCHDOG.0);
/// Bytes of a message.
const BYTES: u64 = 100;

const TOKEN_SLOT: u32 = 0;
const ENGINE_SLOT: u32 = 1;
const SLOTS: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Character {
    Honest,
    Hangs,
    Lies,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connection {
    None { again_at: Nanos },
    Greeting(ClientId),
    Open(ClientId),
}

#[derive(Clone, Copy, Debug)]
enum EngineUse {
    None,
    Asked { generation: u32 },
    Uses(LockId),
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    job: u64,
    release: Nanos,
    generation: u32,
    since: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct Hold {
    job: u64,
    release: Nanos,
    gpu: GpuId,
    token: TokenId,
    generation: u32,
    engine: EngineUse,
    until: Nanos,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Idle,
    Waits(Wait),
    Holds(Hold),
}

#[derive(Clone, Debug)]
struct ProgramTask {
    id: TaskId,
    shape: TaskShape,
    jobs: u64,
    phase: Phase,
}

pub(super) struct Program {
    pub(super) process: ClientProcess,
    pub(super) is_alive: bool,
    pub(super) comes_back_at: Nanos,
    character: Character,
    connection: Connection,
    /// Whose page it greeted with last.
    last_client: Option<ClientId>,
    tasks: Vec<ProgramTask>,
    /// Waits for the answer to a registration of this shape.
    registers: Option<TaskShape>,
    is_hung: bool,
    /// Whether every broker since it was welcomed found all that mattered on the disk.
    pub(super) is_on_record: bool,
    generation: u32,
}

/// What a program reaches.
pub(super) struct Around<'a> {
    pub(super) now: Nanos,
    pub(super) chance: &'a mut Chance,
    /// `None` while no broker runs.
    pub(super) server: Option<&'a mut Server>,
    pub(super) pages: &'a mut Pages,
    pub(super) audit: &'a mut Audit,
    pub(super) run: &'a mut BrokerRun,
    pub(super) next_client: &'a mut u64,
    pub(super) has_faults: bool,
}

impl Around<'_> {
    /// Sends a message that arrives behind those that were sent before.
    fn send(&mut self, client: ClientId, input: Input) {
        let at = self.now.saturating_add(Nanos(1 + self.chance.below(MESSAGE)));
        let Some(page) = self.pages.get_mut(&client) else { return };
        page.last = page.last.max(at);
        let at = page.last;
        if let Some(server) = &mut self.server {
            server.send(at, client, input);
        }
    }
}

fn role(chance: &mut Chance) -> EngineRole {
    [EngineRole::Execute, EngineRole::In, EngineRole::Out][chance.below(3) as usize]
}

const fn operation(role: EngineRole) -> LockedOperation {
    let work = match role {
        EngineRole::Execute => EngineWork::Execute,
        EngineRole::In => EngineWork::CopyIn,
        EngineRole::Out => EngineWork::CopyOut,
    };
    LockedOperation { work, bytes: Bytes(1), predicted: Nanos::ZERO, budget: Nanos::ZERO }
}

/// The engine that a task has by what its page says.
fn engine_in(page: &Page, task: TaskId, job: u64) -> Option<LockId> {
    let is_its = |word: &LockWord| *word == LockWord::Busy(task) || *word == LockWord::Held(JobId { task, job });
    page.words.iter().find(|(_, word)| is_its(word)).map(|(lock, _)| *lock)
}

impl Program {
    pub(super) fn new(pid: u32, uid: u32, chance: &mut Chance, has_faults: bool, now: Nanos) -> Self {
        let character = match chance.below(6) {
            0 if has_faults => Character::Hangs,
            1 if has_faults => Character::Lies,
            _ => Character::Honest,
        };
        Self {
            process: ClientProcess { pid, uid, account: uid, started: now.0 },
            is_alive: true,
            comes_back_at: Nanos::ZERO,
            character,
            connection: Connection::None { again_at: now },
            last_client: None,
            tasks: Vec::new(),
            registers: None,
            is_hung: false,
            is_on_record: true,
            generation: 0,
        }
    }

    pub(super) fn is_honest(&self) -> bool {
        self.character == Character::Honest
    }

    pub(super) fn lies(&self) -> bool {
        self.character == Character::Lies
    }

    /// Jobs that wait for a token.
    pub(super) fn waiting(&self) -> impl Iterator<Item = JobId> {
        self.tasks.iter().filter(|_| self.is_alive && !self.is_hung).filter_map(|task| match task.phase {
            Phase::Waits(Wait { job, .. }) => Some(JobId { task: task.id, job }),
            _ => None,
        })
    }

    pub(super) fn step(&mut self, around: &mut Around<'_>) -> Result<(), String> {
        match self.connection {
            Connection::None { again_at } if around.now >= again_at => self.greet(around),
            Connection::None { .. } => Ok(()),
            Connection::Greeting(client) => self.hear_welcome(around, client),
            Connection::Open(client) if around.pages.get(&client).is_none_or(|page| page.is_closed) => {
                self.is_hung = false;
                if around.pages.get(&client).is_none_or(|page| page.is_cut) {
                    self.drop_all(around);
                }
                self.connection = Connection::None { again_at: self.later(around) };
                Ok(())
            }
            Connection::Open(_) if self.is_hung => Ok(()),
            Connection::Open(client) => self.work(around, client),
        }
    }

    fn later(&self, around: &mut Around<'_>) -> Nanos {
        around.now.saturating_add(Nanos(around.chance.below(MESSAGE)))
    }

    fn next_generation(&mut self) -> u32 {
        self.generation += 1;
        self.generation
    }

    fn slot(at: usize, slot: u32) -> u32 {
        at as u32 * SLOTS + slot
    }

    // Connections.

    /// Says who it is, and what it holds from the broker before.
    fn greet(&mut self, around: &mut Around<'_>) -> Result<(), String> {
        if around.server.is_none() {
            self.connection = Connection::None { again_at: self.later(around) };
            return Ok(());
        }
        let mut resumed = Vec::new();
        for at in 0..self.tasks.len() {
            let held = self.claim(around, at)?;
            resumed.push(ResumedTask { id: self.tasks[at].id, shape: self.tasks[at].shape.clone(), held });
        }
        *around.next_client += 1;
        let client = ClientId(*around.next_client);
        // The page of the connection before has nothing more to tell.
        if let Some(before) = self.last_client.replace(client) {
            around.pages.remove(&before);
        }
        around.pages.insert(client, Page { last: around.now, ..Page::default() });
        if let Some(server) = &mut around.server {
            server.connect(client, self.process.pid);
        }
        let (process, name) = (self.process, "program".to_owned());
        around.send(client, Input::Greeting { client, process, name, resumed, bytes: BYTES });
        self.connection = Connection::Greeting(client);
        Ok(())
    }

    /// The token and engine that a task has; a liar says something else now and then.
    fn claim(&mut self, around: &mut Around<'_>, at: usize) -> Result<Option<HeldToken>, String> {
        let pid = self.process.pid;
        let lies = self.character == Character::Lies && around.chance.one_in(2);
        let number = Self::slot(at, TOKEN_SLOT);
        let generation = self.generation + 1;
        let task = &mut self.tasks[at];
        if lies {
            let chance = &mut *around.chance;
            let mut locks = [false; 3];
            locks[chance.below(3) as usize] = chance.one_in(2);
            if let Phase::Holds(Hold { job, release, gpu, token, .. }) = task.phase
                && chance.one_in(2)
            {
                // Only the engine is not its own.
                return Ok(Some(HeldToken { job, release, gpu, token, slot: number, generation, locks }));
            }
            let (gpu, token) = (GpuId(chance.below(2) as u32), TokenId(chance.below(4) as u32));
            let job = task.jobs + chance.below(2);
            return Ok(Some(HeldToken { job, release: around.now, gpu, token, slot: number, generation, locks }));
        }
        let Phase::Holds(hold) = &mut task.phase else { return Ok(None) };
        let is_revoked = |page: &Page| page.answers.get(&number) == Some(&(hold.generation, SlotAnswer::Revoked));
        if around.pages.values().any(is_revoked) {
            let hold = *hold;
            task.phase = Phase::Idle;
            self.stop(around, hold);
            return Ok(None);
        }
        // What the broker granted when it ended is found in the page, whether the program had seen it or not.
        let old = around.pages.values().find_map(|page| engine_in(page, task.id, hold.job));
        match (hold.engine, old) {
            (EngineUse::Asked { .. }, Some(lock)) => {
                around.audit.take_engine(pid, lock, around.now)?;
                hold.engine = EngineUse::Uses(lock);
            }
            (EngineUse::Asked { .. }, None) => hold.engine = EngineUse::None,
            _ => {}
        }
        let mut locks = [false; 3];
        if let EngineUse::Uses(lock) = hold.engine {
            locks[lock.engine as usize] = true;
        }
        around.run.resumed += 1;
        let Hold { job, release, gpu, token, .. } = *hold;
        hold.generation = generation;
        Ok(Some(HeldToken { job, release, gpu, token, slot: number, generation, locks }))
    }

    fn hear_welcome(&mut self, around: &mut Around<'_>, client: ClientId) -> Result<(), String> {
        let Some(page) = around.pages.get_mut(&client).filter(|page| !page.is_closed) else {
            self.connection = Connection::None { again_at: self.later(around) };
            return Ok(());
        };
        if page.replies.is_empty() {
            return Ok(());
        }
        match page.replies.remove(0) {
            Reply::Welcome => {
                self.connection = Connection::Open(client);
                self.is_on_record = true;
                self.registers = None;
                self.generation += 1;
                for at in 0..self.tasks.len() {
                    if matches!(self.tasks[at].phase, Phase::Waits(_)) {
                        self.request(around, client, at);
                    }
                }
                Ok(())
            }
            Reply::Refused { reason } => {
                let doubts = ["by its record", "was nobody's", "another process's"];
                let holds = self.tasks.iter().any(|task| matches!(task.phase, Phase::Holds(_)));
                if self.is_honest() && holds && self.is_on_record && doubts.iter().any(|doubt| reason.contains(doubt)) {
                    return Err(format!("process {} tells the truth and is refused: {reason}", self.process.pid));
                }
                self.drop_all(around);
                around.pages.remove(&client);
                self.connection = Connection::None { again_at: around.now.saturating_add(Nanos(20 * MESSAGE)) };
                Ok(())
            }
            other => Err(format!("{other:?} answers a greeting")),
        }
    }

    /// It has lost what it had, and uses it no longer.
    fn drop_all(&mut self, around: &mut Around<'_>) {
        for task in std::mem::take(&mut self.tasks) {
            if let Phase::Holds(hold) = task.phase {
                self.stop(around, hold);
            }
        }
    }

    fn stop(&self, around: &mut Around<'_>, hold: Hold) {
        let pid = self.process.pid;
        if let EngineUse::Uses(lock) = hold.engine {
            around.audit.give_engine(pid, lock);
        }
        around.audit.give_token(pid, hold.gpu, hold.token);
    }

    // Work.

    fn work(&mut self, around: &mut Around<'_>, client: ClientId) -> Result<(), String> {
        let page = around.pages.get_mut(&client).expect("an open connection has a page");
        if !page.replies.is_empty() {
            match (page.replies.remove(0), self.registers.take()) {
                (Reply::Registered { task: id }, Some(shape)) => {
                    self.tasks.push(ProgramTask { id, shape, jobs: 0, phase: Phase::Idle });
                }
                (Reply::Refused { .. }, _) => around.run.refused += 1,
                _ => {}
            }
            return Ok(());
        }
        if self.character == Character::Hangs && around.has_faults && around.chance.one_in(40) {
            self.is_hung = true;
            return Ok(());
        }
        if self.character == Character::Lies && around.chance.one_in(4) {
            self.lie(around, client);
            return Ok(());
        }
        if self.registers.is_none() && self.tasks.len() < TASKS && around.chance.one_in(10) {
            let shape = shape(around.chance);
            self.registers = Some(shape.clone());
            around.send(client, Input::Register { client, shape, bytes: BYTES });
            return Ok(());
        }
        (0..self.tasks.len()).try_for_each(|at| self.work_on(around, client, at))
    }

    fn work_on(&mut self, around: &mut Around<'_>, client: ClientId, at: usize) -> Result<(), String> {
        match self.tasks[at].phase {
            Phase::Idle => {
                if around.chance.one_in(3) {
                    self.tasks[at].jobs += 1;
                    self.request(around, client, at);
                }
                Ok(())
            }
            Phase::Waits(wait) => self.look_for_token(around, client, at, wait),
            Phase::Holds(hold) => self.use_token(around, client, at, hold),
        }
    }

    fn request(&mut self, around: &mut Around<'_>, client: ClientId, at: usize) {
        let generation = self.next_generation();
        let number = Self::slot(at, TOKEN_SLOT);
        let task = &mut self.tasks[at];
        let (release, since) = match task.phase {
            Phase::Waits(Wait { release, since, .. }) => (release, since),
            _ => (around.now, around.now),
        };
        let job = JobId { task: task.id, job: task.jobs };
        task.phase = Phase::Waits(Wait { job: job.job, release, generation, since });
        let slot = Slot { number, generation };
        around.send(client, Input::Request { client, slot, job, release, acquisition: 0 });
    }

    fn answer(around: &Around<'_>, client: ClientId, number: u32, generation: u32) -> Option<SlotAnswer> {
        let (of, answer) = around.pages.get(&client)?.answers.get(&number)?;
        (*of == generation).then(|| answer.clone())
    }

    fn look_for_token(
        &mut self,
        around: &mut Around<'_>,
        client: ClientId,
        at: usize,
        wait: Wait,
    ) -> Result<(), String> {
        let Wait { job, release, generation, since } = wait;
        let answer = Self::answer(around, client, Self::slot(at, TOKEN_SLOT), generation);
        let task = &mut self.tasks[at];
        match answer {
            Some(SlotAnswer::Token { gpu, token }) => {
                around.run.tokens += 1;
                if self.character != Character::Lies {
                    around.audit.take_token(self.process.pid, gpu, token, around.now)?;
                }
                let until = around.now.saturating_add(Nanos(1 + around.chance.below(HOLD)));
                task.phase =
                    Phase::Holds(Hold { job, release, gpu, token, generation, engine: EngineUse::None, until });
            }
            Some(_) => {
                around.run.refused += 1;
                task.phase = Phase::Idle;
            }
            None if around.now.saturating_sub(since) > PATIENCE && around.has_faults => {
                let job = JobId { task: task.id, job };
                task.phase = Phase::Idle;
                around.send(client, Input::Abort { client, job });
            }
            None => {}
        }
        Ok(())
    }

    fn use_token(&mut self, around: &mut Around<'_>, client: ClientId, at: usize, hold: Hold) -> Result<(), String> {
        let pid = self.process.pid;
        let is_watched = self.character != Character::Lies;
        if Self::answer(around, client, Self::slot(at, TOKEN_SLOT), hold.generation) == Some(SlotAnswer::Revoked) {
            self.stop(around, hold);
            self.tasks[at].phase = Phase::Idle;
            return Ok(());
        }
        let task = self.tasks[at].id;
        let number = Self::slot(at, ENGINE_SLOT);
        let engine = match hold.engine {
            EngineUse::None if around.now >= hold.until => {
                around.audit.give_token(pid, hold.gpu, hold.token);
                let outcome = TokenOutcome::Complete(Nanos(1_000));
                around.send(client, Input::Release { client, job: JobId { task, job: hold.job }, outcome });
                self.tasks[at].phase = Phase::Idle;
                return Ok(());
            }
            EngineUse::None => {
                let lock = LockId { gpu: hold.gpu, engine: role(around.chance) };
                let page = around.pages.get_mut(&client).expect("an open connection has a page");
                if page.words.get(&lock) == Some(&LockWord::Leased) {
                    page.words.insert(lock, LockWord::Busy(task));
                    around.run.engines += 1;
                    if is_watched {
                        around.audit.take_engine(pid, lock, around.now)?;
                    }
                    EngineUse::Uses(lock)
                } else {
                    let generation = self.next_generation();
                    let (job, slot) = (JobId { task, job: hold.job }, Slot { number, generation });
                    around.send(client, Input::Acquire { client, slot, job, operation: operation(lock.engine) });
                    EngineUse::Asked { generation }
                }
            }
            EngineUse::Asked { generation } => match Self::answer(around, client, number, generation) {
                Some(SlotAnswer::Engines(locks)) => {
                    around.run.engines += 1;
                    if is_watched {
                        around.audit.take_engine(pid, locks[0], around.now)?;
                    }
                    EngineUse::Uses(locks[0])
                }
                Some(_) => EngineUse::None,
                None => hold.engine,
            },
            EngineUse::Uses(lock) if around.chance.one_in(3) => {
                around.audit.give_engine(pid, lock);
                let page = around.pages.get_mut(&client).expect("an open connection has a page");
                match page.words.get(&lock) {
                    Some(LockWord::Busy(of)) if *of == task => drop(page.words.insert(lock, LockWord::Leased)),
                    Some(LockWord::Held(job)) if job.task == task => drop(page.words.remove(&lock)),
                    _ => {}
                }
                EngineUse::None
            }
            EngineUse::Uses(_) => hold.engine,
        };
        self.tasks[at].phase = Phase::Holds(Hold { engine, ..hold });
        Ok(())
    }

    /// Says or writes what no client may.
    fn lie(&mut self, around: &mut Around<'_>, client: ClientId) {
        let chance = &mut *around.chance;
        let task = TaskId(chance.below(12) as u32 + 1);
        let task = if chance.one_in(2) { task } else { self.tasks.first().map_or(task, |own| own.id) };
        let job = JobId { task, job: chance.below(5) };
        let slot = Slot { number: chance.below(6) as u32, generation: self.generation };
        let input = match chance.below(8) {
            0 => Input::Request {
                client,
                slot,
                job,
                release: Nanos(chance.below(u64::MAX)),
                acquisition: chance.below(3) as u32,
            },
            1 => Input::Release { client, job, outcome: TokenOutcome::Complete(Nanos(chance.below(u64::MAX))) },
            2 => Input::Abort { client, job },
            3 => Input::Acquire { client, slot, job, operation: operation(role(chance)) },
            4 => Input::Withdraw { client, task, bytes: BYTES },
            5 => Input::Register { client, shape: shape(chance), bytes: 100_000 },
            6 => Input::Fault { client, gpu: GpuId(chance.below(3) as u32), bytes: BYTES },
            _ => {
                // Its page is its own to spoil.
                let lock = LockId { gpu: GpuId(chance.below(2) as u32), engine: role(chance) };
                let word = match chance.below(3) {
                    0 => LockWord::Busy(task),
                    1 => LockWord::Held(job),
                    _ => LockWord::Leased,
                };
                if let Some(page) = around.pages.get_mut(&client) {
                    page.words.insert(lock, word);
                }
                return;
            }
        };
        around.send(client, input);
    }
}

fn shape(chance: &mut Chance) -> TaskShape {
    TaskShape {
        name: "task".to_owned(),
        cluster: ClusterId(0),
        period: Nanos(1),
        deadline: Nanos(1 + chance.below(10 * WATCHDOG.0)),
        state: Bytes(0),
        segments: Vec::new(),
        thread: None,
    }
}
