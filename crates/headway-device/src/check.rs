//! What every device checks before it takes an operation.

use headway_core::machine::{EngineClass, Method};

use crate::buffer::{Access, DeviceId, Domain, Place, Span};
use crate::{Description, DeviceError, Operation};

/// Every span of a launch starts at a multiple of this; kernels rely on it.
pub const LAUNCH_ALIGN: usize = 256;

/// Checks that `operation` is one for an engine of class `engine` of the device `id`; whether its kernel is loaded is left
/// to the device.
///
/// # Errors
/// [`DeviceError::NoEngine`], [`DeviceError::Invalid`].
pub fn operation(
    description: &Description,
    (id, domain): (DeviceId, Domain),
    engine: EngineClass,
    operation: &Operation,
) -> Result<(), DeviceError> {
    if !description.engines.contains(&engine) {
        return Err(DeviceError::NoEngine { device: description.name.clone(), class: engine });
    }
    match operation {
        Operation::Copy { method, from, to } => copy((id, domain), engine, *method, from, to),
        Operation::Launch { kernel: _, input, output, state, lanes } => {
            if *lanes == 0 {
                return Err(DeviceError::Invalid { what: "launch", reason: "it has no lane".into() });
            }
            launch(id, engine, input, output, state.as_ref())
        }
    }
}

fn copy(
    (id, domain): (DeviceId, Domain),
    engine: EngineClass,
    method: Method,
    from: &Span,
    to: &Span,
) -> Result<(), DeviceError> {
    let refuse = |reason: String| Err(DeviceError::Invalid { what: "copy", reason });
    if from.len() != to.len() {
        return refuse(format!("{} bytes cannot be copied to {}", from.len(), to.len()));
    }
    if to.access() != Access::Write {
        return refuse("the destination was claimed for reading".into());
    }
    let here = Place::Device { id, domain };
    let host = match (engine, from.place(), to.place()) {
        (EngineClass::H2d, Place::Host { pinned }, place) | (EngineClass::D2h, place, Place::Host { pinned })
            if place == here =>
        {
            pinned
        }
        (EngineClass::Peer, from @ Place::Device { domain: theirs, .. }, to)
            if theirs == domain && (from == here || to == here) && in_domain(to, domain) =>
        {
            return match method {
                Method::Peer => Ok(()),
                other => refuse(format!("method {other:?} does not copy between devices")),
            };
        }
        _ => return refuse("source and destination do not fit the engine's direction on this device".into()),
    };
    match method {
        Method::Pageable => Ok(()),
        Method::Dma if host == Some(domain) => Ok(()),
        Method::Dma => refuse("method dma needs host memory pinned for this device; use a pinned buffer".into()),
        other => refuse(format!("method {other:?} does not copy between host and device")),
    }
}

fn in_domain(place: Place, domain: Domain) -> bool {
    matches!(place, Place::Device { domain: theirs, .. } if theirs == domain)
}

fn launch(
    id: DeviceId,
    engine: EngineClass,
    input: &Span,
    output: &Span,
    state: Option<&Span>,
) -> Result<(), DeviceError> {
    let refuse = |reason: String| Err(DeviceError::Invalid { what: "launch", reason });
    if engine != EngineClass::Ee {
        return refuse("kernels run on the execution engine only".into());
    }
    if output.len() < input.len() {
        return refuse(format!("the output of {} bytes is shorter than the input of {}", output.len(), input.len()));
    }
    if output.access() != Access::Write || state.is_some_and(|state| state.access() != Access::Write) {
        return refuse("output and state must be claimed for writing".into());
    }
    for span in [input, output].into_iter().chain(state) {
        if !matches!(span.place(), Place::Device { id: theirs, .. } if theirs == id) {
            return refuse("a span is not memory of this device".into());
        }
        if !span.as_ptr().addr().is_multiple_of(LAUNCH_ALIGN) {
            return refuse(format!("a span starts {} bytes behind a multiple of 256", span.as_ptr().addr() % 256));
        }
    }
    Ok(())
}
