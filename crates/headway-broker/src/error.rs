//! What can fail at either end.

use std::io;
use std::path::PathBuf;

use headway_core::decisions::sharing::{ArbiterRefused, GpuId};
use headway_core::units::Nanos;
use headway_os::OsError;

use crate::mps::MpsError;

/// Why a request through the ring was refused; a number in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum RefusalReason {
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

impl RefusalReason {
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

impl std::fmt::Display for RefusalReason {
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
    Listen { path: PathBuf, source: OsError },
    /// A folder or file next to the socket cannot be used.
    #[error("cannot use `{path}`")]
    Place { path: PathBuf, source: io::Error },
    /// The limit on open files leaves no room for clients.
    #[error(
        "at most {limit} open files are allowed, and the broker needs {least} or more; raise the limit (`ulimit -n 4096`)"
    )]
    TooFewDescriptors {
        /// The limit, hard and soft.
        limit: usize,
        /// The least that the broker starts with.
        least: usize,
    },
    /// Another broker is there.
    #[error("a broker already listens at `{path}`; stop it, or choose another socket with `--socket`")]
    Running { path: PathBuf },
    /// Something else has the socket's name.
    #[error(
        "`{path}` is {}, and is not replaced; move it away, or choose another socket with `--socket`",
        if *is_socket { "a socket that no broker of Headway is known to have left" } else { "no socket" }
    )]
    Occupied {
        /// The socket's path.
        path: PathBuf,
        /// Whether it is a socket.
        is_socket: bool,
    },
    /// A broker for the same GPU is there, at this socket or another one.
    #[error("GPU `{gpu}` is arbitrated already, by {}; end that one, or share other GPUs", claimant(*.holder))]
    Claimed {
        /// Its UUID.
        gpu: String,
        /// Process and user that have claimed it, if the system tells.
        holder: Option<(u32, u32)>,
    },
    /// Another process has locked the file that stands for the GPU where processes of several network namespaces see it.
    #[error(
        "GPU `{gpu}` is arbitrated already: another process has locked `{}`, a file of user {owner}; end that one (`fuser` names it), \
         remove the file if that is no broker, or share other GPUs",
        file.display()
    )]
    Locked {
        /// Its UUID.
        gpu: String,
        /// The locked file, which has the UUID in its name.
        file: PathBuf,
        /// The owner of the file; another user may have locked it.
        owner: u32,
    },
    /// The parameters cannot work.
    #[error("these GPUs cannot be shared so")]
    Parameters(#[source] ArbiterRefused),
    /// More GPUs than pages have room for.
    #[error("{gpus} GPUs are more than the {max} that a broker arbitrates")]
    TooManyGpus { gpus: usize, max: usize },
    /// The system refused something that the broker cannot do without.
    #[error("the broker cannot go on")]
    System(#[from] OsError),
    /// The log cannot be written.
    #[error("cannot write the log `{path}`")]
    Log { path: PathBuf, source: io::Error },
    /// The MPS daemon cannot be run.
    #[error(transparent)]
    Mps(#[from] MpsError),
}

/// What is wrong with a name for which [`is_abstract`](crate::place::is_abstract) holds.
pub(crate) const ABSTRACT: &str = "names that begin with `@` are those of abstract sockets, which have no owner and are not used; give a path, with `./` in \
     front for a file of this name";

/// Why a client does not get what it asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No broker listens, or the connection was refused.
    #[error("cannot reach a broker at `{path}`; start one with `headway broker`, or name its socket")]
    Connect { path: PathBuf, source: OsError },
    /// The name is no path.
    #[error("cannot reach a broker at `{path}`: {}", ABSTRACT)]
    Abstract {
        /// The name.
        path: PathBuf,
    },
    /// A broker is there and accepts no connections.
    #[error(
        "so many wait at `{path}` that nobody else can: the broker there is stopped, or hangs; let it go on, or end it"
    )]
    Crowded {
        /// The socket's path.
        path: PathBuf,
    },
    /// The socket is served by a user that the client does not trust.
    #[error(
        "process {pid} of user {uid} serves `{path}`, and {expected} should: nothing was said to it; find out who it is, or name \
         another socket with `--socket`"
    )]
    Stranger {
        /// The socket's path.
        path: PathBuf,
        /// The process.
        pid: u32,
        /// Its user.
        uid: u32,
        /// The users that may serve there.
        expected: String,
    },
    /// The broker is there and does not answer.
    #[error("{}", silent(*.pid, *.waited, *.is_stopped))]
    Silent {
        /// Its process.
        pid: u32,
        /// For how long.
        waited: Nanos,
        /// Whether the process is stopped.
        is_stopped: bool,
    },
    /// The broker is gone.
    #[error("the broker is gone")]
    Lost,
    /// The broker says no.
    #[error("the broker refuses: {reason}")]
    Refused { reason: String },
    /// A request through the ring was refused.
    #[error("the request is refused: {0}")]
    Request(RefusalReason),
    /// What was held has been taken away.
    #[error("the GPU was taken away")]
    Revoked,
    /// The GPU is lost, and what was held or waited for with it.
    #[error("GPU {} is lost: the token and everything on the GPU are gone; ask for another one, and begin the job anew", .gpu.0)]
    GpuLost { gpu: GpuId },
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
    /// Others could have put something else into the folder of the broker's MPS daemon.
    #[error("the folder `{path}` of the broker's MPS daemon is not used")]
    MpsFolder { path: PathBuf, source: io::Error },
    /// The system refused something.
    #[error(transparent)]
    System(#[from] OsError),
}

fn claimant(holder: Option<(u32, u32)>) -> String {
    holder.map_or_else(|| "another process".to_owned(), |(pid, uid)| format!("process {pid} of user {uid}"))
}

fn silent(pid: u32, waited: Nanos, is_stopped: bool) -> String {
    if is_stopped {
        return format!(
            "the broker (process {pid}) is stopped and has not answered for {waited}; `kill -CONT {pid}` lets it go on"
        );
    }
    format!(
        "the broker (process {pid}) has not answered for {waited}: it hangs, or the machine has no time for it; try again, or end \
         it and start another one"
    )
}
