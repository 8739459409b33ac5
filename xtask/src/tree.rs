//! The files of the repository, in memory.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::{fs, io};

use anyhow::Context;

/// Folders that hold nothing of ours, for a copy of the repository without git's records.
const FOREIGN: [&str; 5] = [".git", "target", "out", ".gpu", "__pycache__"];

/// Text files by path from the root; a file that is not UTF-8 has no text but exists.
pub(crate) struct Tree {
    files: BTreeMap<String, Option<String>>,
}

impl Tree {
    /// Reads every file that git tracks or would track; without git, every file outside the folders for outputs.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub(crate) fn read(root: &Path) -> anyhow::Result<Self> {
        let listed = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output();
        let paths = match listed {
            Ok(done) if done.status.success() => {
                let text = String::from_utf8(done.stdout).context("a path is not UTF-8")?;
                text.split_terminator('\0').map(str::to_owned).collect()
            }
            _ => {
                let mut paths = Vec::new();
                walk(root, "", &mut paths)?;
                paths
            }
        };
        let mut files = BTreeMap::new();
        for path in paths {
            match fs::read(root.join(&path)) {
                Ok(bytes) => files.insert(path, String::from_utf8(bytes).ok()),
                // Deleted, and git has not been told yet.
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(error).context(format!("read {path}")),
            };
        }
        Ok(Self { files })
    }

    /// Every path, in order.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Path and text of every text file, in order of paths.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().filter_map(|(path, text)| Some((path.as_str(), text.as_deref()?)))
    }

    /// Text of one file.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path)?.as_deref()
    }

    /// Whether `tests/{name}.rs` of the package in `folder` is a module of its one test program, `tests/it.rs`.
    pub(crate) fn is_module_of_tests(&self, folder: &str, name: &str) -> bool {
        let modules = self.text(&format!("{folder}/tests/it.rs")).unwrap_or_default();
        modules.lines().any(|line| line.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(';')) == Some(name))
    }

    /// Whether `path` is a file or a folder with files; the empty path is the root.
    pub(crate) fn exists(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        path.is_empty() || self.files.contains_key(path) || self.paths().any(|file| file.starts_with(&folder))
    }

    #[cfg(test)]
    pub(crate) fn of<const N: usize>(files: [(&str, &str); N]) -> Self {
        Self { files: files.map(|(path, text)| (path.to_owned(), Some(text.to_owned()))).into() }
    }
}

fn walk(root: &Path, folder: &str, paths: &mut Vec<String>) -> anyhow::Result<()> {
    for entry in fs::read_dir(root.join(folder)).with_context(|| format!("list {folder}"))? {
        let entry = entry?;
        let name = entry.file_name().into_string().ok().context("a file name is not UTF-8")?;
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        let kind = entry.file_type()?;
        if kind.is_dir() && !FOREIGN.contains(&name.as_str()) {
            walk(root, &path, paths)?;
        } else if kind.is_file() {
            paths.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_exists_while_it_has_a_file() {
        let tree = Tree::of([("docs/testing.md", "")]);
        assert!(tree.exists("docs") && tree.exists("docs/testing.md") && tree.exists(""));
        assert!(!tree.exists("doc") && !tree.exists("docs/testing"));
    }

    #[test]
    fn without_git_the_walk_finds_sources_and_skips_outputs() {
        let mut paths = Vec::new();
        walk(&crate::root().join("xtask"), "", &mut paths).unwrap();
        assert!(paths.iter().any(|path| path == "src/tree.rs"));
        paths.clear();
        walk(&crate::root(), "", &mut paths).unwrap();
        assert!(!paths.iter().any(|path| path.starts_with("target/") || path.starts_with(".git/")));
    }
}
