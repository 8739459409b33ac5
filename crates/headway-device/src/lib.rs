//! The `Device` and `Gpu` traits, their emulated forms, and the conformance suites that every implementation passes.
//!
//! A device serves operations on engines, a port serves copies. Memory is handed to it as [`Span`]s: claims on a range of a [`Buffer`] that
//! exclude each other where one of them writes. So buffers can be shared by the threads that fill them, the thread that
//! drives the device, and the device, and a data race cannot be written down.

pub mod buffer;
pub mod check;
pub mod conformance;
pub mod emu;
pub mod emu_port;
mod error;
pub mod faulty;
pub mod gpu;
pub mod graveyard;
pub mod kernel;
pub mod port_conformance;

use std::sync::Arc;

use headway_core::files::machine::EngineClass;
use headway_core::models::transfer::Method;
use headway_core::units::{Bytes, Nanos};
use headway_os::sched::Classes;

pub use buffer::{Access, Buffer, HostKind, Span};
pub use error::DeviceError;
pub use kernel::{Grid, Kernel, KernelError, Lane};

/// Called when a completion can be polled; from any thread, at any time, possibly without reason. Must not block.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// Calls `waker` on a thread of a device, which a panic in it must not end.
pub fn wake(waker: &Waker) {
    // The panic hook has reported it; the completion it was called for is there to be polled all the same.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| waker()));
}

/// What a device's figures stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Threads and ordinary memory with throttled rates: never a statement on any GPU.
    Emu,
    /// A GPU through the CUDA driver.
    Cuda,
    /// A test library with the CUDA driver's interface and no GPU behind it.
    Fake,
}

impl Source {
    /// The label every result carries.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Emu => "emu",
            Self::Cuda => "cuda",
            Self::Fake => "fake",
        }
    }
}

/// What a device is and how much it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Name for people.
    pub name: String,
    /// The driver's UUID (`GPU-...`), where there is one.
    pub uuid: Option<String>,
    /// PCI address in the kernel's form (`0000:0f:00.0`), where there is one.
    pub pci: Option<String>,
    /// What figures of this device stand for.
    pub source: Source,
    /// The classes it serves, ascending.
    pub engines: Vec<EngineClass>,
    /// Its memory.
    pub memory_bytes: Bytes,
    /// The limits it was opened with.
    pub limits: Limits,
}

/// How much of everything one device takes; beyond it, calls are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Operations of one engine between submission and the poll that returns their completion.
    pub outstanding_per_engine_max: usize,
    /// Buffers alive at a time.
    pub buffers_max: usize,
    /// Host memory in buffers, pinned and pageable together.
    pub host_bytes_max: Bytes,
    /// Device memory in buffers.
    pub device_bytes_max: Bytes,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            outstanding_per_engine_max: 64,
            buffers_max: 4096,
            host_bytes_max: Bytes(4 << 30),
            device_bytes_max: Bytes(u64::MAX),
        }
    }
}

/// A kernel loaded on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelId {
    device: buffer::DeviceId,
    index: usize,
}

impl KernelId {
    /// For implementations of [`Device`]: the `index`-th kernel loaded on `device`.
    #[must_use]
    pub const fn new(device: buffer::DeviceId, index: usize) -> Self {
        Self { device, index }
    }

    /// For implementations of [`Device`]: the index given to [`KernelId::new`] on this device.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for a kernel of another device.
    pub fn index_on(self, device: buffer::DeviceId) -> Result<usize, DeviceError> {
        if self.device == device {
            Ok(self.index)
        } else {
            Err(DeviceError::Invalid { what: "launch", reason: "the kernel is loaded on another device".into() })
        }
    }
}

/// What an engine is asked to do. It owns its spans until it is complete.
#[derive(Debug)]
pub enum Operation {
    /// Copies `from` to `to`, of equal length.
    ///
    /// `h2d`: host to this device; `d2h`: this device to host; `peer`: between two devices of one domain, one of them this
    /// one. [`Method::Dma`] needs pinned host memory; [`Method::Pageable`] takes any host memory.
    Copy {
        /// How.
        method: Method,
        /// Source.
        from: Span,
        /// Destination, claimed for writing.
        to: Span,
    },
    /// Runs a kernel on device memory; every span starts at a multiple of 256 bytes.
    Launch {
        /// The kernel.
        kernel: KernelId,
        /// The packed block to read.
        input: Span,
        /// Where the result goes, claimed for writing, at least of [`Kernel::output_bytes`].
        output: Span,
        /// The state, claimed for writing; `None` for kernels without state.
        state: Option<Span>,
        /// Lanes of the block.
        lanes: u32,
    },
}

/// The end of an operation. Its spans were released before it could be polled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The tag given at submission.
    pub tag: u64,
    /// How it ended; after an error the destination is unspecified.
    pub result: Result<(), DeviceError>,
    /// When the engine began it, on [`headway_os::clock`]; never before its submission, nor before the end of the
    /// operation ahead of it in the same queue.
    pub started: Nanos,
    /// When the engine ended it; never after `noticed`.
    pub finished: Nanos,
    /// When the poll that returns it saw it.
    pub noticed: Nanos,
}

/// A GPU or what stands in for one: engines that each serve one operation at a time, in the order of submission.
///
/// Operations of one engine and method run and complete in the order of submission, without preemption. Between engines,
/// and between `dma` and `pageable` of one direction, there is no order.
///
/// Dropping a device lets operations that run end, discards those that wait, and releases all their spans. Buffers
/// outlive their device.
pub trait Device: Send {
    /// What it is.
    fn description(&self) -> &Description;

    /// Makes a host buffer, zeroed, its start aligned to 256 bytes or more.
    ///
    /// Slow (pages are pinned): for set-up, not for the path of the data.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`], [`DeviceError::Refused`], [`DeviceError::DeviceLost`].
    fn host_buffer(&mut self, bytes: usize, kind: HostKind) -> Result<Buffer, DeviceError>;

    /// Makes a buffer of device memory, zeroed, its start aligned to 256 bytes or more. Slow, like
    /// [`Device::host_buffer`].
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`], [`DeviceError::Refused`], [`DeviceError::DeviceLost`].
    fn device_buffer(&mut self, bytes: usize) -> Result<Buffer, DeviceError>;

    /// Loads a kernel. Slow: a GPU compiles it.
    ///
    /// # Errors
    /// [`DeviceError::KernelLoad`] with the compiler's log, [`DeviceError::Refused`], [`DeviceError::DeviceLost`].
    fn load(&mut self, kernel: Arc<dyn Kernel>) -> Result<KernelId, DeviceError>;

    /// Queues `operation` on the engine of class `engine`; never waits for it. A refusal changes nothing, but the spans
    /// are released.
    ///
    /// # Errors
    /// [`DeviceError::NoEngine`], [`DeviceError::Invalid`], [`DeviceError::Refused`] when the queue is full,
    /// [`DeviceError::Driver`], [`DeviceError::DeviceLost`].
    fn submit(&mut self, engine: EngineClass, operation: Operation, tag: u64) -> Result<(), DeviceError>;

    /// Appends what has completed since the last poll, each operation exactly once; never blocks.
    fn poll(&mut self, done: &mut Vec<Completion>);

    /// Whether an operation is outstanding whose completion does not call the waker, so that it must be polled for.
    fn must_poll(&self) -> bool;

    /// Sets whom to call when there may be something to poll.
    fn set_waker(&mut self, waker: Waker);

    /// Says which scheduling class its threads are to take; `None` = they give it back. A device without threads has nothing
    /// to do.
    fn set_classes(&mut self, classes: Option<&Arc<Classes>>) {
        let _ = classes;
    }
}
