//! Plans a workload and runs it: in virtual time, on the emulated device, or on GPUs.

mod devices;
mod foresight;
mod inputs;
mod others;
mod program;
pub mod tasks;
mod times;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use headway_core::decisions::dispatch::{DispatchEvent, DispatcherLimits};
pub use headway_core::decisions::dispatch::{Unfit, UrgentAnswer};
use headway_core::files::error::Loaded;
use headway_core::files::machine::Machine;
use headway_core::files::workload::{Sharding, Workload};
pub use headway_core::log::{Incomplete, RunSource, StreamEnd};
use headway_core::log::{LogHeader, LogRecord, RecordBody, SCHEMA};
use headway_core::models::cpu;
pub use headway_core::models::cpu::RequestedClass;
use headway_core::plan::payload::Payload;
use headway_core::plan::{Outcome, PipelineSource, Plan, PlanChoice, PlannedStream, Sharded, Strategy};
use headway_core::units::{Bytes, Nanos};
use headway_device::Engines;
use headway_device::work::Library;
use headway_kernels::Shipped;
use headway_runtime::blocks::{DataError, Gatherer, Scatterer, output_name};
use headway_runtime::host::{HostError, HostPayload, TimeOnly};
use headway_runtime::intake::{InputShare, Intake, bytes_within};
use headway_runtime::kernels::Kernels;
use headway_runtime::outlet::{Outlet, PART, file_name};
use headway_runtime::program::{Callbacks, GivePacket, ProgramSink, ProgramSource};
use headway_runtime::tail::Left;
use headway_runtime::wall::{self, MessageComparison, RunError};
use headway_sim::{Run, SimError, SimFaults, simulate};
use headway_trace::RunLog;
use headway_trace::summary::RunSummary;
use serde::Serialize;

#[doc(hidden)]
pub use self::devices::choose;
use self::others::OthersWatch;
use self::program::{Bound, EventSender, Observer};
pub use self::program::{
    CallbackReport, CallbackResult, MissReason, PacketRequest, PacketResult, Program, RunEvent, RunEventKind,
    RunEvents, UrgentCopies, UrgentCopy, UrgentReport, UrgentTicket,
};
pub use self::times::{TimesOptions, times};
pub use crate::error::ProgramError;
use crate::error::error_at;
pub use crate::keep::Keep;
use crate::{COMMIT, Error, Failure, VERSION, sample, verify, why};

/// What runs the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// GPUs if there are some, else the simulation.
    #[default]
    Auto,
    /// Virtual time over the machine file.
    Sim,
    /// Threads and real memory, throttled to the machine file.
    Emu,
    Cuda,
}

/// What to run and how.
#[derive(Clone)]
pub struct RunOptions {
    /// What runs it.
    pub backend: Backend,
    /// Machine by name or file; `None` = `h200-x4` in simulation, else what fits the devices.
    pub machine: Option<String>,
    /// Use this many GPUs only.
    pub gpus: Option<usize>,
    /// Other programs that may copy over the same engines without breaking the promise ([`crate::machine::beside`]). Simulations have every
    /// copy wait for them.
    pub others: u32,
    /// Plan by this strategy only.
    pub strategy: Option<Strategy>,
    /// File or folder to process; `None` = a random sample.
    pub input: Option<PathBuf>,
    /// How long packets arrive; `None` = until the input ends, or what the workload says for a sample.
    pub duration: Option<Nanos>,
    /// Where the results go; `None` = `out/NAME-SOURCE` with [`RunOptions::label`] behind it.
    pub out: Option<PathBuf>,
    /// What tells these results from those of other runs of the workload, for example `-seed-7`.
    pub label: String,
    /// Seed instead of the workload's.
    pub seed: Option<u64>,
    /// Run although the plan is not accepted.
    pub force: bool,
    /// Compare every stream with the CPU's result.
    pub verify: bool,
    /// Simulate times alone: nothing is moved, computed or compared, and the streams' files stay empty.
    pub time_only: bool,
    /// The scheduling class of the threads that drive devices.
    pub cpu_class: RequestedClass,
    /// How much is kept on disk.
    pub keep: Keep,
    /// Ends the run early when it becomes true; what it did until then is kept.
    pub interrupt: Arc<AtomicBool>,
    /// Where the kernels of steps and of tasks are found; by default those that Headway ships.
    pub library: Arc<dyn Library>,
    /// Is called, before a run begins, with what it will take of this computer, where that is much.
    pub notify: fn(&str),
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            backend: Backend::Auto,
            machine: None,
            gpus: None,
            others: 0,
            strategy: None,
            input: None,
            duration: None,
            out: None,
            label: String::new(),
            seed: None,
            force: false,
            verify: true,
            time_only: false,
            cpu_class: RequestedClass::Auto,
            keep: Keep::default(),
            interrupt: Arc::new(AtomicBool::new(false)),
            library: Arc::new(Shipped),
            notify: |_| {},
        }
    }
}

/// How far a phase is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub phase: &'static str,
    /// How much of it is done.
    pub done: u64,
    /// How much there is.
    pub total: u64,
}

/// What came of a run.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// Version of the JSON form.
    pub schema: u32,
    pub summary: RunSummary,
    /// Streams compared with the CPU's result and found equal.
    pub verified: usize,
    /// What messages moved on devices, and what of it was compared with what was sent and found equal.
    pub messages: MessageComparison,
    /// What callbacks of the program did that ran it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub callbacks: Vec<CallbackReport>,
    /// The folder with everything.
    #[serde(serialize_with = "crate::path_text::one")]
    pub folder: PathBuf,
    /// With the emulated backend: what it imitates, and what its times do not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imitates: Option<String>,
    /// Log, trace, page and the streams' folder inside it.
    #[serde(serialize_with = "crate::path_text::each")]
    pub files: Vec<PathBuf>,
    /// What was done differently from what one might expect.
    pub warnings: Vec<String>,
}

/// What a stream read and where its result is, for whoever wants to check it.
#[derive(Serialize)]
struct ManifestEntry<'a> {
    stream: &'a str,
    /// Its output inside the folder.
    output: String,
    /// The parts of the input that it read, in this order; it read them again from the first on where they have fewer bytes.
    segments: Vec<ManifestSegment>,
    /// Bytes that it read.
    bytes: u64,
    /// Zero bytes added at the end, so that the last block is whole.
    padding: u64,
    /// Bytes in the output: all of them, unless the run ended early or its output is bounded; then the first ones.
    written: u64,
    /// Whether the run came to its end.
    complete: bool,
}

#[derive(Serialize)]
struct ManifestSegment {
    /// The file; one of the results is named from inside the folder.
    #[serde(serialize_with = "crate::path_text::one")]
    file: PathBuf,
    /// First byte.
    offset: u64,
    /// Number of bytes.
    bytes: u64,
}

/// The backend chosen, with its devices open.
#[doc(hidden)]
pub struct Chosen {
    pub source: RunSource,
    pub machine: Machine,
    pub devices: Vec<Engines>,
    pub warnings: Vec<String>,
}

/// A run that has ended, with its streams' results in the outlet.
#[doc(hidden)]
pub struct Ran {
    pub log: RunLog,
    pub kernels: Kernels,
    pub intake: Arc<Intake>,
    pub compared: MessageComparison,
    /// Bytes that each stream's file holds at most; empty = all.
    pub kept: Vec<u64>,
    /// What became of the others.
    pub left: Left,
    pub callbacks: Arc<Callbacks>,
    /// Streams whose results a program took.
    pub taken: BTreeSet<u32>,
}

/// The granule of every step that Headway ships: AES blocks.
const GRANULE: u64 = 16;

/// Of each stream, what its bytes are filled up to a multiple of: kernels of modules get whole packets.
fn granules(plan: &Plan) -> Vec<u64> {
    let granule = |stream: &PlannedStream| match &plan.pipelines[stream.pipeline as usize].source {
        PipelineSource::Packets(packets) => packets.packet().0,
        _ => GRANULE,
    };
    plan.streams.iter().map(granule).collect()
}

/// Runs `workload` with a file's or random packets, and writes what becomes of them into files: a [`Program`] without callbacks.
///
/// # Errors
/// [`Error`]; nothing is left behind then.
pub fn run(
    workload: &Loaded<Workload>,
    options: &RunOptions,
    progress: impl FnMut(Progress),
) -> Result<RunReport, Error> {
    Program::open(workload, options)?.run(progress)
}

/// Puts the results in their place, marked if the run ended early.
pub(crate) fn publish(
    outlet: Outlet,
    incomplete: Option<&Incomplete>,
    warnings: &mut Vec<String>,
) -> Result<PathBuf, Error> {
    let Some(why) = incomplete else { return Ok(outlet.publish()?) };
    let place = outlet.place().to_owned();
    let folder = outlet.publish_incomplete(&format!(
        "The run was {why}.\nLog, trace, page and summary end there; outputs of streams end early and are called `*{PART}`.\n"
    ))?;
    warnings.push(format!("the run was {why}: its results are incomplete"));
    if folder != place {
        warnings.push(format!("they are in `{}`: `{}` was there before, and stays", folder.display(), place.display()));
    }
    Ok(folder)
}

/// What no device runs, at its place in the workload's file.
fn located(error: Error, plan: &Plan, workload: &Loaded<Workload>) -> Error {
    let Failure::Run(run) = error.failure() else { return error };
    let RunError::Unsupported { pipeline, step, .. } = run.as_ref() else { return error };
    let place = match plan.streams.iter().find(|stream| stream.pipeline == *pipeline) {
        Some(stream) => {
            let steps = format!("stream.{}.steps", stream.id);
            step.map_or(steps.clone(), |step| format!("{steps}.{step}"))
        }
        None => format!("message.{}", plan.pipelines[*pipeline as usize].name),
    };
    error_at(workload, &place, &run.to_string(), None)
}

/// Compares what the streams wrote with the CPU's result, and returns how many there are.
fn compare(
    ran: &Ran,
    plan: &Plan,
    options: &RunOptions,
    outlet: &Outlet,
    warnings: &mut Vec<String>,
    progress: &mut impl FnMut(Progress),
) -> Result<usize, Error> {
    let mut lost: BTreeSet<u32> = ran.log.records().iter().filter_map(lost_packet).collect();
    if !lost.is_empty() {
        warnings.push(format!("{} streams lost packets and were not compared with the CPU's result", lost.len()));
    }
    let given = (0..plan.streams.len() as u32).filter(|stream| ran.intake.program(*stream).is_some());
    lost.extend(given);
    let is_compared = |(number, stream): (u32, &PlannedStream)| {
        let source = &plan.pipelines[stream.pipeline as usize].source;
        !lost.contains(&number) && !matches!(source, PipelineSource::Packets(packets) if !packets.compared)
    };
    let verified = (0..).zip(&plan.streams).filter(|stream| is_compared(*stream)).count();
    let folder = outlet.path("");
    let outputs = verify::Outputs { folder: &folder, lost: &lost, kept: &ran.kept, ends: ran.left.take() };
    verify::verify(plan, &ran.kernels, &ran.intake, &outputs, &options.interrupt, |done| {
        progress(Progress { phase: "verifying", done: done as u64, total: verified as u64 });
    })?;
    Ok(verified)
}

/// The output of every stream with its size; those of a run that ended early get another name.
fn outputs(plan: &Plan, log: &RunLog, outlet: &Outlet) -> Result<Vec<(String, u64)>, Error> {
    let output = |stream: &PlannedStream| {
        let name = output_name(&stream.id);
        let name = if log.incomplete().is_some() { outlet.mark(&name)? } else { name };
        let path = outlet.path(&name);
        let bytes = path.metadata().map_err(|source| Failure::Read { path: outlet.place().join(&name), source })?.len();
        Ok((name, bytes))
    };
    plan.streams.iter().map(output).collect()
}

impl RunOptions {
    /// Creates the folder of results: the one that the user asked for, or else one named after the workload. If it replaces results of a
    /// workload with other contents, the user is told.
    fn outlet(&self, name: &str, hash: &str, source: RunSource) -> Result<Outlet, Error> {
        let usual = || Path::new("out").join(format!("{}-{source}{}", file_name(name), file_name(&self.label)));
        let outlet = Outlet::create_for(&self.out.clone().unwrap_or_else(usual), name)?;
        if let Some(notice) = outlet.notice(hash) {
            (self.notify)(&notice);
        }
        Ok(outlet)
    }
}

/// Gives the run's seed to what is drawn in the plan.
fn set_seed(plan: &mut Plan, seed: u64) {
    for pipeline in &mut plan.pipelines {
        if let PipelineSource::Sharded(Sharded { parameters, .. }) = &mut pipeline.source
            && parameters.number(Sharding::SEED).is_some()
        {
            *parameters = std::mem::take(parameters).with_number(Sharding::SEED, seed);
        }
    }
}

/// Runs `plan` on what was chosen; the results of its streams go into `outlet`.
///
/// # Errors
/// [`Error`].
#[doc(hidden)]
pub fn execute(
    chosen: &mut Chosen,
    plan: &Arc<Plan>,
    workload: &Workload,
    options: &RunOptions,
    outlet: &Outlet,
    progress: &mut impl FnMut(Progress),
) -> Result<Ran, Error> {
    carry_out(chosen, plan, workload, options, outlet, Bound::default(), progress)
}

/// Runs `plan` with what a program has bound.
fn carry_out(
    chosen: &mut Chosen,
    plan: &Arc<Plan>,
    workload: &Workload,
    options: &RunOptions,
    outlet: &Outlet,
    bound: Bound,
    progress: &mut impl FnMut(Progress),
) -> Result<Ran, Error> {
    let Bound { sources, sinks, requests, patience, events } = bound;
    let Chosen { source, machine, devices, .. } = chosen;
    let source = *source;
    let kernels = Kernels::of(plan, workload, options.library.as_ref())?;
    let seed = options.seed.unwrap_or(workload.seed);
    let duration = options.duration.unwrap_or(workload.duration);
    let callbacks = Arc::new(callbacks(plan, source, options, patience, events.clone()));
    let (intake, gatherer, mut kept) = match sharded_of(plan) {
        Some(sharded) => {
            let packets = packets(&plan.streams[sharded.stream as usize], duration, options)?;
            let gatherer = Gatherer::of_sizes(Arc::clone(plan), &[packets]);
            (Arc::default(), gatherer, vec![options.keep.results(sharded.sharding.summary); plan.streams.len()])
        }
        None => {
            let (intake, kept) = intake(plan, workload, options, outlet, seed, sources, &callbacks)?;
            let intake = Arc::new(intake);
            (Arc::clone(&intake), Gatherer::new(Arc::clone(plan), intake), kept)
        }
    };
    let left = Left::default();
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    let devices_named = devices.iter().map(|device| device.description().name.clone()).collect();
    let mut header = header(source, plan, &gatherer, seed, duration);
    header.devices = devices_named;
    let span = span(plan, &header.cycles);
    if let Some(available) = foresight::available() {
        foresight::fits(&header, span, available)?;
    }
    let measured =
        (source == RunSource::Emu || (source == RunSource::Sim && !options.time_only)) && !plan.pipelines.is_empty();
    let notice = measured.then(|| foresight::Labour::of(&header, &kernels).notice(source, span, cpus)).flatten();
    if let Some(notice) = notice {
        (options.notify)(&notice);
    }
    let taken: BTreeSet<u32> = sinks.keys().copied().collect();
    if !taken.is_empty() {
        kept.resize(plan.streams.len(), u64::MAX);
        taken.iter().for_each(|stream| kept[*stream as usize] = 0);
    }
    let sink = |(stream, take): (u32, _)| {
        let packet = plan.streams[stream as usize].packet.0;
        let share = intake.shares().get(stream as usize).map(|share| share.bytes.div_ceil(packet));
        let packets = share.unwrap_or_else(|| gatherer.runs()[stream as usize].packets);
        ProgramSink::new(plan, stream, packets, take, &callbacks).map(|sink| (stream, sink))
    };
    let sinks = sinks.into_iter().map(sink).collect::<Result<BTreeMap<_, _>, _>>()?;
    let scatterer = Scatterer::new(gatherer.clone(), outlet)?.checking(&kernels);
    let scatterer = scatterer.giving(sinks).bounded(kept.clone(), left.clone());
    let observer = Observer::new(plan, &callbacks, events);
    let parts = Parts { plan, machine, header: &header, kernels: &kernels, gatherer, scatterer, observer, requests };
    let others =
        (source == RunSource::Cuda).then(|| OthersWatch::begin(devices, plan.others, options.notify)).flatten();
    let Driven { records, compared, incomplete, cpu } = parts.drive(devices, options, progress)?;
    (header.cpu, header.others) = (cpu, others.map_or_else(Vec::new, OthersWatch::end));
    let incomplete = callbacks.failure().map(program::incomplete).or(incomplete);
    let log = RunLog::new(header, records, "this run")?.ended(incomplete);
    Ok(Ran { log, kernels, intake, compared, kept, left, callbacks, taken })
}

/// What begins the log of a run that processes what `gatherer` has and lasts for `duration` where nothing ends before.
fn header(source: RunSource, plan: &Plan, gatherer: &Gatherer, seed: u64, duration: Nanos) -> LogHeader {
    LogHeader {
        schema: SCHEMA,
        source,
        version: VERSION.to_owned(),
        commit: COMMIT.to_owned(),
        seed,
        devices: Vec::new(),
        plan: plan.clone(),
        cycles: cycles(plan, gatherer.cycles(), duration),
        streams: gatherer.runs().to_vec(),
        cpu: None,
        others: Vec::new(),
    }
}

/// A real start needs a lead of at least 10 ms; a simulation keeps it so that logs look alike.
const SIM_EPOCH: Nanos = Nanos(10_000_000);

/// Simulates the run that `header` begins; says why it ended early, if it did.
fn in_virtual_time<P: Payload<Error = HostError>>(
    machine: &Machine,
    header: &LogHeader,
    faults: SimFaults,
    payload: &mut P,
    log: impl FnMut(&LogRecord),
) -> Result<Option<Incomplete>, Error> {
    let run = Run {
        epoch: SIM_EPOCH,
        cycles: header.cycles.clone(),
        inputs: inputs::inputs(&header.plan, &header.cycles, span(&header.plan, &header.cycles), header.seed),
        packets: header.streams.iter().map(|run| run.packets).collect(),
        seed: header.seed,
        faults,
        limits: DispatcherLimits::default(),
    };
    match simulate(&header.plan, machine, &run, payload, log) {
        Ok(_) => Ok(None),
        Err(SimError::Interrupted) => Ok(Some(Incomplete::Interrupted)),
        Err(SimError::Stopped { stream, packet, by }) => Ok(Some(Incomplete::Stopped { stream, packet, by })),
        Err(error) => Err(error.into()),
    }
}

/// The stream of the plan that is divided among GPUs, if it has one.
fn sharded_of(plan: &Plan) -> Option<&Sharded> {
    plan.pipelines.iter().find_map(|pipeline| match &pipeline.source {
        PipelineSource::Sharded(sharded) => Some(sharded),
        _ => None,
    })
}

/// Packets of a stream without input that arrive in `duration`.
fn packets(stream: &PlannedStream, duration: Nanos, options: &RunOptions) -> Result<u64, Error> {
    if options.input.is_some() {
        return Err(Failure::Options("the images of a wafer are synthetic: leave the input (`--input`) out").into());
    }
    match duration.0 / stream.period.0 {
        0 => Err(Failure::Options(
            "no generation of images arrives in that time; choose a longer duration (`--duration`)",
        )
        .into()),
        packets => Ok(packets),
    }
}

/// The stream of which a record says that a packet was given up.
fn lost_packet(record: &LogRecord) -> Option<u32> {
    match record.what {
        RecordBody::Event(DispatchEvent::Lost { stream, .. }) => Some(stream),
        _ => None,
    }
}

/// What a run consists of, whatever drives it.
struct Parts<'a> {
    plan: &'a Arc<Plan>,
    machine: &'a Machine,
    header: &'a LogHeader,
    kernels: &'a Kernels,
    gatherer: Gatherer,
    scatterer: Scatterer,
    observer: Observer,
    requests: wall::Requests,
}

/// What a driver brought back.
struct Driven {
    records: Vec<LogRecord>,
    compared: MessageComparison,
    incomplete: Option<Incomplete>,
    /// How the threads were scheduled that drove devices.
    cpu: Option<cpu::Use>,
}

impl Parts<'_> {
    /// Runs everything, or what there is of it before the run ends early.
    fn drive(
        self,
        devices: &mut [Engines],
        options: &RunOptions,
        progress: &mut impl FnMut(Progress),
    ) -> Result<Driven, Error> {
        if self.header.source == RunSource::Sim {
            self.simulate(options, progress)
        } else {
            self.on_devices(devices, options, progress)
        }
    }

    fn simulate(mut self, options: &RunOptions, progress: &mut impl FnMut(Progress)) -> Result<Driven, Error> {
        let now = Arc::<AtomicU64>::default();
        let total = span(self.plan, &self.header.cycles);
        let interrupt = Arc::clone(&options.interrupt);
        let mut records = Vec::new();
        let mut reported = Nanos::ZERO;
        let mut log = |record: &LogRecord| {
            now.store(record.at.saturating_sub(SIM_EPOCH).0, Ordering::Relaxed);
            self.observer.see(record);
            records.push(record.clone());
            if record.at > reported {
                reported = record.at + Nanos(10_000_000);
                let done = record.at.saturating_sub(SIM_EPOCH).0.min(total.0);
                progress(Progress { phase: "simulating", done, total: total.0 });
            }
        };
        let faults = SimFaults::default();
        let mut contents = None;
        let ended = if options.time_only {
            in_virtual_time(self.machine, self.header, faults, &mut TimeOnly::new(self.gatherer, interrupt), &mut log)
        } else {
            let plan = Arc::clone(self.plan);
            let all =
                HostPayload::new(plan, self.kernels, self.gatherer, self.scatterer, interrupt)?.timed(Arc::clone(&now));
            in_virtual_time(self.machine, self.header, faults, contents.insert(all), &mut log)
        };
        let incomplete = ended?;
        contents.map(HostPayload::finish).transpose()?;
        Ok(Driven { records, compared: MessageComparison::default(), incomplete, cpu: None })
    }

    fn on_devices(
        self,
        devices: &mut [Engines],
        options: &RunOptions,
        progress: &mut impl FnMut(Progress),
    ) -> Result<Driven, Error> {
        let Self { plan, kernels, gatherer, scatterer, mut observer, requests, .. } = self;
        let total = span(plan, &self.header.cycles).0;
        // The emulated device needs the CPU that the driver would spin on.
        let spin = if self.header.source == RunSource::Cuda { wall::GPU_SPIN } else { Nanos::ZERO };
        let (class, interrupt) = (options.cpu_class, Arc::clone(&options.interrupt));
        let habits = wall::WallOptions { spin, class, interrupt, ..wall::WallOptions::default() };
        let cycles = self.header.cycles.clone();
        let packets = self.header.streams.iter().map(|run| run.packets).collect();
        let (supply, collect) = (Box::new(gatherer), Box::new(scatterer));
        let inputs = inputs::inputs(plan, &self.header.cycles, Nanos(total), self.header.seed);
        let mut records = Vec::new();
        let ended = wall::run_work(
            wall::SuppliedRun { plan, kernels, cycles, packets, supply, collect, inputs, requests },
            devices,
            &habits,
            |record| {
                observer.see(record);
                records.push(record.clone());
            },
            |at| {
                progress(Progress { phase: "running", done: at.0.min(total), total });
            },
        );
        let (compared, incomplete, cpu) = match ended {
            Ok(outcome) => (outcome.compared, None, Some(outcome.cpu)),
            Err(RunError::Interrupted { cpu }) => {
                (MessageComparison::default(), Some(Incomplete::Interrupted), cpu.map(|cpu| *cpu))
            }
            Err(RunError::Stopped { stream, packet, by, cpu }) => {
                (MessageComparison::default(), Some(Incomplete::Stopped { stream, packet, by }), cpu.map(|cpu| *cpu))
            }
            Err(RunError::Data(DataError::Callback(failure))) => {
                (MessageComparison::default(), Some(program::incomplete(failure)), None)
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Driven { records, compared, incomplete, cpu })
    }
}

/// What all callbacks of a run share.
fn callbacks(
    plan: &Arc<Plan>,
    source: RunSource,
    options: &RunOptions,
    patience: Nanos,
    events: Option<EventSender>,
) -> Callbacks {
    let plan = Arc::clone(plan);
    let dropped = move |stream: u32, packet: u64, at: Nanos| {
        let Some(events) = &events else { return };
        let stream = plan.streams[stream as usize].id.clone();
        events.tell(at, RunEventKind::ResultDropped { stream, packet });
    };
    Callbacks::new(patience, Arc::clone(&options.interrupt), source == RunSource::Sim, Box::new(dropped))
}

/// What the streams read: what a program gives, the input, a sample, or nothing when there are no streams; and how much of each output is
/// kept, where that is not all.
fn intake(
    plan: &Arc<Plan>,
    workload: &Workload,
    options: &RunOptions,
    outlet: &Outlet,
    seed: u64,
    sources: BTreeMap<u32, GivePacket>,
    callbacks: &Arc<Callbacks>,
) -> Result<(Intake, Vec<u64>), Error> {
    let granules = granules(plan);
    let of = |number: usize| sources.contains_key(&(number as u32));
    let streams: Vec<PlannedStream> =
        plan.streams.iter().enumerate().filter(|(number, _)| !of(*number)).map(|(_, stream)| stream.clone()).collect();
    let granules_read: Vec<u64> =
        granules.iter().enumerate().filter(|(number, _)| !of(*number)).map(|(_, granule)| *granule).collect();
    let (mut intake, mut kept) = match streams.is_empty() && !plan.streams.is_empty() {
        true if options.input.is_some() => {
            return Err(Failure::Options("a program gives the packets of all streams: leave out the input").into());
        }
        true => (Intake::default(), Vec::new()),
        false => read(plan, &streams, &granules_read, workload, options, outlet, seed)?,
    };
    let duration = options.duration.unwrap_or(workload.duration);
    for (number, give) in sources {
        let (at, stream) = (number as usize, &plan.streams[number as usize]);
        let bytes = bytes_within(stream, duration);
        if bytes == 0 {
            return Err(
                Failure::Options("no packet arrives in that time; choose a longer duration (`--duration`)").into()
            );
        }
        let source = ProgramSource::new(plan, number, bytes / stream.packet.0, give, callbacks)?;
        intake.give(at, source, bytes, granules[at]);
        if !kept.is_empty() {
            kept.insert(at, u64::MAX);
        }
    }
    Ok((intake, kept))
}

/// What `streams`, which no program gives, read.
fn read(
    plan: &Plan,
    streams: &[PlannedStream],
    granules: &[u64],
    workload: &Workload,
    options: &RunOptions,
    outlet: &Outlet,
    seed: u64,
) -> Result<(Intake, Vec<u64>), Error> {
    if streams.is_empty() {
        return match options.input {
            Some(_) => Err(Failure::Options("the workload has no streams that could read an input (`--input`)").into()),
            None => Ok((Intake::default(), Vec::new())),
        };
    }
    if let Some(input) = &options.input {
        return Ok((Intake::open(input, streams, options.duration, granules)?, Vec::new()));
    }
    let duration = options.duration.unwrap_or(workload.duration);
    let parts = options.keep.parts(streams, duration, granules)?;
    let path = sample::write(outlet, parts.iter().sum(), seed, &options.interrupt)?;
    let intake = Intake::open_repeated(&path, streams, duration, &parts, granules)?;
    let kept = |((share, part), stream): ((&InputShare, u64), &PlannedStream)| {
        if part >= share.bytes { u64::MAX } else { results(plan, stream, part) }
    };
    let kept = intake.shares().iter().zip(parts).zip(streams).map(kept).collect();
    Ok((intake, kept))
}

/// How many bytes a stream gives for as many that it takes, the last packet filled up.
fn results(plan: &Plan, stream: &PlannedStream, taken: u64) -> u64 {
    match &plan.pipelines[stream.pipeline as usize].source {
        PipelineSource::Packets(packets) => taken.div_ceil(packets.packet().0).saturating_mul(packets.result().0),
        _ => taken,
    }
}

/// What the files of the streams lack, as a sentence.
fn bounded(plan: &Plan, ran: &Ran, verified: bool) -> Option<String> {
    let runs = (0u32..).zip(plan.streams.iter().zip(&ran.log.header().streams).zip(&ran.kept));
    let runs = runs.filter(|(stream, _)| !ran.taken.contains(stream)).map(|(_, run)| run);
    let given = runs.map(|((stream, run), kept)| (results(plan, stream, run.bytes.0), *kept));
    let cut: Vec<(u64, u64)> = given.filter(|(given, kept)| given > kept).collect();
    let (of, kept) = cut.iter().fold((0u64, 0u64), |sum, cut| (sum.0.saturating_add(cut.0), sum.1 + cut.1));
    if cut.is_empty() {
        return None;
    }
    let (streams, kept) = (format!("{} of {} streams", cut.len(), plan.streams.len()), Bytes(kept));
    if ran.log.incomplete().is_some() {
        return Some(format!("streams/ has at most the first {kept} that {streams} gave (`--sample-max`)"));
    }
    let compared = if verified { "all of it was compared before" } else { "nothing of it was compared" };
    let input = if sharded_of(plan).is_some() { "" } else { "; they read sample.bin again and again" };
    Some(format!(
        "streams/ has the first {kept} of {} that {streams} gave (`--sample-max`), {compared}{input}",
        Bytes(of)
    ))
}

/// Cycles of every pipeline: what the streams need, for messages and demands as many as begin within that time, and the pieces of
/// bulk transfers. Of what has no end as many as a log can number.
fn cycles(plan: &Plan, mut cycles: Vec<u64>, duration: Nanos) -> Vec<u64> {
    let horizon = if plan.streams.is_empty() { duration } else { span(plan, &cycles) };
    for (pipeline, count) in plan.pipelines.iter().zip(&mut cycles) {
        if let PipelineSource::Bulk(Some(bytes)) = pipeline.source {
            *count = bytes.0.div_ceil(pipeline.reserve.0);
        } else if !pipeline.source.is_planned() {
            *count = u64::from(u32::MAX);
        } else if !pipeline.source.is_fed() {
            *count = horizon.saturating_sub(pipeline.start).0.div_ceil(pipeline.period.0);
        }
    }
    cycles
}

/// Refuses plans that are not accepted, unless forced.
fn accept(plan: &Plan, options: &RunOptions, warnings: &mut Vec<String>) -> Result<(), Error> {
    let verdict = match plan.verdict.outcome {
        Outcome::Schedulable => return Ok(()),
        Outcome::NotSchedulable => "deadlines can be missed",
        Outcome::Undecided => match plan.choice() {
            Some(PlanChoice::Windows) => "deadlines can be missed with the windows that were tried",
            Some(PlanChoice::Strategy) => "deadlines can be missed with the one strategy that was tried",
            None => "the tests could not decide",
        },
    };
    if !options.force {
        return Err(Failure::NotAccepted { verdict: verdict.to_owned(), why: why::reasons(plan) }.into());
    }
    warnings.push(format!("running although {verdict}"));
    Ok(())
}

/// The time from the epoch to the last window's end.
fn span(plan: &Plan, cycles: &[u64]) -> Nanos {
    let ends = plan.pipelines.iter().zip(cycles).filter(|(of, cycles)| **cycles > 0 && of.source.is_planned());
    ends.map(|(pipeline, cycles)| pipeline.deadline(cycles - 1, pipeline.steps.len() - 1)).max().unwrap_or_default()
}

fn manifest<'a>(
    plan: &'a Plan,
    intake: &Intake,
    outlet: &Outlet,
    outputs: Vec<(String, u64)>,
    complete: bool,
) -> Vec<ManifestEntry<'a>> {
    let files: Vec<&Path> = intake.files().collect();
    // A sample moves with the results: it is named from inside them.
    let named = |file: &Path| file.strip_prefix(outlet.path("")).unwrap_or(file).to_owned();
    let entries = plan.streams.iter().zip(intake.shares()).zip(outputs);
    entries
        .map(|((stream, share), (output, written))| ManifestEntry {
            stream: &stream.id,
            output,
            segments: share
                .segments
                .iter()
                .map(|s| ManifestSegment { file: named(files[s.file]), offset: s.offset, bytes: s.bytes })
                .collect(),
            bytes: share.bytes,
            padding: share.padding,
            written,
            complete,
        })
        .collect()
}
