//! The daemon, which the broker starts and watches through a guardian.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use headway_os::ipc::{Poller, Process};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::error::ServerError;
use crate::folder::Folder;
use crate::mps::guardian::{Control, END_MAX, FAILED, SERVING, has_ended_within, stop};
use crate::mps::{self, LOGS, MpsError, MpsOptions, Other, check};
use crate::status::MpsStatus;

/// How long the guardian may take to report the outcome of the start; its own waits are shorter.
const SAYS_MAX: Duration = Duration::from_secs(60);
/// The guardian's lines are shorter than this.
const LINE_MAX: usize = 4 << 10;

/// A daemon that serves. It is stopped when this is dropped.
pub(crate) struct Daemon {
    folder: PathBuf,
    guardian: Child,
    said: ChildStdout,
    pid: u32,
    process: Process,
    serves: bool,
}

impl Daemon {
    /// Starts the guardian, which starts the daemon, and waits until that serves.
    pub(crate) fn start(options: &MpsOptions, socket: &Path) -> Result<Self, ServerError> {
        let folder = mps::folder(socket).map_err(|source| ServerError::Place { path: socket.to_owned(), source })?;
        check(&folder)?;
        for path in [folder.clone(), folder.join(LOGS)] {
            let made = Folder::make(&path, 0o700).and_then(|()| Folder::open(&path).map(drop));
            made.map_err(|source| ServerError::Place { path, source })?;
        }
        let [program, arguments @ ..] = options.guardian.as_slice() else {
            return Err(MpsError::Guardian(io::ErrorKind::InvalidInput.into()).into());
        };
        let mut command = Command::new(program);
        command.args(arguments).arg(&folder).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut guardian = command.spawn().map_err(MpsError::Guardian)?;
        let Some(mut said) = guardian.stdout.take() else {
            return Err(MpsError::Guardian(io::ErrorKind::BrokenPipe.into()).into());
        };
        match serving(&mut said) {
            Ok((pid, process)) => Ok(Self { folder, guardian, said, pid, process, serves: true }),
            Err(why) => {
                end(&mut guardian);
                Err(MpsError::Start(why).into())
            }
        }
    }

    /// Whether that is another daemon than this one.
    pub(crate) fn is_other(&self, other: &Other) -> bool {
        other.pid != self.pid
    }

    /// Readable when the guardian has ended.
    pub(crate) fn guardian(&self) -> BorrowedFd<'_> {
        self.said.as_fd()
    }

    /// Readable when the daemon has ended.
    pub(crate) fn process(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }

    /// The message about the end of the daemon or the guardian; each comes once.
    pub(crate) fn ended(&mut self) -> Option<String> {
        if !self.process.has_ended() {
            let text = "the guardian of the MPS daemon has ended: if this broker is killed, nobody stops the daemon";
            return Some(text.to_owned());
        }
        let first = std::mem::replace(&mut self.serves, false);
        let log = self.folder.join(LOGS);
        let text = || {
            format!(
                "the MPS daemon has ended, and no program joins it any more; start the broker again (the daemon logged in `{}`)",
                log.display()
            )
        };
        first.then(text)
    }

    pub(crate) fn status(&self) -> Option<MpsStatus> {
        let log = self.folder.join(LOGS).display().to_string();
        self.serves.then(|| MpsStatus { pid: self.pid, folder: self.folder.display().to_string(), log })
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        end(&mut self.guardian);
        // If the guardian was killed, no other process stops the daemon.
        if !self.process.has_ended() {
            stop(&Control { folder: self.folder.clone() }, self.pid);
        }
    }
}

/// Has the guardian end, and waits for that.
fn end(guardian: &mut Child) {
    drop(guardian.stdin.take());
    if !Process::open(guardian.id()).is_ok_and(|process| has_ended_within(&process, END_MAX)) {
        let _ = guardian.kill();
    }
    let _ = guardian.wait();
}

/// Waits for the guardian's line.
fn serving(said: &mut ChildStdout) -> Result<(u32, Process), String> {
    let line = line(said).map_err(|error| format!("its guardian does not say how that went: {error}"))?;
    if let Some(why) = line.strip_prefix(FAILED) {
        return Err(why.to_owned());
    }
    let pid = line.strip_prefix(SERVING).and_then(|pid| pid.parse().ok());
    let pid = pid.ok_or_else(|| "its guardian does not say what was agreed; use one of this version".to_owned())?;
    let process = Process::open(pid).map_err(|error| format!("it ended again: {error}"))?;
    Ok((pid, process))
}

fn line(said: &mut ChildStdout) -> io::Result<String> {
    let start = Instant::now();
    fcntl_setfl(&*said, fcntl_getfl(&*said)? | OFlags::NONBLOCK)?;
    let poller = Poller::new().map_err(io::Error::other)?;
    poller.add(said.as_fd(), 0).map_err(io::Error::other)?;
    let (mut text, mut ready) = (Vec::new(), Vec::new());
    loop {
        let mut part = [0; LINE_MAX];
        match said.read(&mut part) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => text.extend_from_slice(&part[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            return Ok(String::from_utf8_lossy(&text[..end]).into_owned());
        }
        let left = SAYS_MAX.saturating_sub(start.elapsed());
        if left.is_zero() || text.len() > LINE_MAX {
            return Err(io::ErrorKind::TimedOut.into());
        }
        poller.wait(Some(left), &mut ready).map_err(io::Error::other)?;
    }
}
