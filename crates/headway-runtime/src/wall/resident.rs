//! Blocks of pipelines that begin or end on a GPU. They are in its memory before the run, and are read back after it, so that no
//! copy which the plan does not have delays one that it has.

use std::ops::Range;

use headway_core::files::machine::EngineClass;
use headway_core::models::transfer::Method;
use headway_core::plan::Pipeline;
use headway_core::units::{Bytes, Nanos};
use headway_device::{Access, Buffer, DeviceError, Engines, HostKind, Span};

use super::RunError;
use crate::blocks::{DataError, Supply};
use crate::settle::settle;

/// A GPU gives at most one part in this many of its memory to such blocks; the rest is for buffers, kernels and messages.
const DEVICE_PART: u64 = 2;

/// Distance of blocks to each other, at least.
const ALIGN: u64 = 256;

/// The blocks of all cycles of a pipeline, one behind the other in the memory of a GPU.
pub(super) struct Resident {
    device: usize,
    memory: Buffer,
    /// Bytes from one block to the next.
    stride: usize,
    /// Of each cycle, where they are brought before the run.
    brought: Vec<Bytes>,
}

/// Memory that blocks take on each device.
pub(super) struct Room {
    taken: Vec<u64>,
}

impl Room {
    pub(super) fn new(devices: usize) -> Self {
        Self { taken: vec![0; devices] }
    }

    /// Allocates memory on `device` for `cycles` blocks of pipeline `number`.
    pub(super) fn resident(
        &mut self,
        devices: &[Engines],
        device: usize,
        number: u32,
        pipeline: &Pipeline,
        cycles: u64,
    ) -> Result<Resident, RunError> {
        let stride = pipeline.reserve.0.next_multiple_of(ALIGN);
        let wanted = stride.saturating_mul(cycles);
        let most = devices[device].description().memory_bytes.0 / DEVICE_PART;
        let left = most - self.taken[device];
        if wanted > left {
            let fit = left / stride;
            let reason = format!(
                "it begins or ends on a GPU, whose memory then holds the blocks of all {cycles} cycles ({}), and there are {} for \
                 them; {fit} cycles fit: give a `--duration` of at most {}, or copy from and to `host`",
                Bytes(wanted),
                Bytes(left),
                pipeline.period * fit
            );
            let object = format!("pipeline `{}`", pipeline.name);
            return Err(RunError::Unsupported { pipeline: number, step: None, object, reason });
        }
        self.taken[device] += wanted;
        let memory = devices[device].device_buffer(wanted as usize).map_err(|source| unprepared(pipeline, source))?;
        Ok(Resident { device, memory, stride: stride as usize, brought: Vec::new() })
    }
}

fn unprepared(pipeline: &Pipeline, source: DeviceError) -> RunError {
    RunError::Prepare { what: format!("blocks of pipeline `{}` on its GPU", pipeline.name), source }
}

/// A block that was delivered and lies on a GPU.
pub(super) struct KeptBlock {
    pub(super) cycle: u64,
    pub(super) bytes: Bytes,
    /// When it was delivered, after time zero.
    pub(super) at: Nanos,
}

impl Resident {
    /// Claims `range` of the block of `cycle`.
    pub(super) fn claim(&self, cycle: u64, range: Range<usize>, access: Access) -> Result<Span, DeviceError> {
        let start = cycle as usize * self.stride;
        self.memory.claim(start + range.start..start + range.end, access)
    }

    /// The size of the block of `cycle` that was brought before the run.
    pub(super) fn brought(&self, cycle: u64) -> Bytes {
        self.brought[cycle as usize]
    }

    /// Brings the blocks of `cycles` cycles of pipeline `number`.
    pub(super) fn bring(
        &mut self,
        devices: &mut [Engines],
        number: u32,
        pipeline: &Pipeline,
        cycles: u64,
        supply: &mut dyn Supply,
    ) -> Result<(), RunError> {
        let failed = |source| unprepared(pipeline, source);
        let device = &mut devices[self.device];
        let host = device.host_buffer(self.stride, HostKind::Pinned).map_err(failed)?;
        let whole = |access| host.claim(0..self.stride, access);
        supply.prepare(number, 0, &mut [whole(Access::Write).map_err(failed)?.bytes_mut().map_err(failed)?])?;
        for cycle in 0..cycles {
            let mut span = whole(Access::Write).map_err(failed)?;
            let block = supply.supply(number, cycle, 0, &mut [span.bytes_mut().map_err(failed)?])?.block;
            drop(span);
            self.brought.push(block);
            if block > Bytes(0) {
                let range = 0..block.0 as usize;
                let ends = host
                    .claim(range.clone(), Access::Read)
                    .and_then(|from| Ok((from, self.claim(cycle, range, Access::Write)?)));
                let moved = ends.and_then(|ends| device.copy(EngineClass::H2d, Method::Dma, ends, u64::MAX));
                moved.and_then(|()| settle(device)).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Calls `take` with each of the blocks that the run left.
    pub(super) fn read_back(
        &self,
        devices: &mut [Engines],
        pipeline: &Pipeline,
        blocks: &[KeptBlock],
        mut take: impl FnMut(&KeptBlock, &[u8]) -> Result<(), DataError>,
    ) -> Result<(), RunError> {
        let failed = |source| unprepared(pipeline, source);
        let device = &mut devices[self.device];
        let host = device.host_buffer(self.stride, HostKind::Pinned).map_err(failed)?;
        for kept in blocks {
            let (cycle, range) = (kept.cycle, 0..kept.bytes.0 as usize);
            let ends = self
                .claim(cycle, range.clone(), Access::Read)
                .and_then(|from| Ok((from, host.claim(range.clone(), Access::Write)?)));
            let moved = ends.and_then(|ends| device.copy(EngineClass::D2h, Method::Dma, ends, u64::MAX));
            moved.and_then(|()| settle(device)).map_err(failed)?;
            let span = host.claim(range, Access::Read).map_err(failed)?;
            take(kept, span.bytes().map_err(failed)?)?;
        }
        Ok(())
    }
}
