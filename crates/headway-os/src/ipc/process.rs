//! A process by a descriptor, which stays its own when its number is used again.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};

use crate::errno::{Errno, OsError};

/// What can be told to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// `SIGKILL`.
    Kill,
    /// `SIGSTOP`.
    Stop,
    /// `SIGCONT`.
    Continue,
}

/// A process (`pidfd`); readable, for a [`Poller`](super::Poller), once it has ended.
pub struct Process(OwnedFd);

impl Process {
    /// The process that has the number `pid` now.
    ///
    /// # Errors
    /// [`OsError`]: `ESRCH` if there is none, `ENOSYS` before Linux 5.3.
    pub fn open(pid: u32) -> Result<Self, OsError> {
        let refused = OsError { call: "pidfd_open", errno: Errno(libc::EINVAL) };
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(refused)?;
        pidfd_open(pid, PidfdFlags::empty()).map(Self).map_err(OsError::of("pidfd_open"))
    }

    pub(super) fn of(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        is_ready(self.as_fd(), PollFlags::IN, Duration::ZERO)
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// [`OsError`]: `ESRCH` if it has ended, `EPERM` if it is another user's.
    pub fn signal(&self, signal: Signal) -> Result<(), OsError> {
        let signal = match signal {
            Signal::Kill => rustix::process::Signal::KILL,
            Signal::Stop => rustix::process::Signal::STOP,
            Signal::Continue => rustix::process::Signal::CONT,
        };
        pidfd_send_signal(&self.0, signal).map_err(OsError::of("pidfd_send_signal"))
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether one of `events` happens to `fd`, or it is at its end, within `bound`.
pub(super) fn is_ready(fd: BorrowedFd<'_>, events: PollFlags, bound: Duration) -> bool {
    poll(&mut [PollFd::from_borrowed_fd(fd, events)], Some(&super::bell::timespec(bound))).is_ok_and(|ready| ready > 0)
}

/// Number of the calling thread.
#[must_use]
pub fn this_thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()
}

/// The user whose rights this process has.
#[must_use]
pub fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether the process `pid` has a thread with the number `tid` now.
#[must_use]
pub fn has_thread(pid: u32, tid: u32) -> bool {
    Path::new(&format!("/proc/{pid}/task/{tid}")).exists()
}

/// Whether every thread of the process `pid` is stopped, by a signal or a debugger; `false` also where the system does not tell. Threads
/// on other CPUs stop a little after the signal was sent.
#[must_use]
pub fn is_stopped(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let states = threads.map(|thread| stat_field(thread.ok()?.path().join("stat").to_str()?, STATE));
    let mut states = states.filter(|state| state.as_deref() != Some("Z")).peekable();
    states.peek().is_some() && states.all(|state| matches!(state.as_deref(), Some("T" | "t")))
}

/// When the process `pid` was started, in ticks of the kernel's clock since the start of the system: with the number it says
/// which process is meant, also after the number was used again. `None` if there is none, or `/proc` does not show it.
#[must_use]
pub fn started(pid: u32) -> Option<u64> {
    stat_field(&format!("/proc/{pid}/stat"), START_TIME)?.parse().ok()
}

/// When the thread `tid` of the process `pid` was started, which tells it from a later one of that number.
#[must_use]
pub fn thread_started(pid: u32, tid: u32) -> Option<u64> {
    stat_field(&format!("/proc/{pid}/task/{tid}/stat"), START_TIME)?.parse().ok()
}

/// Whether the thread `tid` of the process `pid` has the rights of the user `uid` and of nobody else: its real, effective, saved
/// and file system user.
#[must_use]
pub fn thread_is_of(pid: u32, tid: u32, uid: u32) -> bool {
    let Ok(text) = std::fs::read(format!("/proc/{pid}/task/{tid}/status")) else { return false };
    // The name of the process, in another line, may be of any bytes.
    let text = String::from_utf8_lossy(&text);
    let users = text.lines().find_map(|line| line.strip_prefix("Uid:"));
    users.is_some_and(|users| users.split_whitespace().all(|known| known.parse() == Ok(uid)))
}

/// The processes whose parent is `pid` now, those that have ended and were not waited for included.
#[must_use]
pub fn children(pid: u32) -> Vec<u32> {
    let Ok(all) = std::fs::read_dir("/proc") else { return Vec::new() };
    let number = |entry: std::io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse::<u32>().ok();
    let parent = |of: u32| stat_field(&format!("/proc/{of}/stat"), PARENT)?.parse().ok();
    all.filter_map(number).filter(|of| parent(*of) == Some(pid)).collect()
}

/// Fields of `/proc/PID/stat` that stand behind the name, by their number in `proc_pid_stat(5)`.
const STATE: usize = 3;
const PARENT: usize = 4;
const START_TIME: usize = 22;

fn stat_field(path: &str, number: usize) -> Option<String> {
    field(&std::fs::read(path).ok()?, number)
}

/// The name in parentheses may be of any bytes, spaces and parentheses included.
fn field(stat: &[u8], number: usize) -> Option<String> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    str::from_utf8(&stat[name_end + 1..]).ok()?.split_ascii_whitespace().nth(number - STATE).map(str::to_owned)
}

/// The flag of [`stop_when_told`].
static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();
/// The exit status of a program that a signal ended early, as shells have it.
pub const INTERRUPTED_STATUS: u8 = 130;

/// A flag that becomes true when a signal tells this process to end: `SIGTERM`, `SIGINT`, or `SIGHUP` unless that is ignored
/// (`nohup`). The second signal ends the process at once, with [`INTERRUPTED_STATUS`]. Every call returns the same flag.
///
/// # Errors
/// [`OsError`] if the kernel refuses.
pub fn stop_when_told() -> Result<Arc<AtomicBool>, OsError> {
    let stop = STOP.get_or_init(|| Arc::new(AtomicBool::new(false)));
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: all zeros are a value of the structure, which both calls may read or write; the handler does only what is
        // allowed in one.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &raw mut before) != 0 {
                return Err(OsError::last("sigaction"));
            }
            if signal == libc::SIGHUP && before.sa_sigaction == libc::SIG_IGN {
                continue;
            }
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            libc::sigemptyset(&raw mut action.sa_mask);
            if libc::sigaction(signal, &raw const action, std::ptr::null_mut()) != 0 {
                return Err(OsError::last("sigaction"));
            }
        }
    }
    Ok(Arc::clone(stop))
}

extern "C" fn on_signal(_signal: libc::c_int) {
    // The flag was set before the handler was: reading it is one load.
    let is_second = STOP.get().is_none_or(|stop| stop.swap(true, Ordering::Relaxed));
    if is_second {
        // SAFETY: ends the process, which is allowed in a handler.
        unsafe { libc::_exit(INTERRUPTED_STATUS.into()) };
    }
}

/// Which start of the system this is, as the kernel names it; empty where `/proc` does not show it.
#[must_use]
pub fn boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_thread_is_of_the_user_whose_rights_alone_it_has() {
        let (pid, me) = (std::process::id(), user());
        assert!(thread_is_of(pid, this_thread(), me));
        assert!(!thread_is_of(pid, this_thread(), me + 1));
        assert!(!thread_is_of(pid, u32::MAX, me));
        if me != 0 {
            println!("skipped: only root becomes another user");
            return;
        }
        let other = std::thread::spawn(move || {
            // SAFETY: changes the effective user of this thread alone.
            let done = unsafe { libc::syscall(libc::SYS_setresuid, -1, 54_321, -1) };
            (done, thread_is_of(pid, this_thread(), me), thread_is_of(pid, this_thread(), 54_321))
        });
        assert_eq!(other.join().unwrap(), (0, false, false));
    }

    #[test]
    fn a_process_is_a_child_of_its_parent_until_it_was_waited_for() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        assert!(children(std::process::id()).contains(&child.id()));
        assert!(!children(child.id()).contains(&child.id()));
        child.kill().unwrap();
        let process = Process::open(child.id()).unwrap();
        while !process.has_ended() {
            std::thread::yield_now();
        }
        assert!(children(std::process::id()).contains(&child.id()), "it was not waited for");
        child.wait().unwrap();
        assert!(!children(std::process::id()).contains(&child.id()));
    }

    #[test]
    fn a_process_has_not_ended_until_it_is_killed() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        assert!(!process.has_ended());
        assert!(!is_stopped(child.id()));
        process.signal(Signal::Stop).unwrap();
        while !is_stopped(child.id()) {
            std::thread::yield_now();
        }
        process.signal(Signal::Continue).unwrap();
        process.signal(Signal::Kill).unwrap();
        child.wait().unwrap();
        assert!(process.has_ended());
        assert_eq!(process.signal(Signal::Kill).unwrap_err().errno.0, libc::ESRCH);
    }

    #[test]
    fn a_process_keeps_the_time_of_its_start_and_a_later_one_has_another() {
        let own = started(std::process::id()).unwrap();
        assert_eq!(started(std::process::id()), Some(own));
        assert!(started(1).unwrap() <= own);
        assert_eq!(started(u32::MAX), None);
        assert_eq!(boot(), boot());
    }

    #[test]
    fn a_name_of_any_bytes_hides_nothing_of_who_has_it() {
        let stat = b"12 (a\xff) b) S 1 12 12 0 -1 0 1 2 3 4 5 6 7 8 20 0 1 0 4711 99\n";
        let fields = [STATE, PARENT, START_TIME, 99].map(|number| field(stat, number));
        assert_eq!(fields.each_ref().map(Option::as_deref), [Some("S"), Some("1"), Some("4711"), None]);
        assert_eq!(field(b"12 (a", STATE), None);
        let pid = std::process::id();
        let thread = std::thread::spawn(move || {
            // SAFETY: names this thread; the text has an end.
            unsafe { libc::prctl(libc::PR_SET_NAME, c"a\xff) b".as_ptr()) };
            (thread_started(pid, this_thread()), thread_is_of(pid, this_thread(), user()))
        });
        let (start, is_ours) = thread.join().unwrap();
        assert!(start >= started(pid) && is_ours);
    }

    #[test]
    fn this_thread_is_one_of_this_process() {
        assert!(has_thread(std::process::id(), this_thread()));
        assert!(!has_thread(std::process::id(), u32::MAX));
        assert!(Process::open(u32::MAX).is_err());
    }
}
