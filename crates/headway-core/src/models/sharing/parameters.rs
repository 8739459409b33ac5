//! How GPUs and their engines are handed out: what a workload file or the flags of a broker say.

use serde::{Deserialize, Serialize};

use super::TokenMode;
use crate::units::{Bytes, Nanos};

/// How the tokens of a cluster are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenParameters {
    /// CPUs `m` of the cluster that managed tasks may use.
    pub cpus: u32,
    /// Tokens `rho` per GPU.
    pub per_gpu: u32,
    /// Queue discipline.
    pub mode: TokenMode,
    /// Choose FIFOs by predicted completion rather than by length.
    pub affinity: bool,
}

impl TokenParameters {
    /// Most CPUs in a cluster.
    pub const CPUS_MAX: u32 = 1_024;
    /// Most tokens in a cluster.
    pub const TOKENS_MAX: u32 = 1_024;
}

/// How a peer copy takes its two locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PeerLocks {
    /// Enqueued on both at once, runs at the head of both; the one obtained early is held idle (a dynamic group lock).
    Group,
    /// One after the other in ascending number.
    Nested,
    /// As `Group`, but a lock held idle serves single chunks predicted to end before the other lock frees.
    GroupBackfill,
}

/// In which order the operations that wait for an engine are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LockOrder {
    /// First come, first served, as the paper has it.
    #[default]
    Arrival,
    /// The most urgent first, by the keys that jobs have or inherit through tokens (EDF over chunks and kernel segments); what
    /// runs is never interrupted. Only with [`PeerLocks::Group`]: a group keeps its locks free for itself, from all that are
    /// less urgent. A less urgent operation may be overtaken without end.
    Urgency,
}

/// How the engines of each GPU are locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineParameters {
    /// Copy engines of each GPU with a role: 1 or 2.
    pub copy_engines: u32,
    /// Rule for peer copies.
    pub peer: PeerLocks,
    /// The order in which waiting jobs are served.
    #[serde(default)]
    pub order: LockOrder,
    /// Longest chunk; a larger copy is refused. `None` = whole copies (`X` in the paper).
    pub chunk_bytes: Option<Bytes>,
    /// An operation under way for so long is an overrun whatever its budget; zero = not watched.
    pub watchdog: Nanos,
}

/// Two copy engines that serve whole groups in order of arrival; copies of any size, and nothing is watched.
impl Default for EngineParameters {
    fn default() -> Self {
        let (peer, order) = (PeerLocks::Group, LockOrder::Arrival);
        Self { copy_engines: 2, peer, order, chunk_bytes: None, watchdog: Nanos::ZERO }
    }
}
