//! The primitives that [`exchange`](super::exchange) is built on; its model check brings others of the same names.

pub(super) use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
pub(super) use std::sync::{Arc, Mutex, MutexGuard};
use std::sync::{OnceLock, PoisonError, TryLockError};
pub(super) use std::thread::{Thread, current};
use std::time::Duration;

/// Looks at a flag before parking: some 200 us, longer than an engine takes for a chunk, so that a thread that has been too
/// fast is not woken by a system call of the thread that keeps the engine busy.
const SPINS: u32 = 4_000;
/// The same where threads may have to share CPUs with whom they wait for: some 20 us.
const SPINS_FEW_CPUS: u32 = 400;
/// As many CPUs as leave room for spinning.
const MANY_CPUS: usize = 8;

fn spins() -> u32 {
    static SPINS_HERE: OnceLock<u32> = OnceLock::new();
    *SPINS_HERE.get_or_init(|| match std::thread::available_parallelism() {
        Ok(cpus) if cpus.get() >= MANY_CPUS => SPINS,
        _ => SPINS_FEW_CPUS,
    })
}

/// Asks `ready` for a short while without giving the CPU away.
pub(super) fn spin_until(mut ready: impl FnMut() -> bool) -> bool {
    for _ in 0..spins() {
        if ready() {
            return true;
        }
        std::hint::spin_loop();
    }
    false
}

/// Locks `mutex`. What it guards is held for a microsecond at most: who slept for it would wake up long after, on a virtual
/// machine after a hundred.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    let mut held = None;
    spin_until(|| {
        held = match mutex.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        held.is_some()
    });
    held.unwrap_or_else(|| mutex.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Parks the calling thread, for at most `bound` if there is one.
pub(super) fn park(bound: Option<Duration>) {
    match bound {
        Some(bound) => std::thread::park_timeout(bound),
        None => std::thread::park(),
    }
}
