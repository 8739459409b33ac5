//! What all layers stand on.
//!
//! - [`driver`]: the functions of the guest's driver.
//! - [`context`]: what is kept for each CUDA context: the kernel, pinned lines, bulk copies under way.
//! - [`neighbours`]: a page in shared memory by which guests of one user know of each other's bulk copies.
//! - [`stack`]: whether the calling thread's stack is large enough for a method of Headway's.

pub(crate) mod context;
pub(crate) mod driver;
pub(crate) mod neighbours;
pub(crate) mod stack;
