//! Control messages: one JSON document in each packet of the socket.

use headway_core::decisions::engine_lock::EngineParameters;
use headway_core::decisions::sharing::{ClientId, ClusterId, GpuId, JobSegment, TaskId, TokenId};
use headway_core::decisions::token::TokenParameters;
use headway_core::units::{Bytes, Nanos};
use serde::{Deserialize, Serialize};

use crate::status::BrokerStatus;

/// Version of everything that client and broker share: messages and pages.
pub(crate) const VERSION: u32 = 5;
/// Longest message.
pub(crate) const BYTES_MAX: usize = 128 << 10;

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
    pub segments: Vec<JobSegment>,
    /// Thread whose priority follows the job's, by its number in the system; `None` = none.
    pub thread: Option<u32>,
}

/// A token that a client holds from before the broker was started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HeldToken {
    pub(crate) job: u64,
    pub(crate) release: Nanos,
    pub(crate) gpu: GpuId,
    pub(crate) token: TokenId,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    /// Engines of that GPU in use.
    pub(crate) locks: [bool; crate::layout::ENGINES],
}

/// A task that a client had before the broker was started again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResumedTask {
    pub(crate) id: TaskId,
    pub(crate) shape: TaskShape,
    pub(crate) held: Option<HeldToken>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum FromClient {
    Hello {
        version: u32,
        name: String,
        resumed: Vec<ResumedTask>,
    },
    Register(TaskShape),
    Withdraw {
        task: TaskId,
    },
    Status,
    /// A client has met an error that a lost GPU gives.
    Fault {
        gpu: GpuId,
    },
    /// The owner says that a GPU is lost.
    Lost {
        gpu: GpuId,
    },
    Reconfigure {
        cluster: ClusterId,
        tokens: TokenParameters,
    },
}

/// What a client must know about the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Welcome {
    pub(crate) client: ClientId,
    pub(crate) epoch: u64,
    pub(crate) gpus: Vec<GpuId>,
    pub(crate) engines: Option<EngineParameters>,
    /// Whether the broker keeps a log: then clients tell it of engines that they use by lease.
    pub(crate) log: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum FromBroker {
    /// With three pages and a bell.
    Welcome(Welcome),
    Registered {
        task: TaskId,
    },
    Done,
    Refused {
        reason: String,
    },
    Status(Box<BrokerStatus>),
}
