//! Streams whose packets have parts that go to several processors (`verner-2014`, III-B): what files say and what is refused, plans,
//! and how the dispatcher runs them.

use headway_core::decisions::dispatch::{DispatchAction, DispatchEvent, DispatchInput, Dispatcher, DispatcherLimits};
use headway_core::files::machine::{EngineClass, Machine, shipped};
use headway_core::files::workload::{CopyEndpoint, PacketPart, PartStep, PartWork, StreamStep, Workload};
use headway_core::plan::planner::{PlanError, PlanOptions, plan};
use headway_core::plan::{OperationWork, Outcome, Parted, Pipeline, PipelineSource, Plan, PlannedStep, Strategy};
use headway_core::units::{Bytes, Nanos};
use headway_kernels::workload::{parse, write};

const FILE: &str = include_str!("../../../workloads/two-gpus.toml");

/// The packets of one stream, in two parts.
const TWO: &str = r#"name = "w"
[[stream]]
id = "s"
packet = "96 KiB"
period = "4 ms"
deadline = "40 ms"
parts = [{ id = "a", bytes = "64 KiB" }, { id = "b", bytes = "32 KiB" }]
steps = [
  { copy = [{ part = "a", from = "host", to = "gpu0" }, { part = "b", from = "host", to = "gpu1" }] },
  { copy = [{ part = "a", from = "gpu0", to = "gpu1" }], compute = [{ part = "b", kernel = "spin" }] },
  { compute = "spin" },
  { copy = "gpu1 -> host" },
]
"#;

fn workload(text: &str) -> Workload {
    parse("w.toml", text).unwrap_or_else(|error| panic!("{error}")).value
}

fn node() -> Machine {
    shipped("h200-x4").unwrap()
}

fn planned(text: &str, strategy: Strategy) -> Plan {
    plan(&node(), &workload(text), PlanOptions { strategy: Some(strategy) }).unwrap()
}

fn parted_of(pipeline: &Pipeline) -> &Parted {
    let PipelineSource::Parts(parted) = &pipeline.source else { panic!("{:?}", pipeline.source) };
    parted
}

#[track_caller]
fn refused(old: &str, new: &str, at: &str, message: &str, help: &str) {
    assert!(TWO.contains(old), "{old}");
    let text = TWO.replacen(old, new, 1);
    let error = parse("w.toml", &text).expect_err(new);
    let before = &text[..text.find(at).unwrap()];
    let at = (before.matches('\n').count() + 1, before.len() - before.rfind('\n').map_or(0, |newline| newline + 1) + 1);
    assert_eq!((error.message.as_str(), error.help.as_deref()), (message, Some(help)));
    assert_eq!((error.line, error.column), at, "{error}");
}

#[test]
fn a_file_says_which_part_goes_where_and_a_kernel_runs_where_its_part_is() {
    let stream = &workload(TWO).streams[0];
    let part = |id: &str, kib: u64| PacketPart { id: id.to_owned(), bytes: Bytes(kib << 10) };
    assert_eq!(stream.parts, [part("a", 64), part("b", 32)]);
    let gpu1 = || CopyEndpoint::Named("gpu1".to_owned());
    let StreamStep::Parts(second) = &stream.steps[1] else { panic!("{:?}", stream.steps) };
    let copy = PartWork::Copy { from: CopyEndpoint::Named("gpu0".to_owned()), to: gpu1() };
    let spin = || PartWork::Compute { kernel: "spin".to_owned(), at: gpu1(), on_cpu: false };
    assert_eq!(*second, [PartStep { part: 0, work: copy }, PartStep { part: 1, work: spin() }]);
    // A step that names no part is one of all of them.
    assert_eq!(stream.steps[2], StreamStep::Parts((0..2).map(|part| PartStep { part, work: spin() }).collect()));
    assert_eq!(stream.kernels().collect::<Vec<_>>(), ["spin"; 3]);
}

#[test]
fn streams_in_parts_are_written_as_they_were_read() {
    for text in [TWO, FILE] {
        let mut first = workload(text);
        let written = write(&first);
        let second = workload(&written);
        first.hash.clone_from(&second.hash);
        assert_eq!(first, second, "{written}");
    }
}

#[test]
fn a_stream_of_one_gpu_stays_as_it_was() {
    let text = FILE.replace("gpu0", "gpu").replace("gpu1", "gpu").replace("  { copy = \"gpu -> gpu\" },\n", "");
    let text = &text[..text.find("[[stream]]\nid = \"frames\"").unwrap()];
    let stream = &workload(text).streams[0];
    assert!(
        stream.parts.is_empty() && stream.steps.iter().all(|step| !matches!(step, StreamStep::Parts(_))),
        "{stream:?}"
    );
}

#[test]
fn what_no_parts_can_do_is_refused_where_it_stands() {
    let last = "bytes = \"32 KiB\" }]";
    refused(
        last,
        "bytes = \"31 KiB\" }]",
        "\"31 KiB\"",
        "the parts have 97280 bytes, and the packet has 98304",
        "make this part 1024 bytes larger, or add a part",
    );
    refused(
        last,
        "bytes = \"33 KiB\" }]",
        "\"33 KiB\"",
        "the parts have 99328 bytes, more than the packet of 98304",
        "let the parts add up to the packet",
    );
    refused(
        "id = \"b\"",
        "id = \"a\"",
        "\"a\", bytes = \"32 KiB\"",
        "stream `s` has a part `a` already",
        "give each part of the packet an id of its own",
    );
    refused(
        "{ part = \"b\", from = \"host\"",
        "{ part = \"c\", from = \"host\"",
        "\"c\"",
        "the packet has no part `c`",
        "its parts are a, b",
    );
    refused(
        "{ part = \"b\", from = \"host\"",
        "{ part = \"a\", from = \"host\"",
        "\"gpu1\" }] },\n  { copy = [{ part = \"a\", from = \"gpu0\"",
        "the step does two things with part `a`",
        "put the second into a step of its own",
    );
    refused(
        "from = \"gpu0\", to = \"gpu1\"",
        "from = \"gpu2\", to = \"gpu1\"",
        "\"gpu1\" }], compute",
        "the step copies from `gpu2`, but part `a` is at `gpu0`",
        "start it at `gpu0`, or add a copy from there to `gpu2`",
    );
    refused(
        "kernel = \"spin\" }",
        "kernel = \"spin\", on = \"gpu0\" }",
        "\"gpu0\" }] },\n  { compute",
        "the step computes on `gpu0`, but part `b` is at `gpu1`",
        "leave `on` out: a kernel runs where its data is; or copy it from `gpu1` before",
    );
    refused(
        "parts = [{ id = \"a\", bytes = \"64 KiB\" }, { id = \"b\", bytes = \"32 KiB\" }]\n",
        "",
        "\"a\", from = \"host\"",
        "the stream has no parts",
        "name the parts of the packet, for example `parts = [{ id = \"left\", bytes = \"512 KiB\" }, { id = \"right\", bytes = \"512 KiB\" }]`",
    );
    let idle = TWO.replace(
        ", { part = \"b\", from = \"host\", to = \"gpu1\" }] },\n  { copy = [{ part = \"a\", from = \"gpu0\", to = \"gpu1\" }], compute = [{ part = \"b\", kernel = \"spin\" }] },\n  { compute = \"spin\" },\n  { copy = \"gpu1 -> host\" }",
        "] }",
    );
    let error = parse("w.toml", &idle).unwrap_err();
    assert_eq!(error.message, "no step does anything with part `b`");
    let encrypted = TWO.replace("{ compute = \"spin\" }", "{ compute = \"aes128-cbc\" }").replace(
        "parts =",
        "key = \"000102030405060708090a0b0c0d0e0f\"\niv = \"000102030405060708090a0b0c0d0e0f\"\nparts =",
    );
    let error = parse("w.toml", &encrypted).unwrap_err();
    assert_eq!(error.message, "stream `s` encrypts 2 parts of a packet with one key and iv");
    let odd = FILE
        .replace("packet = \"528 KiB\"", "packet = \"540688 B\"")
        .replace("  { id = \"header\"", "  { id = \"odd\", bytes = \"8 B\" },\n  { id = \"header\"");
    let odd = odd.replace("\"512 KiB\"", "\"524296 B\"").replace(
        "steps = [\n  { copy = [{ part = \"picture\"",
        "steps = [\n  { copy = [{ part = \"odd\", from = \"host\", to = \"gpu1\" }, { part = \"picture\"",
    );
    let error = parse("w.toml", &odd).unwrap_err();
    let begins = "the part that is encrypted begins at byte 8 of the packet, no multiple of 16 as `aes128-cbc` needs";
    assert_eq!(error.message, begins);
    let many: Vec<String> = (0..65).map(|at| format!("{{ id = \"p{at}\", bytes = \"1 B\" }}")).collect();
    let parts = format!("[{}]", many.join(", "));
    let text = TWO.replace("[{ id = \"a\", bytes = \"64 KiB\" }, { id = \"b\", bytes = \"32 KiB\" }]", &parts);
    let error = parse("w.toml", &text).unwrap_err();
    assert_eq!(error.message, "a packet has at most 64 parts");
}

#[test]
fn a_set_is_one_job_of_all_engines_that_it_names() {
    let plan = planned(TWO, Strategy::Combined);
    let [pipeline] = plan.pipelines.as_slice() else { panic!("{} pipelines", plan.pipelines.len()) };
    let parted = parted_of(pipeline);
    assert_eq!(plan.verdict.outcome, Outcome::Schedulable);
    assert_eq!((parted.parts.as_slice(), pipeline.gather), (&[Bytes(64 << 10), Bytes(32 << 10)][..], pipeline.period));
    // As many packets as arrive in a cycle, a header, and whole lines of 256 bytes.
    let packets = pipeline.period.0.div_ceil(4_000_000);
    assert_eq!(pipeline.period, Nanos(40_000_000 / 5));
    assert_eq!(parted.reserves, [(packets << 16) + 256, (packets << 15) + 256].map(Bytes));
    assert_eq!(pipeline.reserve, Bytes(parted.reserves.iter().map(|room| room.0).sum()));
    let engines = |step: &PlannedStep| -> Vec<String> {
        let engines = step.operations.iter().flat_map(|operation| &operation.engines);
        engines.map(|engine| plan.engines[engine.at()].name.clone()).collect()
    };
    let steps = &pipeline.steps;
    assert_eq!(engines(&steps[0]), ["gpu0.h2d", "gpu1.h2d"]);
    assert_eq!(engines(&steps[1]), ["gpu0.peer-out", "gpu1.peer-in", "gpu1.ee"]);
    assert_eq!(engines(&steps[2]), ["gpu1.ee", "gpu1.ee"]);
    assert_eq!(parted.of, [vec![0, 1], vec![0, 1], vec![0, 1], vec![0, 1]]);
    assert!(
        steps[1].operations.iter().any(|it| matches!(it.work, OperationWork::Copy { class: EngineClass::Peer, .. }))
    );
    let of_server = |step: &PlannedStep| &plan.servers[step.server as usize].engines;
    for step in steps {
        let own = step.operations.iter().flat_map(|operation| &operation.engines);
        assert!(own.into_iter().all(|engine| of_server(step).contains(engine)), "{}", step.name);
    }
    // A core of the CPU, and a kernel beside a copy.
    let frames = planned(FILE, Strategy::Combined);
    let first = &frames.pipelines[1].steps[0];
    let names = |plan: &Plan, step: &PlannedStep| -> Vec<String> {
        plan.servers[step.server as usize].engines.iter().map(|it| plan.engines[it.at()].name.clone()).collect()
    };
    assert!(names(&frames, first).contains(&"cpu0".to_owned()), "{:?}", names(&frames, first));
}

#[test]
fn a_set_costs_what_its_longest_engine_takes() {
    let machine = node();
    let calibration = machine.calibration.clone().unwrap();
    let with_margin = |time: Nanos| {
        let scaled = u128::from(time.0) * u128::from(1_000_000 + calibration.margin_ppm);
        Nanos(scaled.div_ceil(1_000_000) as u64) + calibration.jitter
    };
    let gpu1 = machine.endpoint("gpu1").unwrap();
    let spin = |bytes: Bytes| with_margin(machine.kernel("spin", gpu1).unwrap().cost(bytes, bytes));
    let plan = planned(TWO, Strategy::Partitioned);
    let pipeline = &plan.pipelines[0];
    let rooms = &parted_of(pipeline).reserves;
    // Two kernels on one engine, one after the other.
    assert_eq!(pipeline.steps[2].cost, spin(rooms[0]) + spin(rooms[1]));
    // The copy between the GPUs is shorter than the kernel that runs meanwhile.
    assert_eq!(pipeline.steps[1].cost, spin(rooms[1]));
    // One by one, copies take longer than side by side.
    let serial = planned(TWO, Strategy::Serial);
    let both = serial.pipelines[0].steps[0].cost;
    assert!(both > pipeline.steps[0].cost, "{both} one by one, {} side by side", pipeline.steps[0].cost);
}

#[test]
fn baselines_refuse_parts_and_a_name_that_the_machine_lacks_is_found() {
    for strategy in [Strategy::Lockstep, Strategy::Generation] {
        let error = plan(&node(), &workload(TWO), PlanOptions { strategy: Some(strategy) }).unwrap_err();
        assert!(matches!(&error, PlanError::Impossible { place, .. } if place == "stream.s.steps"), "{error}");
    }
    let lost = workload(&TWO.replace("gpu1", "gpu9"));
    let error = plan(&node(), &lost, PlanOptions::default()).unwrap_err();
    assert!(
        matches!(&error, PlanError::UnknownName { name, place, .. } if name == "gpu9" && place == "stream.s.steps.0.copy"),
        "{error}"
    );
    let away = workload(&TWO.replace("{ compute = \"spin\" }", "{ compute = \"spin\", on = \"cpu\" }"));
    let error = plan(&node(), &away, PlanOptions::default()).unwrap_err();
    assert!(
        error.to_string().contains("computes in host memory, and part `a` is on `gpu1`: copy it to `host` before"),
        "{error}"
    );
    let unknown = workload(&TWO.replace("spin", "fold"));
    let error = plan(&node(), &unknown, PlanOptions::default()).unwrap_err();
    assert!(matches!(&error, PlanError::UnknownKernel { place, .. } if place == "stream.s.steps.1.compute"), "{error}");
}

#[test]
fn what_only_a_library_can_say_is_refused_and_never_panics() {
    let spoil: [fn(&mut Workload); 5] = [
        |workload| workload.streams[0].parts[0].bytes = Bytes(1),
        |workload| drop(workload.streams[0].parts.pop()),
        |workload| workload.streams[0].steps[0] = StreamStep::into_gpu(),
        |workload| workload.streams[0].steps[3] = StreamStep::Parts(Vec::new()),
        |workload| {
            let work = PartWork::Copy { from: CopyEndpoint::Host, to: CopyEndpoint::OwnGpu };
            workload.streams[0].steps[3] = StreamStep::Parts(vec![PartStep { part: 7, work }]);
        },
    ];
    for (case, spoil) in spoil.into_iter().enumerate() {
        let mut workload = workload(TWO);
        spoil(&mut workload);
        let error = plan(&node(), &workload, PlanOptions::default()).expect_err(&case.to_string());
        assert!(matches!(error, PlanError::Workload(_)), "{case}: {error}");
    }
}

/// Runs one cycle; of what is under way, the newest operation ends first, a nanosecond after the last one. Returns step, operation
/// and bytes in the order of submission.
fn one_cycle(plan: &Plan) -> Vec<(u32, u32, Bytes)> {
    let mut dispatcher = Dispatcher::new(plan.clone(), DispatcherLimits::default()).unwrap();
    let (mut now, mut seen, mut under_way) = (Nanos(0), Vec::new(), Vec::new());
    dispatcher.handle(now, &DispatchInput::Start { epoch: now, cycles: vec![1], packets: vec![2] }).unwrap();
    let bytes = plan.pipelines[0].reserve;
    dispatcher.handle(now, &DispatchInput::Data { pipeline: 0, cycle: 0, bytes }).unwrap();
    for _ in 0..200 {
        while let Some(action) = dispatcher.poll_action() {
            let DispatchAction::Submit { operation, step, index, bytes, .. } = action else { continue };
            // No operation of a step begins before all of the step before it have ended.
            assert!(under_way.iter().all(|(_, other)| *other == step), "step {step} beside {under_way:?}");
            seen.push((step, index, bytes));
            under_way.push((operation, step));
        }
        while let Some(event) = dispatcher.poll_event() {
            assert!(!matches!(event, DispatchEvent::Late { .. } | DispatchEvent::Missed { .. }), "{event:?}");
        }
        if dispatcher.is_finished() {
            return seen;
        }
        if let Some((operation, _)) = under_way.pop() {
            let started = now;
            now = now + Nanos(1);
            dispatcher.handle(now, &DispatchInput::Done { operation, started, finished: now }).unwrap();
        } else {
            now = dispatcher.poll_timeout().unwrap();
            dispatcher.handle(now, &DispatchInput::Timeout).unwrap();
        }
    }
    panic!("the cycle does not end");
}

#[test]
fn every_operation_of_a_step_is_submitted_with_its_parts_bytes_and_none_before_the_step() {
    for strategy in [Strategy::Serial, Strategy::Combined, Strategy::Partitioned, Strategy::PerGpu] {
        let plan = planned(TWO, strategy);
        let rooms = &parted_of(&plan.pipelines[0]).reserves;
        let expected = (0..4).flat_map(|step| [(step, 0, rooms[0]), (step, 1, rooms[1])]).collect::<Vec<_>>();
        assert_eq!(one_cycle(&plan), expected, "{strategy:?}");
    }
}

#[test]
fn a_long_copy_of_a_stream_from_gpu_to_gpu_is_cut_where_it_would_block() {
    let text = r#"name = "w"
[[stream]]
id = "long"
packet = "48 MiB"
period = "50 ms"
deadline = "200 ms"
steps = [{ copy = "host -> gpu0" }, { copy = "gpu0 -> gpu1" }, { copy = "gpu1 -> host" }]
[[stream]]
id = "short"
packet = "4 KiB"
period = "2 ms"
deadline = "1 ms"
gpu = "gpu0"
steps = [{ copy = "host -> gpu" }]
"#;
    let plan = plan(&node(), &workload(text), PlanOptions { strategy: Some(Strategy::Partitioned) }).unwrap();
    assert_eq!(plan.verdict.outcome, Outcome::Schedulable);
    let long = plan.pipelines.iter().find(|pipeline| pipeline.name == "long").unwrap();
    assert_eq!(parted_of(long).parts, [Bytes(48 << 20)]);
    assert!(long.steps[0].chunk > Bytes(0) && long.steps[0].chunk < long.reserve, "{:?}", long.steps[0]);
}

#[test]
fn a_plan_that_does_not_say_which_operation_works_on_which_part_is_refused() {
    let good = planned(TWO, Strategy::Combined);
    let spoil: [fn(&mut Parted); 5] = [
        |parted| parted.of[0][1] = 0,
        |parted| parted.of[0][1] = 2,
        |parted| parted.of[1].truncate(1),
        |parted| parted.reserves.truncate(1),
        |parted| parted.reserves[0].0 += 256,
    ];
    for (case, spoil) in spoil.into_iter().enumerate() {
        let mut plan = good.clone();
        let PipelineSource::Parts(parted) = &mut plan.pipelines[0].source else { panic!() };
        spoil(parted);
        assert!(Dispatcher::new(plan, DispatcherLimits::default()).is_err(), "{case}");
    }
}
