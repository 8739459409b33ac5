//! `cargo xtask mutants`: changes what a branch touches, one place at a time, and tells which changes no test notices.
//!
//! cargo-mutants makes the changes and runs the tests.

use std::fs;
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::ci::{CORE_NOT_OPTIMISED, cargo_command};

/// Where it works and reports.
const FOLDER: &str = "target/mutants";

/// Arguments of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Change only what differs from this commit or branch
    #[arg(long, default_value = "main")]
    base: String,
    /// List the changes, and make none
    #[arg(long)]
    list: bool,
    /// More options for cargo-mutants, such as `--file src/server.rs`
    #[arg(last = true)]
    options: Vec<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let has_it = cargo_command().args(["mutants", "--version"]).output().is_ok_and(|done| done.status.success());
    ensure!(has_it, "cargo-mutants is not installed; `cargo install cargo-mutants --locked` takes some minutes");
    let folder = crate::root().join(FOLDER);
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let changes = folder.join("changes.diff");
    // From where the branch left the base: what others changed there since is not this branch's.
    let diff = git(&["diff", "--merge-base", &args.base, "--", "*.rs"])?;
    if diff.is_empty() {
        println!("no Rust source differs from `{}`", args.base);
        return Ok(());
    }
    fs::write(&changes, diff).with_context(|| format!("write {}", changes.display()))?;
    let mut command = cargo_command();
    command.arg("mutants").arg("--in-diff").arg(&changes).arg("--output").arg(&folder);
    command.args(CORE_NOT_OPTIMISED.map(|argument| format!("--cargo-arg={argument}")));
    if args.list {
        command.arg("--list");
    }
    let status = command.args(&args.options).status().context("start cargo-mutants")?;
    match status.code() {
        Some(0) => Ok(()),
        Some(2) => bail!("no test noticed some changes: {}/mutants.out/missed.txt lists them", folder.display()),
        Some(3) => bail!("tests of some changes did not end: {}/mutants.out/timeout.txt lists them", folder.display()),
        _ => bail!("cargo-mutants failed: {status}"),
    }
}

/// What git prints.
fn git(arguments: &[&str]) -> anyhow::Result<Vec<u8>> {
    let done = Command::new("git").args(arguments).current_dir(crate::root()).output().context("start git")?;
    ensure!(done.status.success(), "git {} failed: {}", arguments.join(" "), String::from_utf8_lossy(&done.stderr));
    Ok(done.stdout)
}
