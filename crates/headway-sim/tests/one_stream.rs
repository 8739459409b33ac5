//! One stream whose steps share an engine: what a plan says of it, against simulated runs.

use crate::support::{Draw, Null, empty, events, is_fault, logged, run_of};
use headway_core::files::machine::{Machine, parse};
use headway_core::files::workload::{
    CopyEndpoint, Cycle, Grouping, OnMiss, Parameters, Stream, StreamPlacement, StreamStep, Workload,
};
use headway_core::plan::planner::{PlanOptions, plan};
use headway_core::plan::{Outcome, Plan, Strength};
use headway_core::units::{Bytes, Nanos};
use headway_sim::SimFaults;

/// A node whose one copy engine serves both directions, at 1 GB/s, and whose kernels do 4 GB/s.
fn half_duplex() -> Machine {
    let link = |id: &str, from: &str, to: &str| {
        format!("[[link]]\nid = \"{id}\"\nfrom = \"{from}\"\nto = \"{to}\"\nrate = \"1 GB/s\"\n")
    };
    let route = |from: &str, to: &str, link: &str| {
        format!(
            "[[route]]\nfrom = \"{from}\"\nto = \"{to}\"\nmethod = \"dma\"\nengines = [\"copy\"]\nlinks = [\"{link}\"]\n\
             setup = \"0 ns\"\n"
        )
    };
    let text = format!(
        "name = \"half\"\n[[memory]]\nid = \"host\"\n[[gpu]]\nid = \"gpu0\"\n{}{}[[engine]]\nid = \"copy\"\ngpu = \"gpu0\"\n\
         serves = [\"h2d\", \"d2h\"]\n[[engine]]\nid = \"ee\"\ngpu = \"gpu0\"\nserves = [\"ee\"]\n{}{}[[kernel]]\nid = \"spin\"\n\
         setup = \"0 ns\"\nrate = \"4 GB/s\"\n[calibration]\nvouched = true\n",
        link("in", "host", "gpu0"),
        link("out", "gpu0", "host"),
        route("host", "gpu0", "in"),
        route("gpu0", "host", "out")
    );
    parse("half.toml", &text).unwrap()
}

fn drawn(draw: &mut Draw) -> Workload {
    let copy = |from: CopyEndpoint, to: CopyEndpoint| StreamStep::Copy { from, to };
    let mut steps = vec![copy(CopyEndpoint::Host, CopyEndpoint::OwnGpu)];
    for _ in 0..draw.below(2) {
        steps.push(StreamStep::Compute { kernel: "spin".to_owned() });
    }
    steps.push(copy(CopyEndpoint::OwnGpu, CopyEndpoint::Host));
    let period = draw.within(2_000_000, 10_000_000);
    let stream = Stream {
        id: "a".to_owned(),
        packet: Bytes(draw.within(period / 5, period / 2)),
        period: Nanos(period),
        deadline: Nanos(draw.within(period / 2, 4 * period)),
        start: Nanos(draw.below(period)),
        gpu: StreamPlacement::Auto,
        steps,
        on_miss: OnMiss::Finish,
        parameters: Parameters::default(),
        sharding: None,
        parts: Vec::new(),
    };
    let cycle = *draw.pick(&[Cycle::Auto, Cycle::Paper, Cycle::Arrival]);
    Workload { cycle, grouping: Grouping::Each, streams: vec![stream], ..empty() }
}

/// Whether some job of a run is late whose kernels take at least `least` ppm of their worst case.
fn is_late(plan: &Plan, machine: &Machine, least: Option<u32>, seed: u64) -> bool {
    let mut run = run_of(plan, 40);
    (run.seed, run.faults) = (seed, SimFaults { kernel_ppm_min: least, ..SimFaults::default() });
    let (outcome, log) = logged(plan, machine, &run, &mut Null::full(plan));
    assert!(outcome.unwrap().finished);
    events(&log).any(is_fault)
}

#[test]
fn a_no_that_is_called_exact_misses_and_a_yes_does_not() {
    let machine = half_duplex();
    let (mut yes, mut by_phase, mut no, mut open) = (0, 0, 0, 0);
    for seed in 0..600 {
        let workload = drawn(&mut Draw(seed));
        let plan = plan(&machine, &workload, PlanOptions::default()).unwrap();
        let verdict = &plan.verdict;
        match verdict.outcome {
            Outcome::Schedulable => {
                yes += 1;
                by_phase += u32::from(verdict.model.contains("keep to their windows"));
                for least in [None, Some(0), Some(500_000)] {
                    assert!(!is_late(&plan, &machine, least, seed), "seed {seed}: {plan:#?}");
                }
            }
            _ if verdict.strength == Strength::Exact => {
                no += 1;
                assert!(is_late(&plan, &machine, None, seed), "seed {seed}: {plan:#?}");
            }
            _ => open += 1,
        }
    }
    println!("{yes} yes, {by_phase} of them by the phase, {no} no, {open} open");
    assert!(yes > 100 && by_phase > 20 && no > 30, "{yes} {by_phase} {no} {open}");
}

#[test]
fn two_copies_of_a_stream_on_one_engine_do_not_meet() {
    let mut workload = drawn(&mut Draw(1));
    let stream = &mut workload.streams[0];
    stream.packet = Bytes(4_000_000);
    (stream.period, stream.deadline) = (Nanos(10_000_000), Nanos(10_000_000));
    stream.steps.retain(|step| matches!(step, StreamStep::Copy { .. }));
    workload.cycle = Cycle::Arrival;
    let found = plan(&half_duplex(), &workload, PlanOptions::default()).unwrap();
    assert_eq!((found.verdict.outcome, found.verdict.strength), (Outcome::Schedulable, Strength::Exact));
    assert!(found.pipelines[0].windows.is_empty(), "windows of one length");
    let margin = found.verdict.margin_ppm.unwrap();
    assert!((1_240_000..=1_250_000).contains(&margin), "{margin}");
    // Another stream's copies could come between them, wherever it starts.
    let other = Stream { id: "b".to_owned(), packet: Bytes(1_000), ..workload.streams[0].clone() };
    workload.streams.push(other);
    let both = plan(&half_duplex(), &workload, PlanOptions::default()).unwrap();
    assert_ne!((both.verdict.outcome, both.verdict.strength), (Outcome::NotSchedulable, Strength::Exact));
}
