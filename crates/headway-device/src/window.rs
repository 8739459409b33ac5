//! Device memory that the CPU reads and writes by itself.

use headway_core::models::transfer::WindowMapping;

/// Mapped device memory. Offsets count from the start of the buffer.
///
/// # Safety
/// Implementations write no byte outside the range they are given, read none outside the 64-byte lines that it lies in, and make
/// stores visible to later work of the device before `store` returns (for posted stores: before any later doorbell or flag
/// store of the same thread).
pub unsafe trait Window: Send + Sync {
    /// The form.
    fn mapping(&self) -> WindowMapping;
    /// Stores `from` at `at`; posted: returns when the CPU has handed the bytes over.
    ///
    /// # Safety
    /// `at + from.len()` lies within the memory, and nobody else uses these bytes meanwhile.
    unsafe fn store(&self, at: usize, from: &[u8]);
    /// Loads from `at` into `to`.
    ///
    /// # Safety
    /// The caller keeps the promise of `store`; nobody writes these bytes meanwhile.
    unsafe fn load(&self, at: usize, to: &mut [u8]);
}
