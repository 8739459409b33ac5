//! Queues of an emulated gpu: one thread each, first in, first out.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use headway_os::{clock, sched};

use super::Shared;
use super::gate::occupy;
use crate::buffer::{Access, DeviceId, Place, Span, lock};
use crate::emu::{device_bytes, device_bytes_mut};
use crate::gpu::{Argument, CpuArgument, Done, Move, Mover, Piece, Queue};
use crate::{DeviceError, check};

/// A queue of an emulated gpu.
pub(super) struct EmuQueue {
    gpu: Arc<Shared>,
    line: Arc<Line>,
    keeps_time: bool,
    outstanding: usize,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Line {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<(Move, u64)>,
    done: VecDeque<Done>,
    stop: bool,
}

impl EmuQueue {
    /// The caller has counted it in `gpu.queues`.
    pub(super) fn start(gpu: Arc<Shared>, keeps_time: bool) -> Result<Self, DeviceError> {
        let mut queue = Self { gpu, line: Arc::default(), keeps_time, outstanding: 0, thread: None };
        let (gpu, line) = (Arc::clone(&queue.gpu), Arc::clone(&queue.line));
        let thread = std::thread::Builder::new().name("headway-emu-queue".into()).spawn(move || serve(&gpu, &line));
        queue.thread = Some(thread.map_err(|error| DeviceError::Unavailable {
            what: "a thread for an emulated queue".into(),
            reason: error.to_string(),
            remedy: "raise the limit on threads".into(),
        })?);
        Ok(queue)
    }
}

impl Queue for EmuQueue {
    fn submit(&mut self, what: Move, tag: u64) -> Result<(), DeviceError> {
        self.gpu.alive()?;
        check::movement(self.gpu.here(), &what, |peer| self.gpu.reaches(peer))?;
        let max = self.gpu.description.limits.outstanding_per_engine_max;
        if self.outstanding >= max {
            return Err(DeviceError::Refused { limit: "outstanding_per_engine_max", max: max as u64 });
        }
        self.outstanding += 1;
        lock(&self.line.state).jobs.push_back((what, tag));
        self.line.changed.notify_one();
        Ok(())
    }

    fn poll(&mut self) -> Option<Done> {
        if self.outstanding == 0 {
            return None;
        }
        let done = lock(&self.line.state).done.pop_front()?;
        self.outstanding -= 1;
        Some(Done { device_time: done.device_time.filter(|_| self.keeps_time), ..done })
    }

    fn outstanding(&self) -> usize {
        self.outstanding
    }
}

impl Drop for EmuQueue {
    fn drop(&mut self) {
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
fn serve(gpu: &Shared, line: &Line) {
    // Without it, every throttled move would end up to 50 us late; a refusal only costs that precision.
    let _ = sched::lower_timer_slack();
    loop {
        let mut state = lock(&line.state);
        while state.jobs.is_empty() && !state.stop {
            state = line.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let Some((mut what, tag)) = state.jobs.pop_front() else { return };
        drop(state);
        let started = clock::now();
        let result = gpu.alive().and_then(|()| {
            catch_unwind(AssertUnwindSafe(|| execute(gpu, &mut what))).unwrap_or_else(|_| {
                gpu.lost.store(true, Ordering::Release);
                Err(DeviceError::DeviceLost)
            })
        });
        drop(what);
        let device_time = Some(clock::now().saturating_sub(started));
        lock(&line.state).done.push_back(Done { tag, result, device_time });
    }
}

fn execute(gpu: &Shared, what: &mut Move) -> Result<(), DeviceError> {
    match what {
        Move::Copy { from, to } => copy(gpu, from, to),
        Move::Relay { from, through, to } => {
            copy(gpu, from, through);
            copy(gpu, through, to);
        }
        Move::Pieces { from, to, pieces, by } => move_pieces(gpu, from, to, pieces, *by),
        Move::Launch { program, grid, arguments } => {
            let mut arguments: Vec<CpuArgument<'_>> = arguments
                .iter_mut()
                .map(|argument| match argument {
                    Argument::Int(value) => CpuArgument::Int(*value),
                    Argument::Memory(span) => match span.access() {
                        Access::Read => CpuArgument::Read(device_bytes(span)),
                        Access::Write => CpuArgument::Write(device_bytes_mut(span)),
                    },
                })
                .collect();
            return occupy(&[&gpu.ee], gpu.launch, 0, || program.run(*grid, &mut arguments));
        }
    }
    Ok(())
}

/// One copy, by the engines that its places need.
fn copy(gpu: &Shared, from: &Span, to: &mut Span) {
    let bytes = from.len();
    with_engines(gpu, from.place(), to.place(), bytes, || device_bytes_mut(to).copy_from_slice(device_bytes(from)));
}

fn with_engines(gpu: &Shared, from: Place, to: Place, bytes: usize, body: impl FnOnce()) {
    match (from, to) {
        (Place::Host { .. }, _) => occupy(&[&gpu.h2d], gpu.pace_in, bytes, body),
        (_, Place::Host { .. }) => occupy(&[&gpu.d2h], gpu.pace_out, bytes, body),
        (Place::Device { id: from, .. }, Place::Device { id: to, .. }) => {
            let other = if from == to { None } else { super::find(if from == gpu.id { to } else { from }) };
            let other = other.as_deref().unwrap_or(gpu);
            let (source, target) = if from == gpu.id { (gpu, other) } else { (other, gpu) };
            let pace = source.pace_peer.slower(target.pace_peer);
            occupy(&[&source.peer_out, &target.peer_in], pace, bytes, body);
        }
    }
}

fn move_pieces(gpu: &Shared, from: &Span, to: &mut Span, pieces: &[Piece], by: Mover) {
    let (source, target) = (from.place(), to.place());
    let (from, to) = (device_bytes(from), device_bytes_mut(to));
    let mut one = |piece: &Piece| {
        to[piece.to..piece.to + piece.len].copy_from_slice(&from[piece.from..piece.from + piece.len]);
    };
    let total = pieces.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.len));
    match by {
        Mover::Loop => {
            for piece in pieces {
                with_engines(gpu, source, target, piece.len, || one(piece));
            }
        }
        Mover::Batch => with_engines(gpu, source, target, total, || pieces.iter().for_each(one)),
        Mover::Kernel { blocks: _ } => occupy(&[&gpu.ee], gpu.kernel, total, || pieces.iter().for_each(one)),
    }
}

impl Shared {
    /// The pageable copy's DMA of one bounce buffer.
    pub(super) fn bounce(&self, inward: bool, bytes: usize, body: impl FnOnce()) {
        let (gate, pace) = if inward { (&self.h2d, self.pace_in) } else { (&self.d2h, self.pace_out) };
        occupy(&[gate], pace, bytes, body);
    }

    pub(super) fn reaches(&self, peer: DeviceId) -> bool {
        peer == self.id || self.peers && super::find(peer).is_some_and(|other| other.peers)
    }
}
