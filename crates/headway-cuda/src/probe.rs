//! What the driver says is there, for `headway doctor`.

use headway_core::units::Bytes;
use headway_device::DeviceError;

use crate::driver::Driver;
use crate::driver::table;

/// The driver and its GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverProbe {
    /// The newest CUDA version the driver supports, as (major, minor).
    pub cuda_version: (u32, u32),
    /// Whether this is the library of the tests, with no GPU behind it.
    pub fake: bool,
    /// The GPUs, in the driver's order.
    pub devices: Vec<DeviceProbe>,
}

/// One GPU as the driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceProbe {
    /// Name for people.
    pub name: String,
    /// UUID as `nvidia-smi` writes it.
    pub uuid: String,
    /// PCI address in the kernel's form, where it has one.
    pub pci: Option<String>,
    pub memory_bytes: Bytes,
    /// Compute capability, as (major, minor).
    pub compute_capability: (u32, u32),
    /// Copy engines the driver reports.
    pub async_engines: u32,
    pub multiprocessors: u32,
    /// Whether the driver ends kernels that run for long (a display hangs on this GPU).
    pub kernel_time_limit: bool,
}

/// Asks the system's driver; creates no context.
///
/// # Errors
/// [`DeviceError::Unavailable`] with the remedy, [`DeviceError::Driver`].
pub fn probe() -> Result<DriverProbe, DeviceError> {
    Driver::system()?.probe()
}

impl Driver {
    /// What this driver says is there; creates no context.
    ///
    /// # Errors
    /// [`DeviceError::Driver`].
    pub fn probe(&self) -> Result<DriverProbe, DeviceError> {
        let count = self.count()?.unsigned_abs();
        Ok(DriverProbe {
            cuda_version: self.version()?,
            fake: self.is_fake(),
            devices: (0..count).map(|index| self.probe_device(index)).collect::<Result<_, _>>()?,
        })
    }

    fn probe_device(&self, index: u32) -> Result<DeviceProbe, DeviceError> {
        let ordinal = self.device(index)?;
        let attribute = |attribute| self.attribute(attribute, ordinal);
        Ok(DeviceProbe {
            name: self.name(ordinal)?,
            uuid: self.uuid(ordinal)?,
            pci: self.pci(ordinal)?,
            memory_bytes: self.memory(ordinal)?,
            compute_capability: (
                attribute(table::ATTRIBUTE_CAPABILITY_MAJOR)?,
                attribute(table::ATTRIBUTE_CAPABILITY_MINOR)?,
            ),
            async_engines: attribute(table::ATTRIBUTE_ASYNC_ENGINES)?,
            multiprocessors: attribute(table::ATTRIBUTE_MULTIPROCESSORS)?,
            kernel_time_limit: attribute(table::ATTRIBUTE_KERNEL_TIME_LIMIT)? != 0,
        })
    }
}
