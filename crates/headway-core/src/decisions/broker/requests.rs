//! What clients ask for through their pages: tokens, and that they give them back.

use super::limits::{REQUEST_BYTES, USED_BYTES};
use super::messages::{Action, RefusalReason, Slot};
use super::{Book, EnginePhase, OpenRequest};
use crate::decisions::sharing::{ArbiterInput, ClientId, GpuId, JobId, JobPriority, TokenOutcome};
use crate::units::Nanos;

impl Book {
    pub(super) fn open_mut(&mut self, job: JobId) -> Option<&mut OpenRequest> {
        self.tasks.get_mut(&job.task)?.open.as_mut().filter(|open| open.key.job == job)
    }

    /// The open request, if the task is the client's and that is served: what a client that is gone has left to be read no longer counts.
    pub(super) fn own_open(&mut self, client: ClientId, job: JobId) -> Option<&mut OpenRequest> {
        self.tasks.get(&job.task).filter(|task| task.client == client && self.is_served(client))?;
        self.open_mut(job)
    }

    /// Refuses a request, which changes nothing.
    pub(super) fn refuse(&mut self, client: ClientId, slot: Slot, reason: RefusalReason) -> bool {
        self.counts.refused += 1;
        self.actions.push_back(Action::Refuse { client, slot, reason });
        false
    }

    pub(super) fn request(
        &mut self,
        now: Nanos,
        client: ClientId,
        slot: Slot,
        job: JobId,
        release: Nanos,
        acquisition: u32,
    ) -> bool {
        let is_served = self.is_served(client);
        let Some(task) = self.tasks.get(&job.task).filter(|task| task.client == client && is_served) else {
            return self.refuse(client, slot, RefusalReason::NotYours);
        };
        if task.open.is_some() {
            return self.refuse(client, slot, RefusalReason::Busy);
        }
        let times = self.key_times(now, task, release, acquisition);
        if !self.may_ask(client) || !self.may_write(now, self.account_of(client), REQUEST_BYTES) {
            return self.refuse(client, slot, RefusalReason::Limit);
        }
        let Some(task) = self.tasks.get_mut(&job.task) else { return false };
        self.counts.clamped += u64::from(times.counted != release);
        task.last_release = Some(times.separated);
        let key = JobPriority { deadline: times.deadline, release: times.counted, job };
        task.open = Some(OpenRequest { acquisition, ..OpenRequest::new(key, slot, now) });
        self.queue(now, job);
        true
    }

    pub(super) fn release(&mut self, now: Nanos, client: ClientId, job: JobId, outcome: TokenOutcome) -> bool {
        let Some(open) = self.own_open(client, job).filter(|open| open.granted.is_some()) else { return false };
        // A job cannot wait and go at once: the watchdog sees to it.
        if open.engines.as_ref().is_some_and(|engines| engines.phase != EnginePhase::Runs) {
            return false;
        }
        // It has given up what it did not give back: the word says otherwise only if it lies.
        if let Some(engines) = open.engines.take() {
            self.take_back(job.task, engines.locks);
            let _ = self.feed(now, &ArbiterInput::Complete { job });
        }
        self.charge(now, job);
        if self.feed(now, &ArbiterInput::Release { job, outcome }).is_ok() {
            self.close(now, job);
        }
        true
    }

    pub(super) fn abort(&mut self, now: Nanos, client: ClientId, job: JobId) -> bool {
        let Some(open) = self.own_open(client, job) else { return false };
        if open.granted.is_some() {
            return self.release(now, client, job, TokenOutcome::Aborted);
        }
        if !open.entered || self.feed(now, &ArbiterInput::Abort { job }).is_ok() {
            self.close(now, job);
        }
        true
    }

    fn close(&mut self, now: Nanos, job: JobId) {
        self.prioritise(job.task, None);
        let Some(task) = self.tasks.get_mut(&job.task) else { return };
        task.open = None;
        let cluster = task.cluster;
        self.take_turns(now, cluster);
    }

    /// What a job was granted, or waits for, is void since its GPU is lost.
    pub(super) fn revoke(&mut self, job: JobId, gpu: GpuId) {
        let Some(task) = self.tasks.get_mut(&job.task) else { return };
        let client = task.client;
        let Some(open) = task.open.take_if(|open| open.key.job == job) else { return };
        if let Some(engines) = open.engines {
            match engines.slot {
                _ if engines.phase == EnginePhase::Runs => self.take_back(job.task, engines.locks),
                Some(slot) => self.actions.push_back(Action::Revoke { client, slot, job, gpu }),
                None => {}
            }
        }
        self.prioritise(job.task, None);
        self.actions.push_back(Action::Revoke { client, slot: open.slot, job, gpu });
    }

    /// A client says that it has used an engine that was leased to it; whether its user may have that written down.
    pub(super) fn used(&mut self, now: Nanos, client: ClientId, job: JobId, end: Nanos) -> bool {
        let is_theirs = self.tasks.get(&job.task).is_some_and(|task| task.client == client) && self.is_served(client);
        // What it wrote was there at `now`.
        is_theirs && end <= now && self.may_write(now, self.account_of(client), USED_BYTES)
    }
}
