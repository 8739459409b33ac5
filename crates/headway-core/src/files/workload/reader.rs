//! What a workload file says, with the place of each part.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::files::document::{DocumentTable, NAME_EXAMPLE};
use crate::files::error::{FileError, WrittenSpan};

/// What is known of the parts that were read.
#[derive(Default)]
pub(super) struct Reader {
    pub(super) spans: BTreeMap<String, WrittenSpan>,
    /// Where each id stands, in the order of the file.
    pub(super) ids: Vec<Range<usize>>,
}

impl Reader {
    /// Reads the id of a table and notes where everything in the table stands.
    pub(super) fn identify(&mut self, table: &mut DocumentTable<'_>, kind: &str) -> Result<String, FileError> {
        let field = table.require("id", "\"a\"")?;
        let id = field.text(NAME_EXAMPLE)?.to_owned();
        let part = format!("{kind}.{id}");
        field.note(&format!("{part}.id"), &mut self.spans);
        table.note(&part, &mut self.spans);
        self.ids.push(field.span.clone());
        let span = WrittenSpan { key: table.span.clone(), value: field.span };
        self.spans.entry(part).or_insert(span);
        Ok(id)
    }
}
