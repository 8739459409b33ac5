//! Mappings: ordinary memory with its pages in hand, and windows on files.

use std::ffi::c_void;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};

use rustix::fs::{MemfdFlags, Mode, fchmod, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::errno::{Errno, OsError};
use crate::threads;

/// A huge page: 2 MiB. Parallel touching is cut into such ranges, so that no two threads share one.
const HUGE_BYTES: usize = 2 << 20;
/// Threads that touch at most.
const TOUCH_THREADS_MAX: usize = 64;
/// `MPOL_PREFERRED` of `linux/mempolicy.h`.
const PREFERRED: libc::c_long = 1;
/// NUMA nodes a mask has room for, as many as Linux can be built for.
const NODES_MAX: usize = 1024;

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Size of a page.
#[must_use]
pub fn page_bytes() -> usize {
    // SAFETY: the call touches no memory.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// A mapped range of addresses, unmapped when dropped.
pub(super) struct Region {
    pub(super) base: NonNull<u8>,
    pub(super) bytes: usize,
}

impl Region {
    pub(super) fn of(mapped: rustix::io::Result<*mut c_void>, bytes: usize) -> Result<Self, OsError> {
        let base = mapped.map_err(OsError::of("mmap"))?;
        let refused = OsError { call: "mmap", errno: Errno(libc::ENOMEM) };
        Ok(Self { base: NonNull::new(base.cast()).ok_or(refused)?, bytes })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map`, and whoever borrowed from it is gone. It cannot fail for such a range.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes.max(1)) };
    }
}

// SAFETY: addresses mean the same on every thread, and the range has one owner.
unsafe impl Send for Region {}
// SAFETY: shared access gives only addresses and reads.
unsafe impl Sync for Region {}

/// Zeroed memory of this process alone, page-aligned. Its pages appear as they are touched.
pub struct Mapping(Region);

impl Mapping {
    /// Maps `bytes` bytes.
    ///
    /// # Errors
    /// [`OsError`] with `ENOMEM`.
    pub fn anonymous(bytes: usize) -> Result<Self, OsError> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: no fixed place is asked for.
        Region::of(unsafe { mmap_anonymous(null_mut(), bytes.max(1), READ_WRITE, flags) }, bytes).map(Self)
    }

    /// Asks for huge pages; to be called before the pages are touched.
    ///
    /// # Errors
    /// [`OsError`] with `EINVAL` where the kernel has none; the memory stays usable.
    pub fn advise_huge(&self) -> Result<(), OsError> {
        // SAFETY: the range is this mapping; the advice changes how it is backed, not what it holds.
        let status = unsafe { madvise(self.0.base.as_ptr().cast(), self.0.bytes.max(1), Advice::LinuxHugepage) };
        status.map_err(OsError::of("madvise(MADV_HUGEPAGE)"))
    }

    /// Has pages that appear later come from NUMA node `node`, or from others when that is full.
    ///
    /// # Errors
    /// [`OsError`]: `EPERM` or `ENOSYS` where a sandbox or the kernel forbids it, `EINVAL` for a node that is not there; the
    /// memory stays usable.
    pub fn prefer_node(&self, node: u32) -> Result<(), OsError> {
        let refused = OsError { call: "mbind", errno: Errno(libc::EINVAL) };
        let (word, bit) = (node as usize / 64, node % 64);
        let mut mask = [0u64; NODES_MAX / 64];
        *mask.get_mut(word).ok_or(refused)? = 1 << bit;
        // SAFETY: the range is this mapping; the kernel reads as many bits of `mask` as stated, less one.
        let status = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.0.base.as_ptr(),
                self.0.bytes.max(1),
                PREFERRED,
                mask.as_ptr(),
                NODES_MAX + 1,
                0u32,
            )
        };
        if status == 0 { Ok(()) } else { Err(OsError::last("mbind")) }
    }
}

impl Deref for Mapping {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the range is mapped, zeroed at first, and owned by this value alone.
        unsafe { std::slice::from_raw_parts(self.0.base.as_ptr(), self.0.bytes) }
    }
}

impl DerefMut for Mapping {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the range is mapped, zeroed at first, and owned by this value alone, and `&mut self` excludes every
        // other use.
        unsafe { std::slice::from_raw_parts_mut(self.0.base.as_ptr(), self.0.bytes) }
    }
}

/// A new file that is only memory. Only our user may change its attributes: the kernel makes it with mode 0777, and then
/// any user who gets its descriptor can attach extended attributes, which take memory of the kernel for as long as the file is open.
pub(crate) fn private_memory_file(name: &str, flags: MemfdFlags) -> Result<OwnedFd, OsError> {
    let file = memfd_create(name.replace('\0', " "), flags).map_err(OsError::of("memfd_create"))?;
    fchmod(&file, Mode::RUSR | Mode::WUSR).map_err(OsError::of("fchmod"))?;
    Ok(file)
}

/// A file that is only memory (`memfd`), to be mapped at several places.
pub struct MemoryFile {
    fd: OwnedFd,
    bytes: usize,
}

impl MemoryFile {
    /// A zeroed file of `bytes` bytes.
    ///
    /// # Errors
    /// [`OsError`].
    pub fn new(name: &str, bytes: usize) -> Result<Self, OsError> {
        let fd = private_memory_file(name, MemfdFlags::CLOEXEC)?;
        ftruncate(&fd, bytes.max(1) as u64).map_err(OsError::of("ftruncate"))?;
        Ok(Self { fd, bytes })
    }

    /// Bytes that are mapped.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

impl AsFd for MemoryFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A shared mapping of part of a file: a memory file or a dma-buf. Others may map the same bytes, so that it gives only
/// addresses.
pub struct View(Region);

impl View {
    /// Maps `bytes` bytes of `file` from `offset` on, a multiple of the page size.
    ///
    /// # Errors
    /// [`OsError`] with the errno of `mmap`.
    pub fn map(file: BorrowedFd<'_>, offset: u64, bytes: usize) -> Result<Self, OsError> {
        // SAFETY: no fixed place is asked for.
        let mapped = unsafe { mmap(null_mut(), bytes.max(1), READ_WRITE, MapFlags::SHARED, file, offset) };
        Region::of(mapped, bytes).map(Self)
    }

    /// Moves the mapping to another offset, at the same address.
    ///
    /// # Errors
    /// Those of [`View::map`]; the mapping may then be of neither offset, and must not be used.
    ///
    /// # Safety
    /// Nobody uses the mapping meanwhile.
    pub unsafe fn move_to(&mut self, file: BorrowedFd<'_>, offset: u64) -> Result<(), OsError> {
        let (place, flags) = (self.0.base.as_ptr().cast(), MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: the place is this mapping, which nobody uses.
        let moved = unsafe { mmap(place, self.0.bytes.max(1), READ_WRITE, flags, file, offset) };
        moved.map(drop).map_err(OsError::of("mmap"))
    }

    /// The first byte.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.base.as_ptr()
    }

    /// Bytes that are mapped.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.bytes
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.bytes == 0
    }
}

/// Has the pages of `memory` appear, writable, on `threads` threads (1 to 64); its content stays.
///
/// One call of the kernel for each thread where it has `MADV_POPULATE_WRITE` (Linux 5.14), else one access a page.
pub fn touch(memory: &mut [u8], threads: usize) {
    let threads = threads.clamp(1, TOUCH_THREADS_MAX);
    let share = memory.len().div_ceil(threads).max(1).next_multiple_of(HUGE_BYTES);
    let first = (memory.as_ptr().addr().wrapping_neg() % HUGE_BYTES).min(memory.len());
    let (head, body) = memory.split_at_mut(first);
    std::thread::scope(|scope| {
        let mut shares = body.chunks_mut(share);
        // The caller is one of the threads, and takes the head along.
        let own = shares.next();
        for share in shares {
            let thread = std::thread::Builder::new().name("headway-touch".into());
            // Where there is no thread to be had, the pages appear when they are used.
            drop(threads::without_signals(|| thread.spawn_scoped(scope, move || populate_write(share))));
        }
        populate_write(head);
        own.map(populate_write);
    });
}

fn populate_write(memory: &mut [u8]) {
    if populate(memory, Advice::LinuxPopulateWrite).is_err() {
        for at in (0..memory.len()).step_by(page_bytes()).chain(memory.len().checked_sub(1)) {
            let byte: *mut u8 = &raw mut memory[at];
            // SAFETY: the byte is ours; volatile, so that it is written although it stays the same.
            unsafe { byte.write_volatile(byte.read_volatile()) };
        }
    }
}

/// Has the pages of `memory`, say of a mapped file, appear, to be read.
pub fn touch_read(memory: &[u8]) {
    if populate(memory, Advice::LinuxPopulateRead).is_err() {
        for at in (0..memory.len()).step_by(page_bytes()).chain(memory.len().checked_sub(1)) {
            std::hint::black_box(memory[at]);
        }
    }
}

/// Has the pages of `memory`, say of a mapped file, appear, to be read, where the kernel can be asked to (Linux 5.14).
///
/// # Errors
/// [`OsError`] for pages that cannot be read, say behind the end of a file that has become shorter: touching them would end
/// the process.
pub fn populate_read(memory: &[u8]) -> Result<(), OsError> {
    match populate(memory, Advice::LinuxPopulateRead) {
        // A kernel that does not know the advice.
        Err(error) if error.errno.0 == libc::EINVAL => Ok(()),
        result => result,
    }
}

/// Lets the kernel back `memory` by huge pages where it leaves that to the program: pages that appear later are huge. Only whole
/// huge pages inside `memory` are concerned. A kernel without them changes nothing.
pub fn advise_huge(memory: &mut [u8]) {
    let lead = memory.as_ptr().addr().wrapping_neg() % HUGE_BYTES;
    let bytes = memory.len().saturating_sub(lead) / HUGE_BYTES * HUGE_BYTES;
    if bytes > 0 {
        // SAFETY: the range lies within `memory`; the advice changes how it is backed, not what it holds.
        let _ = unsafe { madvise(memory.as_mut_ptr().wrapping_add(lead).cast(), bytes, Advice::LinuxHugepage) };
    }
}

/// `advice` on the pages that hold `memory`.
fn populate(memory: &[u8], advice: Advice) -> Result<(), OsError> {
    if memory.is_empty() {
        return Ok(());
    }
    let lead = memory.as_ptr().addr() % page_bytes();
    let base = memory.as_ptr().wrapping_sub(lead).cast_mut();
    // SAFETY: the call has the pages appear and changes no content; pages at the ends hold bytes of `memory`, so that they
    // are mapped as it is.
    unsafe { madvise(base.cast(), lead + memory.len(), advice) }.map_err(OsError::of("madvise(MADV_POPULATE)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_on_huge_pages_keeps_to_what_lies_within() {
        let mut mapping = Mapping::anonymous(6 << 20).unwrap();
        for range in [0..0, 1..4096, 1..(6 << 20) - 1, 0..6 << 20] {
            advise_huge(&mut mapping[range]);
        }
        assert!(mapping.iter().all(|byte| *byte == 0));
    }

    /// How many pages of `memory` are there (`mincore`).
    fn resident(memory: &[u8]) -> usize {
        let page = page_bytes();
        assert!(memory.as_ptr().addr().is_multiple_of(page));
        let mut pages = vec![0u8; memory.len().div_ceil(page)];
        // SAFETY: one byte a page is written, which `pages` has.
        let status =
            unsafe { libc::mincore(memory.as_ptr().cast_mut().cast(), memory.len(), pages.as_mut_ptr().cast()) };
        assert_eq!(status, 0);
        pages.iter().filter(|page| **page & 1 == 1).count()
    }

    #[test]
    fn a_mapping_is_zeroed_aligned_and_gets_its_pages_when_touched() {
        let mut mapping = Mapping::anonymous(5 << 20).unwrap();
        assert!(mapping.as_ptr().addr().is_multiple_of(page_bytes()));
        assert_eq!(resident(&mapping), 0);
        touch(&mut mapping[..3 << 20], 1);
        assert!(resident(&mapping) * page_bytes() >= 3 << 20);
        touch(&mut mapping, 3);
        assert_eq!(resident(&mapping), (5 << 20) / page_bytes());
        assert!(mapping.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn touching_keeps_the_content() {
        for (bytes, at) in [(0, 0), (1, 0), (1, 4095), (5000, 4095), (9 << 20, 13)] {
            let mut memory: Vec<u8> = (0..bytes + at).map(|at| at as u8).collect();
            touch(&mut memory[at..], 4);
            touch_read(&memory[at..]);
            assert!(memory.iter().enumerate().all(|(at, byte)| *byte == at as u8));
        }
    }

    #[test]
    fn an_empty_mapping_is_an_empty_slice() {
        let mut mapping = Mapping::anonymous(0).unwrap();
        assert!(mapping.is_empty());
        touch(&mut mapping, 2);
    }

    #[test]
    fn more_than_there_is_gives_an_error_value() {
        assert_eq!(Mapping::anonymous(usize::MAX / 2).map(drop).unwrap_err().errno, Errno(libc::ENOMEM));
    }

    #[test]
    fn advice_is_followed_or_refused_with_an_errno() {
        let mut mapping = Mapping::anonymous(4 << 20).unwrap();
        for result in [mapping.advise_huge(), mapping.prefer_node(0)] {
            if let Err(error) = result {
                assert_ne!(error.errno.0, 0, "{error}");
            }
        }
        assert_eq!(mapping.prefer_node(u32::MAX).unwrap_err().errno, Errno(libc::EINVAL));
        mapping.fill(7);
        assert!(mapping.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn views_of_one_file_show_the_same_bytes_and_can_be_moved() {
        let page = page_bytes();
        let file = MemoryFile::new("headway test", 4 * page).unwrap();
        let all = View::map(file.as_fd(), 0, file.len()).unwrap();
        let mut small = View::map(file.as_fd(), page as u64, page).unwrap();
        let place = small.as_ptr();
        // SAFETY: both mappings have these bytes, and only this thread uses them.
        unsafe {
            small.as_ptr().write_volatile(3);
            assert_eq!(all.as_ptr().add(page).read_volatile(), 3);
            all.as_ptr().add(3 * page + 5).write_volatile(9);
            small.move_to(file.as_fd(), 3 * page as u64).unwrap();
            assert_eq!((small.as_ptr(), small.as_ptr().add(5).read_volatile()), (place, 9));
        }
    }

    #[test]
    fn an_offset_within_a_page_cannot_be_mapped() {
        let file = MemoryFile::new("headway test", 8192).unwrap();
        assert_eq!(View::map(file.as_fd(), 1, 64).map(drop).unwrap_err().errno, Errno(libc::EINVAL));
        assert_eq!(View::map(file.as_fd(), u64::MAX, 64).map(drop).unwrap_err().errno, Errno(libc::EINVAL));
    }

    #[test]
    fn reading_ahead_behind_the_end_of_a_file_is_an_error_value() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(3 * page_bytes() as u64).unwrap();
        let view = View::map(AsFd::as_fd(&file), 0, 3 * page_bytes()).unwrap();
        // SAFETY: the view is mapped for reading and nobody writes the file; what lies behind its end is not touched.
        let memory = unsafe { std::slice::from_raw_parts(view.as_ptr(), view.len()) };
        assert_eq!(populate_read(memory), Ok(()));
        assert_eq!(populate_read(&memory[..0]), Ok(()));
        file.set_len(page_bytes() as u64).unwrap();
        assert_eq!(populate_read(&memory[..page_bytes()]), Ok(()));
        assert_eq!(populate_read(memory).unwrap_err().errno.0, libc::EFAULT);
    }
}
