//! What of a cycle and of a job one operation moves.

use std::ops::Range;

use super::WaitingStep;
use crate::plan::{OperationWork, Pipeline, PipelineSource, PlannedOperation, PlannedStep};
use crate::units::Bytes;

/// What a cycle of a message or flow moves; `contents` say otherwise than the plan.
pub(super) fn carried(pipeline: &Pipeline, cycle: u64, contents: Option<&[Option<Range<u64>>]>) -> Bytes {
    if let Some(contents) = contents {
        return Bytes(contents.iter().flatten().map(|bytes| bytes.end - bytes.start).fold(0, u64::saturating_add));
    }
    match &pipeline.source {
        PipelineSource::Batch(parts) => {
            let bytes = parts.iter().filter_map(|part| part.in_cycle(cycle)).map(|(_, bytes)| bytes.end - bytes.start);
            Bytes(bytes.fold(0, u64::saturating_add))
        }
        PipelineSource::Streams(_)
        | PipelineSource::Sharded(_)
        | PipelineSource::Parts(_)
        | PipelineSource::Packets(_)
        | PipelineSource::Message
        | PipelineSource::Demand
        | PipelineSource::Bulk(_)
        | PipelineSource::Urgent(_) => pipeline.reserve,
    }
}

/// What a waiting job submits next: a chunk of a copy, or everything.
pub(super) fn chunk(step: &PlannedStep, waiting: &WaitingStep) -> (Bytes, Bytes) {
    let left = waiting.bytes.0 - waiting.next.0;
    let chunked =
        step.operations.len() == 1 && step.chunk.0 > 0 && matches!(step.operations[0].work, OperationWork::Copy { .. });
    let bytes = if chunked { left.min(step.chunk.0) } else { left };
    (waiting.next, Bytes(bytes))
}

/// The chunk as one operation of the step sees it: blocks of a batch have their own sizes.
pub(super) fn whole(
    step: &PlannedStep,
    operation: &PlannedOperation,
    offset: Bytes,
    bytes: Bytes,
    block: Bytes,
) -> (Bytes, Bytes) {
    match operation.work {
        OperationWork::Copy { bytes: own, .. } if step.operations.len() > 1 => (Bytes(0), own),
        OperationWork::Copy { .. } => (offset, bytes),
        OperationWork::Compute { .. } | OperationWork::Hold => (Bytes(0), block),
    }
}
