//! What was due by the end of a run. In a run that came to its end that is everything.

use headway_core::units::Nanos;

use crate::RunLog;
use crate::timeline::Timeline;

/// What was due until this time is judged; the latest time there is for a run that came to its end.
pub(crate) fn until(log: &RunLog, timeline: &Timeline) -> Nanos {
    if log.incomplete().is_some() { timeline.end } else { Nanos::MAX }
}

/// How many of `total` jobs were due, of which the first is due `first` after the epoch and the others `period` apart.
pub(crate) fn count(log: &RunLog, timeline: &Timeline, total: u64, first: Nanos, period: Nanos) -> u64 {
    if log.incomplete().is_none() {
        return total;
    }
    match timeline.end.0.checked_sub(timeline.epoch.0.saturating_add(first.0)) {
        None => 0,
        Some(since) => (since / period.0.max(1)).saturating_add(1).min(total),
    }
}
