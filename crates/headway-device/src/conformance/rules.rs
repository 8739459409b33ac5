//! Order, limits, refusals and claims; memory of every kind.

use std::sync::Arc;

use headway_os::clock;
use headway_os::memory::{Mapping, page_bytes};

use super::copies::Ordinary;
use super::launches::Add;
use super::{HostCopy, Noise, claim, copy, finish, memory, note, perform, pinned, read, same, write};
use crate::buffer::{Access, Buffer, HostKind, lend, lend_mut};
use crate::gpu::{Caching, Completion, CpuReach, Gpu, Mover, Operation, Piece, Queue};
use crate::work::{Argument, LaunchGrid};
use crate::{DeviceError, Span};

/// The suite fills queues up to their limit; it must be small enough for that.
const FILLABLE_MAX: usize = 1 << 16;

/// Test of the suite: operations of one queue, long and short ones in both directions, end in the order of submission; queues that
/// keep time tell it, others do not.
pub fn operations_of_a_queue_end_in_order(gpu: &Arc<dyn Gpu>) {
    let gpu = gpu.as_ref();
    let count = gpu.description().limits.outstanding_per_engine_max.min(32);
    let size = |at: usize| if at.is_multiple_of(3) { 1 << 18 } else { 64 };
    let total: usize = (0..count).map(size).sum();
    let (host, there) = (pinned(gpu, total), memory(gpu, total));
    for keeps_time in [false, true] {
        let mut queue = gpu.queue(keeps_time).expect("a queue");
        let (mut offset, submitted) = (0, clock::now());
        for at in 0..count {
            let (from, to) = if at.is_multiple_of(2) { (&host, &there) } else { (&there, &host) };
            queue.submit(copy((from, offset), (to, offset), size(at)), at as u64).expect("within the limit");
            offset += size(at);
            assert!(queue.outstanding() <= at + 1);
        }
        assert_eq!(queue.outstanding(), count, "nothing was taken yet");
        let done = finish(queue.as_mut(), count);
        assert!(done.iter().map(|done| done.tag).eq(0..count as u64), "{done:?}");
        assert!(done.iter().all(|done| done.result.is_ok()), "{done:?}");
        for Completion { started, finished, noticed, .. } in &done {
            assert!(submitted <= *started && started <= finished && finished <= noticed, "{done:?}");
        }
        if keeps_time {
            assert!(done.windows(2).all(|pair| pair[0].finished <= pair[1].started), "{done:?}");
        }
        assert_eq!((queue.poll(), queue.outstanding()), (None, 0), "nothing ends twice");
    }
}

/// Test of the suite: a queue takes what its limit says, then refuses, and forgets nothing.
pub fn a_full_queue_refuses_and_stays_usable(gpu: &Arc<dyn Gpu>) {
    let gpu = gpu.as_ref();
    let max = gpu.description().limits.outstanding_per_engine_max;
    assert!(max <= FILLABLE_MAX, "open the gpu under test with outstanding_per_engine_max <= {FILLABLE_MAX}");
    let (host, there) = (pinned(gpu, max + 1), memory(gpu, max + 1));
    let mut queue = gpu.queue(false).expect("a queue");
    for at in 0..max {
        queue.submit(copy((&host, at), (&there, at), 1), at as u64).expect("within the limit");
    }
    let refused = queue.submit(copy((&host, max), (&there, max), 1), 0);
    assert_eq!(refused, Err(DeviceError::Refused { limit: "outstanding_per_engine_max", max: max as u64 }));
    drop(claim(&there, max, 1, Access::Write));
    assert!(finish(queue.as_mut(), max).iter().zip(0..).all(|(done, tag)| done.tag == tag && done.result == Ok(())));
    assert_eq!(perform(queue.as_mut(), copy((&host, max), (&there, max), 1)), Ok(()));
}

fn refused(queue: &mut dyn Queue, what: &str, wrong: Operation) {
    let result = queue.submit(wrong, 0);
    assert!(matches!(result, Err(DeviceError::Invalid { .. })), "{what}: {result:?}");
    assert_eq!((queue.outstanding(), queue.poll()), (0, None), "{what}");
}

/// Test of the suite: wrong places, lengths, claims, pieces and grids are the caller's mistakes, found before anything runs.
pub fn operations_against_the_rules_are_refused(gpu: &Arc<dyn Gpu>) {
    let gpu = gpu.as_ref();
    let (host, there, other) = (pinned(gpu, 64), memory(gpu, 64), memory(gpu, 64));
    let mut queue = gpu.queue(false).expect("a queue");
    let queue = queue.as_mut();
    let reads = |buffer: &Buffer, len| claim(buffer, 0, len, Access::Read);
    let writes = |buffer: &Buffer, len| claim(buffer, 0, len, Access::Write);
    let mut plain = [0; 64];
    lend_mut(&mut plain, None, |plain| {
        refused(queue, "from unpinned memory", copy((plain, 0), (&there, 0), 8));
        refused(queue, "to unpinned memory", copy((&there, 0), (plain, 0), 8));
        let (from, through, to) = (reads(plain, 8), writes(&other, 8), writes(&there, 8));
        refused(queue, "relay from unpinned memory", Operation::Relay { from, through, to });
        let pieces = Arc::new([Piece { from: 0, to: 0, len: 8 }]);
        let by = Mover::Kernel { blocks: 1 };
        refused(
            queue,
            "kernel on unpinned memory",
            Operation::Pieces { from: reads(plain, 8), to: writes(&there, 8), pieces, by },
        );
    });
    refused(queue, "host to host", copy((&host, 0), (&host, 32), 8));
    refused(queue, "8 bytes to 9", Operation::Copy { from: reads(&host, 8), to: writes(&there, 9) });
    refused(queue, "destination for reading", Operation::Copy { from: reads(&host, 8), to: reads(&there, 8) });
    let (from, through, to) = (reads(&host, 8), writes(&other, 9), writes(&there, 8));
    refused(queue, "relay of two lengths", Operation::Relay { from, through, to });
    let (from, through, to) = (reads(&there, 8), writes(&host, 8), writes(&other, 8));
    refused(queue, "relay through the host", Operation::Relay { from, through, to });
    let (from, through, to) = (reads(&host, 8), reads(&other, 8), writes(&there, 8));
    refused(queue, "relay through memory for reading", Operation::Relay { from, through, to });
    for by in [Mover::Loop, Mover::Batch, Mover::Kernel { blocks: 1 }] {
        for wrong in [(0, 1, 64), (1, 0, 64), (65, 0, 0), (0, 65, 0), (usize::MAX, 0, 2), (0, 0, usize::MAX)] {
            let pieces =
                Arc::new([Piece { from: 0, to: 0, len: 1 }, Piece { from: wrong.0, to: wrong.1, len: wrong.2 }]);
            let what = Operation::Pieces { from: reads(&host, 64), to: writes(&there, 64), pieces, by };
            refused(queue, &format!("piece {wrong:?} by {by:?}"), what);
        }
    }
    let pieces = || Arc::new([Piece { from: 0, to: 0, len: 1 }]);
    let (from, to) = (reads(&host, 8), writes(&there, 8));
    refused(queue, "no block", Operation::Pieces { from, to, pieces: pieces(), by: Mover::Kernel { blocks: 0 } });
    let (from, to) = (reads(&host, 8), reads(&there, 8));
    refused(queue, "pieces to memory for reading", Operation::Pieces { from, to, pieces: pieces(), by: Mover::Loop });
    launches_against_the_rules(queue, &there);
}

fn launches_against_the_rules(queue: &mut dyn Queue, there: &Buffer) {
    let launch = |grid, memory: Span| Operation::Launch {
        work: Arc::new(Add),
        grid,
        arguments: vec![Argument::Memory(memory), Argument::Int(1)],
    };
    let grid = |blocks, threads| LaunchGrid::line(blocks, threads, 0);
    refused(queue, "no block", launch(grid(0, 32), claim(there, 0, 8, Access::Write)));
    refused(queue, "no thread", launch(grid(1, 0), claim(there, 0, 8, Access::Write)));
    refused(queue, "too many threads", launch(grid(1, 1025), claim(there, 0, 8, Access::Write)));
    lend(&[0; 8], None, |plain| {
        refused(queue, "launch on unpinned memory", launch(grid(1, 1), claim(plain, 0, 8, Access::Read)));
    });
}

/// Test of the suite: copies of ordinary memory and accesses through windows keep to their ranges and claims.
pub fn accesses_against_the_rules_are_refused(gpu: &Arc<dyn Gpu>) {
    let gpu = gpu.as_ref();
    let (host, there) = (pinned(gpu, 64), memory(gpu, 64));
    let invalid = |what: &str, result: Result<(), DeviceError>| {
        assert!(matches!(result, Err(DeviceError::Invalid { .. })), "{what}: {result:?}");
    };
    invalid("in, lengths differ", gpu.copy_in(&mut claim(&there, 0, 9, Access::Write), &[0; 8]));
    invalid("in, for reading", gpu.copy_in(&mut claim(&there, 0, 8, Access::Read), &[0; 8]));
    invalid("in, to the host", gpu.copy_in(&mut claim(&host, 0, 8, Access::Write), &[0; 8]));
    invalid("out, lengths differ", gpu.copy_out(&mut [0; 8], &claim(&there, 0, 9, Access::Read)));
    invalid("out, of the host", gpu.copy_out(&mut [0; 8], &claim(&host, 0, 8, Access::Read)));
    let mut closed = claim(&there, 0, 8, Access::Write);
    invalid("bytes of device memory", closed.bytes().map(drop));
    invalid("no window", closed.store(0, &[1]));
    invalid("no window", closed.load(0, &mut [1]));
    for (mapping, _) in gpu.windows().into_iter().filter(|(_, tried)| tried.is_ok()) {
        let open = gpu.device_buffer(64, CpuReach::Window(mapping)).expect("a form said to be usable");
        let mut part = claim(&open, 8, 8, Access::Write);
        assert!(matches!(part.store(1, &[0; 8]), Err(DeviceError::OutOfRange { .. })));
        assert!(matches!(part.load(usize::MAX, &mut [0; 8]), Err(DeviceError::OutOfRange { .. })));
        assert_eq!((part.store(8, &[]), part.load(8, &mut [])), (Ok(()), Ok(())));
        drop(part);
        invalid("store, for reading", claim(&open, 0, 8, Access::Read).store(0, &[0; 8]));
    }
}

/// Test of the suite: claims hold while a operation waits or runs, and are gone when it has ended or was refused.
pub fn claims_are_released_on_every_path(gpu: &Arc<dyn Gpu>) {
    let gpu = gpu.as_ref();
    let (host, there, through) = (pinned(gpu, 4096), memory(gpu, 4096), memory(gpu, 4096));
    let mut queue = gpu.queue(false).expect("a queue");
    let overlap = |result: Result<Span, DeviceError>| matches!(result, Err(DeviceError::Overlap { .. }));
    let held = copy((&host, 0), (&there, 0), 2048);
    assert!(overlap(host.claim(2047..4096, Access::Write)), "the move reads byte 2047");
    assert!(overlap(there.claim(0..1, Access::Read)), "the move writes byte 0");
    drop(claim(&there, 2048, 2048, Access::Write));
    let all_free = |when: &str| {
        for buffer in [&host, &there, &through] {
            assert!(buffer.claim(0..4096, Access::Write).is_ok(), "{when}");
        }
    };
    assert_eq!(perform(queue.as_mut(), held), Ok(()));
    all_free("a copy has ended");
    let spans =
        || (claim(&host, 0, 8, Access::Read), claim(&through, 0, 8, Access::Write), claim(&there, 0, 8, Access::Write));
    let (from, through, to) = spans();
    assert_eq!(perform(queue.as_mut(), Operation::Relay { from, through, to }), Ok(()));
    all_free("a relay has ended");
    let pieces = |from, len| Arc::new([Piece { from, to: 0, len }]);
    let (from, _, to) = spans();
    assert_eq!(perform(queue.as_mut(), Operation::Pieces { from, to, pieces: pieces(1, 7), by: Mover::Loop }), Ok(()));
    all_free("pieces have arrived");
    let (from, _, to) = spans();
    assert!(queue.submit(Operation::Pieces { from, to, pieces: pieces(2, 7), by: Mover::Loop }, 0).is_err());
    all_free("pieces were refused");
    let (from, to) = (claim(&host, 0, 8, Access::Read), claim(&there, 0, 9, Access::Write));
    assert!(queue.submit(Operation::Copy { from, to }, 0).is_err());
    all_free("a copy was refused");
}

/// Test of the suite: two threads with a queue each copy at once, and every byte arrives.
pub fn two_threads_use_queues_at_once(gpu: &Arc<dyn Gpu>) {
    const LEN: usize = 100_003;
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let copies = move || {
                let (host, back, there) =
                    (pinned(gpu.as_ref(), LEN), pinned(gpu.as_ref(), LEN), memory(gpu.as_ref(), LEN));
                let mut queue = gpu.queue(false).expect("a queue");
                let (mut noise, mut sent, mut found) = (Noise::new(seed), vec![0; LEN], vec![0; LEN]);
                for round in 0..20 {
                    noise.fill(&mut sent);
                    write(&host, 0, &sent);
                    assert_eq!(perform(queue.as_mut(), copy((&host, 0), (&there, 0), LEN)), Ok(()));
                    if round % 2 == 0 {
                        assert_eq!(perform(queue.as_mut(), copy((&there, 0), (&back, 0), LEN)), Ok(()));
                        read(&back, 0, &mut found);
                    } else {
                        Ordinary(gpu.as_ref()).take(&there, 0, &mut found, 0, LEN);
                    }
                    same(&format!("thread {seed}, round {round}"), &found, &sent);
                }
            };
            headway_os::threads::without_signals(|| scope.spawn(copies));
        }
    });
}

/// Test of the suite: a queue dropped with operations outstanding has done them, and releases everything.
pub fn dropping_a_busy_queue_waits_for_it(gpu: &Arc<dyn Gpu>) {
    let gpu = gpu.as_ref();
    let count = gpu.description().limits.outstanding_per_engine_max.min(16);
    let bytes = count << 18;
    let (host, there) = (pinned(gpu, bytes), memory(gpu, bytes));
    let mut sent = vec![0; bytes];
    Noise::new(31).fill(&mut sent);
    write(&host, 0, &sent);
    let mut queue = gpu.queue(true).expect("a queue");
    for at in 0..count {
        queue.submit(copy((&host, at << 18), (&there, at << 18), 1 << 18), 0).expect("within the limit");
    }
    drop(queue);
    for buffer in [&host, &there] {
        drop(claim(buffer, 0, bytes, Access::Write));
    }
    let mut found = vec![0; bytes];
    Ordinary(gpu).take(&there, 0, &mut found, 0, bytes);
    same("moves of a dropped queue", &found, &sent);
}

/// Test of the suite: unaligned ordinary memory is pinned in place, serves queues, and is ordinary again.
pub fn registered_memory_is_pinned_until_dropped(gpu: &Arc<dyn Gpu>) {
    let gpu = gpu.as_ref();
    let mut queue = gpu.queue(false).expect("a queue");
    let mut noise = Noise::new(37);
    for (at, len) in [(0, 4096), (1, 1), (4095, 4097), (13, (1 << 20) + 7)] {
        let mut memory_of_ours = Mapping::anonymous(at + len + 64).expect("memory of the process");
        let there = memory(gpu, len);
        let mut sent = vec![0; len];
        for round in 0..2 {
            noise.fill(&mut sent);
            memory_of_ours[at..at + len].copy_from_slice(&sent);
            lend_mut(&mut memory_of_ours[at..at + len], None, |plain| {
                let view = gpu.register(plain, 0..plain.len()).expect("ordinary memory can be registered");
                assert_eq!(view.len(), len);
                assert!(
                    matches!(plain.claim(0..1, Access::Read), Err(DeviceError::Overlap { .. })),
                    "the view claims it"
                );
                assert!(gpu.register(&view, 0..view.len()).is_err(), "it is pinned already");
                assert_eq!(
                    gpu.host_kind(claim(&view, 0, len, Access::Read).bytes().unwrap_or(&[])),
                    Ok(HostKind::Pinned)
                );
                assert_eq!(perform(queue.as_mut(), copy((&view, 0), (&there, 0), len)), Ok(()));
                claim(&view, 0, len, Access::Write).bytes_mut().expect("host memory").fill(0);
                assert_eq!(perform(queue.as_mut(), copy((&there, 0), (&view, 0), len)), Ok(()));
                drop(view);
                drop(claim(plain, 0, len, Access::Write));
            });
            same(&format!("registered, {len} bytes from {at}, round {round}"), &memory_of_ours[at..at + len], &sent);
            assert!(memory_of_ours[..at].iter().chain(&memory_of_ours[at + len..]).all(|byte| *byte == 0));
        }
    }
    // Pages that may be written, so that every driver can pin them, and hold nothing else.
    let mut sent = Mapping::anonymous(10_000).expect("memory of the process");
    sent.fill(5);
    lend(&sent[1..], None, |plain| match gpu.register(plain, 0..plain.len()) {
        Ok(view) => {
            assert!(matches!(view.claim(0..1, Access::Write), Err(DeviceError::Invalid { .. })), "lent for reading");
            let there = memory(gpu, 9_999);
            assert_eq!(perform(queue.as_mut(), copy((&view, 0), (&there, 0), 9_999)), Ok(()));
            let mut found = vec![0; 9_999];
            Ordinary(gpu).take(&there, 0, &mut found, 0, 9_999);
            same("registered for reading", &found, &sent[1..]);
        }
        Err(error) => note(&format!("not tested: memory lent for reading, registered: {error}")),
    });
    let there = memory(gpu, 64);
    assert!(matches!(gpu.register(&there, 0..there.len()), Err(DeviceError::Invalid { .. })), "device memory");
    assert!(matches!(gpu.register(&pinned(gpu, 64), 0..64), Err(DeviceError::Invalid { .. })), "pinned memory");
    lend(&[0; 64], Some(gpu.domain()), |lent| {
        assert!(matches!(gpu.register(lent, 0..lent.len()), Err(DeviceError::Invalid { .. })), "memory lent as pinned");
    });
}

/// Test of the suite: the GPU knows pinned memory from ordinary memory.
pub fn pinned_memory_is_told_from_ordinary_memory(gpu: &Arc<dyn Gpu>) {
    // Its own pages: those of the allocator may hold what another test has registered.
    let ordinary = Mapping::anonymous(10_000).expect("memory of the process");
    assert_eq!(gpu.host_kind(&ordinary[1..]), Ok(HostKind::Pageable));
    for caching in [Caching::Cached, Caching::WriteCombined] {
        let buffer = gpu.pinned_buffer(10_000, caching).expect("pinned memory within the limits");
        let span = claim(&buffer, 0, 10_000, Access::Read);
        let bytes = span.bytes().expect("host memory");
        for range in [0..10_000, 9_999..10_000, 5_000..5_001] {
            assert_eq!(gpu.host_kind(&bytes[range]), Ok(HostKind::Pinned));
        }
    }
    assert_eq!(gpu.host_kind(&ordinary), Ok(HostKind::Pageable));
}

/// Test of the suite: new buffers hold zeros, also where an earlier one held something else, start where they should, and
/// are refused beyond the limits.
pub fn buffers_are_zeroed_aligned_and_bounded(gpu: &Arc<dyn Gpu>) {
    let gpu = gpu.as_ref();
    let mut reaches = vec![CpuReach::Device];
    reaches
        .extend(gpu.windows().iter().filter(|(_, tried)| tried.is_ok()).map(|(mapping, _)| CpuReach::Window(*mapping)));
    let address = |buffer: &Buffer| claim(buffer, 0, 1, Access::Read).as_ptr().addr();
    for round in 0..2 {
        for &reach in &reaches {
            let there = gpu.device_buffer(4097, reach).expect("device memory within the limits");
            assert_eq!((there.len(), address(&there) % 256), (4097, 0));
            let mut found = vec![1; 4097];
            Ordinary(gpu).take(&there, 0, &mut found, 0, 4097);
            same(&format!("new device memory, {reach:?}, round {round}"), &found, &[0; 4097]);
            Ordinary(gpu).put(&[0xFF; 4097], 0, 4097, &there, 0);
        }
        for caching in [Caching::Cached, Caching::WriteCombined] {
            let buffer = gpu.pinned_buffer(4097, caching).expect("pinned memory within the limits");
            assert_eq!((buffer.len(), address(&buffer) % page_bytes()), (4097, 0));
            let mut found = vec![1; 4097];
            read(&buffer, 0, &mut found);
            same(&format!("new pinned memory, {caching:?}, round {round}"), &found, &[0; 4097]);
            write(&buffer, 0, &[0xFF; 4097]);
        }
    }
    let limits = gpu.description().limits;
    let too_much = (limits.host_bytes_max.0 as usize).saturating_add(1);
    let error = gpu.pinned_buffer(too_much, Caching::Cached).expect_err("more than the limit");
    assert!(matches!(error, DeviceError::OutOfMemory { wanted, available, .. } if wanted > available), "{error}");
    let too_much = (gpu.description().memory_bytes.min(limits.device_bytes_max).0 as usize).saturating_add(1);
    let error = gpu.device_buffer(too_much, CpuReach::Device).expect_err("more than there is");
    assert!(matches!(error, DeviceError::OutOfMemory { .. }), "{error}");
    drop((memory(gpu, 1), pinned(gpu, 1)));
}
