//! One copy by one method.

use std::sync::atomic::AtomicBool;

use headway_core::decisions::chooser;
use headway_core::decisions::staging::StagingDirection;
use headway_core::models::transfer::price::{KERNEL_BLOCKS_IN, KERNEL_BLOCKS_OUT};
use headway_core::models::transfer::{Direction, HostMemory, Method, ResidentShape, WindowMapping, default_tuning};
use headway_core::units::Bytes;
use headway_device::gpu::{Mover, Operation, Piece};
use headway_device::{Buffer, DeviceError, HostKind};
use headway_os::{clock, memory};

use super::cpus;
use super::decide::Decision;
use super::engine::{Bounds, EngineMoved, QueueStep, STAGED_BESIDE_PROMISES, Stopped, steps};
use super::gpu::CopierGpu;
use super::request::{Host, HostBytes, Request};
use super::{At, Copier, CopyError};
use crate::staging::{self, Staged, StagingError, StagingPool};
use crate::wait::Patience;

/// Bytes that the CPU moves through a window before it looks whether the copy is cancelled.
const WINDOW_STEP: usize = 4 << 20;
/// From this size on destinations without pages get huge ones; and how many of their pages are looked at.
const HUGE_MIN: usize = 16 << 20;
const HUGE_SAMPLES: usize = 8;
/// What the driver copies at once of ordinary memory where copies on the engine are promised to be in time: about 100 us.
const PAGEABLE_BESIDE_PROMISES: usize = 1 << 20;
/// Thread blocks of a copy kernel.
pub(super) const fn kernel_blocks(direction: Direction) -> u32 {
    match direction {
        Direction::D2h => KERNEL_BLOCKS_OUT,
        Direction::H2d | Direction::Peer => KERNEL_BLOCKS_IN,
    }
}

impl Copier {
    /// Carries out `request` as decided.
    pub(super) fn execute(&self, request: &mut Request<'_>, decision: &Decision<'_>) -> Result<EngineMoved, CopyError> {
        let (gpu, method) = (&self.gpus[request.gpu], decision.choice().method);
        self.forbidden(method)?;
        let result = match method {
            Method::Pageable => self.pageable(gpu, request),
            Method::Register => self.register(gpu, request, method),
            Method::Pinning => self.pinning(gpu, request, method),
            Method::Dma => self.dma(gpu, request, method),
            Method::Kernel => self.kernel(gpu, request, method),
            Method::Window(_) => self.window(request, method),
            Method::PagedWindow(mapping) => {
                paged_window(gpu, request, mapping).map_err(|error| CopyError::device(method, error, 0, 0))
            }
            Method::Resident(shape) => {
                resident(gpu, request, shape).map_err(|error| CopyError::device(method, error, 0, 0))
            }
            Method::Staged | Method::Multipath => self.staged(request, decision),
            Method::PinnedOnce => Err(CopyError::Invalid {
                what: "method",
                reason: "`pinned-once` is for the programs of `headway exec --pin-once`; pin the memory yourself and use `dma`".into(),
            }),
            Method::Peer => {
                Err(CopyError::Invalid { what: "method", reason: "`peer` copies between GPUs; use `copy_peer`".into() })
            }
        };
        if let Err(CopyError::DeviceLost) = result {
            gpu.lose();
        }
        let stands_in_line =
            matches!(method, Method::Register | Method::Pinning | Method::Dma | Method::Staged | Method::Multipath);
        if result.is_ok() && !stands_in_line {
            gpu.copied_past_line(request.direction, request.len);
        }
        result
    }

    /// The driver's own call; beside promises in parts, each of which waits for its turn: the driver lets nobody else in meanwhile.
    fn pageable(&self, gpu: &CopierGpu, request: &mut Request<'_>) -> Result<EngineMoved, CopyError> {
        let method = Method::Pageable;
        let turns = self.engine_turns(request.gpu, request.direction);
        let Some(chunk) = turns.chunk() else {
            return pageable(gpu, request).map_err(|error| CopyError::device(method, error, 0, 0));
        };
        let chunk = usize::try_from(chunk.0).unwrap_or(usize::MAX).min(PAGEABLE_BESIDE_PROMISES);
        let (device, access) = (request.device, request.device_access());
        let mut moved = EngineMoved::default();
        let mut at = 0;
        while at < request.len {
            let len = chunk.min(request.len - at);
            let failed = |error| CopyError::device(method, error, moved.chunks, at as u64);
            let turn = turns.take().map_err(failed)?;
            let mut span = super::request::claim(device.plus(at), len, access).map_err(failed)?;
            let copied = request.with_bytes(|host| match host {
                HostBytes::In(from) => gpu.device.copy_in(&mut span, &from[at..at + len]),
                HostBytes::Out(to) => gpu.device.copy_out(&mut to[at..at + len], &span),
            });
            copied.and_then(|copied| copied).map_err(failed)?;
            drop(turn);
            at += len;
            moved.chunks += 1;
        }
        Ok(moved)
    }

    /// Refuses what the options exclude, whether the method was named or chosen.
    fn forbidden(&self, method: Method) -> Result<(), CopyError> {
        let excludes = self.options.no_sm && method.abilities().occupies.multiprocessor();
        if excludes { Err(excluded(method, "no_sm")) } else { Ok(()) }
    }

    /// Bytes that an engine gets at once.
    pub(super) fn chunk(&self, method: Method, len: usize) -> usize {
        let chunk = chooser::chunk(method, Bytes(len as u64), None, self.options.limits.chunk_max);
        usize::try_from(chunk.0).unwrap_or(usize::MAX)
    }

    /// Thread blocks of a copy kernel, each of which takes a multiprocessor.
    pub(super) fn kernel_blocks(&self, direction: Direction) -> u32 {
        kernel_blocks(direction).min(self.options.limits.multiprocessors_max)
    }

    /// Checks that the host end is pinned.
    pub(super) fn pinned(&self, gpu: &CopierGpu, request: &Request<'_>, what: &'static str) -> Result<(), CopyError> {
        let kind = request.kind(|memory| gpu.device.host_kind(memory));
        match kind.map_err(|error| CopyError::device(Method::Dma, error, 0, 0))? {
            HostKind::Pinned => Ok(()),
            HostKind::Pageable => Err(CopyError::Invalid {
                what,
                reason:
                    "the host memory is not pinned; pin it, or use `staged` or `pageable` where nothing is promised"
                        .into(),
            }),
        }
    }

    pub(super) fn dma(
        &self,
        gpu: &CopierGpu,
        request: &mut Request<'_>,
        method: Method,
    ) -> Result<EngineMoved, CopyError> {
        self.pinned(gpu, request, "dma")?;
        let cancel = self.cancel.watch();
        let (direction, len) = (request.direction, request.len);
        request
            .with_buffers(Some(gpu.device.domain()), |from, to| {
                self.engine_copy(gpu, direction, from, to, len, &cancel)
            })
            .map_err(|stopped| stopped.error(method, self.bounds(&cancel)))
    }

    /// Pins the caller's pages in place for this one copy.
    fn register(&self, gpu: &CopierGpu, request: &mut Request<'_>, method: Method) -> Result<EngineMoved, CopyError> {
        if self.pinned(gpu, request, "register").is_ok() {
            return self.dma(gpu, request, method);
        }
        let cancel = self.cancel.watch();
        let (direction, len) = (request.direction, request.len);
        request
            .with_buffers(None, |from, to| {
                let host = if direction == Direction::D2h { to } else { from };
                // Pinning waits until no kernel runs, and resident copiers run on until their leases end.
                self.gpus.iter().try_for_each(CopierGpu::park).map_err(Stopped::early)?;
                let view = gpu.device.register(host.buffer, 0..host.buffer.len()).map_err(Stopped::unpinned)?;
                let pinned = At { buffer: &view, offset: host.offset };
                let (from, to) = if direction == Direction::D2h { (from, pinned) } else { (pinned, to) };
                self.engine_copy(gpu, direction, from, to, len, &cancel)
            })
            .map_err(|stopped| stopped.error(method, self.bounds(&cancel)))
    }

    fn engine_copy(
        &self,
        gpu: &CopierGpu,
        direction: Direction,
        from: At<'_>,
        to: At<'_>,
        len: usize,
        cancel: &AtomicBool,
    ) -> Result<EngineMoved, Stopped> {
        let limited = gpu.engine(direction).shared.limit.enter();
        let chunk = self.chunk(Method::Dma, len).min(limited.bytes);
        let steps = steps(from, to, len, chunk).map_err(Stopped::early)?;
        gpu.engine(direction).run(gpu.device.as_ref(), None, steps, self.bounds(cancel))
    }

    fn kernel(&self, gpu: &CopierGpu, request: &mut Request<'_>, method: Method) -> Result<EngineMoved, CopyError> {
        self.pinned(gpu, request, "kernel")?;
        let cancel = self.cancel.watch();
        let (direction, len) = (request.direction, request.len);
        let by = Mover::Kernel { blocks: self.kernel_blocks(direction) };
        request
            .with_buffers(Some(gpu.device.domain()), |from, to| {
                let steps = steps(from, to, len, self.chunk(Method::Kernel, len)).map_err(Stopped::early)?;
                let steps = steps.into_iter().map(|step| as_pieces(step, by)).collect();
                gpu.kernels.run(gpu.device.as_ref(), None, steps, self.bounds(&cancel))
            })
            .map_err(|stopped| stopped.error(method, self.bounds(&cancel)))
    }

    /// Stores or loads through the buffer's own window.
    fn window(&self, request: &mut Request<'_>, method: Method) -> Result<EngineMoved, CopyError> {
        let refuse = |error| CopyError::device(method, error, 0, 0);
        has_window(request.device.buffer, method.mapping()).map_err(refuse)?;
        let mut span = request.device_span().map_err(refuse)?;
        let cancelled = |prefix: usize| CopyError::Cancelled { completed_prefix: prefix as u64 };
        let cancel = (request.len > WINDOW_STEP).then(|| self.cancel.watch());
        let stop = || cancel.as_ref().is_some_and(|cancel| cancel.load(std::sync::atomic::Ordering::Relaxed));
        let mut at = 0;
        request
            .with_bytes(|host| {
                match host {
                    HostBytes::In(from) => {
                        for part in from.chunks(WINDOW_STEP) {
                            if stop() {
                                return Err(cancelled(at));
                            }
                            span.store(at, part).map_err(refuse)?;
                            at += part.len();
                        }
                    }
                    HostBytes::Out(to) => {
                        for part in to.chunks_mut(WINDOW_STEP) {
                            if stop() {
                                return Err(cancelled(at));
                            }
                            span.load(at, part).map_err(refuse)?;
                            at += part.len();
                        }
                    }
                }
                Ok(EngineMoved::ONE)
            })
            .map_err(refuse)?
    }

    /// Through pinned buffers, over one link or several.
    fn staged(&self, request: &mut Request<'_>, decision: &Decision<'_>) -> Result<EngineMoved, CopyError> {
        let (method, set_up) = (decision.choice().method, decision.choice().waits());
        if method == Method::Multipath {
            self.has_relay(request.gpu, method)?;
        }
        let relays: Vec<&CopierGpu> = decision.relays.iter().map(|relay| &self.gpus[*relay]).collect();
        // Relays let go as soon as their GPUs have copies of their own.
        let own: Vec<_> = relays.iter().map(|gpu| gpu.engine(request.direction).bulk_count()).collect();
        let mut links: Vec<&StagingPool> = vec![&self.gpus[request.gpu].pool];
        links.extend(relays.into_iter().map(|gpu| &gpu.pool));
        let pinned = links.len() > 1 && self.pinned(&self.gpus[request.gpu], request, "multipath").is_ok();
        let mut tuning = decision.choice().tuning.unwrap_or_else(|| {
            let memory = decision.choice().memory();
            default_tuning(request.direction, if pinned { HostMemory::Pinned } else { memory })
        });
        // What other processes of this user copy by needs CPUs, too; what is emulated needs none that anybody else counts.
        let real = self.gpus[request.gpu].device.description().source == headway_device::DeviceSource::Cuda;
        let part = (self.options.shares_cpus && real && !pinned).then(|| cpus::part(tuning.threads)).flatten();
        tuning.threads = part.as_ref().map_or(tuning.threads, headway_os::cpu_shares::CpuShare::threads);
        // What flows were promised allows for smaller chunks, and for fewer at a time.
        let engines = std::iter::once(request.gpu).chain(decision.relays.iter().copied());
        let limits: Vec<_> = engines.map(|gpu| self.gpus[gpu].engine(request.direction).shared.limit.enter()).collect();
        if let Some(bytes) = limits.iter().map(|limited| limited.bytes).min().filter(|bytes| *bytes < usize::MAX) {
            tuning.buffer = tuning.buffer.min(Bytes(bytes as u64));
            tuning.in_flight = tuning.in_flight.min(STAGED_BESIDE_PROMISES);
        }
        let before = clock::thread_cpu_time();
        let huge = match &mut request.host {
            Host::Out(to) if self.options.huge_pages && to.len() >= HUGE_MIN => {
                let fresh = memory::mostly_absent(to, HUGE_SAMPLES);
                if fresh {
                    memory::advise_huge(to);
                }
                fresh
            }
            _ => false,
        };
        let cancel = self.cancel.watch();
        let populate = self.options.mapped_files;
        let how = Staged { cancel: Some(&cancel), populate, huge, own: &own, ..Staged::new(tuning) };
        if self.options.no_threads && !pinned {
            return Err(excluded(method, "no_threads"));
        }
        let mut patience = Patience::new(self.options.limits.patience);
        let moved = loop {
            match self.staged_once(request, &links, pinned, &how) {
                Err(StagingError::NotReady { .. }) if set_up => {
                    for (at, link) in links.iter().enumerate() {
                        let relay = (at > 0).then_some(tuning.in_flight);
                        link.prepare(tuning.buffer, relay).map_err(|error| staging_error(method, error))?;
                    }
                }
                // Who has borrowed this GPU's threads lets go of them now that it has a copy of its own.
                Err(StagingError::Busy { .. }) if (set_up || self.shares.is_lent(request.gpu)) && patience.pause() => {}
                result => break result,
            }
        };
        let moved = moved.map_err(|error| staging_error(method, error))?;
        let cpu = clock::thread_cpu_time().saturating_sub(before).saturating_add(moved.cpu);
        Ok(EngineMoved { chunks: moved.chunks, waited: moved.waited, ahead: moved.ahead, cpu: Some(cpu) })
    }

    fn staged_once(
        &self,
        request: &mut Request<'_>,
        links: &[&StagingPool],
        pinned: bool,
        how: &Staged<'_>,
    ) -> Result<staging::StagingMoved, StagingError> {
        let flow = if request.direction == Direction::D2h { StagingDirection::Out } else { StagingDirection::In };
        let (device, len) = (request.device, request.len);
        match &mut request.host {
            Host::Held(host) => staging::copy_pinned(links, flow, device, *host, len, how),
            Host::In(_) | Host::Out(_) if pinned => {
                request.with_buffers(Some(self.gpus[request.gpu].device.domain()), |from, to| {
                    let host = if flow == StagingDirection::In { from } else { to };
                    staging::copy_pinned(links, flow, device, host, len, how)
                })
            }
            Host::In(from) => staging::copy_in(links, device, from, how),
            Host::Out(to) => staging::copy_out(links, to, device, how),
        }
    }

    /// Whether a copy of GPU `to` can go through GPU `relay`.
    pub(super) fn reaches(&self, relay: usize, to: usize) -> bool {
        let (relay, to) = (&self.gpus[relay], &self.gpus[to]);
        relay.id != to.id
            && !relay.is_lost()
            && relay.device.domain() == to.device.domain()
            && relay.device.reaches(to.id)
    }

    /// Checks that there is a second link to `gpu`, used or not.
    fn has_relay(&self, gpu: usize, method: Method) -> Result<(), CopyError> {
        if (0..self.gpus.len()).any(|relay| self.reaches(relay, gpu)) {
            return Ok(());
        }
        Err(CopyError::Unavailable {
            method,
            source: DeviceError::Unavailable {
                what: "a second link".into(),
                reason: "no other GPU reaches this one directly".into(),
                remedy: "use `staged` or `dma`".into(),
            },
        })
    }

    /// Waits until everything is there that one staged copy of `gpu` with buffers of `buffer` may have.
    pub(super) fn prepare_gpu(&self, gpu: &CopierGpu, buffer: Bytes) -> Result<(), CopyError> {
        gpu.pool.prepare(buffer, None).map_err(|error| staging_error(Method::Staged, error))
    }

    /// What bounds a copy that `cancel` ends.
    pub(super) const fn bounds<'a>(&self, cancel: &'a AtomicBool) -> Bounds<'a> {
        Bounds { patience: self.options.limits.patience, cancel }
    }
}

/// What `option` rules out.
pub(super) fn excluded(method: Method, option: &str) -> CopyError {
    CopyError::Unavailable {
        method,
        source: DeviceError::Unavailable {
            what: "this method".into(),
            reason: format!("the option `{option}` excludes it"),
            remedy: format!("open the copier without `{option}`, or use another method"),
        },
    }
}

/// Checks that the memory has a window, of the form asked for.
pub(super) fn has_window(buffer: &Buffer, mapping: Option<WindowMapping>) -> Result<(), DeviceError> {
    let absent = |reason: String| DeviceError::Unavailable {
        what: "a window on this buffer".into(),
        reason,
        remedy: "make the buffer with a window, as far as `headway doctor` lists one".into(),
    };
    match (buffer.window(), mapping) {
        (None, _) => Err(absent("it was made without one".into())),
        (Some(there), Some(asked)) if there != asked => Err(absent(format!("its window is {there}, not {asked}"))),
        (Some(_), _) => Ok(()),
    }
}

/// The same copy as one piece for `by`.
pub(super) fn as_pieces(step: QueueStep, by: Mover) -> QueueStep {
    match step.what {
        Operation::Copy { from, to } => {
            let pieces = std::sync::Arc::from([Piece { from: 0, to: 0, len: from.len() }]);
            QueueStep { what: Operation::Pieces { from, to, pieces, by }, len: step.len }
        }
        what => QueueStep { what, len: step.len },
    }
}

/// The driver's own call.
fn pageable(gpu: &CopierGpu, request: &mut Request<'_>) -> Result<EngineMoved, DeviceError> {
    let mut span = request.device_span()?;
    request.with_bytes(|host| match host {
        HostBytes::In(from) => gpu.device.copy_in(&mut span, from),
        HostBytes::Out(to) => gpu.device.copy_out(to, &span),
    })??;
    Ok(EngineMoved::ONE)
}

fn paged_window(
    gpu: &CopierGpu,
    request: &mut Request<'_>,
    mapping: Option<WindowMapping>,
) -> Result<EngineMoved, DeviceError> {
    // The window claims the bytes itself; this empty claim only names the memory.
    let name = super::request::claim(request.device, 0, headway_device::Access::Read)?;
    let at = request.device;
    let moves = gpu.with_pager(mapping, at.buffer, &name, |pager| {
        let before = pager.moves();
        request.with_bytes(|host| match host {
            HostBytes::In(from) => pager.store(at.offset, from),
            HostBytes::Out(to) => pager.load(at.offset, to),
        })??;
        Ok::<u64, DeviceError>(pager.moves() - before)
    })??;
    Ok(EngineMoved { chunks: moves.max(1), ..EngineMoved::ONE })
}

fn resident(
    gpu: &CopierGpu,
    request: &mut Request<'_>,
    shape: Option<ResidentShape>,
) -> Result<EngineMoved, DeviceError> {
    let copier = gpu.resident(shape)?;
    let mut copier = copier.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut span = request.device_span()?;
    if let Host::Held(host) = request.host {
        if request.direction == Direction::D2h {
            let mut to = super::request::claim(host, request.len, headway_device::Access::Write)?;
            copier.copy(&span, &mut to)?;
        } else {
            let from = super::request::claim(host, request.len, headway_device::Access::Read)?;
            copier.copy(&from, &mut span)?;
        }
        return Ok(EngineMoved::ONE);
    }
    request.with_bytes(|host| match host {
        HostBytes::In(from) => copier.copy_in(&mut span, from),
        HostBytes::Out(to) => copier.copy_out(to, &span),
    })??;
    Ok(EngineMoved::ONE)
}

/// What a staging error means for a copy by `method`.
fn staging_error(method: Method, error: StagingError) -> CopyError {
    let absent = |source| CopyError::Unavailable { method, source };
    match error {
        StagingError::NotReady { .. } | StagingError::Busy { .. } => {
            CopyError::NotReady { method, reason: error.to_string() }
        }
        StagingError::SetUp { source, .. } => absent(source),
        StagingError::NoRelay { .. } | StagingError::Forked => absent(DeviceError::Unavailable {
            what: "staging".into(),
            reason: error.to_string(),
            remedy: "the driver's own call always copies".into(),
        }),
        StagingError::Request(error) => CopyError::device(method, error, 0, 0),
        StagingError::Chunk { chunk, completed_prefix, source } => {
            CopyError::device(method, source, chunk, completed_prefix)
        }
        StagingError::Timeout { after, state, completed_prefix } => {
            CopyError::Timeout { what: state, after, completed_prefix }
        }
        StagingError::Cancelled { completed_prefix } => CopyError::Cancelled { completed_prefix },
        error => CopyError::Failed {
            chunk: 0,
            completed_prefix: 0,
            source: DeviceError::Unavailable {
                what: "staging".into(),
                reason: error.to_string(),
                remedy: "repeat the copy".into(),
            },
        },
    }
}
