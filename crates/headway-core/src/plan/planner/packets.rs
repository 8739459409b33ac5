//! Streams whose kernels come from modules: a pipeline each, whose jobs are single packets as they came.

use super::strategies::or_of_others;
use super::{Context, Draft, PlanError, Processor, planned_step};
use crate::files::machine::EndpointId;
use crate::files::workload::{ModuleKernel, Stream, StreamStep};
use crate::plan::{OperationWork, Pipeline, PipelineSource, PlannedOperation, PlannedStep, WholePackets};
use crate::units::{Bytes, Nanos};

/// Adds the streams whose kernels come from modules.
pub(super) fn add(context: &Context<'_>, mut draft: Draft) -> Result<Draft, PlanError> {
    for (index, stream) in context.workload.streams.iter().enumerate().filter(|(_, stream)| stream.has_modules()) {
        let processor = draft.processors[index];
        let number = draft.pipelines.len() as u32;
        draft.streams[index] = Some(context.planned_stream(index, processor, number, 0));
        draft.pipelines.push(pipeline(context, index as u32, stream, processor)?);
    }
    Ok(draft)
}

fn pipeline(context: &Context<'_>, index: u32, stream: &Stream, processor: Processor) -> Result<Pipeline, PlanError> {
    let impossible = |key: &str, reason: String| PlanError::Impossible {
        place: format!("stream.{}.{key}", stream.id),
        object: format!("stream `{}`", stream.id),
        reason,
    };
    if context.in_gangs() {
        let name = context.strategy.name();
        let reason = format!("strategy `{name}` knows no kernels of modules; choose {}", or_of_others());
        return Err(impossible("steps", reason));
    }
    let Processor::Gpu(gpu) = processor else {
        return Err(impossible("processor", "a module holds code for GPUs: leave `processor` out".to_owned()));
    };
    let sizes = stream.sizes();
    let reserve = sizes.iter().copied().max().unwrap_or_default();
    if reserve.0 > u64::from(u32::MAX) {
        let reason = format!("its packets or results have {reserve}, more than 4 GiB");
        return Err(impossible("packet", reason));
    }
    // A packet has left a step before the next one comes.
    let window = Nanos(stream.deadline.0 / stream.steps.len().max(1) as u64).min(stream.period);
    if window == Nanos::ZERO {
        let reason = format!("its deadline of {} leaves no time for {} steps", stream.deadline, stream.steps.len());
        return Err(impossible("deadline", reason));
    }
    let mut ids = stream.module_kernels().map(|(_, id, _)| id);
    let mut steps = Vec::new();
    for (number, (step, &bytes)) in stream.steps.iter().zip(&sizes).enumerate() {
        steps.push(match step {
            StreamStep::Copy { from, to } => {
                let route = context.route_of(stream, &format!("steps.{number}.copy"), from, to, gpu)?;
                context.copy_step(route, bytes)
            }
            StreamStep::Module(kernel) => {
                let id = ids.next().expect("each kernel of a module has an id");
                kernel_step(context, &StepPlace { stream, number, gpu }, kernel, id, bytes)?
            }
            StreamStep::Compute { .. } | StreamStep::Exchange | StreamStep::Parts(_) => {
                return Err(impossible("steps", "a kernel of a module works on whole packets".to_owned()));
            }
        });
    }
    let compared = stream.module_kernels().all(|(_, _, kernel)| kernel.cpu.is_some());
    Ok(Pipeline {
        name: stream.id.clone(),
        source: PipelineSource::Packets(WholePackets { stream: index, sizes, compared }),
        gpu: context.gpu_of(processor),
        period: stream.period,
        start: stream.start,
        gather: Nanos::ZERO,
        window,
        windows: Vec::new(),
        reserve,
        steps,
        gang: None,
    })
}

/// Where a step is written, and the GPU that it runs on.
struct StepPlace<'a> {
    stream: &'a Stream,
    number: usize,
    gpu: EndpointId,
}

fn kernel_step(
    context: &Context<'_>,
    place: &StepPlace<'_>,
    kernel: &ModuleKernel,
    id: String,
    bytes: Bytes,
) -> Result<PlannedStep, PlanError> {
    let StepPlace { stream, number, gpu } = *place;
    let machine = context.machine;
    let Some((engine, cost)) = machine.execution_engine(gpu).zip(machine.kernel(&id, gpu)) else {
        return Err(PlanError::NoCost {
            place: format!("stream.{}.steps.{number}.compute", stream.id),
            object: format!("stream `{}`", stream.id),
            kernel: format!("`{}` of `{}`", kernel.entry, kernel.module),
            id,
            machine: machine.name.clone(),
        });
    };
    let cost = context.with_margin(cost.cost(bytes, bytes));
    if cost == Nanos::MAX {
        return Err(PlanError::Impossible {
            place: format!("stream.{}.steps.{number}.compute", stream.id),
            object: format!("kernel `{}` of stream `{}`", kernel.entry, stream.id),
            reason: "its cost does not fit 64 bits of nanoseconds".to_owned(),
        });
    }
    let work = OperationWork::Compute { kernel: id.clone() };
    Ok(planned_step(id, cost, vec![PlannedOperation { engines: vec![engine], work }]))
}
