//! Machines: what a node's memories, GPUs, links and engines are, and what they carry.

use std::path::Path;

pub use headway_core::files::machine::{Confidence, EndpointId, Machine, SHIPPED, parse, shipped, write};
pub use headway_core::models::transfer::Method;

use crate::Error;
use crate::workload::{Workload, read};

/// A machine by the name it is shipped under, or from a machine file.
///
/// # Errors
/// [`Error::NoMachine`], [`Error::Read`], [`Error::File`].
pub fn open(name: &str) -> Result<Machine, Error> {
    if let Some(machine) = shipped(name) {
        return Ok(machine);
    }
    let path = Path::new(name);
    if !path.exists() {
        let shipped: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
        return Err(Error::NoMachine { name: name.to_owned(), shipped: shipped.join(", ") });
    }
    Ok(parse(name, &read(path)?)?)
}

/// [`Machine::none`] for a workload that needs no machine, where none is `named`: its flows cost what their file says.
#[must_use]
pub fn for_flows(named: Option<&str>, workload: &Workload) -> Option<Machine> {
    (named.is_none() && workload.has_only_flows()).then(Machine::none)
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
