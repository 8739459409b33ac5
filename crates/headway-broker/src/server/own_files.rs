//! Whether a broker made a file that has the name of one of the broker's files. If not, as with `Cargo.lock` next to a socket `Cargo`, the
//! file stays as it is, and the broker does not start.

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use headway_core::decisions::broker::log::START;

use super::journal::{HELD, is_beginning_of_state};
use crate::error::ServerError;
use crate::folder::{Folder, with_ending};

/// Bytes by which a file is known.
const BEGINNING: usize = 64;

type Known = fn(&[u8], u64) -> bool;

/// Endings of the broker's files, and whether the first [`BEGINNING`] bytes and the length of a file can be those of such a file,
/// also if the broker was killed while it wrote it. `.epoch` and `.state` are read as a whole, and refused if they are damaged.
const KNOWN: [(&str, Known); 4] =
    [(".lock", is_number), (".epoch.new", is_number), (".state.new", is_state), (".held", is_held)];
/// Endings of files that no log may have the name of.
const TAKEN: [&str; 8] = ["", ".new", ".lock", ".epoch", ".epoch.new", ".state", ".state.new", ".held"];

fn is_number(beginning: &[u8], length: u64) -> bool {
    length <= BEGINNING as u64 && beginning.iter().all(|byte| byte.is_ascii_digit() || matches!(byte, b' ' | b'\n'))
}

fn is_state(beginning: &[u8], _: u64) -> bool {
    is_beginning_of_state(beginning)
}

fn is_held(beginning: &[u8], _: u64) -> bool {
    // A hole where the first line was not written yet.
    let blank = beginning.iter().all(|byte| matches!(byte, b' ' | 0));
    blank || beginning.starts_with(HELD) || HELD.starts_with(beginning)
}

fn is_log(beginning: &[u8]) -> bool {
    // Half a line of a broker that was killed while it wrote the first one.
    let start = START.as_bytes();
    beginning.starts_with(start) || start.starts_with(beginning)
}

/// Whether the file with this name is a log of a broker, or nothing.
pub(super) fn is_log_or_nothing(folder: &Folder, name: &OsStr) -> io::Result<bool> {
    Ok(folder.beginning(name, BEGINNING)?.is_none_or(|(beginning, _)| is_log(&beginning)))
}

fn foreign() -> io::Error {
    let text = "no broker made this file, and a broker would replace it; move it away, or choose another place";
    io::Error::new(io::ErrorKind::AlreadyExists, text)
}

/// Refuses a place where something else has the name of a file of the broker's.
pub(super) fn check(folder: &Folder, name: &OsStr) -> Result<(), ServerError> {
    for (ending, is_ours) in KNOWN {
        let name = with_ending(name, ending);
        let at = |source| ServerError::Place { path: folder.path(&name), source };
        match folder.entry(&name).map_err(at)? {
            None => continue,
            // Links are not followed, whatever they lead to.
            Some(entry) if !entry.is_file => return Err(at(foreign())),
            Some(_) => {}
        }
        let beginning = folder.beginning(&name, BEGINNING).map_err(at)?;
        if beginning.is_some_and(|(beginning, length)| !is_ours(&beginning, length)) {
            return Err(at(foreign()));
        }
    }
    Ok(())
}

/// Refuses a log that would be one of the broker's other files, or goes on in a file that is no log.
pub(super) fn check_log(socket: &Path, log: &Path) -> Result<(), ServerError> {
    let failed = |source| ServerError::Log { path: log.to_owned(), source };
    let ((of_log, log_name), (of_socket, name)) =
        (Folder::of(log).map_err(failed)?, Folder::of(socket).map_err(failed)?);
    let number = |folder: &Path| std::fs::metadata(folder).map(|known| (known.dev(), known.ino())).ok();
    let is_same = number(&of_log).is_some_and(|log| number(&of_socket) == Some(log));
    // The log has a file with `.new` behind its name, too.
    let clashes = |ending: &&str| [&log_name, &with_ending(&log_name, ".new")].contains(&&with_ending(&name, ending));
    if is_same && TAKEN.iter().any(clashes) {
        let text = "the broker has another file of that name beside its socket; give the log another name";
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, text)));
    }
    let folder = Folder::open_ours_or_roots(&of_log).map_err(failed)?;
    if !is_log_or_nothing(&folder, &log_name).map_err(failed)? {
        let text = "it is no log of a broker, which would write behind what is there; give the log another name";
        return Err(failed(io::Error::new(io::ErrorKind::AlreadyExists, text)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_broker_may_have_left_is_known_however_it_was_cut_short_and_nothing_else() {
        let state = b"0123abcd {\"schema\":1,\"boot\":\"x\"}";
        for end in 0..state.len() {
            assert!(is_state(&state[..end], 0), "{end}");
        }
        assert!(is_number(b"", 0) && is_number(b"2050 123\n", 9) && is_number(b"7", 1));
        assert!(
            is_held(b"", 0) && is_held(b"head", 4) && is_held(b"headway 3 complete 0 ", 64) && is_held(&[b' '; 64], 64)
        );
        assert!(is_log(b"") && is_log(b"{\"bro") && is_log(b"{\"broker\":{"));
        let text = b"# This file is automatically @generated by Cargo.\nversion = 4\n";
        assert!(!is_number(text, 64) && !is_state(text, 64) && !is_held(text, 64) && !is_log(text));
        assert!(!is_number(b"1 2\n", 65), "longer than any note");
    }
}
