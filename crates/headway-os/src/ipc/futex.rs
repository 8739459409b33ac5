//! Sleeping on a word of shared memory until somebody changes it.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::Timespec;
use rustix::thread::futex::{self, Flags};

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
    let bound = bound.map(|bound| Timespec {
        tv_sec: i64::try_from(bound.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: bound.subsec_nanos().into(),
    });
    match futex::wait(word, Flags::empty(), expected, bound.as_ref()) {
        Err(Errno::TIMEDOUT) => Woken::TimedOut,
        Err(Errno::AGAIN) => Woken::Changed,
        _ => Woken::Called,
    }
}

/// Wakes at most `sleepers` that wait on `word`, in any process; how many there were.
pub fn wake(word: &AtomicU32, sleepers: u32) -> u32 {
    futex::wake(word, Flags::empty(), sleepers.min(i32::MAX as u32)).map_or(0, |woken| woken as u32)
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
