//! Windows on the first GPU; skipped with the reason where there is none, or where a route is not there.
//!
//! Times are printed, not judged; run with `--test-threads 1` for figures that nothing disturbs.

use std::io::Write as _;
use std::sync::Arc;

use headway_core::files::machine::EngineClass;
use headway_core::models::transfer::{Method, WindowMapping};
use headway_core::units::{Bytes, Nanos};
use headway_cuda::window::{self, WindowRoute};
use headway_cuda::{CudaGpu, Driver};
use headway_device::conformance::{SkipReason, wait_for};
use headway_device::gpu::Gpu as _;
use headway_device::{Access, Buffer, DeviceLimits, Engines, HostKind, Span};
use headway_os::clock;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Writes past the test harness, which hides the output of tests that pass.
fn say(text: &str) {
    drop(writeln!(std::io::stderr(), "{text}"));
}

fn limits() -> DeviceLimits {
    DeviceLimits { buffers_max: 64, host_bytes_max: Bytes(256 << 20), ..DeviceLimits::default() }
}

/// The system's driver, unless it is the library of the other tests.
fn driver() -> Result<Arc<Driver>, SkipReason> {
    let driver = Driver::system()?;
    if driver.is_fake() {
        return Err(SkipReason("the driver library is the fake one of the tests".into()));
    }
    if driver.probe()?.devices.is_empty() {
        return Err(SkipReason("the driver reports no GPU".into()));
    }
    Ok(driver)
}

/// Runs `body` with the driver, or prints why not.
fn with_driver(test: &str, body: fn(&Arc<Driver>)) {
    match driver() {
        Ok(driver) => body(&driver),
        Err(SkipReason(reason)) => say(&format!("skipped {test}: {reason}")),
    }
}

/// Runs `body` with a buffer of `bytes` bytes by each route, or prints why the route is not there.
fn by_each_route(test: &str, driver: &Arc<Driver>, bytes: usize, mut body: impl FnMut(WindowRoute, &Buffer)) {
    for route in WindowRoute::ALL {
        match window::buffer(driver, 0, route, bytes) {
            Ok(buffer) => body(route, &buffer),
            Err(reason) => say(&format!("{test}: skipped {route}: {reason}")),
        }
    }
}

/// The other way to the same memory: the copy engines.
struct ByEngine(Engines);

impl ByEngine {
    fn open(driver: &Arc<Driver>) -> Self {
        let gpu = CudaGpu::open(driver, 0, limits()).expect("the first GPU opens");
        Self(Engines::open(Arc::new(gpu)).expect("its engines"))
    }

    fn write(&mut self, buffer: &Buffer, at: usize, from: &[u8]) {
        let host = self.0.host_buffer(from.len(), HostKind::Pinned).expect("pinned memory");
        let mut span = host.claim(0..from.len(), Access::Write).expect("a fresh buffer");
        span.bytes_mut().expect("host memory").copy_from_slice(from);
        drop(span);
        let from = host.claim(0..from.len(), Access::Read).expect("a buffer of our own");
        let to = buffer.claim(at..at + from.len(), Access::Write).expect("nobody else uses it");
        self.run(EngineClass::H2d, (from, to));
    }

    fn read(&mut self, buffer: &Buffer, at: usize, bytes: usize) -> Vec<u8> {
        let host = self.0.host_buffer(bytes, HostKind::Pinned).expect("pinned memory");
        let from = buffer.claim(at..at + bytes, Access::Read).expect("nobody else uses it");
        let to = host.claim(0..bytes, Access::Write).expect("a fresh buffer");
        self.run(EngineClass::D2h, (from, to));
        host.claim(0..bytes, Access::Read).expect("a buffer of our own").bytes().expect("host memory").to_vec()
    }

    fn run(&mut self, engine: EngineClass, ends: (Span, Span)) {
        self.0.copy(engine, Method::Dma, ends, 0).expect("a sound copy");
        wait_for(&mut self.0, 1).remove(0).result.expect("the copy succeeds");
    }
}

fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Pcg64Mcg::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

fn first_difference(left: &[u8], right: &[u8]) -> Option<usize> {
    left.iter().zip(right).position(|(left, right)| left != right)
}

/// n, median, 99th percentile and maximum, in microseconds.
fn summary(mut times: Vec<Nanos>) -> String {
    times.sort_unstable();
    let at = |part: usize| times[(times.len() * part / 100).min(times.len() - 1)].0 as f64 / 1e3;
    format!("n {}, median {:.3} us, p99 {:.3} us, max {:.3} us", times.len(), at(50), at(99), at(100))
}

fn timed(count: usize, mut body: impl FnMut(usize)) -> Vec<Nanos> {
    let run = |round| {
        let start = clock::now();
        body(round);
        clock::now() - start
    };
    (0..count).map(run).collect()
}

#[test]
fn every_route_is_tried_to_its_end() {
    with_driver("every_route_is_tried_to_its_end", |driver| {
        for (route, verdict) in window::routes(driver, 0).expect("the first GPU opens") {
            match verdict {
                Ok(()) => say(&format!("{route}: passes its self-test")),
                Err(reason) => say(&format!("{route}: {reason}")),
            }
        }
        let gpu = CudaGpu::open(driver, 0, limits()).expect("the first GPU opens");
        let first: Vec<_> = gpu.windows();
        say(&format!("by form: {first:?}"));
        assert_eq!(first, gpu.windows(), "a probe is remembered");
    });
}

#[test]
fn every_byte_passes_both_ways_through_every_route() {
    const TEST: &str = "every_byte_passes_both_ways_through_every_route";
    with_driver(TEST, |driver| {
        let bytes = (8 << 20) + 4096;
        let mut engines = ByEngine::open(driver);
        by_each_route(TEST, driver, bytes, |route, buffer| {
            let zeroes = engines.read(buffer, 0, bytes);
            assert_eq!(first_difference(&zeroes, &vec![0; bytes]), None, "{route}: new memory is zeroed");
            for (seed, (at, len)) in (1..).zip([(0, bytes), (1, 1), (63, 130), (4095, 4098), (64, 1 << 20)]) {
                let data = random(seed, len);
                let before = engines.read(buffer, 0, bytes);
                buffer.claim(at..at + len, Access::Write).unwrap().store(0, &data).unwrap();
                let mut expected = before;
                expected[at..at + len].copy_from_slice(&data);
                let seen = engines.read(buffer, 0, bytes);
                assert_eq!(first_difference(&seen, &expected), None, "{route}: {len} bytes stored at {at}");
                let data = random(!seed, len);
                engines.write(buffer, at, &data);
                let mut seen = vec![0; len];
                buffer.claim(at..at + len, Access::Read).unwrap().load(0, &mut seen).unwrap();
                assert_eq!(first_difference(&seen, &data), None, "{route}: {len} bytes loaded from {at}");
            }
            say(&format!("{route}: every byte of {bytes} is right, both ways"));
        });
    });
}

#[test]
fn windows_come_and_go() {
    const TEST: &str = "windows_come_and_go";
    with_driver(TEST, |driver| {
        // More memory in total than the GPU has, if what is dropped were kept.
        let bytes = 1 << 30;
        let mut there = Vec::new();
        by_each_route(TEST, driver, bytes, |route, _| there.push(route));
        for (route, round) in there.into_iter().flat_map(|route| (0..150).map(move |round| (route, round))) {
            let buffer = window::buffer(driver, 0, route, bytes).expect("as before");
            let mut span = buffer.claim(bytes - 64..bytes, Access::Write).unwrap();
            span.store(0, &random(round, 64)).unwrap();
            let mut seen = [0; 64];
            span.load(0, &mut seen).unwrap();
            assert_eq!(seen[..], random(round, 64), "{route}");
        }
    });
}

#[test]
fn stores_and_loads_take() {
    const TEST: &str = "stores_and_loads_take";
    with_driver(TEST, |driver| {
        say(&format!("clock, read twice: {}", summary(timed(10_000, |_| ()))));
        by_each_route(TEST, driver, 4 << 20, |route, buffer| {
            let mut span = buffer.claim(0..buffer.len(), Access::Write).unwrap();
            for (bytes, count) in [(64, 10_000), (1024, 10_000), (4096, 10_000), (16 << 10, 3000), (64 << 10, 1000)]
                .into_iter()
                .chain([(256 << 10, 300), (1 << 20, 100)])
            {
                let data = random(bytes as u64, bytes);
                // Places differ from round to round, as with a ring of buffers.
                let places = (4 << 20) / bytes;
                let times = timed(count, |round| span.store(round % places * bytes, &data).unwrap());
                say(&format!("{route}: store {bytes} B: {}", summary(times)));
            }
            for (bytes, count) in [(64, 10_000), (1024, 3000), (4096, 1000), (16 << 10, 300), (64 << 10, 100)] {
                let (mut seen, places) = (vec![0; bytes], (4 << 20) / bytes);
                let times = timed(count, |round| span.load(round % places * bytes, &mut seen).unwrap());
                say(&format!("{route}: load {bytes} B: {}", summary(times)));
            }
        });
    });
}

#[test]
fn a_running_kernel_answers_a_store() {
    with_driver("a_running_kernel_answers_a_store", |driver| {
        for route in WindowRoute::ALL {
            match window::round_trips(driver, 0, route, 10_000) {
                Ok(times) => {
                    assert_eq!(times.len(), 10_000);
                    say(&format!("{route}: store, kernel, answer: {}", summary(times)));
                }
                Err(error @ headway_device::DeviceError::Unavailable { .. }) => {
                    say(&format!("skipped {route}: {error}"))
                }
                Err(error) => panic!("{route}: {error}"),
            }
        }
    });
}

#[test]
fn a_small_mapping_moves_over_a_large_buffer() {
    const TEST: &str = "a_small_mapping_moves_over_a_large_buffer";
    with_driver(TEST, |driver| {
        let gpu = CudaGpu::open(driver, 0, limits()).expect("the first GPU opens");
        let mut engines = ByEngine::open(driver);
        let bytes = (64 << 20) + 4096;
        by_each_route(TEST, driver, bytes, |route, buffer| {
            let mut pager = match gpu.pager(route.mapping(), buffer) {
                Ok(pager) => pager,
                Err(error) => return say(&format!("{route}: no small mapping: {error}")),
            };
            assert!(gpu.pager(route.mapping(), buffer).is_err(), "{route}: one owner at a time");
            let span = pager.span_bytes();
            let data = random(7, 3 * span);
            pager.store(span - 1000, &data).unwrap();
            let seen = engines.read(buffer, span - 1000, data.len());
            assert_eq!(first_difference(&seen, &data), None, "{route}: stored across places");
            let data = random(8, 2 * span + 5);
            engines.write(buffer, bytes - data.len(), &data);
            let mut seen = vec![0; data.len()];
            pager.load(bytes - data.len(), &mut seen).unwrap();
            assert_eq!(first_difference(&seen, &data), None, "{route}: loaded across places");
            // Without and with a move, for the difference.
            let line = random(9, 64);
            let still = timed(1000, |_| pager.store(0, &line).unwrap());
            say(&format!("{route}: 64 B through the small mapping as it lies: {}", summary(still)));
            let before = pager.moves();
            let moved = timed(1000, |round| pager.store(round % 16 * span, &line).unwrap());
            assert_eq!(pager.moves() - before, 999, "{route}: every access but the first is elsewhere");
            say(&format!("{route}: 64 B stored with a move: {}", summary(moved)));
            pager.always_move(true);
            let before = pager.moves();
            let forced = timed(1000, |_| pager.store(0, &line).unwrap());
            assert_eq!(pager.moves() - before, 1000, "{route}: moved before every access");
            say(&format!("{route}: 64 B stored, moved to the same place: {}", summary(forced)));
        });
    });
}

#[test]
fn a_gpu_gives_memory_with_its_best_window() {
    with_driver("a_gpu_gives_memory_with_its_best_window", |driver| {
        let gpu = CudaGpu::open(driver, 0, limits()).expect("the first GPU opens");
        for mapping in [WindowMapping::Gdrdrv, WindowMapping::Vulkan, WindowMapping::DmaBuf] {
            match gpu.device_buffer(1000, headway_device::gpu::CpuReach::Window(mapping)) {
                Ok(buffer) => {
                    let mut span = buffer.claim(0..1000, Access::Write).unwrap();
                    span.store(1, &[7; 998]).unwrap();
                    let mut seen = [9; 1000];
                    span.load(0, &mut seen).unwrap();
                    assert_eq!((seen[0], seen[1], seen[998], seen[999]), (0, 7, 7, 0), "{mapping:?}");
                    say(&format!("a gpu gives memory with the window {mapping:?}"));
                }
                Err(error) => say(&format!("a gpu gives no memory with the window {mapping:?}: {error}")),
            }
        }
    });
}
