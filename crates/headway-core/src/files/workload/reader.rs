//! Tables of a workload file with the place of each field, and the ids that are taken.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::files::document::{DocumentTable, Field};
use crate::files::error::FileError;

/// What is known of the parts that were read.
#[derive(Default)]
pub(super) struct Reader {
    pub(super) spans: BTreeMap<String, Range<usize>>,
    /// What each id stands for, and where in the file it is given.
    ids: BTreeMap<String, (&'static str, usize)>,
    /// Streams by their ids in lower case.
    streams: BTreeMap<String, String>,
}

impl Reader {
    pub(super) fn note(&mut self, part: String, span: &Range<usize>) {
        self.spans.entry(part).or_insert_with(|| span.clone());
    }

    /// The field called `key`, if it is written; its place is kept as `PART.KEY`.
    pub(super) fn take<'a>(&mut self, table: &mut DocumentTable<'a>, part: &str, key: &str) -> Option<Field<'a>> {
        let field = table.take(key)?;
        self.note(format!("{part}.{key}"), &field.span);
        Some(field)
    }

    pub(super) fn require<'a>(
        &mut self,
        table: &mut DocumentTable<'a>,
        part: &str,
        key: &str,
        example: &str,
    ) -> Result<Field<'a>, FileError> {
        let field = table.require(key, example)?;
        self.note(format!("{part}.{key}"), &field.span);
        Ok(field)
    }

    /// Reads the id of a table and returns it with the name of the part.
    pub(super) fn identify(
        &mut self,
        table: &mut DocumentTable<'_>,
        kind: &'static str,
    ) -> Result<(String, String), FileError> {
        let field = table.require("id", "\"a\"")?;
        let id = field.name()?;
        if let Some((other, first)) = self.ids.insert(id.clone(), (kind, field.span.start)) {
            let (line, help) =
                (field.line_of(first), "give each stream, message, demand and task its own id".to_owned());
            return Err(field.error(format!("a {other} is already called `{id}`, in line {line}"), Some(help)));
        }
        if kind == "stream" {
            self.refuse_same_file(&id, &field)?;
        }
        let part = format!("{kind}.{id}");
        self.note(part.clone(), &field.span);
        Ok((id, part))
    }

    /// Refuses a stream whose id differs from another's in upper and lower case only: on file systems that do not tell them
    /// apart, the results of both would be one file.
    fn refuse_same_file(&mut self, id: &str, at: &Field<'_>) -> Result<(), FileError> {
        let Some(other) = self.streams.insert(id.to_lowercase(), id.to_owned()) else { return Ok(()) };
        let message = format!("stream `{id}` differs from stream `{other}` in upper and lower case only");
        let help = "give one of them another id: each names the file of its stream's results, and not every file system \
                    tells these two apart";
        Err(at.error(message, Some(help.to_owned())))
    }
}
