//! Servers: which engines are arbitrated as one, what a copy costs there, and whether every window holds.

use std::collections::BTreeMap;

use super::demands::{Demand, demands, routes_of, steps_on, window_of};
use super::explored::{Steps, explored};
use super::holds::{Holds, carried};
use super::{
    Bytes, Domains, EngineId, Nanos, OperationWork, Outcome, PPM, Pipeline, PipelineSource, PlanError, PlannedBatch,
    PlannedStep, Planner, RouteId, Server, Strategy, Strength, Verdict, uneven,
};
use crate::analysis::schedulability::{self, ChunkFlow, JobCosts, RecurrentTask};
use crate::files::machine::{EngineClass, Route};
use crate::plan::Violation;
use crate::units::Rate;

/// What steps on one server have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// The engine that stands for all that are arbitrated together.
    Engines(EngineId),
    /// A server that a demand names.
    Named(String),
}

impl Planner<'_> {
    /// Gives every step its server and every copy its cost, and tests each server.
    pub(super) fn serve(
        &self,
        pipelines: &mut [Pipeline],
        domains: &Domains,
        batches: &mut Vec<PlannedBatch>,
    ) -> Result<Vec<Server>, PlanError> {
        let leader = self.arbitrated_together(pipelines, domains);
        self.price(pipelines, domains)?;
        let mut keys: Vec<Key> = Vec::new();
        for pipeline in pipelines.iter_mut() {
            for step in &mut pipeline.steps {
                let key = match step.operations[0].engines.first() {
                    Some(engine) => Key::Engines(leader[engine.at()]),
                    None => Key::Named(step.name.clone()),
                };
                let at = keys.iter().position(|other| *other == key).unwrap_or_else(|| {
                    keys.push(key);
                    keys.len() - 1
                });
                step.server = at as u32;
            }
        }
        if self.strategy == Strategy::Combined {
            self.batch_streams(pipelines, domains, batches)?;
        }
        self.price_gangs(pipelines)?;
        if self.uneven {
            uneven::divide(pipelines, |stream| self.workload.streams[stream as usize].deadline);
        }
        let mut servers = Vec::new();
        for (at, key) in keys.iter().enumerate() {
            servers.push(self.server(at as u32, key, &leader, pipelines, domains));
        }
        Ok(servers)
    }

    /// For every engine the lowest engine that is arbitrated together with it.
    ///
    /// An operation that holds two engines, and a batch that holds several, ties them; the serial strategy and lockstep
    /// tie all engines that any copy uses, generations those of kernels too, the combined strategy those of each domain.
    fn arbitrated_together(&self, pipelines: &[Pipeline], domains: &Domains) -> Vec<EngineId> {
        let mut leader: Vec<EngineId> = (0..self.machine.engines.len() as u32 + self.cpu.cores).map(EngineId).collect();
        let mut tie = |engines: &[EngineId]| {
            let Some(lowest) = engines.iter().map(|e| leader[e.at()]).min() else { return };
            let merged: Vec<EngineId> = engines.iter().map(|e| leader[e.at()]).collect();
            for entry in &mut leader {
                if merged.contains(entry) {
                    *entry = lowest;
                }
            }
        };
        let mut copying: Vec<EngineId> = Vec::new();
        let mut computing: Vec<EngineId> = Vec::new();
        for step in pipelines.iter().flat_map(|p| &p.steps) {
            let engines: Vec<EngineId> = step.operations.iter().flat_map(|o| o.engines.iter().copied()).collect();
            tie(&engines);
            if step.operations.iter().any(|o| matches!(o.work, OperationWork::Copy { .. })) {
                copying.extend(engines);
            } else {
                // A core serves nothing but its streams, whatever is tied.
                computing.extend(engines.into_iter().filter(|engine| engine.at() < self.machine.engines.len()));
            }
        }
        match self.strategy {
            Strategy::Serial | Strategy::Lockstep => tie(&copying),
            Strategy::Generation => tie(&[copying, computing].concat()),
            Strategy::PerGpu => {
                for gpu in self.machine.gpus() {
                    let own = |engine: &&EngineId| self.machine.engines.get(engine.at()).is_some_and(|e| e.gpu == gpu);
                    tie(&copying.iter().filter(own).copied().collect::<Vec<_>>());
                }
            }
            Strategy::Combined | Strategy::Partitioned => {}
        }
        for routes in domains.routes() {
            let engines: Vec<EngineId> =
                routes.iter().flat_map(|route| self.machine.routes[route.at()].engines.iter().copied()).collect();
            tie(&engines);
        }
        leader
    }

    /// Sets the worst-case cost of every copy step of a stream.
    fn price(&self, pipelines: &mut [Pipeline], domains: &Domains) -> Result<(), PlanError> {
        let used = routes_of(pipelines);
        for pipeline in pipelines.iter_mut().filter(|pipeline| pipeline.source.is_planned()) {
            let batch = matches!(pipeline.source, PipelineSource::Message | PipelineSource::Batch(_));
            if batch && !self.strategy.lets_gpus_overlap() {
                // The batch has all copy engines of its domain to itself: its own bound holds.
                pipeline.steps.iter_mut().for_each(|step| step.piece = step.cost);
                continue;
            }
            if let PipelineSource::Sharded(planned) = &pipeline.source
                && !self.strategy.lets_gpus_overlap()
            {
                for step in &mut pipeline.steps {
                    self.price_spread(planned, step, &used, domains)?;
                }
                continue;
            }
            if let PipelineSource::Parts(planned) = &pipeline.source {
                for step in &mut pipeline.steps {
                    self.price_parts(planned, step, &used, domains)?;
                }
                continue;
            }
            for step in &mut pipeline.steps {
                let time = |route, bytes| self.copy_time(route, bytes, &used, domains);
                if let Some(cost) = self.side_by_side(step, time)? {
                    step.cost = cost;
                }
                step.piece = step.cost;
            }
        }
        Ok(())
    }

    /// What the copies of a step cost where each takes `time` at most whatever the others do; `None` = it has none.
    pub(super) fn side_by_side(
        &self,
        step: &PlannedStep,
        time: impl Fn(RouteId, Bytes) -> Result<Nanos, PlanError>,
    ) -> Result<Option<Nanos>, PlanError> {
        let mut per_engines: BTreeMap<Vec<EngineId>, Nanos> = BTreeMap::new();
        for operation in &step.operations {
            let OperationWork::Copy { route, bytes, .. } = operation.work else { continue };
            let sum = per_engines.entry(operation.engines.clone()).or_default();
            *sum = sum.saturating_add(time(route, bytes)?);
        }
        Ok(longest(&per_engines).map(|cost| self.with_margin(cost)))
    }

    /// Set-up and bytes at the rate that the route keeps whatever the rest of the plan does.
    pub(super) fn copy_time(
        &self,
        route: RouteId,
        bytes: Bytes,
        used: &[RouteId],
        domains: &Domains,
    ) -> Result<Nanos, PlanError> {
        let (setup, rate) = self.keeps(route, used, domains)?;
        Ok(setup.saturating_add(rate.time_for(bytes)))
    }

    /// Like [`Self::copy_time`] at the rate that the route keeps while all of `used` copy.
    pub(super) fn copy_time_beside(
        &self,
        route: RouteId,
        bytes: Bytes,
        used: &[RouteId],
        domains: &Domains,
    ) -> Result<Nanos, PlanError> {
        let (setup, rate) = self.keeps_beside(route, used, domains)?;
        Ok(setup.saturating_add(rate.time_for(bytes)))
    }

    /// The set-up time and the rate of a route that hold whatever the rest of the plan does.
    fn keeps(&self, route: RouteId, used: &[RouteId], domains: &Domains) -> Result<(Nanos, Rate), PlanError> {
        let planned = &self.machine.routes[route.at()];
        let meets = |other: &RouteId| match self.strategy {
            Strategy::Partitioned => true,
            // A copy that shares an engine's GPU waits for its turn.
            Strategy::PerGpu => !self.shares_gpu(planned, &self.machine.routes[other.at()]),
            // These never let another copy run beside one that is priced here.
            Strategy::Serial | Strategy::Combined | Strategy::Lockstep | Strategy::Generation => false,
        };
        let concurrent: Vec<RouteId> = used.iter().copied().filter(|other| *other == route || meets(other)).collect();
        self.keeps_beside(route, &concurrent, domains)
    }

    /// The rate that a route keeps while all of `concurrent`, the route itself included, copy.
    fn keeps_beside(
        &self,
        route: RouteId,
        concurrent: &[RouteId],
        domains: &Domains,
    ) -> Result<(Nanos, Rate), PlanError> {
        let planned = &self.machine.routes[route.at()];
        let rate = domains.network(route).guaranteed_rate(route, concurrent)?;
        Ok((planned.setup.max(planned.setup_queued), rate))
    }

    /// Whether one GPU's engines serve both.
    fn shares_gpu(&self, one: &Route, other: &Route) -> bool {
        let gpu = |engine: &EngineId| self.machine.engines[engine.at()].gpu;
        one.engines.iter().any(|engine| other.engines.iter().any(|of_other| gpu(engine) == gpu(of_other)))
    }

    fn server(&self, at: u32, key: &Key, leader: &[EngineId], pipelines: &mut [Pipeline], domains: &Domains) -> Server {
        let (name, engines) = match key {
            Key::Named(name) => (name.clone(), Vec::new()),
            Key::Engines(lowest) => {
                let used = |engine: &EngineId| {
                    let mut operations = pipelines.iter().flat_map(|p| &p.steps).flat_map(|s| &s.operations);
                    leader[engine.at()] == *lowest && operations.any(|o| o.engines.contains(engine))
                };
                let engines: Vec<EngineId> =
                    (0..leader.len() as u32).map(EngineId).filter(|engine| used(engine)).collect();
                let name = match engines.as_slice() {
                    [one] => self.engine_name(*one),
                    _ if self.strategy == Strategy::Generation => "node".to_owned(),
                    several if pipelines.iter().any(|p| matches!(p.source, PipelineSource::Parts(_))) => {
                        self.joined(several)
                    }
                    [first, ..] if self.strategy == Strategy::PerGpu => {
                        let gpu = self.machine.engines[first.at()].gpu;
                        format!("{} transfers", self.machine.endpoints[gpu.at()].id)
                    }
                    several if pipelines.iter().any(|p| matches!(p.source, PipelineSource::Sharded(_))) => {
                        self.common_name(several).to_owned()
                    }
                    _ => "transfers".to_owned(),
                };
                (name, engines)
            }
        };
        let mut verdict = self.verdict_of(&name, &steps_on(at, pipelines));
        let is_cut = verdict.outcome != Outcome::Schedulable && self.cut(at, pipelines, domains);
        if is_cut {
            verdict = self.verdict_of(&name, &steps_on(at, pipelines));
        }
        if verdict.outcome == Outcome::Schedulable && self.fit(at, pipelines, domains, verdict.margin_ppm) {
            verdict = self.verdict_of(&name, &steps_on(at, pipelines));
        }
        if is_cut && let Some(margin) = verdict.margin_ppm {
            verdict.notes.extend(limit(&name, &demands(&steps_on(at, pipelines)), margin));
        }
        Server { name, engines, in_flight: 1, verdict }
    }

    /// Tests one server: by Jeffay, Stanat and Martel where jobs run whole and every window is as long as its period, else by
    /// the demand of all intervals. Both let steps of one stream meet, which their windows keep apart: where all steps are of
    /// one stream and the tests fail, every schedule of these windows is followed.
    fn verdict_of(&self, server: &str, steps: &[(&Pipeline, &PlannedStep)]) -> Verdict {
        let demands = demands(steps);
        let mut verdict = verdict_of(server, &demands, Holds::for_any(steps));
        if verdict.outcome != Outcome::NotSchedulable {
            return verdict;
        }
        if carried(steps) > 1 {
            // Other combinations might pass.
            verdict.strength = Strength::Sufficient;
        }
        let planned: Vec<&Pipeline> = steps.iter().map(|of| of.0).filter(|of| of.source.is_planned()).collect();
        if !planned.windows(2).any(|two| std::ptr::eq(two[0], two[1]) && two[0].gang.is_none()) {
            return verdict;
        }
        verdict.strength = Strength::Sufficient;
        if planned.iter().all(|pipeline| std::ptr::eq(*pipeline, planned[0])) {
            let jitter = self.machine.calibration.as_ref().map_or(Nanos::ZERO, |of| of.jitter);
            // With a factor that any offsets hold with, these hold.
            let least = verdict.margin_ppm.unwrap_or(0);
            verdict = phased(server, &demands, jitter, least).unwrap_or(verdict);
        }
        verdict
    }

    /// The engines that a step in parts ties, by their names while they are few.
    fn joined(&self, engines: &[EngineId]) -> String {
        let copies = |engine: &EngineId| {
            self.machine.engines.get(engine.at()).is_some_and(|engine| !engine.serves.contains(&EngineClass::Ee))
        };
        match engines {
            [_, _] | [_, _, _] => {
                engines.iter().map(|engine| self.engine_name(*engine)).collect::<Vec<_>>().join(" + ")
            }
            _ if engines.iter().all(copies) => "transfers".to_owned(),
            _ => "node".to_owned(),
        }
    }

    /// What engines on several GPUs have in common.
    fn common_name(&self, engines: &[EngineId]) -> &'static str {
        let all = |class| engines.iter().all(|engine| self.machine.engines[engine.at()].serves == [class]);
        match () {
            () if all(EngineClass::H2d) => "h2d engines",
            () if all(EngineClass::D2h) => "d2h engines",
            () if all(EngineClass::Peer) => "peer engines",
            () if all(EngineClass::Ee) => "execution engines",
            () => "transfers",
        }
    }

    /// A copy in chunks, without deadline: the margin as a slower rate, the jitter as part of every chunk's set-up, since each
    /// chunk is noticed by itself.
    pub(super) fn in_chunks(
        &self,
        route: RouteId,
        bytes: Bytes,
        used: &[RouteId],
        domains: &Domains,
    ) -> Result<ChunkFlow, PlanError> {
        let (setup, rate) = self.keeps(route, used, domains)?;
        let margin = u128::from(PPM) + self.machine.calibration.as_ref().map_or(0, |c| u128::from(c.margin_ppm));
        let rate = Rate((u128::from(rate.0) * u128::from(PPM) / margin) as u64);
        Ok(ChunkFlow { bytes, setup: self.with_margin(setup), rate, period: Nanos::MAX, deadline: Nanos::MAX })
    }

    /// Cuts each copy of a server into the largest chunks that leave it the largest margin; whether there are any with which every
    /// window holds.
    ///
    /// Only where every job is one copy: a kernel and a batch run whole. Each has a size of its own: what is due first
    /// blocks nothing that is due earlier and stays whole, where one size for all would cut it too and cost its set-ups.
    fn cut(&self, at: u32, pipelines: &mut [Pipeline], domains: &Domains) -> bool {
        let used = routes_of(pipelines);
        let mut flows = Vec::new();
        for (pipeline, step) in steps_on(at, pipelines) {
            if !pipeline.source.is_planned() {
                break; // they come last
            }
            if pipeline.gang.is_some() || matches!(pipeline.source, PipelineSource::Sharded(_)) {
                return false;
            }
            let [operation] = step.operations.as_slice() else { return false };
            let OperationWork::Copy { route, bytes, .. } = operation.work else { return false };
            let Ok(flow) = self.in_chunks(route, bytes, &used, domains) else { return false };
            flows.push(ChunkFlow { period: pipeline.period, deadline: window_of(pipeline, step), ..flow });
        }
        let Ok(plan) = schedulability::flow_chunk_sizes_with_margin(&flows, CHUNK_GRANULE) else { return false };
        let steps = pipelines.iter_mut().flat_map(|p| &mut p.steps).filter(|step| step.server == at);
        for (((step, task), flow), &bytes) in steps.zip(&plan.tasks).zip(&flows).zip(&plan.bytes) {
            step.batch = None;
            step.cost = task.cost;
            step.piece = task.chunk;
            step.chunk = if flow.bytes > bytes { bytes } else { Bytes(0) };
        }
        true
    }
}

/// Chunks are whole pages of host memory.
pub(super) const CHUNK_GRANULE: Bytes = Bytes(4096);

/// Operations on different engines run side by side, unless one of them holds several engines.
fn longest(per_engines: &BTreeMap<Vec<EngineId>, Nanos>) -> Option<Nanos> {
    let times = per_engines.values().copied();
    if per_engines.keys().any(|engines| engines.len() > 1) { times.reduce(Nanos::saturating_add) } else { times.max() }
}

/// The verdict on the steps of one stream, where its schedules could be followed: whether it starts now or later is the same.
fn phased(server: &str, demands: &[Demand], jitter: Nanos, least_margin: u64) -> Option<Verdict> {
    // What has no windows got no pieces yet.
    let demands: Vec<&Demand> = demands.iter().filter(|demand| demand.task.chunk > Nanos::ZERO).collect();
    let explored = explored(&demands, jitter, JobCosts::UpToWorst, &mut Steps::shared_by(1));
    let (outcome, violation) = match &explored.verdict.outcome {
        schedulability::TestOutcome::Schedulable => (Outcome::Schedulable, None),
        schedulability::TestOutcome::NotSchedulable(schedulability::TestViolation::Late {
            task,
            release,
            deadline,
            finish,
            ..
        }) => {
            let work = finish.saturating_sub(*release);
            let violation = Violation {
                server: server.to_owned(),
                blocker: None,
                blocking: Nanos::ZERO,
                interval: deadline.saturating_sub(*release),
                demand: work,
                parts: vec![(demands[*task].name.clone(), 1, work)],
                because: Vec::new(),
            };
            (Outcome::NotSchedulable, Some(violation))
        }
        schedulability::TestOutcome::NotSchedulable(_) | schedulability::TestOutcome::Undecided(_) => return None,
    };
    Some(Verdict {
        outcome,
        model: format!("periodic steps in chunks, EDF, one chunk in flight; {}", Holds::OneStream.text()),
        strength: if jitter == Nanos::ZERO { Strength::Exact } else { Strength::Sufficient },
        utilisation_ppm: explored.verdict.utilisation_ppm,
        margin_ppm: Some(explored.margin_ppm(least_margin, None).unwrap_or(least_margin)),
        violation,
        notes: Vec::new(),
    })
}

/// What would fail first on a server whose copies are in chunks.
fn limit(server: &str, demands: &[Demand], margin_ppm: u64) -> Option<String> {
    let more = margin_ppm + schedulability::MARGIN_PPM_STEP;
    let tasks: Vec<RecurrentTask> = demands.iter().map(|demand| schedulability::scaled(&demand.task, more)).collect();
    let schedulability::TestOutcome::NotSchedulable(violation) = schedulability::chunked(&tasks, 1).outcome else {
        return None;
    };
    let what = match violation {
        schedulability::TestViolation::Demand { task: Some(blocker), interval, .. } => {
            format!("what is due {interval} after its release waits for a chunk of `{}`", demands[blocker].name)
        }
        schedulability::TestViolation::Demand { task: None, interval, .. } => {
            format!("what is due within {interval} takes all of that time")
        }
        schedulability::TestViolation::Utilisation | schedulability::TestViolation::Late { .. } => {
            "its copies take all of its time".to_owned()
        }
    };
    let margin = margin_ppm as f64 / PPM as f64;
    Some(format!("`{server}` serves long copies in chunks; with all costs x{margin:.2}, {what}"))
}

fn verdict_of(server: &str, demands: &[Demand], holds: Holds) -> Verdict {
    let tasks: Vec<RecurrentTask> = demands.iter().map(|demand| demand.task).collect();
    let whole = tasks.iter().all(|task| task.deadline == task.period && task.chunk == task.cost);
    let found = if whole { schedulability::jeffay(&tasks) } else { schedulability::chunked(&tasks, 1) };
    let name = |at: usize| demands[at].name.clone();
    let mut notes = Vec::new();
    let (outcome, violation) = match &found.outcome {
        schedulability::TestOutcome::Schedulable => (Outcome::Schedulable, None),
        schedulability::TestOutcome::Undecided(reason) => {
            notes.push(format!("server `{server}`: {reason}"));
            (Outcome::Undecided, None)
        }
        schedulability::TestOutcome::NotSchedulable(violation) => {
            (Outcome::NotSchedulable, Some(evidence(server, violation, &name)))
        }
    };
    let margin_ppm = (outcome != Outcome::Undecided).then(|| schedulability::margin_ppm(&tasks));
    Verdict {
        outcome,
        model: format!("{}; {}", found.model, holds.text()),
        strength: if found.strength == schedulability::TestStrength::Exact {
            Strength::Exact
        } else {
            Strength::Sufficient
        },
        utilisation_ppm: found.utilisation_ppm,
        margin_ppm,
        violation,
        notes,
    }
}

fn evidence(server: &str, violation: &schedulability::TestViolation, name: &impl Fn(usize) -> String) -> Violation {
    let server = server.to_owned();
    match violation {
        // The tests for any offsets never give `Late`.
        schedulability::TestViolation::Utilisation | schedulability::TestViolation::Late { .. } => Violation {
            server,
            blocker: None,
            blocking: Nanos::ZERO,
            interval: Nanos::ZERO,
            demand: Nanos::ZERO,
            parts: Vec::new(),
            because: Vec::new(),
        },
        schedulability::TestViolation::Demand { task, interval, demand, blocking, contributions } => Violation {
            server,
            blocker: task.map(name),
            blocking: *blocking,
            interval: *interval,
            demand: *demand,
            parts: contributions.iter().map(|part| (name(part.task), part.jobs, part.demand)).collect(),
            because: Vec::new(),
        },
    }
}
