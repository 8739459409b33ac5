//! Copiers that stay on the GPU and take commands from a mailbox (Fujii 2013: microcontrollers).
//!
//! `kernels/resident.cuh` states the protocol; here is its other end. What makes it right:
//!
//! - **No command is lost.** A unit writes `left` after the last `completed` that it will ever write in this launch. So a host
//!   that sees `left`, and then `completed` below its command, knows that this launch will not do it, and launches again; the
//!   new launch begins behind `completed` and finds the command where it was written.
//! - **None is done twice.** A launch begins when the one before it in the CUDA stream has ended.
//! - **None is done late.** A call returns when its commands are complete, or when no unit can take them any more: each has
//!   gone, or had not begun when the mailbox was seen to be closed, in which case it will see that before any command. What is
//!   left is then marked as completed. If a unit has begun and does not go, the context is given up as lost.
//! - **It leaves in time.** A launch stays for its lease, counted from its beginning, and goes then whether or not commands come:
//!   others may be waiting for the whole device. By the first point the command that it did not take is the next launch's; launching
//!   anew costs some 10 us once in a lease.
//! - **A small copy out ends with its bytes.** It is one tagged command (`tagged`); that it is completed is only asked before its
//!   place in the mailbox is used again.

mod mailbox;
mod shape;
mod status;
mod tagged;

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use headway_core::models::transfer::ResidentShape;
use headway_core::units::Nanos;
use headway_device::buffer::{Memory as _, MemoryPlace};
use headway_device::gpu::{Resident, ResidentOptions};
use headway_device::{Access, DeviceError, Span};
use headway_os::{clock, copy};

use self::mailbox::{Command, Mailbox};
use self::shape::Launch;
use self::status::Status;
use self::tagged::Tagged;
use crate::abandoned::{abandon, await_rest, leave};
use crate::owned::{Context, Module, Stream};
use crate::pool::{Pool, SlabPiece};

/// Bytes of one command at most: what is between two looks at the time.
const COMMAND_BYTES_MAX: usize = 1 << 20;
/// Pieces of one command at most, so that small pieces do not make a command last for long.
const COMMAND_PIECES_MAX: usize = 1024;
/// Each half of inbox and outbox; with room to start anywhere in a line.
const HALF_BYTES: usize = 256 << 10;
const LINE: usize = 256;
/// Commands under way at once.
const AHEAD: u64 = 2;
/// The longest lease: how long a copier may hold up others.
const LEASE_MAX: Nanos = Nanos(10_000_000_000);
/// How long a unit that has begun gets to leave, beyond the patience for a copy.
const GRACE: Nanos = Nanos(2_000_000_000);
/// Bounds of [`ResidentOptions::piece`].
const PIECE_MIN: usize = 256;
const PIECE_MAX: usize = COMMAND_BYTES_MAX;

const _: () = assert!(AHEAD < mailbox::RING);

/// Every form with why it cannot be used, if it cannot.
pub(crate) fn probe(context: &Arc<Context>) -> Vec<(ResidentShape, Result<(), DeviceError>)> {
    [ResidentShape::Hub, ResidentShape::Gpc, ResidentShape::Gpc4]
        .into_iter()
        .map(|shape| (shape, shape::load(context, shape).map(drop)))
        .collect()
}

/// A resident copier of a GPU.
///
/// While it is on the GPU, whatever waits for the whole context (some frees, synchronisation, the first use of a kernel) waits
/// for it to leave: at the end of its lease, however many copies there are, or at [`Resident::park`].
pub struct CudaResident {
    shape: ResidentShape,
    launch: Launch,
    context: Arc<Context>,
    lease: Nanos,
    patience: Nanos,
    piece: usize,
    /// The last launch, counted from 1.
    generation: u64,
    /// The last command, counted from the one behind [`tagged::BEFORE_FIRST`].
    posted: u64,
    /// All commands up to this one were seen to be complete.
    confirmed: u64,
    phase: Phase,
    /// Dropped only when no unit can use them any more.
    parts: ManuallyDrop<Parts>,
}

/// What the device uses.
struct Parts {
    stream: Arc<Stream>,
    module: Module,
    mailbox: Mailbox,
    outbox: SlabPiece,
    tagged: Tagged,
    status: Status,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// All units of the last launch have gone.
    Parked,
    /// They have begun or will.
    Running,
    /// The mailbox is closed, but some unit has not begun yet: when it does, it leaves.
    Closing,
}

/// Looks at the time once in a while.
struct Watch {
    since: Nanos,
    bound: Nanos,
    looks: u32,
    now: Nanos,
    looked_at_stream: Nanos,
}

impl CudaResident {
    /// Starts a copier whose host memory comes from `pool`, and lets it answer once.
    pub(crate) fn start(
        context: &Arc<Context>,
        shape: ResidentShape,
        options: ResidentOptions,
        pool: &Pool,
    ) -> Result<Self, DeviceError> {
        if !(PIECE_MIN..=PIECE_MAX).contains(&options.piece) || !options.piece.is_multiple_of(16) {
            let reason = format!(
                "its piece of {} bytes must be a multiple of 16 from {PIECE_MIN} to {PIECE_MAX}",
                options.piece
            );
            return Err(DeviceError::Invalid { what: "resident copier", reason });
        }
        let (module, launch) = shape::load(context, shape)?;
        let parts = Parts {
            stream: Arc::new(Stream::new(context)?),
            module,
            mailbox: Mailbox::new(context, pool, 2 * (HALF_BYTES + LINE))?,
            outbox: pool.take(2 * (HALF_BYTES + LINE))?,
            tagged: Tagged::new(pool)?,
            status: Status::new(pool, launch.units as usize, launch.workers as usize)?,
        };
        let mut copier = Self {
            shape,
            launch,
            context: Arc::clone(context),
            lease: options.lease.min(LEASE_MAX),
            patience: options.patience,
            piece: options.piece,
            generation: 0,
            posted: tagged::BEFORE_FIRST,
            confirmed: tagged::BEFORE_FIRST,
            phase: Phase::Parked,
            parts: ManuallyDrop::new(parts),
        };
        copier.parts.status.skip_to(tagged::BEFORE_FIRST);
        let nothing = copier.post(Command { source: 0, destination: 0, bytes: 0 })?;
        // The first launch of a kernel may take long.
        copier.wait(nothing, options.patience.saturating_add(GRACE))?;
        copier.check_places()?;
        Ok(copier)
    }

    /// Number of the multiprocessor of every block that copies, by unit.
    #[must_use]
    pub fn multiprocessors(&self) -> Vec<Vec<u32>> {
        self.parts.status.multiprocessors()
    }

    /// Whether commands go through a window into device memory; else they lie in pinned host memory.
    #[must_use]
    pub fn has_window(&self) -> bool {
        self.parts.mailbox.has_window()
    }

    /// How often it has been launched.
    #[must_use]
    pub fn launches(&self) -> u64 {
        self.generation
    }

    /// No two blocks may share a multiprocessor.
    fn check_places(&self) -> Result<(), DeviceError> {
        let places = self.multiprocessors();
        let mut all: Vec<u32> = places.iter().flatten().copied().collect();
        let blocks = all.len();
        all.sort_unstable();
        all.dedup();
        if all.len() == blocks {
            return Ok(());
        }
        let reason = format!("two of its blocks landed on one multiprocessor: {places:?}");
        Err(shape::unavailable(&self.context, self.shape, reason, "use `hub`"))
    }

    /// Writes a command, and launches the kernel if it is not there.
    fn post(&mut self, command: Command) -> Result<u64, DeviceError> {
        if self.posted + 1 - self.confirmed >= mailbox::RING {
            // Bytes of tagged commands arrive before the word that says that their place is free.
            self.wait(self.posted - AHEAD, self.patience)?;
        }
        self.parts.mailbox.post(self.posted + 1, command)?;
        self.posted += 1;
        if self.phase != Phase::Running {
            self.launch()?;
        }
        Ok(self.posted)
    }

    fn launch(&mut self) -> Result<(), DeviceError> {
        self.context.bind()?;
        self.vacate(self.patience)?;
        self.generation += 1;
        let (mut mailbox, mut status) = (self.parts.mailbox.address(), self.parts.status.address());
        let (mut generation, mut lease) = (self.generation, self.lease.0);
        let (mut piece, mut workers) = (self.piece as u32, self.launch.workers);
        let mut arguments: [*mut c_void; 6] = [
            (&raw mut mailbox).cast(),
            (&raw mut status).cast(),
            (&raw mut generation).cast(),
            (&raw mut lease).cast(),
            (&raw mut piece).cast(),
            (&raw mut workers).cast(),
        ];
        let Parts { stream, module, .. } = &*self.parts;
        // SAFETY: these are the kernel's parameters; mailbox and status live until all units have gone, or for ever. What
        // commands name lives until they are complete or no unit can take them.
        let launched = unsafe {
            match self.launch.cluster {
                None => stream.launch(module, self.launch.grid(), &mut arguments),
                Some(blocks) => stream.launch_clusters(module, self.launch.grid(), blocks, &mut arguments),
            }
        };
        if launched.is_err() {
            self.generation -= 1;
            self.parts.status.skip_to(self.posted);
        } else {
            self.phase = Phase::Running;
        }
        launched
    }

    /// Waits until `command` is complete, launching again when a lease ends before.
    fn wait(&mut self, command: u64, bound: Nanos) -> Result<(), DeviceError> {
        self.wait_until(command, bound, |parts| parts.status.completed(command))?;
        self.confirmed = self.confirmed.max(command);
        Ok(())
    }

    /// Waits until `is_done` says that what `command` was for is done, launching again when a lease ends before.
    fn wait_until(
        &mut self,
        command: u64,
        bound: Nanos,
        mut is_done: impl FnMut(&Parts) -> bool,
    ) -> Result<(), DeviceError> {
        let mut watch = Watch::new(bound);
        while !is_done(&self.parts) {
            if self.phase == Phase::Running && self.parts.status.is_abandoned(command, self.generation) {
                self.vacate(bound)?;
                self.launch()?;
            }
            if watch.pause() {
                self.settle(GRACE)?;
                return Err(self.give_up(command, bound));
            }
            self.look_at_stream(&mut watch)?;
        }
        Ok(())
    }

    /// Closes the mailbox, and waits until all units have gone; when one does not begin in time, all commands are given up.
    fn vacate(&mut self, bound: Nanos) -> Result<(), DeviceError> {
        let mut watch = Watch::new(bound);
        loop {
            self.settle(bound)?;
            if self.phase == Phase::Parked {
                return Ok(());
            }
            if watch.pause() {
                return Err(self.give_up(self.posted, bound));
            }
        }
    }

    /// Closes the mailbox, and waits until no unit can take a command any more.
    fn settle(&mut self, bound: Nanos) -> Result<(), DeviceError> {
        if self.phase == Phase::Parked {
            return Ok(());
        }
        self.context.bind()?;
        let Parts { mailbox, status, .. } = &*self.parts;
        mailbox.close(self.generation)?;
        // Who had not begun when the closing arrived sees it before a command.
        let units = 0..self.launch.units as usize;
        let mut begun: Vec<usize> = units.filter(|&unit| status.has_started(unit, self.generation)).collect();
        let mut watch = Watch::new(bound.max(GRACE));
        loop {
            begun.retain(|&unit| !self.parts.status.has_left(unit, self.generation));
            if begun.is_empty() {
                break;
            }
            if watch.pause() {
                let after = bound.max(GRACE);
                let error = self.timeout("has begun and does not leave", self.posted, after);
                self.lose();
                return Err(error);
            }
            self.look_at_stream(&mut watch)?;
        }
        let gone = self.parts.status.all_left(self.generation);
        self.phase = if gone { Phase::Parked } else { Phase::Closing };
        Ok(())
    }

    /// Gives up all commands, which no unit can take any more.
    fn give_up(&mut self, command: u64, after: Nanos) -> DeviceError {
        let state = if self.phase == Phase::Closing { "has not begun to run" } else { "was parked" };
        let error = self.timeout(state, command, after);
        self.parts.status.skip_to(self.posted);
        error
    }

    fn timeout(&self, state: &str, command: u64, after: Nanos) -> DeviceError {
        let (done, blocks) = self.parts.status.progress(command);
        let command = command - tagged::BEFORE_FIRST;
        let name = self.shape;
        let what = format!(
            "the resident copier `{name}` on GPU {} ({done} of {blocks} blocks have done command {command}; it {state})",
            self.context.ordinal
        );
        DeviceError::Timeout { what, after }
    }

    /// Finds a fault of the kernel.
    fn look_at_stream(&mut self, watch: &mut Watch) -> Result<(), DeviceError> {
        if !watch.looks_at_stream() {
            return Ok(());
        }
        match self.context.bind().and_then(|()| self.parts.stream.is_idle()) {
            Ok(true) if !self.parts.status.all_left(self.generation) => {
                // It ended and did not say so.
                self.lose();
                Err(DeviceError::DeviceLost)
            }
            Ok(_) => Ok(()),
            Err(error) => {
                self.lose();
                Err(error)
            }
        }
    }

    /// Gives up what `held` are spans of, if the context was given up meanwhile: a unit may still use them.
    fn done(&self, result: Result<(), DeviceError>, held: [Option<&Span>; 2]) -> Result<(), DeviceError> {
        if result.is_err() && self.context.is_lost() && self.context.driver.here().is_ok() {
            let held = held.map(|span| span.map(Span::linger));
            abandon(&self.context, Some(&self.parts.stream), held, None);
        }
        result
    }

    /// Whether a unit still works is unknown: nothing that commands name may be used before that is known.
    fn lose(&mut self) {
        self.context.lose();
        self.phase = Phase::Closing;
    }

    /// Bytes of one command.
    fn command_bytes(&self) -> usize {
        (self.piece * COMMAND_PIECES_MAX).min(COMMAND_BYTES_MAX)
    }

    /// The address of a span of this GPU's memory.
    fn device_address(&self, span: &Span) -> Result<u64, DeviceError> {
        match span.place() {
            MemoryPlace::Device { id, .. } if id == self.context.id => Ok(span.as_ptr().addr() as u64),
            place => Err(invalid(format!("one end must be memory of this GPU, not {place:?}"))),
        }
    }

    fn pinned_address(&self, span: &Span) -> Result<u64, DeviceError> {
        match span.place() {
            MemoryPlace::Host { pinned: Some(domain) } if domain == self.context.driver.domain => {
                Ok(span.as_ptr().addr() as u64)
            }
            place => Err(invalid(format!("one end must be host memory pinned for this GPU, not {place:?}"))),
        }
    }

    /// A copy of few bytes from `source` on the device by one tagged command.
    fn take(&mut self, to: &mut [u8], source: u64) -> Result<(), DeviceError> {
        let destination = self.parts.tagged.for_command(self.posted + 1);
        let command = self.post(Command { source, destination, bytes: to.len() as u64 | tagged::FLAG })?;
        // Meanwhile pages that were never touched can appear.
        copy::present(to);
        let mut taken = 0;
        self.wait_until(command, self.patience, |parts| {
            taken += parts.tagged.take(command, taken, &mut to[taken..]);
            taken == to.len()
        })
    }

    /// Carries out a copy cut into commands.
    fn run(&mut self, source: u64, destination: u64, bytes: usize) -> Result<(), DeviceError> {
        let first = self.posted;
        for at in (0..bytes).step_by(self.command_bytes()) {
            let len = self.command_bytes().min(bytes - at) as u64;
            let at = at as u64;
            let posted = self.post(Command { source: source + at, destination: destination + at, bytes: len })?;
            if posted - first > AHEAD {
                self.wait(posted - AHEAD, self.patience)?;
            }
        }
        if self.posted > first { self.wait(self.posted, self.patience) } else { Ok(()) }
    }
}

/// Where chunk `index` of a copy goes in a box, so that both ends agree in their place within a line.
const fn place_in_box(index: u64, device: u64) -> usize {
    (index % AHEAD) as usize * (HALF_BYTES + LINE) + device as usize % LINE
}

impl Resident for CudaResident {
    fn shape(&self) -> ResidentShape {
        self.shape
    }

    fn copy_in(&mut self, to: &mut Span, from: &[u8]) -> Result<(), DeviceError> {
        let result = self.send(to, from);
        self.done(result, [Some(to), None])
    }

    fn copy_out(&mut self, to: &mut [u8], from: &Span) -> Result<(), DeviceError> {
        let result = self.fetch(to, from);
        self.done(result, [Some(from), None])
    }

    fn copy(&mut self, from: &Span, to: &mut Span) -> Result<(), DeviceError> {
        let result = self.exchange(from, to);
        self.done(result, [Some(from), Some(to)])
    }

    fn park(&mut self) -> Result<(), DeviceError> {
        self.vacate(self.patience)?;
        // Its last word is written; what is left of it is over at once.
        await_rest(&self.context, &self.parts.stream, "a resident copier that has left")
    }
}

impl CudaResident {
    /// [`Resident::copy_in`].
    fn send(&mut self, to: &mut Span, from: &[u8]) -> Result<(), DeviceError> {
        self.context.driver.here()?;
        check(to, to.len(), from.len())?;
        let device = self.device_address(to)?;
        let chunk_bytes = self.command_bytes().min(HALF_BYTES);
        for (index, chunk) in (0..).zip(from.chunks(chunk_bytes)) {
            if index >= AHEAD {
                // The half of the inbox is free again.
                self.wait(self.posted - (AHEAD - 1), self.patience)?;
            }
            let destination = device + index * chunk_bytes as u64;
            let at = place_in_box(index, destination);
            self.parts.mailbox.put(at, chunk)?;
            let source = self.parts.mailbox.inbox_address(at);
            self.post(Command { source, destination, bytes: chunk.len() as u64 })?;
        }
        if from.is_empty() { Ok(()) } else { self.wait(self.posted, self.patience) }
    }

    /// [`Resident::copy_out`].
    fn fetch(&mut self, to: &mut [u8], from: &Span) -> Result<(), DeviceError> {
        self.context.driver.here()?;
        if to.len() != from.len() {
            return Err(lengths(from.len(), to.len()));
        }
        let device = self.device_address(from)?;
        if tagged::suits(to.len()) {
            return self.take(to, device);
        }
        let chunk_bytes = self.command_bytes().min(HALF_BYTES);
        let chunks = to.len().div_ceil(chunk_bytes) as u64;
        let outbox = self.parts.outbox.base();
        let first = self.posted;
        for (index, chunk) in (0..).zip(to.chunks_mut(chunk_bytes)) {
            while self.posted - first < chunks.min(index + AHEAD) {
                let next = self.posted - first;
                let source = device + next * chunk_bytes as u64;
                let destination = outbox.addr() as u64 + place_in_box(next, source) as u64;
                let bytes = (from.len() as u64 - next * chunk_bytes as u64).min(chunk_bytes as u64);
                self.post(Command { source, destination, bytes })?;
            }
            // Meanwhile pages that were never touched can appear.
            copy::present(chunk);
            self.wait(first + index + 1, self.patience)?;
            let at = place_in_box(index, device + index * chunk_bytes as u64);
            // SAFETY: the command that wrote these bytes of the outbox is complete, and the next one that does is posted later;
            // a chunk fits into a half.
            unsafe { chunk.as_mut_ptr().copy_from_nonoverlapping(outbox.add(at), chunk.len()) };
        }
        Ok(())
    }

    /// [`Resident::copy`].
    fn exchange(&mut self, from: &Span, to: &mut Span) -> Result<(), DeviceError> {
        self.context.driver.here()?;
        check(to, to.len(), from.len())?;
        let (source, destination) = if matches!(to.place(), MemoryPlace::Device { .. }) {
            (self.pinned_address(from)?, self.device_address(to)?)
        } else {
            let ends = (self.device_address(from)?, self.pinned_address(to)?);
            if tagged::suits(to.len()) {
                return self.take(to.bytes_mut()?, ends.0);
            }
            ends
        };
        self.run(source, destination, from.len())
    }
}

impl Drop for CudaResident {
    fn drop(&mut self) {
        let parked = self.park();
        // SAFETY: `parts` is not used again.
        let parts = unsafe { ManuallyDrop::take(&mut self.parts) };
        if parked.is_ok() {
            drop(parts);
        } else if self.context.driver.here().is_ok() {
            // A unit may still use them.
            let (stream, name) = (Arc::clone(&parts.stream), self.shape);
            let message = format!("the resident copier `{name}` did not leave GPU {}", self.context.ordinal);
            leave(&self.context, Some(&stream), parts, Some(&message));
        } else {
            // In a forked child nothing of them can be given back.
            std::mem::forget(parts);
        }
    }
}

impl Watch {
    /// Spins before the thread lets others run.
    const SPIN: Nanos = Nanos(50_000);
    /// Between two questions to the driver.
    const STREAM: Nanos = Nanos(1_000_000);

    fn new(bound: Nanos) -> Self {
        let since = clock::now();
        Self { since, bound, looks: 0, now: since, looked_at_stream: since }
    }

    /// Waits for a moment; whether the bound has passed.
    fn pause(&mut self) -> bool {
        self.looks = self.looks.wrapping_add(1);
        let spent = self.now.saturating_sub(self.since);
        if spent > Self::SPIN {
            headway_os::sched::yield_now();
        } else {
            std::hint::spin_loop();
            if !self.looks.is_multiple_of(16) {
                return false;
            }
        }
        self.now = clock::now();
        self.now.saturating_sub(self.since) > self.bound
    }

    fn looks_at_stream(&mut self) -> bool {
        let due = self.now.saturating_sub(self.looked_at_stream) > Self::STREAM;
        if due {
            self.looked_at_stream = self.now;
        }
        due
    }
}

fn check(to: &Span, to_len: usize, from_len: usize) -> Result<(), DeviceError> {
    if to_len != from_len {
        return Err(lengths(from_len, to_len));
    }
    if to.access() != Access::Write {
        return Err(invalid("the destination was claimed for reading".into()));
    }
    Ok(())
}

fn lengths(from: usize, to: usize) -> DeviceError {
    invalid(format!("source and destination differ in length: {from} and {to} bytes"))
}

fn invalid(reason: String) -> DeviceError {
    DeviceError::Invalid { what: "resident copy", reason }
}
