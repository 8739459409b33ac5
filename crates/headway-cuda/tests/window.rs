//! The gpus' conformance suite with a window, against a library with the driver's interface and no GPU behind it, whose
//! device memory can be mapped as a dma-buf.

mod support;

use std::sync::{Arc, LazyLock};

use headway_core::models::transfer::WindowMapping;
use headway_core::units::Bytes;
use headway_cuda::CudaGpu;
use headway_cuda::window::{self, WindowRoute};
use headway_device::conformance::SkipReason;
use headway_device::gpu::Gpu;
use headway_device::{Access, DeviceError, DeviceLimits};
use support::Fake;

static MAPPABLE: LazyLock<Fake> = LazyLock::new(|| Fake::build(&["-DMEMFD", "-DVERSION=13030", "-DMMAP_ATTRIBUTE=1"]));

fn open() -> Result<Arc<dyn Gpu>, SkipReason> {
    let limits = DeviceLimits {
        buffers_max: 64,
        host_bytes_max: Bytes(512 << 20),
        outstanding_per_engine_max: 16,
        ..DeviceLimits::default()
    };
    Ok(Arc::new(CudaGpu::open(&MAPPABLE.driver(), 0, limits)?))
}

headway_device::conformance!(mapped, open);

#[test]
fn the_suite_has_a_window_to_test() {
    let windows = open().unwrap().windows();
    assert!(windows.contains(&(WindowMapping::DmaBuf, Ok(()))), "{windows:?}");
}

#[test]
fn routes_are_reported_and_taken_one_by_one() {
    let driver = MAPPABLE.driver();
    let verdicts = window::routes(&driver, 0).unwrap();
    assert_eq!(verdicts.iter().map(|(route, _)| *route).collect::<Vec<_>>(), WindowRoute::ALL);
    assert_eq!(verdicts[3], (WindowRoute::DmaBuf, Ok(())));
    assert!(matches!(verdicts[1].1, Err(DeviceError::Unavailable { .. })), "{verdicts:?}");
    let buffer = window::buffer(&driver, 0, WindowRoute::DmaBuf, 100).unwrap();
    buffer.claim(0..100, Access::Write).unwrap().store(99, &[1]).unwrap();
    let error = window::buffer(&driver, 0, WindowRoute::VulkanImport, 100).unwrap_err();
    assert!(error.to_string().starts_with("the route vulkan (CUDA's memory) is not available: "), "{error}");
}
