//! What staging threads do: each waits for a transfer, copies chunks for it until it has nothing for it, and goes back.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headway_core::decisions::staging::{BufferedChunk, Cuts, StagingDirection};
use headway_core::models::transfer::Stores;
use headway_device::{Access, Buffer, DeviceError, Span};
use headway_os::{clock, copy, memory};

use super::exchange::{ChunkPart, Exchange, Fault};
use super::workers::{WorkerThread, Workers};

/// Of a copy into a GPU, so many of the largest chunks at its end are demoted, and no more than so many bytes. What is in a
/// core's own cache is read by the engine at a fifth of the rate once that core sleeps, and cores sleep when there is nothing left
/// for them. Stores past the caches, which help as much there, have the engine read memory; but to demote takes a
/// quarter to a third off what a core copies.
const TAIL_CHUNKS: u64 = 4;
const TAIL_BYTES: u64 = 32 << 20;
/// At its start so many bytes are demoted: while there is little in pinned memory all of it is in the cores' own caches, and the
/// engine waits for the cores.
const HEAD_BYTES: u64 = 2 << 20;

/// How workers copy.
pub type CopyLoop = Arc<dyn Fn(&mut [u8], &[u8], Stores) + Send + Sync>;

/// A transfer, and the link that a worker serves in it.
pub(super) type Work = (Arc<StagingJob>, usize);

/// What one part of a chunk is copied from and to.
pub(super) struct Ends {
    from: Span,
    to: Span,
}

impl ChunkPart for Ends {
    fn is_empty(&self) -> bool {
        self.from.is_empty()
    }
}

/// A place in pinned memory.
pub(super) struct Pinned {
    pub(super) memory: Buffer,
    pub(super) at: usize,
}

impl Pinned {
    /// Claims `bytes` bytes from here on.
    fn claim(&self, bytes: usize, access: Access) -> Result<Span, DeviceError> {
        self.memory.claim(self.at..self.at + bytes, access)
    }
}

/// One transfer.
pub(super) struct StagingJob {
    pub(super) exchange: Exchange<Ends>,
    pub(super) flow: StagingDirection,
    pub(super) cuts: Cuts,
    /// Parts in which the workers of each link copy a chunk.
    pub(super) parts: Vec<u32>,
    /// The caller's memory.
    pub(super) host: Buffer,
    /// Where the copy begins in it.
    pub(super) host_at: usize,
    /// Of each link, its buffers; of links without workers none.
    pub(super) pinned: Vec<Vec<Pinned>>,
    pub(super) stores: Stores,
    pub(super) populate: bool,
    pub(super) copy_loop: CopyLoop,
    /// CPU time of the workers in nanoseconds.
    pub(super) cpu: AtomicU64,
}

impl StagingJob {
    /// Claims what `range` of the copy is in the caller's memory.
    fn own(&self, range: Range<u64>, access: Access) -> Result<Span, DeviceError> {
        self.host.claim(self.host_at + range.start as usize..self.host_at + range.end as usize, access)
    }

    /// Claims the part of a buffer that holds its chunk; on links without workers that is the caller's memory itself.
    pub(super) fn staged(&self, link: usize, task: BufferedChunk, access: Access) -> Result<Span, DeviceError> {
        let chunk = self.cuts.chunk(task.chunk);
        match self.pinned[link].get(task.buffer as usize) {
            None => self.own(chunk, access),
            Some(pinned) => pinned.claim((chunk.end - chunk.start) as usize, access),
        }
    }

    /// Claims both ends of a chunk, and cuts them into its parts.
    fn open(&self, link: usize, task: BufferedChunk) -> Result<Vec<Ends>, DeviceError> {
        let (chunk, parts) = (self.cuts.chunk(task.chunk), self.parts[link]);
        let pinned = &self.pinned[link][task.buffer as usize];
        let bytes = (chunk.end - chunk.start) as usize;
        let (from, to) = match self.flow {
            StagingDirection::In => (self.own(chunk.clone(), Access::Read)?, pinned.claim(bytes, Access::Write)?),
            StagingDirection::Out => (pinned.claim(bytes, Access::Read)?, self.own(chunk.clone(), Access::Write)?),
        };
        let edges = || (1..parts).map(|part| (self.cuts.part(task.chunk, part, parts).start - chunk.start) as usize);
        Ok(from.cut(edges()).into_iter().zip(to.cut(edges())).map(|(from, to)| Ends { from, to }).collect())
    }

    fn copy(&self, task: BufferedChunk, ends: Ends) -> Result<(), Fault> {
        let Ends { from, mut to } = ends;
        let from = from.bytes().map_err(Fault::Device)?;
        if self.populate {
            memory::populate_read(from).map_err(Fault::Page)?;
        }
        let to = to.bytes_mut().map_err(Fault::Device)?;
        let stores = self.stores_of(&self.cuts.chunk(task.chunk));
        // A panic leaves nothing behind but the spans, which release their claims.
        let copied = catch_unwind(AssertUnwindSafe(|| match (self.flow, stores) {
            (StagingDirection::Out, Stores::Demoted) => {
                (self.copy_loop)(to, from, Stores::NonTemporal);
                copy::demote(from);
            }
            _ => (self.copy_loop)(to, from, stores),
        }));
        copied.map_err(|_| Fault::Panic)
    }

    /// How `chunk` is stored.
    fn stores_of(&self, chunk: &Range<u64>) -> Stores {
        let tail = (TAIL_CHUNKS * self.cuts.bound().0).min(TAIL_BYTES);
        let is_edge = chunk.start < HEAD_BYTES || chunk.end + tail > self.cuts.total().0;
        if self.flow == StagingDirection::In && is_edge && self.stores == Stores::Plain {
            Stores::Demoted
        } else {
            self.stores
        }
    }
}

/// The life of a worker.
pub(super) fn live(workers: &Workers<Work>, me: &WorkerThread<Work>) {
    workers.live(me, |(job, link)| {
        let started = clock::thread_cpu_time();
        let open = |task| job.open(*link, task).map_err(Fault::Device);
        let free = job.exchange.serve(*link, me.index, open, |task, ends| job.copy(task, ends));
        job.cpu.fetch_add(clock::thread_cpu_time().saturating_sub(started).0, Ordering::Relaxed);
        free
    });
}
