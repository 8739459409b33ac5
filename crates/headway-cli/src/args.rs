//! The command line: one definition gives parsing, help and completions.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use headway::core::plan::Strategy;
use headway::core::units::Nanos;

/// Moves data between host and GPU memory on time: plans periodic transfers, runs them, shows what happened.
#[derive(Debug, Parser)]
#[command(name = "headway", version, max_term_width = 100, disable_help_subcommand = true)]
#[command(after_help = "Exit status: 0 yes, 1 a negative answer, 2 an error, 3 undecided.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// How results are written
    #[arg(long, global = true, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
    /// No progress and no warnings
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Tables for people
    Text,
    /// One JSON document with a `schema` number
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Say what this machine can do, what is missing, and what to do about it
    Doctor,
    /// Say whether every deadline of a workload holds, why, and with what margin
    Plan(PlanArgs),
    /// Plan a workload and run it: on GPUs where there are some, else on a simulated node
    Run(RunArgs),
    /// Feed a log to the dispatcher again; it must do the same, byte for byte
    Replay {
        /// A log, or a folder of results
        log: PathBuf,
    },
    /// Sum a log up; with `--out`, draw its trace and page
    Report {
        /// A log, or a folder of results
        log: PathBuf,
        /// Folder for summary, trace and page
        #[arg(long)]
        out: Option<PathBuf>,
    },
    /// Make an experiment of a paper again and compare
    Reproduce(ReproduceArgs),
    /// List the machines that are shipped, or print the file of one
    Machines {
        /// Print this machine file
        name: Option<String>,
    },
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// What plans are made from.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// Workload file
    pub(crate) workload: PathBuf,
    /// Machine to plan for: a shipped name or a file [default: h200-x4, or the GPUs found by `run`]
    #[arg(long)]
    pub(crate) machine: Option<String>,
    /// Use only this many GPUs of it
    #[arg(long, value_name = "N")]
    pub(crate) gpus: Option<usize>,
    /// Use only this strategy [default: the accepted one with the greatest margin]
    #[arg(long, value_enum)]
    pub(crate) strategy: Option<StrategyArg>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) plan: PlanArgs,
    /// What runs it
    #[arg(long, value_enum, default_value_t = BackendArg::Auto)]
    pub(crate) backend: BackendArg,
    /// File or folder to process [default: a random sample]
    #[arg(long)]
    pub(crate) input: Option<PathBuf>,
    /// How long packets arrive, for example "5 s" [default: until the input ends; for a sample, what the workload says]
    #[arg(long, value_parser = str::parse::<Nanos>)]
    pub(crate) duration: Option<Nanos>,
    /// Folder for the results [default: out/NAME-SOURCE]
    #[arg(long)]
    pub(crate) out: Option<PathBuf>,
    /// Seed instead of the workload's
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Run although the plan is not accepted
    #[arg(long)]
    pub(crate) force: bool,
    /// Do not compare the outputs with the CPU's result
    #[arg(long)]
    pub(crate) no_verify: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReproduceArgs {
    /// The experiment [default: list them]
    pub(crate) experiment: Option<String>,
    /// What runs it
    #[arg(long, value_enum, default_value_t = BackendArg::Auto)]
    pub(crate) backend: BackendArg,
    /// Fewer and smaller points
    #[arg(long)]
    pub(crate) quick: bool,
    /// Folder for raw figures, plots and summary [default: out/NAME-SOURCE]
    #[arg(long)]
    pub(crate) out: Option<PathBuf>,
    /// Seed of everything drawn
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendArg {
    /// GPUs if there are some, else the simulation
    Auto,
    /// Virtual time over the machine file
    Sim,
    /// Threads and real memory, throttled to the machine file
    Emu,
    /// GPUs
    Cuda,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StrategyArg {
    /// One transfer at a time in the whole node
    Serial,
    /// Every engine by itself, at the rate it keeps whatever the others do
    Partitioned,
}

impl From<StrategyArg> for Strategy {
    fn from(strategy: StrategyArg) -> Self {
        match strategy {
            StrategyArg::Serial => Self::Serial,
            StrategyArg::Partitioned => Self::Partitioned,
        }
    }
}

impl From<BackendArg> for headway::run::Backend {
    fn from(backend: BackendArg) -> Self {
        match backend {
            BackendArg::Auto => Self::Auto,
            BackendArg::Sim => Self::Sim,
            BackendArg::Emu => Self::Emu,
            BackendArg::Cuda => Self::Cuda,
        }
    }
}
