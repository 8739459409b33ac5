//! What serves every stream: a GPU, or a core of the CPU.

use super::{Context, Draft, PlanError, Processor, cores};
use crate::files::machine::EndpointId;
use crate::files::workload::{Stream, StreamPlacement};

/// What serves every stream: as written, or largest rate first onto the least loaded GPU or core.
pub(super) fn place(context: &Context<'_>, draft: Draft) -> Result<Draft, PlanError> {
    let rate = |s: &Stream| u128::from(s.packet.0) * u128::from(u32::MAX) / u128::from(s.period.0);
    let gpus: Vec<EndpointId> = context.machine.gpus().collect();
    let mut load = vec![0u128; gpus.len()];
    let mut placed = vec![None; context.workload.streams.len()];
    for (index, stream) in context.workload.streams.iter().enumerate() {
        if let StreamPlacement::Gpu(name) = &stream.gpu {
            let found = gpus.iter().position(|&gpu| context.machine.endpoints[gpu.at()].id == *name);
            let at = found.ok_or_else(|| context.unknown(stream, "gpu", name, gpus.iter()))?;
            load[at] += rate(stream);
            placed[index] = Some(Processor::Gpu(gpus[at]));
        }
    }
    cores::place_on_cores(context, &mut placed)?;
    let mut rest: Vec<usize> = (0..placed.len()).filter(|&i| placed[i].is_none()).collect();
    rest.sort_by_key(|&i| (std::cmp::Reverse(rate(&context.workload.streams[i])), i));
    for index in rest {
        let stream = &context.workload.streams[index];
        let Some(at) = (0..gpus.len()).min_by_key(|&at| (load[at], at)) else {
            return Err(PlanError::NoGpu {
                place: format!("stream.{}", stream.id),
                machine: context.machine.name.clone(),
                object: format!("stream `{}`", stream.id),
            });
        };
        load[at] += rate(stream);
        placed[index] = Some(Processor::Gpu(gpus[at]));
    }
    Ok(Draft { processors: placed.into_iter().flatten().collect(), ..draft })
}
