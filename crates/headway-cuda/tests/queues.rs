//! The gpus' conformance suite and the error paths of [`CudaGpu`] against a library with the driver's interface and no GPU
//! behind it.
#![allow(unsafe_code)]

mod support;

use std::sync::{Arc, LazyLock};

use headway_core::units::{Bytes, Nanos};
use headway_cuda::CudaGpu;
use headway_device::buffer::lend_mut;
use headway_device::conformance::SkipReason;
use headway_device::conformance::{self, finish};
use headway_device::gpu::{Caching, Completion, CpuReach, Gpu, Mover, Operation, Piece, Queue};
use headway_device::{Access, Buffer, DeviceError, DeviceLimits, HostKind};
use support::{Fake, failing, wait_until};

fn limits() -> DeviceLimits {
    DeviceLimits {
        buffers_max: 64,
        host_bytes_max: Bytes(512 << 20),
        outstanding_per_engine_max: 16,
        ..DeviceLimits::default()
    }
}

fn open(fake: &Fake) -> CudaGpu {
    CudaGpu::open(&fake.driver(), 0, limits()).unwrap()
}

static PLAIN: LazyLock<Fake> = LazyLock::new(|| Fake::build(&[]));

fn open_plain() -> Result<Arc<dyn Gpu>, SkipReason> {
    Ok(Arc::new(open(&PLAIN)))
}

headway_device::conformance!(fake_driver, open_plain);

fn pair(gpu: &CudaGpu, bytes: usize) -> (Buffer, Buffer) {
    let host = gpu.pinned_buffer(bytes, Caching::Cached).unwrap();
    host.claim(0..bytes, Access::Write).unwrap().bytes_mut().unwrap().fill(7);
    (host, gpu.device_buffer(bytes, CpuReach::Device).unwrap())
}

fn copy(from: &Buffer, to: &Buffer) -> Operation {
    let (from, to) = (from.claim(0..from.len(), Access::Read).unwrap(), to.claim(0..to.len(), Access::Write).unwrap());
    Operation::Copy { from, to }
}

fn pieces(from: &Buffer, to: &Buffer, len: usize, by: Mover) -> Operation {
    let list = (0..from.len() / len).map(|at| Piece { from: at * len, to: at * len, len }).collect();
    let (from, to) = (from.claim(0..from.len(), Access::Read).unwrap(), to.claim(0..to.len(), Access::Write).unwrap());
    Operation::Pieces { from, to, pieces: list, by }
}

fn perform(queue: &mut dyn Queue, what: Operation) -> Completion {
    queue.submit(what, 1).unwrap();
    finish(queue, 1).remove(0)
}

fn bytes_of(gpu: &CudaGpu, buffer: &Buffer) -> Vec<u8> {
    let mut found = vec![0; buffer.len()];
    gpu.copy_out(&mut found, &buffer.claim(0..buffer.len(), Access::Read).unwrap()).unwrap();
    found
}

#[test]
fn everything_is_given_back_in_the_end() {
    let fake = Fake::build(&[]);
    let gpu = open(&fake);
    let mut queue = gpu.queue(true).unwrap();
    let (host, there) = pair(&gpu, 10_000);
    queue.submit(pieces(&host, &there, 100, Mover::Kernel { blocks: 3 }), 0).unwrap();
    let mut ordinary = vec![0u8; 10_000];
    lend_mut(&mut ordinary, None, |plain| drop(gpu.register(plain, 0..plain.len()).unwrap()));
    let combined = gpu.pinned_buffer(10_000, Caching::WriteCombined).unwrap();
    drop(gpu);
    assert!(fake.live() > 0, "queues and buffers outlive their gpu");
    drop((queue, combined, host));
    assert!(fake.live() > 0);
    drop(there);
    assert_eq!(fake.live(), 0);
}

#[test]
fn every_call_that_fails_at_opening_is_reported_and_leaks_nothing() {
    for call in
        ["cuDeviceTotalMem_v2", "cuDevicePrimaryCtxRetain", "cuCtxGetCurrent", "cuCtxSetCurrent", "cuStreamCreate"]
    {
        let fake = failing(call, 801, 1, &[]);
        let opened = CudaGpu::open(&fake.driver(), 0, limits()).and_then(|gpu| gpu.queue(true).map(drop));
        assert!(matches!(opened, Err(DeviceError::Driver { code: 801, .. })), "{call}: {opened:?}");
        assert_eq!(fake.live(), 0, "after {call} failed");
    }
}

#[test]
fn only_queues_that_keep_time_tell_the_time() {
    let fake = Fake::build(&["-DCOPY_NANOS=2000000"]);
    let gpu = open(&fake);
    let (host, there) = pair(&gpu, 64);
    // The library refuses to compare events that were made without time stamps.
    assert_eq!(perform(gpu.queue(false).unwrap().as_mut(), copy(&host, &there)).result, Ok(()));
    assert_eq!(gpu.clock_error(), None);
    let done = perform(gpu.queue(true).unwrap().as_mut(), copy(&host, &there));
    let error = gpu.clock_error().expect("a queue keeps time");
    assert!(done.finished - done.started + error + error >= Nanos(1_990_000), "{done:?}");
}

/// One copy out for each of `sizes`, all of one queue; then the words that the streams wrote.
fn words_of_copies_out(fake: &Fake, turn: Option<u64>, sizes: &[usize]) -> i32 {
    let gpu = open(fake);
    gpu.set_turn(turn.map(Bytes));
    let (host, there) = pair(&gpu, 20 << 20);
    let mut queue = gpu.queue(false).unwrap();
    let all = |queue: &mut dyn Queue, from: &Buffer, to: &Buffer| {
        for &len in sizes {
            let (from, to) = (from.claim(0..len, Access::Read).unwrap(), to.claim(0..len, Access::Write).unwrap());
            assert_eq!(perform(queue, Operation::Copy { from, to }).result, Ok(()));
        }
    };
    all(queue.as_mut(), &host, &there);
    assert_eq!(fake.words(), 0, "copies into a GPU need none");
    host.claim(0..20 << 20, Access::Write).unwrap().bytes_mut().unwrap().fill(0);
    all(queue.as_mut(), &there, &host);
    let longest = sizes.iter().max().copied().unwrap_or(0);
    assert!(host.claim(0..longest, Access::Read).unwrap().bytes().unwrap().iter().all(|byte| *byte == 7));
    fake.words()
}

#[test]
fn copies_out_let_other_streams_in_now_and_then() {
    let words = |sizes: &[usize]| words_of_copies_out(&Fake::build(&[]), Some(16 << 20), sizes);
    let mib = |count: usize| count << 20;
    assert_eq!(words(&[mib(20)]), 1, "a whole copy does after 16 MiB");
    assert_eq!(words(&[mib(8); 3]), 3, "chunks do at their end");
    assert_eq!(words(&[mib(20), mib(3), 1, mib(1)]), 2, "what earlier copies left counts");
    assert_eq!(words(&[100; 100]), 0);
    let of = |turn, sizes: &[usize]| words_of_copies_out(&Fake::build(&[]), turn, sizes);
    assert_eq!(of(Some(4 << 20), &[mib(20)]), 5, "the turn is what was measured");
    assert_eq!(of(None, &[mib(20)]), 0, "whole copies");
}

#[test]
fn a_driver_that_cannot_write_words_copies_all_the_same() {
    assert_eq!(words_of_copies_out(&Fake::build(&["-DcuStreamWriteValue32_v2=gone"]), Some(16 << 20), &[20 << 20]), 0);
    assert_eq!(words_of_copies_out(&failing("cuStreamWriteValue32_v2", 801, 1, &[]), Some(16 << 20), &[20 << 20]), 0);
}

#[test]
fn gpus_of_one_driver_exchange_every_byte() {
    let gpus = CudaGpu::open_all(&PLAIN.driver(), limits()).unwrap();
    conformance::gpus_exchange_every_byte(&gpus[0], &gpus[1]);
}

#[test]
fn gpus_without_access_do_not_reach_each_other() {
    let fake = Fake::build(&["-DNO_PEERS"]);
    let gpus = CudaGpu::open_all(&fake.driver(), limits()).unwrap();
    assert!(!gpus[0].reaches(gpus[1].id()) && gpus[0].reaches(gpus[0].id()));
    let [here, there] = [&gpus[0], &gpus[1]].map(|gpu| gpu.device_buffer(64, CpuReach::Device).unwrap());
    let error = gpus[0].queue(false).unwrap().submit(copy(&here, &there), 0).unwrap_err();
    assert!(matches!(error, DeviceError::Invalid { .. }), "{error}");
}

#[test]
fn two_openings_of_one_gpu_share_memory_and_its_loss() {
    let fake = failing("cuStreamSynchronize", 700, 4, &["-DFAIL_STICKY"]);
    let gpu = open(&fake);
    let other = open(&fake);
    let there = other.device_buffer(64, CpuReach::Device).unwrap();
    let (host, _) = pair(&gpu, 64);
    assert_eq!(perform(gpu.queue(false).unwrap().as_mut(), copy(&host, &there)).result, Ok(()));
    // Allocations wait for the memory to be zeroed.
    let lost = (0..9).find_map(|_| gpu.device_buffer(64, CpuReach::Device).err());
    assert!(matches!(lost, Some(DeviceError::Driver { code: 700, .. })), "{lost:?}");
    assert_eq!(other.device_buffer(64, CpuReach::Device).unwrap_err(), DeviceError::DeviceLost);
    assert_eq!(gpu.queue(false).err(), Some(DeviceError::DeviceLost));
}

#[test]
fn batches_use_the_call_that_the_driver_has() {
    for (options, missing) in [
        (&[][..], false),
        (&["-DcuMemcpyBatchAsync_v2=gone"], false),
        (&["-DcuMemcpyBatchAsync_v2=gone", "-DcuMemcpyBatchAsync=gone_too"], true),
    ] {
        let fake = Fake::build(options);
        let gpu = open(&fake);
        let (host, there) = pair(&gpu, 1000);
        let mut queue = gpu.queue(false).unwrap();
        let submitted = queue.submit(pieces(&host, &there, 10, Mover::Batch), 0);
        if missing {
            let error = submitted.unwrap_err();
            assert!(matches!(error, DeviceError::Unavailable { .. }), "{error}");
            assert!(error.to_string().contains("older than CUDA 12.8"), "{error}");
        } else {
            submitted.unwrap();
            assert_eq!(finish(queue.as_mut(), 1)[0].result, Ok(()));
            assert_eq!(bytes_of(&gpu, &there), [7; 1000]);
        }
    }
}

#[test]
fn a_request_refused_in_its_middle_releases_its_bytes_and_the_queue_goes_on() {
    for (call, at) in [("cuMemcpyHtoDAsync_v2", 3), ("cuEventRecord", 1)] {
        let fake = failing(call, 1, at, &[]);
        let gpu = open(&fake);
        let (host, there) = pair(&gpu, 100);
        let mut queue = gpu.queue(false).unwrap();
        let error = queue.submit(pieces(&host, &there, 10, Mover::Loop), 0).unwrap_err();
        assert!(matches!(error, DeviceError::Driver { code: 1, .. }), "{error}");
        assert_eq!(queue.outstanding(), 0);
        assert_eq!(perform(queue.as_mut(), pieces(&host, &there, 10, Mover::Loop)).result, Ok(()));
        assert_eq!(bytes_of(&gpu, &there), [7; 100]);
    }
}

#[test]
fn an_error_that_ends_the_context_ends_every_move_and_gives_its_bytes_back_soon_after() {
    let fake = failing("cuEventQuery", 700, 3, &["-DFAIL_STICKY", "-DLAG=1"]);
    let gpu = open(&fake);
    let (first, second) = (pair(&gpu, 64), pair(&gpu, 64));
    let mut queue = gpu.queue(false).unwrap();
    for (tag, (host, there)) in [&first, &second, &first].into_iter().enumerate() {
        if let Ok(from) = host.claim(0..64, Access::Read)
            && let Ok(to) = there.claim(0..64, Access::Write)
        {
            queue.submit(Operation::Copy { from, to }, tag as u64).unwrap();
        }
    }
    let done = finish(queue.as_mut(), 2);
    assert_eq!((done[0].tag, &done[0].result), (0, &Ok(())));
    assert!(matches!(done[1].result, Err(DeviceError::Driver { code: 700, .. })));
    first.0.claim(0..64, Access::Write).unwrap();
    // Its copy may run on for a moment.
    wait_until("the bytes come back", || second.0.claim(0..64, Access::Write).is_ok());
    assert_eq!(queue.submit(copy(&first.0, &first.1), 3), Err(DeviceError::DeviceLost));
}

#[test]
fn the_table_of_the_copy_kernel_is_used_again() {
    let fake = Fake::build(&[]);
    let gpu = open(&fake);
    let (host, there) = pair(&gpu, 1 << 20);
    let mut queue = gpu.queue(false).unwrap();
    let before = fake.live();
    for _ in 0..100 {
        let done = perform(queue.as_mut(), pieces(&host, &there, 64, Mover::Kernel { blocks: 8 }));
        assert_eq!(done.result, Ok(()));
    }
    assert_eq!(fake.live(), before + 1, "one event");
    assert_eq!(bytes_of(&gpu, &there), vec![7; 1 << 20]);
}

#[test]
fn a_kernel_of_more_blocks_than_a_gpu_has_is_refused() {
    let gpu = open(&PLAIN);
    let (host, there) = pair(&gpu, 64);
    let submitted = gpu.queue(false).unwrap().submit(pieces(&host, &there, 1, Mover::Kernel { blocks: u32::MAX }), 0);
    assert!(matches!(submitted, Err(DeviceError::Refused { .. })), "{submitted:?}");
}

#[test]
fn ordinary_memory_has_arrived_when_the_copy_returns() {
    // The driver may return when the bytes are staged only; this library always does.
    let fake = Fake::build(&["-DSTAGED"]);
    let gpu = open(&fake);
    let there = gpu.device_buffer(1000, CpuReach::Device).unwrap();
    gpu.copy_in(&mut there.claim(0..1000, Access::Write).unwrap(), &[9; 1000]).unwrap();
    let host = gpu.pinned_buffer(1000, Caching::Cached).unwrap();
    // Through a queue, which does not wait for the default stream.
    assert_eq!(perform(gpu.queue(false).unwrap().as_mut(), copy(&there, &host)).result, Ok(()));
    assert_eq!(host.claim(0..1000, Access::Read).unwrap().bytes().unwrap(), [9; 1000]);
}

#[test]
fn another_current_context_does_not_disturb_a_gpu() {
    let gpus = CudaGpu::open_all(&PLAIN.driver(), limits()).unwrap();
    let mut queues: Vec<_> = gpus.iter().map(|gpu| gpu.queue(true).unwrap()).collect();
    let memory: Vec<_> = gpus.iter().map(|gpu| pair(gpu, 64)).collect();
    // Each call leaves its own context current on this thread; streams of another are refused by the library.
    for _ in 0..3 {
        for (queue, (host, there)) in queues.iter_mut().zip(&memory) {
            queue.submit(copy(host, there), 0).unwrap();
        }
        for queue in &mut queues {
            assert_eq!(finish(queue.as_mut(), 1)[0].result, Ok(()));
        }
    }
}

#[test]
fn memory_is_pinned_in_place_once_and_unpinned_when_the_view_is_dropped() {
    let fake = Fake::build(&[]);
    let gpu = open(&fake);
    let mut memory = vec![0u8; 100_000];
    let before = fake.live();
    let kind = |memory: &Buffer| gpu.host_kind(memory.claim(77..50_000, Access::Read).unwrap().bytes().unwrap());
    lend_mut(&mut memory[33..], None, |plain| {
        assert_eq!(kind(plain), Ok(HostKind::Pageable));
        let view = gpu.register(plain, 0..plain.len()).unwrap();
        assert_eq!((fake.live(), kind(&view)), (before + 1, Ok(HostKind::Pinned)));
        assert!(matches!(plain.claim(0..1, Access::Read), Err(DeviceError::Overlap { .. })));
        drop(view);
        assert_eq!((fake.live(), kind(plain)), (before, Ok(HostKind::Pageable)));
    });
    // Two ranges that share a page, wherever the allocator put the memory.
    let page_starts_at = memory.as_ptr().align_offset(4096);
    let (first, second) = memory.split_at_mut(page_starts_at + 10 * 4096 + 100);
    lend_mut(first, None, |first| {
        let view = gpu.register(first, 0..first.len()).unwrap();
        lend_mut(second, None, |second| {
            let error = gpu.register(second, 0..second.len()).unwrap_err();
            assert!(matches!(error, DeviceError::Invalid { what: "register", .. }), "{error}");
            drop(view);
            gpu.register(second, 0..second.len()).unwrap();
        });
    });
    assert_eq!(fake.live(), before);
}

#[test]
fn memory_that_is_not_the_hosts_is_told_apart() {
    let gpu = open(&PLAIN);
    let (there, boxed) = (gpu.device_buffer(64, CpuReach::Device).unwrap(), vec![0u8; 64]);
    let span = there.claim(0..64, Access::Read).unwrap();
    // SAFETY: the library's device memory is memory of this process.
    let bytes = unsafe { std::slice::from_raw_parts(span.as_ptr(), 64) };
    let error = gpu.host_kind(bytes).unwrap_err();
    assert!(error.to_string().contains("not host memory"), "{error}");
    let managed = Fake::build(&["-DMANAGED=1"]);
    let error = open(&managed).host_kind(&boxed).unwrap_err();
    assert!(error.to_string().contains("managed by the driver"), "{error}");
    assert_eq!(gpu.host_kind(&[]), Ok(HostKind::Pageable));
}

#[test]
fn where_pages_cannot_be_registered_the_driver_gives_its_own() {
    let fake = Fake::build(&["-DNO_REGISTER"]);
    let gpu = open(&fake);
    let (host, there) = pair(&gpu, 5000);
    assert_eq!(perform(gpu.queue(false).unwrap().as_mut(), copy(&host, &there)).result, Ok(()));
    let mut memory = vec![0u8; 64];
    let refused = lend_mut(&mut memory, None, |plain| gpu.register(plain, 0..plain.len()).err());
    assert!(
        matches!(refused, Some(DeviceError::Driver { call: "cuMemHostRegister_v2", code: 801, .. })),
        "{refused:?}"
    );
}

#[test]
fn exhausted_memory_is_a_value() {
    let fake = failing("cuMemHostAlloc", 2, 1, &[]);
    let gpu = open(&fake);
    let error = gpu.pinned_buffer(1000, Caching::WriteCombined).unwrap_err();
    assert!(matches!(error, DeviceError::OutOfMemory { wanted: Bytes(1000), .. }), "{error}");
    gpu.pinned_buffer(1000, Caching::WriteCombined).unwrap();
    let fake = failing("cuMemHostRegister_v2", 2, 1, &[]);
    let gpu = open(&fake);
    let mut memory = vec![0u8; 64];
    let refused = lend_mut(&mut memory, None, |plain| gpu.register(plain, 0..plain.len()).err());
    assert!(matches!(refused, Some(DeviceError::OutOfMemory { .. })), "{refused:?}");
}
