//! The library that `headway exec` puts in front of an unmodified CUDA program by `LD_PRELOAD`.
//!
//! It changes how the program's copies are made and queued, never what they copy, in which order, or what a call
//! returns. Whatever it does not know, it passes on untouched: that is the rule for every `return real(..)` here.
//!
//! - [`lookup`]: how calls get here: `dlsym`, `cuGetProcAddress` in all its forms, and exported names.
//! - [`audit`]: the loader's own interface, for what `LD_PRELOAD` does not reach.
//! - [`calls`]: the functions that replace the driver's.
//! - [`shapes`], [`batch`], [`passed`]: copies in rows, many copies in one call, and those that are only counted.
//! - [`decide`]: what becomes of one copy: passed on, made by a kernel in its own stream, or queued in chunks.
//! - [`context`]: what Headway keeps for each CUDA context: the kernel, pinned lines, bulk copies under way.
//! - [`fast`]: large copies of ordinary memory, by several threads and through pinned memory.
//! - [`stack`]: whether the calling thread's stack is large enough for that.
//! - [`log`]: the event log, one line for each copy.
//! - [`lint`]: where in the program copies lose time.
//! - [`verify`]: accelerated copies compared with the driver's.
//! - [`unhooked`]: libraries of the guest that look driver functions up by themselves.
//! - [`neighbours`]: a page in shared memory by which guests of one user know of each other's bulk copies.
//!
//! It links no CUDA library. Its constructor gives SIGUSR1 a handler where `--stats` asks for that, and does nothing else. Threads start with the first large copy of ordinary memory, and
//! sleep between copies.
#![allow(unsafe_code)]

mod audit;
mod batch;
mod calls;
mod context;
mod decide;
mod driver;
mod fast;
mod lint;
mod log;
mod lookup;
mod neighbours;
mod passed;
mod shapes;
mod stack;
mod stats;
mod unhooked;
mod verify;
