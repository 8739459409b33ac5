//! `cargo xtask keep-run`: keeps a recorded run under `bench/runs/` with its set-up and a generated summary.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

use crate::ci::cargo_command;
use crate::run_archive::RUNS;

/// Tables larger than this are kept packed.
const PLAIN_MAX: usize = 64 << 10;

/// Arguments of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder that `bench/record.sh` wrote, or one with `setup.tsv` of `bench/setup.sh` and `bench` of `headway bench`,
    /// `reproduce` of `headway-lab`, or `all` of `headway-lab all --out`
    results: PathBuf,
    /// Name of the run: date, GPU and what was run, for example 2026-11-21-h200x1-encrypt; of `all`, without what was run
    name: String,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let folder = crate::root().join(RUNS).join(&args.name);
    ensure!(!folder.exists(), "{} exists; runs are never replaced: choose another name", folder.display());
    if args.results.join("bench/summary.md").is_file() {
        return keep_figures(args, &args.name, &args.results.join("bench"));
    }
    if args.results.join("reproduce/summary.md").is_file() {
        return keep_figures(args, &args.name, &args.results.join("reproduce"));
    }
    if args.results.join("all").is_dir() {
        return keep_all(args);
    }
    let packed = args.results.join("run.jsonl.gz");
    let mut log = Vec::new();
    let file = File::open(&packed).with_context(|| format!("open {}", packed.display()))?;
    GzDecoder::new(file).read_to_end(&mut log).with_context(|| format!("unpack {}", packed.display()))?;
    let setup = fs::read_to_string(args.results.join("setup.tsv")).context("read setup.tsv")?;

    // The summary is made here, from the log that is kept: whoever reads it can make it again.
    let scratch = crate::root().join("target").join("keep-run.jsonl");
    fs::write(&scratch, &log).context("write the unpacked log")?;
    let log = scratch.to_str().context("the path is not text")?;
    let replayed = if is_of_tasks(&fs::read(&scratch)?) {
        "none, a log of tasks holds spans, not the arbiter's inputs".to_owned()
    } else {
        let (equal, said) = headway(&["replay", log])?;
        ensure!(equal, "the log does not replay; it must not be kept:\n{said}");
        said
    };
    let report = headway(&["report", log])?.1;

    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    fs::copy(&packed, folder.join("run.jsonl.gz")).context("copy the log")?;
    fs::write(folder.join("SETUP.md"), setup_page(&args.name, &setup)).context("write SETUP.md")?;
    fs::write(folder.join("summary.md"), summary_page(&args.name, &replayed, &report)).context("write summary.md")?;
    println!("kept {}", folder.display());
    Ok(())
}

/// Keeps a folder of figures as it was written, beside `setup.tsv`; large tables are packed, plots are left out.
fn keep_figures(args: &Args, name: &str, figures: &Path) -> anyhow::Result<()> {
    let folder = crate::root().join(RUNS).join(name);
    let setup = fs::read_to_string(args.results.join("setup.tsv")).context("read setup.tsv")?;
    copy_figures(figures, &folder)?;
    fs::write(folder.join("SETUP.md"), setup_page(name, &setup)).context("write SETUP.md")?;
    println!("kept {}", folder.display());
    Ok(())
}

/// Copies a folder of figures: large tables are packed, plots are left out.
pub(crate) fn copy_figures(figures: &Path, folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    for entry in fs::read_dir(figures).with_context(|| format!("read {}", figures.display()))? {
        let from = entry?.path();
        let name = from.file_name().context("a file without a name")?.to_string_lossy().into_owned();
        if name.ends_with(".svg") {
            continue;
        }
        let mut content = fs::read(&from).with_context(|| format!("read {}", from.display()))?;
        if name == "summary.md" {
            content = without_pictures(&String::from_utf8(content).context("summary.md is not text")?).into_bytes();
        }
        if name == "rows.csv" || (name.ends_with(".csv") && content.len() > PLAIN_MAX) {
            let file = File::create(folder.join(format!("{name}.gz"))).with_context(|| format!("create {name}.gz"))?;
            let mut packed = GzEncoder::new(file, Compression::best());
            packed.write_all(&content).with_context(|| format!("pack {name}"))?;
            packed.finish().with_context(|| format!("pack {name}"))?;
        } else {
            fs::write(folder.join(&name), content).with_context(|| format!("write {name}"))?;
        }
    }
    Ok(())
}

/// Keeps every experiment of `headway-lab all` as a run of its own.
fn keep_all(args: &Args) -> anyhow::Result<()> {
    let all = args.results.join("all");
    let entries = fs::read_dir(&all).with_context(|| format!("read {}", all.display()))?;
    let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.retain(|name| all.join(name).join("outcome.json").is_file());
    names.sort();
    ensure!(!names.is_empty(), "{} has no folder with an outcome.json", all.display());
    let runs: Vec<(String, String)> = names.into_iter().map(|name| (format!("{}-{name}", args.name), name)).collect();
    for (run, _) in &runs {
        let folder = crate::root().join(RUNS).join(run);
        ensure!(!folder.exists(), "{} exists; runs are never replaced: choose another name", folder.display());
    }
    runs.iter().try_for_each(|(run, name)| keep_figures(args, run, &all.join(name)))
}

/// The page without its pictures, which `headway plot` draws from the tables.
fn without_pictures(page: &str) -> String {
    let is_picture = |line: &&str| line.starts_with("![") && line.ends_with(".svg)");
    if !page.lines().any(|line| is_picture(&line)) {
        return page.to_owned();
    }
    let lines: Vec<&str> = page.lines().filter(|line| !is_picture(line)).collect();
    let text = lines.join("\n");
    format!("{}\n\n`headway plot` draws the columns of the tables here.\n", text.trim_end())
}

/// Whether a log is that of tasks sharing GPUs: its header says so.
fn is_of_tasks(log: &[u8]) -> bool {
    let header = log.split(|&byte| byte == b'\n').next().unwrap_or_default();
    serde_json::from_slice::<serde_json::Value>(header).is_ok_and(|header| header["kind"] == "sharing")
}

/// Runs the command line; whether it said yes, and its output.
fn headway(arguments: &[&str]) -> anyhow::Result<(bool, String)> {
    let mut command = cargo_command();
    command.args(["run", "--quiet", "--release", "-p", "headway-cli", "--"]).args(arguments).env("COLUMNS", "140");
    let done = command.output().with_context(|| format!("start {command:?}"))?;
    ensure!(done.status.code().is_some_and(|code| code < 2), "{}", String::from_utf8_lossy(&done.stderr));
    Ok((done.status.success(), String::from_utf8(done.stdout).context("the report is not text")?))
}

pub(crate) fn setup_page(name: &str, setup: &str) -> String {
    let mut page = format!("# Set-up of {name}\n\n| what | value |\n|---|---|\n");
    for (what, value) in setup.lines().filter_map(|line| line.split_once('\t')) {
        page.push_str(&format!("| {what} | {} |\n", value.replace('|', "\\|")));
    }
    page
}

pub(crate) fn summary_page(name: &str, replayed: &str, report: &str) -> String {
    format!(
        "# {name}\n\nGenerated by `cargo xtask keep-run` from [run.jsonl.gz](run.jsonl.gz) (every input, action and event with its \
         time); set-up in [SETUP.md](SETUP.md). Replay: {}.\n\nResponse times run from a packet's nominal arrival to the \
         moment the driver noticed that its block lies in host memory; those of a task from a job's release to its end. \
         Start-up (buffers, kernel compilation) is excluded; nothing is dropped as a warm-up or an outlier.\n\n```text\n{report}```\n",
        replayed.trim()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_of_tasks_is_known_by_its_header() {
        assert!(is_of_tasks(b"{\"schema\":1,\"kind\":\"sharing\"}\n{}\n"));
        assert!(!is_of_tasks(b"{\"schema\":1}\n{\"kind\":\"sharing\"}\n"));
        assert!(!is_of_tasks(b"no log"));
    }

    #[test]
    fn pictures_are_left_out_of_pages() {
        let page = "# Copies\n\ntext\n\n![time](time-h2d.svg)\n\n![rate](rate.svg)\n";
        assert_eq!(
            without_pictures(page),
            "# Copies\n\ntext\n\n`headway plot` draws the columns of the tables here.\n"
        );
        assert_eq!(without_pictures("text\n"), "text\n");
    }

    #[test]
    fn a_set_up_becomes_a_table() {
        let page = setup_page("x", "date\t2026-11-21\nno tab here\ngpu\t0, NVIDIA | H200\n");
        assert_eq!(
            page,
            "# Set-up of x\n\n| what | value |\n|---|---|\n| date | 2026-11-21 |\n| gpu | 0, NVIDIA \\| H200 |\n"
        );
    }
}
