//! The targets, and the rows that say whether they are met.

use headway_core::models::transfer::{BackgroundLoad, Direction, HostMemory};
use headway_core::units::{Bytes, Nanos};

use super::host;
use super::results::{
    self, AUTO, BenchRow, MANY, METHODS, MULTIPATH, RESIDENT, TOGETHER, TOGETHER_HUGE, Target, TargetOutcome, WINDOW,
    quotient, size,
};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const GB: u64 = 1_000_000_000;
/// `copy` may take this much longer than the best single method: 3 %, or 300 ns.
const BEHIND_PERCENT: u64 = 3;
const BEHIND: Nanos = Nanos(300);

/// Everything that is to be reached, each with what `rows` say.
pub(super) fn judge(rows: &[BenchRow]) -> Vec<Target> {
    let mut targets = Vec::new();
    for direction in [Direction::H2d, Direction::D2h] {
        staged(rows, direction, &mut targets);
    }
    targets.push(automatic(rows));
    for (direction, least) in [(Direction::H2d, 155), (Direction::D2h, 165)] {
        concurrent(rows, direction, least, &mut targets);
    }
    for (direction, pinned) in [(Direction::H2d, 195), (Direction::D2h, 150)] {
        for (memory, least) in [(HostMemory::Pinned, pinned), (HostMemory::Touched, 120)] {
            let row = longest(rows, |row| {
                row.part == MULTIPATH && row.method == "multipath" && (row.direction, row.memory) == (direction, memory)
            });
            let target = format!("one GPU over four links, {memory} memory, {direction}: at least {least} GB/s");
            let reached = at_least(target, row.filter(|row| row.gpus >= 4), least * GB);
            targets.push(with_references(reached, rows, direction, memory));
        }
    }
    small(rows, &mut targets);
    targets.push(many(rows));
    targets
}

/// `staged` against pinned memory and against the driver's call.
fn staged(rows: &[BenchRow], direction: Direction, targets: &mut Vec<Target>) {
    let row = |method: &str, bytes, memory| {
        rows.iter().find(|row| {
            row.part == METHODS
                && row.method == method
                && (row.direction, row.bytes, row.memory) == (direction, Bytes(bytes), memory)
        })
    };
    for bytes in [256 * MIB, GIB] {
        let (ours, pinned) = (row("staged", bytes, HostMemory::Touched), row("dma", bytes, HostMemory::Pinned));
        let target = format!("staged {direction} {}: at least 0.94 of pinned dma", size(Bytes(bytes)));
        targets.push(ratio(target, ours.zip(pinned), 94));
    }
    let least = if direction == Direction::H2d { 450 } else { 250 };
    let pair = row("staged", GIB, HostMemory::Touched).zip(row("pageable", GIB, HostMemory::Touched));
    let target = format!("staged {direction} 1 GiB: at least {} x the driver's call", quotient(least, 100));
    targets.push(ratio(target, pair, least));
    if direction == Direction::D2h {
        let pair = row("staged", GIB, HostMemory::Untouched).zip(row("pageable", GIB, HostMemory::Untouched));
        let target = "staged d2h 1 GiB into fresh pages: at least 5 x the driver's call, which PyTorch's .cpu() makes";
        targets.push(ratio(target.to_owned(), pair, 500));
    }
}

/// What `auto` may take where the best single method takes `best`.
pub(super) fn allowed(best: Nanos) -> Nanos {
    Nanos((best.0.saturating_mul(100 + BEHIND_PERCENT) / 100).max(best.0.saturating_add(BEHIND.0)))
}

/// Whether a distance of medians says nothing, with how far each may be off.
pub(super) const fn is_open(distance: u64, one: Nanos, other: Nanos) -> bool {
    one.0.saturating_add(other.0) > 0 && distance <= one.0.saturating_add(other.0)
}

/// `auto` against the best single method, at every size. Points that are behind by no more than their spread are counted by
/// themselves.
fn automatic(rows: &[BenchRow]) -> Target {
    let target = "`copy` at every size: at most 3 % or 0.3 us behind the best single method".to_owned();
    let autos: Vec<&BenchRow> = rows.iter().filter(|row| row.part == AUTO && row.method == "auto").collect();
    let mut worst: Option<(bool, u128, String)> = None;
    let (mut behind, mut open) = (0, 0);
    for auto in &autos {
        let same = |row: &&BenchRow| {
            row.part == AUTO
                && row.method != "auto"
                && (row.direction, row.memory, row.bytes) == (auto.direction, auto.memory, auto.bytes)
        };
        let Some(best) = rows.iter().filter(same).min_by_key(|row| row.median) else { continue };
        let allowed = allowed(best.median);
        let over = auto.median.0.saturating_sub(allowed.0);
        let is_open = over > 0 && is_open(over, auto.notch(), best.notch());
        open += usize::from(is_open);
        behind += usize::from(over > 0 && !is_open);
        let lag = u128::from(auto.median.0) * 1_000_000 / u128::from(allowed.0.max(1));
        let rank = (over > 0 && !is_open, lag);
        if worst.as_ref().is_none_or(|(known, most, _)| rank > (*known, *most)) {
            let took = auto.took.as_deref().unwrap_or("?");
            let text = format!(
                "{} {} {}: {} by {took}, best {} by {}",
                auto.direction,
                auto.memory,
                size(auto.bytes),
                auto.median,
                best.median,
                best.method
            );
            worst = Some((rank.0, lag, text));
        }
    }
    let Some((_, _, worst)) = worst else { return missing(target) };
    let measured =
        format!("{behind} of {} points behind, {open} more within their spread; worst: {worst}", autos.len());
    Target { target, measured, outcome: met(behind == 0) }
}

/// Several GPUs at once, ordinary memory.
fn concurrent(rows: &[BenchRow], direction: Direction, least: u64, targets: &mut Vec<Target>) {
    for (part, pages) in [(TOGETHER, "small pages"), (TOGETHER_HUGE, "huge pages")] {
        let row = longest(rows, |row| {
            row.part == part && row.method == "auto" && (row.direction, row.memory) == (direction, HostMemory::Touched)
        });
        let target = format!("four GPUs at once, ordinary memory of {pages}, {direction}: at least {least} GB/s");
        let reached = at_least(target, row.filter(|row| row.gpus >= 4), least * GB);
        targets.push(with_references(reached, rows, direction, HostMemory::Touched));
        // What memory gives beyond two links is another question.
        let row = row.filter(|row| row.gpus == 2);
        let pinned = row.and_then(|row| results::counterpart(rows, row, "dma"));
        let target = format!("two GPUs at once, ordinary memory of {pages}, {direction}: at least 0.94 of pinned dma");
        targets.push(ratio(target, row.zip(pinned), 94));
    }
}

/// `target` of several links, with what the host itself gives in the same run: pinned memory of all GPUs at once, and for ordinary
/// memory on its way in what the CPUs copy and read while no engine is at work.
fn with_references(mut target: Target, rows: &[BenchRow], direction: Direction, memory: HostMemory) -> Target {
    if target.outcome == TargetOutcome::NotMeasured {
        return target;
    }
    let gb = |row: &BenchRow| quotient(row.rate(), GB);
    let pinned = longest(rows, |row| row.part == TOGETHER && row.method == "dma" && row.direction == direction);
    if let Some(row) = pinned {
        target.measured += &format!("; pinned memory of {} GPUs at once: {} GB/s", row.gpus, gb(row));
    }
    if direction == Direction::H2d && memory == HostMemory::Touched {
        for row in ["copied", "read"].into_iter().filter_map(|what| host::fastest(rows, what)) {
            target.measured += &format!("; {}, no engine at work: {} GB/s", row.method, gb(row));
        }
    }
    target
}

/// Windows and resident copiers.
fn small(rows: &[BenchRow], targets: &mut Vec<Target>) {
    let find = |part: &str, method: &str, bytes: u64, direction, load| {
        rows.iter().find(|row| {
            row.part == part
                && row.method.starts_with(method)
                && (row.bytes, row.direction, row.load) == (Bytes(bytes), direction, load)
        })
    };
    for bytes in [64, 4096] {
        let row = find(WINDOW, "store", bytes, Direction::H2d, BackgroundLoad::Alone);
        let target = format!("window store of {bytes} B at rest, the clock's own time taken off: at most 0.2 us");
        targets.push(at_most(target, row.map(|row| row.median), 200));
    }
    let load = find(WINDOW, "load", 64, Direction::D2h, BackgroundLoad::Alone);
    targets.push(at_most(
        "window load of 64 B, the clock's own time taken off: at most 1.2 us".to_owned(),
        load.map(|row| row.median),
        1_200,
    ));
    let trip = find(WINDOW, "round trip", 4, Direction::H2d, BackgroundLoad::Alone);
    targets.push(at_most("CPU to GPU to CPU round trip: at most 2 us".to_owned(), trip.map(|row| row.median), 2_000));
    let idle = find(RESIDENT, "resident", 4096, Direction::D2h, BackgroundLoad::Alone);
    targets.push(at_most("resident 4 KiB d2h, idle: at most 3.5 us".to_owned(), idle.map(|row| row.median), 3_500));
    let busy = find(RESIDENT, "resident", 4096, Direction::D2h, BackgroundLoad::BulkSame);
    let median = busy.map(|row| row.median);
    targets.push(at_most("resident 4 KiB d2h under bulk d2h: median at most 5 us".to_owned(), median, 5_000));
    let target = "resident 4 KiB d2h under bulk d2h: longest of 10^4 at most 20 us".to_owned();
    let enough = busy.filter(|row| row.n >= 10_000);
    targets.push(match (busy, enough) {
        (Some(row), None) => Target {
            target,
            measured: format!("{} in {} copies only", row.max, row.n),
            outcome: TargetOutcome::NotMeasured,
        },
        _ => at_most(target, enough.map(|row| row.max), 20_000),
    });
}

/// Many pieces in one request against one copy queued per piece.
fn many(rows: &[BenchRow]) -> Target {
    let target = "8192 pieces of 4 KiB: at least 10 x a loop of copies".to_owned();
    let of = |chosen: &dyn Fn(&str) -> bool| {
        let rows = rows.iter().filter(|row| row.part == MANY && row.direction == Direction::H2d && chosen(&row.method));
        rows.min_by_key(|row| row.median)
    };
    let (Some(looped), Some(best)) = (of(&|method| method == "loop"), of(&|method| method != "loop")) else {
        return missing(target);
    };
    let outcome = met(best.median.0.saturating_mul(10) <= looped.median.0);
    let times = quotient(looped.median.0, best.median.0);
    Target {
        target,
        measured: format!("{times} x by {} ({}; loop {})", best.method, best.median, looped.median),
        outcome,
    }
}

/// Of the rows that fit, the one with most bytes.
fn longest(rows: &[BenchRow], fits: impl Fn(&BenchRow) -> bool) -> Option<&BenchRow> {
    rows.iter().filter(|row| fits(row)).max_by_key(|row| row.bytes)
}

fn ratio(target: String, pair: Option<(&BenchRow, &BenchRow)>, least_percent: u64) -> Target {
    let Some((ours, theirs)) = pair else { return missing(target) };
    let enough = u128::from(ours.rate()) * 100 >= u128::from(theirs.rate()) * u128::from(least_percent);
    let rates = format!("{} against {} GB/s", quotient(ours.rate(), GB), quotient(theirs.rate(), GB));
    Target { target, measured: format!("{} ({rates})", quotient(ours.rate(), theirs.rate())), outcome: met(enough) }
}

fn at_least(target: String, row: Option<&BenchRow>, least: u64) -> Target {
    let Some(row) = row else { return missing(target) };
    let measured = format!("{} GB/s with {}", quotient(row.rate(), GB), size(row.bytes));
    Target { target, measured, outcome: met(row.rate() >= least) }
}

fn at_most(target: String, time: Option<Nanos>, most: u64) -> Target {
    let Some(time) = time else { return missing(target) };
    Target { target, measured: time.to_string(), outcome: met(time <= Nanos(most)) }
}

const fn met(reached: bool) -> TargetOutcome {
    if reached { TargetOutcome::Met } else { TargetOutcome::NotMet }
}

fn missing(target: String) -> Target {
    Target { target, measured: "-".to_owned(), outcome: TargetOutcome::NotMeasured }
}

#[cfg(test)]
mod tests {
    use super::super::results::HOST;
    use super::super::results::tests::row;
    use super::*;

    fn outcome_of(rows: &[BenchRow], start: &str) -> TargetOutcome {
        let targets = judge(rows);
        targets.iter().find(|target| target.target.starts_with(start)).unwrap_or_else(|| panic!("{targets:?}")).outcome
    }

    #[test]
    fn without_rows_nothing_is_met_and_nothing_missed() {
        assert!(judge(&[]).iter().all(|target| target.outcome == TargetOutcome::NotMeasured));
    }

    #[test]
    fn staging_is_held_against_pinned_memory_and_the_driver_of_the_same_run() {
        let (at, by) = (GIB, |ns| ns);
        let mut rows = vec![
            row(METHODS, "dma", Direction::H2d, at, by(94)),
            row(METHODS, "staged", Direction::H2d, at, by(100)),
            row(METHODS, "pageable", Direction::H2d, at, by(450)),
        ];
        assert_eq!(outcome_of(&rows, "staged h2d 1 GiB: at least 0.94"), TargetOutcome::Met);
        assert_eq!(outcome_of(&rows, "staged h2d 1 GiB: at least 4.50"), TargetOutcome::Met);
        rows[1].median = Nanos(101);
        assert_eq!(outcome_of(&rows, "staged h2d 1 GiB: at least 0.94"), TargetOutcome::NotMet);
        assert_eq!(outcome_of(&rows, "staged h2d 1 GiB: at least 4.50"), TargetOutcome::NotMet);
        assert_eq!(outcome_of(&rows, "staged h2d 256 MiB"), TargetOutcome::NotMeasured);
    }

    #[test]
    fn auto_may_be_3_percent_or_300_ns_behind() {
        let rows = |auto: u64, best: u64| {
            [row(AUTO, "auto", Direction::D2h, 64, auto), row(AUTO, "resident hub", Direction::D2h, 64, best)]
        };
        let outcome = |auto, best| outcome_of(&rows(auto, best), "`copy` at every size");
        assert_eq!((outcome(1_300, 1_000), outcome(1_301, 1_000)), (TargetOutcome::Met, TargetOutcome::NotMet));
        assert_eq!((outcome(103_000, 100_000), outcome(103_001, 100_000)), (TargetOutcome::Met, TargetOutcome::NotMet));
    }

    #[test]
    fn a_lag_within_the_spread_of_both_medians_is_told_and_not_held_against_auto() {
        let spread = |row: BenchRow, by: u64| BenchRow {
            p25: row.median - Nanos(by),
            p75: row.median + Nanos(by),
            n: 100,
            ..row
        };
        let rows = |by: u64| {
            let auto = row(AUTO, "auto", Direction::D2h, 1 << 20, 104_000);
            [spread(auto, by), spread(row(AUTO, "staged", Direction::D2h, 1 << 20, 100_000), by)]
        };
        let of = |by| automatic(&rows(by));
        // 1 us too late; two notches of 0.157 x 2 x `by`.
        assert_eq!((of(1_500).outcome, of(1_600).outcome), (TargetOutcome::NotMet, TargetOutcome::Met));
        assert!(of(1_600).measured.starts_with("0 of 1 points behind, 1 more within their spread"));
        assert!(of(1_500).measured.starts_with("1 of 1 points behind, 0 more within"));
    }

    #[test]
    fn two_gpus_at_once_are_held_against_pinned_memory_of_both() {
        let pair = |method: &str, median| BenchRow { gpus: 2, ..row(TOGETHER, method, Direction::H2d, GIB, median) };
        let start = "two GPUs at once, ordinary memory of small pages, h2d";
        assert_eq!(outcome_of(&[pair("dma", 94), pair("auto", 100)], start), TargetOutcome::Met);
        assert_eq!(outcome_of(&[pair("dma", 93), pair("auto", 100)], start), TargetOutcome::NotMet);
    }

    #[test]
    fn copies_over_several_links_are_told_with_what_memory_and_pinned_copies_give() {
        let four = |method: &str, median| BenchRow { gpus: 4, ..row(TOGETHER, method, Direction::H2d, 4 * GB, median) };
        let cpus = |method: &str, median| row(HOST, method, Direction::H2d, 4 * GB, median);
        let rows = [
            four("dma", 20_000_000),
            four("auto", 32_000_000),
            cpus("read by 48 CPUs", 25_000_000),
            cpus("copied by 32 CPUs plain", 40_000_000),
            cpus("copied by 48 CPUs demoted", 30_000_000),
        ];
        let targets = judge(&rows);
        let of = |start: &str| &targets.iter().find(|target| target.target.starts_with(start)).unwrap().measured;
        assert_eq!(
            of("four GPUs at once, ordinary memory of small pages, h2d"),
            "125.00 GB/s with 3906250 KiB; pinned memory of 4 GPUs at once: 200.00 GB/s; copied by 48 CPUs demoted, no engine \
             at work: 133.33 GB/s; read by 48 CPUs, no engine at work: 160.00 GB/s"
        );
        assert_eq!(of("one GPU over four links, warm memory, h2d"), "-");
    }

    #[test]
    fn a_loop_of_copies_must_be_beaten_tenfold() {
        let rows = |ns| [row(MANY, "loop", Direction::H2d, 1, 1_000), row(MANY, "gather", Direction::H2d, 1, ns)];
        assert_eq!(outcome_of(&rows(100), "8192"), TargetOutcome::Met);
        assert_eq!(outcome_of(&rows(101), "8192"), TargetOutcome::NotMet);
    }

    #[test]
    fn fewer_samples_than_a_maximum_needs_are_no_proof() {
        let busy = |n| BenchRow {
            load: BackgroundLoad::BulkSame,
            n,
            ..row(RESIDENT, "resident hub", Direction::D2h, 4096, 4_000)
        };
        assert_eq!(
            outcome_of(&[busy(9_999)], "resident 4 KiB d2h under bulk d2h: longest"),
            TargetOutcome::NotMeasured
        );
        assert_eq!(outcome_of(&[busy(10_000)], "resident 4 KiB d2h under bulk d2h: longest"), TargetOutcome::Met);
    }
}
