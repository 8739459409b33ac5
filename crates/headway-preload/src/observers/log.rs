//! `--log`: one line for each copy, written when the call returns.
//!
//! Every line is one `write` at the end of the file, so that a guest that is killed loses nothing and no line is torn by another.
//! Nothing here calls the driver, and no lock is held while the driver is called. A forked child writes nothing; a process that
//! the guest starts has a file of its own.

use std::ffi::{CString, OsString, c_int};
use std::io::Write;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, SystemTime};
use std::{fs, io, process, thread};

use headway::guest::{file_bytes_max, moved_up, trusted};
use headway_core::files::guest::GuestOptions;
use headway_core::files::guest_log::{
    Became, Call, Copy, CountedCopies, Difference, DriverReason, GuestLogEnd, GuestLogLine, GuestLogStart, KIND,
    LintFinding, SCHEMA, SIZES, VARIABLE, VerifyCounts, size_class,
};
use headway_core::units::{Bytes, Nanos};

use crate::base::attention;
use crate::base::neighbours::now_ns;
use crate::base::print::print;
use crate::observers::{Event, Returning};

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
/// How often the end waits a millisecond for a thread that writes.
const TRIES: u32 = 100;

#[derive(Clone, Copy, Default)]
struct Count {
    copies: u64,
    bytes: u64,
    took: u64,
    longest: u64,
}

const CALLS: [Call; 8] =
    [Call::In, Call::InAsync, Call::Out, Call::OutAsync, Call::Any, Call::AnyAsync, Call::Batch, Call::Attributes];
const BECAME: [Became; 5] = [Became::Fast, Became::PinnedOnce, Became::Aside, Became::Chunks, Became::PassedOn];

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
pub(super) fn begin(options: GuestOptions) -> bool {
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
    let path = with_number(path.as_bytes(), pid.as_bytes());
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

fn with_number(path: &[u8], number: &[u8]) -> Vec<u8> {
    let (mut whole, mut rest) = (Vec::new(), path);
    while let Some((first, behind)) = rest.split_first() {
        let behind_mark = rest.strip_prefix(b"%p");
        whole.extend_from_slice(if behind_mark.is_some() { number } else { std::slice::from_ref(first) });
        rest = behind_mark.unwrap_or(behind);
    }
    whole
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
    let file = moved_up(unsafe { OwnedFd::from_raw_fd(file) }).into_raw_fd();
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

#[inline(always)]
pub(super) fn take(event: &Event<'_>) {
    if let Event::Returns(returning) = event {
        copied(returning);
    }
}

fn copied(Returning { copy, made, start_ns, took_ns, status }: &Returning) {
    // SAFETY: the call has no argument and cannot fail.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    let passed = made.became == Became::PassedOn;
    let copy = Copy {
        at: Nanos(start_ns.saturating_sub(BEGAN_NS.load(Ordering::Relaxed))),
        took: Nanos(*took_ns),
        thread,
        call: copy.call,
        direction: made.towards,
        bytes: Bytes(copy.bytes as u64),
        stream: copy.stream as u64,
        host: made.host,
        became: made.became,
        why: passed.then(|| made.why.unwrap_or(DriverReason::NoOption)),
        status: *status,
        of: 1,
    };
    if let Some(log) = log().as_mut() {
        log.copy(copy);
    }
}

/// Writes what was found at one place of the program.
pub(super) fn found(finding: LintFinding) {
    write_line(&GuestLogLine::Finding(finding));
}

/// Writes that a copy was wrong.
pub(super) fn differs(difference: Difference) {
    write_line(&GuestLogLine::Difference(difference));
}

/// Writes what was compared.
pub(super) fn verified(verified: VerifyCounts) {
    write_line(&GuestLogLine::Verified(verified));
}

fn write_line(line: &GuestLogLine) {
    if let Ok(mut log) = LOG.try_lock()
        && let Some(log) = log.as_mut()
    {
        log.line(line);
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
pub(super) extern "C" fn finish() {
    for _ in 0..TRIES {
        if attention::is_off() {
            return;
        }
        match LOG.try_lock() {
            Ok(mut log) => return log.iter_mut().for_each(|log| log.finish()),
            Err(TryLockError::Poisoned(log)) => return log.into_inner().iter_mut().for_each(|log| log.finish()),
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(1)),
        }
    }
}
