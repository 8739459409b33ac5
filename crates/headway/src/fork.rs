//! The answer to everything in a forked child.

pub use headway_os::fork::Home;

use headway_device::DeviceError;

use crate::{Error, Failure};

/// An error in a forked child of the process that `what` was opened in: it has none of the threads, and locks that
/// they held stay locked there.
///
/// # Errors
/// `ErrorKind::Device`.
pub fn at_home(home: Home, what: &str) -> Result<(), Error> {
    if home.is_here() { Ok(()) } else { Err(forked(what)) }
}

#[cold]
fn forked(what: &str) -> Error {
    let reason = "this process was forked from the one that opened it".to_owned();
    let remedy = "use it there, or start the process anew (`spawn` instead of `fork`)".to_owned();
    Failure::Device(DeviceError::Unavailable { what: what.to_owned(), reason, remedy }).into()
}
