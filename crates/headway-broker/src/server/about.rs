//! What a status says of the broker's own process.

use crate::status::MpsStatus;

/// How the broker's process runs, and what else it does.
pub(super) struct About {
    /// How its thread is scheduled.
    pub(super) scheduling: String,
    /// The MPS daemon that it runs.
    pub(super) mps: Option<MpsStatus>,
}

impl Default for About {
    fn default() -> Self {
        Self { scheduling: "as it was started".to_owned(), mps: None }
    }
}
