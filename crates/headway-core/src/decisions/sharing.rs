//! GPU sharing after GPUSync (Elliott, Ward, Anderson, 2013): what tasks, jobs, GPUs, distances and priorities are.
//!
//! A task's jobs ask for *any* GPU of their cluster. A token ([`crate::decisions::token`]) is the right to use a GPU, an engine lock
//! ([`crate::decisions::engine_lock`]) the right to use one engine for one operation or chunk; [`crate::decisions::predictor`] says how long a
//! job will hold a token. [`Arbiter`] is all of them together, for every cluster of a node: what a driver talks to.

mod admission;
mod arbiter;
mod memory;
mod messages;
#[cfg(test)]
mod tests;

pub use self::arbiter::Arbiter;
pub use self::memory::ArbiterMemory;
pub use self::messages::{
    ArbiterAction, ArbiterEvent, ArbiterInput, ArbiterLimits, ArbiterParameters, ArbiterRefused, ClusterParameters,
    TokenOutcome,
};
pub use crate::models::sharing::{
    CLASSES, Class, ClientId, ClusterId, DistanceError, Distances, GpuId, JobId, JobPriority, JobSegment, ModelId,
    TaskDirection, TaskId, TaskParameters, TokenId,
};
