//! `--log`: one line for each copy, written when the call returns.
//!
//! Every line is one `write` at the end of the file, so that a guest that is killed loses nothing and no line is torn by another.
//! Nothing here calls the driver, and no lock is held while the driver is called. A forked child writes nothing; a process that
//! the guest starts has a file of its own.

use std::ffi::{CString, OsString, c_int};
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, SystemTime};
use std::{fs, io, process, thread};

use headway::guest::{file_bytes_max, trusted};
use headway_core::files::guest::GuestOptions;
use headway_core::files::guest_log::{
    Became, Call, Copy, CountedCopies, Difference, DriverReason, GuestLogEnd, GuestLogLine, GuestLogStart, Host, KIND,
    LintFinding, SCHEMA, SIZES, Towards, VARIABLE, VerifyCounts, size_class,
};
use headway_core::units::{Bytes, Nanos};

use crate::base::neighbours::now_ns;
use crate::calls::lookup;

/// The log's greatest size. What does not fit is counted.
const LOG_MAX: u64 = 256 << 20;
/// Of it, what is kept for the lines at the end.
const RESERVE: u64 = 64 << 10;
/// Copies of this size and more always have a line.
const ALWAYS_BYTES: u64 = 64 << 10;
/// So have copies that took this long.
const ALWAYS_NS: u64 = 100_000;
/// And this many others; after them, one in [`SAMPLE`] of each class.
const SINGLY_MAX: u64 = 1 << 16;
const SAMPLE: u64 = 64;
/// The longest line, but for the first.
const LINE_MAX: usize = 1024;
/// Descriptors that programs use by number are smaller.
const DESCRIPTOR_MIN: c_int = 400;
/// How often the end waits a millisecond for a thread that writes.
const TRIES: u32 = 100;

/// How a copy was made, as far as it is known at the time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    pub(crate) direction: Towards,
    pub(crate) host: Host,
    pub(crate) became: Became,
    pub(crate) call: Call,
    /// The first reason to leave it to the driver.
    why: Option<DriverReason>,
}

impl Made {
    pub(crate) fn new(call: Call) -> Self {
        let direction = match call {
            Call::In | Call::InAsync => Towards::In,
            Call::Out | Call::OutAsync => Towards::Out,
            Call::Any | Call::AnyAsync | Call::Batch | Call::Attributes => Towards::Unknown,
        };
        Self { direction, host: Host::default(), became: Became::default(), call, why: None }
    }

    pub(crate) fn left_to_driver(&mut self, why: DriverReason) {
        self.why.get_or_insert(why);
    }

    /// `direction` is that of the copy that was made, also where the call does not say it.
    pub(crate) fn by(&mut self, became: Became, direction: Towards) {
        (self.became, self.direction) = (became, direction);
    }
}

/// What a call was asked for, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) call: Call,
    pub(crate) bytes: usize,
    pub(crate) stream: usize,
    /// The address of the host's end; where the call goes by the addresses, that of the destination.
    pub(crate) host: usize,
    pub(crate) start_ns: u64,
}

#[derive(Clone, Copy, Default)]
struct Count {
    copies: u64,
    bytes: u64,
    took: u64,
    longest: u64,
}

const CALLS: [Call; 8] =
    [Call::In, Call::InAsync, Call::Out, Call::OutAsync, Call::Any, Call::AnyAsync, Call::Batch, Call::Attributes];
const BECAME: [Became; 4] = [Became::Fast, Became::Aside, Became::Chunks, Became::PassedOn];

struct Log {
    file: c_int,
    /// Device and inode: a program that closes descriptors it did not open may have put another file in this one's place.
    identity: (libc::dev_t, libc::ino_t),
    /// Whether the file ends inside a line.
    torn: bool,
    lost: u64,
    lost_in_all: u64,
    full: bool,
    singly: u64,
    counts: [[[Count; BECAME.len()]; SIZES.len()]; CALLS.len()],
}

static LOG: Mutex<Option<Box<Log>>> = Mutex::new(None);
static BEGAN_NS: AtomicU64 = AtomicU64::new(0);

fn log() -> MutexGuard<'static, Option<Box<Log>>> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens the log that the environment names; whether there is one.
pub(crate) fn begin(options: GuestOptions) -> bool {
    let Some(path) = trusted(VARIABLE) else { return false };
    match create(&path) {
        Ok((file, identity)) => {
            let mut log = Log {
                file,
                identity,
                torn: false,
                lost: 0,
                lost_in_all: 0,
                full: false,
                singly: 0,
                counts: Default::default(),
            };
            BEGAN_NS.store(now_ns(), Ordering::Relaxed);
            log.first_line(options);
            *self::log() = Some(Box::new(log));
            // SAFETY: the function may be called at exit; it writes to a file.
            unsafe { libc::atexit(finish) };
            true
        }
        Err(error) => {
            print(&format!("headway: cannot create the log `{}`: {error}; copies are not logged\n", path.display()));
            false
        }
    }
}

/// The file that `path` means in this process: `%p` is its number. Where another process has the file, the number goes behind it.
fn create(path: &OsString) -> io::Result<(c_int, (libc::dev_t, libc::ino_t))> {
    let pid = process::id().to_string();
    let parts: Vec<Vec<u8>> = split(path.as_bytes(), b"%p");
    let path = parts.join(pid.as_bytes());
    let with = |end: String| [path.as_slice(), end.as_bytes()].concat();
    let further = std::iter::once(with(format!(".{pid}"))).chain((2..100).map(|n| with(format!(".{pid}.{n}"))));
    let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
    for path in std::iter::once(path.clone()).chain(further) {
        match create_new(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
            other => return other,
        }
    }
    Err(last)
}

fn split(text: &[u8], at: &[u8]) -> Vec<Vec<u8>> {
    let mut parts = vec![Vec::new()];
    let mut rest = text;
    while let Some(first) = rest.first() {
        if rest.starts_with(at) {
            parts.push(Vec::new());
            rest = &rest[at.len()..];
        } else {
            parts.last_mut().expect("it begins with one part").push(*first);
            rest = &rest[1..];
        }
    }
    parts
}

fn create_new(path: Vec<u8>) -> io::Result<(c_int, (libc::dev_t, libc::ino_t))> {
    let path = CString::new(path)?;
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_APPEND | libc::O_CLOEXEC;
    // SAFETY: the path ends in zero.
    let file = unsafe { libc::open(path.as_ptr(), flags, 0o666) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is ours.
    let higher = unsafe { libc::fcntl(file, libc::F_DUPFD_CLOEXEC, DESCRIPTOR_MIN) };
    let file = if higher < 0 {
        file
    } else {
        // SAFETY: the descriptor is ours; it is not used again.
        unsafe { libc::close(file) };
        higher
    };
    let about = about(file).ok_or_else(io::Error::last_os_error)?;
    Ok((file, (about.st_dev, about.st_ino)))
}

fn about(file: c_int) -> Option<libc::stat> {
    // SAFETY: all-zero bytes are a valid `stat`.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `about` is valid for the call to write; a bad descriptor is an error.
    (unsafe { libc::fstat(file, &raw mut about) } == 0).then_some(about)
}

/// This process's program and arguments.
fn command() -> Vec<String> {
    let mut bytes = fs::read("/proc/self/cmdline").unwrap_or_default();
    bytes.truncate(1024);
    let text = String::from_utf8_lossy(bytes.strip_suffix(b"\0").unwrap_or(&bytes)).into_owned();
    text.split('\0').map(str::to_owned).collect()
}

/// A call has returned after `took` nanoseconds.
pub(crate) fn copied(asked: Asked, made: Made, took: u64, status: i32) {
    // SAFETY: the call has no argument and cannot fail.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    let passed = made.became == Became::PassedOn;
    let copy = Copy {
        at: Nanos(asked.start_ns.saturating_sub(BEGAN_NS.load(Ordering::Relaxed))),
        took: Nanos(took),
        thread,
        call: asked.call,
        direction: made.direction,
        bytes: Bytes(asked.bytes as u64),
        stream: asked.stream as u64,
        host: made.host,
        became: made.became,
        why: passed.then(|| made.why.unwrap_or(DriverReason::NoOption)),
        status,
        of: 1,
    };
    if let Some(log) = log().as_mut() {
        log.copy(copy);
    }
}

/// Writes what was found at one place of the program.
pub(crate) fn found(finding: LintFinding) {
    write_line(&GuestLogLine::Finding(finding));
}

/// Writes that a copy was wrong.
pub(crate) fn differs(difference: Difference) {
    write_line(&GuestLogLine::Difference(difference));
}

/// Writes what was compared.
pub(crate) fn verified(verified: VerifyCounts) {
    write_line(&GuestLogLine::Verified(verified));
}

fn write_line(line: &GuestLogLine) {
    if let Ok(mut log) = LOG.try_lock()
        && let Some(log) = log.as_mut()
    {
        log.line(line);
    }
}

/// Prints on standard error, by one call.
pub(crate) fn print(text: &str) {
    print_bytes(text.as_bytes());
}

/// Prints on standard error in a signal handler. Standard error may be a pipe that nobody reads any more, or a file that may not grow: the program gets no
/// signal for that.
pub(crate) fn print_bytes(text: &[u8]) {
    let mut broken = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    let mut pending = MaybeUninit::<libc::sigset_t>::uninit();
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the first calls initialise the sets, which the others read; the bytes are initialised.
    unsafe {
        libc::sigemptyset(broken.as_mut_ptr());
        libc::sigaddset(broken.as_mut_ptr(), libc::SIGPIPE);
        libc::sigaddset(broken.as_mut_ptr(), libc::SIGXFSZ);
        libc::sigemptyset(pending.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, broken.as_ptr(), before.as_mut_ptr());
        libc::sigpending(pending.as_mut_ptr());
        let is_own =
            [libc::SIGPIPE, libc::SIGXFSZ].iter().all(|signal| libc::sigismember(pending.as_ptr(), *signal) == 0);
        let written = libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len());
        if written < 0 && is_own {
            libc::sigtimedwait(broken.as_ptr(), std::ptr::null_mut(), &raw const at_once);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
    }
}

impl Log {
    fn first_line(&mut self, options: GuestOptions) {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let start = GuestLogStart {
            schema: SCHEMA,
            kind: KIND.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: process::id(),
            command: command(),
            options: options.to_string(),
            began_unix: Nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)),
        };
        let mut text = serde_json::to_vec(&start).unwrap_or_default();
        text.push(b'\n');
        self.put(&text);
    }

    fn copy(&mut self, copy: Copy) {
        let marked = copy.bytes.0 >= ALWAYS_BYTES || copy.took.0 >= ALWAYS_NS || self.singly < SINGLY_MAX;
        if marked && !self.full {
            self.singly += 1;
            self.line(&GuestLogLine::Copy(copy));
            return;
        }
        let (call, class, became) = (copy.call as usize, size_class(copy.bytes.0), copy.became as usize);
        let count = &mut self.counts[call][class][became];
        if count.copies + 1 == SAMPLE && !self.full {
            self.counted(call, class, became);
            self.line(&GuestLogLine::Copy(Copy { of: SAMPLE, ..copy }));
            return;
        }
        count.copies += 1;
        count.bytes = count.bytes.saturating_add(copy.bytes.0);
        count.took = count.took.saturating_add(copy.took.0);
        count.longest = count.longest.max(copy.took.0);
    }

    /// Writes what was counted for a class, and begins anew.
    fn counted(&mut self, call: usize, class: usize, became: usize) {
        let Count { copies, bytes, took, longest } = std::mem::take(&mut self.counts[call][class][became]);
        let (call, became) = (CALLS[call], BECAME[became]);
        let (bytes, took, longest) = (Bytes(bytes), Nanos(took), Nanos(longest));
        if copies > 0 {
            self.line(&GuestLogLine::Counted(CountedCopies { call, class, became, copies, bytes, took, longest }));
        }
    }

    /// Writes one line, or counts it as lost.
    fn line(&mut self, line: &GuestLogLine) {
        if self.lost > 0 {
            let lost = self.lost;
            if self.write(&GuestLogLine::Lost(lost)) {
                self.lost = 0;
            }
        }
        if self.lost > 0 || !self.write(line) {
            self.lost += 1;
            self.lost_in_all += 1;
        }
    }

    fn write(&mut self, line: &GuestLogLine) -> bool {
        let mut text = [0; LINE_MAX];
        // A line that was cut off ends here.
        text[0] = b'\n';
        let mut rest = &mut text[1..];
        if serde_json::to_writer(&mut rest, line).is_err() || rest.write_all(b"\n").is_err() {
            return false;
        }
        let end = LINE_MAX - rest.len();
        let begin = usize::from(!self.torn);
        self.put(&text[begin..end])
    }

    /// Appends a text as a whole, or leaves the file as it was; whether it is there.
    fn put(&mut self, text: &[u8]) -> bool {
        let Some(before) = about(self.file).filter(|about| (about.st_dev, about.st_ino) == self.identity) else {
            return false;
        };
        let size = before.st_size as u64;
        // The program may lower its limit at any time.
        let size_max = LOG_MAX.min(file_bytes_max());
        self.full |= size + RESERVE > size_max;
        if size + text.len() as u64 > size_max {
            return false;
        }
        // The call by its number: a thread that is cancelled does not end in here, where it holds the lock.
        // SAFETY: the bytes are initialised, and the descriptor is our file's.
        let written = unsafe { libc::syscall(libc::SYS_write, self.file, text.as_ptr(), text.len()) };
        if written == text.len() as i64 {
            self.torn = false;
            return true;
        }
        if written > 0 {
            // SAFETY: the descriptor is our file's, which gets the length that it had.
            self.torn = unsafe { libc::ftruncate(self.file, before.st_size) } != 0;
        }
        false
    }

    fn finish(&mut self) {
        for call in 0..CALLS.len() {
            for class in 0..SIZES.len() {
                for became in 0..BECAME.len() {
                    self.counted(call, class, became);
                }
            }
        }
        let at = Nanos(now_ns().saturating_sub(BEGAN_NS.load(Ordering::Relaxed)));
        self.line(&GuestLogLine::End(GuestLogEnd { at, lost: self.lost_in_all, full: self.full }));
    }
}

/// At exit. It never waits long: the lock may be held by a function that a signal handler, which called `exit`, has interrupted.
extern "C" fn finish() {
    for _ in 0..TRIES {
        if lookup::is_off() {
            return;
        }
        match LOG.try_lock() {
            Ok(mut log) => return log.iter_mut().for_each(|log| log.finish()),
            Err(TryLockError::Poisoned(log)) => return log.into_inner().iter_mut().for_each(|log| log.finish()),
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(1)),
        }
    }
}
