//! Time, size and rate as integers, each its own type, with the texts users write and read.
//!
//! Files say `"10 ms"`, `"16 KiB"`, `"55.5 GB/s"` or `"40 Mbit/s"`; a number without a unit is an error. Decimal prefixes
//! are powers of ten, binary ones (`KiB`, `MiB`, `GiB`) powers of two. A text that is not a whole number of nanoseconds,
//! bytes or bytes per second is refused rather than rounded.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A time or a duration in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nanos(pub u64);

/// A size in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// A rate in bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rate(pub u64);

/// Nanoseconds in a second.
pub const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Longest time, largest size and highest rate a file may say. Far beyond any use, and low enough that sums of thousands
/// of times and sizes fit 64 bits, and products of rates, weights and uses fit 128.
pub(crate) const TIME_MAX: Nanos = Nanos(366 * 86_400 * NANOS_PER_SECOND);
pub(crate) const SIZE_MAX: Bytes = Bytes(1 << 50);
pub(crate) const RATE_MAX: Rate = Rate(1_000_000_000_000_000);

/// One whole in parts per million.
pub const PPM: u64 = 1_000_000;

/// Parts per million as per cent with two decimals, rounded up: a utilisation above one never reads as 100.
#[must_use]
pub fn percent(ppm: impl Into<u128>) -> String {
    let hundredths = ppm.into().div_ceil(100);
    format!("{}.{:02} %", hundredths / 100, hundredths % 100)
}

impl Nanos {
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// The largest time that can be said; used as "never".
    pub const MAX: Self = Self(u64::MAX);

    /// `self + other`, or [`Nanos::MAX`] when that does not fit.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// `self - other`, or zero when `other` is later.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl std::ops::Add for Nanos {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl std::ops::Sub for Nanos {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl std::ops::Mul<u64> for Nanos {
    type Output = Self;
    fn mul(self, times: u64) -> Self {
        Self(self.0 * times)
    }
}

impl std::ops::Add for Bytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl std::iter::Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self(0), |total, part| total + part)
    }
}

impl Rate {
    /// The time that `bytes` take at this rate, rounded up; [`Nanos::MAX`] at rate zero or when it does not fit.
    #[must_use]
    pub const fn time_for(self, bytes: Bytes) -> Nanos {
        if bytes.0 == 0 {
            return Nanos::ZERO;
        }
        if self.0 == 0 {
            return Nanos::MAX;
        }
        let nanos = (bytes.0 as u128 * NANOS_PER_SECOND as u128).div_ceil(self.0 as u128);
        if nanos > u64::MAX as u128 { Nanos::MAX } else { Nanos(nanos as u64) }
    }
}

/// A text that is not a time, size or rate; says what was expected instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// The text starts with no decimal number.
    #[error("`{text}` does not start with a number; write for example `\"{example}\"`")]
    NoNumber {
        /// What was written.
        text: String,
        /// A text of this kind that would be accepted.
        example: &'static str,
    },
    /// Times, sizes and rates are not below zero.
    #[error("`{text}` is negative; write for example `\"{example}\"`")]
    Negative {
        /// What was written.
        text: String,
        /// A text of this kind that would be accepted.
        example: &'static str,
    },
    /// The number has no unit behind it.
    #[error("`{text}` has no unit; write for example `\"{text} {unit}\"`")]
    NoUnit {
        /// What was written.
        text: String,
        /// The unit most often meant.
        unit: &'static str,
    },
    /// The unit is not one of this kind.
    #[error("unknown unit `{unit}`; expected one of {expected}")]
    UnknownUnit {
        /// What stood where the unit belongs.
        unit: String,
        /// All units of this kind.
        expected: &'static str,
    },
    /// How often, where a time is meant.
    #[error("`{text}` is a frequency; as a time it is `\"{time}\"`")]
    Frequency {
        /// What was written.
        text: String,
        /// The time from one to the next.
        time: String,
    },
    /// The value is not a whole number of the smallest unit.
    #[error("`{text}` is not a whole number of {smallest}; the nearest is `\"{nearest}\"`")]
    NotWhole {
        /// What was written.
        text: String,
        /// The smallest unit.
        smallest: &'static str,
        /// The nearest text that would be accepted.
        nearest: String,
    },
    /// The value is larger than 64 bits hold.
    #[error("`{text}` is too large")]
    TooLarge {
        /// What was written.
        text: String,
    },
}

/// One kind of quantity: its units as (text, numerator, denominator) of the smallest unit.
struct Kind {
    units: &'static [(&'static str, u64, u64)],
    /// What is no unit of this kind, but tells one: (text, times a second).
    frequencies: &'static [(&'static str, u128)],
    expected: &'static str,
    example: &'static str,
    usual: &'static str,
    smallest: &'static str,
}

const TIME: Kind = Kind {
    units: &[
        ("ns", 1, 1),
        ("us", 1_000, 1),
        ("µs", 1_000, 1),
        ("ms", 1_000_000, 1),
        ("s", NANOS_PER_SECOND, 1),
        ("min", 60 * NANOS_PER_SECOND, 1),
    ],
    frequencies: &[("fps", 1), ("Hz", 1), ("kHz", 1_000)],
    expected: "ns, us, ms, s, min",
    example: "10 ms",
    usual: "ms",
    smallest: "nanoseconds",
};

const SIZE: Kind = Kind {
    units: &[
        ("B", 1, 1),
        ("kB", 1_000, 1),
        ("KB", 1_000, 1),
        ("MB", 1_000_000, 1),
        ("GB", 1_000_000_000, 1),
        ("KiB", 1 << 10, 1),
        ("MiB", 1 << 20, 1),
        ("GiB", 1 << 30, 1),
    ],
    frequencies: &[],
    expected: "B, kB, MB, GB, KiB, MiB, GiB",
    example: "16 KiB",
    usual: "B",
    smallest: "bytes",
};

const RATE: Kind = Kind {
    units: &[
        ("B/s", 1, 1),
        ("kB/s", 1_000, 1),
        ("MB/s", 1_000_000, 1),
        ("GB/s", 1_000_000_000, 1),
        ("KiB/s", 1 << 10, 1),
        ("MiB/s", 1 << 20, 1),
        ("GiB/s", 1 << 30, 1),
        ("bit/s", 1, 8),
        ("kbit/s", 1_000, 8),
        ("Mbit/s", 1_000_000, 8),
        ("Gbit/s", 1_000_000_000, 8),
    ],
    frequencies: &[],
    expected: "B/s, kB/s, MB/s, GB/s, KiB/s, MiB/s, GiB/s, kbit/s, Mbit/s, Gbit/s",
    example: "8 GB/s",
    usual: "GB/s",
    smallest: "bytes per second",
};

fn parse(text: &str, kind: &Kind) -> Result<u64, UnitError> {
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(trimmed.len());
    let (number, unit) = (trimmed[..split].replace('_', ""), trimmed[split..].trim());
    let (whole, fraction) = number.split_once('.').unwrap_or((number.as_str(), ""));
    if trimmed.starts_with('-') {
        return Err(UnitError::Negative { text: text.to_owned(), example: kind.example });
    }
    if whole.is_empty() || fraction.contains('.') {
        return Err(UnitError::NoNumber { text: text.to_owned(), example: kind.example });
    }
    if unit.is_empty() {
        return Err(UnitError::NoUnit { text: trimmed.to_owned(), unit: kind.usual });
    }
    let too_large = || UnitError::TooLarge { text: text.to_owned() };
    let digits: u128 = format!("{whole}{fraction}").parse().map_err(|_| too_large())?;
    let scale = 10u128.checked_pow(fraction.len() as u32).ok_or_else(too_large)?;
    if let Some((_, each)) = kind.frequencies.iter().find(|(name, _)| *name == unit) {
        let often = digits.saturating_mul(*each);
        if often == 0 {
            return Err(UnitError::NoNumber { text: text.to_owned(), example: kind.example });
        }
        let nanos = scale.saturating_mul(NANOS_PER_SECOND.into()).saturating_add(often / 2) / often;
        return Err(UnitError::Frequency { text: text.to_owned(), time: format!("{nanos} ns") });
    }
    let Some(&(_, numerator, denominator)) = kind.units.iter().find(|(name, ..)| *name == unit) else {
        return Err(UnitError::UnknownUnit { unit: unit.to_owned(), expected: kind.expected });
    };
    let numerator = digits.checked_mul(u128::from(numerator)).ok_or_else(too_large)?;
    let denominator = scale.checked_mul(u128::from(denominator)).ok_or_else(too_large)?;
    if !numerator.is_multiple_of(denominator) {
        let nearest = format!("{} {}", (numerator + denominator / 2) / denominator, kind.units[0].0);
        return Err(UnitError::NotWhole { text: text.to_owned(), smallest: kind.smallest, nearest });
    }
    u64::try_from(numerator / denominator).map_err(|_| too_large())
}

impl FromStr for Nanos {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        parse(text, &TIME).map(Self)
    }
}

impl FromStr for Bytes {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        parse(text, &SIZE).map(Self)
    }
}

impl FromStr for Rate {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        parse(text, &RATE).map(Self)
    }
}

/// `value` in the largest of `units` that it reaches, with as many digits as it takes: reading the text gives the value.
fn exact(value: u64, units: &[(&str, u64)]) -> String {
    let (unit, scale) = units.iter().rfind(|(_, scale)| *scale <= value).unwrap_or(&units[0]);
    let (whole, rest) = (value / scale, value % scale);
    if rest == 0 {
        return format!("{whole} {unit}");
    }
    let digits = format!("{rest:0width$}", width = scale.ilog10() as usize);
    format!("{whole}.{} {unit}", digits.trim_end_matches('0'))
}

impl Nanos {
    /// A text as files write it that gives exactly this time when it is read.
    #[must_use]
    pub fn exact(self) -> String {
        exact(self.0, &[("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", NANOS_PER_SECOND)])
    }
}

impl Bytes {
    /// A text as files write it that gives exactly this size when it is read: in binary units where it is a multiple.
    #[must_use]
    pub fn exact(self) -> String {
        let binary = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        match binary.iter().find(|(_, scale)| self.0 > 0 && self.0.is_multiple_of(*scale)) {
            Some((unit, scale)) => format!("{} {unit}", self.0 / scale),
            None => exact(self.0, &[("B", 1), ("kB", 1_000), ("MB", 1_000_000), ("GB", 1_000_000_000)]),
        }
    }
}

impl Rate {
    /// A text as files write it that gives exactly this rate when it is read.
    #[must_use]
    pub fn exact(self) -> String {
        exact(self.0, &[("B/s", 1), ("kB/s", 1_000), ("MB/s", 1_000_000), ("GB/s", 1_000_000_000)])
    }
}

/// Writes `value / scale` with at most `decimals` digits behind the point, rounded half up, without trailing zeros.
fn write_scaled(f: &mut fmt::Formatter<'_>, value: u64, scale: u64, decimals: u32, unit: &str) -> fmt::Result {
    let steps = 10u128.pow(decimals);
    let rounded = (u128::from(value) * steps * 2 + u128::from(scale)) / (u128::from(scale) * 2);
    let (whole, rest) = (rounded / steps, rounded % steps);
    let digits = format!("{rest:0width$}", width = decimals as usize);
    let digits = digits.trim_end_matches('0');
    let text =
        if rest == 0 || digits.is_empty() { format!("{whole} {unit}") } else { format!("{whole}.{digits} {unit}") };
    f.pad(&text)
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            u64::MAX => f.pad("never"),
            n if n < 1_000 => write_scaled(f, n, 1, 0, "ns"),
            n if n < 1_000_000 => write_scaled(f, n, 1_000, 2, "us"),
            n if n < NANOS_PER_SECOND => write_scaled(f, n, 1_000_000, 2, "ms"),
            n => write_scaled(f, n, NANOS_PER_SECOND, 3, "s"),
        }
    }
}

/// `value` in the largest of `units` that it reaches, where two decimals say it exactly and the number is below 1024.
fn short(value: u64, units: &[(&str, u64)]) -> Option<String> {
    let (unit, scale) = units.iter().rfind(|(_, scale)| *scale <= value)?;
    let hundredths = u128::from(value) * 100;
    let exact = hundredths.is_multiple_of(u128::from(*scale)) && value / scale < 1024;
    let hundredths = hundredths / u128::from(*scale);
    let number = format!("{}.{:02}", hundredths / 100, hundredths % 100);
    exact.then(|| format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.')))
}

/// In decimal units, rounded, but in binary ones where they say the size exactly and in fewer digits: `4 KiB`, not `4.1 kB`.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = |text: &String| text.chars().filter(char::is_ascii_digit).count();
        let decimal = short(self.0, &[("B", 1), ("kB", 1_000), ("MB", 1_000_000), ("GB", 1_000_000_000)]);
        let binary = short(self.0, &[("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)]);
        if let Some(text) = binary.filter(|text| decimal.as_ref().is_none_or(|other| digits(text) < digits(other))) {
            return f.pad(&text);
        }
        match self.0 {
            n if n < 1_000 => write_scaled(f, n, 1, 0, "B"),
            n if n < 1_000_000 => write_scaled(f, n, 1_000, 2, "kB"),
            n if n < 1_000_000_000 => write_scaled(f, n, 1_000_000, 2, "MB"),
            n => write_scaled(f, n, 1_000_000_000, 2, "GB"),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n < 1_000 => write_scaled(f, n, 1, 0, "B/s"),
            n if n < 1_000_000 => write_scaled(f, n, 1_000, 2, "kB/s"),
            n if n < 1_000_000_000 => write_scaled(f, n, 1_000_000, 2, "MB/s"),
            n => write_scaled(f, n, 1_000_000_000, 2, "GB/s"),
        }
    }
}

/// The day of a time in seconds since 1970, as `2026-11-21` (UTC): H. Hinnant, "chrono-compatible low-level date
/// algorithms", `civil_from_days`.
#[must_use]
pub fn day(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let (day, month) =
        (day_of_year - (153 * shifted + 2) / 5 + 1, if shifted < 10 { shifted + 3 } else { shifted - 9 });
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_with_units_become_integers() {
        assert_eq!("1.5 ms".parse(), Ok(Nanos(1_500_000)));
        assert_eq!("2 ns".parse(), Ok(Nanos(2)));
        assert_eq!("5.5 KiB".parse(), Ok(Bytes(5632)));
        assert_eq!("0.2 Mbit/s".parse(), Ok(Rate(25_000)));
        assert_eq!("55.5 GB/s".parse(), Ok(Rate(55_500_000_000)));
    }

    #[test]
    fn what_cannot_be_said_exactly_is_refused() {
        assert!(matches!("10".parse::<Nanos>(), Err(UnitError::NoUnit { .. })));
        assert!(matches!("ms".parse::<Nanos>(), Err(UnitError::NoNumber { .. })));
        assert!(matches!("0.5 ns".parse::<Nanos>(), Err(UnitError::NotWhole { .. })));
        assert!(matches!("1 bit/s".parse::<Rate>(), Err(UnitError::NotWhole { .. })));
        assert!(matches!("3 MB".parse::<Nanos>(), Err(UnitError::UnknownUnit { .. })));
        assert!(matches!("99999999999 GB".parse::<Bytes>(), Err(UnitError::TooLarge { .. })));
        assert!(matches!("-1 ms".parse::<Nanos>(), Err(UnitError::Negative { .. })));
        assert_eq!(
            "16.6666667 ms".parse::<Nanos>().unwrap_err().to_string(),
            "`16.6666667 ms` is not a whole number of nanoseconds; the nearest is `\"16666667 ns\"`"
        );
        assert_eq!(
            "60 fps".parse::<Nanos>().unwrap_err().to_string(),
            "`60 fps` is a frequency; as a time it is `\"16666667 ns\"`"
        );
        assert!(matches!("0 fps".parse::<Nanos>(), Err(UnitError::NoNumber { .. })));
    }

    #[test]
    fn times_round_up_and_texts_round_to_the_nearest() {
        assert_eq!(Rate(8_000_000_000).time_for(Bytes(192_000_000)), Nanos(24_000_000));
        assert_eq!(Rate(3).time_for(Bytes(1)), Nanos(333_333_334));
        assert_eq!(Rate(0).time_for(Bytes(1)), Nanos::MAX);
        assert_eq!(Nanos(21_333_334).to_string(), "21.33 ms");
        assert_eq!(Nanos(999_999_999).to_string(), "1000 ms");
        assert_eq!(Bytes(128_000_000).to_string(), "128 MB");
        assert_eq!(Bytes(3_105).to_string(), "3.11 kB");
        assert_eq!(Rate(9_600_000_000).to_string(), "9.6 GB/s");
        assert_eq!(format!("{:>8}|", Nanos(5)), "    5 ns|");
    }

    #[test]
    fn a_size_is_shown_in_the_units_that_say_it_exactly_with_fewer_digits() {
        for text in [
            "1 KiB", "4 KiB", "5 KiB", "16 KiB", "25 KiB", "100 KiB", "1 MiB", "1.5 MiB", "2.25 MiB", "64 MiB",
            "256 MiB", "1 GiB", "512 GiB", "1 B", "999 B", "1 kB", "1.5 kB", "4 kB", "128 kB", "3 MB", "80 MB",
            "128 MB", "16 GB",
        ] {
            assert_eq!(text.parse::<Bytes>().unwrap().to_string(), text);
        }
        // What neither says exactly is rounded in decimal units.
        assert_eq!(
            [Bytes(4097), Bytes(1 + (1 << 30)), Bytes(u64::MAX)].map(|b| b.to_string()),
            ["4.1 kB", "1.07 GB", "18446744073.71 GB"]
        );
    }

    #[test]
    fn exact_texts_read_back_as_the_same_value() {
        assert_eq!(
            [Nanos(7_300).exact(), Nanos(0).exact(), Nanos(2_000_000_001).exact()],
            ["7.3 us", "0 ns", "2.000000001 s"]
        );
        assert_eq!([Bytes(4 << 20).exact(), Bytes(1_500_000).exact(), Bytes(0).exact()], ["4 MiB", "1.5 MB", "0 B"]);
        assert_eq!([Rate(55_500_000_000).exact(), Rate(999).exact()], ["55.5 GB/s", "999 B/s"]);
        for n in (0..200).map(|i| (i * i * i * 7_919) << (i % 37)).chain([u64::MAX]) {
            assert_eq!(Nanos(n).exact().parse(), Ok(Nanos(n)));
            assert_eq!(Bytes(n).exact().parse(), Ok(Bytes(n)));
            assert_eq!(Rate(n).exact().parse(), Ok(Rate(n)));
        }
    }
}
