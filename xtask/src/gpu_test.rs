//! `cargo xtask gpu-test`: packs the tests that need a GPU, and the program, for a machine that has one but no Rust.

use std::path::Path;
use std::process::Command;
use std::{fs, io};

use anyhow::{Context, ensure};

use crate::ci::cargo_command;
use crate::executables;

/// Folder of the pack, from the root; git ignores it.
const PACK: &str = ".gpu";
/// What a slow line to the GPU machine still carries in seconds.
const PACK_BYTES_MAX: u64 = 60 << 20;
/// Test programs that use a GPU if there is one. Others may need files or tools that the GPU machine does not have.
const GPU_TESTS: &str = "gpu*";
/// What `headway exec` loads into other programs, from beside itself.
const PRELOAD: (&str, &str) = ("headway-preload", "libheadway_preload.so");
/// The crate and the name of the program.
const PROGRAM: (&str, &str) = ("headway-cli", "headway");
/// Runs the pack; needs nothing but bash and the driver.
const RUN: &str = include_str!("gpu_test/run.sh");

/// Arguments of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Crate whose `tests/gpu*.rs` are packed
    #[arg(short, long = "package", default_values = ["headway-cuda"], value_name = "NAME")]
    packages: Vec<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let pack = crate::root().join(PACK);
    let tests_folder = pack.join("tests");
    empty(&tests_folder)?;

    let programs = executables::build(cargo_command().args(["build", "--release", "-p", PROGRAM.0, "-p", PRELOAD.0]))?;
    let program = programs.iter().find(|it| !it.is_test && it.target == PROGRAM.1);
    let program = program.with_context(|| format!("{} builds no program `{}`", PROGRAM.0, PROGRAM.1))?;
    let mut bytes = stripped_copy(&program.path, &pack.join(PROGRAM.1))?;
    bytes += stripped_copy(&program.path.with_file_name(PRELOAD.1), &pack.join(PRELOAD.1))?;

    let mut arguments = vec!["test", "--release", "--no-run", "--test", GPU_TESTS];
    arguments.extend(args.packages.iter().flat_map(|name| ["-p", name]));
    let tests: Vec<_> =
        executables::build(cargo_command().args(arguments))?.into_iter().filter(|it| it.is_test).collect();
    for test in &tests {
        bytes += stripped_copy(&test.path, &tests_folder.join(format!("{}.{}", test.package(), test.target)))?;
    }
    fs::write(pack.join("run.sh"), RUN).context("write run.sh")?;

    ensure!(
        bytes <= PACK_BYTES_MAX,
        "the pack has {} MiB, more than {} MiB; pack fewer crates with `--package`",
        bytes >> 20,
        PACK_BYTES_MAX >> 20
    );
    println!("packed {} test programs and `{}`: {:.1} MiB", tests.len(), PROGRAM.1, bytes as f64 / f64::from(1 << 20));
    println!("carry: {PACK}");
    println!("there: bash {PACK}/run.sh");
    println!("needs: an NVIDIA driver and {} or later; results go to $OUT, or {PACK}/results", glibc());
    Ok(())
}

/// Copies a program without its symbols, and returns the size of the copy in bytes.
fn stripped_copy(from: &Path, to: &Path) -> anyhow::Result<u64> {
    let status = Command::new("strip").arg("-o").arg(to).arg(from).status().context("start strip; install binutils")?;
    ensure!(status.success(), "strip {} failed: {status}", from.display());
    Ok(fs::metadata(to)?.len())
}

fn empty(folder: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).context(format!("empty {}", folder.display()))
        }
        _ => fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display())),
    }
}

/// Name and version of this machine's C library, which the programs are linked against.
fn glibc() -> String {
    let done = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    let name = done.map(|done| String::from_utf8_lossy(&done.stdout).trim().to_owned()).unwrap_or_default();
    if name.is_empty() { "this machine's C library".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The script is run with programs that stand in for the tests.
    #[test]
    fn the_script_runs_every_program_and_reports_failures() {
        let folder = std::env::temp_dir().join(format!("headway-xtask-{}", std::process::id()));
        empty(&folder.join("tests")).unwrap();
        fs::write(folder.join("run.sh"), RUN).unwrap();
        fs::write(folder.join("headway"), "#!/bin/sh\necho \"headway $*\"\n").unwrap();
        fs::write(folder.join("tests/a.good"), "#!/bin/sh\necho \"good $*\"\necho \"skipped a: b\"\n").unwrap();
        fs::write(folder.join("tests/b.bad"), "#!/bin/sh\nexit 101\n").unwrap();
        let script = || {
            let results = folder.join("out");
            Command::new("bash").arg(folder.join("run.sh")).arg("filter").env("OUT", results).output().unwrap()
        };

        let done = script();
        let text = String::from_utf8(done.stdout).unwrap();
        assert_eq!(done.status.code(), Some(1), "{text}");
        assert!(text.contains("1 tests were skipped"), "{text}");
        assert!(text.ends_with("1 of 3 programs failed: b.bad\n"), "{text}");
        assert_eq!(fs::read_to_string(folder.join("out/doctor.txt")).unwrap(), "headway doctor\n");
        let log = fs::read_to_string(folder.join("out/a.good.txt")).unwrap();
        assert_eq!(log, "good --nocapture --test-threads=1 filter\nskipped a: b\n");

        fs::remove_file(folder.join("tests/b.bad")).unwrap();
        assert_eq!(script().status.code(), Some(0));
        fs::remove_dir_all(&folder).unwrap();
    }
}
