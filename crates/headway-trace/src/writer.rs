//! Writes an event log.

use std::io::{self, BufWriter, Write};

use headway_core::log::{Incomplete, LogEnd, LogHeader, LogRecord};

/// Writes a log line by line; a log that is not finished reads as truncated.
///
/// Drivers record, for each instant, the inputs in the order in which they fed them, then the actions and then the events
/// in the order in which they polled them: [`crate::replay`] relies on it.
#[derive(Debug)]
pub struct LogWriter<W: Write> {
    out: BufWriter<W>,
    records: u64,
}

impl<W: Write> LogWriter<W> {
    /// Writes the first line.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(out: W, header: &LogHeader) -> io::Result<Self> {
        let mut writer = Self { out: BufWriter::with_capacity(1 << 16, out), records: 0 };
        writer.line(header)?;
        Ok(writer)
    }

    /// Writes one record.
    ///
    /// # Errors
    /// Those of the output. Lines are gathered before they are written, so an error may belong to an earlier record.
    pub fn record(&mut self, record: &LogRecord) -> io::Result<()> {
        self.line(record)?;
        self.records += 1;
        Ok(())
    }

    /// Writes the last line and returns the output, flushed.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(self) -> io::Result<W> {
        self.finish_early(None, 0)
    }

    /// Finishes the log of a run that ended early, unless `incomplete` is `None`, and for a log that lacks the last `omitted` records.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish_early(mut self, incomplete: Option<Incomplete>, omitted: u64) -> io::Result<W> {
        let end = LogEnd { records: self.records, incomplete, omitted };
        self.line(&end)?;
        self.out.flush()?;
        self.out.into_inner().map_err(io::IntoInnerError::into_error)
    }

    /// What it writes to. Lines may still wait to be written.
    pub fn output(&self) -> &W {
        self.out.get_ref()
    }

    fn line(&mut self, value: &impl serde::Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, value)?;
        self.out.write_all(b"\n")
    }
}
