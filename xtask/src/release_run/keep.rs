//! `cargo xtask release-run keep`: what the script left of one host becomes one run under `bench/runs`.
//!
//! Every benchmark and experiment with tables of its own is a folder of the run, in the form that kept runs have by themselves. What programs
//! printed lies beside `summary.md` as lines of JSON.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::must_succeed;
use crate::run_archive::{self, RUNS};
use crate::{claims, keep_run};

/// Arguments of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder with the archives that the parts left of one host
    raw: PathBuf,
    /// A letter for the host, behind those of all runs that day: the name of the run ends with it
    #[arg(long, value_name = "NAME")]
    host: String,
    /// Keep it although figures are missing; the summary names them
    #[arg(long)]
    partial: bool,
}

/// What one part left.
struct Part {
    name: String,
    folder: PathBuf,
    /// Lines of `setup.tsv`.
    setup: Vec<(String, String)>,
    pieces: Vec<Piece>,
}

/// A command of the script, and how it ended.
struct Piece {
    name: String,
    /// `ok`, or why not.
    result: String,
    seconds: String,
    command: String,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let name = keep(&crate::root(), &args.raw, &args.host, args.partial)?;
    println!("kept {RUNS}/{name}; then `cargo xtask claims`, `cargo xtask papers`, `cargo xtask older-runs`");
    Ok(())
}

/// Keeps a host's figures below `root`; the name of the run.
pub(super) fn keep(root: &Path, raw: &Path, host: &str, partial: bool) -> anyhow::Result<String> {
    let scratch = root.join("target").join(format!("release-run-{}", std::process::id()));
    let kept = unpack(raw, &scratch).and_then(|parts| {
        let (name, gpus) = name_of(&parts, host)?;
        let folder = root.join(RUNS).join(&name);
        ensure!(!folder.exists(), "{} exists; runs are never replaced: choose another name", folder.display());
        let made = scratch.join(&name);
        let written = write(&parts, &made, &name, gpus)?;
        ensure!(
            written.is_empty() || partial,
            "figures are missing; make these pieces again, or keep the run with `--partial`:\n{}",
            written.join("\n")
        );
        fs::create_dir_all(root.join(RUNS))?;
        fs::rename(&made, &folder).with_context(|| format!("cannot write {}", folder.display()))?;
        Ok(name)
    });
    // Of a failed one nothing may be left, and it need not exist.
    let _ = fs::remove_dir_all(&scratch);
    kept
}

/// The parts that `raw` has archives of, unpacked below `scratch`.
fn unpack(raw: &Path, scratch: &Path) -> anyhow::Result<Vec<Part>> {
    let entries = fs::read_dir(raw).with_context(|| format!("cannot read {}", raw.display()))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter_map(|name| name.strip_suffix(".tar.gz").map(str::to_owned)).collect();
    names.sort();
    ensure!(!names.is_empty(), "{} has no archive of a part, such as one.tar.gz", raw.display());
    let part = |name: String| {
        let folder = scratch.join("parts").join(&name);
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        let mut command = Command::new("tar");
        command.arg("-xzf").arg(raw.join(format!("{name}.tar.gz"))).arg("-C").arg(&folder);
        must_succeed(&mut command)?;
        let lines = |file: &str| {
            let text = fs::read_to_string(folder.join(file)).with_context(|| format!("{name}.tar.gz: {file}"))?;
            let cells = text.lines().map(|line| line.split('\t').map(str::to_owned).collect::<Vec<_>>());
            anyhow::Ok(cells.collect::<Vec<_>>())
        };
        let setup = lines("setup.tsv")?.into_iter().filter_map(|line| <[String; 2]>::try_from(line).ok());
        let setup = setup.map(|[what, value]| (what, value)).collect();
        let pieces = lines("pieces.tsv")?.into_iter().filter_map(|line| <[String; 4]>::try_from(line).ok());
        let pieces = pieces.map(|[name, result, seconds, command]| Piece { name, result, seconds, command }).collect();
        Ok(Part { name, folder, setup, pieces })
    };
    names.into_iter().map(part).collect()
}

/// Name of the run, and on how many GPUs it was made.
fn name_of(parts: &[Part], host: &str) -> anyhow::Result<(String, usize)> {
    ensure!(
        !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric()),
        "`--host {host}`: use letters and digits"
    );
    let mut kinds = BTreeSet::new();
    for part in parts {
        let gpus: Vec<&str> = part.of("gpu").collect();
        let gpu = ["h100", "h200"].into_iter().find(|gpu| gpus.iter().any(|it| it.to_lowercase().contains(gpu)));
        let gpu = gpu.with_context(|| {
            format!("{}.tar.gz was made on no H100 or H200: its setup.tsv names {gpus:?}", part.name)
        })?;
        kinds.insert((gpu, gpus.len()));
    }
    let programs: BTreeSet<&str> = parts.iter().flat_map(|part| part.of("binary")).collect();
    ensure!(programs.len() == 1, "the parts were made by different programs: {programs:?}");
    let mut kinds = kinds.into_iter();
    let (Some((gpu, gpus)), None) = (kinds.next(), kinds.next()) else {
        bail!("the parts were made on different GPUs; keep each host by itself");
    };
    let date = parts.iter().flat_map(|part| part.of("date")).max().context("setup.tsv has no date")?;
    Ok((run_archive::release(date, &format!("{gpu}x{gpus}"), host), gpus))
}

impl Part {
    fn of<'a>(&'a self, what: &str) -> impl Iterator<Item = &'a str> {
        self.setup.iter().filter(move |(name, _)| name == what).map(|(_, value)| value.as_str())
    }
}

/// Writes the run into `folder`; the figures that are missing, one a line.
fn write(parts: &[Part], folder: &Path, name: &str, gpus: usize) -> anyhow::Result<Vec<String>> {
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    for part in parts {
        for entry in fs::read_dir(&part.folder)? {
            let path = entry?.path();
            // What was interrupted is no result; `pieces.csv` says when it ended.
            if path.join("INCOMPLETE.txt").exists() {
                continue;
            }
            keep_output(&path, folder).with_context(|| format!("{}.tar.gz: {}", part.name, path.display()))?;
        }
    }
    let mut table = "part,piece,result,seconds,command\n".to_owned();
    for part in parts {
        for piece in &part.pieces {
            let cells = [&part.name, &piece.name, &piece.result, &piece.seconds, &piece.command];
            table.push_str(&cells.map(|cell| format!("\"{}\"", cell.replace('"', "\"\""))).join(","));
            table.push('\n');
        }
    }
    fs::write(folder.join("pieces.csv"), table).context("write pieces.csv")?;
    fs::write(folder.join("SETUP.md"), keep_run::setup_page(name, &setup(parts))).context("write SETUP.md")?;

    let head = head(parts, name);
    // The figures are read from the run as it is kept; its page says of which commit it is.
    fs::write(folder.join("summary.md"), &head).context("write summary.md")?;
    let (figures, missing) = claims::of_release(folder, name, gpus)?;
    let failed = |piece: &str| {
        let of = parts.iter().flat_map(|part| &part.pieces).find(|it| it.name == piece);
        match of.map(|it| it.result.as_str()) {
            None => "it was not run".to_owned(),
            Some("ok") => {
                "its output has no such figure, for example of flows that the host could not be promised".to_owned()
            }
            Some(failed) => failed.to_owned(),
        }
    };
    let missing: Vec<String> =
        missing.into_iter().map(|(figure, piece)| format!("{figure}: piece `{piece}`: {}", failed(piece))).collect();
    let mut page = format!("{head}\n## Figures\n\n{figures}");
    if !missing.is_empty() {
        page.push_str(&format!(
            "\n## Missing\n\n{}\n",
            missing.iter().map(|line| format!("- {line}\n")).collect::<String>().trim_end()
        ));
    }
    fs::write(folder.join("summary.md"), page).context("write summary.md")?;
    Ok(missing)
}

fn head(parts: &[Part], name: &str) -> String {
    let first = |what: &str| parts.iter().flat_map(|part| part.of(what)).next().unwrap_or_default();
    let gpu = first("gpu").split(", ").nth(1).unwrap_or_default();
    let commit = first("binary").rsplit('(').next().unwrap_or_default().trim_end_matches(')');
    format!(
        "# {name}\n\nSource `cuda`, {gpu}, commit {commit}, seed 1 where something is drawn. The release run: every figure by the commands of \
         [pieces.csv](pieces.csv), on one host; set-up in [SETUP.md](SETUP.md). Folders and files beside this page have what each gave.\n"
    )
}

/// What a part ran on, as lines of `setup.tsv`; what all parts have in common comes once.
fn setup(parts: &[Part]) -> String {
    let mut lines: Vec<String> = Vec::new();
    for (what, value) in parts.iter().flat_map(|part| &part.setup).filter(|(what, _)| what != "host") {
        let line = format!("{what}\t{value}\n");
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    let hosts: BTreeSet<&str> = parts.iter().flat_map(|part| part.of("host")).collect();
    let names = parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>().join(", ");
    lines.push(format!("hosts\t{} for the parts {names}\n", hosts.len()));
    lines.concat()
}

/// Keeps a file or folder that a part left, by what it is.
fn keep_output(from: &Path, folder: &Path) -> anyhow::Result<()> {
    let name = from.file_name().context("a file without a name")?.to_string_lossy().into_owned();
    let text = || fs::read_to_string(from).context("it is not text");
    if from.is_dir() {
        let to = folder.join(&name);
        if !from.join("run.jsonl.gz").exists() {
            return keep_run::copy_figures(from, &to);
        }
        // A recorded run: the log, and what the program said of it.
        fs::create_dir_all(&to)?;
        fs::copy(from.join("run.jsonl.gz"), to.join("run.jsonl.gz"))?;
        let report = fs::read_to_string(from.with_extension("out")).context("read what it printed")?;
        let replay = "a test replays every kept log".to_owned();
        fs::write(to.join("summary.md"), keep_run::summary_page(&name, &replay, &report))?;
        let setup = fs::read_to_string(from.join("setup.tsv")).context("read its setup.tsv")?;
        return Ok(fs::write(to.join("SETUP.md"), keep_run::setup_page(&name, &setup))?);
    }
    if let Some(piece) = name.strip_suffix(".out") {
        let lines = json_lines(&text()?);
        if !lines.is_empty() {
            fs::write(folder.join(format!("{piece}.jsonl")), lines)?;
        } else if !from.with_extension("").is_dir() && !from.with_extension("jsonl").exists() {
            // Where there are figures beside it, this is a table of them.
            fs::write(folder.join(format!("{piece}.txt")), text()?)?;
        }
        return Ok(());
    }
    if name.ends_with(".jsonl") || name.ends_with(".toml") {
        fs::copy(from, folder.join(&name))?;
    }
    Ok(())
}

/// The JSON documents of a program's output, one a line; text around them is left out.
fn json_lines(text: &str) -> String {
    let documents = |text: &str| {
        let values = serde_json::Deserializer::from_str(text).into_iter::<serde_json::Value>();
        values.collect::<Result<Vec<_>, _>>().unwrap_or_default()
    };
    let mut found = documents(text);
    if found.is_empty() {
        found = text.lines().filter(|line| line.starts_with('{')).flat_map(documents).collect();
    }
    found.into_iter().map(|value| format!("{value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packs the parts recorded in `release_run/raw`, as the script leaves them: figures of kept runs in the form of today.
    fn pack(raw: &Path, change: impl Fn(&Path)) {
        let recorded = crate::root().join("xtask/src/release_run/raw");
        for part in ["one", "two", "three"] {
            let folder = raw.join(part);
            assert!(Command::new("cp").arg("-r").arg(recorded.join(part)).arg(&folder).status().unwrap().success());
            if part == "one" {
                fs::write(folder.join("encrypt/run.jsonl.gz"), "a log").unwrap();
            }
            change(&folder);
            let mut tar = Command::new("tar");
            tar.arg("-czf").arg(raw.join(format!("{part}.tar.gz"))).arg("-C").arg(&folder).arg(".");
            assert!(tar.status().unwrap().success());
        }
    }

    #[test]
    fn the_parts_of_a_host_become_one_run_and_results_begin_with_best_median_and_worst_over_hosts() {
        let (place, raw) = (tempfile::tempdir().unwrap(), [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()]);
        let root = place.path();
        // `fujii` was ended before it was done.
        pack(raw[0].path(), |folder| {
            if folder.ends_with("three") {
                fs::create_dir_all(folder.join("fujii")).unwrap();
                for (file, text) in [("pairs.csv", "a,b\n"), ("INCOMPLETE.txt", "INCOMPLETE: interrupted")] {
                    fs::write(folder.join("fujii").join(file), text).unwrap();
                }
            }
        });
        // The second host is a little slower where a program offloads.
        pack(raw[1].path(), |folder| {
            let file = folder.join("token-loops.out");
            if let Ok(text) = fs::read_to_string(&file) {
                fs::write(file, text.replace("\"median_us\": 54.894", "\"median_us\": 61.5")).unwrap();
            }
        });
        let name = keep(root, raw[0].path(), "a", false).unwrap();
        assert_eq!(name, "2026-11-29-h100x1-release-a");
        keep(root, raw[1].path(), "b", false).unwrap();
        assert!(
            format!("{:#}", keep(root, raw[1].path(), "b", false).unwrap_err()).contains("runs are never replaced")
        );

        let run = root.join(RUNS).join(&name);
        let read = |file: &str| fs::read_to_string(run.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        let page = read("summary.md");
        assert!(page.contains("\nSource `cuda`, NVIDIA H100 80GB HBM3, commit d24708228877, seed 1"), "{page}");
        assert!(
            page.contains("| A step of a token loop while the same program offloads | plain, us | 38941 | - | - |\n"),
            "{page}"
        );
        assert!(!page.contains("## Missing"), "{page}");
        assert!(read("pieces.csv").contains("\"three\",\"fujii\",\"ended after 120 s\",\"120\","));
        assert!(read("SETUP.md").contains("| hosts | 1 for the parts one, three, two |"));
        assert!(read("encrypt/summary.md").contains("all 297 167 deadlines held [cuda]"));
        for file in ["transfers/rows.csv.gz", "flows/responses.csv", "cho-queues/outcome.json", "arrays.jsonl"] {
            assert!(run.join(file).is_file(), "{file}");
        }
        assert!(!run.join("fujii").exists());
        assert!(!run.join("swap_models.txt").exists(), "a table for people is left out where there are figures");

        let results = claims::page(root).unwrap();
        let release = results.split("\n## ").find(|section| section.starts_with("The release run\n")).unwrap();
        let row = "| [A token loop beside an offload to page-locked memory](#a-token-loop-beside-an-offload-to-page-locked-memory) \
                   | H100 | `--aside`, us | d24708228877 | 2 | 54.9 | 61.5 | 61.5 | at most 60.0 | 1 of 2 | - |\n";
        assert!(release.contains(row), "{release}");
        let row = "| `exec`, times as fast | d24708228877 | 2 | 12.0 | 12.0 | 12.0 | - | - | 10.7 CPUs busy; page-locked memory for both models with the package |\n";
        assert!(release.contains(row), "{release}");
    }

    #[test]
    fn a_missing_figure_is_refused_with_its_piece_and_kept_only_on_request() {
        let (place, raw) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        pack(raw.path(), |folder| {
            if folder.ends_with("one") {
                fs::remove_file(folder.join("shares.out")).unwrap();
                fs::write(folder.join("flows.out"), "{}").unwrap();
                let pieces = fs::read_to_string(folder.join("pieces.tsv")).unwrap();
                fs::write(folder.join("pieces.tsv"), pieces.replace("shares\tok", "shares\texit status 1")).unwrap();
            }
        });
        fs::remove_file(raw.path().join("three.tar.gz")).unwrap();
        let error = format!("{:#}", keep(place.path(), raw.path(), "a", false).unwrap_err());
        for line in [
            "Products of matrices under a share of the multiprocessors: 10 %: piece `shares`: exit status 1",
            "Weights of 2 GB loaded by the Python package: GB/s: piece `loads`: it was not run",
            "Ten flows in both directions, beside bulk copies: missed: piece `flows`: its output has no such figure",
        ] {
            assert!(error.contains(line), "{error}");
        }
        assert!(!error.contains("Two models"), "{error}");
        assert!(!place.path().join(RUNS).exists(), "nothing is kept of a run that is refused");

        let name = keep(place.path(), raw.path(), "a", true).unwrap();
        let page = fs::read_to_string(place.path().join(RUNS).join(name).join("summary.md")).unwrap();
        assert!(page.contains("\n## Missing\n\n- "), "{page}");
    }

    #[test]
    fn parts_of_different_programs_and_gpus_are_not_one_run() {
        for (from, to, said) in [
            ("d24708228877", "c0ffee", "the parts were made by different programs"),
            ("NVIDIA H100 80GB HBM3", "NVIDIA H200", "keep each host by itself"),
            ("NVIDIA H100 80GB HBM3", "an abacus", "two.tar.gz was made on no H100 or H200"),
        ] {
            let (place, raw) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            pack(raw.path(), |folder| {
                if folder.ends_with("two") {
                    let setup = fs::read_to_string(folder.join("setup.tsv")).unwrap();
                    fs::write(folder.join("setup.tsv"), setup.replace(from, to)).unwrap();
                }
            });
            let error = format!("{:#}", keep(place.path(), raw.path(), "a", false).unwrap_err());
            assert!(error.contains(said), "{error}");
        }
    }
}
