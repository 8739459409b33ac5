//! `staged` and `multipath`: long copies through pinned buffers by persistent threads, over one link or several, and pinned
//! memory over one link (`dma`) or several.
//!
//! A [`StagingPool`] per GPU holds the threads, the pinned buffers, the queues and the lines of the engines. The calling thread drives the
//! engines itself: it submits chunks and polls queues, so that no hand-over lies between a full buffer and its copy.
//!
//! Links are named by their pools. The first is the target's own; over each further one (`multipath`) chunks go through
//! memory of that GPU.

mod assemble;
mod chunk_limit;
mod drive;
mod engine;
mod exchange;
mod line;
#[cfg(test)]
mod line_tests;
#[cfg(test)]
mod model_tests;
mod pool;
mod stock;
mod sync;
mod worker;
mod workers;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use headway_core::decisions::staging::{StagingDirection, StagingOutcome, SubmitOrder};
use headway_core::models::transfer::Tuning;
use headway_core::units::{Bytes, Nanos};
use headway_device::buffer::{lend, lend_mut};
use headway_device::{Access, DeviceError};
use headway_os::OsError;

use self::assemble::{Request, check_links};
pub(crate) use self::chunk_limit::Limited;
use self::drive::{Drive, Ending};
pub use self::engine::Promiser;
pub(crate) use self::engine::{CopyEngine, GpuEngines};
use self::exchange::Fault;
pub(crate) use self::line::{Line, Place};
pub use self::pool::{PoolOptions, StagingPool};
pub use self::worker::CopyLoop;
use crate::at::At;

/// How one copy is staged.
#[derive(Clone, Copy, Debug)]
pub struct Staged<'a> {
    /// Threads, buffers, stores and chunks on the engine, of each link. Of pinned memory only `buffer` (the size of a chunk)
    /// and `in_flight` count.
    pub tuning: Tuning,
    /// In which order full buffers are submitted.
    pub order: SubmitOrder,
    /// Whether chunks grow at the start (in) and shrink at the end (out), for a shorter wait there.
    pub ramp: bool,
    /// Whether each chunk of the source is read from its file first, so that a failing page is an error value.
    pub populate: bool,
    /// Whether the destination's pages appear as they are written, and are huge.
    pub huge: bool,
    /// The copy is given up soon after this becomes true.
    pub cancel: Option<&'a AtomicBool>,
    /// Of each link from the second on, the bulk copies that its GPU has of its own: while there are any, the link is not
    /// used. Links without one are used to the end.
    pub own: &'a [&'a AtomicU32],
}

impl Staged<'_> {
    /// With `tuning`, in order of arrival, with a ramp.
    #[must_use]
    pub const fn new(tuning: Tuning) -> Self {
        Self { tuning, order: SubmitOrder::Arrival, ramp: true, populate: false, huge: false, cancel: None, own: &[] }
    }
}

/// What a copy did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StagingMoved {
    /// Chunks, of all links.
    pub chunks: u64,
    /// Chunks of each link; 0 = it had nothing free, or was too slow to get any.
    pub links: Vec<u64>,
    /// Size of the largest chunk; smaller than asked for when pinned memory was short.
    pub buffer: Bytes,
    /// Threads that were called for it.
    pub threads: u32,
    /// CPU time of these threads.
    pub cpu: Nanos,
    /// Time that links with something to submit waited for engines that others used.
    pub waited: Nanos,
    /// Chunks of others, however they are copied, that were ahead of the first one of the target's own link.
    pub ahead: u64,
}

/// A copy that was not made, or not to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StagingError {
    /// This process is the child of the one that made the pool.
    #[error("staging is not available in a forked child: its threads stayed in the parent; open the GPUs again")]
    Forked,
    /// Threads and pinned memory are being set up.
    #[error("the staging pool of `{gpu}` is not ready yet")]
    NotReady { gpu: String },
    /// The pool could not be set up.
    #[error("the staging pool of `{gpu}` cannot be set up: {source}")]
    SetUp { gpu: String, source: DeviceError },
    /// Other copies use all threads, or all pinned memory.
    #[error("all {what} of the staging pool of `{gpu}` are in use; raise the pool's limit")]
    Busy {
        gpu: String,
        /// What there is none of.
        what: &'static str,
    },
    /// A link cannot serve this copy.
    #[error("no copies through `{relay}` to `{target}`: {reason}")]
    NoRelay {
        /// The GPU between.
        relay: String,
        /// The GPU of the copy.
        target: String,
        reason: &'static str,
    },
    /// The request does not fit its memory.
    #[error(transparent)]
    Request(DeviceError),
    /// A chunk failed.
    #[error("chunk {chunk} failed: {source}; the first {completed_prefix} bytes are in place")]
    Chunk {
        /// The first one that was reported.
        chunk: u64,
        /// Every byte below is in place.
        completed_prefix: u64,
        source: DeviceError,
    },
    /// A page of the source could not be read from its file.
    #[error("the source of chunk {chunk} cannot be read: {source}; the first {completed_prefix} bytes are in place")]
    Page {
        chunk: u64,
        /// Every byte below is in place.
        completed_prefix: u64,
        source: OsError,
    },
    /// A staging thread panicked; it goes on with the next copy.
    #[error("a staging thread panicked at chunk {chunk}; the first {completed_prefix} bytes are in place")]
    Panicked {
        chunk: u64,
        /// Every byte below is in place.
        completed_prefix: u64,
    },
    /// Nothing moved for the bound.
    #[error("no progress for {after}: {state}; the first {completed_prefix} bytes are in place")]
    Timeout {
        after: Nanos,
        /// Where buffers and threads are.
        state: String,
        /// Every byte below is in place.
        completed_prefix: u64,
    },
    /// It was cancelled.
    #[error("the copy was cancelled; the first {completed_prefix} bytes are in place")]
    Cancelled {
        /// Every byte below is in place.
        completed_prefix: u64,
    },
}

/// Copies `from` to the device; the bytes are there when it returns. `links[0]` is the pool of the GPU that has `to`.
///
/// # Errors
/// [`StagingError`].
pub fn copy_in(
    links: &[&StagingPool],
    to: At<'_>,
    from: &[u8],
    how: &Staged<'_>,
) -> Result<StagingMoved, StagingError> {
    if from.is_empty() {
        return Ok(StagingMoved::default());
    }
    check_links(links)?;
    links[0].shared.check_ready()?;
    let address = from.as_ptr().addr() as u64;
    lend(from, None, |host| {
        let bytes = from.len() as u64;
        transfer(
            links,
            &Request { flow: StagingDirection::In, device: to, host, host_at: 0, address, bytes, how, workers: true },
        )
    })
}

/// Copies from the device to `to`; the bytes are there, for every thread, when it returns. `links[0]` is the pool of the GPU
/// that has `from`.
///
/// # Errors
/// [`StagingError`].
pub fn copy_out(
    links: &[&StagingPool],
    to: &mut [u8],
    from: At<'_>,
    how: &Staged<'_>,
) -> Result<StagingMoved, StagingError> {
    if to.is_empty() {
        return Ok(StagingMoved::default());
    }
    check_links(links)?;
    links[0].shared.check_ready()?;
    let (address, bytes) = (to.as_ptr().addr() as u64, to.len() as u64);
    lend_mut(to, None, |host| {
        transfer(
            links,
            &Request {
                flow: StagingDirection::Out,
                device: from,
                host,
                host_at: 0,
                address,
                bytes,
                how,
                workers: true,
            },
        )
    })
}

/// Copies between the device and pinned host memory in chunks, without staging threads: `dma` over one link, `multipath` over
/// several. The target's pool need not be started for it.
///
/// # Errors
/// [`StagingError`].
pub fn copy_pinned(
    links: &[&StagingPool],
    flow: StagingDirection,
    device: At<'_>,
    host: At<'_>,
    len: usize,
    how: &Staged<'_>,
) -> Result<StagingMoved, StagingError> {
    if len == 0 {
        return Ok(StagingMoved::default());
    }
    check_links(links)?;
    claimable(host, len, if flow == StagingDirection::In { Access::Read } else { Access::Write })?;
    let (host_at, host) = (host.offset, host.buffer);
    // Pinned memory is aligned to pages; what counts is where in it the copy starts.
    let (address, bytes) = (host_at as u64, len as u64);
    transfer(links, &Request { flow, device, host, host_at, address, bytes, how, workers: false })
}

/// Whether nobody uses the range in a way that conflicts. A use that begins later fails a chunk.
fn claimable(at: At<'_>, len: usize, access: Access) -> Result<(), StagingError> {
    let end = at.offset.checked_add(len);
    let range = at.offset..end.ok_or_else(|| {
        let range = at.offset..usize::MAX;
        StagingError::Request(DeviceError::OutOfRange { range, len: at.buffer.len() })
    })?;
    at.buffer.claim(range, access).map(drop).map_err(StagingError::Request)
}

fn transfer(links: &[&StagingPool], request: &Request<'_>) -> Result<StagingMoved, StagingError> {
    let access = if request.flow == StagingDirection::In { Access::Write } else { Access::Read };
    claimable(request.device, request.bytes as usize, access)?;
    let mut drive = request.assemble(links)?;
    let threads = drive.links.iter().map(|link| link.workers.len() as u32).sum();
    let ending = drive.run();
    drive.dismiss();
    let patience = drive.patience;
    let (prefix, fault) = drive.job.exchange.remains();
    let completed_prefix = drive.job.cuts.chunk(prefix).start;
    match ending {
        Ending::Over(StagingOutcome::Complete) => Ok(moved(&drive, threads)),
        Ending::Over(StagingOutcome::Cancelled) => Err(StagingError::Cancelled { completed_prefix }),
        Ending::Over(StagingOutcome::Failed { chunk }) => Err(match fault {
            Some(Fault::Device(source)) => StagingError::Chunk { chunk, completed_prefix, source },
            Some(Fault::Page(source)) => StagingError::Page { chunk, completed_prefix, source },
            Some(Fault::Panic) | None => StagingError::Panicked { chunk, completed_prefix },
        }),
        Ending::Stuck(state) => Err(StagingError::Timeout { after: patience, state, completed_prefix }),
    }
}

fn moved(drive: &Drive<'_>, threads: u32) -> StagingMoved {
    let waited = drive.links.iter().map(|link| link.waited.as_nanos() as u64).sum();
    drive.links[0].place.iter().for_each(|place| place.copied(Nanos(waited)));
    StagingMoved {
        chunks: drive.job.cuts.count(),
        links: drive.links.iter().map(|link| link.chunks).collect(),
        buffer: drive.job.cuts.bound(),
        threads,
        cpu: Nanos(drive.job.cpu.load(Ordering::Relaxed)),
        waited: Nanos(waited),
        ahead: drive.links[0].place.as_ref().map_or(0, |place| place.ahead().all),
    }
}
