//! Which process something belongs to: mappings and handles of a GPU are dead in a forked child.

use std::ptr::without_provenance_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use headway_os::memory::page_bytes;

/// Forks between the first process and this one, since the first [`Home`].
static FORKS: AtomicU32 = AtomicU32::new(0);
static WATCH: Once = Once::new();

/// The process that something was made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Home(u32);

impl Home {
    /// This process.
    pub(crate) fn here() -> Self {
        WATCH.call_once(|| {
            // SAFETY: the handler only adds to an atomic, which is allowed between `fork` and `exec`. A refusal (no memory)
            // leaves the check without effect; `keep_from_children` keeps mappings from children too.
            let _ = unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this is still that process.
    pub(crate) fn is_here(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

unsafe extern "C" fn in_the_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_is_not_at_home() {
        let home = Home::here();
        assert!(home.is_here());
        // SAFETY: the child only reads an atomic and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = i32::from(home.is_here());
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
        assert!(home.is_here());
    }
}
