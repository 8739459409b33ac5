//! How tokens are given: modes, their queue lengths and their bounds.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Refused;

/// How many requests may stand in FIFOs, and how long a FIFO may be (specification of sharing, 3.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
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

impl fmt::Display for Mode {
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

/// Parameters of a [`super::TokenAllocator`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenParameters {
    /// CPUs `m` of the cluster that managed tasks may use.
    pub cpus: u32,
    /// Tokens `rho` per GPU.
    pub per_gpu: u32,
    /// Queue discipline.
    pub mode: Mode,
    /// Choose FIFOs by predicted completion rather than by length.
    pub affinity: bool,
    /// Count only what is left of a holder's prediction. The published implementation does not.
    pub discount_holder: bool,
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

impl TokenParameters {
    /// The queue sizes for `gpus` GPUs.
    ///
    /// # Errors
    /// [`Refused::Parameters`] if there is no CPU or token, or `F > k*L` so that a request could find no room.
    pub fn sizes(&self, gpus: u32) -> Result<Sizes, Refused> {
        let wrong = || Refused::Parameters { cpus: self.cpus, gpus, per_gpu: self.per_gpu, mode: self.mode };
        let m = self.cpus;
        let k = self.per_gpu.checked_mul(gpus).filter(|k| *k > 0 && *k <= Self::TOKENS_MAX).ok_or_else(wrong)?;
        if m == 0 || m > Self::CPUS_MAX {
            return Err(wrong());
        }
        let (queued, length) = match self.mode {
            Mode::Optimal => (Some(m), Some(m.div_ceil(k))),
            Mode::WorkConserving => (Some(m.max(k)), Some(m.max(k).div_ceil(k))),
            Mode::Relaxed(length) => (Some(m), Some(length)),
            Mode::Fifo => (None, None),
            Mode::Priority => (Some(k), Some(1)),
        };
        if let (Some(queued), Some(length)) = (queued, length)
            && u64::from(queued) > u64::from(k) * u64::from(length)
        {
            return Err(wrong());
        }
        let donation = queued.is_some_and(|queued| queued >= m);
        Ok(Sizes { tokens: k, queued_max: queued, length_max: length, donation })
    }

    /// The same with FIFOs long enough for `gpus` GPUs, at least one: where GPUs are lost, `relaxed` may need longer ones.
    pub(super) fn fitting(self, gpus: u32) -> Self {
        let tokens = self.per_gpu.saturating_mul(gpus).max(1);
        let mode = match self.mode {
            Mode::Relaxed(length) => Mode::Relaxed(length.max(self.cpus.div_ceil(tokens))),
            mode => mode,
        };
        Self { mode, ..self }
    }

    /// Most CPUs in a cluster.
    pub const CPUS_MAX: u32 = 1_024;
    /// Most tokens in a cluster.
    pub const TOKENS_MAX: u32 = 1_024;
}

impl Mode {
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
