//! Control messages: one JSON document in each packet of the socket.

pub use headway_core::decisions::broker::{FlowTerms, ProgramEngine, TaskShape};
pub(crate) use headway_core::decisions::broker::{HeldToken, ResumedTask};
use headway_core::decisions::engine_lock::EngineParameters;
use headway_core::decisions::flows::{FlowAdmitted, FlowContract, FlowId, FlowRefused};
use headway_core::decisions::sharing::{ClientId, ClusterId, GpuId, TaskId};
use headway_core::decisions::token::TokenParameters;
use serde::{Deserialize, Serialize};

use crate::status::BrokerStatus;

/// Version of everything that client and broker share: messages and pages.
pub(crate) const VERSION: u32 = 7;
/// Longest message.
pub(crate) const BYTES_MAX: usize = 128 << 10;

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
    /// A flow of this program, and the engines on which it copies.
    OpenFlow {
        engines: Vec<ProgramEngine>,
        contract: FlowContract,
    },
    /// A flow has left this program.
    CloseFlow {
        flow: FlowId,
    },
    /// This program keeps to the terms of this version. There is no answer.
    TermsTaken {
        version: u64,
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
    FlowOpened(FlowAdmitted),
    FlowRefused(FlowRefused),
    /// No answer: it comes when other programs come and go.
    Terms(FlowTerms),
    Done,
    Refused {
        reason: String,
    },
    Status(Box<BrokerStatus>),
}
