//! CPUs a thread may run on.

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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_cpu_that_cannot_exist_is_refused() {
        assert_eq!(restrict(&[u32::MAX]).unwrap_err().errno, Errno(libc::EINVAL));
        assert_eq!(restrict(&[]).unwrap_err().errno, Errno(libc::EINVAL));
    }
}
