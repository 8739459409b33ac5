//! Transfers without windows: their place among the servers, and pieces that block nobody for too long.
//!
//! A piece that has begun is not interrupted, so that whatever the plan guarantees waits for one of them at most. It may
//! take what the server's other jobs tolerate (`verner-2014` cites the test of Jeffay, Stanat and Martel for it, here in the
//! form for chunks) while a half of their margin stays, or a quarter of all costs where that is less.

use super::demands::{demands, routes_of, steps_on};
use super::servers::CHUNK_GRANULE;
use super::{Bytes, Domains, Nanos, OperationWork, PPM, Pipeline, PipelineSource, PlanError, Planner, RouteId};
use crate::analysis::schedulability::{ChunkFlow, RecurrentTask, passes, scaled};
use crate::files::workload::{Unplanned, UnplannedKind};
use crate::units::NANOS_PER_SECOND;

/// No piece is larger: far above the size at which its set-up costs nothing, and what is due waits for it.
const PIECE_MAX: Bytes = Bytes(16 << 20);
/// The time between the pieces of something that has no period: any will do.
const NO_PERIOD: Nanos = Nanos(1);

impl Planner<'_> {
    /// Every transfer without windows as a pipeline of one copy whose size and cost are not known yet.
    pub(super) fn unplanned(&self, pipelines: &mut Vec<Pipeline>) -> Result<(), PlanError> {
        for of in &self.workload.unplanned {
            let (source, bytes) = match of.kind {
                UnplannedKind::Bulk(bytes) => (PipelineSource::Bulk(bytes), bytes.unwrap_or(PIECE_MAX).min(PIECE_MAX)),
                UnplannedKind::Urgent(urgent) => (PipelineSource::Urgent(urgent), urgent.bytes),
            };
            let step = self.copy_step(self.method(of)?, bytes);
            pipelines.push(Pipeline {
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
        Ok(())
    }

    /// The route that it takes.
    pub(super) fn method(&self, of: &Unplanned) -> Result<RouteId, PlanError> {
        let (kind, object) = match of.kind {
            UnplannedKind::Bulk(_) => ("bulk", format!("bulk transfer `{}`", of.id)),
            UnplannedKind::Urgent(_) => ("urgent", format!("urgent transfer `{}`", of.id)),
        };
        let place = format!("{kind}.{}", of.id);
        let ends = ["from", "to"].map(|key| format!("{place}.{key}"));
        self.named_route([&ends[0], &ends[1], &place], &object, &of.from, &of.to)
    }

    /// Gives every transfer without windows on a server the largest pieces that its other jobs tolerate, none if there are
    /// no such pieces; whether there is any such transfer.
    pub(super) fn fit(&self, at: u32, pipelines: &mut [Pipeline], domains: &Domains, margin: Option<u64>) -> bool {
        let used = routes_of(pipelines);
        let tasks: Vec<RecurrentTask> =
            demands(&steps_on(at, pipelines)).into_iter().map(|demand| demand.task).collect();
        let factor = PPM + (margin.unwrap_or(PPM).saturating_sub(PPM) / 2).min(PPM / 4);
        let mut any = false;
        for pipeline in pipelines.iter_mut().filter(|p| !p.source.is_planned() && p.steps[0].server == at) {
            any = true;
            let OperationWork::Copy { route, bytes, .. } = pipeline.steps[0].operations[0].work else { continue };
            let Ok(flow) = self.in_chunks(route, bytes, &used, domains) else { continue };
            let Some(size) = largest(&flow, &tasks, factor) else { continue };
            let task = flow.task(size);
            let step = &mut pipeline.steps[0];
            step.piece = task.chunk;
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
}

/// The largest piece of `flow` that `tasks` tolerate with all costs `factor` ppm of what they are.
fn largest(flow: &ChunkFlow, tasks: &[RecurrentTask], factor: u64) -> Option<Bytes> {
    let granule = CHUNK_GRANULE.0;
    let tolerated = |multiples: u64| {
        let piece = RecurrentTask::bulk(flow.task(Bytes(granule * multiples)).chunk);
        let all: Vec<RecurrentTask> = tasks.iter().chain([&piece]).map(|task| scaled(task, factor)).collect();
        passes(&all)
    };
    let (mut low, mut high) = (0, flow.bytes.min(PIECE_MAX).0.div_ceil(granule) + 1);
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

/// Takes out what got no pieces, and says so.
pub(super) fn leave_out(pipelines: &mut Vec<Pipeline>, notes: &mut Vec<String>) {
    pipelines.retain(|pipeline| {
        let stays = pipeline.source.is_planned() || pipeline.steps[0].piece > Nanos::ZERO;
        if !stays {
            notes.push(format!(
                "`{}` never moves: even pieces of {CHUNK_GRANULE} would delay others too long",
                pipeline.name
            ));
        }
        stays
    });
}

/// What a transfer without windows gets at least if nobody else asks for its server, bytes per second.
#[must_use]
pub fn rate_alone(pipeline: &Pipeline) -> u64 {
    let step = &pipeline.steps[0];
    let bytes = if step.chunk == Bytes(0) { pipeline.reserve } else { step.chunk };
    let rate = u128::from(bytes.0) * u128::from(NANOS_PER_SECOND) / u128::from(step.piece.0.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}
