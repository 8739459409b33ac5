//! The launch of a work as a step of a stream.

use std::sync::Arc;

use headway_core::plan::block::LAUNCH_ALIGN;

use crate::access::Access;
use crate::error::DeviceError;
use crate::gpu::Operation;
use crate::work::{StepMemory, Work};

/// The launch of `work` as a step over a block of `portions` portions. Every span must start at a multiple of [`LAUNCH_ALIGN`] bytes, on
/// which entries rely; whether all are memory of the GPU that launches is left to its queue.
///
/// # Errors
/// [`DeviceError::Invalid`].
pub fn step(work: &Arc<dyn Work>, memory: StepMemory, portions: u32) -> Result<Operation, DeviceError> {
    let refuse = |reason: String| Err(DeviceError::Invalid { what: "launch", reason });
    let StepMemory { input, output, state } = &memory;
    if portions == 0 {
        return refuse("it has no portion".into());
    }
    if output.access() != Access::Write || state.as_ref().is_some_and(|state| state.access() != Access::Write) {
        return refuse("output and state must be claimed for writing".into());
    }
    for span in [input, output].into_iter().chain(state) {
        let behind = span.as_ptr().addr() % LAUNCH_ALIGN;
        if behind != 0 {
            let id = work.id();
            return refuse(format!(
                "kernel `{id}` relies on multiples of {LAUNCH_ALIGN} bytes, and a span starts {behind} behind one; claim it from a multiple"
            ));
        }
    }
    let needed = work.output_bytes(input.len(), portions);
    if output.len() < needed {
        let (len, id) = (output.len(), work.id());
        return refuse(format!("the output of {len} bytes is shorter than the {needed} of `{id}`"));
    }
    let (grid, arguments) = (work.grid(portions), work.arguments(memory, portions));
    Ok(Operation::Launch { work: Arc::clone(work), grid, arguments })
}
