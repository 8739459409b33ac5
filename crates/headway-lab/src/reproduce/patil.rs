//! Patil and Kulkarni 2021: pageable against pinned memory, overlap of copies and kernels, many small copies in one.

mod batch;
mod table_1;
mod table_2;

use headway_core::models::transfer::Direction;
use headway_core::units::Nanos;
use headway_measure::sample::SampleFigures;

pub(super) use self::batch::batch;
pub(super) use self::table_1::table_1;
pub(super) use self::table_2::table_2;
use super::bench::Bench;
use super::{ExperimentResults, ExperimentSetting, RawFigures};

const MIB: usize = 1 << 20;
const KIB: usize = 1 << 10;
const DIRECTIONS: [(Direction, &str); 2] = [(Direction::H2d, "h2d"), (Direction::D2h, "d2h")];

fn outcome(experiment: &'static str, bench: Bench, setting: &ExperimentSetting) -> ExperimentResults {
    ExperimentResults::new(experiment, bench.source, bench.machine, setting.seed)
}

/// Keeps a table of what was timed so far.
fn keep(setting: &ExperimentSetting, experiment: &'static str, bench: &Bench, table: RawFigures) {
    setting.keep(experiment, bench.source, &bench.machine, vec![table]);
}

/// Least samples of a point, and the time after which no further one is begun.
fn effort(setting: &ExperimentSetting) -> (u32, Nanos) {
    if setting.quick { (5, Nanos(20_000_000)) } else { (5, Nanos(100_000_000)) }
}

/// A size as the tables write it.
fn size(bytes: usize) -> String {
    if bytes < MIB { format!("{} KiB", bytes / KIB) } else { format!("{} MiB", bytes / MIB) }
}

/// Whether one way is faster than another beyond doubt: three quarters of its copies took less time than three quarters of the
/// other's.
fn strictly_faster(fast: SampleFigures, slow: SampleFigures) -> bool {
    fast.p75 < slow.p25
}

/// What [`strictly_faster`] asks, in words.
const STRICT: &str = "the third quartile of the one must be below the first quartile of the other";
