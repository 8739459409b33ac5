//! Copies in rows and planes (`cuMemcpy2D`, `cuMemcpy3D`): those without gaps are one copy, and are treated as that.
//!
//! Everything else, and every shape that the driver might refuse, is counted and passed on.

use std::ffi::c_uint;

use headway_core::files::guest_log::Call;

use crate::base::copy::Copy;
use crate::base::driver::{DevicePtr, Status, Stream};
use crate::base::pins;
use crate::decide::{self, pass_on};
use crate::observers::Passed;

/// `CU_MEMORYTYPE_`: whose memory an end is; unified addresses say it themselves.
const HOST: c_uint = 1;
const DEVICE: c_uint = 2;
const UNIFIED: c_uint = 4;
/// `CU_DEVICE_ATTRIBUTE_MAX_PITCH` of every GPU: longer rows are the driver's to refuse.
const PITCH_MAX: usize = i32::MAX as usize;

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Plane {
    from: PlaneEnd,
    to: PlaneEnd,
    width: usize,
    height: usize,
}

/// One end of it; reading and writing have the same layout.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct PlaneEnd {
    x: usize,
    y: usize,
    kind: c_uint,
    host: usize,
    device: DevicePtr,
    array: usize,
    pitch: usize,
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Space {
    from: SpaceEnd,
    to: SpaceEnd,
    width: usize,
    height: usize,
    depth: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct SpaceEnd {
    x: usize,
    y: usize,
    z: usize,
    level: usize,
    kind: c_uint,
    host: usize,
    device: DevicePtr,
    array: usize,
    reserved: usize,
    pitch: usize,
    height: usize,
}

impl From<PlaneEnd> for SpaceEnd {
    fn from(end: PlaneEnd) -> Self {
        let PlaneEnd { x, y, kind, host, device, array, pitch } = end;
        Self { x, y, kind, host, device, array, pitch, ..Self::default() }
    }
}

impl From<Plane> for Space {
    fn from(plane: Plane) -> Self {
        Self { from: plane.from.into(), to: plane.to.into(), width: plane.width, height: plane.height, depth: 1 }
    }
}

/// A shape that is one range at either end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Linear {
    /// Kind of memory and address.
    from: (c_uint, u64),
    to: (c_uint, u64),
    bytes: usize,
}

impl Space {
    fn linear(&self) -> Option<Linear> {
        let Self { from, to, width, height, depth } = *self;
        let rows = height.checked_mul(depth)?;
        let bytes = width.checked_mul(rows).filter(|bytes| *bytes > 0)?;
        let dense = |end: &SpaceEnd| end.pitch == width && (depth == 1 || end.height == height);
        if rows > 1 && !(dense(&from) && dense(&to)) {
            return None;
        }
        Some(Linear { from: from.start(width, height, depth)?, to: to.start(width, height, depth)?, bytes })
    }
}

impl SpaceEnd {
    fn start(&self, width: usize, height: usize, depth: usize) -> Option<(c_uint, u64)> {
        let address = match self.kind {
            HOST => self.host as u64,
            DEVICE | UNIFIED => self.device,
            _ => return None,
        };
        let fits = self.x.checked_add(width)? <= self.pitch && self.pitch <= PITCH_MAX;
        let fits = fits && (depth == 1 || self.y.checked_add(height)? <= self.height);
        if !fits || self.level != 0 {
            return None;
        }
        let row = self.z.checked_mul(self.height)?.checked_add(self.y)?;
        let offset = row.checked_mul(self.pitch)?.checked_add(self.x)?;
        Some((self.kind, address.checked_add(offset as u64)?))
    }
}

/// A copy of rows.
///
/// # Safety
/// `shape` is null or may be read.
pub(crate) unsafe fn plane(shape: *const Plane, stream: Stream, waits: bool, real: impl FnOnce() -> Status) -> Status {
    // SAFETY: by this function's contract.
    copy(unsafe { shape.as_ref() }.map(|shape| Space::from(*shape)), stream, waits, real)
}

/// A copy of planes.
///
/// # Safety
/// `shape` is null or may be read.
pub(crate) unsafe fn space(shape: *const Space, stream: Stream, waits: bool, real: impl FnOnce() -> Status) -> Status {
    // SAFETY: by this function's contract.
    copy(unsafe { shape.as_ref() }.copied(), stream, waits, real)
}

fn copy(shape: Option<Space>, stream: Stream, waits: bool, real: impl FnOnce() -> Status) -> Status {
    let Some(shape) = shape else { return real() };
    let Some(Linear { from, to, bytes }) = shape.linear() else {
        if [shape.from.kind, shape.to.kind].iter().any(|kind| [HOST, UNIFIED].contains(kind)) {
            pins::give_up_all();
        }
        let bytes = shape.width.saturating_mul(shape.height).saturating_mul(shape.depth);
        return pass_on(Passed::Rows, bytes, real);
    };
    let call = match (from.0, to.0, waits) {
        (HOST, DEVICE, true) => Call::In,
        (HOST, DEVICE, false) => Call::InAsync,
        (DEVICE, HOST, true) => Call::Out,
        (DEVICE, HOST, false) => Call::OutAsync,
        (DEVICE, DEVICE, _) => return pass_on(Passed::Within, bytes, real),
        (HOST, HOST, _) => {
            pins::give_up_all();
            return real();
        }
        (_, _, true) => Call::Any,
        (_, _, false) => Call::AnyAsync,
    };
    decide::copy(Copy::new(call, to.1, from.1, bytes, stream), real)
}
