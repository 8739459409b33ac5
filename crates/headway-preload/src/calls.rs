//! Layer 1: how a program's calls get here instead of to the driver.
//!
//! - [`lookup`]: `dlsym`, `cuGetProcAddress` in all its forms, and exported names.
//! - [`audit`]: the loader's own interface, for what `LD_PRELOAD` does not reach.
//! - [`table`]: the functions that replace the driver's.
//! - [`shapes`]: copies in rows.

pub(crate) mod audit;
pub(crate) mod lookup;
pub(crate) mod shapes;
pub(crate) mod table;
