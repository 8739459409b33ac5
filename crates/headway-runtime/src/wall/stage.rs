//! A kernel of a step, loaded on a device.

use std::sync::Arc;

use headway_device::work::{Portion, StepMemory};
use headway_device::{Access, Buffer, DeviceError, Engines, Span, Work};

use super::RunError;
use crate::settle::upload;

/// A kernel ready to launch, with the state that it keeps from cycle to cycle.
pub(super) struct Stage {
    work: Arc<dyn Work>,
    state: Option<Buffer>,
    portions: u32,
}

impl Stage {
    /// Launches it over `input`.
    pub(super) fn launch(&self, device: &mut Engines, input: Span, output: Span, tag: u64) -> Result<(), DeviceError> {
        let state = match &self.state {
            Some(state) => Some(state.claim(0..state.len(), Access::Write)?),
            None => None,
        };
        device.launch(&self.work, StepMemory { input, output, state }, self.portions, tag)
    }
}

/// Loads a work, and puts its first state into device memory.
pub(super) fn stage(device: &mut Engines, work: &Arc<dyn Work>, portions: &[Portion]) -> Result<Stage, RunError> {
    let prepare = |source| RunError::Prepare { what: format!("kernel `{}`", work.id()), source };
    device.gpu().load(work.as_ref()).map_err(prepare)?;
    let bytes = work.state_bytes(portions.len());
    let mut first = vec![0; bytes];
    work.init_state(portions, &mut first)?;
    let state = if bytes == 0 { None } else { Some(upload(device, &first).map_err(prepare)?) };
    Ok(Stage { work: Arc::clone(work), state, portions: portions.len() as u32 })
}
