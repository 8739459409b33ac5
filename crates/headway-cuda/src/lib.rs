//! GPUs through the CUDA driver API, and NVML, both loaded at run time.
//!
//! In layers: a table of the driver's functions and calls whose result is checked (`driver`), types that own what the driver hands out,
//! and on top of them [`CudaGpu`]. Whatever is missing is
//! [`DeviceError::Unavailable`](headway_device::DeviceError) with its remedy, never a panic.
#![allow(unsafe_code)]

mod abandoned;
pub mod arbitration;
mod driver;
mod foreign;
mod gpu;
mod lookup;
mod ordered;
mod owned;
mod pageable;
mod pieces;
mod pinned;
mod pool;
mod probe;
mod queue;
mod resident;
mod scatter;
mod timeline;
pub mod window;
mod words;

pub use driver::nvml::{ComputeMode, Nvml, NvmlGpu, NvmlReport, PcieCounters, PcieLink, PcieTraffic};
pub use driver::table::{Handle, functions};
pub use driver::{CurrentContext, Driver, GpuIdentity, uuid_text};
pub use gpu::CudaGpu;
pub use ordered::{HostEnd, LentEnds, MadeNow, OrderedCopier, OrderedOptions, OrderedTicket, RawCopy, StreamHandle};
pub use probe::{DeviceProbe, DriverProbe, probe};
pub use resident::CudaResident;
pub use scatter::{Chunks, EngineTurn, RawPlace, ScatterError, ScatterOptions, scatter};
