//! Flows that join and leave the transfers of one domain while others run.
//!
//! A join is accepted if the new set of messages passes the sporadic test with no cost below what it was: every mixture of
//! old and new jobs is then a behaviour of the new set, so that it is safe at any instant.
//!
//! A leave is harder. When the last job of the leaver has met its deadline, jobs of others that it delayed may still wait,
//! and a newcomer that fits beside *them* may not fit behind the delay: with costs and periods (15,30), (10,50), (10,50),
//! (11,1000), the first leaving and (10,20) coming at the instant 30, both sets pass the test of Jeffay, Stanat and Martel
//! and yet a deadline is missed at 50. So capacity returns at the first *idle* instant at or after that deadline: nothing is
//! left of the old set then.
//!
//! Sans-IO: time is an argument, the driver says when the domain is idle, answers are values.

use std::collections::BTreeMap;

use headway_core::analysis::schedulability::{RecurrentTask, TestOutcome, TestViolation, jeffay};
use headway_core::files::machine::{Calibration, RouteId};
use headway_core::interconnect::{BatchBlock, Network, Starved};
use headway_core::units::{Bytes, Nanos, PPM};

/// Bounds on what one domain holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainLimits {
    /// Flows, leaving ones included.
    pub flows_max: usize,
    /// Blocks of one message.
    pub blocks_max: usize,
}

/// The limits used where none are given.
pub const LIMITS: DomainLimits = DomainLimits { flows_max: 4096, blocks_max: 64 };

/// What a flow asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowRequest {
    pub id: String,
    /// What each packet moves, one block per route.
    pub blocks: Vec<BatchBlock>,
    /// Time between packets.
    pub period: Nanos,
    /// The longest window that its deadline allows a transfer: a cycle of its pipeline.
    pub window: Nanos,
}

/// How a flow was taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowPlacement {
    /// The blocks of a message on the same routes grew.
    Grown,
    /// It has a message of its own.
    Alone,
    /// Its blocks go in so many parts with a message of a shorter or equal period (Definitions IV.4 and IV.5).
    Combined {
        /// Parts of each block.
        parts: u64,
    },
}

/// An accepted join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    pub flow: String,
    /// Number of the message that carries it.
    pub message: u64,
    pub placement: FlowPlacement,
    /// The start of the first cycle that carries it.
    pub effective: Nanos,
}

/// A join or leave that is not possible. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdmissionRefused {
    /// Some flow could miss a deadline.
    #[error("flow `{flow}` would let `{suffers}` miss deadlines{}", helped(*helps))]
    Overload {
        /// The flow that asked to join.
        flow: String,
        /// Whose deadline could be missed.
        suffers: String,
        /// The share of its bytes with which it would be accepted now, parts per million; `None` = not even one byte.
        helps: Option<u64>,
    },
    /// The name is taken.
    #[error("flow `{flow}` is there already; wait until it has left, or choose another name")]
    Known { flow: String },
    /// No such flow is running.
    #[error("flow `{flow}` is not running")]
    Unknown { flow: String },
    /// It asks for nothing, or has no time.
    #[error("flow `{flow}` needs at least one block, a period and a window above zero")]
    Empty { flow: String },
    /// A limit of the domain is reached.
    #[error("the domain holds {limit} flows, its limit; let one leave before `{flow}` joins")]
    Full { flow: String, limit: usize },
    /// A route has no rate.
    #[error("a route of the flow has no rate")]
    Network(#[from] Starved),
}

fn helped(ppm: Option<u64>) -> String {
    match ppm {
        Some(ppm) => format!("; it would fit with {}.{} % of its bytes", ppm / 10_000, ppm / 1_000 % 10),
        None => "; it would not fit with fewer bytes either, but perhaps with a longer deadline".to_owned(),
    }
}

/// A periodic batch, as a dispatcher runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// Period and relative deadline.
    pub period: Nanos,
    /// Start of its first cycle.
    pub start: Nanos,
    /// Its blocks in submission order, at most one per route.
    pub blocks: Vec<BatchBlock>,
    /// Worst-case time of a job.
    pub cost: Nanos,
}

impl Running {
    /// The first cycle start at or after `now`.
    #[must_use]
    pub fn next_cycle(&self, now: Nanos) -> Nanos {
        next_cycle(self.start, self.period, now)
    }
}

fn next_cycle(start: Nanos, period: Nanos, now: Nanos) -> Nanos {
    let past = now.saturating_sub(start).0.div_ceil(period.0.max(1));
    start.saturating_add(Nanos(past.saturating_mul(period.0)))
}

#[derive(Clone, Debug)]
struct Flow {
    message: u64,
    /// What it reserves in every job of its message.
    reserve: Vec<BatchBlock>,
    /// Start of its first window, and the length of its windows.
    start: Nanos,
    window: Nanos,
    /// Deadline of its last job, once it leaves.
    last_deadline: Option<Nanos>,
}

/// The flows of one domain and the messages that carry them.
#[derive(Clone, Debug)]
pub struct Admission {
    network: Network,
    calibration: Option<Calibration>,
    limits: DomainLimits,
    messages: BTreeMap<u64, Running>,
    flows: BTreeMap<String, Flow>,
    count: u64,
}

/// One way of taking a flow in: the message with its blocks after the join.
struct Candidate {
    message: Option<u64>,
    placement: FlowPlacement,
    reserve: Vec<BatchBlock>,
    after: Running,
}

impl Admission {
    /// An empty domain.
    #[must_use]
    pub fn new(network: Network, calibration: Option<Calibration>, limits: DomainLimits) -> Self {
        Self { network, calibration, limits, messages: BTreeMap::new(), flows: BTreeMap::new(), count: 0 }
    }

    /// The messages that run, by number. A dispatcher releases a job of each at every cycle start.
    #[must_use]
    pub const fn messages(&self) -> &BTreeMap<u64, Running> {
        &self.messages
    }

    /// The flows that are here, leaving ones included, with whether they are leaving.
    pub fn flows(&self) -> impl Iterator<Item = (&str, bool)> {
        self.flows.iter().map(|(id, flow)| (id.as_str(), flow.last_deadline.is_some()))
    }

    /// When capacity can return at the earliest: the driver should say whether the domain is idle then.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        self.flows.values().filter_map(|flow| flow.last_deadline).min()
    }

    /// Takes a flow in at `now`: grows a message on the same routes, or makes a new one, or combines it into one with a
    /// shorter or equal period, whichever comes first and passes. `now` is after whatever the domain has begun: a job
    /// that begins at the same instant, and that the newcomer's job would have preceded, may delay it by its whole length.
    ///
    /// # Errors
    /// [`AdmissionRefused`]; nothing has changed then.
    pub fn join(&mut self, now: Nanos, request: &FlowRequest) -> Result<Admitted, AdmissionRefused> {
        let flow = request.id.clone();
        if request.blocks.is_empty() || request.period == Nanos::ZERO || request.window == Nanos::ZERO {
            return Err(AdmissionRefused::Empty { flow });
        }
        if self.flows.contains_key(&flow) {
            return Err(AdmissionRefused::Known { flow });
        }
        if self.flows.len() >= self.limits.flows_max {
            return Err(AdmissionRefused::Full { flow, limit: self.limits.flows_max });
        }
        let mut violation = None;
        for candidate in self.candidates(now, request)? {
            match self.test(&candidate) {
                Ok(()) => return Ok(self.take(now, request, candidate)),
                Err(found) => violation = Some(found),
            }
        }
        let suffers = violation.unwrap_or_else(|| flow.clone());
        let helps = self.share_that_fits(now, request)?;
        Err(AdmissionRefused::Overload { flow, suffers, helps })
    }

    /// Lets a flow leave at `now`, and says when its last job must be done: the one released at the end of the cycle under
    /// way. Its capacity returns when the domain is idle
    /// at or after that instant.
    ///
    /// # Errors
    /// [`AdmissionRefused::Unknown`].
    pub fn leave(&mut self, now: Nanos, id: &str) -> Result<Nanos, AdmissionRefused> {
        let flow = self.flows.get_mut(id).filter(|flow| flow.last_deadline.is_none());
        let flow = flow.ok_or_else(|| AdmissionRefused::Unknown { flow: id.to_owned() })?;
        // What came since the last release goes with the next one.
        let deadline = next_cycle(flow.start, flow.window, now).saturating_add(flow.window);
        flow.last_deadline = Some(deadline);
        Ok(deadline)
    }

    /// Says that cycles which start before `from` were released without the flow that was admitted: it begins with the first
    /// one after them.
    #[must_use]
    pub fn begins_from(&mut self, from: Nanos, mut admitted: Admitted) -> Admitted {
        if let (Some(message), Some(flow)) = (self.messages.get(&admitted.message), self.flows.get_mut(&admitted.flow))
        {
            admitted.effective = message.next_cycle(from.max(admitted.effective));
            flow.start = admitted.effective;
        }
        admitted
    }

    /// The driver says that at `now` no job is released and unfinished. Returns the capacity of the leavers whose last
    /// deadline is not after `now`, and names them.
    pub fn idle(&mut self, now: Nanos) -> Vec<String> {
        let gone = self.flows.iter().filter(|(_, flow)| flow.last_deadline.is_some_and(|deadline| deadline <= now));
        let gone: Vec<String> = gone.map(|(id, _)| id.clone()).collect();
        for id in &gone {
            let flow = self.flows.remove(id).expect("it was found a line above");
            let message = self.messages.get_mut(&flow.message).expect("a flow's message runs");
            for part in &flow.reserve {
                let block = message.blocks.iter_mut().find(|block| block.route == part.route);
                let block = block.expect("a message has the routes of its flows");
                block.bytes = Bytes(block.bytes.0 - part.bytes.0);
            }
            message.blocks.retain(|block| block.bytes.0 > 0);
            if message.blocks.is_empty() {
                self.messages.remove(&flow.message);
            } else if let Ok(wcet) = self.network.wcet(&message.blocks, self.calibration.as_ref()) {
                message.cost = wcet.value.min(message.cost);
            }
        }
        gone
    }

    fn candidates(&self, now: Nanos, request: &FlowRequest) -> Result<Vec<Candidate>, Starved> {
        let gathered = |cycle: Nanos, parts: u64| -> Vec<BatchBlock> {
            let packets = cycle.0.div_ceil(request.period.0);
            let bytes = |block: &BatchBlock| block.bytes.0.saturating_mul(packets).div_ceil(parts);
            request.blocks.iter().map(|block| BatchBlock { bytes: Bytes(bytes(block)), ..*block }).collect()
        };
        let mut candidates = Vec::new();
        let shorter = || self.messages.iter().filter(|(_, message)| message.period <= request.window);
        for (&number, message) in shorter() {
            let there = |route: RouteId| message.blocks.iter().any(|block| block.route == route);
            if request.blocks.iter().all(|block| there(block.route)) {
                let reserve = gathered(message.period, 1);
                candidates.extend(self.with(Some((number, message)), FlowPlacement::Grown, reserve)?);
            }
        }
        if let Some(mut alone) = self.with(None, FlowPlacement::Alone, gathered(request.window, 1))? {
            (alone.after.period, alone.after.start) = (request.window, now);
            candidates.push(alone);
        }
        for (&number, message) in shorter() {
            // Its windows begin at a cycle start of the partner: in phase, if its length is a multiple.
            let whole = request.window.0 / message.period.0;
            let parts = if request.window.0.is_multiple_of(message.period.0) { whole } else { whole - 1 };
            if parts > 0 {
                let reserve = gathered(request.window, parts);
                candidates.extend(self.with(Some((number, message)), FlowPlacement::Combined { parts }, reserve)?);
            }
        }
        Ok(candidates)
    }

    /// The message with `reserve` added; none if it would have too many blocks.
    fn with(
        &self,
        message: Option<(u64, &Running)>,
        placement: FlowPlacement,
        reserve: Vec<BatchBlock>,
    ) -> Result<Option<Candidate>, Starved> {
        let empty = Running { period: Nanos::ZERO, start: Nanos::ZERO, blocks: Vec::new(), cost: Nanos::ZERO };
        let mut after = message.map_or(empty, |(_, message)| message.clone());
        for part in &reserve {
            match after.blocks.iter_mut().find(|block| block.route == part.route) {
                Some(block) => block.bytes = Bytes(block.bytes.0.saturating_add(part.bytes.0)),
                None => after.blocks.push(*part),
            }
        }
        if after.blocks.len() > self.limits.blocks_max {
            return Ok(None);
        }
        let cost = self.network.wcet(&after.blocks, self.calibration.as_ref())?.value;
        after.cost = cost.max(after.cost);
        Ok(Some(Candidate { message: message.map(|(number, _)| number), placement, reserve, after }))
    }

    /// Whether the set with the candidate passes; else the flow that could miss.
    fn test(&self, candidate: &Candidate) -> Result<(), String> {
        let others = self.messages.iter().filter(|(number, _)| candidate.message != Some(**number));
        let mut numbers: Vec<Option<u64>> = others.clone().map(|(number, _)| Some(*number)).collect();
        let task = |message: &Running| RecurrentTask::whole(message.cost, message.period, message.period);
        let mut tasks: Vec<RecurrentTask> = others.map(|(_, message)| task(message)).collect();
        tasks.push(task(&candidate.after));
        numbers.push(candidate.message);
        let suffering = match jeffay(&tasks).outcome {
            TestOutcome::Schedulable => return Ok(()),
            TestOutcome::NotSchedulable(TestViolation::Demand { contributions, .. }) => {
                contributions.iter().map(|part| part.task).max_by_key(|&at| (tasks[at].deadline, at))
            }
            TestOutcome::NotSchedulable(TestViolation::Late { task, .. }) => Some(task),
            TestOutcome::NotSchedulable(TestViolation::Utilisation) | TestOutcome::Undecided(_) => None,
        };
        let number = suffering.and_then(|at| numbers[at]);
        let of_message = |number: u64| self.flows.iter().find(|(_, flow)| flow.message == number);
        Err(number.and_then(of_message).map_or_else(|| "itself".to_owned(), |(id, _)| id.clone()))
    }

    fn take(&mut self, now: Nanos, request: &FlowRequest, candidate: Candidate) -> Admitted {
        let Candidate { message, placement, reserve, after } = candidate;
        let number = message.unwrap_or_else(|| {
            self.count += 1;
            self.count
        });
        let effective = after.next_cycle(now);
        let window = match placement {
            FlowPlacement::Grown => after.period,
            FlowPlacement::Alone | FlowPlacement::Combined { .. } => request.window,
        };
        self.messages.insert(number, after);
        let flow = Flow { message: number, reserve, start: effective, window, last_deadline: None };
        self.flows.insert(request.id.clone(), flow);
        Admitted { flow: request.id.clone(), message: number, placement, effective }
    }

    /// The largest share of its bytes, in tenths of a percent, with which a flow would be accepted.
    fn share_that_fits(&self, now: Nanos, request: &FlowRequest) -> Result<Option<u64>, Starved> {
        const STEPS: u64 = 1_000;
        let fits = |share: u64| -> Result<bool, Starved> {
            let scaled = |bytes: Bytes| u128::from(bytes.0) * u128::from(share) / u128::from(STEPS);
            let mut smaller = request.clone();
            for block in &mut smaller.blocks {
                block.bytes = Bytes(u64::try_from(scaled(block.bytes)).unwrap_or(u64::MAX).max(1));
            }
            Ok(self.candidates(now, &smaller)?.iter().any(|candidate| self.test(candidate).is_ok()))
        };
        let (mut low, mut high) = (0, STEPS);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle)? {
                low = middle;
            } else {
                high = middle;
            }
        }
        Ok((low > 0).then_some(low * (PPM / STEPS)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_core::files::machine::{Machine, shipped};

    fn machine() -> Machine {
        shipped("verner-r2").unwrap()
    }

    fn domain() -> Admission {
        let machine = machine();
        Admission::new(Network::new(&machine), machine.calibration, LIMITS)
    }

    const MS: Nanos = Nanos(1_000_000);

    fn request(id: &str, route: u32, bytes: u64, window: Nanos) -> FlowRequest {
        let blocks = vec![BatchBlock { route: RouteId(route), bytes: Bytes(bytes) }];
        FlowRequest { id: id.to_owned(), blocks, period: window, window }
    }

    #[test]
    fn the_first_way_that_passes_is_taken() {
        let mut domain = domain();
        let first = domain.join(MS, &request("a", 0, 1_000_000, MS * 10)).unwrap();
        assert_eq!((first.placement, first.effective), (FlowPlacement::Alone, MS));
        // The same route and a longer window: the block grows, from the next cycle on.
        let second = domain.join(MS * 2, &request("b", 0, 500_000, MS * 25)).unwrap();
        assert_eq!(
            (second.message, second.placement, second.effective),
            (first.message, FlowPlacement::Grown, MS * 11)
        );
        assert_eq!(domain.messages()[&1].blocks[0].bytes, Bytes(1_500_000));
        // Another route: a message of its own.
        assert_eq!(domain.join(MS * 2, &request("c", 2, 1_000_000, MS * 10)).unwrap().placement, FlowPlacement::Alone);
        // 11 ms of copying would block the windows of 10 ms; in parts it fits.
        let long = domain.join(MS * 2, &request("d", 3, 90_000_000, MS * 40)).unwrap();
        assert_eq!(long.placement, FlowPlacement::Combined { parts: 4 });
    }

    #[test]
    fn a_refusal_names_who_would_suffer_and_how_much_would_fit() {
        let mut domain = domain();
        domain.join(Nanos(0), &request("a", 0, 40_000_000, MS * 10)).unwrap();
        let before = domain.clone();
        let refused = domain.join(Nanos(0), &request("b", 0, 60_000_000, MS * 10)).unwrap_err();
        let AdmissionRefused::Overload { ref flow, ref suffers, helps } = refused else { panic!("{refused}") };
        assert_eq!((flow.as_str(), suffers.is_empty()), ("b", false));
        // 5 of 10 ms are taken; 40 of 60 MB take the rest.
        assert!(helps.is_some_and(|ppm| (660_000..=667_000).contains(&ppm)), "{refused}");
        assert_eq!(format!("{domain:?}"), format!("{before:?}"));
        assert!(refused.to_string().contains("% of its bytes"), "{refused}");
    }

    #[test]
    fn capacity_returns_when_the_domain_is_idle_after_the_last_deadline() {
        let mut domain = domain();
        domain.join(Nanos(0), &request("a", 0, 40_000_000, MS * 10)).unwrap();
        let large = request("b", 2, 60_000_000, MS * 10);
        assert!(domain.join(Nanos(0), &large).is_err());
        assert_eq!(domain.leave(MS * 15, "a"), Ok(MS * 30));
        assert_eq!(domain.leave(MS * 15, "a"), Err(AdmissionRefused::Unknown { flow: "a".into() }));
        assert_eq!(domain.poll_timeout(), Some(MS * 30));
        assert!(domain.idle(MS * 29).is_empty(), "its last job may still come");
        assert!(domain.join(MS * 30, &large).is_err(), "the domain may be busy with what it delayed");
        assert_eq!(domain.idle(MS * 31), ["a"]);
        assert!(domain.messages().is_empty());
        domain.join(MS * 31, &large).unwrap();
    }

    /// Non-preemptive EDF over (release, deadline, cost): the largest lateness.
    fn lateness(mut jobs: Vec<(u64, u64, u64)>) -> i64 {
        let (mut now, mut worst) = (0, i64::MIN);
        while !jobs.is_empty() {
            now = now.max(jobs.iter().map(|job| job.0).min().unwrap());
            let ready = jobs.iter().enumerate().filter(|(_, job)| job.0 <= now).min_by_key(|(_, job)| job.1);
            let (_, deadline, cost) = jobs.remove(ready.unwrap().0);
            now += cost;
            worst = worst.max(now as i64 - deadline as i64);
        }
        worst
    }

    #[test]
    fn capacity_that_returned_at_the_deadline_alone_would_let_others_miss() {
        let task = |cost, period| RecurrentTask::whole(Nanos(cost), Nanos(period), Nanos(period));
        let others = [task(10, 50), task(10, 50), task(11, 1000)];
        for changing in [task(15, 30), task(10, 20)] {
            let set: Vec<RecurrentTask> = others.iter().copied().chain([changing]).collect();
            assert!(jeffay(&set).is_schedulable(), "{set:?}");
        }
        // The long job starts first; one instant later all others are released; the leaver's deadline is the newcomer's
        // release.
        let jobs = vec![(0, 1000, 11), (1, 31, 15), (1, 51, 10), (1, 51, 10), (31, 51, 10)];
        assert_eq!(lateness(jobs), 56 - 51);
    }

    #[test]
    fn what_cannot_be_a_flow_is_refused() {
        let mut domain = Admission { limits: DomainLimits { flows_max: 1, blocks_max: 64 }, ..domain() };
        let good = request("a", 0, 1, MS);
        assert!(matches!(
            domain.join(MS, &FlowRequest { window: Nanos(0), ..good.clone() }),
            Err(AdmissionRefused::Empty { .. })
        ));
        domain.join(MS, &good).unwrap();
        assert!(matches!(domain.join(MS, &good), Err(AdmissionRefused::Known { .. })));
        assert!(matches!(
            domain.join(MS, &FlowRequest { id: "b".into(), ..good }),
            Err(AdmissionRefused::Full { limit: 1, .. })
        ));
    }
}
