//! Work beside the interpreter, which Ctrl-C ends.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use headway::threads;
use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;

/// What the end of the interpreter waits for copies that are under way, and for flows and copiers to close.
pub(crate) const EXIT_MAX: Duration = Duration::from_secs(10);
/// How long Python's signals wait to be looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Does `work` in a thread, without the interpreter's lock. If a signal handler of Python raises meanwhile, `interrupt` becomes true and
/// its exception is returned at once; the thread ends by itself.
pub(crate) fn wait<T: Send + 'static>(
    py: Python<'_>,
    interrupt: Arc<AtomicBool>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let never = || PyRuntimeError::new_err("this wait has no end");
    wait_in_thread(py, None, &interrupt, work)?.ok_or_else(never)
}

/// At the interpreter's end: has a thread drop what the driver may hold up, and waits for [`EXIT_MAX`] at most. Without a thread it is left as it is.
pub(crate) fn close<T: Send + 'static>(py: Python<'_>, open: Vec<T>) -> PyResult<()> {
    if open.is_empty() {
        return Ok(());
    }
    let open = ManuallyDrop::new(open);
    let work = move || drop(ManuallyDrop::into_inner(open));
    match wait_in_thread(py, Some(Instant::now() + EXIT_MAX), &AtomicBool::new(false), work) {
        Err(error) if error.is_instance_of::<PyOSError>(py) => Ok(()),
        closed => closed.map(drop),
    }
}

/// `None` if the thread is not done at `end`; it goes on.
fn wait_in_thread<T: Send + 'static>(
    py: Python<'_>,
    end: Option<Instant>,
    interrupt: &AtomicBool,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<Option<T>> {
    let (sender, mut receiver) = mpsc::channel();
    // Nobody listens after an exception.
    threads::spawn("headway", move || drop(sender.send(work())))?;
    loop {
        let (received, back) = py.detach(move || (receiver.recv_timeout(LOOK), receiver));
        receiver = back;
        match received {
            Ok(done) => return Ok(Some(done)),
            Err(RecvTimeoutError::Disconnected) => {
                let text = "a thread of Headway panicked, which is a defect of Headway; standard error has its message";
                return Err(PyRuntimeError::new_err(text));
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Err(error) = py.check_signals() {
                    interrupt.store(true, Ordering::Relaxed);
                    return Err(error);
                }
                if end.is_some_and(|end| Instant::now() >= end) {
                    return Ok(None);
                }
            }
        }
    }
}
