//! CUDA runtimes of the Python package index for headway-preload's tests, into `target/wheels`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;

use crate::venv::succeeds;

const WITHOUT: &str = "CUDA runtimes are not run as guests";

/// Gets them unless they are there; prints what is not checked without them.
pub(super) fn prepare() {
    match install() {
        Ok(folder) => println!("found CUDA runtimes in {}", folder.display()),
        Err(error) => println!("skipped: {WITHOUT}: {error:#}"),
    }
}

fn install() -> anyhow::Result<PathBuf> {
    let root = crate::root();
    let target = crate::target();
    let (folder, venv) = (target.join("wheels"), target.join("wheels-venv"));
    let requirements = root.join("xtask/wheels-requirements.txt");
    let wanted = fs::read_to_string(&requirements).context("read xtask/wheels-requirements.txt")?;
    let stamp = folder.join("installed.txt");
    if fs::read_to_string(&stamp).ok().as_ref() == Some(&wanted) {
        return Ok(folder);
    }
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    succeeds(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile"];
    let mut command = Command::new(venv.join("bin/python"));
    command.args(pip).args(["--only-binary=:all:", "--require-hashes", "--target"]).arg(&folder).arg("-r");
    succeeds(command.arg(&requirements))?;
    fs::write(&stamp, &wanted).with_context(|| format!("write {}", stamp.display()))?;
    Ok(folder)
}
