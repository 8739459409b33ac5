//! Every schedule of what recurs on a server, at the offsets that a plan fixes.

use super::Nanos;
use super::demands::Demand;
use crate::analysis::schedulability::{
    ConcreteTask, Costs, Outcome, Ties, Verdict, concrete_within, largest_factor, scaled,
};

/// Steps of one exploration: a second or so.
const STEPS_MAX: u64 = 4_000_000;
/// Steps of an exploration that is repeated for the margin.
const STEPS_MAX_OF_MARGIN: u64 = 200_000;

/// What every schedule of a server's demands at their offsets gives.
pub(super) struct Explored {
    pub(super) verdict: Verdict,
    pub(super) margin_ppm: Option<u64>,
    /// The longest time from release to end of each demand; empty unless the verdict is a yes.
    pub(super) bounds: Vec<Nanos>,
}

pub(super) fn explored(demands: &[&Demand], jitter: Nanos, costs: Costs) -> Explored {
    let task = |demand: &&Demand| {
        let jitter = jitter.min(demand.task.period.saturating_sub(Nanos(1)));
        ConcreteTask { task: demand.task, offset: demand.offset, jitter }
    };
    let tasks: Vec<ConcreteTask> = demands.iter().map(task).collect();
    let found = concrete_within(&tasks, costs, Ties::Any, STEPS_MAX);
    let steps = found.window.states.saturating_mul(tasks.len() as u64);
    let decided = !matches!(found.verdict.outcome, Outcome::Undecided(_));
    let margin_ppm = (decided && costs == Costs::UpToWorst && steps <= STEPS_MAX_OF_MARGIN).then(|| {
        largest_factor(|factor| {
            let tasks: Vec<ConcreteTask> =
                tasks.iter().map(|t| ConcreteTask { task: scaled(&t.task, factor), ..*t }).collect();
            concrete_within(&tasks, costs, Ties::Any, 4 * STEPS_MAX_OF_MARGIN).verdict.is_schedulable()
        })
    });
    Explored { verdict: found.verdict, margin_ppm, bounds: found.bounds }
}
