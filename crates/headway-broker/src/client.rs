//! The client: registers tasks, asks for tokens and engines.
//!
//! ```no_run
//! use headway_broker::{Client, OnLoss, TaskShape, place};
//! use headway_core::decisions::engine_lock::{EngineWork, LockedOperation};
//! use headway_core::decisions::sharing::ClusterId;
//! use headway_core::units::{Bytes, Nanos};
//!
//! # fn main() -> Result<(), headway_broker::ClientError> {
//! let client = Client::connect(&place::usual(), "camera", OnLoss::Wait)?;
//! let (period, state) = (Nanos(50_000_000), Bytes(6_856_704));
//! let shape = TaskShape { name: "klt".into(), cluster: ClusterId(0), period, deadline: period, state,
//!                         segments: Vec::new(), thread: None };
//! let mut task = client.register(shape)?;
//! let mut gpu = task.acquire(headway_os::clock::now(), 0, None)?;
//! let copy = LockedOperation { work: EngineWork::CopyIn, bytes: Bytes(1 << 20), predicted: Nanos(0), budget: Nanos(0) };
//! let engine = gpu.engine(copy)?; // copy one chunk, wait until it has ended
//! engine.release();
//! gpu.release(Nanos(3_000_000));
//! # Ok(())
//! # }
//! ```

mod link;
mod task;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use headway_core::decisions::engine_lock::EngineParameters;
use headway_core::decisions::flows::{FlowAdmitted, FlowContract, FlowId, FlowRefused};
use headway_core::decisions::sharing::{ClusterId, GpuId, TaskId, TokenId};
use headway_core::decisions::token::TokenParameters;
use headway_core::units::Nanos;
use headway_os::fork::Home;
use headway_os::ipc::{Socket, SocketPacket, is_stopped};
use headway_os::threads;

use self::link::Link;
pub use self::task::{BrokerEngine, BrokerTask, Token};
use crate::error::ClientError;
use crate::folder::Folder;
use crate::layout::TASKS_MAX;
use crate::message::{BYTES_MAX, FlowTerms, FromBroker, FromClient, ProgramEngine, TaskShape};
use crate::place;
use crate::status::{BrokerStatus, MpsStatus};

/// How long a broker may be silent: to a control message, and otherwise before it goes round once.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// After this long without an answer, a client that has just connected looks whether the broker's process is stopped.
const STOPPED_MIN: Duration = Duration::from_secs(1);
/// How long a client that waits for the next broker does so.
const NEXT_MAX: Duration = Duration::from_secs(300);

/// What the watcher passes on of a connection.
enum Heard {
    /// An answer.
    Message(FromBroker),
    /// The broker of this number is gone: it answers nothing any more.
    End { epoch: u64 },
}

/// What a client does when its broker ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoss {
    /// Waits for the next one, and goes on; for five minutes at most.
    Wait,
    /// Refuses everything from then on.
    Fail,
}

/// A registered task as the watcher must know it, to tell the next broker.
struct Record {
    id: TaskId,
    shape: TaskShape,
    /// Its place among the client's tasks.
    index: usize,
    held: Option<Held>,
}

/// A token that is held.
#[derive(Clone, Copy, Debug)]
struct Held {
    job: u64,
    release: Nanos,
    gpu: GpuId,
    token: TokenId,
    generation: u32,
}

struct State {
    /// The connection, lost or not.
    link: Arc<Link>,
    records: Vec<Record>,
    closing: bool,
    /// No answer will come: the broker is lost and no thread waits for the next one, or it refuses this client.
    failed: bool,
}

struct Shared {
    home: Home,
    path: PathBuf,
    name: String,
    on_loss: OnLoss,
    state: Mutex<State>,
    /// The link has changed, or will not.
    relinked: Condvar,
    /// How long a thread looks for an engine before it sleeps, in nanoseconds.
    spin: AtomicU64,
    /// How long the broker may be silent, in nanoseconds.
    patience: AtomicU64,
    /// Terms that the broker has sent, and those that this program keeps to.
    terms_heard: AtomicU64,
    terms_taken: AtomicU64,
}

impl Shared {
    /// Whether this is a forked child of the process that connected. It has none of the threads, and a lock that one of them had stays locked.
    fn is_foreign(&self) -> bool {
        !self.home.is_here()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn patience(&self) -> Nanos {
        Nanos(self.patience.load(Ordering::Relaxed))
    }

    /// A link that is not lost, waited for if need be, but not longer than `bound`.
    fn live(&self, bound: Option<Duration>) -> Result<Arc<Link>, ClientError> {
        if self.is_foreign() {
            return Err(ClientError::Lost);
        }
        let until = Instant::now() + bound.map_or(NEXT_MAX, |bound| bound.min(NEXT_MAX));
        let mut state = self.lock();
        loop {
            if !state.link.is_lost() {
                return Ok(Arc::clone(&state.link));
            }
            if state.failed || state.closing || self.on_loss == OnLoss::Fail {
                return Err(ClientError::Lost);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(if bound.is_some_and(|bound| bound < NEXT_MAX) {
                    ClientError::TimedOut
                } else {
                    ClientError::Lost
                });
            }
            state = self.relinked.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// How long a thread usually looks for an engine before it sleeps: about what being woken takes.
const SPIN_ENGINE: Nanos = Nanos(50_000);

/// What the broker has said and what it still owes.
struct Answers {
    heard: Receiver<Heard>,
    /// Questions to the broker of this number that have no answer yet.
    owed: usize,
    /// Flows that the broker opened when no thread awaited the answer any more.
    unclaimed: Vec<FlowId>,
    epoch: u64,
}

impl Answers {
    /// An answer has come that no thread awaits any more.
    fn late(&mut self, message: &FromBroker) {
        self.owed = self.owed.saturating_sub(1);
        if let FromBroker::FlowOpened(admitted) = message {
            self.unclaimed.push(admitted.flow);
        }
    }

    /// Sends a question. If the broker reads nothing, it cannot be sent, and is not answered. The end of a broker is heard in place of its answer.
    fn send(&mut self, link: &Link, question: &FromClient, patience: Nanos) -> Result<(), ClientError> {
        if link.send(question).is_err_and(|error| error.errno.name() == Some("EAGAIN")) {
            return Err(link.silent(patience));
        }
        self.owed += 1;
        Ok(())
    }

    /// Waits for the next answer, for `patience`, or longer if it may wait for other programs and the broker goes round meanwhile.
    fn next(&self, link: &Link, patience: Nanos, waits_for_others: bool) -> Result<FromBroker, ClientError> {
        let (mut until, mut beat) = (Instant::now() + Duration::from_nanos(patience.0), link.beat());
        loop {
            match self.heard.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Heard::Message(message)) => return Ok(message),
                Ok(Heard::End { epoch }) if epoch != link.epoch => {}
                Ok(Heard::End { .. }) | Err(RecvTimeoutError::Disconnected) => return Err(ClientError::Lost),
                Err(RecvTimeoutError::Timeout) if waits_for_others && link.beat() != beat => {
                    (until, beat) = (Instant::now() + Duration::from_nanos(patience.0), link.beat());
                }
                Err(RecvTimeoutError::Timeout) => return Err(link.silent(patience)),
            }
        }
    }
}

/// A connection to a broker. Its tasks must go before it does. In a forked child it is lost, and nothing that the child does there reaches
/// the broker.
pub struct Client {
    shared: Arc<Shared>,
    /// Answers to control messages; one question at a time.
    answers: Mutex<Answers>,
    /// Held from the choice of a task's place until it is noted.
    registering: Mutex<()>,
    /// Terms of flows, until somebody hears them.
    terms: Mutex<Option<Receiver<FlowTerms>>>,
    watcher: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

impl Client {
    /// Connects to the broker at `socket`.
    ///
    /// # Errors
    /// [`ClientError::Connect`], [`ClientError::Refused`], [`ClientError::Protocol`].
    pub fn connect(socket: &Path, name: &str, on_loss: OnLoss) -> Result<Self, ClientError> {
        let link = Arc::new(Link::open(socket, name, Vec::new())?);
        let state = State { link, records: Vec::new(), closing: false, failed: false };
        let shared = Arc::new(Shared {
            home: Home::here(),
            path: socket.to_owned(),
            name: name.to_owned(),
            on_loss,
            state: Mutex::new(state),
            relinked: Condvar::new(),
            spin: AtomicU64::new(SPIN_ENGINE.0),
            patience: AtomicU64::new(nanos(ANSWER_MAX)),
            terms_heard: AtomicU64::new(0),
            terms_taken: AtomicU64::new(0),
        });
        let epoch = shared.lock().link.epoch;
        let (tell, heard): (Sender<Heard>, _) = channel();
        let (tell_terms, terms) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let watcher = {
            let (shared, stop) = (Arc::clone(&shared), Arc::clone(&stop));
            let work = move || watch::watch(&shared, &tell, &tell_terms, &stop);
            threads::spawn("headway-broker", work)
        };
        let watcher = watcher.map_err(|error| {
            let errno = headway_os::Errno(error.raw_os_error().unwrap_or(0));
            ClientError::System(headway_os::OsError { call: "pthread_create", errno })
        })?;
        let answers = Mutex::new(Answers { heard, owed: 0, unclaimed: Vec::new(), epoch });
        let terms = Mutex::new(Some(terms));
        Ok(Self { shared, answers, registering: Mutex::new(()), terms, watcher: Some(watcher), stop })
    }

    /// Registers a task.
    ///
    /// # Errors
    /// [`ClientError::TooManyTasks`], [`ClientError::Refused`], [`ClientError::Lost`].
    pub fn register(&self, shape: TaskShape) -> Result<BrokerTask<'_>, ClientError> {
        self.shared.live(None)?;
        let _one_at_a_time = self.registering.lock().unwrap_or_else(PoisonError::into_inner);
        let taken: Vec<usize> = self.shared.lock().records.iter().map(|record| record.index).collect();
        let index = (0..TASKS_MAX).find(|index| !taken.contains(index));
        let index = index.ok_or(ClientError::TooManyTasks { max: TASKS_MAX })?;
        let FromBroker::Registered { task: id } = self.ask(&FromClient::Register(shape.clone()))? else {
            return Err(ClientError::Protocol { what: "an answer to another question" });
        };
        self.shared.lock().records.push(Record { id, shape, index, held: None });
        Ok(BrokerTask::new(self, id, index))
    }

    /// Asks for a flow of this program, which copies on `engines`. Returns when all other programs count on it. The flow is open once this
    /// program [keeps to the terms](Client::keeps_to_terms) that it got before.
    ///
    /// # Errors
    /// [`ClientError::Refused`], [`ClientError::Lost`], [`ClientError::Silent`].
    pub fn open_flow(
        &self,
        engines: Vec<ProgramEngine>,
        contract: FlowContract,
    ) -> Result<Result<FlowAdmitted, FlowRefused>, ClientError> {
        match self.ask(&FromClient::OpenFlow { engines, contract })? {
            FromBroker::FlowOpened(admitted) => Ok(Ok(admitted)),
            FromBroker::FlowRefused(refused) => Ok(Err(refused)),
            _ => Err(ClientError::Protocol { what: "an answer to another question" }),
        }
    }

    /// Tells the broker that a flow has left: none of its jobs, and nothing that they delayed, is there any more.
    ///
    /// # Errors
    /// [`ClientError::Refused`], [`ClientError::Lost`], [`ClientError::Silent`].
    pub fn close_flow(&self, flow: FlowId) -> Result<(), ClientError> {
        self.ask(&FromClient::CloseFlow { flow }).map(drop)
    }

    /// The terms by which this program has its flows, whenever they change, until the connection ends; `None` at a second call.
    #[must_use]
    pub fn terms(&self) -> Option<Receiver<FlowTerms>> {
        self.terms.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether this program keeps to all terms that the broker has sent so far.
    #[must_use]
    pub fn keeps_to_terms(&self) -> bool {
        let heard = self.shared.terms_heard.load(Ordering::Acquire);
        self.shared.terms_taken.load(Ordering::Acquire) >= heard
    }

    /// Tells the broker that this program keeps to the terms of this version. A client that does not say so within the watchdog is cut off.
    ///
    /// # Errors
    /// [`ClientError::Lost`].
    pub fn take_terms(&self, version: u64) -> Result<(), ClientError> {
        self.shared.terms_taken.fetch_add(1, Ordering::Release);
        let sent = self.shared.live(None)?.send(&FromClient::TermsTaken { version });
        sent.map_err(|_| ClientError::Lost)
    }

    /// Whether the connection has ended.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.shared.is_foreign() || self.shared.lock().link.is_lost()
    }

    /// Ends the connection now.
    pub fn hang_up(&self) {
        if !self.shared.is_foreign() {
            self.shared.lock().link.hang_up();
        }
    }

    /// Has threads that wait for an engine look for it for `time` before they sleep, 50 us if this is never called: about
    /// what being woken takes. Longer pays where CPUs are idle and slow to wake, as in virtual machines.
    pub fn look_for(&self, time: Nanos) {
        self.shared.spin.store(time.0, Ordering::Relaxed);
    }

    /// Has every wait end with [`ClientError::Silent`] after the broker was silent for `time`, 10 s if this is never called: a
    /// broker that runs goes round several times a second, however much it has to do.
    pub fn bear_silence(&self, time: Duration) {
        self.shared.patience.store(nanos(time), Ordering::Relaxed);
    }

    /// The holders and the waiting jobs.
    ///
    /// # Errors
    /// [`ClientError::Lost`], [`ClientError::Silent`], [`ClientError::Protocol`].
    pub fn status(&self) -> Result<BrokerStatus, ClientError> {
        match self.ask(&FromClient::Status)? {
            FromBroker::Status(status) => Ok(status.readable()),
            _ => Err(ClientError::Protocol { what: "an answer to another question" }),
        }
    }

    /// Changes how tokens of a cluster are given; it applies once the present holders have finished. Only the broker's user
    /// may do this.
    ///
    /// # Errors
    /// [`ClientError::Refused`], [`ClientError::Lost`].
    pub fn reconfigure(&self, cluster: ClusterId, tokens: TokenParameters) -> Result<(), ClientError> {
        self.ask(&FromClient::Reconfigure { cluster, tokens }).map(drop)
    }

    /// Tells the broker of an error that a lost GPU gives. A hint: the broker looks, and only then takes the GPU away.
    ///
    /// # Errors
    /// [`ClientError::Lost`].
    pub fn report_fault(&self, gpu: GpuId) -> Result<(), ClientError> {
        self.ask(&FromClient::Fault { gpu }).map(drop)
    }

    /// Gives a GPU up for all clients, until the broker and all its clients have ended. Only the broker's user may do this.
    ///
    /// # Errors
    /// [`ClientError::Refused`], [`ClientError::Lost`].
    pub fn declare_lost(&self, gpu: GpuId) -> Result<(), ClientError> {
        self.ask(&FromClient::Lost { gpu }).map(drop)
    }

    /// How engines are locked; `None` = not at all, a token is the right to every engine.
    ///
    /// # Errors
    /// [`ClientError::Lost`].
    pub fn engines(&self) -> Result<Option<EngineParameters>, ClientError> {
        Ok(self.shared.live(None)?.engines)
    }

    /// Asks the broker, or the next one if it ends before it answers. No question does harm when it is asked twice.
    fn ask(&self, question: &FromClient) -> Result<FromBroker, ClientError> {
        self.shared.live(None)?;
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let link = self.shared.live(None)?;
            match Self::ask_at(&link, &mut answers, question, self.shared.patience()) {
                Err(ClientError::Lost) if link.is_lost() => {}
                Ok(FromBroker::Refused { reason }) => return Err(refused(&reason)),
                answered => return answered,
            }
        }
    }

    /// Asks one broker; [`ClientError::Lost`] if it ends, [`ClientError::Silent`] if it does not answer.
    fn ask_at(
        link: &Link,
        answers: &mut Answers,
        question: &FromClient,
        patience: Nanos,
    ) -> Result<FromBroker, ClientError> {
        while let Ok(heard) = answers.heard.try_recv() {
            if let Heard::Message(message) = heard {
                answers.late(&message);
            }
        }
        if answers.epoch != link.epoch {
            (answers.owed, answers.epoch) = (0, link.epoch);
            answers.unclaimed.clear();
        }
        // Its end may have been among these; if not, it is heard below.
        if link.is_lost() {
            return Err(ClientError::Lost);
        }
        // The broker answers a question that waits for other programs later than those behind it. So only one question is asked at a time.
        while patience > Nanos::ZERO && (answers.owed > 0 || !answers.unclaimed.is_empty()) {
            if let Some(&flow) = answers.unclaimed.last() {
                answers.send(link, &FromClient::CloseFlow { flow }, patience)?;
                answers.unclaimed.pop();
            }
            let message = answers.next(link, patience, true)?;
            answers.late(&message);
        }
        answers.send(link, question, patience)?;
        if patience == Nanos::ZERO {
            return Err(link.silent(patience));
        }
        let message = answers.next(link, patience, matches!(question, FromClient::OpenFlow { .. }))?;
        answers.owed -= 1;
        Ok(message)
    }

    fn withdraw(&self, task: TaskId) {
        if self.shared.is_foreign() {
            return;
        }
        self.shared.lock().records.retain(|record| record.id != task);
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let link = Arc::clone(&self.shared.lock().link);
        // A broker that was found silent, and has not gone round since, gets the message, but its answer is not awaited.
        let patience = if link.is_silent() { Nanos::ZERO } else { self.shared.patience() };
        // A broker that is gone has forgotten the request, and the next one does not learn of it: no thread waits for it.
        let _ = Self::ask_at(&link, &mut answers, &FromClient::Withdraw { task }, patience);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.shared.is_foreign() {
            // The connection is the parent's, and so is the thread.
            return std::mem::forget(self.watcher.take());
        }
        self.stop.store(true, Ordering::Release);
        {
            let mut state = self.shared.lock();
            state.closing = true;
            state.link.hang_up();
        }
        self.shared.relinked.notify_all();
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}

/// Asks the broker at `socket` for holders and waiting jobs, without becoming its client.
///
/// # Errors
/// [`ClientError::Connect`], [`ClientError::Stranger`], [`ClientError::Silent`], [`ClientError::Lost`],
/// [`ClientError::Refused`], [`ClientError::Protocol`].
pub fn status(socket: &Path) -> Result<BrokerStatus, ClientError> {
    let connection = place::reach(socket)?;
    let question = serde_json::to_vec(&FromClient::Status).map_err(|_| ClientError::Lost)?;
    // A broker that refuses closes at once; what it said is still there.
    let _ = connection.send(&question, &[]);
    match receive(&connection)?.0 {
        FromBroker::Status(status) => Ok(status.readable()),
        FromBroker::Refused { reason } => Err(refused(&reason)),
        _ => Err(ClientError::Protocol { what: "an answer to another question" }),
    }
}

/// The MPS daemon that the broker at `socket` runs for this user; `None` = that broker runs none.
///
/// # Errors
/// Those of [`status`]; [`ClientError::MpsFolder`] where others could have put something else into the daemon's folder.
pub fn serving_mps(socket: &Path) -> Result<Option<MpsStatus>, ClientError> {
    let Some(mps) = status(socket)?.mps else { return Ok(None) };
    let path = Path::new(&mps.folder);
    Folder::open(path).map_err(|source| ClientError::MpsFolder { path: path.to_owned(), source })?;
    Ok(Some(mps))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The next message, waited for.
fn receive(socket: &Socket) -> Result<(FromBroker, Vec<std::os::fd::OwnedFd>), ClientError> {
    let mut buffer = vec![0; BYTES_MAX];
    await_answer(socket)?;
    match socket.receive(&mut buffer)? {
        SocketPacket::Message(length, descriptors) => {
            let message = serde_json::from_slice(&buffer[..length]);
            let message = message.map_err(|_| ClientError::Protocol { what: "a message that is none" })?;
            Ok((message, descriptors))
        }
        SocketPacket::Truncated => Err(ClientError::Protocol { what: "a message that is too long" }),
        SocketPacket::Nothing | SocketPacket::End => Err(ClientError::Lost),
    }
}

/// Waits until there is something to take. A broker that is stopped is not waited for as long as one that is slow.
fn await_answer(socket: &Socket) -> Result<(), ClientError> {
    let (start, pid) = (Instant::now(), socket.peer()?.pid);
    while !socket.wait(STOPPED_MIN) {
        let (waited, is_stopped) = (start.elapsed(), is_stopped(pid));
        if is_stopped || waited >= ANSWER_MAX {
            return Err(ClientError::Silent { pid, waited: Nanos(nanos(waited)), is_stopped });
        }
    }
    Ok(())
}

/// What a broker refuses, in its words.
fn refused(reason: &str) -> ClientError {
    ClientError::Refused { reason: crate::text::readable(reason) }
}
