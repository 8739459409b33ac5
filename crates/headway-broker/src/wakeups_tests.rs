//! No wake-up is lost. In these tests a sleeper does not check again by itself for an hour, and it does not poll before it sleeps: one lost
//! wake-up ends the run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use headway_core::decisions::engine_lock::{EngineParameters, EngineWork, LockedOperation};
use headway_core::decisions::sharing::{ArbiterParameters, ClusterId, ClusterParameters};
use headway_core::decisions::token::{TokenMode, TokenParameters};
use headway_core::units::{Bytes, Nanos};
use headway_os::clock;
use headway_os::ipc::Socket;

use crate::{BrokerServer, Client, OnLoss, ServerOptions, TaskShape};

/// One more than there are tokens, so that one client waits for a token while the others take turns at one engine.
const CLIENTS: u32 = 3;
const TOKENS: u32 = 2;
const ROUNDS: u32 = 200;
/// No thread is off its CPU for that long.
const STALL: Duration = Duration::from_secs(120);

fn options(socket: std::path::PathBuf) -> ServerOptions {
    let tokens = TokenParameters { cpus: 64, per_gpu: TOKENS, mode: TokenMode::Fifo, affinity: false };
    let engines = EngineParameters::default();
    let arbiter = ArbiterParameters::new(vec![ClusterParameters::equal(1, tokens)], Some(engines));
    let mut options = ServerOptions::new(socket, arbiter);
    (options.boost, options.urgent, options.spin) = (false, false, Nanos(0));
    options.watchdog = Nanos(86_400_000_000_000);
    options
}

fn work(socket: &std::path::Path, rounds: &AtomicU32, alone: bool) {
    let client = Client::connect(socket, "worker", OnLoss::Fail).unwrap();
    client.look_for(Nanos(0));
    let shape = TaskShape {
        name: "work".to_owned(),
        cluster: ClusterId(0),
        period: Nanos(1_000),
        deadline: Nanos(50_000_000),
        state: Bytes(0),
        segments: Vec::new(),
        thread: None,
    };
    let mut task = client.register(shape).unwrap();
    let operation =
        LockedOperation { work: EngineWork::Execute, bytes: Bytes(0), predicted: Nanos(0), budget: Nanos(0) };
    for _ in 0..ROUNDS {
        let mut token = task.acquire(clock::now(), 0, None).unwrap();
        for _ in 0..2 {
            token.engine(operation).unwrap().release();
        }
        token.release(Nanos(1));
        rounds.fetch_add(1, Ordering::SeqCst);
        if alone {
            // The broker falls asleep meanwhile, and no other thread wakes it. If it does not, this round shows nothing.
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
}

#[test]
fn whoever_sleeps_is_woken_every_time() {
    run(CLIENTS);
    run(1);
}

fn run(clients: u32) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("broker");
    let mut server = BrokerServer::bind(options(socket.clone())).unwrap();
    let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let broker = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || server.run(&stop).unwrap())
    };
    let workers = (0..clients).map(|_| {
        let (socket, rounds) = (socket.clone(), Arc::clone(&rounds));
        std::thread::spawn(move || work(&socket, &rounds, clients == 1))
    });
    let workers: Vec<_> = workers.collect();
    let (mut seen, mut since) = (0, Instant::now());
    while workers.iter().any(|worker| !worker.is_finished()) {
        let now = rounds.load(Ordering::SeqCst);
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
        assert!(since.elapsed() < STALL, "a wake-up was lost in round {seen} of {}", clients * ROUNDS);
        std::thread::park_timeout(Duration::from_millis(1));
    }
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    assert_eq!(rounds.load(Ordering::SeqCst), clients * ROUNDS);
    stop.store(true, Ordering::SeqCst);
    // It sleeps like the others.
    let _call = Socket::connect(&socket);
    broker.join().unwrap();
}
