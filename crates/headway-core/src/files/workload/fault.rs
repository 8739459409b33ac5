//! What is wrong with a workload, and the part of it that is wrong.

use std::fmt;
use std::ops::{Range, RangeInclusive};

use super::Workload;
use super::texts::{size, time};
use crate::files::document::{SIZE_LIMIT, TIME_LIMIT, ValueFault, quoted};
use crate::files::error::{FileError, Loaded, short};
use crate::units::{Bytes, Nanos, SIZE_MAX, TIME_MAX};

/// What is wrong with a workload, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadError {
    place: String,
    caret: Caret,
    /// What the fact is said of: `KEY = VALUE` as [`super::write`] writes it.
    value: Option<String>,
    fact: String,
    help: Option<String>,
    /// Which ids are wrong, where no path leads to them.
    wrong_id: Option<WrongId>,
}

/// What of a place an error in a file points at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caret {
    Value,
    /// The key, or the header of a table.
    Key,
}

/// Ids by their numbers in the order of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrongId {
    NoName(u32),
    Same { first: u32, second: u32 },
}

impl WorkloadError {
    /// An error at the part called `place`, as [`super::parse_with`] names parts; nothing stands for the whole workload.
    #[must_use]
    pub fn new(place: &str, fact: impl Into<String>, help: Option<String>) -> Self {
        let (place, fact) = (place.to_owned(), fact.into());
        Self { place, caret: Caret::Value, value: None, fact, help, wrong_id: None }
    }

    /// The error, in a file at the key and not at its value.
    #[must_use]
    pub fn at_key(self) -> Self {
        Self { caret: Caret::Key, ..self }
    }

    pub(super) fn of_id(self, wrong_id: WrongId) -> Self {
        Self { wrong_id: Some(wrong_id), ..self }
    }

    /// The part that is wrong, as [`super::parse_with`] names parts; empty for the whole workload.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The fact.
    #[must_use]
    pub fn message(&self) -> String {
        self.message_of(self.value.as_deref())
    }

    fn message_of(&self, value: Option<&str>) -> String {
        value.map_or_else(|| self.fact.clone(), |value| format!("`{value}` {}", self.fact))
    }

    /// The remedy, where one is known.
    #[must_use]
    pub fn help(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// The error at its place in the file that says `loaded`; `ids` are the places of all ids in the order of the file.
    pub(super) fn in_file(&self, loaded: &Loaded<Workload>, ids: &[Range<usize>]) -> FileError {
        if let Some(WrongId::Same { first, second }) = self.wrong_id {
            let line = loaded.source.error(ids[first as usize].clone(), "", None).line;
            return loaded.source.error(
                ids[second as usize].clone(),
                format!("{}, in line {line}", self.fact),
                self.help.clone(),
            );
        }
        let written = self.value.as_ref().map(|value| loaded.excerpt(&self.place).unwrap_or(value.as_str()));
        let span = match (self.wrong_id, self.caret, loaded.spans.get(&self.place)) {
            (Some(WrongId::NoName(number)), ..) => ids[number as usize].clone(),
            (None, Caret::Key, Some(span)) => span.key.clone(),
            (..) => loaded.span_of(&self.place),
        };
        loaded.source.error(span, self.message_of(written), self.help.clone())
    }
}

impl fmt::Display for WorkloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.place.is_empty() { String::new() } else { format!("{}: ", self.place) };
        write!(f, "{place}{}", self.message())
    }
}

impl std::error::Error for WorkloadError {}

/// A part of a workload: `stream`, `message` and so on with its id, or `run` and `sharing` without one.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) table: &'static str,
    pub(super) id: &'a str,
}

impl Part<'_> {
    /// The name of what is at `path` below the part.
    pub(super) fn place(self, path: &str) -> String {
        let Self { table, id } = self;
        [table, id, path].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".")
    }

    pub(super) fn error(self, path: &str, fact: impl Into<String>, help: impl Into<String>) -> WorkloadError {
        WorkloadError::new(&self.place(path), fact, Some(help.into()))
    }

    /// An error about the value of the key at the end of `path`.
    pub(super) fn value_error(self, path: &str, value: &str, fault: ValueFault) -> WorkloadError {
        let key = key_of(path);
        let is_element = key.starts_with(|c: char| c.is_ascii_digit());
        let written = if is_element { value.to_owned() } else { short(key, &format!("{key} = {value}")).to_owned() };
        WorkloadError { value: Some(written), ..self.error(path, fault.fact, fault.help) }
    }

    pub(super) fn refuse(self, path: &str, value: &str, fault: Option<ValueFault>) -> Result<(), WorkloadError> {
        fault.map_or(Ok(()), |fault| Err(self.value_error(path, value, fault)))
    }

    pub(super) fn time(self, path: &str, value: Nanos) -> Result<(), WorkloadError> {
        self.refuse(path, &time(value), ValueFault::above(&value, &TIME_MAX, TIME_LIMIT))
    }

    pub(super) fn time_above_zero(self, path: &str, value: Nanos, example: &str) -> Result<(), WorkloadError> {
        self.refuse(path, &time(value), ValueFault::zero(&value, key_of(path), example))?;
        self.time(path, value)
    }

    pub(super) fn size(self, path: &str, value: Bytes) -> Result<(), WorkloadError> {
        self.refuse(path, &size(value), ValueFault::above(&value, &SIZE_MAX, SIZE_LIMIT))
    }

    pub(super) fn size_above_zero(self, path: &str, value: Bytes, example: &str) -> Result<(), WorkloadError> {
        self.refuse(path, &size(value), ValueFault::zero(&value, key_of(path), example))?;
        self.size(path, value)
    }

    pub(super) fn integer(self, path: &str, value: u64, range: &RangeInclusive<u64>) -> Result<(), WorkloadError> {
        self.refuse(path, &value.to_string(), ValueFault::outside(value, range))
    }

    pub(super) fn name(self, path: &str, text: &str) -> Result<(), WorkloadError> {
        self.refuse(path, &quoted(text), ValueFault::not_a_name(text))
    }
}

fn key_of(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}
