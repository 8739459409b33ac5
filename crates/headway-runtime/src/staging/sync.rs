//! The primitives that [`exchange`](super::exchange) is built on; its model check brings others of the same names.

pub(super) use std::sync::atomic::{AtomicBool, Ordering};
pub(super) use std::sync::{Arc, Mutex, MutexGuard};
pub(super) use std::thread::{Thread, current};
use std::time::Duration;

/// Looks at a flag before parking: some 20 us, about what a wake-up of a parked thread takes.
const SPINS: u32 = 400;

/// Asks `ready` for a short while without giving the CPU away.
pub(super) fn spin_until(mut ready: impl FnMut() -> bool) -> bool {
    for _ in 0..SPINS {
        if ready() {
            return true;
        }
        std::hint::spin_loop();
    }
    false
}

/// Parks the calling thread, for at most `bound` if there is one.
pub(super) fn park(bound: Option<Duration>) {
    match bound {
        Some(bound) => std::thread::park_timeout(bound),
        None => std::thread::park(),
    }
}
