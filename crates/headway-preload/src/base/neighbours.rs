//! Bulk copies that guests of one user announce to each other, on the user's [`Board`].
//!
//! For each GPU it holds a time on the monotonic clock until which bulk copies are expected on the engine. A guest that
//! queues one puts the time off, to when all that it has under way should be done. A guest that ends or dies leaves
//! nothing behind: the time passes. This is a hint: a wrong time makes a small copy go by a kernel or by the engine,
//! and both are right.

use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use headway::guest::board::{BULK_PLACES as PLACES, bulk_place};
use headway::guest::board::{Behind, Board};

use crate::base::attention;

/// What a bulk copy moves in a second at least, on PCIe 4 and later: an estimate that errs towards "still there".
const BYTES_PER_S: u64 = 20_000_000_000;
/// Longer times are not believed.
const AHEAD_MAX_NS: u64 = 10_000_000_000;

/// The monotonic clock, which no call of the guest changes.
pub(crate) fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for the call to write.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

/// Until when this process's own bulk copies are expected on the engine, reckoned as on the page.
static OWN_UNTIL: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];

/// This process has `bytes` bytes of bulk under way. An earlier announcement of more stands until its time has passed.
pub(crate) fn announce(place: usize, bytes: u64) {
    if attention::options().alone {
        return;
    }
    let now = now_ns();
    let most = now.saturating_add(AHEAD_MAX_NS);
    let end = now.saturating_add(bytes.saturating_mul(1_000) / (BYTES_PER_S / 1_000_000)).min(most);
    let put_off = |until: &AtomicU64| {
        let later = |before: u64| (before < end || before > most).then_some(end);
        until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later).is_ok()
    };
    put_off(&OWN_UNTIL[place % PLACES]);
    if let Some([until, by]) = Board::of_user().map(|board| board.bulk(place))
        && put_off(until)
    {
        static PID: OnceLock<u64> = OnceLock::new();
        by.store(*PID.get_or_init(|| process::id().into()), Ordering::Relaxed);
    }
}

/// Whether no bulk copy of this process was expected on the engine since `ns`.
pub(crate) fn has_been_free_since(place: usize, ns: u64) -> bool {
    OWN_UNTIL[place % PLACES].load(Ordering::Relaxed) < ns
}

/// The guest whose bulk copy is expected to be on the engine: the board has more than this process has announced.
pub(crate) fn busy_by(place: usize) -> Option<Behind> {
    let [until, by] = Board::of_user()?.bulk(place).map(|word| word.load(Ordering::Relaxed));
    // Most programs never have a neighbour: then the clock is not read.
    let own = OWN_UNTIL[place % PLACES].load(Ordering::Relaxed);
    let is_busy = until != 0 && (1..=AHEAD_MAX_NS).contains(&until.saturating_sub(own.max(now_ns())));
    is_busy.then(|| u32::try_from(by).map_or(Behind::Unknown, Behind::Process))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_announced_again_is_not_expected_twice() {
        // No GPU of another test has this place.
        let place = PLACES - 1;
        (0..100).for_each(|_| announce(place, BYTES_PER_S));
        let until = OWN_UNTIL[place].load(Ordering::Relaxed);
        assert!(until > 0 && until <= now_ns() + 1_000_000_000);
        // Less that is announced later ends earlier, and the first is still there.
        announce(place, 1);
        assert_eq!(OWN_UNTIL[place].load(Ordering::Relaxed), until);
        assert_eq!(busy_by(place), None, "it is this process's own");
    }
}
