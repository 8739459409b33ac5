//! The buffers of a pipeline whose packets are divided among all devices, and how an operation on one of them is submitted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use headway_core::files::machine::EngineClass;
use headway_core::models::transfer::Method;
use headway_core::plan::{self, Pipeline, Shard, Sharded, is_first_kernel};
use headway_core::units::Bytes;
use headway_device::work::{Items, StepMemory};
use headway_device::{Access, Buffer, DeviceError, Engines, HostKind, Work};
use headway_os::threads;

use super::RunError;
use super::piece::StepChunk;
use crate::blocks::{Collect, DataError};
use crate::kernels::{Divided, Kernels};
use crate::settle::{settle, upload};
use crate::shards;

/// Threads that fill the ring.
const FILLERS_MAX: usize = 16;

/// What a step does on every device.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Items to the device.
    Items,
    /// The kernel that works on the device's own items.
    First,
    /// Summaries to the other devices.
    Exchange,
    /// The kernel that works on the summaries of all items.
    Second,
    /// The result to the host.
    Result,
}

/// One place of the ring on one device.
struct Slot {
    items: Buffer,
    on_device: Buffer,
    /// What the first kernels made of all items.
    summaries: Buffer,
    /// The result, and scratch memory behind it.
    made: Buffer,
    result: Buffer,
}

/// One device's part.
struct DeviceShard {
    shard: Shard,
    first: Arc<dyn Work>,
    second: Arc<dyn Work>,
    state: Option<Buffer>,
    slots: Vec<Slot>,
}

/// A pipeline whose packets are divided, on its devices.
pub(super) struct ShardedBuffers {
    name: String,
    planned: Sharded,
    items: Arc<dyn Items>,
    stages: Vec<Stage>,
    peers: Vec<(usize, usize)>,
    parts: Vec<DeviceShard>,
}

impl ShardedBuffers {
    /// Allocates the buffers, loads the kernels and fills the ring.
    pub(super) fn new(
        planned: &Sharded,
        pipeline: &Pipeline,
        devices: &mut [Engines],
        kernels: &Kernels,
        number: u32,
    ) -> Result<Self, RunError> {
        let count = devices.len();
        let mut parts = Vec::new();
        for shard in &planned.shards {
            let device =
                devices.get_mut(shard.gpu as usize).ok_or(RunError::NoDevice { gpu: shard.gpu, devices: count })?;
            parts.push(part(planned, shard, device, kernels, number)?);
        }
        let stages = pipeline.steps.iter().enumerate().map(|(at, step)| match &step.operations[0].work {
            plan::OperationWork::Copy { class: EngineClass::Peer, .. } => Stage::Exchange,
            plan::OperationWork::Copy { class: EngineClass::D2h, .. } => Stage::Result,
            plan::OperationWork::Copy { .. } => Stage::Items,
            _ if is_first_kernel(&pipeline.steps, at) => Stage::First,
            plan::OperationWork::Compute { .. } | plan::OperationWork::Hold => Stage::Second,
        });
        let buffers = Self {
            name: pipeline.name.clone(),
            planned: planned.clone(),
            items: Arc::clone(&kernels.divided(number).items),
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
            let [source, target] = [from, to].map(|part| &self.parts[part].slots[0].summaries);
            let range = self.planned.summaries_of(&self.parts[from].shard);
            let (from_span, to_span) =
                (source.claim(range.clone(), Access::Read)?, target.claim(range, Access::Write)?);
            let device = &mut devices[self.parts[from].shard.gpu as usize];
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
        let places: Vec<(&DeviceShard, usize)> =
            self.parts.iter().flat_map(|part| (0..part.slots.len()).map(move |slot| (part, slot))).collect();
        let next = AtomicUsize::new(0);
        let fill = || -> Result<(), DataError> {
            while let Some(&(part, slot)) = places.get(next.fetch_add(1, Ordering::Relaxed)) {
                let damaged = |source| DataError::Block { pipeline: self.name.clone(), cycle: slot as u64, source };
                self.write(&part.slots[slot].items, slot as u64, |bytes| {
                    let items = self.items.as_ref();
                    shards::fill(items, &self.planned, &part.shard, slot as u32, bytes).map_err(damaged)
                })?;
            }
            Ok(())
        };
        let threads = thread::available_parallelism().map_or(1, usize::from).min(FILLERS_MAX);
        thread::scope(|scope| {
            let fillers: Vec<_> = (0..threads).map(|_| threads::without_signals(|| scope.spawn(fill))).collect();
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

    /// Gives the items of `slot` the number of their new packet; returns the bytes of all of them.
    pub(super) fn number(&self, slot: usize, cycle: u64) -> Result<Bytes, DataError> {
        let mut total = Bytes(0);
        for part in &self.parts {
            let damaged = |source| DataError::Block { pipeline: self.name.clone(), cycle, source };
            self.write(&part.slots[slot].items, cycle, |bytes| {
                total = total + shards::number(&self.planned, &part.shard, cycle, bytes).map_err(damaged)?;
                Ok(())
            })?;
        }
        Ok(total)
    }

    /// Hands the results of `slot` on.
    pub(super) fn deliver(
        &self,
        slot: usize,
        (pipeline, cycle): (u32, u64),
        collect: &mut dyn Collect,
    ) -> Result<(), DataError> {
        let claim = |part: &DeviceShard| {
            let result = &part.slots[slot].result;
            result.claim(0..result.len(), Access::Read)
        };
        let spans: Result<Vec<_>, DeviceError> = self.parts.iter().map(claim).collect();
        let spans = spans.map_err(|error| self.claimed(cycle, &error))?;
        let results: Result<Vec<&[u8]>, DeviceError> = spans.iter().map(|span| span.bytes()).collect();
        collect.collect_results(pipeline, cycle, &results.map_err(|error| self.claimed(cycle, &error))?)
    }

    /// Submits one operation of a step.
    pub(super) fn submit(&self, devices: &mut [Engines], piece: &StepChunk, operation: u64) -> Result<(), DeviceError> {
        let index = piece.index as usize;
        let whole = |buffer: &Buffer, access| buffer.claim(0..buffer.len(), access);
        let stage = self.stages[piece.step as usize];
        let (from, to) = if matches!(stage, Stage::Exchange) { self.peers[index] } else { (index, index) };
        let part = &self.parts[from];
        let slot = &part.slots[piece.slot];
        let device = &mut devices[part.shard.gpu as usize];
        let (class, method, ends) = match stage {
            Stage::Items => {
                let ends = (whole(&slot.items, Access::Read)?, whole(&slot.on_device, Access::Write)?);
                (EngineClass::H2d, Method::Dma, ends)
            }
            Stage::First => {
                let memory = StepMemory {
                    input: whole(&slot.on_device, Access::Read)?,
                    output: slot.summaries.claim(self.planned.summaries_of(&part.shard), Access::Write)?,
                    state: part.state.as_ref().map(|state| whole(state, Access::Write)).transpose()?,
                };
                return device.launch(&part.first, memory, part.shard.items, operation);
            }
            Stage::Exchange => {
                let range = self.planned.summaries_of(&part.shard);
                let target = &self.parts[to].slots[piece.slot].summaries;
                let ends = (slot.summaries.claim(range.clone(), Access::Read)?, target.claim(range, Access::Write)?);
                (EngineClass::Peer, Method::Peer, ends)
            }
            Stage::Second => {
                let (input, output) = (whole(&slot.summaries, Access::Read)?, whole(&slot.made, Access::Write)?);
                let memory = StepMemory { input, output, state: None };
                return device.launch(&part.second, memory, self.planned.sharding.items, operation);
            }
            Stage::Result => {
                let ends = (slot.made.claim(0..slot.result.len(), Access::Read)?, whole(&slot.result, Access::Write)?);
                (EngineClass::D2h, Method::Dma, ends)
            }
        };
        device.copy(class, method, ends, operation)
    }
}

/// Buffers and kernels of one device.
fn part(
    planned: &Sharded,
    shard: &Shard,
    device: &mut Engines,
    kernels: &Kernels,
    number: u32,
) -> Result<DeviceShard, RunError> {
    let prepare = |what: &str| {
        let what = what.to_owned();
        move |source| RunError::Prepare { what, source }
    };
    let Divided { first, second, .. } = kernels.divided(number);
    for work in [first, second] {
        device.gpu().load(work.as_ref()).map_err(prepare(work.id()))?;
    }
    let portions = &kernels.portions(number)[shard.first as usize..(shard.first + shard.items) as usize];
    let mut state = vec![0; first.state_bytes(portions.len())];
    first.init_state(portions, &mut state)?;
    let state = if state.is_empty() { None } else { Some(upload(device, &state).map_err(prepare(first.id()))?) };
    let (block, sharding) = (planned.block(shard).0 as usize, &planned.sharding);
    let all = sharding.summaries(sharding.items).0 as usize;
    let slot = || -> Result<Slot, DeviceError> {
        Ok(Slot {
            items: device.host_buffer(block, HostKind::Pinned)?,
            on_device: device.device_buffer(block)?,
            summaries: device.device_buffer(all)?,
            made: device.device_buffer(second.output_bytes(all, sharding.items))?,
            result: device.host_buffer(sharding.summary.0 as usize, HostKind::Pinned)?,
        })
    };
    let slots: Result<Vec<Slot>, DeviceError> = (0..sharding.ring).map(|_| slot()).collect();
    let slots = slots.map_err(prepare("the ring of items"))?;
    Ok(DeviceShard { shard: *shard, first: Arc::clone(first), second: Arc::clone(second), state, slots })
}
