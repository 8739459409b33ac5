//! Plans that a program runs with data of its own.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use headway::copy::Access;
use headway::flow::FlowPlace;
use headway::fork::{Home, at_home};
use headway::run::{
    Backend, CallbackResult, Program, RunEvent, RunEvents, RunOptions, UrgentCopies, UrgentCopy, UrgentReport,
};
use headway::units::{Bytes, Nanos};
use headway::{Error, Failure, workload};

use super::{Context, Status, fill, guarded, invalid, release, remember, text};

/// What runs a plan.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunBackend {
    /// GPUs if there are some, else the simulation.
    Auto = 0,
    /// Virtual time over the machine file.
    Sim = 1,
    /// Threads and memory of this computer, as slow as the machine file says.
    Emu = 2,
    /// The GPUs of this computer.
    Cuda = 3,
}

/// How a plan runs. Set it with `headway_run_options_init`, then change what differs.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProgramOptions {
    /// Bytes of this structure, by which later versions know which fields there are.
    pub size: usize,
    /// 0 = auto, 1 = sim, 2 = emu, 3 = cuda.
    pub backend: u32,
    /// Use so many GPUs only; 0 = all.
    pub gpus: u32,
    /// How long packets arrive, in nanoseconds; 0 = what the workload says.
    pub duration_ns: u64,
    /// Machine by name or file; null = what fits the devices, and in simulations `h200-x4`.
    pub machine: *const c_char,
    /// The folder of the results; null = `out/NAME-BACKEND`.
    pub out: *const c_char,
    /// 1 = run although the plan says that deadlines can be missed.
    pub force: u32,
}

/// A packet that a source is to fill. Times count from the run's time zero, in nanoseconds.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SourcePacket {
    /// The stream's id; the text lives as long as the call.
    pub stream: *const c_char,
    /// Counted from 0.
    pub packet: u64,
    /// When the plan counts with its arrival.
    pub arrives_ns: u64,
    /// By when its bytes must be there.
    pub needed_ns: u64,
    /// What is left until then; `UINT64_MAX` in a simulation, where time stands still.
    pub left_ns: u64,
}

/// What became of a packet. Times count from the run's time zero, in nanoseconds.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SinkPacket {
    /// The stream's id; the text lives as long as the call.
    pub stream: *const c_char,
    /// Counted from 0.
    pub packet: u64,
    /// When the plan counts with its arrival.
    pub arrived_ns: u64,
    /// When its last step had ended.
    pub delivered_ns: u64,
    /// By when that was due.
    pub deadline_ns: u64,
}

/// What came of a run.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RunResult {
    /// Packets that were delivered or lost. Of a run that ended early, those that were under way or still to come are not among them.
    pub packets: u64,
    /// Of these, delivered after their deadline.
    pub missed: u64,
    /// Of these, never delivered.
    pub lost: u64,
    /// 1 = the run came to its end, and every deadline held, those of urgent copies and messages among them.
    pub held: u32,
    /// 1 = the run ended early, as after `headway_program_stop`.
    pub incomplete: u32,
}

/// What an urgent copy did.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct UrgentResult {
    /// Nanoseconds from the call until all bytes were there.
    pub response_ns: u64,
    /// What was asked for, in nanoseconds from when the run took the request.
    pub deadline_ns: u64,
    /// 1 = it was promised.
    pub promised: u32,
}

/// Something that happened in a run.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProgramEvent {
    /// When, in nanoseconds after the run's time zero.
    pub at_ns: u64,
    /// A text that ends with 0.
    pub text: [c_char; 256],
}

/// A plan that is ready to run, or has run.
pub struct OpenProgram {
    home: Home,
    /// `None` from when it runs.
    program: Mutex<Option<Program>>,
    interrupt: Arc<AtomicBool>,
    events: Mutex<Option<RunEvents>>,
}

/// Urgent copies of one name, with memory for one of them. One thread at a time uses it.
pub struct UrgentHandle {
    home: Home,
    copies: UrgentCopies,
    from: FlowPlace,
    to: FlowPlace,
}

/// Fills `bytes` bytes from `to` on. What is not 0 ends the run. It must return: no `longjmp` out of it, no `pthread_exit`, no C++ exception.
pub type SourceFunction = Option<
    unsafe extern "C" fn(packet: *const SourcePacket, to: *mut c_void, bytes: usize, context: *mut c_void) -> c_int,
>;

/// Gets `bytes` bytes from `from` on, which live as long as the call. What is not 0 ends the run. It must return, as a source must.
pub type SinkFunction = Option<
    unsafe extern "C" fn(packet: *const SinkPacket, from: *const c_void, bytes: usize, context: *mut c_void) -> c_int,
>;

/// Sets the usual options of a run.
///
/// # Safety
/// `options` is null or points to a structure of the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_run_options_init(options: *mut ProgramOptions) {
    let (machine, out) = (std::ptr::null(), std::ptr::null());
    let backend = RunBackend::Auto as u32;
    let made =
        ProgramOptions { size: size_of::<ProgramOptions>(), backend, gpus: 0, duration_ns: 0, machine, out, force: 0 };
    if !options.is_null() {
        // SAFETY: the caller's promise.
        unsafe { options.write(made) };
    }
}

/// Reads and plans the workload in the file `workload` (`headway plan` says the same of it), and opens its devices. `options` may be null. A
/// plan whose deadlines can be missed is `HEADWAY_STATUS_NOT_PROMISED`, unless forced. On success `*program` is the caller's, to be closed with
/// `headway_program_close`.
///
/// # Safety
/// `workload` is a text that ends with 0; `options` is null or was set by `headway_run_options_init`; `program` points to a place for
/// the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_program_open(
    workload: *const c_char,
    options: *const ProgramOptions,
    program: *mut *mut OpenProgram,
) -> Status {
    if program.is_null() {
        return invalid("program is null: there is no place for the result");
    }
    // SAFETY: the caller's promise.
    unsafe { program.write(std::ptr::null_mut()) };
    // SAFETY: the caller's promise.
    let Some(file) = (unsafe { text(workload) }) else { return invalid("workload is null") };
    let mut chosen = RunOptions::default();
    if !options.is_null() {
        // SAFETY: the caller's promise. The size comes first in every version, and says how much more may be read.
        if unsafe { (&raw const (*options).size).read() } != size_of::<ProgramOptions>() {
            return invalid("options.size is not this library's: call headway_run_options_init, or use its own header");
        }
        // SAFETY: the caller's promise: a structure of this size.
        let ProgramOptions { size: _, backend, gpus, duration_ns, machine, out, force } = unsafe { options.read() };
        chosen.backend = match backend {
            0 => Backend::Auto,
            1 => Backend::Sim,
            2 => Backend::Emu,
            3 => Backend::Cuda,
            _ => return invalid("options.backend is none of 0 (auto), 1 (sim), 2 (emu), 3 (cuda)"),
        };
        chosen.gpus = (gpus > 0).then_some(gpus as usize);
        chosen.duration = (duration_ns > 0).then_some(Nanos(duration_ns));
        chosen.force = force != 0;
        // SAFETY: the caller's promise.
        (chosen.machine, chosen.out) = unsafe { (text(machine), text(out).map(Into::into)) };
    }
    guarded(|| {
        let interrupt = Arc::clone(&chosen.interrupt);
        let opened = Program::open(&workload::open(Path::new(&file))?, &chosen)?;
        let (opened, events) = (Mutex::new(Some(opened)), Mutex::default());
        let opened = OpenProgram { home: Home::here(), program: opened, interrupt, events };
        // SAFETY: the caller's promise.
        unsafe { program.write(Box::into_raw(Box::new(opened))) };
        Ok(Status::Ok)
    })
}

/// Closes a program; null is allowed. In a forked child nothing is freed: its threads, and whoever held a lock, stayed in the parent.
///
/// # Safety
/// `program` is null or came from `headway_program_open` and is not used by any thread any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_program_close(program: *mut OpenProgram) {
    // SAFETY: the caller's promise.
    if unsafe { program.as_ref() }.is_some_and(|of| of.home.is_here()) {
        // SAFETY: the caller's promise.
        unsafe { release(program) };
    }
}

/// Has `give` fill the packets of a stream, one after the other, on a thread of the library's. It is asked some packets ahead and may wait for
/// its data. A packet that comes later than the plan needs it is late, and nobody else is.
///
/// # Safety
/// `program` came from `headway_program_open`; `stream` is a text that ends with 0; `give` may be called with `context` on another thread
/// while the plan runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_program_source(
    program: *const OpenProgram,
    stream: *const c_char,
    give: SourceFunction,
    context: *mut c_void,
) -> Status {
    let Some(give) = give else { return invalid("give is null") };
    let context = Context(context);
    let bind = move |program: &mut Program, stream: &str, id: CString| {
        program.source(stream, move |of, packet| {
            let left = of.time_left().map_or(u64::MAX, |left| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
            let (arrives_ns, needed_ns) = (of.arrives.0, of.needed.0);
            let said = SourcePacket { stream: id.as_ptr(), packet: of.packet, arrives_ns, needed_ns, left_ns: left };
            // SAFETY: the caller's promise; `packet` is as long.
            answered(unsafe { give(&raw const said, packet.as_mut_ptr().cast(), packet.len(), context.get()) })
        })
    };
    // SAFETY: the caller's promise.
    unsafe { bound(program, stream, bind) }
}

/// Has `take` take what becomes of the packets of a stream, one after the other, on a thread of the library's; no file has them then. While
/// results of several cycles wait for it, what comes is dropped and told as an event.
///
/// # Safety
/// The caller keeps the promise of `headway_program_source`, for `take`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_program_sink(
    program: *const OpenProgram,
    stream: *const c_char,
    take: SinkFunction,
    context: *mut c_void,
) -> Status {
    let Some(take) = take else { return invalid("take is null") };
    let context = Context(context);
    let bind = move |program: &mut Program, stream: &str, id: CString| {
        program.sink(stream, move |of, packet| {
            let said = SinkPacket {
                stream: id.as_ptr(),
                packet: of.packet,
                arrived_ns: of.arrived.0,
                delivered_ns: of.delivered.0,
                deadline_ns: of.deadline.0,
            };
            // SAFETY: the caller's promise; `packet` is as long.
            answered(unsafe { take(&raw const said, packet.as_ptr().cast(), packet.len(), context.get()) })
        })
    };
    // SAFETY: the caller's promise.
    unsafe { bound(program, stream, bind) }
}

/// Takes the next of the things that happened in the run (packets that are late or given up, urgent copies), and waits for it for `timeout_ns`
/// nanoseconds at most: `HEADWAY_STATUS_TIMEOUT` if none comes, or the run is over. Events are kept from the first call on, which comes before
/// the run (else `HEADWAY_STATUS_INVALID`) and may have no place for an event. While a thousand wait to be taken, more are lost.
///
/// # Safety
/// `program` came from `headway_program_open`; `event` is null or points to a place for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_program_event(
    program: *const OpenProgram,
    timeout_ns: u64,
    event: *mut ProgramEvent,
) -> Status {
    const WAITING: usize = 1000;
    const LOOK: Duration = Duration::from_millis(1);
    let no_event = || {
        remember("no event came, or the run is over");
        Status::Timeout
    };
    // SAFETY: the caller's promise.
    let Some(of) = (unsafe { program.as_ref() }) else { return invalid("program is null") };
    guarded(|| {
        at_home(of.home, PROGRAM)?;
        let (start, limit) = (Instant::now(), Duration::from_nanos(timeout_ns));
        let mut events = loop {
            match of.events.try_lock() {
                Ok(events) => break events,
                Err(TryLockError::Poisoned(events)) => break events.into_inner(),
                // Another thread waits for an event.
                Err(TryLockError::WouldBlock) if event.is_null() => return Ok(Status::Ok),
                Err(TryLockError::WouldBlock) if start.elapsed() < limit => std::thread::sleep(LOOK),
                Err(TryLockError::WouldBlock) => return Ok(no_event()),
            }
        };
        if events.is_none() {
            *events = lock(&of.program).as_mut().map(|program| program.events(WAITING));
        }
        let Some(events) = &*events else {
            return Ok(invalid(
                "no events are kept, since the first call came after the run had begun; call it before",
            ));
        };
        if event.is_null() {
            return Ok(Status::Ok);
        }
        let next = events.wait(limit.saturating_sub(start.elapsed()));
        let Some(RunEvent { at, kind, .. }) = next else {
            return Ok(no_event());
        };
        let mut made = ProgramEvent { at_ns: at.0, text: [0; 256] };
        fill(&mut made.text, &kind.to_string());
        // SAFETY: the caller's promise.
        unsafe { event.write(made) };
        Ok(Status::Ok)
    })
}

/// Opens the urgent copies that the workload calls so, with memory for one of them, before the plan runs. On success `*urgent` is the
/// caller's, to be freed with `headway_urgent_free`.
///
/// # Safety
/// `program` came from `headway_program_open`; `name` is a text that ends with 0; `urgent` points to a place for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_urgent_open(
    program: *const OpenProgram,
    name: *const c_char,
    bytes: usize,
    urgent: *mut *mut UrgentHandle,
) -> Status {
    if urgent.is_null() {
        return invalid("urgent is null: there is no place for the result");
    }
    // SAFETY: the caller's promise.
    unsafe { urgent.write(std::ptr::null_mut()) };
    // SAFETY: the caller's promise.
    let Some(of) = (unsafe { program.as_ref() }) else { return invalid("program is null") };
    // SAFETY: the caller's promise.
    let Some(name) = (unsafe { text(name) }) else { return invalid("name is null") };
    of.with(|program| {
        let copies = program.urgent(&name)?;
        copies.check_size(Bytes(bytes as u64), Bytes(bytes as u64))?;
        let (from, to) = (copies.from_place(bytes)?, copies.to_place(bytes)?);
        // SAFETY: the caller's promise.
        unsafe { urgent.write(Box::into_raw(Box::new(UrgentHandle { home: of.home, copies, from, to }))) };
        Ok(())
    })
}

/// Where the memory begins from which and to which these copies go; host memory is page-locked. It lives until
/// `headway_urgent_free`. Nobody uses it while a copy is under way.
///
/// # Safety
/// `urgent` came from `headway_urgent_open`; `from` and `to` point to places for the results.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_urgent_memory(
    urgent: *const UrgentHandle,
    from: *mut *mut c_void,
    to: *mut *mut c_void,
) -> Status {
    if from.is_null() || to.is_null() {
        return invalid("from or to is null: there is no place for the result");
    }
    // SAFETY: the caller's promise.
    let Some(urgent) = (unsafe { urgent.as_ref() }) else { return invalid("urgent is null") };
    guarded(|| {
        at_home(urgent.home, PROGRAM)?;
        for (place, address) in [(&urgent.from, from), (&urgent.to, to)] {
            let all = place.buffer.claim(0..place.buffer.len(), Access::Read).map_err(Failure::Device)?;
            // SAFETY: the caller's promise.
            unsafe { address.write(all.as_ptr().cast()) };
        }
        Ok(Status::Ok)
    })
}

/// Asks for an urgent copy of the first `bytes` bytes while the plan runs, on another thread than that one, and waits until they are there, for
/// `timeout_ns` nanoseconds at most (`HEADWAY_STATUS_TIMEOUT`; the copy goes on). The deadline is the workload's. A copy for which somebody could
/// miss a deadline is `HEADWAY_STATUS_NOT_PROMISED`, unless the workload says `otherwise = "best-effort"`. `result` may be null.
///
/// # Safety
/// `urgent` came from `headway_urgent_open`; `result` is null or points to a place for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_urgent_copy(
    urgent: *const UrgentHandle,
    bytes: usize,
    timeout_ns: u64,
    result: *mut UrgentResult,
) -> Status {
    // SAFETY: the caller's promise.
    let Some(UrgentHandle { copies, from, to, .. }) = (unsafe { urgent.as_ref() }) else {
        return invalid("urgent is null");
    };
    guarded(|| {
        let ticket = copies.ask(UrgentCopy::new(from, to, Bytes(bytes as u64)))?;
        let UrgentReport { is_promised, response, deadline, .. } = ticket.wait(Duration::from_nanos(timeout_ns))?;
        if !result.is_null() {
            let made = UrgentResult { response_ns: response.0, deadline_ns: deadline.0, promised: is_promised.into() };
            // SAFETY: the caller's promise.
            unsafe { result.write(made) };
        }
        Ok(Status::Ok)
    })
}

/// Frees urgent copies and their memory; null is allowed. The program may be closed before. In a forked child nothing is freed.
///
/// # Safety
/// `urgent` is null or came from `headway_urgent_open` and is not used by any thread any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_urgent_free(urgent: *mut UrgentHandle) {
    // SAFETY: the caller's promise.
    if unsafe { urgent.as_ref() }.is_some_and(|of| of.home.is_here()) {
        // SAFETY: the caller's promise.
        unsafe { release(urgent) };
    }
}

/// Runs the plan, once, and returns when it is over and the sinks have what was delivered. Missed deadlines are no error: the result says so.
/// Files appear in the folder of the results. `result` may be null.
///
/// # Safety
/// `program` came from `headway_program_open`; `result` is null or points to a place for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_program_run(program: *const OpenProgram, result: *mut RunResult) -> Status {
    // SAFETY: the caller's promise.
    let Some(of) = (unsafe { program.as_ref() }) else { return invalid("program is null") };
    guarded(|| {
        at_home(of.home, PROGRAM)?;
        let Some(program) = lock(&of.program).take() else { return Ok(invalid(HAS_RUN)) };
        let summary = program.run(|_| ())?.summary;
        if !result.is_null() {
            let (held, incomplete) = (summary.verdict.held.into(), summary.incomplete.is_some().into());
            let mut made = RunResult { packets: 0, missed: 0, lost: 0, held, incomplete };
            for stream in &summary.streams {
                made.packets += stream.delivered + stream.lost;
                made.missed += stream.misses;
                made.lost += stream.lost;
            }
            // SAFETY: the caller's promise.
            unsafe { result.write(made) };
        }
        Ok(Status::Ok)
    })
}

/// Has the run end early, from any thread; what it did until then is kept.
///
/// # Safety
/// `program` is null or came from `headway_program_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_program_stop(program: *const OpenProgram) {
    // SAFETY: the caller's promise.
    if let Some(program) = unsafe { program.as_ref() } {
        program.interrupt.store(true, Ordering::Relaxed);
    }
}

/// In errors.
const PROGRAM: &str = "the program";
const HAS_RUN: &str = "the program runs or has run; open another one";

impl OpenProgram {
    fn with(&self, body: impl FnOnce(&mut Program) -> Result<(), Error>) -> Status {
        guarded(|| {
            at_home(self.home, PROGRAM)?;
            let mut program = lock(&self.program);
            let Some(program) = program.as_mut() else { return Ok(invalid(HAS_RUN)) };
            body(program).map(|()| Status::Ok)
        })
    }
}

/// # Safety
/// `program` is null or came from `headway_program_open`; `stream` is null or a text that ends with 0.
unsafe fn bound(
    program: *const OpenProgram,
    stream: *const c_char,
    bind: impl FnOnce(&mut Program, &str, CString) -> Result<(), Error>,
) -> Status {
    // SAFETY: the caller's promise.
    let Some(of) = (unsafe { program.as_ref() }) else { return invalid("program is null") };
    if stream.is_null() {
        return invalid("stream is null");
    }
    // SAFETY: the caller's promise.
    let id = unsafe { CStr::from_ptr(stream) }.to_owned();
    of.with(|program| bind(program, &id.to_string_lossy(), id.clone()))
}

fn answered(answer: c_int) -> CallbackResult {
    match answer {
        0 => Ok(()),
        other => Err(format!("it returned {other}").into()),
    }
}

fn lock<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
