//! Plans: windows for every copy and kernel of a workload on a machine, with a verdict and its reasons.

pub use headway_core::analysis::schedulability::Strength as Proof;
use headway_core::plan::planner;
pub use headway_core::plan::planner::{Evidence, ModelAnswer, PlanError, PlanOptions, models, rate_alone};
pub use headway_core::plan::{
    Outcome, Pipeline, Plan, PlannedBatch, PlannedStep, PlannedStream, Source, Strategy, Strength, Verdict, Violation,
    Work,
};

use crate::machine::Machine;
use crate::workload::{Loaded, Workload};
use crate::{Error, why};

pub use crate::cpus::{Assumption, assumption};

/// Plans a workload; what a file causes is reported at its line.
///
/// # Errors
/// [`Error::File`] where the workload names something that the machine does not have, [`Error::Plan`] otherwise.
pub fn make(machine: &Machine, workload: &Loaded<Workload>, options: PlanOptions) -> Result<Plan, Error> {
    let mut plan = planner::plan(machine, &workload.value, options).map_err(|error| match error.place() {
        "" => Error::Plan(Box::new(error)),
        place => {
            let help = match &error {
                PlanError::UnknownName { known, .. } => Some(format!("write one of: {known}")),
                PlanError::NoRoute { .. } => Some("name ends between which the machine file has a route".to_owned()),
                _ => None,
            };
            Error::from(workload.error_at(place, error.to_string(), help))
        }
    })?;
    why::explain(&mut plan, machine);
    Ok(plan)
}
