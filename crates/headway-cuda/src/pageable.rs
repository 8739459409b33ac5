//! The driver's own copies of ordinary memory.

use std::ptr::null_mut;

use headway_device::DeviceError;

use crate::driver::call;
use crate::driver::table::Address;
use crate::owned::{Context, CopyKind};

/// The driver's own synchronous copy between any host memory and this device, complete when this returns.
///
/// # Safety
/// Both ends must be valid for `bytes` bytes, the destination unused by others, and `kind` one of the two host directions.
pub(crate) unsafe fn copy_pageable(
    context: &Context,
    kind: CopyKind<'_>,
    from: *mut u8,
    to: *mut u8,
    bytes: usize,
) -> Result<(), DeviceError> {
    context.bind()?;
    if bytes == 0 {
        return Ok(());
    }
    let driver = &context.driver;
    // SAFETY: the caller's promise; the context is current.
    let copied = unsafe {
        if matches!(kind, CopyKind::DeviceToHost) {
            call!(driver, cuMemcpyDtoH_v2(to.cast(), from.addr() as Address, bytes))
        } else {
            call!(driver, cuMemcpyHtoD_v2(to.addr() as Address, from.cast(), bytes))
        }
    };
    let copied = context.note(copied).and_then(|()| {
        if matches!(kind, CopyKind::DeviceToHost) {
            return Ok(());
        }
        // CUDA driver API, "API synchronization behavior": from pageable memory the call may return when the bytes are staged.
        // SAFETY: null names the default stream, in which the call above runs.
        context.note(unsafe { call!(driver, cuStreamSynchronize(null_mut())) })
    });
    if copied.is_err() {
        // The memory is the caller's again when this returns.
        context.settle();
    }
    copied
}
