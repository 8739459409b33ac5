//! Which process something belongs to: threads, mappings and handles of a GPU are dead in a forked child.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Once, OnceLock};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::memory::page_bytes;

/// The process that something was made in. To ask whether it is still this one costs two loads and no system call.
///
/// A child that shares its parent's memory, as one of `vfork` does, counts as the parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home(u32);

impl Home {
    /// This process.
    #[must_use]
    pub fn here() -> Self {
        /// The last number that a process was given, here or in a parent.
        static LAST: AtomicU32 = AtomicU32::new(0);
        let number = number();
        let known = number.load(Ordering::Relaxed);
        if known != 0 {
            return Self(known);
        }
        let new = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        Self(number.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed).err().unwrap_or(new))
    }

    /// Whether this is still that process.
    #[must_use]
    #[inline]
    pub fn is_here(self) -> bool {
        self.0 == number().load(Ordering::Relaxed)
    }
}

/// This process's number, from 1 on; 0 until [`Home::here`] is called in it. The kernel clears it in every child with memory of its own,
/// also in one that the C library knows nothing of (`clone`). For kernels that cannot (before 4.14) the C library does, after `fork`.
fn number() -> &'static AtomicU32 {
    static NUMBER: OnceLock<&'static AtomicU32> = OnceLock::new();
    NUMBER.get_or_init(|| {
        static WITHOUT_A_PAGE: AtomicU32 = AtomicU32::new(0);
        unsafe extern "C" fn in_the_child() {
            number().store(0, Ordering::Relaxed);
        }
        // SAFETY: the handler only stores to an atomic, which is allowed between `fork` and `exec`. A refusal (no memory) leaves the
        // check to the kernel.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, which is never unmapped.
        let page = unsafe { mmap_anonymous(std::ptr::null_mut(), page_bytes(), rights, MapFlags::PRIVATE) };
        let Ok(page) = page else { return &WITHOUT_A_PAGE };
        // SAFETY: the page is ours.
        let _ = unsafe { madvise(page, page_bytes(), Advice::LinuxWipeOnFork) };
        // SAFETY: the page is mapped for good, is aligned, and begins as zeros.
        unsafe { &*page.cast::<AtomicU32>() }
    })
}

/// Whether `body` says yes in a forked child, within a minute. For tests only. Of the parent's threads the child has the calling one
/// alone, and a lock that another thread had stays locked. The process's panic hook is wrapped, for good.
#[must_use]
pub fn holds_in_a_child(body: impl FnOnce() -> bool) -> bool {
    /// For a child that hangs.
    const SECONDS: libc::c_uint = 60;
    report_panics_of_children();
    // SAFETY: what the child may do is the caller's matter; it ends below.
    let child = unsafe { libc::fork() };
    if child == 0 {
        IN_A_CHILD.store(true, Ordering::Relaxed);
        // SAFETY: ends the child by a signal when the time is over.
        unsafe { libc::alarm(SECONDS) };
        let holds = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(false);
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(i32::from(!holds)) };
    }
    let Some(child) = Pid::from_raw(child).filter(|_| child > 0) else { return false };
    let ended = waitpid(Some(child), WaitOptions::empty());
    matches!(ended, Ok(Some((_, status))) if status.exit_status() == Some(0))
}

/// Whether this process is a child of [`holds_in_a_child`].
static IN_A_CHILD: AtomicBool = AtomicBool::new(false);

/// In a child, the usual hook would wait for the lock on standard error, which a thread of the parent may have had. Our hook is set in the
/// parent: a child that sets it would wait for the lock that any thread of the parent holds while it panics.
fn report_panics_of_children() {
    static SET: Once = Once::new();
    SET.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !IN_A_CHILD.load(Ordering::Relaxed) {
                return usual(panic);
            }
            let text = format!("in a forked child: {panic}\n");
            let _ = rustix::io::write(std::io::stderr(), text.as_bytes());
        }));
    });
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::sync::{Mutex, mpsc};

    use super::*;

    #[test]
    fn a_forked_child_is_not_at_home() {
        let home = Home::here();
        assert!(home.is_here());
        assert!(holds_in_a_child(|| !home.is_here() && Home::here().is_here()));
        assert!(home.is_here());
    }

    #[test]
    fn a_child_that_the_c_library_knows_nothing_of_is_not_at_home() {
        let home = Home::here();
        // SAFETY: a child with memory of its own, which asks and ends.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as libc::pid_t;
        if child == 0 {
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(i32::from(home.is_here() || !Home::here().is_here() || home.is_here())) };
        }
        let (_, status) = waitpid(Pid::from_raw(child), WaitOptions::empty()).unwrap().unwrap();
        assert_eq!(status.exit_status(), Some(0));
        assert!(home.is_here());
    }

    #[test]
    fn a_child_that_says_no_or_panics_is_told_from_one_that_says_yes() {
        assert!(holds_in_a_child(|| true));
        assert!(!holds_in_a_child(|| false));
        assert!(!holds_in_a_child(|| panic!("in the child")));
    }

    /// A panic holds the lock on the hook while it writes its message.
    #[test]
    fn a_child_is_not_stuck_where_another_thread_panics_at_the_fork() {
        struct Message(mpsc::SyncSender<()>, Mutex<mpsc::Receiver<()>>);
        impl fmt::Display for Message {
            fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
                let _ = self.0.send(());
                let _ = self.1.lock().map(|go_on| go_on.recv());
                Ok(())
            }
        }
        let ((begun, began), (go_on, waits)) = (mpsc::sync_channel(9), mpsc::sync_channel(9));
        let message = Message(begun, Mutex::new(waits));
        assert!(holds_in_a_child(|| true), "the hook is set now");
        let panics = std::thread::spawn(move || panic!("{message}"));
        began.recv().unwrap();
        let (holds, panicked) = (holds_in_a_child(|| true), holds_in_a_child(|| panic!("beside another panic")));
        drop(go_on);
        assert!(holds && !panicked);
        assert!(panics.join().is_err());
    }
}
