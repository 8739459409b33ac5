//! `--pin-once`: which of the program's own memory Headway keeps page-locked, so that copies of it go by the engine alone.
//!
//! To the driver such memory is page-locked. The program must not see that: asynchronous copies would read its memory after the call, and after
//! `munmap` the driver would go on using the old pages. So only copies that Headway makes use a pin, and each of them asks first whether the pages are
//! still the program's ([`PageWatch`]). **Every other call that could see the memory ends the pin first** ([`give_up`]), and the memory is not
//! pinned again. What asks about an address gets the answer for ordinary memory ([`ordinary_instead`]).
//!
//! Two locks: that of the watch, under which nothing is called, and [`registry`], under which the driver is called. The thread that reads the
//! kernel's events takes only the first. A range becomes pinned only while the thread that pins it is the only one within a call of the
//! program's ([`enter`]): no call that began with ordinary memory goes on with page-locked memory.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

use headway::guest::{PageWatch, RANGES_MAX, WatchId, page_bytes, spawn};
use headway_core::decisions::chooser::Repeats;

use crate::base::attention;
use crate::base::driver::{self, Context, Driver, Relaxed, SUCCESS, driver};

/// `CU_MEMHOSTREGISTER_PORTABLE`: for every context.
const PORTABLE: u32 = 1;
/// Ranges whose copies are counted; then the count begins anew.
const SEEN_MAX: usize = 8_192;

static ON: AtomicBool = AtomicBool::new(false);
/// Calls of the program that are under way here.
static CALLS: AtomicUsize = AtomicUsize::new(0);
static IS_PINNING: AtomicBool = AtomicBool::new(false);
/// Ranges that the driver has page-locked for us, also those whose pages are gone.
static PINS: AtomicUsize = AtomicUsize::new(0);
/// Bytes of them, for the statistics.
pub(crate) static BYTES: AtomicUsize = AtomicUsize::new(0);
/// Ranges that were pinned, and that another call or a change of mappings has ended.
pub(crate) static PINNED: AtomicUsize = AtomicUsize::new(0);
pub(crate) static ENDED: AtomicUsize = AtomicUsize::new(0);
/// Why nothing can be pinned.
pub(crate) static ABSENT: OnceLock<String> = OnceLock::new();

struct Pin {
    range: Range<usize>,
    watch: WatchId,
    context: Context,
    /// Copies that use it now.
    users: usize,
}

struct Registry {
    watch: Option<Arc<PageWatch>>,
    pins: Vec<Pin>,
    /// How often a range was copied.
    seen: HashMap<(usize, usize), u32>,
    /// What other calls have used, or could use at any time.
    kept_out: Vec<Range<usize>>,
    /// Nothing is pinned any more.
    is_over: bool,
}

static REGISTRY: Mutex<Option<Registry>> = Mutex::new(None);
static UNUSED: Condvar = Condvar::new();
/// The thread that releases pins whose pages are gone.
static RELEASES: OnceLock<Thread> = OnceLock::new();

type Locked = MutexGuard<'static, Option<Registry>>;

fn registry() -> Locked {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on memory may be pinned.
pub(crate) fn begin() {
    *registry() =
        Some(Registry { watch: None, pins: Vec::new(), seen: HashMap::new(), kept_out: Vec::new(), is_over: false });
    ON.store(true, Ordering::SeqCst);
}

fn is_on() -> bool {
    ON.load(Ordering::Relaxed) && !attention::is_off()
}

/// A call of the program that may reach the driver. While it lasts, nobody else pins.
pub(crate) struct Call;

/// A call begins.
#[inline]
pub(crate) fn enter() -> Option<Call> {
    if !ON.load(Ordering::Relaxed) { None } else { enter_beside_pins() }
}

#[cold]
fn enter_beside_pins() -> Option<Call> {
    if attention::is_off() {
        return None;
    }
    loop {
        CALLS.fetch_add(1, Ordering::SeqCst);
        if !IS_PINNING.load(Ordering::SeqCst) {
            return Some(Call);
        }
        CALLS.fetch_sub(1, Ordering::SeqCst);
        // Who pins holds the lock.
        drop(registry());
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        CALLS.fetch_sub(1, Ordering::SeqCst);
    }
}

fn meet(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

/// The pages that lie in a range as a whole: others may hold something else of the program's, too.
fn whole_pages(range: &Range<usize>) -> Option<Range<usize>> {
    let page = page_bytes();
    let start = range.start.checked_next_multiple_of(page)?;
    let end = range.end / page * page;
    (start < end).then_some(start..end)
}

fn range_of(address: *const c_void, bytes: usize) -> Range<usize> {
    address.addr()..address.addr().saturating_add(bytes)
}

impl Registry {
    /// The pin by which a copy of `range` can go: all whole pages of the copy are in it, and the copy meets no other.
    fn pin_for(&self, range: &Range<usize>) -> Option<usize> {
        let pages = whole_pages(range)?;
        let mut met = self.pins.iter().enumerate().filter(|(_, pin)| meet(&pin.range, range));
        let (at, pin) = met.next()?;
        let has_all = pin.range.start <= pages.start && pages.end <= pin.range.end;
        (has_all && met.next().is_none()).then_some(at)
    }

    fn holds(&self, at: usize) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.holds(self.pins[at].watch))
    }

    fn has_changed(&self, at: usize) -> bool {
        self.watch.as_ref().is_none_or(|watch| watch.has_changed(self.pins[at].watch))
    }

    fn may_pin(&self, pages: &Range<usize>) -> bool {
        let budget = usize::try_from(attention::options().pin_once.0).unwrap_or(usize::MAX);
        let fits = BYTES.load(Ordering::Relaxed).saturating_add(pages.len()) <= budget && self.pins.len() < RANGES_MAX;
        !self.is_over && fits && !self.kept_out.iter().any(|out| meet(out, pages))
    }

    /// From now on no page of `range` is pinned.
    fn keep_out(&mut self, range: Range<usize>) {
        match self.kept_out.iter_mut().find(|out| out.start <= range.end && range.start <= out.end) {
            Some(out) => *out = out.start.min(range.start)..out.end.max(range.end),
            None => self.kept_out.push(range),
        }
        self.is_over |= self.kept_out.len() > RANGES_MAX;
    }

    fn release(&mut self, at: usize) {
        let pin = self.pins.swap_remove(at);
        if let Some(watch) = &self.watch {
            watch.forget(pin.watch);
        }
        unregister(&pin);
        ENDED.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_sub(pin.range.len(), Ordering::Relaxed);
        PINS.fetch_sub(1, Ordering::SeqCst);
    }

    /// Releases what nobody uses and whose pages are gone.
    fn release_changed(&mut self) {
        for at in (0..self.pins.len()).rev() {
            if self.pins[at].users == 0 && self.has_changed(at) {
                self.release(at);
            }
        }
    }
}

fn unregister(pin: &Pin) {
    let Some(driver) = driver() else { return };
    let _relaxed = Relaxed::new(driver);
    let before = driver::current_context(driver);
    driver::make_current(driver, pin.context);
    // SAFETY: the range was registered by us, and no copy uses it.
    unsafe { (driver.cuMemHostUnregister)(address(pin.range.start)) };
    driver::make_current(driver, before.unwrap_or_default());
}

fn address(at: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(at)
}

/// What is known of earlier copies of this memory, and counts this one; `None` = it can never be pinned, as far as known.
pub(crate) fn repeats(start: *const c_void, bytes: usize) -> Option<Repeats> {
    if !is_on() {
        return None;
    }
    let range = range_of(start, bytes);
    let pages = whole_pages(&range)?;
    let mut registry = registry();
    let registry = registry.as_mut()?;
    // What the driver would take for page-locked, and is not what was page-locked, goes first.
    registry.release_changed();
    let key = (range.start, range.end);
    if !registry.seen.contains_key(&key) && registry.seen.len() >= SEEN_MAX {
        registry.seen.clear();
    }
    let times = registry.seen.entry(key).or_default();
    let before = *times;
    *times = before.saturating_add(1);
    if let Some(at) = registry.pin_for(&range) {
        if registry.holds(at) {
            return Some(Repeats { before, is_pinned: true });
        }
        if registry.pins[at].users == 0 {
            registry.release(at);
        }
    }
    registry.may_pin(&pages).then_some(Repeats { before, is_pinned: false })
}

/// A pin that a copy uses.
pub(crate) struct Lease {
    watch: WatchId,
    /// What of the copy is page-locked.
    pub(crate) pages: Range<usize>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut registry = registry();
        let Some(registry) = registry.as_mut() else { return };
        if let Some(pin) = registry.pins.iter_mut().find(|pin| pin.watch == self.watch) {
            pin.users -= 1;
        }
        registry.release_changed();
        UNUSED.notify_all();
    }
}

/// The pin for a copy of this memory, which is pinned now if it is not yet; `None` = it cannot be pinned, or not now.
pub(crate) fn lease(driver: &Driver, start: *const c_void, bytes: usize) -> Option<Lease> {
    let range = range_of(start, bytes);
    let mut registry = registry();
    let registry = registry.as_mut()?;
    let at = match registry.pin_for(&range) {
        Some(at) => registry.holds(at).then_some(at)?,
        None => pin(driver, registry, whole_pages(&range)?)?,
    };
    let pin = &mut registry.pins[at];
    pin.users += 1;
    let pages = pin.range.start.max(range.start)..pin.range.end.min(range.end);
    Some(Lease { watch: pin.watch, pages })
}

fn pin(driver: &Driver, registry: &mut Registry, pages: Range<usize>) -> Option<usize> {
    if registry.pins.iter().any(|pin| meet(&pin.range, &pages)) || !registry.may_pin(&pages) {
        return None;
    }
    let watch = match &registry.watch {
        Some(watch) => Arc::clone(watch),
        None => match begin_to_watch() {
            Ok(watch) => Arc::clone(registry.watch.insert(watch)),
            Err(error) => {
                registry.is_over = true;
                ABSENT.get_or_init(|| error.to_string());
                return None;
            }
        },
    };
    let context = driver::current_context(driver)?;
    IS_PINNING.store(true, Ordering::SeqCst);
    let pinned = if CALLS.load(Ordering::SeqCst) == 1 { register(driver, &watch, &pages) } else { Err(true) };
    IS_PINNING.store(false, Ordering::SeqCst);
    let watch = match pinned {
        Ok(watch) => watch,
        Err(is_passing) => {
            if !is_passing {
                registry.keep_out(pages);
            }
            return None;
        }
    };
    BYTES.fetch_add(pages.len(), Ordering::Relaxed);
    PINNED.fetch_add(1, Ordering::Relaxed);
    PINS.fetch_add(1, Ordering::SeqCst);
    registry.pins.push(Pin { range: pages, watch, context, users: 0 });
    Some(registry.pins.len() - 1)
}

/// Watches and page-locks a range; whether a refusal is a passing one.
fn register(driver: &Driver, watch: &PageWatch, pages: &Range<usize>) -> Result<WatchId, bool> {
    let id = watch.watch(pages).map_err(|_| false)?;
    // SAFETY: the program keeps the memory while its call lasts; afterwards the watch says whether it is still there.
    let status = unsafe { (driver.cuMemHostRegister_v2)(address(pages.start), pages.len(), PORTABLE) };
    if status != SUCCESS {
        watch.forget(id);
        return Err(false);
    }
    if watch.holds(id) {
        return Ok(id);
    }
    watch.forget(id);
    // SAFETY: it was registered just now.
    unsafe { (driver.cuMemHostUnregister)(address(pages.start)) };
    Err(true)
}

/// The watch, and a thread that releases what has changed, since the watch's own may not call the driver.
fn begin_to_watch() -> std::io::Result<Arc<PageWatch>> {
    let releases = spawn("headway-unpin", || {
        loop {
            std::thread::park();
            if is_on()
                && let Some(registry) = registry().as_mut()
            {
                registry.release_changed();
            }
        }
    })?;
    RELEASES.get_or_init(|| releases.thread().clone());
    PageWatch::begin(|| {
        if let Some(thread) = RELEASES.get() {
            thread.unpark();
        }
    })
}

/// The driver is about to see this memory by a call that Headway does not make: it is ordinary memory from now on.
#[inline]
pub(crate) fn give_up(start: *const c_void, bytes: usize) {
    if PINS.load(Ordering::SeqCst) > 0 && is_on() {
        end(&range_of(start, bytes), true);
    }
}

/// The same of all memory, where it is not known which of it the call uses.
pub(crate) fn give_up_all() {
    give_up(std::ptr::null(), usize::MAX);
}

/// The contexts are about to be destroyed: the driver releases what they have.
pub(crate) fn release_all() {
    if PINS.load(Ordering::SeqCst) > 0 && is_on() {
        end(&(0..usize::MAX), false);
    }
}

/// Something keeps the address of this memory, and uses it when no call tells.
pub(crate) fn keep_out(start: *const c_void, bytes: usize) {
    if is_on() {
        let range = range_of(start, bytes);
        end(&range, true);
        if let Some(registry) = registry().as_mut() {
            registry.keep_out(range);
        }
    }
}

/// Something keeps addresses that are not known, and uses them when no call tells.
pub(crate) fn stop() {
    if is_on() {
        if let Some(registry) = registry().as_mut() {
            registry.is_over = true;
        }
        end(&(0..usize::MAX), false);
    }
}

/// Ends the pins of a range; `for_good` = the memory, where it is still the same, is not pinned again.
#[cold]
fn end(range: &Range<usize>, for_good: bool) {
    let mut registry = registry();
    loop {
        let Some(known) = registry.as_mut() else { return };
        let Some(at) = known.pins.iter().position(|pin| meet(&pin.range, range)) else { return };
        if known.pins[at].users > 0 {
            // A copy of another thread, which ends by itself.
            registry = UNUSED.wait(registry).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        if for_good && !known.has_changed(at) {
            let pages = known.pins[at].range.clone();
            known.keep_out(pages);
        }
        known.release(at);
    }
}

/// The address to ask the driver about instead of `asked`: what we have pinned is ordinary memory to the program.
pub(crate) fn ordinary_instead(asked: u64) -> u64 {
    static ORDINARY: u8 = 0;
    if PINS.load(Ordering::SeqCst) == 0 || !is_on() {
        return asked;
    }
    let at = usize::try_from(asked).unwrap_or(usize::MAX);
    let registry = registry();
    let is_ours = registry.as_ref().is_some_and(|registry| registry.pins.iter().any(|pin| pin.range.contains(&at)));
    if is_ours { (&raw const ORDINARY).addr() as u64 } else { asked }
}
