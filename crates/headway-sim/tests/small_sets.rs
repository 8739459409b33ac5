//! All small sets of flows: the verdict of a plan against what happens.

use crate::support::{Draw, Null, events, flows, is_late, logged, machine, run_of};
use headway_core::files::machine::Machine;
use headway_core::plan::planner::{PlanOptions, plan};
use headway_core::plan::{Outcome as Answer, Plan, Violation};
use headway_core::units::Nanos;
use headway_sim::{Run, SimFaults};

const US: u64 = 1_000;
/// Unit of costs.
const HALF: u64 = 500;
/// All periods up to 6 divide it.
const HYPERPERIOD: u64 = 60;

fn planned(machine: &Machine, tasks: &[(u64, u64, u64)]) -> Plan {
    plan(machine, &flows(tasks), PlanOptions::default()).unwrap()
}

/// Cost in half microseconds and period in microseconds, deadline = period.
fn implicit(tasks: &[(u64, u64)]) -> Vec<(u64, u64, u64)> {
    tasks.iter().map(|&(c, p)| (c * HALF, p * US, p * US)).collect()
}

/// Whether some window is missed when flow `i` starts at `starts[i]` and all run for `span`.
fn misses(machine: &Machine, plan: &Plan, starts: &[u64], span: u64, faults: SimFaults) -> bool {
    let mut plan = plan.clone();
    for (pipeline, &start) in plan.pipelines.iter_mut().zip(starts) {
        pipeline.start = Nanos(start);
    }
    let cycles = plan.pipelines.iter().map(|p| span.saturating_sub(p.start.0).div_ceil(p.period.0)).collect();
    let run = Run { cycles, faults, ..run_of(&plan, 0) };
    let (outcome, log) = logged(&plan, machine, &run, &mut Null::full(&plan));
    assert!(outcome.unwrap().finished);
    events(&log).any(is_late)
}

/// Every multiset of one to three flows with periods of 1 to 6 us and costs up to the period in steps of half a microsecond,
/// as (cost, period).
fn all_sets() -> Vec<Vec<(u64, u64)>> {
    let kinds: Vec<(u64, u64)> = (1..=6).flat_map(|p| (1..=2 * p).map(move |c| (c, p))).collect();
    let mut sets = Vec::new();
    for a in 0..kinds.len() {
        sets.push(vec![kinds[a]]);
        for b in a..kinds.len() {
            sets.push(vec![kinds[a], kinds[b]]);
            sets.extend((b..kinds.len()).map(|c| vec![kinds[a], kinds[b], kinds[c]]));
        }
    }
    sets
}

/// The releases of Jeffay's proof: the blocker a nanosecond before those whose deadlines lie in the interval, the others
/// after it.
fn worst_starts(plan: &Plan, violation: &Violation) -> Vec<u64> {
    let start = |name: &String| {
        if Some(name) == violation.blocker.as_ref() {
            0
        } else if violation.parts.iter().any(|(part, ..)| part == name) {
            1
        } else {
            violation.interval.0 + 1
        }
    };
    plan.pipelines.iter().map(|p| start(&p.name)).collect()
}

#[test]
fn small_sets_hold_exactly_if_the_plan_says_so() {
    let machine = Machine { calibration: None, ..machine("h200-x1") };
    let (mut yes, mut no, mut overloaded) = (0, 0, 0);
    for set in all_sets() {
        let plan = planned(&machine, &implicit(&set));
        match plan.verdict.outcome {
            Answer::Schedulable => {
                yes += 1;
                let starts = vec![0; set.len()];
                assert!(!misses(&machine, &plan, &starts, HYPERPERIOD * US, SimFaults::default()), "{set:?}");
            }
            Answer::NotSchedulable => {
                let violation = plan.verdict.violation.as_ref().unwrap();
                // Too much work in the long run: some job is late within two hyperperiods at the latest.
                let (starts, span) = if violation.interval == Nanos::ZERO {
                    overloaded += 1;
                    (vec![0; set.len()], 2 * HYPERPERIOD * US)
                } else {
                    no += 1;
                    (worst_starts(&plan, violation), violation.interval.0)
                };
                assert!(misses(&machine, &plan, &starts, span, SimFaults::default()), "{set:?}, {violation:?}");
            }
            Answer::Undecided => panic!("{set:?}: {:?}", plan.verdict),
        }
    }
    println!("{yes} hold, {no} miss, {overloaded} ask for too much");
    assert!(yes > 100 && no > 100 && overloaded > 100);
}

#[test]
fn accepted_small_sets_hold_with_any_offsets_costs_and_deadlines() {
    let machine = Machine { calibration: None, ..machine("h200-x1") };
    let mut draw = Draw(1);
    let mut accepted = 0;
    for set in all_sets() {
        // Deadlines from the cost to twice the period.
        let bent = set.iter().map(|&(c, p)| (c * HALF, p * US, draw.within(c * HALF, 2 * p * US))).collect();
        for tasks in [implicit(&set), bent] {
            let plan = planned(&machine, &tasks);
            if plan.verdict.outcome != Answer::Schedulable {
                continue;
            }
            accepted += 1;
            for kernel_ppm_min in [None, Some(0)] {
                let starts: Vec<u64> = set.iter().map(|&(_, p)| draw.below(p * US)).collect();
                let faults = SimFaults { kernel_ppm_min, ..SimFaults::default() };
                assert!(!misses(&machine, &plan, &starts, HYPERPERIOD * US, faults), "{tasks:?} at {starts:?}");
            }
        }
    }
    assert!(accepted > 500, "{accepted}");
}

#[test]
fn the_set_that_passes_the_test_of_the_longest_period_alone_misses() {
    let machine = Machine { calibration: None, ..machine("h200-x1") };
    let plan = planned(&machine, &implicit(&[(2, 2), (6, 8), (2, 9)]));
    let violation = plan.verdict.violation.as_ref().unwrap();
    assert_eq!(
        (violation.blocker.as_deref(), violation.interval, violation.demand),
        (Some("1"), Nanos(2_001), Nanos(4_000))
    );
    let span = 72 * US;
    assert!(!misses(&machine, &plan, &[0, 0, 0], 2 * US, SimFaults::default()));
    assert!(misses(&machine, &plan, &[1, 0, 9 * US], span, SimFaults::default()));
}

#[test]
fn costs_beyond_the_margin_of_a_plan_miss_and_up_to_it_hold() {
    let machine = Machine { calibration: None, ..machine("h200-x1") };
    let (mut held, mut missed) = (0, 0);
    for set in all_sets().into_iter().filter(|set| set.len() > 1) {
        let plan = planned(&machine, &implicit(&set));
        let (Answer::Schedulable, Some(margin)) = (plan.verdict.outcome, plan.verdict.margin_ppm) else { continue };
        let scaled = |ppm: u64| -> Vec<(u64, u64, u64)> {
            let tasks = implicit(&set).into_iter();
            tasks.map(|(c, p, d)| ((u128::from(c) * u128::from(ppm)).div_ceil(1_000_000) as u64, p, d)).collect()
        };
        let within = planned(&machine, &scaled(margin));
        assert_eq!(within.verdict.outcome, Answer::Schedulable);
        let mut stretched = plan.clone();
        let set_costs = |plan: &mut Plan, ppm| {
            for (pipeline, (cost, ..)) in plan.pipelines.iter_mut().zip(scaled(ppm)) {
                pipeline.steps[0].cost = Nanos(cost);
            }
        };
        set_costs(&mut stretched, margin);
        assert!(!misses(&machine, &stretched, &vec![0; set.len()], HYPERPERIOD * US, SimFaults::default()), "{set:?}");
        held += 1;
        // A thousandth more, where it is whole jobs that ask for too much and not the long run.
        let beyond = planned(&machine, &scaled(margin + 1_000));
        assert_eq!(beyond.verdict.outcome, Answer::NotSchedulable, "{set:?}");
        let violation = beyond.verdict.violation.as_ref().unwrap();
        if violation.interval > Nanos::ZERO {
            set_costs(&mut stretched, margin + 1_000);
            let starts = worst_starts(&plan, violation);
            assert!(misses(&machine, &stretched, &starts, violation.interval.0, SimFaults::default()), "{set:?}");
            missed += 1;
        }
    }
    assert!(held > 100 && missed > 50, "{held} {missed}");
}
