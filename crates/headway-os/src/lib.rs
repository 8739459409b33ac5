//! What Headway asks of the operating system (Linux): clock, scheduling classes, affinity, topology and memory limits.
//!
//! Nothing here panics when the system refuses: every absence is an error value with the errno, what would allow the
//! call, and what is used instead.

pub mod affinity;
pub mod clock;
mod errno;
pub mod memory;
pub mod sched;
pub mod topology;

pub use errno::{Errno, OsError};
