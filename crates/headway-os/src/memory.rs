//! How much memory there is, how much of it may be locked, and mappings.

mod mapping;
mod present;

use headway_core::units::Bytes;

use crate::errno::OsError;
use crate::limits;
pub(crate) use mapping::private_memory_file;
pub use mapping::{Mapping, MemoryFile, View, advise_huge, page_bytes, populate_read, touch, touch_read};
pub use present::mostly_absent;

/// What `RLIMIT_MEMLOCK` allows one process to lock (pin).
///
/// The NVIDIA driver pins on behalf of the process and is not held by it; staging memory locked with `mlock` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockLimit {
    /// No limit.
    Unlimited,
    /// At most this much.
    Limited(Bytes),
}

impl std::fmt::Display for LockLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unlimited => f.write_str("unlimited"),
            Self::Limited(bytes) => write!(f, "at most {bytes}"),
        }
    }
}

/// The limit on locked memory of this process.
///
/// # Errors
/// [`OsError`] when a sandbox forbids the question.
pub fn lock_limit() -> Result<LockLimit, OsError> {
    let limit = limits::soft(libc::RLIMIT_MEMLOCK).ok_or_else(|| OsError::last("getrlimit(RLIMIT_MEMLOCK)"))?;
    Ok(match limit {
        libc::RLIM_INFINITY => LockLimit::Unlimited,
        bytes => LockLimit::Limited(Bytes(bytes)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_reports_a_limit() {
        lock_limit().unwrap();
    }
}
