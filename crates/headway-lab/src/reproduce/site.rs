//! Devices that experiments plan for and run on.

use std::path::Path;
use std::sync::Arc;

use headway_core::files::machine::{CapacityKind, EndpointId, Machine};
use headway_core::models::cpu::RequestedClass;
use headway_core::units::{Bytes, NANOS_PER_SECOND, Nanos, Rate};
use headway_device::Engines;
use headway_device::emu::{EmuGpu, EmuSpec};
use headway_os::sched::{self, Role};

use super::ExperimentSetting;
use crate::Error;
use headway::gpus;
use headway::run::Backend;

/// How many times slower than the machine file emulated devices are: their kernels run on the CPU.
const SLOWER_EMULATED: u64 = 400;
/// Pinned memory of one GPU: blocks of whole rings, both ways.
const HOST_BYTES_MAX: Bytes = Bytes(48 << 30);

/// Memory of an emulated GPU: some of it is used, whatever the node has.
const EMULATED_BYTES: Bytes = Bytes(1 << 30);

/// The file that `headway measure` writes unless it is told another name.
const MEASURED: &str = "machine.toml";

/// The setting with this node's measured profile, if the experiment runs on GPUs and there is one; and a note that says which
/// profile is used.
pub(super) fn with_profile(setting: &ExperimentSetting, on: &[Backend]) -> (ExperimentSetting, String) {
    let on_gpus = match setting.backend {
        Backend::Cuda => true,
        Backend::Auto => on.contains(&Backend::Cuda) && gpus::there().is_ok_and(|gpus| gpus > 0),
        Backend::Sim | Backend::Emu => false,
    };
    let mut setting = setting.clone();
    let note = match &setting.machine {
        Some(machine) => format!("Profile: that of `{machine}`."),
        None if on_gpus && Path::new(MEASURED).is_file() => {
            setting.machine = Some(MEASURED.to_owned());
            format!("Profile: that of `{MEASURED}`, which `headway measure` wrote in this folder.")
        }
        None => format!(
            "Profile: none was measured for this node, so `copy` begins with built-in figures and learns from its copies. `headway measure` writes `{MEASURED}`, which is \
             used where it lies in the current folder."
        ),
    };
    (setting, note)
}

/// Devices with the machine that stands for them.
pub(super) struct Site {
    pub(super) machine: Machine,
    pub(super) devices: Vec<Engines>,
    /// `emu` or `cuda`.
    pub(super) source: &'static str,
    /// What the rates of the machine file were divided by.
    pub(super) slower: u64,
    /// The scheduling class of the threads that drive devices.
    pub(super) class: RequestedClass,
}

impl Site {
    pub(super) fn open(setting: &ExperimentSetting) -> Result<Self, Error> {
        let emulated = setting.backend == Backend::Emu;
        let there = if emulated { None } else { Some(gpus::there()?) };
        let wanted = setting.gpus.or(there).unwrap_or(2);
        let default = if wanted == 1 { "h200-x1" } else { "h200-x4" };
        let machine = headway::machine::open(setting.machine.as_deref().unwrap_or(default))?;
        if let Some(available) = there.filter(|&there| wanted > there) {
            return Err(headway::Failure::TooFewGpus { machine: "this one".to_owned(), wanted, available }.into());
        }
        let wanted = if setting.gpus.is_none() { wanted.min(machine.gpus().count()) } else { wanted };
        let machine = headway::machine::restrict(&machine, wanted)?;
        let slower = setting.streams.slower.unwrap_or(if emulated { SLOWER_EMULATED } else { 1 });
        let machine = slowed(&machine, slower);
        let devices = if emulated { emulate(&machine)? } else { gpus::devices(wanted, limits())? };
        let class = if emulated { RequestedClass::Ordinary } else { driving_class() };
        Ok(Self { machine, devices, source: if emulated { "emu" } else { "cuda" }, slower, class })
    }

    /// How long each run lasts: what the user says, else a minute on GPUs.
    pub(super) fn duration(&self, setting: &ExperimentSetting) -> Nanos {
        setting.duration.unwrap_or(match (self.source, setting.quick) {
            ("emu", true) => Nanos(NANOS_PER_SECOND / 2),
            ("emu", false) => Nanos(5 * NANOS_PER_SECOND),
            _ => Nanos(60 * NANOS_PER_SECOND),
        })
    }

    /// The machine with its hash, and the devices.
    pub(super) fn named(&self) -> String {
        let names: Vec<&str> = self.devices.iter().map(|device| device.description().name.as_str()).collect();
        format!("{} {} on {}", self.machine.name, self.machine.hash, names.join(", "))
    }
}

/// `nice` where it is permitted. In the stronger classes threads must not spin, and cores keep no CPUs of their own.
fn driving_class() -> RequestedClass {
    let nice = RequestedClass::Nice;
    if sched::strongest(nice, Role::Driver).refused.is_empty() { nice } else { RequestedClass::Ordinary }
}

fn limits() -> headway_device::DeviceLimits {
    headway_device::DeviceLimits { host_bytes_max: HOST_BYTES_MAX, ..headway_device::DeviceLimits::default() }
}

fn emulate(machine: &Machine) -> Result<Vec<Engines>, Error> {
    let open = |gpu: EndpointId| -> Result<Engines, Error> {
        let spec = EmuSpec { limits: limits(), memory_bytes: EMULATED_BYTES, ..EmuSpec::of_machine(machine, gpu) };
        let engines = Engines::open(Arc::new(EmuGpu::open(spec)));
        Ok(engines.map_err(|source| headway::Failure::Backend { backend: "emu", source })?)
    };
    machine.gpus().map(open).collect()
}

/// The machine with all its rates divided by `factor`, but for that of a kernel's chain, which no stream comes near.
fn slowed(machine: &Machine, factor: u64) -> Machine {
    let mut machine = machine.clone();
    if factor <= 1 {
        return machine;
    }
    let less = |rate: Rate| Rate((rate.0 / factor).max(1));
    for capacity in &mut machine.capacities {
        (capacity.rate, capacity.rate_low) = (less(capacity.rate), less(capacity.rate_low));
        if let CapacityKind::Link { opposite: Some((_, both)), .. } = &mut capacity.kind {
            *both = less(*both);
        }
    }
    machine.kernels.iter_mut().for_each(|kernel| kernel.rate = less(kernel.rate));
    machine.hash = format!("{}-slower{factor}", machine.hash);
    machine
}

/// An error with its causes.
pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
