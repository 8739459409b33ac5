//! The options of the broker.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use headway::metrics::MetricsAddress;
use headway::units::{Bytes, Nanos};

use super::{count, some_bytes, some_time};

#[derive(Debug, Args)]
pub(crate) struct BrokerArgs {
    /// Where to listen [default: $HEADWAY_BROKER, else headway/broker in $XDG_RUNTIME_DIR, else /tmp/headway-UID/broker]
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Let users in the group of the socket's folder connect, and give the socket to that group
    #[arg(long)]
    pub(crate) group: bool,
    /// Machine whose GPUs are shared: a shipped name or a file
    #[arg(long, default_value = "h200-x4")]
    pub(crate) machine: String,
    /// Share only the first so many GPUs
    #[arg(long, value_name = "N")]
    pub(crate) gpus: Option<usize>,
    /// CPUs that the tasks of a cluster may use [default: those allowed here]
    #[arg(long, value_name = "N")]
    pub(crate) cpus: Option<u32>,
    /// Tokens of each GPU
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) tokens: u32,
    /// How tokens are given [default: work-conserving if there are more tokens than CPUs, else optimal]
    #[arg(long, value_enum)]
    pub(crate) mode: Option<ModeArg>,
    /// A token is the right to every engine of its GPU
    #[arg(long)]
    pub(crate) no_engine_locks: bool,
    /// Copy engines of each GPU that have a lock: 1 for both ways, or 2
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) copy_engines: u32,
    /// Engines serve the most urgent job first, not the one that came first
    #[arg(long)]
    pub(crate) urgent_first: bool,
    /// Longest copy under one lock
    #[arg(long, value_name = "SIZE", default_value = "2 MiB", value_parser = some_bytes)]
    pub(crate) chunk: Bytes,
    /// How long a GPU may still work for a process that has ended
    #[arg(long, value_name = "TIME", default_value = "20 ms", value_parser = str::parse::<Nanos>)]
    pub(crate) drain: Nanos,
    /// Cut off a client that holds a token or an engine for longer
    #[arg(long, value_name = "TIME", default_value = "10 s", value_parser = some_time)]
    pub(crate) watchdog: Nanos,
    /// Wait so long for clients of an earlier broker
    #[arg(long, value_name = "TIME", default_value = "5 s", value_parser = str::parse::<Nanos>)]
    pub(crate) recover: Nanos,
    /// Look for requests for up to this long before sleeping [default: 10 ms with 8 CPUs or more, else 200 us]
    #[arg(long, value_name = "TIME", value_parser = str::parse::<Nanos>)]
    pub(crate) spin: Option<Nanos>,
    /// Most CPU time spent so, in percent of one CPU [default: 100 with 8 CPUs or more, else 25]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) spin_share: Option<u8>,
    /// Leave the priority of holders and of the broker as it is
    #[arg(long)]
    pub(crate) no_boost: bool,
    /// Tasks of all users together; each may have so many that twice as many stay free
    #[arg(long, value_name = "N", default_value = "4096", value_parser = count)]
    pub(crate) tasks: usize,
    /// Raise threads of other users too, up to this SCHED_FIFO priority [default: never]
    #[arg(long, value_name = "PRIORITY", value_parser = clap::value_parser!(i32).range(1..=40))]
    pub(crate) lend_realtime: Option<i32>,
    /// Refuse tasks with a shorter deadline
    #[arg(long, value_name = "TIME", default_value = "100 us", value_parser = str::parse::<Nanos>)]
    pub(crate) least_deadline: Nanos,
    /// Let each flow bear the turns of so many programs from the beginning, so that as many can open flows
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) flow_programs: u32,
    /// Start even if a process of another user has claimed one of the GPUs
    #[arg(long)]
    pub(crate) despite_claims: bool,
    /// File for every input, decision and client cut off (JSON, one document a line)
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// Begin another file of the log, with a snapshot, at this size
    #[arg(long, value_name = "SIZE", default_value = "64 MiB", value_parser = some_bytes)]
    pub(crate) log_size: Bytes,
    /// Keep so many files of the log: FILE, FILE.1 and so on
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) log_files: u32,
    /// Grant nothing while it cannot be written down, as on a full disk; otherwise the broker goes on
    #[arg(long)]
    pub(crate) must_remember: bool,
    /// Serve metrics for Prometheus at this loopback address and port, or `unix:PATH`
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<MetricsAddress>,
    /// Run an MPS daemon for this user: programs that join it compute at the same time, not by turns (`exec --share`)
    #[arg(long, conflicts_with = "group")]
    pub(crate) mps: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModeArg {
    /// The least worst wait
    Optimal,
    /// No token idles while somebody waits
    WorkConserving,
    /// First come, first served
    Fifo,
    /// The most urgent first, without a bound
    Priority,
}
