//! Experiments: one, or all that the backend can make, one after the other.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use headway::run::Backend;
use headway_cli::terminal::{CommandAnswer, Out, interrupt};
use headway_lab::reproduce::{self as experiments, EXPERIMENTS, ExperimentResults, ExperimentSetting, PaperVerdict};
use serde::Serialize;

use super::args::ExperimentArgs;

/// Between two looks whether somebody asked for the end of an experiment.
const LOOK: Duration = Duration::from_millis(100);
/// What stands for all experiments.
const ALL: &str = "all";

pub(crate) fn experiment(out: &Out, args: &ExperimentArgs) -> Result<CommandAnswer> {
    let Some(name) = &args.experiment else {
        let list: Vec<_> = EXPERIMENTS
            .iter()
            .map(|e| serde_json::json!({ "name": e.name, "about": e.about, "paper": e.paper }))
            .collect();
        out.print(&serde_json::json!({ "schema": 1, "experiments": list }), listing)?;
        return Ok(CommandAnswer::Yes);
    };
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
    let setting = ExperimentSetting {
        backend: args.backend.into(),
        quick: args.quick,
        seed: args.seed,
        machine: args.machine.clone(),
        gpus: args.gpus,
        duration: args.duration,
        streams,
        sharing,
        out: args.out.clone(),
        label: args.label.clone(),
        so_far: experiments::SoFar::default(),
    };
    if name == ALL {
        return all(out, &setting);
    }
    let experiment = experiments::find(name)?;
    experiment.may_write(&setting)?;
    let ended = keep_if_interrupted(out, &setting, name);
    let outcome = experiment.run(&setting)?;
    ended.store(true, Ordering::Relaxed);
    let folder = outcome.write(&setting.folder(outcome.experiment, outcome.source))?;
    out.print(&outcome, || reproduced(&outcome, &folder))?;
    Ok(answer(&outcome))
}

/// From now on an interrupt writes down what there is, and ends the program, until what is returned becomes true: then
/// everything is written in a moment.
fn keep_if_interrupted(out: &Out, setting: &ExperimentSetting, name: &str) -> Arc<AtomicBool> {
    let (setting, so_far) = (setting.clone(), setting.so_far.clone());
    let (quiet, ended) = (out.quiet, Arc::new(AtomicBool::new(false)));
    let has_ended = Arc::clone(&ended);
    let told = interrupt(out, "no figures");
    // Of all experiments, each has a folder of its own.
    let is_one = name != ALL;
    let folder_of = move |outcome: &ExperimentResults| {
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
            None if !is_one => "interrupted; the experiments that had ended are kept".to_owned(),
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

/// One experiment of all.
#[derive(Serialize)]
struct Made {
    experiment: &'static str,
    /// What it ran on; empty if it failed.
    source: &'static str,
    seconds: f64,
    /// Rows by verdict: reproduced, consistent, own check, not reproduced, not comparable.
    verdicts: [usize; 5],
    /// Where its results are; empty if it failed.
    folder: String,
    /// Why there are none.
    error: Option<String>,
}

/// No if a statement does not hold.
fn answer(outcome: &ExperimentResults) -> CommandAnswer {
    let failed = outcome.rows.iter().any(|row| row.verdict == PaperVerdict::NotReproduced);
    if failed { CommandAnswer::No } else { CommandAnswer::Yes }
}

/// Makes every experiment that the backend can make; the answer is no if a statement of one does not hold.
///
/// # Errors
/// If an experiment fails, after all others were made.
fn all(out: &Out, setting: &ExperimentSetting) -> Result<CommandAnswer> {
    let backend = match setting.backend {
        Backend::Auto if headway::gpus::there().is_ok_and(|gpus| gpus > 0) => Backend::Cuda,
        Backend::Auto => Backend::Sim,
        backend => backend,
    };
    let of = |name: &str| ExperimentSetting {
        backend,
        out: setting.out.as_ref().map(|folder| folder.join(name)),
        ..setting.clone()
    };
    let chosen: Vec<_> = EXPERIMENTS.iter().filter(|experiment| experiment.runs_on(backend)).collect();
    for experiment in &chosen {
        experiment.may_write(&of(experiment.name))?;
    }
    let ended = keep_if_interrupted(out, setting, ALL);
    let mut made = Vec::new();
    let mut held = true;
    for experiment in chosen {
        out.note(&format!("{} ...", experiment.name));
        let (own, begun) = (of(experiment.name), Instant::now());
        let found = experiment.run(&own).map_err(anyhow::Error::from).and_then(|outcome| {
            // It is written whole: nothing of it is left for an interrupt to keep.
            let _ = own.so_far.take();
            let folder = outcome.write(&own.folder(outcome.experiment, outcome.source))?;
            Ok((outcome, folder))
        });
        let seconds = begun.elapsed().as_secs_f64();
        made.push(match found {
            Ok((outcome, folder)) => {
                held &= matches!(answer(&outcome), CommandAnswer::Yes);
                let verdicts =
                    PaperVerdict::ALL.map(|verdict| outcome.rows.iter().filter(|row| row.verdict == verdict).count());
                let folder = folder.display().to_string();
                Made { experiment: experiment.name, source: outcome.source, seconds, verdicts, folder, error: None }
            }
            Err(error) => {
                let error = Some(format!("{error:#}"));
                let (source, verdicts, folder) = ("", [0; 5], String::new());
                Made { experiment: experiment.name, source, seconds, verdicts, folder, error }
            }
        });
    }
    ended.store(true, Ordering::Relaxed);
    let json = serde_json::json!({ "schema": 1, "experiments": made });
    out.print(&json, || table(&made))?;
    let failed: Vec<&str> = made.iter().filter(|made| made.error.is_some()).map(|made| made.experiment).collect();
    if !failed.is_empty() {
        bail!("{} of {} experiments failed: {}", failed.len(), made.len(), failed.join(", "));
    }
    Ok(if held { CommandAnswer::Yes } else { CommandAnswer::No })
}

fn table(made: &[Made]) -> String {
    let mut text = format!(
        "{:<16} {:>8} {:>11} {:>11} {:>10} {:>14} {:>15}\n",
        "experiment", "seconds", "reproduced", "consistent", "own check", "not reproduced", "not comparable"
    );
    for one in made {
        let [reproduced, consistent, own, not, none] = one.verdicts;
        let _ = writeln!(
            text,
            "{:<16} {:>8.1} {reproduced:>11} {consistent:>11} {own:>10} {not:>14} {none:>15}",
            one.experiment, one.seconds
        );
        if let Some(error) = &one.error {
            let _ = writeln!(text, "  failed: {error}");
        }
    }
    text
}

fn listing() -> String {
    let mut text = String::new();
    for experiment in EXPERIMENTS {
        let _ = writeln!(text, "{:<18} {}\n{:<18} {}", experiment.name, experiment.about, "", experiment.paper);
    }
    text
}

fn reproduced(outcome: &ExperimentResults, folder: &Path) -> String {
    let mut text = format!("{}, source {}, machine {}\n\n", outcome.experiment, outcome.source, outcome.machine);
    let what = outcome.rows.iter().map(|row| row.what.chars().count()).max().unwrap_or(0);
    for row in &outcome.rows {
        let _ = writeln!(text, "{:<what$}  {:<35}  paper: {}", row.what, row.verdict.label(), row.cited());
        let _ = writeln!(text, "{:<what$}  {:<35}  ours:  {}", "", "", row.ours);
        let _ = writeln!(text, "{:<what$}  {:<35}  why:   {}", "", "", row.why);
    }
    for note in &outcome.notes {
        let _ = writeln!(text, "\n{note}");
    }
    let _ = writeln!(text, "\nsummary   {}", folder.join("summary.md").display());
    text
}
