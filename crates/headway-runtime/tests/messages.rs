//! Messages and flows on the emulated device: every strategy brings every byte, and a byte that is lost, doubled or in the
//! wrong place ends the run.

use std::sync::Arc;

use super::faulty::{FaultyGpu, Tap};
use headway_core::decisions::dispatch::{DispatchAction, DispatchEvent};
use headway_core::files::machine::{EndpointId, EngineClass, Machine, shipped};
use headway_core::files::workload::{self, Workload};
use headway_core::log::{LogRecord, RecordBody};
use headway_core::plan::planner::{self, PlanOptions};
use headway_core::plan::{OperationWork, PipelineSource, Plan, Strategy};
use headway_core::units::{Bytes, Nanos};
use headway_device::buffer::MemoryPlace;
use headway_device::emu::{EmuGpu, EmuSpec};
use headway_device::{Engines, Gpu, Operation};
use headway_kernels::Shipped;
use headway_os::board::{Board, board_gpu};
use headway_runtime::blocks::{DataError, Gatherer, Scatterer};
use headway_runtime::intake::Intake;
use headway_runtime::kernels::Kernels;
use headway_runtime::outlet::Outlet;
use headway_runtime::wall::{self, RunError, SuppliedRun, WallOptions, WallOutcome};

/// Blocks into and out of two GPUs and between them, one that combining splits over seven slots or more, and one that is cut
/// into chunks where it stays alone.
const WORKLOAD: &str = r#"
name = "blocks"
[[message]]
id = "frame"
period = "5 ms"
blocks = [
  { from = "host", to = "gpu0", bytes = "100001 B" },
  { from = "gpu1", to = "host", bytes = "70000 B" },
]
[[message]]
id = "across"
period = "10 ms"
blocks = [{ from = "gpu0", to = "gpu1", bytes = "50 kB" }]
[[message]]
id = "slow"
period = "37 ms"
start = "3 ms"
blocks = [{ from = "host", to = "gpu0", bytes = "333333 B" }]
"#;

const CYCLES_MS: u64 = 80;

fn machine() -> Machine {
    shipped("h200-x4").unwrap().with_gpus(2).unwrap()
}

fn planned(text: &str, strategy: Strategy) -> (Workload, Arc<Plan>) {
    let workload = workload::parse("blocks.toml", text).unwrap().value;
    let plan = planner::plan(&machine(), &workload, PlanOptions { strategy: Some(strategy) }).unwrap();
    (workload, Arc::new(plan))
}

/// Runs what begins within 80 ms.
fn run(
    (workload, plan): &(Workload, Arc<Plan>),
    devices: &mut [Engines],
) -> (Result<WallOutcome, RunError>, Vec<LogRecord>) {
    let kernels = Kernels::of(plan, workload, &Shipped).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let outlet = Outlet::create(&folder.path().join("out")).unwrap();
    let gatherer = Gatherer::new(Arc::clone(plan), Arc::new(Intake::default()));
    let scatterer = Scatterer::new(gatherer.clone(), &outlet).unwrap();
    let cycles = plan.pipelines.iter().map(|p| (CYCLES_MS * 1_000_000).saturating_sub(p.start.0).div_ceil(p.period.0));
    let work = SuppliedRun {
        plan,
        kernels: &kernels,
        cycles: cycles.collect(),
        packets: Vec::new(),
        supply: Box::new(gatherer),
        collect: Box::new(scatterer),
        inputs: Vec::new(),
        requests: wall::Requests::default(),
    };
    let mut records = Vec::new();
    let outcome = wall::run_work(work, devices, &WallOptions::default(), |record| records.push(record.clone()), |_| {});
    (outcome, records)
}

fn gpus(machine: &Machine) -> Vec<Arc<dyn Gpu>> {
    machine.gpus().map(|gpu| Arc::new(EmuGpu::open(EmuSpec::of_machine(machine, gpu))) as Arc<dyn Gpu>).collect()
}

fn engines(gpus: Vec<Arc<dyn Gpu>>) -> Vec<Engines> {
    gpus.into_iter().map(|gpu| Engines::open(gpu).unwrap()).collect()
}

fn open(machine: &Machine) -> Vec<Engines> {
    engines(gpus(machine))
}

const STRATEGIES: [Strategy; 3] = [Strategy::Serial, Strategy::Combined, Strategy::Partitioned];

#[test]
fn every_strategy_brings_every_byte_of_every_job() {
    for strategy in STRATEGIES {
        let plan = planned(WORKLOAD, strategy);
        let (outcome, records) = run(&plan, &mut open(&machine()));
        let found = outcome.unwrap().compared;
        let submitted = records.iter().filter_map(|record| match record.what {
            RecordBody::Action(DispatchAction::Submit { bytes, .. }) => Some(bytes.0),
            _ => None,
        });
        assert_eq!(found.moved, submitted.sum::<u64>(), "{strategy:?}");
        // All of it is still there at the end, or was compared as it came.
        assert_eq!(found.equal, found.moved, "{strategy:?}");
        // 16 frames of two blocks, 8 across; the third slow block begins at 77 ms.
        let slow = if strategy == Strategy::Combined { 2 } else { 3 };
        assert_eq!(found.blocks, 16 * 2 + 8 + slow, "{strategy:?}");
        let least = 16 * 170_001 + 8 * 50_000 + slow * 333_333;
        assert!((least..least + 333_333).contains(&found.moved), "{strategy:?}: {found:?}");
        let split = plan.1.pipelines.iter().any(|pipeline| match &pipeline.source {
            PipelineSource::Batch(parts) => parts.iter().any(|part| part.member.parts_max() > 1),
            _ => false,
        });
        assert_eq!(split, strategy == Strategy::Combined);
    }
}

#[test]
fn every_late_block_of_a_batch_is_told_once_as_a_miss() {
    let (workload, plan) = planned(WORKLOAD, Strategy::Combined);
    let mut plan = Plan::clone(&plan);
    for pipeline in &mut plan.pipelines {
        let PipelineSource::Batch(parts) = &mut pipeline.source else { panic!("all are combined") };
        // No copy is that fast, so that all blocks are late; slots stay as they are.
        parts.iter_mut().for_each(|part| part.message.deadline = Nanos(1));
    }
    let machine = machine();
    let name = |gpu: EndpointId| format!("late {}", machine.endpoints[gpu.at()].id);
    let spec = |gpu| EmuSpec { name: name(gpu), ..EmuSpec::of_machine(&machine, gpu) };
    let gpus = machine.gpus().map(|gpu| Arc::new(EmuGpu::open(spec(gpu))) as Arc<dyn Gpu>).collect();
    let (outcome, _) = run(&(workload, Arc::new(plan)), &mut engines(gpus));
    // 16 frames of two blocks, and two slow blocks, which go in parts. What goes across is on no link of the host.
    assert_eq!(outcome.unwrap().compared.blocks, 16 * 2 + 8 + 2);
    let rows = Board::of_user().unwrap().read().rows;
    let told = |gpu: &str| {
        let own = rows.iter().filter(|row| row.pid == std::process::id() && row.gpu == board_gpu(None, gpu));
        own.map(|row| row.misses).sum::<u64>()
    };
    assert_eq!(["emu:late gpu0", "emu:late gpu1"].map(told), [16 + 2, 16]);
}

#[test]
fn a_copy_that_goes_in_chunks_arrives_whole() {
    for strategy in [Strategy::Serial, Strategy::Partitioned] {
        let (workload, plan) = planned(WORKLOAD, strategy);
        // As a planner cuts what others cannot wait for, but small enough for a test.
        let mut cut = Plan::clone(&plan);
        cut.pipelines.last_mut().unwrap().steps[0].chunk = Bytes(4096);
        let (outcome, records) = run(&(workload, Arc::new(cut)), &mut open(&machine()));
        let found = outcome.unwrap().compared;
        assert_eq!((found.equal, found.blocks), (found.moved, 16 * 2 + 8 + 3), "{strategy:?}");
        let last = plan.pipelines.len() as u32 - 1;
        let pieces = records.iter().filter(|record| {
            matches!(record.what, RecordBody::Action(DispatchAction::Submit { pipeline, bytes, .. }) if pipeline == last && bytes.0 <= 4096)
        });
        assert_eq!(pieces.count(), 3 * 333_333usize.div_ceil(4096), "{strategy:?}");
    }
}

#[test]
fn flows_hold_their_server_for_their_cost() {
    let text = "name = \"flows\"\n\
                [[demand]]\nid = \"a\"\nperiod = \"10 ms\"\ncost = \"1 ms\"\n\
                [[demand]]\nid = \"b\"\nperiod = \"20 ms\"\ncost = \"2 ms\"\n";
    let (outcome, records) = run(&planned(text, Strategy::Serial), &mut []);
    let outcome = outcome.unwrap();
    assert_eq!(outcome.compared, wall::MessageComparison::default());
    let complete = |record: &&LogRecord| matches!(record.what, RecordBody::Event(DispatchEvent::Complete { .. }));
    assert_eq!(records.iter().filter(complete).count(), 8 + 4);
    let overrun = |record: &&LogRecord| matches!(record.what, RecordBody::Event(DispatchEvent::Overrun { .. }));
    assert_eq!(records.iter().filter(overrun).count(), 0);
    assert!(outcome.end - outcome.epoch >= Nanos(71_000_000));
}

/// What goes wrong with copies of one class, at the one with this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slip {
    /// It is not made, and ends as if it had been.
    Lost,
    /// It and the next one of its size change destinations.
    Misplaced,
}

/// The class of engines that makes a copy.
fn class_of(operation: &Operation) -> Option<EngineClass> {
    let Operation::Copy { from, to } = operation else { return None };
    Some(match (from.place(), to.place()) {
        (MemoryPlace::Host { .. }, _) => EngineClass::H2d,
        (_, MemoryPlace::Host { .. }) => EngineClass::D2h,
        _ => EngineClass::Peer,
    })
}

/// Makes one mistake with the copies of `class` behind the first `after`, and does not say so.
fn careless(class: EngineClass, slip: Slip, mut after: usize) -> Tap {
    let (mut held, mut done) = (None, false);
    Box::new(move |operation, tag| {
        // Copies with the greatest tag fill memory before the run and read it back after.
        if class_of(&operation) != Some(class) || tag == u64::MAX || done {
            return vec![(Some(operation), tag)];
        }
        if let Some((Operation::Copy { from, to }, first)) = held.take() {
            let Operation::Copy { from: other, to: target } = operation else { panic!("only copies have a class") };
            assert_eq!(from.len(), target.len());
            done = true;
            let exchanged = Operation::Copy { from, to: target };
            return vec![(Some(exchanged), first), (Some(Operation::Copy { from: other, to }), tag)];
        }
        if after > 0 {
            after -= 1;
            return vec![(Some(operation), tag)];
        }
        match slip {
            Slip::Lost => {
                done = true;
                vec![(None, tag)]
            }
            Slip::Misplaced => {
                held = Some((operation, tag));
                Vec::new()
            }
        }
    })
}

/// Two blocks of one size at one time on every engine, and one that combining splits into parts of that size.
const ALIKE: &str = r#"
name = "alike"
[[message]]
id = "twins"
period = "5 ms"
blocks = [
  { from = "host", to = "gpu0", bytes = "9999 B" },
  { from = "host", to = "gpu0", bytes = "9999 B" },
  { from = "gpu0", to = "host", bytes = "9999 B" },
  { from = "gpu0", to = "host", bytes = "9999 B" },
  { from = "gpu0", to = "gpu1", bytes = "9999 B" },
  { from = "gpu0", to = "gpu1", bytes = "9999 B" },
]
[[message]]
id = "slow"
period = "40 ms"
blocks = [{ from = "host", to = "gpu0", bytes = "79992 B" }]
"#;

#[test]
fn bytes_that_are_lost_or_misplaced_are_found_in_every_direction() {
    let machine = machine();
    for class in [EngineClass::H2d, EngineClass::D2h, EngineClass::Peer] {
        for (slip, strategy) in
            [(Slip::Lost, Strategy::Combined), (Slip::Lost, Strategy::Serial), (Slip::Misplaced, Strategy::Combined)]
        {
            let mut gpus = gpus(&machine);
            // Both blocks of one job, whichever order the plan has for a batch.
            let tap = careless(class, slip, 6);
            gpus[0] = Arc::new(FaultyGpu::with_tap(Arc::clone(&gpus[0]), tap));
            let (outcome, _) = run(&planned(ALIKE, strategy), &mut engines(gpus));
            let said = format!("{class:?}, {slip:?}, {strategy:?}: {outcome:?}");
            let Err(RunError::Data(DataError::Sequence { what, .. })) = outcome else { panic!("{said}") };
            assert!(what.contains("is not the one that was sent"), "{said}");
        }
    }
}

#[test]
fn what_no_engine_moves_is_refused() {
    let (workload, plan) = planned(WORKLOAD, Strategy::Serial);
    let mut odd = Plan::clone(&plan);
    let OperationWork::Copy { class, .. } = &mut odd.pipelines[0].steps[0].operations[0].work else {
        panic!("no copy")
    };
    *class = EngineClass::Ee;
    let (outcome, _) = run(&(workload, Arc::new(odd)), &mut open(&machine()));
    assert!(matches!(outcome, Err(RunError::Unsupported { .. })), "{outcome:?}");
    let (outcome, _) = run(&planned(WORKLOAD, Strategy::Serial), &mut []);
    assert!(matches!(outcome, Err(RunError::NoDevice { .. })), "{outcome:?}");
}
