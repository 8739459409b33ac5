//! The primitives that [`exchange`](super::exchange) is built on; its model check brings others of the same names.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
pub(super) use std::sync::Arc;
use std::sync::OnceLock;
pub(super) use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
pub(super) use std::thread::{Thread, current};
use std::time::Duration;

use headway_os::inheriting_mutex::{InheritingGuard, InheritingMutex};

/// Looks at a flag before parking: some 200 us, longer than an engine takes for a chunk, so that a thread that has been too
/// fast is not woken by a system call of the thread that keeps the engine busy.
const SPINS: u32 = 4_000;
/// Looks at a flag where a thread may share a CPU with the one that it waits for: some 20 us.
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

/// Looks between two tries to lock at most: 16 of them are under a microsecond.
const BACKOFF_MAX: u32 = 16;

/// A lock for what is held for a microsecond at most by many threads in turns: who slept for it would wake up long after, on a
/// virtual machine after a hundred. A real-time thread that waits lends its priority to the holder, which may be an ordinary thread
/// without a CPU.
///
/// Who waits looks at `held`, in a line of its own, and tries only when nobody has it, each at moments of its own: every try,
/// a failing one too, takes the line from the core of the holder, who needs it to give the lock back.
pub(super) struct Mutex<T> {
    held: LockWord,
    data: InheritingMutex<T>,
}

#[repr(align(128))]
struct LockWord(AtomicBool);

impl<T> Mutex<T> {
    pub(super) fn new(data: T) -> Self {
        Self { held: LockWord(AtomicBool::new(false)), data: InheritingMutex::new(data) }
    }

    /// A try that finds it held writes nothing.
    fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        if self.held.0.load(Ordering::Relaxed) {
            return None;
        }
        self.data.try_lock().map(|data| self.hold(data))
    }

    fn hold<'a>(&'a self, data: InheritingGuard<'a, T>) -> MutexGuard<'a, T> {
        self.held.0.store(true, Ordering::Relaxed);
        MutexGuard { held: &self.held.0, data }
    }
}

/// The right to what a [`Mutex`] guards.
pub(super) struct MutexGuard<'a, T> {
    held: &'a AtomicBool,
    data: InheritingGuard<'a, T>,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.data
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.data
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        // A hint only: `data` is unlocked after it.
        self.held.store(false, Ordering::Relaxed);
    }
}

/// Locks `mutex`.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    let (mut held, mut most, mut pause) = (mutex.try_lock(), 1, 0);
    if held.is_none() {
        spin_until(|| {
            if pause > 0 {
                pause -= 1;
                return false;
            }
            held = mutex.try_lock();
            most = (2 * most).min(BACKOFF_MAX);
            pause = scattered() % most;
            held.is_some()
        });
    }
    held.unwrap_or_else(|| mutex.hold(mutex.data.lock()))
}

/// A number that differs between threads and calls.
fn scattered() -> u32 {
    thread_local! {
        static STATE: Cell<u32> = const { Cell::new(0) };
    }
    STATE.with(|state| {
        // The state's address tells threads apart.
        let next =
            state.get().wrapping_mul(1_664_525).wrapping_add(1_013_904_223 ^ std::ptr::from_ref(state).addr() as u32);
        state.set(next);
        next >> 16
    })
}

/// Parks the calling thread, for at most `bound` if there is one.
pub(super) fn park(bound: Option<Duration>) {
    match bound {
        Some(bound) => std::thread::park_timeout(bound),
        None => std::thread::park(),
    }
}
