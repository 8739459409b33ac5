//! The twelve workloads of `verner-2014`, Figure V.2, as endless sequences of streams.
//!
//! "We first randomly generated numbers in the range \[0,1\], and then projected them to the range of acceptable values": rates
//! to 0.2 to 6 Mbit/s, deadlines to 0.5 to 200 ms, both drawn from the same distribution and independently. How draws
//! outside the range are treated is not stated; [`Reading`] names both ways that make sense.
//!
//! Sequences are the same on every machine: logarithms are made of additions, multiplications and divisions alone, whose
//! results the floating-point standard fixes. A test pins every shipped pool by its digest.

use headway_core::plan::stream::Fluid;
use headway_core::units::Nanos;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Seeds of the pools that are shipped: 0 to 19.
pub const SEEDS: std::ops::Range<u64> = 0..20;

/// Rates, bits per second.
const RATES: (u64, u64) = (200_000, 6_000_000);
/// Deadlines, nanoseconds.
const DEADLINES: (u64, u64) = (500_000, 200_000_000);

/// How draws outside the range become numbers in it: the paper does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reading {
    /// Drawn again until inside; exponential draws are then divided by their cut. "A" in tables.
    Truncate,
    /// Moved to the nearest end; exponential draws are then divided by their cut. "B" in tables.
    Clip,
}

impl Reading {
    /// Both readings.
    pub const ALL: [Self; 2] = [Self::Truncate, Self::Clip];

    /// As tables write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Truncate => "A",
            Self::Clip => "B",
        }
    }
}

/// What numbers in \[0,1\] are drawn from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Always this number.
    Constant(f64),
    /// Evenly between two numbers.
    Uniform(f64, f64),
    /// Normal with mean and standard deviation.
    Normal(f64, f64),
    /// Exponential with mean (= standard deviation), cut off at the second number.
    Exponential(f64, f64),
}

/// One of the twelve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamKind {
    /// Number in the paper, 1 to 12.
    pub number: u32,
    /// As the paper writes it.
    pub text: &'static str,
    /// Rates are drawn from it.
    pub rate: Distribution,
    /// Deadlines are drawn from it.
    pub deadline: Distribution,
}

impl StreamKind {
    const fn same(number: u32, text: &'static str, draw: Distribution) -> Self {
        Self { number, text, rate: draw, deadline: draw }
    }

    /// Whether all streams are alike: one seed then stands for all.
    #[must_use]
    pub fn is_constant(&self) -> bool {
        matches!((self.rate, self.deadline), (Distribution::Constant(_), Distribution::Constant(_)))
    }

    /// The first streams of the sequence of `seed`, as many as are needed to reach `bits_per_second` together.
    #[must_use]
    pub fn pool(&self, reading: Reading, seed: u64, bits_per_second: u64) -> Vec<Fluid> {
        let mut sequence = Sequence::new(*self, reading, seed);
        let (mut streams, mut sum) = (Vec::new(), 0);
        while sum < bits_per_second {
            let stream = sequence.next_stream();
            sum += stream.bits_per_second;
            streams.push(stream);
        }
        streams
    }
}

/// The workloads of Figure V.2 (a).
pub const KINDS: [StreamKind; 12] = [
    StreamKind::same(1, "constant 0.5", Distribution::Constant(0.5)),
    StreamKind::same(2, "constant 0.1", Distribution::Constant(0.1)),
    StreamKind::same(3, "uniform in [0,1]", Distribution::Uniform(0.0, 1.0)),
    StreamKind::same(4, "uniform in [0.4,0.6]", Distribution::Uniform(0.4, 0.6)),
    StreamKind::same(5, "normal AVG=0.5 STD=0.2", Distribution::Normal(0.5, 0.2)),
    StreamKind::same(6, "normal AVG=0.5 STD=1.0", Distribution::Normal(0.5, 1.0)),
    StreamKind::same(7, "normal AVG=0.2 STD=0.2", Distribution::Normal(0.2, 0.2)),
    StreamKind::same(8, "normal AVG=0.8 STD=0.2", Distribution::Normal(0.8, 0.2)),
    StreamKind::same(9, "exp STD=1.0 truncate at 5", Distribution::Exponential(1.0, 5.0)),
    StreamKind::same(10, "exp STD=1.0 truncate at 1", Distribution::Exponential(1.0, 1.0)),
    StreamKind::same(11, "exp STD=0.2 truncate at 1", Distribution::Exponential(0.2, 1.0)),
    StreamKind {
        number: 12,
        text: "deadlines: uniform in [0,1], data rates: constant 0.5",
        rate: Distribution::Constant(0.5),
        deadline: Distribution::Uniform(0.0, 1.0),
    },
];

struct Sequence {
    kind: StreamKind,
    reading: Reading,
    /// One source for rates and one for deadlines, so that a draw more in the one does not shift the other.
    rates: NumberSource,
    deadlines: NumberSource,
}

impl Sequence {
    fn new(kind: StreamKind, reading: Reading, seed: u64) -> Self {
        let branch = |leaf: u64| {
            let path = ((seed * 16 + u64::from(kind.number)) * 2 + reading as u64) * 2 + leaf;
            NumberSource { generator: Pcg64Mcg::seed_from_u64(path), spare: None }
        };
        Self { kind, reading, rates: branch(0), deadlines: branch(1) }
    }

    fn next_stream(&mut self) -> Fluid {
        let rate = self.rates.number(self.kind.rate, self.reading);
        let deadline = self.deadlines.number(self.kind.deadline, self.reading);
        Fluid { bits_per_second: projected(rate, RATES), deadline: Nanos(projected(deadline, DEADLINES)) }
    }
}

/// `number` of \[0,1\] in `range`, linear, rounded down.
fn projected(number: f64, (low, high): (u64, u64)) -> u64 {
    low + (number * (high - low) as f64) as u64
}

struct NumberSource {
    generator: Pcg64Mcg,
    /// The second of a pair of normal draws.
    spare: Option<f64>,
}

impl NumberSource {
    fn number(&mut self, draw: Distribution, reading: Reading) -> f64 {
        let (top, low, high) = match draw {
            Distribution::Exponential(_, cut) => (cut, 0.0, cut),
            Distribution::Constant(_) | Distribution::Uniform(..) | Distribution::Normal(..) => (1.0, 0.0, 1.0),
        };
        loop {
            let number = self.raw(draw);
            match reading {
                Reading::Clip => return number.clamp(low, high) / top,
                Reading::Truncate if (low..=high).contains(&number) => return number / top,
                Reading::Truncate => {}
            }
        }
    }

    fn raw(&mut self, draw: Distribution) -> f64 {
        match draw {
            Distribution::Constant(number) => number,
            Distribution::Uniform(from, to) => from + (to - from) * self.unit(),
            Distribution::Normal(mean, deviation) => mean + deviation * self.normal(),
            Distribution::Exponential(mean, _) => -mean * ln(1.0 - self.unit()),
        }
    }

    /// Evenly in `[0, 1)`.
    fn unit(&mut self) -> f64 {
        (self.generator.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Standard normal, by Marsaglia's polar method.
    fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        loop {
            let (x, y) = (2.0 * self.unit() - 1.0, 2.0 * self.unit() - 1.0);
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                let factor = (-2.0 * ln(square) / square).sqrt();
                self.spare = Some(y * factor);
                return x * factor;
            }
        }
    }
}

/// Natural logarithm of a positive normal number, the same on every machine: the library's may differ in the last bit.
fn ln(number: f64) -> f64 {
    let bits = number.to_bits();
    let exponent = ((bits >> 52) & 0x7ff) as i64 - 1023;
    let fraction = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    // To [sqrt(1/2), sqrt(2)), where the series of the inverse hyperbolic tangent needs few terms.
    let (fraction, exponent) =
        if fraction > std::f64::consts::SQRT_2 { (fraction / 2.0, exponent + 1) } else { (fraction, exponent) };
    let s = (fraction - 1.0) / (fraction + 1.0);
    let square = s * s;
    let (mut power, mut sum) = (s, 0.0);
    for odd in (1..=23u32).step_by(2) {
        sum += power / f64::from(odd);
        power *= square;
    }
    2.0 * sum + exponent as f64 * std::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    const GBIT: u64 = 1_000_000_000;

    #[test]
    fn the_logarithm_is_right_to_the_last_bits() {
        for number in [1e-300, 1e-17, 0.1, 0.5, 0.7, 1.0, 1.3, 1.5, 2.0, 1234.5] {
            assert!((ln(number) - number.ln()).abs() <= 4.0 * f64::EPSILON * number.ln().abs(), "{number}");
        }
    }

    #[test]
    fn constants_are_projected_as_the_paper_projects_them() {
        let first = |number: usize| KINDS[number - 1].pool(Reading::Truncate, 0, 1)[0];
        assert_eq!(first(1), Fluid { bits_per_second: 3_100_000, deadline: Nanos(100_250_000) });
        assert_eq!(first(2), Fluid { bits_per_second: 780_000, deadline: Nanos(20_450_000) });
    }

    #[test]
    fn all_streams_are_inside_the_stated_ranges_and_readings_differ_only_at_the_ends() {
        for kind in KINDS {
            for reading in Reading::ALL {
                for stream in kind.pool(reading, 3, GBIT) {
                    assert!((RATES.0..=RATES.1).contains(&stream.bits_per_second), "{kind:?} {stream:?}");
                    assert!((DEADLINES.0..=DEADLINES.1).contains(&stream.deadline.0), "{kind:?} {stream:?}");
                }
            }
        }
        let at_the_top = |reading| {
            let pool = KINDS[9].pool(reading, 0, GBIT);
            pool.iter().filter(|s| s.bits_per_second == RATES.1).count() * 100 / pool.len()
        };
        assert_eq!(at_the_top(Reading::Truncate), 0);
        assert!((30..=44).contains(&at_the_top(Reading::Clip)), "e^-1 of all draws are cut off");
    }

    /// Mean of the numbers before projection against the value that integration gives.
    #[test]
    fn means_are_those_of_the_distributions() {
        let mean = |number: usize, reading| {
            let pool: Vec<_> = SEEDS.flat_map(|seed| KINDS[number - 1].pool(reading, seed, 8 * GBIT)).collect();
            let sum: f64 = pool.iter().map(|s| (s.bits_per_second - RATES.0) as f64 / 5.8e6).sum();
            sum / pool.len() as f64
        };
        let truncated = |mean: f64, cut: f64| (mean - cut / ((cut / mean).exp() - 1.0)) / cut;
        let clipped = |mean: f64, cut: f64| mean * (1.0 - (-cut / mean).exp()) / cut;
        for (number, reading, expected) in [
            (3, Reading::Truncate, 0.5),
            (4, Reading::Truncate, 0.5),
            (5, Reading::Truncate, 0.5),
            (7, Reading::Truncate, 0.2575),
            (7, Reading::Clip, 0.2166),
            (8, Reading::Truncate, 0.7425),
            (9, Reading::Truncate, truncated(1.0, 5.0)),
            (10, Reading::Truncate, truncated(1.0, 1.0)),
            (11, Reading::Truncate, truncated(0.2, 1.0)),
            (9, Reading::Clip, clipped(1.0, 5.0)),
            (10, Reading::Clip, clipped(1.0, 1.0)),
        ] {
            let found = mean(number, reading);
            assert!((found - expected).abs() < 0.005, "workload {number} {reading:?}: {found} {expected}");
        }
    }

    /// The shipped pools: workload, reading, seed, and the FNV-1a hash of the first 1000 streams.
    const SHIPPED: &str = include_str!("../../../pools/verner-aes.csv");

    fn digests() -> String {
        let mut text = "workload,reading,seed,fnv1a_of_1000_streams\n".to_owned();
        for kind in KINDS {
            for reading in Reading::ALL {
                for seed in SEEDS {
                    let mut sequence = Sequence::new(kind, reading, seed);
                    let mut hash = 0xcbf2_9ce4_8422_2325u64;
                    for _ in 0..1000 {
                        let stream = sequence.next_stream();
                        for byte in
                            stream.bits_per_second.to_le_bytes().into_iter().chain(stream.deadline.0.to_le_bytes())
                        {
                            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
                        }
                    }
                    text += &format!("{},{},{seed},{hash:016x}\n", kind.number, reading.name());
                }
            }
        }
        text
    }

    #[test]
    fn every_shipped_pool_is_the_one_that_was_shipped() {
        for (found, shipped) in digests().lines().zip(SHIPPED.lines()) {
            assert_eq!(found, shipped);
        }
        assert_eq!(SHIPPED.lines().count(), 1 + 12 * 2 * 20);
    }

    #[test]
    fn a_pool_is_a_prefix_of_every_longer_one() {
        let (short, long) = (KINDS[4].pool(Reading::Clip, 7, GBIT), KINDS[4].pool(Reading::Clip, 7, 3 * GBIT));
        assert_eq!(short, long[..short.len()]);
    }
}
