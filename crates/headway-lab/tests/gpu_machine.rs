//! A tracker on a device through its gpu: memory of its own, pinned memory for the copies, and one queue.

use std::collections::BTreeMap;

use headway_device::gpu::{Caching, CpuReach, Gpu, Operation, Queue};
use headway_device::{Access, Buffer, DeviceError};
use headway_lab::klt::{Launch, Region, TrackerMachine, TrackerShape};

/// A device: memory of its own, pinned memory for the copies, and one queue.
pub(crate) struct GpuMachine {
    queue: Box<dyn Queue>,
    regions: BTreeMap<Region, Buffer>,
    pinned: Buffer,
}

impl GpuMachine {
    /// Zeroed memory for `shape` on `gpu`.
    pub(crate) fn open(gpu: &dyn Gpu, shape: &TrackerShape) -> Result<Self, DeviceError> {
        let mut regions = BTreeMap::new();
        for region in Region::ALL {
            regions.insert(region, gpu.device_buffer(shape.bytes(region), CpuReach::Device)?);
        }
        let largest = regions.values().map(Buffer::len).max().unwrap_or(0);
        let pinned = gpu.pinned_buffer(largest, Caching::Cached)?;
        Ok(Self { queue: gpu.queue(false)?, regions, pinned })
    }

    fn buffer(&self, region: Region) -> Result<&Buffer, DeviceError> {
        Ok(&self.regions[&region])
    }

    /// Waits until it has ended: the claims of moves in a row would be in each other's way.
    fn run(&mut self, what: Operation) -> Result<(), DeviceError> {
        self.queue.submit(what, 0)?;
        loop {
            match self.queue.poll() {
                Some(done) => return done.result,
                None => std::thread::yield_now(),
            }
        }
    }
}

impl TrackerMachine for GpuMachine {
    fn put(&mut self, region: Region, from: &[u8]) -> Result<(), DeviceError> {
        self.pinned.claim(0..from.len(), Access::Write)?.bytes_mut()?.copy_from_slice(from);
        let (source, to) = (
            self.pinned.claim(0..from.len(), Access::Read)?,
            self.buffer(region)?.claim(0..from.len(), Access::Write)?,
        );
        self.run(Operation::Copy { from: source, to })
    }

    fn take(&mut self, region: Region, to: &mut [u8]) -> Result<(), DeviceError> {
        let (from, target) =
            (self.buffer(region)?.claim(0..to.len(), Access::Read)?, self.pinned.claim(0..to.len(), Access::Write)?);
        self.run(Operation::Copy { from, to: target })?;
        to.copy_from_slice(self.pinned.claim(0..to.len(), Access::Read)?.bytes()?);
        Ok(())
    }

    fn launch(&mut self, launches: &[Launch]) -> Result<(), DeviceError> {
        for launch in launches {
            let what = launch.over(|region| self.buffer(region))?;
            self.run(what)?;
        }
        Ok(())
    }
}
