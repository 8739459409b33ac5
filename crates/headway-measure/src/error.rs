//! What can fail in a measurement, beside what fails in `headway`.

use std::io;
use std::path::PathBuf;

use headway_core::files::error::FileError;
use headway_core::interconnect::fit::FitError;
use headway_device::{DeviceError, WorkError};
use headway_os::OsError;
use headway_runtime::copy::CopyError;

use headway::{Diagnosis, Failure};

use crate::plot::PlotError;

/// What failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Something that is not peculiar to measurements.
    #[error(transparent)]
    Headway(#[from] Failure),
    /// Somebody asked the measurement to end.
    #[error("interrupted; `{journal}` keeps what was measured")]
    Paused { journal: PathBuf },
    /// A copy brought other bytes than it should have.
    #[error("a copy of gpu{gpu} is wrong: {copy}: byte {at} differs")]
    WrongCopy {
        copy: String,
        /// Position of the GPU.
        gpu: usize,
        /// First byte that differs.
        at: u64,
    },
    /// No machine fits what was measured.
    #[error("no machine fits what was measured")]
    Fit(#[from] FitError),
    /// What has been measured cannot be kept.
    #[error("cannot keep what has been measured")]
    Journal(#[source] io::Error),
    /// An interrupted measurement of something else is kept where this one would keep what it has done.
    #[error("`{journal}` keeps another measurement that was interrupted: {difference}")]
    OtherJournal {
        journal: PathBuf,
        /// In what they differ.
        difference: String,
    },
    /// Two measurements into one file.
    #[error("another measurement writes to `{journal}` now")]
    JournalInUse { journal: PathBuf },
    /// A file has the name of a journal and is none.
    #[error("`{path}` is not what a measurement keeps")]
    NoJournal { path: PathBuf },
    /// Something else stands where results belong.
    #[error("`{folder}` exists, and {reason}")]
    InTheWay {
        folder: PathBuf,
        /// Why it is no earlier result.
        reason: String,
        /// What summaries of earlier results are called.
        title: String,
    },
    /// A plot cannot be drawn.
    #[error(transparent)]
    Plot(#[from] PlotError),
    /// A workload whose kernels were to be measured brings none.
    #[error("`{workload}` names no kernel of its own")]
    NoOwnKernels { workload: PathBuf },
    /// A file that would be replaced.
    #[error("`{path}` exists")]
    Exists { path: PathBuf },
    /// The file that is to be completed describes another node.
    #[error("`{path}` has {file} GPUs, and {here} are here")]
    OtherNode {
        path: PathBuf,
        /// GPUs in it.
        file: usize,
        /// GPUs here.
        here: usize,
    },
}

/// What comes from below is an error of `headway`.
macro_rules! through {
    ($($error:ty),* $(,)?) => {
        $(impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Self::Headway(error.into())
            }
        })*
    };
}

through!(DeviceError, WorkError, CopyError, OsError, FileError);

impl From<headway::Error> for Error {
    fn from(error: headway::Error) -> Self {
        Self::Headway(error.into_failure())
    }
}

impl Diagnosis for Error {
    fn word(&self) -> &'static str {
        match self {
            Self::Headway(error) => error.word(),
            Self::Paused { .. } => "interrupted",
            Self::WrongCopy { .. } => "wrong-bytes",
            Self::Fit(_) => "fit",
            Self::Journal(_) | Self::OtherJournal { .. } | Self::JournalInUse { .. } | Self::NoJournal { .. } => {
                "journal"
            }
            Self::InTheWay { .. } => "output",
            Self::Plot(_) => "plot",
            Self::NoOwnKernels { .. } => "no-kernels",
            Self::Exists { .. } => "exists",
            Self::OtherNode { .. } => "other-node",
        }
    }

    fn help(&self) -> Option<String> {
        let fixed = match self {
            Self::Headway(Failure::Backend { backend: "cuda", .. }) => {
                "measuring needs a GPU; `headway doctor` says what is missing. Without one, plan and run with a machine that is \
                 shipped (`headway machines`), or see with `--backend emu` how measuring works"
            }
            Self::Headway(error) => return error.help(),
            Self::Exists { .. } => "`--force` replaces it; or choose another file with `--out`",
            Self::NoOwnKernels { .. } => {
                "a step names one by `module`; kernels that ship are measured without `--workload`"
            }
            Self::Paused { .. } => "the same command goes on with it",
            Self::OtherJournal { .. } => {
                "to go on with it, repeat the command that began it; to begin anew, remove that file, or choose another \
                 with `--out`"
            }
            Self::JournalInUse { .. } => "wait for its end, or choose another file with `--out`",
            Self::NoJournal { .. } => "move it away, or choose another file with `--out`",
            Self::OtherNode { .. } => "measure everything, without `--only`",
            Self::InTheWay { title, .. } => {
                return Some(format!(
                    "nothing is replaced but earlier results of \"{title}\": choose another folder with `--out`"
                ));
            }
            Self::WrongCopy { .. } | Self::Fit(_) | Self::Journal(_) | Self::Plot(_) => return None,
        };
        Some(fixed.to_owned())
    }

    fn within(&self) -> Option<&dyn Diagnosis> {
        match self {
            Self::Headway(error) => Some(error),
            _ => None,
        }
    }
}
