//! A part of a step as the driver submits it.

use headway_core::units::Bytes;

/// A chunk of a step, with the buffers of its cycle.
pub(super) struct StepChunk {
    pub(super) pipeline: u32,
    pub(super) cycle: u64,
    pub(super) step: u32,
    pub(super) index: u32,
    pub(super) slot: usize,
    pub(super) block: Bytes,
    pub(super) offset: Bytes,
    pub(super) bytes: Bytes,
}
