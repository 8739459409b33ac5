//! Keys of workload files that belong to applications.

use super::fault::WorkloadError;
use super::{Parameters, Sharding, Stream};
pub use crate::files::document::{DocumentTable, Field};
use crate::files::error::FileError;

/// What an application adds to the streams of workload files: keys of its own, and rules for the steps that it serves.
pub trait Application: Sync {
    /// The keys of a stream that it reads.
    fn keys(&self) -> &'static [&'static str];

    /// Reads them. They need not be there.
    ///
    /// # Errors
    /// For values that the application cannot take.
    fn read(&self, keys: &mut Keys<'_, '_>) -> Result<Own, FileError>;

    /// What no two streams of a workload may share, for example a key; `None` = `stream` has nothing of that kind.
    fn identity(&self, stream: &Stream) -> Option<Vec<u8>> {
        let _ = stream;
        None
    }

    /// Refuses a stream that the application cannot serve, and one that has its steps without its keys. `twin` is the id of a
    /// stream before it with the same [`Application::identity`].
    ///
    /// # Errors
    /// For the first thing that does not fit.
    fn check(&self, stream: &Stream, twin: Option<&str>) -> Result<(), WorkloadError>;

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
