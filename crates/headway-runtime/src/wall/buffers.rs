//! The buffers of every pipeline on its device, and how a chunk of a step becomes an operation on them.

use std::collections::BTreeMap;

use headway_core::plan::{PipelineSource, Plan};
use headway_device::{DeviceError, Engines};

use super::RunError;
use super::chunk::StepChunk;
use super::cores::Cores;
use super::job::{JobBuffers, JobContext};
use super::messages::{self, MessageBuffers, MessageComparison};
use super::resident::{KeptBlock, Resident, Room};
use crate::blocks::{Collect, Supply};
use crate::cores::CoreMemory;
use crate::job::PipelineJob;
use crate::kernels::Kernels;

/// What a pipeline has: buffers of its kind.
enum PipelineBuffers {
    Job(Box<JobBuffers>),
    Messages(MessageBuffers),
    /// Only time passes.
    Flow,
}

/// All buffers of a run. Claims on them are checked, so any thread may hold a reference.
pub(super) struct Buffers {
    pipelines: Vec<PipelineBuffers>,
}

impl Buffers {
    /// Allocates the buffers of `plan` and loads its kernels with their first states.
    pub(super) fn new(
        plan: &Plan,
        devices: &mut [Engines],
        kernels: &Kernels,
        cycles: &[u64],
        spare_cycles: usize,
    ) -> Result<Self, RunError> {
        let room = Room::new(devices.len());
        let mut context = JobContext { plan, kernels, cycles, spare_cycles, memory: CoreMemory::default(), room };
        let mut pipelines = Vec::new();
        for (number, pipeline) in (0u32..).zip(&plan.pipelines) {
            pipelines.push(match PipelineJob::of(plan, number, kernels) {
                Some(job) => PipelineBuffers::Job(Box::new(JobBuffers::new(job, number, devices, &mut context)?)),
                None if matches!(pipeline.source, PipelineSource::Demand) => PipelineBuffers::Flow,
                None => PipelineBuffers::Messages(MessageBuffers::new(plan, number, devices, cycles)?),
            });
        }
        Ok(Self { pipelines })
    }

    /// How many cycles of a pipeline can hold buffers at a time.
    pub(super) fn slots(&self, pipeline: u32) -> usize {
        match &self.pipelines[pipeline as usize] {
            PipelineBuffers::Job(buffers) => buffers.slots(),
            PipelineBuffers::Messages(_) | PipelineBuffers::Flow => 0,
        }
    }

    /// The buffers that a cycle's data is put into.
    pub(super) fn first(&self, pipeline: u32) -> Ends<'_> {
        match &self.pipelines[pipeline as usize] {
            PipelineBuffers::Job(buffers) => buffers.first.as_ref().map_or(Ends::Job(buffers), Ends::Resident),
            PipelineBuffers::Messages(buffers) => Ends::Messages(buffers),
            PipelineBuffers::Flow => Ends::Nowhere,
        }
    }

    /// The buffers that a cycle's result is in.
    pub(super) fn last(&self, pipeline: u32) -> Ends<'_> {
        match &self.pipelines[pipeline as usize] {
            PipelineBuffers::Job(buffers) => buffers.last.as_ref().map_or(Ends::Job(buffers), Ends::Resident),
            PipelineBuffers::Messages(buffers) => Ends::Messages(buffers),
            PipelineBuffers::Flow => Ends::Nowhere,
        }
    }

    /// Brings the blocks of pipelines that begin on a GPU.
    pub(super) fn bring(
        &mut self,
        plan: &Plan,
        devices: &mut [Engines],
        cycles: &[u64],
        supply: &mut dyn Supply,
    ) -> Result<(), RunError> {
        for ((number, buffers), pipeline) in (0u32..).zip(&mut self.pipelines).zip(&plan.pipelines) {
            if let PipelineBuffers::Job(buffers) = buffers
                && let Some(first) = &mut buffers.first
            {
                first.bring(devices, number, pipeline, cycles[number as usize], supply)?;
            }
        }
        Ok(())
    }

    /// Gives `collect` the blocks that `kept` names, which their pipelines left on a GPU.
    pub(super) fn read_back(
        &self,
        plan: &Plan,
        devices: &mut [Engines],
        kept: &Kept,
        collect: &mut dyn Collect,
    ) -> Result<(), RunError> {
        for (&number, blocks) in kept {
            let PipelineBuffers::Job(buffers) = &self.pipelines[number as usize] else { continue };
            let Some(last) = &buffers.last else { continue };
            let pipeline = &plan.pipelines[number as usize];
            let take = |kept: &KeptBlock, block: &[u8]| collect.collect(kept.at, number, kept.cycle, 0, &[block]);
            last.read_back(devices, pipeline, blocks, take)?;
        }
        Ok(())
    }

    /// Compares what messages brought and nobody has compared yet.
    pub(super) fn compare_rest(&self, devices: &mut [Engines]) -> Result<MessageComparison, RunError> {
        let messages = self.pipelines.iter().filter_map(|buffers| match buffers {
            PipelineBuffers::Messages(buffers) => Some(buffers),
            PipelineBuffers::Job(_) | PipelineBuffers::Flow => None,
        });
        messages::compare_rest(messages, devices)
    }

    /// Submits a chunk to its engine.
    pub(super) fn submit(
        &self,
        devices: &mut [Engines],
        cores: &Cores,
        chunk: &StepChunk,
        operation: u64,
    ) -> Result<(), DeviceError> {
        match &self.pipelines[chunk.pipeline as usize] {
            PipelineBuffers::Job(buffers) => buffers.submit(devices, cores, chunk, operation),
            PipelineBuffers::Messages(buffers) => buffers.submit(devices, chunk, operation),
            PipelineBuffers::Flow => Ok(()),
        }
    }
}

/// Where the host puts or finds the data of a cycle.
pub(super) enum Ends<'a> {
    /// Host memory of its slots.
    Job(&'a JobBuffers),
    /// Blocks that lie in a GPU's memory before the run begins, or until it has ended.
    Resident(&'a Resident),
    /// The ends of messages' blocks.
    Messages(&'a MessageBuffers),
    /// A flow has no data.
    Nowhere,
}

/// The blocks that lie on a GPU when a run ends: by pipeline, the cycles with the sizes of their blocks.
pub(super) type Kept = BTreeMap<u32, Vec<KeptBlock>>;
