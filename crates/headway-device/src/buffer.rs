//! Buffers and claims on their ranges.
//!
//! A [`Buffer`] is memory of the host or of one device. Nobody touches it but through a [`Span`], a claim on a range: many
//! may read a byte, or one may write it. A claim lives until its span is dropped; an operation drops its spans when it is
//! complete.

mod loan;

use std::alloc::Layout;
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headway_core::models::transfer::WindowMapping;
use headway_core::units::Bytes;

pub use self::loan::{lend, lend_memory, lend_mut};
pub use crate::access::Access;
use crate::error::DeviceError;
use crate::graveyard;
use crate::window::Window;

/// Claims on one buffer at a time.
const CLAIMS_MAX: usize = 4096;
/// Alignment of memory that this crate allocates: a page.
const HEAP_ALIGN: usize = 4096;

/// Host memory that copy engines can reach by themselves, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKind {
    /// Pages that stay where they are: what `dma` needs.
    Pinned,
    /// Ordinary memory.
    Pageable,
}

/// One device's identity, for checking that memory and kernels belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceId(u64);

/// A set of devices that can use each other's memory and pinned host memory: those of one driver library, or all emulated
/// ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryDomain(u64);

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl DeviceId {
    /// An identity never given before.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "every call gives another value")]
    pub fn new() -> Self {
        Self(NEXT_ID.fetch_add(1, Ordering::Relaxed))
    }
}

impl MemoryDomain {
    /// The domain of all emulated devices of this process.
    pub const EMULATED: Self = Self(0);

    /// A domain never given before.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "every call gives another value")]
    pub fn new() -> Self {
        Self(NEXT_ID.fetch_add(1, Ordering::Relaxed))
    }
}

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryPlace {
    /// In host memory, usable by the CPU.
    Host {
        /// The domain it is pinned for, if it is.
        pinned: Option<MemoryDomain>,
    },
    /// In a device's memory.
    Device {
        id: DeviceId,
        /// Whose devices can reach it.
        domain: MemoryDomain,
    },
}

/// Memory behind a [`Buffer`]; freed when dropped, after the last span.
///
/// # Safety
/// From [`Memory::base`] on, [`Memory::bytes`] bytes belong to this value alone until it is dropped: they are initialised,
/// do not overlap another `Memory`'s, and are touched only through spans. In [`MemoryPlace::Host`] the CPU can read and write
/// them through that pointer while [`Memory::mapped`] says so. The other methods always give
/// the same answer.
pub unsafe trait Memory: Any + Send + Sync {
    /// The first byte; for device memory its address on the device, not for use by the CPU.
    fn base(&self) -> *mut u8;
    /// The length.
    fn bytes(&self) -> usize;
    /// Where it is.
    fn place(&self) -> MemoryPlace;
    /// For host memory: an error where this process cannot use it, as a forked child cannot what a driver maps.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`].
    fn mapped(&self) -> Result<(), DeviceError> {
        Ok(())
    }
    /// The CPU's way into device memory, where there is one.
    fn window(&self) -> Option<&dyn Window> {
        None
    }
}

/// Zeroed, page-aligned memory of this process, for pageable buffers and emulated devices.
pub struct HeapMemory {
    base: NonNull<u8>,
    layout: Layout,
    bytes: usize,
    place: MemoryPlace,
}

impl HeapMemory {
    /// Ordinary host memory.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] when the allocator has none.
    pub fn pageable(bytes: usize) -> Result<Self, DeviceError> {
        Self::new(bytes, MemoryPlace::Host { pinned: None })
    }

    /// Memory of this process that stands for memory in `place`.
    pub(crate) fn new(bytes: usize, place: MemoryPlace) -> Result<Self, DeviceError> {
        let exhausted = || DeviceError::OutOfMemory {
            what: "memory of the process",
            wanted: Bytes(bytes as u64),
            available: Bytes(0),
        };
        let layout = Layout::from_size_align(bytes.max(1), HEAP_ALIGN).map_err(|_| exhausted())?;
        // SAFETY: the layout's size is at least 1.
        let base = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).ok_or_else(exhausted)?;
        Ok(Self { base, layout, bytes, place })
    }
}

impl Drop for HeapMemory {
    fn drop(&mut self) {
        // SAFETY: `base` came from `alloc_zeroed` with this layout and is freed once.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), self.layout) };
    }
}

// SAFETY: the allocation is owned by this value alone and is plain bytes; nothing here depends on a thread.
unsafe impl Send for HeapMemory {}
// SAFETY: shared access gives out only the address; the bytes are guarded by spans.
unsafe impl Sync for HeapMemory {}

// SAFETY: a fresh zeroed allocation of at least `bytes` bytes, freed on drop only; the three answers are plain fields.
unsafe impl Memory for HeapMemory {
    fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }
    fn bytes(&self) -> usize {
        self.bytes
    }
    fn place(&self) -> MemoryPlace {
        self.place
    }
}

/// Counts buffers and bytes against the limits of one device; [`Reservation`]s give them back.
#[derive(Debug)]
pub struct Budget {
    buffers_max: usize,
    host_max: Bytes,
    device_max: Bytes,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    buffers: usize,
    host: u64,
    device: u64,
}

/// A share of a [`Budget`], given back when dropped.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<Budget>,
    buffers: usize,
    host: u64,
    device: u64,
}

impl Budget {
    /// A budget of `limits` on a device with `memory` bytes.
    #[must_use]
    pub fn new(limits: &crate::DeviceLimits, memory: Bytes) -> Arc<Self> {
        Arc::new(Self {
            buffers_max: limits.buffers_max,
            host_max: limits.host_bytes_max,
            device_max: limits.device_bytes_max.min(memory),
            used: Mutex::default(),
        })
    }

    /// Host memory that can still be reserved.
    #[must_use]
    pub fn host_available(&self) -> Bytes {
        Bytes(self.host_max.0.saturating_sub(lock(&self.used).host))
    }

    /// Reserves `buffers` buffers with `host` and `device` bytes; a refusal changes nothing.
    ///
    /// # Errors
    /// [`DeviceError::Refused`], [`DeviceError::OutOfMemory`] with the figures.
    pub fn reserve(self: &Arc<Self>, buffers: usize, host: u64, device: u64) -> Result<Reservation, DeviceError> {
        let mut used = lock(&self.used);
        if buffers > self.buffers_max.saturating_sub(used.buffers) {
            return Err(DeviceError::Refused { limit: "buffers_max", max: self.buffers_max as u64 });
        }
        let fits = |what, wanted, max: Bytes, used| match max.0.saturating_sub(used) {
            available if wanted > available => {
                Err(DeviceError::OutOfMemory { what, wanted: Bytes(wanted), available: Bytes(available) })
            }
            _ => Ok(()),
        };
        fits("host memory within host_bytes_max", host, self.host_max, used.host)?;
        fits("device memory within device_bytes_max", device, self.device_max, used.device)?;
        used.buffers += buffers;
        used.host += host;
        used.device += device;
        Ok(Reservation { budget: Arc::clone(self), buffers, host, device })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut used = lock(&self.budget.used);
        used.buffers -= self.buffers;
        used.host -= self.host;
        used.device -= self.device;
    }
}

/// Locks `mutex`; what this crate guards stays valid when a holder panics.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory of the host or of one device. Cloning gives another handle to the same memory.
#[derive(Clone)]
pub struct Buffer {
    shared: Arc<Shared>,
}

struct Shared {
    // Freed before the reservation is given back: fields drop in this order.
    memory: Box<dyn Memory>,
    claims: Mutex<Claims>,
    _reservation: Option<Reservation>,
    /// Whether claims for writing are given.
    writable: bool,
    is_lent: bool,
}

#[derive(Default)]
struct Claims {
    next: u64,
    held: Vec<Claim>,
}

struct Claim {
    id: u64,
    range: Range<usize>,
    access: Access,
}

impl Buffer {
    /// For implementations of [`Gpu`](crate::Gpu): a buffer over `memory`.
    #[must_use]
    pub fn new(memory: impl Memory, reservation: Reservation) -> Self {
        Self::of(Box::new(memory), Some(reservation), true)
    }

    /// For implementations of [`Gpu::register`](crate::gpu::Gpu::register): a buffer over memory that `make` makes of a
    /// claim on `range` of `buffer`, for writing, or for reading where `buffer` was lent for reading.
    ///
    /// `make`'s memory keeps the claim for as long as it lives.
    ///
    /// # Errors
    /// Those of [`Buffer::claim`], and those of `make`.
    pub fn view<M: Memory>(
        buffer: &Self,
        range: Range<usize>,
        reservation: Reservation,
        make: impl FnOnce(Span) -> Result<M, DeviceError>,
    ) -> Result<Self, DeviceError> {
        let writable = buffer.shared.writable;
        let access = if writable { Access::Write } else { Access::Read };
        let span = buffer.claim(range, access)?;
        Ok(Self::of(Box::new(make(span)?), Some(reservation), writable))
    }

    fn of(memory: Box<dyn Memory>, reservation: Option<Reservation>, writable: bool) -> Self {
        let shared = Shared { memory, claims: Mutex::default(), _reservation: reservation, writable, is_lent: false };
        Self { shared: Arc::new(shared) }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.memory.bytes()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where it is.
    #[must_use]
    pub fn place(&self) -> MemoryPlace {
        self.shared.memory.place()
    }

    /// Whether it is lent for one call ([`lend`]), which returns only when nothing holds it any more.
    #[must_use]
    pub fn is_lent(&self) -> bool {
        self.shared.is_lent
    }

    /// The form of its window, if it is device memory that has one.
    #[must_use]
    pub fn window(&self) -> Option<WindowMapping> {
        self.shared.memory.window().map(Window::mapping)
    }

    /// Claims `range` until the span is dropped.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`]; [`DeviceError::Overlap`] with the claim in the way; [`DeviceError::Refused`] beyond
    /// 4096 claims. A refusal changes nothing.
    pub fn claim(&self, range: Range<usize>, access: Access) -> Result<Span, DeviceError> {
        match self.try_claim(range.clone(), access) {
            // What was given up may have ended since.
            Err(DeviceError::Overlap { .. }) if graveyard::count() > 0 => {
                graveyard::reap();
                self.try_claim(range, access)
            }
            claimed => claimed,
        }
    }

    fn try_claim(&self, range: Range<usize>, access: Access) -> Result<Span, DeviceError> {
        if range.start > range.end || range.end > self.len() {
            return Err(DeviceError::OutOfRange { range, len: self.len() });
        }
        if access == Access::Write && !self.shared.writable {
            return Err(DeviceError::Invalid { what: "claim", reason: "the memory was lent for reading".into() });
        }
        let mut claims = lock(&self.shared.claims);
        let conflict = claims.held.iter().find(|held| {
            held.range.start < range.end
                && range.start < held.range.end
                && !range.is_empty()
                && !held.range.is_empty()
                && (access == Access::Write || held.access == Access::Write)
        });
        if let Some(held) = conflict {
            return Err(DeviceError::Overlap { range, access, held: held.range.clone(), held_access: held.access });
        }
        if claims.held.len() == CLAIMS_MAX {
            return Err(DeviceError::Refused { limit: "claims on one buffer", max: CLAIMS_MAX as u64 });
        }
        let id = claims.next;
        claims.next += 1;
        claims.held.push(Claim { id, range: range.clone(), access });
        drop(claims);
        let hold = Hold::Whole(Entry { shared: Arc::clone(&self.shared), id });
        Ok(Span { hold, range, access })
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len()).field("place", &self.place()).finish()
    }
}

/// A claim on a range of a buffer, or a part of one; dropping it, and all other parts, releases the range.
pub struct Span {
    hold: Hold,
    range: Range<usize>,
    access: Access,
}

/// A claim's entry with its buffer.
struct Entry {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut claims = lock(&self.shared.claims);
        // From the newest on: most claims are short.
        if let Some(at) = claims.held.iter().rposition(|claim| claim.id == self.id) {
            claims.held.swap_remove(at);
        }
    }
}

/// A hold on the bytes of a span that outlives it; gives no access to them.
pub struct Lingering(#[expect(dead_code, reason = "dropping it ends the hold")] Entry);

impl fmt::Debug for Lingering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lingering")
    }
}

/// What keeps a claim: one span, or all parts of it.
enum Hold {
    Whole(Entry),
    Part(Arc<Entry>),
}

impl Hold {
    fn shared(&self) -> &Shared {
        match self {
            Self::Whole(entry) => &entry.shared,
            Self::Part(entry) => &entry.shared,
        }
    }
}

impl Span {
    /// Cuts the claim at `edges`, which ascend within it, offsets from its start; gives one span more than there are edges.
    /// Takes no lock: the buffer knows one claim, which ends with the last of them.
    ///
    /// # Panics
    /// If the edges do not ascend within the span.
    pub fn cut(self, edges: impl IntoIterator<Item = usize>) -> Vec<Self> {
        let Self { hold, range, access } = self;
        let hold = match hold {
            Hold::Whole(entry) => Arc::new(entry),
            Hold::Part(entry) => entry,
        };
        let mut start = range.start;
        let mut spans = Vec::new();
        let ends = edges.into_iter().map(|edge| range.start.saturating_add(edge)).chain([range.end]);
        for end in ends {
            assert!(start <= end && end <= range.end, "edges ascend within the span");
            spans.push(Self { hold: Hold::Part(Arc::clone(&hold)), range: start..end, access });
            start = end;
        }
        spans
    }

    /// For implementations of [`Gpu`](crate::gpu::Gpu): a second hold on the same bytes, for something that may use them when
    /// this span is gone. Until it is dropped too nobody can claim them anew, and their memory stays.
    #[must_use]
    pub fn linger(&self) -> Lingering {
        let shared = match &self.hold {
            Hold::Whole(entry) => &entry.shared,
            Hold::Part(entry) => &entry.shared,
        };
        let mut claims = lock(&shared.claims);
        let id = claims.next;
        claims.next += 1;
        // Beyond the limit as well: this is for what has failed already.
        claims.held.push(Claim { id, range: self.range.clone(), access: self.access });
        drop(claims);
        Lingering(Entry { shared: Arc::clone(shared), id })
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The claimed range of the buffer.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// What it was claimed for.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Where it is.
    #[must_use]
    pub fn place(&self) -> MemoryPlace {
        self.hold.shared().memory.place()
    }

    /// The memory behind it, for implementations of [`Gpu`](crate::Gpu) that look for their own.
    #[must_use]
    pub fn memory(&self) -> &dyn Memory {
        self.hold.shared().memory.as_ref()
    }

    /// The first byte. For implementations of [`Gpu`](crate::Gpu): it may be read, and written if this claims for
    /// writing, while the span lives.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.hold.shared().memory.base().wrapping_add(self.range.start)
    }

    /// Stores `from` at offset `at` of a span of device memory through its window.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`], [`DeviceError::Invalid`] without a window or for spans claimed for reading.
    pub fn store(&mut self, at: usize, from: &[u8]) -> Result<(), DeviceError> {
        let window = self.windowed(at, from.len())?;
        if self.access != Access::Write {
            return Err(DeviceError::Invalid { what: "store", reason: "the span was claimed for reading".into() });
        }
        // SAFETY: the range was checked; this claim for writing and `&mut self` exclude every other use of these bytes.
        unsafe { window.store(self.range.start + at, from) };
        Ok(())
    }

    /// Loads into `to` from offset `at` of a span of device memory through its window.
    ///
    /// # Errors
    /// Those of [`Span::store`].
    pub fn load(&self, at: usize, to: &mut [u8]) -> Result<(), DeviceError> {
        let window = self.windowed(at, to.len())?;
        // SAFETY: the range was checked; while this span lives nobody writes these bytes.
        unsafe { window.load(self.range.start + at, to) };
        Ok(())
    }

    fn windowed(&self, at: usize, len: usize) -> Result<&dyn Window, DeviceError> {
        if at.checked_add(len).is_none_or(|end| end > self.len()) {
            return Err(DeviceError::OutOfRange { range: at..at.saturating_add(len), len: self.len() });
        }
        let reason = || "the span has no window".to_owned();
        self.hold
            .shared()
            .memory
            .window()
            .ok_or_else(|| DeviceError::Invalid { what: "window access", reason: reason() })
    }

    /// The bytes.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for device memory; [`DeviceError::Unavailable`] for memory that a forked child does not have.
    pub fn bytes(&self) -> Result<&[u8], DeviceError> {
        self.host_only()?;
        // SAFETY: `Memory` promises initialised bytes usable by the CPU over its whole length, within which `claim` checked
        // `range`. While this span lives nobody else writes them: other claims on them only read.
        Ok(unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) })
    }

    /// The bytes, to be written.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for device memory and for spans claimed for reading.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8], DeviceError> {
        self.host_only()?;
        if self.access != Access::Write {
            return Err(DeviceError::Invalid { what: "write", reason: "the span was claimed for reading".into() });
        }
        // SAFETY: as in `bytes`; this claim is for writing, so nobody else holds one on these bytes, and `&mut self`
        // excludes another use of this one.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len()) })
    }

    fn host_only(&self) -> Result<(), DeviceError> {
        match self.place() {
            MemoryPlace::Host { .. } => self.memory().mapped(),
            MemoryPlace::Device { .. } => Err(DeviceError::Invalid {
                what: "access by the CPU",
                reason: "the span is device memory; copy it to a host buffer".into(),
            }),
        }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Span")
            .field("range", &self.range)
            .field("access", &self.access)
            .field("place", &self.place())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use headway_core::units::Nanos;
    use headway_os::clock;

    use super::loan::Loan;
    use super::*;

    fn buffer(bytes: usize) -> Buffer {
        let budget = Budget::new(&crate::DeviceLimits::default(), Bytes(0));
        Buffer::new(HeapMemory::pageable(bytes).unwrap(), budget.reserve(1, bytes as u64, 0).unwrap())
    }

    #[test]
    fn many_may_read_a_byte_or_one_may_write_it() {
        let buffer = buffer(100);
        let first = buffer.claim(10..20, Access::Read).unwrap();
        let second = buffer.claim(15..30, Access::Read).unwrap();
        assert!(matches!(buffer.claim(19..20, Access::Write), Err(DeviceError::Overlap { .. })));
        drop((first, second));
        let written = buffer.claim(0..100, Access::Write).unwrap();
        assert_eq!(
            buffer.claim(99..100, Access::Read).unwrap_err(),
            DeviceError::Overlap { range: 99..100, access: Access::Read, held: 0..100, held_access: Access::Write }
        );
        drop(written);
        buffer.claim(99..100, Access::Read).unwrap();
    }

    #[test]
    fn the_parts_of_a_claim_are_disjoint_and_end_it_together() {
        let buffer = buffer(100);
        let parts = buffer.claim(10..90, Access::Write).unwrap().cut([0, 30]);
        let [none, first, second] = <[Span; 3]>::try_from(parts).unwrap();
        assert_eq!((none.range(), first.range(), second.range()), (10..10, 10..40, 40..90));
        drop((none, first));
        let mut halves = second.cut([25]);
        halves[1].bytes_mut().unwrap().fill(7);
        assert_eq!(halves.remove(0).bytes().unwrap(), [0; 25]);
        assert!(matches!(buffer.claim(10..11, Access::Read), Err(DeviceError::Overlap { .. })), "one part is left");
        drop(halves);
        assert_eq!(buffer.claim(0..100, Access::Read).unwrap().bytes().unwrap()[64..66], [0, 7]);
    }

    #[test]
    #[should_panic(expected = "edges ascend within the span")]
    fn a_claim_is_not_cut_beyond_its_end() {
        buffer(100).claim(10..20, Access::Write).unwrap().cut([11]);
    }

    #[test]
    fn empty_claims_are_never_in_the_way() {
        let buffer = buffer(10);
        let _all = buffer.claim(0..10, Access::Write).unwrap();
        let _none = buffer.claim(5..5, Access::Write).unwrap();
        let _end = buffer.claim(10..10, Access::Read).unwrap();
    }

    #[test]
    fn claims_beyond_the_end_or_backwards_are_refused() {
        let buffer = buffer(10);
        #[expect(clippy::reversed_empty_ranges, reason = "the mistake under test")]
        for range in [5..11, 11..11, 0..usize::MAX, 7..3] {
            assert!(matches!(buffer.claim(range, Access::Read), Err(DeviceError::OutOfRange { len: 10, .. })));
        }
    }

    #[test]
    fn a_reading_span_cannot_be_written() {
        let buffer = buffer(4);
        assert!(buffer.claim(0..4, Access::Read).unwrap().bytes_mut().is_err());
        buffer.claim(1..3, Access::Write).unwrap().bytes_mut().unwrap().fill(7);
        assert_eq!(buffer.claim(0..4, Access::Read).unwrap().bytes().unwrap(), [0, 7, 7, 0]);
    }

    #[test]
    fn lent_memory_comes_back_when_the_last_claim_is_dropped() {
        let mut memory = vec![1u8; 64];
        let span = std::thread::scope(|threads| {
            lend_mut(&mut memory, None, |buffer| {
                let mut span = buffer.claim(8..16, Access::Write).unwrap();
                threads.spawn(move || span.bytes_mut().unwrap().fill(9)).join().unwrap();
                buffer.claim(0..64, Access::Read).unwrap().bytes().unwrap().to_vec()
            })
        });
        assert_eq!(span, memory);
        assert_eq!(memory.iter().filter(|byte| **byte == 9).count(), 8);
    }

    /// Over when it is told so.
    struct Buried(Arc<std::sync::atomic::AtomicBool>, #[expect(dead_code, reason = "dropping it ends the claim")] Span);

    impl graveyard::Grave for Buried {
        fn is_over(&mut self) -> bool {
            self.0.load(Ordering::Acquire)
        }
    }

    #[test]
    fn lent_memory_comes_back_when_what_was_given_up_on_it_has_ended() {
        let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let buried = std::sync::atomic::AtomicBool::new(false);
        let mut memory = vec![1u8; 64];
        let (lent, given_back) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                lend_mut(&mut memory, None, |buffer| {
                    let span = buffer.claim(8..16, Access::Write).unwrap();
                    graveyard::bury(Box::new(Buried(Arc::clone(&over), span)), None);
                    assert!(matches!(buffer.claim(8..9, Access::Read), Err(DeviceError::Overlap { .. })));
                    buried.store(true, Ordering::Release);
                });
                given_back.store(clock::now().0, Ordering::Release);
            });
            // The graves are those of all tests of the process: their number says nothing.
            while !buried.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            lent.store(clock::now().0, Ordering::Release);
            over.store(true, Ordering::Release);
        });
        assert!(given_back.into_inner() >= lent.into_inner(), "it came back while it was in use");
        assert_eq!(memory, [1; 64]);
    }

    #[test]
    fn a_claim_finds_what_was_given_up_and_has_ended_since() {
        let (over, buffer) = (Arc::new(std::sync::atomic::AtomicBool::new(false)), buffer(64));
        let span = buffer.claim(0..64, Access::Write).unwrap();
        graveyard::bury(Box::new(Buried(Arc::clone(&over), span)), None);
        assert!(matches!(buffer.claim(0..1, Access::Read), Err(DeviceError::Overlap { .. })));
        over.store(true, Ordering::Release);
        // Another test may be asking the graves at this moment.
        while buffer.claim(0..64, Access::Write).is_err() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn bytes_that_something_lingers_on_are_not_claimed_anew() {
        let buffer = buffer(64);
        let span = buffer.claim(0..32, Access::Write).unwrap();
        let lingering = span.linger();
        drop(span);
        assert!(matches!(buffer.claim(0..1, Access::Read), Err(DeviceError::Overlap { .. })));
        drop(lingering);
        buffer.claim(0..64, Access::Write).unwrap();
    }

    /// Run again as a child by the test below.
    #[test]
    fn loan_that_never_ends() {
        if std::env::var_os("HEADWAY_TEST_LOAN").is_none() {
            return;
        }
        let buffer = buffer(64);
        std::mem::forget(buffer.claim(0..8, Access::Read).unwrap());
        Loan(buffer).wait_at_most(Nanos(1_000_000), Nanos(2_000_000));
    }

    #[test]
    fn a_loan_that_never_ends_ends_the_process_and_says_why() {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "buffer::tests::loan_that_never_ends"])
            .env("HEADWAY_TEST_LOAN", "1")
            .output()
            .unwrap();
        assert!(!child.status.success(), "{child:?}");
        let said = String::from_utf8_lossy(&child.stderr);
        assert!(said.contains("still in use") && said.contains("lent memory of 64 bytes"), "{said}");
        assert!(said.contains("was not given back within 2 ms; ending the process"), "{said}");
    }

    #[test]
    fn memory_lent_for_reading_is_never_claimed_for_writing() {
        lend(&[1, 2, 3], None, |buffer| {
            assert!(matches!(buffer.claim(0..3, Access::Write), Err(DeviceError::Invalid { .. })));
            assert_eq!(buffer.claim(1..3, Access::Read).unwrap().bytes().unwrap(), [2, 3]);
        });
    }

    #[test]
    fn claims_on_one_buffer_are_bounded() {
        let buffer = buffer(1);
        let held: Vec<_> = (0..CLAIMS_MAX).map(|_| buffer.claim(0..1, Access::Read).unwrap()).collect();
        assert!(matches!(buffer.claim(0..1, Access::Read), Err(DeviceError::Refused { .. })));
        drop(held);
        buffer.claim(0..1, Access::Write).unwrap();
    }

    #[test]
    fn a_budget_is_given_back_when_the_last_handle_is_dropped() {
        let limits =
            crate::DeviceLimits { host_bytes_max: Bytes(10), buffers_max: 1, ..crate::DeviceLimits::default() };
        let budget = Budget::new(&limits, Bytes(0));
        let buffer = Buffer::new(HeapMemory::pageable(8).unwrap(), budget.reserve(1, 8, 0).unwrap());
        let span = buffer.claim(0..8, Access::Read).unwrap();
        drop(buffer);
        assert!(matches!(budget.reserve(1, 1, 0), Err(DeviceError::Refused { limit: "buffers_max", max: 1 })));
        let error = budget.reserve(0, 3, 0).unwrap_err();
        assert!(matches!(error, DeviceError::OutOfMemory { wanted: Bytes(3), available: Bytes(2), .. }), "{error}");
        drop(span);
        budget.reserve(1, 10, 0).unwrap();
    }
}
