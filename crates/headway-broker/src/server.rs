//! The broker: one thread that decides, over sockets for control and shared pages for everything frequent.

mod desk;
mod gpus;
mod leases;
mod pace;
mod pages;
mod predecessor;
mod priority;
mod replay;
mod resume;
mod session;
mod status;

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use headway_core::sharing::{ArbiterParameters, ClientId, Memory};
use headway_core::units::{Nanos, PPM};
use headway_os::clock;
use headway_os::ipc::{Listener, Packet, Poller, Socket, Words, user};

use self::desk::Desk;
use self::gpus::Watch;
pub use self::gpus::{Health, Probe};
use self::pace::Pace;
use self::session::Session;
use crate::error::ServerError;
use crate::layout::{ASLEEP, GPUS_MAX, NOTICE_LONGS, NOTICE_WORDS};
use crate::message::BYTES_MAX;
use crate::protocol::handshake;

/// Who may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only the user who runs the broker.
    Private,
    /// Users in the group of the socket's folder.
    Group,
}

/// Capacities; what exceeds them is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokerLimits {
    /// Connections of one user.
    pub clients_per_user: usize,
    /// Tasks of one user.
    pub tasks_per_user: usize,
    /// CPU, copy and kernel time of one user's tasks, as they declare it, per unit of time, in parts per million; one GPU
    /// fully used is 1,000,000.
    pub utilisation_ppm_per_user: u64,
}

impl Default for BrokerLimits {
    fn default() -> Self {
        Self { clients_per_user: 64, tasks_per_user: 256, utilisation_ppm_per_user: 1_000_000 * GPUS_MAX as u64 }
    }
}

/// What a broker is started with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens.
    pub socket: PathBuf,
    /// Who may connect.
    pub access: Access,
    /// The GPUs and how they are shared.
    pub arbiter: ArbiterParameters,
    /// Capacities.
    pub limits: BrokerLimits,
    /// How long a GPU may still work for a process that has ended: nobody gets its tokens and engines before.
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
    pub probe: Option<Probe>,
    /// File for every input of the arbiter and every client cut off, one JSON document a line; continued if it exists. A
    /// broker that is started again remembers from it what the clients that are left cannot tell: see the crate's page.
    pub log: Option<PathBuf>,
}

impl Options {
    /// The usual times, for a private broker. How long it stays awake depends on how many CPUs it may use.
    #[must_use]
    pub fn new(socket: PathBuf, arbiter: ArbiterParameters) -> Self {
        Self {
            socket,
            access: Access::Private,
            arbiter,
            limits: BrokerLimits::default(),
            drain: Nanos(20_000_000),
            watchdog: Nanos(10_000_000_000),
            recover: Nanos(5_000_000_000),
            spin: if is_roomy() { SPIN_ROOMY } else { SPIN },
            spin_share_ppm: if is_roomy() { PPM } else { SPIN_SHARE_PPM },
            urgent: true,
            boost: true,
            probe: None,
            log: None,
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

fn is_roomy() -> bool {
    std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() >= CPUS_ROOMY)
}

/// Messages and entries of one client handled before the next client's turn.
const SHARE: usize = 32;
/// Sleeps at most this long, so that a request to stop is seen.
const SLEEP_MAX: Nanos = Nanos(250_000_000);

/// A broker that listens. Everything ends when it is dropped; clients then wait for the next one.
pub struct Server {
    options: Options,
    listener: Listener,
    poller: Poller,
    notice: Words,
    desk: Desk,
    watch: Watch,
    ready: Vec<u64>,
}

/// What a number in the poller stands for.
const KINDS: u64 = 4;
const LISTENER: u64 = 0;
const SOCKET: u64 = 1;
const BELL: u64 = 2;
const PROCESS: u64 = 3;
/// The bell of the thread that looks after GPUs: no client has the number 0.
const GPUS: u64 = 1;

impl Server {
    /// Listens.
    ///
    /// # Errors
    /// [`ServerError`] with what is in the way.
    pub fn bind(options: Options) -> Result<Self, ServerError> {
        let gpus = options.arbiter.clusters.iter().map(|cluster| cluster.gpus.len()).sum();
        if gpus > GPUS_MAX {
            return Err(ServerError::TooManyGpus { gpus, max: GPUS_MAX });
        }
        prepare(&options)?;
        let epoch = next_epoch(&options.socket)?;
        let mode = match options.access {
            Access::Private => 0o600,
            Access::Group => 0o660,
        };
        // Whoever comes before the log is read finds nobody, and tries again.
        let desk = Desk::new(&options, epoch, clock::now())?;
        let listener = Listener::bind(&options.socket, mode)
            .map_err(|source| ServerError::Listen { path: options.socket.clone(), source })?;
        let poller = Poller::new()?;
        poller.add(listener.as_fd(), LISTENER)?;
        let notice = Words::create("headway notice", NOTICE_LONGS, NOTICE_WORDS)?;
        notice.forbid_other_writers()?;
        let watch = Watch::begin(options.probe.clone(), desk.gpus.clone())?;
        poller.add(watch.bell.as_fd(), GPUS)?;
        Ok(Self { options, listener, poller, notice, desk, watch, ready: Vec::new() })
    }

    /// Arbitrates until `stop` is set.
    ///
    /// # Errors
    /// [`ServerError`] when the system or the log fails; never because of what a client does.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<(), ServerError> {
        if self.options.urgent {
            self.desk.scheduling = priority::hurry(self.options.spin_share_ppm);
        }
        let mut pace = Pace::new(self.options.spin, self.options.spin_share_ppm, clock::now());
        let mut turns = 0u32;
        while !stop.load(Ordering::Relaxed) {
            if self.turn()? {
                pace.found(clock::now());
                turns = turns.wrapping_add(1);
                // However busy the pages are, control messages and deaths are seen.
                if turns.is_multiple_of(SHARE as u32) {
                    self.poll(Duration::ZERO)?;
                }
                continue;
            }
            let now = clock::now();
            if pace.looks_on(now) {
                std::hint::spin_loop();
                continue;
            }
            self.sleep()?;
            pace.slept(now, clock::now());
        }
        Ok(())
    }

    /// Looks at every page once; whether there was anything to do.
    fn turn(&mut self) -> Result<bool, ServerError> {
        // Before anything is granted: whoever holds something is waited for by the next broker.
        self.desk.write_down()?;
        let now = clock::now();
        let busy = self.desk.turn(now, SHARE);
        for client in self.desk.take_removed() {
            self.forget(client);
        }
        self.desk.flush()?;
        Ok(busy)
    }

    /// Sleeps until somebody rings, connects, writes or ends, or until it is time for something.
    fn sleep(&mut self) -> Result<(), ServerError> {
        let asleep = self.notice.word(ASLEEP);
        let may = handshake::may_sleep(|| asleep.store(1, Ordering::Relaxed), || self.desk.is_idle());
        let bound = if may {
            let wake = self.desk.wake_time().map_or(SLEEP_MAX, |time| time.saturating_sub(clock::now()));
            Duration::from_nanos(wake.0.min(SLEEP_MAX.0))
        } else {
            Duration::ZERO
        };
        self.poll(bound)
    }

    fn poll(&mut self, bound: Duration) -> Result<(), ServerError> {
        let mut ready = std::mem::take(&mut self.ready);
        let waited = self.poller.wait(Some(bound), &mut ready);
        self.notice.word(ASLEEP).store(0, Ordering::Relaxed);
        for number in &ready {
            if *number == GPUS {
                for gpu in self.watch.take_lost() {
                    self.desk.lose(clock::now(), gpu);
                }
                continue;
            }
            let client = ClientId(number / KINDS);
            match number % KINDS {
                LISTENER => self.accept()?,
                SOCKET => self.converse(client),
                BELL => self.desk.silence(client),
                _ => self.desk.process_ended(clock::now(), client),
            }
        }
        self.ready = ready;
        waited.map_err(ServerError::System)
    }

    fn accept(&mut self) -> Result<(), ServerError> {
        for _ in 0..SHARE {
            let socket = match self.listener.accept() {
                Ok(Some(socket)) => socket,
                Ok(None) => break,
                // Too many descriptors: whoever knocks waits until somebody leaves.
                Err(_) => break,
            };
            // A process that has ended already needs no answer.
            let (Ok(peer), Ok(process)) = (socket.peer(), socket.peer_process()) else { continue };
            let allowed = self.options.access == Access::Group || peer.uid == user() || peer.uid == 0;
            let room = self.desk.connections_of(peer.uid) < self.options.limits.clients_per_user;
            if !allowed || !room {
                let reason = if allowed { "too many connections of this user" } else { "the socket is another user's" };
                session::refuse(&socket, reason);
                continue;
            }
            self.admit(Session::new(socket, process, peer))?;
        }
        Ok(())
    }

    fn admit(&mut self, session: Session) -> Result<(), ServerError> {
        let client = self.desk.next_client();
        let number = client.0 * KINDS;
        if let Some(socket) = &session.socket {
            self.poller.add(socket.as_fd(), number + SOCKET)?;
        }
        self.poller.add(session.process.as_fd(), number + PROCESS)?;
        self.desk.admit(client, session);
        Ok(())
    }

    /// Handles the messages of a client.
    fn converse(&mut self, client: ClientId) {
        let mut buffer = vec![0; BYTES_MAX];
        for _ in 0..SHARE {
            let now = clock::now();
            let Some(socket) = self.desk.socket(client) else { return };
            match socket.receive(&mut buffer) {
                Ok(Packet::Message(length, _)) => {
                    let greeted = self.desk.is_greeted(client);
                    if !self.desk.message(now, client, &buffer[..length], &self.notice) {
                        self.unhook(client);
                        self.desk.cut(now, client, false);
                        return;
                    }
                    self.desk.take_hints().into_iter().for_each(|gpu| self.watch.hint(gpu));
                    if !greeted && let Some(bell) = self.desk.bell(client) {
                        // Without its bell the client would never be heard: it is told by the end of its connection.
                        if self.poller.add(bell.as_fd(), client.0 * KINDS + BELL).is_err() {
                            self.desk.cut(now, client, false);
                            return;
                        }
                    }
                }
                Ok(Packet::Nothing) => return,
                Ok(Packet::End) | Err(_) => {
                    self.unhook(client);
                    self.desk.leave(now, client);
                    return;
                }
            }
        }
    }

    fn unhook(&self, client: ClientId) {
        if let Some(socket) = self.desk.socket(client) {
            self.poller.remove(socket.as_fd());
        }
    }

    /// Drops a session after its descriptors have left the poller.
    fn forget(&mut self, client: ClientId) {
        let Some(session) = self.desk.remove(client) else { return };
        if let Some(socket) = &session.socket {
            self.poller.remove(socket.as_fd());
        }
        if let Some(pages) = &session.pages {
            self.poller.remove(pages.bell.as_fd());
        }
        self.poller.remove(session.process.as_fd());
    }
}

/// Makes the socket's folder, and sees that nobody listens there and that nobody else could replace the socket.
fn prepare(options: &Options) -> Result<(), ServerError> {
    let path = &options.socket;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    let place = |source| ServerError::Place { path: folder.to_owned(), source };
    if !folder.exists() {
        let mode = if options.access == Access::Private { 0o700 } else { 0o750 };
        fs::DirBuilder::new().recursive(true).mode(mode).create(folder).map_err(place)?;
    }
    let owner = fs::metadata(folder).map_err(place)?;
    if options.access == Access::Private && owner.uid() != user() && owner.mode() & 0o1000 == 0 {
        let text = "the folder is another user's, who could put a broker of his own there; choose another `--socket`";
        return Err(place(io::Error::new(io::ErrorKind::PermissionDenied, text)));
    }
    if Socket::connect(path).is_ok() {
        return Err(ServerError::Running { path: path.clone() });
    }
    Ok(())
}

/// A file of the broker beside its socket.
fn beside(socket: &Path, ending: &str) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(ending);
    PathBuf::from(path)
}

/// How often a broker was started at this socket, with this time; kept in a file beside it.
fn next_epoch(socket: &Path) -> Result<u64, ServerError> {
    let path = beside(socket, ".epoch");
    let before: u64 = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let epoch = before.saturating_add(1);
    fs::write(&path, format!("{epoch}\n")).map_err(|source| ServerError::Place { path, source })?;
    Ok(epoch)
}

/// The log of inputs.
struct Log {
    path: PathBuf,
    file: BufWriter<File>,
    failed: Option<io::Error>,
}

impl Log {
    /// Continues a file of earlier brokers; every start writes a line with the parameters.
    fn open(
        path: &Path,
        epoch: u64,
        parameters: &ArbiterParameters,
        memory: Option<&Memory>,
    ) -> Result<Self, ServerError> {
        let failed = |source| ServerError::Log { path: path.to_owned(), source };
        let file = File::options().create(true).append(true).open(path).map_err(failed)?;
        replay::note_start(path, file.metadata().map_err(failed)?.len()).map_err(failed)?;
        let mut file = BufWriter::new(file);
        let header = serde_json::json!({ "schema": 1, "epoch": epoch, "arbiter": parameters, "memory": memory });
        // A broker that was killed may have left half a line.
        writeln!(file, "\n{header}").map_err(failed)?;
        Ok(Self { path: path.to_owned(), file, failed: None })
    }

    fn write(&mut self, record: &serde_json::Value) {
        if let Err(error) = writeln!(self.file, "{record}") {
            self.failed.get_or_insert(error);
        }
    }

    /// Has the system know all that was written.
    fn write_out(&mut self) {
        if let Err(error) = self.file.flush() {
            self.failed.get_or_insert(error);
        }
    }

    fn flush(&mut self) -> Result<(), ServerError> {
        self.write_out();
        match self.failed.take() {
            Some(source) => Err(ServerError::Log { path: self.path.clone(), source }),
            None => Ok(()),
        }
    }
}
