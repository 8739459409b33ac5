//! `staged`, `multipath` and chunked `dma` on emulated GPUs: sizes, edges and faults, every byte compared.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use super::faulty::{FaultyGpu, GpuFaults};
use headway_core::decisions::staging::{StagingDirection, SubmitOrder};
use headway_core::models::transfer::{Stores, Tuning};
use headway_core::units::{Bytes, Nanos};
use headway_device::emu::{EmuGpu, EmuSpec, OperationPace};
use headway_device::gpu::{Caching, CpuReach, Gpu};
use headway_device::{Access, Buffer, DeviceError};
use headway_runtime::copy::At;
use headway_runtime::staging::{
    PoolOptions, Staged, StagingError, StagingMoved, StagingPool, copy_in, copy_out, copy_pinned,
};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

const SECOND: u64 = 1_000_000_000;
const GUARD: usize = 100;

fn options(threads: u32) -> PoolOptions {
    PoolOptions {
        threads_max: threads,
        oversubscribe: true,
        pinned_max: Bytes(32 << 20),
        patience: Nanos(60 * SECOND),
        ..PoolOptions::default()
    }
}

const fn tuning(threads: u32, buffer: u64) -> Tuning {
    Tuning { threads, buffer: Bytes(buffer), stores: Stores::Plain, in_flight: 2 }
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Pcg64Mcg::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// A GPU with faults, and its pool, ready.
struct Fixture {
    gpu: Arc<FaultyGpu>,
    pool: StagingPool,
}

impl Fixture {
    /// The engine stands still for the next copy, so that another link, if there is one, gets chunks.
    fn stall(&self) {
        let delay = [(self.gpu.submitted(), Nanos(SECOND / 5))].into();
        self.gpu.set(GpuFaults { delay, ..GpuFaults::default() });
    }

    fn new(threads: u32) -> Self {
        Self::of(EmuSpec::new("emu0"), options(threads))
    }

    fn of(spec: EmuSpec, options: PoolOptions) -> Self {
        let gpu = Arc::new(FaultyGpu::new(Arc::new(EmuGpu::open(spec)), GpuFaults::default()));
        let pool = StagingPool::new(gpu.clone(), options);
        // Longer than the patience of some pools here.
        while let Err(error) = pool.prepare(Bytes(1), None) {
            assert!(matches!(error, StagingError::NotReady { .. }), "{error}");
        }
        Self { gpu, pool }
    }

    /// Device memory with `content`, written by the driver's own copy.
    fn there(&self, content: &[u8]) -> Buffer {
        let buffer = self.gpu.device_buffer(content.len().max(1), CpuReach::Device).unwrap();
        self.write(&buffer, content);
        buffer
    }

    fn write(&self, buffer: &Buffer, content: &[u8]) {
        let mut span = buffer.claim(0..content.len(), Access::Write).unwrap();
        self.gpu.copy_in(&mut span, content).unwrap();
    }

    /// What device memory holds, read by the driver's own copy.
    fn read(&self, buffer: &Buffer) -> Vec<u8> {
        let mut content = vec![0; buffer.len()];
        let span = buffer.claim(0..buffer.len(), Access::Read).unwrap();
        self.gpu.copy_out(&mut content, &span).unwrap();
        content
    }

    fn pinned(&self, content: &[u8]) -> Buffer {
        let buffer = self.gpu.pinned_buffer(content.len(), Caching::Cached).unwrap();
        buffer.claim(0..content.len(), Access::Write).unwrap().bytes_mut().unwrap().copy_from_slice(content);
        buffer
    }

    /// Copies `len` bytes in and out by `how`, from and to host memory at `host` and device memory at `device` behind guard
    /// bytes, and compares everything.
    fn check(
        &self,
        links: &[&StagingPool],
        len: usize,
        host: usize,
        device: usize,
        how: &Staged<'_>,
    ) -> [StagingMoved; 2] {
        let seed = (len * 64 + host * 4 + device) as u64;
        let (data, before) = (noise(len, seed), noise(len + 2 * GUARD, seed + 1));
        let (mut memory, offset) = aligned(len, host);
        memory[offset..offset + len].copy_from_slice(&data);
        let there = self.there(&before);
        let at = At { buffer: &there, offset: GUARD + device - device % 4 };
        let moved_in = copy_in(links, at, &memory[offset..offset + len], how).unwrap();
        let mut expected = before.clone();
        expected[at.offset..at.offset + len].copy_from_slice(&data);
        assert!(self.read(&there) == expected, "in: {len} bytes at {host}, {device}: {how:?}");

        memory.fill(0xA5);
        let moved_out = copy_out(links, &mut memory[offset..offset + len], at, how).unwrap();
        assert!(memory[offset..offset + len] == data, "out: {len} bytes at {host}, {device}: {how:?}");
        let guards = memory[..offset].iter().chain(&memory[offset + len..]);
        assert!(guards.into_iter().all(|byte| *byte == 0xA5), "out: a byte beside the destination was written");
        [moved_in, moved_out]
    }

    /// The pool is as it was: it does the largest copy that its memory allows.
    fn still_works(&self) {
        self.gpu.set(GpuFaults::default());
        let threads = self.pool.threads() as u32;
        let tuning = tuning(threads, 1 << 20);
        let [moved, _] = self.check(&[&self.pool], 3 << 20, 0, 0, &Staged { ramp: false, ..Staged::new(tuning) });
        assert_eq!((moved.chunks, moved.threads, moved.buffer), (3, threads, Bytes(1 << 20)));
    }
}

/// Memory with `len` bytes at the given offset from a multiple of 64, and guards around.
fn aligned(len: usize, phase: usize) -> (Vec<u8>, usize) {
    let memory = vec![0u8; len + 2 * GUARD + 64];
    let base = memory.as_ptr() as usize + GUARD;
    let offset = GUARD + (base.wrapping_neg() % 64) + phase;
    (memory, offset.min(GUARD + 64))
}

fn sizes(buffer: usize, threads: usize) -> Vec<usize> {
    let all = 2 * threads * buffer;
    vec![0, 1, 3, 63, 64, 65, 4095, 4096, 4097, buffer - 1, buffer, buffer + 1, all - 1, all, all + 1]
}

#[test]
fn every_size_and_alignment_arrives_and_nothing_beside_it_changes() {
    let fixture = Fixture::new(3);
    let buffer = 16 << 10;
    for len in sizes(buffer, 3) {
        for host in [0, 1, 7, 63] {
            for device in [0, 3] {
                let how = Staged::new(tuning(3, buffer as u64));
                let [moved_in, moved_out] = fixture.check(&[&fixture.pool], len, host, device, &how);
                assert!(moved_in.threads <= 3 && (moved_in.threads == 0) == (len == 0));
                assert!(moved_out.chunks >= (len as u64).div_ceil(buffer as u64));
            }
        }
    }
}

#[test]
fn both_orders_both_stores_with_and_without_a_ramp_move_the_same_bytes() {
    let fixture = Fixture::new(4);
    for order in [SubmitOrder::Arrival, SubmitOrder::Index] {
        for stores in [Stores::Plain, Stores::NonTemporal, Stores::Demoted] {
            for ramp in [false, true] {
                for in_flight in [0, 1, 2, 9] {
                    let tuning = Tuning { stores, in_flight, ..tuning(2, 2 << 20) };
                    let how = Staged { order, ramp, populate: true, ..Staged::new(tuning) };
                    let [moved, _] = fixture.check(&[&fixture.pool], (5 << 20) + 77, 7, 3, &how);
                    // 512 KiB, then whole mebibytes: for two buffers of the largest size there is too little.
                    assert_eq!(moved.chunks, if ramp { 1 + 5 } else { 3 }, "{how:?}");
                }
            }
        }
    }
}

#[test]
fn a_hundred_mebibytes_and_seven_bytes_arrive() {
    let fixture = Fixture::new(4);
    let how = Staged::new(tuning(4, 2 << 20));
    let [moved_in, moved_out] = fixture.check(&[&fixture.pool], (100 << 20) + 7, 1, 3, &how);
    assert!(moved_in.chunks > 50 && moved_out.chunks > 50);
    assert!(moved_in.cpu > Nanos(0) && moved_out.cpu > Nanos(0));
}

#[test]
fn no_bytes_take_no_thread_no_device_and_no_pool() {
    let gpu = Arc::new(FaultyGpu::new(Arc::new(EmuGpu::open(EmuSpec::new("emu0"))), GpuFaults::default()));
    let pool = StagingPool::new(gpu.clone(), options(2));
    let there = gpu.device_buffer(1, CpuReach::Device).unwrap();
    let how = Staged::new(tuning(2, 4096));
    let at = At { buffer: &there, offset: 1 };
    assert_eq!(copy_in(&[&pool], at, &[], &how).unwrap(), StagingMoved::default());
    assert_eq!(copy_out(&[&pool], &mut [], at, &how).unwrap(), StagingMoved::default());
    assert_eq!((gpu.submitted(), pool.threads()), (0, 0));
}

#[test]
fn a_pool_that_is_not_ready_says_so_and_gets_ready() {
    let gpu = Arc::new(EmuGpu::open(EmuSpec::new("emu0")));
    let pool = StagingPool::new(gpu.clone(), options(2));
    let there = gpu.device_buffer(10, CpuReach::Device).unwrap();
    let how = Staged::new(tuning(2, 4096));
    let at = At { buffer: &there, offset: 0 };
    let error = copy_in(&[&pool], at, &[1; 10], &how).unwrap_err();
    assert!(matches!(error, StagingError::NotReady { .. }), "{error}");
    pool.prepare(Bytes(4096), None).unwrap();
    assert_eq!(pool.threads(), 2);
    copy_in(&[&pool], at, &[1; 10], &how).unwrap();
}

#[test]
fn pinning_that_is_refused_is_an_error_value() {
    let faults = GpuFaults { refuse_pinning: true, ..GpuFaults::default() };
    let gpu = Arc::new(FaultyGpu::new(Arc::new(EmuGpu::open(EmuSpec::new("emu0"))), faults));
    let pool = StagingPool::new(gpu.clone(), options(2));
    let error = pool.prepare(Bytes(4096), None).unwrap_err();
    assert!(matches!(error, StagingError::SetUp { .. }), "{error}");
    let there = gpu.device_buffer(10, CpuReach::Device).unwrap();
    let error =
        copy_in(&[&pool], At { buffer: &there, offset: 0 }, &[1; 10], &Staged::new(tuning(2, 4096))).unwrap_err();
    assert!(matches!(error, StagingError::SetUp { .. }), "{error}");
}

#[test]
fn a_pool_without_memory_is_an_error_value() {
    let gpu = Arc::new(EmuGpu::open(EmuSpec::new("emu0")));
    let pool = StagingPool::new(gpu, PoolOptions { pinned_max: Bytes(0), ..options(2) });
    let error = pool.prepare(Bytes(4096), None).unwrap_err();
    let refused = DeviceError::Refused { limit: "pinned_max", max: 0 };
    assert_eq!(error, StagingError::SetUp { gpu: "emu0".into(), source: refused });
}

#[test]
fn short_pinned_memory_means_smaller_buffers() {
    let fixture = Fixture::of(EmuSpec::new("emu0"), PoolOptions { pinned_max: Bytes(1 << 20), ..options(4) });
    let how = Staged { ramp: false, ..Staged::new(tuning(4, 4 << 20)) };
    let [moved, _] = fixture.check(&[&fixture.pool], 3 << 20, 0, 0, &how);
    assert_eq!((moved.buffer, moved.threads), (Bytes(128 << 10), 4));
    assert_eq!(fixture.pool.pinned(), Bytes(1 << 20));
}

#[test]
fn the_pool_grows_to_what_copies_ask_for_and_no_further() {
    let fixture = Fixture::of(EmuSpec::new("emu0"), PoolOptions { pinned_max: Bytes(100 << 20), ..options(4) });
    fixture.pool.prepare(Bytes(16 << 20), None).unwrap();
    assert_eq!(fixture.pool.pinned(), Bytes(96 << 20));
}

/// Faults at chunk `k`: what the caller is told and what is in place.
fn fails_at(fixture: &Fixture, k: u64, faults: GpuFaults) {
    let chunk = 4096;
    let how = Staged { order: SubmitOrder::Index, ..Staged::new(tuning(2, chunk as u64)) };
    let data = noise(9 * chunk, k);
    let there = fixture.there(&vec![0; data.len()]);
    fixture.gpu.set(faults.clone());
    let at = At { buffer: &there, offset: 0 };
    let error = copy_in(&[&fixture.pool], at, &data, &how).unwrap_err();
    fixture.gpu.set(GpuFaults::default());
    let StagingError::Chunk { chunk: failed, completed_prefix, source } = error else { panic!("{error}") };
    assert!(matches!(source, DeviceError::Driver { .. }));
    // The host is aligned to less than a line at worst, so chunk k ends at most a line early.
    assert_eq!(failed, k);
    let in_place = completed_prefix as usize;
    assert!(in_place <= k as usize * chunk, "{in_place}");
    assert!(fixture.read(&there)[..in_place] == data[..in_place]);
}

#[test]
fn a_refused_or_failed_chunk_is_named_with_the_bytes_in_place_and_the_pool_lives_on() {
    let fixture = Fixture::new(2);
    for k in 0..9 {
        let next = fixture.gpu.submitted();
        fails_at(&fixture, k, GpuFaults { refuse: [next + k].into(), ..GpuFaults::default() });
        let next = fixture.gpu.submitted();
        fails_at(&fixture, k, GpuFaults { fail: [next + k].into(), ..GpuFaults::default() });
        fixture.still_works();
    }
}

#[test]
fn a_chunk_that_fails_on_the_way_out_leaves_its_prefix() {
    let fixture = Fixture::new(2);
    let data = noise(40 << 10, 5);
    let there = fixture.there(&data);
    for k in 0..10 {
        let next = fixture.gpu.submitted();
        fixture.gpu.set(GpuFaults { fail: [next + k].into(), ..GpuFaults::default() });
        let mut memory = vec![0; data.len()];
        let how = Staged::new(tuning(2, 4096));
        let error = copy_out(&[&fixture.pool], &mut memory, At { buffer: &there, offset: 0 }, &how).unwrap_err();
        let StagingError::Chunk { chunk, completed_prefix, .. } = error else { panic!("{error}") };
        assert_eq!(chunk, k);
        assert!(completed_prefix <= k * 4096);
        assert!(memory[..completed_prefix as usize] == data[..completed_prefix as usize]);
    }
    fixture.still_works();
}

#[test]
fn only_the_start_and_four_chunks_worth_at_the_end_of_a_copy_into_a_gpu_are_demoted() {
    const EDGES: u64 = (2 << 20) + (4 << 20);
    let len = (EDGES as usize) + (4 << 20) + 5;
    let by: Arc<[AtomicU64; 2]> = Arc::default();
    let counts = Arc::clone(&by);
    let copy_loop = move |to: &mut [u8], from: &[u8], stores: Stores| {
        assert_ne!(stores, Stores::NonTemporal);
        counts[usize::from(stores == Stores::Demoted)].fetch_add(to.len() as u64, Ordering::Relaxed);
        to.copy_from_slice(from);
    };
    let gpu: Arc<dyn Gpu> = Arc::new(EmuGpu::open(EmuSpec::new("emu0")));
    let pool = StagingPool::with_copy_loop(Arc::clone(&gpu), options(2), Arc::new(copy_loop));
    pool.prepare(Bytes(1 << 20), None).unwrap();
    let (device, how) = (gpu.device_buffer(len, CpuReach::Device).unwrap(), Staged::new(tuning(2, 1 << 20)));
    let at = At { buffer: &device, offset: 0 };
    let mut memory = noise(len, 77);
    copy_in(&[&pool], at, &memory, &how).unwrap();
    let [plain, demoted] = [0, 1].map(|kind| by[kind].swap(0, Ordering::Relaxed));
    assert_eq!(plain + demoted, len as u64);
    assert!((EDGES..EDGES + (2 << 20)).contains(&demoted), "whole chunks: {demoted}");
    copy_out(&[&pool], &mut memory, at, &how).unwrap();
    assert_eq!(by[0].load(Ordering::Relaxed), len as u64, "on the way out nothing changes");
}

/// A pool whose copy loop asks `before` first, with the number of the call.
fn with_loop(threads: u32, before: impl Fn(u64) + Send + Sync + 'static) -> Fixture {
    let gpu = Arc::new(FaultyGpu::new(Arc::new(EmuGpu::open(EmuSpec::new("emu0"))), GpuFaults::default()));
    let calls = AtomicU64::new(0);
    let copy_loop = move |to: &mut [u8], from: &[u8], _| {
        before(calls.fetch_add(1, Ordering::Relaxed));
        to.copy_from_slice(from);
    };
    let pool = StagingPool::with_copy_loop(gpu.clone(), options(threads), Arc::new(copy_loop));
    pool.prepare(Bytes(1), None).unwrap();
    Fixture { gpu, pool }
}

#[test]
fn a_panicking_worker_fails_its_copy_only() {
    for at in 0..5 {
        let fixture = with_loop(2, move |call| assert!(call != at, "injected"));
        let there = fixture.there(&[0; 20_000]);
        let error =
            copy_in(&[&fixture.pool], At { buffer: &there, offset: 0 }, &[7; 20_000], &Staged::new(tuning(2, 4096)))
                .unwrap_err();
        assert!(
            matches!(error, StagingError::Panicked { chunk, completed_prefix } if completed_prefix <= chunk * 4096)
        );
        assert_eq!(fixture.pool.threads(), 2);
        fixture.still_works();
    }
}

#[test]
fn a_lost_device_fails_this_copy_and_every_later_one_at_once() {
    let fixture = Fixture::new(2);
    let there = fixture.there(&[0; 40_000]);
    let next = fixture.gpu.submitted();
    fixture.gpu.set(GpuFaults { lose: Some(next + 3), ..GpuFaults::default() });
    let (at, how) = (At { buffer: &there, offset: 0 }, Staged::new(tuning(2, 4096)));
    let error = copy_in(&[&fixture.pool], at, &[7; 40_000], &how).unwrap_err();
    assert!(matches!(error, StagingError::Chunk { source: DeviceError::DeviceLost, .. }), "{error}");
    let submitted = fixture.gpu.submitted();
    let error = copy_out(&[&fixture.pool], &mut [0; 10], at, &how).unwrap_err();
    assert_eq!(error, StagingError::Request(DeviceError::DeviceLost));
    assert_eq!(fixture.gpu.submitted(), submitted);
}

#[test]
fn a_cancelled_copy_ends_and_says_what_is_in_place() {
    for at in 0..4 {
        let cancel = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&cancel);
        let fixture = with_loop(1, move |call| {
            if call == at {
                flag.store(true, Ordering::Relaxed);
            }
        });
        let data = noise(32 << 20, at);
        let there = fixture.there(&vec![0; data.len()]);
        let how = Staged { cancel: Some(&cancel), ..Staged::new(tuning(1, 4096)) };
        let error = copy_in(&[&fixture.pool], At { buffer: &there, offset: 0 }, &data, &how).unwrap_err();
        let StagingError::Cancelled { completed_prefix } = error else { panic!("{error}") };
        let in_place = completed_prefix as usize;
        assert!(in_place < data.len());
        assert!(fixture.read(&there)[..in_place] == data[..in_place]);
        fixture.still_works();
    }
}

#[test]
fn an_engine_that_never_answers_is_a_timeout_that_names_the_queues() {
    let fixture = Fixture::of(EmuSpec::new("emu0"), PoolOptions { patience: Nanos(SECOND), ..options(2) });
    let there = fixture.there(&[0; 40_000]);
    let next = fixture.gpu.submitted();
    fixture.gpu.set(GpuFaults { delay: [(next + 1, Nanos(u64::MAX / 2))].into(), ..GpuFaults::default() });
    let (at, how) = (At { buffer: &there, offset: 0 }, Staged::new(tuning(2, 4096)));
    let error = copy_in(&[&fixture.pool], at, &[7; 40_000], &how).unwrap_err();
    let StagingError::Timeout { after, state, completed_prefix } = &error else { panic!("{error}") };
    assert_eq!((*after, *completed_prefix > 40_000), (Nanos(SECOND), false));
    assert!(state.contains("2 on the engine") && state.contains("free"), "{state}");
    // The engine stays taken until the copies that were given up end; nothing is reused before.
    let error = copy_in(&[&fixture.pool], at, &[7; 40_000], &how).unwrap_err();
    let StagingError::Timeout { state, completed_prefix: 0, .. } = &error else { panic!("{error}") };
    assert!(state.contains("6 full") && state.contains("waiting for others on the engine"), "{state}");
}

#[test]
fn a_destination_in_use_is_refused_and_one_beyond_the_end_too() {
    let fixture = Fixture::new(2);
    let there = fixture.there(&[0; 1000]);
    let how = Staged::new(tuning(2, 4096));
    let held = there.claim(999..1000, Access::Read).unwrap();
    let error = copy_in(&[&fixture.pool], At { buffer: &there, offset: 0 }, &[1; 1000], &how).unwrap_err();
    assert!(matches!(error, StagingError::Request(DeviceError::Overlap { .. })));
    copy_out(&[&fixture.pool], &mut [0; 1000], At { buffer: &there, offset: 0 }, &how).unwrap();
    drop(held);
    for offset in [1, usize::MAX] {
        let error = copy_in(&[&fixture.pool], At { buffer: &there, offset }, &[1; 1000], &how).unwrap_err();
        assert!(matches!(error, StagingError::Request(DeviceError::OutOfRange { .. })), "{error}");
    }
    assert!(matches!(copy_in(&[], At { buffer: &there, offset: 0 }, &[1], &how), Err(StagingError::Request(_))));
}

#[test]
fn copies_of_many_threads_at_once_all_arrive() {
    let fixture = Fixture::of(EmuSpec::new("emu0"), PoolOptions { pinned_max: Bytes(128 << 20), ..options(6) });
    fixture.pool.prepare(Bytes(8 << 20), None).unwrap();
    let start = Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (fixture, start) = (&fixture, &start);
            scope.spawn(move || {
                start.wait();
                for turn in 0..10 {
                    let len = (3 << 20) + thread * 4097 + turn;
                    let (data, there) = (noise(len, turn as u64), fixture.there(&vec![0; len]));
                    let (at, how) = (At { buffer: &there, offset: 0 }, Staged::new(tuning(3, 256 << 10)));
                    retry(|| copy_in(&[&fixture.pool], at, &data, &how));
                    let mut back = vec![0; len];
                    retry(|| copy_out(&[&fixture.pool], &mut back, at, &how));
                    assert!(back == data, "thread {thread}, turn {turn}");
                }
            });
        }
    });
    fixture.still_works();
}

/// Until a copy finds a thread.
fn retry(mut copy: impl FnMut() -> Result<StagingMoved, StagingError>) {
    loop {
        match copy() {
            Ok(_) => return,
            Err(StagingError::Busy { .. }) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// A target and relays, prepared to be relays.
fn node(relays: usize, threads: u32, in_flight: u32, piece: u64) -> Vec<Fixture> {
    (0..=relays)
        .map(|gpu| {
            let fixture = Fixture::of(EmuSpec::new(&format!("emu{gpu}")), options(threads));
            fixture.pool.prepare(Bytes(piece), (gpu > 0).then_some(in_flight)).unwrap();
            fixture
        })
        .collect()
}

fn pools(fixtures: &[Fixture]) -> Vec<&StagingPool> {
    fixtures.iter().map(|fixture| &fixture.pool).collect()
}

#[test]
fn several_links_share_the_chunks_of_ordinary_memory() {
    let fixtures = node(2, 2, 4, 64 << 10);
    let how = Staged::new(Tuning { in_flight: 4, ..tuning(2, 64 << 10) });
    for len in [1, 100, 64 << 10, (9 << 20) + 13] {
        for moved in fixtures[0].check(&pools(&fixtures), len, 7, 3, &how) {
            // Which link gets how many is a matter of time.
            assert_eq!(moved.links.iter().sum::<u64>(), moved.chunks);
        }
    }
    for fixture in &fixtures {
        fixture.still_works();
    }
}

#[test]
fn a_relay_whose_gpu_has_copies_of_its_own_is_let_go() {
    let fixtures = node(1, 2, 4, 64 << 10);
    let busy = AtomicU32::new(1);
    let own = [&busy];
    let tuning = Tuning { in_flight: 4, ..tuning(2, 64 << 10) };
    let how = Staged { own: &own, ..Staged::new(tuning) };
    for moved in fixtures[0].check(&pools(&fixtures), 9 << 20, 7, 3, &how) {
        assert_eq!(moved.links, [moved.chunks, 0], "it never took part");
    }
    for _ in 0..20 {
        busy.store(0, Ordering::Relaxed);
        let before = fixtures[1].gpu.submitted();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while fixtures[1].gpu.submitted() == before && !over.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                busy.store(1, Ordering::Relaxed);
            });
            for moved in fixtures[0].check(&pools(&fixtures), 9 << 20, 7, 3, &how) {
                assert_eq!(moved.links.iter().sum::<u64>(), moved.chunks);
            }
            over.store(true, Ordering::Relaxed);
        });
    }
    for fixture in &fixtures {
        fixture.still_works();
    }
}

#[test]
fn several_links_share_the_chunks_of_pinned_memory() {
    let fixtures = node(3, 1, 4, 64 << 10);
    let how = Staged::new(Tuning { in_flight: 4, ..tuning(1, 64 << 10) });
    for len in [1, 64 << 10, (9 << 20) + 13] {
        let data = noise(len + 5, len as u64);
        let (host, there) = (fixtures[0].pinned(&data), fixtures[0].there(&vec![0; len + 9]));
        let (from, to) = (At { buffer: &host, offset: 5 }, At { buffer: &there, offset: 9 });
        let moved = copy_pinned(&pools(&fixtures), StagingDirection::In, to, from, len, &how).unwrap();
        assert!(fixtures[0].read(&there)[9..] == data[5..]);
        assert_eq!((moved.links.iter().sum::<u64>(), moved.threads), (moved.chunks, 0));
        assert!(len < 1 << 20 || moved.links.iter().all(|chunks| *chunks > 0), "{moved:?}");
        host.claim(0..len + 5, Access::Write).unwrap().bytes_mut().unwrap().fill(0);
        copy_pinned(&pools(&fixtures), StagingDirection::Out, to, from, len, &how).unwrap();
        let back = host.claim(0..len + 5, Access::Read).unwrap();
        assert!(back.bytes().unwrap()[..5] == [0; 5] && back.bytes().unwrap()[5..] == data[5..]);
    }
}

#[test]
fn pinned_memory_over_its_own_link_needs_no_pool() {
    let gpu = Arc::new(EmuGpu::open(EmuSpec::new("emu0")));
    let fixture = Fixture::new(1);
    let pool = StagingPool::new(gpu.clone(), options(1));
    let host = fixture.pinned(&noise(1 << 20, 1));
    let there = gpu.device_buffer(1 << 20, CpuReach::Device).unwrap();
    let at = |buffer| At { buffer, offset: 0 };
    let how = Staged::new(tuning(1, 100_000));
    let moved = copy_pinned(&[&pool], StagingDirection::In, at(&there), at(&host), 1 << 20, &how).unwrap();
    assert_eq!((moved.chunks, pool.threads()), (11, 0));
    let data = host.claim(0..1 << 20, Access::Read).unwrap().bytes().unwrap().to_vec();
    let mut back = vec![0; 1 << 20];
    gpu.copy_out(&mut back, &there.claim(0..1 << 20, Access::Read).unwrap()).unwrap();
    assert!(back == data);
}

#[test]
fn a_failing_relay_fails_the_copy_and_everything_comes_back() {
    let fixtures = node(1, 2, 2, 64 << 10);
    let data = noise(4 << 20, 3);
    let there = fixtures[0].there(&vec![0; data.len()]);
    let how = Staged::new(tuning(2, 64 << 10));
    fixtures[0].stall();
    let next = fixtures[1].gpu.submitted();
    fixtures[1].gpu.set(GpuFaults { fail: [next + 2].into(), ..GpuFaults::default() });
    let error = copy_in(&pools(&fixtures), At { buffer: &there, offset: 0 }, &data, &how).unwrap_err();
    let StagingError::Chunk { completed_prefix, .. } = error else { panic!("{error}") };
    let in_place = completed_prefix as usize;
    assert!(fixtures[0].read(&there)[..in_place] == data[..in_place]);
    fixtures[1].gpu.set(GpuFaults::default());
    // The queue that failed is made again.
    fixtures[1].pool.prepare(Bytes(64 << 10), Some(2)).unwrap();
    fixtures[0].stall();
    let [moved, _] = fixtures[0].check(&pools(&fixtures), 4 << 20, 0, 0, &how);
    assert!(moved.links[1] > 0);
}

#[test]
fn a_gpu_without_peer_access_is_no_relay_and_neither_is_the_target() {
    let lonely = Fixture::of(EmuSpec { peers: false, ..EmuSpec::new("lonely") }, options(1));
    let fixture = Fixture::new(1);
    let there = fixture.there(&[0; 100]);
    let how = Staged::new(tuning(1, 4096));
    for relay in [&lonely, &fixture] {
        let error =
            copy_in(&[&fixture.pool, &relay.pool], At { buffer: &there, offset: 0 }, &[1; 100], &how).unwrap_err();
        assert!(matches!(error, StagingError::NoRelay { .. }), "{error}");
    }
}

#[test]
fn a_relay_that_is_not_prepared_is_left_out_until_it_is() {
    let fixtures = [Fixture::new(2), Fixture::new(2)];
    let how = Staged::new(tuning(2, 64 << 10));
    let [moved, _] = fixtures[0].check(&pools(&fixtures), 1 << 20, 0, 0, &how);
    assert_eq!(moved.links[1], 0);
    fixtures[1].pool.prepare(Bytes(64 << 10), Some(2)).unwrap();
    fixtures[0].stall();
    let [moved, _] = fixtures[0].check(&pools(&fixtures), 4 << 20, 0, 0, &how);
    assert!(moved.links[1] > 0);
}

#[test]
fn a_slow_link_takes_less() {
    let slow = OperationPace { setup: Nanos(SECOND / 50), rate: None };
    let spec = EmuSpec { h2d: slow, ..EmuSpec::new("slow") };
    let fixtures = [Fixture::new(1), Fixture::of(spec, options(1))];
    fixtures[1].pool.prepare(Bytes(64 << 10), Some(1)).unwrap();
    let data = noise(16 << 20, 1);
    let (host, there) = (fixtures[0].pinned(&data), fixtures[0].there(&vec![0; data.len()]));
    let at = |buffer| At { buffer, offset: 0 };
    let how = Staged::new(tuning(1, 64 << 10));
    let moved = copy_pinned(&pools(&fixtures), StagingDirection::In, at(&there), at(&host), data.len(), &how).unwrap();
    assert!(fixtures[0].read(&there) == data);
    assert!(moved.links[1] < moved.links[0], "{moved:?}");
}

#[test]
fn copies_by_demoted_stores_bring_every_byte_whatever_the_cpu_can() {
    let gpu = Arc::new(EmuGpu::open(EmuSpec::new("emu0")));
    // The path of a CPU that demotes lines, where this one does not too.
    let copy_loop = |to: &mut [u8], from: &[u8], stores: Stores| headway_os::copy::copy_as(to, from, stores, true);
    let pool = StagingPool::with_copy_loop(gpu.clone(), options(3), Arc::new(copy_loop));
    pool.prepare(Bytes(64 << 10), None).unwrap();
    for (len, seed) in [(1, 1), (63, 2), (64, 3), (4097, 4), (1_000_003, 5)] {
        let data = noise(len + 13, seed);
        let there = gpu.device_buffer(len, CpuReach::Device).unwrap();
        let at = At { buffer: &there, offset: 0 };
        for stores in [Stores::Demoted, Stores::Plain] {
            let how = Staged::new(Tuning { stores, ..tuning(3, 60_000) });
            for start in [0, 1, 13] {
                let from = &data[start..start + len];
                copy_in(&[&pool], at, from, &how).unwrap();
                let mut seen = vec![0; len];
                gpu.copy_out(&mut seen, &there.claim(0..len, Access::Read).unwrap()).unwrap();
                assert!(seen == from, "{len} bytes in, {stores:?}");
                let mut back = vec![0; len + 13];
                copy_out(&[&pool], &mut back[start..start + len], at, &how).unwrap();
                assert!(back[start..start + len] == *from, "{len} bytes out, {stores:?}");
            }
        }
    }
}
