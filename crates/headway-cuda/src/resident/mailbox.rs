//! The mailbox: where the host writes commands. The layout is that of `kernels/resident.cuh`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headway_device::DeviceError;
use headway_device::buffer::Memory;
use headway_os::copy;
use headway_os::fork::Home;

use crate::driver::here;
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

/// Memory that the host writes and the device reads: device memory behind a window, else pinned. In a forked child, where neither is
/// mapped, whatever would write to it is an error.
pub(super) struct Mailbox {
    memory: Box<dyn Memory>,
    home: Home,
}

impl Mailbox {
    /// With an inbox of `inbox` bytes.
    pub(super) fn new(context: &Arc<Context>, pool: &Pool, inbox: usize) -> Result<Self, DeviceError> {
        let bytes = INBOX_AT + inbox;
        let usable = window::probe(context).into_iter().find(|(_, state)| state.is_ok());
        // A window that is there but gives no memory now is no reason not to copy.
        let behind_window = usable.and_then(|(mapping, _)| window::allocate(context, mapping, bytes).ok());
        let memory: Box<dyn Memory> = match behind_window {
            Some(memory) => Box::new(memory),
            None => Box::new(pool.take(bytes)?),
        };
        Self::over(memory)
    }

    fn over(memory: Box<dyn Memory>) -> Result<Self, DeviceError> {
        let mailbox = Self { memory, home: Home::here() };
        mailbox.store(0, &[0; INBOX_AT])?;
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
    pub(super) fn put(&self, at: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        self.store(INBOX_AT + at, bytes)
    }

    /// Writes command number `sequence`. What the host wrote before is visible to the device when it sees the command.
    pub(super) fn post(&self, sequence: u64, command: Command) -> Result<(), DeviceError> {
        here(self.home)?;
        let words = command.words(sequence);
        let at = RING_AT + (sequence % RING) as usize * LINE;
        trace::note(trace::MailboxStep::Fence, copy::store_fence);
        match self.memory.window() {
            // SAFETY: within the memory; the device only reads the mailbox, and takes a line only when all words agree.
            Some(window) => unsafe { window.store(at, words.map(u64::to_le_bytes).as_flattened()) },
            None => {
                for (index, word) in words.iter().enumerate().take(COMMAND_WORDS) {
                    let word = || self.word(at + 8 * index).store(*word, Ordering::Release);
                    trace::note(trace::MailboxStep::Word, word);
                }
            }
        }
        Ok(())
    }

    /// Tells launches up to `generation` to leave. When this returns the word has reached its place: whoever reads it from
    /// now on sees it.
    pub(super) fn close(&self, generation: u64) -> Result<(), DeviceError> {
        here(self.home)?;
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
        Ok(())
    }

    fn store(&self, at: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        here(self.home)?;
        assert!(at + bytes.len() <= self.memory.bytes(), "the mailbox has room for what its owner puts there");
        // SAFETY: within the memory, which is the mailbox's alone; the device reads these bytes only on command.
        unsafe {
            match self.memory.window() {
                Some(window) => window.store(at, bytes),
                None => trace::note(trace::MailboxStep::Bytes, || {
                    self.memory.base().add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                }),
            }
        }
        Ok(())
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: only used for words of the header and the ring of a mailbox in host memory, which are aligned to 8 bytes, live
        // as long as `self`, and are accessed whole only.
        unsafe { &*self.memory.base().add(at).cast::<AtomicU64>() }
    }
}

/// The steps in which a mailbox is written: their order is what the device relies on and no CPU shows, so tests look at them.
mod trace {
    #[cfg(test)]
    use std::cell::RefCell;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum MailboxStep {
        /// Bytes of the inbox or the header.
        Bytes,
        /// A word of a command.
        Word,
        /// A store fence.
        Fence,
    }

    #[cfg(test)]
    thread_local! {
        pub(super) static STEPS: RefCell<Vec<MailboxStep>> = const { RefCell::new(Vec::new()) };
    }

    /// Takes a step.
    #[inline(always)]
    pub(super) fn note(step: MailboxStep, body: impl FnOnce()) {
        body();
        #[cfg(test)]
        STEPS.with_borrow_mut(|steps| steps.push(step));
        #[cfg(not(test))]
        let _ = step;
    }

    /// The steps taken on this thread since the last call.
    #[cfg(test)]
    pub(super) fn taken() -> Vec<MailboxStep> {
        STEPS.take()
    }
}

#[cfg(test)]
mod tests {
    use headway_core::models::transfer::WindowMapping;
    use headway_device::buffer::{HeapMemory, MemoryPlace};
    use headway_device::gpu::Window;

    use super::super::tagged::BEFORE_FIRST;
    use super::trace::MailboxStep::{Bytes, Fence, Word};
    use super::*;

    const COMMAND: Command = Command { source: 1, destination: 2, bytes: 3 };

    /// Memory with a window that takes one step a store.
    struct Windowed(HeapMemory);

    // SAFETY: that of the memory within.
    unsafe impl Memory for Windowed {
        fn base(&self) -> *mut u8 {
            self.0.base()
        }
        fn bytes(&self) -> usize {
            self.0.bytes()
        }
        fn place(&self) -> MemoryPlace {
            self.0.place()
        }
        fn window(&self) -> Option<&dyn Window> {
            Some(self)
        }
    }

    // SAFETY: it writes and reads what it is told.
    unsafe impl Window for Windowed {
        fn mapping(&self) -> WindowMapping {
            WindowMapping::Gdrdrv
        }
        unsafe fn store(&self, at: usize, from: &[u8]) {
            // SAFETY: the caller's promise.
            let store = || unsafe { self.base().add(at).copy_from_nonoverlapping(from.as_ptr(), from.len()) };
            trace::note(if at < INBOX_AT { Word } else { Bytes }, store);
        }
        unsafe fn load(&self, at: usize, to: &mut [u8]) {
            // SAFETY: the caller's promise.
            unsafe { to.as_mut_ptr().copy_from_nonoverlapping(self.base().add(at), to.len()) };
        }
    }

    #[test]
    fn a_fence_stands_between_what_was_put_and_the_command_that_names_it() {
        let memory = || HeapMemory::pageable(INBOX_AT + 100).unwrap();
        for (memory, words) in [(Box::new(memory()) as Box<dyn Memory>, 4), (Box::new(Windowed(memory())), 1)] {
            let mailbox = Mailbox::over(memory).unwrap();
            trace::taken();
            mailbox.put(5, &[7; 50]).unwrap();
            mailbox.post(BEFORE_FIRST + 1, COMMAND).unwrap();
            let mut expected = vec![Bytes, Fence];
            expected.resize(2 + words, Word);
            assert_eq!(trace::taken(), expected);
        }
    }

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
