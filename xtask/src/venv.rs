//! Programs of the Python package index, in virtual environments below the target folder.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, ensure};

/// Installs what the file `requirements` names into the environment `name`, unless it is there; returns the environment's folder.
pub(crate) fn install(name: &str, requirements: &str, options: &[&str]) -> anyhow::Result<PathBuf> {
    let (venv, file) = (crate::target().join(name), crate::root().join(requirements));
    let wanted = fs::read_to_string(&file).with_context(|| format!("read {requirements}"))?;
    let stamp = venv.join("installed.txt");
    if fs::read_to_string(&stamp).ok().as_ref() == Some(&wanted) {
        return Ok(venv);
    }
    eprintln!("installing {requirements} into {}", venv.display());
    succeeds(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    succeeds(Command::new(venv.join("bin/python")).args(pip).args(options).arg("-r").arg(&file))?;
    fs::write(&stamp, &wanted).with_context(|| format!("write {}", stamp.display()))?;
    Ok(venv)
}

/// Runs `command`; what it prints is left out, but for the last line of its error.
pub(crate) fn succeeds(command: &mut Command) -> anyhow::Result<()> {
    let done = command.output().with_context(|| format!("start {command:?}"))?;
    let error = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "{command:?}: {}", error.lines().last().unwrap_or_default());
    Ok(())
}
