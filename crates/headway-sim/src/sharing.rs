//! GPU sharing in virtual time: clusters of CPUs under EDF, GPUs with engines, tasks with state that migrates, arbitrated
//! by the state machines of `headway-core` or by the driver alone (`elliott-2013`).
//!
//! [`simulate`] runs one [`Cluster`] in one [`Scenario`] and tells an [`SimObserver`] of every step and every job. The same
//! seed gives the same log, byte for byte.

mod arbiter;
#[cfg(test)]
mod bounds_tests;
mod hardware;
mod job;
mod model;
mod observe;
mod run;
mod scenario;
mod steps;

use headway_core::decisions::sharing::ArbiterRefused;
use headway_core::units::Nanos;

pub use self::job::{Op, OpKind};
pub use self::model::{Cluster, ClusterCosts, ClusterSetting, CopyEngines, SimTask, scaled};
pub use self::observe::{Blocked, Finished, SimEvent, SimObserver, SimRecord, SimTotals};
pub use self::run::simulate;
pub use self::scenario::{ArbitrationScheme, Migration, NoScenario, Scenario, Taking};

/// A cluster that cannot be simulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimSharingError {
    /// The arbiter does not take an input.
    #[error("the arbiter refused an input")]
    Arbiter(#[from] ArbiterRefused),
    /// There is nothing to run on.
    #[error("a cluster of {cpus} CPUs and {gpus} GPUs runs nothing; give at least one of each")]
    Empty { cpus: u32, gpus: u32 },
    /// A task without a period would release jobs without end in one instant.
    #[error("task `{task}` has no period; give one above zero")]
    NoPeriod { task: String },
    /// A copy would never end.
    #[error("a rate of the cluster is zero; give every kind of copy a rate")]
    NoRate,
    /// The arbiter did what its contract excludes.
    #[error("{what}; this is a defect of Headway, please report it with the seed")]
    Defect {
        /// What it did.
        what: &'static str,
    },
}

fn check(cluster: &Cluster) -> Result<(), SimSharingError> {
    let (cpus, gpus) = (cluster.cpus, cluster.gpus());
    if cpus == 0 || gpus == 0 {
        return Err(SimSharingError::Empty { cpus, gpus });
    }
    if let Some(task) = cluster.tasks.iter().find(|task| task.period == Nanos::ZERO) {
        return Err(SimSharingError::NoPeriod { task: task.name.clone() });
    }
    let costs = &cluster.costs;
    let rates = [costs.to_gpu, costs.from_gpu].into_iter().chain(costs.peer.iter().copied());
    if costs.peer.is_empty() || rates.min().is_some_and(|rate| rate.0 == 0) {
        return Err(SimSharingError::NoRate);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
