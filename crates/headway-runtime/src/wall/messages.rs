//! The blocks of messages on devices: where they lie, which part of them a cycle moves, and whether every byte arrived.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use headway_core::plan::{Carried, OperationWork, Pipeline, PipelineSource, Plan, ServiceClass};
use headway_core::units::Nanos;
use headway_device::{DeviceError, Engines};
use headway_os::clock;

use super::RunError;
use super::chunk::StepChunk;
use crate::blocks::DataError;
use crate::endpoints::{ALIGN, CopyPath, Endpoints, TransferRoom};

/// What the destinations on one device take together at most; a quarter of a GPU's memory is more.
const DEVICE_MAX: u64 = 4 << 30;
/// As much of a device's memory as they take at most: one part in this many.
const DEVICE_PART: u64 = 4;
/// What the blocks of one message take on the host, unless two of them are more: they are compared as they arrive.
const HOST_MAX: u64 = 64 << 20;
/// Bytes that are compared under one claim, some tens of microseconds: a copy, and the driver with it, may wait for that.
const COMPARED: usize = 64 << 10;
/// How long a copy waits for the end of a comparison.
const PATIENCE: Nanos = Nanos(1_000_000_000);

/// What came of the bytes of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct MessageComparison {
    /// Blocks that arrived whole.
    pub blocks: u64,
    /// Bytes that arrived.
    pub moved: u64,
    /// Bytes that were compared with what was sent; all were equal, or the run would have failed.
    pub equal: u64,
}

/// The newest job that landed in a place of a destination.
#[derive(Clone, Copy, Debug, Default)]
struct Landed {
    job: u64,
    /// Bytes of it that are there.
    until: usize,
    compared: bool,
}

/// What is known of the destination, by the thread behind the driver.
#[derive(Debug, Default)]
struct Book {
    places: Vec<Landed>,
    /// The job whose bytes come next, and how many of them have.
    next: (u64, usize),
    counted: MessageComparison,
}

/// What cycles under way were given: by cycle, the job and bytes of its block.
type Given = BTreeMap<u64, (u64, Range<usize>)>;

/// One block of a message.
struct BlockTransfer {
    ends: Endpoints,
    /// Which part of which job a cycle carries; `None` = its buffers job, whole.
    carried: Option<Carried>,
    /// A cycle may bring something else than planned: what each that is under way was given.
    varies: Option<Mutex<Given>>,
    /// A job may bring less than a block.
    shorter: bool,
    /// Jobs may overtake each other: urgent requests go by deadline.
    reorders: bool,
    /// The newest job of which something was submitted, plus one.
    begun: AtomicU64,
    book: Mutex<Book>,
}

/// A pipeline of messages.
pub(super) struct MessageBuffers {
    name: String,
    lines: Vec<BlockTransfer>,
}

impl MessageBuffers {
    /// Allocates and fills the memory of the blocks of `pipeline`, where pipelines run `cycles` cycles.
    pub(super) fn new(plan: &Plan, number: u32, devices: &mut [Engines], cycles: &[u64]) -> Result<Self, RunError> {
        let pipeline = &plan.pipelines[number as usize];
        let wanted_by_all = wanted_by_all(plan, cycles).max(1);
        let mut lines = Vec::new();
        for (index, operation) in pipeline.steps[0].operations.iter().enumerate() {
            let object = || format!("block {index} of `{}`", pipeline.name);
            let Some(path) = CopyPath::of(plan, operation) else {
                let reason = "no engine of a GPU moves it";
                return Err(RunError::Unsupported {
                    pipeline: number,
                    step: Some(0),
                    object: object(),
                    reason: reason.to_owned(),
                });
            };
            let count = devices.len();
            let Some(device) = devices.get(path.last_device()) else {
                return Err(RunError::NoDevice { gpu: path.last_device() as u32, devices: count });
            };
            let (block, jobs) = needs(pipeline, index, cycles.get(number as usize).copied().unwrap_or(0));
            let memory = (device.description().memory_bytes.0 / DEVICE_PART).min(DEVICE_MAX);
            let share =
                u128::from(memory) * u128::from(block.next_multiple_of(ALIGN)) * u128::from(jobs) / wanted_by_all;
            let shorter = !pipeline.source.is_planned();
            let speaks = plan.announced.iter().any(|of| (of.pipeline, of.part as usize) == (number, index));
            let varies = (shorter || speaks).then(Mutex::default);
            let share = if shorter { u128::from(block) * 4 } else { share };
            let bytes = if path.to.is_some() { u64::try_from(share).unwrap_or(memory) } else { HOST_MAX };
            let key = u64::from(number) << 20 | index as u64;
            let ends = Endpoints::new(devices, path, block, TransferRoom { jobs, bytes }, key)
                .map_err(|source| RunError::Prepare { what: object(), source })?;
            let book = Book { places: vec![Landed::default(); ends.targets()], ..Book::default() };
            let carried = carried(pipeline).get(index).cloned();
            lines.push(BlockTransfer {
                ends,
                carried,
                varies,
                shorter,
                reorders: pipeline.source.class() == ServiceClass::Urgent,
                begun: AtomicU64::new(0),
                book: Mutex::new(book),
            });
        }
        Ok(Self { name: pipeline.name.clone(), lines })
    }

    /// Submits a chunk of a block.
    pub(super) fn submit(&self, devices: &mut [Engines], chunk: &StepChunk, operation: u64) -> Result<(), DeviceError> {
        let line = &self.lines[chunk.index as usize];
        let job = line.job(chunk.cycle);
        line.begun.fetch_max(job + 1, Ordering::SeqCst);
        let range = chunk.offset.0 as usize..(chunk.offset.0 + chunk.bytes.0) as usize;
        if let Some(given) = &line.varies {
            let mut given = given.lock().unwrap_or_else(PoisonError::into_inner);
            given.entry(chunk.cycle).or_insert_with(|| (job, range.clone())).1.end = range.end;
        }
        let since = clock::now();
        loop {
            match line.ends.submit(devices, job, range.clone(), operation) {
                // Someone still compares what lies there.
                Err(DeviceError::Overlap { .. }) if clock::now().saturating_sub(since) < PATIENCE => {
                    std::thread::yield_now();
                }
                submitted => return submitted,
            }
        }
    }

    /// Takes note of what `cycle` has brought, and compares the blocks that are whole and lie on the host.
    pub(super) fn landed(&self, cycle: u64) -> Result<(), DataError> {
        for (index, line) in self.lines.iter().enumerate() {
            let given = match &line.varies {
                Some(given) => given.lock().unwrap_or_else(PoisonError::into_inner).remove(&cycle),
                None => line.part(cycle),
            };
            let Some((job, range)) = given else { continue };
            let wrong = |what: String| self.wrong(index, job, cycle, &what);
            let mut book = line.book.lock().unwrap_or_else(PoisonError::into_inner);
            // The rest of a job may have been given up.
            let begins = line.varies.is_some() && range.start == 0 && (line.reorders || job >= book.next.0);
            if (job, range.start) != book.next && !begins {
                let (job, byte) = book.next;
                return Err(wrong(format!("byte {} came, and byte {byte} of job {job} was next", range.start)));
            }
            let whole = line.shorter || range.end == line.ends.block();
            book.next = if whole { (job + 1, 0) } else { (job, range.end) }.max(book.next);
            book.counted.moved += range.len() as u64;
            book.counted.blocks += u64::from(whole);
            let place = (job % line.ends.targets() as u64) as usize;
            book.places[place] = Landed { job, until: range.end, compared: false };
            // One that is overtaken may come into the same place meanwhile: what is there at the end is compared then.
            if whole && !line.reorders && line.ends.ends_on_host() && line.compare(job, range.end).map_err(wrong)? {
                book.places[place].compared = true;
                book.counted.equal += range.end as u64;
            }
        }
        Ok(())
    }

    /// Compares what still lies there and was not compared.
    fn compare_rest(&self, devices: &mut [Engines]) -> Result<MessageComparison, RunError> {
        let mut total = MessageComparison::default();
        for (index, line) in self.lines.iter().enumerate() {
            let mut book = line.book.lock().unwrap_or_else(PoisonError::into_inner);
            let Book { places, counted, .. } = &mut *book;
            for place in places.iter_mut().filter(|place| !place.compared && place.until > 0) {
                let found = line.ends.read_back(devices, place.job, 0..place.until).map_err(|source| {
                    RunError::Prepare { what: format!("the comparison of block {index} of `{}`", self.name), source }
                })?;
                if let Some(byte) = found {
                    return Err(self.wrong(index, place.job, place.job, &other(byte)).into());
                }
                place.compared = true;
                counted.equal += place.until as u64;
            }
            total.blocks += counted.blocks;
            total.moved += counted.moved;
            total.equal += counted.equal;
        }
        Ok(total)
    }

    fn wrong(&self, index: usize, job: u64, cycle: u64, what: &str) -> DataError {
        DataError::Sequence { pipeline: self.name.clone(), cycle, what: format!("block {index} of job {job}: {what}") }
    }
}

fn other(byte: usize) -> String {
    format!("byte {byte} is not the one that was sent")
}

impl BlockTransfer {
    /// The job that `cycle` carries something of.
    fn job(&self, cycle: u64) -> u64 {
        let Some(Carried { message, member }) = &self.carried else { return cycle };
        if let Some((job, _)) = member.carried(message, cycle) {
            return job;
        }
        // What came late goes with a later slot of its window.
        let slot = member.levels.last().and_then(|level| message.grid().last_until(level.grid.slot(cycle).0));
        slot.unwrap_or(cycle)
    }

    /// The job and its bytes that `cycle` carries.
    fn part(&self, cycle: u64) -> Option<(u64, Range<usize>)> {
        match &self.carried {
            None => Some((cycle, 0..self.ends.block())),
            Some(carried) => {
                let (job, bytes) = carried.in_cycle(cycle)?;
                Some((job, bytes.start as usize..bytes.end as usize))
            }
        }
    }

    /// Compares a block on the host; whether it could be done before the next job but `targets` begins.
    fn compare(&self, job: u64, block: usize) -> Result<bool, String> {
        for from in (0..block).step_by(COMPARED) {
            if self.begun.load(Ordering::SeqCst) + 1 >= job + 1 + self.ends.targets() as u64 {
                return Ok(false);
            }
            match self.ends.compare(job, from..block.min(from + COMPARED)) {
                Ok(None) => {}
                Ok(Some(byte)) => return Err(other(byte)),
                Err(DeviceError::Overlap { .. }) => return Ok(false),
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(true)
    }
}

/// The messages in a batch, in the order of its operations; none where a cycle's job is the message's buffers.
fn carried(pipeline: &Pipeline) -> &[Carried] {
    if let PipelineSource::Batch(parts) = &pipeline.source { parts } else { &[] }
}

/// Size of a block, and of how many jobs something moves in `cycles` cycles.
fn needs(pipeline: &Pipeline, index: usize, cycles: u64) -> (u64, u64) {
    let Some(carried) = carried(pipeline).get(index) else {
        let OperationWork::Copy { bytes, .. } = pipeline.steps[0].operations[index].work else { return (0, 0) };
        return (bytes.0, cycles);
    };
    let time = u128::from(cycles) * u128::from(pipeline.period.0);
    let jobs = time / u128::from(carried.message.period.0.max(1)) + 2;
    (carried.message.bytes.0, u64::try_from(jobs).unwrap_or(u64::MAX).min(cycles))
}

/// Bytes of all jobs of all messages: the memory that holds some of them is shared in proportion.
fn wanted_by_all(plan: &Plan, cycles: &[u64]) -> u128 {
    let messages = plan.pipelines.iter().zip(cycles);
    let messages =
        messages.filter(|(pipeline, _)| matches!(pipeline.source, PipelineSource::Message | PipelineSource::Batch(_)));
    let wanted = messages.flat_map(|(pipeline, &cycles)| {
        (0..pipeline.steps[0].operations.len()).map(move |index| needs(pipeline, index, cycles))
    });
    wanted.map(|(block, jobs)| u128::from(block.next_multiple_of(ALIGN)) * u128::from(jobs)).sum()
}

/// The end of a run: everything that was not compared yet and is still there.
pub(super) fn compare_rest<'a>(
    pipelines: impl Iterator<Item = &'a MessageBuffers>,
    devices: &mut [Engines],
) -> Result<MessageComparison, RunError> {
    let mut total = MessageComparison::default();
    for buffers in pipelines {
        let MessageComparison { blocks, moved, equal } = buffers.compare_rest(devices)?;
        total =
            MessageComparison { blocks: total.blocks + blocks, moved: total.moved + moved, equal: total.equal + equal };
    }
    Ok(total)
}
