//! What a broker writes down: the lines of its log, and how a [`Book`] begins from the first of them.
//!
//! A log is lines of JSON. A [`BrokerLogStart`] line says everything that the decisions behind it depend on; a file begins with one, and
//! others follow where a broker was started again or could not write for a while. A [`Fed`] line is an input that changed something, with
//! what the book decided about it.

use serde::{Deserialize, Serialize};

use super::{Action, Book, Input};
use crate::decisions::sharing::{ArbiterMemory, ArbiterParameters, ClusterId, JobId, TokenId};
use crate::files::document::hash;
use crate::units::Nanos;

/// Version of the lines.
pub const SCHEMA: u32 = 4;

/// What one line of the broker's log says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum BrokerLogLine {
    /// Where the lines that follow begin.
    Broker(Box<BrokerLogStart>),
    /// An input and the decisions about it.
    Fed(Fed),
}

/// Why a [`BrokerLogStart`] was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StartReason {
    /// The broker was started.
    Started,
    /// The file before was full.
    Rotated,
    /// Lines are missing before this one: they could not be written.
    Gap,
}

/// The state in which the lines that follow begin.
#[derive(Debug, Serialize, Deserialize)]
pub struct BrokerLogStart {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Version of Headway.
    pub version: String,
    /// Number of the broker's start.
    pub epoch: u64,
    pub now: Nanos,
    pub why: StartReason,
    /// Lines that could not be written before this one.
    pub missing: u64,
    /// What the arbiter was made from.
    pub arbiter: ArbiterParameters,
    /// What it knew of earlier jobs.
    pub memory: ArbiterMemory,
    /// The tokens that were held, and their holders.
    pub holders: Vec<(ClusterId, TokenId, JobId)>,
    /// Its whole state, as JSON.
    pub state: String,
    /// First 16 hexadecimal digits of the SHA-256 of `state`.
    pub digest: String,
}

/// An input and everything that was decided about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fed {
    pub now: Nanos,
    /// What the book was fed.
    pub input: Input,
    /// What the server was to do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<Action>,
}

impl Fed {
    /// Feeds the same input to another book; what it decides.
    pub fn again(&self, book: &mut Book) -> Self {
        book.handle(self.now, &self.input);
        let actions = std::iter::from_fn(|| book.poll_action()).collect();
        Self { now: self.now, input: self.input.clone(), actions }
    }
}

/// A [`BrokerLogStart`] from which no book can be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Another version wrote it.
    #[error(
        "the lines have schema {found}, this version reads schema {SCHEMA}; use the Headway version that wrote them"
    )]
    Schema {
        /// The number in the line.
        found: u32,
    },
    /// The state was changed after it was written.
    #[error(
        "the broker's state is not what was written: its digest is {found}, the line says {expected}; the file is damaged"
    )]
    Digest {
        /// Of the state.
        found: String,
        /// In the line.
        expected: String,
    },
    /// The state has another form than this version's.
    #[error("the broker's state cannot be read; use the Headway version that wrote it")]
    State(#[source] serde_json::Error),
}

impl BrokerLogStart {
    /// The line that records the present state of a book.
    #[must_use]
    pub fn of(book: &Book, epoch: u64, now: Nanos, why: StartReason) -> Self {
        let holders = book.holders().into_iter().map(|((cluster, token), job)| (cluster, token, job));
        let state = serde_json::to_string(book).expect("plain data without maps always has a JSON form");
        Self {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            epoch,
            now,
            why,
            missing: 0,
            arbiter: book.parameters().arbiter.clone(),
            memory: book.arbiter().memory(),
            holders: holders.collect(),
            digest: hash(&state),
            state,
        }
    }

    /// A book in the state of this line.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn begin(&self) -> Result<Book, StartError> {
        self.check_schema()?;
        // A book from a state that nobody wrote could break its own rules: only what was written is taken.
        let found = hash(&self.state);
        if found != self.digest {
            return Err(StartError::Digest { found, expected: self.digest.clone() });
        }
        serde_json::from_str(&self.state).map_err(StartError::State)
    }

    /// Whether this version reads the lines that follow.
    ///
    /// # Errors
    /// [`StartError::Schema`].
    pub const fn check_schema(&self) -> Result<(), StartError> {
        if self.schema == SCHEMA { Ok(()) } else { Err(StartError::Schema { found: self.schema }) }
    }
}

impl BrokerLogLine {
    /// Whether a line begins such a log.
    #[must_use]
    pub fn begins(line: &str) -> bool {
        line.starts_with(START)
    }
}

/// How a [`BrokerLogLine::Broker`] begins.
pub const START: &str = "{\"broker\"";
