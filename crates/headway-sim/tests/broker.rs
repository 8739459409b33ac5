//! The broker among programs that crash, hang and lie. CI runs a few seeds; `cargo xtask simulate` runs thousands.

mod simulation;

use std::env;
use std::ops::Range;

use simulation::{BrokerRun, simulate};

/// Seeds and steps of each where the environment asks for no others: `HEADWAY_SEEDS=0..1000 HEADWAY_STEPS=20000`.
const SEEDS: Range<u64> = 0..24;
const STEPS: u64 = 10_000;

fn asked() -> (Range<u64>, u64) {
    let seeds = env::var("HEADWAY_SEEDS").map_or(SEEDS, |text| {
        let ends = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
        ends.expect("HEADWAY_SEEDS is FIRST..END")
    });
    let steps = env::var("HEADWAY_STEPS").map_or(STEPS, |text| text.parse().expect("HEADWAY_STEPS is a number"));
    (seeds, steps)
}

#[test]
fn whatever_fails_no_token_or_engine_is_two_processes_and_whoever_waits_is_served_afterwards() {
    let (seeds, steps) = asked();
    let (mut all, mut violations) = (BrokerRun::default(), Vec::new());
    for seed in seeds.clone() {
        match simulate(seed, steps) {
            Ok(run) => all.add(&run),
            Err(violation) => violations.push(violation.to_string()),
        }
    }
    println!("{all:?}");
    assert!(violations.is_empty(), "{} seeds failed:\n{}", violations.len(), violations.join("\n"));
    if seeds == SEEDS {
        // It was no quiet time.
        let BrokerRun { tokens, engines, killed, cut, restarts, resumed, lost, replayed, .. } = all;
        let counts = [tokens, engines, killed, cut, restarts, resumed, lost, replayed];
        assert!(counts.iter().all(|count| *count > 0), "{all:?}");
    }
}

#[test]
fn a_seed_gives_the_same_run_again() {
    assert_eq!(simulate(5, 2_000), simulate(5, 2_000));
    assert_ne!(simulate(5, 2_000), simulate(6, 2_000));
}
