//! Sharing GPUs between the tasks of one process, or of many: the same calls, with an arbiter of one's own or a broker's.
//!
//! ```
//! use headway_core::decisions::engine_lock::{EngineWork, LockedOperation};
//! use headway_core::units::{Bytes, Nanos};
//! use headway_runtime::sharing::{Sharing, TaskShape};
//! # use headway_core::decisions::sharing::{ArbiterParameters, ClusterId, ClusterParameters};
//! # use headway_core::decisions::token::{TokenMode, TokenParameters};
//! # fn main() -> Result<(), headway_runtime::sharing::SharingError> {
//! # let tokens = TokenParameters { cpus: 4, per_gpu: 2, mode: TokenMode::Optimal, affinity: true };
//! # let parameters = ArbiterParameters::new(vec![ClusterParameters::equal(1, tokens)], None);
//! let sharing = Sharing::local(parameters)?;
//! # let shape = TaskShape { name: "klt".into(), cluster: ClusterId(0), period: Nanos(50_000_000),
//! #     deadline: Nanos(50_000_000), state: Bytes(0), segments: Vec::new(), thread: None };
//! let mut task = sharing.register(shape)?;
//! let mut job = task.job(headway_os::clock::now());
//! let mut gpu = job.acquire(None)?;
//! let run = LockedOperation { work: EngineWork::Execute, bytes: Bytes(0), predicted: Nanos(0), budget: Nanos(0) };
//! gpu.engine(run)?.release(); // launch kernels, wait until they have ended
//! gpu.release(Nanos(2_000_000));
//! # Ok(())
//! # }
//! ```

mod local;

use std::time::Duration;

use headway_broker::client::{BrokerEngine, BrokerTask, Token as BrokerToken};
use headway_core::decisions::engine_lock::LockedOperation;
use headway_core::decisions::sharing::{ArbiterParameters, ArbiterRefused, GpuId, TaskId};
use headway_core::units::Nanos;

pub use headway_broker::{Client, ClientError, TaskShape};

use self::local::{Local, LocalEngine, LocalTask, LocalToken};

/// Why a GPU cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharingError {
    /// The process's own arbiter says no.
    #[error(transparent)]
    Arbiter(#[from] ArbiterRefused),
    /// The broker says no, or is gone.
    #[error(transparent)]
    Broker(#[from] ClientError),
    /// Nothing was granted in the time given.
    #[error("nothing was granted in the time given; the request is withdrawn")]
    TimedOut,
}

/// Who arbitrates.
pub struct Sharing(Arbiter);

enum Arbiter {
    Local(Box<Local>),
    Broker(Client),
}

impl Sharing {
    /// An arbiter for the threads of this process. What other processes do with the GPUs it does not know.
    ///
    /// # Errors
    /// [`SharingError::Arbiter`] if the parameters cannot work.
    pub fn local(parameters: ArbiterParameters) -> Result<Self, SharingError> {
        Ok(Self(Arbiter::Local(Box::new(Local::new(parameters)?))))
    }

    /// The broker that `client` is connected to, for this process among others.
    #[must_use]
    pub fn by_broker(client: Client) -> Self {
        Self(Arbiter::Broker(client))
    }

    /// Registers a task.
    ///
    /// # Errors
    /// [`SharingError`] with the limit in the way.
    pub fn register(&self, shape: TaskShape) -> Result<Task<'_>, SharingError> {
        Ok(Task(match &self.0 {
            Arbiter::Local(local) => TaskOf::Local(local.register(shape)?),
            Arbiter::Broker(client) => TaskOf::Broker(client.register(shape)?),
        }))
    }
}

/// A registered task, whose jobs run one after the other.
pub struct Task<'sharing>(TaskOf<'sharing>);

enum TaskOf<'sharing> {
    Local(LocalTask<'sharing>),
    Broker(BrokerTask<'sharing>),
}

impl<'sharing> Task<'sharing> {
    /// Its number.
    #[must_use]
    pub fn id(&self) -> TaskId {
        match &self.0 {
            TaskOf::Local(task) => task.id(),
            TaskOf::Broker(task) => task.id(),
        }
    }

    /// Its next job, released at `release` on the clock of [`headway_os::clock::now`].
    pub fn job(&mut self, release: Nanos) -> TaskJob<'_, 'sharing> {
        TaskJob { task: self, release, acquisition: 0 }
    }
}

/// One job. It may ask for GPUs several times, one after the other.
pub struct TaskJob<'task, 'sharing> {
    task: &'task mut Task<'sharing>,
    release: Nanos,
    acquisition: u32,
}

impl<'sharing> TaskJob<'_, 'sharing> {
    /// Waits for a GPU, for at most `bound`.
    ///
    /// # Errors
    /// [`SharingError`].
    pub fn acquire(&mut self, bound: Option<Duration>) -> Result<GpuToken<'_, 'sharing>, SharingError> {
        let (release, acquisition) = (self.release, self.acquisition);
        let gpu = match &mut self.task.0 {
            TaskOf::Local(task) => GpuOf::Local(task.acquire(release, acquisition, bound)?),
            TaskOf::Broker(task) => match task.acquire(release, acquisition, bound) {
                Ok(token) => GpuOf::Broker(token),
                Err(ClientError::TimedOut) => return Err(SharingError::TimedOut),
                Err(error) => return Err(error.into()),
            },
        };
        self.acquisition += 1;
        Ok(GpuToken(gpu))
    }
}

/// The right to use a GPU: a token. Given back when dropped; then nothing is learnt from how it was used.
pub struct GpuToken<'job, 'sharing>(GpuOf<'job, 'sharing>);

enum GpuOf<'job, 'sharing> {
    Local(LocalToken<'job>),
    Broker(BrokerToken<'job, 'sharing>),
}

impl GpuToken<'_, '_> {
    #[must_use]
    pub fn id(&self) -> GpuId {
        match &self.0 {
            GpuOf::Local(token) => token.gpu(),
            GpuOf::Broker(token) => token.gpu(),
        }
    }

    /// Where the task's state is, if it is on another GPU: it must be moved first.
    #[must_use]
    pub fn from(&self) -> Option<GpuId> {
        match &self.0 {
            GpuOf::Local(token) => token.from(),
            GpuOf::Broker(token) => token.from(),
        }
    }

    /// Waits for the engines of one operation: a chunk, or the kernels between two synchronisations. Give them back when it
    /// *has completed on the device*.
    ///
    /// # Errors
    /// [`SharingError`].
    pub fn engine(&mut self, operation: LockedOperation) -> Result<EngineGuard<'_>, SharingError> {
        let held = match &mut self.0 {
            GpuOf::Local(token) => EngineOf::Local { _engine: token.engine(operation)? },
            GpuOf::Broker(token) => EngineOf::Broker { _engine: token.engine(operation)? },
        };
        Ok(EngineGuard { _held: held })
    }

    /// Gives the GPU back; `used` is the job's CPU time and the time of its operations, without waiting for engines.
    pub fn release(self, used: Nanos) {
        match self.0 {
            GpuOf::Local(token) => token.release(used),
            GpuOf::Broker(token) => token.release(used),
        }
    }
}

/// The engines of one operation. Given back when dropped.
pub struct EngineGuard<'gpu> {
    _held: EngineOf<'gpu>,
}

enum EngineOf<'gpu> {
    Local { _engine: LocalEngine<'gpu> },
    Broker { _engine: BrokerEngine<'gpu> },
}

impl EngineGuard<'_> {
    /// Gives the engines back: the operation has completed.
    pub fn release(self) {}
}
