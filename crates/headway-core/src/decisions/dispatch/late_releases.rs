//! Jobs that are ready late: they count as released when they are ready, so that nobody else pays for it.
//!
//! The tests of a plan count with jobs a period apart, each with a whole window before its deadline. A job whose data comes
//! late, or whose step before ended late, would break that if it kept its place: with its deadline close or over it would go
//! before jobs that are in time, and the next of its pipeline would follow too soon. So beyond the plan's jitter a late job
//! takes its place in the queue as if its window had opened when it was ready, and the next one of its step as if its window
//! opened a period later. Then the server sees a sporadic task, which is what it was tested for: only the pipeline that is
//! late is late. What a job is measured against does not move: events name the deadline of the plan.
//!
//! A server may have been tested with the distances between the steps of a stream. There, a late job also moves those of the other
//! steps, so that they follow it at their distances.
//!
//! Whatever happened before an instant at which a server had nothing to do no longer matters to it: then a pipeline is back
//! in its own windows, and a job that was kept back starts.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::StepInstance;
use crate::plan::planner::keeps_distances;
use crate::plan::{Pipeline, Plan};
use crate::units::Nanos;

/// A job that waits until it counts as released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct HeldJob {
    release: Nanos,
    pipeline: u32,
    cycle: u64,
    step: u32,
    nominal: Nanos,
}

/// The last job of a step that was ready.
#[derive(Clone, Copy, Debug)]
struct LastJob {
    /// When it counts as released.
    release: Nanos,
    /// When its window opened.
    nominal: Nanos,
    /// How often its server had rested when that was said.
    rests: u64,
}

#[derive(Debug)]
pub(super) struct LateReleases {
    jitter: Nanos,
    /// By pipeline and step.
    last: Vec<Vec<Option<LastJob>>>,
    /// By server, whether its test counts with the distances between the steps of a stream.
    keeps_distances: Vec<bool>,
    /// By server: how often it has run out of work.
    rests: Vec<u64>,
    /// By server.
    held: Vec<BinaryHeap<Reverse<HeldJob>>>,
}

impl LateReleases {
    pub(super) fn of(plan: &Plan) -> Self {
        Self {
            jitter: plan.jitter,
            last: plan.pipelines.iter().map(|pipeline| vec![None; pipeline.steps.len()]).collect(),
            keeps_distances: plan.servers.iter().map(|server| keeps_distances(&server.verdict)).collect(),
            rests: vec![0; plan.servers.len()],
            held: plan.servers.iter().map(|_| BinaryHeap::new()).collect(),
        }
    }

    /// When `job`, which is ready now, counts as released; after now = it is kept back until then.
    pub(super) fn release(&mut self, plan: &Plan, job: StepInstance, nominal: Nanos, now: Nanos) -> Nanos {
        let pipeline = &plan.pipelines[job.pipeline as usize];
        let step = &pipeline.steps[job.step as usize];
        let rests = self.rests[step.server as usize];
        let is_late = now > nominal.saturating_add(self.jitter);
        let mut release = if is_late { now } else { nominal };
        let distances = self.keeps_distances[step.server as usize];
        for (other, last) in self.last[job.pipeline as usize].iter().enumerate() {
            let is_own = other == job.step as usize;
            let is_here = distances && pipeline.steps[other].server == step.server;
            // What is in time goes before the other steps' jobs whose windows opened later.
            if let Some(last) = last
                && last.rests == rests
                && (is_own || is_here && (is_late || last.nominal <= nominal))
            {
                let apart = if is_own { pipeline.period } else { distance(pipeline, other, job.step as usize) };
                release = release.max(last.release.saturating_add(apart));
            }
        }
        self.last[job.pipeline as usize][job.step as usize] = Some(LastJob { release, nominal, rests });
        if release > now {
            let StepInstance { pipeline, cycle, step: at } = job;
            self.held[step.server as usize].push(Reverse(HeldJob { release, pipeline, cycle, step: at, nominal }));
        }
        release
    }

    /// When the next job that is kept back starts at the latest.
    pub(super) fn poll_timeout(&self) -> Option<Nanos> {
        self.held.iter().filter_map(|held| held.peek()).map(|Reverse(held)| held.release).min()
    }

    /// The next job whose release has come, by server.
    pub(super) fn due(&mut self, now: Nanos) -> Option<(StepInstance, Nanos)> {
        let at = self.held.iter().position(|held| held.peek().is_some_and(|Reverse(held)| held.release <= now))?;
        let Reverse(held) = self.held[at].pop()?;
        Some((held.job(), held.release))
    }

    /// Learns that a server has nothing to do now; a job that was kept back from it starts.
    pub(super) fn rest(&mut self, server: usize, now: Nanos) -> Option<(StepInstance, Nanos)> {
        self.rests[server] += 1;
        let rests = self.rests[server];
        let Reverse(first) = self.held[server].pop()?;
        self.last[first.pipeline as usize][first.step as usize] =
            Some(LastJob { release: now, nominal: first.nominal, rests });
        // Those that are still kept back know when they follow, and so does the one behind them.
        for Reverse(held) in &self.held[server] {
            let last = &mut self.last[held.pipeline as usize][held.step as usize];
            if last.is_none_or(|last| last.rests != rests || last.release < held.release) {
                *last = Some(LastJob { release: held.release, nominal: held.nominal, rests });
            }
        }
        Some((first.job(), now))
    }
}

impl HeldJob {
    const fn job(&self) -> StepInstance {
        StepInstance { pipeline: self.pipeline, cycle: self.cycle, step: self.step }
    }
}

/// The time from a job of `from` to the next one of `to`.
fn distance(pipeline: &Pipeline, from: usize, to: usize) -> Nanos {
    let [from, to] = [from, to].map(|step| pipeline.release(0, step).0 % pipeline.period.0);
    Nanos(if to >= from { to - from } else { to + pipeline.period.0 - from })
}
