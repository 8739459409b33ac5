//! Flows on the copy engines of one device: the longest response of each against its bound.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use crate::ring::{BlockRing, Checker, Sampling, VerifiedBlocks};
use headway_core::analysis::schedulability::{ConcreteTask, JobCosts, RecurrentTask, Ties, concrete};
use headway_core::decisions::dispatch::{DispatchEvent, DispatchInput};
use headway_core::files::machine::{EngineClass, Machine};
use headway_core::files::workload::{
    CopyEndpoint, Cycle, Grouping, OnMiss, Parameters, Stream, StreamPlacement, StreamStep, Workload,
};
use headway_core::log::{LogRecord, RecordBody};
use headway_core::plan::combine::CombineEffort;
use headway_core::plan::planner::{PlanOptions, plan};
use headway_core::plan::{OperationWork, Outcome as Answer, Plan, PlannedStep, Strategy};
use headway_core::units::{Bytes, Nanos};
use headway_kernels::Shipped;
use headway_runtime::kernels::Kernels;
use headway_runtime::wall::{self, SuppliedRun};
use rand_core::SeedableRng;
use rand_pcg::Pcg64;

use super::{Draw, PERIODS_MS, PaperVerdict};
use crate::Error;
use crate::reproduce::site::{Site, with_causes};
use crate::reproduce::{ExperimentResults, ExperimentSetting, PaperRow, RawFigures, raw_figures, said, silent};
use headway_measure::sample::SampleFigures;

/// Flows, each in through one engine and out through the other.
const FLOWS: usize = 6;
/// Utilisation of the bytes alone; the costs of the plan add set-ups, margin and jitter. Lowered until a set is found.
const PERCENT: [u64; 4] = [60, 45, 30, 15];
/// Sets drawn for each.
const DRAWS: usize = 200;

/// One flow on one engine.
struct EngineFlow {
    flow: String,
    engine: String,
    period: Nanos,
    bytes: Bytes,
    cost: Nanos,
    bound: Nanos,
    responses: Vec<Nanos>,
}

struct Watch<'a> {
    plan: &'a Plan,
    epoch: Nanos,
    /// Responses by pipeline and step.
    responses: BTreeMap<(u32, u32), Vec<Nanos>>,
    misses: u64,
    overruns: Vec<Overrun>,
}

/// A copy that took longer than its worst case.
struct Overrun {
    at: Nanos,
    pipeline: u32,
    step: u32,
    cost: Nanos,
    took: Nanos,
}

impl Watch<'_> {
    fn see(&mut self, record: &LogRecord) {
        match &record.what {
            RecordBody::Input(DispatchInput::Start { epoch, .. }) => self.epoch = *epoch,
            RecordBody::Event(DispatchEvent::Complete { pipeline, cycle, step }) => {
                let release = self.plan.pipelines[*pipeline as usize].release(*cycle, *step as usize);
                let response = record.at.saturating_sub(self.epoch + release);
                self.responses.entry((*pipeline, *step)).or_default().push(response);
            }
            RecordBody::Event(DispatchEvent::Late { .. }) => self.misses += 1,
            RecordBody::Event(DispatchEvent::Overrun { pipeline, step, cost, took, .. }) => {
                let at = record.at.saturating_sub(self.epoch);
                self.overruns.push(Overrun { at, pipeline: *pipeline, step: *step, cost: *cost, took: *took });
            }
            _ => {}
        }
    }
}

pub(super) fn run(setting: &ExperimentSetting) -> Result<ExperimentResults, Error> {
    let mut site = Site::open(&ExperimentSetting { gpus: Some(1), ..setting.clone() })?;
    let duration = site.duration(setting);
    let (workload, plan, bounds) = accepted(&site.machine, setting.seed)?;
    let plan = Arc::new(plan);
    let kernels = Kernels::of(&plan, &workload, &Shipped)?;
    let ring = BlockRing::new(&plan, setting.seed).expect("every flow has a pipeline of its own");
    let (checker, found) = Checker::new(&ring, &plan, &kernels, Sampling { streams: 0, turns: 0, chains: None })
        .map_err(headway::Failure::Data)?;
    let cycles: Vec<u64> = plan.pipelines.iter().map(|p| duration.0.div_ceil(p.period.0)).collect();
    let packets = plan.streams.iter().map(|stream| cycles[stream.pipeline as usize]).collect();
    let spin = if site.source == "cuda" { Nanos(200_000) } else { Nanos::ZERO };
    let options = wall::WallOptions { spin, class: site.class, ..wall::WallOptions::default() };
    let work = SuppliedRun {
        plan: &plan,
        kernels: &kernels,
        cycles,
        packets,
        supply: Box::new(ring),
        collect: Box::new(checker),
        inputs: Vec::new(),
        requests: Default::default(),
    };
    let mut watch =
        Watch { plan: &plan, epoch: Nanos::ZERO, responses: BTreeMap::new(), misses: 0, overruns: Vec::new() };
    let ended = wall::run_work(work, &mut site.devices, &options, |record| watch.see(record), |_| {});
    let verified = found.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let lines = lines(&plan, &bounds, watch.responses);
    let failure = ended.err().map(|error| with_causes(&error));
    let trouble = (watch.misses, &watch.overruns[..]);
    Ok(outcome(setting, &site, &lines, &verified, duration, trouble, failure.as_deref()))
}

/// A random set whose copies run whole and pass on both engines, its plan, and the bound of each flow on each engine.
fn accepted(machine: &Machine, seed: u64) -> Result<(Workload, Plan, Vec<Vec<Nanos>>), Error> {
    let mut draw = Draw(Pcg64::seed_from_u64(seed));
    for percent in PERCENT {
        for _ in 0..DRAWS {
            let workload = workload(machine, &mut draw, percent, seed);
            let options = PlanOptions { strategy: Some(Strategy::Partitioned) };
            let plan = plan(machine, &workload, options).map_err(|error| headway::Failure::Plan(Box::new(error)))?;
            let whole = plan.pipelines.iter().flat_map(|p| &p.steps).all(|step| step.chunk == Bytes(0));
            if plan.verdict.outcome != Answer::Schedulable || !whole {
                continue;
            }
            if let Some(bounds) = bounds(&plan) {
                return Ok((workload, plan, bounds));
            }
        }
    }
    Err(headway::Failure::Options(
        "no random set of flows passes on this machine; its costs or its jitter are too large",
    )
    .into())
}

/// The longest response of each pipeline on each step's engine, from all schedules with these offsets.
fn bounds(plan: &Plan) -> Option<Vec<Vec<Nanos>>> {
    let steps = plan.pipelines.iter().map(|pipeline| pipeline.steps.len()).max()?;
    let mut bounds = Vec::new();
    for step in 0..steps {
        let task = |pipeline: &headway_core::plan::Pipeline| {
            let task = RecurrentTask::whole(pipeline.steps[step].cost, pipeline.period, pipeline.window);
            ConcreteTask::at(pipeline.release(0, step), task)
        };
        let tasks: Vec<ConcreteTask> = plan.pipelines.iter().map(task).collect();
        let explored = concrete(&tasks, JobCosts::UpToWorst, Ties::Any);
        if explored.bounds.len() != tasks.len() {
            return None;
        }
        bounds.push(explored.bounds);
    }
    Some(bounds)
}

/// Flows that each have a window of one period on each engine.
fn workload(machine: &Machine, draw: &mut Draw, percent: u64, seed: u64) -> Workload {
    let host_to_gpu = machine.memories().next().zip(machine.gpus().next());
    let route = host_to_gpu.and_then(|(host, gpu)| machine.route(host, gpu));
    let slowest = |route: headway_core::files::machine::RouteId| {
        let uses = machine.routes[route.at()].uses.iter();
        uses.map(|(capacity, _)| machine.capacities[capacity.at()].rate_low.0).min()
    };
    let rate = route.and_then(slowest).unwrap_or(1_000_000);
    let shares = draw.shares(FLOWS, percent * 10_000);
    let stream = |(at, share): (usize, u64), draw: &mut Draw| {
        let period = PERIODS_MS[draw.between(0, PERIODS_MS.len() as u64 - 1) as usize] * 1_000_000;
        let bytes = u128::from(rate) * u128::from(period) * u128::from(share) / 1_000_000_000_000_000;
        Stream {
            id: format!("f{at}"),
            packet: Bytes((bytes as u64).max(16).next_multiple_of(16)),
            period: Nanos(period),
            deadline: Nanos(2 * period),
            start: Nanos::ZERO,
            gpu: StreamPlacement::Auto,
            steps: vec![
                StreamStep::Copy { from: CopyEndpoint::Host, to: CopyEndpoint::OwnGpu },
                StreamStep::Copy { from: CopyEndpoint::OwnGpu, to: CopyEndpoint::Host },
            ],
            on_miss: OnMiss::Finish,
            parameters: Parameters::default(),
            sharding: None,
            parts: Vec::new(),
        }
    };
    Workload {
        name: format!("np-edf-flows-{seed}"),
        description: format!("{FLOWS} flows, {percent} % of an engine's bytes"),
        // Runs have times of their own.
        duration: Nanos(1_000_000_000),
        seed,
        cycle: Cycle::Arrival,
        grouping: Grouping::Each,
        transform: CombineEffort::default(),
        streams: shares.into_iter().enumerate().map(|flow| stream(flow, draw)).collect(),
        messages: Vec::new(),
        demands: Vec::new(),
        unplanned: Vec::new(),
        tasks: Vec::new(),
        sharing: None,
        hash: format!("np-edf-{seed}-{percent}"),
    }
}

fn lines(plan: &Plan, bounds: &[Vec<Nanos>], mut responses: BTreeMap<(u32, u32), Vec<Nanos>>) -> Vec<EngineFlow> {
    let mut lines = Vec::new();
    for (number, pipeline) in (0u32..).zip(&plan.pipelines) {
        for (at, step) in (0u32..).zip(&pipeline.steps) {
            lines.push(EngineFlow {
                flow: pipeline.name.clone(),
                engine: engine(plan, step),
                period: pipeline.period,
                bytes: pipeline.reserve,
                cost: step.cost,
                bound: bounds[at as usize][number as usize],
                responses: responses.remove(&(number, at)).unwrap_or_default(),
            });
        }
    }
    lines
}

fn engine(plan: &Plan, step: &PlannedStep) -> String {
    let first = step.operations[0].engines.first();
    let class = match step.operations[0].work {
        OperationWork::Copy { class: EngineClass::H2d, .. } => "h2d",
        _ => "d2h",
    };
    first.map_or_else(|| class.to_owned(), |engine| plan.engines[engine.at()].name.clone())
}

fn outcome(
    setting: &ExperimentSetting,
    site: &Site,
    lines: &[EngineFlow],
    verified: &VerifiedBlocks,
    duration: Nanos,
    (late, overruns): (u64, &[Overrun]),
    failure: Option<&str>,
) -> ExperimentResults {
    let longest = |line: &EngineFlow| line.responses.iter().copied().max().unwrap_or_default();
    let jobs: usize = lines.iter().map(|line| line.responses.len()).sum();
    let above = lines.iter().filter(|line| longest(line) > line.bound).count();
    let nearest = lines.iter().map(|line| longest(line).0 as f64 / line.bound.0.max(1) as f64).fold(0.0, f64::max);
    let failed = failure.map_or_else(String::new, |why| format!("; it failed: {why}"));
    let beyond = overruns.iter().map(|job| job.took.saturating_sub(job.cost)).max().unwrap_or_default();
    let rows = vec![
        PaperRow {
            what: format!("{FLOWS} flows through both copy engines of one device for {duration}"),
            paper: said("V-B", "a schedule that is verified to be valid runs without deadline misses"),
            ours: format!(
                "{jobs} jobs: {above} of {} longest responses above their bound, the nearest at {:.0} % of it; {late} after \
                 their deadline, {} above their worst case, by {beyond} at most{failed}",
                lines.len(),
                nearest * 100.0,
                overruns.len()
            ),
            verdict: PaperVerdict::own(above == 0 && late == 0 && failure.is_none() && jobs > 0),
            why: "no response above its bound, no job late and no failure are asked for; the paper ran nothing".into(),
        },
        PaperRow {
            what: "bytes that came back".into(),
            paper: silent("not treated"),
            ours: format!(
                "{} blocks in order with their headers; {:.1} MB of {:.1} GB compared and equal",
                verified.blocks,
                verified.turn_bytes as f64 / 1e6,
                verified.bytes as f64 / 1e9
            ),
            verdict: PaperVerdict::own(verified.blocks > 0 && failure.is_none()),
            why: "every block that came back is looked at; a wrong byte ends the experiment".into(),
        },
    ];
    ExperimentResults { rows, notes: vec![
            "Each flow is copied in within one period and out within the next. Bounds are the longest responses in all \
             schedules with these offsets and costs from nothing to the plan's worst case, which includes margin and jitter; \
             responses run from the nominal release to the moment the driver noticed the end. Nothing is excluded."
                .into(),
        ], tables: vec![table(lines), overrun_table(lines, overruns)], ..ExperimentResults::new("np-edf", site.source, site.named(), setting.seed) }
}

/// Lines are in order of pipelines and their steps.
fn overrun_table(lines: &[EngineFlow], overruns: &[Overrun]) -> RawFigures {
    let steps = lines.len() / FLOWS;
    raw_figures!("overruns", overruns, |job| {
        let of = &lines[job.pipeline as usize * steps + job.step as usize];
        Columns { flow: of.flow, engine: of.engine, at_ns: job.at, worst_case_ns: job.cost, took_ns: job.took }
    })
}

fn table(lines: &[EngineFlow]) -> RawFigures {
    raw_figures!("flows", lines, |line| {
        let figures = SampleFigures::of(&line.responses);
        Columns {
            flow: line.flow,
            engine: line.engine,
            period_ns: line.period,
            bytes: line.bytes,
            worst_case_ns: line.cost,
            bound_ns: line.bound,
            n: figures.map_or(0, |f| f.n),
            response_median_ns: figures.map_or(Nanos::ZERO, |f| f.median),
            response_p99_ns: figures.map(|f| f.p99_ns()),
            response_max_ns: figures.map_or(Nanos::ZERO, |f| f.max),
        }
    })
}
