//! Responses of a stream or task: a histogram of all of them, and points to draw over the run, in bounded number.

use headway_core::units::Nanos;
use serde::Serialize;

/// Points that a page draws, over all streams.
const POINTS_MAX: usize = 60_000;
/// Points that each stream may have however many streams there are.
const POINTS_MIN: usize = 64;
/// Bars of a histogram.
const BINS: usize = 48;

/// One response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    /// When it ended, after the epoch.
    pub(crate) at: Nanos,
    /// How long it took.
    pub(crate) response: Nanos,
    /// Whether it ended after its deadline.
    pub(crate) late: bool,
}

/// Responses as the data block has them; equal positions in `at` and `response` belong together.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Series {
    at: Vec<Nanos>,
    response: Vec<Nanos>,
    /// Positions of those that were late.
    late: Vec<usize>,
    /// How many there were, drawn or not.
    of: usize,
    /// How many responses of all fall into each part of `[0, end)`.
    bins: Vec<u64>,
    end: Nanos,
}

/// Points that each of `streams` streams may have.
pub(crate) fn room(streams: usize) -> usize {
    (POINTS_MAX / streams.max(1)).max(POINTS_MIN)
}

/// Responses in the order of their end. Of more than `room`, the longest and the shortest of every few are drawn.
pub(crate) fn series(points: &[Point], deadline: Nanos, room: usize) -> Series {
    let longest = points.iter().map(|point| point.response).max().unwrap_or_default().max(deadline);
    let end = Nanos(longest.0.saturating_add(longest.0 / 32).max(1));
    let mut series = Series { of: points.len(), bins: vec![0; BINS], end, ..Series::default() };
    for point in points {
        let bin = u128::from(point.response.0) * BINS as u128 / u128::from(end.0);
        series.bins[usize::try_from(bin).unwrap_or(BINS).min(BINS - 1)] += 1;
    }
    if points.len() <= room {
        points.iter().for_each(|point| series.push(point));
        return series;
    }
    for few in points.chunks(points.len().div_ceil((room / 2).max(1))) {
        let rank = |at: &usize| (few[*at].late, few[*at].response);
        let (Some(most), Some(least)) = ((0..few.len()).max_by_key(rank), (0..few.len()).min_by_key(rank)) else {
            continue;
        };
        series.push(&few[most.min(least)]);
        if most != least {
            series.push(&few[most.max(least)]);
        }
    }
    series
}

impl Series {
    fn push(&mut self, point: &Point) {
        if point.late {
            self.late.push(self.at.len());
        }
        self.at.push(point.at);
        self.response.push(point.response);
    }
}

/// Ends of late responses in order, at most one in every 4096th part of the run.
pub(crate) fn missed<'a>(points: impl Iterator<Item = &'a Point>, span: Nanos) -> Vec<Nanos> {
    let mut ends: Vec<Nanos> = points.filter(|point| point.late).map(|point| point.at).collect();
    ends.sort_unstable();
    let part = (span.0 / 4_096).max(1);
    ends.dedup_by_key(|end| end.0 / part);
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_responses_the_extremes_are_drawn_and_all_are_counted() {
        let point = |at: u64| {
            let response = if at == 7_777 { 2_000 } else { 100 + at % 10 };
            Point { at: Nanos(at), response: Nanos(response), late: response > 1_000 }
        };
        let points: Vec<_> = (0..100_000).map(point).collect();
        let series = series(&points, Nanos(1_000), 500);
        assert!(series.at.len() <= 500 && series.at.is_sorted(), "{}", series.at.len());
        assert_eq!(series.late.iter().map(|at| series.at[*at]).collect::<Vec<_>>(), [Nanos(7_777)]);
        assert_eq!((series.bins.iter().sum::<u64>(), series.of), (100_000, 100_000));
        assert_eq!(series.bins.last(), Some(&0), "the longest is left of the edge");
        assert_eq!(missed(points.iter(), Nanos(100_000)), [Nanos(7_777)]);
    }

    #[test]
    fn few_responses_are_all_drawn() {
        let points = [Point { at: Nanos(5), response: Nanos(5), late: false }; 3];
        assert_eq!(series(&points, Nanos(0), 64).at.len(), 3);
        assert_eq!(series(&[], Nanos(0), 64).of, 0);
    }
}
