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
    soft(libc::RLIMIT_FSIZE).unwrap_or(u64::MAX)
}

/// Refuses a stack on which an ordinary program overflows (`ulimit -s`), with what to do.
///
/// # Errors
/// The text of the error.
pub fn check_stack() -> Result<(), String> {
    const STACK_MIN: u64 = 1 << 20;
    match soft(libc::RLIMIT_STACK) {
        Some(bytes) if bytes < STACK_MIN => {
            Err(format!("the limit of the stack is {} KiB, and 1024 KiB are needed: `ulimit -s 8192`", bytes >> 10))
        }
        _ => Ok(()),
    }
}

/// The soft limit on `resource`; `None` where a sandbox forbids the question.
pub(crate) fn soft(resource: libc::__rlimit_resource_t) -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for the call to write.
    let status = unsafe { libc::getrlimit(resource, &raw mut limit) };
    (status == 0).then_some(limit.rlim_cur)
}
