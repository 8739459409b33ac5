//! A stream of the copier's own with its slots.

use std::sync::Arc;

use headway_core::models::transfer::Direction;
use headway_core::units::Bytes;
use headway_device::DeviceError;
use headway_device::buffer::Memory;

use super::OrderedCopy;
use super::job::{OrderedJob, SLOTS, Slots, slot_of, use_of};
use super::ticket::{OrderedTicket, Word, Words};
use super::workers::JobQueue;
use crate::driver::table;
use crate::owned::{Context, CopyKind, Stream};
use crate::pool::Pool;
use crate::words;

/// The threads are woken after so many chunks are queued, at the latest: the driver's queue holds about three hundred.
const WAKE_AFTER: usize = 64;
/// A stream of the copier's own with its slots. Copies of one direction go through it one after the other.
pub(super) struct Pipeline {
    pub(super) stream: Arc<Stream>,
    slots: Arc<Slots>,
    /// Chunks queued so far; each has the slot after the one before it.
    chunks: u64,
    /// The copy that was queued last.
    last: Option<(Word, u32)>,
    copies: u64,
}

impl Pipeline {
    pub(super) fn new(context: &Arc<Context>, pool: &Pool, slot: Bytes) -> Result<Self, DeviceError> {
        let stream = Arc::new(Stream::new(context)?);
        let memory = (0..SLOTS).map(|_| pool.take_pages(slot.0 as usize)).collect::<Result<_, _>>()?;
        let words = Words::new(pool, 2 * SLOTS as usize)?;
        // Pinning may have made another context current.
        context.bind()?;
        Ok(Self { stream, slots: Arc::new(Slots { memory, words }), chunks: 0, last: None, copies: 0 })
    }

    /// Whether all copies that it was given have ended.
    pub(super) fn is_free(&self) -> bool {
        self.last.as_ref().is_none_or(|(done, generation)| done.reached(*generation))
    }

    /// How many it was given.
    pub(super) fn copies(&self) -> u64 {
        self.copies
    }

    pub(super) fn slot_bytes(&self) -> usize {
        self.slots.memory[0].bytes()
    }

    /// The next copy of this pipeline.
    pub(super) fn job(&self, copy: OrderedCopy, chunk: usize, ticket: &OrderedTicket) -> Arc<OrderedJob> {
        Arc::new(OrderedJob::new(copy, chunk, ticket, &self.slots, self.chunks))
    }

    /// Queues all chunks of a copy, and hands it to the threads. After an error they serve the chunks that are queued.
    ///
    /// One thread is woken before a stream waits for it: another thread of the program may make the driver wait for all streams just then, and a call
    /// from here would wait for that. The others are woken at the end, since a thread that wakes may take the caller's CPU, but before the driver's
    /// queue may be full.
    ///
    /// # Safety
    /// The caller keeps the promise of [`super::RawCopy::new`]; the context is current.
    pub(super) unsafe fn queue(
        &mut self,
        context: &Context,
        job: &Arc<OrderedJob>,
        ticket: &OrderedTicket,
        jobs: &JobQueue,
    ) -> Result<(), DeviceError> {
        let (first, stream, generation) = (self.chunks, self.stream.handle(), ticket.generation());
        let (copy, chunk, count) = (job.of(), job.chunk_bytes(), job.count());
        self.chunks += count as u64;
        self.copies += 1;
        self.last = Some((ticket.done(), generation));
        // SAFETY: the words live as long as the ticket's memory.
        unsafe { words::wait(context, stream, ticket.begin().address(), generation, table::WAIT_GEQ) }?;
        jobs.push(Arc::clone(job));
        let is_in = copy.direction == Direction::H2d;
        let mut queued = (0..count).try_for_each(|at| {
            if at == WAKE_AFTER {
                jobs.wake_all();
            }
            // SAFETY: the caller's promise.
            let queued = unsafe { self.queue_chunk(context, copy, first + at as u64, at * chunk, chunk) };
            // The stream may wait already for the chunk that failed to be filled.
            queued.inspect_err(|_| jobs.shorten(job, at + usize::from(is_in)))
        });
        if queued.is_ok() && is_in {
            // SAFETY: the caller's promise.
            queued = unsafe { words::write(context, stream, ticket.done().address(), generation) };
        }
        jobs.wake_all();
        queued
    }

    /// # Safety
    /// The caller keeps the promise of [`Pipeline::queue`].
    unsafe fn queue_chunk(
        &self,
        context: &Context,
        copy: &OrderedCopy,
        number: u64,
        offset: usize,
        chunk: usize,
    ) -> Result<(), DeviceError> {
        let (slot, turn, stream) = (slot_of(number), use_of(number), self.stream.handle());
        let (filled, drained) = (self.slots.words.address(2 * slot), self.slots.words.address(2 * slot + 1));
        let len = chunk.min(copy.bytes - offset);
        let device = copy.device + offset as u64;
        let host = self.slots.memory[slot].base().expose_provenance() as u64;
        let (wait, value, write, kind, from, to) = match copy.direction {
            Direction::H2d => (filled, turn, drained, CopyKind::HostToDevice, host, device),
            _ => (drained, turn.wrapping_sub(1), filled, CopyKind::DeviceToHost, device, host),
        };
        // SAFETY: slots and words live until the stream has passed this point (`OrderedCopier::drop`); the caller promises
        // the device's range.
        unsafe {
            words::wait(context, stream, wait, value, table::WAIT_EQ)?;
            self.stream.copy(kind, from, to, len)?;
            words::write(context, stream, write, turn)
        }
    }
}
