//! Whether the pages are there that small copies are written into: looking takes as long as such a copy, so that one of many looks,
//! and the others are taken to be alike.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use headway_os::memory;

/// One of so many looks.
const LOOK_EVERY: u32 = 16;

/// What copies of one GPU met.
#[derive(Default)]
pub(super) struct Pages {
    small: AtomicU32,
    /// Whether the small copy that looked last found its pages absent.
    were_absent: AtomicBool,
    large: AtomicU32,
}

impl Pages {
    /// Whether the pages of `memory`, the end of a small copy, are taken to be absent, and whether it is known.
    pub(super) fn of_small(&self, memory: &[u8]) -> (bool, bool) {
        if !self.small.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOK_EVERY) {
            return (self.were_absent.load(Ordering::Relaxed), false);
        }
        let absent = memory::mostly_absent(memory, 1);
        self.were_absent.store(absent, Ordering::Relaxed);
        (absent, true)
    }

    /// Whether it is a longer copy's turn to look.
    pub(super) fn are_due(&self) -> bool {
        self.large.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOK_EVERY)
    }
}
