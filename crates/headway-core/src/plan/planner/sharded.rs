//! Streams whose packets are divided among all GPUs: one pipeline whose steps work on all of them at once.

use super::strategies::GangForm;
use super::{Context, Draft, PlanError, Processor, planned_step};
use crate::files::machine::EndpointId;
use crate::files::workload::{CopyEndpoint, Stream, StreamStep};
use crate::plan::{
    Gang, OperationWork, Pipeline, PipelineSource, PlannedOperation, PlannedStep, Shard, Sharded, is_first_kernel,
};
use crate::units::{Bytes, Nanos};

/// Adds the streams that are divided, with a pipeline of its own each.
pub(super) fn add(context: &Context<'_>, mut draft: Draft) -> Result<Draft, PlanError> {
    for (index, stream) in context.workload.streams.iter().enumerate() {
        let Some(sharding) = stream.sharding else { continue };
        let gpus: Vec<EndpointId> = context.machine.gpus().collect();
        let Some(&first) = gpus.first() else {
            return Err(PlanError::NoGpu {
                place: format!("stream.{}", stream.id),
                machine: context.machine.name.clone(),
                object: format!("stream `{}`", stream.id),
            });
        };
        let number = draft.pipelines.len() as u32;
        draft.streams[index] = Some(context.planned_stream(index, Processor::Gpu(first), number, 0));
        let planned = Sharded {
            stream: index as u32,
            sharding,
            parameters: stream.parameters.clone(),
            shards: Sharded::deal(sharding.items, gpus.len() as u32),
            one_by_one: context.strategy.row().one_by_one,
        };
        if planned.shards.len() == 1 {
            let id = &stream.id;
            draft.notes.push(format!("stream `{id}` runs on one GPU: there is nobody to exchange synopses with"));
        }
        draft.pipelines.push(sharded_pipeline(context, stream, planned, &gpus)?);
    }
    Ok(draft)
}

/// The pipeline of such a stream: a packet is released when it arrives, and every step has a window of one period, or of its
/// part of the deadline where that is shorter.
fn sharded_pipeline(
    context: &Context<'_>,
    stream: &Stream,
    planned: Sharded,
    gpus: &[EndpointId],
) -> Result<Pipeline, PlanError> {
    let steps = sharded_steps(context, stream, &planned, gpus)?;
    let gangs = context.strategy.row().gangs;
    let chained = gangs == Some(GangForm::Chained);
    let windows = if chained { 1 } else { steps.len() as u64 };
    let window = Nanos(stream.deadline.0 / windows).min(stream.period);
    let largest = planned.shards.iter().map(|shard| planned.block(shard)).max().unwrap_or_default();
    if largest.0 > u64::from(u32::MAX) || window == Nanos::ZERO {
        let reason = if window == Nanos::ZERO {
            format!("its deadline of {} leaves no time for its steps", stream.deadline)
        } else {
            format!("a GPU's part of a packet has {largest}, more than 4 GiB")
        };
        let object = format!("stream `{}`", stream.id);
        return Err(PlanError::Impossible { place: format!("stream.{}", stream.id), object, reason });
    }
    let reserve = planned.shards.iter().fold(0, |sum: u64, shard| sum.saturating_add(planned.block(shard).0));
    Ok(Pipeline {
        name: stream.id.clone(),
        source: PipelineSource::Sharded(planned),
        gpu: None,
        period: stream.period,
        start: stream.start,
        gather: Nanos::ZERO,
        window,
        reserve: Bytes(reserve),
        steps,
        windows: Vec::new(),
        gang: gangs.map(|_| Gang { number: 0, chained }),
    })
}

fn sharded_steps(
    context: &Context<'_>,
    stream: &Stream,
    planned: &Sharded,
    gpus: &[EndpointId],
) -> Result<Vec<PlannedStep>, PlanError> {
    let mut steps = Vec::new();
    for (number, step) in stream.steps.iter().enumerate() {
        let key = format!("steps.{number}.copy");
        let gpu = |shard: &Shard| gpus[shard.gpu as usize];
        let operations: Vec<PlannedOperation> = match step {
            StreamStep::Copy { from, to } => {
                let bytes = |shard: &Shard| match to {
                    CopyEndpoint::OwnGpu => planned.block(shard),
                    _ => planned.sharding.summary,
                };
                let copies = planned.shards.iter().map(|shard| {
                    let route = context.route_of(stream, &key, from, to, gpu(shard))?;
                    Ok(context.copy(route, bytes(shard)))
                });
                copies.collect::<Result<_, PlanError>>()?
            }
            StreamStep::Exchange => {
                let copies = planned.peers().map(|(from, to)| {
                    let (from, to) = (&planned.shards[from], &planned.shards[to]);
                    let route = context.route(gpu(from), gpu(to));
                    let route = route.ok_or_else(|| context.no_route(stream, &key, gpu(from), gpu(to)))?;
                    Ok(context.copy(route, planned.sharding.summaries(from.items)))
                });
                copies.collect::<Result<_, PlanError>>()?
            }
            StreamStep::Compute { kernel } => {
                let launches = planned.shards.iter().map(|shard| launch(context, stream, number, kernel, gpu(shard)));
                launches.collect::<Result<_, PlanError>>()?
            }
            StreamStep::Parts(_) | StreamStep::Module(_) => unreachable!("a stream that is divided has neither"),
        };
        // One GPU has nobody to exchange with.
        if !operations.is_empty() {
            steps.push(spread_step(context, step, operations, is_first_kernel(&steps, steps.len()), planned, gpus));
        }
    }
    Ok(steps)
}

fn launch(
    context: &Context<'_>,
    stream: &Stream,
    number: usize,
    kernel: &str,
    gpu: EndpointId,
) -> Result<PlannedOperation, PlanError> {
    let (engine, _) = context.kernel_on_gpu(stream, number, kernel, gpu)?;
    Ok(PlannedOperation { engines: vec![engine], work: OperationWork::Compute { kernel: kernel.to_owned() } })
}

/// A step on all GPUs, with its cost if it computes: that of the GPU that has the most to do.
fn spread_step(
    context: &Context<'_>,
    step: &StreamStep,
    operations: Vec<PlannedOperation>,
    is_first_kernel: bool,
    planned: &Sharded,
    gpus: &[EndpointId],
) -> PlannedStep {
    let name = match (step, &operations[0].work) {
        (StreamStep::Exchange, _) => "exchange".to_owned(),
        (_, OperationWork::Compute { kernel }) => kernel.clone(),
        (_, OperationWork::Copy { from, to, .. }) => match operations.len() {
            1 => format!("{from} -> {to}"),
            // The end that is not the same for all.
            _ if *to == context.machine.endpoints[gpus[0].at()].id => format!("{from} -> gpus"),
            _ => format!("gpus -> {to}"),
        },
        (_, OperationWork::Hold) => String::new(),
    };
    let costs = (0..).zip(&operations).zip(&planned.shards).filter_map(|((index, operation), shard)| {
        let OperationWork::Compute { kernel } = &operation.work else { return None };
        let bytes = planned.launch_bytes(is_first_kernel, index);
        let per_element = if is_first_kernel { planned.sharding.operations } else { None };
        let known = context.machine.kernel(kernel, gpus[shard.gpu as usize])?;
        Some(context.with_margin(known.launch(bytes, bytes, per_element)))
    });
    let cost = costs.max().unwrap_or_default();
    planned_step(name, cost, operations)
}
