//! Copies of streams in batches: what all pipelines of one cycle copy in one window moves together (`verner-2014`, IV).
//!
//! Pipelines with the same windows release their copies at the same instants: those in of one cycle with those out of an
//! earlier one. Such copies are synchronous messages of one period, so Definition IV.4 combines them whole.

use std::collections::BTreeMap;

use super::{Context, Domains, Draft, PlanError, batches};
use crate::interconnect::BatchBlock;
use crate::plan::{BatchPlace, OperationWork, Pipeline, PipelineSource, PlannedBatch};
use crate::units::Nanos;

/// Windows of a pipeline on one server: period, start of the first window, length, server. Starts are the same for all steps
/// modulo the period where the window is as long as the period.
type Windows = (Nanos, Nanos, Nanos, u32);

/// How the blocks of one window can be moved: sets of positions, each in its order, with what is known of it.
struct Division {
    sets: Vec<(Vec<usize>, PlannedBatch)>,
    cost: Nanos,
}

/// Puts the copies that are released together on one server into one batch, or into two of opposite directions on
/// different GPUs, or leaves them alone: whichever takes least time.
pub(super) fn form(context: &Context<'_>, mut draft: Draft) -> Result<Draft, PlanError> {
    if !context.strategy.row().batches_streams {
        return Ok(draft);
    }
    let mut number = 0;
    for ((period, ..), members) in groups(&draft.pipelines) {
        if members.len() < 2 {
            continue;
        }
        let found = division(context, &draft.pipelines, &members, &draft.domains, period)?;
        let alone = members.iter().map(|&(pipeline, step)| draft.pipelines[pipeline].steps[step].cost);
        let alone = alone.fold(Nanos::ZERO, Nanos::saturating_add);
        if found.cost >= alone {
            continue;
        }
        for (order, batch) in found.sets {
            for (place, at) in (0u32..).zip(order) {
                let (pipeline, step) = members[at];
                let step = &mut draft.pipelines[pipeline].steps[step];
                (step.cost, step.chunk_cost) = (batch.worst_case, batch.worst_case);
                step.batch = Some(BatchPlace { number, order: place });
            }
            number += 1;
            draft.batches.push(batch);
        }
    }
    Ok(draft)
}

/// All blocks at once, or as two batches that each take one direction from every GPU.
fn division(
    context: &Context<'_>,
    pipelines: &[Pipeline],
    members: &[(usize, usize)],
    domains: &Domains,
    period: Nanos,
) -> Result<Division, PlanError> {
    let mut blocks = Vec::new();
    let mut names = Vec::new();
    for &(pipeline, step) in members {
        let step = &pipelines[pipeline].steps[step];
        if let OperationWork::Copy { route, bytes, .. } = step.operations[0].work {
            blocks.push(BatchBlock { route, bytes });
            names.push(step.name.clone());
        }
    }
    let set = |name: String, positions: Vec<usize>| -> Result<(Vec<usize>, PlannedBatch), PlanError> {
        let chosen: Vec<BatchBlock> = positions.iter().map(|&at| blocks[at]).collect();
        let labels: Vec<String> = positions.iter().map(|&at| names[at].clone()).collect();
        let (order, batch) = batches::priced_batch(context, domains.network(chosen[0].route), &name, &chosen, &labels)?;
        Ok((order.into_iter().map(|at| positions[at]).collect(), batch))
    };
    let class = |at: usize| context.machine.class(blocks[at].route);
    let all = set(format!("copies every {period}"), (0..blocks.len()).collect())?;
    // The first block of each GPU in the best order says which directions meet best.
    let mut leading: BTreeMap<u32, usize> = BTreeMap::new();
    for &at in &all.0 {
        leading.entry(pipelines[members[at].0].gpu.unwrap_or(0)).or_insert(at);
    }
    let leads = |at: &usize| class(leading[&pipelines[members[*at].0].gpu.unwrap_or(0)]) == class(*at);
    let (first, second): (Vec<usize>, Vec<usize>) = (0..blocks.len()).partition(leads);
    let cost = all.1.worst_case;
    if first.is_empty() || second.is_empty() {
        return Ok(Division { sets: vec![all], cost });
    }
    let halves = [
        set(format!("copies every {period}, first half"), first)?,
        set(format!("copies every {period}, second half"), second)?,
    ];
    let both = halves[0].1.worst_case.saturating_add(halves[1].1.worst_case);
    Ok(if both < cost { Division { sets: halves.into(), cost: both } } else { Division { sets: vec![all], cost } })
}

/// Copy steps of gathered streams by their windows: (pipeline, step).
fn groups(pipelines: &[Pipeline]) -> BTreeMap<Windows, Vec<(usize, usize)>> {
    let mut groups: BTreeMap<Windows, Vec<(usize, usize)>> = BTreeMap::new();
    for (number, pipeline) in pipelines.iter().enumerate() {
        // Windows as long as the period: all steps of all pipelines with this period open theirs together.
        let gathered = matches!(pipeline.source, PipelineSource::Streams(_)) && pipeline.gather == pipeline.period;
        if !gathered || pipeline.window != pipeline.period {
            continue;
        }
        for (at, step) in pipeline.steps.iter().enumerate() {
            if let [operation] = step.operations.as_slice()
                && let OperationWork::Copy { .. } = operation.work
            {
                let key = (pipeline.period, pipeline.start, pipeline.window, step.server);
                groups.entry(key).or_default().push((number, at));
            }
        }
    }
    groups
}
