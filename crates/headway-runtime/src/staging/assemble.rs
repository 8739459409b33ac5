//! What one transfer takes of its links' pools: workers, pinned buffers, queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headway_core::decisions::staging::{Cuts, LinkShape, Ramp, StagingDirection, StagingPipeline};
use headway_core::units::Bytes;
use headway_device::{Buffer, DeviceError};

use super::drive::{Drive, Link};
use super::exchange::Exchange;
use super::pool::Shared;
use super::worker::{Pinned, StagingJob};
use super::workers::Signal;
use super::{Staged, StagingError, StagingPool};
use crate::at::At;

/// Boundary of buffers within a slab: no line is shared by two.
const LINE: u64 = 64;
/// Pinned memory that is short is cut into smaller buffers down to this size, before there are fewer of them.
const BUFFER_MIN: u64 = 64 << 10;

/// A copy to be assembled.
pub(super) struct Request<'a> {
    pub(super) flow: StagingDirection,
    pub(super) device: At<'a>,
    pub(super) host: &'a Buffer,
    pub(super) host_at: usize,
    /// Where the copy begins in the caller's memory: what its chunks are aligned to.
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) how: &'a Staged<'a>,
    /// Whether workers copy; else the engines reach the host memory themselves.
    pub(super) workers: bool,
}

impl<'a> Request<'a> {
    /// Takes everything the copy needs. A relay that has nothing free is left out; the target must have some of everything.
    pub(super) fn assemble(&self, pools: &[&StagingPool]) -> Result<Drive<'a>, StagingError> {
        let target = &pools[0].shared;
        let tuning = &self.how.tuning;
        let signal = Signal::here();
        let mut buffer = tuning.buffer.0.max(1);
        if self.workers {
            buffer = buffer.min(pools.iter().map(|pool| pool.shared.slab_bytes()).min().unwrap_or(1));
        }
        let mut links = Vec::with_capacity(pools.len());
        for (index, pool) in pools.iter().enumerate() {
            let mut link = Link::new(&pool.shared);
            // On a relay first what decides whether it takes part.
            let own = index.checked_sub(1).and_then(|relay| self.how.own.get(relay));
            if index > 0 && own.is_none_or(|own| own.load(Ordering::Relaxed) == 0) {
                link.slots = pool.shared.take_relays(tuning.in_flight.max(1) as usize, buffer as usize);
            }
            if self.workers && (index == 0 || !link.slots.is_empty()) {
                self.take_pinned(&mut link, buffer, pools.len());
            }
            links.push(link);
        }
        if self.workers && links[0].workers.is_empty() {
            return Err(StagingError::Busy { gpu: target.name(), what: "threads" });
        }
        if self.workers && links[0].slabs.is_empty() {
            return Err(StagingError::Busy { gpu: target.name(), what: "pinned memory" });
        }
        links[0].slots.push(target.take_queue().map_err(StagingError::Request)?);

        let cuts = self.cut(&links, buffer);
        let (shapes, pinned) = self.shape(&mut links, &cuts);
        for (link, shape) in links.iter_mut().zip(&shapes) {
            link.place = Some(link.shared.place(self.flow, Bytes(buffer), shape.in_flight, &signal));
        }
        let workers: Vec<usize> = links.iter().map(|link| link.shared.workers.len()).collect();
        let pipeline = StagingPipeline::new(self.flow, self.how.order, cuts.count(), &shapes);
        let job = Arc::new(StagingJob {
            exchange: Exchange::new(pipeline, &workers, &signal),
            flow: self.flow,
            cuts,
            parts: shapes.iter().map(|shape| shape.parts).collect(),
            host: self.host.clone(),
            host_at: self.host_at,
            pinned,
            stores: tuning.stores,
            populate: self.how.populate && self.flow == StagingDirection::In,
            copy_loop: Arc::clone(&target.copy_loop),
            cpu: AtomicU64::new(0),
        });
        let patience = target.options.patience;
        let (cancel, own) = (self.how.cancel, self.how.own);
        Ok(Drive { links, job, signal, device: self.device, cancel, own, patience })
    }

    /// What `link`, one of so many, should have for chunks of `chunk` bytes.
    fn wanted(&self, link: &Link, chunk: u64, links: usize) -> LinkShape {
        let in_flight = self.how.tuning.in_flight;
        LinkShape::sharing(link.wanted as u32, in_flight, Bytes(chunk), Bytes(self.bytes), links as u32)
    }

    /// Takes workers, and pinned memory for them.
    fn take_pinned(&self, link: &mut Link, buffer: u64, links: usize) {
        let chunks = self.bytes.div_ceil(buffer.min(BUFFER_MIN)).max(1);
        let threads = u64::from(self.how.tuning.threads.max(1)).min(chunks) as usize;
        link.workers = link.shared.workers.reserve(threads);
        if link.workers.is_empty() {
            return;
        }
        link.wanted = threads.min(link.shared.workers.len());
        let buffers = u64::from(self.wanted(link, buffer, links).buffers);
        link.slabs = link.shared.take_slabs(buffers.div_ceil(fitting(&link.shared, buffer)) as usize);
        if link.slabs.is_empty() {
            link.workers.drain(..).for_each(|worker| link.shared.workers.release(worker));
            link.wanted = 0;
        }
    }

    /// The chunks, as large as asked for or as pinned memory allows with all buffers.
    fn cut(&self, links: &[Link], mut buffer: u64) -> Cuts {
        let enough = |buffer| {
            let all = |link: &Link| {
                let there = link.slabs.len() as u64 * fitting(&link.shared, buffer);
                there >= u64::from(self.wanted(link, buffer, links.len()).buffers)
            };
            links.iter().all(|link| link.wanted == 0 || all(link))
        };
        while buffer > BUFFER_MIN && !enough(buffer) {
            buffer = (buffer / 2).max(BUFFER_MIN);
        }
        let (address, total, buffer) = (self.address, Bytes(self.bytes), Bytes(buffer));
        let cuts = if self.workers && self.how.ramp {
            let sharing = links.iter().filter(|link| link.wanted > 0).count();
            Cuts::ramped(self.flow, address, total, buffer, Ramp::shared(sharing as u32))
        } else {
            Cuts::even(self.flow, address, total, buffer)
        };
        if self.how.huge { cuts.with_huge_parts(address) } else { cuts }
    }

    /// The links' shapes and buffers; gives back what they do not need.
    fn shape(&self, links: &mut [Link], cuts: &Cuts) -> (Vec<LinkShape>, Vec<Vec<Pinned>>) {
        let (bound, mut chunks) = (cuts.bound().0, cuts.count());
        let in_flight = self.how.tuning.in_flight.max(1);
        let count = links.len();
        let mut shapes = Vec::with_capacity(count);
        let mut pinned = Vec::with_capacity(links.len());
        for (index, link) in links.iter_mut().enumerate() {
            let slots = if index == 0 { in_flight } else { in_flight.min(link.slots.len() as u32) };
            if !self.workers {
                shapes.push(LinkShape { parts: 0, buffers: slots, in_flight: slots });
                pinned.push(Vec::new());
                continue;
            }
            // Nobody wakes for a link that gets no chunk.
            link.wanted = if chunks == 0 { 0 } else { link.wanted };
            let most = link.workers.len().min(link.wanted);
            link.workers.drain(most..).for_each(|worker| link.shared.workers.release(worker));
            let each = fitting(&link.shared, bound);
            let wanted = self.wanted(link, bound, count);
            let buffers = u64::from(wanted.buffers).min(link.slabs.len() as u64 * each).min(chunks);
            chunks -= buffers;
            let slabs = link.slabs.split_off(buffers.div_ceil(each) as usize);
            link.shared.put(Vec::new(), slabs, None);
            let stride = bound.next_multiple_of(LINE);
            let place = |at: u64| Pinned {
                memory: link.slabs[(at / each) as usize].clone(),
                at: (at % each * stride) as usize,
            };
            pinned.push((0..buffers).map(place).collect());
            shapes.push(LinkShape { buffers: buffers as u32, in_flight: slots, ..wanted });
        }
        (shapes, pinned)
    }
}

/// Buffers of `buffer` bytes in one slab of `shared`; at least 1.
fn fitting(shared: &Shared, buffer: u64) -> u64 {
    (shared.slab_bytes() / buffer.max(1).next_multiple_of(LINE)).max(1)
}

/// Whether the pools can serve one copy together: the first is the target's, the others reach it.
pub(super) fn check_links(pools: &[&StagingPool]) -> Result<(), StagingError> {
    let Some(target) = pools.first() else {
        let reason = "there is no link".into();
        return Err(StagingError::Request(DeviceError::Invalid { what: "copy", reason }));
    };
    if pools.iter().any(|pool| !pool.shared.is_ours()) {
        return Err(StagingError::Forked);
    }
    if pools.iter().any(|pool| pool.shared.is_lost()) {
        return Err(StagingError::Request(DeviceError::DeviceLost));
    }
    for relay in &pools[1..] {
        let (own, to) = (relay.gpu(), target.gpu());
        let reason = if own.id() == to.id() {
            "it is the target itself"
        } else if own.domain() != to.domain() || !own.reaches(to.id()) {
            "they have no peer access"
        } else {
            continue;
        };
        let (relay, target) = (relay.shared.name(), target.shared.name());
        return Err(StagingError::NoRelay { relay, target, reason });
    }
    Ok(())
}
