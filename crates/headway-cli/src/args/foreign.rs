//! Options of the commands that read and write task sets of other tools.

use std::path::PathBuf;

use clap::Args;
use headway::units::Nanos;
use headway_lab::formats::Format as Foreign;

use super::word;

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// File of the other tool
    pub(crate) file: PathBuf,
    /// The tool's format: jobs and jobs-yaml of the schedule-abstraction analysis, schedcat, simso, tasks, or mlperf
    #[arg(long, value_parser = word(Foreign::WORDS))]
    pub(crate) from: Foreign,
    /// Workload file to write [default: the standard output]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Replace a file that exists
    #[arg(long)]
    pub(crate) force: bool,
    /// One unit of time in the file, for example "1 us" [default for jobs: 1 ns]
    #[arg(long, value_name = "TIME", value_parser = str::parse::<Nanos>)]
    pub(crate) unit: Option<Nanos>,
    /// After what time the jobs of the file repeat, for tasks with one job
    #[arg(long, value_name = "TIME", value_parser = str::parse::<Nanos>)]
    pub(crate) window: Option<Nanos>,
    /// What a query costs, for mlperf
    #[arg(long, value_name = "TIME", value_parser = str::parse::<Nanos>)]
    pub(crate) cost: Option<Nanos>,
    /// Precedences that belong to a job set
    #[arg(long, value_name = "FILE")]
    pub(crate) precedence: Option<PathBuf>,
    /// Server that the tasks compete for [default: engine]
    #[arg(long)]
    pub(crate) server: Option<String>,
    /// Name of the workload [default: that of the file]
    #[arg(long)]
    pub(crate) name: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Workload file with `[[flow]]` tables
    pub(crate) file: PathBuf,
    /// The tool's format: jobs and jobs-yaml of the schedule-abstraction analysis, schedcat, or simso
    #[arg(long, value_parser = word(Foreign::EXPORTS))]
    pub(crate) to: Foreign,
    /// File to write [default: the standard output]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Replace a file that exists
    #[arg(long)]
    pub(crate) force: bool,
    /// One unit of time in the file, for example "1 us" [default: 1 ns]
    #[arg(long, value_name = "TIME", value_parser = str::parse::<Nanos>)]
    pub(crate) unit: Option<Nanos>,
    /// Engine or other server whose flows are written; each task set is of one [default: the only one in the file]
    #[arg(long)]
    pub(crate) server: Option<String>,
}
