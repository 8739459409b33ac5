//! What `--stats` counts, and how it is printed: at exit, and on SIGUSR1 if the guest does not use that signal.

use std::ffi::c_int;
use std::fmt::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use headway::guest::has_more_rights;
use headway_core::decisions::chooser::ChoiceReason;
use headway_core::files::guest::{FIRST_VARIABLE, GuestOptions, VARIABLE};
/// Which call made a copy.
pub(crate) use headway_core::files::guest_log::Call as Kind;
use headway_core::files::guest_log::DriverReason;
use headway_core::models::transfer::Direction;

use crate::calls::{audit, lookup};
use crate::observers::{log, passed, unhooked};

const KINDS: [(Kind, &str); 8] = [
    (Kind::In, "into a GPU, waiting"),
    (Kind::InAsync, "into a GPU, queued"),
    (Kind::Out, "out of a GPU, waiting"),
    (Kind::OutAsync, "out of a GPU, queued"),
    (Kind::Any, "by address, waiting"),
    (Kind::AnyAsync, "by address, queued"),
    (Kind::Batch, "in batches, queued"),
    (Kind::Attributes, "with attributes, queued"),
];

/// What became of a copy that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Aside,
    Chunk,
    Capture,
    OtherMemory,
    NoLine,
    NotLaunched,
    HintDropped,
}

impl Outcome {
    /// The reason for the log, of an outcome that left the copy to the driver.
    pub(crate) const fn why(self) -> DriverReason {
        match self {
            Self::Capture => DriverReason::Capture,
            Self::NoLine => DriverReason::NoLine,
            Self::NotLaunched => DriverReason::NotLaunched,
            Self::OtherMemory | Self::Aside | Self::Chunk | Self::HintDropped => DriverReason::OtherMemory,
        }
    }
}

const OUTCOMES: [(Outcome, &str); 7] = [
    (Outcome::Aside, "copies made by a kernel in their own stream"),
    (Outcome::Chunk, "chunks of bulk copies that let other streams in"),
    (Outcome::Capture, "passed on: the stream was capturing"),
    (Outcome::OtherMemory, "passed on: neither page-locked nor ordinary memory, or too large for a line"),
    (Outcome::NoLine, "passed on: all pinned lines were in use"),
    (Outcome::NotLaunched, "passed on: the driver did not take the kernel"),
    (
        Outcome::HintDropped,
        "passed on without PREFER_OVERLAP, with which the driver may corrupt them (NVIDIA bug 6718200)",
    ),
];

/// Upper ends of the classes of sizes; the last has none.
const SIZES: [(usize, &str); 5] = [
    (4 << 10, "<= 4 KiB"),
    (64 << 10, "<= 64 KiB"),
    (1 << 20, "<= 1 MiB"),
    (16 << 20, "<= 16 MiB"),
    (usize::MAX, "larger"),
];

struct Count {
    copies: AtomicU64,
    bytes: AtomicU64,
}

static COUNTS: [[Count; SIZES.len()]; KINDS.len()] =
    [const { [const { Count { copies: AtomicU64::new(0), bytes: AtomicU64::new(0) } }; SIZES.len()] }; KINDS.len()];
static MADE: [AtomicU64; OUTCOMES.len()] = [const { AtomicU64::new(0) }; OUTCOMES.len()];

pub(crate) fn count(kind: Kind, bytes: usize) {
    let size = SIZES.iter().position(|(end, _)| bytes <= *end).unwrap_or(SIZES.len() - 1);
    let count = &COUNTS[kind as usize][size];
    count.copies.fetch_add(1, Ordering::Relaxed);
    count.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
}

pub(crate) fn outcome(outcome: Outcome, times: u64) {
    MADE[outcome as usize].fetch_add(times, Ordering::Relaxed);
}

/// Text of bounded length: a signal handler must not allocate.
struct Text {
    bytes: [u8; 4096],
    length: usize,
}

impl Text {
    fn print(&self) {
        log::print_bytes(&self.bytes[..self.length]);
    }
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

fn table(text: &mut Text) -> fmt::Result {
    writeln!(text, "headway: copies of process {}", std::process::id())?;
    for (kind, name) in KINDS {
        for (size, (_, class)) in SIZES.iter().enumerate() {
            let count = &COUNTS[kind as usize][size];
            let copies = count.copies.load(Ordering::Relaxed);
            if copies > 0 {
                let bytes = count.bytes.load(Ordering::Relaxed);
                writeln!(text, "  {name:<22} {class:<10} {copies:>10} copies {bytes:>16} bytes")?;
            }
        }
    }
    passed::table(text)?;
    for (counts, name) in FAST.iter().zip(["into a GPU", "out of a GPU"]) {
        let [copies, bytes, nanos] = [0, 1, 2].map(|at| counts[at].load(Ordering::Relaxed));
        if copies > 0 {
            let rate = bytes as f64 / nanos.max(1) as f64;
            writeln!(
                text,
                "  {copies:>10} copies of ordinary memory {name} by several threads: {bytes} bytes at {rate:.1} GB/s"
            )?;
        }
    }
    if let Some(basis) = CHOICES.get() {
        let timed = TIMED.load(Ordering::Relaxed);
        writeln!(text, "  copies of ordinary memory are chosen by {basis}; {timed} copies of this program were timed")?;
        for (reason, times) in REASONS.iter().zip(&CHOSEN) {
            writeln!(text, "  {:>10} methods: {reason}", times.load(Ordering::Relaxed))?;
        }
    }
    for (outcome, name) in OUTCOMES {
        let times = MADE[outcome as usize].load(Ordering::Relaxed);
        if times > 0 {
            writeln!(text, "  {times:>10} {name}")?;
        }
    }
    Ok(())
}

/// What the choices for the first GPU began with, and copies that taught something since.
static CHOICES: OnceLock<&'static str> = OnceLock::new();
static TIMED: AtomicU64 = AtomicU64::new(0);

/// Why methods were chosen, and how often.
const REASONS: [ChoiceReason; 2] = [ChoiceReason::Learnt, ChoiceReason::Trial];
static CHOSEN: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

pub(crate) fn chosen(why: ChoiceReason) {
    if let Some(at) = REASONS.iter().position(|reason| *reason == why) {
        CHOSEN[at].fetch_add(1, Ordering::Relaxed);
    }
}

pub(crate) fn choices(basis: &'static str) {
    let _ = CHOICES.set(basis);
}

pub(crate) fn timed() {
    TIMED.fetch_add(1, Ordering::Relaxed);
}

/// What was made by several threads: copies, bytes, nanoseconds; into a GPU and out of it.
static FAST: [[AtomicU64; 3]; 2] = [const { [const { AtomicU64::new(0) }; 3] }; 2];

pub(crate) fn made_fast(direction: Direction, bytes: usize, took: Duration) {
    let counts = &FAST[usize::from(direction == Direction::D2h)];
    let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    for (count, value) in counts.iter().zip([1, bytes as u64, nanos]) {
        count.fetch_add(value, Ordering::Relaxed);
    }
}

/// At exit. A forked child has nothing of its own to say: its counts are its parent's.
extern "C" fn print() {
    if !lookup::is_off() {
        let mut text = Text { bytes: [0; 4096], length: 0 };
        let _ = table(&mut text);
        text.print();
    }
}

extern "C" fn on_signal(_signal: c_int) {
    // SAFETY: the place of this thread's `errno`.
    let errno = unsafe { *libc::__errno_location() };
    if lookup::has_begun() {
        print();
    } else {
        say("has copied nothing yet");
    }
    // SAFETY: the place of this thread's `errno`.
    unsafe { *libc::__errno_location() = errno };
}

/// Called when a program with the library starts.
#[used]
// SAFETY: the loader calls what stands in this section, and passes arguments that need not be taken.
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// Called when it ends.
#[used]
// SAFETY: the loader calls what stands in this section, without arguments.
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

/// A variable of a guest's environment. In a program that has more rights than its caller none counts.
pub(crate) fn variable(name: &str) -> Option<String> {
    if has_more_rights() { None } else { std::env::var(name).ok() }
}

fn options() -> Option<GuestOptions> {
    variable(VARIABLE)?.parse().ok()
}

/// With `--stats`, SIGUSR1 ends no program, whether it has loaded the driver yet or not.
extern "C" fn start() {
    if options().is_some_and(|options| options.stats) {
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

/// With `--stats`, reports that no copy was seen.
extern "C" fn end() {
    let Some(options) = options() else { return };
    if lookup::has_begun() || audit::is_asked() {
        return;
    }
    // Nothing of the driver was replaced: was it reached by another lookup?
    if unhooked::driver_is_loaded() {
        if options.verify {
            unhooked::say();
        }
        if options.stats {
            say(
                "loaded the CUDA driver and asked for no function that copies, or looked its functions up where Headway does not see it, so that no \
                 copies were counted",
            );
        }
    } else if options.stats && variable(FIRST_VARIABLE).and_then(|text| text.parse().ok()) == Some(std::process::id()) {
        // Only the process that was started as a guest says so.
        say("loaded no CUDA driver, so that no copies were counted; processes that it started say so themselves");
    }
}

fn say(what: &str) {
    let mut text = Text { bytes: [0; 4096], length: 0 };
    let _ = writeln!(text, "headway: process {} {what}", std::process::id());
    text.print();
}

pub(crate) fn begin() {
    // SAFETY: the function only reads atomics and writes to a descriptor.
    unsafe { libc::atexit(print) };
}
