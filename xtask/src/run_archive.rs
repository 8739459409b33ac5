//! Where kept runs lie: those of today in folders, older ones in an archive.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::must_succeed;

pub(crate) const RUNS: &str = "bench/runs";
pub(crate) const ARCHIVE: &str = "bench/older-runs.tar.gz";
/// What the archive has.
pub(crate) const INDEX: &str = "bench/older-runs.md";

/// A run among those of one kind.
pub(crate) struct Rival {
    pub(crate) run: String,
    /// Of the program.
    pub(crate) commit: String,
    pub(crate) is_complete: bool,
}

/// What the name of a release run has behind the kind of machine.
const RELEASE: &str = "-release-";

/// Name of the release run of a host; `kind` is GPU and number of GPUs, as `h100x1`.
pub(crate) fn release(date: &str, kind: &str, host: &str) -> String {
    format!("{date}-{kind}{RELEASE}{host}")
}

/// Whether a run is a release run, or a folder of one, as `2026-11-29-h100x1-release-a/flows`.
pub(crate) fn is_release(run: &str) -> bool {
    run.contains(RELEASE)
}

/// The later of two release runs has the greater one: the date, then the letters, whatever the kind of machine.
pub(crate) fn release_order(run: &str) -> Option<(&str, usize, &str)> {
    let (before, host) = top(run).split_once(RELEASE)?;
    Some((before.get(..10)?, host.len(), host))
}

/// The kept run that `run` is or belongs to.
pub(crate) fn top(run: &str) -> &str {
    run.split_once('/').map_or(run, |(top, _)| top)
}

/// Where a run is described, seen from `bench`.
pub(crate) fn link(root: &Path, name: &str) -> String {
    if root.join(RUNS).join(name).is_dir() {
        format!("runs/{name}/summary.md")
    } else {
        format!("older-runs.md#{}", anchor(top(name)))
    }
}

fn anchor(name: &str) -> String {
    name.replace('.', "")
}

/// The runs of the archive, unpacked below `target`.
pub(crate) fn unpacked(root: &Path) -> anyhow::Result<PathBuf> {
    let archive = root.join(ARCHIVE);
    let below = root.join("target/older-runs");
    let packed = fs::read(&archive).unwrap_or_default();
    let mut hasher = DefaultHasher::new();
    packed.hash(&mut hasher);
    let folder = below.join(format!("{:016x}", hasher.finish()));
    if folder.is_dir() {
        return Ok(folder);
    }
    // Others may unpack at the same time.
    let partial = below.join(format!(".partial-{}-{:?}", std::process::id(), std::thread::current().id()));
    fs::create_dir_all(&partial).with_context(|| format!("create {}", partial.display()))?;
    if !packed.is_empty() {
        let mut command = Command::new("tar");
        command.arg("-xzf").arg(&archive).arg("-C").arg(&partial);
        must_succeed(&mut command)?;
    }
    if fs::rename(&partial, &folder).is_err() {
        fs::remove_dir_all(&partial).with_context(|| format!("remove {}", partial.display()))?;
    }
    ensure!(folder.is_dir(), "{} cannot be made", folder.display());
    Ok(folder)
}

/// Names of the folders in `folder`, in order.
pub(crate) fn names(folder: &Path) -> anyhow::Result<Vec<String>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let folders = entries.filter_map(Result::ok).filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> = folders.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}
