//! Feeds a broker's log to a new arbiter and compares what it decides.

use headway_core::decisions::sharing::Arbiter;
use headway_core::decisions::sharing::log::{BrokerLogLine, Fed, StartError};
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
    /// Inputs that the arbiter refused then and now.
    pub refused: u64,
    /// Lines that the broker could not write, by its own count.
    pub missing: u64,
    /// Lines that were cut off.
    pub torn: u64,
}

/// The first place where the arbiter decided something else than the log says.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerDivergence {
    /// A state from which no arbiter can be made.
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
        /// What the arbiter decided.
        got: String,
    },
}

/// Feeds every input of `log` to an arbiter that begins in the state that the log has before it, and compares actions and
/// refusals byte for byte in their JSON form.
///
/// # Errors
/// [`BrokerDivergence`] at the first difference.
pub fn replay(log: &BrokerLog) -> Result<ReplayedBroker, BrokerDivergence> {
    let mut replayed = ReplayedBroker { torn: log.torn, ..ReplayedBroker::default() };
    let mut arbiter: Option<Arbiter> = None;
    for (line, what) in &log.lines {
        match (what, &mut arbiter) {
            (BrokerLogLine::Broker(start), _) => {
                let fail = |source| BrokerDivergence::Start { name: log.name.clone(), line: *line, source };
                arbiter = Some(start.begin().map_err(fail)?);
                replayed.starts += 1;
                replayed.missing = replayed.missing.saturating_add(start.missing);
            }
            (BrokerLogLine::Fed(fed), Some(arbiter)) => {
                let (expected, got) = (json(fed), json(&again(arbiter, fed)));
                if got != expected {
                    return Err(BrokerDivergence::Decision { name: log.name.clone(), line: *line, expected, got });
                }
                replayed.inputs += 1;
                replayed.actions += fed.actions.len() as u64;
                replayed.refused += u64::from(fed.refused.is_some());
            }
            _ => {}
        }
    }
    Ok(replayed)
}

fn again(arbiter: &mut Arbiter, fed: &Fed) -> Fed {
    let refused = arbiter.handle(fed.now, &fed.input).err();
    let actions = std::iter::from_fn(|| arbiter.poll_action()).collect();
    while arbiter.poll_event().is_some() {}
    Fed { now: fed.now, input: fed.input.clone(), actions, refused }
}

fn json(fed: &Fed) -> String {
    serde_json::to_string(fed).expect("lines are plain data without maps, which always have a JSON form")
}
