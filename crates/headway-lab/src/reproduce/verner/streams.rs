//! Application 2 on devices: AES streams planned, then run with real bytes, under each policy.

mod demand;
mod report;
mod search;
mod several;
mod trial;

use headway_core::files::machine::Machine;
use headway_core::plan::{Plan, Strategy};
use headway_core::units::{NANOS_PER_SECOND, Nanos, Rate};
use headway_os::clock;

use self::demand::Demand;
use self::search::Planned;
use self::trial::{Trial, Until};
use super::{ExperimentResults, ExperimentSetting};
use crate::Error;
use crate::reproduce::site::Site;
use headway::cores::on_all_cores;
use headway_measure::sample::Effort;

/// Jobs that the CPU's figures come from.
const MEASURED: Effort = Effort { warm_up: 20, n_min: 50, n_max: 4_000, time: Nanos(400_000_000) };
/// Tries on the way to the count where misses begin, and after it has been passed.
const RAISED_MAX: usize = 10;
const HALVED: usize = 3;

/// Shares of the planned streams that are tried one after the other where a run missed, percent.
const FEWER: [usize; 4] = [90, 75, 50, 25];
/// The first plan runs this long on GPUs before any run that counts: in the first seconds of work after a pause, kernels and copies
/// take up to twice as long.
const WARM_UP: Nanos = Nanos(6 * NANOS_PER_SECOND);

/// What one policy gave.
struct PolicyResult {
    policy: Strategy,
    planned: Planned,
    trial: Result<Trial, Error>,
    /// Where that missed: runs with fewer streams, until one does not.
    fewer: Vec<Try>,
}

impl PolicyResult {
    fn is_clean(&self) -> bool {
        self.trial.as_ref().is_ok_and(Trial::is_clean)
    }
}

/// Everything that was found for one workload.
struct OfWorkload {
    demand: Demand,
    found: Vec<PolicyResult>,
    /// Runs with more streams than the plan accepts.
    tries: Vec<Try>,
    refused: Vec<String>,
    /// The longest prefix of a policy without the CPU.
    without: Option<(Strategy, usize)>,
}

/// The longest prefix, `None` if not even one stream is accepted, or why nothing could be planned.
type PlannedOrWhy = Result<Option<Planned>, Error>;

/// A try with another number of streams than is planned.
struct Try {
    streams: usize,
    bits_per_second: u64,
    trial: Result<Trial, Error>,
}

impl Try {
    fn holds(&self) -> bool {
        self.trial.as_ref().is_ok_and(Trial::is_clean)
    }
}

/// Plans every policy for every workload, and runs the plans. With one workload it then raises the count of the best policy until
/// misses begin.
pub(super) fn run(setting: &ExperimentSetting) -> Result<ExperimentResults, Error> {
    let mut site = Site::open(setting)?;
    let duration = site.duration(setting);
    let cores = serve(setting, &mut site)?;
    let numbers = &setting.streams.workloads;
    let mut all = Vec::new();
    for &number in numbers {
        let demand = Demand::new(setting, number, &site.machine)?;
        all.push(OfWorkload { demand, found: Vec::new(), tries: Vec::new(), refused: Vec::new(), without: None });
    }
    let several = all.len() > 1;
    let started = clock::now();
    let demands: Vec<&Demand> = all.iter().map(|one| &one.demand).collect();
    let mut planned = plan(&setting.streams.policies, &site.machine, &demands)?.into_iter();
    let planning = clock::now() - started;
    let mut results = report::Results { all, warm_up: None, cores, planning, duration };
    for at in 0..numbers.len() {
        for (policy, planned) in
            setting.streams.policies.iter().zip(planned.by_ref().take(setting.streams.policies.len()))
        {
            let policy = *policy;
            let planned = match planned {
                Ok(Some(planned)) => planned,
                // The report lists the policies that accept no stream after those that do.
                Ok(None) => {
                    results.all[at].refused.push(format!("`{}` accepts not even one stream.", policy.name()));
                    continue;
                }
                Err(error) => {
                    results.all[at].refused.push(format!("`{}` cannot be planned: {error}.", policy.name()));
                    continue;
                }
            };
            if site.source == "cuda" && results.warm_up.is_none() {
                let trial = trial::run(&mut site, &planned.case, WARM_UP.min(duration), Until::Over)?;
                results.warm_up = Some((policy, planned.case.plan.streams.len(), trial));
            }
            let until = if several { Until::Over } else { Until::End };
            let trial = trial::run(&mut site, &planned.case, duration, until);
            let mut found = PolicyResult { policy, planned, trial, fewer: Vec::new() };
            if found.trial.as_ref().is_ok_and(|trial| !trial.is_clean()) {
                found.fewer = fewer(&mut site, &results.all[at].demand, &found, duration);
            }
            results.all[at].found.push(found);
            setting.so_far.keep(outcome(setting, &site, &results));
        }
    }
    if let [one] = &mut results.all[..] {
        one.tries = border(&mut site, &one.demand, &one.found, duration);
    }
    without_cpu(&site, &mut results.all)?;
    Ok(outcome(setting, &site, &results))
}

fn outcome(setting: &ExperimentSetting, site: &Site, results: &report::Results) -> ExperimentResults {
    let rows = match &results.all[..] {
        [one] => report::rows_of_one(one, results.duration),
        _ => several::rows_of_all(results),
    };
    report::outcome(setting, site, results, rows)
}

/// The longest prefixes, workload by workload and in each policy by policy, on all cores.
fn plan(policies: &[Strategy], machine: &Machine, demands: &[&Demand]) -> Result<Vec<PlannedOrWhy>, Error> {
    on_all_cores(demands.len() * policies.len(), |piece| {
        let (demand, policy) = (demands[piece / policies.len()], policies[piece % policies.len()]);
        Ok(search::longest(machine, demand, policy))
    })
}

/// Runs of a policy that missed with ever fewer streams, until nothing is missed.
fn fewer(site: &mut Site, demand: &Demand, found: &PolicyResult, duration: Nanos) -> Vec<Try> {
    let planned = found.planned.case.plan.streams.len();
    let mut tries = Vec::new();
    for share in FEWER {
        let streams = (planned * share / 100).max(1);
        let trial = search::with_room(&site.machine, demand, found.policy, streams)
            .and_then(|case| trial::run(site, &case, duration, Until::Miss));
        let one = Try { streams, bits_per_second: demand.bits_per_second(streams), trial };
        let ends = one.holds() || one.trial.is_err() || streams == 1;
        tries.push(one);
        if ends {
            break;
        }
    }
    tries
}

/// Gives the machine the cores that may serve streams, with figures: those of the file, else measured now, and on emulated devices
/// assumed. Says which.
fn serve(setting: &ExperimentSetting, site: &mut Site) -> Result<String, Error> {
    let wanted = setting.streams.cores;
    let (mut cpu, source) = match &site.machine.cpu {
        Some(cpu) => (cpu.clone(), "the machine file's"),
        None if site.source == "cuda" && wanted > 0 => {
            (headway_measure::cpu::measured([demand::KERNEL].into_iter(), MEASURED)?, "measured before the runs")
        }
        None => (headway_core::files::machine::CpuCores::assumed(), "assumed, as nobody measured them"),
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

/// The longest prefixes that the best policy of each workload accepts without the CPU.
fn without_cpu(site: &Site, all: &mut [OfWorkload]) -> Result<(), Error> {
    if site.machine.cpu_or_assumed().cores == 0 {
        return Ok(());
    }
    let mut machine = site.machine.clone();
    machine.cpu.iter_mut().for_each(|cpu| cpu.cores = 0);
    let best = |one: &OfWorkload| {
        one.found.iter().max_by_key(|found| found.planned.case.plan.streams.len()).map(|found| found.policy)
    };
    let asked: Vec<(Option<Strategy>, &Demand)> = all.iter().map(|one| (best(one), &one.demand)).collect();
    let found = on_all_cores(asked.len(), |at| {
        let (Some(policy), demand) = asked[at] else { return Ok(None) };
        let alone = search::longest(&machine, demand, policy)?;
        Ok::<_, Error>(Some((policy, alone.map_or(0, |planned| planned.case.plan.streams.len()))))
    })?;
    all.iter_mut().zip(found).for_each(|(one, without)| one.without = without);
    Ok(())
}

/// Raises the count of the policy with most streams until misses begin, then halves the step.
fn border(site: &mut Site, demand: &Demand, found: &[PolicyResult], duration: Nanos) -> Vec<Try> {
    let Some(best) =
        found.iter().filter(|found| found.is_clean()).max_by_key(|found| found.planned.case.plan.streams.len())
    else {
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
