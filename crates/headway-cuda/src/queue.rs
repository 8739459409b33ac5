//! A CUDA stream as a [`Queue`].

use std::collections::VecDeque;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

use headway_core::units::Nanos;
use headway_device::buffer::{Memory, MemoryPlace};
use headway_device::gpu::{Completion, Mover, Operation, Piece, Queue};
use headway_device::work::{Argument, DeviceCode, Work};
use headway_device::{DeviceError, LaunchGrid, Span, check};
use headway_os::clock;

use crate::abandoned::{DROP_MAX, abandon, await_rest, message};
use crate::driver::lock;
use crate::driver::table::Address;
use crate::owned::{Context, CopyKind, CudaEvent, Module, Stream};
use crate::pieces::{self, Batch, Unit};
use crate::pool::{self, Pool};
use crate::timeline::Clock;
use crate::words;

/// Works that one GPU keeps loaded.
const WORKS_MAX: usize = 256;
/// Arguments of one launch.
const ARGUMENTS_MAX: usize = 16;
/// Blocks of the copy kernel; more than any GPU runs at a time.
const BLOCKS_MAX: u32 = 4096;
/// An operation that ends lets others in from this part of a turn on: chunks of staged copies, where the word costs nothing.
const CHUNK_PART: usize = 2;
/// Size of the smallest table.
const TABLE_MIN: usize = 4096;

/// Entries loaded for one GPU. What has the same content is loaded once.
#[derive(Default)]
pub(crate) struct Modules {
    loaded: Mutex<Vec<LoadedEntry>>,
}

struct LoadedEntry {
    /// Kept, so that no other code can come to lie at its address.
    code: DeviceCode,
    entry: String,
    module: Arc<Module>,
}

impl Modules {
    /// The entry of a work, loaded at its first use.
    pub(crate) fn of(&self, context: &Arc<Context>, work: &dyn Work) -> Result<Arc<Module>, DeviceError> {
        self.get(context, work.id(), &work.code(), work.entry())
    }

    /// The entry of the copy kernel.
    pub(crate) fn of_pieces(&self, context: &Arc<Context>) -> Result<Arc<Module>, DeviceError> {
        let (id, ptx, entry) = pieces::KERNEL;
        self.get(context, id, &DeviceCode::Ptx(ptx), entry)
    }

    fn get(
        &self,
        context: &Arc<Context>,
        id: &str,
        code: &DeviceCode,
        entry: &str,
    ) -> Result<Arc<Module>, DeviceError> {
        let mut loaded = lock(&self.loaded);
        // Most launches are of code that was launched before, and need not look at its bytes.
        let at_place = |of: &&LoadedEntry| std::ptr::eq(of.code.bytes(), code.bytes()) && of.entry == entry;
        let alike = |of: &&LoadedEntry| of.code.bytes() == code.bytes() && of.entry == entry;
        if let Some(known) = loaded.iter().find(at_place).or_else(|| loaded.iter().find(alike)) {
            return Ok(Arc::clone(&known.module));
        }
        if loaded.len() == WORKS_MAX {
            return Err(DeviceError::Refused { limit: "works of one GPU", max: WORKS_MAX as u64 });
        }
        let module = Arc::new(Module::load(context, id, code.bytes(), entry)?);
        loaded.push(LoadedEntry { code: code.clone(), entry: entry.to_owned(), module: Arc::clone(&module) });
        Ok(module)
    }
}

/// A queue of moves on one GPU.
///
/// An event follows every move, and on queues that keep time another goes before it. A move of which the driver refuses a
/// part is waited for before the error is returned. What does not end within two seconds of that, or of the queue's being dropped, is
/// left to the graveyard with the stream, its events and its pinned memory.
pub(crate) struct CudaQueue {
    /// Of this GPU first, then of the peers met so far.
    contexts: Vec<Arc<Context>>,
    modules: Arc<Modules>,
    pool: Arc<Pool>,
    stream: Arc<Stream>,
    pending: VecDeque<Pending>,
    outstanding_max: usize,
    /// On queues that keep time.
    clock: Option<Arc<Clock>>,
    /// When the GPU ended the operation that was taken last, as far as was told.
    last_finished: Nanos,
    spare_events: Vec<CudaEvent>,
    spare_tables: Vec<pool::SlabPiece>,
    batch: Batch,
    turns: Turns,
}

/// When a queue lets other streams' copies out of the GPU in.
#[derive(Default)]
struct Turns {
    /// Bytes copied out since it did last.
    bytes: usize,
    /// The word that is written then, pinned; it must outlive what is queued.
    word: Option<Arc<pool::SlabPiece>>,
    /// It cannot be written here.
    impossible: bool,
}

struct Pending {
    tag: u64,
    what: Operation,
    /// What the copy kernel reads.
    table: Option<pool::SlabPiece>,
    word: Option<Arc<pool::SlabPiece>>,
    start: Option<CudaEvent>,
    end: CudaEvent,
    submitted: Nanos,
}

/// One end of a copy.
#[derive(Clone, Copy)]
enum End {
    Host,
    /// A GPU, by its position among the queue's contexts; 0 = this one.
    Gpu(usize),
}

/// Source and destination.
type Route = (End, End);

/// A move that was checked.
enum Plan {
    Nothing,
    Copy(Route),
    Relay(Route, Route),
    Each(Route),
    Batch,
    Kernel { module: Arc<Module>, table: pool::SlabPiece, count: u32, blocks: u32 },
    Launch(Arc<Module>),
}

impl CudaQueue {
    pub(crate) fn new(
        context: &Arc<Context>,
        modules: &Arc<Modules>,
        pool: &Arc<Pool>,
        outstanding_max: usize,
        clock: Option<Arc<Clock>>,
    ) -> Result<Self, DeviceError> {
        let stream = Arc::new(Stream::new(context)?);
        // Loaded now: later it could wait for what runs on the GPU. Where it cannot be, the moves that need it say why.
        let _ = modules.of_pieces(context);
        Ok(Self {
            contexts: vec![Arc::clone(context)],
            modules: Arc::clone(modules),
            pool: Arc::clone(pool),
            stream,
            pending: VecDeque::new(),
            outstanding_max,
            clock,
            last_finished: Nanos::ZERO,
            spare_events: Vec::new(),
            spare_tables: Vec::new(),
            batch: Batch::default(),
            turns: Turns::default(),
        })
    }

    fn event(&mut self) -> Result<CudaEvent, DeviceError> {
        let context = &self.contexts[0];
        match self.spare_events.pop() {
            Some(event) => Ok(event),
            None if self.clock.is_some() => CudaEvent::new(context),
            None => CudaEvent::untimed(context),
        }
    }

    /// Where `span` is, which may be used by this queue.
    fn end(&mut self, span: &Span) -> Result<End, DeviceError> {
        let MemoryPlace::Device { id, .. } = span.place() else { return Ok(End::Host) };
        if let Some(at) = self.contexts.iter().position(|context| context.id == id) {
            return Ok(End::Gpu(at));
        }
        let Some(peer) = Context::of(&self.contexts[0].driver, id) else {
            return Err(DeviceError::Invalid { what: "copy", reason: "memory of a device that is closed".into() });
        };
        self.contexts.push(peer);
        Ok(End::Gpu(self.contexts.len() - 1))
    }

    fn route(&mut self, from: &Span, to: &Span) -> Result<Route, DeviceError> {
        Ok((self.end(from)?, self.end(to)?))
    }

    fn plan(&mut self, what: &Operation) -> Result<Plan, DeviceError> {
        let own = &self.contexts[0];
        let known = |peer| self.contexts.iter().any(|context| context.id == peer);
        check::operation((own.id, own.driver.domain), what, |peer| known(peer) || own.reaches(peer))?;
        match what {
            Operation::Copy { from, .. } | Operation::Relay { from, .. } if from.is_empty() => Ok(Plan::Nothing),
            Operation::Copy { from, to } => Ok(Plan::Copy(self.route(from, to)?)),
            Operation::Relay { from, through, to } => {
                Ok(Plan::Relay(self.route(from, through)?, self.route(through, to)?))
            }
            Operation::Pieces { from, to, pieces, by } => match *by {
                Mover::Loop => Ok(Plan::Each(self.route(from, to)?)),
                Mover::Batch => pieces::check_batch(&own.driver).map(|()| Plan::Batch),
                Mover::Kernel { blocks } => self.plan_kernel(address(from), address(to), pieces, blocks),
            },
            Operation::Launch { work, arguments, .. } => {
                if arguments.len() > ARGUMENTS_MAX {
                    return Err(DeviceError::Refused { limit: "arguments of one launch", max: ARGUMENTS_MAX as u64 });
                }
                self.modules.of(own, work.as_ref()).map(Plan::Launch)
            }
        }
    }

    fn plan_kernel(&mut self, from: Address, to: Address, pieces: &[Piece], blocks: u32) -> Result<Plan, DeviceError> {
        if blocks > BLOCKS_MAX {
            return Err(DeviceError::Refused { limit: "blocks of the copy kernel", max: BLOCKS_MAX.into() });
        }
        let total = pieces.iter().map(|piece| piece.len as u64).fold(0, u64::saturating_add);
        let unit = pieces::unit_bytes(total, blocks);
        // At most one entry a piece and 128 a block: it fits.
        let count = pieces::unit_count(pieces, unit) as u32;
        if count == 0 {
            return Ok(Plan::Nothing);
        }
        let module = self.modules.of_pieces(&self.contexts[0])?;
        let table = self.table(count)?;
        for (index, entry) in pieces::units(from, to, pieces, unit).enumerate() {
            // SAFETY: the table has room for `count` entries, which is how many `units` gives; its start is aligned to 256
            // bytes, and nobody else uses it.
            unsafe { table.base().cast::<Unit>().add(index).write(entry) };
        }
        Ok(Plan::Kernel { module, table, count, blocks })
    }

    /// Pinned memory for `count` entries.
    fn table(&mut self, count: u32) -> Result<pool::SlabPiece, DeviceError> {
        let bytes = count as usize * size_of::<Unit>();
        match self.spare_tables.iter().position(|table| table.bytes() >= bytes) {
            Some(at) => Ok(self.spare_tables.swap_remove(at)),
            None => self.pool.take(bytes.next_power_of_two().max(TABLE_MIN)),
        }
    }

    /// Queues what was planned, between the events; the context is current.
    fn queue(
        &mut self,
        what: &Operation,
        plan: &Plan,
        start: Option<&CudaEvent>,
        end: &CudaEvent,
    ) -> Result<(), DeviceError> {
        if let Some(start) = start {
            start.record(&self.stream)?;
        }
        match (plan, what) {
            (Plan::Copy(route), Operation::Copy { from, to }) => {
                self.copy(*route, address(from), address(to), from.len())?
            }
            (Plan::Relay(first, second), Operation::Relay { from, through, to }) => {
                self.copy(*first, address(from), address(through), from.len())?;
                self.copy(*second, address(through), address(to), from.len())?;
            }
            (Plan::Each(route), Operation::Pieces { from, to, pieces, .. }) => {
                for &Piece { from: at, to: target, len } in pieces.iter().filter(|piece| piece.len > 0) {
                    self.copy(*route, address(from) + at as u64, address(to) + target as u64, len)?;
                }
            }
            (Plan::Batch, Operation::Pieces { from, to, pieces, .. }) => {
                let (own, ends) = (&self.contexts[0], (address(from), address(to)));
                // SAFETY: the pieces lie within the spans, which live until the end event is reached, or for ever; the ends
                // are memory of GPUs or pinned, and the destination is claimed for writing (`check::operation`).
                own.note(unsafe { self.batch.queue(&own.driver, ends, pieces, &self.stream) })?;
            }
            (Plan::Kernel { module, table, count, blocks }, _) => {
                let (mut table, mut count) = (table.base().expose_provenance() as Address, *count);
                let grid = LaunchGrid::line(*blocks, pieces::KERNEL_THREADS, 0);
                let mut arguments: [*mut c_void; 2] = [(&raw mut table).cast(), (&raw mut count).cast()];
                // SAFETY: the kernel takes a table and its length; the entries lie within the spans, of which this GPU
                // reaches both (`check::operation`). Spans and table live until the end event is reached, or for ever.
                unsafe { self.stream.launch(module, grid, &mut arguments) }?;
            }
            (Plan::Launch(module), Operation::Launch { grid, arguments, .. }) => {
                self.launch(module, *grid, arguments)?
            }
            _ => {}
        }
        end.record(&self.stream)
    }

    /// Queues a copy out of this GPU that lets other streams in.
    fn copy_out(&mut self, source: Address, target: Address, bytes: usize) -> Result<(), DeviceError> {
        // The engine serves one stream until that stream reaches a word to be written: a small copy beside it waits for about a
        // turn, not for all that is queued (`docs/small-copies.md`). Shorter turns cost the bulk copy more of its rate.
        let turn = self.contexts[0].turn_bytes();
        let mut at = 0;
        while at < bytes {
            if self.turns.bytes >= turn {
                self.let_others_in()?;
            }
            let len = (bytes - at).min(turn - self.turns.bytes);
            let (from, to) = (source + at as u64, target + at as u64);
            // SAFETY: as in `copy`.
            unsafe { self.stream.copy(CopyKind::DeviceToHost, from, to, len) }?;
            (at, self.turns.bytes) = (at + len, self.turns.bytes + len);
            if self.turns.bytes == turn || (at == bytes && self.turns.bytes >= turn / CHUNK_PART) {
                self.let_others_in()?;
            }
        }
        Ok(())
    }

    fn let_others_in(&mut self) -> Result<(), DeviceError> {
        self.turns.bytes = 0;
        if self.turns.impossible {
            return Ok(());
        }
        if self.turns.word.is_none() {
            // Without memory for it copies are made all the same.
            self.turns.word = self.pool.take(size_of::<u32>()).ok().map(Arc::new);
            self.contexts[0].bind()?;
        }
        let Some(word) = &self.turns.word else { return Ok(()) };
        let (context, word) = (&self.contexts[0], word.base().expose_provenance() as Address);
        // SAFETY: the word is this queue's, and the operations that are queued hold it until they have ended.
        self.turns.impossible = !unsafe { words::try_write(context, self.stream.handle(), word) }?;
        Ok(())
    }

    fn copy(&mut self, (from, to): Route, source: Address, target: Address, bytes: usize) -> Result<(), DeviceError> {
        if let (End::Gpu(_), End::Host) = (from, to) {
            return self.copy_out(source, target, bytes);
        }
        let kind = match (from, to) {
            (End::Host, _) => CopyKind::HostToDevice,
            (_, End::Host) => CopyKind::DeviceToHost,
            (End::Gpu(from), End::Gpu(to)) if from == to => CopyKind::Within,
            (End::Gpu(from), End::Gpu(to)) => CopyKind::Between(&self.contexts[from], &self.contexts[to]),
        };
        // SAFETY: the range lies within spans whose places, access and lengths were checked (`check::operation`), and which live
        // until the end event is reached, or for ever.
        unsafe { self.stream.copy(kind, source, target, bytes) }
    }

    fn launch(&self, module: &Module, grid: LaunchGrid, arguments: &[Argument]) -> Result<(), DeviceError> {
        // A value of 32 bits lies in the low half of its place, which comes first on every machine that has the driver.
        let mut values = [0u64; ARGUMENTS_MAX];
        let mut places = [null_mut::<c_void>(); ARGUMENTS_MAX];
        for ((value, place), argument) in values.iter_mut().zip(&mut places).zip(arguments) {
            *value = match argument {
                Argument::Memory(span) => address(span),
                Argument::Int(int) => u64::from(int.cast_unsigned()),
                Argument::Wide(wide) => *wide,
                Argument::Null => 0,
            };
            *place = (&raw mut *value).cast();
        }
        // SAFETY: that the entry takes these arguments, and stays within the spans, is the promise of `Work`; the spans live
        // until the end event is reached, or for ever.
        unsafe { self.stream.launch(module, grid, &mut places[..arguments.len()]) }
    }

    fn keep(&mut self, table: Option<pool::SlabPiece>, events: impl IntoIterator<Item = CudaEvent>) {
        self.spare_tables.extend(table);
        self.spare_events.extend(events);
    }
}

impl Queue for CudaQueue {
    fn submit(&mut self, what: Operation, tag: u64) -> Result<(), DeviceError> {
        if self.pending.len() >= self.outstanding_max {
            let max = self.outstanding_max as u64;
            return Err(DeviceError::Refused { limit: "outstanding_per_engine_max", max });
        }
        self.contexts[0].driver.here()?;
        let plan = self.plan(&what)?;
        self.contexts[0].bind()?;
        let start = match &self.clock {
            Some(clock) => {
                clock.maintain_for_more()?;
                Some(self.event()?)
            }
            None => None,
        };
        let end = self.event()?;
        let submitted = clock::now();
        let queued = self.queue(&what, &plan, start.as_ref(), &end);
        let table = if let Plan::Kernel { table, .. } = plan { Some(table) } else { None };
        match queued {
            Ok(()) => {
                if let Some(clock) = &self.clock {
                    clock.begin();
                }
                let word = self.turns.word.clone();
                self.pending.push_back(Pending { tag, what, table, word, start, end, submitted });
                Ok(())
            }
            Err(error) => {
                // A part of it may run: what it uses is released when that has ended.
                let own = &self.contexts[0];
                if await_rest(own, &self.stream, "a part of a refused operation").is_ok() {
                    self.keep(table, start.into_iter().chain([end]));
                } else {
                    let held = (what, table, self.turns.word.clone(), start, end, Arc::clone(&self.modules));
                    abandon(own, Some(&self.stream), held, Some(&message(own, 1)));
                }
                Err(error)
            }
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        let oldest = self.pending.front()?;
        let own = &self.contexts[0];
        // Whatever made the context be given up: this operation may end well all the same.
        let reached = own.bind_anyway().and_then(|()| {
            if let Some(clock) = self.clock.as_ref().filter(|_| !own.is_lost()) {
                clock.maintain()?;
            }
            oldest.end.is_reached()
        });
        if reached == Ok(false) {
            return None;
        }
        let noticed = clock::now();
        let Pending { tag, what, table, word, start, end, submitted } = self.pending.pop_front()?;
        if let Some(clock) = &self.clock {
            clock.end(1);
        }
        if let Err(error) = reached {
            // Whether it still runs is to be found out, and nothing after it can be known either.
            let held = (what, table, word, start, end, Arc::clone(&self.modules));
            abandon(own, Some(&self.stream), held, None);
            return Some(Completion { tag, result: Err(error), started: submitted, finished: noticed, noticed });
        }
        drop(what);
        // What is certain narrows what was measured: it ran after its submission and the operation ahead of it, and ended before
        // it was noticed.
        let earliest = submitted.max(self.last_finished).min(noticed);
        let times = self.clock.as_ref().zip(start.as_ref()).map(|(clock, start)| clock.times_of(start, &end));
        let (started, finished, result) = match times {
            Some(Ok((started, finished))) => (started, finished, Ok(())),
            Some(Err(error)) => (earliest, noticed, Err(error)),
            None => (earliest, noticed, Ok(())),
        };
        let started = started.clamp(earliest, noticed);
        let finished = finished.clamp(started, noticed);
        if self.clock.is_some() {
            self.last_finished = finished;
        }
        self.keep(table, start.into_iter().chain([end]));
        Some(Completion { tag, result, started, finished, noticed })
    }

    fn outstanding(&self) -> usize {
        self.pending.len()
    }
}

impl Drop for CudaQueue {
    fn drop(&mut self) {
        let since = clock::now();
        while !self.pending.is_empty() {
            if self.poll().is_some() {
                continue;
            }
            if clock::now().saturating_sub(since) > DROP_MAX {
                let (own, pending) = (&self.contexts[0], std::mem::take(&mut self.pending));
                let message = message(own, pending.len());
                if let Some(clock) = &self.clock {
                    clock.end(pending.len());
                }
                abandon(own, Some(&self.stream), (pending, Arc::clone(&self.modules)), Some(&message));
                return;
            }
            headway_os::sched::yield_now();
        }
    }
}

fn address(span: &Span) -> Address {
    span.as_ptr().expose_provenance() as Address
}
