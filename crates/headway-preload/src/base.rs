//! What all layers stand on.
//!
//! - [`symbols`]: the real functions past this library; [`driver`]: those that Headway calls.
//! - [`attention`]: the guest's options, and why a copy is looked at.
//! - [`copy`]: a copy as it was asked for, and how it was made.
//! - [`context`]: what is kept for each CUDA context: the kernel, pinned lines, words of streams.
//! - [`streams`]: what the streams of a context have under way, and whether they have room for more.
//! - [`neighbours`]: guests of one user know of each other's bulk copies by the user's board.
//! - [`pins`]: memory of the program's own that is kept page-locked.
//! - [`kept`]: the calling thread's `errno`, and that it is not cancelled within a call of this library.
//! - [`link`]: whether programs that announce nothing copy out of a GPU, by the counters of its PCIe link.
//! - [`stack`]: whether the calling thread's stack is large enough for a method of Headway's.
//! - [`print`]: lines on standard error.
//! - [`wait`]: waits with a limit.

pub(crate) mod attention;
pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod driver;
pub(crate) mod kept;
pub(crate) mod link;
pub(crate) mod neighbours;
pub(crate) mod pins;
pub(crate) mod print;
pub(crate) mod stack;
mod streams;
pub(crate) mod symbols;
pub(crate) mod wait;
