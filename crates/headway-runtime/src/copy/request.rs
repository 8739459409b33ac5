//! A copy between host and GPU as it was asked for.

use std::cell::Cell;

use headway_core::models::transfer::Direction;
use headway_device::buffer::{MemoryDomain, lend, lend_mut};
use headway_device::{Access, DeviceError, HostKind, Span};

use super::{At, CopyError};

/// From this size on a copy is bulk: it keeps an engine busy for longer than a small copy takes altogether.
pub(super) const BULK: usize = 1 << 20;

/// The host end.
pub(super) enum Host<'a> {
    /// Memory to be read.
    In(&'a [u8]),
    /// Memory to be written.
    Out(&'a mut [u8]),
    /// Pinned memory in a buffer, to be read or written as the direction says.
    Held(At<'a>),
}

/// The host end as the CPU sees it.
pub(super) enum HostBytes<'a> {
    /// To be copied in.
    In(&'a [u8]),
    /// To be copied out to.
    Out(&'a mut [u8]),
}

/// One copy as asked for.
pub(super) struct Request<'a> {
    /// Position of the GPU.
    pub(super) gpu: usize,
    pub(super) direction: Direction,
    /// The device end.
    pub(super) device: At<'a>,
    /// The host end.
    pub(super) host: Host<'a>,
    pub(super) len: usize,
    /// What the driver has said of the host end.
    kind: Cell<Option<HostKind>>,
}

/// Claims `len` bytes at `at`.
pub(super) fn claim(at: At<'_>, len: usize, access: Access) -> Result<Span, DeviceError> {
    let outside = || DeviceError::OutOfRange { range: at.offset..at.offset.saturating_add(len), len: at.buffer.len() };
    at.buffer.claim(at.offset..at.offset.checked_add(len).ok_or_else(outside)?, access)
}

impl<'a> Request<'a> {
    pub(super) const fn new(gpu: usize, direction: Direction, device: At<'a>, host: Host<'a>, len: usize) -> Self {
        Self { gpu, direction, device, host, len, kind: Cell::new(None) }
    }

    /// What the host memory is: asked by `ask` unless it is known, since each question takes up to 0.6 us.
    pub(super) fn kind(
        &self,
        ask: impl FnOnce(&[u8]) -> Result<HostKind, DeviceError>,
    ) -> Result<HostKind, DeviceError> {
        let memory: &[u8] = match &self.host {
            Host::In(from) => from,
            Host::Out(to) => to,
            Host::Held(_) => return Ok(HostKind::Pinned), // checked where it came in
        };
        if let Some(known) = self.kind.get() {
            return Ok(known);
        }
        let kind = ask(memory)?;
        self.kind.set(Some(kind));
        Ok(kind)
    }

    /// Checks both ends, whatever method comes.
    pub(super) fn within_range(&self) -> Result<(), CopyError> {
        let check = |at: At<'_>, what| match at.offset.checked_add(self.len) {
            Some(end) if end <= at.buffer.len() => Ok(()),
            _ => Err(CopyError::Invalid {
                what,
                reason: format!("{} bytes from {} of a buffer of {}", self.len, at.offset, at.buffer.len()),
            }),
        };
        check(self.device, "range of device memory")?;
        match self.host {
            Host::Held(host) => check(host, "range of host memory"),
            Host::In(_) | Host::Out(_) => Ok(()),
        }
    }

    /// What the copy does with its device end.
    pub(super) const fn device_access(&self) -> Access {
        match self.direction {
            Direction::D2h => Access::Read,
            Direction::H2d | Direction::Peer => Access::Write,
        }
    }

    /// Claims the device end.
    pub(super) fn device_span(&self) -> Result<Span, DeviceError> {
        claim(self.device, self.len, self.device_access())
    }

    /// `body` with the host end as the CPU sees it.
    pub(super) fn with_bytes<R>(&mut self, body: impl FnOnce(HostBytes<'_>) -> R) -> Result<R, DeviceError> {
        match &mut self.host {
            Host::In(from) => Ok(body(HostBytes::In(from))),
            Host::Out(to) => Ok(body(HostBytes::Out(to))),
            Host::Held(at) if self.direction == Direction::D2h => {
                let mut span = claim(*at, self.len, Access::Write)?;
                Ok(body(HostBytes::Out(span.bytes_mut()?)))
            }
            Host::Held(at) => {
                let span = claim(*at, self.len, Access::Read)?;
                Ok(body(HostBytes::In(span.bytes()?)))
            }
        }
    }

    /// `body` with source and destination as buffers, the host end said to be pinned for `domain`, or ordinary.
    pub(super) fn with_buffers<R>(
        &mut self,
        domain: Option<MemoryDomain>,
        body: impl FnOnce(At<'_>, At<'_>) -> R,
    ) -> R {
        let device = self.device;
        match &mut self.host {
            Host::In(from) => lend(from, domain, |buffer| body(At { buffer, offset: 0 }, device)),
            Host::Out(to) => lend_mut(to, domain, |buffer| body(device, At { buffer, offset: 0 })),
            Host::Held(at) if self.direction == Direction::D2h => body(device, *at),
            Host::Held(at) => body(*at, device),
        }
    }
}
