//! A copy as the copier's threads see it, and the slots through which it goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use headway_core::models::transfer::{Direction, Stores};
use headway_device::buffer::Memory;
use headway_os::copy;
use headway_os::memory::mostly_absent;

use super::OrderedCopy;
use super::ticket::{OrderedTicket, Word, Words};
use crate::pool::SlabPiece;

/// Slots of a pipeline.
pub(super) const SLOTS: u64 = 8;

/// Page-locked memory through which chunks go. A slot's words count its uses.
pub(super) struct Slots {
    pub(super) memory: Vec<SlabPiece>,
    /// Of slot S: at 2 S *filled*, at 2 S + 1 *drained*.
    pub(super) words: Arc<Words>,
}

/// A copy as the threads see it.
pub(super) struct OrderedJob {
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
    /// How many chunks threads copy: all, but for a copy that could not be queued to its end.
    count: AtomicUsize,
    /// Chunks that no thread has copied yet.
    left: AtomicUsize,
    /// Threads that copy a chunk of it.
    busy: AtomicUsize,
    /// The host's memory is the caller's again: threads write words only.
    is_given_up: AtomicBool,
    stores: Stores,
}

// SAFETY: whoever makes a `RawCopy` promises that the host range may be used until the copy has ended, by any thread.
unsafe impl Send for OrderedJob {}
// SAFETY: whoever makes a `RawCopy` promises that the host range may be used until the copy has ended, by any thread;
// each chunk is copied by one thread.
unsafe impl Sync for OrderedJob {}

pub(super) fn slot_of(number: u64) -> usize {
    (number % SLOTS) as usize
}

/// Which use of its slot a chunk is, from 1 on; they may begin anew.
pub(super) fn use_of(number: u64) -> u32 {
    (number / SLOTS + 1) as u32
}

impl OrderedJob {
    pub(super) fn new(copy: OrderedCopy, chunk: usize, ticket: &OrderedTicket, slots: &Arc<Slots>, first: u64) -> Self {
        let has_pages = || {
            // SAFETY: whoever makes a `RawCopy` promises the range; its pages are asked for, its bytes are not read.
            !mostly_absent(unsafe { std::slice::from_raw_parts(copy.host, copy.bytes) }, 8)
        };
        let stores = if copy.direction == Direction::D2h && has_pages() { Stores::NonTemporal } else { Stores::Plain };
        let chunks = copy.bytes.div_ceil(chunk);
        let (begin, done, generation) = (ticket.begin(), ticket.done(), ticket.generation());
        Self {
            copy,
            chunk,
            begin,
            done,
            generation,
            slots: Arc::clone(slots),
            first,
            count: AtomicUsize::new(chunks),
            left: AtomicUsize::new(chunks),
            busy: AtomicUsize::new(0),
            is_given_up: AtomicBool::new(false),
            stores,
        }
    }

    /// What is copied.
    pub(super) fn of(&self) -> &OrderedCopy {
        &self.copy
    }

    pub(super) fn chunk_bytes(&self) -> usize {
        self.chunk
    }

    pub(super) fn busy(&self) -> &AtomicUsize {
        &self.busy
    }

    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// From the next chunk on that a thread begins, the host's memory is left alone.
    pub(super) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Release);
    }

    /// For [`super::workers::JobQueue::shorten`], whose lock is held.
    pub(super) fn shorten(&self, chunks: usize) {
        self.count.store(chunks, Ordering::Relaxed);
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
        let is_given_up = self.is_given_up.load(Ordering::Acquire);
        let len = if is_given_up { 0 } else { self.chunk.min(self.copy.bytes - offset) };
        let (staged, host) = (self.slots.memory[slot].base(), self.copy.host.wrapping_add(offset));
        let is_in = self.copy.direction == Direction::H2d;
        let (to, from) = if is_in { (staged, host) } else { (host, staged) };
        // SAFETY: the slot is this chunk's until its word is written, and as long as a chunk; whoever makes a `RawCopy` promises the
        // host's range, of which each chunk is copied by one thread.
        let (to, from) = unsafe { (std::slice::from_raw_parts_mut(to, len), std::slice::from_raw_parts(from, len)) };
        copy::copy(to, from, self.stores);
        // *Filled*, or *drained*.
        self.slots.words.word(2 * slot + usize::from(!is_in)).store(turn, Ordering::Release);
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 && !is_in && !is_given_up {
            self.done.set(self.generation);
        }
    }
}
