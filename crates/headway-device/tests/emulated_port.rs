//! The conformance suite on emulated gpus.

use std::sync::Arc;

use headway_core::models::transfer::{Mapping, Shape};
use headway_core::units::{Bytes, Nanos, Rate};
use headway_device::Limits;
use headway_device::emu_port::{EmuGpu, EmuPortSpec, Pace};
use headway_device::port_conformance;

headway_device::port_conformance!(unthrottled, || Ok(Arc::new(EmuGpu::open(EmuPortSpec::new("emu0")))));

/// One engine for both directions, one window form, small limits, paces that matter.
fn narrow() -> EmuPortSpec {
    let pace = |setup, rate| Pace { setup: Nanos(setup), rate: Some(Rate(rate)) };
    EmuPortSpec {
        h2d: pace(1_000, 20_000_000_000),
        d2h: pace(1_000, 10_000_000_000),
        peer: pace(1_000, 40_000_000_000),
        half_duplex: true,
        piece: pace(100, 10_000_000_000),
        load_line: Nanos(10),
        windows: vec![Mapping::Gdrdrv],
        residents: vec![Shape::Gpc4],
        memory_bytes: Bytes(64 << 20),
        limits: Limits {
            outstanding_per_engine_max: 4,
            buffers_max: 16,
            host_bytes_max: Bytes(64 << 20),
            ..Limits::default()
        },
        ..EmuPortSpec::new("narrow")
    }
}

headway_device::port_conformance!(throttled, || Ok(Arc::new(EmuGpu::open(narrow()))));

#[test]
fn emulated_ports_exchange_bytes() {
    let (first, second) = (EmuGpu::open(EmuPortSpec::new("emu0")), EmuGpu::open(EmuPortSpec::new("emu1")));
    port_conformance::ports_exchange_every_byte(&first, &second);
}

#[test]
fn an_absent_port_skips_its_tests_and_says_why() {
    let absent = || Err(headway_device::conformance::SkipReason("there is none here (this line is expected)".into()));
    port_conformance::run("absent gpu", &absent, |_| panic!("there is no gpu to test"));
}
