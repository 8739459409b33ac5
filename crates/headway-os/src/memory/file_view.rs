//! Read-only mappings of files that others may make shorter meanwhile.
//!
//! A page that a file does not have any more, or that its disk does not give, is a fault of the thread that reads it (`SIGBUS`), and by
//! default the end of the process. While there is a [`FileView`], a handler puts a page of zeros in the place of such a page of a view, and
//! notes it; every other fault goes to the handler that was there before. No lock and no memory is taken in the handler.

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use headway_core::models::transfer::Stores;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};

use super::mapping::Region;
use super::{page_bytes, populate_read};
use crate::copy::copy;
use crate::errno::{Errno, OsError};

/// Views that there may be at a time.
const VIEWS_MAX: usize = 256;

/// What the handler knows of a view.
struct Entry {
    taken: AtomicBool,
    /// Zero while there is no view.
    start: AtomicUsize,
    end: AtomicUsize,
    /// Whether a page of it was not there.
    lost: AtomicBool,
}

static ENTRIES: [Entry; VIEWS_MAX] = [const {
    Entry {
        taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        lost: AtomicBool::new(false),
    }
}; VIEWS_MAX];
/// Views that there are.
static VIEWS: Mutex<usize> = Mutex::new(0);
/// What was to be done about such faults before. Each value stays for ever, since a handler may be reading it.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(null_mut());
/// Whether a fault of somebody else's memory went to `BEFORE`. If another one comes, `BEFORE` has given it back.
static PASSED_ON: AtomicBool = AtomicBool::new(false);
/// Size of a page, for the handler.
static PAGE: AtomicUsize = AtomicUsize::new(4096);

/// A page of a view could not be read: the file has become shorter, or its disk has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostPage;

/// A shared mapping of a file from its start, to be read. Whoever writes the file meanwhile may be seen or not.
pub struct FileView {
    region: Region,
    entry: &'static Entry,
}

impl FileView {
    /// Maps the first `bytes` bytes of `file`.
    ///
    /// # Errors
    /// [`OsError`] with the errno of `mmap`, as of a file that cannot be mapped; `EMFILE` beyond 256 views.
    pub fn map(file: BorrowedFd<'_>, bytes: usize) -> Result<Self, OsError> {
        let free = |entry: &&Entry| !entry.taken.swap(true, Ordering::AcqRel);
        let entry = ENTRIES.iter().find(free).ok_or(OsError { call: "mmap", errno: Errno(libc::EMFILE) })?;
        // SAFETY: no fixed place is asked for.
        let mapped = unsafe { mmap(null_mut(), bytes.max(1), ProtFlags::READ, MapFlags::SHARED, file, 0) };
        let region = Region::of(mapped, bytes).inspect_err(|_| entry.taken.store(false, Ordering::Release))?;
        watch();
        let start = region.base.as_ptr().addr();
        entry.lost.store(false, Ordering::Relaxed);
        entry.end.store(start + bytes.max(1).next_multiple_of(page_bytes()), Ordering::Relaxed);
        entry.start.store(start, Ordering::Release);
        Ok(Self { region, entry })
    }

    /// Bytes that are mapped.
    #[must_use]
    pub fn len(&self) -> usize {
        self.region.bytes
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.region.bytes == 0
    }

    /// Copies the bytes from `at` on to `to`, and lets go of the pages: to take gigabytes of pages out of a process at once takes a
    /// thread some 18 ms for each GiB. Of a thread that blocks `SIGBUS`, a lost page ends the process.
    ///
    /// # Errors
    /// [`LostPage`], also if an earlier copy lost one. Nothing is known of `to` then.
    ///
    /// # Panics
    /// For a range that is not all within the view.
    pub fn copy(&self, at: usize, to: &mut [u8], stores: Stores) -> Result<(), LostPage> {
        assert!(at.checked_add(to.len()).is_some_and(|end| end <= self.len()), "the range is within the view");
        if to.is_empty() {
            return Ok(());
        }
        let page = page_bytes();
        let from = self.region.base.as_ptr().wrapping_add(at).cast_const();
        // SAFETY: the range lies within the mapping, which lives as long as `self`, and the handler gives it pages where the file has none.
        // Whoever writes the file meanwhile changes bytes of which nothing is promised; they are read once each.
        let bytes = unsafe { std::slice::from_raw_parts(from, to.len()) };
        // Most pages that cannot be read are found here, without a fault.
        populate_read(bytes).map_err(|_| LostPage)?;
        copy(to, bytes, stores);
        // Only whole pages: a neighbour may be copied by another thread.
        let (first, last) = (at.next_multiple_of(page), (at + to.len()) / page * page);
        if first < last {
            let start = self.region.base.as_ptr().wrapping_add(first).cast::<c_void>();
            // SAFETY: the range lies within the mapping; what is let go is read from the file again if somebody asks for it.
            let _ = unsafe { madvise(start, last - first, Advice::LinuxDontNeed) };
        }
        if self.entry.lost.load(Ordering::SeqCst) { Err(LostPage) } else { Ok(()) }
    }
}

impl FileView {
    /// How many pages of a range are in memory (`mincore`); `None` where the kernel does not say.
    #[must_use]
    pub fn present(&self, at: usize, bytes: usize) -> Option<u64> {
        let page = page_bytes();
        let first = at / page * page;
        let end = at.checked_add(bytes).filter(|end| *end <= self.len())?;
        let mut pages = vec![0u8; (end - first).div_ceil(page)];
        let start = self.region.base.as_ptr().wrapping_add(first).cast::<c_void>();
        // SAFETY: the range lies within the mapping; one byte a page is written, which `pages` has.
        let code = unsafe { libc::mincore(start, end - first, pages.as_mut_ptr()) };
        (code == 0).then(|| pages.iter().filter(|page| **page & 1 == 1).count() as u64)
    }
}

impl Drop for FileView {
    fn drop(&mut self) {
        self.entry.start.store(0, Ordering::SeqCst);
        self.entry.taken.store(false, Ordering::Release);
        unwatch();
    }
}

fn action_now() -> libc::sigaction {
    // SAFETY: the structure is one of integers and addresses, for which zeros are a value; the call only writes it.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut now);
        now
    }
}

fn our_handler() -> usize {
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = handle;
    handler as *const () as usize
}

/// Puts the handler in place, unless it is.
fn watch() {
    let mut views = VIEWS.lock().unwrap_or_else(PoisonError::into_inner);
    *views += 1;
    let now = action_now();
    if now.sa_sigaction == our_handler() {
        return;
    }
    PAGE.store(page_bytes(), Ordering::Relaxed);
    let before = BEFORE.load(Ordering::Acquire);
    // SAFETY: what was stored there stays for ever.
    let is_known = unsafe { before.as_ref() }
        .is_some_and(|known| known.sa_sigaction == now.sa_sigaction && known.sa_flags == now.sa_flags);
    if !is_known {
        BEFORE.store(Box::into_raw(Box::new(now)), Ordering::Release);
    }
    PASSED_ON.store(false, Ordering::Release);
    // SAFETY: a structure of integers and addresses; the handler calls nothing that may not be called in one.
    unsafe {
        let mut ours: libc::sigaction = std::mem::zeroed();
        ours.sa_sigaction = our_handler();
        // On the thread's stack for signals, if it has one.
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        libc::sigemptyset(&raw mut ours.sa_mask);
        libc::sigaction(libc::SIGBUS, &raw const ours, null_mut());
    }
}

/// Takes the handler away with the last view, unless another one has been put in its place.
fn unwatch() {
    let mut views = VIEWS.lock().unwrap_or_else(PoisonError::into_inner);
    *views -= 1;
    if *views == 0 && action_now().sa_sigaction == our_handler() {
        // SAFETY: what `BEFORE` points to was the action before, and stays for ever.
        unsafe { libc::sigaction(libc::SIGBUS, BEFORE.load(Ordering::Acquire), null_mut()) };
    }
}

extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel gives a handler with `SA_SIGINFO` a valid one; every kind of it has an address, if only a meaningless one.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    // Above zero it is a fault, else somebody has sent it.
    if code > 0 {
        for entry in &ENTRIES {
            let start = entry.start.load(Ordering::Acquire);
            if start != 0 && (start..entry.end.load(Ordering::Relaxed)).contains(&address) {
                entry.lost.store(true, Ordering::SeqCst);
                let page = PAGE.load(Ordering::Relaxed);
                let place = std::ptr::without_provenance_mut(address / page * page);
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                // SAFETY: the page is one of the view, which has nothing there; a thread is reading it, so that the view lives.
                if unsafe { libc::mmap(place, page, libc::PROT_READ, flags, -1, 0) } != libc::MAP_FAILED {
                    return;
                }
            }
        }
    }
    // SAFETY: `BEFORE` was stored before this handler was put in place, and stays for ever; the calls may be made in a handler.
    unsafe {
        let before = BEFORE.load(Ordering::Acquire);
        if before.is_null() || PASSED_ON.swap(true, Ordering::AcqRel) {
            libc::signal(signal, libc::SIG_DFL);
        } else {
            libc::sigaction(signal, before, null_mut());
        }
        // A fault happens again when this returns.
        if code <= 0 {
            libc::raise(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;
    use crate::memory::Mapping;

    fn file(bytes: usize) -> (std::fs::File, Vec<u8>) {
        let mut file = tempfile::tempfile().unwrap();
        let data: Vec<u8> = (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect();
        file.write_all(&data).unwrap();
        (file, data)
    }

    #[test]
    fn bytes_are_copied_from_any_place_and_again() {
        let (file, data) = file(5 * page_bytes() + 17);
        let view = FileView::map(file.as_fd(), data.len()).unwrap();
        for range in [0..0, 0..data.len(), 1..page_bytes(), page_bytes() - 1..3 * page_bytes() + 5, 0..data.len()] {
            let mut to = vec![0; range.len()];
            for stores in [Stores::Plain, Stores::NonTemporal, Stores::Demoted] {
                to.fill(0);
                view.copy(range.start, &mut to, stores).unwrap();
                assert_eq!(to, data[range.clone()]);
            }
        }
    }

    #[test]
    fn pages_in_memory_are_counted() {
        let (file, data) = file(3 * page_bytes() + 1);
        let view = FileView::map(file.as_fd(), data.len()).unwrap();
        // A sandbox may not say it.
        assert!(view.present(0, data.len()).is_none_or(|pages| pages == 4));
        assert!(view.present(page_bytes(), page_bytes()).is_none_or(|pages| pages == 1));
        assert_eq!(view.present(1, data.len()), None);
    }

    #[test]
    fn a_page_that_goes_while_it_is_read_is_an_error_value() {
        let (file, data) = file(4 * page_bytes());
        let view = FileView::map(file.as_fd(), data.len()).unwrap();
        file.set_len(page_bytes() as u64).unwrap();
        // The page is read without being asked for first, as if the file had become shorter behind that.
        // SAFETY: the page is the view's.
        let byte = unsafe { view.region.base.as_ptr().add(2 * page_bytes()).read_volatile() };
        assert_eq!(byte, 0);
        assert_eq!(view.copy(0, &mut [0; 8], Stores::Plain), Err(LostPage));
        // Another view of the file has nothing to do with it.
        let short = FileView::map(file.as_fd(), page_bytes()).unwrap();
        let mut to = vec![0; page_bytes()];
        assert_eq!(short.copy(0, &mut to, Stores::Plain), Ok(()));
        assert_eq!(to, data[..page_bytes()]);
        let behind = FileView::map(file.as_fd(), data.len()).unwrap();
        assert_eq!(behind.copy(page_bytes(), &mut to, Stores::Plain), Err(LostPage));
    }

    #[test]
    fn what_cannot_be_mapped_takes_no_place() {
        for _ in 0..=VIEWS_MAX {
            let (reader, _writer) = std::io::pipe().unwrap();
            assert_eq!(FileView::map(reader.as_fd(), 1).map(drop).unwrap_err().errno, Errno(libc::ENODEV));
        }
        // A thread of another test may have it for a moment.
        drop(Mapping::anonymous(1).unwrap());
        let (file, data) = file(10);
        FileView::map(file.as_fd(), data.len()).unwrap();
    }
}
