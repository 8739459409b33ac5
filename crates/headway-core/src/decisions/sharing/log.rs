//! What a broker writes down: the lines of its log, and how an [`Arbiter`] begins from the first of them.
//!
//! A log is lines of JSON. A [`BrokerLogStart`] line says everything that the decisions behind it depend on; a file begins with one, and
//! others follow where a broker was started again or could not write for a while. A [`Fed`] line is an input with everything
//! that the arbiter decided about it. The other lines are for people and reports; no decision depends on them.

use serde::{Deserialize, Serialize};

use super::{
    Arbiter, ArbiterAction, ArbiterInput, ArbiterMemory, ArbiterParameters, ArbiterRefused, ClientId, ClusterId, GpuId,
    JobId, TaskId, TokenId,
};
use crate::decisions::engine_lock::LockId;
use crate::files::document::hash;
use crate::units::Nanos;

/// Version of the lines.
pub const SCHEMA: u32 = 2;

/// What one line of the broker's log says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum BrokerLogLine {
    /// Where the lines that follow begin.
    Broker(Box<BrokerLogStart>),
    /// An input of the arbiter and its decisions.
    Fed(Fed),
    /// A task's client and name; written when it is registered, and again behind every [`BrokerLogStart`].
    Task(TaskLine),
    /// A client has used an engine that was leased to it.
    Used(Used),
    /// The broker has cut a client off.
    Cut {
        now: Nanos,
        client: ClientId,
        pid: u32,
        /// Whether it had held something for too long; otherwise it broke the protocol.
        hung: bool,
    },
    /// A client has met an error that a lost GPU gives.
    Fault {
        now: Nanos,
        gpu: GpuId,
        /// The client that says so.
        client: ClientId,
        pid: u32,
    },
    /// By what the tasks declare, this one has no room on the GPUs that are left.
    WithoutRoom { now: Nanos, task: TaskId },
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

/// An input and everything that came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fed {
    pub now: Nanos,
    /// What the arbiter was fed.
    pub input: ArbiterInput,
    /// What it wants done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<ArbiterAction>,
    /// Why it refuses the input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<ArbiterRefused>,
}

/// A task's client and name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskLine {
    /// When this was written.
    pub now: Nanos,
    pub task: TaskId,
    /// The name that its client gave it.
    pub name: String,
    pub client: ClientId,
    /// The client's process.
    pub pid: u32,
    /// The client's user.
    pub uid: u32,
}

/// A use of a leased engine, as the client tells it: the broker has not seen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// When the broker read this.
    pub now: Nanos,
    pub job: JobId,
    /// The engine.
    pub lock: LockId,
    /// From when.
    pub begin: Nanos,
    pub end: Nanos,
    /// Uses before this one that the client had no room to tell of.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub missing: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(missing: &u64) -> bool {
    *missing == 0
}

/// A [`BrokerLogStart`] from which no arbiter can be made.
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
        "the arbiter's state is not what was written: its digest is {found}, the line says {expected}; the file is damaged"
    )]
    Digest {
        /// Of the state.
        found: String,
        /// In the line.
        expected: String,
    },
    /// The state has another form than this version's.
    #[error("the arbiter's state cannot be read; use the Headway version that wrote it")]
    State(#[source] serde_json::Error),
}

impl BrokerLogStart {
    /// The line for an arbiter made from `parameters`, as it is now.
    #[must_use]
    pub fn of(arbiter: &Arbiter, parameters: &ArbiterParameters, epoch: u64, now: Nanos, why: StartReason) -> Self {
        let clusters = parameters.clusters.iter().filter_map(|cluster| Some((cluster.id, arbiter.tokens(cluster.id)?)));
        let holders = clusters.flat_map(|(id, tokens)| tokens.holders().map(move |(token, job)| (id, token, job)));
        let state = serde_json::to_string(arbiter).expect("plain data without maps always has a JSON form");
        Self {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            epoch,
            now,
            why,
            missing: 0,
            arbiter: parameters.clone(),
            memory: arbiter.memory(),
            holders: holders.collect(),
            digest: hash(&state),
            state,
        }
    }

    /// An arbiter in the state of this line.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn begin(&self) -> Result<Arbiter, StartError> {
        if self.schema != SCHEMA {
            return Err(StartError::Schema { found: self.schema });
        }
        // An arbiter from a state that nobody wrote could break its own rules: only what was written is taken.
        let found = hash(&self.state);
        if found != self.digest {
            return Err(StartError::Digest { found, expected: self.digest.clone() });
        }
        serde_json::from_str(&self.state).map_err(StartError::State)
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
