//! A folder held by its descriptor, and the broker's files in it: only regular files of our own are read or written.
//!
//! A user with write access to a folder can replace its files by links to other places. So the folder itself must be ours and
//! must not be writable for others ([`Folder::open`]), no link is followed, and every file is used through the descriptor of
//! the folder that was checked.

use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use headway_os::ipc::user;
use rustix::fs::{
    AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, RenameFlags, Stat, chownat, flock, fstat, openat, renameat,
    renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

/// How often a lock is tried whose file others remove meanwhile.
const LOCK_TRIALS: u32 = 100;
/// Rights of every file that is made here.
const PRIVATE: Mode = Mode::from_raw_mode(0o600);
/// Rights of group and others to write.
const FOREIGN_WRITE: u32 = 0o022;
/// What an error says of a link, pipe, socket or folder under the name of one of our files.
const NO_FILE: &str = "it is no regular file; move it away";
/// Of a folder: only owners rename and remove.
const STICKY: u32 = 0o1000;

/// An open folder.
#[derive(Debug)]
pub(crate) struct Folder {
    fd: OwnedFd,
    path: PathBuf,
    gid: u32,
}

/// What lies under a name, without following a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) is_socket: bool,
    pub(crate) is_file: bool,
    pub(crate) uid: u32,
    /// Device and number of the file: which one it is while it exists.
    pub(crate) file: (u64, u64),
}

impl Folder {
    /// Opens a folder that belongs to us and in which no other user may write. Only root, and members of a group that may write there, may
    /// rename a folder above it.
    ///
    /// # Errors
    /// What the system says, or what is wrong with the folder and what to do.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let (this, stat) = Self::look(path)?;
        if stat.st_uid != user() {
            let text = format!(
                "the folder belongs to user {}, who could put something else there; choose a folder of user {}",
                stat.st_uid,
                user()
            );
            return Err(denied(text));
        }
        if stat.st_mode & FOREIGN_WRITE != 0 {
            let text = format!(
                "others may write in the folder (mode {:o}) and could put something else there; `chmod go-w` it or choose \
                 another one",
                stat.st_mode & 0o7777
            );
            return Err(denied(text));
        }
        check_above(path)?;
        Ok(this)
    }

    /// Opens a folder in which no other user can remove or rename our files. It is ours or root's. If others may write in it, they can
    /// remove only their own files (as in `/tmp`).
    ///
    /// # Errors
    /// What the system says, or what is wrong with the folder and what to do.
    pub(crate) fn open_shared(path: &Path) -> io::Result<Self> {
        let (this, stat) = match Self::look(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let text = format!("there is no folder `{}`; make it, or choose another one", path.display());
                return Err(io::Error::new(io::ErrorKind::NotFound, text));
            }
            looked => looked?,
        };
        if stat.st_uid != user() && stat.st_uid != 0 {
            let text = format!(
                "the folder `{}` belongs to user {}, who could put something else there; choose one of user {} or of root",
                path.display(),
                stat.st_uid,
                user()
            );
            return Err(denied(text));
        }
        if stat.st_mode & FOREIGN_WRITE != 0 && stat.st_mode & STICKY == 0 {
            let text = format!(
                "others may rename and remove what is in the folder `{}` (mode {:o}); `chmod go-w` or `chmod +t` it, or choose \
                 another one",
                path.display(),
                stat.st_mode & 0o7777
            );
            return Err(denied(text));
        }
        Ok(this)
    }

    fn look(path: &Path) -> io::Result<(Self, Stat)> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| match errno {
            // A link in place of the folder: depends on the system which of the two it is.
            Errno::LOOP | Errno::NOTDIR => {
                denied("it is no folder but a link or a file; give the folder itself".to_owned())
            }
            errno => errno.into(),
        })?;
        let stat = fstat(&fd)?;
        Ok((Self { fd, path: path.to_owned(), gid: stat.st_gid }, stat))
    }

    /// Makes a folder, and those above it, for us alone; fine if it is there.
    pub(crate) fn make(path: &Path, mode: u32) -> io::Result<()> {
        if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty() && !above.exists()) {
            Self::make(above, mode)?;
        }
        match DirBuilder::new().mode(mode).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    /// The folder of a file, and the file's name in it.
    pub(crate) fn of(file: &Path) -> io::Result<(PathBuf, OsString)> {
        let none = || io::Error::new(io::ErrorKind::InvalidInput, "the path names no file");
        let name = file.file_name().ok_or_else(none)?.to_owned();
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        Ok((folder.unwrap_or_else(|| Path::new(".")).to_owned(), name))
    }

    /// Where a file of the folder is, for people.
    pub(crate) fn path(&self, name: &OsStr) -> PathBuf {
        self.path.join(name)
    }

    /// The path of the same file through our descriptor, for calls that take only a path. Even if the folder has been renamed, this is the
    /// folder that was checked.
    pub(crate) fn descriptor_path(&self, name: &OsStr) -> PathBuf {
        Path::new("/proc/self/fd").join(self.fd.as_fd().as_raw_fd().to_string()).join(name)
    }

    /// What lies under a name; `None` = nothing.
    pub(crate) fn entry(&self, name: &OsStr) -> io::Result<Option<Entry>> {
        match statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Entry {
                is_socket: FileType::from_raw_mode(stat.st_mode) == FileType::Socket,
                is_file: FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile,
                uid: stat.st_uid,
                file: (stat.st_dev, stat.st_ino),
            })),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Opens a regular file of our own; with `CREATE` in `flags` it may be new and is then for us alone.
    pub(crate) fn file(&self, name: &OsStr, flags: OFlags) -> io::Result<File> {
        // A pipe would wait for its other end.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = openat(&self.fd, name, flags, PRIVATE).map_err(|errno| match errno {
            Errno::LOOP => denied("it is a link; remove it".to_owned()),
            // A socket, or a pipe without a reader; a folder.
            Errno::NXIO | Errno::ISDIR => denied(NO_FILE.to_owned()),
            errno => errno.into(),
        })?;
        let stat = fstat(&fd)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(denied(NO_FILE.to_owned()));
        }
        if stat.st_uid != user() {
            return Err(denied(format!("it belongs to user {}; move it away", stat.st_uid)));
        }
        if stat.st_nlink > 1 {
            let text = format!(
                "the file has {} names (hard links), so that it may be another file too; remove this one",
                stat.st_nlink
            );
            return Err(denied(text));
        }
        Ok(fd.into())
    }

    /// What a file of our own contains; `None` = there is none.
    ///
    /// # Errors
    /// What the system says; a file of more than `most` bytes is none of the broker's.
    pub(crate) fn read(&self, name: &OsStr, most: u64) -> io::Result<Option<Vec<u8>>> {
        let file = match self.file(name, OFlags::RDONLY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mode = fstat(&file)?.st_mode & 0o7777;
        if mode & FOREIGN_WRITE != 0 {
            return Err(denied(format!("others may have written to it (mode {mode:o}); move it away")));
        }
        let mut bytes = Vec::new();
        file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > most {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("it has more than {most} bytes")));
        }
        Ok(Some(bytes))
    }

    /// The first bytes of a file of our own, `most` at most, and its length; `None` = there is none.
    pub(crate) fn beginning(&self, name: &OsStr, most: usize) -> io::Result<Option<(Vec<u8>, u64)>> {
        let file = match self.file(name, OFlags::RDONLY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let length = file.metadata()?.len();
        let mut bytes = Vec::new();
        file.take(most as u64).read_to_end(&mut bytes)?;
        Ok(Some((bytes, length)))
    }

    /// Replaces a file, or makes it. A reader finds either the old bytes or the new ones, also after a crash.
    pub(crate) fn replace(&self, name: &OsStr, bytes: &[u8]) -> io::Result<()> {
        let new = with_ending(name, ".new");
        self.clear(&new)?;
        let written = self.file(&new, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL);
        let written = written.and_then(|mut file| file.write_all(bytes)).and_then(|()| self.rename(&new, name));
        if written.is_err() {
            let _ = self.remove(&new);
        }
        written
    }

    /// Replaces a file, giving it `room` bytes or more, blanks behind `bytes`. Two files take turns, the other one called NAME`.new`: so long as
    /// `bytes` fit into them a full disk is no hindrance, if the file system can exchange two names.
    pub(crate) fn replace_within(&self, name: &OsStr, bytes: &[u8], room: usize) -> io::Result<()> {
        let room = if bytes.len() <= room { room } else { bytes.len().next_power_of_two() };
        let mut padded = bytes.to_owned();
        padded.resize(room, b' ');
        let new = with_ending(name, ".new");
        self.fill(&new, &padded)?;
        match renameat_with(&self.fd, &new, &self.fd, name, RenameFlags::EXCHANGE) {
            Ok(()) => Ok(()),
            // The first of the two, or a file system that cannot.
            Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                self.rename(&new, name)?;
                self.fill(&new, &padded)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Writes `bytes` into a file that has as many, or makes it.
    fn fill(&self, name: &OsStr, bytes: &[u8]) -> io::Result<()> {
        if let Ok(file) = self.file(name, OFlags::RDWR)
            && file.metadata()?.len() == bytes.len() as u64
        {
            return file.write_all_at(bytes, 0);
        }
        self.clear(name)?;
        let written = self.file(name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL);
        let written = written.and_then(|mut file| file.write_all(bytes));
        if written.is_err() {
            let _ = self.remove(name);
        }
        written
    }

    /// Removes a regular file, as a broker that was killed leaves one. A link, a pipe or a folder is another's: it stays.
    fn clear(&self, name: &OsStr) -> io::Result<()> {
        match self.entry(name)? {
            Some(Entry { is_file: false, .. }) => Err(self.foreign(name)),
            _ => self.remove(name),
        }
    }

    /// Says that what has a name that a broker needs is none of its files.
    pub(crate) fn foreign(&self, name: &OsStr) -> io::Error {
        let text = format!("no broker made `{}`; move it away", self.path(name).display());
        io::Error::new(io::ErrorKind::AlreadyExists, text)
    }

    /// Gives a file another name, in place of what has that name.
    pub(crate) fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Removes a name; fine if it is not there. What a link points to stays.
    pub(crate) fn remove(&self, name: &OsStr) -> io::Result<()> {
        match unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Gives a file to the folder's group.
    pub(crate) fn give_to_group(&self, name: &OsStr) -> io::Result<()> {
        Ok(chownat(&self.fd, name, None, Some(Gid::from_raw(self.gid)), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Locks a file of our own for as long as the returned value lives; `None` = another process has the lock. The kernel frees the lock
    /// however this process ends. Only the holder of the lock may remove the file.
    pub(crate) fn lock(&self, name: &OsStr) -> io::Result<Option<File>> {
        for _ in 0..LOCK_TRIALS {
            let file = match self.file(name, OFlags::RDWR | OFlags::CREATE) {
                // Removed between the two steps of making it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file?,
            };
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
            // The former holder may have removed the file since it was opened here: then the lock has no effect.
            let stat = fstat(&file)?;
            if self.entry(name)?.is_some_and(|entry| entry.file == (stat.st_dev, stat.st_ino)) {
                return Ok(Some(file));
            }
        }
        Ok(None)
    }
}

/// Refuses a folder that other users can replace: they may rename and remove files in a folder above it, or own a symbolic link in its
/// path.
fn check_above(path: &Path) -> io::Result<()> {
    // The owner of `/` is root; inside a user namespace root may have another number than 0.
    let root = std::fs::metadata("/")?.uid();
    std::path::absolute(path)?.parent().map_or(Ok(()), |above| check_way(above, root))
}

fn check_way(path: &Path, root: u32) -> io::Result<()> {
    for place in std::path::absolute(path)?.ancestors() {
        let found = std::fs::symlink_metadata(place)?;
        let (owner, mode) = (found.uid(), found.mode());
        // The owner of a sticky folder, too, renames what is in it.
        if ![0, root, user()].contains(&owner) {
            let trusted = if user() == 0 { "root".to_owned() } else { format!("root and user {}", user()) };
            return Err(denied(format!(
                "`{}` above it belongs to user {owner}, who could put something else there; choose a folder that has only \
                 those of {trusted} above it",
                place.display()
            )));
        }
        if found.is_symlink() {
            let target = place.parent().unwrap_or(place).join(std::fs::read_link(place)?);
            check_way(&target, root)?;
        } else if mode & FOREIGN_WRITE & 0o007 != 0 && mode & STICKY == 0 {
            return Err(denied(format!(
                "every user may rename and remove what is in `{}` above it (mode {:o}); `chmod o-w` or `chmod +t` that, or \
                 choose another folder",
                place.display(),
                mode & 0o7777
            )));
        }
    }
    Ok(())
}

/// A name with something behind it.
pub(crate) fn with_ending(name: &OsStr, ending: &str) -> OsString {
    let mut name = name.to_owned();
    name.push(ending);
    name
}

fn denied(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn name(text: &str) -> &OsStr {
        OsStr::new(text)
    }

    #[test]
    fn a_folder_of_another_user_or_one_that_others_may_write_in_is_refused() {
        let place = tempfile::tempdir().unwrap();
        assert!(Folder::open(place.path()).is_ok());
        for mode in [0o720, 0o702, 0o1777] {
            fs::set_permissions(place.path(), fs::Permissions::from_mode(mode)).unwrap();
            let error = Folder::open(place.path()).unwrap_err();
            assert!(error.to_string().contains("others may write"), "{mode:o}: {error}");
        }
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let inner = place.path().join("inner");
        fs::create_dir(&inner).unwrap();
        for (mode, fits) in [(0o777, false), (0o1777, true), (0o775, true), (0o700, true)] {
            fs::set_permissions(place.path(), fs::Permissions::from_mode(mode)).unwrap();
            fs::set_permissions(&inner, fs::Permissions::from_mode(0o700)).unwrap();
            let opened = Folder::open(&inner);
            assert_eq!(opened.is_ok(), fits, "{mode:o}");
            assert!(opened.err().is_none_or(|error| error.to_string().contains("above it")));
        }
        if user() != 0 {
            println!("skipped: only root gives a folder to another user");
            return;
        }
        chown(place.path(), Some(65_534), None).unwrap();
        let error = Folder::open(place.path()).unwrap_err();
        assert!(error.to_string().contains("belongs to user 65534"), "{error}");
    }

    #[test]
    fn a_link_in_place_of_the_folder_or_of_a_file_is_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let (real, link) = (place.path().join("real"), place.path().join("link"));
        fs::create_dir(&real).unwrap();
        symlink(&real, &link).unwrap();
        assert!(Folder::open(&link).unwrap_err().to_string().contains("link"));
        let folder = Folder::open(place.path()).unwrap();
        let victim = place.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        for planted in ["a", "a.new"] {
            symlink(&victim, place.path().join(planted)).unwrap();
        }
        assert!(folder.read(name("a"), 100).is_err());
        assert!(folder.lock(name("a")).is_err());
        for refused in [folder.replace(name("a"), b"ours"), folder.replace_within(name("a"), b"ours", 64)] {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains("a.new`; move it away"), "{error}");
        }
        assert!(fs::symlink_metadata(place.path().join("a.new")).unwrap().is_symlink(), "it stays");
        fs::remove_file(place.path().join("a.new")).unwrap();
        folder.replace(name("a"), b"ours").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(folder.read(name("a"), 100).unwrap().unwrap(), b"ours");
        assert_eq!(fs::symlink_metadata(place.path().join("a")).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(folder.entry(name("a.new")).unwrap().is_none());
    }

    #[test]
    fn what_fits_is_replaced_in_the_same_two_files() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path()).unwrap();
        let text = |name: &str| fs::read_to_string(place.path().join(name)).unwrap();
        let files = || ["a", "a.new"].map(|at| folder.entry(name(at)).unwrap().unwrap().file);
        folder.replace_within(name("a"), b"first", 64).unwrap();
        let mut pair = files();
        for content in ["second", "", "a longer one", &"x".repeat(64)] {
            folder.replace_within(name("a"), content.as_bytes(), 64).unwrap();
            pair.reverse();
            assert_eq!(files(), pair, "they took turns");
            assert_eq!(text("a"), format!("{content:64}"));
        }
        // More than there is room for: larger files, from then on two again.
        folder.replace_within(name("a"), &[b'y'; 65], 64).unwrap();
        folder.replace_within(name("a"), &[b'z'; 65], 64).unwrap();
        assert_eq!(text("a"), format!("{:128}", "z".repeat(65)));
        let mut pair = files();
        pair.reverse();
        folder.replace_within(name("a"), &[b'z'; 70], 64).unwrap();
        assert_eq!(files(), pair);
        // A link in place of the second file is not written through, and stays.
        fs::write(place.path().join("victim"), "precious").unwrap();
        fs::remove_file(place.path().join("a.new")).unwrap();
        symlink(place.path().join("victim"), place.path().join("a.new")).unwrap();
        folder.replace_within(name("a"), b"new", 64).unwrap_err();
        assert_eq!((text("a").trim_end(), text("victim").as_str()), ("z".repeat(70).as_str(), "precious"));
        fs::remove_file(place.path().join("a.new")).unwrap();
        folder.replace_within(name("a"), b"new", 64).unwrap();
        assert_eq!(text("a"), format!("{:64}", "new"));
    }

    #[test]
    fn what_is_no_regular_file_or_too_long_is_not_read_and_a_pipe_is_not_waited_for() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path()).unwrap();
        fs::create_dir(place.path().join("folder")).unwrap();
        assert!(folder.read(name("folder"), 100).is_err());
        rustix::fs::mknodat(&folder.fd, "pipe", FileType::Fifo, PRIVATE, 0).unwrap();
        assert!(folder.read(name("pipe"), 100).unwrap_err().to_string().contains("no regular file"));
        fs::write(place.path().join("long"), [b'x'; 101]).unwrap();
        assert!(folder.read(name("long"), 100).is_err());
        assert!(folder.read(name("none"), 100).unwrap().is_none());
    }

    #[test]
    fn a_file_that_others_may_write_to_is_not_believed() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path()).unwrap();
        folder.replace(name("a"), b"ours").unwrap();
        assert!(folder.read(name("a"), 100).is_ok());
        for mode in [0o666, 0o660, 0o602] {
            fs::set_permissions(place.path().join("a"), fs::Permissions::from_mode(mode)).unwrap();
            assert!(folder.read(name("a"), 100).unwrap_err().to_string().contains("others may have written"));
        }
    }

    #[test]
    fn a_lock_has_one_holder_until_it_is_dropped() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path()).unwrap();
        let held = folder.lock(name("lock")).unwrap().unwrap();
        assert!(folder.lock(name("lock")).unwrap().is_none());
        drop(held);
        let held = folder.lock(name("lock")).unwrap().unwrap();
        // Removed, so that another file has the name: the lock is the file's that has it.
        folder.remove(name("lock")).unwrap();
        let other = folder.lock(name("lock")).unwrap().unwrap();
        assert!(folder.lock(name("lock")).unwrap().is_none());
        drop((held, other));
    }

    #[test]
    fn a_file_with_another_name_somewhere_is_not_used() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path()).unwrap();
        fs::write(place.path().join("victim"), "precious").unwrap();
        fs::hard_link(place.path().join("victim"), place.path().join("a")).unwrap();
        for used in [folder.lock(name("a")).map(drop), folder.read(name("a"), 100).map(drop)] {
            assert!(used.unwrap_err().to_string().contains("hard links"));
        }
        assert!(folder.file(name("a"), OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE).is_err());
        folder.replace(name("a"), b"ours").unwrap();
        assert_eq!(fs::read_to_string(place.path().join("victim")).unwrap(), "precious");
    }

    #[test]
    fn a_shared_folder_must_keep_others_from_what_is_ours() {
        let place = tempfile::tempdir().unwrap();
        for (mode, fits) in [(0o700, true), (0o755, true), (0o1777, true), (0o777, false), (0o770, false)] {
            fs::set_permissions(place.path(), fs::Permissions::from_mode(mode)).unwrap();
            let opened = Folder::open_shared(place.path());
            assert_eq!(opened.is_ok(), fits, "{mode:o}");
            assert!(opened.err().is_none_or(|error| error.to_string().contains("chmod")));
        }
        let error = Folder::open_shared(&place.path().join("none")).unwrap_err();
        assert!(error.to_string().contains("make it"), "{error}");
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        if user() == 0 {
            chown(place.path(), Some(65_534), None).unwrap();
            let error = Folder::open_shared(place.path()).unwrap_err();
            assert!(error.to_string().contains("belongs to user 65534"), "{error}");
        }
    }
}
