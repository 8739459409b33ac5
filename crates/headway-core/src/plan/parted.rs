//! Pipelines whose steps work on several parts of a packet, each on a processor of its own.

use serde::{Deserialize, Serialize};

use super::{OperationWork, PlannedStep};
use crate::plan::block::{LAUNCH_ALIGN, block_bytes};
use crate::units::Bytes;

/// A stream whose steps are sets of copies and kernels (`verner-2014`, III-B).
///
/// Each part of a packet is at one place at a time. What a cycle gathers of a part is a block of its own, with one portion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parted {
    /// The stream, by position in the plan's streams.
    pub stream: u32,
    /// Bytes of each part in a packet.
    pub parts: Vec<Bytes>,
    /// The largest block of each part.
    pub reserves: Vec<Bytes>,
    /// For each step and each of its operations, the part that it works on. A step has at most one operation for a part.
    pub of: Vec<Vec<u32>>,
    /// The copies of a step go one after the other.
    pub one_by_one: bool,
}

impl Parted {
    /// Room for what `packets` packets have of a part of `bytes`: blocks of kernels begin at multiples of [`LAUNCH_ALIGN`].
    #[must_use]
    pub fn room(bytes: Bytes, packets: u64) -> Bytes {
        let block = block_bytes([packets.saturating_mul(bytes.0)]);
        Bytes(block.0.checked_next_multiple_of(LAUNCH_ALIGN as u64).unwrap_or(u64::MAX))
    }

    /// Bytes of a packet before `part`.
    #[must_use]
    pub fn offset(&self, part: usize) -> u64 {
        self.parts[..part].iter().map(|bytes| bytes.0).sum()
    }

    /// What operation `index` of step `step` works on.
    #[must_use]
    pub fn bytes(&self, step: usize, index: usize) -> Bytes {
        self.reserves[self.of[step][index] as usize]
    }

    /// Whether every operation of `steps` has its part and none has two in one step.
    pub(crate) fn is_whole(&self, steps: &[PlannedStep]) -> bool {
        let fits = |(step, of): (&PlannedStep, &Vec<u32>)| {
            let once = (0..of.len()).all(|at| !of[..at].contains(&of[at]));
            let known = of.iter().all(|&part| (part as usize) < self.parts.len());
            let sized = step.operations.iter().zip(of).all(|(operation, &part)| match operation.work {
                OperationWork::Copy { bytes, .. } => self.reserves.get(part as usize) == Some(&bytes),
                OperationWork::Compute { .. } | OperationWork::Hold => true,
            });
            of.len() == step.operations.len() && once && known && sized
        };
        let rooms = self.reserves.iter().fold(0u64, |sum, room| sum.saturating_add(room.0));
        self.reserves.len() == self.parts.len()
            && !self.parts.is_empty()
            && rooms <= u64::from(u32::MAX)
            && self.of.len() == steps.len()
            && steps.iter().zip(&self.of).all(fits)
    }
}
