//! Sums of fractions compared with 1 without rounding.

use std::cmp::Ordering;

use super::RecurrentTask;
use crate::units::PPM;

/// Binary digits behind the point of the fixed-point sums.
pub(super) const SHIFT: u32 = 60;

/// The sum of cost / period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Utilisation {
    /// Rounded up.
    pub(super) ppm: u64,
    /// An upper bound, scaled by two to the power of [`SHIFT`].
    pub(super) high: u128,
    versus_one: Ordering,
}

impl Utilisation {
    /// The utilisation of all tasks but bulk flows; their periods must not be zero.
    pub(super) fn of(tasks: &[RecurrentTask]) -> Self {
        let mut fractions: Vec<(u64, u128)> =
            tasks.iter().filter(|t| !t.is_bulk()).map(|t| (t.period.0, u128::from(t.cost.0))).collect();
        fractions.sort_unstable();
        // Few distinct periods are the rule: equal ones are added exactly.
        fractions.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 = kept.1.saturating_add(next.1);
            }
            same
        });
        let (mut low, mut high) = (0u128, 0u128);
        for &(period, cost) in &fractions {
            let period = u128::from(period);
            let (whole, rest) = ((cost / period).saturating_mul(1 << SHIFT), (cost % period) << SHIFT);
            low = low.saturating_add(whole).saturating_add(rest / period);
            high = high.saturating_add(whole).saturating_add(rest.div_ceil(period));
        }
        let ppm = |sum: u128| {
            let (whole, rest) = (sum >> SHIFT, sum & ((1 << SHIFT) - 1));
            let part = (rest * u128::from(PPM)).div_ceil(1 << SHIFT);
            u64::try_from(whole * u128::from(PPM) + part).unwrap_or(u64::MAX)
        };
        let (ppm_low, ppm_high) = (ppm(low), ppm(high));
        let one = 1u128 << SHIFT;
        let clear = low > one || high < one;
        if clear && ppm_low == ppm_high {
            let versus_one = if low > one { Ordering::Greater } else { Ordering::Less };
            return Self { ppm: ppm_low, high, versus_one };
        }
        let sum = Fraction::sum(&fractions);
        let ppm = if sum.compare(ppm_low, PPM) == Ordering::Greater { ppm_high } else { ppm_low };
        Self { ppm, high, versus_one: sum.compare(1, 1) }
    }

    pub(super) fn is_above_one(&self) -> bool {
        self.versus_one == Ordering::Greater
    }

    pub(super) fn is_one(&self) -> bool {
        self.versus_one == Ordering::Equal
    }
}

/// A natural number in 64-bit digits, least significant first, without leading zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Natural(Vec<u64>);

impl Natural {
    fn trimmed(mut digits: Vec<u64>) -> Self {
        while digits.last() == Some(&0) {
            digits.pop();
        }
        Self(digits)
    }

    /// `self * factor + other * other_factor`.
    fn multiply_add(&self, factor: u64, other: &Self, other_factor: u64) -> Self {
        let count = self.0.len().max(other.0.len());
        let mut digits = Vec::with_capacity(count + 2);
        let mut carry = 0u128;
        for at in 0..count {
            let a = u128::from(self.0.get(at).copied().unwrap_or(0)) * u128::from(factor);
            let b = u128::from(other.0.get(at).copied().unwrap_or(0)) * u128::from(other_factor);
            // Halves are added apart: both products may fill 128 bits, and the carry is below 2^66.
            let low = (a & u128::from(u64::MAX)) + (b & u128::from(u64::MAX)) + carry;
            digits.push(low as u64);
            carry = (a >> 64) + (b >> 64) + (low >> 64);
        }
        digits.push(carry as u64);
        digits.push((carry >> 64) as u64);
        Self::trimmed(digits)
    }

    /// Quotient and remainder.
    fn divided(&self, divisor: u64) -> (Self, u64) {
        let mut digits = vec![0; self.0.len()];
        let mut rest = 0u64;
        for at in (0..self.0.len()).rev() {
            let part = u128::from(rest) << 64 | u128::from(self.0[at]);
            digits[at] = (part / u128::from(divisor)) as u64;
            rest = (part % u128::from(divisor)) as u64;
        }
        (Self::trimmed(digits), rest)
    }

    fn compare(&self, other: &Self) -> Ordering {
        self.0.len().cmp(&other.0.len()).then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }
}

/// `whole + numerator / denominator`; the denominator is the least common multiple of those added.
#[derive(Clone, Debug)]
struct Fraction {
    whole: u128,
    numerator: Natural,
    denominator: Natural,
}

impl Fraction {
    /// The sum of cost / period over (period, cost).
    fn sum(fractions: &[(u64, u128)]) -> Self {
        let mut sum = Self { whole: 0, numerator: Natural(Vec::new()), denominator: Natural(vec![1]) };
        for &(period, cost) in fractions {
            sum.whole = sum.whole.saturating_add(cost / u128::from(period));
            let rest = (cost % u128::from(period)) as u64;
            let common = gcd(rest, period);
            let (rest, period) = (rest / common, period / common);
            let shared = gcd(sum.denominator.divided(period).1, period);
            let factor = period / shared;
            let (parts, _) = sum.denominator.divided(shared);
            sum.numerator = sum.numerator.multiply_add(factor, &parts, rest);
            sum.denominator = sum.denominator.multiply_add(factor, &Natural(Vec::new()), 0);
        }
        sum
    }

    /// Compares with `numerator / denominator`.
    fn compare(&self, numerator: u64, denominator: u64) -> Ordering {
        // whole + n/d <=> a/b  as  n*b <=> d*(a - whole*b), where the right side may be negative.
        let taken = self.whole.saturating_mul(u128::from(denominator));
        let Some(left) = u128::from(numerator).checked_sub(taken) else { return Ordering::Greater };
        let zero = Natural(Vec::new());
        let ours = self.numerator.multiply_add(denominator, &zero, 0);
        ours.compare(&self.denominator.multiply_add(left as u64, &zero, 0))
    }
}

/// Greatest common divisor; `gcd(0, n) = n`.
pub(super) const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Nanos;

    fn utilisation(tasks: &[(u64, u64)]) -> Utilisation {
        let tasks: Vec<_> = tasks.iter().map(|&(c, p)| RecurrentTask::whole(Nanos(c), Nanos(p), Nanos(p))).collect();
        Utilisation::of(&tasks)
    }

    #[test]
    fn thirds_and_sevenths_are_compared_exactly() {
        assert!(utilisation(&[(1, 3), (1, 3), (1, 3)]).is_one());
        assert!(utilisation(&[(1, 3), (1, 7), (11, 21)]).is_one());
        assert_eq!(utilisation(&[(3, 10)]).ppm, 300_000);
        assert_eq!(utilisation(&[(1, 3)]).ppm, 333_334);
        assert_eq!(utilisation(&[]).ppm, 0);
    }

    #[test]
    fn a_difference_far_below_the_fixed_point_is_seen() {
        // 1/p + (p-1)/p = 1, and 1/(p+2) is less than 1/p by about 2/p^2, some 2^-125.
        let p = u64::MAX - 2;
        assert!(utilisation(&[(1, p), (p - 1, p)]).is_one());
        let less = utilisation(&[(1, p + 2), (p - 1, p)]);
        assert!(!less.is_one() && !less.is_above_one());
        let more = utilisation(&[(1, p - 2), (p - 1, p)]);
        assert!(more.is_above_one());
        assert_eq!((less.ppm, more.ppm), (1_000_000, 1_000_001));
    }

    #[test]
    fn many_coprime_periods_sum_exactly() {
        // sum of 1/(n(n+1)) for n = 1..k is 1 - 1/(k+1).
        let mut tasks: Vec<_> = (1..200).map(|n| (1, n * (n + 1))).collect();
        assert!(!utilisation(&tasks).is_one());
        tasks.push((1, 200));
        assert!(utilisation(&tasks).is_one());
        tasks.push((1, u64::MAX - 1));
        assert!(utilisation(&tasks).is_above_one());
    }

    #[test]
    fn overload_beyond_all_bounds_saturates() {
        let much = utilisation(&[(u64::MAX - 1, 1), (u64::MAX - 1, 1), (u64::MAX - 1, 2)]);
        assert!(much.is_above_one());
        assert_eq!(much.ppm, u64::MAX);
    }

    #[test]
    fn long_arithmetic_carries() {
        let all = Natural(vec![u64::MAX; 3]);
        let product = all.multiply_add(u64::MAX, &all, u64::MAX);
        // 2 (2^192 - 1) (2^64 - 1)
        assert_eq!(product.0, [2, u64::MAX - 1, u64::MAX, u64::MAX - 2, 1]);
        assert_eq!(product.divided(u64::MAX), (all.multiply_add(2, &Natural(Vec::new()), 0), 0));
    }
}
