//! Scheduling classes: what a thread has, what it can get, and what to do when the system refuses.

mod attributes;
mod classes;
mod guard;
mod refusal;

use std::fmt;
use std::num::NonZeroU64;

use headway_core::units::Nanos;
use rustix::process::{Pid, setpriority_process};
use rustix::thread::{current_timer_slack, set_current_timer_slack};

use crate::errno::{Errno, OsError};
use crate::threads;
use attributes::Attributes;
pub use classes::{Classes, Held, Role, Taken, strongest};
pub use guard::Guard;
use refusal::refusal;

/// The priority asked for: above every ordinary thread, below interrupt threads (50) and the migration threads (99).
const FIFO_PRIORITY: i32 = 10;

/// The class a thread is scheduled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedClass {
    /// `SCHED_OTHER`, the ordinary class.
    Other,
    /// `SCHED_FIFO` with its priority.
    Fifo {
        /// 1 (lowest) to 99.
        priority: i32,
    },
    /// `SCHED_RR` with its priority.
    RoundRobin {
        /// 1 (lowest) to 99.
        priority: i32,
    },
    /// `SCHED_BATCH`.
    Batch,
    /// `SCHED_IDLE`.
    Idle,
    /// `SCHED_DEADLINE`.
    Deadline,
    /// A class this version has no name for.
    Unknown(i32),
}

impl fmt::Display for SchedClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other => f.write_str("SCHED_OTHER"),
            Self::Fifo { priority } => write!(f, "SCHED_FIFO priority {priority}"),
            Self::RoundRobin { priority } => write!(f, "SCHED_RR priority {priority}"),
            Self::Batch => f.write_str("SCHED_BATCH"),
            Self::Idle => f.write_str("SCHED_IDLE"),
            Self::Deadline => f.write_str("SCHED_DEADLINE"),
            Self::Unknown(policy) => write!(f, "scheduling policy {policy}"),
        }
    }
}

/// What is missing for a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The capability `CAP_SYS_NICE`, or a limit that allows the class without it.
    Permission,
    /// The thread may not run on all CPUs.
    Affinity,
    /// Reservations of others leave too little.
    Bandwidth,
    /// Real-time bandwidth of the cgroup, or the consent of a sandbox.
    Group,
    /// The kernel does not have the class.
    Support,
    /// Something that is not known.
    Other,
}

/// A class that was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{wanted} was refused with {errno}: {missing}; {fallback} stays in use")]
pub struct SchedError {
    /// The class asked for.
    pub wanted: &'static str,
    pub errno: Errno,
    /// What is missing.
    pub missing: String,
    /// What is missing, with what a remedy needs.
    pub lack: Missing,
    /// The class in use instead.
    pub fallback: SchedClass,
}

impl SchedError {
    /// What was refused and why, without what is in use instead.
    #[must_use]
    pub fn reason(&self) -> String {
        format!("{} was refused with {}: {}", self.wanted, self.errno, self.missing)
    }
}

/// The class of the calling thread.
///
/// # Errors
/// [`OsError`] when a sandbox forbids the question.
pub fn current() -> Result<SchedClass, OsError> {
    // SAFETY: 0 names the calling thread; the call has no other argument.
    let policy = unsafe { libc::sched_getscheduler(0) };
    if policy < 0 {
        return Err(OsError::last("sched_getscheduler"));
    }
    let mut parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: `parameter` is valid for the call to write.
    if unsafe { libc::sched_getparam(0, &raw mut parameter) } != 0 {
        return Err(OsError::last("sched_getparam"));
    }
    let priority = parameter.sched_priority;
    Ok(match policy & !libc::SCHED_RESET_ON_FORK {
        libc::SCHED_OTHER => SchedClass::Other,
        libc::SCHED_FIFO => SchedClass::Fifo { priority },
        libc::SCHED_RR => SchedClass::RoundRobin { priority },
        libc::SCHED_BATCH => SchedClass::Batch,
        libc::SCHED_IDLE => SchedClass::Idle,
        libc::SCHED_DEADLINE => SchedClass::Deadline,
        other => SchedClass::Unknown(other),
    })
}

/// What [`SchedClass::Deadline`] sleeps instead of yielding.
const MOMENT: std::time::Duration = std::time::Duration::from_micros(20);

/// Lets other threads run while the caller waits for something that ends soon.
///
/// A thread of `SCHED_DEADLINE` sleeps for 20 us instead of yielding: to yield means to give up the rest of its runtime, and
/// to sleep until its next period.
pub fn yield_now() {
    // SAFETY: 0 names the calling thread; the call has no other argument.
    let policy = unsafe { libc::sched_getscheduler(0) };
    match yields(policy) {
        true => std::thread::yield_now(),
        false => std::thread::sleep(MOMENT),
    }
}

/// Whether a thread of this policy loses no more than its turn by yielding; of one that cannot be asked for, yes.
const fn yields(policy: i32) -> bool {
    policy < 0 || policy & !libc::SCHED_RESET_ON_FORK != libc::SCHED_DEADLINE
}

/// Puts the calling thread, and not the threads it starts later, into `SCHED_FIFO`.
///
/// # Errors
/// [`SchedError`] with the missing permission and the class that stays in use; nothing has changed then.
pub fn request_realtime() -> Result<SchedClass, SchedError> {
    let parameter = libc::sched_param { sched_priority: FIFO_PRIORITY };
    // SAFETY: 0 names the calling thread; `parameter` is valid for reads.
    let status =
        unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const parameter) };
    if status == 0 {
        return Ok(SchedClass::Fifo { priority: FIFO_PRIORITY });
    }
    Err(refusal("SCHED_FIFO", Errno::last()))
}

/// Puts the thread `tid` of any process into `SCHED_FIFO` at `priority` (1 to 99).
///
/// # Errors
/// [`SchedError`]; the thread stays as it was. `ESRCH` if it has ended.
pub fn make_fifo(tid: u32, priority: i32) -> Result<(), SchedError> {
    set_class(tid, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, priority)
}

/// Whether the thread `tid` of any process is in `SCHED_FIFO`.
#[must_use]
pub fn is_fifo(tid: u32) -> bool {
    // 0 would be the calling thread.
    let Some(tid) = libc::pid_t::try_from(tid).ok().filter(|tid| *tid > 0) else { return false };
    // SAFETY: the call touches no memory; a number that is no thread's is refused by the kernel.
    let class = unsafe { libc::sched_getscheduler(tid) };
    class >= 0 && class & !libc::SCHED_RESET_ON_FORK == libc::SCHED_FIFO
}

/// Puts the thread `tid` of any process into the ordinary class.
///
/// # Errors
/// [`SchedError`]; the thread stays as it was. `ESRCH` if it has ended.
pub fn make_ordinary(tid: u32) -> Result<(), SchedError> {
    set_class(tid, libc::SCHED_OTHER, 0)
}

/// Gives the thread `tid` of any process a nice value, -20 (first) to 19.
///
/// # Errors
/// [`OsError`]: `EACCES` or `EPERM` without the capability `CAP_SYS_NICE` or a limit that allows it (`ulimit -e`), `ESRCH` if
/// the thread has ended.
pub fn make_nice(tid: u32, nice: i32) -> Result<(), OsError> {
    // 0 would be the calling process.
    let tid = i32::try_from(tid).ok().and_then(Pid::from_raw);
    let tid = tid.ok_or(OsError { call: "setpriority", errno: Errno(libc::ESRCH) })?;
    setpriority_process(Some(tid), nice).map_err(OsError::of("setpriority"))
}

/// How long it takes to raise another thread into `SCHED_FIFO`, or to lower it again: the longest of `times` calls, on a
/// thread that then ends.
///
/// # Errors
/// [`SchedError`] when the kernel refuses.
pub fn boost_latency(times: u32) -> Result<Nanos, SchedError> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let thread = threads::spawn("headway-probe", move || {
        let _ = sender.send(crate::ipc::this_thread());
        let _ = ended.recv();
    });
    let thread = thread.map_err(|error| refusal("SCHED_FIFO", Errno(error.raw_os_error().unwrap_or(libc::EAGAIN))))?;
    let measure = |tid: u32| {
        let mut longest = Nanos::ZERO;
        for _ in 0..times {
            for raise in [true, false] {
                let start = crate::clock::now();
                if raise { make_fifo(tid, FIFO_PRIORITY) } else { make_ordinary(tid) }?;
                longest = longest.max(crate::clock::now().saturating_sub(start));
            }
        }
        Ok(longest)
    };
    let measured = receiver.recv().map_err(|_| refusal("SCHED_FIFO", Errno(libc::ESRCH))).and_then(measure);
    drop(end);
    let _ = thread.join();
    measured
}

fn set_class(tid: u32, class: libc::c_int, priority: i32) -> Result<(), SchedError> {
    // 0 would be the calling thread.
    let tid = libc::pid_t::try_from(tid).ok().filter(|tid| *tid > 0);
    let tid = tid.ok_or_else(|| refusal("SCHED_FIFO", Errno(libc::ESRCH)))?;
    let parameter = libc::sched_param { sched_priority: priority };
    // SAFETY: `parameter` is valid for reads; a number that is no thread's is refused by the kernel.
    let status = unsafe { libc::sched_setscheduler(tid, class, &raw const parameter) };
    if status == 0 { Ok(()) } else { Err(refusal("SCHED_FIFO", Errno::last())) }
}

/// Whether a thread could get `SCHED_FIFO` here, tried on a thread that then ends.
///
/// # Errors
/// [`SchedError`] when the kernel refuses.
pub fn probe_realtime() -> Result<(), SchedError> {
    on_a_thread(|| request_realtime().map(drop).map_err(|error| error.errno))
        .map_err(|errno| refusal("SCHED_FIFO", errno))
}

/// Puts the calling thread into `SCHED_DEADLINE`: `runtime` in every `period`, throttled beyond it. Threads that it starts are
/// ordinary ones.
///
/// # Errors
/// [`SchedError`] with the permission that is missing; the thread stays as it was.
pub fn request_deadline(runtime: Nanos, period: Nanos) -> Result<SchedClass, SchedError> {
    try_deadline(runtime, period).map(|()| SchedClass::Deadline).map_err(|errno| refusal("SCHED_DEADLINE", errno))
}

/// Whether a thread could get `SCHED_DEADLINE` here, tried with 0.1 ms in every 10 ms on a thread that then ends.
///
/// The kernel refuses it to threads whose affinity is narrower than their root domain.
///
/// # Errors
/// [`SchedError`] when the kernel refuses.
pub fn probe_deadline() -> Result<(), SchedError> {
    on_a_thread(|| try_deadline(Nanos(100_000), Nanos(10_000_000))).map_err(|errno| refusal("SCHED_DEADLINE", errno))
}

fn on_a_thread(attempt: fn() -> Result<(), Errno>) -> Result<(), Errno> {
    let tried = threads::spawn("headway-probe", attempt);
    match tried.map(std::thread::JoinHandle::join) {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(Errno(0)),
        Err(error) => Err(Errno(error.raw_os_error().unwrap_or(libc::EAGAIN))),
    }
}

fn try_deadline(runtime: Nanos, period: Nanos) -> Result<(), Errno> {
    Attributes::deadline(runtime, period).set()
}

/// Lowers the timer slack of the calling thread to one nanosecond, so that timed waits end as close to their time as the
/// hardware allows (50 us later by default). Without effect in the real-time classes, which have no slack.
///
/// # Errors
/// [`OsError`] when a sandbox forbids it.
pub fn lower_timer_slack() -> Result<(), OsError> {
    set_timer_slack(Nanos(1))
}

/// The timer slack of the calling thread; `None` when a sandbox forbids the question.
fn timer_slack() -> Option<Nanos> {
    current_timer_slack().ok().map(Nanos)
}

fn set_timer_slack(slack: Nanos) -> Result<(), OsError> {
    set_current_timer_slack(NonZeroU64::new(slack.0)).map_err(OsError::of("prctl(PR_SET_TIMERSLACK)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_threads_with_a_reservation_sleep_instead_of_yielding() {
        let others = [libc::SCHED_OTHER, libc::SCHED_FIFO, libc::SCHED_RR, libc::SCHED_BATCH, libc::SCHED_IDLE, -1];
        assert!(others.into_iter().all(yields));
        assert!(!yields(libc::SCHED_DEADLINE) && !yields(libc::SCHED_DEADLINE | libc::SCHED_RESET_ON_FORK));
    }

    #[test]
    fn the_answer_to_a_request_is_the_class_in_use() {
        std::thread::spawn(|| {
            let before = current().unwrap();
            match request_realtime() {
                Ok(class) => assert_eq!(current().unwrap(), class),
                Err(error) => {
                    assert_eq!((error.fallback, current().unwrap()), (before, before));
                    assert!(error.to_string().contains("SCHED_FIFO was refused with E"), "{error}");
                }
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_refusal_names_errno_what_is_missing_and_fallback() {
        let error = refusal("SCHED_FIFO", Errno(libc::EPERM));
        let text = error.to_string();
        for part in ["SCHED_FIFO", "EPERM", "stays in use", error.missing.as_str()] {
            assert!(!part.is_empty() && text.contains(part), "`{part}` is missing in: {text}");
        }
        assert!(text.starts_with(&error.reason()));
    }

    #[test]
    fn the_deadline_probe_leaves_the_caller_as_it_was() {
        let before = current().unwrap();
        if let Err(error) = probe_deadline() {
            assert_eq!(error.wanted, "SCHED_DEADLINE");
        }
        assert_eq!(current().unwrap(), before);
    }

    #[test]
    fn a_thread_in_the_deadline_class_says_so() {
        std::thread::spawn(|| match request_deadline(Nanos(1_000_000), Nanos(100_000_000)) {
            Ok(class) => assert_eq!(current().unwrap(), class),
            Err(error) => assert_eq!(error.wanted, "SCHED_DEADLINE"),
        })
        .join()
        .unwrap();
    }

    #[test]
    fn another_thread_is_put_into_a_class_or_the_refusal_says_why() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            sender.send(crate::ipc::this_thread()).unwrap();
            let _ = ended.recv();
            current().unwrap()
        });
        let tid = receiver.recv().unwrap();
        let raised = make_fifo(tid, 12);
        drop(end);
        let class = thread.join().unwrap();
        match raised {
            Ok(()) => assert_eq!(class, SchedClass::Fifo { priority: 12 }),
            Err(error) => assert_eq!((error.wanted, class), ("SCHED_FIFO", SchedClass::Other)),
        }
        assert_eq!(make_ordinary(0).unwrap_err().errno.0, libc::ESRCH);
    }

    #[test]
    fn raising_a_thread_takes_some_time_or_is_refused() {
        match boost_latency(10) {
            Ok(time) => assert!(time > Nanos::ZERO),
            Err(error) => assert_eq!(error.wanted, "SCHED_FIFO"),
        }
    }

    #[test]
    fn a_thread_may_always_be_nicer_than_it_is() {
        std::thread::spawn(|| make_nice(crate::ipc::this_thread(), 19).unwrap()).join().unwrap();
        assert_eq!(make_nice(0, 19).unwrap_err().errno.0, libc::ESRCH);
    }

    #[test]
    fn timer_slack_can_be_lowered() {
        std::thread::spawn(|| lower_timer_slack().unwrap()).join().unwrap();
    }
}
