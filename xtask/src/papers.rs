//! `cargo xtask papers`: one page of all experiments of papers, from what kept runs say.
//!
//! `headway-lab` leaves an `outcome.json` beside its raw figures. Of each experiment the newest kept outcome of every source is
//! shown: simulated, emulated, and measured on each kind of GPU. Nothing on the page is written by hand.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::run_archive::{self, RUNS, Rival, names};

/// Where the page lies in the repository.
const PAGE: &str = "bench/papers.md";

struct Paper {
    /// How its experiments are called, up to the first hyphen.
    experiments: &'static [&'static str],
    title: &'static str,
    /// Why most of what is not reproduced is not; the rows have the reason of each.
    differs: &'static str,
}

const fn paper(experiments: &'static [&'static str], title: &'static str, differs: &'static str) -> Paper {
    Paper { experiments, title, differs }
}

const PAPERS: [Paper; 6] = [
    paper(
        &["cho"],
        "Cho and Hong 2018: multithreaded double queues",
        "today's driver alone is as fast as the paper's queues, or nearly",
    ),
    paper(
        &["fujii"],
        "Fujii, Azumi, Nishio, Kato and Edahiro 2013: transfer methods",
        "a GPU of today has a fast copy engine for each direction, is asked without a system call, and lets no user program its microcontrollers",
    ),
    paper(
        &["patil"],
        "Patil and Kulkarni 2021: pinned memory, overlap, batching",
        "what each piece costs by itself eats what overlap wins",
    ),
    paper(
        &["verner", "np", "join"],
        "Verner, Mendelson and Schuster 2014: periodic communication",
        "the driver of a run was up to 2.7 ms late, and deadlines begin at 0.5 ms",
    ),
    paper(
        &["gpusync"],
        "Elliott, Ward and Anderson 2013: GPUs shared between tasks",
        "the paper states neither rates nor costs of calls, and copies take another share of a frame today",
    ),
    paper(&["who"], "No paper: experiments of our own", ""),
];
const VERDICTS: [(&str, &str); 5] = [
    ("reproduced", "reproduced"),
    ("consistent", "consistent, with a fitted parameter"),
    ("own-check", "own check"),
    ("not-reproduced", "not reproduced"),
    ("not-comparable", "not comparable here"),
];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Compare with the committed page instead of writing it
    #[arg(long)]
    check: bool,
}

/// What the page needs of an `outcome.json`.
#[derive(Deserialize)]
struct Outcome {
    experiment: String,
    source: String,
    machine: String,
    commit: String,
    /// Whether the run was not interrupted; one that was has raw figures only.
    complete: bool,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    what: String,
    paper: String,
    section: String,
    ours: String,
    verdict: String,
    why: String,
}

/// An outcome with the run that it is of.
struct Kept {
    run: String,
    outcome: Outcome,
}

impl Paper {
    fn has(&self, kept: &Kept) -> bool {
        self.experiments.contains(&prefix(&kept.outcome.experiment))
    }
}

impl Kept {
    /// `simulated`, `emulated`, or the GPU that was measured.
    fn source(&self) -> String {
        match self.outcome.source.as_str() {
            "sim" => "simulated".to_owned(),
            "emu" => "emulated".to_owned(),
            _ => ["H100", "H200"]
                .into_iter()
                .find(|gpu| self.outcome.machine.contains(gpu))
                .map_or_else(|| "measured".to_owned(), |gpu| format!("measured, {gpu}")),
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let root = crate::root();
    if args.check {
        if let Some(message) = stale(&root)? {
            bail!("{PAGE}: {message}");
        }
        println!("{PAGE} is what the kept runs give");
        return Ok(());
    }
    fs::write(root.join(PAGE), page(&root)?).with_context(|| format!("cannot write {PAGE}"))?;
    println!("wrote {PAGE}");
    Ok(())
}

/// Why the committed page is not what the kept runs give; `None` if it is.
pub(crate) fn stale(root: &Path) -> anyhow::Result<Option<String>> {
    let committed = fs::read_to_string(root.join(PAGE)).unwrap_or_default();
    let differs = page(root)? != committed;
    Ok(differs.then(|| "not what the kept runs give, use `cargo xtask papers`".to_owned()))
}

/// Path of the page, for findings.
pub(crate) const fn path() -> &'static str {
    PAGE
}

fn page(root: &Path) -> anyhow::Result<String> {
    Ok(render(&newest(outcomes(&root.join(RUNS))?)))
}

/// Every outcome, in the order of the names of the runs.
fn outcomes(folder: &Path) -> anyhow::Result<Vec<Kept>> {
    let mut runs = Vec::new();
    for run in names(folder)? {
        if run_archive::is_release(&run) {
            runs.extend(names(&folder.join(&run))?.into_iter().map(|part| format!("{run}/{part}")));
        }
        runs.push(run);
    }
    let texts = runs.into_iter().filter_map(|run| {
        let text = fs::read_to_string(folder.join(&run).join("outcome.json")).ok()?;
        Some((run, text))
    });
    texts
        .map(|(run, text)| {
            let outcome = serde_json::from_str(&text).with_context(|| format!("{run}/outcome.json"))?;
            Ok(Kept { run, outcome })
        })
        .collect()
}

/// Runs of each experiment and source.
pub(crate) fn rivals(root: &Path) -> anyhow::Result<BTreeMap<String, Vec<Rival>>> {
    let mut rivals: BTreeMap<String, Vec<Rival>> = BTreeMap::new();
    let folder = root.join(RUNS);
    for kept in outcomes(&folder)? {
        let Outcome { experiment, commit, complete, .. } = &kept.outcome;
        let rival =
            Rival { run: run_archive::top(&kept.run).to_owned(), commit: commit.clone(), is_complete: *complete };
        rivals.entry(format!("{experiment} {}", kept.source())).or_default().push(rival);
    }
    // Older programs wrote no outcome: the name of the run says what it is of.
    for run in names(&folder)?.into_iter().filter(|run| !folder.join(run).join("outcome.json").exists()) {
        let source = match run.get(11..15) {
            Some("h100") => "measured, H100",
            Some("h200") => "measured, H200",
            Some("sim-") => "simulated",
            _ => continue,
        };
        let of = |kind: &&String| kind.strip_suffix(source).is_some_and(|of| run.ends_with(&format!("-{}", of.trim())));
        if let Some(kind) = rivals.keys().find(of).cloned() {
            let rival = Rival { run, commit: String::new(), is_complete: false };
            rivals.entry(kind).or_default().push(rival);
        }
    }
    Ok(rivals)
}

/// Of outcomes in order of time, the last complete one of each experiment and source, in the order of their names.
fn newest(outcomes: Vec<Kept>) -> Vec<Kept> {
    let mut newest: BTreeMap<(String, String), Kept> = BTreeMap::new();
    for kept in outcomes.into_iter().filter(|kept| kept.outcome.complete) {
        newest.insert((kept.outcome.experiment.clone(), kept.source()), kept);
    }
    newest.into_values().collect()
}

fn label(verdict: &str) -> &str {
    VERDICTS.iter().find(|(word, _)| *word == verdict).map_or(verdict, |(_, label)| label)
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn render(all: &[Kept]) -> String {
    let mut text = format!("# Papers, made again\n\n{}\n\n", verdict(all));
    text.push_str(
        "Generated by `cargo xtask papers` from the kept runs that the tables link to; [reproduce.md](../docs/reproduce.md) says how they are made and what \
        the verdicts mean. The column \"the paper\" has the paper's numbers and no others, with the section, table or figure; each run's \
        `summary.md` quotes the sentences. Each row is of the newest kept run of its source that has an `outcome.json` and was not interrupted: simulated, or measured on an H100 or H200. \
         [bench/runs](runs/README.md) says what was wrong with some of them. Older runs are in [older-runs.md](older-runs.md).\n\n",
    );
    text.push_str(&totals(all));
    for paper in PAPERS {
        let of_paper: Vec<&Kept> = all.iter().filter(|kept| paper.has(kept)).collect();
        if of_paper.is_empty() {
            continue;
        }
        text.push_str(&format!("\n## {}\n", paper.title));
        let mut experiments: Vec<&str> = of_paper.iter().map(|kept| kept.outcome.experiment.as_str()).collect();
        experiments.dedup();
        for experiment in experiments {
            let runs: Vec<&Kept> =
                of_paper.iter().copied().filter(|kept| kept.outcome.experiment == experiment).collect();
            text.push_str(&section(experiment, &runs));
        }
    }
    text
}

fn prefix(experiment: &str) -> &str {
    experiment.split('-').next().unwrap_or_default()
}

/// How many claims came out how, and why most of the rest did not, in one line.
fn verdict(all: &[Kept]) -> String {
    let count = |kept: &Kept, word: &str| kept.outcome.rows.iter().filter(|row| row.verdict == word).count();
    let [reproduced, consistent, own, missed, not_comparable] =
        VERDICTS.map(|(word, _)| all.iter().map(|kept| count(kept, word)).sum::<usize>());
    let claims = reproduced + consistent + missed + not_comparable;
    let mut line = format!(
        "**Of {claims} comparisons with claims of the papers, {reproduced} are reproduced, {consistent} are consistent (with a fitted \
         parameter), {missed} are not reproduced, and {not_comparable} are not comparable here; {own} further rows are checks of our own.**"
    );
    let why: Vec<String> = PAPERS
        .iter()
        .filter_map(|paper| {
            let of_paper = all.iter().filter(|kept| paper.has(kept));
            let missed: usize = of_paper.map(|kept| count(kept, "not-reproduced")).sum();
            let authors = paper.title.split([' ', ',']).next()?;
            (missed > 0 && !paper.differs.is_empty()).then(|| format!("{authors} ({missed}): {}", paper.differs))
        })
        .collect();
    if !why.is_empty() {
        line.push_str(&format!(" Why most of the rest is not reproduced: {}.", why.join("; ")));
    }
    line
}

/// Rows by verdict, experiment by experiment.
fn totals(all: &[Kept]) -> String {
    let mut text = "| experiment | source | run | reproduced | consistent | own check | not reproduced | not comparable |\n|---|---|---|---|---|---|---|---|\n".to_owned();
    for kept in all {
        let Kept { run, outcome } = kept;
        let counts = VERDICTS.map(|(word, _)| outcome.rows.iter().filter(|row| row.verdict == word).count());
        let counts = counts.map(|count| count.to_string()).join(" | ");
        text.push_str(&format!(
            "| `{}` | {} | [{run}](runs/{run}/summary.md), commit {} | {counts} |\n",
            outcome.experiment,
            kept.source(),
            outcome.commit
        ));
    }
    text
}

/// The rows of one experiment, those of one question together.
fn section(experiment: &str, runs: &[&Kept]) -> String {
    let mut text = format!(
        "\n### `{experiment}`\n\n| what | the paper | source | ours | verdict | why |\n|---|---|---|---|---|---|\n"
    );
    let mut asked: Vec<&str> = Vec::new();
    for what in runs.iter().flat_map(|kept| kept.outcome.rows.iter().map(|row| row.what.as_str())) {
        if !asked.contains(&what) {
            asked.push(what);
        }
    }
    for what in asked {
        for kept in runs {
            for row in kept.outcome.rows.iter().filter(|row| row.what == what) {
                let paper =
                    if row.section.is_empty() { row.paper.clone() } else { format!("{} ({})", row.paper, row.section) };
                let cells = [what, &paper, &kept.source(), &row.ours, label(&row.verdict), &row.why].map(cell);
                text.push_str(&format!("| {} |\n", cells.join(" | ")));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_page_is_what_the_kept_runs_give() {
        assert_eq!(stale(&crate::root()).unwrap(), None);
    }

    fn outcome(source: &str, machine: &str, ours: &str, complete: bool) -> String {
        format!(
            "{{\"complete\":{complete},\"schema\":1,\"experiment\":\"fujii\",\"source\":\"{source}\",\"machine\":\"{machine}\",\"commit\":\"c0ffee\",\"rows\":[{{\"what\":\
             \"A1\",\"paper\":\"IORW wins | to 8 MB\",\"section\":\"IV-A\",\"ours\":\"{ours}\",\"verdict\":\"not-reproduced\",\"why\":\"engines\"}}]}}"
        )
    }

    #[test]
    fn the_newest_whole_run_of_each_source_is_shown_and_one_question_stands_together() {
        let runs = [
            ("2026-11-24-h200x1-fujii", outcome("cuda", "NVIDIA H200", "old", true)),
            ("2026-11-25-h200x1-fujii", outcome("cuda", "NVIDIA H200", "new", true)),
            ("2026-11-25-h100x1-fujii", outcome("cuda", "NVIDIA H100 80GB HBM3", "other", true)),
            ("2026-11-25-sim-fujii", outcome("sim", "fujii-gtx480", "model", true)),
            ("2026-11-26-h200x1-fujii", outcome("cuda", "NVIDIA H200", "interrupted", false)),
        ];
        let kept =
            |(run, text): (&str, String)| Kept { run: run.to_owned(), outcome: serde_json::from_str(&text).unwrap() };
        let page = render(&newest(runs.into_iter().map(kept).collect()));
        assert!(!page.contains("| old |") && !page.contains("| interrupted |"), "{page}");
        let verdict = page.lines().nth(2).unwrap();
        assert!(
            verdict.starts_with("**Of 3 comparisons with claims of the papers, 0 are reproduced, 0 are consistent"),
            "{verdict}"
        );
        assert!(
            verdict.contains(", 3 are not reproduced, and 0 are") && verdict.contains("Fujii (3): a GPU of today has"),
            "{verdict}"
        );
        let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text}: {page}"));
        let row = |source: &str, ours: &str| {
            format!("| A1 | IORW wins \\| to 8 MB (IV-A) | {source} | {ours} | not reproduced | engines |\n")
        };
        assert!(at(&row("measured, H100", "other")) < at(&row("measured, H200", "new")));
        assert!(at(&row("measured, H200", "new")) < at(&row("simulated", "model")));
        at(
            "| `fujii` | simulated | [2026-11-25-sim-fujii](runs/2026-11-25-sim-fujii/summary.md), commit c0ffee | 0 | 0 | 0 | 1 | 0 |",
        );
    }
}
