//! The wall-clock driver on the emulated device: what comes out is right, and every failure ends the run cleanly.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::faulty::{FaultyGpu, GpuFaults};
use super::plain_run::plain_run;
use headway_core::decisions::dispatch::{DispatchAction, DispatchEvent, DispatchInput};
use headway_core::files::machine::{self, EndpointId, Machine};
use headway_core::files::workload::Workload;
use headway_core::log::{LogRecord, RecordBody};
use headway_core::models::cpu::RequestedClass;
use headway_core::models::transfer::{Direction, Profile};
use headway_core::plan::Plan;
use headway_core::plan::payload::Gathered;
use headway_core::plan::planner::{self, PlanOptions};
use headway_core::units::{Bytes, Nanos};
use headway_device::emu::{EmuGpu, EmuSpec};
use headway_device::{DeviceError, Engines, Gpu};
use headway_kernels::Shipped;
use headway_os::board::Board;
use headway_os::sched::{self, Missing, Role};
use headway_os::{affinity, clock};
use headway_runtime::blocks::{DataError, Gatherer, Scatterer, Supply, output_name};
use headway_runtime::copy::{Copier, CopyOptions};
use headway_runtime::intake::{InputError, Intake};
use headway_runtime::kernels::Kernels;
use headway_runtime::outlet::Outlet;
use headway_runtime::program::Came;
use headway_runtime::staging::Promiser;
use headway_runtime::wall::{self, RunError, WallOptions, WallOutcome};

/// Two streams in one class, one in another, one whose packets are jobs of their own; deadlines that any machine meets
/// sooner or later, since nothing here asks how fast it is.
const WORKLOAD: &str = r#"
name = "small"
[run]
cycle = "auto"
[[stream]]
id = "a"
packet = "256 B"
period = "1 ms"
deadline = "40 ms"
steps = [{ copy = "host -> gpu" }, { compute = "aes128-cbc" }, { copy = "gpu -> host" }]
key = "000102030405060708090a0b0c0d0e0f"
iv = "101112131415161718191a1b1c1d1e1f"
[[stream]]
id = "b"
packet = "48 B"
period = "3 ms"
deadline = "45 ms"
steps = [{ copy = "host -> gpu" }, { compute = "aes128-cbc" }, { copy = "gpu -> host" }]
key = "000102030405060708090a0b0c0d0e10"
iv = "101112131415161718191a1b1c1d1e20"
[[stream]]
id = "c"
packet = "1 KiB"
period = "4 ms"
deadline = "100 ms"
steps = [{ copy = "host -> gpu" }, { compute = "aes128-cbc" }, { copy = "gpu -> host" }]
key = "000102030405060708090a0b0c0d0e11"
iv = "101112131415161718191a1b1c1d1e21"
[[stream]]
id = "d"
packet = "64 B"
period = "30 ms"
deadline = "24 ms"
steps = [{ copy = "host -> gpu" }, { compute = "aes128-cbc" }, { copy = "gpu -> host" }]
key = "000102030405060708090a0b0c0d0e12"
iv = "101112131415161718191a1b1c1d1e22"
"#;

struct Bench {
    folder: tempfile::TempDir,
    machine: Machine,
    workload: Workload,
    plan: Arc<Plan>,
}

impl Bench {
    fn new() -> Self {
        Self::of(WORKLOAD)
    }

    fn of(text: &str) -> Self {
        let machine = machine::shipped("h200-x1").unwrap();
        let workload = headway_kernels::workload::parse("small.toml", text).unwrap().value;
        let plan = planner::plan(&machine, &workload, PlanOptions::default()).unwrap();
        Self { folder: tempfile::tempdir().unwrap(), machine, workload, plan: Arc::new(plan) }
    }

    fn input(&self, bytes: usize) -> std::path::PathBuf {
        let path = self.folder.path().join("input");
        let data: Vec<u8> = (0..bytes).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        fs::write(&path, data).unwrap();
        path
    }

    fn run(
        &self,
        intake: Intake,
        faults: GpuFaults,
        options: &WallOptions,
    ) -> (Result<WallOutcome, RunError>, Vec<LogRecord>) {
        let mut devices = [Engines::open(Arc::new(self.gpu(faults))).unwrap()];
        let mut records = Vec::new();
        let outcome = self.run_on(&mut devices, intake, options, |record| records.push(record.clone()));
        (outcome, records)
    }

    fn run_on(
        &self,
        devices: &mut [Engines],
        intake: Intake,
        options: &WallOptions,
        log: impl FnMut(&LogRecord),
    ) -> Result<WallOutcome, RunError> {
        let kernels = Kernels::of(&self.plan, &self.workload, &Shipped).unwrap();
        let gatherer = Gatherer::new(Arc::clone(&self.plan), Arc::new(intake));
        let outlet = Outlet::create(&self.place()).unwrap();
        let scatterer = Scatterer::new(gatherer.clone(), &outlet).unwrap();
        let job = plain_run(&self.plan, &kernels, &gatherer, scatterer);
        let outcome = wall::run_work(job, devices, options, log, |_| {});
        if outcome.is_ok() {
            outlet.publish().unwrap();
        }
        outcome
    }

    fn place(&self) -> std::path::PathBuf {
        self.folder.path().join("result")
    }

    fn gpu(&self, faults: GpuFaults) -> FaultyGpu {
        let spec = EmuSpec::of_machine(&self.machine, self.machine.gpus().next().unwrap());
        FaultyGpu::new(Arc::new(EmuGpu::open(spec)), faults)
    }

    fn open(&self, input: &Path) -> Intake {
        Intake::open(input, &self.plan.streams, None, &vec![16; self.plan.streams.len()]).unwrap()
    }
}

#[test]
fn every_stream_comes_out_as_one_unbroken_chain() {
    let bench = Bench::new();
    let input = bench.input(100_003);
    let (outcome, records) = bench.run(bench.open(&input), GpuFaults::default(), &WallOptions::default());
    let outcome = outcome.unwrap();
    let intake = bench.open(&input);
    let kernel = headway_kernels::find("aes128-cbc").unwrap();
    for (number, stream) in bench.workload.streams.iter().enumerate() {
        let share = &intake.shares()[number];
        let bytes = share.bytes + share.padding;
        assert_eq!(outcome.written[number], bytes, "stream {}", stream.id);
        let mut block = vec![0; headway_core::plan::block::block_bytes([bytes]).0 as usize];
        headway_core::plan::block::write_header(&mut block, 0, &[bytes]).unwrap();
        let data =
            headway_core::plan::block::header_bytes(1)..headway_core::plan::block::header_bytes(1) + bytes as usize;
        intake.read(number, 0, &mut block[data.clone()]).unwrap();
        let portion =
            headway_device::Portion { stream: stream.id.clone(), parameters: stream.parameters.clone(), item: 0 };
        let mut state = vec![0; kernel.state_bytes(1)];
        kernel.init_state(&[portion], &mut state).unwrap();
        let mut expected = vec![0; block.len()];
        kernel.run(&block, &mut expected, &mut state).unwrap();
        let found = fs::read(bench.place().join(output_name(&stream.id))).unwrap();
        assert_eq!(found, expected[data], "stream {}", stream.id);
    }
    let halted = records.iter().any(|r| matches!(r.what, RecordBody::Event(DispatchEvent::Halted { .. })));
    assert!(!halted && outcome.end > outcome.epoch);
}

/// Never brings a block: it panics, or is silent. As a program does, it keeps what says that something came.
struct Nothing {
    came: Option<Came>,
    panics: bool,
}

impl Supply for Nothing {
    fn begin(&mut self, _: Nanos, came: &Came) {
        self.came = Some(Arc::clone(came));
    }

    fn is_ready(&mut self, _: u32, _: u64) -> Result<bool, DataError> {
        assert!(!self.panics, "on purpose");
        Ok(false)
    }

    fn supply(&mut self, _: u32, _: u64, _: usize, _: &mut [&mut [u8]]) -> Result<Gathered, DataError> {
        unreachable!("nothing is ready")
    }
}

#[test]
fn a_run_ends_when_a_thread_of_it_or_its_log_panics() {
    for panics in [true, false] {
        let (told, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let bench = Bench::new();
            let kernels = Kernels::of(&bench.plan, &bench.workload, &Shipped).unwrap();
            let intake = bench.open(&bench.input(1_000));
            let gatherer = Gatherer::new(Arc::clone(&bench.plan), Arc::new(intake));
            let outlet = Outlet::create(&bench.place()).unwrap();
            let scatterer = Scatterer::new(gatherer.clone(), &outlet).unwrap();
            let mut job = plain_run(&bench.plan, &kernels, &gatherer, scatterer);
            job.supply = Box::new(Nothing { came: None, panics });
            let mut devices = [Engines::open(Arc::new(bench.gpu(GpuFaults::default()))).unwrap()];
            let log = |_: &LogRecord| assert!(panics, "the log panics on purpose");
            let options = WallOptions::default();
            let ran =
                catch_unwind(AssertUnwindSafe(|| wall::run_work(job, &mut devices, &options, log, |_| {}).map(drop)));
            told.send(ran.is_err()).unwrap();
        });
        let is_panic = ended.recv_timeout(Duration::from_secs(300)).expect("the run ends");
        assert!(is_panic, "the panic is seen");
    }
}

/// Between two packets lie a hundred empty cycles, more than the dispatcher keeps open: the feeder must not run ahead.
#[test]
fn a_sparse_stream_in_short_cycles_runs_to_its_end() {
    let last = WORKLOAD.rfind("[[stream]]").unwrap();
    let sparse = WORKLOAD[last..].replace("period = \"30 ms\"", "period = \"600 ms\"");
    let bench = Bench::of(&format!("name = \"sparse\"\n[run]\ncycle = \"paper\"\n{sparse}"));
    assert_eq!(bench.plan.pipelines[0].window, Nanos(6_000_000));
    let input = bench.input(3 * 64);
    let (outcome, _) = bench.run(bench.open(&input), GpuFaults::default(), &WallOptions::default());
    assert!(outcome.is_ok(), "{outcome:?}");
}

#[test]
fn a_failing_operation_ends_the_run_with_its_place() {
    let bench = Bench::new();
    let input = bench.input(50_000);
    // Setting the states up takes one operation per pipeline; a later one is part of the run.
    let faults = GpuFaults { fail: [12].into(), ..GpuFaults::default() };
    let (outcome, records) = bench.run(bench.open(&input), faults, &WallOptions::default());
    let error = outcome.unwrap_err();
    assert!(matches!(&error, RunError::Operation { source: DeviceError::Driver { .. }, .. }), "{error}");
    assert!(matches!(records.last().unwrap().what, RecordBody::Input(DispatchInput::Failed { .. })));
    assert!(!bench.place().exists());
}

#[test]
fn a_plan_and_flows_do_not_promise_copies_on_one_engine_at_a_time() {
    let bench = Bench::new();
    let input = bench.input(50_000);
    let gpu: Arc<dyn Gpu> = Arc::new(bench.gpu(GpuFaults::default()));
    let copier =
        Copier::new(vec![(EndpointId(1), Arc::clone(&gpu))], Profile::default(), CopyOptions::default()).unwrap();
    let mut devices = [Engines::open(gpu).unwrap()];
    let node = Promiser::new();
    let limit = |chunk| copier.limit_chunks(node, 0, Direction::D2h, chunk);
    limit(Some(Bytes(1 << 20))).unwrap();
    let refused = bench.run_on(&mut devices, bench.open(&input), &WallOptions::default(), |_| {}).unwrap_err();
    assert!(matches!(refused, RunError::Promised { gpu: 0, way: "out of" }), "{refused}");
    limit(None).unwrap();
    let mut meanwhile = None;
    bench
        .run_on(&mut devices, bench.open(&input), &WallOptions::default(), |_| {
            meanwhile.get_or_insert_with(|| limit(Some(Bytes(1 << 20))).map_err(|error| error.to_string()));
        })
        .unwrap();
    assert!(meanwhile.unwrap().unwrap_err().contains("a plan that it runs"));
    limit(Some(Bytes(1 << 20))).unwrap();
}

/// Asks a copy of this test program to look for kernels of others.
const LOOKS: &str = "HEADWAY_TEST_LOOKS_FOR_KERNELS";

#[test]
fn looks_for_kernels_where_a_test_asks() {
    if std::env::var_os(LOOKS).is_none() {
        return;
    }
    let device = Engines::open(Arc::new(Bench::new().gpu(GpuFaults::default()))).unwrap();
    let (gpu, board) = (device.description().board_gpu(), Board::of_user().expect("System V shared memory"));
    let end = clock::now().saturating_add(Nanos(60_000_000_000));
    while !board.has_promised_kernel(&gpu, clock::now) {
        assert!(clock::now() < end, "nobody has announced a kernel");
    }
}

#[test]
fn other_programs_see_that_a_kernel_of_a_plan_is_under_way() {
    let mut looks = Command::new(std::env::current_exe().unwrap());
    looks.args(["--exact", "wall::looks_for_kernels_where_a_test_asks"]).env(LOOKS, "1").stdout(Stdio::null());
    let mut looks = looks.spawn().unwrap();
    let bench = Bench::new();
    let input = bench.input(50_000);
    let seen = loop {
        bench.run(bench.open(&input), GpuFaults::default(), &WallOptions::default()).0.unwrap();
        fs::remove_dir_all(bench.place()).unwrap();
        if let Some(status) = looks.try_wait().unwrap() {
            break status;
        }
    };
    assert!(seen.success());
}

#[test]
fn a_device_that_is_lost_ends_the_run() {
    let bench = Bench::new();
    let input = bench.input(50_000);
    let faults = GpuFaults { panic: [12].into(), ..GpuFaults::default() };
    let (outcome, _) = bench.run(bench.open(&input), faults, &WallOptions::default());
    assert!(matches!(outcome.unwrap_err(), RunError::Operation { source: DeviceError::DeviceLost, .. }));
}

#[test]
fn an_operation_that_hangs_is_noticed() {
    let bench = Bench::new();
    let input = bench.input(50_000);
    let faults = GpuFaults { delay: [(12, Nanos(2_000_000_000))].into(), ..GpuFaults::default() };
    let options = WallOptions { stall_max: Nanos(200_000_000), ..WallOptions::default() };
    let (outcome, _) = bench.run(bench.open(&input), faults, &options);
    assert!(matches!(outcome.unwrap_err(), RunError::Stalled { .. }));
}

#[test]
fn input_that_shrinks_during_the_run_is_an_error() {
    let bench = Bench::new();
    let input = bench.input(100_000);
    let intake = bench.open(&input);
    fs::OpenOptions::new().write(true).open(&input).unwrap().set_len(60_000).unwrap();
    let (outcome, _) = bench.run(intake, GpuFaults::default(), &WallOptions::default());
    let error = outcome.unwrap_err();
    assert!(matches!(&error, RunError::Data(DataError::Input(InputError::Truncated { .. }))), "{error}");
    assert!(!bench.place().exists());
}

#[test]
fn an_interrupt_ends_the_run() {
    let bench = Bench::new();
    let input = bench.input(100_000);
    let options = WallOptions { interrupt: Arc::new(AtomicBool::new(true)), ..WallOptions::default() };
    let (outcome, _) = bench.run(bench.open(&input), GpuFaults::default(), &options);
    let RunError::Interrupted { cpu: Some(used) } = outcome.unwrap_err() else {
        panic!("an interrupt, with the threads")
    };
    assert_eq!(used.threads[0].role, "driver");
}

#[test]
fn devices_can_be_used_again_after_a_run_that_was_interrupted_with_operations_under_way() {
    let bench = Bench::new();
    let input = bench.input(100_000);
    let mut devices = [Engines::open(Arc::new(bench.gpu(GpuFaults::default()))).unwrap()];
    for first in 1..4 {
        let interrupt = Arc::new(AtomicBool::new(false));
        let options = WallOptions { interrupt: Arc::clone(&interrupt), ..WallOptions::default() };
        let mut submitted = 0;
        let outcome = bench.run_on(&mut devices, bench.open(&input), &options, |record| {
            submitted += u32::from(matches!(record.what, RecordBody::Action(DispatchAction::Submit { .. })));
            interrupt.store(submitted >= first, Ordering::Relaxed);
        });
        assert!(matches!(outcome.unwrap_err(), RunError::Interrupted { .. }));
    }
    bench.run_on(&mut devices, bench.open(&input), &WallOptions::default(), |_| {}).unwrap();
}

#[test]
fn a_plan_for_more_gpus_than_there_are_devices_is_refused() {
    let mut bench = Bench::new();
    bench.machine = machine::shipped("h200-x4").unwrap();
    bench.plan = Arc::new(planner::plan(&bench.machine, &bench.workload, PlanOptions::default()).unwrap());
    let input = bench.input(10_000);
    let (outcome, _) = bench.run(bench.open(&input), GpuFaults::default(), &WallOptions::default());
    assert!(matches!(outcome.unwrap_err(), RunError::NoDevice { devices: 1, .. }));
}

#[test]
fn a_run_in_each_class_is_whole_and_then_the_calling_thread_is_what_it_was() {
    let before = sched::current().unwrap();
    for &(word, class) in RequestedClass::WORDS {
        let bench = Bench::new();
        let input = bench.input(20_000);
        let options = WallOptions { class, ..WallOptions::default() };
        let (outcome, records) = bench.run(bench.open(&input), GpuFaults::default(), &options);
        assert_eq!(sched::current().unwrap(), before, "after a run in class {word}");
        let cpu = match outcome {
            Err(RunError::Class { wanted, source })
                if class != RequestedClass::Auto && class != RequestedClass::Ordinary =>
            {
                eprintln!("skipped: {source}");
                assert_eq!(wanted, class);
                continue;
            }
            outcome => outcome.unwrap().cpu,
        };
        assert_eq!(cpu.asked, class);
        assert!(class.is_met_by(cpu.driver().unwrap()), "{cpu:?}");
        for role in ["driver", "feeder", "sink"] {
            let threads = cpu.threads.iter().filter(|of| of.role == role);
            assert_eq!(threads.map(|of| of.count).sum::<u32>(), 1, "{role}: {cpu:?}");
        }
        let ends = records.iter().filter(|record| matches!(record.what, RecordBody::Input(DispatchInput::Done { .. })));
        assert_eq!(cpu.noticed.count, ends.count() as u64);
        assert!(cpu.woken.count > 0 && cpu.woken.max >= cpu.woken.median, "{cpu:?}");
    }
}

#[test]
fn a_class_that_was_asked_for_and_is_refused_ends_the_run_before_it_begins() {
    let all = affinity::allowed().unwrap();
    let permitted = sched::strongest(RequestedClass::Deadline, Role::Driver);
    if all.len() < 2 || !permitted.refused.is_empty() {
        eprintln!("skipped: {} CPUs, {:?}", all.len(), permitted.refused);
        return;
    }
    std::thread::spawn(move || {
        affinity::restrict(&all[..1]).unwrap();
        let bench = Bench::new();
        let input = bench.input(20_000);
        let options = WallOptions { class: RequestedClass::Deadline, ..WallOptions::default() };
        let (outcome, records) = bench.run(bench.open(&input), GpuFaults::default(), &options);
        let Err(RunError::Class { wanted: RequestedClass::Deadline, source }) = outcome else { panic!("{outcome:?}") };
        assert_eq!((source.lack, records.len()), (Missing::Affinity, 0));
        assert_eq!(sched::current().unwrap(), sched::SchedClass::Other);
    })
    .join()
    .unwrap();
}

#[test]
fn a_driver_in_a_class_that_is_rationed_sleeps_between_polls() {
    for class in [RequestedClass::Deadline, RequestedClass::Fifo] {
        let bench = Bench::new();
        let input = bench.input(20_000);
        let gpu = Arc::new(bench.gpu(GpuFaults { silent: true, ..GpuFaults::default() }));
        let mut devices = [Engines::open(Arc::clone(&gpu) as Arc<dyn Gpu>).unwrap()];
        let options = WallOptions { class, ..WallOptions::default() };
        let mut inputs = 0;
        let start = clock::now();
        let count = |record: &LogRecord| inputs += u64::from(matches!(record.what, RecordBody::Input(_)));
        let outcome = bench.run_on(&mut devices, bench.open(&input), &options, count);
        let elapsed = clock::now().saturating_sub(start);
        if let Err(RunError::Class { source, .. }) = outcome {
            eprintln!("skipped: {source}");
            continue;
        }
        outcome.unwrap();
        // 20 us pass between two polls, unless a message comes or a window opens; each of these is an input.
        let most = elapsed.0 / 20_000 + 2 * inputs + 100;
        // Each asks the queues of four engines.
        let polls = gpu.polls() / 4;
        assert!(polls <= most, "{polls} polls in {elapsed}, {inputs} inputs");
    }
}
