//! How much users take of their limits, and what happened since the start: parts of a broker's status.

use serde::{Deserialize, Serialize};

/// How much of a limit is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitUse {
    pub used: u64,
    pub most: u64,
}

impl LimitUse {
    /// Of counts.
    pub const fn of(used: usize, most: usize) -> Self {
        Self { used: used as u64, most: most as u64 }
    }

    /// Whether `more` stays within the limit.
    pub fn has_room_for(self, more: u64) -> bool {
        self.used.saturating_add(more) <= self.most
    }
}

/// One user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserStatus {
    /// The user; clients with one of its subordinate user ids count for it.
    pub uid: u32,
    pub clients: LimitUse,
    /// Connections that have not said who they are.
    pub unidentified: LimitUse,
    pub tasks: LimitUse,
    /// Segments of its tasks.
    pub segments: LimitUse,
    /// Open requests for tokens.
    pub requests: LimitUse,
    /// Flows that are open or asked for.
    pub flows: LimitUse,
    /// What its tasks declare of GPUs' time, parts per million of one GPU.
    pub utilisation_ppm: LimitUse,
    /// Bytes of the log written at once, which come back with time; `null` = there is no log.
    pub log_bytes: Option<LimitUse>,
}

/// Events since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// Tokens granted.
    pub tokens: u64,
    /// Engine requests granted one by one; those by lease are not seen.
    pub engines: u64,
    /// Leases begun.
    pub leases: u64,
    /// Requests refused.
    pub refused: u64,
    /// Releases clamped to the task's period.
    pub clamped: u64,
    /// Clients that ended or died.
    pub gone: u64,
    /// Clients cut off because they held something for too long, or broke the protocol.
    pub cut: u64,
}
