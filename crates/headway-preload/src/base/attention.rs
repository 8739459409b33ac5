//! The guest's options, and why a copy is looked at. Where there is no reason, a small copy costs one load.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use headway::guest::{Home, has_more_rights};
use headway_core::files::guest::{AsideMode, GuestClass, GuestOptions, VARIABLE};

/// Set for a driver that is newer than the table of replaced functions.
static TOO_NEW: AtomicBool = AtomicBool::new(false);
/// The process in which the first function was replaced.
static HOME: OnceLock<Home> = OnceLock::new();
static BEGUN: AtomicBool = AtomicBool::new(false);
static OPTIONS: OnceLock<GuestOptions> = OnceLock::new();

/// Whether every call is passed on. So it is in a forked child, where CUDA does not work, and where another thread of the parent may have
/// held any lock of this library.
pub(crate) fn is_off() -> bool {
    TOO_NEW.load(Ordering::Relaxed) || HOME.get().is_some_and(|home| !home.is_here())
}

/// From now on every call is passed on.
pub(crate) fn switch_off() {
    TOO_NEW.store(true, Ordering::Relaxed);
}

/// Whether the guest has got a function of ours.
pub(crate) fn has_begun() -> bool {
    BEGUN.load(Ordering::Acquire)
}

/// The guest gets a function of ours; whether it is the first one.
pub(crate) fn begin() -> bool {
    let is_first = !BEGUN.swap(true, Ordering::AcqRel);
    if is_first {
        HOME.get_or_init(Home::here);
    }
    is_first
}

/// A variable of a guest's environment. In a program that has more rights than its caller none counts.
pub(crate) fn variable(name: &str) -> Option<String> {
    if has_more_rights() { None } else { std::env::var(name).ok() }
}

/// The options that the environment of this process asked for when it was first looked at.
pub(crate) fn asked() -> Option<GuestOptions> {
    static ASKED: OnceLock<Option<GuestOptions>> = OnceLock::new();
    *ASKED.get_or_init(|| variable(VARIABLE)?.parse().ok())
}

/// Whether launches of kernels are looked at, which is known before a function is replaced.
pub(crate) fn holds_launches() -> bool {
    asked().is_some_and(|options| options.depth.is_some())
}

pub(crate) fn options() -> GuestOptions {
    OPTIONS.get().copied().unwrap_or_default()
}

/// Whether copies out of a GPU are queued so that small ones get past large ones.
pub(crate) fn queues() -> bool {
    let options = options();
    options.aside != AsideMode::Never || options.chunk.is_some() || options.class == GuestClass::Bulk
}

static ATTENTION: AtomicU32 = AtomicU32::new(0);
/// A context is in use for which nothing was prepared.
pub(crate) const NEW: u32 = 1;
/// A bulk copy of this program may be on an engine.
pub(crate) const BULK: u32 = 2;
/// An observer wants to know of each copy.
pub(crate) const OBSERVED: u32 = 4;
/// Every small copy goes aside.
pub(crate) const ALWAYS: u32 = 8;
/// Other programs may copy in bulk.
pub(crate) const NEIGHBOURS: u32 = 16;
/// Memory of the program may be pinned, of which the driver must not make a copy by itself.
pub(crate) const PINS: u32 = 32;

/// Copies out of a GPU of this size and more are looked at in any case.
static LARGE: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Copies of this size and more may be made by several threads.
static FAST: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Copies into a GPU of this size and more are looked at in any case.
static LARGE_IN: AtomicUsize = AtomicUsize::new(usize::MAX);
/// A guest reports every copy of this size and more on the user's board.
const TOLD_MIN: usize = 1 << 20;
/// From this size on copies count for what their stream has under way. Of smaller ones 128 and more make a chunk.
pub(crate) const COUNTED_MIN: usize = 32 << 10;
/// From this size on a copy of ordinary memory may be made by several threads.
const FAST_MIN: usize = headway::copy::NodeClass::LEAST.0 as usize;

/// From now on the guest has `options`; `reasons` are there from the start.
pub(crate) fn follow(options: GuestOptions, mut reasons: u32) {
    OPTIONS.get_or_init(|| options);
    if queues() {
        reasons |= NEW;
        LARGE.store(COUNTED_MIN, Ordering::Relaxed);
    }
    if options.fast {
        LARGE.fetch_min(FAST_MIN, Ordering::Relaxed);
        FAST.store(FAST_MIN, Ordering::Relaxed);
        LARGE_IN.store(FAST_MIN, Ordering::Relaxed);
    }
    if !options.alone && changes_copies() {
        LARGE.fetch_min(TOLD_MIN, Ordering::Relaxed);
        LARGE_IN.fetch_min(TOLD_MIN, Ordering::Relaxed);
    }
    ATTENTION.store(reasons, Ordering::Relaxed);
}

/// Sets and clears reasons, unless everything is switched off.
pub(crate) fn attend(set: u32, clear: u32) {
    if !is_off() {
        ATTENTION.fetch_or(set, Ordering::Relaxed);
        ATTENTION.fetch_and(!clear, Ordering::Relaxed);
    }
}

/// Reasons to look at a copy of any size; 0 = small copies go straight to the driver.
#[inline]
pub(crate) fn reasons() -> u32 {
    ATTENTION.load(Ordering::Relaxed)
}

#[inline]
pub(crate) fn is_large(bytes: usize) -> bool {
    bytes >= LARGE.load(Ordering::Relaxed)
}

/// The same of copies into a GPU.
#[inline]
pub(crate) fn is_large_in(bytes: usize) -> bool {
    bytes >= LARGE_IN.load(Ordering::Relaxed)
}

/// Whether several threads may make a copy of ordinary memory of this size.
#[inline]
pub(crate) fn may_be_fast(bytes: usize) -> bool {
    bytes >= FAST.load(Ordering::Relaxed)
}

/// Whether an option changes how copies are made.
pub(crate) fn changes_copies() -> bool {
    LARGE.load(Ordering::Relaxed) != usize::MAX
}

/// Whether anything is to be done, in a guest, about a copy whose call is rare enough to be looked at each time.
pub(crate) fn looks_at(bytes: usize) -> bool {
    !is_off() && (reasons() != 0 || is_large(bytes)) && OPTIONS.get().is_some()
}
