//! What holds after every input (specification of sharing, 3.6), for tests of this machine and of its drivers.

use std::collections::BTreeSet;

use super::{Place, TokenAllocator};
use crate::decisions::sharing::{JobPriority, TaskId};

/// An invariant that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenViolation {
    /// A request is in no place, in two, or where its links do not lead.
    #[error("task {} is not in exactly one place", .task.0)]
    Place { task: TaskId },
    /// The head of a FIFO holds no token, or another member does.
    #[error("FIFO {fifo}: not exactly its head holds the token")]
    Grant { fifo: usize },
    /// Too many requests are in FIFOs, or in one.
    #[error("FIFOs are longer than the mode allows")]
    Length,
    /// Somebody waits outside the FIFOs although there is room.
    #[error("there is room in the FIFOs, yet requests wait outside")]
    Slot,
    /// A queued request is in `TOP`, or a donor is not.
    #[error("task {} is among the most urgent and deferred, or donates and is not", .task.0)]
    Top { task: TaskId },
    /// A donation does not lead to one FIFO request and back.
    #[error("the donation of task {} leads to no FIFO request of its own", .task.0)]
    Donation {
        /// The donor.
        task: TaskId,
    },
    /// A holder's key is not what it inherits.
    #[error("the holder of FIFO {fifo} runs at another key than it inherits")]
    Boost { fifo: usize },
}

impl TokenAllocator {
    /// Checks items 1 to 5 of the invariants. Never fails, unless there is a fault in the allocator.
    ///
    /// # Errors
    /// The first [`TokenViolation`].
    pub fn check(&self) -> Result<(), TokenViolation> {
        self.check_places()?;
        self.check_fifos()?;
        self.check_top()
    }

    fn check_places(&self) -> Result<(), TokenViolation> {
        let mut counted = 0;
        for (task, request) in &self.requests {
            let members = self.fifos.iter().flat_map(|fifo| fifo.members.iter());
            let in_fifos = members.filter(|member| *member == task).count();
            let (donating, queued) = (self.donors.contains(&request.key), self.queue.contains(&request.key));
            let right = match request.place {
                Place::Fifo(x) => self.fifos.get(x).is_some_and(|fifo| fifo.members.contains(task)),
                Place::Donor(_) => donating,
                Place::Queue => queued,
                Place::Stopped => self.pending.is_some(),
            };
            let places = in_fifos + usize::from(donating) + usize::from(queued);
            let expected = usize::from(request.place != Place::Stopped);
            let counts = expected == 1 && !request.virtually_released;
            if !right || places != expected || counts != self.order.contains(&request.key) {
                return Err(TokenViolation::Place { task: *task });
            }
            counted += usize::from(counts);
        }
        let stray = self.fifos.iter().flat_map(|fifo| &fifo.members).find(|task| !self.requests.contains_key(task));
        let strays = stray.copied().or_else(|| {
            let keys = || self.donors.iter().chain(&self.queue).chain(&self.order);
            keys().map(|key| key.job.task).find(|task| !self.requests.contains_key(task))
        });
        match strays {
            Some(task) => Err(TokenViolation::Place { task }),
            None if counted != self.order.len() => Err(TokenViolation::Length),
            None => Ok(()),
        }
    }

    fn check_fifos(&self) -> Result<(), TokenViolation> {
        let longest = self.sizes.length_max.map_or(usize::MAX, |length| length as usize);
        for (x, fifo) in self.fifos.iter().enumerate() {
            for (place, task) in fifo.members.iter().enumerate() {
                let request = &self.requests[task];
                if request.granted.is_some() != (place == 0) || (request.virtually_released && place > 0) {
                    return Err(TokenViolation::Grant { fifo: x });
                }
            }
            if self.counted(x) > longest {
                return Err(TokenViolation::Length);
            }
            let boost = fifo.members.front().map(|head| self.requests[head].boost);
            if boost.is_some() && boost != self.inherited(x) {
                return Err(TokenViolation::Boost { fifo: x });
            }
        }
        let queued: usize = (0..self.fifos.len()).map(|x| self.counted(x)).sum();
        if self.sizes.queued_max.is_some_and(|most| queued > most as usize) {
            return Err(TokenViolation::Length);
        }
        let outside = !self.donors.is_empty() || !self.queue.is_empty();
        if outside && (self.has_slot() || self.pending.is_some()) { Err(TokenViolation::Slot) } else { Ok(()) }
    }

    fn check_top(&self) -> Result<(), TokenViolation> {
        if !self.sizes.donation {
            return match self.donors.first() {
                Some(key) => Err(TokenViolation::Donation { task: key.job.task }),
                None => Ok(()),
            };
        }
        let wrong_side =
            |keys: &BTreeSet<JobPriority>, top: bool| keys.iter().find(|key| self.in_top(**key) != top).copied();
        if let Some(key) = wrong_side(&self.donors, true).or_else(|| wrong_side(&self.queue, false)) {
            return Err(TokenViolation::Top { task: key.job.task });
        }
        for (task, request) in &self.requests {
            if let Place::Donor(donee) = request.place {
                let back = self.requests.get(&donee).is_some_and(|donee| {
                    donee.donor == Some(*task) && matches!(donee.place, Place::Fifo(_)) && !donee.virtually_released
                });
                if !back {
                    return Err(TokenViolation::Donation { task: *task });
                }
            }
            if let Some(donor) = request.donor {
                let back = self.requests.get(&donor).is_some_and(|donor| donor.place == Place::Donor(*task));
                if !back {
                    return Err(TokenViolation::Donation { task: donor });
                }
            }
        }
        Ok(())
    }
}
