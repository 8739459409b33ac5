//! Work beside the interpreter, which Ctrl-C ends.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

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
    let thread = thread::Builder::new().name("headway".to_owned());
    // Nobody listens after an exception.
    thread.spawn(move || drop(sender.send(work())))?;
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

/// `work` of every item, by as many threads as there are CPUs; the results are in the order of the items.
pub(crate) fn each<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..cpus.min(items.len()) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(at) else { return };
                    let result = work(item);
                    results.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}
