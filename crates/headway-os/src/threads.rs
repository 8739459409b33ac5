//! Threads that leave a program's signals to the program's own threads.
//!
//! The kernel gives a signal of the process to any thread that does not block it. A thread that the program knows nothing of would
//! run its handlers, or end it, while the program's own threads block the signal.

use std::io;
use std::mem::MaybeUninit;
use std::thread::{Builder, JoinHandle};

/// A thread's own faults. While one of these is blocked, the fault ends the process without its handler.
const FAULTS: [libc::c_int; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Starts a thread that takes no signals but its own faults.
///
/// # Errors
/// What the system says when it gives no thread.
pub fn spawn<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    without_signals(|| Builder::new().name(name.to_owned()).spawn(work))
}

/// Runs `start`, which starts threads: they take no signals but their own faults. The calling thread takes its signals when `start`
/// has returned.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let _restored = Mask::without_signals();
    start()
}

/// The mask that the calling thread had, set again when dropped.
pub(crate) struct Mask(libc::sigset_t);

impl Mask {
    pub(crate) fn without_signals() -> Self {
        let mut blocked = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the first call initialises `blocked`, and the last one `before`, since its arguments are valid.
        unsafe {
            libc::sigfillset(blocked.as_mut_ptr());
            for fault in FAULTS {
                libc::sigdelset(blocked.as_mut_ptr(), fault);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, blocked.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }
}

impl Drop for Mask {
    fn drop(&mut self) {
        // SAFETY: the mask is the one that this thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Signals that the calling thread blocks.
    fn blocked() -> Vec<libc::c_int> {
        let mut now = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the call only asks; it initialises `now`, which is read then.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), now.as_mut_ptr());
            (1..libc::SIGRTMAX()).filter(|signal| libc::sigismember(now.as_ptr(), *signal) == 1).collect()
        }
    }

    #[test]
    fn a_thread_blocks_every_signal_but_its_own_faults_and_its_parent_what_it_blocked_before() {
        let before = blocked();
        let inside = spawn("test", blocked).unwrap().join().unwrap();
        for signal in
            [libc::SIGHUP, libc::SIGINT, libc::SIGALRM, libc::SIGCHLD, libc::SIGUSR1, libc::SIGTERM, libc::SIGXFSZ]
        {
            assert!(inside.contains(&signal), "{signal}: {inside:?}");
        }
        assert!(FAULTS.iter().all(|fault| !inside.contains(fault)), "{inside:?}");
        assert_eq!(blocked(), before);
        let panics = std::panic::catch_unwind(|| without_signals(|| panic!("while a thread is started")));
        assert!(panics.is_err());
        assert_eq!(blocked(), before);
    }
}
