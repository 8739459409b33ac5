//! Servers: which engines are arbitrated as one, what a copy costs there, and whether every window holds.

use super::demands::{Demand, demands, phased_streams, routes_of, steps_on, window_of};
use super::explored::{Steps, explored};
use super::holds::{Holds, carried};
use super::strategies::EnginesInUse;
use super::{CHUNK_GRANULE, Context, Domains, Draft, PlanError, unplanned};
use crate::analysis::schedulability::{self, ChunkFlow, JobCosts, RecurrentTask};
use crate::files::machine::{EngineClass, EngineId};
use crate::plan::{
    OperationWork, Outcome, Pipeline, PipelineSource, PlannedStep, Server, Strength, Verdict, Violation,
};
use crate::units::{Bytes, Nanos, PPM};

/// What steps on one server have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ServerKey {
    /// The engine that stands for all that are arbitrated together.
    Engines(EngineId),
    /// A server that a demand names.
    Named(String),
}

/// Gives every step its server.
pub(super) fn assign(_: &Context<'_>, mut draft: Draft) -> Result<Draft, PlanError> {
    for step in draft.pipelines.iter_mut().flat_map(|pipeline| &mut pipeline.steps) {
        let key = match step.operations[0].engines.first() {
            Some(engine) => ServerKey::Engines(draft.leaders[engine.at()]),
            None => ServerKey::Named(step.name.clone()),
        };
        let keys = &mut draft.server_keys;
        let at = keys.iter().position(|other| *other == key).unwrap_or_else(|| {
            keys.push(key);
            keys.len() - 1
        });
        step.server = at as u32;
    }
    Ok(draft)
}

/// Tests every server.
pub(super) fn test(context: &Context<'_>, mut draft: Draft) -> Result<Draft, PlanError> {
    for at in 0..draft.server_keys.len() {
        let server = server(context, at, &mut draft);
        draft.servers.push(server);
    }
    Ok(draft)
}

/// Finds for every engine the lowest engine that is arbitrated together with it.
///
/// An operation that holds two engines, and a batch that holds several, ties them, as do domains and the strategy.
pub(super) fn tie(context: &Context<'_>, draft: Draft) -> Result<Draft, PlanError> {
    let mut leaders: Vec<EngineId> =
        (0..context.machine.engines.len() as u32 + context.cpu.cores).map(EngineId).collect();
    let mut tie = |engines: &[EngineId]| {
        let Some(lowest) = engines.iter().map(|e| leaders[e.at()]).min() else { return };
        let merged: Vec<EngineId> = engines.iter().map(|e| leaders[e.at()]).collect();
        for entry in &mut leaders {
            if merged.contains(entry) {
                *entry = lowest;
            }
        }
    };
    let mut used = EnginesInUse { copying: Vec::new(), computing: Vec::new() };
    for step in draft.pipelines.iter().flat_map(|p| &p.steps) {
        let engines: Vec<EngineId> = step.operations.iter().flat_map(|o| o.engines.iter().copied()).collect();
        tie(&engines);
        if step.operations.iter().any(|o| matches!(o.work, OperationWork::Copy { .. })) {
            used.copying.extend(engines);
        } else {
            // A core serves nothing but its streams, whatever is tied.
            used.computing.extend(engines.into_iter().filter(|engine| engine.at() < context.machine.engines.len()));
        }
    }
    for engines in (context.strategy.row().tied)(context, &used) {
        tie(&engines);
    }
    for routes in draft.domains.routes() {
        let engines: Vec<EngineId> =
            routes.iter().flat_map(|route| context.machine.routes[route.at()].engines.iter().copied()).collect();
        tie(&engines);
    }
    Ok(Draft { leaders, ..draft })
}

fn server(context: &Context<'_>, at: usize, draft: &mut Draft) -> Server {
    let (name, engines) = match &draft.server_keys[at] {
        ServerKey::Named(name) => (name.clone(), Vec::new()),
        ServerKey::Engines(lowest) => {
            let used = |engine: &EngineId| {
                let mut operations = draft.pipelines.iter().flat_map(|p| &p.steps).flat_map(|s| &s.operations);
                draft.leaders[engine.at()] == *lowest && operations.any(|o| o.engines.contains(engine))
            };
            let engines: Vec<EngineId> =
                (0..draft.leaders.len() as u32).map(EngineId).filter(|engine| used(engine)).collect();
            let name = match engines.as_slice() {
                [one] => context.engine_name(*one),
                several => name_of_several(context, several, &draft.pipelines),
            };
            (name, engines)
        }
    };
    let (pipelines, domains, at) = (&mut draft.pipelines, &draft.domains, at as u32);
    let mut verdict = tested(context, &name, &steps_on(at, pipelines));
    let is_cut = verdict.outcome != Outcome::Schedulable && cut(context, at, pipelines, domains);
    if is_cut {
        verdict = tested(context, &name, &steps_on(at, pipelines));
    }
    verdict = with_distances(verdict, &name, &steps_on(at, pipelines));
    if verdict.outcome == Outcome::Schedulable && unplanned::fit(context, at, pipelines, domains, &verdict) {
        let steps = steps_on(at, pipelines);
        verdict = with_distances(tested(context, &name, &steps), &name, &steps);
    }
    if is_cut && let Some(margin) = verdict.margin_ppm {
        verdict.notes.extend(limit(&name, &demands(&steps_on(at, pipelines)), margin));
    }
    Server { name, engines, in_flight: 1, verdict }
}

fn name_of_several(context: &Context<'_>, engines: &[EngineId], pipelines: &[Pipeline]) -> String {
    let any = |of: fn(&PipelineSource) -> bool| pipelines.iter().any(|pipeline| of(&pipeline.source));
    if any(|source| matches!(source, PipelineSource::Parts(_))) {
        joined(context, engines)
    } else if let Some(name) = (context.strategy.row().server_name)(context, engines) {
        name
    } else if any(|source| matches!(source, PipelineSource::Sharded(_))) {
        common_name(context, engines).to_owned()
    } else {
        "transfers".to_owned()
    }
}

/// Tests one server: by Jeffay, Stanat and Martel where jobs run whole and every window is as long as its period, else by
/// the demand of all intervals. Both let steps of one stream meet, which their windows keep apart: where all steps are of
/// one stream and the tests fail, every schedule of these windows is followed.
fn tested(context: &Context<'_>, server: &str, steps: &[(&Pipeline, &PlannedStep)]) -> Verdict {
    let demands = demands(steps);
    let mut verdict = verdict_of(server, &demands, Holds::for_any(steps));
    if verdict.outcome != Outcome::NotSchedulable {
        return verdict;
    }
    if carried(steps) > 1 {
        // Other combinations might pass.
        verdict.strength = Strength::Sufficient;
    }
    let planned: Vec<&Pipeline> = steps.iter().map(|of| of.0).filter(|of| of.source.is_planned()).collect();
    if !planned.windows(2).any(|two| std::ptr::eq(two[0], two[1]) && two[0].gang.is_none()) {
        return verdict;
    }
    verdict.strength = Strength::Sufficient;
    if planned.iter().all(|pipeline| std::ptr::eq(*pipeline, planned[0])) {
        let jitter = context.machine.calibration.as_ref().map_or(Nanos::ZERO, |of| of.jitter);
        // With a factor that any offsets hold with, these hold.
        let least = verdict.margin_ppm.unwrap_or(0);
        verdict = phased(server, &demands, jitter, least).unwrap_or(verdict);
    }
    verdict
}

/// `verdict`, or where that is a no the yes of the test in which the steps of each stream keep their distances. It comes last: it
/// holds for less, and a stream that is late moves its own steps farther.
fn with_distances(verdict: Verdict, server: &str, steps: &[(&Pipeline, &PlannedStep)]) -> Verdict {
    if verdict.outcome != Outcome::NotSchedulable || Holds::for_any(steps) != Holds::AnyOffsets {
        return verdict;
    }
    let demands = demands(steps);
    let streams = phased_streams(steps, &demands);
    let tasks: Vec<RecurrentTask> = demands.iter().map(|demand| demand.task).collect();
    let found = schedulability::chunked_streams(&tasks, &streams);
    if streams.is_empty() || !found.is_schedulable() {
        return verdict;
    }
    answered(server, &demands, &found, Holds::StepsOfStreams, || schedulability::streams_margin_ppm(&tasks, &streams))
}

/// The engines that a step in parts ties, by their names while they are few.
fn joined(context: &Context<'_>, engines: &[EngineId]) -> String {
    let copies = |engine: &EngineId| {
        context.machine.engines.get(engine.at()).is_some_and(|engine| !engine.serves.contains(&EngineClass::Ee))
    };
    match engines {
        [_, _] | [_, _, _] => engines.iter().map(|engine| context.engine_name(*engine)).collect::<Vec<_>>().join(" + "),
        _ if engines.iter().all(copies) => "transfers".to_owned(),
        _ => "node".to_owned(),
    }
}

/// What engines on several GPUs have in common.
fn common_name(context: &Context<'_>, engines: &[EngineId]) -> &'static str {
    let all = |class| engines.iter().all(|engine| context.machine.engines[engine.at()].serves == [class]);
    match () {
        () if all(EngineClass::H2d) => "h2d engines",
        () if all(EngineClass::D2h) => "d2h engines",
        () if all(EngineClass::Peer) => "peer engines",
        () if all(EngineClass::Ee) => "execution engines",
        () => "transfers",
    }
}

/// Cuts each copy of a server into the largest chunks that leave it the largest margin; whether there are any with which every
/// window holds.
///
/// Only where every job is one copy: a kernel and a batch run whole. Each has a size of its own: what is due first
/// blocks nothing that is due earlier and stays whole, where one size for all would cut it too and cost its set-ups.
fn cut(context: &Context<'_>, at: u32, pipelines: &mut [Pipeline], domains: &Domains) -> bool {
    let used = routes_of(pipelines);
    let mut flows = Vec::new();
    for (pipeline, step) in steps_on(at, pipelines) {
        if !pipeline.source.is_planned() {
            break; // they come last
        }
        if pipeline.gang.is_some() || matches!(pipeline.source, PipelineSource::Sharded(_)) {
            return false;
        }
        let [operation] = step.operations.as_slice() else { return false };
        let OperationWork::Copy { route, bytes, .. } = operation.work else { return false };
        let Ok(flow) = context.in_chunks(route, bytes, &used, domains) else { return false };
        flows.push(ChunkFlow { period: pipeline.period, deadline: window_of(pipeline, step), ..flow });
    }
    let Ok(plan) = schedulability::flow_chunk_sizes_with_margin(&flows, CHUNK_GRANULE) else { return false };
    let steps = pipelines.iter_mut().flat_map(|p| &mut p.steps).filter(|step| step.server == at);
    for (((step, task), flow), &bytes) in steps.zip(&plan.tasks).zip(&flows).zip(&plan.bytes) {
        step.batch = None;
        step.cost = task.cost;
        step.chunk_cost = task.chunk;
        step.chunk = if flow.bytes > bytes { bytes } else { Bytes(0) };
    }
    true
}

/// The verdict on the steps of one stream, where its schedules could be followed: whether it starts now or later is the same.
fn phased(server: &str, demands: &[Demand], jitter: Nanos, least_margin: u64) -> Option<Verdict> {
    // What has no windows got no chunks yet.
    let demands: Vec<&Demand> = demands.iter().filter(|demand| demand.task.chunk > Nanos::ZERO).collect();
    let explored = explored(&demands, jitter, JobCosts::UpToWorst, &mut Steps::shared_by(1));
    let (outcome, violation) = match &explored.verdict.outcome {
        schedulability::TestOutcome::Schedulable => (Outcome::Schedulable, None),
        schedulability::TestOutcome::NotSchedulable(schedulability::TestViolation::Late {
            task,
            release,
            deadline,
            finish,
            ..
        }) => {
            let work = finish.saturating_sub(*release);
            let violation = Violation {
                server: server.to_owned(),
                blocker: None,
                blocking: Nanos::ZERO,
                interval: deadline.saturating_sub(*release),
                demand: work,
                parts: vec![(demands[*task].name.clone(), 1, work)],
                because: Vec::new(),
            };
            (Outcome::NotSchedulable, Some(violation))
        }
        schedulability::TestOutcome::NotSchedulable(_) | schedulability::TestOutcome::Undecided(_) => return None,
    };
    Some(Verdict {
        outcome,
        model: format!("periodic steps in chunks, EDF, one chunk in flight; {}", Holds::OneStream.text()),
        strength: if jitter == Nanos::ZERO { Strength::Exact } else { Strength::Sufficient },
        utilisation_ppm: explored.verdict.utilisation_ppm,
        margin_ppm: Some(explored.margin_ppm(least_margin, None).unwrap_or(least_margin)),
        violation,
        notes: Vec::new(),
    })
}

/// What would fail first on a server whose copies are in chunks.
fn limit(server: &str, demands: &[Demand], margin_ppm: u64) -> Option<String> {
    let more = margin_ppm + schedulability::MARGIN_PPM_STEP;
    let tasks: Vec<RecurrentTask> = demands.iter().map(|demand| schedulability::scaled(&demand.task, more)).collect();
    let schedulability::TestOutcome::NotSchedulable(violation) = schedulability::chunked(&tasks, 1).outcome else {
        return None;
    };
    let what = match violation {
        schedulability::TestViolation::Demand { task: Some(blocker), interval, .. } => {
            format!("what is due {interval} after its release waits for a chunk of `{}`", demands[blocker].name)
        }
        schedulability::TestViolation::Demand { task: None, interval, .. } => {
            format!("what is due within {interval} takes all of that time")
        }
        schedulability::TestViolation::Utilisation | schedulability::TestViolation::Late { .. } => {
            "its copies take all of its time".to_owned()
        }
    };
    let margin = margin_ppm as f64 / PPM as f64;
    Some(format!("`{server}` serves long copies in chunks; with all costs x{margin:.2}, {what}"))
}

fn verdict_of(server: &str, demands: &[Demand], holds: Holds) -> Verdict {
    let tasks: Vec<RecurrentTask> = demands.iter().map(|demand| demand.task).collect();
    let whole = tasks.iter().all(|task| task.deadline == task.period && task.chunk == task.cost);
    let found = if whole { schedulability::jeffay(&tasks) } else { schedulability::chunked(&tasks, 1) };
    answered(server, demands, &found, holds, || schedulability::margin_ppm(&tasks))
}

/// What a test of the demands of a server found, in the words of plans.
fn answered(
    server: &str,
    demands: &[Demand],
    found: &schedulability::TestVerdict,
    holds: Holds,
    margin_ppm: impl FnOnce() -> u64,
) -> Verdict {
    let name = |at: usize| demands[at].name.clone();
    let mut notes = Vec::new();
    let (outcome, violation) = match &found.outcome {
        schedulability::TestOutcome::Schedulable => (Outcome::Schedulable, None),
        schedulability::TestOutcome::Undecided(reason) => {
            notes.push(format!("server `{server}`: {reason}"));
            (Outcome::Undecided, None)
        }
        schedulability::TestOutcome::NotSchedulable(violation) => {
            (Outcome::NotSchedulable, Some(evidence(server, violation, &name)))
        }
    };
    let margin_ppm = (outcome != Outcome::Undecided).then(margin_ppm);
    Verdict {
        outcome,
        model: format!("{}; {}", found.model, holds.text()),
        strength: if found.strength == schedulability::TestStrength::Exact {
            Strength::Exact
        } else {
            Strength::Sufficient
        },
        utilisation_ppm: found.utilisation_ppm,
        margin_ppm,
        violation,
        notes,
    }
}

fn evidence(server: &str, violation: &schedulability::TestViolation, name: &impl Fn(usize) -> String) -> Violation {
    let server = server.to_owned();
    match violation {
        // The tests for any offsets never give `Late`.
        schedulability::TestViolation::Utilisation | schedulability::TestViolation::Late { .. } => Violation {
            server,
            blocker: None,
            blocking: Nanos::ZERO,
            interval: Nanos::ZERO,
            demand: Nanos::ZERO,
            parts: Vec::new(),
            because: Vec::new(),
        },
        schedulability::TestViolation::Demand { task, interval, demand, blocking, contributions } => Violation {
            server,
            blocker: task.map(name),
            blocking: *blocking,
            interval: *interval,
            demand: *demand,
            parts: contributions.iter().map(|part| (name(part.task), part.jobs, part.demand)).collect(),
            because: Vec::new(),
        },
    }
}
