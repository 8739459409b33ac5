//! Bulk copies in the background, for measuring what happens beside them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

use headway_core::models::transfer::{BackgroundLoad, Direction};
use headway_device::buffer::Access;
use headway_device::gpu::{Caching, CpuReach, Gpu, Operation, Queue};
use headway_device::{Buffer, DeviceError};

/// Copies that each direction puts on its engine at a time: one runs, one waits. The next ones follow when both have ended: an
/// H200's copy engine stays with a CUDA stream that is never empty, and copies of other streams waited for more than 10 s.
const IN_FLIGHT: usize = 2;

/// Bulk copies until it is stopped or dropped.
pub struct BulkLoad {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<u64, DeviceError>>>,
}

impl BulkLoad {
    /// Starts copies of `chunk` bytes beside a copy of `direction`, as `load` says; returns when each kind has completed one.
    pub fn start(
        gpu: &Arc<dyn Gpu>,
        direction: Direction,
        load: BackgroundLoad,
        chunk: usize,
    ) -> Result<Self, DeviceError> {
        let opposite = match direction {
            Direction::H2d => Direction::D2h,
            _ => Direction::H2d,
        };
        let directions: &[Direction] = match load {
            BackgroundLoad::Alone => &[],
            BackgroundLoad::BulkSame => &[direction],
            BackgroundLoad::BulkOpposite => &[opposite],
            BackgroundLoad::BulkBoth => &[direction, opposite],
        };
        let mut queues = Vec::new();
        for &direction in directions {
            queues.push(LoadDirection::new(gpu.as_ref(), direction, chunk)?);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (started, wait) = mpsc::sync_channel(1);
        let asked = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("headway-bulk".to_owned())
            .spawn(move || serve(queues, &asked, &started))
            .map_err(|error| DeviceError::Unavailable {
                what: "a thread for bulk copies".into(),
                reason: error.to_string(),
                remedy: "raise the limit on threads".into(),
            })?;
        let bulk = Self { stop, thread: Some(thread) };
        // The sender is dropped when the thread fails: `stop` says why.
        match wait.recv() {
            Ok(()) => Ok(bulk),
            Err(mpsc::RecvError) => bulk.stop().and_then(|_| Err(DeviceError::DeviceLost)),
        }
    }

    /// Ends the copies and returns how many there were.
    pub fn stop(mut self) -> Result<u64, DeviceError> {
        self.end().unwrap_or(Ok(0))
    }

    fn end(&mut self) -> Option<Result<u64, DeviceError>> {
        self.stop.store(true, Ordering::Relaxed);
        // The thread contains no code that panics; if it did, the device's state is unknown.
        self.thread.take().map(|thread| thread.join().unwrap_or(Err(DeviceError::DeviceLost)))
    }
}

impl Drop for BulkLoad {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// One direction: a queue, what it reads, and one place to write for each copy in flight.
struct LoadDirection {
    queue: Box<dyn Queue>,
    from: Buffer,
    to: Buffer,
    chunk: usize,
    next: usize,
    done: u64,
}

impl LoadDirection {
    fn new(gpu: &dyn Gpu, direction: Direction, chunk: usize) -> Result<Self, DeviceError> {
        let host = |bytes| gpu.pinned_buffer(bytes, Caching::Cached);
        let device = |bytes| gpu.device_buffer(bytes, CpuReach::Device);
        let (from, to) = match direction {
            Direction::H2d => (host(chunk)?, device(chunk * IN_FLIGHT)?),
            _ => (device(chunk)?, host(chunk * IN_FLIGHT)?),
        };
        Ok(Self { queue: gpu.queue(false)?, from, to, chunk, next: 0, done: 0 })
    }

    /// Takes what has ended and keeps the engine busy.
    fn turn(&mut self) -> Result<(), DeviceError> {
        while let Some(done) = self.queue.poll() {
            done.result?;
            self.done += 1;
        }
        if self.queue.outstanding() > 0 {
            return Ok(());
        }
        for _ in 0..IN_FLIGHT {
            let at = self.next * self.chunk;
            let from = self.from.claim(0..self.chunk, Access::Read)?;
            let to = self.to.claim(at..at + self.chunk, Access::Write)?;
            self.queue.submit(Operation::Copy { from, to }, 0)?;
            self.next = (self.next + 1) % IN_FLIGHT;
        }
        Ok(())
    }
}

fn serve(
    mut queues: Vec<LoadDirection>,
    stop: &AtomicBool,
    started: &mpsc::SyncSender<()>,
) -> Result<u64, DeviceError> {
    let mut has_started = false;
    while !stop.load(Ordering::Relaxed) {
        for queue in &mut queues {
            queue.turn()?;
        }
        if !has_started && queues.iter().all(|queue| queue.done > 0) {
            has_started = started.send(()).is_ok();
        }
        std::thread::yield_now();
    }
    Ok(queues.iter().map(|queue| queue.done).sum())
}
