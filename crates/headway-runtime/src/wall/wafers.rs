//! The buffers of a wafer's pipeline on all devices, and how an operation on one of them is submitted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use headway_core::files::machine::EngineClass;
use headway_core::files::workload::Wafer;
use headway_core::models::transfer::Method;
use headway_core::plan::{self, Pipeline, PlannedWafer, Share};
use headway_core::units::Bytes;
use headway_device::work::StepMemory;
use headway_device::{Access, Buffer, DeviceError, Engines, HostKind, Work};
use headway_kernels::inspect::blocks::MergeBlock;

use super::RunError;
use super::buffers::{Piece, settle, upload};
use crate::blocks::{Collect, DataError};
use crate::kernels::Kernels;
use crate::wafer::{Ring, synopses};

/// Threads that fill the ring.
const FILLERS_MAX: usize = 16;
const LIST: usize = Wafer::SYNOPSIS.0 as usize;

/// What a step does on every device.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Images to the device.
    Images,
    Inspect,
    /// Synopses to the other devices.
    Exchange,
    Merge,
    /// The list to the host.
    List,
}

/// One place of the ring on one device.
struct Slot {
    images: Buffer,
    on_device: Buffer,
    /// The synopses of all cameras.
    synopses: Buffer,
    /// The list, and scratch memory behind it.
    merged: Buffer,
    list: Buffer,
}

/// One device's part of a wafer.
struct Part {
    share: Share,
    inspect: Arc<dyn Work>,
    merge: Arc<dyn Work>,
    cameras: Buffer,
    slots: Vec<Slot>,
}

/// A wafer's pipeline on its devices.
pub(super) struct WaferBuffers {
    name: String,
    ring: Ring,
    cameras: u32,
    stages: Vec<Stage>,
    peers: Vec<(usize, usize)>,
    parts: Vec<Part>,
}

impl WaferBuffers {
    /// Allocates the buffers, loads the kernels and fills the ring.
    pub(super) fn new(
        planned: &PlannedWafer,
        pipeline: &Pipeline,
        devices: &mut [Engines],
        kernels: &Kernels,
        number: u32,
    ) -> Result<Self, RunError> {
        let count = devices.len();
        let ring = Ring::new(&planned.wafer).map_err(|error| {
            let source = DeviceError::Invalid { what: "image", reason: error.to_string() };
            RunError::Prepare { what: format!("the images of `{}`", pipeline.name), source }
        })?;
        let mut parts = Vec::new();
        for share in &planned.shares {
            let device =
                devices.get_mut(share.gpu as usize).ok_or(RunError::NoDevice { gpu: share.gpu, devices: count })?;
            parts.push(part(planned, share, device, kernels, number)?);
        }
        let stages = pipeline.steps.iter().map(|step| match &step.operations[0].work {
            plan::Work::Copy { class: EngineClass::Peer, .. } => Stage::Exchange,
            plan::Work::Copy { class: EngineClass::D2h, .. } => Stage::List,
            plan::Work::Copy { .. } => Stage::Images,
            plan::Work::Compute { kernel } if kernel == plan::MERGE => Stage::Merge,
            plan::Work::Compute { .. } | plan::Work::Hold => Stage::Inspect,
        });
        let buffers = Self {
            name: pipeline.name.clone(),
            ring,
            cameras: planned.wafer.cameras,
            stages: stages.collect(),
            peers: planned.peers().collect(),
            parts,
        };
        buffers.fill()?;
        buffers.meet(devices).map_err(|source| RunError::Prepare { what: "copies between GPUs".to_owned(), source })?;
        Ok(buffers)
    }

    /// Lets every pair that exchanges copy something before the run: a GPU maps the memory of another one at the first copy,
    /// which takes milliseconds.
    fn meet(&self, devices: &mut [Engines]) -> Result<(), DeviceError> {
        for &(from, to) in &self.peers {
            let [source, target] = [from, to].map(|part| &self.parts[part].slots[0].synopses);
            let range = synopses(&self.parts[from].share);
            let (from_span, to_span) =
                (source.claim(range.clone(), Access::Read)?, target.claim(range, Access::Write)?);
            let device = &mut devices[self.parts[from].share.gpu as usize];
            device.copy(EngineClass::Peer, Method::Peer, (from_span, to_span), u64::MAX)?;
            settle(device)?;
        }
        Ok(())
    }

    pub(super) fn slots(&self) -> usize {
        self.parts.first().map_or(0, |part| part.slots.len())
    }

    /// Fills the ring, several places at a time.
    fn fill(&self) -> Result<(), RunError> {
        let places: Vec<(&Part, usize)> =
            self.parts.iter().flat_map(|part| (0..part.slots.len()).map(move |slot| (part, slot))).collect();
        let next = AtomicUsize::new(0);
        let fill = || -> Result<(), DataError> {
            while let Some(&(part, slot)) = places.get(next.fetch_add(1, Ordering::Relaxed)) {
                let damaged = |source| DataError::Block { pipeline: self.name.clone(), cycle: slot as u64, source };
                self.write(&part.slots[slot].images, slot as u64, |bytes| {
                    self.ring.fill(&part.share, slot as u32, bytes).map_err(damaged)
                })?;
            }
            Ok(())
        };
        let threads = thread::available_parallelism().map_or(1, usize::from).min(FILLERS_MAX);
        thread::scope(|scope| {
            let fillers: Vec<_> = (0..threads).map(|_| scope.spawn(fill)).collect();
            let ends = fillers.into_iter().map(|filler| match filler.join() {
                Ok(end) => end,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            ends.collect::<Result<(), DataError>>()
        })?;
        Ok(())
    }

    /// Lets `write` change a host buffer.
    fn write(
        &self,
        buffer: &Buffer,
        cycle: u64,
        write: impl FnOnce(&mut [u8]) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let mut span = buffer.claim(0..buffer.len(), Access::Write).map_err(|error| self.claimed(cycle, &error))?;
        write(span.bytes_mut().map_err(|error| self.claimed(cycle, &error))?)
    }

    fn claimed(&self, cycle: u64, error: &DeviceError) -> DataError {
        DataError::Sequence { pipeline: self.name.clone(), cycle, what: error.to_string() }
    }

    /// Gives the images of `slot` the number of their new generation; returns the bytes of all of them.
    pub(super) fn number(&self, slot: usize, cycle: u64) -> Result<Bytes, DataError> {
        let mut total = Bytes(0);
        for part in &self.parts {
            let damaged = |source| DataError::Block { pipeline: self.name.clone(), cycle, source };
            self.write(&part.slots[slot].images, cycle, |bytes| {
                total = total + self.ring.number(&part.share, cycle, bytes).map_err(damaged)?;
                Ok(())
            })?;
        }
        Ok(total)
    }

    /// Hands the lists of `slot` on.
    pub(super) fn deliver(
        &self,
        slot: usize,
        (pipeline, cycle): (u32, u64),
        collect: &mut dyn Collect,
    ) -> Result<(), DataError> {
        let claim = |part: &Part| part.slots[slot].list.claim(0..LIST, Access::Read);
        let spans: Result<Vec<_>, DeviceError> = self.parts.iter().map(claim).collect();
        let spans = spans.map_err(|error| self.claimed(cycle, &error))?;
        let lists: Result<Vec<&[u8]>, DeviceError> = spans.iter().map(|span| span.bytes()).collect();
        collect.collect_lists(pipeline, cycle, &lists.map_err(|error| self.claimed(cycle, &error))?)
    }

    /// Submits one operation of a step.
    pub(super) fn submit(&self, devices: &mut [Engines], piece: &Piece, operation: u64) -> Result<(), DeviceError> {
        let index = piece.index as usize;
        let whole = |buffer: &Buffer, access| buffer.claim(0..buffer.len(), access);
        let stage = self.stages[piece.step as usize];
        let (from, to) = if matches!(stage, Stage::Exchange) { self.peers[index] } else { (index, index) };
        let part = &self.parts[from];
        let slot = &part.slots[piece.slot];
        let device = &mut devices[part.share.gpu as usize];
        let (class, method, ends) = match stage {
            Stage::Images => {
                let ends = (whole(&slot.images, Access::Read)?, whole(&slot.on_device, Access::Write)?);
                (EngineClass::H2d, Method::Dma, ends)
            }
            Stage::Inspect => {
                let memory = StepMemory {
                    input: whole(&slot.on_device, Access::Read)?,
                    output: slot.synopses.claim(synopses(&part.share), Access::Write)?,
                    state: Some(whole(&part.cameras, Access::Write)?),
                };
                return device.launch(&part.inspect, memory, part.share.cameras, operation);
            }
            Stage::Exchange => {
                let range = synopses(&part.share);
                let target = &self.parts[to].slots[piece.slot].synopses;
                let ends = (slot.synopses.claim(range.clone(), Access::Read)?, target.claim(range, Access::Write)?);
                (EngineClass::Peer, Method::Peer, ends)
            }
            Stage::Merge => {
                let (input, output) = (whole(&slot.synopses, Access::Read)?, whole(&slot.merged, Access::Write)?);
                let memory = StepMemory { input, output, state: None };
                return device.launch(&part.merge, memory, self.cameras, operation);
            }
            Stage::List => {
                let ends = (slot.merged.claim(0..LIST, Access::Read)?, whole(&slot.list, Access::Write)?);
                (EngineClass::D2h, Method::Dma, ends)
            }
        };
        device.copy(class, method, ends, operation)
    }
}

/// Buffers and kernels of one device.
fn part(
    planned: &PlannedWafer,
    share: &Share,
    device: &mut Engines,
    kernels: &Kernels,
    number: u32,
) -> Result<Part, RunError> {
    let prepare = |what: &str| {
        let what = what.to_owned();
        move |source| RunError::Prepare { what, source }
    };
    let (mut inspect, mut merge) = (None, None);
    let own = share.first as usize..(share.first + share.cameras) as usize;
    for (_, _, kernel) in kernels.stages().filter(|(pipeline, ..)| *pipeline == number) {
        device.gpu().load(kernel.as_ref()).map_err(prepare(kernel.id()))?;
        let work = Arc::clone(kernel);
        let lanes = &kernels.lanes(number)[own.clone()];
        let mut state = vec![0; kernel.state_bytes(lanes.len())];
        kernel.init_state(lanes, &mut state)?;
        if state.is_empty() {
            merge = Some(work);
        } else {
            inspect = Some((work, upload(device, &state).map_err(prepare("the cameras"))?));
        }
    }
    let (Some((inspect, cameras)), Some(merge)) = (inspect, merge) else {
        let reason = "its steps do not inspect and merge";
        return Err(RunError::Unsupported { object: "the pipeline of a wafer".to_owned(), reason });
    };
    let block = planned.block(share).0 as usize;
    let all = PlannedWafer::synopses(planned.wafer.cameras).0 as usize;
    let slot = || -> Result<Slot, DeviceError> {
        Ok(Slot {
            images: device.host_buffer(block, HostKind::Pinned)?,
            on_device: device.device_buffer(block)?,
            synopses: device.device_buffer(all)?,
            merged: device.device_buffer(MergeBlock::output(planned.wafer.cameras as usize))?,
            list: device.host_buffer(LIST, HostKind::Pinned)?,
        })
    };
    let slots: Result<Vec<Slot>, DeviceError> = (0..planned.wafer.ring).map(|_| slot()).collect();
    let slots = slots.map_err(prepare("the ring of images"))?;
    Ok(Part { share: *share, inspect, merge, cameras, slots })
}
