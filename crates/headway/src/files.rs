//! Machine and workload files from disk, and plans from them.

use std::fs;
use std::path::Path;

use headway_core::files::error::Loaded;
use headway_core::files::machine::{self, Machine};
use headway_core::files::workload::{self, Workload};
use headway_core::plan::Plan;
use headway_core::plan::planner::{self, Options, PlanError};

use crate::{Error, why};

/// Reads a workload file.
///
/// # Errors
/// [`Error::Read`], [`Error::File`].
pub fn workload(path: &Path) -> Result<Loaded<Workload>, Error> {
    let text = read(path)?;
    Ok(workload::parse(&path.display().to_string(), &text)?)
}

/// A machine by the name it is shipped under, or from a machine file.
///
/// # Errors
/// [`Error::NoMachine`], [`Error::Read`], [`Error::File`].
pub fn machine(name: &str) -> Result<Machine, Error> {
    if let Some(machine) = machine::shipped(name) {
        return Ok(machine);
    }
    let path = Path::new(name);
    if !path.exists() {
        let shipped: Vec<&str> = machine::SHIPPED.iter().map(|(name, _)| *name).collect();
        return Err(Error::NoMachine { name: name.to_owned(), shipped: shipped.join(", ") });
    }
    Ok(machine::parse(name, &read(path)?)?)
}

/// `machine` with its first `gpus` GPUs only.
///
/// # Errors
/// [`Error::TooFewGpus`].
pub fn restrict(machine: &Machine, gpus: usize) -> Result<Machine, Error> {
    machine.with_gpus(gpus).ok_or_else(|| Error::TooFewGpus {
        machine: machine.name.clone(),
        wanted: gpus,
        available: machine.gpus().count(),
    })
}

/// Plans a workload; what a file causes is reported at its line.
///
/// # Errors
/// [`Error::File`] where the workload names something that the machine does not have, [`Error::Plan`] otherwise.
pub fn plan(machine: &Machine, workload: &Loaded<Workload>, options: Options) -> Result<Plan, Error> {
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

fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}
