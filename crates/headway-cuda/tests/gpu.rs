//! The conformance suite on the first GPU; skipped with the reason where there is none.

use std::io::Write as _;

use std::sync::Arc;

use headway_core::units::Bytes;
use headway_cuda::{CudaGpu, Driver, Nvml};
use headway_device::conformance::SkipReason;
use headway_device::conformance::{self, finish};
use headway_device::gpu::{Caching, CpuReach, Gpu, Operation};
use headway_device::{Access, DeviceLimits};

/// Smaller than the default, as tests run side by side.
fn limits() -> DeviceLimits {
    DeviceLimits { buffers_max: 64, host_bytes_max: Bytes(256 << 20), ..DeviceLimits::default() }
}

/// The system's driver, unless it is the library of the other tests.
fn driver() -> Result<Arc<Driver>, SkipReason> {
    let driver = Driver::system()?;
    if driver.is_fake() {
        Err(SkipReason("the driver library is the fake one of the tests".into()))
    } else {
        Ok(driver)
    }
}

fn open() -> Result<Arc<dyn Gpu>, SkipReason> {
    Ok(Arc::new(CudaGpu::open(&driver()?, 0, DeviceLimits { host_bytes_max: Bytes(512 << 20), ..limits() })?))
}

headway_device::conformance!(gpu, open);

/// Writes past the test harness, which hides the output of tests that pass.
fn say(text: &str) {
    drop(writeln!(std::io::stderr(), "{text}"));
}

/// Runs `body` with the driver, or prints why not.
fn with_driver(test: &str, body: fn(&Arc<Driver>) -> Result<(), SkipReason>) {
    if let Err(SkipReason(reason)) = driver().and_then(|driver| body(&driver)) {
        say(&format!("skipped {test}: {reason}"));
    }
}

#[test]
fn all_pairs_of_neighbours_exchange_every_byte() {
    with_driver("all_pairs_of_neighbours_exchange_every_byte", |driver| {
        let gpus = CudaGpu::open_all(driver, limits()).expect("every GPU opens");
        let gpus: Vec<Arc<dyn Gpu>> = gpus.into_iter().map(|gpu| Arc::new(gpu) as Arc<dyn Gpu>).collect();
        for pair in gpus.windows(2) {
            conformance::peers_exchange_every_byte(&pair[0], &pair[1]);
            conformance::peers_exchange_every_byte(&pair[1], &pair[0]);
        }
        Ok(())
    });
}

#[test]
fn queues_of_neighbours_exchange_every_byte() {
    with_driver("queues_of_neighbours_exchange_every_byte", |driver| {
        let gpus = CudaGpu::open_all(driver, limits())?;
        if gpus.len() < 2 {
            return Err(SkipReason("there is one GPU".into()));
        }
        for pair in gpus.windows(2) {
            if pair[0].reaches(pair[1].id()) {
                conformance::gpus_exchange_every_byte(&pair[0], &pair[1]);
            } else {
                say("not tested: two GPUs do not reach each other");
            }
        }
        Ok(())
    });
}

/// The driver may return when the bytes are staged; a queue does not wait for the default stream, in which they still move.
#[test]
fn ordinary_memory_has_arrived_when_the_copy_returns() {
    const BYTES: usize = 32 << 20;
    with_driver("ordinary_memory_has_arrived_when_the_copy_returns", |driver| {
        let gpu = CudaGpu::open(driver, 0, limits())?;
        let mut queue = gpu.queue(false)?;
        let (there, host) = (gpu.device_buffer(BYTES, CpuReach::Device)?, gpu.pinned_buffer(64, Caching::Cached)?);
        // Small copies travel with the command, larger ones through the driver's buffers.
        for (round, len) in (0..200u8).zip([64, 4096, 60_000, 1 << 20, BYTES].into_iter().cycle()) {
            gpu.copy_in(&mut there.claim(0..len, Access::Write)?, &vec![round + 1; len])?;
            let (from, to) = (there.claim(len - 64..len, Access::Read)?, host.claim(0..64, Access::Write)?);
            queue.submit(Operation::Copy { from, to }, 0)?;
            assert_eq!(finish(queue.as_mut(), 1)[0].result, Ok(()));
            assert_eq!(host.claim(0..64, Access::Read)?.bytes()?, [round + 1; 64], "the last bytes of {len}");
        }
        Ok(())
    });
}

#[test]
fn the_event_clock_is_mapped_within_a_millisecond() {
    with_driver("the_event_clock_is_mapped_within_a_millisecond", |driver| {
        let gpu = CudaGpu::open(driver, 0, limits()).expect("the first GPU opens");
        let _queue = gpu.queue(true)?;
        let error = gpu.clock_error().expect("a queue keeps time");
        say(&format!("clock error at most {error}"));
        assert!(error.0 < 1_000_000, "{error}");
        Ok(())
    });
}

#[test]
fn driver_and_nvml_describe_the_same_gpus() {
    with_driver("driver_and_nvml_describe_the_same_gpus", |driver| {
        let probe = driver.probe().expect("the driver answers");
        let report = Nvml::system().and_then(|nvml| nvml.report())?;
        say(&format!("{probe:#?}\n{report:#?}"));
        for device in &probe.devices {
            let other = report.gpus.iter().find(|gpu| gpu.uuid == device.uuid).expect("a GPU with this UUID in NVML");
            assert_eq!((&other.name, &other.pci), (&device.name, &device.pci));
        }
        Ok(())
    });
}
