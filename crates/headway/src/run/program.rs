//! A plan that a program runs with data of its own.

mod events;
mod urgent;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use headway_core::decisions::dispatch::UrgentAnswer;
use headway_core::files::error::Loaded;
use headway_core::files::suggest;
use headway_core::files::workload::{UnplannedKind, Workload};
use headway_core::log::{Incomplete, RunSource, StreamEnd};
use headway_core::models::cpu::RequestedClass;
use headway_core::plan::Plan;
use headway_core::plan::planner::PlanOptions;
use headway_core::units::Nanos;
use headway_runtime::outlet::MARK;
use headway_runtime::program::{CallbackFailure, Callbacks, GivePacket, TakePacket, may_be_given};
use headway_runtime::wall::Requests;
use serde::Serialize;

pub use headway_runtime::program::{CallbackResult, PacketRequest, PacketResult};

pub(super) use self::events::{EventSender, Observer};
pub use self::events::{MissReason, RunEvent, RunEventKind, RunEvents};
pub use self::urgent::{UrgentCopies, UrgentCopy, UrgentReport, UrgentTicket};
use super::devices::choose;
use super::{
    Chosen, GRANULE, Progress, RunOptions, RunReport, accept, bounded, carry_out, compare, located, manifest, outputs,
    publish, set_seed,
};
use crate::error::ProgramError;
use crate::fork::{Home, at_home};
use crate::{Error, Failure, emulation, logfile, modules, report};

/// How long a callback may take, beyond when its packet is needed, unless somebody says otherwise.
const PATIENCE: Nanos = Nanos(10_000_000_000);

/// What a program holds of a run.
pub(super) struct Bound {
    /// By stream.
    pub(super) sources: BTreeMap<u32, GivePacket>,
    pub(super) sinks: BTreeMap<u32, TakePacket>,
    pub(super) requests: Requests,
    pub(super) patience: Nanos,
    pub(super) events: Option<EventSender>,
}

impl Default for Bound {
    fn default() -> Self {
        let (sources, sinks) = (BTreeMap::new(), BTreeMap::new());
        Self { sources, sinks, requests: Requests::default(), patience: PATIENCE, events: None }
    }
}

/// What a callback of a program did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CallbackReport {
    pub stream: String,
    pub end: StreamEnd,
    /// Packets that it gave or took.
    pub packets: u64,
    /// Packets that it gave too late, or results that were dropped because it was not ready for them.
    pub late: u64,
    /// The longest time by which it gave a packet too late.
    pub late_max: Nanos,
}

impl CallbackReport {
    /// A sentence, if something was late.
    fn warning(&self) -> Option<String> {
        let Self { stream, end, packets, late, late_max } = self;
        let said = match end {
            _ if *late == 0 => return None,
            StreamEnd::Source => format!("gave {late} of {packets} packets too late, by up to {late_max}"),
            StreamEnd::Sink => format!("was not ready for {late} of {} results, which were dropped", packets + late),
        };
        Some(format!("the {end} of stream `{stream}` {said}"))
    }
}

/// What all callbacks did, by stream.
pub(super) fn reports(callbacks: &Callbacks, plan: &Plan) -> Vec<CallbackReport> {
    let counts = callbacks.counts().into_iter();
    let report = |((stream, end), count): ((u32, StreamEnd), _)| {
        let headway_runtime::program::CallbackCount { packets, late, late_max } = count;
        CallbackReport { stream: plan.streams[stream as usize].id.clone(), end, packets, late, late_max }
    };
    counts.map(report).collect()
}

/// A plan that is ready to run in this process. Streams whose ends are not bound read and write as those of [`run`](super::run).
///
/// ```
/// use headway::run::{Backend, Program, RunOptions};
/// use headway::units::Nanos;
/// use headway::workload;
/// # fn main() -> Result<(), headway::Error> {
/// let workload = workload::parse("camera.toml", r#"
///     name = "camera"
///     [[stream]]
///     id = "camera"
///     packet = "64 KiB"
///     period = "10 ms"
///     deadline = "30 ms"
///     steps = [{ copy = "host -> gpu" }, { copy = "gpu -> host" }]
/// "#)?;
/// # let folder = std::env::temp_dir().join(format!("headway-program-{}", std::process::id()));
/// let options = RunOptions { backend: Backend::Sim, duration: Some(Nanos(100_000_000)), ..RunOptions::default() };
/// # let options = RunOptions { out: Some(folder.clone()), ..options };
/// let mut program = Program::open(&workload, &options)?;
/// program.source("camera", |packet, frame| {
///     frame.fill(packet.packet as u8);
///     Ok(())
/// })?;
/// program.sink("camera", |result, frame| {
///     assert!(frame.iter().all(|byte| *byte == result.packet as u8) && !result.is_late());
///     Ok(())
/// })?;
/// assert!(program.run(|_| ())?.summary.verdict.held);
/// # let _ = std::fs::remove_dir_all(folder);
/// # Ok(())
/// # }
/// ```
pub struct Program {
    workload: Loaded<Workload>,
    options: RunOptions,
    chosen: Chosen,
    plan: Arc<Plan>,
    warnings: Vec<String>,
    bound: Bound,
    home: Home,
}

impl Program {
    /// Opens the backend and plans `workload`.
    ///
    /// # Errors
    /// [`Error`]; `ErrorKind::NotAccepted` for a plan that says that deadlines can be missed, unless forced.
    pub fn open(workload: &Loaded<Workload>, options: &RunOptions) -> Result<Self, Error> {
        let library = modules::library(workload, &options.library)?;
        let options = RunOptions { library, ..options.clone() };
        let mut chosen = choose(&options, &workload.value)?;
        if let Some(none) = crate::machine::for_flows(options.machine.as_deref(), &workload.value)
            && chosen.source == RunSource::Sim
        {
            chosen.machine = none;
        }
        chosen.machine = crate::machine::beside(&chosen.machine, options.others)?;
        let mut warnings = std::mem::take(&mut chosen.warnings);
        let mut plan = crate::plan::make(&chosen.machine, workload, PlanOptions { strategy: options.strategy })?;
        accept(&plan, &options, &mut warnings)?;
        set_seed(&mut plan, options.seed.unwrap_or(workload.value.seed));
        if chosen.source == RunSource::Sim && options.cpu_class != RequestedClass::Auto {
            warnings.push("a simulation drives no devices: the scheduling class has no effect".to_owned());
        }
        if options.time_only && chosen.source != RunSource::Sim {
            return Err(Failure::Options("`--time-only` is for simulations: add `--backend sim`").into());
        }
        if options.time_only && options.input.is_some() {
            return Err(Failure::Options("`--time-only` reads nothing: leave out `--input`").into());
        }
        let (workload, plan) = (workload.clone(), Arc::new(plan));
        Ok(Self { workload, options, chosen, plan, warnings, bound: Bound::default(), home: Home::here() })
    }

    /// What is going to run.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Has `give` fill the packets of a stream, one after the other, on a thread of its own. It is asked some packets ahead and may wait
    /// for its data. A packet that comes later than the plan needs it is late, with all packets of its cycle, and nobody else is.
    ///
    /// # Errors
    /// `ErrorKind::Options` for a name that is no stream's, a second source, and packets that no program can give.
    pub fn source(
        &mut self,
        stream: &str,
        give: impl FnMut(&PacketRequest<'_>, &mut [u8]) -> CallbackResult + Send + 'static,
    ) -> Result<(), Error> {
        let number = self.stream(stream, StreamEnd::Source)?;
        may_be_given(&self.plan, &self.plan.streams[number as usize])
            .map_err(|reason| ProgramError::NoSource { name: stream.to_owned(), reason })?;
        bind(&mut self.bound.sources, number, Box::new(give), stream, StreamEnd::Source)
    }

    /// Has `take` take what becomes of the packets of a stream, one after the other, on a thread of its own; no file has them then. Packets
    /// that were given up do not come. While results of several cycles wait for it, what comes is dropped and counted.
    ///
    /// # Errors
    /// `ErrorKind::Options` for a name that is no stream's, and a second sink.
    pub fn sink(
        &mut self,
        stream: &str,
        take: impl FnMut(&PacketResult<'_>, &[u8]) -> CallbackResult + Send + 'static,
    ) -> Result<(), Error> {
        let number = self.stream(stream, StreamEnd::Sink)?;
        bind(&mut self.bound.sinks, number, Box::new(take), stream, StreamEnd::Sink)
    }

    /// Ends the run with an error if a callback does not return for so long; a source's time begins when its packet is needed. The thread
    /// of such a callback is left behind.
    pub fn patience(&mut self, patience: Duration) {
        self.bound.patience = Nanos(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX));
    }

    /// What happens in the run, for any thread. At most `waiting` events wait to be taken; more are counted and lost.
    pub fn events(&mut self, waiting: usize) -> RunEvents {
        let (sender, events) = events::channel(waiting);
        self.bound.events = Some(sender);
        events
    }

    /// A handle to ask for the copies that the workload calls `[[urgent]]` by this name, from any thread while the plan runs.
    ///
    /// # Errors
    /// `ErrorKind::Options` for a name that is not one of these, and in simulations, which have no memory for them.
    pub fn urgent(&self, name: &str) -> Result<UrgentCopies, Error> {
        let all = self.workload.value.unplanned.iter().filter(|of| matches!(of.kind, UnplannedKind::Urgent(_)));
        if !all.clone().any(|of| of.id == name) {
            let suggestion = suggest(name, all.map(|of| of.id.as_str()), "urgent copies");
            let (workload, name) = (self.workload.value.name.clone(), name.to_owned());
            return Err(ProgramError::NoUrgent { workload, name, suggestion }.into());
        }
        UrgentCopies::new(name, &self.plan, &self.chosen.devices, &self.bound.requests)
    }

    fn stream(&self, name: &str, end: StreamEnd) -> Result<u32, Error> {
        if self.options.time_only {
            return Err(ProgramError::TimeOnly.into());
        }
        let mut streams = (0u32..).zip(&self.plan.streams);
        if let Some((number, _)) = streams.find(|(_, stream)| stream.id == name) {
            return Ok(number);
        }
        let Workload { messages, demands, unplanned, tasks, .. } = &self.workload.value;
        let unplanned = unplanned.iter().find(|of| of.id == name).map(|of| match of.kind {
            UnplannedKind::Bulk(_) => "bulk transfer",
            UnplannedKind::Urgent(_) => "request for urgent copies",
        });
        let message = messages.iter().any(|of| of.id == name).then_some("message");
        let demand = demands.iter().any(|of| of.id == name).then_some("demand");
        let task = tasks.iter().any(|of| of.id == name).then_some("task");
        let name = name.to_owned();
        Err(match message.or(unplanned).or(demand).or(task) {
            Some(kind) => ProgramError::NotAStream { name, kind, end },
            None => {
                let suggestion = suggest(&name, self.plan.streams.iter().map(|stream| stream.id.as_str()), "streams");
                ProgramError::NoStream { workload: self.workload.value.name.clone(), name, suggestion }
            }
        }
        .into())
    }

    /// Runs the plan. Results appear in the output folder only when all of them are whole. Of a run that ended early, because of
    /// `on_miss = "stop"`, of [`RunOptions::interrupt`] or of a callback that failed, everything up to there appears, marked as incomplete.
    ///
    /// # Errors
    /// [`Error`]; nothing is left behind then, but after `ErrorKind::Callback`, which names the callback, its packet and the folder of results.
    pub fn run(self, mut progress: impl FnMut(Progress)) -> Result<RunReport, Error> {
        at_home(self.home, "the program")?;
        let Self { workload, options, mut chosen, plan, mut warnings, bound, home: _ } = self;
        let (options, source) = (&options, chosen.source);
        let outlet = options.outlet(&plan.workload.name, &plan.workload.hash, source)?;
        let mut ran = carry_out(&mut chosen, &plan, &workload.value, options, &outlet, bound, &mut progress)
            .map_err(|error| located(error, &plan, &workload))?;
        let padded = ran.intake.shares().iter().filter(|share| share.padding > 0).count();
        if padded > 0 {
            warnings.push(format!(
                "zeros fill up the last blocks of {GRANULE} bytes or the last packets ({padded} of {} streams); manifest.json says how many",
                plan.streams.len()
            ));
        }
        let mut empty = plan.streams.iter().zip(ran.intake.shares()).filter(|(_, share)| share.bytes == 0);
        if options.input.is_some()
            && let Some((first, _)) = empty.next()
        {
            warnings.push(format!(
                "{} of {} streams had no packet, `{}` for one: each takes whole blocks or packets of the input, in proportion to its rate",
                1 + empty.count(),
                plan.streams.len(),
                first.id
            ));
        }
        let callbacks = reports(&ran.callbacks, &plan);
        warnings.extend(callbacks.iter().filter_map(CallbackReport::warning));
        let mut verified = 0;
        if options.verify && !options.time_only && ran.log.incomplete().is_none() {
            match compare(&ran, &plan, options, &outlet, &mut warnings, &mut progress) {
                Ok(streams) => verified = streams,
                // What was not compared must not look as if it was.
                Err(error) if error.is_interrupted() => ran.log = ran.log.ended(Some(Incomplete::Interrupted)),
                Err(error) => return Err(error),
            }
        }
        progress(Progress { phase: "writing", done: 0, total: 1 });
        let outputs = outputs(&plan, &ran.log, &outlet)?;
        let (name, cut) = logfile::write(&outlet, &ran.log, &options.keep)?;
        let streams = match options.time_only {
            true => Some("streams/ has no bytes: nothing was computed or compared (`--time-only`)".to_owned()),
            false => bounded(&plan, &ran, verified > 0),
        };
        let left_out = cut.into_iter().chain(streams).collect();
        let summary = report::draw(&outlet, &ran.log, options.keep.traced, left_out)?;
        outlet.write("workload.toml", workload.source.text.as_bytes())?;
        outlet.write("plan.json", &report::json(&*plan))?;
        outlet
            .write("manifest.json", &report::json(&manifest(&plan, &ran.intake, &outlet, outputs, summary.complete)))?;
        outlet.write(MARK, &report::json(&summary))?;
        let folder = publish(outlet, summary.incomplete.as_ref(), &mut warnings)?;
        if let Some(failure) = ran.callbacks.failure() {
            return Err(Failure::Callback { failure, folder: Some(folder) }.into());
        }
        let files = [name, report::TRACE, report::PAGE, "streams"].map(|name| folder.join(name)).to_vec();
        let imitates = (source == RunSource::Emu).then(|| emulation::imitates(&chosen.machine));
        let messages = ran.compared;
        Ok(RunReport { schema: 1, summary, verified, messages, callbacks, folder, imitates, files, warnings })
    }
}

fn bind<T>(ends: &mut BTreeMap<u32, T>, number: u32, callback: T, name: &str, end: StreamEnd) -> Result<(), Error> {
    if ends.contains_key(&number) {
        return Err(ProgramError::Twice { name: name.to_owned(), end }.into());
    }
    ends.insert(number, callback);
    Ok(())
}

/// Why a run ended early whose callback failed.
pub(super) fn incomplete(failure: CallbackFailure) -> Incomplete {
    let CallbackFailure { stream, packet, end, reason } = failure;
    Incomplete::CallbackFailed { stream, packet, end, reason }
}

/// `answer` with its times after `epoch`.
fn after(epoch: Nanos, answer: UrgentAnswer) -> UrgentAnswer {
    match answer {
        UrgentAnswer::Guaranteed { deadline } => UrgentAnswer::Guaranteed { deadline: deadline.saturating_sub(epoch) },
        other => other,
    }
}
