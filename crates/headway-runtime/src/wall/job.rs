//! The buffers of a pipeline that streams feed, and how one of its operations is submitted.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use headway_core::files::machine::EngineClass;
use headway_core::plan::{Pipeline, PipelineSource, Plan};
use headway_core::units::{Bytes, Nanos};
use headway_device::{Access, Buffer, DeviceError, Engines, HostKind, Span};
use headway_os::threads;

use super::RunError;
use super::cores::Cores;
use super::piece::StepChunk;
use super::resident::{Resident, Room};
use super::stage::{Stage, stage};
use crate::blocks::DataError;
use crate::cores::{CoreJob, CoreMemory};
use crate::endpoints::CopyPath;
use crate::job::{JobEngine, JobOperation, JobPlace, JobRegion, PipelineJob};
use crate::kernels::Kernels;
use crate::settle::settle;
use crate::shards;

/// Time that the blocks of a core's pipeline reach ahead, in at most so many cycles.
const AHEAD: Nanos = Nanos(20_000_000);
const CYCLES_AHEAD_MAX: u64 = 48;

/// Threads that fill the ring of a stream whose packets are divided.
const FILLERS_MAX: usize = 16;

/// A pipeline that streams feed, on its devices and cores.
pub(super) struct JobBuffers {
    name: String,
    job: PipelineJob,
    /// Of each operation, by step.
    loaded: Vec<Vec<Loaded>>,
    /// Of each slot, the buffers of the job but for those that are resident.
    slots: Vec<Vec<Buffer>>,
    /// The blocks before the first step, where it begins on a GPU.
    pub(super) first: Option<Resident>,
    /// The blocks after the last step, where it ends on a GPU.
    pub(super) last: Option<Resident>,
}

/// An operation ready to be submitted.
enum Loaded {
    Copy(CopyPath),
    Kernel { device: usize, stage: Stage },
    Core(u32),
}

/// What the buffers of all pipelines are made with.
pub(super) struct JobContext<'a> {
    pub(super) plan: &'a Plan,
    pub(super) kernels: &'a Kernels,
    /// Cycles that each pipeline will have.
    pub(super) cycles: &'a [u64],
    pub(super) spare_cycles: usize,
    pub(super) memory: CoreMemory,
    pub(super) room: Room,
}

impl JobBuffers {
    /// Allocates the buffers of pipeline `number`, loads its kernels with their first states, and fills its ring if it has one.
    pub(super) fn new(
        job: PipelineJob,
        number: u32,
        devices: &mut [Engines],
        context: &mut JobContext<'_>,
    ) -> Result<Self, RunError> {
        let JobContext { plan, kernels, cycles, spare_cycles, memory, room } = context;
        let pipeline = &plan.pipelines[number as usize];
        let on_core = plan.core_of(pipeline).is_some();
        let gpus = job.buffers.iter().filter(|_| !on_core).flat_map(|buffer| match buffer.place {
            JobPlace::Gpu(gpu) => [gpu, buffer.gpu],
            JobPlace::Host => [buffer.gpu; 2],
        });
        if let Some(gpu) = gpus.max().filter(|&gpu| gpu >= devices.len()) {
            return Err(RunError::NoDevice { gpu: gpu as u32, devices: devices.len() });
        }
        check(&job, number, pipeline)?;
        let loaded = load(&job, number, pipeline, kernels, devices)?;
        let all = cycles[number as usize];
        let mut resident = |buffer: usize| match job.buffers[buffer].place {
            JobPlace::Gpu(gpu) => room.resident(devices, gpu, number, pipeline, all).map(Some),
            JobPlace::Host => Ok(None),
        };
        let (first, last) = (resident(job.inputs[0])?, resident(job.outputs[0])?);
        let between = usize::from(first.is_some())..job.buffers.len() - usize::from(last.is_some());
        let slot = || {
            let buffers = job.buffers[between.clone()].iter();
            let buffers = buffers.map(|buffer| match buffer.place {
                JobPlace::Host if on_core => memory.buffer(buffer.bytes),
                JobPlace::Host => devices[buffer.gpu].host_buffer(buffer.bytes, HostKind::Pinned),
                JobPlace::Gpu(gpu) => devices[gpu].device_buffer(buffer.bytes),
            });
            buffers.collect::<Result<Vec<Buffer>, DeviceError>>()
        };
        // Cycles of a core can be so short that whoever fills and empties their buffers is late by several.
        let ahead = (AHEAD.0 / pipeline.period.0.max(1)).min(CYCLES_AHEAD_MAX) as usize;
        let slots = match &pipeline.source {
            PipelineSource::Sharded(planned) => planned.sharding.ring as usize,
            _ if on_core => (pipeline.steps.len() + 1 + *spare_cycles).max(ahead),
            _ => pipeline.steps.len() + 1 + *spare_cycles,
        };
        let unprepared =
            |source| RunError::Prepare { what: format!("buffers of pipeline `{}`", pipeline.name), source };
        let slots = (0..slots).map(|_| slot()).collect::<Result<_, _>>().map_err(unprepared)?;
        let buffers = Self { name: pipeline.name.clone(), job, loaded, slots, first, last };
        if let PipelineSource::Sharded(_) = &pipeline.source {
            buffers.fill_ring(pipeline, kernels, number)?;
        }
        buffers.meet(devices).map_err(|source| RunError::Prepare { what: "copies between GPUs".to_owned(), source })?;
        Ok(buffers)
    }

    /// Makes every copy between GPUs once before the run: the first copy takes milliseconds, in which a GPU maps the memory of the
    /// other one.
    fn meet(&self, devices: &mut [Engines]) -> Result<(), DeviceError> {
        for (loaded, JobOperation { from, to, .. }) in self.loaded.iter().flatten().zip(self.job.steps.iter().flatten())
        {
            let Loaded::Copy(path @ CopyPath { class: EngineClass::Peer, .. }) = loaded else { continue };
            let device = &mut devices[path.device()];
            for slot in &self.slots {
                let claim = |region: &JobRegion, access| slot[region.buffer].claim(region.range.clone(), access);
                let ends = (claim(from, Access::Read)?, claim(to, Access::Write)?);
                device.copy(path.class, path.method, ends, u64::MAX)?;
                settle(device)?;
            }
        }
        Ok(())
    }

    /// Fills the ring of packets that are divided, several buffers at a time.
    fn fill_ring(&self, pipeline: &Pipeline, kernels: &Kernels, number: u32) -> Result<(), DataError> {
        let PipelineSource::Sharded(planned) = &pipeline.source else { return Ok(()) };
        let items = kernels.items(number).as_ref();
        let shards = planned.shards.iter().zip(&self.job.inputs);
        let places: Vec<_> =
            shards.flat_map(|(shard, &input)| (0..self.slots.len()).map(move |slot| (shard, input, slot))).collect();
        let next = AtomicUsize::new(0);
        let fill = || -> Result<(), DataError> {
            while let Some(&(shard, input, slot)) = places.get(next.fetch_add(1, Ordering::Relaxed)) {
                let buffer = &self.slots[slot][input];
                let cycle = slot as u64;
                let claimed = |error: DeviceError| self.claimed(cycle, &error);
                let mut span = buffer.claim(0..buffer.len(), Access::Write).map_err(claimed)?;
                shards::fill(items, planned, shard, slot as u32, span.bytes_mut().map_err(claimed)?)
                    .map_err(|source| DataError::Block { pipeline: self.name.clone(), cycle, source })?;
            }
            Ok(())
        };
        let threads = thread::available_parallelism().map_or(1, usize::from).min(FILLERS_MAX);
        thread::scope(|scope| {
            let fillers: Vec<_> = (0..threads).map(|_| threads::without_signals(|| scope.spawn(fill))).collect();
            let mut ends = fillers.into_iter().map(|filler| match filler.join() {
                Ok(end) => end,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            ends.try_for_each(|end| end)
        })
    }

    /// How many cycles can hold buffers at a time.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Lets `write` put the data of `cycle` into the buffers of `slot`.
    pub(super) fn write<T>(
        &self,
        slot: usize,
        cycle: u64,
        write: impl FnOnce(&mut [&mut [u8]]) -> Result<T, DataError>,
    ) -> Result<T, DataError> {
        let claim = |&input: &usize| self.slots[slot][input].claim(0..self.job.buffers[input].bytes, Access::Write);
        let spans: Result<Vec<Span>, DeviceError> = self.job.inputs.iter().map(claim).collect();
        let mut spans = spans.map_err(|error| self.claimed(cycle, &error))?;
        let buffers: Result<Vec<&mut [u8]>, DeviceError> = spans.iter_mut().map(Span::bytes_mut).collect();
        write(&mut buffers.map_err(|error| self.claimed(cycle, &error))?)
    }

    /// Lets `read` take the results of `cycle`, whose block has `block` bytes, from the buffers of `slot`.
    pub(super) fn read(
        &self,
        slot: usize,
        cycle: u64,
        block: Bytes,
        read: impl FnOnce(&[&[u8]]) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let claim = |&output: &usize| {
            let used = self.job.used(self.job.buffers[output].bytes, block);
            self.buffer(slot, output).claim(0..used, Access::Read)
        };
        let spans: Result<Vec<Span>, DeviceError> = self.job.outputs.iter().map(claim).collect();
        let spans = spans.map_err(|error| self.claimed(cycle, &error))?;
        let blocks: Result<Vec<&[u8]>, DeviceError> = spans.iter().map(Span::bytes).collect();
        read(&blocks.map_err(|error| self.claimed(cycle, &error))?)
    }

    fn claimed(&self, cycle: u64, error: &DeviceError) -> DataError {
        DataError::Sequence { pipeline: self.name.clone(), cycle, what: error.to_string() }
    }

    fn buffer(&self, slot: usize, buffer: usize) -> &Buffer {
        &self.slots[slot][buffer - usize::from(self.first.is_some())]
    }

    /// Claims `range` of `region` in the buffers of a piece's cycle.
    fn claim(
        &self,
        piece: &StepChunk,
        region: &JobRegion,
        range: Range<usize>,
        access: Access,
    ) -> Result<Span, DeviceError> {
        let range = region.range.start + range.start..region.range.start + range.end;
        match (&self.first, &self.last) {
            (Some(first), _) if region.buffer == self.job.inputs[0] => first.claim(piece.cycle, range, access),
            (_, Some(last)) if region.buffer == self.job.outputs[0] => last.claim(piece.cycle, range, access),
            _ => self.buffer(piece.slot, region.buffer).claim(range, access),
        }
    }

    /// Submits one operation of a step, or a piece of it.
    pub(super) fn submit(
        &self,
        devices: &mut [Engines],
        cores: &Cores,
        piece: &StepChunk,
        tag: u64,
    ) -> Result<(), DeviceError> {
        let (step, index) = (piece.step as usize, piece.index as usize);
        let JobOperation { from, to, .. } = &self.job.steps[step][index];
        let loaded = &self.loaded[step][index];
        let range = |region: &JobRegion| match loaded {
            Loaded::Copy(_) => piece.offset.0 as usize..(piece.offset.0 + piece.bytes.0) as usize,
            Loaded::Kernel { .. } | Loaded::Core(_) => 0..self.job.used(region.range.len(), piece.block),
        };
        let input = self.claim(piece, from, range(from), Access::Read)?;
        let output = self.claim(piece, to, range(to), Access::Write)?;
        match loaded {
            Loaded::Copy(path) => devices[path.device()].copy(path.class, path.method, (input, output), tag),
            Loaded::Kernel { device, stage } => stage.launch(&mut devices[*device], input, output, tag),
            Loaded::Core(core) => {
                let stage = (piece.pipeline, piece.step, piece.index);
                cores.submit(*core, CoreJob { tag, stage, input, output });
                Ok(())
            }
        }
    }
}

/// Loads the kernels of all operations with their first states.
fn load(
    job: &PipelineJob,
    number: u32,
    pipeline: &Pipeline,
    kernels: &Kernels,
    devices: &mut [Engines],
) -> Result<Vec<Vec<Loaded>>, RunError> {
    let own = kernels.of_pipeline(number);
    let mut load = |step: usize, index: usize, engine: JobEngine| {
        Ok(match engine {
            JobEngine::Copy(Some(path)) => Loaded::Copy(path),
            JobEngine::Copy(None) => {
                let object = format!("step `{}` of pipeline `{}`", pipeline.steps[step].name, pipeline.name);
                let reason = "no GPU is at either end of the copy; let it begin or end at one".to_owned();
                return Err(RunError::Unsupported { pipeline: number, step: Some(step as u32), object, reason });
            }
            JobEngine::Core(core) => Loaded::Core(core),
            JobEngine::Gpu(device) => {
                let kernel = own.iter().find(|kernel| kernel.step as usize == step && kernel.index as usize == index);
                let kernel = kernel.expect("every operation that computes has a kernel");
                let stage = stage(&mut devices[device], &kernel.work, kernels.portions_of(kernel))?;
                Loaded::Kernel { device, stage }
            }
        })
    };
    let mut loaded = Vec::new();
    for (step, operations) in job.steps.iter().enumerate() {
        let operations = operations.iter().enumerate();
        loaded.push(operations.map(|(index, it)| load(step, index, it.engine)).collect::<Result<_, _>>()?);
    }
    Ok(loaded)
}

/// Refuses operations that take their data where it is not, and parts that begin or end on a GPU.
fn check(job: &PipelineJob, number: u32, pipeline: &Pipeline) -> Result<(), RunError> {
    let unsupported = |step: Option<usize>, object: String, reason: String| {
        let step = step.map(|step| step as u32);
        Err(RunError::Unsupported { pipeline: number, step, object, reason })
    };
    for (number_of_step, (step, operations)) in pipeline.steps.iter().zip(&job.steps).enumerate() {
        for JobOperation { engine, from, .. } in operations {
            let (from, at) = (engine.source(), job.buffers[from.buffer].place);
            if from != at {
                let object = format!("step `{}` of pipeline `{}`", step.name, pipeline.name);
                let name = |place| if place == JobPlace::Host { "on the host" } else { "on the GPU" };
                let reason = format!(
                    "it takes its data {}, and the step before leaves it {}; add the copy that is missing, or leave this step out",
                    name(from),
                    name(at)
                );
                return unsupported(Some(number_of_step), object, reason);
            }
        }
    }
    // The blocks of a stream on one GPU are brought there before the run, and read back after it.
    if job.is_packed {
        return Ok(());
    }
    for (part, (&input, &output)) in (1..).zip(job.inputs.iter().zip(&job.outputs)) {
        let object = || format!("part {part} of the packets of pipeline `{}`", pipeline.name);
        if job.buffers[input].place != JobPlace::Host {
            let first = job.steps.iter().position(|step| step.iter().any(|operation| operation.from.buffer == input));
            let reason = "it begins on a GPU, where nothing brings it; let its first copy start at `host`";
            return unsupported(first, object(), reason.to_owned());
        }
        if job.buffers[output].place != JobPlace::Host {
            let reason = "it ends on a GPU, where nothing takes it; add a copy to `host` as its last step";
            return unsupported(None, object(), reason.to_owned());
        }
    }
    Ok(())
}
