//! Transfers without windows: their place among the servers, and chunks that block nobody for too long.
//!
//! A chunk that has begun is not interrupted, so that whatever the plan guarantees waits for one of them at most. It may
//! take what the server's other jobs tolerate (`verner-2014` cites the test of Jeffay, Stanat and Martel for it, here in the
//! form for chunks) while a half of their margin stays, or a quarter of all costs where that is less.

use super::demands::{demands, routes_of, steps_on};
use super::holds::streams_of;
use super::{CHUNK_GRANULE, Context, Domains, Draft, PlanError};
use crate::analysis::schedulability::{ChunkFlow, PhasedStream, RecurrentTask, passes_streams, scaled};
use crate::files::workload::UnplannedKind;
use crate::plan::{OperationWork, Outcome, Pipeline, PipelineSource, Verdict};
use crate::units::{Bytes, NANOS_PER_SECOND, Nanos, PPM};

/// No chunk is larger: far above the size at which its set-up costs nothing, and what is due waits for it.
const CHUNK_MAX: Bytes = Bytes(16 << 20);
/// The time between the chunks of something that has no period: any will do.
const NO_PERIOD: Nanos = Nanos(1);

/// Adds every transfer without windows as a pipeline of one copy whose size and cost are not known yet.
pub(super) fn add(context: &Context<'_>, mut draft: Draft) -> Result<Draft, PlanError> {
    for of in &context.workload.unplanned {
        let (source, bytes) = match of.kind {
            UnplannedKind::Bulk(bytes) => (PipelineSource::Bulk(bytes), bytes.unwrap_or(CHUNK_MAX).min(CHUNK_MAX)),
            UnplannedKind::Urgent(urgent) => (PipelineSource::Urgent(urgent), urgent.bytes),
        };
        let step = context.copy_step(context.method(of)?, bytes);
        draft.pipelines.push(Pipeline {
            name: of.id.clone(),
            source,
            gpu: None,
            period: NO_PERIOD,
            start: of.start,
            gather: Nanos::ZERO,
            window: Nanos::ZERO,
            reserve: bytes,
            steps: vec![step],
            windows: Vec::new(),
            gang: None,
        });
    }
    Ok(draft)
}

/// Gives every transfer without windows on a server the largest chunks that its other jobs tolerate, none if there are
/// no such chunks; whether there is any such transfer.
pub(super) fn fit(
    context: &Context<'_>,
    at: u32,
    pipelines: &mut [Pipeline],
    domains: &Domains,
    verdict: &Verdict,
) -> bool {
    let used = routes_of(pipelines);
    let steps = steps_on(at, pipelines);
    let demands = demands(&steps);
    let streams = streams_of(verdict, &steps, &demands);
    let tasks: Vec<RecurrentTask> = demands.into_iter().map(|demand| demand.task).collect();
    let factor = PPM + (verdict.margin_ppm.unwrap_or(PPM).saturating_sub(PPM) / 2).min(PPM / 4);
    let mut any = false;
    for pipeline in pipelines.iter_mut().filter(|p| !p.source.is_planned() && p.steps[0].server == at) {
        any = true;
        let OperationWork::Copy { route, bytes, .. } = pipeline.steps[0].operations[0].work else { continue };
        let Ok(flow) = context.in_chunks(route, bytes, &used, domains) else { continue };
        let Some(size) = largest(&flow, &tasks, &streams, factor) else { continue };
        let task = flow.task(size);
        let step = &mut pipeline.steps[0];
        step.chunk_cost = task.chunk;
        match pipeline.source {
            PipelineSource::Bulk(_) => {
                (step.cost, pipeline.reserve) = (task.chunk, size.min(bytes));
                if let OperationWork::Copy { bytes, .. } = &mut step.operations[0].work {
                    *bytes = pipeline.reserve;
                }
            }
            _ => (step.cost, step.chunk) = (task.cost, if size < bytes { size } else { Bytes(0) }),
        }
    }
    any
}

/// The largest chunk of `flow` that `tasks` tolerate with all costs `factor` ppm of what they are.
fn largest(flow: &ChunkFlow, tasks: &[RecurrentTask], streams: &[PhasedStream], factor: u64) -> Option<Bytes> {
    let granule = CHUNK_GRANULE.0;
    let tolerated = |multiples: u64| {
        let chunk = RecurrentTask::bulk(flow.task(Bytes(granule * multiples)).chunk);
        let all: Vec<RecurrentTask> = tasks.iter().chain([&chunk]).map(|task| scaled(task, factor)).collect();
        passes_streams(&all, streams)
    };
    let (mut low, mut high) = (0, flow.bytes.min(CHUNK_MAX).0.div_ceil(granule) + 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if tolerated(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low > 0).then_some(Bytes(granule * low))
}

/// Takes out what got no chunks, and says so, where the rest holds.
pub(super) fn leave_out(_: &Context<'_>, mut draft: Draft) -> Result<Draft, PlanError> {
    if draft.servers.iter().any(|server| server.verdict.outcome != Outcome::Schedulable) {
        return Ok(draft);
    }
    let notes = &mut draft.notes;
    draft.pipelines.retain(|pipeline| {
        let stays = pipeline.source.is_planned() || pipeline.steps[0].chunk_cost > Nanos::ZERO;
        if !stays {
            notes.push(format!(
                "`{}` never moves: even chunks of {CHUNK_GRANULE} would delay others too long",
                pipeline.name
            ));
        }
        if let PipelineSource::Urgent(urgent) = pipeline.source
            && stays
            && pipeline.steps[0].cost > urgent.deadline
        {
            notes.push(format!(
                "`{}` is refused whenever it is asked for: it takes up to {}, and its deadline is {}",
                pipeline.name, pipeline.steps[0].cost, urgent.deadline
            ));
        }
        stays
    });
    Ok(draft)
}

/// What a transfer without windows gets at least if nobody else asks for its server, bytes per second.
#[must_use]
pub fn rate_alone(pipeline: &Pipeline) -> u64 {
    let step = &pipeline.steps[0];
    let bytes = if step.chunk == Bytes(0) { pipeline.reserve } else { step.chunk };
    let rate = u128::from(bytes.0) * u128::from(NANOS_PER_SECOND) / u128::from(step.chunk_cost.0.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}
