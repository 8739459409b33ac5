//! Messages whose producers say when a job is there (specification of messages, 2.2: late producers).
//!
//! Where a pipeline carries one message alone, a job that is late counts as released when it is there, as one of a stream.
//!
//! In a batch, others' slots must not wait. What is not there when a slot opens is left out; later slots of the same window
//! take it with what they carry of that message, as far as the room that is reserved for it goes, so that no slot costs more
//! than planned. What no slot is left for is given up: its producer missed it, and nobody else notices.

use std::ops::Range;

use super::{DispatchEvent, DispatchRefused, Dispatcher};
use crate::plan::{Carried, PipelineSource, Plan};
use crate::units::Bytes;

/// What a slot carries of each of a batch's parts.
pub(super) type Contents = Box<[Option<Range<u64>>]>;

/// One part of a batch, or a whole pipeline, as its producer fills it.
#[derive(Clone, Debug, Default)]
struct FillingTransfer {
    /// Jobs that are there: all below.
    ready: u64,
    /// The job whose slots these are, unless it is given up.
    job: Option<u64>,
    /// Bytes of it that were given to slots.
    sent: u64,
    /// Bytes of it that slots should have taken by now.
    due: u64,
}

#[derive(Debug, Default)]
pub(super) struct Producers {
    /// By pipeline and part; empty where nobody says anything.
    lines: Vec<Vec<Option<FillingTransfer>>>,
}

impl Producers {
    pub(super) fn of(plan: &Plan) -> Self {
        let mut lines: Vec<Vec<Option<FillingTransfer>>> = vec![Vec::new(); plan.pipelines.len()];
        for of in &plan.announced {
            let parts = &mut lines[of.pipeline as usize];
            let len = parts.len().max(of.part as usize + 1);
            parts.resize(len, None);
            parts[of.part as usize] = Some(FillingTransfer::default());
        }
        Self { lines }
    }

    /// Whether somebody says when the jobs of a pipeline are there.
    pub(super) fn speak(&self, pipeline: u32) -> bool {
        !self.lines[pipeline as usize].is_empty()
    }
}

impl FillingTransfer {
    /// What `slot` takes of its message, and the bytes of a job that is given up with it or before it.
    fn fill(&mut self, of: &Carried, slot: u64) -> (Option<Range<u64>>, Option<(u64, Bytes)>) {
        let all = of.message.bytes.0;
        let left = |line: &Self| line.job.filter(|_| line.sent < all).map(|job| (job, Bytes(all - line.sent)));
        let mut lost = None;
        if let Some((job, bytes)) = of.in_cycle(slot) {
            if bytes.start == 0 {
                lost = left(self);
                (self.job, self.sent) = (Some(job), 0);
            }
            self.due = bytes.end;
        }
        let Some(job) = self.job else { return (None, lost) };
        let window = of.message.window(job);
        let Some(grid) = of.member.levels.last().map(|level| level.grid) else { return (None, lost) };
        let mut takes = None;
        if job < self.ready && self.sent < self.due && grid.slot(slot).1 <= window.1 {
            let until = self.due.min(self.sent.saturating_add(of.member.reserve.0));
            takes = Some(self.sent..until);
            self.sent = until;
        }
        if grid.slot(slot + 1).1 > window.1 {
            lost = lost.or_else(|| left(self));
            self.job = None;
        }
        (takes, lost)
    }
}

impl Dispatcher {
    /// Whether a producer may say that this job is ready.
    pub(super) fn may_be_ready(&self, pipeline: u32, part: u32, job: u64) -> Result<(), DispatchRefused> {
        if self.epoch.is_none() {
            return Err(DispatchRefused::Order("has not begun"));
        }
        let lines = self.producers.lines.get(pipeline as usize);
        match lines.and_then(|lines| lines.get(part as usize)) {
            Some(Some(line)) if line.ready == job => Ok(()),
            _ => Err(DispatchRefused::Unexpected { what: "a message's job", number: job }),
        }
    }

    /// A producer has its next job ready.
    pub(super) fn ready(&mut self, pipeline: u32, part: u32) {
        let line = self.producers.lines[pipeline as usize][part as usize].as_mut();
        line.expect("the producer speaks").ready += 1;
        self.open_ready(pipeline);
    }

    /// Opens the cycles of a pipeline of one message whose jobs are there, as far as there is room.
    pub(super) fn open_ready(&mut self, pipeline: u32) {
        if self.plan.pipelines[pipeline as usize].source != PipelineSource::Message {
            return;
        }
        loop {
            let progress = &self.pipelines[pipeline as usize];
            let next = progress.finished + progress.open.len() as u64;
            let Some(Some(line)) = self.producers.lines[pipeline as usize].first() else { return };
            if next >= line.ready.min(progress.cycles) || progress.open.len() >= self.limits.cycles_in_flight_max {
                return;
            }
            self.data(pipeline, next, self.plan.pipelines[pipeline as usize].reserve);
        }
    }

    /// What a slot of a batch carries where producers speak; `None` = what is planned.
    pub(super) fn contents(&mut self, pipeline: u32, cycle: u64) -> Option<Contents> {
        let PipelineSource::Batch(parts) = &self.plan.pipelines[pipeline as usize].source else { return None };
        let lines = &mut self.producers.lines[pipeline as usize];
        if lines.is_empty() {
            return None;
        }
        let mut contents = Vec::with_capacity(parts.len());
        for (part, of) in (0u32..).zip(parts) {
            let Some(Some(line)) = lines.get_mut(part as usize) else {
                contents.push(of.in_cycle(cycle).map(|(_, bytes)| bytes));
                continue;
            };
            let (takes, lost) = line.fill(of, cycle);
            contents.push(takes);
            if let Some((job, left)) = lost {
                self.events.push_back(DispatchEvent::Unready { pipeline, part, job, left });
            }
        }
        Some(contents.into())
    }
}
