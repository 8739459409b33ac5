//! Moves data between host and GPU memory, and shares GPUs between tasks, fast and on time.
//!
//! A module for each verb, with the types that it needs:
//!
//! | module | does |
//! |---|---|
//! | [`copy`] | copies between host and GPU memory, each by the method that is best for it |
//! | [`flow`] | copies of a program's own buffers with deadlines that are promised |
//! | [`plan`] | windows and a verdict for a [`workload`] on a [`machine`] |
//! | [`run`] | runs a plan: simulated, on emulated GPUs, or on GPUs |
//! | [`share`] | how long tasks wait for GPUs that they share, at most |
//! | [`report`] | reads the log of a run again: sums it up, draws it, makes its decisions again |
//! | [`explain`] | which method a copy would take, and why |
//! | [`doctor`] | what this computer has and lacks |
//! | [`broker`] | arbitrates GPUs between processes |
//! | [`activity`] | who copies how much on which engine, now |
//! | [`metrics`] | the same, and a broker's state, for Prometheus |
//! | [`mps`] | joins the daemon of NVIDIA's Multi-Process Service that a broker runs |
//!
//! The feature `gzip` compresses long logs of runs, and reads compressed ones.
//!
//! Nothing needs a file: machines are shipped with the library, and workloads can be made in code.
#![forbid(unsafe_code)]

pub mod activity;
pub mod broker;
pub mod copy;
mod cpus;
pub mod doctor;
mod error;
pub mod explain;
pub mod flow;
mod logfile;
pub mod machine;
pub mod metrics;
mod modules;
pub mod mps;
pub mod plan;
pub mod report;
pub mod run;
mod sample;
pub mod share;
mod why;
pub mod workload;

// For the programs `headway` and `headway-lab`, what they measure, and the library in front of guests; nobody else can rely on them.
#[doc(hidden)]
pub mod cores;
#[doc(hidden)]
pub mod emulation;
#[doc(hidden)]
pub mod fork;
#[doc(hidden)]
pub mod gpus;
#[doc(hidden)]
pub mod guest;
#[doc(hidden)]
pub mod jobs;
#[doc(hidden)]
pub mod keep;
#[doc(hidden)]
pub mod path_text;
#[doc(hidden)]
pub mod stamp;
#[doc(hidden)]
pub mod tightest;
#[doc(hidden)]
pub mod verify;
#[doc(hidden)]
pub use headway_os::threads;

pub use headway_core::files::error::FileError;
pub use headway_core::units;
/// What a caller's own kernel implements, and the library that runs find kernels in.
pub use headway_device::work;

#[doc(hidden)]
pub use error::{Diagnosis, Failure};
pub use error::{Error, ErrorKind};
/// For programs: the flag to give to a run, a measurement or a broker, so that they end in an orderly way.
#[doc(hidden)]
pub use headway_os::ipc::{INTERRUPTED_STATUS, stop_when_told};
/// For programs: a full disk or a limit of file sizes is an error of the call that writes.
pub use headway_os::limits::{check_stack, ignore_file_size_signal};

/// Version of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Commit this build was made from, or `unknown`.
pub const COMMIT: &str = env!("HEADWAY_COMMIT");
