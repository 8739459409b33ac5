//! Ordinary memory that is pinned range by range while it moves (Patil and Kulkarni 2021: pinned and overlapped transfers).
//!
//! The CPU only asks for pages to be pinned and released, which the engine's copying hides. At most two ranges are pinned at a time:
//! the one that is copied, and the next.

use std::ops::Range;

use headway_core::decisions::chooser::PINNED_CUT;
use headway_core::models::transfer::{Direction, Method};
use headway_core::units::Bytes;
use headway_device::gpu::{Gpu, Operation};
use headway_device::{Access, DeviceError};

use super::engine::{EngineMoved, QueueStep, Stopped};
use super::gpu::CopierGpu;
use super::request::{Host, Request};
use super::{At, Copier, CopyError};

/// Ranges meet at multiples of this.
const CUT: usize = PINNED_CUT as usize;

impl Copier {
    /// Pins the caller's pages in place, range by range.
    pub(super) fn pinning(
        &self,
        gpu: &CopierGpu,
        request: &mut Request<'_>,
        method: Method,
    ) -> Result<EngineMoved, CopyError> {
        let address = match &request.host {
            _ if self.pinned(gpu, request, "pinning").is_ok() => return self.dma(gpu, request, method),
            Host::In(memory) => memory.as_ptr().addr(),
            Host::Out(memory) => memory.as_ptr().addr(),
            Host::Held(_) => return self.dma(gpu, request, method),
        };
        let cancel = self.cancel.watch();
        let (direction, len) = (request.direction, request.len);
        let limited = gpu.engine(direction).shared.limit.enter();
        let chunk = self.chunk(method, len).min(limited.bytes);
        // Beside flows chunks may be shorter than what can be pinned by itself.
        let ranges: Vec<_> = ranges(address, len, chunk.max(CUT)).collect();
        request
            .with_buffers(None, |from, to| {
                // Pinning waits until no kernel runs, and resident copiers run on until their leases end.
                self.gpus.iter().try_for_each(CopierGpu::park).map_err(Stopped::early)?;
                let (engine, bounds) = (gpu.engine(direction), self.bounds(&cancel));
                let mut run = engine.open(gpu.device.as_ref(), len.div_ceil(chunk), Bytes(chunk as u64), bounds)?;
                for range in ranges {
                    while run.flying() > 1 {
                        run.poll()?;
                    }
                    for step in pin(gpu.device.as_ref(), direction, from, to, range, chunk)? {
                        run.submit(step)?;
                    }
                }
                run.finish()
            })
            .map_err(|stopped| stopped.error(method, self.bounds(&cancel)))
    }
}

/// The copies of one range, each of `chunk` bytes at most; the last one that ends unpins it.
fn pin(
    gpu: &dyn Gpu,
    direction: Direction,
    from: At<'_>,
    to: At<'_>,
    range: Range<usize>,
    chunk: usize,
) -> Result<Vec<QueueStep>, Stopped> {
    let within = |at: At<'_>, part: &Range<usize>| at.offset + part.start..at.offset + part.end;
    let host = if direction == Direction::D2h { to } else { from };
    let view = gpu.register(host.buffer, within(host, &range)).map_err(|error| match error {
        DeviceError::DeviceLost => Stopped::early(error),
        error => Stopped::unpinned(error),
    })?;
    let step = |start: usize| {
        let part = start..(start + chunk).min(range.end);
        let pinned = part.start - range.start..part.end - range.start;
        let (from, to) = if direction == Direction::D2h {
            (from.buffer.claim(within(from, &part), Access::Read)?, view.claim(pinned, Access::Write)?)
        } else {
            (view.claim(pinned, Access::Read)?, to.buffer.claim(within(to, &part), Access::Write)?)
        };
        Ok(QueueStep { what: Operation::Copy { from, to }, len: part.len() as u64 })
    };
    range.clone().step_by(chunk).map(step).collect::<Result<_, DeviceError>>().map_err(Stopped::early)
}

/// The ranges of a copy of `len` bytes from `address` on, each of `step` bytes at most, which is no less than [`CUT`].
fn ranges(address: usize, len: usize, step: usize) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        if start == len {
            return None;
        }
        let end = (start + step).min(len);
        let beyond = (address + end) % CUT;
        // The last range ends where the copy does, and a step is at least as long as what is cut off.
        let end = if end == len || end - start <= beyond { end } else { end - beyond };
        let range = start..end;
        start = end;
        Some(range)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_the_copy_once_and_meet_at_cuts() {
        const MIB: usize = 1 << 20;
        for address in [0, 1, 4095, CUT - 1, CUT, 5 * CUT + 17] {
            for len in [0, 1, 4096, 3 * MIB, 4 * MIB + 1, 17 * MIB, 100 * MIB + 5, 1 << 30] {
                for step in [CUT, 3 << 20, 32 << 20] {
                    let mut at = 0;
                    for range in ranges(address, len, step) {
                        assert!(range.start == at && range.end > at, "{address} {len} {step}: {range:?}");
                        assert!(
                            range.end == len || (address + range.end) % CUT == 0,
                            "{address} {len} {step}: {range:?}"
                        );
                        assert!(range.len() <= step, "{step}: {range:?}");
                        at = range.end;
                    }
                    assert_eq!(at, len);
                }
            }
        }
        assert_eq!(ranges(0, 1 << 30, 32 << 20).count(), 32);
    }
}
