//! The mailbox protocol of resident copiers against the fake driver, whose kernel is a set of threads.
//!
//! What passes here says that no command is lost, done twice or done late, and that every failure ends in time. It says nothing
//! about any GPU.
#![allow(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use headway_core::models::transfer::ResidentShape;
use headway_core::units::{Bytes, Nanos};
use headway_cuda::{CudaGpu, CudaResident, Driver};
use headway_device::gpu::{Caching, CpuReach, Gpu, Resident, ResidentOptions};
use headway_device::{Access, Buffer, DeviceError, DeviceLimits};
use headway_os::clock;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use tempfile::TempDir;

const FORMS: [ResidentShape; 3] = [ResidentShape::Hub, ResidentShape::Gpc, ResidentShape::Gpc4];
/// Long enough for a busy machine.
const PATIENT: Nanos = Nanos(30_000_000_000);
/// Waited for in vain, and long enough for a busy machine to do what it can do.
const IMPATIENT: Nanos = Nanos(1_000_000_000);
const OPTIONS: ResidentOptions = ResidentOptions { piece: 4096, lease: Nanos(10_000_000_000), patience: PATIENT };

/// What the fake's kernel does, as in `fake/resident.h`.
#[derive(Clone, Copy)]
enum Behaviour {
    Normal,
    Held,
    Stuck,
    Hasty,
    Faulty,
    Crowded,
    Silent,
}

/// A library of its own, and a gpu on it.
struct Fake {
    gpu: CudaGpu,
    path: PathBuf,
    _folder: TempDir,
}

impl Fake {
    fn with(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libfake.so");
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-O2", "-pthread", "-o"])
            .arg(&path)
            .args(options)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake/fake.c"))
            .status()
            .expect("a C compiler named `cc` is needed for these tests");
        assert!(status.success());
        let limits = DeviceLimits { buffers_max: 64, host_bytes_max: Bytes(64 << 20), ..DeviceLimits::default() };
        let gpu = CudaGpu::open(&Driver::load(&path).unwrap(), 0, limits).unwrap();
        Self { gpu, path, _folder: folder }
    }

    fn new() -> Self {
        Self::with(&[])
    }

    fn behave(&self, behaviour: Behaviour) {
        // SAFETY: the library is loaded already, and this function of it takes an int.
        unsafe {
            let library = libloading::Library::new(&self.path).unwrap();
            library.get::<unsafe extern "C" fn(i32)>(b"headway_fake_resident\0").unwrap()(behaviour as i32);
        }
    }

    fn number(&self, name: &[u8]) -> i32 {
        // SAFETY: the library is loaded already, and these functions of it take nothing and return an int.
        unsafe { libloading::Library::new(&self.path).unwrap().get::<unsafe extern "C" fn() -> i32>(name).unwrap()() }
    }

    fn start(&self, shape: ResidentShape, options: ResidentOptions) -> CudaResident {
        self.gpu.start_resident(shape, options).unwrap()
    }

    fn device(&self, bytes: usize) -> Buffer {
        self.gpu.device_buffer(bytes, CpuReach::Device).unwrap()
    }
}

fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut data = vec![0; bytes];
    Pcg64Mcg::seed_from_u64(seed).fill_bytes(&mut data);
    data
}

/// Sends `data` to `at` of the buffer and gets it back with a byte more on both sides, which must not have changed.
fn there_and_back(copier: &mut CudaResident, buffer: &Buffer, at: usize, data: &[u8]) {
    let around = at - 1..at + data.len() + 1;
    copier.copy_in(&mut buffer.claim(around.clone(), Access::Write).unwrap(), &vec![0xee; around.len()]).unwrap();
    copier.copy_in(&mut buffer.claim(at..at + data.len(), Access::Write).unwrap(), data).unwrap();
    let mut back = vec![0; around.len()];
    copier.copy_out(&mut back, &buffer.claim(around, Access::Read).unwrap()).unwrap();
    assert!(back[0] == 0xee && back[data.len() + 1] == 0xee, "a byte outside the {} at {at} changed", data.len());
    assert!(back[1..=data.len()] == *data, "{} bytes at {at} arrived differently", data.len());
}

#[test]
fn every_form_copies_every_byte_both_ways() {
    let fake = Fake::new();
    for shape in FORMS {
        for piece in [256, 65536] {
            let mut copier = fake.start(shape, ResidentOptions { piece, ..OPTIONS });
            assert_eq!(copier.shape(), shape);
            let buffer = fake.device((1 << 20) + 100);
            for (bytes, at) in [(0, 1), (1, 1), (63, 5), (64, 64), (65, 7), (4096, 16), ((1 << 20) + 3, 13)] {
                there_and_back(&mut copier, &buffer, at, &noise(bytes, bytes as u64));
            }
            assert_eq!(copier.launches(), 1);
        }
    }
}

#[test]
fn pinned_memory_is_copied_in_place_both_ways() {
    let fake = Fake::new();
    for shape in FORMS {
        let mut copier = fake.start(shape, OPTIONS);
        let bytes = 5 << 20 | 17;
        let (host, there) = (fake.gpu.pinned_buffer(bytes, Caching::Cached).unwrap(), fake.device(bytes));
        let back = fake.gpu.pinned_buffer(bytes, Caching::Cached).unwrap();
        let data = noise(bytes, 3);
        host.claim(0..bytes, Access::Write).unwrap().bytes_mut().unwrap().copy_from_slice(&data);
        let mut write = there.claim(0..bytes, Access::Write).unwrap();
        copier.copy(&host.claim(0..bytes, Access::Read).unwrap(), &mut write).unwrap();
        drop(write);
        let mut write = back.claim(0..bytes, Access::Write).unwrap();
        copier.copy(&there.claim(0..bytes, Access::Read).unwrap(), &mut write).unwrap();
        assert!(write.bytes().unwrap() == data);
    }
}

#[test]
fn a_lease_that_ends_between_copies_costs_a_launch_and_nothing_else() {
    let fake = Fake::new();
    let mut copier = fake.start(ResidentShape::Gpc4, ResidentOptions { lease: Nanos(0), ..OPTIONS });
    let buffer = fake.device(20_000);
    for round in 0..50 {
        there_and_back(&mut copier, &buffer, 1 + round % 16, &noise(17_000, round as u64));
    }
    assert!(copier.launches() > 1);
}

#[test]
fn a_copier_leaves_at_the_end_of_its_lease_however_many_copies_come_and_not_before() {
    let lease = Nanos(200_000_000);
    let minute = Nanos(60_000_000_000);
    for shape in FORMS {
        let (fake, began) = (Fake::new(), clock::now());
        let mut copier = fake.start(shape, ResidentOptions { lease, ..OPTIONS });
        let buffer = fake.device(200);
        let passed = AtomicBool::new(false);
        std::thread::scope(|threads| {
            // As whoever waits for the whole device: until all that was launched before has ended.
            threads.spawn(|| {
                let launched = fake.number(b"headway_fake_resident_launches\0");
                while fake.number(b"headway_fake_resident_ends\0") < launched {
                    std::thread::yield_now();
                }
                passed.store(true, Ordering::Release);
            });
            let mut round = 0;
            while copier.launches() < 4 || !passed.load(Ordering::Acquire) {
                there_and_back(&mut copier, &buffer, 1, &noise(100, round));
                round += 1;
                assert!(
                    clock::now() - began < minute,
                    "{shape:?}: in a minute it left {} times",
                    copier.launches() - 1
                );
            }
        });
        let least = Nanos(lease.0 * (copier.launches() - 1));
        assert!(
            clock::now() - began >= least,
            "{shape:?}: {} launches cost more than one in a lease",
            copier.launches()
        );
    }
}

#[test]
fn no_command_is_lost_when_units_leave_at_any_moment() {
    let fake = Fake::new();
    for shape in FORMS {
        let mut copier = fake.start(shape, OPTIONS);
        fake.behave(Behaviour::Hasty);
        let buffer = fake.device(700_000);
        for round in 0..200 {
            there_and_back(&mut copier, &buffer, 1 + round, &noise(10_000 + round, round as u64));
            there_and_back(&mut copier, &buffer, 1 + round, &noise(41 * round, round as u64));
        }
        // More commands than are under way at once.
        there_and_back(&mut copier, &buffer, 3, &noise(600_000, 7));
        fake.behave(Behaviour::Normal);
        assert!(copier.launches() > 10, "{shape:?}: {} launches", copier.launches());
    }
}

#[test]
fn a_parked_copier_is_off_the_device_until_the_next_copy() {
    let fake = Fake::new();
    let mut copier = fake.start(ResidentShape::Hub, OPTIONS);
    let buffer = fake.device(100);
    for launches in 1..4 {
        there_and_back(&mut copier, &buffer, 1, &noise(50, launches));
        assert_eq!(copier.launches(), launches);
        copier.park().unwrap();
        copier.park().unwrap();
    }
    assert_eq!(fake.number(b"headway_fake_resident_launches\0"), 3);
}

#[test]
fn everything_is_given_back_in_the_end() {
    let fake = Fake::new();
    let copier = fake.start(ResidentShape::Gpc4, OPTIONS);
    assert!(fake.number(b"headway_fake_live\0") > 0);
    drop(copier);
    let Fake { gpu, path, _folder } = fake;
    drop(gpu);
    // SAFETY: as in `Fake::number`.
    let live = unsafe {
        libloading::Library::new(&path).unwrap().get::<unsafe extern "C" fn() -> i32>(b"headway_fake_live\0").unwrap()()
    };
    assert_eq!(live, 0);
}

#[test]
fn a_copier_that_cannot_begin_times_out_and_never_does_that_copy() {
    let fake = Fake::new();
    let mut copier = fake.start(ResidentShape::Gpc4, ResidentOptions { patience: IMPATIENT, ..OPTIONS });
    let buffer = fake.device(64);
    let span = || buffer.claim(0..64, Access::Write).unwrap();
    copier.copy_in(&mut span(), &[1; 64]).unwrap();
    copier.park().unwrap();
    fake.behave(Behaviour::Held);
    for _ in 0..2 {
        let error = copier.copy_in(&mut span(), &[2; 64]).unwrap_err();
        assert!(matches!(error, DeviceError::Timeout { after: IMPATIENT, .. }), "{error}");
        assert!(error.to_string().contains("`gpc4` on GPU 0 (0 of 8 blocks"), "{error}");
        assert!(error.to_string().contains("has not begun to run"), "{error}");
    }
    assert!(matches!(copier.park().unwrap_err(), DeviceError::Timeout { .. }));
    fake.behave(Behaviour::Normal);
    let mut back = [0; 64];
    // The launch that was held must leave before another one begins, in its own time.
    while let Err(error) = copier.copy_out(&mut back, &buffer.claim(0..64, Access::Read).unwrap()) {
        assert!(matches!(error, DeviceError::Timeout { .. }), "{error}");
    }
    assert_eq!(back, [1; 64], "a copy that was given up was done later");
}

#[test]
fn a_copier_dropped_before_it_began_leaves_its_memory_alone() {
    let fake = Fake::new();
    let mut copier = fake.start(ResidentShape::Hub, ResidentOptions { patience: IMPATIENT, ..OPTIONS });
    copier.park().unwrap();
    fake.behave(Behaviour::Held);
    let buffer = fake.device(64);
    copier.copy_in(&mut buffer.claim(0..64, Access::Write).unwrap(), &[2; 64]).unwrap_err();
    let before = fake.number(b"headway_fake_live\0");
    drop(copier);
    assert_eq!(fake.number(b"headway_fake_live\0"), before, "the launch to come still writes there");
    fake.behave(Behaviour::Normal);
    let mut other = fake.start(ResidentShape::Hub, OPTIONS);
    there_and_back(&mut other, &buffer, 1, &noise(60, 1));
}

#[test]
fn a_copier_that_begins_and_does_not_answer_loses_the_device() {
    let fake = Fake::new();
    let mut copier = fake.start(ResidentShape::Hub, ResidentOptions { patience: IMPATIENT, ..OPTIONS });
    copier.park().unwrap();
    fake.behave(Behaviour::Stuck);
    let buffer = fake.device(64);
    let mut span = buffer.claim(0..64, Access::Write).unwrap();
    let error = copier.copy_in(&mut span, &[2; 64]).unwrap_err();
    assert!(matches!(error, DeviceError::Timeout { .. }), "{error}");
    assert!(error.to_string().contains("has begun and does not leave"), "{error}");
    assert_eq!(copier.copy_in(&mut span, &[2; 64]), Err(DeviceError::DeviceLost));
    assert_eq!(copier.park(), Err(DeviceError::DeviceLost));
    drop(copier);
    fake.behave(Behaviour::Normal);
    assert_eq!(fake.gpu.device_buffer(1, CpuReach::Device).unwrap_err(), DeviceError::DeviceLost);
}

#[test]
fn a_fault_of_the_kernel_loses_the_device() {
    for (behaviour, expected) in [(Behaviour::Faulty, "CUDA_ERROR_ILLEGAL_ADDRESS"), (Behaviour::Silent, "is lost")] {
        let fake = Fake::new();
        let mut copier = fake.start(ResidentShape::Gpc, OPTIONS);
        copier.park().unwrap();
        fake.behave(behaviour);
        let buffer = fake.device(128);
        let error = copier.copy_in(&mut buffer.claim(0..64, Access::Write).unwrap(), &[2; 64]).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        // The bytes of the first one may still be in use.
        let error = copier.copy_in(&mut buffer.claim(64..128, Access::Write).unwrap(), &[2; 64]).unwrap_err();
        assert_eq!(error, DeviceError::DeviceLost);
    }
}

#[test]
fn a_launch_that_fails_is_reported_and_its_command_is_not_done_later() {
    let fake = Fake::with(&["-DFAIL_CALL=\"cuLaunchKernel\"", "-DFAIL_CODE=1", "-DFAIL_AT=2"]);
    let mut copier = fake.start(ResidentShape::Hub, OPTIONS);
    let buffer = fake.device(64);
    let span = || buffer.claim(0..64, Access::Write).unwrap();
    copier.copy_in(&mut span(), &[1; 64]).unwrap();
    copier.park().unwrap();
    let error = copier.copy_in(&mut span(), &[2; 64]).unwrap_err();
    assert!(matches!(error, DeviceError::Driver { call: "cuLaunchKernel", code: 1, .. }), "{error}");
    let mut back = [0; 64];
    copier.copy_out(&mut back, &buffer.claim(0..64, Access::Read).unwrap()).unwrap();
    assert_eq!(back, [1; 64]);
}

fn reasons(fake: &Fake) -> Vec<Option<String>> {
    let found = fake.gpu.residents();
    assert_eq!(found.iter().map(|(shape, _)| *shape).collect::<Vec<_>>(), FORMS);
    found.into_iter().map(|(_, state)| state.err().map(|error| error.to_string())).collect()
}

#[test]
fn what_is_missing_is_named_with_a_remedy() {
    assert_eq!(reasons(&Fake::new()), [None, None, None]);
    let all = reasons(&Fake::with(&["-DKERNEL_TIME_LIMIT=1"]));
    assert!(all.iter().all(|reason| reason.as_ref().unwrap().contains("ends kernels that run for long")), "{all:?}");
    for (option, texts) in [
        ("-DCAPABILITY_MAJOR=8", ["need compute capability 9.0, this GPU has 8.76", "this GPU has 8.76"]),
        ("-DCLUSTERS_OF_16=3", ["", "3 of 16 blocks, 2 of 12 blocks, 2 of 10 blocks; use `gpc` or `hub`"]),
        ("-DcuLaunchKernelEx=gone", ["does not have cuLaunchKernelEx", "11.8 or later"]),
    ] {
        let found = reasons(&Fake::with(&[option]));
        assert_eq!(found[0], None, "{option}");
        for (reason, text) in found[1..].iter().zip(texts) {
            let reason = reason.as_deref().unwrap_or_default();
            assert!(reason.contains(text) && reason.is_empty() == text.is_empty(), "{option}: {reason}");
        }
    }
}

#[test]
fn blocks_that_share_a_multiprocessor_are_refused() {
    let fake = Fake::new();
    fake.behave(Behaviour::Crowded);
    let error = fake.gpu.resident(ResidentShape::Gpc4, OPTIONS).err().unwrap();
    assert!(error.to_string().contains("two of its blocks landed on one multiprocessor: [[5, 5], [5"), "{error}");
    fake.gpu.resident(ResidentShape::Hub, OPTIONS).unwrap();
}

#[test]
fn mistakes_of_the_caller_are_told_and_change_nothing() {
    let fake = Fake::new();
    for piece in [0, 100, 264, 1 << 21] {
        let error = fake.gpu.resident(ResidentShape::Hub, ResidentOptions { piece, ..OPTIONS }).err().unwrap();
        assert!(matches!(error, DeviceError::Invalid { .. }), "{piece}: {error}");
    }
    let mut copier = fake.start(ResidentShape::Hub, OPTIONS);
    let (there, host) = (fake.device(64), fake.gpu.pinned_buffer(64, Caching::Cached).unwrap());
    let write = |buffer: &Buffer| buffer.claim(0..64, Access::Write).unwrap();
    let read = |buffer: &Buffer| buffer.claim(0..64, Access::Read).unwrap();
    let other = fake.device(64);
    let stranger = Fake::new();
    let elsewhere = stranger.device(64);
    let refused = |result: Result<(), DeviceError>| {
        assert!(matches!(result, Err(DeviceError::Invalid { what: "resident copy", .. })), "{result:?}");
    };
    refused(copier.copy_in(&mut write(&there), &[0; 63]));
    refused(copier.copy_in(&mut read(&there), &[0; 64]));
    refused(copier.copy_in(&mut write(&host), &[0; 64]));
    refused(copier.copy_in(&mut write(&elsewhere), &[0; 64]));
    refused(copier.copy_out(&mut [0; 65], &read(&there)));
    refused(copier.copy_out(&mut [0; 64], &read(&host)));
    refused(copier.copy(&read(&there), &mut write(&other)));
    refused(copier.copy(&read(&there), &mut read(&host)));
    refused(copier.copy(&there.claim(0..63, Access::Read).unwrap(), &mut write(&host)));
    there_and_back(&mut copier, &there, 1, &noise(60, 1));
}

#[test]
fn two_copiers_share_a_gpu() {
    let fake = Arc::new(Fake::new());
    std::thread::scope(|threads| {
        for seed in 0..2u64 {
            let fake = Arc::clone(&fake);
            threads.spawn(move || {
                let mut copier = fake.start(ResidentShape::Hub, OPTIONS);
                let buffer = fake.device(5000);
                for round in 0..100 {
                    there_and_back(&mut copier, &buffer, 1, &noise(4097, 2 * round + seed));
                }
            });
        }
    });
}
