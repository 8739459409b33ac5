//! The mailbox: where the host writes commands. The layout is that of `kernels/resident.cuh`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headway_device::DeviceError;
use headway_device::buffer::Memory;

use crate::owned::Context;
use crate::pool::Pool;
use crate::window;

/// Commands it holds; one is written only when the one that many earlier is complete.
pub(super) const RING: u64 = 8;
/// Words of a command; the rest of its line is unused.
const COMMAND_WORDS: usize = 4;
const LINE: usize = 64;
const LEAVE_AT: usize = 0;
const RING_AT: usize = LINE;
/// Where data on their way to the device are put.
const INBOX_AT: usize = 1024;
/// Bits of content in a word.
const CONTENT: u64 = (1 << 48) - 1;

/// One copy, at most [`COMMAND_BYTES_MAX`](super::COMMAND_BYTES_MAX) long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Command {
    pub(super) source: u64,
    pub(super) destination: u64,
    pub(super) bytes: u64,
}

impl Command {
    /// The line that is written: in each word 48 bits of content below 16 bits of the sequence number.
    fn words(self, sequence: u64) -> [u64; LINE / 8] {
        let tops = self.source >> 48 | self.destination >> 48 << 16;
        let mut words = [0; LINE / 8];
        for (word, content) in words.iter_mut().zip([self.source, self.destination, self.bytes, tops]) {
            *word = content & CONTENT | sequence << 48;
        }
        words
    }
}

/// Memory that the host writes and the device reads: device memory behind a window, else pinned.
pub(super) struct Mailbox {
    memory: Box<dyn Memory>,
}

impl Mailbox {
    /// With an inbox of `inbox` bytes.
    pub(super) fn new(context: &Arc<Context>, pool: &Pool, inbox: usize) -> Result<Self, DeviceError> {
        let bytes = INBOX_AT + inbox;
        let usable = window::probe(context).into_iter().find(|(_, state)| state.is_ok());
        // A window that is there but gives no memory now is no reason not to copy.
        let behind_window = usable.and_then(|(via, _)| window::allocate(context, via, bytes).ok());
        let memory: Box<dyn Memory> = match behind_window {
            Some(memory) => Box::new(memory),
            None => Box::new(pool.take(bytes)?),
        };
        let mailbox = Self { memory };
        mailbox.store(0, &[0; INBOX_AT]);
        Ok(mailbox)
    }

    /// Whether it is device memory.
    pub(super) fn has_window(&self) -> bool {
        self.memory.window().is_some()
    }

    /// Its address on the device.
    pub(super) fn address(&self) -> u64 {
        self.memory.base().addr() as u64
    }

    /// The device's address of byte `at` of the inbox.
    pub(super) fn inbox_address(&self, at: usize) -> u64 {
        self.address() + (INBOX_AT + at) as u64
    }

    /// Puts `bytes` into the inbox at `at`; no command under way may name them.
    pub(super) fn put(&self, at: usize, bytes: &[u8]) {
        self.store(INBOX_AT + at, bytes);
    }

    /// Writes command number `sequence`. What the host wrote before is visible to the device when it sees the command.
    pub(super) fn post(&self, sequence: u64, command: Command) {
        let words = command.words(sequence);
        let at = RING_AT + (sequence % RING) as usize * LINE;
        store_fence();
        match self.memory.window() {
            // SAFETY: within the memory; the device only reads the mailbox, and takes a line only when all words agree.
            Some(window) => unsafe { window.store(at, words.map(u64::to_le_bytes).as_flattened()) },
            None => {
                for (index, word) in words.iter().enumerate().take(COMMAND_WORDS) {
                    self.word(at + 8 * index).store(*word, Ordering::Release);
                }
            }
        }
    }

    /// Tells launches up to `generation` to leave. When this returns the word has reached its place: whoever reads it from
    /// now on sees it.
    pub(super) fn close(&self, generation: u64) {
        match self.memory.window() {
            Some(window) => {
                let mut back = [0; 8];
                // SAFETY: within the memory; the device only reads the mailbox. The load reaches the device behind the store.
                unsafe {
                    window.store(LEAVE_AT, &generation.to_le_bytes());
                    window.load(LEAVE_AT, &mut back);
                }
            }
            None => self.word(LEAVE_AT).store(generation, Ordering::SeqCst),
        }
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    fn store(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.memory.bytes(), "the mailbox has room for what its owner puts there");
        // SAFETY: within the memory, which is the mailbox's alone; the device reads these bytes only on command.
        unsafe {
            match self.memory.window() {
                Some(window) => window.store(at, bytes),
                None => self.memory.base().add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()),
            }
        }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: only used for words of the header and the ring of a mailbox in host memory, which are aligned to 8 bytes, live
        // as long as `self`, and are accessed whole only.
        unsafe { &*self.memory.base().add(at).cast::<AtomicU64>() }
    }
}

/// Orders ordinary stores before a later store through a window, which the CPU may otherwise let overtake them.
fn store_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::super::tagged::BEFORE_FIRST;
    use super::*;

    #[test]
    fn every_word_of_a_command_carries_its_number_and_no_bit_is_lost() {
        let command =
            Command { source: 0x0123_4567_89ab_cdef, destination: 0xfedc_ba98_7654_3210, bytes: 0xffff_ffff_ffff };
        let words = command.words(0x5_0007);
        assert!(words[..COMMAND_WORDS].iter().all(|word| word >> 48 == 7));
        let [source, destination, bytes, tops] = [0, 1, 2, 3].map(|at| words[at] & CONTENT);
        assert_eq!(source | tops << 48, command.source);
        assert_eq!(destination | tops >> 16 << 48, command.destination);
        assert_eq!(bytes, command.bytes);
    }

    #[test]
    fn a_place_of_the_ring_never_holds_the_number_that_is_awaited_there() {
        let command = Command { source: 0, destination: 0, bytes: 0 };
        for sequence in RING..(1 << 17) {
            assert_ne!(command.words(sequence)[0], command.words(sequence - RING)[0]);
        }
        // An unused place is zero; the first commands of all are not.
        assert!((1..=RING).all(|number| command.words(BEFORE_FIRST + number)[0] != 0));
    }
}
