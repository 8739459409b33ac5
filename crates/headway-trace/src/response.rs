//! Response times of several packets or jobs, as order statistics.

use headway_core::models::transfer::tail;
use headway_core::units::Nanos;
use serde::Serialize;

/// Times of several packets. Order statistics are values that occurred, by nearest rank: of `n` values the one with rank
/// `ceil(n / 2)` is the median and the one with rank `ceil(99 n / 100)` the 99th percentile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Response {
    /// The shortest time.
    pub min: Nanos,
    pub median: Nanos,
    /// 99th percentile; of fewer than 100 values it is left out.
    pub p99: Option<Nanos>,
    pub max: Nanos,
}

/// Nearest-rank order statistics of sorted times.
pub(crate) fn order_statistics(sorted: &[Nanos]) -> Option<Response> {
    let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else { return None };
    let rank = |hundredths: usize| sorted[(sorted.len() * hundredths).div_ceil(100) - 1];
    Some(Response { min, median: rank(50), p99: tail(sorted.len() as u64, rank(99)), max })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_statistics_are_values_by_nearest_rank() {
        let times = |n: u64| (1..=n).map(Nanos).collect::<Vec<_>>();
        let of = |n| order_statistics(&times(n)).map(|r| (r.min.0, r.median.0, r.p99.map(|time| time.0), r.max.0));
        assert_eq!(of(0), None);
        assert_eq!(of(1), Some((1, 1, None, 1)));
        assert_eq!(of(2), Some((1, 1, None, 2)));
        assert_eq!(of(99), Some((1, 50, None, 99)));
        assert_eq!(of(100), Some((1, 50, Some(99), 100)));
        assert_eq!(of(101), Some((1, 51, Some(100), 101)));
        assert_eq!(of(1000), Some((1, 500, Some(990), 1000)));
    }
}
