//! What bounds on CPUs and multiprocessors leave, and copies that go by what is learnt, on emulated GPUs.

use std::sync::Arc;

use headway_core::files::machine::EndpointId;
use headway_core::models::transfer::learning::Prefer;
use headway_core::models::transfer::{Method, Profile};
use headway_core::units::Bytes;
use headway_device::emu::{EmuGpu, EmuSpec};
use headway_device::gpu::{Caching, CpuReach, Gpu};
use headway_device::{Access, DeviceLimits};
use headway_runtime::copy::{At, Copier, CopyError, CopyLimits, CopyOptions, How, LearningGpu, LearningOptions};

const LEN: usize = 12 << 20;

fn copier(limits: CopyLimits) -> Copier {
    let room = DeviceLimits { host_bytes_max: Bytes(1 << 30), ..DeviceLimits::default() };
    let gpu: Arc<dyn Gpu> = Arc::new(EmuGpu::open(EmuSpec { limits: room, ..EmuSpec::new("gpu0") }));
    let options = CopyOptions { limits, ..CopyOptions::default() };
    Copier::new(vec![(EndpointId(0), gpu)], Profile::default(), options).unwrap()
}

fn learn(copier: &Copier, options: LearningOptions) -> bool {
    let gpu = LearningGpu { name: "NVIDIA H200".into(), uuid: None, pci: None, cuda: None };
    copier.chooser(0).unwrap().learn(&gpu, LearningOptions { keeps: false, ..options })
}

/// Copies in and out again by `how`; the methods that were used.
fn there_and_back(copier: &Copier, how: How) -> Result<[Method; 2], CopyError> {
    let buffer = copier.gpus()[0].device_buffer(LEN, CpuReach::Device).unwrap();
    let at = At { buffer: &buffer, offset: 0 };
    let data: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
    let mut back = vec![1; LEN];
    let made = [copier.copy_in(at, &data, how)?.method, copier.copy_out(&mut back, at, how)?.method];
    assert!(back == data, "the bytes");
    Ok(made)
}

#[test]
fn with_one_cpu_nothing_is_staged_and_with_two_one_thread_stages() {
    let one = copier(CopyLimits { cpus_max: 1, ..CopyLimits::default() });
    assert_eq!(there_and_back(&one, How::Auto).unwrap(), [Method::Pageable; 2]);
    let refused = there_and_back(&one, How::By(Method::Staged)).unwrap_err();
    assert!(refused.to_string().contains("staged"), "{refused}");
    let two = copier(CopyLimits { cpus_max: 2, ..CopyLimits::default() });
    assert_eq!(there_and_back(&two, How::By(Method::Staged)).unwrap(), [Method::Staged; 2]);
}

#[test]
fn without_a_multiprocessor_no_kernel_copies() {
    let copier = copier(CopyLimits { multiprocessors_max: 0, ..CopyLimits::default() });
    let device = copier.gpus()[0].clone();
    let pinned = device.pinned_buffer(LEN, Caching::Cached).unwrap();
    pinned.claim(0..LEN, Access::Write).unwrap().bytes_mut().unwrap().fill(7);
    let buffer = device.device_buffer(LEN, CpuReach::Device).unwrap();
    let (to, from) = (At { buffer: &buffer, offset: 0 }, At { buffer: &pinned, offset: 0 });
    let direction = headway_core::models::transfer::Direction::H2d;
    assert!(copier.copy_pinned(direction, to, from, LEN, How::By(Method::Kernel)).is_err());
    assert!(copier.copy_pinned(direction, to, from, LEN, How::Auto).is_ok());
}

#[test]
fn unnamed_copies_go_by_what_is_learnt_where_no_profile_says_it() {
    let always = copier(CopyLimits::default());
    assert!(learn(&always, LearningOptions { always: true, ..LearningOptions::default() }));
    always.prepare().unwrap();
    assert_eq!(there_and_back(&always, How::Auto).unwrap(), [Method::Staged; 2]);

    let never = copier(CopyLimits::default());
    let driver_only = LearningOptions { threads_max: 0, ..LearningOptions::default() };
    assert!(learn(&never, driver_only));
    never.prepare().unwrap();
    for _ in 0..3 {
        assert_eq!(there_and_back(&never, How::Auto).unwrap(), [Method::Pageable; 2]);
    }
    assert_eq!(never.chooser(0).unwrap().timed(), 6, "what the driver's own calls take is learnt, too");
    assert!(!learn(&never, LearningOptions { prefer: Prefer::Fastest, ..driver_only }), "a GPU learns in one place");
    assert!(never.chooser(1).is_none());
}
