//! What one job does, step by step: its segments, its migration, its copies cut into chunks.

use headway_core::decisions::engine_lock::{EngineRole, LockId};
use headway_core::decisions::sharing::{GpuId, JobSegment, TaskDirection};
use headway_core::units::{Bytes, Nanos, PPM};

use super::model::{Cluster, CopyEngines, SimTask, scaled};
use super::scenario::{Migration, Scenario};

/// Engines per GPU that an index counts.
pub(crate) const UNITS: usize = 3;

/// Index of an engine among all engines of its cluster.
pub(crate) fn index(engine: LockId) -> usize {
    engine.gpu.0 as usize * UNITS + engine.engine as usize
}

/// What an operation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpKind {
    /// Input of the job.
    Input,
    /// Output of the job.
    Output,
    /// State from system memory.
    StateIn,
    /// State to system memory.
    StateOut,
    /// State from another GPU.
    Peer,
    /// A kernel segment.
    Execute,
}

/// One operation: a chunk of a copy, or a kernel segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// What it is for.
    pub kind: OpKind,
    /// The engine it runs on.
    pub engine: LockId,
    /// A peer copy also keeps the source's engine.
    pub source: Option<LockId>,
    /// What it moves; 0 for kernels.
    pub bytes: Bytes,
    /// Time on the engines.
    pub time: Nanos,
}

impl Op {
    /// Its engines: one, or two for a peer copy.
    pub(crate) fn engines(&self) -> impl Iterator<Item = LockId> + use<> {
        [Some(self.engine), self.source].into_iter().flatten()
    }
}

/// A step of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SimStep {
    Cpu(Nanos),
    Request,
    Op(Op),
    Release,
}

/// Costs of one job, drawn when it starts, parts per million of the means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Draw {
    pub(crate) cpu_ppm: u64,
    pub(crate) execute_ppm: u64,
}

impl Draw {
    /// From two random numbers: a factor from `1 - jitter` to `1 + jitter` for each.
    pub(crate) fn new(jitter_ppm: u32, random: [u64; 2]) -> Self {
        let jitter = u64::from(jitter_ppm).min(PPM);
        let [cpu_ppm, execute_ppm] = random.map(|number| PPM - jitter + number % (2 * jitter + 1));
        Self { cpu_ppm, execute_ppm }
    }
}

/// Writes the steps until the token's grant.
pub(crate) fn begin(task: &SimTask, draw: Draw, steps: &mut Vec<SimStep>) {
    steps.clear();
    steps.extend([SimStep::Cpu(scaled(task.before, draw.cpu_ppm)), SimStep::Request]);
}

/// Adds the steps from the grant of `gpu` on; `from` is the GPU that has the state, if it is another one.
pub(crate) fn after_grant(
    cluster: &Cluster,
    scenario: Scenario,
    task: &SimTask,
    draw: Draw,
    gpu: u32,
    from: Option<u32>,
    steps: &mut Vec<SimStep>,
) {
    let mut put = Put { cluster, scenario, gpu, steps };
    match (from, scenario.migration) {
        (Some(from), Migration::Peer) => put.copy(OpKind::Peer, task.state, Some(from)),
        (Some(_), Migration::System) => put.copy(OpKind::StateIn, task.state, None),
        (None, _) => {}
    }
    for segment in &task.segments {
        match segment {
            JobSegment::Cpu(time) => put.steps.push(SimStep::Cpu(scaled(*time, draw.cpu_ppm))),
            JobSegment::Copy { direction: TaskDirection::ToGpu, bytes } => put.copy(OpKind::Input, *bytes, None),
            JobSegment::Copy { direction: TaskDirection::FromGpu, bytes } => put.copy(OpKind::Output, *bytes, None),
            JobSegment::Execute { time, .. } => {
                let engine = LockId { gpu: GpuId(gpu), engine: EngineRole::Execute };
                let time = scaled(*time, draw.execute_ppm);
                let kind = OpKind::Execute;
                put.steps.push(SimStep::Op(Op { kind, engine, source: None, bytes: Bytes(0), time }));
            }
        }
    }
    if scenario.migration == Migration::System {
        put.copy(OpKind::StateOut, task.state, None);
    }
    steps.extend([SimStep::Release, SimStep::Cpu(scaled(task.after, draw.cpu_ppm))]);
}

struct Put<'a> {
    cluster: &'a Cluster,
    scenario: Scenario,
    gpu: u32,
    steps: &'a mut Vec<SimStep>,
}

impl Put<'_> {
    /// A copy, cut into chunks.
    fn copy(&mut self, kind: OpKind, bytes: Bytes, from: Option<u32>) {
        let costs = &self.cluster.costs;
        let outbound = match self.cluster.copy_engines {
            CopyEngines::One => EngineRole::In,
            CopyEngines::Two => EngineRole::Out,
        };
        let (unit, rate) = match (kind, from) {
            (OpKind::Peer, Some(from)) => {
                let class = self.cluster.distances.class(from as usize, self.gpu as usize);
                (EngineRole::In, costs.peer(class.0))
            }
            (OpKind::Output | OpKind::StateOut, _) => (outbound, costs.from_gpu),
            _ => (EngineRole::In, costs.to_gpu),
        };
        let engine = LockId { gpu: GpuId(self.gpu), engine: unit };
        let source = from.map(|gpu| LockId { gpu: GpuId(gpu), engine: outbound });
        let largest = self.scenario.chunk.unwrap_or(bytes).0.max(1);
        let mut left = bytes.0;
        while left > 0 {
            let bytes = Bytes(left.min(largest));
            left -= bytes.0;
            self.steps.push(SimStep::Op(Op { kind, engine, source, bytes, time: costs.copy(rate, bytes) }));
        }
    }
}
