//! Resident copiers on the first GPU: every byte, leases, and what copies take; skipped with the reason where there is none.
//!
//! Figures are printed, not judged: a slow machine is no failure. Where a target is missed the line says so.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use headway_core::files::machine::EngineClass;
use headway_core::models::transfer::{Method, ResidentShape};
use headway_core::units::{Bytes, Nanos};
use headway_cuda::{CudaGpu, CudaResident, Driver};
use headway_device::conformance::SkipReason;
use headway_device::gpu::{Caching, CpuReach, Gpu as _, Resident as _, ResidentOptions};
use headway_device::{Access, Buffer, DeviceError, DeviceLimits, Engines, HostKind};
use headway_os::clock;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

const FORMS: [ResidentShape; 3] = [ResidentShape::Hub, ResidentShape::Gpc, ResidentShape::Gpc4];
const OPTIONS: ResidentOptions =
    ResidentOptions { piece: 65536, lease: Nanos(100_000_000), patience: Nanos(2_000_000_000) };
/// Copies behind each figure.
const TIMES: usize = 10_000;
const TIMES_IN_PIECES: usize = 1_000;

fn limits() -> DeviceLimits {
    DeviceLimits { buffers_max: 64, host_bytes_max: Bytes(1 << 30), ..DeviceLimits::default() }
}

/// Writes past the test harness, which hides the output of tests that pass.
fn say(text: &str) {
    drop(writeln!(std::io::stderr(), "{text}"));
}

/// Runs `body` with the driver and a gpu, or prints why not.
fn with_gpu(test: &str, body: fn(&Arc<Driver>, &CudaGpu)) {
    let open = || -> Result<(Arc<Driver>, CudaGpu), SkipReason> {
        let driver = Driver::system()?;
        if driver.is_fake() {
            return Err(SkipReason("the driver library is the fake one of the tests".into()));
        }
        let gpu = CudaGpu::open(&driver, 0, limits())?;
        Ok((driver, gpu))
    };
    match open() {
        Ok((driver, gpu)) => body(&driver, &gpu),
        Err(SkipReason(reason)) => say(&format!("skipped {test}: {reason}")),
    }
}

/// Runs `body` with a copier of every form that the GPU has; prints why the others are missing.
fn with_forms(gpu: &CudaGpu, options: ResidentOptions, mut body: impl FnMut(ResidentShape, &mut CudaResident)) {
    for shape in FORMS {
        match gpu.start_resident(shape, options) {
            Ok(mut copier) => {
                let mailbox = if copier.has_window() { "device memory, by a window" } else { "pinned host memory" };
                say(&format!("{shape:?}: on multiprocessors {:?}, mailbox in {mailbox}", copier.multiprocessors()));
                body(shape, &mut copier);
            }
            Err(error @ DeviceError::Unavailable { .. }) => say(&format!("skipped {shape:?}: {error}")),
            Err(error) => panic!("{shape:?} does not start: {error}"),
        }
    }
}

fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut data = vec![0; bytes];
    Pcg64Mcg::seed_from_u64(seed).fill_bytes(&mut data);
    data
}

/// Panics with the place of the first difference.
fn assert_same(found: &[u8], wanted: &[u8], what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    let Some(at) = found.iter().zip(wanted).position(|(a, b)| a != b) else { return };
    let wrong = found.iter().zip(wanted).filter(|(a, b)| a != b).count();
    let until = (at + 16).min(found.len());
    panic!(
        "{what}: {wrong} of {} bytes differ, the first at {at}: found {:02x?}, wanted {:02x?}",
        found.len(),
        &found[at..until],
        &wanted[at..until]
    );
}

/// Device memory, and what the driver's own copies say is in it.
struct Checked<'a> {
    gpu: &'a CudaGpu,
    buffer: Buffer,
    content: Vec<u8>,
}

impl<'a> Checked<'a> {
    fn new(gpu: &'a CudaGpu, bytes: usize, seed: u64) -> Self {
        let buffer = gpu.device_buffer(bytes, CpuReach::Device).unwrap();
        let content = noise(bytes, seed);
        gpu.copy_in(&mut buffer.claim(0..bytes, Access::Write).unwrap(), &content).unwrap();
        Self { gpu, buffer, content }
    }

    /// Compares everything: what was copied, and that nothing else changed.
    fn check(&self, what: &str) {
        let mut found = vec![0; self.content.len()];
        let span = self.buffer.claim(0..found.len(), Access::Read).unwrap();
        self.gpu.copy_out(&mut found, &span).unwrap();
        assert_same(&found, &self.content, what);
    }

    fn copy_in(&mut self, copier: &mut CudaResident, at: usize, data: &[u8]) {
        let range = at..at + data.len();
        copier.copy_in(&mut self.buffer.claim(range.clone(), Access::Write).unwrap(), data).unwrap();
        self.content[range].copy_from_slice(data);
    }

    fn check_copy_out(&self, copier: &mut CudaResident, at: usize, bytes: usize, what: &str) {
        let mut found = vec![0xee; bytes + 2];
        let span = self.buffer.claim(at..at + bytes, Access::Read).unwrap();
        copier.copy_out(&mut found[1..=bytes], &span).unwrap();
        assert_same(&found[1..=bytes], &self.content[at..at + bytes], what);
        assert!(found[0] == 0xee && found[bytes + 1] == 0xee, "{what}: a byte outside was written");
    }
}

#[test]
fn every_size_arrives_both_ways() {
    with_gpu("every_size_arrives_both_ways", |_, gpu| {
        for piece in [65536, 256] {
            with_forms(gpu, ResidentOptions { piece, ..OPTIONS }, |shape, copier| {
                let mut there = Checked::new(gpu, (1 << 20) + 4096, 1);
                let data = noise((1 << 20) + 4096, 2);
                let sizes = (0..=4097).filter(|bytes| bytes % 2 == 1 || *bytes < 130);
                for (round, bytes) in sizes.chain([8191, 8192, 8193, 65536, 262_144, (1 << 20) + 3]).enumerate() {
                    let at = 1 + round * 37 % 900;
                    let what = format!("{shape:?}, pieces of {piece}, {bytes} bytes at {at}");
                    there.copy_in(copier, at, &data[round..round + bytes]);
                    there.check_copy_out(copier, at, bytes, &what);
                    if round % 16 == 0 || bytes > 4096 {
                        there.check(&what);
                    }
                }
                there.check("after all sizes");
            });
        }
    });
}

#[test]
fn every_alignment_of_pinned_memory_arrives_both_ways() {
    with_gpu("every_alignment_of_pinned_memory_arrives_both_ways", |_, gpu| {
        with_forms(gpu, OPTIONS, |shape, copier| {
            let mut there = Checked::new(gpu, 8192, 3);
            let host = gpu.pinned_buffer(16384, Caching::Cached).unwrap();
            for (index, bytes) in [1, 3, 15, 16, 17, 255, 1000, 4097].into_iter().enumerate() {
                for place in 0..256 {
                    let (here_at, there_at) = (place % 16, 64 + place / 16);
                    let what = format!("{shape:?}, {bytes} bytes, host at {here_at}, device at {there_at}");
                    let data = noise(bytes, (index * 256 + place) as u64);
                    let range = here_at..here_at + bytes;
                    host.claim(range.clone(), Access::Write).unwrap().bytes_mut().unwrap().copy_from_slice(&data);
                    let mut span = there.buffer.claim(there_at..there_at + bytes, Access::Write).unwrap();
                    copier.copy(&host.claim(range, Access::Read).unwrap(), &mut span).expect(&what);
                    drop(span);
                    there.content[there_at..there_at + bytes].copy_from_slice(&data);
                    if place % 16 == 0 {
                        there.check(&what);
                    }
                    // Back to another place, between bytes that must stay.
                    let around = 8192..8192 + bytes + 32;
                    host.claim(around.clone(), Access::Write).unwrap().bytes_mut().unwrap().fill(0xee);
                    let mut span = host.claim(8192 + here_at..8192 + here_at + bytes, Access::Write).unwrap();
                    copier
                        .copy(&there.buffer.claim(there_at..there_at + bytes, Access::Read).unwrap(), &mut span)
                        .expect(&what);
                    drop(span);
                    let mut wanted = vec![0xee; bytes + 32];
                    wanted[here_at..here_at + bytes].copy_from_slice(&data);
                    assert_same(host.claim(around, Access::Read).unwrap().bytes().unwrap(), &wanted, &what);
                }
            }
            there.check("after all alignments");
        });
    });
}

#[test]
fn leases_end_and_copies_start_it_again() {
    with_gpu("leases_end_and_copies_start_it_again", |_, gpu| {
        with_forms(gpu, ResidentOptions { lease: Nanos(1_000_000), ..OPTIONS }, |shape, copier| {
            let mut there = Checked::new(gpu, 8192, 5);
            let mut restarts = Vec::new();
            for round in 0..20 {
                clock::sleep_until(clock::now().saturating_add(Nanos(10_000_000)));
                let begin = clock::now();
                there.copy_in(copier, round, &noise(4096, round as u64));
                restarts.push(clock::now().saturating_sub(begin).0);
            }
            there.check("after leases");
            restarts.sort_unstable();
            say(&format!("{shape:?}: a copy that starts it again takes {} us (median of 20)", micros(restarts[10])));
            assert!(copier.launches() >= 15, "{} launches: leases do not end", copier.launches());
        });
        // Leases that end at any moment between and during copies.
        with_forms(gpu, ResidentOptions { lease: Nanos(0), ..OPTIONS }, |shape, copier| {
            let mut there = Checked::new(gpu, 8192, 6);
            for round in 0..5_000 {
                let at = round % 100;
                there.copy_in(copier, at, &noise(64 + round % 1000, round as u64));
                there.check_copy_out(copier, at, 64 + round % 1000, "with leases of no length");
                for _ in 0..round % 400 {
                    std::hint::spin_loop();
                }
            }
            there.check("with leases of no length");
            say(&format!("{shape:?}: {} launches in 10000 copies with a lease of 0", copier.launches()));
        });
    });
}

#[test]
fn frees_wait_for_the_lease_unless_it_is_parked() {
    with_gpu("frees_wait_for_the_lease_unless_it_is_parked", |_, gpu| {
        with_forms(gpu, ResidentOptions { lease: Nanos(300_000_000), ..OPTIONS }, |shape, copier| {
            let mut took = Vec::new();
            for parks in [false, true] {
                let spare = gpu.device_buffer(1 << 20, CpuReach::Device).unwrap();
                let buffer = gpu.device_buffer(64, CpuReach::Device).unwrap();
                copier.copy_in(&mut buffer.claim(0..64, Access::Write).unwrap(), &[1; 64]).unwrap();
                let begin = clock::now();
                if parks {
                    copier.park().unwrap();
                }
                let parked = clock::now();
                drop(spare);
                took.push((parked.saturating_sub(begin).0, clock::now().saturating_sub(parked).0));
            }
            say(&format!(
                "{shape:?}: a free takes {} us while it stays (lease 300 ms); parking takes {} us, a free then {} us",
                micros(took[0].1),
                micros(took[1].0),
                micros(took[1].1)
            ));
        });
    });
}

#[test]
fn frees_get_through_a_steady_stream_of_copies() {
    const LEASE: Nanos = Nanos(50_000_000);
    const FOREVER: Nanos = Nanos(20_000_000_000);
    with_gpu("frees_get_through_a_steady_stream_of_copies", |_, gpu| {
        with_forms(gpu, ResidentOptions { lease: LEASE, ..OPTIONS }, |shape, copier| {
            let buffer = gpu.device_buffer(8192, CpuReach::Device).unwrap();
            let mut took = Vec::new();
            for round in 0..10u64 {
                let (spare, freed) = (gpu.device_buffer(1 << 20, CpuReach::Device).unwrap(), AtomicBool::new(false));
                let (began, launches) = (clock::now(), copier.launches());
                let free = std::thread::scope(|threads| {
                    let free = threads.spawn(|| {
                        drop(spare);
                        freed.store(true, Ordering::Release);
                        clock::now().saturating_sub(began)
                    });
                    let mut copies = 0u64;
                    while !freed.load(Ordering::Acquire) {
                        let data = noise(64, copies ^ round << 32);
                        copier.copy_in(&mut buffer.claim(1..65, Access::Write).unwrap(), &data).unwrap();
                        let mut back = [0; 64];
                        copier.copy_out(&mut back, &buffer.claim(1..65, Access::Read).unwrap()).unwrap();
                        assert!(back[..] == data[..], "copy {copies} arrived differently");
                        copies += 1;
                        let waited = clock::now().saturating_sub(began);
                        assert!(waited < FOREVER, "{shape:?}: a free waits behind {copies} copies");
                    }
                    free.join().unwrap()
                });
                took.push((free.0, copier.launches() - launches));
            }
            took.sort_unstable();
            let (median, longest) = (took[5], took[9]);
            say(&format!(
                "{shape:?}: beside a steady stream of copies a free takes {} us (median of 10), {} us at most, with a lease of {LEASE}",
                micros(median.0),
                micros(longest.0)
            ));
        });
    });
}

fn micros(nanos: u64) -> String {
    format!("{}.{:02}", nanos / 1000, nanos % 1000 / 10)
}

/// What the GPU carries meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bulk {
    Nothing,
    Same,
}

/// Ends the bulk copies on every way out, so that a failed check does not wait for them for ever.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Runs `body` while a thread keeps two copies of 64 MiB under way in the direction `class`; returns the bulk rate in GB/s.
fn under_bulk(driver: &Arc<Driver>, class: EngineClass, body: impl FnOnce()) -> f64 {
    const BYTES: usize = 64 << 20;
    let (going, stop, copied) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    let mut rate = 0.0;
    std::thread::scope(|threads| {
        let _stop = Stop(&stop);
        let bulk = threads.spawn(|| {
            let gpu = CudaGpu::open(driver, 0, limits()).unwrap();
            let mut device = Engines::open(Arc::new(gpu)).unwrap();
            let host = device.host_buffer(2 * BYTES, HostKind::Pinned).unwrap();
            let there = device.device_buffer(2 * BYTES).unwrap();
            let mut done = Vec::new();
            let submit = |device: &mut Engines, tag: u64| {
                let range = tag as usize * BYTES..(tag as usize + 1) * BYTES;
                let (from, to) = if class == EngineClass::D2h { (&there, &host) } else { (&host, &there) };
                let (from, to) = (from.claim(range.clone(), Access::Read), to.claim(range, Access::Write));
                device.copy(class, Method::Dma, (from.unwrap(), to.unwrap()), tag).unwrap();
            };
            submit(&mut device, 0);
            submit(&mut device, 1);
            going.store(true, Ordering::Release);
            while !stop.load(Ordering::Acquire) {
                device.poll(&mut done);
                for completion in done.drain(..) {
                    completion.result.unwrap();
                    copied.fetch_add(BYTES as u64, Ordering::Relaxed);
                    submit(&mut device, completion.tag);
                }
                std::thread::yield_now();
            }
        });
        while !going.load(Ordering::Acquire) {
            assert!(!bulk.is_finished(), "the bulk copies do not start");
            std::thread::yield_now();
        }
        let begin = (clock::now(), copied.load(Ordering::Relaxed));
        body();
        let spent = clock::now().saturating_sub(begin.0).0.max(1);
        rate = (copied.load(Ordering::Relaxed) - begin.1) as f64 / spent as f64;
        assert!(!bulk.is_finished(), "the bulk copies ended before they were told to");
    });
    rate
}

/// Median, 99th percentile and maximum.
fn summary(mut nanos: Vec<u64>) -> (u64, u64, u64) {
    nanos.sort_unstable();
    (nanos[nanos.len() / 2], nanos[nanos.len() * 99 / 100], nanos[nanos.len() - 1])
}

/// Times of `times` copies of `bytes` bytes, each of which is checked.
fn timed(copier: &mut CudaResident, there: &mut Checked<'_>, out: bool, bytes: usize, times: usize) -> Vec<u64> {
    let mut data = noise(bytes, 9);
    let mut nanos = Vec::with_capacity(times);
    let span = |access| there.buffer.claim(0..bytes, access).unwrap();
    for round in 0..times + 100 {
        let begin;
        if out {
            let from = span(Access::Read);
            data[0] = !there.content[0];
            data[bytes - 1] = !there.content[bytes - 1];
            begin = clock::now();
            copier.copy_out(&mut data, &from).unwrap();
        } else {
            data[round % bytes] = round as u8;
            let mut to = span(Access::Write);
            begin = clock::now();
            copier.copy_in(&mut to, &data).unwrap();
        }
        let took = clock::now().saturating_sub(begin).0;
        if round >= 100 {
            nanos.push(took);
        }
        if out {
            assert_same(&data, &there.content[..bytes], "a timed copy");
        }
    }
    if !out {
        there.content[..bytes].copy_from_slice(&data);
    }
    nanos
}

fn say_head(what: &str) {
    say(&format!("\n{what}"));
    say("| form | direction | bytes | alone: median | p99 | max | under bulk: median | p99 | max | bulk GB/s |");
    say("|---|---|---|---|---|---|---|---|---|---|");
}

fn say_row(shape: ResidentShape, out: bool, bytes: usize, alone: (u64, u64, u64), loaded: (u64, u64, u64), rate: f64) {
    let (form, direction) = (format!("{shape:?}").to_lowercase(), if out { "D2H" } else { "H2D" });
    let [a, b, c, d, e, f] = [alone.0, alone.1, alone.2, loaded.0, loaded.1, loaded.2].map(micros);
    say(&format!("| {form} | {direction} | {bytes} | {a} | {b} | {c} | {d} | {e} | {f} | {rate:.1} |"));
    if shape == ResidentShape::Hub && out && bytes == 4096 {
        for (name, found, wanted) in [
            ("median alone", alone.0, 3_500),
            ("median under bulk", loaded.0, 5_000),
            ("max under bulk", loaded.2, 20_000),
        ] {
            if found > wanted {
                say(&format!("TARGET MISSED: 4 KiB D2H {name} {} us, wanted {} us", micros(found), micros(wanted)));
            }
        }
    }
}

#[test]
fn what_small_copies_take() {
    with_gpu("what_small_copies_take", |driver, gpu| {
        for (piece, times) in [(65536, TIMES), (256, TIMES_IN_PIECES)] {
            say_head(&format!(
                "Resident copies of ordinary memory, us, n = {times}, pieces of {piece} bytes, bytes checked outside the time"
            ));
            with_forms(gpu, ResidentOptions { piece, ..OPTIONS }, |shape, copier| {
                let mut there = Checked::new(gpu, 65536, 7);
                for out in [false, true] {
                    let class = if out { EngineClass::D2h } else { EngineClass::H2d };
                    for bytes in [64, 1024, 4096, 65536] {
                        let mut found = [(0, 0, 0); 2];
                        let mut rate = 0.0;
                        for (at, bulk) in [Bulk::Nothing, Bulk::Same].into_iter().enumerate() {
                            let mut nanos = Vec::new();
                            let mut run = || nanos = timed(copier, &mut there, out, bytes, times);
                            match bulk {
                                Bulk::Nothing => run(),
                                Bulk::Same => rate = under_bulk(driver, class, run),
                            }
                            found[at] = summary(nanos);
                        }
                        say_row(shape, out, bytes, found[0], found[1], rate);
                    }
                }
                there.check("after timed copies");
                copier.park().unwrap();
            });
        }
    });
}

#[test]
fn what_large_copies_reach() {
    with_gpu("what_large_copies_reach", |_, gpu| {
        const BYTES: usize = 64 << 20;
        let host = gpu.pinned_buffer(BYTES, Caching::Cached).unwrap();
        for piece in [16384, 65536, 262_144, 1 << 20] {
            with_forms(gpu, ResidentOptions { piece, ..OPTIONS }, |shape, copier| {
                let mut there = Checked::new(gpu, BYTES, 8);
                let mut rates = [0.0; 2];
                let data = noise(BYTES, 11);
                host.claim(0..BYTES, Access::Write).unwrap().bytes_mut().unwrap().copy_from_slice(&data);
                for (index, rate) in rates.iter_mut().enumerate() {
                    let access = if index == 0 { (Access::Read, Access::Write) } else { (Access::Write, Access::Read) };
                    let mut here = host.claim(0..BYTES, access.0).unwrap();
                    let mut device = there.buffer.claim(0..BYTES, access.1).unwrap();
                    let (from, to) = if index == 0 { (&here, &mut device) } else { (&device, &mut here) };
                    let mut best = u64::MAX;
                    for _ in 0..3 {
                        let begin = clock::now();
                        copier.copy(from, to).unwrap();
                        best = best.min(clock::now().saturating_sub(begin).0);
                    }
                    *rate = BYTES as f64 / best as f64;
                }
                there.content.copy_from_slice(&data);
                there.check("a large copy in");
                assert_same(host.claim(0..BYTES, Access::Read).unwrap().bytes().unwrap(), &data, "a large copy out");
                let [h2d, d2h] = rates;
                say(&format!(
                    "{shape:?}, pieces of {piece}: 64 MiB pinned, best of 3: H2D {h2d:.1}, D2H {d2h:.1} GB/s"
                ));
            });
        }
    });
}
