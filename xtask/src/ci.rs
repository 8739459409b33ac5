//! `cargo xtask ci`: every check and every test, in steps from cheap to dear. It stops at the first step that fails.

mod programs;
mod python;
mod tools;
mod wheels;

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, iter};

use anyhow::{Context, bail};

use crate::{driver_header, must_succeed, ptx, site, tidy};

/// Arguments of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run only these steps, in the order of the list
    steps: Vec<String>,
    /// List the steps and what each does
    #[arg(long)]
    list: bool,
}

struct Step {
    name: &'static str,
    about: &'static str,
    run: fn() -> anyhow::Result<Outcome>,
}

enum Outcome {
    Passed,
    /// Nothing was checked, because of this.
    Skipped(String),
}

const STEPS: [Step; 14] = [
    Step {
        name: "tools",
        about: "installs the programs that some tests call, or says what will be skipped",
        run: tools,
    },
    Step { name: "fmt", about: "cargo fmt --check", run: || cargo(&["fmt", "--all", "--check"]) },
    Step { name: "tidy", about: "the repository's own rules", run: || tidy::run().map(|()| Outcome::Passed) },
    Step { name: "deny", about: "licences, duplicates, sources and advisories of dependencies", run: deny },
    Step {
        name: "clippy",
        about: "clippy and rustc without warnings",
        run: || cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
    },
    Step { name: "package", about: "every published crate packs, with its licences", run: package },
    Step {
        name: "ptx",
        about: "the committed PTX is what the CUDA sources give",
        run: || with_nvidia(|_| ptx::run(&ptx::Args { check: true })),
    },
    Step {
        name: "header",
        about: "driver functions, structures and numbers are those of NVIDIA's cuda.h",
        run: || with_nvidia(driver_header::check),
    },
    Step { name: "test", about: "every test, but for the unit tests of `headway-core`", run: test },
    Step { name: "test-core", about: "the unit tests of `headway-core`, not optimised", run: test_core },
    Step { name: "test-unchecked", about: "tests of the pure crates without debug assertions", run: test_unchecked },
    Step { name: "python", about: "the Python package: its wheel, types, stubs, tests and pages", run: python::check },
    Step { name: "site", about: "the site builds, and its links lead somewhere", run: site },
    Step { name: "doc", about: "documentation without warnings", run: doc },
];

/// The crate whose unit tests take minutes to build when they are optimised, and a minute to run when they are not.
const CORE: &str = "headway-core";
const CORE_NOT_OPTIMISED: [&str; 2] = ["--config", "profile.test.package.headway-core.opt-level=0"];

/// Crates that are in no registry.
const UNPUBLISHED: [&str; 4] = ["headway-fuzz", "headway-lab", "headway-python", "xtask"];

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if args.list {
        for step in &STEPS {
            println!("{:<16}{}", step.name, step.about);
        }
        return Ok(());
    }
    let steps = chosen(&args.steps)?;
    let mut times = Vec::new();
    for step in steps {
        println!("== {}: {}", step.name, step.about);
        let start = Instant::now();
        let outcome = (step.run)();
        times.push((step.name, start.elapsed()));
        match outcome {
            Ok(Outcome::Passed) => {}
            Ok(Outcome::Skipped(reason)) => println!("skipped: {}: {reason}", step.name),
            Err(error) => {
                print_times(&times);
                let help = format!("`cargo xtask ci {}` runs this step alone", step.name);
                return Err(error).context(format!("step {} failed; {help}", step.name));
            }
        }
    }
    print_times(&times);
    Ok(())
}

fn chosen(names: &[String]) -> anyhow::Result<Vec<&'static Step>> {
    if let Some(unknown) = names.iter().find(|name| !STEPS.iter().any(|step| step.name == name.as_str())) {
        let known: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        bail!("there is no step `{unknown}`; use {}", known.join(", "));
    }
    Ok(STEPS.iter().filter(|step| names.is_empty() || names.iter().any(|name| name == step.name)).collect())
}

fn print_times(times: &[(&str, Duration)]) {
    println!("\nstep             seconds");
    let sum: Duration = times.iter().map(|(_, time)| time).sum();
    for (name, time) in times.iter().copied().chain(iter::once(("all", sum))) {
        println!("{name:<16}{:8.1}", time.as_secs_f64());
    }
}

fn tools() -> anyhow::Result<Outcome> {
    tools::prepare();
    wheels::prepare();
    Ok(Outcome::Passed)
}

/// What `deny.toml` says, by cargo-deny. Whether a dependency has become unsafe to use is known only to a database in the network.
fn deny() -> anyhow::Result<Outcome> {
    let succeeds = |arguments: &[&str]| cargo(arguments).is_ok();
    if !succeeds(&["deny", "--version"]) {
        let without = "duplicates and advisories are not checked, licences and sources by `tidy` only";
        return Ok(Outcome::Skipped(format!(
            "cargo-deny is not installed: {without}; `cargo install cargo-deny --locked`"
        )));
    }
    cargo(&["deny", "check", "bans", "licenses", "sources"])?;
    if !succeeds(&["deny", "fetch", "db"]) {
        println!("skipped: the database of advisories cannot be reached");
        return Ok(Outcome::Passed);
    }
    cargo(&["deny", "check", "advisories"])
}

/// Packs all crates that are published into `target/package`, without building them from there.
fn package() -> anyhow::Result<Outcome> {
    let mut arguments = vec!["package", "--workspace", "--allow-dirty", "--no-verify"];
    arguments.extend(UNPUBLISHED.iter().flat_map(|name| ["--exclude", name]));
    cargo(&arguments)
}

fn site() -> anyhow::Result<Outcome> {
    match site::install() {
        Ok(venv) => site::build(&venv).map(|()| Outcome::Passed),
        Err(error) => Ok(Outcome::Skipped(format!("cannot install what builds the site: {error:#}"))),
    }
}

/// What needs NVIDIA's packages; `check` gets the folder of `cuda.h`.
fn with_nvidia(check: fn(&Path) -> anyhow::Result<()>) -> anyhow::Result<Outcome> {
    match ptx::install() {
        Ok(include) => check(&include).map(|()| Outcome::Passed),
        Err(error) => Ok(Outcome::Skipped(format!("cannot install the CUDA compiler and its header: {error:#}"))),
    }
}

fn test() -> anyhow::Result<Outcome> {
    let mut all = programs::build(cargo_command().args(["test", "--workspace", "--exclude", CORE]))?;
    // With `-p` the crates below would have other features, and without the programs `examples` other profiles: cargo would build the core
    // and what it depends on again.
    let mut again =
        programs::build(cargo_command().args(["test", "--workspace", "--test", "it", "--test", "examples"]))?;
    again.retain(|program| program.package() == CORE);
    all.extend(again);
    programs::run(&all)?;
    cargo(&["test", "--workspace", "--doc"])
}

fn test_core() -> anyhow::Result<Outcome> {
    must_succeed(cargo_command().args(CORE_NOT_OPTIMISED).args(["test", "-p", CORE, "--lib", "--no-fail-fast"]))?;
    Ok(Outcome::Passed)
}

/// The crates whose overflow and order checks could hide behind debug assertions. Only our own crates are built without them, so that
/// the crates below are not built a second time. Here nothing of the core is optimised.
fn test_unchecked() -> anyhow::Result<Outcome> {
    let mut command = cargo_command();
    command.env("CARGO_PROFILE_DEV_DEBUG_ASSERTIONS", "false").env("CARGO_PROFILE_DEV_OVERFLOW_CHECKS", "false");
    command.args(CORE_NOT_OPTIMISED).args(["test", "-p", CORE, "-p", "headway-sim", "--lib", "--test", "*"]);
    let all = programs::build(&mut command)?;
    programs::run(&all).map(|()| Outcome::Passed)
}

fn doc() -> anyhow::Result<Outcome> {
    let mut command = cargo_command();
    let flags = [env::var("RUSTDOCFLAGS").unwrap_or_default(), "-D warnings".to_owned()].join(" ");
    command.args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", flags);
    must_succeed(&mut command)?;
    Ok(Outcome::Passed)
}

fn cargo(arguments: &[&str]) -> anyhow::Result<Outcome> {
    must_succeed(cargo_command().args(arguments))?;
    Ok(Outcome::Passed)
}

/// The cargo that runs us, in the root.
pub(crate) fn cargo_command() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.current_dir(crate::root());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(chosen: anyhow::Result<Vec<&'static Step>>) -> Vec<&'static str> {
        chosen.unwrap().into_iter().map(|step| step.name).collect()
    }

    #[test]
    fn without_names_every_step_runs() {
        assert_eq!(names(chosen(&[])).len(), STEPS.len());
    }

    #[test]
    fn named_steps_run_in_the_order_of_the_list() {
        assert_eq!(names(chosen(&["test".to_owned(), "fmt".to_owned()])), ["fmt", "test"]);
    }

    #[test]
    fn an_unknown_step_is_refused_with_the_known_ones() {
        let error = chosen(&["tests".to_owned()]).err().map(|error| error.to_string()).unwrap();
        assert!(error.contains("`tests`") && error.contains("clippy"), "{error}");
    }
}
