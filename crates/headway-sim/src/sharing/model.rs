//! What is simulated: a cluster of CPUs and GPUs, its costs, and the tasks that share it.

use headway_core::decisions::engine_lock::LockOrder;
use headway_core::decisions::predictor::Form;
use headway_core::decisions::sharing::{Distances, JobSegment};
use headway_core::decisions::token::TokenMode;
use headway_core::units::{Bytes, Nanos, PPM, Rate};

use super::scenario::Scenario;

/// CPUs under one EDF queue and the GPUs beside them (`elliott-2013`, 3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// CPUs `m`.
    pub cpus: u32,
    /// Copy engines of each GPU: with one, both directions share it.
    pub copy_engines: CopyEngines,
    /// How far apart the GPUs are; its size is their number `g`.
    pub distances: Distances,
    /// What copies and calls cost.
    pub costs: ClusterCosts,
    /// Tasks that run here and use GPUs.
    pub tasks: Vec<SimTask>,
}

/// Copy engines of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyEngines {
    /// One for both directions.
    One,
    /// One inbound, one outbound.
    Two,
}

/// Costs of a cluster's transfers and calls. A copy's time is `copy_setup + bytes / rate`, whatever else runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterCosts {
    /// Host to GPU.
    pub to_gpu: Rate,
    /// GPU to host.
    pub from_gpu: Rate,
    /// GPU to GPU by distance class, from class 1; the last one stands for all that are farther.
    pub peer: Vec<Rate>,
    /// Time of a copy before its first byte, on the engine.
    pub copy_setup: Nanos,
    /// CPU time to submit one operation, locks already held.
    pub call: Nanos,
    /// From a token's grant to the job being told.
    pub grant: Nanos,
    /// From an engine lock's grant to the job being told.
    pub handover: Nanos,
}

/// A recurrent task (specification of sharing, 1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimTask {
    /// Name, for people.
    pub name: String,
    /// Time between releases, above zero.
    pub period: Nanos,
    /// Relative deadline.
    pub deadline: Nanos,
    /// First release.
    pub start: Nanos,
    /// Data that follows the task from GPU to GPU.
    pub state: Bytes,
    /// CPU time before the job requests a token.
    pub before: Nanos,
    /// What happens while the token is held, costs at their mean.
    pub segments: Vec<JobSegment>,
    /// CPU time after the token is released.
    pub after: Nanos,
    /// Each job's CPU and kernel times are its mean times a factor from `1 - jitter` to `1 + jitter`, parts per million.
    pub jitter_ppm: u32,
}

/// How a cluster is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterSetting {
    /// Which configuration.
    pub scenario: Scenario,
    /// Tokens per GPU instead of the scenario's; not used where the driver arbitrates.
    pub tokens_per_gpu: Option<u32>,
    /// The order in which engines with locks serve jobs.
    pub order: LockOrder,
    /// Queue discipline of the tokens.
    pub mode: TokenMode,
    /// Cost predictor.
    pub predictor: Form,
    /// Seed of everything drawn.
    pub seed: u64,
    /// When the simulation ends; it reports no job that is not complete then.
    pub until: Nanos,
}

impl ClusterSetting {
    /// Tokens of each GPU; `None` where the driver arbitrates.
    #[must_use]
    pub fn tokens_per_gpu(&self) -> Option<u32> {
        self.scenario.tokens_per_gpu().map(|usual| self.tokens_per_gpu.unwrap_or(usual))
    }
}

impl Cluster {
    /// GPUs `g`.
    #[must_use]
    pub fn gpus(&self) -> u32 {
        self.distances.gpus() as u32
    }
}

impl ClusterCosts {
    /// The time of `bytes` on an engine at `rate`.
    pub(crate) fn copy(&self, rate: Rate, bytes: Bytes) -> Nanos {
        self.copy_setup.saturating_add(rate.time_for(bytes))
    }

    /// Rate of a peer copy over `class` above 0.
    pub(crate) fn peer(&self, class: u8) -> Rate {
        let index = usize::from(class).saturating_sub(1).min(self.peer.len().saturating_sub(1));
        self.peer.get(index).copied().unwrap_or(Rate(0))
    }

    /// The longest time that one chunk of at most `bytes` keeps an engine, by whatever path.
    #[must_use]
    pub fn longest_copy(&self, bytes: Bytes) -> Nanos {
        let slowest = self.peer.iter().copied().chain([self.to_gpu, self.from_gpu]).min().unwrap_or(Rate(0));
        self.copy(slowest, bytes)
    }
}

/// `time * ppm / 10^6`, rounded up.
#[must_use]
pub fn scaled(time: Nanos, ppm: u64) -> Nanos {
    let scaled = (u128::from(time.0) * u128::from(ppm)).div_ceil(u128::from(PPM));
    Nanos(u64::try_from(scaled).unwrap_or(u64::MAX))
}
