//! Error numbers with their names.

use std::fmt;

/// An error number of the system, shown with its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// The number of the last failed call of this thread.
    #[must_use]
    pub(crate) fn last() -> Self {
        Self(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// The symbolic name, for example `EPERM`; `None` for numbers that the calls used here do not give.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            libc::EPERM => "EPERM",
            libc::ENOENT => "ENOENT",
            libc::ESRCH => "ESRCH",
            libc::EINTR => "EINTR",
            libc::EIO => "EIO",
            libc::E2BIG => "E2BIG",
            libc::EAGAIN => "EAGAIN",
            libc::ENOMEM => "ENOMEM",
            libc::EACCES => "EACCES",
            libc::EFAULT => "EFAULT",
            libc::EBUSY => "EBUSY",
            libc::ENODEV => "ENODEV",
            libc::EINVAL => "EINVAL",
            libc::ENFILE => "ENFILE",
            libc::EMFILE => "EMFILE",
            libc::ENOSPC => "ENOSPC",
            libc::EROFS => "EROFS",
            libc::ELOOP => "ELOOP",
            libc::ENOTSOCK => "ENOTSOCK",
            libc::EMSGSIZE => "EMSGSIZE",
            libc::EPROTOTYPE => "EPROTOTYPE",
            libc::ECONNRESET => "ECONNRESET",
            libc::ENOBUFS => "ENOBUFS",
            libc::EPIPE => "EPIPE",
            libc::EADDRINUSE => "EADDRINUSE",
            libc::ECONNREFUSED => "ECONNREFUSED",
            libc::ENAMETOOLONG => "ENAMETOOLONG",
            libc::ENOSYS => "ENOSYS",
            libc::EOPNOTSUPP => "EOPNOTSUPP",
            _ => return None,
        })
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name}"),
            None => write!(f, "errno {}", self.0),
        }
    }
}

/// A system call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed with {errno}")]
pub struct OsError {
    pub call: &'static str,
    pub errno: Errno,
}

impl OsError {
    pub(crate) fn last(call: &'static str) -> Self {
        Self { call, errno: Errno::last() }
    }

    /// The error of a `call` through the crate `rustix`.
    pub(crate) fn of(call: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |errno| Self { call, errno: Errno(errno.raw_os_error()) }
    }
}
