//! The buffers of a pipeline whose packets have parts, and how an operation on one of them is submitted.

use std::ops::Range;

use headway_core::files::machine::EngineClass;
use headway_core::plan::{self, Parted, Plan};
use headway_device::{Access, Buffer, DeviceError, Engines, HostKind, Span};

use super::RunError;
use super::cores::Cores;
use super::piece::StepChunk;
use super::stage::{Stage, stage};
use crate::cores::CoreJob;
use crate::endpoints::CopyPath;
use crate::kernels::Kernels;
use crate::settle::settle;

/// What an operation runs on.
enum On {
    Copy(CopyPath),
    Device { device: usize, stage: Stage },
    Core(u32),
}

/// One operation of a step, with the places of its input and its output in a slot.
struct Operation {
    on: On,
    from: Room,
    to: Room,
}

/// A range of one of a slot's buffers.
#[derive(Clone)]
struct Room {
    buffer: usize,
    range: Range<usize>,
}

impl Room {
    /// Claims `part` of it.
    fn claim(&self, slot: &[Buffer], part: Range<usize>, access: Access) -> Result<Span, DeviceError> {
        let start = self.range.start;
        slot[self.buffer].claim(start + part.start..start + part.end, access)
    }
}

/// Positions of the buffers in a slot in which cycles begin and end.
const FIRST: usize = 0;
const LAST: usize = 1;

/// A pipeline whose packets have parts, on its devices and cores.
pub(super) struct PartedBuffers {
    /// By step, then by operation.
    steps: Vec<Vec<Operation>>,
    slots: Vec<Vec<Buffer>>,
}

/// Where a part lies after an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    Host,
    Device(usize),
}

impl PartedBuffers {
    /// Allocates the buffers and loads the kernels.
    pub(super) fn new(
        planned: &Parted,
        plan: &Plan,
        number: u32,
        devices: &mut [Engines],
        kernels: &Kernels,
        spare_cycles: usize,
    ) -> Result<Self, RunError> {
        let pipeline = &plan.pipelines[number as usize];
        let mut kinds: Vec<(Memory, usize)> = vec![(Memory::Host, pipeline.reserve.0 as usize); 2];
        let whole = |part: usize| 0..planned.reserves[part].0 as usize;
        let mut at: Vec<Room> =
            (0..planned.parts.len()).map(|part| Room { buffer: FIRST, range: planned.range(part) }).collect();
        let mut places = vec![Memory::Host; planned.parts.len()];
        let mut steps = Vec::new();
        for (step, of) in planned.of.iter().enumerate() {
            let mut operations = Vec::new();
            for (index, &part) in of.iter().enumerate() {
                let part = part as usize;
                let (on, memory) = on(plan, number, step, index, devices, kernels)?;
                if let (On::Copy(CopyPath { from: Some(_), .. }), Memory::Host) = (&on, places[part]) {
                    let object = format!("part {} of the packets of pipeline `{}`", part + 1, pipeline.name);
                    let reason =
                        "it begins on a GPU, where nothing brings it; let its first copy start at `host`".to_owned();
                    return Err(RunError::Unsupported { pipeline: number, step: Some(step as u32), object, reason });
                }
                places[part] = memory;
                let is_last = planned.of[step + 1..].iter().all(|later| !later.contains(&(part as u32)));
                let to = if is_last && memory == Memory::Host {
                    Room { buffer: LAST, range: planned.range(part) }
                } else {
                    kinds.push((memory, planned.reserves[part].0 as usize));
                    Room { buffer: kinds.len() - 1, range: whole(part) }
                };
                let from = std::mem::replace(&mut at[part], to.clone());
                operations.push(Operation { on, from, to });
            }
            steps.push(operations);
        }
        if let Some(part) = at.iter().position(|room| room.buffer != LAST) {
            let object = format!("part {} of the packets of pipeline `{}`", part + 1, pipeline.name);
            let reason = "it ends on a GPU, where nothing takes it; add a copy to `host` as its last step".to_owned();
            return Err(RunError::Unsupported { pipeline: number, step: None, object, reason });
        }
        let unprepared =
            |source| RunError::Prepare { what: format!("buffers of pipeline `{}`", pipeline.name), source };
        let slot = || kinds.iter().map(|&(memory, bytes)| buffer(devices, memory, bytes)).collect();
        let slots = (0..pipeline.steps.len() + 1 + spare_cycles).map(|_| slot());
        let slots = slots.collect::<Result<_, _>>().map_err(unprepared)?;
        let buffers = Self { steps, slots };
        buffers.meet(devices).map_err(unprepared)?;
        Ok(buffers)
    }

    /// Makes every copy between GPUs once before the run: a GPU maps the memory of another one at the first copy, which takes
    /// milliseconds.
    fn meet(&self, devices: &mut [Engines]) -> Result<(), DeviceError> {
        let operations = self.steps.iter().flatten();
        for Operation { on, from, to } in operations {
            let On::Copy(path @ CopyPath { class: EngineClass::Peer, .. }) = on else { continue };
            let device = path.device();
            for slot in &self.slots {
                let whole = 0..from.range.len();
                let ends = (from.claim(slot, whole.clone(), Access::Read)?, to.claim(slot, whole, Access::Write)?);
                devices[device].copy(path.class, path.method, ends, u64::MAX)?;
                settle(&mut devices[device])?;
            }
        }
        Ok(())
    }

    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The buffer that the parts of a cycle come in, one block after the other.
    pub(super) fn first(&self, slot: usize) -> &Buffer {
        &self.slots[slot][FIRST]
    }

    /// The buffer that they are in at the end.
    pub(super) fn last(&self, slot: usize) -> &Buffer {
        &self.slots[slot][LAST]
    }

    /// Submits one operation of a step, or a piece of it.
    pub(super) fn submit(
        &self,
        devices: &mut [Engines],
        cores: &Cores,
        piece: &StepChunk,
        tag: u64,
    ) -> Result<(), DeviceError> {
        let slot = &self.slots[piece.slot];
        let Operation { on, from, to } = &self.steps[piece.step as usize][piece.index as usize];
        let moved = piece.offset.0 as usize..(piece.offset.0 + piece.bytes.0) as usize;
        let (input, output) = (from.claim(slot, moved.clone(), Access::Read)?, to.claim(slot, moved, Access::Write)?);
        match on {
            On::Copy(path) => devices[path.device()].copy(path.class, path.method, (input, output), tag),
            On::Device { device, stage } => stage.launch(&mut devices[*device], input, output, tag),
            On::Core(core) => {
                let stage = (piece.pipeline, piece.step, piece.index);
                cores.submit(*core, CoreJob { tag, stage, input, output });
                Ok(())
            }
        }
    }
}

fn buffer(devices: &[Engines], memory: Memory, bytes: usize) -> Result<Buffer, DeviceError> {
    match memory {
        // Page-locked memory of one GPU is that of all.
        Memory::Host => devices[0].host_buffer(bytes, HostKind::Pinned),
        Memory::Device(device) => devices[device].device_buffer(bytes),
    }
}

/// What operation `index` of step `step` runs on, and where its result lies.
fn on(
    plan: &Plan,
    number: u32,
    step: usize,
    index: usize,
    devices: &mut [Engines],
    kernels: &Kernels,
) -> Result<(On, Memory), RunError> {
    let pipeline = &plan.pipelines[number as usize];
    let operation = &pipeline.steps[step].operations[index];
    let count = devices.len();
    let open = |gpu: u32| {
        if (gpu as usize) < count { Ok(gpu as usize) } else { Err(RunError::NoDevice { gpu, devices: count }) }
    };
    // A pipeline of cores alone needs memory, too.
    open(0)?;
    match &operation.work {
        plan::OperationWork::Copy { .. } => {
            let path = CopyPath::of(plan, operation).ok_or_else(|| {
                let object = format!("step `{}` of pipeline `{}`", pipeline.steps[step].name, pipeline.name);
                let reason = "no GPU is at either end of the copy; let it begin or end at one".to_owned();
                RunError::Unsupported { pipeline: number, step: Some(step as u32), object, reason }
            })?;
            open(path.last_device() as u32)?;
            Ok((On::Copy(path), path.to.map_or(Memory::Host, Memory::Device)))
        }
        plan::OperationWork::Compute { .. } | plan::OperationWork::Hold => {
            if let Some(core) = plan.core(operation.engines[0].at()) {
                return Ok((On::Core(core), Memory::Host));
            }
            let device = open(plan.engines[operation.engines[0].at()].gpu.unwrap_or(0))?;
            let mut own = kernels.of_parts(number).iter();
            let kernel = own.find(|kernel| kernel.step as usize == step && kernel.index as usize == index);
            let kernel = kernel.expect("every compute operation has a kernel");
            let portion = std::slice::from_ref(&kernels.portions(number)[kernel.part as usize]);
            Ok((
                On::Device { device, stage: stage(&mut devices[device], &kernel.work, portion)? },
                Memory::Device(device),
            ))
        }
    }
}
