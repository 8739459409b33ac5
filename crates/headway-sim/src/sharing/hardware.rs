//! The engines of a cluster as the driver sees them: operations in the order in which they come, one at a time.

use std::collections::VecDeque;

use headway_core::units::Nanos;

use super::job::{Op, UNITS, index};

/// Engines and the operations submitted to them, each known by its task's position.
pub(crate) struct Hardware {
    queues: Vec<VecDeque<usize>>,
    busy: Vec<Nanos>,
}

impl Hardware {
    pub(crate) fn new(gpus: u32) -> Self {
        let engines = gpus as usize * UNITS;
        Self { queues: vec![VecDeque::new(); engines], busy: vec![Nanos::ZERO; engines] }
    }

    /// Whether nothing is on any engine of `op`.
    pub(crate) fn is_idle(&self, op: &Op) -> bool {
        op.engines().all(|engine| self.queues[index(engine)].is_empty())
    }

    /// Appends to the queues of all its engines at once, so that peer copies cannot block each other in a circle.
    pub(crate) fn submit(&mut self, task: usize, op: &Op) {
        for engine in op.engines() {
            self.queues[index(engine)].push_back(task);
        }
    }

    /// Whether the task's operation is first on all its engines: it runs.
    pub(crate) fn is_first(&self, task: usize, op: &Op) -> bool {
        op.engines().all(|engine| self.first(index(engine)) == Some(task))
    }

    /// Whose operation is first on an engine.
    pub(crate) fn first(&self, engine: usize) -> Option<usize> {
        self.queues[engine].front().copied()
    }

    /// Takes a completed operation off its engines.
    pub(crate) fn complete(&mut self, task: usize, op: &Op) {
        for engine in op.engines() {
            let engine = index(engine);
            let first = self.queues[engine].pop_front();
            assert_eq!(first, Some(task), "an operation that was not first on its engine cannot have run");
            self.busy[engine] = self.busy[engine] + op.time;
        }
    }

    /// Time that each engine has run, engines of a GPU together: `ee`, `h2d`, `d2h`.
    pub(crate) fn busy(&self) -> &[Nanos] {
        &self.busy
    }
}
