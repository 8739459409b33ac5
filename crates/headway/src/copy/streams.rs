//! Copies between addresses: memory that the caller allocated, in the order of a CUDA stream of the caller's.
//!
//! ```no_run
//! use headway::copy::{RawCopy, StreamCopier, StreamHandle, StreamOptions, WhichGpu};
//! # fn main() -> Result<(), headway::Error> {
//! # let (gpu_address, stream, mut data) = (0u64, StreamHandle(0), vec![0u8; 1 << 30]);
//! let copier = StreamCopier::open(WhichGpu::Current, &StreamOptions::default())?;
//! let host = data.as_mut_ptr().addr() as u64;
//! // SAFETY: both ranges are this program's and stay until the ticket is done.
//! let ticket = copier.copy_async(unsafe { RawCopy::new(host, gpu_address, data.len(), stream) })?;
//! // Kernels that are launched in `stream` from now on begin when the bytes are there.
//! ticket.wait(std::time::Duration::from_secs(10))?;
//! # Ok(())
//! # }
//! ```

use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use headway_core::decisions::chooser::ChoiceReason;
use headway_core::files::machine::EndpointId;
use headway_core::models::transfer::{Direction, Method, Profile};
use headway_core::units::{Bytes, Nanos};
use headway_cuda::{
    CudaGpu, Driver, HostEnd, LentEnds, MadeNow, OrderedCopier, OrderedOptions, OrderedTicket, RawCopy,
};
use headway_device::gpu::Gpu;
use headway_device::{DeviceError, DeviceLimits, HostKind};
use headway_os::fork::Home;
use headway_os::ipc::Bell;
use headway_os::threads;
use headway_runtime::copy::{At, Copier, CopyError, CopyLimits, CopyOptions, CopyReport, How, LearningOptions};

use crate::{Error, Failure};

/// The GPU that a [`StreamCopier`] is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhichGpu {
    /// The one whose primary context is the calling thread's current one; GPU 0 if there is none.
    Current,
    /// By the driver's number.
    Index(u32),
    /// By UUID, as `nvidia-smi -L` prints it.
    Uuid(String),
}

/// What a [`StreamCopier`] may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamOptions {
    /// Machine by name or file, whose profile says what copies cost; `None` = built-in figures.
    pub machine: Option<String>,
    /// Threads of each of the two kinds of copies, those that wait and those that do not; 1 to 1,024.
    pub threads: u32,
    /// Page-locked memory for copies that wait. Those that do not wait take up to 256 MiB of their own.
    pub pinned: Bytes,
    /// A copy that makes no progress for this long is given up.
    pub patience: Duration,
}

impl Default for StreamOptions {
    /// Built-in figures, 6 threads, 128 MiB, 10 s.
    fn default() -> Self {
        Self { machine: None, threads: 6, pinned: Bytes(128 << 20), patience: Duration::from_secs(10) }
    }
}

/// Copies between addresses in the order of the caller's streams, from any thread, in the GPU's primary context.
pub struct StreamCopier {
    gpu: Arc<CudaGpu>,
    copier: Copier,
    ordered: OrderedCopier,
    patience: Duration,
    watched: Arc<Watched>,
}

impl StreamCopier {
    /// A copier for one GPU. The context that is current on the calling thread stays so.
    ///
    /// # Errors
    /// `ErrorKind::Backend` without a driver or GPU, `ErrorKind::Device`, and what reading the machine gives.
    pub fn open(which: WhichGpu, options: &StreamOptions) -> Result<Self, Error> {
        let machine = options.machine.as_deref().map(crate::machine::open).transpose()?;
        let driver = Driver::system().map_err(failed)?;
        Self::of(&driver, &which, machine.map(|machine| machine.profile), options)
    }

    /// Like [`StreamCopier::open`], with a driver that was loaded already.
    ///
    /// # Errors
    /// Those of [`StreamCopier::open`].
    pub fn of(
        driver: &Arc<Driver>,
        which: &WhichGpu,
        profile: Option<Profile>,
        options: &StreamOptions,
    ) -> Result<Self, Error> {
        let before = driver.keep_current().map_err(failed)?;
        let index = match which {
            WhichGpu::Index(index) => *index,
            WhichGpu::Current => driver.current().map_err(failed)?.unwrap_or(0),
            WhichGpu::Uuid(uuid) => driver.by_uuid(uuid).map_err(failed)?,
        };
        let limits = DeviceLimits { host_bytes_max: Bytes(u64::MAX), ..DeviceLimits::default() };
        let gpu = Arc::new(CudaGpu::open(driver, index, limits).map_err(failed)?);
        let patience = Nanos(u64::try_from(options.patience.as_nanos()).unwrap_or(u64::MAX));
        let limits =
            CopyLimits { pinned_max: options.pinned, threads_max: options.threads, patience, ..CopyLimits::default() };
        let copies = CopyOptions { limits, ..CopyOptions::default() };
        let gpus = vec![(EndpointId(0), Arc::clone(&gpu) as _)];
        let learns = profile.is_none();
        let copier = Copier::new(gpus, profile.unwrap_or_default(), copies).map_err(Failure::Copy)?;
        if learns {
            let learning = LearningOptions { threads_max: options.threads, ..LearningOptions::default() };
            copier.learn(0, driver.version().ok(), learning);
        }
        let ordered = OrderedOptions { threads: options.threads, ..OrderedOptions::default() };
        let ordered = OrderedCopier::new(&gpu, ordered).map_err(failed)?;
        drop(before);
        Ok(Self { gpu, copier, ordered, patience: options.patience, watched: Arc::default() })
    }

    #[must_use]
    pub fn gpu(&self) -> &Arc<CudaGpu> {
        &self.gpu
    }

    /// The copier of both ends, once they are lent.
    pub(crate) fn copier(&self) -> &Copier {
        &self.copier
    }

    /// Has `make` copy between both ends when the stream has come to this point; `limit` bounds the wait for the stream.
    pub(crate) fn lent<R>(
        &self,
        copy: RawCopy,
        limit: Duration,
        make: impl FnOnce(LentEnds<'_>) -> R,
    ) -> Result<R, Error> {
        self.ordered.copy_lent(copy, limit, make).map_err(invalid)
    }

    /// The number of the GPU that has memory at `address`, which need not be the copier's; `None` if no GPU has.
    ///
    /// # Errors
    /// `ErrorKind::Device`.
    pub fn gpu_of(&self, address: u64) -> Result<Option<u32>, Error> {
        self.ordered.gpu_of(address).map_err(invalid)
    }

    /// Makes a copy after all that its stream was given before, and returns when the bytes are there: with what the copy did, or `None`
    /// for page-locked memory, which is copied in the stream itself.
    ///
    /// # Errors
    /// `ErrorKind::Device` for addresses of which not exactly one is this GPU's, streams that are being captured, and copies that fail
    /// or take longer than the patience. Of what was given up, the GPU has ended what it had begun when this returns; if it does not within ten
    /// minutes, the process is ended.
    pub fn copy(&self, copy: RawCopy) -> Result<Option<CopyReport>, Error> {
        let (begun, bytes) = (Instant::now(), Bytes(copy.bytes() as u64));
        let made = self.ordered.copy_now(copy, self.patience, |LentEnds { device, host }| {
            let at = At { buffer: device, offset: 0 };
            match host {
                HostEnd::Source(from) => self.copier.copy_in(at, from, How::Auto),
                HostEnd::Destination(to) => self.copier.copy_out(to, at, How::Auto),
            }
        });
        match made.map_err(invalid)? {
            MadeNow::Made(report) => Ok(Some(report.map_err(Failure::Copy)?)),
            MadeNow::InStream(method @ Method::Pageable) => Ok(Some(CopyReport {
                method,
                reason: ChoiceReason::BuiltIn,
                bytes,
                chunks: 1,
                predicted: None,
                observed: Nanos(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX)),
                waited: Nanos::ZERO,
                cpu: None,
                ahead: 0,
                instead_of: None,
            })),
            MadeNow::InStream(_) => Ok(None),
        }
    }

    /// How a copy of `host` that waits would be made now, where no profile says what copies cost: the method, and how many threads it would
    /// have besides the caller's.
    ///
    /// # Errors
    /// `ErrorKind::Device` for memory that is not host memory, or is managed by the driver.
    pub fn advice(&self, direction: Direction, host: &[u8]) -> Result<(Method, u32), Error> {
        if self.gpu.host_kind(host).map_err(invalid)? == HostKind::Pinned {
            return Ok((Method::Dma, 0));
        }
        let chooser = self.copier.chooser(0).filter(|chooser| chooser.learns());
        let choice = chooser.map(|chooser| *chooser.choose_ordinary(direction, host, None).choice());
        let tuning = choice.and_then(|choice| choice.tuning);
        Ok((choice.map_or(Method::Pageable, |choice| choice.method), tuning.map_or(0, |tuning| tuning.threads)))
    }

    /// What choices of copies that wait are based on, for people.
    #[must_use]
    pub fn basis(&self) -> String {
        self.copier.chooser(0).map_or_else(String::new, |chooser| chooser.basis().to_owned())
    }

    /// Queues a copy and returns at once: it begins after all that its stream was given before, and what the stream is given later begins
    /// after it. It waits only if the driver's queues are full: behind some gigabytes.
    ///
    /// # Errors
    /// Those of [`StreamCopier::copy`]; and where 256 copies are under way.
    pub fn copy_async(&self, copy: RawCopy) -> Result<CopyTicket, Error> {
        let ticket = self.ordered.copy(copy).map_err(invalid)?;
        Ok(CopyTicket { ticket: Arc::new(ticket), watched: Arc::clone(&self.watched) })
    }
}

/// A copy that was queued. To drop it does not end the copy.
#[derive(Clone, Debug)]
pub struct CopyTicket {
    ticket: Arc<OrderedTicket>,
    watched: Arc<Watched>,
}

impl CopyTicket {
    /// How the copy is made.
    #[must_use]
    pub fn method(&self) -> Method {
        self.ticket.method()
    }

    /// Whether the bytes are there. Calls nothing of the driver.
    ///
    /// # Errors
    /// `ErrorKind::Device` after which nothing is known of the destination.
    pub fn is_done(&self) -> Result<bool, Error> {
        self.ticket.is_done().map_err(invalid)
    }

    /// Waits until the bytes are there, for `limit` at most.
    ///
    /// # Errors
    /// `ErrorKind::Device`: time is up, and the copy goes on; or as for [`CopyTicket::is_done`].
    pub fn wait(&self, limit: Duration) -> Result<(), Error> {
        self.ticket.wait(limit).map_err(invalid)
    }

    /// Calls `then` on a thread of the copier's when the bytes are there, or with the error. It must not block: others wait.
    ///
    /// # Errors
    /// `ErrorKind::Backend` if the thread cannot be started.
    pub fn when_done(&self, then: impl FnOnce(Result<(), Error>) + Send + 'static) -> Result<(), Error> {
        self.watched.add(Arc::clone(&self.ticket), Box::new(then))
    }

    /// A descriptor that becomes readable when the copy has ended, for `poll` and event loops. [`CopyTicket::is_done`] tells whether it
    /// failed.
    ///
    /// # Errors
    /// `ErrorKind::Backend` if no descriptor is left, or the thread cannot be started.
    pub fn descriptor(&self) -> Result<OwnedFd, Error> {
        let none =
            |reason: String| lacking("a descriptor for a copy", reason, "raise the limit of descriptors (`ulimit -n`)");
        let bell = Bell::new().map_err(|error| none(error.to_string()))?;
        let kept = bell.as_fd().try_clone_to_owned().map_err(|error| none(error.to_string()))?;
        self.when_done(move |_| bell.ring())?;
        Ok(kept)
    }
}

type Then = Box<dyn FnOnce(Result<(), Error>) + Send>;

/// Copies for whose end something is to be called.
struct Watched {
    home: Home,
    state: Mutex<WatchedState>,
    came: Condvar,
}

impl Default for Watched {
    fn default() -> Self {
        Self { home: Home::here(), state: Mutex::default(), came: Condvar::new() }
    }
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watched").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct WatchedState {
    copies: Vec<(Arc<OrderedTicket>, Then)>,
    /// Whether a thread looks at them.
    is_served: bool,
}

/// Between two looks at copies.
const NAP_MIN: Duration = Duration::from_micros(20);
const NAP_MAX: Duration = Duration::from_millis(1);
/// Between two questions to the driver whether something has failed.
const ASK: Duration = Duration::from_millis(100);
/// How long the thread stays when there is nothing to look at.
const LINGER: Duration = Duration::from_secs(1);

impl Watched {
    fn lock(&self) -> MutexGuard<'_, WatchedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(self: &Arc<Self>, ticket: Arc<OrderedTicket>, then: Then) -> Result<(), Error> {
        if !self.home.is_here() {
            let reason = "this process was forked from the one that queued them".to_owned();
            return Err(lacking("a thread that watches copies", reason, "watch them there"));
        }
        let mut state = self.lock();
        if !state.is_served {
            let watched = Arc::clone(self);
            let started = threads::spawn("headway-tickets", move || watched.watch());
            let remedy = "raise the limit of processes (`ulimit -u`), or poll the ticket";
            started.map_err(|error| lacking("a thread that watches copies", error.to_string(), remedy))?;
            state.is_served = true;
        }
        state.copies.push((ticket, then));
        self.came.notify_all();
        Ok(())
    }

    /// Looks at copies until there have been none for a while.
    fn watch(&self) {
        let mut nap = NAP_MIN;
        let mut asked = Instant::now();
        let mut state = self.lock();
        loop {
            if state.copies.is_empty() {
                state = self.came.wait_timeout(state, LINGER).unwrap_or_else(PoisonError::into_inner).0;
                if state.copies.is_empty() {
                    state.is_served = false;
                    return;
                }
            }
            let over = |(ticket, _): &mut (Arc<OrderedTicket>, Then)| ticket.is_done() != Ok(false);
            let over: Vec<_> = state.copies.extract_if(.., over).collect();
            // All are of one copier.
            let asks = state.copies.first().filter(|_| asked.elapsed() >= ASK).map(|(ticket, _)| Arc::clone(ticket));
            drop(state);
            if let Some(ticket) = asks {
                ticket.look();
                asked = Instant::now();
            }
            if over.is_empty() {
                std::thread::sleep(nap);
                nap = (nap * 2).min(NAP_MAX);
            } else {
                nap = NAP_MIN;
            }
            // Whoever is called may copy: the places of all that have ended are free.
            let over: Vec<_> =
                over.into_iter().map(|(it, then)| (it.is_done().map(drop).map_err(invalid), then)).collect();
            for (result, then) in over {
                // The panic hook has reported it; the other copies are to be told of all the same.
                let _ = catch_unwind(AssertUnwindSafe(|| then(result)));
            }
            state = self.lock();
        }
    }
}

fn lacking(what: &str, reason: String, remedy: &str) -> Error {
    failed(DeviceError::Unavailable { what: what.into(), reason, remedy: remedy.into() })
}

fn failed(source: DeviceError) -> Error {
    Failure::Backend { source, backend: "cuda" }.into()
}

fn invalid(error: DeviceError) -> Error {
    CopyError::from(error).into()
}
