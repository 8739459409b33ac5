//! What can go wrong on a device.

use std::ops::Range;

use headway_core::files::machine::EngineClass;
use headway_core::units::{Bytes, Nanos};

use crate::access::Access;

/// What can go wrong on a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// Hardware, a library or one of its functions is not there.
    #[error("{what} is not available: {reason}; {remedy}")]
    Unavailable {
        /// What is missing.
        what: String,
        /// How that was found out.
        reason: String,
        /// What to do about it.
        remedy: String,
    },
    /// The caller's mistake.
    #[error("invalid {what}: {reason}")]
    Invalid {
        /// The call or operation.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The device has no engine of this class.
    #[error("device `{device}` has no engine of class {}", class_name(*class))]
    NoEngine {
        device: String,
        /// The class asked for.
        class: EngineClass,
    },
    /// A claim beyond the end of its buffer.
    #[error("bytes {}..{} lie outside the buffer of {len} bytes", range.start, range.end)]
    OutOfRange {
        /// What was asked for.
        range: Range<usize>,
        /// Length of the buffer.
        len: usize,
    },
    /// A claim on bytes that are claimed already, where one of the two writes.
    #[error(
        "bytes {}..{} cannot be claimed for {access}: {}..{} are claimed for {held_access}; \
         wait until that operation is complete or drop that span",
        range.start, range.end, held.start, held.end
    )]
    Overlap {
        /// What was asked for.
        range: Range<usize>,
        /// And to do what.
        access: Access,
        /// The claim in the way.
        held: Range<usize>,
        /// What that one does.
        held_access: Access,
    },
    /// A limit is reached.
    #[error("refused: the limit {limit} = {max} is reached")]
    Refused {
        /// The limit's name in [`DeviceLimits`](crate::DeviceLimits), or of a fixed bound.
        limit: &'static str,
        max: u64,
    },
    /// Memory is exhausted, by its amount or by a limit.
    #[error("{what}: {wanted} wanted, {available} available")]
    OutOfMemory {
        /// Which memory.
        what: &'static str,
        wanted: Bytes,
        /// Bytes that would be given.
        available: Bytes,
    },
    /// A call of the driver failed.
    #[error("{call} failed with {name} ({code})")]
    Driver {
        call: &'static str,
        /// The driver's code.
        code: i32,
        /// The driver's name for it.
        name: String,
    },
    /// The device failed earlier in a way that it does not recover from.
    #[error("the device is lost after an earlier fault; close it and open it again")]
    DeviceLost,
    /// Something did not answer within its bound.
    #[error("{what} did not answer within {after}")]
    Timeout {
        /// What was waited for, with what is known of its state.
        what: String,
        after: Nanos,
    },
    /// The driver refused a kernel's code.
    #[error("kernel `{kernel}` cannot be loaded: {reason}\n{log}")]
    KernelLoad {
        kernel: String,
        /// The driver's name for the error.
        reason: String,
        /// What its compiler printed.
        log: String,
    },
    /// The CPU form of a work failed.
    #[error(transparent)]
    Work(#[from] WorkError),
}

/// The word of the machine file for an engine class.
#[must_use]
pub(crate) const fn class_name(class: EngineClass) -> &'static str {
    match class {
        EngineClass::H2d => "h2d",
        EngineClass::D2h => "d2h",
        EngineClass::Peer => "peer",
        EngineClass::Ee => "ee",
    }
}

/// A state that cannot be made, or a block that a work refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkError {
    /// A portion lacks what the work needs.
    #[error("kernel `{work}` needs {missing} for stream `{stream}`")]
    MissingParameter {
        work: String,
        stream: String,
        /// What is missing, with the workload key that gives it.
        missing: &'static str,
    },
    /// The input block is damaged or has a size the work cannot take.
    #[error("kernel `{work}` refuses the block: {reason}")]
    BadBlock { work: String, reason: String },
}
