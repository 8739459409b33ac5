//! `headway reproduce all`: every experiment that the backend can make, one after the other.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Result, bail};
use headway::run::Backend;
use headway_lab::reproduce::{EXPERIMENTS, Outcome, Setting, Verdict};
use serde::Serialize;

use crate::Answer;
use crate::commands::{Out, keep_if_interrupted};

/// What stands for all experiments.
pub(crate) const ALL: &str = "all";

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
pub(crate) fn answer(outcome: &Outcome) -> Answer {
    let failed = outcome.rows.iter().any(|row| row.verdict == Verdict::NotReproduced);
    if failed { Answer::No } else { Answer::Yes }
}

/// Makes every experiment that the backend can make; the answer is no if a statement of one does not hold.
///
/// # Errors
/// If an experiment fails, after all others were made.
pub(crate) fn all(out: &Out, setting: &Setting) -> Result<Answer> {
    let backend = match setting.backend {
        Backend::Auto if headway::gpus::there().is_ok_and(|gpus| gpus > 0) => Backend::Cuda,
        Backend::Auto => Backend::Sim,
        backend => backend,
    };
    let of =
        |name: &str| Setting { backend, out: setting.out.as_ref().map(|folder| folder.join(name)), ..setting.clone() };
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
                held &= matches!(answer(&outcome), Answer::Yes);
                let verdicts =
                    Verdict::ALL.map(|verdict| outcome.rows.iter().filter(|row| row.verdict == verdict).count());
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
    Ok(if held { Answer::Yes } else { Answer::No })
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
