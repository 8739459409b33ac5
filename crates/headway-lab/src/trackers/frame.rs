//! One frame on the GPU that its job was given: state, tracker, load; every operation under its engine's lock.

use crate::klt::{Launch, Region, TrackerMachine};
use headway::jobs::{Operations, burn};
use headway_core::decisions::engine_lock::EngineWork;
use headway_core::units::Nanos;
use headway_device::DeviceError;

use super::memory::{Memory, PARTS};

/// A machine for one frame of a tracker.
pub(super) struct OnShared<'a> {
    pub memory: &'a mut Memory,
    pub operations: Operations<'a>,
    pub gpu: usize,
    /// Whether the load of this frame is still to be done.
    pub loaded: bool,
    /// Small inputs that go with the next kernels.
    pub small: Vec<(Region, Vec<u8>)>,
}

/// Inputs up to this size are copied together with the kernels that read them, under the same lock. On an H200 the driver moves
/// copies to the GPU of less than 4 KiB as kernels are: from a process that does not have the GPU they took 0.3 ms, 1.3 ms in
/// one of ten cases, and took the GPU from the kernels of the one that had it. Larger ones take 11 us on their own engine.
const SMALL: usize = 8 << 10;

impl OnShared<'_> {
    /// Brings the state here from `from`.
    pub(super) fn bring(&mut self, from: usize) -> Result<(), DeviceError> {
        let gpu = self.gpu;
        for part in PARTS {
            let bytes = self.memory.bytes(part);
            if self.operations.moving.peer {
                self.operations.copy(EngineWork::Peer, bytes, |range| self.memory.migrate((from, gpu), part, range))?;
            } else {
                self.operations.copy(EngineWork::CopyIn, bytes, |range| self.memory.restore(gpu, part, range))?;
            }
        }
        Ok(())
    }

    /// Leaves the state in system memory, where it does not go from GPU to GPU.
    pub(super) fn leave(&mut self) -> Result<(), DeviceError> {
        let gpu = self.gpu;
        debug_assert!(self.small.is_empty(), "an input that no kernel reads");
        if self.operations.moving.peer {
            return Ok(());
        }
        for part in PARTS {
            let bytes = self.memory.bytes(part);
            self.operations.copy(EngineWork::CopyOut, bytes, |range| self.memory.save(gpu, part, range))?;
        }
        Ok(())
    }

    /// The load: additional input, CPU and kernels in turns, additional output.
    fn work(&mut self) -> Result<(), DeviceError> {
        let (gpu, load) = (self.gpu, *self.memory.load());
        self.operations.copy(EngineWork::CopyIn, load.input as usize, |range| self.memory.push(gpu, None, range))?;
        for _ in 0..load.segments {
            burn(Nanos(load.cpu_ns / u64::from(load.segments)));
            if load.passes > 0 && load.state > 0 {
                self.operations.operate(EngineWork::Execute, 0, || self.memory.pass(gpu, load.passes))?;
            }
        }
        self.operations.copy(EngineWork::CopyOut, load.output as usize, |range| self.memory.pull(gpu, None, range))
    }
}

impl TrackerMachine for OnShared<'_> {
    fn put(&mut self, region: Region, from: &[u8]) -> Result<(), DeviceError> {
        let gpu = self.gpu;
        if from.len() <= SMALL {
            self.small.push((region, from.to_vec()));
            return Ok(());
        }
        self.memory.stage(from)?;
        self.operations.copy(EngineWork::CopyIn, from.len(), |range| self.memory.push(gpu, Some(region), range))
    }

    fn take(&mut self, region: Region, to: &mut [u8]) -> Result<(), DeviceError> {
        let gpu = self.gpu;
        self.operations.copy(EngineWork::CopyOut, to.len(), |range| self.memory.pull(gpu, Some(region), range))?;
        self.memory.unstage(to)
    }

    fn launch(&mut self, launches: &[Launch]) -> Result<(), DeviceError> {
        let gpu = self.gpu;
        let small = std::mem::take(&mut self.small);
        self.operations.operate(EngineWork::Execute, 0, || {
            for (region, bytes) in &small {
                self.memory.stage(bytes)?;
                self.memory.push(gpu, Some(*region), 0..bytes.len())?;
            }
            self.memory.launch(gpu, launches)
        })?;
        if std::mem::take(&mut self.loaded) {
            self.work()?;
        }
        Ok(())
    }
}
