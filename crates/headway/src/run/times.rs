//! Simulated times of a plan, without bytes, kernels or files.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use headway_core::files::machine::Machine;
use headway_core::log::{Incomplete, RunSource};
use headway_core::plan::Plan;
use headway_core::units::Nanos;
use headway_runtime::blocks::Gatherer;
use headway_runtime::host::TimeOnly;
use headway_runtime::intake::bytes_within;
use headway_sim::SimFaults;
use headway_trace::RunLog;
use headway_trace::summary::{RunSummary, summarize};

use super::{foresight, header, in_virtual_time, set_seed, span};
use crate::{Error, Failure};

/// What a simulation of times alone does.
#[derive(Clone, Debug, Default)]
pub struct TimesOptions {
    /// Seed of what is drawn.
    pub seed: u64,
    /// How long packets arrive.
    pub duration: Nanos,
    /// Kernels take between this share of their worst case and all of it, parts per million, as the seed draws; `None` = all of it.
    pub kernel_ppm_min: Option<u32>,
    /// Data of every cycle comes late by up to this time.
    pub data_late_max: Nanos,
    /// The driver wakes late by up to this time.
    pub driver_late_max: Nanos,
    /// Ends the simulation early when it becomes true.
    pub interrupt: Arc<AtomicBool>,
}

/// Simulates the times of `plan`, whatever its verdict: nothing is moved, computed or written, so that the kernels need not be here.
///
/// # Errors
/// `ErrorKind::Options` for a time in which nothing arrives or whose log would not fit into memory, `ErrorKind::Simulation` for a
/// plan that was made for another machine, `ErrorKind::Interrupted`.
pub fn times(machine: &Machine, plan: &Plan, options: &TimesOptions) -> Result<RunSummary, Error> {
    if options.duration == Nanos::ZERO {
        return Err(Failure::Options("nothing arrives in no time; choose a longer duration").into());
    }
    let mut plan = plan.clone();
    set_seed(&mut plan, options.seed);
    let plan = Arc::new(plan);
    let packets: Vec<u64> =
        plan.streams.iter().map(|stream| bytes_within(stream, options.duration) / stream.packet.0).collect();
    let gatherer = Gatherer::of_sizes(Arc::clone(&plan), &packets);
    let header = header(RunSource::Sim, &plan, &gatherer, options.seed, options.duration);
    if let Some(available) = foresight::available() {
        foresight::fits(&header, span(&plan, &header.cycles), available)?;
    }
    let faults = SimFaults {
        kernel_ppm_min: options.kernel_ppm_min,
        fail_operation: None,
        data_late_max: options.data_late_max,
        wake_late_max: options.driver_late_max,
    };
    let mut records = Vec::new();
    let mut payload = TimeOnly::new(gatherer, Arc::clone(&options.interrupt));
    let incomplete = in_virtual_time(machine, &header, faults, &mut payload, |record| records.push(record.clone()))?;
    if incomplete == Some(Incomplete::Interrupted) {
        return Err(Failure::Interrupted.into());
    }
    let log = RunLog::new(header, records, "this simulation")?.ended(incomplete);
    Ok(summarize(&log))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::PlanOptions;

    const TEXT: &str = "name = \"camera\"\n[[stream]]\nid = \"camera\"\npacket = \"1 MiB\"\nperiod = \"10 ms\"\n\
        deadline = \"30 ms\"\nsteps = [{ copy = \"host -> gpu\" }, { compute = \"spin\" }]\n";

    fn simulated(options: &TimesOptions) -> Result<RunSummary, Error> {
        let machine = crate::machine::open("h200-x1").unwrap();
        let workload = crate::workload::parse("camera.toml", TEXT).unwrap();
        let plan = crate::plan::make(&machine, &workload, PlanOptions::default()).unwrap();
        times(&machine, &plan, options)
    }

    #[test]
    fn the_same_seed_gives_the_same_times_and_another_one_others() {
        let drawn = |seed| TimesOptions {
            seed,
            duration: Nanos(1_000_000_000),
            kernel_ppm_min: Some(100_000),
            ..TimesOptions::default()
        };
        let first = simulated(&drawn(1)).unwrap();
        assert_eq!((first.streams[0].packets, first.streams[0].misses), (100, 0));
        assert_eq!(first, simulated(&drawn(1)).unwrap());
        assert_ne!(first.streams[0].response, simulated(&drawn(2)).unwrap().streams[0].response);
    }

    #[test]
    fn no_time_and_an_interrupt_are_errors() {
        assert_eq!(simulated(&TimesOptions::default()).unwrap_err().kind(), crate::ErrorKind::Options);
        let interrupt = Arc::new(AtomicBool::new(true));
        let options = TimesOptions { duration: Nanos(1_000_000_000), interrupt, ..TimesOptions::default() };
        assert!(simulated(&options).unwrap_err().is_interrupted());
    }
}
