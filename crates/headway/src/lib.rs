//! Moves data between host and GPU memory, and shares GPUs between tasks, fast and on time.
//!
//! The one public API: the verbs of the command line as functions, and the crates below under their own names.
#![forbid(unsafe_code)]

pub mod broker;
pub mod copy;
pub mod cpus;
pub mod doctor;
#[doc(hidden)]
pub mod emulation;
mod error;
pub mod explain;
pub mod files;
pub mod guest;
pub mod keep;
mod logfile;
pub mod ports;
pub mod report;
pub mod run;
mod sample;
pub mod share;
#[doc(hidden)]
pub mod stamp;
#[doc(hidden)]
pub mod trackers;
#[doc(hidden)]
pub mod verify;
mod why;

pub use error::{Diagnosis, Error};
pub use headway_core as core;
pub use headway_device as device;
pub use headway_kernels as kernels;
pub use headway_os as os;
pub use headway_runtime as runtime;
pub use headway_sim as sim;
pub use headway_trace as trace;

/// Version of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Commit this build was made from, or `unknown`.
pub const COMMIT: &str = env!("HEADWAY_COMMIT");
