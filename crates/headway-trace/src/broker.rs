//! A broker's log: its decisions are made again, and what its clients did is told as a run of tasks that share GPUs.

mod jobs;
mod replay;
#[cfg(test)]
mod tests;

use std::io::BufRead;

use headway_core::decisions::sharing::log::BrokerLogLine;

pub use self::jobs::jobs;
pub use self::replay::{BrokerDivergence, ReplayedBroker, replay};
use crate::LogError;

/// One file of a broker's log.
#[derive(Debug)]
pub struct BrokerLog {
    /// What errors call it.
    pub(crate) name: String,
    /// Lines with their numbers in the file, from 1. The first is a [`BrokerLogLine::Broker`].
    pub(crate) lines: Vec<(u64, BrokerLogLine)>,
    /// Lines that were cut off when a broker was killed or a disk was full.
    pub(crate) torn: u64,
}

impl BrokerLog {
    /// Reads a file; `name` is what errors call it.
    ///
    /// A line that is no line of a log is taken for cut off where a new start or the end of the file follows.
    ///
    /// # Errors
    /// [`LogError`].
    pub fn read(mut input: impl BufRead, name: &str) -> Result<Self, LogError> {
        let mut this = Self { name: name.to_owned(), lines: Vec::new(), torn: 0 };
        let (mut number, mut cut) = (0, None);
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            number += 1;
            let wrong = |source| LogError::Read { name: name.to_owned(), line: number, source };
            if input.read_until(b'\n', &mut bytes).map_err(wrong)? == 0 {
                break;
            }
            if bytes.trim_ascii().is_empty() {
                continue;
            }
            match (serde_json::from_slice::<BrokerLogLine>(&bytes), cut.take()) {
                (Ok(line @ BrokerLogLine::Broker(_)), broken) => {
                    this.torn += u64::from(broken.is_some());
                    this.lines.push((number, line));
                }
                (_, Some((line, source))) => return Err(LogError::Parse { name: name.to_owned(), line, source }),
                (Ok(line), None) => this.lines.push((number, line)),
                (Err(source), None) => cut = Some((number, source)),
            }
        }
        match (this.lines.first(), cut) {
            (Some((_, BrokerLogLine::Broker(_))), cut) => this.torn += u64::from(cut.is_some()),
            (None, Some((line, source))) => return Err(LogError::Parse { name: name.to_owned(), line, source }),
            _ => {
                let what = "it does not begin with the start of a broker".to_owned();
                return Err(LogError::Check { name: name.to_owned(), line: None, what });
            }
        }
        Ok(this)
    }
}
