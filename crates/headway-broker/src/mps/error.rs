//! Why a broker does not start with a daemon of MPS.

use std::path::PathBuf;

use super::{FOLDER_BYTES_MAX, PIPE_VARIABLE, PROGRAM};

/// Why a broker does not start with a daemon of MPS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MpsError {
    /// Another daemon is there.
    #[error(
        "an MPS daemon runs already: process {pid} of user {uid}, which serves `{folder}`. Stop it (`echo quit | {PROGRAM}`, as that \
         user), or leave `--mps` out and start programs with {PIPE_VARIABLE}={folder}"
    )]
    Running {
        /// Its process.
        pid: u32,
        /// Its user.
        uid: u32,
        /// Where clients meet it.
        folder: String,
    },
    /// The folder has a path that the daemon's sockets cannot have.
    #[error(
        "the path of the MPS daemon's folder, `{folder}`, has {bytes} bytes, and its sockets leave room for {FOLDER_BYTES_MAX}; \
         choose a shorter `--socket`"
    )]
    Long {
        /// Where the daemon was to have its pipes.
        folder: PathBuf,
        /// Length of its path.
        bytes: usize,
    },
    /// One daemon serves one user.
    #[error(
        "an MPS daemon serves the user who runs it and nobody else: leave `--group` or `--mps` out, and let each user run a broker \
         for the processes that share GPUs so"
    )]
    Group,
    /// The compute mode of a GPU does not allow it.
    #[error("{0}")]
    Forbidden(String),
    /// The guardian could not be started.
    #[error("cannot start the guardian of the MPS daemon")]
    Guardian(#[source] std::io::Error),
    /// The daemon could not be started.
    #[error("cannot start the MPS daemon: {0}")]
    Start(String),
}
