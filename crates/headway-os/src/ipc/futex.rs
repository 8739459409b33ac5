//! Sleeping on a word of shared memory until somebody changes it.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::errno::Errno;

/// Why a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// By [`wake`], or for no reason: look at the word.
    Called,
    /// The word had another value already.
    Changed,
    /// The time is over.
    TimedOut,
}

/// Sleeps while `word` has the value `expected`, for at most `bound`; spurious wake-ups happen.
///
/// The word may lie in memory that several processes map, and in a mapping that is only read.
#[must_use]
pub fn wait(word: &AtomicU32, expected: u32, bound: Option<Duration>) -> Woken {
    wait_at(word.as_ptr(), expected, bound)
}

pub(super) fn wait_at(word: *const u32, expected: u32, bound: Option<Duration>) -> Woken {
    let time = bound.map(|bound| libc::timespec {
        tv_sec: libc::time_t::try_from(bound.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(bound.subsec_nanos()),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `word` points into a live mapping or value, which the kernel reads; `time` is null or valid for reads.
    let status = unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, expected, time) };
    match (status, if status < 0 { Errno::last().0 } else { 0 }) {
        (_, libc::ETIMEDOUT) => Woken::TimedOut,
        (_, libc::EAGAIN) => Woken::Changed,
        _ => Woken::Called,
    }
}

/// Wakes at most `sleepers` that wait on `word`, in any process; how many there were.
pub fn wake(word: &AtomicU32, sleepers: u32) -> u32 {
    let sleepers = sleepers.min(i32::MAX as u32);
    // SAFETY: the kernel uses the address of `word` and does not access it.
    let woken = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, sleepers) };
    u32::try_from(woken).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn a_changed_word_does_not_let_sleep_and_a_bound_ends_the_wait() {
        let word = AtomicU32::new(3);
        assert_eq!(wait(&word, 2, None), Woken::Changed);
        assert_eq!(wait(&word, 3, Some(Duration::from_micros(50))), Woken::TimedOut);
        assert_eq!(wake(&word, 1), 0);
    }

    #[test]
    fn a_sleeper_is_woken() {
        let word = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while word.load(Ordering::Acquire) == 0 {
                    let _ = wait(&word, 0, None);
                }
            });
            word.store(1, Ordering::Release);
            wake(&word, u32::MAX);
        });
    }
}
