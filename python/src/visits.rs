//! Visits of the library's own threads to the interpreter. Python before 3.14 ends a thread that comes back to it while it finalizes, which
//! aborts a process whose thread has frames of Rust.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use log::{Log, Metadata, Record};
use pyo3::prelude::*;

/// What the interpreter's end waits for visits that have begun.
const WAIT_MAX: Duration = Duration::from_secs(10);
const NAP: Duration = Duration::from_millis(1);

static UNDER_WAY: AtomicU32 = AtomicU32::new(0);
static OVER: AtomicBool = AtomicBool::new(false);

/// Held by a thread of the library's while it may be in the interpreter.
pub(crate) struct Visit(());

impl Visit {
    /// `None` once the interpreter ends.
    pub(crate) fn begin() -> Option<Self> {
        UNDER_WAY.fetch_add(1, Ordering::SeqCst);
        let visit = Self(());
        (!OVER.load(Ordering::SeqCst)).then_some(visit)
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        // A child that was forked during the visit counts none.
        let _ = UNDER_WAY.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |visits| visits.checked_sub(1));
    }
}

/// Whether no visit begins any more.
pub(crate) fn are_over() -> bool {
    OVER.load(Ordering::SeqCst)
}

/// Lets no visit begin any more, and waits for those under way.
pub(crate) fn finish(py: Python<'_>) {
    OVER.store(true, Ordering::SeqCst);
    let start = Instant::now();
    while UNDER_WAY.load(Ordering::SeqCst) > 0 && start.elapsed() < WAIT_MAX {
        py.detach(|| sleep(NAP));
    }
}

/// In a forked child, where no other thread is.
pub(crate) fn forget_all() {
    UNDER_WAY.store(0, Ordering::SeqCst);
}

/// Python's logging, for threads that may outlive the interpreter.
pub(crate) struct Logger(pub(crate) pyo3_log::Logger);

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.0.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if let Some(_visit) = Visit::begin() {
            self.0.log(record);
        }
    }

    fn flush(&self) {
        self.0.flush();
    }
}
