//! GPUs through the CUDA driver API, and NVML, both loaded at run time.
//!
//! In layers: a table of the driver's functions, calls whose result is checked, types that own what the driver hands out,
//! and on top of them [`CudaDevice`]. Whatever is missing is [`DeviceError::Unavailable`](headway_device::DeviceError) with
//! its remedy, never a panic.

mod checked;
mod device;
mod nvml;
mod owned;
mod pageable;
mod pool;
mod probe;
mod table;
mod timeline;

pub use checked::Driver;
pub use device::{CudaDevice, open_all};
pub use nvml::{Nvml, NvmlGpu, NvmlReport, PcieLink};
pub use probe::{DeviceProbe, Probe, probe};
