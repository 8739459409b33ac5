//! What must hold before anything is dispatched, so that the dispatcher may index and add.

use std::collections::BTreeMap;

use super::{DispatchRefused, DispatcherLimits, TIME_MAX};
use crate::files::machine::EngineClass;
use crate::plan::{Announced, OperationWork, Pipeline, PipelineSource, Plan, PlannedOperation, PlannedStep, Sharded};
use crate::units::{Bytes, Nanos};

/// Refuses runs in which some time would be later than [`TIME_MAX`], so that the rest of this module may add.
pub(super) fn fits(plan: &Plan, epoch: Nanos, cycles: &[u64]) -> Result<(), DispatchRefused> {
    let limit = TIME_MAX;
    let wide = |time: Nanos| u128::from(time.0);
    let base = wide(epoch) + wide(plan.jitter);
    let after = |start: Nanos, period: Nanos, cycles: u64| {
        wide(period).saturating_mul(u128::from(cycles)).saturating_add(base + wide(start))
    };
    for (pipeline, &cycles) in plan.pipelines.iter().zip(cycles) {
        let windows = wide(pipeline.gather) + wide(pipeline.window) * (pipeline.steps.len() as u128 + 1);
        let last = after(pipeline.start, pipeline.period, cycles).saturating_add(wide(pipeline.period));
        if last.saturating_add(windows) > wide(limit) {
            return Err(DispatchRefused::TooLong { what: format!("pipeline `{}`", pipeline.name), limit });
        }
        for stream in pipeline.source.streams().iter().map(|&stream| &plan.streams[stream as usize]) {
            // Gathered packets arrive before the cycle ends that gathers them.
            let arrival =
                if pipeline.gather == Nanos::ZERO { after(stream.start, stream.period, cycles) } else { last };
            if arrival.saturating_add(wide(stream.deadline)) > wide(limit) {
                return Err(DispatchRefused::TooLong { what: format!("stream `{}`", stream.id), limit });
            }
        }
    }
    Ok(())
}

/// Whether the shards of a packet follow each other, and every step has an operation for each of them.
fn is_whole(sharded: &Sharded, steps: &[PlannedStep]) -> bool {
    let mut next = 0;
    for shard in &sharded.shards {
        if shard.first != next || shard.items == 0 || shard.items > sharded.sharding.items - next {
            return false;
        }
        next += shard.items;
    }
    let peer =
        |operation: &PlannedOperation| matches!(operation.work, OperationWork::Copy { class: EngineClass::Peer, .. });
    let fits = |step: &PlannedStep| match step.operations.iter().any(peer) {
        true => step.operations.len() == sharded.peers().count(),
        false => step.operations.len() == sharded.shards.len(),
    };
    next == sharded.sharding.items && next > 0 && sharded.sharding.ring > 0 && steps.iter().all(fits)
}

/// Refuses gangs whose pipelines do not have the same cycles, or whose jobs could never be submitted at once.
fn gangs(plan: &Plan, limits: &DispatcherLimits) -> Result<(), DispatchRefused> {
    let phase = |p: &Pipeline| (p.period, p.start, p.gather, p.window);
    let mut first: BTreeMap<u32, &Pipeline> = BTreeMap::new();
    let mut submitted: BTreeMap<(u32, usize, u32), usize> = BTreeMap::new();
    for pipeline in &plan.pipelines {
        let Some(gang) = pipeline.gang else { continue };
        let leader = first.entry(gang.number).or_insert(pipeline);
        if phase(leader) != phase(pipeline) || leader.gang != pipeline.gang {
            return Err(DispatchRefused::Plan(format!(
                "pipelines `{}` and `{}` are in one gang but do not advance together",
                leader.name, pipeline.name
            )));
        }
        for (at, step) in pipeline.steps.iter().enumerate() {
            if step.chunk > Bytes(0) {
                return Err(DispatchRefused::Plan(format!("step `{}` of a gang is cut into chunks", step.name)));
            }
            let operations = submitted.entry((gang.number, at, step.server)).or_default();
            *operations += step.operations.len();
            if *operations > limits.operations_max {
                let (operations, limit) = (*operations, limits.operations_max);
                return Err(DispatchRefused::TooManyOperations { step: step.name.clone(), operations, limit });
            }
        }
    }
    Ok(())
}

/// Refuses plans whose indices lead nowhere, so that the rest of this module may index.
pub(super) fn check(plan: &Plan, limits: &DispatcherLimits) -> Result<(), DispatchRefused> {
    let broken = |what: String| Err(DispatchRefused::Plan(what));
    for (index, pipeline) in plan.pipelines.iter().enumerate() {
        let Pipeline { name, steps, period, .. } = pipeline;
        if steps.is_empty() || *period == Nanos::ZERO {
            return broken(format!("pipeline `{name}` has no steps or no period"));
        }
        if limits.cycles_in_flight_max == 0 {
            return Err(DispatchRefused::TooManyCycles { pipeline: name.clone(), limit: 0 });
        }
        for step in steps {
            if step.server as usize >= plan.servers.len() || step.operations.is_empty() {
                return broken(format!("step `{}` of pipeline `{name}` has no server or no operation", step.name));
            }
            if step.operations.iter().flat_map(|o| &o.engines).any(|engine| engine.at() >= plan.engines.len()) {
                return broken(format!("step `{}` of pipeline `{name}` names an unknown engine", step.name));
            }
            let (operations, limit) = (step.operations.len(), limits.operations_max);
            if operations > limit {
                return Err(DispatchRefused::TooManyOperations { step: step.name.clone(), operations, limit });
            }
        }
        let copies =
            |step: &PlannedStep| matches!(&*step.operations, [one] if matches!(one.work, OperationWork::Copy { .. }));
        let one_copy = steps.len() == 1 && copies(&steps[0]) && pipeline.reserve > Bytes(0) && pipeline.gang.is_none();
        if !pipeline.source.is_planned() && !one_copy {
            return broken(format!("`{name}` has no windows and is more than one copy"));
        }
        if let PipelineSource::Batch(parts) = &pipeline.source {
            let known = parts.iter().all(|part| {
                let grids = part.member.levels.iter().map(|level| level.grid.period);
                let parts = part.member.levels.iter().all(|level| level.parts > 0);
                part.message.check().is_ok() && parts && grids.min() > Some(Nanos::ZERO)
            });
            if steps.len() != 1 || steps[0].operations.len() != parts.len() || !known {
                return broken(format!("batch `{name}` does not say what its operations carry"));
            }
        }
        for &stream in pipeline.source.streams() {
            match plan.streams.get(stream as usize) {
                Some(s) if s.pipeline as usize == index && s.period > Nanos::ZERO => {}
                _ => return broken(format!("stream {stream} does not belong to pipeline `{name}`")),
            }
        }
        if let PipelineSource::Sharded(sharded) = &pipeline.source
            && !is_whole(sharded, steps)
        {
            return broken(format!("`{name}` does not say which GPU works on which items"));
        }
        if let PipelineSource::Parts(parted) = &pipeline.source
            && !parted.is_whole(steps)
        {
            return broken(format!("`{name}` does not say which operation works on which part"));
        }
        if let PipelineSource::Packets(packets) = &pipeline.source
            && !packets.is_whole(steps)
        {
            return broken(format!("`{name}` does not say how large its packets are before and behind each step"));
        }
    }
    let speaks = |of: &Announced| match plan.pipelines.get(of.pipeline as usize).map(|pipeline| &pipeline.source) {
        Some(PipelineSource::Message) => of.part == 0,
        Some(PipelineSource::Batch(parts)) => (of.part as usize) < parts.len(),
        _ => false,
    };
    if !plan.announced.iter().all(speaks) {
        return broken("a producer speaks for what is no message".to_owned());
    }
    gangs(plan, limits)?;
    if plan.servers.iter().any(|server| server.in_flight == 0) {
        return broken("a server admits no operation".to_owned());
    }
    // One cycle at the earliest epoch: what does not even fit then is a fault of the plan.
    fits(plan, Nanos::ZERO, &vec![1; plan.pipelines.len()])
}
