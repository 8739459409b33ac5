//! A task's memory on every GPU that it may use, and the operations on it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::klt::{Launch, Region, TrackerShape};
use crate::study::Elementwise;
use headway::jobs::{complete, no_gpu, wait};
use headway_device::gpu::{Caching, CpuReach, Gpu, Operation, Queue};
use headway_device::work::{Argument, Work};
use headway_device::{Access, Buffer, DeviceError};
use serde::{Deserialize, Serialize};

/// What a frame does beside the tracker's own work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameLoad {
    /// Kernel segments, each after its share of the CPU time.
    pub segments: u32,
    /// CPU time of all segments together, in nanoseconds.
    pub cpu_ns: u64,
    /// How often each segment's kernels pass over the additional state.
    pub passes: u32,
    /// Bytes copied in beside the tracker's.
    pub input: u64,
    /// Bytes copied out beside the tracker's.
    pub output: u64,
    /// State beside the tracker's; a multiple of [`FrameLoad::UNIT`]. The kernels work on it in place.
    pub state: u64,
}

impl FrameLoad {
    /// The additional state is worked on in four parts, so that a launch is queued while another runs.
    pub const PARTS: usize = 4;
    /// Granule of the additional state.
    pub const UNIT: u64 = 4096;
}

/// The regions that are the tracker's state.
pub(super) const STATE: [Region; 3] = [Region::State(0), Region::State(1), Region::State(2)];

/// A part of the state: one of the tracker's regions, or what was added to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatePart {
    Tracker(Region),
    Added,
}

/// Parts of the state in the order in which they are saved.
pub(super) const PARTS: [StatePart; 4] =
    [StatePart::Tracker(STATE[0]), StatePart::Tracker(STATE[1]), StatePart::Tracker(STATE[2]), StatePart::Added];

/// Memory of one task on one GPU, and its queue there.
struct OnGpu {
    queue: Box<dyn Queue>,
    regions: BTreeMap<Region, Buffer>,
    added: Buffer,
    io: Buffer,
}

/// Memory of one task.
pub(super) struct Memory {
    shape: TrackerShape,
    load: FrameLoad,
    gpus: Vec<OnGpu>,
    /// Pinned ends of the frame's copies.
    ends: Buffer,
    /// The state in system memory, pinned.
    saved: Buffer,
    /// Passes over the additional state so far.
    passes: u64,
}

impl Memory {
    /// Memory for `shape` and `load` on every GPU of `devices`.
    ///
    /// # Errors
    /// [`DeviceError`] for memory or a queue that a GPU refuses.
    pub(super) fn open(devices: &[Arc<dyn Gpu>], shape: TrackerShape, load: FrameLoad) -> Result<Self, DeviceError> {
        let none = DeviceError::Invalid { what: "trackers", reason: "there is no GPU".into() };
        let first = devices.first().ok_or(none)?;
        let io = load.input.max(load.output).max(1) as usize;
        let mut gpus = Vec::new();
        for device in devices {
            let mut regions = BTreeMap::new();
            for region in Region::ALL {
                regions.insert(region, device.device_buffer(shape.bytes(region), CpuReach::Device)?);
            }
            let added = device.device_buffer((load.state as usize).max(1), CpuReach::Device)?;
            gpus.push(OnGpu {
                queue: device.queue(false)?,
                regions,
                added,
                io: device.device_buffer(io, CpuReach::Device)?,
            });
        }
        let largest = Region::ALL.iter().map(|region| shape.bytes(*region)).max().unwrap_or(0).max(io);
        let ends = first.pinned_buffer(largest, Caching::Cached)?;
        let saved = first.pinned_buffer(shape.state_bytes() + load.state as usize, Caching::Cached)?;
        Ok(Self { shape, load, gpus, ends, saved, passes: 0 })
    }

    pub(super) fn load(&self) -> &FrameLoad {
        &self.load
    }

    /// Bytes of a part of the state.
    pub(super) fn bytes(&self, part: StatePart) -> usize {
        match part {
            StatePart::Tracker(region) => self.shape.bytes(region),
            StatePart::Added => self.load.state as usize,
        }
    }

    fn buffer(&self, gpu: usize, part: StatePart) -> Result<&Buffer, DeviceError> {
        let gpu = self.gpus.get(gpu).ok_or_else(no_gpu)?;
        match part {
            StatePart::Tracker(region) => gpu.regions.get(&region).ok_or_else(no_gpu),
            StatePart::Added => Ok(&gpu.added),
        }
    }

    /// Where a part lies in the saved state.
    fn saved_at(&self, part: StatePart) -> usize {
        PARTS.iter().take_while(|other| **other != part).map(|before| self.bytes(*before)).sum()
    }

    /// The state of a tracker without features, and the additional state's first content, on every GPU.
    pub(super) fn reset(&mut self) -> Result<(), DeviceError> {
        self.passes = 0;
        {
            let mut saved = self.saved.claim(0..self.saved.len(), Access::Write)?;
            let bytes = saved.bytes_mut()?;
            bytes.fill(0);
            let empty = self.shape.empty_state();
            for (to, from) in bytes.chunks_exact_mut(4).zip(&empty) {
                to.copy_from_slice(&from.to_le_bytes());
            }
            let words = bytes[self.shape.state_bytes()..].chunks_exact_mut(4);
            words.enumerate().for_each(|(at, to)| to.copy_from_slice(&first_word(at).to_le_bytes()));
        }
        for gpu in 0..self.gpus.len() {
            for part in PARTS {
                self.restore(gpu, part, 0..self.bytes(part))?;
            }
        }
        Ok(())
    }

    fn run(&mut self, gpu: usize, what: Operation) -> Result<(), DeviceError> {
        let queue = &mut self.gpus.get_mut(gpu).ok_or_else(no_gpu)?.queue;
        complete(queue.as_mut(), what)
    }

    /// Copies a range of a part of the state from system memory.
    pub(super) fn restore(&mut self, gpu: usize, part: StatePart, range: Range<usize>) -> Result<(), DeviceError> {
        let at = self.saved_at(part);
        let from = self.saved.claim(at + range.start..at + range.end, Access::Read)?;
        let to = self.buffer(gpu, part)?.claim(range, Access::Write)?;
        self.run(gpu, Operation::Copy { from, to })
    }

    /// Copies a range of a part of the state to system memory.
    pub(super) fn save(&mut self, gpu: usize, part: StatePart, range: Range<usize>) -> Result<(), DeviceError> {
        let at = self.saved_at(part);
        let to = self.saved.claim(at + range.start..at + range.end, Access::Write)?;
        let from = self.buffer(gpu, part)?.claim(range, Access::Read)?;
        self.run(gpu, Operation::Copy { from, to })
    }

    /// Copies a range of a part of the state from GPU to GPU.
    pub(super) fn migrate(
        &mut self,
        (from, to): (usize, usize),
        part: StatePart,
        range: Range<usize>,
    ) -> Result<(), DeviceError> {
        let source = self.buffer(from, part)?.claim(range.clone(), Access::Read)?;
        let target = self.buffer(to, part)?.claim(range, Access::Write)?;
        self.run(to, Operation::Copy { from: source, to: target })
    }

    /// Writes what comes next into a region, into its pinned end only.
    pub(super) fn stage(&mut self, from: &[u8]) -> Result<(), DeviceError> {
        self.ends.claim(0..from.len(), Access::Write)?.bytes_mut()?.copy_from_slice(from);
        Ok(())
    }

    /// Reads what was copied out last.
    pub(super) fn unstage(&mut self, to: &mut [u8]) -> Result<(), DeviceError> {
        to.copy_from_slice(self.ends.claim(0..to.len(), Access::Read)?.bytes()?);
        Ok(())
    }

    /// Copies a range of the pinned end into a region, or into the additional input where there is none.
    pub(super) fn push(&mut self, gpu: usize, region: Option<Region>, range: Range<usize>) -> Result<(), DeviceError> {
        let from = self.ends.claim(range.clone(), Access::Read)?;
        let to = self.end(gpu, region)?.claim(range, Access::Write)?;
        self.run(gpu, Operation::Copy { from, to })
    }

    /// Copies a range of a region, or of the additional output, to its pinned end.
    pub(super) fn pull(&mut self, gpu: usize, region: Option<Region>, range: Range<usize>) -> Result<(), DeviceError> {
        let from = self.end(gpu, region)?.claim(range.clone(), Access::Read)?;
        let to = self.ends.claim(range, Access::Write)?;
        self.run(gpu, Operation::Copy { from, to })
    }

    fn end(&self, gpu: usize, region: Option<Region>) -> Result<&Buffer, DeviceError> {
        match region {
            Some(region) => self.buffer(gpu, StatePart::Tracker(region)),
            None => Ok(&self.gpus.get(gpu).ok_or_else(no_gpu)?.io),
        }
    }

    /// Executes launches of the tracker one after another; complete when it returns.
    pub(super) fn launch(&mut self, gpu: usize, launches: &[Launch]) -> Result<(), DeviceError> {
        for launch in launches {
            let what = launch.over(|region| self.buffer(gpu, StatePart::Tracker(region)))?;
            self.run(gpu, what)?;
        }
        Ok(())
    }

    /// Passes over the additional state; complete when it returns.
    pub(super) fn pass(&mut self, gpu: usize, passes: u32) -> Result<(), DeviceError> {
        let part = self.load.state as usize / FrameLoad::PARTS;
        if part < 4 {
            return Ok(());
        }
        let OnGpu { queue, added, .. } = self.gpus.get_mut(gpu).ok_or_else(no_gpu)?;
        let count = (part / 4) as u32;
        for _ in 0..passes {
            for at in 0..FrameLoad::PARTS {
                // The claim on a part is free again when its launch before has been taken.
                if queue.outstanding() == FrameLoad::PARTS {
                    wait(queue.as_mut()).result?;
                }
                let words = added.claim(at * part..(at + 1) * part, Access::Write)?;
                let arguments = vec![Argument::Memory(words), Argument::Int(count.cast_signed())];
                let work: Arc<dyn Work> = Arc::new(Elementwise);
                queue.submit(Operation::Launch { work, grid: Elementwise::grid(count), arguments }, 0)?;
            }
        }
        while queue.outstanding() > 0 {
            wait(queue.as_mut()).result?;
        }
        self.passes += u64::from(passes);
        Ok(())
    }

    /// Whether the additional state on `gpu` is what all passes since [`Memory::reset`] make of its first content.
    pub(super) fn verify(&mut self, gpu: usize) -> Result<bool, DeviceError> {
        self.save(gpu, StatePart::Added, 0..self.bytes(StatePart::Added))?;
        // y = 3 x + 1 so many times is one affine map.
        let (mut factor, mut sum) = (1u32, 0u32);
        for _ in 0..self.passes {
            (factor, sum) = (factor.wrapping_mul(3), sum.wrapping_mul(3).wrapping_add(1));
        }
        let at = self.saved_at(StatePart::Added);
        let saved = self.saved.claim(at..at + self.bytes(StatePart::Added), Access::Read)?;
        let words = saved.bytes()?.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        Ok(words.enumerate().all(|(at, word)| word == factor.wrapping_mul(first_word(at)).wrapping_add(sum)))
    }
}

/// First content of word `at` of the additional state.
fn first_word(at: usize) -> u32 {
    (at as u32).wrapping_mul(0x9e37_79b9)
}
