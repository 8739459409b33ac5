//! A stream of the copier's own with its slots.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use headway_core::models::transfer::{Direction, HostMemory, Stores};
use headway_core::units::Bytes;
use headway_device::DeviceError;
use headway_device::buffer::Memory;
use headway_os::copy;
use headway_os::memory::mostly_absent;

use super::ticket::{Ticket, Word, Words};
use super::{OrderedCopy, wait_for_word, write_word};
use crate::owned::{Context, CopyKind, Stream};
use crate::pool::{Piece, Pool};
use crate::table;

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
    uses: u64,
}

/// Page-locked memory through which chunks go. A slot's words count its uses.
pub(super) struct Slots {
    memory: Vec<Piece>,
    /// Of slot S: at 2 S *filled*, at 2 S + 1 *drained*.
    words: Arc<Words>,
}

/// What is to be copied, in chunks of `chunk` bytes.
pub(super) struct Work {
    pub(super) copy: OrderedCopy,
    pub(super) chunk: usize,
    pub(super) begin: Word,
    pub(super) done: Word,
    pub(super) generation: u32,
}

/// A copy as the threads see it.
pub(super) struct Job {
    work: Work,
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
        Ok(Self { stream, slots: Arc::new(Slots { memory, words }), chunks: 0, last: None, uses: 0 })
    }

    /// Whether all copies that it was given have ended.
    pub(super) fn is_free(&self) -> bool {
        self.last.as_ref().is_none_or(|(done, generation)| done.reached(*generation))
    }

    pub(super) fn last_used(&self) -> u64 {
        self.uses
    }

    pub(super) fn slot_bytes(&self) -> usize {
        self.slots.memory[0].bytes()
    }

    /// Queues all chunks of a copy; `push` hands them to the threads, and `wake` wakes these: at the end, since a thread that wakes
    /// may take the caller's CPU, but before the driver's queue may be full.
    ///
    /// # Safety
    /// As for [`super::RawCopy::new`]; the context is current.
    pub(super) unsafe fn queue(
        &mut self,
        context: &Context,
        work: Work,
        ticket: &Ticket,
        push: impl FnOnce(Arc<Job>),
        wake: impl Fn(),
    ) -> Result<(), DeviceError> {
        let (copy, chunk, first) = (work.copy, work.chunk, self.chunks);
        let count = copy.bytes.div_ceil(chunk);
        self.chunks += count as u64;
        self.uses += 1;
        self.last = Some((work.done.clone(), work.generation));
        // SAFETY: the words live as long as the ticket's memory.
        unsafe { wait_for_word(context, self.stream.handle(), ticket.begin(), ticket.generation(), table::WAIT_GEQ) }?;
        push(Arc::new(Job::new(work, &self.slots, first, count)));
        for at in 0..count {
            if at == WAKE_AFTER {
                wake();
            }
            // SAFETY: the caller's promise.
            unsafe { self.queue_chunk(context, &copy, first + at as u64, at * chunk, chunk) }?;
        }
        let ended = match copy.direction {
            // SAFETY: as above.
            Direction::H2d => unsafe { write_word(context, self.stream.handle(), ticket.done(), ticket.generation()) },
            _ => Ok(()),
        };
        wake();
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
            wait_for_word(context, stream, wait, value, table::WAIT_EQ)?;
            self.stream.copy(kind, from, to, len)?;
            write_word(context, stream, write, turn)
        }
    }
}

impl Job {
    fn new(work: Work, slots: &Arc<Slots>, first: u64, count: usize) -> Self {
        let memory = match work.copy.direction {
            Direction::H2d => HostMemory::Warm,
            _ => {
                // SAFETY: whoever makes a `RawCopy` promises the range; its pages are asked for, its bytes are not read.
                let range = unsafe { std::slice::from_raw_parts(work.copy.host, work.copy.bytes) };
                if mostly_absent(range, 8) { HostMemory::Fresh } else { HostMemory::Warm }
            }
        };
        let is_out = work.copy.direction == Direction::D2h;
        let stores = if is_out && memory == HostMemory::Warm { Stores::NonTemporal } else { Stores::Plain };
        Self { work, slots: Arc::clone(slots), first, left: AtomicUsize::new(count), stores }
    }

    pub(super) fn count(&self) -> usize {
        self.work.copy.bytes.div_ceil(self.work.chunk)
    }

    /// Whether its turn has come in the caller's stream.
    pub(super) fn has_begun(&self) -> bool {
        self.work.begin.reached(self.work.generation)
    }

    /// Whether a thread can copy chunk `at` now.
    pub(super) fn is_ready(&self, at: usize) -> bool {
        let number = self.first + at as u64;
        let (slot, turn) = (slot_of(number), use_of(number));
        let word = |which| self.slots.words.word(2 * slot + which).load(Ordering::Acquire);
        match self.work.copy.direction {
            Direction::H2d => self.has_begun() && word(1) == turn.wrapping_sub(1),
            _ => word(0) == turn,
        }
    }

    /// Copies chunk `at`, which is ready.
    pub(super) fn copy(&self, at: usize) {
        let Work { copy, chunk, .. } = &self.work;
        let number = self.first + at as u64;
        let (slot, turn, offset) = (slot_of(number), use_of(number), at * chunk);
        let len = (*chunk).min(copy.bytes - offset);
        let (staged, host) = (self.slots.memory[slot].base(), copy.host.wrapping_add(offset));
        let words = &self.slots.words;
        // SAFETY: the slot is this chunk's until its word is written, and as long as a chunk; whoever makes a `RawCopy` promises the
        // host's range, of which each chunk is copied by one thread.
        unsafe {
            if copy.direction == Direction::H2d {
                copy_bytes(
                    std::slice::from_raw_parts_mut(staged, len),
                    std::slice::from_raw_parts(host, len),
                    self.stores,
                );
                words.word(2 * slot).store(turn, Ordering::Release);
            } else {
                copy_bytes(
                    std::slice::from_raw_parts_mut(host, len),
                    std::slice::from_raw_parts(staged, len),
                    self.stores,
                );
                words.word(2 * slot + 1).store(turn, Ordering::Release);
            }
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 && copy.direction == Direction::D2h {
            self.work.done.set(self.work.generation);
        }
    }
}

fn copy_bytes(to: &mut [u8], from: &[u8], stores: Stores) {
    copy::copy(to, from, stores);
}
