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

/// One wait after the other, each until something happens.
#[derive(Debug)]
pub(crate) struct Patience {
    bound: Nanos,
    turns: u32,
    since: Option<Nanos>,
}

impl Patience {
    /// A wait of at most `bound` between two signs of progress.
    pub(crate) const fn new(bound: Nanos) -> Self {
        Self { bound, turns: 0, since: None }
    }

    /// Something has happened.
    pub(crate) const fn progress(&mut self) {
        self.turns = 0;
        self.since = None;
    }

    /// Lets a moment pass; `false` when nothing has happened for too long.
    pub(crate) fn pause(&mut self) -> bool {
        self.turns = self.turns.saturating_add(1);
        if self.turns < SPINS {
            std::hint::spin_loop();
        } else {
            headway_os::sched::yield_now();
        }
        if !self.turns.is_multiple_of(LOOK) {
            return true;
        }
        let now = clock::now();
        let since = *self.since.get_or_insert(now);
        now.saturating_sub(since) < self.bound
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
    fn only_copies_under_way_are_cancelled() {
        let cancel = Cancel::default();
        let before = cancel.watch();
        cancel.raise();
        assert!(before.load(Ordering::Relaxed));
        assert!(!cancel.watch().load(Ordering::Relaxed));
    }
}
