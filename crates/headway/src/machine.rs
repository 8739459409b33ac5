//! Machines: what a node's memories, GPUs, links and engines are, and what they carry.

use std::path::Path;

pub use headway_core::files::machine::{Confidence, EndpointId, Machine, SHIPPED, parse, shipped, write};
use headway_core::files::suggest;
pub use headway_core::models::transfer::Method;

use crate::workload::{Workload, read};
use crate::{Error, Failure};

/// The machine that plans and simulated runs are for where none is named.
pub const USUAL: &str = "h200-x4";

/// The machine file that `headway measure` writes, in the folder where it was called.
pub const NODE_FILE: &str = "machine.toml";

/// A machine by the name it is shipped under, or from a machine file.
///
/// # Errors
/// `ErrorKind::Machine`, `ErrorKind::Io`, `ErrorKind::File`.
pub fn open(name: &str) -> Result<Machine, Error> {
    if let Some(machine) = shipped(name) {
        return Ok(machine);
    }
    let path = Path::new(name);
    if !path.exists() {
        let suggestion = suggest(name, SHIPPED.iter().map(|(name, _)| *name), "shipped machines");
        return Err(Failure::NoMachine { name: name.to_owned(), suggestion }.into());
    }
    Ok(parse(name, &read(path)?)?)
}

/// [`Machine::none`] for a workload that needs no machine, where none is `named`: its demands cost what their file says.
#[must_use]
pub fn for_flows(named: Option<&str>, workload: &Workload) -> Option<Machine> {
    (named.is_none() && workload.has_only_flows()).then(Machine::none)
}

/// `machine` with its first `gpus` GPUs only.
///
/// # Errors
/// `ErrorKind::Machine`.
pub fn restrict(machine: &Machine, gpus: usize) -> Result<Machine, Error> {
    let available = machine.gpus().count();
    let fewer = machine.with_gpus(gpus);
    Ok(fewer.ok_or_else(|| Failure::TooFewGpus { machine: machine.name.clone(), wanted: gpus, available })?)
}

/// `machine` as a program has it beside `others` programs that copy over its engines.
///
/// # Errors
/// `ErrorKind::Machine` if it does not say how long another process keeps an engine.
pub fn beside(machine: &Machine, others: u32) -> Result<Machine, Error> {
    Ok(machine.beside(others).ok_or_else(|| Failure::NoTurns { machine: machine.name.clone() })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_nearly_that_of_a_shipped_machine_is_answered_with_it() {
        assert!(open("h200x1").unwrap_err().to_string().ends_with("did you mean `h200-x1`?"));
        assert!(open("another").unwrap_err().to_string().contains("shipped machines: `"));
    }
}
