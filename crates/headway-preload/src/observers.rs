//! What was done, and for whom it is written down.
//!
//! - [`log`]: the event log, one line for each copy.
//! - [`lint`]: where in the program copies lose time.
//! - [`stats`], [`passed`]: counts.
//! - [`verify`]: accelerated copies compared with the driver's.
//! - [`unhooked`]: libraries of the guest that look driver functions up by themselves.

pub(crate) mod lint;
pub(crate) mod log;
pub(crate) mod passed;
pub(crate) mod stats;
pub(crate) mod unhooked;
pub(crate) mod verify;
