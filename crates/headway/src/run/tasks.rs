//! Runs a workload whose tasks share GPUs: in virtual time, or as threads of this process with real kernels.

mod devices;
mod segments;
mod simulated;

use std::path::PathBuf;

use headway_core::analysis::sharing::{Resource, TardinessVerdict};
use headway_core::decisions::sharing::JobSegment;
use headway_core::files::error::Loaded;
use headway_core::files::machine::Machine;
use headway_core::files::workload::{SharingTable, Workload};
use headway_core::log::{Incomplete, RunSource};
use headway_core::models::cpu::RequestedClass;
use headway_core::plan::Named;
use headway_device::DeviceError;
use headway_device::work::Library;
use headway_runtime::outlet::{MARK, OutputError};
use headway_trace::sharing::{CompletedJob, JobBounds, KIND, SCHEMA, SharingSummary, TaskHead, TaskLog, TaskLogHeader};
use serde::Serialize;

use super::devices::named;
use super::{Backend, Progress, RunOptions, publish};
use crate::logfile::LogFile;
use crate::share::{self, Model};
use crate::{COMMIT, Error, Failure, VERSION, emulation, modules, report};

/// What came of a run.
#[derive(Clone, Debug, Serialize)]
pub struct TasksReport {
    /// Version of the JSON form.
    pub schema: u32,
    pub summary: SharingSummary,
    /// Jobs whose output was compared with what the CPU forms of the kernels make, and found equal.
    pub verified: u64,
    /// The folder with everything.
    #[serde(serialize_with = "crate::path_text::one")]
    pub folder: PathBuf,
    /// With the emulated backend: what it imitates, and what its times do not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imitates: Option<String>,
    /// Log, trace and page inside it.
    #[serde(serialize_with = "crate::path_text::each")]
    pub files: Vec<PathBuf>,
    /// What was done differently from what one might expect.
    pub warnings: Vec<String>,
}

/// What was run, whatever ran it.
struct Ran {
    jobs: Vec<CompletedJob>,
    /// Bounds of each task.
    bounds: Vec<Option<JobBounds>>,
    verified: u64,
    notes: Vec<String>,
    /// Whether somebody asked for the end before all jobs were complete.
    interrupted: bool,
}

/// Runs the tasks of `workload`. Results appear in the output folder only when all of them are whole; those of a run that was
/// interrupted with all jobs that were complete, and marked as incomplete.
///
/// # Errors
/// [`Error`]; nothing is left behind then. `ErrorKind::Options` for a workload without tasks, and for options that tasks do not
/// have.
pub fn run(
    workload: &Loaded<Workload>,
    options: &RunOptions,
    mut progress: impl FnMut(Progress),
) -> Result<TasksReport, Error> {
    let Some(sharing) = &workload.value.sharing else {
        return Err(Failure::Options("the workload has no tasks that share GPUs").into());
    };
    share::refuse_of_plans(options.strategy, options.others)?;
    if options.cpu_class != RequestedClass::Auto {
        return Err(Failure::Options("tasks that share GPUs run as ordinary threads: leave out `--cpu-class`").into());
    }
    let options = &RunOptions { library: modules::library(workload, &options.library)?, ..options.clone() };
    let (source, machine, mut warnings) = choose(options)?;
    let model = share::model(&machine, workload, sharing)?;
    accept(&model, options, &mut warnings)?;
    if source == RunSource::Sim {
        warnings.extend(unknown_kernel(&workload.value, options.library.as_ref()));
    }
    let outlet = options.outlet(&workload.value.name, &workload.value.hash, source)?;
    let seed = options.seed.unwrap_or(workload.value.seed);
    let ran = match source {
        RunSource::Sim => simulated::run(&model, workload, sharing, options, seed, &mut progress)?,
        _ => devices::run(source, &machine, &model, workload, sharing, options, seed, &mut progress)?,
    };
    let header = header(source, seed, &model, workload, sharing, &ran);
    let log = TaskLog { header, jobs: ran.jobs, incomplete: ran.interrupted.then_some(Incomplete::Interrupted) };
    progress(Progress { phase: "writing", done: 0, total: 1 });
    let (mut file, name) = LogFile::create(&outlet, log.jobs.len(), &options.keep)?;
    let path = outlet.place().join(name);
    log.write(&mut file).map_err(|source| OutputError::Write { path: path.clone(), source })?;
    file.finish(&path)?;
    let summary = report::draw_sharing(&outlet, &log, options.keep.traced)?;
    outlet.write("workload.toml", workload.source.text.as_bytes())?;
    outlet.write(MARK, &report::json(&summary))?;
    let folder = publish(outlet, summary.incomplete.as_ref(), &mut warnings)?;
    let files = [name, report::TRACE, report::PAGE].map(|name| folder.join(name)).to_vec();
    let imitates = (source == RunSource::Emu).then(|| emulation::imitates(&machine));
    Ok(TasksReport { schema: 1, summary, verified: ran.verified, folder, imitates, files, warnings })
}

/// Where it runs, and the machine file that stands for that.
fn choose(options: &RunOptions) -> Result<(RunSource, Machine, Vec<String>), Error> {
    let failed = |source| Failure::Backend { backend: "cuda", source };
    let simulation = |warnings| Ok((RunSource::Sim, named(options, "h200-x4")?, warnings));
    let gpus = |there: usize| {
        let usual = if there == 1 || options.gpus == Some(1) { "h200-x1" } else { "h200-x4" };
        let machine = crate::machine::open(options.machine.as_deref().unwrap_or(usual))?;
        let wanted = options.gpus.unwrap_or_else(|| there.min(machine.gpus().count()));
        if wanted > there {
            return Err(Failure::TooFewGpus { machine: "this one".to_owned(), wanted, available: there }.into());
        }
        Ok((RunSource::Cuda, crate::machine::restrict(&machine, wanted)?, Vec::new()))
    };
    match options.backend {
        Backend::Sim => simulation(Vec::new()),
        Backend::Emu => Ok((RunSource::Emu, emulation::machine(options.machine.as_deref(), options.gpus)?, Vec::new())),
        Backend::Cuda => gpus(headway_cuda::probe().map_err(failed)?.devices.len()),
        Backend::Auto => match headway_cuda::probe() {
            Ok(probe) if !probe.devices.is_empty() => gpus(probe.devices.len()),
            Ok(_) => simulation(Vec::new()),
            Err(DeviceError::Unavailable { .. }) if std::env::var_os("HEADWAY_LIBCUDA").is_none() => {
                simulation(Vec::new())
            }
            Err(error) => simulation(vec![format!("simulating, since the driver reports no GPU: {error}")]),
        },
    }
}

/// A note of the first kernel that only a simulation can run, by the costs of the file.
fn unknown_kernel(workload: &Workload, library: &dyn Library) -> Option<String> {
    workload.tasks.iter().find_map(|task| {
        let unknown = task.held().iter().find_map(|segment| match segment {
            JobSegment::Execute { kernel, .. } if library.find(kernel).is_none() => Some(kernel),
            _ => None,
        })?;
        let known = library.ids().join("`, `");
        Some(format!("task `{}` computes `{unknown}`, which only a simulation can run: there are `{known}`", task.id))
    })
}

/// Refuses tasks that need more than there is, unless forced; tells where tardiness may have no bound.
fn accept(model: &Model, options: &RunOptions, warnings: &mut Vec<String>) -> Result<(), Error> {
    match model.report.verdict {
        TardinessVerdict::Yes => {}
        TardinessVerdict::No(resource) if !options.force => {
            let why = vec![format!("the longest jobs need more than there is of {}", said(resource, model))];
            return Err(Failure::NotAccepted { verdict: "the tasks need more than there is".to_owned(), why }.into());
        }
        TardinessVerdict::No(_) => warnings.push("running although the tasks need more than there is".to_owned()),
        TardinessVerdict::DontKnow(_) => {
            warnings.push("nothing says that tardiness is bounded: `headway plan` says why".to_owned())
        }
    }
    Ok(())
}

/// What there is too little of.
fn said(resource: Resource, model: &Model) -> String {
    match resource {
        Resource::Cpu => "the CPUs".to_owned(),
        Resource::Execute => "the execution engines".to_owned(),
        Resource::Copy => "the copy engines".to_owned(),
        Resource::Sequence(task) => {
            let name = model.report.tasks.get(task.0 as usize).map_or("?", |task| &task.id);
            format!("the time of task `{name}`: its jobs take longer than its period")
        }
    }
}

fn header(
    source: RunSource,
    seed: u64,
    model: &Model,
    workload: &Loaded<Workload>,
    sharing: &SharingTable,
    ran: &Ran,
) -> TaskLogHeader {
    let tasks = workload.value.tasks.iter().zip(&ran.bounds);
    TaskLogHeader {
        schema: SCHEMA,
        kind: KIND.to_owned(),
        source,
        version: VERSION.to_owned(),
        commit: COMMIT.to_owned(),
        seed,
        workload: Named { name: workload.value.name.clone(), hash: workload.value.hash.clone() },
        machine: model.report.machine.clone(),
        gpus: model.report.gpus.clone(),
        cpus: sharing.cpus,
        tokens_per_gpu: sharing.tokens_per_gpu,
        mode: model.report.mode.to_string(),
        engine_locks: sharing.engine_locks,
        tasks: tasks
            .map(|(task, bound)| TaskHead { id: task.id.clone(), period: task.period, bound: *bound })
            .collect(),
        notes: ran.notes.clone(),
    }
}
