//! A pipeline of a simulated run whose packets have parts: ordinary memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use headway_core::plan::payload::{Gathered, PayloadChunk};
use headway_core::plan::{self, Parted, Pipeline};
use headway_device::work::WorkError;

use super::HostError;
use crate::blocks::{Gatherer, Scatterer};
use crate::cores::CoreStage;
use crate::kernels::Kernels;

/// The cycles under way, and the kernels with the state that they keep from cycle to cycle.
pub(super) struct PartedHost {
    planned: Parted,
    /// By step and operation.
    stages: BTreeMap<(u32, u32), CoreStage>,
    /// For each cycle, room for the blocks of all parts as they came, and after each step.
    open: BTreeMap<u64, Vec<Vec<u8>>>,
    spare: Vec<Vec<Vec<u8>>>,
}

impl PartedHost {
    pub(super) fn new(planned: &Parted, kernels: &Kernels, number: u32) -> Result<Self, WorkError> {
        let mut stages = BTreeMap::new();
        for kernel in kernels.of_parts(number) {
            let portion = std::slice::from_ref(&kernels.portions(number)[kernel.part as usize]);
            stages.insert((kernel.step, kernel.index), CoreStage::new(Arc::clone(&kernel.work), portion)?);
        }
        Ok(Self { planned: planned.clone(), stages, open: BTreeMap::new(), spare: Vec::new() })
    }

    pub(super) fn gather(
        &mut self,
        number: u32,
        pipeline: &Pipeline,
        cycle: u64,
        gatherer: &Gatherer,
    ) -> Result<Gathered, HostError> {
        let new = || vec![vec![0; pipeline.reserve.0 as usize]; pipeline.steps.len() + 1];
        let mut blocks = self.spare.pop().unwrap_or_else(new);
        let gathered = gatherer.gather(number, cycle, &mut blocks[0])?;
        if gathered.block.0 == 0 {
            self.spare.push(blocks);
        } else {
            self.open.insert(cycle, blocks);
        }
        Ok(gathered)
    }

    pub(super) fn execute(&mut self, pipeline: &Pipeline, piece: &PayloadChunk) -> Result<(), HostError> {
        let step = piece.step as usize;
        let part = self.planned.of[step][piece.index as usize];
        let range = self.planned.range(part as usize);
        let from = self.planned.before(step, part).map_or(0, |before| before + 1);
        let blocks = self.open.get_mut(&piece.cycle).expect("a submitted cycle was gathered");
        let (before, after) = blocks.split_at_mut(step + 1);
        let (input, output) = (&before[from][range.clone()], &mut after[0][range]);
        match pipeline.steps[step].operations[piece.index as usize].work {
            plan::OperationWork::Copy { .. } => {
                let moved = piece.offset.0 as usize..(piece.offset.0 + piece.bytes.0) as usize;
                output[moved.clone()].copy_from_slice(&input[moved]);
            }
            plan::OperationWork::Compute { .. } => {
                let stage = self.stages.get_mut(&(piece.step, piece.index));
                let stage = stage.expect("every compute operation has a stage");
                stage.run(input, output)?;
            }
            plan::OperationWork::Hold => {}
        }
        Ok(())
    }

    pub(super) fn deliver(&mut self, number: u32, cycle: u64, scatterer: &mut Scatterer) -> Result<(), HostError> {
        let Some(mut blocks) = self.open.remove(&cycle) else { return Ok(()) };
        let steps = self.planned.of.len();
        let mut last = blocks.pop().expect("there is room after each step");
        for part in 0..self.planned.parts.len() {
            // What the last step did not touch is where it was.
            let at = self.planned.before(steps, part as u32).map_or(0, |step| step + 1);
            if let Some(there) = blocks.get(at) {
                let range = self.planned.range(part);
                last[range.clone()].copy_from_slice(&there[range]);
            }
        }
        scatterer.scatter(number, cycle, &last)?;
        blocks.push(last);
        self.spare.push(blocks);
        Ok(())
    }

    pub(super) fn give_up(&mut self, number: u32, cycle: u64, scatterer: &mut Scatterer) -> Result<(), HostError> {
        if let Some(blocks) = self.open.remove(&cycle) {
            scatterer.lose(number, cycle)?;
            self.spare.push(blocks);
        }
        Ok(())
    }
}
