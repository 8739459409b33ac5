//! `[[bulk]]` and `[[urgent]]`: transfers without windows.

use super::reader::Reader;
use super::{Otherwise, Unplanned, UnplannedKind, Urgent};
use crate::files::document::{DocumentTable, NAME_EXAMPLE};
use crate::files::error::FileError;
use crate::units::Nanos;

pub(super) const BULK: &[&str] = &["id", "from", "to", "bytes", "start"];
pub(super) const URGENT: &[&str] = &["id", "from", "to", "bytes", "start", "deadline", "every", "otherwise"];
pub(super) const OTHERWISE: &[(&str, Otherwise)] =
    &[("refuse", Otherwise::Refuse), ("best-effort", Otherwise::BestEffort)];

impl Reader {
    /// Reads a transfer that takes what others leave over.
    pub(super) fn bulk(&mut self, mut table: DocumentTable<'_>) -> Result<Unplanned, FileError> {
        let ends = self.ends(&mut table, "bulk")?;
        let bytes = table.take("bytes").map(|field| field.any_size("20 GB")).transpose()?;
        Ok(Unplanned { kind: UnplannedKind::Bulk(bytes), ..ends })
    }

    /// Reads what may be asked for at run time.
    pub(super) fn urgent(&mut self, mut table: DocumentTable<'_>) -> Result<Unplanned, FileError> {
        let ends = self.ends(&mut table, "urgent")?;
        let bytes = table.require("bytes", "\"64 KiB\"")?.any_size("64 KiB")?;
        let deadline = table.require("deadline", "\"2 ms\"")?.any_time()?;
        let every = table.take("every").map(|field| field.any_time()).transpose()?;
        let otherwise = table.take("otherwise").map(|field| field.word(OTHERWISE)).transpose()?.unwrap_or_default();
        Ok(Unplanned { kind: UnplannedKind::Urgent(Urgent { bytes, deadline, every, otherwise }), ..ends })
    }

    /// Reads the keys that both kinds have.
    fn ends(&mut self, table: &mut DocumentTable<'_>, kind: &str) -> Result<Unplanned, FileError> {
        let id = self.identify(table, kind)?;
        let from = table.require("from", "\"host\"")?.text(NAME_EXAMPLE)?.to_owned();
        let to = table.require("to", "\"gpu0\"")?.text(NAME_EXAMPLE)?.to_owned();
        let start = table.take("start").map_or(Ok(Nanos::ZERO), |field| field.any_time())?;
        Ok(Unplanned { id, from, to, start, kind: UnplannedKind::Bulk(None) })
    }
}
