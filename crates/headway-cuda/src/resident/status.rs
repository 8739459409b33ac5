//! The words that resident kernels write into host memory. The layout is that of `kernels/resident.cuh`.

use std::sync::atomic::{AtomicU64, Ordering};

use headway_device::DeviceError;
use headway_device::buffer::Memory as _;

use crate::pool::{Pool, SlabPiece};

/// Units one copier has at most.
pub(super) const UNITS_MAX: usize = 4;
/// Blocks one unit has at most.
pub(super) const BLOCKS_MAX: usize = 16;

#[repr(C)]
struct Words {
    completed: [[AtomicU64; BLOCKS_MAX]; UNITS_MAX],
    multiprocessor: [[AtomicU64; BLOCKS_MAX]; UNITS_MAX],
    started: [AtomicU64; UNITS_MAX],
    left: [AtomicU64; UNITS_MAX],
}

/// What the blocks say of themselves, in pinned memory.
pub(super) struct Status {
    memory: SlabPiece,
    units: usize,
    /// Blocks of each unit that work.
    workers: usize,
}

impl Status {
    pub(super) fn new(pool: &Pool, units: usize, workers: usize) -> Result<Self, DeviceError> {
        Ok(Self { memory: pool.take(size_of::<Words>())?, units, workers })
    }

    pub(super) fn address(&self) -> u64 {
        self.memory.base().addr() as u64
    }

    fn words(&self) -> &Words {
        // SAFETY: the piece has this size, is zeroed, aligned to 256 bytes and lives as long as `self`; host and device access
        // its words whole only.
        unsafe { &*self.memory.base().cast::<Words>() }
    }

    /// Whether every block has done its share of `command`.
    pub(super) fn completed(&self, command: u64) -> bool {
        let units = &self.words().completed[..self.units];
        units.iter().flat_map(|unit| &unit[..self.workers]).all(|word| word.load(Ordering::Acquire) >= command)
    }

    /// Blocks that have done their share of `command`, of how many; for messages.
    pub(super) fn progress(&self, command: u64) -> (usize, usize) {
        let units = &self.words().completed[..self.units];
        let blocks = units.iter().flat_map(|unit| &unit[..self.workers]);
        (blocks.filter(|word| word.load(Ordering::Acquire) >= command).count(), self.units * self.workers)
    }

    /// Says that everything up to `command` is completed, so that no later launch does it. No unit may be at work.
    pub(super) fn skip_to(&self, command: u64) {
        for word in self.words().completed.iter().flatten() {
            word.store(command, Ordering::Release);
        }
    }

    /// Whether unit `unit` of launch `generation` has begun.
    pub(super) fn has_started(&self, unit: usize, generation: u64) -> bool {
        self.words().started[unit].load(Ordering::Acquire) >= generation
    }

    /// Whether unit `unit` of launch `generation` has gone. What it completed was written before.
    pub(super) fn has_left(&self, unit: usize, generation: u64) -> bool {
        self.words().left[unit].load(Ordering::Acquire) >= generation
    }

    /// Whether all units of launch `generation` have gone.
    pub(super) fn all_left(&self, generation: u64) -> bool {
        (0..self.units).all(|unit| self.has_left(unit, generation))
    }

    /// Whether a unit of launch `generation` has gone without having completed `command`: it never will.
    pub(super) fn is_abandoned(&self, command: u64, generation: u64) -> bool {
        // In this order, as `left` was written after the last `completed`: else a launch could be made for nothing.
        (0..self.units).any(|unit| {
            self.has_left(unit, generation) && self.words().completed[unit][0].load(Ordering::Acquire) < command
        })
    }

    /// The multiprocessor of every block, as they said when they began.
    pub(super) fn multiprocessors(&self) -> Vec<Vec<u32>> {
        let units = &self.words().multiprocessor[..self.units];
        units
            .iter()
            .map(|unit| unit[..self.workers].iter().map(|word| word.load(Ordering::Acquire) as u32).collect())
            .collect()
    }
}
