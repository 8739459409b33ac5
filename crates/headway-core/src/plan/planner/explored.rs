//! Every schedule of what recurs on a server, at the offsets that a plan fixes.

use super::demands::Demand;
use crate::analysis::schedulability::{
    ConcreteTask, JitterCosts, JobCosts, MARGIN_PPM_MAX, TestOutcome, TestVerdict, Ties, concrete_within,
    largest_factor_between, scaled,
};
use crate::units::Nanos;

/// Steps of one exploration at most: a step is a task looked at in a state.
const STEPS_MAX: u64 = 4_000_000;
/// Steps of an exploration that is repeated for the margin.
const STEPS_MAX_OF_MARGIN: u64 = 200_000;

/// Steps that the explorations of one plan may take, so that they end in a fraction of a second however many servers there are.
pub(super) struct Steps {
    left: u64,
    /// Explorations still to come, which share what is left.
    shares: u64,
}

impl Steps {
    /// For as many explorations.
    pub(super) const fn shared_by(explorations: usize) -> Self {
        Self { left: STEPS_MAX, shares: explorations as u64 }
    }

    fn next(&mut self) -> u64 {
        let share = self.left / self.shares.max(1);
        self.shares = self.shares.saturating_sub(1);
        share
    }
}

/// What every schedule of a server's demands at their offsets gives.
pub(super) struct Explored {
    pub(super) verdict: TestVerdict,
    /// The longest time from release to end of each demand; empty unless the verdict is a yes.
    pub(super) bounds: Vec<Nanos>,
    tasks: Vec<ConcreteTask>,
    steps: u64,
}

pub(super) fn explored(demands: &[&Demand], jitter: Nanos, costs: JobCosts, steps: &mut Steps) -> Explored {
    let task = |demand: &&Demand| {
        // The costs contain the jitter: with exact costs nothing is late beside it.
        let jitter = if costs == JobCosts::Exact { Nanos::ZERO } else { jitter };
        let jitter = jitter.min(demand.task.period.saturating_sub(Nanos(1)));
        ConcreteTask { task: demand.task, offset: demand.offset, jitter }
    };
    let tasks: Vec<ConcreteTask> = demands.iter().map(task).collect();
    let found = concrete_within(&tasks, costs, Ties::Any, JitterCosts::WithinCosts, steps.next());
    let taken = found.window.steps;
    steps.left = steps.left.saturating_sub(taken);
    Explored { verdict: found.verdict, bounds: found.bounds, tasks, steps: taken }
}

impl Explored {
    /// The largest factor on all costs with which every schedule holds, at most `most`, where `least` is known to be one; `None`
    /// where that would take too long.
    pub(super) fn margin_ppm(&self, least: u64, most: Option<u64>) -> Option<u64> {
        if matches!(self.verdict.outcome, TestOutcome::Undecided(_)) || self.steps > STEPS_MAX_OF_MARGIN {
            return None;
        }
        let mut left = 16 * STEPS_MAX_OF_MARGIN;
        Some(largest_factor_between(least, most.unwrap_or(MARGIN_PPM_MAX), |factor| {
            let tasks: Vec<ConcreteTask> =
                self.tasks.iter().map(|t| ConcreteTask { task: scaled(&t.task, factor), ..*t }).collect();
            let found = concrete_within(
                &tasks,
                JobCosts::UpToWorst,
                Ties::Any,
                JitterCosts::WithinCosts,
                left.min(4 * STEPS_MAX_OF_MARGIN),
            );
            left = left.saturating_sub(found.window.steps);
            found.verdict.is_schedulable()
        }))
    }
}
