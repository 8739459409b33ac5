//! Copies with attributes: one (`cuMemcpyWithAttributesAsync`), or many in one call (`cuMemcpyBatchAsync`).
//!
//! Copies of one batch have no order among each other, so any order is one that the program must expect. Large copies of ordinary memory
//! are taken out of a batch and made by several threads. Small ones that would wait at a busy engine are made by a kernel. What is left
//! goes to the driver: as it came, or, where it is bulk on its way into page-locked memory and `--yield` asks for chunks, in smaller
//! batches with a written word behind each. The engine treats a batch as one copy, and others wait for all of it.

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::ops::ControlFlow::Break;

use headway_core::files::guest_log::Towards;

use crate::base::attention;
use crate::base::context;
use crate::base::copy::{Copy, Made};
use crate::base::driver::{self, DevicePtr, Driver, GRANULE, Relaxed, STREAM_PER_THREAD, SUCCESS, Status, Stream};
use crate::base::pins;
use crate::decide;
use crate::methods::batch::{Attributes, Batch, Lists, Piece, bytes_of};
use crate::methods::chunks;
use crate::observers::{Event, tell, told};

/// Of more copies in one call none is made by a kernel: each costs a launch.
const ASIDE_COUNT_MAX: usize = 32;

/// A copy with attributes of its own.
///
/// # Safety
/// As for the driver's call; `real` makes the copy with the attributes that it is given.
pub(crate) unsafe fn copy_one(
    copy: Copy,
    attributes: *const Attributes,
    real: impl FnOnce(*const Attributes) -> Status,
) -> Status {
    // The driver refuses the legacy default stream.
    if attributes.is_null() || copy.bytes == 0 || copy.stream <= STREAM_PER_THREAD || !attention::looks_at(copy.bytes) {
        decide::give_up_both(copy);
        return real(attributes);
    }
    // SAFETY: by this function's contract.
    let known = unsafe { attributes.read_unaligned() };
    if !known.are_known() {
        decide::give_up_both(copy);
        return real(attributes);
    }
    decide::copy(copy, || {
        let attributes = known.for_the_driver(copy);
        real(&raw const attributes)
    })
}

/// Many copies in one call.
///
/// # Safety
/// As for the driver's call.
pub(crate) unsafe fn copy(batch: &Batch<impl Fn(&Lists, *mut usize) -> Status>) -> Status {
    // The driver refuses the legacy default stream.
    if batch.stream <= STREAM_PER_THREAD || !attention::looks_at(usize::MAX) {
        pins::give_up_all();
        return batch.pass_on();
    }
    // SAFETY: by this function's contract.
    let Some(mut pieces) = (unsafe { batch.pieces() }) else {
        pins::give_up_all();
        return batch.pass_on();
    };
    if let [piece] = pieces[..] {
        return decide::copy(piece.copy, || batch.send(&pieces));
    }
    pieces.iter().for_each(|piece| tell(Event::Asked(piece.copy)));
    let Some(driver) = driver::driver() else { return batch.pass_on() };
    pieces.retain(|piece| !by_threads(driver, piece.copy));
    let (first, left) = (pieces.first().map(|piece| piece.copy), bytes_of(&pieces));
    let ended = |status| {
        first.into_iter().for_each(|first| told::batch(first, left, status));
        status
    };
    if pieces.len() <= ASIDE_COUNT_MAX {
        pieces.retain(|piece| !by_kernel(driver, piece.copy));
    }
    if pieces.is_empty() {
        return ended(SUCCESS);
    }
    let bytes = bytes_of(&pieces);
    if let Some(asked) = attention::options().chunk.filter(|_| decide::is_bulk(bytes))
        && let Some(context) = context::current(driver).filter(|context| context.writes_values())
        && all_out(driver, context.device, batch.stream, &pieces)
    {
        let chunk = chunks::chunk_bytes(asked.0 as usize, bytes);
        return ended(chunks::batch(driver, &context, batch, &pieces, chunk));
    }
    ended(batch.send(&pieces))
}

/// Whether a copy of a batch was made by several threads. The driver's call is not timed inside a batch.
fn by_threads(driver: &Driver, copy: Copy) -> bool {
    [Towards::In, Towards::Out].into_iter().any(|towards| {
        matches!(decide::by_threads(driver, copy.towards(towards), &mut Made::new(copy)), Break(SUCCESS))
    })
}

/// Whether a copy of a batch was queued by a kernel, past a busy engine.
fn by_kernel(driver: &Driver, copy: Copy) -> bool {
    let context = if decide::may_go_aside(copy.bytes) { context::current(driver) } else { None };
    context.is_some_and(|context| {
        decide::by_kernel(driver, &context, copy.towards(Towards::Out), &mut Made::new(copy)) == Some(SUCCESS)
    })
}

/// Whether the copies go from this device into page-locked memory, in a stream that captures nothing. Of copies of less than a granule that
/// lie in the same granules the driver is asked about one: it checks each of them itself when it is queued.
fn all_out(driver: &Driver, device: c_int, stream: Stream, pieces: &[Piece]) -> bool {
    let _relaxed = Relaxed::new(driver);
    let (mut sources, mut destinations) = (BTreeSet::new(), BTreeSet::new());
    let all = pieces.iter().map(|piece| piece.copy.towards(Towards::Out)).all(|copy| {
        let is_new = |known: &mut BTreeSet<u64>, address: DevicePtr| {
            let ends = [address, address.saturating_add(copy.bytes as u64 - 1)].map(|end| end / GRANULE);
            // Of a size that makes no sense the driver knows that it does.
            copy.bytes as u64 >= GRANULE || ends.map(|granule| known.insert(granule)).contains(&true)
        };
        (!is_new(&mut sources, copy.from) || driver::on_device(driver, copy.from, copy.bytes, device))
            && (!is_new(&mut destinations, copy.to) || driver::pinned(driver, copy.host(), copy.bytes).is_some())
    });
    all && !driver::captures(driver, stream)
}
