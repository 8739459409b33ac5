//! Bulk copies that guests of one user announce to each other, on the user's [`Board`].
//!
//! For each GPU it holds a time on the monotonic clock until which bulk copies are expected on the engine. A guest that
//! queues one moves the time on. A guest that dies leaves nothing behind: the time passes. This is a hint: a wrong
//! time makes a small copy go by a kernel or by the engine, and both are right.

use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use headway::guest::board::BULK_PLACES as PLACES;
use headway::guest::board::{Behind, Board};

use crate::base::attention;

/// What a bulk copy moves in a second at least, on PCIe 4 and later: an estimate that errs towards "still there".
const BYTES_PER_S: u64 = 20_000_000_000;
/// Longer times are not believed.
const AHEAD_MAX_NS: u64 = 10_000_000_000;

/// The place of a GPU.
pub(crate) fn place(uuid: &[u8; 16]) -> usize {
    uuid.iter().fold(0usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(usize::from(*byte))) % PLACES
}

/// The monotonic clock, which no call of the guest changes.
pub(crate) fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for the call to write.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

/// Until when this process's own bulk copies are expected on the engine, reckoned as on the page.
static OWN_UNTIL: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];

/// A bulk copy of `bytes` is queued behind those that are expected already.
pub(crate) fn announce(place: usize, bytes: usize) {
    if attention::options().alone {
        return;
    }
    let (now, takes) = (now_ns(), (bytes as u64).saturating_mul(1_000) / (BYTES_PER_S / 1_000_000));
    let shared = Board::of_user().map(|board| board.bulk(place));
    if let Some([_, by]) = shared {
        static PID: OnceLock<u64> = OnceLock::new();
        by.store(*PID.get_or_init(|| process::id().into()), Ordering::Relaxed);
    }
    for until in [Some(&OWN_UNTIL[place % PLACES]), shared.map(|[until, _]| until)].into_iter().flatten() {
        let _ = until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |before| {
            let before = if before > now.saturating_add(AHEAD_MAX_NS) { now } else { before.max(now) };
            Some(before.saturating_add(takes))
        });
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
