//! What every GPU checks before it takes an operation.

use headway_core::files::machine::EngineClass;
use headway_core::models::transfer::Method;

use crate::DeviceError;
use crate::buffer::{Access, DeviceId, MemoryDomain, MemoryPlace, Span};
use crate::gpu::{Mover, Operation, Piece};
use crate::work::{Argument, LaunchGrid};

/// Pieces of one operation at most.
pub const PIECES_MAX: usize = 1 << 20;

/// Checks that a copy by `method` is one for an engine of class `engine` of the device `id`.
///
/// # Errors
/// [`DeviceError::Invalid`].
pub fn copy(
    (id, domain): (DeviceId, MemoryDomain),
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
    let here = MemoryPlace::Device { id, domain };
    let host = match (engine, from.place(), to.place()) {
        (EngineClass::H2d, MemoryPlace::Host { pinned }, place)
        | (EngineClass::D2h, place, MemoryPlace::Host { pinned })
            if place == here =>
        {
            pinned
        }
        (EngineClass::Peer, from @ MemoryPlace::Device { domain: theirs, .. }, to)
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

fn in_domain(place: MemoryPlace, domain: MemoryDomain) -> bool {
    matches!(place, MemoryPlace::Device { domain: theirs, .. } if theirs == domain)
}

/// Checks that `what` is an operation for a queue of the device `here`, and that pieces and arguments lie where they must;
/// `reaches` says whether copies between it and another device of its domain go directly.
///
/// # Errors
/// [`DeviceError::Invalid`]; [`DeviceError::Refused`] beyond [`PIECES_MAX`] pieces.
pub fn operation(
    here: (DeviceId, MemoryDomain),
    what: &Operation,
    reaches: impl Fn(DeviceId) -> bool,
) -> Result<(), DeviceError> {
    let refuse = |reason: String| Err(DeviceError::Invalid { what: "operation", reason });
    let place = MemoryPlace::Device { id: here.0, domain: here.1 };
    match what {
        Operation::Copy { from, to } => {
            equal(from.len(), to.len())?;
            leg(here, from, to, reaches)
        }
        Operation::Relay { from, through, to } => {
            equal(from.len(), through.len())?;
            equal(through.len(), to.len())?;
            if through.place() != place {
                return refuse("a relay goes through memory of the queue's own device".into());
            }
            leg(here, from, through, &reaches)?;
            leg(here, through, to, &reaches)
        }
        Operation::Pieces { from, to, pieces: list, by } => {
            if *by == (Mover::Kernel { blocks: 0 }) {
                return refuse("a kernel needs at least one thread block".into());
            }
            leg(here, from, to, reaches)?;
            pieces(from.len(), to.len(), list)
        }
        Operation::Launch { work, grid, arguments } => {
            let (blocks, threads, id) = (grid.all_blocks(), grid.block_threads(), work.id());
            if blocks == 0 || !(1..=LaunchGrid::BLOCK_THREADS_MAX).contains(&threads) {
                return refuse(format!(
                    "the grid of kernel `{id}` has {blocks} blocks of {threads} threads; give it blocks of 1 to 1024 threads"
                ));
            }
            let reachable = |argument: &Argument| match argument {
                Argument::Int(_) | Argument::Wide(_) | Argument::Null => true,
                Argument::Memory(span) => {
                    span.place() == place || span.place() == MemoryPlace::Host { pinned: Some(here.1) }
                }
            };
            match arguments.iter().position(|argument| !reachable(argument)) {
                Some(at) => {
                    refuse(format!("argument {at} is neither memory of the queue's device nor pinned host memory"))
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
    Err(DeviceError::Invalid { what: "operation", reason: format!("{from} bytes cannot be copied to {to}") })
}

/// One copy of a queue of `here`: between its device and pinned host memory, within it, or with a device it reaches.
fn leg(
    here: (DeviceId, MemoryDomain),
    from: &Span,
    to: &Span,
    reaches: impl Fn(DeviceId) -> bool,
) -> Result<(), DeviceError> {
    let refuse = |reason: &str| Err(DeviceError::Invalid { what: "operation", reason: reason.into() });
    if to.access() != Access::Write {
        return refuse("the destination was claimed for reading");
    }
    let place = MemoryPlace::Device { id: here.0, domain: here.1 };
    if from.place() != place && to.place() != place {
        return refuse("neither source nor destination is memory of the queue's device");
    }
    let other = if from.place() == place { to.place() } else { from.place() };
    match other {
        MemoryPlace::Host { pinned } if pinned == Some(here.1) => Ok(()),
        MemoryPlace::Host { .. } => {
            refuse("the host memory is not pinned for this device; use a pinned buffer or register it")
        }
        other if other == place => Ok(()),
        MemoryPlace::Device { id, domain } if domain == here.1 && reaches(id) => Ok(()),
        MemoryPlace::Device { .. } => refuse("the other device cannot be reached directly"),
    }
}

/// Checks that `pieces` lie within a source of `from` and a destination of `to` bytes.
///
/// # Errors
/// [`DeviceError::Invalid`]; [`DeviceError::Refused`] beyond [`PIECES_MAX`].
pub fn pieces(from: usize, to: usize, pieces: &[Piece]) -> Result<(), DeviceError> {
    if pieces.len() > PIECES_MAX {
        return Err(DeviceError::Refused { limit: "pieces of one operation", max: PIECES_MAX as u64 });
    }
    let beyond = |at: usize, len: usize, room: usize| at.checked_add(len).is_none_or(|end| end > room);
    match pieces.iter().position(|piece| beyond(piece.from, piece.len, from) || beyond(piece.to, piece.len, to)) {
        Some(at) => Err(DeviceError::Invalid {
            what: "operation",
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
pub fn ordinary(here: (DeviceId, MemoryDomain), span: &Span, len: usize, inward: bool) -> Result<(), DeviceError> {
    let refuse = |reason: String| Err(DeviceError::Invalid { what: "copy", reason });
    if span.len() != len {
        return refuse(format!("ordinary memory of {len} bytes and a span of {} cannot be copied", span.len()));
    }
    if span.place() != (MemoryPlace::Device { id: here.0, domain: here.1 }) {
        return refuse("the span is not memory of this device".into());
    }
    if inward && span.access() != Access::Write {
        return refuse("the destination was claimed for reading".into());
    }
    Ok(())
}
