//! The arbiter of a scenario: the state machines of `headway-core` with the parameters that its code stands for.

use headway_core::decisions::engine_lock::{EngineParameters, PeerLocks};
use headway_core::decisions::predictor::PredictorParameters;
use headway_core::decisions::sharing::{
    Arbiter, ArbiterInput, ArbiterLimits, ArbiterParameters, ClientId, ClusterId, ClusterParameters, TaskId,
    TaskParameters,
};
use headway_core::decisions::token::TokenParameters;
use headway_core::units::Nanos;

use super::SimSharingError;
use super::model::{Cluster, ClusterSetting, CopyEngines, SimTask};
use super::scenario::{ArbitrationScheme, Taking};

/// How tokens are given; `None` where the driver arbitrates.
pub(super) fn tokens(cluster: &Cluster, setting: &ClusterSetting) -> Option<TokenParameters> {
    let per_gpu = setting.tokens_per_gpu()?;
    let (mode, affinity) = (setting.mode, setting.scenario.affinity);
    Some(TokenParameters { cpus: cluster.cpus, per_gpu, mode, affinity })
}

/// The engine locks; `None` without.
pub(super) fn engines(cluster: &Cluster, setting: &ClusterSetting) -> Option<EngineParameters> {
    let scenario = setting.scenario;
    (scenario.arbitration == ArbitrationScheme::EngineLocks).then_some(EngineParameters {
        copy_engines: match cluster.copy_engines {
            CopyEngines::One => 1,
            CopyEngines::Two => 2,
        },
        peer: match scenario.taking {
            Taking::Group => PeerLocks::Group,
            Taking::Nested => PeerLocks::Nested,
            Taking::Backfill => PeerLocks::GroupBackfill,
        },
        order: setting.order,
        chunk_bytes: scenario.chunk,
        watchdog: Nanos::ZERO,
    })
}

/// A task as the arbiter knows it.
pub(super) fn registered(number: u32, task: &SimTask) -> TaskParameters {
    TaskParameters {
        id: TaskId(number),
        client: ClientId(u64::from(number)),
        cluster: ClusterId(0),
        period: task.period,
        deadline: task.deadline,
        state: task.state,
        segments: task.segments.clone(),
    }
}

/// The arbiter with all tasks registered; `None` where the driver arbitrates.
pub(super) fn build(cluster: &Cluster, setting: &ClusterSetting) -> Result<Option<Arbiter>, SimSharingError> {
    let Some(tokens) = tokens(cluster, setting) else { return Ok(None) };
    let clusters = vec![ClusterParameters {
        distances: cluster.distances.clone(),
        ..ClusterParameters::equal(cluster.gpus(), tokens)
    }];
    let parameters = ArbiterParameters {
        predictor: PredictorParameters {
            form: setting.predictor,
            speeds: Vec::new(),
            estimators_max: ArbiterLimits::default().tasks_max * headway_core::decisions::sharing::CLASSES,
        },
        ..ArbiterParameters::new(clusters, engines(cluster, setting))
    };
    let mut arbiter = Arbiter::new(parameters)?;
    for (number, task) in (0..).zip(&cluster.tasks) {
        arbiter.handle(Nanos::ZERO, &ArbiterInput::Register(registered(number, task)))?;
    }
    Ok(Some(arbiter))
}
