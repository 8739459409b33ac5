//! Requests that wait for their user's turn; when it comes, they go to the arbiter.

use std::collections::BTreeMap;

use super::messages::{Action, RefusalReason};
use super::turns::Asker;
use super::{Book, BookTask, OpenRequest};
use crate::decisions::engine_lock::LockOrder;
use crate::decisions::sharing::{ArbiterInput, ClusterId, JobId};
use crate::units::Nanos;

impl Book {
    /// A job has made a request. It goes to the arbiter at once, or when its user's turn comes.
    pub(super) fn queue(&mut self, now: Nanos, job: JobId) {
        let Some(task) = self.tasks.get(&job.task) else { return };
        let (cluster, account) = (task.cluster, self.account_of(task.client));
        self.turns.see(now, cluster, account);
        self.take_turns(now, cluster);
    }

    /// Gives free tokens to the jobs whose turn it is, in all clusters.
    pub(super) fn take_all_turns(&mut self, now: Nanos) {
        for cluster in 0..self.parameters.arbiter.clusters.len() {
            self.take_turns(now, self.parameters.arbiter.clusters[cluster].id);
        }
    }

    /// Gives free tokens to the jobs whose turn it is.
    pub(super) fn take_turns(&mut self, now: Nanos, cluster: ClusterId) {
        let open: Vec<u32> = if self.turns.has_several(cluster) {
            self.open_in(cluster).map(|(task, _)| self.account_of(task.client)).collect()
        } else {
            Vec::new()
        };
        let before = self.turns.are_taken(cluster);
        let several = self.turns.look(now, cluster, open.into_iter());
        if several && !before {
            self.recall(now, cluster);
        }
        while let Some(job) = self.next_in(now, cluster, several) {
            self.enter(now, job);
        }
    }

    /// Open requests in a cluster, with their tasks.
    fn open_in(&self, cluster: ClusterId) -> impl Iterator<Item = (&BookTask, &OpenRequest)> {
        let tasks = self.tasks.values().filter(move |task| task.cluster == cluster);
        tasks.filter_map(|task| Some((task, task.open.as_ref()?)))
    }

    /// The next job that goes to the arbiter.
    fn next_in(&mut self, now: Nanos, cluster: ClusterId, several: bool) -> Option<JobId> {
        if !several {
            let waiting = self.open_in(cluster).filter(|(_, open)| !open.entered);
            return waiting.map(|(_, open)| open.key).min().map(|key| key.job);
        }
        let entered = self.open_in(cluster).filter(|(_, open)| open.entered).count();
        let sizes = self.arbiter.tokens(cluster)?.sizes();
        let room = sizes.queued_max.unwrap_or(u32::MAX).min(sizes.tokens).max(1);
        if entered >= room as usize {
            return None;
        }
        let mut asking: BTreeMap<u32, Asker> = BTreeMap::new();
        for (task, open) in self.open_in(cluster).filter(|(_, open)| !open.entered) {
            let uid = self.account_of(task.client);
            let asker = asking.entry(uid).or_insert(Asker { uid, since: open.since, holding: Nanos::ZERO });
            asker.since = asker.since.min(open.since);
        }
        for (task, open) in self.open_in(cluster).filter(|(_, open)| open.granted.is_some()) {
            if let Some(asker) = asking.get_mut(&self.account_of(task.client)) {
                asker.holding = asker.holding.saturating_add(now.saturating_sub(open.since));
            }
        }
        let asking: Vec<Asker> = asking.into_values().collect();
        let uid = self.turns.next(now, cluster, &asking)?;
        let theirs = self.open_in(cluster).filter(|(task, open)| !open.entered && self.account_of(task.client) == uid);
        theirs.map(|(_, open)| open.key).min().map(|key| key.job)
    }

    /// Another user competes: requests that wait with the arbiter go back and wait for their turn.
    fn recall(&mut self, now: Nanos, cluster: ClusterId) {
        let waiting = self.open_in(cluster).filter(|(_, open)| open.entered && open.granted.is_none());
        let mut waiting: Vec<_> = waiting.map(|(_, open)| open.key).collect();
        // The least urgent first, so that no request takes the place of another one that also goes back.
        waiting.sort_unstable_by(|one, other| other.cmp(one));
        for key in waiting {
            // The request was granted meanwhile, or its grant waits until it can be written: then it stays.
            if !self.holds(key.job)
                && self.feed(now, &ArbiterInput::Abort { job: key.job }).is_ok()
                && let Some(open) = self.open_mut(key.job)
            {
                open.entered = false;
            }
        }
    }

    /// Puts a job's request before the arbiter.
    fn enter(&mut self, now: Nanos, job: JobId) {
        let Some(open) = self.open_mut(job) else { return };
        open.entered = true;
        let (mut key, acquisition, slot) = (open.key, open.acquisition, open.slot);
        let Some(task) = self.tasks.get(&job.task) else { return };
        let client = task.client;
        let is_by_urgency = self.parameters.arbiter.engines.is_some_and(|engines| engines.order == LockOrder::Urgency);
        if is_by_urgency && self.turns.are_taken(task.cluster) {
            // The jobs of another user may all be more urgent, but only up to this time.
            key.deadline = key.deadline.min(now.saturating_add(self.turns.half_life));
        }
        if let Err(refused) = self.feed(now, &ArbiterInput::Request { key, acquisition }) {
            self.counts.refused += 1;
            self.actions.push_back(Action::Refuse { client, slot, reason: RefusalReason::from(&refused) });
            if let Some(task) = self.tasks.get_mut(&job.task) {
                task.open = None;
            }
        }
    }

    /// When a user's turn may have come.
    pub(super) fn turns_due(&self) -> Option<Nanos> {
        let waits = |task: &BookTask| task.open.as_ref().is_some_and(|open| !open.entered);
        self.turns.wake_time().filter(|_| self.tasks.values().any(waits))
    }

    /// A job's token is free again: its use counts for the job's user.
    pub(super) fn charge_user(&mut self, now: Nanos, job: JobId) {
        let Some(task) = self.tasks.get(&job.task) else { return };
        let Some(open) = task.open.as_ref().filter(|open| open.key.job == job && open.granted.is_some()) else {
            return;
        };
        let (cluster, account) = (task.cluster, self.account_of(task.client));
        self.turns.charge(now, cluster, account, now.saturating_sub(open.since));
    }
}
