//! The jobs of what has no stream: blocks of messages, and demands.
//!
//! A job of a message is one block of one period, whatever it is carried by (specification of flows, 2.3): alone, together
//! with others, or in parts that go with several slots of a batch. A slot that had nothing to carry is no job.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use headway_core::decisions::dispatch::DispatchEvent;
use headway_core::log::{LogRecord, RecordBody};
use headway_core::plan::{Carried, Pipeline, PipelineSource};
use headway_core::units::{Bytes, Nanos};
use serde::Serialize;

use crate::response::{Response, order_statistics};
use crate::timeline::{StepJob, SubmittedOperation, Timeline};
use crate::{RunLog, due};

/// What the jobs of one message, of one block of a combined message, or of one demand experienced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobsSummary {
    /// Name of the message, of its block, or of the demand.
    pub id: String,
    /// Name of the pipeline that serves it.
    pub pipeline: String,
    /// Jobs expected: one for each block and period.
    pub jobs: u64,
    /// Of these, complete.
    pub delivered: u64,
    /// Of these, never complete; of a run that ended early, those that were due by then.
    pub lost: u64,
    /// Of these, complete after their deadlines, or given up because their producers were late.
    pub misses: u64,
    /// Bytes that arrived; none of a demand.
    pub bytes: Bytes,
    /// Relative deadline.
    pub deadline: Nanos,
    /// From release to completion; `None` if no job completed.
    pub response: Option<Response>,
    /// The longest response that the plan allows for the jobs of this run. `None` if the plan does not prove that they end in
    /// time, or did not compute it.
    pub bound: Option<Nanos>,
    /// Deadline minus longest response in nanoseconds; negative = missed by that much.
    pub worst_slack_ns: Option<i64>,
}

/// The jobs of all messages, and of all demands, in the plan's order.
#[derive(Default)]
pub(crate) struct Elementary {
    pub(crate) messages: Vec<Row>,
    pub(crate) demands: Vec<Row>,
}

/// The jobs of one message, block or demand.
pub(crate) struct Row {
    jobs: Jobs,
    summary: JobsSummary,
}

/// The sum over `rows`.
pub(crate) fn sum(rows: &[Row]) -> Jobs {
    rows.iter().fold(Jobs::default(), |sum, row| sum.and(row.jobs))
}

/// What each of `rows` experienced.
pub(crate) fn summaries(rows: Vec<Row>) -> Vec<JobsSummary> {
    rows.into_iter().map(|row| row.summary).collect()
}

impl Row {
    /// A row from its jobs and their responses.
    fn new(
        (id, pipeline): (&str, &Pipeline),
        jobs: Jobs,
        deadline: Nanos,
        mut responses: Vec<Nanos>,
        bound: Option<Nanos>,
    ) -> Self {
        responses.sort_unstable();
        let response = order_statistics(&responses);
        let slack = |response: Response| deadline.0.cast_signed() - response.max.0.cast_signed();
        let summary = JobsSummary {
            id: id.to_owned(),
            pipeline: pipeline.name.clone(),
            jobs: jobs.expected,
            delivered: jobs.delivered,
            lost: jobs.lost,
            misses: jobs.misses,
            bytes: jobs.bytes,
            deadline,
            response,
            bound,
            worst_slack_ns: response.map(slack),
        };
        Self { jobs, summary }
    }
}

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

    /// These jobs and those of `other`.
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

/// The jobs of each message and of each demand.
pub(crate) fn jobs(log: &RunLog, timeline: &Timeline) -> Elementary {
    let mut all = Elementary::default();
    for (index, pipeline) in (0u32..).zip(&log.header().plan.pipelines) {
        match &pipeline.source {
            PipelineSource::Batch(parts) => all.messages.extend(in_slots(log, timeline, index, parts)),
            PipelineSource::Message => {
                let blocks = pipeline.steps.iter().map(|step| step.operations.len()).max().unwrap_or(0);
                all.messages.push(cycle_by_cycle(log, timeline, index, blocks));
            }
            PipelineSource::Demand => all.demands.push(cycle_by_cycle(log, timeline, index, 1)),
            PipelineSource::Streams(_)
            | PipelineSource::Sharded(_)
            | PipelineSource::Parts(_)
            | PipelineSource::Packets(_)
            | PipelineSource::Bulk(_)
            | PipelineSource::Urgent(_) => {}
        }
    }
    all
}

/// The operations of `pipeline` that ended.
fn ended(timeline: &Timeline, pipeline: u32) -> impl Iterator<Item = &SubmittedOperation> {
    let of = move |operation: &&SubmittedOperation| timeline.jobs[operation.job].pipeline == pipeline;
    timeline.operations.iter().filter(of).filter(|operation| operation.ended.is_some())
}

/// A pipeline whose every cycle is `blocks` jobs, which end together.
fn cycle_by_cycle(log: &RunLog, timeline: &Timeline, index: u32, blocks: usize) -> Row {
    let plan = &log.header().plan;
    let pipeline = &plan.pipelines[index as usize];
    let (jobs, last) = (blocks as u64, pipeline.steps.len() - 1);
    let cycles = log.header().cycles[index as usize];
    let due = due::count(log, timeline, cycles, pipeline.deadline(0, last), pipeline.period);
    let until = due::until(log, timeline);
    let deliveries = || timeline.deliveries.iter().filter(|delivery| delivery.pipeline == index);
    let deadline = |cycle| timeline.epoch.saturating_add(pipeline.deadline(cycle, last));
    let early = deliveries().filter(|of| deadline(of.cycle) > until).count() as u64;
    let delivered = deliveries().count() as u64;
    let is_late = |job: &&StepJob| job.pipeline == index && job.step as usize == last && job.late.is_some();
    let late = timeline.jobs.iter().filter(is_late).count() as u64;
    // A demand moves nothing: its operations only hold a server.
    let moved = ended(timeline, index).filter(|_| pipeline.source != PipelineSource::Demand);
    let bytes = moved.fold(0, |sum: u64, operation| sum.saturating_add(operation.bytes.0));
    let opens = |cycle| timeline.epoch.saturating_add(pipeline.release(cycle, 0));
    let release = |cycle| opens(cycle).saturating_sub(pipeline.opens_after());
    let responses = deliveries().flat_map(|of| std::iter::repeat_n(of.at.saturating_sub(release(of.cycle)), blocks));
    let found = Jobs {
        expected: cycles.saturating_mul(jobs),
        delivered: delivered.saturating_mul(jobs),
        misses: late.saturating_mul(jobs),
        lost: due.saturating_sub(delivered - early).saturating_mul(jobs),
        given_up: 0,
        bytes: Bytes(bytes),
    };
    let deadline = pipeline.relative_deadline();
    Row::new((&pipeline.name, pipeline), found, deadline, responses.collect(), pipeline.bound())
}

/// What one job of a part of a batch has moved so far.
#[derive(Clone, Copy, Default)]
struct MovedSoFar {
    bytes: u64,
    /// When the last part of it arrived.
    at: Nanos,
    /// When that part arrives at the latest, after the epoch, if the plan bounds it.
    ends_by: Nanos,
}

/// A batch, whose slots carry parts of the jobs of its messages: a row for each part.
fn in_slots(log: &RunLog, timeline: &Timeline, index: u32, parts: &[Carried]) -> Vec<Row> {
    let pipeline = &log.header().plan.pipelines[index as usize];
    let cycles = log.header().cycles[index as usize];
    let delivered: HashMap<u64, Nanos> =
        timeline.deliveries.iter().filter(|of| of.pipeline == index).map(|of| (of.cycle, of.at)).collect();
    let mut moved: Vec<BTreeMap<u64, MovedSoFar>> = vec![BTreeMap::new(); parts.len()];
    let mut bytes = vec![0u64; parts.len()];
    for operation in ended(timeline, index) {
        let Some(part) = parts.get(operation.index as usize) else { continue };
        let at = operation.index as usize;
        bytes[at] = bytes[at].saturating_add(operation.bytes.0);
        let cycle = timeline.jobs[operation.job].cycle;
        let (Some(arrived), Some(job)) = (delivered.get(&cycle), part.job_of(cycle)) else { continue };
        let entry = moved[at].entry(job).or_default();
        entry.bytes = entry.bytes.saturating_add(operation.bytes.0);
        entry.at = entry.at.max(*arrived);
        let last = pipeline.steps.len() - 1;
        entry.ends_by = entry
            .ends_by
            .max(pipeline.release(cycle, last).saturating_add(pipeline.steps[last].bound.unwrap_or_default()));
    }
    let given_up = |record: &LogRecord| match record.what {
        RecordBody::Event(DispatchEvent::Unready { pipeline, part, job, .. }) if pipeline == index => Some((part, job)),
        _ => None,
    };
    let given_up: BTreeSet<(u32, u64)> = log.records().iter().filter_map(given_up).collect();
    let part = |(at, moved): (usize, BTreeMap<u64, MovedSoFar>)| {
        let number = at as u32;
        let given_up = given_up.range((number, 0)..=(number, u64::MAX)).map(|(_, job)| *job).collect();
        let of = CarriedBlock { index, number, carried: &parts[at], expected: parts[at].jobs_within(cycles) };
        of.row(log, timeline, &moved, given_up, Bytes(bytes[at]))
    };
    moved.into_iter().enumerate().map(part).collect()
}

/// A part of a batch: one block of one message.
struct CarriedBlock<'p> {
    /// Position of the batch's pipeline.
    index: u32,
    /// Position in the batch.
    number: u32,
    carried: &'p Carried,
    /// Jobs for which the run has all cycles.
    expected: u64,
}

impl CarriedBlock<'_> {
    fn row(
        &self,
        log: &RunLog,
        timeline: &Timeline,
        moved: &BTreeMap<u64, MovedSoFar>,
        given_up: Vec<u64>,
        bytes: Bytes,
    ) -> Row {
        let plan = &log.header().plan;
        let pipeline = &plan.pipelines[self.index as usize];
        let message = &self.carried.message;
        let announced = plan.announced.iter().any(|of| (of.pipeline, of.part) == (self.index, self.number));
        // The plan counts a late producer's message from its latest time; its jobs are released that much earlier.
        let late = message.period.saturating_sub(message.deadline);
        let epoch = u128::from(timeline.epoch.0);
        let release = |job: u64| (epoch + message.window(job).0).saturating_sub(u128::from(late.0));
        let deadline = |job: u64| epoch + message.window(job).1;
        let until = u128::from(due::until(log, timeline).0);
        let since = |job: u64, at: u128| Nanos(u64::try_from(at.saturating_sub(release(job))).unwrap_or(u64::MAX));
        let mut jobs = Jobs { expected: self.expected, bytes, ..Jobs::default() };
        // Complete, or given up, of what was due.
        let mut settled = 0;
        let mut responses = Vec::new();
        let relative = message.deadline.saturating_add(late);
        // Blocks of a late producer may go with any later slot of their windows.
        let bound = pipeline.steps.last().and_then(|step| step.bound);
        let spare = pipeline.window.saturating_sub(bound.unwrap_or_default());
        let mut latest = if announced { relative.saturating_sub(spare) } else { Nanos::ZERO };
        for (&job, of) in moved.iter().filter(|(job, of)| **job < self.expected && of.bytes >= message.bytes.0) {
            jobs.delivered += 1;
            jobs.misses += u64::from(u128::from(of.at.0) > deadline(job));
            settled += u64::from(deadline(job) <= until);
            responses.push(since(job, u128::from(of.at.0)));
            latest = latest.max(since(job, epoch + u128::from(of.ends_by.0)));
        }
        for job in given_up {
            jobs.given_up += 1;
            settled += u64::from(deadline(job) <= until);
        }
        jobs.misses = jobs.misses.saturating_add(jobs.given_up);
        let first = message.start.saturating_add(message.deadline);
        jobs.lost = due::count(log, timeline, self.expected, first, message.period).saturating_sub(settled);
        let bound = bound.filter(|_| latest > Nanos::ZERO).map(|_| latest);
        Row::new((&message.name, pipeline), jobs, relative, responses, bound)
    }
}
