//! The files of the log. The present one has the name that was given, those before it `.1`, `.2` and so on; each begins with a
//! snapshot, so that it can be read without the others.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use headway_core::decisions::broker::log::{BrokerLogLine, START};
use headway_core::decisions::sharing::{ArbiterMemory, ArbiterParameters};
use headway_core::units::Nanos;
use headway_os::ipc::user;
use rustix::fs::OFlags;

use super::{DiskFaults, allowed};
use crate::error::ServerError;
use crate::folder::{Folder, with_ending};
use crate::server::ServerOptions;
use crate::server::own_files::is_log_or_nothing;

/// Longest line that is read: a snapshot takes up to 1 MiB for each user.
const LINE_MAX: u64 = 256 << 20;

pub(super) struct Log {
    folder: Folder,
    name: OsString,
    path: PathBuf,
    /// `None` before it could be opened.
    file: Option<File>,
    bytes: u64,
    /// Size at which another file is begun.
    full_at: u64,
    bytes_max: u64,
    files: u32,
    obstacle: Option<PathBuf>,
    faults: Option<DiskFaults>,
    must_remember: bool,
}

impl Log {
    /// The log at `path`; nothing is written yet.
    pub(super) fn new(path: &Path, options: &ServerOptions) -> Result<Self, ServerError> {
        let failed = |source| ServerError::Log { path: path.to_owned(), source };
        let (folder, name) = Folder::of(path).map_err(failed)?;
        let folder = Folder::open_ours_or_roots(&folder).map_err(failed)?;
        Ok(Self {
            folder,
            name,
            path: path.to_owned(),
            file: None,
            bytes: 0,
            full_at: options.log_bytes,
            bytes_max: options.log_bytes,
            files: options.log_files.max(1),
            obstacle: None,
            faults: options.faults.clone(),
            must_remember: options.must_remember,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What is in the place of an older file, so that none are kept.
    pub(super) fn obstacle(&self) -> Option<&Path> {
        self.obstacle.as_deref()
    }

    /// Whether it has all bytes that it may have in all its files.
    pub(super) fn is_over(&self) -> bool {
        self.bytes >= self.bytes_max.saturating_mul(u64::from(self.files))
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes >= self.full_at
    }

    /// The file grows by as much as it may have before another one is tried again.
    pub(super) fn postpone_rotation(&mut self) {
        self.full_at = self.bytes.saturating_add(self.bytes_max);
    }

    /// Continues the file, or begins it, with `first`.
    pub(super) fn open(&mut self, first: &[u8]) -> io::Result<()> {
        self.finish_rotation()?;
        let file = self.folder.file(&self.name, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE)?;
        self.bytes = file.metadata()?.len();
        if self.bytes >= self.bytes_max {
            return self.rotate(first);
        }
        self.file = Some(file);
        if self.bytes > 0 {
            // A broker that was killed, or a full disk, may have left half a line.
            self.append(b"\n")?;
        }
        self.append(first)
    }

    /// A broker may have been killed between the two renamings of [`Log::rotate`].
    fn finish_rotation(&self) -> io::Result<()> {
        let new = with_ending(&self.name, ".new");
        let is_left = |entry: Option<crate::folder::Entry>| entry.is_some_and(|entry| entry.is_file);
        if self.folder.entry(&self.name)?.is_none()
            && is_left(self.folder.entry(&new)?)
            && is_log_or_nothing(&self.folder, &new)?
        {
            self.folder.rename(&new, &self.name)?;
        }
        Ok(())
    }

    /// Writes to the present file.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        loop {
            let file = self.file.as_mut().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
            let written = write(file, bytes, self.faults.as_ref(), &self.path);
            if written.is_ok() {
                self.bytes = self.bytes.saturating_add(bytes.len() as u64);
                return written;
            }
            // What a failed write has left takes room, and is no line.
            if file.set_len(self.bytes).is_err() {
                self.bytes = self.bytes.saturating_add(bytes.len() as u64);
            }
            if !written.as_ref().is_err_and(is_no_room) || !self.drop_oldest() {
                return written;
            }
        }
    }

    /// Drops the oldest of the files before the present one to make room on the disk; whether that was done. Only a broker that must remember
    /// does so: others grant without a log, too.
    fn drop_oldest(&self) -> bool {
        let older = (1..self.files).rev().map(|number| self.older(number));
        let oldest = older.filter(|_| self.must_remember).find(|name| self.is_ours(name));
        oldest.is_some_and(|name| self.folder.remove(&name).is_ok())
    }

    fn older(&self, number: u32) -> OsString {
        with_ending(&self.name, &format!(".{number}"))
    }

    /// Whether a file of the log has this name.
    fn is_ours(&self, name: &OsString) -> bool {
        let entry = self.folder.entry(name);
        matches!(entry, Ok(Some(entry)) if entry.is_file && entry.uid == user())
            && is_log_or_nothing(&self.folder, name).unwrap_or(false)
    }

    /// Replaces all that is in the present file by `first` where a broker must remember and nothing else makes room on the disk for it. Lines
    /// are missing before `first`, so what is in the file says nothing of the present state.
    pub(super) fn begin_again(&mut self, first: &[u8]) -> io::Result<()> {
        let file = self.file.as_ref().filter(|_| self.must_remember && self.bytes >= first.len() as u64);
        file.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?.set_len(0)?;
        self.bytes = 0;
        self.append(first)?;
        self.full_at = self.full_after(first);
        Ok(())
    }

    /// The size at which a file is full that begins with this snapshot. Lines take as much of it at least, so that a broker of many large
    /// tasks does not spend its time on snapshots.
    fn full_after(&self, first: &[u8]) -> u64 {
        self.bytes_max.max((first.len() as u64).saturating_mul(2))
    }

    /// Begins another file with `first`, and drops the oldest one; where those before cannot be kept, the present one, so that
    /// the log stays within its bounds.
    pub(super) fn rotate(&mut self, first: &[u8]) -> io::Result<()> {
        let new = with_ending(&self.name, ".new");
        let is_file = self.folder.entry(&new)?.is_none_or(|entry| entry.is_file);
        if !is_file || !is_log_or_nothing(&self.folder, &new)? {
            return Err(self.folder.foreign(&new));
        }
        let file = loop {
            match self.write_new(&new, first) {
                Err(error) if is_no_room(&error) && self.drop_oldest() => {}
                written => break written?,
            }
        };
        let foreign = |number: &u32| {
            let name = self.older(*number);
            !self.is_ours(&name) && !matches!(self.folder.entry(&name), Ok(None))
        };
        self.obstacle = (1..self.files).find(foreign).map(|number| self.folder.path(&self.older(number)));
        if self.obstacle.is_none() {
            for number in (1..self.files.saturating_sub(1)).rev() {
                self.move_to(&self.older(number), &self.older(number + 1))?;
            }
            if self.files > 1 {
                self.move_to(&self.name, &self.older(1))?;
            }
        }
        self.folder.rename(&new, &self.name)?;
        (self.file, self.bytes, self.full_at) = (Some(file), first.len() as u64, self.full_after(first));
        Ok(())
    }

    /// A file of this name with `first`; none if that cannot be written.
    fn write_new(&self, new: &OsString, first: &[u8]) -> io::Result<File> {
        self.folder.remove(new)?;
        let path = self.folder.path(new);
        allowed(self.faults.as_ref(), &path)?;
        let mut file = self.folder.file(new, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL)?;
        let written = write(&mut file, first, self.faults.as_ref(), &path);
        if written.is_err() {
            let _ = self.folder.remove(new);
        }
        written.map(|()| file)
    }

    fn move_to(&self, from: &OsString, to: &OsString) -> io::Result<()> {
        match self.folder.rename(from, to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            moved => moved,
        }
    }
}

/// Whether other files may be in the way.
pub(super) fn is_no_room(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn write(file: &mut File, bytes: &[u8], faults: Option<&DiskFaults>, path: &Path) -> io::Result<()> {
    if let Err(error) = allowed(faults, path) {
        let _ = file.write_all(&bytes[..bytes.len() / 2]);
        return Err(error);
    }
    file.write_all(bytes)
}

/// The state of the former broker's arbiter, from the last snapshot of its log and the lines after it. `None` if there is no log, if the
/// log is of other GPUs or other rules of sharing, or if the system was restarted since, which resets the clock.
pub(super) fn memory(path: &Path, parameters: &ArbiterParameters, now: Nanos) -> Option<ArbiterMemory> {
    let (folder, name) = Folder::of(path).ok()?;
    let folder = Folder::open_ours_or_roots(&folder).ok()?;
    let open = |name: &OsString| folder.file(name, OFlags::RDONLY);
    let mut file = BufReader::new(open(&name).or_else(|_| open(&with_ending(&name, ".new"))).ok()?);
    let starts = starts(&mut file).ok()?;
    // The last one may be half a line of a broker that was killed.
    starts.into_iter().rev().find_map(|start| replay(&mut file, start, parameters, now))
}

/// Where the lines of starts begin.
fn starts(file: &mut BufReader<File>) -> io::Result<Vec<u64>> {
    let (mut starts, mut at, mut line) = (Vec::new(), 0, Vec::new());
    loop {
        line.clear();
        let read = Read::take(&mut *file, LINE_MAX).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(starts);
        }
        if line.starts_with(START.as_bytes()) {
            starts.push(at);
        }
        at += read as u64;
    }
}

fn replay(file: &mut BufReader<File>, start: u64, parameters: &ArbiterParameters, now: Nanos) -> Option<ArbiterMemory> {
    file.seek(SeekFrom::Start(start)).ok()?;
    let mut line = Vec::new();
    Read::take(&mut *file, LINE_MAX).read_until(b'\n', &mut line).ok()?;
    let BrokerLogLine::Broker(begun) = serde_json::from_slice(&line).ok()? else { return None };
    if begun.arbiter != *parameters || begun.now > now {
        return None;
    }
    // Another version's state is not taken, but what it says that it knew is.
    let Ok(mut book) = begun.begin() else { return Some(begun.memory) };
    loop {
        line.clear();
        if Read::take(&mut *file, LINE_MAX).read_until(b'\n', &mut line).ok()? == 0 {
            return Some(book.arbiter().memory());
        }
        // Half a line of a broker that was killed is none.
        let Ok(BrokerLogLine::Fed(fed)) = serde_json::from_slice(&line) else { continue };
        if fed.now > now {
            return None;
        }
        fed.again(&mut book);
    }
}
