//! Limits of this process beyond which the kernel sends it a signal.

/// How long a file may become by a write of this process. A write beyond it raises SIGXFSZ, which ends most programs.
#[must_use]
pub fn file_bytes_max() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for the call to write.
    let is_known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0;
    if is_known { limit.rlim_cur } else { u64::MAX }
}
