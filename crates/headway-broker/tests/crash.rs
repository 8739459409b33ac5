//! Real processes that crash, hang and lie at random points, and a broker that is killed and started again among them.
//!
//! Checked all the time: no token and no engine has two holders, whoever is not hit goes on, nobody who keeps to the rules is
//! turned away, and the broker's log tells of no state that the rules of tokens and engine locks exclude. At the end: all
//! tokens are there.
//!
//! `HEADWAY_CRASHES=10000 HEADWAY_SEED=2 cargo test -p headway-broker --test crash -- --nocapture whoever` makes as many, and says
//! how many of each kind. What a run does follows from its seed, but for what the processes were at when they were hit.

#[path = "support/book.rs"]
mod book;
#[path = "support/liar.rs"]
mod liar;
#[path = "support/raw.rs"]
mod raw;
mod support;

use std::collections::BTreeMap;
use std::env;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use headway_broker::{BrokerServer, Client, OnLoss, ServerOptions, client};
use headway_core::decisions::engine_lock::EngineWork;
use headway_core::units::Nanos;
use headway_os::clock;
use headway_os::ipc::{Process, Signal, Words};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use support::{LIMIT, operation, parameters, shape, wait_until};

use self::book::Book;
use self::liar::Lie;

/// More than there are tokens.
const WORKERS: usize = 5;
const GPUS: usize = 2;
const PER_GPU: usize = 2;
/// What one client that hangs costs the others at most, beside its regular use.
const WATCHDOG: Nanos = Nanos(300_000_000);
const DRAIN: Nanos = Nanos(200_000);

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
/// Whether a worker is to stay in its next chunk until it is hit.
const LINGER: usize = EXCUSED + WORKERS;
/// Which life of each worker stays so: it may have been cut off meanwhile, and another one have come.
const INSIDE: usize = LINGER + WORKERS;
/// Microseconds that each worker has waited at most, for a token or an engine, while nothing befell it or the broker.
const WAITED: usize = INSIDE + WORKERS;
/// How often a wait was longer than the clients that hang meanwhile may cost.
const LONG_WAITS: usize = WAITED + WORKERS;
/// Counts up when a broker is killed and when its successor has taken over: odd between the two.
const BROKERS: usize = LONG_WAITS + 1;
/// How often somebody was hit, or made to stay in a chunk.
const HITS: usize = BROKERS + 1;
/// How far the liar is: 1 = waits for the next broker, 2 = which may come, 3 = has lied.
const TOLD: usize = HITS + 1;
/// Pairs of the life that was found and the one that came, where the first was not known to be dead or excused; first how
/// many.
const FOUND: usize = TOLD + 1;
const FOUND_MAX: usize = 4_096;
const WORDS: usize = FOUND + 1 + 2 * FOUND_MAX;

/// A life: the worker's number, and how often it was started.
const fn life(worker: usize, starts: u32) -> u32 {
    starts << 4 | worker as u32 | 8
}

/// Notes that `me` is where only one may be. Whoever is found there must be dead or excused, or one of the two was cut off:
/// who is stopped between its grant and this finds here the one that came after it.
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
        let at = FOUND + 1 + 2 * (number % FOUND_MAX);
        words.word(at).store(found, Ordering::SeqCst);
        words.word(at + 1).store(me, Ordering::SeqCst);
    }
}

fn leave(words: &Words, at: usize, me: u32) {
    // Whoever was taken for dead finds another one here.
    let _ = words.word(at).compare_exchange(me, 0, Ordering::SeqCst, Ordering::SeqCst);
}

fn options(socket: &Path) -> ServerOptions {
    let mut options = ServerOptions::new(socket.to_owned(), parameters(GPUS as u32, PER_GPU as u32, WATCHDOG));
    options.boost = false;
    options.urgent = false;
    options.drain = DRAIN;
    options.watchdog = WATCHDOG;
    // A client that lives comes back and says who it is, and has as long for that as the slowest machine needs.
    options.recover = Nanos(600_000_000_000);
    options.greeting = Nanos(600_000_000_000);
    options.log = Some(log_of(socket));
    // Files are full again and again, and none is dropped before the test has read it.
    (options.log_bytes, options.log_files) = (256 << 10, 100_000);
    options
}

/// Leaves the CPU to the others between two looks.
fn pause() {
    std::thread::park_timeout(Duration::from_micros(100));
}

fn log_of(socket: &Path) -> PathBuf {
    socket.with_extension("log")
}

fn var(name: &str) -> Option<String> {
    env::var(name).ok()
}

/// Ends this process when the one that started it has ended, however that was.
fn end_with_parent() {
    let parent = std::os::unix::process::parent_id();
    std::thread::spawn(move || {
        while std::os::unix::process::parent_id() == parent {
            std::thread::park_timeout(Duration::from_millis(200));
        }
        std::process::exit(1);
    });
}

/// What a process of this test is told by its environment.
struct Orders {
    socket: PathBuf,
    words: Words,
    number: usize,
    life: u32,
}

fn orders() -> Option<Orders> {
    let memory = var("CRASH_MEMORY")?;
    end_with_parent();
    let memory = File::options().read(true).write(true).open(memory).unwrap();
    let number = |name: &str| var(name).unwrap().parse().unwrap();
    Some(Orders {
        socket: PathBuf::from(var("CRASH_SOCKET")?),
        words: Words::open(memory.into(), 0, WORDS).unwrap(),
        number: number("CRASH_NUMBER") as usize,
        life: number("CRASH_LIFE"),
    })
}

/// Waits for what `wait` gives, and notes how long that was if nothing befell this worker or the broker meanwhile.
fn timed<T>(orders: &Orders, wait: impl FnOnce() -> T) -> T {
    let word = |at: usize| orders.words.word(at).load(Ordering::SeqCst);
    let (brokers, hits, start) = (word(BROKERS), word(HITS), Instant::now());
    let value = wait();
    let waited = u32::try_from(start.elapsed().as_micros()).unwrap_or(u32::MAX);
    if word(EXCUSED + orders.number) == 0 && word(BROKERS) == brokers && brokers.is_multiple_of(2) {
        orders.words.word(WAITED + orders.number).fetch_max(waited, Ordering::SeqCst);
        // The one under way at the start, and those since.
        let hanging = u64::from(word(HITS).wrapping_sub(hits)) + 1;
        let is_long = u64::from(waited) * 1_000 > hanging * (WATCHDOG.0 + DRAIN.0);
        orders.words.word(LONG_WAITS).fetch_add(u32::from(is_long), Ordering::SeqCst);
    }
    value
}

/// Not a test: the life of a worker, in a process of its own.
#[test]
fn worker() {
    let Some(orders) = orders() else { return };
    let (words, me) = (&orders.words, orders.life);
    // A broker may just be starting.
    let mut client = Client::connect(&orders.socket, "worker", OnLoss::Wait);
    while client.is_err() {
        std::thread::yield_now();
        client = Client::connect(&orders.socket, "worker", OnLoss::Wait);
    }
    let client = client.unwrap();
    // A worker that gives up waiting for a slow broker ends, as one that was cut off does.
    client.bear_silence(LIMIT);
    let Ok(mut task) = client.register(shape("work")) else { return };
    let mut random = Pcg64Mcg::seed_from_u64(u64::from(me));
    // Whoever was cut off ends, and is started again.
    while let Ok(mut token) = timed(&orders, || task.acquire(clock::now(), 0, None)) {
        let at = TOKENS + token.token().0 as usize;
        enter(words, at, me);
        let gpu = token.gpu().0 as usize;
        for _ in 0..random.next_u32() % 4 {
            let engine = (random.next_u32() % 3) as usize;
            let work = [EngineWork::Execute, EngineWork::CopyIn, EngineWork::CopyOut][engine];
            let Ok(held) = timed(&orders, || token.engine(operation(work))) else { break };
            enter(words, ENGINES + gpu * 3 + engine, me);
            for _ in 0..random.next_u32() % 200 {
                std::hint::spin_loop();
            }
            while words.word(LINGER + orders.number).load(Ordering::SeqCst) == me {
                words.word(INSIDE + orders.number).store(me, Ordering::SeqCst);
                pause();
            }
            leave(words, ENGINES + gpu * 3 + engine, me);
            held.release();
        }
        leave(words, at, me);
        token.release(Nanos(1_000));
        words.word(ROUNDS + orders.number).fetch_add(1, Ordering::SeqCst);
    }
}

/// Not a test: a client that lies, in a process of its own.
#[test]
fn liar() {
    let (Some(lie), Some(orders)) = (var("CRASH_LIE"), orders()) else { return };
    let lie = Lie::ALL[lie.parse::<usize>().unwrap()];
    let mut random = Pcg64Mcg::seed_from_u64(u64::from(orders.life));
    let step = orders.words.word(TOLD);
    let await_next = || {
        step.store(1, Ordering::SeqCst);
        wait_until("the broker has ended", || step.load(Ordering::SeqCst) == 2);
    };
    let kept = liar::tell(&orders.socket, lie, &mut random, await_next);
    step.store(3, Ordering::SeqCst);
    if kept.is_some() {
        liar::stay();
    }
}

/// Not a test: a broker in a process of its own.
#[test]
fn broker() {
    let Some(socket) = var("CRASH_BROKER") else { return };
    end_with_parent();
    BrokerServer::bind(options(Path::new(&socket))).unwrap().run(&AtomicBool::new(false)).unwrap();
}

struct Node {
    socket: PathBuf,
    words: Words,
    broker: Child,
    book: Book,
    workers: Vec<Child>,
    starts: [u32; WORKERS],
    /// Number, time of its start and life of every process ever started; a liar's life is 0.
    lives: Vec<(u32, Nanos, u32)>,
    counts: BTreeMap<&'static str, u32>,
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
        let mut node = Self {
            socket: socket.to_owned(),
            words,
            broker: start_broker(socket),
            book: Book::of(log_of(socket)),
            workers: Vec::new(),
            starts: [0; WORKERS],
            lives: Vec::new(),
            counts: BTreeMap::new(),
        };
        for worker in 0..WORKERS {
            let child = node.spawn(worker);
            node.workers.push(child);
        }
        node
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_insert(0) += 1;
    }

    fn set(&self, at: usize, value: u32) {
        self.words.word(at).store(value, Ordering::SeqCst);
    }

    fn get(&self, at: usize) -> u32 {
        self.words.word(at).load(Ordering::SeqCst)
    }

    fn tell(&self, role: &str, number: usize, life: u32) -> Command {
        let memory = format!("/proc/{}/fd/{}", std::process::id(), self.words.as_fd().as_raw_fd());
        let mut command = again(role);
        command.env("CRASH_SOCKET", &self.socket).env("CRASH_MEMORY", memory);
        command.env("CRASH_NUMBER", number.to_string()).env("CRASH_LIFE", life.to_string());
        command
    }

    fn spawn(&mut self, worker: usize) -> Child {
        self.starts[worker] += 1;
        let me = life(worker, self.starts[worker]);
        self.set(LIVES + worker, me);
        self.set(EXCUSED + worker, 0);
        let command = self.tell("worker", worker, me);
        self.begin(command, me)
    }

    fn begin(&mut self, mut command: Command, life: u32) -> Child {
        let born = clock::now();
        let child = command.spawn().unwrap();
        self.lives.push((child.id(), born, life));
        child
    }

    /// Lives that a broker cut off, and whether first as they held something for too long. One that did so is refused when
    /// it comes again.
    fn cut_off(&self) -> BTreeMap<u32, bool> {
        let mut cut_off = BTreeMap::new();
        for cut in &self.book.cuts {
            let is = |(pid, born, _): &&(u32, Nanos, u32)| *pid == cut.pid && *born <= cut.now;
            if let Some((.., life)) = self.lives.iter().rev().find(is).filter(|(.., life)| *life != 0) {
                cut_off.entry(*life).or_insert(cut.hung);
            }
        }
        cut_off
    }

    /// Kills a worker; another one takes its place.
    fn replace(&mut self, worker: usize) {
        self.set(EXCUSED + worker, 1);
        let _ = self.workers[worker].kill();
        self.workers[worker].wait().unwrap();
        let me = self.get(LIVES + worker);
        if (ENGINES..TOKENS).any(|at| self.get(at) == me) {
            self.count("of those killed, inside a chunk");
        }
        if (TOKENS..ROUNDS).any(|at| self.get(at) == me) {
            self.count("of those killed, with a token");
        }
        self.workers[worker] = self.spawn(worker);
    }

    /// Waits until `worker` has made `more` rounds; one that has ended, as it was cut off, is started again.
    fn await_rounds(&mut self, worker: usize, more: u32) {
        let mut from = self.get(ROUNDS + worker);
        let start = Instant::now();
        while self.get(ROUNDS + worker).wrapping_sub(from) < more {
            self.revive(worker, &mut from);
            if start.elapsed() >= LIMIT {
                panic!("worker {worker} is stuck: {}", self.describe());
            }
            pause();
        }
    }

    fn revive(&mut self, worker: usize, from: &mut u32) {
        if self.workers[worker].try_wait().unwrap().is_some() {
            self.replace(worker);
            *from = self.get(ROUNDS + worker);
        }
    }

    /// Has `worker` stay in a chunk, and waits until it is there.
    fn await_chunk(&mut self, worker: usize) {
        let start = Instant::now();
        loop {
            let me = self.get(LIVES + worker);
            self.set(LINGER + worker, me);
            if self.get(INSIDE + worker) == me {
                return;
            }
            self.revive(worker, &mut 0);
            if start.elapsed() >= LIMIT {
                panic!("worker {worker} gets no engine: {}", self.describe());
            }
            pause();
        }
    }

    /// Who is where, for whoever looks for the cause.
    fn describe(&mut self) -> String {
        let mut text = format!("{:?}\n", client::status(&self.socket));
        let mut roster = self.socket.as_os_str().to_owned();
        roster.push(".clients");
        text += &format!("roster: {:?}\n", std::fs::read_to_string(&roster));
        for worker in 0..WORKERS {
            let pid = self.workers[worker].id();
            let ended = self.workers[worker].try_wait();
            text += &format!("worker {worker}: process {pid}, {ended:?}, lingers {:#x}\n", self.get(LINGER + worker));
            for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
                let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
                let stat = read("stat");
                let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
                text += &format!("  {}: {state:?} {} {}\n", read("comm").trim(), read("wchan"), read("syscall").trim());
            }
        }
        text
    }

    fn kill_broker(&mut self) {
        self.broker.kill().unwrap();
        self.broker.wait().unwrap();
        self.set(BROKERS, (self.get(BROKERS) + 1) | 1);
        self.book.close();
        self.count("brokers killed");
    }

    fn restart_broker(&mut self) {
        self.kill_broker();
        self.broker = start_broker(&self.socket);
    }

    /// Stops a worker; the others go on, whatever it holds.
    fn stop(&mut self, worker: usize) -> Option<Process> {
        self.count("workers stopped");
        self.set(EXCUSED + worker, 1);
        let process = Process::open(self.workers[worker].id()).unwrap();
        process.signal(Signal::Stop).ok().map(|()| process)
    }

    fn hang(&mut self, worker: usize, random: &mut Pcg64Mcg) {
        let Some(process) = self.stop(worker) else { return self.replace(worker) };
        self.await_rounds((worker + 1) % WORKERS, 3);
        self.set(LINGER + worker, 0);
        match random.next_u32() % 3 {
            0 => self.count("of those stopped, killed so"),
            1 => process.signal(Signal::Continue).unwrap(),
            _ => {
                process.signal(Signal::Continue).unwrap();
                // Back among the others; what it held may be another's by now.
                return self.await_rounds(worker, 1);
            }
        }
        self.replace(worker);
    }

    fn lie(&mut self, worker: usize, random: &mut Pcg64Mcg) {
        let number = random.next_u32() as usize % Lie::ALL.len();
        self.set(TOLD, 0);
        let mut command = self.tell("liar", 0, random.next_u32());
        command.env("CRASH_LIE", number.to_string());
        let mut child = self.begin(command, 0);
        self.count(Lie::ALL[number].name());
        if Lie::ALL[number] == Lie::Greeting {
            // It lies to a broker that waits for one who does not come before.
            self.await_lie(&mut child, 1);
            let other = (worker + 1) % WORKERS;
            let stopped = self.stop(other);
            self.kill_broker();
            self.set(TOLD, 2);
            self.broker = start_broker(&self.socket);
            self.await_lie(&mut child, 3);
            if let Some(process) = stopped {
                process.signal(Signal::Continue).unwrap();
            }
            self.await_rounds(other, 1);
        }
        self.await_lie(&mut child, 3);
        self.await_rounds(worker, 3);
        let _ = child.kill();
        let status = child.wait().unwrap();
        assert!(status.success() || status.signal().is_some(), "{:?}: {status}", Lie::ALL[number]);
    }

    fn await_lie(&self, child: &mut Child, step: u32) {
        wait_until("the liar has lied", || self.get(TOLD) >= step || child.try_wait().unwrap().is_some());
    }

    /// Kills the broker while others are hit too.
    fn restart(&mut self, worker: usize, random: &mut Pcg64Mcg) {
        match random.next_u32() % 5 {
            0 => {
                // Nobody is granted anything before the stopped one is back or dead.
                let process = self.stop(worker);
                self.restart_broker();
                self.set(LINGER + worker, 0);
                if let Some(process) = process.filter(|_| random.next_u32().is_multiple_of(2)) {
                    process.signal(Signal::Continue).unwrap();
                    return self.await_rounds(worker, 1);
                }
                self.replace(worker);
            }
            1 => {
                self.await_chunk(worker);
                self.restart_broker();
                self.set(LINGER + worker, 0);
            }
            2 => {
                self.kill_broker();
                self.replace(worker);
                self.broker = start_broker(&self.socket);
            }
            3 => {
                self.restart_broker();
                for _ in 0..random.next_u32() % 2_000_000 {
                    std::hint::spin_loop();
                }
                // It may be at any point of its start and of taking over.
                self.restart_broker();
            }
            _ => self.restart_broker(),
        }
    }

    fn hit(&mut self, random: &mut Pcg64Mcg) {
        let worker = (random.next_u32() as usize) % WORKERS;
        // A round may end without the broker; after the second, a new one has taken over.
        self.await_rounds(worker, 2 + random.next_u32() % 2);
        self.set(BROKERS, self.get(BROKERS).next_multiple_of(2));
        self.words.word(HITS).fetch_add(1, Ordering::SeqCst);
        let (kind, inside) = (random.next_u32() % 40, random.next_u32().is_multiple_of(3));
        if inside && kind >= 8 {
            self.await_chunk(worker);
        }
        // Somewhere within a round.
        for _ in 0..random.next_u32() % 20_000 {
            std::hint::spin_loop();
        }
        match kind {
            0..=2 => self.restart(worker, random),
            3..=7 => self.lie(worker, random),
            8..=13 => self.hang(worker, random),
            _ => {
                self.count("workers killed");
                self.replace(worker);
            }
        }
        self.set(LINGER + worker, 0);
    }

    /// What the run has found.
    fn judge(&mut self) {
        self.kill_broker();
        let found = self.get(FOUND) as usize;
        assert!(found <= FOUND_MAX, "{found} were found");
        let (mut late, cut_off) = (0, self.cut_off());
        for pair in 0..found {
            let [first, second] = [0, 1].map(|at| self.get(FOUND + 1 + 2 * pair + at));
            late += u32::from(!cut_off.contains_key(&first));
            let one = cut_off.contains_key(&first) || cut_off.contains_key(&second);
            assert!(one, "lives {first:#x} and {second:#x} were alive and served at once");
        }
        let turned_away: Vec<_> = cut_off.iter().filter(|(_, hung)| !**hung).collect();
        assert!(turned_away.is_empty(), "kept to the rules and were turned away: {turned_away:x?}");
        let longest = (0..WORKERS).map(|worker| self.get(WAITED + worker)).max().unwrap_or(0);
        println!(
            "{} log entries checked, {} starts of brokers, {} full files; {found} lives found where another came, one of the two cut off: {late} times who came",
            self.book.inputs, self.book.starts, self.book.rotations
        );
        println!(
            "longest wait {longest} us; {} were above the {} us that each client hit meanwhile may cost",
            self.get(LONG_WAITS),
            (WATCHDOG.0 + DRAIN.0) / 1_000
        );
        self.counts.iter().for_each(|(what, count)| println!("{count:>6} {what}"));
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
fn whoever_crashes_hangs_or_lies_wherever_the_others_go_on_and_nothing_is_lost() {
    let crashes: u32 = var("HEADWAY_CRASHES").map_or(200, |text| text.parse().unwrap());
    let seed: u64 = var("HEADWAY_SEED").map_or(1, |text| text.parse().unwrap());
    println!("{crashes} crashes, seed {seed}");
    let start = Instant::now();
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::start(&folder.path().join("broker"));
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    for crash in 0..crashes {
        node.hit(&mut random);
        if crash % 500 == 499 {
            println!("{} after {} s", crash + 1, start.elapsed().as_secs());
        }
    }
    (0..WORKERS).for_each(|worker| node.await_rounds(worker, 3));
    for worker in 0..WORKERS {
        node.set(EXCUSED + worker, 1);
        node.workers[worker].kill().unwrap();
        node.workers[worker].wait().unwrap();
    }
    wait_until("everything is given back", || {
        client::status(&node.socket).is_ok_and(|status| {
            status.jobs.is_empty() && status.clients.is_empty() && status.gpus.iter().all(|gpu| gpu.holders.is_empty())
        })
    });
    // No token is lost: all can be held at once, and on each every engine.
    let last = Client::connect(&node.socket, "last", OnLoss::Fail).unwrap();
    let mut tasks: Vec<_> = (0..GPUS * PER_GPU).map(|_| last.register(shape("last")).unwrap()).collect();
    let mut tokens: Vec<_> = tasks.iter_mut().map(|task| task.acquire(clock::now(), 0, Some(LIMIT)).unwrap()).collect();
    for token in &mut tokens {
        for work in [EngineWork::Execute, EngineWork::CopyIn, EngineWork::CopyOut] {
            assert!(token.engine(operation(work)).unwrap().is_locked());
        }
    }
    drop(tokens);
    drop(tasks);
    drop(last);
    node.judge();
    println!("{} s", start.elapsed().as_secs());
}
