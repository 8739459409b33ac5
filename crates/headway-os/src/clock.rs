//! The clock of every wall-time driver: `CLOCK_MONOTONIC`, in nanoseconds.

use headway_core::units::{NANOS_PER_SECOND, Nanos};
use rustix::thread::{ClockId, Timespec, clock_nanosleep_absolute};

/// The time now; never decreases, and means nothing outside this boot.
#[must_use]
pub fn now() -> Nanos {
    read(libc::CLOCK_MONOTONIC)
}

/// CPU time that this process has used, on all its threads.
#[must_use]
pub fn cpu_time() -> Nanos {
    read(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU time that the calling thread has used.
#[must_use]
pub fn thread_cpu_time() -> Nanos {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn read(clock: libc::clockid_t) -> Nanos {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid `timespec` for the call to write.
    let status = unsafe { libc::clock_gettime(clock, &raw mut time) };
    assert_eq!(status, 0, "Linux always has these clocks");
    Nanos((time.tv_sec as u64).saturating_mul(NANOS_PER_SECOND).saturating_add(time.tv_nsec as u64))
}

/// Sleeps until `now() >= time`; returns at once when that has passed.
///
/// An absolute sleep: being interrupted or preempted before the call does not lengthen it. Later by the thread's timer
/// slack (see [`crate::sched::lower_timer_slack`]) and by scheduling.
pub fn sleep_until(time: Nanos) {
    let Ok(tv_sec) = i64::try_from(time.0 / NANOS_PER_SECOND) else { return };
    let until = Timespec { tv_sec, tv_nsec: (time.0 % NANOS_PER_SECOND).cast_signed() };
    while now() < time {
        let _ = clock_nanosleep_absolute(ClockId::Monotonic, &until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeping_ends_at_the_time_or_later() {
        let time = now().saturating_add(Nanos(200_000));
        sleep_until(time);
        assert!(now() >= time);
    }

    #[test]
    fn cpu_time_grows_with_work_and_the_process_has_used_what_its_threads_have() {
        let start = thread_cpu_time();
        while thread_cpu_time() == start {}
        assert!(cpu_time() >= thread_cpu_time().saturating_sub(start));
        let process = cpu_time();
        std::thread::spawn(move || while cpu_time() == process {}).join().unwrap();
    }

    #[test]
    fn a_time_in_the_past_returns_at_once() {
        sleep_until(Nanos::ZERO);
        sleep_until(now());
    }
}
