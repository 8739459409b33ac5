//! Resident copiers of an emulated gpu: one thread a unit, a mailbox, two real copies a piece.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use headway_core::models::transfer::ResidentShape;
use headway_core::units::Nanos;
use headway_os::fork::Home;
use headway_os::{clock, threads};

use super::Shared;
use super::memory::PinnedMemory;
use crate::buffer::{Access, Memory, MemoryPlace, Span, lock};
use crate::gpu::{Resident, ResidentOptions};
use crate::{DeviceError, check};

/// Ordinary memory passes through pinned memory of this size.
const STAGE_BYTES: usize = 256 << 10;
/// The largest piece: the scratch of a unit stands for the shared memory of a thread block.
pub(super) const PIECE_MAX: usize = 64 << 10;
/// The longest lease and patience: a day.
const WAIT_MAX: Nanos = Nanos(86_400_000_000_000);

/// A resident copier.
pub(super) struct EmuResident {
    gpu: Arc<Shared>,
    shape: ResidentShape,
    options: ResidentOptions,
    mail: Arc<Mail>,
    threads: Vec<JoinHandle<()>>,
    home: Home,
    /// When the lease of the last launch ends.
    until: Nanos,
    stage: PinnedMemory,
}

struct Mail {
    state: Mutex<MailState>,
    changed: Condvar,
    /// A command is to be abandoned at the next piece.
    cancel: AtomicBool,
}

#[derive(Default)]
struct MailState {
    /// Grows with every command.
    sequence: u64,
    command: Option<Command>,
    /// Units that have not ended the newest command.
    busy: usize,
    failed: bool,
    /// Units leave: parked, or the lease has ended.
    leave: bool,
}

/// A copy of `len` bytes. The addresses are usable until every unit has ended it.
#[derive(Clone, Copy)]
struct Command {
    from: *const u8,
    to: *mut u8,
    len: usize,
}

// SAFETY: whoever gives the command keeps both ranges to itself until all units have ended it.
unsafe impl Send for Command {}

impl EmuResident {
    /// The caller has counted it in `gpu.residents`, which this gives back when dropped.
    pub(super) fn start(
        gpu: Arc<Shared>,
        shape: ResidentShape,
        options: ResidentOptions,
        stage: PinnedMemory,
    ) -> Result<Self, DeviceError> {
        let mail = Arc::new(Mail { state: Mutex::default(), changed: Condvar::new(), cancel: AtomicBool::new(false) });
        let mut resident =
            Self { gpu, shape, options, mail, threads: Vec::new(), home: Home::here(), until: Nanos::ZERO, stage };
        resident.launch(None)?;
        Ok(resident)
    }

    pub(super) fn stage() -> Result<PinnedMemory, DeviceError> {
        PinnedMemory::new(STAGE_BYTES)
    }

    fn units(&self) -> usize {
        if self.shape == ResidentShape::Gpc4 { 4 } else { 1 }
    }

    /// Starts the units anew, with `first` for them to do at once: their lease cannot end before it.
    fn launch(&mut self, first: Option<Command>) -> Result<(), DeviceError> {
        self.leave();
        let busy = if first.is_some() { self.units() } else { 0 };
        let sequence = u64::from(first.is_some());
        *lock(&self.mail.state) = MailState { sequence, command: first, busy, ..MailState::default() };
        self.mail.cancel.store(false, Ordering::Relaxed);
        self.until = clock::now().saturating_add(self.options.lease.min(WAIT_MAX));
        for unit in 0..self.units() {
            let work = Unit {
                mail: Arc::clone(&self.mail),
                gpu: Arc::clone(&self.gpu),
                unit,
                units: self.units(),
                piece: self.options.piece,
                lease: self.options.lease.min(WAIT_MAX),
            };
            let thread = threads::spawn("headway-emu-unit", move || work.serve());
            match thread {
                Ok(thread) => self.threads.push(thread),
                Err(error) => {
                    self.leave();
                    return Err(DeviceError::Unavailable {
                        what: "a thread for an emulated resident copier".into(),
                        reason: error.to_string(),
                        remedy: "raise the limit on threads".into(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Has the units leave and waits for that.
    fn leave(&mut self) {
        if !self.home.is_here() {
            // The threads, and whoever held the lock, stayed in the parent.
            std::mem::forget(std::mem::take(&mut self.threads));
            return;
        }
        self.mail.cancel.store(true, Ordering::Relaxed);
        lock(&self.mail.state).leave = true;
        self.mail.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A unit contains the panics of its work; should one escape there is nothing left to save.
            let _ = thread.join();
        }
    }

    /// Gives one command and waits for its end.
    ///
    /// # Safety
    /// `len` bytes are readable from `from` and writable from `to`, do not overlap, and are used by nobody else meanwhile.
    unsafe fn command(&mut self, from: *const u8, to: *mut u8, len: usize) -> Result<(), DeviceError> {
        self.gpu.alive()?;
        let until = clock::now().saturating_add(self.options.patience.min(WAIT_MAX));
        let command = Command { from, to, len };
        let mail = Arc::clone(&self.mail);
        let mut state = lock(&mail.state);
        if state.leave || self.threads.is_empty() || clock::now() > self.until {
            drop(state);
            self.launch(Some(command))?;
            state = lock(&mail.state);
        } else {
            state.sequence += 1;
            state.busy = self.threads.len();
            state.command = Some(command);
            mail.changed.notify_all();
        }
        while state.busy > 0 && !state.failed {
            let left = until.saturating_sub(clock::now());
            if left == Nanos::ZERO {
                break;
            }
            state = wait(&mail, state, left);
        }
        let (busy, failed) = (state.busy, state.failed);
        drop(state);
        if failed {
            self.leave();
            self.gpu.lost.store(true, Ordering::Release);
            return Err(DeviceError::DeviceLost);
        }
        if busy > 0 {
            // No unit may touch the caller's memory after this.
            self.leave();
            let what = format!("the emulated resident copier, {busy} of {} units busy with {len} bytes;", self.units());
            return Err(DeviceError::Timeout { what, after: self.options.patience });
        }
        Ok(())
    }
}

impl Resident for EmuResident {
    fn shape(&self) -> ResidentShape {
        self.shape
    }

    fn copy_in(&mut self, to: &mut Span, from: &[u8]) -> Result<(), DeviceError> {
        check::ordinary(self.gpu.here(), to, from.len(), true)?;
        for (part, at) in from.chunks(STAGE_BYTES).zip((0..).step_by(STAGE_BYTES)) {
            let stage = self.stage.base();
            // SAFETY: the stage is ours alone and no shorter than a part; `to` is claimed for writing and as long as `from`.
            unsafe {
                stage.copy_from_nonoverlapping(part.as_ptr(), part.len());
                self.command(stage, to.as_ptr().add(at), part.len())?;
            }
        }
        Ok(())
    }

    fn copy_out(&mut self, to: &mut [u8], from: &Span) -> Result<(), DeviceError> {
        check::ordinary(self.gpu.here(), from, to.len(), false)?;
        for (part, at) in to.chunks_mut(STAGE_BYTES).zip((0..).step_by(STAGE_BYTES)) {
            let stage = self.stage.base();
            // SAFETY: as in `copy_in`, the other way round.
            unsafe {
                self.command(from.as_ptr().add(at), stage, part.len())?;
                part.as_mut_ptr().copy_from_nonoverlapping(stage, part.len());
            }
        }
        Ok(())
    }

    fn copy(&mut self, from: &Span, to: &mut Span) -> Result<(), DeviceError> {
        let host = if matches!(from.place(), MemoryPlace::Host { .. }) { from.place() } else { to.place() };
        let refuse = |reason: &str| Err(DeviceError::Invalid { what: "resident copy", reason: reason.into() });
        if host != (MemoryPlace::Host { pinned: Some(self.gpu.here().1) }) {
            return refuse("one end must be pinned host memory");
        }
        if to.access() != Access::Write {
            return refuse("the destination was claimed for reading");
        }
        let inward = from.place() == host;
        let (device, len) = if inward { (&*to, from.len()) } else { (from, to.len()) };
        check::ordinary(self.gpu.here(), device, len, inward)?;
        if len == 0 {
            return Ok(());
        }
        // SAFETY: both spans live until this returns, are equally long, and claim what is done with them.
        unsafe { self.command(from.as_ptr(), to.as_ptr(), len) }
    }

    fn park(&mut self) -> Result<(), DeviceError> {
        self.leave();
        self.gpu.alive()
    }
}

impl Drop for EmuResident {
    fn drop(&mut self) {
        self.leave();
        self.gpu.residents.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One unit's thread.
struct Unit {
    mail: Arc<Mail>,
    gpu: Arc<Shared>,
    unit: usize,
    units: usize,
    piece: usize,
    lease: Nanos,
}

impl Unit {
    fn serve(&self) {
        let mut scratch = vec![0; self.piece];
        let mut seen = 0;
        let until = clock::now().saturating_add(self.lease);
        while let Some((command, sequence)) = self.next(seen, until) {
            seen = sequence;
            let done = catch_unwind(AssertUnwindSafe(|| self.copy(command, &mut scratch)));
            let mut state = lock(&self.mail.state);
            state.failed |= done.is_err();
            state.busy -= 1;
            self.mail.changed.notify_all();
        }
    }

    /// The next command; `None` when it is time to leave: the lease ends `until` then, whatever comes.
    fn next(&self, seen: u64, until: Nanos) -> Option<(Command, u64)> {
        let mut state = lock(&self.mail.state);
        loop {
            if state.leave {
                return None;
            }
            if state.sequence > seen
                && let Some(command) = state.command
            {
                return Some((command, state.sequence));
            }
            let left = until.saturating_sub(clock::now());
            if left == Nanos::ZERO && state.busy == 0 {
                // One that finds the lease over takes the others along.
                state.leave = true;
                self.mail.changed.notify_all();
                return None;
            }
            state = wait(&self.mail, state, left.max(Nanos(1_000_000)));
        }
    }

    /// Copies every `units`-th piece through the scratch.
    fn copy(&self, command: Command, scratch: &mut [u8]) {
        let mut at = self.unit * self.piece;
        while at < command.len {
            if self.mail.cancel.load(Ordering::Relaxed) {
                return;
            }
            let len = self.piece.min(command.len - at);
            let began = clock::now();
            // SAFETY: whoever gave the command vouches for both ranges until this unit has ended it; the units' pieces are
            // disjoint; `scratch` has a piece.
            unsafe {
                scratch.as_mut_ptr().copy_from_nonoverlapping(command.from.add(at), len);
                std::hint::black_box(&mut *scratch);
                command.to.add(at).copy_from_nonoverlapping(scratch.as_ptr(), len);
            }
            self.pass(began.saturating_add(self.gpu.piece.time(len)));
            at += self.units * self.piece;
        }
    }

    /// Waits until `time`, or until the command is abandoned.
    fn pass(&self, time: Nanos) {
        while clock::now() < time && !self.mail.cancel.load(Ordering::Relaxed) {
            let left = time.saturating_sub(clock::now());
            if left > Nanos(1_000_000) {
                let state = lock(&self.mail.state);
                if !state.leave {
                    drop(wait(&self.mail, state, left));
                }
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

fn wait<'a>(mail: &Mail, state: MutexGuard<'a, MailState>, time: Nanos) -> MutexGuard<'a, MailState> {
    mail.changed.wait_timeout(state, Duration::from_nanos(time.0)).unwrap_or_else(PoisonError::into_inner).0
}
