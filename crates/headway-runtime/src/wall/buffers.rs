//! The buffers of every pipeline on its device, and how a piece of a step becomes an operation on them.

use headway_core::files::machine::EngineClass;
use headway_core::models::transfer::Method;
use headway_core::plan::{self, Pipeline, Plan, Source};
use headway_core::units::Nanos;
use headway_device::{Access, Buffer, DeviceError, Engines, HostKind};

use super::RunError;
use super::cores::Cores;
use super::messages::{self, Compared, MessageBuffers};
use super::parted::PartedBuffers;
use super::piece::Piece;
use super::sharded::ShardedBuffers;
use super::stage::{Stage, stage};
use crate::cores::{Job, Memory};
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
    /// Per slot: one buffer before the first step and one after each.
    slots: Vec<Vec<Buffer>>,
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
        let (mut pipelines, memory) = (Vec::new(), Memory::default());
        for (number, pipeline) in (0u32..).zip(&plan.pipelines) {
            match &pipeline.source {
                Source::Sharded(planned) => {
                    let buffers = ShardedBuffers::new(planned, pipeline, devices, kernels, number)?;
                    pipelines.push(PipelineBuffers::Sharded(buffers));
                    continue;
                }
                Source::Parts(planned) => {
                    let buffers = PartedBuffers::new(planned, plan, number, devices, kernels, spare_cycles)?;
                    pipelines.push(PipelineBuffers::Parts(buffers));
                    continue;
                }
                Source::Message | Source::Batch(_) | Source::Bulk(_) | Source::Urgent(_) => {
                    pipelines.push(PipelineBuffers::Messages(MessageBuffers::new(plan, number, devices, cycles)?));
                    continue;
                }
                Source::Flow => {
                    pipelines.push(PipelineBuffers::Flow);
                    continue;
                }
                Source::Streams(_) => {}
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
                    plan::Work::Copy { class, method, .. } => Stepped::Copy { class: *class, method: *method },
                    plan::Work::Compute { .. } | plan::Work::Hold => {
                        let at = stages.iter().position(|(of, _)| *of == step).expect("every compute step has a stage");
                        Stepped::Compute(stages.swap_remove(at).1)
                    }
                });
            }
            let slots = (0..pipeline.steps.len() + 1 + spare_cycles)
                .map(|_| buffers(device, pipeline))
                .collect::<Result<_, DeviceError>>()
                .map_err(|source| unprepared(pipeline, source))?;
            pipelines.push(PipelineBuffers::Block(BlockBuffers { on: On::Device(gpu as usize), steps, slots }));
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
            PipelineBuffers::Block(buffers) => {
                Ends::Block(buffers.slots[slot].last().expect("a slot has a buffer before the first step"))
            }
            PipelineBuffers::Parts(buffers) => Ends::Block(buffers.last(slot)),
            PipelineBuffers::Sharded(buffers) => Ends::Sharded(buffers),
            PipelineBuffers::Messages(buffers) => Ends::Messages(buffers),
            PipelineBuffers::Flow => Ends::Nowhere,
        }
    }

    /// Compares what messages brought and nobody has compared yet.
    pub(super) fn compare_rest(&self, devices: &mut [Engines]) -> Result<Compared, RunError> {
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
        piece: &Piece,
        operation: u64,
    ) -> Result<(), DeviceError> {
        let buffers = match &self.pipelines[piece.pipeline as usize] {
            PipelineBuffers::Block(buffers) => buffers,
            PipelineBuffers::Sharded(buffers) => return buffers.submit(devices, piece, operation),
            PipelineBuffers::Parts(buffers) => return buffers.submit(devices, cores, piece, operation),
            PipelineBuffers::Messages(buffers) => return buffers.submit(devices, piece, operation),
            PipelineBuffers::Flow => return Ok(()),
        };
        let slot = &buffers.slots[piece.slot];
        let (input, output) = (&slot[piece.step as usize], &slot[piece.step as usize + 1]);
        let device = match buffers.on {
            On::Device(at) => &mut devices[at],
            On::Core(core) => {
                let block = 0..piece.block.0 as usize;
                let (input, output) = (input.claim(block.clone(), Access::Read)?, output.claim(block, Access::Write)?);
                cores.submit(core, Job { tag: operation, stage: (piece.pipeline, piece.step, 0), input, output });
                return Ok(());
            }
        };
        match &buffers.steps[piece.step as usize] {
            Stepped::Copy { class, method } => {
                let range = piece.offset.0 as usize..(piece.offset.0 + piece.bytes.0) as usize;
                let from = input.claim(range.clone(), Access::Read)?;
                let to = output.claim(range, Access::Write)?;
                device.copy(*class, *method, (from, to), operation)
            }
            Stepped::OnCore => unreachable!("what a core serves was handed to it above"),
            Stepped::Compute(stage) => {
                let block = 0..piece.block.0 as usize;
                let input = input.claim(block.clone(), Access::Read)?;
                let output = output.claim(block, Access::Write)?;
                stage.launch(device, input, output, operation)
            }
        }
    }
}

/// Where the host puts or finds the data of a cycle.
pub(super) enum Ends<'a> {
    /// One packed block.
    Block(&'a Buffer),
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
fn on_core(pipeline: &Pipeline, core: u32, memory: &Memory, spare_cycles: usize) -> Result<BlockBuffers, RunError> {
    let ahead = (AHEAD.0 / pipeline.period.0.max(1)).min(CYCLES_AHEAD_MAX) as usize;
    let buffers = || (0..=pipeline.steps.len()).map(|_| memory.buffer(pipeline.reserve.0 as usize)).collect();
    let slots = (0..(pipeline.steps.len() + 1 + spare_cycles).max(ahead)).map(|_| buffers());
    let slots = slots.collect::<Result<_, DeviceError>>().map_err(|source| unprepared(pipeline, source))?;
    let steps = pipeline.steps.iter().map(|_| Stepped::OnCore).collect();
    Ok(BlockBuffers { on: On::Core(core), steps, slots })
}

/// One buffer before the first step and one after each, where its data lies then.
fn buffers(device: &mut Engines, pipeline: &Pipeline) -> Result<Vec<Buffer>, DeviceError> {
    let bytes = pipeline.reserve.0 as usize;
    let mut on_host = true;
    let mut buffers = vec![device.host_buffer(bytes, HostKind::Pinned)?];
    for step in &pipeline.steps {
        match step.operations[0].work {
            plan::Work::Copy { class: EngineClass::D2h, .. } => on_host = true,
            plan::Work::Copy { .. } => on_host = false,
            plan::Work::Compute { .. } | plan::Work::Hold => {}
        }
        buffers.push(if on_host {
            device.host_buffer(bytes, HostKind::Pinned)?
        } else {
            device.device_buffer(bytes)?
        });
    }
    Ok(buffers)
}
