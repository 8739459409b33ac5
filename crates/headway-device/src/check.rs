//! What every device checks before it takes an operation.

use headway_core::files::machine::EngineClass;
use headway_core::models::transfer::Method;

use crate::buffer::{Access, DeviceId, Domain, Place, Span};
use crate::gpu::{Argument, Move, Mover, Piece};
use crate::kernel::{Grid, Kernel};
use crate::{Description, DeviceError, Operation};

/// Every span of a launch starts at a multiple of this; kernels rely on it.
pub const LAUNCH_ALIGN: usize = 256;

/// Pieces of one move at most.
pub const PIECES_MAX: usize = 1 << 20;

/// Checks that `operation` is one for an engine of class `engine` of the device `id`; whether its kernel is loaded and has room
/// for its output is left to the device.
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

/// Checks that a launch of `kernel` has room for its output.
///
/// # Errors
/// [`DeviceError::Invalid`].
pub fn room(kernel: &dyn Kernel, input: &Span, output: &Span, lanes: u32) -> Result<(), DeviceError> {
    let needed = kernel.output_bytes(input.len(), lanes);
    if output.len() >= needed {
        return Ok(());
    }
    let reason = format!("the output of {} bytes is shorter than the {needed} of `{}`", output.len(), kernel.id());
    Err(DeviceError::Invalid { what: "launch", reason })
}

/// Checks that `what` is a move for a lane of the device `here`, and that pieces and arguments lie where they must;
/// `reaches` says whether copies between it and another device of its domain go directly.
///
/// # Errors
/// [`DeviceError::Invalid`]; [`DeviceError::Refused`] beyond [`PIECES_MAX`] pieces.
pub fn movement(here: (DeviceId, Domain), what: &Move, reaches: impl Fn(DeviceId) -> bool) -> Result<(), DeviceError> {
    let refuse = |reason: String| Err(DeviceError::Invalid { what: "move", reason });
    let place = Place::Device { id: here.0, domain: here.1 };
    match what {
        Move::Copy { from, to } => {
            equal(from.len(), to.len())?;
            leg(here, from, to, reaches)
        }
        Move::Relay { from, through, to } => {
            equal(from.len(), through.len())?;
            equal(through.len(), to.len())?;
            if through.place() != place {
                return refuse("a relay goes through memory of the lane's own device".into());
            }
            leg(here, from, through, &reaches)?;
            leg(here, through, to, &reaches)
        }
        Move::Pieces { from, to, pieces: list, by } => {
            if *by == (Mover::Kernel { blocks: 0 }) {
                return refuse("a kernel needs at least one thread block".into());
            }
            leg(here, from, to, reaches)?;
            pieces(from.len(), to.len(), list)
        }
        Move::Launch { program: _, grid, arguments } => {
            let Grid { blocks, threads, shared_bytes: _ } = *grid;
            if blocks == 0 || !(1..=1024).contains(&threads) {
                return refuse(format!("a grid of {blocks} blocks of {threads} threads cannot be launched"));
            }
            let reachable = |argument: &Argument| match argument {
                Argument::Int(_) => true,
                Argument::Memory(span) => span.place() == place || span.place() == Place::Host { pinned: Some(here.1) },
            };
            match arguments.iter().position(|argument| !reachable(argument)) {
                Some(at) => {
                    refuse(format!("argument {at} is neither memory of the lane's device nor pinned host memory"))
                }
                None => Ok(()),
            }
        }
    }
}

fn equal(from: usize, to: usize) -> Result<(), DeviceError> {
    if from == to {
        return Ok(());
    }
    Err(DeviceError::Invalid { what: "move", reason: format!("{from} bytes cannot be copied to {to}") })
}

/// One copy of a lane of `here`: between its device and pinned host memory, within it, or with a device it reaches.
fn leg(
    here: (DeviceId, Domain),
    from: &Span,
    to: &Span,
    reaches: impl Fn(DeviceId) -> bool,
) -> Result<(), DeviceError> {
    let refuse = |reason: &str| Err(DeviceError::Invalid { what: "move", reason: reason.into() });
    if to.access() != Access::Write {
        return refuse("the destination was claimed for reading");
    }
    let place = Place::Device { id: here.0, domain: here.1 };
    if from.place() != place && to.place() != place {
        return refuse("neither source nor destination is memory of the lane's device");
    }
    let other = if from.place() == place { to.place() } else { from.place() };
    match other {
        Place::Host { pinned } if pinned == Some(here.1) => Ok(()),
        Place::Host { .. } => {
            refuse("the host memory is not pinned for this device; use a pinned buffer or register it")
        }
        other if other == place => Ok(()),
        Place::Device { id, domain } if domain == here.1 && reaches(id) => Ok(()),
        Place::Device { .. } => refuse("the other device cannot be reached directly"),
    }
}

/// Checks that `pieces` lie within a source of `from` and a destination of `to` bytes.
///
/// # Errors
/// [`DeviceError::Invalid`]; [`DeviceError::Refused`] beyond [`PIECES_MAX`].
pub fn pieces(from: usize, to: usize, pieces: &[Piece]) -> Result<(), DeviceError> {
    if pieces.len() > PIECES_MAX {
        return Err(DeviceError::Refused { limit: "pieces of one move", max: PIECES_MAX as u64 });
    }
    let beyond = |at: usize, len: usize, room: usize| at.checked_add(len).is_none_or(|end| end > room);
    match pieces.iter().position(|piece| beyond(piece.from, piece.len, from) || beyond(piece.to, piece.len, to)) {
        Some(at) => Err(DeviceError::Invalid {
            what: "move",
            reason: format!(
                "piece {at} ({:?}) lies outside a source of {from} or a destination of {to} bytes",
                pieces[at]
            ),
        }),
        None => Ok(()),
    }
}

/// Checks a copy between `span`, memory of the device `here`, and ordinary memory of `len` bytes; `inward` = to the device.
///
/// # Errors
/// [`DeviceError::Invalid`].
pub fn ordinary(here: (DeviceId, Domain), span: &Span, len: usize, inward: bool) -> Result<(), DeviceError> {
    let refuse = |reason: String| Err(DeviceError::Invalid { what: "copy", reason });
    if span.len() != len {
        return refuse(format!("ordinary memory of {len} bytes and a span of {} cannot be copied", span.len()));
    }
    if span.place() != (Place::Device { id: here.0, domain: here.1 }) {
        return refuse("the span is not memory of this device".into());
    }
    if inward && span.access() != Access::Write {
        return refuse("the destination was claimed for reading".into());
    }
    Ok(())
}
