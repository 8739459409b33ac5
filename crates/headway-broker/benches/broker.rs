//! What arbitration between processes takes: a leased engine, a token, an engine handed from one client to another.
//!
//! The broker is a process of its own. Every sample is printed as n, median, p99 and max, the clock's two readings (some
//! 50 ns) included; criterion repeats the first two with its statistics. Times are this host's; no GPU is involved.

use std::env;
use std::hint::black_box;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use criterion::{Criterion, criterion_group};
use headway_broker::client::BrokerTask;
use headway_broker::{BrokerServer, Client, OnLoss, ServerOptions, TaskShape};
use headway_core::decisions::engine_lock::{EngineParameters, EngineWork, LockedOperation};
use headway_core::decisions::sharing::{ArbiterParameters, ClusterId, ClusterParameters};
use headway_core::decisions::token::{TokenMode, TokenParameters};
use headway_core::units::{Bytes, Nanos};
use headway_os::clock;

/// The role of a broker's process: its socket, and how long it spins.
const ROLE: &str = "HEADWAY_BENCH_BROKER";

fn options(socket: &Path, spin: Nanos) -> ServerOptions {
    let tokens = TokenParameters { cpus: 16, per_gpu: 2, mode: TokenMode::WorkConserving, affinity: true };
    let engines = EngineParameters::default();
    let arbiter = ArbiterParameters::new(vec![ClusterParameters::equal(1, tokens)], Some(engines));
    ServerOptions {
        spin,
        boost: false,
        watchdog: Nanos(u64::MAX / 2),
        ..ServerOptions::new(socket.to_owned(), arbiter)
    }
}

/// A broker in a process of its own, killed at the end.
struct Broker {
    child: Child,
    folder: tempfile::TempDir,
}

impl Broker {
    fn start(spin: Nanos) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let role = format!("{} {}", spin.0, folder.path().join("broker").display());
        let mut command = Command::new(env::current_exe().expect("this program"));
        let child = command.env(ROLE, role).stdin(Stdio::null()).spawn().expect("a process");
        Self { child, folder }
    }

    fn connect(&self) -> Client {
        loop {
            match Client::connect(&self.folder.path().join("broker"), "bench", OnLoss::Fail) {
                Ok(client) => return client,
                Err(_) => std::thread::yield_now(),
            }
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn task(client: &Client) -> BrokerTask<'_> {
    let shape = TaskShape {
        name: "bench".to_owned(),
        cluster: ClusterId(0),
        period: Nanos(1),
        deadline: Nanos(1_000_000),
        state: Bytes(0),
        segments: Vec::new(),
        thread: None,
    };
    client.register(shape).expect("registered")
}

const EXECUTE: LockedOperation =
    LockedOperation { work: EngineWork::Execute, bytes: Bytes(0), predicted: Nanos(0), budget: Nanos(0) };

fn show(name: &str, mut samples: Vec<u64>) {
    samples.sort_unstable();
    let at = |ppm: usize| samples[(samples.len() - 1) * ppm / 1_000_000] as f64 / 1_000.0;
    let (n, median, p99, max) = (samples.len(), at(500_000), at(990_000), at(1_000_000));
    println!("{name:<58} n {n:>7}  median {median:>8.3} us  p99 {p99:>8.3} us  max {max:>9.3} us");
}

fn timed(mut work: impl FnMut()) -> u64 {
    let start = clock::now();
    work();
    (clock::now() - start).0
}

fn leased(broker: &Broker) -> Vec<u64> {
    let client = broker.connect();
    let mut task = task(&client);
    let mut token = task.acquire(clock::now(), 0, None).expect("granted");
    while client.status().expect("a status").gpus[0].leased_to.is_none() {}
    (0..1_000_000).map(|_| timed(|| drop(black_box(token.engine(EXECUTE).expect("leased"))))).collect()
}

fn tokens(broker: &Broker, n: u32, pause: Nanos) -> Vec<u64> {
    let client = broker.connect();
    let mut task = task(&client);
    let mut sample = || {
        let start = clock::now();
        let token = task.acquire(start, 0, None).expect("granted");
        let time = (clock::now() - start).0;
        token.release(Nanos(1_000));
        if pause > Nanos::ZERO {
            clock::sleep_until(clock::now().saturating_add(pause));
        }
        time
    };
    (0..n).map(|_| sample()).collect()
}

/// From the release by one client to the other one's return from its request; the holder releases `delay` after the other
/// one began to ask.
fn hand_over(broker: &Broker, n: u64, delay: Nanos) -> Vec<u64> {
    let (one, two) = (broker.connect(), broker.connect());
    let (mut first, mut second) = (task(&one), task(&two));
    let mut holder = first.acquire(clock::now(), 0, None).expect("granted");
    let mut waiter = second.acquire(clock::now(), 0, None).expect("granted");
    // Rounds begun by the holder, asked for by the waiter, ended by it; and when the holder released.
    let [held, asked, ended, released] = [const { AtomicU64::new(0) }; 4];
    let wait = |word: &AtomicU64, round: u64| {
        while word.load(Ordering::Acquire) < round {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=n {
                let engine = holder.engine(EXECUTE).expect("granted");
                held.store(round, Ordering::Release);
                wait(&asked, round);
                clock::sleep_until(clock::now().saturating_add(delay));
                released.store(clock::now().0, Ordering::Release);
                drop(engine);
                wait(&ended, round);
            }
        });
        let sample = |round| {
            wait(&held, round);
            asked.store(round, Ordering::Release);
            let engine = waiter.engine(EXECUTE).expect("granted");
            let time = clock::now().0 - released.load(Ordering::Acquire);
            drop(engine);
            ended.store(round, Ordering::Release);
            time
        };
        (1..=n).map(sample).collect()
    })
}

fn figures() {
    println!("host: {} CPUs, {}", std::thread::available_parallelism().map_or(0, usize::from), kernel());
    let usual = Broker::start(Nanos(20_000));
    show("leased engine, acquire and release", leased(&usual));
    show("token, request to grant, one after the other", tokens(&usual, 100_000, Nanos(0)));
    show("token, request to grant, broker asleep", tokens(&usual, 5_000, Nanos(200_000)));
    show("engine hand-over, waiter asleep", hand_over(&usual, 5_000, Nanos(200_000)));
    drop(usual);
    let spinning = Broker::start(Nanos(1_000_000_000));
    show("token, request to grant, broker spins", tokens(&spinning, 100_000, Nanos(0)));
    show("engine hand-over, waiter asleep, broker spins", hand_over(&spinning, 5_000, Nanos(200_000)));
}

fn kernel() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("Linux {}", text.trim())
}

fn broker(criterion: &mut Criterion) {
    let broker = Broker::start(Nanos(20_000));
    let client = broker.connect();
    let mut task = task(&client);
    {
        let mut token = task.acquire(clock::now(), 0, None).expect("granted");
        while client.status().expect("a status").gpus[0].leased_to.is_none() {}
        criterion.bench_function("leased engine, acquire and release", |bencher| {
            bencher.iter(|| drop(black_box(token.engine(EXECUTE).expect("leased"))));
        });
    }
    criterion.bench_function("token, request, grant and release", |bencher| {
        bencher
            .iter(|| task.acquire(clock::now(), 0, Some(Duration::from_secs(60))).expect("granted").release(Nanos(1)));
    });
}

criterion_group!(benches, broker);

fn main() {
    if let Ok(role) = env::var(ROLE) {
        let (spin, socket) = role.split_once(' ').expect("a time and a socket");
        let options = options(Path::new(socket), Nanos(spin.parse().expect("a time")));
        BrokerServer::bind(options).and_then(|mut server| server.run(&AtomicBool::new(false))).expect("a broker");
        return;
    }
    // `cargo test` only compiles and starts benches; figures are for those who ask for them.
    if env::args().any(|argument| argument == "--bench") {
        figures();
    }
    benches();
    Criterion::default().configure_from_args().final_summary();
}
