//! What serves every stream: a GPU, or a core of the CPU.

use super::{EndpointId, PlanError, Planner};
use crate::files::workload::{Stream, StreamPlacement};

/// What serves a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Processor {
    Gpu(EndpointId),
    /// A core of the CPU.
    Core(u32),
}

impl Planner<'_> {
    /// What serves every stream: as written, or largest rate first onto the least loaded GPU or core.
    pub(super) fn place(&self) -> Result<Vec<Processor>, PlanError> {
        let rate = |s: &Stream| u128::from(s.packet.0) * u128::from(u32::MAX) / u128::from(s.period.0);
        let gpus: Vec<EndpointId> = self.machine.gpus().collect();
        let mut load = vec![0u128; gpus.len()];
        let mut placed = vec![None; self.workload.streams.len()];
        for (index, stream) in self.workload.streams.iter().enumerate() {
            if let StreamPlacement::Gpu(name) = &stream.gpu {
                let found = gpus.iter().position(|&gpu| self.machine.endpoints[gpu.at()].id == *name);
                let at = found.ok_or_else(|| self.unknown(stream, "gpu", name, gpus.iter()))?;
                load[at] += rate(stream);
                placed[index] = Some(Processor::Gpu(gpus[at]));
            }
        }
        self.place_on_cores(&mut placed)?;
        let mut rest: Vec<usize> = (0..placed.len()).filter(|&i| placed[i].is_none()).collect();
        rest.sort_by_key(|&i| (std::cmp::Reverse(rate(&self.workload.streams[i])), i));
        for index in rest {
            let stream = &self.workload.streams[index];
            let Some(at) = (0..gpus.len()).min_by_key(|&at| (load[at], at)) else {
                return Err(PlanError::NoGpu {
                    place: format!("stream.{}", stream.id),
                    machine: self.machine.name.clone(),
                    object: format!("stream `{}`", stream.id),
                });
            };
            load[at] += rate(stream);
            placed[index] = Some(Processor::Gpu(gpus[at]));
        }
        Ok(placed.into_iter().flatten().collect())
    }

    pub(super) fn gpu_of(&self, processor: Processor) -> Option<u32> {
        match processor {
            Processor::Gpu(gpu) => Some(self.ordinal(gpu)),
            Processor::Core(_) => None,
        }
    }

    pub(super) fn ordinal(&self, gpu: EndpointId) -> u32 {
        self.machine.gpus().position(|other| other == gpu).unwrap_or(0) as u32
    }
}
