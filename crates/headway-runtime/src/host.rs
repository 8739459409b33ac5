//! The payload of a simulated run: ordinary memory, copies by the CPU, kernels in their CPU form.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use headway_core::files::workload::Sharding;
use headway_core::plan::payload::{Gathered, Payload, PayloadChunk};
use headway_core::plan::{Pipeline, PipelineSource, Plan};
use headway_core::units::{Bytes, Nanos};
use headway_device::work::{Items, Portion, WorkError};

use crate::blocks::{DataError, Gatherer, Scatterer};
use crate::cores::CoreStage;
use crate::job::{JobEngine, JobOperation, PipelineJob};
use crate::kernels::Kernels;
use crate::shards;

/// A payload that cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// Packing or unpacking failed.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A kernel refused its block.
    #[error(transparent)]
    Kernel(#[from] WorkError),
}

/// Buffers of a cycle under way.
struct CycleBuffers {
    buffers: Vec<Vec<u8>>,
    block: Bytes,
}

/// A pipeline in ordinary memory.
struct HostJob {
    job: PipelineJob,
    /// By step and operation.
    stages: BTreeMap<(u32, u32), CoreStage>,
    open: BTreeMap<u64, CycleBuffers>,
    /// Buffers of delivered cycles, which others take over; those of divided packets by their place in the ring.
    spare: BTreeMap<u32, Vec<Vec<Vec<u8>>>>,
    /// What divided packets consist of.
    items: Option<Arc<dyn Items>>,
}

impl HostJob {
    fn new(plan: &Plan, number: u32, kernels: &Kernels, job: PipelineJob) -> Result<Self, WorkError> {
        let is_divided = matches!(plan.pipelines[number as usize].source, PipelineSource::Sharded(_));
        let mut stages = BTreeMap::new();
        for kernel in kernels.of_pipeline(number) {
            let mut portions = kernels.portions_of(kernel).to_vec();
            if is_divided {
                portions.iter_mut().for_each(leave_operations_out);
            }
            stages.insert((kernel.step, kernel.index), CoreStage::new(Arc::clone(&kernel.work), &portions)?);
        }
        let items = is_divided.then(|| Arc::clone(kernels.items(number)));
        Ok(Self { job, stages, open: BTreeMap::new(), spare: BTreeMap::new(), items })
    }

    fn gather(
        &mut self,
        number: u32,
        pipeline: &Pipeline,
        cycle: u64,
        gatherer: &Gatherer,
    ) -> Result<Gathered, HostError> {
        let row = ring_place(pipeline, cycle);
        let mut buffers = match self.spare.get_mut(&row).and_then(Vec::pop) {
            Some(buffers) => buffers,
            None => {
                let mut buffers: Vec<Vec<u8>> = self.job.buffers.iter().map(|buffer| vec![0; buffer.bytes]).collect();
                if let (PipelineSource::Sharded(planned), Some(items)) = (&pipeline.source, &self.items) {
                    for (shard, &input) in planned.shards.iter().zip(&self.job.inputs) {
                        shards::fill(items.as_ref(), planned, shard, row, &mut buffers[input])
                            .map_err(|source| DataError::Block { pipeline: pipeline.name.clone(), cycle, source })?;
                    }
                }
                buffers
            }
        };
        let inputs = buffers.iter_mut().enumerate().filter(|(at, _)| self.job.inputs.contains(at));
        let mut inputs: Vec<&mut [u8]> = inputs.map(|(_, buffer)| buffer.as_mut_slice()).collect();
        let gathered = gatherer.gather(number, cycle, &mut inputs)?;
        if gathered.block.0 == 0 {
            self.spare.entry(row).or_default().push(buffers);
        } else {
            self.open.insert(cycle, CycleBuffers { buffers, block: gathered.block });
        }
        Ok(gathered)
    }

    fn execute(&mut self, chunk: &PayloadChunk) -> Result<(), HostError> {
        let CycleBuffers { buffers, block } = self.open.get_mut(&chunk.cycle).expect("a submitted cycle was gathered");
        let JobOperation { engine, from, to } = &self.job.steps[chunk.step as usize][chunk.index as usize];
        let buffers = buffers.get_disjoint_mut([from.buffer, to.buffer]);
        let [input, output] = buffers.expect("no operation leaves its output where its input is");
        let (input, output) = (&input[from.range.clone()], &mut output[to.range.clone()]);
        if let JobEngine::Copy(_) = engine {
            let moved = chunk.offset.0 as usize..(chunk.offset.0 + chunk.bytes.0) as usize;
            output[moved.clone()].copy_from_slice(&input[moved]);
        } else if let Some(stage) = self.stages.get_mut(&(chunk.step, chunk.index)) {
            let used = [input.len(), output.len()].map(|bytes| self.job.used(bytes, *block));
            stage.run(&input[..used[0]], &mut output[..used[1]])?;
        }
        Ok(())
    }

    fn deliver(
        &mut self,
        at: Nanos,
        number: u32,
        pipeline: &Pipeline,
        cycle: u64,
        scatterer: &mut Scatterer,
    ) -> Result<(), HostError> {
        let Some(CycleBuffers { buffers, block }) = self.open.remove(&cycle) else { return Ok(()) };
        let outputs = self.job.outputs.iter().map(|&output| &buffers[output]);
        let outputs: Vec<&[u8]> = outputs.map(|output| &output[..self.job.used(output.len(), block)]).collect();
        let scattered = scatterer.scatter(at, number, cycle, &outputs);
        self.spare.entry(ring_place(pipeline, cycle)).or_default().push(buffers);
        Ok(scattered?)
    }
}

/// The place in the ring of divided packets that `cycle` sends. Other packets have no ring.
fn ring_place(pipeline: &Pipeline, cycle: u64) -> u32 {
    if let PipelineSource::Sharded(planned) = &pipeline.source { shards::row(planned, cycle) } else { 0 }
}

/// Leaves operations out that only take time, since time is virtual here.
fn leave_operations_out(portion: &mut Portion) {
    if portion.parameters.number(Sharding::OPERATIONS).is_some() {
        portion.parameters = std::mem::take(&mut portion.parameters).with_number(Sharding::OPERATIONS, 0);
    }
}

/// Moves and processes bytes in ordinary memory.
pub struct HostPayload {
    plan: Arc<Plan>,
    gatherer: Gatherer,
    scatterer: Scatterer,
    /// By pipeline. Messages and demands carry no user's bytes, and have none.
    jobs: Vec<Option<HostJob>>,
    interrupt: Arc<AtomicBool>,
    /// Virtual time after the plan's time zero, as far as whoever runs it says.
    now: Arc<AtomicU64>,
    /// A program's callback failed: the run ends at the next instant, so that what was done until then is whole.
    failed: bool,
}

impl HostPayload {
    /// A payload for `plan` that reads through `gatherer` and writes through `scatterer`, and asks for the end once
    /// `interrupt` is true.
    ///
    /// # Errors
    /// [`WorkError`] if a kernel lacks a parameter.
    pub fn new(
        plan: Arc<Plan>,
        kernels: &Kernels,
        gatherer: Gatherer,
        scatterer: Scatterer,
        interrupt: Arc<AtomicBool>,
    ) -> Result<Self, WorkError> {
        let job = |number| {
            let job = PipelineJob::of(&plan, number, kernels);
            job.map(|job| HostJob::new(&plan, number, kernels, job)).transpose()
        };
        let jobs = (0..plan.pipelines.len() as u32).map(job).collect::<Result<_, _>>()?;
        gatherer.begin_virtually();
        let (now, failed) = (Arc::default(), false);
        Ok(Self { plan, gatherer, scatterer, jobs, interrupt, now, failed })
    }

    /// A payload that takes virtual time after the plan's time zero from `now`, in nanoseconds.
    #[must_use]
    pub fn timed(self, now: Arc<AtomicU64>) -> Self {
        Self { now, ..self }
    }

    /// Remembers that a callback failed; other errors are passed on.
    fn note<T: Default>(&mut self, done: Result<T, HostError>) -> Result<T, HostError> {
        match done {
            Err(HostError::Data(DataError::Callback(_))) => {
                self.failed = true;
                Ok(T::default())
            }
            done => done,
        }
    }

    /// Ends the run: writes everything out and returns the bytes of each stream.
    ///
    /// # Errors
    /// [`crate::outlet::OutputError`].
    pub fn finish(self) -> Result<Vec<u64>, crate::outlet::OutputError> {
        self.scatterer.finish()
    }
}

/// Says how many bytes there are, and touches none.
pub struct TimeOnly {
    gatherer: Gatherer,
    interrupt: Arc<AtomicBool>,
}

impl TimeOnly {
    /// For what `gatherer` would pack; asks for the end once `interrupt` is true.
    #[must_use]
    pub fn new(gatherer: Gatherer, interrupt: Arc<AtomicBool>) -> Self {
        Self { gatherer, interrupt }
    }
}

impl Payload for TimeOnly {
    type Error = HostError;

    fn interrupted(&self) -> bool {
        self.interrupt.load(Ordering::Relaxed)
    }

    fn gather(&mut self, pipeline: u32, cycle: u64) -> Result<Gathered, HostError> {
        Ok(self.gatherer.sizes(pipeline, cycle))
    }

    fn execute(&mut self, _chunk: &PayloadChunk) -> Result<(), HostError> {
        Ok(())
    }

    fn deliver(&mut self, _pipeline: u32, _cycle: u64) -> Result<(), HostError> {
        Ok(())
    }
}

impl Payload for HostPayload {
    type Error = HostError;

    fn interrupted(&self) -> bool {
        self.failed || self.interrupt.load(Ordering::Relaxed)
    }

    fn gather(&mut self, pipeline: u32, cycle: u64) -> Result<Gathered, HostError> {
        let Some(job) = &mut self.jobs[pipeline as usize] else { return Ok(Gathered::default()) };
        let gathered = job.gather(pipeline, &self.plan.pipelines[pipeline as usize], cycle, &self.gatherer);
        self.note(gathered)
    }

    fn execute(&mut self, chunk: &PayloadChunk) -> Result<(), HostError> {
        self.jobs[chunk.pipeline as usize].as_mut().map_or(Ok(()), |job| job.execute(chunk))
    }

    fn deliver(&mut self, pipeline: u32, cycle: u64) -> Result<(), HostError> {
        let Some(job) = &mut self.jobs[pipeline as usize] else { return Ok(()) };
        let at = Nanos(self.now.load(Ordering::Relaxed));
        let delivered = job.deliver(at, pipeline, &self.plan.pipelines[pipeline as usize], cycle, &mut self.scatterer);
        self.note(delivered)
    }

    fn give_up(&mut self, pipeline: u32, cycle: u64) -> Result<(), HostError> {
        let Some(job) = &mut self.jobs[pipeline as usize] else { return Ok(()) };
        if let Some(CycleBuffers { buffers, .. }) = job.open.remove(&cycle) {
            self.scatterer.lose(pipeline, cycle)?;
            let place = ring_place(&self.plan.pipelines[pipeline as usize], cycle);
            job.spare.entry(place).or_default().push(buffers);
        }
        Ok(())
    }
}
