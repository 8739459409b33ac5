//! Streams whose packets are divided among GPUs, with the images of a wafer: what files say and what is refused, plans on several
//! GPUs, and how the dispatcher runs them.

use headway_core::decisions::dispatch::{DispatchAction, DispatchInput, Dispatcher, DispatcherLimits};
use headway_core::files::error::FileError;
use headway_core::files::machine::{EngineClass, Machine, shipped};
use headway_core::files::workload::{Parameters, Sharding, StreamStep, Workload};
use headway_core::plan::planner::{PlanError, PlanOptions, plan};
use headway_core::plan::{OperationWork, Outcome, PipelineSource, Plan, Shard, Sharded, Strategy};
use headway_core::units::{Bytes, Nanos, Rate};
use headway_kernels::inspect::cameras::Cameras;
use headway_kernels::workload::parse;

const STREAM: &str = r#"name = "w"
[run]
seed = 5
[[stream]]
id = "wafer"
period = "1111111 ns"
deadline = "5555555 ns"
wafer = { cameras = 15 }
steps = [{ copy = "grabber -> gpu" }, { compute = "inspect" }, { exchange = "gpus" }, { compute = "inspect-merge" }, { copy = "gpu -> host" }]
"#;

fn workload(cameras: u32, from: &str) -> Workload {
    let text = STREAM.replace("cameras = 15", &format!("cameras = {cameras}")).replace("grabber", from);
    parse("w.toml", &text).unwrap().value
}

fn refused(old: &str, new: &str) -> FileError {
    assert!(STREAM.contains(old), "{old}");
    parse("w.toml", &STREAM.replacen(old, new, 1)).expect_err(new)
}

fn planned(machine: &Machine, workload: &Workload, strategy: Strategy) -> Plan {
    plan(machine, workload, PlanOptions { strategy: Some(strategy) }).unwrap()
}

fn sharded_of(plan: &Plan) -> &Sharded {
    let [pipeline] = plan.pipelines.as_slice() else { panic!("{} pipelines", plan.pipelines.len()) };
    let PipelineSource::Sharded(sharded) = &pipeline.source else { panic!("{:?}", pipeline.source) };
    sharded
}

#[test]
fn a_wafer_has_the_papers_images_unless_the_file_says_otherwise() {
    let stream = &workload(15, "host").streams[0];
    let wafer = Cameras::of(&stream.parameters).unwrap();
    let expected =
        Cameras { cameras: 15, width: 200, height: 1000, pitch: 100, defects: 12, operations: 1000, ring: 10, seed: 5 };
    assert_eq!(wafer, expected);
    assert_eq!((wafer.image(), stream.packet), (Bytes(400_000), Bytes(6_000_000)));
    assert_eq!(stream.steps[2], StreamStep::Exchange);
    let sharding = Sharding { items: 15, item: Bytes(400_000), summary: Bytes(4096), operations: Some(1000), ring: 10 };
    assert_eq!(stream.sharding, Some(sharding));
}

#[test]
fn what_no_inspection_can_be_is_refused_where_it_stands() {
    let cases = [
        ("cameras = 15", "cameras = 0", "0"),
        ("cameras = 15", "defects = 3", "cameras"),
        ("cameras = 15", "cameras = 15, width = 201", "more than 500"),
        ("cameras = 15", "cameras = 15, pitch = 334", "fewer than three dies"),
        ("cameras = 15", "cameras = 15, defects = 201", "201"),
        ("cameras = 15", "cameras = 15, ring = 0", "0"),
        ("cameras = 15", "cameras = 15, colour = 1", "colour"),
        ("id = \"wafer\"", "id = \"wafer\"\npacket = \"6 kB\"", "is not 15 images of 400 kB"),
        ("id = \"wafer\"", "id = \"wafer\"\ngpu = \"gpu0\"", "dealt to all GPUs"),
        ("id = \"wafer\"", "id = \"wafer\"\non_miss = \"skip\"", "no image of a wafer is left out"),
        ("{ exchange = \"gpus\" }, ", "", "not the steps of an inspection"),
        ("exchange = \"gpus\"", "exchange = \"hosts\"", "not a known value"),
        ("wafer = { cameras = 15 }", "packet = \"1 kB\"", "only streams of a wafer"),
    ];
    for (old, new, message) in cases {
        let error = refused(old, new);
        assert!(error.to_string().contains(message), "{new}: {error}");
        assert!(error.line > 1, "{new}: {error}");
    }
    let with_flow = format!("{STREAM}[[demand]]\nid = \"f\"\ncost = \"1 ms\"\nperiod = \"2 ms\"\n");
    assert!(parse("w.toml", &with_flow).unwrap_err().to_string().contains("stands alone"));
}

#[test]
fn what_gpus_cannot_share_is_refused_with_its_remedy() {
    type Spoil = fn(&mut Sharding);
    let node = shipped("wafer-k20m").unwrap();
    let cases: [(Spoil, &str); 6] = [
        (|sharding| sharding.items = 0, "has 0 items of"),
        (|sharding| sharding.ring = 0, "a ring of 0: give at least one of each"),
        (|sharding| sharding.summary = Bytes(0), "give at least one of each"),
        (
            |sharding| sharding.summary = Bytes(4100),
            "have 4100 bytes, no multiple of 256, on which kernels rely: make them 4352 bytes",
        ),
        (|sharding| sharding.summary = Bytes(1 << 30), "more than 4 GiB: make them smaller"),
        (|sharding| sharding.items = 14, "is not 14 items of 400 kB: make it 5.6 MB, or leave it out"),
    ];
    for (spoil, says) in cases {
        let mut workload = workload(15, "grabber");
        spoil(workload.streams[0].sharding.as_mut().unwrap());
        let error = plan(&node, &workload, PlanOptions::default()).unwrap_err();
        let PlanError::Workload(error) = error else { panic!("{error}") };
        let said = format!("{error}: {}", error.help().unwrap_or_default());
        assert!(said.contains(says) && said.starts_with("stream.wafer: "), "{said}");
        assert_eq!(error.place(), "stream.wafer");
    }
    let mut workload = workload(15, "grabber");
    workload.streams[0].steps.remove(2);
    let error = plan(&node, &workload, PlanOptions::default()).unwrap_err().to_string();
    assert!(error.contains("copies in, computes, exchanges, computes and copies out"), "{error}");
    workload.streams[0].sharding = None;
    workload.streams[0].steps.insert(2, StreamStep::Exchange);
    let error = plan(&node, &workload, PlanOptions::default()).unwrap_err().to_string();
    assert!(error.contains("only GPUs that share a packet exchange"), "{error}");
}

#[test]
fn a_kernel_of_which_the_machine_says_no_cost_is_refused_at_its_step() {
    let mut node = shipped("wafer-k20m").unwrap();
    node.kernels.retain(|kernel| kernel.id != "inspect-merge");
    let error = plan(&node, &workload(15, "grabber"), PlanOptions::default()).unwrap_err();
    assert_eq!(error.place(), "stream.wafer.steps.3.compute");
    assert_eq!(
        error.to_string(),
        "stream `wafer` names kernel `inspect-merge`, of which machine `wafer-k20m` says no cost; it says one of inspect"
    );
}

#[test]
fn items_are_dealt_evenly_and_every_gpu_sends_to_every_other_once() {
    let share = |gpu, first, items| Shard { gpu, first, items };
    assert_eq!(Sharded::deal(7, 3), [share(0, 0, 3), share(1, 3, 2), share(2, 5, 2)]);
    assert_eq!(Sharded::deal(2, 4), [share(0, 0, 1), share(1, 1, 1)]);
    for gpus in 1..6 {
        let shards = Sharded::deal(12, gpus);
        let sharding = workload(12, "host").streams[0].sharding.unwrap();
        let planned = Sharded { stream: 0, sharding, parameters: Parameters::default(), shards, one_by_one: false };
        let mut pairs: Vec<_> = planned.peers().collect();
        for round in pairs.chunks(gpus as usize) {
            let mut targets: Vec<_> = round.iter().map(|pair| pair.1).collect();
            targets.sort_unstable();
            assert!(targets.iter().copied().eq(0..gpus as usize), "{round:?}");
        }
        pairs.sort_unstable();
        pairs.dedup();
        assert_eq!(pairs.len(), (gpus * (gpus - 1)) as usize);
        assert!(pairs.iter().all(|(from, to)| from != to));
    }
}

#[test]
fn a_pipeline_has_a_window_of_one_period_for_each_step() {
    let node = shipped("wafer-k20m").unwrap();
    for strategy in [Strategy::Serial, Strategy::Combined, Strategy::Partitioned] {
        let plan = planned(&node, &workload(15, "grabber"), strategy);
        assert_eq!(plan.verdict.outcome, Outcome::Schedulable, "{strategy:?}");
        let pipeline = &plan.pipelines[0];
        assert_eq!((pipeline.window, pipeline.gather, pipeline.steps.len()), (Nanos(1_111_111), Nanos::ZERO, 5));
        // Done five periods after the images came, at most.
        assert_eq!(pipeline.deadline(0, 4), Nanos(5_555_555));
        let names: Vec<_> = pipeline.steps.iter().map(|step| step.name.as_str()).collect();
        assert_eq!(names, ["grabber -> gpus", "inspect", "exchange", "inspect-merge", "gpus -> host"]);
        let operations: Vec<_> = pipeline.steps.iter().map(|step| step.operations.len()).collect();
        assert_eq!(operations, [3, 3, 6, 3, 3]);
        // Five images of 200 us on each GPU; 15 of 50 us over the grabber's one link, and a header for each GPU.
        assert_eq!(pipeline.steps[1].cost, Nanos(1_000_000));
        let copies = pipeline.steps[0].cost.0;
        assert!((750_000..750_100).contains(&copies), "{strategy:?}: {copies}");
        let more = planned(&node, &workload(16, "grabber"), strategy);
        assert_eq!(more.verdict.outcome, Outcome::NotSchedulable);
    }
}

#[test]
fn one_generation_at_a_time_has_all_steps_in_one_period() {
    let node = shipped("wafer-k20m").unwrap();
    let [nine, ten] = [9, 10].map(|cameras| planned(&node, &workload(cameras, "grabber"), Strategy::Generation));
    assert_eq!((nine.verdict.outcome, ten.verdict.outcome), (Outcome::Schedulable, Outcome::NotSchedulable));
    let [server] = nine.servers.as_slice() else { panic!("{:?}", nine.servers) };
    let total: u64 = nine.pipelines[0].steps.iter().map(|step| step.cost.0).sum();
    assert!(total <= 1_111_111 && total > 1_050_000, "{total}");
    assert_eq!(server.name, "node");
    for step in 0..5 {
        assert_eq!(nine.pipelines[0].release(3, step), Nanos(3 * 1_111_111));
        assert_eq!(nine.pipelines[0].deadline(3, step), Nanos(4 * 1_111_111));
    }
}

#[test]
fn a_single_gpu_exchanges_nothing_and_the_plan_says_so() {
    let plan = planned(&shipped("h200-x1").unwrap(), &workload(15, "host"), Strategy::Partitioned);
    let peer = |work: &OperationWork| matches!(work, OperationWork::Copy { class: EngineClass::Peer, .. });
    let operations = plan.pipelines[0].steps.iter().flat_map(|step| &step.operations);
    assert!(operations.map(|operation| &operation.work).all(|work| !peer(work)));
    assert_eq!(plan.pipelines[0].steps.len(), 4);
    assert_eq!(plan.pipelines[0].window, Nanos(1_111_111));
    assert!(plan.verdict.notes.iter().any(|note| note.contains("nobody to exchange")), "{:?}", plan.verdict.notes);
}

#[test]
fn without_a_strategy_three_are_tried_and_generations_are_not() {
    let chosen = plan(&shipped("h200-x4").unwrap(), &workload(15, "host"), PlanOptions::default()).unwrap();
    let tried: Vec<_> = chosen.alternatives.iter().map(|other| other.strategy).collect();
    assert_eq!(tried, [Strategy::Serial, Strategy::Combined, Strategy::Partitioned]);
}

/// Runs one cycle; operations end one nanosecond after each other, the oldest first. Returns, for every step, the operations
/// by index and size in the order of submission, and the most of the step that were under way at once.
fn one_cycle(plan: &Plan) -> Vec<(Vec<(u32, Bytes)>, usize)> {
    let mut dispatcher = Dispatcher::new(plan.clone(), DispatcherLimits::default()).unwrap();
    let mut now = Nanos(0);
    let mut seen = vec![(Vec::new(), 0); plan.pipelines[0].steps.len()];
    let mut under_way: Vec<(u64, u32)> = Vec::new();
    dispatcher.handle(now, &DispatchInput::Start { epoch: now, cycles: vec![1], packets: vec![1] }).unwrap();
    let bytes = plan.pipelines[0].reserve;
    dispatcher.handle(now, &DispatchInput::Data { pipeline: 0, cycle: 0, bytes }).unwrap();
    for _ in 0..200 {
        while let Some(action) = dispatcher.poll_action() {
            let DispatchAction::Submit { operation, step, index, bytes, offset, .. } = action else { continue };
            assert_eq!(offset, Bytes(0));
            let of_step: &mut (Vec<(u32, Bytes)>, usize) = &mut seen[step as usize];
            of_step.0.push((index, bytes));
            under_way.push((operation, step));
            of_step.1 = of_step.1.max(under_way.iter().filter(|(_, other)| *other == step).count());
        }
        while dispatcher.poll_event().is_some() {}
        if dispatcher.is_finished() {
            return seen;
        }
        if under_way.is_empty() {
            now = dispatcher.poll_timeout().unwrap();
            dispatcher.handle(now, &DispatchInput::Timeout).unwrap();
        } else {
            let (operation, _) = under_way.remove(0);
            let started = now;
            now = now + Nanos(1);
            dispatcher.handle(now, &DispatchInput::Done { operation, started, finished: now }).unwrap();
        }
    }
    panic!("the cycle does not end");
}

#[test]
fn copies_of_a_step_go_together_or_one_after_the_other_as_planned() {
    let node = shipped("wafer-k20m").unwrap();
    for (strategy, at_once) in [
        (Strategy::Generation, [3, 3, 6, 3, 3]),
        (Strategy::Serial, [1, 3, 1, 3, 1]),
        (Strategy::Combined, [3, 3, 6, 3, 3]),
        (Strategy::Partitioned, [3, 3, 6, 3, 3]),
        (Strategy::Lockstep, [3, 3, 6, 3, 3]),
    ] {
        let plan = planned(&node, &workload(7, "grabber"), strategy);
        let seen = one_cycle(&plan);
        assert_eq!(seen.iter().map(|(_, most)| *most).collect::<Vec<_>>(), at_once, "{strategy:?}");
        let sharded = sharded_of(&plan);
        let steps = &plan.pipelines[0].steps;
        for ((number, (operations, _)), step) in seen.iter().enumerate().zip(steps) {
            let indices = operations.iter().map(|(index, _)| *index);
            assert!(indices.eq(0..step.operations.len() as u32), "{strategy:?}: {operations:?}");
            for (index, bytes) in operations {
                assert_eq!(*bytes, sharded.bytes(steps, number, *index));
            }
        }
        // Three images, two, two; what GPUs keep of them for the others; all synopses; lists.
        let sizes = |step: usize| seen[step].0.iter().map(|(_, bytes)| bytes.0).collect::<Vec<_>>();
        assert_eq!(sizes(0), [1_200_048, 800_032, 800_032]);
        assert_eq!(sizes(1), [1_200_000, 800_000, 800_000]);
        assert_eq!(sizes(2), [12_288, 8_192, 8_192, 12_288, 8_192, 8_192]);
        assert_eq!((sizes(3), sizes(4)), (vec![7 * 4096; 3], vec![4096; 3]));
    }
}

#[test]
fn a_plan_whose_shards_leave_out_an_item_is_refused() {
    let node = shipped("wafer-k20m").unwrap();
    let good = planned(&node, &workload(7, "grabber"), Strategy::Combined);
    let spoil: [fn(&mut Sharded); 4] = [
        |sharded| sharded.shards[2].items -= 1,
        |sharded| sharded.shards[1].first += 1,
        |sharded| sharded.shards.truncate(2),
        |sharded| sharded.sharding.ring = 0,
    ];
    for spoil in spoil {
        let mut plan = good.clone();
        let PipelineSource::Sharded(sharded) = &mut plan.pipelines[0].source else { panic!() };
        spoil(sharded);
        assert!(Dispatcher::new(plan, DispatcherLimits::default()).is_err());
    }
}

#[test]
fn the_cost_of_an_inspection_grows_with_the_operations_of_a_pixel() {
    let cost = |machine: &Machine, operations: u32| {
        let text = include_str!("../../../workloads/wafer.toml")
            .replace("operations = 1000", &format!("operations = {operations}"));
        let workload = parse("wafer.toml", &text).unwrap().value;
        let plan = planned(machine, &workload, Strategy::Partitioned);
        plan.pipelines[0].steps.iter().find(|step| step.name == "inspect").unwrap().cost.0
    };
    let mut machine = shipped("h200-x1").unwrap();
    let fixed = machine.calibration.as_ref().unwrap().with_margin(machine.kernels[1].setup).0;
    assert_eq!(machine.kernels[1].id, "inspect");
    machine.kernels[1].operation_rate = None;
    // Without the figure: in proportion above 1000, and no less below.
    let [few, usual, more] = [500, 1000, 2000].map(|operations| cost(&machine, operations) - fixed);
    assert_eq!(few, usual);
    assert!(more.abs_diff(2 * usual) <= 2, "{usual} {more}");
    // With it: a part that stays and one in proportion.
    machine.kernels[1].rate = Rate(400_000_000_000);
    machine.kernels[1].operation_rate = Some(Rate(40_000_000_000_000));
    let [none, few, more] = [16, 516, 2016].map(|operations| cost(&machine, operations) - fixed);
    assert!(none > 0 && (more - none).abs_diff(4 * (few - none)) <= 8, "{none} {few} {more}");
}

#[test]
fn copies_of_a_step_that_share_a_gpu_count_with_each_other_where_gpus_overlap() {
    let machine = shipped("h200-x4").unwrap();
    let exchange = |strategy| {
        let plan = planned(&machine, &workload(15, "host"), strategy);
        plan.pipelines[0].steps.iter().find(|step| step.name == "exchange").expect("four GPUs exchange").cost
    };
    // All copies of the exchange run at the same time, whichever engines are one server besides.
    assert_eq!(exchange(Strategy::PerGpu), exchange(Strategy::Partitioned));
}
