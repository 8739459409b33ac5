//! The cost of one way over sizes: interpolated between what was measured (specification of transfers, 3.1).

use std::cmp::Ordering;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::models::wide;
use crate::units::{Bytes, Nanos, SIZE_MAX, TIME_MAX};

/// Fewest copies of which a 99th percentile is not just the slowest.
pub const TAIL_SAMPLES: u32 = 100;

/// The 99th percentile of `n` samples, unless they are too few to have one: then it would be just the largest.
pub fn tail<T>(n: u64, p99: T) -> Option<T> {
    (n >= u64::from(TAIL_SAMPLES)).then_some(p99)
}

/// One size that was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurvePoint {
    /// Size of the copy.
    pub bytes: Bytes,
    /// Samples; 0 = not measured but set.
    pub n: u32,
    /// Half of the samples took at most this long.
    pub median: Nanos,
    /// 99 % of the samples took at most this long; [`Nanos::MAX`] = not measured.
    pub p99: Nanos,
    /// The slowest sample; [`Nanos::MAX`] = not measured.
    pub max: Nanos,
}

/// A figure of a [`CurvePoint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Statistic {
    /// [`CurvePoint::median`].
    Median,
    /// [`CurvePoint::p99`].
    P99,
    /// [`CurvePoint::max`], made monotone: for bounds.
    Max,
}

/// Measured points, ascending by size, at least one. Clones share them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Curve {
    points: Arc<[CurvePoint]>,
    /// The largest `max` up to each point.
    tops: Arc<[Nanos]>,
}

/// A time as an exact fraction of nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exact {
    above: u128,
    below: u128,
}

impl Exact {
    /// This many times as long.
    pub(super) const fn times(self, times: u32) -> Self {
        Self { above: self.above.saturating_mul(times as u128), below: self.below }
    }

    /// Rounded up to whole nanoseconds.
    pub(super) fn rounded_up(self) -> Nanos {
        // Nearly always; a division of 128 bits takes several times as long as the rest of a look-up.
        if let (Ok(above), Ok(below)) = (u64::try_from(self.above), u64::try_from(self.below)) {
            return Nanos(above.div_ceil(below));
        }
        Nanos(u64::try_from(self.above.div_ceil(self.below)).unwrap_or(u64::MAX))
    }

    pub(super) fn compare(self, other: Self) -> Ordering {
        if self.below == other.below {
            return self.above.cmp(&other.above);
        }
        wide::multiply(self.above, other.below).cmp(&wide::multiply(other.above, self.below))
    }
}

impl Curve {
    /// The curve through `points`.
    ///
    /// `None` without a point, where sizes do not ascend, where median, p99 and max of one size do not, or beyond what a file
    /// may say: 2^50 bytes, 366 days.
    #[must_use]
    pub fn new(points: Vec<CurvePoint>) -> Option<Self> {
        // With these limits every step of the interpolation fits 128 bits at any size.
        let known = |time: Nanos| time <= TIME_MAX || time == Nanos::MAX;
        let fits = |p: &CurvePoint| {
            let ordered = p.median <= p.p99 && p.p99 <= p.max;
            ordered && p.bytes <= SIZE_MAX && p.median <= TIME_MAX && known(p.p99) && known(p.max)
        };
        let ascending = points.windows(2).all(|pair| pair[0].bytes < pair[1].bytes);
        if points.is_empty() || !ascending || !points.iter().all(fits) {
            return None;
        }
        let mut top = Nanos::ZERO;
        let tops = points.iter().map(|point| {
            top = top.max(point.max);
            top
        });
        let tops: Vec<Nanos> = tops.collect();
        Some(Self { points: points.into(), tops: tops.into() })
    }

    #[must_use]
    pub fn points(&self) -> &[CurvePoint] {
        &self.points
    }

    /// What a copy of `bytes` takes, rounded up; [`Nanos::MAX`] where the statistic was not measured.
    ///
    /// Linear in bytes between two points. Below the first point its cost. Beyond the last the slope of the last two, or
    /// none if that falls; with a single point, in proportion to it. The maximum never falls with size. Of one size the median
    /// is never above the 99th percentile, nor that above the maximum.
    #[must_use]
    pub fn at(&self, bytes: Bytes, statistic: Statistic) -> Nanos {
        self.exact(bytes, statistic).map_or(Nanos::MAX, Exact::rounded_up)
    }

    fn time(&self, at: usize, statistic: Statistic) -> Option<u128> {
        let time = match statistic {
            Statistic::Median => self.points[at].median,
            Statistic::P99 => self.points[at].p99,
            Statistic::Max => self.tops[at],
        };
        (time != Nanos::MAX).then_some(u128::from(time.0))
    }

    /// [`Curve::at`] before it is rounded; `None` where the statistic was not measured.
    pub(super) fn exact(&self, bytes: Bytes, statistic: Statistic) -> Option<Exact> {
        let own = self.along(bytes, statistic)?;
        let beyond = self.points.last().is_some_and(|last| last.bytes < bytes);
        if statistic != Statistic::P99 || !beyond {
            return Some(own);
        }
        // Beyond the last point a median that rises faster would overtake.
        let median = self.along(bytes, Statistic::Median)?;
        Some(if own.compare(median) == Ordering::Less { median } else { own })
    }

    /// A statistic along its own line.
    fn along(&self, bytes: Bytes, statistic: Statistic) -> Option<Exact> {
        let size = |at: usize| u128::from(self.points[at].bytes.0);
        let (bytes, last) = (u128::from(bytes.0), self.points.len() - 1);
        let next = self.points.partition_point(|point| u128::from(point.bytes.0) < bytes);
        if next <= last && (next == 0 || size(next) == bytes) {
            return Some(Exact { above: self.time(next, statistic)?, below: 1 });
        }
        if next <= last {
            let (low, high) = (self.time(next - 1, statistic)?, self.time(next, statistic)?);
            let (past, step) = (bytes - size(next - 1), size(next) - size(next - 1));
            // Weights that add up to the step keep a falling part free of negative numbers.
            return Some(Exact { above: low * (step - past) + high * past, below: step });
        }
        let top = self.time(last, statistic)?;
        if last == 0 {
            let whole = Exact { above: top, below: 1 };
            return Some(if size(0) == 0 { whole } else { Exact { above: top * bytes, below: size(0) } });
        }
        let (rise, step) = (self.last_rise(statistic)?, size(last) - size(last - 1));
        Some(Exact { above: top * step + rise * (bytes - size(last)), below: step })
    }

    /// What the last point is above the one before; for bounds the largest of all statistics, so that no other one ever
    /// exceeds them.
    fn last_rise(&self, statistic: Statistic) -> Option<u128> {
        let last = self.points.len() - 1;
        let rise = |of| Some(self.time(last, of)?.saturating_sub(self.time(last - 1, of)?));
        let own = rise(statistic)?;
        let others = [Statistic::Median, Statistic::P99].into_iter().filter_map(rise);
        Some(if statistic == Statistic::Max { others.fold(own, u128::max) } else { own })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn point(bytes: u64, median: u64, p99: u64, max: u64) -> CurvePoint {
        CurvePoint { bytes: Bytes(bytes), n: 9, median: Nanos(median), p99: Nanos(p99), max: Nanos(max) }
    }

    fn curve(points: &[(u64, u64)]) -> Curve {
        Curve::new(points.iter().map(|&(bytes, time)| point(bytes, time, time, time)).collect()).expect("ascending")
    }

    #[test]
    fn costs_are_interpolated_in_bytes_and_rounded_up() {
        let of = |bytes| curve(&[(16, 100), (32, 103), (64, 300)]).at(Bytes(bytes), Statistic::Median).0;
        assert_eq!([of(0), of(1), of(16)], [100, 100, 100], "below the first point its cost");
        assert_eq!([of(17), of(24), of(32)], [101, 102, 103]);
        assert_eq!([of(33), of(64)], [110, 300]);
        assert_eq!([of(65), of(96)], [307, 497], "beyond the last its slope");
    }

    #[test]
    fn a_slope_that_falls_at_the_end_is_level_beyond_and_a_single_point_is_scaled() {
        assert_eq!(curve(&[(1, 9), (3, 5)]).at(Bytes(2), Statistic::Median), Nanos(7));
        assert_eq!(curve(&[(1, 9), (3, 5)]).at(Bytes(100), Statistic::Median), Nanos(5));
        assert_eq!(curve(&[(4, 10)]).at(Bytes(5), Statistic::Median), Nanos(13));
        assert_eq!(curve(&[(0, 10)]).at(Bytes(5), Statistic::Median), Nanos(10));
    }

    #[test]
    fn a_99th_percentile_is_never_below_the_median_beyond_what_was_measured() {
        // The median rises by 3 from point to point, the 99th percentile falls.
        let curve = Curve::new(vec![point(10, 5, 20, 20), point(20, 8, 9, 30)]).expect("ascending");
        let of = |bytes| [Statistic::Median, Statistic::P99].map(|statistic| curve.at(Bytes(bytes), statistic).0);
        assert_eq!([of(20), of(24), of(50)], [[8, 9], [10, 10], [17, 17]]);
    }

    #[test]
    fn the_slowest_sample_counts_for_all_larger_sizes() {
        let curve = Curve::new(vec![point(1, 5, 6, 90), point(11, 6, 7, 20), point(21, 7, 8, 100)]).expect("ascending");
        assert_eq!([1, 6, 11, 16].map(|b| curve.at(Bytes(b), Statistic::Max).0), [90, 90, 90, 95]);
        assert_eq!(curve.at(Bytes(11), Statistic::P99), Nanos(7));
    }

    #[test]
    fn what_was_not_measured_is_never() {
        let max = u64::MAX;
        let curve =
            Curve::new(vec![point(1, 5, max, max), point(11, 6, 7, 20), point(21, 7, 8, 9)]).expect("ascending");
        assert_eq!([1, 5, 11, 16].map(|b| curve.at(Bytes(b), Statistic::P99).0), [max, max, 7, 8]);
        assert_eq!(curve.at(Bytes(40), Statistic::Max), Nanos::MAX, "a bound needs every smaller size");
    }

    #[test]
    fn points_out_of_order_or_out_of_range_are_no_curve() {
        assert_eq!(Curve::new(vec![]), None);
        assert_eq!(Curve::new(vec![point(2, 1, 1, 1), point(2, 1, 1, 1)]), None);
        assert_eq!(Curve::new(vec![point(2, 3, 2, 4)]), None);
        assert_eq!(Curve::new(vec![point(2, 1, 3, 2)]), None);
        assert_eq!(Curve::new(vec![point((1 << 50) + 1, 1, 3, 4)]), None);
        assert_eq!(Curve::new(vec![point(1, 1, 3, TIME_MAX.0 + 1)]), None);
        assert_eq!(Curve::new(vec![point(1, u64::MAX, u64::MAX, u64::MAX)]), None);
    }

    pub(in crate::models::transfer) fn any_curve(bytes: u64, time: u64) -> impl Strategy<Value = Curve> {
        let figures = (0..=time, 0..=time, 0..=time, 0..50_u32).prop_map(|(a, b, c, n)| {
            let mut times = [a, b, c];
            times.sort_unstable();
            (times, n)
        });
        proptest::collection::btree_map(0..=bytes, figures, 1..8).prop_map(|points| {
            let point = |(bytes, ([a, b, c], n)): (u64, ([u64; 3], u32))| CurvePoint { n, ..point(bytes, a, b, c) };
            Curve::new(points.into_iter().map(point).collect()).expect("ascending")
        })
    }

    fn statistic() -> impl Strategy<Value = Statistic> {
        prop_oneof![Just(Statistic::Median), Just(Statistic::P99), Just(Statistic::Max)]
    }

    proptest! {
        #[test]
        fn a_curve_passes_through_its_points_and_stays_between_neighbours(
            curve in any_curve(1 << 20, 1 << 30), bytes in 0..1_u64 << 20,
        ) {
            for point in curve.points() {
                prop_assert_eq!(curve.at(point.bytes, Statistic::Median), point.median);
                prop_assert_eq!(curve.at(point.bytes, Statistic::P99), point.p99);
                prop_assert!(curve.at(point.bytes, Statistic::Max) >= point.max);
            }
            let next = curve.points().partition_point(|p| p.bytes.0 < bytes);
            if 0 < next && next < curve.points().len() {
                let ends = [curve.points()[next - 1].median, curve.points()[next].median];
                let here = curve.at(Bytes(bytes), Statistic::Median);
                prop_assert!(ends[0].min(ends[1]) <= here && here <= ends[0].max(ends[1]));
            }
        }

        #[test]
        fn interpolation_equals_the_definition_rounded_up(
            x0 in 0..1_u64 << 30, dx in 1..1_u64 << 30, y0 in 0..1_u64 << 40, y1 in 0..1_u64 << 40, part in 0..=1_000_u64,
        ) {
            let x = x0 + dx * part / 1_000;
            let line = i128::from(y0) * i128::from(dx) + (i128::from(y1) - i128::from(y0)) * i128::from(x - x0);
            let (down, rest) = (line / i128::from(dx), line % i128::from(dx));
            let curve = curve(&[(x0, y0), (x0 + dx, y1)]);
            prop_assert_eq!(i128::from(curve.at(Bytes(x), Statistic::Median).0), down + i128::from(rest > 0));
        }

        #[test]
        fn a_bound_never_falls_with_size_nor_below_another_statistic(
            curve in any_curve(1 << 50, TIME_MAX.0), a: u64, b: u64, statistic in statistic(),
        ) {
            let (low, high) = (a.min(b), a.max(b));
            prop_assert!(curve.at(Bytes(low), Statistic::Max) <= curve.at(Bytes(high), Statistic::Max));
            prop_assert!(curve.at(Bytes(high), statistic) <= curve.at(Bytes(high), Statistic::Max));
            prop_assert!(curve.at(Bytes(high), Statistic::Median) <= curve.at(Bytes(high), Statistic::P99));
        }
    }
}
