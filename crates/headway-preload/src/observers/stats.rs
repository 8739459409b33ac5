//! What `--stats` counts, and how it is printed: at exit, and on SIGUSR1 if the guest does not use that signal.

use std::ffi::c_int;
use std::fmt::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use headway_core::decisions::chooser::ChoiceReason;
use headway_core::files::guest_log::{Became, Call, DriverReason, SIZES, Towards, size_class};

use crate::base::attention;
use crate::base::pins;
use crate::base::print::print_bytes;
use crate::observers::{Accelerated, Event, Passed};

const CALLS: [(Call, &str); 8] = [
    (Call::In, "into a GPU, waiting"),
    (Call::InAsync, "into a GPU, queued"),
    (Call::Out, "out of a GPU, waiting"),
    (Call::OutAsync, "out of a GPU, queued"),
    (Call::Any, "by address, waiting"),
    (Call::AnyAsync, "by address, queued"),
    (Call::Batch, "in batches, queued"),
    (Call::Attributes, "with attributes, queued"),
];
const PASSED: [(Passed, &str); 3] =
    [(Passed::Within, "within a GPU"), (Passed::Peer, "between GPUs"), (Passed::Rows, "in rows with gaps")];

struct Count {
    copies: AtomicU64,
    bytes: AtomicU64,
}

impl Count {
    const fn none() -> Self {
        Self { copies: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }

    fn add(&self, bytes: usize) {
        self.copies.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Copies and bytes, if there are any.
    fn read(&self) -> Option<(u64, u64)> {
        let copies = self.copies.load(Ordering::Relaxed);
        (copies > 0).then(|| (copies, self.bytes.load(Ordering::Relaxed)))
    }
}

static ASKED: [[Count; SIZES.len()]; CALLS.len()] = [const { [const { Count::none() }; SIZES.len()] }; CALLS.len()];
static PASSED_ON: [Count; PASSED.len()] = [const { Count::none() }; PASSED.len()];
/// What was made by several threads: into a GPU and out of it.
static BY_THREADS: [Count; 2] = [const { Count::none() }; 2];
/// What was made of memory that is kept page-locked.
static BY_PINS: [Count; 2] = [const { Count::none() }; 2];
static BY_PINS_NS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static BY_THREADS_NS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// What the choices for the first GPU began with.
static CHOSEN_BY: OnceLock<&str> = OnceLock::new();
/// Copies that taught something since.
static TIMED: AtomicU64 = AtomicU64::new(0);
static LEARNT: AtomicU64 = AtomicU64::new(0);
static TRIAL: AtomicU64 = AtomicU64::new(0);
static ASIDE: AtomicU64 = AtomicU64::new(0);
static CHUNKS: AtomicU64 = AtomicU64::new(0);
static NO_ROOM: AtomicU64 = AtomicU64::new(0);
static CAPTURE: AtomicU64 = AtomicU64::new(0);
static OTHER_MEMORY: AtomicU64 = AtomicU64::new(0);
static NO_LINE: AtomicU64 = AtomicU64::new(0);
static NOT_LAUNCHED: AtomicU64 = AtomicU64::new(0);
static HINT_DROPPED: AtomicU64 = AtomicU64::new(0);
static LAUNCHES_NOT_HELD: AtomicU64 = AtomicU64::new(0);
static LAUNCHES_HELD: AtomicU64 = AtomicU64::new(0);
static LAUNCH_HELD_NS_MAX: AtomicU64 = AtomicU64::new(0);

/// What became of copies that were looked at.
static OUTCOMES: [(&AtomicU64, &str); 9] = [
    (&ASIDE, "copies made by a kernel in their own stream"),
    (&CHUNKS, "chunks of bulk copies that let other streams in"),
    (&NO_ROOM, "bulk copies queued whole from where their stream was full of chunks and did not go on"),
    (&CAPTURE, "passed on: the stream was capturing"),
    (&OTHER_MEMORY, "passed on: neither page-locked nor ordinary memory, or too large for a line"),
    (&NO_LINE, "passed on: all pinned lines were in use"),
    (&NOT_LAUNCHED, "passed on: the driver did not take the kernel"),
    (&HINT_DROPPED, "passed on without PREFER_OVERLAP, with which the driver may corrupt them (NVIDIA bug 6718200)"),
    (&LAUNCHES_NOT_HELD, "launches passed on beyond the depth: none before them ended within 10 s"),
];

#[inline(always)]
pub(super) fn take(event: &Event<'_>) {
    let counter = match event {
        Event::Asked(copy) => return ASKED[copy.call as usize][size_class(copy.bytes as u64)].add(copy.bytes),
        Event::PassedOn(what, bytes) => return PASSED_ON[*what as usize].add(*bytes),
        Event::MadeByThreads(copy, took) | Event::MadePinned(copy, took) => {
            let is_pinned = matches!(event, Event::MadePinned(..));
            let (count, ns) = if is_pinned { (&BY_PINS, &BY_PINS_NS) } else { (&BY_THREADS, &BY_THREADS_NS) };
            let direction = usize::from(copy.towards == Towards::Out);
            ns[direction].fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
            return count[direction].add(copy.bytes);
        }
        Event::ChosenBy(basis) => {
            CHOSEN_BY.get_or_init(|| basis);
            return;
        }
        Event::Chosen(ChoiceReason::Learnt) => &LEARNT,
        Event::Chosen(ChoiceReason::Trial) => &TRIAL,
        Event::Timed => &TIMED,
        Event::Made(Accelerated { became: Became::Aside, .. }) => &ASIDE,
        Event::Chunk => &CHUNKS,
        Event::NoRoom => &NO_ROOM,
        Event::NotAside(DriverReason::Capture) => &CAPTURE,
        Event::NotAside(DriverReason::NoLine) => &NO_LINE,
        Event::NotAside(DriverReason::NotLaunched) => &NOT_LAUNCHED,
        Event::NotAside(_) => &OTHER_MEMORY,
        Event::HintDropped => &HINT_DROPPED,
        Event::LaunchNotHeld => &LAUNCHES_NOT_HELD,
        Event::LaunchHeld(waited) => {
            LAUNCH_HELD_NS_MAX.fetch_max(u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
            &LAUNCHES_HELD
        }
        Event::Chosen(_) | Event::Made(_) | Event::Returns(_) => return,
    };
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Text of bounded length: a signal handler must not allocate.
struct Text {
    bytes: [u8; 4096],
    length: usize,
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let rest = &mut self.bytes[self.length..];
        let length = text.len().min(rest.len());
        rest[..length].copy_from_slice(&text.as_bytes()[..length]);
        self.length += length;
        Ok(())
    }
}

fn say(write: impl FnOnce(&mut Text) -> fmt::Result) {
    let mut text = Text { bytes: [0; 4096], length: 0 };
    let _ = write(&mut text);
    print_bytes(&text.bytes[..text.length]);
}

fn table(text: &mut Text) -> fmt::Result {
    writeln!(text, "headway: copies of process {}", std::process::id())?;
    for (counts, (_, name)) in ASKED.iter().zip(CALLS) {
        for (count, (_, class)) in counts.iter().zip(SIZES) {
            if let Some((copies, bytes)) = count.read() {
                writeln!(text, "  {name:<22} {class:<10} {copies:>10} copies {bytes:>16} bytes")?;
            }
        }
    }
    for (count, (_, name)) in PASSED_ON.iter().zip(PASSED) {
        if let Some((copies, bytes)) = count.read() {
            writeln!(text, "  {name:<33} {copies:>10} copies {bytes:>16} bytes, passed on")?;
        }
    }
    for (counts, times, how) in
        [(&BY_THREADS, &BY_THREADS_NS, "by several threads"), (&BY_PINS, &BY_PINS_NS, "that is kept page-locked")]
    {
        for (at, name) in ["into a GPU", "out of a GPU"].into_iter().enumerate() {
            if let Some((copies, bytes)) = counts[at].read() {
                let rate = bytes as f64 / times[at].load(Ordering::Relaxed).max(1) as f64;
                writeln!(
                    text,
                    "  {copies:>10} copies of ordinary memory {name} {how}: {bytes} bytes at {rate:.1} GB/s"
                )?;
            }
        }
    }
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    if count(&pins::PINNED) > 0 {
        let (now, pinned, ended) = (count(&pins::BYTES), count(&pins::PINNED), count(&pins::ENDED));
        writeln!(
            text,
            "  {pinned:>10} ranges were page-locked, {ended} of them released again; {now} bytes are page-locked now"
        )?;
    }
    if let Some(why) = pins::ABSENT.get() {
        writeln!(text, "  no more memory is page-locked: {why}")?;
    }
    for (name, ranges) in pins::Why::NAMES.iter().zip(&pins::RANGES).filter(|(_, ranges)| count(ranges) > 0) {
        write!(text, "  {:>10} ranges {name}", count(ranges))?;
        match pins::REFUSED_WITH.load(Ordering::Relaxed) {
            status if *name == pins::Why::NAMES[pins::Why::Driver as usize] => {
                writeln!(text, " (CUDA error {status})")?
            }
            _ => writeln!(text)?,
        }
    }
    if let Some(basis) = CHOSEN_BY.get() {
        let timed = TIMED.load(Ordering::Relaxed);
        writeln!(text, "  copies of ordinary memory are chosen by {basis}; {timed} copies of this program were timed")?;
        for (reason, times) in [(ChoiceReason::Learnt, &LEARNT), (ChoiceReason::Trial, &TRIAL)] {
            writeln!(text, "  {:>10} methods: {reason}", times.load(Ordering::Relaxed))?;
        }
    }
    let held = LAUNCHES_HELD.load(Ordering::Relaxed);
    if held > 0 {
        let longest_us = LAUNCH_HELD_NS_MAX.load(Ordering::Relaxed) / 1_000;
        writeln!(text, "  {held:>10} launches were held, the longest for {longest_us} us")?;
    }
    for (times, name) in OUTCOMES {
        let times = times.load(Ordering::Relaxed);
        if times > 0 {
            writeln!(text, "  {times:>10} {name}")?;
        }
    }
    Ok(())
}

/// At exit. A forked child has nothing of its own to say: its counts are its parent's.
pub(super) extern "C" fn print() {
    if !attention::is_off() {
        say(table);
    }
}

extern "C" fn on_signal(_signal: c_int) {
    // SAFETY: the place of this thread's `errno`.
    let errno = unsafe { *libc::__errno_location() };
    if attention::has_begun() {
        print();
    } else {
        say(|text| writeln!(text, "headway: process {} has copied nothing yet", std::process::id()));
    }
    // SAFETY: the place of this thread's `errno`.
    unsafe { *libc::__errno_location() = errno };
}

/// Called when a program with the library starts.
#[used]
// SAFETY: the loader calls what stands in this section, and passes arguments that need not be taken.
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// With `--stats`, SIGUSR1 ends no program, whether it has loaded the driver yet or not.
extern "C" fn start() {
    if attention::asked().is_some_and(|options| options.stats) {
        handle_signal(libc::SIG_DFL, on_signal as *const () as usize);
    }
}

/// The copy of the library that the loader asks leaves the signal to the one in which the program runs.
pub(crate) fn leave_signal() {
    handle_signal(on_signal as *const () as usize, libc::SIG_DFL);
}

/// Replaces one handler of SIGUSR1, and no other, by another one.
fn handle_signal(before: libc::sighandler_t, now: libc::sighandler_t) {
    // SAFETY: all-zero bytes are a valid `sigaction`: the default.
    let mut known: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: only asks; `known` is valid for the call to write.
    if unsafe { libc::sigaction(libc::SIGUSR1, std::ptr::null(), &raw mut known) } == 0 && known.sa_sigaction == before
    {
        // SAFETY: all-zero bytes are a valid `sigaction`.
        let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
        new.sa_sigaction = now;
        new.sa_flags = libc::SA_RESTART;
        // SAFETY: the handler does what a handler may; none of the program's is replaced.
        unsafe { libc::sigaction(libc::SIGUSR1, &raw const new, std::ptr::null_mut()) };
    }
}
