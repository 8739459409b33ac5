//! What a benchmark found: rows of figures, lines against targets, and how they are written down.

use std::fmt::Write;

use headway_core::models::transfer::{BackgroundLoad, Direction, HostMemory};
use headway_core::units::{Bytes, Nanos};
use serde::Serialize;

use crate::sample::{self, SampleFigures, rate};

/// Parts of the benchmark.
pub(super) const METHODS: &str = "methods";
pub(super) const AUTO: &str = "auto";
pub(super) const TOGETHER: &str = "together";
pub(super) const TOGETHER_HUGE: &str = "together-huge-pages";
pub(super) const MULTIPATH: &str = "multipath";
pub(super) const HOST: &str = "host";
pub(super) const MANY: &str = "many";
pub(super) const WINDOW: &str = "window";
pub(super) const RESIDENT: &str = "resident";

/// Figures of one way in one situation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchRow {
    /// Which part of the benchmark: rows are compared within it only.
    pub part: &'static str,
    /// GPUs that copied at the same time.
    pub gpus: usize,
    /// The method, or `auto`, or how many pieces were moved.
    #[serde(rename = "method")]
    pub method: String,
    pub direction: Direction,
    /// The host end.
    pub memory: HostMemory,
    /// What else went on.
    pub load: BackgroundLoad,
    /// Bytes of one copy; of all GPUs together where several copied.
    pub bytes: Bytes,
    pub n: u32,
    /// Of the fastest copy.
    pub min: Nanos,
    /// Of a quarter of the copies.
    pub p25: Nanos,
    /// Time until the bytes were in place.
    pub median: Nanos,
    /// Of three quarters of the copies.
    pub p75: Nanos,
    /// Of 99 % of the copies; of fewer than 100 it is left out.
    pub p99: Option<Nanos>,
    /// Of the slowest.
    pub max: Nanos,
    /// CPU time of the whole process in one copy (median), where it was taken.
    pub cpu: Option<Nanos>,
    /// Which method `auto` took.
    pub took: Option<String>,
}

impl BenchRow {
    /// Bytes per second at the median.
    #[must_use]
    pub fn rate(&self) -> u64 {
        rate(self.bytes, self.median)
    }

    /// CPU seconds for 10^9 bytes, in thousandths.
    #[must_use]
    pub fn cpu_millis_per_gb(&self) -> Option<u64> {
        let cpu = self.cpu?;
        let millis = u128::from(cpu.0) * 1_000 / u128::from(self.bytes.0.max(1));
        u64::try_from(millis).ok()
    }

    /// How far the median may be off.
    pub(super) fn notch(&self) -> Nanos {
        sample::notch(self.n, self.p25, self.p75)
    }

    pub(super) fn with(mut self, figures: SampleFigures) -> Self {
        (self.n, self.median, self.p99, self.max) = (figures.n, figures.median, figures.tail(), figures.max);
        (self.min, self.p25, self.p75) = (figures.min, figures.p25, figures.p75);
        self
    }
}

/// How a target came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TargetOutcome {
    Met,
    /// Not reached.
    NotMet,
    /// What it needs is not here.
    NotMeasured,
}

impl TargetOutcome {
    /// As tables write it.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::NotMet => "not met",
            Self::NotMeasured => "not measured",
        }
    }
}

/// One line against a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Target {
    /// What is to be reached.
    pub target: String,
    /// What was found.
    pub measured: String,
    /// Whether that is enough.
    pub outcome: TargetOutcome,
}

/// The rows as comma-separated values.
pub(super) fn csv(rows: &[BenchRow], source: &str) -> String {
    let mut text = String::from(
        "source,part,gpus,method,took,direction,memory,load,bytes,n,median_ns,p99_ns,max_ns,bytes_per_s,cpu_ns,\
         vs_pageable,vs_dma,min_ns,p25_ns,p75_ns\n",
    );
    for row in rows {
        let ratio =
            |other: Option<&BenchRow>| other.map_or_else(String::new, |other| quotient(row.rate(), other.rate()));
        let cpu = row.cpu.map_or_else(String::new, |cpu| cpu.0.to_string());
        let _ = writeln!(
            text,
            "{source},{},{},{},{},{},{},{},{},{},{},{},{},{},{cpu},{},{},{},{},{}",
            row.part,
            row.gpus,
            row.method,
            row.took.as_deref().unwrap_or_default(),
            row.direction,
            row.memory,
            row.load,
            row.bytes.0,
            row.n,
            row.median.0,
            row.p99.map_or_else(String::new, |p99| p99.0.to_string()),
            row.max.0,
            row.rate(),
            ratio(counterpart(rows, row, "pageable")),
            ratio(counterpart(rows, row, "dma")),
            row.min.0,
            row.p25.0,
            row.p75.0,
        );
    }
    text
}

/// The row of `method` in the situation of `row`; `dma` has pinned memory, `pageable` that of `row` or warm memory.
pub(super) fn counterpart<'a>(rows: &'a [BenchRow], row: &BenchRow, method: &str) -> Option<&'a BenchRow> {
    let same = |other: &&BenchRow| {
        (other.part, other.gpus, other.direction, other.load, other.bytes)
            == (row.part, row.gpus, row.direction, row.load, row.bytes)
            && other.method == method
    };
    rows.iter().filter(same).find(|other| other.memory == row.memory).or_else(|| rows.iter().find(same))
}

/// `above / below` with two decimals, rounded down.
pub(super) fn quotient(above: u64, below: u64) -> String {
    let hundredths = u128::from(above) * 100 / u128::from(below.max(1));
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

/// The table of one part in Markdown, with rates and ratios.
pub(super) fn table(rows: &[BenchRow], part: &str) -> String {
    let mut text = String::from(
        "| GPUs | direction | memory | size | method | min | p25 | median | p75 | p99 | GB/s | CPU s/GB | \
         x pageable | x dma | n |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows.iter().filter(|row| row.part == part) {
        let ratio =
            |method| counterpart(rows, row, method).map_or_else(|| "-".to_owned(), |o| quotient(row.rate(), o.rate()));
        let cpu =
            row.cpu_millis_per_gb().map_or_else(|| "-".to_owned(), |ms| format!("{}.{:03}", ms / 1000, ms % 1000));
        let method = row.took.as_ref().map_or_else(|| row.method.clone(), |took| format!("{} ({took})", row.method));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {method} | {} | {} | {} | {} | {} | {} | {cpu} | {} | {} | {} |",
            row.gpus,
            row.direction,
            row.memory,
            size(row.bytes),
            row.min,
            row.p25,
            row.median,
            row.p75,
            row.p99.map_or_else(|| "-".to_owned(), |p99| p99.to_string()),
            quotient(row.rate(), 1_000_000_000),
            ratio("pageable"),
            ratio("dma"),
            row.n
        );
    }
    text
}

/// A size in binary units where it is a whole number of them.
pub(super) fn size(bytes: Bytes) -> String {
    for (unit, name) in [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
        if bytes.0 >= unit && bytes.0.is_multiple_of(unit) {
            return format!("{} {name}", bytes.0 / unit);
        }
    }
    format!("{} B", bytes.0)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A row of one GPU with warm memory that takes `median` nanoseconds.
    pub(in super::super) fn row(
        part: &'static str,
        method: &str,
        direction: Direction,
        bytes: u64,
        median: u64,
    ) -> BenchRow {
        BenchRow {
            part,
            gpus: 1,
            method: method.to_owned(),
            direction,
            memory: if method == "dma" { HostMemory::Pinned } else { HostMemory::Touched },
            load: BackgroundLoad::Alone,
            bytes: Bytes(bytes),
            n: 10,
            min: Nanos(median),
            p25: Nanos(median),
            median: Nanos(median),
            p75: Nanos(median),
            p99: None,
            max: Nanos(median),
            cpu: None,
            took: None,
        }
    }

    #[test]
    fn rows_are_compared_with_the_driver_and_with_pinned_memory_of_the_same_size() {
        let rows = [
            row("methods", "pageable", Direction::H2d, 1 << 20, 400),
            row("methods", "dma", Direction::H2d, 1 << 20, 100),
            row("methods", "staged", Direction::H2d, 1 << 20, 200),
            row("methods", "dma", Direction::H2d, 1 << 10, 1),
        ];
        let text = csv(&rows, "emu");
        let staged = text.lines().nth(3).unwrap();
        assert!(
            staged.starts_with("emu,methods,1,staged,,h2d,warm,alone,1048576,10,200,,200,")
                && staged.ends_with(",2.00,0.50,200,200,200"),
            "{staged}"
        );
        assert!(table(&rows, "methods").contains("| 200 ns | - | 5242.88 | - | 2.00 | 0.50 | 10 |"));
    }

    #[test]
    fn sizes_are_binary_only_when_they_are_whole() {
        assert_eq!([size(Bytes(1 << 30)), size(Bytes(1025)), size(Bytes(2048))], ["1 GiB", "1025 B", "2 KiB"]);
    }

    #[test]
    fn cpu_time_is_told_for_10_to_the_9_bytes() {
        let row = BenchRow { cpu: Some(Nanos(500_000)), ..row("methods", "staged", Direction::H2d, 1_000_000, 1) };
        assert_eq!(row.cpu_millis_per_gb(), Some(500));
    }
}
