//! Work beside the interpreter, which Ctrl-C ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use headway::threads;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// How long Python's signals wait to be looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Does `work` in a thread, without the interpreter's lock. If a signal handler of Python raises meanwhile, `interrupt` becomes true and
/// its exception is returned at once; the thread ends by itself.
pub(crate) fn wait<T: Send + 'static>(
    py: Python<'_>,
    interrupt: Arc<AtomicBool>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (sender, mut receiver) = mpsc::channel();
    // Nobody listens after an exception.
    threads::spawn("headway", move || drop(sender.send(work())))?;
    loop {
        let (received, back) = py.detach(move || (receiver.recv_timeout(LOOK), receiver));
        receiver = back;
        match received {
            Ok(done) => return Ok(done),
            Err(RecvTimeoutError::Disconnected) => {
                let text = "a thread of Headway panicked, which is a defect of Headway; standard error has its message";
                return Err(PyRuntimeError::new_err(text));
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Err(error) = py.check_signals() {
                    interrupt.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
    }
}
