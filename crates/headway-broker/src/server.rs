//! The broker: one thread that decides, over sockets for control and shared pages for everything frequent.

mod about;
mod claims;
mod control;
mod door;
mod driver;
mod gpus;
mod journal;
mod mps_daemon;
mod own_files;
mod owners;
mod pages;
mod priority;
mod rings;
mod session;
mod socket_files;
mod status;

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use headway_core::decisions::broker::BrokerLimits;
use headway_core::decisions::broker::Input;
use headway_core::decisions::broker::pace::Pace;
use headway_core::decisions::sharing::{ArbiterParameters, ClientId};
use headway_core::units::{Nanos, PPM};
use headway_os::ipc::{Poller, SocketPacket, Words};
use headway_os::{clock, event};

use self::door::Door;
use self::driver::BookDriver;
use self::gpus::Watch;
pub use self::gpus::{GpuProbe, Health};
pub use self::journal::{DiskFaults, Tell};
use self::mps_daemon::Daemon;
use self::socket_files::SocketFiles;
use crate::error::ServerError;
use crate::layout::{ASLEEP, BEAT, GPUS_MAX, NOTICE_LONGS, NOTICE_WORDS};
use crate::message::BYTES_MAX;
use crate::mps::{self, MpsError, MpsOptions};
use crate::protocol::handshake;

/// Which users may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserAccess {
    /// Only the broker's user.
    Private,
    /// Users in the group of the socket's folder.
    Group,
}

/// What a broker is started with.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where it listens.
    pub socket: PathBuf,
    /// Which users may connect.
    pub access: UserAccess,
    /// The GPUs and how they are shared.
    pub arbiter: ArbiterParameters,
    pub limits: BrokerLimits,
    /// Names of the GPUs that are unique on this machine (UUIDs). No other broker may arbitrate one of them at the same time.
    /// A GPU that is only a number in this broker, as where the driver is not there, is in no list: only this broker has it.
    pub claims: Vec<String>,
    /// Start even where a process of another user has claimed one of the GPUs.
    pub despite_claims: bool,
    /// How long a connection may take to identify itself.
    pub greeting: Nanos,
    /// The highest real-time priority that threads of other users than the broker's may get; `None` = none.
    pub lend_realtime: Option<i32>,
    /// How long a GPU may still work for a process that has ended. Only then the broker gives its tokens and engines to others.
    pub drain: Nanos,
    /// A client that holds a token for longer is cut off.
    pub watchdog: Nanos,
    /// How long a broker that is started again waits for its predecessor's clients.
    pub recover: Nanos,
    /// How long it looks for new requests before it sleeps, at most.
    pub spin: Nanos,
    /// Most of the time that it spends so, in parts per million of one CPU; at once at most 20 ms.
    pub spin_share_ppm: u64,
    /// Whether the broker's thread goes before others: the class above all holders, or a nice value, where the kernel permits.
    pub urgent: bool,
    /// Whether the priority of holders follows their jobs, where the kernel permits.
    pub boost: bool,
    /// Tells whether a GPU is still there; `None` = the owner alone says so.
    pub probe: Option<GpuProbe>,
    /// File for every input of the broker's decisions and what it decided, one JSON document a line; continued if it exists. A broker that is started again remembers from it what the clients that are left cannot tell: see the crate's
    /// page.
    pub log: Option<PathBuf>,
    /// Size of the log's file at which another one is begun, with a snapshot.
    pub log_bytes: u64,
    /// Files of the log that are kept, the present one included; at least one.
    pub log_files: u32,
    /// Whether the broker grants nothing while it cannot write its record, for example on a full disk.
    pub must_remember: bool,
    /// Gets each problem that does not end the broker; `None` = problems are only in the status.
    pub tell: Option<Tell>,
    /// Runs an MPS daemon for the broker's user.
    pub mps: Option<MpsOptions>,
    /// A disk that is full or broken, for tests.
    pub faults: Option<DiskFaults>,
}

impl ServerOptions {
    /// The usual times, for a private broker. How long it stays awake depends on how many CPUs it may use.
    #[must_use]
    pub fn new(socket: PathBuf, arbiter: ArbiterParameters) -> Self {
        Self {
            socket,
            access: UserAccess::Private,
            arbiter,
            limits: BrokerLimits::default(),
            claims: Vec::new(),
            despite_claims: false,
            greeting: Nanos(5_000_000_000),
            lend_realtime: None,
            drain: Nanos(20_000_000),
            watchdog: Nanos(10_000_000_000),
            recover: Nanos(5_000_000_000),
            spin: if is_roomy() { SPIN_ROOMY } else { SPIN },
            spin_share_ppm: if is_roomy() { PPM } else { SPIN_SHARE_PPM },
            urgent: true,
            boost: true,
            probe: None,
            log: None,
            log_bytes: LOG_BYTES,
            log_files: LOG_FILES,
            must_remember: false,
            tell: None,
            mps: None,
            faults: None,
        }
    }
}

/// How long a broker looks for requests where CPUs are few: a little longer than waking it takes, and for a quarter of one.
const SPIN: Nanos = Nanos(200_000);
const SPIN_SHARE_PPM: u64 = 250_000;
/// Where there are many, it stays awake as long as it is asked at least every ten milliseconds; in virtual machines, a CPU
/// that has gone idle takes 50 to 600 us to wake. The price is one CPU while GPUs are in use.
const SPIN_ROOMY: Nanos = Nanos(10_000_000);
const CPUS_ROOMY: usize = 8;

/// Read again in less than a second.
const LOG_BYTES: u64 = 64 << 20;
const LOG_FILES: u32 = 4;

fn is_roomy() -> bool {
    std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() >= CPUS_ROOMY)
}

/// Messages and entries of one client handled before the next client's turn.
const SHARE: usize = 32;
/// How long messages are handled before pages are read again. It is less than the part of the watchdog that excuses clients, or floods would.
const MESSAGES_MAX: Nanos = Nanos(10_000_000);
const MESSAGES_PER_WATCHDOG: u64 = 16;
/// Sleeps at most this long, so that a request to stop is seen.
const SLEEP_MAX: Nanos = Nanos(if cfg!(test) { 3_600_000_000_000 } else { 250_000_000 });

/// A broker that listens. Everything ends when it is dropped; clients then wait for the next one.
pub struct BrokerServer {
    options: ServerOptions,
    door: Door,
    poller: Poller,
    driver: BookDriver,
    watch: Watch,
    ready: Vec<u64>,
    /// The first whose messages the last turn left for the next one.
    unheard: u64,
    mps: Option<Daemon>,
    /// When the last [`step`](Self::step) looked.
    looked: Option<Nanos>,
    /// Given up last: until then no other broker takes the place.
    _files: SocketFiles,
}

/// What a number in the poller stands for.
const KINDS: u64 = 4;
const LISTENER: u64 = 0;
const SOCKET: u64 = 1;
const BELL: u64 = 2;
const PROCESS: u64 = 3;
/// The bell of the thread that looks after GPUs: no client has the number 0.
const GPUS: u64 = 1;
/// The guardian of the MPS daemon, and that daemon.
const MPS_GUARDIAN: u64 = 2;
const MPS_DAEMON: u64 = 3;

impl BrokerServer {
    /// Listens.
    ///
    /// # Errors
    /// [`ServerError`] with the cause.
    pub fn bind(mut options: ServerOptions) -> Result<Self, ServerError> {
        let gpus = options.arbiter.clusters.iter().map(|cluster| cluster.gpus.len()).sum();
        if gpus > GPUS_MAX {
            return Err(ServerError::TooManyGpus { gpus, max: GPUS_MAX });
        }
        let mut files = SocketFiles::take(&options)?;
        let descriptors = allow_descriptors();
        if options.limits.descriptors.is_none() && descriptors < door::LEAST {
            return Err(ServerError::TooFewDescriptors { limit: descriptors, least: door::LEAST });
        }
        options.limits.descriptors.get_or_insert_with(|| descriptors.saturating_sub(door::OWN));
        let epoch = files.next_epoch(options.must_remember)?;
        // A client that connects before the log is read finds no broker, and tries again.
        let notice = Words::create("headway notice", NOTICE_LONGS, NOTICE_WORDS)?;
        notice.forbid_other_writers()?;
        let mut driver = BookDriver::new(&options, notice, epoch, clock::now())?;
        let poller = Poller::new()?;
        let mps = mps_daemon(&options, &poller)?;
        driver.about.mps = mps.as_ref().and_then(Daemon::status);
        let door = Door::new(files.listen(options.access)?, &poller)?;
        let watch = Watch::begin(options.probe.clone(), driver.book.gpus().to_vec())?;
        poller.add_bell(&watch.bell, GPUS)?;
        Ok(Self {
            options,
            door,
            poller,
            driver,
            watch,
            ready: Vec::new(),
            unheard: 0,
            mps,
            looked: None,
            _files: files,
        })
    }

    /// Arbitrates until `stop` is set.
    ///
    /// # Errors
    /// [`ServerError`] when the system fails; never because of what a client does, or of a disk that is full or broken.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<(), ServerError> {
        if self.options.urgent {
            self.driver.about.scheduling = priority::hurry(self.options.spin_share_ppm);
        }
        let mut pace = Pace::new(self.options.spin, self.options.spin_share_ppm, clock::now());
        let mut turns = 0u32;
        let mut expected = clock::now();
        while !stop.load(Ordering::Relaxed) {
            let now = self.look(None);
            self.heard_nobody(now, now.saturating_sub(expected));
            let busy = self.turn(now);
            expected = clock::now();
            if busy {
                pace.found(clock::now());
                turns = turns.wrapping_add(1);
                // However busy the pages are, control messages and deaths are seen.
                if turns.is_multiple_of(SHARE as u32) {
                    self.poll(Duration::ZERO)?;
                    self.driver.priority.keep_guard();
                }
                continue;
            }
            let now = clock::now();
            if pace.looks_on(now) {
                std::hint::spin_loop();
                continue;
            }
            expected = expected.saturating_add(self.sleep()?);
            pace.slept(now, clock::now());
            self.driver.priority.keep_guard();
        }
        self.driver.end(clock::now());
        Ok(())
    }

    /// Does what is to be done now, and returns without sleeping: for programs with a loop of their own.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn step(&mut self) -> Result<(), ServerError> {
        let now = self.look(None);
        // It hears nobody until the next look.
        let before = self.looked.replace(now).unwrap_or(now);
        self.heard_nobody(now, now.saturating_sub(before));
        self.turn(now);
        self.poll(Duration::ZERO)
    }

    /// Finds what a client has written, or all have, and then reads the clock.
    fn look(&mut self, client: Option<ClientId>) -> Nanos {
        self.driver.look(client);
        clock::now()
    }

    /// The broker was late by this much: it was stopped, or got no CPU, and has not heard its clients.
    fn heard_nobody(&mut self, now: Nanos, late: Nanos) {
        if self.driver.feed(now, &Input::Late { by: late }) {
            event!(
                WARN,
                "headway::broker",
                "the broker itself was late: nobody is cut off for a watchdog",
                late = late
            );
        }
    }

    /// Handles what the last look found; whether there was anything to do.
    fn turn(&mut self, now: Nanos) -> bool {
        self.driver.notice.long(BEAT).store(now.0.max(1), Ordering::Relaxed);
        // Before the first grant: the next broker waits for every holder.
        self.driver.write_down(now);
        let busy = self.driver.turn(now, SHARE);
        for client in self.driver.take_removed() {
            self.forget(client);
        }
        busy
    }

    /// Sleeps until a client rings, connects, writes or ends, or until something is due: how long that may take.
    fn sleep(&mut self) -> Result<Nanos, ServerError> {
        let asleep = self.driver.notice.word(ASLEEP);
        let may = handshake::may_sleep(|| asleep.store(1, Ordering::Relaxed), || self.driver.is_idle());
        let bound = if may {
            let due = self.driver.wake_time().into_iter().chain(self.door.wake_time()).min();
            let wake = due.map_or(SLEEP_MAX, |time| time.saturating_sub(clock::now()));
            Duration::from_nanos(wake.0.min(SLEEP_MAX.0))
        } else {
            Duration::ZERO
        };
        self.poll(bound)?;
        Ok(Nanos(u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX)))
    }

    fn poll(&mut self, bound: Duration) -> Result<(), ServerError> {
        let mut ready = std::mem::take(&mut self.ready);
        let waited = self.poller.wait(Some(bound), &mut ready);
        self.driver.notice.word(ASLEEP).store(0, Ordering::Relaxed);
        let first = ready.iter().position(|number| *number == self.unheard);
        ready.rotate_left(first.unwrap_or(0));
        self.unheard = 0;
        let most = MESSAGES_MAX.min(Nanos(self.options.watchdog.0 / MESSAGES_PER_WATCHDOG));
        let until = clock::now().saturating_add(most);
        let mut served = false;
        for number in &ready {
            match *number {
                GPUS => {
                    for gpu in self.watch.take_lost() {
                        self.driver.lose(clock::now(), None, gpu);
                    }
                    continue;
                }
                MPS_GUARDIAN | MPS_DAEMON => {
                    self.mps_ended(*number);
                    continue;
                }
                _ => {}
            }
            let client = ClientId(number / KINDS);
            match number % KINDS {
                LISTENER => self.accept(),
                SOCKET if !served || clock::now() < until => {
                    self.converse(client, until);
                    served = true;
                }
                // Its messages are there at the next turn, which begins with them.
                SOCKET if self.unheard == 0 => self.unheard = *number,
                SOCKET => {}
                // What the client wrote is read with that of all others.
                BELL => {}
                _ => {
                    let now = self.look(Some(client));
                    self.driver.process_ended(now, client);
                }
            }
        }
        self.ready = ready;
        self.keep_door(clock::now());
        waited.map_err(ServerError::System)
    }

    /// The MPS daemon or its guardian has ended, and the broker goes on.
    fn mps_ended(&mut self, which: u64) {
        let Some(daemon) = &mut self.mps else { return };
        self.poller.remove(if which == MPS_DAEMON { daemon.process() } else { daemon.guardian() });
        let text = daemon.ended();
        self.driver.about.mps = daemon.status();
        if let (Some(text), Some(tell)) = (text, &self.options.tell) {
            tell.say(&text);
        }
    }

    /// Handles messages of a client until `until`, and at least one.
    fn converse(&mut self, client: ClientId, until: Nanos) {
        let mut buffer = vec![0; BYTES_MAX];
        for at in 0..SHARE {
            if at > 0 && clock::now() >= until {
                return;
            }
            let Some(socket) = self.driver.socket(client) else { return };
            // Cut off for something else than a message: what it has sent meanwhile is not read.
            if !self.driver.is_open(client) {
                return self.unhook(client);
            }
            // No message to a broker brings descriptors. Closing one may take for ever: that of a file system in a program, for one.
            let packet = socket.receive_bytes(&mut buffer);
            let now = self.look(Some(client));
            match packet {
                Ok(SocketPacket::Message(length, _)) => {
                    let greeted = self.driver.is_greeted(client);
                    if !self.driver.message(now, client, &buffer[..length]) {
                        return self.cut(now, client);
                    }
                    if self.driver.is_greeted(client) {
                        self.door.settle(client);
                    }
                    self.driver.take_hints().into_iter().for_each(|gpu| self.watch.hint(gpu));
                    if !greeted && let Some(bell) = self.driver.bell(client) {
                        // Without its bell the broker would never hear the client: so it ends the connection.
                        if self.poller.add_bell(bell, client.0 * KINDS + BELL).is_err() {
                            self.driver.cut(now, client);
                            return;
                        }
                    }
                }
                Ok(SocketPacket::Truncated) => return self.cut(now, client),
                Ok(SocketPacket::Nothing) => return,
                Ok(SocketPacket::End) | Err(_) => {
                    self.unhook(client);
                    self.driver.leave(now, client);
                    return;
                }
            }
        }
    }

    fn cut(&mut self, now: Nanos, client: ClientId) {
        self.unhook(client);
        self.driver.cut(now, client);
    }

    fn unhook(&self, client: ClientId) {
        if let Some(socket) = self.driver.socket(client) {
            self.poller.remove(socket.as_fd());
        }
    }

    /// Drops a session after its descriptors have left the poller.
    fn forget(&mut self, client: ClientId) {
        self.door.settle(client);
        let Some(session) = self.driver.sessions.remove(&client) else { return };
        self.poller.remove(session.socket.as_fd());
        if let Some(pages) = &session.pages {
            self.poller.remove(pages.bell.as_fd());
        }
        self.poller.remove(session.process.as_fd());
        self.driver.in_flight.extend(session.in_flight());
    }
}

/// Starts the MPS daemon that is asked for.
fn mps_daemon(options: &ServerOptions, poller: &Poller) -> Result<Option<Daemon>, ServerError> {
    let Some(asked) = &options.mps else { return Ok(None) };
    if options.access == UserAccess::Group {
        return Err(MpsError::Group.into());
    }
    let daemon = Daemon::start(asked, &options.socket)?;
    poller.add(daemon.guardian(), MPS_GUARDIAN)?;
    poller.add(daemon.process(), MPS_DAEMON)?;
    let strangers = mps::others().into_iter().filter(|other| daemon.is_other(other));
    for other in strangers {
        let text = format!(
            "another MPS daemon runs (process {} of user {}): on a GPU that both serve, its programs and those of this one take turns",
            other.pid, other.uid
        );
        if let Some(tell) = &options.tell {
            tell.say(&text);
        }
    }
    Ok(Some(daemon))
}

/// Has this process use as many descriptors as it may, five a client; how many that are.
fn allow_descriptors() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Where that is refused, fewer clients fit.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let allowed = getrlimit(Resource::Nofile).current;
    allowed.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::thread::JoinHandle;

    use headway_core::decisions::engine_lock::{EngineParameters, EngineWork, LockedOperation};
    use headway_core::decisions::sharing::{ClusterId, ClusterParameters, JobSegment};
    use headway_core::decisions::token::{TokenMode, TokenParameters};
    use headway_core::units::Bytes;
    use headway_os::ipc::Socket;

    use super::*;
    use crate::client::{Client, OnLoss};
    use crate::message::{FromClient, TaskShape};
    use crate::status::Counts;

    const WATCHDOG: Nanos = Nanos(600_000_000_000);

    pub(super) fn options(socket: PathBuf) -> ServerOptions {
        let tokens = TokenParameters { cpus: 1, per_gpu: 1, mode: TokenMode::WorkConserving, affinity: true };
        let engines = EngineParameters { watchdog: WATCHDOG, ..EngineParameters::default() };
        let arbiter = ArbiterParameters::new(vec![ClusterParameters::equal(1, tokens)], Some(engines));
        ServerOptions { watchdog: WATCHDOG, boost: false, urgent: false, ..ServerOptions::new(socket, arbiter) }
    }

    fn shape(name: &str) -> TaskShape {
        TaskShape {
            name: name.to_owned(),
            cluster: ClusterId(0),
            period: Nanos(1_000),
            deadline: Nanos(1_000_000),
            state: Bytes(0),
            segments: Vec::new(),
            thread: None,
        }
    }

    /// A client of a broker with one task, which holds a token and never gives it back.
    pub(super) fn holder(server: &mut BrokerServer) -> Client {
        let socket = server.options.socket.clone();
        let holder = std::thread::spawn(move || {
            let client = Client::connect(&socket, "one", OnLoss::Fail).unwrap();
            let mut task = client.register(shape("a")).unwrap();
            std::mem::forget(task.acquire(clock::now(), 0, None).unwrap());
            std::mem::forget(task);
            client
        });
        turn_until(server, &holder, |counts| counts.tokens > 0);
        holder.join().unwrap()
    }

    /// Lets the broker serve until it has granted `enough`; fails if the thread that asks ends before.
    fn turn_until<T>(server: &mut BrokerServer, holder: &JoinHandle<T>, enough: fn(&Counts) -> bool) {
        while !enough(&server.driver.counts()) {
            assert!(!holder.is_finished(), "the holder ended before it was served");
            let now = server.look(None);
            server.turn(now);
            server.poll(Duration::from_millis(1)).unwrap();
        }
    }

    /// How many are cut off when an engine, of a GPU with two holders, is given back as the broker goes on so late.
    fn cut_off_giving_back(late: Nanos, excused: bool) -> u64 {
        let folder = tempfile::tempdir().unwrap();
        let mut options = options(folder.path().join("s"));
        options.arbiter.clusters[0].tokens.per_gpu = 2;
        let mut server = BrokerServer::bind(options).unwrap();
        let socket = server.options.socket.clone();
        let (go_on, wait) = std::sync::mpsc::channel::<()>();
        let holder = std::thread::spawn(move || {
            let clients = ["a", "b"].map(|name| Client::connect(&socket, name, OnLoss::Fail).unwrap());
            let [mut a, mut b] = [0, 1].map(|at| clients[at].register(shape("t")).unwrap());
            let mut first = a.acquire(clock::now(), 0, None).unwrap();
            let second = b.acquire(clock::now(), 0, None).unwrap();
            wait.recv().unwrap();
            let operation =
                LockedOperation { work: EngineWork::Execute, bytes: Bytes(0), predicted: Nanos(0), budget: Nanos(0) };
            let engine = first.engine(operation).unwrap();
            wait.recv().unwrap();
            drop(engine);
            std::mem::forget((first, second));
            std::mem::forget((a, b));
            clients
        });
        // A client alone on a GPU has leases, and the broker does not count what it does by them: so wait for the second.
        turn_until(&mut server, &holder, |counts| counts.tokens == 2);
        go_on.send(()).unwrap();
        turn_until(&mut server, &holder, |counts| counts.engines > 0);
        go_on.send(()).unwrap();
        let clients = holder.join().unwrap();
        let now = server.look(None).saturating_add(late);
        if excused {
            server.heard_nobody(now, late);
        }
        server.turn(now);
        drop(clients);
        server.driver.counts().cut
    }

    #[test]
    fn messages_keep_the_broker_from_reading_pages_no_longer_than_a_part_of_the_watchdog() {
        let folder = tempfile::tempdir().unwrap();
        // A part of it is no time at all: one message a turn.
        let options = ServerOptions { watchdog: Nanos(1), ..options(folder.path().join("s")) };
        let mut server = BrokerServer::bind(options).unwrap();
        let sockets = [(); 4].map(|()| Socket::connect(&server.options.socket).unwrap());
        server.poll(Duration::ZERO).unwrap();
        sockets.iter().for_each(|socket| socket.send(b"no message", &[]).unwrap());
        // Each is cut off for it.
        for cut in 1..=sockets.len() as u64 {
            server.poll(Duration::ZERO).unwrap();
            assert_eq!(server.driver.counts().cut, cut);
        }
    }

    #[test]
    fn a_turn_begins_with_the_clients_whose_messages_the_last_one_left() {
        let folder = tempfile::tempdir().unwrap();
        // One message a turn.
        let options = ServerOptions { watchdog: Nanos(1), ..options(folder.path().join("s")) };
        let mut server = BrokerServer::bind(options).unwrap();
        let sockets = [(); 4].map(|()| Socket::connect(&server.options.socket).unwrap());
        server.poll(Duration::ZERO).unwrap();
        let question = serde_json::to_vec(&FromClient::Status).unwrap();
        for _ in 0..3 {
            sockets.iter().for_each(|socket| socket.send(&question, &[]).unwrap());
        }
        let mut buffer = vec![0; BYTES_MAX];
        let mut answers = |socket: &Socket| {
            let answers = std::iter::from_fn(|| socket.receive_bytes(&mut buffer).ok());
            answers.take_while(|packet| matches!(packet, SocketPacket::Message(..))).count()
        };
        for _ in 0..3 {
            for _ in &sockets {
                server.poll(Duration::ZERO).unwrap();
            }
            assert_eq!(sockets.each_ref().map(&mut answers), [1; 4], "however much each has sent");
        }
    }

    #[test]
    fn whoever_gives_back_what_it_had_while_the_broker_was_stopped_is_not_cut_off() {
        assert_eq!(cut_off_giving_back(Nanos(3 * WATCHDOG.0), true), 0);
        assert!(cut_off_giving_back(Nanos(3 * WATCHDOG.0), false) > 0, "it is the excuse that helps");
    }

    /// The holder of a token over time, with a clock and a broker that the test drives step by step.
    fn cut_off(late: Nanos, then: Nanos) -> u64 {
        let folder = tempfile::tempdir().unwrap();
        let mut server = BrokerServer::bind(options(folder.path().join("s"))).unwrap();
        let client = holder(&mut server);
        let now = server.look(None).saturating_add(late);
        server.heard_nobody(now, late);
        server.turn(now.saturating_add(then));
        drop(client);
        server.driver.counts().cut
    }

    /// A broker that has granted a token to a task that declared `declared` for each job, and what has it given back and then ends.
    fn granted(declared: Nanos) -> (BrokerServer, impl FnOnce() -> Client) {
        let folder = tempfile::tempdir().unwrap();
        let mut server = BrokerServer::bind(options(folder.path().join("s"))).unwrap();
        let socket = server.options.socket.clone();
        let (go_on, wait) = std::sync::mpsc::channel::<()>();
        let holder = std::thread::spawn(move || {
            let client = Client::connect(&socket, "one", OnLoss::Fail).unwrap();
            let execute = JobSegment::Execute { kernel: "k".to_owned(), time: declared };
            let shape = TaskShape { period: declared, deadline: declared, segments: vec![execute], ..shape("a") };
            let mut task = client.register(shape).unwrap();
            let token = task.acquire(clock::now(), 0, None).unwrap();
            wait.recv().unwrap();
            token.release(Nanos(1));
            std::mem::forget(task);
            client
        });
        turn_until(&mut server, &holder, |counts| counts.tokens > 0);
        let give_back = move || {
            go_on.send(()).unwrap();
            let client = holder.join().unwrap();
            drop(folder);
            client
        };
        (server, give_back)
    }

    #[test]
    fn a_token_that_is_given_back_after_the_clock_was_read_is_given_back_at_the_next_look() {
        let (mut server, give_back) = granted(WATCHDOG);
        let before = server.look(None);
        let _client = give_back();
        server.turn(before);
        let holds = |server: &BrokerServer| server.driver.book.tasks().values().any(|task| task.open.is_some());
        assert!(holds(&server), "its use lasted longer than until then");
        let after = server.look(None);
        server.turn(after);
        assert!(!holds(&server));
    }

    #[test]
    fn time_in_which_the_broker_was_stopped_is_not_counted_as_use() {
        for (excused, is_postponed) in [(true, false), (false, true)] {
            // Twice as much is no reason to postpone anything.
            let (mut server, give_back) = granted(Nanos(WATCHDOG.0 / 2));
            let release = |server: &BrokerServer| server.driver.book.tasks().values().next().unwrap().last_release;
            let first = release(&server);
            let _client = give_back();
            let late = Nanos(3 * WATCHDOG.0);
            let now = server.look(None).saturating_add(late);
            if excused {
                server.heard_nobody(now, late);
            }
            server.turn(now);
            assert_eq!(release(&server) > first, is_postponed, "excused: {excused}");
        }
    }

    #[test]
    fn nobody_is_cut_off_because_the_broker_was_stopped_until_a_watchdog_after_it_went_on() {
        let short = Nanos(WATCHDOG.0 / 16);
        assert_eq!(cut_off(Nanos(3 * WATCHDOG.0), Nanos(0)), 0);
        assert_eq!(cut_off(Nanos(3 * WATCHDOG.0), Nanos(WATCHDOG.0 - 1)), 0);
        assert_eq!(cut_off(Nanos(3 * WATCHDOG.0), WATCHDOG), 1);
        assert_eq!(cut_off(short, Nanos(WATCHDOG.0 - short.0)), 1, "what is usual excuses nobody");
    }
}
