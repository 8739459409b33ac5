//! Environment variables of this process, changed while nobody else can read them.

use std::ffi::OsStr;

/// Sets variables of this process, for libraries that read them later, such as the CUDA driver. `false` and nothing is set where
/// the process has other threads: they might read the environment at the same time.
#[must_use]
pub fn set_while_alone<'a>(variables: impl IntoIterator<Item = (&'a str, &'a OsStr)>) -> bool {
    let threads = std::fs::read_dir("/proc/self/task").map_or(usize::MAX, Iterator::count);
    if threads != 1 {
        return false;
    }
    for (name, value) in variables {
        // SAFETY: this is the only thread of the process, so nobody reads the environment meanwhile.
        unsafe { std::env::set_var(name, value) };
    }
    true
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
