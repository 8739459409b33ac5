//! `--pin-once`: copies of memory that Headway keeps page-locked, by the engine alone ([`pins`]).
//!
//! As for every copy of ordinary memory that Headway makes, the calling thread waits for the copy's stream first, and returns when the bytes are
//! there. The engine's part goes through a stream of Headway's own, so that a thread that holds a pin never waits for the program's queue: that queue may
//! wait for another thread, and that thread for the pin.

use std::sync::{Mutex, MutexGuard, PoisonError};

use headway_core::files::guest_log::{DriverReason, Towards};

use crate::base::copy::Copy;
use crate::base::driver::{self, Context, DevicePtr, Driver, Relaxed, SUCCESS, Status, Stream};
use crate::base::{attention, context, pins};
use crate::methods::chunks;

/// From this size on the calling thread sleeps until the copy is made; it takes some 300 us then.
const SLEEPS_MIN: usize = 16 << 20;
/// `CU_EVENT_BLOCKING_SYNC`, `CU_STREAM_NON_BLOCKING`.
const EVENT_SLEEPS: u32 = 1;
const STREAM_NON_BLOCKING: u32 = 1;

/// Headway's stream in each context.
static STREAMS: Mutex<Vec<(Context, Stream)>> = Mutex::new(Vec::new());

fn streams() -> MutexGuard<'static, Vec<(Context, Stream)>> {
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn own_stream(driver: &Driver) -> Option<Stream> {
    let context = driver::current_context(driver)?;
    let mut streams = streams();
    if let Some((_, stream)) = streams.iter().find(|(other, _)| *other == context) {
        return Some(*stream);
    }
    let mut handle = std::ptr::null_mut();
    // SAFETY: `handle` is valid for the call to write.
    if unsafe { (driver.cuStreamCreate)(&raw mut handle, STREAM_NON_BLOCKING) } != SUCCESS {
        return None;
    }
    streams.push((context, handle.expose_provenance()));
    Some(handle.addr())
}

/// The contexts are about to be destroyed, and what they have with them.
pub(crate) fn release_all() {
    pins::release_all();
    if attention::options().pin_once.0 == 0 || attention::is_off() {
        return;
    }
    let Some(driver) = driver::driver() else { return };
    let _relaxed = Relaxed::new(driver);
    let before = driver::current_context(driver);
    for (context, stream) in std::mem::take(&mut *streams()) {
        driver::make_current(driver, context);
        context::forget_stream(stream);
        // SAFETY: the stream is ours, and no copy uses it: the pins are gone.
        unsafe { (driver.cuStreamDestroy_v2)(driver::handle(stream)) };
    }
    driver::make_current(driver, before.unwrap_or_default());
}

/// Makes `copy`, whose direction is known; its bytes are there then.
///
/// # Errors
/// Why it is to be made in another way, from the start.
pub(crate) fn copy(driver: &Driver, copy: Copy, device: i32) -> Result<(), DriverReason> {
    if !driver::on_device(driver, copy.there(), copy.bytes, device) {
        return Err(DriverReason::NotOnGpu);
    }
    if !driver::wait(driver, copy.stream) {
        return Err(DriverReason::Failed);
    }
    // What may wait for kernels is there before the pin is taken.
    own_stream(driver).ok_or(DriverReason::OtherMemory)?;
    let chunk = attention::options().chunk.filter(|_| copy.towards == Towards::Out);
    let chunk = chunk.map(|chunk| chunks::chunk_bytes(chunk.0 as usize, copy.bytes));
    let context = chunk.and_then(|_| context::current(driver)).filter(|context| context.writes_values());
    let host = copy.host().addr();
    let lease = pins::lease(driver, copy.host(), copy.bytes).ok_or(DriverReason::OtherMemory)?;
    // Until now another thread could have it destroyed, with a context.
    let own = own_stream(driver).ok_or(DriverReason::OtherMemory)?;
    let (before, pages) = (lease.pages.start - host, lease.pages.len());
    let engine = Copy { stream: own, ..part(copy, before, pages) };
    let queued = match (chunk, &context) {
        (Some(chunk), Some(context)) if pages > chunk => chunks::copy(driver, context, engine, chunk),
        _ => queue(driver, engine),
    };
    // Whatever was queued uses the memory until it has ended.
    let waited = wait(driver, own, pages);
    drop(lease);
    let mut status = if queued == SUCCESS { waited } else { queued };
    // Less than a page before and behind is ordinary memory, of which the driver's copy may raise a signal.
    for (at, bytes) in [(0, before), (before + pages, copy.bytes - before - pages)] {
        if bytes > 0 && status == SUCCESS {
            status = queue(driver, part(copy, at, bytes));
        }
    }
    if status == SUCCESS { Ok(()) } else { Err(DriverReason::Failed) }
}

fn part(copy: Copy, at: usize, bytes: usize) -> Copy {
    Copy { to: copy.to + at as DevicePtr, from: copy.from + at as DevicePtr, bytes, ..copy }
}

fn queue(driver: &Driver, copy: Copy) -> Status {
    let stream = driver::handle(copy.stream);
    // SAFETY: a part of the caller's copy, whose stream has passed what was queued before.
    unsafe {
        if copy.towards == Towards::Out {
            (driver.cuMemcpyDtoHAsync_v2)(copy.host(), copy.there(), copy.bytes, stream)
        } else {
            (driver.cuMemcpyHtoDAsync_v2)(copy.there(), copy.host(), copy.bytes, stream)
        }
    }
}

/// Waits for what was queued.
fn wait(driver: &Driver, stream: Stream, bytes: usize) -> Status {
    let sleeps = if bytes >= SLEEPS_MIN { EVENT_SLEEPS } else { 0 };
    let mut event = std::ptr::null_mut();
    // SAFETY: `event` is valid for the call to write; event and stream are of the current context.
    unsafe {
        let is_recorded = (driver.cuEventCreate)(&raw mut event, driver::EVENT_WITHOUT_TIME | sleeps) == SUCCESS
            && (driver.cuEventRecord)(event, driver::handle(stream)) == SUCCESS;
        let status = if is_recorded { (driver.cuEventSynchronize)(event) } else { driver::synchronize(driver, stream) };
        if !event.is_null() {
            (driver.cuEventDestroy_v2)(event);
        }
        status
    }
}
