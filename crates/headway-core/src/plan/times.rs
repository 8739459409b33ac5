//! When windows open and close, and which packets a cycle carries.

use super::{Pipeline, PipelineSource, PlannedStream};
use crate::units::Nanos;

impl Pipeline {
    /// When the window of `step` in `cycle` opens, counted from the epoch.
    #[must_use]
    pub fn release(&self, cycle: u64, step: usize) -> Nanos {
        let steps_before = if self.is_chained() { 0 } else { step };
        let before = match self.windows.get(..steps_before) {
            Some(windows) if !windows.is_empty() => windows.iter().fold(Nanos::ZERO, |sum, window| sum + *window),
            _ => self.window * steps_before as u64,
        };
        self.start + self.period * cycle + self.gather + before
    }

    /// How long the window of `step` is.
    #[must_use]
    pub fn window_of(&self, step: usize) -> Nanos {
        self.windows.get(step).copied().unwrap_or(self.window)
    }

    /// Whether all steps share one window.
    #[must_use]
    pub fn is_chained(&self) -> bool {
        self.gang.is_some_and(|gang| gang.chained)
    }

    /// The longest time from the release of what a cycle carries, of a message late producers included, to the end of its last
    /// step; `None` = not proven, or not computed.
    #[must_use]
    pub fn bound(&self) -> Option<Nanos> {
        let last = self.steps.len().checked_sub(1)?;
        let before = self.release(0, last).saturating_sub(self.start).saturating_add(self.opens_after());
        Some(before.saturating_add(self.steps[last].bound?))
    }

    /// The time from the release of what a cycle carries to its deadline.
    #[must_use]
    pub fn relative_deadline(&self) -> Nanos {
        let last = self.steps.len().saturating_sub(1);
        self.deadline(0, last).saturating_sub(self.start).saturating_add(self.opens_after())
    }

    /// How long after its release a job finds its window open: a message alone counts from when its producer is late.
    #[must_use]
    pub fn opens_after(&self) -> Nanos {
        if self.source == PipelineSource::Message { self.period.saturating_sub(self.window) } else { Nanos::ZERO }
    }

    /// When the window of `step` in `cycle` closes.
    #[must_use]
    pub fn deadline(&self, cycle: u64, step: usize) -> Nanos {
        self.release(cycle, step) + self.window_of(step)
    }
}

impl PlannedStream {
    /// When `packet` arrives, counted from the epoch.
    #[must_use]
    pub fn arrival(&self, packet: u64) -> Nanos {
        self.start + self.period * packet
    }

    /// The packets that `cycle` of its pipeline carries: those that arrive in `[start of cycle, start of the next)`.
    ///
    /// The ranges of successive cycles follow each other without gap or overlap, so every packet is in exactly one.
    #[must_use]
    pub fn packets_in(&self, pipeline: &Pipeline, cycle: u64) -> std::ops::Range<u64> {
        if pipeline.gather == Nanos::ZERO {
            return cycle..cycle + 1;
        }
        let before = |time: Nanos| time.saturating_sub(self.start).0.div_ceil(self.period.0);
        let from = pipeline.start + pipeline.period * cycle;
        before(from)..before(from + pipeline.period)
    }

    /// The cycle that carries `packet`.
    #[must_use]
    pub fn cycle_of(&self, pipeline: &Pipeline, packet: u64) -> u64 {
        if pipeline.gather == Nanos::ZERO {
            return packet;
        }
        (self.arrival(packet) - pipeline.start).0 / pipeline.period.0
    }
}
