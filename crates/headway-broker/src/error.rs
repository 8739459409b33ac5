//! What can fail at either end.

use std::io;
use std::path::PathBuf;

use headway_core::sharing::{GpuId, Refused};
use headway_os::OsError;

/// Why a request through the ring was refused; a number in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Reason {
    /// The task is not this client's, or has no such job.
    NotYours = 1,
    /// The task holds or waits already.
    Busy = 2,
    /// A limit of the broker.
    Limit = 3,
    /// The arbiter refuses such an operation: too large, not migrating, no token, no engine locks.
    Operation = 4,
    /// Every GPU of the task's cluster is lost.
    NoGpu = 6,
    /// A reason of a broker newer than this client.
    Other = 5,
}

impl Reason {
    pub(crate) const fn of(number: u64) -> Self {
        match number {
            1 => Self::NotYours,
            2 => Self::Busy,
            3 => Self::Limit,
            4 => Self::Operation,
            6 => Self::NoGpu,
            _ => Self::Other,
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NotYours => "the task is not this client's or has no such job",
            Self::Busy => "the task already holds or waits for this; release it first",
            Self::Limit => "a limit of the broker is reached",
            Self::Operation => {
                "the operation is not allowed here: check its size, its token and whether engine locks are on"
            }
            Self::NoGpu => "every GPU of the task's cluster is lost",
            Self::Other => "for a reason that this version does not know",
        })
    }
}

/// A broker that cannot start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The socket cannot be made.
    #[error("cannot listen at `{path}`")]
    Listen {
        /// Where.
        path: PathBuf,
        /// Why.
        source: OsError,
    },
    /// A folder or file beside the socket cannot be used.
    #[error("cannot use `{path}`")]
    Place {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another broker is there.
    #[error("a broker already listens at `{path}`; stop it, or choose another socket with `--socket`")]
    Running {
        /// Where.
        path: PathBuf,
    },
    /// The parameters cannot work.
    #[error("these GPUs cannot be shared so")]
    Parameters(#[source] Refused),
    /// More GPUs than pages have room for.
    #[error("{gpus} GPUs are more than the {max} that a broker arbitrates")]
    TooManyGpus {
        /// Given.
        gpus: usize,
        /// Allowed.
        max: usize,
    },
    /// The system refused something that the broker cannot do without.
    #[error("the broker cannot go on")]
    System(#[from] OsError),
    /// The log cannot be written.
    #[error("cannot write the log `{path}`")]
    Log {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// What a client is told instead of what it asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Nobody listens, or the connection was refused.
    #[error("cannot reach a broker at `{path}`; start one with `headway broker`, or name its socket")]
    Connect {
        /// Where.
        path: PathBuf,
        /// Why.
        source: OsError,
    },
    /// The broker is gone.
    #[error("the broker is gone")]
    Lost,
    /// The broker says no.
    #[error("the broker refuses: {reason}")]
    Refused {
        /// Why.
        reason: String,
    },
    /// A request through the ring was refused.
    #[error("the request is refused: {0}")]
    Request(Reason),
    /// What was held has been taken away.
    #[error("the GPU was taken away")]
    Revoked,
    /// The GPU is lost, and what was held or waited for with it.
    #[error("GPU {} is lost: the token and everything on the GPU are gone; ask for another one, and begin the job anew", .gpu.0)]
    GpuLost {
        /// Which.
        gpu: GpuId,
    },
    /// Nothing was granted in the time given.
    #[error("nothing was granted in the time given; the request is withdrawn")]
    TimedOut,
    /// The broker speaks another version or sends what makes no sense.
    #[error("the broker does not keep to the protocol: {what}; use the same version of both")]
    Protocol {
        /// What was wrong.
        what: &'static str,
    },
    /// More tasks than a client may have.
    #[error("a client has at most {max} tasks; start another process")]
    TooManyTasks {
        /// The limit.
        max: usize,
    },
    /// The system refused something.
    #[error(transparent)]
    System(#[from] OsError),
}
