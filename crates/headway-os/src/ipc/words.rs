//! Words in memory that several processes map: 64-bit ones first, 32-bit ones behind them, all accessed atomically.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::futex::{self, Woken};
use crate::errno::{Errno, OsError};

/// A mapping, unmapped when dropped.
struct Region {
    base: NonNull<u8>,
    longs: usize,
    words: usize,
}

// SAFETY: the memory is only ever accessed as atomics, and unmapped once, by the owner.
unsafe impl Send for Region {}
// SAFETY: the memory is only ever accessed as atomics, and unmapped once, by the owner.
unsafe impl Sync for Region {}

impl Region {
    fn bytes(longs: usize, words: usize) -> Option<usize> {
        longs.checked_mul(8)?.checked_add(words.checked_mul(4)?).filter(|bytes| *bytes > 0)
    }

    fn map(file: &OwnedFd, longs: usize, words: usize, protection: ProtFlags) -> Result<Self, OsError> {
        let wrong = OsError { call: "mmap", errno: Errno(libc::EINVAL) };
        let bytes = Self::bytes(longs, words).ok_or_else(|| wrong.clone())?;
        let length = fstat(file).map_err(OsError::of("fstat"))?.st_size;
        // Pages behind the end of a file would end the process when they are touched.
        if usize::try_from(length).unwrap_or(0) < bytes {
            return Err(wrong);
        }
        // SAFETY: no fixed place is asked for, so that the kernel finds a free range.
        let base = unsafe { mmap(null_mut(), bytes, protection, MapFlags::SHARED, file, 0) };
        let base = base.map_err(OsError::of("mmap"))?;
        NonNull::new(base.cast::<u8>()).map(|base| Self { base, longs, words }).ok_or(wrong)
    }

    fn long(&self, at: usize) -> *mut u64 {
        assert!(at < self.longs, "word {at} of {}", self.longs);
        self.base.as_ptr().cast::<u64>().wrapping_add(at)
    }

    fn word(&self, at: usize) -> *mut u32 {
        assert!(at < self.words, "word {at} of {}", self.words);
        self.base.as_ptr().wrapping_add(self.longs * 8).cast::<u32>().wrapping_add(at)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let bytes = Self::bytes(self.longs, self.words).unwrap_or(1);
        // SAFETY: the range was mapped by `map`, and every reference into it borrows from this value.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), bytes) };
    }
}

/// Words that this process may write. Other processes may change them at any time: what is read is material to check.
pub struct Words {
    region: Region,
    file: OwnedFd,
}

impl Words {
    /// Zeroed words in a memory file of their own, whose size nobody can change.
    ///
    /// # Errors
    /// [`OsError`].
    pub fn create(name: &str, longs: usize, words: usize) -> Result<Self, OsError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create(name.replace('\0', " "), flags).map_err(OsError::of("memfd_create"))?;
        let too_long = OsError { call: "ftruncate", errno: Errno(libc::EINVAL) };
        let bytes = Region::bytes(longs, words).ok_or(too_long)?;
        ftruncate(&file, bytes as u64).map_err(OsError::of("ftruncate"))?;
        let region = Region::map(&file, longs, words, ProtFlags::READ | ProtFlags::WRITE)?;
        let this = Self { region, file };
        this.seal(SealFlags::SHRINK | SealFlags::GROW)?;
        Ok(this)
    }

    /// Maps the words of a memory file from elsewhere.
    ///
    /// # Errors
    /// [`OsError`] with `EINVAL` if the file is too short or can still be shortened.
    pub fn open(file: OwnedFd, longs: usize, words: usize) -> Result<Self, OsError> {
        must_keep_its_size(&file)?;
        let region = Region::map(&file, longs, words, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok(Self { region, file })
    }

    /// From now on nobody else can map the file writable, and no seal can be added; this mapping stays writable.
    ///
    /// # Errors
    /// [`OsError`] where the kernel is older than Linux 5.1.
    pub fn forbid_other_writers(&self) -> Result<(), OsError> {
        self.seal(SealFlags::FUTURE_WRITE | SealFlags::SEAL)
    }

    fn seal(&self, seals: SealFlags) -> Result<(), OsError> {
        fcntl_add_seals(&self.file, seals).map_err(OsError::of("fcntl(F_ADD_SEALS)"))
    }

    /// A 64-bit word.
    ///
    /// # Panics
    /// If there is none at `at`.
    #[must_use]
    pub fn long(&self, at: usize) -> &AtomicU64 {
        // SAFETY: the word lies in the mapping (checked), is aligned, is accessed only atomically and in this size, and
        // the reference borrows from the mapping.
        unsafe { AtomicU64::from_ptr(self.region.long(at)) }
    }

    /// A 32-bit word.
    ///
    /// # Panics
    /// If there is none at `at`.
    #[must_use]
    pub fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: the word lies in the mapping (checked), is aligned, is accessed only atomically and in this size,
        // and the reference borrows from the mapping.
        unsafe { AtomicU32::from_ptr(self.region.word(at)) }
    }
}

impl AsFd for Words {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Words that this process can only read.
pub struct WordsView {
    region: Region,
}

impl WordsView {
    /// Maps the words of a memory file from elsewhere.
    ///
    /// # Errors
    /// [`OsError`] with `EINVAL` if the file is too short or can still be shortened.
    pub fn open(file: &OwnedFd, longs: usize, words: usize) -> Result<Self, OsError> {
        must_keep_its_size(file)?;
        Ok(Self { region: Region::map(file, longs, words, ProtFlags::READ)? })
    }

    /// The value of a 64-bit word, and everything that its writer did before.
    ///
    /// # Panics
    /// If there is none at `at`.
    #[must_use]
    pub fn long(&self, at: usize) -> u64 {
        // SAFETY: the word lies in the mapping (checked), is aligned and accessed only atomically; a load of this size does
        // not write, so that a mapping that is only read has it.
        unsafe { AtomicU64::from_ptr(self.region.long(at)) }.load(Ordering::Acquire)
    }

    /// The value of a 32-bit word, and everything that its writer did before.
    ///
    /// # Panics
    /// If there is none at `at`.
    #[must_use]
    pub fn word(&self, at: usize) -> u32 {
        self.shared(at).load(Ordering::Acquire)
    }

    /// Sleeps while the word at `at` has the value `expected`, for at most `bound`.
    ///
    /// # Panics
    /// If there is none at `at`.
    #[must_use]
    pub fn wait(&self, at: usize, expected: u32, bound: Option<Duration>) -> Woken {
        futex::wait(self.shared(at), expected, bound)
    }

    fn shared(&self, at: usize) -> &AtomicU32 {
        // SAFETY: as in `long`; to wait for the word does not write either.
        unsafe { AtomicU32::from_ptr(self.region.word(at)) }
    }
}

/// Refuses a file that somebody could shorten under a mapping of it.
fn must_keep_its_size(file: &OwnedFd) -> Result<(), OsError> {
    if fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
        return Ok(());
    }
    Err(OsError { call: "fcntl(F_GET_SEALS)", errno: Errno(libc::EINVAL) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_words_are_shared_and_do_not_overlap() {
        let ours = Words::create("headway test", 3, 5).unwrap();
        let theirs = Words::open(ours.as_fd().try_clone_to_owned().unwrap(), 3, 5).unwrap();
        (0..3).for_each(|at| ours.long(at).store(u64::MAX - at as u64, Ordering::Release));
        (0..5).for_each(|at| ours.word(at).store(7 + at as u32, Ordering::Release));
        assert!((0..3).all(|at| theirs.long(at).load(Ordering::Acquire) == u64::MAX - at as u64));
        assert!((0..5).all(|at| theirs.word(at).load(Ordering::Acquire) == 7 + at as u32));
    }

    #[test]
    fn a_sealed_file_can_be_read_and_slept_on_but_not_written_by_others() {
        let ours = Words::create("headway test", 1, 1).unwrap();
        ours.forbid_other_writers().unwrap();
        let file = ours.as_fd().try_clone_to_owned().unwrap();
        let view = WordsView::open(&file, 1, 1).unwrap();
        assert_eq!(Words::open(file, 1, 1).map(drop).unwrap_err().errno.0, libc::EPERM);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while view.word(0) == 0 {
                    assert_ne!(view.wait(0, 0, Some(Duration::from_secs(60))), Woken::TimedOut);
                }
                assert_eq!(view.long(0), 5);
            });
            ours.long(0).store(5, Ordering::Relaxed);
            ours.word(0).store(1, Ordering::Release);
            super::super::wake(ours.word(0), 1);
        });
    }

    #[test]
    fn a_file_that_is_too_short_or_can_be_shortened_is_refused() {
        let ours = Words::create("headway test", 1, 1).unwrap();
        let file = || ours.as_fd().try_clone_to_owned().unwrap();
        assert_eq!(Words::open(file(), 1, 2000).map(drop).unwrap_err().errno.0, libc::EINVAL);
        assert_eq!(Words::open(file(), usize::MAX, 2).map(drop).unwrap_err().errno.0, libc::EINVAL);
        let loose = crate::memory::MemoryFile::new("headway test", 4096).unwrap();
        let loose = loose.as_fd().try_clone_to_owned().unwrap();
        assert_eq!(WordsView::open(&loose, 1, 1).map(drop).unwrap_err().errno.0, libc::EINVAL);
    }
}
