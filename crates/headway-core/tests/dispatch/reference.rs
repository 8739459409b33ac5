//! Non-preemptive EDF written a second time, nanosecond by nanosecond, from the definition and without the dispatcher.
//!
//! In every nanosecond: windows open, then operations end in the order of their numbers, then data arrives, then every
//! server with room starts the piece with the earliest deadline; of equal deadlines the one that joined first.

use headway_core::decisions::dispatch::{DispatchAction, DispatchEvent};
use headway_core::plan::{OperationWork, PipelineSource};
use headway_core::units::{Bytes, Nanos};

use super::engines::Engines;
use crate::case::Case;

/// What happened when; events of an instant in no particular order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trace {
    pub(crate) actions: Vec<(u64, DispatchAction)>,
    pub(crate) events: Vec<(u64, DispatchEvent)>,
}

#[derive(Clone, Debug)]
struct Job {
    pipeline: u32,
    cycle: u64,
    step: u32,
    release: u64,
    deadline: u64,
    /// Place in the order of joining, once it has joined.
    joined: Option<u64>,
    /// When it counts as released, once it is ready: what the order of the queue follows from.
    counts: u64,
    /// Kept back until it counts as released.
    held: bool,
    /// Place in the order of becoming ready.
    ready: Option<u64>,
    /// When it joined.
    entered: u64,
    /// Bytes handed out.
    given: u64,
    all_given: bool,
    pieces_left: u64,
    took: u64,
    complete: Option<u64>,
}

/// Operations that were started together and count as one.
struct Piece {
    job: usize,
    operations: Vec<u64>,
    from: u64,
    to: u64,
}

pub(crate) struct Reference<'a> {
    case: &'a Case,
    jobs: Vec<Job>,
    pieces: Vec<Piece>,
    engines: Engines,
    joins: u64,
    readies: u64,
    operations: u64,
    now: u64,
    trace: Trace,
    /// The last instant at which each server had nothing to do.
    rested: Vec<Option<u64>>,
}

impl<'a> Reference<'a> {
    /// Runs the whole case.
    pub(crate) fn run(case: &'a Case) -> Trace {
        let mut jobs = Vec::new();
        for (pipeline, of) in (0u32..).zip(&case.plan.pipelines) {
            for cycle in 0..case.cycles[pipeline as usize] {
                for step in 0..of.steps.len() as u32 {
                    let opens =
                        case.epoch + of.start.0 + cycle * of.period.0 + of.gather.0 + u64::from(step) * of.window.0;
                    jobs.push(Job {
                        pipeline,
                        cycle,
                        step,
                        release: opens,
                        deadline: opens + of.window.0,
                        joined: None,
                        counts: 0,
                        held: false,
                        ready: None,
                        entered: 0,
                        given: 0,
                        all_given: false,
                        pieces_left: 0,
                        took: 0,
                        complete: None,
                    });
                }
            }
        }
        let (pieces, engines, trace) = (Vec::new(), Engines::default(), Trace::default());
        let rested = vec![None; case.plan.servers.len()];
        let mut reference =
            Reference { case, jobs, pieces, engines, joins: 0, readies: 0, operations: 0, now: 0, trace, rested };
        while !reference.is_over() {
            reference.tick();
            reference.now += 1;
            assert!(reference.now < 100_000, "the reference does not come to an end");
        }
        reference.trace
    }

    fn is_over(&self) -> bool {
        self.now > 0 && self.jobs.iter().all(|job| job.complete.is_some() || self.arrived(job) == Some(0))
    }

    fn is_fed(&self, job: &Job) -> bool {
        matches!(self.case.plan.pipelines[job.pipeline as usize].source, PipelineSource::Streams(_))
    }

    /// When the block of a job's cycle is there, and its size.
    fn block(&self, job: &Job) -> (u64, u64) {
        let of = &self.case.plan.pipelines[job.pipeline as usize];
        if !self.is_fed(job) {
            return (0, of.reserve.0);
        }
        let mut data = self.case.data.iter();
        let found = data.find(|d| (d.pipeline, d.cycle) == (job.pipeline, job.cycle)).expect("every cycle has data");
        (found.at, found.bytes)
    }

    /// The size of the block of a job's cycle, if it has come in an earlier nanosecond.
    fn arrived(&self, job: &Job) -> Option<u64> {
        let (at, bytes) = self.block(job);
        (at < self.now || !self.is_fed(job)).then_some(bytes)
    }

    fn previous_is_complete(&self, at: usize) -> bool {
        self.jobs[at].step == 0 || self.jobs[at - 1].complete.is_some()
    }

    /// A job is ready. Beyond the jitter it counts from now on, and in any case a period after the one before it that is ready,
    /// unless its server has rested since that was.
    fn join(&mut self, at: usize) {
        let Job { pipeline, cycle, step, deadline, release, .. } = self.jobs[at];
        self.tell(DispatchEvent::Ready { pipeline, cycle, step, deadline: Nanos(deadline) });
        let late = self.now > release + self.case.plan.jitter.0;
        let mut counts = if late { self.now } else { release };
        let server = self.server_of(&self.jobs[at]) as usize;
        let before = |job: &&Job| (job.pipeline, job.step) == (pipeline, step) && job.ready.is_some();
        let last = self.jobs.iter().filter(before).max_by_key(|job| job.ready);
        let some_held = self.jobs.iter().any(|job| (job.pipeline, job.step) == (pipeline, step) && job.held);
        if let Some(last) = last
            && (some_held || self.rested[server].is_none_or(|rested| rested < last.entered))
        {
            counts = counts.max(last.counts + self.case.plan.pipelines[pipeline as usize].period.0);
        }
        let ready = self.readies;
        self.readies += 1;
        let now = self.now;
        let job = &mut self.jobs[at];
        (job.counts, job.held, job.ready) = (counts, counts > now, Some(ready));
        if !job.held {
            self.enter(at);
        }
    }

    fn enter(&mut self, at: usize) {
        let job = &mut self.jobs[at];
        (job.joined, job.held, job.entered) = (Some(self.joins), false, self.now);
        self.joins += 1;
    }

    /// The job that was kept back from a server and counts first.
    fn kept_back(&self, server: u32) -> Option<usize> {
        let held = (0..self.jobs.len()).filter(|&at| self.jobs[at].held && self.server_of(&self.jobs[at]) == server);
        held.min_by_key(|&at| (self.jobs[at].counts, self.jobs[at].pipeline, self.jobs[at].cycle, self.jobs[at].step))
    }

    fn tell(&mut self, event: DispatchEvent) {
        self.trace.events.push((self.now, event));
    }

    fn tick(&mut self) {
        for server in 0..self.case.plan.servers.len() as u32 {
            while let Some(at) = self.kept_back(server)
                && self.jobs[at].counts <= self.now
            {
                self.enter(at);
            }
        }
        let mut opening: Vec<usize> = (0..self.jobs.len()).filter(|&at| self.jobs[at].release == self.now).collect();
        opening.sort_by_key(|&at| (self.jobs[at].pipeline, self.jobs[at].step, self.jobs[at].cycle));
        for at in opening {
            if self.arrived(&self.jobs[at]).is_some_and(|bytes| bytes > 0) && self.previous_is_complete(at) {
                self.join(at);
            }
        }
        while let Some((operation, from)) = self.engines.next_ended(self.now) {
            self.ended(operation, from);
        }
        let (case, now) = (self.case, self.now);
        for datum in case.data.iter().filter(|d| d.at == now) {
            let (pipeline, cycle) = (datum.pipeline, datum.cycle);
            let first = |job: &Job| (job.pipeline, job.cycle, job.step) == (pipeline, cycle, 0);
            let at = self.jobs.iter().position(first).expect("data is for cycles that run");
            let due = self.jobs[at].release;
            if self.now > due {
                self.tell(DispatchEvent::DataLate { pipeline, cycle, by: Nanos(self.now - due) });
            }
            if datum.bytes == 0 {
                self.tell(DispatchEvent::Empty { pipeline, cycle });
            } else if self.now >= due {
                self.join(at);
            }
        }
        for server in 0..self.case.plan.servers.len() {
            self.rest(server as u32);
            while self.start_most_urgent(server as u32) {}
        }
    }

    /// A server without work takes a job that was kept back from it, and what was before no longer counts.
    fn rest(&mut self, server: u32) {
        let here = |job: &Job| self.server_of(job) == server;
        let waiting = self.jobs.iter().any(|job| here(job) && job.joined.is_some() && job.complete.is_none());
        if waiting {
            return;
        }
        self.rested[server as usize] = Some(self.now);
        if let Some(at) = self.kept_back(server) {
            self.jobs[at].counts = self.now;
            self.enter(at);
            // The next one follows a period after it, or after those that are kept back still.
            self.jobs[at].entered = self.now + 1;
        }
    }

    fn server_of(&self, job: &Job) -> u32 {
        self.case.plan.pipelines[job.pipeline as usize].steps[job.step as usize].server
    }

    fn place(&self, job: &Job) -> u64 {
        job.counts + self.case.plan.pipelines[job.pipeline as usize].window.0
    }

    fn start_most_urgent(&mut self, server: u32) -> bool {
        let in_flight = self.pieces.iter().filter(|p| self.server_of(&self.jobs[p.job]) == server).count();
        let waits = |at: &usize| {
            let job = &self.jobs[*at];
            job.joined.is_some() && !job.all_given && self.server_of(job) == server
        };
        let urgent =
            (0..self.jobs.len()).filter(waits).min_by_key(|&at| (self.place(&self.jobs[at]), self.jobs[at].joined));
        let Some(at) = urgent else { return false };
        let job = self.jobs[at].clone();
        let step = &self.case.plan.pipelines[job.pipeline as usize].steps[job.step as usize];
        let under_way: usize = self.pieces.iter().map(|p| p.operations.len()).sum();
        let full = in_flight >= self.case.plan.servers[server as usize].in_flight as usize;
        if full || under_way + step.operations.len() > self.case.limits.operations_max {
            return false;
        }
        let block = self.block(&job).1;
        let mut piece = Piece { job: at, operations: Vec::new(), from: u64::MAX, to: 0 };
        for (index, operation) in (0u32..).zip(&step.operations) {
            let is_batch = step.operations.len() > 1;
            let (offset, bytes) = match operation.work {
                OperationWork::Copy { bytes: Bytes(own), .. } if is_batch => (0, own),
                OperationWork::Copy { .. } if step.chunk.0 > 0 => (job.given, step.chunk.0.min(block - job.given)),
                OperationWork::Copy { .. } | OperationWork::Compute { .. } | OperationWork::Hold => (0, block),
            };
            self.jobs[at].given = offset + bytes;
            self.jobs[at].all_given = is_batch || offset + bytes == block;
            let number = self.operations;
            self.operations += 1;
            let Job { pipeline, cycle, step, .. } = job;
            let time = self.case.time(pipeline, cycle, step, index, offset, bytes);
            self.engines.submit(self.now, number, (server, index), time);
            piece.operations.push(number);
            let (offset, bytes) = (Bytes(offset), Bytes(bytes));
            let action = DispatchAction::Submit { operation: number, pipeline, cycle, step, index, offset, bytes };
            self.trace.actions.push((self.now, action));
        }
        self.jobs[at].pieces_left += 1;
        self.pieces.push(piece);
        true
    }

    fn ended(&mut self, operation: u64, from: u64) {
        let holds = |p: &Piece| p.operations.contains(&operation);
        let number = self.pieces.iter().position(holds).expect("every operation belongs to a piece");
        let piece = &mut self.pieces[number];
        piece.operations.retain(|&other| other != operation);
        piece.from = piece.from.min(from);
        piece.to = self.now;
        if !piece.operations.is_empty() {
            return;
        }
        let piece = self.pieces.remove(number);
        let job = &mut self.jobs[piece.job];
        job.took += piece.to - piece.from;
        job.pieces_left -= 1;
        if job.all_given && job.pieces_left == 0 {
            job.complete = Some(self.now);
            self.completed(piece.job);
        }
    }

    fn completed(&mut self, at: usize) {
        let Job { pipeline, cycle, step, deadline, took, .. } = self.jobs[at].clone();
        let of = &self.case.plan.pipelines[pipeline as usize];
        let cost = of.steps[step as usize].cost;
        self.tell(DispatchEvent::Complete { pipeline, cycle, step });
        if took > cost.0 {
            self.tell(DispatchEvent::Overrun { pipeline, cycle, step, cost, took: Nanos(took) });
        }
        if self.now > deadline {
            self.tell(DispatchEvent::Late { pipeline, cycle, step, by: Nanos(self.now - deadline) });
        }
        if (step as usize) + 1 < of.steps.len() {
            if self.jobs[at + 1].release <= self.now {
                self.join(at + 1);
            }
            return;
        }
        self.trace.actions.push((self.now, DispatchAction::Deliver { pipeline, cycle }));
        let PipelineSource::Streams(streams) = &of.source else { return };
        let from = of.start.0 + cycle * of.period.0;
        for &stream in streams {
            let planned = &self.case.plan.streams[stream as usize];
            for packet in 0..self.case.packets[stream as usize] {
                let arrival = planned.start.0 + packet * planned.period.0;
                let carried =
                    if of.gather.0 == 0 { packet == cycle } else { (from..from + of.period.0).contains(&arrival) };
                let due = self.case.epoch + arrival + planned.deadline.0;
                if carried && self.now > due {
                    self.tell(DispatchEvent::Missed { stream, packet, by: Nanos(self.now - due) });
                }
            }
        }
    }
}
