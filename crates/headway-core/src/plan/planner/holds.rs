//! What the verdict of a server leaves open.

use super::{Pipeline, PipelineSource, PlannedStep};

/// What a verdict of a server holds for, from the most to the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Holds {
    AnyOffsets,
    /// Messages were combined by the times at which they start.
    OffsetsOfBatches,
    /// The steps of one stream are apart by their windows.
    OneStream,
}

impl Holds {
    const ALL: [Self; 3] = [Self::AnyOffsets, Self::OffsetsOfBatches, Self::OneStream];

    pub(super) fn for_any(steps: &[(&Pipeline, &PlannedStep)]) -> Self {
        if carried(steps) > 1 || steps.iter().any(|(_, step)| step.batch.is_some()) {
            Self::OffsetsOfBatches
        } else {
            Self::AnyOffsets
        }
    }

    /// That of a server's verdict.
    pub(super) fn of(model: &str) -> Self {
        Self::ALL.into_iter().find(|of| model.ends_with(of.text())).unwrap_or(Self::AnyOffsets)
    }

    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::AnyOffsets => "any offsets, costs from 0 to the worst case",
            Self::OffsetsOfBatches => {
                "any offsets of batches, whose messages keep their starts; costs from 0 to the worst case"
            }
            Self::OneStream => {
                "any start of the stream, whose steps keep to their windows; costs from 0 to the worst case"
            }
        }
    }
}

/// Blocks of messages in the batches among `steps`.
pub(super) fn carried(steps: &[(&Pipeline, &PlannedStep)]) -> usize {
    let parts = |pipeline: &Pipeline| if let PipelineSource::Batch(parts) = &pipeline.source { parts.len() } else { 0 };
    steps.iter().map(|(pipeline, _)| parts(pipeline)).sum()
}
