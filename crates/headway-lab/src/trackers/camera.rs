//! A camera: one task whose jobs track its frames, released one period after another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::klt::{CornerCriteria, CpuMachine, FrameReport, Tracker, TrackerMachine, TrackerShape};
use headway::Failure;
use headway::jobs::{DoneJob, Moving, Operated, Operations, Rights, Unmanaged, sleep_until, with_gpu};
use headway_core::units::Nanos;
use headway_device::gpu::Gpu;
use headway_os::clock;
use headway_os::ipc::Words;
use headway_runtime::sharing::Task;
use serde::{Deserialize, Serialize};

use super::frame::OnShared;
use super::memory::{FrameLoad, Memory};
use super::pictures::Video;
use crate::Error;

/// How frames are released and what moves how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Course {
    /// When the first frame is released.
    pub begin: u64,
    pub period: u64,
    pub frames: u64,
    pub moving: Moving,
}

/// Who says which GPU a frame gets.
pub enum GpuAssignment<'a> {
    /// Tokens and engine locks of an arbiter.
    Managed(Task<'a>),
    /// Nobody: the GPU with the fewest users, from the last one on; the words count users.
    Fewest(&'a Words),
    /// Nobody: always this one.
    Fixed(u32),
}

/// A tracker with its video and its memory on every GPU.
pub struct Camera {
    shape: TrackerShape,
    video: Video,
    gpus: Vec<Arc<dyn Gpu>>,
    memory: Memory,
    /// Digests of the first frames by the CPU form.
    expected: Vec<u64>,
}

/// What a camera did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tracked {
    pub frames: Vec<DoneJob>,
    /// Operations of each frame, where they were asked for.
    pub operations: Vec<Vec<Operated>>,
    /// Whether somebody asked for the end before the last frame.
    #[serde(default)]
    pub interrupted: bool,
}

impl Camera {
    /// A camera on `gpus`; the first `check` frames are tracked on the CPU to compare with.
    ///
    /// # Errors
    /// [`headway::ErrorKind::Device`].
    pub fn open(
        gpus: Vec<Arc<dyn Gpu>>,
        shape: TrackerShape,
        video: Video,
        load: FrameLoad,
        check: u64,
    ) -> Result<Self, Error> {
        let memory = Memory::open(&gpus, shape, load).map_err(Failure::Device)?;
        let mut tracker = Tracker::new(shape, CpuMachine::new(&shape)).map_err(Failure::Device)?;
        let mut digest = 0;
        let mut expected = Vec::new();
        for frame in 0..check {
            digest = track(&mut tracker, video.picture(frame), digest).map_err(Failure::Device)?;
            expected.push(digest);
        }
        Ok(Self { shape, video, gpus, memory, expected })
    }

    /// Another load; the state begins anew.
    ///
    /// # Errors
    /// [`headway::ErrorKind::Device`].
    pub fn set_load(&mut self, load: FrameLoad) -> Result<(), Error> {
        if *self.memory.load() != load {
            self.memory = Memory::open(&self.gpus, self.shape, load).map_err(Failure::Device)?;
        }
        Ok(())
    }

    /// Tracks on every GPU once, so that nothing is loaded or compiled later; the state begins anew.
    ///
    /// # Errors
    /// Those of [`Camera::run`].
    pub fn warm_up(&mut self) -> Result<(), Error> {
        let never = AtomicBool::new(false);
        for gpu in 0..self.gpus.len() as u32 {
            self.reset()?;
            let moving = Moving { chunk: None, peer: false };
            let course = Course { begin: clock::now().0, period: 1, frames: 3, moving };
            self.run(&course, &mut GpuAssignment::Fixed(gpu), false, &never)?;
        }
        self.reset()
    }

    /// Tracks the frames of `course` from a fresh state on, up to the one before which `interrupt` is true, and checks what came
    /// of them. `keep` keeps every operation.
    ///
    /// # Errors
    /// [`headway::ErrorKind::Device`], [`headway::ErrorKind::Broker`] when no GPU is granted, [`Error::WrongTrack`] where the result is not the CPU
    /// form's.
    pub fn run(
        &mut self,
        course: &Course,
        arbitration: &mut GpuAssignment<'_>,
        keep: bool,
        interrupt: &AtomicBool,
    ) -> Result<Tracked, Error> {
        let fresh = Tracker::new(self.shape, CpuMachine::new(&self.shape)).map_err(Failure::Device)?;
        let mut tracker = fresh.on(()).0;
        let mut tracked = Tracked::default();
        let (mut digest, mut before, mut last) = (0, 0, None);
        for frame in 0..course.frames {
            let release = course.begin + frame * course.period;
            if !sleep_until(Nanos(release), interrupt) {
                tracked.interrupted = true;
                break;
            }
            let mut one = DoneJob { job: frame, release, start: release.max(before), digest, ..DoneJob::default() };
            let mut operations = keep.then(Vec::new);
            tracker = self.arbitrated(tracker, arbitration, course.moving, last, &mut one, operations.as_mut())?;
            one.done = clock::now().0;
            (digest, before, last) = (one.digest, one.done, Some(one.gpu));
            if self.expected.get(frame as usize).is_some_and(|expected| *expected != digest) {
                return Err(Error::WrongTrack { frame });
            }
            tracked.operations.extend(operations);
            tracked.frames.push(one);
        }
        if let Some(last) = last
            && !self.memory.verify(last as usize).map_err(Failure::Device)?
        {
            return Err(Error::WrongTrack { frame: tracked.frames.last().map_or(0, |frame| frame.job) });
        }
        Ok(tracked)
    }

    /// One frame on the GPU that `arbitration` gives; `last` is the one of the frame before.
    fn arbitrated(
        &mut self,
        tracker: Tracker<()>,
        arbitration: &mut GpuAssignment<'_>,
        moving: Moving,
        last: Option<u32>,
        one: &mut DoneJob,
        operations: Option<&mut Vec<Operated>>,
    ) -> Result<Tracker<()>, Error> {
        let tracker = match arbitration {
            GpuAssignment::Managed(task) => {
                return with_gpu(task, one, |rights, one| self.frame(tracker, rights, moving, one, operations));
            }
            GpuAssignment::Fewest(users) => {
                one.gpu = fewest(users, self.gpus.len(), last);
                one.granted = clock::now().0;
                one.from = last.filter(|last| *last != one.gpu);
                let word = users.word(one.gpu as usize);
                word.fetch_add(1, Ordering::Relaxed);
                let tracker = self.frame(tracker, &mut Unmanaged, moving, one, operations);
                word.fetch_sub(1, Ordering::Relaxed);
                tracker?
            }
            GpuAssignment::Fixed(gpu) => {
                (one.gpu, one.granted) = (*gpu, clock::now().0);
                self.frame(tracker, &mut Unmanaged, moving, one, operations)?
            }
        };
        one.released = clock::now().0;
        Ok(tracker)
    }

    /// Puts the state back to that of a tracker without features. Before [`Camera::run`], as it takes time.
    ///
    /// # Errors
    /// [`headway::ErrorKind::Device`].
    pub fn reset(&mut self) -> Result<(), Error> {
        Ok(self.memory.reset().map_err(Failure::Device)?)
    }

    /// One frame on the GPU that was given.
    fn frame(
        &mut self,
        tracker: Tracker<()>,
        rights: &mut dyn Rights,
        moving: Moving,
        one: &mut DoneJob,
        operations: Option<&mut Vec<Operated>>,
    ) -> Result<Tracker<()>, Error> {
        let picture = self.video.picture(one.job);
        let shared = OnShared {
            memory: &mut self.memory,
            operations: Operations { rights, moving, account: &mut one.account, kept: operations },
            gpu: one.gpu as usize,
            loaded: true,
            small: Vec::new(),
        };
        let (mut tracker, ()) = tracker.on(shared);
        let body = |tracker: &mut Tracker<OnShared<'_>>| {
            if let Some(from) = one.from {
                tracker.machine().bring(from as usize)?;
            }
            let digest = track(tracker, picture, one.digest)?;
            tracker.machine().leave()?;
            Ok(digest)
        };
        let digest = body(&mut tracker).map_err(Failure::Device)?;
        let tracker = tracker.on(()).0;
        one.digest = digest;
        Ok(tracker)
    }
}

/// Follows the features into `picture` and fills the free slots; the digest of everything tracked so far.
fn track<M: TrackerMachine>(
    tracker: &mut Tracker<M>,
    picture: &[f32],
    digest: u64,
) -> Result<u64, headway_device::DeviceError> {
    let report = tracker.track(picture, None)?;
    tracker.refill(picture, &CornerCriteria::default())?;
    Ok(digested(&report, digest))
}

/// FNV-1a, 64 bits, over every figure of a report.
fn digested(report: &FrameReport, digest: u64) -> u64 {
    let mut hash = digest ^ 0xcbf2_9ce4_8422_2325;
    let mut add = |word: u64| hash = (hash ^ word).wrapping_mul(0x0100_0000_01b3);
    for feature in &report.tracked {
        add(feature.id);
        add(feature.slot as u64);
        feature.at.iter().for_each(|at| add(u64::from(at.to_bits())));
        add(u64::from(feature.difference.to_bits()));
    }
    for (id, fate) in &report.lost {
        add(*id);
        add(u64::from(fate.code().to_bits()));
    }
    hash
}

/// The GPU with the fewest users, looking from the last one on (the load balancer of GPUSync's comparison).
fn fewest(users: &Words, gpus: usize, last: Option<u32>) -> u32 {
    let first = last.unwrap_or(0) as usize;
    let order = (0..gpus).map(|offset| (first + offset) % gpus);
    order.min_by_key(|gpu| users.word(*gpu).load(Ordering::Relaxed)).map_or(0, |gpu| gpu as u32)
}
