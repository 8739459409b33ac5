//! `cargo xtask simulate`: many seeds of the broker's simulation, optimised.

use std::process::Command;

use anyhow::ensure;

use crate::ci::cargo_command;

const TEST: &str = "broker::whatever_fails_no_token_or_engine_is_two_processes_and_whoever_waits_is_served_afterwards";

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
    let commit = Command::new("git").args(["rev-parse", "--short", "HEAD"]).current_dir(crate::root()).output()?;
    let commit = String::from_utf8_lossy(&commit.stdout);
    println!("commit {}, seeds {}, {} steps each", commit.trim(), args.seeds, args.steps);
    let mut cargo = cargo_command();
    cargo.args(["test", "--release", "-q", "-p", "headway-sim", "--test", "it", "--", "--exact", TEST, "--nocapture"]);
    let status = cargo.env("HEADWAY_SEEDS", &args.seeds).env("HEADWAY_STEPS", args.steps.to_string()).status()?;
    ensure!(status.success(), "a seed failed; at this commit it fails again");
    Ok(())
}
