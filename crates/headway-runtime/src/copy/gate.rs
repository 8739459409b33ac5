//! The line in front of one engine: chunks of all copies pass in the order of asking, a few at a time.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Chunks on one engine at a time, of all copies together: two keep it busy (1 MiB chunks reach 40 GB/s one at a time and
/// 49 in pairs on an H200), and a copy that comes waits for no more than these.
pub(super) const IN_FLIGHT: u64 = 2;

/// Held while one copy takes its place in two lines: were their orders to differ, copies could wait for each other for ever.
static BOTH: Mutex<()> = Mutex::new(());

/// A fair semaphore of [`IN_FLIGHT`] permits, and how much bulk passes.
#[derive(Debug, Default)]
pub(super) struct Gate {
    asked: AtomicU64,
    released: AtomicU64,
    bulk: AtomicU32,
}

/// A place in the line, then a permit; given back when dropped.
#[derive(Debug)]
pub(super) struct Ticket<'a> {
    gate: &'a Gate,
    number: u64,
}

/// Counts one bulk copy while it lives.
#[derive(Debug)]
pub(super) struct Bulk<'a>(&'a Gate);

impl Gate {
    /// Takes the last place in the line.
    pub(super) fn ask(&self) -> Ticket<'_> {
        Ticket { gate: self, number: self.asked.fetch_add(1, Ordering::Relaxed) }
    }

    /// Takes the last place in the lines of both.
    pub(super) fn ask_both<'a>(&'a self, other: &'a Self) -> (Ticket<'a>, Ticket<'a>) {
        let _order = BOTH.lock().unwrap_or_else(PoisonError::into_inner);
        (self.ask(), other.ask())
    }

    /// Announces a bulk copy.
    pub(super) fn bulk(&self) -> Bulk<'_> {
        self.bulk.fetch_add(1, Ordering::Relaxed);
        Bulk(self)
    }

    /// The count of bulk copies, for a thread that waits for the first.
    pub(super) const fn bulk_count(&self) -> &AtomicU32 {
        &self.bulk
    }

    /// Bulk copies under way.
    pub(super) fn bulk_copies(&self) -> u32 {
        self.bulk.load(Ordering::Relaxed)
    }
}

impl Ticket<'_> {
    /// Whether the engine may be used now.
    pub(super) fn granted(&self) -> bool {
        self.ahead() < IN_FLIGHT
    }

    /// Chunks that came earlier and have not ended.
    pub(super) fn ahead(&self) -> u64 {
        // A ticket dropped before its turn counts as released too early, so this may be lower by that one, never negative.
        self.number.saturating_sub(self.gate.released.load(Ordering::Acquire))
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.gate.released.fetch_add(1, Ordering::Release);
    }
}

impl Drop for Bulk<'_> {
    fn drop(&mut self) {
        self.0.bulk.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_given_in_the_order_of_asking() {
        let gate = Gate::default();
        let (first, second, third, fourth) = (gate.ask(), gate.ask(), gate.ask(), gate.ask());
        assert!(first.granted() && second.granted() && !third.granted());
        assert_eq!((third.ahead(), fourth.ahead()), (2, 3));
        drop(second);
        assert!(third.granted() && !fourth.granted());
        drop(first);
        assert!(fourth.granted());
    }

    #[test]
    fn a_place_given_up_lets_the_next_one_pass() {
        let gate = Gate::default();
        let (first, second, third, fourth) = (gate.ask(), gate.ask(), gate.ask(), gate.ask());
        drop(third);
        drop(first);
        drop(second);
        assert!(fourth.granted());
        drop(fourth);
        assert_eq!(gate.ask().ahead(), 0);
    }

    #[test]
    fn bulk_counts_while_it_lives() {
        let gate = Gate::default();
        let bulk = gate.bulk();
        assert_eq!(gate.bulk_copies(), 1);
        drop(bulk);
        assert_eq!(gate.bulk_copies(), 0);
    }
}
