//! Streams on cores of the CPU: how they are planned, tested and divided.

use headway_core::files::machine::{self, CpuCores, CpuCost, Machine, shipped};
use headway_core::files::workload::{Cycle, StreamPlacement, Workload};
use headway_core::plan::planner::{self, PlanError, PlanOptions};
use headway_core::plan::stream::{Fluid, Margins, SearchReach, search};
use headway_core::plan::{Outcome, Plan, Strategy};
use headway_core::units::{Bytes, Nanos, PPM, Rate};

fn machine(cores: u32) -> Machine {
    let mut machine = shipped("h200-x1").unwrap();
    let aes =
        CpuCost { id: "aes128-cbc".to_owned(), setup: Nanos(2_000), portion: Nanos(100), rate: Rate(1_000_000_000) };
    machine.cpu = Some(CpuCores { cores, assumed: false, kernels: vec![aes] });
    machine
}

/// Streams of (packet, period, deadline in us, processor).
fn workload(streams: &[(u64, u64, u64, &str)]) -> Workload {
    let mut text = "name = \"cores\"\n".to_owned();
    for (at, (packet, period, deadline, processor)) in streams.iter().enumerate() {
        text += &format!(
            "[[stream]]\nid = \"s{at}\"\npacket = \"{packet} B\"\nperiod = \"{period} us\"\ndeadline = \"{deadline} us\"\n\
             processor = \"{processor}\"\nkey = \"{at:032x}\"\niv = \"{at:032x}\"\n\
             steps = [{{ copy = \"host -> gpu\" }}, {{ compute = \"aes128-cbc\" }}, {{ copy = \"gpu -> host\" }}]\n"
        );
    }
    headway_kernels::workload::parse("cores.toml", &text).unwrap().value
}

fn planned(machine: &Machine, workload: &Workload) -> Plan {
    planner::plan(machine, workload, PlanOptions::default()).unwrap()
}

fn cores_of(plan: &Plan) -> Vec<Option<u32>> {
    plan.streams.iter().map(|stream| plan.core_of(&plan.pipelines[stream.pipeline as usize])).collect()
}

#[test]
fn a_stream_on_the_cpu_has_a_core_and_no_copies() {
    let plan = planned(&machine(2), &workload(&[(4096, 1000, 20_000, "gpu"), (4096, 1000, 2_000, "cpu")]));
    assert_eq!(plan.verdict.outcome, Outcome::Schedulable);
    assert_eq!(cores_of(&plan), [None, Some(0)]);
    assert_eq!((plan.streams[0].gpu, plan.streams[1].gpu), (Some(0), None));
    let pipeline = &plan.pipelines[plan.streams[1].pipeline as usize];
    assert_eq!(pipeline.steps.len(), 1);
    let engine = pipeline.steps[0].operations[0].engines[0];
    assert_eq!((plan.engines[engine.at()].name.as_str(), plan.cores()), ("cpu0", 1));
    let server = &plan.servers[pipeline.steps[0].server as usize];
    assert_eq!((server.name.as_str(), &server.engines), ("cpu0", &vec![engine]));
    // A deadline of 2 ms and two cycles, gathering and encrypting, or one from each arrival.
    assert!([Nanos(1_000_000), Nanos(2_000_000)].contains(&pipeline.window), "{}", pipeline.window);
    assert!(plan.verdict.notes.iter().any(|note| note.contains("1 stream on 1 core of the CPU")), "{:?}", plan.verdict);
}

#[test]
fn a_job_on_a_core_costs_its_set_up_its_portions_and_its_bytes_with_the_margin() {
    let (machine, workload) = (machine(1), workload(&[(4096, 1000, 2_000, "cpu"), (8192, 1000, 2_000, "cpu")]));
    let workload = Workload { cycle: Cycle::Paper, ..workload };
    let plan = planned(&machine, &workload);
    assert_eq!(plan.pipelines.len(), 1);
    let (pipeline, calibration) = (&plan.pipelines[0], machine.calibration.as_ref().unwrap());
    let cost = machine.cpu.as_ref().unwrap().kernels[0].cost(pipeline.reserve, 2);
    assert_eq!(cost, Nanos(2_000 + 200 + pipeline.reserve.0));
    assert_eq!(pipeline.steps[0].cost, calibration.with_margin(cost));
}

#[test]
fn streams_with_like_deadlines_share_a_core() {
    let like = [
        (1024, 1000, 2_000, "cpu"),
        (1024, 1000, 64_000, "cpu"),
        (1024, 1000, 2_100, "cpu"),
        (1024, 1000, 65_000, "cpu"),
    ];
    assert_eq!(cores_of(&planned(&machine(2), &workload(&like))), [Some(0), Some(1), Some(0), Some(1)]);
    // By bytes, one of these is as much as all others.
    let heavy = [
        (8192, 1000, 8_000, "cpu"),
        (2048, 1000, 8_000, "cpu"),
        (4096, 1000, 8_000, "cpu"),
        (2048, 1000, 8_000, "cpu"),
    ];
    assert_eq!(cores_of(&planned(&machine(2), &workload(&heavy))), [Some(0), Some(1), Some(1), Some(1)]);
}

#[test]
fn more_than_the_cores_carry_is_refused_with_the_core_that_fails() {
    // 1.6 GB/s on one core of 1 GB/s.
    let streams = [(16_384, 20, 2_000, "cpu"), (16_384, 20, 2_000, "cpu")];
    let plan = planned(&machine(1), &workload(&streams));
    assert_eq!(plan.verdict.outcome, Outcome::NotSchedulable);
    assert_eq!(plan.verdict.violation.unwrap().server, "cpu0");
    assert_eq!(planned(&machine(2), &workload(&streams)).verdict.outcome, Outcome::Schedulable);
}

#[test]
fn a_long_job_that_cannot_be_interrupted_keeps_a_short_deadline_out() {
    // The long job takes about 4 ms once it runs; utilisation is low.
    let long = (4_000_000, 100_000, 400_000, "cpu");
    let with = |deadline| planned(&machine(1), &workload(&[long, (64, 100_000, deadline, "cpu")])).verdict.outcome;
    assert_eq!(with(3_000), Outcome::NotSchedulable);
    assert_eq!(with(30_000), Outcome::Schedulable);
}

#[test]
fn a_machine_without_figures_of_its_cpu_says_that_they_are_assumed() {
    let mut machine = machine(1);
    machine.cpu = None;
    let plan = planned(&machine, &workload(&[(4096, 1000, 20_000, "cpu")]));
    assert!(
        plan.verdict.notes.iter().any(|note| note.contains("nothing but an assumption")),
        "{:?}",
        plan.verdict.notes
    );
    machine.cpu = Some(CpuCores { cores: 0, assumed: false, kernels: Vec::new() });
    let refused = planner::plan(&machine, &workload(&[(4096, 1000, 20_000, "cpu")]), PlanOptions::default());
    assert!(matches!(refused, Err(PlanError::UnknownName { .. } | PlanError::Impossible { .. })), "{refused:?}");
}

#[test]
fn short_deadlines_go_to_the_cpu_when_the_planner_may_choose() {
    let mut streams = vec![(65_536, 10_000, 80_000, "auto"); 20];
    streams.extend([(256, 100, 400, "auto"), (256, 100, 600, "auto")]);
    let plan = planned(&machine(2), &workload(&streams));
    assert_eq!(plan.verdict.outcome, Outcome::Schedulable);
    let cores = cores_of(&plan);
    assert!(cores[20].is_some() && cores[21].is_some(), "{cores:?}");
    let division = plan.division.expect("streams were divided");
    assert_eq!(division.on_cpu as usize, cores.iter().flatten().count());
    assert_eq!(division.of, 22);
    assert!(division.reason().contains("deadlines below"), "{}", division.reason());
    // The same rectangle, asked of each stream.
    for (stream, core) in plan.streams.iter().zip(&cores) {
        let inside = stream.deadline < division.deadline;
        assert!(inside == core.is_some() || stream.deadline == division.deadline, "{stream:?}");
    }
    let gpu_only: Vec<_> = streams.iter().map(|&(a, b, c, _)| (a, b, c, "gpu")).collect();
    let alone = planned(&machine(2), &workload(&gpu_only)).verdict.margin_ppm;
    assert!(plan.verdict.margin_ppm > alone, "{:?} {alone:?}", plan.verdict.margin_ppm);
}

#[test]
fn every_strategy_keeps_cores_out_of_what_it_ties_together() {
    let streams = [(4096, 1000, 20_000, "gpu"), (4096, 1000, 20_000, "gpu"), (1024, 1000, 2_000, "cpu")];
    for strategy in Strategy::ALL {
        let options = PlanOptions { strategy: Some(strategy) };
        let plan = planner::plan(&machine(1), &workload(&streams), options).unwrap();
        let core = plan.servers.iter().find(|server| server.name == "cpu0").unwrap();
        assert_eq!(core.engines.len(), 1, "{strategy:?}");
        assert_eq!(plan.verdict.outcome, Outcome::Schedulable, "{strategy:?}");
        assert!(plan.pipelines.iter().filter(|p| plan.core_of(p).is_some()).all(|p| p.gang.is_none()));
    }
}

#[test]
fn no_rectangle_of_a_whole_grid_has_more_margin_than_the_one_found() {
    let mut state = 7u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % 1000
    };
    for _ in 0..20 {
        let streams: Vec<Fluid> = (0..60)
            .map(|_| Fluid { bits_per_second: 200 + next() * 6, deadline: Nanos(500 + next() * next()) })
            .collect();
        // The CPU carries 40,000; the rest has cycles as long as its shortest deadline, with a set-up in each.
        let margins = |on_cpu: &[bool]| {
            let sum = |inside: bool| -> u64 {
                streams.iter().zip(on_cpu).filter(|(_, on)| **on == inside).map(|(s, _)| s.bits_per_second).sum()
            };
            let outside = streams.iter().zip(on_cpu).filter(|(_, on)| !**on);
            let cycle = outside.map(|(s, _)| s.deadline.0).min();
            let cpu = (40_000 * PPM).checked_div(sum(true)).unwrap_or(u64::MAX);
            let gpus = cycle.map_or(u64::MAX, |cycle| PPM * cycle * 300_000 / (400 * 300_000 + sum(false) * cycle));
            Margins { cpu, gpus }
        };
        let found = search(&streams, SearchReach::FULL, |on_cpu| Ok::<_, ()>(margins(on_cpu))).unwrap();
        assert_eq!(found.margins, margins(&found.on_cpu));
        for (at, stream) in streams.iter().enumerate() {
            assert_eq!(found.rectangle.has(at, *stream), found.on_cpu[at], "{:?}", found.rectangle);
        }
        let (mut deadlines, mut rates): (Vec<u64>, Vec<u64>) =
            streams.iter().map(|s| (s.deadline.0, s.bits_per_second)).unzip();
        deadlines.sort_unstable();
        rates.sort_unstable();
        for d in 1..=32 {
            for r in 1..=32 {
                let (deadline, rate) = (deadlines[60 * d / 32 - 1], rates[(60usize * r).div_ceil(32) - 1]);
                let on_cpu: Vec<bool> =
                    streams.iter().map(|s| s.deadline.0 < deadline && s.bits_per_second <= rate).collect();
                let least = margins(&on_cpu).least();
                assert!(least < PPM || least <= found.margins.least(), "{d} {r}: {found:?}");
            }
        }
    }
}

#[test]
fn a_machine_file_keeps_what_the_cpu_costs() {
    let machine = machine(3);
    let text = machine::write(&machine, &[]);
    let again = machine::parse("again.toml", &text).unwrap();
    assert_eq!(again.cpu, machine.cpu);
    assert_eq!(machine.with_gpus(1).unwrap().cpu, machine.cpu);
    assert_eq!(again.cpu_or_assumed().rate("aes128-cbc"), Rate(3_000_000_000));
    let twice = text.replace(
        "kernels = [",
        "kernels = [{ id = \"aes128-cbc\", setup = \"1 us\", lane = \"1 us\", rate = \"1 MB/s\" },",
    );
    assert!(machine::parse("twice.toml", &twice).unwrap_err().to_string().contains("two costs on the CPU"));
}

#[test]
fn a_workload_file_says_which_processor_may_serve_and_steps_that_fit() {
    let text = |processor: &str, steps: &str, more: &str| {
        format!(
            "name = \"a\"\n[[stream]]\nid = \"s\"\npacket = \"16 B\"\nperiod = \"1 ms\"\ndeadline = \"9 ms\"\n{processor}\n{more}\n\
             key = \"{0}\"\niv = \"{0}\"\nsteps = [{steps}]\n",
            "0".repeat(32)
        )
    };
    let both = "{ copy = \"host -> gpu\" }, { compute = \"aes128-cbc\" }, { copy = \"gpu -> host\" }";
    let (alone, half) = ("{ compute = \"aes128-cbc\" }", "{ copy = \"host -> gpu\" }, { compute = \"aes128-cbc\" }");
    let read = |processor: &str, steps: &str, more: &str| {
        headway_kernels::workload::parse("a.toml", &text(processor, steps, more))
            .map(|loaded| loaded.value.streams[0].gpu.clone())
    };
    assert_eq!(read("", both, "").unwrap(), StreamPlacement::Auto);
    assert_eq!(read("processor = \"gpu\"", half, "gpu = \"gpu1\"").unwrap(), StreamPlacement::Gpu("gpu1".to_owned()));
    assert_eq!(read("processor = \"cpu\"", both, "").unwrap(), StreamPlacement::Cpu);
    assert_eq!(read("processor = \"cpu\"", alone, "").unwrap(), StreamPlacement::Cpu);
    assert_eq!(read("processor = \"auto\"", both, "").unwrap(), StreamPlacement::Either);
    for (processor, steps, more) in [
        ("processor = \"auto\"", alone, ""),
        ("processor = \"cpu\"", half, ""),
        ("processor = \"auto\"", half, ""),
        ("processor = \"cpu\"", both, "gpu = \"gpu0\""),
        ("processor = \"fpga\"", both, ""),
    ] {
        assert!(read(processor, steps, more).is_err(), "{processor} {steps} {more}");
    }
    assert_eq!(
        Bytes(16),
        headway_kernels::workload::parse("a.toml", &text("", both, "")).unwrap().value.streams[0].packet
    );
}
