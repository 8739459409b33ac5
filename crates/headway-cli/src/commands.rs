//! The commands: call the library, print what it says, turn it into an answer.

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::CommandFactory;
use headway::keep::Keep;
use headway::machine::{Confidence, Machine};
use headway::plan::{self as plans, Assumption, ModelAnswer, Outcome, Plan, PlanOptions};
use headway::run::Progress;
use headway::workload::Workload;
use headway::{doctor as examine, report as reports, run as runs};
use headway_lab::combine;
use headway_lab::reproduce as experiments;
use headway_measure::bench;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::Answer;
use crate::args::{BenchCombineArgs, Cli, CopyBackendArg, Format, PlanArgs, ReproduceArgs, RunArgs};
use crate::{reproduce, sharing, show};

/// Where and how to print.
pub(crate) struct Out {
    pub(crate) format: Format,
    pub(crate) quiet: bool,
}

/// Between two looks whether somebody asked for the end of an experiment.
const LOOK: Duration = Duration::from_millis(100);
/// Progress is shown for what takes longer than this.
const PATIENCE: Duration = Duration::from_secs(1);

impl Out {
    pub(crate) fn print(&self, json: &impl Serialize, text: impl FnOnce() -> String) -> Result<()> {
        let text = match self.format {
            Format::Json => serde_json::to_string_pretty(json)? + "\n",
            Format::Text => text(),
        };
        write_out(text.as_bytes())
    }

    pub(crate) fn note(&self, note: &str) {
        if !self.quiet {
            eprintln!("note: {}", printable(note));
        }
    }

    pub(crate) fn warn(&self, warning: &str) {
        if !self.quiet {
            eprintln!("warning: {}", printable(warning));
        }
    }
}

/// A text without characters by which a name could command a terminal.
pub(crate) fn printable(text: &str) -> String {
    let is_harmless = |letter: char| !letter.is_control() || letter == '\n';
    text.chars()
        .map(|letter| if is_harmless(letter) { letter.to_string() } else { letter.escape_default().to_string() })
        .collect()
}

pub(crate) fn write_out(text: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        // A reader that has seen enough closes the pipe: that is no failure, and the answer stays the answer.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to the standard output"),
    }
}

pub(crate) fn doctor(out: &Out, backend: CopyBackendArg) -> Result<Answer> {
    let examination = examine::examine(backend.into());
    out.print(&examination, || show::examination(&examination))?;
    // Missing things alone do not make the answer "no": that takes `--backend cuda` on a machine without a GPU.
    Ok(if backend == CopyBackendArg::Cuda && !examination.has_gpu() { Answer::No } else { Answer::Yes })
}

fn machine(args: &PlanArgs, workload: &Workload) -> Result<Machine> {
    if let Some(none) = headway::machine::for_flows(args.machine.as_deref(), workload) {
        return Ok(none);
    }
    let machine = headway::machine::open(args.machine.as_deref().unwrap_or(headway::machine::USUAL))?;
    Ok(match args.gpus {
        Some(gpus) => headway::machine::restrict(&machine, gpus)?,
        None => machine,
    })
}

/// A plan with what other models say of it.
#[derive(Serialize)]
struct Planned<'a> {
    #[serde(flatten)]
    plan: &'a Plan,
    models: Vec<ModelAnswer>,
    assumes: Assumption,
    confidence: Confidence,
}

pub(crate) fn plan(out: &Out, args: &PlanArgs) -> Result<Answer> {
    let workload = headway::workload::open(&args.workload)?;
    let machine = machine(args, &workload.value)?;
    let usual = args.machine.is_none();
    if workload.value.sharing.is_some() {
        return sharing::plan(out, &machine, &workload, usual);
    }
    let mut plan = plans::make(&machine, &workload, PlanOptions { strategy: args.strategy.map(Into::into) })?;
    plan.verdict.notes.extend(plans::jitter_note(&machine, &plan));
    plan.verdict.notes.extend(plans::absent_kernels(&plan));
    let (models, assumes, confidence) = (plans::models(&plan), plans::assumption(&plan), machine.confidence());
    let planned = Planned { plan: &plan, models, assumes, confidence };
    let text = || show::plan(&plan, &planned.models, &planned.assumes, &planned.confidence, usual);
    out.print(&planned, text)?;
    Ok(match plan.verdict.outcome {
        Outcome::Schedulable => Answer::Yes,
        Outcome::NotSchedulable => Answer::No,
        Outcome::Undecided => Answer::Undecided,
    })
}

pub(crate) fn bench_combine(out: &Out, args: &BenchCombineArgs) -> Result<Answer> {
    let interrupt = interrupt(out, "nothing");
    let options = combine::CombineBenchOptions { out: args.out.clone(), seed: args.seed, quick: args.quick, interrupt };
    let mut bar = Bar::new(!out.quiet);
    let report = combine::run(&options, |progress| bar.show(progress));
    bar.finish();
    let report = report?;
    if !report.complete {
        out.warn(bench::ENDED_EARLY);
    }
    out.print(&report, || show::targets(&report.targets, &report.folder))?;
    let missed = report.targets.iter().any(|target| target.outcome == bench::Outcome::NotMet);
    Ok(Answer::of_bench(report.complete, missed && report.optimised))
}

/// A flag that becomes true when the user or the system asks for the end; `left` is what stays behind where that cannot be had.
pub(crate) fn interrupt(out: &Out, left: &str) -> Arc<AtomicBool> {
    headway::stop_when_told().unwrap_or_else(|error| {
        out.warn(&format!("an interrupt will leave {left} behind: {error}"));
        Arc::default()
    })
}

pub(crate) fn run(out: &Out, args: &RunArgs) -> Result<Answer> {
    let workload = headway::workload::open(&args.plan.workload)?;
    join_mps(out, args.backend.into());
    let interrupt = interrupt(out, "a partial folder");
    let options = runs::RunOptions {
        backend: args.backend.into(),
        machine: args.plan.machine.clone(),
        gpus: args.plan.gpus,
        strategy: args.plan.strategy.map(Into::into),
        input: args.input.clone(),
        duration: args.duration,
        out: args.out.clone(),
        label: args.label.clone(),
        seed: args.seed,
        force: args.force,
        verify: !args.no_verify,
        time_only: args.time_only,
        cpu_class: args.cpu_class,
        keep: Keep { sample: args.sample_max, log: args.log_max, traced: args.trace_max, ..Keep::default() },
        interrupt,
        notify: if out.quiet { |_| {} } else { |text| eprintln!("note: {text}") },
    };
    if workload.value.sharing.is_some() {
        return sharing::run(out, &workload, &options);
    }
    let mut bar = Bar::new(!out.quiet && io::stderr().is_terminal());
    let report = runs::run(&workload, &options, |progress| bar.show(progress));
    bar.finish();
    let report = report?;
    for warning in &report.warnings {
        out.warn(warning);
    }
    out.print(&report, || show::run(&report, args))?;
    Ok(Answer::of_run(report.summary.verdict.held, report.summary.incomplete.as_ref()))
}

/// Joins the MPS daemon of this user's broker, if there is one. To be called while there is one thread.
fn join_mps(out: &Out, backend: runs::Backend) {
    if !matches!(backend, runs::Backend::Auto | runs::Backend::Cuda) {
        return;
    }
    match headway::mps::join(None) {
        Ok(Some(daemon)) => out.note(&format!("joins the MPS daemon of the broker (process {})", daemon.pid)),
        Ok(None) => {}
        Err(error) => out.warn(&format!("does not join the MPS daemon of a broker: {error}")),
    }
}

pub(crate) fn replay(out: &Out, log: &Path) -> Result<Answer> {
    if let Some(log) = reports::open_broker(log)? {
        return replay_broker(out, &log);
    }
    if reports::open_guest(log)?.is_some() {
        anyhow::bail!("the log of a guest has no decisions that could be made again; `headway report` sums it up");
    }
    if reports::open_sharing(log)?.is_some() {
        anyhow::bail!("a run of tasks has no inputs in its log that could be fed again; `headway report` sums it up");
    }
    let replayed = match reports::replay(log) {
        Err(headway::Error::Replay(difference)) if out.format == Format::Json => {
            let json = serde_json::json!({
                "schema": 1,
                "equal": false,
                "line": difference.record + 2,
                "log": difference.expected,
                "replay": difference.got,
            });
            out.print(&json, String::new)?;
            return Ok(Answer::No);
        }
        replayed => replayed?,
    };
    let json = serde_json::json!({ "schema": 1, "equal": true, "replayed": replayed });
    out.print(&json, || {
        let end = if replayed.finished || replayed.omitted > 0 { "" } else { "; the run ended before its last cycle" };
        let mut text = format!(
            "the same: {} inputs gave {} actions and {} events, byte for byte{end}\n",
            replayed.inputs, replayed.actions, replayed.events
        );
        if replayed.omitted > 0 {
            text.push_str(&format!(
                "not compared: the last {} records of the run, which the log lacks since it had reached its size\n",
                replayed.omitted
            ));
        }
        text
    })?;
    Ok(Answer::Yes)
}

fn replay_broker(out: &Out, log: &headway::report::BrokerLog) -> Result<Answer> {
    let replayed = match reports::replay_broker(log) {
        Err(headway::Error::ReplayBroker(difference)) if out.format == Format::Json => {
            let json = serde_json::json!({ "schema": 1, "equal": false, "difference": difference.to_string() });
            out.print(&json, String::new)?;
            return Ok(Answer::No);
        }
        replayed => replayed?,
    };
    let json = serde_json::json!({ "schema": 1, "equal": true, "replayed": replayed });
    out.print(&json, || {
        let mut text = format!(
            "the same: {} inputs of the broker's arbiter gave {} actions and {} refusals, byte for byte, from {} starts\n",
            replayed.inputs, replayed.actions, replayed.refused, replayed.starts
        );
        if replayed.missing + replayed.torn > 0 {
            text.push_str(&format!(
                "not in the log: {} lines that could not be written, {} that were cut off\n",
                replayed.missing, replayed.torn
            ));
        }
        text
    })?;
    Ok(Answer::Yes)
}

pub(crate) fn report(out: &Out, log: &Path, folder: Option<&Path>, traced: u64) -> Result<Answer> {
    if let Some(log) = reports::open_guest(log)? {
        let summary = reports::report_guest(&log);
        let folder = folder.map(|folder| reports::draw_guest(&log, folder)).transpose()?;
        out.print(&summary, || {
            let page = folder.map(|folder| format!("\npage     {}\n", folder.join(reports::PAGE).display()));
            summary.table() + &page.unwrap_or_default()
        })?;
        return Ok(if summary.differences.is_empty() { Answer::Yes } else { Answer::No });
    }
    if let Some(log) = reports::open_sharing(log)? {
        return sharing::report(out, &log, folder, traced);
    }
    let (summary, folder) = reports::report(log, folder, traced)?;
    out.print(&summary, || {
        let mut text = summary.table(show::width());
        if let Some(folder) = &folder {
            text.push_str(&format!(
                "\npage   {}\ntrace  {}\n",
                folder.join(reports::PAGE).display(),
                folder.join(reports::TRACE).display()
            ));
        }
        text
    })?;
    Ok(if summary.verdict.held { Answer::Yes } else { Answer::No })
}

pub(crate) fn reproduce(out: &Out, args: &ReproduceArgs) -> Result<Answer> {
    let Some(name) = &args.experiment else {
        let list: Vec<_> = experiments::EXPERIMENTS
            .iter()
            .map(|e| serde_json::json!({ "name": e.name, "about": e.about, "paper": e.paper }))
            .collect();
        out.print(&serde_json::json!({ "schema": 1, "experiments": list }), show::experiments)?;
        return Ok(Answer::Yes);
    };
    let (backend, machine) = (args.backend.into(), args.machine.clone());
    let streams = experiments::StreamSetting {
        workloads: args.workload.clone(),
        deadline_min: args.deadline_min,
        rate_scale: args.rate_scale,
        slower: args.slower,
        streams_max: args.streams_max.map(|most| most as usize),
        cores: args.cores,
        policies: args.policies.clone(),
    };
    let special = &args.sharing;
    let sharing = experiments::SharingOptions {
        gpus: args.gpus,
        duration: args.duration.unwrap_or_else(|| experiments::SharingOptions::default().duration),
        repetitions: special.repetitions,
        all: special.all,
        cameras: special.cameras,
        cpus: special.cpus,
        busy: special.busy.clone(),
        only: special.only.clone(),
        speedup: special.speedup,
        segments: special.segments,
        video: special.video.clone(),
    };
    let (quick, seed, gpus, duration) = (args.quick, args.seed, args.gpus, args.duration);
    let (out_folder, label, so_far) = (args.out.clone(), args.label.clone(), experiments::SoFar::default());
    let setting = experiments::Setting {
        backend,
        quick,
        seed,
        machine,
        gpus,
        duration,
        streams,
        sharing,
        out: out_folder,
        label,
        so_far,
    };
    if name == reproduce::ALL {
        return reproduce::all(out, &setting);
    }
    let experiment = experiments::find(name)?;
    experiment.may_write(&setting)?;
    let ended = keep_if_interrupted(out, &setting, name);
    let outcome = experiment.run(&setting)?;
    ended.store(true, Ordering::Relaxed);
    let folder = outcome.write(&setting.folder(outcome.experiment, outcome.source))?;
    out.print(&outcome, || show::reproduced(&outcome, &folder))?;
    Ok(reproduce::answer(&outcome))
}

/// From now on an interrupt writes down what there is, and ends the program, until what is returned becomes true: then
/// everything is written in a moment.
pub(crate) fn keep_if_interrupted(out: &Out, setting: &experiments::Setting, name: &str) -> Arc<AtomicBool> {
    let (setting, so_far) = (setting.clone(), setting.so_far.clone());
    let (quiet, ended) = (out.quiet, Arc::new(AtomicBool::new(false)));
    let has_ended = Arc::clone(&ended);
    let told = interrupt(out, "no figures");
    // Of all experiments, each has a folder of its own.
    let is_one = name != reproduce::ALL;
    let folder_of = move |outcome: &experiments::Outcome| {
        let folder = setting.folder(outcome.experiment, outcome.source);
        if is_one || setting.out.is_none() { folder } else { folder.join(outcome.experiment) }
    };
    std::thread::spawn(move || {
        while !told.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK);
        }
        if has_ended.load(Ordering::Relaxed) {
            return;
        }
        let said = match so_far.take() {
            None => "interrupted; nothing was kept".to_owned(),
            Some(outcome) => match outcome.write(&folder_of(&outcome)) {
                Ok(folder) => {
                    format!("interrupted: `{}` keeps the figures so far, and is marked as incomplete", folder.display())
                }
                Err(error) => format!("interrupted; the figures so far cannot be kept: {error}"),
            },
        };
        if !quiet {
            eprintln!("warning: {said}");
        }
        std::process::exit(headway::INTERRUPTED_STATUS.into());
    });
    ended
}

pub(crate) fn machines(out: &Out, name: Option<&str>) -> Result<Answer> {
    if let Some(name) = name {
        let Some((_, text)) = headway::machine::SHIPPED.iter().find(|(shipped, _)| *shipped == name) else {
            // Names what is shipped.
            headway::machine::open(name)?;
            anyhow::bail!("`{name}` is a file: read it directly");
        };
        let json = serde_json::json!({ "schema": 1, "name": name, "file": text });
        out.print(&json, || (*text).to_owned())?;
        return Ok(Answer::Yes);
    }
    let machines: Vec<Machine> =
        headway::machine::SHIPPED.iter().filter_map(|(name, _)| headway::machine::shipped(name)).collect();
    let list: Vec<_> = machines
        .iter()
        .map(|m| serde_json::json!({ "name": m.name, "description": m.description, "gpus": m.gpus().count(), "calibrated": m.calibration.is_some(), "confidence": m.confidence() }))
        .collect();
    let json = serde_json::json!({ "schema": 1, "machines": list });
    out.print(&json, || show::machines(&machines))?;
    Ok(Answer::Yes)
}

pub(crate) fn completions(shell: clap_complete::Shell) -> Result<Answer> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "headway", &mut script);
    write_out(&script)?;
    Ok(Answer::Yes)
}

/// A progress bar on stderr that appears only when something takes long.
pub(crate) struct Bar {
    enabled: bool,
    started: Instant,
    bar: Option<(&'static str, ProgressBar)>,
}

impl Bar {
    pub(crate) fn new(enabled: bool) -> Self {
        Self { enabled, started: Instant::now(), bar: None }
    }

    pub(crate) fn show(&mut self, progress: Progress) {
        if !self.enabled || (self.started.elapsed() < PATIENCE && io::stderr().is_terminal()) {
            return;
        }
        if self.bar.as_ref().is_none_or(|(phase, _)| *phase != progress.phase) {
            self.finish();
            if !io::stderr().is_terminal() {
                // A log gets a line for each phase.
                eprintln!("{:>6.1} s  {}", self.started.elapsed().as_secs_f64(), progress.phase);
            }
            let bar = ProgressBar::new(progress.total);
            let style = ProgressStyle::with_template("{prefix:>10} {bar:40} {percent:>3} %");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_prefix(progress.phase);
            self.bar = Some((progress.phase, bar));
        }
        if let Some((_, bar)) = &self.bar {
            bar.set_position(progress.done);
        }
    }

    pub(crate) fn finish(&mut self) {
        if let Some((_, bar)) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
