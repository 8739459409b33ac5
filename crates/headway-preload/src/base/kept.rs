//! What of the calling thread is after a call of this library as it was before.

use std::ffi::c_int;

/// `PTHREAD_CANCEL_DISABLE`.
const CANNOT_BE_CANCELLED: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// `errno`, which waits of Headway's own set, and whether the thread may be cancelled: that would unwind frames that cannot be unwound. A
/// thread that was cancelled meanwhile ends at its next cancellation point.
pub(crate) struct KeptThread {
    errno: c_int,
    may_be_cancelled: c_int,
}

impl KeptThread {
    pub(crate) fn now() -> Self {
        let mut may_be_cancelled = 0;
        // SAFETY: `pthread_setcancelstate` writes the former state into `may_be_cancelled`. `__errno_location` gives the address of the
        // calling thread's own `errno`.
        unsafe {
            pthread_setcancelstate(CANNOT_BE_CANCELLED, &raw mut may_be_cancelled);
            Self { errno: *libc::__errno_location(), may_be_cancelled }
        }
    }
}

impl Drop for KeptThread {
    fn drop(&mut self) {
        // SAFETY: a null pointer asks for no former state. The address is that of the calling thread's own `errno`.
        unsafe {
            pthread_setcancelstate(self.may_be_cancelled, std::ptr::null_mut());
            *libc::__errno_location() = self.errno;
        }
    }
}
