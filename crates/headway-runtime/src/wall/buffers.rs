//! The buffers of every pipeline on its device, and how a piece of a step becomes an operation on them.

use std::collections::BTreeMap;
use std::ops::Range;

use headway_core::files::machine::EngineClass;
use headway_core::models::transfer::Method;
use headway_core::plan::{self, Pipeline, PipelineSource, Plan};
use headway_core::units::{Bytes, Nanos};
use headway_device::{Access, Buffer, DeviceError, Engines, HostKind, Span};

use super::RunError;
use super::cores::Cores;
use super::messages::{self, MessageBuffers, MessageComparison};
use super::parted::PartedBuffers;
use super::piece::StepChunk;
use super::resident::{Resident, Room};
use super::sharded::ShardedBuffers;
use super::stage::{Stage, stage};
use crate::blocks::{Collect, Supply};
use crate::cores::{CoreJob, CoreMemory};
use crate::kernels::Kernels;

/// Time that the blocks of a core's pipeline reach ahead, in at most so many cycles.
const AHEAD: Nanos = Nanos(20_000_000);
const CYCLES_AHEAD_MAX: u64 = 48;

/// What one step does on the device.
enum Stepped {
    Copy {
        class: EngineClass,
        method: Method,
    },
    Compute(Stage),
    /// Whatever the core has for it.
    OnCore,
}

/// What serves a pipeline.
#[derive(Clone, Copy)]
enum On {
    Device(usize),
    Core(u32),
}

/// What a pipeline has: buffers of its kind.
enum PipelineBuffers {
    Block(BlockBuffers),
    Sharded(ShardedBuffers),
    Parts(PartedBuffers),
    Messages(MessageBuffers),
    /// Only time passes.
    Flow,
}

struct BlockBuffers {
    on: On,
    steps: Vec<Stepped>,
    /// Per slot: one buffer before the first step and one after each, but of those that are [`Resident`].
    slots: Vec<Vec<Buffer>>,
    /// The blocks before the first step, where it begins on a GPU.
    first: Option<Resident>,
    /// The blocks after the last step, where it ends on a GPU.
    last: Option<Resident>,
}

impl BlockBuffers {
    /// Claims `range` of the block that a piece's cycle has after so many steps.
    fn claim(&self, piece: &StepChunk, steps: usize, range: Range<usize>, access: Access) -> Result<Span, DeviceError> {
        match (&self.first, &self.last) {
            (Some(first), _) if steps == 0 => first.claim(piece.cycle, range, access),
            (_, Some(last)) if steps == self.steps.len() => last.claim(piece.cycle, range, access),
            _ => self.slots[piece.slot][steps - usize::from(self.first.is_some())].claim(range, access),
        }
    }
}

/// All buffers of a run. Claims on them are checked, so any thread may hold a reference.
pub(super) struct Buffers {
    pipelines: Vec<PipelineBuffers>,
}

impl Buffers {
    /// Allocates the buffers of `plan` and loads its kernels with their first states.
    pub(super) fn new(
        plan: &Plan,
        devices: &mut [Engines],
        kernels: &Kernels,
        cycles: &[u64],
        spare_cycles: usize,
    ) -> Result<Self, RunError> {
        let count = devices.len();
        let (mut pipelines, memory, mut room) = (Vec::new(), CoreMemory::default(), Room::new(count));
        for (number, pipeline) in (0u32..).zip(&plan.pipelines) {
            match &pipeline.source {
                PipelineSource::Sharded(planned) => {
                    let buffers = ShardedBuffers::new(planned, pipeline, devices, kernels, number)?;
                    pipelines.push(PipelineBuffers::Sharded(buffers));
                    continue;
                }
                PipelineSource::Parts(planned) => {
                    let buffers = PartedBuffers::new(planned, plan, number, devices, kernels, spare_cycles)?;
                    pipelines.push(PipelineBuffers::Parts(buffers));
                    continue;
                }
                PipelineSource::Message
                | PipelineSource::Batch(_)
                | PipelineSource::Bulk(_)
                | PipelineSource::Urgent(_) => {
                    pipelines.push(PipelineBuffers::Messages(MessageBuffers::new(plan, number, devices, cycles)?));
                    continue;
                }
                PipelineSource::Demand => {
                    pipelines.push(PipelineBuffers::Flow);
                    continue;
                }
                PipelineSource::Streams(_) => {}
            }
            if let Some(core) = plan.core_of(pipeline) {
                pipelines.push(PipelineBuffers::Block(on_core(pipeline, core, &memory, spare_cycles)?));
                continue;
            }
            let gpu = pipeline.gpu.unwrap_or(0);
            let device = devices.get_mut(gpu as usize).ok_or(RunError::NoDevice { gpu, devices: count })?;
            let stages = kernels.stages().filter(|(of, ..)| *of == number);
            let mut stages: Vec<(u32, Stage)> = stages
                .map(|(_, step, kernel)| Ok((step, stage(device, kernel, kernels.portions(number))?)))
                .collect::<Result<_, RunError>>()?;
            let mut steps = Vec::new();
            for (step, planned) in (0u32..).zip(&pipeline.steps) {
                steps.push(match &planned.operations[0].work {
                    plan::OperationWork::Copy { class, method, .. } => Stepped::Copy { class: *class, method: *method },
                    plan::OperationWork::Compute { .. } | plan::OperationWork::Hold => {
                        let at = stages.iter().position(|(of, _)| *of == step).expect("every compute step has a stage");
                        Stepped::Compute(stages.swap_remove(at).1)
                    }
                });
            }
            let places = places(pipeline, number)?;
            let between = usize::from(places.begins_on_gpu)..places.after.len() + 1 - usize::from(places.ends_on_gpu());
            let slots = (0..pipeline.steps.len() + 1 + spare_cycles)
                .map(|_| between.clone().map(|steps| buffer(device, pipeline, places.on_gpu(steps))).collect())
                .collect::<Result<_, DeviceError>>()
                .map_err(|source| unprepared(pipeline, source))?;
            let (gpu, all) = (gpu as usize, cycles[number as usize]);
            let mut resident = |is: bool| is.then(|| room.resident(devices, gpu, number, pipeline, all)).transpose();
            let (first, last) = (resident(places.begins_on_gpu)?, resident(places.ends_on_gpu())?);
            pipelines.push(PipelineBuffers::Block(BlockBuffers { on: On::Device(gpu), steps, slots, first, last }));
        }
        Ok(Self { pipelines })
    }

    /// How many cycles of a pipeline can hold buffers at a time.
    pub(super) fn slots(&self, pipeline: u32) -> usize {
        match &self.pipelines[pipeline as usize] {
            PipelineBuffers::Block(buffers) => buffers.slots.len(),
            PipelineBuffers::Sharded(buffers) => buffers.slots(),
            PipelineBuffers::Parts(buffers) => buffers.slots(),
            PipelineBuffers::Messages(_) | PipelineBuffers::Flow => 0,
        }
    }

    /// The buffers of a slot that a cycle's data is put into.
    pub(super) fn first(&self, pipeline: u32, slot: usize) -> Ends<'_> {
        match &self.pipelines[pipeline as usize] {
            PipelineBuffers::Block(BlockBuffers { first: Some(first), .. }) => Ends::Resident(first),
            PipelineBuffers::Block(buffers) => Ends::Block(&buffers.slots[slot][0]),
            PipelineBuffers::Parts(buffers) => Ends::Block(buffers.first(slot)),
            PipelineBuffers::Sharded(buffers) => Ends::Sharded(buffers),
            PipelineBuffers::Messages(buffers) => Ends::Messages(buffers),
            PipelineBuffers::Flow => Ends::Nowhere,
        }
    }

    /// The buffers of a slot that a cycle's result is in.
    pub(super) fn last(&self, pipeline: u32, slot: usize) -> Ends<'_> {
        match &self.pipelines[pipeline as usize] {
            PipelineBuffers::Block(BlockBuffers { last: Some(last), .. }) => Ends::Resident(last),
            PipelineBuffers::Block(buffers) => {
                Ends::Block(buffers.slots[slot].last().expect("a slot has a buffer before the first step"))
            }
            PipelineBuffers::Parts(buffers) => Ends::Block(buffers.last(slot)),
            PipelineBuffers::Sharded(buffers) => Ends::Sharded(buffers),
            PipelineBuffers::Messages(buffers) => Ends::Messages(buffers),
            PipelineBuffers::Flow => Ends::Nowhere,
        }
    }

    /// Brings the blocks of pipelines that begin on a GPU.
    pub(super) fn bring(
        &mut self,
        plan: &Plan,
        devices: &mut [Engines],
        cycles: &[u64],
        supply: &mut dyn Supply,
    ) -> Result<(), RunError> {
        for ((number, buffers), pipeline) in (0u32..).zip(&mut self.pipelines).zip(&plan.pipelines) {
            if let PipelineBuffers::Block(BlockBuffers { first: Some(first), .. }) = buffers {
                first.bring(devices, number, pipeline, cycles[number as usize], supply)?;
            }
        }
        Ok(())
    }

    /// Gives `collect` the blocks that `kept` names, which their pipelines left on a GPU.
    pub(super) fn read_back(
        &self,
        plan: &Plan,
        devices: &mut [Engines],
        kept: &Kept,
        collect: &mut dyn Collect,
    ) -> Result<(), RunError> {
        for (&number, blocks) in kept {
            let PipelineBuffers::Block(BlockBuffers { last: Some(last), .. }) = &self.pipelines[number as usize] else {
                continue;
            };
            let pipeline = &plan.pipelines[number as usize];
            last.read_back(devices, pipeline, blocks, |cycle, block| collect.collect(number, cycle, 0, block))?;
        }
        Ok(())
    }

    /// Compares what messages brought and nobody has compared yet.
    pub(super) fn compare_rest(&self, devices: &mut [Engines]) -> Result<MessageComparison, RunError> {
        let messages = self.pipelines.iter().filter_map(|buffers| match buffers {
            PipelineBuffers::Messages(buffers) => Some(buffers),
            PipelineBuffers::Block(_)
            | PipelineBuffers::Sharded(_)
            | PipelineBuffers::Parts(_)
            | PipelineBuffers::Flow => None,
        });
        messages::compare_rest(messages, devices)
    }

    /// Submits a piece to its engine.
    pub(super) fn submit(
        &self,
        devices: &mut [Engines],
        cores: &Cores,
        piece: &StepChunk,
        operation: u64,
    ) -> Result<(), DeviceError> {
        let buffers = match &self.pipelines[piece.pipeline as usize] {
            PipelineBuffers::Block(buffers) => buffers,
            PipelineBuffers::Sharded(buffers) => return buffers.submit(devices, piece, operation),
            PipelineBuffers::Parts(buffers) => return buffers.submit(devices, cores, piece, operation),
            PipelineBuffers::Messages(buffers) => return buffers.submit(devices, piece, operation),
            PipelineBuffers::Flow => return Ok(()),
        };
        let step = piece.step as usize;
        let input = |range| buffers.claim(piece, step, range, Access::Read);
        let output = |range| buffers.claim(piece, step + 1, range, Access::Write);
        let device = match buffers.on {
            On::Device(at) => &mut devices[at],
            On::Core(core) => {
                let block = 0..piece.block.0 as usize;
                let (input, output) = (input(block.clone())?, output(block)?);
                cores.submit(core, CoreJob { tag: operation, stage: (piece.pipeline, piece.step, 0), input, output });
                return Ok(());
            }
        };
        match &buffers.steps[step] {
            Stepped::Copy { class, method } => {
                let range = piece.offset.0 as usize..(piece.offset.0 + piece.bytes.0) as usize;
                device.copy(*class, *method, (input(range.clone())?, output(range)?), operation)
            }
            Stepped::OnCore => unreachable!("what a core serves was handed to it above"),
            Stepped::Compute(stage) => {
                let block = 0..piece.block.0 as usize;
                stage.launch(device, input(block.clone())?, output(block)?, operation)
            }
        }
    }
}

/// Where the host puts or finds the data of a cycle.
pub(super) enum Ends<'a> {
    /// One packed block.
    Block(&'a Buffer),
    /// Blocks that lie in a GPU's memory before the run begins, or until it has ended.
    Resident(&'a Resident),
    /// Images, or lists, of every GPU.
    Sharded(&'a ShardedBuffers),
    /// The ends of messages' blocks.
    Messages(&'a MessageBuffers),
    /// A flow has no data.
    Nowhere,
}

fn unprepared(pipeline: &Pipeline, source: DeviceError) -> RunError {
    RunError::Prepare { what: format!("buffers of pipeline `{}`", pipeline.name), source }
}

/// The buffers of a pipeline on a core, all in ordinary memory. Its cycles can be so short that whoever fills and empties them
/// is late by several: there are buffers for [`AHEAD`].
fn on_core(pipeline: &Pipeline, core: u32, memory: &CoreMemory, spare_cycles: usize) -> Result<BlockBuffers, RunError> {
    let ahead = (AHEAD.0 / pipeline.period.0.max(1)).min(CYCLES_AHEAD_MAX) as usize;
    let buffers = || (0..=pipeline.steps.len()).map(|_| memory.buffer(pipeline.reserve.0 as usize)).collect();
    let slots = (0..(pipeline.steps.len() + 1 + spare_cycles).max(ahead)).map(|_| buffers());
    let slots = slots.collect::<Result<_, DeviceError>>().map_err(|source| unprepared(pipeline, source))?;
    let steps = pipeline.steps.iter().map(|_| Stepped::OnCore).collect();
    Ok(BlockBuffers { on: On::Core(core), steps, slots, first: None, last: None })
}

/// The blocks that lie on a GPU when a run ends: by pipeline, the cycles with the sizes of their blocks.
pub(super) type Kept = BTreeMap<u32, Vec<(u64, Bytes)>>;

/// Where the data of a pipeline lies: on its GPU, or on the host.
struct Places {
    begins_on_gpu: bool,
    /// Whether it lies on the GPU after each step.
    after: Vec<bool>,
}

impl Places {
    /// Whether it lies on the GPU after so many steps.
    fn on_gpu(&self, steps: usize) -> bool {
        if steps == 0 { self.begins_on_gpu } else { self.after[steps - 1] }
    }

    fn ends_on_gpu(&self) -> bool {
        self.on_gpu(self.after.len())
    }
}

/// Where the data of pipeline `number` lies before and after its steps, each of which takes it where the one before it leaves it.
fn places(pipeline: &Pipeline, number: u32) -> Result<Places, RunError> {
    let ends = |step: &plan::PlannedStep| match step.operations[0].work {
        plan::OperationWork::Copy { class: EngineClass::H2d, .. } => (false, true),
        plan::OperationWork::Copy { class: EngineClass::D2h, .. } => (true, false),
        plan::OperationWork::Copy { .. } | plan::OperationWork::Compute { .. } | plan::OperationWork::Hold => {
            (true, true)
        }
    };
    let begins_on_gpu = pipeline.steps.first().is_some_and(|step| ends(step).0);
    let (mut after, mut at) = (Vec::new(), begins_on_gpu);
    for (number_of_step, step) in (0u32..).zip(&pipeline.steps) {
        let (from, to) = ends(step);
        if from != at {
            let name = |on_gpu| if on_gpu { "on the GPU" } else { "on the host" };
            return Err(RunError::Unsupported {
                pipeline: number,
                step: Some(number_of_step),
                object: format!("step `{}` of pipeline `{}`", step.name, pipeline.name),
                reason: format!(
                    "it takes its data {}, and the step before leaves it {}; add the copy that is missing, or leave this step out",
                    name(from),
                    name(at)
                ),
            });
        }
        after.push(to);
        at = to;
    }
    Ok(Places { begins_on_gpu, after })
}

/// A buffer for a block of `pipeline`.
fn buffer(device: &mut Engines, pipeline: &Pipeline, on_gpu: bool) -> Result<Buffer, DeviceError> {
    let bytes = pipeline.reserve.0 as usize;
    if on_gpu { device.device_buffer(bytes) } else { device.host_buffer(bytes, HostKind::Pinned) }
}
