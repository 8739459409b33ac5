//! Which FIFO a request enters, which job a donor helps, which job an idle token takes (specification of sharing, 3.2, 3.3 and 3.5).
//!
//! Any choice keeps the bounds: only FIFOs with room are candidates.

use std::cmp::Reverse;

use super::{Fifo, TokenAllocator};
use crate::decisions::sharing::{Class, JobPriority, TaskId};
use crate::units::Nanos;

impl TokenAllocator {
    /// The FIFO that `task` enters: where it is predicted to end first, or the shortest one without affinity.
    pub(super) fn choose_fifo(&self, task: TaskId) -> Option<usize> {
        let room = |x: &usize| self.sizes.length_max.is_none_or(|longest| self.counted(*x) < longest as usize);
        let candidates = (0..self.fifos.len()).filter(room);
        #[cfg(test)]
        if let Some(forced) = self.forced.filter(|x| room(x)) {
            return Some(forced);
        }
        if !self.parameters.affinity {
            let k = self.fifos.len();
            let turn = |x: usize| (x + k - self.last_choice % k) % k;
            return candidates.min_by_key(|x| (self.fifos[*x].members.len(), self.holders_beside(*x), turn(*x)));
        }
        let mut users = vec![0u32; self.gpus.len()];
        self.homes.values().for_each(|home| users[*home] += 1);
        candidates.min_by_key(|x| {
            let position = self.fifos[*x].position;
            let done = self.length(*x).saturating_add(self.requests[&task].estimates[position]);
            let class = self.class_to(task, position);
            (done, class, users[position], self.holders_beside(*x), self.fifos[*x].members.len(), *x)
        })
    }

    /// The undonated FIFO request outside `TOP` that `donor` helps: the least urgent one, or by affinity, where there is a
    /// choice, the one nearest to the donor's last GPU.
    pub(super) fn choose_donee(&self, donor: TaskId, affinity: bool) -> Option<TaskId> {
        let top = self.top();
        let choice = affinity && self.sizes.queued_max.is_some_and(|queued| queued > self.parameters.cpus);
        let members = self.fifos.iter().flat_map(|fifo| fifo.members.iter().map(move |task| (fifo.position, *task)));
        let candidates = members.filter(|(_, task)| {
            let request = &self.requests[task];
            request.donor.is_none() && !request.virtually_released && top.is_some_and(|top| request.key > top)
        });
        let rank = |(position, task): &(usize, TaskId)| {
            let class = if choice { self.class_to(donor, *position) } else { Class(0) };
            (class, Reverse(self.requests[task].key))
        };
        candidates.min_by_key(rank).map(|(_, task)| task)
    }

    /// The waiter that moves to the empty FIFO `to`: with affinity the one that comes nearer to its last GPU most, else the
    /// most urgent one.
    pub(super) fn choose_stolen(&self, to: usize) -> Option<TaskId> {
        let here = self.fifos[to].position;
        let waiters = self.fifos.iter().flat_map(|fifo| fifo.members.iter().skip(1).map(move |task| (fifo, *task)));
        let rank = |(fifo, task): &(&Fifo, TaskId)| -> (Reverse<i16>, JobPriority) {
            let gain = i16::from(self.class_to(*task, fifo.position).0) - i16::from(self.class_to(*task, here).0);
            let gain = if self.parameters.affinity { gain.max(0) } else { 0 };
            (Reverse(gain), self.requests[task].key)
        };
        waiters.min_by_key(rank).map(|(_, task)| task)
    }

    /// From the task's last GPU to `position`; 0 for a first use.
    fn class_to(&self, task: TaskId, position: usize) -> Class {
        self.homes.get(&task).map_or(Class(0), |home| self.distances.class(*home, position))
    }

    /// Predicted time until the FIFO is empty. Every request counts with the estimate stored when it was made.
    fn length(&self, x: usize) -> Nanos {
        let fifo = &self.fifos[x];
        fifo.members
            .iter()
            .fold(Nanos::ZERO, |sum, task| sum.saturating_add(self.requests[task].estimates[fifo.position]))
    }

    /// Requests of a FIFO, without a virtually released one.
    pub(super) fn counted(&self, x: usize) -> usize {
        self.fifos[x].members.iter().filter(|task| !self.requests[task].virtually_released).count()
    }

    /// FIFOs in use of the same GPU.
    fn holders_beside(&self, x: usize) -> usize {
        let position = self.fifos[x].position;
        self.fifos.iter().filter(|fifo| fifo.position == position && !fifo.members.is_empty()).count()
    }

    /// The least urgent key in `TOP`; `None` = everybody is in it.
    pub(super) fn top(&self) -> Option<JobPriority> {
        let m = self.parameters.cpus as usize;
        if self.order.len() <= m { None } else { self.order.iter().nth(m - 1).copied() }
    }

    /// Whether a request that counts is among the `m` most urgent.
    pub(super) fn in_top(&self, key: JobPriority) -> bool {
        self.top().is_none_or(|top| key <= top)
    }

    /// Requests without a token, the most urgent first.
    pub(super) fn waiting_by_key(&self) -> Vec<TaskId> {
        let waiting = self.requests.iter().filter(|(_, request)| request.granted.is_none());
        let mut waiting: Vec<(JobPriority, TaskId)> = waiting.map(|(task, request)| (request.key, *task)).collect();
        waiting.sort_unstable();
        waiting.into_iter().map(|(_, task)| task).collect()
    }

    /// The key that a holder inherits through its FIFO: the most urgent of its own, its waiters' and their donors', and of
    /// all that wait for a reconfiguration.
    pub(super) fn inherited(&self, x: usize) -> Option<JobPriority> {
        let members = self.fifos[x].members.iter().map(|task| &self.requests[task]);
        let donors = members.clone().filter_map(|request| request.donor).map(|donor| self.requests[&donor].key);
        let stopped = self.pending.is_some().then(|| self.waiting_by_key().first().copied()).flatten();
        let stopped = stopped.map(|task| self.requests[&task].key);
        members.map(|request| request.key).chain(donors).chain(stopped).min()
    }
}
