//! Operations outside a run: submitted one at a time, and waited for.

use headway_core::files::machine::EngineClass;
use headway_core::models::transfer::Method;
use headway_core::units::Nanos;
use headway_device::{Access, Buffer, DeviceError, Engines, HostKind};
use headway_os::clock;

/// How long setting up one state may take before the device counts as hanging.
const PREPARE_MAX: Nanos = Nanos(30_000_000_000);

/// Copies `bytes` to a new buffer of device memory and waits for it.
pub(crate) fn upload(device: &mut Engines, bytes: &[u8]) -> Result<Buffer, DeviceError> {
    let host = device.host_buffer(bytes.len(), HostKind::Pinned)?;
    let memory = device.device_buffer(bytes.len())?;
    host.claim(0..bytes.len(), Access::Write)?.bytes_mut()?.copy_from_slice(bytes);
    let (from, to) = (host.claim(0..bytes.len(), Access::Read)?, memory.claim(0..bytes.len(), Access::Write)?);
    device.copy(EngineClass::H2d, Method::Dma, (from, to), u64::MAX)?;
    settle(device).map(|()| memory)
}

/// Waits for the end of the only operation of a device.
pub(crate) fn settle(device: &mut Engines) -> Result<(), DeviceError> {
    let deadline = clock::now() + PREPARE_MAX;
    let mut done = Vec::new();
    while done.is_empty() {
        device.poll(&mut done);
        if clock::now() > deadline {
            return Err(DeviceError::DeviceLost);
        }
        headway_os::sched::yield_now();
    }
    done.remove(0).result
}
