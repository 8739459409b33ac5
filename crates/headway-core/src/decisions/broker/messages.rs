//! What goes into a broker's book and what comes out.

use serde::{Deserialize, Serialize};

use crate::decisions::sharing::{ClusterId, GpuId, Segment, TaskId, TokenId};
use crate::units::{Bytes, Nanos};

/// Capacities; what exceeds them is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokerLimits {
    /// Clients of one user.
    pub clients_per_user: usize,
    /// Connections of one user that have not identified themselves yet; with more, the broker ends the one that is silent for
    /// longest.
    pub guests_per_user: usize,
    /// Tasks of one user.
    pub tasks_per_user: usize,
    /// Requests for tokens of one user that are open at a time.
    pub requests_per_user: usize,
    /// Bytes that the requests of one user add to the log, a second; at once 16 times as much.
    pub log_bytes_per_user: u64,
    /// The shortest relative deadline that a task may have. Short deadlines make a task urgent, so this limits how urgent.
    pub deadline_min: Nanos,
    /// Most of a cluster's tokens that one client gets by its urgency while others wait, in parts per million.
    pub urgent_ppm: u64,
    /// Descriptors for connections, five a client; `None` = nearly all that the system lets the broker have.
    pub descriptors: Option<usize>,
    /// CPU, copy and kernel time of one user's tasks, as they declare it, per unit of time, in parts per million; one GPU
    /// fully used is 1,000,000. `None` = of a private broker what the most GPUs have, of one for a group what its GPUs have.
    pub utilisation_ppm_per_user: Option<u64>,
}

impl Default for BrokerLimits {
    fn default() -> Self {
        Self {
            clients_per_user: 64,
            guests_per_user: 16,
            tasks_per_user: 256,
            requests_per_user: 256,
            log_bytes_per_user: 16 << 20,
            deadline_min: Nanos(100_000),
            urgent_ppm: 900_000,
            descriptors: None,
            utilisation_ppm_per_user: None,
        }
    }
}

/// A task as a client registers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskShape {
    /// Name, for people.
    pub name: String,
    /// Where it runs.
    pub cluster: ClusterId,
    /// Minimum time between two releases.
    pub period: Nanos,
    /// Relative deadline.
    pub deadline: Nanos,
    /// Data that migrates with the task when its GPU changes.
    pub state: Bytes,
    /// Input and output copies, kernels and CPU time while the token is held.
    pub segments: Vec<Segment>,
    /// Thread whose priority follows the job's, by its number in the system; `None` = none.
    pub thread: Option<u32>,
}

/// A token that a client holds from before the broker was started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldToken {
    pub job: u64,
    pub release: Nanos,
    pub gpu: GpuId,
    pub token: TokenId,
    pub slot: u32,
    pub generation: u32,
    /// Engines of that GPU in use.
    pub locks: [bool; 3],
}

/// A task that a client had before the broker was started again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResumedTask {
    pub id: TaskId,
    pub shape: TaskShape,
    pub held: Option<HeldToken>,
}
