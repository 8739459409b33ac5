//! The threads before and behind the driver: one packs blocks ahead of their windows, one writes out what is delivered.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};

use headway_core::plan::Plan;
use headway_core::units::{Bytes, Nanos};

use super::Message;
use super::buffers::{Buffers, Ends, Kept};
use super::resident::KeptBlock;
use crate::blocks::{Collect, DataError, Supply};
use crate::program::LOOK;

/// A cycle whose result lies in its last buffer.
pub(super) struct Delivery {
    pub(super) pipeline: u32,
    pub(super) cycle: u64,
    pub(super) slot: usize,
    pub(super) block: Bytes,
    /// When it was delivered, after time zero.
    pub(super) at: Nanos,
    /// Given up: nothing in it is to be written.
    pub(super) lost: bool,
}

/// Why the feeder looks again at what it can pack.
pub(super) enum Feed {
    /// A cycle of this pipeline no longer holds buffers.
    Freed(u32),
    /// Something has come that was not there.
    Came,
}

/// Packs blocks in the order of their windows, as far ahead as buffers are free. What is not there yet waits, and nothing else with it.
///
/// It stands in for what fills buffers in a real system (a network card, a frame grabber), so it may run ahead of the
/// packets' arrival times; the dispatcher does not release a block before its window opens.
pub(super) struct Feeder {
    plan: Arc<Plan>,
    supply: Box<dyn Supply>,
    buffers: Arc<Buffers>,
    inbox: Sender<Message>,
    told: Receiver<Feed>,
    stop: Arc<AtomicBool>,
    /// Cycles of a pipeline that the dispatcher keeps open at a time.
    cycles_max: usize,
    pipelines: Vec<Progress>,
}

struct Progress {
    cycles: u64,
    next: u64,
    /// Blocks packed so far: the ring's slots are used in turn.
    packed: usize,
    /// Cycles whose blocks hold a slot, oldest first.
    under_way: VecDeque<u64>,
    slots: usize,
}

impl Progress {
    /// Whether the next cycle may be packed: a slot is free, and the dispatcher has room for it. Empty cycles hold no slot,
    /// so that the slots alone would let a sparse stream run ahead without bound.
    fn has_room(&self, cycles_max: usize) -> bool {
        let ahead = self.under_way.front().map_or(0, |oldest| self.next - oldest);
        self.under_way.len() < self.slots && ahead < cycles_max as u64
    }
}

impl Feeder {
    pub(super) fn new(
        plan: &Arc<Plan>,
        supply: Box<dyn Supply>,
        buffers: &Arc<Buffers>,
        cycles: &[u64],
        inbox: Sender<Message>,
        told: Receiver<Feed>,
        stop: Arc<AtomicBool>,
    ) -> Self {
        let progress = |(at, &cycles)| {
            let slots = buffers.slots(at);
            // Messages and flows need nobody to feed them.
            let cycles = if plan.pipelines[at as usize].source.is_fed() { cycles } else { 0 };
            Progress { cycles, next: 0, packed: 0, under_way: VecDeque::with_capacity(slots), slots }
        };
        let pipelines = (0u32..).zip(cycles).map(progress).collect();
        Self {
            plan: Arc::clone(plan),
            supply,
            buffers: Arc::clone(buffers),
            inbox,
            told,
            stop,
            cycles_max: usize::MAX,
            pipelines,
        }
    }

    /// Stays less than `cycles_max` cycles ahead of the oldest unfinished one of each pipeline.
    pub(super) fn within(self, cycles_max: usize) -> Self {
        Self { cycles_max, ..self }
    }

    pub(super) fn run(mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            while let Ok(told) = self.told.try_recv() {
                self.take(&told);
            }
            let packed = self.next().and_then(|next| next.map(|pipeline| self.pack(pipeline)).transpose());
            match packed {
                Ok(None) if self.pipelines.iter().all(|p| p.next >= p.cycles) => return,
                Ok(None) => match self.told.recv_timeout(LOOK) {
                    Ok(told) => self.take(&told),
                    // What brings packets may be silent for too long.
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                },
                Ok(Some(message)) => {
                    // A driver that has ended no longer listens: nothing is left to feed.
                    if self.inbox.send(message).is_err() {
                        return;
                    }
                }
                Err(error) => {
                    let _ = self.inbox.send(Message::Failed(error));
                    return;
                }
            }
        }
    }

    fn take(&mut self, told: &Feed) {
        if let Feed::Freed(pipeline) = *told {
            self.pipelines[pipeline as usize].under_way.pop_front();
        }
    }

    /// Of the pipelines whose next cycle has room and is there, the one whose window opens first.
    fn next(&mut self) -> Result<Option<u32>, DataError> {
        let mut first: Option<(Nanos, u32)> = None;
        for (at, progress) in (0u32..).zip(&self.pipelines) {
            if progress.next >= progress.cycles || !progress.has_room(self.cycles_max) {
                continue;
            }
            let key = (self.plan.pipelines[at as usize].release(progress.next, 0), at);
            if first.is_none_or(|first| key < first) && self.supply.is_ready(at, progress.next)? {
                first = Some(key);
            }
        }
        Ok(first.map(|(_, at)| at))
    }

    fn pack(&mut self, pipeline: u32) -> Result<Message, DataError> {
        let progress = &mut self.pipelines[pipeline as usize];
        let slot = progress.packed % self.buffers.slots(pipeline);
        let cycle = progress.next;
        let block = match self.buffers.first(pipeline) {
            Ends::Job(buffers) => {
                let supply = |buffers: &mut [&mut [u8]]| self.supply.supply(pipeline, cycle, slot, buffers);
                buffers.write(slot, cycle, supply)?.block
            }
            Ends::Resident(blocks) => blocks.brought(cycle),
            Ends::Messages(_) | Ends::Nowhere => unreachable!("only pipelines that are fed have cycles here"),
        };
        let progress = &mut self.pipelines[pipeline as usize];
        progress.next += 1;
        if block > Bytes(0) {
            progress.packed += 1;
            progress.under_way.push_back(cycle);
        }
        Ok(Message::Data { pipeline, cycle, slot, block })
    }
}

/// Writes out delivered blocks and gives their buffers back to the feeder.
pub(super) struct Sink {
    collect: Box<dyn Collect>,
    buffers: Arc<Buffers>,
    inbox: Sender<Message>,
    delivered: Receiver<Delivery>,
    free: Sender<Feed>,
    kept: Kept,
}

/// What the sink leaves to whoever ends the run.
pub(super) struct Sunk {
    pub(super) collect: Box<dyn Collect>,
    /// Blocks that were delivered and lie on a GPU.
    pub(super) kept: Kept,
}

impl Sink {
    pub(super) fn new(
        collect: Box<dyn Collect>,
        buffers: &Arc<Buffers>,
        inbox: Sender<Message>,
        delivered: Receiver<Delivery>,
        free: Sender<Feed>,
    ) -> Self {
        Self { collect, buffers: Arc::clone(buffers), inbox, delivered, free, kept: Kept::new() }
    }

    /// Takes what is delivered; `None` after a failure, of which the driver was told, unless a program's callback failed.
    pub(super) fn run(mut self) -> Option<Sunk> {
        while let Ok(delivery) = self.delivered.recv() {
            if let Err(error) = self.unpack(&delivery) {
                // What other streams gave is right where a program failed.
                let is_right = matches!(error, DataError::Callback(_));
                // A driver that has ended has its buffers error to report.
                let _ = self.inbox.send(Message::Failed(error));
                if !is_right {
                    return None;
                }
            }
            // A feeder that has packed everything no longer listens.
            let _ = self.free.send(Feed::Freed(delivery.pipeline));
        }
        Some(Sunk { collect: self.collect, kept: self.kept })
    }

    fn unpack(&mut self, delivery: &Delivery) -> Result<(), DataError> {
        let Delivery { pipeline, cycle, slot, block, at, lost } = *delivery;
        if lost {
            return self.collect.lose(pipeline, cycle);
        }
        match self.buffers.last(pipeline) {
            Ends::Job(buffers) => {
                buffers.read(slot, cycle, block, |blocks| self.collect.collect(at, pipeline, cycle, slot, blocks))
            }
            Ends::Resident(_) => {
                self.kept.entry(pipeline).or_default().push(KeptBlock { cycle, bytes: block, at });
                Ok(())
            }
            Ends::Messages(buffers) => buffers.landed(cycle),
            Ends::Nowhere => Ok(()),
        }
    }
}
