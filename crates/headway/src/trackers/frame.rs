//! One frame on the GPU that its job was given: state, tracker, load; every operation under its engine's lock.

use headway_core::decisions::engine_lock::{Operation, Work};
use headway_core::units::{Bytes, Nanos};
use headway_device::DeviceError;
use headway_kernels::klt::{Launch, Machine, Region};
use headway_os::clock;
use headway_runtime::sharing::{Engine, Gpu, SharingError};
use serde::{Deserialize, Serialize};

use super::memory::{Memory, PARTS};

/// The right to a GPU, and to its engines.
pub(super) trait Rights {
    /// Waits for the engines of an operation; `None` where nobody arbitrates them.
    ///
    /// # Errors
    /// [`SharingError`].
    fn engine(&mut self, operation: Operation) -> Result<Option<Engine<'_>>, SharingError>;
}

impl Rights for Gpu<'_, '_> {
    fn engine(&mut self, operation: Operation) -> Result<Option<Engine<'_>>, SharingError> {
        Gpu::engine(self, operation).map(Some)
    }
}

/// The driver arbitrates.
pub(super) struct Unmanaged;

impl Rights for Unmanaged {
    fn engine(&mut self, _: Operation) -> Result<Option<Engine<'_>>, SharingError> {
        Ok(None)
    }
}

/// One operation of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operated {
    pub work: Work,
    pub bytes: u64,
    /// When its engines were asked for, when they were there, and when it had completed.
    pub asked: Nanos,
    pub begun: Nanos,
    pub ended: Nanos,
}

/// Times of one frame's operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    pub copies: u32,
    pub executes: u32,
    /// Time of its own copies and kernels.
    pub copy: u64,
    pub execute: u64,
    /// Waits for engines, all together, and the longest of each kind.
    pub engine_wait: u64,
    pub copy_wait_max: u64,
    pub execute_wait_max: u64,
    /// Longest time that one operation kept its engines.
    pub copy_held_max: u64,
    pub execute_held_max: u64,
}

impl Account {
    fn add(&mut self, operated: &Operated) {
        let wait = operated.begun.saturating_sub(operated.asked).0;
        let held = operated.ended.saturating_sub(operated.begun).0;
        self.engine_wait += wait;
        let (count, time, wait_max, held_max) = if operated.work == Work::Execute {
            (&mut self.executes, &mut self.execute, &mut self.execute_wait_max, &mut self.execute_held_max)
        } else {
            (&mut self.copies, &mut self.copy, &mut self.copy_wait_max, &mut self.copy_held_max)
        };
        *count += 1;
        *time += held;
        (*wait_max, *held_max) = ((*wait_max).max(wait), (*held_max).max(held));
    }
}

/// How state and copies move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moving {
    /// Longest copy under one lock; `None` = whole copies.
    pub chunk: Option<u64>,
    /// State goes from GPU to GPU; otherwise through system memory, out after every job.
    pub peer: bool,
}

/// A machine for one frame of a tracker.
pub(super) struct OnShared<'a> {
    pub memory: &'a mut Memory,
    pub rights: &'a mut dyn Rights,
    pub gpu: usize,
    pub moving: Moving,
    pub account: &'a mut Account,
    /// Every operation, where somebody wants them.
    pub operations: Option<&'a mut Vec<Operated>>,
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
    /// One operation under its lock.
    fn operate(
        &mut self,
        work: Work,
        bytes: usize,
        body: impl FnOnce(&mut Memory) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let bytes = bytes as u64;
        let asked = clock::now();
        let operation = Operation { work, bytes: Bytes(bytes), predicted: Nanos::ZERO, budget: Nanos::ZERO };
        let held = self.rights.engine(operation).map_err(|error| refused(&error))?;
        let begun = clock::now();
        body(self.memory)?;
        let ended = clock::now();
        drop(held);
        let operated = Operated { work, bytes, asked, begun, ended };
        self.account.add(&operated);
        if let Some(operations) = self.operations.as_deref_mut() {
            operations.push(operated);
        }
        Ok(())
    }

    /// A copy, chunk by chunk.
    fn copy(
        &mut self,
        work: Work,
        bytes: usize,
        mut chunk: impl FnMut(&mut Memory, std::ops::Range<usize>) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let most = self.moving.chunk.map_or(bytes, |chunk| chunk as usize).max(1);
        let mut at = 0;
        while at < bytes {
            let end = bytes.min(at + most);
            self.operate(work, end - at, |memory| chunk(memory, at..end))?;
            at = end;
        }
        Ok(())
    }

    /// Brings the state here from `from`.
    pub(super) fn bring(&mut self, from: usize) -> Result<(), DeviceError> {
        let gpu = self.gpu;
        for part in PARTS {
            let bytes = self.memory.bytes(part);
            if self.moving.peer {
                self.copy(Work::Peer, bytes, |memory, range| memory.migrate((from, gpu), part, range))?;
            } else {
                self.copy(Work::CopyIn, bytes, |memory, range| memory.restore(gpu, part, range))?;
            }
        }
        Ok(())
    }

    /// Leaves the state in system memory, where it does not go from GPU to GPU.
    pub(super) fn leave(&mut self) -> Result<(), DeviceError> {
        let gpu = self.gpu;
        debug_assert!(self.small.is_empty(), "an input that no kernel reads");
        if self.moving.peer {
            return Ok(());
        }
        for part in PARTS {
            let bytes = self.memory.bytes(part);
            self.copy(Work::CopyOut, bytes, |memory, range| memory.save(gpu, part, range))?;
        }
        Ok(())
    }

    /// The load: additional input, CPU and kernels in turns, additional output.
    fn work(&mut self) -> Result<(), DeviceError> {
        let (gpu, load) = (self.gpu, *self.memory.load());
        self.copy(Work::CopyIn, load.input as usize, |memory, range| memory.push(gpu, None, range))?;
        for _ in 0..load.segments {
            burn(Nanos(load.cpu_ns / u64::from(load.segments)));
            if load.passes > 0 && load.state > 0 {
                self.operate(Work::Execute, 0, |memory| memory.pass(gpu, load.passes))?;
            }
        }
        self.copy(Work::CopyOut, load.output as usize, |memory, range| memory.pull(gpu, None, range))
    }
}

/// Keeps the CPU for so much CPU time of this thread.
fn burn(time: Nanos) {
    let until = clock::thread_cpu_time().saturating_add(time);
    while clock::thread_cpu_time() < until {
        std::hint::spin_loop();
    }
}

/// What an arbiter refused, as a machine says it.
fn refused(error: &SharingError) -> DeviceError {
    DeviceError::Unavailable {
        what: "an engine".into(),
        reason: error.to_string(),
        remedy: "see that the broker runs".into(),
    }
}

impl Machine for OnShared<'_> {
    fn put(&mut self, region: Region, from: &[u8]) -> Result<(), DeviceError> {
        let gpu = self.gpu;
        if from.len() <= SMALL {
            self.small.push((region, from.to_vec()));
            return Ok(());
        }
        self.memory.stage(from)?;
        self.copy(Work::CopyIn, from.len(), |memory, range| memory.push(gpu, Some(region), range))
    }

    fn take(&mut self, region: Region, to: &mut [u8]) -> Result<(), DeviceError> {
        let gpu = self.gpu;
        self.copy(Work::CopyOut, to.len(), |memory, range| memory.pull(gpu, Some(region), range))?;
        self.memory.unstage(to)
    }

    fn launch(&mut self, launches: &[Launch]) -> Result<(), DeviceError> {
        let gpu = self.gpu;
        let small = std::mem::take(&mut self.small);
        self.operate(Work::Execute, 0, |memory| {
            for (region, bytes) in &small {
                memory.stage(bytes)?;
                memory.push(gpu, Some(*region), 0..bytes.len())?;
            }
            memory.launch(gpu, launches)
        })?;
        if std::mem::take(&mut self.loaded) {
            self.work()?;
        }
        Ok(())
    }
}
