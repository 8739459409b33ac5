//! Many pieces in one request: the table of the copy kernel, and the arrays of the driver's batch call.

use std::ffi::c_int;

use headway_device::DeviceError;
use headway_device::gpu::Piece;

use crate::driver::Driver;
use crate::driver::table::{Address, Code, CopyAttributes, SOURCE_ORDER_STREAM, SUCCESS};
use crate::owned::Stream;

/// Threads of a block of the copy kernel.
pub(crate) const KERNEL_THREADS: u32 = 512;
const WARPS: u64 = KERNEL_THREADS as u64 / 32;
/// Units that a warp gets of a large request: enough to even out which of them is the last.
const UNITS_PER_WARP: u64 = 8;
/// Units are multiples of this, what one warp has under way at a time.
const UNIT_BYTES: u64 = 4096;

/// Name, PTX and entry of the copy kernel.
pub(crate) const KERNEL: (&str, &str, &str) =
    ("copy_pieces", include_str!("../ptx/copy_pieces.ptx"), "headway_copy_pieces");

/// One entry of the copy kernel's table: `Piece` of `copy_pieces.cu`.
pub(crate) type Unit = [u64; 3];

/// Most bytes that one warp of `blocks` blocks copies at a time, for pieces of `total` bytes.
pub(crate) fn unit_bytes(total: u64, blocks: u32) -> u64 {
    (total / (u64::from(blocks) * WARPS * UNITS_PER_WARP)).max(1).next_multiple_of(UNIT_BYTES)
}

/// Entries that `pieces` make when none is longer than `unit`.
pub(crate) fn unit_count(pieces: &[Piece], unit: u64) -> u64 {
    pieces.iter().map(|piece| (piece.len as u64).div_ceil(unit)).sum()
}

/// The entries for `pieces` of the memory at `from` to that at `to`.
pub(crate) fn units(from: Address, to: Address, pieces: &[Piece], unit: u64) -> impl Iterator<Item = Unit> {
    pieces.iter().flat_map(move |piece| {
        let (from, to, len) = (from + piece.from as u64, to + piece.to as u64, piece.len as u64);
        (0..len.div_ceil(unit)).map(move |index| {
            let at = index * unit;
            [from + at, to + at, unit.min(len - at)]
        })
    })
}

/// The arrays of the driver's batch call, kept for the next one.
#[derive(Default)]
pub(crate) struct Batch {
    to: Vec<Address>,
    from: Vec<Address>,
    bytes: Vec<usize>,
}

impl Batch {
    /// Queues `pieces` of the memory at `from` to that at `to` in `stream`, in one call.
    ///
    /// # Safety
    /// All pieces lie within memory that stays valid, the destinations unused by others, until the stream has passed this
    /// point; host memory among it is pinned; the stream's context is current.
    pub(crate) unsafe fn queue(
        &mut self,
        driver: &Driver,
        (from, to): (Address, Address),
        pieces: &[Piece],
        stream: &Stream,
    ) -> Result<(), DeviceError> {
        driver.here()?;
        self.to.clear();
        self.from.clear();
        self.bytes.clear();
        for piece in pieces.iter().filter(|piece| piece.len > 0) {
            self.to.push(to + piece.to as u64);
            self.from.push(from + piece.from as u64);
            self.bytes.push(piece.len);
        }
        if self.bytes.is_empty() {
            return Ok(());
        }
        let (count, mut first, mut failed) = (self.bytes.len(), 0, 0);
        // Every source in stream order: read earlier, device memory might not yet hold what comes before in the stream.
        let anywhere: [c_int; 2] = [0, 0];
        let mut attributes = CopyAttributes {
            source_order: SOURCE_ORDER_STREAM,
            source_location: anywhere,
            destination_location: anywhere,
            flags: 0,
        };
        let (to, from, bytes) = (self.to.as_mut_ptr(), self.from.as_mut_ptr(), self.bytes.as_mut_ptr());
        let (attributes, first) = (&raw mut attributes, &raw mut first);
        let (table, stream) = (&driver.table, stream.handle());
        let (call, code): (&'static str, Code) = match (table.cuMemcpyBatchAsync_v2, table.cuMemcpyBatchAsync) {
            // SAFETY: three arrays of `count` entries, one attribute that holds from copy 0 on; the caller's promise.
            (Some(call), _) => unsafe {
                ("cuMemcpyBatchAsync_v2", call(to, from, bytes, count, attributes, first, 1, stream))
            },
            // SAFETY: three arrays of `count` entries, one attribute that holds from copy 0 on; the caller's promise;
            // `failed` is valid for the call to write.
            (None, Some(call)) => unsafe {
                let failed = &raw mut failed;
                ("cuMemcpyBatchAsync", call(to, from, bytes, count, attributes, first, 1, failed, stream))
            },
            (None, None) => return Err(no_batch()),
        };
        if code == SUCCESS { Ok(()) } else { driver.check(call, code) }
    }
}

/// Whether the driver has a batch call.
pub(crate) fn check_batch(driver: &Driver) -> Result<(), DeviceError> {
    let table = &driver.table;
    if table.cuMemcpyBatchAsync_v2.is_some() || table.cuMemcpyBatchAsync.is_some() { Ok(()) } else { Err(no_batch()) }
}

fn no_batch() -> DeviceError {
    DeviceError::Unavailable {
        what: "the driver's call for many copies (cuMemcpyBatchAsync)".into(),
        reason: "the driver is older than CUDA 12.8".into(),
        remedy: "update the NVIDIA driver, or move pieces by loop or kernel".into(),
    }
}
