//! The double queues as the paper describes them: threads made in every call, write-combined buffers, the index taken before
//! a buffer, one copy on the engine at a time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use headway_core::models::transfer::{Direction, Stores};
use headway_core::units::Nanos;
use headway_device::gpu::{Caching, Gpu, Operation, Queue};
use headway_device::{Access, Buffer, DeviceError};
use headway_os::{clock, copy};

use super::super::bench::finish;
use crate::Error;

/// `threads` producers and two buffers each.
pub(super) struct DoubleQueue {
    queue: Mutex<Box<dyn Queue>>,
    buffers: Vec<Buffer>,
    threads: usize,
    bytes: usize,
}

/// A buffer of the pool and the chunk in it.
type Full = (usize, usize);

fn take<T>(queue: &Mutex<Receiver<T>>) -> Option<T> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

impl DoubleQueue {
    pub(super) fn new(gpu: &dyn Gpu, threads: usize, bytes: usize) -> Result<Self, Error> {
        let buffer = |_| gpu.pinned_buffer(bytes, Caching::WriteCombined);
        let buffers = (0..2 * threads).map(buffer).collect::<Result<_, _>>()?;
        Ok(Self { queue: Mutex::new(gpu.queue(false)?), buffers, threads, bytes })
    }

    /// Copies all of `host` to or from the start of `there`, and says how long it took, the making of threads included.
    pub(super) fn copy(&self, direction: Direction, there: &Buffer, host: &mut [u8]) -> Result<Nanos, Error> {
        let before = clock::now();
        let (give_empty, empty) = channel();
        for buffer in 0..self.buffers.len() {
            // Both ends live until the copy ends.
            let _ = give_empty.send(buffer);
        }
        match direction {
            Direction::H2d => self.copy_in(there, host, give_empty, empty)?,
            _ => self.copy_out(there, host, give_empty, empty)?,
        }
        Ok(clock::now() - before)
    }

    fn copy_in(&self, there: &Buffer, host: &[u8], give: Sender<usize>, empty: Receiver<usize>) -> Result<(), Error> {
        let chunks = host.len().div_ceil(self.bytes);
        let (next, empty) = (AtomicUsize::new(0), Mutex::new(empty));
        let (give_full, full) = channel::<Full>();
        let produce = |full: &Sender<Full>| -> Result<(), DeviceError> {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(chunk) = host.chunks(self.bytes).nth(index) else { return Ok(()) };
                let Some(buffer) = take(&empty) else { return Ok(()) };
                let mut span = self.buffers[buffer].claim(0..chunk.len(), Access::Write)?;
                copy::copy(span.bytes_mut()?, chunk, Stores::NonTemporal);
                drop(span);
                if full.send((buffer, index)).is_err() {
                    return Ok(());
                }
            }
        };
        thread::scope(|scope| {
            let producers: Vec<_> = (0..self.threads.min(chunks))
                .map(|_| {
                    let full = give_full.clone();
                    scope.spawn(move || produce(&full))
                })
                .collect();
            drop(give_full);
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let consumed = full.iter().try_for_each(|(buffer, index)| {
                let at = index * self.bytes;
                let len = self.bytes.min(host.len() - at);
                self.engine(&mut queue, &self.buffers[buffer], 0, there, at, len)?;
                let _ = give.send(buffer);
                Ok(())
            });
            // Producers that wait for a buffer see the queue close.
            drop((full, give));
            joined(producers).and(consumed)
        })
    }

    fn copy_out(
        &self,
        there: &Buffer,
        host: &mut [u8],
        give: Sender<usize>,
        empty: Receiver<usize>,
    ) -> Result<(), Error> {
        let total = host.len();
        let (give_full, full) = channel::<Full>();
        let full = Mutex::new(full);
        // Every chunk of the caller's memory is handed to the one thread that drains it.
        let targets: Vec<Mutex<&mut [u8]>> = host.chunks_mut(self.bytes).map(Mutex::new).collect();
        let chunks = targets.len();
        let drain = |give: &Sender<usize>| -> Result<(), DeviceError> {
            while let Some((buffer, index)) = take(&full) {
                let mut target = targets[index].lock().unwrap_or_else(PoisonError::into_inner);
                let span = self.buffers[buffer].claim(0..target.len(), Access::Read)?;
                copy::copy_streaming(&mut target, span.bytes()?);
                drop(span);
                let _ = give.send(buffer);
            }
            Ok(())
        };
        thread::scope(|scope| {
            let drains: Vec<_> = (0..self.threads.min(chunks))
                .map(|_| {
                    let give = give.clone();
                    scope.spawn(move || drain(&give))
                })
                .collect();
            drop(give);
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let consumed = (0..chunks).try_for_each(|index| {
                let Ok(buffer) = empty.recv() else { return Ok(()) };
                let at = index * self.bytes;
                let len = self.bytes.min(total - at);
                self.engine(&mut queue, there, at, &self.buffers[buffer], 0, len)?;
                let _ = give_full.send((buffer, index));
                Ok(())
            });
            drop(give_full);
            joined(drains).and(consumed)
        })
    }

    /// One synchronous copy by the engine.
    fn engine(
        &self,
        queue: &mut Box<dyn Queue>,
        from: &Buffer,
        from_at: usize,
        to: &Buffer,
        to_at: usize,
        len: usize,
    ) -> Result<(), Error> {
        let from = from.claim(from_at..from_at + len, Access::Read)?;
        let to = to.claim(to_at..to_at + len, Access::Write)?;
        queue.submit(Operation::Copy { from, to }, 0)?;
        finish(std::slice::from_mut(queue)).map(|_| ())
    }
}

fn joined(threads: Vec<thread::ScopedJoinHandle<'_, Result<(), DeviceError>>>) -> Result<(), Error> {
    for thread in threads {
        thread.join().map_err(|_| headway::Failure::Options("a staging thread panicked"))??;
    }
    Ok(())
}
