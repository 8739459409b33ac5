//! The log of a guest (`headway exec --log`): who copied what, how long the calls took, and which small copies were made while a bulk
//! copy was under way.

mod page;
mod summary;
mod table;
#[cfg(test)]
mod tests;
mod under_way;

use std::io::BufRead;

use headway_core::files::guest_log::{
    Copy, CountedCopies, Difference, GuestLogEnd, GuestLogLine, GuestLogStart, LintFinding, SCHEMA, VerifyCounts,
};

pub use self::page::write as write_page;
pub use self::summary::{Beside, CopyGroup, GuestSummary, ReasonCount, Times, summarize};
use crate::LogError;

/// A log that was read.
#[derive(Clone, Debug)]
pub struct GuestLog {
    /// The first line.
    pub start: GuestLogStart,
    /// Copies with lines, in the order in which they began.
    pub copies: Vec<Copy>,
    /// Copies without lines.
    pub counted: Vec<CountedCopies>,
    /// What `--lint` found.
    pub findings: Vec<LintFinding>,
    /// What `--verify` found.
    pub differences: Vec<Difference>,
    /// What `--verify` did.
    pub verified: Option<VerifyCounts>,
    /// Lines that could not be written.
    pub lost: u64,
    /// Lines that are no lines: cut off when a disk was full or a computer stopped.
    pub torn: u64,
    /// The last line; `None` where the program was killed.
    pub end: Option<GuestLogEnd>,
}

impl GuestLog {
    /// Whether a first line begins such a log.
    #[must_use]
    pub fn begins(line: &str) -> bool {
        GuestLogStart::begins(line)
    }

    /// Reads a log; `name` is what errors call it.
    ///
    /// # Errors
    /// [`LogError::Read`]; [`LogError::Parse`] and [`LogError::Schema`] for the first line. Later lines that cannot be read are
    /// counted as torn.
    pub fn read(mut input: impl BufRead, name: &str) -> Result<Self, LogError> {
        let (mut bytes, mut number) = (Vec::new(), 0);
        let mut next = |bytes: &mut Vec<u8>| {
            bytes.clear();
            number += 1;
            let read = input.read_until(b'\n', bytes);
            read.map_err(|source| LogError::Read { name: name.to_owned(), line: number, source })
        };
        next(&mut bytes)?;
        let wrong = |source| LogError::Parse { name: name.to_owned(), line: 1, source };
        let start: GuestLogStart = serde_json::from_slice(&bytes).map_err(wrong)?;
        if start.schema != SCHEMA {
            return Err(LogError::Schema { name: name.to_owned(), found: start.schema });
        }
        let mut log = Self {
            start,
            copies: Vec::new(),
            counted: Vec::new(),
            findings: Vec::new(),
            differences: Vec::new(),
            verified: None,
            lost: 0,
            torn: 0,
            end: None,
        };
        while next(&mut bytes)? > 0 {
            if !bytes.trim_ascii().is_empty() {
                log.line(serde_json::from_slice(&bytes).ok());
            }
        }
        log.copies.sort_by_key(|copy| copy.at);
        Ok(log)
    }

    fn line(&mut self, line: Option<GuestLogLine>) {
        match line {
            None => self.torn += 1,
            Some(GuestLogLine::Copy(copy)) => self.copies.push(copy),
            Some(GuestLogLine::Counted(counted)) => self.counted.push(counted),
            Some(GuestLogLine::Lost(lost)) => self.lost = self.lost.saturating_add(lost),
            Some(GuestLogLine::Finding(finding)) => self.findings.push(finding),
            Some(GuestLogLine::Difference(difference)) => self.differences.push(difference),
            Some(GuestLogLine::Verified(verified)) => self.verified = Some(verified),
            Some(GuestLogLine::End(end)) => {
                self.lost = self.lost.max(end.lost);
                self.end = Some(end);
            }
        }
    }
}
