//! The broker's [`Book`](headway_core::decisions::broker::Book) among programs that crash, hang and lie, with brokers that are killed and
//! started again, a disk that fails and GPUs that are lost, in virtual time.
//!
//! A seed gives one run, again and again. The book and what it says are the product's; programs, shared pages, the record on the disk and
//! the time of messages are played here. An audit that shares no code with the book watches who uses which token and engine *in fact*,
//! and a run ends at the first rule that does not hold. Afterwards all faults end, and whoever waits must be served.

mod audit;
mod program;
mod server;

use std::collections::BTreeMap;

use headway_core::decisions::broker::{BookParameters, BrokerLimits, Reply};
use headway_core::decisions::engine_lock::{EngineParameters, LockId, LockOrder, PeerLocks};
use headway_core::decisions::sharing::{ArbiterParameters, ClientId, ClusterParameters, GpuId, JobId, TaskId, TokenId};
use headway_core::decisions::token::{TokenMode, TokenParameters};
use headway_core::units::Nanos;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use audit::Audit;
use program::Program;
use server::{Disk, Server};

const WATCHDOG: Nanos = Nanos(1_000_000);
const DRAIN: Nanos = Nanos(20_000);
const RECOVER: Nanos = Nanos(2_000_000);
/// Time between two steps at most.
const STEP: u64 = 2_000;
const PROGRAMS: usize = 8;
/// After the faults have ended, whoever waits is served within this time.
const SERVED_WITHIN: Nanos = Nanos(30 * WATCHDOG.0);

/// How a run came out that broke no rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BrokerRun {
    /// Tokens that programs took.
    pub(crate) tokens: u64,
    /// Engines that programs took, by lease or one by one.
    pub(crate) engines: u64,
    /// Requests that were refused.
    pub(crate) refused: u64,
    /// Programs that were killed.
    pub(crate) killed: u64,
    /// Clients that the broker cut off.
    pub(crate) cut: u64,
    /// Brokers that were killed.
    pub(crate) restarts: u64,
    /// Tokens and engines that programs brought over from one broker to the next.
    pub(crate) resumed: u64,
    /// GPUs that were lost.
    pub(crate) lost: u64,
    /// Inputs that were replayed and gave the same decisions.
    pub(crate) replayed: u64,
    /// Virtual time at the end.
    pub(crate) end: Nanos,
}

impl BrokerRun {
    /// Counts those of another run, too.
    pub(crate) fn add(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.engines += other.engines;
        self.refused += other.refused;
        self.killed += other.killed;
        self.cut += other.cut;
        self.restarts += other.restarts;
        self.resumed += other.resumed;
        self.lost += other.lost;
        self.replayed += other.replayed;
        self.end = self.end.max(other.end);
    }
}

/// A rule that did not hold; the same seed and number of steps lead there again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("seed {seed}, {steps} steps: at step {step}, {at}: {what}")]
pub(crate) struct BrokerViolation {
    pub(crate) seed: u64,
    pub(crate) steps: u64,
    pub(crate) step: u64,
    pub(crate) at: Nanos,
    pub(crate) what: String,
}

/// Runs so many steps with faults, and then without until all is given back.
///
/// # Errors
/// [`BrokerViolation`].
pub(crate) fn simulate(seed: u64, steps: u64) -> Result<BrokerRun, BrokerViolation> {
    let mut world = World::new(seed);
    let mut step = 0;
    let ran = world.run(steps, &mut step);
    ran.map_err(|what| BrokerViolation { seed, steps, step, at: world.now, what })
}

/// What a client sees of a lock in its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LockWord {
    Leased,
    /// Taken under a lease.
    Busy(TaskId),
    /// To be given back to the broker.
    Held(JobId),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum SlotAnswer {
    Token { gpu: GpuId, token: TokenId },
    Engines(Vec<LockId>),
    Refused,
    Revoked,
}

/// What one connection shares between broker and program.
#[derive(Debug, Default)]
struct Page {
    is_closed: bool,
    /// Closed by a broker that goes on.
    is_cut: bool,
    words: BTreeMap<LockId, LockWord>,
    /// By slot, with the generation of the question.
    answers: BTreeMap<u32, (u32, SlotAnswer)>,
    replies: Vec<Reply>,
    /// When the last message of the program arrives: messages stay in their order.
    last: Nanos,
}

type Pages = BTreeMap<ClientId, Page>;

/// Draws from the seed.
struct Chance(Pcg64Mcg);

impl Chance {
    /// Below `most`, which is above zero.
    fn below(&mut self, most: u64) -> u64 {
        self.0.next_u64() % most
    }

    fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}

struct World {
    now: Nanos,
    chance: Chance,
    parameters: BookParameters,
    server: Option<Server>,
    /// Until then the broker does nothing.
    stopped_until: Nanos,
    down_until: Nanos,
    epoch: u32,
    disk: Disk,
    pages: Pages,
    programs: Vec<Program>,
    audit: Audit,
    next_client: u64,
    next_pid: u32,
    has_faults: bool,
    run: BrokerRun,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut chance = Chance(Pcg64Mcg::seed_from_u64(seed));
        let parameters = parameters(&mut chance);
        let mut world = Self {
            now: Nanos(1),
            parameters,
            server: None,
            stopped_until: Nanos::ZERO,
            down_until: Nanos::ZERO,
            epoch: 0,
            disk: Disk::default(),
            pages: Pages::new(),
            programs: Vec::new(),
            audit: Audit::default(),
            next_client: 0,
            next_pid: 100,
            has_faults: true,
            run: BrokerRun::default(),
            chance,
        };
        for _ in 0..PROGRAMS {
            let program = world.new_program(None);
            world.programs.push(program);
        }
        world
    }

    fn new_program(&mut self, uid: Option<u32>) -> Program {
        self.next_pid += 1;
        let uid = uid.unwrap_or_else(|| 11 + self.chance.below(3) as u32);
        Program::new(self.next_pid, uid, &mut self.chance, self.has_faults, self.now)
    }

    fn run(&mut self, steps: u64, step: &mut u64) -> Result<BrokerRun, String> {
        for _ in 0..steps {
            *step += 1;
            self.step()?;
        }
        self.has_faults = false;
        self.disk.fails = false;
        for at in 0..self.programs.len() {
            // One that hangs goes on to: the watchdog must end it.
            if self.programs[at].lies() {
                self.kill(at);
            }
        }
        let end = self.now.saturating_add(SERVED_WITHIN);
        let waited = |programs: &[Program]| programs.iter().flat_map(Program::waiting).collect::<Vec<_>>();
        let before = waited(&self.programs);
        while self.now < end {
            *step += 1;
            self.step()?;
        }
        let still: Vec<JobId> = waited(&self.programs).into_iter().filter(|job| before.contains(job)).collect();
        if !still.is_empty() && !self.audit.has_lost_all(&self.parameters) {
            return Err(format!("without faults for {SERVED_WITHIN}, these still wait: {still:?}"));
        }
        self.finish(step)?;
        (self.run.end, self.run.cut) = (self.now, self.audit.cut);
        Ok(self.run)
    }

    /// Every program ends: nothing stays taken.
    fn finish(&mut self, step: &mut u64) -> Result<(), String> {
        for at in 0..self.programs.len() {
            self.kill(at);
        }
        for program in &mut self.programs {
            program.comes_back_at = Nanos(u64::MAX);
        }
        let end = self.now.saturating_add(Nanos(10 * WATCHDOG.0 + RECOVER.0));
        while self.now < end {
            *step += 1;
            self.step()?;
        }
        let server = self.server.as_mut().ok_or("the broker does not come back")?;
        server.check_empty()?;
        self.run.replayed += server.check_replay()?;
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        self.now = self.now.saturating_add(Nanos(1 + self.chance.below(STEP)));
        if self.has_faults {
            self.fault()?;
        }
        if self.server.is_none() && self.now >= self.down_until {
            self.start_broker()?;
        }
        let at = self.chance.below(self.programs.len() as u64) as usize;
        self.step_program(at)?;
        self.turn()
    }

    /// The broker looks at everything once.
    fn turn(&mut self) -> Result<(), String> {
        if self.now < self.stopped_until {
            return Ok(());
        }
        let Some(server) = &mut self.server else { return Ok(()) };
        let alive = self.programs.iter().filter(|program| program.is_alive).map(|program| program.process.pid);
        server.turn(self.now, &mut self.pages, &mut self.disk, &mut self.audit, &alive.collect::<Vec<_>>())?;
        self.audit.check_limits(&self.parameters.limits)
    }

    fn step_program(&mut self, at: usize) -> Result<(), String> {
        if !self.programs[at].is_alive {
            if self.now >= self.programs[at].comes_back_at {
                let uid = self.programs[at].process.uid;
                self.programs[at] = self.new_program(Some(uid));
            }
            return Ok(());
        }
        let mut around = program::Around {
            now: self.now,
            chance: &mut self.chance,
            server: self.server.as_mut(),
            pages: &mut self.pages,
            audit: &mut self.audit,
            run: &mut self.run,
            next_client: &mut self.next_client,
            has_faults: self.has_faults,
        };
        self.programs[at].step(&mut around)
    }

    /// Something goes wrong now and then.
    fn fault(&mut self) -> Result<(), String> {
        let now = self.now;
        if self.chance.one_in(400) {
            let at = self.chance.below(self.programs.len() as u64) as usize;
            self.kill(at);
        }
        if self.server.is_some() && self.chance.one_in(1_000) {
            self.kill_broker()?;
        }
        if self.chance.one_in(1_500) && self.server.is_some() {
            let by = Nanos(self.chance.below(2 * WATCHDOG.0));
            self.stopped_until = now.saturating_add(by);
        }
        if self.chance.one_in(1_000) {
            self.disk.fails = !self.disk.fails;
        }
        if self.chance.one_in(20_000) {
            let gpus: Vec<GpuId> = self.parameters.arbiter.clusters.iter().flat_map(|of| of.gpus.clone()).collect();
            let gpu = gpus[self.chance.below(gpus.len() as u64) as usize];
            let is_stopped = now < self.stopped_until;
            if let Some(server) = self.server.as_mut().filter(|_| !is_stopped && !self.audit.is_lost(gpu)) {
                server.lose(now, gpu, &mut self.pages, &mut self.disk, &mut self.audit)?;
                self.run.lost += 1;
            }
        }
        Ok(())
    }

    fn kill(&mut self, at: usize) {
        let program = &mut self.programs[at];
        if !program.is_alive {
            return;
        }
        program.is_alive = false;
        program.comes_back_at = self.now.saturating_add(Nanos(1 + self.chance.below(WATCHDOG.0)));
        self.run.killed += 1;
        self.audit.died(program.process.pid, self.now, DRAIN);
    }

    fn kill_broker(&mut self) -> Result<(), String> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        self.run.replayed += server.check_replay()?;
        self.run.restarts += 1;
        self.stopped_until = Nanos::ZERO;
        self.down_until = self.now.saturating_add(Nanos(self.chance.below(WATCHDOG.0)));
        self.pages.values_mut().for_each(|page| page.is_closed = true);
        Ok(())
    }

    fn start_broker(&mut self) -> Result<(), String> {
        self.epoch += 1;
        let alive = |pid: u32| self.programs.iter().any(|program| program.is_alive && program.process.pid == pid);
        let before = self.disk.roster(alive);
        let parameters = BookParameters { first_task: (self.epoch & 0xfff) << 20, ..self.parameters.clone() };
        if !before.is_complete {
            // Whoever had something from the broker before may be refused until it is welcomed again.
            self.programs.iter_mut().for_each(|program| program.is_on_record = false);
        }
        self.audit.broker_started(&before, self.disk.is_memory_current);
        self.server = Some(Server::start(parameters, before, &self.disk, self.now)?);
        Ok(())
    }
}

fn parameters(chance: &mut Chance) -> BookParameters {
    let per_gpu = 1 + chance.below(2) as u32;
    let gpus = 1 + chance.below(2) as u32;
    let mode = if chance.one_in(2) { TokenMode::Priority } else { TokenMode::WorkConserving };
    let tokens = TokenParameters { cpus: 4, per_gpu, mode, affinity: chance.one_in(2) };
    let engines = EngineParameters {
        copy_engines: 2,
        peer: PeerLocks::Group,
        order: if chance.one_in(2) { LockOrder::Arrival } else { LockOrder::Urgency },
        chunk_bytes: None,
        watchdog: WATCHDOG,
    };
    let arbiter = ArbiterParameters::new(vec![ClusterParameters::equal(gpus, tokens)], Some(engines));
    let limits = BrokerLimits {
        clients_per_user: 3,
        tasks_per_user: 5,
        requests_per_user: 2,
        deadline_min: Nanos(1),
        ..BrokerLimits::default()
    };
    BookParameters {
        arbiter,
        limits,
        owner: 0,
        is_logged: true,
        must_remember: chance.one_in(2),
        watchdog: WATCHDOG,
        drain: DRAIN,
        recover: RECOVER,
        first_task: 0,
    }
}
