//! Error paths of engines on a GPU, and of what finds GPUs, against a library with the driver's interface and no GPU behind it.
//!
//! The library is compiled by each test with the faults it needs. What passes here says that the calls are right in number,
//! order and arguments; it says nothing about any GPU.

mod support;

use std::path::Path;
use std::sync::{Arc, LazyLock};

use headway_core::files::machine::EngineClass;
use headway_core::models::transfer::Method;
use headway_core::units::{Bytes, Nanos};
use headway_cuda::{ComputeMode, CudaGpu, Driver, Nvml, PcieLink, PcieTraffic};
use headway_device::conformance::{self, Xor, wait_for};
use headway_device::{
    Access, Buffer, DeviceCode, DeviceError, DeviceLimits, DeviceSource, Engines, Gpu, HostKind, LaunchGrid, Span, Work,
};
use headway_os::clock;
use support::{Fake, failing};

fn open(fake: &Fake) -> Engines {
    try_open(fake, limits()).unwrap()
}

fn try_open(fake: &Fake, limits: DeviceLimits) -> Result<Engines, DeviceError> {
    Engines::open(Arc::new(CudaGpu::open(&fake.driver(), 0, limits)?))
}

/// Both ends of a copy of 64 bytes, claimed.
fn ends(from: &Buffer, to: &Buffer) -> (Span, Span) {
    (from.claim(0..64, Access::Read).unwrap(), to.claim(0..64, Access::Write).unwrap())
}

fn limits() -> DeviceLimits {
    DeviceLimits {
        buffers_max: 64,
        host_bytes_max: Bytes(256 << 20),
        outstanding_per_engine_max: 16,
        ..DeviceLimits::default()
    }
}

static PLAIN: LazyLock<Fake> = LazyLock::new(|| Fake::build(&[]));

fn copies(device: &mut Engines, method: Method, count: u64) -> (Buffer, Buffer) {
    let kind = if method == Method::Dma { HostKind::Pinned } else { HostKind::Pageable };
    let host = device.host_buffer(64 * count as usize, kind).unwrap();
    let there = device.device_buffer(64 * count as usize).unwrap();
    for tag in 0..count {
        let range = 64 * tag as usize..64 * (tag as usize + 1);
        let from = host.claim(range.clone(), Access::Read).unwrap();
        let to = there.claim(range, Access::Write).unwrap();
        device.copy(EngineClass::H2d, method, (from, to), tag).unwrap();
    }
    (host, there)
}

#[test]
fn the_fake_never_passes_for_a_gpu() {
    let device = open(&PLAIN);
    assert_eq!(device.description().source, DeviceSource::Fake);
    assert!(device.description().name.contains("no GPU"));
    assert!(PLAIN.driver().probe().unwrap().fake);
}

#[test]
fn a_probe_reports_what_the_driver_says() {
    let probe = PLAIN.driver().probe().unwrap();
    assert_eq!((probe.cuda_version, probe.devices.len()), ((13, 1), 2));
    let device = &probe.devices[1];
    assert_eq!(device.uuid, "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f");
    assert_eq!(device.pci.as_deref(), Some("0000:0b:00.0"));
    assert_eq!((device.compute_capability, device.async_engines), ((75, 76), 40));
}

#[test]
fn a_missing_library_is_an_error_with_a_remedy() {
    let error = Driver::load(Path::new("/nonexistent/libcuda.so.1")).unwrap_err();
    assert!(matches!(error, DeviceError::Unavailable { .. }));
    for part in ["/nonexistent/libcuda.so.1", "install the NVIDIA driver", "$HEADWAY_LIBCUDA"] {
        assert!(error.to_string().contains(part), "`{part}` is missing in: {error}");
    }
}

#[test]
fn a_missing_function_is_named() {
    let fake = Fake::build(&["-DcuEventQuery=gone"]);
    let error = Driver::load(&fake.path).unwrap_err();
    assert!(error.to_string().starts_with("the function cuEventQuery of the CUDA driver is not available"), "{error}");
}

#[test]
fn a_driver_without_devices_is_unavailable() {
    let fake = failing("cuInit", 100, 1, &[]);
    let error = Driver::load(&fake.path).unwrap_err();
    assert!(matches!(error, DeviceError::Unavailable { .. }));
    assert!(error.to_string().contains("cuInit failed with CUDA_ERROR_NO_DEVICE (100)"), "{error}");
    assert!(Driver::load(&fake.path).is_ok(), "a failed start is not kept");
}

#[test]
fn a_gpu_that_is_not_there_is_unavailable() {
    let error = CudaGpu::open(&PLAIN.driver(), 2, limits()).err().unwrap();
    assert!(error.to_string().contains("GPU 2 is not available: the driver reports 2 GPUs"), "{error}");
}

#[test]
fn every_call_that_fails_at_opening_is_reported_and_leaks_nothing() {
    let calls =
        ["cuDeviceTotalMem_v2", "cuDeviceGetUuid_v2", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuStreamCreate"];
    for call in calls.into_iter().chain(["cuEventCreate", "cuEventRecord", "cuEventQuery"]) {
        for at in [1, 2] {
            let fake = failing(call, 801, at, &[]);
            match try_open(&fake, limits()) {
                Err(error) => assert_eq!(
                    error,
                    DeviceError::Driver { call: call_name(call), code: 801, name: "unknown error".into() }
                ),
                Ok(_) => assert_eq!(at, 2, "{call} is used when opening"),
            }
            assert_eq!(fake.live(), 0, "after {call} failed at {at}");
        }
    }
}

/// The same text with the lifetime that errors have.
fn call_name(call: &str) -> &'static str {
    String::leak(call.to_owned())
}

#[test]
fn everything_is_given_back_in_the_end() {
    let fake = Fake::build(&[]);
    let mut device = open(&fake);
    device.gpu().load(&Xor).unwrap();
    let memory = copies(&mut device, Method::Dma, 4);
    let pageable = copies(&mut device, Method::Pageable, 4);
    wait_for(&mut device, 3);
    assert!(fake.live() > 0);
    drop(device);
    drop(pageable);
    assert!(fake.live() > 0, "buffers outlive their device");
    drop(memory);
    assert_eq!(fake.live(), 0);
}

#[test]
fn event_times_are_mapped_to_the_host_clock() {
    const COPY: u64 = 3_000_000;
    let fake = Fake::build(&["-DCOPY_NANOS=3000000"]);
    let gpu = Arc::new(CudaGpu::open(&fake.driver(), 0, limits()).unwrap());
    let mut device = Engines::open(Arc::<CudaGpu>::clone(&gpu)).unwrap();
    let before = clock::now();
    let _memory = copies(&mut device, Method::Dma, 2);
    let after = clock::now();
    clock::sleep_until(after + Nanos(COPY));
    let error = gpu.clock_error().expect("its queues keep time").0;
    let done = wait_for(&mut device, 2);
    for completion in &done {
        let lasted = completion.finished - completion.started;
        assert!(lasted.0 + 2 * error >= COPY, "{completion:?}, error {error}");
        assert!(
            completion.started >= before && completion.finished.0 <= after.0 + error,
            "{completion:?}, error {error}"
        );
        assert!(completion.noticed >= after + Nanos(COPY));
    }
    assert!(done[0].finished <= done[1].started);
}

#[test]
fn a_refused_copy_changes_nothing() {
    let fake = failing("cuMemcpyHtoDAsync_v2", 1, 1, &[]);
    let mut device = open(&fake);
    let (host, there) = (device.host_buffer(64, HostKind::Pinned).unwrap(), device.device_buffer(64).unwrap());
    let error = device.copy(EngineClass::H2d, Method::Dma, ends(&host, &there), 5).unwrap_err();
    let name = "CUDA_ERROR_INVALID_VALUE".to_owned();
    assert_eq!(error, DeviceError::Driver { call: "cuMemcpyHtoDAsync_v2", code: 1, name });
    assert!(!device.must_poll());
    device.copy(EngineClass::H2d, Method::Dma, ends(&host, &there), 6).unwrap();
    assert_eq!(wait_for(&mut device, 1)[0].tag, 6);
}

#[test]
fn an_error_that_ends_the_context_loses_the_device_and_frees_nothing_in_use() {
    // Opening records and queries events itself; the copies' own queries come later.
    let fake = failing("cuEventQuery", 700, 60, &["-DFAIL_STICKY", "-DLAG=5"]);
    let mut device = open(&fake);
    let (host, _there) = copies(&mut device, Method::Dma, 10);
    let done = wait_for(&mut device, 10);
    let first = done.iter().position(|completion| completion.result.is_err()).unwrap();
    let name = "CUDA_ERROR_ILLEGAL_ADDRESS".to_owned();
    assert_eq!(done[first].result, Err(DeviceError::Driver { call: "cuEventQuery", code: 700, name }));
    let lost = |error: &DeviceError| matches!(error, DeviceError::Driver { code: 700, .. } | DeviceError::DeviceLost);
    assert!(done[first..].iter().all(|completion| completion.result.as_ref().is_err_and(lost)), "{done:?}");
    assert_eq!(device.host_buffer(1, HostKind::Pinned).unwrap_err(), DeviceError::DeviceLost);
    assert_eq!(device.gpu().load(&Xor).unwrap_err(), DeviceError::DeviceLost);
    assert!(!device.must_poll());
    let last = 64 * 9..64 * 10;
    assert!(matches!(host.claim(last, Access::Write), Err(DeviceError::Overlap { .. })), "its copy may still run");
}

#[test]
fn after_a_failed_stop_event_the_bytes_come_back_when_the_stream_is_empty() {
    // Events 1 to 8 are recorded by opening, 9 is the copy's start.
    let fake = failing("cuEventRecord", 1, 10, &[]);
    let mut device = open(&fake);
    let (host, there) = (device.host_buffer(64, HostKind::Pinned).unwrap(), device.device_buffer(64).unwrap());
    let error = device.copy(EngineClass::H2d, Method::Dma, ends(&host, &there), 5).unwrap_err();
    assert!(matches!(error, DeviceError::Driver { call: "cuEventRecord", .. }), "{error}");
    // Whoever claims them has the driver asked. Another test's thread may be asking just now, so once is not enough.
    let start = std::time::Instant::now();
    while host.claim(0..1, Access::Write).is_err() {
        assert!(start.elapsed().as_secs() < 300, "the bytes stay claimed although the stream is empty");
        std::thread::yield_now();
    }
    device.copy(EngineClass::H2d, Method::Dma, ends(&host, &there), 6).unwrap();
    assert_eq!(wait_for(&mut device, 1)[0].result, Ok(()));
}

#[test]
fn a_failed_pageable_copy_fails_alone() {
    let fake = failing("cuMemcpyHtoD_v2", 1, 2, &[]);
    let mut device = open(&fake);
    let (host, _there) = copies(&mut device, Method::Pageable, 3);
    let done = wait_for(&mut device, 3);
    assert_eq!(done.iter().map(|completion| completion.tag).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(matches!(done[1].result, Err(DeviceError::Driver { call: "cuMemcpyHtoD_v2", code: 1, .. })));
    assert_eq!((&done[0].result, &done[2].result), (&Ok(()), &Ok(())));
    host.claim(0..host.len(), Access::Write).unwrap();
}

#[test]
fn exhausted_memory_is_reported_with_figures() {
    let fake = failing("cuMemAlloc_v2", 2, 1, &[]);
    let error = open(&fake).device_buffer(1000).unwrap_err();
    let expected = DeviceError::OutOfMemory { what: "device memory", wanted: Bytes(1000), available: Bytes(12345) };
    assert_eq!(error, expected);
    let fake = failing("cuMemHostAlloc", 2, 1, &["-DNO_REGISTER"]);
    let error = open(&fake).host_buffer(1000, HostKind::Pinned).unwrap_err();
    assert!(matches!(error, DeviceError::OutOfMemory { wanted: Bytes(2_097_152), .. }), "{error}");
}

#[test]
fn pinned_buffers_share_slabs_and_the_limit_counts_slabs() {
    let fake = Fake::build(&[]);
    let limits = DeviceLimits { host_bytes_max: Bytes(4 << 20), ..limits() };
    let device = try_open(&fake, limits).unwrap();
    let before = fake.live();
    let pinned = |bytes| device.host_buffer(bytes, HostKind::Pinned);
    let small: Vec<_> = (0..8).map(|_| pinned(100_000).unwrap()).collect();
    assert_eq!(fake.live(), before + 1, "eight buffers in one slab");
    let large = pinned(2 << 20).unwrap();
    assert_eq!(fake.live(), before + 2);
    let error = pinned(2 << 20).unwrap_err();
    assert!(matches!(error, DeviceError::OutOfMemory { wanted: Bytes(2_097_152), available: Bytes(0), .. }), "{error}");
    drop(small);
    // The emptied slab has room for this one; after both, nothing is kept that stands in the way of four megabytes.
    let again = pinned(2 << 20).unwrap();
    assert_eq!(fake.live(), before + 2);
    drop((large, again));
    pinned(4 << 20).unwrap();
    assert_eq!(fake.live(), before + 1);
}

/// The test kernel with other texts.
struct Other {
    code: DeviceCode,
    entry: &'static str,
}

impl Work for Other {
    fn id(&self) -> &'static str {
        "other"
    }
    fn code(&self) -> DeviceCode {
        self.code.clone()
    }
    fn entry(&self) -> &'static str {
        self.entry
    }
    fn grid(&self, _: u32) -> LaunchGrid {
        LaunchGrid::line(1, 1, 0)
    }
}

#[test]
fn ptx_that_does_not_compile_comes_back_with_the_log() {
    let error = open(&PLAIN).gpu().load(&Other { code: DeviceCode::Ptx("nonsense"), entry: "x" }).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, DeviceError::KernelLoad { .. }), "{text}");
    assert!(text.contains("CUDA_ERROR_INVALID_PTX") && text.contains("line 1: not PTX"), "{text}");
}

#[test]
fn a_missing_entry_is_named() {
    let fake = Fake::build(&[]);
    let error = open(&fake).gpu().load(&Other { code: Xor.code(), entry: "nowhere" }).unwrap_err();
    assert!(error.to_string().contains("CUDA_ERROR_NOT_FOUND"), "{error}");
    assert!(error.to_string().contains("entry `nowhere`"), "{error}");
    assert_eq!(fake.live(), 0);
}

#[test]
fn devices_of_one_driver_are_peers() {
    let gpus = CudaGpu::open_all(&PLAIN.driver(), limits()).unwrap();
    let [first, second] = gpus.try_into().unwrap_or_else(|_| panic!("two GPUs"));
    let (first, second): (Arc<dyn Gpu>, Arc<dyn Gpu>) = (Arc::new(first), Arc::new(second));
    conformance::peers_exchange_every_byte(&first, &second);
    conformance::peers_exchange_every_byte(&second, &first);
}

#[test]
fn peers_without_access_are_refused_and_everything_else_works() {
    let fake = Fake::build(&["-DNO_PEERS"]);
    let gpus = CudaGpu::open_all(&fake.driver(), limits()).unwrap();
    let mut devices: Vec<_> = gpus.into_iter().map(|gpu| Engines::open(Arc::new(gpu)).unwrap()).collect();
    let (here, there) = (devices[0].device_buffer(64).unwrap(), devices[1].device_buffer(64).unwrap());
    let error = devices[0].copy(EngineClass::Peer, Method::Peer, ends(&here, &there), 1).unwrap_err();
    assert!(error.to_string().contains("the other device cannot be reached directly"), "{error}");
    copies(&mut devices[0], Method::Dma, 1);
    wait_for(&mut devices[0], 1);
}

#[test]
fn memory_of_another_driver_is_refused() {
    let other = Fake::build(&[]);
    let (mut device, stranger) = (open(&PLAIN), open(&other));
    let (host, there) = (stranger.host_buffer(64, HostKind::Pinned).unwrap(), device.device_buffer(64).unwrap());
    let error = device.copy(EngineClass::H2d, Method::Dma, ends(&host, &there), 1).unwrap_err();
    assert!(matches!(error, DeviceError::Invalid { .. }), "{error}");
}

#[test]
fn two_openings_of_one_gpu_share_memory() {
    let (mut first, second) = (open(&PLAIN), open(&PLAIN));
    let (host, there) = (first.host_buffer(64, HostKind::Pinned).unwrap(), second.device_buffer(256).unwrap());
    first.copy(EngineClass::H2d, Method::Dma, ends(&host, &there), 1).unwrap();
    assert_eq!(wait_for(&mut first, 1)[0].result, Ok(()));
}

#[test]
fn nvml_reports_links_and_leaves_out_what_it_does_not_know() {
    let report = Nvml::load(&PLAIN.path).unwrap().report().unwrap();
    assert_eq!(report.driver_version, "0.fake");
    let [first, second] = &report.gpus[..] else { panic!("two GPUs: {report:?}") };
    assert_eq!(first.pci.as_deref(), Some("0000:0a:00.0"));
    assert_eq!(first.pcie_now, Some(PcieLink { generation: 1, width: 16 }));
    assert_eq!(first.nvlinks, [Some("0000:0b:00.0".to_owned()), None], "link 1 is down, link 2 hides its end");
    assert_eq!((second.pcie_now, &second.nvlinks), (None, &vec![]));
    assert_eq!((first.compute_mode, second.compute_mode), (ComputeMode::ExclusiveProcess, ComputeMode::Unknown));
    assert_eq!(second.pcie_max, Some(PcieLink { generation: 5, width: 16 }));
}

#[test]
fn a_gpu_that_does_not_count_what_its_link_carries_says_so() {
    let nvml = Nvml::load(&PLAIN.path).unwrap();
    assert_eq!(
        nvml.pcie_counters("GPU-0").unwrap().since(nvml.pcie_counters("GPU-0").unwrap()),
        PcieTraffic::default()
    );
    for (gpu, code) in [("GPU-1", "(3)"), ("GPU-2", "(6)")] {
        let error = nvml.pcie_counters(gpu).unwrap_err();
        assert!(error.to_string().contains(code), "{gpu}: {error}");
    }
}

#[test]
fn an_nvml_that_is_missing_or_does_not_start_is_unavailable() {
    let error = Nvml::load(Path::new("/nonexistent/libnvidia-ml.so.1")).err().unwrap();
    assert!(error.to_string().contains("install the NVIDIA driver"), "{error}");
    let fake = Fake::build(&["-DNVML_INIT=9"]);
    let error = Nvml::load(&fake.path).err().unwrap();
    assert!(error.to_string().contains("nvmlInit_v2 failed with Driver Not Loaded (9)"), "{error}");
    let fake = Fake::build(&["-DnvmlDeviceGetUUID=gone"]);
    let error = Nvml::load(&fake.path).err().unwrap();
    assert!(error.to_string().contains("nvmlDeviceGetUUID"), "{error}");
}
