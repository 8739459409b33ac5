//! What a task's jobs ask for.

use serde::{Deserialize, Serialize};

use crate::decisions::sharing::{JobSegment, TaskId, TaskParameters};
use crate::units::{Bytes, Nanos};

/// One use of a GPU, from token grant to token release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquisition {
    /// `q`: requests for copy locks, one per chunk of every copy. Not `ceil(d/c)` of all bytes together: two copies of one
    /// byte are two requests.
    pub copies: u64,
    /// `e`: requests for the execution engine.
    pub executes: u64,
    /// `LP`: CPU time while the token is held.
    pub cpu: Nanos,
    /// Time of its own copies together, hand-overs included.
    pub copy_time: Nanos,
    /// Time of its own kernels together, hand-overs included.
    pub execute_time: Nanos,
}

/// A task as the analysis sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskDemand {
    pub task: TaskId,
    /// Minimum time between two releases.
    pub period: Nanos,
    /// CPU time of a job without a token.
    pub cpu_outside: Nanos,
    /// Uses of a GPU in a job, in sequence.
    pub acquisitions: Vec<Acquisition>,
}

impl Acquisition {
    /// The longest use that `task` declares, its state's copies included: `peer` = chunks from GPU to GPU, otherwise out to
    /// the host after every job and in again at a migration. `chunk` = `None` for whole copies; `copy_time` gives the longest
    /// time of one copy operation of a size.
    #[must_use]
    pub fn of(task: &TaskParameters, chunk: Option<Bytes>, peer: bool, copy_time: impl Fn(Bytes) -> Nanos) -> Self {
        let state_copies = if peer { 1 } else { 2 };
        let mut sum = Self::default();
        for segment in &task.segments {
            match segment {
                JobSegment::Cpu(time) => sum.cpu = sum.cpu.saturating_add(*time),
                JobSegment::Execute { time, .. } => {
                    sum.executes += 1;
                    sum.execute_time = sum.execute_time.saturating_add(*time);
                }
                JobSegment::Copy { bytes, .. } => sum.add_copy(*bytes, chunk, &copy_time),
            }
        }
        (0..state_copies).for_each(|_| sum.add_copy(task.state, chunk, &copy_time));
        sum
    }

    fn add_copy(&mut self, bytes: Bytes, chunk: Option<Bytes>, copy_time: &impl Fn(Bytes) -> Nanos) {
        let chunk = chunk.map_or(bytes.0, |chunk| chunk.0).max(1);
        let (whole, rest) = (bytes.0 / chunk, bytes.0 % chunk);
        self.copies = self.copies.saturating_add(whole + u64::from(rest > 0));
        let whole = Nanos(copy_time(Bytes(chunk)).0.saturating_mul(whole));
        let rest = if rest > 0 { copy_time(Bytes(rest)) } else { Nanos::ZERO };
        self.copy_time = self.copy_time.saturating_add(whole).saturating_add(rest);
    }
}
