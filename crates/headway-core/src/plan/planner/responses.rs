//! Bounds on responses: how long steps can take from the opening of their windows.

use super::demands::{Demand, demands, steps_on};
use super::explored::{Steps, explored};
use super::holds::Holds;
use super::{Nanos, Outcome, Pipeline, PipelineSource, Plan, Server};
use crate::analysis::schedulability::{JobCosts, responses};

/// Tasks and instants looked at for one plan: a tenth of a second or so.
const STEPS_MAX: u64 = 10_000_000;

/// How long demands can take, by the steps that they stand for.
pub(super) struct Responses {
    /// By pipeline and step.
    steps: Vec<Vec<Option<Nanos>>>,
    /// By server, the pipelines and steps on it, in the order of [`steps_on`].
    on: Vec<Vec<(usize, usize)>>,
}

impl Responses {
    pub(super) fn of(plan: &Plan) -> Self {
        let mut on = vec![Vec::new(); plan.servers.len()];
        for (pipeline, of) in plan.pipelines.iter().enumerate() {
            for (step, planned) in of.steps.iter().enumerate() {
                on[planned.server as usize].push((pipeline, step));
            }
        }
        Self { steps: plan.pipelines.iter().map(|of| vec![None; of.steps.len()]).collect(), on }
    }

    /// Takes what is known of the demands on a server.
    pub(super) fn take(&mut self, server: usize, demands: &[Demand], bounds: impl Iterator<Item = Nanos>) {
        for (demand, bound) in demands.iter().zip(bounds) {
            for &at in &demand.steps {
                let (pipeline, step) = self.on[server][at];
                self.steps[pipeline][step] = Some(bound);
            }
        }
    }

    /// The longest response of every pipeline, as [`Pipeline::bound`] counts it: what is known here, or the plan's bound where
    /// that is shorter, since it counts a late release once.
    pub(super) fn of_pipelines(self, plan: &Plan) -> Vec<Option<Nanos>> {
        let with = |(of, bounds): (&Pipeline, Vec<Option<Nanos>>)| {
            let mut pipeline = of.clone();
            for (step, bound) in pipeline.steps.iter_mut().zip(bounds) {
                step.bound = [bound, step.bound].into_iter().flatten().min();
            }
            pipeline.bound()
        };
        plan.pipelines.iter().zip(self.steps).map(with).collect()
    }
}

/// Sets the bound of every step of pipelines whose servers all hold.
pub(super) fn bound(plan: &mut Plan) {
    let mut found = Responses::of(plan);
    let mut left = STEPS_MAX;
    let of_one_stream = |server: &&Server| Holds::of(&server.verdict.model) == Holds::OneStream;
    let mut explorations = Steps::shared_by(plan.servers.iter().filter(of_one_stream).count());
    for (number, server) in plan.servers.iter().enumerate() {
        if server.verdict.outcome != Outcome::Schedulable || server.in_flight > 1 {
            continue;
        }
        let steps = steps_on(number as u32, &plan.pipelines);
        let demands = demands(&steps);
        let tasks: Vec<_> = demands.iter().map(|demand| demand.task).collect();
        let deadlines = tasks.iter().map(|task| task.deadline);
        // Requests are admitted as far as deadlines hold.
        let urgent = steps.iter().any(|(pipeline, _)| matches!(pipeline.source, PipelineSource::Urgent(_)));
        let bounds = if urgent {
            Some(deadlines.clone().collect())
        } else if Holds::of(&server.verdict.model) == Holds::OneStream {
            let demands: Vec<_> = demands.iter().collect();
            Some(explored(&demands, plan.jitter, JobCosts::UpToWorst, &mut explorations).bounds)
        } else {
            responses(&tasks, &mut left)
        };
        // That they hold is proven.
        found.take(number, &demands, bounds.into_iter().flatten().zip(deadlines).map(|(bound, due)| bound.min(due)));
    }
    let holds: Vec<bool> = plan.servers.iter().map(|of| of.verdict.outcome == Outcome::Schedulable).collect();
    for (pipeline, bounds) in plan.pipelines.iter_mut().zip(found.steps) {
        if pipeline.source.is_planned() && pipeline.steps.iter().all(|step| holds[step.server as usize]) {
            pipeline.steps.iter_mut().zip(bounds).for_each(|(step, bound)| step.bound = bound);
        }
    }
}
