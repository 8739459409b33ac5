//! A GPU: memory, queues, windows, resident copiers; usable from any thread.

use std::ops::Range;
use std::sync::Arc;

use headway_core::models::transfer::{ResidentShape, WindowMapping};
use headway_core::units::{Bytes, Nanos};

use headway_os::sched::Classes;

use crate::buffer::{Buffer, DeviceId, HostKind, MemoryDomain, Span};
pub use crate::window::Window;
use crate::work::{Argument, LaunchGrid, Work};
use crate::{Description, DeviceError, Waker};

/// How the CPU may reach device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CpuReach {
    /// Not at all.
    Device,
    /// Through a window on all of it, by this form.
    Window(WindowMapping),
}

/// How the CPU's caches treat pinned memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Caching {
    /// As ordinary memory.
    Cached,
    /// Write-combined: not cached, slow to read.
    WriteCombined,
}

/// A part of a request of many pieces: `len` bytes from offset `from` of the source span to offset `to` of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset in the source span.
    pub from: usize,
    /// Offset in the destination span; destinations of one request do not overlap.
    pub to: usize,
    pub len: usize,
}

/// What moves the pieces of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mover {
    /// The copy engine, one copy queued per piece.
    Loop,
    /// The copy engine, all pieces in one call of the driver.
    Batch,
    /// A kernel of this many thread blocks; host memory must be pinned.
    Kernel {
        /// Thread blocks.
        blocks: u32,
    },
}

/// An operation for a queue. It owns its spans until it is complete.
pub enum Operation {
    /// One copy between spans of equal length by a copy engine: host (pinned) to device, device to host (pinned), within a
    /// device, or between devices of one domain, by where the spans are.
    Copy {
        from: Span,
        /// Destination, claimed for writing.
        to: Span,
    },
    /// Two copies in a row, through memory of this device: the second begins when the first has ended.
    Relay {
        from: Span,
        /// Memory of this device, claimed for writing.
        through: Span,
        /// Destination, claimed for writing.
        to: Span,
    },
    /// Many pieces of one span to another; the spans need not be equal in length.
    Pieces {
        /// Covers all sources.
        from: Span,
        /// Covers all destinations, claimed for writing.
        to: Span,
        pieces: Arc<[Piece]>,
        /// What moves them.
        by: Mover,
    },
    Launch {
        work: Arc<dyn Work>,
        grid: LaunchGrid,
        arguments: Vec<Argument>,
    },
}

/// The end of an operation. Its spans were released before it could be polled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The tag given at submission.
    pub tag: u64,
    /// How it ended; after an error the destination is unspecified.
    pub result: Result<(), DeviceError>,
    /// When the GPU began it, on [`headway_os::clock`]; never before its submission, nor before the end of the operation ahead
    /// of it in the same queue. On a queue that keeps no time, it may have begun later.
    pub started: Nanos,
    /// When the GPU ended it; never after `noticed`. On a queue that keeps no time, it may have ended earlier.
    pub finished: Nanos,
    /// When the poll that returns it saw it.
    pub noticed: Nanos,
}

/// A queue on one GPU (a CUDA stream): operations begin and end in the order of submission.
///
/// Between queues there is no order; they share the GPU's engines. Dropping a queue waits for what was submitted, on a GPU that
/// does not answer for a bounded time; what has not ended then keeps its memory until it has.
pub trait Queue: Send {
    /// Queues `what`; does not wait for it. A refusal changes nothing, but the spans are released.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for spans that do not fit (lengths, places, host memory that is not pinned),
    /// [`DeviceError::Refused`] at `outstanding_per_engine_max`, [`DeviceError::Driver`], [`DeviceError::DeviceLost`].
    fn submit(&mut self, what: Operation, tag: u64) -> Result<(), DeviceError>;

    /// Takes the oldest operation if it has ended; never blocks.
    fn poll(&mut self) -> Option<Completion>;

    /// Operations submitted and not yet taken.
    fn outstanding(&self) -> usize;

    /// Whether an operation is outstanding whose end does not call the waker, so that it must be polled for.
    fn must_poll(&self) -> bool {
        self.outstanding() > 0
    }

    /// Sets the function that is called when there may be something to poll; a queue with [`Queue::must_poll`] need not call it.
    fn set_waker(&mut self, waker: Waker) {
        drop(waker);
    }

    /// Says which scheduling class its thread is to take; `None` = it gives it back. A queue without a thread has nothing to do.
    fn set_classes(&mut self, classes: Option<&Arc<Classes>>) {
        let _ = classes;
    }
}

/// A small mapping that is moved over a buffer of device memory (Fujii 2013: MEMWND); one owner at a time.
pub trait Pager: Send {
    /// Bytes visible at a time.
    fn span_bytes(&self) -> usize;
    /// Stores `from` at `at` of the buffer, moving the mapping as needed.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`], [`DeviceError::Overlap`], [`DeviceError::Driver`].
    fn store(&mut self, at: usize, from: &[u8]) -> Result<(), DeviceError>;
    /// Loads from `at` of the buffer.
    ///
    /// # Errors
    /// Those of `store`.
    fn load(&mut self, at: usize, to: &mut [u8]) -> Result<(), DeviceError>;
    /// Moves the mapping before every access, needed or not (fidelity to the paper), or only when needed.
    fn always_move(&mut self, always: bool);
    /// How often the mapping has been moved.
    fn moves(&self) -> u64;
}

/// How a resident copier works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResidentOptions {
    /// Bytes of one piece: 256 as in Fujii 2013, or larger.
    pub piece: usize,
    /// It leaves the device this long after it was started, whether or not it has copies to make; the next one starts it again. So
    /// long others may have to wait that need the whole device.
    pub lease: Nanos,
    /// A copy not answered within this time is [`DeviceError::Timeout`], and the copier is parked.
    pub patience: Nanos,
}

/// A copier that stays on the device and takes commands from a mailbox (Fujii 2013: microcontrollers).
pub trait Resident: Send {
    /// Where it runs.
    fn shape(&self) -> ResidentShape;
    /// Copies ordinary memory to the device, through pinned memory of its own; complete when it returns.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`], [`DeviceError::Timeout`], [`DeviceError::Driver`], [`DeviceError::DeviceLost`].
    fn copy_in(&mut self, to: &mut Span, from: &[u8]) -> Result<(), DeviceError>;
    /// Copies device memory to ordinary memory, through pinned memory of its own; complete when it returns.
    ///
    /// # Errors
    /// Those of `copy_in`.
    fn copy_out(&mut self, to: &mut [u8], from: &Span) -> Result<(), DeviceError>;
    /// Copies between device memory and pinned host memory, either way.
    ///
    /// # Errors
    /// Those of `copy_in`.
    fn copy(&mut self, from: &Span, to: &mut Span) -> Result<(), DeviceError>;
    /// Leaves the device; the next copy starts it again. Whatever waits for the whole device (frees, synchronisation)
    /// needs this first.
    ///
    /// # Errors
    /// Those of `copy_in`.
    fn park(&mut self) -> Result<(), DeviceError>;
}

/// One GPU, or what stands in for one. Everything made by it may outlive it.
pub trait Gpu: Send + Sync {
    /// What it is.
    fn description(&self) -> &Description;
    /// Whose memory [`Gpu::device_buffer`] gives.
    fn id(&self) -> DeviceId;
    /// Which devices can reach each other and the same pinned memory.
    fn domain(&self) -> MemoryDomain;
    /// NUMA node of the GPU, where the system says.
    fn numa(&self) -> Option<u32>;
    /// Whether copies between this device and `peer` go directly.
    fn reaches(&self, peer: DeviceId) -> bool;

    /// Device memory, zeroed, aligned to 256 bytes or more. Slow.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`], [`DeviceError::Refused`], [`DeviceError::Unavailable`] when the window does not exist.
    fn device_buffer(&self, bytes: usize, reach: CpuReach) -> Result<Buffer, DeviceError>;

    /// Pinned host memory, mapped for this domain's devices, on the GPU's NUMA node, zeroed, aligned to a page. Slow.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`], [`DeviceError::Refused`].
    fn pinned_buffer(&self, bytes: usize, caching: Caching) -> Result<Buffer, DeviceError>;

    /// Pins the pages of ordinary host memory in place: a view of `range` of `buffer` as pinned memory, unpinned when it and the claims on
    /// it are dropped. Slow. The view holds a claim on the range. A page is pinned once only: ranges that share one are refused.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for memory that is pinned already, [`DeviceError::Driver`].
    fn register(&self, buffer: &Buffer, range: Range<usize>) -> Result<Buffer, DeviceError>;

    /// What the driver says of host memory that somebody else allocated.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for memory that is not host memory, or is managed by the driver.
    fn host_kind(&self, memory: &[u8]) -> Result<HostKind, DeviceError>;

    /// Ordinary host memory, zeroed, counted by this GPU's limits.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`], [`DeviceError::Refused`].
    fn pageable_buffer(&self, bytes: usize) -> Result<Buffer, DeviceError>;

    /// Loads `work` now and not at its first launch, which would wait for it. Slow: a GPU compiles it.
    ///
    /// # Errors
    /// [`DeviceError::KernelLoad`] with the compiler's log, [`DeviceError::Refused`], [`DeviceError::DeviceLost`].
    fn load(&self, work: &dyn Work) -> Result<(), DeviceError>;

    /// A new queue; `keeps_time` = [`Completion::started`] and [`Completion::finished`] are the GPU's own times. Slow.
    ///
    /// # Errors
    /// [`DeviceError::Driver`], [`DeviceError::DeviceLost`].
    fn queue(&self, keeps_time: bool) -> Result<Box<dyn Queue>, DeviceError>;

    /// Sets how many bytes queues copy out before they let other streams in, for everything that is open on this GPU; `None` = copies
    /// stay whole. Returns what it was. A GPU whose engines do that by themselves, or on which nobody knows how, has nothing to do.
    fn set_turn(&self, bytes: Option<Bytes>) -> Option<Bytes> {
        let _ = bytes;
        None
    }

    /// The driver's own copy of ordinary memory to the device; the bytes are there when it returns.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`], [`DeviceError::Driver`], [`DeviceError::DeviceLost`].
    fn copy_in(&self, to: &mut Span, from: &[u8]) -> Result<(), DeviceError>;

    /// The driver's own copy of device memory to ordinary memory.
    ///
    /// # Errors
    /// Those of `copy_in`.
    fn copy_out(&self, to: &mut [u8], from: &Span) -> Result<(), DeviceError>;

    /// Every window form with why it cannot be used, if it cannot. In the order of preference.
    fn windows(&self) -> Vec<(WindowMapping, Result<(), DeviceError>)>;

    /// Times from a store of four bytes through a window of the form `mapping` to the answer of a running kernel in host memory,
    /// as the CPU sees both: `rounds` of them, in order.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] where no kernel can look at such a window; [`DeviceError::Timeout`].
    fn round_trips(&self, mapping: WindowMapping, rounds: u32) -> Result<Vec<Nanos>, DeviceError> {
        let _ = rounds;
        Err(DeviceError::Unavailable {
            what: format!("the round trip through the window `{mapping}`"),
            reason: "this device runs no kernel that waits for stores".into(),
            remedy: "measure it on a GPU".into(),
        })
    }

    /// A small mapping moved over `buffer`, by the form `mapping`.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`], [`DeviceError::Refused`] while another one is open on this device.
    fn pager(&self, mapping: WindowMapping, buffer: &Buffer) -> Result<Box<dyn Pager>, DeviceError>;

    /// Every resident form with why it cannot be used, if it cannot.
    fn residents(&self) -> Vec<(ResidentShape, Result<(), DeviceError>)>;

    /// Starts a resident copier.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] (kernel time limit, architecture), [`DeviceError::KernelLoad`],
    /// [`DeviceError::Driver`].
    fn resident(&self, shape: ResidentShape, options: ResidentOptions) -> Result<Box<dyn Resident>, DeviceError>;
}
