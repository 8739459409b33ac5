//! How large the chunks of copies may be on an engine on which other copies are promised to be in time.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use headway_core::units::{Bytes, Nanos};

use crate::wait::Patience;

/// How large the chunks of copies without a promise may be on one engine, and which copies began before that changed.
pub(crate) struct ChunkLimit {
    bytes: AtomicUsize,
    /// The largest chunk that a copy under way may have. It is larger than `bytes` after a change that gave up waiting for such copies.
    largest: AtomicUsize,
    /// Counts changes.
    epoch: AtomicU32,
    /// Copies under way that began in an even or odd epoch.
    under_way: [AtomicU32; 2],
}

/// One copy under way, with the limit that it keeps to.
pub(crate) struct Limited<'a> {
    pub(crate) bytes: usize,
    count: &'a AtomicU32,
}

impl Drop for Limited<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
    }
}

impl ChunkLimit {
    pub(crate) const fn none() -> Self {
        Self {
            bytes: AtomicUsize::new(usize::MAX),
            largest: AtomicUsize::new(usize::MAX),
            epoch: AtomicU32::new(0),
            under_way: [const { AtomicU32::new(0) }; 2],
        }
    }

    /// A copy begins.
    pub(crate) fn enter(&self) -> Limited<'_> {
        loop {
            let epoch = self.epoch.load(Ordering::SeqCst);
            let count = &self.under_way[epoch as usize % 2];
            count.fetch_add(1, Ordering::SeqCst);
            let limited = Limited { bytes: self.bytes.load(Ordering::SeqCst), count };
            // Who changes the limit now would not wait for this copy.
            if self.epoch.load(Ordering::SeqCst) == epoch {
                return limited;
            }
        }
    }

    /// Changes the limit, and waits for copies that began before if they may have larger chunks; `false` if they make no progress.
    ///
    /// Only one thread at a time changes it.
    pub(crate) fn set(&self, chunk: Option<Bytes>, patience: Nanos) -> bool {
        let bytes = chunk.map_or(usize::MAX, |chunk| usize::try_from(chunk.0).unwrap_or(usize::MAX));
        let is_smaller = bytes < self.largest.load(Ordering::SeqCst);
        if !is_smaller {
            self.largest.store(bytes, Ordering::SeqCst);
        }
        self.bytes.store(bytes, Ordering::SeqCst);
        if !is_smaller {
            return true;
        }
        let mut patience = Patience::new(patience);
        let epoch = self.epoch.load(Ordering::SeqCst) as usize;
        // Those of the epoch before this one, if the last change gave up on them. No copy begins in that one now.
        if !Self::have_ended(&self.under_way[(epoch + 1) % 2], &mut patience) {
            return false;
        }
        self.epoch.fetch_add(1, Ordering::SeqCst);
        if !Self::have_ended(&self.under_way[epoch % 2], &mut patience) {
            return false;
        }
        self.largest.store(bytes, Ordering::SeqCst);
        true
    }

    /// Waits until no copy is under way that `count` counts; `false` if none ends for too long.
    fn have_ended(count: &AtomicU32, patience: &mut Patience) -> bool {
        patience.progress();
        let mut left = count.load(Ordering::SeqCst);
        while left > 0 {
            if !patience.pause() {
                return false;
            }
            let now = count.load(Ordering::SeqCst);
            if now < left {
                patience.progress();
            }
            left = now;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    #[test]
    fn a_smaller_limit_waits_for_copies_that_began_with_a_larger_one() {
        let limit = ChunkLimit::none();
        let before = limit.enter();
        assert_eq!(before.bytes, usize::MAX);
        assert!(!limit.set(Some(Bytes(4)), Nanos(1_000_000)), "nothing moves on");
        assert_eq!(limit.enter().bytes, 4);
        assert!(!limit.set(Some(Bytes(4)), Nanos(1_000_000)), "it is still there when the same is asked again");
        assert!(!limit.set(Some(Bytes(8)), Nanos(1_000_000)), "and when less than it has is asked");
        drop(before);
        assert!(limit.set(Some(Bytes(2)), Nanos(60_000_000_000)));
        let small = limit.enter();
        assert!(limit.set(None, Nanos(1)), "a larger limit waits for nobody");
        assert_eq!(small.bytes, 2);
    }

    #[test]
    fn a_smaller_limit_waits_for_no_copy_that_began_after_it() {
        let limit = ChunkLimit::none();
        let before = limit.enter();
        thread::scope(|scope| {
            let set = scope.spawn(|| limit.set(Some(Bytes(4)), Nanos(600_000_000_000)));
            while limit.epoch.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            let after = limit.enter();
            drop(before);
            assert!(set.join().unwrap() && after.bytes == 4);
        });
    }

    #[test]
    fn a_change_is_seen_by_all_copies_that_are_under_way_after_it() {
        let (limit, over, largest) = (ChunkLimit::none(), AtomicBool::new(false), AtomicUsize::new(usize::MAX));
        thread::scope(|scope| {
            let (limit, over, largest) = (&limit, &over, &largest);
            for _ in 0..3 {
                scope.spawn(move || {
                    while !over.load(Ordering::SeqCst) {
                        let copy = limit.enter();
                        thread::yield_now();
                        assert!(
                            copy.bytes <= largest.load(Ordering::SeqCst),
                            "a larger one is under way after the change"
                        );
                    }
                });
            }
            for bytes in (1..2_000).rev() {
                assert!(limit.set(Some(Bytes(bytes)), Nanos(60_000_000_000)));
                largest.store(bytes as usize, Ordering::SeqCst);
                assert!(limit.enter().bytes <= bytes as usize);
            }
            over.store(true, Ordering::SeqCst);
        });
    }
}
