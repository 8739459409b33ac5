//! Messages: batches whose blocks move in parallel, in the order that ends first.

use std::collections::BTreeMap;

use super::{Context, Draft, PlanError, planned_step};
use crate::files::machine::CapacityId;
use crate::files::workload::{Message, MessageBlock};
use crate::interconnect::{BatchBlock, BatchCompletion, Network};
use crate::plan::{
    Announced, OperationWork, Pipeline, PipelineSource, PlannedBatch, PlannedOperation, PlannedStep, RateInterval,
};
use crate::units::{Bytes, Nanos};

/// Batches of at most this many blocks have their order sought; larger ones keep that of their routes.
const ORDERED_MAX: usize = 64;

/// Every message as a batch of its own.
pub(super) fn whole_messages(context: &Context<'_>, mut draft: Draft) -> Result<Draft, PlanError> {
    for message in &context.workload.messages {
        let names = message.blocks.iter().map(block_name).collect();
        add(context, &mut draft, message, &message.id, context.blocks(message)?, names)?;
    }
    Ok(draft)
}

/// Every block of every message by itself.
pub(super) fn single_blocks(context: &Context<'_>, mut draft: Draft) -> Result<Draft, PlanError> {
    for message in &context.workload.messages {
        for (number, block) in context.blocks(message)?.into_iter().enumerate() {
            let names = vec![block_name(&message.blocks[number])];
            add(context, &mut draft, message, &part_name(message, number), vec![block], names)?;
        }
    }
    Ok(draft)
}

/// Adds a message, or a part of it, as a pipeline of one step, with the prediction for its batch.
fn add(
    context: &Context<'_>,
    draft: &mut Draft,
    message: &Message,
    name: &str,
    blocks: Vec<BatchBlock>,
    names: Vec<String>,
) -> Result<(), PlanError> {
    let (order, batch) = priced_batch(context, context.network, name, &blocks, &names)?;
    let step = batch_step(context, name, batch.worst_case, order.iter().map(|&at| blocks[at]));
    draft.pipelines.push(Pipeline {
        name: name.to_owned(),
        source: PipelineSource::Message,
        gpu: None,
        period: message.period,
        start: message.start.saturating_add(message.window_after()),
        gather: Nanos::ZERO,
        window: message.period - message.window_after(),
        reserve: total(&blocks),
        steps: vec![step],
        windows: Vec::new(),
        gang: None,
    });
    draft.batches.push(batch);
    Ok(())
}

/// The one step of a batch, whose blocks are given in their order.
pub(super) fn batch_step(
    context: &Context<'_>,
    name: &str,
    cost: Nanos,
    ordered: impl Iterator<Item = BatchBlock>,
) -> PlannedStep {
    let operations = ordered.map(|block| context.copy(block.route, block.bytes)).collect();
    planned_step(name.to_owned(), cost, operations)
}

/// The order in which the blocks of a batch are submitted, and what is known of it then.
pub(super) fn priced_batch(
    context: &Context<'_>,
    network: &Network,
    name: &str,
    blocks: &[BatchBlock],
    names: &[String],
) -> Result<(Vec<usize>, PlannedBatch), PlanError> {
    let calibration = context.machine.calibration.as_ref();
    let in_order = |order: &[usize]| order.iter().map(|&at| blocks[at]).collect::<Vec<BatchBlock>>();
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    order.sort_by_key(|&at| (blocks[at], at));
    if blocks.len() <= ORDERED_MAX {
        // The order that ends first by prediction, unless the other one has the lower bound.
        let first = network.best_order(blocks)?;
        let [sorted, best] = [&order, &first].map(|order| network.wcet(&in_order(order), calibration));
        if best?.value <= sorted?.value {
            order = first;
        }
    }
    let ordered = in_order(&order);
    let names: Vec<String> = order.iter().map(|&at| names[at].clone()).collect();
    let completion = network.completion(&ordered)?;
    let wcet = network.wcet(&ordered, calibration)?;
    let bounds = [("serial", Some(wcet.serial)), ("load", wcet.load), ("share", wcet.share), ("twin", wcet.twin)];
    let bounds = bounds.into_iter().filter_map(|(name, bound)| Some((name.to_owned(), bound?))).collect();
    let batch = PlannedBatch {
        name: name.to_owned(),
        predicted: completion.finish,
        worst_case: wcet.value,
        bounds,
        blocks: names.iter().cloned().zip(completion.blocks.iter().copied()).collect(),
        intervals: intervals(context, &names, &completion),
    };
    Ok((order, batch))
}

fn intervals(context: &Context<'_>, names: &[String], completion: &BatchCompletion) -> Vec<RateInterval> {
    let capacity = |id: CapacityId| context.machine.capacities[id.at()].id.clone();
    let intervals = completion.intervals.iter();
    intervals
        .map(|interval| RateInterval {
            from: interval.from,
            to: interval.to,
            rates: interval
                .active
                .iter()
                .map(|(block, share)| (names[*block].clone(), share.rate, capacity(share.limited_by)))
                .collect(),
        })
        .collect()
}

/// The blocks whose producers say when they are there, in the order of pipelines.
pub(super) fn announced(context: &Context<'_>, pipelines: &[Pipeline]) -> Vec<Announced> {
    let mut late: BTreeMap<String, (u32, Nanos)> = BTreeMap::new();
    for (at, message) in (0u32..).zip(&context.workload.messages) {
        let Some(most) = message.late else { continue };
        late.insert(message.id.clone(), (at, most));
        late.extend((0..message.blocks.len()).map(|block| (part_name(message, block), (at, most))));
    }
    let mut all = Vec::new();
    for (pipeline, of) in (0u32..).zip(pipelines) {
        let names: Vec<&str> = match &of.source {
            PipelineSource::Message => vec![&of.name],
            PipelineSource::Batch(parts) => parts.iter().map(|part| part.message.name.as_str()).collect(),
            _ => continue,
        };
        for (part, name) in (0u32..).zip(names) {
            let Some(&(message, late)) = late.get(name) else { continue };
            all.push(Announced { message, pipeline, part, late });
        }
    }
    all
}

/// What is left for the message whose producer may take most of its period.
pub(super) fn note_on_producers(context: &Context<'_>) -> Option<String> {
    let late = context.workload.messages.iter().filter(|message| message.window_after() > Nanos::ZERO);
    let least = late.min_by_key(|message| message.period - message.window_after())?;
    let (id, late) = (&least.id, least.late?);
    Some(if late < least.period {
        let left = least.period - late;
        format!(
            "the blocks of `{id}` may be there {late} after their release (`late`): of its period {left} are left to move them"
        )
    } else {
        format!(
            "the blocks of `{id}` may be there {late} after their release (`late`) and must arrive within {}: its deadlines \
             cannot be promised",
            least.period
        )
    })
}

/// Adds every demand as a pipeline of one step that only holds its server. Its cost has margin and jitter as every other: a job
/// that is released as late as the jitter allows is within the test as well.
pub(super) fn demands(context: &Context<'_>, mut draft: Draft) -> Result<Draft, PlanError> {
    for demand in &context.workload.demands {
        let cost = context.with_margin(demand.cost);
        let operation = PlannedOperation { engines: Vec::new(), work: OperationWork::Hold };
        let step = planned_step(demand.server.clone(), cost, vec![operation]);
        draft.pipelines.push(Pipeline {
            name: demand.id.clone(),
            source: PipelineSource::Demand,
            gpu: None,
            period: demand.period,
            start: demand.start,
            gather: Nanos::ZERO,
            window: demand.deadline,
            reserve: Bytes(1),
            steps: vec![PlannedStep { hold: (cost != demand.cost).then_some(demand.cost), ..step }],
            windows: Vec::new(),
            gang: None,
        });
    }
    Ok(draft)
}

/// The bytes of all blocks.
pub(super) fn total(blocks: &[BatchBlock]) -> Bytes {
    Bytes(blocks.iter().fold(0, |sum: u64, block| sum.saturating_add(block.bytes.0)))
}

pub(super) fn block_name(block: &MessageBlock) -> String {
    format!("{} -> {} ({})", block.from, block.to, block.bytes)
}

/// What a block of a message is called where it is by itself.
pub(super) fn part_name(message: &Message, number: usize) -> String {
    if message.blocks.len() == 1 { message.id.clone() } else { format!("{}.{number}", message.id) }
}
