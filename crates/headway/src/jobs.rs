//! Jobs of tasks that share GPUs: each operation under its engine's lock, timed, and the bounds that follow.

mod observed;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use headway_core::decisions::engine_lock::{EngineWork, LockedOperation};
use headway_core::units::{Bytes, Nanos};
use headway_device::gpu::{self, Completion, Queue};
use headway_device::{Access, Buffer, DeviceError};
use headway_os::clock;
use headway_runtime::sharing::{EngineGuard, GpuToken, SharingError, Task};
use serde::{Deserialize, Serialize};

use crate::Failure;

pub use self::observed::{HAND_OVER, ObservedMaxima, observed};

/// The right to the engines of the GPU that a job was given.
pub trait Rights {
    /// Waits for the engines of an operation; `None` where nobody arbitrates them.
    ///
    /// # Errors
    /// [`SharingError`].
    fn engine(&mut self, operation: LockedOperation) -> Result<Option<EngineGuard<'_>>, SharingError>;
}

impl Rights for GpuToken<'_, '_> {
    fn engine(&mut self, operation: LockedOperation) -> Result<Option<EngineGuard<'_>>, SharingError> {
        GpuToken::engine(self, operation).map(Some)
    }
}

/// The driver arbitrates.
pub struct Unmanaged;

impl Rights for Unmanaged {
    fn engine(&mut self, _: LockedOperation) -> Result<Option<EngineGuard<'_>>, SharingError> {
        Ok(None)
    }
}

/// One operation of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operated {
    pub work: EngineWork,
    pub bytes: u64,
    /// When its engines were asked for, when they were there, and when it had completed.
    pub asked: Nanos,
    pub begun: Nanos,
    pub ended: Nanos,
}

/// Times of one job's operations.
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
        if operated.work == EngineWork::Execute {
            self.executes += 1;
            self.execute += held;
            self.execute_wait_max = self.execute_wait_max.max(wait);
            self.execute_held_max = self.execute_held_max.max(held);
        } else {
            self.copies += 1;
            self.copy += held;
            self.copy_wait_max = self.copy_wait_max.max(wait);
            self.copy_held_max = self.copy_held_max.max(held);
        }
    }
}

/// A job that was done. Times are those of the clock, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoneJob {
    pub job: u64,
    pub release: u64,
    /// The later of its release and its predecessor's end.
    pub start: u64,
    pub granted: u64,
    /// When the token was given back.
    pub released: u64,
    pub done: u64,
    pub gpu: u32,
    pub from: Option<u32>,
    pub account: Account,
    /// Of what this job and those before it gave.
    pub digest: u64,
}

impl DoneJob {
    pub fn response(&self) -> Nanos {
        Nanos(self.done.saturating_sub(self.start))
    }

    pub fn token_wait(&self) -> Nanos {
        Nanos(self.granted.saturating_sub(self.start))
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

/// The operations of one job, each under its engine's lock.
pub struct Operations<'a> {
    pub rights: &'a mut dyn Rights,
    pub moving: Moving,
    pub account: &'a mut Account,
    /// Every operation, where somebody wants them.
    pub kept: Option<&'a mut Vec<Operated>>,
}

impl Operations<'_> {
    /// One operation under its lock.
    pub fn operate(
        &mut self,
        work: EngineWork,
        bytes: usize,
        body: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let bytes = bytes as u64;
        let asked = clock::now();
        let operation = LockedOperation { work, bytes: Bytes(bytes), predicted: Nanos::ZERO, budget: Nanos::ZERO };
        let held = self.rights.engine(operation).map_err(|error| refused(&error))?;
        let begun = clock::now();
        body()?;
        let ended = clock::now();
        drop(held);
        let operated = Operated { work, bytes, asked, begun, ended };
        self.account.add(&operated);
        if let Some(kept) = self.kept.as_deref_mut() {
            kept.push(operated);
        }
        Ok(())
    }

    /// A copy, chunk by chunk.
    pub fn copy(
        &mut self,
        work: EngineWork,
        bytes: usize,
        mut chunk: impl FnMut(Range<usize>) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let most = self.moving.chunk.map_or(bytes, |chunk| chunk as usize).max(1);
        let mut at = 0;
        while at < bytes {
            let end = bytes.min(at + most);
            self.operate(work, end - at, || chunk(at..end))?;
            at = end;
        }
        Ok(())
    }
}

/// Waits for a GPU for the job that `one` says was released, does `body` while the job holds it, and gives it back.
///
/// # Errors
/// `ErrorKind::Broker` when no GPU is granted; what `body` says.
pub fn with_gpu<T, E: From<Failure>>(
    task: &mut Task<'_>,
    one: &mut DoneJob,
    body: impl FnOnce(&mut dyn Rights, &mut DoneJob) -> Result<T, E>,
) -> Result<T, E> {
    let mut job = task.job(Nanos(one.release));
    let mut gpu = job.acquire(None).map_err(Failure::Shared)?;
    one.granted = clock::now().0;
    one.gpu = gpu.id().0;
    one.from = gpu.from().map(|from| from.0);
    let done = body(&mut gpu, one)?;
    one.released = clock::now().0;
    // Waiting for engines is the others' doing.
    gpu.release(Nanos((one.released - one.granted).saturating_sub(one.account.engine_wait)));
    Ok(done)
}

/// Longest time without a look at whether the end is asked for.
const SLICE: Nanos = Nanos(50_000_000);

/// Sleeps until `at`; `false` if the end is asked for.
pub fn sleep_until(at: Nanos, interrupt: &AtomicBool) -> bool {
    loop {
        let now = clock::now();
        if interrupt.load(Ordering::Relaxed) {
            return false;
        }
        if now >= at {
            return true;
        }
        clock::sleep_until(at.min(now.saturating_add(SLICE)));
    }
}

/// Keeps the CPU for so much CPU time of this thread.
pub fn burn(time: Nanos) {
    let until = clock::thread_cpu_time().saturating_add(time);
    while clock::thread_cpu_time() < until {
        std::hint::spin_loop();
    }
}

/// Submits an operation to an empty queue, and waits until it is complete.
///
/// # Errors
/// [`DeviceError`].
pub fn complete(queue: &mut dyn Queue, operation: gpu::Operation) -> Result<(), DeviceError> {
    queue.submit(operation, 0)?;
    wait(queue).result
}

/// Copies a range of one buffer into the same range of another by an empty queue, and waits until that is complete.
///
/// # Errors
/// [`DeviceError`].
pub fn copy_range(queue: &mut dyn Queue, from: &Buffer, to: &Buffer, range: Range<usize>) -> Result<(), DeviceError> {
    let from = from.claim(range.clone(), Access::Read)?;
    let to = to.claim(range, Access::Write)?;
    complete(queue, gpu::Operation::Copy { from, to })
}

/// That a task has no memory on a GPU.
#[must_use]
pub fn no_gpu() -> DeviceError {
    DeviceError::Invalid { what: "GPU", reason: "the task has no memory there".into() }
}

/// Waits for the oldest operation of a queue that has one.
pub fn wait(queue: &mut dyn Queue) -> Completion {
    loop {
        match queue.poll() {
            Some(done) => return done,
            None => std::thread::yield_now(),
        }
    }
}

/// What an arbiter refused, as a device says it.
fn refused(error: &SharingError) -> DeviceError {
    DeviceError::Unavailable {
        what: "an engine".into(),
        reason: error.to_string(),
        remedy: "see that the broker runs".into(),
    }
}
