//! Folders of results. They are known again by the first line of their `summary.md`, and only results of the same kind replace them.

use std::path::{Path, PathBuf};
use std::{fs, io};

pub use headway_runtime::outlet::file_name;
use headway_runtime::outlet::{INCOMPLETE, PART};

use crate::Error;

const SUMMARY: &str = "summary.md";
/// Incomplete results are numbered up to this, where others are in their way.
const PARTS_MAX: u32 = 100;
/// What a summary of incomplete results says.
pub const ENDED_EARLY: &str = "INCOMPLETE: interrupted; only what was done until then is here";

/// Checks that `folder` is not there, is empty, or has earlier results whose summary is called `title`.
pub fn check(folder: &Path, title: &str) -> Result<(), Error> {
    let in_the_way = |reason: String| Error::InTheWay { folder: folder.to_owned(), reason, title: title.to_owned() };
    let mut entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(in_the_way("is not a folder".to_owned()));
        }
        Err(source) => return Err(headway::Failure::Read { path: folder.to_owned(), source }.into()),
    };
    let Some(first) = entries.next() else { return Ok(()) };
    let first = first.map_err(|source| headway::Failure::Read { path: folder.to_owned(), source })?.file_name();
    match fs::read_to_string(folder.join(SUMMARY)) {
        Ok(summary) if summary.lines().next() == Some(&format!("# {title}")) => Ok(()),
        Ok(_) => Err(in_the_way(format!("its `{SUMMARY}` is of something else"))),
        Err(_) => Err(in_the_way(format!("holds `{}`", first.to_string_lossy()))),
    }
}

/// Begins results that grow while they are made: marked as incomplete until they are written whole.
pub fn grow(folder: &Path, title: &str) -> Result<(), Error> {
    let summary = folder.join(SUMMARY);
    match fs::remove_file(&summary) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            return Err(headway::Failure::Write { path: summary, source }.into());
        }
        _ => {}
    }
    Folder::open(folder, title, false)?.summary(&format!("# {title}\n\n{ENDED_EARLY}.\n")).map(drop)
}

/// A folder that is written.
pub struct Folder(PathBuf);

impl Folder {
    /// Begins results called `title` in `folder`. Incomplete ones are marked, and go beside complete ones that are there.
    pub fn open(folder: &Path, title: &str, complete: bool) -> Result<Self, Error> {
        let whole = || folder.join(SUMMARY).exists() && !folder.join(INCOMPLETE).exists();
        let place = if !complete && whole() {
            let sibling = |number: u32| {
                let mut name = folder.as_os_str().to_owned();
                name.push(PART);
                if number > 1 {
                    name.push(format!("-{number}"));
                }
                PathBuf::from(name)
            };
            let free = (1..PARTS_MAX).map(sibling).find(|place| check(place, title).is_ok());
            free.map_or_else(|| check(&sibling(PARTS_MAX), title).map(|()| sibling(PARTS_MAX)), Ok)?
        } else {
            folder.to_owned()
        };
        let failed = |path: PathBuf| |source| Error::from(headway::Failure::Write { path, source });
        fs::create_dir_all(&place).map_err(failed(place.clone()))?;
        let folder = Self(place);
        if complete {
            match fs::remove_file(folder.path(INCOMPLETE)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(folder.path(INCOMPLETE))(error))?,
                _ => {}
            }
        } else {
            folder.put(INCOMPLETE, format!("{ENDED_EARLY}.\n"))?;
        }
        Ok(folder)
    }

    /// The path of a file in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file.
    pub fn put(&self, name: &str, content: impl AsRef<[u8]>) -> Result<(), Error> {
        let path = self.path(name);
        fs::write(&path, content).map_err(|source| headway::Failure::Write { path, source }.into())
    }

    /// Writes the summary, which comes last.
    pub fn summary(self, text: &str) -> Result<PathBuf, Error> {
        self.put(SUMMARY, text)?;
        Ok(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_results_of_the_same_kind_are_replaced() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("results");
        check(&folder, "one").unwrap();
        fs::create_dir(&folder).unwrap();
        check(&folder, "one").unwrap();
        fs::write(folder.join("rates.csv"), "mine").unwrap();
        let error = check(&folder, "one").unwrap_err().to_string();
        assert!(error.contains("results` exists, and holds `rates.csv`"), "{error}");
        fs::write(folder.join(SUMMARY), "# one\n\nText.\n").unwrap();
        check(&folder, "one").unwrap();
        assert!(check(&folder, "two").is_err() && check(&folder.join(SUMMARY), "one").is_err());
    }

    #[test]
    fn incomplete_results_replace_no_complete_ones_and_are_replaced_by_them() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("results");
        let write = |complete: bool| Folder::open(&path, "one", complete).unwrap().summary("# one\n").unwrap();
        assert_eq!(write(false), path);
        assert!(path.join(INCOMPLETE).is_file());
        assert_eq!(write(true), path);
        assert!(!path.join(INCOMPLETE).exists());
        let beside = place.path().join("results.incomplete");
        assert_eq!([write(false), write(false)], [beside.clone(), beside.clone()]);
        fs::write(beside.join(SUMMARY), "mine").unwrap();
        assert_eq!(write(false), place.path().join("results.incomplete-2"));
        assert!(!path.join(INCOMPLETE).exists());
    }
}
