//! GPUs through the CUDA driver API, and NVML, both loaded at run time.
//!
//! In layers: a table of the driver's functions, calls whose result is checked, types that own what the driver hands out,
//! and on top of them [`CudaGpu`]. Whatever is missing is
//! [`DeviceError::Unavailable`](headway_device::DeviceError) with its remedy, never a panic.
#![allow(unsafe_code)]

mod abandoned;
pub mod arbitration;
mod checked;
mod foreign;
mod gpu;
mod lookup;
mod nvml;
mod ordered;
mod owned;
mod pageable;
mod pieces;
mod pinned;
mod pool;
mod probe;
mod queue;
mod resident;
mod structures;
mod table;
mod timeline;
pub mod window;
mod words;

pub use checked::{CurrentContext, Driver, GpuIdentity};
pub use gpu::CudaGpu;
pub use nvml::{ComputeMode, Nvml, NvmlGpu, NvmlReport, PcieLink};
pub use ordered::{HostEnd, LentEnds, MadeNow, OrderedCopier, OrderedOptions, OrderedTicket, RawCopy, StreamHandle};
pub use probe::{DeviceProbe, DriverProbe, probe};
pub use resident::CudaResident;
