//! Copies on emulated GPUs: every method, direction, size and alignment on random bytes, compared through another method.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use headway_core::decisions::engine_line::FlowClass;
use headway_core::decisions::staging::StagingDirection;
use headway_core::files::machine::EndpointId;
use headway_core::models::transfer::{
    Available, BackgroundLoad, Curve, CurveKey, CurvePoint, Direction, HostMemory, Method, MethodRequest, Profile,
    ResidentShape, Tuning, WindowMapping, choose, default_tuning,
};
use headway_core::units::{Bytes, Nanos};
use headway_device::Buffer;
use headway_device::emu::{EmuGpu, EmuSpec};
use headway_device::gpu::{Caching, CpuReach, Gpu, Mover, Piece};
use headway_device::{Access, DeviceLimits};
use headway_os::board::{Board, board_gpu};
use headway_os::memory;
use headway_runtime::copy::{At, Copier, CopyError, CopyLimits, CopyOptions, How, ManyBy, Promise};
use headway_runtime::staging::Promiser;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

const MIB: usize = 1 << 20;
const LARGE: usize = 100 * MIB + 7;

struct Random(Pcg64Mcg);

impl Random {
    fn new(seed: u64) -> Self {
        Self(Pcg64Mcg::seed_from_u64(seed))
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.0.next_u64() % bound as u64) as usize
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(&mut bytes);
        bytes
    }
}

fn gpu(name: &str) -> Arc<dyn Gpu> {
    let limits = DeviceLimits { host_bytes_max: Bytes(4 << 30), ..DeviceLimits::default() };
    Arc::new(EmuGpu::open(EmuSpec { limits, ..EmuSpec::new(name) }))
}

fn gpus(count: u32) -> Vec<(EndpointId, Arc<dyn Gpu>)> {
    (0..count).map(|id| (EndpointId(id + 1), gpu(&format!("gpu{id}")))).collect()
}

fn copier(count: u32, options: CopyOptions) -> Copier {
    Copier::new(gpus(count), Profile::default(), options).unwrap()
}

/// Small chunks, so that copies of some megabytes have many.
fn options() -> CopyOptions {
    let limits = CopyLimits { chunk_max: Bytes(512 << 10), pinned_max: Bytes(32 << 20), ..CopyLimits::default() };
    CopyOptions { limits, multipath: true, ..CopyOptions::default() }
}

fn small_tuning() -> Tuning {
    Tuning { threads: 2, buffer: Bytes(256 << 10), ..default_tuning(Direction::H2d, HostMemory::Touched) }
}

/// The bytes of device memory, by the driver's own call.
fn seen(gpu: &dyn Gpu, buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    gpu.copy_out(&mut bytes, &buffer.claim(0..buffer.len(), Access::Read).unwrap()).unwrap();
    bytes
}

fn set(gpu: &dyn Gpu, buffer: &Buffer, bytes: &[u8]) {
    gpu.copy_in(&mut buffer.claim(0..bytes.len(), Access::Write).unwrap(), bytes).unwrap();
}

/// What must arrive and nothing else: `data` at `offset`, zeros around.
fn only(data: &[u8], offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    bytes[offset..offset + data.len()].copy_from_slice(data);
    bytes
}

/// Copies `len` bytes both ways by `how` between ordinary memory and a fresh buffer, at these offsets, and compares.
fn round_trip(copier: &Copier, how: How, reach: CpuReach, len: usize, host: usize, device: usize) {
    let gpu = copier.gpus()[0].as_ref();
    let mut random = Random::new(0x1234_5678_9ABC_DEF1 ^ len as u64);
    let buffer = gpu.device_buffer(len + 8, reach).unwrap();
    let at = At { buffer: &buffer, offset: device };
    let what = format!("{how:?} of {len} bytes, host + {host}, device + {device}");

    let source = random.bytes(len + host + 8);
    let data = &source[host..host + len];
    let report = copier.copy_in(at, data, how).unwrap_or_else(|error| panic!("{what}: {error:?}"));
    assert_eq!(report.bytes, Bytes(len as u64), "{what}");
    assert_eq!(report.instead_of, None, "{what}");
    assert!(seen(gpu, &buffer) == only(data, device, len + 8), "{what}: in");

    let inside = random.bytes(len + 8);
    set(gpu, &buffer, &inside);
    let mut to = vec![0; len + host + 8];
    copier.copy_out(&mut to[host..host + len], at, how).unwrap_or_else(|error| panic!("{what}: {error:?}"));
    assert!(to == only(&inside[device..device + len], host, len + host + 8), "{what}: out");
}

/// Copies both ways from and to pinned memory, and compares.
fn pinned_round_trip(copier: &Copier, how: How, len: usize, host: usize, device: usize) {
    let gpu = copier.gpus()[0].as_ref();
    let mut random = Random::new(0x0FED_CBA9_8765_4321 ^ len as u64);
    let buffer = gpu.device_buffer(len + 8, CpuReach::Device).unwrap();
    let pinned = gpu.pinned_buffer(len + 8, Caching::Cached).unwrap();
    let (to, from) = (At { buffer: &buffer, offset: device }, At { buffer: &pinned, offset: host });
    let what = format!("{how:?} of {len} pinned bytes, host + {host}, device + {device}");

    let source = random.bytes(len + 8);
    pinned.claim(0..len + 8, Access::Write).unwrap().bytes_mut().unwrap().copy_from_slice(&source);
    let copy = |direction| copier.copy_pinned(direction, to, from, len, how);
    copy(Direction::H2d).unwrap_or_else(|error| panic!("{what}: {error:?}"));
    assert!(seen(gpu, &buffer) == only(&source[host..host + len], device, len + 8), "{what}: in");

    let inside = random.bytes(len + 8);
    set(gpu, &buffer, &inside);
    pinned.claim(0..len + 8, Access::Write).unwrap().bytes_mut().unwrap().fill(0);
    copy(Direction::D2h).unwrap_or_else(|error| panic!("{what}: {error:?}"));
    let span = pinned.claim(0..len + 8, Access::Read).unwrap();
    assert!(span.bytes().unwrap() == only(&inside[device..device + len], host, len + 8), "{what}: out");
}

const SIZES: [usize; 8] = [0, 1, 3, 64, 4095, 4096, 4097, MIB - 1];
const ALIGNMENTS: [(usize, usize); 4] = [(0, 0), (1, 3), (7, 0), (0, 3)];

fn every_size(try_one: impl Fn(usize, usize, usize)) {
    for len in SIZES {
        for (host, device) in ALIGNMENTS {
            try_one(len, host, device);
        }
    }
}

#[test]
fn the_drivers_call_moves_ordinary_memory_of_every_size_and_alignment() {
    let copier = copier(1, options());
    let how = How::By(Method::Pageable);
    every_size(|len, host, device| round_trip(&copier, how, CpuReach::Device, len, host, device));
    every_size(|len, host, device| pinned_round_trip(&copier, how, len, host, device));
    round_trip(&copier, how, CpuReach::Device, LARGE, 1, 3);
}

#[test]
fn engines_move_pinned_memory_of_every_size_and_alignment_in_chunks() {
    let copier = copier(1, options());
    let how = How::By(Method::Dma);
    every_size(|len, host, device| pinned_round_trip(&copier, how, len, host, device));
    pinned_round_trip(&copier, how, LARGE, 1, 3);
}

#[test]
fn memory_pinned_for_one_copy_moves_at_every_size_and_alignment() {
    let copier = copier(1, options());
    let how = How::By(Method::Register);
    every_size(|len, host, device| round_trip(&copier, how, CpuReach::Device, len, host, device));
    pinned_round_trip(&copier, how, MIB, 0, 0);
    round_trip(&copier, how, CpuReach::Device, LARGE, 1, 3);
}

#[test]
fn memory_pinned_in_ranges_while_it_moves_arrives_at_every_size_and_alignment() {
    let copier = copier(1, options());
    let how = How::By(Method::Pinning);
    every_size(|len, host, device| round_trip(&copier, how, CpuReach::Device, len, host, device));
    pinned_round_trip(&copier, how, MIB, 0, 0);
    // Of this size there are several ranges, of which neighbours must not have a page in common.
    for host in [1, 4096, MIB + 77] {
        round_trip(&copier, how, CpuReach::Device, 17 * MIB + 3, host, 3);
    }
}

#[test]
fn kernels_move_pinned_memory_of_every_size_and_alignment() {
    let copier = copier(1, options());
    let how = How::By(Method::Kernel);
    every_size(|len, host, device| pinned_round_trip(&copier, how, len, host, device));
    pinned_round_trip(&copier, how, LARGE, 1, 3);
}

#[test]
fn windows_move_any_memory_of_every_size_and_alignment() {
    let copier = copier(1, options());
    for (how, reach) in [
        (How::By(Method::Window(None)), CpuReach::Window(WindowMapping::Vulkan)),
        (How::By(Method::Window(Some(WindowMapping::DmaBuf))), CpuReach::Window(WindowMapping::DmaBuf)),
        (How::By(Method::PagedWindow(None)), CpuReach::Window(WindowMapping::Vulkan)),
        (How::By(Method::PagedWindow(Some(WindowMapping::DmaBuf))), CpuReach::Window(WindowMapping::DmaBuf)),
    ] {
        every_size(|len, host, device| round_trip(&copier, how, reach, len, host, device));
    }
    round_trip(&copier, How::By(Method::Window(None)), CpuReach::Window(WindowMapping::Vulkan), 9 * MIB + 1, 1, 3);
}

#[test]
fn resident_copiers_move_any_memory_of_every_size_and_alignment_and_come_back_after_parking() {
    let copier = copier(1, options());
    for shape in [None, Some(ResidentShape::Gpc), Some(ResidentShape::Gpc4)] {
        let how = How::By(Method::Resident(shape));
        every_size(|len, host, device| round_trip(&copier, how, CpuReach::Device, len, host, device));
        every_size(|len, host, device| pinned_round_trip(&copier, how, len, host, device));
        copier.park().unwrap();
    }
}

#[test]
fn staging_moves_ordinary_memory_of_every_size_and_alignment() {
    let copier = copier(1, options());
    let how = How::Tuned(Method::Staged, small_tuning());
    every_size(|len, host, device| round_trip(&copier, how, CpuReach::Device, len, host, device));
    round_trip(&copier, how, CpuReach::Device, LARGE, 1, 3);
    round_trip(&copier, How::By(Method::Staged), CpuReach::Device, LARGE, 7, 0);
}

#[test]
fn links_of_several_gpus_move_any_memory() {
    let copier = copier(3, options());
    let how = How::Tuned(Method::Multipath, small_tuning());
    every_size(|len, host, device| round_trip(&copier, how, CpuReach::Device, len, host, device));
    every_size(|len, host, device| pinned_round_trip(&copier, how, len, host, device));
    round_trip(&copier, how, CpuReach::Device, LARGE, 1, 3);
    pinned_round_trip(&copier, how, LARGE, 1, 3);
}

#[test]
fn the_automatic_choice_moves_any_memory_of_every_size_and_alignment() {
    let copier = copier(2, CopyOptions { multipath: false, ..options() });
    for reach in [CpuReach::Device, CpuReach::Window(WindowMapping::Vulkan)] {
        every_size(|len, host, device| round_trip(&copier, How::Auto, reach, len, host, device));
    }
    every_size(|len, host, device| pinned_round_trip(&copier, How::Auto, len, host, device));
    pinned_round_trip(&copier, How::Auto, LARGE, 1, 3);
}

#[test]
fn peers_exchange_bytes_of_every_size_and_alignment() {
    let copier = copier(2, options());
    let mut random = Random::new(77);
    for len in SIZES.into_iter().chain([20 * MIB + 7]) {
        for (from_offset, to_offset) in ALIGNMENTS {
            let [from, to] = [0, 1].map(|gpu| copier.gpus()[gpu].device_buffer(len + 8, CpuReach::Device).unwrap());
            let data = random.bytes(len + 8);
            set(copier.gpus()[0].as_ref(), &from, &data);
            let ends = (At { buffer: &to, offset: to_offset }, At { buffer: &from, offset: from_offset });
            let report = copier.copy_peer(ends.0, ends.1, len).unwrap();
            assert_eq!((report.method, report.instead_of), (Method::Peer, None));
            let arrived = seen(copier.gpus()[1].as_ref(), &to);
            assert!(arrived == only(&data[from_offset..from_offset + len], to_offset, len + 8), "{len} bytes");
        }
    }
}

#[test]
fn peers_without_a_direct_way_are_reported_once() {
    let spec = |name: &str| EmuSpec { peers: false, ..EmuSpec::new(name) };
    let open = |gpu: u32| -> (EndpointId, Arc<dyn Gpu>) {
        (EndpointId(gpu), Arc::new(EmuGpu::open(spec(&format!("gpu{gpu}")))))
    };
    let copier = Copier::new(vec![open(0), open(1)], Profile::default(), options()).unwrap();
    let [from, to] = [0, 1].map(|gpu| copier.gpus()[gpu].device_buffer(100, CpuReach::Device).unwrap());
    set(copier.gpus()[0].as_ref(), &from, &[9; 100]);
    for _ in 0..2 {
        let report = copier.copy_peer(At { buffer: &to, offset: 0 }, At { buffer: &from, offset: 0 }, 100).unwrap();
        assert_eq!(report.instead_of.unwrap().0, Method::Peer);
    }
    assert_eq!(seen(copier.gpus()[1].as_ref(), &to), [9; 100]);
    assert_eq!(copier.events().len(), 1);
    let multipath = copier.copy_in(At { buffer: &to, offset: 0 }, &[1; 64], How::By(Method::Multipath));
    assert!(matches!(multipath, Err(CopyError::Unavailable { .. })));
}

#[test]
fn nothing_is_copied_without_a_call_of_the_device() {
    let copier = copier(1, options());
    let buffer = copier.gpus()[0].device_buffer(10, CpuReach::Device).unwrap();
    // A claim on everything: any claim for writing would be refused.
    let _claimed = buffer.claim(0..10, Access::Write).unwrap();
    let report = copier.copy_in(At { buffer: &buffer, offset: 0 }, &[], How::Auto).unwrap();
    assert_eq!((report.bytes, report.chunks), (Bytes(0), 0));
}

#[test]
fn mistakes_are_named_and_change_nothing() {
    let copier = copier(1, options());
    let gpu = copier.gpus()[0].as_ref();
    let buffer = gpu.device_buffer(100, CpuReach::Device).unwrap();
    let at = |offset| At { buffer: &buffer, offset };
    let by = |method| How::By(method);
    let data = [7u8; 64];
    let refused = |error: Result<_, CopyError>| error.map(|_: headway_runtime::copy::CopyReport| ()).unwrap_err();

    for method in [Method::Dma, Method::Kernel] {
        assert!(matches!(refused(copier.copy_in(at(0), &data, by(method))), CopyError::Invalid { .. }), "{method}");
    }
    for method in [Method::Pageable, Method::Staged, Method::Resident(None), Method::PagedWindow(None)] {
        for offset in [37, usize::MAX] {
            let error = refused(copier.copy_in(at(offset), &data, by(method)));
            assert!(matches!(error, CopyError::Invalid { .. }), "{method} + {offset}: {error:?}");
        }
    }
    let window = refused(copier.copy_in(at(0), &data, by(Method::Window(None))));
    assert!(matches!(window, CopyError::Unavailable { .. }), "{window:?}");
    assert!(matches!(refused(copier.copy_in(at(0), &data, by(Method::Peer))), CopyError::Invalid { .. }));
    let other = self::gpu("other").device_buffer(64, CpuReach::Device).unwrap();
    let stranger = refused(copier.copy_in(At { buffer: &other, offset: 0 }, &data, How::Auto));
    assert!(matches!(stranger, CopyError::Invalid { what: "device memory", .. }));
    let claimed = buffer.claim(10..20, Access::Read).unwrap();
    assert!(matches!(refused(copier.copy_in(at(0), &data, How::Auto)), CopyError::Overlap { .. }));
    drop(claimed);
    assert_eq!(seen(gpu, &buffer), [0; 100]);
}

#[test]
fn options_exclude_what_they_say_whoever_asks() {
    let copier = copier(1, CopyOptions { no_sm: true, no_threads: true, ..options() });
    let buffer = copier.gpus()[0].device_buffer(MIB, CpuReach::Device).unwrap();
    let at = At { buffer: &buffer, offset: 0 };
    for method in [Method::Kernel, Method::Resident(None), Method::Staged] {
        let error = copier.copy_in(at, &[1; 64], How::By(method)).unwrap_err();
        assert!(matches!(error, CopyError::Unavailable { .. }), "{method}: {error:?}");
    }
    let pieces = [Piece { from: 0, to: 10, len: 5 }, Piece { from: 20, to: 0, len: 5 }];
    let by = ManyBy::Queue(Mover::Kernel { blocks: 1 });
    assert!(matches!(copier.copy_many_in(at, &[1; 64], &pieces, Some(by)), Err(CopyError::Unavailable { .. })));
    copier.copy_many_in(at, &[1; 64], &pieces, None).unwrap();
}

/// A curve of `setup` ns + 1 ns for `rate` bytes.
fn line(setup: u64, rate: u64) -> Curve {
    let point = |bytes: u64| {
        let time = Nanos(setup + bytes / rate);
        CurvePoint { bytes: Bytes(bytes), n: 100, median: time, p99: time, max: time }
    };
    Curve::new((0..=30).map(|exponent| point(1 << exponent)).collect()).unwrap()
}

fn profile(gpu: EndpointId) -> Profile {
    let mut curves = BTreeMap::new();
    let window = Method::Window(Some(WindowMapping::Vulkan));
    for direction in [Direction::H2d, Direction::D2h] {
        for (memory, method, curve) in [
            (HostMemory::Touched, Method::Pageable, line(5_000, 10)),
            (HostMemory::Touched, window, line(100, 2)),
            (HostMemory::Touched, Method::Staged, line(50_000, 40)),
            (HostMemory::Touched, Method::Resident(Some(ResidentShape::Hub)), line(2_000, 3)),
            (HostMemory::Pinned, Method::Pageable, line(5_000, 20)),
            (HostMemory::Pinned, Method::Dma, line(4_000, 50)),
            (HostMemory::Pinned, Method::Kernel, line(3_000, 30)),
        ] {
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
            curves.insert(key, curve);
        }
    }
    Profile { curves, ..Profile::default() }
}

#[test]
fn auto_is_what_choose_says() {
    let gpus = gpus(1);
    let gpu_id = gpus[0].0;
    let profile = profile(gpu_id);
    let copier = Copier::new(gpus, profile.clone(), CopyOptions { resident: true, ..options() }).unwrap();
    let gpu = copier.gpus()[0].as_ref();
    // Staging is not set up while a copy could be asked to wait for it.
    let prepared = gpu.device_buffer(4 * MIB, CpuReach::Device).unwrap();
    let staged = How::By(Method::Staged);
    copier.copy_in(At { buffer: &prepared, offset: 0 }, &vec![1; 4 * MIB], staged).unwrap();

    let (mut seen, residents) =
        (std::collections::BTreeSet::new(), [ResidentShape::Hub, ResidentShape::Gpc, ResidentShape::Gpc4]);
    for exponent in 0..=22 {
        let len = 1usize << exponent;
        for (window, pinned) in [(false, false), (true, false), (false, true)] {
            let reach = if window { CpuReach::Window(WindowMapping::Vulkan) } else { CpuReach::Device };
            let buffer = gpu.device_buffer(len, reach).unwrap();
            let at = At { buffer: &buffer, offset: 0 };
            let memory = if pinned { HostMemory::Pinned } else { HostMemory::Touched };
            let mut methods: std::collections::BTreeSet<Method> =
                [Method::Pageable, Method::Dma, Method::Staged, Method::Kernel].into();
            methods.extend(residents.map(|shape| Method::Resident(Some(shape))));
            if window {
                methods.insert(Method::Window(Some(WindowMapping::Vulkan)));
            }
            let available = Available { methods, ..Available::default() };
            let request = MethodRequest::new(gpu_id, Direction::H2d, memory, Bytes(len as u64));
            let wanted = choose(&profile, &request, &available);
            let report = if pinned {
                let host = gpu.pinned_buffer(len, Caching::Cached).unwrap();
                let host = At { buffer: &host, offset: 0 };
                copier.copy_pinned(Direction::H2d, at, host, len, How::Auto).unwrap()
            } else {
                copier.copy_in(at, &vec![3; len], How::Auto).unwrap()
            };
            assert_eq!((report.method, report.predicted), (wanted.method, wanted.predicted), "{len} {memory} {window}");
            assert_eq!(report.instead_of, None);
            seen.insert(report.method);
        }
    }
    // The profile was made so that each of them wins somewhere.
    for method in [Method::Pageable, Method::Window(None), Method::Staged, Method::Resident(None), Method::Dma] {
        let same = |other: &Method| std::mem::discriminant(other) == std::mem::discriminant(&method);
        assert!(seen.iter().any(same), "{method} was never chosen");
    }
}

#[test]
fn small_copies_follow_what_one_of_them_saw_of_the_pages() {
    let gpus = gpus(1);
    let mut profile = profile(gpus[0].0);
    let (window, hub) = (Method::Window(Some(WindowMapping::Vulkan)), Method::Resident(Some(ResidentShape::Hub)));
    // A busy machine may take any time: the driver's call is said to take an hour, so that no copy was ever slower than it.
    for (_, curve) in profile.curves.iter_mut().filter(|(key, _)| key.method == Method::Pageable) {
        *curve = line(3_600_000_000_000, 10);
    }
    let into_warm: Vec<CurveKey> =
        profile.curves.keys().filter(|key| key.memory == HostMemory::Touched).cloned().collect();
    for key in into_warm {
        let curve = if key.method == window { line(9_000, 2) } else { profile.curves[&key].clone() };
        profile.curves.insert(CurveKey { memory: HostMemory::Untouched, ..key }, curve);
    }
    let copier = Copier::new(gpus, profile, CopyOptions { resident: true, ..options() }).unwrap();
    let buffer = copier.gpus()[0].device_buffer(64, CpuReach::Window(WindowMapping::Vulkan)).unwrap();
    let method = |to: &mut [u8]| copier.copy_out(to, At { buffer: &buffer, offset: 0 }, How::Auto).unwrap().method;
    let fresh = || method(&mut memory::Mapping::anonymous(64).unwrap());
    assert!((0..100).all(|_| fresh() == hub), "the first of them looked");
    let mut warm = [1; 64];
    let methods: Vec<Method> = (0..100).map(|_| method(&mut warm)).collect();
    let until = methods.iter().position(|method| *method == window).unwrap();
    assert!(until < 16 && methods[until..].iter().all(|method| *method == window), "{until}");
    assert!((0..100).any(|_| fresh() == hub), "and back");
}

#[test]
fn a_stale_profile_leaves_the_driver_and_one_warning() {
    let gpus = gpus(1);
    let profile = profile(gpus[0].0);
    let copier = Copier::with_stale(gpus, profile, options(), Some("driver 1, now 2".into())).unwrap();
    let buffer = copier.gpus()[0].device_buffer(MIB, CpuReach::Window(WindowMapping::Vulkan)).unwrap();
    for len in [64, MIB] {
        let report = copier.copy_in(At { buffer: &buffer, offset: 0 }, &vec![1; len], How::Auto).unwrap();
        assert_eq!(report.method, Method::Pageable);
    }
    let events = copier.events();
    assert_eq!(events.len(), 1);
    assert!(events[0].what.contains("driver 1, now 2"), "{}", events[0].what);
}

/// Pieces in random order over both ends, neither overlapping; every third continues the one before.
fn scattered(random: &mut Random, count: usize, len: usize, space: usize) -> Vec<Piece> {
    let places = space / (len + 3);
    assert!(places >= count);
    let mut order: Vec<usize> = (0..places).collect();
    for at in (1..places).rev() {
        order.swap(at, random.below(at + 1));
    }
    let piece = |at: usize| {
        let len = 1 + random.below(len);
        Piece {
            from: order[at] * (len.max(1) + 3).min(space / places),
            to: order[count - 1 - at] * (space / places),
            len,
        }
    };
    (0..count).map(piece).collect()
}

fn movers() -> Vec<Option<ManyBy>> {
    let kernel = Mover::Kernel { blocks: 3 };
    let queues = [Mover::Loop, Mover::Batch, kernel].map(|mover| Some(ManyBy::Queue(mover)));
    let mut movers = vec![None, Some(ManyBy::Gather), Some(ManyBy::Window), Some(ManyBy::Resident)];
    movers.extend(queues);
    movers
}

fn many_round_trip(copier: &Copier, by: Option<ManyBy>, pieces: &[Piece], space: usize) {
    let gpu = copier.gpus()[0].as_ref();
    let mut random = Random::new(0xABCD_EF01);
    let what = format!("{by:?}, {} pieces", pieces.len());
    let buffer = gpu.device_buffer(space + 5, CpuReach::Window(WindowMapping::Vulkan)).unwrap();
    let at = At { buffer: &buffer, offset: 5 };
    let bytes: usize = pieces.iter().map(|piece| piece.len).sum();

    let source = random.bytes(space);
    let report = copier.copy_many_in(at, &source, pieces, by).unwrap_or_else(|error| panic!("{what}: {error:?}"));
    assert_eq!(report.bytes, Bytes(bytes as u64));
    let mut wanted = vec![0; space + 5];
    for piece in pieces {
        wanted[5 + piece.to..][..piece.len].copy_from_slice(&source[piece.from..][..piece.len]);
    }
    assert!(seen(gpu, &buffer) == wanted, "{what}: in");

    let inside = random.bytes(space + 5);
    set(gpu, &buffer, &inside);
    let mut to = vec![0; space];
    copier.copy_many_out(&mut to, at, pieces, by).unwrap_or_else(|error| panic!("{what}: {error:?}"));
    let mut wanted = vec![0; space];
    for piece in pieces {
        wanted[piece.to..][..piece.len].copy_from_slice(&inside[5 + piece.from..][..piece.len]);
    }
    assert!(to == wanted, "{what}: out");
}

#[test]
fn many_scattered_pieces_arrive_by_every_mover() {
    let copier = copier(1, options());
    let mut random = Random::new(5);
    for (count, len) in [(1, 5), (7, 64), (100, 300), (300, 9000)] {
        let space = 2 * count * (len + 3);
        let pieces = scattered(&mut random, count, len, space);
        for by in movers() {
            many_round_trip(&copier, by, &pieces, space);
        }
    }
}

#[test]
fn many_pieces_arrive_with_and_without_threads_and_multiprocessors() {
    let mut random = Random::new(6);
    let pieces = scattered(&mut random, 2048, 4096, 12 * MIB);
    for (no_threads, no_sm) in [(false, false), (true, false), (false, true), (true, true)] {
        let copier = copier(1, CopyOptions { no_threads, no_sm, ..options() });
        many_round_trip(&copier, None, &pieces, 12 * MIB);
    }
}

#[test]
fn the_mover_of_many_pieces_is_the_one_that_was_measured_fastest() {
    let gpus = gpus(1);
    let mut profile = profile(gpus[0].0);
    let window = Method::Window(Some(WindowMapping::Vulkan));
    for (method, memory, setup) in [
        (ManyBy::Gather.method(), HostMemory::Touched, 9_000),
        (window, HostMemory::Touched, 40_000),
        // Says nothing about requests from ordinary memory.
        (window, HostMemory::Pinned, 1),
    ] {
        let (gpu, direction) = (gpus[0].0, Direction::H2d);
        let key =
            CurveKey { gpu, peer: None, method, direction, memory, load: BackgroundLoad::Alone, active: 1, pieces: 64 };
        profile.curves.insert(key, line(setup, 10));
    }
    let copier = Copier::new(gpus, profile, options()).unwrap();
    let buffer = copier.gpus()[0].device_buffer(MIB, CpuReach::Window(WindowMapping::Vulkan)).unwrap();
    let pieces: Vec<Piece> = (0..128).map(|i| Piece { from: i * 100, to: i * 200, len: 10 }).collect();
    let report = copier.copy_many_in(At { buffer: &buffer, offset: 0 }, &vec![1; MIB], &pieces, None).unwrap();
    // Two requests of the measured 64 pieces, each with half of the bytes.
    assert_eq!((report.method, report.predicted), (Method::Staged, Some(Nanos(2 * (9_000 + 64)))));
    let back = copier.copy_many_out(&mut vec![0; MIB], At { buffer: &buffer, offset: 0 }, &pieces[..8], None).unwrap();
    assert_eq!(back.method, Method::Window(None), "nothing was measured for this direction");
}

#[test]
fn pieces_that_are_packed_at_the_device_need_one_copy_a_block() {
    let copier = copier(1, options());
    let mut at = 0;
    let pieces: Vec<Piece> = (0..1000)
        .map(|i| {
            let piece = Piece { from: (i * 7919 % 1000) * 2000, to: at, len: 500 + i };
            at += piece.len;
            piece
        })
        .collect();
    many_round_trip(&copier, None, &pieces, 2 * MIB);
    many_round_trip(&copier, Some(ManyBy::Gather), &pieces, 2 * MIB);
}

#[test]
fn a_few_long_pieces_go_one_by_one() {
    let copier = copier(1, options());
    let pieces = [Piece { from: 0, to: 20 * MIB, len: 9 * MIB }, Piece { from: 10 * MIB, to: 1, len: 9 * MIB }];
    many_round_trip(&copier, None, &pieces, 30 * MIB);
    many_round_trip(&copier, None, &[], 10);
}

#[test]
fn pinned_memory_named_as_ordinary_is_found_out() {
    let copier = copier(1, options());
    let gpu = copier.gpus()[0].as_ref();
    let buffer = gpu.device_buffer(MIB, CpuReach::Device).unwrap();
    let pinned = gpu.pinned_buffer(MIB, Caching::Cached).unwrap();
    let data = Random::new(3).bytes(MIB);
    pinned.claim(0..MIB, Access::Write).unwrap().bytes_mut().unwrap().copy_from_slice(&data);
    let span = pinned.claim(0..MIB, Access::Read).unwrap();
    for how in [How::By(Method::Dma), How::By(Method::Kernel), How::Auto] {
        let report = copier.copy_in(At { buffer: &buffer, offset: 0 }, span.bytes().unwrap(), how).unwrap();
        assert!(matches!(report.method, Method::Dma | Method::Kernel), "{report:?}");
        assert!(seen(gpu, &buffer) == data);
    }
    let pieces = [Piece { from: 5, to: 0, len: 100 }, Piece { from: 1000, to: 500, len: 100 }];
    let report = copier.copy_many_in(At { buffer: &buffer, offset: 0 }, span.bytes().unwrap(), &pieces, None).unwrap();
    assert_eq!(report.method, Method::Kernel);
    assert!(seen(gpu, &buffer)[500..600] == data[1000..1100]);
}

#[test]
fn a_probe_finds_what_a_gpu_has_and_names_what_is_used_instead() {
    let with_all = gpu("all");
    let spec = EmuSpec { windows: vec![WindowMapping::DmaBuf], residents: vec![], ..EmuSpec::new("less") };
    let with_less: Arc<dyn Gpu> = Arc::new(EmuGpu::open(spec));
    let gpus = vec![(EndpointId(0), with_all), (EndpointId(1), with_less)];
    let copier = Copier::new(gpus, Profile::default(), options()).unwrap();
    let probes = copier.probe();
    let find = |gpu, method| probes.iter().find(|probe| probe.gpu == gpu && probe.method == method).unwrap();
    for method in [
        Method::Pageable,
        Method::Dma,
        Method::Register,
        Method::Pinning,
        Method::Staged,
        Method::Kernel,
        Method::Peer,
        Method::Multipath,
        Method::Window(Some(WindowMapping::DmaBuf)),
        Method::PagedWindow(Some(WindowMapping::DmaBuf)),
    ] {
        for gpu in [0, 1] {
            assert_eq!(find(gpu, method).usable, Ok(()), "{method} on {gpu}");
            assert_eq!(find(gpu, method).fallback, None);
        }
    }
    for method in [Method::Window(Some(WindowMapping::Vulkan)), Method::Resident(Some(ResidentShape::Gpc4))] {
        assert_eq!(find(0, method).usable, Ok(()));
        assert!(find(1, method).usable.is_err());
        assert_eq!(find(1, method).fallback, Some(Method::Dma));
    }
}

#[test]
fn threads_copy_on_several_gpus_at_once_and_every_byte_is_right() {
    let copier = copier(4, CopyOptions { resident: true, ..options() });
    let methods = [
        How::Auto,
        How::By(Method::Pageable),
        How::By(Method::Register),
        How::By(Method::Pinning),
        How::By(Method::Window(None)),
        How::By(Method::Resident(None)),
        How::Tuned(Method::Staged, small_tuning()),
    ];
    std::thread::scope(|threads| {
        for thread in 0..8u64 {
            let (copier, methods) = (&copier, &methods);
            threads.spawn(move || {
                let mut random = Random::new(0x5EED + thread * 7919);
                let reach = CpuReach::Window(WindowMapping::Vulkan);
                let buffers: Vec<Buffer> = copier.gpus().iter().map(|p| p.device_buffer(MIB, reach).unwrap()).collect();
                let (mut data, mut back) = (random.bytes(MIB), vec![0; MIB]);
                for round in 0..40 {
                    let gpu = random.below(4);
                    let len = 1 + random.below(if round % 8 == 0 { MIB - 64 } else { 20_000 });
                    let offset = random.below(64);
                    random.fill(&mut data[..len]);
                    let at = At { buffer: &buffers[gpu], offset };
                    let mut any = || methods[random.below(methods.len())];
                    let (there, home) = (any(), any());
                    let what = format!("thread {thread}, round {round}: {len} bytes by {there:?} and {home:?}");
                    copier.copy_in(at, &data[..len], there).unwrap_or_else(|error| panic!("{what}: {error:?}"));
                    let peer = (gpu + 1 + random.below(3)) % 4;
                    let next = At { buffer: &buffers[peer], offset };
                    copier.copy_peer(next, at, len).unwrap_or_else(|error| panic!("{what}: {error:?}"));
                    copier.copy_out(&mut back[..len], next, home).unwrap_or_else(|error| panic!("{what}: {error:?}"));
                    assert!(back[..len] == data[..len], "{what}");
                }
            });
        }
    });
}

/// Bytes and copies that this process has told of on the emulated GPU `name`, into it and out of it.
fn told(name: &str) -> [(u64, u64); 2] {
    let gpu = board_gpu(None, &format!("emu:{name}"));
    let rows = Board::of_user().expect("System V shared memory").read().rows;
    [StagingDirection::In, StagingDirection::Out].map(|direction| {
        let of =
            rows.iter().filter(|row| row.pid == std::process::id() && row.gpu == gpu && row.direction == direction);
        of.fold((0, 0), |(bytes, copies), row| (bytes + row.bytes, copies + row.copies))
    })
}

#[test]
fn every_method_tells_the_users_other_programs_of_each_copy_and_of_all_bytes() {
    let name = "told";
    let copier = Copier::new(vec![(EndpointId(1), gpu(name))], Profile::default(), options()).unwrap();
    copier.prepare().unwrap();
    let (mut bytes, mut copies) = (0, 0);
    let len = 5 * MIB + 3;
    let window = CpuReach::Window(WindowMapping::Vulkan);
    for how in [
        How::Auto,
        How::By(Method::Pageable),
        How::By(Method::Register),
        How::By(Method::Pinning),
        How::By(Method::Staged),
        How::By(Method::Window(None)),
        How::By(Method::PagedWindow(None)),
        How::By(Method::Resident(None)),
    ] {
        round_trip(&copier, how, window, len, 3, 5);
        (bytes, copies) = (bytes + len as u64, copies + 1);
        assert_eq!(told(name), [(bytes, copies); 2], "{how:?}");
    }
    for how in [Method::Dma, Method::Kernel] {
        pinned_round_trip(&copier, How::By(how), len, 3, 5);
        (bytes, copies) = (bytes + len as u64, copies + 1);
        assert_eq!(told(name), [(bytes, copies); 2], "{how:?}");
    }
    let pieces = scattered(&mut Random::new(9), 100, 9000, 2 << 20);
    let all: usize = pieces.iter().map(|piece| piece.len).sum();
    for by in movers() {
        many_round_trip(&copier, by, &pieces, 2 << 20);
        (bytes, copies) = (bytes + all as u64, copies + 1);
        assert_eq!(told(name), [(bytes, copies); 2], "{by:?}");
    }
    assert!(
        copier
            .copy_in(
                At { buffer: &copier.gpus()[0].device_buffer(8, CpuReach::Device).unwrap(), offset: 0 },
                &[0; 9],
                How::Auto
            )
            .is_err()
    );
    assert_eq!(told(name), [(bytes, copies); 2], "a copy that is refused");
}

#[test]
fn promised_copies_that_are_late_are_told_as_misses() {
    let copier = Copier::new(vec![(EndpointId(1), gpu("late"))], Profile::default(), options()).unwrap();
    let gpu = copier.gpus()[0].as_ref();
    let (buffer, host) =
        (gpu.device_buffer(MIB, CpuReach::Device).unwrap(), gpu.pinned_buffer(MIB, Caching::Cached).unwrap());
    let (at, from) = (At { buffer: &buffer, offset: 0 }, At { buffer: &host, offset: 0 });
    for after in [Nanos(0), Nanos(60_000_000_000)] {
        copier.promised_pinned(Direction::H2d, at, from, MIB, promise(after)).unwrap();
    }
    let rows = Board::of_user().unwrap().read().rows;
    let mut rows = rows.iter().filter(|row| row.gpu == board_gpu(None, "emu:late") && row.pid == std::process::id());
    let row = rows.next().unwrap();
    assert_eq!((row.class, row.misses, row.copies, row.bytes), (FlowClass::Guaranteed, 1, 2, 2 << 20));
    assert!(rows.next().is_none());
}

/// A promise with chunks of 256 KiB.
fn promise(after: Nanos) -> Promise {
    let deadline = headway_os::clock::now().saturating_add(after);
    Promise { deadline, class: FlowClass::Guaranteed, chunk: Bytes(256 << 10) }
}

#[test]
fn promised_copies_move_their_bytes_in_chunks_while_bulk_copies_run() {
    /// Ends the other thread also where an assertion fails.
    struct Ends<'a>(&'a std::sync::atomic::AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let (copier, node) = (copier(1, CopyOptions::default()), Promiser::new());
    copier.limit_chunks(node, 0, Direction::H2d, Some(Bytes(512 << 10))).unwrap();
    let gpu = copier.gpus()[0].as_ref();
    let device = |len| gpu.device_buffer(len, CpuReach::Device).unwrap();
    let pinned = |len| gpu.pinned_buffer(len, Caching::Cached).unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let (to, from) = (device(4 * MIB), pinned(4 * MIB));
            let (to, from) = (At { buffer: &to, offset: 0 }, At { buffer: &from, offset: 0 });
            while !over.load(Ordering::Relaxed) {
                let report = copier.copy_pinned(Direction::H2d, to, from, 4 * MIB, How::By(Method::Dma)).unwrap();
                assert_eq!(report.chunks, 8, "cut into what promises allow for");
            }
        });
        let _ends = Ends(&over);
        let (buffer, host) = (device(MIB), pinned(MIB));
        let (at, from) = (At { buffer: &buffer, offset: 0 }, At { buffer: &host, offset: 0 });
        let mut random = Random::new(11);
        for _ in 0..50 {
            let data = random.bytes(MIB);
            host.claim(0..MIB, Access::Write).unwrap().bytes_mut().unwrap().copy_from_slice(&data);
            let report = copier.promised_pinned(Direction::H2d, at, from, MIB, promise(Nanos(1_000_000_000))).unwrap();
            assert_eq!(report.chunks, 4);
            assert!(report.asked <= report.ended && report.engine > Nanos(0), "{report:?}");
            assert!(report.longest_chunk <= report.engine && report.unpromised <= 4, "{report:?}");
            assert!(seen(gpu, &buffer) == data);
        }
    });
    copier.limit_chunks(node, 0, Direction::H2d, None).unwrap();
    let (to, from) = (device(4 * MIB), pinned(4 * MIB));
    let (to, from) = (At { buffer: &to, offset: 0 }, At { buffer: &from, offset: 0 });
    let whole = copier.copy_pinned(Direction::H2d, to, from, 4 * MIB, How::By(Method::Dma)).unwrap();
    assert_eq!(whole.chunks, 1);
}

#[test]
fn copiers_of_one_gpu_keep_to_the_promises_of_one_of_them() {
    let first = copier(1, CopyOptions::default());
    let of = vec![(EndpointId(1), Arc::clone(&first.gpus()[0]))];
    let second = Copier::new(of, Profile::default(), CopyOptions::default()).unwrap();
    let gpu = second.gpus()[0].as_ref();
    let (to, from) =
        (gpu.device_buffer(4 * MIB, CpuReach::Device).unwrap(), gpu.pinned_buffer(4 * MIB, Caching::Cached).unwrap());
    let chunks = || {
        let (to, from) = (At { buffer: &to, offset: 0 }, At { buffer: &from, offset: 0 });
        second.copy_pinned(Direction::H2d, to, from, 4 * MIB, How::By(Method::Dma)).unwrap().chunks
    };
    let [one, other] = [(); 2].map(|()| Promiser::new());
    first.limit_chunks(one, 0, Direction::H2d, Some(Bytes(MIB as u64))).unwrap();
    assert_eq!(chunks(), 4);
    let refused = second.limit_chunks(other, 0, Direction::H2d, Some(Bytes(4 * MIB as u64))).unwrap_err();
    assert!(matches!(refused, CopyError::Invalid { .. }), "{refused:?}");
    second.limit_chunks(other, 0, Direction::H2d, None).unwrap();
    assert_eq!(chunks(), 4, "who promised nothing gives nothing back");
    first.limit_chunks(one, 0, Direction::H2d, None).unwrap();
    assert_eq!(chunks(), 1);
    second.limit_chunks(other, 0, Direction::H2d, Some(Bytes(2 * MIB as u64))).unwrap();
    assert_eq!(chunks(), 2);
}

#[test]
fn a_promised_copy_of_ordinary_memory_is_refused() {
    let copier = copier(1, CopyOptions::default());
    let buffer = copier.gpus()[0].device_buffer(MIB, CpuReach::Device).unwrap();
    let at = At { buffer: &buffer, offset: 0 };
    let refused = copier.promised_in(at, &vec![0; MIB], promise(Nanos(1_000_000_000))).unwrap_err();
    assert!(matches!(refused, CopyError::Invalid { .. }), "{refused:?}");
    let outside = At { buffer: &buffer, offset: 1 };
    let refused = copier.promised_out(&mut vec![0; MIB], outside, promise(Nanos(1_000_000_000))).unwrap_err();
    assert!(matches!(refused, CopyError::Invalid { .. }), "{refused:?}");
}
