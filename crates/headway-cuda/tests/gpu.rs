//! The conformance suite on the first GPU; skipped with the reason where there is none.

use std::io::Write as _;

use std::sync::Arc;

use headway_cuda::{CudaDevice, Driver, Nvml};
use headway_device::conformance::SkipReason;
use headway_device::{Device, Limits};

/// Smaller than the default, as tests run side by side.
fn limits() -> Limits {
    Limits { buffers_max: 64, host_bytes_max: headway_core::units::Bytes(256 << 20), ..Limits::default() }
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

fn open() -> Result<Box<dyn Device>, SkipReason> {
    Ok(Box::new(CudaDevice::open_with(&driver()?, 0, limits())?))
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
        let mut devices = CudaDevice::open_all_of(driver, limits()).expect("every GPU opens");
        for at in 1..devices.len() {
            let (first, rest) = devices.split_at_mut(at);
            headway_device::conformance::peers_exchange_every_byte(&mut first[at - 1], &mut rest[0]);
            headway_device::conformance::peers_exchange_every_byte(&mut rest[0], &mut first[at - 1]);
        }
        Ok(())
    });
}

#[test]
fn the_event_clock_is_mapped_within_a_millisecond() {
    with_driver("the_event_clock_is_mapped_within_a_millisecond", |driver| {
        let error = CudaDevice::open_with(driver, 0, limits()).expect("the first GPU opens").clock_error();
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
