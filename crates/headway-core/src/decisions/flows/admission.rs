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

use super::{FlowEngine, FlowProposal, UnfitReason};
use crate::analysis::schedulability::{
    ChunkFlow, RecurrentTask, TestOutcome, TestVerdict, TestViolation, chunked, margin_ppm, passes,
    responses_with_jitter, scaled,
};
use crate::units::{Bytes, Nanos, PPM};

/// Sizes that are tried one after the other, each smaller than the one before.
const ROUNDS_MAX: u32 = 64;
/// Work on the bounds of one engine; beyond, deadlines are the bounds.
const STEPS_MAX: u64 = 1_000_000;
/// All costs may rise by this part where the margin allows it, and chunks are as large as that leaves.
const FACTOR_MAX: u64 = PPM + PPM / 4;
/// Attempts at keeping a smaller and smaller part of the margin.
const PARTS_MAX: u32 = 3;

/// A flow or an urgent copy, as the test has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    pub(super) bytes: Bytes,
    /// [`Nanos::MAX`] = one job.
    pub(super) period: Nanos,
    pub(super) deadline: Nanos,
}

impl Demand {
    fn flow(&self, engine: &FlowEngine) -> ChunkFlow {
        let late = engine.jitter.saturating_add(Nanos(1));
        ChunkFlow {
            bytes: self.bytes,
            setup: engine.setup.saturating_add(engine.jitter),
            rate: engine.rate,
            period: self.period,
            deadline: self.deadline.saturating_sub(late),
        }
    }
}

/// The longest time that a job's own chunks can take.
pub(super) fn worst(engine: &FlowEngine, bytes: Bytes, chunk: Bytes) -> Nanos {
    let flow = Demand { bytes, period: Nanos::MAX, deadline: Nanos::MAX }.flow(engine);
    flow.task(chunk).cost
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

    /// The flows as tasks, in their order, with the costs of chunks of `cut` bytes; behind them what blocks, with chunks of `ahead` bytes.
    fn tasks(&self, cut: Bytes, ahead: Bytes, factor: u64) -> Vec<RecurrentTask> {
        let mut tasks: Vec<RecurrentTask> = self.flows.iter().map(|flow| scaled(&flow.task(cut), factor)).collect();
        let one = self.engine.setup.saturating_add(self.engine.rate.time_for(ahead));
        let unpromised = Nanos(one.0.saturating_mul(self.engine.unpromised_in_flight.into()));
        let bulk = scaled(&RecurrentTask::bulk(unpromised), factor);
        tasks.push(bulk);
        let mut longest = 0;
        for &at in &self.latest_first {
            let flow = &self.flows[at];
            let chunk = self.engine.chunk_cost(flow.bytes.min(ahead));
            if chunk.0 <= longest {
                continue;
            }
            longest = chunk.0;
            let chunk = unpromised.saturating_add(chunk);
            let blocker = RecurrentTask { cost: Nanos::ZERO, period: Nanos::MAX, deadline: flow.deadline, chunk };
            tasks.push(scaled(&blocker, factor));
        }
        tasks
    }

    /// Whether all deadlines hold with chunks of `chunk` bytes.
    pub(super) fn holds_with(&self, chunk: Bytes) -> bool {
        passes(&self.tasks(chunk, chunk, PPM))
    }

    /// The largest chunk with which all deadlines hold although all costs are `factor` ppm of what they are.
    ///
    /// As in `chunk_sizes`: whether a size passes is not monotone, since small chunks cost set-ups and large ones block. But costs at a size are
    /// least among it and all smaller ones, so that what blocks too long with *these* costs is excluded for good.
    fn largest_chunk(&self, factor: u64) -> Result<Bytes, Excluded> {
        let granule = self.engine.chunk_min.0.max(1);
        let size = |multiples: u64| Bytes(granule.saturating_mul(multiples));
        let mut most = (self.engine.chunk_max.0 / granule).max(1);
        for _ in 0..ROUNDS_MAX {
            let cut = size(most);
            if passes(&self.tasks(cut, cut, factor)) {
                return Ok(cut);
            }
            let (mut low, mut high) = (0, most);
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if passes(&self.tasks(cut, size(middle), factor)) {
                    low = middle;
                } else {
                    high = middle;
                }
            }
            if low == 0 {
                return Err(Excluded { cut, ahead: size(1) });
            }
            most = low;
        }
        Err(Excluded { cut: size(most), ahead: size(most) })
    }

    /// The common chunk: the largest with which a half of the margin stays, at most a quarter of all costs, as for bulk copies beside a plan.
    /// Less stays where smaller chunks cost too much.
    pub(super) fn chunk(&self) -> Result<Bytes, Unfit> {
        // Most sets have room enough.
        if let Ok(chunk) = self.largest_chunk(FACTOR_MAX)
            && passes(&self.alone(chunk, PPM + 2 * (FACTOR_MAX - PPM)))
        {
            return Ok(chunk);
        }
        let largest = self.largest_chunk(PPM).map_err(|excluded| self.why(&excluded))?;
        let half = margin_ppm(&self.alone(largest, PPM)).saturating_sub(PPM) / 2;
        let kept = half.min(FACTOR_MAX - PPM);
        let found = (0..PARTS_MAX).find_map(|part| self.largest_chunk(PPM + (kept >> part)).ok());
        Ok(found.unwrap_or(largest))
    }

    /// The flows without any copy that has no promise.
    fn alone(&self, chunk: Bytes, factor: u64) -> Vec<RecurrentTask> {
        self.flows.iter().map(|flow| scaled(&flow.task(chunk), factor)).collect()
    }

    /// The longest response of each flow, from release to end; at most its deadline.
    pub(super) fn bounds(&self, chunk: Bytes) -> Vec<Nanos> {
        let jitter = self.engine.jitter;
        let found = responses_with_jitter(&self.tasks(chunk, chunk, PPM), jitter, &mut { STEPS_MAX });
        let late = jitter.saturating_add(Nanos(1));
        let found = found.unwrap_or_else(|| vec![Nanos::MAX; self.flows.len()]);
        self.deadlines.iter().zip(found).map(|(&due, longest)| longest.saturating_add(late).min(due)).collect()
    }

    /// Why not all deadlines hold with chunks of `chunk` bytes.
    pub(super) fn why_with(&self, chunk: Bytes) -> Unfit {
        self.why(&Excluded { cut: chunk, ahead: chunk })
    }

    fn why(&self, excluded: &Excluded) -> Unfit {
        let mut tasks = self.tasks(excluded.cut, excluded.ahead, PPM);
        let unblocked: Vec<RecurrentTask> =
            tasks.iter().map(|task| RecurrentTask { chunk: Nanos::ZERO, ..*task }).collect();
        let mut verdict: TestVerdict = chunked(&unblocked, 1);
        if verdict.is_schedulable() {
            verdict = chunked(&tasks, 1);
        } else {
            tasks = unblocked;
        }
        match verdict.outcome {
            TestOutcome::NotSchedulable(TestViolation::Demand {
                interval, demand, blocking, contributions, ..
            }) => {
                let of_flows = contributions.iter().map(|part| part.task).filter(|&at| at < self.flows.len());
                let suffers = of_flows.max_by_key(|&at| (tasks[at].deadline, at));
                Unfit::Late { suffers, interval, demand, blocking }
            }
            TestOutcome::NotSchedulable(_) => Unfit::Overload { asked_ppm: verdict.utilisation_ppm },
            TestOutcome::Schedulable | TestOutcome::Undecided(_) => Unfit::Unknown,
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
pub(super) fn proposals(asked: Demand, most: Nanos, fits: impl Fn(Demand) -> bool) -> Vec<FlowProposal> {
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
    found.extend(longer(asked.deadline, &|deadline| Demand { deadline, ..asked }).map(FlowProposal::LongerDeadline));
    found.extend(longer(asked.period, &|period| Demand { period, ..asked }).map(FlowProposal::LongerPeriod));
    found
}
