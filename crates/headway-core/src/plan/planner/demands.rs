//! What the steps of pipelines ask of their servers.

use std::collections::BTreeMap;

use crate::analysis::schedulability::{PhasedStep, PhasedStream, RecurrentTask};
use crate::files::machine::RouteId;
use crate::plan::{OperationWork, Pipeline, PlannedStep};
use crate::units::Nanos;

pub(crate) fn steps_on(server: u32, pipelines: &[Pipeline]) -> Vec<(&Pipeline, &PlannedStep)> {
    let steps = pipelines.iter().flat_map(|p| p.steps.iter().map(move |s| (p, s)));
    steps.filter(|(_, s)| s.server == server).collect()
}

/// The routes that any copy of the plan uses, ascending.
pub(super) fn routes_of(pipelines: &[Pipeline]) -> Vec<RouteId> {
    let mut used: Vec<RouteId> = Vec::new();
    for operation in pipelines.iter().flat_map(|p| &p.steps).flat_map(|s| &s.operations) {
        if let OperationWork::Copy { route, .. } = operation.work
            && !used.contains(&route)
        {
            used.push(route);
        }
    }
    used.sort_unstable();
    used
}

/// Which step of its pipeline `step` is.
fn position(pipeline: &Pipeline, step: &PlannedStep) -> usize {
    pipeline.steps.iter().position(|other| std::ptr::eq(other, step)).unwrap_or(0)
}

pub(super) fn window_of(pipeline: &Pipeline, step: &PlannedStep) -> Nanos {
    pipeline.window_of(position(pipeline, step))
}

/// What recurs on a server.
pub(crate) struct Demand {
    pub(super) name: String,
    pub(crate) task: RecurrentTask,
    /// First release after the epoch.
    pub(super) offset: Nanos,
    /// Whether all its chunks but the last take as long as `chunk`.
    pub(super) even: bool,
    /// The positions of the steps that it stands for.
    pub(super) steps: Vec<usize>,
}

/// The demands of the steps on a server: each its own, but those of a gang's step, which are served together, are one,
/// and so are the steps of a chained gang, which follow each other as the chunks of one job do. What has no windows only
/// blocks, for a chunk.
pub(crate) fn demands(steps: &[(&Pipeline, &PlannedStep)]) -> Vec<Demand> {
    let mut demands: Vec<Demand> = Vec::new();
    // The position of a gang's demand, and of the step that it has counted last.
    let mut counted: BTreeMap<(u32, Option<usize>), (usize, Vec<usize>)> = BTreeMap::new();
    // The position of a batch's demand.
    let mut batches: BTreeMap<u32, usize> = BTreeMap::new();
    for (number, &(pipeline, step)) in steps.iter().enumerate() {
        let only = vec![number];
        if !pipeline.source.is_planned() {
            let task = RecurrentTask::bulk(step.chunk_cost);
            let (name, offset) = (pipeline.name.clone(), pipeline.start);
            demands.push(Demand { name, task, offset, even: true, steps: only });
            continue;
        }
        let deadline = window_of(pipeline, step);
        let task = RecurrentTask { cost: step.cost, period: pipeline.period, deadline, chunk: step.chunk_cost };
        let at = position(pipeline, step);
        let offset = pipeline.release(0, at);
        if let Some(place) = step.batch {
            // The steps of a batch are one job: the first stands for all.
            let demand = *batches.entry(place.number).or_insert(demands.len());
            match demands.get_mut(demand) {
                Some(demand) => demand.steps.push(number),
                None => {
                    let name = format!("batch of {}", step.name);
                    demands.push(Demand { name, task, offset, even: true, steps: only });
                }
            }
            continue;
        }
        let Some(gang) = pipeline.gang else {
            let name = if pipeline.steps.len() == 1 {
                pipeline.name.clone()
            } else {
                format!("{}: {}", pipeline.name, step.name)
            };
            demands.push(Demand { name, task, offset, even: true, steps: only });
            continue;
        };
        let key = (gang.number, (!gang.chained).then_some(at));
        let (demand, seen) = counted.entry(key).or_insert_with(|| {
            let name = if gang.chained { pipeline.name.clone() } else { format!("{}: {}", pipeline.name, step.name) };
            let task = RecurrentTask { cost: Nanos::ZERO, chunk: Nanos::ZERO, ..task };
            let name = format!("{name}, all at once");
            demands.push(Demand { name, task, offset, even: true, steps: Vec::new() });
            (demands.len() - 1, Vec::new())
        });
        let of_gang = &mut demands[*demand];
        of_gang.steps.push(number);
        if !seen.contains(&at) {
            seen.push(at);
            of_gang.even = seen.len() == 1;
            of_gang.task.cost = of_gang.task.cost.saturating_add(task.cost);
            of_gang.task.chunk = of_gang.task.chunk.max(task.chunk);
        }
    }
    demands
}

/// The streams of which several of these demands are steps, each by itself: not those of gangs and batches.
pub(super) fn phased_streams(steps: &[(&Pipeline, &PlannedStep)], demands: &[Demand]) -> Vec<PhasedStream> {
    let alone = |demand: &Demand| {
        let [at] = demand.steps.as_slice() else { return None };
        let (pipeline, step) = steps[*at];
        (pipeline.source.is_planned() && pipeline.gang.is_none() && step.batch.is_none()).then_some(pipeline)
    };
    let known = demands.iter().enumerate().filter_map(|(task, demand)| Some((task, demand, alone(demand)?)));
    let known: Vec<_> = known.collect();
    // The steps of a pipeline follow each other.
    let by_pipeline = known.chunk_by(|one, next| std::ptr::eq(one.2, next.2)).filter(|steps| steps.len() > 1);
    let stream = |steps: &[(usize, &Demand, &Pipeline)]| PhasedStream {
        steps: steps.iter().map(|(task, demand, _)| PhasedStep { task: *task, release: demand.offset }).collect(),
    };
    by_pipeline.map(stream).collect()
}
