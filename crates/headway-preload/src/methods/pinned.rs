//! `--pin-once`: copies of memory that Headway keeps page-locked, by the engine alone ([`pins`]).
//!
//! The call returns when the bytes are there, as it does for ordinary memory out of a GPU, and later than the driver's own into a GPU.

use headway_core::files::guest_log::{DriverReason, Towards};

use crate::base::copy::Copy;
use crate::base::driver::{self, DevicePtr, Driver, SUCCESS, Status};
use crate::base::{attention, context, pins};
use crate::methods::chunks;

/// From this size on the calling thread sleeps until the copy is made; it takes some 300 us then.
const SLEEPS_MIN: usize = 16 << 20;
/// `CU_EVENT_BLOCKING_SYNC`.
const EVENT_SLEEPS: u32 = 1;

/// Makes `copy`, whose direction is known; its bytes are there then.
///
/// # Errors
/// Why it is to be made in another way, from the start.
pub(crate) fn copy(driver: &Driver, copy: Copy, device: i32) -> Result<(), DriverReason> {
    if !driver::on_device(driver, copy.there(), copy.bytes, device) {
        return Err(DriverReason::NotOnGpu);
    }
    let host = copy.host().addr();
    let lease = pins::lease(driver, copy.host(), copy.bytes).ok_or(DriverReason::OtherMemory)?;
    // Less than a page before and behind is ordinary memory.
    let (before, pages) = (lease.pages.start - host, lease.pages.len());
    let parts = [(0, before), (before, pages), (before + pages, copy.bytes - before - pages)];
    let mut status = SUCCESS;
    for (at, bytes) in parts {
        if bytes > 0 && status == SUCCESS {
            status = queue(driver, part(copy, at, bytes));
        }
    }
    // Whatever was queued uses the memory until it has ended.
    let waited = wait(driver, copy);
    drop(lease);
    if status == SUCCESS && waited == SUCCESS { Ok(()) } else { Err(DriverReason::Failed) }
}

fn part(copy: Copy, at: usize, bytes: usize) -> Copy {
    Copy { to: copy.to + at as DevicePtr, from: copy.from + at as DevicePtr, bytes, ..copy }
}

fn queue(driver: &Driver, copy: Copy) -> Status {
    let stream = driver::handle(copy.stream);
    if copy.towards != Towards::Out {
        // SAFETY: a part of the caller's copy, in the caller's stream.
        return unsafe { (driver.cuMemcpyHtoDAsync_v2)(copy.there(), copy.host(), copy.bytes, stream) };
    }
    let chunk = attention::options().chunk.map(|chunk| chunks::chunk_bytes(chunk.0 as usize, copy.bytes));
    let context = chunk.filter(|chunk| copy.bytes > *chunk).and_then(|_| context::current(driver));
    if let (Some(chunk), Some(context)) = (chunk, context.filter(|context| context.writes_values())) {
        return chunks::copy(driver, &context, copy, chunk);
    }
    // SAFETY: a part of the caller's copy, in the caller's stream.
    unsafe { (driver.cuMemcpyDtoHAsync_v2)(copy.host(), copy.there(), copy.bytes, stream) }
}

/// Waits for what was queued, and for nothing that is queued behind it.
fn wait(driver: &Driver, copy: Copy) -> Status {
    let sleeps = if copy.bytes >= SLEEPS_MIN { EVENT_SLEEPS } else { 0 };
    let mut event = std::ptr::null_mut();
    // SAFETY: `event` is valid for the call to write; event and stream are of the current context.
    unsafe {
        let created = (driver.cuEventCreate)(&raw mut event, driver::EVENT_WITHOUT_TIME | sleeps);
        if created != SUCCESS {
            return driver::synchronize(driver, copy.stream);
        }
        let recorded = (driver.cuEventRecord)(event, driver::handle(copy.stream));
        let waited = if recorded == SUCCESS {
            (driver.cuEventSynchronize)(event)
        } else {
            driver::synchronize(driver, copy.stream)
        };
        (driver.cuEventDestroy_v2)(event);
        if recorded == SUCCESS { waited } else { recorded }
    }
}
