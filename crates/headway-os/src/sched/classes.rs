//! The classes of the threads that drive devices: each thread takes the strongest that the system permits, and gives it back.
//!
//! A thread with a reservation (`SCHED_DEADLINE`) is stopped when it has used it up, and real-time threads (`SCHED_FIFO`) are
//! stopped for the rest of a second in which they filled a CPU. So a thread of a class that [is
//! rationed](SchedulingClass::is_rationed) must not spin: it polls, and sleeps for a short time in between.

use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use headway_core::models::cpu::{RequestedClass, SchedulingClass, Threads};
use headway_core::units::Nanos;

use super::SchedError;
use super::attributes::{Attributes, FLAG_RECLAIM, FLAG_RESET_ON_FORK};
use super::refusal::refusal;
use crate::threads;

/// The lowest nice value there is.
const NICE_MIN: i32 = -20;
/// The time for which an ordinary thread with a nice value asks to run at a time: the shortest that the kernel takes. Kernels
/// from 6.12 on let a thread that asks for less run earlier; older ones take no notice.
const SLICE: Nanos = Nanos(100_000);

/// What a thread does for a run; it says how much CPU time the thread may reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Opens windows, submits operations and notices their ends.
    Driver,
    /// Runs kernels on the CPU.
    Core,
    /// Serves operations of a device: pageable copies, or an emulated engine.
    Helper,
    /// Packs blocks ahead of their windows.
    Feeder,
    /// Writes out what was delivered.
    Sink,
}

impl Role {
    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Core => "core",
            Self::Helper => "helper",
            Self::Feeder => "feeder",
            Self::Sink => "sink",
        }
    }

    /// CPU time to reserve, and the period in which it is given.
    ///
    /// The driver sleeps for 20 us between polls and needs some microseconds for each, so half of a CPU leaves room; a
    /// period of 200 us bounds what one exhausted reservation costs. The others work through blocks: they need a share of
    /// a CPU rather than a quick answer, and may use what other reservations leave.
    #[must_use]
    pub const fn reservation(self) -> (Nanos, Nanos) {
        match self {
            Self::Driver => (Nanos(100_000), Nanos(200_000)),
            Self::Core => (Nanos(800_000), Nanos(1_000_000)),
            Self::Helper => (Nanos(250_000), Nanos(1_000_000)),
            Self::Feeder | Self::Sink => (Nanos(1_000_000), Nanos(5_000_000)),
        }
    }

    /// Its priority in `SCHED_FIFO`: below interrupt threads (50), the driver before those that work through blocks.
    #[must_use]
    pub const fn priority(self) -> u32 {
        match self {
            Self::Driver => super::FIFO_PRIORITY.cast_unsigned(),
            Self::Core | Self::Helper => 9,
            Self::Feeder | Self::Sink => 8,
        }
    }
}

/// A class that a thread got, and the stronger ones that it did not get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    pub class: SchedulingClass,
    /// The classes that were tried first.
    pub refused: Vec<SchedError>,
}

/// The class that the threads of one run ask for, and what each of them got.
#[derive(Debug)]
pub struct Classes {
    requested: RequestedClass,
    taken: Mutex<Vec<(Role, Taken)>>,
}

impl Classes {
    /// Nobody has asked yet.
    #[must_use]
    pub fn new(requested: RequestedClass) -> Arc<Self> {
        Arc::new(Self { requested, taken: Mutex::default() })
    }

    /// What is asked for.
    #[must_use]
    pub const fn requested(&self) -> RequestedClass {
        self.requested
    }

    /// Puts the calling thread into the strongest class that is wanted and permitted, until the returned value is dropped.
    /// Threads that it starts meanwhile are ordinary ones.
    pub fn take(&self, role: Role) -> Held {
        let before = Attributes::of_this_thread().ok();
        // Timed waits would end up to 50 us later, in older kernels those of real-time threads, too.
        let slack = if self.requested == RequestedClass::Ordinary { None } else { super::timer_slack() };
        if slack.is_some() {
            let _ = super::lower_timer_slack();
        }
        let taken = climb(self.requested, role, before);
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).push((role, taken.clone()));
        Held { before, slack, taken, own_thread: PhantomData }
    }

    /// What the threads got, those of one role and class together.
    #[must_use]
    pub fn threads(&self) -> Vec<Threads> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner).clone();
        taken.sort_by_key(|(role, _)| *role);
        let mut threads: Vec<Threads> = Vec::new();
        for (role, Taken { class, refused }) in taken {
            let refused: Vec<String> = refused.iter().map(SchedError::reason).collect();
            match threads.iter_mut().find(|of| of.role == role.name() && of.class == class && of.refused == refused) {
                Some(of) => of.count += 1,
                None => threads.push(Threads { role: role.name().to_owned(), count: 1, class, refused }),
            }
        }
        threads
    }
}

/// The class of a thread while this lives; then the thread is what it was before.
#[derive(Debug)]
pub struct Held {
    before: Option<Attributes>,
    slack: Option<Nanos>,
    taken: Taken,
    /// Only the thread itself gives its class back.
    own_thread: PhantomData<*const ()>,
}

impl Held {
    /// The class in use.
    #[must_use]
    pub const fn class(&self) -> SchedulingClass {
        self.taken.class
    }

    /// The stronger classes that were tried first.
    #[must_use]
    pub fn refused(&self) -> &[SchedError] {
        &self.taken.refused
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let now = Attributes::of_this_thread().ok();
        if let Some(before) = self.before.filter(|before| now != Some(*before)) {
            // Without privilege the flag that makes threads started later ordinary ones cannot be taken away again. If the
            // thread was of a class that it may not ask for, it stays in the one that it has.
            if before.set().is_err() {
                let _ = before.with(FLAG_RESET_ON_FORK).set();
            }
        }
        if let Some(slack) = self.slack {
            let _ = super::set_timer_slack(slack);
        }
    }
}

/// The class that a thread of `role` would get here, tried on a thread that then ends.
#[must_use]
pub fn strongest(requested: RequestedClass, role: Role) -> Taken {
    let tried = threads::spawn("headway-probe", move || climb(requested, role, Attributes::of_this_thread().ok()));
    let taken = tried.ok().and_then(|thread| thread.join().ok());
    taken.unwrap_or(Taken { class: SchedulingClass::Ordinary, refused: Vec::new() })
}

/// Puts the calling thread, which had these attributes, into one class.
type Rung = fn(Role, Option<Attributes>) -> Result<SchedulingClass, SchedError>;

/// Tries the classes of `requested`, the strongest first.
fn climb(requested: RequestedClass, role: Role, before: Option<Attributes>) -> Taken {
    let rungs: &[Rung] = match requested {
        RequestedClass::Auto | RequestedClass::Deadline => &[deadline, fifo, nice],
        RequestedClass::Fifo => &[fifo, nice],
        RequestedClass::Nice => &[nice],
        RequestedClass::Ordinary => &[],
    };
    let mut refused = Vec::new();
    for rung in rungs {
        match rung(role, before) {
            Ok(class) => return Taken { class, refused },
            Err(error) => refused.push(error),
        }
    }
    Taken { class: before.map_or(SchedulingClass::Ordinary, Attributes::class), refused }
}

fn deadline(role: Role, _: Option<Attributes>) -> Result<SchedulingClass, SchedError> {
    let (runtime, period) = role.reservation();
    let plain = Attributes::deadline(runtime, period);
    // What other reservations leave is worth having, where the kernel can give it.
    let set = plain.with(FLAG_RECLAIM).set();
    let set = if set.is_err_and(|errno| errno.0 == libc::EINVAL) { plain.set() } else { set };
    set.map(|()| SchedulingClass::Deadline { runtime, period }).map_err(|errno| refusal("SCHED_DEADLINE", errno))
}

fn fifo(role: Role, before: Option<Attributes>) -> Result<SchedulingClass, SchedError> {
    let priority = role.priority();
    // Whoever started the program may have given it more than is asked for here.
    if let Some(class @ SchedulingClass::Fifo { priority: own }) = before.map(Attributes::class)
        && own >= priority
    {
        return Ok(class);
    }
    let set = Attributes::fifo(priority).set();
    set.map(|()| SchedulingClass::Fifo { priority }).map_err(|errno| refusal("SCHED_FIFO", errno))
}

fn nice(_: Role, before: Option<Attributes>) -> Result<SchedulingClass, SchedError> {
    let mut lowest = NICE_MIN;
    let mut set = Attributes::nice(lowest, SLICE).set();
    if set.is_err() {
        lowest = super::refusal::nice_limit();
        let own = before.map_or(0, |before| before.nice);
        if lowest < own.min(0) {
            set = Attributes::nice(lowest, SLICE).set();
        }
    }
    set.map(|()| SchedulingClass::Nice { nice: lowest }).map_err(|errno| refusal("a nice value below 0", errno))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::{SchedClass, current};

    /// Runs `test` on a thread of its own, whose class ends with it.
    fn on_a_thread(test: impl FnOnce() + Send + 'static) {
        std::thread::spawn(test).join().unwrap();
    }

    #[test]
    fn every_rung_is_the_class_in_use_or_names_what_is_missing_and_is_given_back() {
        for (requested, wanted) in [
            (RequestedClass::Deadline, "SCHED_DEADLINE"),
            (RequestedClass::Fifo, "SCHED_FIFO"),
            (RequestedClass::Nice, "a nice"),
        ] {
            on_a_thread(move || {
                let before = Attributes::of_this_thread().unwrap();
                let slack = crate::sched::timer_slack();
                let classes = Classes::new(requested);
                let held = classes.take(Role::Driver);
                assert!(crate::sched::timer_slack() <= Some(Nanos(1)));
                let now = Attributes::of_this_thread().unwrap();
                assert_eq!(now.class(), held.class());
                assert_eq!(requested.is_met_by(held.class()), held.refused().is_empty());
                if let Some(refused) = held.refused().first() {
                    eprintln!("skipped: {refused}");
                    assert!(refused.wanted.starts_with(wanted) && !refused.missing.is_empty(), "{refused}");
                }
                drop(held);
                assert_eq!(Attributes::of_this_thread().unwrap().class(), before.class());
                assert_eq!(crate::sched::timer_slack(), slack);
                // A thread that is started now inherits nothing.
                on_a_thread(move || assert_eq!(Attributes::of_this_thread().unwrap().class(), before.class()));
            });
        }
    }

    #[test]
    fn threads_that_start_under_a_class_are_ordinary_ones() {
        for requested in [RequestedClass::Deadline, RequestedClass::Fifo, RequestedClass::Nice] {
            on_a_thread(move || {
                let before = Attributes::of_this_thread().unwrap().class();
                let held = Classes::new(requested).take(Role::Driver);
                // Of a test that is itself run with a nice value, the kernel keeps that value or sets it back.
                let is_plain = move |class: SchedulingClass| class == before || class == SchedulingClass::Ordinary;
                on_a_thread(move || assert!(is_plain(Attributes::of_this_thread().unwrap().class())));
                drop(held);
            });
        }
    }

    #[test]
    fn a_request_for_an_ordinary_thread_changes_nothing() {
        on_a_thread(|| {
            let before = Attributes::of_this_thread().unwrap();
            let held = Classes::new(RequestedClass::Ordinary).take(Role::Sink);
            assert_eq!((Attributes::of_this_thread().unwrap(), held.refused().len()), (before, 0));
        });
    }

    #[test]
    fn a_thread_with_few_cpus_gets_no_reservation_and_is_told_that_this_is_why() {
        let all = crate::affinity::allowed().unwrap();
        let deadline = strongest(RequestedClass::Deadline, Role::Driver);
        if !RequestedClass::Deadline.is_met_by(deadline.class) || all.len() < 2 {
            eprintln!("skipped: {} CPUs, {:?}", all.len(), deadline.refused);
            return;
        }
        on_a_thread(move || {
            crate::affinity::restrict(&all[..1]).unwrap();
            let held = Classes::new(RequestedClass::Auto).take(Role::Driver);
            let refused = &held.refused()[0];
            assert_eq!((refused.wanted, refused.errno.0), ("SCHED_DEADLINE", libc::EPERM));
            assert!(refused.missing.contains(&format!("may run on 1 of {} CPUs", all.len())), "{refused}");
            assert!(!matches!(held.class(), SchedulingClass::Deadline { .. }));
        });
    }

    #[test]
    fn reservations_beyond_what_the_cpus_have_are_refused_as_busy_and_the_next_rung_is_taken() {
        let wanted = strongest(RequestedClass::Deadline, Role::Core);
        if !RequestedClass::Deadline.is_met_by(wanted.class) {
            eprintln!("skipped: {:?}", wanted.refused);
            return;
        }
        let classes = Classes::new(RequestedClass::Auto);
        let cpus = crate::topology::online(std::path::Path::new("/")).unwrap().len();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        std::thread::scope(|scope| {
            let (sender, receiver) = std::sync::mpsc::channel();
            // Each reserves 0.8 of a CPU.
            for _ in 0..=cpus * 2 {
                let (sender, classes, wait) = (sender.clone(), &classes, &wait);
                scope.spawn(move || {
                    let held = classes.take(Role::Core);
                    sender.send((held.class(), held.refused().to_vec())).unwrap();
                    let _ = wait.lock().unwrap_or_else(PoisonError::into_inner).recv();
                });
            }
            let found: Vec<_> = receiver.iter().take(cpus * 2 + 1).collect();
            drop(go);
            let refused: Vec<_> = found.iter().filter_map(|(_, refused)| refused.first()).collect();
            assert!(!refused.is_empty());
            assert!(refused.iter().all(|error| error.errno.0 == libc::EBUSY && error.missing.contains("reservations")));
        });
        let threads = classes.threads();
        assert_eq!(threads.iter().map(|of| of.count as usize).sum::<usize>(), cpus * 2 + 1);
        assert!(threads.len() >= 2 && threads.iter().all(|of| of.role == "core"), "{threads:?}");
    }

    #[test]
    fn a_priority_that_the_thread_was_started_with_is_kept() {
        on_a_thread(|| {
            if let Err(errno) = Attributes::fifo(30).set() {
                eprintln!("skipped: SCHED_FIFO was refused with {errno}");
                return;
            }
            let held = Classes::new(RequestedClass::Fifo).take(Role::Driver);
            assert_eq!(held.class(), SchedulingClass::Fifo { priority: 30 });
            drop(held);
            assert_eq!(current().unwrap(), SchedClass::Fifo { priority: 30 });
        });
    }
}
