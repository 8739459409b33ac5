//! Why the system refuses a scheduling class: what is missing, with its numbers.

use std::fs;
use std::path::Path;

use super::{FIFO_PRIORITY, Missing, SchedClass, SchedError, current};
use crate::affinity;
use crate::errno::Errno;
use crate::limits::soft;
use crate::topology;

/// The number of the capability `CAP_SYS_NICE`.
const CAP_SYS_NICE: u32 = 23;

/// What decides about classes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Facts {
    /// Whether the thread has the capability `CAP_SYS_NICE`; `None` = not known.
    capable: Option<bool>,
    /// The largest real-time priority that `RLIMIT_RTPRIO` allows.
    priority: u64,
    /// The lowest nice value that `RLIMIT_NICE` allows.
    nice: i32,
    /// CPUs on which the thread may run.
    allowed: usize,
    /// CPUs that the kernel uses.
    online: usize,
    /// Microseconds that real-time threads and reservations may use, and in which time.
    ration: Option<(i64, i64)>,
}

impl Facts {
    fn read() -> Self {
        let root = Path::new("/");
        let allowed = affinity::allowed().map_or(0, |cpus| cpus.len());
        let number = |name: &str| -> Option<i64> {
            fs::read_to_string(root.join("proc/sys/kernel").join(name)).ok()?.trim().parse().ok()
        };
        Self {
            capable: fs::read_to_string(root.join("proc/thread-self/status")).ok().and_then(|text| capable(&text)),
            priority: soft(libc::RLIMIT_RTPRIO).unwrap_or(0),
            nice: nice_limit(),
            allowed,
            online: topology::online(root).map_or(allowed, |cpus| cpus.len()),
            ration: number("sched_rt_runtime_us").zip(number("sched_rt_period_us")),
        }
    }

    /// What is missing for `wanted`, which was refused with `errno`.
    fn missing(&self, wanted: &str, errno: Errno) -> (Missing, String) {
        let Self { capable, priority, nice, allowed, online, ration } = self;
        let uncapable = *capable == Some(false);
        let denied = matches!(errno.0, libc::EPERM | libc::EACCES);
        match wanted {
            _ if matches!(errno.0, libc::ENOSYS | libc::EINVAL) => {
                (Missing::Support, "this kernel does not have it".to_owned())
            }
            _ if errno.0 == libc::EBUSY => {
                let ration = ration.map_or_else(
                    || "the CPU time".to_owned(),
                    |(runtime, period)| format!("the {runtime} us in every {period} us on each CPU"),
                );
                let text =
                    format!("all reservations together would need more than {ration} that the kernel has for them");
                (Missing::Bandwidth, text)
            }
            "SCHED_DEADLINE" if denied && uncapable => {
                (Missing::Permission, "the capability CAP_SYS_NICE is missing".to_owned())
            }
            "SCHED_DEADLINE" if denied && allowed < online => {
                let text = format!(
                    "the thread may run on {allowed} of {online} CPUs, and the kernel gives reservations only to threads that \
                     may run on all CPUs of their root domain"
                );
                (Missing::Affinity, text)
            }
            "SCHED_FIFO" if denied && uncapable => {
                let text = format!(
                    "the capability CAP_SYS_NICE is missing, and real-time priorities are limited to {priority} \
                     (`ulimit -r`), where {FIFO_PRIORITY} is needed"
                );
                (Missing::Permission, text)
            }
            _ if denied && uncapable => {
                let text = format!(
                    "the capability CAP_SYS_NICE is missing, and the limit on nice values allows {nice} at the lowest \
                     (`ulimit -e`)"
                );
                (Missing::Permission, text)
            }
            _ if denied => {
                let text = "the cgroup of the thread has no real-time bandwidth (cpu.rt_runtime_us), or a container or sandbox \
                            forbids it";
                (Missing::Group, text.to_owned())
            }
            _ if errno.0 == libc::ESRCH => (Missing::Other, "the thread has ended".to_owned()),
            _ => (Missing::Other, "the system gives no permission that would allow it".to_owned()),
        }
    }
}

/// Whether a file `/proc/PID/status` lists `CAP_SYS_NICE` among the effective capabilities.
fn capable(status: &str) -> Option<bool> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let set = u64::from_str_radix(line.trim(), 16).ok()?;
    Some(set >> CAP_SYS_NICE & 1 == 1)
}

/// The lowest nice value that `RLIMIT_NICE` allows; the kernel counts it from 20 downwards.
pub(super) fn nice_limit() -> i32 {
    20 - i32::try_from(soft(libc::RLIMIT_NICE).unwrap_or(0).min(40)).unwrap_or(0)
}

/// `wanted` was refused with `errno` on the calling thread.
pub(super) fn refusal(wanted: &'static str, errno: Errno) -> SchedError {
    let (lack, missing) = Facts::read().missing(wanted, errno);
    SchedError { wanted, errno, missing, lack, fallback: current().unwrap_or(SchedClass::Other) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts { capable: Some(true), priority: 0, nice: 20, allowed: 4, online: 4, ration: Some((950_000, 1_000_000)) }
    }

    #[test]
    fn permission_affinity_and_bandwidth_are_told_apart() {
        let (eperm, ebusy) = (Errno(libc::EPERM), Errno(libc::EBUSY));
        let of = |facts: &Facts, errno| facts.missing("SCHED_DEADLINE", errno);
        let plain = Facts { capable: Some(false), allowed: 2, ..facts() };
        assert_eq!(of(&plain, eperm), (Missing::Permission, "the capability CAP_SYS_NICE is missing".to_owned()));
        let (lack, text) = of(&Facts { allowed: 2, ..facts() }, eperm);
        assert_eq!(lack, Missing::Affinity);
        assert!(text.starts_with("the thread may run on 2 of 4 CPUs"), "{text}");
        assert_eq!(of(&facts(), eperm).0, Missing::Group);
        let (lack, text) = of(&facts(), ebusy);
        assert_eq!(lack, Missing::Bandwidth);
        assert!(text.contains("more than the 950000 us in every 1000000 us on each CPU"), "{text}");
        assert_eq!(of(&Facts { ration: None, ..facts() }, ebusy).0, Missing::Bandwidth);
        assert_eq!(of(&facts(), Errno(libc::ENOSYS)).0, Missing::Support);
    }

    #[test]
    fn limits_are_named_with_their_values() {
        let plain = Facts { capable: Some(false), priority: 5, nice: 0, ..facts() };
        let (lack, text) = plain.missing("SCHED_FIFO", Errno(libc::EPERM));
        assert_eq!(lack, Missing::Permission);
        assert!(text.contains("CAP_SYS_NICE") && text.contains("limited to 5 (`ulimit -r`), where 10"), "{text}");
        let (lack, text) = facts().missing("SCHED_FIFO", Errno(libc::EPERM));
        assert!(lack == Missing::Group && text.contains("cpu.rt_runtime_us"), "{text}");
        let (lack, text) = plain.missing("a nice value below 0", Errno(libc::EACCES));
        assert!(lack == Missing::Permission && text.contains("allows 0 at the lowest"), "{text}");
    }

    #[test]
    fn capabilities_are_read_from_the_effective_set() {
        assert_eq!(capable("CapPrm:\t0000000000000000\nCapEff:\t0000000000800000\n"), Some(true));
        assert_eq!(capable("CapEff:\t000001ffff7fffff\n"), Some(false));
        assert_eq!(capable("Name:\tx\n"), None);
    }

    #[test]
    fn the_facts_of_this_machine_can_be_read() {
        let facts = Facts::read();
        assert!(facts.capable.is_some() && 0 < facts.allowed && facts.allowed <= facts.online, "{facts:?}");
        assert!((-20..=20).contains(&facts.nice));
    }
}
