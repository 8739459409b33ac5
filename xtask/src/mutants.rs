//! `cargo xtask mutants`: has cargo-mutants break what a change touches, and see whether a test notices.

use std::num::NonZero;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::thread::available_parallelism;
use std::{env, fs};

use anyhow::{Context, ensure};

use crate::ci::cargo_command;

/// The version that the settings in `.cargo/mutants.toml` are written for.
const VERSION: &str = "27.1.0";

/// What a change is compared with, the first that git knows.
const BASES: [&str; 3] = ["origin/main", "main", "HEAD~1"];

/// Builds and tests use several CPUs each; a job's build takes gigabytes of disk.
const CPUS_PER_JOB: usize = 4;
const JOBS_MAX: usize = 4;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Break what has changed since the working tree left REV, committed or not; a new file counts after `git add`. Without this option, REV is origin/main, or main where there is none, or HEAD~1
    #[arg(long, value_name = "REV")]
    base: Option<String>,
    /// Options of cargo-mutants, as `-- --list` or `-- --package headway-core`
    #[arg(last = true)]
    options: Vec<String>,
}

/// Ends as cargo-mutants does: 0 = all were noticed, 2 = some were not, 3 = some ran too long, 4 = the tests fail without any.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let installed = cargo_command().args(["mutants", "--version"]).output().context("start cargo")?;
    let install = format!("cargo install --locked cargo-mutants --version {VERSION}");
    ensure!(installed.status.success(), "cargo-mutants is not installed; `{install}`");
    let base =
        args.base.as_deref().or_else(|| BASES.into_iter().find(|base| git(&["rev-parse", "--verify", base]).is_ok()));
    let base = base.context("git knows none of origin/main, main and HEAD~1, use `--base`")?;
    let prefixes = ["--src-prefix=a/", "--dst-prefix=b/"];
    let change = git(&[&["diff", "--no-ext-diff", "--merge-base"], &prefixes[..], &[base]].concat())?;
    ensure!(!change.is_empty(), "nothing has changed since {base}, use an earlier commit as `--base`");
    let folder = crate::target().join("mutants");
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let diff = folder.join("change.diff");
    fs::write(&diff, change).with_context(|| format!("write {}", diff.display()))?;
    let mut cargo = cargo_command();
    // Each job has a copy of the tree that it builds in, and several would wait for each other in one folder.
    cargo.env_remove("CARGO_TARGET_DIR");
    if env::var_os("CARGO_MUTANTS_JOBS").is_none() {
        let cpus = available_parallelism().map_or(1, NonZero::get);
        cargo.env("CARGO_MUTANTS_JOBS", (cpus / CPUS_PER_JOB).clamp(1, JOBS_MAX).to_string());
    }
    // Without it only the default members have mutants. `--package` is stronger.
    cargo.args(["mutants", "--workspace", "--in-diff"]).arg(diff).arg("--output").arg(folder).args(&args.options);
    Err(cargo.exec()).context("start cargo")
}

/// What git prints.
fn git(arguments: &[&str]) -> anyhow::Result<Vec<u8>> {
    let done = Command::new("git").args(arguments).current_dir(crate::root()).output().context("start git")?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "git {} failed: {}", arguments.join(" "), said.trim());
    Ok(done.stdout)
}
