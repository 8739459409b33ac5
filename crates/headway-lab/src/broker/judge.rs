//! The rows against what is to be reached (specification of sharing, 7.3).

use headway_core::units::Nanos;

use super::{LEASED, SLEEPS, SPINS, TOKEN_BUSY, TOKEN_PACED, TimingRow, WAKE};
use headway_measure::bench::{Target, TargetOutcome};

/// Row, most at the median, most at 99 %.
const TARGETS: [(&str, Nanos, Nanos); 5] = [
    (LEASED, Nanos(200), Nanos(1_000)),
    (TOKEN_BUSY, Nanos(20_000), Nanos(100_000)),
    (TOKEN_PACED, Nanos(20_000), Nanos(100_000)),
    (SPINS, Nanos(4_000), Nanos(15_000)),
    (SLEEPS, Nanos(15_000), Nanos(60_000)),
];

/// Every target, median and 99 % each. What is measured of a holder that sleeps stands beside what waking a thread takes
/// on this host at all, in the same run: nobody who sleeps can be faster.
pub(super) fn judge(rows: &[TimingRow]) -> Vec<Target> {
    let find = |what: &str| rows.iter().find(|row| row.what == what).filter(|row| row.p99.is_some());
    let wake = find(WAKE);
    let lines = TARGETS.into_iter().flat_map(|(what, median, p99)| {
        let (row, wake) = (find(what), wake.filter(|_| what == SLEEPS));
        let line = |name: &str, most: Nanos, figure: fn(&TimingRow) -> Option<Nanos>| Target {
            target: format!("{what}: {name} at most {most}"),
            measured: row
                .and_then(figure)
                .map_or_else(|| "-".to_owned(), |found| measured(found, most, wake.and_then(figure))),
            outcome: match row.and_then(figure) {
                Some(found) if found <= most => TargetOutcome::Met,
                Some(_) => TargetOutcome::NotMet,
                None => TargetOutcome::NotMeasured,
            },
        };
        [line("median", median, |row| Some(row.median)), line("p99", p99, |row| row.p99)]
    });
    lines.collect()
}

/// A figure, and beside it what a futex wake-up takes by itself.
fn measured(found: Nanos, most: Nanos, wake: Option<Nanos>) -> String {
    match wake {
        None => found.to_string(),
        Some(wake) if found > most && wake > most => {
            format!("{found}; a futex wake-up alone takes {wake} here: the host is the limit")
        }
        Some(wake) => format!("{found}; a futex wake-up alone takes {wake} here"),
    }
}

#[cfg(test)]
mod tests {
    use headway_core::models::transfer::tail;

    use super::*;

    #[test]
    fn a_target_is_met_at_its_figure_and_missed_above_and_few_samples_are_no_proof() {
        let row = |n, p99| TimingRow {
            what: SPINS,
            n,
            median: Nanos(4_000),
            p99: tail(n.into(), Nanos(p99)),
            max: Nanos(p99),
        };
        let expect = |row: TimingRow, expected: [TargetOutcome; 2]| {
            let targets = judge(&[row]);
            let ours = targets.iter().filter(|target| target.target.starts_with(SPINS));
            assert_eq!(ours.map(|target| target.outcome).collect::<Vec<_>>(), expected);
        };
        expect(row(100, 15_000), [TargetOutcome::Met, TargetOutcome::Met]);
        expect(row(100, 15_001), [TargetOutcome::Met, TargetOutcome::NotMet]);
        expect(row(99, 1), [TargetOutcome::NotMeasured, TargetOutcome::NotMeasured]);
    }

    #[test]
    fn the_host_is_the_limit_where_waking_a_thread_alone_takes_longer_than_the_target_and_the_target_is_still_missed() {
        let row = |what, median, p99| TimingRow {
            what,
            n: 100,
            median: Nanos(median),
            p99: Some(Nanos(p99)),
            max: Nanos(p99),
        };
        let found = |wake: TimingRow| {
            let targets = judge(&[row(SLEEPS, 14_000, 250_000), wake]);
            let ours = targets.into_iter().filter(|target| target.target.starts_with(SLEEPS));
            ours.map(|target| (target.outcome, target.measured)).collect::<Vec<_>>()
        };
        let slow = found(row(WAKE, 12_000, 280_000));
        assert_eq!(
            slow.iter().map(|(outcome, _)| *outcome).collect::<Vec<_>>(),
            [TargetOutcome::Met, TargetOutcome::NotMet]
        );
        assert_eq!(slow[0].1, "14 us; a futex wake-up alone takes 12 us here");
        assert_eq!(slow[1].1, "250 us; a futex wake-up alone takes 280 us here: the host is the limit");
        let fast = found(row(WAKE, 2_000, 60_000));
        assert_eq!(fast[1], (TargetOutcome::NotMet, "250 us; a futex wake-up alone takes 60 us here".to_owned()));
        assert_eq!(judge(&[row(SLEEPS, 14_000, 250_000)])[8].measured, "14 us");
    }
}
