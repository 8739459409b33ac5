//! `cargo xtask fuzz`: lets libFuzzer look for inputs that break a promise of a border (`crates/headway-fuzz`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, bail, ensure};

use crate::ci::cargo_command;
use crate::dependencies::TARGET;

/// The crate with the harnesses, its folder with inputs, and its program.
const CRATE: &str = "headway-fuzz";
const CORPUS: &str = "crates/headway-fuzz/corpus";

/// How LLVM marks the code that an input reaches: what `cargo fuzz` asks for.
const COVERAGE: [&str; 8] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
    "-Cdebug-assertions",
];

/// What most of the time of an input is spent in, besides what the workspace optimises for its tests.
const OPTIMISED: [&str; 3] = ["toml", "toml_parser", "headway-trace"];

/// An input takes milliseconds. One that takes so long, or so much memory, is a finding.
const SECONDS_MAX: u32 = 60;
const MEMORY_MAX_MIB: u32 = 2_048;
/// Longest input: a border is crossed by files of kilobytes as well as by large ones.
const BYTES_MAX: usize = 16 << 10;

/// Arguments of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Cross only these borders
    borders: Vec<String>,
    /// Cross each border for SECONDS
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    seconds: u32,
    /// Find errors in the use of memory as well, with the address sanitiser: about half as many inputs a second
    #[arg(long)]
    address: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let root = crate::root();
    let known = names(&root.join(CORPUS))?;
    if let Some(unknown) = args.borders.iter().find(|name| !known.contains(*name)) {
        bail!("there is no border `{unknown}`; use {}", known.into_iter().collect::<Vec<_>>().join(", "));
    }
    let program = build(&root, args.address)?;
    let mut broken = Vec::new();
    for name in known.iter().filter(|name| args.borders.is_empty() || args.borders.contains(name)) {
        println!("== {name}: {} seconds", args.seconds);
        if !cross(&root, &program, name, args.seconds)? {
            broken.push(name.as_str());
        }
    }
    ensure!(broken.is_empty(), "promises do not hold at these borders: {}", broken.join(", "));
    Ok(())
}

/// Borders are the folders of the corpus; a test of the crate compares them with its harnesses.
fn names(corpus: &Path) -> anyhow::Result<BTreeSet<String>> {
    let entries = fs::read_dir(corpus).with_context(|| format!("list {}", corpus.display()))?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Builds the harnesses with libFuzzer, in a folder of their own: their flags would have cargo build everything else anew.
fn build(root: &Path, address: bool) -> anyhow::Result<PathBuf> {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let target = target.join(if address { "fuzz-address" } else { "fuzz" });
    let mut flags = COVERAGE.join(" ");
    let mut command = cargo_command();
    if address {
        flags += " -Zsanitizer=address";
        command.env("RUSTC_BOOTSTRAP", "1");
    }
    command.env("RUSTFLAGS", flags).env("CARGO_TARGET_DIR", &target);
    // With a target, build scripts and macros are built without these flags.
    command.args(["build", "--target", TARGET, "--package", CRATE, "--bin", CRATE]);
    for name in OPTIMISED {
        command.args(["--config".to_owned(), format!("profile.dev.package.{name}.opt-level=1")]);
    }
    let status = command.status().context("start cargo")?;
    ensure!(status.success(), "the harnesses cannot be built");
    Ok(target.join(TARGET).join("debug").join(CRATE))
}

/// Whether every promise held. What was found stays in `target/fuzz-findings`, new inputs beside it.
fn cross(root: &Path, program: &Path, name: &str, seconds: u32) -> anyhow::Result<bool> {
    let kept = root.join(CORPUS).join(name);
    let found = root.join("target/fuzz-findings").join(name);
    let new = root.join("target/fuzz-corpus").join(name);
    for folder in [&found, &new] {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    }
    let words = found.with_extension("words");
    let dictionary = dictionary(&kept)?;
    fs::write(&words, &dictionary).with_context(|| format!("write {}", words.display()))?;
    let mut command = Command::new(program);
    // Threads that still live at the end would count as leaks.
    command.env("ASAN_OPTIONS", "detect_leaks=0");
    command.env("HEADWAY_FUZZ", name).current_dir(root).arg(&new).arg(&kept).args([
        format!("-max_total_time={seconds}"),
        format!("-max_len={BYTES_MAX}"),
        format!("-timeout={SECONDS_MAX}"),
        format!("-rss_limit_mb={MEMORY_MAX_MIB}"),
        format!("-artifact_prefix={}/", found.display()),
        "-detect_leaks=0".to_owned(),
        "-print_final_stats=1".to_owned(),
    ]);
    // libFuzzer refuses one without words, as of inputs that are no text.
    if !dictionary.is_empty() {
        command.arg(format!("-dict={}", words.display()));
    }
    let status = command.status().with_context(|| format!("start {}", program.display()))?;
    if !status.success() {
        println!("the input is in {}; again: cargo run -p {CRATE} {name} FILE", found.display());
    }
    Ok(status.success())
}

/// The words of the inputs, as libFuzzer reads them: it would not find long ones by itself.
fn dictionary(corpus: &Path) -> anyhow::Result<String> {
    let mut words = BTreeSet::new();
    for entry in fs::read_dir(corpus).with_context(|| format!("list {}", corpus.display()))? {
        let bytes = fs::read(entry?.path())?;
        let text = String::from_utf8_lossy(&bytes);
        let parts = text.split(|letter: char| !letter.is_ascii_alphanumeric() && !"_-".contains(letter));
        words.extend(parts.filter(|word| (2..32).contains(&word.len())).map(str::to_owned));
    }
    Ok(words.into_iter().map(|word| format!("\"{word}\"\n")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_the_inputs_are_a_dictionary() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), b"period = \"4 ms\"\n\xff[[gpu]] a period").unwrap();
        assert_eq!(dictionary(folder.path()).unwrap(), "\"gpu\"\n\"ms\"\n\"period\"\n");
    }

    #[test]
    fn every_border_has_inputs() {
        let corpus = crate::root().join(CORPUS);
        let mut bytes = 0;
        for name in names(&corpus).unwrap() {
            let sizes = fs::read_dir(corpus.join(&name)).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
            let sizes: Vec<u64> = sizes.collect();
            assert!(!sizes.is_empty(), "{name}");
            bytes += sizes.iter().sum::<u64>();
        }
        assert!(bytes < 300 << 10, "the corpus has {bytes} bytes: keep fewer, shorter inputs");
    }
}
