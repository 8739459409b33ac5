//! Whether programs that announce nothing copy out of a GPU, by the counters of its PCIe link.
//!
//! The counters know no processes, so what they count is another program's only while this process has no bulk copy under way. A
//! thread reads them, since that takes up to a millisecond, and only while small copies ask.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use headway::copy::DeviceError;
use headway::guest::{Nvml, PcieCounters, spawn, uuid_text};

use crate::base::attention;
use crate::base::neighbours::{PLACES, has_been_free_since, now_ns};

/// Between two pairs of readings. Calls of the driver may wait for a reading, so that readings are to fill less than 1 % of the time.
const PAUSE: Duration = Duration::from_millis(100);
/// What others copy out of a GPU, in bytes a second, if small copies are to avoid them. Small copies of this process are below.
const RATE_MIN: u64 = 2_000_000_000;
/// How long copies that were seen are expected to go on: until two pairs of readings have not seen any.
const BELIEVED_NS: u64 = 300_000_000;

/// For each GPU: a small copy has asked since the thread looked last.
static ASKED: [AtomicBool; PLACES] = [const { AtomicBool::new(false) }; PLACES];
/// For each GPU: until when, on the monotonic clock, copies of others are expected.
static SEEN_UNTIL: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];
/// For each GPU: it has its thread.
static WATCHED: [AtomicBool; PLACES] = [const { AtomicBool::new(false) }; PLACES];

/// Held while NVML is called, and from the program's exit on.
static READING: Mutex<()> = Mutex::new(());
/// The exit is taken care of.
static ENDS: AtomicBool = AtomicBool::new(false);
/// How long an exit waits for NVML at most.
const EXIT_MAX: Duration = Duration::from_millis(100);

/// Starts a GPU's thread. Without one, or without NVML, no copies of others are seen.
pub(crate) fn begin(uuid: [u8; 16], place: usize) {
    if !WATCHED[place].swap(true, Ordering::Relaxed) {
        let _ = spawn("headway-link", move || watch(&uuid_text(uuid), place));
    }
}

/// Whether another program was seen to copy out of the GPU.
pub(crate) fn is_busy(place: usize) -> bool {
    if !ASKED[place].load(Ordering::Relaxed) {
        ASKED[place].store(true, Ordering::Relaxed);
    }
    let until = SEEN_UNTIL[place].load(Ordering::Relaxed);
    until != 0 && until > now_ns()
}

fn watch(uuid: &str, place: usize) {
    let Ok(nvml) = Nvml::system() else { return };
    // Registered once the library is loaded, it runs before what that library does at exit.
    // SAFETY: the function takes nothing and may be called at any time.
    if !ENDS.swap(true, Ordering::Relaxed) && unsafe { libc::atexit(end) } != 0 {
        return;
    }
    while !attention::is_off() {
        sleep(PAUSE);
        if !ASKED[place].swap(false, Ordering::Relaxed) {
            continue;
        }
        match others_rate(&nvml, uuid, place) {
            Ok(Some(rate)) if rate > RATE_MIN => SEEN_UNTIL[place].store(now_ns() + BELIEVED_NS, Ordering::Relaxed),
            Ok(_) => {}
            Err(_) => return,
        }
    }
}

/// The program exits: NVML is not called any more.
extern "C" fn end() {
    let start = Instant::now();
    while !attention::is_off() && start.elapsed() < EXIT_MAX {
        if let Ok(reading) = READING.try_lock() {
            return std::mem::forget(reading);
        }
        std::thread::yield_now();
    }
}

/// What others copy out of the GPU, in bytes a second; `None` where that cannot be told from this process's own bulk copies.
fn others_rate(nvml: &Nvml, uuid: &str, place: usize) -> Result<Option<u64>, DeviceError> {
    let start = now_ns();
    let read = || {
        let _reading = READING.lock();
        nvml.pcie_counters(uuid)
    };
    let before = read()?;
    let between = now_ns();
    sleep(PcieCounters::READ_EVERY);
    let after = read()?;
    let end = now_ns();
    let is_told = has_been_free_since(place, start) && u128::from(end - start) < PcieCounters::READ_MAX.as_nanos();
    Ok(is_told.then(|| after.since(before).outward.saturating_mul(1_000_000_000) / (end - between).max(1)))
}
