//! Plans: every packet has its place and its time, costs and margins are what they claim, and the paper's figures come out.

use headway_core::machine::{self, Machine};
use headway_core::plan::{Outcome, Plan, Source, Strategy, Strength, Work};
use headway_core::planner::{self, Options, PlanError};
use headway_core::units::Nanos;
use headway_core::workload::{self, Workload};
use proptest::prelude::{ProptestConfig, any, prop, prop_assert, prop_assert_eq, proptest};

fn workload(text: &str) -> Workload {
    workload::parse("test.toml", text).unwrap_or_else(|error| panic!("{error}")).value
}

fn shipped(name: &str) -> Machine {
    machine::shipped(name).unwrap()
}

fn plan_on(machine: &Machine, text: &str) -> Plan {
    planner::plan(machine, &workload(text), Options::default()).unwrap()
}

const COPIES: &str = r#"steps = [{ copy = "host -> gpu" }, { copy = "gpu -> host" }]"#;

fn stream(id: &str, packet: &str, period: &str, deadline: &str, more: &str) -> String {
    format!(
        "[[stream]]\nid = \"{id}\"\npacket = \"{packet}\"\nperiod = \"{period}\"\ndeadline = \"{deadline}\"\n{COPIES}\n{more}\n"
    )
}

fn head(cycle: &str, grouping: &str) -> String {
    format!("name = \"test\"\n[run]\ncycle = \"{cycle}\"\ngrouping = \"{grouping}\"\n")
}

#[test]
fn figure_ii_1_ends_at_21_33_ms() {
    let text = include_str!("../../../workloads/verner-fig2.1.toml");
    let plan = plan_on(&shipped("tyan-ft72b7015"), text);
    let batch = &plan.batches[0];
    assert_eq!(batch.predicted, Nanos(21_333_334));
    let ends: Vec<Nanos> = batch.blocks.iter().map(|(_, end)| *end).collect();
    assert_eq!(ends, [Nanos(21_333_334), Nanos(13_333_334)]);
    // Not calibrated: the bound is one block after the other, 192 MB at 8 GB/s, and a nanosecond of rounding.
    assert_eq!(batch.worst_case, Nanos(24_000_001));
    assert_eq!(plan.strategy, Strategy::Serial);
    assert!(plan.verdict.notes[0].contains("not calibrated"));
}

#[test]
fn a_set_that_only_checking_the_last_task_would_accept_is_refused_with_its_interval() {
    let text = include_str!("../../../workloads/np-edf-miss.toml");
    let plan = plan_on(&shipped("h200-x1"), text);
    assert_eq!((plan.verdict.outcome, plan.verdict.strength), (Outcome::NotSchedulable, Strength::Exact));
    let violation = plan.verdict.violation.unwrap();
    assert_eq!((violation.interval, violation.demand), (Nanos(2_000_001), Nanos(4_000_000)));
    assert_eq!((violation.blocker.as_deref(), violation.blocking), (Some("b"), Nanos(3_000_000)));
    assert_eq!(violation.parts, [("a".to_owned(), 1, Nanos(1_000_000))]);
}

#[test]
fn streams_go_to_the_least_loaded_gpu_largest_first_and_named_ones_stay() {
    let streams = [
        stream("small", "1 KiB", "10 ms", "60 ms", ""),
        stream("large", "8 KiB", "10 ms", "60 ms", ""),
        stream("fixed", "16 KiB", "10 ms", "60 ms", "gpu = \"gpu0\""),
        stream("middle", "4 KiB", "10 ms", "60 ms", ""),
    ];
    let machine = shipped("h200-x4").with_gpus(2).unwrap();
    let plan = plan_on(&machine, &(head("paper", "class") + &streams.concat()));
    let gpus: Vec<u32> = plan.streams.iter().map(|s| s.gpu).collect();
    assert_eq!(gpus, [1, 1, 0, 1]);
}

#[test]
fn classes_are_powers_of_two_of_the_shortest_cycle_and_never_longer_than_a_members_own() {
    let streams = [
        stream("a", "1 KiB", "1 ms", "9 ms", ""),
        stream("b", "1 KiB", "1 ms", "17999999 ns", ""),
        stream("c", "1 KiB", "1 ms", "18 ms", ""),
        stream("d", "1 KiB", "1 ms", "100 ms", ""),
    ];
    let plan = plan_on(&shipped("h200-x1"), &(head("paper", "class") + &streams.concat()));
    // Two steps and the gathering: a third of the deadline.
    let windows: Vec<Nanos> = plan.streams.iter().map(|s| plan.pipelines[s.pipeline as usize].window).collect();
    assert_eq!(windows, [Nanos(3_000_000), Nanos(3_000_000), Nanos(6_000_000), Nanos(24_000_000)]);
}

/// With packets that arrive at any time, a pipeline of N steps needs N + 1 windows: the literal N of the paper's tuple lets
/// a packet that arrives just after a cycle began wait for most of it, and end after its deadline.
#[test]
fn gathering_counts_as_a_step() {
    let plan = plan_on(&shipped("h200-x1"), &(head("paper", "each") + &stream("a", "1 KiB", "7 ms", "30 ms", "")));
    let (stream, pipeline) = (&plan.streams[0], &plan.pipelines[0]);
    assert_eq!(pipeline.window, Nanos(10_000_000));
    let literal = Nanos(stream.deadline.0 / 2);
    let worst = (0..100).map(|packet| {
        let arrival = stream.arrival(packet);
        let ready = Nanos(arrival.0 / literal.0 * literal.0) + literal;
        ready + literal * 2 - arrival
    });
    assert!(worst.max().unwrap() > stream.deadline);
}

#[test]
fn packets_far_apart_become_jobs_of_their_own_where_that_is_better() {
    let text = stream("camera", "4 MB", "40 ms", "6 ms", "");
    let machine = shipped("h200-x1");
    let paper = plan_on(&machine, &(head("paper", "class") + &text));
    let auto = plan_on(&machine, &(head("auto", "class") + &text));
    assert_eq!(auto.pipelines[0].period, Nanos(40_000_000));
    assert_eq!((auto.pipelines[0].gather, auto.pipelines[0].window), (Nanos::ZERO, Nanos(3_000_000)));
    assert!(auto.verdict.margin_ppm > paper.verdict.margin_ppm);
    assert!(auto.verdict.utilisation_ppm < paper.verdict.utilisation_ppm);
}

#[test]
fn a_long_copy_is_cut_into_chunks_so_that_a_short_window_holds() {
    let streams =
        [stream("bulk", "64 MB", "60 ms", "180 ms", ""), stream("urgent", "4 KiB", "3 ms", "4 ms", "")].concat();
    let plan = plan_on(&shipped("h200-x1"), &(head("paper", "each") + &streams));
    assert_eq!(plan.verdict.outcome, Outcome::Schedulable);
    let bulk = &plan.pipelines[plan.streams[0].pipeline as usize].steps[0];
    let urgent = &plan.pipelines[plan.streams[1].pipeline as usize].steps[0];
    assert!(bulk.chunk.0 > 0 && bulk.chunk.0 < 64_000_000 && bulk.piece < bulk.cost, "{bulk:?}");
    assert_eq!(urgent.chunk.0, 0);
    assert!(bulk.piece + urgent.cost <= Nanos(4_000_000 / 3));
}

#[test]
fn without_a_calibration_transfers_are_planned_one_at_a_time() {
    let streams = [
        stream("a", "1 KiB", "10 ms", "60 ms", "gpu = \"gpu0\""),
        stream("b", "1 KiB", "10 ms", "60 ms", "gpu = \"gpu3\""),
    ];
    let text = head("paper", "class") + &streams.concat();
    let plan = plan_on(&shipped("tyan-ft72b7015"), &text);
    assert_eq!((plan.strategy, plan.servers.len()), (Strategy::Serial, 1));
    assert_eq!(plan.servers[0].engines.len(), 4);
    let calibrated =
        planner::plan(&shipped("h200-x4"), &workload(&text), Options { strategy: Some(Strategy::Partitioned) });
    assert_eq!(calibrated.unwrap().servers.len(), 4);
}

#[test]
fn names_that_lead_nowhere_are_errors_with_their_place() {
    let machine = shipped("h200-x1");
    let cases = [
        ("gpu = \"gpu7\"", "stream.a.gpu", COPIES),
        ("", "stream.a.steps.0", r#"steps = [{ copy = "attic -> gpu" }, { copy = "gpu -> host" }]"#),
        (
            "",
            "stream.a.steps.1",
            r#"steps = [{ copy = "host -> gpu" }, { compute = "aes129" }, { copy = "gpu -> host" }]"#,
        ),
    ];
    for (more, place, steps) in cases {
        let text = head("paper", "class") + &stream("a", "1 KiB", "10 ms", "60 ms", more).replace(COPIES, steps);
        let error = planner::plan(&machine, &workload(&text), Options::default()).unwrap_err();
        assert!(matches!(&error, PlanError::UnknownName { .. }), "{error}");
        assert_eq!(error.place(), place);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Lanes and cycles hold every packet exactly once, and the last window of its cycle closes before its deadline.
    #[test]
    fn every_packet_has_one_place_and_is_due_before_its_deadline(
        streams in prop::collection::vec((1u64..500, 100u64..30_000, 400u64..200_000, 0u64..10_000), 1..12),
        class in any::<bool>(),
        auto in any::<bool>(),
    ) {
        let text: String = (0..).zip(&streams).map(|(number, (packet, period, deadline, start))| {
            let start = format!("start = \"{start} us\"");
            stream(&format!("s{number}"), &format!("{packet} B"), &format!("{period} us"), &format!("{deadline} us"), &start)
        }).collect();
        let head = head(if auto { "auto" } else { "paper" }, if class { "class" } else { "each" });
        let plan = plan_on(&shipped("h200-x4"), &(head + &text));
        let mut seats = Vec::new();
        for (number, stream) in (0u32..).zip(&plan.streams) {
            let pipeline = &plan.pipelines[stream.pipeline as usize];
            let Source::Streams(members) = &pipeline.source else { panic!("a stream's pipeline is fed by streams") };
            prop_assert_eq!(members[stream.lane as usize], number);
            seats.push((stream.pipeline, stream.lane));
            let mut expected = 0;
            for cycle in 0..40 {
                let packets = stream.packets_in(pipeline, cycle);
                prop_assert_eq!(packets.start, expected);
                expected = packets.end;
                for packet in packets {
                    prop_assert_eq!(stream.cycle_of(pipeline, packet), cycle);
                    let last = pipeline.steps.len() - 1;
                    prop_assert!(stream.arrival(packet) <= pipeline.release(cycle, 0));
                    prop_assert!(pipeline.deadline(cycle, last) <= stream.arrival(packet) + stream.deadline);
                }
            }
        }
        seats.sort_unstable();
        seats.dedup();
        prop_assert_eq!(seats.len(), plan.streams.len());
    }
}

/// A margin is a factor on costs that still passes, and a little more does not.
#[test]
fn the_margin_is_the_border() {
    let text =
        head("paper", "each") + &stream("a", "8 MB", "4 ms", "12 ms", "") + &stream("b", "1 MB", "20 ms", "90 ms", "");
    let plan = plan_on(&shipped("h200-x1"), &text);
    for (number, server) in (0u32..).zip(&plan.servers) {
        let margin = u128::from(server.verdict.margin_ppm.unwrap());
        let steps = plan.pipelines.iter().flat_map(|p| p.steps.iter().map(move |s| (p, s)));
        let passes = |factor: u128| {
            let scaled = |time: Nanos| Nanos((u128::from(time.0) * factor).div_ceil(1_000_000) as u64);
            let tasks: Vec<headway_core::schedulability::Task> = steps
                .clone()
                .filter(|(_, step)| step.server == number)
                .map(|(p, s)| headway_core::schedulability::Task {
                    cost: scaled(s.cost),
                    period: p.period,
                    deadline: p.window,
                    chunk: scaled(s.piece),
                })
                .collect();
            headway_core::schedulability::chunked(&tasks, 1).is_schedulable()
        };
        assert!(passes(margin) && !passes(margin + 200), "{}: {margin}", server.name);
    }
}

#[test]
fn copies_carry_what_a_report_needs() {
    let plan = plan_on(&shipped("h200-x1"), &(head("paper", "class") + &stream("a", "1 KiB", "10 ms", "60 ms", "")));
    let operation = &plan.pipelines[0].steps[0].operations[0];
    let Work::Copy { from, to, uses, .. } = &operation.work else { panic!("the first step is a copy") };
    assert_eq!((from.as_str(), to.as_str()), ("host", "gpu0"));
    let crossed: Vec<&str> = uses.iter().map(|(id, _)| plan.capacities[id.at()].name.as_str()).collect();
    assert!(crossed.contains(&"gpu0.in") && crossed.contains(&"io"), "{crossed:?}");
}
