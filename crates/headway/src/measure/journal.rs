//! What has been measured so far, kept beside the output so that an interrupted measurement goes on where it was.
//!
//! One JSON document a line: first what the node and the request are, then a key and a value per step that is done. The
//! last line may be cut off; it counts as not done.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use headway_core::transfer::Stamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Version of the form.
const SCHEMA: u32 = 1;

/// What a journal belongs to; measurements of another node or another request are not gone on with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    schema: u32,
    stamp: Stamp,
    request: String,
}

impl Head {
    /// For the node of `stamp` and what `request` describes. The date is left out: midnight ends no measurement.
    pub(crate) fn new(stamp: &Stamp, request: String) -> Self {
        Self { schema: SCHEMA, stamp: Stamp { date: String::new(), ..stamp.clone() }, request }
    }
}

#[derive(Serialize, Deserialize)]
struct Line {
    key: String,
    value: Value,
}

/// The file and what it held.
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    known: BTreeMap<String, Value>,
}

impl Journal {
    /// The name of the journal of `output`.
    pub(crate) fn path_of(output: &Path) -> PathBuf {
        let mut name = output.as_os_str().to_owned();
        name.push(".partial.jsonl");
        name.into()
    }

    /// Opens the journal at `path`: goes on with one that has this `head`, begins anew otherwise.
    pub(crate) fn open(path: PathBuf, head: &Head) -> io::Result<Self> {
        let known = match fs::read_to_string(&path) {
            Ok(text) => read(&text, head),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => None,
            Err(error) => return Err(error),
        };
        // Written again rather than appended to: a line that was cut off would spoil the next.
        let known = known.unwrap_or_default();
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).open(&path)?;
        let mut text = json(head)?;
        for (key, value) in &known {
            text.push_str(&json(&Line { key: key.clone(), value: value.clone() })?);
        }
        file.write_all(text.as_bytes())?;
        Ok(Self { path, file, known })
    }

    /// Steps known.
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// What was recorded under `key`, if it is in the form asked for.
    pub(crate) fn recall<T: DeserializeOwned>(&self, key: &str) -> Option<T> {
        self.known.get(key).and_then(|value| T::deserialize(value).ok())
    }

    /// Records `value` under `key`.
    pub(crate) fn record(&mut self, key: &str, value: &impl Serialize) -> io::Result<()> {
        let value = serde_json::to_value(value)?;
        self.file.write_all(json(&Line { key: key.to_owned(), value: value.clone() })?.as_bytes())?;
        self.known.insert(key.to_owned(), value);
        Ok(())
    }

    /// Removes the file: the measurement is complete.
    pub(crate) fn finish(self) -> io::Result<()> {
        drop(self.file);
        fs::remove_file(self.path)
    }
}

fn json(value: &impl Serialize) -> io::Result<String> {
    Ok(serde_json::to_string(value)? + "\n")
}

/// The steps of a journal with this `head`; `None` if it has another.
fn read(text: &str, head: &Head) -> Option<BTreeMap<String, Value>> {
    let mut lines = text.lines();
    let found: Head = serde_json::from_str(lines.next()?).ok()?;
    let steps = lines.map_while(|line| serde_json::from_str::<Line>(line).ok());
    (found == *head).then(|| steps.map(|line| (line.key, line.value)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(driver: &str, date: &str) -> Head {
        let stamp = Stamp { driver: driver.to_owned(), date: date.to_owned(), ..Stamp::default() };
        Head::new(&stamp, "quick".to_owned())
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
    fn another_node_or_another_file_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("j");
        let mut journal = Journal::open(path.clone(), &head("580", "")).unwrap();
        journal.record("a", &1).unwrap();
        drop(journal);
        assert_eq!(Journal::open(path.clone(), &head("590", "")).unwrap().len(), 0);
        fs::write(&path, "no journal\n").unwrap();
        assert_eq!(Journal::open(path, &head("580", "")).unwrap().len(), 0);
    }
}
