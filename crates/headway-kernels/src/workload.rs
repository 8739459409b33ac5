//! Workload files with the keys of the applications that ship: `key` and `iv` for encryption, `wafer` for inspection.

use headway_core::files::error::{FileError, Loaded};
use headway_core::files::workload::{Application, Workload, WorkloadError, checked, parse_with, write_with};

use crate::cipher::Encryption;
use crate::inspect::cameras::Inspection;

const APPLICATIONS: [&dyn Application; 2] = [&Encryption, &Inspection];

/// Reads a workload file.
///
/// # Errors
/// Those of [`parse_with`].
pub fn parse(name: &str, text: &str) -> Result<Loaded<Workload>, FileError> {
    parse_with(name, text, &APPLICATIONS)
}

/// A workload that code made, with the text of the file that would say it.
///
/// # Errors
/// Those of [`Workload::check_with`].
pub fn check(workload: &Workload) -> Result<Loaded<Workload>, WorkloadError> {
    checked(workload, &APPLICATIONS)
}

/// The workload file of `workload`, as [`write_with`] writes it.
#[must_use]
pub fn write(workload: &Workload) -> String {
    write_with(workload, &APPLICATIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workload_files_of_applications_are_read_back_as_they_were() {
        for text in [include_str!("../../../workloads/encrypt.toml"), include_str!("../../../workloads/wafer.toml")] {
            let mut first = parse("first", text).unwrap_or_else(|error| panic!("{error}")).value;
            let written = write(&first);
            let second = parse("second", &written).unwrap_or_else(|error| panic!("{error}\n{written}")).value;
            first.hash.clone_from(&second.hash);
            assert_eq!(first, second);
        }
    }

    #[test]
    fn without_its_application_a_key_is_unknown_and_its_kernel_needs_none() {
        let text = include_str!("../../../workloads/encrypt.toml");
        let error = headway_core::files::workload::parse("encrypt.toml", text).unwrap_err().to_string();
        assert!(error.contains("unknown key `key` in [[stream]]"), "{error}");
        let is_own = |line: &&str| line.starts_with("key") || line.starts_with("iv");
        let rest: String = text.lines().filter(|line| !is_own(line)).map(|line| format!("{line}\n")).collect();
        let plain =
            headway_core::files::workload::parse("encrypt.toml", &rest).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(plain.value.streams.len(), 64);
        assert!(parse("encrypt.toml", &rest).unwrap_err().to_string().contains("encrypts but has no key"));
    }
}
