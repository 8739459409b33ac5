//! The kept runs on GPUs: their names, commits, pages and rows.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;

use anyhow::Context;
use flate2::read::GzDecoder;
use serde_json::Value;

use crate::run_archive;

/// A kept run of the backend `cuda`.
pub(super) struct Run {
    /// Name of its folder; of a folder inside a release run, both with a slash.
    pub(super) name: String,
    /// `H100` or `H200`.
    pub(super) gpu: &'static str,
    /// GPUs of the machine that the folder names.
    pub(super) gpus: usize,
    pub(super) commit: String,
    /// Its `summary.md`; empty if it has none.
    pub(super) page: String,
    /// Rows of a benchmark of copies; empty for other runs.
    pub(super) rows: Vec<Row>,
    /// `runs.csv` of an experiment that was interrupted: its page compares nothing. Empty for other runs.
    pub(super) interrupted: Vec<Row>,
    /// What programs of a release run printed, by the name of the piece; empty for other runs.
    pub(super) printed: BTreeMap<String, Vec<Value>>,
}

/// One row of `rows.csv.gz`, by the names of its columns.
pub(super) struct Row(BTreeMap<String, String>);

impl Row {
    pub(super) fn text(&self, column: &str) -> &str {
        self.0.get(column).map_or("", String::as_str)
    }

    pub(super) fn number(&self, column: &str) -> Option<f64> {
        self.text(column).parse().ok()
    }
}

/// Every run under `folder` that a GPU made, by name.
pub(super) fn kept(folder: &Path) -> anyhow::Result<Vec<Run>> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .with_context(|| format!("cannot read {}", folder.display()))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| gpu_of(name).is_some())
        .collect();
    names.sort();
    let mut runs = Vec::new();
    for name in names {
        runs.extend(read_all(&folder.join(&name), &name)?);
    }
    Ok(runs)
}

/// The run in `folder`, and before it the folders of a release run: each is a run of its own, of the same commit.
pub(super) fn read_all(folder: &Path, name: &str) -> anyhow::Result<Vec<Run>> {
    let whole = read(folder, name)?;
    let mut runs = Vec::new();
    if run_archive::is_release(name) {
        for part in run_archive::names(folder)? {
            let run = read(&folder.join(&part), &format!("{name}/{part}"))?;
            runs.push(Run { commit: whole.commit.clone(), ..run });
        }
    }
    runs.push(whole);
    Ok(runs)
}

/// GPU and number of GPUs in a name such as `2026-11-22-h200x4-transfers`.
fn gpu_of(name: &str) -> Option<(&'static str, usize)> {
    let machine = name.get(11..)?.split('-').next()?;
    let (gpu, count) = machine.split_once('x')?;
    let gpu = match gpu {
        "h100" => "H100",
        "h200" => "H200",
        _ => return None,
    };
    Some((gpu, count.parse().ok()?))
}

fn read(folder: &Path, name: &str) -> anyhow::Result<Run> {
    let (gpu, gpus) = gpu_of(name).with_context(|| format!("{name} does not name a GPU"))?;
    // A run that is kept as raw figures only has no page.
    let page = fs::read_to_string(folder.join("summary.md")).unwrap_or_default();
    let commit = page.split_once("commit ").map_or("", |(_, rest)| rest);
    let commit: String = commit.chars().take_while(char::is_ascii_alphanumeric).collect();
    let mut rows = Vec::new();
    if let Ok(packed) = fs::read(folder.join("rows.csv.gz")) {
        let mut text = String::new();
        GzDecoder::new(packed.as_slice()).read_to_string(&mut text).with_context(|| format!("{name}: rows.csv.gz"))?;
        rows = table(&text);
    }
    let interrupted = if folder.join("INCOMPLETE.txt").exists() {
        table(&fs::read_to_string(folder.join("runs.csv")).unwrap_or_default())
    } else {
        Vec::new()
    };
    let printed = if run_archive::is_release(name) { printed(folder)? } else { BTreeMap::new() };
    Ok(Run { name: name.to_owned(), gpu, gpus, commit, page, rows, interrupted, printed })
}

/// The files of JSON lines in `folder`, by their names.
fn printed(folder: &Path) -> anyhow::Result<BTreeMap<String, Vec<Value>>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "jsonl") {
            continue;
        }
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let lines = text.lines().map(serde_json::from_str).collect::<Result<_, _>>();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        found.insert(name, lines.with_context(|| path.display().to_string())?);
    }
    Ok(found)
}

/// Rows that have as many cells as the header. Some early runs wrote names with commas in them without quotes.
pub(super) fn table(text: &str) -> Vec<Row> {
    let mut lines = text.lines().map(cells);
    let header: Vec<String> = lines.next().unwrap_or_default().into_iter().map(current).collect();
    let whole = lines.filter(|cells| cells.len() == header.len());
    let row = |cells: Vec<String>| {
        let named = header.iter().cloned().zip(cells);
        Row(named.map(|(name, cell)| if name == "part" { (name, current(cell)) } else { (name, cell) }).collect())
    };
    whole.map(row).collect()
}

/// The present name of a column or of a part: earlier runs called a method `way`.
fn current(name: String) -> String {
    match name.as_str() {
        "way" => "method".to_owned(),
        "ways" => "methods".to_owned(),
        _ => name,
    }
}

/// Cells of a line; a quoted one may hold commas and doubled quotes.
fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => cell.extend(letters.next()),
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(std::mem::take(&mut cell)),
            other => cell.push(other),
        }
    }
    cells.push(cell);
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_by_name_and_rows_of_another_length_are_left_out() {
        let rows = table("way,n,note\nstaged,9,\"a, \"\"b\"\"\"\ncopied by 4 CPUs, plain,9,x\n");
        assert_eq!(rows.len(), 1);
        assert_eq!(
            (rows[0].text("method"), rows[0].number("n"), rows[0].text("note")),
            ("staged", Some(9.0), "a, \"b\"")
        );
        assert_eq!((rows[0].text("absent"), rows[0].number("method")), ("", None));
    }

    #[test]
    fn the_name_of_a_run_says_which_gpus() {
        assert_eq!(gpu_of("2026-11-22-h200x4-transfers"), Some(("H200", 4)));
        assert_eq!(gpu_of("2026-11-22-h100x1-transfers"), Some(("H100", 1)));
        assert_eq!(gpu_of("2026-11-22-host16-broker"), None);
        assert_eq!(gpu_of("2026-11-21-sim-gpusync"), None);
    }
}
