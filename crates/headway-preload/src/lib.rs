//! The library that `headway exec` puts in front of an unmodified CUDA program by `LD_PRELOAD`.
//!
//! It changes how the program's copies are made and queued, never what they copy, in which order, or what a call
//! returns. Whatever it does not know, it passes on untouched: that is the rule for every `return real(..)` here.
//!
//! Files below use files above, never the other way round:
//!
//! - [`base`]: what all layers stand on: the driver that the guest has loaded, and what is kept for each context.
//! - [`observers`]: log, lint, counts and comparison of what was done.
//! - [`methods`]: layer 3, how a copy is made other than by the driver's call.
//! - [`decide`]: layer 2, what becomes of a copy.
//! - [`calls`]: layer 1, how a program's calls get here instead of to the driver.
//!
//! It links no CUDA library. Its constructor gives SIGUSR1 a handler where `--stats` asks for that, and does nothing else. Threads start with the first large copy of ordinary memory, and
//! sleep between copies.
#![allow(unsafe_code)]

mod base;
mod calls;
mod decide;
mod methods;
mod observers;
