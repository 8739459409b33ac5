//! The conformance suite on emulated GPUs.

use std::sync::Arc;

use headway_core::files::machine::{EngineClass, shipped};
use headway_core::models::transfer::{ResidentShape, WindowMapping};
use headway_core::units::{Bytes, Nanos, Rate};
use headway_device::emu::{EmuGpu, EmuSpec, OperationPace};
use headway_device::{DeviceLimits, Gpu, conformance};

headway_device::conformance!(unthrottled, || Ok(Arc::new(EmuGpu::open(EmuSpec::new("emu0")))));

/// One engine for both directions, none for `peer`, one window form, small limits, paces that matter.
fn narrow() -> EmuSpec {
    let pace = |setup, rate| OperationPace { setup: Nanos(setup), rate: Some(Rate(rate)) };
    EmuSpec {
        engines: vec![EngineClass::H2d, EngineClass::D2h, EngineClass::Ee],
        h2d: pace(1_000, 20_000_000_000),
        d2h: pace(1_000, 10_000_000_000),
        peer: pace(1_000, 40_000_000_000),
        launch: pace(1_000, 1),
        half_duplex: true,
        piece: pace(100, 10_000_000_000),
        load_line: Nanos(10),
        windows: vec![WindowMapping::Gdrdrv],
        residents: vec![ResidentShape::Gpc4],
        memory_bytes: Bytes(64 << 20),
        limits: DeviceLimits {
            outstanding_per_engine_max: 4,
            buffers_max: 16,
            host_bytes_max: Bytes(64 << 20),
            ..DeviceLimits::default()
        },
        ..EmuSpec::new("narrow")
    }
}

headway_device::conformance!(throttled, || Ok(Arc::new(EmuGpu::open(narrow()))));

#[test]
fn the_gpus_of_a_machine_have_names_of_their_own_on_the_board() {
    let machine = shipped("h200-x4").unwrap();
    let name = |gpu| EmuGpu::open(EmuSpec::of_machine(&machine, gpu)).description().board_gpu();
    let names: Vec<_> = machine.gpus().map(name).collect();
    let known = [0, 1, 2, 3].map(|gpu| headway_os::board::board_gpu(None, &format!("emu:gpu{gpu}")));
    assert_eq!(names, known);
}

#[test]
fn emulated_gpus_exchange_bytes() {
    let open = |name| EmuGpu::open(EmuSpec::new(name));
    let (first, second) = (open("emu0"), open("emu1"));
    conformance::gpus_exchange_every_byte(&first, &second);
    let [first, second] = [first, second].map(|gpu| Arc::new(gpu) as Arc<dyn Gpu>);
    conformance::peers_exchange_every_byte(&first, &second);
}

#[test]
fn an_absent_gpu_skips_its_tests_and_says_why() {
    let absent = || Err(conformance::SkipReason("there is none here (this line is expected)".into()));
    conformance::run("absent GPU", &absent, |_| panic!("there is no GPU to test"));
}
