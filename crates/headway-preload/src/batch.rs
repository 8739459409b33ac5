//! Many copies in one call (`cuMemcpyBatchAsync`).
//!
//! The engine treats a batch as one copy: others wait for all of it. A batch whose copies all go out of the GPU into
//! page-locked memory is queued copy by copy, in pieces, where `--yield` asks for pieces and the batch is bulk. Copies of one
//! batch have no order among each other, so any order is one that the program must expect.

use std::ffi::{c_int, c_uint, c_void};

use crate::context;
use crate::decide::{self, BULK_MIN, Out, PIECES_MAX};
use crate::driver::{self, DevicePtr, Driver, Relaxed, SUCCESS, Status, Stream};
use crate::passed::{self, Passed};
use crate::{lookup, neighbours};

/// `CUmemcpyAttributes`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes {
    access: c_uint,
    hints: [(c_uint, c_int); 2],
    flags: c_uint,
}

/// `CU_MEMCPY_SRC_ACCESS_ORDER_`: sources are read in the order of the stream, or whenever the driver likes.
const IN_STREAM_ORDER: c_uint = 1;
const IN_ANY_ORDER: c_uint = 3;

/// What such a call was given, but for the place of the first failure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    pub(crate) to: *const DevicePtr,
    pub(crate) from: *const DevicePtr,
    pub(crate) sizes: *const usize,
    pub(crate) count: usize,
    pub(crate) attributes: *const Attributes,
    pub(crate) kinds: usize,
    pub(crate) stream: Stream,
}

impl Batch {
    /// Its copies; `None` if the driver would refuse the call, or the lists cannot be read.
    ///
    /// # Safety
    /// Lists that are not null have `count` entries; that of attributes has `kinds`, unless these are more than the copies.
    unsafe fn copies(&self) -> Option<(Vec<Out>, u64)> {
        let lists = [self.to.cast::<c_void>(), self.from.cast(), self.sizes.cast(), self.attributes.cast()];
        let counts = (1..=PIECES_MAX).contains(&self.count) && (1..=self.count).contains(&self.kinds);
        if lists.iter().any(|list| list.is_null()) || !counts {
            return None;
        }
        for kind in 0..self.kinds {
            // SAFETY: by this function's contract.
            let access = unsafe { (&raw const (*self.attributes.add(kind)).access).read_unaligned() };
            if !matches!(access, IN_STREAM_ORDER | IN_ANY_ORDER) {
                return None;
            }
        }
        let (mut copies, mut sum) = (Vec::with_capacity(self.count), 0u64);
        for at in 0..self.count {
            // SAFETY: by this function's contract.
            let (to, from, bytes) = unsafe {
                (
                    self.to.add(at).read_unaligned(),
                    self.from.add(at).read_unaligned(),
                    self.sizes.add(at).read_unaligned(),
                )
            };
            if bytes == 0 {
                return None;
            }
            copies.push(Out { to: to as *mut c_void, from, bytes, stream: self.stream, waits: false });
            sum = sum.saturating_add(bytes as u64);
        }
        Some((copies, sum))
    }
}

/// A batch: counted, and queued in pieces or passed on.
///
/// # Safety
/// As for the driver's call.
pub(crate) unsafe fn copy(batch: Batch, failed: *mut usize, real: impl FnOnce() -> Status) -> Status {
    let piece = decide::options().piece;
    if !decide::counts() && piece.is_none() {
        return real();
    }
    // SAFETY: by this function's contract.
    let Some((copies, bytes)) = (unsafe { batch.copies() }) else {
        passed::count_many(Passed::Batch, batch.count as u64, 0);
        return real();
    };
    passed::count_many(Passed::Batch, copies.len() as u64, bytes);
    let Some(piece) = piece.filter(|_| bytes >= BULK_MIN as u64 && !lookup::is_off()) else { return real() };
    let Some(driver) = driver::driver() else { return real() };
    let pieces = |copy: &Out| copy.bytes.div_ceil(piece.0 as usize);
    let few = copies.iter().map(pieces).fold(0, usize::saturating_add) <= PIECES_MAX;
    let Some(context) = context::current(driver).filter(|context| few && context.writes_values()) else {
        return real();
    };
    // The default streams are the driver's to refuse.
    if batch.stream <= driver::STREAM_PER_THREAD || !all_out(driver, context.device, batch.stream, &copies) {
        return real();
    }
    context.enter();
    neighbours::announce(context.place, usize::try_from(bytes).unwrap_or(usize::MAX));
    let mut status = SUCCESS;
    for (number, copy) in copies.into_iter().enumerate() {
        status = decide::pieces(driver, &context, copy, piece.0 as usize);
        if status != SUCCESS {
            if !failed.is_null() {
                // SAFETY: by this function's contract.
                unsafe { *failed = number };
            }
            break;
        }
    }
    if status == SUCCESS {
        let _relaxed = Relaxed::new(driver);
        context.remember(driver, batch.stream);
    }
    context.leave();
    status
}

/// Whether all copies go from this device into page-locked memory, in a stream that captures nothing.
fn all_out(driver: &Driver, device: c_int, stream: Stream, copies: &[Out]) -> bool {
    let _relaxed = Relaxed::new(driver);
    let out = |copy: &Out| {
        driver::on_device(driver, copy.from, copy.bytes, device)
            && driver::pinned(driver, copy.to, copy.bytes).is_some()
    };
    !driver::captures(driver, stream) && copies.iter().all(out)
}
