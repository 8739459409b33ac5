//! A GPU as a [`Gpu`].

use std::ops::Range;
use std::sync::{Arc, Mutex};

use headway_core::files::machine::EngineClass;
use headway_core::models::transfer::arbitration::{WAIT_COPIES, built_in};
use headway_core::models::transfer::{Direction, ResidentShape, WindowMapping};
use headway_core::units::{Bytes, Nanos};
use headway_device::buffer::{Budget, DeviceId, HeapMemory, MemoryDomain};
use headway_device::gpu::{Caching, CpuReach, Gpu, Pager, Queue, Resident, ResidentOptions};
use headway_device::{Buffer, Description, DeviceError, DeviceLimits, DeviceSource, HostKind, Span, Work, check};

use crate::driver::table::{Address, Ordinal};
use crate::driver::{Driver, lock};
use crate::foreign;
use crate::lookup::AddressFacts;
use crate::owned::{Context, CopyKind, DeviceMemory};
use crate::pageable::copy_pageable;
use crate::pinned::{InPlace, WholePinned};
use crate::pool::Pool;
use crate::queue::{CudaQueue, Modules};
use crate::resident::{self, CudaResident};
use crate::timeline::Clock;
use crate::window;

/// A GPU for transfers, in the GPU's primary context; usable from any thread.
///
/// A queue is a CUDA stream that does not wait for the default stream. Pinned memory comes from slabs on the GPU's NUMA node.
/// The driver's own copies run in the default stream. Every call leaves the primary context current on the calling thread.
/// After an error that ends the context every call is [`DeviceError::DeviceLost`], and the bytes of unfinished moves stay
/// claimed.
pub struct CudaGpu {
    description: Description,
    context: Arc<Context>,
    budget: Arc<Budget>,
    pool: Arc<Pool>,
    modules: Arc<Modules>,
    /// Made for the first queue that keeps time.
    clock: Mutex<Option<Arc<Clock>>>,
}

impl CudaGpu {
    /// Opens GPU number `index` of `driver` with `limits`.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`], [`DeviceError::Driver`].
    pub fn open(driver: &Arc<Driver>, index: u32, limits: DeviceLimits) -> Result<Self, DeviceError> {
        let ordinal = driver.device(index)?;
        let description = describe(driver, ordinal, limits)?;
        let context = Context::retain(driver, ordinal)?;
        context.bind()?;
        // Until somebody measures this one: what is known of its class.
        let known = built_in(&description.name, Direction::D2h);
        context.begin_turn(known.and_then(|(known, _)| known.advise(WAIT_COPIES).word()));
        let budget = Budget::new(&limits, description.memory_bytes);
        let pool = Arc::new(Pool::new(&context, &budget));
        Ok(Self { description, context, budget, pool, modules: Arc::default(), clock: Mutex::default() })
    }

    /// Opens every GPU of `driver`, each with `limits`, with peer access wherever the hardware has it.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`], [`DeviceError::Driver`]: the first that fails.
    pub fn open_all(driver: &Arc<Driver>, limits: DeviceLimits) -> Result<Vec<Self>, DeviceError> {
        let count = driver.count()?.unsigned_abs();
        let gpus: Vec<Self> = (0..count).map(|index| Self::open(driver, index, limits)).collect::<Result<_, _>>()?;
        for from in &gpus {
            for to in &gpus {
                match from.context.enable_peer(&to.context) {
                    Ok(()) | Err(DeviceError::Unavailable { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(gpus)
    }

    /// Has `body` use memory of this GPU that somebody else allocated, as a buffer. Returns when neither the GPU nor a thread uses it any more;
    /// what happens if that does not end is said at [`lend`](headway_device::buffer::lend).
    ///
    /// # Safety
    /// `bytes` bytes from `address` on are memory of this GPU, mapped until this returns. Nobody else writes a byte that is claimed, nor
    /// reads one that is claimed for writing.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] beyond the limit of buffers.
    pub unsafe fn lend<R>(
        &self,
        address: u64,
        bytes: usize,
        body: impl FnOnce(&Buffer) -> R,
    ) -> Result<R, DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { foreign::lend(&self.context, &self.budget, address, bytes, body) }
    }

    /// Whether the GPU's primary context is the calling thread's current one: then calls leave it as it is.
    ///
    /// # Errors
    /// [`DeviceError::Driver`].
    pub fn is_current(&self) -> Result<bool, DeviceError> {
        self.context.is_current()
    }

    /// Bound on the error of the times that queues tell now: half the time it took to read both clocks, plus drift since, plus the
    /// events' resolution. `None` before the first queue that keeps time.
    #[must_use]
    pub fn clock_error(&self) -> Option<Nanos> {
        lock(&self.clock).as_ref().map(|clock| clock.error())
    }

    /// Its number, by which the driver and the CUDA runtime know it.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.context.ordinal.unsigned_abs()
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    fn clock(&self) -> Result<Arc<Clock>, DeviceError> {
        let mut made = lock(&self.clock);
        if let Some(clock) = &*made {
            return Ok(Arc::clone(clock));
        }
        let clock = Arc::new(Clock::new(&self.context)?);
        *made = Some(Arc::clone(&clock));
        Ok(clock)
    }

    /// Like [`Gpu::resident`], with what only a GPU's copier can tell.
    ///
    /// # Errors
    /// Those of [`Gpu::resident`], and [`DeviceError::Timeout`] when the GPU is too busy to start it.
    pub fn start_resident(&self, shape: ResidentShape, options: ResidentOptions) -> Result<CudaResident, DeviceError> {
        CudaResident::start(&self.context, shape, options, &self.pool)
    }
}

impl Gpu for CudaGpu {
    fn description(&self) -> &Description {
        &self.description
    }

    fn id(&self) -> DeviceId {
        self.context.id
    }

    fn domain(&self) -> MemoryDomain {
        self.context.driver.domain
    }

    fn numa(&self) -> Option<u32> {
        self.context.numa
    }

    fn reaches(&self, peer: DeviceId) -> bool {
        self.context.reaches(peer)
    }

    fn device_buffer(&self, bytes: usize, reach: CpuReach) -> Result<Buffer, DeviceError> {
        self.context.bind()?;
        let reservation = self.budget.reserve(1, 0, bytes as u64)?;
        match reach {
            CpuReach::Device => Ok(Buffer::new(DeviceMemory::new(&self.context, bytes)?, reservation)),
            CpuReach::Window(mapping) => Ok(Buffer::new(window::allocate(&self.context, mapping, bytes)?, reservation)),
        }
    }

    fn pinned_buffer(&self, bytes: usize, caching: Caching) -> Result<Buffer, DeviceError> {
        self.context.bind()?;
        match caching {
            Caching::Cached => {
                // The bytes are reserved by the slabs.
                let reservation = self.budget.reserve(1, 0, 0)?;
                Ok(Buffer::new(self.pool.take_pages(bytes)?, reservation))
            }
            Caching::WriteCombined => {
                let reservation = self.budget.reserve(1, bytes as u64, 0)?;
                Ok(Buffer::new(WholePinned::write_combined(&self.context, bytes)?, reservation))
            }
        }
    }

    fn register(&self, buffer: &Buffer, range: Range<usize>) -> Result<Buffer, DeviceError> {
        self.context.bind()?;
        let reservation = self.budget.reserve(1, 0, 0)?;
        Buffer::view(buffer, range, reservation, |span| InPlace::new(&self.context, span))
    }

    fn host_kind(&self, memory: &[u8]) -> Result<HostKind, DeviceError> {
        self.context.bind()?;
        // Both ends: pinned ranges may begin or stop within it.
        for byte in memory.first().into_iter().chain(memory.last()) {
            if AddressFacts::of(&self.context, std::ptr::from_ref(byte).addr() as Address)?.host_kind()?
                != HostKind::Pinned
            {
                return Ok(HostKind::Pageable);
            }
        }
        Ok(if memory.is_empty() { HostKind::Pageable } else { HostKind::Pinned })
    }

    fn pageable_buffer(&self, bytes: usize) -> Result<Buffer, DeviceError> {
        self.context.bind()?;
        let reservation = self.budget.reserve(1, bytes as u64, 0)?;
        Ok(Buffer::new(HeapMemory::pageable(bytes)?, reservation))
    }

    fn load(&self, work: &dyn Work) -> Result<(), DeviceError> {
        self.context.bind()?;
        self.modules.of(&self.context, work).map(drop)
    }

    fn queue(&self, keeps_time: bool) -> Result<Box<dyn Queue>, DeviceError> {
        let max = self.description.limits.outstanding_per_engine_max;
        let clock = if keeps_time { Some(self.clock()?) } else { None };
        Ok(Box::new(CudaQueue::new(&self.context, &self.modules, &self.pool, max, clock)?))
    }

    fn set_turn(&self, bytes: Option<Bytes>) -> Option<Bytes> {
        self.context.set_turn(bytes)
    }

    fn copy_in(&self, to: &mut Span, from: &[u8]) -> Result<(), DeviceError> {
        check::ordinary((self.context.id, self.context.driver.domain), to, from.len(), true)?;
        let (kind, source) = (CopyKind::HostToDevice, from.as_ptr().cast_mut());
        // SAFETY: the lengths are equal, the source is only read, and the span claims the destination for writing.
        unsafe { copy_pageable(&self.context, kind, source, to.as_ptr(), from.len()) }
    }

    fn copy_out(&self, to: &mut [u8], from: &Span) -> Result<(), DeviceError> {
        check::ordinary((self.context.id, self.context.driver.domain), from, to.len(), false)?;
        // SAFETY: the lengths are equal, the span claims the source, and the destination is borrowed for writing.
        unsafe { copy_pageable(&self.context, CopyKind::DeviceToHost, from.as_ptr(), to.as_mut_ptr(), to.len()) }
    }

    fn windows(&self) -> Vec<(WindowMapping, Result<(), DeviceError>)> {
        window::probe(&self.context)
    }

    fn round_trips(&self, mapping: WindowMapping, rounds: u32) -> Result<Vec<Nanos>, DeviceError> {
        window::round_trips_of_form(&self.context, mapping, rounds)
    }

    fn pager(&self, mapping: WindowMapping, buffer: &Buffer) -> Result<Box<dyn Pager>, DeviceError> {
        window::pager(&self.context, mapping, buffer)
    }

    fn residents(&self) -> Vec<(ResidentShape, Result<(), DeviceError>)> {
        resident::probe(&self.context)
    }

    fn resident(&self, shape: ResidentShape, options: ResidentOptions) -> Result<Box<dyn Resident>, DeviceError> {
        Ok(Box::new(self.start_resident(shape, options)?))
    }
}

/// What the driver says of the GPU `ordinal`. Each class of engines is a stream or more of its own.
fn describe(driver: &Driver, ordinal: Ordinal, limits: DeviceLimits) -> Result<Description, DeviceError> {
    Ok(Description {
        name: driver.name(ordinal)?,
        uuid: Some(driver.uuid(ordinal)?),
        pci: driver.pci(ordinal)?,
        source: if driver.is_fake() { DeviceSource::Fake } else { DeviceSource::Cuda },
        engines: vec![EngineClass::H2d, EngineClass::D2h, EngineClass::Peer, EngineClass::Ee],
        memory_bytes: driver.memory(ordinal)?,
        limits,
    })
}
