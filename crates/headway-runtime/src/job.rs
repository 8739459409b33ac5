//! What a cycle of a pipeline does with its bytes: operations over regions of buffers.
//!
//! There are two makers. Where packets have parts, each operation leaves its part in a buffer of its own; a stream on one processor
//! has one part: its packed block, or a packet as it came. Where packets are divided among GPUs, the summaries of all items are gathered on every GPU, and a
//! second kernel reads all of them.

use std::ops::Range;

use headway_core::files::machine::EngineClass;
use headway_core::plan::{OperationWork, Pipeline, PipelineSource, Plan, PlannedOperation, Sharded, is_first_kernel};
use headway_core::units::Bytes;

use crate::endpoints::CopyPath;
use crate::kernels::Kernels;

/// Where a buffer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobPlace {
    Host,
    Gpu(usize),
}

/// A buffer that each cycle has.
#[derive(Debug)]
pub(crate) struct JobBuffer {
    pub(crate) place: JobPlace,
    /// The GPU that host memory is page-locked for.
    pub(crate) gpu: usize,
    pub(crate) bytes: usize,
}

/// A range of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobRegion {
    pub(crate) buffer: usize,
    pub(crate) range: Range<usize>,
}

/// What carries an operation out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum JobEngine {
    /// `None` = a copy that no GPU can make.
    Copy(Option<CopyPath>),
    /// The execution engine of a GPU.
    Gpu(usize),
    /// A core of the CPU.
    Core(u32),
}

impl JobEngine {
    fn of(plan: &Plan, operation: &PlannedOperation) -> Self {
        if let OperationWork::Copy { .. } = operation.work {
            return Self::Copy(CopyPath::of(plan, operation));
        }
        let at = operation.engines.first().map_or(plan.engines.len(), |engine| engine.at());
        let gpu = plan.engines.get(at).and_then(|engine| engine.gpu).unwrap_or(0);
        plan.core(at).map_or(Self::Gpu(gpu as usize), Self::Core)
    }

    /// Where it takes its input.
    pub(crate) fn source(self) -> JobPlace {
        match self {
            Self::Copy(path) => path.and_then(|path| path.from).map_or(JobPlace::Host, JobPlace::Gpu),
            Self::Gpu(gpu) => JobPlace::Gpu(gpu),
            Self::Core(_) => JobPlace::Host,
        }
    }

    /// Where it leaves its output.
    fn target(self) -> JobPlace {
        match self {
            Self::Copy(path) => path.and_then(|path| path.to).map_or(JobPlace::Host, JobPlace::Gpu),
            Self::Gpu(_) | Self::Core(_) => self.source(),
        }
    }
}

/// One operation of a step.
#[derive(Debug)]
pub(crate) struct JobOperation {
    pub(crate) engine: JobEngine,
    pub(crate) from: JobRegion,
    pub(crate) to: JobRegion,
}

/// What every cycle of a pipeline does.
#[derive(Debug, Default)]
pub(crate) struct PipelineJob {
    pub(crate) buffers: Vec<JobBuffer>,
    /// By step, then by operation.
    pub(crate) steps: Vec<Vec<JobOperation>>,
    /// The buffers that data is put into, ascending.
    pub(crate) inputs: Vec<usize>,
    /// The buffers that the results are in, ascending.
    pub(crate) outputs: Vec<usize>,
    /// Each buffer holds one packed block, whose size follows from what the cycle gathered. Other buffers are always full.
    pub(crate) is_packed: bool,
}

impl PipelineJob {
    /// The job of pipeline `number`; `None` if no stream feeds it.
    pub(crate) fn of(plan: &Plan, number: u32, kernels: &Kernels) -> Option<Self> {
        let pipeline = &plan.pipelines[number as usize];
        match &pipeline.source {
            PipelineSource::Streams(_) => {
                let of = vec![vec![0]; pipeline.steps.len()];
                let size = |_, _| pipeline.reserve;
                Some(Self { is_packed: true, ..Self::in_places(plan, pipeline, 1, &of, size) })
            }
            PipelineSource::Packets(packets) => {
                let of = vec![vec![0]; pipeline.steps.len()];
                Some(Self::in_places(plan, pipeline, 1, &of, |steps, _| packets.bytes(steps)))
            }
            PipelineSource::Parts(parted) => {
                Some(Self::in_places(plan, pipeline, parted.parts.len(), &parted.of, |_, part| parted.reserves[part]))
            }
            PipelineSource::Sharded(sharded) => Some(Self::all_gather(plan, number, sharded, kernels)),
            PipelineSource::Message
            | PipelineSource::Batch(_)
            | PipelineSource::Demand
            | PipelineSource::Bulk(_)
            | PipelineSource::Urgent(_) => None,
        }
    }

    fn buffer(&mut self, place: JobPlace, gpu: usize, bytes: usize) -> JobRegion {
        self.buffers.push(JobBuffer { place, gpu, bytes });
        JobRegion { buffer: self.buffers.len() - 1, range: 0..bytes }
    }

    /// Operations on so many parts, where `of` names the part of each operation: it leaves the part in a new place. `size` says how
    /// large a part is behind so many steps.
    fn in_places(
        plan: &Plan,
        pipeline: &Pipeline,
        parts: usize,
        of: &[Vec<u32>],
        size: impl Fn(usize, usize) -> Bytes,
    ) -> Self {
        let mut job = Self::default();
        let gpu = pipeline.gpu.unwrap_or(0) as usize;
        let engines: Vec<Vec<JobEngine>> = pipeline
            .steps
            .iter()
            .map(|step| step.operations.iter().map(|operation| JobEngine::of(plan, operation)).collect())
            .collect();
        let first = |part: usize| {
            let mut operations = engines.iter().flatten().zip(of.iter().flatten());
            operations.find(|(_, of)| **of as usize == part).map_or(JobPlace::Host, |(engine, _)| engine.source())
        };
        let mut at: Vec<JobRegion> =
            (0..parts).map(|part| job.buffer(first(part), gpu, size(0, part).0 as usize)).collect();
        job.inputs = at.iter().map(|region| region.buffer).collect();
        for (before, (engines, of)) in engines.iter().zip(of).enumerate() {
            let operation = |(&engine, &part): (&JobEngine, &u32)| {
                let to = job.buffer(engine.target(), gpu, size(before + 1, part as usize).0 as usize);
                let from = std::mem::replace(&mut at[part as usize], to.clone());
                JobOperation { engine, from, to }
            };
            let operations = engines.iter().zip(of).map(operation).collect();
            job.steps.push(operations);
        }
        job.outputs = at.iter().map(|region| region.buffer).collect();
        job
    }

    /// Each GPU works on its own items and sends the summaries to all others; then it works on the summaries of all.
    fn all_gather(plan: &Plan, number: u32, planned: &Sharded, kernels: &Kernels) -> Self {
        let steps = &plan.pipelines[number as usize].steps;
        let sharding = &planned.sharding;
        let all = sharding.summaries(sharding.items).0 as usize;
        let second = kernels.of_pipeline(number).last().expect("a pipeline that is divided has two kernels");
        let made = second.work.output_bytes(all, sharding.items);
        let mut job = Self::default();
        let mut on_gpus = Vec::new();
        for shard in &planned.shards {
            let (gpu, block) = (shard.gpu as usize, planned.block(shard).0 as usize);
            on_gpus.push(ShardRegions {
                items: job.buffer(JobPlace::Host, gpu, block),
                on_gpu: job.buffer(JobPlace::Gpu(gpu), gpu, block),
                summaries: job.buffer(JobPlace::Gpu(gpu), gpu, all),
                made: job.buffer(JobPlace::Gpu(gpu), gpu, made),
                result: job.buffer(JobPlace::Host, gpu, sharding.summary.0 as usize),
            });
        }
        let own = |of: usize, from: usize| {
            let range = planned.summaries_of(&planned.shards[from]);
            JobRegion { range, ..on_gpus[of].summaries.clone() }
        };
        let peers: Vec<(usize, usize)> = planned.peers().collect();
        for (at, step) in steps.iter().enumerate() {
            let is_first = is_first_kernel(steps, at);
            let operation = |(index, operation): (usize, &PlannedOperation)| {
                let (from, to) = match operation.work {
                    OperationWork::Copy { class: EngineClass::Peer, .. } => {
                        let (from, to) = peers[index];
                        (own(from, from), own(to, from))
                    }
                    OperationWork::Copy { class: EngineClass::D2h, .. } => {
                        let ShardRegions { made, result, .. } = &on_gpus[index];
                        (JobRegion { buffer: made.buffer, range: result.range.clone() }, result.clone())
                    }
                    OperationWork::Copy { .. } => (on_gpus[index].items.clone(), on_gpus[index].on_gpu.clone()),
                    _ if is_first => (on_gpus[index].on_gpu.clone(), own(index, index)),
                    OperationWork::Compute { .. } | OperationWork::Hold => {
                        (on_gpus[index].summaries.clone(), on_gpus[index].made.clone())
                    }
                };
                JobOperation { engine: JobEngine::of(plan, operation), from, to }
            };
            job.steps.push(step.operations.iter().enumerate().map(operation).collect());
        }
        job.inputs = on_gpus.iter().map(|regions| regions.items.buffer).collect();
        job.outputs = on_gpus.iter().map(|regions| regions.result.buffer).collect();
        job
    }

    /// How much of a buffer or region of `bytes` bytes a cycle uses whose block has `block` bytes.
    pub(crate) fn used(&self, bytes: usize, block: Bytes) -> usize {
        if self.is_packed { block.0 as usize } else { bytes }
    }
}

/// What one GPU has of a packet that is divided.
struct ShardRegions {
    items: JobRegion,
    on_gpu: JobRegion,
    /// What the first kernels made of all items.
    summaries: JobRegion,
    /// The result, and scratch memory behind it.
    made: JobRegion,
    result: JobRegion,
}
