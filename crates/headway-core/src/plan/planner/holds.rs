//! What the verdict of a server leaves open.

use super::demands::{Demand, phased_streams};
use crate::analysis::schedulability::PhasedStream;
use crate::plan::{Pipeline, PipelineSource, PlannedStep, Verdict};

/// What a verdict of a server holds for, from the most to the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Holds {
    AnyOffsets,
    /// Messages were combined by the times at which they start.
    OffsetsOfBatches,
    /// The steps of each stream are apart by their windows.
    StepsOfStreams,
    /// The steps of one stream are apart by their windows.
    OneStream,
}

impl Holds {
    const ALL: [Self; 4] = [Self::AnyOffsets, Self::OffsetsOfBatches, Self::StepsOfStreams, Self::OneStream];

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
            Self::StepsOfStreams => {
                "any start of each stream, whose steps keep to their windows; costs from 0 to the worst case"
            }
            Self::OneStream => {
                "any start of the stream, whose steps keep to their windows; costs from 0 to the worst case"
            }
        }
    }
}

/// Whether a verdict rests on the distances between the steps of each stream.
pub(crate) fn keeps_distances(verdict: &Verdict) -> bool {
    Holds::of(&verdict.model) == Holds::StepsOfStreams
}

/// The streams whose steps keep their distances on a server, as far as its verdict rests on that.
pub(crate) fn streams_of(
    verdict: &Verdict,
    steps: &[(&Pipeline, &PlannedStep)],
    demands: &[Demand],
) -> Vec<PhasedStream> {
    if keeps_distances(verdict) { phased_streams(steps, demands) } else { Vec::new() }
}

/// Blocks of messages in the batches among `steps`.
pub(super) fn carried(steps: &[(&Pipeline, &PlannedStep)]) -> usize {
    let parts = |pipeline: &Pipeline| if let PipelineSource::Batch(parts) = &pipeline.source { parts.len() } else { 0 };
    steps.iter().map(|(pipeline, _)| parts(pipeline)).sum()
}
