//! What was done, for those who write it down. Layers tell an [`Event`] and do not know who listens.
//!
//! - [`stats`]: how many copies there were, and what became of them.
//! - [`log`]: the event log, one line for each copy.
//! - [`lint`]: where in the program copies lose time.
//! - [`verify`]: accelerated copies compared with the driver's.
//! - [`told`]: reports copies on the user's board, which `headway top` reads.
//! - [`unhooked`]: libraries of the guest that look driver functions up by themselves.

mod lint;
mod log;
mod stats;
pub(crate) mod told;
pub(crate) mod unhooked;
mod verify;

use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use headway_core::decisions::chooser::ChoiceReason;
use headway_core::files::guest::GuestOptions;
use headway_core::files::guest_log::{Became, DriverReason};

pub(crate) use self::stats::leave_signal;

use crate::base::copy::{Copy, Made};
use crate::base::driver::Status;
use crate::base::neighbours::now_ns;

/// Something that happened, as a layer reports it to the observers.
pub(crate) enum Event<'a> {
    /// The guest called for a copy.
    Asked(Copy),
    /// It called for one that is always left to the driver, of so many bytes.
    PassedOn(Passed, usize),
    /// A method was chosen for a copy of ordinary memory, for this reason.
    Chosen(ChoiceReason),
    /// What the choices for a GPU begin with.
    ChosenBy(&'static str),
    /// A copy taught something about methods.
    Timed,
    /// Several threads have made a copy in this time.
    MadeByThreads(Copy, Duration),
    /// A copy of memory that is kept page-locked was made in this time.
    MadePinned(Copy, Duration),
    /// A chunk of a bulk copy was queued.
    Chunk,
    /// A bulk copy, or its rest, was queued whole: its stream does not go on and has no room for chunks.
    NoRoom,
    /// The kernel cannot make a copy.
    NotAside(DriverReason),
    /// The driver gets a copy without a hint of the guest's.
    HintDropped,
    /// A copy was made other than by the driver's own call.
    Made(Accelerated<'a>),
    /// A launch waited so long, for those before it or for another program.
    LaunchHeld(Duration),
    /// None before it ended for too long: a launch was passed on without waiting, or without waiting longer.
    LaunchNotHeld,
    /// The guest's call ends.
    Returns(Returning),
}

/// Copies for which nothing is ever done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passed {
    /// Within one GPU.
    Within,
    /// Between GPUs.
    Peer,
    /// Rows with gaps between them, or arrays.
    Rows,
}

/// A copy that was not made by the driver's own call.
pub(crate) struct Accelerated<'a> {
    pub(crate) copy: Copy,
    pub(crate) became: Became,
    /// Whether the bytes are there.
    pub(crate) is_complete: bool,
    /// The call's answer. Who lets the driver make the copy again replaces it.
    pub(crate) status: &'a mut Status,
}

/// A call that is about to return.
pub(crate) struct Returning {
    pub(crate) copy: Copy,
    pub(crate) made: Made,
    /// When it was called, on the monotonic clock.
    pub(crate) start_ns: u64,
    pub(crate) took_ns: u64,
    pub(crate) status: Status,
}

const STATS: u32 = 1;
const LOG: u32 = 2;
const LINT: u32 = 4;
const VERIFY: u32 = 8;
static ON: AtomicU32 = AtomicU32::new(0);

/// Starts the observers that are asked for; whether one wants to know of each copy. `copies` are the functions that copy.
pub(crate) fn begin(options: GuestOptions, copies: Vec<&'static CStr>) -> bool {
    verify::expect(copies);
    let observers: [(u32, bool, extern "C" fn()); 4] = [
        (STATS, options.stats, stats::print),
        (LOG, log::begin(options), log::finish),
        (LINT, options.lint, lint::finish),
        (VERIFY, options.verify, verify::finish),
    ];
    for (bit, _, finish) in observers.into_iter().filter(|(_, is_on, _)| *is_on) {
        ON.fetch_or(bit, Ordering::Relaxed);
        // SAFETY: each of the functions may be called at exit. The last comes first, so that the log ends behind those that write to it.
        unsafe { libc::atexit(finish) };
    }
    ON.load(Ordering::Relaxed) & !VERIFY != 0
}

/// Tells those that are on. Inlined, so that each place has the arms of its own event only.
#[inline(always)]
pub(crate) fn tell(mut event: Event<'_>) {
    let on = ON.load(Ordering::Relaxed);
    if on & STATS != 0 {
        stats::take(&event);
    }
    if on & LOG != 0 {
        log::take(&event);
    }
    if on & LINT != 0 {
        lint::take(&event);
    }
    if on & VERIFY != 0 {
        verify::take(&mut event);
    }
}

/// Makes a copy by `make`, and tells of the call where an observer wants its time.
pub(crate) fn observe(copy: Copy, make: impl FnOnce(&mut Made) -> Status) -> Status {
    let mut made = Made::new(copy);
    if ON.load(Ordering::Relaxed) & (LOG | LINT) == 0 {
        let status = make(&mut made);
        told::copied(copy, &made, status);
        return status;
    }
    let start_ns = now_ns();
    let status = make(&mut made);
    told::copied(copy, &made, status);
    let took_ns = now_ns().saturating_sub(start_ns);
    tell(Event::Returns(Returning { copy, made, start_ns, took_ns, status }));
    status
}
