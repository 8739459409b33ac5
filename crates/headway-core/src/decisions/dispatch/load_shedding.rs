//! Which pipelines are paused when there is more work than planned.
//!
//! An accepted plan cannot be overloaded while its costs hold. If a job takes longer than its worst case, or ends late, one
//! pipeline of its server is paused: first bulk transfers, then those whose streams skip, then the others, the latest of the
//! plan first, never the last one that takes part. Jobs of a paused pipeline are given up if its streams skip; else they wait
//! behind all others. When that server has nothing left to do, they take part again.
//!
//! A bulk transfer that is paused does not move at all, and takes part again when the server has been busy and idle once
//! more. To pause others needs a stream that skips: only then has the user said that something may be lost.

use super::{DispatchAction, DispatchEvent};
use super::{Dispatcher, Key, StepInstance, WaitingStep, planned_steps};
use crate::files::workload::OnMiss;
use crate::plan::{PipelineSource, Plan, ServiceClass};

#[derive(Debug)]
pub(super) struct LoadShedding {
    /// By pipeline: whether all its streams skip.
    skips: Vec<bool>,
    /// By pipeline: whether it is a bulk transfer while others run.
    bulk: Vec<bool>,
    /// By server: how often it had something to do after it had nothing.
    busy: Vec<u64>,
    /// In the order in which they were paused.
    paused: Vec<Paused>,
}

#[derive(Debug)]
struct Paused {
    pipeline: u32,
    /// The server that had too much work.
    server: u32,
    /// How often that must have been busy before they take part again.
    busy: u64,
}

impl LoadShedding {
    pub(super) fn of(plan: &Plan) -> Self {
        let skips = |source: &PipelineSource| match source {
            PipelineSource::Streams(streams) => {
                !streams.is_empty() && streams.iter().all(|&s| plan.streams[s as usize].on_miss == OnMiss::Skip)
            }
            PipelineSource::Parts(parted) => plan.streams[parted.stream as usize].on_miss == OnMiss::Skip,
            PipelineSource::Packets(packets) => plan.streams[packets.stream as usize].on_miss == OnMiss::Skip,
            PipelineSource::Sharded(_)
            | PipelineSource::Message
            | PipelineSource::Batch(_)
            | PipelineSource::Demand
            | PipelineSource::Bulk(_)
            | PipelineSource::Urgent(_) => false,
        };
        let pipelines = plan.pipelines.iter();
        let planned = pipelines.clone().filter(|pipeline| pipeline.source.is_planned());
        let servers: Vec<u32> = planned.flat_map(|pipeline| &pipeline.steps).map(|step| step.server).collect();
        Self {
            skips: pipelines.clone().map(|pipeline| skips(&pipeline.source)).collect(),
            bulk: pipelines
                .map(|p| p.source.class() == ServiceClass::Bulk && servers.contains(&p.steps[0].server))
                .collect(),
            busy: vec![0; plan.servers.len()],
            paused: Vec::new(),
        }
    }

    /// Whether some pipeline may be paused.
    pub(super) fn is_possible(&self) -> bool {
        self.skips.contains(&true) || self.bulk.contains(&true)
    }

    pub(super) fn skips(&self, pipeline: u32) -> bool {
        self.skips[pipeline as usize]
    }

    pub(super) fn is_paused(&self, pipeline: u32) -> bool {
        self.paused.iter().any(|paused| paused.pipeline == pipeline)
    }

    /// Learns that a server has something to do after it had nothing.
    pub(super) fn begin(&mut self, server: usize) {
        self.busy[server] += 1;
    }

    /// Pauses the next pipeline of a server, if there is one besides the last that takes part.
    pub(super) fn pause(&mut self, plan: &Plan, server: u32) -> Option<u32> {
        let here = |&pipeline: &u32| plan.pipelines[pipeline as usize].steps.iter().any(|step| step.server == server);
        let left = || (0..self.skips.len() as u32).filter(here).filter(|pipeline| !self.is_paused(*pipeline));
        let busy = self.busy[server as usize];
        if let Some(pipeline) = left().rfind(|&pipeline| self.bulk[pipeline as usize]) {
            self.paused.push(Paused { pipeline, server, busy: busy + 1 });
            return Some(pipeline);
        }
        let left: Vec<u32> = left().filter(|&pipeline| plan.pipelines[pipeline as usize].source.is_planned()).collect();
        if !self.skips.contains(&true) || left.len() < 2 {
            return None;
        }
        let pipeline = left.into_iter().max_by_key(|&pipeline| (self.skips(pipeline), pipeline))?;
        self.paused.push(Paused { pipeline, server, busy });
        Some(pipeline)
    }

    /// Ends the pauses whose server is idle, the latest first, and names the pipelines.
    pub(super) fn resume(&mut self, idle: impl Fn(u32) -> bool) -> Vec<u32> {
        let ends = |of: &Paused| idle(of.server) && self.busy[of.server as usize] >= of.busy;
        let resumed = self.paused.iter().rev().filter(|of| ends(of)).map(|of| of.pipeline).collect();
        self.paused.retain(|of| !(idle(of.server) && self.busy[of.server as usize] >= of.busy));
        resumed
    }
}

impl Dispatcher {
    /// Gives up the waiting jobs that streams which skip do not want any more: their cycle is due, or they are paused.
    pub(super) fn give_up(&mut self, server: usize) {
        let epoch = self.epoch.expect("jobs exist only after the start");
        let unwanted = |waiting: &WaitingStep| {
            let StepInstance { pipeline, cycle, .. } = waiting.job;
            let planned = &self.plan.pipelines[pipeline as usize];
            let due = epoch + planned.deadline(cycle, planned.steps.len() - 1);
            self.load_shedding.skips(pipeline) && (self.now >= due || self.load_shedding.is_paused(pipeline))
        };
        let waiting = &self.servers[server].waiting;
        let unwanted: Vec<(Key, StepInstance)> =
            waiting.iter().filter(|(_, waiting)| unwanted(waiting)).map(|(&key, waiting)| (key, waiting.job)).collect();
        for (key, job) in unwanted {
            let state = self.state(job).expect("a waiting job keeps its cycle open");
            if state.units > 0 {
                continue; // a chunk is under way: at the next boundary
            }
            self.servers[server].waiting.remove(&key);
            self.lose(job);
        }
        self.catch_up();
    }

    fn lose(&mut self, job: StepInstance) {
        let StepInstance { pipeline, cycle, .. } = job;
        let steps = planned_steps(&self.plan, pipeline);
        self.state(job).expect("a job that is given up keeps its cycle open").complete = steps;
        self.actions.push_back(DispatchAction::Drop { pipeline, cycle });
        let planned = &self.plan.pipelines[pipeline as usize];
        for &stream in planned.source.streams() {
            let carried = self.plan.streams[stream as usize].packets_in(planned, cycle);
            for packet in carried.start..carried.end.min(self.packets[stream as usize]) {
                self.events.push_back(DispatchEvent::Lost { stream, packet });
            }
        }
        self.retire(pipeline);
    }

    /// Lets pipelines take part again that were paused for servers which have nothing left to do.
    pub(super) fn catch_up(&mut self) {
        let servers = &self.servers;
        let idle = |server: u32| servers[server as usize].is_idle();
        for pipeline in self.load_shedding.resume(idle) {
            self.events.push_back(DispatchEvent::Resumed { pipeline });
        }
    }
}
