//! `--pin-once`: which of the program's own memory Headway keeps page-locked, so that copies of it go by the engine alone.
//!
//! To the driver such memory is page-locked. The program must not see that: asynchronous copies would read its memory after the call, and after
//! `munmap` the driver would go on using the old pages. So only copies that Headway makes use a pin, and each of them asks first whether the pages are
//! still the program's ([`PageWatch`]). **Every other call that could see the memory ends the pin first** ([`give_up`]), and the memory is not
//! pinned again. What asks about an address gets the answer for ordinary memory ([`ordinary_instead`]).
//!
//! Two locks: that of the watch, under which nothing is called, and [`registry`], under which the driver is not called: it may page-lock and release
//! only when no kernel runs, and a kernel may wait for another thread of the program. So a thread of the program waits here only for another
//! one that copies, pins or releases the *same* memory, and a copy waits for its stream before it takes a pin. The thread that reads the kernel's
//! events takes only the watch's lock. A range is pinned only by a thread that is the only one within a call of the program's ([`enter`]);
//! calls that begin later find it in the registry: none that began with ordinary memory goes on with page-locked memory.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

use headway::guest::{PageLoss, PageWatch, RANGES_MAX, WatchId, WatchRefusal, page_bytes, spawn};
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
/// Ranges that the driver has page-locked for us or is asked to, also those whose pages are gone.
static PINS: AtomicUsize = AtomicUsize::new(0);
/// Bytes of them, for the statistics.
pub(crate) static BYTES: AtomicUsize = AtomicUsize::new(0);
/// Ranges that were pinned, and that another call or a change of mappings has ended.
pub(crate) static PINNED: AtomicUsize = AtomicUsize::new(0);
pub(crate) static ENDED: AtomicUsize = AtomicUsize::new(0);
/// Why nothing is pinned, or nothing more.
pub(crate) static ABSENT: OnceLock<String> = OnceLock::new();

/// Why a range is not page-locked, or no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Seldom,
    Busy,
    Budget,
    TooMany,
    Beside,
    OtherMemory,
    WasGivenBack,
    NotWatched,
    Driver,
    Changes,
    KeptOut,
    Over,
    Unmapped,
    GivenBack,
    Closed,
    Copied,
    Asked,
    Kept,
    Context,
}

impl Why {
    /// In the order of the values; the first ones are of ranges that are not page-locked, by the last reason, the other ones of ranges that were.
    pub(crate) const NAMES: [&str; 19] = [
        "not page-locked: copied too seldom, or it would not pay",
        "not page-locked: another thread was within a call of the driver",
        "not page-locked: the size that `--pin-once` allows is used up",
        "not page-locked: too many ranges are",
        "not page-locked: a part of it is, for other copies",
        "not page-locked: not private anonymous memory that may be written",
        "not page-locked: given back by `madvise` before",
        "not page-locked: the kernel does not tell of it (does the program watch it?)",
        "not page-locked: the driver refused",
        "not page-locked: it changed meanwhile",
        "not page-locked: used in other ways, too",
        "not page-locked: nothing is any more, for the reason above",
        "released: unmapped, moved or mapped over",
        "released: given back by `madvise`",
        "released: the program has closed the file by which the kernel tells",
        "released: copied by a call that Headway left to the driver",
        "released: the program asked the driver about it",
        "released: page-locked or recorded by the program itself",
        "released: the program ended a context, or what nothing tells of began",
    ];
}

/// Ranges by what became of them.
pub(crate) static RANGES: [AtomicUsize; Why::NAMES.len()] = [const { AtomicUsize::new(0) }; Why::NAMES.len()];
/// What the driver said when it last refused.
pub(crate) static REFUSED_WITH: AtomicI32 = AtomicI32::new(0);

/// A range that was copied.
#[derive(Default)]
struct Seen {
    times: u32,
    why: Option<Why>,
}

struct Pin {
    range: Range<usize>,
    watch: WatchId,
    context: Context,
    /// Copies that use it now, or the thread that pins or releases it.
    users: usize,
    /// Copies may use it.
    is_ready: bool,
}

struct Registry {
    watch: Option<Arc<PageWatch>>,
    pins: Vec<Pin>,
    /// By start and end.
    seen: HashMap<(usize, usize), Seen>,
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

/// A call of the program that may reach the driver. While it lasts, no other thread begins to pin.
pub(crate) struct Call;

/// A call begins.
#[inline]
pub(crate) fn enter() -> Option<Call> {
    if !ON.load(Ordering::Relaxed) || attention::is_off() {
        return None;
    }
    CALLS.fetch_add(1, Ordering::SeqCst);
    Some(Call)
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
        (has_all && pin.is_ready && met.next().is_none()).then_some(at)
    }

    fn position(&self, watch: WatchId) -> Option<usize> {
        self.pins.iter().position(|pin| pin.watch == watch)
    }

    fn holds(&self, at: usize) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.holds(self.pins[at].watch))
    }

    /// How a pin has lost its pages.
    fn lost(&self, at: usize) -> Option<Why> {
        let lost = self.watch.as_ref().and_then(|watch| watch.lost(self.pins[at].watch));
        lost.map(|loss| match loss {
            PageLoss::Unmapped => Why::Unmapped,
            PageLoss::GivenBack => Why::GivenBack,
            PageLoss::Closed => Why::Closed,
        })
    }

    fn may_pin(&self, pages: &Range<usize>) -> Result<(), Why> {
        let budget = usize::try_from(attention::options().pin_once.0).unwrap_or(usize::MAX);
        if self.is_over {
            return Err(Why::Over);
        }
        if self.kept_out.iter().any(|out| meet(out, pages)) {
            return Err(Why::KeptOut);
        }
        if self.pins.iter().any(|pin| meet(&pin.range, pages)) {
            return Err(Why::Beside);
        }
        if self.pins.len() >= RANGES_MAX {
            return Err(Why::TooMany);
        }
        let fits = BYTES.load(Ordering::Relaxed).saturating_add(pages.len()) <= budget;
        if fits { Ok(()) } else { Err(Why::Budget) }
    }

    /// A range was not pinned, or was.
    fn note(&mut self, range: &Range<usize>, why: Option<Why>) {
        let Some(seen) = self.seen.get_mut(&(range.start, range.end)) else { return };
        // What it was kept out for says more.
        if why == Some(Why::KeptOut) && seen.why.is_some_and(|why| why != Why::Seldom) {
            return;
        }
        if let Some(before) = std::mem::replace(&mut seen.why, why) {
            RANGES[before as usize].fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(why) = why {
            RANGES[why as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// From now on no page of `range` is pinned.
    fn keep_out(&mut self, range: Range<usize>) {
        match self.kept_out.iter_mut().find(|out| out.start <= range.end && range.start <= out.end) {
            Some(out) => *out = out.start.min(range.start)..out.end.max(range.end),
            None => self.kept_out.push(range),
        }
        if self.kept_out.len() > RANGES_MAX {
            self.end_for_good("the program uses too much memory in other ways, too");
        }
    }

    /// From now on nothing is pinned.
    fn end_for_good(&mut self, why: &str) {
        self.is_over = true;
        ABSENT.get_or_init(|| why.to_owned());
    }

    /// The watch, which begins now if it has not yet; `None` = nothing can be pinned.
    fn watch(&mut self, gpu_by_itself: bool) -> Option<Arc<PageWatch>> {
        if gpu_by_itself {
            // Its kernels may use pinned memory, and no call tells.
            self.end_for_good("the GPU uses ordinary memory by itself");
        } else if self.watch.is_none() {
            match begin_to_watch() {
                Ok(watch) => self.watch = Some(watch),
                Err(error) => self.end_for_good(&format!(
                    "`userfaultfd` is not to be had here ({error}); allow that system call in the container's seccomp profile"
                )),
            }
        }
        self.watch.clone().filter(|_| !self.is_over)
    }
}

/// Releases a pin that nobody uses; the lock is not held meanwhile.
fn release(mut registry: Locked, at: usize, why: Why) -> Locked {
    let Some(known) = registry.as_mut() else { return registry };
    let lost = known.lost(at);
    let pin = &mut known.pins[at];
    (pin.users, pin.is_ready) = (1, false);
    if lost.is_some() {
        // What comes to lie there is other memory, which may not last either.
        let copied = known.seen.iter_mut().filter(|((start, end), _)| meet(&(*start..*end), &pin.range));
        copied.for_each(|(_, seen)| seen.times = 0);
    }
    let (start, context, watch) = (pin.range.start, pin.context, pin.watch);
    drop(registry);
    if let Some(driver) = driver() {
        let _relaxed = Relaxed::new(driver);
        let before = driver::current_context(driver);
        driver::make_current(driver, context);
        // SAFETY: the range was registered by us, and no copy uses it.
        unsafe { (driver.cuMemHostUnregister)(address(start)) };
        driver::make_current(driver, before.unwrap_or_default());
    }
    ENDED.fetch_add(1, Ordering::Relaxed);
    RANGES[lost.unwrap_or(why) as usize].fetch_add(1, Ordering::Relaxed);
    remove(watch)
}

/// A range is not page-locked any more.
fn remove(watch: WatchId) -> Locked {
    let mut registry = registry();
    if let Some(known) = registry.as_mut()
        && let Some(at) = known.position(watch)
    {
        let pin = known.pins.swap_remove(at);
        known.watch.iter().for_each(|all| all.forget(watch));
        BYTES.fetch_sub(pin.range.len(), Ordering::Relaxed);
        PINS.fetch_sub(1, Ordering::SeqCst);
    }
    UNUSED.notify_all();
    registry
}

/// Releases what nobody uses and whose pages are gone.
fn release_changed() {
    let mut registry = registry();
    while let Some(known) = registry.as_ref()
        && let Some((at, why)) =
            (0..known.pins.len()).filter(|at| known.pins[*at].users == 0).find_map(|at| Some((at, known.lost(at)?)))
    {
        registry = release(registry, at, why);
    }
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
    let known = registry.as_mut()?;
    let key = (range.start, range.end);
    if !known.seen.contains_key(&key) && known.seen.len() >= SEEN_MAX {
        known.seen.clear();
    }
    let seen = known.seen.entry(key).or_default();
    let before = seen.times;
    seen.times = before.saturating_add(1);
    let holds = known.pin_for(&range).map(|at| known.holds(at));
    if holds == Some(true) {
        return Some(Repeats { before, is_pinned: true });
    }
    // What the driver would take for page-locked, and is not what was page-locked, goes first.
    let is_stale = |at: usize| meet(&known.pins[at].range, &range) && known.lost(at).is_some();
    if holds == Some(false) || (0..known.pins.len()).any(is_stale) {
        drop(registry);
        end(&range, Why::Unmapped);
        registry = self::registry();
    }
    let known = registry.as_mut()?;
    let may = known.may_pin(&pages);
    known.note(&range, Some(may.err().unwrap_or(Why::Seldom)));
    may.ok().map(|()| Repeats { before, is_pinned: false })
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
        if let Some(known) = registry.as_mut()
            && let Some(at) = known.position(self.watch)
        {
            known.pins[at].users -= 1;
            if known.lost(at).is_some() {
                wake_releases();
            }
        }
        UNUSED.notify_all();
    }
}

/// The pin for a copy of this memory, which is pinned now if it is not yet; `None` = it cannot be pinned, or not now. The holder waits for
/// nothing but copies of Headway's own.
pub(crate) fn lease(driver: &Driver, start: *const c_void, bytes: usize) -> Option<Lease> {
    let range = range_of(start, bytes);
    let mut registry = registry();
    let known = registry.as_mut()?;
    let Some(at) = known.pin_for(&range) else {
        drop(registry);
        let pinned = pin(driver, whole_pages(&range)?);
        if let Some(known) = self::registry().as_mut() {
            known.note(&range, pinned.as_ref().err().copied());
        }
        return pinned.ok();
    };
    if !known.holds(at) {
        return None;
    }
    let pin = &mut known.pins[at];
    pin.users += 1;
    Some(Lease { watch: pin.watch, pages: pin.range.start.max(range.start)..pin.range.end.min(range.end) })
}

/// Watches and page-locks whole pages.
fn pin(driver: &Driver, pages: Range<usize>) -> Result<Lease, Why> {
    if CALLS.load(Ordering::SeqCst) > 1 {
        return Err(Why::Busy);
    }
    let context = driver::current_context(driver).ok_or(Why::Driver)?;
    let device = driver::current_device(driver).ok_or(Why::Driver)?;
    let by_itself = driver::attribute(driver, device, driver::PAGEABLE_ACCESS).ok_or(Why::Driver)? != 0;
    let mut registry = registry();
    let known = registry.as_mut().ok_or(Why::Over)?;
    known.may_pin(&pages)?;
    let watch = known.watch(by_itself).ok_or(Why::Over)?;
    let id = match watch.watch(&pages) {
        Ok(id) => id,
        Err(refusal) => {
            known.keep_out(pages);
            return Err(match refusal {
                WatchRefusal::OtherMemory => Why::OtherMemory,
                WatchRefusal::GivenBack => Why::WasGivenBack,
                WatchRefusal::TooMany => Why::TooMany,
                WatchRefusal::Kernel => Why::NotWatched,
            });
        }
    };
    known.pins.push(Pin { range: pages.clone(), watch: id, context, users: 1, is_ready: false });
    BYTES.fetch_add(pages.len(), Ordering::Relaxed);
    PINS.fetch_add(1, Ordering::SeqCst);
    drop(registry);
    // A call that is counted after this finds the range in the registry, before it comes to the driver.
    let is_alone = CALLS.load(Ordering::SeqCst) == 1;
    let refused = is_alone.then(|| {
        // SAFETY: the program keeps the memory while its call lasts; afterwards the watch says whether it is still there.
        unsafe { (driver.cuMemHostRegister_v2)(address(pages.start), pages.len(), PORTABLE) }
    });
    let is_locked = refused == Some(SUCCESS);
    if is_locked && watch.holds(id) {
        PINNED.fetch_add(1, Ordering::Relaxed);
        if let Some(known) = self::registry().as_mut()
            && let Some(at) = known.position(id)
        {
            known.pins[at].is_ready = true;
        }
        return Ok(Lease { watch: id, pages });
    }
    if is_locked {
        // SAFETY: it was registered just now.
        unsafe { (driver.cuMemHostUnregister)(address(pages.start)) };
    }
    let mut registry = remove(id);
    match refused {
        None => Err(Why::Busy),
        Some(SUCCESS) => Err(Why::Changes),
        Some(status) => {
            REFUSED_WITH.store(status, Ordering::Relaxed);
            registry.iter_mut().for_each(|known| known.keep_out(pages.clone()));
            Err(Why::Driver)
        }
    }
}

/// The watch, and a thread that releases what has changed, since the watch's own may not call the driver.
fn begin_to_watch() -> std::io::Result<Arc<PageWatch>> {
    let releases = spawn("headway-unpin", || {
        loop {
            std::thread::park();
            if is_on() {
                release_changed();
            }
        }
    })?;
    RELEASES.get_or_init(|| releases.thread().clone());
    PageWatch::begin(wake_releases)
}

fn wake_releases() {
    if let Some(thread) = RELEASES.get() {
        thread.unpark();
    }
}

/// The driver is about to see this memory by a call that Headway does not make: it is ordinary memory from now on.
#[inline]
pub(crate) fn give_up(start: *const c_void, bytes: usize) {
    if PINS.load(Ordering::SeqCst) > 0 && is_on() {
        end(&range_of(start, bytes), Why::Copied);
    }
}

/// The driver is about to be asked about this address: it is one of ordinary memory from now on.
pub(crate) fn asked(start: *const c_void) {
    if PINS.load(Ordering::SeqCst) > 0 && is_on() {
        end(&range_of(start, 1), Why::Asked);
    }
}

/// The same of all memory, where it is not known which of it the call uses.
pub(crate) fn give_up_all() {
    give_up(std::ptr::null(), usize::MAX);
}

/// The contexts are about to be destroyed: the driver releases what they have.
pub(crate) fn release_all() {
    if PINS.load(Ordering::SeqCst) > 0 && is_on() {
        end(&(0..usize::MAX), Why::Context);
    }
}

/// Something keeps the address of this memory, and uses it when no call tells.
pub(crate) fn keep_out(start: *const c_void, bytes: usize) {
    if is_on() {
        let range = range_of(start, bytes);
        end(&range, Why::Kept);
        if let Some(registry) = registry().as_mut() {
            registry.keep_out(range);
        }
    }
}

/// Something keeps addresses that are not known, and uses them when no call tells.
pub(crate) fn stop() {
    if is_on() {
        if let Some(registry) = registry().as_mut() {
            registry.end_for_good("the program adds copies to graphs itself");
        }
        end(&(0..usize::MAX), Why::Context);
    }
}

/// Ends the pins of a range. What the program uses in other ways, too, is not pinned again while it is the same memory.
#[cold]
fn end(range: &Range<usize>, why: Why) {
    let for_good = matches!(why, Why::Copied | Why::Asked | Why::Kept);
    let mut registry = registry();
    while let Some(known) = registry.as_mut()
        && let Some(at) = known.pins.iter().position(|pin| meet(&pin.range, range))
    {
        if for_good && known.lost(at).is_none() {
            let pages = known.pins[at].range.clone();
            known.keep_out(pages);
        }
        // No other copy begins to use it.
        known.pins[at].is_ready = false;
        registry = if known.pins[at].users == 0 {
            release(registry, at, why)
        } else {
            UNUSED.wait(registry).unwrap_or_else(PoisonError::into_inner)
        };
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
