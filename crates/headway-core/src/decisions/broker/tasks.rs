//! Clients, their tasks and open requests.

use serde::{Deserialize, Serialize};

use super::messages::{ClientProcess, KnownProcess, Slot};
use crate::decisions::engine_lock::{LockId, LockedOperation};
use crate::decisions::sharing::{ClientId, ClusterId, GpuId, JobPriority, TaskId, TokenId};
use crate::units::Nanos;

/// A process that has said who it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BrokerClient {
    pub process: ClientProcess,
    /// The name that it gave itself.
    pub name: String,
    pub tasks: Vec<TaskId>,
    /// `None` while it is served.
    pub gone: Option<ClientEnd>,
}

/// How a client went that is no longer served.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ClientEnd {
    pub since: Nanos,
    /// When its process ended; `None` = not yet.
    pub process_ended: Option<Nanos>,
    /// It is not waited for the end of its process: it has held something for too long already.
    pub hung: bool,
    /// What it waits for is dropped only when it is known which of its leased locks are in use.
    pub(super) awaits_leases: bool,
}

impl BrokerClient {
    pub(super) fn known(&self) -> KnownProcess {
        let ClientProcess { pid, uid, started, .. } = self.process;
        KnownProcess { pid, started, uid, tasks: self.tasks.clone(), threads: Vec::new() }
    }
}

/// A task of a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BookTask {
    pub client: ClientId,
    /// The name that its client gave it.
    pub name: String,
    pub cluster: ClusterId,
    pub period: Nanos,
    pub deadline: Nanos,
    /// CPU, copy and kernel time of one job, as its client says.
    pub declared: Nanos,
    /// Number of its segments.
    pub segments: usize,
    /// Whether the priority of a thread follows its jobs.
    pub(super) has_thread: bool,
    /// The release from which that of the next job is separated.
    pub last_release: Option<Nanos>,
    pub open: Option<OpenRequest>,
}

/// A token of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedToken {
    pub gpu: GpuId,
    pub token: TokenId,
}

/// The open request of a task for a token.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OpenRequest {
    pub key: JobPriority,
    /// Which request of its job.
    pub(super) acquisition: u32,
    /// Whether the arbiter knows it; else it waits for its user's turn.
    pub(super) entered: bool,
    pub(super) slot: Slot,
    /// When it was made, or granted.
    pub since: Nanos,
    /// How long it has waited for engines, and since when it does.
    pub(super) waited: Nanos,
    pub(super) asked: Option<Nanos>,
    pub granted: Option<GrantedToken>,
    /// Where the task's state comes from.
    pub(super) from: Option<GpuId>,
    pub engines: Option<EngineRequest>,
}

impl OpenRequest {
    pub(super) const fn new(key: JobPriority, slot: Slot, since: Nanos) -> Self {
        Self {
            key,
            acquisition: 0,
            entered: false,
            slot,
            since,
            waited: Nanos::ZERO,
            asked: None,
            granted: None,
            from: None,
            engines: None,
        }
    }
}

/// Where an engine request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EnginePhase {
    /// Leases of its locks end first.
    EndsLeases,
    Waits,
    Runs,
}

/// The engine request of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EngineRequest {
    /// `None` for one that began under a lease: the client does not wait for an answer.
    pub(super) slot: Option<Slot>,
    /// Locks that it needs.
    pub locks: Vec<LockId>,
    pub(super) operation: LockedOperation,
    pub phase: EnginePhase,
}
