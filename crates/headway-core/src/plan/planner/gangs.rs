//! Gangs: pipelines whose cycles advance together, as if all GPUs were one.

use std::collections::BTreeMap;

use super::{BatchBlock, EngineId, Nanos, OperationWork, Pipeline, PipelineSource, PlanError, Planner, Strategy};
use crate::plan::Gang;

/// What is submitted at once: the jobs of a step of one gang on one server.
type GangStep = (u32, usize, u32);

impl Planner<'_> {
    /// Whether pipelines of streams advance together.
    pub(super) const fn in_gangs(&self) -> bool {
        matches!(self.strategy, Strategy::Lockstep | Strategy::Generation)
    }

    /// Gives every step of a gang the time that the jobs submitted with it take, all together.
    ///
    /// Copies move as one batch, in the order of the pipelines; kernels of one engine follow each other.
    pub(super) fn price_gangs(&self, pipelines: &mut [Pipeline]) -> Result<(), PlanError> {
        let mut blocks: BTreeMap<GangStep, Vec<BatchBlock>> = BTreeMap::new();
        let mut kernels: BTreeMap<GangStep, BTreeMap<EngineId, Nanos>> = BTreeMap::new();
        for (key, step) in of_gangs(pipelines) {
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
            let batch = self.network.wcet(&blocks, self.machine.calibration.as_ref())?.value;
            let cost = costs.entry(key).or_default();
            *cost = batch.max(*cost);
        }
        for pipeline in pipelines {
            let Some(gang) = pipeline.gang else { continue };
            for (at, step) in pipeline.steps.iter_mut().enumerate() {
                step.cost = costs[&(gang.number, at, step.server)];
                step.piece = step.cost;
            }
        }
        Ok(())
    }
}

/// Puts the pipelines of streams with the same cycles into gangs.
pub(super) fn form(pipelines: &mut [Pipeline], chained: bool) {
    let mut phases = Vec::new();
    for pipeline in pipelines.iter_mut().filter(|p| matches!(p.source, PipelineSource::Streams(_)) && p.gpu.is_some()) {
        let phase = (pipeline.period, pipeline.start, pipeline.gather, pipeline.window);
        let number = phases.iter().position(|other| *other == phase).unwrap_or_else(|| {
            phases.push(phase);
            phases.len() - 1
        });
        pipeline.gang = Some(Gang { number: number as u32, chained });
    }
}

fn of_gangs(pipelines: &[Pipeline]) -> impl Iterator<Item = (GangStep, &crate::plan::PlannedStep)> {
    pipelines.iter().filter_map(|p| Some((p, p.gang?))).flat_map(|(pipeline, gang)| {
        pipeline.steps.iter().enumerate().map(move |(at, step)| ((gang.number, at, step.server), step))
    })
}
