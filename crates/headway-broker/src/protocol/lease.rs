//! The lease word: one engine lock as one client sees it.
//!
//! | state | meaning | who leaves it |
//! |---|---|---|
//! | none | the client has nothing; it must ask the broker | broker |
//! | idle | leased: the client may take the lock | both |
//! | busy | leased, and taken | client; the broker makes it *held* |
//! | held | taken, and to be given back to the broker | client; the broker when it takes the lock away |
//! | named | held, and the broker has named who comes next: the holder may pass the lock on | both |
//! | passed | given to who was named | broker |
//! | promised | who holds the lock may pass it to this client | client when it is passed; broker |
//!
//! A lock goes from client to client without the broker between by three words, each changed by one compare-and-swap: the
//! broker makes the heir's word *promised* and then the holder's *named*; the holder, when it has finished, makes its own
//! *passed* and tells the heir ([`super::handover`]); the heir makes its own *held*. The broker, who learns of it as of any
//! release, calls it off by making *named* *held* again; if the holder was faster, the heir has the lock. One heir is named
//! in a grant at most, so that a record of the heir read while the word is *named* is the right one if it still is when the
//! lock is passed.
//!
//! The lower half holds the state and a generation, the upper half the task that took the lock. The broker alone begins
//! generations, so that a client that was away too long gives back nothing that is no longer its own. A client that lies here
//! deceives itself: what the broker grants to others depends on its own book, never on this word alone. An holder that lies
//! can let its heir in too early, as one that uses an engine without a lock.

use super::sync::{AtomicU64, Ordering};

const NONE: u64 = 0;
const IDLE: u64 = 1;
const BUSY: u64 = 2;
const HELD: u64 = 3;
const NAMED: u64 = 4;
const PASSED: u64 = 5;
const PROMISED: u64 = 6;
const STATE: u64 = 7;
const GENERATIONS: u64 = (1 << 29) - 1;
const LOWER: u64 = u32::MAX as u64;
/// Looks at a word that its client changes all the time before the lock is taken away.
const ATTEMPTS_MAX: u32 = 64;

/// What came of giving a lock back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Released {
    /// The lease stays: no word to anybody.
    Kept,
    /// The lock is the broker's again: it must be told.
    Returned,
    /// Nothing has changed: an heir is named, to whom the lock can be passed.
    Named,
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
        /// The word.
        word: u64,
    },
}

const fn with(word: u64, state: u64) -> u64 {
    word & !STATE | state
}

const fn begun(generation: u32, state: u64, owner: u32) -> u64 {
    (owner as u64) << 32 | (generation as u64 & GENERATIONS) << 3 | state
}

/// Client: takes a leased lock for a task. `None` if it is not leased or in use.
pub(crate) fn acquire(word: &AtomicU64, owner: u32) -> Option<u64> {
    let seen = word.load(Ordering::Relaxed);
    if seen & STATE != IDLE {
        return None;
    }
    let mine = (owner as u64) << 32 | with(seen & LOWER, BUSY);
    // Released too: whoever sees this lock in use sees that the task has given back the one before.
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
        Err(seen) if seen == with(mine, NAMED) => Released::Named,
        Err(_) => Released::Lost,
    }
}

/// Client: whether an heir is named to whom the lock can be passed; what the broker wrote of it is there then.
pub(crate) fn has_heir(word: &AtomicU64, mine: u64) -> bool {
    word.load(Ordering::Acquire) == with(mine, NAMED)
}

/// Client: passes the lock to the heir whose record was read after [`has_heir`]; `false` if that was called off.
pub(crate) fn pass(word: &AtomicU64, mine: u64) -> bool {
    let passed = with(mine & LOWER, PASSED);
    word.compare_exchange(with(mine, NAMED), passed, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Client: takes a lock that was passed to this task. `None` if it is not promised to it: the broker has the last word.
pub(crate) fn take(word: &AtomicU64, owner: u32) -> Option<u64> {
    let seen = word.load(Ordering::Acquire);
    let is_mine = seen & STATE == PROMISED && seen >> 32 == u64::from(owner);
    let held = with(seen, HELD);
    (is_mine && word.compare_exchange(seen, held, Ordering::AcqRel, Ordering::Relaxed).is_ok()).then_some(held)
}

/// Client: what the broker has granted to this task, if the word says so.
pub(crate) fn granted(word: &AtomicU64, owner: u32) -> Option<u64> {
    let seen = word.load(Ordering::Acquire);
    let is_held = matches!(seen & STATE, HELD | NAMED);
    (is_held && seen >> 32 == u64::from(owner)).then_some(with(seen, HELD))
}

/// Begins a lease. Only for a lock that nobody holds and no other client is leased.
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
            BUSY | HELD | NAMED => {
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
    let seen = word.load(Ordering::Acquire);
    seen != held && seen != with(held, NAMED)
}

/// Whether the holder of `held` has passed the lock on.
pub(crate) fn was_passed(word: &AtomicU64, held: u64) -> bool {
    word.load(Ordering::Acquire) == with(held & LOWER, PASSED)
}

/// Promises a lock that another client holds to a task; the word, as it is from when it holds the lock.
pub(crate) fn promise(word: &AtomicU64, generation: u32, owner: u32) -> u64 {
    let held = begun(generation, HELD, owner);
    word.swap(with(held, PROMISED), Ordering::AcqRel);
    held
}

/// Grants a promised lock, unless its task has it already, or has given it back.
pub(crate) fn fulfil(word: &AtomicU64, held: u64) {
    // Whatever else is there is the client's doing: the lock then counts as given back.
    let _ = word.compare_exchange(with(held, PROMISED), held, Ordering::AcqRel, Ordering::Relaxed);
}

/// Lets the holder of `held` pass the lock on; `false` if it has given it back. What it reads then is written before.
pub(crate) fn name(word: &AtomicU64, held: u64) -> bool {
    word.compare_exchange(held, with(held, NAMED), Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Forbids the holder of `held` to pass the lock on; `false` if it has done so, or given it back.
pub(crate) fn call_off(word: &AtomicU64, held: u64) -> bool {
    word.compare_exchange(with(held, NAMED), held, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Takes the lock away, in whatever state it is; `generation` is a new one.
pub(crate) fn take_back(word: &AtomicU64, generation: u32) {
    word.swap(begun(generation, NONE, 0), Ordering::AcqRel);
}
