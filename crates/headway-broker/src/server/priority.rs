//! The priority of the threads that hold tokens, in the order of their keys, where the kernel permits.

use std::collections::BTreeMap;

use headway_core::decisions::sharing::{JobPriority, TaskId};
use headway_core::units::Nanos;
use headway_os::ipc::{has_thread, this_thread, thread_is_of, thread_started, user};
use headway_os::sched::{self, Guard, SchedError};

use super::journal::Known;

/// Priorities given: above ordinary threads, below interrupt threads (50).
const LEVEL_MIN: i32 = 11;
const LEVEL_MAX: i32 = 40;
/// The broker's: above all that it gives.
const LEVEL_BROKER: i32 = 45;
/// The broker's nice value where real-time priorities are refused.
const NICE: i32 = -15;
/// A thread that looks for requests for more of the time stays an ordinary one: it could keep a CPU from others.
const SHARE_MAX_PPM: u64 = 500_000;

/// How often setting a priority is tried to see what it takes.
const TRIALS: u32 = 20;

/// Has the calling thread, the broker's, go before others as far as the kernel permits; how it is scheduled then.
pub(super) fn hurry(spin_share_ppm: u64) -> String {
    if spin_share_ppm <= SHARE_MAX_PPM && sched::make_fifo(this_thread(), LEVEL_BROKER).is_ok() {
        return format!("SCHED_FIFO priority {LEVEL_BROKER}");
    }
    match sched::make_nice(this_thread(), NICE) {
        Ok(()) => format!("SCHED_OTHER, nice value {NICE}"),
        Err(error) => format!("SCHED_OTHER, as it was started: {error}"),
    }
}

/// A thread that is managed.
#[derive(Clone, Copy, Debug)]
struct Managed {
    pid: u32,
    tid: u32,
    /// When it was started.
    started: u64,
    /// The highest priority that it may get.
    ceiling: i32,
    /// Whether it is the broker's own user's.
    is_own: bool,
    key: Option<JobPriority>,
    level: Option<i32>,
}

impl Managed {
    /// Whether the thread was the broker's own user's when its task was registered, and is another user's now. Only root's
    /// threads can become that.
    fn is_foreign(&self) -> bool {
        self.is_own && user() == 0 && !thread_is_of(self.pid, self.tid, user())
    }
}

pub(super) struct Priority {
    threads: BTreeMap<TaskId, Managed>,
    /// The highest priority that threads of other users may get; `None` = none.
    lend: Option<i32>,
    /// Takes them back if this process is killed. `None` = nothing is raised.
    guard: Option<Guard>,
    /// Why priorities are not changed.
    off: Option<String>,
    /// The longest that changing one has taken here, of a few trials.
    latency: Nanos,
    changed: bool,
}

impl Priority {
    /// Follows the jobs of the broker's own user where that is `wanted`, and up to `lend` those of other users.
    pub(super) fn new(wanted: bool, lend: Option<i32>) -> Self {
        let (latency, mut off) = match wanted.then(|| sched::boost_latency(TRIALS)) {
            Some(Ok(latency)) => (latency, None),
            Some(Err(error)) => (Nanos::ZERO, Some(why(&error))),
            None => (Nanos::ZERO, Some("stays as it is: to change it was not asked for".to_owned())),
        };
        let mut guard = None;
        if off.is_none() {
            match Guard::start() {
                Ok(started) => guard = Some(started),
                Err(error) => {
                    off = Some(format!("stays as it is: nobody would take it back if the broker were killed: {error}"));
                }
            }
        }
        Self { threads: BTreeMap::new(), lend, guard, off, latency, changed: false }
    }

    pub(super) fn describe(&self) -> String {
        match &self.off {
            Some(reason) => reason.clone(),
            None => {
                let others = match self.lend {
                    Some(most) => format!("other users' threads get {most} at most"),
                    None => "other users' threads stay as they are".to_owned(),
                };
                format!(
                    "follows their jobs: SCHED_FIFO {LEVEL_MIN} to {LEVEL_MAX} by urgency, set in at most {}; {others}",
                    self.latency
                )
            }
        }
    }

    /// A task whose thread `tid` of process `pid` is to follow its jobs. A thread of another process is not managed, nor is one
    /// of another user (`uid`) unless that is allowed.
    pub(super) fn manage(&mut self, task: TaskId, pid: u32, tid: u32, uid: u32) {
        let is_own = uid == user();
        let ceiling = if is_own { Some(LEVEL_MAX) } else { self.lend };
        if let Some(ceiling) = ceiling
            && self.off.is_none()
            && let Some(started) = thread_started(pid, tid)
        {
            self.threads.insert(task, Managed { pid, tid, started, ceiling, is_own, key: None, level: None });
        }
    }

    /// Threads that may be raised for these tasks, with the times of their starts: the next broker must know them before they are.
    pub(super) fn threads(&self, tasks: &[TaskId]) -> Vec<(u32, u64)> {
        let mut threads: Vec<_> =
            tasks.iter().filter_map(|task| self.threads.get(task)).map(|thread| (thread.tid, thread.started)).collect();
        threads.sort_unstable();
        threads.dedup();
        threads
    }

    /// Makes sure that the guardian is there, and starts another one if it was killed.
    pub(super) fn keep_guard(&mut self) {
        if let Some(guard) = self.guard.as_mut().filter(|_| self.threads.values().any(|thread| thread.level.is_some()))
        {
            // If that fails it is tried again.
            guard.revive();
        }
    }

    pub(super) fn forget(&mut self, task: TaskId) {
        self.set(task, None);
        self.apply();
        self.threads.remove(&task);
    }

    /// The key at which the task's job holds a token; `None` = it holds none.
    pub(super) fn set(&mut self, task: TaskId, key: Option<JobPriority>) {
        if let Some(thread) = self.threads.get_mut(&task)
            && thread.key != key
        {
            thread.key = key;
            self.changed = true;
        }
    }

    /// Tells the kernel what has changed.
    pub(super) fn apply(&mut self) {
        if !std::mem::take(&mut self.changed) || self.off.is_some() {
            return;
        }
        let mut holders: Vec<(JobPriority, TaskId)> =
            self.threads.iter().filter_map(|(task, thread)| Some((thread.key?, *task))).collect();
        holders.sort_unstable();
        let level_of = |task: &TaskId| {
            let rank = holders.iter().position(|(_, holder)| holder == task)?;
            Some((LEVEL_MAX - rank.min(100) as i32).max(LEVEL_MIN))
        };
        for (task, thread) in &mut self.threads {
            let mut level = level_of(task).map(|level| level.min(thread.ceiling).max(1));
            if level == thread.level {
                continue;
            }
            let was_raised = std::mem::replace(&mut thread.level, level).is_some();
            // A thread that has ended has no priority; its number may be another's by now.
            if thread_started(thread.pid, thread.tid) != Some(thread.started) {
                self.guard.iter().for_each(|guard| guard.forget(thread.tid));
                continue;
            }
            let Managed { pid, tid, started, .. } = *thread;
            if thread.is_foreign() {
                level = level.zip(self.lend).map(|(level, most)| level.min(most));
                thread.level = level;
            }
            let done = match level {
                None if !was_raised => continue,
                // Without a guardian that would take it back, no priority is given.
                Some(_) if !self.guard.as_mut().is_none_or(|guard| guard.note(pid, tid, started)) => {
                    thread.level = None;
                    continue;
                }
                Some(level) => sched::make_fifo(tid, level),
                None => {
                    let done = sched::make_ordinary(tid);
                    self.guard.iter().for_each(|guard| guard.forget(tid));
                    done
                }
            };
            // If the kernel refuses one thread of another user, it may still permit other threads.
            if let Err(error) = done
                && thread.is_own
                && has_thread(thread.pid, thread.tid)
            {
                self.off = Some(why(&error));
                return;
            }
        }
    }
}

/// Takes back the priorities that the former broker gave to threads of a process, if it and its guardian were killed at once. A thread
/// that follows a job is raised again when the job is back.
pub(super) fn take_back(known: &Known) {
    for (tid, started) in &known.threads {
        if thread_started(known.pid, *tid) == Some(*started) && sched::is_fifo(*tid) {
            // Without the permission, that broker had none either.
            let _ = sched::make_ordinary(*tid);
        }
    }
}

impl Drop for Priority {
    /// The broker ends: every raised thread becomes an ordinary one again.
    fn drop(&mut self) {
        for thread in self.threads.values().filter(|thread| thread.level.is_some()) {
            if thread_started(thread.pid, thread.tid) == Some(thread.started) {
                let _ = sched::make_ordinary(thread.tid);
            }
        }
    }
}

fn why(error: &SchedError) -> String {
    format!("stays as it is, so that bounds on their waits may not hold: {error}")
}

#[cfg(test)]
mod tests {
    use headway_core::decisions::sharing::JobId;

    use super::*;

    const TASK: TaskId = TaskId(1);

    /// The priority that the thread of a holder of user `uid` is to get.
    fn level(uid: u32, lend: Option<i32>) -> Option<i32> {
        let mut priority = Priority::new(false, lend);
        priority.off = None;
        priority.manage(TASK, std::process::id(), this_thread(), uid);
        // No thread has this number: nothing is asked of the kernel.
        priority.threads.get_mut(&TASK)?.tid = u32::MAX;
        let job = JobId { task: TASK, job: 1 };
        priority.set(TASK, Some(JobPriority { deadline: Nanos(1), release: Nanos(1), job }));
        priority.apply();
        priority.threads.get(&TASK)?.level
    }

    #[test]
    fn threads_of_other_users_stay_as_they_are_unless_a_priority_is_lent_to_them() {
        assert_eq!(level(user(), None), Some(LEVEL_MAX));
        assert_eq!(level(user() + 1, None), None);
        assert_eq!(level(user() + 1, Some(12)), Some(12));
        assert_eq!(level(user() + 1, Some(5)), Some(5));
        assert_eq!(level(user(), Some(5)), Some(LEVEL_MAX), "the broker's own user's are not affected");
    }
}
