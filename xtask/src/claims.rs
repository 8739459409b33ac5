//! `cargo xtask claims`: the figures that the README and the pages may state, from every kept run on GPUs.
//!
//! A claim is judged by all runs that have the figure, not by a chosen one: `bench/results.md` gives best, median and worst, how
//! many runs meet the target, and what it costs.

mod copies;
mod page;
mod programs;
mod runs;
mod summaries;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, bail};

use crate::run_archive::{self, RUNS, Rival};

/// Where the page lies in the repository.
const PAGE: &str = "bench/results.md";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Compare with the committed page instead of writing it
    #[arg(long)]
    check: bool,
}

/// Whether more or less of a figure is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Better {
    More,
    Less,
}

/// One figure of a claim.
struct Measure {
    /// With its unit.
    name: &'static str,
    better: Better,
    /// What is to be reached.
    target: Option<f64>,
    digits: usize,
}

/// The figures of one run, in the order of the measures.
struct Line {
    run: String,
    gpu: &'static str,
    gpus: usize,
    commit: String,
    /// What a figure stands for: number of samples, or how long a run lasted.
    samples: String,
    figures: Vec<Option<f64>>,
}

impl Line {
    /// The run's folder; what follows a comma says which part of it the line is of.
    fn folder(&self) -> &str {
        self.run.split_once(", ").map_or(self.run.as_str(), |(run, _)| run)
    }
}

/// Something that can be said of Headway, with all runs that say how far it is true.
struct Claim {
    title: String,
    about: String,
    measures: Vec<Measure>,
    lines: Vec<Line>,
    /// What it costs beside the CPUs that are a figure; empty if nothing else.
    price: &'static str,
    /// How a release run makes it; `None` if none does.
    made: Option<Made>,
}

/// How a release run makes the figures of a claim.
struct Made {
    /// Piece of the script.
    piece: &'static str,
    /// GPUs of the hosts that make it.
    gpus: usize,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let root = crate::root();
    let text = page(&root)?;
    if args.check {
        if let Some(message) = stale(&root)? {
            bail!("{PAGE}: {message}");
        }
        println!("{PAGE} is what the kept runs give");
        return Ok(());
    }
    fs::write(root.join(PAGE), text).with_context(|| format!("cannot write {PAGE}"))?;
    println!("wrote {PAGE}");
    Ok(())
}

/// Why the committed page is not what the kept runs give; `None` if it is.
pub(crate) fn stale(root: &Path) -> anyhow::Result<Option<String>> {
    let committed = fs::read_to_string(root.join(PAGE)).unwrap_or_default();
    let differs = page(root)? != committed;
    Ok(differs.then(|| "not what the kept runs give, use `cargo xtask claims`".to_owned()))
}

/// Path of the page, for findings.
pub(crate) const fn path() -> &'static str {
    PAGE
}

pub(crate) fn page(root: &Path) -> anyhow::Result<String> {
    let mut runs = runs::kept(&root.join(RUNS))?;
    runs.extend(runs::kept(&run_archive::unpacked(root)?)?);
    runs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(page::render(&claims(&runs), &|run| run_archive::link(root, run)))
}

/// The figures of the release run in `folder` as a table, and those that are missing, each with the piece that makes it.
pub(crate) fn of_release(
    folder: &Path,
    name: &str,
    gpus: usize,
) -> anyhow::Result<(String, Vec<(String, &'static str)>)> {
    let claims = claims(&runs::read_all(folder, name)?);
    let mut missing = Vec::new();
    for claim in &claims {
        let Some(made) = claim.made.as_ref().filter(|made| made.gpus == gpus) else { continue };
        for (at, measure) in claim.measures.iter().enumerate() {
            if claim.lines.is_empty() || claim.lines.iter().any(|line| line.figures[at].is_none()) {
                missing.push((format!("{}: {}", claim.title, measure.name), made.piece));
            }
        }
    }
    Ok((page::one_run(&claims), missing))
}

fn claims(runs: &[runs::Run]) -> Vec<Claim> {
    let mut claims = copies::claims(runs);
    claims.extend(summaries::claims(runs));
    claims.extend(programs::claims(runs));
    claims
}

/// Runs under `bench/runs` with figures of each claim, by kind of machine.
pub(crate) fn rivals(root: &Path) -> anyhow::Result<BTreeMap<String, Vec<Rival>>> {
    let folder = root.join(RUNS);
    let mut rivals: BTreeMap<String, Vec<Rival>> = BTreeMap::new();
    for claim in claims(&runs::kept(&folder)?) {
        for line in claim.lines.iter().filter(|line| line.figures.iter().any(Option::is_some)) {
            let run = run_archive::top(line.folder()).to_owned();
            let is_complete = !folder.join(&run).join("INCOMPLETE.txt").exists();
            let kind = format!("{} {} x {}", claim.title, line.gpus, line.gpu);
            let commit = line.commit.clone();
            rivals.entry(kind).or_default().push(Rival { run, commit, is_complete });
        }
    }
    Ok(rivals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_page_is_what_the_kept_runs_give() {
        assert_eq!(stale(&crate::root()).unwrap(), None);
    }
}
