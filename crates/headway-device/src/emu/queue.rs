//! Queues of an emulated GPU: one thread each, first in, first out.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use headway_core::units::Nanos;
use headway_os::fork::Home;
use headway_os::sched::{Classes, Role};
use headway_os::{clock, sched, threads};

use super::gate::occupy;
use super::{Shared, device_bytes, device_bytes_mut};
use crate::buffer::{Access, DeviceId, MemoryPlace, Span, lock};
use crate::gpu::{Completion, Mover, Operation, Piece, Queue};
use crate::work::{Argument, CpuArgument};
use crate::{DeviceError, Waker, check, wake};

/// A queue of an emulated GPU. It keeps time whether or not that was asked for.
pub(super) struct EmuQueue {
    gpu: Arc<Shared>,
    line: Arc<QueueShared>,
    outstanding: usize,
    thread: Option<JoinHandle<()>>,
    home: Home,
}

#[derive(Default)]
struct QueueShared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<(Operation, u64)>,
    done: VecDeque<Completion>,
    waker: Option<Waker>,
    stop: bool,
    /// The scheduling class that the thread is to take, or to give back, next.
    change: Option<Option<Arc<Classes>>>,
}

impl EmuQueue {
    /// The caller has counted it in `gpu.queues`.
    pub(super) fn start(gpu: Arc<Shared>) -> Result<Self, DeviceError> {
        let mut queue = Self { gpu, line: Arc::default(), outstanding: 0, thread: None, home: Home::here() };
        let (gpu, line) = (Arc::clone(&queue.gpu), Arc::clone(&queue.line));
        let thread = threads::spawn("headway-emu-queue", move || serve(&gpu, &line));
        queue.thread = Some(thread.map_err(|error| DeviceError::Unavailable {
            what: "a thread for an emulated queue".into(),
            reason: error.to_string(),
            remedy: "raise the limit on threads".into(),
        })?);
        Ok(queue)
    }
}

impl Queue for EmuQueue {
    fn submit(&mut self, what: Operation, tag: u64) -> Result<(), DeviceError> {
        self.gpu.alive()?;
        check::operation(self.gpu.here(), &what, |peer| self.gpu.reaches(peer))?;
        let max = self.gpu.description.limits.outstanding_per_engine_max;
        if self.outstanding >= max {
            return Err(DeviceError::Refused { limit: "outstanding_per_engine_max", max: max as u64 });
        }
        self.outstanding += 1;
        lock(&self.line.state).jobs.push_back((what, tag));
        self.line.changed.notify_one();
        Ok(())
    }

    fn poll(&mut self) -> Option<Completion> {
        if self.outstanding == 0 {
            return None;
        }
        let done = lock(&self.line.state).done.pop_front()?;
        self.outstanding -= 1;
        Some(Completion { noticed: clock::now(), ..done })
    }

    fn outstanding(&self) -> usize {
        self.outstanding
    }

    fn must_poll(&self) -> bool {
        false
    }

    fn set_waker(&mut self, waker: Waker) {
        lock(&self.line.state).waker = Some(waker);
    }

    fn set_classes(&mut self, classes: Option<&Arc<Classes>>) {
        lock(&self.line.state).change = Some(classes.cloned());
        self.line.changed.notify_one();
    }
}

impl Drop for EmuQueue {
    fn drop(&mut self) {
        if !self.home.is_here() {
            // The thread, and whoever held the lock, stayed in the parent.
            std::mem::forget(self.thread.take());
            return;
        }
        lock(&self.line.state).stop = true;
        self.line.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread contains the panics of its work; should one escape there is nothing left to save.
            let _ = thread.join();
        }
        self.gpu.queues.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The loop of a queue's thread; ends when the queue is dropped and nothing is left to do.
fn serve(gpu: &Shared, line: &QueueShared) {
    // Without it, every throttled operation would end up to 50 us late; a refusal only costs that precision.
    let _ = sched::lower_timer_slack();
    let mut held = None;
    loop {
        let mut state = lock(&line.state);
        while state.jobs.is_empty() && !state.stop && state.change.is_none() {
            state = line.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(change) = state.change.take() {
            drop(state);
            // The old class is given back before the new one is taken.
            drop(held.take());
            held = change.map(|classes| classes.take(Role::Helper));
            continue;
        }
        let Some((mut what, tag)) = state.jobs.pop_front() else { return };
        drop(state);
        let (mut began, taken) = (None, clock::now());
        let result = gpu.alive().and_then(|()| {
            catch_unwind(AssertUnwindSafe(|| execute(gpu, &mut what, &mut began))).unwrap_or_else(|_| {
                gpu.lost.store(true, Ordering::Release);
                Err(DeviceError::DeviceLost)
            })
        });
        drop(what);
        let (started, finished) = (began.unwrap_or(taken), clock::now());
        let mut state = lock(&line.state);
        state.done.push_back(Completion { tag, result, started, finished, noticed: finished });
        let waker = state.waker.clone();
        drop(state);
        if let Some(waker) = waker {
            wake(&waker);
        }
    }
}

/// Does `what`; `began` becomes when the first of its engines was free.
fn execute(gpu: &Shared, what: &mut Operation, began: &mut Option<Nanos>) -> Result<(), DeviceError> {
    match what {
        Operation::Copy { from, to } => copy(gpu, from, to, began),
        Operation::Relay { from, through, to } => {
            copy(gpu, from, through, began);
            copy(gpu, through, to, began);
        }
        Operation::Pieces { from, to, pieces, by } => move_pieces(gpu, from, to, pieces, *by, began),
        Operation::Launch { work, grid, arguments } => {
            let mut arguments: Vec<CpuArgument<'_>> = arguments
                .iter_mut()
                .map(|argument| match argument {
                    Argument::Int(value) => CpuArgument::Int(*value),
                    Argument::Wide(value) => CpuArgument::Wide(*value),
                    Argument::Null => CpuArgument::Null,
                    Argument::Memory(span) => match span.access() {
                        Access::Read => CpuArgument::Read(device_bytes(span)),
                        Access::Write => CpuArgument::Write(device_bytes_mut(span)),
                    },
                })
                .collect();
            // A cost that panics costs nothing rather than the GPU.
            let cost = || gpu.launch_time.as_ref().zip(work.demand(&arguments));
            let cost = catch_unwind(AssertUnwindSafe(|| cost().map(|(time, demand)| time(work.id(), demand))));
            let time = gpu.launch.setup.saturating_add(cost.ok().flatten().unwrap_or(Nanos::ZERO));
            return occupy(&[&gpu.ee], time, began, || work.launch(*grid, &mut arguments));
        }
    }
    Ok(())
}

/// One copy, by the engines that its places need.
fn copy(gpu: &Shared, from: &Span, to: &mut Span, began: &mut Option<Nanos>) {
    let ends = (from.place(), to.place());
    with_engines(gpu, ends, from.len(), began, || device_bytes_mut(to).copy_from_slice(device_bytes(from)));
}

fn with_engines(
    gpu: &Shared,
    ends: (MemoryPlace, MemoryPlace),
    bytes: usize,
    began: &mut Option<Nanos>,
    body: impl FnOnce(),
) {
    match ends {
        (MemoryPlace::Host { .. }, _) => occupy(&[&gpu.h2d], gpu.pace_in.time(bytes), began, body),
        (_, MemoryPlace::Host { .. }) => occupy(&[&gpu.d2h], gpu.pace_out.time(bytes), began, body),
        (MemoryPlace::Device { id: from, .. }, MemoryPlace::Device { id: to, .. }) => {
            let other = if from == to { None } else { super::find(if from == gpu.id { to } else { from }) };
            let other = other.as_deref().unwrap_or(gpu);
            let (source, target) = if from == gpu.id { (gpu, other) } else { (other, gpu) };
            let pace = source.pace_peer.slower(target.pace_peer);
            occupy(&[&source.peer_out, &target.peer_in], pace.time(bytes), began, body);
        }
    }
}

fn move_pieces(gpu: &Shared, from: &Span, to: &mut Span, pieces: &[Piece], by: Mover, began: &mut Option<Nanos>) {
    let ends = (from.place(), to.place());
    let (from, to) = (device_bytes(from), device_bytes_mut(to));
    let mut one = |piece: &Piece| {
        to[piece.to..piece.to + piece.len].copy_from_slice(&from[piece.from..piece.from + piece.len]);
    };
    let total = pieces.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.len));
    match by {
        Mover::Loop => {
            for piece in pieces {
                with_engines(gpu, ends, piece.len, began, || one(piece));
            }
        }
        Mover::Batch => with_engines(gpu, ends, total, began, || pieces.iter().for_each(one)),
        Mover::Kernel { blocks: _ } => {
            occupy(&[&gpu.ee], gpu.kernel.time(total), began, || pieces.iter().for_each(one));
        }
    }
}

impl Shared {
    /// The pageable copy's DMA of one bounce buffer.
    pub(super) fn bounce(&self, inward: bool, bytes: usize, body: impl FnOnce()) {
        let (gate, pace) = if inward { (&self.h2d, self.pace_in) } else { (&self.d2h, self.pace_out) };
        occupy(&[gate], pace.time(bytes), &mut None, body);
    }

    pub(super) fn reaches(&self, peer: DeviceId) -> bool {
        peer == self.id || self.peers && super::find(peer).is_some_and(|other| other.peers)
    }
}
