//! Who is given up when there is more work than planned.
//!
//! An accepted plan cannot be overloaded while its costs hold. If a job takes longer than its worst case, or ends late, one
//! pipeline of its server is paused: first those whose streams skip, then the others, the latest of the plan first, never
//! the last one that takes part. Jobs of a paused pipeline are given up if its streams skip; else they wait behind all
//! others. When that server has nothing left to do, they take part again.
//!
//! All of this needs a stream that skips: only then has the user said that something may be lost.

use crate::plan::{Plan, Source};
use crate::workload::OnMiss;

#[derive(Debug)]
pub(super) struct Overload {
    /// By pipeline: whether all its streams skip.
    skips: Vec<bool>,
    /// Each with the server that had too much work, in the order in which they were paused.
    paused: Vec<(u32, u32)>,
}

impl Overload {
    pub(super) fn of(plan: &Plan) -> Self {
        let skips = |source: &Source| match source {
            Source::Streams(streams) => {
                !streams.is_empty() && streams.iter().all(|&s| plan.streams[s as usize].on_miss == OnMiss::Skip)
            }
            Source::Wafer(_) | Source::Message | Source::Batch(_) | Source::Flow => false,
        };
        let skips: Vec<bool> = plan.pipelines.iter().map(|pipeline| skips(&pipeline.source)).collect();
        Self { skips, paused: Vec::new() }
    }

    /// Whether some pipeline may be given up.
    pub(super) fn is_possible(&self) -> bool {
        self.skips.contains(&true)
    }

    pub(super) fn skips(&self, pipeline: u32) -> bool {
        self.skips[pipeline as usize]
    }

    pub(super) fn is_paused(&self, pipeline: u32) -> bool {
        self.paused.iter().any(|(paused, _)| *paused == pipeline)
    }

    /// Pauses the next pipeline of a server, if there is one besides the last that takes part.
    pub(super) fn pause(&mut self, plan: &Plan, server: u32) -> Option<u32> {
        if !self.is_possible() {
            return None;
        }
        let here = |&pipeline: &u32| plan.pipelines[pipeline as usize].steps.iter().any(|step| step.server == server);
        let left: Vec<u32> =
            (0..self.skips.len() as u32).filter(here).filter(|pipeline| !self.is_paused(*pipeline)).collect();
        if left.len() < 2 {
            return None;
        }
        let next = left.into_iter().max_by_key(|&pipeline| (self.skips(pipeline), pipeline))?;
        self.paused.push((next, server));
        Some(next)
    }

    /// Ends the pauses whose server is idle, the latest first, and names the pipelines.
    pub(super) fn resume(&mut self, idle: impl Fn(u32) -> bool) -> Vec<u32> {
        let resumed =
            self.paused.iter().rev().filter(|(_, server)| idle(*server)).map(|(pipeline, _)| *pipeline).collect();
        self.paused.retain(|(_, server)| !idle(*server));
        resumed
    }
}
