//! Memory at both ends of a transfer that carries no user's data: what is sent is known, and what arrives is compared.
//!
//! Job `j` leaves from place `j mod S` of the source and arrives in place `j mod D` of the destination. Every byte of a
//! source's place follows from the place and its offset, and `S` does not divide `D`: what lay in a place of the destination
//! before differs from what belongs there now. So a byte that is lost, or that lands elsewhere, is found.

use std::ops::Range;

use headway_core::files::machine::EngineClass;
use headway_core::models::transfer::Method;
use headway_core::plan::{OperationWork, Plan, PlannedOperation};
use headway_device::{Access, Buffer, DeviceError, Engines, HostKind, Span};

use crate::pattern::{fill, first_difference};
use crate::settle::settle;

/// Places begin at multiples of it.
pub(crate) const ALIGN: u64 = 4096;
/// Bytes that are read back from a device at a time.
const STAGE: usize = 32 << 20;
/// Fewest places of a destination: the receiver of one block may read it while the next one arrives.
const TARGETS_MIN: usize = 2;

/// The ends of a transfer: the device that it is submitted to, and the devices of its ends, `None` being the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyPath {
    /// The direction.
    pub class: EngineClass,
    pub method: Method,
    /// The device that it starts at.
    pub from: Option<usize>,
    /// The device that it ends at.
    pub to: Option<usize>,
}

impl CopyPath {
    /// The ends of a planned copy; `None` for what no device can do: work that is no copy, and copies that stay on the host.
    #[must_use]
    pub fn of(plan: &Plan, operation: &PlannedOperation) -> Option<Self> {
        let OperationWork::Copy { class, method, .. } = operation.work else { return None };
        let gpu = |at: usize| plan.engines[operation.engines.get(at)?.at()].gpu.map(|gpu| gpu as usize);
        let (from, to) = match class {
            EngineClass::H2d => (None, Some(gpu(0)?)),
            EngineClass::D2h => (Some(gpu(0)?), None),
            EngineClass::Peer => (Some(gpu(0)?), Some(gpu(1)?)),
            EngineClass::Ee => return None,
        };
        Some(Self { class, method, from, to })
    }

    /// The device that copies this path: the source's, where there are two.
    pub(crate) fn device(&self) -> usize {
        self.from.or(self.to).unwrap_or(0)
    }

    /// The last of its devices.
    #[must_use]
    pub fn last_device(&self) -> usize {
        self.from.max(self.to).unwrap_or(0)
    }
}

/// How much memory a transfer may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferRoom {
    /// Jobs that the destination should hold at a time, if there is memory for them.
    pub jobs: u64,
    /// Bytes of the destination.
    pub bytes: u64,
}

/// The memory of one transfer.
#[derive(Debug)]
pub struct Endpoints {
    path: CopyPath,
    block: usize,
    stride: usize,
    sources: usize,
    targets: usize,
    key: u64,
    from: Buffer,
    to: Buffer,
}

impl Endpoints {
    /// Allocates both ends for blocks of `block` bytes and fills the source with bytes of `key`. Moves some bytes once, since
    /// the first copy between two ends takes milliseconds on some devices.
    ///
    /// # Errors
    /// [`DeviceError`] when there is no memory, or a copy fails.
    pub fn new(
        devices: &mut [Engines],
        path: CopyPath,
        block: u64,
        room: TransferRoom,
        key: u64,
    ) -> Result<Self, DeviceError> {
        let too_large = |_| DeviceError::Invalid { what: "block", reason: format!("{block} bytes do not fit memory") };
        let block = usize::try_from(block).map_err(too_large)?;
        let stride = block.next_multiple_of(ALIGN as usize);
        let fitting = usize::try_from(room.bytes).unwrap_or(usize::MAX) / stride;
        let targets = usize::try_from(room.jobs).unwrap_or(usize::MAX).min(fitting).max(TARGETS_MIN);
        let sources = (3..).find(|sources| targets % sources != 0).expect("a number has finitely many divisors");
        let buffer = |end: Option<usize>, places: usize| {
            let other = path.device();
            match end {
                Some(gpu) => devices[gpu].device_buffer(stride * places),
                None if path.method == Method::Pageable => {
                    devices[other].host_buffer(stride * places, HostKind::Pageable)
                }
                None => devices[other].host_buffer(stride * places, HostKind::Pinned),
            }
        };
        let (from, to) = (buffer(path.from, sources)?, buffer(path.to, targets)?);
        let ends = Self { path, block, stride, sources, targets, key, from, to };
        ends.fill(devices)?;
        // From another place than the one that belongs there.
        let some = 0..block.min(ALIGN as usize);
        let device = &mut devices[path.device()];
        device.copy(path.class, path.method, ends.spans(1, 0, some)?, u64::MAX)?;
        settle(device)?;
        Ok(ends)
    }

    /// Size of a block.
    #[must_use]
    pub const fn block(&self) -> usize {
        self.block
    }

    /// Blocks that the destination holds at a time.
    #[must_use]
    pub const fn targets(&self) -> usize {
        self.targets
    }

    /// Whether what arrives can be compared where it lies.
    #[must_use]
    pub const fn ends_on_host(&self) -> bool {
        self.path.to.is_none()
    }

    /// Submits bytes `range` of job `job`.
    ///
    /// # Errors
    /// [`DeviceError`], for example while someone compares what lies where they would go.
    pub fn submit(&self, devices: &mut [Engines], job: u64, range: Range<usize>, tag: u64) -> Result<(), DeviceError> {
        let spans = self.spans(self.source(job), self.target(job), range)?;
        devices[self.path.device()].copy(self.path.class, self.path.method, spans, tag)
    }

    /// Compares bytes `range` of job `job`, which have arrived in host memory; the offset of the first that is wrong.
    ///
    /// # Errors
    /// [`DeviceError`], for example if a later job already writes there.
    pub fn compare(&self, job: u64, range: Range<usize>) -> Result<Option<usize>, DeviceError> {
        let span = self.to.claim(self.place(self.target(job), &range), Access::Read)?;
        Ok(first_difference(self.key_of(job), range.start, span.bytes()?))
    }

    /// Reads a job's blocks from any destination; what lies on a device is read back first. Takes the device for itself.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn read_back(
        &self,
        devices: &mut [Engines],
        job: u64,
        range: Range<usize>,
    ) -> Result<Option<usize>, DeviceError> {
        let Some(gpu) = self.path.to else { return self.compare(job, range) };
        let device = &mut devices[gpu];
        let stage = device.host_buffer(STAGE.min(range.len()).max(1), HostKind::Pinned)?;
        for at in range.clone().step_by(STAGE) {
            let piece = at..range.end.min(at + STAGE);
            let len = piece.len();
            let from = self.to.claim(self.place(self.target(job), &piece), Access::Read)?;
            let to = stage.claim(0..len, Access::Write)?;
            device.copy(EngineClass::D2h, Method::Dma, (from, to), u64::MAX)?;
            settle(device)?;
            let span = stage.claim(0..len, Access::Read)?;
            if let Some(wrong) = first_difference(self.key_of(job), at, span.bytes()?) {
                return Ok(Some(wrong));
            }
        }
        Ok(None)
    }

    fn source(&self, job: u64) -> usize {
        (job % self.sources as u64) as usize
    }

    fn target(&self, job: u64) -> usize {
        (job % self.targets as u64) as usize
    }

    fn key_of(&self, job: u64) -> u64 {
        self.key ^ (self.source(job) as u64) << 56
    }

    fn place(&self, place: usize, range: &Range<usize>) -> Range<usize> {
        place * self.stride + range.start..place * self.stride + range.end
    }

    /// Both ends of a copy of `range` from place `source` to place `target`.
    fn spans(&self, source: usize, target: usize, range: Range<usize>) -> Result<(Span, Span), DeviceError> {
        let from = self.from.claim(self.place(source, &range), Access::Read)?;
        let to = self.to.claim(self.place(target, &range), Access::Write)?;
        Ok((from, to))
    }

    /// Fills every place of the source.
    fn fill(&self, devices: &mut [Engines]) -> Result<(), DeviceError> {
        for place in 0..self.sources {
            let key = self.key_of(place as u64);
            let Some(gpu) = self.path.from else {
                let mut span = self.from.claim(self.place(place, &(0..self.block)), Access::Write)?;
                fill(key, 0, span.bytes_mut()?);
                continue;
            };
            let device = &mut devices[gpu];
            let stage = device.host_buffer(STAGE.min(self.block), HostKind::Pinned)?;
            for at in (0..self.block).step_by(STAGE) {
                let piece = at..self.block.min(at + STAGE);
                fill(key, at, stage.claim(0..piece.len(), Access::Write)?.bytes_mut()?);
                let from = stage.claim(0..piece.len(), Access::Read)?;
                let to = self.from.claim(self.place(place, &piece), Access::Write)?;
                device.copy(EngineClass::H2d, Method::Dma, (from, to), u64::MAX)?;
                settle(device)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use headway_device::emu::{EmuGpu, EmuSpec};

    use super::*;

    fn devices(count: usize) -> Vec<Engines> {
        let gpu = |at| Arc::new(EmuGpu::open(EmuSpec::new(&format!("gpu{at}"))));
        (0..count).map(|at| Engines::open(gpu(at)).unwrap()).collect()
    }

    const IN: CopyPath = CopyPath { class: EngineClass::H2d, method: Method::Dma, from: None, to: Some(0) };
    const OUT: CopyPath = CopyPath { class: EngineClass::D2h, method: Method::Dma, from: Some(1), to: None };
    const ACROSS: CopyPath = CopyPath { class: EngineClass::Peer, method: Method::Peer, from: Some(1), to: Some(0) };

    #[test]
    fn every_way_brings_every_job_and_what_was_not_brought_is_found() {
        for path in [IN, OUT, ACROSS] {
            let mut devices = devices(2);
            let ends = Endpoints::new(&mut devices, path, 10_001, TransferRoom { jobs: 5, bytes: 1 << 20 }, 7).unwrap();
            assert_eq!((ends.targets(), ends.block(), ends.ends_on_host()), (5, 10_001, path == OUT));
            let bring = |devices: &mut [Engines], job, range: Range<usize>| {
                ends.submit(devices, job, range, 1).unwrap();
                settle(&mut devices[path.device()]).unwrap();
            };
            for job in 0..13 {
                // Before it was brought there is something else, at every byte that could tell.
                assert_eq!(ends.read_back(&mut devices, job, 0..10_001).unwrap(), Some(0), "{path:?}");
                bring(&mut devices, job, 0..3_000);
                assert_eq!(ends.read_back(&mut devices, job, 0..10_001).unwrap(), Some(3_000), "{path:?}, job {job}");
                bring(&mut devices, job, 3_000..10_001);
                assert_eq!(ends.read_back(&mut devices, job, 0..10_001).unwrap(), None, "{path:?}, job {job}");
            }
        }
    }

    #[test]
    fn memory_bounds_the_jobs_that_are_kept() {
        let mut devices = devices(1);
        let places = |devices: &mut [Engines], jobs, bytes| {
            let ends = Endpoints::new(devices, IN, 4097, TransferRoom { jobs, bytes }, 1).unwrap();
            (ends.targets, ends.sources)
        };
        assert_eq!(places(&mut devices, 100, 10 * 8192), (10, 3));
        assert_eq!(places(&mut devices, 12, u64::MAX), (12, 5));
        assert_eq!(places(&mut devices, 1, 0), (2, 3));
    }
}
