//! Operations, locks, actions and refusals of the engine locks.

use serde::{Deserialize, Serialize};

use crate::decisions::sharing::{GpuId, JobId, JobPriority};
use crate::units::{Bytes, Nanos};

/// An engine of a GPU as a lock sees it. On a GPU with one copy engine, both copy roles are the lock [`EngineRole::In`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EngineRole {
    Execute,
    /// Copies to the GPU (`h2d`).
    In,
    /// Copies from the GPU (`d2h`).
    Out,
}

/// One lock. The order is the lock number of nested requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LockId {
    pub gpu: GpuId,
    pub engine: EngineRole,
}

/// What a job wants an engine for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EngineWork {
    /// Kernels between two synchronisations, on the GPU of its token.
    Execute,
    /// A chunk from the host to the GPU of its token.
    CopyIn,
    /// A chunk from the GPU of its token to the host.
    CopyOut,
    /// A chunk of state from the GPU it leaves to the GPU of its token.
    Peer,
}

/// One operation: what is held until it has completed on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LockedOperation {
    pub work: EngineWork,
    /// Bytes; 0 for kernels.
    pub bytes: Bytes,
    /// Predicted time, used to fill locks held idle.
    pub predicted: Nanos,
    /// The longest it should take. A lock that is held twice as long gives an event, eight times as long is an overrun. Zero = not watched.
    pub budget: Nanos,
}

/// What the driver must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EngineLockAction {
    /// The job holds all locks of its operation.
    Run {
        job: JobId,
        /// The lock, or the lower of two; `None` = the copy needs none.
        first: Option<LockId>,
        /// The other lock of a peer copy.
        second: Option<LockId>,
    },
    /// The job holds the first lock of a nested pair and must ask for the second one.
    Obtained { job: JobId, lock: LockId },
    /// The job runs at this key.
    SetBoost { job: JobId, key: JobPriority },
}

/// What happened, for the user and the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineLockEvent {
    /// The operation waits in one or two queues.
    Waiting {
        job: JobId,
        /// Requests ahead of it in the longer queue, holder included.
        ahead: u32,
    },
    /// The operation was served out of order on a lock held idle.
    Backfilled { job: JobId, lock: LockId },
    /// The operation is under way for twice its budget.
    OverBudget { job: JobId, since: Nanos },
    /// The operation is under way for eight times its budget, or for the watchdog's time.
    Overrun { job: JobId, since: Nanos },
}

/// An input that cannot be accepted; nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineLockRefused {
    /// A GPU has one or two copy engines with a role.
    #[error("{copy_engines} copy engines per GPU: give 1 (both ways) or 2 (in, out)")]
    CopyEngines {
        /// What was given.
        copy_engines: u32,
    },
    /// A lock obtained early would be kept from more urgent operations.
    #[error("operations in the order of urgency need peer copies that take both locks at once; give `group`")]
    Order,
    /// Engines belong to holders of tokens.
    #[error("job {} of task {} holds no token; request one first", .job.job, .job.task.0)]
    NoToken { job: JobId },
    /// There are no locks for the GPU.
    #[error("GPU {} is not among those whose engines are locked here", .gpu.0)]
    NoSuchGpu { gpu: GpuId },
    /// The job was already given a token here.
    #[error("job {} of task {} is already known to the engine locks", .job.job, .job.task.0)]
    TokenTwice { job: JobId },
    /// One operation at a time.
    #[error("job {} of task {} already holds or waits for an engine; complete that operation first", .job.job, .job.task.0)]
    Busy { job: JobId },
    /// The job is not migrating.
    #[error("job {} of task {} has no state on another GPU to copy from", .job.job, .job.task.0)]
    NotMigrating { job: JobId },
    /// The job has no operation under way.
    #[error("job {} of task {} has no operation under way", .job.job, .job.task.0)]
    NothingHeld { job: JobId },
    /// The job has not obtained a first lock, or has asked for the second one already.
    #[error("job {} of task {} holds no first lock of a nested pair", .job.job, .job.task.0)]
    NoFirstLock { job: JobId },
    /// A copy is larger than the chunk.
    #[error("a copy of {bytes} in one operation; chunks are {chunk_bytes}, cut it")]
    ChunkTooLarge {
        /// The copy.
        bytes: Bytes,
        chunk_bytes: Bytes,
    },
}
