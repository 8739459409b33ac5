//! The runs kept under `bench/runs`, those of GPUs included: each log of the dispatcher replays byte for byte, and its
//! summary page says what the log says. The README states best, median and worst of all of them.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use headway_trace::RunLog;
use headway_trace::replay::replay;
use headway_trace::sharing;
use headway_trace::summary::summarize;

/// The folders in `folder`, in order.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|p| p.is_dir()).collect();
    found.sort();
    found
}

#[test]
fn kept_runs_replay_and_their_summaries_are_theirs() {
    let runs = folders(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/runs"));
    if runs.is_empty() {
        eprintln!("skipped: no runs are kept under bench/runs");
    }
    for run in runs {
        let name = run.display().to_string();
        assert!(run.join("SETUP.md").is_file(), "{name} has no SETUP.md");
        // A release run has a folder for each benchmark and experiment.
        for part in folders(&run) {
            let name = part.display().to_string();
            if ["rows.csv.gz", "run.jsonl.gz", "outcome.json"].iter().any(|file| part.join(file).is_file()) {
                check(&part, &name);
            } else {
                assert!(tables(&part) > 0, "{name} has no raw figures");
            }
        }
        check(&run, &name);
    }
}

/// A run, by what it has.
fn check(run: &Path, name: &str) {
    if run.join("rows.csv.gz").is_file() {
        return benchmark(run, name);
    }
    if !run.join("run.jsonl.gz").is_file() {
        let records = records(run, name);
        if records == 0 || run.join("outcome.json").is_file() {
            experiment(run, name);
        }
        return;
    }
    let text = text(&run.join("run.jsonl.gz"));
    let page = fs::read_to_string(run.join("summary.md")).unwrap_or_else(|error| panic!("{name}: {error}"));
    let table = table(&text, name);
    // The first lines: the verdict, what ran where, and the totals. Programs of that time did not say what a plan does not promise.
    let is_newer = |line: &&str| line.starts_with("  the plan does not promise this on a host where");
    for line in table.lines().take_while(|line| !line.is_empty()).filter(|line| !is_newer(line)) {
        assert!(page.contains(line), "{name}/summary.md does not say: {line}");
    }
}

/// What `headway report` prints for a log; one of the dispatcher must replay.
fn table(text: &str, name: &str) -> String {
    if text.lines().next().is_some_and(sharing::TaskLog::begins) {
        let log = sharing::TaskLog::read(text.as_bytes(), name).unwrap_or_else(|error| panic!("{name}: {error}"));
        return sharing::summarize(&log).table();
    }
    let log = RunLog::read(text.as_bytes(), name).unwrap_or_else(|error| panic!("{name}: {error}"));
    let replayed = replay(&log).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(replayed.finished, "{name}");
    summarize(&log).table(140)
}

/// The text of a file; one that ends with `.gz` is unpacked.
fn text(path: &Path) -> String {
    let failed = |error: &dyn std::fmt::Display| -> ! { panic!("{}: {error}", path.display()) };
    let bytes = fs::read(path).unwrap_or_else(|error| failed(&error));
    let mut text = String::new();
    let read = match path.extension().is_some_and(|ending| ending == "gz") {
        true => GzDecoder::new(bytes.as_slice()).read_to_string(&mut text),
        false => bytes.as_slice().read_to_string(&mut text),
    };
    read.unwrap_or_else(|error| failed(&error));
    text
}

/// How many JSON files a run has. Each must be whole, none may name a folder of the machine that it ran on, and the run's
/// page says where the figures come from.
fn records(run: &Path, name: &str) -> usize {
    let mut files = 0;
    for entry in fs::read_dir(run).unwrap() {
        let path = entry.unwrap().path();
        let file = path.to_string_lossy();
        if !["json", "jsonl", "json.gz", "jsonl.gz"].iter().any(|end| file.ends_with(&format!(".{end}"))) {
            continue;
        }
        let text = text(&path);
        let mut values = 0;
        for value in serde_json::Deserializer::from_str(&text).into_iter::<serde_json::Value>() {
            value.unwrap_or_else(|error| panic!("{file}: {error}"));
            values += 1;
        }
        assert!(values > 0 && text.ends_with('\n'), "{file} is not whole");
        assert!(!text.contains("\"/tmp/"), "{file} names a folder of the machine that it ran on");
        files += 1;
    }
    if files > 0 {
        let page = fs::read_to_string(run.join("summary.md")).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(page.contains("\nSource `") && page.contains(" commit "), "{name}");
        assert!(page.contains("\n| ") || was_interrupted(run, &page), "{name}");
    }
    files
}

/// Whether a run was interrupted, and its page says so: it has raw figures, and compares nothing.
fn was_interrupted(run: &Path, page: &str) -> bool {
    run.join("INCOMPLETE.txt").exists() && page.contains("\nINCOMPLETE: ")
}

/// An experiment's page says where it comes from and what came out, beside the paper or a target, and its tables are whole.
fn experiment(run: &Path, name: &str) {
    let page = fs::read_to_string(run.join("summary.md")).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(page.contains("\nSource `") && page.contains(" commit ") && page.contains(" seed "), "{name}");
    let compares = page.contains("| what | paper | ours | verdict |") || page.contains("| target |");
    assert!(compares || was_interrupted(run, &page), "{name}");
    assert!(tables(run) > 0, "{name} has no raw figures");
}

/// How many tables a folder has; each must be whole. Where no core of the CPU served, there is none to tell of.
fn tables(run: &Path) -> usize {
    let page = fs::read_to_string(run.join("summary.md")).unwrap_or_default();
    let mut tables = 0;
    for entry in fs::read_dir(run).unwrap() {
        let path = entry.unwrap().path();
        let file = path.to_string_lossy();
        if ![".csv", ".csv.gz"].iter().any(|end| file.ends_with(end)) {
            continue;
        }
        let text = text(&path);
        tables += 1;
        let none = path.ends_with("cores.csv") && page.contains("\nCPU: no core of the CPU serves.");
        let least = if none { 1 } else { 2 };
        assert!(text.lines().count() >= least && text.ends_with('\n'), "{}", path.display());
    }
    tables
}

/// The figures that a benchmark's page lists as targets are in its rows, as far as they are medians in nanoseconds.
fn benchmark(run: &Path, name: &str) {
    let rows = text(&run.join("rows.csv.gz"));
    let rates: Vec<f64> = rows
        .lines()
        .skip(1)
        .filter_map(|row| row.split(',').nth(13)?.parse::<f64>().ok())
        .map(|bytes_per_s| bytes_per_s / 1e9)
        .collect();
    if !rows.lines().next().is_some_and(|header| header.contains("bytes_per_s")) {
        // Times, not rates: of a benchmark without copies.
        assert!(rows.lines().count() > 1 && rows.contains("_ns"), "{name}: no figures");
        return;
    }
    assert!(rows.starts_with("source,") && !rates.is_empty(), "{name}: rows without rates");
    let page = fs::read_to_string(run.join("summary.md")).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut checked = 0;
    for line in page
        .lines()
        .skip_while(|line| *line != "## Targets")
        .take_while(|line| !line.starts_with("## ways") && !line.starts_with("## methods"))
    {
        let Some((figure, _)) = line.split_once(" GB/s with ") else { continue };
        let Some(figure) = figure.rsplit(' ').next().and_then(|figure| figure.parse::<f64>().ok()) else { continue };
        assert!(rates.iter().any(|rate| (rate - figure).abs() < 0.011), "{name}: no row has {figure} GB/s");
        checked += 1;
    }
    assert!(checked > 0 || !page.contains(" GB/s with "), "{name}: no target was checked");
}

/// The anchor that a heading gets on the pages of GitHub.
fn anchor(heading: &str) -> String {
    let kept = |letter: char| letter.is_alphanumeric() || [' ', '-', '_'].contains(&letter);
    heading.to_lowercase().chars().filter(|letter| kept(*letter)).collect::<String>().replace(' ', "-")
}

/// The first table of the section of `bench/results.md` that has this anchor: best, median and worst of every figure.
fn ranked<'a>(results: &'a str, wanted: &str) -> Vec<Vec<&'a str>> {
    let sections = results.split("\n## ").skip(1);
    let section = sections.into_iter().find(|text| anchor(text.lines().next().unwrap_or_default()) == wanted);
    let section = section.unwrap_or_else(|| panic!("bench/results.md has no section #{wanted}"));
    let first = section.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    let rows = first.take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

#[test]
fn figures_of_the_readme_are_best_median_and_worst_of_all_kept_runs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let results = fs::read_to_string(root.join("bench/results.md")).unwrap();
    let mut checked = 0;
    for line in readme.lines().filter(|line| line.starts_with("| [")) {
        let Some((wanted, cells)) = line.split_once("](bench/results.md#").and_then(|(_, rest)| rest.split_once(')'))
        else {
            continue;
        };
        let cells: Vec<&str> = cells.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect();
        let [figure, best, median, worst, met, price] = cells[..] else { panic!("not six cells: {line}") };
        let rows = ranked(&results, wanted);
        let row = rows.iter().find(|row| row[0] == "H200" && row[1] == figure);
        let row = row.unwrap_or_else(|| panic!("#{wanted} has no figure called {figure}"));
        let value = |cell: &str| cell.split(' ').next().unwrap_or_default().to_owned();
        let stated = [best, median, worst].map(|cell| cell.replace(',', ""));
        assert_eq!(stated.to_vec(), row[3..6].iter().map(|cell| value(cell)).collect::<Vec<_>>(), "{line}");
        assert!(met == row[7] || (row[7] == "-" && met == format!("{} runs", row[2])), "{line}");
        // A price in CPUs is the range over all runs.
        if let Some(range) = price.strip_suffix(" CPUs busy") {
            let busy = rows.iter().find(|row| row[0] == "H200" && row[1] == "CPUs busy").expect("the section has it");
            assert_eq!(range, format!("{} to {}", value(busy[3]), value(busy[5])), "{line}");
        }
        checked += 1;
    }
    assert!(checked >= 2, "the README states {checked} results");
}

#[test]
fn anchors_are_those_of_github() {
    assert_eq!(
        anchor("Streams encrypted, as many as the planner accepts"),
        "streams-encrypted-as-many-as-the-planner-accepts"
    );
    assert_eq!(anchor("`copy` against the best method"), "copy-against-the-best-method");
}
