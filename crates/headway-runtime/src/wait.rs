//! Waiting for something that ends soon: spin, then let others run; with a bound, and an end when copies are cancelled.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use headway_core::units::Nanos;
use headway_os::clock;

/// Turns that only spin: about as long as the shortest copy of an engine.
const SPINS: u32 = 256;
/// Turns between two looks at the clock.
const LOOK: u32 = 64;

/// Ends the copies that began before it was raised.
#[derive(Debug, Default)]
pub(crate) struct Cancel(Mutex<Arc<AtomicBool>>);

impl Cancel {
    /// Ends what is under way.
    pub(crate) fn raise(&self) {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        current.store(true, Ordering::Relaxed);
        *current = Arc::default();
    }

    /// For one copy that begins now: becomes true when the copy is to end.
    pub(crate) fn watch(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Time that was waited. Between two looks at the clock a quarter of the bound counts at most: a process that was stopped looks again at what
/// it waits for before it gives up.
#[derive(Debug)]
pub(crate) struct WaitedTime {
    bound: Nanos,
    waited: Nanos,
    looked: Option<Nanos>,
}

impl WaitedTime {
    pub(crate) const fn new(bound: Nanos) -> Self {
        Self { bound, waited: Nanos::ZERO, looked: None }
    }

    /// Begins anew.
    pub(crate) const fn restart(&mut self) {
        self.waited = Nanos::ZERO;
        self.looked = None;
    }

    /// Looks at the clock; whether it was waited for longer than the bound.
    pub(crate) fn is_over(&mut self) -> bool {
        self.is_over_at(clock::now())
    }

    fn is_over_at(&mut self, now: Nanos) -> bool {
        let since = now.saturating_sub(self.looked.replace(now).unwrap_or(now));
        self.waited = self.waited.saturating_add(since.min(Nanos((self.bound.0 / 4).max(1))));
        self.waited >= self.bound
    }
}

/// One wait after the other, each until something happens.
#[derive(Debug)]
pub(crate) struct Patience {
    turns: u32,
    time: WaitedTime,
}

impl Patience {
    /// A wait of at most `bound` between two signs of progress.
    pub(crate) const fn new(bound: Nanos) -> Self {
        Self { turns: 0, time: WaitedTime::new(bound) }
    }

    /// Something has happened.
    pub(crate) const fn progress(&mut self) {
        self.turns = 0;
        self.time.restart();
    }

    /// Lets a moment pass; `false` when nothing has happened for too long.
    pub(crate) fn pause(&mut self) -> bool {
        self.turns = self.turns.saturating_add(1);
        if self.turns < SPINS {
            std::hint::spin_loop();
        } else {
            headway_os::sched::yield_now();
        }
        !self.turns.is_multiple_of(LOOK) || !self.time.is_over()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_without_progress_only() {
        let mut patience = Patience::new(Nanos(1));
        let mut turns = 0u32;
        while patience.pause() {
            turns += 1;
            assert!(turns < 1_000_000_000, "the clock stands still");
        }
        patience.progress();
        assert!(patience.pause());
    }

    #[test]
    fn a_process_that_was_stopped_looks_again_before_it_gives_up() {
        let mut time = WaitedTime::new(Nanos(100));
        assert!(!time.is_over_at(Nanos(7)));
        assert!(!time.is_over_at(Nanos(1_000_000)), "it was stopped");
        let late: Vec<bool> = (1..=4).map(|at| time.is_over_at(Nanos(1_000_000 + 20 * at))).collect();
        assert_eq!(late, [false, false, false, true], "25 count for the stop, then 20 each");
        time.restart();
        assert!(!time.is_over_at(Nanos(9_000_000)));
    }

    #[test]
    fn only_copies_under_way_are_cancelled() {
        let cancel = Cancel::default();
        let before = cancel.watch();
        cancel.raise();
        assert!(before.load(Ordering::Relaxed));
        assert!(!cancel.watch().load(Ordering::Relaxed));
    }
}
