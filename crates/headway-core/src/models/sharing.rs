//! What tasks that share GPUs are, and by which rules they do: names, segments of jobs, distances, disciplines.

mod parameters;
mod tasks;
mod token_mode;

pub use self::parameters::{EngineParameters, LockOrder, PeerLocks, TokenParameters};
pub use self::tasks::{
    CLASSES, Class, ClientId, ClusterId, DistanceError, Distances, GpuId, JobId, JobPriority, JobSegment, ModelId,
    TaskDirection, TaskId, TaskParameters, TokenId,
};
pub use self::token_mode::{Sizes, TokenMode};
