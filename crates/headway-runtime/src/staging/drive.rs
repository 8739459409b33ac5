//! The engine's side of a transfer: the calling thread submits what is full, polls queues, and calls workers back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use headway_core::decisions::staging::{BufferedChunk, StagingDirection, StagingOutcome};
use headway_core::units::Nanos;
use headway_device::gpu::Operation;
use headway_device::{Access, Buffer, DeviceError};

use super::exchange::{Ended, Fault, Round};
use super::line::Place;
use super::pool::Shared;
use super::stock::Slot;
use super::worker::StagingJob;
use super::workers::Signal;
use crate::at::At;
use crate::wait::WaitedTime;

/// Polls before the CPU is offered to others, and before parking where nothing is on an engine.
const SPINS: u32 = 256;
/// Polls between two looks at the clock.
const CLOCK_EVERY: u32 = 64;
/// Longest sleep; a bound on how late a cancellation is seen.
const NAP: Duration = Duration::from_millis(1);

/// One link of a transfer, with what it has of its pool; gives it back when dropped.
pub(super) struct Link {
    pub(super) shared: Arc<Shared>,
    /// One queue that takes all chunks in flight; on a relay one a chunk.
    pub(super) slots: Vec<Slot>,
    pub(super) slabs: Vec<Buffer>,
    /// Workers taken and not yet called.
    pub(super) workers: Vec<usize>,
    /// How many there should be; others join when they have nothing else to do.
    pub(super) wanted: usize,
    pub(super) place: Option<Place>,
    /// Since when the engine has been wanted and not granted.
    pub(super) blocked: Option<Instant>,
    pub(super) waited: Duration,
    /// Chunks submitted.
    pub(super) chunks: u64,
    /// It is a relay that was let go.
    pub(super) retired: bool,
    /// Its workers have nothing to do any more, and those that had not begun were called off.
    pub(super) recalled: bool,
}

impl Link {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::clone(shared),
            slots: Vec::new(),
            slabs: Vec::new(),
            workers: Vec::new(),
            wanted: 0,
            place: None,
            blocked: None,
            waited: Duration::ZERO,
            chunks: 0,
            retired: false,
            recalled: false,
        }
    }

    fn flying(&self) -> bool {
        self.slots.iter().any(|slot| slot.queue.outstanding() > 0)
    }

    /// Asks for the engine, or no longer.
    fn permit(&mut self, wanted: bool) -> bool {
        let Some(place) = &mut self.place else { return false };
        if !wanted {
            place.leave();
            self.blocked = None;
            return false;
        }
        let granted = place.take();
        match (granted, self.blocked) {
            (true, Some(since)) => {
                self.waited += since.elapsed();
                self.blocked = None;
            }
            (false, None) => self.blocked = Some(Instant::now()),
            (true, None) | (false, Some(_)) => {}
        }
        granted
    }

    /// Gives back what it has of its pool.
    fn give_back(&mut self) {
        let (slots, slabs) = (std::mem::take(&mut self.slots), std::mem::take(&mut self.slabs));
        self.shared.put(slots, slabs, self.place.take());
    }

    fn release(&mut self) {
        if let Some(place) = &mut self.place {
            place.release();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.workers.drain(..).for_each(|worker| self.shared.workers.release(worker));
        self.give_back();
    }
}

/// How driving ended.
pub(super) enum Ending {
    Over(StagingOutcome),
    /// Nothing moved for the bound; what the links' buffers did then.
    Stuck(String),
}

/// One transfer in progress. When dropped nobody but the caller has a hold on `job` any more.
pub(super) struct Drive<'a> {
    pub(super) links: Vec<Link>,
    pub(super) job: Arc<StagingJob>,
    pub(super) signal: Arc<Signal>,
    pub(super) device: At<'a>,
    pub(super) cancel: Option<&'a AtomicBool>,
    /// Of each relay, the bulk copies of its own GPU.
    pub(super) own: &'a [&'a AtomicU32],
    pub(super) patience: Nanos,
}

impl Drive<'_> {
    /// Calls the workers, and moves everything.
    pub(super) fn run(&mut self) -> Ending {
        for (index, link) in self.links.iter_mut().enumerate() {
            link.shared.workers.offer((Arc::clone(&self.job), index), link.wanted - link.workers.len());
            for worker in link.workers.drain(..) {
                link.shared.workers.call(worker, (Arc::clone(&self.job), index));
            }
        }
        let mut ended = Vec::new();
        let mut round = Round::default();
        let (mut first, mut quiet, mut waited) = (true, 0u32, WaitedTime::new(self.patience));
        loop {
            if self.cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
                self.cancel = None;
                self.job.exchange.cancel();
            }
            self.retire(&mut round);
            self.poll(&mut ended);
            if first || self.signal.take() || !ended.is_empty() {
                (first, quiet) = (false, 0);
                waited.restart();
                if let Some(outcome) = self.round(&mut ended, &mut round) {
                    return Ending::Over(outcome);
                }
                continue;
            }
            quiet = quiet.saturating_add(1);
            let slept = self.pause(quiet);
            if slept || quiet.is_multiple_of(CLOCK_EVERY) {
                // Copies that were given up stand in the line until somebody asks whether they have ended.
                self.links.iter().filter(|link| link.blocked.is_some()).for_each(|link| link.shared.stock().reclaim());
                if waited.is_over() {
                    return Ending::Stuck(self.give_up());
                }
            }
        }
    }

    /// Lets go of relays whose GPUs have copies of their own; what they have of their pools goes back once no chunk is in it.
    fn retire(&mut self, round: &mut Round) {
        let relays = self.links.iter_mut().enumerate().skip(1);
        for ((index, link), own) in relays.zip(self.own) {
            if !link.retired && own.load(Ordering::Relaxed) > 0 {
                link.retired = true;
                self.job.exchange.retire(index, &mut round.called);
            }
            // Not before: on the way out a chunk that the engine has brought still needs somebody who copies it on.
            if link.retired && !link.recalled && self.job.exchange.worker_is_done(index) {
                link.recalled = true;
                link.shared.workers.recall(|(job, at)| Arc::ptr_eq(job, &self.job) && *at == index);
            }
            let holds = link.retired && !link.slots.is_empty() && !link.flying();
            if holds && self.job.exchange.is_empty(index) {
                link.give_back();
            }
        }
        self.call(round);
    }

    /// Collects what has ended on the queues.
    fn poll(&mut self, ended: &mut Vec<Ended>) {
        for (index, link) in self.links.iter_mut().enumerate() {
            for slot in 0..link.slots.len() {
                while let Some(done) = link.slots[slot].queue.poll() {
                    link.release();
                    if let Err(error) = &done.result {
                        link.slots[slot].clean = false;
                        if *error == DeviceError::DeviceLost {
                            link.shared.lose();
                        }
                    }
                    let result = done.result.map_err(Fault::Device);
                    ended.push(Ended { link: index, buffer: done.tag as u32, result });
                }
            }
        }
    }

    fn round(&mut self, ended: &mut Vec<Ended>, round: &mut Round) -> Option<StagingOutcome> {
        let links = &mut self.links;
        let outcome = self.job.exchange.round(ended, |link, wanted| links[link].permit(wanted), round);
        // The engine first: calling a worker may take a system call.
        for (index, task) in round.tasks.drain(..) {
            if let Err(error) = self.submit(index, task) {
                let link = &mut self.links[index];
                link.release();
                if error == DeviceError::DeviceLost {
                    link.shared.lose();
                }
                ended.push(Ended { link: index, buffer: task.buffer, result: Err(Fault::Device(error)) });
            }
        }
        self.call(round);
        outcome
    }

    /// Calls workers back.
    fn call(&self, round: &mut Round) {
        for (index, worker) in round.called.drain(..) {
            self.links[index].shared.workers.call(worker, (Arc::clone(&self.job), index));
        }
    }

    fn submit(&mut self, index: usize, task: BufferedChunk) -> Result<(), DeviceError> {
        let link = &mut self.links[index];
        let range = self.job.cuts.chunk(task.chunk);
        let range = self.device.offset + range.start as usize..self.device.offset + range.end as usize;
        let bytes = range.len();
        let (from, to) = match self.job.flow {
            StagingDirection::In => {
                (self.job.staged(index, task, Access::Read)?, self.device.buffer.claim(range, Access::Write)?)
            }
            StagingDirection::Out => {
                (self.device.buffer.claim(range, Access::Read)?, self.job.staged(index, task, Access::Write)?)
            }
        };
        let slot =
            link.slots.iter_mut().min_by_key(|slot| slot.queue.outstanding()).expect("a link in use has a queue");
        let what = match &slot.through {
            None => Operation::Copy { from, to },
            Some(memory) => Operation::Relay { from, through: memory.claim(0..bytes, Access::Write)?, to },
        };
        slot.queue.submit(what, u64::from(task.buffer))?;
        link.chunks += 1;
        link.place.iter().for_each(|place| place.moved(bytes as u64));
        Ok(())
    }

    /// Passes a little time; whether it slept.
    fn pause(&self, quiet: u32) -> bool {
        if quiet < SPINS {
            std::hint::spin_loop();
        } else if self.links.iter().any(Link::flying) {
            headway_os::sched::yield_now();
        } else if quiet > SPINS || !self.signal.comes() {
            self.signal.nap(NAP);
            return true;
        }
        false
    }

    /// Stops, and waits for the workers: their copies end, and they use the caller's memory.
    fn give_up(&mut self) -> String {
        let mut state = String::new();
        for (index, (census, waiting)) in self.job.exchange.census().into_iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            state += &format!(
                "{separator}link {index}: {} buffers free, {} full, {} with threads, {} on the engine, {waiting} threads \
                 without work",
                census.empty, census.full, census.copying, census.flying
            );
            state += if self.links[index].blocked.is_some() { ", waiting for others on the engine" } else { "" };
        }
        self.job.exchange.cancel();
        while self.job.exchange.census().iter().any(|(census, _)| census.copying > 0) {
            headway_os::sched::yield_now();
        }
        state
    }

    /// Lets go of all workers; afterwards nobody else has the job.
    pub(super) fn dismiss(&mut self) {
        for link in &self.links {
            link.shared.workers.recall(|(job, _)| Arc::ptr_eq(job, &self.job));
        }
        for (link, worker) in self.job.exchange.dismiss() {
            self.links[link].shared.workers.release(worker);
        }
        let mut tries = 0u32;
        while Arc::get_mut(&mut self.job).is_none() {
            tries = tries.saturating_add(1);
            if tries < SPINS { std::hint::spin_loop() } else { headway_os::sched::yield_now() }
        }
    }
}

impl Drop for Drive<'_> {
    fn drop(&mut self) {
        // Only after a panic is there anything left to stop.
        self.job.exchange.cancel();
        self.dismiss();
    }
}
