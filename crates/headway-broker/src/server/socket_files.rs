//! The place where a broker listens: its folder, the lock that only one broker has, the socket's file, the count of starts.
//!
//! The broker takes the lock first and keeps it for life. With the lock it knows that no other broker of this version is there, and that a
//! socket at its place is left over. It removes that socket only if its predecessor recorded that it had made it. Any other file of that
//! name stays, and the broker does not start.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use headway_os::ipc::{Listener, Socket};

use super::claims::{GpuClaim, claims};
use super::journal::is_passing;
use super::{ServerOptions, UserAccess, own_files};
use crate::error::{ABSTRACT, ServerError};
use crate::folder::{Entry, Folder, with_ending};
use crate::place;

/// Numbers of clients begin with the epoch in their upper half, and the poller's numbers have two bits more. No broker is started
/// so often: a larger number is not ours.
const EPOCH_MAX: u64 = 1 << 24;

/// A broker's place, held until this is dropped.
pub(super) struct SocketFiles {
    folder: Folder,
    name: OsString,
    lock: File,
    /// The socket's file, once it is there.
    bound: Option<(u64, u64)>,
    _claims: Vec<GpuClaim>,
}

impl SocketFiles {
    /// Takes the place: no process listens there, and no other broker can take it before this is dropped.
    pub(super) fn take(options: &ServerOptions) -> Result<Self, ServerError> {
        let path = &options.socket;
        if place::is_abstract(path) {
            let source = io::Error::new(io::ErrorKind::InvalidInput, ABSTRACT);
            return Err(ServerError::Place { path: path.clone(), source });
        }
        let at = |source| ServerError::Place { path: path.clone(), source };
        let (folder, name) = Folder::of(path).map_err(at)?;
        let place = |source| ServerError::Place { path: folder.clone(), source };
        let mode = if options.access == UserAccess::Private { 0o700 } else { 0o750 };
        Folder::make(&folder, mode).map_err(place)?;
        let folder = Folder::open(&folder).map_err(place)?;
        let lock_name = with_ending(&name, ".lock");
        let lock = folder
            .lock(&lock_name)
            .map_err(|source| ServerError::Place { path: folder.path(&lock_name), source })?
            .ok_or_else(|| ServerError::Running { path: path.clone() })?;
        let mut this = Self { folder, name, lock, bound: None, _claims: Vec::new() };
        own_files::check(&this.folder, &this.name)?;
        options.log.as_deref().map_or(Ok(()), |log| own_files::check_log(path, log))?;
        this.clear(path)?;
        this._claims = claims(options)?;
        Ok(this)
    }

    /// Makes sure that no file has the socket's name; removes a socket that a former broker left there.
    fn clear(&mut self, path: &Path) -> Result<(), ServerError> {
        let at = |source| ServerError::Place { path: path.to_owned(), source };
        // One of an earlier version has no lock.
        match Socket::connect(path) {
            Ok(_) => return Err(ServerError::Running { path: path.to_owned() }),
            Err(error) if error.errno.name() == Some("ENAMETOOLONG") => {
                return Err(ServerError::Listen { path: path.to_owned(), source: error });
            }
            Err(_) => {}
        }
        let Some(entry) = self.folder.entry(&self.name).map_err(at)? else { return Ok(()) };
        if !entry.is_socket || self.noted().map_err(at)? != Some(entry.file) {
            return Err(ServerError::Occupied { path: path.to_owned(), is_socket: entry.is_socket });
        }
        self.folder.remove(&self.name).map_err(at)
    }

    /// The socket that the former broker recorded.
    fn noted(&mut self) -> io::Result<Option<(u64, u64)>> {
        let mut text = String::new();
        self.lock.seek(SeekFrom::Start(0))?;
        (&mut self.lock).take(64).read_to_string(&mut text)?;
        let mut numbers = text.split_whitespace().map_while(|word| word.parse().ok());
        Ok(numbers.next().zip(numbers.next()))
    }

    fn note(&mut self, (device, number): (u64, u64)) -> io::Result<()> {
        self.lock.set_len(0)?;
        self.lock.seek(SeekFrom::Start(0))?;
        writeln!(self.lock, "{device} {number}")
    }

    /// Makes the socket. It appears at once, with its rights, and after it was noted: however this process ends, the next
    /// broker knows it.
    pub(super) fn listen(&mut self, access: UserAccess) -> Result<Listener, ServerError> {
        let new = with_ending(&self.name, ".new");
        let path = self.folder.path(&new);
        let at = |source| ServerError::Place { path: path.clone(), source };
        match self.folder.entry(&new).map_err(at)? {
            // A broker that was killed just here left it: no process listens.
            Some(Entry { is_socket: true, .. }) if Socket::is_dead(&self.folder.descriptor_path(&new)) => {
                self.folder.remove(&new).map_err(at)?
            }
            Some(Entry { is_socket, .. }) => return Err(ServerError::Occupied { path, is_socket }),
            None => {}
        }
        let mode = if access == UserAccess::Private { 0o600 } else { 0o660 };
        let listener = Listener::bind(&self.folder.descriptor_path(&new), mode)
            .map_err(|source| ServerError::Listen { path: path.clone(), source })?;
        listener.refuse_descriptors();
        let made = self.publish(&new, access);
        if made.is_err() {
            let _ = self.folder.remove(&new);
        }
        made.map_err(at)?;
        Ok(listener)
    }

    fn publish(&mut self, new: &std::ffi::OsStr, access: UserAccess) -> io::Result<()> {
        if access == UserAccess::Group {
            self.folder.give_to_group(new)?;
        }
        let gone = || io::Error::new(io::ErrorKind::NotFound, "somebody removed the new socket");
        let file = self.folder.entry(new)?.ok_or_else(gone)?.file;
        self.note(file)?;
        self.folder.rename(new, &self.name)?;
        self.bound = Some(file);
        Ok(())
    }

    /// How often a broker was started here, with this time. On a disk that is full or broken it is counted, but not noted,
    /// unless the broker must remember.
    pub(super) fn next_epoch(&self, must_remember: bool) -> Result<u64, ServerError> {
        let name = with_ending(&self.name, ".epoch");
        let failed = |source| ServerError::Place { path: self.folder.path(&name), source };
        let text = self.folder.read(&name, 64).map_err(failed)?;
        let text = text.as_deref().map(String::from_utf8_lossy);
        let before = match text.as_deref().map(str::trim) {
            None => 0,
            Some(number) => number.parse::<u64>().ok().filter(|number| *number < EPOCH_MAX).ok_or_else(|| {
                failed(io::Error::new(io::ErrorKind::InvalidData, "it is no broker's count of starts; move it away"))
            })?,
        };
        let epoch = before + 1;
        match self.folder.replace(&name, format!("{epoch}\n").as_bytes()) {
            Err(error) if must_remember || !is_passing(&error) => Err(failed(error)),
            _ => Ok(epoch),
        }
    }
}

impl Drop for SocketFiles {
    fn drop(&mut self) {
        // A refused start leaves nothing: without a recorded socket the lock file has no information.
        if self.bound.is_none() && self.lock.metadata().is_ok_and(|lock| lock.len() == 0) {
            let _ = self.folder.remove(&with_ending(&self.name, ".lock"));
        }
        // Only our own socket: another process may have put something else there meanwhile.
        let is_ours = |entry: Entry| entry.is_socket && Some(entry.file) == self.bound;
        if self.bound.is_some() && matches!(self.folder.entry(&self.name), Ok(Some(entry)) if is_ours(entry)) {
            let _ = self.folder.remove(&self.name);
        }
        // A child that another thread has just forked has the file, too, and the lock with it, until it runs a program.
        let _ = self.lock.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::tests::options;

    #[test]
    fn a_place_is_free_once_it_is_dropped_though_a_child_still_has_its_lock_file() {
        let folder = tempfile::tempdir().unwrap();
        let options = options(folder.path().join("s"));
        let mut first = SocketFiles::take(&options).unwrap();
        let _listener = first.listen(options.access).unwrap();
        assert!(matches!(SocketFiles::take(&options), Err(ServerError::Running { .. })));
        let _childs = first.lock.try_clone().unwrap();
        drop(first);
        assert!(folder.path().join("s.lock").exists());
        assert!(SocketFiles::take(&options).is_ok());
    }
}
