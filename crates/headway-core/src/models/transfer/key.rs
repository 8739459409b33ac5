//! The situation that a figure of copies is about.

use serde::{Deserialize, Serialize};

use super::method::Method;
use crate::models::index::EndpointId;
use crate::units::Bytes;

/// From host to GPU, from GPU to host, or between GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Host to GPU.
    H2d,
    /// GPU to host.
    D2h,
    /// GPU to GPU.
    Peer,
}

impl Direction {
    /// What stands before the GPU in a sentence about such copies: `into`, `out of`.
    #[must_use]
    pub const fn preposition(self) -> &'static str {
        match self {
            Self::H2d => "into",
            Self::D2h => "out of",
            Self::Peer => "between GPUs at",
        }
    }
}

/// What kind of memory the host end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostMemory {
    /// Pinned for the GPU.
    Pinned,
    /// Ordinary memory whose pages are there.
    #[serde(rename = "warm")]
    Touched,
    /// Ordinary memory never touched: pages appear as they are written.
    #[serde(rename = "fresh")]
    Untouched,
    /// A mapped file.
    File,
}

/// What else the copy's GPU carries meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackgroundLoad {
    /// No other copy.
    Alone,
    /// Bulk copies in the same direction.
    BulkSame,
    /// Bulk copies in the other direction.
    BulkOpposite,
    BulkBoth,
}

/// How a staging thread writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stores {
    /// Through the cache, as `memcpy` does.
    Plain,
    /// Past the cache, 64 bytes at a time.
    NonTemporal,
    /// So that the engine finds pinned memory in the cache that all cores share, not in one core's own: on the way in stored
    /// through the cache and demoted, on the way out past the cache, and what was read is demoted.
    Demoted,
}

/// What one curve is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CurveKey {
    /// The GPU; of a peer copy the source.
    pub gpu: EndpointId,
    /// The target of a peer copy.
    pub peer: Option<EndpointId>,
    /// Method and form.
    pub method: Method,
    pub direction: Direction,
    /// The host end; [`HostMemory::Pinned`] for peer copies, where it means nothing.
    pub memory: HostMemory,
    /// What else the GPU carries.
    pub load: BackgroundLoad,
    /// GPUs that copy the same way at the same time, this one included.
    pub active: u32,
    /// Pieces that one request consists of.
    pub pieces: u32,
}

impl CurveKey {
    /// Copies of one GPU between it and `memory`, one piece at a time, while nothing else goes on.
    #[must_use]
    pub const fn alone(gpu: EndpointId, method: Method, direction: Direction, memory: HostMemory) -> Self {
        Self { gpu, peer: None, method, direction, memory, load: BackgroundLoad::Alone, active: 1, pieces: 1 }
    }
}

/// How `staged` works in one situation, found by measurement (specification of transfers, 2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tuning {
    /// Threads that copy between ordinary and pinned memory (Cho 2018: producers).
    pub threads: u32,
    /// Size of one pinned buffer; there are two a thread.
    pub buffer: Bytes,
    /// How the threads write.
    pub stores: Stores,
    /// Chunks on the engine at a time.
    pub in_flight: u32,
}

/// The situation a [`Tuning`] is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TuningKey {
    pub gpu: EndpointId,
    pub direction: Direction,
    /// Ordinary memory: warm, fresh or file.
    pub memory: HostMemory,
    /// GPUs that copy the same way at the same time, this one included.
    pub active: u32,
}
