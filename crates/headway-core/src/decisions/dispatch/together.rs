//! Jobs that are served together, those of a batch or of a gang: who is ready waits for the others as long as the plan's jitter.
//!
//! The plan counts them as one job whose cost contains the jitter, so that it may be released as late as that. If those that are
//! ready went ahead, the others would be a second job, which no test has counted. Whoever is later than the jitter goes alone.

use std::collections::BTreeMap;

use super::{Dispatcher, Progress, StepInstance};
use crate::plan::Plan;
use crate::units::Nanos;

#[derive(Debug)]
pub(super) struct Together {
    jitter: Nanos,
    /// Pipelines and steps that are served together.
    sets: Vec<Vec<(u32, u32)>>,
    /// By pipeline and step, its set.
    set_of: Vec<Vec<Option<usize>>>,
    /// Jobs that are ready, by the opening of their windows and their set, in the order in which they became so.
    ready: BTreeMap<(Nanos, usize), Vec<StepInstance>>,
}

impl Together {
    pub(super) fn of(plan: &Plan) -> Self {
        let mut by_key = BTreeMap::new();
        let mut sets: Vec<Vec<(u32, u32)>> = Vec::new();
        let mut set_of: Vec<Vec<Option<usize>>> = Vec::new();
        for (pipeline, of) in (0u32..).zip(&plan.pipelines) {
            let mut of_steps = Vec::new();
            for (at, step) in (0u32..).zip(&of.steps) {
                let batch = step.batch.map(|place| (true, place.number, 0));
                let key = batch.or_else(|| of.gang.map(|gang| (false, gang.number, at)));
                of_steps.push(key.map(|key| {
                    let set = *by_key.entry((step.server, key)).or_insert(sets.len());
                    sets.resize_with(sets.len().max(set + 1), Vec::new);
                    sets[set].push((pipeline, at));
                    set
                }));
            }
            set_of.push(of_steps);
        }
        Self { jitter: plan.jitter, sets, set_of, ready: BTreeMap::new() }
    }

    /// Takes a job that is ready if it is served with others; whether it is.
    pub(super) fn take(&mut self, job: StepInstance, nominal: Nanos) -> bool {
        let set = self.set_of[job.pipeline as usize][job.step as usize];
        if let Some(set) = set {
            self.ready.entry((nominal, set)).or_default().push(job);
        }
        set.is_some()
    }

    /// When jobs that are ready wait no longer.
    pub(super) fn poll_timeout(&self) -> Option<Nanos> {
        self.ready.first_key_value().map(|((nominal, _), _)| nominal.saturating_add(self.jitter))
    }
}

impl Dispatcher {
    /// Puts jobs in front of their server for which nobody is waited any more.
    pub(super) fn join_together(&mut self) {
        let Some(epoch) = self.epoch else { return };
        let goes = |&&(nominal, set): &&(Nanos, usize)| {
            let late = self.now >= nominal.saturating_add(self.together.jitter);
            late || !self.together.sets[set]
                .iter()
                .any(|&(pipeline, step)| self.may_come(pipeline, step, nominal - epoch))
        };
        let sets: Vec<(Nanos, usize)> = self.together.ready.keys().filter(goes).copied().collect();
        for key in sets {
            for job in self.together.ready.remove(&key).into_iter().flatten() {
                self.wait(job, key.0);
            }
        }
    }

    /// Whether a step has a job whose window opened at `nominal` after the epoch and that is not ready yet.
    fn may_come(&self, pipeline: u32, step: u32, nominal: Nanos) -> bool {
        let planned = &self.plan.pipelines[pipeline as usize];
        let Some(since_first) = nominal.0.checked_sub(planned.release(0, step as usize).0) else { return false };
        let cycle = since_first / planned.period.0;
        let Progress { cycles, finished, open, .. } = &self.pipelines[pipeline as usize];
        let is_due = since_first % planned.period.0 == 0 && (*finished..*cycles).contains(&cycle);
        let state = open.binary_search_by_key(&cycle, |state| state.cycle).map(|at| &open[at]);
        is_due && state.map_or(true, |state| state.queued <= step && state.complete <= step)
    }
}
