//! A GPU as transfer methods see it: memory, queues, windows, resident copiers; usable from any thread.
//!
//! [`Device`](crate::Device) serves a plan, one operation per engine; a [`Gpu`] serves copies. Both may be open on one GPU.

use std::sync::Arc;

use headway_core::models::transfer::{Mapping, Shape};
use headway_core::units::Nanos;

use crate::buffer::{Buffer, DeviceId, Domain, HostKind, Span};
use crate::kernel::Grid;
use crate::{Description, DeviceError};

/// How the CPU may reach device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reach {
    /// Not at all.
    Device,
    /// Through a window on all of it, by this form.
    Window(Mapping),
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
    /// Length.
    pub len: usize,
}

/// Who moves the pieces of one request.
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

/// A compute step that experiments launch: a PTX form, and a CPU form for devices without a GPU. Both compute the same.
pub trait Program: Send + Sync {
    /// Name for messages.
    fn id(&self) -> &'static str;
    /// PTX text, for compute capability 7.5 and later.
    fn ptx(&self) -> &'static str;
    /// Entry point in it; its parameters are the [`Argument`]s in order: 64-bit addresses, and 32-bit integers.
    fn entry(&self) -> &'static str;
    /// The CPU form of one launch.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for arguments that do not fit.
    fn run(&self, grid: Grid, arguments: &mut [CpuArgument<'_>]) -> Result<(), DeviceError>;
}

/// One argument of a [`Program`].
#[derive(Debug)]
pub enum Argument {
    /// Device memory, or pinned host memory; may be written if it was claimed for writing.
    Memory(Span),
    /// A 32-bit integer.
    Int(i32),
}

/// One argument as the CPU form sees it.
#[derive(Debug)]
pub enum CpuArgument<'a> {
    /// Memory to be read.
    Read(&'a [u8]),
    /// Memory to be read and written.
    Write(&'a mut [u8]),
    /// A 32-bit integer.
    Int(i32),
}

/// What a queue is asked to do. It owns its spans until it is complete.
pub enum Move {
    /// One copy between spans of equal length by a copy engine: host (pinned) to device, device to host (pinned), within a
    /// device, or between devices of one domain, by where the spans are.
    Copy {
        /// Source.
        from: Span,
        /// Destination, claimed for writing.
        to: Span,
    },
    /// Two copies in a row, through memory of this device: the second begins when the first has ended.
    Relay {
        /// Source.
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
        /// The pieces.
        pieces: Arc<[Piece]>,
        /// Who moves them.
        by: Mover,
    },
    /// A launch.
    Launch {
        /// What.
        program: Arc<dyn Program>,
        /// Shape.
        grid: Grid,
        /// Arguments.
        arguments: Vec<Argument>,
    },
}

/// The end of a [`Move`]. Its spans were released before it could be polled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// The tag given at submission.
    pub tag: u64,
    /// How it ended; after an error the destination is unspecified.
    pub result: Result<(), DeviceError>,
    /// From its start to its end on the device; only on queues that keep time.
    pub device_time: Option<Nanos>,
}

/// A queue on one device (a CUDA stream): moves begin and end in the order of submission.
///
/// Between queues there is no order; queues share the device's engines. Dropping a queue waits for what was submitted.
pub trait Queue: Send {
    /// Queues `what`; does not wait for it. A refusal changes nothing, but the spans are released.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for spans that do not fit (lengths, places, host memory that is not pinned),
    /// [`DeviceError::Refused`] at `outstanding_per_engine_max`, [`DeviceError::Driver`], [`DeviceError::DeviceLost`].
    fn submit(&mut self, what: Move, tag: u64) -> Result<(), DeviceError>;

    /// Takes the oldest move if it has ended; never blocks.
    fn poll(&mut self) -> Option<Done>;

    /// Moves submitted and not yet taken.
    fn outstanding(&self) -> usize;
}

/// Mapped device memory. Offsets count from the start of the buffer.
///
/// # Safety
/// Implementations write no byte outside the range they are given, read none outside the 64-byte lines that it lies in, and make
/// stores visible to later work of the device before `store` returns (for posted stores: before any later doorbell or flag
/// store of the same thread).
pub unsafe trait Window: Send + Sync {
    /// The form.
    fn mapping(&self) -> Mapping;
    /// Stores `from` at `at`; posted: returns when the CPU has handed the bytes over.
    ///
    /// # Safety
    /// `at + from.len()` lies within the memory, and nobody else uses these bytes meanwhile.
    unsafe fn store(&self, at: usize, from: &[u8]);
    /// Loads from `at` into `to`.
    ///
    /// # Safety
    /// As for `store`; nobody writes these bytes meanwhile.
    unsafe fn load(&self, at: usize, to: &mut [u8]);
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
    /// As for `store`.
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
    fn shape(&self) -> Shape;
    /// Copies ordinary memory to the device, through pinned memory of its own; complete when it returns.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`], [`DeviceError::Timeout`], [`DeviceError::Driver`], [`DeviceError::DeviceLost`].
    fn copy_in(&mut self, to: &mut Span, from: &[u8]) -> Result<(), DeviceError>;
    /// Copies device memory to ordinary memory, through pinned memory of its own; complete when it returns.
    ///
    /// # Errors
    /// As for `copy_in`.
    fn copy_out(&mut self, to: &mut [u8], from: &Span) -> Result<(), DeviceError>;
    /// Copies between device memory and pinned host memory, either way.
    ///
    /// # Errors
    /// As for `copy_in`.
    fn copy(&mut self, from: &Span, to: &mut Span) -> Result<(), DeviceError>;
    /// Leaves the device; the next copy starts it again. Whatever waits for the whole device (frees, synchronisation)
    /// needs this first.
    ///
    /// # Errors
    /// As for `copy_in`.
    fn park(&mut self) -> Result<(), DeviceError>;
}

/// One GPU, or what stands in for one, for transfers.
pub trait Gpu: Send + Sync {
    /// What it is.
    fn description(&self) -> &Description;
    /// Whose memory [`Gpu::device_buffer`] gives.
    fn id(&self) -> DeviceId;
    /// Which devices can reach each other and the same pinned memory.
    fn domain(&self) -> Domain;
    /// NUMA node of the GPU, where the system says.
    fn numa(&self) -> Option<u32>;
    /// Whether copies between this device and `peer` go directly.
    fn reaches(&self, peer: DeviceId) -> bool;

    /// Device memory, zeroed, aligned to 256 bytes or more. Slow.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`], [`DeviceError::Refused`], [`DeviceError::Unavailable`] when the window does not exist.
    fn device_buffer(&self, bytes: usize, reach: Reach) -> Result<Buffer, DeviceError>;

    /// Pinned host memory, mapped for this domain's devices, on the GPU's NUMA node, zeroed, aligned to a page. Slow.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`], [`DeviceError::Refused`].
    fn pinned_buffer(&self, bytes: usize, caching: Caching) -> Result<Buffer, DeviceError>;

    /// Pins the pages of ordinary host memory in place: a view of `buffer` as pinned memory, unpinned when dropped. Slow.
    /// `buffer` must not be used through other claims that conflict; the view holds a claim on all of it.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for memory that is pinned already, [`DeviceError::Driver`].
    fn register(&self, buffer: &Buffer) -> Result<Buffer, DeviceError>;

    /// What the driver says of host memory that somebody else allocated.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for memory that is not host memory, or is managed by the driver.
    fn host_kind(&self, memory: &[u8]) -> Result<HostKind, DeviceError>;

    /// A new queue; `keeps_time` = [`Done::device_time`] is filled in. Slow.
    ///
    /// # Errors
    /// [`DeviceError::Driver`], [`DeviceError::DeviceLost`].
    fn queue(&self, keeps_time: bool) -> Result<Box<dyn Queue>, DeviceError>;

    /// The driver's own copy of ordinary memory to the device; the bytes are there when it returns.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`], [`DeviceError::Driver`], [`DeviceError::DeviceLost`].
    fn copy_in(&self, to: &mut Span, from: &[u8]) -> Result<(), DeviceError>;

    /// The driver's own copy of device memory to ordinary memory.
    ///
    /// # Errors
    /// As for `copy_in`.
    fn copy_out(&self, to: &mut [u8], from: &Span) -> Result<(), DeviceError>;

    /// Every window form with why it cannot be used, if it cannot. In the order of preference.
    fn windows(&self) -> Vec<(Mapping, Result<(), DeviceError>)>;

    /// Times from a store of four bytes through a window of the form `mapping` to the answer of a running kernel in host memory,
    /// as the CPU sees both: `rounds` of them, in order.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] where no kernel can look at such a window; [`DeviceError::Timeout`].
    fn round_trips(&self, mapping: Mapping, rounds: u32) -> Result<Vec<Nanos>, DeviceError> {
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
    fn pager(&self, mapping: Mapping, buffer: &Buffer) -> Result<Box<dyn Pager>, DeviceError>;

    /// Every resident form with why it cannot be used, if it cannot.
    fn residents(&self) -> Vec<(Shape, Result<(), DeviceError>)>;

    /// Starts a resident copier.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] (kernel time limit, architecture), [`DeviceError::KernelLoad`],
    /// [`DeviceError::Driver`].
    fn resident(&self, shape: Shape, options: ResidentOptions) -> Result<Box<dyn Resident>, DeviceError>;
}
