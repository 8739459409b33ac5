//! Utilisations and gains in exact integers.

use serde::{Deserialize, Serialize};

use crate::plan::message::TIME_MAX;
use crate::units::{Nanos, PPM};

/// A utilisation `c / p`, or a sum of them, in units of `2^-64`, each term rounded down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Utilisation(pub u128);

impl Utilisation {
    /// `cost / period`. The period is above zero.
    #[must_use]
    pub const fn of(cost: Nanos, period: Nanos) -> Self {
        Self(((cost.0 as u128) << 64) / period.0 as u128)
    }

    /// In parts per million, rounded up.
    #[must_use]
    pub fn ppm(self) -> u64 {
        let whole = (self.0 >> 64).saturating_mul(u128::from(PPM));
        let rest = ((self.0 & u128::from(u64::MAX)) * u128::from(PPM)).div_ceil(1 << 64);
        u64::try_from(whole.saturating_add(rest)).unwrap_or(u64::MAX)
    }
}

impl std::iter::Sum for Utilisation {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self(0), |total, part| Self(total.0.saturating_add(part.0)))
    }
}

/// What combining a message `(c1, p1)` with one of an equal or shorter period `(c2, p2)` into `(c', p2)` takes off the sum
/// of utilisations, as `floor(gain 2^32)`; `None` if that is not above zero, compared exactly.
#[must_use]
pub fn gain(slow: (Nanos, Nanos), fast: (Nanos, Nanos), combined: Nanos) -> Option<u128> {
    if combined >= TIME_MAX {
        return None;
    }
    let wide = |time: Nanos| i128::from(time.0);
    let ((c1, p1), (c2, p2)) = ((wide(slow.0), wide(slow.1)), (wide(fast.0), wide(fast.1)));
    // All of them are below 2^44, so that the numerator times 2^32 is below 2^121.
    let numerator = c1 * p2 - (wide(combined) - c2) * p1;
    if numerator <= 0 {
        return None;
    }
    let (numerator, denominator) = (numerator.unsigned_abs(), (p1 * p2).unsigned_abs());
    Some((numerator << 32) / denominator)
}
