//! Many pieces in one request (specification of transfers, 1.7).
//!
//! Pieces of ordinary memory are gathered into pinned slots, or scattered from them, by a few threads, one block of pieces
//! at a time, while the device moves other blocks: by one copy where its end is continuous, else by a kernel or the mover
//! asked for.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use headway_core::decisions::chooser::ChoiceReason;
use headway_core::models::transfer::{Direction, HostMemory, Method};
use headway_core::units::Bytes;
use headway_device::gpu::{Mover, Operation, Piece};
use headway_device::{Access, Buffer, DeviceError, Span};
use headway_os::clock;

use super::bounce::SLOT;
use super::engine::{EngineMoved, QueueStep, Run, Stopped};
use super::error::chain;
use super::execute::{excluded, has_window, kernel_blocks};
use super::gpu::CopierGpu;
use super::pieces::{Blocks, arrange, blocks, continuous, destinations, sources};
use super::request::{self, Host, claim};
use super::{At, Copier, CopyError, CopyReport, How, ManyBy};

/// Threads that gather at most: one moves some 11 GB/s, and the link takes 55.
pub(super) const THREADS_MAX: usize = 6;
/// Below this, waking threads costs more than they save: half of what one thread moves in 100 us.
const INLINE_MAX: usize = 512 << 10;
/// Pieces this long on average go one by one: each hides its own set-up.
const LONG: usize = 8 << 20;
/// Through a window, stores win for a request of up to this size (specification of transfers, 3.3), loads for up to that.
const WINDOW_IN_MAX: usize = 256 << 10;
const WINDOW_OUT_MAX: usize = 2 << 10;

impl ManyBy {
    /// By a kernel with as many blocks as the copier launches where it chooses.
    #[must_use]
    pub const fn kernel(direction: Direction) -> Self {
        Self::Queue(Mover::Kernel { blocks: kernel_blocks(direction) })
    }

    /// The method under which reports and profiles name it; [`Mover::Batch`] is the driver's own method for many pieces.
    #[must_use]
    pub const fn method(self) -> Method {
        match self {
            Self::Queue(Mover::Loop) => Method::Dma,
            Self::Queue(Mover::Batch) => Method::Pageable,
            Self::Queue(Mover::Kernel { .. }) => Method::Kernel,
            Self::Gather => Method::Staged,
            Self::Window => Method::Window(None),
            Self::Resident => Method::Resident(None),
        }
    }
}

/// One request.
pub(super) struct Many<'a> {
    pub(super) gpu: usize,
    pub(super) direction: Direction,
    pub(super) device: At<'a>,
    pub(super) host: Host<'a>,
}

/// Ordered and checked pieces, and what the memory at both ends is like.
struct Checked {
    pieces: Vec<Piece>,
    bytes: usize,
    pinned: bool,
}

impl Checked {
    /// The host memory whose curves it goes by.
    const fn memory(&self) -> HostMemory {
        if self.pinned { HostMemory::Pinned } else { HostMemory::Touched }
    }
}

/// Where the host's and the device's pieces are; the other way round for copies out.
struct Ends<'a> {
    direction: Direction,
    host: &'a Buffer,
    device: At<'a>,
}

impl Copier {
    /// Makes `many` by `by`, or by the mover that is best as far as known.
    pub(super) fn many(&self, many: Many<'_>, pieces: &[Piece], by: Option<ManyBy>) -> Result<CopyReport, CopyError> {
        let (gpu, direction) = (many.gpu, many.direction);
        let result = self.many_report(many, pieces, by);
        if let Err(CopyError::DeviceLost) = result {
            self.gpus[gpu].lose();
        }
        Self::log_end(gpu, direction, &result);
        result
    }

    fn many_report(&self, mut many: Many<'_>, pieces: &[Piece], by: Option<ManyBy>) -> Result<CopyReport, CopyError> {
        let started = clock::now();
        let gpu = &self.gpus[many.gpu];
        if gpu.is_lost() {
            return Err(CopyError::DeviceLost);
        }
        let request = many.arrange(gpu, pieces)?;
        let chosen = by.map_or_else(|| self.mover(&many, &request), Some);
        let mut instead_of = None;
        let (method, moved) = match chosen {
            _ if request.bytes == 0 => (chosen.map_or(Method::Pageable, ManyBy::method), EngineMoved::default()),
            None => self.one_by_one(&mut many, &request)?,
            Some(mover) => match self.many_by(&mut many, &request, mover) {
                Err(error) if by.is_none() && error.absence().is_some() => {
                    instead_of = Some((mover.method(), chain(&error)));
                    self.one_by_one(&mut many, &request)?
                }
                moved => (mover.method(), moved?),
            },
        };
        if let Some((absent, reason)) = &instead_of {
            let name = &gpu.device.description().name;
            self.events.tell_once(format!("`{name}`: `{absent}` cannot be used, `{method}` is used instead"), reason);
        }
        let chosen = chosen.filter(|_| instead_of.is_none());
        let bytes = Bytes(request.bytes as u64);
        let (direction, memory, pieces) = (many.direction, request.memory(), request.pieces.len() as u64);
        let chooser = &self.choosers[many.gpu];
        let predicted =
            chosen.and_then(|by| chooser.lock().predicted_many(by.method(), direction, memory, pieces, bytes));
        Ok(CopyReport {
            method,
            reason: match &instead_of {
                Some((absent, _)) => ChoiceReason::Absent(*absent),
                None if by.is_some() => ChoiceReason::Named,
                None if predicted.is_some() => ChoiceReason::Measured,
                None => ChoiceReason::BuiltIn,
            },
            bytes,
            chunks: moved.chunks,
            predicted,
            observed: clock::now().saturating_sub(started),
            waited: moved.waited,
            ahead: moved.ahead,
            cpu: None,
            instead_of,
        })
    }

    /// The mover for `request`; `None` = its pieces one by one, as single copies.
    fn mover(&self, many: &Many<'_>, request: &Checked) -> Option<ManyBy> {
        let kernel = ManyBy::Queue(Mover::Kernel { blocks: self.kernel_blocks(many.direction) });
        let pieces = request.pieces.len();
        if pieces <= 1 || request.bytes / pieces >= LONG {
            return None;
        }
        let windowed = many.device.buffer.window().is_some();
        let window_max = if many.direction == Direction::D2h { WINDOW_OUT_MAX } else { WINDOW_IN_MAX };
        let measured = self.measured_mover(many, request, kernel, windowed);
        Some(match request.pinned {
            _ if measured.is_some() => measured?,
            _ if windowed && request.bytes <= window_max => ManyBy::Window,
            true if self.options.no_sm => ManyBy::Queue(Mover::Batch),
            true => kernel,
            false => ManyBy::Gather,
        })
    }

    /// The mover that the profile says is fastest, if it has two to compare.
    fn measured_mover(&self, many: &Many<'_>, request: &Checked, kernel: ManyBy, windowed: bool) -> Option<ManyBy> {
        let sm = !self.options.no_sm;
        let movers = [
            (ManyBy::Queue(Mover::Loop), request.pinned),
            (ManyBy::Queue(Mover::Batch), request.pinned),
            (kernel, request.pinned && sm),
            (ManyBy::Gather, !request.pinned),
            (ManyBy::Window, windowed),
            (ManyBy::Resident, sm && self.options.resident),
        ];
        let (bytes, pieces) = (Bytes(request.bytes as u64), request.pieces.len() as u64);
        let (direction, memory) = (many.direction, request.memory());
        let chooser = self.choosers[many.gpu].lock();
        let cost = |by: ManyBy| chooser.predicted_many(by.method(), direction, memory, pieces, bytes);
        let movers = movers.into_iter().filter(|(_, usable)| *usable);
        let costs: Vec<_> = movers.filter_map(|(by, _)| cost(by).map(|cost| (cost, by))).collect();
        if costs.len() < 2 { None } else { costs.into_iter().min_by_key(|(cost, _)| *cost).map(|(_, by)| by) }
    }

    fn many_by(&self, many: &mut Many<'_>, request: &Checked, by: ManyBy) -> Result<EngineMoved, CopyError> {
        let method = by.method();
        let sm = matches!(by, ManyBy::Queue(Mover::Kernel { .. }) | ManyBy::Resident);
        if sm && self.options.no_sm {
            return Err(excluded(method, "no_sm"));
        }
        let refuse = |error| CopyError::device(method, error, 0, 0);
        match by {
            ManyBy::Window => {
                let moved = many.window(request).map_err(refuse)?;
                self.gpus[many.gpu].copied_past_line(many.direction, request.bytes);
                Ok(moved)
            }
            ManyBy::Resident => {
                let gpu = &self.gpus[many.gpu];
                let copier = gpu.resident(None).map_err(refuse)?;
                let mut copier = copier.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                let moved = many.each(request, |mut span, host| match host {
                    Host::In(from) => copier.copy_in(&mut span, from),
                    Host::Out(to) => copier.copy_out(to, &span),
                    Host::Held(_) => unreachable!("requests of many pieces name slices"),
                });
                let moved = moved.map_err(refuse)?;
                gpu.copied_past_line(many.direction, request.bytes);
                Ok(moved)
            }
            ManyBy::Queue(mover) if request.pinned => self.direct(many, request, mover, method),
            ManyBy::Queue(mover) => self.gathered(many, request, Some(mover), method),
            ManyBy::Gather => self.gathered(many, request, None, method),
        }
    }

    fn one_by_one(&self, many: &mut Many<'_>, request: &Checked) -> Result<(Method, EngineMoved), CopyError> {
        let mut total = EngineMoved::default();
        let mut method = Method::Pageable;
        let gpu = many.gpu;
        let direction = many.direction;
        for piece in &request.pieces {
            let (device, host) = many.one(piece);
            let mut copy = request::Request::new(gpu, direction, device, host, piece.len);
            let (decision, moved) = self.run(&mut copy, How::Auto)?;
            total.chunks += moved.chunks;
            total.waited = total.waited.saturating_add(moved.waited);
            method = decision.choice().method;
        }
        Ok((method, total))
    }

    /// Pinned memory: the mover reaches both ends.
    fn direct(
        &self,
        many: &mut Many<'_>,
        request: &Checked,
        by: Mover,
        method: Method,
    ) -> Result<EngineMoved, CopyError> {
        let gpu = &self.gpus[many.gpu];
        let cancel = self.cancel.watch();
        let bounds = self.bounds(&cancel);
        let limited = gpu.engine(many.direction).shared.limit.enter();
        let size = usize::try_from(self.options.limits.chunk_max.0).unwrap_or(usize::MAX).clamp(1, limited.bytes);
        let blocks = blocks(&request.pieces, size);
        many.lend(Some(gpu), |ends| {
            let mut run = ends.engine(gpu, Some(by)).open(
                gpu.device.as_ref(),
                blocks.blocks.len(),
                Bytes(size as u64),
                bounds,
            )?;
            for block in &blocks.blocks {
                let pieces = blocks.of(block);
                let host = if ends.direction == Direction::D2h { destinations(pieces) } else { sources(pieces) };
                let host = At { buffer: ends.host, offset: host.start }
                    .over(host.len(), ends.direction == Direction::D2h)
                    .map_err(Stopped::early)?;
                run.submit(ends.step(pieces, host, None, Some(by), block.bytes).map_err(Stopped::early)?)?;
            }
            run.finish()
        })
        .map_err(|stopped| stopped.error(method, bounds))
        .inspect(|_| tell_of_kernel(gpu, many.direction, request, Some(by)))
    }

    /// Ordinary memory: through pinned slots; `None` = the best mover on the device's side.
    fn gathered(
        &self,
        many: &mut Many<'_>,
        request: &Checked,
        by: Option<Mover>,
        method: Method,
    ) -> Result<EngineMoved, CopyError> {
        let gpu = &self.gpus[many.gpu];
        let cancel = self.cancel.watch();
        let bounds = self.bounds(&cancel);
        let thread_pool = (!self.options.no_threads && request.bytes > INLINE_MAX).then(|| self.thread_pool());
        let thread_pool = thread_pool.filter(|thread_pool| thread_pool.threads() > 0);
        let threads = thread_pool.map_or(0, |thread_pool| thread_pool.threads());
        // Every thread has something to do in requests that are not large, too.
        let limited = gpu.engine(many.direction).shared.limit.enter();
        let size = request.bytes.div_ceil(threads.max(1) * 2).clamp(64 << 10, SLOT).min(limited.bytes);
        let blocks = Arc::new(blocks(&request.pieces, size));
        let device_start: fn(&Piece) -> usize =
            if many.direction == Direction::D2h { |piece| piece.from } else { |piece| piece.to };
        let whole = blocks.blocks.iter().all(|block| continuous(blocks.of(block), device_start));
        let by = match by {
            Some(by) => Some(by),
            None if whole => None,
            None if self.options.no_sm => Some(Mover::Batch),
            None => Some(Mover::Kernel { blocks: self.kernel_blocks(many.direction) }),
        };
        let wanted = (2 * threads).max(3).min(blocks.blocks.len());
        let slots = gpu
            .bounce
            .await_slots(gpu.device.as_ref(), wanted, self.options.limits.pinned_max, bounds)
            .map_err(|stopped| stopped.error(method, bounds))?;
        many.lend(None, |ends| {
            let run =
                ends.engine(gpu, by).open(gpu.device.as_ref(), blocks.blocks.len(), Bytes(size as u64), bounds)?;
            let (sender, receiver) = channel();
            let flow = Flow {
                ends,
                blocks: &blocks,
                by,
                slots: slots.buffer.clone(),
                free: slots.offsets.clone(),
                thread_pool,
                sender,
                receiver,
                in_pool: 0,
                next: 0,
                ready: VecDeque::new(),
                flying: VecDeque::new(),
                finished: 0,
            };
            flow.drive(run)
        })
        .map_err(|stopped| stopped.error(method, bounds))
        .inspect(|_| tell_of_kernel(gpu, many.direction, request, by))
    }
}

/// Kernels have a line of their own, which tells of nothing.
fn tell_of_kernel(gpu: &CopierGpu, direction: Direction, request: &Checked, by: Option<Mover>) {
    if matches!(by, Some(Mover::Kernel { .. })) {
        gpu.copied_past_line(direction, request.bytes);
    }
}

impl At<'_> {
    /// Claims `len` bytes from here on.
    fn over(self, len: usize, write: bool) -> Result<Span, DeviceError> {
        claim(self, len, if write { Access::Write } else { Access::Read })
    }
}

impl Many<'_> {
    fn arrange(&self, gpu: &CopierGpu, pieces: &[Piece]) -> Result<Checked, CopyError> {
        let device = self.device.buffer.len().checked_sub(self.device.offset).ok_or_else(|| CopyError::Invalid {
            what: "range",
            reason: format!("offset {} of a buffer of {} bytes", self.device.offset, self.device.buffer.len()),
        })?;
        let (pieces, host) = match &self.host {
            Host::In(from) => (arrange(pieces, from.len(), device)?, &**from),
            Host::Out(to) => (arrange(pieces, device, to.len())?, &**to),
            Host::Held(_) => unreachable!("requests of many pieces name slices"),
        };
        let bytes = pieces.iter().map(|piece| piece.len).sum();
        let kind = if bytes == 0 { Ok(headway_device::HostKind::Pageable) } else { gpu.device.host_kind(host) };
        Ok(Checked { pieces, bytes, pinned: kind == Ok(headway_device::HostKind::Pinned) })
    }

    /// `body` with both ends as buffers; the host's said to be pinned for `pinned`'s domain.
    fn lend<R>(&mut self, pinned: Option<&CopierGpu>, body: impl FnOnce(Ends<'_>) -> R) -> R {
        let (direction, device) = (self.direction, self.device);
        let domain = pinned.map(|gpu| gpu.device.domain());
        match &mut self.host {
            Host::In(from) => headway_device::buffer::lend(from, domain, |host| body(Ends { direction, host, device })),
            Host::Out(to) => {
                headway_device::buffer::lend_mut(to, domain, |host| body(Ends { direction, host, device }))
            }
            Host::Held(_) => unreachable!("requests of many pieces name slices"),
        }
    }

    /// Both ends of `piece` alone.
    fn one(&mut self, piece: &Piece) -> (At<'_>, Host<'_>) {
        let start = if self.direction == Direction::D2h { piece.from } else { piece.to };
        let device = At { buffer: self.device.buffer, offset: self.device.offset + start };
        let host = match &mut self.host {
            Host::In(from) => Host::In(&from[piece.from..piece.from + piece.len]),
            Host::Out(to) => Host::Out(&mut to[piece.to..piece.to + piece.len]),
            Host::Held(_) => unreachable!("requests of many pieces name slices"),
        };
        (device, host)
    }

    /// `body` for each piece, with its device end claimed.
    fn each(
        &mut self,
        request: &Checked,
        mut body: impl FnMut(Span, Host<'_>) -> Result<(), DeviceError>,
    ) -> Result<EngineMoved, DeviceError> {
        let write = self.direction != Direction::D2h;
        for piece in &request.pieces {
            let (device, host) = self.one(piece);
            let span = device.over(piece.len, write)?;
            body(span, host)?;
        }
        Ok(EngineMoved { chunks: request.pieces.len() as u64, ..EngineMoved::default() })
    }

    /// Stores or loads of the CPU, all under one claim.
    fn window(&mut self, request: &Checked) -> Result<EngineMoved, DeviceError> {
        let pieces = &request.pieces;
        let out = self.direction == Direction::D2h;
        let range = if out { sources(pieces) } else { destinations(pieces) };
        let at = At { buffer: self.device.buffer, offset: self.device.offset + range.start };
        has_window(at.buffer, None)?;
        let mut span = at.over(range.len(), !out)?;
        for piece in pieces {
            match &mut self.host {
                Host::In(from) => span.store(piece.to - range.start, &from[piece.from..piece.from + piece.len])?,
                Host::Out(to) => span.load(piece.from - range.start, &mut to[piece.to..piece.to + piece.len])?,
                Host::Held(_) => unreachable!("requests of many pieces name slices"),
            }
        }
        Ok(EngineMoved { chunks: pieces.len() as u64, ..EngineMoved::default() })
    }
}

impl Ends<'_> {
    /// The engine that `by` uses; `None` = the copy engine.
    fn engine<'g>(&self, gpu: &'g CopierGpu, by: Option<Mover>) -> &'g super::engine::Engine {
        if matches!(by, Some(Mover::Kernel { .. })) { &gpu.kernels } else { gpu.engine(self.direction) }
    }

    /// The operation for `pieces`, whose host end is `host`: packed from its start on in their order if `packed` says so, else
    /// as the pieces say.
    fn step(
        &self,
        pieces: &[Piece],
        host: Span,
        packed: Option<()>,
        by: Option<Mover>,
        bytes: usize,
    ) -> Result<QueueStep, DeviceError> {
        let out = self.direction == Direction::D2h;
        let range = if out { sources(pieces) } else { destinations(pieces) };
        let device = At { buffer: self.device.buffer, offset: self.device.offset + range.start };
        let device = device.over(range.len(), !out)?;
        let host_range = if out { destinations(pieces) } else { sources(pieces) };
        let (from, to) = if out { (device, host) } else { (host, device) };
        let len = bytes as u64;
        let Some(by) = by else { return Ok(QueueStep { what: Operation::Copy { from, to }, len }) };
        let mut at = 0;
        let relative = pieces.iter().map(|piece| {
            let (device_start, host_start) = if out { (piece.from, piece.to) } else { (piece.to, piece.from) };
            let device_start = device_start - range.start;
            let host_start = if packed.is_some() { at } else { host_start - host_range.start };
            at += piece.len;
            let (from, to) = if out { (device_start, host_start) } else { (host_start, device_start) };
            Piece { from, to, len: piece.len }
        });
        let pieces = relative.collect();
        Ok(QueueStep { what: Operation::Pieces { from, to, pieces, by }, len })
    }
}

/// A block with the slot that it is in.
#[derive(Clone, Copy)]
struct Placed {
    block: usize,
    slot: usize,
}

/// A request on its way through the slots.
struct Flow<'a> {
    ends: Ends<'a>,
    blocks: &'a Arc<Blocks>,
    by: Option<Mover>,
    slots: Buffer,
    free: Vec<usize>,
    thread_pool: Option<&'a super::thread_pool::ThreadPool>,
    sender: Sender<(Placed, Result<(), DeviceError>)>,
    receiver: Receiver<(Placed, Result<(), DeviceError>)>,
    /// Blocks that threads work on.
    in_pool: usize,
    /// The first block that nobody has.
    next: usize,
    /// Blocks for the queue (in), or for the CPU (out).
    ready: VecDeque<Placed>,
    /// Blocks on the queue.
    flying: VecDeque<Placed>,
    finished: usize,
}

impl Flow<'_> {
    /// Moves all blocks.
    fn drive(mut self, mut run: Run<'_>) -> Result<EngineMoved, Stopped> {
        let result = self.turns(&mut run);
        // Slots go to others only when nobody works in them any more.
        let ended = if result.is_ok() {
            run.finish()
        } else {
            drop(run);
            Ok(EngineMoved::default())
        };
        let Self { receiver, sender, mut in_pool, .. } = self;
        // A job that panics says nothing, but drops its sender.
        drop(sender);
        while in_pool > 0 && receiver.recv().is_ok() {
            in_pool -= 1;
        }
        result.and(ended)
    }

    fn turns(&mut self, run: &mut Run<'_>) -> Result<(), Stopped> {
        let out = self.ends.direction == Direction::D2h;
        let total = self.blocks.blocks.len();
        while self.finished < total {
            let before = (self.next, self.finished, self.ready.len(), self.flying.len());
            if out {
                self.start_out(run)?
            } else {
                self.start_in(run)?
            }
            self.collect()?;
            if run.flying() > 0 {
                run.poll()?;
            } else if before == (self.next, self.finished, self.ready.len(), self.flying.len()) {
                run.pause()?;
            }
            self.landed(run, out);
        }
        Ok(())
    }

    /// Copies in: the CPU fills free slots, full ones go to the queue.
    fn start_in(&mut self, run: &mut Run<'_>) -> Result<(), Stopped> {
        while self.next < self.blocks.blocks.len() && self.ready.len() < 2 {
            let Some(slot) = self.free.pop() else { break };
            let placed = Placed { block: self.next, slot };
            self.next += 1;
            if self.work(placed)? {
                break; // this thread did it; the queue may have had something to say meanwhile
            }
        }
        if run.flying() < 2
            && let Some(placed) = self.ready.pop_front()
        {
            self.launch(run, placed)?;
        }
        Ok(())
    }

    /// Copies out: the queue fills free slots, the CPU empties full ones.
    fn start_out(&mut self, run: &mut Run<'_>) -> Result<(), Stopped> {
        while self.next < self.blocks.blocks.len() && run.flying() < 2 {
            let Some(slot) = self.free.pop() else { break };
            let placed = Placed { block: self.next, slot };
            self.next += 1;
            self.launch(run, placed)?;
        }
        while let Some(placed) = self.ready.pop_front() {
            if self.work(placed)? {
                break;
            }
        }
        Ok(())
    }

    fn launch(&mut self, run: &mut Run<'_>, placed: Placed) -> Result<(), Stopped> {
        let block = &self.blocks.blocks[placed.block];
        let out = self.ends.direction == Direction::D2h;
        let host = At { buffer: &self.slots, offset: placed.slot }.over(block.bytes, out).map_err(Stopped::early)?;
        let step = self.ends.step(self.blocks.of(block), host, Some(()), self.by, block.bytes);
        self.flying.push_back(placed);
        run.submit(step.map_err(Stopped::early)?)
    }

    /// What the queue has ended.
    fn landed(&mut self, run: &Run<'_>, out: bool) {
        while self.flying.len() > run.flying() {
            let placed = self.flying.pop_front().expect("longer than the queue's");
            if out {
                self.ready.push_back(placed);
            } else {
                self.free.push(placed.slot);
                self.finished += 1;
            }
        }
    }

    /// Has the CPU gather or scatter a block; true if this thread did it itself.
    fn work(&mut self, placed: Placed) -> Result<bool, Stopped> {
        let job = self.job(placed).map_err(Stopped::early)?;
        match self.thread_pool {
            Some(thread_pool) => {
                let sender = self.sender.clone();
                thread_pool.submit(Box::new(move || {
                    let result = job();
                    // Nobody listens only if the request is gone, which waits for all its jobs.
                    let _ = sender.send((placed, result));
                }));
                self.in_pool += 1;
                Ok(false)
            }
            None => {
                job().map_err(Stopped::early)?;
                self.worked(placed);
                Ok(true)
            }
        }
    }

    fn worked(&mut self, placed: Placed) {
        if self.ends.direction == Direction::D2h {
            self.free.push(placed.slot);
            self.finished += 1;
        } else {
            self.ready.push_back(placed);
        }
    }

    /// What the threads have done.
    fn collect(&mut self) -> Result<(), Stopped> {
        while let Ok((placed, result)) = self.receiver.try_recv() {
            self.in_pool -= 1;
            result.map_err(Stopped::early)?;
            self.worked(placed);
        }
        Ok(())
    }

    /// The CPU's part of one block.
    fn job(&self, placed: Placed) -> Result<impl FnOnce() -> Result<(), DeviceError> + Send + 'static, DeviceError> {
        let blocks = Arc::clone(self.blocks);
        let block = blocks.blocks[placed.block].clone();
        let out = self.ends.direction == Direction::D2h;
        let pieces = blocks.of(&block);
        let range: Range<usize> = if out { destinations(pieces) } else { sources(pieces) };
        let start = range.start;
        let mut host = At { buffer: self.ends.host, offset: start }.over(range.len(), out)?;
        let mut slot = At { buffer: &self.slots, offset: placed.slot }.over(block.bytes, !out)?;
        Ok(move || {
            let mut at = 0;
            for piece in blocks.of(&block) {
                let packed = at..at + piece.len;
                at += piece.len;
                if out {
                    let place = piece.to - start;
                    host.bytes_mut()?[place..place + piece.len].copy_from_slice(&slot.bytes()?[packed]);
                } else {
                    let place = piece.from - start;
                    slot.bytes_mut()?[packed].copy_from_slice(&host.bytes()?[place..place + piece.len]);
                }
            }
            Ok(())
        })
    }
}
