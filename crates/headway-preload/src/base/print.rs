//! Lines on standard error.

use std::mem::MaybeUninit;

/// Prints on standard error, by one call.
pub(crate) fn print(text: &str) {
    print_bytes(text.as_bytes());
}

/// Prints on standard error in a signal handler. Standard error may be a pipe that nobody reads any more, or a file that may not grow: the program gets no
/// signal for that.
pub(crate) fn print_bytes(text: &[u8]) {
    let mut broken = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    let mut pending = MaybeUninit::<libc::sigset_t>::uninit();
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the first calls initialise the sets, which the others read; the bytes are initialised.
    unsafe {
        libc::sigemptyset(broken.as_mut_ptr());
        libc::sigaddset(broken.as_mut_ptr(), libc::SIGPIPE);
        libc::sigaddset(broken.as_mut_ptr(), libc::SIGXFSZ);
        libc::sigemptyset(pending.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, broken.as_ptr(), before.as_mut_ptr());
        libc::sigpending(pending.as_mut_ptr());
        let is_own =
            [libc::SIGPIPE, libc::SIGXFSZ].iter().all(|signal| libc::sigismember(pending.as_ptr(), *signal) == 0);
        let written = libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len());
        if written < 0 && is_own {
            libc::sigtimedwait(broken.as_ptr(), std::ptr::null_mut(), &raw const at_once);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
    }
}
