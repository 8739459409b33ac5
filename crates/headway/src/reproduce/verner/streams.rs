//! Application 2 on devices: AES streams planned, then run with real bytes, under each policy.

mod demand;
mod report;
mod search;
mod trial;

use headway_core::plan::Plan;
use headway_core::stream::Policy;
use headway_core::units::{NANOS_PER_SECOND, Nanos};
use headway_os::clock;

use self::demand::Demand;
use self::search::Planned;
use self::trial::{Trial, Until};
use super::{Outcome, Setting};
use crate::Error;
use crate::reproduce::site::Site;

/// Tries on the way to the count where misses begin, and after it has been passed.
const RAISED_MAX: usize = 10;
const HALVED: usize = 3;

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
    let duration = site.duration(setting);
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
    let short = Nanos((duration.0 / 6).min(3 * NANOS_PER_SECOND).max(1));
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

/// The cycle of all pipelines.
fn cycle_of(plan: &Plan) -> Nanos {
    plan.pipelines.first().map_or(Nanos::ZERO, |pipeline| pipeline.period)
}
