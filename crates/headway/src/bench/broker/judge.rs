//! The rows against what is to be reached (specification of sharing, 7.3).

use headway_core::units::Nanos;

use super::super::results::{Outcome, Target};
use super::{LEASED, Row, SLEEPS, SPINS, TOKEN_BUSY, TOKEN_PACED};

/// Row, most at the median, most at 99 %.
const TARGETS: [(&str, Nanos, Nanos); 5] = [
    (LEASED, Nanos(200), Nanos(1_000)),
    (TOKEN_BUSY, Nanos(20_000), Nanos(100_000)),
    (TOKEN_PACED, Nanos(20_000), Nanos(100_000)),
    (SPINS, Nanos(4_000), Nanos(15_000)),
    (SLEEPS, Nanos(15_000), Nanos(60_000)),
];
/// Fewer samples say nothing of 99 %.
const SAMPLES_MIN: u32 = 100;

/// Every target, median and 99 % each.
pub(super) fn judge(rows: &[Row]) -> Vec<Target> {
    let lines = TARGETS.into_iter().flat_map(|(what, median, p99)| {
        let row = rows.iter().find(|row| row.what == what).filter(|row| row.n >= SAMPLES_MIN);
        let line = |name: &str, most: Nanos, found: Option<Nanos>| Target {
            target: format!("{what}: {name} at most {most}"),
            measured: found.map_or_else(|| "-".to_owned(), |found| found.to_string()),
            outcome: match found {
                Some(found) if found <= most => Outcome::Met,
                Some(_) => Outcome::NotMet,
                None => Outcome::NotMeasured,
            },
        };
        [line("median", median, row.map(|row| row.median)), line("p99", p99, row.map(|row| row.p99))]
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_met_at_its_figure_and_missed_above_and_few_samples_are_no_proof() {
        let row = |n, p99| Row { what: SPINS, n, median: Nanos(4_000), p99: Nanos(p99), max: Nanos(p99) };
        let outcomes = |row: Row| {
            let targets = judge(&[row]);
            targets
                .iter()
                .filter(|target| target.target.starts_with(SPINS))
                .map(|target| target.outcome)
                .collect::<Vec<_>>()
        };
        let expect = |row, expected: [Outcome; 2]| assert_eq!(outcomes(row) as Vec<_>, expected);
        expect(row(100, 15_000), [Outcome::Met, Outcome::Met]);
        expect(row(100, 15_001), [Outcome::Met, Outcome::NotMet]);
        expect(row(99, 1), [Outcome::NotMeasured, Outcome::NotMeasured]);
    }
}
