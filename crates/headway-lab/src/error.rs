//! What can fail in experiments, benchmarks, import and export, beside what fails in `headway` and in measurements.

use std::io;
use std::path::PathBuf;

use headway_core::files::error::FileError;
use headway_core::interconnect::fit::FitError;
use headway_core::log::Incomplete;
use headway_device::{DeviceError, WorkError};
use headway_os::OsError;
use headway_runtime::copy::CopyError;
use headway_runtime::kernels::KernelError;
use headway_runtime::outlet::OutputError;
use headway_runtime::wall::RunError;

use crate::formats::FormatError;
use headway::{Diagnosis, Failure};
use headway_measure as measure;
use headway_measure::plot::PlotError;

/// What failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Something that is not peculiar to the laboratory.
    #[error(transparent)]
    Headway(#[from] Failure),
    /// A measurement.
    #[error(transparent)]
    Measure(measure::Error),
    /// A file of another tool cannot become a workload.
    #[error("cannot import `{path}`")]
    Import {
        path: PathBuf,
        /// What went wrong with it.
        source: Box<FormatError>,
    },
    /// A workload cannot be said in the format of another tool.
    #[error("cannot export `{path}`")]
    Export {
        path: PathBuf,
        /// What went wrong with it.
        source: Box<FormatError>,
    },
    /// A file that would be replaced.
    #[error("`{path}` exists")]
    Exists { path: PathBuf },
    /// A process with a camera failed.
    #[error("camera {camera} failed: {reason}")]
    Camera {
        /// Number of the camera.
        camera: usize,
        /// What it said.
        reason: String,
    },
    /// A tracker's result differs from that of its CPU form.
    #[error("frame {frame} is wrong: what was tracked, or the state that moved, differs from what the CPU computes")]
    WrongTrack {
        /// First frame that was found wrong.
        frame: u64,
    },
    /// A table of results has not what is to be drawn.
    #[error("cannot draw `{path}`: {what}")]
    Rows {
        /// The table.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A process of this program could not be started, or did not do its part.
    #[error("cannot start a process of its own beside the benchmark")]
    Child(#[source] io::Error),
    /// A process that loads the machine could not be started.
    #[error("cannot load the machine with a process of its own")]
    Load {
        /// What went wrong with it.
        source: io::Error,
    },
    /// There is no such experiment.
    #[error("there is no experiment `{name}`; there are: {known}")]
    NoExperiment {
        name: String,
        /// Those that exist.
        known: String,
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

through!(DeviceError, WorkError, CopyError, OsError, FileError, OutputError, RunError, Incomplete, KernelError);

impl From<PlotError> for Error {
    fn from(error: PlotError) -> Self {
        Self::Measure(error.into())
    }
}

impl From<FitError> for Error {
    fn from(error: FitError) -> Self {
        Self::Measure(error.into())
    }
}

impl From<measure::Error> for Error {
    fn from(error: measure::Error) -> Self {
        match error {
            measure::Error::Headway(error) => Self::Headway(error),
            error => Self::Measure(error),
        }
    }
}

impl From<headway::Error> for Error {
    fn from(error: headway::Error) -> Self {
        Self::Headway(error.into_failure())
    }
}

impl Diagnosis for Error {
    fn word(&self) -> &'static str {
        match self {
            Self::Headway(error) => error.word(),
            Self::Measure(error) => error.word(),
            Self::Import { .. } => "import",
            Self::Export { .. } => "export",
            Self::Exists { .. } => "exists",
            Self::Camera { .. } => "camera",
            Self::WrongTrack { .. } => "wrong-bytes",
            Self::Rows { .. } => "plot",
            Self::Child(_) => "child",
            Self::Load { .. } => "load",
            Self::NoExperiment { .. } => "no-experiment",
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::Headway(error) => error.help(),
            Self::Measure(error) => error.help(),
            Self::Exists { .. } => Some("`--force` replaces it; or choose another file with `--out`".to_owned()),
            _ => None,
        }
    }

    fn within(&self) -> Option<&dyn Diagnosis> {
        match self {
            Self::Headway(error) => Some(error),
            Self::Measure(error) => Some(error),
            _ => None,
        }
    }
}
