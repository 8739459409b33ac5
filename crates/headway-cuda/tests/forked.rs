//! A forked child of a process that uses GPUs: every entry is an error value there, nothing hangs or crashes, and the parent goes
//! on undisturbed. Against a library with the driver's interface and no GPU behind it.

mod support;

use std::sync::{Arc, LazyLock};

use headway_core::files::machine::{EndpointId, EngineClass};
use headway_core::models::transfer::{Direction, Method, Profile, ResidentShape, WindowMapping};
use headway_core::units::{Bytes, Nanos};
use headway_cuda::{CudaGpu, Driver};
use headway_device::gpu::{Caching, CpuReach, Gpu, Operation, Piece, Resident, ResidentOptions};
use headway_device::{Access, DeviceError, DeviceLimits, Engines, HostKind};
use headway_os::fork::holds_in_a_child;
use headway_runtime::copy::{At, Copier, CopyError, CopyOptions, How};
use support::Fake;

static MAPPABLE: LazyLock<Fake> = LazyLock::new(|| Fake::build(&["-DMEMFD", "-DVERSION=13030", "-DMMAP_ATTRIBUTE=1"]));

fn limits() -> DeviceLimits {
    DeviceLimits { buffers_max: 64, host_bytes_max: Bytes(512 << 20), ..DeviceLimits::default() }
}

/// Whether the call was refused because of the fork; standard error names it if not.
fn refused<R>(what: &str, result: Result<R, DeviceError>) -> bool {
    let forked =
        matches!(&result,Err(DeviceError::Unavailable{reason,.. })if reason.contains("was forked from the one"));
    if !forked {
        eprintln!("{what}: {:?}", result.map(drop));
    }
    forked
}

#[test]
fn every_entry_of_a_gpu_is_an_error_in_a_forked_child() {
    let driver = MAPPABLE.driver();
    let gpu = CudaGpu::open(&driver, 0, limits()).unwrap();
    let there = gpu.device_buffer(4096, CpuReach::Window(WindowMapping::DmaBuf)).unwrap();
    let pinned = gpu.pinned_buffer(4096, Caching::Cached).unwrap();
    let combined = gpu.pinned_buffer(4096, Caching::WriteCombined).unwrap();
    let plain = vec![1u8; 4096];
    let mut queue = gpu.queue(true).unwrap();
    let write = || there.claim(0..64, Access::Write).unwrap();
    let read = || pinned.claim(0..64, Access::Read).unwrap();
    assert!(holds_in_a_child(|| {
        let moved = queue.submit(Operation::Copy { from: read(), to: write() }, 1);
        let mut all = true;
        all &= refused("driver", Driver::load(&MAPPABLE.path));
        all &= refused("open", CudaGpu::open(&driver, 0, limits()));
        all &= refused("device buffer", gpu.device_buffer(64, CpuReach::Device));
        all &= refused("window", gpu.device_buffer(64, CpuReach::Window(WindowMapping::DmaBuf)));
        all &= refused("pinned buffer", gpu.pinned_buffer(64, Caching::Cached));
        all &= refused("combined buffer", gpu.pinned_buffer(64, Caching::WriteCombined));
        all &= refused("host kind", gpu.host_kind(&plain));
        all &= refused("queue", gpu.queue(false));
        all &= refused("submit", moved);
        all &= refused("copy in", gpu.copy_in(&mut write(), &plain[..64]));
        all &= refused("copy out", gpu.copy_out(&mut [0; 64], &there.claim(0..64, Access::Read).unwrap()));
        all &= refused("pinned bytes", read().bytes());
        all &= refused("combined bytes", combined.claim(0..64, Access::Write).unwrap().bytes_mut());
        all &= write().store(0, &plain[..64]).is_err();
        all &= there.claim(0..64, Access::Read).unwrap().load(0, &mut [0; 64]).is_err();
        all &= gpu.pager(WindowMapping::DmaBuf, &there).is_err();
        all &= refused("round trips", gpu.round_trips(WindowMapping::DmaBuf, 1));
        all
    }));
    queue.submit(Operation::Copy { from: read(), to: write() }, 2).unwrap();
    assert_eq!(headway_device::conformance::finish(queue.as_mut(), 1)[0].result, Ok(()));
}

#[test]
fn a_resident_copier_writes_nothing_in_a_forked_child_and_goes_on_in_the_parent() {
    let gpu = CudaGpu::open(&MAPPABLE.driver(), 0, limits()).unwrap();
    let patience = Nanos(60_000_000_000);
    let options = ResidentOptions { piece: 4096, lease: Nanos(10_000_000_000), patience };
    let mut copier = gpu.start_resident(ResidentShape::Hub, options).unwrap();
    assert!(copier.has_window(), "its mailbox is device memory, at an address that only the device may use");
    let (there, pinned) =
        (gpu.device_buffer(4096, CpuReach::Device).unwrap(), gpu.pinned_buffer(4096, Caching::Cached).unwrap());
    let write = || there.claim(0..64, Access::Write).unwrap();
    copier.copy_in(&mut write(), &[5; 64]).unwrap();
    assert!(holds_in_a_child(|| {
        let from = pinned.claim(0..64, Access::Read).unwrap();
        let mut all = true;
        all &= refused("copy in", copier.copy_in(&mut write(), &[9; 64]));
        all &= refused("copy out", copier.copy_out(&mut [0; 64], &there.claim(0..64, Access::Read).unwrap()));
        all &= refused("copy", copier.copy(&from, &mut write()));
        all &= refused("park", copier.park());
        all &= refused("start", gpu.start_resident(ResidentShape::Hub, options));
        all
    }));
    let mut back = [0; 64];
    copier.copy_out(&mut back, &there.claim(0..64, Access::Read).unwrap()).unwrap();
    assert_eq!((back, copier.launches()), ([5; 64], 1), "what the child tried was seen by the device");
}

#[test]
fn a_copier_and_a_device_are_errors_in_a_forked_child_and_can_be_dropped_there() {
    let gpus = CudaGpu::open_all(&MAPPABLE.driver(), limits()).unwrap();
    let mut device = Engines::open(Arc::new(CudaGpu::open(&MAPPABLE.driver(), 0, limits()).unwrap())).unwrap();
    let there = gpus[0].device_buffer(1 << 20, CpuReach::Device).unwrap();
    let other = gpus[1].device_buffer(1 << 20, CpuReach::Device).unwrap();
    let gpus = gpus.into_iter().zip(1..).map(|(gpu, id)| (EndpointId(id), Arc::new(gpu) as Arc<dyn Gpu>));
    let copier = Copier::new(gpus.collect(), Profile::default(), CopyOptions::default()).unwrap();
    copier.prepare().unwrap();
    let (at, mut host) = (At { buffer: &there, offset: 0 }, vec![7u8; 1 << 20]);
    // Everything that has threads has them now.
    let pieces: Vec<Piece> = (0..16).map(|at| Piece { from: at << 16, to: at << 16, len: 60_000 }).collect();
    for method in [Method::Staged, Method::Pageable, Method::Resident(None)] {
        copier.copy_in(at, &host, How::By(method)).unwrap();
    }
    copier.copy_many_in(at, &host, &pieces, None).unwrap();
    let ordinary = device.host_buffer(64, HostKind::Pageable).unwrap();
    let pageable = |device: &mut Engines, tag| {
        let ends = (ordinary.claim(0..64, Access::Read).unwrap(), there.claim(0..64, Access::Write).unwrap());
        device.copy(EngineClass::H2d, Method::Pageable, ends, tag)
    };
    pageable(&mut device, 1).unwrap();
    let mut done = Vec::new();
    support::wait_until("the copy", || {
        device.poll(&mut done);
        !done.is_empty()
    });
    let mut both = Some((copier, device));
    assert!(holds_in_a_child(|| {
        let Some((copier, mut device)) = both.take() else { return false };
        let refused_copy = |what: &str, result: Result<_, CopyError>| match result {
            Err(CopyError::Unavailable { source, .. }) => refused(what, Err::<(), _>(source)),
            other => {
                eprintln!("{what}: {other:?}");
                false
            }
        };
        let methods = [Method::Pageable, Method::Staged, Method::Dma, Method::Resident(None), Method::Window(None)];
        let mut all = methods.into_iter().all(|method| {
            let how = How::By(method);
            refused_copy("copy in", copier.copy_in(at, &host, how))
                && refused_copy("copy out", copier.copy_out(&mut host, at, how))
        });
        all &= refused_copy("auto", copier.copy_in(at, &host, How::Auto));
        all &= refused_copy("many", copier.copy_many_in(at, &host, &pieces, None));
        all &= refused_copy("peer", copier.copy_peer(At { buffer: &other, offset: 0 }, at, 64));
        let pinned = copier.copy_pinned(Direction::H2d, at, at, 64, How::Auto);
        all &= refused_copy("pinned", pinned);
        all &= refused("submit", pageable(&mut device, 2));
        all &= refused("host buffer", device.host_buffer(64, HostKind::Pageable));
        drop((copier, device));
        all
    }));
    let (copier, _device) = both.expect("the child had a copy of it");
    copier.copy_in(at, &host, How::By(Method::Staged)).unwrap();
}
