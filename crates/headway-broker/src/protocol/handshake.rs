//! Sleeping without losing a wake-up: one side publishes and then looks whether the other sleeps, the other announces sleep
//! and then looks whether something was published. With a full fence between the two steps on both sides, at least one of
//! them sees the other (Dekker).

use super::sync::{Ordering, fence};

/// After something was published: whether the other side must be woken, as `sleeps` finds.
pub(crate) fn must_wake(sleeps: impl FnOnce() -> bool) -> bool {
    fence(Ordering::SeqCst);
    sleeps()
}

/// Announces sleep; whether it may begin because `is_idle` still.
pub(crate) fn may_sleep(announce: impl FnOnce(), is_idle: impl FnOnce() -> bool) -> bool {
    announce();
    fence(Ordering::SeqCst);
    is_idle()
}
