//! Application 2 on devices: AES streams planned, then run with real bytes, under each policy.

mod demand;
mod report;
mod search;
mod trial;

use headway_core::machine::{CapacityKind, EndpointId, Machine};
use headway_core::plan::Plan;
use headway_core::stream::Policy;
use headway_core::units::{Bytes, NANOS_PER_SECOND, Nanos, Rate};
use headway_device::Device;
use headway_device::emu::{EmuSpec, Emulated};
use headway_os::clock;

use self::demand::Demand;
use self::search::Planned;
use self::trial::{Trial, Until};
use super::{Outcome, Setting};
use crate::run::Backend;
use crate::{Error, files};

/// How many times slower than the machine file emulated devices are: their kernels run on the CPU.
const SLOWER_EMULATED: u64 = 400;
/// Pinned memory of one GPU: blocks of a whole ring, both ways.
const HOST_BYTES_MAX: Bytes = Bytes(48 << 30);
/// Tries on the way to the count where misses begin, and after it has been passed.
const RAISED_MAX: usize = 10;
const HALVED: usize = 3;

/// Devices with the machine that stands for them.
struct Site {
    machine: Machine,
    devices: Vec<Box<dyn Device>>,
    source: &'static str,
    slower: u64,
}

/// What one policy gave.
struct Found {
    policy: Policy,
    planned: Planned,
    trial: Result<Trial, Error>,
}

/// A try beyond what the plan accepts.
struct Try {
    streams: usize,
    bits_per_second: u64,
    trial: Result<Trial, Error>,
}

impl Try {
    fn holds(&self) -> bool {
        self.trial.as_ref().is_ok_and(|trial| trial.misses == 0 && trial.failure.is_none())
    }
}

/// Plans and runs every policy, then raises the count of the best one until misses begin.
pub(super) fn run(setting: &Setting) -> Result<Outcome, Error> {
    let mut site = Site::open(setting)?;
    let duration = setting.duration.unwrap_or(match (setting.backend, setting.quick) {
        (Backend::Emu, true) => Nanos(NANOS_PER_SECOND / 2),
        (Backend::Emu, false) => Nanos(5 * NANOS_PER_SECOND),
        _ => Nanos(60 * NANOS_PER_SECOND),
    });
    let demand = Demand::new(setting, &site.machine)?;
    let started = clock::now();
    let mut all = Vec::new();
    for &policy in &setting.streams.policies {
        // What cannot be planned is told beside what can.
        all.push((policy, search::longest(&site.machine, &demand, policy)));
    }
    let planning = clock::now() - started;
    let (mut found, mut refused) = (Vec::new(), Vec::new());
    for (policy, planned) in all {
        match planned {
            Ok(Some(planned)) => {
                let trial = trial::run(&mut site, &planned.case, duration, Until::End);
                found.push(Found { policy, planned, trial });
            }
            Ok(None) => refused.push(format!("`{}` accepts not even one stream.", policy.name())),
            Err(error) => refused.push(format!("`{}` cannot be planned: {error}.", policy.name())),
        }
    }
    let tries = border(&mut site, &demand, &found, duration);
    Ok(report::outcome(setting, &site, &demand, &report::Results { found, tries, refused, planning, duration }))
}

/// Raises the count of the policy with most streams until misses begin, then halves the step.
fn border(site: &mut Site, demand: &Demand, found: &[Found], duration: Nanos) -> Vec<Try> {
    let held = |found: &&Found| found.trial.as_ref().is_ok_and(Trial::is_clean);
    let Some(best) = found.iter().filter(held).max_by_key(|found| found.planned.case.plan.streams.len()) else {
        return Vec::new();
    };
    let short = Nanos((duration.0 / 6).min(10 * NANOS_PER_SECOND).max(1));
    let (mut low, mut high) = (best.planned.case.plan.streams.len(), None);
    let mut tries = Vec::new();
    for number in 0..RAISED_MAX + HALVED {
        let next = match high {
            None if number < RAISED_MAX => (low + low.div_ceil(5)).min(demand.len()),
            Some(high) if tries.len() <= RAISED_MAX && high - low > low / 100 + 1 => low + (high - low) / 2,
            _ => break,
        };
        if next == low {
            break;
        }
        let trial = search::forced(&site.machine, demand, best.policy, next)
            .and_then(|case| trial::run(site, &case, short, Until::Miss));
        let one = Try { streams: next, bits_per_second: demand.bits_per_second(next), trial };
        let failed = one.trial.is_err();
        if one.holds() {
            low = next;
        } else {
            high = Some(next);
        }
        tries.push(one);
        if failed {
            break;
        }
    }
    tries
}

impl Site {
    fn open(setting: &Setting) -> Result<Self, Error> {
        let emulated = setting.backend == Backend::Emu;
        let there = if emulated { None } else { Some(cuda_count()?) };
        let wanted = setting.gpus.or(there).unwrap_or(2);
        let default = if wanted == 1 { "h200-x1" } else { "h200-x4" };
        let machine = files::machine(setting.machine.as_deref().unwrap_or(default))?;
        if let Some(available) = there.filter(|&there| wanted > there) {
            return Err(Error::TooFewGpus { machine: "this one".to_owned(), wanted, available });
        }
        let wanted = if setting.gpus.is_none() { wanted.min(machine.gpus().count()) } else { wanted };
        let machine = files::restrict(&machine, wanted)?;
        let slower = setting.streams.slower.unwrap_or(if emulated { SLOWER_EMULATED } else { 1 });
        let machine = slowed(&machine, slower);
        let devices = if emulated { emulate(&machine)? } else { open_cuda(wanted)? };
        Ok(Self { machine, devices, source: if emulated { "emu" } else { "cuda" }, slower })
    }
}

fn cuda_failed(source: headway_device::DeviceError) -> Error {
    Error::Backend { backend: "cuda", source }
}

fn cuda_count() -> Result<usize, Error> {
    Ok(headway_cuda::probe().map_err(cuda_failed)?.devices.len())
}

fn limits() -> headway_device::Limits {
    headway_device::Limits { host_bytes_max: HOST_BYTES_MAX, ..headway_device::Limits::default() }
}

fn open_cuda(count: usize) -> Result<Vec<Box<dyn Device>>, Error> {
    let driver = headway_cuda::Driver::system().map_err(cuda_failed)?;
    let mut devices: Vec<Box<dyn Device>> = Vec::new();
    for index in 0..count as u32 {
        let device = headway_cuda::CudaDevice::open_with(&driver, index, limits()).map_err(cuda_failed)?;
        devices.push(Box::new(device));
    }
    Ok(devices)
}

fn emulate(machine: &Machine) -> Result<Vec<Box<dyn Device>>, Error> {
    let open = |gpu: EndpointId| -> Result<Box<dyn Device>, Error> {
        let spec = EmuSpec { limits: limits(), ..EmuSpec::of_machine(machine, gpu) };
        let device = Emulated::open(spec).map_err(|source| Error::Backend { backend: "emu", source })?;
        Ok(Box::new(device))
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

/// The cycle of all pipelines.
fn cycle_of(plan: &Plan) -> Nanos {
    plan.pipelines.first().map_or(Nanos::ZERO, |pipeline| pipeline.period)
}
