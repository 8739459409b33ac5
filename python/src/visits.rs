//! Visits of threads to the interpreter. Python before 3.14 ends a thread that comes back to it while it finalizes, which aborts a process whose
//! thread has frames of Rust. So the end waits for visits.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use log::{Log, Metadata, Record};
use pyo3::exceptions::PyImportError;
use pyo3::ffi::{PyInterpreterState_Get, PyInterpreterState_GetID};
use pyo3::prelude::*;

const NAP: Duration = Duration::from_millis(1);
/// How long such a thread sleeps: before its first visit after [`finish`], and before each further one.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_millis(100)];
/// What the interpreter's end waits for visits at least, unless it is interrupted.
const WAIT_MIN: Duration = Duration::from_secs(1);

static UNDER_WAY: AtomicU32 = AtomicU32::new(0);
static OVER: AtomicBool = AtomicBool::new(false);
/// The thread that ends the interpreter; 0 = it does not end.
static ENDED_BY: AtomicI32 = AtomicI32::new(0);

thread_local! {
    /// Visits of this thread, one within the other.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static HAS_PAUSED: Cell<bool> = const { Cell::new(false) };
}

/// Held by a thread while it may be in the interpreter below frames of Rust.
pub(crate) struct Visit(());

impl Visit {
    /// For a thread of the library's; `None` once the interpreter ends.
    pub(crate) fn begin() -> Option<Self> {
        let visit = Self::counted();
        (!are_over() || DEPTH.get() > 1).then_some(visit)
    }

    /// For a thread of Python's. After [`finish`], a thread other than the one that ends the interpreter first sleeps without the interpreter's lock:
    /// if the interpreter finalizes meanwhile, the thread stays there and does no harm. If it does not, somebody may wait for this thread, which goes on.
    pub(crate) fn of_python(py: Python<'_>) -> Self {
        Self::begin().unwrap_or_else(|| {
            if ENDED_BY.load(Ordering::SeqCst) != this_thread() {
                py.detach(|| sleep(PAUSES[usize::from(HAS_PAUSED.replace(true))]));
            }
            Self::counted()
        })
    }

    fn counted() -> Self {
        UNDER_WAY.fetch_add(1, Ordering::SeqCst);
        DEPTH.set(DEPTH.get() + 1);
        Self(())
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get().saturating_sub(1));
        // A child that was forked during the visit counts none.
        let _ = UNDER_WAY.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |visits| visits.checked_sub(1));
    }
}

/// Whether the interpreter ends: threads of the library's visit it no more.
pub(crate) fn are_over() -> bool {
    OVER.load(Ordering::SeqCst)
}

/// At the interpreter's end: waits until `end` for visits that are under way, but for a second at least.
pub(crate) fn finish(py: Python<'_>, end: Instant) -> PyResult<()> {
    ENDED_BY.store(this_thread(), Ordering::SeqCst);
    OVER.store(true, Ordering::SeqCst);
    let end = end.max(Instant::now() + WAIT_MIN);
    while UNDER_WAY.load(Ordering::SeqCst) > 0 && Instant::now() < end {
        py.detach(|| sleep(NAP));
        py.check_signals()?;
    }
    Ok(())
}

/// In a forked child, where no other thread is.
pub(crate) fn forget_all() {
    UNDER_WAY.store(0, Ordering::SeqCst);
    if are_over() {
        ENDED_BY.store(this_thread(), Ordering::SeqCst);
    }
}

fn this_thread() -> libc::pid_t {
    // SAFETY: it takes nothing and returns a number.
    unsafe { libc::gettid() }
}

/// An error in an interpreter beside the first: each ends by itself, and threads know only one.
pub(crate) fn check_interpreter(_py: Python<'_>) -> PyResult<()> {
    // SAFETY: the calling thread has the interpreter's lock.
    if unsafe { PyInterpreterState_GetID(PyInterpreterState_Get()) } == 0 {
        return Ok(());
    }
    Err(PyImportError::new_err(
        "`headway` cannot be used in a subinterpreter; use it in the first interpreter of the process",
    ))
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
