//! The command line of the laboratory.

use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use headway::plan::Strategy;
use headway::units::{Bytes, Nanos};
use headway_cli::terminal::OutputFormat;
use headway_cli::values::{BackendArg, count, label, word};
use headway_lab::child::ChildRole;
use headway_lab::formats::FileFormat;
use headway_measure::child::CHILD_ARGUMENT;
use headway_measure::folder::file_name;

/// Makes experiments of papers again, and compares what comes out with what the papers say.
#[derive(Debug, Parser)]
#[command(
    name = "headway-lab",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    args_conflicts_with_subcommands = true
)]
#[command(
    after_help = "Exit status: 0 yes, 1 a statement does not hold or a target is missed, 2 an error, 130 interrupted."
)]
pub(crate) struct Lab {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) experiment: ExperimentArgs,
    /// How results are written
    #[arg(long, global = true, value_enum, default_value_t = OutputFormat::Text)]
    pub(crate) format: OutputFormat,
    /// No progress and no warnings
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Time message combining on one core
    Combine(CombineArgs),
    /// Compare predicted ends of random batches of concurrent copies, and their worst-case bounds, with measured ones
    Interconnect(InterconnectArgs),
    /// Time arbitration between processes: leased engine locks, tokens, engines handed over
    Broker(BrokerBenchArgs),
    /// Draw rows of a results file (SVG)
    Plot(PlotArgs),
    /// Make a workload file from a task set of another tool
    Import(ImportArgs),
    /// Write the periodic copies and tasks of a workload (its `[[demand]]` tables) as a task set that another schedulability tool reads
    Export(ExportArgs),
    /// Serve a measurement that this program runs in another process
    #[command(name = CHILD_ARGUMENT, hide = true)]
    MeasureChild { order: String },
    /// Serve an experiment that this program runs in another process
    #[command(name = headway_lab::child::WORD, hide = true)]
    LabChild {
        #[arg(value_parser = word(ChildRole::WORDS))]
        part: ChildRole,
        order: String,
    },
}

impl Lab {
    /// Reads the command line; a folder of results that nobody named is named by the options that were given.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        let mut command = Self::command();
        let matches = command.try_get_matches_from_mut(std::env::args_os())?;
        let mut lab = Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
        lab.experiment.label = label(&command, &matches, &["backend"]);
        let out = match &mut lab.command {
            Some(Command::Combine(args)) => Some(&mut args.out),
            Some(Command::Interconnect(args)) => Some(&mut args.out),
            Some(Command::Broker(args)) => Some(&mut args.out),
            _ => None,
        };
        if let (Some(out), Some((name, matches))) = (out, matches.subcommand())
            && matches.value_source("out") != Some(ValueSource::CommandLine)
        {
            let command = command.find_subcommand(name).expect("a command that was read is known");
            out.as_mut_os_string().push(file_name(&label(command, matches, &[])));
        }
        Ok(lab)
    }
}

/// How experiments are made.
#[derive(Debug, Args)]
pub(crate) struct ExperimentArgs {
    /// The experiment, or "all" for every one that the backend can make [default: list them]
    pub(crate) experiment: Option<String>,
    /// What runs it
    #[arg(long, value_enum, default_value_t = BackendArg::Auto)]
    pub(crate) backend: BackendArg,
    /// Fewer and smaller points
    #[arg(long)]
    pub(crate) quick: bool,
    /// Machine whose profile `copy` chooses by [default: machine.toml of the current folder on GPUs; the built-in rules]
    #[arg(long)]
    pub(crate) machine: Option<String>,
    /// Folder for raw figures, plots and summary [default: out/NAME-SOURCE-OPTIONS, with the options that were given]
    #[arg(long)]
    pub(crate) out: Option<PathBuf>,
    /// Seed of everything drawn
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Use this many GPUs, where an experiment can use several [default: all]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count)]
    pub(crate) gpus: Option<usize>,
    /// How long each run on devices lasts [default: what suits it on GPUs]
    #[arg(long, value_name = "TIME", value_parser = str::parse::<Nanos>)]
    pub(crate) duration: Option<Nanos>,
    /// verner-aes: the paper's workloads, for example "1,2,3"; of several, none is taken beyond what its plan accepts
    #[arg(long, value_name = "NUMBER", value_delimiter = ',', default_value = "3",
        value_parser = clap::value_parser!(u32).range(1..=12))]
    pub(crate) workload: Vec<u32>,
    /// verner-aes: leave out streams with shorter deadlines
    #[arg(long, value_name = "TIME", default_value = "20 ms", value_parser = str::parse::<Nanos>)]
    pub(crate) deadline_min: Nanos,
    /// verner-aes: multiply the rates of all streams
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) rate_scale: u64,
    /// verner-aes: plan for a machine so many times slower [default: 1; 400 with `--backend emu`]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) slower: Option<u64>,
    /// verner-aes: plan no more streams than these, which leaves room [default: as many as are accepted]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) streams_max: Option<u32>,
    /// verner-aes: cores of the CPU that serve streams with short deadlines; 0 = none
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=64))]
    pub(crate) cores: u32,
    /// verner-aes: policies that run
    #[arg(long, value_name = "POLICY", value_delimiter = ',', default_value = "serial,lockstep,combined,partitioned",
        value_parser = word(POLICIES))]
    pub(crate) policies: Vec<Strategy>,
    #[command(flatten)]
    pub(crate) sharing: SharingArgs,
    /// See [`label`].
    #[arg(skip)]
    pub(crate) label: String,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Options of gpusync-gpu")]
pub(crate) struct SharingArgs {
    /// How often each configuration is run
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) repetitions: u32,
    /// Every scenario of the paper instead of a few
    #[arg(long)]
    pub(crate) all: bool,
    /// Cameras, each a process [default: 5 for each GPU]
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) cameras: Option<usize>,
    /// CPUs that tokens are given for [default: those allowed here, at most one for each camera]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) cpus: Option<u32>,
    /// Loads: share of each GPU's time that kernels take if nobody is in the way, percent [default: 76, as simulated]
    #[arg(long, value_name = "PERCENT", value_delimiter = ',')]
    pub(crate) busy: Vec<u32>,
    /// Only this configuration, by its name or the name's first word; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Vec<String>,
    /// Divide the paper's periods by this
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) speedup: u32,
    /// Kernel segments of a frame, in addition to the tracker's
    #[arg(long, value_name = "N", default_value_t = 9)]
    pub(crate) segments: u32,
    /// Video of 8-bit grey levels, 320 x 240 pixels, picture after picture [default: computed pictures]
    #[arg(long, value_name = "FILE")]
    pub(crate) video: Option<PathBuf>,
}

/// Policies that run on devices.
const POLICIES: &[(&str, Strategy)] = &[
    ("serial", Strategy::Serial),
    ("lockstep", Strategy::Lockstep),
    ("combined", Strategy::Combined),
    ("partitioned", Strategy::Partitioned),
];

#[derive(Debug, Args)]
pub(crate) struct CombineArgs {
    /// Folder for figures and summary; other options given are added to its name
    #[arg(long, default_value = "out/combine")]
    pub(crate) out: PathBuf,
    /// Seed of all message sets
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// 1,000 messages only: some seconds [default: up to 10,000 messages, some minutes]
    #[arg(long)]
    pub(crate) quick: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PlotArgs {
    /// Table with a header line (CSV, also compressed), such as `rows.csv` of a benchmark
    pub(crate) rows: PathBuf,
    /// Column along the horizontal axis
    #[arg(long, value_name = "COLUMN")]
    pub(crate) x: String,
    /// Columns along the vertical axis
    #[arg(long, value_name = "COLUMN", value_delimiter = ',', required = true)]
    pub(crate) y: Vec<String>,
    /// Columns whose values tell lines apart
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    pub(crate) by: Vec<String>,
    /// Draw only rows with this value in this column; may be given several times
    #[arg(long, value_name = "COLUMN=VALUE", value_delimiter = ',', value_parser = column_value)]
    pub(crate) only: Vec<(String, String)>,
    /// The picture
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// Replace a file that exists
    #[arg(long)]
    pub(crate) force: bool,
}

/// A column and the value that it must have.
pub(crate) fn column_value(text: &str) -> Result<(String, String), &'static str> {
    let (column, value) = text.split_once('=').ok_or("give COLUMN=VALUE")?;
    Ok((column.to_owned(), value.to_owned()))
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// File of the other tool
    pub(crate) file: PathBuf,
    /// The tool's format: jobs and jobs-yaml of the schedule-abstraction analysis, schedcat, simso, tasks, or mlperf
    #[arg(long, value_parser = word(FileFormat::WORDS))]
    pub(crate) from: FileFormat,
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
    /// Server that the tasks compete for [default: engine]
    #[arg(long)]
    pub(crate) server: Option<String>,
    /// Name of the workload [default: that of the file]
    #[arg(long)]
    pub(crate) name: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Workload file with `[[demand]]` tables
    pub(crate) file: PathBuf,
    /// The tool's format: jobs and jobs-yaml of the schedule-abstraction analysis, schedcat, or simso
    #[arg(long, value_parser = word(FileFormat::EXPORTS))]
    pub(crate) to: FileFormat,
    /// File to write [default: the standard output]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Replace a file that exists
    #[arg(long)]
    pub(crate) force: bool,
    /// One unit of time in the file, for example "1 us" [default: 1 ns]
    #[arg(long, value_name = "TIME", value_parser = str::parse::<Nanos>)]
    pub(crate) unit: Option<Nanos>,
    /// Engine or other server whose demands are written; each task set is of one [default: the only one in the file]
    #[arg(long)]
    pub(crate) server: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct InterconnectArgs {
    /// What runs the batches
    #[arg(long, value_enum, default_value_t = BackendArg::Auto)]
    pub(crate) backend: BackendArg,
    /// Machine that `--backend emu` imitates or `--backend sim` simulates [default: h200-x1 and, for more GPUs, h200-x4; simulated h200-x4]
    #[arg(long, value_name = "MACHINE")]
    pub(crate) model: Option<String>,
    /// Machine file to predict with [default: measure the links first, 10 to 30 s]
    #[arg(long)]
    pub(crate) machine: Option<String>,
    /// Use only the first so many GPUs
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count)]
    pub(crate) gpus: Option<usize>,
    /// Random batches
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = count)]
    pub(crate) batches: usize,
    /// Repetitions of each; their median is compared with the prediction, each of them with the bound
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = count)]
    pub(crate) repeats: usize,
    /// Largest block; sizes are uniform in their logarithm from 64 KiB on
    #[arg(long, value_name = "SIZE", default_value = "256 MiB", value_parser = str::parse::<Bytes>)]
    pub(crate) largest: Bytes,
    /// Before, run more batches for so long: worst cases count with what disturbs them [default: 10 s on GPUs, else 0]
    #[arg(long, value_name = "TIME", value_parser = str::parse::<Nanos>)]
    pub(crate) watch: Option<Nanos>,
    /// Seed of the batches
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Folder for figures, plots, machine file and summary; other options given are added to its name
    #[arg(long, default_value = "out/interconnect")]
    pub(crate) out: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct BrokerBenchArgs {
    /// Folder for figures and summary; other options given are added to its name
    #[arg(long, default_value = "out/broker")]
    pub(crate) out: PathBuf,
    /// Fewer samples: a few seconds instead of half a minute
    #[arg(long)]
    pub(crate) quick: bool,
}
