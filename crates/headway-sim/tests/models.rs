//! What `plan` says under each of its three models, against simulated runs.

use crate::support::{Draw, Null, events, flows, is_fault, logged, run_of};
use headway_core::analysis::schedulability::TestStrength;
use headway_core::files::machine::shipped;
use headway_core::files::workload::{Workload, parse};
use headway_core::plan::planner::{Evidence, ModelAnswer, PlanOptions, models, plan};
use headway_core::plan::{Outcome, Plan};
use headway_core::units::Nanos;
use headway_sim::SimFaults;

fn planned(workload: &Workload) -> Plan {
    plan(&shipped("tyan-ft72b7015").unwrap(), workload, PlanOptions::default()).unwrap()
}

fn outcomes(answers: &[ModelAnswer]) -> [Outcome; 3] {
    [answers[0].outcome, answers[1].outcome, answers[2].outcome]
}

/// Flows of a few nanoseconds with offsets on one server.
fn drawn(draw: &mut Draw) -> Workload {
    let tasks: Vec<(u64, u64, u64)> = (0..draw.within(2, 4))
        .map(|_| {
            let period = *draw.pick(&[3, 4, 6, 8, 12, 24]);
            let cost = draw.within(1, period / 2);
            (cost, period, draw.within(cost, period))
        })
        .collect();
    let mut workload = flows(&tasks);
    workload.demands.iter_mut().for_each(|flow| flow.start = Nanos(draw.below(flow.period.0)));
    workload
}

/// Whether some job of the simulated run ends late. Jobs cost between `least` ppm of their worst case and all of it.
fn some_job_is_late(plan: &Plan, least: Option<u32>, seed: u64) -> bool {
    let machine = shipped("tyan-ft72b7015").unwrap();
    let longest = plan.pipelines.iter().map(|p| p.period.0).max().unwrap();
    let mut run = run_of(plan, 0);
    run.cycles = plan.pipelines.iter().map(|p| 12 * longest / p.period.0).collect();
    run.seed = seed;
    run.faults = SimFaults { kernel_ppm_min: least, ..SimFaults::default() };
    let (outcome, log) = logged(plan, &machine, &run, &mut Null::full(plan));
    assert!(outcome.unwrap().finished);
    events(&log).any(is_fault)
}

#[test]
fn a_yes_of_each_model_implies_those_after_it_and_no_run_that_it_holds_for_is_late() {
    let mut draw = Draw(4);
    let mut seen = [0; 4];
    for case in 0..1_500 {
        let plan = planned(&drawn(&mut draw));
        let answers = models(&plan);
        let yes = outcomes(&answers).map(|outcome| outcome == Outcome::Schedulable);
        assert!(yes[0] <= yes[1] && yes[1] <= yes[2], "case {case}: {answers:?}");
        assert_eq!(
            answers.iter().map(|a| a.strength).collect::<Vec<_>>(),
            [TestStrength::Exact, TestStrength::Exact, TestStrength::Necessary]
        );
        seen[yes.iter().filter(|yes| **yes).count()] += 1;
        if yes[2] {
            assert!(!some_job_is_late(&plan, None, 1), "case {case}, exact costs");
        }
        if yes[1] {
            for least in [0, 500_000] {
                assert!(!some_job_is_late(&plan, Some(least), draw.below(1 << 30)), "case {case}, least {least}");
            }
        }
        for answer in &answers[1..] {
            let late = matches!(answer.evidence, Some(Evidence::Late { .. } | Evidence::Utilisation { .. }));
            assert_eq!(late, answer.outcome == Outcome::NotSchedulable, "case {case}: {answer:?}");
        }
    }
    println!("sets accepted by none to all three models: {seen:?}");
    assert!(seen[0] > 500 && seen[1] > 2 && seen[2] > 100 && seen[3] > 200, "{seen:?}");
}

#[test]
fn with_exact_costs_a_no_is_shown_by_the_run_unless_equal_deadlines_leave_a_choice() {
    let mut draw = Draw(5);
    let (mut refused, mut late) = (0, 0);
    for _ in 0..600 {
        let plan = planned(&drawn(&mut draw));
        let answers = models(&plan);
        let overloaded = matches!(answers[2].evidence, Some(Evidence::Utilisation { .. }));
        if answers[2].outcome == Outcome::NotSchedulable && !overloaded {
            refused += 1;
            late += u32::from(some_job_is_late(&plan, None, 1));
        }
    }
    println!("{late} of {refused} late");
    assert!(refused > 100 && late * 10 > refused * 9, "{late} of {refused}");
}

#[test]
fn every_server_counts_and_the_worst_is_named() {
    let mut workload = flows(&[(1, 3, 3), (4, 12, 12), (1, 3, 3), (2, 6, 6), (4, 12, 12)]);
    workload.demands[1].start = Nanos(1);
    for flow in &mut workload.demands[2..] {
        flow.server = "other".to_owned();
    }
    let answers = models(&planned(&workload));
    assert_eq!(outcomes(&answers), [Outcome::NotSchedulable, Outcome::NotSchedulable, Outcome::Schedulable]);
    match &answers[1].evidence {
        Some(Evidence::Late { server, name, job, .. }) => {
            assert_eq!((server.as_str(), name.as_str(), *job), ("other", "2", 1))
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(answers[2].margin_ppm, None, "no factor means anything for exact costs");
}

#[test]
fn what_holds_for_any_offsets_holds_for_the_planned_ones_however_long_the_schedule_takes_to_repeat() {
    // Periods without a small common multiple: the exploration gives up, the first answer stands.
    let primes =
        [(1_000, 999_983, 999_983), (1_000, 999_979, 999_979), (1_000, 999_961, 999_961), (1, 999_959, 999_959)];
    let answers = models(&planned(&flows(&primes)));
    assert_eq!(outcomes(&answers), [Outcome::Schedulable; 3]);
    assert_eq!(answers[1].margin_ppm, answers[0].margin_ppm);
    let too_much =
        [(600_000, 999_983, 999_983), (300_000, 999_979, 600_000), (1_000, 999_961, 999_961), (1, 999_959, 999_959)];
    let answers = models(&planned(&flows(&too_much)));
    assert_eq!(outcomes(&answers), [Outcome::NotSchedulable, Outcome::Undecided, Outcome::Undecided]);
    assert!(
        matches!(&answers[1].evidence, Some(Evidence::Unknown { reason, .. }) if reason.contains("common multiple"))
    );
}

#[test]
fn streams_open_their_windows_at_known_times() {
    let stream = |id: &str, period: u64, deadline: u64, bytes: u64| {
        format!(
            "[[stream]]\nid = \"{id}\"\npacket = \"{bytes} B\"\nperiod = \"{period} ms\"\ndeadline = \"{deadline} ms\"\n\
             steps = [{{ copy = \"host -> gpu\" }}]\n"
        )
    };
    let text = format!("name = \"w\"\n{}{}", stream("s", 5, 10, 1_000_000), stream("t", 40, 80, 8_000_000));
    let workload = parse("w.toml", &text).unwrap().value;
    let plan = plan(&shipped("h200-x1").unwrap(), &workload, PlanOptions::default()).unwrap();
    let answers = models(&plan);
    assert_eq!(outcomes(&answers), [Outcome::Schedulable; 3]);
    assert!(answers[1].model.contains(&format!("releases up to {} late", plan.jitter)), "{}", answers[1].model);
    assert!(answers[1].margin_ppm >= answers[0].margin_ppm);
}
