//! Engine locks in shared memory: which client has a lease of each, and which tasks were granted one.

use headway_core::decisions::sharing::{ClientId, TaskId};

use crate::layout::ENGINES;

/// The client with the lease of each lock.
pub(super) struct Leases {
    pub(super) of: Vec<Option<ClientId>>,
    generation: u32,
    /// Tasks with locks granted: those that can be given back.
    pub(super) running: Vec<TaskId>,
}

impl Leases {
    pub(super) fn new(gpus: usize) -> Self {
        Self { of: vec![None; gpus * ENGINES], generation: 0, running: Vec::new() }
    }

    pub(super) fn next_generation(&mut self) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }

    pub(super) fn forget(&mut self, task: TaskId) {
        self.running.retain(|running| *running != task);
    }

    /// The client with a lease of an engine of the GPU at a position.
    pub(super) fn client(&self, position: usize) -> Option<ClientId> {
        self.of[position * ENGINES..][..ENGINES].iter().flatten().next().copied()
    }
}
