//! What an arbiter leaves to the one that comes after it.

use serde::{Deserialize, Serialize};

use super::{Arbiter, Class, ClusterId, GpuId, TaskId};
use crate::decisions::predictor::{Estimator, Subject};
use crate::decisions::token::TokenParameters;
use crate::units::Nanos;

/// What an [`Arbiter`] must know of its predecessor. Which tasks hold and wait is not in it: their processes tell that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArbiterMemory {
    /// What the predictor has learnt.
    pub estimators: Vec<(Subject, Class, Estimator)>,
    /// The GPU that each task used last: its state is there.
    pub homes: Vec<(TaskId, GpuId)>,
    /// GPUs that are lost.
    pub lost: Vec<GpuId>,
    /// How tokens are given now, where that was changed or will be.
    pub tokens: Vec<(ClusterId, TokenParameters)>,
}

impl Arbiter {
    /// What is to be remembered.
    #[must_use]
    pub fn memory(&self) -> ArbiterMemory {
        let mut memory = ArbiterMemory::default();
        let estimators = self.predictor.estimators();
        memory.estimators = estimators.map(|(subject, class, known)| (subject, class, known.clone())).collect();
        for (id, cluster) in &self.clusters {
            let gpus = &cluster.parameters.gpus;
            memory.homes.extend(cluster.tokens.homes().map(|(task, position)| (task, gpus[position])));
            let lost = (0..gpus.len()).filter(|position| cluster.tokens.is_lost(*position));
            memory.lost.extend(lost.map(|position| gpus[position]));
            if cluster.tokens.parameters() != cluster.parameters.tokens {
                memory.tokens.push((*id, cluster.tokens.parameters()));
            }
        }
        memory
    }

    /// Takes over what the arbiter before it knew. To be called before any input; what does not fit is left out.
    pub fn recall(&mut self, now: Nanos, memory: &ArbiterMemory) {
        for (subject, class, estimator) in &memory.estimators {
            self.predictor.handle_recall(*subject, *class, estimator.clone());
        }
        for (id, tokens) in &memory.tokens {
            if let Some(cluster) = self.clusters.get_mut(id) {
                // Parameters that work for the GPUs of the one before may not for these.
                let _ = cluster.tokens.handle_reconfigure(now, *tokens);
            }
        }
        for cluster in self.clusters.values_mut() {
            let gpus = cluster.parameters.gpus.clone();
            for gpu in memory.lost.iter().filter(|gpu| gpus.contains(gpu)) {
                let _ = cluster.tokens.handle_gpu_lost(now, *gpu);
            }
            for (task, home) in &memory.homes {
                if let Some(position) = gpus.iter().position(|gpu| gpu == home) {
                    cluster.tokens.handle_home(*task, position);
                }
            }
            // Nobody is there yet whom this could concern.
            while cluster.tokens.poll_action().is_some() {}
            while cluster.tokens.poll_event().is_some() {}
        }
    }
}
