//! Flows: copies of a program's own buffers with a period and a deadline that is promised before the first of them.
//!
//! ```no_run
//! use std::sync::Arc;
//! use headway::copy::{self, Direction};
//! use headway::flow::{FlowContract, FlowCopy, FlowNode, FlowPlace, OnMiss};
//! use headway::machine;
//! use headway::units::{Bytes, Nanos};
//! # fn main() -> Result<(), headway::Error> {
//! let copier = Arc::new(copy::gpus()?);
//! let node = FlowNode::of(Arc::clone(&copier), &machine::open("machine.toml")?)?;
//! let ms = Nanos(1_000_000);
//! let camera = node.open(FlowContract {
//!     name: "camera".to_owned(),
//!     gpu: 0,
//!     direction: Direction::H2d,
//!     bytes: Bytes(6 << 20),
//!     period: ms * 33,
//!     deadline: ms * 5,
//!     on_miss: OnMiss::Finish,
//! })?;
//! let frame = FlowPlace::pinned(&copier, 0, 6 << 20)?;
//! let image = FlowPlace::device(&copier, 0, 6 << 20)?;
//! let report = camera.copy(FlowCopy::Buffers { device: image, host: frame, bytes: 6 << 20 })?;
//! assert!(report.job.response <= report.job.bound);
//! # Ok(())
//! # }
//! ```
//!
//! A flow's copies are made by the copy engine, in chunks that go before everything that has no promise, in the order of deadlines. All
//! other copies of the same copier keep to chunks that the promises allow for.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use headway_broker::{Client, FlowTerms, OnLoss, ProgramEngine, place};
use headway_core::files::machine::{EndpointId, Machine};
use headway_core::models::transfer::Direction;
use headway_core::units::{Bytes, Nanos};
use headway_cuda::{HostEnd, LentEnds};
use headway_device::Buffer;
use headway_device::gpu::{Caching, CpuReach};
use headway_os::{clock, threads};
use headway_runtime::copy::{At, Copier, CopyError, Promise, PromisedCopy, UNPROMISED_IN_FLIGHT};
use headway_runtime::staging::Promiser;

pub use headway_core::decisions::flows::{
    ChunkOwner, ChunksAhead, FlowAdmitted, FlowAssumption, FlowBlame, FlowContract, FlowEngine, FlowFault, FlowId,
    FlowJobReport, FlowProposal, FlowRefused, FlowUnfit, InvalidContract, JobEnd, SubmitRefused, UnfitReason,
};
pub use headway_core::files::workload::OnMiss;

pub use crate::error::FlowError;

use headway_core::decisions::flows::{FlowBook, FlowJob, JobFacts, LIMITS, flow_engines};

use crate::copy::{RawCopy, StreamCopier, endpoints};
use crate::fork::{Home, at_home};
use crate::{Error, Failure};

/// In errors.
const FLOW: &str = "the flow";
/// Between two looks whether the engine of a flow that joins or leaves has nothing promised to do.
const LOOK: Duration = Duration::from_micros(200);
/// So long before its release a held copy looks at nothing else any more.
const HELD_AWAKE: Nanos = Nanos(1_000_000);
/// Between two looks whether the flows that were lost with a broker have left.
const LEAVING_LOOK: Duration = Duration::from_millis(10);
/// Between two looks whether a held copy is still wanted.
const HELD_NAP: Nanos = Nanos(100_000_000);

fn nanos(time: Duration) -> Nanos {
    Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Part of a buffer, as one end of a copy.
#[derive(Clone)]
pub struct FlowPlace {
    pub buffer: Buffer,
    /// Where it begins.
    pub offset: usize,
}

impl FlowPlace {
    /// New pinned memory near the GPU at position `gpu`.
    ///
    /// # Errors
    /// `ErrorKind::Device`.
    pub fn pinned(copier: &Copier, gpu: usize, bytes: usize) -> Result<Self, Error> {
        let buffer = copier.gpus()[gpu].pinned_buffer(bytes, Caching::Cached).map_err(CopyError::from)?;
        Ok(Self { buffer, offset: 0 })
    }

    /// New memory of the GPU at position `gpu`.
    ///
    /// # Errors
    /// `ErrorKind::Device`.
    pub fn device(copier: &Copier, gpu: usize, bytes: usize) -> Result<Self, Error> {
        let buffer = copier.gpus()[gpu].device_buffer(bytes, CpuReach::Device).map_err(CopyError::from)?;
        Ok(Self { buffer, offset: 0 })
    }

    #[must_use]
    pub fn at(&self) -> At<'_> {
        At { buffer: &self.buffer, offset: self.offset }
    }
}

/// What one copy of a flow moves, in the flow's direction.
pub enum FlowCopy {
    /// Between a GPU's memory and pinned memory, both of the node's copier.
    Buffers { device: FlowPlace, host: FlowPlace, bytes: usize },
    /// Between addresses, when the CUDA stream has come to this point. What the stream is given later does not wait for the copy: wait for
    /// the report or the ticket first. The host memory is pinned.
    Addresses(RawCopy),
}

/// What one copy of a flow did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowReport {
    /// Its response, the bound that was promised, and what its time went into.
    pub job: FlowJobReport,
    /// What the engine did; `None` for a copy that was given up.
    pub moved: Option<PromisedCopy>,
}

enum Copiers {
    Buffers(Arc<Copier>),
    Streams(Arc<StreamCopier>),
}

impl Copiers {
    fn copier(&self) -> &Copier {
        match self {
            Self::Buffers(copier) => copier,
            Self::Streams(copier) => copier.copier(),
        }
    }
}

struct Inner {
    home: Home,
    promiser: Promiser,
    copiers: Copiers,
    book: Mutex<FlowBook>,
    /// Held while the chunks of an engine change.
    changing: Mutex<()>,
    engines: Vec<FlowEngine>,
    patience: Duration,
    sharing: OnceLock<Sharing>,
}

/// The broker that counts the programs on the same engines.
struct Sharing {
    socket: PathBuf,
    engines: Vec<ProgramEngine>,
    client: Mutex<Option<Arc<Client>>>,
    /// Flows that are closed and have not left.
    leaving: Mutex<Vec<(FlowId, BrokerFlow)>>,
    /// Held by the thread that tells the broker of them. Another one that wants to ask the broker waits until it has been told.
    telling: Mutex<()>,
}

/// A flow as the broker knows it.
#[derive(Clone)]
struct BrokerFlow {
    client: Arc<Client>,
    id: FlowId,
    name: String,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    /// An error in a forked child.
    fn here(&self) -> Result<(), Error> {
        at_home(self.home, FLOW)
    }

    fn book(&self) -> MutexGuard<'_, FlowBook> {
        lock(&self.book)
    }

    /// Has the other copies of an engine keep to the chunks that its flows allow for. On return no larger one is on the engine.
    fn limit(&self, gpu: u32, direction: Direction) -> Result<(), Error> {
        let chunk = self.book().chunk(gpu, direction);
        let copier = self.copiers.copier();
        copier.limit_chunks(self.promiser, gpu as usize, direction, chunk).map_err(Failure::Copy)?;
        self.book().drained(clock::now(), gpu, direction);
        Ok(())
    }

    /// Whether nothing is promised.
    fn is_empty(&self) -> bool {
        let (mut book, now) = (self.book(), clock::now());
        self.engines.iter().all(|of| {
            book.rest(now, of.gpu, of.direction);
            book.chunk(of.gpu, of.direction).is_none()
        })
    }

    /// Nothing is promised: other copies have the chunks that they had before.
    fn give_all_back(&self) {
        for of in &self.engines {
            // A larger limit waits for nobody.
            let _ = self.limit(of.gpu, of.direction);
        }
    }

    /// Waits until a flow's copies are accepted.
    fn settle(&self, flow: FlowId, contract: &FlowContract) -> Result<(), Error> {
        self.limit(contract.gpu, contract.direction)?;
        let copier = self.copiers.copier();
        copier.prepare_promised(contract.gpu as usize, contract.direction).map_err(Failure::Copy)?;
        // With the connection to the broker the flow is lost, too.
        let is_lost = |book: &FlowBook| !book.has(flow);
        self.wait_until(&contract.name, |book| is_lost(book) || book.is_settled(flow))?;
        if is_lost(&self.book()) {
            return Err(Failure::Flow(FlowError::BrokerLost { flow: contract.name.clone() }).into());
        }
        Ok(())
    }

    /// Waits until `holds`, for the sake of a flow.
    fn wait_until(&self, flow: &str, mut holds: impl FnMut(&FlowBook) -> bool) -> Result<(), Error> {
        let end = clock::now().saturating_add(nanos(self.patience));
        loop {
            let mut book = self.book();
            for of in &self.engines {
                book.rest(clock::now(), of.gpu, of.direction);
            }
            if holds(&book) {
                return Ok(());
            }
            drop(book);
            if clock::now() > end {
                let (flow, after) = (flow.to_owned(), self.patience);
                return Err(Failure::Flow(FlowError::Unsettled { flow, after }).into());
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Has the broker admit a flow beside those of other programs, if there is one.
    fn ask(self: &Arc<Self>, contract: &FlowContract) -> Result<Option<BrokerFlow>, Error> {
        let (Some(sharing), name) = (self.sharing.get(), &contract.name) else { return Ok(None) };
        let client = self.connect(sharing, name)?;
        // The broker has a flow until it has left here, and another one of its name only then.
        self.tell_left(sharing);
        if lock(&sharing.leaving).iter().any(|(_, of)| of.name == *name) {
            self.wait_until(name, |book| book.flows().all(|flow| flow.name != *name))?;
            self.tell_left(sharing);
        }
        let opened = client.open_flow(sharing.engines.clone(), contract.clone()).map_err(Failure::Client)?;
        let admitted = opened.map_err(|refused| Failure::Flow(refused.into()))?;
        let open = BrokerFlow { client, id: admitted.flow, name: name.clone() };
        if let Err(unsettled) = self.wait_until(name, |_| open.client.keeps_to_terms() || open.client.is_lost()) {
            // It holds nothing but a place, until the connection ends.
            let _ = open.client.close_flow(open.id);
            return Err(unsettled);
        }
        Ok(Some(open))
    }

    /// The connection to the broker, a new one if the last has ended.
    fn connect(self: &Arc<Self>, sharing: &Sharing, flow: &str) -> Result<Arc<Client>, Error> {
        let mut known = lock(&sharing.client);
        if let Some(client) = known.as_ref().filter(|client| !client.is_lost()) {
            return Ok(Arc::clone(client));
        }
        // The next broker does not know of flows that were lost with the last one.
        self.book().close_all(clock::now());
        self.wait_until(flow, |book| book.flows().next().is_none())?;
        let alone = lock(&self.changing);
        self.give_all_back();
        drop(alone);
        let program = std::env::current_exe().ok();
        let program = program.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        let name = program.unwrap_or_else(|| "flows".to_owned());
        let client = Arc::new(Client::connect(&sharing.socket, &name, OnLoss::Fail).map_err(Failure::Client)?);
        let terms = client.terms().expect("nobody else has this connection");
        let (node, of) = (Arc::downgrade(self), Arc::downgrade(&client));
        let started = threads::spawn("headway-terms", move || keep_terms(&node, &of, &terms));
        let flow = flow.to_owned();
        started.map_err(|error| Failure::Flow(FlowError::Thread { flow, reason: error.to_string() }))?;
        *known = Some(Arc::clone(&client));
        Ok(client)
    }

    /// Has the engines cost what they do beside the processes that there are now. On return every job goes by that.
    fn keep_to(&self, engines: &[FlowEngine]) -> Result<(), Error> {
        let alone = lock(&self.changing);
        for engine in engines {
            let changed = self.book().change(clock::now(), engine.clone(), "");
            // The broker has tested it with more flows than there are here.
            changed.map_err(|of| Failure::Flow(FlowError::BrokerLost { flow: of.suffers }))?;
        }
        for engine in engines {
            let has_flows = self.book().chunk(engine.gpu, engine.direction).is_some();
            if has_flows {
                self.limit(engine.gpu, engine.direction)?;
            }
        }
        drop(alone);
        self.wait_until("", |book| engines.iter().all(|of| book.is_in_force(of.gpu, of.direction)))
    }

    /// Tells the broker of flows that have left.
    fn tell_left(&self, sharing: &Sharing) {
        let _alone = lock(&sharing.telling);
        let mut leaving = lock(&sharing.leaving);
        let left: Vec<_> = leaving.extract_if(.., |(flow, _)| self.book().bound(*flow).is_none()).collect();
        drop(leaving);
        for (flow, of) in left {
            // Whoever may not write to the broker's log now is heard later.
            if !of.client.is_lost() && of.client.close_flow(of.id).is_err() {
                lock(&sharing.leaving).push((flow, of));
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.home.is_here() {
            for of in &self.engines {
                // A larger limit waits for nobody.
                let _ = self.copiers.copier().limit_chunks(self.promiser, of.gpu as usize, of.direction, None);
            }
        }
    }
}

/// Keeps a node to the terms of its broker until the connection ends; then its flows are lost.
fn keep_terms(node: &Weak<Inner>, client: &Weak<Client>, terms: &Receiver<FlowTerms>) {
    for mut told in terms {
        let (Some(node), Some(client)) = (node.upgrade(), client.upgrade()) else { return };
        // Nobody waits for former ones, which may be in force at an instant only at which nothing promised is there.
        while let Ok(newer) = terms.try_recv() {
            // The broker knows that they are former ones.
            let _ = client.take_terms(told.version);
            told = newer;
        }
        let FlowTerms { version, engines } = told;
        if node.keep_to(&engines).is_err() || client.take_terms(version).is_err() {
            client.hang_up();
        }
    }
    let is_lost = |node: &Inner| {
        // The next connection opens no flow before these are closed.
        let mut known = lock(&node.sharing.get()?.client);
        let lost = known.take_if(|known| Arc::as_ptr(known) == client.as_ptr());
        lost.is_some().then(|| node.book().close_all(clock::now()))
    };
    if node.upgrade().and_then(|node| is_lost(&node)).is_none() {
        return;
    }
    while let Some(node) = node.upgrade() {
        // The next connection gives back what the last one had.
        if node.sharing.get().is_some_and(|sharing| lock(&sharing.client).is_some()) {
            return;
        }
        let alone = lock(&node.changing);
        if node.is_empty() {
            node.give_all_back();
            return;
        }
        drop(alone);
        drop(node);
        std::thread::sleep(LEAVING_LOOK);
    }
}

/// The GPUs of a copier, with what was promised on their copy engines.
#[derive(Clone)]
pub struct FlowNode(Arc<Inner>);

impl FlowNode {
    /// The node of a copier. `machine` says what copies cost at worst, best as `headway measure` found it on this computer.
    ///
    /// One node of a process promises on an engine at a time: opening a flow is refused where another does. Clone the node to use it in
    /// several places. The GPUs of the copier are found in `machine` by UUID where it has them, else in order.
    ///
    /// # Errors
    /// `ErrorKind::Machine` for a machine with fewer GPUs.
    pub fn of(copier: Arc<Copier>, machine: &Machine) -> Result<Self, Error> {
        Self::new(Copiers::Buffers(copier), machine)
    }

    /// The node of a copier between addresses: GPU 0 of its contracts is the copier's GPU.
    ///
    /// # Errors
    /// Those of [`FlowNode::of`].
    pub fn in_streams(copier: Arc<StreamCopier>, machine: &Machine) -> Result<Self, Error> {
        Self::new(Copiers::Streams(copier), machine)
    }

    fn new(copiers: Copiers, machine: &Machine) -> Result<Self, Error> {
        let first = match &copiers {
            Copiers::Buffers(_) => 0,
            Copiers::Streams(copier) => copier.gpu().index() as usize,
        };
        let ids = endpoints(machine, copiers.copier().gpus(), first)?;
        let all = flow_engines(machine, UNPROMISED_IN_FLIGHT);
        let engines_of = |(gpu, id): (u32, &EndpointId)| {
            let number = machine.gpus().position(|endpoint| endpoint == *id);
            let own = all.iter().filter(move |engine| Some(engine.gpu as usize) == number);
            own.map(move |engine| FlowEngine { gpu, ..engine.clone() })
        };
        let engines: Vec<FlowEngine> = (0..).zip(&ids).flat_map(engines_of).collect();
        let book = Mutex::new(FlowBook::new(engines.clone(), LIMITS));
        let (changing, patience, sharing) = (Mutex::default(), Duration::from_secs(10), OnceLock::new());
        let (home, promiser) = (Home::here(), Promiser::new());
        let inner = Inner { home, promiser, copiers, book, changing, engines, patience, sharing };
        Ok(Self(Arc::new(inner)))
    }

    /// Has the broker at `socket`, or at the usual place, admit the flows of this node beside those of other programs. Each of them that has
    /// opened a flow there counts until its process has ended, and adds its turns at the engine to the bounds of all. Without a broker
    /// [`FlowNode::open`] fails, with `ErrorKind::Broker`.
    ///
    /// # Errors
    /// `ErrorKind::Options` if the node has flows, or a broker.
    pub fn under(self, socket: Option<&Path>) -> Result<Self, Error> {
        let late = || Error::from(Failure::Flow(FlowError::LateBroker));
        self.0.here()?;
        if !self.is_empty() {
            return Err(late());
        }
        let gpus = self.0.copiers.copier().gpus();
        let named = |engine: &FlowEngine| {
            let of = gpus.get(engine.gpu as usize)?.description();
            let gpu = of.uuid.clone().unwrap_or_else(|| of.name.clone());
            Some(ProgramEngine { gpu, engine: engine.clone() })
        };
        let engines = self.0.engines.iter().filter_map(named).collect();
        let socket = socket.map_or_else(place::usual, Path::to_owned);
        let sharing =
            Sharing { socket, engines, client: Mutex::default(), leaving: Mutex::default(), telling: Mutex::default() };
        self.0.sharing.set(sharing).map_err(|_| late())?;
        Ok(self)
    }

    /// What each copy engine costs at worst.
    #[must_use]
    pub fn engines(&self) -> &[FlowEngine] {
        &self.0.engines
    }

    /// Whether nothing is promised: no flow is open, and the capacity of all that were has returned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.here().is_err() || self.0.is_empty()
    }

    /// Promises that every copy of a flow ends within its deadline, or says who would suffer and what would help.
    ///
    /// Returns when the promise holds: when no chunk is on the engine any more that is larger than it allows for.
    ///
    /// # Errors
    /// `ErrorKind::NotAccepted` where it cannot be promised, `ErrorKind::Options` for a contract that is none, `ErrorKind::Device`,
    /// `ErrorKind::Broker`.
    pub fn open(&self, contract: FlowContract) -> Result<Flow, Error> {
        self.0.here()?;
        let broker = self.0.ask(&contract)?;
        let alone = lock(&self.0.changing);
        // What a refusal says takes long to find. Copies that are promised do not wait for the book meanwhile.
        let mut trial = self.0.book().clone();
        let tried = trial.open(clock::now(), contract.clone());
        let admitted = tried.and_then(|_| self.0.book().open(clock::now(), contract.clone()));
        let admitted = match admitted {
            Ok(admitted) => admitted,
            Err(refused) => {
                drop(alone);
                if let Some(BrokerFlow { client, id, .. }) = &broker {
                    // It holds nothing but a place, until the connection ends.
                    let _ = client.close_flow(*id);
                }
                return Err(Failure::Flow(refused.into()).into());
            }
        };
        let (node, jobs) = (Arc::clone(&self.0), Mutex::default());
        let shared = Shared { node, contract, admitted, broker, jobs, came: Condvar::new() };
        let flow = Flow(Arc::new(shared));
        self.0.settle(flow.0.admitted.flow, flow.contract())?;
        Ok(flow)
    }
}

/// The longest response of each flow on `machine` if all of them were open, in the order given. Needs no GPU.
///
/// # Errors
/// `ErrorKind::NotAccepted` for the first that cannot be promised beside those before it, `ErrorKind::Options` for a contract that is none.
pub fn bounds(machine: &Machine, contracts: &[FlowContract]) -> Result<Vec<Nanos>, Error> {
    let mut book = FlowBook::new(flow_engines(machine, UNPROMISED_IN_FLIGHT), LIMITS);
    let mut flows = Vec::new();
    for contract in contracts {
        let admitted = book.open(Nanos::ZERO, contract.clone()).map_err(|refused| Failure::Flow(refused.into()))?;
        // No chunk is on any engine.
        book.drained(Nanos::ZERO, contract.gpu, contract.direction);
        flows.push(admitted);
    }
    Ok(flows.into_iter().map(|admitted| book.bound(admitted.flow).unwrap_or(admitted.bound)).collect())
}

/// Copies that were promised to be in time. To drop it closes it.
pub struct Flow(Arc<Shared>);

struct Shared {
    node: Arc<Inner>,
    contract: FlowContract,
    admitted: FlowAdmitted,
    broker: Option<BrokerFlow>,
    jobs: Mutex<Jobs>,
    came: Condvar,
}

/// Copies that were submitted and have not begun.
#[derive(Default)]
struct Jobs {
    waiting: VecDeque<(FlowCopy, Option<FlowJob>, Arc<Outcome>)>,
    is_served: bool,
    /// The thread that serves makes no copy.
    is_idle: bool,
    is_closed: bool,
}

/// How a submitted copy ended.
#[derive(Default)]
struct Outcome {
    /// The error is taken by the first who waits.
    result: Mutex<Option<Result<FlowReport, Option<Error>>>>,
    came: Condvar,
}

impl Outcome {
    fn tell(&self, result: Result<FlowReport, Error>) {
        *lock(&self.result) = Some(result.map_err(Some));
        self.came.notify_all();
    }
}

/// A copy that was submitted. To drop it does not end the copy.
pub struct FlowTicket {
    home: Home,
    flow: String,
    outcome: Arc<Outcome>,
}

impl FlowTicket {
    /// Whether the copy has ended, well or not. True in a forked child, where nothing ends it.
    #[must_use]
    pub fn is_done(&self) -> bool {
        !self.home.is_here() || lock(&self.outcome.result).is_some()
    }

    /// Waits for the end of the copy, for `limit` at most.
    ///
    /// # Errors
    /// Those of [`Flow::copy`]; and `ErrorKind::Device` when time is up, after which it can be waited for again.
    pub fn wait(&self, limit: Duration) -> Result<FlowReport, Error> {
        at_home(self.home, FLOW)?;
        let result = lock(&self.outcome.result);
        let (mut result, _) = self
            .outcome
            .came
            .wait_timeout_while(result, limit, |result| result.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        let flow = || self.flow.clone();
        match &mut *result {
            Some(Ok(report)) => Ok(report.clone()),
            Some(Err(error)) => {
                Err(error.take().unwrap_or_else(|| Failure::Flow(FlowError::Told { flow: flow() }).into()))
            }
            None => Err(Failure::Flow(FlowError::Late { flow: flow(), after: limit }).into()),
        }
    }
}

impl Flow {
    /// What was promised when it was opened.
    #[must_use]
    pub fn admitted(&self) -> &FlowAdmitted {
        &self.0.admitted
    }

    #[must_use]
    pub fn contract(&self) -> &FlowContract {
        &self.0.contract
    }

    /// The longest response that is promised now. It grows when other flows join, and never beyond the deadline.
    #[must_use]
    pub fn bound(&self) -> Nanos {
        let bound = || self.0.node.book().bound(self.0.admitted.flow);
        self.0.node.here().ok().and_then(|()| bound()).unwrap_or(self.0.contract.deadline)
    }

    /// Makes one copy on the calling thread, and returns when the bytes are there. One that comes earlier than the contract allows waits
    /// until then.
    ///
    /// # Errors
    /// `ErrorKind::Options` for a copy that is none of the flow's, `ErrorKind::Device` for one that failed. A missed deadline is no
    /// error: the report says so.
    pub fn copy(&self, copy: FlowCopy) -> Result<FlowReport, Error> {
        self.0.perform(copy, None, &mut || false)
    }

    /// As [`Flow::copy`]; `stop` is asked now and then while the copy is held until the contract allows it, and ends that.
    ///
    /// # Errors
    /// Those of [`Flow::copy`], and `ErrorKind::Interrupted` if `stop` said so.
    pub fn copy_unless(&self, copy: FlowCopy, stop: &mut dyn FnMut() -> bool) -> Result<FlowReport, Error> {
        self.0.perform(copy, None, stop)
    }

    /// Has the flow's own thread make one copy, after those that were submitted before. The copy counts as released now, or when its CUDA
    /// stream has come to this point.
    ///
    /// # Errors
    /// Those of [`Flow::copy`]; where 64 copies wait already; and where no thread can be started.
    pub fn submit(&self, copy: FlowCopy) -> Result<FlowTicket, Error> {
        let shared = &self.0;
        shared.node.here()?;
        let mut jobs = lock(&shared.jobs);
        if jobs.is_closed {
            return Err(Failure::Flow(SubmitRefused::Unknown.into()).into());
        }
        // The book counts copies between addresses when their streams have come to them.
        if jobs.waiting.len() >= LIMITS.jobs_max {
            let (name, limit) = (shared.contract.name.clone(), LIMITS.jobs_max);
            return Err(Failure::Flow(SubmitRefused::Full { name, limit }.into()).into());
        }
        if !jobs.is_served {
            let serving = Arc::clone(shared);
            let started = threads::spawn("headway-flow", move || serving.serve());
            let flow = shared.contract.name.clone();
            started.map_err(|error| Failure::Flow(FlowError::Thread { flow, reason: error.to_string() }))?;
            jobs.is_served = true;
        }
        let job = match &copy {
            FlowCopy::Buffers { device, bytes, .. } => Some(shared.take_between_buffers(device, *bytes)?),
            FlowCopy::Addresses(_) => None,
        };
        let outcome = Arc::<Outcome>::default();
        jobs.waiting.push_back((copy, job, Arc::clone(&outcome)));
        shared.came.notify_all();
        Ok(FlowTicket { home: shared.node.home, flow: shared.contract.name.clone(), outcome })
    }

    /// Gives the flow's capacity back, when copies that were submitted have ended and theory allows it.
    pub fn close(self) {}

    /// Takes no copies any more, and waits until those that were submitted have ended. One that is held until the contract allows it is
    /// not made.
    pub fn finish(&self) {
        let shared = &self.0;
        if shared.node.here().is_err() {
            return;
        }
        shared.end();
        let jobs = lock(&shared.jobs);
        drop(shared.came.wait_while(jobs, |jobs| jobs.is_served).unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Shared {
    /// No copies come any more.
    fn end(&self) {
        if self.node.here().is_err() {
            // The flow goes on in the parent.
            return;
        }
        let mut jobs = lock(&self.jobs);
        // Else the thread that makes the last copies closes the flow behind them.
        let is_at_work = jobs.is_served && !(jobs.is_idle && jobs.waiting.is_empty());
        let leaves = !jobs.is_closed && !is_at_work;
        jobs.is_closed = true;
        self.came.notify_all();
        drop(jobs);
        if leaves {
            self.leave();
        }
    }

    /// Waits until a copy counts as released.
    fn hold(&self, job: &FlowJob, stop: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        let why: Failure = loop {
            let left = job.release.saturating_sub(clock::now());
            let spare = left.saturating_sub(HELD_AWAKE);
            if spare == Nanos::ZERO {
                clock::sleep_until(job.release);
                return Ok(());
            }
            let (jobs, nap) = (lock(&self.jobs), Duration::from_nanos(spare.min(HELD_NAP).0));
            let waited = self.came.wait_timeout_while(jobs, nap, |jobs| !jobs.is_closed);
            if waited.unwrap_or_else(PoisonError::into_inner).0.is_closed {
                break FlowError::Closed { flow: self.contract.name.clone() }.into();
            }
            if let Err(lost) = self.connected() {
                break lost;
            }
            if stop() {
                break Failure::Interrupted;
            }
        };
        // There is such a job: it was submitted.
        let _ = self.node.book().failed(clock::now(), job.flow, job.sequence);
        Err(why.into())
    }

    /// An error if the flow was lost with the connection to its broker.
    fn connected(&self) -> Result<(), Failure> {
        match &self.broker {
            Some(of) if of.client.is_lost() => Err(FlowError::BrokerLost { flow: self.contract.name.clone() }.into()),
            _ => Ok(()),
        }
    }

    fn take(&self, bytes: Bytes) -> Result<FlowJob, Error> {
        self.connected()?;
        let now = clock::now();
        let taken = self.node.book().submit(now, self.admitted.flow, bytes);
        taken.map_err(|refused| Failure::Flow(refused.into()).into())
    }

    /// Takes a copy between buffers, if the flow's GPU has `device`.
    fn take_between_buffers(&self, device: &FlowPlace, bytes: usize) -> Result<FlowJob, Error> {
        let gpu = self.node.copiers.copier().gpu_of(&device.buffer).map_err(Failure::Copy)?;
        if gpu != self.contract.gpu as usize {
            return Err(self.wrong("its memory is that of another GPU"));
        }
        self.take(Bytes(bytes as u64))
    }

    /// Makes submitted copies one after the other until the flow is closed.
    fn serve(&self) {
        let mut jobs = lock(&self.jobs);
        loop {
            let Some((copy, job, outcome)) = jobs.waiting.pop_front() else {
                if jobs.is_closed {
                    break;
                }
                jobs = self.came.wait(jobs).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            jobs.is_idle = false;
            drop(jobs);
            let made = self.perform(copy, job, &mut || false);
            // Before anybody knows, who may close the flow then.
            lock(&self.jobs).is_idle = true;
            outcome.tell(made);
            jobs = lock(&self.jobs);
        }
        drop(jobs);
        self.leave();
        lock(&self.jobs).is_served = false;
        self.came.notify_all();
    }

    /// Closes the flow, and has its capacity given back when that is possible.
    fn leave(&self) {
        let (gpu, direction) = (self.contract.gpu, self.contract.direction);
        let Ok(closed) = self.node.book().close(clock::now(), self.admitted.flow) else { return };
        if let (Some(sharing), Some(broker)) = (self.node.sharing.get(), &self.broker) {
            lock(&sharing.leaving).push((self.admitted.flow, broker.clone()));
        } else if closed.has_returned
            && let Ok(_alone) = self.node.changing.try_lock()
        {
            // A larger limit waits for nobody.
            let _ = self.node.limit(gpu, direction);
            return;
        }
        let node: Weak<Inner> = Arc::downgrade(&self.node);
        let flow: FlowId = self.admitted.flow;
        let give_back = move || {
            while let Some(node) = node.upgrade() {
                let alone = lock(&node.changing);
                node.book().rest(clock::now(), gpu, direction);
                if node.book().bound(flow).is_none() {
                    // A larger limit waits for nobody.
                    let _ = node.limit(gpu, direction);
                    drop(alone);
                    node.sharing.get().inspect(|sharing| node.tell_left(sharing));
                    return;
                }
                drop(alone);
                drop(node);
                // At that time it leaves at the latest; sooner if nothing promised is there.
                std::thread::sleep(if clock::now() < closed.returns_from { LEAVING_LOOK } else { LOOK });
            }
        };
        // Without a thread the next flow that opens gives it back.
        let _ = threads::spawn("headway-flows", give_back);
    }

    fn perform(
        &self,
        copy: FlowCopy,
        job: Option<FlowJob>,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<FlowReport, Error> {
        self.node.here()?;
        match (copy, &self.node.copiers) {
            (FlowCopy::Buffers { device, host, bytes }, copiers) => {
                let job = job.map_or_else(|| self.take_between_buffers(&device, bytes), Ok)?;
                let copier = copiers.copier();
                self.run(job, stop, |promise| {
                    copier.promised_pinned(self.contract.direction, device.at(), host.at(), bytes, promise)
                })
            }
            (FlowCopy::Addresses(raw), Copiers::Streams(streams)) => {
                streams.lent(raw, self.node.patience, |ends| self.between(streams.copier(), ends, stop))?
            }
            (FlowCopy::Addresses(_), Copiers::Buffers(_)) => {
                Err(self.wrong("this node copies between buffers, not addresses"))
            }
        }
    }

    fn between(
        &self,
        copier: &Copier,
        ends: LentEnds<'_>,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<FlowReport, Error> {
        let at = At { buffer: ends.device, offset: 0 };
        match (ends.host, self.contract.direction) {
            (HostEnd::Source(from), Direction::H2d) => {
                let job = self.take(Bytes(from.len() as u64))?;
                self.run(job, stop, |promise| copier.promised_in(at, from, promise))
            }
            (HostEnd::Destination(to), Direction::D2h) => {
                let job = self.take(Bytes(to.len() as u64))?;
                self.run(job, stop, |promise| copier.promised_out(to, at, promise))
            }
            _ => Err(self.wrong("its addresses are those of a copy in the other direction")),
        }
    }

    fn wrong(&self, reason: &'static str) -> Error {
        Failure::Flow(FlowError::Buffers { flow: self.contract.name.clone(), reason }).into()
    }

    fn run(
        &self,
        job: FlowJob,
        stop: &mut dyn FnMut() -> bool,
        make: impl FnOnce(Promise) -> Result<PromisedCopy, CopyError>,
    ) -> Result<FlowReport, Error> {
        self.hold(&job, stop)?;
        let book = || self.node.book();
        let (flow, sequence) = (job.flow, job.sequence);
        let gone = |_| Error::from(Failure::Flow(SubmitRefused::Unknown.into()));
        if job.on_miss == OnMiss::Skip && clock::now() >= job.deadline {
            let now = clock::now();
            let facts = JobFacts { asked: now, ..JobFacts::default() };
            let job = book().given_up(now, flow, sequence, facts).map_err(gone)?;
            return Ok(FlowReport { job, moved: None });
        }
        let chunk = book().begin(clock::now(), flow, sequence).map_err(gone)?;
        match make(Promise { deadline: job.deadline, class: job.class(), chunk }) {
            Ok(moved) => {
                let PromisedCopy { asked, ended, engine, longest_chunk, chunks, unpromised, .. } = moved;
                let waited = ended.saturating_sub(asked).saturating_sub(engine);
                let before = ChunksAhead {
                    owner: ChunkOwner::Unpromised,
                    chunks: unpromised,
                    time: Nanos::ZERO,
                    longest: moved.longest_unpromised,
                };
                let ahead = (unpromised > 0).then_some(before).into_iter().collect();
                let facts = JobFacts { asked, waited, engine, chunks, longest_chunk, ahead };
                let mut book = book();
                let (gpu, direction) = (self.contract.gpu, self.contract.direction);
                let most = book.chunk_cost(gpu, direction, chunk).unwrap_or(Nanos::MAX);
                // A job that is not over yet cannot tell of its chunk that this one waited for.
                if moved.longest_promised > most.max(longest_chunk) {
                    let (owner, took) = (ChunkOwner::Promised, moved.longest_promised);
                    book.fault(ended, gpu, direction, FlowFault::LongChunk { owner, took, most });
                }
                let job = book.ended(ended, flow, sequence, facts).map_err(gone)?;
                drop(book);
                Ok(FlowReport { job, moved: Some(moved) })
            }
            Err(error) => {
                // The copy's error says more.
                let _ = book().failed(clock::now(), flow, sequence);
                Err(Failure::Copy(error).into())
            }
        }
    }
}
