//! What this machine can do, what it lacks, and what to do about it.

mod mps;

use std::path::Path;
use std::sync::atomic::AtomicBool;

use headway_core::files::machine::{EndpointId, Machine};
use headway_core::models::cpu::{DriverWatch, SchedulingClass};
use headway_core::models::transfer::{Method, Profile};
use headway_core::units::Nanos;
use headway_device::DeviceError;
use headway_os::{affinity, memory, sched, topology};
use headway_runtime::copy::{Copier, CopyOptions};
use headway_runtime::wall;
use serde::Serialize;

use crate::cpus;
use crate::gpus::{self, CopyBackend};

/// One thing looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at.
    pub what: &'static str,
    /// How it stands.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What to do about it, and what Headway does meanwhile.
    pub remedy: Option<String>,
}

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// There and usable.
    Ok,
    /// Missing; a fallback is in use.
    Missing,
    /// There, and something about it limits what Headway can do.
    Limited,
}

/// All checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Examination {
    /// Version of the JSON form.
    pub schema: u32,
    /// Version of Headway.
    pub version: &'static str,
    /// Commit it was built from.
    pub commit: &'static str,
    /// The checks, in order.
    pub checks: Vec<Check>,
}

impl Examination {
    /// Whether a GPU was found.
    #[must_use]
    pub fn has_gpu(&self) -> bool {
        self.checks.iter().any(|check| check.what == GPU)
    }
}

/// What a check of a GPU is called.
const GPU: &str = "GPU";

/// Looks at everything, and tries every method on the GPUs of `backend`. For `time` it watches how late a driver would run,
/// and holds that against what plans for `machine`, a shipped name or a file, allow. Never fails: what is absent is a finding.
#[must_use]
pub fn examine(backend: CopyBackend, machine: &str, time: Nanos) -> Examination {
    let mut checks = vec![cuda()];
    checks.extend(devices());
    checks.extend([
        nvml(),
        mps::examine(),
        allowed(),
        numa(),
        locked(),
        realtime(),
        deadline(),
        driver(),
        punctuality(machine, time),
        rung(),
    ]);
    checks.extend(methods(backend));
    Examination { schema: 1, version: crate::VERSION, commit: crate::COMMIT, checks }
}

const fn ok(what: &'static str, found: String) -> Check {
    Check { what, state: State::Ok, found, remedy: None }
}

fn absent(what: &'static str, error: &impl ToString, remedy: &str) -> Check {
    Check { what, state: State::Missing, found: error.to_string(), remedy: Some(remedy.to_owned()) }
}

/// A library that is not there; its own remedy comes before what happens meanwhile.
fn unavailable(what: &'static str, error: &DeviceError, meanwhile: &str) -> Check {
    match error {
        DeviceError::Unavailable { what: object, reason, remedy } => {
            absent(what, &format!("{object} is not available: {reason}"), &format!("{remedy}; {meanwhile}"))
        }
        error => absent(what, error, meanwhile),
    }
}

fn cuda() -> Check {
    match headway_cuda::probe() {
        Ok(probe) if probe.devices.is_empty() => Check {
            what: "CUDA driver",
            state: State::Limited,
            found: format!("CUDA {}.{}, no GPU", probe.cuda_version.0, probe.cuda_version.1),
            remedy: Some("`--backend sim` is used".to_owned()),
        },
        Ok(probe) => {
            let fake = if probe.fake { ", the test library, no GPU behind it" } else { "" };
            ok("CUDA driver", format!("CUDA {}.{}{fake}", probe.cuda_version.0, probe.cuda_version.1))
        }
        Err(error) => unavailable("CUDA driver", &error, "until then `--backend sim` is used"),
    }
}

fn devices() -> Vec<Check> {
    let Ok(probe) = headway_cuda::probe() else { return Vec::new() };
    let devices = probe.devices.iter();
    devices
        .map(|gpu| {
            let (major, minor) = gpu.compute_capability;
            let found = format!(
                "{} ({}), {}, compute capability {major}.{minor}, {} copy engines, {} multiprocessors{}",
                gpu.name,
                gpu.pci.as_deref().unwrap_or("no PCI address"),
                gpu.memory_bytes,
                gpu.async_engines,
                gpu.multiprocessors,
                if gpu.kernel_time_limit { ", kernel time limit" } else { "" }
            );
            if (major, minor) < (7, 5) {
                let remedy = "Headway's kernels need compute capability 7.5; copies work".to_owned();
                Check { what: GPU, state: State::Limited, found, remedy: Some(remedy) }
            } else {
                ok(GPU, found)
            }
        })
        .collect()
}

/// Every method of copying on every GPU, each tried with random bytes; without GPUs, which methods there would be.
fn methods(backend: CopyBackend) -> Vec<Check> {
    let gpus = headway_cuda::probe().is_ok_and(|probe| !probe.devices.is_empty());
    if backend != CopyBackend::Emu && !gpus {
        let methods: Vec<&str> = Method::words().into_iter().map(|(word, _)| word).collect();
        return vec![Check {
            what: "methods of copying",
            state: State::Missing,
            found: format!("none is available: there is no GPU to try them on ({})", methods.join(", ")),
            remedy: Some("until then copies are simulated; `--backend emu` tries them on emulated GPUs".to_owned()),
        }];
    }
    let opened = gpus::open(backend, None, None).and_then(|gpus| {
        let ends = (0..).map(EndpointId).zip(gpus).collect();
        Ok(Copier::new(
            ends,
            Profile::default(),
            CopyOptions { resident: true, multipath: true, ..Default::default() },
        )?)
    });
    let copier = match opened {
        Ok(copier) => copier,
        Err(error) => return vec![absent("methods of copying", &error, "the driver's own copies are used")],
    };
    let meanwhile = |fallback: Option<Method>| match fallback {
        Some(method) => format!("until then `{method}` is used"),
        None => "nothing stands in for it".to_owned(),
    };
    let probes = copier.probe().into_iter().map(|probe| {
        let found = format!("gpu{} {}", probe.gpu, probe.method);
        match probe.usable {
            Ok(()) => ok("method", format!("{found}: tried, copies rightly")),
            Err(error) => {
                let check = unavailable("method", &error, &meanwhile(probe.fallback));
                Check { found: format!("{found}: {}", check.found), ..check }
            }
        }
    });
    probes.collect()
}

fn nvml() -> Check {
    match headway_cuda::Nvml::system().and_then(|nvml| nvml.report()) {
        Ok(report) => {
            let gpus: Vec<String> = report.gpus.iter().map(ToString::to_string).collect();
            ok("NVML", format!("driver {}; {}", report.driver_version, gpus.join("; ")))
        }
        Err(error) => unavailable("NVML", &error, "until then PCIe and NVLink details are left out"),
    }
}

fn allowed() -> Check {
    match affinity::allowed() {
        Ok(cpus) if cpus.len() < 4 => Check {
            what: "CPUs",
            state: State::Limited,
            found: format!("{} allowed", cpus.len()),
            remedy: Some(
                "with fewer than 4, driver, feeder and sink share CPUs: expect late windows on GPUs".to_owned(),
            ),
        },
        Ok(cpus) => ok("CPUs", format!("{} allowed", cpus.len())),
        Err(error) => absent("CPUs", &error, "all CPUs are assumed to be allowed"),
    }
}

fn numa() -> Check {
    match topology::numa_nodes(Path::new("/sys")) {
        Ok(nodes) => ok("NUMA", format!("{} node{}", nodes.len(), if nodes.len() == 1 { "" } else { "s" })),
        Err(error) => absent("NUMA", &error, "one node is assumed"),
    }
}

fn locked() -> Check {
    match memory::lock_limit() {
        Ok(limit) => ok("locked memory", limit.to_string()),
        Err(error) => absent("locked memory", &error, "the driver's own limit applies"),
    }
}

fn realtime() -> Check {
    match sched::probe_realtime() {
        Ok(()) => ok("SCHED_FIFO", "permitted".to_owned()),
        Err(error) => absent("SCHED_FIFO", &error.reason(), &cpus::remedy(&error)),
    }
}

/// Which of the three ways of 7.4 of the specification of sharing makes the holder of a token run when it is ready.
fn rung() -> Check {
    let what = "CPU for holders";
    let raised = sched::boost_latency(100);
    match (raised, sched::probe_deadline()) {
        (Ok(longest), _) => ok(
            what,
            format!("priorities in the order of keys (SCHED_FIFO), set by the broker in at most {longest} (100 times)"),
        ),
        (Err(_), Ok(())) => Check {
            what,
            state: State::Limited,
            found: "reservations (SCHED_DEADLINE) per thread, no priorities that follow the keys".to_owned(),
            remedy: Some(
                "grant CAP_SYS_NICE and real-time bandwidth, so that `headway broker` can set priorities; until then verdicts \
                 for shared GPUs hold only for CPU times within the reservations"
                    .to_owned(),
            ),
        },
        (Err(error), Err(_)) => Check {
            what,
            state: State::Missing,
            found: format!("nice values and CPU sets only: {error}"),
            remedy: Some(
                "grant what is missing; until then bounds of waits for shared GPUs may not hold, as a holder can be kept from \
                 its CPU; tokens and engine locks work"
                    .to_owned(),
            ),
        },
    }
}

fn deadline() -> Check {
    match sched::probe_deadline() {
        Ok(()) => ok("SCHED_DEADLINE", "permitted".to_owned()),
        Err(error) => absent("SCHED_DEADLINE", &error.reason(), &cpus::remedy(&error)),
    }
}

const PUNCTUALITY: &str = "driver's delays";

/// How late a driver would run here, seen for `time`.
fn punctuality(machine: &str, time: Nanos) -> Check {
    let machine = match crate::machine::open(machine) {
        Ok(machine) => machine,
        Err(error) => return absent(PUNCTUALITY, &error, "name a machine or a machine file with `--machine`"),
    };
    let has_gpu = headway_cuda::probe().is_ok_and(|probe| !probe.devices.is_empty());
    let spin = if has_gpu { wall::GPU_SPIN } else { Nanos::ZERO };
    judged(&wall::watch(spin, time, &AtomicBool::new(false)), &machine)
}

/// What `watch` saw, against the delays that plans for `machine` allow.
fn judged(watch: &DriverWatch, machine: &Machine) -> Check {
    let calibration = machine.calibration.as_ref();
    let jitter = calibration.map_or(Nanos::ZERO, |calibration| calibration.jitter);
    let measured = calibration.and_then(|calibration| calibration.driver_watch.as_ref());
    let measured = measured.map_or_else(String::new, |then| {
        format!(" (when it was measured, the longest delay in {} was {})", then.time, then.worst())
    });
    let found = format!("{watch}; plans for machine `{}` allow {jitter}{measured}", machine.name);
    if watch.worst() <= jitter {
        return ok(PUNCTUALITY, format!("{found}; {}", watch.limits()));
    }
    let remedy = format!(
        "a delay of {} breaks what such a plan promises: get a stronger class (`CPU for drivers`), keep other programs off some CPUs \
         (a cpuset partition, or `isolcpus=` and `nohz_full=` at boot), or let plans allow for it: \
         `headway measure --watch \"10 min\"` and `--machine` with the file that it writes",
        watch.worst()
    );
    Check { what: PUNCTUALITY, state: State::Limited, found, remedy: Some(remedy) }
}

/// The class that `headway run` gives the threads that drive GPUs.
fn driver() -> Check {
    let what = "CPU for drivers";
    let cpus::Driver { class, found, remedy } = cpus::driver();
    let state = match class {
        SchedulingClass::Deadline { .. } => State::Ok,
        SchedulingClass::Fifo { .. } | SchedulingClass::Nice { .. } => State::Limited,
        SchedulingClass::Ordinary => State::Missing,
    };
    Check { what, state, found, remedy }
}

#[cfg(test)]
mod tests {
    use headway_core::files::machine::shipped;
    use headway_core::models::cpu::DelayStatistics;

    use super::*;

    fn seen(late: Nanos) -> DriverWatch {
        let woken = DelayStatistics { count: 500, median: Nanos(1_000), p99: Some(Nanos(9_000)), max: late, beyond: 0 };
        let noticed = DelayStatistics { max: Nanos(9_000), ..woken };
        DriverWatch { time: Nanos(1_000_000_000), class: "SCHED_OTHER nice -20".to_owned(), woken, noticed }
    }

    #[test]
    fn a_host_on_which_the_driver_is_later_than_plans_allow_is_named_with_delay_watch_and_remedy() {
        let mut machine = shipped("h200-x1").unwrap();
        machine.calibration.as_mut().unwrap().driver_watch = Some(seen(Nanos(80_000)));
        let check = judged(&seen(Nanos(4_460_000)), &machine);
        assert_eq!(check.state, State::Limited);
        for fact in [
            "watched for 1 s as SCHED_OTHER nice -20",
            "max 4.46 ms",
            "`h200-x1` allow 100 us",
            "delay in 1 s was 80 us",
        ] {
            assert!(check.found.contains(fact), "{fact}: {}", check.found);
        }
        let remedy = check.remedy.unwrap();
        for means in ["isolcpus", "CPU for drivers", "headway measure --watch"] {
            assert!(remedy.contains(means), "{means}: {remedy}");
        }
    }

    #[test]
    fn a_quiet_host_is_said_to_have_been_watched_for_a_time_only() {
        let check = judged(&seen(Nanos(100_000)), &shipped("h200-x1").unwrap());
        assert_eq!((check.state, check.remedy), (State::Ok, None));
        assert!(check.found.contains("may be longer and were perhaps not seen"), "{}", check.found);
    }

    #[test]
    fn plans_for_a_machine_that_nobody_measured_allow_no_delay() {
        let machine = Machine { calibration: None, ..shipped("h200-x1").unwrap() };
        let check = judged(&seen(Nanos(1_000)), &machine);
        assert!(check.state == State::Limited && check.found.contains("allow 0 ns"), "{check:?}");
    }
}
