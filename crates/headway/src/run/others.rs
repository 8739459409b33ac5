//! Which other programs copy over the engines of a run. With more of them than its plan allows for, it promises nothing any more from then on.
//!
//! Programs tell of their copies on the user's board. The counters of links, which know the others too, are not read: a call of the driver may
//! wait up to a millisecond for a reading.

use std::collections::BTreeMap;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use headway_core::log::OtherCopies;
use headway_core::models::transfer::Direction;
use headway_core::units::{Bytes, Nanos};
use headway_device::Engines;
use headway_os::board::{BoardGpu, BoardReading};
use headway_os::{clock, threads};

use crate::activity::{command, read_board, totals};

/// Between two looks.
const EVERY: Duration = Duration::from_millis(100);
/// Programs that are remembered.
const OTHERS_MAX: usize = 64;

/// Looks from its beginning to its end.
pub(super) struct OthersWatch {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Vec<OtherCopies>>,
}

impl OthersWatch {
    /// `tell` hears of each program beyond `allowed` on an engine once, at once. `None` if the system gives no thread.
    pub(super) fn begin(devices: &[Engines], allowed: u32, tell: fn(&str)) -> Option<Self> {
        let gpus: Vec<BoardGpu> = devices.iter().map(|device| device.description().board_gpu()).collect();
        let over = Arc::<AtomicBool>::default();
        let ends = Arc::clone(&over);
        let mut others = Others::new(gpus, allowed, &read_board());
        let look = move || {
            while !ends.load(Ordering::Relaxed) {
                thread::park_timeout(EVERY);
                others.look(clock::now(), &read_board(), tell);
            }
            others.found.into_values().collect()
        };
        let thread = threads::spawn("headway-others", look).ok()?;
        Some(Self { over, thread })
    }

    pub(super) fn end(self) -> Vec<OtherCopies> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        self.thread.join().unwrap_or_default()
    }
}

/// Copies of one program over one engine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct EngineUse {
    pid: u32,
    gpu: u32,
    direction: Direction,
}

struct Others {
    gpus: Vec<BoardGpu>,
    /// Programs on an engine that the plan allows for.
    allowed: u32,
    before: BTreeMap<EngineUse, u64>,
    found: BTreeMap<EngineUse, OtherCopies>,
}

impl Others {
    fn new(gpus: Vec<BoardGpu>, allowed: u32, board: &BoardReading) -> Self {
        let mut others = Self { gpus, allowed, before: BTreeMap::new(), found: BTreeMap::new() };
        others.before = others.told(board);
        others
    }

    /// What other programs have told of the GPUs of the run.
    fn told(&self, board: &BoardReading) -> BTreeMap<EngineUse, u64> {
        let mut all: BTreeMap<EngineUse, u64> = BTreeMap::new();
        for (key, row) in totals(board) {
            if let Some(gpu) = self.gpus.iter().position(|gpu| *gpu == key.gpu)
                && key.pid != process::id()
            {
                let direction = if key.outward { Direction::D2h } else { Direction::H2d };
                let engine = EngineUse { pid: key.pid, gpu: gpu as u32, direction };
                let sum = all.entry(engine).or_default();
                *sum = sum.saturating_add(row.bytes);
            }
        }
        all
    }

    fn look(&mut self, now: Nanos, board: &BoardReading, mut tell: impl FnMut(&str)) {
        let told = self.told(board);
        for (engine, bytes) in &told {
            let more = bytes.saturating_sub(self.before.get(engine).copied().unwrap_or(0));
            if more == 0 {
                continue;
            }
            let is_new = !self.found.contains_key(engine);
            let there = self.found.keys().filter(|of| of.gpu == engine.gpu && of.direction == engine.direction).count();
            if is_new && self.found.len() == OTHERS_MAX {
                continue;
            }
            let EngineUse { pid, gpu, direction } = *engine;
            let new = || OtherCopies { pid, command: command(pid), gpu, direction, since: now, bytes: Bytes(0) };
            let other = self.found.entry(*engine).or_insert_with(new);
            other.bytes = Bytes(other.bytes.0.saturating_add(more));
            if is_new && there >= self.allowed as usize {
                tell(&format!(
                    "`{}` ({pid}) copies {} GPU {gpu}, which the plan does not allow for: from now on it promises nothing",
                    other.command,
                    direction.preposition()
                ));
            }
        }
        self.before = told;
    }
}

#[cfg(test)]
mod tests {
    use headway_core::decisions::engine_line::FlowClass;
    use headway_core::decisions::staging::StagingDirection;
    use headway_os::board::BoardRow;

    use super::*;

    const GPU: BoardGpu = [7; 16];

    fn row(pid: u32, gpu: BoardGpu, bytes: u64) -> BoardRow {
        let (direction, class) = (StagingDirection::Out, FlowClass::Bulk);
        BoardRow { pid, started: 1, gpu, direction, class, copies: 1, bytes, waited_ns: 0, misses: 0, behind: None }
    }

    #[test]
    fn who_copies_over_an_engine_of_the_run_after_its_beginning_is_told_once_with_all_bytes() {
        let board = |rows: &[BoardRow]| BoardReading { rows: rows.to_vec(), processes: rows.len() };
        let other = u32::MAX;
        let mut others = Others::new(vec![[1; 16], GPU], 0, &board(&[row(other, GPU, 100)]));
        let mut told = Vec::new();
        for (at, bytes) in [(1, 100), (2, 150), (3, 400)] {
            // The run itself, and a GPU that it does not use, count for nothing.
            let rows = [row(other, GPU, bytes), row(process::id(), GPU, bytes), row(other, [9; 16], bytes)];
            others.look(Nanos(at), &board(&rows), |text| told.push(text.to_owned()));
        }
        let found: Vec<OtherCopies> = others.found.into_values().collect();
        let command = "?".to_owned();
        assert_eq!(
            found,
            [OtherCopies {
                pid: other,
                command,
                gpu: 1,
                direction: Direction::D2h,
                since: Nanos(2),
                bytes: Bytes(300)
            }]
        );
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("copies out of GPU 1"), "{told:?}");
    }

    #[test]
    fn programs_that_the_plan_allows_for_are_remembered_and_not_told_of() {
        let board = |bytes: u64| {
            let rows = [u32::MAX, u32::MAX - 1].map(|pid| row(pid, GPU, bytes));
            BoardReading { rows: rows.to_vec(), processes: rows.len() }
        };
        for (allowed, expected) in [(2, 0), (1, 1), (0, 2)] {
            let mut others = Others::new(vec![GPU], allowed, &board(0));
            let mut told = 0;
            (1..4).for_each(|at| others.look(Nanos(at), &board(at), |_| told += 1));
            assert_eq!((others.found.len(), told), (2, expected));
        }
    }
}
