//! The longest prefix of the streams that the planner accepts, by bisection with the plan that will be run. Each prefix is divided
//! between the CPU and the GPUs by the rectangle search; both sides are tested by the planner, each by itself.

use std::sync::Arc;

use headway_core::files::machine::Machine;
use headway_core::files::workload::Workload;
use headway_core::plan::planner::{self, PlanError, PlanOptions, margins};
use headway_core::plan::stream::{BestRectangle, Margins, Rectangle, SearchReach, search};
use headway_core::plan::{Plan, Strategy};
use headway_core::units::{Nanos, PPM};

use super::demand::{Demand, KERNEL, PlannedStreams};
use crate::Error;

/// A count's border is known to one part in so many.
const PRECISION: usize = 200;

/// How a division is looked for on the way to the longest prefix, and once it is known: the values of `r*` that are tried.
const ANY: SearchReach = SearchReach { quantiles: 4, refined: 0, any: true };
const BEST: SearchReach = SearchReach { quantiles: 2, refined: 0, any: false };

/// A workload with its plan.
pub(super) struct Case {
    pub(super) workload: Workload,
    pub(super) plan: Arc<Plan>,
}

/// The longest accepted prefix.
pub(super) struct Planned {
    pub(super) case: Case,
    /// Which streams the CPU takes.
    pub(super) division: BestRectangle,
    /// A count that is refused; `None` = the whole pool is accepted.
    pub(super) refused: Option<usize>,
    /// Plans that were made.
    pub(super) plans: u32,
}

/// The first streams, as many as `on_cpu` is long, so divided, with their plan, accepted or not.
pub(super) fn forced(machine: &Machine, demand: &Demand, policy: Strategy, on_cpu: &[bool]) -> Result<Case, Error> {
    let workload = demand.workload(on_cpu, PlannedStreams::All).expect("at least one stream is planned");
    let plan = planner::plan(machine, &workload, PlanOptions { strategy: Some(policy) });
    Ok(Case { workload, plan: Arc::new(plan.map_err(|error| headway::Failure::Plan(Box::new(error)))?) })
}

/// The first `count` streams, divided so that there is as much room as can be on both sides, with their plan.
pub(super) fn with_room(machine: &Machine, demand: &Demand, policy: Strategy, count: usize) -> Result<Case, Error> {
    let found = Divider::new(machine, demand, policy).divide(count, BEST)?;
    forced(machine, demand, policy, &found.on_cpu)
}

/// A search for divisions of prefixes.
struct Divider<'a> {
    machine: &'a Machine,
    demand: &'a Demand,
    policy: Strategy,
    /// Bits per second that the cores could encrypt without set-ups.
    capacity: u64,
    plans: u32,
}

impl<'a> Divider<'a> {
    fn new(machine: &'a Machine, demand: &'a Demand, policy: Strategy) -> Self {
        let capacity = machine.cpu_or_assumed().rate(KERNEL).0.saturating_mul(8);
        Self { machine, demand, policy, capacity, plans: 0 }
    }

    /// The margins of one side of a division.
    fn side(&mut self, on_cpu: &[bool], part: PlannedStreams) -> Result<u64, Error> {
        let Some(workload) = self.demand.workload(on_cpu, part) else { return Ok(u64::MAX) };
        self.plans += 1;
        match planner::plan(self.machine, &workload, PlanOptions { strategy: Some(self.policy) }) {
            Ok(plan) => Ok(margins(&plan).least()),
            // Blocks that no buffer could hold, cycles without length.
            Err(PlanError::Impossible { .. }) => Ok(0),
            Err(error) => Err(headway::Failure::Plan(Box::new(error)).into()),
        }
    }

    /// The margins of a division: those of the GPUs only once the CPU holds.
    fn margins(&mut self, on_cpu: &[bool]) -> Result<Margins, Error> {
        let inside = self.demand.streams(on_cpu.len()).iter().zip(on_cpu).filter(|(_, on_cpu)| **on_cpu);
        let cpu = match inside.map(|(stream, _)| stream.bits_per_second).sum::<u64>() {
            bits if bits > self.capacity => 0,
            _ => self.side(on_cpu, PlannedStreams::Cpu)?,
        };
        let gpus = if cpu < PPM { u64::MAX } else { self.side(on_cpu, PlannedStreams::Gpus)? };
        Ok(Margins { cpu, gpus })
    }

    /// A division of the first `count` streams.
    fn divide(&mut self, count: usize, reach: SearchReach) -> Result<BestRectangle, Error> {
        let streams = self.demand.streams(count);
        if self.capacity > 0 {
            return search(streams, reach, |on_cpu| self.margins(on_cpu));
        }
        let on_cpu = vec![false; count];
        let margins = Margins { cpu: u64::MAX, gpus: self.side(&on_cpu, PlannedStreams::Gpus)? };
        let rectangle = Rectangle { deadline: Nanos::ZERO, position: 0, bits_per_second: 0 };
        Ok(BestRectangle { rectangle, on_cpu, margins })
    }
}

/// The longest prefix that is accepted, none if that is not even one stream. Acceptance is nearly monotone; the border is
/// the one that doubling and bisection find.
pub(super) fn longest(machine: &Machine, demand: &Demand, policy: Strategy) -> Result<Option<Planned>, Error> {
    let mut divider = Divider::new(machine, demand, policy);
    let mut best = divider.divide(1, ANY)?;
    if !best.is_accepted() {
        return Ok(None);
    }
    let mut high = None;
    loop {
        let low = best.on_cpu.len();
        let next = match high {
            None if low == demand.len() => break,
            None => (2 * low).min(demand.len()),
            Some(high) if high - low > 1 + low / PRECISION => low + (high - low) / 2,
            Some(_) => break,
        };
        let found = divider.divide(next, ANY)?;
        if found.is_accepted() {
            best = found;
        } else {
            high = Some(next);
        }
    }
    if divider.capacity > 0 {
        // The same count with as much room as can be on both sides.
        let even = divider.divide(best.on_cpu.len(), BEST)?;
        if even.margins.least() > best.margins.least() {
            best = even;
        }
    }
    let case = forced(machine, demand, policy, &best.on_cpu)?;
    Ok(Some(Planned { case, division: best, refused: high, plans: divider.plans + 1 }))
}
