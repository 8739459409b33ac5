//! Jobs that are ready late: they count as released when they are ready, so that nobody else pays for it.
//!
//! The tests of a plan count with jobs a period apart, each with a whole window before its deadline. A job whose data comes
//! late, or whose step before ended late, would break that if it kept its place: with its deadline close or over it would go
//! before jobs that are in time, and the next of its pipeline would follow too soon. So beyond the plan's jitter a late job
//! takes its place in the queue as if its window had opened when it was ready, and the next one of its step as if its window
//! opened a period later. Then the server sees a sporadic task, which is what it was tested for: only the pipeline that is
//! late is late. What a job is measured against does not move: events name the deadline of the plan.
//!
//! Whatever happened before an instant at which a server had nothing to do no longer matters to it: then a pipeline is back
//! in its own windows, and a job that was kept back starts.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::StepInstance;
use crate::plan::Plan;
use crate::units::Nanos;

/// A job that waits until it counts as released; the first to be released, by pipeline and cycle, is the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct HeldJob {
    release: Nanos,
    pipeline: u32,
    cycle: u64,
    step: u32,
}

#[derive(Debug)]
pub(super) struct LateReleases {
    jitter: Nanos,
    /// By pipeline and step: when the next job may count as released, and how often its server had rested when that was said.
    next: Vec<Vec<(Nanos, u64)>>,
    /// By server: how often it has run out of work.
    rests: Vec<u64>,
    /// By server.
    held: Vec<BinaryHeap<Reverse<HeldJob>>>,
}

impl LateReleases {
    pub(super) fn of(plan: &Plan) -> Self {
        Self {
            jitter: plan.jitter,
            next: plan.pipelines.iter().map(|pipeline| vec![(Nanos::ZERO, 0); pipeline.steps.len()]).collect(),
            rests: vec![0; plan.servers.len()],
            held: plan.servers.iter().map(|_| BinaryHeap::new()).collect(),
        }
    }

    /// When `job`, which is ready now, counts as released; after now = it is kept back until then.
    ///
    /// Jobs that are served together, those of a batch or gang, keep their windows: they would not meet otherwise.
    pub(super) fn release(&mut self, plan: &Plan, job: StepInstance, nominal: Nanos, now: Nanos) -> Nanos {
        let pipeline = &plan.pipelines[job.pipeline as usize];
        let step = &pipeline.steps[job.step as usize];
        if pipeline.gang.is_some() || step.batch.is_some() {
            return nominal;
        }
        let rests = self.rests[step.server as usize];
        let next = &mut self.next[job.pipeline as usize][job.step as usize];
        let ready = if now > nominal.saturating_add(self.jitter) { now } else { nominal };
        let release = if next.1 == rests { ready.max(next.0) } else { ready };
        *next = (release.saturating_add(pipeline.period), rests);
        if release > now {
            let StepInstance { pipeline, cycle, step: at } = job;
            self.held[step.server as usize].push(Reverse(HeldJob { release, pipeline, cycle, step: at }));
        }
        release
    }

    /// When the next job that is kept back starts at the latest.
    pub(super) fn poll_timeout(&self) -> Option<Nanos> {
        self.held.iter().filter_map(|held| held.peek()).map(|Reverse(job)| job.release).min()
    }

    /// The next job whose release has come, by server.
    pub(super) fn due(&mut self, now: Nanos) -> Option<(StepInstance, Nanos)> {
        let at = self.held.iter().position(|held| held.peek().is_some_and(|Reverse(job)| job.release <= now))?;
        self.pop(at)
    }

    /// Learns that a server has nothing to do now; a job that was kept back from it starts.
    pub(super) fn rest(&mut self, plan: &Plan, server: usize, now: Nanos) -> Option<(StepInstance, Nanos)> {
        self.rests[server] += 1;
        let rests = self.rests[server];
        let (job, _) = self.pop(server)?;
        let period = plan.pipelines[job.pipeline as usize].period;
        self.next[job.pipeline as usize][job.step as usize] = (now.saturating_add(period), rests);
        // Those that are still kept back know when they follow, and so does the one behind them.
        for Reverse(held) in &self.held[server] {
            let next = &mut self.next[held.pipeline as usize][held.step as usize];
            let follows = held.release.saturating_add(plan.pipelines[held.pipeline as usize].period);
            *next = (if next.1 == rests { next.0.max(follows) } else { follows }, rests);
        }
        Some((job, now))
    }

    fn pop(&mut self, server: usize) -> Option<(StepInstance, Nanos)> {
        let Reverse(HeldJob { release, pipeline, cycle, step }) = self.held[server].pop()?;
        Some((StepInstance { pipeline, cycle, step }, release))
    }
}
