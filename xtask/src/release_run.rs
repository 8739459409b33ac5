//! `cargo xtask release-run`: every figure that README and results quote, made on one commit by one script on GPU machines, and kept as
//! one run for each host.

mod keep;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::ci::cargo_command;
use crate::executables;
use crate::gpu_test::{PACK_BYTES_MAX, PRELOAD, PROGRAM, WORKLOADS, empty, glibc, stripped_copy};
use crate::tree::Tree;

/// Makes the figures on the GPU machine; needs no Rust.
const RUN: &str = include_str!("release_run/run.sh");
const LAB: &str = "headway-lab";
/// For C and C++, as cargo names it and as programs do.
const C_LIBRARY: (&str, &str) = ("libheadway_capi.so", "libheadway.so");
/// What the script starts, from the root.
const BENCH: [&str; 6] =
    ["bench/demos/", "bench/guests/", "bench/python/", "bench/main_job.py", "bench/record.sh", "bench/setup.sh"];

/// Arguments of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    step: Step,
}

#[derive(clap::Subcommand)]
enum Step {
    /// Pack what the GPU machine needs: programs, libraries, the Python package, scripts
    Pack {
        /// Folder for the pack; what it has is replaced
        folder: PathBuf,
    },
    /// Keep what one host gave as one run under bench/runs
    Keep(keep::Args),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.step {
        Step::Pack { folder } => pack(&crate::root(), folder),
        Step::Keep(args) => keep::run(args),
    }
}

fn pack(root: &Path, folder: &Path) -> anyhow::Result<()> {
    empty(folder)?;
    let mut bytes = match wheel(root, folder) {
        Ok(bytes) => bytes,
        Err(error) => {
            println!("not packed: the Python package, and what calls it fails there: {error:#}");
            0
        }
    };
    let mut build = cargo_command();
    build.args(["build", "--release", "-p", PROGRAM.0, "-p", PRELOAD.0, "-p", LAB, "-p", "headway-capi"]);
    let programs = executables::build(&mut build)?;
    for name in [PROGRAM.1, LAB] {
        let program = programs.iter().find(|it| !it.is_test && it.target == name);
        let program = program.with_context(|| format!("no package builds a program `{name}`"))?;
        bytes += stripped_copy(&program.path, &folder.join(name))?;
        if name == PROGRAM.1 {
            for (built, name) in [(PRELOAD.1, PRELOAD.1), C_LIBRARY] {
                bytes += stripped_copy(&program.path.with_file_name(built), &folder.join(name))?;
            }
        }
    }
    let is_packed = |path: &&str| path.starts_with(WORKLOADS) || BENCH.iter().any(|it| path.starts_with(it));
    for path in Tree::read(root)?.paths().filter(is_packed) {
        let to = folder.join(path);
        fs::create_dir_all(to.parent().unwrap_or(folder)).with_context(|| format!("create {}", to.display()))?;
        bytes += fs::copy(root.join(path), to).with_context(|| format!("pack {path}"))?;
    }
    fs::write(folder.join("run.sh"), RUN).context("write run.sh")?;
    ensure!(bytes <= PACK_BYTES_MAX, "the pack has {} MiB, more than {} MiB", bytes >> 20, PACK_BYTES_MAX >> 20);
    let shown = folder.display();
    println!("packed {:.1} MiB into {shown}", bytes as f64 / f64::from(1 << 20));
    println!(
        "there, with one GPU: bash {shown}/run.sh PART $OUT, for the parts one, two, three; with two GPUs: two-gpus"
    );
    println!("then here, for each host: cargo xtask release-run keep FOLDER --host NAME");
    println!("needs: an NVIDIA driver, {} or later; Python with PyTorch; for part two also CuPy and JAX", glibc());
    Ok(())
}

/// Builds the Python package into `folder`; its size in bytes.
fn wheel(root: &Path, folder: &Path) -> anyhow::Result<u64> {
    let mut command = Command::new("python3");
    command.args(["-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--wheel-dir"]);
    let done = command.arg(folder).arg(root.join("python")).output().with_context(|| format!("start {command:?}"))?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "{command:?}: {}", said.trim().lines().last().unwrap_or_default());
    let is_wheel = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "whl");
    let built = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path())).find(is_wheel);
    Ok(fs::metadata(built.context("pip left no wheel")?)?.len())
}
