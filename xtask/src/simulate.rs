//! `cargo xtask simulate`: many seeds of the simulation of the broker, or of flows, optimised.

use std::process::Command;

use anyhow::ensure;

use crate::ci::cargo_command;

const BROKER: &str =
    "broker::whatever_fails_no_token_or_engine_is_two_processes_and_whoever_waits_is_served_afterwards";

/// All tests of flows in virtual time.
const FLOWS: &str = "flows::";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seeds, as FROM..TO
    #[arg(long, default_value = "0..200")]
    seeds: String,
    /// Steps of each seed of the broker
    #[arg(long, default_value_t = 20_000)]
    steps: u64,
    /// Simulate flows on copy engines instead of the broker
    #[arg(long)]
    flows: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let commit = Command::new("git").args(["rev-parse", "--short", "HEAD"]).current_dir(crate::root()).output()?;
    let commit = String::from_utf8_lossy(&commit.stdout);
    let steps = if args.flows { String::new() } else { format!(", {} steps each", args.steps) };
    println!("commit {}, seeds {}{steps}", commit.trim(), args.seeds);
    let mut cargo = cargo_command();
    cargo.args(["test", "--release", "-q", "-p", "headway-sim", "--test", "it", "--", "--nocapture"]);
    cargo.args(if args.flows { vec![FLOWS] } else { vec!["--exact", BROKER] });
    let status = cargo.env("HEADWAY_SEEDS", &args.seeds).env("HEADWAY_STEPS", args.steps.to_string()).status()?;
    ensure!(status.success(), "a seed failed; at this commit it fails again");
    Ok(())
}
