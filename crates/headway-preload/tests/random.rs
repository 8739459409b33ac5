//! Random programs print the same and end in the same way with Headway and without: the promise "unmodified".
//!
//! The programs copy on a driver that keeps the order of streams, and have no races: `random/random.c` says what they do.

mod support;

use std::ops::Range;
use std::process::Output;
use std::sync::LazyLock;

use headway_core::files::guest_log;
use support::{Built, as_guest, seen};

static BUILT: LazyLock<Option<Built>> = LazyLock::new(|| {
    let built = Built::new()?;
    built.compile("random", &["random/random.c"], &["-ldl", "-lpthread"]);
    Some(built)
});

/// How programs are run. Those of a test see a third of it each; on demand, all.
const OPTIONS: [&str; 20] = [
    "aside=never,alone,no-cache",
    "aside=never,fast=always,alone,no-cache",
    "aside=never,fast=always,verify,alone,no-cache",
    "aside=auto,alone,no-cache",
    "aside=auto,fast=always,verify,alone,no-cache",
    "aside=always,alone,no-cache",
    "aside=always,fast=always,verify,alone,no-cache",
    "aside=never,chunk=65536,alone,no-cache",
    "aside=never,chunk=1048576,fast=always,verify,stats,alone,no-cache",
    "aside=auto,chunk=1048576,fast=always,alone,no-cache",
    "aside=always,chunk=65536,fast=always,stats,lint,verify,alone,no-cache",
    "aside=never,fast,lint,alone,no-cache",
    "aside=always,chunk=65536,flow=bulk,fast=always,verify,alone,no-cache",
    "aside=auto,flow=bulk,no-cache",
    "aside=auto,chunk=65536,flow=normal,fast=always,alone,no-cache",
    "aside=never,fast=always,pin-once=1073741824,verify,alone,no-cache",
    "aside=auto,chunk=1048576,fast=always,pin-once=33554432,alone,no-cache",
    "aside=never,depth=1,alone,no-cache",
    "aside=auto,chunk=65536,fast=always,depth=1,stats,no-cache",
    "aside=always,chunk=65536,fast=always,verify,depth=3,alone,no-cache",
];
const VERSIONS: [&str; 5] = ["12000", "12080", "13000", "13010", "13020"];
/// Programs that a test runs in CI. Others: `HEADWAY_PROGRAMS=1000..2000`, or one again: `HEADWAY_PROGRAMS=7..8`.
const PROGRAMS: Range<u64> = 0..48;

fn programs() -> (Range<u64>, bool) {
    let Ok(text) = std::env::var("HEADWAY_PROGRAMS") else { return (PROGRAMS, false) };
    let ends = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    (ends.expect("HEADWAY_PROGRAMS is FIRST..END"), true)
}

fn run(built: &Built, seed: u64, options: Option<&str>, log: bool) -> Output {
    let mut program = built.program(built.path("random"));
    program.arg(seed.to_string()).env("FAKE_VERSION", VERSIONS[(seed % VERSIONS.len() as u64) as usize]);
    if let Some(options) = options {
        as_guest(&mut program, options);
    }
    if log {
        program.env(guest_log::VARIABLE, built.path("log-%p"));
    }
    program.output().unwrap()
}

/// Runs a program plain and as a guest with each of the options.
fn compare<'a>(seed: u64, options: impl Iterator<Item = &'a str>) {
    let Some(built) = BUILT.as_ref() else { return };
    let plain = seen(&run(built, seed, None, false));
    let again = format!("again: HEADWAY_PROGRAMS={seed}..{} cargo test -p headway-preload --test random", seed + 1);
    let wrong = |text: &str| ["WRONG", "UNEXPECTED"].iter().any(|word| text.contains(word));
    assert!(plain.0 == "exit status: 0" && !wrong(&plain.1), "the program itself is wrong, {again}\n{plain:?}");
    for (at, options) in options.enumerate() {
        let output = run(built, seed, Some(options), at % 4 == 1);
        let (guest, errors) = (seen(&output), String::from_utf8_lossy(&output.stderr));
        let differs = plain.1.lines().zip(guest.1.lines()).enumerate().find(|(_, (plain, guest))| plain != guest);
        assert_eq!(guest.0, plain.0, "program {seed} with {options}: {differs:?}, {errors}; {again}");
        assert!(
            guest.1 == plain.1,
            "program {seed} with {options}: line, plain, guest: {differs:?}; {errors}; {again}"
        );
        assert!(!errors.contains("WRONG"), "program {seed} with {options}: {errors}; {again}");
    }
}

/// Every second program, from this one on. Two tests, so that two CPUs share the work.
fn every_second(first: usize) {
    let (programs, is_asked) = programs();
    for seed in programs.skip(first).step_by(2) {
        // A third of the options with each program, and all with three programs one after the other.
        let some = OPTIONS.iter().enumerate().filter(|(at, _)| is_asked || (*at as u64 + seed / 2).is_multiple_of(3));
        compare(seed, some.map(|(_, options)| *options));
    }
}

#[test]
fn one_half_of_random_programs_is_as_it_is_without_headway() {
    every_second(0);
}

#[test]
fn the_other_half_of_random_programs_is_as_it_is_without_headway() {
    every_second(1);
}
