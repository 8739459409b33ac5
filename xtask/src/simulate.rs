//! `cargo xtask simulate`: many seeds of the broker's simulation, optimised.

use std::process::Command;

use anyhow::ensure;

use crate::ci::cargo_command;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seeds, as FROM..TO
    #[arg(long, default_value = "0..200")]
    seeds: String,
    /// Steps of each seed
    #[arg(long, default_value_t = 20_000)]
    steps: u64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let steps = args.steps.to_string();
    let arguments = ["run", "--release", "-q", "-p", "headway-sim", "--example", "simulate", "--", &args.seeds, &steps];
    let commit = Command::new("git").args(["rev-parse", "--short", "HEAD"]).current_dir(crate::root()).output()?;
    println!("commit {}, seeds {}, {steps} steps each", String::from_utf8_lossy(&commit.stdout).trim(), args.seeds);
    let status = cargo_command().args(arguments).status()?;
    ensure!(status.success(), "a seed failed; at this commit it fails again");
    Ok(())
}
