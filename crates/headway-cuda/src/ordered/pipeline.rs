//! A stream of the copier's own with its slots.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use headway_core::models::transfer::{Direction, Stores};
use headway_core::units::Bytes;
use headway_device::DeviceError;
use headway_device::buffer::Memory;
use headway_os::copy;
use headway_os::memory::mostly_absent;

use super::OrderedCopy;
use super::ticket::{Ticket, Word, Words};
use super::workers::JobQueue;
use crate::owned::{Context, CopyKind, Stream};
use crate::pool::{Piece, Pool};
use crate::{table, words};

/// The threads are woken after so many chunks are queued, at the latest: the driver's queue holds about three hundred.
const WAKE_AFTER: usize = 64;
/// Slots of a pipeline.
const SLOTS: u64 = 8;

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

/// Page-locked memory through which chunks go. A slot's words count its uses.
pub(super) struct Slots {
    memory: Vec<Piece>,
    /// Of slot S: at 2 S *filled*, at 2 S + 1 *drained*.
    words: Arc<Words>,
}

/// A copy as the threads see it.
pub(super) struct Job {
    copy: OrderedCopy,
    /// Bytes of a chunk; the last one may be shorter.
    chunk: usize,
    /// The ticket's words, and the generation that they come to.
    begin: Word,
    done: Word,
    generation: u32,
    slots: Arc<Slots>,
    /// Number of its first chunk in the pipeline.
    first: u64,
    /// Chunks that no thread has copied yet.
    left: AtomicUsize,
    stores: Stores,
}

// SAFETY: whoever makes a `RawCopy` promises that the host range may be used until the copy has ended, by any thread.
unsafe impl Send for Job {}
// SAFETY: as above; each chunk is copied by one thread.
unsafe impl Sync for Job {}

fn slot_of(number: u64) -> usize {
    (number % SLOTS) as usize
}

/// Which use of its slot a chunk is, from 1 on; they may begin anew.
fn use_of(number: u64) -> u32 {
    (number / SLOTS + 1) as u32
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

    /// Queues all chunks of a copy, and hands it to the threads. They are woken at the end, since a thread that wakes may take the
    /// caller's CPU, but before the driver's queue may be full.
    ///
    /// # Safety
    /// As for [`super::RawCopy::new`]; the context is current.
    pub(super) unsafe fn queue(
        &mut self,
        context: &Context,
        copy: &OrderedCopy,
        chunk: usize,
        ticket: &Ticket,
        jobs: &JobQueue,
    ) -> Result<(), DeviceError> {
        let (first, stream, generation) = (self.chunks, self.stream.handle(), ticket.generation());
        let count = copy.bytes.div_ceil(chunk);
        self.chunks += count as u64;
        self.copies += 1;
        self.last = Some((ticket.done(), generation));
        // SAFETY: the words live as long as the ticket's memory.
        unsafe { words::wait(context, stream, ticket.begin().address(), generation, table::WAIT_GEQ) }?;
        jobs.push(Arc::new(Job::new(*copy, chunk, ticket, &self.slots, first)));
        for at in 0..count {
            if at == WAKE_AFTER {
                jobs.wake_all();
            }
            // SAFETY: the caller's promise.
            unsafe { self.queue_chunk(context, copy, first + at as u64, at * chunk, chunk) }?;
        }
        let ended = match copy.direction {
            // SAFETY: as above.
            Direction::H2d => unsafe { words::write(context, stream, ticket.done().address(), generation) },
            _ => Ok(()),
        };
        jobs.wake_all();
        ended
    }

    /// # Safety
    /// As for [`Pipeline::queue`].
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

impl Job {
    fn new(copy: OrderedCopy, chunk: usize, ticket: &Ticket, slots: &Arc<Slots>, first: u64) -> Self {
        let has_pages = || {
            // SAFETY: whoever makes a `RawCopy` promises the range; its pages are asked for, its bytes are not read.
            !mostly_absent(unsafe { std::slice::from_raw_parts(copy.host, copy.bytes) }, 8)
        };
        let stores = if copy.direction == Direction::D2h && has_pages() { Stores::NonTemporal } else { Stores::Plain };
        let left = AtomicUsize::new(copy.bytes.div_ceil(chunk));
        let (begin, done, generation) = (ticket.begin(), ticket.done(), ticket.generation());
        Self { copy, chunk, begin, done, generation, slots: Arc::clone(slots), first, left, stores }
    }

    pub(super) fn count(&self) -> usize {
        self.copy.bytes.div_ceil(self.chunk)
    }

    /// Whether its turn has come in the caller's stream.
    pub(super) fn has_begun(&self) -> bool {
        self.begin.reached(self.generation)
    }

    /// Whether a thread can copy chunk `at` now.
    pub(super) fn is_ready(&self, at: usize) -> bool {
        let number = self.first + at as u64;
        let (slot, turn) = (slot_of(number), use_of(number));
        let word = |which| self.slots.words.word(2 * slot + which).load(Ordering::Acquire);
        match self.copy.direction {
            Direction::H2d => self.has_begun() && word(1) == turn.wrapping_sub(1),
            _ => word(0) == turn,
        }
    }

    /// Copies chunk `at`, which is ready.
    pub(super) fn copy(&self, at: usize) {
        let number = self.first + at as u64;
        let (slot, turn, offset) = (slot_of(number), use_of(number), at * self.chunk);
        let len = self.chunk.min(self.copy.bytes - offset);
        let (staged, host) = (self.slots.memory[slot].base(), self.copy.host.wrapping_add(offset));
        let is_in = self.copy.direction == Direction::H2d;
        let (to, from) = if is_in { (staged, host) } else { (host, staged) };
        // SAFETY: the slot is this chunk's until its word is written, and as long as a chunk; whoever makes a `RawCopy` promises the
        // host's range, of which each chunk is copied by one thread.
        let (to, from) = unsafe { (std::slice::from_raw_parts_mut(to, len), std::slice::from_raw_parts(from, len)) };
        copy::copy(to, from, self.stores);
        // *Filled*, or *drained*.
        self.slots.words.word(2 * slot + usize::from(!is_in)).store(turn, Ordering::Release);
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 && !is_in {
            self.done.set(self.generation);
        }
    }
}
