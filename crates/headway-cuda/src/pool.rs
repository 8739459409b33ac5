//! Pinned host memory in slabs, handed out in pieces: pinning is slow, so it happens rarely and in large amounts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use headway_core::units::Bytes;
use headway_device::DeviceError;
use headway_device::buffer::{Budget, Memory, Place, Reservation};

use crate::checked::lock;
use crate::owned::{Context, PinnedMemory};
use crate::table;

/// Slabs are multiples of this, the size of a huge page.
const SLAB_BYTES: usize = 2 << 20;
/// Pieces start at multiples of this.
const ALIGN: usize = 256;

/// The slabs of one device.
pub(crate) struct Pool {
    context: Arc<Context>,
    budget: Arc<Budget>,
    slabs: Mutex<Vec<Arc<Slab>>>,
}

struct Slab {
    memory: PinnedMemory,
    /// Unused ranges: start to length, never adjacent to each other.
    free: Mutex<BTreeMap<usize, usize>>,
    // Given back after the memory is freed: fields drop in this order.
    _reservation: Reservation,
}

/// A piece of a slab.
pub(crate) struct Piece {
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
    pub(crate) fn take(&self, bytes: usize) -> Result<Piece, DeviceError> {
        let mut slabs = lock(&self.slabs);
        let exhausted = |available| DeviceError::OutOfMemory {
            what: "pinned host memory within host_bytes_max",
            wanted: Bytes(bytes as u64),
            available,
        };
        let Some(taken) = bytes.max(1).checked_next_multiple_of(ALIGN) else {
            return Err(exhausted(self.budget.host_available()));
        };
        if let Some(piece) = slabs.iter().find_map(|slab| slab.take(bytes, taken)) {
            return Ok(piece);
        }
        // What no buffer uses any more is unpinned before more is pinned.
        slabs.retain(|slab| slab.largest() < slab.memory.bytes);
        let room = self.budget.host_available();
        let Some(size) = taken.checked_next_multiple_of(SLAB_BYTES).filter(|&size| size as u64 <= room.0) else {
            return Err(exhausted(Bytes(room.0 / SLAB_BYTES as u64 * SLAB_BYTES as u64)));
        };
        let reservation = self.budget.reserve(0, size as u64, 0)?;
        let memory = match PinnedMemory::new(&self.context, size) {
            Err(DeviceError::Driver { code: table::OUT_OF_MEMORY, .. }) => {
                let what = "pinned host memory that the driver gives";
                return Err(DeviceError::OutOfMemory { what, wanted: Bytes(size as u64), available: Bytes(0) });
            }
            other => other?,
        };
        let slab = Arc::new(Slab { memory, free: Mutex::new([(0, size)].into()), _reservation: reservation });
        let piece = slab.take(bytes, taken).ok_or_else(|| exhausted(Bytes(size as u64)))?;
        slabs.push(slab);
        Ok(piece)
    }
}

impl Slab {
    fn take(self: &Arc<Self>, bytes: usize, taken: usize) -> Option<Piece> {
        let mut free = lock(&self.free);
        let (&start, &length) = free.iter().find(|(_, length)| **length >= taken)?;
        free.remove(&start);
        if length > taken {
            free.insert(start + taken, length - taken);
        }
        drop(free);
        let piece = Piece { slab: Arc::clone(self), start, bytes, taken };
        // SAFETY: the range was free a moment ago, so this piece alone has it; it lies within the slab.
        unsafe { piece.base().write_bytes(0, taken) };
        Some(piece)
    }

    fn largest(&self) -> usize {
        lock(&self.free).values().copied().max().unwrap_or(0)
    }

    fn give(&self, mut start: usize, mut length: usize) {
        let mut free = lock(&self.free);
        if let Some(after) = free.remove(&(start + length)) {
            length += after;
        }
        if let Some((&before, &before_length)) = free.range(..start).next_back()
            && before + before_length == start
        {
            (start, length) = (before, before_length + length);
        }
        free.insert(start, length);
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.slab.give(self.start, self.taken);
    }
}

// SAFETY: a range of a live slab that no other piece has until this one is dropped, zeroed by `Slab::take`, mapped for the
// CPU by the driver; the three answers come from fields that never change.
unsafe impl Memory for Piece {
    fn base(&self) -> *mut u8 {
        self.slab.memory.base().wrapping_add(self.start)
    }
    fn bytes(&self) -> usize {
        self.bytes
    }
    fn place(&self) -> Place {
        self.slab.memory.place()
    }
}
