//! A page in shared memory through which the guests of one user announce bulk copies to each other.
//!
//! It is System V shared memory: a mapped file could be shortened by another process, and `/dev/shm` can be full when a page of it is
//! first used. Both would raise SIGBUS in the guest.
//!
//! For each GPU it holds a time on the monotonic clock until which bulk copies are expected on the engine. A guest that
//! queues one moves the time on. A guest that dies leaves nothing behind: the time passes. The page is a hint: a wrong
//! time makes a small copy go by a kernel or by the engine, and both are right.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::attention;

/// Places on the page. GPUs whose UUIDs share one count as one.
pub(crate) const PLACES: usize = 64;
const PAGE_BYTES: usize = 4096;
/// The page's key, combined with the number of the user.
const KEY: libc::key_t = 0x4857_4755;
/// What a bulk copy moves in a second at least, on PCIe 4 and later: an estimate that errs towards "still there".
const BYTES_PER_S: u64 = 20_000_000_000;
/// Longer times are not believed.
const AHEAD_MAX_NS: u64 = 10_000_000_000;

struct Page(*mut AtomicU64);

// SAFETY: the page is shared memory of atomics that stays mapped until the process ends.
unsafe impl Send for Page {}
// SAFETY: the page is shared memory of atomics that stays mapped until the process ends.
unsafe impl Sync for Page {}

static PAGE: OnceLock<Option<Page>> = OnceLock::new();

/// Maps the user's page if the system gives it.
pub(crate) fn begin() {
    PAGE.get_or_init(map);
}

fn map() -> Option<Page> {
    // SAFETY: the call has no argument and cannot fail.
    let user = unsafe { libc::geteuid() };
    // SAFETY: the call has no pointers.
    let id = unsafe { libc::shmget(KEY ^ user as libc::key_t, PAGE_BYTES, libc::IPC_CREAT | 0o600) };
    if id < 0 || !is_private(id, user) {
        return None;
    }
    // SAFETY: the system chooses the place, where nothing else is.
    let page = unsafe { libc::shmat(id, std::ptr::null(), 0) };
    (page.addr() as isize != -1).then_some(Page(page.cast()))
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

/// The place of a GPU.
pub(crate) fn place(uuid: &[u8; 16]) -> usize {
    uuid.iter().fold(0usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(usize::from(*byte))) % PLACES
}

fn until(place: usize) -> Option<&'static AtomicU64> {
    let page = PAGE.get()?.as_ref()?;
    // SAFETY: there are `PLACES` words on the page, which stays mapped; atomics may be shared between processes.
    Some(unsafe { &*page.0.add(place % PLACES) })
}

/// The monotonic clock, which no call of the guest changes.
pub(crate) fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for the call to write.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

/// Until when this process's own bulk copies are expected on the engine, reckoned as on the page.
static OWN_UNTIL: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];

/// A bulk copy of `bytes` is queued behind those that are expected already.
pub(crate) fn announce(place: usize, bytes: usize) {
    if attention::options().alone {
        return;
    }
    let (now, takes) = (now_ns(), (bytes as u64).saturating_mul(1_000) / (BYTES_PER_S / 1_000_000));
    for until in [Some(&OWN_UNTIL[place % PLACES]), until(place)].into_iter().flatten() {
        let _ = until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |before| {
            let before = if before > now.saturating_add(AHEAD_MAX_NS) { now } else { before.max(now) };
            Some(before.saturating_add(takes))
        });
    }
}

/// Whether no bulk copy of this process was expected on the engine since `ns`.
pub(crate) fn has_been_free_since(place: usize, ns: u64) -> bool {
    OWN_UNTIL[place % PLACES].load(Ordering::Relaxed) < ns
}

/// Whether a bulk copy of another guest is expected to be on the engine: the page has more than this process has announced.
pub(crate) fn is_busy(place: usize) -> bool {
    let Some(until) = until(place).map(|until| until.load(Ordering::Relaxed)) else { return false };
    // Most programs never have a neighbour: then the clock is not read.
    let own = OWN_UNTIL[place % PLACES].load(Ordering::Relaxed);
    until != 0 && (1..=AHEAD_MAX_NS).contains(&until.saturating_sub(own.max(now_ns())))
}
