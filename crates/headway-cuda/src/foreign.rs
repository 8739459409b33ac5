//! Memory of a GPU that somebody else allocated.

use std::ptr::without_provenance_mut;
use std::sync::Arc;

use headway_device::buffer::{Memory, MemoryPlace};

use crate::driver::table::Address;
use crate::owned::Context;

/// Memory of a GPU that somebody else allocated, and frees.
pub(crate) struct ForeignMemory {
    context: Arc<Context>,
    address: Address,
    bytes: usize,
}

impl ForeignMemory {
    /// # Safety
    /// `bytes` bytes from `address` on are mapped memory of the context's GPU for as long as the value lives; who else uses
    /// them meanwhile keeps to the rules of spans.
    pub(crate) unsafe fn new(context: &Arc<Context>, address: Address, bytes: usize) -> Self {
        Self { context: Arc::clone(context), address, bytes }
    }
}

// SAFETY: by the promise to `new`; device memory holds some bytes always; the three answers come from fields that never change.
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
