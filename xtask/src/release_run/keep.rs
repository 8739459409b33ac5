//! `cargo xtask release-run keep`: what the script left of one host becomes one run under `bench/runs`.
//!
//! Every benchmark and experiment with tables of its own is a folder of the run, in the form that kept runs have by themselves. What programs
//! printed lies beside `summary.md` as lines of JSON.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::run_archive::{self, RUNS};
use crate::{claims, keep_run};

/// Arguments of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder with the archives that the parts left of one host
    raw: PathBuf,
    /// A word for the host: the run's name ends with it
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
        let status = command.status().with_context(|| format!("start {command:?}"))?;
        ensure!(status.success(), "{command:?} failed: {status}");
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
        of.map_or("it was not run".to_owned(), |it| it.result.clone())
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
        return Ok(match lines.is_empty() {
            false => fs::write(folder.join(format!("{piece}.jsonl")), lines)?,
            // Tables for people, where there are figures beside them.
            true if from.with_extension("").is_dir() || from.with_extension("jsonl").exists() => (),
            true => fs::write(folder.join(format!("{piece}.txt")), text()?)?,
        });
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
