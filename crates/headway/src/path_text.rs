//! Paths in JSON: what is not UTF-8 in them is shown as U+FFFD, where `serde` would refuse the whole document.

use std::path::{Path, PathBuf};

use serde::Serializer;

/// # Errors
/// What the serializer gives.
pub fn one<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

/// # Errors
/// What the serializer gives.
pub fn each<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(paths.iter().map(|path| path.to_string_lossy()))
}
