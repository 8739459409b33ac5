//! Pinned memory through which pieces of ordinary memory pass, in slots of equal size.

use std::sync::{Mutex, PoisonError};

use headway_core::units::Bytes;
use headway_device::gpu::{Caching, Gpu};
use headway_device::{Buffer, DeviceError};

use super::engine::{Bounds, Stopped, Why};
use crate::wait::Patience;

/// Bytes of one slot: large enough to hide the set-up of its copy, small enough that several threads share a request of a
/// few megabytes.
pub(super) const SLOT: usize = 1 << 20;
/// Slots of one GPU at most.
const SLOTS_MAX: usize = 32;

/// The slots of one GPU; pinned on first use.
#[derive(Default)]
pub(super) struct Bounce(Mutex<State>);

#[derive(Default)]
struct State {
    memory: Option<Buffer>,
    free: Vec<usize>,
}

/// Slots that one request uses, given back when dropped.
pub(super) struct Slots<'a> {
    bounce: &'a Bounce,
    /// The memory they are in.
    pub(super) buffer: Buffer,
    /// Their offsets.
    pub(super) offsets: Vec<usize>,
}

impl Bounce {
    /// Takes up to `wanted` slots, possibly none when others use them all; at most `max` bytes are ever pinned, but always
    /// one slot.
    fn take(&self, gpu: &dyn Gpu, wanted: usize, max: Bytes) -> Result<Slots<'_>, DeviceError> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let buffer = match &state.memory {
            Some(memory) => memory.clone(),
            None => {
                let slots = usize::try_from(max.0).unwrap_or(usize::MAX) / SLOT;
                let slots = slots.clamp(1, SLOTS_MAX);
                let memory = gpu.pinned_buffer(slots * SLOT, Caching::Cached)?;
                state.memory = Some(memory.clone());
                state.free = (0..slots).rev().map(|slot| slot * SLOT).collect();
                memory
            }
        };
        let left = state.free.len().saturating_sub(wanted);
        Ok(Slots { bounce: self, buffer, offsets: state.free.split_off(left) })
    }

    /// Like [`Bounce::take`], but waits until there is at least one slot.
    pub(super) fn await_slots(
        &self,
        gpu: &dyn Gpu,
        wanted: usize,
        max: Bytes,
        bounds: Bounds<'_>,
    ) -> Result<Slots<'_>, Stopped> {
        let mut patience = Patience::new(bounds.patience);
        loop {
            let slots = self.take(gpu, wanted, max).map_err(Stopped::unpinned)?;
            if !slots.offsets.is_empty() {
                return Ok(slots);
            }
            if !patience.pause() {
                return Err(Stopped { chunk: 0, prefix: 0, why: Why::Timeout });
            }
        }
    }
}

impl Drop for Slots<'_> {
    fn drop(&mut self) {
        self.bounce.0.lock().unwrap_or_else(PoisonError::into_inner).free.append(&mut self.offsets);
    }
}
