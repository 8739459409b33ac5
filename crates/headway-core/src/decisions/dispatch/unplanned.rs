//! Work without windows: chunks of bulk transfers, and urgent requests that are admitted or not.
//!
//! A request is admitted if the server's steps, with all requests admitted since it had nothing to do the last time, pass the
//! test for any offsets: a request is a task with one job, and whatever happened since then is a behaviour of that set. Its
//! chunks are no longer than what the plan's steps tolerate, as those of bulk transfers, so that one that is not admitted can
//! still go behind whatever is guaranteed.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::{Cycle, DispatchEvent, DispatchRefused, Dispatcher, StepInstance, TIME_MAX, Timer, Unfit, UrgentAnswer};
use crate::analysis::schedulability::{
    PhasedStream, RecurrentTask, TestOutcome, TestViolation, chunked, chunked_streams,
};
use crate::files::workload::Otherwise;
use crate::plan::planner::{demands, steps_on, streams_of};
use crate::plan::{PipelineSource, Plan, PlannedStep, Server, ServiceClass};
use crate::units::{Bytes, Nanos};

/// Requests that one server counts with at a time.
const ADMITTED_MAX: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Requests {
    /// By server: what its steps ask for, and the streams among them whose steps keep their distances. Empty where nothing is ever
    /// requested.
    demands: Vec<(Vec<RecurrentTask>, Vec<PhasedStream>)>,
    /// By server: the requests admitted since it had nothing to do.
    admitted: Vec<Vec<RecurrentTask>>,
    /// When the requests under way that were admitted are due, by pipeline and cycle.
    due: BTreeMap<(u32, u64), Nanos>,
}

impl Requests {
    pub(super) fn of(plan: &Plan) -> Self {
        if plan.pipelines.iter().all(|pipeline| pipeline.source.class() != ServiceClass::Urgent) {
            return Self::default();
        }
        let of = |(number, server): (u32, &Server)| {
            let steps = steps_on(number, &plan.pipelines);
            let demands = demands(&steps);
            let streams = streams_of(&server.verdict, &steps, &demands);
            (demands.into_iter().map(|demand| demand.task).collect(), streams)
        };
        Self {
            demands: (0..).zip(&plan.servers).map(of).collect(),
            admitted: vec![Vec::new(); plan.servers.len()],
            due: BTreeMap::new(),
        }
    }

    /// Learns that a server has nothing to do now that something is guaranteed to.
    pub(super) fn rest(&mut self, server: usize) {
        if let Some(admitted) = self.admitted.get_mut(server) {
            admitted.clear();
        }
    }

    /// When a job without window is due; [`Nanos::MAX`] if nothing was promised.
    pub(super) fn due(&self, pipeline: u32, cycle: u64) -> Nanos {
        self.due.get(&(pipeline, cycle)).copied().unwrap_or(Nanos::MAX)
    }

    /// Counts with a request of `step` from now on, if it fits.
    fn admit(&mut self, step: &PlannedStep, in_flight: u32, bytes: Bytes, deadline: Nanos) -> Result<(), Unfit> {
        let server = step.server as usize;
        if self.admitted[server].len() >= ADMITTED_MAX {
            return Err(Unfit::Full { limit: ADMITTED_MAX });
        }
        let chunks = if step.chunk == Bytes(0) { 1 } else { bytes.0.div_ceil(step.chunk.0) };
        let cost = step.cost.min(Nanos(step.chunk_cost.0.saturating_mul(chunks)));
        // The test lets a job wait for what began before it; what began at its very instant, before it was asked for, takes a
        // nanosecond more of its time.
        let deadline = deadline.saturating_sub(Nanos(1));
        let task = RecurrentTask { cost, period: TIME_MAX, deadline, chunk: step.chunk_cost.min(cost) };
        let (demands, streams) = &self.demands[server];
        let set: Vec<RecurrentTask> = demands.iter().chain(&self.admitted[server]).chain([&task]).copied().collect();
        let found = if streams.is_empty() { chunked(&set, in_flight) } else { chunked_streams(&set, streams) };
        match found.outcome {
            TestOutcome::Schedulable => {
                self.admitted[server].push(task);
                Ok(())
            }
            TestOutcome::NotSchedulable(TestViolation::Demand { interval, demand, .. }) => {
                Err(Unfit::Overload { interval, demand })
            }
            TestOutcome::NotSchedulable(_) | TestOutcome::Undecided(_) => Err(Unfit::Unknown),
        }
    }
}

impl Dispatcher {
    /// Begins with the next chunk of a bulk transfer.
    pub(super) fn next_chunk(&mut self, pipeline: u32, cycle: u64) {
        let planned = &self.plan.pipelines[pipeline as usize];
        let moved = planned.reserve.0.saturating_mul(cycle);
        let bytes = match planned.source {
            PipelineSource::Bulk(Some(all)) => Bytes(all.0.saturating_sub(moved).min(planned.reserve.0)),
            _ => planned.reserve,
        };
        if bytes > Bytes(0) {
            self.open_unplanned(pipeline, cycle, bytes);
            self.enqueue(StepInstance { pipeline, cycle, step: 0 }, Nanos::MAX, ServiceClass::Bulk);
        }
    }

    fn open_unplanned(&mut self, pipeline: u32, cycle: u64, bytes: Bytes) {
        self.pipelines[pipeline as usize].open.push_back(Cycle {
            cycle,
            bytes,
            released: 1,
            complete: 0,
            queued: 1,
            took: Nanos::ZERO,
            units: 0,
            submitted_all: false,
            contents: None,
        });
    }

    /// A chunk or a request is complete.
    pub(super) fn goes_on(&mut self, pipeline: u32, cycle: u64) {
        if self.plan.pipelines[pipeline as usize].source.class() == ServiceClass::Urgent {
            self.requests.due.remove(&(pipeline, cycle));
            self.unfinished -= 1;
        } else if cycle + 1 < self.pipelines[pipeline as usize].cycles {
            self.timers.push(Reverse(Timer { at: self.now, pipeline, step: 0, cycle: cycle + 1 }));
        }
    }

    /// Whether an urgent request can be considered now.
    pub(super) fn may_ask(&self, pipeline: u32, bytes: Bytes) -> Result<(), DispatchRefused> {
        if self.epoch.is_none() {
            return Err(DispatchRefused::Order("has not begun"));
        }
        if self.unfinished == 0 || self.halted {
            return Err(DispatchRefused::Order("is over"));
        }
        let unexpected = DispatchRefused::Unexpected { what: "a request of pipeline", number: pipeline.into() };
        let Some(planned) = self.plan.pipelines.get(pipeline as usize) else { return Err(unexpected) };
        if planned.source.class() != ServiceClass::Urgent || bytes == Bytes(0) || bytes > planned.reserve {
            return Err(unexpected);
        }
        let progress = &self.pipelines[pipeline as usize];
        let cycle = progress.finished + progress.open.len() as u64;
        if progress.open.len() >= self.limits.cycles_in_flight_max || cycle >= progress.cycles {
            let limit = self.limits.cycles_in_flight_max;
            return Err(DispatchRefused::TooManyCycles { pipeline: planned.name.clone(), limit });
        }
        Ok(())
    }

    /// Admits an urgent request that [`Dispatcher::may_ask`] accepts, or treats it as its `otherwise` says.
    pub(super) fn request(&mut self, pipeline: u32, bytes: Bytes, deadline: Nanos, otherwise: Otherwise) {
        let progress = &self.pipelines[pipeline as usize];
        let cycle = progress.finished + progress.open.len() as u64;
        let step = &self.plan.pipelines[pipeline as usize].steps[0];
        if self.servers[step.server as usize].is_idle() {
            self.requests.rest(step.server as usize);
        }
        let in_flight = self.plan.servers[step.server as usize].in_flight;
        let deadline = deadline.min(TIME_MAX);
        let due = self.now.saturating_add(deadline).min(TIME_MAX);
        let (answer, place) = match (self.requests.admit(step, in_flight, bytes, deadline), otherwise) {
            (Ok(()), _) => (UrgentAnswer::Guaranteed { deadline: due }, Some(due)),
            (Err(unfit), Otherwise::BestEffort) => (UrgentAnswer::BestEffort(unfit), Some(Nanos::MAX)),
            (Err(unfit), Otherwise::Refuse) => (UrgentAnswer::Refused(unfit), None),
        };
        self.events.push_back(DispatchEvent::Answered { pipeline, cycle, bytes, answer });
        self.open_unplanned(pipeline, cycle, bytes);
        let Some(place) = place else {
            let last = self.pipelines[pipeline as usize].open.back_mut().expect("it was opened a line above");
            last.complete = 1;
            self.retire(pipeline);
            return;
        };
        if place < Nanos::MAX {
            self.requests.due.insert((pipeline, cycle), place);
        }
        self.unfinished += 1;
        self.enqueue(StepInstance { pipeline, cycle, step: 0 }, place, ServiceClass::Urgent);
    }
}
