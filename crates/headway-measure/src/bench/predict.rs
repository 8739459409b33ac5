//! Predicted against measured: random methods and sizes, timed in turns, and looked up in the profile.

use std::collections::BTreeMap;
use std::fmt;

use headway_core::interconnect::Accuracy;
use headway_core::models::transfer::{BackgroundLoad, Direction, Method, Statistic};
use headway_core::units::{Bytes, Nanos, PPM};
use headway_runtime::copy::How;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::Serialize;

use super::Bench;
use crate::Error;
use crate::copy_timer::{CopySpec, CopyTimer};
use crate::curves::measures;
use crate::sample::Effort;
use crate::turns::{self, Entrant, Rules};

/// Points that are looked at.
const POINTS: usize = 200;
const POINTS_QUICK: usize = 60;
/// Larger copies would take most of the time and say little: rates do not change any more.
const BYTES_MAX: u64 = 64 << 20;

/// How far predictions were off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Prediction {
    /// Points looked at.
    pub points: Vec<PredictedPoint>,
    /// Median of |measured - predicted| / measured, parts per million.
    pub median_ppm: u64,
    /// 95th percentile of the same.
    pub p95_ppm: u64,
}

/// One point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PredictedPoint {
    /// Method, direction and memory.
    pub what: String,
    pub bytes: Bytes,
    /// The profile's median.
    pub predicted: Nanos,
    /// The median found.
    pub measured: Nanos,
    /// Copies behind it.
    pub n: u32,
    /// Of a quarter and of three quarters of them.
    pub quartiles: (Nanos, Nanos),
}

impl PredictedPoint {
    fn error_ppm(&self) -> u64 {
        let error = u128::from(self.measured.0.abs_diff(self.predicted.0)) * u128::from(PPM);
        u64::try_from(error / u128::from(self.measured.0.max(1))).unwrap_or(u64::MAX)
    }
}

impl Prediction {
    fn of(points: Vec<PredictedPoint>) -> Option<Self> {
        let Accuracy { n, median_ppm, p95_ppm, .. } =
            Accuracy::of(points.iter().map(PredictedPoint::error_ppm).collect());
        (n > 0).then_some(Self { points, median_ppm, p95_ppm })
    }

    /// The points as comma-separated values.
    #[must_use]
    pub fn csv(&self) -> String {
        let mut text = "what,bytes,predicted_ns,measured_ns,error_ppm,n,p25_ns,p75_ns\n".to_owned();
        for point in &self.points {
            let PredictedPoint { what, bytes, predicted, measured, n, quartiles: (p25, p75) } = point;
            let (predicted, measured, error) = (predicted.0, measured.0, point.error_ppm());
            text.push_str(&format!("{what},{},{predicted},{measured},{error},{n},{},{}\n", bytes.0, p25.0, p75.0));
        }
        text
    }
}

impl fmt::Display for Prediction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |ppm: u64| format!("{}.{:01} %", ppm / 10_000, ppm % 10_000 / 1_000);
        write!(
            f,
            "{} random methods and sizes: error of the predicted median {} (median), {} (95th percentile)",
            self.points.len(),
            percent(self.median_ppm),
            percent(self.p95_ppm)
        )
    }
}

impl Bench<'_, '_> {
    /// Compares as many random points as the time allows; `None` without a profile.
    pub(super) fn predict(&mut self, timer: &mut CopyTimer, methods: &[Method]) -> Result<Option<Prediction>, Error> {
        let gpu = self.ids[0];
        let usable = |method: &Method| methods.contains(method);
        let curves: Vec<_> = self
            .profile
            .curves
            .iter()
            .filter(|(key, _)| {
                key.gpu == gpu
                    && (key.load, key.active, key.pieces) == (BackgroundLoad::Alone, 1, 1)
                    && key.direction != Direction::Peer
                    && usable(&key.method)
            })
            .map(|(key, curve)| (key.clone(), curve.clone()))
            .collect();
        if curves.is_empty() {
            return Ok(None);
        }
        let count = if self.options.quick { POINTS_QUICK } else { POINTS };
        let largest = BYTES_MAX.min(timer.bytes_max() as u64);
        self.session.phase("predict", count);
        let mut random = Pcg64Mcg::seed_from_u64(3);
        // By size, as the curves were taken: what copies of other sizes leave in caches costs small ones a tenth.
        let mut groups: BTreeMap<u32, (Vec<Entrant>, Vec<Nanos>)> = BTreeMap::new();
        for _ in 0..count {
            let (key, curve) = &curves[(random.next_u64() % curves.len() as u64) as usize];
            // Uniform in the exponent, and between powers of two.
            let exponent = random.next_u64() % (u64::from(largest.ilog2()) + 1);
            let bytes = ((1 << exponent) + random.next_u64() % (1 << exponent)).min(largest);
            self.session.advance()?;
            if !measures(key.method, key.direction, bytes)
                || (key.method.abilities().window && timer.window(bytes as usize).is_none())
            {
                continue;
            }
            let spec = CopySpec {
                how: How::By(key.method),
                direction: key.direction,
                memory: key.memory,
                bytes: bytes as usize,
                window: key.method.mapping(),
            };
            let (entrants, predicted) = groups.entry(bytes.ilog2() / 2).or_default();
            entrants.push(Entrant::new(format!("{} {} {}", key.method, key.direction, key.memory), spec));
            predicted.push(curve.at(Bytes(bytes), Statistic::Median));
        }
        // In turns too, and without a resident copier of the turn before.
        let effort = Effort { warm_up: 1, n_min: 7, n_max: 200, time: Nanos(20_000_000) };
        let rules = Rules { effort, parks: true, spares: false, undecided: None };
        let mut points = Vec::new();
        for (mut entrants, predicted) in groups.into_values() {
            turns::take(self.session, timer, &mut entrants, rules)?;
            for (entrant, predicted) in entrants.into_iter().zip(predicted) {
                points.extend(compared(entrant, predicted)?);
            }
        }
        Ok(Prediction::of(points))
    }
}

/// What came of a point; nothing of one that was not timed.
fn compared(entrant: Entrant, predicted: Nanos) -> Result<Option<PredictedPoint>, Error> {
    if let Some(error) = entrant.failed {
        return Err(error);
    }
    Ok(entrant.figures().map(|figures| PredictedPoint {
        what: entrant.name,
        bytes: Bytes(entrant.spec.bytes as u64),
        predicted,
        measured: figures.median,
        n: figures.n,
        quartiles: (figures.p25, figures.p75),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_relative_to_what_was_measured() {
        let point = |predicted, measured| PredictedPoint {
            what: "dma h2d pinned".to_owned(),
            bytes: Bytes(1),
            predicted: Nanos(predicted),
            measured: Nanos(measured),
            n: 5,
            quartiles: (Nanos(7), Nanos(9)),
        };
        let prediction = Prediction::of(vec![point(90, 100), point(100, 100), point(130, 100)]).unwrap();
        assert_eq!((prediction.median_ppm, prediction.p95_ppm), (100_000, 300_000));
        assert!(
            prediction.to_string().contains("3 random methods and sizes") && prediction.to_string().contains("10.0 %")
        );
        assert_eq!(prediction.csv().lines().nth(1), Some("dma h2d pinned,1,90,100,100000,5,7,9"));
        assert_eq!(Prediction::of(Vec::new()), None);
    }
}
