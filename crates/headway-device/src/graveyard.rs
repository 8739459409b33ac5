//! Where memory waits whose operations were given up before they ended.
//!
//! An operation that does not end in time, or whose end cannot be asked for any more, may still use its memory. Whoever gives it
//! up buries it here together with the question whether it has ended. The question is asked again whenever somebody waits for
//! memory: the call that lent it ([`lend`](crate::buffer::lend)), or a claim on bytes that are still claimed. So memory comes back as soon
//! as the driver says that nothing uses it, and never before.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// What was given up, with all that it may still use.
pub trait Grave: Send {
    /// Whether nothing uses any more what this holds; dropped as soon as it says so. Must not block, nor bury anything.
    fn is_over(&mut self) -> bool;
}

static GRAVES: Mutex<Vec<Box<dyn Grave>>> = Mutex::new(Vec::new());
/// Their number, those being asked included: who waits for memory asks without the lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static TOLD: AtomicBool = AtomicBool::new(false);

/// Keeps `grave` until it is over. The first time that `what`, if it is given, was left behind in this process, standard error
/// says so.
pub fn bury(grave: Box<dyn Grave>, what: Option<&str>) {
    COUNT.fetch_add(1, Ordering::AcqRel);
    GRAVES.lock().unwrap_or_else(PoisonError::into_inner).push(grave);
    if let Some(what) = what
        && !TOLD.swap(true, Ordering::AcqRel)
    {
        let _ = writeln!(
            io::stderr(),
            "headway: {what}; what it uses stays reserved until the driver says that it has ended"
        );
    }
}

/// Asks what was buried whether it is over, and releases what is. An atomic load where there is nothing.
pub fn reap() {
    if COUNT.load(Ordering::Acquire) == 0 {
        return;
    }
    // Asked without the lock: what is released may take it.
    let graves = std::mem::take(&mut *GRAVES.lock().unwrap_or_else(PoisonError::into_inner));
    for mut grave in graves {
        if grave.is_over() {
            drop(grave);
            COUNT.fetch_sub(1, Ordering::AcqRel);
        } else {
            GRAVES.lock().unwrap_or_else(PoisonError::into_inner).push(grave);
        }
    }
}

/// What is buried now; for tests.
#[must_use]
pub fn count() -> usize {
    COUNT.load(Ordering::Acquire)
}
