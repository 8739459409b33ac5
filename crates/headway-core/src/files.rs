//! What users write and read: machine files, workload files, the options of a guest, and errors that point into them.

pub(crate) mod document;
pub use document::suggest;
pub mod copy_cache;
pub mod error;
pub mod guest;
pub mod guest_log;
pub mod machine;
pub mod workload;
