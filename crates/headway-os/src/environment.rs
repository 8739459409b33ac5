//! Environment variables of this process: which may be believed, and how they are changed while nobody else can read them.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// A variable that names code to load, or a file to write or to meet others at. In a program that has more rights than its caller
/// (set-user-ID, file capabilities: `AT_SECURE`) such a variable does not count: the caller would act with these rights.
#[must_use]
pub fn trusted(name: &str) -> Option<OsString> {
    if has_more_rights() { None } else { std::env::var_os(name).filter(|value| !value.is_empty()) }
}

/// Whether this program has more rights than its caller.
#[must_use]
pub fn has_more_rights() -> bool {
    // SAFETY: the call reads what the kernel gave the process at its start.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Where files may be made that this program removes again: `$TMPDIR` if it is [`trusted`], else `/tmp`.
#[must_use]
pub fn temporary_folder() -> PathBuf {
    trusted("TMPDIR").map_or_else(|| PathBuf::from("/tmp"), PathBuf::from)
}

/// Sets variables of this process, for libraries that read them later, such as the CUDA driver. Returns `false` and sets nothing if the
/// process has other threads, which might read the environment at the same time, or if a name or value holds a zero byte. Also returns
/// `false` if the system refuses a name.
#[must_use]
pub fn set_while_alone<'a>(variables: impl IntoIterator<Item = (&'a str, &'a OsStr)>) -> bool {
    let threads = std::fs::read_dir("/proc/self/task").map_or(usize::MAX, Iterator::count);
    if threads != 1 {
        return false;
    }
    let text = |text: &OsStr| CString::new(text.as_bytes()).ok();
    let variables: Option<Vec<_>> =
        variables.into_iter().map(|(name, value)| Some((text(name.as_ref())?, text(value)?))).collect();
    // Not `std::env::set_var`: in a forked child it may wait for ever, for a lock that another thread of the parent had.
    // SAFETY: this is the only thread of the process, so nobody reads the environment meanwhile; both texts end with a zero.
    let set = |(name, value): &(CString, CString)| unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) } == 0;
    variables.is_some_and(|variables| variables.iter().all(set))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fork::holds_in_a_child;

    #[test]
    fn variables_are_set_only_where_there_is_one_thread() {
        let name = "HEADWAY_TEST_OF_THE_ENVIRONMENT";
        let set = || set_while_alone([(name, OsStr::new("1"))]);
        // The harness has a thread of its own beside this one.
        assert!(!set());
        assert_eq!(std::env::var_os(name), None);
        assert!(holds_in_a_child(|| set() && std::env::var(name).as_deref() == Ok("1")));
    }
}
