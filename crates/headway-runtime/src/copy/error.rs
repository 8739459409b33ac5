//! What can go wrong with a copy.

use headway_core::decisions::chooser::CopyAbsence;
use headway_core::models::transfer::Method;
use headway_core::units::Nanos;
use headway_device::DeviceError;

/// A copy that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The method that was asked for cannot be used.
    #[error("method `{method}` cannot be used")]
    Unavailable {
        method: Method,
        /// Why, with the remedy.
        source: DeviceError,
    },
    /// The method needs threads and pinned memory that are being set up.
    #[error("method `{method}` is being set up: {reason}")]
    NotReady {
        method: Method,
        /// What is missing.
        reason: String,
    },
    /// The caller's mistake: memory of a wrong kind, a range beyond its end.
    #[error("invalid {what}: {reason}")]
    Invalid {
        /// What was asked for.
        what: &'static str,
        /// What is wrong with it, and what to do instead.
        reason: String,
    },
    /// Bytes that another copy or claim uses, or that one request names twice.
    #[error("{what} overlap: {reason}")]
    Overlap {
        /// Which bytes.
        what: &'static str,
        /// Which others.
        reason: String,
    },
    /// A limit is reached.
    #[error("refused: the limit {limit} = {max} is reached")]
    Refused { limit: &'static str, max: u64 },
    /// The device refused or failed.
    #[error("the copy failed at chunk {chunk}; the first {completed_prefix} bytes are in place")]
    Failed {
        chunk: u64,
        /// Every byte below is in place.
        completed_prefix: u64,
        source: DeviceError,
    },
    /// No progress within the bound.
    #[error("{what} made no progress within {after}; the first {completed_prefix} bytes are in place")]
    Timeout {
        /// What was waited for.
        what: String,
        after: Nanos,
        /// Every byte below is in place.
        completed_prefix: u64,
    },
    /// Somebody asked copies to end.
    #[error("the copy was cancelled; the first {completed_prefix} bytes are in place")]
    Cancelled {
        /// Every byte below is in place.
        completed_prefix: u64,
    },
    /// The device failed in a way that it does not recover from.
    #[error("the device is lost after an earlier fault; close it and open it again")]
    DeviceLost,
    /// Pages of a mapped file cannot be read.
    #[error("a page of the mapped file cannot be read: {reason}; the first {completed_prefix} bytes are in place")]
    Io {
        /// What the system says.
        reason: String,
        /// Every byte below is in place.
        completed_prefix: u64,
    },
}

impl From<DeviceError> for CopyError {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Invalid { what, reason } => Self::Invalid { what, reason },
            DeviceError::Refused { limit, max } => Self::Refused { limit, max },
            DeviceError::Timeout { what, after } => Self::Timeout { what, after, completed_prefix: 0 },
            DeviceError::DeviceLost => Self::DeviceLost,
            source => Self::Failed { chunk: 0, completed_prefix: 0, source },
        }
    }
}

impl CopyError {
    /// What a device's error means for a copy by `method` of which `prefix` bytes, and `chunk` chunks, are in place.
    pub(super) fn device(method: Method, error: DeviceError, chunk: u64, prefix: u64) -> Self {
        match error {
            DeviceError::Unavailable { .. } | DeviceError::KernelLoad { .. } | DeviceError::OutOfMemory { .. } => {
                Self::Unavailable { method, source: error }
            }
            DeviceError::Invalid { what, reason } => Self::Invalid { what, reason },
            DeviceError::OutOfRange { .. } => Self::Invalid { what: "range", reason: error.to_string() },
            DeviceError::Overlap { .. } => Self::Overlap { what: "copies", reason: error.to_string() },
            DeviceError::Refused { limit, max } => Self::Refused { limit, max },
            DeviceError::DeviceLost => Self::DeviceLost,
            DeviceError::Timeout { what, after } => Self::Timeout { what, after, completed_prefix: prefix },
            source => Self::Failed { chunk, completed_prefix: prefix, source },
        }
    }

    /// Whether nothing was tried on the device, so that another method may do it; and whether this one is absent for good.
    pub(super) const fn absence(&self) -> Option<CopyAbsence> {
        match self {
            // Other memory, or the same when less is locked, may be pinned.
            Self::Unavailable { method: Method::Pinning, .. } | Self::Refused { .. } => Some(CopyAbsence::Passing),
            Self::Unavailable { .. } => Some(CopyAbsence::Lasting),
            Self::NotReady { .. } => Some(CopyAbsence::Starting),
            _ => None,
        }
    }
}

/// `error` with its causes, as one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
