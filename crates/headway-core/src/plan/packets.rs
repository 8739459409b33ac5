//! Pipelines whose cycles carry one packet as it came, for kernels of the user's own.

use serde::{Deserialize, Serialize};

use super::{OperationWork, PlannedStep};
use crate::units::Bytes;

/// A stream whose kernels come from modules. Each packet is a job of its own and has no header; each step has one operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WholePackets {
    /// The stream, by position in the plan's streams.
    pub stream: u32,
    /// Size of what each step gets of a packet, and of what the last one leaves.
    pub sizes: Vec<Bytes>,
    /// Every kernel has a CPU form, so that the results can be compared.
    pub compared: bool,
}

impl WholePackets {
    /// Size of a packet.
    #[must_use]
    pub fn packet(&self) -> Bytes {
        self.sizes.first().copied().unwrap_or_default()
    }

    /// Size of what becomes of a packet.
    #[must_use]
    pub fn result(&self) -> Bytes {
        self.sizes.last().copied().unwrap_or_default()
    }

    /// What `step` works on.
    #[must_use]
    pub fn bytes(&self, step: usize) -> Bytes {
        self.sizes[step]
    }

    /// Whether there is a size before and behind each of `steps`, and copies change none.
    pub(crate) fn is_whole(&self, steps: &[PlannedStep]) -> bool {
        let fits = |(step, sizes): (&PlannedStep, &[Bytes])| match step.operations.as_slice() {
            [operation] => match operation.work {
                OperationWork::Copy { bytes, .. } => sizes == [bytes; 2],
                OperationWork::Compute { .. } => true,
                OperationWork::Hold => false,
            },
            _ => false,
        };
        let sized = self.sizes.iter().all(|size| (1..=u64::from(u32::MAX)).contains(&size.0));
        self.sizes.len() == steps.len() + 1 && sized && steps.iter().zip(self.sizes.windows(2)).all(fits)
    }
}
