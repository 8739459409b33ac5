//! Layer 3: how a copy is made other than by the driver's call.

pub(crate) mod fast;
