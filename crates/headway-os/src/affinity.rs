//! CPUs a thread may run on, and how much of them.

use std::fs;
use std::path::Path;

use crate::errno::{Errno, OsError};

/// Bits of one word of a CPU mask.
const WORD_BITS: usize = u64::BITS as usize;
/// Words of the largest mask asked for: 65,536 CPUs, eight times what Linux can be built for.
const WORDS_MAX: usize = 1024;

/// The CPUs the calling thread may run on, ascending: the affinity mask within the cgroup's set.
///
/// # Errors
/// [`OsError`] when a sandbox forbids the question.
pub fn allowed() -> Result<Vec<u32>, OsError> {
    let mut mask = vec![0u64; 16];
    loop {
        // SAFETY: the kernel writes at most the stated number of bytes, which `mask` has; 0 names the calling thread.
        let status = unsafe {
            libc::sched_getaffinity(0, size_of_val(mask.as_slice()), mask.as_mut_ptr().cast::<libc::cpu_set_t>())
        };
        if status == 0 {
            break;
        }
        let error = OsError::last("sched_getaffinity");
        if error.errno.0 != libc::EINVAL || mask.len() == WORDS_MAX {
            return Err(error);
        }
        mask = vec![0; mask.len() * 2];
    }
    let cpu_set = |cpu: &usize| mask[cpu / WORD_BITS] >> (cpu % WORD_BITS) & 1 == 1;
    Ok((0..mask.len() * WORD_BITS).filter(cpu_set).map(|cpu| cpu as u32).collect())
}

/// Lets the calling thread, and threads it starts later, run on `cpus` only.
///
/// # Errors
/// [`OsError`] with `EINVAL` when none of them is usable; nothing has changed then.
pub fn restrict(cpus: &[u32]) -> Result<(), OsError> {
    let call = "sched_setaffinity";
    let mut mask = vec![0u64; 16];
    for cpu in cpus.iter().map(|&cpu| cpu as usize) {
        if cpu / WORD_BITS >= WORDS_MAX {
            return Err(OsError { call, errno: Errno(libc::EINVAL) });
        }
        if cpu / WORD_BITS >= mask.len() {
            mask.resize(cpu / WORD_BITS + 1, 0);
        }
        mask[cpu / WORD_BITS] |= 1 << (cpu % WORD_BITS);
    }
    // SAFETY: the kernel reads at most the stated number of bytes, which `mask` has; 0 names the calling thread.
    let status =
        unsafe { libc::sched_setaffinity(0, size_of_val(mask.as_slice()), mask.as_ptr().cast::<libc::cpu_set_t>()) };
    if status == 0 { Ok(()) } else { Err(OsError::last(call)) }
}

/// The calling thread, and those that it starts meanwhile, stay on some CPUs while this lives.
#[derive(Debug)]
pub struct AffinityGuard {
    before: Vec<u32>,
}

impl AffinityGuard {
    /// Restricts the calling thread to `cpus`; `None` if the system does not let it.
    #[must_use]
    pub fn on(cpus: &[u32]) -> Option<Self> {
        let before = allowed().ok()?;
        restrict(cpus).ok().map(|()| Self { before })
    }
}

impl Drop for AffinityGuard {
    fn drop(&mut self) {
        // These were allowed before; if they no longer are, the thread stays where it is.
        let _ = restrict(&self.before);
    }
}

/// CPU time a second that the cgroups of this process allow, in thousandths of a CPU, rounded down; `None` = no limit, or
/// none that can be read. `root` is `/` on a real machine.
///
/// Reads `cpu.max` of the second cgroup version, from the group of the process up to the root that it sees.
#[must_use]
pub fn quota(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let base = root.join("sys/fs/cgroup");
    // Joined by parts that are names, so that `/../` in the path of a group above the visible root leads nowhere.
    let path =
        own.split('/').filter(|part| !part.is_empty() && *part != "..").fold(base.clone(), |at, part| at.join(part));
    let limits = path.ancestors().take_while(|at| at.starts_with(&base)).filter_map(|at| {
        let text = fs::read_to_string(at.join("cpu.max")).ok()?;
        let (quota, period) = text.trim().split_once(' ')?;
        let (quota, period): (u64, u64) = (quota.parse().ok()?, period.parse().ok()?);
        quota.checked_mul(1000)?.checked_div(period)
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_cpu_quota_on_the_way_up_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(quota(root.path()), None);
        write("proc/self/cgroup", "1:cpu:/x\n0::/a/b\n");
        assert_eq!(quota(root.path()), None);
        write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
        write("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
        assert_eq!(quota(root.path()), Some(1500));
        write("sys/fs/cgroup/a/b/cpu.max", "5 0\n");
        assert_eq!(quota(root.path()), Some(1500));
        write("sys/fs/cgroup/a/b/cpu.max", "33333 100000\n");
        assert_eq!(quota(root.path()), Some(333));
        write("proc/self/cgroup", "0::/../../a\n");
        assert_eq!(quota(root.path()), Some(1500));
    }

    #[test]
    fn a_restricted_thread_sees_its_one_cpu() {
        let all = allowed().unwrap();
        assert!(!all.is_empty());
        let last = *all.last().unwrap();
        let seen = std::thread::spawn(move || restrict(&[last]).map(|()| allowed())).join().unwrap();
        assert_eq!(seen.unwrap().unwrap(), [last]);
        assert_eq!(allowed().unwrap(), all);
    }

    #[test]
    fn a_thread_that_stays_aside_comes_back() {
        let before = allowed().unwrap();
        let aside = AffinityGuard::on(&before[..1]).unwrap();
        assert_eq!(allowed().unwrap(), before[..1]);
        drop(aside);
        assert_eq!(allowed().unwrap(), before);
    }

    #[test]
    fn a_cpu_that_cannot_exist_is_refused() {
        assert_eq!(restrict(&[u32::MAX]).unwrap_err().errno, Errno(libc::EINVAL));
        assert_eq!(restrict(&[]).unwrap_err().errno, Errno(libc::EINVAL));
    }
}
