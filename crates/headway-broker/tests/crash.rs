//! Real processes that are killed, stopped and continued at random points, and the broker among them.
//!
//! `HEADWAY_CRASHES=10000 cargo test -p headway-broker --test crash` makes as many; the seed is `HEADWAY_SEED`.

mod support;

use std::collections::BTreeSet;
use std::env;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use headway_broker::{Client, OnLoss, Options, Server, client};
use headway_core::engine_lock::Work;
use headway_core::units::Nanos;
use headway_os::clock;
use headway_os::ipc::{Process, Signal, Words};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use support::{LIMIT, operation, parameters, shape, wait_until};

const WORKERS: usize = 4;
const GPUS: usize = 2;
const PER_GPU: usize = 2;

// Words that all processes share.
/// Who uses each engine: number of the worker's life, 0 = nobody.
const ENGINES: usize = 0;
/// Who holds each token.
const TOKENS: usize = ENGINES + GPUS * 3;
/// Rounds that each worker has made.
const ROUNDS: usize = TOKENS + GPUS * PER_GPU;
/// What each worker is at: lives of the excused ones may be found where another one comes.
const LIVES: usize = ROUNDS + WORKERS;
/// Whether a life may be found: its process was killed or stopped.
const EXCUSED: usize = LIVES + WORKERS;
/// Lives that were found where another one came, though they were not known to be dead or excused; first how many.
const FOUND: usize = EXCUSED + WORKERS;
const FOUND_MAX: usize = 4_096;
const WORDS: usize = FOUND + 1 + FOUND_MAX;

/// A life: the worker's number, and how often it was started.
const fn life(worker: usize, starts: u32) -> u32 {
    starts << 4 | worker as u32 | 8
}

/// Notes that `me` is where only one may be. Whoever is found there must be dead or excused.
fn enter(words: &Words, at: usize, me: u32) {
    let found = words.word(at).swap(me, Ordering::SeqCst);
    if found == 0 || found == me {
        return;
    }
    let worker = (found & 7) as usize;
    // In this order: a life that is replaced between the two is excused before and over after.
    let excused = words.word(EXCUSED + worker).load(Ordering::SeqCst) != 0;
    let lives = words.word(LIVES + worker).load(Ordering::SeqCst) == found;
    if lives && !excused {
        let number = words.word(FOUND).fetch_add(1, Ordering::SeqCst) as usize;
        words.word(FOUND + 1 + number % FOUND_MAX).store(found, Ordering::SeqCst);
    }
}

fn leave(words: &Words, at: usize, me: u32) {
    // Whoever was taken for dead finds another one here.
    let _ = words.word(at).compare_exchange(me, 0, Ordering::SeqCst, Ordering::SeqCst);
}

fn options(socket: &Path) -> Options {
    let mut options = Options::new(socket.to_owned(), parameters(GPUS as u32, PER_GPU as u32, Nanos(300_000_000)));
    options.boost = false;
    options.urgent = false;
    options.drain = Nanos(200_000);
    options.watchdog = Nanos(300_000_000);
    // Who is alive comes back, however slow the machine is.
    options.recover = Nanos(600_000_000_000);
    options.log = Some(socket.with_extension("log"));
    options
}

fn var(name: &str) -> Option<String> {
    env::var(name).ok()
}

/// Not a test: the life of a worker, in a process of its own.
#[test]
fn worker() {
    let (Some(socket), Some(memory)) = (var("CRASH_SOCKET"), var("CRASH_MEMORY")) else { return };
    let number: usize = var("CRASH_WORKER").unwrap().parse().unwrap();
    let me: u32 = var("CRASH_LIFE").unwrap().parse().unwrap();
    let words = Words::open(File::options().read(true).write(true).open(memory).unwrap().into(), 0, WORDS).unwrap();
    // A broker may just be starting.
    let mut client = Client::connect(Path::new(&socket), "worker", OnLoss::Wait);
    while client.is_err() {
        std::thread::yield_now();
        client = Client::connect(Path::new(&socket), "worker", OnLoss::Wait);
    }
    let client = client.unwrap();
    let Ok(mut task) = client.register(shape("work")) else { return };
    let mut random = Pcg64Mcg::seed_from_u64(u64::from(me));
    // Whoever was cut off ends, and is started again.
    while let Ok(mut token) = task.acquire(clock::now(), 0, None) {
        let at = TOKENS + token.token().0 as usize;
        enter(&words, at, me);
        let gpu = token.gpu().0 as usize;
        for _ in 0..random.next_u32() % 4 {
            let engine = (random.next_u32() % 3) as usize;
            let work = [Work::Execute, Work::CopyIn, Work::CopyOut][engine];
            let Ok(held) = token.engine(operation(work)) else { break };
            enter(&words, ENGINES + gpu * 3 + engine, me);
            for _ in 0..random.next_u32() % 200 {
                std::hint::spin_loop();
            }
            leave(&words, ENGINES + gpu * 3 + engine, me);
            held.release();
        }
        leave(&words, at, me);
        token.release(Nanos(1_000));
        words.word(ROUNDS + number).fetch_add(1, Ordering::SeqCst);
    }
}

/// Not a test: a broker in a process of its own.
#[test]
fn broker() {
    let Some(socket) = var("CRASH_BROKER") else { return };
    Server::bind(options(Path::new(&socket))).unwrap().run(&AtomicBool::new(false)).unwrap();
}

struct Node {
    socket: std::path::PathBuf,
    words: Words,
    broker: Child,
    workers: Vec<Child>,
    starts: [u32; WORKERS],
    /// Process and life of every worker ever started.
    lives: Vec<(u32, u32)>,
}

fn again(role: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", role, "--nocapture", "--test-threads=1"]).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

fn start_broker(socket: &Path) -> Child {
    again("broker").env("CRASH_BROKER", socket).spawn().unwrap()
}

impl Node {
    fn start(socket: &Path) -> Self {
        let words = Words::create("crash test", 0, WORDS).unwrap();
        let broker = start_broker(socket);
        let mut node = Self {
            socket: socket.to_owned(),
            words,
            broker,
            workers: Vec::new(),
            starts: [0; WORKERS],
            lives: Vec::new(),
        };
        for worker in 0..WORKERS {
            let child = node.spawn(worker);
            node.workers.push(child);
        }
        node
    }

    fn spawn(&mut self, worker: usize) -> Child {
        self.starts[worker] += 1;
        let me = life(worker, self.starts[worker]);
        self.words.word(LIVES + worker).store(me, Ordering::SeqCst);
        self.words.word(EXCUSED + worker).store(0, Ordering::SeqCst);
        let memory = format!("/proc/{}/fd/{}", std::process::id(), self.words.as_fd().as_raw_fd());
        let child = again("worker")
            .env("CRASH_SOCKET", &self.socket)
            .env("CRASH_MEMORY", memory)
            .env("CRASH_WORKER", worker.to_string())
            .env("CRASH_LIFE", me.to_string())
            .spawn()
            .unwrap();
        self.lives.push((child.id(), me));
        child
    }

    /// Processes that a broker has cut off, as they held something for too long.
    fn cut(&self) -> BTreeSet<u32> {
        let text = std::fs::read_to_string(self.socket.with_extension("log")).unwrap();
        // A broker that is killed may leave half a line.
        let lines = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        lines.filter(|line| line["cut"].is_u64()).filter_map(|line| u32::try_from(line["pid"].as_u64()?).ok()).collect()
    }

    fn rounds(&self, worker: usize) -> u32 {
        self.words.word(ROUNDS + worker).load(Ordering::SeqCst)
    }

    fn replace(&mut self, worker: usize) {
        self.words.word(EXCUSED + worker).store(1, Ordering::SeqCst);
        let _ = self.workers[worker].kill();
        self.workers[worker].wait().unwrap();
        self.workers[worker] = self.spawn(worker);
    }

    /// Waits until `worker` has made `more` rounds; one that has ended, as it was cut off, is started again.
    fn await_rounds(&mut self, worker: usize, more: u32) {
        let mut from = self.rounds(worker);
        let start = std::time::Instant::now();
        while self.rounds(worker).wrapping_sub(from) < more {
            if self.workers[worker].try_wait().unwrap().is_some() {
                self.replace(worker);
                from = self.rounds(worker);
            }
            if start.elapsed() >= LIMIT {
                panic!("worker {worker} is stuck: {:?}", client::status(&self.socket));
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for child in self.workers.iter_mut().chain([&mut self.broker]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn whoever_is_killed_or_stopped_wherever_the_others_go_on_and_nothing_is_lost() {
    let crashes: u32 = var("HEADWAY_CRASHES").map_or(200, |text| text.parse().unwrap());
    let seed: u64 = var("HEADWAY_SEED").map_or(1, |text| text.parse().unwrap());
    println!("{crashes} crashes, seed {seed}");
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::start(&folder.path().join("broker"));
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let counts: [AtomicU32; 3] = Default::default();
    for _ in 0..crashes {
        let worker = (random.next_u32() as usize) % WORKERS;
        node.await_rounds(worker, 1 + random.next_u32() % 3);
        // Somewhere within a round.
        for _ in 0..random.next_u32() % 20_000 {
            std::hint::spin_loop();
        }
        match random.next_u32() % 40 {
            0 | 1 => {
                counts[0].fetch_add(1, Ordering::Relaxed);
                node.broker.kill().unwrap();
                node.broker.wait().unwrap();
                node.broker = start_broker(&node.socket);
            }
            2..=5 => {
                counts[1].fetch_add(1, Ordering::Relaxed);
                node.words.word(EXCUSED + worker).store(1, Ordering::SeqCst);
                let process = Process::open(node.workers[worker].id()).unwrap();
                if process.tell(Signal::Stop).is_ok() {
                    // The others go on, whatever the stopped one holds.
                    node.await_rounds((worker + 1) % WORKERS, 3);
                    let _ = process.tell(Signal::Continue);
                }
                if random.next_u32().is_multiple_of(2) {
                    node.replace(worker);
                }
            }
            _ => {
                counts[2].fetch_add(1, Ordering::Relaxed);
                node.replace(worker);
            }
        }
    }
    (0..WORKERS).for_each(|worker| node.await_rounds(worker, 3));
    for worker in 0..WORKERS {
        node.words.word(EXCUSED + worker).store(1, Ordering::SeqCst);
        node.workers[worker].kill().unwrap();
        node.workers[worker].wait().unwrap();
    }
    wait_until("everything is given back", || {
        client::status(&node.socket).is_ok_and(|status| {
            status.jobs.is_empty() && status.clients.is_empty() && status.gpus.iter().all(|gpu| gpu.holders.is_empty())
        })
    });
    // No token is lost: all can be held at once.
    let last = Client::connect(&node.socket, "last", OnLoss::Fail).unwrap();
    let mut tasks: Vec<_> = (0..GPUS * PER_GPU).map(|_| last.register(shape("last")).unwrap()).collect();
    let tokens: Vec<_> = tasks.iter_mut().map(|task| task.acquire(clock::now(), 0, Some(LIMIT)).unwrap()).collect();
    assert_eq!(tokens.len(), GPUS * PER_GPU);
    drop(tokens);
    let counts_of_broker = last.status().unwrap().counts;
    let found = node.words.word(FOUND).load(Ordering::SeqCst) as usize;
    assert!(found <= FOUND_MAX, "{found} were found");
    let cut = node.cut();
    for at in 0..found {
        let found = node.words.word(FOUND + 1 + at).load(Ordering::SeqCst);
        let pid = node.lives.iter().find(|(_, life)| *life == found).map(|(pid, _)| *pid);
        assert!(pid.is_some_and(|pid| cut.contains(&pid)), "life {found:#x}, process {pid:?}, was alive and served");
    }
    println!("{} processes cut off, {found} of them found", cut.len());
    println!("{counts:?} brokers killed, workers stopped, workers killed; {:?}", counts_of_broker);
}
