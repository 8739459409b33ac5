//! Opening files that a user names, without waiting for ever where one is a pipe.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

/// How long a program has until it begins to write into a pipe.
const PATIENCE: Duration = Duration::from_secs(30);

/// Opens a file that is read once. A pipe will do, such as `<(generate)` of a shell, if somebody begins to write into it within 30 s.
///
/// # Errors
/// What the system says; `TimedOut` for a pipe that nobody writes into.
pub fn open_once(path: &Path) -> io::Result<File> {
    open_within(path, PATIENCE)
}

fn open_within(path: &Path, patience: Duration) -> io::Result<File> {
    let file = open_without_waiting(path)?;
    if file.metadata()?.file_type().is_fifo() {
        if !becomes_readable(&file, patience)? {
            let text = format!(
                "it is a pipe into which nobody has written for {patience:?}: give a file, or start the writer first"
            );
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    }
    Ok(file)
}

/// Opens a file that is read more than once.
///
/// # Errors
/// What the system says; `InvalidInput` for a pipe.
pub fn open_again(path: &Path) -> io::Result<File> {
    let file = open_without_waiting(path)?;
    if file.metadata()?.file_type().is_fifo() {
        let text = "it is a pipe, and is read more than once: write it to a file and give that";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(file)
}

fn open_without_waiting(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

/// Whether there is something to read, or nothing more will come, within `patience`.
fn becomes_readable(file: &File, patience: Duration) -> io::Result<bool> {
    let until = Instant::now() + patience;
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn a_pipe_is_read_once_and_only_if_somebody_writes() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert_eq!(open_again(&pipe).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(open_within(&pipe, Duration::ZERO).unwrap_err().kind(), io::ErrorKind::TimedOut);
        std::thread::scope(|scope| {
            scope.spawn(|| OpenOptions::new().write(true).open(&pipe).unwrap().write_all(b"late").unwrap());
            let mut text = String::new();
            open_once(&pipe).unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, "late");
        });
        std::fs::write(folder.path().join("file"), "text").unwrap();
        for open in [open_once, open_again] {
            assert_eq!(io::read_to_string(open(&folder.path().join("file")).unwrap()).unwrap(), "text");
        }
    }
}
