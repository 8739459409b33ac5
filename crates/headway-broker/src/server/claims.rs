//! One broker for each GPU of the machine, whatever its socket.
//!
//! The broker claims a GPU by two means at once, since each covers another namespace of Linux. An abstract socket identifies the process that
//! has the GPU; it covers a network namespace. A lock on a file in [`SHARED`] covers all processes that see the same folder. Containers
//! that share neither do not see each other's brokers: then give the GPU to only one of them.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use headway_os::ipc::{Claim, user};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, flock, fstat, lstat, open};
use rustix::io::Errno;

use super::ServerOptions;
use crate::error::ServerError;

/// A folder in which every user may make files and may remove only own files.
const SHARED: &str = "/dev/shm";
/// How often a file is opened anew that its owner removed meanwhile.
const TRIALS: u32 = 100;

/// A GPU that no other broker has while this lives.
pub(super) struct GpuClaim {
    _name: Option<Claim>,
    lock: Option<(PathBuf, File)>,
}

impl Drop for GpuClaim {
    fn drop(&mut self) {
        if let Some((path, file)) = &self.lock {
            // While the lock is held: a process that then gets the lock sees that the name is gone. Another user's file stays.
            let _ = std::fs::remove_file(path);
            // A child that another thread has just forked has the file, too, and the lock with it, until it runs a program.
            let _ = file.unlock();
        }
    }
}

/// What became of the lock of a GPU.
enum Lock {
    Taken(PathBuf, File),
    /// Another process has it, or it cannot be locked; the file belongs to this user.
    Denied(u32),
    /// There is no such folder here, or nothing can be made in it.
    None,
}

/// Claims every GPU that the system knows by a name.
pub(super) fn claims(options: &ServerOptions) -> Result<Vec<GpuClaim>, ServerError> {
    let mut claims = Vec::new();
    for gpu in &options.claims {
        let refused = |holder| ServerError::Claimed { gpu: gpu.clone(), holder };
        let (mut name, mut lock) = (None, None);
        match Claim::take(&format!("headway-gpu/{gpu}"))? {
            Ok(claim) => name = Some(claim),
            Err(holder) => {
                let is_other = holder.is_none_or(|peer| peer.uid != user());
                if !(options.despite_claims && is_other) {
                    return Err(refused(holder.map(|peer| (peer.pid, peer.uid))));
                }
            }
        }
        match lock_of(Path::new(SHARED), gpu) {
            Lock::Taken(path, file) => lock = Some((path, file)),
            Lock::None => {}
            // Any user may lock the file, so its holder is not known. The owner of the file can remove it.
            Lock::Denied(owner) if options.despite_claims && owner != user() => {}
            Lock::Denied(owner) => {
                let file = path_of(Path::new(SHARED), gpu);
                return Err(ServerError::Locked { gpu: gpu.clone(), file, owner });
            }
        }
        claims.push(GpuClaim { _name: name, lock });
    }
    Ok(claims)
}

fn path_of(folder: &Path, gpu: &str) -> PathBuf {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() || letter == '-' { letter } else { '_' };
    folder.join(format!("headway-gpu-{}.lock", gpu.chars().map(plain).collect::<String>()))
}

fn lock_of(folder: &Path, gpu: &str) -> Lock {
    let path = path_of(folder, gpu);
    let owner = || lstat(&path).map_or(u32::MAX, |stat| stat.st_uid);
    for _ in 0..TRIALS {
        let file = match opened(&path) {
            Ok(file) => file,
            // Between the two steps its owner removed it, or another process made it.
            Err(Errno::NOENT | Errno::EXIST) if folder.is_dir() => continue,
            Err(Errno::ACCESS | Errno::LOOP | Errno::ISDIR | Errno::NXIO) if lstat(&path).is_ok() => {
                return Lock::Denied(owner());
            }
            Err(_) => return Lock::None,
        };
        let Ok(stat) = fstat(&file) else { return Lock::None };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Lock::Denied(stat.st_uid);
        }
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Lock::Denied(stat.st_uid),
            Err(_) => return Lock::None,
        }
        // A file without a name locks nothing any more.
        if lstat(&path).is_ok_and(|named| (named.st_dev, named.st_ino) == (stat.st_dev, stat.st_ino)) {
            return Lock::Taken(path, File::from(file));
        }
    }
    Lock::Denied(owner())
}

/// Opens the existing file, else makes a new one that all users may lock, since its maker may have ended long ago.
fn opened(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    match open(path, flags, Mode::empty()) {
        Err(Errno::NOENT) => {
            let mode = Mode::from_raw_mode(0o644);
            let file = open(path, flags | OFlags::CREATE | OFlags::EXCL, mode)?;
            // Whatever the mask of this process is.
            rustix::fs::fchmod(&file, mode)?;
            Ok(file)
        }
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_locked_once_and_a_lock_that_was_left_is_no_obstacle() {
        let folder = tempfile::tempdir().unwrap();
        let lock = || lock_of(folder.path(), "GPU-1/../x");
        let Lock::Taken(path, file) = lock() else { panic!("it is free") };
        assert_eq!(path, folder.path().join("headway-gpu-GPU-1____x.lock"));
        assert!(matches!(lock(), Lock::Denied(owner) if owner == user()));
        drop(file);
        assert!(path.exists(), "left by a broker that was killed");
        let Lock::Taken(path, file) = lock() else { panic!("it is free again") };
        let claim = GpuClaim { _name: None, lock: Some((path.clone(), file)) };
        drop(claim);
        assert!(!path.exists());
        std::fs::create_dir(&path).unwrap();
        assert!(matches!(lock(), Lock::Denied(_)), "not what can be locked");
        assert!(matches!(lock_of(Path::new("/nowhere"), "x"), Lock::None));
    }
}
