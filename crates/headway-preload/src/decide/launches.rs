//! Launches of kernels and graphs, held to the depth that `--depth` gives: a context has at most so many under way, and begins none while a
//! kernel with a promise of another program is on its GPU. A job of that program then waits for few launches and not for a queue of them.
//!
//! Behind each launch an event is recorded on its stream, which tells when it has ended. All waits are bounded, and no lock is held in them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use headway::guest::board::{Board, BoardGpu, PROMISED_KERNEL_MAX};
use headway_core::units::Nanos;

use crate::base::attention;
use crate::base::driver::{self, Context, Driver, NOT_READY, Relaxed, SUCCESS, Status, Stream, driver};
use crate::base::neighbours::now_ns;
use crate::base::wait::wait_until;
use crate::observers::{Event, tell};

/// How long a launch waits for those before it. A program whose launches wait for something that it does only later goes on then.
const DEPTH_WAIT_MAX: Duration = Duration::from_secs(10);

/// The launches of one context. Events belong to the context and go with it, so none is destroyed here.
struct HeldContext {
    context: Context,
    device: i32,
    gpu: Option<BoardGpu>,
    places: Box<[LaunchPlace]>,
    /// A launch has waited for the longest time: as long as no place is free, none waits any more.
    is_stuck: AtomicBool,
    /// It is about to be destroyed, and nobody asks for its events any more.
    is_gone: AtomicBool,
}

/// A place of one launch under way.
#[derive(Default)]
struct LaunchPlace {
    /// A thread looks at it, or launches.
    is_taken: AtomicBool,
    /// Recorded behind the last launch; 0 = there was none.
    event: AtomicUsize,
}

static CONTEXTS: Mutex<Vec<Arc<HeldContext>>> = Mutex::new(Vec::new());

fn contexts() -> MutexGuard<'static, Vec<Arc<HeldContext>>> {
    CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A launch into `stream`; `real` is the driver's own call.
pub(crate) fn launch(stream: Stream, real: impl FnOnce() -> Status) -> Status {
    let Some(depth) = attention::options().depth.filter(|_| !attention::is_off()) else { return real() };
    let Some(driver) = driver() else { return real() };
    let relaxed = Relaxed::new(driver);
    // What is recorded is launched later, with its graph.
    let held = if driver::captures(driver, stream) { None } else { current(driver, depth) };
    let Some(held) = held else {
        drop(relaxed);
        return real();
    };
    let place = held.wait(driver);
    drop(relaxed);
    let status = real();
    if let Some(place) = place
        && status == SUCCESS
        && !held.is_gone.load(Ordering::Relaxed)
    {
        place.0.launched(driver, stream);
    }
    status
}

/// Contexts that are about to be destroyed.
pub(crate) fn forget(context: Context) {
    forget_if(|held| held.context == context);
}

/// Any of the contexts may be about to be destroyed.
pub(crate) fn forget_all() {
    forget_if(|_| true);
}

/// Contexts of a device that may be about to be destroyed.
pub(crate) fn forget_device(device: i32) {
    forget_if(|held| held.device == device);
}

fn forget_if(goes: impl Fn(&HeldContext) -> bool) {
    if attention::is_off() {
        return;
    }
    contexts().retain(|held| {
        let is_gone = goes(held);
        held.is_gone.store(is_gone, Ordering::Relaxed);
        !is_gone
    });
}

/// What is kept for the context of this thread.
fn current(driver: &Driver, depth: u32) -> Option<Arc<HeldContext>> {
    let context = driver::current_context(driver)?;
    let find = |known: &[Arc<HeldContext>]| known.iter().find(|held| held.context == context).cloned();
    let known = find(&contexts());
    if known.is_some() {
        return known;
    }
    let device = driver::current_device(driver)?;
    let held = Arc::new(HeldContext {
        context,
        device,
        gpu: driver::uuid(driver, device),
        places: (0..depth).map(|_| LaunchPlace::default()).collect(),
        is_stuck: AtomicBool::new(false),
        is_gone: AtomicBool::new(false),
    });
    let mut known = contexts();
    find(&known).or_else(|| {
        known.push(Arc::clone(&held));
        Some(held)
    })
}

impl HeldContext {
    /// Waits until a launch may begin; its place, if it has one.
    fn wait(&self, driver: &Driver) -> Option<TakenPlace<'_>> {
        let mut waited = Duration::ZERO;
        let mut place = self.take(driver);
        if place.is_none() && !self.is_stuck.load(Ordering::Relaxed) {
            waited = wait_until(DEPTH_WAIT_MAX, || {
                place = self.take(driver);
                place.is_some() || self.is_stuck.load(Ordering::Relaxed)
            });
        }
        self.is_stuck.store(place.is_none(), Ordering::Relaxed);
        if place.is_none() {
            tell(Event::LaunchNotHeld);
        }
        if self.must_make_way() {
            waited += wait_until(Duration::from_nanos(PROMISED_KERNEL_MAX.0), || !self.must_make_way());
        }
        if !waited.is_zero() {
            tell(Event::LaunchHeld(waited));
        }
        place
    }

    /// A place whose launch has ended.
    fn take(&self, driver: &Driver) -> Option<TakenPlace<'_>> {
        self.places.iter().find_map(|place| place.take(driver, &self.is_gone))
    }

    /// Whether another program has a kernel with a promise on this GPU.
    fn must_make_way(&self) -> bool {
        let board = if attention::options().alone { None } else { Board::of_user() };
        let sees = |gpu: &BoardGpu| board.is_some_and(|board| board.has_promised_kernel(gpu, || Nanos(now_ns())));
        self.gpu.as_ref().is_some_and(sees)
    }
}

impl LaunchPlace {
    fn take(&self, driver: &Driver, is_gone: &AtomicBool) -> Option<TakenPlace<'_>> {
        if self.is_taken.swap(true, Ordering::Acquire) {
            return None;
        }
        let taken = TakenPlace(self);
        let event = self.event.load(Ordering::Relaxed);
        let asks = event != 0 && !is_gone.load(Ordering::Relaxed);
        // An error is the program's, which meets it in its own call.
        // SAFETY: the event is ours, of the current context, which nobody destroys before it is gone.
        let is_under_way = asks && unsafe { (driver.cuEventQuery)(driver::handle(event)) } == NOT_READY;
        (!is_under_way).then_some(taken)
    }

    /// The launch was queued. Without an event behind it, it counts as ended.
    fn launched(&self, driver: &Driver, stream: Stream) {
        let _relaxed = Relaxed::new(driver);
        if self.event.load(Ordering::Relaxed) == 0 {
            let mut event = std::ptr::null_mut();
            // SAFETY: `event` is valid for the call to write.
            let status = unsafe { (driver.cuEventCreate)(&raw mut event, driver::EVENT_WITHOUT_TIME) };
            self.event.store(if status == SUCCESS { event.expose_provenance() } else { 0 }, Ordering::Relaxed);
        }
        let event = self.event.load(Ordering::Relaxed);
        if event != 0 {
            // SAFETY: the event is ours; the stream is the caller's, which has just used it.
            unsafe { (driver.cuEventRecord)(driver::handle(event), driver::handle(stream)) };
        }
    }
}

/// A place that no other thread looks at, until this is dropped.
struct TakenPlace<'a>(&'a LaunchPlace);

impl Drop for TakenPlace<'_> {
    fn drop(&mut self) {
        self.0.is_taken.store(false, Ordering::Release);
    }
}
