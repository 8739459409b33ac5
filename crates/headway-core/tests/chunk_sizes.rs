//! Chunks of a size per flow, as the planner cuts copies.

use headway_core::analysis::schedulability::{ChunkFlow, RecurrentTask, chunked, margin_ppm};
use headway_core::files::machine::{Machine, shipped};
use headway_core::files::workload::parse;
use headway_core::interconnect::Network;
use headway_core::plan::planner::{PlanOptions, plan};
use headway_core::plan::{OperationWork, Outcome, Plan, PlannedStep, Strategy};
use headway_core::units::{Bytes, Nanos};

const PAGE: Bytes = Bytes(4096);

/// One H200 as measured, with nothing added to costs.
fn exact() -> Machine {
    let mut machine = shipped("h200-x1").unwrap();
    let calibration = machine.calibration.as_mut().unwrap();
    (calibration.margin_ppm, calibration.jitter) = (0, Nanos::ZERO);
    machine
}

/// Streams to the GPU: (kilobytes of a packet, microseconds between packets). Each has windows as long as that.
fn planned(machine: &Machine, streams: &[(u64, u64)]) -> Plan {
    let stream = |(number, (kilobytes, micros)): (usize, &(u64, u64))| {
        format!(
            "[[stream]]\nid = \"s{number}\"\npacket = \"{kilobytes} kB\"\nperiod = \"{micros} us\"\ndeadline = \"{} us\"\n\
             steps = [{{ copy = \"host -> gpu\" }}]\n",
            2 * micros
        )
    };
    let text: String = streams.iter().enumerate().map(stream).collect();
    let text = format!("name = \"w\"\n[run]\ncycle = \"paper\"\ngrouping = \"each\"\n{text}");
    let workload = parse("w.toml", &text).unwrap_or_else(|error| panic!("{error}")).value;
    plan(machine, &workload, PlanOptions { strategy: Some(Strategy::Partitioned) }).unwrap()
}

fn steps(plan: &Plan) -> Vec<&PlannedStep> {
    plan.pipelines.iter().flat_map(|pipeline| &pipeline.steps).collect()
}

/// The same copies as the search for one common size sees them.
fn flows(machine: &Machine, plan: &Plan) -> Vec<ChunkFlow> {
    let network = Network::new(machine);
    let flow = |pipeline: &headway_core::plan::Pipeline| {
        let OperationWork::Copy { route, bytes, .. } = pipeline.steps[0].operations[0].work else {
            panic!("all steps are copies")
        };
        let of = &machine.routes[route.at()];
        ChunkFlow {
            bytes,
            setup: of.setup.max(of.setup_queued),
            rate: network.guaranteed_rate(route, &[route]).unwrap(),
            period: pipeline.period,
            deadline: pipeline.window,
        }
    };
    plan.pipelines.iter().map(flow).collect()
}

/// The flows in the largest common chunk with which they pass, in whole pages. What blocks too long beside the costs of the largest
/// size not yet excluded is excluded for good, as costs are least there.
fn in_common_chunks(flows: &[ChunkFlow]) -> Option<Vec<RecurrentTask>> {
    let mut size = flows.iter().map(|flow| flow.bytes).max()?;
    loop {
        let tasks: Vec<RecurrentTask> = flows.iter().map(|flow| flow.task(size)).collect();
        if chunked(&tasks, 1).is_schedulable() {
            return Some(tasks);
        }
        let blocks_little = |pages: u64| {
            let chunk = |flow: &ChunkFlow| flow.task(Bytes(PAGE.0 * pages)).chunk;
            let with: Vec<_> =
                flows.iter().zip(&tasks).map(|(f, task)| RecurrentTask { chunk: chunk(f), ..*task }).collect();
            chunked(&with, 1).is_schedulable()
        };
        let (mut low, mut high) = (0, size.0.div_ceil(PAGE.0));
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if blocks_little(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        size = Bytes(PAGE.0 * Some(low).filter(|pages| *pages > 0)?);
    }
}

#[test]
fn sizes_per_flow_hold_where_no_common_size_does() {
    let machine = exact();
    // 6 MB every 200 us leave a third of the engine, and 85 us for others' chunks: 4 MB. In chunks of 4 MB or less, the
    // short copies pay two set-ups or more and there is no room for the long ones.
    let plan = planned(&machine, &[(6_600, 200), (330_000, 20_000)]);
    assert_eq!(plan.verdict.outcome, Outcome::Schedulable, "{:?}", plan.verdict);
    let steps = steps(&plan);
    assert_eq!(steps[0].chunk, Bytes(0), "what is due first blocks nobody and stays whole");
    assert!(steps[1].chunk > Bytes(0) && steps[1].chunk < Bytes(6_600_000));
    let common = in_common_chunks(&flows(&machine, &plan));
    assert_eq!(common, None);
}

#[test]
fn sizes_per_flow_never_leave_less_margin_than_a_common_one_and_often_more() {
    let machine = exact();
    let (mut both, mut more, mut only_own) = (0, 0, 0);
    let mut seed = 7u64;
    let mut below = |end: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % end
    };
    for _ in 0..300 {
        // A short window half full and more, beside long copies: 55 kB take a microsecond.
        let micros = 100 << below(3);
        let mut streams: Vec<(u64, u64)> = vec![(micros * 55 * (16 + below(14)) / 40, micros)];
        for _ in 0..1 + below(3) {
            let micros = 1_000 << below(6);
            streams.push((micros * 55 * (2 + below(6)) / 40, micros));
        }
        let plan = planned(&machine, &streams);
        let common = in_common_chunks(&flows(&machine, &plan));
        let accepted = plan.verdict.outcome == Outcome::Schedulable;
        assert!(accepted || common.is_none(), "a common size is one choice of sizes: {streams:?}");
        let (true, true) = (accepted, steps(&plan).iter().any(|step| step.chunk > Bytes(0))) else { continue };
        let Some(common) = common else {
            only_own += 1;
            continue;
        };
        both += 1;
        let (own, common) = (plan.verdict.margin_ppm.unwrap(), margin_ppm(&common));
        // Margins are sought in thousandths.
        assert!(own + 1_000 >= common, "{own} {common} {streams:?}");
        more += u32::from(own > common + 10_000);
    }
    println!("both {both}, more margin {more}, only with sizes of their own {only_own}");
    assert!(both > 30 && more > 20 && only_own > 3, "{both} {more} {only_own}");
}

#[test]
fn a_long_message_is_cut_for_the_margin_and_the_plan_says_what_limits_it() {
    let message = |id: &str, period: &str, bytes: &str| {
        format!(
            "[[message]]\nid = \"{id}\"\nperiod = \"{period}\"\nblocks = [{{ from = \"host\", to = \"gpu0\", bytes = \"{bytes}\" }}]\n"
        )
    };
    let planned = |messages: String| {
        let workload = parse("w.toml", &format!("name = \"w\"\n{messages}")).unwrap().value;
        plan(&shipped("h200-x4").unwrap(), &workload, PlanOptions { strategy: Some(Strategy::Partitioned) }).unwrap()
    };
    let control = message("control", "500 us", "4 KiB");
    let long = planned(message("frames", "20 ms", "72 MB") + &control);
    let by_hand = planned((0..18).map(|n| message(&format!("f{n}"), "20 ms", "4 MB")).collect::<String>() + &control);
    let (long, by_hand) = (long.verdict, by_hand.verdict);
    assert_eq!(long.outcome, Outcome::Schedulable);
    assert!(long.margin_ppm >= by_hand.margin_ppm, "{:?} {:?}", long.margin_ppm, by_hand.margin_ppm);
    let named = |note: &String| note.contains("in chunks; with all costs x") && note.contains("`gpu0.h2d`");
    assert!(long.notes.iter().any(named), "{:?}", long.notes);
}
