//! Waiting for many descriptors at once, and a descriptor that one process rings for another.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::errno::OsError;

/// Events taken at a time.
const EVENTS_MAX: usize = 64;

/// A descriptor that one process rings for another (`eventfd`). Nobody reads it: processes that share it share its flags, so one that
/// clears `O_NONBLOCK` could make the other's read wait for ever.
pub struct Bell(OwnedFd);

impl Bell {
    /// A silent bell.
    ///
    /// # Errors
    /// [`OsError`].
    pub fn new() -> Result<Self, OsError> {
        // SAFETY: the call touches no memory.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(OsError::last("eventfd"));
        }
        // SAFETY: the call has given this descriptor to us alone.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The bell behind a descriptor from elsewhere.
    #[must_use]
    pub fn open(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Rings. A bell that has rung too often to count rings already.
    pub fn ring(&self) {
        let one = 1u64;
        // SAFETY: eight bytes of `one` are read.
        let _ = unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A set of descriptors to wait for (`epoll`), each with a number of the caller's.
pub struct Poller(OwnedFd);

impl Poller {
    /// An empty set.
    ///
    /// # Errors
    /// [`OsError`].
    pub fn new() -> Result<Self, OsError> {
        // SAFETY: the call touches no memory.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(OsError::last("epoll_create1"));
        }
        // SAFETY: the call has given this descriptor to us alone.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Waits for `fd` to be readable or at its end, from now on.
    ///
    /// # Errors
    /// [`OsError`].
    pub fn add(&self, fd: BorrowedFd<'_>, number: u64) -> Result<(), OsError> {
        self.watch(fd, number, libc::EPOLLIN)
    }

    /// Waits for rings of `bell`, from now on. A wait that ends tells of all rings until then.
    ///
    /// # Errors
    /// [`OsError`].
    pub fn add_bell(&self, bell: &Bell, number: u64) -> Result<(), OsError> {
        self.watch(bell.as_fd(), number, libc::EPOLLIN | libc::EPOLLET)
    }

    fn watch(&self, fd: BorrowedFd<'_>, number: u64, events: libc::c_int) -> Result<(), OsError> {
        let mut event = libc::epoll_event { events: events as u32, u64: number };
        // SAFETY: `event` is valid for reads; both descriptors are open.
        let status =
            unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &raw mut event) };
        if status == 0 { Ok(()) } else { Err(OsError::last("epoll_ctl")) }
    }

    /// Waits no longer for `fd`. To be called before it is closed.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        // SAFETY: no event is read; a descriptor that is not in the set is refused by the kernel.
        let _ =
            unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_DEL, fd.as_raw_fd(), std::ptr::null_mut()) };
    }

    /// Writes the numbers of readable descriptors to `ready`; waits for the first one for at most `bound`, rounded up to
    /// milliseconds.
    ///
    /// # Errors
    /// [`OsError`]. A signal ends the wait without one.
    pub fn wait(&self, bound: Option<Duration>, ready: &mut Vec<u64>) -> Result<(), OsError> {
        ready.clear();
        let millis = bound.map_or(-1, |bound| {
            libc::c_int::try_from(bound.as_nanos().div_ceil(1_000_000)).unwrap_or(libc::c_int::MAX)
        });
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        // SAFETY: at most as many events are written as `events` holds.
        let count =
            unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), EVENTS_MAX as libc::c_int, millis) };
        if count < 0 {
            let error = OsError::last("epoll_wait");
            return if error.errno.0 == libc::EINTR { Ok(()) } else { Err(error) };
        }
        ready.extend(events.iter().take(usize::try_from(count).unwrap_or(0)).map(|event| event.u64));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_is_heard_once_for_all_rings_before() {
        let (poller, bell, mut ready) = (Poller::new().unwrap(), Bell::new().unwrap(), Vec::new());
        poller.add_bell(&bell, 42).unwrap();
        let mut heard = || {
            poller.wait(Some(Duration::ZERO), &mut ready).unwrap();
            ready.clone()
        };
        assert!(heard().is_empty());
        bell.ring();
        bell.ring();
        assert_eq!(heard(), [42]);
        assert!(heard().is_empty());
        bell.ring();
        assert_eq!(heard(), [42]);
        bell.ring();
        poller.remove(bell.as_fd());
        assert!(heard().is_empty());
    }
}
