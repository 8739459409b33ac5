//! Whether the flows of one engine meet their deadlines, with which chunks, and how long their jobs can take.
//!
//! The test is the demand of all intervals (`chunked` of `analysis/schedulability`) with what is particular to the line of an engine:
//!
//! - A job's first chunk asks up to `jitter` after the release from which its deadline counts, and what started at the very instant counts as
//!   before it. So in the test the deadline is shorter by `jitter` and a nanosecond, and the distance between two jobs may be shorter by
//!   `jitter` where responses are counted from the asking.
//! - When a promised chunk asks, chunks without a promise may be on the engine, as many as `unpromised_in_flight`, **and** one promised chunk
//!   with a later deadline behind them. Both were started before, so that both block: the sum, not the larger.
//! - Nothing without a promise starts while a promised chunk waits or is on the engine, and a job's next chunk asks before the one before it
//!   has ended. So all of this blocks once in a busy period, not once a chunk.
//! - Threads are late by `late_each` for every chunk. What goes beyond counts once, with what blocks. Where that is not measured, each chunk is
//!   late by `jitter`.

use serde::{Deserialize, Serialize};

use super::{FlowEngine, FlowProposal, UnfitReason};
use crate::analysis::schedulability::{
    ChunkFlow, RecurrentTask, TestOutcome, TestVerdict, TestViolation, chunked, passes, response_with_jitter, scaled,
};
use crate::units::{Bytes, Nanos, PPM};

/// Work on one bound; beyond, the deadline is the bound.
const STEPS_MAX: u64 = 50_000;
/// At most this part of an engine's time is promised: copies without a promise must go on, and near the whole tests take long.
const ASKED_PPM_MAX: u64 = 990_000;
/// The smallest part of the costs that is kept as a margin: 2 to the power of minus this.
const PARTS_MAX: u32 = 5;

/// A flow or an urgent copy, as the test has it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Demand {
    pub(super) bytes: Bytes,
    /// [`Nanos::MAX`] = one job.
    pub(super) period: Nanos,
    pub(super) deadline: Nanos,
}

/// Deadlines up to this can have passed when the first chunk asks.
fn asked_by(engine: &FlowEngine) -> Nanos {
    engine.jitter.saturating_add(Nanos(1))
}

impl Demand {
    fn flow(&self, engine: &FlowEngine) -> ChunkFlow {
        ChunkFlow {
            bytes: self.bytes,
            setup: engine.chunk_setup(),
            rate: engine.rate,
            period: self.period,
            deadline: self.deadline.saturating_sub(asked_by(engine)),
        }
    }
}

/// The longest time that a job's own chunks can take, without [`FlowEngine::late_once`].
pub(super) fn worst(engine: &FlowEngine, bytes: Bytes, chunk: Bytes) -> Nanos {
    let flow = Demand { bytes, period: Nanos::MAX, deadline: Nanos::MAX }.flow(engine);
    flow.task(chunk).cost
}

/// The part of the engine's time that tasks ask for, rounded up.
fn asked_ppm(tasks: &[RecurrentTask]) -> u64 {
    let asked =
        |task: &RecurrentTask| (u128::from(task.cost.0) * u128::from(PPM)).div_ceil(u128::from(task.period.0.max(1)));
    u64::try_from(tasks.iter().map(asked).sum::<u128>()).unwrap_or(u64::MAX)
}

/// What the flows of an engine ask of it.
pub(super) struct Demands<'a> {
    engine: &'a FlowEngine,
    flows: Vec<ChunkFlow>,
    deadlines: Vec<Nanos>,
    /// Positions by descending deadline.
    latest_first: Vec<usize>,
}

impl<'a> Demands<'a> {
    pub(super) fn new(engine: &'a FlowEngine, demands: impl Iterator<Item = Demand>) -> Self {
        let (mut flows, mut deadlines) = (Vec::new(), Vec::new());
        for demand in demands {
            flows.push(demand.flow(engine));
            deadlines.push(demand.deadline);
        }
        let mut latest_first: Vec<usize> = (0..flows.len()).collect();
        latest_first.sort_by_key(|&at| (std::cmp::Reverse(flows[at].deadline), std::cmp::Reverse(flows[at].bytes)));
        Self { engine, flows, deadlines, latest_first }
    }

    /// The flows as tasks, in their order, with the costs of chunks of `cut` bytes, and no chunk that blocks.
    fn costs(&self, cut: Bytes, factor: u64) -> Vec<RecurrentTask> {
        let task = |flow: &ChunkFlow| scaled(&RecurrentTask { chunk: Nanos::ZERO, ..flow.task(cut) }, factor);
        self.flows.iter().map(task).collect()
    }

    /// What blocks, with chunks of `ahead` bytes.
    fn blockers(&self, ahead: Bytes, factor: u64) -> Vec<RecurrentTask> {
        let one = self.engine.setup.saturating_add(self.engine.rate.time_for(ahead));
        let unpromised = Nanos(one.0.saturating_mul(self.engine.unpromised_in_flight.into()));
        let mut blockers = vec![RecurrentTask::bulk(unpromised.saturating_add(self.engine.late_once()))];
        let mut longest = Bytes(0);
        for &at in &self.latest_first {
            let flow = &self.flows[at];
            let bytes = flow.bytes.min(ahead);
            if bytes > longest {
                longest = bytes;
                let chunk = unpromised.saturating_add(self.engine.chunk_cost(bytes));
                let (cost, period, deadline) = (Nanos::ZERO, Nanos::MAX, flow.deadline);
                blockers.push(RecurrentTask { cost, period, deadline, chunk });
            }
        }
        blockers.iter().map(|task| scaled(task, factor)).collect()
    }

    /// All of it, each flow with its own chunk.
    fn tasks(&self, cut: Bytes, ahead: Bytes) -> Vec<RecurrentTask> {
        let chunk = |flow: &ChunkFlow| self.engine.chunk_cost(flow.bytes.min(ahead));
        let costs = self.costs(cut, PPM).into_iter().zip(&self.flows);
        let flows = costs.map(|(task, flow)| RecurrentTask { chunk: chunk(flow), ..task });
        flows.chain(self.blockers(ahead, PPM)).collect()
    }

    /// Whether all deadlines hold with `costs` and chunks of `ahead` bytes before them.
    fn hold(&self, costs: &[RecurrentTask], ahead: Bytes, factor: u64) -> bool {
        passes(&[costs, &self.blockers(ahead, factor)].concat())
    }

    /// A deadline that can have passed when its job's first chunk asks.
    fn asks_too_late(&self) -> Option<Unfit> {
        let jitter = self.engine.jitter;
        let suffers = self.deadlines.iter().position(|deadline| *deadline <= asked_by(self.engine))?;
        Some(Unfit::AsksLate { suffers, jitter, by: asked_by(self.engine).saturating_sub(self.deadlines[suffers]) })
    }

    /// Whether all deadlines hold with chunks of `chunk` bytes.
    pub(super) fn hold_with(&self, chunk: Bytes) -> bool {
        if self.asks_too_late().is_some() {
            return false;
        }
        let costs = self.costs(chunk, PPM);
        asked_ppm(&costs) <= ASKED_PPM_MAX && self.hold(&costs, chunk, PPM)
    }

    /// The largest usual chunk with which all deadlines hold although all costs are `factor` ppm of what they are.
    ///
    /// Whether a size passes is not monotone, since small chunks cost set-ups and large ones block. But costs at a size are
    /// least among it and all smaller ones, so that what blocks too long with *these* costs is excluded for good.
    fn largest_chunk(&self, factor: u64) -> Result<Bytes, Excluded> {
        let mut sizes = self.sizes();
        let usual = self.engine.chunk_usual();
        sizes.retain(|size| *size <= usual);
        let mut at = sizes.len() - 1;
        for _ in 0..=sizes.len() {
            let cut = sizes[at];
            let costs = self.costs(cut, factor);
            let excluded = Excluded { cut, ahead: sizes[0] };
            if asked_ppm(&costs) > ASKED_PPM_MAX {
                return Err(excluded);
            }
            if self.hold(&costs, cut, factor) {
                return Ok(cut);
            }
            at = sizes[..at]
                .partition_point(|ahead| self.hold(&costs, *ahead, factor))
                .checked_sub(1)
                .ok_or(excluded)?;
        }
        Err(Excluded { cut: sizes[0], ahead: sizes[0] })
    }

    /// The sizes that chunks may have, ascending: multiples of the smallest one of which only the first three binary digits are not zero.
    fn sizes(&self) -> Vec<Bytes> {
        let least = self.engine.chunk_min.0.max(1);
        let most = (self.engine.chunk_max.0 / least).max(1);
        let next = |multiple: &u64| Some(multiple + ((1 << multiple.ilog2()) / 4).max(1));
        let multiples = std::iter::successors(Some(1), next).take_while(|multiple| *multiple <= most);
        multiples.map(|multiple| Bytes(least * multiple)).collect()
    }

    /// The common chunk: the largest usual one with which all costs may rise by a quarter, an eighth and so on, whichever is first at most a half of
    /// what they may rise by where only these flows are there. The planner leaves as much to what it plans when it sizes bulk chunks. Where no usual
    /// chunk passes, the smallest larger one that does.
    pub(super) fn chunk(&self) -> Result<Bytes, Unfit> {
        if let Some(unfit) = self.asks_too_late() {
            return Err(unfit);
        }
        for part in 2..=PARTS_MAX {
            let kept = PPM >> part;
            if asked_ppm(&self.costs(self.engine.chunk_usual(), PPM + 2 * kept)) > ASKED_PPM_MAX {
                continue;
            }
            if let Ok(chunk) = self.largest_chunk(PPM + kept) {
                let alone = self.costs(chunk, PPM + 2 * kept);
                if asked_ppm(&alone) <= ASKED_PPM_MAX && passes(&alone) {
                    return Ok(chunk);
                }
            }
        }
        self.largest_chunk(PPM).or_else(|excluded| {
            let usual = self.engine.chunk_usual();
            let larger = self.sizes().into_iter().find(|size| *size > usual && self.hold_with(*size));
            larger.ok_or_else(|| self.why(&excluded))
        })
    }

    /// The longest response of the flow at this position, from release to end; at most its deadline.
    pub(super) fn bound(&self, at: usize, chunk: Bytes) -> Nanos {
        let jitter = self.engine.jitter;
        let longest =
            response_with_jitter(&self.tasks(chunk, chunk), at, jitter, &mut { STEPS_MAX }).unwrap_or(Nanos::MAX);
        longest.saturating_add(jitter).saturating_add(Nanos(1)).min(self.deadlines[at])
    }

    /// Why not all deadlines hold with chunks of `chunk` bytes.
    pub(super) fn why_with(&self, chunk: Bytes) -> Unfit {
        self.asks_too_late().unwrap_or_else(|| self.why(&Excluded { cut: chunk, ahead: chunk }))
    }

    fn why(&self, excluded: &Excluded) -> Unfit {
        let costs = self.costs(excluded.cut, PPM);
        let asked_ppm = asked_ppm(&costs);
        if asked_ppm > ASKED_PPM_MAX {
            return Unfit::Overload { asked_ppm };
        }
        let (mut verdict, mut tasks): (TestVerdict, _) = (chunked(&costs, 1), costs);
        if verdict.is_schedulable() {
            tasks = self.tasks(excluded.cut, excluded.ahead);
            verdict = chunked(&tasks, 1);
        }
        match verdict.outcome {
            TestOutcome::NotSchedulable(TestViolation::Demand {
                interval, demand, blocking, contributions, ..
            }) => {
                let of_flows = contributions.iter().map(|part| part.task).filter(|&at| at < self.flows.len());
                let suffers = of_flows.max_by_key(|&at| (tasks[at].deadline, at));
                Unfit::Late { suffers, interval, demand, blocking }
            }
            TestOutcome::NotSchedulable(_) | TestOutcome::Schedulable | TestOutcome::Undecided(_) => Unfit::Unknown,
        }
    }
}

/// No chunk holds: the costs with the largest not yet excluded, and what blocks.
struct Excluded {
    cut: Bytes,
    ahead: Bytes,
}

/// Why no chunk size lets all deadlines hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    Overload {
        asked_ppm: u64,
    },
    AsksLate {
        suffers: usize,
        jitter: Nanos,
        by: Nanos,
    },
    Late {
        /// Position; `None` = nobody can be named.
        suffers: Option<usize>,
        interval: Nanos,
        demand: Nanos,
        blocking: Nanos,
    },
    Unknown,
}

impl Unfit {
    /// By how much a deadline could be missed, who of `names` would, and the reason as users see it.
    pub(super) fn named(self, name: &str, names: &[&str]) -> (String, Nanos, UnfitReason) {
        match self {
            Self::Overload { asked_ppm } => (name.to_owned(), Nanos::ZERO, UnfitReason::Overload { asked_ppm }),
            Self::Unknown => (name.to_owned(), Nanos::ZERO, UnfitReason::Unknown),
            Self::AsksLate { suffers, jitter, by } => {
                let suffers = names.get(suffers).copied().unwrap_or(name).to_owned();
                (suffers.clone(), by, UnfitReason::AsksLate { suffers, jitter })
            }
            Self::Late { suffers, interval, demand, blocking } => {
                let suffers = suffers.and_then(|at| names.get(at).copied()).unwrap_or(name).to_owned();
                let by = demand.saturating_sub(interval);
                (suffers.clone(), by, UnfitReason::Late { suffers, by, interval, demand, blocking })
            }
        }
    }
}

/// Steps of the search for a number that helps: 1/1,000 of what was asked, or 1.
const PROPOSAL_STEPS: u64 = 1_000;
/// Deadlines and periods that are tried are at most this many times what was asked, in powers of two.
const LONGER_MAX: u32 = 10;

/// Changes of `asked` with which `fits` says yes, each as little as the steps of the search allow.
pub(super) fn proposals(
    asked: Demand,
    engine: &FlowEngine,
    most: Nanos,
    fits: impl Fn(Demand) -> bool,
) -> Vec<FlowProposal> {
    let step = |of: u64| (of / PROPOSAL_STEPS).max(1);
    let mut found = Vec::new();
    let bytes_step = step(asked.bytes.0);
    // The most steps that fit, where none do at `high`.
    let (mut low, mut high) = (0, asked.bytes.0.div_ceil(bytes_step));
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        let smaller = Demand { bytes: Bytes(bytes_step * middle), ..asked };
        if fits(smaller) { low = middle } else { high = middle }
    }
    if low > 0 {
        found.push(FlowProposal::FewerBytes(Bytes(bytes_step * low)));
    }
    let longer = |of: Nanos, with: &dyn Fn(Nanos) -> Demand| -> Option<Nanos> {
        let tried = (1..=LONGER_MAX).map(|power| Nanos(of.0.saturating_mul(1 << power).min(most.0)));
        let enough = tried.take_while(|time| *time > of).find(|time| fits(with(*time)))?;
        let unit = step(of.0);
        let (mut low, mut high) = (0, (enough.0 - of.0).div_ceil(unit));
        let time = |steps: u64| Nanos(of.0.saturating_add(unit.saturating_mul(steps)).min(enough.0));
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(with(time(middle))) { high = middle } else { low = middle }
        }
        Some(time(high))
    };
    let shortest = asked.deadline.max(asked_by(engine));
    found.extend(longer(shortest, &|deadline| Demand { deadline, ..asked }).map(FlowProposal::LongerDeadline));
    found.extend(longer(asked.period, &|period| Demand { period, ..asked }).map(FlowProposal::LongerPeriod));
    found
}
