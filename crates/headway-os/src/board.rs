//! A board in shared memory on which the programs of one user tell each other of their copies: who copies how much, over which engine, and
//! who expects bulk copies on one. Runs of plans announce their kernels, too.
//!
//! It is System V shared memory: a mapped file could be shortened by another process, and `/dev/shm` can be full when a page of it is
//! first used. Both would raise SIGBUS in a program that only copies. The system keeps the board until it is started again; `ipcrm` removes it.
//!
//! Each process takes one page, and on it a cache line for each GPU, direction and class. Numbers only grow. To tell of a chunk costs one load
//! and one relaxed addition, without a lock or a system call. A process that ends leaves its page to the next one. All is bounded and made of
//! atomics: whoever writes nonsense, of the same user, makes numbers wrong and nothing else.

use std::ffi::c_int;
use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use headway_core::decisions::engine_line::FlowClass;
use headway_core::decisions::staging::StagingDirection;
use headway_core::units::{Bytes, Nanos};

use crate::ipc;

/// The board's key, combined with the number of the user. Another layout needs another key.
const KEY: libc::key_t = 0x4857_4731;
/// Places of GPUs for announcements of bulk copies. GPUs whose UUIDs share one count as one.
pub const BULK_PLACES: usize = 64;
/// Processes that are counted at a time.
pub const PROCESSES_MAX: usize = 128;
/// Words of a page and of a cache line.
const PAGE: usize = 512;
const LINE: usize = 8;
const WORDS: usize = PAGE * (1 + PROCESSES_MAX);
/// In the owner of a page: it is being cleared.
const CLEARING: u64 = 1 << 31;
const CLASSES: [FlowClass; 4] = [FlowClass::Guaranteed, FlowClass::Urgent, FlowClass::Normal, FlowClass::Bulk];
const DIRECTIONS: [StagingDirection; 2] = [StagingDirection::In, StagingDirection::Out];

/// Words of a line. The first one tells whether it is [`FREE`], [`TAKEN`] and not written yet, or what it counts.
const KIND: usize = 0;
const GPU: usize = 1;
const COPIES: usize = 3;
const BYTES: usize = 4;
const WAITED: usize = 5;
const MISSES: usize = 6;
const BEHIND: usize = 7;
const FREE: u64 = 0;
const TAKEN: u64 = 1;
const FIRST_KIND: u64 = 2;
/// A line about kernels with a promise, behind those about copies. Until when one is expected, as for [`PROMISED_KERNEL_MAX`].
const KERNELS: u64 = FIRST_KIND + (DIRECTIONS.len() * CLASSES.len()) as u64;
const UNTIL: usize = 3;

/// How long after its last announcement a program that hangs, or was killed, is still taken to have a promised kernel on a GPU.
pub const PROMISED_KERNEL_MAX: Nanos = Nanos(50_000_000);

/// A GPU on the board: the bytes of its UUID, or its name where it has none. Of a longer name it is the beginning and a check sum.
pub type BoardGpu = [u8; 16];

/// How a GPU with this UUID (`GPU-...`) stands on the board; one without, which is emulated, by its name.
#[must_use]
pub fn board_gpu(uuid: Option<&str>, name: &str) -> BoardGpu {
    let mut gpu = [0; 16];
    let digits = uuid.and_then(|uuid| uuid.split_once('-')).map(|(_, digits)| digits.replace('-', ""));
    if let Some(number) = digits.and_then(|digits| u128::from_str_radix(&digits, 16).ok()) {
        return number.to_be_bytes();
    }
    gpu.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
    if name.len() > gpu.len() {
        // FNV-1a, which tells names apart that begin alike.
        let mix = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        let end = format!("~{:04x}", name.bytes().fold(0xcbf2_9ce4_8422_2325, mix) & 0xffff);
        gpu[16 - end.len()..].copy_from_slice(end.as_bytes());
    }
    gpu
}

/// The place of a GPU's announcements.
#[must_use]
pub fn bulk_place(gpu: &BoardGpu) -> usize {
    gpu.iter().fold(0usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(usize::from(*byte))) % BULK_PLACES
}

/// The board of one user, mapped until the process ends.
pub struct Board {
    words: &'static [AtomicU64],
    own: OnceLock<Option<OwnPage>>,
}

#[derive(Clone, Copy)]
struct OwnPage {
    page: &'static [AtomicU64],
    owner: u64,
}

/// Set in a process that does not tell of itself.
static ALONE: AtomicBool = AtomicBool::new(false);

impl Board {
    /// The board of this process's user; `None` if the system gives none, or another user has made it.
    pub fn of_user() -> Option<&'static Self> {
        static BOARD: OnceLock<Option<Board>> = OnceLock::new();
        BOARD.get_or_init(|| Self::open(KEY ^ ipc::user() as libc::key_t)).as_ref()
    }

    /// From now on this process tells nothing of itself, if it has not begun.
    pub fn stay_alone() {
        ALONE.store(true, Ordering::Relaxed);
    }

    fn open(key: libc::key_t) -> Option<Self> {
        // SAFETY: the call has no pointers.
        let id = unsafe { libc::shmget(key, WORDS * 8, libc::IPC_CREAT | 0o600) };
        if id < 0 || !is_private(id, ipc::user()) {
            return None;
        }
        // SAFETY: the system chooses the place, where nothing else is.
        let place = unsafe { libc::shmat(id, std::ptr::null(), 0) };
        if place.addr() as isize == -1 {
            return None;
        }
        // SAFETY: the memory is that long, begins at a page, stays mapped until the process ends, and is only ever accessed as atomics.
        let words = unsafe { std::slice::from_raw_parts(place.cast::<AtomicU64>(), WORDS) };
        Some(Self { words, own: OnceLock::new() })
    }

    /// Until when bulk copies are expected at this place, on the monotonic clock, and the process that expected it last.
    pub fn bulk(&self, place: usize) -> [&AtomicU64; 2] {
        let place = place % BULK_PLACES;
        [&self.words[place], &self.words[BULK_PLACES + place]]
    }

    fn pages(&self) -> impl Iterator<Item = &'static [AtomicU64]> + use<> {
        self.words.chunks_exact(PAGE).skip(1)
    }

    /// The page of this process, taken at the first call; `None` if all are in use.
    fn own(&self) -> Option<OwnPage> {
        let take = || {
            let owner = owner(process::id())?;
            let is_own = |page: &&[AtomicU64]| page[0].load(Ordering::Acquire) == owner;
            // Another copy of this library in the process may have taken it.
            let page = self.pages().find(is_own).or_else(|| self.pages().find(|page| take_page(page, owner)))?;
            Some(OwnPage { page, owner })
        };
        *self.own.get_or_init(|| if ALONE.load(Ordering::Relaxed) { None } else { take() })
    }

    /// What the processes that live have told.
    #[must_use]
    pub fn read(&self) -> BoardReading {
        let mut reading = BoardReading::default();
        for page in self.pages() {
            let owner = page[0].load(Ordering::Acquire);
            if owner == 0 || owner & CLEARING != 0 || !lives(owner) {
                continue;
            }
            reading.processes += 1;
            reading.rows.extend(page.chunks_exact(LINE).skip(1).filter_map(|line| BoardRow::read(owner, line)));
        }
        reading
    }

    /// Whether another program that lives has announced a kernel with a promise on this GPU, which has not ended. `now` reads the monotonic clock; it is
    /// asked after the board.
    #[must_use]
    pub fn has_promised_kernel(&self, gpu: &BoardGpu, now: impl Fn() -> Nanos) -> bool {
        let halves = halves(gpu);
        for page in self.pages() {
            let owner = page[0].load(Ordering::Acquire);
            // Pages and lines are taken in order, and never given back.
            if owner == 0 {
                break;
            }
            let lines = page.chunks_exact(LINE).skip(1);
            let mut taken = lines.take_while(|line| line[KIND].load(Ordering::Acquire) != FREE);
            let is_other = owner & CLEARING == 0 && (owner >> 32) as u32 != process::id();
            if is_other && taken.any(|line| announces(line, halves, &now)) && lives(owner) {
                return true;
            }
        }
        false
    }

    fn row(&self, gpu: BoardGpu, direction: StagingDirection, class: FlowClass) -> Option<Row> {
        self.line(gpu, FIRST_KIND + direction as u64 * CLASSES.len() as u64 + class as u64)
    }

    fn line(&self, gpu: BoardGpu, kind: u64) -> Option<Row> {
        let OwnPage { page, owner } = self.own()?;
        let halves = halves(&gpu);
        let take = |line: &[AtomicU64]| {
            let taken = line[KIND].compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Acquire);
            if taken.is_ok() {
                (0..2).for_each(|half| line[GPU + half].store(halves[half], Ordering::Relaxed));
                line[KIND].store(kind, Ordering::Release);
            }
            let is_same = |half: usize| line[GPU + half].load(Ordering::Relaxed) == halves[half];
            taken.is_ok() || (taken == Err(kind) && is_same(0) && is_same(1))
        };
        let line = page.chunks_exact(LINE).skip(1).find(|line| take(line))?;
        Some(Row { page, line, owner })
    }
}

/// The two words of a GPU on a line.
fn halves(gpu: &BoardGpu) -> [u64; 2] {
    [0, 1].map(|half| u64::from_be_bytes(std::array::from_fn(|byte| gpu[half * 8 + byte])))
}

/// Whether a line announces a kernel with a promise on the GPU of `halves`, which has not ended `now`.
fn announces(line: &[AtomicU64], halves: [u64; 2], now: impl Fn() -> Nanos) -> bool {
    let word = |at: usize| line[at].load(Ordering::Relaxed);
    let is_about_it = word(KIND) == KERNELS && [word(GPU), word(GPU + 1)] == halves;
    if !is_about_it {
        return false;
    }
    // The clock is read last: of one that was read before, a later announcement would seem to be too far ahead.
    let until = line[UNTIL].load(Ordering::Acquire);
    (1..=PROMISED_KERNEL_MAX.0).contains(&until.saturating_sub(now().0))
}

/// Whether only `user` may use the memory. Another user could have made it first.
fn is_private(id: c_int, user: libc::uid_t) -> bool {
    // SAFETY: all-zero bytes are a valid `shmid_ds`.
    let mut about: libc::shmid_ds = unsafe { std::mem::zeroed() };
    // SAFETY: `about` is valid for the call to write.
    let known = unsafe { libc::shmctl(id, libc::IPC_STAT, &raw mut about) } == 0;
    let rights = about.shm_perm;
    known && rights.uid == user && rights.cuid == user && rights.mode & 0o077 == 0
}

/// A process as owner of a page: its number, and when it was started, since numbers are used again.
fn owner(pid: u32) -> Option<u64> {
    Some(u64::from(pid) << 32 | ipc::started(pid)? & (CLEARING - 1))
}

fn lives(page_owner: u64) -> bool {
    owner((page_owner >> 32) as u32) == Some(page_owner & !CLEARING)
}

/// Takes a page that is nobody's, or whose process has ended.
fn take_page(page: &[AtomicU64], owner: u64) -> bool {
    let before = page[0].load(Ordering::Acquire);
    if before != 0 && lives(before) {
        return false;
    }
    let taken = page[0].compare_exchange(before, owner | CLEARING, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if taken {
        page[1..].iter().for_each(|word| word.store(0, Ordering::Relaxed));
        page[0].store(owner, Ordering::Release);
    }
    taken
}

struct Row {
    page: &'static [AtomicU64],
    line: &'static [AtomicU64],
    owner: u64,
}

impl Row {
    fn add(&self, word: usize, more: u64) {
        if self.is_ours() {
            self.line[word].fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Not any more if who took us for dead, in another namespace of processes, has taken the page.
    fn is_ours(&self) -> bool {
        self.page[0].load(Ordering::Relaxed) == self.owner
    }
}

/// What this process tells of its copies on one copy engine.
#[derive(Default)]
pub struct EngineActivity {
    /// `None` = nothing.
    engine: Option<(BoardGpu, StagingDirection)>,
    rows: [OnceLock<Option<Row>>; CLASSES.len()],
}

impl EngineActivity {
    /// It takes a line of the board with its first copy.
    #[must_use]
    pub fn new(gpu: BoardGpu, direction: StagingDirection) -> Self {
        Self { engine: Some((gpu, direction)), ..Self::default() }
    }

    /// Of the engine into this GPU, and of the one out of it.
    #[must_use]
    pub fn both(gpu: BoardGpu) -> [Self; 2] {
        DIRECTIONS.map(|direction| Self::new(gpu, direction))
    }

    fn row(&self, class: FlowClass) -> Option<&Row> {
        let (gpu, direction) = self.engine?;
        self.rows[class as usize].get_or_init(|| Board::of_user()?.row(gpu, direction, class)).as_ref()
    }

    /// Bytes have been moved, or will be soon.
    pub fn moved(&self, class: FlowClass, bytes: Bytes) {
        if let Some(row) = self.row(class) {
            row.add(BYTES, bytes.0);
        }
    }

    /// A copy has ended that waited so long for others on the engine.
    pub fn copied(&self, class: FlowClass, waited: Nanos) {
        if let Some(row) = self.row(class) {
            row.add(COPIES, 1);
            if waited > Nanos::ZERO {
                row.add(WAITED, waited.0);
            }
        }
    }

    /// A copy came while others were on the engine.
    pub fn came_behind(&self, class: FlowClass, other: Behind) {
        if let Some(row) = self.row(class).filter(|row| row.is_ours()) {
            row.line[BEHIND].store(other.word(), Ordering::Relaxed);
        }
    }

    /// A copy has ended after its deadline.
    pub fn missed(&self, class: FlowClass) {
        if let Some(row) = self.row(class) {
            row.add(MISSES, 1);
        }
    }
}

/// What this process announces of kernels with a promise on one GPU, so that guests with `--depth` launch nothing meanwhile.
pub struct KernelActivity {
    row: Option<Row>,
    under_way: u32,
}

impl KernelActivity {
    /// It takes a line of the board.
    #[must_use]
    pub fn new(gpu: BoardGpu) -> Self {
        Self { row: Board::of_user().and_then(|board| board.line(gpu, KERNELS)), under_way: 0 }
    }

    /// A kernel is about to be launched.
    pub fn begin(&mut self, now: Nanos) {
        self.under_way += 1;
        self.announce(now.saturating_add(PROMISED_KERNEL_MAX));
    }

    /// One has ended.
    pub fn end(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
        if self.under_way == 0 {
            self.announce(Nanos::ZERO);
        }
    }

    fn announce(&self, until: Nanos) {
        if let Some(row) = self.row.as_ref().filter(|row| row.is_ours()) {
            row.line[UNTIL].store(until.0, Ordering::Relaxed);
        }
    }
}

impl Drop for KernelActivity {
    fn drop(&mut self) {
        self.announce(Nanos::ZERO);
    }
}

/// Whose copies a copy met on its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Behind {
    /// Copies of this class of its own process.
    Own(FlowClass),
    /// Bulk copies of another process.
    Process(u32),
    /// Copies of a program that tells nothing.
    Unknown,
}

impl Behind {
    const PROCESS: u64 = 5;
    const UNKNOWN: u64 = 6;

    fn word(self) -> u64 {
        match self {
            Self::Own(class) => class as u64 + 1,
            Self::Process(pid) => u64::from(pid) << 3 | Self::PROCESS,
            Self::Unknown => Self::UNKNOWN,
        }
    }

    fn of(word: u64) -> Option<Self> {
        match word & 7 {
            Self::PROCESS => u32::try_from(word >> 3).ok().map(Self::Process),
            Self::UNKNOWN => Some(Self::Unknown),
            class => CLASSES.get(usize::try_from(class).ok()?.checked_sub(1)?).map(|class| Self::Own(*class)),
        }
    }
}

/// What a process has told of its copies of one class on one engine, since it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoardRow {
    pub pid: u32,
    /// Part of the time when the process was started, to tell it from a later one with its number.
    pub started: u32,
    pub gpu: BoardGpu,
    pub direction: StagingDirection,
    pub class: FlowClass,
    pub copies: u64,
    pub bytes: u64,
    pub waited_ns: u64,
    pub misses: u64,
    /// Whose copies the last copy met that did not find the engine free.
    pub behind: Option<Behind>,
}

impl BoardRow {
    fn read(owner: u64, line: &[AtomicU64]) -> Option<Self> {
        let kind = usize::try_from(line[KIND].load(Ordering::Acquire).checked_sub(FIRST_KIND)?).ok()?;
        let word = |at: usize| line[at].load(Ordering::Relaxed);
        let halves = [word(GPU), word(GPU + 1)].map(u64::to_be_bytes);
        Some(Self {
            pid: (owner >> 32) as u32,
            started: owner as u32,
            gpu: std::array::from_fn(|byte| halves[byte / 8][byte % 8]),
            direction: *DIRECTIONS.get(kind / CLASSES.len())?,
            class: CLASSES[kind % CLASSES.len()],
            copies: word(COPIES),
            bytes: word(BYTES),
            waited_ns: word(WAITED),
            misses: word(MISSES),
            behind: Behind::of(word(BEHIND)),
        })
    }
}

/// The board at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BoardReading {
    pub rows: Vec<BoardRow>,
    /// Processes that have a page. With [`PROCESSES_MAX`], those that begin later are not counted.
    pub processes: usize,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::process::{Child, Command, Stdio};
    use std::sync::atomic::AtomicU32;

    use proptest::prelude::*;

    use super::*;

    /// The key of a board that a child opens, and the bytes that it tells of.
    const CHILD_KEY: &str = "HEADWAY_TEST_BOARD_KEY";
    const CHILD_BYTES: &str = "HEADWAY_TEST_BOARD_BYTES";
    const GPU: BoardGpu = *b"emu:gpu0\0\0\0\0\0\0\0\0";

    /// A board of this test alone, removed at the end.
    struct OwnBoard {
        key: libc::key_t,
        board: Board,
    }

    impl OwnBoard {
        fn new() -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(1);
            let key = (process::id() << 8 | NEXT.fetch_add(1, Ordering::Relaxed)) as libc::key_t;
            Self { key, board: Board::open(key).expect("System V shared memory") }
        }
    }

    impl Drop for OwnBoard {
        fn drop(&mut self) {
            // SAFETY: the calls have no pointers; the memory stays until nobody has it mapped.
            unsafe { libc::shmctl(libc::shmget(self.key, 0, 0), libc::IPC_RMID, std::ptr::null_mut()) };
        }
    }

    /// A process that has told of bytes on a board, and lives until it is killed or dropped.
    struct Teller(Child);

    impl Teller {
        fn start(key: libc::key_t, bytes: u64) -> Self {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "board::tests::tells_of_bytes_where_a_test_asks", "--nocapture"]);
            command.env(CHILD_KEY, key.to_string()).env(CHILD_BYTES, bytes.to_string());
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let told = BufReader::new(child.stdout.take().unwrap()).lines().any(|line| line.unwrap().contains("told"));
            assert!(told);
            Self(child)
        }

        fn kill(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    impl Drop for Teller {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// The child of other tests; by itself it does nothing.
    #[test]
    fn tells_of_bytes_where_a_test_asks() {
        let Ok(key) = std::env::var(CHILD_KEY) else { return };
        let board = Board::open(key.parse().unwrap()).unwrap();
        let row = board.row(GPU, StagingDirection::Out, FlowClass::Bulk).unwrap();
        let bytes: u64 = std::env::var(CHILD_BYTES).unwrap().parse().unwrap();
        (0..bytes).for_each(|_| row.add(BYTES, 1));
        row.add(COPIES, 1);
        board.line(GPU, KERNELS).unwrap().line[UNTIL].store(PROMISED_KERNEL_MAX.0, Ordering::Relaxed);
        writeln!(std::io::stdout(), "\ntold").unwrap();
        let _ = std::io::stdin().read(&mut [0]);
    }

    fn bytes_by_process(board: &Board) -> BTreeMap<u32, u64> {
        board.read().rows.into_iter().map(|row| (row.pid, row.bytes)).collect()
    }

    #[test]
    fn a_killed_process_is_not_read_any_more_and_leaves_its_page_to_the_next() {
        let own = OwnBoard::new();
        let mut tellers = [Teller::start(own.key, 1_000), Teller::start(own.key, 2_000)];
        let [first, second] = [0, 1].map(|at: usize| tellers[at].0.id());
        assert_eq!(bytes_by_process(&own.board), BTreeMap::from([(first, 1_000), (second, 2_000)]));
        tellers[0].kill();
        assert_eq!(bytes_by_process(&own.board), BTreeMap::from([(second, 2_000)]));
        let third = Teller::start(own.key, 3_000);
        assert_eq!(bytes_by_process(&own.board), BTreeMap::from([(second, 2_000), (third.0.id(), 3_000)]));
        let used = own.board.pages().filter(|page| page[0].load(Ordering::Relaxed) != 0).count();
        assert_eq!(used, 2, "the page of the killed process has a new owner");
    }

    #[test]
    fn what_threads_of_one_process_tell_adds_up_and_is_told_by_gpu_direction_and_class() {
        let own = OwnBoard::new();
        let gpu = board_gpu(Some("GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"), "");
        assert_eq!(gpu, std::array::from_fn(|byte| byte as u8));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let [inward, other] =
                        [gpu, GPU].map(|gpu| own.board.row(gpu, StagingDirection::In, FlowClass::Normal));
                    let (inward, other) = (inward.unwrap(), other.unwrap());
                    for _ in 0..1_000 {
                        inward.add(BYTES, 3);
                        other.add(MISSES, 1);
                    }
                });
            }
        });
        let urgent = own.board.row(gpu, StagingDirection::Out, FlowClass::Urgent).unwrap();
        urgent.line[BEHIND].store(Behind::Process(7).word(), Ordering::Relaxed);
        let mut rows = own.board.read().rows;
        rows.sort_by_key(|row| (row.gpu, row.direction == StagingDirection::Out));
        let known: Vec<_> = rows.iter().map(|row| (row.gpu, row.class, row.bytes, row.misses, row.behind)).collect();
        let behind = Some(Behind::Process(7));
        assert_eq!(
            known,
            [
                (gpu, FlowClass::Normal, 12_000, 0, None),
                (gpu, FlowClass::Urgent, 0, 0, behind),
                (GPU, FlowClass::Normal, 0, 4_000, None)
            ]
        );
        assert!(rows.iter().all(|row| row.pid == process::id()));
    }

    #[test]
    fn long_names_that_begin_alike_are_different_gpus() {
        let [first, second] =
            ["emu:accelerator number 1", "emu:accelerator number 2"].map(|name| board_gpu(None, name));
        assert!(first != second && first.starts_with(b"emu:acceler~") && second.starts_with(b"emu:acceler~"));
        assert_eq!(&board_gpu(None, "emu:sixteen long"), b"emu:sixteen long");
    }

    #[test]
    fn on_a_full_board_a_process_goes_on_uncounted() {
        let own = OwnBoard::new();
        // The first process of the system lives.
        let init = owner(1).unwrap();
        own.board.pages().for_each(|page| page[0].store(init, Ordering::Relaxed));
        assert!(own.board.row(GPU, StagingDirection::In, FlowClass::Bulk).is_none());
        let reading = own.board.read();
        assert_eq!((reading.processes, reading.rows.len()), (PROCESSES_MAX, 0));
    }

    #[test]
    fn who_has_lost_the_page_adds_nothing_to_what_its_new_owner_tells() {
        let own = OwnBoard::new();
        let row = own.board.row(GPU, StagingDirection::In, FlowClass::Bulk).unwrap();
        row.add(BYTES, 1);
        row.page[0].store(owner(1).unwrap(), Ordering::Relaxed);
        row.add(BYTES, 1);
        assert_eq!(own.board.read().rows.iter().map(|row| (row.pid, row.bytes)).collect::<Vec<_>>(), [(1, 1)]);
    }

    #[test]
    fn a_promised_kernel_is_seen_by_other_programs_until_it_ends_or_its_program_does() {
        let own = OwnBoard::new();
        let mut teller = Teller::start(own.key, 0);
        let is_seen = |gpu: &BoardGpu| own.board.has_promised_kernel(gpu, || Nanos(1));
        assert!(is_seen(&GPU) && !is_seen(&[1; 16]));
        teller.kill();
        assert!(!is_seen(&GPU), "nobody is there who ends it");
        let mut kernels = KernelActivity { row: own.board.line(GPU, KERNELS), under_way: 0 };
        let until = |kernels: &KernelActivity| kernels.row.as_ref().unwrap().line[UNTIL].load(Ordering::Relaxed);
        (0..2).for_each(|at| kernels.begin(Nanos(at)));
        kernels.end();
        assert_eq!(until(&kernels), PROMISED_KERNEL_MAX.0 + 1, "the other one is under way");
        assert!(!is_seen(&GPU), "a program does not wait for its own");
        kernels.end();
        assert_eq!(until(&kernels), 0);
        assert!(own.board.read().rows.is_empty(), "these are no copies");
    }

    #[test]
    fn an_announcement_of_a_kernel_counts_for_a_bounded_time() {
        let own = OwnBoard::new();
        let line = own.board.line(GPU, KERNELS).unwrap().line;
        let now = Nanos(7);
        let last = now.0 + PROMISED_KERNEL_MAX.0;
        for (until, counts) in [(0, false), (7, false), (8, true), (last, true), (last + 1, false), (u64::MAX, false)] {
            line[UNTIL].store(until, Ordering::Relaxed);
            assert_eq!(announces(line, halves(&GPU), || now), counts, "{until}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
        #[test]
        fn whatever_is_written_on_the_board_is_read_within_its_bounds(
            seed in any::<u64>(),
            kinds in prop::collection::vec(0u64..12, 63),
        ) {
            let own = OwnBoard::new();
            let mut random = seed;
            for word in own.board.words {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                word.store(random ^ random >> 31, Ordering::Relaxed);
            }
            // Pages of random owners are nobody's: some get a living one and lines of known kinds.
            for page in own.board.pages().take(8) {
                page[0].store(owner(process::id()).unwrap(), Ordering::Relaxed);
                let lines = page.chunks_exact(LINE).skip(1);
                lines.zip(&kinds).for_each(|(line, kind)| line[KIND].store(*kind, Ordering::Relaxed));
            }
            let reading = own.board.read();
            let known = kinds.iter().filter(|kind| (FIRST_KIND..FIRST_KIND + 8).contains(kind)).count();
            prop_assert_eq!(reading.rows.len(), 8 * known);
            let _ = own.board.has_promised_kernel(&GPU, || Nanos(seed));
            let row = own.board.row(GPU, StagingDirection::In, FlowClass::Bulk);
            prop_assert_eq!(row.is_some(), kinds.contains(&FREE));
        }
    }
}
