//! One GPU as copies share it: its engines, and what is opened on first use and kept.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use headway_core::decisions::engine_line::FlowClass;
use headway_core::decisions::staging::StagingDirection;
use headway_core::files::machine::EndpointId;
use headway_core::models::transfer::{Direction, ResidentShape, WindowMapping};
use headway_core::units::{Bytes, Nanos};
use headway_device::buffer::DeviceId;
use headway_device::gpu::{Gpu, Pager, Resident, ResidentOptions};
use headway_device::{Buffer, DeviceError, Span};
use headway_os::event;

use super::CopyLimits;
use super::bounce::Bounce;
use super::engine::Engine;
use super::kinds::Kinds;
use crate::staging::{CopyEngine, Line, PoolOptions, StagingPool};

/// Bytes of one piece of a resident copier: what it is chosen for is mostly one piece, and a request less is a round trip
/// less.
const RESIDENT_PIECE: usize = 65_536;
/// How long a resident copier stays: so long that starting it again, some 10 us, is little of the copies between, and shorter than
/// what a user who waits for the whole device would notice.
const RESIDENT_LEASE: Nanos = Nanos(50_000_000);

/// Forms of a method, each with why it cannot be used.
type Forms<F> = Vec<(F, Result<(), DeviceError>)>;
type SharedResident = Arc<Mutex<Box<dyn Resident>>>;

/// A paged window with the buffer that it is open on.
struct OpenPager {
    mapping: WindowMapping,
    buffer: (usize, usize),
    pager: Box<dyn Pager>,
}

/// One GPU.
pub(super) struct CopierGpu {
    /// Its name in the profile.
    pub(super) endpoint: EndpointId,
    /// The GPU itself.
    pub(super) device: Arc<dyn Gpu>,
    /// Whose memory it is.
    pub(super) id: DeviceId,
    /// Host to GPU.
    pub(super) h2d: Engine,
    /// GPU to host.
    pub(super) d2h: Engine,
    /// To other GPUs.
    pub(super) peer: Engine,
    /// Copies by multiprocessors.
    pub(super) kernels: Engine,
    /// Host memory that its driver was asked about.
    pub(super) kinds: Kinds,
    /// Pinned slots for requests of many pieces.
    pub(super) bounce: Bounce,
    /// Threads and pinned memory of `staged` and `multipath`.
    pub(super) pool: StagingPool,
    /// The turn of copies out before chunks were bounded; the inner `None` = they stayed whole.
    pub(super) turn_before: Mutex<Option<Option<Bytes>>>,
    patience: Nanos,
    lost: AtomicBool,
    windows: OnceLock<Forms<WindowMapping>>,
    resident_forms: OnceLock<Forms<ResidentShape>>,
    residents: Mutex<BTreeMap<ResidentShape, SharedResident>>,
    pager: Mutex<Option<OpenPager>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CopierGpu {
    /// `peers` is the line of the copies between all GPUs, where this one stands at `position`.
    pub(super) fn new(
        endpoint: EndpointId,
        gpu: Arc<dyn Gpu>,
        limits: CopyLimits,
        peers: &Arc<Line>,
        position: usize,
    ) -> Self {
        let options = PoolOptions {
            pinned_max: limits.pinned_max,
            threads_max: limits.threads_max,
            patience: limits.patience,
            ..PoolOptions::default()
        };
        let pool = StagingPool::new(Arc::clone(&gpu), options);
        Self {
            kinds: Kinds::default(),
            bounce: Bounce::default(),
            endpoint,
            id: gpu.id(),
            device: gpu,
            h2d: Engine::new(pool.engine(StagingDirection::In), 0),
            d2h: Engine::new(pool.engine(StagingDirection::Out), 0),
            // Each GPU has one engine for what goes out to other GPUs and one for what comes in.
            peer: Engine::new(&CopyEngine::behind(peers), 2 * position as u32),
            kernels: Engine::new(&CopyEngine::behind(&Line::new()), 0),
            pool,
            turn_before: Mutex::default(),
            patience: limits.patience,
            lost: AtomicBool::new(false),
            windows: OnceLock::new(),
            resident_forms: OnceLock::new(),
            residents: Mutex::default(),
            pager: Mutex::default(),
        }
    }

    /// The engine for copies between it and the host.
    pub(super) const fn engine(&self, direction: Direction) -> &Engine {
        match direction {
            Direction::H2d => &self.h2d,
            Direction::D2h => &self.d2h,
            Direction::Peer => &self.peer,
        }
    }

    /// Tells of a copy whose chunks did not stand in the line of its engine.
    pub(super) fn copied_past_line(&self, direction: Direction, bytes: usize) {
        let activity = self.engine(direction).activity();
        activity.moved(FlowClass::Normal, Bytes(bytes as u64));
        activity.copied(FlowClass::Normal, Nanos::ZERO);
    }

    /// Whether it failed for good.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Notes that it failed for good: later copies are refused at once.
    pub(super) fn lose(&self) {
        if !self.lost.swap(true, Ordering::Relaxed) {
            event!(
                ERROR,
                "headway::copy",
                "GPU lost: its copies are refused from now on",
                gpu = self.device.description().name
            );
        }
    }

    /// The forms of windows with why they cannot be used.
    pub(super) fn windows(&self) -> &[(WindowMapping, Result<(), DeviceError>)] {
        self.windows.get_or_init(|| self.device.windows())
    }

    /// The forms of resident copiers with why they cannot be used.
    pub(super) fn resident_forms(&self) -> &[(ResidentShape, Result<(), DeviceError>)] {
        self.resident_forms.get_or_init(|| self.device.residents())
    }

    /// The resident copier of the form `shape`, started if it is not there; `None` = the first form that is usable.
    pub(super) fn resident(&self, shape: Option<ResidentShape>) -> Result<SharedResident, DeviceError> {
        let shape = usable("resident copier", self.resident_forms(), shape)?;
        let mut residents = lock(&self.residents);
        if let Some(there) = residents.get(&shape) {
            return Ok(Arc::clone(there));
        }
        let options = ResidentOptions { piece: RESIDENT_PIECE, lease: RESIDENT_LEASE, patience: self.patience };
        let started = Arc::new(Mutex::new(self.device.resident(shape, options)?));
        residents.insert(shape, Arc::clone(&started));
        Ok(started)
    }

    /// `body` with the paged window of this GPU, open on `buffer`.
    pub(super) fn with_pager<R>(
        &self,
        mapping: Option<WindowMapping>,
        buffer: &Buffer,
        span: &Span,
        body: impl FnOnce(&mut dyn Pager) -> R,
    ) -> Result<R, DeviceError> {
        let mapping = usable("paged window", self.windows(), mapping)?;
        let identity = (span.memory().base() as usize, buffer.len());
        let mut slot = lock(&self.pager);
        // One may be open at a time: another one goes first.
        let mut open = match slot.take().filter(|open| open.mapping == mapping && open.buffer == identity) {
            Some(open) => open,
            None => OpenPager { mapping, buffer: identity, pager: self.device.pager(mapping, buffer)? },
        };
        let made = body(open.pager.as_mut());
        // The owner of lent memory may free it, and allocate other memory at the same address.
        *slot = Some(open).filter(|_| !buffer.is_lent());
        Ok(made)
    }

    /// Resident copiers leave the device, the paged window is closed.
    pub(super) fn park(&self) -> Result<(), DeviceError> {
        *lock(&self.pager) = None;
        let residents: Vec<SharedResident> = lock(&self.residents).values().cloned().collect();
        residents.iter().try_for_each(|resident| lock(resident).park())
    }
}

/// The form asked for, or the first that can be used.
fn usable<F: Copy + PartialEq + std::fmt::Debug>(
    what: &str,
    forms: &[(F, Result<(), DeviceError>)],
    asked: Option<F>,
) -> Result<F, DeviceError> {
    let absent = |reason: &str| DeviceError::Unavailable {
        what: what.to_owned(),
        reason: reason.to_owned(),
        remedy: "`headway doctor` lists what this GPU has".to_owned(),
    };
    match asked {
        Some(asked) => match forms.iter().find(|(form, _)| *form == asked) {
            Some((_, usable)) => usable.clone().map(|()| asked),
            None => Err(absent(&format!("this GPU knows no form {asked:?}"))),
        },
        None => match forms.iter().find(|(_, usable)| usable.is_ok()) {
            Some((form, _)) => Ok(*form),
            None => Err(match forms.first() {
                Some((_, Err(error))) => error.clone(),
                _ => absent("this GPU has none"),
            }),
        },
    }
}
