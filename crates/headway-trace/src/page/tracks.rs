//! What the timeline of a page draws, in bounded size.
//!
//! Of a run with more operations than a page may hold, those near what is worth looking at are kept one by one, and the
//! others are merged into blocks: how many there were, and for how much of the block's time the engine was busy.

use headway_core::units::{Bytes, Nanos};
use serde::Serialize;

/// Operations that a page keeps one by one.
pub(crate) const SINGLY_MAX: usize = 60_000;
/// Blocks of all rows together.
const BLOCKS_MAX: usize = 60_000;
/// Blocks of a row: a few for each pixel of a wide screen, so that the whole run looks as if nothing were merged.
const BLOCKS_OF_ROW: (usize, usize) = (128, 4_096);
/// Windows that are tried at most.
const WINDOWS_MAX: usize = 400;
/// What a track's operation without a job is called in the data block.
const MERGED: i64 = -1;

/// What one engine, or one task, did: one row of the timeline.
#[derive(Clone, Debug, Default)]
pub(crate) struct Track {
    pub(crate) name: String,
    /// Rows of a group stand together.
    pub(crate) group: Option<u32>,
    /// In the order of their start.
    pub(crate) items: Vec<Item>,
}

/// What is drawn as one rectangle. Times are after the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) start: Nanos,
    pub(crate) end: Nanos,
    /// Position of its job.
    pub(crate) job: usize,
    /// What it moves.
    pub(crate) bytes: Bytes,
    /// What it is; the page's script knows the numbers.
    pub(crate) kind: u8,
    /// Whether it waits.
    pub(crate) waits: bool,
    /// Whether it is drawn red.
    pub(crate) marked: bool,
}

/// A track as the data block has it; equal positions in its vectors belong together.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Row {
    name: String,
    group: Option<u32>,
    start: Vec<Nanos>,
    duration: Vec<Nanos>,
    /// Position of the job; -1 = a block.
    job: Vec<i64>,
    bytes: Vec<Bytes>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kind: Vec<u8>,
    /// What the blocks stand for, in their order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    blocks: Vec<Block>,
}

/// What a block stands for: operations, time with at least one of them, time with one that waits, how many are red.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Block(u64, Nanos, Nanos, u64);

/// What was kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Kept {
    /// Operations there were, over all rows.
    pub(crate) operations: u64,
    /// Of these, kept one by one.
    pub(crate) singly: u64,
    /// Length of a block; zero = nothing was merged.
    pub(crate) block: Nanos,
    /// Where all operations that begin inside are kept one by one.
    pub(crate) windows: Vec<(Nanos, Nanos)>,
}

/// Rows and what they keep of `tracks`.
pub(crate) struct Reduced {
    /// One for each track.
    pub(crate) rows: Vec<Row>,
    /// What was kept.
    pub(crate) kept: Kept,
    /// Of each job, whether one of its operations was kept.
    pub(crate) jobs: Vec<bool>,
}

/// Keeps all operations if they are at most `singly`. Otherwise those of the run's beginning, then those of the windows in
/// `wanted`, in their order, as long as there is room; the rest is merged.
pub(crate) fn reduce(
    tracks: &[Track],
    jobs: usize,
    span: Nanos,
    wanted: impl IntoIterator<Item = (Nanos, Nanos)>,
    singly: usize,
) -> Reduced {
    let operations: usize = tracks.iter().map(|track| track.items.len()).sum();
    let all = operations <= singly;
    let windows = if all { vec![(Nanos::ZERO, Nanos(u64::MAX))] } else { choose(tracks, span, wanted, singly) };
    let of_row = (BLOCKS_MAX / tracks.len().max(1)).clamp(BLOCKS_OF_ROW.0, BLOCKS_OF_ROW.1);
    let block = Nanos((span.0 / of_row as u64).max(1));
    let mut kept = Kept { operations: operations as u64, singly: 0, block, windows };
    let mut named = vec![false; jobs];
    let rows = tracks.iter().map(|track| row(track, &mut kept, &mut named)).collect();
    if all {
        (kept.block, kept.windows) = (Nanos::ZERO, Vec::new());
    }
    Reduced { rows, kept, jobs: named }
}

/// Disjoint windows in order.
fn choose(
    tracks: &[Track],
    span: Nanos,
    wanted: impl IntoIterator<Item = (Nanos, Nanos)>,
    singly: usize,
) -> Vec<(Nanos, Nanos)> {
    let mut starts: Vec<Nanos> = tracks.iter().flat_map(|track| track.items.iter().map(|item| item.start)).collect();
    starts.sort_unstable();
    let begin_with = starts.get(singly / 4).copied().unwrap_or(span);
    let count = |from: Nanos, to: Nanos| {
        let before = |time: Nanos| starts.partition_point(|start| *start < time);
        before(to).saturating_sub(before(from))
    };
    let mut windows = vec![(Nanos::ZERO, begin_with)];
    let mut room = singly.saturating_sub(count(Nanos::ZERO, begin_with));
    for (from, to) in wanted.into_iter().take(WINDOWS_MAX) {
        let around = Nanos(to.saturating_sub(from).0 / 4 + 1_000);
        let (from, to) = (from.saturating_sub(around), to.saturating_add(around).min(span.saturating_add(Nanos(1))));
        let (touching, apart): (Vec<_>, Vec<_>) =
            windows.iter().copied().partition(|window: &(Nanos, Nanos)| window.0 <= to && from <= window.1);
        let union = touching.iter().fold((from, to), |all, window| (all.0.min(window.0), all.1.max(window.1)));
        let known: usize = touching.iter().map(|window| count(window.0, window.1)).sum();
        let more = count(union.0, union.1).saturating_sub(known);
        if more > room {
            continue;
        }
        room -= more;
        windows = apart;
        windows.push(union);
        windows.sort_unstable();
    }
    windows
}

/// A track's items, those outside the windows in blocks.
fn row(track: &Track, kept: &mut Kept, jobs: &mut [bool]) -> Row {
    let mut row = Row { name: track.name.clone(), group: track.group, ..Row::default() };
    let mut open: Vec<&Item> = Vec::new();
    let mut covered = Nanos::ZERO;
    let mut window = 0;
    for item in &track.items {
        while kept.windows.get(window).is_some_and(|(_, to)| *to <= item.start) {
            window += 1;
        }
        let single = kept.windows.get(window).is_some_and(|(from, _)| *from <= item.start);
        let other = open.first().is_some_and(|first| first.start.0 / kept.block.0 != item.start.0 / kept.block.0);
        if single || other {
            row.close(&mut open, &mut covered, kept, jobs);
        }
        if single {
            open.push(item);
            row.close(&mut open, &mut covered, kept, jobs);
        } else {
            open.push(item);
        }
    }
    row.close(&mut open, &mut covered, kept, jobs);
    if track.items.iter().all(|item| item.kind == 0) {
        row.kind.clear();
    }
    row
}

impl Row {
    /// Adds what is open, one item as it is and several as a block.
    fn close(&mut self, open: &mut Vec<&Item>, covered: &mut Nanos, kept: &mut Kept, jobs: &mut [bool]) {
        let Some(first) = open.first() else { return };
        let mut block = Block::default();
        let (mut end, mut bytes) = (first.end, 0u64);
        for item in open.iter() {
            let fresh = item.end.saturating_sub(item.start.max(*covered));
            *covered = item.end.max(*covered);
            block.0 += 1;
            block.1 = block.1.saturating_add(fresh);
            block.2 = block.2.saturating_add(if item.waits { fresh } else { Nanos::ZERO });
            block.3 += u64::from(item.marked);
            end = end.max(item.end);
            bytes = bytes.saturating_add(item.bytes.0);
        }
        self.start.push(first.start);
        self.duration.push(end.saturating_sub(first.start));
        self.bytes.push(Bytes(bytes));
        self.kind.push(first.kind);
        if open.len() == 1 {
            kept.singly += 1;
            jobs[first.job] = true;
            self.job.push(first.job as i64);
        } else {
            self.job.push(MERGED);
            self.blocks.push(block);
        }
        open.clear();
    }

    /// Gives jobs their positions among those that are kept.
    pub(crate) fn renumber(&mut self, positions: &[i64]) {
        for job in self.job.iter_mut().filter(|job| **job != MERGED) {
            *job = usize::try_from(*job).ok().and_then(|at| positions.get(at).copied()).unwrap_or(MERGED);
        }
    }
}

/// The new position of each job that is kept, -1 for the others.
pub(crate) fn positions(kept: &[bool]) -> Vec<i64> {
    let mut next = 0;
    let place = |kept: &bool| {
        let at = if *kept { next } else { MERGED };
        next += i64::from(*kept);
        at
    };
    kept.iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `count` operations of 6 ns every 10 ns.
    fn track(count: usize) -> Track {
        let item = |at: usize| Item {
            start: Nanos(10 * at as u64),
            end: Nanos(10 * at as u64 + 6),
            job: at,
            bytes: Bytes(3),
            kind: 0,
            waits: at.is_multiple_of(2),
            marked: at == 777,
        };
        Track { name: "a".into(), group: None, items: (0..count).map(item).collect() }
    }

    fn sums(row: &Row) -> (u64, u64, u64) {
        let singly: u64 = row.job.iter().zip(&row.duration).filter(|(job, _)| **job >= 0).map(|(_, time)| time.0).sum();
        let merged = row.blocks.iter().fold((0, 0), |sum, block| (sum.0 + block.0, sum.1 + block.1.0));
        let ones = row.job.iter().filter(|job| **job >= 0).count() as u64;
        (ones + merged.0, singly + merged.1, row.bytes.iter().map(|bytes| bytes.0).sum())
    }

    #[test]
    fn a_short_run_is_kept_whole() {
        let reduced = reduce(&[track(1_000)], 1_000, Nanos(10_000), [], 1_000);
        assert_eq!(reduced.kept, Kept { operations: 1_000, singly: 1_000, block: Nanos(0), windows: vec![] });
        assert!(reduced.jobs.iter().all(|kept| *kept));
        assert_eq!(sums(&reduced.rows[0]), (1_000, 6_000, 3_000));
    }

    #[test]
    fn a_long_run_keeps_its_beginning_and_what_was_wanted_and_loses_no_time_no_byte_and_no_mark() {
        let n = 200_000;
        let wanted = [(Nanos(1_000_000), Nanos(1_002_000)), (Nanos(0), Nanos(2_000_000))];
        let reduced = reduce(&[track(n)], n, Nanos(2_000_000), wanted, 2_000);
        let row = &reduced.rows[0];
        assert_eq!(sums(row), (n as u64, 6 * n as u64, 3 * n as u64));
        assert_eq!(row.blocks.iter().map(|block| block.3).sum::<u64>() + u64::from(reduced.jobs[777]), 1);
        assert_eq!(row.blocks.iter().map(|block| block.2.0).sum::<u64>() % 6, 0);
        // The second window has no room: it is the whole run.
        assert_eq!(reduced.kept.windows, [(Nanos(0), Nanos(5_000)), (Nanos(998_500), Nanos(1_003_500))]);
        assert!(reduced.kept.singly <= 2_000 && row.start.len() < 2_000 + BLOCKS_OF_ROW.1 + 8, "{:?}", reduced.kept);
        for job in [0, 499, 100_000, 100_200] {
            assert!(reduced.jobs[job], "{job}");
        }
        assert!(!reduced.jobs[50_000]);
    }

    #[test]
    fn ten_times_as_long_a_run_takes_no_more_room() {
        let size = |n: usize| {
            let reduced = reduce(&[track(n), track(n)], n, Nanos(10 * n as u64), [], SINGLY_MAX);
            serde_json::to_string(&reduced.rows).unwrap().len()
        };
        let (short, long) = (size(100_000), size(1_000_000));
        assert!(long < short * 2, "{short} and {long} bytes");
    }

    #[test]
    fn positions_follow_the_jobs_that_are_left() {
        assert_eq!(positions(&[true, false, true]), [0, -1, 1]);
    }
}
