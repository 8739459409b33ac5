//! What becomes of one copy: passed on, made by several threads (*fast*), by a kernel in its own stream (*aside*), or
//! queued in chunks (*yield*).

pub(crate) mod batch;

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Instant;

use headway_core::files::guest::{AsideMode, GuestOptions, VARIABLE};
use headway_core::files::guest_log::{Became, DriverReason, Host, Towards};
use headway_core::models::transfer::Direction;

use crate::base::context::{self, Prepared};
use crate::base::driver::{self, DevicePtr, Driver, Relaxed, SUCCESS, Status, Stream, driver};
use crate::base::neighbours;
use crate::calls::lookup;
use crate::methods::fast;
use crate::methods::fast::{Answer, Timing, Waits};
use crate::observers::log::{self, Asked, Made};
use crate::observers::stats::{self, Kind, Outcome};
use crate::observers::{lint, verify};

/// A copy out of a GPU, as the guest asked for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    pub(crate) to: *mut c_void,
    pub(crate) from: DevicePtr,
    pub(crate) bytes: usize,
    /// Never 0: default streams have their own handles here.
    pub(crate) stream: Stream,
    /// Whether the call returns only when the bytes are there.
    pub(crate) waits: bool,
}

/// A copy into a GPU, as the guest asked for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct In {
    pub(crate) to: DevicePtr,
    pub(crate) from: *const c_void,
    pub(crate) bytes: usize,
    /// Never 0: default streams have their own handles here.
    pub(crate) stream: Stream,
}

/// From this size on a copy is bulk: it holds the engine for 40 us and more on PCIe 5.
pub(crate) const BULK_MIN: usize = 2 << 20;
/// From this size on copies count for what their stream has under way. Of smaller ones 128 and more make a chunk.
const COUNTED_MIN: usize = 32 << 10;
/// From this size on a copy of ordinary memory may be made by several threads.
const FAST_MIN: usize = headway::copy::NodeClass::LEAST.0 as usize;
/// Up to this size a copy may be made by a kernel. It shares the link with the engine about half and half, so 16 MiB take
/// 0.45 ms next to a bulk copy (H200, 2026-11-23), and the bulk copy loses a fifth of its rate meanwhile.
const ASIDE_MAX: usize = 16 << 20;
/// One block is enough up to this size; beyond, sixteen.
const ONE_BLOCK: usize = 64 << 10;
const BLOCKS: u32 = 16;
const THREADS: u32 = 512;
/// A stream holds about a thousand operations, and a call that fills it blocks: a copy becomes at most this many chunks of
/// two operations each.
pub(crate) const CHUNKS_MAX: usize = 256;

/// Reasons to look at a copy more closely; 0 = small copies go straight to the driver.
static ATTENTION: AtomicU32 = AtomicU32::new(0);
/// A context is in use for which nothing was prepared.
pub(crate) const NEW: u32 = 1;
/// A bulk copy of this program may be on an engine.
pub(crate) const BULK: u32 = 2;
/// Copies are counted.
const COUNT: u32 = 4;
/// Every small copy goes aside.
const ALWAYS: u32 = 8;
/// Other guests may announce bulk copies.
const NEIGHBOURS: u32 = 16;
/// Copies are logged.
const LOG: u32 = 32;
/// Copies that lose time are looked for.
const LINT: u32 = 64;

/// Copies out of a GPU of this size and more are looked at in any case.
static LARGE: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Copies into a GPU of this size and more are looked at in any case.
static LARGE_IN: AtomicUsize = AtomicUsize::new(usize::MAX);
static OPTIONS: OnceLock<GuestOptions> = OnceLock::new();

pub(crate) fn options() -> GuestOptions {
    OPTIONS.get().copied().unwrap_or_default()
}

/// Whether copies are counted.
pub(crate) fn counts() -> bool {
    ATTENTION.load(Ordering::Relaxed) & COUNT != 0 && !lookup::is_off()
}

/// Says, in a program that was started as a guest, that its driver is newer than this version of Headway.
pub(crate) fn say_too_new(version: i32) {
    if stats::variable(VARIABLE).is_some() {
        log::print(&format!(
            "headway: the driver is for CUDA {}.{}, which this version of Headway does not know; every call is passed on\n",
            version / 1000,
            version % 1000 / 10
        ));
    }
}

/// Reads the options; before that every call is passed on.
pub(crate) fn begin() {
    let Some(text) = stats::variable(VARIABLE) else { return };
    let options = match text.parse::<GuestOptions>() {
        Ok(options) => *OPTIONS.get_or_init(|| options),
        Err(error) => {
            log::print(&format!("headway: {error}; every call is passed on\n"));
            return;
        }
    };
    let mut attention = 0;
    if options.stats {
        stats::begin();
        attention |= COUNT;
    }
    if log::begin(options) {
        attention |= LOG;
    }
    if options.lint {
        lint::begin();
        attention |= LINT;
    }
    if options.verify {
        verify::begin();
    }
    if options.aside == AsideMode::Always {
        attention |= ALWAYS;
    }
    if options.aside == AsideMode::Auto && !options.alone && neighbours::begin() {
        attention |= NEIGHBOURS;
    }
    if options.aside != AsideMode::Never || options.chunk.is_some() {
        attention |= NEW;
        LARGE.store(COUNTED_MIN, Ordering::Relaxed);
    }
    if options.fast {
        LARGE.fetch_min(FAST_MIN, Ordering::Relaxed);
        LARGE_IN.store(FAST_MIN, Ordering::Relaxed);
    }
    ATTENTION.store(attention, Ordering::Relaxed);
}

/// Sets and clears reasons, unless everything is switched off.
pub(crate) fn attend(set: u32, clear: u32) {
    if !lookup::is_off() {
        ATTENTION.fetch_or(set, Ordering::Relaxed);
        ATTENTION.fetch_and(!clear, Ordering::Relaxed);
    }
}

/// A copy into a GPU.
#[inline]
pub(crate) fn into_gpu(copy: In, kind: Kind, real: impl FnOnce() -> Status) -> Status {
    let attention = ATTENTION.load(Ordering::Relaxed);
    if attention & (COUNT | NEW | LOG | LINT) == 0 && copy.bytes < LARGE_IN.load(Ordering::Relaxed) {
        return real();
    }
    look_in(copy, kind, attention, real)
}

#[cold]
fn look_in(copy: In, kind: Kind, attention: u32, real: impl FnOnce() -> Status) -> Status {
    if lookup::is_off() {
        return real();
    }
    if attention & COUNT != 0 {
        stats::count(kind, copy.bytes);
    }
    let asked = (copy.from as usize, copy.bytes, copy.stream);
    observed(attention, kind, asked, |made| {
        let Some(driver) = driver() else { return real() };
        // The first copy of most programs goes into a GPU: by then the context exists and nothing hurries.
        if attention & NEW != 0 {
            context::current(driver);
        }
        let large = copy.bytes >= LARGE_IN.load(Ordering::Relaxed);
        let mut timing = None;
        let fast = if large {
            made_fast(driver, copy.of_ordinary_memory(Waits::AsTheDriver), made, &mut timing)
        } else {
            None
        };
        fast.unwrap_or_else(|| by_driver(driver, timing, real))
    })
}

/// Makes a copy of `asked` (the host's address, bytes, stream) by `make`. With `--log` it logs the copy, with `--lint` it looks for lost time.
fn observed(
    attention: u32,
    call: Kind,
    asked: (usize, usize, Stream),
    make: impl FnOnce(&mut Made) -> Status,
) -> Status {
    let mut made = Made::new(call);
    if attention & (LOG | LINT) == 0 {
        return make(&mut made);
    }
    let (host, bytes, stream) = asked;
    let start_ns = neighbours::now_ns();
    let status = make(&mut made);
    let took = neighbours::now_ns().saturating_sub(start_ns);
    let asked = Asked { call, bytes, stream, host, start_ns };
    if attention & LOG != 0 {
        log::copied(asked, made, took, status);
    }
    if attention & LINT != 0
        && status == SUCCESS
        && let Some(driver) = driver()
    {
        lint::copied(driver, asked, made, took);
    }
    status
}

impl In {
    fn of_ordinary_memory(self, waits: Waits) -> fast::Copy {
        let Self { to, from, bytes, stream } = self;
        fast::Copy { direction: Direction::H2d, host: from.cast_mut(), there: to, bytes, stream, waits }
    }
}

/// The driver's own call, timed if an option needs the time.
fn by_driver(driver: &Driver, timing: Option<Timing>, real: impl FnOnce() -> Status) -> Status {
    let status = real();
    if let Some(timing) = timing {
        timing.end(driver, status);
    }
    status
}

/// Makes a large copy of ordinary memory by several threads, if that is the best known method; then returns the call's answer.
fn made_fast(driver: &Driver, copy: fast::Copy, made: &mut Made, timing: &mut Option<Timing>) -> Option<Status> {
    let start = Instant::now();
    match fast::copy(driver, copy, &mut made.host) {
        Answer::Made => {
            stats::made_fast(copy.direction, copy.bytes, start.elapsed());
            let direction = if copy.direction == Direction::D2h { Towards::Out } else { Towards::In };
            made.by(Became::Fast, direction);
            Some(if options().verify { verify::compare(driver, copy, made.call, made.became) } else { SUCCESS })
        }
        Answer::Left(why, timed) => {
            made.left_to_driver(why);
            // What was decided on is a copy of ordinary memory, whatever the call's name says.
            if why == DriverReason::DriverFastest {
                made.direction = if copy.direction == Direction::D2h { Towards::Out } else { Towards::In };
            }
            *timing = timed;
            None
        }
    }
}

/// Whether anything is to be done, in a guest, about a copy of `bytes` bytes whose call is rare enough to be looked at each time.
pub(crate) fn looks_at(bytes: usize) -> bool {
    let is_asked = ATTENTION.load(Ordering::Relaxed) != 0 || bytes >= LARGE.load(Ordering::Relaxed);
    is_asked && OPTIONS.get().is_some()
}

/// Counts a copy of a batch.
pub(crate) fn count(kind: Kind, bytes: usize) {
    if counts() {
        stats::count(kind, bytes);
    }
}

/// Whether a copy of a batch was made by several threads.
pub(crate) fn made_fast_of_batch(driver: &Driver, out: Out) -> bool {
    if !options().fast || out.bytes < FAST_MIN {
        return false;
    }
    let into = out.as_into_gpu().of_ordinary_memory(Waits::IfLarge);
    let outward = out.to_ordinary_memory(Waits::IfLarge);
    let queues = options().aside != AsideMode::Never || options().chunk.is_some();
    // No copy is timed inside a batch.
    made_fast(driver, into, &mut Made::new(Kind::Batch), &mut None) == Some(SUCCESS)
        || made_fast_out(driver, outward, queues, &mut Made::new(Kind::Batch), &mut None) == Some(SUCCESS)
}

/// Whether a copy of a batch was queued by a kernel, past a busy engine.
pub(crate) fn made_aside_of_batch(driver: &Driver, out: Out) -> bool {
    let attention = ATTENTION.load(Ordering::Relaxed);
    if out.bytes > ASIDE_MAX || options().aside == AsideMode::Never {
        return false;
    }
    let Some(context) = context::current(driver) else { return false };
    goes_aside(&context, out, attention)
        && made_aside(driver, &context, out, &mut Made::new(Kind::Batch)) == Some(SUCCESS)
}

/// A copy that may be one out of a GPU.
#[inline]
pub(crate) fn out_of_gpu(out: Out, kind: Kind, real: impl FnOnce() -> Status) -> Status {
    let attention = ATTENTION.load(Ordering::Relaxed);
    if attention == 0 && out.bytes < LARGE.load(Ordering::Relaxed) {
        return real();
    }
    look(out, kind, attention, real)
}

#[cold]
fn look(out: Out, kind: Kind, attention: u32, real: impl FnOnce() -> Status) -> Status {
    if lookup::is_off() {
        return real();
    }
    if attention & COUNT != 0 {
        stats::count(kind, out.bytes);
    }
    observed(attention, kind, (out.to as usize, out.bytes, out.stream), |made| make(out, kind, attention, real, made))
}

/// Makes a copy that may be one out of a GPU.
fn make(out: Out, kind: Kind, attention: u32, real: impl FnOnce() -> Status, made: &mut Made) -> Status {
    if out.bytes == 0 || LARGE.load(Ordering::Relaxed) == usize::MAX {
        return real();
    }
    // Copies that are only counted or logged are not asked about.
    if attention & !(COUNT | LOG | LINT) == 0 && out.bytes < LARGE.load(Ordering::Relaxed) {
        if options().aside == AsideMode::Auto {
            made.left_to_driver(DriverReason::EngineFree);
        }
        return real();
    }
    let Some(driver) = driver() else { return real() };
    let by_address = matches!(kind, Kind::Any | Kind::AnyAsync | Kind::Batch | Kind::Attributes);
    let waits = if matches!(kind, Kind::Batch | Kind::Attributes) { Waits::IfLarge } else { Waits::AsTheDriver };
    if by_address && out.bytes >= LARGE_IN.load(Ordering::Relaxed) {
        let mut timing = None;
        let copy = out.as_into_gpu().of_ordinary_memory(waits);
        if let Some(status) = made_fast(driver, copy, made, &mut timing) {
            return status;
        }
        if made.direction == Towards::In {
            return by_driver(driver, timing, real);
        }
        // The end that was asked about may lie on the GPU.
        *made = Made::new(kind);
    }
    let options = options();
    let queues = options.aside != AsideMode::Never || options.chunk.is_some();
    let mut timing = None;
    if options.fast
        && out.bytes >= FAST_MIN
        && let Some(status) = made_fast_out(driver, out.to_ordinary_memory(waits), queues, made, &mut timing)
    {
        return status;
    }
    let real = || by_driver(driver, timing, real);
    if by_address && made.host == Host::KnownToDriver {
        made.host = Host::NotAsked;
    }
    if !queues {
        return real();
    }
    let Some(context) = context::current(driver) else {
        made.left_to_driver(DriverReason::Context);
        return real();
    };
    if out.bytes <= ASIDE_MAX && options.aside != AsideMode::Never {
        if !goes_aside(&context, out, attention) {
            made.left_to_driver(DriverReason::EngineFree);
        } else if let Some(status) = made_aside(driver, &context, out, made) {
            return status;
        }
    }
    if out.bytes >= BULK_MIN {
        bulk(driver, &context, out, real, made)
    } else {
        small(driver, &context, out, by_address, real)
    }
}

/// A copy that is not bulk by itself: its stream may be, by what else is queued on it.
fn small(driver: &Driver, context: &Prepared, out: Out, by_address: bool, real: impl FnOnce() -> Status) -> Status {
    let leaves = !by_address || driver::on_device(driver, out.from, out.bytes, context.device);
    if out.waits || out.bytes < COUNTED_MIN || !leaves || !context.writes_values() {
        return real();
    }
    context.before_queue(driver, out.stream, out.bytes);
    let status = real();
    if status == SUCCESS {
        context.queued(driver, out.stream, out.bytes);
    }
    status
}

/// Makes a large copy out of a GPU by several threads; small copies of others would wait behind it, too.
fn made_fast_out(
    driver: &Driver,
    out: fast::Copy,
    queues: bool,
    made: &mut Made,
    timing: &mut Option<Timing>,
) -> Option<Status> {
    let context = queues.then(|| context::current(driver)).flatten();
    if let Some(context) = &context {
        context.enter();
        neighbours::announce(context.place, out.bytes);
    }
    let answer = made_fast(driver, out, made, timing);
    if let Some(context) = &context {
        context.leave();
    }
    answer
}

/// Makes a copy by a kernel if that is possible; then returns the call's answer.
fn made_aside(driver: &Driver, context: &Prepared, out: Out, made: &mut Made) -> Option<Status> {
    let relaxed = Relaxed::new(driver);
    let answer = aside(driver, context, out, &mut made.host);
    drop(relaxed);
    match answer {
        Ok(status) => {
            stats::outcome(Outcome::Aside, 1);
            made.by(Became::Aside, Towards::Out);
            // A copy into ordinary memory is complete, too, whatever the call's name says.
            let complete = out.waits || made.host == Host::Ordinary;
            Some(checked(driver, out, complete, status, made))
        }
        Err(reason) => {
            stats::outcome(reason, 1);
            made.left_to_driver(reason.why());
            None
        }
    }
}

impl Out {
    /// The same copy as one into a GPU, for calls that go by the addresses.
    fn as_into_gpu(self) -> In {
        In { to: self.to as DevicePtr, from: self.from as *const c_void, bytes: self.bytes, stream: self.stream }
    }

    fn to_ordinary_memory(self, waits: Waits) -> fast::Copy {
        let Self { to, from, bytes, stream, .. } = self;
        fast::Copy { direction: Direction::D2h, host: to, there: from, bytes, stream, waits }
    }
}

/// With `--verify`, compares a copy that the driver did not make as the guest requested it; returns the call's answer.
fn checked(driver: &Driver, out: Out, complete: bool, status: Status, made: &Made) -> Status {
    if !options().verify || status != SUCCESS {
        return status;
    }
    if !complete {
        verify::skip();
        return status;
    }
    verify::compare(driver, out.to_ordinary_memory(Waits::AsTheDriver), made.call, made.became)
}

/// Whether an operation on the engine would delay a small copy.
fn goes_aside(context: &Prepared, out: Out, attention: u32) -> bool {
    match options().aside {
        AsideMode::Never => false,
        AsideMode::Always => true,
        AsideMode::Auto => {
            (attention & BULK != 0 && context.is_busy_elsewhere(out.stream))
                || (attention & NEIGHBOURS != 0 && neighbours::is_busy(context.place))
        }
    }
}

/// Makes a copy by a kernel in its own stream.
///
/// # Errors
/// Why it is left to the driver; nothing has been queued then, or only a copy into a line of ours.
fn aside(driver: &Driver, context: &Prepared, out: Out, host_is: &mut Host) -> Result<Status, Outcome> {
    // To ask the legacy default stream spoils captures, as a copy in it does; one that the driver refuses does not.
    if !driver::on_device(driver, out.from, out.bytes, context.device) {
        return Err(Outcome::OtherMemory);
    }
    if driver::captures(driver, out.stream) {
        return Err(Outcome::Capture);
    }
    if let Some(to) = driver::pinned(driver, out.to, out.bytes) {
        *host_is = Host::PageLocked;
        launch(driver, context, to, out)?;
        if !out.waits {
            return Ok(SUCCESS);
        }
        // SAFETY: the stream is the caller's, which uses it in this call.
        return Ok(unsafe { (driver.cuStreamSynchronize)(driver::handle(out.stream)) });
    }
    // Ordinary memory: the driver's call would return with the bytes there, too, whatever its name says.
    if out.bytes > context::LINE_BYTES || !driver::is_ordinary(driver, out.to, out.bytes) {
        return Err(Outcome::OtherMemory);
    }
    *host_is = Host::Ordinary;
    let line = context.line().ok_or(Outcome::NoLine)?;
    launch(driver, context, line.seen_by_device(), out)?;
    // SAFETY: the stream is the caller's, which uses it in this call.
    let status = unsafe { (driver.cuStreamSynchronize)(driver::handle(out.stream)) };
    if status != SUCCESS {
        return Ok(status);
    }
    // The driver reports memory that cannot be written, as the guest expects.
    if line.give(out.to, out.bytes) { Ok(SUCCESS) } else { Err(Outcome::OtherMemory) }
}

fn launch(driver: &Driver, context: &Prepared, to: DevicePtr, out: Out) -> Result<(), Outcome> {
    let blocks = if out.bytes <= ONE_BLOCK { 1 } else { BLOCKS };
    let copy = (to, out.from, out.bytes as u64);
    // SAFETY: the kernel is the current context's, the stream the caller's; both ranges were looked up just now and are as long.
    let taken = unsafe { driver::launch(driver, context.kernel, [blocks, THREADS], out.stream, copy) };
    if taken { Ok(()) } else { Err(Outcome::NotLaunched) }
}

/// A bulk copy: whole or in chunks, and remembered until it has left the engine.
fn bulk(driver: &Driver, context: &Prepared, out: Out, real: impl FnOnce() -> Status, made: &mut Made) -> Status {
    let relaxed = Relaxed::new(driver);
    let is_from_here = driver::on_device(driver, out.from, out.bytes, context.device);
    if !is_from_here || driver::captures(driver, out.stream) {
        drop(relaxed);
        made.left_to_driver(if is_from_here { DriverReason::Capture } else { DriverReason::NotOnGpu });
        return real();
    }
    let chunk = options().chunk.map(|chunk| chunk_bytes(chunk.0 as usize, out.bytes));
    let chunk = chunk.filter(|chunk| context.writes_values() && out.bytes > *chunk);
    let chunk = chunk.filter(|_| driver::pinned(driver, out.to, out.bytes).is_some());
    made.left_to_driver(DriverReason::Whole);
    if chunk.is_some() {
        made.host = Host::PageLocked;
        made.by(Became::Chunks, Towards::Out);
    }
    drop(relaxed);
    context.enter();
    neighbours::announce(context.place, out.bytes);
    let status = match chunk {
        Some(chunk) => {
            let status = in_chunks(driver, context, out, chunk);
            checked(driver, out, out.waits, status, made)
        }
        None => real(),
    };
    // What was cut is counted, and a call that waited has left nothing under way.
    if status == SUCCESS && !out.waits && chunk.is_none() && context.writes_values() {
        context.queued(driver, out.stream, out.bytes);
    }
    context.leave();
    status
}

/// The chunk of a copy of `bytes`: as asked for, or as large as the number of chunks demands.
pub(crate) fn chunk_bytes(asked: usize, bytes: usize) -> usize {
    const STEP: usize = 64 << 10;
    asked.max(bytes.div_ceil(CHUNKS_MAX).next_multiple_of(STEP))
}

/// Queues a copy in chunks with a written word behind each: there the engine serves other streams, too.
pub(crate) fn in_chunks(driver: &Driver, context: &Prepared, out: Out, chunk: usize) -> Status {
    let mut at = 0;
    while at < out.bytes {
        let bytes = chunk.min(out.bytes - at);
        let to = out.to.wrapping_byte_add(at);
        // SAFETY: a part of the caller's copy, in the caller's stream.
        let status =
            unsafe { (driver.cuMemcpyDtoHAsync_v2)(to, out.from + at as u64, bytes, driver::handle(out.stream)) };
        if status != SUCCESS {
            return status;
        }
        at += bytes;
        stats::outcome(Outcome::Chunk, 1);
        context.cut(driver, out.stream, bytes);
    }
    // SAFETY: the stream is the caller's, which uses it in this call.
    if out.waits { unsafe { (driver.cuStreamSynchronize)(driver::handle(out.stream)) } } else { SUCCESS }
}
