//! The thread that runs Python when copies have ended. What it runs may wait for other copies, so it must not be a thread that the library needs
//! to end those.

use std::cell::Cell;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use headway::threads;
use pyo3::prelude::*;

use crate::sync::lock;
use crate::visits::Visit;

thread_local! {
    static IS_OWN_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is that one.
pub(crate) fn is_own_thread() -> bool {
    IS_OWN_THREAD.get()
}

pub(crate) type Callback = Box<dyn FnOnce(Python<'_>) + Send>;

/// Where callbacks go, once there is such a thread. Used with the interpreter's lock only.
static CALLBACKS: Mutex<Option<Sender<Callback>>> = Mutex::new(None);

/// Where to send what is to run in the interpreter. After its end nothing runs.
pub(crate) fn sender(_py: Python<'_>) -> PyResult<Sender<Callback>> {
    let mut there = lock(&CALLBACKS);
    if let Some(sender) = &*there {
        return Ok(sender.clone());
    }
    let (sender, receiver) = channel();
    threads::spawn("headway-python", || run_all(receiver))?;
    Ok(there.insert(sender).clone())
}

/// In a forked child, which has no such thread.
pub(crate) fn forget_thread() {
    forget(lock(&CALLBACKS).take());
}

fn run_all(callbacks: Receiver<Callback>) {
    IS_OWN_THREAD.set(true);
    for callback in callbacks {
        let mut callback = Some(callback);
        if let Some(_visit) = Visit::begin() {
            Python::try_attach(|py| {
                if let Some(callback) = callback.take() {
                    // The panic hook has reported it; the other copies are to be told of all the same.
                    let _ = catch_unwind(AssertUnwindSafe(|| callback(py)));
                }
            });
        }
        // Without an interpreter nobody can let go of what it has.
        forget(callback);
    }
}
