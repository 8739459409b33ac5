//! `struct sched_attr` and the two calls that read and write it.

use headway_core::models::cpu::SchedulingClass;
use headway_core::units::Nanos;

use crate::errno::Errno;

/// Threads that the thread starts are ordinary ones.
pub(super) const FLAG_RESET_ON_FORK: u64 = libc::SCHED_FLAG_RESET_ON_FORK as u64;
/// The thread may use what other reservations leave (`SCHED_FLAG_RECLAIM`).
pub(super) const FLAG_RECLAIM: u64 = libc::SCHED_FLAG_RECLAIM as u64;

/// `struct sched_attr` in its first published form (48 bytes), which every kernel accepts.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    pub(super) nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

impl Attributes {
    const EMPTY: Self = Self {
        size: size_of::<Self>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags: FLAG_RESET_ON_FORK,
        nice: 0,
        priority: 0,
        runtime: 0,
        deadline: 0,
        period: 0,
    };

    /// A reservation of `runtime` in every `period`.
    pub(super) const fn deadline(runtime: Nanos, period: Nanos) -> Self {
        let policy = libc::SCHED_DEADLINE as u32;
        Self { policy, runtime: runtime.0, deadline: period.0, period: period.0, ..Self::EMPTY }
    }

    pub(super) const fn fifo(priority: u32) -> Self {
        Self { policy: libc::SCHED_FIFO as u32, priority, ..Self::EMPTY }
    }

    /// An ordinary thread that runs for `slice` at a time, where the kernel has that.
    pub(super) const fn nice(nice: i32, slice: Nanos) -> Self {
        Self { nice, runtime: slice.0, ..Self::EMPTY }
    }

    /// These attributes, with `flags` besides.
    pub(super) const fn with(self, flags: u64) -> Self {
        Self { flags: self.flags | flags, ..self }
    }

    /// Those of the calling thread, fit to be set again.
    pub(super) fn of_this_thread() -> Result<Self, Errno> {
        let mut found = Self::EMPTY;
        // SAFETY: 0 names the calling thread; `found` is valid for writes of the size that is stated.
        let status = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut found, found.size, 0u32) };
        if status != 0 {
            return Err(Errno::last());
        }
        if found.policy != libc::SCHED_DEADLINE as u32 {
            // The kernel tells how long an ordinary thread runs at a time; to set that would fix it.
            found.runtime = 0;
        }
        Ok(Self { size: Self::EMPTY.size, ..found })
    }

    /// Gives them to the calling thread.
    pub(super) fn set(self) -> Result<(), Errno> {
        // SAFETY: 0 names the calling thread; `self` is valid for reads of the size that it states; flags must be 0.
        let status = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const self, 0u32) };
        if status == 0 { Ok(()) } else { Err(Errno::last()) }
    }

    /// The class that they mean.
    pub(super) fn class(self) -> SchedulingClass {
        match self.policy.cast_signed() {
            libc::SCHED_DEADLINE => {
                SchedulingClass::Deadline { runtime: Nanos(self.runtime), period: Nanos(self.period) }
            }
            libc::SCHED_FIFO | libc::SCHED_RR => SchedulingClass::Fifo { priority: self.priority },
            libc::SCHED_OTHER if self.nice == 0 => SchedulingClass::Ordinary,
            _ => SchedulingClass::Nice { nice: self.nice },
        }
    }
}
