//! GPUs that are lost, by the word of the owner or of a probe.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::support::{Broker, LIMIT, operation, parameters, shape, wait_until};
use headway_broker::{
    BrokerStatus, Client, ClientError, GpuProbe, Health, JobStatus, OnLoss, Phase, RefusalReason, ServerOptions,
};
use headway_core::decisions::engine_lock::EngineWork;
use headway_core::decisions::sharing::{GpuId, JobSegment};
use headway_core::units::Nanos;
use headway_os::clock;

fn connect(broker: &Broker, name: &str) -> Client {
    Client::connect(&broker.socket, name, OnLoss::Wait).unwrap()
}

fn gpus(gpus: u32, per_gpu: u32) -> impl FnOnce(&mut ServerOptions) {
    move |options| options.arbiter = parameters(gpus, per_gpu, Nanos(0))
}

fn lost(status: &BrokerStatus) -> Vec<u32> {
    status.gpus.iter().filter(|gpu| gpu.lost).map(|gpu| gpu.gpu.0).collect()
}

#[test]
fn holders_of_a_lost_gpu_are_told_and_the_others_share_what_is_left() {
    let broker = Broker::start(gpus(2, 1));
    let (one, two) = (connect(&broker, "one"), connect(&broker, "two"));
    // Each needs more than half of a GPU.
    let long = || {
        let execute = JobSegment::Execute { kernel: "k".to_owned(), time: Nanos(600) };
        headway_broker::TaskShape { segments: vec![execute], ..shape("a") }
    };
    let (mut a, mut b, mut c) =
        (one.register(long()).unwrap(), two.register(long()).unwrap(), two.register(shape("c")).unwrap());
    let second_id = b.id();
    let mut first = a.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
    let second = b.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
    let gpu = first.gpu();
    assert_ne!(gpu, second.gpu());
    let other = second.gpu();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| c.acquire(clock::now(), 0, Some(LIMIT)).map(|token| token.gpu()));
        wait_until("somebody waits", || two.status().unwrap().jobs.len() == 3);
        two.declare_lost(gpu).unwrap();
        assert!(first.is_revoked() && !second.is_revoked());
        for work in [EngineWork::Execute, EngineWork::CopyIn] {
            let refused = first.engine(operation(work)).map(drop);
            assert!(matches!(refused, Err(ClientError::GpuLost { gpu: which }) if which == gpu), "{refused:?}");
        }
        let status = two.status().unwrap();
        assert_eq!(lost(&status), [gpu.0]);
        assert_eq!(status.without_room, [second_id], "the one registered first keeps its room: {status:?}");
        assert!(matches!(one.declare_lost(gpu), Err(ClientError::Refused { .. })), "twice");
        second.release(Nanos(1));
        assert_eq!(waiter.join().unwrap().unwrap(), other);
    });
    drop(first);
    for _ in 0..5 {
        assert_eq!(a.acquire(clock::now(), 0, Some(LIMIT)).unwrap().gpu(), other);
    }
}

#[test]
fn who_waits_for_the_last_gpu_or_its_engine_is_told_and_nobody_gets_it_again() {
    let broker = Broker::start(gpus(1, 2));
    let (one, two, three) = (connect(&broker, "one"), connect(&broker, "two"), connect(&broker, "three"));
    let (mut a, mut b, mut c) =
        (one.register(shape("a")).unwrap(), two.register(shape("b")).unwrap(), three.register(shape("c")).unwrap());
    let mut first = a.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
    let mut second = b.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
    let engine = first.engine(operation(EngineWork::Execute)).unwrap();
    let is_lost = |error: ClientError| matches!(error, ClientError::GpuLost { gpu: GpuId(0) });
    std::thread::scope(|scope| {
        let for_engine = scope.spawn(|| second.engine(operation(EngineWork::Execute)).map(drop).unwrap_err());
        let for_token = scope.spawn(|| c.acquire(clock::now(), 0, Some(LIMIT)).map(drop).unwrap_err());
        wait_until("both wait", || {
            let jobs = one.status().unwrap().jobs;
            let waits = |job: &&JobStatus| match &job.phase {
                Phase::WaitsForToken => true,
                Phase::Holds { waits_for, .. } => !waits_for.is_empty(),
            };
            jobs.iter().filter(waits).count() == 2
        });
        one.declare_lost(GpuId(0)).unwrap();
        assert!(is_lost(for_engine.join().unwrap()) && is_lost(for_token.join().unwrap()));
    });
    drop(engine);
    drop((first, second));
    let refused = a.acquire(clock::now(), 0, Some(LIMIT)).map(drop);
    assert!(matches!(refused, Err(ClientError::Request(RefusalReason::NoGpu))), "{refused:?}");
    assert!(one.status().unwrap().jobs.is_empty());
}

#[test]
fn what_a_client_meets_is_only_a_hint_until_the_probe_confirms_it() {
    const LOST: u32 = 1;
    let (answer, asked) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU64::new(0)));
    let probe = {
        let (answer, asked) = (Arc::clone(&answer), Arc::clone(&asked));
        GpuProbe::new(move |gpu| {
            asked.fetch_add(1, Ordering::SeqCst);
            let lost = gpu == GpuId(1) && answer.load(Ordering::SeqCst) == LOST;
            if lost { Health::Lost } else { Health::There }
        })
    };
    let broker = Broker::start(|options| options.probe = Some(probe));
    let client = connect(&broker, "one");
    client.report_fault(GpuId(1)).unwrap();
    client.report_fault(GpuId(77)).unwrap();
    wait_until("the probe is asked", || asked.load(Ordering::SeqCst) > 0);
    let status = client.status().unwrap();
    assert_eq!((lost(&status), status.gpus[1].faults), (Vec::new(), 1));
    answer.store(LOST, Ordering::SeqCst);
    client.report_fault(GpuId(1)).unwrap();
    wait_until("the GPU is lost", || lost(&client.status().unwrap()) == [1]);
    let mut task = client.register(shape("a")).unwrap();
    for _ in 0..5 {
        assert_eq!(task.acquire(clock::now(), 0, Some(LIMIT)).unwrap().gpu(), GpuId(0));
    }
}

#[test]
fn without_a_probe_the_word_of_a_client_takes_no_gpu_away() {
    let broker = Broker::start(gpus(1, 1));
    let client = connect(&broker, "one");
    for _ in 0..100 {
        client.report_fault(GpuId(0)).unwrap();
    }
    let mut task = client.register(shape("a")).unwrap();
    assert!(task.acquire(clock::now(), 0, Some(LIMIT)).is_ok());
    assert_eq!(client.status().unwrap().gpus[0].faults, 100);
}
