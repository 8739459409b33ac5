//! `staged`: the double-queue pipeline between ordinary host memory and a GPU (Cho 2018), over one link or several
//! (`multipath`), as a state machine without threads, clock or memory.
//!
//! Workers copy between ordinary memory and pinned buffers, engines between pinned buffers and the GPU. On the way in a
//! worker fills a buffer and the engine empties it; on the way out the engine fills and a worker drains. Whoever fills takes
//! a free buffer first and then the next index, so that every claimed chunk owns a buffer and no order of events can block.
//!
//! Workers may also share each chunk, a part each. The first chunk is then ready after the n-th part of the time, and a few
//! buffers that stay in the cache serve any number of workers.
//! Links share nothing but the counter of indices: one that is slow claims less.

mod cuts;

use std::collections::VecDeque;
use std::ops::Range;

pub use self::cuts::{Cuts, Ramp};
pub use crate::models::transfer::SPARE_BUFFERS;
use crate::units::Bytes;

/// Most parts of one chunk.
pub const PARTS_MAX: u32 = u64::BITS;

/// Parts of long copies are this long, twice that where links share a copy, and with it one lock: workers get their parts one
/// after the other. By what chunks of ten small parts took longer than large ones on H200s, that is one to three microseconds
/// each.
const PART: u64 = 512 << 10;
/// Parts of short copies, of which every worker shall have [`PARTS_EACH`] all the same, are not below this.
const PART_MIN: u64 = 64 << 10;
const PARTS_EACH: u64 = 16;

/// Into the GPU, or out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StagingDirection {
    /// Host to GPU: workers fill, engines drain.
    In,
    /// GPU to host: engines fill, workers drain.
    Out,
}

/// In which order full buffers go to the engine on the way in. On the way out chunks are always submitted by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SubmitOrder {
    /// As they become full.
    Arrival,
    /// By index: none before a lower one of the same link.
    Index,
}

/// What one link has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkShape {
    /// Parts in which workers copy each chunk, one part a worker at a time (Cho 2018: 1), [`PARTS_MAX`] at most; 0 = no
    /// workers: the engine reaches the caller's memory itself, and buffers are mere slots.
    pub parts: u32,
    /// Pinned buffers (Cho 2018: twice the workers), or slots.
    pub buffers: u32,
    /// Chunks on the engine at a time, at least 1.
    pub in_flight: u32,
}

impl LinkShape {
    /// A link whose `workers` share chunks of at most `chunk` bytes with as few meetings as keep all of them at work, of a copy
    /// of `total` bytes over `links` such links, with `in_flight` chunks on the engine.
    #[must_use]
    pub fn sharing(workers: u32, in_flight: u32, chunk: Bytes, total: Bytes, links: u32) -> Self {
        let (workers, links, in_flight) = (workers.max(1), links.max(1), in_flight.max(1));
        let even = total.0 / u64::from(workers).saturating_mul(u64::from(links)).saturating_mul(PARTS_EACH);
        let part = even.clamp(PART_MIN, PART * u64::from(links.min(2)));
        let parts = (chunk.0 / part).clamp(1, u64::from(workers.min(PARTS_MAX))) as u32;
        // Chunks that workers have at a time.
        let shared = workers.div_ceil(parts);
        let buffers = in_flight.saturating_add(SPARE_BUFFERS).saturating_add(shared - 1);
        Self { parts, buffers, in_flight }
    }
}

/// A buffer and the chunk in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferedChunk {
    /// The buffer, counted within its link.
    pub buffer: u32,
    pub chunk: u64,
}

/// What a worker does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkerStep {
    /// Copy this part of the chunk from the caller's memory into the buffer, then report.
    Fill(BufferedChunk, u32),
    /// Copy this part of the buffer into the chunk of the caller's memory, then report.
    Drain(BufferedChunk, u32),
    /// Nothing now; ask again after another party's report.
    Wait,
    /// Nothing ever again on this link.
    Done,
}

/// What an engine does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EngineStep {
    /// Submit the chunk, then report its end.
    Submit(BufferedChunk),
    /// Nothing now; ask again after another party's report.
    Wait,
    /// Nothing ever again on this link.
    Done,
}

/// How a pipeline ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StagingOutcome {
    /// Every chunk is in place.
    Complete,
    /// A chunk failed; it is the first one that was reported.
    Failed { chunk: u64 },
    /// It was cancelled before its end.
    Cancelled,
}

/// Where a link's buffers are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Census {
    /// Free to be filled.
    pub empty: u32,
    /// Workers copy into or out of them.
    pub copying: u32,
    /// They wait for the engine (in) or a worker (out).
    pub full: u32,
    /// On the engine.
    pub flying: u32,
}

/// One buffer. All but `Empty` hold a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    Empty,
    /// Of the chunk's parts, those `claimed` (a bit each), of which `done` have been copied.
    Copying {
        chunk: u64,
        claimed: u64,
        done: u32,
    },
    Full(u64),
    Flying(u64),
}

impl State {
    const fn chunk(self) -> Option<u64> {
        match self {
            Self::Empty => None,
            Self::Copying { chunk, .. } | Self::Full(chunk) | Self::Flying(chunk) => Some(chunk),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Link {
    parts: u32,
    /// The buffer of which parts are still to be claimed.
    open: Option<u32>,
    in_flight: u32,
    flying: u32,
    /// It claims no more chunks.
    retired: bool,
    buffers: Vec<State>,
    /// Free buffers, in the order in which they became free.
    empty: VecDeque<u32>,
    /// Full buffers in the order of their filling; at most as many as there are buffers.
    full: Vec<u32>,
}

/// One transfer.
///
/// Every `*_next` that hands out a [`BufferedChunk`] is answered by one `*_done` for its buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StagingPipeline {
    flow: StagingDirection,
    order: SubmitOrder,
    chunks: u64,
    /// The index that is claimed next.
    next: u64,
    links: Vec<Link>,
    stop: Option<StagingOutcome>,
    /// The lowest claimed chunk that never will be in place.
    lost: u64,
}

impl StagingPipeline {
    /// A transfer of `chunks` chunks over `links`. A link without buffers carries nothing.
    #[must_use]
    pub fn new(flow: StagingDirection, order: SubmitOrder, chunks: u64, links: &[LinkShape]) -> Self {
        let link = |shape: &LinkShape| Link {
            parts: shape.parts.min(PARTS_MAX),
            open: None,
            in_flight: shape.in_flight.max(1),
            flying: 0,
            retired: false,
            buffers: vec![State::Empty; shape.buffers as usize],
            empty: (0..shape.buffers).rev().collect(),
            full: Vec::with_capacity(shape.buffers as usize),
        };
        Self { flow, order, chunks, next: 0, links: links.iter().map(link).collect(), stop: None, lost: u64::MAX }
    }

    /// What a free worker of `link` does, if possible in place `preferred` of the chunk: a worker that always has the same place finds
    /// it in its own cache.
    pub fn worker_next(&mut self, link: usize, preferred: u32) -> WorkerStep {
        if self.worker_is_done(link) {
            return WorkerStep::Done;
        }
        if self.links[link].open.is_none() {
            let begun = match self.flow {
                StagingDirection::In => self.claim(link, State::begun).map(|task| task.buffer),
                StagingDirection::Out => self.links[link].begin_full(),
            };
            self.links[link].open = begun;
        }
        match (self.links[link].claim_part(preferred), self.flow) {
            (None, _) => WorkerStep::Wait,
            (Some((task, part)), StagingDirection::In) => WorkerStep::Fill(task, part),
            (Some((task, part)), StagingDirection::Out) => WorkerStep::Drain(task, part),
        }
    }

    /// Whether workers of `link` have nothing to do any more, now and later.
    #[must_use]
    pub fn worker_is_done(&self, link: usize) -> bool {
        let link = &self.links[link];
        let claimed = self.next == self.chunks || link.retired;
        let more = match self.flow {
            StagingDirection::In => !claimed,
            StagingDirection::Out => !claimed || link.flying > 0 || !link.full.is_empty(),
        };
        link.parts == 0 || self.stop.is_some() || !(more || link.open.is_some())
    }

    /// A worker has copied its part; `ok = false` stops the transfer. Whether that was the last part that anybody had: the
    /// engine may have something to do now.
    ///
    /// # Panics
    /// If no worker had that buffer.
    pub fn worker_done(&mut self, link: usize, buffer: u32, ok: bool) -> bool {
        let State::Copying { chunk, done, .. } = &mut self.links[link].buffers[buffer as usize] else {
            panic!("buffer {buffer} of link {link} was not with a worker")
        };
        *done += 1;
        let chunk = *chunk;
        if !ok {
            self.fail(chunk);
        }
        let State::Copying { claimed, done, .. } = self.links[link].buffers[buffer as usize] else { return true };
        let whole = done == self.links[link].parts;
        if done < claimed.count_ones() || !(whole || self.stop.is_some()) {
            return false;
        }
        match self.flow {
            StagingDirection::In if self.stop.is_none() => self.links[link].fill(buffer, chunk),
            // One that failed is lost already.
            StagingDirection::Out if whole => self.links[link].free(buffer),
            // What is full after a stop goes nowhere.
            _ => self.lose(link, buffer, chunk),
        }
        true
    }

    /// Whether [`StagingPipeline::engine_next`] would hand out a chunk.
    #[must_use]
    pub fn engine_is_ready(&self, link: usize) -> bool {
        let state = &self.links[link];
        if self.stop.is_some() || state.flying >= state.in_flight {
            return false;
        }
        if self.engine_claims(link) {
            self.next < self.chunks && !state.retired && !state.empty.is_empty()
        } else {
            state.submittable(self.order).is_some()
        }
    }

    /// What the engine of `link` does, as far as its bound on chunks in flight lets it.
    pub fn engine_next(&mut self, link: usize) -> EngineStep {
        if self.engine_is_ready(link) {
            let claimed = if self.engine_claims(link) { self.claim(link, State::Flying) } else { self.take_full(link) };
            if let Some(task) = claimed {
                self.links[link].flying += 1;
                return EngineStep::Submit(task);
            }
        }
        let state = &self.links[link];
        let claimed = self.next == self.chunks || self.stop.is_some() || state.retired;
        let holds_work = match self.flow {
            StagingDirection::In => state.buffers.iter().any(|state| *state != State::Empty),
            StagingDirection::Out => false,
        };
        if claimed && !holds_work && state.flying == 0 { EngineStep::Done } else { EngineStep::Wait }
    }

    /// A submitted chunk has ended, or was refused; `ok = false` stops the transfer.
    ///
    /// # Panics
    /// If that buffer was not on the engine.
    pub fn engine_done(&mut self, link: usize, buffer: u32, ok: bool) {
        let State::Flying(chunk) = self.links[link].buffers[buffer as usize] else {
            panic!("buffer {buffer} of link {link} was not on the engine")
        };
        self.links[link].flying -= 1;
        if !ok {
            self.fail(chunk);
        }
        let to_worker = self.flow == StagingDirection::Out && self.links[link].parts > 0;
        match ok {
            true if !to_worker => self.links[link].free(buffer),
            true if self.stop.is_none() => self.links[link].fill(buffer, chunk),
            _ => self.lose(link, buffer, chunk),
        }
    }

    /// Stops: no more chunks are claimed or submitted, those on an engine or with a worker end. Too late after the end.
    pub fn cancel(&mut self) {
        if self.outcome().is_none() {
            self.halt(StagingOutcome::Cancelled);
        }
    }

    /// `link` claims no more chunks; those it has go on. The others move the rest.
    ///
    /// # Panics
    /// If it is the first link, which stays to the end.
    pub fn retire(&mut self, link: usize) {
        assert!(link > 0, "the first link stays");
        if self.outcome().is_none() {
            self.links[link].retired = true;
        }
    }

    /// How it ended; `None` while a buffer is in use or chunks remain. Nothing changes after it.
    #[must_use]
    pub fn outcome(&self) -> Option<StagingOutcome> {
        let idle = self.links.iter().all(|link| link.empty.len() == link.buffers.len());
        if !idle {
            return None;
        }
        self.stop.or_else(|| (self.next == self.chunks).then_some(StagingOutcome::Complete))
    }

    /// Whether it was stopped by a failure or by [`StagingPipeline::cancel`].
    #[must_use]
    pub const fn is_stopped(&self) -> bool {
        self.stop.is_some()
    }

    /// Every chunk below it is in place; never decreases.
    #[must_use]
    pub fn completed_prefix(&self) -> u64 {
        let held = self.links.iter().flat_map(|link| &link.buffers).filter_map(|state| state.chunk()).min();
        self.next.min(self.lost).min(held.unwrap_or(u64::MAX))
    }

    /// Where the buffers of `link` are.
    #[must_use]
    pub fn census(&self, link: usize) -> Census {
        let mut census = Census::default();
        for state in &self.links[link].buffers {
            *match state {
                State::Empty => &mut census.empty,
                State::Copying { .. } => &mut census.copying,
                State::Full(_) => &mut census.full,
                State::Flying(_) => &mut census.flying,
            } += 1;
        }
        census
    }

    /// The chunks claimed so far, of how many.
    #[must_use]
    pub const fn claimed(&self) -> Range<u64> {
        self.next..self.chunks
    }

    /// Parts that [`StagingPipeline::worker_next`] would hand out for `link` one after the other: how many workers would find work.
    #[must_use]
    pub fn work(&self, link: usize) -> u64 {
        let link = &self.links[link];
        let whole = match self.flow {
            _ if self.stop.is_some() => 0,
            StagingDirection::In if link.retired => 0,
            StagingDirection::In => (link.empty.len() as u64).min(self.chunks - self.next),
            StagingDirection::Out => link.full.len() as u64,
        };
        let open = link.open.map_or(0, |buffer| match link.buffers[buffer as usize] {
            State::Copying { claimed, .. } => link.parts - claimed.count_ones(),
            _ => 0,
        });
        whole.saturating_mul(u64::from(link.parts)).saturating_add(u64::from(open))
    }

    /// Whether the engine of `link` claims indices itself.
    fn engine_claims(&self, link: usize) -> bool {
        self.flow == StagingDirection::Out || self.links[link].parts == 0
    }

    fn claim(&mut self, link: usize, into: fn(u64) -> State) -> Option<BufferedChunk> {
        if self.next == self.chunks {
            return None;
        }
        let link = &mut self.links[link];
        if link.retired {
            return None;
        }
        // In: the buffer used last is the one most likely in a cache, where it is filled fastest. Out: the one used longest ago;
        // what is still in the own caches of the cores that emptied it, the engine fills at half its rate.
        let buffer = match self.flow {
            StagingDirection::In => link.empty.pop_back(),
            StagingDirection::Out => link.empty.pop_front(),
        }?;
        let chunk = self.next;
        self.next += 1;
        link.buffers[buffer as usize] = into(chunk);
        Some(BufferedChunk { buffer, chunk })
    }

    fn take_full(&mut self, link: usize) -> Option<BufferedChunk> {
        let link = &mut self.links[link];
        let buffer = link.full.remove(link.submittable(self.order)?);
        let chunk = link.chunk(buffer);
        link.buffers[buffer as usize] = State::Flying(chunk);
        Some(BufferedChunk { buffer, chunk })
    }

    fn fail(&mut self, chunk: u64) {
        self.lost = self.lost.min(chunk);
        self.halt(StagingOutcome::Failed { chunk });
    }

    fn halt(&mut self, why: StagingOutcome) {
        if self.stop.is_some() {
            return;
        }
        self.stop = Some(why);
        for link in 0..self.links.len() {
            // Its other parts will not be copied; who copies one now gives it back.
            if let Some(buffer) = self.links[link].open.take()
                && let State::Copying { chunk, claimed, done } = self.links[link].buffers[buffer as usize]
                && claimed.count_ones() == done
            {
                self.lose(link, buffer, chunk);
            }
            while let Some(buffer) = self.links[link].full.pop() {
                let chunk = self.links[link].chunk(buffer);
                self.lose(link, buffer, chunk);
            }
        }
    }

    fn lose(&mut self, link: usize, buffer: u32, chunk: u64) {
        self.lost = self.lost.min(chunk);
        self.links[link].free(buffer);
    }
}

impl State {
    const fn begun(chunk: u64) -> Self {
        Self::Copying { chunk, claimed: 0, done: 0 }
    }
}

impl Link {
    /// Begins to empty the buffer that has been full for longest.
    fn begin_full(&mut self) -> Option<u32> {
        if self.full.is_empty() {
            return None;
        }
        let buffer = self.full.remove(0);
        self.buffers[buffer as usize] = State::begun(self.chunk(buffer));
        Some(buffer)
    }

    /// A part of the open buffer, which is not open any more after its last one: `preferred`, or the first that is left.
    fn claim_part(&mut self, preferred: u32) -> Option<(BufferedChunk, u32)> {
        let buffer = self.open?;
        let State::Copying { chunk, claimed, .. } = &mut self.buffers[buffer as usize] else {
            unreachable!("an open buffer is being copied")
        };
        let preferred = preferred % self.parts;
        let part = if *claimed >> preferred & 1 == 0 { preferred } else { claimed.trailing_ones() };
        *claimed |= 1 << part;
        let task = BufferedChunk { buffer, chunk: *chunk };
        if claimed.count_ones() == self.parts {
            self.open = None;
        }
        Some((task, part))
    }

    fn chunk(&self, buffer: u32) -> u64 {
        self.buffers[buffer as usize].chunk().expect("only buffers that hold a chunk are in use")
    }

    fn free(&mut self, buffer: u32) {
        self.buffers[buffer as usize] = State::Empty;
        self.empty.push_back(buffer);
    }

    fn fill(&mut self, buffer: u32, chunk: u64) {
        self.buffers[buffer as usize] = State::Full(chunk);
        self.full.push(buffer);
    }

    /// The place in `full` of the buffer that the engine takes next.
    fn submittable(&self, order: SubmitOrder) -> Option<usize> {
        match order {
            SubmitOrder::Arrival => (!self.full.is_empty()).then_some(0),
            SubmitOrder::Index => {
                let (place, buffer) = self.full.iter().enumerate().min_by_key(|(_, buffer)| self.chunk(**buffer))?;
                let lowest = self.chunk(*buffer);
                let behind = |state: &State| matches!(state, State::Copying { chunk, .. } if *chunk < lowest);
                (!self.buffers.iter().any(behind)).then_some(place)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn shape(workers: u32, chunk: u64, total: u64, links: u32) -> (u32, u32) {
        let LinkShape { parts, buffers, in_flight } = LinkShape::sharing(workers, 3, Bytes(chunk), Bytes(total), links);
        assert_eq!(in_flight, 3);
        // Beside the chunks on the engine there is one for every worker, one that is full, and one that its last worker has.
        assert!((buffers - in_flight - 2) * parts >= workers, "{parts} {buffers}");
        (parts, buffers)
    }

    #[test]
    fn parts_are_long_where_the_copy_is_and_every_worker_has_one() {
        assert_eq!(shape(10, 8 * MIB, 1 << 30, 1), (10, 6));
        assert_eq!(shape(10, 2 * MIB, 1 << 30, 1), (4, 8));
        assert_eq!(shape(10, 2 * MIB, 1 << 30, 4), (2, 10));
        assert_eq!(shape(12, MIB / 4, 1 << 30, 1), (1, 17));
        // Of a short copy all get some.
        assert_eq!(shape(6, MIB / 2, MIB, 1), (6, 6));
        assert_eq!(shape(0, 0, 0, 0), (1, 6));
    }
}
