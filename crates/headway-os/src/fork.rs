//! Which process something belongs to: threads, mappings and handles of a GPU are dead in a forked child.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Forks between the first process and this one, since the first [`Home`].
static FORKS: AtomicU32 = AtomicU32::new(0);
static WATCH: Once = Once::new();

/// The process that something was made in. To ask whether it is still this one costs a load and no system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home(u32);

impl Home {
    /// This process.
    #[must_use]
    pub fn here() -> Self {
        WATCH.call_once(|| {
            // SAFETY: the handler only adds to an atomic, which is allowed between `fork` and `exec`. A refusal (no memory)
            // leaves the check without effect.
            let _ = unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this is still that process.
    #[must_use]
    #[inline]
    pub fn is_here(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

/// Whether `body` says yes in a forked child, within a minute; nothing else of the child is run. For tests: of the parent's threads
/// the child has only the calling one.
#[must_use]
pub fn holds_in_a_child(body: impl FnOnce() -> bool) -> bool {
    /// For a child that hangs.
    const SECONDS: libc::c_uint = 60;
    // SAFETY: what the child may do is the caller's matter; it ends below.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child by a signal when the time is over.
        unsafe { libc::alarm(SECONDS) };
        // The usual hook waits for locks that threads of the parent may hold, who are not here to give them back.
        std::panic::set_hook(Box::new(|panic| {
            let text = format!("in a forked child: {panic}\n");
            // SAFETY: reads the text, which is as long as it says.
            unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
        }));
        let holds = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(false);
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(i32::from(!holds)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above, if there is one.
    let ended = child > 0 && unsafe { libc::waitpid(child, &raw mut status, 0) } == child;
    ended && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

unsafe extern "C" fn in_the_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_is_not_at_home() {
        let home = Home::here();
        assert!(home.is_here());
        assert!(holds_in_a_child(|| !home.is_here() && Home::here().is_here()));
        assert!(home.is_here());
    }

    #[test]
    fn a_child_that_says_no_or_panics_is_told_from_one_that_says_yes() {
        assert!(holds_in_a_child(|| true));
        assert!(!holds_in_a_child(|| false));
        assert!(!holds_in_a_child(|| panic!("in the child")));
    }
}
