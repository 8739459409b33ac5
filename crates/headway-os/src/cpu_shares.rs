//! CPUs that the processes of one user use for copies, each in a slot of a small file in shared memory.
//!
//! A process holds the lock on its slot (`fcntl`), which the kernel takes back when the process ends, however it ends; a forked child
//! does not inherit it. So a slot counts only while its process lives, and a number that a process left behind counts for nothing.
//! The file is read and written, not mapped: whoever shortens it, or writes nonsense into it, changes how many threads copies have, no
//! more.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::{Mutex, MutexGuard, PoisonError};

use headway_core::decisions::cpu_budget;

use crate::OPEN_NO_LINK;
use crate::affinity;
use crate::descriptor::moved_up;
use crate::fork::Home;
use crate::ipc;
use crate::limits;

/// Processes that are counted at a time; further ones copy as if they were alone.
const SLOTS: usize = 64;
const SLOT_BYTES: usize = 64;
/// First word of a slot that is in use.
const MARK: u32 = 0x4857_4355;
/// CPUs that are told apart.
const CPUS: usize = 256;

/// What a process says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Slot {
    pid: u32,
    /// CPUs in use for copies now.
    using: u32,
    /// CPUs that it may use.
    cpus: [u64; CPUS / 64],
}

impl Slot {
    fn bytes(self) -> [u8; SLOT_BYTES] {
        let mut bytes = [0; SLOT_BYTES];
        let words = [MARK, self.pid, self.using].map(u32::to_ne_bytes).concat();
        bytes[..words.len()].copy_from_slice(&words);
        for (place, word) in bytes[16..48].chunks_exact_mut(8).zip(self.cpus) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let mut cpus = [0; CPUS / 64];
        for (at, cpus) in cpus.iter_mut().enumerate() {
            *cpus = u64::from_ne_bytes(bytes.get(16 + 8 * at..24 + 8 * at)?.try_into().ok()?);
        }
        (word(0)? == MARK).then_some(Self { pid: word(4)?, using: word(8)?, cpus })
    }

    fn meets(&self, other: &Self) -> bool {
        self.cpus.iter().zip(&other.cpus).any(|(ours, theirs)| ours & theirs != 0)
    }
}

/// The slot of this process. It is kept as long as the process lives: to close the file would give up every lock on it.
pub struct CpuShares {
    file: File,
    identity: (u64, u64),
    at: usize,
    home: Home,
    count: u32,
    own: Mutex<Slot>,
}

/// What one copy uses; given back when dropped.
pub struct CpuShare<'a> {
    shares: &'a CpuShares,
    threads: u32,
}

impl CpuShares {
    /// Where processes of this user meet.
    #[must_use]
    pub fn place() -> PathBuf {
        PathBuf::from(format!("/dev/shm/headway-cpus-{}", ipc::user()))
    }

    /// Takes a slot of the file at `path`, which is made if there is none.
    ///
    /// # Errors
    /// [`io::Error`] where the file is somebody else's or open to others, or all slots are taken.
    pub fn join(path: &Path) -> io::Result<Self> {
        let flags = OPEN_NO_LINK | libc::O_CLOEXEC;
        let file = OpenOptions::new().read(true).write(true).create(true).mode(0o600).custom_flags(flags).open(path)?;
        let file = File::from(moved_up(file.into()));
        let about = file.metadata()?;
        if !about.is_file() || about.uid() != ipc::user() || about.mode() & 0o077 != 0 {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the file is not this user's own"));
        }
        let whole = (SLOTS * SLOT_BYTES) as u64;
        if about.len() < whole {
            check_size(whole)?;
            file.set_len(whole)?;
        }
        let allowed = affinity::allowed().unwrap_or_default();
        let mut own = Slot { pid: process::id(), ..Slot::default() };
        for cpu in &allowed {
            let cpu = *cpu as usize % CPUS;
            own.cpus[cpu / 64] |= 1 << (cpu % 64);
        }
        let first = own.pid as usize % SLOTS;
        for at in (first..SLOTS).chain(0..first) {
            // A lock says nothing against its own process, where another copy of this library may have the slot; and it was lost
            // when a descriptor of the file was closed just now.
            let ours = read_slot(&file, at).is_some_and(|slot| slot.pid == own.pid);
            if lock(&file, at, libc::F_SETLK).is_some() && !ours {
                write_slot(&file, at, own)?;
                let (identity, count) = ((about.dev(), about.ino()), allowed.len().max(1) as u32);
                return Ok(Self { file, identity, at, home: Home::here(), count, own: Mutex::new(own) });
            }
        }
        Err(io::Error::new(io::ErrorKind::StorageFull, "all slots are taken"))
    }

    fn own(&self) -> MutexGuard<'_, Slot> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy begins that would like `wanted` threads. In a forked child, which is not counted, it gets them.
    pub fn begin(&self, wanted: u32) -> CpuShare<'_> {
        let here = self.home.is_here();
        let threads = if here { self.threads(wanted) } else { wanted };
        if here {
            self.add(i64::from(threads) + 1);
        }
        CpuShare { shares: self, threads }
    }

    fn threads(&self, wanted: u32) -> u32 {
        let mut bytes = [0; SLOTS * SLOT_BYTES];
        if self.file.read_exact_at(&mut bytes, 0).is_err() {
            return wanted;
        }
        let own = *self.own();
        let counts = |(at, slot): (usize, &[u8])| {
            let slot = Slot::read(slot).filter(|slot| at != self.at && slot.using > 0 && slot.meets(&own))?;
            Some((at, slot.using))
        };
        let said: Vec<(usize, u32)> = bytes.chunks_exact(SLOT_BYTES).enumerate().filter_map(counts).collect();
        if cpu_budget::threads(wanted, self.count, said.iter().map(|(_, using)| *using)) >= wanted {
            return wanted;
        }
        // Only now does it matter who of them lives.
        let live = said.into_iter().filter(|(at, _)| lock(&self.file, *at, libc::F_GETLK) == Some(libc::F_WRLCK));
        cpu_budget::threads(wanted, self.count, live.map(|(_, using)| using))
    }

    /// Writes what this process uses now. A program that closed our descriptor may have another file under its number.
    fn add(&self, cpus: i64) {
        let mut own = self.own();
        own.using = u32::try_from((i64::from(own.using) + cpus).max(0)).unwrap_or(u32::MAX);
        let same = self.file.metadata().is_ok_and(|about| (about.dev(), about.ino()) == self.identity);
        if same {
            let _ = write_slot(&self.file, self.at, *own);
        }
    }
}

impl CpuShare<'_> {
    /// Threads that the copy may have.
    #[must_use]
    pub const fn threads(&self) -> u32 {
        self.threads
    }
}

impl Drop for CpuShare<'_> {
    fn drop(&mut self) {
        if self.shares.home.is_here() {
            self.shares.add(-(i64::from(self.threads) + 1));
        }
    }
}

fn read_slot(file: &File, at: usize) -> Option<Slot> {
    let mut bytes = [0; SLOT_BYTES];
    file.read_exact_at(&mut bytes, (at * SLOT_BYTES) as u64).ok()?;
    Slot::read(&bytes)
}

fn write_slot(file: &File, at: usize, slot: Slot) -> io::Result<()> {
    let start = (at * SLOT_BYTES) as u64;
    check_size(start + SLOT_BYTES as u64)?;
    file.write_all_at(&slot.bytes(), start)
}

/// A program that limits its files must not get a signal for one that it knows nothing of.
fn check_size(bytes: u64) -> io::Result<()> {
    if bytes <= limits::file_bytes_max() { Ok(()) } else { Err(io::ErrorKind::FileTooLarge.into()) }
}

/// `F_SETLK`: takes the lock on a slot. `F_GETLK`: asks who would be in the way, `F_WRLCK` if anybody.
fn lock(file: &File, at: usize, command: libc::c_int) -> Option<libc::c_int> {
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: (at * SLOT_BYTES) as libc::off_t,
        l_len: SLOT_BYTES as libc::off_t,
        l_pid: 0,
    };
    // SAFETY: `lock` is valid for the call to read and write.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) } == 0;
    done.then_some(libc::c_int::from(lock.l_type))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

    use super::*;
    use crate::fork::holds_in_a_child;

    /// A slot as another process of this user with the same CPUs writes it.
    fn place() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cpus");
        (folder, path)
    }

    /// Forks a child that joins and uses CPUs for `threads` threads until it is killed; its process number.
    fn neighbour(path: &Path, threads: u32) -> Pid {
        let (mut reader, mut writer) = io::pipe().unwrap();
        // SAFETY: the child calls only what is below, and never returns.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let joined = CpuShares::join(path).ok();
            let part = joined.as_ref().map(|shares| shares.begin(threads));
            let _ = writer.write_all(&[u8::from(part.is_some())]);
            // SAFETY: the child waits for the signal that ends it.
            unsafe {
                libc::alarm(60);
                loop {
                    libc::pause();
                }
            }
        }
        drop(writer);
        let mut says = [0u8];
        reader.read_exact(&mut says).unwrap();
        assert_eq!(says, [1]);
        Pid::from_raw(child).unwrap()
    }

    fn kill(child: Pid) {
        kill_process(child, Signal::KILL).unwrap();
        waitpid(Some(child), WaitOptions::empty()).unwrap();
    }

    #[test]
    fn who_copies_beside_others_gets_a_part_and_the_whole_again_when_they_were_killed() {
        let (_folder, path) = place();
        let shares = CpuShares::join(&path).unwrap();
        let many = 10 * shares.count;
        assert_eq!(shares.begin(many).threads(), many, "alone");
        let neighbours = [neighbour(&path, many), neighbour(&path, many)];
        let beside = shares.begin(many).threads();
        assert!(beside <= shares.count, "{beside} threads of {} CPUs beside two others", shares.count);
        neighbours.into_iter().for_each(kill);
        assert_eq!(shares.begin(many).threads(), many, "dead processes count for nothing");
    }

    #[test]
    fn a_copy_that_ends_gives_its_cpus_back() {
        let (_folder, path) = place();
        let shares = CpuShares::join(&path).unwrap();
        let part = shares.begin(4);
        assert_eq!(read_slot(&shares.file, shares.at).unwrap().using, 5);
        let second = shares.begin(2);
        assert_eq!(read_slot(&shares.file, shares.at).unwrap().using, 8);
        drop(part);
        drop(second);
        assert_eq!(read_slot(&shares.file, shares.at).unwrap().using, 0);
    }

    #[test]
    fn a_forked_child_is_not_counted_and_its_end_changes_nothing() {
        let (_folder, path) = place();
        let shares = CpuShares::join(&path).unwrap();
        let part = shares.begin(4);
        assert!(holds_in_a_child(|| shares.begin(9).threads() == 9));
        assert_eq!(read_slot(&shares.file, shares.at).unwrap().using, 5);
        // The child's end has not given back the lock: another process finds it taken.
        assert!(holds_in_a_child(|| lock(&shares.file, shares.at, libc::F_GETLK) == Some(libc::F_WRLCK)));
        drop(part);
    }

    #[test]
    fn two_libraries_in_one_process_have_a_slot_each() {
        let (_folder, path) = place();
        let (first, second) = (CpuShares::join(&path).unwrap(), CpuShares::join(&path).unwrap());
        assert_ne!(first.at, second.at);
    }

    #[test]
    fn nonsense_in_the_file_and_a_file_that_was_cut_cost_threads_at_most() {
        let (_folder, path) = place();
        let shares = CpuShares::join(&path).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        for pattern in [0xff_u8, 0x55, 0x00] {
            file.write_all_at(&[pattern; SLOTS * SLOT_BYTES], 0).unwrap();
            assert_eq!(shares.begin(6).threads(), 6);
        }
        let busy = Slot { pid: 1, using: u32::MAX, cpus: [u64::MAX; CPUS / 64] };
        for at in 0..SLOTS {
            file.write_all_at(&busy.bytes(), (at * SLOT_BYTES) as u64).unwrap();
        }
        assert_eq!(shares.begin(6).threads(), 6, "nobody holds these slots");
        file.set_len(0).unwrap();
        assert_eq!(shares.begin(6).threads(), 6);
        file.set_len(1 << 20).unwrap();
        assert_eq!(shares.begin(6).threads(), 6);
    }

    #[test]
    fn a_program_that_may_write_no_files_gets_no_signal_for_this_one() {
        let limit_files = |bytes| {
            let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
            // SAFETY: `limit` is valid for the call to read.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
        };
        let (_folder, path) = place();
        assert!(holds_in_a_child(|| {
            limit_files(0);
            CpuShares::join(&path).is_err()
        }));
        assert!(holds_in_a_child(|| {
            let shares = CpuShares::join(&path).unwrap();
            limit_files(0);
            shares.begin(4).threads() == 4
        }));
    }

    #[test]
    fn links_and_files_that_others_could_write_are_refused() {
        let (folder, path) = place();
        fs::write(folder.path().join("target"), b"kept").unwrap();
        symlink(folder.path().join("target"), &path).unwrap();
        assert!(CpuShares::join(&path).is_err());
        assert_eq!(fs::read(folder.path().join("target")).unwrap(), b"kept");
        let open = folder.path().join("open");
        fs::write(&open, b"").unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o622)).unwrap();
        assert!(CpuShares::join(&open).is_err());
        assert!(CpuShares::join(folder.path()).is_err());
    }

    #[test]
    fn when_all_slots_are_taken_nobody_joins() {
        let (_folder, path) = place();
        let all: Vec<CpuShares> = (0..SLOTS).map(|_| CpuShares::join(&path).unwrap()).collect();
        assert!(CpuShares::join(&path).is_err());
        drop(all);
    }
}
