//! One copy engine with its [`EngineLine`], a [`FlowBook`], the threads that drive copies, and programs that open and close flows and submit
//! jobs, in virtual time. The book and the line are the product's; the rest is played, as cruel as the assumptions allow.

use std::collections::{BTreeMap, VecDeque};

use headway_core::decisions::engine_line::{EngineLine, FlowClass, LineEntry, LineKey, LineParty};
use headway_core::decisions::flows::{
    ChunkOwner, ChunksAhead, FlowBook, FlowContract, FlowEngine, FlowFault, FlowId, FlowJob, JobFacts, LIMITS,
    SubmitRefused,
};
use headway_core::files::workload::OnMiss;
use headway_core::models::transfer::Direction;
use headway_core::units::{Bytes, Nanos, Rate};

use super::audit::{Audit, AuditedChunk};
use crate::support::Draw;

const GPU: u32 = 0;
const OUT: Direction = Direction::D2h;
/// Virtual time in which programs do something.
const TIME: Nanos = Nanos(20_000_000);
/// Chunks and events of one run at most.
const EVENTS_MAX: u64 = 400_000;
const FLOWS_MAX: usize = 12;

/// How a run came out that broke no rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlowRun {
    /// Jobs that ended.
    pub(crate) jobs: u64,
    /// Chunks without a promise.
    pub(crate) unpromised: u64,
    pub(crate) opened: u64,
    pub(crate) refused: u64,
    pub(crate) closed: u64,
    /// Flows that had to wait until chunks were smaller.
    pub(crate) joined_later: u64,
    pub(crate) urgent: u64,
    /// Jobs that came earlier than their contract allows.
    pub(crate) held: u64,
    /// Flows that were opened again after they had left.
    pub(crate) returned: u64,
    /// Assumptions that were broken.
    pub(crate) faults: u64,
    /// Jobs that took longer than promised.
    pub(crate) beyond: u64,
    /// The longest response without a fault, of its bound.
    pub(crate) fullest_ppm: u64,
}

impl FlowRun {
    /// Counts those of another run, too.
    pub(crate) fn add(&mut self, other: &Self) {
        self.jobs += other.jobs;
        self.unpromised += other.unpromised;
        self.opened += other.opened;
        self.refused += other.refused;
        self.closed += other.closed;
        self.joined_later += other.joined_later;
        self.urgent += other.urgent;
        self.held += other.held;
        self.returned += other.returned;
        self.faults += other.faults;
        self.beyond += other.beyond;
        self.fullest_ppm = self.fullest_ppm.max(other.fullest_ppm);
    }
}

/// An assumption that is broken now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InjectedFault {
    /// The thread of a job asks long after the release.
    LateThread,
    /// A promised chunk takes longer than its worst case.
    SlowChunk,
    /// So does one without a promise.
    SlowUnpromised,
    /// A chunk without a promise is larger than allowed.
    LargeUnpromised,
    /// Promised chunks are late again and again, none too late alone.
    LateAgain,
    /// A job's next chunk asks only after the one before has ended.
    Gap,
}

impl InjectedFault {
    pub(crate) const ALL: [Self; 6] =
        [Self::LateThread, Self::SlowChunk, Self::SlowUnpromised, Self::LargeUnpromised, Self::LateAgain, Self::Gap];
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A program submits a job of this flow, and one more later.
    Arrival(FlowId),
    /// A program submits one more.
    Extra(FlowId),
    /// A job's next chunk asks.
    Ask((FlowId, u64)),
    /// A chunk that has started reaches the engine.
    Submitted(u64),
    /// The engine is done with its first chunk.
    Served,
    /// The line is told of the end of a chunk.
    Told(u64),
    /// A copy without a promise wants one more chunk.
    Unpromised(LineParty),
    /// Programs open or close flows, or copy something urgent.
    Programs,
}

#[derive(Clone, Debug)]
struct Chunk {
    entry: LineEntry,
    owner: ChunkOwner,
    job: Option<(FlowId, u64)>,
    bytes: Bytes,
    /// The most that was allowed when it asked.
    most: Bytes,
    asked: Nanos,
    started: Nanos,
    /// What the engine takes for it, and what the thread takes before and behind.
    work: Nanos,
    before: Nanos,
    behind: Nanos,
}

#[derive(Clone, Debug)]
struct Job {
    job: FlowJob,
    owner: ChunkOwner,
    left: Bytes,
    chunk: Bytes,
    facts: JobFacts,
    has_asked: bool,
    /// Whose chunks went before, how many, how long, and the longest.
    ahead: BTreeMap<ChunkOwner, (u32, Nanos, Nanos)>,
}

#[derive(Clone, Debug)]
struct OpenFlow {
    contract: FlowContract,
    is_closed: bool,
}

struct World {
    now: Nanos,
    draw: Draw,
    engine: FlowEngine,
    book: FlowBook,
    line: EngineLine,
    keys: BTreeMap<LineKey, u64>,
    chunks: BTreeMap<u64, Chunk>,
    /// Chunks on the engine, in the order in which they reached it.
    queue: VecDeque<u64>,
    /// When the line was last told of the end of a chunk, and when it will have been of all that were served.
    told: Nanos,
    tells: Nanos,
    events: BTreeMap<(Nanos, u64), Event>,
    next: u64,
    flows: BTreeMap<FlowId, OpenFlow>,
    jobs: BTreeMap<(FlowId, u64), Job>,
    /// What the promised chunks since the last instant without a promised job have left of the time by which they may be late together.
    late_left: Nanos,
    /// A flow was opened that needs smaller chunks.
    must_drain: bool,
    /// Costs are the worst, or anything up to them.
    is_worst: bool,
    fault: Option<InjectedFault>,
    audit: Audit,
    run: FlowRun,
}

/// One run.
pub(crate) fn simulate(seed: u64, fault: Option<InjectedFault>) -> Result<FlowRun, String> {
    let mut world = World::new(seed, fault);
    world.run().map_err(|what| format!("seed {seed}, {fault:?}, at {}: {what}", world.now))?;
    world.run.fullest_ppm = world.audit.fullest_ppm;
    world.run.beyond = world.audit.beyond;
    Ok(world.run)
}

impl World {
    fn new(seed: u64, fault: Option<InjectedFault>) -> Self {
        let mut draw = Draw(seed.wrapping_mul(0x2545_F491_4F6C_DD1D) ^ 0x9E37);
        let limits = [draw.within(0, 2), draw.within(0, 4)];
        let chunk_min = Bytes(1 << draw.within(14, 16));
        let mut jitter = Nanos(if draw.below(3) == 0 { 0 } else { draw.below(100_000) });
        let mut late_each = (draw.below(2) == 0).then(|| Nanos(draw.below(jitter.0 + 1)));
        if fault == Some(InjectedFault::LateAgain) {
            (jitter, late_each) = (Nanos(draw.within(50_000, 100_000)), Some(Nanos(draw.below(5_000))));
        }
        let engine = FlowEngine {
            gpu: GPU,
            direction: OUT,
            setup: Nanos(draw.within(2_000, 15_000)),
            rate: Rate(draw.within(10, 60) * 1_000_000_000),
            jitter,
            late_each,
            unpromised_in_flight: (limits[0] + limits[1]) as u32,
            chunk_max: Bytes(chunk_min.0 << draw.within(4, 8)),
            chunk_min,
            is_measured: true,
            turn: None,
            others: None,
        };
        let mut world = Self {
            now: Nanos(1_000),
            book: FlowBook::new(vec![engine.clone()], LIMITS),
            line: EngineLine::default(),
            keys: BTreeMap::new(),
            chunks: BTreeMap::new(),
            queue: VecDeque::new(),
            told: Nanos::ZERO,
            tells: Nanos::ZERO,
            events: BTreeMap::new(),
            next: 0,
            flows: BTreeMap::new(),
            jobs: BTreeMap::new(),
            late_left: engine.late_once(),
            must_drain: false,
            is_worst: draw.below(2) == 0,
            fault,
            audit: Audit::new([limits[0] as usize, limits[1] as usize]),
            run: FlowRun::default(),
            engine,
            draw,
        };
        // As many as may be on the engine, and one more of each kind that waits.
        for (party, limit) in [(LineParty::Copies, limits[0]), (LineParty::Staging, limits[1])] {
            (0..limit + u64::from(limit > 0)).for_each(|_| world.at(Nanos(1_000), Event::Unpromised(party)));
        }
        world.at(Nanos(1_000), Event::Programs);
        world
    }

    fn at(&mut self, at: Nanos, event: Event) {
        self.next += 1;
        self.events.insert((at, self.next), event);
    }

    fn is_over(&self) -> bool {
        self.now > TIME
    }

    fn injects(&mut self, fault: InjectedFault) -> bool {
        self.fault == Some(fault) && self.draw.below(40) == 0
    }

    /// An assumption broke, and the driver noticed.
    fn notice(&mut self, fault: FlowFault) {
        self.run.faults += 1;
        self.audit.injected(&fault);
        self.book.fault(self.now, GPU, OUT, fault);
    }

    fn run(&mut self) -> Result<(), String> {
        for _ in 0..EVENTS_MAX {
            let Some(((at, _), event)) = self.events.pop_first() else { break };
            if self.is_over() && self.jobs.is_empty() {
                break;
            }
            self.now = at;
            match event {
                Event::Arrival(flow) => {
                    self.arrive(flow)?;
                    self.arrive_again(flow);
                }
                Event::Extra(flow) => self.arrive(flow)?,
                Event::Ask(job) => self.ask(job)?,
                Event::Submitted(chunk) => self.submit(chunk),
                Event::Served => self.served(),
                Event::Told(chunk) => self.told(chunk)?,
                Event::Unpromised(party) => self.ask_unpromised(party),
                Event::Programs => self.programs()?,
            }
            self.start()?;
            self.drain();
        }
        if self.fault.is_none() && self.run.faults > 0 {
            return Err("an assumption broke although none was injected".to_owned());
        }
        if !self.audit.is_empty() || !self.jobs.is_empty() {
            return Err(format!("{} jobs never end", self.jobs.len()));
        }
        Ok(())
    }

    fn programs(&mut self) -> Result<(), String> {
        if self.is_over() {
            return Ok(());
        }
        let open: Vec<FlowId> = self.flows.iter().filter(|(_, flow)| !flow.is_closed).map(|(id, _)| *id).collect();
        match self.draw.below(8) {
            0..=3 if open.len() < FLOWS_MAX => self.open(),
            4 if !open.is_empty() => {
                let flow = *self.draw.pick(&open);
                self.close(flow)?;
            }
            5 | 6 => self.urgent(),
            // All at once.
            _ => open.iter().for_each(|flow| self.at(self.now, Event::Extra(*flow))),
        }
        let next = Nanos(self.now.0 + self.draw.size(24));
        self.at(next, Event::Programs);
        Ok(())
    }

    fn any_bytes(&mut self) -> Bytes {
        Bytes(self.draw.size(23))
    }

    fn open(&mut self) {
        let bytes = self.any_bytes();
        let alone = self.engine.chunk_cost(bytes).0 + self.engine.jitter.0 + 1_000;
        let period = alone * self.draw.within(2, 24) + self.draw.below(500_000);
        let deadline = (period * self.draw.within(10, 150) / 100).max(alone);
        let on_miss = *self.draw.pick(&[OnMiss::Finish, OnMiss::Skip]);
        let contract = FlowContract {
            name: format!("flow {}", self.next),
            gpu: GPU,
            direction: OUT,
            bytes,
            period: Nanos(period),
            deadline: Nanos(deadline),
            on_miss,
        };
        self.next += 1;
        let Ok(admitted) = self.book.open(self.now, contract.clone()) else {
            self.run.refused += 1;
            return;
        };
        self.run.opened += 1;
        self.must_drain |= !admitted.is_settled;
        self.run.joined_later += u64::from(!admitted.is_settled);
        self.flows.insert(admitted.flow, OpenFlow { contract, is_closed: false });
        self.at(self.now, Event::Arrival(admitted.flow));
    }

    fn close(&mut self, flow: FlowId) -> Result<(), String> {
        let closed = self.book.close(self.now, flow).map_err(|error| error.to_string())?;
        self.run.closed += 1;
        let of = self.flows.get_mut(&flow).ok_or("an unknown flow was closed")?;
        of.is_closed = true;
        // What has been there has room again.
        let contract = of.contract.clone();
        if self.audit.is_idle(self.now) && !self.jobs.keys().any(|(of, _)| *of == flow) {
            if !closed.has_returned {
                return Err("the capacity of a flow has not returned although no promised job is there".to_owned());
            }
            if self.book.clone().open(self.now, contract).is_err() {
                return Err("there is no room for a flow that has left".to_owned());
            }
            self.run.returned += 1;
        }
        Ok(())
    }

    fn urgent(&mut self) {
        let bytes = self.any_bytes();
        let deadline = Nanos(self.engine.chunk_cost(bytes).0 * self.draw.within(1, 20) + self.draw.size(20));
        if let Ok(job) = self.book.urgent(self.now, GPU, OUT, bytes, deadline) {
            self.run.urgent += 1;
            self.audit.submitted(self.now, (job.flow.0, 0), (Nanos::MAX, deadline));
            self.accept(job, bytes, ChunkOwner::Urgent);
        }
    }

    fn arrive(&mut self, flow: FlowId) -> Result<(), String> {
        let Some(OpenFlow { contract, is_closed: false }) = self.flows.get(&flow).cloned() else { return Ok(()) };
        if self.is_over() {
            return Ok(());
        }
        let bytes = if self.draw.below(3) == 0 { Bytes(self.draw.within(1, contract.bytes.0)) } else { contract.bytes };
        match self.book.submit(self.now, flow, bytes) {
            Ok(job) => {
                let contract = (contract.period, contract.deadline);
                let expected = self.audit.submitted(self.now, (flow.0, job.sequence), contract);
                if (job.release, job.deadline) != expected {
                    return Err(format!("{job:?} is not released and due at {expected:?}"));
                }
                self.run.held += u64::from(job.release > self.now);
                let name = self.flows[&flow].contract.name.clone();
                self.accept(job, bytes, ChunkOwner::Flow(name));
            }
            Err(SubmitRefused::NotSettled { .. } | SubmitRefused::Full { .. }) => {}
            Err(refused) => return Err(refused.to_string()),
        }
        Ok(())
    }

    fn arrive_again(&mut self, flow: FlowId) {
        let Some(OpenFlow { contract, is_closed: false }) = self.flows.get(&flow) else { return };
        let period = contract.period.0;
        let distance = match self.draw.below(12) {
            0 => self.draw.below(period),
            1..=3 => period + self.draw.below(2 * period),
            _ => period,
        };
        self.at(Nanos(self.now.0 + distance.max(1_000)), Event::Arrival(flow));
    }

    fn accept(&mut self, job: FlowJob, bytes: Bytes, owner: ChunkOwner) {
        let key = (job.flow, job.sequence);
        let late = if self.injects(InjectedFault::LateThread) {
            self.engine.jitter.0 + 1 + self.draw.below(2 * (job.deadline.0 - job.release.0))
        } else {
            match self.draw.below(3) {
                0 => 0,
                1 => self.engine.jitter.0,
                _ => self.draw.below(self.engine.jitter.0 + 1),
            }
        };
        let (chunk, ahead) = (Bytes(0), BTreeMap::new());
        let facts = JobFacts::default();
        self.jobs.insert(key, Job { job, owner, left: bytes, chunk, facts, has_asked: false, ahead });
        self.at(Nanos(job.release.0 + late), Event::Ask(key));
    }

    /// How late the thread of a promised chunk may be. What a chunk is later than each may be is taken from what all may be together.
    fn lateness(&mut self) -> u64 {
        if self.audit.is_idle(self.now) {
            self.late_left = self.engine.late_once();
        }
        let each = self.engine.jitter.0 - self.engine.late_once().0;
        let most = if self.fault == Some(InjectedFault::LateAgain) { self.engine.late_once() } else { self.late_left };
        let more = if self.draw.below(3) == 0 { self.draw.below(most.0 + 1) } else { most.0 };
        if more > self.late_left.0 {
            let (late, most) = (Nanos(more), self.engine.late_once());
            self.notice(FlowFault::LateTogether { late, most });
        }
        self.late_left = Nanos(self.late_left.0.saturating_sub(more));
        each + more
    }

    /// The work of a chunk, and what its thread takes, which can be late by `jitter`.
    fn costs(&mut self, bytes: Bytes, jitter: u64, is_slow: bool) -> (Nanos, Nanos, Nanos) {
        let most = self.engine.setup.0 + self.engine.rate.time_for(bytes).0;
        if is_slow {
            let jitter = self.engine.jitter.0;
            let more = jitter + most / 4 + self.draw.below(4 * most + 100_000);
            return (Nanos(most + more + 1), Nanos::ZERO, Nanos::ZERO);
        }
        if self.is_worst {
            let before = if self.draw.below(2) == 0 { jitter } else { 0 };
            return (Nanos(most), Nanos(before), Nanos(jitter - before));
        }
        let before = self.draw.below(jitter + 1);
        (Nanos(self.draw.below(most + 1)), Nanos(before), Nanos(self.draw.below(jitter - before + 1)))
    }

    fn ask(&mut self, key: (FlowId, u64)) -> Result<(), String> {
        let is_slow = self.injects(InjectedFault::SlowChunk);
        let Some(job) = self.jobs.get_mut(&key) else { return Ok(()) };
        let (late, jitter) = (Nanos(self.now.0 - job.job.release.0), self.engine.jitter);
        if !job.has_asked {
            job.has_asked = true;
            job.facts.asked = self.now;
            job.chunk = self.book.begin(self.now, key.0, key.1).map_err(|error| error.to_string())?;
            let (owner, on_miss, deadline) = (job.owner.clone(), job.job.on_miss, job.job.deadline);
            if late > jitter {
                self.run.faults += 1;
                self.audit.injected(&FlowFault::AskedLate { owner, late, jitter });
            }
            if on_miss == OnMiss::Skip && self.now > deadline {
                return self.over(key, true);
            }
        }
        let job = self.jobs.get_mut(&key).ok_or("a job is gone")?;
        let bytes = job.left.min(job.chunk);
        job.left = Bytes(job.left.0 - bytes.0);
        let class = job.job.class();
        let (owner, most) = (job.owner.clone(), job.chunk);
        let entry =
            LineEntry { deadline: Some(job.job.deadline), bytes, ..LineEntry::new(class, LineParty::Promised, 1) };
        let jitter = self.lateness();
        let (work, before, behind) = self.costs(bytes, jitter, is_slow);
        let asked = self.now;
        self.stand(Chunk { entry, owner, job: Some(key), bytes, most, asked, started: asked, work, before, behind });
        Ok(())
    }

    fn ask_unpromised(&mut self, party: LineParty) {
        let most = self.book.chunk(GPU, OUT).unwrap_or(self.engine.chunk_max);
        let is_large = self.injects(InjectedFault::LargeUnpromised);
        let is_slow = self.injects(InjectedFault::SlowUnpromised);
        let bytes = match self.draw.below(4) {
            _ if is_large => Bytes(most.0 * self.draw.within(2, 8)),
            0 => Bytes(self.draw.within(1, most.0)),
            _ => most,
        };
        let (work, before, _) = self.costs(bytes, self.engine.jitter.0, is_slow);
        let class = *self.draw.pick(&[FlowClass::Normal, FlowClass::Bulk]);
        let limit = if party == LineParty::Copies { self.audit.limits[0] } else { self.audit.limits[1] } as u32;
        let entry = LineEntry { bytes, ..LineEntry::new(class, party, limit) };
        let (owner, asked) = (ChunkOwner::Unpromised, self.now);
        let behind = Nanos::ZERO;
        self.stand(Chunk { entry, owner, job: None, bytes, most, asked, started: asked, work, before, behind });
        self.run.unpromised += 1;
    }

    /// A chunk stands in the line.
    fn stand(&mut self, chunk: Chunk) {
        self.next += 1;
        let staging = chunk.entry.party == LineParty::Staging;
        self.audit.asked(self.next, AuditedChunk { deadline: chunk.entry.deadline, staging });
        self.keys.insert(self.line.ask(chunk.entry), self.next);
        self.chunks.insert(self.next, chunk);
    }

    /// All start that can.
    fn start(&mut self) -> Result<(), String> {
        while let Some(key) = self.line.poll_start() {
            let number = self.keys.remove(&key).ok_or("a chunk starts that never asked")?;
            self.audit.started(number)?;
            let chunk = self.chunks.get_mut(&number).ok_or("a chunk is gone")?;
            chunk.started = self.now;
            let at = Nanos(self.now.0 + chunk.before.0);
            self.at(at, Event::Submitted(number));
        }
        self.audit.is_quiet()
    }

    fn submit(&mut self, chunk: u64) {
        self.queue.push_back(chunk);
        if self.queue.len() == 1 {
            self.serve();
        }
    }

    fn serve(&mut self) {
        if let Some(first) = self.queue.front() {
            let work = self.chunks[first].work;
            self.at(Nanos(self.now.0 + work.0), Event::Served);
        }
    }

    fn served(&mut self) {
        let Some(chunk) = self.queue.pop_front() else { return };
        let behind = self.chunks[&chunk].behind;
        // Ends are told in their order.
        self.tells = self.tells.max(Nanos(self.now.0 + behind.0));
        self.at(self.tells, Event::Told(chunk));
        self.serve();
    }

    fn told(&mut self, number: u64) -> Result<(), String> {
        let chunk = self.chunks.remove(&number).ok_or("a chunk ends twice")?;
        self.audit.ended(number)?;
        let service = Nanos(self.now.0 - chunk.started.max(self.told).0);
        self.told = self.now;
        for (_, job) in self.jobs.iter_mut().filter(|(key, job)| job.has_asked && chunk.job != Some(**key)) {
            let ahead = job.ahead.entry(chunk.owner.clone()).or_default();
            *ahead = (ahead.0 + 1, Nanos(ahead.1.0 + service.0), ahead.2.max(service));
        }
        if chunk.bytes > chunk.most {
            let owner = chunk.owner.clone();
            self.notice(FlowFault::LargeChunk { owner, bytes: chunk.bytes, most: chunk.most });
        }
        let allowed = chunk.bytes.min(chunk.most);
        let most = self.book.chunk_cost(GPU, OUT, allowed).ok_or("no chunk cost")?;
        if service > most {
            self.notice(FlowFault::LongChunk { owner: chunk.owner.clone(), took: service, most });
        }
        let Some(key) = chunk.job else {
            // The next one wants to go on at once, or a moment later.
            let pause = if self.draw.below(4) == 0 { self.draw.below(50_000) } else { 0 };
            self.at(Nanos(self.now.0 + pause), Event::Unpromised(chunk.entry.party));
            self.line.end(&chunk.entry);
            return Ok(());
        };
        let job = self.jobs.get_mut(&key).ok_or("a job ends twice")?;
        job.facts.waited = Nanos(job.facts.waited.0 + (self.now.0 - chunk.asked.0) - service.0);
        job.facts.engine = Nanos(job.facts.engine.0 + service.0);
        job.facts.longest_chunk = job.facts.longest_chunk.max(service);
        job.facts.chunks += 1;
        let (is_done, owner) = (job.left == Bytes(0), job.owner.clone());
        if is_done {
            self.line.end(&chunk.entry);
            return self.over(key, false);
        }
        if self.injects(InjectedFault::Gap) {
            let time = Nanos(1 + self.draw.below(200_000));
            self.notice(FlowFault::Gaps { owner, time });
            self.at(Nanos(self.now.0 + time.0), Event::Ask(key));
        } else {
            self.ask(key)?;
        }
        self.line.end(&chunk.entry);
        Ok(())
    }

    fn over(&mut self, key: (FlowId, u64), is_given_up: bool) -> Result<(), String> {
        let Job { mut facts, ahead, .. } = self.jobs.remove(&key).ok_or("a job ends twice")?;
        facts.ahead = ahead
            .into_iter()
            .map(|(owner, (chunks, time, longest))| ChunksAhead { owner, chunks, time, longest })
            .collect();
        let report = if is_given_up {
            self.book.given_up(self.now, key.0, key.1, facts)
        } else {
            self.book.ended(self.now, key.0, key.1, facts)
        };
        self.run.jobs += 1;
        self.audit.reported(self.now, (key.0.0, key.1), &report.map_err(|error| error.to_string())?)
    }

    /// Says that no chunk without a promise is larger than it may be now.
    fn drain(&mut self) {
        let most = self.book.chunk(GPU, OUT).unwrap_or(self.engine.chunk_max);
        let is_larger = |chunk: &Chunk| chunk.job.is_none() && chunk.bytes > most;
        if self.must_drain && !self.chunks.values().any(is_larger) {
            self.must_drain = false;
            self.book.drained(self.now, GPU, OUT);
        }
    }
}
