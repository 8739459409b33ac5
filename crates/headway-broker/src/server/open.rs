//! Tasks and their open requests.

use headway_core::decisions::sharing::{ClientId, GpuId, JobPriority, TokenId};
use headway_core::units::Nanos;

use crate::message::TaskShape;

/// Where an answer goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) number: u32,
    pub(super) generation: u32,
}

/// An engine request of a job.
#[derive(Clone, Debug)]
pub(super) struct Engines {
    /// `None` for one that began under a lease: the client does not wait for an answer.
    pub(super) slot: Option<Slot>,
    /// Locks it needs.
    pub(super) locks: Vec<usize>,
    /// The lease words as they are until the locks are given back; `None` = still waits.
    pub(super) held: Option<Vec<(usize, u64)>>,
}

/// A token request of a task.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub(super) key: JobPriority,
    /// Which request of its job.
    pub(super) acquisition: u32,
    /// Whether the arbiter knows it; else it waits for its user's turn.
    pub(super) entered: bool,
    pub(super) slot: Slot,
    pub(super) since: Nanos,
    /// How long it has waited for engines, and since when it does.
    pub(super) waited: Nanos,
    pub(super) asked: Option<Nanos>,
    /// GPU and token once it is granted.
    pub(super) granted: Option<(GpuId, TokenId)>,
    /// Where the state comes from.
    pub(super) from: Option<GpuId>,
    pub(super) engines: Option<Engines>,
}

impl Open {
    pub(super) fn new(key: JobPriority, slot: Slot, since: Nanos) -> Self {
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

pub(super) struct Task {
    pub(super) client: ClientId,
    pub(super) shape: TaskShape,
    pub(super) last_release: Option<Nanos>,
    pub(super) open: Option<Open>,
}
