//! Simulations on all cores, for this project's programs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use headway_os::threads;

/// Does `count` pieces of work on all cores; the results in their order.
///
/// # Errors
/// The first of them, when all is done.
pub fn on_all_cores<T: Send, E: Send>(count: usize, work: impl Fn(usize) -> Result<T, E> + Sync) -> Result<Vec<T>, E> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, Result<T, E>)>> = Mutex::new(Vec::with_capacity(count));
    let count_of_threads = thread::available_parallelism().map_or(1, usize::from).min(count.max(1));
    let take_pieces = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                break;
            }
            let result = work(at);
            results.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
        }
    };
    thread::scope(|scope| {
        for _ in 1..count_of_threads {
            // Where the system refuses a thread, the others do its share.
            let _ = threads::without_signals(|| thread::Builder::new().spawn_scoped(scope, take_pieces));
        }
        take_pieces();
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}
