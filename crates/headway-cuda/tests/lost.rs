//! GPUs that fail for good, or hang, in the middle of copies: against a library with the driver's interface and no GPU behind
//! it. No call hangs, each returns an error, and memory comes back when nothing can use it any more.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use headway_core::decisions::staging::StagingDirection;
use headway_core::files::machine::{EndpointId, EngineClass};
use headway_core::models::transfer::{
    Direction, HostMemory, Method, Profile, ResidentShape, WindowMapping, default_tuning,
};
use headway_core::units::{Bytes, Nanos};
use headway_cuda::CudaGpu;
use headway_device::buffer::lend;
use headway_device::gpu::{Caching, CpuReach, Gpu, Operation, Piece};
use headway_device::{Access, Buffer, DeviceError, DeviceLimits, Engines, graveyard};
use headway_runtime::copy::{At, Copier, CopyError, CopyLimits, CopyOptions, How, ManyBy};
use headway_runtime::staging::{PoolOptions, Staged, StagingError, StagingPool, copy_pinned};
use support::{Fake, in_time, wait_until};

/// Some chunks.
const LEN: usize = 600 << 10;
const ILLEGAL_ADDRESS: i32 = 700;

static MAPPABLE: LazyLock<Fake> =
    LazyLock::new(|| Fake::build(&["-DMEMFD", "-DVERSION=13030", "-DMMAP_ATTRIBUTE=1", "-DLAG=3"]));

fn limits() -> DeviceLimits {
    DeviceLimits { buffers_max: 64, host_bytes_max: Bytes(512 << 20), ..DeviceLimits::default() }
}

/// A copier over two GPUs of a library of its own, with memory on the first, and pinned memory.
struct Fixture {
    copier: Copier,
    device: Buffer,
    other: Buffer,
    pinned: Buffer,
    fake: Fake,
}

impl Fixture {
    fn new() -> Self {
        let fake = MAPPABLE.another();
        let gpus = CudaGpu::open_all(&fake.driver(), limits()).unwrap();
        let gpus: Vec<Arc<dyn Gpu>> = gpus.into_iter().map(|gpu| Arc::new(gpu) as Arc<dyn Gpu>).collect();
        let device = gpus[0].device_buffer(LEN, CpuReach::Window(WindowMapping::DmaBuf)).unwrap();
        let other = gpus[1].device_buffer(LEN, CpuReach::Device).unwrap();
        let pinned = gpus[0].pinned_buffer(LEN, Caching::Cached).unwrap();
        let limits = CopyLimits {
            chunk_max: Bytes(128 << 10),
            pinned_max: Bytes(16 << 20),
            patience: Nanos(60_000_000_000),
            ..CopyLimits::default()
        };
        let options = CopyOptions { limits, multipath: true, ..CopyOptions::default() };
        let gpus = gpus.into_iter().zip(1..).map(|(gpu, id)| (EndpointId(id), gpu)).collect();
        let copier = Copier::new(gpus, Profile::default(), options).unwrap();
        copier.prepare().unwrap();
        Self { copier, device, other, pinned, fake }
    }

    fn at(&self) -> At<'_> {
        At { buffer: &self.device, offset: 0 }
    }

    /// A copy of `case`, whose host end is borrowed from this call.
    fn copy(&self, case: Case) -> Result<(), CopyError> {
        let mut ordinary = vec![3; LEN];
        let mut span = self.pinned.claim(0..LEN, Access::Write).unwrap();
        let host = if case.pinned { span.bytes_mut().unwrap() } else { &mut ordinary[..] };
        let out = case.direction == Direction::D2h;
        let pieces: Vec<Piece> =
            (0..LEN / 4096).map(|at| Piece { from: at * 4096, to: at * 4096, len: 3000 }).collect();
        let report = match case.what {
            What::By(method) if out => self.copier.copy_out(host, self.at(), How::By(method)),
            What::By(method) => self.copier.copy_in(self.at(), host, How::By(method)),
            What::Pieces(by) if out => self.copier.copy_many_out(host, self.at(), &pieces, Some(by)),
            What::Pieces(by) => self.copier.copy_many_in(self.at(), host, &pieces, Some(by)),
            What::Peer if out => self.copier.copy_peer(At { buffer: &self.other, offset: 0 }, self.at(), LEN),
            What::Peer => self.copier.copy_peer(self.at(), At { buffer: &self.other, offset: 0 }, LEN),
        };
        report.map(drop)
    }
}

#[derive(Clone, Copy, Debug)]
enum What {
    By(Method),
    Pieces(ManyBy),
    Peer,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    what: What,
    direction: Direction,
    /// Whether the borrowed memory is pinned, so that engines use it themselves.
    pinned: bool,
    /// The call with which the context ends; 0 = before the copy begins.
    ends_at: (&'static str, i32),
}

/// Copies, in and out, whose context ends at each of these calls.
fn cases() -> Vec<Case> {
    let by = |method| What::By(method);
    let event = ("cuEventQuery", 2);
    let mut cases = Vec::new();
    for direction in [Direction::H2d, Direction::D2h] {
        let engine = if direction == Direction::H2d { "cuMemcpyHtoDAsync_v2" } else { "cuMemcpyDtoHAsync_v2" };
        let call = if direction == Direction::H2d { "cuMemcpyHtoD_v2" } else { "cuMemcpyDtoH_v2" };
        for (what, pinned, ends_at) in [
            (by(Method::Dma), true, event),
            (by(Method::Dma), true, (engine, 2)),
            (What::By(Method::Register), false, event),
            (by(Method::Pinning), false, event),
            (by(Method::Pageable), false, (call, 1)),
            (by(Method::Pageable), false, ("", 0)),
            (by(Method::Staged), false, event),
            (by(Method::Staged), false, (engine, 2)),
            (by(Method::Multipath), false, event),
            (by(Method::Multipath), true, event),
            (by(Method::Kernel), true, event),
            (by(Method::Kernel), true, ("cuLaunchKernel", 1)),
            (What::By(Method::Resident(Some(ResidentShape::Hub))), false, ("", 0)),
            (What::By(Method::Resident(Some(ResidentShape::Gpc4))), true, ("", 0)),
            (What::Peer, false, event),
            (What::Pieces(ManyBy::Gather), false, event),
            (What::Pieces(ManyBy::Queue(headway_device::gpu::Mover::Loop)), true, event),
            (What::Pieces(ManyBy::Resident), false, ("", 0)),
        ] {
            cases.push(Case { what, direction, pinned, ends_at });
        }
    }
    cases
}

#[test]
fn whatever_copies_when_the_context_ends_returns_the_error_and_the_borrowed_memory() {
    for case in cases() {
        let what = format!("{case:?}");
        in_time(&what.clone(), move || {
            let fixture = Fixture::new();
            fixture.copy(case).unwrap_or_else(|error| panic!("{what} before: {error:?}"));
            let (call, at) = case.ends_at;
            fixture.fake.fail(call, ILLEGAL_ADDRESS, at);
            let error = fixture.copy(case).expect_err(&what);
            let text = format!("{error:?}");
            assert!(text.contains("ILLEGAL_ADDRESS") || text.contains("DeviceLost"), "{what}: {text}");
            fixture.copy(case).expect_err("the context is gone");
            // Whatever is left of it is given up without waiting for the GPU.
            drop(fixture);
        });
    }
}

#[test]
fn windows_go_on_without_the_driver_and_do_not_hang() {
    for method in [Method::Window, Method::PagedWindow] {
        for direction in [Direction::H2d, Direction::D2h] {
            let what = What::By(method(Some(WindowMapping::DmaBuf)));
            let case = Case { what, direction, pinned: false, ends_at: ("", 0) };
            in_time(&format!("{case:?}"), move || {
                let fixture = Fixture::new();
                fixture.copy(case).unwrap();
                fixture.fake.fail("", ILLEGAL_ADDRESS, 0);
                // The CPU alone moves the bytes: the copy may end well, or say that the device is lost.
                if let Err(error) = fixture.copy(case) {
                    assert!(format!("{error:?}").contains("ILLEGAL_ADDRESS"), "{error:?}");
                }
            });
        }
    }
}

#[test]
fn a_context_that_was_given_up_lets_copies_end_that_the_engines_still_make() {
    let fake = MAPPABLE.another();
    let gpu = CudaGpu::open(&fake.driver(), 0, limits()).unwrap();
    let (host, there) =
        (gpu.pinned_buffer(64, Caching::Cached).unwrap(), gpu.device_buffer(64, CpuReach::Device).unwrap());
    let (other, target) =
        (gpu.pinned_buffer(64, Caching::Cached).unwrap(), gpu.device_buffer(64, CpuReach::Device).unwrap());
    let (mut queue, mut second) = (gpu.queue(false).unwrap(), gpu.queue(false).unwrap());
    let ordinary = gpu.pageable_buffer(4096).unwrap();
    let registered = gpu.register(&ordinary, 0..4096).unwrap();
    fake.hold(true);
    let from = host.claim(0..64, Access::Read).unwrap();
    queue.submit(Operation::Copy { from, to: there.claim(0..64, Access::Write).unwrap() }, 7).unwrap();
    let from = other.claim(0..64, Access::Read).unwrap();
    second.submit(Operation::Copy { from, to: target.claim(0..64, Access::Write).unwrap() }, 8).unwrap();
    // What does not end in time is given up with the context.
    in_time("the drop of a queue", move || drop(second));
    assert!(matches!(gpu.queue(false).err(), Some(DeviceError::DeviceLost)));
    let before = fake.live();
    drop(registered);
    wait_until("the pages are unregistered", || ordinary.claim(0..4096, Access::Write).is_ok());
    assert_eq!(fake.live(), before - 1, "the driver knows them no more");
    assert_eq!(queue.poll(), None, "it may still run");
    assert!(host.claim(0..64, Access::Write).is_err() && other.claim(0..64, Access::Write).is_err());
    fake.hold(false);
    wait_until("the first copy ends", || queue.poll().is_some_and(|done| done.result.is_ok()));
    wait_until("the memory of the second one comes back", || other.claim(0..64, Access::Write).is_ok());
    host.claim(0..64, Access::Write).unwrap();
}

#[expect(unsafe_code, reason = "addresses are lent")]
/// A copy into the GPU whose chunk does not end, and which is given up: the call that lends one of its ends returns when the chunk has ended.
fn comes_back_with_its_chunk(lends_host: bool) {
    let fake = MAPPABLE.another();
    let cuda = Arc::new(CudaGpu::open(&fake.driver(), 0, limits()).unwrap());
    let gpu: Arc<dyn Gpu> = Arc::clone(&cuda) as _;
    let options = PoolOptions { patience: Nanos(100_000_000), ..PoolOptions::default() };
    let pool = StagingPool::new(Arc::clone(&gpu), options);
    let there = gpu.device_buffer(LEN, CpuReach::Device).unwrap();
    let pinned = gpu.pinned_buffer(LEN, Caching::Cached).unwrap();
    let (given_up, given_back) = (AtomicBool::new(false), AtomicBool::new(false));
    let copy = |there: &Buffer, host: &Buffer| {
        let (to, from) = (At { buffer: there, offset: 0 }, At { buffer: host, offset: 0 });
        let how = Staged::new(default_tuning(Direction::H2d, HostMemory::Pinned));
        let copied = copy_pinned(&[&pool], StagingDirection::In, to, from, LEN, &how);
        assert!(matches!(copied, Err(StagingError::Timeout { .. })), "{copied:?}");
        given_up.store(true, Ordering::Release);
    };
    fake.hold(true);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            if lends_host {
                let held = pinned.claim(0..LEN, Access::Read).unwrap();
                lend(held.bytes().unwrap(), Some(gpu.domain()), |host| copy(&there, host));
            } else {
                let address = there.claim(0..LEN, Access::Write).unwrap().as_ptr().addr() as u64;
                // SAFETY: the memory of `there`, which stays.
                unsafe { cuda.lend(address, LEN, |there| copy(there, &pinned)) }.unwrap();
            }
            given_back.store(true, Ordering::Release);
        });
        wait_until("the copy is given up", || given_up.load(Ordering::Acquire));
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!given_back.load(Ordering::Acquire), "its chunk is still on the engine");
        fake.hold(false);
        wait_until("the memory is given back", || given_back.load(Ordering::Acquire));
    });
}

#[test]
fn lent_memory_comes_back_when_a_chunk_that_a_staging_pool_gave_up_has_ended() {
    comes_back_with_its_chunk(true);
    comes_back_with_its_chunk(false);
}

#[expect(unsafe_code, reason = "addresses are lent")]
#[test]
fn a_paged_window_keeps_no_memory_that_was_only_lent() {
    let fake = MAPPABLE.another();
    let cuda = Arc::new(CudaGpu::open(&fake.driver(), 0, limits()).unwrap());
    let gpus = vec![(EndpointId(1), Arc::clone(&cuda) as Arc<dyn Gpu>)];
    let copier = Copier::new(gpus, Profile::default(), CopyOptions::default()).unwrap();
    let [there, other] = [(); 2].map(|()| cuda.device_buffer(4096, CpuReach::Window(WindowMapping::DmaBuf)).unwrap());
    let address = there.claim(0..4096, Access::Write).unwrap().as_ptr().addr() as u64;
    let how = How::By(Method::PagedWindow(Some(WindowMapping::DmaBuf)));
    let use_lent = |lent: &Buffer| {
        let (at, mut back) = (At { buffer: lent, offset: 0 }, [0; 64]);
        let copied = copier.copy_in(at, &[7; 64], how).and_then(|_| copier.copy_out(&mut back, at, how));
        // A GPU has one at a time.
        let another = cuda.pager(WindowMapping::DmaBuf, &other).map(drop);
        // Else a failure of this test would wait for what was lent.
        copier.park().unwrap();
        (copied.map(|_| back), another)
    };
    // SAFETY: the memory of `there`, which stays.
    let (back, another) = unsafe { cuda.lend(address, 4096, use_lent) }.unwrap();
    assert_eq!((back.unwrap(), another), ([7; 64], Ok(())));
}

/// Run again as a child by the test below.
#[test]
fn queues_that_hang_are_dropped() {
    if std::env::var_os("HEADWAY_TEST_QUEUES").is_none() {
        return;
    }
    let fake = MAPPABLE.another();
    let gpu = CudaGpu::open(&fake.driver(), 0, limits()).unwrap();
    let buffers: Vec<_> = (0..2)
        .map(|_| (gpu.pinned_buffer(64, Caching::Cached).unwrap(), gpu.device_buffer(64, CpuReach::Device).unwrap()))
        .collect();
    let mut queues: Vec<_> = (0..2).map(|_| gpu.queue(true).unwrap()).collect();
    fake.hold(true);
    for (queue, (host, there)) in queues.iter_mut().zip(&buffers) {
        let from = host.claim(0..64, Access::Read).unwrap();
        queue.submit(Operation::Copy { from, to: there.claim(0..64, Access::Write).unwrap() }, 0).unwrap();
    }
    let before = fake.live();
    in_time("the drop of queues", move || drop(queues));
    assert_eq!((fake.live(), graveyard::count()), (before, 2), "streams and events are left as they are");
    assert!(buffers.iter().all(|(host, _)| host.claim(0..1, Access::Write).is_err()), "their memory is still in use");
    fake.hold(false);
    wait_until("memory comes back", || buffers.iter().all(|(host, _)| host.claim(0..1, Access::Write).is_ok()));
    assert_eq!(graveyard::count(), 0);
}

#[test]
fn a_queue_that_does_not_end_in_time_is_left_behind_and_standard_error_says_so_once() {
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "queues_that_hang_are_dropped"])
        .env("HEADWAY_TEST_QUEUES", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{child:?}");
    let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("headway: ")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    assert!(lines[0].contains("GPU 0 did not end 1 operations within 2 s; what it uses stays reserved"), "{said}");
}

#[test]
fn a_device_whose_context_ends_gives_lent_memory_back() {
    for method in [Method::Dma, Method::Pageable] {
        in_time("the device", move || {
            let fake = MAPPABLE.another();
            let gpu = CudaGpu::open(&fake.driver(), 0, limits()).unwrap();
            let mut device = Engines::open(Arc::new(gpu)).unwrap();
            let there = device.device_buffer(64).unwrap();
            let pinned = device.host_buffer(64, headway_device::HostKind::Pinned).unwrap();
            let held = pinned.claim(0..64, Access::Read).unwrap();
            let domain = match held.place() {
                headway_device::buffer::MemoryPlace::Host { pinned } => pinned,
                headway_device::buffer::MemoryPlace::Device { .. } => None,
            };
            let results = lend(held.bytes().unwrap(), domain.filter(|_| method == Method::Dma), |host| {
                let (from, to) = (host.claim(0..64, Access::Read), there.claim(0..64, Access::Write));
                let call = if method == Method::Dma { "cuEventQuery" } else { "cuMemcpyHtoD_v2" };
                fake.fail(call, ILLEGAL_ADDRESS, 1);
                device.copy(EngineClass::H2d, method, (from.unwrap(), to.unwrap()), 1).unwrap();
                let mut done = Vec::new();
                wait_until("the completion", || {
                    device.poll(&mut done);
                    !done.is_empty()
                });
                done
            });
            assert!(matches!(results[0].result, Err(DeviceError::Driver { code: ILLEGAL_ADDRESS, .. })), "{results:?}");
        });
    }
}
