//! Memory of a GPU that somebody else allocated.

use std::ptr::without_provenance_mut;
use std::sync::Arc;

use headway_device::buffer::{Budget, Memory, MemoryPlace, lend_memory};
use headway_device::{Buffer, DeviceError};

use crate::driver::table::Address;
use crate::owned::Context;

/// Has `body` use such memory of the context's GPU as a buffer; returns when nothing uses it any more.
///
/// # Safety
/// `bytes` bytes from `address` on are mapped memory of that GPU until this returns; who else uses them meanwhile keeps to the rules
/// of spans.
pub(crate) unsafe fn lend<R>(
    context: &Arc<Context>,
    budget: &Arc<Budget>,
    address: Address,
    bytes: usize,
    body: impl FnOnce(&Buffer) -> R,
) -> Result<R, DeviceError> {
    let reservation = budget.reserve(1, 0, 0)?;
    Ok(lend_memory(ForeignMemory { context: Arc::clone(context), address, bytes }, reservation, body))
}

struct ForeignMemory {
    context: Arc<Context>,
    address: Address,
    bytes: usize,
}

// SAFETY: by the promise to `lend`; device memory holds some bytes always; the three answers come from fields that never change.
unsafe impl Memory for ForeignMemory {
    fn base(&self) -> *mut u8 {
        without_provenance_mut(self.address as usize)
    }
    fn bytes(&self) -> usize {
        self.bytes
    }
    fn place(&self) -> MemoryPlace {
        MemoryPlace::Device { id: self.context.id, domain: self.context.driver.domain }
    }
}
