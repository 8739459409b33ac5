//! What holds after every input, for tests of this machine and of its drivers.

use super::{EngineLocks, Lock, LockId, LockOrder, State};
use crate::decisions::sharing::TaskId;

/// An invariant that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineLockViolation {
    /// What a job holds or waits for is not what the queues say.
    #[error("task {} is not where its state says", .task.0)]
    Place { task: TaskId },
    /// A lock is free and its first waiter could start.
    #[error("{lock:?} is free, and its first waiter has not started")]
    Idle { lock: LockId },
    /// A queue in the order of urgency is not.
    #[error("the queue of {lock:?} is not in the order of urgency")]
    Order { lock: LockId },
    /// Somebody waits, and nobody runs or has the next step to do.
    #[error("deadlock: operations wait and none is under way")]
    Deadlock,
    /// A job runs at another key than it inherits.
    #[error("task {} runs at another key than it inherits", .task.0)]
    Boost { task: TaskId },
}

impl EngineLocks {
    /// Checks mutual exclusion, progress, absence of deadlock and inheritance. Never fails, unless there is a fault here.
    ///
    /// # Errors
    /// The first [`EngineLockViolation`].
    pub fn check(&self) -> Result<(), EngineLockViolation> {
        for (task, job) in &self.jobs {
            let held: Vec<LockId> = self.locks_where(|lock| lock.holder == Some(*task));
            let waits: Vec<LockId> = self.locks_where(|lock| lock.waiting.contains(task));
            let nested = |locks: [Option<LockId>; 2]| locks.into_iter().flatten().collect::<Vec<_>>();
            let right = match job.state {
                State::Idle => held.is_empty() && waits.is_empty(),
                State::Running { locks, .. } => held == nested(locks) && waits.is_empty(),
                State::Obtained { lock, .. } => held == [lock] && waits.is_empty(),
                State::Waiting { locks, obtained: Some(first), .. } => {
                    held == [first] && Some(waits.as_slice()) == locks[1].as_ref().map(std::slice::from_ref)
                }
                State::Waiting { locks, obtained: None, .. } => {
                    let first = locks[0].as_ref().map(std::slice::from_ref);
                    held.is_empty() && (waits == nested(locks) || Some(waits.as_slice()) == first)
                }
            };
            if !right {
                return Err(EngineLockViolation::Place { task: *task });
            }
        }
        for lock in self.locks.keys() {
            if let Some(task) = self.free_head(*lock)
                && let State::Waiting { .. } = self.jobs[&task].state
                && self
                    .locks_where(|lock| lock.waiting.contains(&task))
                    .iter()
                    .all(|l| self.free_head(*l) == Some(task))
            {
                return Err(EngineLockViolation::Idle { lock: *lock });
            }
        }
        if self.parameters.order == LockOrder::Urgency {
            let sorted = |lock: &Lock| lock.waiting.iter().is_sorted_by_key(|task| self.rank(*task));
            if let Some((lock, _)) = self.locks.iter().find(|(_, lock)| !sorted(lock)) {
                return Err(EngineLockViolation::Order { lock: *lock });
            }
        }
        let waits = |state: &State| matches!(state, State::Waiting { .. });
        let acts = |state: &State| matches!(state, State::Running { .. } | State::Obtained { .. });
        if self.jobs.values().any(|job| waits(&job.state)) && !self.jobs.values().any(|job| acts(&job.state)) {
            return Err(EngineLockViolation::Deadlock);
        }
        match self.inherited().into_iter().find(|(task, key)| self.jobs[task].boost != *key) {
            Some((task, _)) => Err(EngineLockViolation::Boost { task }),
            None => Ok(()),
        }
    }

    fn locks_where(&self, is: impl Fn(&Lock) -> bool) -> Vec<LockId> {
        self.locks.iter().filter(|(_, lock)| is(lock)).map(|(id, _)| *id).collect()
    }
}
