//! A lock passed from its holder to its heir: a word that the clients of one user share, and what the broker tells each of
//! the two of it.
//!
//! The word is only believed if it has the value that the broker has told both for this one time; a stranger can at most
//! wipe it out, and then the broker, who learns of the release in any case, answers as if nobody had been named.

use super::lease;
use super::sync::{AtomicU64, Ordering};

/// Client: passes a lock to its heir. `record` reads which word to tell and by which value; `tell` finds the word, and what
/// comes of it is whether the lock was passed.
pub(crate) fn pass<'a>(
    word: &AtomicU64,
    mine: u64,
    record: impl FnOnce() -> (u64, u64),
    tell: impl FnOnce(u64) -> Option<&'a AtomicU64>,
) -> bool {
    if !lease::has_heir(word, mine) {
        return false;
    }
    let (cell, value) = record();
    let passed = lease::pass(word, mine);
    if passed && let Some(cell) = tell(cell) {
        cell.store(value, Ordering::Release);
    }
    passed
}

/// Client: whether the lock was passed to it: `expected` reads what the broker has told it, 0 = nothing.
pub(crate) fn is_passed(cell: &AtomicU64, expected: impl FnOnce() -> u64) -> bool {
    let seen = cell.load(Ordering::Acquire);
    seen != 0 && seen == expected()
}

/// Client: takes a lock that was passed to its task. `None` if none was, or the broker has granted it meanwhile: it answers.
///
/// The word is wiped out then, so that it says nothing of the next request.
pub(crate) fn take(cell: &AtomicU64, expected: impl FnOnce() -> u64, word: &AtomicU64, owner: u32) -> Option<u64> {
    let mine = if is_passed(cell, expected) { lease::take(word, owner) } else { None }?;
    cell.store(0, Ordering::Relaxed);
    Some(mine)
}
