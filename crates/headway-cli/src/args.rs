//! The command line: one definition gives parsing, help, manual pages and completions.

mod broker;
mod label;

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use headway::explain::{BackgroundLoad, Direction, HostMemory, Statistic};
use headway::keep::Keep;
use headway::machine::Method;
use headway::metrics::MetricsAddress;
use headway::plan::Strategy;
use headway::run::RequestedClass;
use headway::units::{Bytes, Nanos, UnitError};
use headway_measure::MeasureStep;
use headway_measure::bench::FlowBenchCase;
use headway_measure::child::CHILD_ARGUMENT;

use headway_cli::terminal::OutputFormat;
use headway_cli::values::{BackendArg, count, some_bytes, word};

/// The hidden command of the guardian of an MPS daemon.
pub(crate) const GUARD: &str = "mps-guard";

pub(crate) use self::broker::{BrokerArgs, ModeArg};

/// Moves data between host and GPU memory on time: plans periodic transfers, runs them, shows what happened.
#[derive(Debug, Parser)]
#[command(name = "headway", version, long_version = long_version(), max_term_width = 100, disable_help_subcommand = true)]
#[command(after_help = "Exit status: 0 yes, 1 a negative answer, 2 an error, 3 undecided, 130 interrupted.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// How results are written
    #[arg(long, global = true, value_enum, default_value_t = OutputFormat::Text)]
    pub(crate) format: OutputFormat,
    /// No progress and no warnings
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
}

/// Version and commit, as `headway --version` prints them.
fn long_version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| format!("{} ({})", headway::VERSION, headway::COMMIT));
    &TEXT
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Say what this machine can do, what is missing, and what to do about it
    Doctor {
        /// On what every method is tried
        #[arg(long, value_enum, default_value_t = CopyBackendArg::Auto)]
        backend: CopyBackendArg,
        /// Machine whose plans must allow the delays of drivers that are seen here: a shipped name or a file
        #[arg(long, default_value = headway::machine::USUAL)]
        machine: String,
        /// How long to watch for such delays
        #[arg(long, value_name = "TIME", value_parser = str::parse::<Nanos>, default_value = "1 s", allow_hyphen_values = true)]
        watch: Nanos,
    },
    /// Say whether every deadline of a workload holds, why, and with what margin
    Plan(PlanArgs),
    /// Plan a workload and run it: on GPUs where there are some, else on a simulated node
    Run(RunArgs),
    /// Feed a log to the dispatcher again; it must do the same, byte for byte
    Replay {
        /// A log, or a folder of results
        log: PathBuf,
    },
    /// Sum a log up: of a run, of a broker, or of `headway exec --log`; with `--out`, draw trace and page of a run
    Report {
        /// A log, or a folder of results
        log: PathBuf,
        /// Folder for summary, trace and page
        #[arg(long)]
        out: Option<PathBuf>,
        /// Operations and packets that the trace shows at most; of a longer run, parts
        #[arg(long, value_name = "N", default_value_t = Keep::default().traced,
        value_parser = clap::value_parser!(u64).range(1..))]
        trace_max: u64,
    },
    /// Measure this node and write its machine file: links, kernels, and what every method takes
    Measure(MeasureArgs),
    /// Compare ways of doing something, in one run
    Bench {
        #[command(subcommand)]
        what: BenchCommand,
    },
    /// Say which method a copy would take, and why
    Explain(ExplainArgs),
    /// List the machines that are shipped, or print the file of one
    Machines {
        /// Print this machine file
        name: Option<String>,
    },
    /// Run an unmodified CUDA program with faster copies of ordinary memory, or with small copies that do not wait for bulk ones
    Exec(crate::guest::ExecArgs),
    /// Arbitrate GPUs between processes until interrupted
    Broker(BrokerArgs),
    /// List the holders and the waiters of a broker
    Status {
        /// Give up this GPU for everybody, as it is lost; only for the user who runs the broker
        #[arg(long, value_name = "GPU")]
        lost: Option<u32>,
        /// Socket of the broker [default: the user's, else the machine's]
        #[arg(long, value_name = "PATH")]
        socket: Option<PathBuf>,
    },
    /// Show, until Ctrl-C, how much each program copies on each GPU and whose copies it met there
    Top(TopArgs),
    /// Print the manual page of this command or of one of its subcommands
    Man {
        /// The subcommand, for example "run", or "bench transfers" [default: the page of `headway`]
        #[arg(value_name = "COMMAND")]
        of: Vec<String>,
        /// Write all pages into this folder instead
        #[arg(long, value_name = "FOLDER", conflicts_with = "of")]
        out: Option<PathBuf>,
    },
    /// Print a completion script for a shell
    Completions { shell: clap_complete::Shell },
    /// Serve a measurement that this program runs in another process
    #[command(name = CHILD_ARGUMENT, hide = true)]
    MeasureChild { order: String },
    /// Start the MPS daemon of a broker, and stop it when the broker has ended
    #[command(name = GUARD, hide = true)]
    MpsGuard { folder: PathBuf },
}

/// What plans are made from.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// Workload file
    pub(crate) workload: PathBuf,
    /// Machine to plan for: a shipped name or a file [default: h200-x4, or the GPUs found by `run`;
    /// for a workload of demands only, none]
    #[arg(long)]
    pub(crate) machine: Option<String>,
    /// Use only this many GPUs of it
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) gpus: Option<usize>,
    /// Keep the promise beside so many other programs that copy over the same engines, and compute nothing [default: 0]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub(crate) others: u32,
    /// Use only this strategy [default: of serial, partitioned and, for messages and wafers, combined, the accepted one with the
    /// greatest margin; serial for a machine that is not calibrated]
    #[arg(long, value_parser = strategy())]
    pub(crate) strategy: Option<Strategy>,
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
    #[arg(long, value_parser = str::parse::<Nanos>, allow_hyphen_values = true)]
    pub(crate) duration: Option<Nanos>,
    /// Folder for the results [default: out/NAME-SOURCE-OPTIONS, with the options that were given]
    #[arg(long)]
    pub(crate) out: Option<PathBuf>,
    /// Seed instead of the workload's
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) seed: Option<u64>,
    /// Run although the plan is not accepted
    #[arg(long)]
    pub(crate) force: bool,
    /// Do not compare the outputs with the CPU's result
    #[arg(long)]
    pub(crate) no_verify: bool,
    /// Simulate times alone: move, compute and compare nothing, and leave the streams' files empty
    #[arg(long)]
    pub(crate) time_only: bool,
    /// Scheduling class of the threads that drive devices; auto: the strongest that the system permits
    #[arg(long, value_name = "CLASS", default_value = "auto", value_parser = word(RequestedClass::WORDS))]
    pub(crate) cpu_class: RequestedClass,
    /// Without `--input`: random bytes for each stream, which a longer run reads again and again; of its output as many are
    /// kept, and all are compared [default: 16 MiB, or less for all together to have 1 GiB]
    #[arg(long, value_name = "SIZE", value_parser = str::parse::<Bytes>)]
    pub(crate) sample_max: Option<Bytes>,
    /// Size of the log, after which it lacks what follows; long ones are compressed
    #[arg(long, value_name = "SIZE", default_value_t = Keep::default().log, value_parser = str::parse::<Bytes>)]
    pub(crate) log_max: Bytes,
    /// Operations and packets that the trace shows at most; of a longer run, parts
    #[arg(long, value_name = "N", default_value_t = Keep::default().traced,
        value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) trace_max: u64,
    /// Serve metrics for Prometheus at this loopback address and port, or `unix:PATH`, while it runs
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<MetricsAddress>,
    /// See [`label`].
    #[arg(skip)]
    pub(crate) label: String,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Time between two looks
    #[arg(long, value_name = "TIME", default_value = "1 s", value_parser = some_time)]
    pub(crate) interval: Nanos,
    /// Look once, and end; so it is for a program, too, with `--format json`
    #[arg(long)]
    pub(crate) once: bool,
    /// Socket of the broker whose holders and waiters are shown [default: the user's, else the machine's, if there is one]
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct MeasureArgs {
    /// What is measured
    #[arg(long, value_enum, default_value_t = CopyBackendArg::Auto)]
    pub(crate) backend: CopyBackendArg,
    /// Machine that `--backend emu` imitates [default: h200-x1; h200-x4 for more GPUs]
    #[arg(long, value_name = "MACHINE")]
    pub(crate) model: Option<String>,
    /// Measure only the first so many GPUs
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count)]
    pub(crate) gpus: Option<usize>,
    /// Machine file to write. Until it is complete, FILE.partial.jsonl keeps what is done
    #[arg(long, value_name = "FILE", default_value = headway::machine::NODE_FILE)]
    pub(crate) out: PathBuf,
    /// Name of the machine [default: that of the file]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Fewer sizes and samples: about a minute for one GPU
    #[arg(long, conflicts_with = "full")]
    pub(crate) quick: bool,
    /// At least 1000 samples of copies up to 64 KiB, and more of all others
    #[arg(long)]
    pub(crate) full: bool,
    /// Replace a file that exists
    #[arg(long)]
    pub(crate) force: bool,
    /// Measure only these parts; the rest stays as in the file that exists
    #[arg(long, value_name = "STEP", value_delimiter = ',', value_parser = step())]
    pub(crate) only: Vec<MeasureStep>,
    /// Sizes of copies instead of powers of two up to 1 GiB (64 MiB on emulated GPUs), for example "64 B,4 KiB"
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = some_bytes)]
    pub(crate) sizes: Option<Vec<Bytes>>,
    /// Measure every GPU by itself, not one of each model
    #[arg(long)]
    pub(crate) each: bool,
    /// Watch the driver's thread, cores of the CPU and random batches of copies so much longer, one after the other, so that plans count with
    /// what disturbs them now and then
    #[arg(long, value_name = "TIME", value_parser = str::parse::<Nanos>, allow_hyphen_values = true)]
    pub(crate) watch: Option<Nanos>,
    /// Workload file: measure the kernels, too, that it brings in files of its own
    #[arg(long, value_name = "WORKLOAD")]
    pub(crate) workload: Option<PathBuf>,
    /// File for every sample (JSON, one series a line, gzip)
    #[arg(long, value_name = "FILE")]
    pub(crate) raw: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Compare every method with the driver's call, with pinned memory and with `auto`
    Transfers(BenchArgs),
    /// Run flows beside bulk copies: each response beside the bound that was promised
    Flows(FlowBenchArgs),
}

/// A set of flows of the benchmark.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum FlowBenchCaseArg {
    /// 1 MiB out of the GPU again and again, plain and promised
    One,
    /// Ten flows in both directions, as large as can be promised together
    Ten,
}

impl From<FlowBenchCaseArg> for FlowBenchCase {
    fn from(case: FlowBenchCaseArg) -> Self {
        match case {
            FlowBenchCaseArg::One => Self::One,
            FlowBenchCaseArg::Ten => Self::Ten,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct FlowBenchArgs {
    /// What is measured
    #[arg(long, value_enum, default_value_t = CopyBackendArg::Auto)]
    pub(crate) backend: CopyBackendArg,
    /// Machine that `--backend emu` imitates [default: h200-x1]
    #[arg(long, value_name = "MACHINE")]
    pub(crate) model: Option<String>,
    /// Machine file that says what copies cost at worst, from `headway measure` [default: that of our H200]
    #[arg(long)]
    pub(crate) machine: Option<String>,
    /// Socket of a broker, which admits the flows beside those of other programs
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Which flows [default: all]
    #[arg(long, value_enum, value_name = "CASE")]
    pub(crate) only: Option<FlowBenchCaseArg>,
    /// How long promised flows run; without promises they run for 10 s at most
    #[arg(long, value_name = "TIME", default_value = "10 s", value_parser = some_time)]
    pub(crate) duration: Nanos,
    /// Folder for figures and summary
    #[arg(long, default_value = "out/flows")]
    pub(crate) out: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// What is measured
    #[arg(long, value_enum, default_value_t = CopyBackendArg::Auto)]
    pub(crate) backend: CopyBackendArg,
    /// Machine that `--backend emu` imitates [default: h200-x1; h200-x4 for more GPUs]
    #[arg(long, value_name = "MACHINE")]
    pub(crate) model: Option<String>,
    /// Machine file with the profile that `auto` uses, from `headway measure` [default: built-in figures]
    #[arg(long)]
    pub(crate) machine: Option<String>,
    /// Use only the first so many GPUs
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count)]
    pub(crate) gpus: Option<usize>,
    /// Sizes to compare instead of 64 B to 1 GiB
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = some_bytes)]
    pub(crate) sizes: Option<Vec<Bytes>>,
    /// Methods to compare, beside `pageable` and `dma` [default: all]
    #[arg(long, alias = "ways", value_name = "METHOD", value_delimiter = ',', value_parser = method())]
    pub(crate) methods: Vec<Method>,
    /// Folder for figures, plots and summary; other options given are added to its name
    #[arg(long, default_value = "out/transfers")]
    pub(crate) out: PathBuf,
    /// Fewer and smaller points: about a minute for one GPU
    #[arg(long)]
    pub(crate) quick: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// Size of the copy, for example "4 KiB"; a number alone is bytes
    #[arg(long, value_parser = bytes)]
    pub(crate) bytes: Bytes,
    /// Direction of the copy
    #[arg(long, value_parser = word(Direction::WORDS))]
    pub(crate) direction: Direction,
    /// What the host end is
    #[arg(long, value_enum, default_value_t = HostArg::Pageable)]
    pub(crate) host: HostArg,
    /// Machine: a shipped name or a file [default: h200-x4]
    #[arg(long)]
    pub(crate) machine: Option<String>,
    /// The GPU [default: the first]
    #[arg(long)]
    pub(crate) gpu: Option<String>,
    /// Target of a copy between GPUs
    #[arg(long, value_name = "GPU")]
    pub(crate) peer: Option<String>,
    /// What else the GPU carries
    #[arg(long, default_value = "alone", value_parser = word(BackgroundLoad::WORDS))]
    pub(crate) load: BackgroundLoad,
    /// GPUs that copy the same way at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) active: u32,
    /// Pieces that the copy consists of
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pieces: u32,
    /// What is to be least
    #[arg(long, default_value = "median", value_parser = word(Statistic::WORDS))]
    pub(crate) objective: Statistic,
    /// What may not be used
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) exclude: Vec<ExcludeArg>,
    /// CPUs that the copy may keep busy, that of the caller included
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) cpus: Option<u32>,
    /// Pinned memory that the copy may take, for example "64 MiB"
    #[arg(long, value_parser = bytes)]
    pub(crate) pinned: Option<Bytes>,
    /// Multiprocessors that the copy may keep busy
    #[arg(long, value_name = "N")]
    pub(crate) multiprocessors: Option<u32>,
    /// Which of the tunings of `staged` that are within 5 % of the fastest
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = PreferArg::Cheapest)]
    pub(crate) prefer: PreferArg,
    /// Show how many samples are behind each figure
    #[arg(long)]
    pub(crate) long: bool,
}

/// One of several tunings that are nearly as fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PreferArg {
    /// The one with the least CPU time
    Cheapest,
    /// The fastest one, whatever CPU time it takes
    Fastest,
}

/// Host memory as users call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HostArg {
    /// Ordinary memory in use; machine files and tables call it `warm`, which is accepted too
    #[value(alias = "warm")]
    Pageable,
    /// Memory pinned for the GPU
    Pinned,
    /// Ordinary memory never touched
    Fresh,
    /// A mapped file
    File,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExcludeArg {
    /// Multiprocessors of the GPU
    #[value(name = "no-sm")]
    Sm,
    /// Threads other than the caller's
    #[value(name = "no-threads")]
    Threads,
    /// Links of other GPUs
    #[value(name = "no-multipath")]
    Multipath,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CopyBackendArg {
    /// On the GPUs
    Auto,
    /// Threads and real memory, throttled to a machine file
    Emu,
    /// On the GPUs
    Cuda,
}

fn method() -> impl TypedValueParser<Value = Method> {
    PossibleValuesParser::new(Method::words().into_iter().map(|(word, _)| word))
        .map(|text| Method::named(&text, None).expect("the parser before lets only known words through"))
}

fn strategy() -> impl TypedValueParser<Value = Strategy> {
    let all = Strategy::ALL.map(|strategy| {
        let (first, rest) = strategy.summary().split_at(1);
        PossibleValue::new(strategy.name()).help(first.to_uppercase() + rest)
    });
    PossibleValuesParser::new(all).map(|text| {
        let found = Strategy::ALL.into_iter().find(|strategy| strategy.name() == text);
        found.expect("the parser before lets only known words through")
    })
}

fn step() -> impl TypedValueParser<Value = MeasureStep> {
    word(&MeasureStep::WORDS)
}

/// A time above zero, with a unit.
fn some_time(text: &str) -> Result<Nanos, String> {
    match text.parse::<Nanos>() {
        Ok(Nanos(0)) => Err("give a time above zero".to_owned()),
        parsed => parsed.map_err(|error| error.to_string()),
    }
}

/// A size with a unit, or a number of bytes.
fn bytes(text: &str) -> Result<Bytes, UnitError> {
    text.parse::<u64>().map_or_else(|_| text.parse(), |bytes| Ok(Bytes(bytes)))
}

impl From<CopyBackendArg> for headway::gpus::CopyBackend {
    fn from(backend: CopyBackendArg) -> Self {
        match backend {
            CopyBackendArg::Auto => Self::Auto,
            CopyBackendArg::Emu => Self::Emu,
            CopyBackendArg::Cuda => Self::Cuda,
        }
    }
}

impl From<HostArg> for HostMemory {
    fn from(host: HostArg) -> Self {
        match host {
            HostArg::Pageable => Self::Touched,
            HostArg::Pinned => Self::Pinned,
            HostArg::Fresh => Self::Untouched,
            HostArg::File => Self::File,
        }
    }
}

impl From<ExcludeArg> for headway::explain::Exclusion {
    fn from(exclude: ExcludeArg) -> Self {
        match exclude {
            ExcludeArg::Sm => Self::Sm,
            ExcludeArg::Threads => Self::Threads,
            ExcludeArg::Multipath => Self::Multipath,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_strategy_has_one_name_for_the_command_line_and_for_plans() {
        for strategy in Strategy::ALL {
            let asked = Cli::try_parse_from(["headway", "plan", "w.toml", "--strategy", strategy.name()]);
            let Ok(Cli { command: Command::Plan(args), .. }) = asked else { panic!("{asked:?}") };
            assert_eq!(args.strategy, Some(strategy));
            assert_eq!(serde_json::to_value(strategy).unwrap(), strategy.name());
        }
    }
}
