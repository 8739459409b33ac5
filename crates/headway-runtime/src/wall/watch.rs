//! How late the driver of a run would be on this host: a thread of its class that waits as it does, without devices.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use headway_core::models::cpu::{DriverWatch, RequestedClass, SchedulingClass};
use headway_core::units::Nanos;
use headway_os::sched::{Classes, Role};
use headway_os::{clock, threads};

use super::pace::Pace;

/// In turn the thread waits so long for a window that opens, and polls so long for an operation that ends.
const STEP: Nanos = Nanos(1_000_000);

/// The clock that a watch reads, and how it sleeps.
trait Host {
    fn now(&mut self) -> Nanos;
    /// Returns after `time` or later.
    fn sleep(&mut self, time: Nanos);
}

/// Sleeps as the driver does: it waits for messages.
struct Mailbox {
    messages: Receiver<()>,
    _open: Sender<()>,
}

impl Host for Mailbox {
    fn now(&mut self) -> Nanos {
        clock::now()
    }

    fn sleep(&mut self, time: Nanos) {
        // Nobody sends: the error is the timeout.
        let _ = self.messages.recv_timeout(Duration::from_nanos(time.0));
    }
}

/// Watches this host for `time` with a thread of the class that the driver of a run gets, which waits as a driver that spins for
/// `spin` before something is due. Ends early when `interrupt` is set.
#[must_use]
pub fn watch(spin: Nanos, time: Nanos, interrupt: &AtomicBool) -> DriverWatch {
    let watched = || {
        let held = Classes::new(RequestedClass::Auto).take(Role::Driver);
        let (sender, messages) = channel();
        let mut host = Mailbox { messages, _open: sender };
        observe(&mut host, Pace::new(held.class(), spin, Nanos::MAX), held.class(), time, interrupt)
    };
    std::thread::scope(|scope| {
        let thread = threads::without_signals(|| scope.spawn(watched));
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn observe(
    host: &mut impl Host,
    mut pace: Pace,
    class: SchedulingClass,
    time: Nanos,
    interrupt: &AtomicBool,
) -> DriverWatch {
    let begun = host.now();
    let end = begun.saturating_add(time);
    let mut now = begun;
    while now < end && !interrupt.load(Ordering::Relaxed) {
        let opens = now.saturating_add(STEP);
        while now < opens {
            let sleep = pace.sleep(opens, false, || now);
            now = pass(host, sleep);
            pace.woke(now);
        }
        // An operation may end right after the driver has looked: then it is noticed as late as the next look.
        let (ends, mut longest) = (now.saturating_add(STEP), Nanos::ZERO);
        while now < ends {
            let (before, sleep) = (now, pace.sleep(Nanos::MAX, true, || now));
            now = pass(host, sleep);
            longest = longest.max(now.saturating_sub(before));
        }
        pace.noticed(now, now.saturating_sub(longest));
    }
    let (woken, noticed) = pace.lateness();
    DriverWatch { time: now.saturating_sub(begun), class: class.to_string(), woken, noticed }
}

/// Sleeps for `time`, or spins once.
fn pass(host: &mut impl Host, time: Nanos) -> Nanos {
    if time == Nanos::ZERO {
        std::hint::spin_loop();
    } else {
        host.sleep(time);
    }
    host.now()
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Nanos = Nanos(50);
    const SPIN: Nanos = Nanos(200_000);

    /// A host on which each read of the clock takes [`READ`], a sleep ends 10 us late, and the CPU is taken away once.
    struct Recorded {
        now: Nanos,
        /// From when on, and for how long.
        stall: Option<(Nanos, Nanos)>,
        sleeps: Vec<Nanos>,
    }

    impl Recorded {
        fn advance(&mut self, time: Nanos) {
            self.now = self.now + time;
            if let Some((_, length)) = self.stall.take_if(|(from, _)| *from <= self.now) {
                self.now = self.now + length;
            }
        }
    }

    impl Host for Recorded {
        fn now(&mut self) -> Nanos {
            self.advance(READ);
            self.now
        }

        fn sleep(&mut self, time: Nanos) {
            self.sleeps.push(time);
            self.advance(time + Nanos(10_000));
        }
    }

    fn seen(class: SchedulingClass, stall: Option<(Nanos, Nanos)>) -> (DriverWatch, Vec<Nanos>) {
        let mut host = Recorded { now: Nanos(7), stall, sleeps: Vec::new() };
        let pace = Pace::new(class, SPIN, Nanos::MAX);
        let found = observe(&mut host, pace, class, Nanos(100_000_000), &AtomicBool::new(false));
        (found, host.sleeps)
    }

    #[test]
    fn a_quiet_host_is_late_by_a_read_of_its_clock_where_the_driver_spins() {
        let (found, sleeps) = seen(SchedulingClass::Nice { nice: -20 }, None);
        assert_eq!((found.woken.count, found.noticed.count), (50, 50));
        assert!(found.worst() <= READ, "{found:?}");
        assert!(sleeps.len() == 50 && sleeps.iter().all(|sleep| *sleep <= STEP), "{sleeps:?}");
        assert!(found.time >= Nanos(100_000_000) && found.class == "SCHED_OTHER nice -20");
    }

    #[test]
    fn a_driver_that_must_not_spin_naps_and_is_late_by_the_nap_and_its_wake_up() {
        let (found, _) = seen(SchedulingClass::Fifo { priority: 10 }, None);
        assert_eq!(found.noticed.max, Nanos(20_000 + 10_000) + READ);
        assert!(found.woken.max <= READ, "it wakes 20 us before: {found:?}");
    }

    #[test]
    fn one_late_wake_up_among_many_is_the_worst_that_was_seen() {
        // The thread sleeps from 50 ms to 50.8 ms, and spins from then on to 51 ms.
        let late = Nanos(4_460_000);
        let (found, _) = seen(SchedulingClass::Nice { nice: -20 }, Some((Nanos(50_300_000), late)));
        let spun = Nanos(190_000);
        assert!(found.woken.max >= late.saturating_sub(spun) && found.woken.max <= late, "{found:?}");
        assert!(found.woken.median <= READ && found.noticed.max <= READ, "{found:?}");
    }

    #[test]
    fn a_thread_that_is_stopped_while_it_polls_is_late_by_the_whole_time() {
        let late = Nanos(8_000_000);
        let (found, _) = seen(SchedulingClass::Ordinary, Some((Nanos(51_400_000), late)));
        assert_eq!(found.worst(), found.noticed.max);
        assert!(found.noticed.max >= late && found.noticed.max <= late + READ + READ, "{found:?}");
        assert!(found.woken.max <= READ, "{found:?}");
    }

    #[test]
    fn a_watch_ends_when_it_is_interrupted() {
        let found = watch(Nanos::ZERO, Nanos::MAX, &AtomicBool::new(true));
        assert_eq!((found.woken.count, found.noticed.count), (0, 0));
    }
}
