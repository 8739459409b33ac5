//! Tasks, jobs, GPUs and what sets them apart: the words that tokens, engine locks and predictions have in common.

use serde::{Deserialize, Serialize};

use crate::units::{Bytes, Nanos};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($of:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $of);
    };
}

id!(/// A task, unique in the node while it is registered.
    TaskId(u32));
id!(/// A process, or what else dies as one: its requests are dropped together.
    ClientId(u64));
id!(/// A GPU of the node, by its number in the machine file.
    GpuId(u32));
id!(/// A token of one cluster: token `x` of `g` GPUs belongs to the GPU at position `x mod g`.
    TokenId(u32));
id!(/// A cluster: CPUs under one queue, and the GPUs beside them.
    ClusterId(u32));
id!(/// A kind of GPU; costs are predicted per model.
    ModelId(u32));
id!(/// How far apart two GPUs are: 0 = the same, then larger with the measured cost of migration.
    Class(u8));

/// Distance classes that a machine can have (specification of sharing, 1).
pub const CLASSES: usize = 8;

/// One job: what asks for tokens and engine locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobId {
    /// Its task. At most one job of a task has a request open: jobs of a task run in sequence.
    pub task: TaskId,
    /// Its number, from 0.
    pub job: u64,
}

/// A job's priority, fixed while it runs: the smaller, the more urgent. Total, as no two open jobs share a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobPriority {
    /// Absolute deadline.
    pub deadline: Nanos,
    pub release: Nanos,
    /// Task, then number: ties are broken by them.
    pub job: JobId,
}

/// Direction of a copy, seen from the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskDirection {
    /// Host to GPU.
    ToGpu,
    /// GPU to host.
    FromGpu,
}

/// A part of a job, in the order of the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobSegment {
    /// Time on a CPU while the token is held; the longest.
    Cpu(Nanos),
    /// One copy between host and GPU.
    Copy { direction: TaskDirection, bytes: Bytes },
    /// Kernels between two synchronisations: one request for the execution engine.
    Execute {
        /// What runs, for people.
        kernel: String,
        /// The longest time it takes.
        time: Nanos,
    },
}

/// A task as it is registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskParameters {
    pub id: TaskId,
    /// The client that runs it.
    pub client: ClientId,
    /// Where it runs.
    pub cluster: ClusterId,
    /// Minimum time between two releases.
    pub period: Nanos,
    /// Relative deadline.
    pub deadline: Nanos,
    /// Data that migrates with the task when its GPU changes.
    pub state: Bytes,
    /// Input and output copies, kernels and CPU time while the token is held; the state's copies are not listed.
    pub segments: Vec<JobSegment>,
}

/// How far apart the GPUs of a cluster are, by their positions in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Distances(Vec<Vec<Class>>);

impl Distances {
    /// The classes of every ordered pair, row = where the state is, column = where it goes.
    ///
    /// # Errors
    /// [`DistanceError`] unless the table is square, its diagonal 0, every other class 1 to 7.
    pub fn new(rows: Vec<Vec<Class>>) -> Result<Self, DistanceError> {
        let gpus = rows.len();
        for (from, row) in rows.iter().enumerate() {
            if row.len() != gpus {
                return Err(DistanceError::NotSquare { from, columns: row.len(), gpus });
            }
            for (to, class) in row.iter().enumerate() {
                if usize::from(class.0) >= CLASSES || (class.0 == 0) != (from == to) {
                    return Err(DistanceError::Class { from, to, class: class.0 });
                }
            }
        }
        Ok(Self(rows))
    }

    /// `gpus` GPUs, each as far from every other: class 1.
    #[must_use]
    pub fn uniform(gpus: usize) -> Self {
        Self((0..gpus).map(|from| (0..gpus).map(|to| Class(u8::from(from != to))).collect()).collect())
    }

    /// GPUs in groups of `group` behind one switch: 1 within a group, 2 between groups.
    #[must_use]
    pub fn switched(gpus: usize, group: usize) -> Self {
        let group = group.max(1);
        let class = |from: usize, to: usize| match (from == to, from / group == to / group) {
            (true, _) => Class(0),
            (false, true) => Class(1),
            (false, false) => Class(2),
        };
        Self((0..gpus).map(|from| (0..gpus).map(|to| class(from, to)).collect()).collect())
    }

    /// GPUs in the table.
    #[must_use]
    pub fn gpus(&self) -> usize {
        self.0.len()
    }

    /// From the GPU at position `from` to the one at `to`; both below [`Distances::gpus`].
    #[must_use]
    pub fn class(&self, from: usize, to: usize) -> Class {
        self.0[from][to]
    }
}

/// A table of distances that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DistanceError {
    /// A row is not as long as there are rows.
    #[error("the distances from GPU {from} have {columns} columns; give one for each of the {gpus} GPUs")]
    NotSquare { from: usize, columns: usize, gpus: usize },
    /// A class is out of range, zero between two GPUs, or not zero on the diagonal.
    #[error("the distance from GPU {from} to GPU {to} is class {class}; use 0 for the same GPU and 1 to 7 otherwise")]
    Class {
        from: usize,
        to: usize,
        /// What was given.
        class: u8,
    },
}
