//! Waits for what a program or a GPU does, always with a limit.

use std::thread;
use std::time::{Duration, Instant};

/// A wait that is longer sleeps between two looks.
const POLL: Duration = Duration::from_micros(50);
const PAUSE: Duration = Duration::from_micros(20);

/// Waits until `is_over`, or for `limit`; how long that was, which is more than nothing.
pub(crate) fn wait_until(limit: Duration, mut is_over: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    loop {
        let is_over = is_over();
        let waited = start.elapsed();
        if is_over || waited >= limit {
            // Who waited at all waited for something.
            return waited.max(Duration::from_nanos(1));
        }
        if waited < POLL { thread::yield_now() } else { thread::sleep(PAUSE) }
    }
}
