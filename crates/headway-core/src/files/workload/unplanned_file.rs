//! `[[bulk]]` and `[[urgent]]`: transfers without windows.

use super::reader::Reader;
use super::{Otherwise, Unplanned, UnplannedKind, Urgent};
use crate::files::document::DocumentTable;
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
        let bytes = self.take(&mut table, &format!("bulk.{}", ends.id), "bytes");
        let bytes = bytes.map(|field| field.size_above_zero("20 GB")).transpose()?;
        Ok(Unplanned { kind: UnplannedKind::Bulk(bytes), ..ends })
    }

    /// Reads what may be asked for at run time.
    pub(super) fn urgent(&mut self, mut table: DocumentTable<'_>) -> Result<Unplanned, FileError> {
        let ends = self.ends(&mut table, "urgent")?;
        let part = format!("urgent.{}", ends.id);
        let bytes = self.require(&mut table, &part, "bytes", "\"64 KiB\"")?.size_above_zero("64 KiB")?;
        let deadline = self.require(&mut table, &part, "deadline", "\"2 ms\"")?.time_above_zero("2 ms")?;
        let every = self.take(&mut table, &part, "every").map(|field| field.time_above_zero("10 ms")).transpose()?;
        let otherwise = self.take(&mut table, &part, "otherwise").map(|field| field.word(OTHERWISE)).transpose()?;
        let otherwise = otherwise.unwrap_or_default();
        Ok(Unplanned { kind: UnplannedKind::Urgent(Urgent { bytes, deadline, every, otherwise }), ..ends })
    }

    /// What both have.
    fn ends(&mut self, table: &mut DocumentTable<'_>, kind: &'static str) -> Result<Unplanned, FileError> {
        let (id, part) = self.identify(table, kind)?;
        let from = self.require(table, &part, "from", "\"host\"")?.name()?;
        let to_field = self.require(table, &part, "to", "\"gpu0\"")?;
        let to = to_field.name()?;
        if from == to {
            let help = "name two endpoints of the machine".to_owned();
            return Err(to_field.error(format!("`{id}` stays at `{to}`"), Some(help)));
        }
        let start = self.take(table, &part, "start").map_or(Ok(Nanos::ZERO), |f| f.time())?;
        Ok(Unplanned { id, from, to, start, kind: UnplannedKind::Bulk(None) })
    }
}
