//! Reads an event log.

use std::io::{self, BufRead};

use headway_core::log::{Incomplete, LogEnd, LogHeader, LogRecord, SCHEMA};
use serde::Deserialize;
use serde_json::Value;

use crate::check;

/// A whole log whose indices all lead somewhere and whose times all fit. The run may have ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunLog {
    header: LogHeader,
    records: Vec<LogRecord>,
    incomplete: Option<Incomplete>,
    omitted: u64,
}

/// A log that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The input failed.
    #[error("cannot read log `{name}`, line {line}")]
    Read {
        /// Name of the log.
        name: String,
        /// The line that was to be read, from 1.
        line: u64,
        source: io::Error,
    },
    /// A line is not what a log has there.
    #[error("log `{name}`, line {line} is not a valid line of a log; check that the file was written by `headway run`")]
    Parse {
        /// Name of the log.
        name: String,
        /// The line, from 1.
        line: u64,
        /// What the parser says.
        source: serde_json::Error,
    },
    /// The log was written by another version.
    #[error(
        "log `{name}` has schema {found}, this version reads schema {SCHEMA}; use the Headway version that wrote it"
    )]
    Schema {
        /// Name of the log.
        name: String,
        /// The number in the log.
        found: u32,
    },
    /// The last line is missing or does not fit the others.
    #[error(
        "log `{name}` is truncated: it ends at line {line} with {found} records{}; the run was interrupted or the copy \
         is not complete: copy the file again or repeat the run",
        expected.map_or(" and no end line".to_owned(), |expected| format!(", its end line counts {expected}"))
    )]
    Truncated {
        /// Name of the log.
        name: String,
        /// The last line, from 1.
        line: u64,
        /// Records found.
        found: u64,
        /// Records that the end line counts, where there is one.
        expected: Option<u64>,
    },
    /// The log names something that its plan does not have, or times do not fit 64 bits.
    #[error("log `{name}`{} contradicts its plan: {what}; it was damaged or edited: repeat the run",
        line.map_or(String::new(), |line| format!(", line {line}")))]
    Check {
        /// Name of the log.
        name: String,
        /// The line, from 1; `None` = the header.
        line: Option<u64>,
        /// What does not fit.
        what: String,
    },
}

/// The part of the first line that every version has.
#[derive(Deserialize)]
struct Probe {
    schema: u32,
}

impl RunLog {
    /// A log from its parts, for drivers that keep it in memory.
    ///
    /// # Errors
    /// [`LogError::Check`] if a record names something that the plan does not have.
    pub fn new(header: LogHeader, records: Vec<LogRecord>, name: &str) -> Result<Self, LogError> {
        let fail = |line, what| LogError::Check { name: name.to_owned(), line, what };
        check::header(&header).map_err(|what| fail(None, what))?;
        for (line, record) in (2..).zip(&records) {
            check::record(&header, record).map_err(|what| fail(Some(line), what))?;
        }
        Ok(Self { header, records, incomplete: None, omitted: 0 })
    }

    /// This log as that of a run that ended early, unless `incomplete` is `None`.
    #[must_use]
    pub fn ended(self, incomplete: Option<Incomplete>) -> Self {
        Self { incomplete, ..self }
    }

    /// Why the run ended before its last cycle; `None` = it did not.
    #[must_use]
    pub fn incomplete(&self) -> Option<&Incomplete> {
        self.incomplete.as_ref()
    }

    /// Reads a whole log; `name` is quoted in errors.
    ///
    /// # Errors
    /// Every variant of [`LogError`].
    pub fn read(mut input: impl BufRead, name: &str) -> Result<Self, LogError> {
        let mut text = Vec::new();
        let mut line = 0;
        let mut header = None;
        let mut records = Vec::new();
        let incomplete;
        let omitted;
        let truncated = |line, found: &Vec<LogRecord>, expected| LogError::Truncated {
            name: name.to_owned(),
            line,
            found: found.len() as u64,
            expected,
        };
        loop {
            text.clear();
            let read = input.read_until(b'\n', &mut text);
            let read = read.map_err(|source| LogError::Read { name: name.to_owned(), line: line + 1, source })?;
            if read == 0 {
                return Err(truncated(line, &records, None));
            }
            line += 1;
            let bad = |source| LogError::Parse { name: name.to_owned(), line, source };
            let Some(known) = &header else {
                header = Some(first_line(&text, name)?);
                continue;
            };
            match serde_json::from_slice::<LogRecord>(&text) {
                Ok(record) => {
                    let checked = check::record(known, &record).and_then(|()| no_more(&text, &record));
                    checked.map_err(|what| LogError::Check { name: name.to_owned(), line: Some(line), what })?;
                    records.push(record);
                }
                Err(error) => match serde_json::from_slice::<LogEnd>(&text) {
                    Ok(end) if end.records == records.len() as u64 => {
                        incomplete = end.incomplete;
                        omitted = end.omitted;
                        break;
                    }
                    Ok(end) => return Err(truncated(line, &records, Some(end.records))),
                    Err(_) if text.last() != Some(&b'\n') => return Err(truncated(line, &records, None)),
                    Err(_) => return Err(bad(error)),
                },
            }
        }
        let header = header.expect("the loop ends only behind the first line");
        Ok(Self { header, records, incomplete, omitted })
    }

    /// The first line: the plan and where the figures come from.
    #[must_use]
    pub fn header(&self) -> &LogHeader {
        &self.header
    }

    /// The records in the order in which they were written. The first one is line 2 of the file.
    #[must_use]
    pub fn records(&self) -> &[LogRecord] {
        &self.records
    }

    /// Records of the run behind these that the log lacks, since it had reached its size.
    #[must_use]
    pub fn omitted(&self) -> u64 {
        self.omitted
    }
}

/// Checks that a line says nothing besides its record.
fn no_more(text: &[u8], record: &LogRecord) -> Result<(), String> {
    if serde_json::to_vec(record).is_ok_and(|line| text.trim_ascii_end() == line) {
        return Ok(());
    }
    let whole = serde_json::to_value(record).and_then(|known| Ok((known, serde_json::from_slice(text)?)));
    let (known, line) = whole.map_err(|error| error.to_string())?;
    match unknown(&known, &line) {
        Some(key) => Err(format!("the key `{key}` means nothing there")),
        None => Ok(()),
    }
}

/// The first key of `line` that `known` lacks.
fn unknown(known: &Value, line: &Value) -> Option<String> {
    match (known, line) {
        (Value::Object(known), Value::Object(line)) => line.iter().find_map(|(key, value)| match known.get(key) {
            Some(known) => unknown(known, value),
            // Keys that say nothing are left out by some versions.
            None if value.is_null() => None,
            None => Some(key.clone()),
        }),
        (Value::Array(known), Value::Array(line)) => {
            known.iter().zip(line).find_map(|(known, line)| unknown(known, line))
        }
        _ => None,
    }
}

fn first_line(text: &[u8], name: &str) -> Result<LogHeader, LogError> {
    let name = || name.to_owned();
    let bad = |source: serde_json::Error| {
        if source.is_eof() && text.last() != Some(&b'\n') {
            LogError::Truncated { name: name(), line: 1, found: 0, expected: None }
        } else {
            LogError::Parse { name: name(), line: 1, source }
        }
    };
    let probe: Probe = serde_json::from_slice(text).map_err(bad)?;
    if probe.schema != SCHEMA {
        return Err(LogError::Schema { name: name(), found: probe.schema });
    }
    let header = serde_json::from_slice(text).map_err(bad)?;
    check::header(&header).map_err(|what| LogError::Check { name: name(), line: None, what })?;
    Ok(header)
}
