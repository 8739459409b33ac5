//! Keys of workload files that belong to applications.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Parameters, Sharding, Stream};
use crate::files::document::Mark;
pub use crate::files::document::{DocumentTable, Field};
use crate::files::error::{FileError, SourceText};

/// What an application adds to the streams of workload files: keys of its own, and rules for the steps that it serves.
pub trait Application: Sync {
    /// The keys of a stream that it reads.
    fn keys(&self) -> &'static [&'static str];

    /// Reads them. They need not be there.
    ///
    /// # Errors
    /// For values that the application cannot take.
    fn read(&self, keys: &mut Keys<'_, '_>) -> Result<Own, FileError>;

    /// Refuses a stream that the application cannot serve, and one that has its steps without its keys. `others` are the
    /// streams before it.
    ///
    /// # Errors
    /// For the first thing that does not fit.
    fn check(&self, stream: &Stream, others: &[Stream], written: &Written<'_>) -> Result<(), FileError>;

    /// Its keys of `stream`, with their values as a file has them.
    fn write(&self, stream: &Stream) -> Vec<(&'static str, String)>;
}

/// What the keys of an application say of one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// Parameters that the `Work` of each step is made with.
    pub parameters: Parameters,
    /// How its packets are divided among all GPUs, if they are.
    pub sharding: Option<Sharding>,
}

/// The keys of a stream that its application has not read yet.
pub struct Keys<'k, 'a> {
    pub(super) table: &'k mut DocumentTable<'a>,
    pub(super) known: &'static [&'static str],
    pub(super) stream: &'k str,
    pub(super) seed: u64,
}

impl<'a> Keys<'_, 'a> {
    /// The field called `key`, one of [`Application::keys`], if it is written.
    pub fn take(&mut self, key: &str) -> Option<Field<'a>> {
        assert!(self.known.contains(&key), "an application reads its own keys, and `{key}` is none");
        self.table.take(key)
    }

    /// The stream's name.
    #[must_use]
    pub const fn stream(&self) -> &str {
        self.stream
    }

    /// The seed of the workload, from which synthetic data follows.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }
}

/// Where the keys of a stream stand. Its compute steps are called `steps.N`, with N counted from 0.
pub struct Written<'a> {
    pub(super) source: &'a SourceText,
    /// The header of the table.
    pub(super) header: Range<usize>,
    pub(super) marks: BTreeMap<String, Mark>,
}

impl Written<'_> {
    /// Whether `key` is written.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.marks.contains_key(key)
    }

    /// `key = value` as the user wrote it, or only the key where that is long or nothing is written.
    #[must_use]
    pub fn excerpt<'s>(&'s self, key: &'s str) -> &'s str {
        self.marks.get(key).map_or(key, |mark| &mark.excerpt)
    }

    /// An error at the value of `key`, or at the stream if it is not written.
    #[must_use]
    pub fn error(&self, key: &str, message: impl AsRef<str>, help: String) -> FileError {
        let span = self.marks.get(key).map_or_else(|| self.header.clone(), |mark| mark.value.clone());
        self.source.error(span, message, Some(help))
    }

    /// An error at `key` itself, or at the stream if it is not written.
    #[must_use]
    pub fn key_error(&self, key: &str, message: impl AsRef<str>, help: String) -> FileError {
        let span = self.marks.get(key).map_or_else(|| self.header.clone(), |mark| mark.key.clone());
        self.source.error(span, message, Some(help))
    }
}
