//! The lease word: one engine lock as one client sees it.
//!
//! | state | meaning | changed by |
//! |---|---|---|
//! | none | the client has nothing; it must ask the broker | broker |
//! | idle | leased: the client may take the lock | both |
//! | busy | leased, and taken | client; the broker makes it *held* |
//! | held | taken, and to be given back to the broker | client; the broker when it takes the lock away |
//!
//! The lower half holds the state and a generation, the upper half the task that took the lock. The broker alone begins
//! generations, so that a client that was away too long gives back nothing that is no longer its own. A client that lies here
//! deceives itself: what the broker grants to others depends on its own book, never on this word alone.

use super::sync::{AtomicU64, Ordering};

const NONE: u64 = 0;
const IDLE: u64 = 1;
const BUSY: u64 = 2;
const HELD: u64 = 3;
const STATE: u64 = 3;
const GENERATIONS: u64 = (1 << 30) - 1;
const LOWER: u64 = u32::MAX as u64;
/// Looks at a word that its client changes all the time before the lock is taken away.
const ATTEMPTS_MAX: u32 = 64;

/// What came of giving a lock back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Released {
    /// The lease stays: the broker need not know.
    Kept,
    /// The lock is the broker's again: the client must notify it.
    Returned,
    /// The lock had been taken away meanwhile.
    Lost,
}

/// What came of ending a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Revoked {
    /// The lock was not in use.
    Free,
    /// It is in use by this task; the word, as it is until it is given back.
    Busy {
        /// Task, as the client claims.
        owner: u32,
        word: u64,
    },
}

const fn with(word: u64, state: u64) -> u64 {
    word & !STATE | state
}

const fn begun(generation: u32, state: u64, owner: u32) -> u64 {
    (owner as u64) << 32 | (generation as u64 & GENERATIONS) << 2 | state
}

/// Client: takes a leased lock for a task. `None` if it is not leased or in use.
pub(crate) fn acquire(word: &AtomicU64, owner: u32) -> Option<u64> {
    let seen = word.load(Ordering::Relaxed);
    if seen & STATE != IDLE {
        return None;
    }
    let mine = (owner as u64) << 32 | with(seen & LOWER, BUSY);
    // Also a release: a reader that sees this lock in use sees that the task has given back the one before.
    word.compare_exchange(seen, mine, Ordering::AcqRel, Ordering::Relaxed).is_ok().then_some(mine)
}

/// Client: gives back what [`acquire`] gave it, or the word of a grant.
pub(crate) fn release(word: &AtomicU64, mine: u64) -> Released {
    let busy = with(mine, BUSY);
    if word.compare_exchange(busy, with(mine & LOWER, IDLE), Ordering::Release, Ordering::Relaxed).is_ok() {
        return Released::Kept;
    }
    let held = with(mine, HELD);
    match word.compare_exchange(held, with(mine & LOWER, NONE), Ordering::Release, Ordering::Relaxed) {
        Ok(_) => Released::Returned,
        Err(_) => Released::Lost,
    }
}

/// Client: what the broker has granted to this task, if the word says so.
pub(crate) fn granted(word: &AtomicU64, owner: u32) -> Option<u64> {
    let seen = word.load(Ordering::Acquire);
    (seen & STATE == HELD && seen >> 32 == u64::from(owner)).then_some(seen)
}

/// Begins a lease. Only for a lock that no task holds and no other client has a lease of.
pub(crate) fn lend(word: &AtomicU64, generation: u32) {
    word.store(begun(generation, IDLE, 0), Ordering::Release);
}

/// Grants a lock to a task, to be given back after use; the word, as it is until then.
pub(crate) fn grant(word: &AtomicU64, generation: u32, owner: u32) -> u64 {
    let held = begun(generation, HELD, owner);
    word.swap(held, Ordering::AcqRel);
    held
}

/// Ends a lease, at once if the lock is idle. A word that makes no sense counts as idle.
pub(crate) fn revoke(word: &AtomicU64) -> Revoked {
    for _ in 0..ATTEMPTS_MAX {
        let seen = word.load(Ordering::Relaxed);
        let (next, revoked) = match seen & STATE {
            BUSY | HELD => {
                let held = with(seen, HELD);
                (held, Revoked::Busy { owner: (seen >> 32) as u32, word: held })
            }
            _ => (with(seen & LOWER, NONE), Revoked::Free),
        };
        if word.compare_exchange(seen, next, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return revoked;
        }
    }
    take_back(word, 0);
    Revoked::Free
}

/// Whether the holder of `held` has given the lock back.
pub(crate) fn is_returned(word: &AtomicU64, held: u64) -> bool {
    word.load(Ordering::Acquire) != held
}

/// Takes the lock away, in whatever state it is; `generation` is a new one.
pub(crate) fn take_back(word: &AtomicU64, generation: u32) {
    word.swap(begun(generation, NONE, 0), Ordering::AcqRel);
}
