//! Layer 3: how a copy is made other than by the driver's own call.
//!
//! - [`fast`]: large copies of ordinary memory, by several threads and through pinned memory.
//! - [`pinned`]: copies of memory that is kept page-locked.
//! - [`aside`]: small copies out of a GPU, by a kernel in the copy's own stream.
//! - [`chunks`]: large copies out of a GPU, with a written word behind each chunk.
//! - [`batch`]: some of the copies of a call for many.

pub(crate) mod aside;
pub(crate) mod batch;
pub(crate) mod chunks;
pub(crate) mod fast;
pub(crate) mod pinned;
