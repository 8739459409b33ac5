//! What a GPU is to the rest of Headway: the trait [`Gpu`], its emulated form, and the conformance suite that every form passes.
//!
//! Memory is handed to a GPU as [`Span`]s: claims on a range of a [`Buffer`] that exclude each other where one of them writes. So
//! buffers can be shared by the threads that fill them, the thread that drives the GPU, and the GPU, and a data race cannot be
//! written down. A run of a plan sees a GPU as its [`Engines`].
#![allow(unsafe_code)]

mod access;
pub mod buffer;
pub mod check;
pub mod conformance;
pub mod emu;
pub mod engines;
mod error;
pub mod gpu;
pub mod graveyard;
pub mod step;
mod window;
pub mod work;

use std::sync::Arc;

use headway_core::files::machine::EngineClass;
use headway_core::units::Bytes;
use headway_os::board::{BoardGpu, board_gpu};

pub use buffer::{Access, Buffer, HostKind, Span};
pub use engines::Engines;
pub use error::{DeviceError, WorkError};
pub use gpu::{Completion, Gpu, Operation, Queue};
pub use work::{DeviceCode, LaunchGrid, Portion, Work};

/// Called when a completion can be polled; from any thread, at any time, possibly without reason. Must not block.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// Calls `waker` on a thread of a device, which a panic in it must not end.
pub fn wake(waker: &Waker) {
    // The panic hook has reported it; the completion it was called for is there to be polled all the same.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| waker()));
}

/// What a device's figures stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceSource {
    /// Threads and ordinary memory with throttled rates: never a statement on any GPU.
    Emu,
    /// A GPU through the CUDA driver.
    Cuda,
    /// A test library with the CUDA driver's interface and no GPU behind it.
    Fake,
}

impl DeviceSource {
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
    pub source: DeviceSource,
    /// The classes it serves, ascending.
    pub engines: Vec<EngineClass>,
    pub memory_bytes: Bytes,
    /// The limits it was opened with.
    pub limits: DeviceLimits,
}

impl Description {
    /// How the device stands on the board of the user's programs.
    #[must_use]
    pub fn board_gpu(&self) -> BoardGpu {
        match self.source {
            DeviceSource::Emu => {
                // Of one of a machine the name of the machine is left out.
                let of_machine = self.name.strip_prefix("emulated ").and_then(|name| name.split_once(" of "));
                board_gpu(None, &format!("emu:{}", of_machine.map_or(&*self.name, |(gpu, _)| gpu)))
            }
            _ => board_gpu(self.uuid.as_deref(), &self.name),
        }
    }
}

/// How much of everything one device takes; beyond it, calls are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Operations of one queue, and of one engine, between submission and the poll that returns their completion.
    pub outstanding_per_engine_max: usize,
    /// Buffers alive at a time.
    pub buffers_max: usize,
    /// Host memory in buffers, pinned and pageable together.
    pub host_bytes_max: Bytes,
    /// Device memory in buffers.
    pub device_bytes_max: Bytes,
}

impl Default for DeviceLimits {
    fn default() -> Self {
        Self {
            outstanding_per_engine_max: 64,
            buffers_max: 4096,
            host_bytes_max: Bytes(4 << 30),
            device_bytes_max: Bytes(u64::MAX),
        }
    }
}
