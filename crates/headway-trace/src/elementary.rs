//! The jobs of what has no stream: blocks of messages, and flows.
//!
//! A job of a message is one block of one period, whatever it is carried by (specification of flows, 2.3): alone, together
//! with others, or in parts that go with several slots of a batch. A slot that had nothing to carry is no job.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use headway_core::decisions::dispatch::Event;
use headway_core::log::{Record, What};
use headway_core::plan::{Carried, Source};
use headway_core::units::{Bytes, Nanos};

use crate::timeline::{Job, Operation, Timeline};
use crate::{Log, due};

/// What became of the jobs of one pipeline, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Jobs {
    /// Jobs for which the run has all cycles.
    pub(crate) expected: u64,
    /// Of these, complete.
    pub(crate) delivered: u64,
    /// Of these, complete after their deadlines, or given up because their producers were late.
    pub(crate) misses: u64,
    /// Of these, due, and neither complete nor given up by their producers.
    pub(crate) lost: u64,
    /// Of these, given up by their producers.
    pub(crate) given_up: u64,
    /// Bytes that arrived.
    pub(crate) bytes: Bytes,
}

impl Jobs {
    /// Jobs whose deadlines are judged: what was delivered, and what was due.
    pub(crate) fn judged(&self) -> u64 {
        self.delivered.saturating_add(self.lost).saturating_add(self.given_up)
    }

    /// The same with those of `other`.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            expected: self.expected.saturating_add(other.expected),
            delivered: self.delivered.saturating_add(other.delivered),
            misses: self.misses.saturating_add(other.misses),
            lost: self.lost.saturating_add(other.lost),
            given_up: self.given_up.saturating_add(other.given_up),
            bytes: Bytes(self.bytes.0.saturating_add(other.bytes.0)),
        }
    }
}

/// The jobs of all messages, and of all flows.
pub(crate) fn jobs(log: &Log, timeline: &Timeline) -> (Jobs, Jobs) {
    let (mut messages, mut flows) = (Jobs::default(), Jobs::default());
    for (index, pipeline) in (0u32..).zip(&log.header().plan.pipelines) {
        match &pipeline.source {
            Source::Batch(parts) => messages = messages.and(in_slots(log, timeline, index, parts)),
            Source::Message => {
                let blocks = pipeline.steps.iter().map(|step| step.operations.len()).max().unwrap_or(0);
                messages = messages.and(cycle_by_cycle(log, timeline, index, blocks as u64));
            }
            Source::Flow => flows = flows.and(cycle_by_cycle(log, timeline, index, 1)),
            Source::Streams(_) | Source::Sharded(_) | Source::Parts(_) | Source::Bulk(_) | Source::Urgent(_) => {}
        }
    }
    (messages, flows)
}

/// The operations of `pipeline` that ended.
fn ended(timeline: &Timeline, pipeline: u32) -> impl Iterator<Item = &Operation> {
    let of = move |operation: &&Operation| timeline.jobs[operation.job].pipeline == pipeline;
    timeline.operations.iter().filter(of).filter(|operation| operation.ended.is_some())
}

/// A pipeline whose every cycle is `jobs` jobs, which end together.
fn cycle_by_cycle(log: &Log, timeline: &Timeline, index: u32, jobs: u64) -> Jobs {
    let pipeline = &log.header().plan.pipelines[index as usize];
    let last = pipeline.steps.len() - 1;
    let cycles = log.header().cycles[index as usize];
    let due = due::count(log, timeline, cycles, pipeline.deadline(0, last), pipeline.period);
    let until = due::until(log, timeline);
    let deliveries = || timeline.deliveries.iter().filter(|delivery| delivery.pipeline == index);
    let deadline = |cycle| timeline.epoch.saturating_add(pipeline.deadline(cycle, last));
    let early = deliveries().filter(|of| deadline(of.cycle) > until).count() as u64;
    let delivered = deliveries().count() as u64;
    let is_late = |job: &&Job| job.pipeline == index && job.step as usize == last && job.late.is_some();
    let late = timeline.jobs.iter().filter(is_late).count() as u64;
    let bytes = ended(timeline, index).fold(0, |sum: u64, operation| sum.saturating_add(operation.bytes.0));
    Jobs {
        expected: cycles.saturating_mul(jobs),
        delivered: delivered.saturating_mul(jobs),
        misses: late.saturating_mul(jobs),
        lost: due.saturating_sub(delivered - early).saturating_mul(jobs),
        given_up: 0,
        bytes: Bytes(bytes),
    }
}

/// A batch, whose slots carry parts of the jobs of its messages.
fn in_slots(log: &Log, timeline: &Timeline, index: u32, parts: &[Carried]) -> Jobs {
    let cycles = log.header().cycles[index as usize];
    let expected: Vec<u64> = parts.iter().map(|part| part.jobs_within(cycles)).collect();
    let delivered: HashMap<u64, Nanos> =
        timeline.deliveries.iter().filter(|of| of.pipeline == index).map(|of| (of.cycle, of.at)).collect();
    let mut moved: BTreeMap<(u32, u64), (u64, Nanos)> = BTreeMap::new();
    let mut jobs = Jobs { expected: expected.iter().fold(0, |sum, of| sum.saturating_add(*of)), ..Jobs::default() };
    for operation in ended(timeline, index) {
        jobs.bytes = Bytes(jobs.bytes.0.saturating_add(operation.bytes.0));
        let cycle = timeline.jobs[operation.job].cycle;
        let part = parts.get(operation.index as usize);
        let (Some(at), Some(job)) = (delivered.get(&cycle), part.and_then(|part| part.job_of(cycle))) else { continue };
        let entry = moved.entry((operation.index, job)).or_default();
        *entry = (entry.0.saturating_add(operation.bytes.0), entry.1.max(*at));
    }
    let deadline = |part: u32, job: u64| u128::from(timeline.epoch.0) + parts[part as usize].message.window(job).1;
    let until = u128::from(due::until(log, timeline).0);
    // Complete, or given up, of what was due.
    let mut settled = 0;
    for ((part, job), (bytes, at)) in moved {
        if job >= expected[part as usize] || bytes < parts[part as usize].message.bytes.0 {
            continue;
        }
        jobs.delivered += 1;
        jobs.misses += u64::from(u128::from(at.0) > deadline(part, job));
        settled += u64::from(deadline(part, job) <= until);
    }
    let given_up = |record: &Record| match record.what {
        What::Event(Event::Unready { pipeline, part, job, .. }) if pipeline == index => Some((part, job)),
        _ => None,
    };
    for (part, job) in log.records().iter().filter_map(given_up).collect::<BTreeSet<_>>() {
        jobs.given_up += 1;
        settled += u64::from((part as usize) < parts.len() && deadline(part, job) <= until);
    }
    jobs.misses = jobs.misses.saturating_add(jobs.given_up);
    let due = expected.iter().zip(parts).map(|(expected, part)| {
        let first = part.message.start.saturating_add(part.message.deadline);
        due::count(log, timeline, *expected, first, part.message.period)
    });
    jobs.lost = due.fold(0, u64::saturating_add).saturating_sub(settled);
    jobs
}
