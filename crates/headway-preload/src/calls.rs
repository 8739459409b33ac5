//! Layer 1: how a program's calls get here instead of to the driver.
//!
//! - [`lookup`]: the program's `dlsym`.
//! - [`audit`]: the loader's own interface, for what `LD_PRELOAD` does not reach.
//! - [`table`]: the functions that replace the driver's; [`replaced`]: the real ones behind them, and `cuGetProcAddress`.
//! - [`shapes`]: copies in rows.
//! - [`begin`], [`process`]: the first call, and the end of a process without one.

mod audit;
mod begin;
mod lookup;
mod process;
mod replaced;
mod shapes;
mod table;
