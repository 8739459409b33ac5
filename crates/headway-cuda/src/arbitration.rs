//! How long small copies on one stream wait at a GPU's copy engines while a bulk copy runs on others.
//!
//! No document says when an engine that serves a stream turns to another one. It depends on what the bulk copy's stream meets between
//! two chunks, so that is what a measurement varies ([`BulkStreamGap`]). The copies here are the driver's own, as any program queues them:
//! nothing of what Headway's queues do to let others in is at work.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use headway_core::models::transfer::Direction;
use headway_core::units::Nanos;
use headway_device::buffer::Memory;
use headway_device::gpu::Piece;
use headway_device::{DeviceError, LaunchGrid};
use headway_os::clock;

use crate::CudaGpu;
use crate::driver::table::{self, Address};
use crate::owned::{Context, CopyKind, CudaEvent, DeviceMemory, Module, Stream};
use crate::pieces::{self, Batch, Unit};
use crate::pinned::PinnedMemory;
use crate::words;

/// Copies that have not ended by then never will.
const PATIENCE: Nanos = Nanos(20_000_000_000);
/// The largest small copy.
const SMALL_MAX: usize = 4 << 20;
/// Where the words are that streams write and wait for, behind the bytes of small copies.
const WORDS: usize = SMALL_MAX;
const WORDS_BYTES: usize = 64 << 10;

/// What a bulk copy's stream meets between two chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BulkStreamGap {
    /// The next chunk.
    Nothing,
    /// The next chunk: all are queued in one call (`cuMemcpyBatchAsync`).
    OneCall,
    /// An event record.
    Event,
    /// The write of a word, behind a memory barrier or without one.
    Write {
        /// Whether what comes before is visible to all before the word is written.
        barrier: bool,
    },
    /// Nothing: the next chunk is on a second stream, which waits for an event of the first one.
    OtherStream,
}

/// A large copy between page-locked memory and the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkCopy {
    pub direction: Direction,
    /// Length of a chunk, bytes; as long as the copy = it is whole.
    pub chunk: usize,
    /// What is between them.
    pub between: BulkStreamGap,
}

/// How a small copy is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hand {
    /// By a copy engine.
    Engine,
    /// By a kernel of so many blocks.
    Kernel { blocks: u32 },
}

/// A small copy between page-locked memory and the GPU, on a stream of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Small {
    pub direction: Direction,
    /// Bytes of the copy.
    pub bytes: usize,
    /// By what.
    pub hand: Hand,
    /// Whether its stream has the highest priority, and the bulk copy's the lowest.
    pub urgent: bool,
    /// Whether it is queued before the bulk copy, and becomes ready only when that has begun.
    pub queued_first: bool,
}

/// What one bulk copy took, and the small ones made meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkAndSmall {
    /// The bulk copy, from its first to its last operation.
    pub bulk: Nanos,
    /// Each small copy, from the call, or from when it was ready, to its end.
    pub small: Vec<Nanos>,
}

/// The streams and memory of a measurement.
pub struct ArbitrationBed {
    context: Arc<Context>,
    bulk_bytes: usize,
    there: DeviceMemory,
    here: PinnedMemory,
    small_there: DeviceMemory,
    small_here: PinnedMemory,
    /// Two of the bulk copy, and one of small ones.
    streams: [Stream; 3],
    /// One for bulk copies, and one for small ones.
    ranked: Option<[Stream; 2]>,
    kernel: Module,
    start: CudaEvent,
    end: CudaEvent,
    passed: Vec<CudaEvent>,
}

impl ArbitrationBed {
    /// Takes twice `bulk_bytes`, half of it page-locked.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`], [`DeviceError::Driver`].
    pub fn new(gpu: &CudaGpu, bulk_bytes: usize) -> Result<Self, DeviceError> {
        let context = gpu.context();
        let (name, ptx, entry) = pieces::KERNEL;
        let stream = || Stream::new(context);
        Ok(Self {
            context: Arc::clone(context),
            bulk_bytes,
            there: DeviceMemory::new(context, bulk_bytes)?,
            here: PinnedMemory::new(context, bulk_bytes)?,
            small_there: DeviceMemory::new(context, SMALL_MAX)?,
            small_here: PinnedMemory::new(context, SMALL_MAX + WORDS_BYTES)?,
            streams: [stream()?, stream()?, stream()?],
            ranked: ranked(context)?,
            kernel: Module::load(context, name, ptx.as_bytes(), entry)?,
            start: CudaEvent::new(context)?,
            end: CudaEvent::new(context)?,
            passed: Vec::new(),
        })
    }

    /// Whether streams can have priorities here.
    #[must_use]
    pub fn has_priorities(&self) -> bool {
        self.ranked.is_some()
    }

    /// One bulk copy with nothing beside it.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn bulk(&mut self, bulk: &BulkCopy) -> Result<Nanos, DeviceError> {
        self.context.bind()?;
        self.queue_bulk(bulk, false)?;
        self.ended()
    }

    /// Small copies one after the other, with nothing beside them.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn small(&mut self, small: &Small, count: usize) -> Result<Vec<Nanos>, DeviceError> {
        self.context.bind()?;
        (0..count).map(|at| self.one(small, at as u8)).collect()
    }

    /// One bulk copy, and small ones one after the other until it has ended.
    ///
    /// # Errors
    /// [`DeviceError`]; [`DeviceError::Invalid`] if a small copy brought wrong bytes.
    pub fn bulk_and_small(&mut self, bulk: &BulkCopy, small: &Small) -> Result<BulkAndSmall, DeviceError> {
        self.context.bind()?;
        let mut waits = Vec::new();
        if small.queued_first {
            let word = self.word(1);
            // SAFETY: the word is ours, and nothing else waits for it.
            unsafe { word.cast::<u32>().write_volatile(0) };
            let stream = self.small_stream(small).handle();
            // SAFETY: the word lives as long as `self`; the stream has ended before this returns.
            unsafe { words::wait(&self.context, stream, address(word), 1, table::WAIT_EQ) }?;
            self.queue_small(small)?;
            self.queue_bulk(bulk, small.urgent)?;
            let ready = clock::now();
            // SAFETY: the word lives as long as `self`; the stream has ended before this returns; the stream waits
            // for it.
            unsafe { word.cast::<u32>().write_volatile(1) };
            self.rest(small)?;
            waits.push(clock::now() - ready);
        } else {
            self.queue_bulk(bulk, small.urgent)?;
            while !self.end.is_reached()? {
                waits.push(self.one(small, waits.len() as u8)?);
            }
        }
        Ok(BulkAndSmall { bulk: self.ended()?, small: waits })
    }

    fn small_stream(&self, small: &Small) -> &Stream {
        match &self.ranked {
            Some([_, urgent]) if small.urgent => urgent,
            _ => &self.streams[2],
        }
    }

    /// A word of page-locked memory: 0 is written by bulk copies, 1 by us.
    fn word(&self, at: usize) -> *mut u8 {
        // SAFETY: the words lie behind the bytes of small copies, within the allocation.
        unsafe { self.small_here.base().add(WORDS + 64 * at) }
    }

    /// One small copy, and what it took.
    fn one(&self, small: &Small, mark: u8) -> Result<Nanos, DeviceError> {
        let from = match small.direction {
            Direction::H2d => None,
            _ => Some(self.small_here.base()),
        };
        if let Some(host) = from {
            // SAFETY: no operation uses the memory now. What is there is not what the GPU has.
            unsafe { host.write_volatile(mark | 1) };
        }
        let before = clock::now();
        self.queue_small(small)?;
        self.rest(small)?;
        let took = clock::now() - before;
        // SAFETY: no operation uses the memory now. The GPU's memory is zero.
        if from.is_some_and(|host| unsafe { host.read_volatile() } != 0) {
            return Err(DeviceError::Invalid { what: "small copy", reason: "it brought other bytes".into() });
        }
        Ok(took)
    }

    fn rest(&self, small: &Small) -> Result<(), DeviceError> {
        let (stream, since) = (self.small_stream(small), clock::now());
        while !stream.is_idle()? {
            if clock::now() - since > PATIENCE {
                return Err(DeviceError::Timeout { what: "a small copy".to_owned(), after: PATIENCE });
            }
        }
        Ok(())
    }

    fn queue_small(&self, small: &Small) -> Result<(), DeviceError> {
        let stream = self.small_stream(small);
        let bytes = small.bytes.min(SMALL_MAX);
        let (there, here) = (address(self.small_there.base()), address(self.small_here.base()));
        let (kind, from, to) = match small.direction {
            Direction::H2d => (CopyKind::HostToDevice, here, there),
            _ => (CopyKind::DeviceToHost, there, here),
        };
        match small.hand {
            // SAFETY: both ends have so many bytes and live until the stream has ended, which every caller waits for.
            Hand::Engine => unsafe { stream.copy(kind, from, to, bytes) },
            Hand::Kernel { blocks } => {
                let whole = Piece { from: 0, to: 0, len: bytes };
                let unit = pieces::unit_bytes(bytes as u64, blocks);
                let place = self.word(2).cast::<Unit>();
                let mut count = 0u32;
                for entry in pieces::units(from, to, &[whole], unit).take(WORDS_BYTES / size_of::<Unit>() - 8) {
                    // SAFETY: the place has room for so many entries, and no kernel reads it now.
                    unsafe { place.add(count as usize).write(entry) };
                    count += 1;
                }
                let mut table = address(place.cast());
                let grid = LaunchGrid::line(blocks, pieces::KERNEL_THREADS, 0);
                let mut arguments: [*mut c_void; 2] = [(&raw mut table).cast(), (&raw mut count).cast()];
                // SAFETY: a table of page-locked memory and its length; the copy lies within memory that lives as long as `self`.
                unsafe { stream.launch(&self.kernel, grid, &mut arguments) }
            }
        }
    }

    /// Queues the bulk copy between the two events.
    fn queue_bulk(&mut self, bulk: &BulkCopy, ranked: bool) -> Result<(), DeviceError> {
        let count = self.bulk_bytes.div_ceil(bulk.chunk.max(1));
        while self.passed.len() < count && bulk.between != BulkStreamGap::Nothing {
            self.passed.push(CudaEvent::untimed(&self.context)?);
        }
        let streams = match &self.ranked {
            Some([low, _]) if ranked => [low, low],
            _ => [&self.streams[0], &self.streams[1]],
        };
        let (kind, from, to) = match bulk.direction {
            Direction::H2d => (CopyKind::HostToDevice, address(self.here.base()), address(self.there.base())),
            _ => (CopyKind::DeviceToHost, address(self.there.base()), address(self.here.base())),
        };
        self.start.record(streams[0])?;
        let part = |at: usize| (at * bulk.chunk, bulk.chunk.min(self.bulk_bytes - at * bulk.chunk));
        if bulk.between == BulkStreamGap::OneCall {
            let all: Vec<Piece> = (0..count).map(part).map(|(at, len)| Piece { from: at, to: at, len }).collect();
            // SAFETY: the pieces lie within memory that lives as long as `self`; the stream has ended before that.
            unsafe { Batch::default().queue(&self.context.driver, (from, to), &all, streams[0]) }?;
            return self.end.record(streams[0]);
        }
        let mut stream = streams[0];
        for at in 0..count {
            let (offset, len) = part(at);
            // SAFETY: the pieces lie within memory that lives as long as `self`; the stream has ended before that.
            unsafe { stream.copy(kind, from + offset as u64, to + offset as u64, len) }?;
            if at + 1 == count {
                break;
            }
            match bulk.between {
                BulkStreamGap::Nothing | BulkStreamGap::OneCall => {}
                BulkStreamGap::Event => self.passed[at].record(stream)?,
                BulkStreamGap::Write { barrier } => {
                    let flags = if barrier { 0 } else { table::STREAM_WRITE_WITHOUT_BARRIER };
                    // SAFETY: the word is of bulk copies alone, and lives as long as `self`.
                    unsafe { words::write_with(&self.context, stream.handle(), address(self.word(0)), 0, flags) }?;
                }
                BulkStreamGap::OtherStream => {
                    self.passed[at].record(stream)?;
                    stream = streams[(at + 1) % 2];
                    self.passed[at].hold(stream)?;
                }
            }
        }
        self.end.record(stream)
    }

    /// Waits for the end of the bulk copy: how long it took.
    fn ended(&self) -> Result<Nanos, DeviceError> {
        let since = clock::now();
        while !self.end.is_reached()? {
            if clock::now() - since > PATIENCE {
                return Err(DeviceError::Timeout { what: "a bulk copy".to_owned(), after: PATIENCE });
            }
        }
        Ok(Nanos(u64::try_from(self.start.nanos_to(&self.end)?).unwrap_or(0)))
    }
}

impl Drop for ArbitrationBed {
    /// After an error copies may still run. Where they do not end the context is given up, and the memory stays.
    fn drop(&mut self) {
        // An error may have left a stream waiting for this word.
        // SAFETY: the word is ours.
        unsafe { self.word(1).cast::<u32>().write_volatile(1) };
        let since = clock::now();
        for stream in self.streams.iter().chain(self.ranked.iter().flatten()) {
            while stream.rests() != Ok(true) {
                if clock::now() - since > PATIENCE {
                    return self.context.lose();
                }
                headway_os::sched::yield_now();
            }
        }
    }
}

fn address(pointer: *mut u8) -> Address {
    pointer.expose_provenance() as Address
}

/// Streams of the lowest and of the highest priority, if there are priorities.
fn ranked(context: &Arc<Context>) -> Result<Option<[Stream; 2]>, DeviceError> {
    let Some(range) = context.driver.table.cuCtxGetStreamPriorityRange else { return Ok(None) };
    context.bind()?;
    let (mut lowest, mut highest): (c_int, c_int) = (0, 0);
    // SAFETY: both are valid for the call to write.
    let code = unsafe { range(&raw mut lowest, &raw mut highest) };
    context.note(context.driver.check("cuCtxGetStreamPriorityRange", code))?;
    if lowest == highest {
        return Ok(None);
    }
    let [low, high] = [lowest, highest].map(|priority| Stream::ranked(context, priority));
    Ok(Some([low?, high?]))
}
