//! Lanes of an emulated port: one thread each, first in, first out.

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
use crate::port::{Argument, CpuArgument, Done, Lane, Move, Mover, Piece};
use crate::{DeviceError, check};

/// A lane of an emulated port.
pub(super) struct EmuLane {
    port: Arc<Shared>,
    queue: Arc<Queue>,
    keeps_time: bool,
    outstanding: usize,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<(Move, u64)>,
    done: VecDeque<Done>,
    stop: bool,
}

impl EmuLane {
    /// The caller has counted it in `port.lanes`.
    pub(super) fn start(port: Arc<Shared>, keeps_time: bool) -> Result<Self, DeviceError> {
        let queue = Arc::new(Queue::default());
        let mut lane = Self { port, queue, keeps_time, outstanding: 0, thread: None };
        let (port, queue) = (Arc::clone(&lane.port), Arc::clone(&lane.queue));
        let thread = std::thread::Builder::new().name("headway-emu-lane".into()).spawn(move || serve(&port, &queue));
        lane.thread = Some(thread.map_err(|error| DeviceError::Unavailable {
            what: "a thread for an emulated lane".into(),
            reason: error.to_string(),
            remedy: "raise the limit on threads".into(),
        })?);
        Ok(lane)
    }
}

impl Lane for EmuLane {
    fn submit(&mut self, what: Move, tag: u64) -> Result<(), DeviceError> {
        self.port.alive()?;
        check::movement(self.port.here(), &what, |peer| self.port.reaches(peer))?;
        let max = self.port.description.limits.outstanding_per_engine_max;
        if self.outstanding >= max {
            return Err(DeviceError::Refused { limit: "outstanding_per_engine_max", max: max as u64 });
        }
        self.outstanding += 1;
        lock(&self.queue.state).jobs.push_back((what, tag));
        self.queue.changed.notify_one();
        Ok(())
    }

    fn poll(&mut self) -> Option<Done> {
        if self.outstanding == 0 {
            return None;
        }
        let done = lock(&self.queue.state).done.pop_front()?;
        self.outstanding -= 1;
        Some(Done { device_time: done.device_time.filter(|_| self.keeps_time), ..done })
    }

    fn outstanding(&self) -> usize {
        self.outstanding
    }
}

impl Drop for EmuLane {
    fn drop(&mut self) {
        lock(&self.queue.state).stop = true;
        self.queue.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread contains the panics of its work; should one escape there is nothing left to save.
            let _ = thread.join();
        }
        self.port.lanes.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The loop of a lane's thread; ends when the lane is dropped and nothing is left to do.
fn serve(port: &Shared, queue: &Queue) {
    // Without it, every throttled move would end up to 50 us late; a refusal only costs that precision.
    let _ = sched::lower_timer_slack();
    loop {
        let mut state = lock(&queue.state);
        while state.jobs.is_empty() && !state.stop {
            state = queue.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let Some((mut what, tag)) = state.jobs.pop_front() else { return };
        drop(state);
        let started = clock::now();
        let result = port.alive().and_then(|()| {
            catch_unwind(AssertUnwindSafe(|| execute(port, &mut what))).unwrap_or_else(|_| {
                port.lost.store(true, Ordering::Release);
                Err(DeviceError::DeviceLost)
            })
        });
        drop(what);
        let device_time = Some(clock::now().saturating_sub(started));
        lock(&queue.state).done.push_back(Done { tag, result, device_time });
    }
}

fn execute(port: &Shared, what: &mut Move) -> Result<(), DeviceError> {
    match what {
        Move::Copy { from, to } => copy(port, from, to),
        Move::Relay { from, through, to } => {
            copy(port, from, through);
            copy(port, through, to);
        }
        Move::Pieces { from, to, pieces, by } => move_pieces(port, from, to, pieces, *by),
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
            return occupy(&[&port.ee], port.launch, 0, || program.run(*grid, &mut arguments));
        }
    }
    Ok(())
}

/// One copy, by the engines that its places need.
fn copy(port: &Shared, from: &Span, to: &mut Span) {
    let bytes = from.len();
    with_engines(port, from.place(), to.place(), bytes, || device_bytes_mut(to).copy_from_slice(device_bytes(from)));
}

fn with_engines(port: &Shared, from: Place, to: Place, bytes: usize, body: impl FnOnce()) {
    match (from, to) {
        (Place::Host { .. }, _) => occupy(&[&port.h2d], port.pace_in, bytes, body),
        (_, Place::Host { .. }) => occupy(&[&port.d2h], port.pace_out, bytes, body),
        (Place::Device { id: from, .. }, Place::Device { id: to, .. }) => {
            let other = if from == to { None } else { super::find(if from == port.id { to } else { from }) };
            let other = other.as_deref().unwrap_or(port);
            let (source, target) = if from == port.id { (port, other) } else { (other, port) };
            let pace = source.pace_peer.slower(target.pace_peer);
            occupy(&[&source.peer_out, &target.peer_in], pace, bytes, body);
        }
    }
}

fn move_pieces(port: &Shared, from: &Span, to: &mut Span, pieces: &[Piece], by: Mover) {
    let (source, target) = (from.place(), to.place());
    let (from, to) = (device_bytes(from), device_bytes_mut(to));
    let mut one = |piece: &Piece| {
        to[piece.to..piece.to + piece.len].copy_from_slice(&from[piece.from..piece.from + piece.len]);
    };
    let total = pieces.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.len));
    match by {
        Mover::Loop => {
            for piece in pieces {
                with_engines(port, source, target, piece.len, || one(piece));
            }
        }
        Mover::Batch => with_engines(port, source, target, total, || pieces.iter().for_each(one)),
        Mover::Kernel { blocks: _ } => occupy(&[&port.ee], port.kernel, total, || pieces.iter().for_each(one)),
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
