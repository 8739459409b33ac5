//! Application 2 on devices: AES streams planned, then run with real bytes, under each policy.

mod demand;
mod report;
mod search;
mod trial;

use headway_core::plan::Plan;
use headway_core::plan::Strategy;
use headway_core::units::{NANOS_PER_SECOND, Nanos, Rate};
use headway_os::clock;

use self::demand::Demand;
use self::search::Planned;
use self::trial::{Trial, Until};
use super::{Outcome, Setting};
use crate::Error;
use crate::reproduce::site::Site;
use headway_measure::sample::Effort;

/// Jobs that the CPU's figures come from.
const MEASURED: Effort = Effort { warm_up: 20, n_min: 50, n_max: 4_000, time: Nanos(400_000_000) };
/// Tries on the way to the count where misses begin, and after it has been passed.
const RAISED_MAX: usize = 10;
const HALVED: usize = 3;

/// What one policy gave.
struct Found {
    policy: Strategy,
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
    let duration = site.duration(setting);
    let cores = serve(setting, &mut site)?;
    let demand = Demand::new(setting, &site.machine)?;
    let started = clock::now();
    let mut all = Vec::new();
    for &policy in &setting.streams.policies {
        // What cannot be planned is told beside what can.
        all.push((policy, search::longest(&site.machine, &demand, policy)));
    }
    let planning = clock::now() - started;
    let (found, tries, refused) = (Vec::new(), Vec::new(), Vec::new());
    let mut results = report::Results { found, tries, refused, without: None, cores, planning, duration };
    for (policy, planned) in all {
        match planned {
            Ok(Some(planned)) => {
                let trial = trial::run(&mut site, &planned.case, duration, Until::End);
                results.found.push(Found { policy, planned, trial });
                setting.so_far.keep(report::outcome(setting, &site, &demand, &results));
            }
            Ok(None) => results.refused.push(format!("`{}` accepts not even one stream.", policy.name())),
            Err(error) => results.refused.push(format!("`{}` cannot be planned: {error}.", policy.name())),
        }
    }
    results.tries = border(&mut site, &demand, &results.found, duration);
    results.without = without_cpu(&site, &demand, &results.found)?;
    Ok(report::outcome(setting, &site, &demand, &results))
}

/// Gives the machine the cores that may serve streams, with figures: those of the file, else measured now, and on emulated devices
/// assumed. Says which.
fn serve(setting: &Setting, site: &mut Site) -> Result<String, Error> {
    let wanted = setting.streams.cores;
    let (mut cpu, source) = match &site.machine.cpu {
        Some(cpu) => (cpu.clone(), "the machine file's"),
        None if site.source == "cuda" && wanted > 0 => {
            (headway_measure::cpu::measured([demand::KERNEL].into_iter(), MEASURED)?, "measured before the runs")
        }
        None => (headway_core::files::machine::Cpu::assumed(), "assumed, as nobody measured them"),
    };
    cpu.cores = wanted.min(if cpu.assumed { wanted } else { cpu.cores });
    if site.slower > 1 {
        cpu.kernels.iter_mut().for_each(|kernel| kernel.rate = Rate((kernel.rate.0 / site.slower).max(1)));
    }
    let kernel = cpu.kernel(demand::KERNEL);
    let text = match kernel {
        Some(kernel) if cpu.cores > 0 => format!(
            "{} cores of the CPU may serve; a job costs {} and {} for each stream, and its bytes at {} ({source})",
            cpu.cores, kernel.setup, kernel.portion, kernel.rate
        ),
        _ => "no core of the CPU serves".to_owned(),
    };
    site.machine.cpu = Some(cpu);
    Ok(text)
}

/// The longest prefix that the best policy accepts without the CPU.
fn without_cpu(site: &Site, demand: &Demand, found: &[Found]) -> Result<Option<(Strategy, usize)>, Error> {
    let best = found.iter().max_by_key(|found| found.planned.case.plan.streams.len());
    let Some(best) = best.filter(|_| site.machine.cpu_or_assumed().cores > 0) else { return Ok(None) };
    let mut machine = site.machine.clone();
    machine.cpu.iter_mut().for_each(|cpu| cpu.cores = 0);
    let alone = search::longest(&machine, demand, best.policy)?;
    Ok(Some((best.policy, alone.map_or(0, |planned| planned.case.plan.streams.len()))))
}

/// Raises the count of the policy with most streams until misses begin, then halves the step.
fn border(site: &mut Site, demand: &Demand, found: &[Found], duration: Nanos) -> Vec<Try> {
    let held = |found: &&Found| found.trial.as_ref().is_ok_and(Trial::is_clean);
    let Some(best) = found.iter().filter(held).max_by_key(|found| found.planned.case.plan.streams.len()) else {
        return Vec::new();
    };
    let short = Nanos((duration.0 / 6).clamp(1, 3 * NANOS_PER_SECOND));
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
        let rectangle = best.planned.division.rectangle;
        let on_cpu = demand.streams(next).iter().enumerate().map(|(at, stream)| rectangle.has(at, *stream));
        let on_cpu: Vec<bool> = on_cpu.collect();
        let trial = search::forced(&site.machine, demand, best.policy, &on_cpu)
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

/// The cycle of all pipelines of GPUs.
fn cycle_of(plan: &Plan) -> Nanos {
    plan.pipelines.iter().find(|pipeline| pipeline.gpu.is_some()).map_or(Nanos::ZERO, |pipeline| pipeline.period)
}
