//! The broker among programs that crash, hang and lie: a few seeds of what `cargo xtask simulate` runs by thousands.

use headway_sim::broker::{BrokerRun, simulate};

const SEEDS: u64 = 24;
const STEPS: u64 = 10_000;

#[test]
fn whatever_fails_no_token_or_engine_is_two_processes_and_whoever_waits_is_served_afterwards() {
    let mut all = BrokerRun::default();
    for seed in 0..SEEDS {
        all.add(&simulate(seed, STEPS).unwrap_or_else(|violation| panic!("{violation}")));
    }
    // It was no quiet time.
    let BrokerRun { tokens, engines, killed, cut, restarts, resumed, lost, replayed, .. } = all;
    let counts = [tokens, engines, killed, cut, restarts, resumed, lost, replayed];
    assert!(counts.iter().all(|count| *count > 0), "{all:?}");
}

#[test]
fn a_seed_gives_the_same_run_again() {
    assert_eq!(simulate(5, 2_000), simulate(5, 2_000));
    assert_ne!(simulate(5, 2_000), simulate(6, 2_000));
}
