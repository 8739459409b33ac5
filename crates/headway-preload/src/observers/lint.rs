//! `--lint`: where in the program copies lose time.
//!
//! Copies are sorted into problems and counted; a sample of them is traced to its call site by the C library's unwinder. No lock is
//! held during calls of the driver, the unwinder or the loader.

use std::ffi::{CStr, c_int, c_void};
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use headway_core::files::guest_log::{BULK_MIN, Became, Call, Host, LintFinding, Problem, Towards};
use headway_core::units::{Bytes, Nanos};

use crate::base::attention;
use crate::base::copy::Copy;
use crate::base::driver::{self, Driver, Relaxed, SUCCESS};
use crate::base::print::print;
use crate::observers::{Event, Returning, log};

/// Copies of each problem that are all traced; of more, one in 2, 4, 8 and so on.
const ALL: u64 = 64;
/// Call sites that get a line of their own.
const SITES_MAX: usize = 128;
/// Frames that are looked at.
const FRAMES: usize = 32;
/// Up to this size a copy is tiny, or a small result.
const TINY_MAX: u64 = 4 << 10;
/// From this size on it is worth page-locking memory that is copied again and again.
const LOCK_MIN: u64 = 64 << 10;
/// Places for blocks of memory that were copied; two that share one displace each other.
const BLOCKS: usize = 256;
/// So often a block is copied before it counts as copied again and again.
const AGAIN: u32 = 4;
/// Below these numbers, tiny copies and small results are no problem.
const TINY_MANY: u64 = 1_000;
const RESULTS_MANY: u64 = 100;
/// Libraries of CUDA, by the beginning of their names.
const CUDA: [&str; 10] = [
    "libcuda",
    "libcublas",
    "libcudnn",
    "libcufft",
    "libcurand",
    "libcusparse",
    "libcusolver",
    "libcupti",
    "libnv",
    "libnccl",
];

const PROBLEMS: usize = 4;

struct Site {
    problem: Problem,
    call: Call,
    address: usize,
    name: String,
    copies: u64,
    bytes: u64,
    took: u64,
}

#[derive(Clone, Copy, Default)]
struct Block {
    address: usize,
    bytes: u64,
    times: u32,
}

struct State {
    seen: [u64; PROBLEMS],
    sites: Vec<Site>,
    /// Samples of places beyond [`SITES_MAX`].
    beyond: u64,
    blocks: [Block; BLOCKS],
    /// Large page-locked copies that waited, into a GPU and out of it: bytes and nanoseconds.
    locked: [(u64, u64); 2],
}

static STATE: Mutex<State> = Mutex::new(State {
    seen: [0; PROBLEMS],
    sites: Vec::new(),
    beyond: 0,
    blocks: [Block { address: 0, bytes: 0, times: 0 }; BLOCKS],
    locked: [(0, 0); 2],
});

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[inline(always)]
pub(super) fn take(event: &Event<'_>) {
    if let Event::Returns(returning) = event
        && returning.status == SUCCESS
        && let Some(driver) = driver::driver()
    {
        copied(driver, returning);
    }
}

fn copied(driver: &Driver, returning: &Returning) {
    let Returning { copy, made, took_ns, .. } = *returning;
    let bytes = copy.bytes as u64;
    if made.towards == Towards::Unknown || bytes == 0 || (bytes > TINY_MAX && bytes < LOCK_MIN) {
        return;
    }
    let out = made.towards == Towards::Out;
    let host = if bytes >= LOCK_MIN { memory(driver, copy, made.host) } else { made.host };
    let Some((mut problem, step)) = state().sort(returning, host) else { return };
    // Whatever the call's name says, the driver waits for copies into ordinary memory. Of tiny ones only samples are asked about.
    if problem == Problem::Tiny && out && memory(driver, copy, made.host) == Host::Ordinary {
        problem = Problem::Blocking;
    }
    let Some((address, name)) = site() else { return };
    let site = Site { problem, call: copy.call, address, name, copies: step, bytes, took: took_ns };
    state().add(site);
}

/// What the host's end of a copy is; asks the driver unless that is known already.
fn memory(driver: &Driver, copy: Copy, known: Host) -> Host {
    if matches!(known, Host::Ordinary | Host::PageLocked) {
        return known;
    }
    let _relaxed = Relaxed::new(driver);
    let host = copy.host();
    if driver::is_ordinary(driver, host, copy.bytes) {
        Host::Ordinary
    } else if driver::pinned(driver, host, copy.bytes).is_some() {
        Host::PageLocked
    } else {
        known
    }
}

impl State {
    /// The problem of a copy, and how many copies of that problem its sample stands for; `None` = none, or no sample.
    fn sort(&mut self, returning: &Returning, host: Host) -> Option<(Problem, u64)> {
        let Returning { copy, made, took_ns, .. } = *returning;
        let (bytes, out) = (copy.bytes as u64, made.towards == Towards::Out);
        let problem = if bytes <= TINY_MAX {
            if out && copy.call.waits() { Problem::Blocking } else { Problem::Tiny }
        } else if host == Host::Ordinary {
            let again = self.again(copy.host().addr(), bytes);
            if !again && bytes < BULK_MIN {
                return None;
            }
            if again { Problem::Repeated } else { Problem::Ordinary }
        } else {
            // The time of a call that does not wait says nothing of the copy.
            if host == Host::PageLocked && bytes >= BULK_MIN && copy.call.waits() && made.became == Became::PassedOn {
                let (sum, took) = &mut self.locked[usize::from(out)];
                (*sum, *took) = (sum.saturating_add(bytes), took.saturating_add(took_ns));
            }
            return None;
        };
        let seen = &mut self.seen[problem as usize];
        *seen += 1;
        let step = (seen.next_power_of_two() / ALL).max(1);
        (*seen).is_multiple_of(step).then_some((problem, step))
    }

    /// Whether a block of memory has been copied again and again.
    fn again(&mut self, address: usize, bytes: u64) -> bool {
        let block = &mut self.blocks[(address >> 6) % BLOCKS];
        if (block.address, block.bytes) != (address, bytes) {
            *block = Block { address, bytes, times: 0 };
        }
        block.times = block.times.saturating_add(1);
        block.times >= AGAIN
    }

    /// Adds a sample: what one copy was, with the number of copies that it stands for.
    fn add(&mut self, sample: Site) {
        let same =
            |site: &Site| (site.problem, site.call, site.address) == (sample.problem, sample.call, sample.address);
        let step = sample.copies;
        let at = match self.sites.iter().position(same) {
            Some(at) => at,
            None if self.sites.len() < SITES_MAX => {
                let Site { problem, call, address, name, .. } = sample;
                self.sites.push(Site { problem, call, address, name, copies: 0, bytes: 0, took: 0 });
                self.sites.len() - 1
            }
            None => return self.beyond += 1,
        };
        let site = &mut self.sites[at];
        site.copies = site.copies.saturating_add(step);
        site.bytes = site.bytes.saturating_add(sample.bytes.saturating_mul(step));
        site.took = site.took.saturating_add(sample.took.saturating_mul(step));
    }

    fn findings(&self) -> Vec<LintFinding> {
        let worth = |site: &&Site| match site.problem {
            Problem::Tiny => site.copies >= TINY_MANY,
            Problem::Blocking => site.copies >= RESULTS_MANY,
            Problem::Ordinary | Problem::Repeated => true,
        };
        let finding = |site: &Site| LintFinding {
            problem: site.problem,
            site: site.name.clone(),
            call: site.call,
            copies: site.copies,
            bytes: Bytes(site.bytes),
            took: Nanos(site.took),
            gain: self.gain(site),
        };
        let mut findings: Vec<LintFinding> = self.sites.iter().filter(worth).map(finding).collect();
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.took));
        findings
    }

    /// How much shorter the copies of a place would have been at the rate of this run's page-locked copies; `None` = there are none,
    /// or the problem is another.
    fn gain(&self, site: &Site) -> Option<Nanos> {
        if !matches!(site.problem, Problem::Ordinary | Problem::Repeated) {
            return None;
        }
        let out = matches!(site.call, Call::Out | Call::OutAsync);
        let (bytes, took) = self.locked[usize::from(out)];
        let needs = u128::from(site.bytes) * u128::from(took) / u128::from((bytes > 0).then_some(bytes)?);
        Some(Nanos(site.took.saturating_sub(u64::try_from(needs).unwrap_or(u64::MAX))))
    }
}

/// The first caller that belongs neither to CUDA nor to Headway: its address, and its library, function and offset.
fn site() -> Option<(usize, String)> {
    let mut frames = [std::ptr::null_mut::<c_void>(); FRAMES];
    // SAFETY: there is room for that many addresses.
    let count = unsafe { libc::backtrace(frames.as_mut_ptr(), FRAMES as c_int) };
    let ours = about(site as *const c_void)?.dli_fbase;
    for frame in frames.iter().take(usize::try_from(count).unwrap_or(0)) {
        // A return address may lie behind the end of the function that called.
        let address = frame.wrapping_byte_sub(1);
        let Some(about) = about(address) else { return Some((address as usize, format!("{:#x}", address as usize))) };
        let path = text(about.dli_fname);
        let name = path.rsplit('/').next().unwrap_or_default();
        if about.dli_fbase == ours || CUDA.iter().any(|cuda| name.starts_with(cuda)) {
            continue;
        }
        let (function, start) = match text(about.dli_sname) {
            function if function.is_empty() => (String::new(), about.dli_fbase),
            function => (format!("({function})"), about.dli_saddr),
        };
        let offset = (address as usize).wrapping_sub(start as usize);
        return Some((address as usize, format!("{name}{function}+{offset:#x}")));
    }
    None
}

fn about(address: *const c_void) -> Option<libc::Dl_info> {
    // SAFETY: all-zero bytes are a valid `Dl_info`.
    let mut about: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is only a number to the call; `about` is valid for it to write.
    (unsafe { libc::dladdr(address, &raw mut about) } != 0).then_some(about)
}

/// A text of the loader; empty if there is none.
fn text(place: *const std::ffi::c_char) -> String {
    if place.is_null() {
        return String::new();
    }
    // SAFETY: the loader gives texts that end in zero, of libraries that are loaded.
    unsafe { CStr::from_ptr(place) }.to_string_lossy().into_owned()
}

/// At exit. It never waits: `exit` may have been called by a signal handler that interrupted this module.
pub(super) extern "C" fn finish() {
    if attention::is_off() {
        return;
    }
    let Ok(state) = STATE.try_lock() else { return };
    let (findings, beyond) = (state.findings(), state.beyond);
    drop(state);
    let mut text = String::new();
    for finding in &findings {
        let LintFinding { problem, site, call, copies, bytes, took, gain } = finding;
        let (problem, remedy) = match problem {
            Problem::Ordinary => ("large copies of ordinary memory", "page-locked memory"),
            Problem::Repeated => ("the same ordinary memory copied again and again", "page-locking it once"),
            Problem::Tiny => ("many tiny copies", "one larger copy"),
            Problem::Blocking => ("small results waited for again and again", "asking for several at once, or later"),
        };
        let gain = gain.map_or_else(
            || "not known from this run".to_owned(),
            |gain| format!("about {gain}, at the rate of this run's page-locked copies"),
        );
        let _ = writeln!(text, "  {problem}: {} at {site}", call.name());
        let _ = writeln!(text, "    about {copies} copies of {bytes} in {took}; gained by {remedy}: {gain}");
    }
    if findings.is_empty() {
        text.push_str("  none was found\n");
    }
    if beyond > 0 {
        let _ = writeln!(text, "  {beyond} samples of further places have no line of their own");
    }
    print(&format!("headway: copies of process {} that lose time\n{text}", std::process::id()));
    findings.into_iter().for_each(log::found);
}
