//! Flows: copies that come again and again, each with a deadline that was promised, and single copies with one.
//!
//! A [`FlowBook`] admits them to the copy engines of a node, says when their jobs are released and due, and reports for each job where its time
//! went. The line of an engine ([`engine_line`](super::engine_line)) decides which chunk the engine gets next: each chunk has the deadline of its
//! job. The test of an engine is in `flows/admission.rs`.
//!
//! What a driver must do so that promises hold:
//!
//! - Copies without a promise have at most `unpromised_in_flight` chunks on the engine, none larger than [`FlowBook::chunk`].
//! - It calls [`FlowBook::begin`] when a job is released; the answer is the job's largest chunk. Then it puts the first chunk into the line: party
//!   `Promised`, limit 1, with the deadline of the [`FlowJob`]. **It puts the next chunk into the line before it reports the end of the one
//!   before**: else copies without a promise start in between.
//! - It says when a job has ended ([`FlowBook::ended`]), and when an assumption broke ([`FlowBook::fault`]).
//!
//! **A flow joins.** The new set passes the test with no cost below what it was, so that every mixture of old and new jobs is a behaviour of
//! the new set: it is safe at any instant. That is so only while chunks stay as large as they are. If they must be smaller, an old large
//! chunk could block a job that already has more to wait for, because of the new flow. So copies without a promise get the smaller chunk at
//! once, and promised jobs, with the new flow, when all larger chunks have left the engine and then no promised job is there: the flow
//! *is settled*.
//!
//! **A flow leaves.** When its last job has ended, others that it delayed may still wait, and a newcomer that fits beside them may not fit
//! behind the delay. With costs and periods (15, 30), (10, 50), (10, 50), (11, 1000), the first leaving and (10, 20) coming at the instant
//! 30, both sets pass the test and yet a deadline is missed at 50. Nothing is left of that once no promised job is on the engine. Then its
//! capacity returns, and chunks may grow. An urgent copy is a flow of one job that leaves at once.
//!
//! Sans-IO: time is an argument. One that is earlier than another before it counts as that.

mod admission;
mod contract;
mod engines;
mod log;
mod report;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::decisions::engine_line::FlowClass;
use crate::files::workload::OnMiss;
use crate::models::transfer::Direction;
use crate::units::{Bytes, Nanos};

use self::admission::{Demand, Demands};
use self::report::{EndedJob, add_fault};

pub use self::contract::{
    FlowAdmitted, FlowAssumption, FlowContract, FlowId, FlowProposal, FlowRefused, FlowSuffers, FlowUnfit,
    InvalidContract, UnfitReason,
};
pub use self::engines::{CHUNK_MAX, CHUNK_MIN, CHUNK_USUAL, FlowEngine, flow_engines};
pub use self::log::{FlowAnswer, FlowInput};
pub use self::report::{ChunkOwner, ChunksAhead, FlowBlame, FlowFault, FlowJobReport, JobEnd, JobFacts};

/// Bounds on what a book holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowLimits {
    /// Flows of one engine, with urgent copies and flows that leave.
    pub flows_max: usize,
    /// Jobs of one flow that were submitted and have not ended.
    pub jobs_max: usize,
    /// Length of a name.
    pub name_max: usize,
    pub bytes_max: Bytes,
    /// The longest period and deadline.
    pub time_max: Nanos,
    /// Faults of one engine, one of each kind and owner, that are remembered until it has nothing promised to do.
    pub faults_max: usize,
}

/// The limits used where none are given.
pub const LIMITS: FlowLimits = FlowLimits {
    flows_max: 256,
    jobs_max: 64,
    name_max: 255,
    bytes_max: Bytes(1 << 40),
    time_max: Nanos(1 << 50),
    faults_max: 64,
};

/// A job that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowJob {
    pub flow: FlowId,
    /// Its number in the flow, from 0.
    pub sequence: u64,
    /// When its first chunk may ask; later than now where it came earlier than the contract allows.
    pub release: Nanos,
    /// When all of it must be there, an absolute time: the deadline of its chunks in the line.
    pub deadline: Nanos,
    pub is_urgent: bool,
    /// What happens if none of it is on the engine at its deadline: with `skip` the driver gives it up.
    pub on_miss: OnMiss,
}

impl FlowJob {
    /// The class of its chunks in the line.
    #[must_use]
    pub const fn class(&self) -> FlowClass {
        if self.is_urgent { FlowClass::Urgent } else { FlowClass::Guaranteed }
    }
}

/// A job that is not accepted. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum SubmitRefused {
    #[error("there is no such flow, or it is closed; open one")]
    Unknown,
    #[error("flow `{name}` is not settled: larger chunks of others may be on the engine; wait until it is")]
    NotSettled { name: String },
    #[error("flow `{name}` has missed a deadline and stops, as it asked for; open it again")]
    Stopped { name: String },
    #[error("a job of flow `{name}` moves no bytes; give it some")]
    Empty { name: String },
    #[error(
        "a job of flow `{name}` moves {bytes}, its contract says at most {most}; divide it, or open a flow for more"
    )]
    TooLarge { name: String, bytes: Bytes, most: Bytes },
    #[error("flow `{name}` has {limit} jobs that have not ended; wait for one, or open it with a shorter period")]
    Full { name: String, limit: usize },
}

/// A flow, or a job of one, that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("there is no such flow or job; it was closed, or has ended")]
pub struct FlowUnknown;

/// A flow that was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowClosed {
    /// Its capacity has returned. Else it returns as soon as no promised job is on the engine.
    pub has_returned: bool,
    /// The latest deadline of all jobs of the engine that were accepted: by then they have ended, unless one is late. Now if it has returned.
    pub returns_from: Nanos,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Pending {
    submitted: Nanos,
    release: Nanos,
    deadline: Nanos,
    bytes: Bytes,
    /// Its largest chunk, once it has begun.
    chunk: Option<Bytes>,
}

impl Pending {
    fn new(submitted: Nanos, release: Nanos, deadline: Nanos, bytes: Bytes) -> Self {
        Self { submitted, release, deadline, bytes, chunk: None }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum FlowState {
    /// Smaller chunks are needed before its jobs may come.
    Joining,
    Open,
    /// It had `on_miss = "stop"`, and missed.
    Stopped,
    /// No job comes any more; its capacity has not returned.
    Leaving,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Flow {
    name: String,
    demand: Demand,
    on_miss: OnMiss,
    state: FlowState,
    is_urgent: bool,
    jobs: BTreeMap<u64, Pending>,
    next: u64,
    last_release: Option<Nanos>,
}

impl Flow {
    fn owner(&self) -> ChunkOwner {
        if self.is_urgent { ChunkOwner::Urgent } else { ChunkOwner::Flow(self.name.clone()) }
    }
}

/// One engine.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct EngineFlows {
    engine: FlowEngine,
    /// The lower set-up that counts from the next instant at which nothing promised is there: other processes have left.
    later: Option<Nanos>,
    flows: BTreeMap<FlowId, Flow>,
    /// The largest chunk of promised jobs, with which all flows pass but joining ones; [`FlowEngine::chunk_max`] without flows.
    chunk: Bytes,
    /// The largest chunk with which all flows pass: it becomes `chunk` when the joining ones are settled.
    target: Bytes,
    /// No chunk without a promise is on the engine that is larger than both.
    is_drained: bool,
    /// Bounds that somebody asked for since the flows changed the last time.
    bounds: BTreeMap<FlowId, Nanos>,
    faults: Vec<FlowFault>,
    /// By how much the promised chunks since the last instant without a promised job were later than each may be.
    late: Nanos,
}

impl EngineFlows {
    fn new(engine: FlowEngine) -> Self {
        let chunk = engine.chunk_max;
        Self {
            engine,
            later: None,
            flows: BTreeMap::new(),
            chunk,
            target: chunk,
            is_drained: true,
            bounds: BTreeMap::new(),
            faults: Vec::new(),
            late: Nanos::ZERO,
        }
    }

    /// The largest chunk of copies without a promise.
    fn unpromised(&self) -> Bytes {
        self.chunk.min(self.target)
    }

    /// What jobs may come of, now or, `joined`, with all that join.
    fn counted(&self, joined: bool) -> impl Iterator<Item = (FlowId, &Flow)> {
        let counts = move |flow: &Flow| joined || flow.state != FlowState::Joining;
        self.flows.iter().filter(move |(_, flow)| counts(flow)).map(|(id, flow)| (*id, flow))
    }

    fn demands(&self, joined: bool, more: Option<Demand>) -> Demands<'_> {
        let there = self.counted(joined).map(|(_, flow)| flow.demand);
        Demands::new(&self.engine, there.chain(more))
    }

    fn bound(&self, flow: FlowId) -> Option<Nanos> {
        if let Some(known) = self.bounds.get(&flow) {
            return Some(*known);
        }
        let at = self.counted(false).position(|(id, _)| id == flow)?;
        Some(self.demands(false, None).bound(at, self.chunk))
    }

    /// No promised job is released and has not ended: nothing of what was before has an influence any more.
    fn is_idle(&self, now: Nanos) -> bool {
        self.flows.values().all(|flow| flow.jobs.values().all(|job| job.release > now && job.chunk.is_none()))
    }

    /// Takes the chance of an instant at which no promised job is there; whether flows have left.
    fn rest(&mut self, now: Nanos) -> bool {
        if !self.is_idle(now) {
            return false;
        }
        self.faults.clear();
        self.late = Nanos::ZERO;
        let leaves = |flow: &Flow| flow.state == FlowState::Leaving && flow.jobs.is_empty();
        // Urgent copies have no say in how large chunks are.
        let grows = self.flows.values().any(|flow| leaves(flow) && !flow.is_urgent);
        let before = self.flows.len();
        self.flows.retain(|_, flow| !leaves(flow));
        let have_left = before != self.flows.len();
        let mut changed = have_left;
        if self.flows.is_empty() {
            (self.target, self.is_drained) = (self.engine.chunk_max, true);
        } else if grows {
            // What is left passes with the target, too, so that chunks never become smaller here.
            self.target = self.demands(true, None).chunk().map_or(self.target, |chunk| chunk.max(self.target));
        }
        if self.is_drained {
            for flow in self.flows.values_mut().filter(|flow| flow.state == FlowState::Joining) {
                (flow.state, changed) = (FlowState::Open, true);
            }
            changed |= self.chunk != self.target || self.later.is_some();
            self.chunk = self.target;
            self.engine.setup = self.later.take().unwrap_or(self.engine.setup);
        }
        if changed {
            self.bounds.clear();
        }
        have_left
    }
}

/// The flows of a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FlowBook {
    #[serde(with = "crate::decisions::pairs")]
    engines: BTreeMap<(u32, Direction), EngineFlows>,
    /// The engine of each flow.
    places: BTreeMap<FlowId, (u32, Direction)>,
    limits: FlowLimits,
    next: u64,
    now: Nanos,
}

impl FlowBook {
    /// A book without flows. Of two engines of one GPU and direction the last counts.
    #[must_use]
    pub fn new(engines: Vec<FlowEngine>, limits: FlowLimits) -> Self {
        let engines = engines.into_iter().map(|engine| ((engine.gpu, engine.direction), EngineFlows::new(engine)));
        Self { engines: engines.collect(), places: BTreeMap::new(), limits, next: 0, now: Nanos::ZERO }
    }

    /// Admits a flow, or says whose deadline it would break and what would help.
    ///
    /// # Errors
    /// [`FlowRefused`]; nothing has changed then.
    pub fn open(&mut self, now: Nanos, contract: FlowContract) -> Result<FlowAdmitted, FlowRefused> {
        let now = self.advance(now);
        self.check(&contract)?;
        let key = (contract.gpu, contract.direction);
        let demand = Demand { bytes: contract.bytes, period: contract.period, deadline: contract.deadline };
        self.rest(now, key.0, key.1);
        let place = self.engines.get_mut(&key).expect("it was checked that there is one");
        let demands = place.demands(true, Some(demand));
        let chunk = match demands.chunk() {
            // Chunks grow only when no promised job is there.
            Ok(chunk) if chunk > place.target && demands.hold_with(place.target) => place.target,
            Ok(chunk) => chunk,
            Err(unfit) => {
                let fits = |place: &EngineFlows, demand| place.demands(true, Some(demand)).chunk().is_ok();
                return Err(self.unfit(&contract.name, key, demand, true, unfit, fits));
            }
        };
        let bound = demands.bound(place.flows.len(), chunk);
        place.is_drained &= chunk >= place.unpromised();
        place.target = chunk;
        let is_settled = place.is_drained && place.chunk == chunk;
        let flow = FlowId(self.next);
        self.next += 1;
        let state = if is_settled { FlowState::Open } else { FlowState::Joining };
        let opened = Flow {
            name: contract.name,
            demand,
            on_miss: contract.on_miss,
            state,
            is_urgent: false,
            jobs: BTreeMap::new(),
            next: 0,
            last_release: None,
        };
        place.flows.insert(flow, opened);
        place.bounds.clear();
        self.places.insert(flow, key);
        Ok(FlowAdmitted { flow, bound, chunk, is_settled, assumptions: place.engine.assumptions() })
    }

    /// What the engine costs is now another thing, since other processes copy on it or do so no longer: a higher set-up counts at once, a lower
    /// one when nothing promised is there. Flows that were admitted keep their chunk if they can, else it changes as when a flow joins.
    ///
    /// # Errors
    /// [`FlowSuffers`], with `suffix` behind the flow's name; nothing has changed then.
    pub fn change(&mut self, now: Nanos, engine: FlowEngine, suffix: &str) -> Result<(), FlowSuffers> {
        let now = self.advance(now);
        let Some(place) = self.engines.get_mut(&(engine.gpu, engine.direction)) else { return Ok(()) };
        let (setup, before) = (engine.setup, std::mem::replace(&mut place.engine, engine));
        let engine = &place.engine;
        let mut chunk = engine.chunk_max;
        if !place.flows.is_empty() {
            let demands = place.demands(true, None);
            let is_possible = (engine.chunk_min..=engine.chunk_max).contains(&place.target);
            let found = if is_possible && demands.hold_with(place.target) { Ok(place.target) } else { demands.chunk() };
            chunk = match found {
                Ok(chunk) => chunk,
                Err(unfit) => {
                    let names: Vec<String> =
                        place.counted(true).map(|(_, flow)| format!("{}{suffix}", flow.name)).collect();
                    let names: Vec<&str> = names.iter().map(String::as_str).collect();
                    let (suffers, by, why) = unfit.named(names[0], &names);
                    place.engine = before;
                    return Err(FlowSuffers { suffers, by, why });
                }
            };
        }
        place.engine.setup = setup.max(before.setup);
        place.later = (setup < before.setup).then_some(setup);
        place.is_drained &= chunk >= place.unpromised();
        place.target = chunk;
        place.bounds.clear();
        let key = (place.engine.gpu, place.engine.direction);
        self.rest(now, key.0, key.1);
        Ok(())
    }

    /// Whether every change of an engine counts now: no chunk is larger than its flows allow for, and no job goes by former costs.
    #[must_use]
    pub fn is_in_force(&self, gpu: u32, direction: Direction) -> bool {
        let place = self.engines.get(&(gpu, direction));
        place.is_none_or(|place| place.later.is_none() && place.is_drained && place.chunk == place.target)
    }

    /// The engines as a book must have them that keeps to this one's chunks: where there are flows, no other size is possible.
    #[must_use]
    pub fn terms(&self) -> Vec<FlowEngine> {
        let terms = |place: &EngineFlows| match place.flows.is_empty() {
            true => place.engine.clone(),
            false => FlowEngine { chunk_min: place.target, chunk_max: place.target, ..place.engine.clone() },
        };
        self.engines.values().map(terms).collect()
    }

    /// The flows that are open, with those that leave.
    pub fn flows(&self) -> impl Iterator<Item = FlowContract> {
        let contract = |place: &EngineFlows, flow: &Flow| FlowContract {
            name: flow.name.clone(),
            gpu: place.engine.gpu,
            direction: place.engine.direction,
            bytes: flow.demand.bytes,
            period: flow.demand.period,
            deadline: flow.demand.deadline,
            on_miss: flow.on_miss,
        };
        self.engines.values().flat_map(move |place| place.flows.values().map(move |flow| contract(place, flow)))
    }

    /// Threads may bring their times in another order than they took them: time does not go back for that.
    fn advance(&mut self, now: Nanos) -> Nanos {
        self.now = self.now.max(now);
        self.now
    }

    fn check(&self, contract: &FlowContract) -> Result<(), InvalidContract> {
        let FlowContract { name, gpu, direction, period, .. } = contract;
        let limits = &self.limits;
        if name.is_empty() || name.len() > limits.name_max || name.chars().any(char::is_control) {
            return Err(InvalidContract::Name { most: limits.name_max });
        }
        let mut flows = self.engines.values().flat_map(|place| place.flows.values());
        if flows.any(|flow| flow.name == *name && flow.state != FlowState::Leaving) {
            return Err(InvalidContract::NameTaken { name: name.clone() });
        }
        if *period == Nanos::ZERO || *period > limits.time_max {
            return Err(InvalidContract::Period { name: name.clone(), period: *period, most: limits.time_max });
        }
        let demand = Demand { bytes: contract.bytes, period: *period, deadline: contract.deadline };
        self.check_demand(name, (*gpu, *direction), &demand)
    }

    fn check_demand(&self, name: &str, key: (u32, Direction), demand: &Demand) -> Result<(), InvalidContract> {
        let limits = &self.limits;
        let name = name.to_owned();
        let Some(place) = self.engines.get(&key) else {
            return Err(InvalidContract::NoEngine { name, gpu: key.0, direction: key.1 });
        };
        if demand.bytes == Bytes(0) {
            return Err(InvalidContract::NoBytes { name });
        }
        if demand.bytes > limits.bytes_max {
            return Err(InvalidContract::TooManyBytes { name, bytes: demand.bytes, most: limits.bytes_max });
        }
        if demand.deadline == Nanos::ZERO || demand.deadline > limits.time_max {
            return Err(InvalidContract::Deadline { name, deadline: demand.deadline, most: limits.time_max });
        }
        if place.flows.len() >= limits.flows_max {
            return Err(InvalidContract::Full { name, limit: limits.flows_max });
        }
        Ok(())
    }

    /// The refusal of `demand`, which asks for `key`: flows that join were counted or not. `fits` is the test of an engine with one more demand.
    fn unfit(
        &self,
        name: &str,
        key: (u32, Direction),
        demand: Demand,
        joined: bool,
        unfit: admission::Unfit,
        fits: impl Fn(&EngineFlows, Demand) -> bool,
    ) -> FlowRefused {
        let place = &self.engines[&key];
        let counted = place.counted(joined).map(|(_, flow)| flow.name.as_str());
        let (suffers, by, why) = unfit.named(name, &counted.chain([name]).collect::<Vec<&str>>());
        let mut proposals =
            admission::proposals(demand, &place.engine, self.limits.time_max, |demand| fits(place, demand));
        let others = self.engines.iter().filter(|((gpu, direction), _)| *gpu != key.0 && *direction == key.1);
        let others = others.filter(|(other, _)| self.check_demand(name, **other, &demand).is_ok());
        let others = others.filter(|(_, place)| fits(place, demand)).map(|((gpu, _), _)| FlowProposal::OtherGpu(*gpu));
        proposals.extend(others);
        FlowRefused::Unfit(Box::new(FlowUnfit { name: name.to_owned(), suffers, by, why, proposals, turn: None }))
    }

    /// The driver says that no chunk without a promise is on the engine that is larger than [`FlowBook::chunk`].
    pub fn drained(&mut self, now: Nanos, gpu: u32, direction: Direction) {
        if let Some(place) = self.engines.get_mut(&(gpu, direction)) {
            place.is_drained = true;
        }
        self.rest(now, gpu, direction);
    }

    /// Whether the flow's jobs are accepted: chunks are as small as it needs.
    #[must_use]
    pub fn is_settled(&self, flow: FlowId) -> bool {
        self.flow(flow).is_some_and(|flow| flow.state != FlowState::Joining)
    }

    /// The largest chunk of copies without a promise; `None` = there is no flow, so that they are as large as they like, up to
    /// [`FlowEngine::chunk_max`].
    #[must_use]
    pub fn chunk(&self, gpu: u32, direction: Direction) -> Option<Bytes> {
        let place = self.engines.get(&(gpu, direction))?;
        (!place.flows.is_empty()).then(|| place.unpromised())
    }

    /// A job begins: its first chunk asks the line next. It counts as being there from now on, also where another thread brings an earlier
    /// time later. The largest chunk that it may have until it ends.
    ///
    /// # Errors
    /// [`FlowUnknown`] if there is no such job.
    pub fn begin(&mut self, now: Nanos, flow: FlowId, sequence: u64) -> Result<Bytes, FlowUnknown> {
        let now = self.advance(now);
        let place = self.places.get(&flow).and_then(|key| self.engines.get_mut(key)).ok_or(FlowUnknown)?;
        let of = place.flows.get_mut(&flow).ok_or(FlowUnknown)?;
        let job = of.jobs.get_mut(&sequence).ok_or(FlowUnknown)?;
        if let Some(chunk) = job.chunk {
            return Ok(chunk);
        }
        job.chunk = Some(place.chunk);
        let (late, jitter) = (now.saturating_sub(job.release), place.engine.jitter);
        if late > jitter {
            let fault = FlowFault::AskedLate { owner: of.owner(), late, jitter };
            add_fault(&mut place.faults, fault, self.limits.faults_max);
        }
        Ok(place.chunk)
    }

    /// The longest service time of a chunk of so many bytes: a longer one is a [fault](FlowFault::LongChunk).
    #[must_use]
    pub fn chunk_cost(&self, gpu: u32, direction: Direction, bytes: Bytes) -> Option<Nanos> {
        self.engines.get(&(gpu, direction)).map(|place| place.engine.chunk_cost(bytes))
    }

    /// The longest response of a flow's jobs with the flows that there are now. It grows when others join, but not beyond the deadline. `None` =
    /// there is no such flow, or it is not settled.
    #[must_use]
    pub fn bound(&self, flow: FlowId) -> Option<Nanos> {
        self.engines.get(self.places.get(&flow)?)?.bound(flow)
    }

    /// Whether the flow is there: it was opened and has not left.
    #[must_use]
    pub fn has(&self, flow: FlowId) -> bool {
        self.flow(flow).is_some()
    }

    fn flow(&self, flow: FlowId) -> Option<&Flow> {
        self.engines.get(self.places.get(&flow)?)?.flows.get(&flow)
    }

    /// Accepts a job of at most the contract's bytes. One that comes earlier than the contract allows is released later.
    ///
    /// # Errors
    /// [`SubmitRefused`]; nothing has changed then.
    pub fn submit(&mut self, now: Nanos, flow: FlowId, bytes: Bytes) -> Result<FlowJob, SubmitRefused> {
        let now = self.advance(now);
        let key = *self.places.get(&flow).ok_or(SubmitRefused::Unknown)?;
        self.rest(now, key.0, key.1);
        let place = self.engines.get_mut(&key).ok_or(SubmitRefused::Unknown)?;
        let of = place.flows.get_mut(&flow).ok_or(SubmitRefused::Unknown)?;
        let name = || of.name.clone();
        match of.state {
            FlowState::Open => {}
            FlowState::Joining => return Err(SubmitRefused::NotSettled { name: name() }),
            FlowState::Stopped => return Err(SubmitRefused::Stopped { name: name() }),
            FlowState::Leaving => return Err(SubmitRefused::Unknown),
        }
        if bytes == Bytes(0) {
            return Err(SubmitRefused::Empty { name: name() });
        }
        if bytes > of.demand.bytes {
            return Err(SubmitRefused::TooLarge { name: name(), bytes, most: of.demand.bytes });
        }
        if of.jobs.len() >= self.limits.jobs_max {
            return Err(SubmitRefused::Full { name: name(), limit: self.limits.jobs_max });
        }
        let earliest = of.last_release.map_or(Nanos::ZERO, |last| last.saturating_add(of.demand.period));
        let release = now.max(earliest);
        let deadline = release.saturating_add(of.demand.deadline);
        let sequence = of.next;
        of.next += 1;
        of.last_release = Some(release);
        of.jobs.insert(sequence, Pending::new(now, release, deadline, bytes));
        Ok(FlowJob { flow, sequence, release, deadline, is_urgent: of.is_urgent, on_miss: of.on_miss })
    }

    /// Admits one copy with a deadline from now on, or says what stands against it. Chunks stay as they are.
    ///
    /// # Errors
    /// [`FlowRefused`]; nothing has changed then.
    pub fn urgent(
        &mut self,
        now: Nanos,
        gpu: u32,
        direction: Direction,
        bytes: Bytes,
        deadline: Nanos,
    ) -> Result<FlowJob, FlowRefused> {
        let name = "an urgent copy".to_owned();
        let demand = Demand { bytes, period: Nanos::MAX, deadline };
        let now = self.advance(now);
        self.check_demand(&name, (gpu, direction), &demand)?;
        self.rest(now, gpu, direction);
        let place = self.engines.get_mut(&(gpu, direction)).expect("it was checked that there is one");
        let demands = place.demands(false, Some(demand));
        if !demands.hold_with(place.chunk) {
            let unfit = demands.why_with(place.chunk);
            let fits = |place: &EngineFlows, demand| place.demands(false, Some(demand)).hold_with(place.chunk);
            return Err(self.unfit(&name, (gpu, direction), demand, false, unfit, fits));
        }
        let id = FlowId(self.next);
        self.next += 1;
        let due = now.saturating_add(deadline);
        let job = Pending::new(now, now, due, bytes);
        let opened = Flow {
            name,
            demand,
            on_miss: OnMiss::Finish,
            state: FlowState::Leaving,
            is_urgent: true,
            jobs: BTreeMap::from([(0, job)]),
            next: 1,
            last_release: Some(now),
        };
        place.flows.insert(id, opened);
        place.bounds.clear();
        self.places.insert(id, (gpu, direction));
        Ok(FlowJob { flow: id, sequence: 0, release: now, deadline: due, is_urgent: true, on_miss: OnMiss::Finish })
    }

    /// A job has ended: all its bytes are there.
    ///
    /// # Errors
    /// [`FlowUnknown`] if there is no such job.
    pub fn ended(
        &mut self,
        now: Nanos,
        flow: FlowId,
        sequence: u64,
        facts: JobFacts,
    ) -> Result<FlowJobReport, FlowUnknown> {
        self.end(now, flow, sequence, &facts, JobEnd::Done)
    }

    /// A job of which nothing was on the engine at its deadline was given up.
    ///
    /// # Errors
    /// [`FlowUnknown`] if there is no such job.
    pub fn given_up(
        &mut self,
        now: Nanos,
        flow: FlowId,
        sequence: u64,
        facts: JobFacts,
    ) -> Result<FlowJobReport, FlowUnknown> {
        self.end(now, flow, sequence, &facts, JobEnd::GivenUp)
    }

    /// A job failed; none of its chunks is on the engine.
    ///
    /// # Errors
    /// [`FlowUnknown`] if there is no such job.
    pub fn failed(&mut self, now: Nanos, flow: FlowId, sequence: u64) -> Result<FlowJobReport, FlowUnknown> {
        self.end(now, flow, sequence, &JobFacts::default(), JobEnd::Failed)
    }

    fn end(
        &mut self,
        now: Nanos,
        flow: FlowId,
        sequence: u64,
        facts: &JobFacts,
        end: JobEnd,
    ) -> Result<FlowJobReport, FlowUnknown> {
        // The job took what it took, although others may have brought later times since.
        let ended_at = now;
        let now = self.advance(now);
        let key = *self.places.get(&flow).ok_or(FlowUnknown)?;
        let place = self.engines.get_mut(&key).ok_or(FlowUnknown)?;
        let of = place.flows.get_mut(&flow).ok_or(FlowUnknown)?;
        let job = of.jobs.remove(&sequence).ok_or(FlowUnknown)?;
        let missed = end != JobEnd::Done || ended_at > job.deadline;
        if missed && of.on_miss == OnMiss::Stop && of.state == FlowState::Open {
            of.state = FlowState::Stopped;
        }
        let (owner, deadline) = (of.owner(), of.demand.deadline);
        let bound = place.bound(flow).unwrap_or(deadline);
        place.bounds.insert(flow, bound);
        let engine = &place.engine;
        let expected = admission::worst(engine, job.bytes, job.chunk.unwrap_or(place.chunk));
        if facts.chunks > 0 {
            place.late = place.late.saturating_add(facts.engine).saturating_sub(expected);
        }
        let ended = EndedJob {
            owner,
            release: job.release,
            response: ended_at.saturating_sub(job.release),
            bound,
            jitter: engine.jitter,
            chunk_cost: engine.chunk_cost(place.chunk),
            worst: expected.saturating_add(engine.late_once()),
            late: place.late,
            late_once: engine.late_once(),
            unpromised_in_flight: engine.unpromised_in_flight,
            known: &place.faults,
        };
        let (mut own, mut blame) = (Vec::new(), Vec::new());
        if end != JobEnd::Failed {
            own = ended.faults(facts);
            blame = ended.blame(facts, &own);
        }
        let held = job.release.saturating_sub(job.submitted);
        let report = FlowJobReport { response: ended.response, bound, end, missed, held, blame };
        own.into_iter().for_each(|fault| add_fault(&mut place.faults, fault, self.limits.faults_max));
        self.rest(now, key.0, key.1);
        Ok(report)
    }

    /// The driver noticed that an assumption broke. Jobs of this engine that then take longer than promised name it, until the engine next has
    /// nothing promised to do.
    pub fn fault(&mut self, now: Nanos, gpu: u32, direction: Direction, fault: FlowFault) {
        self.rest(now, gpu, direction);
        if let Some(place) = self.engines.get_mut(&(gpu, direction)) {
            add_fault(&mut place.faults, fault, self.limits.faults_max);
        }
    }

    /// No job of the flow comes any more; those that were accepted go on.
    ///
    /// # Errors
    /// [`FlowUnknown`] if there is no such flow.
    pub fn close(&mut self, now: Nanos, flow: FlowId) -> Result<FlowClosed, FlowUnknown> {
        let now = self.advance(now);
        let key = *self.places.get(&flow).ok_or(FlowUnknown)?;
        let place = self.engines.get_mut(&key).ok_or(FlowUnknown)?;
        let of = place.flows.get_mut(&flow).filter(|flow| flow.state != FlowState::Leaving).ok_or(FlowUnknown)?;
        of.state = FlowState::Leaving;
        let jobs = place.flows.values().flat_map(|flow| flow.jobs.values());
        let returns_from = jobs.map(|job| job.deadline).max().unwrap_or(now).max(now);
        self.rest(now, key.0, key.1);
        let has_returned = !self.places.contains_key(&flow);
        Ok(FlowClosed { has_returned, returns_from: if has_returned { now } else { returns_from } })
    }

    /// All flows close.
    pub fn close_all(&mut self, now: Nanos) {
        for flow in self.places.keys().copied().collect::<Vec<_>>() {
            // One that leaves already is on its way.
            let _ = self.close(now, flow);
        }
    }

    /// Capacity that can return does, and flows that can be settled are, if no promised job is on the engine. All other calls look, too, so
    /// that this one is needed only to see that nothing changes.
    pub fn rest(&mut self, now: Nanos, gpu: u32, direction: Direction) {
        let now = self.advance(now);
        if let Some(place) = self.engines.get_mut(&(gpu, direction)) {
            let have_left = place.rest(now);
            let flows = &place.flows;
            if have_left {
                self.places.retain(|flow, key| *key != (gpu, direction) || flows.contains_key(flow));
            }
        }
    }
}
