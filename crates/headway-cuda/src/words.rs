//! Words in page-locked memory that streams write and wait for. The context must be current.

use std::ffi::c_uint;

use headway_device::DeviceError;

use crate::driver::table::{self, Address, Handle};
use crate::owned::Context;

/// Fails where the driver's streams cannot write words and wait for them.
pub(crate) fn check(context: &Context) -> Result<(), DeviceError> {
    let table = &context.driver.table;
    if table.cuStreamWaitValue32_v2.is_some() && table.cuStreamWriteValue32_v2.is_some() {
        return Ok(());
    }
    Err(unavailable())
}

fn unavailable() -> DeviceError {
    DeviceError::Unavailable {
        what: "copies in the order of a stream".into(),
        reason: "this driver's streams do not wait for words in memory".into(),
        remedy: "use a driver of CUDA 11.7 or later, or copies that return when the bytes are there".into(),
    }
}

/// Has a stream write `value` to a word once it has passed all before, behind a memory barrier.
///
/// # Safety
/// The word is page-locked, and nobody else's until the stream has passed this point.
pub(crate) unsafe fn write(context: &Context, stream: Handle, word: Address, value: u32) -> Result<(), DeviceError> {
    // Without flags the write comes after all earlier writes of the stream.
    // SAFETY: the caller's promise.
    unsafe { write_with(context, stream, word, value, 0) }
}

/// The same, as `flags` say.
///
/// # Safety
/// The caller keeps the promise of [`write`].
pub(crate) unsafe fn write_with(
    context: &Context,
    stream: Handle,
    word: Address,
    value: u32,
    flags: c_uint,
) -> Result<(), DeviceError> {
    let write = context.driver.table.cuStreamWriteValue32_v2.ok_or_else(unavailable)?;
    // SAFETY: the caller's promise.
    let code = unsafe { write(stream, word, value, flags) };
    context.note(context.driver.check("cuStreamWriteValue32_v2", code))
}

/// Has a stream write a zero to a word, behind a memory barrier; the context must be current. `false` = this driver or GPU does not have
/// it, and nothing is queued.
///
/// # Safety
/// The caller keeps the promise of [`write`].
pub(crate) unsafe fn try_write(context: &Context, stream: Handle, word: Address) -> Result<bool, DeviceError> {
    context.driver.here()?;
    // SAFETY: the caller's promise.
    match unsafe { write(context, stream, word, 0) } {
        Err(DeviceError::Unavailable { .. } | DeviceError::Driver { code: table::NOT_SUPPORTED, .. }) => Ok(false),
        written => written.map(|()| true),
    }
}

/// Has a stream wait for a word, as `flags` say.
///
/// # Safety
/// The word is page-locked and lives until the stream has passed this point.
pub(crate) unsafe fn wait(
    context: &Context,
    stream: Handle,
    word: Address,
    value: u32,
    flags: c_uint,
) -> Result<(), DeviceError> {
    let wait = context.driver.table.cuStreamWaitValue32_v2.ok_or_else(unavailable)?;
    // SAFETY: the caller's promise.
    let code = unsafe { wait(stream, word, value, flags) };
    context.note(context.driver.check("cuStreamWaitValue32_v2", code))
}
