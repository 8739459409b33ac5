//! Pinned host memory: pages of our own registered with the driver, pages of the driver, or a caller's memory in place.
//!
//! Own pages come from the GPU's NUMA node, as huge pages where there are any, and appear on several threads before the
//! driver pins them: it would do both on one thread, wherever that runs.

use std::ffi::c_void;
use std::mem;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;

use headway_core::units::Bytes;
use headway_device::DeviceError;
use headway_device::buffer::{Memory, MemoryPlace, Span};
use headway_os::memory::{Mapping, page_bytes, touch};
use headway_os::{affinity, threads};

use crate::driver::call;
use crate::driver::table;
use crate::owned::Context;

/// Most bytes that one call registers (specification of transfers, 1.3).
const REGISTER_MAX: usize = 64 << 30;
/// Alignment of own pages, that of a huge page.
const HUGE_BYTES: usize = 2 << 20;
/// Below this a further thread costs more than it saves: 32 MiB of pages appear in some milliseconds.
const TOUCH_SHARE: usize = 32 << 20;
const TOUCH_THREADS_MAX: usize = 8;

/// Pinned host memory, reachable by every GPU of the driver.
pub(crate) struct PinnedMemory {
    base: *mut u8,
    pub(crate) bytes: usize,
    /// Whether every byte is zero at first.
    pub(crate) zeroed: bool,
    context: Arc<Context>,
    pages: Pages,
}

enum Pages {
    /// Memory that this process has mapped.
    Own { _registered: Registered<Mapping> },
    /// The driver's.
    Driver,
}

// SAFETY: the address is of memory that this value owns; the driver takes it back on any thread.
unsafe impl Send for PinnedMemory {}
// SAFETY: shared access gives out only the address.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Pins new pages.
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, DeviceError> {
        match Self::own(context, bytes) {
            Err(DeviceError::DeviceLost) => Err(DeviceError::DeviceLost),
            // Whatever forbids it (a sandbox, a limit, the driver), the driver's own call may still work.
            Err(_) => Self::by_driver(context, bytes, 0),
            made => made,
        }
    }

    /// Pins new pages that the CPU writes past its caches.
    pub(crate) fn write_combined(context: &Arc<Context>, bytes: usize) -> Result<Self, DeviceError> {
        Self::by_driver(context, bytes, table::HOST_ALLOC_WRITE_COMBINED)
    }

    fn own(context: &Arc<Context>, bytes: usize) -> Result<Self, DeviceError> {
        check_addresses(context)?;
        let page = page_bytes();
        let rounded = bytes.max(1).checked_next_multiple_of(page).ok_or_else(|| exhausted(bytes))?;
        let align = if rounded < HUGE_BYTES { page } else { HUGE_BYTES };
        let mapped = rounded.checked_add(align - page).ok_or_else(|| exhausted(bytes))?;
        let mut mapping = Mapping::anonymous(mapped).map_err(|_| exhausted(bytes))?;
        // Both are preferences: without them the pages are small, or come from another node.
        let _ = mapping.advise_huge();
        if let Some(node) = context.numa {
            let _ = mapping.prefer_node(node);
        }
        let start = mapping.as_ptr().addr().wrapping_neg() % align;
        let used = &mut mapping[start..start + rounded];
        let cpus = affinity::allowed().map_or(1, |cpus| cpus.len());
        touch(used, (rounded / TOUCH_SHARE).min(cpus).clamp(1, TOUCH_THREADS_MAX));
        let base = used.as_mut_ptr();
        let registered = Registered::new(context, base, rounded, mapping)?;
        let pages = Pages::Own { _registered: registered };
        Ok(Self { base, bytes: rounded, zeroed: true, context: Arc::clone(context), pages })
    }

    fn by_driver(context: &Arc<Context>, bytes: usize, more: u32) -> Result<Self, DeviceError> {
        context.bind()?;
        let mut base = null_mut();
        let flags = table::HOST_ALLOC_PORTABLE | table::HOST_ALLOC_DEVICE_MAP | more;
        // SAFETY: `base` is valid for the call to write; the context is current.
        match unsafe { call!(context.driver, cuMemHostAlloc(&raw mut base, bytes.max(1), flags)) } {
            Err(DeviceError::Driver { code: table::OUT_OF_MEMORY, .. }) => return Err(exhausted(bytes)),
            other => context.note(other)?,
        }
        let (base, bytes, context) = (base.cast(), bytes.max(1), Arc::clone(context));
        Ok(Self { base, bytes, zeroed: false, context, pages: Pages::Driver })
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// An error in a forked child, which the driver's own mappings do not reach.
    pub(crate) fn mapped(&self) -> Result<(), DeviceError> {
        self.context.driver.here()
    }

    pub(crate) fn place(&self) -> MemoryPlace {
        MemoryPlace::Host { pinned: Some(self.context.driver.domain) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // In a lost context a copy may never have been seen to end: the pages are left to the driver.
        if matches!(self.pages, Pages::Driver) && self.context.bind().is_ok() {
            // SAFETY: allocated by `by_driver`, freed once; no operation uses it, as operations own spans of it.
            let _ = unsafe { call!(self.context.driver, cuMemFreeHost(self.base.cast())) };
        }
    }
}

/// A whole allocation as one buffer; its maker zeroes it.
pub(crate) struct WholePinned {
    memory: PinnedMemory,
    bytes: usize,
}

impl WholePinned {
    /// Write-combined memory of `bytes` bytes, zeroed.
    pub(crate) fn write_combined(context: &Arc<Context>, bytes: usize) -> Result<Self, DeviceError> {
        let memory = PinnedMemory::write_combined(context, bytes)?;
        // SAFETY: fresh memory of at least this size, ours alone.
        unsafe { memory.base().write_bytes(0, memory.bytes) };
        Ok(Self { memory, bytes })
    }
}

// SAFETY: a fresh allocation of at least `bytes` bytes, zeroed, mapped for the CPU, freed on drop only; the three answers
// come from fields that never change.
unsafe impl Memory for WholePinned {
    fn base(&self) -> *mut u8 {
        self.memory.base()
    }
    fn bytes(&self) -> usize {
        self.bytes
    }
    fn place(&self) -> MemoryPlace {
        self.memory.place()
    }
    fn mapped(&self) -> Result<(), DeviceError> {
        self.memory.mapped()
    }
}

/// A caller's memory, pinned where it is.
pub(crate) struct InPlace {
    registered: Registered<Span>,
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the address is of memory that the claim within keeps for this value.
unsafe impl Send for InPlace {}
// SAFETY: shared access gives out only the address.
unsafe impl Sync for InPlace {}

impl InPlace {
    /// Pins the pages that hold `span`.
    pub(crate) fn new(context: &Arc<Context>, span: Span) -> Result<Self, DeviceError> {
        let invalid = |reason: &str| DeviceError::Invalid { what: "register", reason: reason.into() };
        match span.place() {
            MemoryPlace::Host { pinned: None } if !span.is_empty() => {}
            MemoryPlace::Host { pinned: None } => return Err(invalid("the memory has no bytes")),
            MemoryPlace::Host { .. } => return Err(invalid("the memory is pinned already")),
            MemoryPlace::Device { .. } => return Err(invalid("device memory cannot be pinned")),
        }
        check_addresses(context)?;
        let (base, bytes, page) = (span.as_ptr(), span.len(), page_bytes());
        let before = base.addr() % page;
        let Some(rounded) = before.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(page)) else {
            return Err(invalid("the memory ends at the end of all addresses"));
        };
        let registered = Registered::new(context, base.wrapping_sub(before), rounded, span)?;
        Ok(Self { registered, base, bytes })
    }
}

// SAFETY: the bytes of a span that claims them for as long as this value lives; they are host memory. Its access says whether
// they may be written, and `Buffer::view` makes the buffer accordingly. The three answers never change.
unsafe impl Memory for InPlace {
    fn base(&self) -> *mut u8 {
        self.base
    }
    fn bytes(&self) -> usize {
        self.bytes
    }
    fn place(&self) -> MemoryPlace {
        MemoryPlace::Host { pinned: Some(self.registered.context.driver.domain) }
    }
}

/// What owns pages that are registered with the driver.
trait Owner: Send + 'static {
    /// The driver did not unregister the pages. No operation uses them: operations own spans of them, and this is called after the
    /// last one.
    fn leave(self);
}

impl Owner for Mapping {
    /// Their addresses are never used again: the driver would take other pages there for these.
    fn leave(self) {
        mem::forget(self);
    }
}

impl Owner for Span {
    /// They are the caller's, who waits for them.
    fn leave(self) {
        drop(self);
    }
}

/// Pages registered with the driver, and what owns them: unregistered first when dropped.
struct Registered<O: Owner> {
    context: Arc<Context>,
    /// There until it is dropped.
    pages: Option<RegisteredPages<O>>,
}

struct RegisteredPages<O: Owner> {
    context: Arc<Context>,
    /// Where the registered pieces start.
    pieces: Vec<usize>,
    owner: Option<O>,
}

impl<O: Owner> Registered<O> {
    /// Registers the pages from `base` on, whole pages of `owner`'s, for every GPU of the driver.
    fn new(context: &Arc<Context>, base: *mut u8, bytes: usize, owner: O) -> Result<Self, DeviceError> {
        context.bind()?;
        let mut pages = RegisteredPages { context: Arc::clone(context), pieces: Vec::new(), owner: Some(owner) };
        for (start, length) in pieces(bytes, REGISTER_MAX) {
            let piece: *mut c_void = base.wrapping_add(start).cast();
            let flags = table::HOST_REGISTER_PORTABLE | table::HOST_REGISTER_DEVICE_MAP;
            // SAFETY: whole pages that `owner` keeps mapped until they are unregistered.
            match unsafe { call!(context.driver, cuMemHostRegister_v2(piece, length, flags)) } {
                Err(DeviceError::Driver { code: table::OUT_OF_MEMORY, .. }) => return Err(exhausted(bytes)),
                Err(DeviceError::Driver { code: table::HOST_MEMORY_ALREADY_REGISTERED, .. }) => {
                    let reason = "the memory, or other memory in its first or last page, is pinned already".into();
                    return Err(DeviceError::Invalid { what: "register", reason });
                }
                other => context.note(other)?,
            }
            pages.pieces.push(piece.addr());
        }
        Ok(Self { context: Arc::clone(context), pages: Some(pages) })
    }
}

impl<O: Owner> Drop for Registered<O> {
    fn drop(&mut self) {
        let pages = self.pages.take();
        // The driver unregisters pages when the GPU has nothing to do, which a context that was given up may not see. Where the thread cannot be
        // started this one waits for it.
        if self.context.is_lost() && !self.context.has_ended() {
            let _ = threads::spawn("headway-unregister", move || drop(pages));
        }
    }
}

impl<O: Owner> Drop for RegisteredPages<O> {
    fn drop(&mut self) {
        for &piece in &self.pieces {
            let piece = without_provenance_mut(piece);
            // SAFETY: registered by `new`, unregistered once; no operation uses the pages, as operations own spans of them.
            let unregister = || unsafe { call!(self.context.driver, cuMemHostUnregister(piece)) };
            if self.context.bind_anyway().and_then(|()| unregister()).is_err()
                && let Some(owner) = self.owner.take()
            {
                owner.leave();
            }
        }
    }
}

/// An error where the GPU sees registered memory at other addresses than the CPU.
fn check_addresses(context: &Context) -> Result<(), DeviceError> {
    if context.driver.attribute(table::ATTRIBUTE_REGISTERED_POINTERS, context.ordinal)? != 0 {
        return Ok(());
    }
    Err(DeviceError::Unavailable {
        what: format!("memory pinned in place for GPU {}", context.ordinal),
        reason: "the GPU would see it at other addresses than the CPU".into(),
        remedy: "copy through pinned buffers (`staged`)".into(),
    })
}

/// `bytes` bytes in pieces of at most `max`: start and length of each.
fn pieces(bytes: usize, max: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..bytes).step_by(max).map(move |start| (start, max.min(bytes - start)))
}

fn exhausted(bytes: usize) -> DeviceError {
    let what = "pinned host memory that the driver gives";
    DeviceError::OutOfMemory { what, wanted: Bytes(bytes as u64), available: Bytes(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_every_byte_once_and_none_is_too_long() {
        let list = |bytes| pieces(bytes, 8).collect::<Vec<_>>();
        assert_eq!(list(20), [(0, 8), (8, 8), (16, 4)]);
        assert_eq!(list(16), [(0, 8), (8, 8)]);
        assert_eq!(list(1), [(0, 1)]);
        assert_eq!(list(0), []);
    }
}
