//! The Python package: built as users build it, checked by type checkers and by its own tests.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, ensure};

use super::Outcome;
use crate::{must_succeed, venv};

/// Builds the wheel from what the other steps have built, installs it and checks it.
pub(super) fn check() -> anyhow::Result<Outcome> {
    let root = crate::root();
    let target = crate::target();
    let venv = match venv::install("python-venv", "python/requirements-ci.txt", &["--only-binary=:all:"]) {
        Ok(venv) => venv,
        Err(error) => {
            return Ok(Outcome::Skipped(format!("cannot install what builds and checks the package: {error:#}")));
        }
    };
    let (package, wheels, stubs) = (root.join("python"), target.join("python-wheels"), target.join("python-stubs"));
    for folder in [&wheels, &stubs] {
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| format!("remove {}", folder.display()))?;
        }
    }
    let run = |program: &str, arguments: &[&str]| must_succeed(command(&venv, program, &package).args(arguments));
    let text = |path: &Path| path.display().to_string();
    let quiet = ["--quiet", "--disable-pip-version-check", "--no-deps"];
    let build = ["--no-build-isolation", "-C", "build-args=--profile dev", "--wheel-dir"];
    run("pip", &[&["wheel"], &quiet[..], &build[..], &[text(&wheels).as_str(), "."]].concat())?;
    let mut built = fs::read_dir(&wheels)?.map(|entry| Ok(text(&entry?.path()))).collect::<anyhow::Result<Vec<_>>>()?;
    ensure!(built.len() == 1, "one wheel was to be built, and there are {}", built.len());
    let wheel = built.remove(0);
    run("pip", &[&["install"], &quiet[..], &["--force-reinstall", wheel.as_str()]].concat())?;
    run("maturin", &["generate-stubs", "--quiet", "--profile", "dev", "--out", text(&stubs).as_str()])?;
    let (made, committed) = (stubs.join("headway/_native.pyi"), package.join("headway/_native.pyi"));
    ensure!(
        fs::read(&made).context("read the stubs")? == fs::read(&committed).unwrap_or_default(),
        "python/headway/_native.pyi is not what the native module gives, use `cp {} {}`",
        made.display(),
        committed.display()
    );
    run("auditwheel", &["show", wheel.as_str()])?;
    run("abi3audit", &["--strict", wheel.as_str()])?;
    run("mypy", &["--strict", "headway", "tests"])?;
    // Its program comes from another index, which may be out of reach.
    if must_succeed(command(&venv, "pyright", &package).arg("--version")).is_ok() {
        run("pyright", &["headway", "tests"])?;
    } else {
        println!("skipped: pyright cannot be installed");
    }
    if !has_torch(&venv) {
        println!("skipped: PyTorch for CPUs cannot be installed, and the tests with it are left out");
    }
    run("pytest", &[])?;
    Ok(Outcome::Passed)
}

/// Whether PyTorch is in `venv`, or can be installed there: its build for CPUs comes from an index of its own, which may be out of reach.
fn has_torch(venv: &Path) -> bool {
    let python = |arguments: &[&str]| must_succeed(Command::new(venv.join("bin/python")).args(arguments)).is_ok();
    let index = ["--index-url", "https://download.pytorch.org/whl/cpu", "--retries", "0", "torch==2.11.0"];
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"];
    python(&["-c", "import torch"]) || python(&[&install[..], &index].concat())
}

/// A program of `venv`, whose programs come first, in the folder of the package.
fn command(venv: &Path, program: &str, package: &Path) -> Command {
    let folder = venv.join("bin");
    let mut command = Command::new(folder.join(program));
    let before = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([folder].into_iter().chain(env::split_paths(&before))).unwrap_or(before);
    command.current_dir(package).env("PATH", path).env_remove("PYTHONPATH");
    command
}
