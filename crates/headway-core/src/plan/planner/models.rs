//! What three models say of one plan: the offsets that a plan fixes, and costs that never vary, accept more.

use serde::{Deserialize, Serialize};

use super::demands::{Demand, demands, steps_on};
use super::{Nanos, Outcome, Plan};
use crate::analysis::schedulability::{
    self, ConcreteTask, Costs, Strength, Ties, concrete_within, largest_factor, scaled,
};
use crate::plan::{Strength as Proof, Violation};

/// Steps of one exploration: a second or so.
const STEPS_MAX: u64 = 4_000_000;
/// Steps of an exploration that is repeated for the margin.
const STEPS_MAX_OF_MARGIN: u64 = 200_000;

/// What one model says of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelAnswer {
    /// What it holds for.
    pub model: String,
    /// Yes, no, or not known: the worst over all servers.
    pub outcome: Outcome,
    /// What a "yes" and a "no" prove.
    pub strength: Strength,
    /// The largest factor on all costs for which the answer is yes, parts per million. `None` where it is not known, and
    /// with exact costs, where lower costs may be worse and no factor means anything.
    pub margin_ppm: Option<u64>,
    /// Why it is not a yes.
    pub evidence: Option<Evidence>,
}

/// Why an answer is not a yes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// More work is due in an interval than it holds.
    Demand(Violation),
    /// The first job that some costs make late. All times count from the epoch.
    Late {
        server: String,
        name: String,
        /// Its number, from 0.
        job: u64,
        release: Nanos,
        deadline: Nanos,
        /// The latest time at which it, or a piece of it, may end.
        finish: Nanos,
    },
    /// The work on a server is more than its time.
    Utilisation { server: String },
    /// The test gives no answer.
    Unknown { server: String, reason: String },
}

/// The verdict for any offsets, then the one for exactly the offsets of the plan with costs from zero to the worst case,
/// then the one for exact costs. Each "yes" implies those after it, and is theirs where they cannot tell by themselves.
///
/// A release that is late by up to the plan's jitter is part of the costs for any offsets; the other two let every release
/// be as late, beside those costs. Servers share nothing: the worst answer is that of the plan.
#[must_use]
pub fn models(plan: &Plan) -> Vec<ModelAnswer> {
    let given = &plan.verdict;
    let strength = if given.strength == Proof::Exact { Strength::Exact } else { Strength::Sufficient };
    let evidence = given.violation.clone().map(Evidence::Demand);
    let by_choice = plan.fails_by_choice();
    let any = ModelAnswer {
        model: "any offsets, costs from 0 to the worst case; streams may join".to_owned(),
        outcome: given.outcome,
        strength,
        margin_ppm: given.margin_ppm,
        evidence,
    };
    // Other windows than those of the plan might hold.
    let here = |answer: ModelAnswer| match answer.outcome {
        Outcome::NotSchedulable | Outcome::Undecided if by_choice => {
            ModelAnswer { outcome: Outcome::Undecided, strength: Strength::Sufficient, ..answer }
        }
        _ => answer,
    };
    let mut concrete = implied(here(explored(plan, Costs::UpToWorst)), &any);
    if any.outcome == Outcome::Schedulable {
        // A factor with which any offsets hold, these hold with.
        concrete.margin_ppm = concrete.margin_ppm.max(any.margin_ppm);
    }
    let exact = implied(here(explored(plan, Costs::Exact)), &concrete);
    vec![any, concrete, exact]
}

/// `answer`, or the "yes" of a stronger model where it has none.
fn implied(answer: ModelAnswer, stronger: &ModelAnswer) -> ModelAnswer {
    if stronger.outcome != Outcome::Schedulable || answer.outcome == Outcome::Schedulable {
        return answer;
    }
    ModelAnswer { outcome: Outcome::Schedulable, margin_ppm: None, evidence: None, ..answer }
}

fn explored(plan: &Plan, costs: Costs) -> ModelAnswer {
    let (model, strength) = match costs {
        Costs::UpToWorst => ("these offsets, costs from 0 to the worst case; none may join", Strength::Exact),
        Costs::Exact => ("these offsets, exactly the worst-case costs; this run only", Strength::Necessary),
    };
    let late = if plan.jitter > Nanos::ZERO { format!("; releases up to {} late", plan.jitter) } else { String::new() };
    let mut answer = ModelAnswer {
        model: format!("{model}{late}"),
        outcome: Outcome::Schedulable,
        strength,
        margin_ppm: None,
        evidence: None,
    };
    let mut margins = Vec::new();
    for (number, server) in (0u32..).zip(&plan.servers) {
        let demands = demands(&steps_on(number, &plan.pipelines));
        let (outcome, margin, evidence) = of_server(&server.name, &demands, plan.jitter, costs);
        margins.push(margin);
        if outcome > answer.outcome {
            (answer.outcome, answer.evidence) = (outcome, evidence);
        }
    }
    answer.margin_ppm = margins.into_iter().min().flatten();
    answer
}

fn of_server(
    server: &str,
    demands: &[Demand],
    jitter: Nanos,
    costs: Costs,
) -> (Outcome, Option<u64>, Option<Evidence>) {
    let server = server.to_owned();
    if demands.len() > 1 && demands.iter().any(|demand| !demand.even) {
        let reason = "steps of different lengths follow each other in one window".to_owned();
        return (Outcome::Undecided, None, Some(Evidence::Unknown { server, reason }));
    }
    let task = |demand: &Demand| {
        let jitter = jitter.min(demand.task.period.saturating_sub(Nanos(1)));
        ConcreteTask { task: demand.task, offset: demand.offset, jitter }
    };
    let tasks: Vec<ConcreteTask> = demands.iter().map(task).collect();
    let found = concrete_within(&tasks, costs, Ties::Any, STEPS_MAX);
    let steps = found.window.states.saturating_mul(tasks.len() as u64);
    let decided = !matches!(found.verdict.outcome, schedulability::Outcome::Undecided(_));
    let margin = (decided && costs == Costs::UpToWorst && steps <= STEPS_MAX_OF_MARGIN).then(|| {
        largest_factor(|factor| {
            let tasks: Vec<ConcreteTask> =
                tasks.iter().map(|t| ConcreteTask { task: scaled(&t.task, factor), ..*t }).collect();
            concrete_within(&tasks, costs, Ties::Any, 4 * STEPS_MAX_OF_MARGIN).verdict.is_schedulable()
        })
    });
    match found.verdict.outcome {
        schedulability::Outcome::Schedulable => (Outcome::Schedulable, margin, None),
        schedulability::Outcome::Undecided(reason) => {
            (Outcome::Undecided, None, Some(Evidence::Unknown { server, reason: reason.to_string() }))
        }
        schedulability::Outcome::NotSchedulable(violation) => {
            let evidence = match violation {
                schedulability::Violation::Late { task, job, release, deadline, finish } => {
                    Evidence::Late { server, name: demands[task].name.clone(), job, release, deadline, finish }
                }
                // The exploration gives no other.
                schedulability::Violation::Utilisation | schedulability::Violation::Demand { .. } => {
                    Evidence::Utilisation { server }
                }
            };
            (Outcome::NotSchedulable, margin, Some(evidence))
        }
    }
}
