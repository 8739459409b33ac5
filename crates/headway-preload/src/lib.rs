//! The library that `headway exec` puts in front of an unmodified CUDA program by `LD_PRELOAD`.
//!
//! It changes how the program's copies are made and queued, and with `--depth` when its kernels are, never what they do, in which order, or
//! what a call returns. Whatever it does not know, it passes on untouched: that is the rule for every `return real(..)` here.
//!
//! Its layers, of which each uses only those below it:
//!
//! 1. [`calls`]: how a program's calls get here instead of to the driver.
//! 2. [`decide`]: what becomes of a copy or a launch.
//! 3. [`methods`]: how a copy is made other than by the driver's own call.
//!
//! All of them tell [`observers`] what was done: counts, log, lint, comparison.
//! All use [`base`]: the guest's driver, its options and its contexts.
//!
//! It links no CUDA library. Its only constructor gives SIGUSR1 a handler where `--stats` asks for that. Threads start with the first large copy of ordinary memory, and
//! sleep between copies.
#![allow(unsafe_code)]

mod base;
mod calls;
mod decide;
mod methods;
mod observers;
