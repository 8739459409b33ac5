//! Feeds a broker's log to a new book and compares what it decides.

use headway_core::decisions::broker::log::{BrokerLogLine, Fed, StartError};
use headway_core::decisions::broker::{Action, Book, Reply};
use serde::Serialize;

use super::BrokerLog;

/// A log that replayed without a difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReplayedBroker {
    /// States from which the replay began: starts of brokers, full files, and ends of gaps.
    pub starts: u64,
    /// Inputs fed.
    pub inputs: u64,
    /// Actions compared.
    pub actions: u64,
    /// Requests that were refused then and now; those that changed nothing are not in the log.
    pub refused: u64,
    /// Lines that the broker could not write, by its own count.
    pub missing: u64,
    /// Lines that were cut off.
    pub torn: u64,
}

/// The first place where the broker decided something else than the log says.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerDivergence {
    /// A state from which the broker cannot go on.
    #[error("log `{name}`, line {line}: the replay cannot begin")]
    Start {
        /// Name of the log.
        name: String,
        /// The line, from 1.
        line: u64,
        source: StartError,
    },
    /// Another decision.
    #[error(
        "log `{name}` and its replay part at line {line}\n  the log has:      {expected}\n  the replay gives: {got}\nthe \
         log was edited, or another version of Headway wrote it: replay it with that version"
    )]
    Decision {
        /// Name of the log.
        name: String,
        /// The line, from 1.
        line: u64,
        /// What the log has there.
        expected: String,
        /// What the replay decided.
        got: String,
    },
}

/// Feeds every input of `log` to a book that begins in the state that the log has before it, and compares actions, the turns of users
/// included, byte for byte in their JSON form.
///
/// # Errors
/// [`BrokerDivergence`] at the first difference.
pub fn replay(log: &BrokerLog) -> Result<ReplayedBroker, BrokerDivergence> {
    let mut replayed = ReplayedBroker { torn: log.torn, ..ReplayedBroker::default() };
    let mut book: Option<Book> = None;
    for (line, what) in &log.lines {
        match (what, &mut book) {
            (BrokerLogLine::Broker(start), _) => {
                let fail = |source| BrokerDivergence::Start { name: log.name.clone(), line: *line, source };
                book = Some(start.begin().map_err(fail)?);
                replayed.starts += 1;
                replayed.missing = replayed.missing.saturating_add(start.missing);
            }
            (BrokerLogLine::Fed(fed), Some(book)) => {
                let (expected, got) = (json(fed), json(&fed.again(book)));
                if got != expected {
                    return Err(BrokerDivergence::Decision { name: log.name.clone(), line: *line, expected, got });
                }
                replayed.inputs += 1;
                replayed.actions += fed.actions.len() as u64;
                replayed.refused += fed.actions.iter().filter(|action| refuses(action)).count() as u64;
            }
            _ => {}
        }
    }
    Ok(replayed)
}

const fn refuses(action: &Action) -> bool {
    matches!(action, Action::Refuse { .. } | Action::Reply { reply: Reply::Refused { .. }, .. })
}

fn json(fed: &Fed) -> String {
    serde_json::to_string(fed).expect("lines are plain data without maps, which always have a JSON form")
}
