//! Disciplines by which tokens are given, and how long a request waits in each.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How many requests may stand in FIFOs, and how long a FIFO may be (specification of sharing, 3.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TokenMode {
    /// `F = m`, `L = ceil(m/k)`: the least worst wait. At most `min(m, k)` tokens are in use.
    Optimal,
    /// `F = max(m, k)`: no token idles while somebody waits for one.
    WorkConserving,
    /// `F = m` and FIFOs of this length, so that a task can wait for its own GPU.
    Relaxed(u32),
    /// Everybody in FIFOs, no donation.
    Fifo,
    /// `F = k`, `L = 1`: a priority queue in front of the tokens.
    Priority,
}

impl fmt::Display for TokenMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Optimal => f.write_str("optimal"),
            Self::WorkConserving => f.write_str("work-conserving"),
            Self::Relaxed(queue) => write!(f, "relaxed, queues of {queue}"),
            Self::Fifo => f.write_str("fifo"),
            Self::Priority => f.write_str("priority"),
        }
    }
}

/// Queue sizes that follow from a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Sizes {
    /// Tokens `k`.
    pub tokens: u32,
    /// Most requests in FIFOs `F`, virtually released ones not counted; `None` = no limit.
    pub queued_max: Option<u32>,
    /// Longest FIFO `L`, holder included; `None` = no limit.
    pub length_max: Option<u32>,
    /// Whether requests that find no room donate their priority.
    pub donation: bool,
}

impl TokenMode {
    /// `beta`: the longest wait for a token while among the `m` most urgent, in token hold times; `None` = no bound of this
    /// form. `tasks` is the number of tasks that use GPUs (specification of sharing, 3.7).
    #[must_use]
    pub fn longest_wait(self, cpus: u32, tokens: u32, tasks: u32, affinity: bool) -> Option<u64> {
        let (m, k, n) = (u64::from(cpus), u64::from(tokens), u64::from(tasks));
        if m == 0 || k == 0 {
            return None;
        }
        match self {
            Self::Optimal => Some(2 * m.div_ceil(k) - 1),
            Self::WorkConserving => Some(2 * m.max(k).div_ceil(k) - 1),
            Self::Relaxed(length) => Some((2 * u64::from(length).min(m)).saturating_sub(1)),
            Self::Fifo if affinity => Some(n.saturating_sub(1)),
            Self::Fifo => Some(n.div_ceil(k).saturating_sub(1)),
            Self::Priority if k >= m => Some(1),
            Self::Priority => None,
        }
    }
}
