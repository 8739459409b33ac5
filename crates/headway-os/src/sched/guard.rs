//! A process that takes real-time priorities back when the one that gave them is killed.

use std::fmt::Write;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::errno::OsError;

/// Threads that are noted at most.
const THREADS_MAX: usize = 1_024;
/// How long the guardian is waited for when it is no longer needed.
const END_MAX: Duration = Duration::from_secs(1);

/// A thread whose priority was raised; all zeros = none.
#[derive(Default)]
struct Slot {
    pid: AtomicU32,
    /// Written last, and cleared first.
    tid: AtomicU32,
    started: AtomicU64,
}

/// Memory that this process and its guardian share.
struct Page(NonNull<Slot>);

// SAFETY: the slots are atomic words in memory that is mapped for as long as the page lives.
unsafe impl Send for Page {}

impl Page {
    const BYTES: usize = THREADS_MAX * size_of::<Slot>();

    fn new() -> Result<Self, OsError> {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let address = unsafe { mmap_anonymous(null_mut(), Self::BYTES, rights, MapFlags::SHARED) };
        let address = address.map_err(OsError::of("mmap"))?;
        NonNull::new(address.cast()).map(Self).ok_or_else(|| OsError::last("mmap"))
    }

    fn slots(&self) -> &[Slot] {
        // SAFETY: the mapping has this many slots, which are atomic words that all zeros are values of.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), THREADS_MAX) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this size, and nothing of it is used any more.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), Self::BYTES) };
    }
}

/// A small process that outlives this one. When this one has ended, however it ended, it puts the threads noted here into the
/// ordinary class, and ends.
pub struct Guard {
    page: Page,
    pid: Pid,
    /// The kernel closes it with this process. `None` while this is dropped.
    life: Option<OwnedFd>,
}

impl Guard {
    /// Starts the guardian. Best done early: it keeps what this process has in memory now.
    ///
    /// # Errors
    /// [`OsError`] if there is no room for another process.
    pub fn start() -> Result<Self, OsError> {
        let page = Page::new()?;
        let (pid, life) = spawn(&page)?;
        Ok(Self { page, pid, life: Some(life) })
    }

    /// Starts another guardian where somebody has killed this one: what is noted stays. Whether there is one.
    pub fn revive(&mut self) -> bool {
        if runs(self.pid) {
            return true;
        }
        let Ok((pid, life)) = spawn(&self.page) else { return false };
        (self.pid, self.life) = (pid, Some(life));
        true
    }

    /// Notes the thread `tid` of the process `pid`, which is raised only after this: `started` is when it was started
    /// ([`thread_started`](crate::ipc::thread_started)), so that no later thread of its number is taken for it. `false` if
    /// there is no room, or no guardian.
    #[must_use]
    pub fn note(&mut self, pid: u32, tid: u32, started: u64) -> bool {
        if !self.revive() {
            return false;
        }
        let slots = self.page.slots();
        let has = |slot: &&Slot| slot.tid.load(Ordering::Acquire) == tid;
        let free = |slot: &&Slot| slot.tid.load(Ordering::Acquire) == 0;
        let Some(slot) = slots.iter().find(has).or_else(|| slots.iter().find(free)) else { return false };
        slot.tid.store(0, Ordering::Release);
        slot.pid.store(pid, Ordering::Relaxed);
        slot.started.store(started, Ordering::Relaxed);
        slot.tid.store(tid, Ordering::Release);
        true
    }

    /// The thread is in the ordinary class again.
    pub fn forget(&self, tid: u32) {
        for slot in self.page.slots() {
            let _ = slot.tid.compare_exchange(tid, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Number of the guardian's process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }
}

/// Whether our child `pid` has not ended.
fn runs(pid: Pid) -> bool {
    matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(None))
}

/// Starts the guardian's process: its number, and what ends with ours.
fn spawn(page: &Page) -> Result<(Pid, OwnedFd), OsError> {
    let (death, life) = pipe_with(PipeFlags::CLOEXEC).map_err(OsError::of("pipe2"))?;
    // SAFETY: the child calls nothing but what is allowed after a fork of a process with threads, and never returns.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        watch(death.as_raw_fd(), page.slots());
    }
    match Pid::from_raw(pid).filter(|_| pid > 0) {
        Some(pid) => Ok((pid, life)),
        None => Err(OsError::last("fork")),
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.life.take());
        let start = Instant::now();
        // One that is stopped is not waited for: it ends when it goes on.
        while runs(self.pid) {
            if start.elapsed() >= END_MAX {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What the child does: waits for the end of its parent. It allocates nothing and takes no lock, since another thread of the
/// parent may have held one when it forked.
fn watch(death: RawFd, slots: &[Slot]) -> ! {
    // SAFETY: system calls without pointers but to `all` and the texts, which are valid; of the descriptors none is used after it
    // was closed.
    unsafe {
        // Neither what is typed at a terminal nor a polite request for the parent's end concerns it.
        libc::setsid();
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, null_mut());
        libc::prctl(libc::PR_SET_NAME, c"headway-guard".as_ptr(), 0, 0, 0);
        libc::chdir(c"/".as_ptr());
        // Locks and sockets of the parent end with it.
        libc::dup2(death, 0);
        if libc::syscall(libc::SYS_close_range, 1, libc::c_uint::MAX, 0) != 0 {
            (1..65_536).for_each(|fd| {
                libc::close(fd);
            });
        }
        let mut byte = 0u8;
        loop {
            let read = libc::read(0, (&raw mut byte).cast(), 1);
            if read == 0 || (read < 0 && *libc::__errno_location() != libc::EINTR) {
                break;
            }
        }
        slots.iter().for_each(take_back);
        libc::_exit(0);
    }
}

fn take_back(slot: &Slot) {
    let tid = slot.tid.load(Ordering::Acquire);
    if tid == 0 || started(slot.pid.load(Ordering::Relaxed), tid) != Some(slot.started.load(Ordering::Relaxed)) {
        return;
    }
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: `none` is valid for reads.
    unsafe { libc::sched_setscheduler(tid.cast_signed(), libc::SCHED_OTHER, &raw const none) };
}

/// A text in place.
struct Text([u8; 64], usize);

impl Write for Text {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let place = self.0.get_mut(self.1..self.1 + text.len()).ok_or(std::fmt::Error)?;
        place.copy_from_slice(text.as_bytes());
        self.1 += text.len();
        Ok(())
    }
}

/// Like [`thread_started`](crate::ipc::thread_started), without allocating.
fn started(pid: u32, tid: u32) -> Option<u64> {
    // The last byte stays zero, as the end of the path.
    let mut path = Text([0; 64], 0);
    write!(path, "/proc/{pid}/task/{tid}/stat").ok()?;
    let mut stat = [0u8; 1_024];
    // SAFETY: the path ends with a zero; at most as many bytes are read as `stat` holds.
    let read = unsafe {
        let fd = libc::open(path.0.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC);
        if fd < 0 {
            return None;
        }
        let read = libc::read(fd, stat.as_mut_ptr().cast(), stat.len());
        libc::close(fd);
        read
    };
    let stat = stat.get(..usize::try_from(read).ok()?)?;
    let behind = stat.iter().rposition(|byte| *byte == b')')?;
    let mut words = stat.get(behind + 1..)?.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    std::str::from_utf8(words.nth(19)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::ipc::{Process, Signal, thread_started};
    use crate::wait_until;

    /// A process whose only thread is in a class that needs no rights, in place of a real-time one.
    fn raised() -> Child {
        let child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let none = libc::sched_param { sched_priority: 0 };
        // SAFETY: `none` is valid for reads.
        let done = unsafe { libc::sched_setscheduler(child.id().cast_signed(), libc::SCHED_BATCH, &raw const none) };
        assert_eq!(done, 0);
        child
    }

    fn is_raised(child: &Child) -> bool {
        // SAFETY: the call touches no memory.
        unsafe { libc::sched_getscheduler(child.id().cast_signed()) == libc::SCHED_BATCH }
    }

    #[test]
    fn what_was_raised_is_ordinary_again_when_the_one_that_raised_it_is_killed_and_nothing_else() {
        let mut children = [(); 4].map(|()| raised());
        let [noted, forgotten, recycled, other] = [0, 1, 2, 3].map(|at| children[at].id());
        let since = |pid| thread_started(pid, pid).unwrap();
        // A child in place of the broker, which is killed: nothing of it is run any more.
        // SAFETY: the child only starts its guardian and waits.
        let broker = unsafe { libc::fork() };
        if broker == 0 {
            let mut guard = Guard::start();
            let is_noted = guard.as_mut().is_ok_and(|guard| {
                let all = guard.note(noted, noted, since(noted))
                    && guard.note(forgotten, forgotten, since(forgotten))
                    // Another thread had this number.
                    && guard.note(recycled, recycled, since(recycled) + 1);
                guard.forget(forgotten);
                all
            });
            // SAFETY: stops until it is killed, or ends at once.
            unsafe {
                if is_noted {
                    libc::raise(libc::SIGSTOP);
                }
                libc::_exit(1);
            }
        }
        let mut status = 0;
        // SAFETY: waits until the child has stopped.
        unsafe { libc::waitpid(broker, &raw mut status, libc::WUNTRACED) };
        assert!(libc::WIFSTOPPED(status), "{status}");
        assert!(children.iter().all(is_raised), "while it lives nothing changes");
        Process::open(broker.unsigned_abs()).unwrap().signal(Signal::Kill).unwrap();
        // SAFETY: takes the end of the child.
        unsafe { libc::waitpid(broker, &raw mut status, 0) };
        wait_until("it is ordinary again", || !is_raised(&children[0]));
        assert!(children[1..].iter().all(is_raised), "not what was given back, is another thread, or was not noted");
        let _ = other;
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_guardian_that_was_killed_is_replaced_by_one_that_knows_what_it_knew() {
        let mut children = [raised(), raised()];
        let [first, second] = [0, 1].map(|at| children[at].id());
        let since = |pid| thread_started(pid, pid).unwrap();
        let mut guard = Guard::start().unwrap();
        assert!(guard.note(first, first, since(first)));
        let killed = Process::open(guard.pid()).unwrap();
        killed.signal(Signal::Kill).unwrap();
        wait_until("it has ended", || killed.has_ended());
        assert!(guard.note(second, second, since(second)));
        let process = Process::open(guard.pid()).unwrap();
        assert!(!process.has_ended());
        drop(guard);
        assert!(process.has_ended() && !children.iter().any(is_raised));
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_guardian_ends_with_what_it_guards_and_is_not_left_over() {
        let guard = Guard::start().unwrap();
        let process = Process::open(guard.pid()).unwrap();
        assert!(!process.has_ended());
        // Requests for the end of its parent are not for it.
        // SAFETY: sends a signal to our own child.
        unsafe { libc::kill(guard.pid().cast_signed(), libc::SIGTERM) };
        drop(guard);
        assert!(process.has_ended());
    }

    #[test]
    fn the_start_of_a_thread_is_the_same_without_allocating() {
        let (pid, tid) = (std::process::id(), crate::ipc::this_thread());
        assert_eq!(started(pid, tid), thread_started(pid, tid));
        assert!(started(pid, tid).is_some());
        assert_eq!(started(pid, u32::MAX), None);
    }
}
