//! Memory of emulated gpus: pinned, registered in place, and device memory with a window.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::sync::Mutex;

use headway_core::models::transfer::WindowMapping;
use headway_core::units::{Bytes, Nanos};
use headway_os::memory::{MemoryFile, View};
use headway_os::{OsError, clock, copy};

use crate::buffer::{HeapMemory, Memory, MemoryDomain, MemoryPlace, Span, lock};
use crate::error::DeviceError;
use crate::gpu::Window;

/// Pinned ranges of all emulated GPUs, which share one domain: address of the first byte to length.
static PINNED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

/// An entry of [`PINNED`], taken out when dropped.
struct Pin {
    start: usize,
}

impl Pin {
    /// # Errors
    /// [`DeviceError::Invalid`] where a byte is pinned already.
    fn new(start: usize, bytes: usize) -> Result<Self, DeviceError> {
        let bytes = bytes.max(1);
        let mut pinned = lock(&PINNED);
        let below = pinned.range(..start.saturating_add(bytes)).next_back();
        if below.is_some_and(|(&at, &len)| at.saturating_add(len) > start) {
            return Err(DeviceError::Invalid { what: "register", reason: "the memory is pinned already".into() });
        }
        pinned.insert(start, bytes);
        Ok(Self { start })
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        lock(&PINNED).remove(&self.start);
    }
}

/// Whether all of `memory` lies in one pinned range.
pub(super) fn is_pinned(memory: &[u8]) -> bool {
    let start = memory.as_ptr().addr();
    let pinned = lock(&PINNED);
    let below = pinned.range(..=start).next_back();
    !memory.is_empty() && below.is_some_and(|(at, len)| start - at + memory.len() <= *len)
}

/// Pinned memory of its own.
pub(super) struct PinnedMemory {
    // Taken out of the list before the memory can be given to somebody else: fields drop in this order.
    _pin: Pin,
    heap: HeapMemory,
}

impl PinnedMemory {
    pub(super) fn new(bytes: usize) -> Result<Self, DeviceError> {
        let heap = HeapMemory::new(bytes, MemoryPlace::Host { pinned: Some(MemoryDomain::EMULATED) })?;
        Ok(Self { _pin: Pin::new(heap.base().addr(), bytes)?, heap })
    }
}

// SAFETY: the answers are those of the heap memory it owns.
unsafe impl Memory for PinnedMemory {
    fn base(&self) -> *mut u8 {
        self.heap.base()
    }
    fn bytes(&self) -> usize {
        self.heap.bytes()
    }
    fn place(&self) -> MemoryPlace {
        self.heap.place()
    }
}

/// Memory of somebody else, pinned in place; the claim keeps others off until it is unpinned.
pub(super) struct Registered {
    _pin: Pin,
    span: Span,
}

impl Registered {
    pub(super) fn new(span: Span) -> Result<Self, DeviceError> {
        let refuse = |reason: &str| Err(DeviceError::Invalid { what: "register", reason: reason.into() });
        match span.place() {
            MemoryPlace::Host { pinned: None } => {}
            MemoryPlace::Host { pinned: Some(_) } => return refuse("the memory is pinned already"),
            MemoryPlace::Device { .. } => return refuse("device memory cannot be pinned"),
        }
        if span.is_empty() {
            return refuse("it has no bytes");
        }
        Ok(Self { _pin: Pin::new(span.as_ptr().addr(), span.len())?, span })
    }
}

// SAFETY: the claim in `span` covers these bytes and lives as long as this value. Its access says whether they may be
// written, and `EmuGpu::register` makes the buffer accordingly.
unsafe impl Memory for Registered {
    fn base(&self) -> *mut u8 {
        self.span.as_ptr()
    }
    fn bytes(&self) -> usize {
        self.span.len()
    }
    fn place(&self) -> MemoryPlace {
        MemoryPlace::Host { pinned: Some(MemoryDomain::EMULATED) }
    }
}

/// Device memory that can be mapped again at any offset: a memory file.
pub(super) struct WindowedMemory {
    view: View,
    file: MemoryFile,
    place: MemoryPlace,
    mapping: WindowMapping,
    load_line: Nanos,
}

impl WindowedMemory {
    pub(super) fn new(
        bytes: usize,
        place: MemoryPlace,
        mapping: WindowMapping,
        load_line: Nanos,
    ) -> Result<Self, DeviceError> {
        let exhausted = |_: OsError| DeviceError::OutOfMemory {
            what: "memory of the process",
            wanted: Bytes(bytes as u64),
            available: Bytes(0),
        };
        let file = MemoryFile::new("headway-emu", bytes).map_err(exhausted)?;
        let view = View::map(file.as_fd(), 0, bytes).map_err(exhausted)?;
        Ok(Self { view, file, place, mapping, load_line })
    }

    /// Maps `bytes` bytes from `offset` on, a second time.
    pub(super) fn map(&self, offset: usize, bytes: usize) -> Result<View, OsError> {
        View::map(self.file.as_fd(), offset as u64, bytes)
    }

    /// Moves `view`, which [`WindowedMemory::map`] has given, to `offset`.
    ///
    /// # Safety
    /// The caller keeps the promise of [`View::move_to`].
    pub(super) unsafe fn move_view(&self, view: &mut View, offset: usize) -> Result<(), OsError> {
        // SAFETY: the caller vouches for it.
        unsafe { view.move_to(self.file.as_fd(), offset as u64) }
    }

    /// What a load of one line takes at least.
    pub(super) fn load_line(&self) -> Nanos {
        self.load_line
    }
}

// SAFETY: a fresh zeroed file mapped whole, unmapped on drop only. Second mappings of it (`map`) are used by the pager
// alone, under claims on the same buffer.
unsafe impl Memory for WindowedMemory {
    fn base(&self) -> *mut u8 {
        self.view.as_ptr()
    }
    fn bytes(&self) -> usize {
        self.file.len()
    }
    fn place(&self) -> MemoryPlace {
        self.place
    }
    fn window(&self) -> Option<&dyn Window> {
        Some(self)
    }
}

// SAFETY: `window_store` and `window_load` touch exactly the range; queues see stores because a submission takes a lock.
unsafe impl Window for WindowedMemory {
    fn mapping(&self) -> WindowMapping {
        self.mapping
    }
    unsafe fn store(&self, at: usize, from: &[u8]) {
        // SAFETY: the caller vouches for the range; the memory is ordinary memory of this process.
        unsafe { copy::window_store(self.view.as_ptr().add(at), from) }
    }
    unsafe fn load(&self, at: usize, to: &mut [u8]) {
        // SAFETY: as in `store`.
        unsafe { load(self.view.as_ptr().add(at), to, self.load_line) }
    }
}

/// Loads from `from`, each line taking at least `line`.
///
/// # Safety
/// The caller keeps the promise of [`copy::window_load`].
pub(super) unsafe fn load(from: *const u8, to: &mut [u8], line: Nanos) {
    if line == Nanos::ZERO || to.is_empty() {
        // SAFETY: the caller vouches for it.
        return unsafe { copy::window_load(from, to) };
    }
    let started = clock::now();
    // SAFETY: the caller vouches for it.
    unsafe { copy::window_load(from, to) }
    let lines = (from.addr() + to.len()).div_ceil(copy::LINE_BYTES) - from.addr() / copy::LINE_BYTES;
    let until = started.saturating_add(Nanos(line.0.saturating_mul(lines as u64)));
    while clock::now() < until {
        std::hint::spin_loop();
    }
}
