//! Flows on copy engines in virtual time: no job that was admitted takes longer than promised, unless an assumption breaks, and then the job
//! says which. CI runs some 1,000 sets of flows; `cargo xtask simulate --flows` runs more.

mod audit;
mod world;

use std::env;
use std::ops::Range;

use world::{FlowRun, InjectedFault, simulate};

/// Seeds where the environment asks for no others: `HEADWAY_SEEDS=0..100000`.
const SEEDS: Range<u64> = 0..100;

fn seeds() -> Range<u64> {
    env::var("HEADWAY_SEEDS").map_or(SEEDS, |text| {
        let ends = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
        ends.expect("HEADWAY_SEEDS is FIRST..END")
    })
}

/// Runs all seeds; their figures together.
fn run(seeds: Range<u64>, fault: Option<InjectedFault>) -> FlowRun {
    let (mut all, mut violations) = (FlowRun::default(), Vec::new());
    for seed in seeds {
        match simulate(seed, fault) {
            Ok(run) => all.add(&run),
            Err(violation) => violations.push(violation),
        }
    }
    println!("{fault:?}: {all:?}");
    let first: Vec<&String> = violations.iter().take(20).collect();
    assert!(violations.is_empty(), "{} seeds failed:\n{first:#?}", violations.len());
    all
}

#[test]
fn no_job_that_was_admitted_exceeds_its_bound_and_nothing_starves() {
    let all = run(seeds(), None);
    let FlowRun { jobs, unpromised, refused, closed, joined_later, urgent, held, returned, .. } = all;
    let counts = [jobs, unpromised, refused, closed, joined_later, urgent, held, returned];
    assert!(counts.iter().all(|count| *count > 0), "it was no quiet time: {all:?}");
    assert!(all.fullest_ppm > 900_000, "bounds are not met by far: {all:?}");
    assert_eq!(all.beyond, 0);
}

#[test]
fn every_job_beyond_its_bound_names_the_assumption_that_broke() {
    let seeds = seeds();
    let part = (seeds.end - seeds.start).div_ceil(4);
    for fault in InjectedFault::ALL {
        let all = run(seeds.start..seeds.start + part, Some(fault));
        assert!(all.faults > 0 && all.beyond > 0, "{fault:?} did no harm: {all:?}");
    }
}

#[test]
fn a_seed_gives_the_same_run_again() {
    assert_eq!(simulate(5, None), simulate(5, None));
    assert_ne!(simulate(5, None), simulate(6, None));
}
