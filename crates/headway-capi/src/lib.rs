//! Headway for C and C++: copies, flows, and plans that a program runs.
//!
//! Each function says who owns what and which threads may call it. Errors are values; [`headway_last_error`] has their text. A panic
//! becomes [`Status::Internal`] and does not reach the caller.
#![allow(unsafe_code)]

mod flow;
mod program;

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::IntoRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use headway::copy::{CopyError, CopyTicket, DeviceError, RawCopy, StreamCopier, StreamHandle, StreamOptions, WhichGpu};
use headway::flow::FlowError;
use headway::run::ProgramError;
use headway::units::Bytes;
use headway::{Diagnosis, Error, Failure};

pub use self::flow::*;
pub use self::program::*;

/// How a call ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// As it was to.
    Ok = 0,
    /// The copy has not ended yet.
    NotReady = 1,
    /// Time is up, and what was asked for goes on.
    Timeout = 2,
    /// The caller's mistake: addresses, a stream that is being captured, a null pointer.
    Invalid = 3,
    /// A limit is reached; try again when copies have ended.
    Refused = 4,
    /// No driver, no GPU, or a driver that cannot do this.
    Unavailable = 5,
    /// The driver or the GPU failed. Nothing is known of the destination.
    Failed = 6,
    /// A fault of Headway's.
    Internal = 7,
    /// What was asked for cannot be promised; nothing has changed.
    NotPromised = 8,
}

/// What a copier may use. Set it with `headway_options_init`, then change what differs.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CopierOptions {
    /// Bytes of this structure, by which later versions know which fields there are.
    pub size: usize,
    /// Threads of each of the two kinds of copies, those that wait and those that do not; 1 to 1,024.
    pub threads: u32,
    /// Page-locked memory for copies that wait, in bytes.
    pub pinned_bytes: u64,
    /// A copy that makes no progress for so many nanoseconds is given up. The call returns when the GPU has ended what it had begun; if it does
    /// not within ten minutes, the process is ended.
    pub patience_ns: u64,
    /// Machine by name or file, whose profile says what copies cost; null = built-in figures.
    pub machine: *const c_char,
}

/// What a copy did.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CopyResult {
    /// Bytes copied.
    pub bytes: u64,
    /// Nanoseconds that it took, without the wait for the stream; 0 for page-locked memory.
    pub nanoseconds: u64,
    /// How it was made, as `headway explain` names methods; empty for page-locked memory.
    pub method: [c_char; 32],
}

/// A copier for one GPU. Any thread may use it, several at a time.
pub struct Copier(Arc<StreamCopier>);

/// A copy that was queued. Any thread may use it, several at a time.
pub struct Ticket(CopyTicket);

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

fn remember(text: &str) {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // A thread that ends, or a process, may have let go of it already.
    let _ = LAST.try_with(|last| last.replace(text));
}

/// What went wrong, as a status, with its text for the caller.
fn failed(error: &Error) -> Status {
    let mut text = error.to_string();
    for cause in error.causes() {
        text = format!("{text}: {cause}");
    }
    // The text of a place in a file ends with the remedy.
    if let Some(help) = error.help().filter(|_| error.place().is_none()) {
        text = format!("{text}; {help}");
    }
    remember(&text);
    let of_device = |error: &DeviceError| match error {
        DeviceError::Unavailable { .. } => Status::Unavailable,
        DeviceError::Invalid { .. } => Status::Invalid,
        DeviceError::Refused { .. } | DeviceError::OutOfMemory { .. } => Status::Refused,
        DeviceError::Timeout { .. } => Status::Timeout,
        _ => Status::Failed,
    };
    match error.failure() {
        Failure::Backend { source, .. } => of_device(source),
        Failure::Copy(CopyError::Invalid { .. } | CopyError::Overlap { .. }) => Status::Invalid,
        Failure::Copy(CopyError::Refused { .. }) => Status::Refused,
        Failure::Copy(CopyError::Timeout { .. }) => Status::Timeout,
        Failure::Copy(CopyError::Unavailable { .. } | CopyError::NotReady { .. }) => Status::Unavailable,
        Failure::Copy(CopyError::Failed { source, .. }) => of_device(source),
        Failure::Copy(_) => Status::Failed,
        Failure::Flow(_) if error.is_answer() => Status::NotPromised,
        Failure::Flow(FlowError::Late { .. } | FlowError::Unsettled { .. }) => Status::Timeout,
        Failure::Flow(FlowError::Thread { .. }) => Status::Refused,
        Failure::Flow(FlowError::Told { .. } | FlowError::Closed { .. } | FlowError::BrokerLost { .. }) => {
            Status::Failed
        }
        Failure::Client(_) => Status::Unavailable,
        Failure::NotAccepted { .. } => Status::NotPromised,
        Failure::Program(_) if error.is_answer() => Status::NotPromised,
        Failure::Program(ProgramError::Late { .. }) => Status::Timeout,
        Failure::Program(ProgramError::Ended { .. }) | Failure::Callback { .. } | Failure::Run(_) => Status::Failed,
        Failure::Device(source) => of_device(source),
        _ => Status::Invalid,
    }
}

/// Runs a call's body. A panic in it becomes a status, and a text for `headway_last_error`.
fn guarded(body: impl FnOnce() -> Result<Status, Error>) -> Status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => status,
        Ok(Err(error)) => failed(&error),
        Err(_) => {
            remember("a fault inside Headway; its message is on standard error");
            Status::Internal
        }
    }
}

/// Ends what the caller was given; null is allowed.
///
/// # Safety
/// `owned` is null or was made by `Box::into_raw`, and this is its last use.
unsafe fn release<T>(owned: *mut T) {
    if !owned.is_null() {
        guarded(|| {
            // SAFETY: the caller's promise.
            drop(unsafe { Box::from_raw(owned) });
            Ok(Status::Ok)
        });
    }
}

/// A text of the caller's; `None` for null.
///
/// # Safety
/// `from` is null or a text that ends with 0.
unsafe fn text(from: *const c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    (!from.is_null()).then(|| unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned())
}

/// Writes as much of `text` as fits before the last byte, which stays 0.
fn fill(place: &mut [c_char], text: &str) {
    let room = place.len() - 1;
    for (place, byte) in place[..room].iter_mut().zip(text.bytes()) {
        *place = byte as c_char;
    }
}

fn invalid(what: &str) -> Status {
    remember(what);
    Status::Invalid
}

/// The version of the library, for people. The text lives as long as the program.
#[unsafe(no_mangle)]
pub extern "C" fn headway_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// The text of the calling thread's last call that did not end with `HEADWAY_STATUS_OK` or `HEADWAY_STATUS_NOT_READY`. The text lives until
/// this thread's next call of the library that fails.
#[unsafe(no_mangle)]
pub extern "C" fn headway_last_error() -> *const c_char {
    let text = LAST.try_with(|last| last.borrow().as_ptr());
    text.unwrap_or(c"the thread is ending, and has no texts of errors any more".as_ptr())
}

/// Sets the defaults of a copier.
///
/// # Safety
/// `options` is null or points to a structure of the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_options_init(options: *mut CopierOptions) {
    let usual = StreamOptions::default();
    let made = CopierOptions {
        size: size_of::<CopierOptions>(),
        threads: usual.threads,
        pinned_bytes: usual.pinned.0,
        patience_ns: u64::try_from(usual.patience.as_nanos()).unwrap_or(u64::MAX),
        machine: std::ptr::null(),
    };
    if !options.is_null() {
        // SAFETY: the caller's promise.
        unsafe { options.write(made) };
    }
}

/// Opens a copier for GPU number `gpu` of the driver; -1 = the GPU whose primary context is current on the calling thread, or GPU 0 if there
/// is none. `options` may be null. The current context stays as it is. On success `*copier` is the caller's, to be closed with
/// `headway_copier_close`.
///
/// # Safety
/// `options` is null or was set by `headway_options_init`; `copier` points to a place for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_copier_open(
    gpu: c_int,
    options: *const CopierOptions,
    copier: *mut *mut Copier,
) -> Status {
    let which = match u32::try_from(gpu) {
        Ok(index) => Ok(WhichGpu::Index(index)),
        Err(_) if gpu == -1 => Ok(WhichGpu::Current),
        Err(_) => Err("gpu is below -1: name a GPU by its number, or the current one by -1"),
    };
    // SAFETY: the caller's promise.
    unsafe { open(which, options, copier) }
}

/// As `headway_copier_open`, for the GPU with a UUID as `nvidia-smi -L` prints it.
///
/// # Safety
/// The caller keeps the promise of `headway_copier_open`; `uuid` is a text that ends with 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_copier_open_uuid(
    uuid: *const c_char,
    options: *const CopierOptions,
    copier: *mut *mut Copier,
) -> Status {
    // SAFETY: the caller's promise.
    let which = unsafe { text(uuid) }.map(WhichGpu::Uuid).ok_or("uuid is null");
    // SAFETY: the caller's promise.
    unsafe { open(which, options, copier) }
}

/// # Safety
/// The caller keeps the promise of `headway_copier_open`.
unsafe fn open(which: Result<WhichGpu, &str>, options: *const CopierOptions, copier: *mut *mut Copier) -> Status {
    if copier.is_null() {
        return invalid("copier is null: there is no place for the result");
    }
    // SAFETY: the caller's promise.
    unsafe { copier.write(std::ptr::null_mut()) };
    let which = match which {
        Ok(which) => which,
        Err(why) => return invalid(why),
    };
    let mut chosen = StreamOptions::default();
    if !options.is_null() {
        // SAFETY: the caller's promise. The size comes first in every version, and says how much more may be read.
        if unsafe { (&raw const (*options).size).read() } != size_of::<CopierOptions>() {
            return invalid("options.size is not this library's: call headway_options_init, or use its own header");
        }
        // SAFETY: the caller's promise: a structure of this size.
        let CopierOptions { size: _, threads, pinned_bytes, patience_ns, machine } = unsafe { options.read() };
        chosen.threads = threads;
        chosen.pinned = Bytes(pinned_bytes);
        chosen.patience = Duration::from_nanos(patience_ns);
        // SAFETY: the caller's promise.
        chosen.machine = unsafe { text(machine) };
    }
    guarded(|| {
        let opened = StreamCopier::open(which, &chosen)?;
        // SAFETY: the caller's promise.
        unsafe { copier.write(Box::into_raw(Box::new(Copier(Arc::new(opened))))) };
        Ok(Status::Ok)
    })
}

/// Closes a copier; null is allowed. Waits some seconds at most for copies that were queued; what has not ended then goes on, and its tickets
/// stay valid.
///
/// # Safety
/// `copier` is null or came from `headway_copier_open` and is not used by any thread any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_copier_close(copier: *mut Copier) {
    // SAFETY: the caller's promise.
    unsafe { release(copier) };
}

/// Copies `bytes` bytes from `from` to `to`, of which one is memory of the copier's GPU and the other host memory, after all that `stream` (a
/// `CUstream` or `cudaStream_t`; null = the legacy default stream) was given before. Returns when the bytes are there.
/// `HEADWAY_STATUS_TIMEOUT`: the copy may go on, and uses page-locked memory and the GPU's until the stream has passed it. `report` may be null.
///
/// # Safety
/// Both ranges are the caller's for `bytes` bytes, and nobody writes the source or uses the destination until the copy has ended, but in the
/// order of the stream. The stream is of the GPU's primary context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_copy(
    copier: *const Copier,
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    stream: *mut c_void,
    report: *mut CopyResult,
) -> Status {
    // SAFETY: the caller's promise.
    let Some(Copier(copier)) = (unsafe { copier.as_ref() }) else { return invalid("copier is null") };
    guarded(|| {
        // SAFETY: the caller's promise.
        let made = copier.copy(unsafe { raw(to, from, bytes, stream) })?;
        if !report.is_null() {
            let mut method = [0; 32];
            fill(&mut method, &made.as_ref().map(|made| made.method.to_string()).unwrap_or_default());
            let nanoseconds = made.map_or(0, |made| made.observed.0);
            // SAFETY: the caller's promise.
            unsafe { report.write(CopyResult { bytes: bytes as u64, nanoseconds, method }) };
        }
        Ok(Status::Ok)
    })
}

/// Queues such a copy and returns at once. The copy begins after all that `stream` was given before, and what the stream is given later
/// begins after the copy. The call waits only if the driver's queues are full: behind some gigabytes. On success `*ticket` is the
/// caller's, to be freed with `headway_ticket_free`.
///
/// # Safety
/// The caller keeps the promise of `headway_copy`, until the ticket says that the copy has ended. `ticket` points to a place for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_copy_async(
    copier: *const Copier,
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    stream: *mut c_void,
    ticket: *mut *mut Ticket,
) -> Status {
    if ticket.is_null() {
        return invalid("ticket is null: there is no place for the result");
    }
    // SAFETY: the caller's promise.
    unsafe { ticket.write(std::ptr::null_mut()) };
    // SAFETY: the caller's promise.
    let Some(Copier(copier)) = (unsafe { copier.as_ref() }) else { return invalid("copier is null") };
    guarded(|| {
        // SAFETY: the caller's promise.
        let queued = copier.copy_async(unsafe { raw(to, from, bytes, stream) })?;
        // SAFETY: the caller's promise.
        unsafe { ticket.write(Box::into_raw(Box::new(Ticket(queued)))) };
        Ok(Status::Ok)
    })
}

/// # Safety
/// The caller keeps the promise of `headway_copy`.
unsafe fn raw(to: *mut c_void, from: *const c_void, bytes: usize, stream: *mut c_void) -> RawCopy {
    let (to, from) = (to.expose_provenance() as u64, from.expose_provenance() as u64);
    // SAFETY: the caller's promise.
    unsafe { RawCopy::new(to, from, bytes, StreamHandle(stream.addr())) }
}

/// Whether the copy has ended: `HEADWAY_STATUS_OK`, `HEADWAY_STATUS_NOT_READY`, or an error. Calls nothing of the driver.
///
/// # Safety
/// `ticket` came from `headway_copy_async`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_ticket_query(ticket: *const Ticket) -> Status {
    // SAFETY: the caller's promise.
    let Some(Ticket(ticket)) = (unsafe { ticket.as_ref() }) else { return invalid("ticket is null") };
    guarded(|| ticket.is_done().map(|done| if done { Status::Ok } else { Status::NotReady }))
}

/// Waits until the copy has ended, for `timeout_ns` nanoseconds at most (`HEADWAY_STATUS_TIMEOUT`; the copy goes on).
///
/// # Safety
/// The caller keeps the promise of `headway_ticket_query`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_ticket_wait(ticket: *const Ticket, timeout_ns: u64) -> Status {
    // SAFETY: the caller's promise.
    let Some(Ticket(ticket)) = (unsafe { ticket.as_ref() }) else { return invalid("ticket is null") };
    guarded(|| ticket.wait(Duration::from_nanos(timeout_ns)).map(|()| Status::Ok))
}

/// A pointer of the caller's that another thread is to get.
struct Context(*mut c_void);
// SAFETY: the caller of `headway_ticket_when_done` promises that another thread may use it.
unsafe impl Send for Context {}

impl Context {
    fn get(&self) -> *mut c_void {
        self.0
    }
}

/// Calls `then` once, on a thread of the library's, when the copy has ended. It must return soon (no `longjmp` out of it, no `pthread_exit`), and may call nothing of this library but
/// `headway_last_error`. The ticket may be freed before.
///
/// # Safety
/// The caller keeps the promise of `headway_ticket_query`; `then` may be called with `context` on another thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_ticket_when_done(
    ticket: *const Ticket,
    then: Option<unsafe extern "C" fn(status: Status, context: *mut c_void)>,
    context: *mut c_void,
) -> Status {
    // SAFETY: the caller's promise.
    let Some(Ticket(ticket)) = (unsafe { ticket.as_ref() }) else { return invalid("ticket is null") };
    let Some(then) = then else { return invalid("then is null") };
    let context = Context(context);
    guarded(|| {
        ticket.when_done(move |result| {
            let status = result.map_or_else(|error| failed(&error), |()| Status::Ok);
            // SAFETY: the caller's promise.
            unsafe { then(status, context.get()) };
        })?;
        Ok(Status::Ok)
    })
}

/// A descriptor that becomes readable when the copy has ended, for `poll` and `epoll`; the caller closes it. -1 = error.
///
/// # Safety
/// The caller keeps the promise of `headway_ticket_query`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_ticket_descriptor(ticket: *const Ticket) -> c_int {
    let mut descriptor = -1;
    // SAFETY: the caller's promise.
    match unsafe { ticket.as_ref() } {
        None => drop(invalid("ticket is null")),
        Some(Ticket(ticket)) => {
            guarded(|| {
                descriptor = ticket.descriptor()?.into_raw_fd();
                Ok(Status::Ok)
            });
        }
    }
    descriptor
}

/// Frees a ticket; null is allowed. The copy goes on, and its memory must stay until it has ended.
///
/// # Safety
/// `ticket` is null or came from `headway_copy_async` and is not used by any thread any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_ticket_free(ticket: *mut Ticket) {
    // SAFETY: the caller's promise.
    unsafe { release(ticket) };
}
