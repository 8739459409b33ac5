//! The client: registers tasks, asks for tokens and engines.
//!
//! ```no_run
//! use headway_broker::{Client, OnLoss, TaskShape, place};
//! use headway_core::engine_lock::{Operation, Work};
//! use headway_core::sharing::ClusterId;
//! use headway_core::units::{Bytes, Nanos};
//!
//! # fn main() -> Result<(), headway_broker::ClientError> {
//! let client = Client::connect(&place::usual(), "camera", OnLoss::Wait)?;
//! let (period, state) = (Nanos(50_000_000), Bytes(6_856_704));
//! let shape = TaskShape { name: "klt".into(), cluster: ClusterId(0), period, deadline: period, state,
//!                         segments: Vec::new(), thread: None };
//! let mut task = client.register(shape)?;
//! let mut gpu = task.acquire(headway_os::clock::now(), 0, None)?;
//! let copy = Operation { work: Work::CopyIn, bytes: Bytes(1 << 20), predicted: Nanos(0), budget: Nanos(0) };
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
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use headway_core::engine_lock::EngineParameters;
use headway_core::sharing::{ClusterId, GpuId, TaskId, TokenId};
use headway_core::token::TokenParameters;
use headway_core::units::Nanos;
use headway_os::ipc::{Packet, Socket};

use self::link::Link;
pub use self::task::{Engine, Task, Token};
use crate::error::ClientError;
use crate::layout::TASKS_MAX;
use crate::message::{BYTES_MAX, FromBroker, FromClient, TaskShape};
use crate::status::Status;

/// How long a broker may take to answer a control message.
const ANSWER_MAX: Duration = Duration::from_secs(10);

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
    /// Waits for the next one, and goes on.
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
    /// Nothing will come: the broker is lost and nobody waits for the next, or it refuses this client.
    failed: bool,
}

struct Shared {
    path: PathBuf,
    name: String,
    on_loss: OnLoss,
    state: Mutex<State>,
    /// The link has changed, or will not.
    relinked: Condvar,
    /// How long a thread looks for an engine before it sleeps, in nanoseconds.
    spin: AtomicU64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A link that is not lost, waited for if need be.
    fn live(&self) -> Result<Arc<Link>, ClientError> {
        let mut state = self.lock();
        loop {
            if !state.link.is_lost() {
                return Ok(Arc::clone(&state.link));
            }
            if state.failed || state.closing || self.on_loss == OnLoss::Fail {
                return Err(ClientError::Lost);
            }
            state = self.relinked.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// How long a thread usually looks for an engine before it sleeps: about what being woken takes.
const SPIN_ENGINE: Nanos = Nanos(50_000);

/// A connection to a broker. Its tasks must go before it does.
pub struct Client {
    shared: Arc<Shared>,
    /// Answers to control messages; one question at a time.
    answers: Mutex<Receiver<Heard>>,
    /// Held from the choice of a task's place until it is noted.
    registering: Mutex<()>,
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
            path: socket.to_owned(),
            name: name.to_owned(),
            on_loss,
            state: Mutex::new(state),
            relinked: Condvar::new(),
            spin: AtomicU64::new(SPIN_ENGINE.0),
        });
        let (tell, answers): (Sender<Heard>, _) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let watcher = {
            let (shared, stop) = (Arc::clone(&shared), Arc::clone(&stop));
            let work = move || watch::watch(&shared, &tell, &stop);
            std::thread::Builder::new().name("headway-broker".into()).spawn(work)
        };
        let watcher = watcher.map_err(|error| {
            let errno = headway_os::Errno(error.raw_os_error().unwrap_or(0));
            ClientError::System(headway_os::OsError { call: "pthread_create", errno })
        })?;
        Ok(Self { shared, answers: Mutex::new(answers), registering: Mutex::new(()), watcher: Some(watcher), stop })
    }

    /// Registers a task.
    ///
    /// # Errors
    /// [`ClientError::TooManyTasks`], [`ClientError::Refused`], [`ClientError::Lost`].
    pub fn register(&self, shape: TaskShape) -> Result<Task<'_>, ClientError> {
        let _one_at_a_time = self.registering.lock().unwrap_or_else(PoisonError::into_inner);
        let taken: Vec<usize> = self.shared.lock().records.iter().map(|record| record.index).collect();
        let index = (0..TASKS_MAX).find(|index| !taken.contains(index));
        let index = index.ok_or(ClientError::TooManyTasks { max: TASKS_MAX })?;
        let FromBroker::Registered { task: id } = self.ask(&FromClient::Register(shape.clone()))? else {
            return Err(ClientError::Protocol { what: "an answer to another question" });
        };
        self.shared.lock().records.push(Record { id, shape, index, held: None });
        Ok(Task::new(self, id, index))
    }

    /// Has threads that wait for an engine look for it for `time` before they sleep, 50 us if this is never called: about
    /// what being woken takes. Longer pays where CPUs are idle and slow to wake, as in virtual machines.
    pub fn look_for(&self, time: Nanos) {
        self.shared.spin.store(time.0, Ordering::Relaxed);
    }

    /// Who holds and waits.
    ///
    /// # Errors
    /// [`ClientError::Lost`], [`ClientError::Protocol`].
    pub fn status(&self) -> Result<Status, ClientError> {
        match self.ask(&FromClient::Status)? {
            FromBroker::Status(status) => Ok(*status),
            _ => Err(ClientError::Protocol { what: "an answer to another question" }),
        }
    }

    /// Changes how tokens of a cluster are given; it applies once the present holders have finished. Only for the user who
    /// runs the broker.
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

    /// Gives a GPU up for everybody, until the broker and all its clients have ended. Only for the user who runs the broker.
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
        Ok(self.shared.live()?.engines)
    }

    /// Asks the broker, or the next one if it ends before it answers. No question does harm when it is asked twice.
    fn ask(&self, question: &FromClient) -> Result<FromBroker, ClientError> {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let link = self.shared.live()?;
            match Self::ask_at(&link, &answers, question) {
                Err(ClientError::Lost) if link.is_lost() => {}
                Ok(FromBroker::Refused { reason }) => return Err(ClientError::Refused { reason }),
                answered => return answered,
            }
        }
    }

    /// Asks one broker; [`ClientError::Lost`] if it ends or does not answer.
    fn ask_at(link: &Link, answers: &Receiver<Heard>, question: &FromClient) -> Result<FromBroker, ClientError> {
        while answers.try_recv().is_ok() {}
        // Its end may have been among these; if not, it is heard below.
        if link.is_lost() {
            return Err(ClientError::Lost);
        }
        // What cannot be sent is not answered: the watcher hears the end.
        let _ = link.send(question);
        let until = Instant::now() + ANSWER_MAX;
        loop {
            match answers.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Heard::Message(message)) => return Ok(message),
                Ok(Heard::End { epoch }) if epoch != link.epoch => {}
                Ok(Heard::End { .. }) | Err(_) => return Err(ClientError::Lost),
            }
        }
    }

    fn withdraw(&self, task: TaskId) {
        self.shared.lock().records.retain(|record| record.id != task);
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let link = Arc::clone(&self.shared.lock().link);
        // A broker that is gone has forgotten it, and the next one is not told of it: nobody waits for that.
        let _ = Self::ask_at(&link, &answers, &FromClient::Withdraw { task });
    }
}

impl Drop for Client {
    fn drop(&mut self) {
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

/// Asks the broker at `socket` who holds and waits, without becoming its client.
///
/// # Errors
/// [`ClientError::Connect`], [`ClientError::Lost`], [`ClientError::Refused`], [`ClientError::Protocol`].
pub fn status(socket: &Path) -> Result<Status, ClientError> {
    let connect = |source| ClientError::Connect { path: socket.to_owned(), source };
    let connection = Socket::connect(socket).map_err(connect)?;
    let question = serde_json::to_vec(&FromClient::Status).map_err(|_| ClientError::Lost)?;
    // A broker that refuses closes at once; what it said is still there.
    let _ = connection.send(&question, &[]);
    match receive(&connection)?.0 {
        FromBroker::Status(status) => Ok(*status),
        FromBroker::Refused { reason } => Err(ClientError::Refused { reason }),
        _ => Err(ClientError::Protocol { what: "an answer to another question" }),
    }
}

/// The next message, waited for.
fn receive(socket: &Socket) -> Result<(FromBroker, Vec<std::os::fd::OwnedFd>), ClientError> {
    let mut buffer = vec![0; BYTES_MAX];
    if !socket.wait(ANSWER_MAX) {
        return Err(ClientError::Protocol { what: "no answer for ten seconds" });
    }
    match socket.receive(&mut buffer)? {
        Packet::Message(length, descriptors) => {
            let message = serde_json::from_slice(&buffer[..length]);
            let message = message.map_err(|_| ClientError::Protocol { what: "a message that is none" })?;
            Ok((message, descriptors))
        }
        Packet::Nothing | Packet::End => Err(ClientError::Lost),
    }
}
