//! How often something is timed, and what the times come to.

use headway_core::models::transfer::{CurvePoint, tail};
use headway_core::units::{Bytes, Nanos};
use serde::{Deserialize, Serialize};

/// How often one thing is timed: at least `n_min` times, then until `n_max` times or `time`, whichever comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Runs before the first that counts.
    pub warm_up: u32,
    /// Least samples, whatever they take.
    pub n_min: u32,
    /// Most samples.
    pub n_max: u32,
    /// Time after which no further sample is begun; runs for warm-up count too.
    pub time: Nanos,
}

/// What a series of times comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleFigures {
    pub n: u32,
    /// The fastest.
    pub min: Nanos,
    /// A quarter of them took at most this long.
    pub p25: Nanos,
    /// Half of them took at most this long.
    pub median: Nanos,
    /// Three quarters of them took at most this long.
    pub p75: Nanos,
    /// 99 % of them took at most this long.
    pub p99: Nanos,
    /// The slowest.
    pub max: Nanos,
}

impl SampleFigures {
    /// The figures of `samples`; `None` without any.
    pub fn of(samples: &[Nanos]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable();
        let max = *sorted.last()?;
        // The nearest rank: the smallest sample that at least this share of all does not exceed.
        let rank = |percent: usize| sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1];
        let n = u32::try_from(sorted.len()).unwrap_or(u32::MAX);
        Some(Self { n, min: rank(0), p25: rank(25), median: rank(50), p75: rank(75), p99: rank(99), max })
    }

    /// How far the median may be off: medians whose distance is more than both these together differ with 95 % (McGill, Tukey and
    /// Larsen 1978, the notches of box plots).
    pub fn notch(&self) -> Nanos {
        notch(self.n, self.p25, self.p75)
    }

    /// Those of the series with the lesser median, of two of the same, and the slowest sample of both.
    pub fn or(self, other: Self) -> Self {
        let faster = if other.median < self.median { other } else { self };
        Self { max: self.max.max(other.max), ..faster }
    }

    /// The 99th percentile as a text; of too few samples it is just the slowest, which stands elsewhere, so `-`.
    pub fn p99_text(&self) -> String {
        self.tail().map_or_else(|| "-".to_owned(), |p99| p99.to_string())
    }

    /// The 99th percentile, unless there are too few samples to have one.
    pub fn tail(&self) -> Option<Nanos> {
        tail(self.n.into(), self.p99)
    }

    /// The 99th percentile in nanoseconds, for a column of a table that is read by programs; empty without one.
    pub fn p99_ns(&self) -> String {
        self.tail().map_or_else(String::new, |p99| p99.0.to_string())
    }

    /// As a point of a curve.
    pub const fn point(self, bytes: Bytes) -> CurvePoint {
        CurvePoint { bytes, n: self.n, median: self.median, p99: self.p99, max: self.max }
    }
}

/// [`SampleFigures::notch`]: 1.57 times the distance of the quartiles over the root of the number of samples.
pub fn notch(n: u32, p25: Nanos, p75: Nanos) -> Nanos {
    let root = (u64::from(n.max(1)) * 10_000).isqrt();
    let notch = u128::from(p75.0.saturating_sub(p25.0)) * 157 / u128::from(root);
    Nanos(u64::try_from(notch).unwrap_or(u64::MAX))
}

/// Times `once` as `effort` says. `once` gets its number, counting from 0 with the runs for warm-up, and returns the time
/// it took; `clock` only ends the series.
pub fn series<E>(
    effort: Effort,
    clock: impl Fn() -> Nanos,
    once: impl FnMut(u32) -> Result<Nanos, E>,
) -> Result<Vec<Nanos>, E> {
    series_below(effort, Nanos::MAX, clock, once)
}

/// [`series`] that ends with its second sample if both are above `limit`.
pub fn series_below<E>(
    effort: Effort,
    limit: Nanos,
    clock: impl Fn() -> Nanos,
    mut once: impl FnMut(u32) -> Result<Nanos, E>,
) -> Result<Vec<Nanos>, E> {
    let until = clock().saturating_add(effort.time);
    let mut samples = Vec::with_capacity(effort.n_max.min(1 << 16) as usize);
    let mut number = 0;
    for _ in 0..effort.warm_up {
        // A slow thing is not warmed up for ever; the first run always is, since it may set things up.
        if number > 0 && clock() >= until {
            break;
        }
        once(number)?;
        number += 1;
    }
    while samples.len() < effort.n_max as usize {
        let over = samples.len() >= effort.n_min as usize && clock() >= until;
        if over || samples.first_chunk::<2>().is_some_and(|first| first.iter().all(|sample| *sample > limit)) {
            break;
        }
        samples.push(once(number)?);
        number += 1;
    }
    Ok(samples)
}

/// The rate of `bytes` in `time`, in bytes per second, rounded down.
pub fn rate(bytes: Bytes, time: Nanos) -> u64 {
    let per_second = u128::from(bytes.0) * u128::from(headway_core::units::NANOS_PER_SECOND);
    u64::try_from(per_second / u128::from(time.0.max(1))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;

    use super::*;

    /// Runs a series on a clock that each run moves on by `cost`; returns the samples and how many runs there were.
    fn virtual_series(effort: Effort, cost: impl Fn(u32) -> u64) -> (Vec<u64>, u32) {
        let (now, runs) = (Cell::new(1_000), Cell::new(0));
        let samples = series(
            effort,
            || Nanos(now.get()),
            |number| {
                assert_eq!(number, runs.get());
                runs.set(number + 1);
                now.set(now.get() + cost(number));
                Ok::<_, Infallible>(Nanos(cost(number)))
            },
        );
        let Ok(samples) = samples;
        (samples.into_iter().map(|sample| sample.0).collect(), runs.get())
    }

    #[test]
    fn of_two_series_the_faster_counts_with_the_slowest_of_both() {
        let of = |times: [u64; 3]| SampleFigures::of(&times.map(Nanos)).unwrap();
        let (slow, fast) = (of([5, 20, 90]), of([8, 10, 12]));
        let both = SampleFigures { max: Nanos(90), ..fast };
        assert_eq!((slow.or(fast), fast.or(slow)), (both, both));
    }

    #[test]
    fn a_series_ends_at_its_largest_number() {
        let effort = Effort { warm_up: 3, n_min: 5, n_max: 10, time: Nanos(1_000_000) };
        let (samples, runs) = virtual_series(effort, u64::from);
        assert_eq!((samples, runs), ((3..13).collect(), 13));
    }

    #[test]
    fn time_ends_a_series_but_not_before_its_least_number() {
        let effort = Effort { warm_up: 0, n_min: 5, n_max: 1_000, time: Nanos(100) };
        assert_eq!(virtual_series(effort, |_| 1_000), (vec![1_000; 5], 5));
        assert_eq!(virtual_series(effort, |_| 10), (vec![10; 10], 10));
    }

    #[test]
    fn two_samples_above_the_limit_are_the_last() {
        let effort = Effort { warm_up: 1, n_min: 4, n_max: 4, time: Nanos::ZERO };
        let samples = |limit| {
            let Ok(samples) =
                series_below(effort, Nanos(limit), || Nanos::ZERO, |n| Ok::<_, Infallible>(Nanos(u64::from(10 - n))));
            samples.len()
        };
        assert_eq!([7, 8, 9].map(samples), [2, 4, 4]);
    }

    #[test]
    fn warming_up_something_slow_is_done_once() {
        let effort = Effort { warm_up: 50, n_min: 2, n_max: 1_000, time: Nanos(100) };
        assert_eq!(virtual_series(effort, |_| 1_000).1, 3);
    }

    #[test]
    fn figures_are_samples_by_the_nearest_rank() {
        let nanos = |times: &[u64]| SampleFigures::of(&times.iter().copied().map(Nanos).collect::<Vec<_>>());
        assert_eq!(nanos(&[]), None);
        let figures = |n, [min, p25, median, p75, p99, max]: [u64; 6]| {
            let [min, p25, median, p75, p99, max] = [min, p25, median, p75, p99, max].map(Nanos);
            SampleFigures { n, min, p25, median, p75, p99, max }
        };
        let one = figures(1, [7; 6]);
        assert_eq!(nanos(&[7]), Some(one));
        let hundred: Vec<u64> = (1..=100).rev().collect();
        assert_eq!(nanos(&hundred), Some(figures(100, [1, 25, 50, 75, 99, 100])));
        assert_eq!(nanos(&[4, 1, 2, 3]).map(|f| f.median), Some(Nanos(2)));
    }

    #[test]
    fn a_median_is_known_the_better_the_more_samples_there_are_and_the_less_they_scatter() {
        assert_eq!([1, 4, 100].map(|n| notch(n, Nanos(1_000), Nanos(1_200)).0), [314, 157, 31]);
        assert_eq!((notch(0, Nanos(5), Nanos(6)), notch(9, Nanos(7), Nanos(7))), (Nanos(1), Nanos(0)));
    }

    #[test]
    fn rates_are_rounded_down_and_no_time_is_no_division_by_zero() {
        assert_eq!(rate(Bytes(10), Nanos(3)), 3_333_333_333);
        assert_eq!(rate(Bytes(1), Nanos(0)), 1_000_000_000);
        assert_eq!(rate(Bytes(u64::MAX), Nanos(1)), u64::MAX);
    }
}
