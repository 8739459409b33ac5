//! Plans: windows for every copy and kernel of a workload on a machine, with a verdict and its reasons.

mod text;

use headway_core::plan::planner;
pub use headway_core::plan::planner::{ModelAnswer, PlanError, PlanOptions, models};
pub use headway_core::plan::{
    OperationWork, Outcome, Pipeline, PipelineSource, Plan, PlanChoice, PlannedBatch, PlannedStep, PlannedStream,
    Server, Strategy, Strength, Verdict, Violation,
};

use std::collections::BTreeSet;

use headway_core::units::Nanos;
use headway_os::event;
use serde::Serialize;

use crate::error::error_at;
use crate::machine::{Confidence, Machine};
use crate::workload::{Loaded, Workload};
use crate::{Error, Failure, why};

pub use crate::cpus::Assumption;
#[doc(hidden)]
pub use crate::cpus::assumption;

/// For each kernel of `plan` that this program does not have, which a run of it needs, a sentence that says so.
fn absent_kernels(plan: &Plan) -> Vec<String> {
    // Kernels of modules come with the workload.
    let named = plan.pipelines.iter().filter(|pipeline| !matches!(pipeline.source, PipelineSource::Packets(_)));
    let operations = named.flat_map(|pipeline| &pipeline.steps).flat_map(|step| &step.operations);
    let names: BTreeSet<&str> = operations
        .filter_map(|operation| match &operation.work {
            OperationWork::Compute { kernel } => Some(kernel.as_str()),
            OperationWork::Copy { .. } | OperationWork::Hold => None,
        })
        .collect();
    let absent = names.into_iter().filter(|name| headway_kernels::find(name).is_none());
    let known = headway_kernels::ids().collect::<Vec<_>>().join(", ");
    absent
        .map(|name| format!("kernel `{name}` is not in this program, which can plan it but not run it; it has {known}"))
        .collect()
}

/// Threads that wait for a plan's operations learn of their end later than a probe that only polls: no measured jitter is below
/// this.
#[doc(hidden)]
pub const JITTER_MIN: Nanos = Nanos(100_000);

/// Says so where the machine's jitter is more than half of what a job is planned to cost.
fn jitter_note(machine: &Machine, plan: &Plan) -> Option<String> {
    let calibration = machine.calibration.as_ref().filter(|of| of.jitter > Nanos::ZERO)?;
    let jitter = calibration.jitter;
    let planned = plan.pipelines.iter().filter(|pipeline| pipeline.source.is_planned());
    let steps: Vec<(&str, &PlannedStep)> =
        planned.flat_map(|pipeline| pipeline.steps.iter().map(|step| (pipeline.name.as_str(), step))).collect();
    let dominated = || steps.iter().filter(|(_, step)| u128::from(jitter.0) * 2 > u128::from(step.cost.0));
    let (pipeline, most) = dominated().min_by_key(|(_, step)| step.cost)?;
    let remedy = if calibration.driver == "none" {
        "the machine file states it, and no measurement stands behind it"
    } else if jitter <= JITTER_MIN {
        "it is the least that `headway measure` assumes; fewer and larger copies lose less to it"
    } else {
        "the measured node was that late: measure again on a quiet node (`headway measure`)"
    };
    Some(format!(
        "more than half of the cost is the machine's jitter in {} of {} steps: {jitter}, for example of {} in `{pipeline}` \
         (`{}`); {remedy}",
        dominated().count(),
        steps.len(),
        most.cost,
        most.name
    ))
}

/// Plans a workload; what a file causes is reported at its line.
///
/// # Errors
/// `ErrorKind::File` where the workload names something that the machine does not have, `ErrorKind::Plan` otherwise.
pub fn make(machine: &Machine, workload: &Loaded<Workload>, options: PlanOptions) -> Result<Plan, Error> {
    let mut plan = planner::plan(machine, &workload.value, options).map_err(|error| match (error.place(), &error) {
        (_, PlanError::Workload(wrong)) => Error::from(wrong.clone()),
        ("", _) => Error::from(Failure::Plan(Box::new(error))),
        (place, _) => {
            let help = match &error {
                PlanError::UnknownName { known, .. } => Some(format!("write one of: {known}")),
                PlanError::UnknownKernel { known, name, .. } => {
                    let add = format!("add a `[[kernel]]` with `id = \"{name}\"` and its cost to the machine file");
                    Some(if known.is_empty() { add } else { format!("write one of: {known}; or {add}") })
                }
                PlanError::NoCost { id, .. } => Some(format!(
                    "write the longest time of a launch into the step, for example `cost = \"1.2 ms\"`, or a `[[kernel]]` with \
                     `id = \"{id}\"` and its cost into the machine file"
                )),
                PlanError::NoRoute { .. } => Some("name ends between which the machine file has a route".to_owned()),
                _ => None,
            };
            error_at(workload, place, &error.to_string(), help)
        }
    })?;
    why::explain(&mut plan, machine);
    tell(&plan);
    Ok(plan)
}

/// A plan with what other models say of it.
#[derive(Clone, Debug, Serialize)]
pub struct PlanAnswer {
    #[serde(flatten)]
    pub plan: Plan,
    pub models: Vec<ModelAnswer>,
    pub assumes: Assumption,
    pub confidence: Confidence,
}

impl PlanAnswer {
    /// The answer for people, with `remark` behind the name of the machine. Long tables show the tightest lines.
    #[must_use]
    pub fn text(&self, remark: &str) -> String {
        text::of_plan(&self.plan, &self.models, &self.assumes, &self.confidence, remark)
    }
}

/// Plans a workload, and says what the answer rests on. The notes of the verdict also name kernels that this program does not have.
///
/// # Errors
/// Those of [`make`].
pub fn answer(machine: &Machine, workload: &Loaded<Workload>, options: PlanOptions) -> Result<PlanAnswer, Error> {
    let mut plan = make(machine, workload, options)?;
    plan.verdict.notes.extend(jitter_note(machine, &plan));
    plan.verdict.notes.extend(absent_kernels(&plan));
    let (models, assumes) = (models(&plan), assumption(&plan));
    Ok(PlanAnswer { plan, models, assumes, confidence: machine.confidence() })
}

/// Tells subscribers what the planner tried, how it judged each server, and what it restricted.
fn tell(plan: &Plan) {
    for tried in &plan.alternatives {
        event!(
            DEBUG,
            "headway::plan",
            "strategy tried",
            strategy = tried.strategy.name(),
            outcome = format_args!("{:?}", tried.outcome),
            utilisation_ppm = tried.utilisation_ppm,
            margin_ppm = format_args!("{:?}", tried.margin_ppm)
        );
    }
    for server in &plan.servers {
        let verdict = &server.verdict;
        event!(
            DEBUG,
            "headway::plan",
            "server judged",
            server = server.name,
            outcome = format_args!("{:?}", verdict.outcome),
            model = verdict.model,
            margin_ppm = format_args!("{:?}", verdict.margin_ppm),
            violation = format_args!("{:?}", verdict.violation)
        );
    }
    for note in &plan.verdict.notes {
        event!(DEBUG, "headway::plan", "restricted", what = note);
    }
}
