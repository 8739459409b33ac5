//! `cargo xtask sanitize`: the suites of the crates with unsafe code, built so that the compiler's run-time checks see every access.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, ensure};
use clap::ValueEnum;

use crate::ci::cargo_command;
use crate::dependencies::TARGET;

/// Which accesses are errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sanitizer {
    /// Of memory that is not there any more, or beside what was allocated
    Address,
    /// Of one place by two threads that nothing orders
    Thread,
}

/// Arguments of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    sanitizer: Sanitizer,
    /// Run only the suites of these crates
    crates: Vec<String>,
}

/// Tests of one crate.
struct Suite {
    package: &'static str,
    /// What of it runs.
    arguments: &'static [&'static str],
    /// What of the crate does not run, and why.
    left_out: &'static str,
}

const SUITES: [Suite; 5] = [
    Suite { package: "headway-os", arguments: &["--lib"], left_out: "" },
    Suite { package: "headway-device", arguments: &["--lib", "--tests"], left_out: "" },
    Suite {
        package: "headway-broker",
        arguments: &["--lib", "--test", "it", "--test", "exclusion", "--test", "place"],
        left_out: "`crash`, which measures waits of processes that a sanitiser makes several times as slow",
    },
    Suite {
        package: "headway-preload",
        arguments: &["--lib"],
        left_out: "guests: a program without the sanitiser's runtime cannot load a library that needs it",
    },
    Suite {
        package: "headway-fuzz",
        arguments: &["--test", "it", "calls_of_c"],
        left_out: "the C examples of `headway-capi`, programs without the sanitiser's runtime; its calls run as a border",
    },
];

/// Tests in which loom switches stacks, of which the thread sanitiser is not told: it then waits for ever. Loom itself checks these.
const LOOM_TESTS: &str = "protocol::model_tests";

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let known: Vec<&str> = SUITES.iter().map(|suite| suite.package).collect();
    for name in &args.crates {
        ensure!(known.contains(&name.as_str()), "`{name}` has no suite here; use {}", known.join(", "));
    }
    println!(
        "not checked: undefined behaviour; rustc has no sanitiser for it, and Miri cannot run what these crates ask of the system"
    );
    let mut failed = Vec::new();
    for suite in SUITES.iter().filter(|it| args.crates.is_empty() || args.crates.iter().any(|name| name == it.package))
    {
        println!("== {}", suite.package);
        if !suite.left_out.is_empty() {
            println!("skipped: {}", suite.left_out);
        }
        let start = Instant::now();
        let passed = test(args.sanitizer, suite)?;
        println!("{} {}: {} s", if passed { "passed" } else { "FAILED" }, suite.package, start.elapsed().as_secs());
        if !passed {
            failed.push(suite.package);
        }
    }
    ensure!(failed.is_empty(), "these suites failed: {}", failed.join(", "));
    Ok(())
}

fn test(sanitizer: Sanitizer, suite: &Suite) -> anyhow::Result<bool> {
    let root = crate::root();
    let (flags, target) = match sanitizer {
        Sanitizer::Address => ("-Zsanitizer=address", "target/sanitize-address"),
        Sanitizer::Thread => ("-Zsanitizer=thread", "target/sanitize-thread"),
    };
    let mut command: Command = cargo_command();
    command
        .args(["test", "--no-fail-fast", "--target", TARGET, "--package", suite.package])
        // Without it each suite builds the crates below it anew, with the features that it alone asks for.
        .args(["-Zfeature-unification", "--config", "resolver.feature-unification='workspace'"])
        .args(suite.arguments);
    if sanitizer == Sanitizer::Thread {
        // The toolchain's standard library has no such checks, so that the order that its locks, channels and reference counts make is not seen.
        command.arg("-Zbuild-std");
        command.args(["--", "--skip", LOOM_TESTS]);
    }
    let suppressions = root.join("crates/headway-fuzz/tests/thread.supp");
    command
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", flags)
        .env("CARGO_TARGET_DIR", root.join(target))
        // What a process has not freed or joined when it ends is no error of its. The borders do not limit memory where these are set.
        .env("ASAN_OPTIONS", "detect_leaks=0")
        // Tests that fork start threads in the child, which has none of the parent's.
        .env("TSAN_OPTIONS", format!("report_thread_leaks=0:die_after_fork=0:suppressions={}", suppressions.display()))
        // Of the borders.
        .env("HEADWAY_MUTATIONS", "200");
    Ok(command.status().context("start cargo")?.success())
}
