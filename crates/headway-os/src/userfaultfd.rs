//! Whether memory is still backed by the pages that it had: the kernel says so by `userfaultfd`, before `munmap` and the like return.
//!
//! Pages that a device was given by their physical address stay those of the device when the program unmaps them. Who keeps such pages must
//! know, before it uses them again, that the addresses still mean them. A [`PageWatch`] knows:
//!
//! - The kernel tells of `munmap`, `mremap`, `brk`, a mapping over another one, and `madvise` (`DONTNEED`, `FREE`, `REMOVE`), and lets the call return
//!   only when a thread of ours has read that. Ranges are registered for write protection, and nothing is ever protected, so that the
//!   program's own accesses are as fast as before.
//! - Another thread can map an address again between the unmapping and our reading. The kernel counts such changes from *before* the unmapping
//!   until it was read (`mmap_changing`), and refuses to change a protection meanwhile (EAGAIN). [`PageWatch::holds`] asks for such a change,
//!   of pages that are not protected.
//! - `madvise` tells *before* it takes pages away. Memory that was given back so is never watched again.
//!
//! Not told are `madvise(MADV_GUARD_INSTALL)` (Linux 6.13) and `shmat(SHM_REMAP)` over a part of the memory.
//!
//! The thread that reads allocates nothing and waits for no lock that a thread in `munmap` could hold: allocators unmap with their own locks held.
//! In return, whoever holds the watch's lock allocates nothing, makes no call but those of this file, and takes no signal meanwhile: a handler
//! may unmap, or stop its thread until another one has (garbage collectors do).

use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::fstat;

use crate::descriptor::moved_up;
use crate::memory::page_bytes;
use crate::threads::{self, Mask};

/// Ranges that can be watched at once.
pub const RANGES_MAX: usize = 1_024;
/// Separate ranges that were given back; beyond that two become one, with what lies between.
const GIVEN_BACK_MAX: usize = 64;
/// How often a change that is under way is waited for: each time takes about a microsecond.
const TRIES: u32 = 200;

/// `UFFD_USER_MODE_ONLY`: needs no privilege, and tells nothing of faults within the kernel, of which there are none here.
const USER_MODE_ONLY: libc::c_int = 1;
const API: u64 = 0xAA;
/// `UFFD_FEATURE_`: `PAGEFAULT_FLAG_WP`, `EVENT_REMAP`, `EVENT_REMOVE`, `EVENT_UNMAP`; and `EXACT_ADDRESS` (Linux 5.18), since before 5.15 a second
/// change ended the first one's count.
const FEATURES: u64 = 1 | 1 << 2 | 1 << 3 | 1 << 6 | 1 << 11;
const UFFDIO_API: libc::c_ulong = 0xC018_AA3F;
const UFFDIO_REGISTER: libc::c_ulong = 0xC020_AA00;
const UFFDIO_WRITEPROTECT: libc::c_ulong = 0xC018_AA06;
const REGISTER_MODE_WP: u64 = 2;
/// `UFFD_EVENT_`
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;

/// `struct uffdio_api`.
#[repr(C)]
struct ApiCall {
    api: u64,
    features: u64,
    calls: u64,
}

/// `struct uffdio_register`; the first three words are `struct uffdio_writeprotect`.
#[repr(C)]
struct RangeCall {
    start: u64,
    bytes: u64,
    mode: u64,
    calls: u64,
}

/// `struct uffd_msg`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    arguments: [u64; 3],
}

/// A change of mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    start: usize,
    end: usize,
    loss: PageLoss,
}

/// How watched memory lost its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageLoss {
    /// Unmapped, moved, or mapped over.
    Unmapped,
    /// Given back by `madvise`. The kernel tells this before it takes the pages away.
    GivenBack,
    /// The program has closed the file by which the kernel tells.
    Closed,
}

/// Why memory cannot be watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchRefusal {
    /// It is not private anonymous memory that the program may write, or has holes.
    OtherMemory,
    /// It was given back by `madvise` before.
    GivenBack,
    /// There are [`RANGES_MAX`] ranges already.
    TooMany,
    /// The kernel refused, as it does where the program watches the memory itself.
    Kernel,
}

impl Message {
    fn change(&self) -> Option<Change> {
        let [first, second, third] = self.arguments.map(|word| usize::try_from(word).unwrap_or(usize::MAX));
        match self.event {
            EVENT_REMAP => Some(Change { start: first, end: first.saturating_add(third), loss: PageLoss::Unmapped }),
            EVENT_REMOVE => Some(Change { start: first, end: second, loss: PageLoss::GivenBack }),
            EVENT_UNMAP => Some(Change { start: first, end: second, loss: PageLoss::Unmapped }),
            _ => None,
        }
    }
}

/// A range that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchId {
    at: usize,
    /// Which of those that had this place.
    turn: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Watched {
    start: usize,
    end: usize,
    turn: u64,
    lost: Option<PageLoss>,
}

/// What is known; nothing grows, since it is changed while an allocator may wait.
#[derive(Debug)]
struct Book {
    watched: Box<[Watched]>,
    given_back: [(usize, usize); GIVEN_BACK_MAX],
    turns: u64,
}

const fn meet(a: (usize, usize), b: (usize, usize)) -> bool {
    a.0 < b.1 && b.0 < a.1
}

impl Book {
    fn new() -> Self {
        let watched = vec![Watched::default(); RANGES_MAX].into_boxed_slice();
        Self { watched, given_back: [(0, 0); GIVEN_BACK_MAX], turns: 0 }
    }

    fn watch(&mut self, range: &Range<usize>) -> Result<WatchId, WatchRefusal> {
        if self.given_back.iter().any(|given| meet(*given, (range.start, range.end))) {
            return Err(WatchRefusal::GivenBack);
        }
        let at = self.watched.iter().position(|watched| watched.turn == 0).ok_or(WatchRefusal::TooMany)?;
        self.turns += 1;
        self.watched[at] = Watched { start: range.start, end: range.end, turn: self.turns, lost: None };
        Ok(WatchId { at, turn: self.turns })
    }

    fn forget(&mut self, id: WatchId) {
        if self.watched[id.at].turn == id.turn {
            self.watched[id.at] = Watched::default();
        }
    }

    fn of(&self, id: WatchId) -> Option<Range<usize>> {
        let watched = self.watched[id.at];
        (watched.turn == id.turn && watched.lost.is_none()).then_some(watched.start..watched.end)
    }

    /// Whether something that was watched has changed.
    fn apply(&mut self, change: Change) -> bool {
        let changed = (change.start, change.end);
        let mut any = false;
        for watched in self.watched.iter_mut().filter(|watched| watched.lost.is_none()) {
            if meet((watched.start, watched.end), changed) {
                watched.lost = Some(change.loss);
                any = true;
            }
        }
        if change.loss != PageLoss::Unmapped {
            self.give_back(changed);
        }
        any
    }

    fn give_back(&mut self, mut new: (usize, usize)) {
        let touches = |given: &(usize, usize)| given.0 <= new.1 && new.0 <= given.1 && given.1 > 0;
        let at = self.given_back.iter().position(touches);
        let at = at.or_else(|| self.given_back.iter().position(|given| given.1 == 0)).unwrap_or_else(|| {
            let apart = |given: &(usize, usize)| given.0.saturating_sub(new.1).max(new.0.saturating_sub(given.1));
            (0..GIVEN_BACK_MAX).min_by_key(|at| apart(&self.given_back[*at])).unwrap_or(0)
        });
        let known = self.given_back[at];
        if known.1 > 0 {
            new = (known.0.min(new.0), known.1.max(new.1));
        }
        self.given_back[at] = new;
    }
}

/// Watches memory of this process until the process ends.
#[derive(Debug)]
pub struct PageWatch {
    descriptor: OwnedFd,
    /// The device and the number of the file behind it.
    file: (u64, u64),
    book: Mutex<Book>,
}

/// The lock on what is known.
struct Locked<'a> {
    book: MutexGuard<'a, Book>,
    /// Signals come when the lock is free again.
    _mask: Mask,
}

impl PageWatch {
    /// Begins to watch; `changed` runs in the watch's thread whenever watched memory has changed, and may neither allocate nor wait.
    ///
    /// # Errors
    /// EPERM where the system forbids `userfaultfd` (containers; `vm.unprivileged_userfaultfd` where user mode alone is not allowed), EINVAL or
    /// ENOSYS where the kernel is too old or was built without it, or what the system says when it gives no thread.
    pub fn begin(changed: impl Fn() + Send + 'static) -> io::Result<Arc<Self>> {
        let flags = USER_MODE_ONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: the call takes a number and gives a descriptor.
        let number = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let number = libc::c_int::try_from(number).ok().filter(|number| *number >= 0);
        let Some(number) = number else { return Err(io::Error::last_os_error()) };
        // SAFETY: the descriptor was just opened, and nobody else has it.
        let descriptor = moved_up(unsafe { OwnedFd::from_raw_fd(number) });
        let file = file_of(&descriptor)?;
        let watch = Arc::new(Self { descriptor, file, book: Mutex::new(Book::new()) });
        watch.call(UFFDIO_API, &mut ApiCall { api: API, features: FEATURES, calls: 0 })?;
        let reads = Arc::clone(&watch);
        threads::spawn("headway-pages", move || reads.read_changes(changed))?;
        Ok(watch)
    }

    fn lock(&self) -> Locked<'_> {
        let _mask = Mask::without_signals();
        Locked { book: self.book.lock().unwrap_or_else(PoisonError::into_inner), _mask }
    }

    /// Whether the program has not closed all of its files, and may have given our number to another one.
    fn has_its_file(&self) -> bool {
        file_of(&self.descriptor).is_ok_and(|file| file == self.file)
    }

    fn call<T>(&self, request: libc::c_ulong, argument: &mut T) -> io::Result<()> {
        // SAFETY: the argument is the structure of this request, which the kernel reads and writes.
        let status = unsafe { libc::ioctl(self.descriptor.as_raw_fd(), request as _, std::ptr::from_mut(argument)) };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn read_changes(&self, changed: impl Fn()) {
        let mut goes_on = true;
        while goes_on {
            let mut waits = [PollFd::new(&self.descriptor, PollFlags::IN)];
            let _ = poll(&mut waits, None);
            // The lock is taken before the kernel lets the change's thread go on.
            let mut locked = self.lock();
            let mut any = false;
            goes_on = self.has_its_file();
            while goes_on && let Some(message) = self.next() {
                any |= message.change().is_some_and(|change| locked.book.apply(change));
            }
            if !goes_on {
                any |= locked.book.apply(Change { start: 0, end: usize::MAX, loss: PageLoss::Closed });
            }
            drop(locked);
            if any {
                changed();
            }
        }
    }

    fn next(&self) -> Option<Message> {
        let mut message = MaybeUninit::<Message>::uninit();
        // SAFETY: the kernel writes a whole message or nothing.
        let read = unsafe {
            libc::read(self.descriptor.as_fd().as_raw_fd(), message.as_mut_ptr().cast(), size_of::<Message>())
        };
        // SAFETY: the message was written as a whole.
        (read == size_of::<Message>() as isize).then(|| unsafe { message.assume_init() })
    }

    /// Watches a range of whole pages from now on.
    ///
    /// # Errors
    /// Why that is not possible.
    pub fn watch(&self, range: &Range<usize>) -> Result<WatchId, WatchRefusal> {
        // Whole mappings, so that none becomes two: `mremap` takes no two.
        let mappings = mappings_of(range).ok_or(WatchRefusal::OtherMemory)?;
        let id = self.lock().book.watch(range)?;
        let (start, bytes) = (mappings.start as u64, mappings.len() as u64);
        let registered = self.call(UFFDIO_REGISTER, &mut RangeCall { start, bytes, mode: REGISTER_MODE_WP, calls: 0 });
        registered.map(|()| id).map_err(|_| {
            self.forget(id);
            WatchRefusal::Kernel
        })
    }

    /// Ends to watch a range.
    pub fn forget(&self, id: WatchId) {
        self.lock().book.forget(id);
    }

    /// How a range has lost pages for good; `None` = it has not, or is watched no more.
    #[must_use]
    pub fn lost(&self, id: WatchId) -> Option<PageLoss> {
        let watched = self.lock().book.watched[id.at];
        watched.lost.filter(|_| watched.turn == id.turn)
    }

    /// Whether a range has the pages that it had when it began to be watched, at some time during this call. A change that another thread is
    /// about to make is waited for, for a fraction of a millisecond; then the answer is no.
    #[must_use]
    pub fn holds(&self, id: WatchId) -> bool {
        for _ in 0..TRIES {
            let locked = self.lock();
            let Some(range) = locked.book.of(id) else { return false };
            let page = page_bytes();
            let asked = [range.start, range.end - page].map(|start| {
                self.call(
                    UFFDIO_WRITEPROTECT,
                    &mut RangeCall { start: start as u64, bytes: page as u64, mode: 0, calls: 0 },
                )
            });
            drop(locked);
            match asked {
                [Ok(()), Ok(())] => return true,
                asked if asked.iter().flat_map(|asked| asked.as_ref().err()).all(is_passing) => {
                    std::thread::yield_now()
                }
                _ => return false,
            }
        }
        false
    }
}

fn file_of(descriptor: &OwnedFd) -> io::Result<(u64, u64)> {
    let stat = fstat(descriptor)?;
    Ok((stat.st_dev, stat.st_ino))
}

fn is_passing(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EAGAIN)
}

/// The mappings that have all of `range`, without a hole, if they are private anonymous memory, and no stack. There are several where a part was
/// advised something: Headway itself asks for huge pages in the middle of large destinations.
fn mappings_of(range: &Range<usize>) -> Option<Range<usize>> {
    let text = std::fs::read_to_string("/proc/self/maps").ok()?;
    covering(text.lines(), range)
}

fn covering<'a>(lines: impl Iterator<Item = &'a str>, range: &Range<usize>) -> Option<Range<usize>> {
    let mut met = lines.filter_map(plain_mapping).skip_while(|mapping| mapping.end <= range.start);
    let mut found = met.next().filter(|first| first.start <= range.start)?;
    while found.end < range.end {
        found.end = met.next().filter(|next| next.start == found.end)?.end;
    }
    Some(found)
}

fn plain_mapping(line: &str) -> Option<Range<usize>> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let (rights, _offset, _device, inode) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let name = words.next().unwrap_or_default();
    let is_plain = rights.starts_with("rw") && rights.ends_with('p') && inode == "0";
    let is_known = name.is_empty() || name == "[heap]" || name.starts_with("[anon:");
    let number = |text| usize::from_str_radix(text, 16).ok();
    (is_plain && is_known).then_some(number(start)?..number(end)?)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap, mmap_anonymous, mremap, munmap};

    use super::*;

    const PAGES: usize = 64;

    fn early(start: usize, end: usize) -> Change {
        Change { start, end, loss: PageLoss::GivenBack }
    }

    fn late(start: usize, end: usize) -> Change {
        Change { start, end, loss: PageLoss::Unmapped }
    }

    #[test]
    fn a_change_ends_what_it_meets_and_only_that() {
        let mut book = Book::new();
        let [a, b] = [10..20, 20..30].map(|range| book.watch(&range).unwrap());
        assert!(!book.apply(late(0, 10)) && !book.apply(late(30, 40)));
        assert!(book.apply(late(19, 20)));
        assert_eq!((book.of(a), book.of(b)), (None, Some(20..30)));
        // Its place serves another range, and the old name means nothing any more.
        book.forget(a);
        let c = book.watch(&(10..20)).unwrap();
        assert_eq!((book.of(a), book.of(c)), (None, Some(10..20)));
        book.forget(a);
        assert_eq!(book.of(c), Some(10..20));
    }

    #[test]
    fn what_was_given_back_is_never_watched_again() {
        let mut book = Book::new();
        for at in 0..10 * GIVEN_BACK_MAX {
            book.apply(early(at * 100, at * 100 + 10));
        }
        for at in 0..10 * GIVEN_BACK_MAX {
            assert_eq!(book.watch(&(at * 100 + 9..at * 100 + 11)), Err(WatchRefusal::GivenBack), "{at}");
        }
        assert!(book.watch(&(1_000_000..1_000_001)).is_ok());
    }

    #[test]
    fn no_more_ranges_are_watched_than_there_are_places() {
        let mut book = Book::new();
        let ids: Vec<_> = (0..RANGES_MAX).map(|at| book.watch(&(at..at + 1)).unwrap()).collect();
        assert_eq!(book.watch(&(0..1)), Err(WatchRefusal::TooMany));
        book.forget(ids[7]);
        assert!(book.watch(&(0..1)).is_ok());
    }

    #[test]
    fn only_private_anonymous_memory_is_plain() {
        for (line, is_plain) in [
            ("7f00-8000 rw-p 00000000 00:00 0 ", true),
            ("7f00-8000 rw-p 00000000 00:00 0          [heap]", true),
            ("7f00-8000 rw-p 00000000 00:00 0          [anon:glibc: malloc]", true),
            ("7f00-8000 rw-p 00000000 00:00 0          [stack]", false),
            ("7f00-8000 r--p 00000000 00:00 0 ", false),
            ("7f00-8000 rw-s 00000000 00:01 44         /dev/zero (deleted)", false),
            ("7f00-8000 rw-p 00000000 00:05 4          /dev/zero", false),
            ("7f00-8000 rw-p 00000000 08:01 99         /a file", false),
            ("7f00-8000 rw-p 00000000 00:0f 12         /anon_hugepage (deleted)", false),
        ] {
            assert_eq!(plain_mapping(line), is_plain.then_some(0x7f00..0x8000), "{line}");
        }
    }

    #[test]
    fn memory_of_several_mappings_is_found_where_nothing_else_lies_between() {
        let lines = |gap| {
            [
                "1000-2000 rw-p 0 00:00 0",
                "3000-5000 rw-p 0 00:00 0",
                "5000-7000 rw-p 0 00:00 0",
                gap,
                "8000-9000 rw-p 0 00:00 0",
            ]
        };
        let found = |gap, range| covering(lines(gap).into_iter(), &range);
        let (plain, other, hole) = ("7000-8000 rw-p 0 00:00 0", "7000-8000 r--p 0 00:00 0", "");
        assert_eq!(found(hole, 0x3000..0x4000), Some(0x3000..0x5000));
        assert_eq!(found(hole, 0x4000..0x6000), Some(0x3000..0x7000));
        assert_eq!(found(plain, 0x4000..0x8800), Some(0x3000..0x9000));
        for (gap, range) in [
            (hole, 0x4000..0x8800),
            (other, 0x4000..0x8800),
            (plain, 0x1000..0x4000),
            (plain, 0x2800..0x4000),
            (plain, 0x8000..0x9001),
        ] {
            assert_eq!(found(gap, range.clone()), None, "{gap}, {range:?}");
        }
    }

    /// A watch, or none where the system forbids it.
    fn watch() -> Option<Arc<PageWatch>> {
        let watch = PageWatch::begin(|| ());
        if let Err(error) = &watch {
            println!("skipped: no `userfaultfd` here: {error}");
        }
        watch.ok()
    }

    /// Memory between two pages that stay closed: else the kernel makes one mapping of it and that of another test, which has a watch of its own.
    fn mapped() -> Range<usize> {
        let (bytes, page) = (PAGES * page_bytes(), page_bytes());
        // SAFETY: new memory.
        let closed =
            unsafe { mmap_anonymous(std::ptr::null_mut(), bytes + 2 * page, ProtFlags::empty(), MapFlags::PRIVATE) };
        let start = closed.unwrap().wrapping_byte_add(page);
        let both = rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE;
        // SAFETY: the memory is ours.
        unsafe { rustix::mm::mprotect(start, bytes, both) }.unwrap();
        // SAFETY: the memory is ours.
        unsafe { start.cast::<u8>().write_bytes(1, bytes) };
        start.addr()..start.addr() + bytes
    }

    fn address(at: usize) -> *mut libc::c_void {
        std::ptr::with_exposed_provenance_mut(at)
    }

    #[test]
    fn every_way_to_lose_pages_is_seen_before_its_call_returns() {
        type Loss = fn(Range<usize>, usize);
        let Some(watch) = watch() else { return };
        let page = page_bytes();
        // SAFETY: each gives up or replaces memory of the test only, which nobody uses afterwards.
        let losses: [(&str, Loss); 8] = unsafe {
            [
                ("munmap", |range, page| munmap(address(range.start + page), page).unwrap()),
                ("DONTNEED", |range, page| {
                    madvise(address(range.start + page), page, Advice::LinuxDontNeed).unwrap();
                }),
                ("FREE", |range, page| madvise(address(range.start + page), page, Advice::LinuxFree).unwrap()),
                ("grow", |range, page| {
                    mremap(address(range.start), range.len(), 16 * range.len() + page, MremapFlags::MAYMOVE).unwrap();
                }),
                ("move and stay", |range, _| {
                    let (flags, nowhere) = (libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP, 0);
                    let moved = libc::mremap(address(range.start), range.len(), range.len(), flags, nowhere);
                    assert_ne!(moved, libc::MAP_FAILED);
                }),
                ("shrink", |range, page| {
                    mremap(address(range.start), range.len(), page, MremapFlags::empty()).unwrap();
                }),
                ("file", |range, page| {
                    let file = tempfile::tempfile().unwrap();
                    file.set_len(page as u64).unwrap();
                    let flags = MapFlags::PRIVATE | MapFlags::FIXED;
                    mmap(address(range.start), page, ProtFlags::READ, flags, &file, 0).unwrap();
                }),
                ("over", |range, page| {
                    let flags = MapFlags::PRIVATE | MapFlags::FIXED;
                    mmap_anonymous(address(range.end - page), page, ProtFlags::READ, flags).unwrap();
                }),
            ]
        };
        for (name, lose) in losses {
            let range = mapped();
            let id = watch.watch(&range).unwrap();
            assert!(watch.holds(id), "{name}");
            lose(range.clone(), page);
            assert!(!watch.holds(id), "{name}");
            watch.forget(id);
        }
    }

    #[test]
    fn what_keeps_the_pages_keeps_the_watch() {
        let Some(watch) = watch() else { return };
        let range = mapped();
        let id = watch.watch(&range).unwrap();
        // SAFETY: the memory is the test's.
        unsafe {
            rustix::mm::mprotect(address(range.start), page_bytes(), rustix::mm::MprotectFlags::READ).unwrap();
            let both = rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE;
            rustix::mm::mprotect(address(range.start), page_bytes(), both).unwrap();
            address(range.start).cast::<u8>().write(7);
        }
        assert!(crate::fork::holds_in_a_child(|| {
            // SAFETY: the child's own copy.
            unsafe { munmap(address(range.start), range.len()) }.is_ok()
        }));
        assert!(watch.holds(id));
    }

    /// Garbage collectors unmap in handlers, and stop threads in them until another one has unmapped.
    #[test]
    fn a_handler_that_unmaps_while_its_thread_asks_does_not_wait_for_that_thread() {
        static AT: AtomicUsize = AtomicUsize::new(0);
        static DONE: AtomicUsize = AtomicUsize::new(0);
        extern "C" fn unmap(_: libc::c_int) {
            // SAFETY: the address is that of memory that nobody uses.
            let _ = unsafe { munmap(address(AT.load(Ordering::SeqCst)), PAGES * page_bytes()) };
            DONE.fetch_add(1, Ordering::SeqCst);
        }
        assert!(crate::fork::holds_in_a_child(|| {
            let Some(watch) = watch() else { return true };
            let handler: extern "C" fn(libc::c_int) = unmap;
            // SAFETY: the handler makes a system call and touches atomics.
            unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
            // SAFETY: the call has no arguments and cannot fail.
            let asking = unsafe { libc::pthread_self() };
            let (asked, is_over) = (watch.watch(&mapped()).unwrap(), Arc::new(AtomicBool::new(false)));
            let (unmaps, ended) = (Arc::clone(&watch), Arc::clone(&is_over));
            let signals = std::thread::spawn(move || {
                for round in 0..200 {
                    let range = mapped();
                    let id = unmaps.watch(&range).unwrap();
                    AT.store(range.start, Ordering::SeqCst);
                    // SAFETY: the thread lives until this one has ended.
                    unsafe { libc::pthread_kill(asking, libc::SIGUSR1) };
                    while DONE.load(Ordering::SeqCst) == round {
                        std::thread::yield_now();
                    }
                    unmaps.forget(id);
                }
                ended.store(true, Ordering::SeqCst);
            });
            while !is_over.load(Ordering::SeqCst) {
                let _ = watch.holds(asked);
            }
            signals.join().is_ok()
        }));
    }

    #[test]
    fn a_program_that_closes_all_files_loses_the_watch_and_no_byte_of_another_file() {
        assert!(crate::fork::holds_in_a_child(|| {
            let Some(watch) = watch() else { return true };
            let range = mapped();
            let id = watch.watch(&range).unwrap();
            let (reads, writes) = rustix::pipe::pipe().unwrap();
            rustix::io::write(&writes, &[7; 64]).unwrap();
            // SAFETY: our number is given to the pipe, as a program does that knows nothing of it.
            assert!(unsafe { libc::dup2(reads.as_raw_fd(), watch.descriptor.as_raw_fd()) } >= 0);
            // SAFETY: nobody reads the memory.
            unsafe { munmap(address(range.start), range.len()) }.unwrap();
            while watch.lost(id).is_none() {
                std::thread::yield_now();
            }
            let other = mapped();
            let is_over = !watch.holds(id) && watch.watch(&other).is_err();
            let mut text = [0; 64];
            is_over && rustix::io::read(&reads, &mut text) == Ok(64)
        }));
    }

    #[test]
    fn memory_of_which_a_part_was_advised_to_have_huge_pages_is_watched_as_a_whole() {
        let Some(watch) = watch() else { return };
        let (range, page) = (mapped(), page_bytes());
        // SAFETY: the advice changes how the memory is backed.
        unsafe { madvise(address(range.start + page), 8 * page, Advice::LinuxHugepage) }.unwrap();
        let id = watch.watch(&range).unwrap();
        assert!(watch.holds(id));
        // SAFETY: nobody reads the memory.
        unsafe { munmap(address(range.start + 4 * page), page) }.unwrap();
        assert!(!watch.holds(id));
        assert_eq!(watch.lost(id), Some(PageLoss::Unmapped));
    }

    #[test]
    fn shared_memory_and_files_are_not_watched() {
        let Some(watch) = watch() else { return };
        let bytes = PAGES * page_bytes();
        let writes = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory.
        let shared = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, writes, MapFlags::SHARED) }.unwrap();
        assert!(watch.watch(&(shared.addr()..shared.addr() + bytes)).is_err());
        let file = tempfile::tempfile().unwrap();
        file.set_len(bytes as u64).unwrap();
        // SAFETY: new memory.
        let private = unsafe { mmap(std::ptr::null_mut(), bytes, writes, MapFlags::PRIVATE, &file, 0) }.unwrap();
        assert!(watch.watch(&(private.addr()..private.addr() + bytes)).is_err());
    }

    #[test]
    fn an_address_that_another_thread_maps_before_munmap_returns_is_not_taken_for_the_old_one() {
        let Some(watch) = watch() else { return };
        for round in 0..300 {
            let range = mapped();
            let id = watch.watch(&range).unwrap();
            let (is_unmapped, is_taken) = (AtomicBool::new(false), AtomicBool::new(false));
            let is_ours = std::thread::scope(|scope| {
                let grabs = scope.spawn(|| {
                    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
                    let writes = ProtFlags::READ | ProtFlags::WRITE;
                    loop {
                        let was_unmapped = is_unmapped.load(Ordering::Acquire);
                        // SAFETY: nothing is replaced.
                        let got = unsafe { mmap_anonymous(address(range.start), range.len(), writes, flags) };
                        if got.is_ok() || was_unmapped {
                            is_taken.store(true, Ordering::Release);
                            return got.is_ok();
                        }
                    }
                });
                scope.spawn(|| {
                    // SAFETY: nobody reads the memory any more.
                    unsafe { munmap(address(range.start), range.len()) }.unwrap();
                    is_unmapped.store(true, Ordering::Release);
                });
                loop {
                    let was_taken = is_taken.load(Ordering::Acquire);
                    assert!(!(watch.holds(id) && was_taken), "round {round}");
                    if was_taken {
                        break;
                    }
                }
                grabs.join().unwrap()
            });
            watch.forget(id);
            if is_ours {
                // SAFETY: the memory is the test's.
                unsafe { munmap(address(range.start), range.len()) }.unwrap();
            }
        }
    }
}
