//! Waiting for many descriptors at once, and a descriptor that one process rings for another.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::{Errno, write};

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
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        eventfd(0, flags).map(Self).map_err(OsError::of("eventfd"))
    }

    /// The bell behind a descriptor from elsewhere.
    #[must_use]
    pub fn open(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Rings. A bell that has rung too often to count rings already.
    pub fn ring(&self) {
        let _ = write(&self.0, &1u64.to_ne_bytes());
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
        epoll::create(CreateFlags::CLOEXEC).map(Self).map_err(OsError::of("epoll_create1"))
    }

    /// Waits for `fd` to be readable or at its end, from now on.
    ///
    /// # Errors
    /// [`OsError`].
    pub fn add(&self, fd: BorrowedFd<'_>, number: u64) -> Result<(), OsError> {
        self.watch(fd, number, EventFlags::IN)
    }

    /// Waits until `fd` takes bytes or is at its end, from now on.
    ///
    /// # Errors
    /// [`OsError`].
    pub fn add_writable(&self, fd: BorrowedFd<'_>, number: u64) -> Result<(), OsError> {
        self.watch(fd, number, EventFlags::OUT)
    }

    /// Waits for rings of `bell`, from now on. A wait that ends tells of all rings until then.
    ///
    /// # Errors
    /// [`OsError`].
    pub fn add_bell(&self, bell: &Bell, number: u64) -> Result<(), OsError> {
        self.watch(bell.as_fd(), number, EventFlags::IN | EventFlags::ET)
    }

    fn watch(&self, fd: BorrowedFd<'_>, number: u64, events: EventFlags) -> Result<(), OsError> {
        epoll::add(&self.0, fd, EventData::new_u64(number), events).map_err(OsError::of("epoll_ctl"))
    }

    /// Waits no longer for `fd`. To be called before it is closed.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        // The kernel refuses a descriptor that is not in the set.
        let _ = epoll::delete(&self.0, fd);
    }

    /// Writes the numbers of descriptors that are ready to `ready`; waits for the first one for at most `bound`, rounded up to
    /// milliseconds.
    ///
    /// # Errors
    /// [`OsError`]. A signal ends the wait without one.
    pub fn wait(&self, bound: Option<Duration>, ready: &mut Vec<u64>) -> Result<(), OsError> {
        ready.clear();
        let bound = bound.map(timespec);
        let mut events = [MaybeUninit::<Event>::uninit(); EVENTS_MAX];
        match epoll::wait(&self.0, &mut events, bound.as_ref()) {
            Ok((events, _)) => ready.extend(events.iter().map(|event| event.data.u64())),
            Err(Errno::INTR) => {}
            Err(error) => return Err(OsError::of("epoll_wait")(error)),
        }
        Ok(())
    }
}

/// `bound` for the kernel, which has no bounds longer than `i32::MAX` milliseconds everywhere.
pub(super) fn timespec(bound: Duration) -> Timespec {
    let bound = bound.min(Duration::from_millis(i32::MAX as u64));
    Timespec { tv_sec: bound.as_secs().cast_signed(), tv_nsec: bound.subsec_nanos().into() }
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
