//! Copies between arrays, in the order of a stream: the library's copiers, one for each GPU, and what tickets keep.
#![allow(unsafe_code)]

use std::mem::forget;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use headway::copy::{
    Access, Caching, CopyTicket, Direction, Gpu, HostMemory, Method, RawCopy, Span, StreamCopier, StreamHandle,
    StreamOptions, WhichGpu, mostly_absent,
};
use headway::explain::{Exclusion, Question};
use headway::units::{Bytes, Nanos};
use pyo3::inspect::PyStaticExpr;
use pyo3::prelude::*;
use pyo3::type_hint_union;
use pyo3::types::{PyDict, PyString};

use crate::arrays::{Array, Keeper, Place, Role, check_pair, stream_handle};
use crate::callbacks;
use crate::errors::{self, Subject, is_timeout, json, options_error, raised};
use crate::sync::lock;
use crate::visits::{self, Visit};
use crate::wait::{self, EXIT_MAX};

/// How often a copy that waits lets Python's signals be looked at and waits again: the library gives up after 10 s each.
const WAITS: u32 = 6;
/// Between two looks at Python's signals: long enough for the library to ask the driver for errors meanwhile.
const LOOK: Duration = Duration::from_millis(150);
/// What a copy waits for a place among those under way.
const PLACE_MAX: Duration = Duration::from_secs(10);
/// Pages that are looked at to tell whether most of an array were never touched.
const SAMPLES: usize = 8;
/// Between two looks whether one of too many copies has ended.
const NAP: Duration = Duration::from_micros(50);

/// The copiers that were opened, by their GPU's number.
static COPIERS: RwLock<Vec<Arc<StreamCopier>>> = RwLock::new(Vec::new());
/// Held while one is opened, never with the interpreter's lock.
static OPENING: Mutex<()> = Mutex::new(());
/// Copies whose arrays are kept.
static UNDER_WAY: Mutex<Vec<Arc<Queued>>> = Mutex::new(Vec::new());
/// How often this process, or one that it comes from, was forked while it had this module.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Threads that are opening a copier.
static OPENINGS: AtomicU32 = AtomicU32::new(0);
/// Whether this process was forked meanwhile: locks of the library and the driver may be held for ever.
static FORKED_IN_OPENING: AtomicBool = AtomicBool::new(false);

pub(crate) fn failed(py: Python<'_>, error: &headway::Error) -> PyErr {
    raised(py, Subject::Other, error)
}

/// The copier of GPU number `gpu`; `None` = any that is open, else that of the current context.
pub(crate) fn copier(py: Python<'_>, gpu: Option<u32>) -> PyResult<Arc<StreamCopier>> {
    if FORKED_IN_OPENING.load(Ordering::Relaxed) {
        let text = "this process was forked while another thread opened the GPU; start processes by `spawn`, or before the first copy";
        return Err(options_error(py, text));
    }
    let open = || {
        let copiers = COPIERS.read().unwrap_or_else(PoisonError::into_inner);
        copiers.iter().find(|copier| gpu.is_none_or(|gpu| copier.gpu().index() == gpu)).map(Arc::clone)
    };
    if let Some(copier) = open() {
        return Ok(copier);
    }
    let opening = Opening::begin();
    let opened = py.detach(|| {
        let _alone = lock(&OPENING);
        if let Some(copier) = open() {
            return Ok(copier);
        }
        let which = gpu.map_or(WhichGpu::Current, WhichGpu::Index);
        let copier = Arc::new(StreamCopier::open(which, &StreamOptions::default())?);
        COPIERS.write().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&copier));
        Ok(copier)
    });
    drop(opening);
    opened.map_err(|error| failed(py, &error))
}

/// Held while a copier is opened, and until the interpreter's lock is there again.
struct Opening(());

impl Opening {
    fn begin() -> Self {
        OPENINGS.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        OPENINGS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A copy whose end the GPU or a thread will tell.
struct Queued {
    /// `None` once the end was seen.
    ticket: Mutex<Option<CopyTicket>>,
    /// Both arrays, until the end was seen.
    keepers: Mutex<Option<[Keeper; 2]>>,
    begun: Instant,
    took: OnceLock<u64>,
    forks: u32,
}

impl Queued {
    /// Whether the copy has ended. Then its arrays are let go, for which the interpreter's lock is held.
    fn has_ended(&self, py: Python<'_>) -> PyResult<bool> {
        let _visit = Visit::of_python(py);
        let mut arrays = Vec::new();
        self.ended(py, &mut arrays)
    }

    /// Whether the copy has ended. Then its arrays come to `arrays`: what they run when they go may copy, and finds this one's place free.
    fn ended(&self, py: Python<'_>, arrays: &mut Vec<[Keeper; 2]>) -> PyResult<bool> {
        let Some(ticket) = self.ticket(py)? else { return Ok(true) };
        match ticket.is_done() {
            Ok(true) => {
                self.took.get_or_init(|| nanoseconds(self.begun));
                drop(lock(&self.ticket).take());
                arrays.extend(lock(&self.keepers).take());
                Ok(true)
            }
            Ok(false) => Ok(false),
            Err(error) => {
                self.leave();
                Err(failed(py, &error))
            }
        }
    }

    fn ticket(&self, py: Python<'_>) -> PyResult<Option<CopyTicket>> {
        if self.forks != FORKS.load(Ordering::Relaxed) {
            return Err(options_error(
                py,
                "the copy was asked for by the process that this one was forked from; only that one can wait for it",
            ));
        }
        Ok(lock(&self.ticket).clone())
    }

    /// Keeps the arrays for ever, since nobody knows when the GPU leaves them alone, and the copier with its memory.
    fn leave(&self) {
        forget(lock(&self.ticket).clone());
        forget(lock(&self.keepers).take());
    }
}

/// Lets go of the arrays of copies that have ended.
fn sweep(py: Python<'_>) {
    let all: Vec<_> = lock(&UNDER_WAY).iter().map(Arc::clone).collect();
    if all.is_empty() {
        return;
    }
    let _visit = Visit::of_python(py);
    let mut arrays = Vec::new();
    let over: Vec<_> = all.into_iter().filter(|queued| queued.ended(py, &mut arrays).unwrap_or(true)).collect();
    if !over.is_empty() {
        lock(&UNDER_WAY).retain(|queued| !over.iter().any(|ended| Arc::ptr_eq(queued, ended)));
    }
    // The lists are free, and the places of all that have ended.
    drop(arrays);
}

/// A copy: whether it has ended, how it was made, and how long it took.
///
/// `wait` waits for its end, and so does `await`. Both arrays are kept until then, also when the ticket is dropped.
#[pyclass(frozen, module = "headway")]
pub(crate) struct Ticket {
    /// `None` for one that had ended when the call returned.
    queued: Option<Arc<Queued>>,
    bytes: usize,
    method: Option<Method>,
    took: Option<u64>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let Some(queued) = &self.queued else { return };
        let forked = queued.forks != FORKS.load(Ordering::Relaxed);
        let Some(ticket) = lock(&queued.ticket).clone().filter(|_| !forked) else { return };
        // A thread that cannot be started leaves the arrays to the next copy.
        let Some(Ok(sender)) = Python::try_attach(callbacks::sender) else { return };
        let _ = ticket.when_done(move |_| drop(sender.send(Box::new(sweep))));
    }
}

#[pymethods]
impl Ticket {
    /// Whether the copy has ended.
    ///
    /// Raises:
    ///     CopyError: It failed. Nothing is known of the bytes of the target then.
    #[getter]
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        self.queued.as_ref().map_or(Ok(true), |queued| queued.has_ended(py))
    }

    /// Bytes that are copied.
    #[getter]
    fn nbytes(&self) -> usize {
        self.bytes
    }

    /// How the copy is made, as `headway explain` names methods; `None` for one of no bytes.
    #[getter]
    fn method(&self) -> Option<String> {
        self.method.map(|method| method.to_string())
    }

    /// Nanoseconds from the call until the end was seen, with what the stream was given before; `None` until then. Of a copy in a stream,
    /// `done`, `wait` and `await` see the end.
    #[getter]
    fn took_ns(&self) -> Option<u64> {
        self.took.or_else(|| self.queued.as_ref()?.took.get().copied())
    }

    /// Waits until the bytes are there. Other threads run meanwhile, and Ctrl-C ends the wait.
    ///
    /// Args:
    ///     timeout: Seconds, as everywhere in Python, or a text such as `"20 ms"`; `None` = as long as it takes.
    ///
    /// Raises:
    ///     CopyTimeout: Time is up. The copy goes on, and can be waited for again.
    ///     CopyError: It failed. Nothing is known of the bytes of the target then.
    #[pyo3(signature = (timeout=Some(Timeout::Seconds(60.0))), text_signature = "($self, timeout=60.0)")]
    fn wait(&self, py: Python<'_>, timeout: Option<Timeout>) -> PyResult<()> {
        let timeout = timeout.map(|timeout| timeout.duration(py)).transpose()?;
        let Some(queued) = &self.queued else { return Ok(()) };
        let start = Instant::now();
        while !queued.has_ended(py)? {
            let Some(ticket) = queued.ticket(py)? else { return Ok(()) };
            let left = timeout.map(|limit| limit.saturating_sub(start.elapsed()));
            match py.detach(|| ticket.wait(left.unwrap_or(LOOK).min(LOOK))) {
                Err(error) if is_timeout(&error) => {
                    if let Some(limit) = timeout.filter(|limit| start.elapsed() >= *limit) {
                        return Err(late(py, "a copy in the order of a stream", limit));
                    }
                }
                // The error is that of the next look.
                _ => {}
            }
            py.check_signals()?;
        }
        Ok(())
    }

    /// Calls `then` on a thread of the library's when the copy has ended: with nothing, or with the exception. `False` = nobody will, since the
    /// interpreter ends, or that thread is the caller.
    fn _when_done(&self, py: Python<'_>, then: Py<PyAny>) -> PyResult<bool> {
        if visits::are_over() || callbacks::is_own_thread() {
            return Ok(false);
        }
        let ticket = match &self.queued {
            Some(queued) => queued.ticket(py)?,
            None => None,
        };
        let Some(ticket) = ticket else { return then.call1(py, (py.None(),)).map(|_| true) };
        let sender = callbacks::sender(py)?;
        let watched = ticket.when_done(move |result| {
            let callback = move |py: Python<'_>| {
                let error = result.err().map(|error| failed(py, &error).into_value(py).into_any());
                if let Err(error) = then.call1(py, (error,)) {
                    error.write_unraisable(py, None);
                }
                sweep(py);
            };
            drop(sender.send(Box::new(callback)));
        });
        watched.map(|()| true).map_err(|error| failed(py, &error))
    }

    fn __await__(slf: Py<Self>, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        py.import("headway._tickets")?.getattr("wait_in_loop")?.call1((slf,))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let state = match self.done(py) {
            Ok(true) => "done",
            Ok(false) => "under way",
            Err(_) => "failed",
        };
        let by = self.method.map(|method| format!(" by {method}")).unwrap_or_default();
        format!("<headway.Ticket: {} bytes{by}, {state}>", self.bytes)
    }
}

/// The error of a wait whose time is up.
pub(crate) fn late(py: Python<'_>, what: &str, limit: Duration) -> PyErr {
    let after = Nanos(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
    let what = what.to_owned();
    let late = headway::copy::CopyError::Timeout { what, after, completed_prefix: 0 };
    failed(py, &headway::Error::from(late))
}

/// How long to wait.
pub(crate) enum Timeout {
    Text(String),
    Seconds(f64),
}

impl<'py> FromPyObject<'_, 'py> for Timeout {
    type Error = PyErr;
    const INPUT_TYPE: PyStaticExpr = type_hint_union!(String::INPUT_TYPE, f64::INPUT_TYPE);

    /// By hand: what pyo3 derives asks for the interpreter anew, which fails late in its end.
    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if given.is_instance_of::<PyString>() {
            return Ok(Self::Text(given.extract()?));
        }
        Ok(Self::Seconds(given.extract()?))
    }
}

impl Timeout {
    pub(crate) fn duration(&self, py: Python<'_>) -> PyResult<Duration> {
        match self {
            Self::Text(text) => match text.parse::<Nanos>() {
                Ok(time) => Ok(Duration::from_nanos(time.0)),
                Err(error) => Err(options_error(py, &error.to_string())),
            },
            Self::Seconds(seconds) => Duration::try_from_secs_f64(*seconds).map_err(|_| {
                options_error(py, &format!("`timeout={seconds}` is no time to wait; give seconds of 0 or more"))
            }),
        }
    }
}

/// Both ends of a copy.
pub(crate) struct Ends {
    to: Array,
    from: Array,
}

impl Ends {
    pub(crate) fn of(dst: &Bound<'_, PyAny>, src: &Bound<'_, PyAny>, stream: Option<usize>) -> PyResult<Self> {
        let stays = stream.is_some();
        let to = Array::of(dst, Role::Target, stream, stays)?;
        let from = Array::of(src, Role::Source, stream, stays)?;
        check_pair(dst.py(), &to, &from)?;
        Ok(Self { to, from })
    }

    pub(crate) fn direction(&self) -> Direction {
        if self.from.place == Place::Host { Direction::H2d } else { Direction::D2h }
    }

    pub(crate) fn on_gpu(&self) -> &Array {
        if self.from.place == Place::Host { &self.to } else { &self.from }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.to.bytes
    }

    /// The array in host memory. Its pages are asked for, and its bytes are not read.
    fn host(&self) -> &[u8] {
        let on_host = if self.direction() == Direction::H2d { &self.from } else { &self.to };
        // SAFETY: an array in host memory by its package's word, which this keeps.
        unsafe {
            match on_host.bytes {
                0 => &[],
                bytes => std::slice::from_raw_parts(std::ptr::with_exposed_provenance(on_host.address as usize), bytes),
            }
        }
    }

    /// Whether the host memory is page-locked.
    pub(crate) fn is_pinned(&self, py: Python<'_>, copier: &StreamCopier) -> PyResult<bool> {
        let (direction, host) = (self.direction(), self.host());
        let asked = py.detach(|| copier.advice(direction, host));
        asked.map(|(method, _)| method == Method::Dma).map_err(|error| failed(py, &error))
    }

    /// The copier of the GPU that has one of them.
    pub(crate) fn copier(&self, py: Python<'_>) -> PyResult<Arc<StreamCopier>> {
        if let Place::Gpu(gpu @ Some(_)) = self.on_gpu().place {
            return copier(py, gpu);
        }
        let any = copier(py, None)?;
        let address = self.on_gpu().address;
        match py.detach(|| any.gpu_of(address)).map_err(|error| failed(py, &error))? {
            Some(gpu) if gpu != any.gpu().index() => copier(py, Some(gpu)),
            // If it is no GPU's, the copy says so.
            _ => Ok(any),
        }
    }

    pub(crate) fn raw(&self, bytes: usize, stream: usize) -> RawCopy {
        // SAFETY: both arrays are of this size, by their packages' word, and are kept until the copy has ended. The documentation of
        // `headway.copy` asks the caller not to use them meanwhile, but in the order of the stream.
        unsafe { RawCopy::new(self.to.address, self.from.address, bytes, StreamHandle(stream)) }
    }

    pub(crate) fn keepers(self) -> [Keeper; 2] {
        [self.to.keeper, self.from.keeper]
    }
}

/// Copies `src` to `dst`. Without a stream, the bytes are there when this returns. `bulk`: in a stream, with short turns.
#[pyfunction]
#[pyo3(signature = (dst, src, stream, bulk))]
pub(crate) fn copy(
    py: Python<'_>,
    dst: &Bound<'_, PyAny>,
    src: &Bound<'_, PyAny>,
    stream: Option<&Bound<'_, PyAny>>,
    bulk: bool,
) -> PyResult<Ticket> {
    let _visit = Visit::of_python(py);
    let stream = stream.map(stream_handle).transpose()?;
    let ends = Ends::of(dst, src, stream)?;
    let bytes = ends.to.bytes;
    if bytes == 0 {
        return Ok(Ticket { queued: None, bytes, method: None, took: Some(0) });
    }
    let copier = ends.copier(py)?;
    match stream {
        Some(stream) => in_stream(py, &copier, ends, stream, bulk),
        None => at_once(py, &copier, ends),
    }
}

/// Makes the copy behind all that the array's stream was given.
fn at_once(py: Python<'_>, copier: &StreamCopier, ends: Ends) -> PyResult<Ticket> {
    let (bytes, stream) = (ends.to.bytes, ends.on_gpu().stream.unwrap_or(0));
    let begun = Instant::now();
    let mut waits = 1;
    let made = loop {
        let raw = ends.raw(bytes, stream);
        match py.detach(|| copier.copy(raw)) {
            Ok(made) => break made,
            Err(error) if has_place_soon(py, &error, begun)? => {}
            Err(error) => {
                let is_late = is_timeout(&error);
                let again = if is_late && waits < WAITS { py.check_signals() } else { Err(failed(py, &error)) };
                if let Err(error) = again {
                    if is_late || waits > 1 {
                        // What was queued may still use the arrays.
                        forget(ends);
                    }
                    return Err(error);
                }
                waits += 1;
            }
        }
    };
    let took = nanoseconds(begun);
    let method = made.map_or(Method::Dma, |report| report.method);
    Ok(Ticket { queued: None, bytes, method: Some(method), took: Some(took) })
}

/// Queues the copy in `stream`.
fn in_stream(py: Python<'_>, copier: &StreamCopier, ends: Ends, stream: usize, bulk: bool) -> PyResult<Ticket> {
    let (bytes, begun) = (ends.to.bytes, Instant::now());
    if let Some(other) = ends.on_gpu().stream.filter(|other| (*other).max(1) != stream.max(1)) {
        // What wrote or reads the array is in another stream: its work so far comes first.
        while let Err(error) = py.detach(|| copier.copy(ends.raw(0, other))) {
            if !has_place_soon(py, &error, begun)? {
                return Err(failed(py, &error));
            }
        }
    }
    let ticket = loop {
        sweep(py);
        let raw = ends.raw(bytes, stream);
        let raw = if bulk { raw.bulk() } else { raw };
        match py.detach(|| copier.copy_async(raw)) {
            Ok(ticket) => break ticket,
            Err(error) if has_place_soon(py, &error, begun)? => {}
            Err(error) => return Err(failed(py, &error)),
        }
    };
    let method = Some(ticket.method());
    let queued = Arc::new(Queued {
        ticket: Mutex::new(Some(ticket)),
        keepers: Mutex::new(Some(ends.keepers())),
        begun,
        took: OnceLock::new(),
        forks: FORKS.load(Ordering::Relaxed),
    });
    lock(&UNDER_WAY).push(Arc::clone(&queued));
    Ok(Ticket { queued: Some(queued), bytes, method, took: None })
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Whether a copy, for which others left no place, may be tried again: one of them may have ended meanwhile.
fn has_place_soon(py: Python<'_>, error: &headway::Error, begun: Instant) -> PyResult<bool> {
    let is_full = match error.failure() {
        headway::Failure::Copy(headway::copy::CopyError::Refused { limit, .. }) => *limit == "copies under way",
        _ => false,
    };
    if !is_full || begun.elapsed() >= PLACE_MAX {
        return Ok(false);
    }
    py.detach(|| std::thread::sleep(NAP));
    py.check_signals()?;
    sweep(py);
    Ok(true)
}

/// How `copy` would make such a copy now: the method, its threads, and what that choice is based on. Then what all methods cost on
/// `machine`, as the JSON of `headway explain`.
#[pyfunction]
#[pyo3(signature = (dst, src, machine))]
pub(crate) fn explain_copy(
    py: Python<'_>,
    dst: &Bound<'_, PyAny>,
    src: &Bound<'_, PyAny>,
    machine: String,
) -> PyResult<(String, u32, String, String)> {
    let ends = Ends::of(dst, src, None)?;
    let (copier, direction, bytes) = (ends.copier(py)?, ends.direction(), ends.to.bytes);
    let host = ends.host();
    let asked = py.detach(|| {
        let (method, threads) = copier.advice(direction, host)?;
        let memory = match method {
            Method::Dma => HostMemory::Pinned,
            _ if direction == Direction::D2h && mostly_absent(host, SAMPLES) => HostMemory::Untouched,
            _ => HostMemory::Touched,
        };
        let excluded = vec![Exclusion::Multipath];
        let bytes = Bytes(bytes as u64);
        let question = Question { machine, direction, bytes, memory, excluded, ..Question::default() };
        Ok((method, threads, headway::explain::explain(&question)?))
    });
    let (method, threads, explained) = asked.map_err(|error| failed(py, &error))?;
    Ok((method.to_string(), threads, copier.basis(), json(&explained)?))
}

/// Page-locked memory. It is given back when nothing refers to this any more.
#[pyclass(frozen, module = "headway._native")]
pub(crate) struct PinnedMemory {
    address: usize,
    bytes: usize,
    memory: Mutex<Option<Span>>,
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if visits::are_over() {
            // The driver may wait for streams that never rest.
            forget(lock(&self.memory).take());
        }
    }
}

#[pymethods]
impl PinnedMemory {
    /// So many bytes, zeroed, for copies to and from GPU number `gpu`; `None` = the GPU that was used first.
    #[new]
    #[pyo3(signature = (bytes, gpu))]
    fn new(py: Python<'_>, bytes: usize, gpu: Option<u32>) -> PyResult<Self> {
        let copier = copier(py, gpu)?;
        let pinned = py.detach(|| {
            let buffer = copier.gpu().pinned_buffer(bytes, Caching::Cached)?;
            let mut span = buffer.claim(0..bytes, Access::Write)?;
            let address = span.bytes_mut()?.as_mut_ptr().expose_provenance();
            Ok(Self { address, bytes, memory: Mutex::new(Some(span)) })
        });
        pinned.map_err(|error: headway::copy::DeviceError| {
            failed(py, &headway::Error::from(headway::copy::CopyError::from(error)))
        })
    }

    /// For NumPy, whose arrays keep this.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("shape", (self.bytes,))?;
        interface.set_item("data", (self.address, false))?;
        Ok(interface.into_any())
    }
}

/// At the interpreter's end: waits for copies that are under way and threads that tell of them, and closes the copiers.
#[pyfunction]
pub(crate) fn finish_copies(py: Python<'_>) -> PyResult<()> {
    errors::keep(py);
    let (mut end, mut interrupted) = (Instant::now() + EXIT_MAX, Ok(()));
    let all = std::mem::take(&mut *lock(&UNDER_WAY));
    for queued in all {
        while let Some(ticket) = queued.ticket(py).ok().flatten() {
            let left = end.saturating_duration_since(Instant::now());
            // An error is that of the look behind.
            let is_late = py.detach(|| ticket.wait(left.min(LOOK))).is_err_and(|error| is_timeout(&error));
            if !is_late || left.is_zero() {
                break;
            }
            if let Err(error) = py.check_signals() {
                // Ctrl-C ends the wait for all.
                (end, interrupted) = (Instant::now(), Err(error));
            }
        }
        if !queued.has_ended(py).unwrap_or(false) {
            queued.leave();
        }
    }
    if !FORKED_IN_OPENING.load(Ordering::Relaxed) {
        let copiers = std::mem::take(&mut *COPIERS.write().unwrap_or_else(PoisonError::into_inner));
        // Unpinning waits for all streams, also for those of which the program waits for nothing any more.
        let closed = wait::close(py, copiers);
        interrupted = interrupted.and(closed);
    }
    let finished = visits::finish(py, end);
    interrupted.and(finished)
}

/// In a forked child: leaves what belongs to the parent as it is.
#[pyfunction]
pub(crate) fn leave_copies() {
    visits::forget_all();
    callbacks::forget_thread();
    FORKS.fetch_add(1, Ordering::Relaxed);
    if OPENINGS.load(Ordering::Relaxed) > 0 {
        FORKED_IN_OPENING.store(true, Ordering::Relaxed);
    }
    forget(std::mem::take(&mut *lock(&UNDER_WAY)));
    // Its threads are not here; what it is asked for is refused with a text that says why.
}
