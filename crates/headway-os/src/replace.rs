//! Another program takes the place of this process, with what this process was started with.
//!
//! Rust's runtime changes some of that before `main`: it ignores SIGPIPE, and opens `/dev/null` in place of closed standard descriptors.
//! `std`'s own `exec` starts every program with the default action of SIGPIPE, with no signal blocked, and without entries of the
//! environment that have no name or occur twice.

use std::ffi::{CStr, CString, OsStr, c_char};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::ptr::null;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::errno::Errno;

/// Signals whose action this program may have changed.
const SIGNALS: [i32; 2] = [libc::SIGPIPE, libc::SIGXFSZ];

/// Which of [`SIGNALS`] were ignored when the process began.
static IGNORED: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];
/// Which of the descriptors 0, 1 and 2 were closed when the process began.
static CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

/// Notes what [`replace_process`] restores. A program has the loader call this before Rust's runtime begins; without that, its guests start
/// with the default actions of signals and with the descriptors that are open.
pub extern "C" fn note_the_start() {
    for (signal, ignored) in SIGNALS.into_iter().zip(&IGNORED) {
        ignored.store(action(signal) == libc::SIG_IGN, Ordering::Relaxed);
    }
    for (fd, closed) in (0..).zip(&CLOSED) {
        // SAFETY: the call only asks for a flag of a number.
        closed.store(unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0, Ordering::Relaxed);
    }
}

fn action(signal: i32) -> libc::sighandler_t {
    // SAFETY: `sigaction` is a structure of integers, for which all zeros is a value.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: `now` is valid for the call to write; no action is set.
    unsafe { libc::sigaction(signal, null(), &raw mut now) };
    now.sa_sigaction
}

unsafe extern "C" {
    /// The environment of this process (POSIX).
    static environ: *const *const c_char;
}

/// The entries of the environment as they are: also those without a name, and those whose name occurs twice.
fn entries() -> Vec<CString> {
    let mut found = Vec::new();
    // SAFETY: the C library keeps a list of C strings that ends with a null pointer; the caller sees to it that nobody changes it.
    unsafe {
        let mut at = environ;
        while !at.is_null() && !(*at).is_null() {
            found.push(CStr::from_ptr(*at).to_owned());
            at = at.add(1);
        }
    }
    found
}

/// The environment of this process with the changes of `command`.
fn environment(command: &Command) -> io::Result<Vec<CString>> {
    let is_changed = |entry: &CString| {
        let end = entry.as_bytes().iter().position(|byte| *byte == b'=');
        end.is_some_and(|end| command.get_envs().any(|(name, _)| name.as_bytes() == &entry.as_bytes()[..end]))
    };
    let mut all: Vec<CString> = entries().into_iter().filter(|entry| !is_changed(entry)).collect();
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            all.push(text(&[name.as_bytes(), b"=", value.as_bytes()].concat())?);
        }
    }
    Ok(all)
}

fn text(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "there is a zero byte in it"))
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).chain([null()]).collect()
}

/// The program of `command` takes the place of this process; of `command`, program, arguments and changed variables count. Returns only if
/// that fails.
///
/// Call it while the process has no other thread that changes the environment.
#[must_use]
pub fn replace_process(command: &Command) -> io::Error {
    let arguments = [command.get_program()].into_iter().chain(command.get_args()).map(OsStr::as_bytes).map(text);
    let (arguments, environment) = match (arguments.collect::<io::Result<Vec<_>>>(), environment(command)) {
        (Ok(arguments), Ok(environment)) => (arguments, environment),
        (Err(error), _) | (_, Err(error)) => return error,
    };
    for (signal, ignored) in SIGNALS.into_iter().zip(&IGNORED) {
        let action = if ignored.load(Ordering::Relaxed) { libc::SIG_IGN } else { libc::SIG_DFL };
        // SAFETY: no handler of ours is set.
        unsafe { libc::signal(signal, action) };
    }
    for (fd, closed) in (0..).zip(&CLOSED) {
        if closed.load(Ordering::Relaxed) {
            // SAFETY: a descriptor that is not ours was closed at the start, so what has its number is `/dev/null` or a file of ours.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    let (arguments, environment) = (pointers(&arguments), pointers(&environment));
    // SAFETY: both are lists of C strings that end with a null pointer and live until the call returns.
    unsafe { libc::execvpe(arguments[0], arguments.as_ptr(), environment.as_ptr()) };
    let error = io::Error::from_raw_os_error(Errno::last().0);
    // What is left to do is to report the error: that may go into a pipe that nobody reads.
    for signal in SIGNALS {
        // SAFETY: no handler of ours is set.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    error
}
