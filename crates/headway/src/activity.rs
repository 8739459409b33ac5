//! Who copies how much on which engine, now: what the programs of this user tell each other, beside what the GPUs' PCIe links carry.
//!
//! Programs tell of their copies by the user's board: guests of `headway exec`, programs that use this library, and `headway run`. What a link
//! carries beyond that is others': programs that tell nothing, small copies of guests, and copies of graphs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use headway_core::decisions::engine_line::FlowClass;
use headway_core::decisions::staging::StagingDirection;
use headway_core::units::Nanos;
use headway_cuda::{Nvml, PcieCounters, PcieTraffic, uuid_text};
use headway_os::board::{Behind, Board, BoardGpu, BoardReading, BoardRow, PROCESSES_MAX};
use serde::Serialize;

/// What was copied in one interval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Activity {
    pub interval: Nanos,
    /// Why nothing is known of what links carry; `None` = it is.
    pub no_counters: Option<String>,
    /// Why programs cannot tell of their copies; `None` = they can.
    pub no_board: Option<String>,
    /// Processes that tell of their copies.
    pub processes: usize,
    /// Most that can. Programs that begin when there are so many are not counted.
    pub processes_max: usize,
    pub gpus: Vec<GpuActivity>,
}

/// The two directions of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuActivity {
    /// UUID, or the name of one that is emulated.
    pub gpu: String,
    /// Into the GPU.
    pub inward: LinkActivity,
    /// Out of the GPU.
    pub outward: LinkActivity,
}

/// One direction of a GPU's link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkActivity {
    /// Bytes of copies by the link's counters, without what the protocol adds; `None` = they are not known.
    pub carried: Option<u64>,
    /// Bytes that programs have told of.
    pub told: u64,
    /// Bytes that the link carried and nobody told of.
    pub others: Option<u64>,
    /// Processes with copies in this interval, those with most bytes first.
    pub copiers: Vec<CopierActivity>,
}

/// Copies of one class of one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CopierActivity {
    pub pid: u32,
    /// Name of the program, as the system has it.
    pub command: String,
    /// `guaranteed`, `urgent`, `normal` or `bulk`.
    pub class: &'static str,
    pub bytes: u64,
    pub copies: u64,
    /// How long copies waited for others on the engine, as far as it is known: of guests it is not.
    pub waited: Nanos,
    /// Whose copies the last one met that did not find the engine free.
    pub behind: Option<String>,
    /// Copies and packets that were late, since the process began.
    pub misses: u64,
}

/// Which copies a number is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CopierKey {
    pub(crate) gpu: BoardGpu,
    pub(crate) outward: bool,
    pub(crate) pid: u32,
    started: u32,
    pub(crate) class: FlowClass,
}

/// Looks at copies, interval after interval.
pub struct ActivityMonitor {
    nvml: Result<Nvml, String>,
    /// Those that NVML knows.
    gpus: Vec<String>,
    counters: BTreeMap<String, PcieCounters>,
    /// When they were read.
    read: Instant,
    before: BTreeMap<CopierKey, BoardRow>,
    began: Instant,
}

impl Default for ActivityMonitor {
    fn default() -> Self {
        Self::new()
    }
}

impl ActivityMonitor {
    /// The first interval begins now.
    #[must_use]
    pub fn new() -> Self {
        let nvml = Nvml::system().and_then(|nvml| Ok((nvml.report()?, nvml)));
        let (gpus, nvml) = match nvml {
            Ok((report, nvml)) => (report.gpus.into_iter().map(|gpu| gpu.uuid).collect(), Ok(nvml)),
            Err(error) => (Vec::new(), Err(error.to_string())),
        };
        let (now, counters) = (Instant::now(), BTreeMap::new());
        let mut monitor = Self { nvml, gpus, counters, read: now, before: BTreeMap::new(), began: now };
        monitor.begin();
        monitor
    }

    /// Whether it can read what links carry.
    pub(crate) fn has_counters(&self) -> bool {
        self.nvml.is_ok()
    }

    /// An interval begins now, whenever the one before has ended.
    pub fn begin(&mut self) {
        self.read_links(&mut Carried::default());
        self.before = totals(&read_board());
        self.began = Instant::now();
    }

    /// Waits for the end of an interval that began with the end of the one before, or until `stop`; what was copied in it.
    pub fn wait(&mut self, interval: Duration, stop: &AtomicBool) -> Activity {
        let mut carried = Carried::default();
        let mut no_counters = self.nvml.as_ref().err().cloned();
        loop {
            let left = interval.saturating_sub(self.began.elapsed());
            let over = left.is_zero() || stop.load(Ordering::Relaxed);
            no_counters = self.read_links(&mut carried).or(no_counters);
            if over {
                break;
            }
            thread::sleep(left.min(PcieCounters::READ_EVERY));
        }
        let reading = read_board();
        let after = totals(&reading);
        let interval = Nanos(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX));
        self.began = Instant::now();
        let gpus = self.gpus.iter().cloned().chain(after.keys().map(|key| gpu_name(key.gpu))).collect::<BTreeSet<_>>();
        let gpu = |gpu: String| {
            let links = [false, true].map(|outward| {
                let is_here = |key: &CopierKey| key.outward == outward && gpu_name(key.gpu) == gpu;
                let rows = after.iter().filter(|(key, _)| is_here(key));
                let since = rows.filter_map(|(key, row)| copier(key, row, self.before.get(key)));
                link(since.collect(), carried.bytes(&gpu, outward, interval))
            });
            let [inward, outward] = links;
            GpuActivity { gpu, inward, outward }
        };
        let gpus = gpus.into_iter().map(gpu).collect();
        self.before = after;
        Activity {
            interval,
            no_counters,
            no_board: Board::of_user().is_none().then(|| NO_BOARD.to_owned()),
            processes: reading.processes,
            processes_max: PROCESSES_MAX,
            gpus,
        }
    }

    /// Adds what links have carried since the last call; why that is not known of one.
    fn read_links(&mut self, carried: &mut Carried) -> Option<String> {
        let nvml = self.nvml.as_ref().ok()?;
        let mut failed = None;
        let took = self.read.elapsed();
        self.read = Instant::now();
        carried.known_for += if took <= PcieCounters::READ_MAX { took } else { Duration::ZERO };
        for gpu in &self.gpus {
            match nvml.pcie_counters(gpu) {
                Ok(now) => {
                    let before = self.counters.insert(gpu.clone(), now);
                    if let Some(before) = before.filter(|_| took <= PcieCounters::READ_MAX) {
                        let (more, sum) = (now.since(before), carried.sums.entry(gpu.clone()).or_default());
                        sum.inward = sum.inward.saturating_add(more.inward);
                        sum.outward = sum.outward.saturating_add(more.outward);
                    }
                }
                Err(error) => failed = Some(format!("{gpu}: {error}")),
            }
        }
        failed
    }
}

/// What links have carried in an interval.
#[derive(Default)]
struct Carried {
    sums: BTreeMap<String, PcieTraffic>,
    /// How much of the interval lies between readings that were close enough.
    known_for: Duration,
}

impl Carried {
    fn bytes(&self, gpu: &str, outward: bool, interval: Nanos) -> Option<u64> {
        let sum = self.sums.get(gpu)?;
        let (bytes, known) = (if outward { sum.outward } else { sum.inward }, self.known_for.as_nanos().max(1));
        let whole = u128::from(interval.0).max(known);
        u64::try_from(u128::from(bytes) * whole / known).ok()
    }
}

const NO_BOARD: &str = "the system gives no System V shared memory, or another user has taken its key";

/// What the board says; nothing where there is none.
pub(crate) fn read_board() -> BoardReading {
    Board::of_user().map_or_else(BoardReading::default, Board::read)
}

/// Rows by what they are about. Two copies of the library in one process may have one each.
pub(crate) fn totals(reading: &BoardReading) -> BTreeMap<CopierKey, BoardRow> {
    let mut all = BTreeMap::new();
    for row in &reading.rows {
        let outward = row.direction == StagingDirection::Out;
        let key = CopierKey { gpu: row.gpu, outward, pid: row.pid, started: row.started, class: row.class };
        let sum = all.entry(key).or_insert(BoardRow { bytes: 0, copies: 0, waited_ns: 0, misses: 0, ..*row });
        sum.bytes = sum.bytes.saturating_add(row.bytes);
        sum.copies = sum.copies.saturating_add(row.copies);
        sum.waited_ns = sum.waited_ns.saturating_add(row.waited_ns);
        sum.misses = sum.misses.saturating_add(row.misses);
        sum.behind = sum.behind.or(row.behind);
    }
    all
}

/// What was copied since `before`; `None` = nothing.
fn copier(key: &CopierKey, row: &BoardRow, before: Option<&BoardRow>) -> Option<CopierActivity> {
    let since = |of: fn(&BoardRow) -> u64| of(row).saturating_sub(before.map_or(0, of));
    let (bytes, copies) = (since(|row| row.bytes), since(|row| row.copies));
    (bytes > 0 || copies > 0).then(|| CopierActivity {
        pid: key.pid,
        command: command(key.pid),
        class: class_name(key.class),
        bytes,
        copies,
        waited: Nanos(since(|row| row.waited_ns)),
        behind: row.behind.map(|behind| match behind {
            Behind::Own(class) => format!("own {}", class_name(class)),
            Behind::Process(pid) => format!("{} ({pid})", command(pid)),
            Behind::Unknown => "others".to_owned(),
        }),
        misses: row.misses,
    })
}

fn link(mut copiers: Vec<CopierActivity>, carried: Option<u64>) -> LinkActivity {
    copiers.sort_by_key(|copier| std::cmp::Reverse(copier.bytes));
    let told = copiers.iter().fold(0, |sum: u64, copier| sum.saturating_add(copier.bytes));
    LinkActivity { carried, told, others: carried.map(|carried| carried.saturating_sub(told)), copiers }
}

pub(crate) const fn class_name(class: FlowClass) -> &'static str {
    match class {
        FlowClass::Guaranteed => "guaranteed",
        FlowClass::Urgent => "urgent",
        FlowClass::Normal => "normal",
        FlowClass::Bulk => "bulk",
    }
}

/// The name of a process's program, without what could command a terminal or begin a line; `?` if it has ended.
pub(crate) fn command(pid: u32) -> String {
    fs::read(format!("/proc/{pid}/comm")).map_or_else(|_| "?".to_owned(), |name| harmless(&name))
}

fn harmless(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name.strip_suffix(b"\n").unwrap_or(name));
    name.replace(char::is_control, "\u{fffd}")
}

/// The UUID of a GPU on the board, or the name of one that has none.
pub(crate) fn gpu_name(gpu: BoardGpu) -> String {
    let end = gpu.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    match str::from_utf8(&gpu[..end]) {
        Ok(name) if end > 0 && name.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') => name.to_owned(),
        _ => uuid_text(gpu),
    }
}

#[cfg(test)]
mod tests {
    use headway_os::board::board_gpu;

    use super::*;

    const ROW: BoardRow = BoardRow {
        pid: u32::MAX,
        started: 1,
        gpu: *b"emu:gpu0\0\0\0\0\0\0\0\0",
        direction: StagingDirection::Out,
        class: FlowClass::Bulk,
        copies: 1,
        bytes: 10,
        waited_ns: 2,
        misses: 0,
        behind: None,
    };

    #[test]
    fn rows_of_one_process_and_class_add_up_and_no_number_on_the_board_is_too_large() {
        let other = BoardRow { class: FlowClass::Normal, ..ROW };
        let huge = BoardRow { bytes: u64::MAX, copies: u64::MAX, waited_ns: u64::MAX, misses: u64::MAX, ..ROW };
        let all = totals(&BoardReading { rows: vec![ROW, other, ROW], processes: 1 });
        assert_eq!(all.values().map(|row| row.bytes).collect::<Vec<_>>(), [10, 20]);
        let later = totals(&BoardReading { rows: vec![ROW, huge], processes: 1 });
        let (key, before) = all.last_key_value().unwrap();
        let since = copier(key, &later[key], Some(before)).unwrap();
        assert_eq!((since.bytes, since.misses, since.class), (u64::MAX - 20, u64::MAX, "bulk"));
        assert_eq!(copier(key, before, Some(&later[key])), None, "numbers that became smaller are another process's");
        let both = link(vec![since.clone(), since], Some(1));
        assert_eq!((both.told, both.others), (u64::MAX, Some(0)));
    }

    #[test]
    fn what_a_link_carried_beyond_what_was_told_is_others() {
        let all = totals(&BoardReading { rows: vec![ROW], processes: 1 });
        let of = |row: &BoardRow| copier(all.keys().next().unwrap(), row, None).unwrap();
        let (small, large) = (of(&ROW), of(&BoardRow { bytes: 25, ..ROW }));
        let carried = link(vec![small.clone(), large.clone()], Some(100));
        assert_eq!((carried.told, carried.others, carried.copiers), (35, Some(65), vec![large, small]));
        assert_eq!(link(Vec::new(), None).others, None);
        let carried = Carried {
            sums: BTreeMap::from([("a".to_owned(), PcieTraffic { inward: 30, outward: 40 })]),
            known_for: Duration::from_nanos(50),
        };
        // Half of the interval lies between readings that were close enough.
        assert_eq!(["a", "b"].map(|gpu| carried.bytes(gpu, true, Nanos(100))), [Some(80), None]);
    }

    #[test]
    fn a_name_forges_no_line_and_commands_no_terminal() {
        for (name, shown) in [
            (&b"cat\n"[..], "cat"),
            (b"a\nb c\n", "a\u{fffd}b c"),
            (b"\x1b[2J\x07\r", "\u{fffd}[2J\u{fffd}\u{fffd}"),
            (b"\xff\xc2\x9b", "\u{fffd}\u{fffd}"),
        ] {
            assert_eq!(harmless(name), shown);
        }
    }

    #[test]
    fn gpus_have_the_names_that_other_tools_give_them() {
        let uuid = "GPU-5ef1a2b3-0405-0607-0809-0a0b0c0d0e0f";
        assert_eq!(gpu_name(board_gpu(Some(uuid), "")), uuid);
        assert_eq!(gpu_name(board_gpu(None, "emu:gpu0")), "emu:gpu0");
        assert_eq!(gpu_name([0; 16]), "GPU-00000000-0000-0000-0000-000000000000");
        assert_eq!(gpu_name(*b"\x1b[2Jabcdefghijkl"), "GPU-1b5b324a-6162-6364-6566-6768696a6b6c");
    }
}
