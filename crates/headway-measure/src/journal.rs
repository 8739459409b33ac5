//! What has been measured so far, kept beside the output so that an interrupted measurement goes on where it was.
//!
//! One JSON document a line: first what the node and the request are, then a key and a value per step that is done. A
//! line that was cut off, as by a crash, counts as not done. What is known is never overwritten: a journal of another node or
//! another request is refused, and one that is gone on with is written anew beside itself and then renamed.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use headway_core::models::transfer::Stamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Error;

/// Version of the form.
const SCHEMA: u32 = 2;

/// What a journal belongs to; measurements of another node or another request are not gone on with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    schema: u32,
    stamp: Stamp,
    /// Options that change what is measured, with their values as a command line has them.
    request: BTreeMap<String, String>,
}

impl Head {
    /// For the node of `stamp` and the options of a request. The date is left out: midnight ends no measurement.
    pub fn new(stamp: &Stamp, request: BTreeMap<String, String>) -> Self {
        Self { schema: SCHEMA, stamp: Stamp { date: String::new(), ..stamp.clone() }, request }
    }

    /// What distinguishes the measurement that `self` began from the one of `now`, as a phrase; `None` = nothing.
    fn difference(&self, now: &Self) -> Option<String> {
        let mut parts: Vec<String> = Vec::new();
        let options: std::collections::BTreeSet<&String> = self.request.keys().chain(now.request.keys()).collect();
        for option in options {
            let said = |of: &Self| match of.request.get(option).map(String::as_str) {
                None => format!("without `{option}`"),
                Some("") => format!("with `{option}`"),
                Some(value) => format!("with `{option} {value}`"),
            };
            if self.request.get(option) != now.request.get(option) {
                parts.push(format!("it was begun {}, and this one is {}", said(self), said(now)));
            }
        }
        if let Some(difference) = self.stamp.difference(&now.stamp) {
            parts.push(format!("it was begun on another node: {difference}"));
        }
        if self.stamp.commit != now.stamp.commit {
            let (then, now) = (&self.stamp.commit, &now.stamp.commit);
            parts.push(format!("it was begun by Headway of commit {then}, and this one is of commit {now}"));
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

#[derive(Serialize, Deserialize)]
struct JournalEntry {
    key: String,
    value: Value,
}

/// The file and what it held.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    /// The file as it was found: who still has it open sees by its lock that it is taken.
    _found: File,
    known: BTreeMap<String, Value>,
}

/// What a file holds that has the name of a journal.
enum JournalFile {
    Nothing,
    Journal(Box<Head>, BTreeMap<String, Value>),
    OtherVersion,
    SomethingElse,
}

impl Journal {
    /// The name of the journal of `output`.
    pub fn path_of(output: &Path) -> PathBuf {
        let mut name = output.as_os_str().to_owned();
        name.push(".partial.jsonl");
        name.into()
    }

    /// Opens the journal at `path`: begins one where there is none, and goes on with one that has this `head`.
    ///
    /// # Errors
    /// [`Error::OtherJournal`] if it has another, [`Error::JournalInUse`], [`Error::NoJournal`] if the file is something
    /// else, [`Error::Journal`]. The file is then as it was.
    pub fn open(path: PathBuf, head: &Head) -> Result<Self, Error> {
        let mut found = OpenOptions::new().create(true).read(true).append(true).open(&path).map_err(Error::Journal)?;
        lock(&found, &path)?;
        let mut text = Vec::new();
        found.read_to_end(&mut text).map_err(Error::Journal)?;
        let other = |difference: &str| Error::OtherJournal { journal: path.clone(), difference: difference.to_owned() };
        let known = match read(&text) {
            JournalFile::Nothing => BTreeMap::new(),
            JournalFile::Journal(then, known) => match then.difference(head) {
                None => known,
                Some(difference) => return Err(other(&difference)),
            },
            JournalFile::OtherVersion => return Err(other("it was begun by another version of Headway")),
            JournalFile::SomethingElse => return Err(Error::NoJournal { path }),
        };
        let file = rewrite(&path, head, &known).map_err(Error::Journal)?;
        Ok(Self { path, file, _found: found, known })
    }

    /// Steps known.
    pub fn count(&self) -> usize {
        self.known.len()
    }

    /// What was recorded under `key`, if it is in the form asked for.
    pub fn recall<T: DeserializeOwned>(&self, key: &str) -> Option<T> {
        self.known.get(key).and_then(|value| T::deserialize(value).ok())
    }

    /// Records `value` under `key`.
    pub fn record(&mut self, key: &str, value: &impl Serialize) -> io::Result<()> {
        let value = serde_json::to_value(value)?;
        self.file.write_all(json(&JournalEntry { key: key.to_owned(), value: value.clone() })?.as_bytes())?;
        self.known.insert(key.to_owned(), value);
        Ok(())
    }

    /// Removes the file: the measurement is complete.
    pub fn finish(self) -> io::Result<()> {
        drop(self.file);
        fs::remove_file(self.path)
    }
}

fn json(value: &impl Serialize) -> io::Result<String> {
    Ok(serde_json::to_string(value)? + "\n")
}

/// Takes `file` for this process, as far as its file system knows locks.
fn lock(file: &File, path: &Path) -> Result<(), Error> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(Error::JournalInUse { journal: path.to_owned() }),
        // A file system without locks: then nobody keeps two measurements apart.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

/// Writes head and steps beside `path` and then puts them in its place; the file is open at its end and locked.
fn rewrite(path: &Path, head: &Head, known: &BTreeMap<String, Value>) -> io::Result<File> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}", std::process::id()));
    let temporary = PathBuf::from(temporary);
    let mut text = json(head)?;
    for (key, value) in known {
        text.push_str(&json(&JournalEntry { key: key.clone(), value: value.clone() })?);
    }
    let written = || -> io::Result<File> {
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).open(&temporary)?;
        // Without locks there is nothing to take.
        let _ = file.try_lock();
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        Ok(file)
    };
    written().inspect_err(|_| drop(fs::remove_file(&temporary)))
}

fn read(text: &[u8]) -> JournalFile {
    // A head that was cut off was followed by nothing.
    let Some(end) = text.iter().position(|byte| *byte == b'\n') else {
        const BEGINNING: &[u8] = b"{\"schema\":";
        let cut_off = text.starts_with(BEGINNING) || BEGINNING.starts_with(text);
        return if cut_off { JournalFile::Nothing } else { JournalFile::SomethingElse };
    };
    let (first, rest) = text.split_at(end);
    let Ok(head) = serde_json::from_slice::<Head>(first) else {
        let schema = serde_json::from_slice::<Value>(first).ok().and_then(|value| value.get("schema")?.as_u64());
        return if schema.is_some() { JournalFile::OtherVersion } else { JournalFile::SomethingElse };
    };
    if head.schema != SCHEMA {
        return JournalFile::OtherVersion;
    }
    let lines = rest.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<JournalEntry>(line).ok());
    JournalFile::Journal(Box::new(head), lines.map(|line| (line.key, line.value)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(driver: &str, date: &str) -> Head {
        let stamp = Stamp { driver: driver.to_owned(), date: date.to_owned(), ..Stamp::default() };
        Head::new(&stamp, BTreeMap::from([("--quick".to_owned(), String::new())]))
    }
    #[test]
    fn an_interrupted_measurement_goes_on_even_after_midnight() {
        let folder = tempfile::tempdir().unwrap();
        let path = Journal::path_of(&folder.path().join("node.toml"));
        assert!(path.ends_with("node.toml.partial.jsonl"));
        let mut journal = Journal::open(path.clone(), &head("580", "2026-01-01")).unwrap();
        journal.record("a", &7).unwrap();
        journal.record("b", &"text").unwrap();
        drop(journal);
        let journal = Journal::open(path.clone(), &head("580", "2026-01-02")).unwrap();
        assert_eq!((journal.recall("a"), journal.recall("b")), (Some(7), Some("text".to_owned())));
        assert_eq!((journal.recall::<u32>("b"), journal.recall::<u32>("c")), (None, None));
        journal.finish().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_line_that_was_cut_off_is_measured_again_and_does_not_spoil_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("j");
        let mut journal = Journal::open(path.clone(), &head("580", "")).unwrap();
        journal.record("a", &1).unwrap();
        journal.record("b", &2).unwrap();
        drop(journal);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() - 3]).unwrap();
        let mut journal = Journal::open(path.clone(), &head("580", "")).unwrap();
        assert_eq!((journal.recall("a"), journal.recall::<u32>("b")), (Some(1), None));
        journal.record("c", &3).unwrap();
        drop(journal);
        assert_eq!(Journal::open(path, &head("580", "")).unwrap().recall("c"), Some(3));
    }

    #[test]
    fn another_request_another_node_or_another_file_is_refused_and_nothing_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("j");
        let mut journal = Journal::open(path.clone(), &head("580", "")).unwrap();
        journal.record("a", &1).unwrap();
        drop(journal);
        let before = fs::read(&path).unwrap();
        let begun = head("580", "");
        let with = |option: &str, value: &str| {
            let mut other = begun.clone();
            other.request.insert(option.to_owned(), value.to_owned());
            other
        };
        let commit = Head { stamp: Stamp { commit: "f00".to_owned(), ..begun.stamp.clone() }, ..begun.clone() };
        for (other, words) in [
            (Head { request: BTreeMap::new(), ..begun.clone() }, "with `--quick`, and this one is without `--quick`"),
            (with("--gpus", "2"), "without `--gpus`, and this one is with `--gpus 2`"),
            (head("590", ""), "another node: driver"),
            (commit, "commit f00"),
        ] {
            match Journal::open(path.clone(), &other) {
                Err(Error::OtherJournal { difference, .. }) => assert!(difference.contains(words), "{difference}"),
                opened => panic!("{words}: {opened:?}"),
            }
            assert_eq!(fs::read(&path).unwrap(), before);
        }
        assert_eq!(Journal::open(path.clone(), &begun).unwrap().recall("a"), Some(1));
        for (text, version) in [("no journal\n", false), ("\u{fffd}", false), ("{\"schema\":1,\"x\":2}\n", true)] {
            fs::write(&path, text).unwrap();
            let error = Journal::open(path.clone(), &begun).unwrap_err();
            let expected = matches!(error, Error::OtherJournal { .. }) == version
                && matches!(error, Error::NoJournal { .. }) != version;
            assert!(expected, "{error:?}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_crash_at_any_byte_loses_no_step_that_was_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("j");
        let mut journal = Journal::open(path.clone(), &head("580", "")).unwrap();
        for (key, value) in [("a", 1), ("b", 2), ("c", 3)] {
            journal.record(key, &value).unwrap();
        }
        drop(journal);
        let whole = fs::read(&path).unwrap();
        for end in 0..=whole.len() {
            fs::write(&path, &whole[..end]).unwrap();
            // A line counts once its last brace is there.
            let ends = |at: usize| whole[..at].last() == Some(&b'}') && whole.get(at) == Some(&b'\n');
            let done = (0..=end).filter(|at| ends(*at)).count().saturating_sub(1);
            assert_eq!(Journal::open(path.clone(), &head("580", "")).unwrap().count(), done, "{end}");
        }
    }

    #[test]
    fn two_measurements_do_not_write_one_journal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("j");
        let mut first = Journal::open(path.clone(), &head("580", "")).unwrap();
        first.record("a", &1).unwrap();
        assert!(matches!(Journal::open(path.clone(), &head("580", "")), Err(Error::JournalInUse { .. })));
        first.record("b", &2).unwrap();
        drop(first);
        assert_eq!(Journal::open(path, &head("580", "")).unwrap().count(), 2);
    }
}
