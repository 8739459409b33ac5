//! Gangs: pipelines whose cycles advance together, as if all GPUs were one.

use std::collections::BTreeMap;

use super::strategies::GangForm;
use super::{Context, Draft, PlanError};
use crate::files::machine::EngineId;
use crate::interconnect::BatchBlock;
use crate::plan::{Gang, OperationWork, Pipeline, PipelineSource, PlannedStep};
use crate::units::Nanos;

/// What is submitted at once: the jobs of a step of one gang on one server.
type GangStep = (u32, usize, u32);

/// Gives every step of a gang the time that the jobs submitted with it take, all together.
///
/// Copies move as one batch, in the order of the pipelines; kernels of one engine follow each other.
pub(super) fn price(context: &Context<'_>, mut draft: Draft) -> Result<Draft, PlanError> {
    let mut blocks: BTreeMap<GangStep, Vec<BatchBlock>> = BTreeMap::new();
    let mut kernels: BTreeMap<GangStep, BTreeMap<EngineId, Nanos>> = BTreeMap::new();
    for (key, step) in of_gangs(&draft.pipelines) {
        for operation in &step.operations {
            match operation.work {
                OperationWork::Copy { route, bytes, .. } => {
                    blocks.entry(key).or_default().push(BatchBlock { route, bytes });
                }
                OperationWork::Compute { .. } | OperationWork::Hold => {
                    let by_engine = kernels.entry(key).or_default();
                    let time = by_engine.entry(operation.engines[0]).or_default();
                    *time = time.saturating_add(step.cost);
                }
            }
        }
    }
    let mut costs: BTreeMap<GangStep, Nanos> = BTreeMap::new();
    for (key, by_engine) in kernels {
        costs.insert(key, by_engine.into_values().max().unwrap_or_default());
    }
    for (key, blocks) in blocks {
        let batch = context.network.wcet(&blocks, context.machine.calibration.as_ref())?.value;
        let cost = costs.entry(key).or_default();
        *cost = batch.max(*cost);
    }
    for pipeline in &mut draft.pipelines {
        let Some(gang) = pipeline.gang else { continue };
        for (at, step) in pipeline.steps.iter_mut().enumerate() {
            step.cost = costs[&(gang.number, at, step.server)];
            step.chunk_cost = step.cost;
        }
    }
    Ok(draft)
}

/// Puts the pipelines of streams with the same cycles into gangs, where the strategy has them.
pub(super) fn form(context: &Context<'_>, mut draft: Draft) -> Result<Draft, PlanError> {
    let Some(form) = context.strategy.row().gangs else { return Ok(draft) };
    let mut phases = Vec::new();
    for pipeline in
        draft.pipelines.iter_mut().filter(|p| matches!(p.source, PipelineSource::Streams(_)) && p.gpu.is_some())
    {
        let phase = (pipeline.period, pipeline.start, pipeline.gather, pipeline.window);
        let number = phases.iter().position(|other| *other == phase).unwrap_or_else(|| {
            phases.push(phase);
            phases.len() - 1
        });
        pipeline.gang = Some(Gang { number: number as u32, chained: form == GangForm::Chained });
    }
    Ok(draft)
}

fn of_gangs(pipelines: &[Pipeline]) -> impl Iterator<Item = (GangStep, &PlannedStep)> {
    pipelines.iter().filter_map(|p| Some((p, p.gang?))).flat_map(|(pipeline, gang)| {
        pipeline.steps.iter().enumerate().map(move |(at, step)| ((gang.number, at, step.server), step))
    })
}
