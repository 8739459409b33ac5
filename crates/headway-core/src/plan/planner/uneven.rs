//! Windows of different lengths: the deadline of a packet divided among its steps by what their servers need.
//!
//! `verner-2014`, III gives every step the same window. Where that fails, another division may hold: a step whose server is
//! busier gets more. Only streams whose packets are jobs of their own are divided so; cycles need windows as long as their
//! period.
//!
//! The search rests on one fact: a server that meets its windows still meets them when one of them grows. In an interval that
//! the window no longer fits into, its job asks for nothing, and what it may block with is no longer than what it asked for. So
//! the windows that a server can meet have no gaps above, a bisection finds the least one, and whatever is left over may be given
//! to any step. What is found passes the same tests as every other plan.

use super::demands::{demands, steps_on};
use super::{Context, Draft, Node, PlanError, PlanOptions, Windows, alternative, best_of, better};
use crate::analysis::schedulability::{self, RecurrentTask, chunked, passes};
use crate::files::workload::{Cycle, Workload};
use crate::plan::{
    OperationWork, Outcome, Pipeline, PipelineSource, Plan, PlannedOperation, PlannedStep, PlannedStream, Strength,
};
use crate::units::{Nanos, PPM};

/// Streams of a workload whose deadlines are divided; with more, a search would take longer than the plan.
const STREAMS_MAX: usize = 1_000;
/// Tests of a server in one search, and the tasks that all of them look at together.
const TESTS_MAX: u32 = 6_000;
const TASKS_MAX: u32 = 2_000_000;
/// Rounds of taking from some and giving to others.
const ROUNDS_MAX: u32 = 32;
/// The largest factor on first windows that is looked at, in the parts per million of [`PPM`].
const FACTOR_MAX: u64 = 64 * PPM;

/// Whether another answer than the best of these plans with equal windows is worth a search.
pub(super) fn may_help(equal: &[Plan], workload: &Workload, options: PlanOptions) -> bool {
    let streams = |pipeline: &Pipeline| {
        matches!(pipeline.source, PipelineSource::Streams(_) | PipelineSource::Parts(_) | PipelineSource::Packets(_))
    };
    let as_asked = options.strategy.is_some_and(|asked| asked.row().is_baseline) || workload.cycle == Cycle::Paper;
    let fails = |plan: &Plan| plan.verdict.outcome == Outcome::NotSchedulable;
    !as_asked && equal.iter().all(fails) && equal.iter().any(|plan| plan.pipelines.iter().any(streams))
}

/// Whether a search for a division ends within the time that a plan takes.
pub(super) fn is_small(workload: &Workload) -> bool {
    workload.streams.len() <= STREAMS_MAX
}

/// Whether some stream has a deadline to divide.
pub(super) fn is_divisible(workload: &Workload) -> bool {
    workload.streams.iter().any(|stream| stream.steps.len() > 1)
}

/// The best of `divided` if it holds, else the best of `equal`, all of which fail: as a "no" only if no division of the deadlines can
/// hold, else as undecided. Each strategy is judged by its own plan where `each` says so, else by the best one.
pub(super) fn answer(node: Node<'_>, equal: Vec<Plan>, divided: Vec<Plan>, each: bool) -> Plan {
    let holds = |plan: &Plan| plan.verdict.outcome == Outcome::Schedulable;
    let holding = |of: &Plan| divided.iter().find(|plan| plan.strategy == of.strategy && holds(plan));
    let alternatives = equal.iter().map(|plan| alternative(holding(plan).unwrap_or(plan))).collect();
    if let Some(mut found) = divided.into_iter().reduce(better).filter(holds) {
        found.alternatives = alternatives;
        found.verdict.notes.push(
            "deadlines are divided unevenly among the steps of streams: with windows of equal length some could be missed"
                .to_owned(),
        );
        return found;
    }
    let of_each: Vec<bool> = equal.iter().filter(|_| each).map(|plan| hopeless(node, plan)).collect();
    let mut best = best_of(equal);
    let of_all = !each && hopeless(node, &best);
    for (at, other) in best.alternatives.iter_mut().enumerate() {
        if !of_each.get(at).copied().unwrap_or(of_all) {
            other.outcome = Outcome::Undecided;
        }
    }
    if best.alternatives.iter().any(|other| other.outcome == Outcome::Undecided) {
        best.verdict.outcome = Outcome::Undecided;
        best.verdict.strength = Strength::Sufficient;
        best.verdict.notes.push(
            "the windows are the planner's choice: with these, deadlines can be missed; no division of the deadlines that holds \
             was found, and none is ruled out"
                .to_owned(),
        );
    }
    best
}

/// Whether some server has more to do than any division of the deadlines allows for: with every window as long as the other
/// steps' costs leave it, and copies of streams in chunks that block nobody.
fn hopeless(node: Node<'_>, plan: &Plan) -> bool {
    (0..plan.servers.len() as u32).any(|server| {
        let tasks = relaxed(node, plan, server);
        matches!(chunked(&tasks, 1).outcome, schedulability::TestOutcome::NotSchedulable(_))
    })
}

/// What a server has to do at least. Streams in parts are left out: what their steps need at least is not bounded here.
fn relaxed(node: Node<'_>, plan: &Plan, server: u32) -> Vec<RecurrentTask> {
    let counts =
        |pipeline: &Pipeline| pipeline.source.is_planned() && !matches!(pipeline.source, PipelineSource::Parts(_));
    let all = steps_on(server, &plan.pipelines).into_iter().filter(|(pipeline, _)| counts(pipeline));
    let (of_streams, others): (Vec<_>, Vec<_>) =
        all.partition(|(p, _)| matches!(p.source, PipelineSource::Streams(_) | PipelineSource::Packets(_)));
    let mut tasks: Vec<RecurrentTask> = demands(&others).into_iter().map(|demand| demand.task).collect();
    for steps in of_streams.chunk_by(|one, next| std::ptr::eq(one.0, next.0)) {
        let pipeline = steps[0].0;
        let here = |step: &PlannedStep| steps.iter().any(|(_, other)| std::ptr::eq(*other, step));
        // The steps of a packet on this server are one job here: they cannot meet. What the others need at least, its deadline
        // is shorter by.
        let others = || pipeline.steps.iter().filter(|other| !here(other));
        for &stream in pipeline.source.streams() {
            let stream = &plan.streams[stream as usize];
            let of = |step: &PlannedStep| {
                if pipeline.gather == Nanos::ZERO {
                    // A copy could be cut, a kernel not.
                    let copies = step.operations.iter().all(|of| matches!(of.work, OperationWork::Copy { .. }));
                    let chunk = if copies && pipeline.steps.len() > 1 { Nanos(1) } else { step.chunk_cost };
                    return RecurrentTask {
                        cost: step.cost,
                        period: pipeline.period,
                        deadline: stream.deadline,
                        chunk,
                    };
                }
                // Other cycles would carry other blocks: count no more than the bytes.
                let all = step.operations.iter().map(|of| bare(node, stream, of));
                let longest = all.max_by_key(|task| task.cost);
                longest.unwrap_or_else(|| RecurrentTask {
                    deadline: stream.deadline,
                    ..RecurrentTask::whole(Nanos::ZERO, stream.period, Nanos::ZERO)
                })
            };
            let noticed = if pipeline.gather == Nanos::ZERO { Nanos::ZERO } else { plan.jitter };
            let least = |step: &PlannedStep| of(step).cost.saturating_add(noticed);
            let rest = others().map(least).fold(Nanos::ZERO, Nanos::saturating_add);
            let joined = steps.iter().map(|(_, step)| of(step)).reduce(|sum, next| RecurrentTask {
                cost: sum.cost.saturating_add(next.cost),
                chunk: sum.chunk.max(next.chunk),
                ..sum
            });
            tasks.extend(
                joined.map(|task| RecurrentTask { deadline: task.deadline.saturating_sub(rest).max(Nanos(1)), ..task }),
            );
        }
    }
    tasks
}

/// What an operation asks for on behalf of one stream in whatever cycles: the time of its bytes at the rate it has alone.
fn bare(node: Node<'_>, stream: &PlannedStream, of: &PlannedOperation) -> RecurrentTask {
    let Node { machine, network, cpu } = node;
    let margin_ppm = machine.calibration.as_ref().map_or(0, |calibration| calibration.margin_ppm);
    let (time, alone) = match &of.work {
        OperationWork::Copy { route, .. } => {
            let rate =
                network.guaranteed_rate(*route, &[*route]).map_or(Nanos::ZERO, |rate| rate.time_for(stream.packet));
            (rate, rate)
        }
        OperationWork::Compute { kernel } => {
            let gpu = of.engines.first().and_then(|engine| machine.engines.get(engine.at())).map(|engine| engine.gpu);
            let known = gpu.and_then(|gpu| machine.kernel(kernel, gpu));
            let on_gpu = known.map(|known| {
                let chain = known.chain_rate.map_or(Nanos::ZERO, |rate| rate.time_for(stream.packet));
                (known.rate.time_for(stream.packet), chain)
            });
            let on_core =
                || cpu.kernel(kernel).map(|known| known.rate.time_for(stream.packet)).map(|time| (time, time));
            on_gpu.or_else(on_core).unwrap_or_default()
        }
        OperationWork::Hold => (Nanos::ZERO, Nanos::ZERO),
    };
    let scaled = u128::from(time.0) * u128::from(PPM + margin_ppm) / u128::from(PPM);
    // Chains of different streams run side by side, but one that is slower than its stream never catches up.
    let cost = if alone > stream.period { stream.period.saturating_add(Nanos(1)) } else { Nanos(0) };
    let cost = cost.max(Nanos(u64::try_from(scaled).unwrap_or(u64::MAX)));
    // A packet is in one block, which a kernel works on as a whole.
    let chunk = if matches!(of.work, OperationWork::Copy { .. }) { Nanos(1) } else { cost };
    RecurrentTask { cost, period: stream.period, deadline: stream.deadline, chunk }
}

/// Divides the deadlines of the streams whose packets are jobs among their steps so that every server holds; leaves the windows
/// as they are if no such division is found.
pub(super) fn divide(context: &Context<'_>, mut draft: Draft) -> Result<Draft, PlanError> {
    let deadline_of = |stream: u32| context.workload.streams[stream as usize].deadline;
    if context.windows == Windows::Divided
        && let Some(mut search) = Search::of(&draft.pipelines, deadline_of)
        && let Some(found) = search.run()
    {
        for (of, windows) in search.streams.iter().zip(found) {
            let pipeline = &mut draft.pipelines[of.pipeline];
            pipeline.window = windows.iter().copied().max().unwrap_or_default();
            pipeline.windows = windows;
        }
    }
    Ok(draft)
}

/// A stream whose deadline can be divided.
struct Divisible {
    pipeline: usize,
    deadline: Nanos,
    /// Of every step: its server, its place among that server's tasks, and its cost. No window is longer than the task's period:
    /// a step's next job would come before its last one is due, and buffers are counted for one job of each step.
    steps: Vec<(usize, usize, Nanos)>,
}

struct Search {
    streams: Vec<Divisible>,
    /// What every server has to do; the tasks of divisible streams have the window that is being tried.
    servers: Vec<Vec<RecurrentTask>>,
    /// Tests that may still be made.
    tests: u32,
}

impl Search {
    fn of(pipelines: &[Pipeline], deadline_of: impl Fn(u32) -> Nanos) -> Option<Self> {
        let divisible = |pipeline: &Pipeline| {
            let alone = pipeline.gang.is_none() && pipeline.steps.iter().all(|step| step.batch.is_none());
            let of_one = matches!(
                &pipeline.source,
                PipelineSource::Streams(_) | PipelineSource::Parts(_) | PipelineSource::Packets(_)
            ) && pipeline.source.streams().len() == 1;
            of_one && alone && pipeline.gather == Nanos::ZERO && pipeline.steps.len() > 1
        };
        let count = pipelines.iter().flat_map(|p| &p.steps).map(|step| step.server + 1).max()?;
        let fixed = |server| {
            let steps = steps_on(server, pipelines).into_iter().filter(|(p, _)| p.source.is_planned() && !divisible(p));
            demands(&steps.collect::<Vec<_>>()).into_iter().map(|demand| demand.task).collect::<Vec<RecurrentTask>>()
        };
        let mut servers: Vec<Vec<RecurrentTask>> = (0..count).map(fixed).collect();
        let mut streams = Vec::new();
        for (at, pipeline) in pipelines.iter().enumerate().filter(|(_, pipeline)| divisible(pipeline)) {
            let mut steps = Vec::new();
            for step in &pipeline.steps {
                let tasks = &mut servers[step.server as usize];
                steps.push((step.server as usize, tasks.len(), step.cost));
                tasks.push(RecurrentTask::whole(step.cost, pipeline.period, pipeline.window));
            }
            streams.push(Divisible { pipeline: at, deadline: deadline_of(pipeline.source.streams()[0]), steps });
        }
        let largest = servers.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let tests = TESTS_MAX.min(TASKS_MAX / largest as u32);
        (!streams.is_empty()).then_some(Self { streams, servers, tests })
    }

    /// Windows with which every server holds, of every stream's steps.
    fn run(&mut self) -> Option<Vec<Vec<Nanos>>> {
        for first in [equal, by_cost, by_slack] {
            if self.begin(first).is_some() && self.improve() {
                let windows =
                    |stream: &Divisible| stream.steps.iter().map(|&(s, t, _)| self.servers[s][t].deadline).collect();
                return Some(self.streams.iter().map(windows).collect());
            }
        }
        None
    }

    fn holds(&mut self, server: usize) -> bool {
        let may = self.tests > 0;
        self.tests = self.tests.saturating_sub(1);
        may && passes(&self.servers[server])
    }

    /// Gives every step its part of the deadline by `first`, times the least factor with which its server holds; `None` if no
    /// factor is large enough.
    fn begin(&mut self, first: fn(Nanos, &[Nanos], usize) -> u64) -> Option<()> {
        let mut parts: Vec<Vec<(usize, u64, Nanos)>> = vec![Vec::new(); self.servers.len()];
        for stream in &self.streams {
            let costs: Vec<Nanos> = stream.steps.iter().map(|step| step.2).collect();
            for (at, &(server, task, cost)) in stream.steps.iter().enumerate() {
                parts[server].push((task, first(stream.deadline, &costs, at).max(1), cost));
            }
        }
        for (server, parts) in parts.into_iter().enumerate().filter(|(_, parts)| !parts.is_empty()) {
            let with = |search: &mut Self, factor: u64| {
                for &(task, part, cost) in &parts {
                    let window = (u128::from(part) * u128::from(factor)).div_ceil(u128::from(PPM));
                    let window = Nanos(u64::try_from(window).unwrap_or(u64::MAX)).max(cost);
                    let task = &mut search.servers[server][task];
                    task.deadline = window.min(task.period);
                }
                search.holds(server)
            };
            if !with(self, FACTOR_MAX) {
                return None;
            }
            let (mut low, mut high) = (0, FACTOR_MAX);
            // A thousandth is near enough: what is left over is given out.
            while high - low > (high / 1_000).max(1) {
                let middle = low + (high - low) / 2;
                if with(self, middle) {
                    high = middle;
                } else {
                    low = middle;
                }
            }
            if !with(self, high) {
                return None;
            }
        }
        Some(())
    }

    /// Gives what streams have left to their own steps, and takes from those that have too much what their servers can do
    /// without, until all windows fit into the deadlines. Every server holds all the while.
    fn improve(&mut self) -> bool {
        let mut before = u64::MAX;
        for _ in 0..ROUNDS_MAX {
            for at in 0..self.streams.len() {
                self.give(at);
            }
            let mut over: Vec<(u64, usize)> = (0..self.streams.len()).map(|at| (self.excess(at), at)).collect();
            over.retain(|(excess, _)| *excess > 0);
            over.sort_unstable_by_key(|&(excess, at)| (std::cmp::Reverse(excess), at));
            for &(_, at) in &over {
                self.take(at);
            }
            let left = (0..self.streams.len()).fold(0, |sum: u64, at| sum.saturating_add(self.excess(at)));
            if left == 0 {
                (0..self.streams.len()).for_each(|at| self.give(at));
                return true;
            }
            if left >= before || self.tests == 0 {
                return false;
            }
            before = left;
        }
        false
    }

    fn total(&self, stream: usize) -> u64 {
        let windows = self.streams[stream].steps.iter().map(|&(server, task, _)| self.servers[server][task].deadline.0);
        windows.fold(0, u64::saturating_add)
    }

    /// By how much the windows of a stream are longer than its deadline.
    fn excess(&self, stream: usize) -> u64 {
        self.total(stream).saturating_sub(self.streams[stream].deadline.0)
    }

    /// Makes the windows of a stream as long as its deadline, if they are shorter, as far as their periods allow.
    fn give(&mut self, stream: usize) {
        let (total, deadline) = (self.total(stream), self.streams[stream].deadline.0);
        if total == 0 || total >= deadline {
            return;
        }
        let mut left = deadline - total;
        let of = &self.streams[stream].steps;
        // In proportion first, then what is left to whoever can take it.
        for whole in [false, true] {
            for &(server, task, _) in of {
                let task = &mut self.servers[server][task];
                let part = u128::from(deadline - total) * u128::from(task.deadline.0) / u128::from(total);
                let part = if whole { left } else { u64::try_from(part).unwrap_or(left).min(left) };
                let part = part.min(task.period.saturating_sub(task.deadline).0);
                task.deadline.0 += part;
                left -= part;
            }
        }
    }

    /// Shortens windows of a stream until they fit its deadline, those first that can give most; as far as servers hold.
    fn take(&mut self, stream: usize) {
        let steps = self.streams[stream].steps.clone();
        let mut spare: Vec<(u64, usize)> = Vec::new();
        for (at, &(server, task, cost)) in steps.iter().enumerate() {
            let window = self.servers[server][task].deadline;
            let least = self.least(server, task, cost);
            spare.push((window.0 - least.0, at));
        }
        spare.sort_unstable_by_key(|&(spare, at)| (std::cmp::Reverse(spare), at));
        for (_, at) in spare {
            let (server, task, cost) = steps[at];
            let excess = self.excess(stream);
            let window = self.servers[server][task].deadline.0;
            if excess == 0 {
                return;
            }
            // Another step of the stream may have been shortened on the same server.
            let least = self.least(server, task, cost).0;
            self.servers[server][task].deadline = Nanos(least.max(window.saturating_sub(excess)));
        }
    }

    /// The shortest window of a task with which its server, which holds now, still holds.
    fn least(&mut self, server: usize, task: usize, cost: Nanos) -> Nanos {
        let now = self.servers[server][task].deadline;
        let (mut low, mut high) = (cost.0.saturating_sub(1).min(now.0), now.0);
        while high - low > (high / 10_000).max(1) {
            let middle = low + (high - low) / 2;
            self.servers[server][task].deadline = Nanos(middle);
            if self.holds(server) {
                high = middle;
            } else {
                low = middle;
            }
        }
        self.servers[server][task].deadline = now;
        Nanos(high)
    }
}

/// An equal part of the deadline for every step.
fn equal(deadline: Nanos, costs: &[Nanos], _: usize) -> u64 {
    deadline.0 / costs.len() as u64
}

/// Parts in proportion to the costs.
fn by_cost(deadline: Nanos, costs: &[Nanos], at: usize) -> u64 {
    let sum: u128 = costs.iter().map(|cost| u128::from(cost.0)).sum();
    let part = u128::from(deadline.0) * u128::from(costs[at].0) / sum.max(1);
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// The cost, and the same part of what is left for every step.
fn by_slack(deadline: Nanos, costs: &[Nanos], at: usize) -> u64 {
    let sum = costs.iter().fold(0, |sum: u64, cost| sum.saturating_add(cost.0));
    costs[at].0.saturating_add(deadline.0.saturating_sub(sum) / costs.len() as u64)
}
