//! The lines of the engines that a plan copies on. Its dispatcher decides what its own steps do; copies of this process that no plan made wait
//! while a step is on their engine. While one of its kernels is on a GPU, guests with `--depth` launch nothing there.

use std::collections::BTreeMap;

use headway_core::decisions::engine_line::{FlowClass, LineEntry, LineParty};
use headway_core::decisions::staging::StagingDirection;
use headway_core::files::machine::EngineClass;
use headway_core::plan::{OperationWork, PipelineSource, Plan, PlannedOperation};
use headway_core::units::Nanos;
use headway_device::Engines;
use headway_os::board::KernelActivity;

use super::RunError;
use crate::endpoints::CopyPath;
use crate::staging::{GpuEngines, Place, Promiser};

/// The engines of each device, on which nobody else promises copies meanwhile.
pub(super) struct Turns {
    engines: Vec<GpuEngines>,
    promiser: Promiser,
    /// By GPU, of those on which the plan computes.
    kernels: BTreeMap<usize, KernelActivity>,
}

impl Turns {
    /// # Errors
    /// [`RunError::Promised`] if this process promises copies of flows, or of another plan, where this one copies.
    pub(super) fn new(plan: &Plan, devices: &[Engines]) -> Result<Self, RunError> {
        let mut turns = Self::on(devices);
        for pipeline in plan.pipelines.iter().filter(|of| !matches!(of.source, PipelineSource::Bulk(_))) {
            let operations = || pipeline.steps.iter().flat_map(|step| &step.operations);
            for gpu in operations().filter_map(|of| kernel_gpu(plan, of)) {
                if let Some(device) = devices.get(gpu) {
                    let new = || KernelActivity::new(device.description().board_gpu());
                    turns.kernels.entry(gpu).or_insert_with(new);
                }
            }
            for path in operations().filter_map(|of| CopyPath::of(plan, of)) {
                let (gpu, Some(direction)) = (path.device(), direction(path)) else { continue };
                let engine = turns.engines.get(gpu).map(|engines| engines.get(direction));
                if engine.is_some_and(|engine| !engine.promise_by(turns.promiser)) {
                    let way = match direction {
                        StagingDirection::In => "into",
                        StagingDirection::Out => "out of",
                    };
                    return Err(RunError::Promised { gpu, way });
                }
            }
        }
        Ok(turns)
    }

    fn on(devices: &[Engines]) -> Self {
        let engines = devices.iter().map(|device| GpuEngines::of(device.gpu().as_ref())).collect();
        Self { engines, promiser: Promiser::new(), kernels: BTreeMap::new() }
    }

    /// A kernel is about to be launched on this GPU.
    pub(super) fn kernel_begins(&mut self, gpu: usize, now: Nanos) {
        if let Some(kernels) = self.kernels.get_mut(&gpu) {
            kernels.begin(now);
        }
    }

    /// It has ended.
    pub(super) fn kernel_ended(&mut self, gpu: usize) {
        if let Some(kernels) = self.kernels.get_mut(&gpu) {
            kernels.end();
        }
    }

    /// A packet, or a block of a message, was late on this GPU.
    pub(super) fn missed(&self, gpu: usize, direction: StagingDirection) {
        if let Some(engines) = self.engines.get(gpu) {
            engines.get(direction).line.activity().missed(FlowClass::Guaranteed);
        }
    }

    /// Takes the engine of a copy between host and GPU until the place is dropped; `None` for what is no such copy. The plan's
    /// own bulk is bulk to others, too.
    pub(super) fn hold(&self, source: &PipelineSource, path: CopyPath) -> Option<Place> {
        let direction = direction(path)?;
        let entry = match source {
            PipelineSource::Bulk(_) => LineEntry::new(FlowClass::Bulk, LineParty::Copies, 1),
            _ => LineEntry::new(FlowClass::Guaranteed, LineParty::Planned, 1),
        };
        let mut place = Place::new(&self.engines[path.device()].get(direction).line, entry);
        place.hold();
        Some(place)
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        for direction in [StagingDirection::In, StagingDirection::Out] {
            self.engines.iter().for_each(|engines| engines.get(direction).promise_ends(self.promiser));
        }
    }
}

/// The GPU that runs an operation; `None` for what is no kernel, and for kernels on cores of the CPU.
pub(super) fn kernel_gpu(plan: &Plan, operation: &PlannedOperation) -> Option<usize> {
    let OperationWork::Compute { .. } = operation.work else { return None };
    plan.engines[operation.engines.first()?.at()].gpu.map(|gpu| gpu as usize)
}

/// Between which ends of a GPU a copy goes; `None` for what is no copy between host and GPU.
pub(super) const fn direction(path: CopyPath) -> Option<StagingDirection> {
    match path.class {
        EngineClass::H2d => Some(StagingDirection::In),
        EngineClass::D2h => Some(StagingDirection::Out),
        EngineClass::Peer | EngineClass::Ee => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use headway_core::models::transfer::Method;
    use headway_device::emu::{EmuGpu, EmuSpec};

    use super::*;

    #[test]
    fn while_a_step_is_on_an_engine_bulk_of_the_same_process_waits_for_it_and_other_engines_are_free() {
        let device = Engines::open(Arc::new(EmuGpu::open(EmuSpec::new("gpu0")))).unwrap();
        let turns = Turns::on(std::slice::from_ref(&device));
        let bulk = |direction| {
            let engines = GpuEngines::of(device.gpu().as_ref());
            Place::new(&engines.get(direction).line, LineEntry::new(FlowClass::Bulk, LineParty::Copies, 2))
        };
        let (mut inward, mut outward) = (bulk(StagingDirection::In), bulk(StagingDirection::Out));
        assert!(inward.take(), "nothing is there yet");
        let path = |class, from, to| CopyPath { class, method: Method::Dma, from, to };
        let (messages, into) = (PipelineSource::Message, path(EngineClass::H2d, None, Some(0)));
        let steps = [1, 2].map(|_| turns.hold(&messages, into).expect("it is held at once"));
        assert!(outward.take() && !inward.take());
        assert!(turns.hold(&messages, path(EngineClass::Peer, Some(0), Some(0))).is_none());
        let [first, second] = steps;
        drop(first);
        assert!(!inward.take());
        drop(second);
        assert!(inward.take());
        inward.release();
        inward.release();
        let bulk = [1, 2].map(|_| turns.hold(&PipelineSource::Bulk(None), into).expect("it is held at once"));
        assert!(!inward.take());
        drop(bulk);
        assert!(inward.take());
    }
}
