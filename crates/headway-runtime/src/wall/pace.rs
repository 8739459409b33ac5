//! When the driver runs again, how it waits until then, and how late it was.

use headway_core::models::cpu::{DelayStatistics, Meter, SchedulingClass};
use headway_core::units::Nanos;

/// Sleep between two polls of a driver that must not spin: short beside the jitter of a node (100 us), long beside the few
/// microseconds that a poll takes.
const NAP: Nanos = Nanos(20_000);
/// A driver that must not spin wakes up so long before a window opens, and spins for the rest.
const AHEAD: Nanos = Nanos(20_000);
/// The longest sleep, so that interrupts are seen.
const SLEEP_MAX: Nanos = Nanos(100_000_000);

/// Decides between sleeping and spinning, and measures what came of it.
pub(super) struct Pace {
    /// Sleep between polls; `None` = spin, as nobody stops this thread for it.
    nap: Option<Nanos>,
    /// Time to spin before something is due.
    spin: Nanos,
    /// When the driver asked to run.
    due: Nanos,
    woken: Meter,
    noticed: Meter,
}

impl Pace {
    /// For a driver of `class` which would spin for `spin` before something is due; delays beyond `jitter` are told apart.
    pub(super) fn new(class: SchedulingClass, spin: Nanos, jitter: Nanos) -> Self {
        let rationed = class.is_rationed();
        Self {
            nap: rationed.then_some(NAP),
            spin: if rationed { spin.min(AHEAD) } else { spin },
            due: Nanos::MAX,
            woken: Meter::new(jitter),
            noticed: Meter::new(jitter),
        }
    }

    /// How long to sleep when something is due at `due`, or earlier if devices must be polled; zero = spin. `now` is read only
    /// if it matters.
    pub(super) fn sleep(&mut self, due: Nanos, polls: bool, now: impl FnOnce() -> Nanos) -> Nanos {
        self.due = due;
        let most = match (polls, self.nap) {
            (true, None) => return Nanos::ZERO,
            (true, Some(nap)) => nap,
            (false, _) => SLEEP_MAX,
        };
        due.saturating_sub(now()).saturating_sub(self.spin).min(most)
    }

    /// The driver runs again.
    pub(super) fn woke(&mut self, now: Nanos) {
        if self.due <= now {
            self.woken.add(now - self.due);
            self.due = Nanos::MAX;
        }
    }

    /// The driver has seen the end of an operation that was over at `finished`.
    pub(super) fn noticed(&mut self, now: Nanos, finished: Nanos) {
        self.noticed.add(now.saturating_sub(finished));
    }

    /// How late it was woken, and how late it noticed ends.
    pub(super) fn lateness(&self) -> (DelayStatistics, DelayStatistics) {
        (self.woken.lateness(), self.noticed.lateness())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESERVED: SchedulingClass = SchedulingClass::Deadline { runtime: Nanos(100_000), period: Nanos(200_000) };

    fn pace(class: SchedulingClass) -> Pace {
        Pace::new(class, Nanos(200_000), Nanos(100_000))
    }

    #[test]
    fn a_driver_with_a_reservation_sleeps_between_polls_and_an_ordinary_one_spins() {
        let now = || Nanos(1_000_000);
        let due = Nanos(5_000_000);
        assert_eq!(pace(RESERVED).sleep(due, true, now), NAP);
        assert_eq!(pace(SchedulingClass::Fifo { priority: 10 }).sleep(due, true, now), NAP);
        assert_eq!(pace(SchedulingClass::Ordinary).sleep(due, true, now), Nanos::ZERO);
        assert_eq!(pace(SchedulingClass::Nice { nice: -20 }).sleep(due, true, now), Nanos::ZERO);
    }

    #[test]
    fn without_polls_a_driver_sleeps_until_shortly_before_something_is_due() {
        let now = || Nanos(1_000_000);
        assert_eq!(pace(RESERVED).sleep(Nanos(5_000_000), false, now), Nanos(3_980_000));
        assert_eq!(pace(SchedulingClass::Ordinary).sleep(Nanos(5_000_000), false, now), Nanos(3_800_000));
        assert_eq!(pace(RESERVED).sleep(Nanos(1_015_000), false, now), Nanos::ZERO);
        assert_eq!(pace(RESERVED).sleep(Nanos(1_030_000), true, now), Nanos(10_000));
        assert_eq!(pace(RESERVED).sleep(Nanos::MAX, false, now), SLEEP_MAX);
        assert_eq!(pace(RESERVED).sleep(Nanos(10), true, now), Nanos::ZERO);
        // Who asks for no spinning gets none.
        assert_eq!(Pace::new(RESERVED, Nanos::ZERO, Nanos::ZERO).sleep(Nanos(1_000_001), false, now), Nanos(1));
    }

    #[test]
    fn each_time_that_was_asked_for_counts_once() {
        let mut pace = pace(RESERVED);
        pace.sleep(Nanos(2_000_000), false, || Nanos(1_000_000));
        pace.woke(Nanos(1_500_000));
        assert_eq!(pace.lateness().0.count, 0);
        pace.woke(Nanos(2_000_007));
        pace.woke(Nanos(2_500_000));
        pace.sleep(Nanos(3_000_000), false, || Nanos(2_600_000));
        pace.woke(Nanos(3_100_001));
        let (woken, noticed) = pace.lateness();
        assert_eq!((woken.count, woken.median, woken.max, woken.beyond), (2, Nanos(7), Nanos(100_001), 1));
        assert_eq!(noticed, DelayStatistics::default());
        pace.noticed(Nanos(50), Nanos(20));
        assert_eq!(pace.lateness().1.max, Nanos(30));
    }
}
