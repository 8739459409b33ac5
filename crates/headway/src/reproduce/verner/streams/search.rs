//! The longest prefix of the streams that the planner accepts, by bisection with the plan that will be run.

use std::sync::Arc;

use headway_core::machine::Machine;
use headway_core::plan::{Outcome, Plan, Strategy};
use headway_core::planner::{self, Options, PlanError};
use headway_core::stream::Policy;
use headway_core::workload::Workload;

use super::demand::Demand;
use crate::Error;

/// A count's border is known to one part in so many.
const PRECISION: usize = 200;

/// A workload with its plan.
pub(super) struct Case {
    pub(super) workload: Workload,
    pub(super) plan: Arc<Plan>,
}

/// The longest accepted prefix.
pub(super) struct Planned {
    pub(super) case: Case,
    /// A count that is refused; `None` = the whole pool is accepted.
    pub(super) refused: Option<usize>,
    /// Plans that were made.
    pub(super) plans: u32,
}

const fn strategy(policy: Policy) -> Strategy {
    match policy {
        Policy::Partitioned => Strategy::Partitioned,
        Policy::Combined => Strategy::Combined,
        Policy::Lockstep => Strategy::Lockstep,
        Policy::Generation => Strategy::Generation,
        Policy::Serial => Strategy::Serial,
    }
}

/// The first `count` streams with their plan, accepted or not.
pub(super) fn forced(machine: &Machine, demand: &Demand, policy: Policy, count: usize) -> Result<Case, Error> {
    let workload = demand.workload(count);
    let plan = planner::plan(machine, &workload, Options { strategy: Some(strategy(policy)) });
    Ok(Case { workload, plan: Arc::new(plan.map_err(|error| Error::Plan(Box::new(error)))?) })
}

/// The first `count` streams if they are accepted.
fn accepted(machine: &Machine, demand: &Demand, policy: Policy, count: usize) -> Result<Option<Case>, Error> {
    match forced(machine, demand, policy, count) {
        Ok(case) if case.plan.verdict.outcome == Outcome::Schedulable => Ok(Some(case)),
        Ok(_) => Ok(None),
        // Blocks that no buffer could hold.
        Err(Error::Plan(error)) if matches!(*error, PlanError::Impossible { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The longest prefix that is accepted, none if that is not even one stream. Acceptance is nearly monotone; the border is
/// the one that doubling and bisection find.
pub(super) fn longest(machine: &Machine, demand: &Demand, policy: Policy) -> Result<Option<Planned>, Error> {
    let mut plans = 1;
    let Some(mut best) = accepted(machine, demand, policy, 1)? else { return Ok(None) };
    let mut high = None;
    loop {
        let low = best.plan.streams.len();
        let next = match high {
            None if low == demand.len() => break,
            None => (2 * low).min(demand.len()),
            Some(high) if high - low > 1 + low / PRECISION => low + (high - low) / 2,
            Some(_) => break,
        };
        plans += 1;
        match accepted(machine, demand, policy, next)? {
            Some(case) => best = case,
            None => high = Some(next),
        }
    }
    Ok(Some(Planned { case: best, refused: high, plans }))
}
