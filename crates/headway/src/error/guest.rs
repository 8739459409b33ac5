//! Why a program cannot be started as a guest.

use std::io;
use std::path::{Path, PathBuf};

use headway_core::files::guest::DEPTH_MAX;
use headway_core::units::Bytes;

/// The library's file name.
pub(crate) const LIBRARY: &str = "libheadway_preload.so";

/// Why a program cannot be started as a guest.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuestError {
    /// The library that goes in front of it is missing.
    #[error("`{LIBRARY}` was not found in {searched}")]
    NoLibrary {
        /// Folders that were searched.
        searched: String,
    },
    /// A path that the loader would take for two, since it separates paths by spaces and colons.
    #[error("the path of the library, `{path}`, has a space or a colon in it, which `LD_PRELOAD` cannot express")]
    Unspeakable { path: PathBuf },
    /// A chunk so small that the engine would spend its time on set-up.
    #[error("chunks of {} bytes are smaller than 64 KiB", asked.0)]
    SmallChunk {
        /// The chunk.
        asked: Bytes,
    },
    /// A depth that holds back everything, or nothing.
    #[error("a depth of {asked} cannot be meant: it is 1 to {DEPTH_MAX} launches")]
    Depth {
        /// The depth.
        asked: u32,
    },
    /// Memory is to be pinned for copies that are left to the driver.
    #[error("`pin-once` is for copies that `fast` makes, and `fast` is off")]
    PinsWithoutFast,
    /// A file of something else lies where the log would be written.
    #[error("`{path}` exists and is not the log of a guest")]
    NoLog { path: PathBuf },
    /// The log could not be prepared.
    #[error("cannot write the log `{path}`")]
    Log { path: PathBuf, source: io::Error },
    /// A share of which nothing is known.
    #[error(
        "a share of {percent} %{} cannot be meant: it is 1 % to 100 % of the multiprocessors, and memory of 1 MiB and more",
        memory.map_or_else(String::new, |memory| format!(" with {memory} of memory"))
    )]
    NoShare {
        /// Of the multiprocessors.
        percent: u8,
        /// Of the memory of each GPU.
        memory: Option<Bytes>,
    },
    /// Nobody runs an MPS daemon that the program could join.
    #[error("{}", no_mps(socket, *is_there))]
    NoMps {
        /// Where a broker was looked for.
        socket: PathBuf,
        /// Whether there is one.
        is_there: bool,
    },
    /// The program could not be started.
    #[error("cannot start `{program}`")]
    Start { program: String, source: io::Error },
}

impl GuestError {
    pub(crate) fn help(&self) -> &'static str {
        match self {
            Self::NoLibrary { .. } => {
                "`cargo build --release` builds it next to `headway`; an installed `headway` looks in `../lib/headway`, too"
            }
            Self::Unspeakable { .. } => "move Headway to a folder without spaces and colons",
            Self::SmallChunk { .. } => "4 MiB is a good chunk for PCIe 5; `--yield=auto` takes it",
            Self::Depth { .. } => "`--depth 1` lets other programs in after each launch",
            Self::PinsWithoutFast => "leave out one of them",
            Self::NoLog { .. } => "name another file; only logs of guests are replaced",
            Self::Log { .. } => "name a file in a folder that exists and that you may write",
            Self::NoShare { .. } => "`--share 90%` leaves a tenth to the job beside it",
            Self::NoMps { .. } => {
                "`headway broker --mps` runs an MPS daemon; `headway doctor` says whether that is possible here. Without `--share` the \
                 program computes in turns with others"
            }
            Self::Start { program, .. } if ["on", "off", "always", "auto", "never"].contains(&program.as_str()) => {
                "the value of an option follows `=`, as in `--fast=off`, `--aside=always` and `--yield=never`"
            }
            Self::Start { program, .. } if program.parse::<Bytes>().is_ok() => {
                "the value of an option follows `=`, as in `--pin-once=4GB` and `--yield=4MiB`"
            }
            Self::Start { .. } => "check the command behind `--`; it is looked for in `$PATH`",
        }
    }
}

fn no_mps(socket: &Path, is_there: bool) -> String {
    let socket = socket.display();
    if is_there {
        format!("the broker at `{socket}` runs no MPS daemon for this user, so that a share of a GPU cannot be given")
    } else {
        format!("no broker listens at `{socket}`, so that a share of a GPU cannot be given")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_taken_for_the_program_is_told_from_a_program_that_is_not_there() {
        let help = |program: &str| {
            GuestError::Start { program: program.to_owned(), source: io::ErrorKind::NotFound.into() }.help()
        };
        assert!(
            help("off").contains("`--fast=off`")
                && help("4 MiB").contains("`--yield=4MiB`")
                && help("progam").contains("behind `--`")
        );
    }
}
