//! Descriptors in programs of others.

use std::os::fd::OwnedFd;

use rustix::io::fcntl_dupfd_cloexec;

/// Programs use lower numbers, and take them for their own.
const NUMBER_MIN: i32 = 400;

/// The descriptor under a number out of the program's way; under its own where the process's limit leaves none.
#[must_use]
pub fn moved_up(descriptor: OwnedFd) -> OwnedFd {
    fcntl_dupfd_cloexec(&descriptor, NUMBER_MIN).unwrap_or(descriptor)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_descriptor_has_a_high_number_and_is_closed_when_a_program_starts() {
        let moved = moved_up(File::open("/dev/null").unwrap().into());
        let flags = rustix::io::fcntl_getfd(&moved).unwrap();
        assert!(moved.as_raw_fd() >= NUMBER_MIN && flags.contains(rustix::io::FdFlags::CLOEXEC));
    }
}
