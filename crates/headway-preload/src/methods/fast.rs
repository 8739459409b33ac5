//! `--fast`: large copies between ordinary memory and a GPU, by several threads and through pinned memory (`staged`).
//!
//! The driver copies ordinary memory with one thread, at a fifth of the bus. Here the calling thread waits for its stream as the
//! driver would, has the copy made by the same [`Copier`] that the library offers, and returns when the bytes are there. Every
//! failure leaves the copy to the driver, which makes it again from the start. [`CopyChooser`] decides which copies are made so, and by how
//! many threads: first by built-in figures, then by the times of earlier copies.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use headway::copy::{
    At, Buffer, ChosenCopy, Copier, CopyChooser, CopyError, CopyLimits, CopyOptions, CopyTook, CudaDriver, CudaGpu,
    DeviceLimits, Direction, LearningGpu, LearningOptions, Method, Profile,
};
use headway::machine::EndpointId;
use headway::units::{Bytes, Nanos};
use headway_core::decisions::chooser::CopyAbsence;
use headway_core::files::guest_log::{Became, Call, DriverReason, Host, Towards};

use crate::base::copy::{Copy, Made};
use crate::base::driver::{self, Driver, Relaxed, SUCCESS, Status, Stream};
use crate::base::{attention, pins, stack, symbols};
use crate::methods::pinned;
use crate::observers::{Event, tell};

/// Like the driver, a guest waits without end for a busy GPU: a copy that was given up could still write.
const PATIENCE: Nanos = Nanos(3_600_000_000_000);
/// Pinned memory of each GPU.
const PINNED_MAX: Bytes = Bytes(256 << 20);

/// Copies with attributes of this size were seen to wait, in both directions and for every order of access (driver 580, CUDA 13.0, H100; of
/// 1 MiB they return at once).
const WAITS_MIN: usize = 64 << 20;
/// From this version on the driver is said to wait for no copy into a GPU with attributes.
const NEVER_WAITS: c_int = 13_030;

/// Whether the driver's own call waits for large copies of ordinary memory only. A program may count on a call that returns at once, and
/// queue behind it what ends the stream's work before it.
const fn may_return_at_once(copy: Copy) -> bool {
    matches!(copy.call, Call::Batch | Call::Attributes)
}

/// Whether a copy by several threads may wait for the stream.
fn may_wait(driver: &Driver, copy: Copy) -> bool {
    let large = copy.bytes >= WAITS_MIN && driver::driver_version().is_some_and(|version| version < NEVER_WAITS);
    // SAFETY: the stream is the caller's, which uses it in this call, and captures nothing.
    !may_return_at_once(copy) || large || unsafe { (driver.cuStreamQuery)(driver::handle(copy.stream)) } == SUCCESS
}

/// A GPU that is open for such copies.
struct Gpu {
    gpu: Arc<CudaGpu>,
    copier: Copier,
}

/// What becomes of a copy.
pub(crate) enum Answer {
    Made(Became),
    /// The driver makes it from the start. Its time is measured where the choice can learn from it.
    Left(DriverReason, Option<Timing>),
}

/// A copy by the driver's own call that is timed.
pub(crate) struct Timing {
    chosen: ChosenCopy<'static>,
    start: Instant,
    /// The stream to wait for, where the driver's call may return before the copy is made.
    stream: Option<Stream>,
}

impl Timing {
    /// The driver's call has returned.
    pub(crate) fn end(self, driver: &Driver, status: Status) {
        if status == SUCCESS && self.stream.is_none_or(|stream| driver::wait(driver, stream)) {
            let time = Nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX));
            self.chosen.ended(CopyTook { time, cpu: None });
            tell(Event::Timed);
        }
    }
}

/// GPUs that were opened; where that failed, the driver copies.
static GPUS: Mutex<Vec<(c_int, Option<Arc<Gpu>>)>> = Mutex::new(Vec::new());

fn gpus() -> MutexGuard<'static, Vec<(c_int, Option<Arc<Gpu>>)>> {
    GPUS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Devices whose primary context the program has got hold of, a bit each; and those of them whose GPUs are opened when it allocates memory.
static HELD: AtomicU64 = AtomicU64::new(0);
static EXPECTED: AtomicU64 = AtomicU64::new(0);

/// The bit of a device; the 65th and further ones have none, and are opened at their first large copy.
fn bit(device: c_int) -> u64 {
    u32::try_from(device).ok().and_then(|device| 1u64.checked_shl(device)).unwrap_or(0)
}

/// The program has got hold of the primary context of `device`. One that it gives back and gets again is opened at its next large copy.
pub(crate) fn expect(device: c_int) {
    if attention::options().fast && !attention::is_off() {
        let is_new = HELD.fetch_or(bit(device), Ordering::Relaxed) & bit(device) == 0;
        EXPECTED.fetch_or(if is_new { bit(device) } else { 0 }, Ordering::Relaxed);
    }
}

/// Nothing is opened at an allocation on `device` any more; whether it would have been.
fn expect_no_more(device: c_int) -> bool {
    EXPECTED.fetch_and(!bit(device), Ordering::Relaxed) & bit(device) != 0
}

/// Whether a GPU is to be opened when the program allocates memory.
pub(crate) fn expects() -> bool {
    EXPECTED.load(Ordering::Relaxed) != 0
}

/// Opens the GPU of the current context if it is expected: threads and page-locked memory are there before the first copy.
pub(crate) fn prepare(driver: &Driver) {
    let Some(device) = driver::current_device(driver).filter(|_| stack::is_enough()) else { return };
    if expect_no_more(device) {
        opened(driver, device);
    }
}

/// The driver as the copier sees it, made at the first copy.
fn cuda() -> Option<Arc<CudaDriver>> {
    static CUDA: Mutex<Option<Arc<CudaDriver>>> = Mutex::new(None);
    let mut known = CUDA.lock().unwrap_or_else(PoisonError::into_inner);
    if known.is_none() {
        let library = symbols::library()?;
        // SAFETY: `find` asks the guest's own driver by the real `dlsym`; no program unloads a driver that has a context.
        *known = unsafe { CudaDriver::of_program(|name| symbols::find(library, name)) }.ok();
    }
    known.clone()
}

/// What chooses the copies of each device; kept until the process ends.
static CHOOSERS: Mutex<Vec<(c_int, Option<&'static CopyChooser>)>> = Mutex::new(Vec::new());

fn chooser(device: c_int) -> Option<&'static CopyChooser> {
    let mut all = CHOOSERS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, known)) = all.iter().find(|(other, _)| *other == device) {
        return *known;
    }
    let opened = open_chooser(device);
    if all.is_empty() {
        // SAFETY: the function may be called at exit; it writes a file.
        unsafe { libc::atexit(keep) };
    }
    all.push((device, opened));
    opened
}

fn open_chooser(device: c_int) -> Option<&'static CopyChooser> {
    let cuda = cuda()?;
    let about = cuda.identity(u32::try_from(device).ok()?).ok()?;
    let gpu = LearningGpu { name: about.name, uuid: Some(about.uuid), pci: about.pci, cuda: cuda.version().ok() };
    let (guest, usual) = (attention::options(), LearningOptions::default());
    let options = LearningOptions { always: guest.always_fast, keeps: usual.keeps && !guest.no_cache, ..usual };
    let chooser: &'static CopyChooser =
        Box::leak(Box::new(CopyChooser::new(EndpointId(0), Arc::default(), &copy_options(), None, 1)));
    chooser.learn(&gpu, options);
    tell(Event::ChosenBy(chooser.basis()));
    Some(chooser)
}

/// At exit: what was learnt is kept for the next program.
extern "C" fn keep() {
    if let Ok(all) = CHOOSERS.try_lock() {
        all.iter().filter_map(|(_, chooser)| *chooser).for_each(CopyChooser::keep);
    }
}

fn copy_options() -> CopyOptions {
    let limits = CopyLimits { pinned_max: PINNED_MAX, patience: PATIENCE, ..CopyLimits::default() };
    CopyOptions { limits, shares_cpus: !attention::options().alone, ..CopyOptions::default() }
}

fn open(driver: &Driver, device: c_int) -> Option<Gpu> {
    // Where the GPU uses ordinary memory by itself, its driver needs no help.
    if driver::attribute(driver, device, driver::PAGEABLE_ACCESS)? != 0 {
        return None;
    }
    let index = u32::try_from(device).ok()?;
    let limits = DeviceLimits { host_bytes_max: Bytes(u64::MAX), ..DeviceLimits::default() };
    let gpu = Arc::new(CudaGpu::open(&cuda()?, index, limits).ok()?);
    let gpus = vec![(EndpointId(0), Arc::clone(&gpu) as _)];
    let copier = Copier::new(gpus, Profile::default(), copy_options()).ok()?;
    // Threads and memory are there before the first copy is timed. A thread that starts while a library is loaded waits for the loader, which may be
    // the guest's, in this call.
    match copier.prepare() {
        Ok(()) | Err(CopyError::NotReady { .. }) => Some(Gpu { gpu, copier }),
        Err(_) => None,
    }
}

/// The GPU `device`, if the current context is its primary one.
fn opened(driver: &Driver, device: c_int) -> Option<Arc<Gpu>> {
    let mut gpus = gpus();
    let known = gpus.iter().find(|(other, _)| *other == device);
    let gpu = if let Some((_, known)) = known {
        known.clone()?
    } else {
        let before = driver::current_context(driver)?;
        let opened = open(driver, device).map(Arc::new);
        // Opening makes the primary context current, which the guest may have replaced by one of its own.
        driver::make_current(driver, before);
        gpus.push((device, opened.clone()));
        opened?
    };
    drop(gpus);
    gpu.gpu.is_current().ok().filter(|is| *is).map(|_| gpu)
}

/// The primary context of a device may be about to be destroyed: what is kept for it goes first.
pub(crate) fn forget_device(device: c_int) {
    if attention::is_off() {
        return;
    }
    expect_no_more(device);
    let mut gpus = gpus();
    let gone: Vec<_> = gpus.extract_if(.., |(other, _)| *other == device).collect();
    // Copies of other threads keep theirs until they end.
    drop(gpus);
    drop(gone);
}

/// Makes `copy`, whose direction is known, by the best known method, unless that is the driver's, and notes what the host's end is once
/// that is known.
pub(crate) fn copy(driver: &Driver, copy: Copy, made: &mut Made) -> Answer {
    let start = Instant::now();
    if !stack::is_enough() {
        return Answer::Left(DriverReason::SmallStack, None);
    }
    let _relaxed = Relaxed::new(driver);
    if driver::captures(driver, copy.stream) {
        return Answer::Left(DriverReason::Capture, None);
    }
    if !may_wait(driver, copy) {
        return Answer::Left(DriverReason::StreamBusy, None);
    }
    let repeats = pins::repeats(copy.host(), copy.bytes);
    let is_pinned = repeats.is_some_and(|repeats| repeats.is_pinned);
    if !is_pinned && !driver::is_ordinary(driver, copy.host(), copy.bytes) {
        made.host = Host::KnownToDriver;
        return Answer::Left(DriverReason::NotOrdinary, None);
    }
    made.host = Host::Ordinary;
    let known = driver::current_device(driver).and_then(|device| Some((device, chooser(device)?)));
    let Some((device, chooser)) = known else { return Answer::Left(DriverReason::Context, None) };
    // SAFETY: the bytes are only asked about, not read; the guest keeps them while its call lasts.
    let host = unsafe { std::slice::from_raw_parts(copy.host().cast::<u8>(), copy.bytes) };
    let direction = if copy.towards == Towards::Out { Direction::D2h } else { Direction::H2d };
    let mut chosen = chooser.choose_ordinary(direction, host, repeats);
    tell(Event::Chosen(chosen.choice().reason));
    if chosen.choice().method == Method::PinnedOnce {
        match pinned::copy(driver, copy, device) {
            Ok(()) => {
                tell(Event::MadePinned(copy, start.elapsed()));
                return Answer::Made(Became::PinnedOnce);
            }
            // It may have to be made by the driver, which is to see ordinary memory.
            Err(why @ (DriverReason::Failed | DriverReason::NotOnGpu)) => return Answer::Left(why, None),
            Err(_) => chosen = chooser.choose_ordinary(direction, host, None),
        }
    }
    if chosen.choice().method == Method::Pageable {
        // What the stream was given before is no part of the copy.
        let stream = may_return_at_once(copy).then_some(copy.stream);
        let timed = chosen.choice().is_timed() && driver::wait(driver, copy.stream);
        return Answer::Left(
            DriverReason::DriverFastest,
            timed.then(|| Timing { chosen, start: Instant::now(), stream }),
        );
    }
    match staged(driver, copy, device, chosen) {
        Ok(()) => {
            tell(Event::MadeByThreads(copy, start.elapsed()));
            Answer::Made(Became::Fast)
        }
        Err(why) => Answer::Left(why, None),
    }
}

/// Makes `copy` by several threads.
fn staged(driver: &Driver, copy: Copy, device: c_int, mut chosen: ChosenCopy<'_>) -> Result<(), DriverReason> {
    let Some(gpu) = opened(driver, device) else {
        chosen.failed(CopyAbsence::Passing);
        return Err(DriverReason::Context);
    };
    if !driver::on_device(driver, copy.there(), copy.bytes, device) {
        return Err(DriverReason::NotOnGpu);
    }
    if !driver::wait(driver, copy.stream) {
        return Err(DriverReason::Failed);
    }
    let host = copy.host().cast::<u8>();
    let make = |buffer: &Buffer| {
        let at = At { buffer, offset: 0 };
        match copy.towards {
            Towards::Out => {
                // SAFETY: the driver knows the range as plain memory of this GPU. The guest keeps both ends while its
                // call lasts, as for the driver's own call; a page that cannot be written raises the signal that the
                // driver's own copy raises there.
                let to = unsafe { std::slice::from_raw_parts_mut(host, copy.bytes) };
                gpu.copier.copy_out_as(to, at, chosen)
            }
            Towards::In | Towards::Unknown => {
                // SAFETY: the driver knows the range as plain memory of this GPU. The guest keeps both ends while its
                // call lasts, as for the driver's own call, for reading.
                let from = unsafe { std::slice::from_raw_parts(host, copy.bytes) };
                gpu.copier.copy_in_as(at, from, chosen)
            }
        }
    };
    // SAFETY: the driver knows the range as plain memory of this GPU. The guest keeps both ends while its call lasts, as for the
    // driver's own call.
    let made = unsafe { gpu.gpu.lend(copy.there(), copy.bytes, make) }.map_err(|_| DriverReason::Failed)?;
    made.map(|_| tell(Event::Timed)).map_err(|_| DriverReason::Failed)
}
