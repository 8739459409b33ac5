//! What the repository does to itself: generated files and checks. `cargo xtask --help` lists the commands.

mod capi;
mod ci;
mod claims;
mod dependencies;
mod driver_header;
mod executables;
mod fuzz;
mod gpu_test;
mod json;
mod keep_run;
mod mutants;
mod older_runs;
mod papers;
mod ptx;
mod release_build;
mod release_run;
mod run_archive;
mod sanitize;
mod simulate;
mod site;
mod source;
mod tidy;
mod touches;
mod tree;
mod venv;

use std::env;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};

use anyhow::{Context, ensure};
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "What the repository does to itself: generated files and checks")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build libheadway.so and install it with its header
    Capi(capi::Args),
    /// Run every check and every test
    Ci(ci::Args),
    /// Write bench/results.md from every kept run on GPUs
    Claims(claims::Args),
    /// Write docs/dependencies.md, NOTICE and the list of a release's parts from Cargo.lock
    Dependencies,
    /// Look for inputs that break a promise of a border: files, messages, pages, calls of C
    Fuzz(fuzz::Args),
    /// Pack the GPU tests for a machine that has a GPU
    GpuTest(gpu_test::Args),
    /// Write docs/json.md from the types that are written as JSON
    Json(json::Args),
    /// Keep a recorded run under bench/runs
    KeepRun(keep_run::Args),
    /// Break what a change touches by cargo-mutants, and see whether tests notice
    Mutants(mutants::Args),
    /// Move runs that later ones follow into one archive, and write its index
    OlderRuns,
    /// Write bench/papers.md from every kept run of an experiment
    Papers(papers::Args),
    /// Generate the committed PTX from the CUDA sources
    Ptx(ptx::Args),
    /// Build the programs and libraries of a release, the same bytes everywhere, with their checksums
    ReleaseBuild(release_build::Args),
    /// Make every figure that the pages quote on GPU machines, and keep them
    ReleaseRun(release_run::Args),
    /// Run the suites of crates with unsafe code under a sanitiser
    Sanitize(sanitize::Args),
    /// Run seeds of the broker's simulation: programs that crash, hang and lie, brokers and disks that fail
    Simulate(simulate::Args),
    /// Build the pages and the Python package's docstrings as a site, into target/site
    Site,
    /// Check the repository's own rules
    Tidy,
    /// Print what a change of a source file touches: tests, pages
    Where(touches::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Capi(args) => capi::run(&args),
        Command::Ci(args) => ci::run(&args),
        Command::Claims(args) => claims::run(&args),
        Command::Dependencies => dependencies::run(),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::GpuTest(args) => gpu_test::run(&args),
        Command::Json(args) => json::run(&args),
        Command::KeepRun(args) => keep_run::run(&args),
        Command::Mutants(args) => mutants::run(&args),
        Command::OlderRuns => older_runs::run(),
        Command::Papers(args) => papers::run(&args),
        Command::Ptx(args) => ptx::run(&args),
        Command::ReleaseBuild(args) => release_build::run(&args),
        Command::ReleaseRun(args) => release_run::run(&args),
        Command::Sanitize(args) => sanitize::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Site => site::install().and_then(|venv| site::build(&venv)),
        Command::Tidy => tidy::run(),
        Command::Where(args) => touches::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Where builds go.
fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The workspace's root folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the workspace").to_path_buf()
}

/// Runs a program; one that fails is an error.
fn must_succeed(command: &mut process::Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("start {command:?}"))?;
    ensure!(status.success(), "{command:?} failed: {status}");
    Ok(())
}
