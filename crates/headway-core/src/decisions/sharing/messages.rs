//! What goes into the [`super::Arbiter`] and what comes out: plain data, logged and replayed.

use serde::{Deserialize, Serialize};

use super::{ClientId, ClusterId, Distances, GpuId, JobId, JobPriority, ModelId, TaskId, TaskParameters, TokenId};
use crate::decisions::engine_lock::{self, EngineParameters, LockId, LockedOperation};
use crate::decisions::predictor::PredictorParameters;
use crate::decisions::token::{self, TokenParameters};
use crate::units::Nanos;

/// A cluster: its tokens and where its GPUs are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterParameters {
    pub id: ClusterId,
    /// GPUs by position, none of them in another cluster.
    pub gpus: Vec<GpuId>,
    /// Model of each GPU, by position.
    pub models: Vec<ModelId>,
    /// Distances by position.
    pub distances: Distances,
    /// How tokens are given.
    pub tokens: TokenParameters,
}

impl ClusterParameters {
    /// Cluster 0 of the first `gpus` GPUs, all of one model and equally far from each other.
    #[must_use]
    pub fn equal(gpus: u32, tokens: TokenParameters) -> Self {
        Self {
            id: ClusterId(0),
            gpus: (0..gpus).map(GpuId).collect(),
            models: vec![ModelId(0); gpus as usize],
            distances: Distances::uniform(gpus as usize),
            tokens,
        }
    }
}

/// What an arbiter is made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArbiterParameters {
    pub clusters: Vec<ClusterParameters>,
    /// Engine locks; `None` = none: a token is the right to every engine (`e` in the paper's scenarios).
    pub engines: Option<EngineParameters>,
    /// Cost predictor.
    pub predictor: PredictorParameters,
    pub limits: ArbiterLimits,
}

impl ArbiterParameters {
    /// These clusters and engine locks, with the usual predictor and limits.
    #[must_use]
    pub fn new(clusters: Vec<ClusterParameters>, engines: Option<EngineParameters>) -> Self {
        Self { clusters, engines, predictor: PredictorParameters::default(), limits: ArbiterLimits::default() }
    }
}

/// Capacities; what exceeds them is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArbiterLimits {
    /// Registered tasks.
    pub tasks_max: usize,
    /// Open token requests per cluster.
    pub requests_max: usize,
}

impl Default for ArbiterLimits {
    fn default() -> Self {
        Self { tasks_max: 4_096, requests_max: 4_096 }
    }
}

/// How a token was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TokenOutcome {
    /// The job did what its task does, in this time: CPU time and the time of its operations, without waiting for locks.
    Complete(Nanos),
    /// It was aborted, overran or crashed: nothing is learnt from it.
    Aborted,
}

/// An input. Nothing else changes the arbiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArbiterInput {
    /// A task appears.
    Register(TaskParameters),
    /// A task without an open request goes.
    Withdraw { task: TaskId },
    /// A job wants a token. A task's first GPU use, or the one after the GPU was lost, counts as distance 0 everywhere.
    Request {
        /// Which; its deadline and release are its priority.
        key: JobPriority,
        /// Which of the job's requests, from 0.
        acquisition: u32,
    },
    /// A job holds this token from before the arbiter was there: it is granted that, not another. To be told before any
    /// request.
    Adopt {
        key: JobPriority,
        /// The token of the task's cluster.
        token: TokenId,
    },
    /// A job gives its token back.
    Release {
        job: JobId,
        /// How it was used.
        outcome: TokenOutcome,
    },
    /// A job no longer wants the token it waits for. A token granted meanwhile is released.
    Abort { job: JobId },
    /// A job used up its budget. It continues with a later deadline: anew in the queue, or with the token it keeps.
    Exhausted {
        job: JobId,
        /// Its postponed deadline.
        deadline: Nanos,
    },
    /// A token holder wants an engine.
    Acquire {
        job: JobId,
        /// For what.
        operation: LockedOperation,
    },
    /// A job in nested mode asks for the second lock of a peer copy.
    Next { job: JobId },
    /// An operation has completed on the device: its locks are free.
    Complete { job: JobId },
    /// A process died. Its waiting requests go at once, its tokens after [`ArbiterInput::Drained`].
    ClientGone { client: ClientId },
    /// A dead process's GPU work has ended.
    Drained { client: ClientId },
    /// A GPU is lost: its tokens are withdrawn, and waiting jobs queue anew. [`ArbiterEvent::Inadmissible`] names tasks that no longer fit.
    GpuLost { gpu: GpuId },
    /// New parameters for a cluster's tokens; they apply when the present holders have finished.
    Reconfigure {
        cluster: ClusterId,
        /// The new ones.
        tokens: TokenParameters,
    },
    /// Clients of the arbiter before that have not come back are gone: the arbiter forgets their tasks.
    Recovered,
    /// Time passes.
    Timeout,
}

/// What the driver must do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArbiterAction {
    /// Tell the job that it holds a token.
    Grant {
        job: JobId,
        gpu: GpuId,
        token: TokenId,
        /// Where the task's state is, if it is elsewhere.
        from: Option<GpuId>,
    },
    /// Tell the job that it holds all locks of its operation: submit it.
    Run {
        job: JobId,
        /// The locks, ascending.
        locks: Vec<LockId>,
    },
    /// Tell the job that it holds the first lock of a nested pair: it must send [`ArbiterInput::Next`].
    Obtained {
        job: JobId,
        /// The first lock.
        lock: LockId,
    },
    /// Run the job at this priority.
    SetBoost {
        job: JobId,
        /// Its own key or the most urgent it inherits.
        key: JobPriority,
    },
    /// Tell the job that its token or request is void because a GPU is lost.
    Revoke { job: JobId, gpu: GpuId },
}

/// What happened, for the user and the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArbiterEvent {
    /// From a cluster's tokens.
    Token { cluster: ClusterId, event: token::TokenEvent },
    /// From the engine locks.
    Engine(engine_lock::EngineLockEvent),
    /// A GPU is lost, and what the tasks declare no longer fits: this one has no room.
    Inadmissible {
        task: TaskId,
        /// GPUs of its cluster that are left.
        gpus: u32,
    },
}

/// An input that cannot be accepted; nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArbiterRefused {
    /// The allocator refuses.
    #[error(transparent)]
    Token(#[from] token::TokenRefused),
    /// The engine locks refuse.
    #[error(transparent)]
    Engine(#[from] engine_lock::EngineLockRefused),
    /// No such task.
    #[error("task {} is not registered; register it first", .task.0)]
    UnknownTask { task: TaskId },
    /// A task of that number is there.
    #[error("task {} is already registered; withdraw it first or choose another number", .task.0)]
    TaskExists { task: TaskId },
    /// The task has a request open.
    #[error("task {} has a request open; it can go when that is released", .task.0)]
    TaskBusy { task: TaskId },
    /// No such cluster.
    #[error("there is no cluster {}", .cluster.0)]
    UnknownCluster { cluster: ClusterId },
    /// No such GPU, or one that is lost.
    #[error("GPU {} belongs to no cluster", .gpu.0)]
    UnknownGpu { gpu: GpuId },
    /// A GPU is in two clusters, or the lists of a cluster differ in length.
    #[error("cluster {} does not fit: each GPU in one cluster, with a model and a row of distances", .cluster.0)]
    Cluster { cluster: ClusterId },
    /// No room for another task.
    #[error("{tasks_max} tasks are registered, the most allowed; raise the limit")]
    TooManyTasks { tasks_max: usize },
    /// There are no engine locks in this configuration.
    #[error("engine locks are off: a token is the right to every engine of its GPU")]
    NoEngineLocks,
    /// A token is released while one of its engines is in use.
    #[error("task {} still holds or waits for an engine; complete the operation first", .task.0)]
    EngineInUse { task: TaskId },
    /// Inputs must come in order of time.
    #[error("time went back from {before} to {now}")]
    TimeWentBack {
        /// The time of the last input.
        before: Nanos,
        /// The time of this one.
        now: Nanos,
    },
}
