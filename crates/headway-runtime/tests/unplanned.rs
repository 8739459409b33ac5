//! Bulk transfers, urgent requests and late producers on the emulated device: every byte arrives where it belongs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use headway_core::decisions::dispatch::{DispatchEvent, DispatchInput, UrgentAnswer};
use headway_core::files::machine::{EngineClass, Machine, shipped};
use headway_core::files::workload::{self, Otherwise, Workload};
use headway_core::log::{LogRecord, RecordBody};
use headway_core::models::transfer::{Method, Profile};
use headway_core::plan::planner::{self, PlanOptions};
use headway_core::plan::{PipelineSource, Plan, ServiceClass, Strategy};
use headway_core::units::{Bytes, Nanos};
use headway_device::emu::{EmuGpu, EmuSpec};
use headway_device::gpu::CpuReach;
use headway_device::{Access, Engines, HostKind};
use headway_kernels::Shipped;
use headway_runtime::blocks::{Gatherer, Scatterer};
use headway_runtime::copy::{At, Copier, CopyOptions, How};
use headway_runtime::intake::Intake;
use headway_runtime::kernels::Kernels;
use headway_runtime::outlet::Outlet;
use headway_runtime::wall::{
    self, CopyEnds, RequestOutcome, Requests, RunError, SuppliedRun, UrgentRequest, WallOptions, WallOutcome,
};

const MS: u64 = 1_000_000;

/// A frame now and then, and everything that has no window. Windows are long: threads of an emulation are late now and then.
const WORKLOAD: &str = r#"
name = "unplanned"
[[message]]
id = "frame"
period = "20 ms"
blocks = [{ from = "host", to = "gpu0", bytes = "100001 B" }]
[[bulk]]
id = "load"
from = "host"
to = "gpu0"
bytes = "40000003 B"
[[bulk]]
id = "save"
from = "gpu0"
to = "host"
[[urgent]]
id = "order"
from = "host"
to = "gpu0"
bytes = "70 kB"
deadline = "15 ms"
"#;

fn machine() -> Machine {
    shipped("h200-x1").unwrap()
}

fn planned(text: &str, strategy: Strategy) -> (Workload, Arc<Plan>) {
    let workload = workload::parse("unplanned.toml", text).unwrap().value;
    let plan = planner::plan(&machine(), &workload, PlanOptions { strategy: Some(strategy) }).unwrap();
    (workload, Arc::new(plan))
}

fn devices() -> Vec<Engines> {
    let machine = machine();
    let gpu = machine.gpus().next().unwrap();
    vec![Engines::open(Arc::new(EmuGpu::open(EmuSpec::of_machine(&machine, gpu)))).unwrap()]
}

fn run(
    (workload, plan): &(Workload, Arc<Plan>),
    devices: &mut [Engines],
    span: u64,
    inputs: Vec<(Nanos, DispatchInput)>,
    requests: Requests,
) -> (Result<WallOutcome, RunError>, Vec<LogRecord>) {
    let kernels = Kernels::of(plan, workload, &Shipped).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let outlet = Outlet::create(&folder.path().join("out")).unwrap();
    let gatherer = Gatherer::new(Arc::clone(plan), Arc::new(Intake::default()));
    let scatterer = Scatterer::new(gatherer.clone(), &outlet).unwrap();
    let cycles = plan.pipelines.iter().map(|p| match p.source {
        PipelineSource::Bulk(Some(bytes)) => bytes.0.div_ceil(p.reserve.0),
        PipelineSource::Bulk(None) | PipelineSource::Urgent(_) => u64::from(u32::MAX),
        _ => (span * MS).saturating_sub(p.start.0).div_ceil(p.period.0),
    });
    let work = SuppliedRun {
        plan,
        kernels: &kernels,
        cycles: cycles.collect(),
        packets: Vec::new(),
        supply: Box::new(gatherer),
        collect: Box::new(scatterer),
        inputs,
        requests,
    };
    let mut records = Vec::new();
    let outcome = wall::run_work(work, devices, &WallOptions::default(), |record| records.push(record.clone()), |_| {});
    (outcome, records)
}

fn events(records: &[LogRecord]) -> impl Iterator<Item = &DispatchEvent> {
    records.iter().filter_map(|record| if let RecordBody::Event(event) = &record.what { Some(event) } else { None })
}

#[test]
fn bulk_and_requests_move_beside_frames_and_every_byte_is_compared() {
    let plan = planned(WORKLOAD, Strategy::Partitioned);
    assert_eq!(plan.1.pipelines.len(), 4, "{:?}", plan.1.verdict.notes);
    let ask = |otherwise, deadline| DispatchInput::Urgent { pipeline: 3, bytes: Bytes(69_999), deadline, otherwise };
    let inputs = vec![
        (Nanos(MS), ask(Otherwise::Refuse, Nanos(15 * MS))),
        (Nanos(2 * MS), ask(Otherwise::BestEffort, Nanos(1))),
        (Nanos(3 * MS), ask(Otherwise::Refuse, Nanos(1))),
    ];
    let (outcome, records) = run(&plan, &mut devices(), 200, inputs, Requests::default());
    let compared = outcome.unwrap().compared;
    // What still lies there at the end, and what came to the host as far as a thread kept pace.
    assert!(compared.equal >= 10 * 100_001 + 2 * 69_999 && compared.moved >= compared.equal, "{compared:?}");
    let answers: Vec<&UrgentAnswer> = events(&records)
        .filter_map(|event| if let DispatchEvent::Answered { answer, .. } = event { Some(answer) } else { None })
        .collect();
    assert!(
        matches!(*answers, [UrgentAnswer::Guaranteed { .. }, UrgentAnswer::BestEffort(_), UrgentAnswer::Refused(_)]),
        "{answers:?}"
    );
    let pieces = |class: ServiceClass| {
        let of = |p: &u32| plan.1.pipelines[*p as usize].source.class() == class;
        events(&records).filter(move |e| matches!(e, DispatchEvent::Complete { pipeline, .. } if of(pipeline))).count()
    };
    assert_eq!((pieces(ServiceClass::Guaranteed), pieces(ServiceClass::Urgent)), (10, 2));
    assert!(pieces(ServiceClass::Bulk) > 0, "nobody else needs the engine of `save`");
}

#[test]
fn requests_that_were_admitted_overtake_one_that_was_not() {
    let plan = planned(WORKLOAD, Strategy::Partitioned);
    let ask = |otherwise, deadline| DispatchInput::Urgent { pipeline: 3, bytes: Bytes(69_999), deadline, otherwise };
    let mut inputs = vec![(Nanos(MS), ask(Otherwise::BestEffort, Nanos(1)))];
    inputs.extend((0..3).map(|_| (Nanos(MS), ask(Otherwise::Refuse, Nanos(15 * MS)))));
    let (outcome, records) = run(&plan, &mut devices(), 100, inputs, Requests::default());
    let compared = outcome.unwrap().compared;
    assert!(compared.equal >= 69_999, "{compared:?}");
    let complete = events(&records).filter_map(|event| match event {
        DispatchEvent::Complete { pipeline: 3, cycle, .. } => Some(*cycle),
        _ => None,
    });
    assert_eq!(complete.collect::<Vec<u64>>(), [1, 2, 3, 0]);
}

#[test]
fn another_thread_asks_for_copies_of_its_own_bytes() {
    let plan = planned(WORKLOAD, Strategy::Partitioned);
    let mut devices = devices();
    let (from, to) =
        (devices[0].host_buffer(100_000, HostKind::Pinned).unwrap(), devices[0].host_buffer(100_000, HostKind::Pinned));
    let (memory, back) = (devices[0].device_buffer(100_000).unwrap(), to.unwrap());
    let bytes: Vec<u8> = (0..100_000u32).map(|at| ((at * 7) >> 3) as u8).collect();
    from.claim(0..100_000, Access::Write).unwrap().bytes_mut().unwrap().copy_from_slice(&bytes);
    let requests = Requests::default();
    let request = UrgentRequest {
        pipeline: 3,
        bytes: Bytes(70_000),
        deadline: Nanos(15 * MS),
        otherwise: Otherwise::BestEffort,
        ends: Some(CopyEnds { from: from.clone(), from_offset: 30_000, to: memory.clone(), to_offset: 10_000 }),
    };
    assert!(requests.ask(request.clone()).is_err(), "nothing runs yet");
    let asked = requests.clone();
    let other = std::thread::spawn(move || {
        let since = Instant::now();
        let outcomes = loop {
            match asked.ask(request.clone()) {
                Ok(outcomes) => break outcomes,
                Err(_) if since.elapsed() < Duration::from_secs(60) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        };
        let outside = CopyEnds { from, from_offset: 30_001, to: memory.clone(), to_offset: 0 };
        let refused = asked.ask(UrgentRequest { ends: Some(outside), ..request }).unwrap();
        (outcomes.iter().collect::<Vec<RequestOutcome>>(), refused.recv().unwrap(), memory)
    });
    let (outcome, _) = run(&plan, &mut devices, 200, Vec::new(), requests);
    outcome.unwrap();
    let (outcomes, refused, memory) = other.join().unwrap();
    assert!(matches!(*outcomes, [RequestOutcome::Answer(_), RequestOutcome::Arrived(_)]), "{outcomes:?}");
    assert_eq!(refused, RequestOutcome::NotTaken);
    let ends = (memory.claim(10_000..80_000, Access::Read).unwrap(), back.claim(0..70_000, Access::Write).unwrap());
    devices[0].copy(EngineClass::D2h, Method::Dma, ends, 1).unwrap();
    let (mut done, since) = (Vec::new(), Instant::now());
    while done.is_empty() && since.elapsed() < Duration::from_secs(60) {
        devices[0].poll(&mut done);
    }
    let span = back.claim(0..70_000, Access::Read).unwrap();
    let found = span.bytes().unwrap();
    assert_eq!(done.len(), 1, "{done:?}");
    assert_eq!(found.iter().zip(&bytes[30_000..]).position(|(found, sent)| found != sent), None);
}

#[test]
fn copies_that_no_plan_made_go_on_beside_a_plan_on_the_same_gpu_and_both_move_what_they_should() {
    let plan = planned(WORKLOAD, Strategy::Partitioned);
    let mut devices = devices();
    let gpu = Arc::clone(devices[0].gpu());
    let name = machine().gpus().next().unwrap();
    let copier = Copier::new(vec![(name, gpu)], Profile::default(), CopyOptions::default()).unwrap();
    let memory = copier.gpus()[0].device_buffer(1 << 20, CpuReach::Device).unwrap();
    let is_over = AtomicBool::new(false);
    let (outcome, rounds) = std::thread::scope(|scope| {
        let copies = scope.spawn(|| {
            let (at, mut back) = (At { buffer: &memory, offset: 0 }, vec![0; 1 << 20]);
            let mut round = 0;
            while !is_over.load(Ordering::SeqCst) {
                let bytes = vec![round as u8; back.len()];
                copier.copy_in(at, &bytes, How::By(Method::Register)).unwrap();
                copier.copy_out(&mut back, at, How::By(Method::Register)).unwrap();
                assert!(back == bytes, "round {round}");
                round += 1;
            }
            round
        });
        let (outcome, _) = run(&plan, &mut devices, 200, Vec::new(), Requests::default());
        is_over.store(true, Ordering::SeqCst);
        (outcome, copies.join().unwrap())
    });
    let compared = outcome.unwrap().compared;
    assert!(compared.equal >= 10 * 100_001, "{compared:?}");
    assert!(rounds > 0);
}

/// Two messages of which combining splits the slow one, whose producer speaks.
const LATE: &str = r#"
name = "late"
[[message]]
id = "fast"
period = "10 ms"
blocks = [{ from = "host", to = "gpu0", bytes = "100 kB" }]
[[message]]
id = "slow"
period = "40 ms"
late = "0 ms"
blocks = [{ from = "gpu0", to = "host", bytes = "333332 B" }]
"#;

#[test]
fn what_a_late_producer_left_out_goes_with_later_slots_or_is_its_own_miss() {
    let plan = planned(LATE, Strategy::Combined);
    assert_eq!(plan.1.announced.len(), 1, "{:?}", plan.1.announced);
    let headway_core::plan::Announced { pipeline, part, .. } = plan.1.announced[0];
    let ready = |job, at| (Nanos(at * MS), DispatchInput::Ready { pipeline, part, job });
    // Job 1 comes after its first slot, and each slot has room for a part only; the others are there in time. A busy computer may bring
    // any of them later or earlier: which are missed is tested in virtual time (headway-sim/tests/late_messages.rs).
    let inputs = vec![ready(0, 0), ready(1, 45), ready(2, 80), ready(3, 119)];
    let (outcome, records) = run(&plan, &mut devices(), 160, inputs, Requests::default());
    let compared = outcome.unwrap().compared;
    assert_eq!(compared.equal, compared.moved);
    let unready: Vec<u64> = events(&records)
        .filter_map(|event| if let DispatchEvent::Unready { job, .. } = event { Some(*job) } else { None })
        .collect();
    let missed: BTreeSet<u64> = unready.iter().copied().collect();
    assert_eq!(missed.len(), unready.len(), "each job is missed once: {unready:?}");
    assert!(missed.iter().all(|job| *job < 4), "{unready:?}");
    assert_eq!(compared.blocks, 16 + 4 - missed.len() as u64, "{unready:?}");
}
