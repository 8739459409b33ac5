//! What every plan promises, over random workloads on the shipped machines, and the choices of the planner by example.

use headway_core::analysis::schedulability::{self, PhasedStep, PhasedStream, RecurrentTask, TestVerdict};
use headway_core::files::error::Loaded;
use headway_core::files::machine::{self, Calibration, EngineClass, EngineId, Machine};
use headway_core::files::workload::{
    self, Cycle, Grouping, Message, ServerDemand, Stream, StreamPlacement, StreamStep, Workload,
};
use headway_core::models::transfer::Method;
use headway_core::plan::block::block_bytes;
use headway_core::plan::planner::{PlanError, PlanOptions, models, plan};
use headway_core::plan::{
    OperationWork, Outcome, Pipeline, PipelineSource, Plan, PlanChoice, PlannedStep, PlannedStream, Strategy, Strength,
};
use headway_core::units::{Bytes, Nanos};

const MS: u64 = 1_000_000;

/// A small deterministic generator.
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }

    fn within(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}

/// A shipped machine; of the H200 nodes those with round figures.
pub(crate) fn shipped(name: &str) -> Machine {
    match name {
        "h200-x1" => machine::parse(name, include_str!("machines/h200-x1.toml")).expect("it parses"),
        "h200-x4" => machine::parse(name, include_str!("machines/h200-x4.toml")).expect("it parses"),
        _ => machine::shipped(name).expect("shipped"),
    }
}

fn loaded(text: &str) -> Loaded<Workload> {
    workload::parse("w.toml", text).unwrap_or_else(|error| panic!("{error}"))
}

fn parsed(text: &str) -> Workload {
    loaded(text).value
}

fn stream_text(id: &str, packet: &str, period: &str, deadline: &str, steps: &str) -> String {
    format!(
        "[[stream]]\nid = \"{id}\"\npacket = \"{packet}\"\nperiod = \"{period}\"\ndeadline = \"{deadline}\"\nsteps = [{steps}]\n"
    )
}

const IN: &str = "{ copy = \"host -> gpu\" }";
const OUT: &str = "{ copy = \"gpu -> host\" }";
const SPIN: &str = "{ compute = \"spin\" }";

fn with(strategy: Strategy) -> PlanOptions {
    PlanOptions { strategy: Some(strategy) }
}

pub(crate) fn random_workload(machine: &Machine, draw: &mut Draw) -> Workload {
    let mut text = "name = \"random\"\n".to_owned();
    text += "[run]\n";
    text += &format!("cycle = \"{}\"\n", draw.pick(&["auto", "paper", "arrival"]));
    text += &format!("grouping = \"{}\"\n", draw.pick(&["class", "each"]));
    let memory = &machine.endpoints[machine.memories().next().unwrap().at()].id;
    let gpus: Vec<&str> = machine.gpus().map(|gpu| machine.endpoints[gpu.at()].id.as_str()).collect();
    for number in 0..draw.within(1, 12) {
        let most = *draw.pick(&[2_000, 200_000, 4_000_000]);
        let (packet, period) = (draw.within(1, most), draw.within(MS / 20, 20 * MS));
        let longest = *draw.pick(&[5, 100]);
        let (deadline, start) = (draw.within(MS / 2, longest * MS), draw.below(2) * draw.below(30 * MS));
        let middle = if machine.kernels.is_empty() { "" } else { *draw.pick(&["", "{ compute = \"spin\" }, "]) };
        let out = *draw.pick(&["", OUT]);
        let steps = format!("{IN}, {middle}{out}");
        text += &stream_text(
            &format!("s{number}"),
            &format!("{packet} B"),
            &format!("{period} ns"),
            &format!("{deadline} ns"),
            steps.trim_end_matches(", "),
        );
        text += &format!("start = \"{start} ns\"\n");
        if draw.below(2) == 0 {
            text += &format!("gpu = \"{}\"\n", draw.pick(&gpus));
        }
    }
    for number in 0..draw.below(3) {
        let (gpu, bytes, period) = (draw.pick(&gpus), draw.within(1, 4_000_000), draw.within(5, 50));
        text += &format!(
            "[[message]]\nid = \"m{number}\"\nperiod = \"{period} ms\"\nblocks = [{{ from = \"{memory}\", to = \"{gpu}\", \
             bytes = \"{bytes} B\" }}, {{ from = \"{gpu}\", to = \"{memory}\", bytes = \"{bytes} B\" }}]\n"
        );
    }
    for number in 0..draw.below(3) {
        let (cost, period) = (draw.within(1, MS), draw.within(2, 20));
        text += &format!("[[demand]]\nid = \"f{number}\"\ncost = \"{cost} ns\"\nperiod = \"{period} ms\"\n");
    }
    parsed(&text)
}

/// Plans for random workloads on every machine that comes with a way from memory to its GPUs, with all strategies.
fn for_random_plans(cases: u64, mut check: impl FnMut(&Machine, &Workload, &Plan)) {
    let mut draw = Draw(11);
    for name in ["h200-x1", "h200-x4", "tyan-ft72b7015"] {
        let machine = shipped(name);
        for _ in 0..cases {
            let workload = random_workload(&machine, &mut draw);
            let all = [Strategy::Serial, Strategy::Combined, Strategy::Partitioned];
            for strategy in all.map(Some).into_iter().chain([None]) {
                let plan = plan(&machine, &workload, PlanOptions { strategy }).unwrap();
                check(&machine, &workload, &plan);
            }
        }
    }
}

fn pipeline_of<'a>(plan: &'a Plan, stream: &PlannedStream) -> &'a Pipeline {
    &plan.pipelines[stream.pipeline as usize]
}

fn is_gathered(pipeline: &Pipeline) -> bool {
    pipeline.gather > Nanos::ZERO
}

#[test]
fn every_stream_has_exactly_one_portion_of_one_pipeline_on_its_gpu() {
    for_random_plans(300, |machine, workload, plan| {
        assert_eq!(plan.streams.len(), workload.streams.len());
        let mut portions = vec![0; plan.streams.len()];
        for (number, pipeline) in (0u32..).zip(&plan.pipelines) {
            let PipelineSource::Streams(streams) = &pipeline.source else { continue };
            for (portion, &stream) in (0u32..).zip(streams) {
                portions[stream as usize] += 1;
                let planned = &plan.streams[stream as usize];
                assert_eq!((planned.pipeline, planned.portion), (number, portion));
                assert_eq!(planned.gpu, pipeline.gpu);
                assert_eq!(pipeline.steps.len(), workload.streams[stream as usize].steps.len());
            }
        }
        assert!(portions.iter().all(|&count| count == 1), "{portions:?}");
        for (planned, stream) in plan.streams.iter().zip(&workload.streams) {
            assert_eq!((planned.packet, planned.period, planned.start), (stream.packet, stream.period, stream.start));
            if let StreamPlacement::Gpu(name) = &stream.gpu {
                let gpu = machine.gpus().nth(planned.gpu.unwrap() as usize).unwrap();
                assert_eq!(machine.endpoints[gpu.at()].id, *name);
            }
        }
        let blocks: usize = workload.messages.iter().map(|message| message.blocks.len()).sum();
        let of = |kind: fn(&PipelineSource) -> bool| plan.pipelines.iter().filter(|p| kind(&p.source)).count();
        let carried = plan.pipelines.iter().map(|p| match &p.source {
            PipelineSource::Batch(parts) => parts.len(),
            PipelineSource::Message => p.steps[0].operations.len(),
            _ => 0,
        });
        assert_eq!((carried.sum::<usize>(), of(|s| *s == PipelineSource::Demand)), (blocks, workload.demands.len()));
    });
}

#[test]
fn the_cycles_of_a_pipeline_share_out_all_packets_and_every_block_fits_its_reserve() {
    for_random_plans(200, |_, _, plan| {
        for pipeline in &plan.pipelines {
            let PipelineSource::Streams(streams) = &pipeline.source else { continue };
            let of = |stream: &u32| &plan.streams[*stream as usize];
            let mut next = vec![0; streams.len()];
            for cycle in 0..60 {
                let mut lens = Vec::new();
                for (stream, next) in streams.iter().map(of).zip(&mut next) {
                    let packets = stream.packets_in(pipeline, cycle);
                    assert_eq!(packets.start, *next, "{} cycle {cycle}", stream.id);
                    *next = packets.end;
                    for packet in packets.clone().take(40) {
                        assert_eq!(stream.cycle_of(pipeline, packet), cycle);
                    }
                    lens.push((packets.end - packets.start) * stream.packet.0);
                }
                assert!(block_bytes(lens) <= pipeline.reserve);
            }
        }
    });
}

/// By how much the last step of a packet's cycle can end after the packet's deadline; zero if it cannot.
fn excess(pipeline: &Pipeline, stream: &PlannedStream, packet: u64) -> Nanos {
    let cycle = stream.cycle_of(pipeline, packet);
    assert!(pipeline.release(cycle, 0) >= stream.arrival(packet), "a packet is there when its first window opens");
    let end = pipeline.deadline(cycle, pipeline.steps.len() - 1);
    end.saturating_sub(stream.arrival(packet) + stream.deadline)
}

#[test]
fn packets_whose_windows_hold_are_complete_by_their_deadlines() {
    for_random_plans(300, |_, workload, plan| {
        for (stream, asked) in plan.streams.iter().zip(&workload.streams) {
            let pipeline = pipeline_of(plan, stream);
            let steps = asked.steps.len() as u64;
            // T = floor(l / n): n = N + 1 when packets are gathered for a cycle, N when each is a job.
            let n = if is_gathered(pipeline) { steps + 1 } else { steps };
            if pipeline.windows.is_empty() {
                assert!(pipeline.window <= Nanos(asked.deadline.0 / n));
            } else {
                let sum = pipeline.windows.iter().fold(Nanos::ZERO, |sum, window| sum + *window);
                assert!(!is_gathered(pipeline) && sum <= asked.deadline && pipeline.window <= pipeline.period);
            }
            for packet in 0..80 {
                assert_eq!(excess(pipeline, stream, packet), Nanos::ZERO, "{} packet {packet}", stream.id);
            }
        }
    });
}

#[test]
fn one_window_per_step_and_none_for_gathering_would_miss_by_up_to_a_cycle() {
    let text = format!("name = \"w\"\n{}", stream_text("s", "64 B", "7 ms", "30 ms", &format!("{IN}, {SPIN}, {OUT}")));
    let mut workload = parsed(&text);
    workload.cycle = Cycle::Paper;
    let plan = plan(&shipped("h200-x1"), &workload, PlanOptions::default()).unwrap();
    let stream = &plan.streams[0];
    let pipeline = pipeline_of(&plan, stream);
    assert_eq!(pipeline.window, Nanos(7_500_000));
    let worst = |pipeline: &Pipeline| (0..200).map(|packet| excess(pipeline, stream, packet)).max().unwrap();
    assert_eq!(worst(pipeline), Nanos::ZERO);
    // The paper's T = l / N while packets arrive at any time.
    let cycle = Nanos(30 * MS / 3);
    let literal = Pipeline { period: cycle, gather: cycle, window: cycle, ..pipeline.clone() };
    // Packet 0 arrives exactly when a cycle starts and waits for all of it.
    assert_eq!(worst(&literal), cycle);
    // With packets that arrive exactly when cycles start, and nothing to gather, N windows are enough.
    let aligned = PlannedStream { period: cycle, ..stream.clone() };
    let immediate = Pipeline { gather: Nanos::ZERO, ..literal };
    assert!((0..200).all(|packet| excess(&immediate, &aligned, packet) == Nanos::ZERO));
}

#[test]
fn classes_are_the_shortest_window_of_a_gpu_times_a_power_of_two_and_no_longer_than_the_streams_own() {
    let mut several = 0;
    for_random_plans(300, |_, workload, plan| {
        let own = |at: usize| workload.streams[at].deadline.0 / (workload.streams[at].steps.len() as u64 + 1);
        let gathered = |at: &usize| is_gathered(pipeline_of(plan, &plan.streams[*at]));
        for gpu in 0..4 {
            let here: Vec<usize> =
                (0..plan.streams.len()).filter(gathered).filter(|&at| plan.streams[at].gpu == Some(gpu)).collect();
            let Some(shortest) = here.iter().map(|&at| own(at)).min() else { continue };
            for &at in &here {
                let window = pipeline_of(plan, &plan.streams[at]).window.0;
                match workload.grouping {
                    Grouping::Each => assert_eq!(window, own(at)),
                    Grouping::Gpu => assert!(window <= shortest),
                    Grouping::Class => {
                        assert!(window.is_multiple_of(shortest) && (window / shortest).is_power_of_two());
                        assert!(window <= own(at) && own(at) < 2 * window);
                        several += u32::from(window > shortest);
                    }
                }
            }
        }
        for pipeline in plan.pipelines.iter().filter(|p| is_gathered(p)) {
            assert_eq!((pipeline.period, pipeline.gather), (pipeline.window, pipeline.window));
            assert_eq!(pipeline.start, Nanos::ZERO);
        }
    });
    assert!(several > 100);
}

#[test]
fn packets_become_jobs_only_where_they_are_further_apart_than_their_windows() {
    let mut jobs = 0;
    for_random_plans(300, |_, workload, plan| {
        for (stream, asked) in plan.streams.iter().zip(&workload.streams) {
            let pipeline = pipeline_of(plan, stream);
            if !is_gathered(pipeline) {
                jobs += 1;
                assert_ne!(workload.cycle, Cycle::Paper);
                assert!(pipeline.period >= pipeline.window);
                assert_eq!((pipeline.period, pipeline.start), (asked.period, asked.start));
                assert_eq!(
                    pipeline.source,
                    PipelineSource::Streams(vec![plan.streams.iter().position(|s| s == stream).unwrap() as u32])
                );
            }
        }
    });
    assert!(jobs > 100);
}

#[test]
fn every_engine_belongs_to_one_server_and_every_operation_stays_on_its_servers_engines() {
    for_random_plans(300, |machine, _, plan| {
        let mut owners = vec![0; machine.engines.len()];
        for server in &plan.servers {
            server.engines.iter().for_each(|engine| owners[engine.at()] += 1);
        }
        assert!(owners.iter().all(|&count| count <= 1));
        for step in plan.pipelines.iter().flat_map(|p| &p.steps) {
            let server = &plan.servers[step.server as usize];
            for operation in &step.operations {
                assert!(operation.engines.iter().all(|engine| server.engines.contains(engine)));
            }
            assert!(step.chunk_cost <= step.cost);
        }
        let copies = |class: &EngineClass| *class != EngineClass::Ee;
        let copying = plan.servers.iter().filter(|server| {
            server.engines.iter().any(|engine: &EngineId| machine.engines[engine.at()].serves.iter().any(copies))
        });
        match plan.strategy {
            Strategy::Serial => assert!(copying.count() <= 1),
            Strategy::Combined => assert!(plan.pipelines.iter().all(|p| p.source != PipelineSource::Message)),
            Strategy::Partitioned => {
                let batched = |engine: &EngineId| {
                    let batches = plan.pipelines.iter().filter(|p| p.source == PipelineSource::Message);
                    batches.flat_map(|p| &p.steps[0].operations).any(|o| o.engines.contains(engine))
                };
                for server in copying {
                    assert!(server.engines.len() == 1 || server.engines.iter().all(batched));
                }
            }
            other => panic!("{} is planned only when asked for", other.name()),
        }
    });
}

/// The tasks of one server, as its test sees them.
fn tasks_of(plan: &Plan, server: usize) -> Vec<RecurrentTask> {
    let task = |(p, at, s): (&Pipeline, usize, &PlannedStep)| RecurrentTask {
        cost: s.cost,
        period: p.period,
        deadline: p.window_of(at),
        chunk: s.chunk_cost,
    };
    let steps = plan.pipelines.iter().flat_map(|p| p.steps.iter().enumerate().map(move |(at, s)| (p, at, s)));
    // The steps of a batch are one job.
    let mut batches = Vec::new();
    let first = |step: &PlannedStep| match step.batch {
        Some(place) if batches.contains(&place.number) => false,
        Some(place) => {
            batches.push(place.number);
            true
        }
        None => true,
    };
    let mut first = first;
    steps.filter(|(_, _, s)| s.server as usize == server && first(s)).map(task).collect()
}

fn test_of(tasks: &[RecurrentTask]) -> TestVerdict {
    let whole = tasks.iter().all(|t| t.deadline == t.period && t.chunk == t.cost);
    if whole { schedulability::jeffay(tasks) } else { schedulability::chunked(tasks, 1) }
}

/// The streams whose steps keep their distances in the test of a server: of those with several steps there, if its verdict says so.
pub(crate) fn phased(plan: &Plan, server: usize) -> Vec<PhasedStream> {
    if !plan.servers[server].verdict.model.contains("any start of each stream") {
        return Vec::new();
    }
    let (mut streams, mut task) = (Vec::new(), 0);
    for pipeline in &plan.pipelines {
        let mut steps = Vec::new();
        for at in (0..pipeline.steps.len()).filter(|at| pipeline.steps[*at].server as usize == server) {
            steps.push(PhasedStep { task, release: pipeline.release(0, at) });
            task += 1;
        }
        streams.push(PhasedStream { steps });
    }
    streams
}

fn scaled(tasks: &[RecurrentTask], ppm: u64) -> Vec<RecurrentTask> {
    let scale = |time: Nanos| Nanos((u128::from(time.0) * u128::from(ppm)).div_ceil(1_000_000) as u64);
    tasks.iter().map(|t| RecurrentTask { cost: scale(t.cost), chunk: scale(t.chunk), ..*t }).collect()
}

#[test]
fn a_plan_is_accepted_exactly_if_all_its_servers_are_and_its_margin_is_what_all_costs_can_grow_by() {
    let (mut accepted, mut refused, mut with_distances) = (0, 0, 0);
    for_random_plans(100, |_, _, plan| {
        let mut all = true;
        for (at, server) in plan.servers.iter().enumerate() {
            let tasks = tasks_of(plan, at);
            let streams = phased(plan, at);
            let holds = |tasks: &[RecurrentTask]| match streams.is_empty() {
                true => test_of(tasks).is_schedulable(),
                false => schedulability::chunked_streams(tasks, &streams).is_schedulable(),
            };
            with_distances += u32::from(!streams.is_empty());
            let schedulable = holds(&tasks);
            assert_eq!(server.verdict.outcome == Outcome::Schedulable, schedulable);
            all &= schedulable;
            let margin = server.verdict.margin_ppm.unwrap();
            assert_eq!(margin >= 1_000_000, schedulable);
            assert!(holds(&scaled(&tasks, margin)));
            let beyond = holds(&scaled(&tasks, margin + schedulability::MARGIN_PPM_STEP));
            assert!(margin == schedulability::MARGIN_PPM_MAX || !beyond);
        }
        assert_eq!(plan.verdict.outcome == Outcome::Schedulable, all);
        assert_eq!(plan.verdict.margin_ppm, plan.servers.iter().map(|s| s.verdict.margin_ppm.unwrap()).min());
        let utilisation = plan.servers.iter().map(|s| s.verdict.utilisation_ppm).max().unwrap();
        assert_eq!(plan.verdict.utilisation_ppm, utilisation);
        if all { accepted += 1 } else { refused += 1 }
    });
    assert!(accepted > 20 && refused > 20 && with_distances > 0, "{accepted} {refused} {with_distances}");
}

#[test]
fn the_plan_kept_is_accepted_if_any_is_and_has_the_greatest_margin() {
    let rank = |plan: &Plan| (plan.verdict.outcome == Outcome::Schedulable, plan.verdict.margin_ppm);
    // Uneven windows are tried only where nothing holds with equal ones.
    let uneven = |plan: &Plan| plan.pipelines.iter().any(|pipeline| !pipeline.windows.is_empty());
    for_random_plans(60, |machine, workload, kept| {
        let cycles = match workload.cycle {
            Cycle::Auto => vec![Cycle::Paper, Cycle::Arrival],
            one => vec![one],
        };
        for cycle in cycles {
            let workload = Workload { cycle, ..workload.clone() };
            let other = plan(machine, &workload, with(kept.strategy)).unwrap();
            assert!(rank(kept) >= rank(&other) || rank(kept).0 && !uneven(kept) && uneven(&other));
        }
    });
    let machine = shipped("h200-x4");
    let mut draw = Draw(12);
    let mut won = [0, 0, 0];
    for _ in 0..60 {
        let workload = random_workload(&machine, &mut draw);
        let kept = plan(&machine, &workload, PlanOptions::default()).unwrap();
        let all = [Strategy::Serial, Strategy::Combined, Strategy::Partitioned];
        let plans = all.map(|s| plan(&machine, &workload, with(s)).unwrap());
        let tried: Vec<&Plan> =
            plans.iter().filter(|p| p.strategy != Strategy::Combined || !workload.messages.is_empty()).collect();
        if !uneven(&kept) && tried.iter().any(|p| uneven(p)) {
            assert!(rank(&kept).0);
            continue;
        }
        assert_eq!(rank(&kept), tried.iter().map(|p| rank(p)).max().unwrap());
        let holds = |outcome| outcome == Outcome::Schedulable;
        let of = |p: &&Plan| (p.strategy, holds(p.verdict.outcome), p.verdict.utilisation_ppm, p.verdict.margin_ppm);
        let shown = kept.alternatives.iter().map(|a| (a.strategy, holds(a.outcome), a.utilisation_ppm, a.margin_ppm));
        assert_eq!(shown.collect::<Vec<_>>(), tried.iter().map(of).collect::<Vec<_>>());
        won[all.iter().position(|s| *s == kept.strategy).unwrap()] += 1;
    }
    assert!(won[0] > 0 && won[2] > 0, "{won:?}");
}

#[test]
fn streams_without_a_place_go_largest_first_to_the_least_loaded_gpu() {
    let stream = |id: &str, packet: &str| stream_text(id, packet, "1 ms", "50 ms", IN);
    let mut text = "name = \"w\"\n".to_owned();
    for (id, packet) in [("small", "2 kB"), ("large", "8 kB"), ("middle", "4 kB"), ("same", "4 kB"), ("last", "1 kB")] {
        text += &stream(id, packet);
    }
    text += &stream("fixed", "5 kB");
    text += "gpu = \"gpu1\"\n";
    let machine = shipped("h200-x4").with_gpus(2).unwrap();
    let plan = plan(&machine, &parsed(&text), PlanOptions::default()).unwrap();
    let gpus: Vec<u32> = plan.streams.iter().filter_map(|s| s.gpu).collect();
    // 5 on gpu1; 8 to gpu0; 4 to gpu1 (9); 4 to gpu0 (12); 2 to gpu1 (11); 1 to gpu1 (12).
    assert_eq!(gpus, [1, 0, 1, 0, 1, 1]);
}

#[test]
fn a_large_copy_is_cut_exactly_when_it_would_block_a_short_window() {
    let text = |packet: &str| {
        let short = stream_text("short", "4 kB", "1 ms", "1 ms", IN);
        format!("name = \"w\"\n{short}{}", stream_text("large", packet, "100 ms", "100 ms", IN))
    };
    let mut machine = shipped("h200-x1");
    let calibration = machine.calibration.as_mut().unwrap();
    calibration.jitter = Nanos(1_000);
    // 16 MB take 0.3 ms, 256 MB take 4.6 ms; the short window is half a millisecond.
    let whole = plan(&machine, &parsed(&text("16 MB")), with(Strategy::Partitioned)).unwrap();
    assert_eq!(whole.verdict.outcome, Outcome::Schedulable);
    assert!(whole.pipelines.iter().flat_map(|p| &p.steps).all(|s| s.chunk == Bytes(0) && s.chunk_cost == s.cost));
    assert_eq!(whole.verdict.strength, Strength::Exact);

    let cut = plan(&machine, &parsed(&text("256 MB")), with(Strategy::Partitioned)).unwrap();
    assert_eq!(cut.verdict.outcome, Outcome::Schedulable);
    let steps: Vec<&PlannedStep> = cut.pipelines.iter().flat_map(|p| &p.steps).collect();
    let of = |id: &str| steps[cut.streams.iter().find(|s| s.id == id).unwrap().pipeline as usize];
    let (short, large) = (of("short"), of("large"));
    assert_eq!(short.chunk, Bytes(0));
    assert!(large.chunk > Bytes(0) && large.chunk.0.is_multiple_of(4096));
    // Every chunk has its set-up with margin, is noticed by itself, and ends on a whole nanosecond.
    let mut chunks = large.operations.iter().map(|o| match &o.work {
        OperationWork::Copy { bytes, .. } => (bytes.0.div_ceil(large.chunk.0), bytes.0),
        OperationWork::Compute { .. } | OperationWork::Hold => unreachable!("a copy"),
    });
    let (count, bytes) = chunks.next().unwrap();
    let moving = u128::from(bytes) * 1_050_000_000 / 55_500_000_000;
    let least = count * (7_300 * 105 / 100 + 1_000) + u64::try_from(moving).unwrap();
    assert!((least..least + 2 * count + 10).contains(&large.cost.0), "{} {least}", large.cost.0);
    assert!(large.chunk_cost < large.cost);
    // Whole it fails, and larger chunks leave less margin.
    let mut tasks = tasks_of(&cut, 0);
    assert!(test_of(&tasks).is_schedulable());
    let margin = schedulability::margin_ppm(&tasks);
    assert_eq!(cut.verdict.margin_ppm, Some(margin));
    tasks.iter_mut().filter(|t| t.chunk < t.cost).for_each(|t| t.chunk = t.chunk + t.chunk);
    assert!(schedulability::margin_ppm(&tasks) < margin);
    tasks.iter_mut().for_each(|t| t.chunk = t.cost);
    assert!(!test_of(&tasks).is_schedulable());
}

#[test]
fn batches_and_kernels_are_never_cut() {
    let short = stream_text("short", "4 kB", "1 ms", "1 ms", IN);
    let text = format!(
        "name = \"w\"\n{short}[[message]]\nid = \"m\"\nperiod = \"100 ms\"\nblocks = [\
         {{ from = \"host\", to = \"gpu0\", bytes = \"200 MB\" }}, {{ from = \"gpu0\", to = \"host\", bytes = \"1 MB\" }}]\n"
    );
    let [kept, plan] =
        [PlanOptions::default(), with(Strategy::Serial)].map(|o| plan(&shipped("h200-x1"), &parsed(&text), o).unwrap());
    // By itself on its engine, the large block is a copy like any other.
    assert_ne!(kept.strategy, Strategy::Serial);
    assert_eq!(kept.verdict.outcome, Outcome::Schedulable);
    assert!(
        kept.pipelines.iter().any(|p| !matches!(p.source, PipelineSource::Streams(_)) && p.steps[0].chunk > Bytes(0))
    );
    assert_eq!(plan.verdict.outcome, Outcome::NotSchedulable);
    assert!(plan.pipelines.iter().flat_map(|p| &p.steps).all(|s| s.chunk == Bytes(0)));
    let violation = plan.verdict.violation.unwrap();
    assert_eq!((violation.blocker.as_deref(), violation.server.as_str()), (Some("m"), "transfers"));
}

#[test]
fn without_a_calibration_only_serial_is_tried_and_the_plan_says_so() {
    let text = format!("name = \"w\"\n{}", stream_text("s", "64 kB", "10 ms", "40 ms", &format!("{IN}, {OUT}")));
    let mut machine = shipped("tyan-ft72b7015");
    let plan_of = |machine: &Machine, options| plan(machine, &parsed(&text), options).unwrap();
    let planned = plan_of(&machine, PlanOptions::default());
    assert_eq!((planned.strategy, planned.jitter), (Strategy::Serial, Nanos::ZERO));
    let note = "machine `tyan-ft72b7015` is not calibrated: the answer holds for the model, not for a node";
    assert_eq!(planned.verdict.notes, [note]);
    // Partitioned has the greater margin here, and is used where it is asked for or the node was measured.
    let asked = plan_of(&machine, with(Strategy::Partitioned));
    assert_eq!(asked.strategy, Strategy::Partitioned);
    assert!(asked.verdict.margin_ppm > planned.verdict.margin_ppm);
    assert_eq!(asked.verdict.notes, [note]);
    machine.calibration =
        Some(Calibration { margin_ppm: 0, jitter: Nanos::ZERO, ..shipped("h200-x1").calibration.unwrap() });
    let calibrated = plan_of(&machine, PlanOptions::default());
    assert_eq!(calibrated.strategy, Strategy::Partitioned);
    assert_eq!(
        calibrated.verdict.notes,
        ["holds while the node stays within its calibration: every cost includes 0 ppm and 0 ns"]
    );
}

#[test]
fn without_a_calibration_a_no_for_serial_is_no_answer_for_other_strategies() {
    // Both directions at once fit, one after the other they do not.
    let text = format!("name = \"w\"\n{}", stream_text("s", "50 MB", "10 ms", "40 ms", &format!("{IN}, {OUT}")));
    let mut machine = shipped("tyan-ft72b7015");
    let plan_of = |machine: &Machine, options| plan(machine, &parsed(&text), options).unwrap();
    let open = plan_of(&machine, PlanOptions::default());
    assert_eq!((open.strategy, open.verdict.outcome), (Strategy::Serial, Outcome::Undecided));
    assert_eq!((open.verdict.strength, open.choice()), (Strength::Sufficient, Some(PlanChoice::Strategy)));
    let note = "the answer is no for `serial`; other strategies were not tried, because machine `tyan-ft72b7015` is not calibrated";
    assert!(open.verdict.notes.iter().any(|said| said.starts_with(note)), "{:?}", open.verdict.notes);
    let asked = plan_of(&machine, with(Strategy::Serial));
    assert_eq!((asked.verdict.outcome, asked.choice()), (Outcome::NotSchedulable, None));
    for strategy in [Strategy::Combined, Strategy::Lockstep, Strategy::Generation] {
        let notes = plan_of(&machine, with(strategy)).verdict.notes;
        let said = format!("`{}` counts the blocks of a batch one after the other", strategy.name());
        assert!(notes.iter().any(|note| note.contains(&said)), "{notes:?}");
    }
    machine.calibration = Some(Calibration::vouched());
    let vouched = plan_of(&machine, PlanOptions::default());
    assert_eq!((vouched.strategy, vouched.verdict.outcome), (Strategy::Partitioned, Outcome::Schedulable));
    // No strategy helps a flow, whose server has no engine.
    machine.calibration = None;
    let flow = |id: &str| format!("[[demand]]\nid = \"{id}\"\nserver = \"s\"\ncost = \"1 ms\"\nperiod = \"1 ms\"\n");
    let flows = format!("name = \"w\"\n{}{}", flow("a"), flow("b"));
    let no = plan(&machine, &parsed(&flows), PlanOptions::default()).unwrap();
    assert_eq!((no.verdict.outcome, no.verdict.strength), (Outcome::NotSchedulable, Strength::Exact));
}

#[test]
fn combined_messages_hold_for_their_own_starts_only_and_a_no_is_no_proof() {
    let text = |start: &str| {
        let message = |id: &str, start: &str, bytes: &str| {
            format!(
                "[[message]]\nid = \"{id}\"\nperiod = \"22 ms\"\nstart = \"{start}\"\n\
                 blocks = [{{ from = \"cpu0\", to = \"gpu{}\", bytes = \"{bytes}\" }}]\n",
                if id == "a" { 0 } else { 2 }
            )
        };
        format!("name = \"off\"\n{}{}", message("a", "0 ms", "128 MB"), message("b", start, "64 MB"))
    };
    let mut machine = shipped("tyan-ft72b7015");
    machine.calibration = Some(Calibration::vouched());
    let of = |start| plan(&machine, &parsed(&text(start)), with(Strategy::Combined)).unwrap();
    let together = of("0 ms");
    assert_eq!(together.verdict.outcome, Outcome::Schedulable);
    let fixed = "any offsets of batches, whose messages keep their starts";
    assert!(together.verdict.model.contains(fixed), "{}", together.verdict.model);
    assert!(models(&together)[0].model.starts_with(fixed) && models(&together)[0].model.ends_with("none may join"));
    let apart = of("5 ms");
    assert_eq!((apart.verdict.outcome, apart.verdict.strength), (Outcome::NotSchedulable, Strength::Sufficient));
}

#[test]
fn costs_are_those_of_the_model_with_margin_and_jitter() {
    // Block: 32 bytes of header, 8,000,000 of data.
    let text = format!("name = \"w\"\n{}", stream_text("s", "8 MB", "100 ms", "100 ms", &format!("{IN}, {OUT}")));
    let tyan = plan(&shipped("tyan-ft72b7015"), &parsed(&text), PlanOptions::default()).unwrap();
    assert_eq!(tyan.pipelines[0].reserve, Bytes(8_000_032));
    assert_eq!(tyan.pipelines[0].steps[0].cost, Nanos(1_000_004));
    let text =
        format!("name = \"w\"\n{}", stream_text("s", "8 MB", "100 ms", "100 ms", &format!("{IN}, {SPIN}, {OUT}")));
    let h200 = plan(&shipped("h200-x1"), &parsed(&text), with(Strategy::Serial)).unwrap();
    let costs: Vec<u64> = h200.pipelines[0].steps.iter().map(|s| s.cost.0).collect();
    // In: 7.3 us + 8,000,032 B / 55.5 GB/s = 151,445 ns; kernel: 10 us + 8,000,032 ns; out at 55.4 GB/s: 151,705 ns.
    // Times 1.05, rounded up, plus 200 us.
    assert_eq!(
        costs,
        [151_445 * 105 / 100 + 1 + 200_000, 8_010_032 * 105 / 100 + 1 + 200_000, 151_705 * 105 / 100 + 1 + 200_000]
    );
    // Partitioned: each direction at the rate it keeps while the other one runs, 52.4 and 50.65 GB/s.
    let h200 = plan(&shipped("h200-x1"), &parsed(&text), with(Strategy::Partitioned)).unwrap();
    let [into, _, out] = h200.pipelines[0].steps.as_slice() else { panic!("three steps") };
    let at_least = |rate: u64| (7_300 + 8_000_032_000 / rate) * 105 / 100 + 200_000;
    assert!((at_least(52_400)..at_least(52_400) + 100).contains(&into.cost.0), "{}", into.cost.0);
    assert!((at_least(50_650)..at_least(50_650) + 100).contains(&out.cost.0), "{}", out.cost.0);
}

#[test]
fn a_kernel_costs_what_its_longest_portion_takes() {
    let short = stream_text("short", "1600 B", "5 ms", "40 ms", &format!("{IN}, {SPIN}, {OUT}"));
    let long = stream_text("long", "16 kB", "5 ms", "40 ms", &format!("{IN}, {SPIN}, {OUT}"));
    let mut workload = parsed(&format!("name = \"w\"\n[run]\ncycle = \"paper\"\n{short}{long}"));
    for stream in &mut workload.streams {
        stream.steps[1] = StreamStep::Compute { kernel: "aes128-cbc".to_owned() };
    }
    let plan = plan(&shipped("h200-x1"), &workload, PlanOptions::default()).unwrap();
    let [pipeline] = plan.pipelines.as_slice() else { panic!("one pipeline for both") };
    // Cycles of 10 ms: two packets of each; 12 us and 32 kB at 38 MB/s, times 1.05, plus 200 us.
    assert_eq!(pipeline.steps[1].cost, Nanos(((12_000 + 842_106) * 105_u64).div_ceil(100) + 200_000));
}

#[test]
fn verner_figure_2_1_is_predicted_to_the_nanosecond() {
    let workload = parsed(include_str!("../../../workloads/verner-fig2.1.toml"));
    let plan = plan(&shipped("tyan-ft72b7015"), &workload, PlanOptions::default()).unwrap();
    let [batch] = plan.batches.as_slice() else { panic!("one batch") };
    assert_eq!(batch.predicted, Nanos(21_333_334));
    let mut ends: Vec<Nanos> = batch.blocks.iter().map(|b| b.1).collect();
    ends.sort_unstable();
    assert_eq!(ends, [Nanos(13_333_334), Nanos(21_333_334)]);
    assert!(batch.worst_case >= batch.predicted);
    assert_eq!(plan.pipelines[0].steps[0].cost, batch.worst_case);
    assert_eq!(plan.verdict.outcome, Outcome::Schedulable);
}

#[test]
fn np_edf_miss_names_the_blocker_and_the_first_interval() {
    let workload = parsed(include_str!("../../../workloads/np-edf-miss.toml"));
    // Without a calibration costs are as stated.
    let plan = plan(&shipped("tyan-ft72b7015"), &workload, PlanOptions::default()).unwrap();
    assert_eq!((plan.verdict.outcome, plan.verdict.strength), (Outcome::NotSchedulable, Strength::Exact));
    let violation = plan.verdict.violation.unwrap();
    assert_eq!(violation.blocker.as_deref(), Some("b"));
    assert_eq!(
        (violation.interval, violation.demand, violation.blocking),
        (Nanos(2_000_001), Nanos(4_000_000), Nanos(3_000_000))
    );
    assert_eq!(violation.parts, [("a".to_owned(), 1, Nanos(1_000_000))]);
    assert!(plan.verdict.margin_ppm.unwrap() < 1_000_000);
    let note =
        "machine `tyan-ft72b7015` is not calibrated: costs of demands are as stated, and nothing is released late";
    assert_eq!(plan.verdict.notes, [note]);
}

#[test]
fn flows_cost_what_they_state_with_the_margin_and_the_jitter_of_the_machine() {
    // A flow that leaves no time for a release 100 us late: an issue's example.
    let workload = parsed("name = \"w\"\n[[demand]]\nid = \"a\"\ncost = \"1 ms\"\nperiod = \"1 ms\"\n");
    let machine = machine::shipped("h200-x4").unwrap();
    let full = plan(&machine, &workload, PlanOptions::default()).unwrap();
    assert_eq!(full.verdict.outcome, Outcome::NotSchedulable);
    let step = &full.pipelines[0].steps[0];
    let cost = machine.calibration.as_ref().unwrap().with_margin(Nanos(MS));
    assert_eq!((step.cost, step.hold, step.holds()), (cost, Some(Nanos(MS)), Nanos(MS)));
    for answer in models(&full) {
        assert_ne!(answer.outcome, Outcome::Schedulable, "{answer:?}");
    }
    let bare = Machine { calibration: None, ..machine };
    let bare = plan(&bare, &workload, PlanOptions::default()).unwrap();
    assert_eq!((bare.verdict.outcome, bare.pipelines[0].steps[0].hold), (Outcome::Schedulable, None));
}

/// The error of planning, and the line of the workload that it points at.
fn error_of(machine: &Machine, text: &str) -> (PlanError, String) {
    let loaded = loaded(text);
    let error = plan(machine, &loaded.value, PlanOptions::default()).unwrap_err();
    let line = loaded.error_at(error.place(), error.to_string(), None).source_line;
    (error, line)
}

#[test]
fn errors_point_at_the_line_they_are_about() {
    let h200 = shipped("h200-x1");
    let tyan = shipped("tyan-ft72b7015");
    let one =
        |steps: &str, more: &str| format!("name = \"w\"\n{}{more}", stream_text("s", "1 kB", "1 ms", "10 ms", steps));
    let cases = [
        (&h200, one(IN, "gpu = \"gpu7\"\n"), "stream.s.gpu", "gpu = \"gpu7\"", "it has gpu0"),
        (
            &tyan,
            one(&format!("{IN}, {SPIN}"), ""),
            "stream.s.steps.1.compute",
            "steps = [",
            "`tyan-ft72b7015` says no cost; it says one of no kernel",
        ),
        (&h200, one("{ copy = \"disk -> gpu\" }", ""), "stream.s.steps.0.copy", "steps = [", "names `disk`"),
        (
            &tyan,
            one(&format!("{IN}, {{ copy = \"gpu -> gpu1\" }}"), "gpu = \"gpu0\"\n"),
            "stream.s.steps.1.copy",
            "steps = [",
            "no route from `gpu0` to `gpu1`",
        ),
    ];
    for (machine, text, place, line, says) in cases {
        let (error, shown) = error_of(machine, &text);
        assert_eq!(error.place(), place, "{error}");
        assert!(shown.starts_with(line), "{shown}");
        assert!(error.to_string().contains(says), "{error}");
    }
    let message = |from: &str, to: &str| {
        format!(
            "name = \"w\"\n[[message]]\nid = \"m\"\nperiod = \"1 ms\"\nblocks = [\n{{ from = \"cpu0\", to = \"gpu0\", bytes = \"1 B\" }},\n{{ from = \"{from}\", to = \"{to}\", bytes = \"1 B\" }}]\n"
        )
    };
    for (from, to, place, says) in [
        ("cpu0", "gpu9", "message.m.blocks.1.to", "names `gpu9`"),
        ("cpu0", "cpu1", "message.m.blocks.1", "no route from `cpu0` to `cpu1`"),
    ] {
        let (error, shown) = error_of(&tyan, &message(from, to));
        assert_eq!(error.place(), place);
        assert!(shown.contains(from) && shown.contains(to), "{shown}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn what_no_plan_can_do_is_refused_with_its_reason() {
    let h200 = shipped("h200-x1");
    let large = format!("name = \"w\"\n{}", stream_text("s", "1 GiB", "1 ms", "50 ms", IN));
    let (error, line) = error_of(&h200, &large);
    assert!(matches!(error, PlanError::Impossible { .. }) && error.place() == "stream.s.packet", "{error}");
    assert_eq!(line, "packet = \"1 GiB\"");
    let mut bare = h200.clone();
    bare.endpoints.retain(|e| e.kind == machine::EndpointKind::Memory);
    bare.engines.clear();
    bare.routes.clear();
    let one = format!("name = \"w\"\n{}", stream_text("s", "1 kB", "1 ms", "10 ms", IN));
    assert!(matches!(error_of(&bare, &one).0, PlanError::NoGpu { .. }));
    let mut idle = h200.clone();
    idle.routes.retain(|route| route.method == Method::Pageable);
    assert!(matches!(error_of(&idle, &one).0, PlanError::NoRoute { .. }));
}

#[test]
fn workloads_that_no_file_can_say_are_refused_and_never_panic() {
    let h200 = shipped("h200-x1");
    let good = parsed(&format!(
        "name = \"w\"\n{}[[message]]\nid = \"m\"\nperiod = \"1 ms\"\nblocks = [{{ from = \"host\", to = \"gpu0\", bytes = \"1 B\" }}]\n\
         [[demand]]\nid = \"f\"\ncost = \"1 us\"\nperiod = \"1 ms\"\n",
        stream_text("s", "1 kB", "1 ms", "10 ms", IN)
    ));
    assert!(plan(&h200, &good, PlanOptions::default()).is_ok());
    type Spoil = fn(&mut Workload);
    let spoils: [(&str, Spoil); 6] = [
        ("stream.s.period", |w| w.streams[0].period = Nanos::ZERO),
        ("stream.s.steps", |w| w.streams[0].steps.clear()),
        ("stream.s.deadline", |w| w.streams[0].deadline = Nanos(1)),
        ("message.m.period", |w| w.messages[0].period = Nanos::ZERO),
        ("message.m.blocks", |w| w.messages[0].blocks.clear()),
        ("demand.f.period", |w| w.demands[0].period = Nanos::ZERO),
    ];
    for (place, spoil) in spoils {
        let mut workload = good.clone();
        spoil(&mut workload);
        let error = plan(&h200, &workload, PlanOptions::default()).unwrap_err();
        assert!(matches!(error, PlanError::Workload(_)), "{error}");
        assert_eq!(error.place(), place, "{error}");
    }
    let nothing = Workload { streams: vec![], messages: vec![], demands: vec![], ..good };
    let error = plan(&h200, &nothing, PlanOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), "the workload is empty");
}

#[test]
fn extreme_times_and_sizes_give_a_plan_or_an_error() {
    let extremes = [1, 2, 1 << 32, (1 << 32) - 1, 1 << 53, 1 << 62, 1 << 63, u64::MAX - 1];
    let mut draw = Draw(13);
    let (mut planned, mut refused) = (0, 0);
    for name in ["h200-x1", "tyan-ft72b7015"] {
        let machine = shipped(name);
        let good = random_workload(&machine, &mut draw);
        for _ in 0..400 {
            let mut any = |usual: u64| if draw.below(3) == 0 { *draw.pick(&extremes) } else { usual };
            let stream = Stream {
                packet: Bytes(any(1_000)),
                period: Nanos(any(MS)),
                deadline: Nanos(any(20 * MS)),
                start: Nanos(any(0)),
                ..good.streams[0].clone()
            };
            let from = machine.endpoints[0].id.clone();
            let block = workload::MessageBlock { from, to: "gpu0".to_owned(), bytes: Bytes(any(1_000)) };
            let message = Message {
                id: "m".to_owned(),
                period: Nanos(any(MS)),
                start: Nanos(any(0)),
                late: None,
                blocks: vec![block.clone(), block],
            };
            let (cost, period, deadline) = (Nanos(any(10)), Nanos(any(MS)), Nanos(any(MS)));
            let flow = ServerDemand {
                id: "f".to_owned(),
                server: "cpu".to_owned(),
                start: Nanos::ZERO,
                cost,
                period,
                deadline,
            };
            let workload =
                Workload { streams: vec![stream], messages: vec![message], demands: vec![flow], ..good.clone() };
            match plan(&machine, &workload, PlanOptions::default()) {
                Ok(plan) => {
                    planned += 1;
                    for step in plan.pipelines.iter().flat_map(|p| &p.steps) {
                        assert!(
                            step.operations
                                .iter()
                                .all(|o| !matches!(&o.work, OperationWork::Copy { bytes, .. } if bytes.0 == 0))
                        );
                    }
                }
                Err(error) => {
                    refused += 1;
                    assert!(!error.to_string().is_empty());
                }
            }
        }
    }
    assert!(planned > 50 && refused > 50, "{planned} {refused}");
}

#[test]
fn the_same_workload_gives_the_same_plan_and_its_json_gives_it_back() {
    for_random_plans(5, |machine, workload, planned| {
        if planned.strategy == Strategy::Serial {
            assert_eq!(
                plan(machine, workload, with(Strategy::Serial)),
                plan(machine, workload, with(Strategy::Serial))
            );
        }
        let json = serde_json::to_string(planned).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), *planned);
    });
}

/// Eight messages of several periods and directions: too much for one transfer at a time.
const BUSY: &str = r#"
name = "busy"
[run]
transform = "optimal"
[[message]]
id = "pair"
period = "15 ms"
blocks = [{ from = "host", to = "gpu0", bytes = "250 MB" }, { from = "gpu1", to = "host", bytes = "250 MB" }]
[[message]]
id = "slow"
period = "60 ms"
start = "7 ms"
blocks = [{ from = "host", to = "gpu2", bytes = "600 MB" }]
[[message]]
id = "other"
period = "30 ms"
blocks = [{ from = "gpu3", to = "host", bytes = "300 MB" }]
[[message]]
id = "more"
period = "30 ms"
blocks = [{ from = "host", to = "gpu3", bytes = "300 MB" }, { from = "host", to = "gpu1", bytes = "300 MB" }]
"#;

#[test]
fn combined_messages_carry_every_block_and_cost_less_than_one_after_the_other() {
    let machine = shipped("h200-x4");
    let workload = parsed(BUSY);
    let [serial, combined] =
        [Strategy::Serial, Strategy::Combined].map(|s| plan(&machine, &workload, with(s)).unwrap());
    assert_eq!((serial.verdict.outcome, combined.verdict.outcome), (Outcome::NotSchedulable, Outcome::Schedulable));
    assert!(combined.verdict.utilisation_ppm * 5 < serial.verdict.utilisation_ppm * 4);
    let mut names: Vec<&str> = Vec::new();
    for (pipeline, batch) in combined.pipelines.iter().zip(&combined.batches) {
        let PipelineSource::Batch(parts) = &pipeline.source else { panic!("all messages are combined") };
        assert_eq!(pipeline.steps[0].operations.len(), parts.len());
        assert_eq!(pipeline.steps[0].cost, batch.worst_case);
        for (part, operation) in parts.iter().zip(&pipeline.steps[0].operations) {
            let OperationWork::Copy { bytes, route, .. } = &operation.work else { panic!("a copy") };
            assert_eq!((*bytes, *route), (part.member.reserve, part.message.route));
        }
        names.extend(parts.iter().map(|part| part.message.name.as_str()));
    }
    names.sort_unstable();
    assert_eq!(names, ["more.0", "more.1", "other", "pair.0", "pair.1", "slow"]);
    assert!(
        combined.verdict.notes.iter().any(|note| note.contains("6 blocks of messages in")),
        "{:?}",
        combined.verdict
    );
}

#[test]
fn transfers_that_share_nothing_are_domains_of_their_own() {
    let text = |count: usize, from: &str, to: &str| {
        let message = |n: usize| {
            let [from, to] = [from, to].map(|end| end.replace('#', &n.to_string()));
            format!(
                "[[message]]\nid = \"m{n}\"\nperiod = \"10 ms\"\nblocks = [{{ from = \"{from}\", to = \"{to}\", bytes = \
                 \"10 MB\" }}]\n"
            )
        };
        format!("name = \"w\"\n{}", (0..count).map(message).collect::<String>())
    };
    let machine = exact_h200();
    let servers = |text: &str| plan(&machine, &parsed(text), with(Strategy::Combined)).unwrap().servers.len();
    assert_eq!(servers(&text(3, "host", "gpu#")), 3, "three copies in stay below what the node takes in");
    assert_eq!(servers(&text(4, "host", "gpu#")), 1, "four do not");
    assert_eq!(servers(&text(2, "gpu#", "host")), 2);
    assert_eq!(servers(&text(3, "gpu#", "host")), 1, "three copies out fill the way into memory");
}

#[test]
fn copies_of_streams_that_open_their_windows_together_move_in_one_batch_where_they_share_something() {
    let streams = |grouping: &str| {
        let stream = |n: u32| stream_text(&format!("s{n}"), "8 MB", "5 ms", "20 ms", &format!("{IN}, {SPIN}, {OUT}"));
        parsed(&format!("name = \"w\"\n[run]\ngrouping = \"{grouping}\"\n{}", (0..4).map(stream).collect::<String>()))
    };
    let machine = shipped("h200-x4");
    let copies = |plan: &Plan| -> Vec<(Option<u32>, bool, Nanos)> {
        let steps = plan.pipelines.iter().flat_map(|pipeline| &pipeline.steps);
        let copy = |step: &PlannedStep| match step.operations[0].work {
            OperationWork::Copy { class, .. } => {
                Some((step.batch.map(|place| place.number), class == EngineClass::H2d, step.cost))
            }
            _ => None,
        };
        steps.filter_map(copy).collect()
    };
    let serial = copies(&plan(&machine, &streams("gpu"), with(Strategy::Serial)).unwrap());
    let combined = plan(&machine, &streams("gpu"), with(Strategy::Combined)).unwrap();
    let alone: u64 = serial.iter().map(|(.., cost)| cost.0).sum();
    let batches: u64 = combined.batches.iter().map(|batch| batch.worst_case.0).sum();
    assert_eq!((serial.len(), copies(&combined).len(), combined.batches.is_empty()), (8, 8, false));
    assert!(batches * 2 < alone, "{batches} {alone}");
    for (number, _, cost) in copies(&combined) {
        assert_eq!(combined.batches[number.expect("all are in batches") as usize].worst_case, cost);
    }
    let one = plan(&shipped("h200-x1"), &streams("gpu"), with(Strategy::Combined)).unwrap();
    assert!(
        copies(&one).iter().all(|(number, ..)| number.is_none()),
        "one GPU's directions share nothing that is full"
    );
}

/// Four H200 without any margin for rates above the measured ones.
fn exact_h200() -> Machine {
    let mut machine = shipped("h200-x4");
    if let Some(calibration) = &mut machine.calibration {
        calibration.sigma_ppm = 1_000_000;
    }
    machine
}

#[test]
fn per_gpu_has_one_server_for_the_copies_of_each_gpu_and_keeps_its_directions_apart() {
    let machine = shipped("h200-x4");
    let mut text = String::from("name = \"t\"\n");
    for (number, (gpu, way)) in [("gpu0", "in"), ("gpu0", "out"), ("gpu1", "in"), ("gpu2", "out")].iter().enumerate() {
        let ends = if *way == "in" { ("host", *gpu) } else { (*gpu, "host") };
        text += &format!(
            "[[message]]\nid = \"m{number}\"\nperiod = \"10 ms\"\nblocks = [{{ from = \"{}\", to = \"{}\", bytes = \"8 MiB\" }}]\n",
            ends.0, ends.1
        );
    }
    let workload = parsed(&text);
    let of = |strategy| plan(&machine, &workload, with(strategy)).unwrap();
    let (per_gpu, partitioned) = (of(Strategy::PerGpu), of(Strategy::Partitioned));
    let names: Vec<&str> = per_gpu.servers.iter().map(|server| server.name.as_str()).collect();
    assert_eq!(names, ["gpu0 transfers", "gpu1.h2d", "gpu2.d2h"]);
    // The directions of one GPU never meet, so neither is priced beside the other.
    for (own, other) in per_gpu.pipelines.iter().zip(&partitioned.pipelines) {
        assert!(own.steps[0].cost <= other.steps[0].cost, "{}", own.name);
    }
}

/// Two messages of 64 KiB each, on a machine where the call that submits a copy takes `submit`.
fn with_calls_of(submit: Nanos, period: &str) -> Plan {
    let mut machine = shipped("h200-x1");
    machine.routes.iter_mut().for_each(|route| route.submit = submit);
    let message = |id: &str, from: &str, to: &str| {
        format!(
            "[[message]]\nid = \"{id}\"\nperiod = \"{period}\"\nblocks = [{{ from = \"{from}\", to = \"{to}\", bytes = \"64 KiB\" }}]\n"
        )
    };
    let text = "name = \"w\"\n".to_owned() + &message("there", "host", "gpu0") + &message("back", "gpu0", "host");
    plan(&machine, &parsed(&text), PlanOptions::default()).unwrap()
}

#[test]
fn the_calls_that_submit_are_counted_where_somebody_measured_them() {
    assert_eq!(with_calls_of(Nanos::ZERO, "4 ms").driver, None);
    let found = with_calls_of(Nanos(5_000), "4 ms");
    let driver = found.driver.expect("calls were measured");
    assert_eq!((driver.calls_per_second, driver.busy_ppm, driver.at_once), (500, 2_500, Nanos(10_000)));
    assert_eq!(found.verdict.outcome, Outcome::Schedulable, "{:?}", found.verdict);
    assert!(!found.verdict.notes.iter().any(|note| note.contains("at one instant")), "{:?}", found.verdict.notes);
}

#[test]
fn a_driver_that_may_be_later_than_the_jitter_is_named_and_one_without_time_is_a_no() {
    // 200 us are allowed.
    let late = with_calls_of(Nanos(150_000), "4 ms");
    assert_eq!(late.verdict.outcome, Outcome::Schedulable, "{:?}", late.verdict);
    assert!(
        late.verdict.notes.iter().any(|note| note.contains("take 300 us, more than the 200 us")),
        "{:?}",
        late.verdict
    );
    let busy = with_calls_of(Nanos(2_100_000), "4 ms");
    assert_eq!((busy.verdict.outcome, busy.verdict.strength), (Outcome::NotSchedulable, Strength::Sufficient));
    assert!(busy.verdict.margin_ppm.unwrap() < 1_000_000 && busy.verdict.utilisation_ppm >= 1_050_000);
    let violation = busy.verdict.violation.unwrap();
    assert!(
        violation.server == "driver" && violation.because[0].contains("500 calls a second take 105"),
        "{violation:?}"
    );
}
