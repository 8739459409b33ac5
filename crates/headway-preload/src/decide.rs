//! Layer 2, what becomes of a copy, or of a launch ([`launches`]). A copy is passed on, made by several threads (*fast*), by a kernel in its own stream (*aside*), or
//! queued in chunks (*yield*).

pub(crate) mod batch;
pub(crate) mod launches;

use std::ffi::c_void;
use std::ops::ControlFlow::{self, Break, Continue};

use headway::guest::board::Behind;
use headway_core::decisions::engine_line::FlowClass;
use headway_core::files::guest::{AsideMode, GuestClass};
use headway_core::files::guest_log::{BULK_MIN, Became, DriverReason, Host, Towards};

use crate::base::attention::{self, BULK, NEIGHBOURS, NEW, OBSERVED, PINS};
use crate::base::context::{self, BulkBefore, Prepared};
use crate::base::copy::{Copy, Made};
use crate::base::driver::{self, Driver, Relaxed, SUCCESS, Status, driver};
use crate::base::{link, neighbours, pins};
use crate::methods::fast::{self, Answer, Timing};
use crate::methods::{aside, chunks};
use crate::observers::{self, Accelerated, Event, Passed, tell};

/// A copy whose call may be one into a GPU or out of it; `real` is the driver's own call.
#[inline]
pub(crate) fn copy(copy: Copy, real: impl FnOnce() -> Status) -> Status {
    let reasons = attention::reasons();
    let is_looked_at = if copy.towards == Towards::In {
        reasons & (OBSERVED | NEW | PINS) != 0 || attention::is_large_in(copy.bytes)
    } else {
        reasons != 0 || attention::is_large(copy.bytes)
    };
    if is_looked_at { look(copy, reasons, real) } else { real() }
}

/// Makes ready what copies in the current context will need, if that is new. To page-lock memory and to load a kernel, the driver waits for kernels
/// that run, and those may wait for what the program does only after its first copy. So this comes before the program's first kernel.
pub(crate) fn prepare() {
    let (is_new, expects) = (attention::reasons() & NEW != 0, fast::expects());
    if !(is_new || expects) || attention::is_off() {
        return;
    }
    let Some(driver) = driver() else { return };
    let _relaxed = Relaxed::new(driver);
    if is_new {
        context::prepare_new(driver);
    }
    if expects {
        fast::prepare(driver);
    }
}

/// A copy for which nothing is ever done.
#[inline]
pub(crate) fn pass_on(what: Passed, bytes: usize, real: impl FnOnce() -> Status) -> Status {
    tell(Event::PassedOn(what, bytes));
    real()
}

#[cold]
fn look(copy: Copy, reasons: u32, real: impl FnOnce() -> Status) -> Status {
    if attention::is_off() {
        return real();
    }
    tell(Event::Asked(copy));
    observers::observe(copy, |made| {
        if copy.towards == Towards::In {
            into_gpu(copy, reasons, real, made)
        } else {
            out_of_gpu(copy, reasons, real, made)
        }
    })
}

fn into_gpu(copy: Copy, reasons: u32, real: impl FnOnce() -> Status, made: &mut Made) -> Status {
    let Some(driver) = driver() else { return real() };
    // The first copy of most programs goes into a GPU: by then the context exists and nothing hurries.
    if reasons & NEW != 0 {
        context::current(driver);
    }
    match by_threads(driver, copy, made) {
        Break(status) => status,
        Continue(timing) => by_driver(driver, timing, real),
    }
}

/// A copy that may be one out of a GPU.
fn out_of_gpu(copy: Copy, reasons: u32, real: impl FnOnce() -> Status, made: &mut Made) -> Status {
    if copy.bytes == 0 || !attention::changes_copies() {
        return real();
    }
    // Copies that are only observed, or might be of pinned memory, are not asked about.
    if reasons & !(OBSERVED | PINS) == 0 && !attention::is_large(copy.bytes) {
        give_up_both(copy);
        if attention::options().aside == AsideMode::Auto {
            made.left_to_driver(DriverReason::EngineFree);
        }
        return real();
    }
    let Some(driver) = driver() else { return real() };
    let by_address = copy.towards == Towards::Unknown;
    if by_address {
        match by_threads(driver, copy.towards(Towards::In), made) {
            Break(status) => return status,
            Continue(timing) if made.towards == Towards::In => return by_driver(driver, timing, real),
            // The end that was asked about may lie on the GPU.
            Continue(_) => *made = Made::new(copy),
        }
    }
    let copy = copy.towards(Towards::Out);
    let timing = match by_threads(driver, copy, made) {
        Break(status) => return status,
        Continue(timing) => timing,
    };
    let real = || by_driver(driver, timing, real);
    if by_address && made.host == Host::KnownToDriver {
        made.host = Host::NotAsked;
    }
    if !attention::queues() {
        return real();
    }
    let Some(context) = context::current(driver) else {
        made.left_to_driver(DriverReason::Context);
        return real();
    };
    if let Some(status) = by_kernel(driver, &context, copy, made) {
        return status;
    }
    if is_bulk(copy.bytes) {
        bulk(driver, &context, copy, real, made)
    } else {
        small(driver, &context, copy, by_address, real)
    }
}

/// Whether a copy of `bytes` bytes, or a batch of as many, is bulk by itself: it holds the engine for 40 us and more on PCIe 5.
fn is_bulk(bytes: usize) -> bool {
    bytes as u64 >= BULK_MIN && attention::options().class != GuestClass::Normal
}

/// The driver's own call, timed if the choice learns from it.
fn by_driver(driver: &Driver, timing: Option<Timing>, real: impl FnOnce() -> Status) -> Status {
    let status = real();
    if let Some(timing) = timing {
        timing.end(driver, status);
    }
    status
}

/// Makes a large copy of ordinary memory by several threads if that is the best known method; then breaks with the call's answer.
fn by_threads(driver: &Driver, copy: Copy, made: &mut Made) -> ControlFlow<Status, Option<Timing>> {
    if !attention::may_be_fast(copy.bytes) {
        pins::give_up(copy.host(), copy.bytes);
        return Continue(None);
    }
    // Small copies of others wait behind a copy out of the GPU by threads, too.
    let queues = copy.towards == Towards::Out && attention::queues();
    let context = if queues { context::current(driver) } else { None };
    let _bulk = context.as_ref().filter(|_| is_bulk(copy.bytes)).map(|context| context.enter(copy.bytes));
    match fast::copy(driver, copy, made) {
        Answer::Made(became) => Break(accelerated(copy, became, true, SUCCESS, made)),
        Answer::Left(why, timing) => {
            // What is recorded is made when no call tells.
            if why == DriverReason::Capture {
                pins::keep_out(copy.host(), copy.bytes);
            } else {
                pins::give_up(copy.host(), copy.bytes);
            }
            made.left_to_driver(why);
            // What was decided on is a copy of ordinary memory, whatever the call's name says.
            if why == DriverReason::DriverFastest {
                made.towards = copy.towards;
            }
            Continue(timing)
        }
    }
}

/// The driver makes a copy of which it is not known which end is the host's.
pub(crate) fn give_up_both(copy: Copy) {
    pins::give_up(copy.from as *const c_void, copy.bytes);
    pins::give_up(copy.to as *const c_void, copy.bytes);
}

/// Tells of a copy that was not made by the driver's own call; the call's answer.
fn accelerated(copy: Copy, became: Became, is_complete: bool, mut status: Status, made: &mut Made) -> Status {
    made.by(became, copy.towards);
    tell(Event::Made(Accelerated { copy, became, is_complete, status: &mut status }));
    status
}

/// Whether a copy of this size may be made by a kernel.
fn may_go_aside(bytes: usize) -> bool {
    let options = attention::options();
    bytes <= aside::BYTES_MAX && options.aside != AsideMode::Never && options.class != GuestClass::Bulk
}

/// Makes a copy by a kernel if it would wait for the engine and the kernel can make it; then returns the call's answer.
fn by_kernel(driver: &Driver, context: &Prepared, copy: Copy, made: &mut Made) -> Option<Status> {
    if !may_go_aside(copy.bytes) {
        return None;
    }
    if attention::options().aside == AsideMode::Auto {
        made.behind = would_wait(context, copy);
        if made.behind.is_none() {
            made.left_to_driver(DriverReason::EngineFree);
            return None;
        }
    }
    match aside::copy(driver, context, copy, made) {
        Ok(status) => {
            // A copy into ordinary memory is complete, too, whatever the call's name says.
            let is_complete = copy.call.waits() || made.host == Host::Ordinary;
            // A stream that goes on so is bulk, and its further copies are the engine's.
            let is_counted = copy.bytes >= attention::COUNTED_MIN && attention::options().aside == AsideMode::Auto;
            if is_counted && !is_complete && context.writes_values() {
                context.queued(driver, copy.stream, copy.bytes);
            }
            Some(accelerated(copy, Became::Aside, is_complete, status, made))
        }
        Err(why) => {
            tell(Event::NotAside(why));
            made.left_to_driver(why);
            None
        }
    }
}

/// What on the engine would delay a small copy.
fn would_wait(context: &Prepared, copy: Copy) -> Option<Behind> {
    let reasons = attention::reasons();
    if reasons & BULK != 0 {
        match context.bulk_before(copy.stream) {
            BulkBefore::SameStream => return None,
            BulkBefore::OtherStream => return Some(Behind::Own(FlowClass::Bulk)),
            BulkBefore::None => {}
        }
    }
    if reasons & NEIGHBOURS == 0 {
        return None;
    }
    neighbours::busy_by(context.place).or_else(|| link::is_busy(context.place).then_some(Behind::Unknown))
}

/// A copy that is not bulk by itself: its stream may be, by what else is queued on it.
fn small(driver: &Driver, context: &Prepared, copy: Copy, by_address: bool, real: impl FnOnce() -> Status) -> Status {
    let leaves = !by_address || driver::on_device(driver, copy.from, copy.bytes, context.device);
    let class = attention::options().class;
    if copy.bytes < attention::COUNTED_MIN || !leaves || class == GuestClass::Normal {
        return real();
    }
    let _bulk = (class == GuestClass::Bulk).then(|| context.enter(copy.bytes));
    if copy.call.waits() || !context.writes_values() {
        return real();
    }
    context.before_queue(driver, copy.stream, copy.bytes);
    let status = real();
    if status == SUCCESS {
        context.queued(driver, copy.stream, copy.bytes);
    }
    status
}

/// A bulk copy: whole or in chunks, and remembered until it has left the engine.
fn bulk(driver: &Driver, context: &Prepared, copy: Copy, real: impl FnOnce() -> Status, made: &mut Made) -> Status {
    let relaxed = Relaxed::new(driver);
    let is_from_here = driver::on_device(driver, copy.from, copy.bytes, context.device);
    if !is_from_here || driver::captures(driver, copy.stream) {
        drop(relaxed);
        made.left_to_driver(if is_from_here { DriverReason::Capture } else { DriverReason::NotOnGpu });
        return real();
    }
    let chunk = attention::options().chunk.map(|chunk| chunks::chunk_bytes(chunk.0 as usize, copy.bytes));
    let chunk = chunk.filter(|chunk| context.writes_values() && copy.bytes > *chunk);
    let chunk = chunk.filter(|_| driver::pinned(driver, copy.host(), copy.bytes).is_some());
    drop(relaxed);
    let _bulk = context.enter(copy.bytes);
    if let Some(chunk) = chunk {
        made.host = Host::PageLocked;
        let status = chunks::copy(driver, context, copy, chunk);
        return accelerated(copy, Became::Chunks, copy.call.waits(), status, made);
    }
    made.left_to_driver(DriverReason::Whole);
    let status = real();
    // A call that waited has left nothing under way.
    if status == SUCCESS && !copy.call.waits() && context.writes_values() {
        context.queued(driver, copy.stream, copy.bytes);
    }
    status
}
