//! Mappings of a GPU's memory stay with the process that made them ([`Home`]).

use std::ptr::without_provenance_mut;

pub(crate) use headway_os::fork::Home;
use headway_os::memory::page_bytes;

/// Leaves the pages of a mapping out of the memory of children: a stray access there ends the child, not the GPU's data.
///
/// # Safety
/// The pages that `base` and `bytes` touch belong to one mapping that holds nothing else.
pub(crate) unsafe fn keep_from_children(base: *mut u8, bytes: usize) {
    let page = page_bytes();
    let start = base.addr() / page * page;
    let length = (base.addr() + bytes).next_multiple_of(page) - start;
    // SAFETY: the caller's promise. A refusal changes nothing.
    let _ = unsafe { libc::madvise(without_provenance_mut(start), length, libc::MADV_DONTFORK) };
}
