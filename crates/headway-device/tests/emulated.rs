//! The conformance suite on emulated devices.

use headway_core::files::machine::EngineClass;
use headway_core::units::{Bytes, Nanos, Rate};
use headway_device::Limits;
use headway_device::conformance;
use headway_device::emu::{EmuEngine, EmuSpec, Emulated, Service};

headway_device::conformance!(unthrottled, || Ok(Box::new(Emulated::open(EmuSpec::new("emu0"))?)));

/// One copy engine for both directions, no `peer`, small limits, a rate that matters.
fn narrow() -> EmuSpec {
    let service = |class| Service { class, setup: Nanos(1_000), rate: Some(Rate(20_000_000_000)) };
    EmuSpec {
        engines: vec![
            EmuEngine { serves: vec![service(EngineClass::H2d), service(EngineClass::D2h)] },
            EmuEngine { serves: vec![service(EngineClass::Ee)] },
        ],
        memory_bytes: Bytes(64 << 20),
        limits: Limits {
            outstanding_per_engine_max: 4,
            buffers_max: 8,
            host_bytes_max: Bytes(64 << 20),
            ..Limits::default()
        },
        ..EmuSpec::new("narrow")
    }
}

headway_device::conformance!(throttled, || Ok(Box::new(Emulated::open(narrow())?)));

#[test]
fn emulated_devices_are_peers_of_each_other() {
    let open = |name| Emulated::open(EmuSpec::new(name)).expect("threads for an emulated device");
    conformance::peers_exchange_every_byte(&mut open("emu0"), &mut open("emu1"));
}

#[test]
fn an_absent_device_skips_its_tests_and_says_why() {
    let absent = || Err(conformance::SkipReason("there is none here (this line is expected)".into()));
    conformance::run("absent device", &absent, |_, _| panic!("there is no device to test"));
}
