//! Which job a server takes next.

use super::{Dispatcher, ServerQueue, StepInstance, WaitingStep};
use crate::plan::{PlannedStep, ServiceClass};
use crate::units::Nanos;

/// The place of a job in front of its server. Ordered by (deadline, class, sequence).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// Its deadline, or what counts as such; [`Nanos::MAX`] where nothing is guaranteed.
    pub(super) place: Nanos,
    pub(super) class: ServiceClass,
    pub(super) sequence: u64,
}

impl Key {
    pub(super) fn is_guaranteed(&self) -> bool {
        self.place < Nanos::MAX
    }
}

impl ServerQueue {
    /// Whether nothing that something is guaranteed to waits or runs.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight == self.in_rest && self.waiting.first_key_value().is_none_or(|(key, _)| !key.is_guaranteed())
    }
}

impl Dispatcher {
    /// The waiting job with the earliest deadline and the jobs that go with it: those of its batch, in the batch's order, or
    /// of its gang, in the order of pipelines.
    pub(super) fn most_urgent(&self, server: usize) -> Vec<Key> {
        let waiting = &self.servers[server].waiting;
        let paused = |of: &(&Key, &WaitingStep)| self.load_shedding.is_paused(of.1.job.pipeline);
        // Bulk that is paused does not go at all, and none after the last window; who else is paused goes behind all others.
        let stays =
            |of: &(&Key, &WaitingStep)| of.0.class == ServiceClass::Bulk && (self.unfinished == 0 || paused(of));
        let mut goes = waiting.iter().filter(|of| !stays(of));
        let most_urgent = goes.clone().find(|of| !paused(of)).or_else(|| goes.next());
        let Some((&first, WaitingStep { job, .. })) = most_urgent else { return Vec::new() };
        let same_time = waiting.range(Key { sequence: 0, ..first }..=Key { sequence: u64::MAX, ..first });
        let batch = |job: &StepInstance| self.plan.pipelines[job.pipeline as usize].steps[job.step as usize].batch;
        if let Some(of_batch) = batch(job) {
            let mates = same_time.filter_map(|(&key, mate)| batch(&mate.job).map(|place| (place, key)));
            let mates = mates.filter(|(place, _)| place.number == of_batch.number);
            let mut keys: Vec<(u32, Key)> = mates.map(|(place, key)| (place.order, key)).collect();
            keys.sort_unstable();
            return keys.into_iter().map(|(_, key)| key).collect();
        }
        let gang = |job: &StepInstance| self.plan.pipelines[job.pipeline as usize].gang;
        if gang(job).is_none() {
            return vec![first];
        }
        let with = same_time.filter(|(_, other)| (gang(&other.job), other.job.step) == (gang(job), job.step));
        let mut keys: Vec<(u32, Key)> = with.map(|(&key, other)| (other.job.pipeline, key)).collect();
        keys.sort_unstable();
        keys.into_iter().map(|(_, key)| key).collect()
    }

    pub(super) fn planned_step(&self, server: usize, key: &Key) -> &PlannedStep {
        let job = self.servers[server].waiting[key].job;
        &self.plan.pipelines[job.pipeline as usize].steps[job.step as usize]
    }
}
