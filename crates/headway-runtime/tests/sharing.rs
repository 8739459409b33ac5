//! The same tasks with an arbiter of their own and with a broker's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use headway_broker::{BrokerServer, Client, OnLoss, ServerOptions};
use headway_core::decisions::engine_lock::{EngineParameters, EngineWork, LockedOperation};
use headway_core::decisions::sharing::{ArbiterParameters, ClusterId, ClusterParameters};
use headway_core::decisions::token::{TokenMode, TokenParameters};
use headway_core::units::{Bytes, Nanos};
use headway_os::clock;
use headway_runtime::sharing::{Sharing, SharingError, TaskShape};

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

fn parameters(gpus: u32, per_gpu: u32, engine_locks: bool) -> ArbiterParameters {
    let tokens = TokenParameters { cpus: 16, per_gpu, mode: TokenMode::WorkConserving, affinity: true };
    let engines = EngineParameters::default();
    ArbiterParameters::new(vec![ClusterParameters::equal(gpus, tokens)], engine_locks.then_some(engines))
}

/// Runs `body` over both.
fn both(parameters: &ArbiterParameters, body: impl Fn(&Sharing)) {
    body(&Sharing::local(parameters.clone()).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("broker");
    let options = ServerOptions { boost: false, ..ServerOptions::new(socket.clone(), parameters.clone()) };
    let mut server = BrokerServer::bind(ServerOptions { watchdog: Nanos(u64::MAX / 2), ..options }).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let thread = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || server.run(&stop).unwrap())
    };
    body(&Sharing::by_broker(Client::connect(&socket, "test", OnLoss::Fail).unwrap()));
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap();
}

fn shape() -> TaskShape {
    TaskShape {
        name: "task".to_owned(),
        cluster: ClusterId(0),
        period: Nanos(1_000),
        deadline: Nanos(1_000_000),
        state: Bytes(0),
        segments: Vec::new(),
        thread: None,
    }
}

fn operation(work: EngineWork) -> LockedOperation {
    LockedOperation { work, bytes: Bytes(4096), predicted: Nanos(0), budget: Nanos(0) }
}

#[test]
fn tokens_and_engines_exclude_each_other_with_and_without_a_broker() {
    both(&parameters(1, 2, true), |sharing| {
        let holders = AtomicU32::new(0);
        let engines = [AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0)];
        std::thread::scope(|scope| {
            for number in 0..4 {
                let (holders, engines) = (&holders, &engines);
                scope.spawn(move || {
                    let mut task = sharing.register(shape()).unwrap();
                    for round in 0..50 {
                        let mut job = task.job(clock::now());
                        let mut gpu = job.acquire(LIMIT).unwrap();
                        assert!(holders.fetch_add(1, Ordering::SeqCst) < 2);
                        let at = (number + round) % 3;
                        let engine = gpu
                            .engine(operation([EngineWork::Execute, EngineWork::CopyIn, EngineWork::CopyOut][at]))
                            .unwrap();
                        assert_eq!(engines[at].fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        engines[at].fetch_sub(1, Ordering::SeqCst);
                        engine.release();
                        holders.fetch_sub(1, Ordering::SeqCst);
                        gpu.release(Nanos(1_000));
                    }
                });
            }
        });
    });
}

#[test]
fn a_job_that_gets_another_gpu_is_told_where_its_state_is_and_can_copy_it() {
    both(&parameters(2, 1, true), |sharing| {
        let (mut a, mut b) = (sharing.register(shape()).unwrap(), sharing.register(shape()).unwrap());
        let first = {
            let mut job = a.job(clock::now());
            let gpu = job.acquire(LIMIT).unwrap();
            assert_eq!(gpu.from(), None);
            gpu.id()
        };
        // Others hold tokens until the one of the first GPU is among them.
        let mut other = b.job(clock::now());
        let held = other.acquire(LIMIT).unwrap();
        let mut job = a.job(clock::now());
        let mut gpu = job.acquire(LIMIT).unwrap();
        if held.id() == first {
            assert_eq!(gpu.from(), Some(first));
            gpu.engine(operation(EngineWork::Peer)).unwrap().release();
        } else {
            assert_eq!((gpu.id(), gpu.from()), (first, None));
        }
    });
}

#[test]
fn a_job_may_use_gpus_several_times_and_waiting_has_a_bound() {
    both(&parameters(1, 1, false), |sharing| {
        let (mut a, mut b) = (sharing.register(shape()).unwrap(), sharing.register(shape()).unwrap());
        assert_ne!(a.id(), b.id());
        let mut job = a.job(clock::now());
        for _ in 0..3 {
            let mut gpu = job.acquire(LIMIT).unwrap();
            gpu.engine(operation(EngineWork::Execute)).unwrap().release();
            let mut other = b.job(clock::now());
            assert!(matches!(other.acquire(Some(Duration::ZERO)).map(drop), Err(SharingError::TimedOut)));
            gpu.release(Nanos(1));
            other.acquire(LIMIT).unwrap().release(Nanos(1));
        }
    });
}
