//! Pinned host memory in slabs, handed out in pieces: pinning is slow, so it happens rarely and in large amounts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use headway_core::units::Bytes;
use headway_device::DeviceError;
use headway_device::buffer::{Budget, Memory, MemoryPlace, Reservation};

use crate::driver::lock;
use crate::owned::Context;
use crate::pinned::PinnedMemory;

/// Slabs are multiples of this, the size of a huge page.
const SLAB_BYTES: usize = 2 << 20;
/// Pieces start at multiples of this, at least.
const ALIGN: usize = 256;
/// Slabs start at multiples of this, at least: a page.
const ALIGN_MAX: usize = 4096;

/// The slabs of one device.
pub(crate) struct Pool {
    context: Arc<Context>,
    budget: Arc<Budget>,
    slabs: Mutex<Vec<Arc<Slab>>>,
}

struct Slab {
    memory: PinnedMemory,
    free: Mutex<Free>,
    // Given back after the memory is freed: fields drop in this order.
    _reservation: Reservation,
}

struct Free {
    /// Unused ranges: start to length, never adjacent to each other.
    ranges: BTreeMap<usize, usize>,
    /// Bytes from here on were never given out since they were zero.
    zero_from: usize,
}

/// A piece of a slab.
pub(crate) struct SlabPiece {
    slab: Arc<Slab>,
    start: usize,
    bytes: usize,
    taken: usize,
}

impl Pool {
    pub(crate) fn new(context: &Arc<Context>, budget: &Arc<Budget>) -> Self {
        Self { context: Arc::clone(context), budget: Arc::clone(budget), slabs: Mutex::default() }
    }

    /// A zeroed piece of `bytes` bytes: from a slab that has room, else from a new one.
    pub(crate) fn take(&self, bytes: usize) -> Result<SlabPiece, DeviceError> {
        self.take_aligned(bytes, ALIGN)
    }

    /// Like [`Pool::take`], in whole pages.
    pub(crate) fn take_pages(&self, bytes: usize) -> Result<SlabPiece, DeviceError> {
        self.take_aligned(bytes, ALIGN_MAX)
    }

    fn take_aligned(&self, bytes: usize, align: usize) -> Result<SlabPiece, DeviceError> {
        self.context.driver.here()?;
        let mut slabs = lock(&self.slabs);
        let exhausted = |available| DeviceError::OutOfMemory {
            what: "pinned host memory within host_bytes_max",
            wanted: Bytes(bytes as u64),
            available,
        };
        let Some(taken) = bytes.max(1).checked_next_multiple_of(align) else {
            return Err(exhausted(self.budget.host_available()));
        };
        if let Some(piece) = slabs.iter().find_map(|slab| slab.take(bytes, taken, align)) {
            return Ok(piece);
        }
        // What no buffer uses any more is unpinned before more is pinned.
        slabs.retain(|slab| slab.largest() < slab.memory.bytes);
        let room = self.budget.host_available();
        let Some(size) = taken.checked_next_multiple_of(SLAB_BYTES).filter(|&size| size as u64 <= room.0) else {
            return Err(exhausted(Bytes(room.0 / SLAB_BYTES as u64 * SLAB_BYTES as u64)));
        };
        let reservation = self.budget.reserve(0, size as u64, 0)?;
        let memory = PinnedMemory::new(&self.context, size)?;
        let zero_from = if memory.zeroed { 0 } else { size };
        let free = Mutex::new(Free { ranges: [(0, size)].into(), zero_from });
        let slab = Arc::new(Slab { memory, free, _reservation: reservation });
        let piece = slab.take(bytes, taken, align).ok_or_else(|| exhausted(Bytes(size as u64)))?;
        slabs.push(slab);
        Ok(piece)
    }
}

impl Slab {
    fn take(self: &Arc<Self>, bytes: usize, taken: usize, align: usize) -> Option<SlabPiece> {
        let mut free = lock(&self.free);
        let fits = |(&at, &length): (&usize, &usize)| {
            let start = at.next_multiple_of(align);
            length.checked_sub(start - at).is_some_and(|room| room >= taken).then_some((at, length, start))
        };
        let (at, length, start) = free.ranges.iter().find_map(fits)?;
        let (end, after) = (start + taken, at + length);
        free.ranges.remove(&at);
        for (from, to) in [(at, start), (end, after)] {
            if from < to {
                free.ranges.insert(from, to - from);
            }
        }
        let used = free.zero_from.clamp(start, end) - start;
        free.zero_from = free.zero_from.max(end);
        drop(free);
        let piece = SlabPiece { slab: Arc::clone(self), start, bytes, taken };
        // SAFETY: the range was free a moment ago, so this piece alone has it; it lies within the slab.
        unsafe { piece.base().write_bytes(0, used) };
        Some(piece)
    }

    fn largest(&self) -> usize {
        lock(&self.free).ranges.values().copied().max().unwrap_or(0)
    }

    fn give(&self, mut start: usize, mut length: usize) {
        let ranges = &mut lock(&self.free).ranges;
        if let Some(after) = ranges.remove(&(start + length)) {
            length += after;
        }
        if let Some((&before, &before_length)) = ranges.range(..start).next_back()
            && before + before_length == start
        {
            (start, length) = (before, before_length + length);
        }
        ranges.insert(start, length);
    }
}

impl Drop for SlabPiece {
    fn drop(&mut self) {
        self.slab.give(self.start, self.taken);
    }
}

// SAFETY: a range of a live slab that no other piece has until this one is dropped, zeroed at first or by `Slab::take`, mapped for the
// CPU by the driver; the three answers come from fields that never change.
unsafe impl Memory for SlabPiece {
    fn base(&self) -> *mut u8 {
        self.slab.memory.base().wrapping_add(self.start)
    }
    fn bytes(&self) -> usize {
        self.bytes
    }
    fn place(&self) -> MemoryPlace {
        self.slab.memory.place()
    }
    fn mapped(&self) -> Result<(), DeviceError> {
        self.slab.memory.mapped()
    }
}
