//! The first GPU for tests that compare kernels with their CPU forms, or the reason why there is none.

use std::io::Write as _;

use headway_core::units::Bytes;
use headway_cuda::{CudaGpu, Driver};
use headway_device::conformance::SkipReason;
use headway_device::{DeviceError, DeviceLimits};

/// Writes past the test harness, which hides the output of tests that pass.
pub(crate) fn say(text: &str) {
    drop(writeln!(std::io::stderr(), "{text}"));
}

fn gpu() -> Result<CudaGpu, SkipReason> {
    let driver = Driver::system()?;
    if driver.is_fake() {
        return Err(SkipReason("the driver library is the fake one of the tests".into()));
    }
    if driver.probe()?.devices.is_empty() {
        return Err(SkipReason("the driver reports no GPU".into()));
    }
    Ok(CudaGpu::open(
        &driver,
        0,
        DeviceLimits { buffers_max: 64, host_bytes_max: Bytes(256 << 20), ..DeviceLimits::default() },
    )?)
}

/// Runs `body` on the first GPU, or prints why not.
pub(crate) fn with_gpu(test: &str, body: impl FnOnce(&CudaGpu) -> Result<(), DeviceError>) {
    match gpu() {
        Ok(gpu) => body(&gpu).expect("the GPU does what it is asked"),
        Err(SkipReason(reason)) => say(&format!("skipped {test}: {reason}")),
    }
}
