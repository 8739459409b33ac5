//! The primitives of this protocol; its model check brings others of the same names.

pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};
