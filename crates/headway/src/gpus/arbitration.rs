//! What an experiment, or `headway measure`, asks of a GPU's copy engines: who waits for whom.

use std::sync::Arc;

use headway_core::models::transfer::Direction;
use headway_core::units::Nanos;
use headway_cuda::{CudaGpu, Driver};
use headway_device::buffer::Buffer;
use headway_device::emu::{EmuGpu, EmuSpec};
use headway_device::gpu::{Caching, Completion, CpuReach, Gpu, Operation, Queue};
use headway_device::{Access, DeviceError, DeviceLimits};
use headway_os::clock;

pub use headway_cuda::arbitration::{ArbitrationBed, BulkAndSmall, BulkCopy, BulkStreamGap, Hand, Small};

use super::CopyBackend;
use crate::{Error, Failure, emulation};

/// The largest small copy.
const SMALL_MAX: usize = 4 << 20;
/// Copies that have not ended by then never will.
const PATIENCE: Nanos = Nanos(20_000_000_000);

/// Of the GPU with the number `index`, with bulk copies of `bulk_bytes`; and its name.
///
/// # Errors
/// `ErrorKind::Backend`.
pub fn open(index: u32, bulk_bytes: usize) -> Result<(ArbitrationBed, String), Error> {
    let gpu = Driver::system().and_then(|driver| CudaGpu::open(&driver, index, DeviceLimits::default()));
    let opened = gpu.and_then(|gpu| Ok((ArbitrationBed::new(&gpu, bulk_bytes)?, gpu.description().name.clone())));
    Ok(opened.map_err(|source| Failure::Backend { backend: "cuda", source })?)
}

/// Somebody who can be asked.
pub trait Ask {
    /// One bulk copy with nothing beside it.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn bulk(&mut self, bulk: &BulkCopy) -> Result<Nanos, DeviceError>;

    /// One bulk copy, and small ones one after the other until it has ended.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn bulk_and_small(&mut self, bulk: &BulkCopy, small: &Small) -> Result<BulkAndSmall, DeviceError>;
}

impl Ask for ArbitrationBed {
    fn bulk(&mut self, bulk: &BulkCopy) -> Result<Nanos, DeviceError> {
        Self::bulk(self, bulk)
    }

    fn bulk_and_small(&mut self, bulk: &BulkCopy, small: &Small) -> Result<BulkAndSmall, DeviceError> {
        Self::bulk_and_small(self, bulk, small)
    }
}

/// The engines of the GPU with the number `index` of `backend`.
///
/// # Errors
/// `ErrorKind::Backend`, and what reading `model` gives.
pub fn ask(backend: CopyBackend, model: Option<&str>, index: u32, bulk_bytes: usize) -> Result<Box<dyn Ask>, Error> {
    if backend != CopyBackend::Emu {
        return Ok(Box::new(open(index, bulk_bytes)?.0));
    }
    let machine = emulation::machine(model, None)?;
    let gpu = machine.gpus().nth(index as usize).or_else(|| machine.gpus().next());
    let gpu = gpu.ok_or(Failure::Options("the machine that is emulated has no GPU"))?;
    let emulated = Emulated::open(EmuSpec::of_machine(&machine, gpu), bulk_bytes);
    Ok(Box::new(emulated.map_err(|source| Failure::Backend { backend: "emu", source })?))
}

/// An emulated GPU, asked by its own queues. Its engines serve whoever came first, one operation at a time, so that they turn to
/// another queue after every chunk; a word between two chunks is nothing to them.
struct Emulated {
    bulk_bytes: usize,
    there: Buffer,
    here: Buffer,
    small_there: Buffer,
    small_here: Buffer,
    /// Two of the bulk copy, and one of small ones.
    queues: [Box<dyn Queue>; 3],
    _gpu: Arc<EmuGpu>,
}

impl Emulated {
    fn open(spec: EmuSpec, bulk_bytes: usize) -> Result<Self, DeviceError> {
        let limits = DeviceLimits { outstanding_per_engine_max: 1 << 12, ..DeviceLimits::default() };
        let gpu = Arc::new(EmuGpu::open(EmuSpec { limits, ..spec }));
        let queue = || gpu.queue(true);
        Ok(Self {
            bulk_bytes,
            there: gpu.device_buffer(bulk_bytes, CpuReach::Device)?,
            here: gpu.pinned_buffer(bulk_bytes, Caching::Cached)?,
            small_there: gpu.device_buffer(SMALL_MAX, CpuReach::Device)?,
            small_here: gpu.pinned_buffer(SMALL_MAX, Caching::Cached)?,
            queues: [queue()?, queue()?, queue()?],
            _gpu: gpu,
        })
    }

    /// Queues the bulk copy: how many operations that are, and when it began.
    fn queue_bulk(&mut self, bulk: &BulkCopy) -> Result<(usize, Nanos), DeviceError> {
        let chunk = bulk.chunk.clamp(1, self.bulk_bytes);
        let count = self.bulk_bytes.div_ceil(chunk);
        let began = clock::now();
        for at in 0..count {
            let range = at * chunk..self.bulk_bytes.min((at + 1) * chunk);
            let operation = copy(bulk.direction, &self.there, &self.here, range)?;
            let queue = if bulk.between == BulkStreamGap::OtherStream { at % 2 } else { 0 };
            self.queues[queue].submit(operation, at as u64)?;
        }
        Ok((count, began))
    }

    /// Takes what has ended of the bulk copy: when the last of it did.
    fn take(&mut self) -> Result<(usize, Nanos), DeviceError> {
        let (mut taken, mut end) = (0, Nanos::ZERO);
        for queue in &mut self.queues[..2] {
            while let Some(Completion { result, finished, .. }) = queue.poll() {
                result?;
                (taken, end) = (taken + 1, end.max(finished));
            }
        }
        Ok((taken, end))
    }

    fn one(&mut self, small: &Small) -> Result<Nanos, DeviceError> {
        let range = 0..small.bytes.min(SMALL_MAX);
        let operation = copy(small.direction, &self.small_there, &self.small_here, range)?;
        let before = clock::now();
        self.queues[2].submit(operation, 0)?;
        loop {
            if let Some(done) = self.queues[2].poll() {
                return done.result.map(|()| clock::now() - before);
            }
            patient(before, "a small copy")?;
        }
    }
}

impl Ask for Emulated {
    fn bulk(&mut self, bulk: &BulkCopy) -> Result<Nanos, DeviceError> {
        let (mut left, began) = self.queue_bulk(bulk)?;
        let mut end = began;
        while left > 0 {
            let (taken, last) = self.take()?;
            (left, end) = (left - taken, end.max(last));
            patient(began, "a bulk copy")?;
        }
        Ok(end - began)
    }

    fn bulk_and_small(&mut self, bulk: &BulkCopy, small: &Small) -> Result<BulkAndSmall, DeviceError> {
        let (mut left, began) = self.queue_bulk(bulk)?;
        let (mut end, mut waits) = (began, Vec::new());
        while left > 0 {
            waits.push(self.one(small)?);
            let (taken, last) = self.take()?;
            (left, end) = (left - taken, end.max(last));
        }
        Ok(BulkAndSmall { bulk: end - began, small: waits })
    }
}

/// Waits a little; an error once that was for too long.
fn patient(since: Nanos, what: &str) -> Result<(), DeviceError> {
    if clock::now() - since > PATIENCE {
        return Err(DeviceError::Timeout { what: what.to_owned(), after: PATIENCE });
    }
    std::thread::yield_now();
    Ok(())
}

fn copy(
    direction: Direction,
    there: &Buffer,
    here: &Buffer,
    range: std::ops::Range<usize>,
) -> Result<Operation, DeviceError> {
    let (from, to) = if direction == Direction::H2d { (here, there) } else { (there, here) };
    let claim = |buffer: &Buffer, access| buffer.claim(range.clone(), access);
    Ok(Operation::Copy { from: claim(from, Access::Read)?, to: claim(to, Access::Write)? })
}
