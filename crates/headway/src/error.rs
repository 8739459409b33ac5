//! The one error of the public API. Callers see its kind; what failed in detail is for Headway's own crates. Causes follow as a
//! chain, printed once, by the front end.

mod flow;
mod guest;
mod program;

use std::io;
use std::path::{Path, PathBuf};

use headway_broker::{ClientError, ServerError};
use headway_core::files::error::{FileError, Loaded};
use headway_core::files::workload::{Workload, WorkloadError};
use headway_core::log::Incomplete;
use headway_core::plan::planner::PlanError;
use headway_core::units::{Bytes, Nanos};
use headway_device::{DeviceError, WorkError};
use headway_os::OsError;
use headway_runtime::blocks::DataError;
use headway_runtime::copy::CopyError;
use headway_runtime::host::HostError;
use headway_runtime::intake::InputError;
use headway_runtime::kernels::KernelError;
use headway_runtime::outlet::OutputError;
use headway_runtime::program::CallbackFailure;
use headway_runtime::wall::RunError;
use headway_sim::SimError;
use headway_sim::sharing::SimSharingError;
use headway_trace::LogError;
use headway_trace::replay::Divergence;

pub use self::flow::FlowError;
pub use self::guest::GuestError;
pub(crate) use self::guest::LIBRARY;
pub use self::program::ProgramError;

/// What failed. The text says it, and [`source`](std::error::Error::source) leads to the causes.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Error(Box<Failure>);

/// What kind of failure an [`Error`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The options contradict each other, or ask for too little or too much.
    Options,
    /// The input cannot be used.
    Input,
    /// A machine or workload file is wrong, mostly at a [place](Error::place) that can be pointed at.
    File,
    /// There is no such machine, or it has no such GPU.
    Machine,
    /// No plan can be made.
    Plan,
    /// The plan says that deadlines can be missed.
    NotAccepted,
    /// A kernel cannot work on this data.
    Kernel,
    /// The backend is not there: no driver or no GPU.
    Backend,
    /// A device refused or failed.
    Device,
    /// A simulation failed.
    Simulation,
    /// GPUs cannot be shared: the broker is not there, refused or failed.
    Broker,
    /// A process cannot run as a guest of Headway or of the broker's MPS daemon.
    Guest,
    /// A callback of the program failed, panicked or did not return.
    Callback,
    /// Somebody asked for the end.
    Interrupted,
    /// A stream that must stop at a missed deadline missed one.
    Missed,
    /// The system refused something: reading, writing, a setting.
    Io,
    /// What came out differs from what the CPU computes; nothing was kept.
    WrongBytes,
    /// A log cannot be read, or lacks records.
    Log,
    /// A log replays differently.
    Replay,
    /// A defect of Headway.
    Defect,
}

impl Error {
    /// What kind of failure it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match &*self.0 {
            Failure::Options(_) | Failure::Sample { .. } | Failure::TooLong { .. } => ErrorKind::Options,
            Failure::Input(_) => ErrorKind::Input,
            Failure::File(_) | Failure::Workload(_) | Failure::TooLarge { .. } => ErrorKind::File,
            Failure::NoMachine { .. }
            | Failure::TooFewGpus { .. }
            | Failure::NoTurns { .. }
            | Failure::NoGpu { .. } => ErrorKind::Machine,
            Failure::Plan(_) => ErrorKind::Plan,
            Failure::NotAccepted { .. } => ErrorKind::NotAccepted,
            Failure::Data(_) | Failure::Library(_) | Failure::Kernel(_) => ErrorKind::Kernel,
            Failure::Backend { .. } => ErrorKind::Backend,
            Failure::Flow(error) if error.is_answer() => ErrorKind::NotAccepted,
            Failure::Flow(
                FlowError::Refused(_) | FlowError::Submit(_) | FlowError::Buffers { .. } | FlowError::LateBroker,
            ) => ErrorKind::Options,
            Failure::Program(error) if error.is_answer() => ErrorKind::NotAccepted,
            Failure::Program(ProgramError::Ended { .. } | ProgramError::Late { .. }) => ErrorKind::Device,
            Failure::Program(_) => ErrorKind::Options,
            Failure::Callback { .. } => ErrorKind::Callback,
            Failure::Device(_) | Failure::Copy(_) | Failure::Run(_) | Failure::Flow(_) => ErrorKind::Device,
            Failure::Simulate(_) | Failure::Sharing(_) => ErrorKind::Simulation,
            Failure::Shared(_) | Failure::Broker(_) | Failure::Client(_) => ErrorKind::Broker,
            Failure::Guest(_) | Failure::NotAlone => ErrorKind::Guest,
            Failure::Interrupted => ErrorKind::Interrupted,
            Failure::Stopped { .. } => ErrorKind::Missed,
            Failure::Read { .. }
            | Failure::Write { .. }
            | Failure::Output(_)
            | Failure::System(_)
            | Failure::Metrics { .. } => ErrorKind::Io,
            Failure::WrongJob { .. } | Failure::Wrong { .. } | Failure::WrongTail { .. } => ErrorKind::WrongBytes,
            Failure::Log(_) | Failure::CutLog { .. } | Failure::NoRun { .. } => ErrorKind::Log,
            Failure::Replay(_) | Failure::ReplayBroker(_) => ErrorKind::Replay,
            Failure::Panicked { .. } => ErrorKind::Defect,
        }
    }

    /// Whether somebody asked for the end before there was anything to keep.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.kind() == ErrorKind::Interrupted
    }

    /// Whether this is a negative answer, rather than a failure to find one.
    #[must_use]
    pub fn is_answer(&self) -> bool {
        Diagnosis::is_answer(self)
    }

    /// What to do about it, where the text does not say.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        Diagnosis::help(self)
    }

    /// The place in a file that is wrong.
    #[must_use]
    pub fn place(&self) -> Option<&FileError> {
        Diagnosis::place(self)
    }

    #[doc(hidden)]
    #[must_use]
    pub fn failure(&self) -> &Failure {
        &self.0
    }

    #[doc(hidden)]
    #[must_use]
    pub fn into_failure(self) -> Failure {
        *self.0
    }
}

impl<T> From<T> for Error
where
    Failure: From<T>,
{
    fn from(cause: T) -> Self {
        Self(Box::new(cause.into()))
    }
}

/// An error at the part of `workload` called `place`: at its line if a file says it.
pub(crate) fn error_at(workload: &Loaded<Workload>, place: &str, message: &str, help: Option<String>) -> Error {
    if workload.spans.is_empty() {
        return Error::from(WorkloadError::new(place, message, help));
    }
    Error::from(workload.error_at(place, message, help))
}

/// What failed, in detail. Only Headway's own crates can rely on it.
#[doc(hidden)]
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A file could not be read.
    #[error("cannot read `{path}`")]
    Read { path: PathBuf, source: io::Error },
    /// Metrics cannot be served.
    #[error("cannot serve metrics at {address}")]
    Metrics { address: String, source: io::Error },
    /// A machine or workload file is wrong at a place that can be pointed at.
    #[error("{0}")]
    File(Box<FileError>),
    /// A workload that code made is wrong.
    #[error("{0}")]
    Workload(Box<WorkloadError>),
    /// A machine name that is neither shipped nor a file.
    #[error("there is no machine `{name}`: it is neither a file nor shipped; {suggestion}")]
    NoMachine {
        name: String,
        /// The shipped name that is nearly the same, or all shipped names.
        suggestion: String,
    },
    /// Fewer GPUs than asked for.
    #[error("machine `{machine}` has {available} GPU{}, not {wanted}", if *available == 1 { "" } else { "s" })]
    TooFewGpus {
        machine: String,
        /// GPUs asked for.
        wanted: usize,
        /// GPUs it has.
        available: usize,
    },
    /// A machine of which nobody measured how long another process keeps a copy engine.
    #[error(
        "machine `{machine}` does not say how long another process keeps a copy engine, so nothing can be promised beside others"
    )]
    NoTurns { machine: String },
    /// An unmodified program cannot be started as a guest.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// The environment can be changed only while the process has one thread.
    #[error("this process has several threads, so its environment cannot be changed to join the broker's MPS daemon")]
    NotAlone,
    /// No plan can be made.
    #[error("cannot plan")]
    Plan(#[source] Box<PlanError>),
    /// The plan says that deadlines can be missed, and nobody said to run nevertheless.
    #[error("the plan is not accepted: {verdict}")]
    NotAccepted {
        /// What the plan says.
        verdict: String,
        /// Why, a sentence each.
        why: Vec<String>,
    },
    /// The input cannot be used.
    #[error(transparent)]
    Input(#[from] InputError),
    /// A sample would be too large or empty.
    #[error(
        "random input for {duration} of {streams} stream{} would have {bytes} bytes; choose a duration (`--duration`) for \
         which it has between 1 and {max}, or give an input (`--input`)",
        if *streams == 1 { "" } else { "s" }
    )]
    Sample {
        /// Length of the run.
        duration: Nanos,
        /// Number of streams.
        streams: usize,
        /// Bytes of the sample.
        bytes: u128,
        /// Most that is written.
        max: u64,
    },
    /// The log of a run would take more memory than there is.
    #[error(
        "a run of {span} keeps about {records} records in memory, which take {needed}, and this computer has {available} left; \
         choose a duration (`--duration`) of at most {longest}"
    )]
    TooLong {
        /// Length of the run.
        span: Nanos,
        records: u128,
        /// What they take.
        needed: Bytes,
        /// Half of it may be taken.
        available: Bytes,
        /// The longest run that may be.
        longest: Nanos,
    },
    /// A workload or machine file is larger than those that are read.
    #[error(
        "`{path}` has more than {max}; reading takes about 40 times as much memory: divide what it says among several files"
    )]
    TooLarge { path: PathBuf, max: Bytes },
    /// The output cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// Packing or unpacking failed.
    #[error(transparent)]
    Data(DataError),
    /// The library's kernels cannot run the plan.
    #[error(transparent)]
    Library(#[from] KernelError),
    /// A kernel lacks a parameter, or refused a block.
    #[error(transparent)]
    Kernel(#[from] WorkError),
    /// The backend asked for is not there.
    #[error("cannot use the {backend} backend")]
    Backend { backend: &'static str, source: DeviceError },
    /// A simulated run failed.
    #[error("the simulated run failed")]
    Simulate(#[source] Box<SimError<HostError>>),
    /// A simulation of shared GPUs failed.
    #[error("the simulation of shared GPUs failed")]
    Sharing(#[source] SimSharingError),
    /// No GPU, or none of its engines, is to be had from whoever arbitrates them.
    #[error("cannot share GPUs")]
    Shared(#[source] headway_runtime::sharing::SharingError),
    /// What a job of a task copied out differs from what the CPU forms of its kernels make.
    #[error(
        "job {job} of task `{task}` is wrong: what it copied out differs from what the CPU computes; nothing was kept"
    )]
    WrongJob { task: String, job: u64 },
    /// A run on devices failed.
    #[error("the run failed")]
    Run(#[source] Box<RunError>),
    /// A stream that must stop at a miss missed.
    #[error("stream `{stream}` missed the deadline of packet {packet} by {by}, and its `on_miss` is `stop`")]
    Stopped {
        stream: String,
        packet: u64,
        /// By how much.
        by: Nanos,
    },
    /// A thread of a run panicked, which is a defect of Headway.
    #[error("the thread of task `{task}` panicked: {text}")]
    Panicked {
        task: String,
        /// What it said.
        text: String,
    },
    /// Somebody asked for the end before there was anything to keep.
    #[error("interrupted; nothing was kept")]
    Interrupted,
    /// What came out differs from the reference.
    #[error("stream `{stream}` is wrong: byte {at} of its output differs from the CPU's; nothing was kept")]
    Wrong {
        stream: String,
        /// First byte that differs, or the shorter length.
        at: u64,
    },
    /// Of what came out and was not kept, something differs from the reference.
    #[error(
        "stream `{stream}` is wrong: a byte from {first} to {last} of its output differs from the CPU's; nothing was kept"
    )]
    WrongTail {
        stream: String,
        /// First and last byte of the stretch in which something differs.
        first: u64,
        last: u64,
    },
    /// A log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A folder that is not one of results.
    #[error("`{folder}` is a folder without a log of a run (`run.jsonl`)")]
    NoRun {
        folder: PathBuf,
        /// The folders of results inside it.
        runs: Vec<PathBuf>,
    },
    /// A log lacks records of its run.
    #[error(
        "log `{path}` has {records} records and lacks the {omitted} behind them, as it had reached its size: figures from it \
         would not be those of the run"
    )]
    CutLog {
        /// The log.
        path: PathBuf,
        /// Records there.
        records: usize,
        /// Records that are not.
        omitted: u64,
    },
    /// A log replays differently.
    #[error(transparent)]
    Replay(#[from] Divergence),
    /// A broker's log replays differently.
    #[error(transparent)]
    ReplayBroker(#[from] headway_trace::broker::BrokerDivergence),
    /// A file or folder cannot be written.
    #[error("cannot write `{path}`")]
    Write { path: PathBuf, source: io::Error },
    /// A device refused or failed in a measurement.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A copy failed.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// A flow, or a copy of one, is not possible.
    #[error(transparent)]
    Flow(#[from] FlowError),
    /// A program cannot bind a stream, or gets no urgent copy.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A callback of the program failed.
    #[error("{failure}; {}", kept(folder.as_deref()))]
    Callback {
        failure: CallbackFailure,
        /// Where what was done until then is; `None` = nothing was.
        folder: Option<PathBuf>,
    },
    /// The system refused something.
    #[error(transparent)]
    System(#[from] OsError),
    /// A machine has no GPU of that name.
    #[error("machine `{machine}` has no GPU `{name}`; its GPUs: {known}")]
    NoGpu {
        machine: String,
        name: String,
        /// The names it has.
        known: String,
    },
    /// The broker cannot start or go on.
    #[error(transparent)]
    Broker(ServerError),
    /// A broker did not answer, or said no.
    #[error(transparent)]
    Client(ClientError),
    /// The options contradict each other.
    #[error("{0}")]
    Options(&'static str),
}

/// What became of the results of a run whose callback failed.
fn kept(folder: Option<&Path>) -> String {
    folder.map_or_else(
        || "nothing was kept".to_owned(),
        |folder| format!("what was done until then is in `{}`", folder.display()),
    )
}

/// What a front end tells of an error beside its text.
#[doc(hidden)]
pub trait Diagnosis: std::error::Error {
    /// Its kind in one word, as JSON has it.
    fn word(&self) -> &'static str;

    /// What to do about it, where the message itself does not say.
    fn help(&self) -> Option<String>;

    /// The error of a crate below that this one passes on, if it does.
    fn within(&self) -> Option<&dyn Diagnosis> {
        None
    }

    /// Whether this is a negative answer (exit status 1) rather than a failure (2).
    fn is_answer(&self) -> bool {
        self.within().is_some_and(Diagnosis::is_answer)
    }

    /// The causes, the nearest first, each said once.
    fn causes(&self) -> Vec<String> {
        self.within().map_or_else(|| chain(self.to_string(), self.source()), Diagnosis::causes)
    }

    /// The place in a file that is wrong, if one is.
    fn place(&self) -> Option<&FileError> {
        self.within().and_then(Diagnosis::place)
    }
}

/// Whether buffers did not fit the memory of a device, or of this process.
fn is_out_of_memory(error: &RunError) -> bool {
    matches!(error, RunError::Prepare { source: DeviceError::OutOfMemory { .. }, .. })
}

impl Diagnosis for Error {
    fn word(&self) -> &'static str {
        self.0.word()
    }

    fn help(&self) -> Option<String> {
        self.0.help()
    }

    fn within(&self) -> Option<&dyn Diagnosis> {
        Some(&*self.0)
    }
}

impl Diagnosis for Failure {
    fn word(&self) -> &'static str {
        match self {
            Self::Read { .. } => "read",
            Self::File(_) => "file",
            Self::Workload(_) => "workload",
            Self::NoMachine { .. } => "no-machine",
            Self::TooFewGpus { .. } => "too-few-gpus",
            Self::NoTurns { .. } => "no-turns",
            Self::Plan(_) => "plan",
            Self::NotAccepted { .. } => "not-accepted",
            Self::Input(_) => "input",
            Self::Sample { .. } => "sample",
            Self::TooLong { .. } => "too-long",
            Self::TooLarge { .. } => "too-large",
            Self::Output(_) => "output",
            Self::Data(_) => "data",
            Self::Library(_) | Self::Kernel(_) => "kernel",
            Self::Backend { .. } => "backend",
            Self::Simulate(_) | Self::Sharing(_) => "simulation",
            Self::Shared(_) => "sharing",
            Self::WrongJob { .. } | Self::Wrong { .. } | Self::WrongTail { .. } => "wrong-bytes",
            Self::Run(_) => "run",
            Self::Stopped { .. } => "stopped",
            Self::Panicked { .. } => "panic",
            Self::Interrupted => "interrupted",
            Self::Log(_) | Self::CutLog { .. } | Self::NoRun { .. } => "log",
            Self::Replay(_) | Self::ReplayBroker(_) => "replay",
            Self::Write { .. } => "write",
            Self::Metrics { .. } => "metrics",
            Self::Device(_) => "device",
            Self::Copy(_) => "copy",
            Self::Flow(_) => "flow",
            Self::Program(_) => "program",
            Self::Callback { .. } => "callback",
            Self::System(_) => "system",
            Self::Guest(_) => "guest",
            Self::NotAlone => "not-alone",
            Self::NoGpu { .. } => "no-gpu",
            Self::Broker(_) => "broker",
            Self::Client(_) => "broker-client",
            Self::Options(_) => "options",
        }
    }

    fn help(&self) -> Option<String> {
        let fixed = match self {
            Self::Read { source, .. } | Self::Input(InputError::Open { source, .. }) => return reading(source),
            Self::NoMachine { .. } => {
                "`headway machines` describes them; for a machine of your own, give the path of its file"
            }
            Self::NoTurns { .. } => {
                "measure the node (`headway measure`), and give its file with `--machine`; or leave out `--others`"
            }
            Self::NotAccepted { .. } => {
                "`headway plan` shows all servers and steps; a run with `--force`, in programs the option `force`, begins nevertheless"
            }
            Self::Guest(error) => return Some(error.help().to_owned()),
            Self::Workload(error) => return error.help().map(str::to_owned),
            Self::TooFewGpus { available, .. } => {
                let number = if *available == 1 { "1 GPU".to_owned() } else { format!("from 1 to {available} GPUs") };
                return Some(format!("choose {number} (`--gpus`), or another machine (`--machine`)"));
            }
            Self::NoRun { runs, .. } => return Some(one_of(runs)),
            Self::CutLog { .. } => {
                "the figures of the whole run are in `summary.json` beside it; `headway replay` compares what the log has; \
                 a run with a larger `--log-max` keeps more"
            }
            Self::Backend { backend: "cuda", .. } => {
                "`headway doctor` says what is missing; plans and simulations need no GPU (`--backend sim` or `emu`, for commands that take it)"
            }
            Self::Output(
                OutputError::Create { source, .. }
                | OutputError::Write { source, .. }
                | OutputError::Publish { source, .. },
            ) => match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::FileTooLarge | io::ErrorKind::QuotaExceeded => {
                    "nothing was kept; free space, or choose a folder for the results (`--out`) on another disk"
                }
                _ => "nothing was kept; choose another folder for the results (`--out`)",
            },
            Self::Run(error) if is_out_of_memory(error) => {
                "every stream holds blocks of all cycles under way: take fewer streams, smaller packets or shorter deadlines; \
                 an emulated GPU has 1 GiB, and a simulation (`--backend sim`) needs no memory of GPUs"
            }
            Self::Metrics { .. } => "choose another port or path with `--metrics`, or end who listens there",
            Self::NotAlone => {
                "call `mps::join` first of all; or set `CUDA_MPS_PIPE_DIRECTORY` where the program is started"
            }
            Self::Panicked { .. } => "this is a defect of Headway: report it with this text; nothing was kept",
            Self::Stopped { .. } => {
                "lower the load or the times that the machine file gives, or write `on_miss = \"finish\"`"
            }
            _ => return None,
        };
        Some(fixed.to_owned())
    }

    fn is_answer(&self) -> bool {
        match self {
            Self::Flow(error) => return error.is_answer(),
            Self::Program(error) => return error.is_answer(),
            _ => {}
        }
        matches!(self, Self::NotAccepted { .. } | Self::Replay(_) | Self::ReplayBroker(_) | Self::Stopped { .. })
    }

    fn causes(&self) -> Vec<String> {
        match self {
            Self::NotAccepted { why, .. } => why.clone(),
            _ => chain(self.to_string(), std::error::Error::source(self)),
        }
    }

    fn place(&self) -> Option<&FileError> {
        match self {
            Self::File(wrong) => Some(wrong),
            _ => None,
        }
    }
}

/// The causes of an error with that text, the nearest first, each said once.
fn chain(mut last: String, mut source: Option<&dyn std::error::Error>) -> Vec<String> {
    let mut causes: Vec<String> = Vec::new();
    while let Some(cause) = source {
        let text = cause.to_string();
        // Transparent wrappers say the same as what they wrap.
        if text != last {
            causes.push(text.clone());
        }
        last = text;
        source = cause.source();
    }
    causes
}

/// Which of the `runs` in a folder could be meant.
fn one_of(runs: &[PathBuf]) -> String {
    const NAMED_MAX: usize = 4;
    let named: Vec<String> = runs.iter().take(NAMED_MAX).map(|run| format!("`{}`", run.display())).collect();
    match runs.len() {
        0 => "give a log, or the folder that `headway run` names as its results".to_owned(),
        n if n > NAMED_MAX => format!("give one of the {n} runs inside, for example {}", named.join(", ")),
        1 => format!("give the run inside: {}", named.join(", ")),
        _ => format!("give one of the runs inside: {}", named.join(", ")),
    }
}

/// What to do about a file that cannot be read.
fn reading(source: &io::Error) -> Option<String> {
    let help = match source.kind() {
        io::ErrorKind::NotFound => "check the path; it is taken from the current folder",
        io::ErrorKind::IsADirectory => "give a file, not a folder",
        io::ErrorKind::InvalidData => "give a text file in UTF-8",
        io::ErrorKind::PermissionDenied => "ask for the permission to read it, or copy it",
        _ => return None,
    };
    Some(help.to_owned())
}

// What a user can do something about is told without the part of Headway that met it.

impl From<WorkloadError> for Failure {
    fn from(error: WorkloadError) -> Self {
        Self::Workload(Box::new(error))
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        Self::File(Box::new(error))
    }
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Self {
        match error {
            DataError::Input(error) => error.into(),
            DataError::Output(error) => error.into(),
            DataError::Callback(failure) => failure.into(),
            error => Self::Data(error),
        }
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Interrupted { .. } => Self::Interrupted,
            RunError::Stopped { stream, packet, by, .. } => Self::Stopped { stream, packet, by },
            RunError::Data(error) => error.into(),
            error => Self::Run(Box::new(error)),
        }
    }
}

impl From<Incomplete> for Failure {
    fn from(why: Incomplete) -> Self {
        match why {
            Incomplete::Interrupted => Self::Interrupted,
            Incomplete::Stopped { stream, packet, by } => Self::Stopped { stream, packet, by },
            Incomplete::CallbackFailed { stream, packet, end, reason } => {
                CallbackFailure { stream, packet, end, reason }.into()
            }
        }
    }
}

impl From<CallbackFailure> for Failure {
    fn from(failure: CallbackFailure) -> Self {
        Self::Callback { failure, folder: None }
    }
}

impl From<SimError<HostError>> for Failure {
    fn from(error: SimError<HostError>) -> Self {
        match error {
            SimError::Interrupted => Self::Interrupted,
            SimError::Payload { source: HostError::Data(error), .. } => error.into(),
            SimError::Stopped { stream, packet, by } => Self::Stopped { stream, packet, by },
            error => Self::Simulate(Box::new(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn an_error_has_a_kind_a_text_and_its_causes_and_no_more() {
        let source = || io::Error::new(io::ErrorKind::NotFound, "it is not there");
        let failed =
            || -> Result<(), Error> { Err(Failure::Read { path: PathBuf::from("a.toml"), source: source() })? };
        let error = failed().unwrap_err();
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::Io, "cannot read `a.toml`".to_owned()));
        assert_eq!(error.source().map(ToString::to_string), Some("it is not there".to_owned()));
        assert_eq!(error.causes(), ["it is not there"]);
        assert!(error.help().is_some_and(|help| help.contains("check the path")), "{:?}", error.help());
        assert!(!error.is_interrupted() && !error.is_answer() && error.place().is_none());
        assert!(Error::from(Failure::Interrupted).is_interrupted());

        let refused = Error::from(Failure::NotAccepted { verdict: "no".to_owned(), why: vec!["too much".to_owned()] });
        assert!(refused.is_answer() && refused.causes() == ["too much"], "{refused:?}");
    }
}
