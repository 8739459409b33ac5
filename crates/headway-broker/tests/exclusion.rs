//! Nobody gets what another one has: by lease, or in the drain of one that died.

mod support;

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use headway_broker::{Client, OnLoss, Phase, ServerOptions};
use headway_core::decisions::engine_lock::EngineWork;
use headway_core::units::Nanos;
use headway_os::clock;
use support::{Broker, LIMIT, operation, parameters, shape, wait_until};

/// Rounds in which a fault of one in ten is as good as certain to be met: 0.9 to the power of 200 is 7e-10.
const ROUNDS: u32 = 200;

#[test]
fn an_engine_that_is_in_use_by_lease_is_granted_to_nobody_else_in_any_of_many_rounds() {
    let broker = Broker::start(|options: &mut ServerOptions| options.arbiter = parameters(1, 2, Nanos(0)));
    let one = Client::connect(&broker.socket, "one", OnLoss::Wait).unwrap();
    let two = Client::connect(&broker.socket, "two", OnLoss::Wait).unwrap();
    let (mut a, mut b) = (one.register(shape("a")).unwrap(), two.register(shape("b")).unwrap());
    let by_lease = AtomicU32::new(0);
    for round in 0..ROUNDS {
        let mut first = a.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
        wait_until("the engines are leased", || one.status().unwrap().gpus[0].leased_to.is_some());
        let granted = one.status().unwrap().counts.engines;
        let engine = first.engine(operation(EngineWork::Execute)).unwrap();
        by_lease.fetch_add(u32::from(one.status().unwrap().counts.engines == granted), Ordering::SeqCst);
        let (used, done) = (AtomicU32::new(1), AtomicU32::new(0));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let mut second = b.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
                let engine = second.engine(operation(EngineWork::Execute)).unwrap();
                let free = used.load(Ordering::SeqCst) == 0;
                done.store(1, Ordering::SeqCst);
                drop(engine);
                free
            });
            wait_until("the other one waits for the engine, or has it", || {
                let waits = |phase: &Phase| matches!(phase, Phase::Holds { waits_for, .. } if !waits_for.is_empty());
                done.load(Ordering::SeqCst) == 1 || one.status().unwrap().jobs.iter().any(|job| waits(&job.phase))
            });
            used.store(0, Ordering::SeqCst);
            drop(engine);
            assert!(other.join().unwrap(), "in round {round} the engine was granted while it was in use");
        });
        first.release(Nanos(1));
    }
    assert_eq!(by_lease.load(Ordering::SeqCst), ROUNDS, "the engine was taken by lease");
}

/// Not a test: a client in a process of its own that takes a token and an engine, and stays until it is killed.
#[test]
fn holder() {
    let Some(socket) = env::var_os("EXCLUSION_SOCKET") else { return };
    let client = Client::connect(Path::new(&socket), "holder", OnLoss::Fail).unwrap();
    let mut task = client.register(shape("held")).unwrap();
    let mut token = task.acquire(clock::now(), 0, None).unwrap();
    let _engine = token.engine(operation(EngineWork::Execute)).unwrap();
    loop {
        std::thread::park();
    }
}

#[test]
fn what_a_dead_client_held_stays_taken_until_its_gpu_work_has_ended() {
    // Longer than any test: only the end of the drain frees the token, and that never comes.
    let broker = Broker::start(|options: &mut ServerOptions| {
        options.arbiter = parameters(1, 1, Nanos(0));
        options.drain = Nanos(86_400_000_000_000);
    });
    let mut holder = Command::new(env::current_exe().unwrap())
        .args(["--exact", "holder", "--nocapture", "--test-threads=1"])
        .env("EXCLUSION_SOCKET", &broker.socket)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let client = Client::connect(&broker.socket, "next", OnLoss::Wait).unwrap();
    wait_until("the other one holds the GPU", || client.status().unwrap().gpus[0].holders.len() == 1);
    holder.kill().unwrap();
    holder.wait().unwrap();
    wait_until("the broker notices", || client.status().unwrap().counts.gone == 1);
    let status = client.status().unwrap();
    let dead = status.clients.iter().find(|client| client.name == "holder").expect("it is drained first");
    assert!(dead.draining && status.gpus[0].holders.len() == 1, "{status:?}");
    let mut task = client.register(shape("next")).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| task.acquire(clock::now(), 0, None).map(drop));
        wait_until("the next one has asked", || {
            let id = |job: &headway_broker::JobStatus| job.name == "next";
            client.status().unwrap().jobs.iter().any(id)
        });
        let jobs = client.status().unwrap().jobs;
        let phase = jobs.iter().find(|job| job.name == "next").map(|job| job.phase.clone());
        assert_eq!(phase, Some(Phase::WaitsForToken), "{jobs:?}");
        // Without the broker nobody waits any longer than for this.
        client.declare_lost(headway_core::decisions::sharing::GpuId(0)).unwrap();
        assert!(waiter.join().unwrap().is_err());
    });
}
