//! What Headway asks of the operating system (Linux) and the CPU: clock, scheduling classes, affinity, topology, memory and
//! its limits, copy loops, and what processes meet in: shared words, futexes, local sockets.
//!
//! Nothing here panics when the system refuses: every absence is an error value with the errno, what would allow the
//! call, and what is used instead.
#![allow(unsafe_code)]

pub mod affinity;
pub mod board;
pub mod clock;
pub mod copy;
pub mod cpu_shares;
pub mod descriptor;
pub mod environment;
mod errno;
mod event;
pub mod file_reader;
pub mod fork;
pub mod function;
pub mod inheriting_mutex;
pub mod input;
pub mod ipc;
pub mod limits;
pub mod memory;
mod replace;
pub mod sched;
pub mod threads;
pub mod topology;
pub mod userfaultfd;

pub use errno::{Errno, OsError};
#[cfg(feature = "tracing")]
#[doc(hidden)]
pub use event::carrier;
pub use replace::{note_the_start, replace_process};

/// Flags with which a file is opened where somebody else could have put a link, or a pipe that nobody writes, in its place.
pub const OPEN_NO_LINK: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK;

#[cfg(test)]
fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed().as_secs() < 300, "never: {what}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
