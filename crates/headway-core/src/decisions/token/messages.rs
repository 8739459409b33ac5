//! Requests, actions, events and refusals of the token allocator.

use serde::{Deserialize, Serialize};

use super::{Sizes, TokenMode};
use crate::decisions::sharing::{ClientId, GpuId, JobId, JobPriority, TaskId, TokenId};
use crate::units::Nanos;

/// A request for a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRequest {
    /// The job and its priority.
    pub key: JobPriority,
    /// The client with which the request ends.
    pub client: ClientId,
    /// Predicted hold time on each GPU, by position.
    pub estimates: Vec<Nanos>,
}

/// What the driver must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TokenAction {
    /// The job holds a token.
    Grant {
        job: JobId,
        gpu: GpuId,
        /// Position of that GPU.
        position: u32,
        token: TokenId,
    },
    /// The holder runs at this key: its own or the most urgent it inherits.
    SetBoost { job: JobId, key: JobPriority },
    /// The job's token is void: its GPU is lost.
    Revoke { job: JobId, gpu: GpuId },
}

/// What happened, for the user and the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenEvent {
    /// The request entered a FIFO.
    Queued { job: JobId, token: TokenId },
    /// The request waits by priority.
    Deferred { job: JobId },
    /// The request lends its priority to another one.
    Donating {
        job: JobId,
        /// To which.
        donee: JobId,
    },
    /// A donor was pushed out of the most urgent requests by `by`, which took its donee.
    Evicted { job: JobId, by: JobId },
    /// A waiter moved to a FIFO that had become empty.
    Stolen {
        job: JobId,
        /// From which FIFO.
        from: TokenId,
        to: TokenId,
    },
    /// A holder gave its token to the next in its FIFO.
    HandedOver {
        /// From whom.
        from: JobId,
        /// To whom.
        to: JobId,
        token: TokenId,
    },
    /// A holder used up its budget: its place counts as free, its token is not.
    VirtuallyReleased { job: JobId, token: TokenId },
    /// A GPU is lost; its tokens are gone.
    GpuLost {
        gpu: GpuId,
        /// The queue sizes of the GPUs that are left; `None` = there are none.
        sizes: Option<Sizes>,
    },
    /// New parameters apply from now on.
    Reconfigured {
        /// The new queue sizes.
        sizes: Sizes,
    },
}

/// An input that cannot be accepted; nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenRefused {
    /// The parameters leave a request without room, or there is nothing to share.
    #[error(
        "{cpus} CPUs and {per_gpu} tokens on each of {gpus} GPUs do not work in mode {mode}: \
             there are from 1 to 1024 of each, and the FIFOs have room for all that may enter"
    )]
    Parameters {
        /// `m`.
        cpus: u32,
        /// `g`.
        gpus: u32,
        /// `rho`.
        per_gpu: u32,
        mode: TokenMode,
    },
    /// The task holds or waits for a token: tokens are the outermost lock and never nested.
    #[error("task {} already holds or waits for a token; release it first", .task.0)]
    TaskBusy { task: TaskId },
    /// The job has no request, or its task's request is another job's.
    #[error("job {} of task {} has no such request", .job.job, .job.task.0)]
    NoRequest { job: JobId },
    /// The job does not hold a token.
    #[error("job {} of task {} holds no token; abort the request instead", .job.job, .job.task.0)]
    NotHolder { job: JobId },
    /// Too many requests are open.
    #[error("{requests_max} requests are open, the most allowed; raise the limit")]
    TooManyRequests { requests_max: usize },
    /// The estimates do not fit the GPUs.
    #[error("a request has {given} estimates, but there are {gpus} GPUs; give one for each")]
    Estimates {
        /// Estimates given.
        given: usize,
        gpus: usize,
    },
    /// No such GPU, or one already lost.
    #[error("GPU {} is not among those that this cluster shares", .gpu.0)]
    NoGpu { gpu: GpuId },
    /// The token that a job holds from before is another's, or there is none of that number.
    #[error("token {} is taken or not there", .token.0)]
    NoToken { token: TokenId },
    /// A reconfiguration is under way.
    #[error("the last reconfiguration has not ended; wait until its event")]
    Reconfiguring,
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequestStanding {
    /// Behind others in a FIFO.
    Waiting {
        token: TokenId,
        /// Requests ahead, holder included.
        ahead: u32,
    },
    /// Lends its priority.
    Donor {
        /// To which task's request.
        donee: TaskId,
    },
    /// In the queue by priority.
    Deferred,
    /// Waits for a reconfiguration to end.
    Stopped,
    /// Holds a token.
    Holder {
        token: TokenId,
        /// Whether its budget is used up and its place counts as free.
        virtually_released: bool,
    },
}
