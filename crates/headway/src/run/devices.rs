//! What a run is made on: the backend's devices, and the machine file that stands for them.

use std::sync::Arc;

use headway_core::files::machine::Machine;
use headway_core::files::workload::Workload;
use headway_core::log::RunSource;
use headway_core::units::Bytes;
use headway_cuda::{CudaGpu, Driver};
use headway_device::emu::{EmuGpu, EmuSpec};
use headway_device::{DeviceError, Engines};

use super::{Backend, Chosen, RunOptions};
use crate::{Error, Failure, emulation};

/// Opens the devices of the backend, and finds the machine file that stands for them, with the costs that `workload` says.
#[doc(hidden)]
pub fn choose(options: &RunOptions, workload: &Workload) -> Result<Chosen, Error> {
    let mut chosen = match options.backend {
        Backend::Sim => simulation(options, Vec::new()),
        Backend::Emu => emulation(options, workload),
        Backend::Cuda => gpus(options),
        Backend::Auto => match headway_cuda::probe() {
            Ok(probe) if !probe.devices.is_empty() => gpus(options),
            Ok(_) => simulation(options, Vec::new()),
            // No driver is the ordinary case of a machine without GPUs; anything else is worth a word.
            Err(DeviceError::Unavailable { .. }) if std::env::var_os("HEADWAY_LIBCUDA").is_none() => {
                simulation(options, Vec::new())
            }
            Err(error) => simulation(options, vec![format!("simulating, since the driver reports no GPU: {error}")]),
        },
    }?;
    chosen.machine = workload.with_costs_on(&chosen.machine).into_owned();
    Ok(chosen)
}

pub(super) fn named(options: &RunOptions, default: &str) -> Result<Machine, Error> {
    let machine = crate::machine::open(options.machine.as_deref().unwrap_or(default))?;
    match options.gpus {
        Some(gpus) => crate::machine::restrict(&machine, gpus),
        None => Ok(machine),
    }
}

fn simulation(options: &RunOptions, warnings: Vec<String>) -> Result<Chosen, Error> {
    Ok(Chosen { source: RunSource::Sim, machine: named(options, "h200-x4")?, devices: Vec::new(), warnings })
}

/// Memory of an emulated GPU: the blocks of messages use some of it, whatever the node has.
const EMULATED_BYTES: Bytes = Bytes(1 << 30);

fn emulation(options: &RunOptions, workload: &Workload) -> Result<Chosen, Error> {
    let machine = emulation::machine(options.machine.as_deref(), options.gpus)?;
    let machine = workload.with_costs_on(&machine).into_owned();
    let mut devices: Vec<Engines> = Vec::new();
    for gpu in machine.gpus() {
        let spec = EmuSpec { memory_bytes: EMULATED_BYTES, ..EmuSpec::of_machine(&machine, gpu) };
        let engines = Engines::open(Arc::new(EmuGpu::open(spec)));
        devices.push(engines.map_err(|source| Failure::Backend { backend: "emu", source })?);
    }
    Ok(Chosen { source: RunSource::Emu, machine, devices, warnings: Vec::new() })
}

fn gpus(options: &RunOptions) -> Result<Chosen, Error> {
    let failed = |source| Failure::Backend { backend: "cuda", source };
    let probe = headway_cuda::probe().map_err(failed)?;
    let there = probe.devices.len();
    let mut warnings = Vec::new();
    let machine = match &options.machine {
        Some(name) => crate::machine::open(name)?,
        None => crate::machine::open(if there == 1 || options.gpus == Some(1) { "h200-x1" } else { "h200-x4" })?,
    };
    if options.machine.is_none()
        && let Some(other) = probe.devices.iter().find(|device| !device.name.contains("H200"))
    {
        warnings.push(format!(
            "no machine file describes `{}`: planning with `{}`, so the plan's answer does not hold for this node",
            other.name, machine.name
        ));
    }
    let wanted = options.gpus.unwrap_or_else(|| there.min(machine.gpus().count()));
    if wanted > there {
        return Err(Failure::TooFewGpus { machine: "this one".to_owned(), wanted, available: there }.into());
    }
    let machine = crate::machine::restrict(&machine, wanted)?;
    let driver = Driver::system().map_err(failed)?;
    let open = |index| CudaGpu::open(&driver, index, headway_device::DeviceLimits::default());
    let mut devices = Vec::new();
    for index in 0..wanted as u32 {
        devices.push(open(index).and_then(|gpu| Engines::open(Arc::new(gpu))).map_err(failed)?);
    }
    Ok(Chosen { source: RunSource::Cuda, machine, devices, warnings })
}
