//! Reads ranges of a file, each by the method that takes least: what the kernel's page cache has by its copy, the rest from the disk past
//! that cache (`O_DIRECT`).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use crate::memory::page_bytes;

/// Reads past the page cache start and end at multiples of this, in the file and in memory; disks ask for 512 or 4096.
const DIRECT_ALIGN: usize = 4096;
/// `cachestat`, from Linux 6.5 on.
const SYS_CACHESTAT: libc::c_long = 451;
/// A range is cached if at most one page in so many is absent; the kernel reads these from the disk.
const ABSENT_SHARE: u64 = 16;
/// The kernel copies so much at once: what it has just written is in a cache of the CPU then, and goes from there.
const COPIED_AT_ONCE: usize = 256 << 10;

/// How a range was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadMethod {
    /// By the kernel's copy from the page cache.
    Cached,
    /// From the disk, past the page cache.
    Direct,
}

/// A file that is read, and what it was when that began.
pub struct FileReader {
    file: File,
    /// Bytes, and when it was last written: seconds and nanoseconds.
    before: (u64, i64, i64),
    /// The same file for reads past the page cache, where its file system has them.
    direct: Option<File>,
}

impl FileReader {
    /// A reader of `file`, which is open for reading.
    ///
    /// # Errors
    /// What the system says of the file.
    pub fn new(file: File) -> io::Result<Self> {
        let before = state(&file)?;
        let again = || {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            OpenOptions::new().read(true).custom_flags(libc::O_DIRECT | libc::O_CLOEXEC).open(path).ok()
        };
        let direct = if is_in_memory(&file) { None } else { again() };
        Ok(Self { file, before, direct })
    }

    /// Bytes that it had at the beginning.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.before.0
    }

    /// Reads `bytes` bytes from `at` on to the beginning of `room`: past the page cache if `cold`, `at` and the address of `room` are
    /// multiples of 4096, and `room` goes on until such a multiple, as far as the file system has that.
    ///
    /// # Errors
    /// What the system says; `UnexpectedEof` if the file has become shorter.
    ///
    /// # Panics
    /// If `room` is shorter than `bytes`.
    pub fn read(&self, at: u64, bytes: usize, room: &mut [u8], cold: bool) -> io::Result<ReadMethod> {
        assert!(bytes <= room.len(), "there is room for what is read");
        let is_aligned = at.is_multiple_of(DIRECT_ALIGN as u64) && room.as_ptr().addr().is_multiple_of(DIRECT_ALIGN);
        let whole = bytes.next_multiple_of(DIRECT_ALIGN).min(room.len()) / DIRECT_ALIGN * DIRECT_ALIGN;
        if let Some(direct) = self.direct.as_ref().filter(|_| cold && is_aligned && whole >= bytes)
            && fill(direct, at, bytes, &mut room[..whole]).is_ok()
        {
            return Ok(ReadMethod::Direct);
        }
        for (number, part) in room[..bytes].chunks_mut(COPIED_AT_ONCE).enumerate() {
            fill(&self.file, at + (number * COPIED_AT_ONCE) as u64, part.len(), part)?;
        }
        Ok(ReadMethod::Cached)
    }

    /// Fails if the file was written since this was made: what was read is then neither what it was nor what it is.
    ///
    /// # Errors
    /// `InvalidData`, or what the system says of the file.
    pub fn check_unchanged(&self) -> io::Result<()> {
        if state(&self.file)? == self.before {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "it was written while it was read"))
    }

    /// Whether a range is better read past the page cache, since much of it is not there.
    #[must_use]
    pub fn is_cold(&self, at: u64, bytes: usize) -> bool {
        self.direct.is_some() && !self.is_cached(at, bytes)
    }

    /// Whether nearly all of a range is in the page cache; `true` where the kernel does not say.
    fn is_cached(&self, at: u64, bytes: usize) -> bool {
        let range = [at, bytes as u64];
        let mut found = [0u64; 5];
        // SAFETY: the kernel reads two words and writes five.
        let code = unsafe {
            libc::syscall(SYS_CACHESTAT, self.file.as_raw_fd(), range.as_ptr(), found.as_mut_ptr(), 0 as libc::c_uint)
        };
        let pages = (bytes as u64).div_ceil(page_bytes() as u64);
        code != 0 || found[0] + pages / ABSENT_SHARE >= pages
    }
}

fn state(file: &File) -> io::Result<(u64, i64, i64)> {
    let facts = file.metadata()?;
    Ok((facts.len(), facts.mtime(), facts.mtime_nsec()))
}

/// Whether the file is on a file system that is only memory.
fn is_in_memory(file: &File) -> bool {
    let found = rustix::fs::fstatfs(file);
    found.is_ok_and(|found| [libc::TMPFS_MAGIC, RAMFS_MAGIC].contains(&found.f_type))
}

/// Of `linux/magic.h`.
const RAMFS_MAGIC: libc::c_long = 0x8584_58f6;

/// Reads `bytes` bytes into `room`, which may have a few more than the file.
fn fill(file: &File, at: u64, bytes: usize, room: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < bytes {
        match file.read_at(&mut room[done..], at + done as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::memory::Mapping;

    fn written(bytes: usize) -> (File, Vec<u8>) {
        let mut file = tempfile::tempfile().unwrap();
        let data: Vec<u8> = (0..bytes).map(|at| (at * 31 + at / 257) as u8).collect();
        file.write_all(&data).unwrap();
        (file, data)
    }

    #[test]
    fn every_range_is_read_by_whichever_method() {
        let (file, data) = written(3 * DIRECT_ALIGN + 100);
        file.sync_all().unwrap();
        let reader = FileReader::new(file).unwrap();
        // So that reads past the cache happen, where the file system has them.
        // SAFETY: the call is given a descriptor and numbers.
        unsafe { libc::posix_fadvise(reader.file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        let mut room = Mapping::anonymous(4 * DIRECT_ALIGN).unwrap();
        for range in [0..data.len(), DIRECT_ALIGN..data.len(), 1..5000, 0..0, 8192..8193] {
            for cold in [true, false, reader.is_cold(range.start as u64, range.len())] {
                for skipped in [0, 8] {
                    let room = &mut room[skipped..];
                    room.fill(0);
                    reader.read(range.start as u64, range.len(), room, cold).unwrap();
                    assert_eq!(room[..range.len()], data[range.clone()]);
                }
            }
        }
        reader.check_unchanged().unwrap();
    }

    #[test]
    fn a_file_that_became_shorter_or_was_written_is_an_error_value() {
        let (file, data) = written(5 * DIRECT_ALIGN);
        let again = file.try_clone().unwrap();
        let reader = FileReader::new(file).unwrap();
        again.set_len(DIRECT_ALIGN as u64).unwrap();
        let mut room = Mapping::anonymous(5 * DIRECT_ALIGN).unwrap();
        let error = reader.read(0, data.len(), &mut room, false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(reader.check_unchanged().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn what_is_no_file_of_bytes_is_read_or_refused_without_a_panic() {
        let reader = FileReader::new(File::open("/dev/null").unwrap()).unwrap();
        assert_eq!(reader.bytes(), 0);
        assert_eq!(reader.read(0, 4, &mut [0; 4], true).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
