//! What of a cycle and of a job one operation moves.

use std::ops::Range;

use super::Waiting;
use crate::plan::{Pipeline, PlannedOperation, PlannedStep, Source, Work};
use crate::units::Bytes;

/// What a cycle of a message or flow moves; `contents` say otherwise than the plan.
pub(super) fn carried(pipeline: &Pipeline, cycle: u64, contents: Option<&[Option<Range<u64>>]>) -> Bytes {
    if let Some(contents) = contents {
        return Bytes(contents.iter().flatten().map(|bytes| bytes.end - bytes.start).fold(0, u64::saturating_add));
    }
    match &pipeline.source {
        Source::Batch(parts) => {
            let bytes = parts.iter().filter_map(|part| part.in_cycle(cycle)).map(|(_, bytes)| bytes.end - bytes.start);
            Bytes(bytes.fold(0, u64::saturating_add))
        }
        Source::Streams(_)
        | Source::Sharded(_)
        | Source::Parts(_)
        | Source::Message
        | Source::Flow
        | Source::Bulk(_)
        | Source::Urgent(_) => pipeline.reserve,
    }
}

/// The next piece of a waiting job: a chunk of a copy, or everything.
pub(super) fn piece(step: &PlannedStep, waiting: &Waiting) -> (Bytes, Bytes) {
    let left = waiting.bytes.0 - waiting.next.0;
    let chunked =
        step.operations.len() == 1 && step.chunk.0 > 0 && matches!(step.operations[0].work, Work::Copy { .. });
    let bytes = if chunked { left.min(step.chunk.0) } else { left };
    (waiting.next, Bytes(bytes))
}

/// The piece as one operation of the step sees it: blocks of a batch have their own sizes.
pub(super) fn whole(
    step: &PlannedStep,
    operation: &PlannedOperation,
    offset: Bytes,
    bytes: Bytes,
    block: Bytes,
) -> (Bytes, Bytes) {
    match operation.work {
        Work::Copy { bytes: own, .. } if step.operations.len() > 1 => (Bytes(0), own),
        Work::Copy { .. } => (offset, bytes),
        Work::Compute { .. } | Work::Hold => (Bytes(0), block),
    }
}
