//! The words by which a copy begins and ends, and what the caller holds of a copy.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use headway_core::models::transfer::Method;
use headway_core::units::Nanos;
use headway_device::DeviceError;
use headway_device::buffer::Memory;
use headway_os::threads;

use super::Shared;
use crate::driver::lock;
use crate::driver::table::Address;
use crate::pool::{Pool, SlabPiece};

/// Words of different tickets lie in different lines.
const LINE: usize = 64;
/// How long a thread that waits looks before it sleeps: about what the shortest sleep takes.
const SPIN: Duration = Duration::from_micros(60);
/// The longest sleep between two looks at a word.
const NAP_MAX: Duration = Duration::from_micros(200);
/// How often a thread that waits asks the driver for errors.
const LOOK: Duration = Duration::from_millis(100);
/// How long a copier that goes waits for streams that read its words.
const PASS_MAX: Duration = Duration::from_secs(2);

/// Words in page-locked memory, one in each line.
pub(super) struct Words(SlabPiece);

impl Words {
    pub(super) fn new(pool: &Pool, count: usize) -> Result<Arc<Self>, DeviceError> {
        pool.take(count * LINE).map(|piece| Arc::new(Self(piece)))
    }

    pub(super) fn address(&self, at: usize) -> Address {
        self.word(at).as_ptr().expose_provenance() as Address
    }

    pub(super) fn word(&self, at: usize) -> &AtomicU32 {
        assert!((at + 1) * LINE <= self.0.bytes(), "word {at} lies outside its piece");
        // SAFETY: the piece is this value's alone, has a line for each word and is aligned to more; the GPU writes whole words.
        unsafe { AtomicU32::from_ptr(self.0.base().add(at * LINE).cast()) }
    }
}

/// One word with the memory in which it lies.
#[derive(Clone)]
pub(super) struct Word {
    words: Arc<Words>,
    at: usize,
}

impl Word {
    pub(super) fn address(&self) -> Address {
        self.words.address(self.at)
    }

    /// Whether the word has come to `generation`; they may begin anew.
    pub(super) fn reached(&self, generation: u32) -> bool {
        self.words.word(self.at).load(Ordering::Acquire).wrapping_sub(generation).cast_signed() >= 0
    }

    pub(super) fn set(&self, generation: u32) {
        self.words.word(self.at).store(generation, Ordering::Release);
    }
}

/// All tickets of a copier. Each has three words: *begin*, *done*, and *passed*, which the caller's stream writes once it has waited for
/// *done*: until then it reads the ticket's memory.
pub(super) struct Tickets {
    words: ManuallyDrop<Arc<Words>>,
    /// Tickets that nobody holds, each with its last generation.
    spare: Mutex<Vec<(usize, u32)>>,
    /// The last generation of each ticket for which a stream waits, or has waited.
    awaited: Vec<AtomicU32>,
}

impl Tickets {
    pub(super) fn new(pool: &Pool, count: usize) -> Result<Self, DeviceError> {
        let words = ManuallyDrop::new(Words::new(pool, 3 * count)?);
        let spare = Mutex::new((0..count).map(|index| (index, 0)).collect());
        Ok(Self { words, spare, awaited: (0..count).map(|_| AtomicU32::new(0)).collect() })
    }

    pub(super) fn take(&self, shared: &Arc<Shared>, method: Method) -> Result<OrderedTicket, DeviceError> {
        let mut spare = lock(&self.spare);
        // The one that was given back first is the likeliest to be over.
        let Some(at) = spare.iter().position(|&(index, generation)| self.is_over(index, generation)) else {
            return Err(DeviceError::Refused { limit: "copies under way", max: self.awaited.len() as u64 });
        };
        let (index, generation) = spare.remove(at);
        drop(spare);
        let shared = Arc::clone(shared);
        Ok(OrderedTicket { shared, index, generation: generation.wrapping_add(1), method })
    }

    fn word(&self, index: usize, which: Which) -> Word {
        Word { words: Arc::clone(&self.words), at: 3 * index + which as usize }
    }

    /// Whether no stream reads or writes the ticket's words any more.
    fn is_over(&self, index: usize, generation: u32) -> bool {
        self.word(index, Which::Done).reached(generation)
            && self.word(index, Which::Passed).reached(self.awaited[index].load(Ordering::Acquire))
    }
}

impl Drop for Tickets {
    fn drop(&mut self) {
        let start = Instant::now();
        // Nobody holds a ticket any more.
        let tickets = std::mem::take(&mut *lock(&self.spare));
        while !tickets.iter().all(|(index, generation)| self.is_over(*index, *generation)) {
            if start.elapsed() > PASS_MAX {
                // A stream that still waits for a word, or is to write one, must find its memory as it is: it stays.
                return;
            }
            std::thread::sleep(NAP_MAX);
        }
        // SAFETY: dropped here only, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.words) };
    }
}

/// The words of a ticket.
#[derive(Clone, Copy)]
enum Which {
    Begin,
    Done,
    Passed,
}

/// A copy that was queued. To drop it does not end the copy.
pub struct OrderedTicket {
    shared: Arc<Shared>,
    index: usize,
    generation: u32,
    method: Method,
}

impl std::fmt::Debug for OrderedTicket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket")
            .field("index", &self.index)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

/// Held while a thread asks the driver.
struct Looking(Arc<AtomicBool>);

impl Drop for Looking {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl OrderedTicket {
    /// How the copy is made.
    #[must_use]
    pub fn method(&self) -> Method {
        self.method
    }

    /// Whether the bytes are in the destination. Calls nothing of the driver.
    ///
    /// # Errors
    /// The error with which the driver ended the GPU's context; the destination is unspecified then, and nothing uses the memory any more.
    pub fn is_done(&self) -> Result<bool, DeviceError> {
        if self.done().reached(self.generation) {
            return Ok(true);
        }
        // A forked child has none of the threads that would end it, and may not take their locks.
        self.shared.context.driver.here()?;
        self.shared.ended().map(|()| false)
    }

    /// Has a thread ask the driver whether the copier's streams have failed; then [`OrderedTicket::is_done`] tells. Returns at once, also while
    /// another thread keeps the driver, unless the copier is gone.
    pub fn look(&self) {
        let driver = &self.shared.context.driver;
        if driver.here().is_err() {
            return;
        }
        if self.shared.is_looking.swap(true, Ordering::SeqCst) {
            return;
        }
        let looking = Looking(Arc::clone(&self.shared.is_looking));
        // Then nobody would wait for the thread.
        if self.shared.closing.load(Ordering::SeqCst) {
            // A context that has ended does not say what is current.
            let _before = driver.keep_current().ok();
            return self.shared.look();
        }
        let shared = Arc::clone(&self.shared);
        // Without a thread the next look tries again.
        let _ = threads::spawn("headway-look", move || {
            shared.look();
            drop(shared);
            drop(looking);
        });
    }

    /// Waits until the bytes are in the destination, for `limit` at most.
    ///
    /// # Errors
    /// [`DeviceError::Timeout`] if the copy has not ended by then: it goes on. Else as for [`OrderedTicket::is_done`].
    pub fn wait(&self, limit: Duration) -> Result<(), DeviceError> {
        let (start, mut looked, mut nap) = (Instant::now(), Instant::now(), Duration::from_micros(5));
        while !self.is_done()? {
            if start.elapsed() >= limit {
                let after = Nanos(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
                return Err(DeviceError::Timeout { what: "a copy in the order of a stream".into(), after });
            }
            if looked.elapsed() >= LOOK {
                self.look();
                looked = Instant::now();
            }
            if start.elapsed() < SPIN {
                std::hint::spin_loop();
                continue;
            }
            std::thread::sleep(nap.min(limit.saturating_sub(start.elapsed())));
            nap = (nap * 2).min(NAP_MAX);
        }
        Ok(())
    }

    pub(super) fn begin(&self) -> Word {
        self.shared.tickets.word(self.index, Which::Begin)
    }

    pub(super) fn done(&self) -> Word {
        self.shared.tickets.word(self.index, Which::Done)
    }

    /// The word that a stream writes when it has waited; from now on the ticket's memory is kept until it has.
    pub(super) fn awaited(&self) -> Word {
        self.shared.tickets.awaited[self.index].store(self.generation, Ordering::Release);
        self.shared.tickets.word(self.index, Which::Passed)
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    /// Nothing will end it: it is over.
    pub(super) fn was_not_queued(self) {
        self.done().set(self.generation);
    }
}

impl Drop for OrderedTicket {
    fn drop(&mut self) {
        if self.shared.context.driver.here().is_err() {
            return;
        }
        lock(&self.shared.tickets.spare).push((self.index, self.generation));
    }
}
