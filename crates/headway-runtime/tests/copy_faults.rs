//! Copies on emulated GPUs on which things go wrong: nothing silent, nothing leaked, what arrived is right.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::faulty::{FaultyGpu, GpuFaults};
use headway_core::files::machine::EndpointId;
use headway_core::models::transfer::{
    BackgroundLoad, Curve, CurveKey, CurvePoint, Direction, HostMemory, Method, Profile, WindowMapping,
};
use headway_core::units::{Bytes, Nanos};
use headway_device::emu::{EmuGpu, EmuSpec};
use headway_device::gpu::{Caching, CpuReach, Gpu, Piece};
use headway_device::{Access, Buffer, DeviceError};
use headway_runtime::copy::{At, Copier, CopyError, CopyLimits, CopyOptions, CopyReport, How, ManyBy};

const CHUNK: usize = 64 << 10;
const DMA: How = How::By(Method::Dma);

struct Fixture {
    copier: Copier,
    faults: Arc<FaultyGpu>,
    device: Buffer,
    pinned: Buffer,
}

/// Chunks of 64 KiB: copies are below the size from which they are twice as long.
fn limits() -> CopyLimits {
    CopyLimits { chunk_max: Bytes(2 * CHUNK as u64), pinned_max: Bytes(8 << 20), ..CopyLimits::default() }
}

fn fixture(limits: CopyLimits, profile: Profile, options: CopyOptions) -> Fixture {
    let inner: Arc<dyn Gpu> = Arc::new(EmuGpu::open(EmuSpec::new("gpu0")));
    let faults = Arc::new(FaultyGpu::new(inner, GpuFaults::default()));
    let gpu: Arc<dyn Gpu> = Arc::<FaultyGpu>::clone(&faults);
    let device = gpu.device_buffer(64 * CHUNK, CpuReach::Window(WindowMapping::Vulkan)).unwrap();
    let pinned = gpu.pinned_buffer(64 * CHUNK, Caching::Cached).unwrap();
    let options = CopyOptions { limits, ..options };
    let copier = Copier::new(vec![(EndpointId(3), gpu)], profile, options).unwrap();
    Fixture { copier, faults, device, pinned }
}

fn plain() -> Fixture {
    fixture(limits(), Profile::default(), CopyOptions::default())
}

impl Fixture {
    fn at(&self) -> At<'_> {
        At { buffer: &self.device, offset: 0 }
    }

    fn dma(&self, len: usize) -> Result<CopyReport, CopyError> {
        let host = At { buffer: &self.pinned, offset: 0 };
        self.copier.copy_pinned(Direction::H2d, self.at(), host, len, DMA)
    }

    /// A copy both ways by `how`, compared.
    fn works(&self, how: How, len: usize) {
        let data: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
        self.copier.copy_in(self.at(), &data, how).unwrap();
        let mut back = vec![0; len];
        self.copier.copy_out(&mut back, self.at(), how).unwrap();
        assert!(back == data, "{how:?}");
    }
}

#[test]
fn a_chunk_that_fails_says_which_and_what_is_in_place_and_the_next_copy_works() {
    let fixture = plain();
    fixture.pinned.claim(0..64 * CHUNK, Access::Write).unwrap().bytes_mut().unwrap().fill(0xEE);
    for (first, refuse) in [(false, true), (false, false), (true, true)] {
        let at = fixture.faults.submitted() + if first { 0 } else { 5 };
        let positions = BTreeSet::from([at]);
        fixture.faults.set(if refuse {
            GpuFaults { refuse: positions, ..GpuFaults::default() }
        } else {
            GpuFaults { fail: positions, ..GpuFaults::default() }
        });
        let error = fixture.dma(20 * CHUNK).unwrap_err();
        let CopyError::Failed { chunk, completed_prefix, source } = error else { panic!("{error:?}") };
        assert!(matches!(source, DeviceError::Driver { code: -1, .. }));
        // A refusal is seen while chunks before it are still on their way.
        assert!(chunk <= 5 && completed_prefix == chunk * CHUNK as u64, "{chunk}, {completed_prefix}");
        let mut there = vec![0; completed_prefix as usize];
        fixture.copier.copy_out(&mut there, fixture.at(), How::By(Method::Pageable)).unwrap();
        assert!(there.iter().all(|byte| *byte == 0xEE));
        fixture.faults.set(GpuFaults::default());
        assert_eq!(fixture.dma(20 * CHUNK).unwrap().chunks, 20);
    }
}

#[test]
fn a_lost_device_refuses_this_copy_and_every_later_one_at_once() {
    let fixture = plain();
    fixture.faults.set(GpuFaults { lose: Some(fixture.faults.submitted() + 3), ..GpuFaults::default() });
    assert_eq!(fixture.dma(20 * CHUNK).unwrap_err(), CopyError::DeviceLost);
    let submitted = fixture.faults.submitted();
    assert_eq!(fixture.dma(CHUNK).unwrap_err(), CopyError::DeviceLost);
    assert_eq!(fixture.copier.copy_in(fixture.at(), &[1; 9], How::Auto).unwrap_err(), CopyError::DeviceLost);
    let pieces = [Piece { from: 0, to: 0, len: 1 }];
    assert_eq!(fixture.copier.copy_many_in(fixture.at(), &[1; 9], &pieces, None).unwrap_err(), CopyError::DeviceLost);
    assert_eq!(fixture.faults.submitted(), submitted);
}

#[test]
fn a_copy_without_progress_is_given_up_and_leaves_the_engine_to_others() {
    let patience = Nanos(250_000_000);
    let fixture = fixture(CopyLimits { patience, ..limits() }, Profile::default(), CopyOptions::default());
    let held = BTreeMap::from([(fixture.faults.submitted() + 1, Nanos(20_000_000_000))]);
    fixture.faults.set(GpuFaults { delay: held, ..GpuFaults::default() });
    let error = fixture.dma(20 * CHUNK).unwrap_err();
    let CopyError::Timeout { after, completed_prefix, .. } = error else { panic!("{error:?}") };
    assert_eq!((after, completed_prefix), (patience, CHUNK as u64));
    fixture.faults.set(GpuFaults::default());
    assert_eq!(fixture.dma(20 * CHUNK).unwrap().ahead, 0);
}

#[test]
fn cancelling_ends_what_is_under_way_and_nothing_else() {
    let fixture = plain();
    let start = fixture.faults.submitted();
    let held = BTreeMap::from([(start, Nanos(100_000_000))]);
    fixture.faults.set(GpuFaults { delay: held, ..GpuFaults::default() });
    let error = std::thread::scope(|threads| {
        let copy = threads.spawn(|| fixture.dma(64 * CHUNK));
        while fixture.faults.submitted() == start {
            std::thread::yield_now();
        }
        fixture.copier.cancel();
        copy.join().unwrap().unwrap_err()
    });
    assert!(matches!(error,CopyError::Cancelled{completed_prefix}if completed_prefix<64*CHUNK as u64), "{error:?}");
    assert_eq!(fixture.dma(64 * CHUNK).unwrap().chunks, 64);
}

#[test]
fn a_small_copy_waits_for_no_more_than_the_chunks_in_flight() {
    let fixture = plain();
    let start = fixture.faults.submitted();
    // The first chunk is kept back so that the bulk copy is under way for sure when the small one comes.
    let held = BTreeMap::from([(start, Nanos(100_000_000))]);
    fixture.faults.set(GpuFaults { delay: held, ..GpuFaults::default() });
    let small = fixture.copier.gpus()[0].device_buffer(64, CpuReach::Device).unwrap();
    let host = fixture.copier.gpus()[0].pinned_buffer(64, Caching::Cached).unwrap();
    std::thread::scope(|threads| {
        let bulk = threads.spawn(|| fixture.dma(64 * CHUNK));
        while fixture.faults.submitted() < start + 2 {
            std::thread::yield_now();
        }
        let (to, from) = (At { buffer: &small, offset: 0 }, At { buffer: &host, offset: 0 });
        let report = fixture.copier.copy_pinned(Direction::H2d, to, from, 64, DMA).unwrap();
        // The bulk copy may be in the line for its third chunk already.
        assert!((1..=3).contains(&report.ahead), "{report:?}");
        assert!(report.waited > Nanos::ZERO, "{report:?}");
        assert_eq!(bulk.join().unwrap().unwrap().chunks, 64);
    });
}

#[test]
fn without_pinned_memory_auto_uses_the_driver_and_says_so_once() {
    let fixture = plain();
    fixture.faults.set(GpuFaults { refuse_pinning: true, ..GpuFaults::default() });
    for method in [Method::Staged, Method::Register, Method::Pinning] {
        let error = fixture.copier.copy_in(fixture.at(), &[1; 9000], How::By(method)).unwrap_err();
        assert!(matches!(error, CopyError::Unavailable { method: named, .. } if named == method), "{error:?}");
    }
    let error = fixture.copier.copy_many_in(
        fixture.at(),
        &[1; 100],
        &[Piece { from: 0, to: 5, len: 4 }, Piece { from: 50, to: 1, len: 3 }],
        Some(ManyBy::Gather),
    );
    assert!(matches!(error, Err(CopyError::Unavailable { .. })), "{error:?}");
    let pieces: Vec<Piece> = (0..64).map(|i| Piece { from: i * 9000, to: (63 - i) * 9000, len: 8000 }).collect();
    let source: Vec<u8> = (0..64 * 9000).map(|i| (i / 77) as u8).collect();
    for _ in 0..2 {
        let report = fixture.copier.copy_many_in(fixture.at(), &source, &pieces, None).unwrap();
        assert_eq!(report.instead_of.map(|(method, _)| method), Some(Method::Staged));
    }
    let mut back = vec![0; 64 * 9000];
    fixture.copier.copy_out(&mut back, fixture.at(), How::Auto).unwrap();
    assert!(pieces.iter().all(|p| back[p.to..p.to + p.len] == source[p.from..p.from + p.len]));
    assert_eq!(fixture.copier.events().len(), 1);
}

#[test]
fn a_request_of_many_pieces_that_fails_gives_everything_back() {
    let fixture = plain();
    let pieces: Vec<Piece> = (0..400).map(|i| Piece { from: i * 9000, to: (399 - i) * 9000, len: 8000 }).collect();
    let source = vec![5; 400 * 9000];
    let mut target = vec![0; 400 * 9000];
    for round in 0..12 {
        let at = fixture.faults.submitted() + round % 3;
        fixture.faults.set(GpuFaults { fail: BTreeSet::from([at]), ..GpuFaults::default() });
        let result = match round % 2 {
            0 => fixture.copier.copy_many_in(fixture.at(), &source, &pieces, Some(ManyBy::Gather)),
            _ => fixture.copier.copy_many_out(&mut target, fixture.at(), &pieces, Some(ManyBy::Gather)),
        };
        assert!(matches!(result, Err(CopyError::Failed { .. })), "{result:?}");
    }
    fixture.faults.set(GpuFaults::default());
    fixture.copier.copy_many_in(fixture.at(), &source, &pieces, Some(ManyBy::Gather)).unwrap();
    fixture.copier.copy_many_out(&mut target, fixture.at(), &pieces, Some(ManyBy::Gather)).unwrap();
    assert!(pieces.iter().all(|p| target[p.to..p.to + p.len].iter().all(|byte| *byte == 0 || *byte == 5)));
}

#[test]
fn a_silent_resident_copier_is_a_timeout_by_name() {
    let fixture = plain();
    let by = How::By(Method::Resident(None));
    fixture.works(by, 1000);
    fixture.faults.set(GpuFaults { resident_timeout: true, ..GpuFaults::default() });
    let error = fixture.copier.copy_in(fixture.at(), &[1; 9], by).unwrap_err();
    assert!(matches!(error, CopyError::Timeout { .. }), "{error:?}");
    fixture.faults.set(GpuFaults::default());
    fixture.works(by, 1000);
}

/// Every copy takes 1 ns by the window and 2 ns by the driver: no real copy does.
fn promises() -> Profile {
    let mut curves = BTreeMap::new();
    for (method, nanos) in [(Method::Pageable, 2), (Method::Window(Some(WindowMapping::Vulkan)), 1)] {
        let direction = Direction::H2d;
        let (gpu, memory) = (EndpointId(3), HostMemory::Touched);
        let key =
            CurveKey { gpu, peer: None, method, direction, memory, load: BackgroundLoad::Alone, active: 1, pieces: 1 };
        let time = Nanos(nanos);
        let point = CurvePoint { bytes: Bytes(1), n: 100, median: time, p99: time, max: time };
        curves.insert(key, Curve::new(vec![point]).unwrap());
    }
    Profile { curves, ..Profile::default() }
}

/// Figures of GPU 3 by which `pinning` is the best for 4 MiB and more, and `staged` for less.
fn pinning_leads() -> Profile {
    let mut curves = BTreeMap::new();
    for (method, nanos) in [(Method::Pageable, 900), (Method::Pinning, 500), (Method::Staged, 700)] {
        for direction in [Direction::H2d, Direction::D2h] {
            let (gpu, memory) = (EndpointId(3), HostMemory::Touched);
            let key = CurveKey {
                gpu,
                peer: None,
                method,
                direction,
                memory,
                load: BackgroundLoad::Alone,
                active: 1,
                pieces: 1,
            };
            let time = Nanos(nanos * 1_000_000_000);
            let point = CurvePoint { bytes: Bytes(4 << 20), n: 100, median: time, p99: time, max: time };
            curves.insert(key, Curve::new(vec![point]).unwrap());
        }
    }
    Profile { curves, ..Profile::default() }
}

#[test]
fn pages_that_cannot_be_pinned_now_are_staged_and_may_be_pinned_the_next_time() {
    const LEN: usize = 8 << 20;
    let limits = || CopyLimits { pinned_max: Bytes(64 << 20), ..limits() };
    let fixture = fixture(limits(), pinning_leads(), CopyOptions::default());
    fixture.copier.prepare().unwrap();
    let there = fixture.copier.gpus()[0].device_buffer(LEN, CpuReach::Device).unwrap();
    let at = At { buffer: &there, offset: 0 };
    let data: Vec<u8> = (0..LEN).map(|i| (i * 7 + i / 251) as u8).collect();
    let (mut registered, mut replaced) = (0, 0);
    for refused in [None, Some(0), Some(2), None] {
        let positions = refused.map(|at| registered + at).into_iter().collect();
        fixture.faults.set(GpuFaults { refuse_register: positions, ..GpuFaults::default() });
        let report = fixture.copier.copy_in(at, &data, How::Auto).unwrap();
        let expected = if refused.is_some() { Method::Staged } else { Method::Pinning };
        assert_eq!(report.method, expected, "{report:?}");
        assert_eq!(report.instead_of.map(|(method, _)| method), refused.map(|_| Method::Pinning));
        replaced += u64::from(refused.is_some());
        let mut back = vec![0; LEN];
        fixture.copier.copy_out(&mut back, at, How::By(Method::Pageable)).unwrap();
        assert!(back == data);
        registered = fixture.faults.registered();
    }
    assert!(replaced == 2 && registered > 8, "{registered}");
    // Where threads may not stage either, the driver makes the copy.
    let poor = self::fixture(limits(), pinning_leads(), CopyOptions { no_threads: true, ..CopyOptions::default() });
    poor.faults.set(GpuFaults { refuse_register: BTreeSet::from([0]), ..GpuFaults::default() });
    let there = poor.copier.gpus()[0].device_buffer(LEN, CpuReach::Device).unwrap();
    let report = poor.copier.copy_in(At { buffer: &there, offset: 0 }, &data, How::Auto).unwrap();
    assert_eq!(report.method, Method::Pageable, "{report:?}");
    // By name the error is the caller's to see; a lost device is not passed off as a page that cannot be pinned.
    fixture.faults.set(GpuFaults { refuse_register: BTreeSet::from([registered]), ..GpuFaults::default() });
    let error = fixture.copier.copy_in(at, &data, How::By(Method::Pinning)).unwrap_err();
    assert!(matches!(error, CopyError::Unavailable { method: Method::Pinning, .. }), "{error:?}");
    fixture.faults.lose();
    let error = fixture.copier.copy_in(at, &data, How::By(Method::Pinning)).unwrap_err();
    assert_eq!(error, CopyError::DeviceLost);
}

#[test]
fn a_method_that_stays_slower_than_the_driver_is_left_for_it() {
    let fixture = fixture(limits(), promises(), CopyOptions::default());
    let window = Method::Window(Some(WindowMapping::Vulkan));
    let first = fixture.copier.copy_in(fixture.at(), &[1; 64], How::Auto).unwrap();
    assert_eq!((first.method, first.instead_of), (window, None));
    let copies = (0..10_000).map(|_| fixture.copier.copy_in(fixture.at(), &[1; 64], How::Auto).unwrap());
    let left = copies.filter(|report| report.instead_of.is_some()).take(1).collect::<Vec<_>>();
    assert_eq!(left[0].method, Method::Pageable);
    assert_eq!(left[0].instead_of.as_ref().unwrap().0, window);
    assert!(fixture.copier.events().iter().any(|event| event.what.contains("slower than the driver")));
}

#[test]
fn events_beyond_the_limit_are_counted() {
    let fixture = fixture(CopyLimits { events_max: 1, ..limits() }, promises(), CopyOptions::default());
    for len in [64, 4096] {
        for _ in 0..10_000 {
            if fixture.copier.copy_in(fixture.at(), &vec![1; len], How::Auto).unwrap().instead_of.is_some() {
                break;
            }
        }
    }
    let events = fixture.copier.events();
    assert_eq!(events.len(), 2, "{events:?}");
    assert!(events[0].what.contains("earlier events were dropped"));
    assert_eq!(fixture.copier.events(), []);
}
