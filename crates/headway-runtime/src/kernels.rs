//! The kernels of a plan with the lanes they serve.

use std::sync::Arc;

use headway_core::files::workload::Workload;
use headway_core::plan::{self, Plan, PlannedWafer, Source};
use headway_device::work::{Camera, Lane, Work};

/// A kernel that nobody wrote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no kernel `{name}`; this build has {known}")]
pub struct UnknownKernel {
    /// What the workload asks for.
    pub name: String,
    /// What there is.
    pub known: String,
}

/// Kernels of all compute steps of a plan.
#[derive(Clone)]
pub struct Kernels {
    stages: Vec<(u32, u32, Arc<dyn Work>)>,
    /// What checks them.
    references: Vec<(u32, u32, Arc<dyn Work>)>,
    lanes: Vec<Vec<Lane>>,
}

impl Kernels {
    /// Finds the kernels that `plan` names, and the parameters of its streams in `workload`.
    ///
    /// # Errors
    /// [`UnknownKernel`].
    pub fn of(plan: &Plan, workload: &Workload) -> Result<Self, UnknownKernel> {
        let (mut stages, mut references) = (Vec::new(), Vec::new());
        let mut lanes = Vec::new();
        for (number, pipeline) in (0u32..).zip(&plan.pipelines) {
            for (step, planned) in (0u32..).zip(&pipeline.steps) {
                if let plan::Work::Compute { kernel } = &planned.operations[0].work {
                    let found = headway_kernels::find(kernel).ok_or_else(|| UnknownKernel {
                        name: kernel.clone(),
                        known: headway_kernels::ids().collect::<Vec<_>>().join(", "),
                    })?;
                    // What a core has made with a CPU form is checked by another.
                    let other = plan.core_of(pipeline).and_then(|_| headway_kernels::reference(kernel));
                    references.push((number, step, other.unwrap_or_else(|| Arc::clone(&found))));
                    stages.push((number, step, found));
                }
            }
            lanes.push(match &pipeline.source {
                Source::Streams(streams) => streams
                    .iter()
                    .map(|&stream| {
                        let stream = &workload.streams[stream as usize];
                        Lane { stream: stream.id.clone(), cipher: stream.cipher, camera: None }
                    })
                    .collect(),
                Source::Wafer(PlannedWafer { stream, wafer, .. }) => (0..wafer.cameras)
                    .map(|number| Lane {
                        stream: workload.streams[*stream as usize].id.clone(),
                        cipher: None,
                        camera: Some(Camera { wafer: *wafer, number }),
                    })
                    .collect(),
                Source::Message | Source::Batch(_) | Source::Flow | Source::Bulk(_) | Source::Urgent(_) => Vec::new(),
            });
        }
        Ok(Self { stages, references, lanes })
    }

    /// Pipeline, step and kernel of every compute step.
    pub fn stages(&self) -> impl Iterator<Item = (u32, u32, &Arc<dyn Work>)> {
        self.stages.iter().map(|(pipeline, step, kernel)| (*pipeline, *step, kernel))
    }

    /// The same with the CPU form that says what a step must have made.
    pub fn references(&self) -> impl Iterator<Item = (u32, u32, &Arc<dyn Work>)> {
        self.references.iter().map(|(pipeline, step, kernel)| (*pipeline, *step, kernel))
    }

    /// The lanes of a pipeline.
    #[must_use]
    pub fn lanes(&self, pipeline: u32) -> &[Lane] {
        &self.lanes[pipeline as usize]
    }
}
