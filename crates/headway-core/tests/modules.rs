//! Kernels of modules: what files say and what is refused, and how they are planned.

use headway_core::decisions::sharing::JobSegment;
use headway_core::files::machine::{KernelCost, Machine, shipped};
use headway_core::files::workload::{CpuFunction, KernelArgument, Number32, StreamStep, Workload, checked};
use headway_core::plan::planner::{PlanError, PlanOptions, plan};
use headway_core::plan::{OperationWork, Outcome, PipelineSource, Plan, Strategy, WholePackets};
use headway_core::units::{Bytes, Nanos};
use headway_kernels::workload::{parse, write};

const FILE: &str = r#"name = "w"
[[stream]]
id = "camera"
packet = "300 KiB"
period = "33 ms"
deadline = "10 ms"
steps = [
  { copy = "host -> gpu" },
  { compute = { module = "detect.ptx", entry = "detect", grid = [40, 60], block = [256], shared = "4 KiB", args = ["in", "out", "bytes", { u32 = 640 }, { i32 = -1 }, { f32 = 0.5 }], out_bytes = "1001 B", cost = "1.2 ms" } },
  { copy = "gpu -> host" },
]
"#;

fn workload(text: &str) -> Workload {
    parse("w.toml", text).unwrap_or_else(|error| panic!("{error}")).value
}

fn node() -> Machine {
    shipped("h200-x1").unwrap()
}

fn planned(text: &str) -> Plan {
    plan(&node(), &workload(text), PlanOptions::default()).unwrap()
}

fn packets_of(plan: &Plan) -> &WholePackets {
    let PipelineSource::Packets(packets) = &plan.pipelines[0].source else { panic!("{:?}", plan.pipelines[0].source) };
    packets
}

/// What [`FILE`] says of its kernel.
const MODULE: &str = r#"{ module = "detect.ptx", entry = "detect", grid = [40, 60], block = [256], shared = "4 KiB", args = ["in", "out", "bytes", { u32 = 640 }, { i32 = -1 }, { f32 = 0.5 }], out_bytes = "1001 B", cost = "1.2 ms" }"#;

/// The error of [`FILE`] with `new` instead of `old` has its caret under `marked`.
#[track_caller]
fn refused(old: &str, new: &str, marked: &str, message: &str, help: &str) {
    assert!(FILE.contains(old), "{old}");
    let text = FILE.replacen(old, new, 1);
    let error = parse("w.toml", &text).expect_err(new);
    assert_eq!(error.message, message);
    assert_eq!(error.help.as_deref().unwrap_or_default(), help);
    let line = text.lines().nth(error.line - 1).unwrap();
    let found: String = line.chars().skip(error.column - 1).take(error.width).collect();
    assert_eq!(found, marked, "{error}");
}

#[test]
fn a_step_becomes_the_launch_that_it_says() {
    let workload = workload(FILE);
    let StreamStep::Module(kernel) = &workload.streams[0].steps[1] else { panic!() };
    assert_eq!((kernel.module.as_str(), kernel.entry.as_str()), ("detect.ptx", "detect"));
    assert_eq!((kernel.grid, kernel.block, kernel.shared), ([40, 60, 1], [256, 1, 1], Bytes(4096)));
    let half = KernelArgument::F32(Number32::new(0.5).unwrap());
    let args = [
        KernelArgument::In,
        KernelArgument::Out,
        KernelArgument::Bytes,
        KernelArgument::U32(640),
        KernelArgument::I32(-1),
        half,
    ];
    assert_eq!(kernel.args, args);
    assert_eq!((kernel.out_bytes, kernel.cost), (Some(Bytes(1001)), Some(Nanos(1_200_000))));
    let ids: Vec<String> = workload.streams[0].module_kernels().map(|(_, id, _)| id).collect();
    assert_eq!(ids, ["camera:detect"]);
    assert_eq!(workload.streams[0].sizes(), [300 << 10, 300 << 10, 1001, 1001].map(Bytes));
}

#[test]
fn what_is_read_is_written_and_read_again() {
    let cpu = r#"cpu = { library = "lib\"detect.so", function = "f" }, cost"#;
    for text in [FILE.to_owned(), FILE.replace("cost", cpu), FILE.replace(", cost = \"1.2 ms\"", "")] {
        let mut first = workload(&text);
        let second = workload(&write(&first));
        first.hash.clone_from(&second.hash);
        assert_eq!(first, second);
    }
    let StreamStep::Module(kernel) = &workload(&FILE.replace("cost", cpu)).streams[0].steps[1] else { panic!() };
    let function = CpuFunction { library: "lib\"detect.so".to_owned(), function: "f".to_owned(), file: None };
    assert_eq!(kernel.cpu, Some(function));
}

#[test]
fn what_no_gpu_can_launch_is_refused_at_its_place() {
    refused(
        "grid = [40, 60]",
        "grid = [0, 60]",
        "0",
        "`0` is outside 1 to 2147483647",
        "write an integer from 1 to 2147483647",
    );
    refused(
        "[40, 60]",
        "[40, 60, 1, 1]",
        "1",
        "`grid` has 4 numbers, and a GPU has three directions",
        "write x, y and z, or fewer: `grid = [64]`",
    );
    refused("[40, 60]", "[]", "[]", "the list is empty", "write for example `grid = [64]`");
    refused("[256]", "[2048]", "2048", "`2048` is outside 1 to 1024", "write an integer from 1 to 1024");
    refused(
        "[256]",
        "[256, 8]",
        "[256, 8]",
        "a thread block has 2048 threads, and a GPU takes 1024",
        "make blocks smaller, and the grid larger",
    );
    refused(
        "\"4 KiB\"",
        "\"1 MiB\"",
        "\"1 MiB\"",
        "`shared = \"1 MiB\"` is more shared memory than a GPU has for a block, 227 KiB",
        "write at most `shared = \"232448 B\"`",
    );
    refused(
        "\"1001 B\"",
        "\"0 B\"",
        "\"0 B\"",
        "`out_bytes = \"0 B\"` is zero",
        "write for example `out_bytes = \"4 KiB\"`",
    );
    refused("\"1.2 ms\"", "\"0 ms\"", "\"0 ms\"", "`cost = \"0 ms\"` is zero", "write for example `cost = \"1.2 ms\"`");
    refused(
        "entry = \"detect\", ",
        "",
        r#"{ module = "detect.ptx", grid = [40, 60], block = [256], shared = "4 KiB", args = ["in", "out", "bytes", { u32 = 640 }, { i32 = -1 }, { f32 = 0.5 }], out_bytes = "1001 B", cost = "1.2 ms" }"#,
        "a kernel of a module has no `entry`",
        "add `entry = \"detect\"`",
    );
    let help = "kernels have letters, digits and `_` in their names; `extern \"C\"` keeps the one of the source";
    for odd in ["b:c", "2", "a b", "%x", "d\u{e9}tect"] {
        let fact = format!("`entry = \"{odd}\"` is no name of a kernel in C");
        refused("entry = \"detect\"", &format!("entry = \"{odd}\""), &format!("\"{odd}\""), &fact, help);
    }
    let long = "d".repeat(58);
    let fact = format!("the kernel is called `camera:{long}` in plans and machine files, which is too long there");
    let help = "64 letters are allowed: give stream or kernel a shorter name";
    refused("entry = \"detect\"", &format!("entry = \"{long}\""), &format!("\"{long}\""), &fact, help);
    refused(
        "grid = [40, 60]",
        "grid = [-1]",
        "-1",
        "`-1` is outside 1 to 2147483647",
        "write an integer from 1 to 2147483647",
    );
    refused("entry = \"detect\"", "entry = \"\"", "\"\"", "`entry = \"\"` names nothing", "write a name");
    refused("shared", "shred", "shred", "unknown key `shred` in a kernel of a module", "did you mean `shared`?");
}

#[test]
fn arguments_that_no_kernel_takes_are_refused_at_their_place() {
    let help =
        "write \"in\", \"out\", \"bytes\", or a number with its type: `{ u32 = 640 }`, also i32, u64, i64, f32, f64";
    refused("\"in\", ", "\"input\", ", "\"input\"", "`input` is no argument of a kernel", help);
    refused("\"bytes\"", "640", "640", "an argument says its type", help);
    refused("{ u32 = 640 }", "{ u32 = 640, i32 = 1 }", "{ u32 = 640, i32 = 1 }", "an argument is one number", help);
    refused(
        "{ u32 = 640 }",
        "{ u16 = 640 }",
        "u16",
        "unknown key `u16` in an argument",
        "known keys: `u32`, `i32`, `u64`, `i64`, `f32`, `f64`",
    );
    refused("u32 = 640", "u32 = -1", "-1", "`u32 = -1` does not fit its type", "write for example `u32 = 640`");
    refused("f32 = 0.5", "f32 = inf", "inf", "`f32 = inf` is not finite", "write a number");
    refused(
        "\"out\", ",
        "",
        r#"["in", "bytes", { u32 = 640 }, { i32 = -1 }, { f32 = 0.5 }]"#,
        "the kernel gets \"out\" 0 times, and must get it once",
        "write for example `args = [\"in\", \"out\", \"bytes\"]`, in the order of the kernel's parameters",
    );
}

#[test]
fn streams_that_cannot_have_packets_of_their_own_are_refused() {
    refused(
        "  { copy = \"gpu -> host\" }",
        "  { compute = \"spin\" },\n  { copy = \"gpu -> host\" }",
        "\"spin\"",
        "a kernel of a module gets packets as they came, and this one packed blocks: one stream cannot have both",
        "give each a stream of its own, or bring this kernel in a module, too",
    );
    refused(
        "deadline = \"10 ms\"",
        "deadline = \"10 ms\"\nprocessor = \"cpu\"",
        "processor",
        "a kernel of a module runs on GPUs only",
        "leave `processor` out",
    );
    refused(
        "cost = \"1.2 ms\" } }",
        "cost = \"1.2 ms\" }, on = \"cpu\" }",
        "on",
        "a module holds code for GPUs",
        "leave `on` out: a kernel of a module runs on the stream's GPU",
    );
    refused(
        "  { copy = \"host -> gpu\" },\n",
        "",
        MODULE,
        "the step computes before the data reached a GPU",
        "put `{ copy = \"host -> gpu\" }` before it, or write `on = \"cpu\"`",
    );
}

#[test]
fn each_packet_is_a_job_of_its_own_with_the_cost_that_the_step_says() {
    let plan = planned(FILE);
    assert_eq!(plan.verdict.outcome, Outcome::Schedulable);
    let pipeline = &plan.pipelines[0];
    assert_eq!((pipeline.name.as_str(), pipeline.period, pipeline.gather), ("camera", Nanos(33_000_000), Nanos::ZERO));
    assert_eq!(pipeline.window, Nanos(10_000_000 / 3));
    let packets = packets_of(&plan);
    assert_eq!((packets.packet(), packets.result(), packets.compared), (Bytes(300 << 10), Bytes(1001), false));
    let copied = |step: usize| match pipeline.steps[step].operations[0].work {
        OperationWork::Copy { bytes, .. } => bytes,
        _ => panic!(),
    };
    assert_eq!((copied(0), copied(2)), (Bytes(300 << 10), Bytes(1001)));
    let kernel = &pipeline.steps[1];
    assert_eq!(kernel.name, "camera:detect");
    let calibration = node().calibration.unwrap();
    assert_eq!(kernel.cost, calibration.with_margin(Nanos(1_200_000)));
}

#[test]
fn windows_are_no_longer_than_the_period_so_that_a_packet_leaves_a_step_before_the_next_one_comes() {
    let plan = planned(&FILE.replace("period = \"33 ms\"", "period = \"2 ms\""));
    assert_eq!(plan.pipelines[0].window, Nanos(2_000_000));
    assert_eq!(plan.verdict.outcome, Outcome::Schedulable);
}

#[test]
fn a_kernel_without_a_cost_takes_that_of_the_machine_file_or_is_refused_with_the_remedy() {
    let text = FILE.replace(", cost = \"1.2 ms\"", "");
    let error = plan(&node(), &workload(&text), PlanOptions::default()).unwrap_err();
    assert_eq!(error.place(), "stream.camera.steps.1.compute");
    let said = "stream `camera` runs `detect` of `detect.ptx`, and neither the step nor machine `h200-x1` says how long it takes";
    assert_eq!(error.to_string(), said);
    assert!(matches!(&error, PlanError::NoCost { id, .. } if id == "camera:detect"));
    let mut machine = node();
    machine.kernels.push(KernelCost::of_launch("camera:detect".to_owned(), Bytes(300 << 10), Nanos(500_000)));
    let with = plan(&machine, &workload(&text), PlanOptions::default()).unwrap();
    assert_eq!(with.pipelines[0].steps[1].cost, machine.calibration.as_ref().unwrap().with_margin(Nanos(500_000)));
    // What the step says goes before what the machine says.
    let own = plan(&machine, &workload(FILE), PlanOptions::default()).unwrap();
    assert_eq!(own.pipelines[0].steps[1].cost, machine.calibration.unwrap().with_margin(Nanos(1_200_000)));
}

#[test]
fn kernels_of_one_entry_have_names_of_their_own() {
    let step = FILE.lines().find(|line| line.contains("compute")).unwrap();
    let text = FILE.replace(step, &format!("{step}\n{}", step.replace("1001 B", "7 B").replace("1.2 ms", "2 ms")));
    let plan = planned(&text);
    let names: Vec<&str> = plan.pipelines[0].steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names[1..3], ["camera:detect", "camera:detect:2"]);
    assert!(plan.pipelines[0].steps[2].cost > plan.pipelines[0].steps[1].cost);
    assert_eq!(packets_of(&plan).result(), Bytes(7));
}

#[test]
fn other_streams_are_planned_beside_it_as_before() {
    let other = "[[stream]]\nid = \"radar\"\npacket = \"4 KiB\"\nperiod = \"2 ms\"\ndeadline = \"20 ms\"\n\
                 steps = [{ copy = \"host -> gpu\" }, { compute = \"spin\" }, { copy = \"gpu -> host\" }]\n";
    let plan = planned(&format!("{FILE}{other}"));
    assert_eq!(plan.verdict.outcome, Outcome::Schedulable);
    let of = |id: &str| &plan.pipelines[plan.streams.iter().find(|stream| stream.id == id).unwrap().pipeline as usize];
    assert!(matches!(of("camera").source, PipelineSource::Packets(_)));
    assert!(matches!(of("radar").source, PipelineSource::Streams(_)));
    let text = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
}

#[test]
fn a_baseline_that_knows_only_packed_blocks_says_so() {
    let options = PlanOptions { strategy: Some(Strategy::Lockstep) };
    let error = plan(&node(), &workload(FILE), options).unwrap_err();
    assert!(
        error.to_string().contains("strategy `lockstep` knows no kernels of modules; choose `serial`, `combined`"),
        "{error}"
    );
    let messages = workload(
        "name = \"w\"\n[[message]]\nid = \"m\"\nperiod = \"10 ms\"\nblocks = [{ from = \"host\", to = \"gpu0\", bytes = \"1 MiB\" }]\n",
    );
    for strategy in Strategy::ALL {
        let planned = plan(&node(), &messages, PlanOptions { strategy: Some(strategy) });
        let said = planned.err().map(|error| error.to_string()).unwrap_or_default();
        let is_refused =
            said.contains(&format!("strategy `{}` is one of streams, and there are none", strategy.name()));
        let is_baseline = matches!(strategy, Strategy::Lockstep | Strategy::Generation);
        assert_eq!((is_refused, said.is_empty()), (is_baseline, !is_baseline), "{said}");
    }
}

/// A task whose second kernel reads what the first one read, and has the same entry.
const TASK: &str = r#"name = "w"
[sharing]
cpus = 2
[[task]]
id = "front"
period = "50 ms"
segments = [
  { copy = "host -> gpu", bytes = "4 KiB" },
  { copy = "host -> gpu", bytes = "1 KiB" },
  { compute = { module = "detect.ptx", entry = "detect", grid = [40], block = [256], args = ["in", "out", "bytes"], out_bytes = "64 B" }, time = "1 ms" },
  { copy = "gpu -> host", bytes = "64 B" },
  { compute = { module = "detect.ptx", entry = "detect", grid = [20], block = [256], args = ["in", "out"] }, time = "2 ms" },
  { compute = "spin", time = "2 ms" },
]
"#;

#[test]
fn a_task_has_kernels_of_modules_each_with_a_name_and_what_it_reads() {
    let workload = workload(TASK);
    let found: Vec<_> = workload.modules().into_iter().map(|of| (of.id, of.bytes, of.place)).collect();
    let place = |segment| format!("task.front.segments.{segment}.compute");
    let read = Bytes(5 << 10);
    assert_eq!(found, [("front:detect".to_owned(), read, place(2)), ("front:detect:4".to_owned(), read, place(4))]);
    assert_eq!(workload.tasks[0].modules[&2].out_bytes, Some(Bytes(64)));
    assert_eq!(parse("w.toml", &write(&workload)).unwrap().value.tasks, workload.tasks);
}

#[test]
fn what_a_task_cannot_launch_is_refused_at_its_place() {
    let refused = |old: &str, new: &str, line: usize, said: &str| {
        let error = parse("w.toml", &TASK.replacen(old, new, 1)).expect_err(new);
        assert!(error.message.contains(said) && error.line == line, "{error}");
    };
    refused("out_bytes = \"64 B\" }", "cost = \"1 ms\" }", 10, "a segment of a task says `time`");
    refused("block = [256]", "block = [2000]", 10, "2000");
    refused("entry = \"detect\"", "entry = \"1\"", 10, "is no name of a kernel");
    let copies = "  { copy = \"host -> gpu\", bytes = \"4 KiB\" },\n  { copy = \"host -> gpu\", bytes = \"1 KiB\" },\n";
    refused(copies, "", 8, "nothing was copied in");
    let mut other = workload(TASK);
    let JobSegment::Execute { kernel, .. } = &mut other.tasks[0].segments[4] else { panic!() };
    *kernel = "front:detect".to_owned();
    let said = checked(&other, &[]).unwrap_err().to_string();
    assert!(said.contains("is called `front:detect:4`"), "{said}");
    let mut other = workload(TASK);
    let mut module = other.tasks[0].modules[&2].clone();
    module.entry = "other".to_owned();
    other.tasks[0].modules.insert(0, module);
    assert!(checked(&other, &[]).unwrap_err().to_string().contains("segment 0 of task `front` has a module"));
}
