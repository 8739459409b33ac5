//! The payload of a simulated run: ordinary memory, copies by the CPU, kernels in their CPU form.

mod parted;
mod sharded;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use headway_core::plan::payload::{Gathered, Payload, PayloadChunk};
use headway_core::plan::{self, PipelineSource, Plan};
use headway_device::work::WorkError;

use crate::blocks::{DataError, Gatherer, Scatterer};
use crate::cores::CoreStage;
use crate::kernels::Kernels;
use parted::PartedHost;
use sharded::ShardedHost;

/// A payload that cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// Packing or unpacking failed.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A kernel refused its block.
    #[error(transparent)]
    Kernel(#[from] WorkError),
}

/// Buffers of a cycle under way: one before the first step and one after each.
struct CycleBuffers {
    buffers: Vec<Vec<u8>>,
    block: usize,
}

/// Moves and processes bytes in ordinary memory.
pub struct HostPayload {
    plan: Arc<Plan>,
    gatherer: Gatherer,
    scatterer: Scatterer,
    stages: BTreeMap<(u32, u32), CoreStage>,
    open: BTreeMap<(u32, u64), CycleBuffers>,
    /// Pipelines whose packets are divided, by number.
    sharded: BTreeMap<u32, ShardedHost>,
    /// Pipelines whose packets have parts, by number.
    parted: BTreeMap<u32, PartedHost>,
    /// Buffers of delivered cycles, by pipeline: a cycle takes them over instead of allocating.
    spare: Vec<Vec<Vec<Vec<u8>>>>,
    interrupt: Arc<AtomicBool>,
}

impl HostPayload {
    /// A payload for `plan` that reads through `gatherer` and writes through `scatterer`, and asks for the end once
    /// `interrupt` is true.
    ///
    /// # Errors
    /// [`WorkError`] if a kernel lacks a parameter.
    pub fn new(
        plan: Arc<Plan>,
        kernels: &Kernels,
        gatherer: Gatherer,
        scatterer: Scatterer,
        interrupt: Arc<AtomicBool>,
    ) -> Result<Self, WorkError> {
        let mut stages = BTreeMap::new();
        let (mut sharded, mut parted) = (BTreeMap::new(), BTreeMap::new());
        for (number, pipeline) in (0u32..).zip(&plan.pipelines) {
            match &pipeline.source {
                PipelineSource::Sharded(planned) => {
                    drop(sharded.insert(number, ShardedHost::new(planned, kernels, number)?))
                }
                PipelineSource::Parts(planned) => {
                    drop(parted.insert(number, PartedHost::new(planned, kernels, number)?))
                }
                _ => {}
            }
        }
        for (pipeline, step, kernel) in kernels.stages().filter(|(pipeline, ..)| !sharded.contains_key(pipeline)) {
            stages.insert((pipeline, step), CoreStage::new(Arc::clone(kernel), kernels.portions(pipeline))?);
        }
        let spare = plan.pipelines.iter().map(|_| Vec::new()).collect();
        Ok(Self { plan, gatherer, scatterer, stages, open: BTreeMap::new(), sharded, parted, spare, interrupt })
    }

    /// Ends the run: writes everything out and returns the bytes of each stream.
    ///
    /// # Errors
    /// [`crate::outlet::OutputError`].
    pub fn finish(self) -> Result<Vec<u64>, crate::outlet::OutputError> {
        self.scatterer.finish()
    }
}

/// Says how many bytes there are, and touches none.
pub struct TimeOnly {
    gatherer: Gatherer,
    interrupt: Arc<AtomicBool>,
}

impl TimeOnly {
    /// For what `gatherer` would pack; asks for the end once `interrupt` is true.
    #[must_use]
    pub fn new(gatherer: Gatherer, interrupt: Arc<AtomicBool>) -> Self {
        Self { gatherer, interrupt }
    }
}

impl Payload for TimeOnly {
    type Error = HostError;

    fn interrupted(&self) -> bool {
        self.interrupt.load(Ordering::Relaxed)
    }

    fn gather(&mut self, pipeline: u32, cycle: u64) -> Result<Gathered, HostError> {
        Ok(self.gatherer.sizes(pipeline, cycle))
    }

    fn execute(&mut self, _piece: &PayloadChunk) -> Result<(), HostError> {
        Ok(())
    }

    fn deliver(&mut self, _pipeline: u32, _cycle: u64) -> Result<(), HostError> {
        Ok(())
    }
}

impl Payload for HostPayload {
    type Error = HostError;

    fn interrupted(&self) -> bool {
        self.interrupt.load(Ordering::Relaxed)
    }

    fn gather(&mut self, pipeline: u32, cycle: u64) -> Result<Gathered, HostError> {
        let planned = &self.plan.pipelines[pipeline as usize];
        if let Some(sharded) = self.sharded.get_mut(&pipeline) {
            return sharded.gather(planned, cycle);
        }
        if let Some(parted) = self.parted.get_mut(&pipeline) {
            return parted.gather(pipeline, planned, cycle, &self.gatherer);
        }
        let mut buffers = self.spare[pipeline as usize]
            .pop()
            .unwrap_or_else(|| vec![vec![0; planned.reserve.0 as usize]; planned.steps.len() + 1]);
        let gathered = self.gatherer.gather(pipeline, cycle, &mut buffers[0])?;
        if gathered.block.0 == 0 {
            self.spare[pipeline as usize].push(buffers);
        } else {
            self.open.insert((pipeline, cycle), CycleBuffers { buffers, block: gathered.block.0 as usize });
        }
        Ok(gathered)
    }

    fn execute(&mut self, piece: &PayloadChunk) -> Result<(), HostError> {
        let planned = &self.plan.pipelines[piece.pipeline as usize];
        if let Some(sharded) = self.sharded.get_mut(&piece.pipeline) {
            return sharded.execute(planned, piece);
        }
        if let Some(parted) = self.parted.get_mut(&piece.pipeline) {
            return parted.execute(planned, piece);
        }
        if !matches!(planned.source, PipelineSource::Streams(_)) {
            return Ok(()); // Messages and flows carry no user's bytes.
        }
        let step = piece.step as usize;
        let open = self.open.get_mut(&(piece.pipeline, piece.cycle)).expect("a submitted cycle was gathered");
        let (before, after) = open.buffers.split_at_mut(step + 1);
        let (input, output) = (&before[step], &mut after[0]);
        match &planned.steps[step].operations[piece.index as usize].work {
            plan::OperationWork::Copy { .. } => {
                let range = piece.offset.0 as usize..(piece.offset.0 + piece.bytes.0) as usize;
                output[range.clone()].copy_from_slice(&input[range]);
            }
            plan::OperationWork::Compute { .. } => {
                let stage = self.stages.get_mut(&(piece.pipeline, piece.step)).expect("every compute step has a stage");
                stage.run(&input[..open.block], &mut output[..open.block])?;
            }
            plan::OperationWork::Hold => {}
        }
        Ok(())
    }

    fn deliver(&mut self, pipeline: u32, cycle: u64) -> Result<(), HostError> {
        if let Some(sharded) = self.sharded.get_mut(&pipeline) {
            return sharded.deliver(pipeline, cycle, &mut self.scatterer);
        }
        if let Some(parted) = self.parted.get_mut(&pipeline) {
            return parted.deliver(pipeline, cycle, &mut self.scatterer);
        }
        if let Some(open) = self.open.remove(&(pipeline, cycle)) {
            let last = open.buffers.last().expect("there is a buffer before the first step");
            self.scatterer.scatter(pipeline, cycle, &last[..open.block])?;
            self.spare[pipeline as usize].push(open.buffers);
        }
        Ok(())
    }

    fn give_up(&mut self, pipeline: u32, cycle: u64) -> Result<(), HostError> {
        if let Some(parted) = self.parted.get_mut(&pipeline) {
            return parted.give_up(pipeline, cycle, &mut self.scatterer);
        }
        if let Some(open) = self.open.remove(&(pipeline, cycle)) {
            self.scatterer.lose(pipeline, cycle)?;
            self.spare[pipeline as usize].push(open.buffers);
        }
        Ok(())
    }
}
