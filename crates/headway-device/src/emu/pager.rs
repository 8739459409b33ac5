//! The paged window of an emulated gpu: a small mapping of the buffer's memory file, really moved.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use headway_os::memory::{View, page_bytes};
use headway_os::{OsError, copy};

use super::Shared;
use super::memory::{WindowedMemory, load};
use crate::buffer::{Access, Buffer, Span};
use crate::check;
use crate::error::DeviceError;
use crate::gpu::Pager;

/// Bytes visible at a time (`fujii-2013`, section II-B: 4 MB).
const SPAN_BYTES: usize = 4 << 20;

/// A pager over one buffer.
pub(super) struct EmuPager {
    gpu: Arc<Shared>,
    buffer: Buffer,
    view: View,
    /// Offset that `view` shows; `None` after a move that failed.
    shown: Option<usize>,
    always: bool,
    moves: u64,
}

impl EmuPager {
    /// The caller has taken `gpu.pager_open`, which this gives back when dropped.
    pub(super) fn open(gpu: Arc<Shared>, buffer: &Buffer) -> Result<Self, DeviceError> {
        let probe = buffer.claim(0..0, Access::Read)?;
        check::ordinary(gpu.here(), &probe, 0, false)?;
        let mapped = windowed(&probe).ok_or_else(|| DeviceError::Unavailable {
            what: "a paged window on this buffer".into(),
            reason: "it was allocated without a window".into(),
            remedy: "allocate it with Reach::Window".into(),
        });
        let view = mapped.and_then(|memory| memory.map(0, SPAN_BYTES).map_err(|error| failed(&error)))?;
        debug_assert!(SPAN_BYTES.is_multiple_of(page_bytes()), "the kernel maps whole pages");
        Ok(Self { gpu, buffer: buffer.clone(), view, shown: Some(0), always: false, moves: 0 })
    }

    /// Calls `body` with each part of `at..at + len` that one place of the mapping shows: its address, offset and length.
    fn each_part(
        &mut self,
        span: &Span,
        at: usize,
        len: usize,
        mut body: impl FnMut(*mut u8, usize, usize),
    ) -> Result<(), DeviceError> {
        self.gpu.alive()?;
        let memory = windowed(span).ok_or(DeviceError::DeviceLost)?;
        let mut done = 0;
        while done < len {
            let (base, inside) = ((at + done) / SPAN_BYTES * SPAN_BYTES, (at + done) % SPAN_BYTES);
            if self.always || self.shown != Some(base) {
                self.shown = None;
                // SAFETY: only this value knows the view, and no access to it is under way.
                unsafe { memory.move_view(&mut self.view, base) }.map_err(|error| failed(&error))?;
                self.shown = Some(base);
                self.moves += 1;
            }
            let part = (len - done).min(SPAN_BYTES - inside);
            body(self.view.as_ptr().wrapping_add(inside), done, part);
            done += part;
        }
        Ok(())
    }

    fn claim(&self, at: usize, len: usize, access: Access) -> Result<Span, DeviceError> {
        let end =
            at.checked_add(len).ok_or(DeviceError::OutOfRange { range: at..usize::MAX, len: self.buffer.len() })?;
        self.buffer.claim(at..end, access)
    }
}

impl Pager for EmuPager {
    fn span_bytes(&self) -> usize {
        SPAN_BYTES
    }

    fn store(&mut self, at: usize, from: &[u8]) -> Result<(), DeviceError> {
        let span = self.claim(at, from.len(), Access::Write)?;
        // SAFETY: the part lies within the mapping and the file; the claim excludes every other user of these bytes.
        self.each_part(&span, at, from.len(), |to, done, part| unsafe {
            copy::window_store(to, &from[done..done + part]);
        })
    }

    fn load(&mut self, at: usize, to: &mut [u8]) -> Result<(), DeviceError> {
        let span = self.claim(at, to.len(), Access::Read)?;
        let line = windowed(&span).map(WindowedMemory::load_line).unwrap_or_default();
        // SAFETY: as in `store`; while the claim lives nobody writes these bytes.
        self.each_part(&span, at, to.len(), |from, done, part| unsafe {
            load(from, &mut to[done..done + part], line);
        })
    }

    fn always_move(&mut self, always: bool) {
        self.always = always;
    }

    fn moves(&self) -> u64 {
        self.moves
    }
}

impl Drop for EmuPager {
    fn drop(&mut self) {
        self.gpu.pager_open.store(false, Ordering::Release);
    }
}

fn windowed(span: &Span) -> Option<&WindowedMemory> {
    let memory: &dyn std::any::Any = span.memory();
    memory.downcast_ref()
}

fn failed(error: &OsError) -> DeviceError {
    DeviceError::Driver {
        call: error.call,
        code: error.errno.0,
        name: error.errno.name().unwrap_or("an unnamed error").into(),
    }
}
