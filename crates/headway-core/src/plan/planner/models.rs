//! What three models say of one plan: the offsets that a plan fixes, and costs that never vary, accept more.

use serde::{Deserialize, Serialize};

use super::demands::{Demand, demands, steps_on};
use super::explored::{Steps, explored};
use super::holds::Holds;
use super::responses::Responses;
use crate::analysis::schedulability::{self, JobCosts, MARGIN_PPM_MAX, TestStrength};
use crate::plan::{Outcome, Plan, Strength as Proof, Violation};
use crate::units::Nanos;

/// What one model says of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelAnswer {
    /// What it holds for.
    pub model: String,
    /// Yes, no, or not known: the worst over all servers.
    pub outcome: Outcome,
    /// What a "yes" and a "no" prove.
    pub strength: TestStrength,
    /// The largest factor on all costs for which the answer is yes, parts per million. `None` where it is not known, and
    /// with exact costs, where lower costs may be worse and no factor means anything.
    pub margin_ppm: Option<u64>,
    /// The longest response of each pipeline of the plan, in its order, as [`Pipeline::bound`](crate::plan::Pipeline::bound)
    /// counts it; `None` = not known. Empty unless the answer rests on these offsets, and is a yes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bounds: Vec<Option<Nanos>>,
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
        /// The latest time at which it, or a chunk of it, may end.
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
/// Costs contain the plan's jitter, once: what a release is late by, its job takes less than its cost. Servers share nothing: the
/// worst answer is that of the plan.
#[must_use]
pub fn models(plan: &Plan) -> Vec<ModelAnswer> {
    let given = &plan.verdict;
    let strength = if given.strength == Proof::Exact { TestStrength::Exact } else { TestStrength::Sufficient };
    let evidence = given.violation.clone().map(Evidence::Demand);
    let by_choice = plan.choice().is_some();
    let holds = plan.servers.iter().map(|server| Holds::of(&server.verdict.model)).max().unwrap_or(Holds::AnyOffsets);
    let joins = if holds == Holds::AnyOffsets { "streams may join" } else { "none may join" };
    let any = ModelAnswer {
        model: format!("{}; {joins}", holds.text()),
        outcome: given.outcome,
        strength,
        margin_ppm: given.margin_ppm,
        bounds: Vec::new(),
        evidence,
    };
    // Other windows than those of the plan might hold.
    let here = |answer: ModelAnswer| match answer.outcome {
        Outcome::NotSchedulable | Outcome::Undecided if by_choice => {
            ModelAnswer { outcome: Outcome::Undecided, strength: TestStrength::Sufficient, ..answer }
        }
        _ => answer,
    };
    let mut concrete = implied(here(over_servers(plan, JobCosts::UpToWorst)), &any);
    if any.outcome == Outcome::Schedulable {
        // A factor with which any offsets hold, these hold with.
        concrete.margin_ppm = concrete.margin_ppm.max(any.margin_ppm);
    }
    let exact = implied(here(over_servers(plan, JobCosts::Exact)), &concrete);
    vec![any, concrete, exact]
}

/// `answer`, or the "yes" of a stronger model where it has none.
fn implied(answer: ModelAnswer, stronger: &ModelAnswer) -> ModelAnswer {
    if stronger.outcome != Outcome::Schedulable || answer.outcome == Outcome::Schedulable {
        return answer;
    }
    ModelAnswer { outcome: Outcome::Schedulable, margin_ppm: None, bounds: Vec::new(), evidence: None, ..answer }
}

fn over_servers(plan: &Plan, costs: JobCosts) -> ModelAnswer {
    let (model, strength) = match costs {
        JobCosts::UpToWorst if plan.jitter > Nanos::ZERO => {
            ("these offsets, costs from 0 to the worst case; none may join", TestStrength::Sufficient)
        }
        JobCosts::UpToWorst => ("these offsets, costs from 0 to the worst case; none may join", TestStrength::Exact),
        JobCosts::Exact => ("these offsets, exactly the worst-case costs; this run only", TestStrength::Necessary),
    };
    let late = if plan.jitter > Nanos::ZERO && costs == JobCosts::UpToWorst {
        format!("; releases up to {} late", plan.jitter)
    } else {
        String::new()
    };
    let mut answer = ModelAnswer {
        model: format!("{model}{late}"),
        outcome: Outcome::Schedulable,
        strength,
        margin_ppm: None,
        bounds: Vec::new(),
        evidence: None,
    };
    // The least of the servers seen so far; none once one is not known.
    let mut margin = Some(MARGIN_PPM_MAX);
    let mut steps = Steps::shared_by(plan.servers.len());
    let mut responses = Responses::of(plan);
    for (number, server) in (0u32..).zip(&plan.servers) {
        let demands = demands(&steps_on(number, &plan.pipelines));
        if demands.len() > 1 && demands.iter().any(|demand| !demand.even) {
            let reason = "steps of different lengths follow each other in one window".to_owned();
            let evidence = Evidence::Unknown { server: server.name.clone(), reason };
            margin = None;
            if answer.outcome < Outcome::Undecided {
                (answer.outcome, answer.evidence) = (Outcome::Undecided, Some(evidence));
            }
            continue;
        }
        let found = explored(&demands.iter().collect::<Vec<_>>(), plan.jitter, costs, &mut steps);
        if costs == JobCosts::UpToWorst {
            // With a factor that any offsets hold with, these hold.
            let least = server.verdict.margin_ppm.unwrap_or(0);
            margin = margin.and_then(|most| found.margin_ppm(least.min(most), Some(most)));
        }
        responses.take(number as usize, &demands, found.bounds.iter().copied());
        let outcome = match &found.verdict.outcome {
            schedulability::TestOutcome::Schedulable => Outcome::Schedulable,
            schedulability::TestOutcome::Undecided(_) => Outcome::Undecided,
            schedulability::TestOutcome::NotSchedulable(_) => Outcome::NotSchedulable,
        };
        if outcome > answer.outcome {
            (answer.outcome, answer.evidence) = (outcome, evidence(&server.name, &demands, &found.verdict.outcome));
        }
    }
    answer.margin_ppm = margin.filter(|_| costs == JobCosts::UpToWorst);
    if answer.outcome == Outcome::Schedulable && costs == JobCosts::UpToWorst {
        answer.bounds = responses.of_pipelines(plan);
    }
    answer
}

fn evidence(server: &str, demands: &[Demand], outcome: &schedulability::TestOutcome) -> Option<Evidence> {
    let server = server.to_owned();
    match outcome {
        schedulability::TestOutcome::Schedulable => None,
        schedulability::TestOutcome::Undecided(reason) => {
            Some(Evidence::Unknown { server, reason: reason.to_string() })
        }
        schedulability::TestOutcome::NotSchedulable(schedulability::TestViolation::Late {
            task,
            job,
            release,
            deadline,
            finish,
        }) => {
            let (name, job) = (demands[*task].name.clone(), *job);
            let (release, deadline, finish) = (*release, *deadline, *finish);
            Some(Evidence::Late { server, name, job, release, deadline, finish })
        }
        // The exploration gives no other.
        schedulability::TestOutcome::NotSchedulable(
            schedulability::TestViolation::Utilisation | schedulability::TestViolation::Demand { .. },
        ) => Some(Evidence::Utilisation { server }),
    }
}
