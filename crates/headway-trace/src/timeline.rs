//! The log's records put together: jobs with their operations and waits, deliveries, packets.

use std::collections::HashMap;

use headway_core::decisions::dispatch::{DispatchAction, DispatchEvent, DispatchInput, UrgentAnswer};
use headway_core::log::{LogRecord, RecordBody};
use headway_core::plan::{PlannedOperation, PlannedStep};
use headway_core::units::{Bytes, Nanos};

use crate::RunLog;

/// Everything that has a length of time in a run. Positions in its vectors are used as references.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Time zero of the plan; the first record's time in a log without a start.
    pub epoch: Nanos,
    /// Time of the last record.
    pub end: Nanos,
    /// Operations in the order of their submission.
    pub operations: Vec<SubmittedOperation>,
    /// Jobs in the order in which the log first names them.
    pub jobs: Vec<StepJob>,
    /// Delivered cycles in order.
    pub deliveries: Vec<Delivery>,
}

/// A submitted operation, or a chunk of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubmittedOperation {
    /// Position of its job.
    pub job: usize,
    /// Which of the step's operations.
    pub index: u32,
    /// First byte of the chunk.
    pub offset: Bytes,
    /// Size of the chunk.
    pub bytes: Bytes,
    /// When it was submitted.
    pub submitted: Nanos,
    /// When its engine began and was done, and when that was noticed; `None` = it never ended.
    pub ended: Option<Ended>,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// When its engine began with it.
    pub started: Nanos,
    /// When its engine was done.
    pub finished: Nanos,
    /// When the dispatcher learnt of it.
    pub noticed: Nanos,
}

/// One step of one cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepJob {
    pub pipeline: u32,
    pub cycle: u64,
    pub step: u32,
    /// When it joined the queue of its server.
    pub ready: Option<Nanos>,
    /// When its window closes.
    pub deadline: Option<Nanos>,
    /// When its first operation was submitted.
    pub submitted: Option<Nanos>,
    /// When it was complete.
    pub completed: Option<Nanos>,
    /// Time on its engines, counted as the dispatcher counts it: per chunk, from the first start to the last finish.
    pub took: Nanos,
    /// What its chunks moved together.
    pub bytes: Bytes,
    /// Whether it took longer than planned.
    pub overrun: bool,
    /// By how much it ended after its window.
    pub late: Option<Nanos>,
    /// Whom it waited for before its first submission, in order of time.
    pub waits: Vec<WaitPart>,
}

/// A part of a job's wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitPart {
    /// Position of the job that occupied the server; `None` = nobody did: the driver was slow.
    pub cause: Option<usize>,
    /// For how long.
    pub time: Nanos,
}

/// A delivered cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    pub pipeline: u32,
    pub cycle: u64,
    pub at: Nanos,
}

/// A packet with the cycle that carried it and its three instants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveredPacket {
    /// Position of its stream.
    pub stream: u32,
    pub packet: u64,
    /// The cycle that carried it.
    pub cycle: u64,
    /// Its size: the stream's last one may be shorter.
    pub bytes: Bytes,
    /// When it arrived.
    pub arrival: Nanos,
    /// When it was delivered.
    pub delivered: Nanos,
    /// When it had to be delivered.
    pub deadline: Nanos,
}

impl DeliveredPacket {
    /// Time from arrival to delivery.
    #[must_use]
    pub fn response(&self) -> Nanos {
        self.delivered.saturating_sub(self.arrival)
    }

    /// Whether it was delivered after its deadline; a delivery at the deadline is in time.
    #[must_use]
    pub fn missed(&self) -> bool {
        self.delivered > self.deadline
    }
}

impl StepJob {
    /// Time from joining the queue to the first submission.
    #[must_use]
    pub fn wait(&self) -> Nanos {
        match (self.ready, self.submitted) {
            (Some(ready), Some(submitted)) => submitted.saturating_sub(ready),
            _ => Nanos::ZERO,
        }
    }

    /// The largest part of its wait; of equal ones the first.
    #[must_use]
    pub fn longest_wait(&self) -> Option<WaitPart> {
        self.waits.iter().copied().reduce(|best, wait| if wait.time > best.time { wait } else { best })
    }
}

/// State while the records are read.
#[derive(Default)]
struct Builder {
    timeline: Timeline,
    jobs: HashMap<(u32, u64, u32), usize>,
    numbers: HashMap<u64, usize>,
}

impl Timeline {
    /// Puts together the records of `log`.
    #[must_use]
    pub fn new(log: &RunLog) -> Self {
        let mut builder = Builder::default();
        let first = log.records().first().map_or(Nanos::ZERO, |record| record.at);
        builder.timeline.epoch = first;
        builder.timeline.end = first;
        for record in log.records() {
            builder.timeline.end = builder.timeline.end.max(record.at);
            builder.record(record);
        }
        let mut timeline = builder.timeline;
        timeline.sum_up_chunks(log);
        timeline.attribute_waits(log);
        timeline
    }

    /// The step of a job.
    #[must_use]
    pub fn step<'a>(&self, log: &'a RunLog, job: usize) -> &'a PlannedStep {
        let StepJob { pipeline, step, .. } = self.jobs[job];
        &log.header().plan.pipelines[pipeline as usize].steps[step as usize]
    }

    /// What an operation does.
    #[must_use]
    pub fn planned<'a>(&self, log: &'a RunLog, operation: &SubmittedOperation) -> &'a PlannedOperation {
        &self.step(log, operation.job).operations[operation.index as usize]
    }

    /// From the epoch to the last record.
    #[must_use]
    pub fn span(&self) -> Nanos {
        self.end.saturating_sub(self.epoch)
    }

    /// Every delivered packet, in the order of delivery, then of the pipeline's streams.
    pub fn packets<'a>(&'a self, log: &'a RunLog) -> impl Iterator<Item = DeliveredPacket> + 'a {
        let header = log.header();
        let plan = &header.plan;
        let of_delivery = move |delivery: &'a Delivery| {
            let pipeline = &plan.pipelines[delivery.pipeline as usize];
            pipeline.source.streams().iter().flat_map(move |&stream| {
                let planned = &plan.streams[stream as usize];
                let run = header.streams[stream as usize];
                let carried = planned.packets_in(pipeline, delivery.cycle);
                (carried.start..carried.end.min(run.packets)).map(move |packet| {
                    let arrival = self.epoch + planned.arrival(packet);
                    let before = planned.packet.0.saturating_mul(packet);
                    DeliveredPacket {
                        stream,
                        packet,
                        cycle: delivery.cycle,
                        bytes: Bytes(run.bytes.0.saturating_sub(before).min(planned.packet.0)),
                        arrival,
                        delivered: delivery.at,
                        deadline: arrival + planned.deadline,
                    }
                })
            })
        };
        self.deliveries.iter().flat_map(of_delivery)
    }

    /// Adds the time and bytes of every chunk to its job. A batch is one chunk with several operations.
    fn sum_up_chunks(&mut self, log: &RunLog) {
        let mut at = 0;
        while at < self.operations.len() {
            let job = self.operations[at].job;
            let count = self.step(log, job).operations.len().max(1);
            let chunk = &self.operations[at..self.operations.len().min(at + count)];
            let chunk: Vec<SubmittedOperation> =
                chunk.iter().copied().take_while(|operation| operation.job == job).collect();
            let ended = || chunk.iter().filter_map(|operation| operation.ended);
            let from = ended().map(|ended| ended.started).min().unwrap_or_default();
            let to = ended().map(|ended| ended.finished).max().unwrap_or_default();
            let entry = &mut self.jobs[job];
            entry.took = entry.took.saturating_add(to.saturating_sub(from));
            for operation in &chunk {
                entry.bytes = Bytes(entry.bytes.0.saturating_add(operation.bytes.0));
            }
            at += chunk.len();
        }
    }

    /// Splits the wait of every job among the jobs that occupied its server meanwhile.
    ///
    /// At each moment it is the oldest submission that has not ended: later ones queue behind it on the engine.
    fn attribute_waits(&mut self, log: &RunLog) {
        let mut heads: Vec<Vec<(Nanos, Nanos, usize)>> = vec![Vec::new(); log.header().plan.servers.len()];
        for operation in &self.operations {
            let server = &mut heads[self.step(log, operation.job).server as usize];
            let end = operation.ended.map_or(self.end, |ended| ended.noticed);
            let free = server.last().map_or(Nanos::ZERO, |head| head.1);
            let from = operation.submitted.max(free);
            if end > from {
                server.push((from, end, operation.job));
            }
        }
        for job in 0..self.jobs.len() {
            let (Some(ready), Some(submitted)) = (self.jobs[job].ready, self.jobs[job].submitted) else { continue };
            if submitted <= ready {
                continue;
            }
            let heads = &heads[self.step(log, job).server as usize];
            self.jobs[job].waits = waits(heads, ready, submitted);
        }
    }
}

/// The parts of `[ready, submitted)` by the heads that cover them; what none covers has no cause.
fn waits(heads: &[(Nanos, Nanos, usize)], ready: Nanos, submitted: Nanos) -> Vec<WaitPart> {
    let mut waits: Vec<WaitPart> = Vec::new();
    let mut add = |cause: Option<usize>, time: Nanos| {
        if time == Nanos::ZERO {
            return;
        }
        match waits.iter_mut().find(|wait| wait.cause == cause) {
            Some(wait) => wait.time = wait.time + time,
            None => waits.push(WaitPart { cause, time }),
        }
    };
    let mut cursor = ready;
    let first = heads.partition_point(|head| head.1 <= ready);
    for &(from, to, cause) in heads[first..].iter().take_while(|head| head.0 < submitted) {
        let from = from.max(cursor);
        let to = to.min(submitted);
        add(None, from.saturating_sub(cursor));
        add(Some(cause), to.saturating_sub(from));
        cursor = to;
    }
    add(None, submitted.saturating_sub(cursor));
    waits
}

impl Builder {
    fn record(&mut self, record: &LogRecord) {
        let at = record.at;
        match &record.what {
            RecordBody::Input(DispatchInput::Start { epoch, .. }) => self.timeline.epoch = *epoch,
            RecordBody::Input(DispatchInput::Done { operation, started, finished }) => {
                if let Some(&position) = self.numbers.get(operation) {
                    let ended = Ended { started: *started, finished: *finished, noticed: at };
                    self.timeline.operations[position].ended = Some(ended);
                }
            }
            RecordBody::Input(
                DispatchInput::Data { .. }
                | DispatchInput::Failed { .. }
                | DispatchInput::Ready { .. }
                | DispatchInput::Urgent { .. },
            ) => {}
            RecordBody::Input(DispatchInput::Timeout) => {}
            RecordBody::Action(DispatchAction::Submit { operation, pipeline, cycle, step, index, offset, bytes }) => {
                let job = self.job(*pipeline, *cycle, *step);
                self.timeline.jobs[job].submitted.get_or_insert(at);
                self.numbers.insert(*operation, self.timeline.operations.len());
                let (index, offset, bytes) = (*index, *offset, *bytes);
                let operation = SubmittedOperation { job, index, offset, bytes, submitted: at, ended: None };
                self.timeline.operations.push(operation);
            }
            RecordBody::Action(DispatchAction::Deliver { pipeline, cycle }) => {
                self.timeline.deliveries.push(Delivery { pipeline: *pipeline, cycle: *cycle, at });
            }
            RecordBody::Action(DispatchAction::Drop { .. }) => {}
            RecordBody::Event(event) => self.event(at, event),
        }
    }

    fn event(&mut self, at: Nanos, event: &DispatchEvent) {
        match *event {
            DispatchEvent::Ready { pipeline, cycle, step, deadline } => {
                let job = self.named(pipeline, cycle, step);
                (job.ready, job.deadline) = (Some(at), Some(deadline));
            }
            DispatchEvent::Answered { answer: UrgentAnswer::Refused(_), .. } => {}
            DispatchEvent::Answered { pipeline, cycle, answer, .. } => {
                let job = self.named(pipeline, cycle, 0);
                job.ready = Some(at);
                if let UrgentAnswer::Guaranteed { deadline } = answer {
                    job.deadline = Some(deadline);
                }
            }
            DispatchEvent::Complete { pipeline, cycle, step } => self.named(pipeline, cycle, step).completed = Some(at),
            DispatchEvent::Overrun { pipeline, cycle, step, .. } => self.named(pipeline, cycle, step).overrun = true,
            DispatchEvent::Late { pipeline, cycle, step, by } => self.named(pipeline, cycle, step).late = Some(by),
            DispatchEvent::Empty { .. }
            | DispatchEvent::Unready { .. }
            | DispatchEvent::DataLate { .. }
            | DispatchEvent::ReleaseLate { .. }
            | DispatchEvent::Missed { .. }
            | DispatchEvent::MissedMore { .. }
            | DispatchEvent::Lost { .. }
            | DispatchEvent::Paused { .. }
            | DispatchEvent::Resumed { .. }
            | DispatchEvent::Halted { .. } => {}
        }
    }

    fn named(&mut self, pipeline: u32, cycle: u64, step: u32) -> &mut StepJob {
        let job = self.job(pipeline, cycle, step);
        &mut self.timeline.jobs[job]
    }

    fn job(&mut self, pipeline: u32, cycle: u64, step: u32) -> usize {
        let jobs = &mut self.timeline.jobs;
        *self.jobs.entry((pipeline, cycle, step)).or_insert_with(|| {
            jobs.push(StepJob {
                pipeline,
                cycle,
                step,
                ready: None,
                deadline: None,
                submitted: None,
                completed: None,
                took: Nanos::ZERO,
                bytes: Bytes(0),
                overrun: false,
                late: None,
                waits: Vec::new(),
            });
            jobs.len() - 1
        })
    }
}
