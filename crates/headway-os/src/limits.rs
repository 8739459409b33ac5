//! Limits of this process beyond which the kernel sends it a signal.

/// From now on a write beyond the limit of a file's size (`ulimit -f`) is an error (`EFBIG`), not a signal that ends the program. Programs
/// that this one starts inherit that.
pub fn ignore_file_size_signal() {
    // SAFETY: no handler of ours runs.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// How long a file may become by a write of this process. A write beyond it raises SIGXFSZ, which ends most programs.
#[must_use]
pub fn file_bytes_max() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for the call to write.
    let is_known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0;
    if is_known { limit.rlim_cur } else { u64::MAX }
}
