//! What every [`Device`] must do, as tests. [`conformance!`](crate::conformance!) makes them `#[test]`s of a device.
//!
//! The suite compares bytes on random data with guard bytes around, and asserts nothing about speed. Where the hardware is
//! absent every test prints why it was skipped and passes.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use headway_core::files::machine::EngineClass;
use headway_core::models::transfer::Method;
use headway_core::plan::block::{self, Header};
use headway_core::units::Nanos;
use headway_os::clock;

use crate::kernel::{Grid, Kernel, KernelError, Lane};
use crate::{Access, Buffer, Completion, Device, DeviceError, HostKind, KernelId, Operation};

/// How long the suite waits for a device that may be slow but must not hang.
const PATIENCE: Nanos = Nanos(120_000_000_000);
/// Sizes around the usual borders: line, page, and a megabyte.
const SIZES: [usize; 8] = [0, 1, 3, 64, 4095, 4096, 4097, (1 << 20) - 1];
/// Offsets of source and destination in their buffers.
const OFFSETS: [(usize, usize); 4] = [(0, 0), (1, 64), (64, 3), (4093, 256)];
/// Larger than any size plus any offset, with room for guard bytes.
const ROOM: usize = (1 << 20) + 8192;
/// The suite fills queues and buffer tables up to their limits; these must be small enough for that.
const FILLABLE_MAX: usize = 1 << 16;

/// Why a device cannot be tested here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkipReason(pub String);

impl From<DeviceError> for SkipReason {
    fn from(error: DeviceError) -> Self {
        Self(error.to_string())
    }
}

/// Opens the device under test, afresh at each call.
pub type Open<'a> = &'a dyn Fn() -> Result<Box<dyn Device>, SkipReason>;

/// Runs one test of the suite on a fresh device, or prints why not.
pub fn run(test: &str, open: Open<'_>, body: fn(Box<dyn Device>, Open<'_>)) {
    match open() {
        Ok(device) => body(device, open),
        // Written past the test harness, which hides the output of tests that pass.
        Err(SkipReason(reason)) => drop(writeln!(std::io::stderr(), "skipped {test}: {reason}")),
    }
}

/// Makes the suite's tests for one device: `conformance!(emulated, || Ok(Box::new(...)));`.
///
/// The second argument is called once or more per test and gives `Result<Box<dyn Device>, SkipReason>`.
#[macro_export]
macro_rules! conformance {
    ($name:ident, $open:expr) => {
        $crate::conformance!($name, $open,
            dma_copies_every_byte_and_no_other
            pageable_copies_every_byte_and_no_other
            peer_copies_within_a_device_move_every_byte
            operations_of_an_engine_complete_in_order
            engines_of_all_classes_finish_what_they_are_given
            every_tag_comes_back_exactly_once
            claims_exclude_each_other_until_completion
            claims_outside_a_buffer_are_refused
            device_memory_is_closed_to_the_cpu
            a_full_queue_refuses_and_stays_usable
            a_class_that_is_not_served_is_refused
            operations_against_the_rules_are_refused
            kernels_of_another_device_are_refused
            launches_give_what_the_cpu_form_gives
            buffers_are_bounded_in_number_and_bytes
            buffers_are_zeroed_and_aligned
            completions_wake_or_ask_to_be_polled
            dropping_a_busy_device_releases_everything
        );
    };
    ($name:ident, $open:expr, $($test:ident)+) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $(
                #[test]
                fn $test() {
                    $crate::conformance::run(concat!(stringify!($name), "::", stringify!($test)), &$open,
                        $crate::conformance::$test);
                }
            )+
        }
    };
}

/// A deterministic source of test bytes (splitmix64).
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

/// Polls until `count` operations have completed, in the order they came.
///
/// # Panics
/// When they do not within two minutes, or when times contradict each other.
pub fn wait_for(device: &mut dyn Device, count: usize) -> Vec<Completion> {
    let until = clock::now().saturating_add(PATIENCE);
    let mut done = Vec::new();
    while done.len() < count {
        device.poll(&mut done);
        assert!(clock::now() < until, "{} of {count} operations completed within {PATIENCE}", done.len());
        std::thread::yield_now();
    }
    for completion in &done {
        let Completion { started, finished, noticed, .. } = *completion;
        assert!(started <= finished && finished <= noticed, "times are out of order: {completion:?}");
    }
    done
}

fn claim(buffer: &Buffer, range: std::ops::Range<usize>, access: Access) -> crate::Span {
    buffer.claim(range, access).expect("nobody else holds a claim")
}

fn copy(method: Method, from: (&Buffer, usize), to: (&Buffer, usize), bytes: usize) -> Operation {
    Operation::Copy {
        method,
        from: claim(from.0, from.1..from.1 + bytes, Access::Read),
        to: claim(to.0, to.1..to.1 + bytes, Access::Write),
    }
}

fn host(device: &mut dyn Device, bytes: usize, kind: HostKind) -> Buffer {
    device.host_buffer(bytes, kind).expect("host memory within the limits")
}

fn memory(device: &mut dyn Device, bytes: usize) -> Buffer {
    device.device_buffer(bytes).expect("device memory within the limits")
}

fn write(buffer: &Buffer, bytes: &[u8]) {
    claim(buffer, 0..bytes.len(), Access::Write).bytes_mut().expect("host memory").copy_from_slice(bytes);
}

fn read(buffer: &Buffer) -> Vec<u8> {
    claim(buffer, 0..buffer.len(), Access::Read).bytes().expect("host memory").to_vec()
}

fn complete(device: &mut dyn Device, engine: EngineClass, operation: Operation) {
    device.submit(engine, operation, 1).expect("a valid operation on an idle engine");
    assert_eq!(wait_for(device, 1)[0].result, Ok(()));
}

fn has(device: &dyn Device, class: EngineClass) -> bool {
    device.description().engines.contains(&class)
}

fn same(what: &str, found: &[u8], expected: &[u8]) {
    let different = found.iter().zip(expected).position(|(a, b)| a != b);
    assert!(found.len() == expected.len() && different.is_none(), "{what}: first difference at {different:?}");
}

/// Copies there and back by `method`; every byte arrives, and no byte beside them changes.
fn there_and_back(device: &mut dyn Device, method: Method, kind: HostKind) {
    let (source, target) = (host(device, ROOM, kind), host(device, ROOM, kind));
    let there = memory(device, ROOM);
    let mut noise = Noise(7);
    let (mut sent, mut on_device) = (vec![0; ROOM], vec![0; ROOM]);
    for size in SIZES {
        for (from, to) in OFFSETS {
            noise.fill(&mut sent);
            write(&source, &sent);
            complete(device, EngineClass::H2d, copy(method, (&source, from), (&there, to), size));
            on_device[to..to + size].copy_from_slice(&sent[from..from + size]);
            complete(device, EngineClass::D2h, copy(method, (&there, 0), (&target, 0), ROOM));
            same(&format!("h2d of {size} bytes from {from} to {to}"), &read(&target), &on_device);

            noise.fill(&mut sent);
            write(&target, &sent);
            complete(device, EngineClass::D2h, copy(method, (&there, to), (&target, from), size));
            sent[from..from + size].copy_from_slice(&on_device[to..to + size]);
            same(&format!("d2h of {size} bytes from {to} to {from}"), &read(&target), &sent);
        }
    }
}

/// Test of the suite: `dma` in both directions, all sizes and offsets.
pub fn dma_copies_every_byte_and_no_other(mut device: Box<dyn Device>, _: Open<'_>) {
    there_and_back(device.as_mut(), Method::Dma, HostKind::Pinned);
}

/// Test of the suite: `pageable` in both directions, all sizes and offsets.
pub fn pageable_copies_every_byte_and_no_other(mut device: Box<dyn Device>, _: Open<'_>) {
    there_and_back(device.as_mut(), Method::Pageable, HostKind::Pageable);
}

/// Test of the suite: a copy between two buffers of one device, where it serves `peer`.
pub fn peer_copies_within_a_device_move_every_byte(mut device: Box<dyn Device>, _: Open<'_>) {
    if has(device.as_ref(), EngineClass::Peer) {
        let (first, second) = (memory(device.as_mut(), ROOM), memory(device.as_mut(), ROOM));
        round_trip(device.as_mut(), None, &first, &second);
    }
}

/// Test for two devices of one domain: bytes go from one's memory to the other's and come back.
///
/// # Panics
/// When they do not.
pub fn peers_exchange_every_byte(first: &mut dyn Device, second: &mut dyn Device) {
    let (here, there) = (memory(first, ROOM), memory(second, ROOM));
    round_trip(first, Some(second), &here, &there);
}

/// Host to `here` (of `first`), `peer` to `there` (of `second`, or of `first`), and from there to the host.
fn round_trip<'a>(first: &'a mut dyn Device, second: Option<&'a mut dyn Device>, here: &Buffer, there: &Buffer) {
    let (source, target) = (host(first, ROOM, HostKind::Pinned), host(first, ROOM, HostKind::Pinned));
    let mut sent = vec![0; ROOM];
    Noise(11).fill(&mut sent);
    write(&source, &sent);
    complete(first, EngineClass::H2d, copy(Method::Dma, (&source, 0), (here, 0), ROOM));
    complete(first, EngineClass::Peer, copy(Method::Peer, (here, 5), (there, 5), ROOM - 5));
    let last = second.unwrap_or(first);
    complete(last, EngineClass::D2h, copy(Method::Dma, (there, 0), (&target, 0), ROOM));
    sent[..5].fill(0);
    same("peer copy", &read(&target), &sent);
}

/// Test of the suite: first come, first served, one at a time.
pub fn operations_of_an_engine_complete_in_order(mut device: Box<dyn Device>, _: Open<'_>) {
    let count = device.description().limits.outstanding_per_engine_max.min(32);
    let sizes: Vec<usize> = (0..count).map(|at| if at % 3 == 0 { 1 << 18 } else { 64 }).collect();
    let total = sizes.iter().sum();
    let (source, there) = (host(device.as_mut(), total, HostKind::Pinned), memory(device.as_mut(), total));
    let submitted = clock::now();
    let mut offset = 0;
    for (tag, &size) in (0..).zip(&sizes) {
        let operation = copy(Method::Dma, (&source, offset), (&there, offset), size);
        device.submit(EngineClass::H2d, operation, tag).expect("within the queue's limit");
        offset += size;
    }
    let done = wait_for(device.as_mut(), count);
    assert_eq!(done.iter().map(|completion| completion.tag).collect::<Vec<_>>(), (0..count as u64).collect::<Vec<_>>());
    assert!(done[0].started >= submitted, "an operation started before it was submitted");
    for pair in done.windows(2) {
        assert!(pair[0].finished <= pair[1].started, "two operations of one engine overlap: {pair:?}");
    }
}

/// Test of the suite: work on every engine at once, each given before any is waited for.
pub fn engines_of_all_classes_finish_what_they_are_given(mut device: Box<dyn Device>, _: Open<'_>) {
    let bytes = 1 << 20;
    let device = device.as_mut();
    let (source, target) = (host(device, bytes, HostKind::Pinned), host(device, bytes, HostKind::Pinned));
    let (first, second) = (memory(device, bytes), memory(device, bytes));
    let launch = has(device, EngineClass::Ee).then(|| Launch::new(device, &[100, 0, 33]));
    let mut expected = 2;
    device.submit(EngineClass::H2d, copy(Method::Dma, (&source, 0), (&first, 0), bytes), 0).expect("h2d is served");
    device.submit(EngineClass::D2h, copy(Method::Dma, (&second, 0), (&target, 0), bytes), 1).expect("d2h is served");
    if let Some(launch) = launch {
        device.submit(EngineClass::Ee, launch.operation(), 2).expect("ee is served");
        expected += 1;
    }
    let mut done = wait_for(device, expected);
    done.sort_by_key(|completion| completion.tag);
    for (tag, completion) in (0..).zip(&done) {
        assert_eq!((completion.tag, &completion.result), (tag, &Ok(())));
    }
}

/// Test of the suite: tags are the caller's, whatever they are, equal ones included.
pub fn every_tag_comes_back_exactly_once(mut device: Box<dyn Device>, _: Open<'_>) {
    let tags = [0, u64::MAX, 42, 42, 1 << 63, 7];
    let (host, there) = (host(device.as_mut(), 64, HostKind::Pinned), memory(device.as_mut(), 64));
    let mut seen = Vec::new();
    for pair in tags.chunks(2) {
        for (at, &tag) in pair.iter().enumerate() {
            let operation = copy(Method::Dma, (&host, at), (&there, at), 1);
            device.submit(EngineClass::H2d, operation, tag).expect("within the queue's limit");
        }
        seen.extend(wait_for(device.as_mut(), pair.len()).iter().map(|completion| completion.tag));
    }
    assert_eq!(seen, tags);
    let mut more = Vec::new();
    device.poll(&mut more);
    assert_eq!(more, [], "nothing completes twice");
    assert!(!device.must_poll(), "an idle device does not ask to be polled");
}

/// Test of the suite: an operation's claims hold for others, and are gone once its completion is polled.
pub fn claims_exclude_each_other_until_completion(mut device: Box<dyn Device>, _: Open<'_>) {
    let (source, there) = (host(device.as_mut(), 4096, HostKind::Pinned), memory(device.as_mut(), 4096));
    let operation = copy(Method::Dma, (&source, 0), (&there, 0), 2048);
    let overlap = |result: Result<crate::Span, DeviceError>| matches!(result, Err(DeviceError::Overlap { .. }));
    assert!(overlap(source.claim(2047..4096, Access::Write)), "the operation reads byte 2047");
    assert!(overlap(there.claim(0..1, Access::Read)), "the operation writes byte 0");
    drop(claim(&source, 0..4096, Access::Read));
    drop(claim(&there, 2048..4096, Access::Write));
    complete(device.as_mut(), EngineClass::H2d, operation);
    drop(claim(&source, 0..4096, Access::Write));
    drop(claim(&there, 0..4096, Access::Write));
}

/// Test of the suite: claims end where their buffer ends.
pub fn claims_outside_a_buffer_are_refused(mut device: Box<dyn Device>, _: Open<'_>) {
    for buffer in [host(device.as_mut(), 100, HostKind::Pinned), memory(device.as_mut(), 100)] {
        assert_eq!(buffer.len(), 100);
        let refused = buffer.claim(60..101, Access::Read).err();
        assert_eq!(refused, Some(DeviceError::OutOfRange { range: 60..101, len: 100 }));
    }
}

/// Test of the suite: the CPU gets no bytes of a device buffer.
pub fn device_memory_is_closed_to_the_cpu(mut device: Box<dyn Device>, _: Open<'_>) {
    let buffer = memory(device.as_mut(), 16);
    let mut span = claim(&buffer, 0..16, Access::Write);
    assert!(matches!(span.bytes(), Err(DeviceError::Invalid { .. })));
    assert!(matches!(span.bytes_mut(), Err(DeviceError::Invalid { .. })));
}

/// Test of the suite: the queue takes what its limit says, then refuses, and forgets nothing.
pub fn a_full_queue_refuses_and_stays_usable(mut device: Box<dyn Device>, _: Open<'_>) {
    let max = device.description().limits.outstanding_per_engine_max;
    assert!(max <= FILLABLE_MAX, "open the device under test with outstanding_per_engine_max <= {FILLABLE_MAX}");
    let (source, there) = (host(device.as_mut(), max + 1, HostKind::Pinned), memory(device.as_mut(), max + 1));
    let piece = |at| copy(Method::Dma, (&source, at), (&there, at), 1);
    for at in 0..max {
        device.submit(EngineClass::H2d, piece(at), at as u64).expect("within the queue's limit");
    }
    let refused = device.submit(EngineClass::H2d, piece(max), max as u64);
    assert_eq!(refused, Err(DeviceError::Refused { limit: "outstanding_per_engine_max", max: max as u64 }));
    drop(claim(&source, max..max + 1, Access::Write));
    let done = wait_for(device.as_mut(), max);
    assert!(done.iter().zip(0..).all(|(completion, tag)| completion.tag == tag && completion.result == Ok(())));
    complete(device.as_mut(), EngineClass::H2d, piece(max));
}

/// Test of the suite: a class missing from the description is refused by name.
pub fn a_class_that_is_not_served_is_refused(mut device: Box<dyn Device>, _: Open<'_>) {
    let (source, there) = (host(device.as_mut(), 8, HostKind::Pinned), memory(device.as_mut(), 8));
    for class in [EngineClass::H2d, EngineClass::D2h, EngineClass::Peer, EngineClass::Ee] {
        if !has(device.as_ref(), class) {
            let refused = device.submit(class, copy(Method::Dma, (&source, 0), (&there, 0), 8), 0);
            assert_eq!(refused, Err(DeviceError::NoEngine { device: device.description().name.clone(), class }));
        }
    }
}

/// Test of the suite: wrong direction, length, memory kind or method are the caller's mistakes, found before anything runs.
pub fn operations_against_the_rules_are_refused(mut device: Box<dyn Device>, _: Open<'_>) {
    let device = device.as_mut();
    let (pinned, plain) = (host(device, 64, HostKind::Pinned), host(device, 64, HostKind::Pageable));
    let there = memory(device, 64);
    let mut refused = |what: &str, engine, operation| {
        let result = device.submit(engine, operation, 0);
        assert!(matches!(result, Err(DeviceError::Invalid { .. })), "{what}: {result:?}");
    };
    refused("h2d backwards", EngineClass::H2d, copy(Method::Dma, (&there, 0), (&pinned, 0), 8));
    refused("d2h backwards", EngineClass::D2h, copy(Method::Dma, (&pinned, 0), (&there, 0), 8));
    refused("host to host", EngineClass::H2d, copy(Method::Pageable, (&plain, 0), (&pinned, 0), 8));
    refused("dma from pageable", EngineClass::H2d, copy(Method::Dma, (&plain, 0), (&there, 0), 8));
    refused("peer from host", EngineClass::H2d, copy(Method::Peer, (&pinned, 0), (&there, 0), 8));
    let (from, to) = (claim(&pinned, 0..8, Access::Read), claim(&there, 0..9, Access::Write));
    refused("8 bytes to 9", EngineClass::H2d, Operation::Copy { method: Method::Dma, from, to });
    let (from, to) = (claim(&pinned, 0..8, Access::Read), claim(&there, 0..8, Access::Read));
    refused("destination for reading", EngineClass::H2d, Operation::Copy { method: Method::Dma, from, to });
    let mut done = Vec::new();
    device.poll(&mut done);
    assert_eq!(done, [], "a refused operation never completes");
}

/// Test of the suite: a kernel is good on the device that loaded it.
pub fn kernels_of_another_device_are_refused(mut device: Box<dyn Device>, open: Open<'_>) {
    let (true, Ok(mut other)) = (has(device.as_ref(), EngineClass::Ee), open()) else { return };
    let launch = Launch::new(device.as_mut(), &[16]);
    assert_eq!(device.submit(EngineClass::H2d, launch.operation(), 0).map_err(|error| is_invalid(&error)), Err(true));
    let refused = other.submit(EngineClass::Ee, launch.operation(), 0);
    assert!(matches!(refused, Err(DeviceError::Invalid { .. })), "{refused:?}");
}

fn is_invalid(error: &DeviceError) -> bool {
    matches!(error, DeviceError::Invalid { .. })
}

/// Test of the suite: three cycles of the test kernel, whose state goes on from one to the next.
pub fn launches_give_what_the_cpu_form_gives(mut device: Box<dyn Device>, _: Open<'_>) {
    if !has(device.as_ref(), EngineClass::Ee) {
        return;
    }
    for lens in [&[1u64][..], &[0], &[16, 0, 4097, 255], &[1; 33]] {
        let device = device.as_mut();
        let launch = Launch::new(device, lens);
        let bytes = launch.input.len();
        let staging = host(device, bytes, HostKind::Pinned);
        let (mut block, mut state) = (vec![0; bytes], vec![0; Xor.state_bytes(lens.len())]);
        for cycle in 0..3 {
            Noise(cycle).fill(&mut block);
            block::write_header(&mut block, cycle, lens).expect("the block has this size");
            let mut expected = vec![0; bytes];
            Xor.run(&block, &mut expected, &mut state).expect("a valid block");
            write(&staging, &block);
            complete(device, EngineClass::H2d, copy(Method::Dma, (&staging, 0), (&launch.input, 0), bytes));
            complete(device, EngineClass::Ee, launch.operation());
            complete(device, EngineClass::D2h, copy(Method::Dma, (&launch.output, 0), (&staging, 0), bytes));
            let found = read(&staging);
            same("header", &found[..block::header_bytes(lens.len())], &expected[..block::header_bytes(lens.len())]);
            let header = Header::read(&found).expect("the kernel copies the header");
            for (lane, range) in header.lanes.into_iter().enumerate() {
                same(&format!("cycle {cycle}, lane {lane} of {lens:?}"), &found[range.clone()], &expected[range]);
            }
        }
    }
}

/// Test of the suite: buffers beyond the limits are refused with figures, and given back when dropped.
pub fn buffers_are_bounded_in_number_and_bytes(mut device: Box<dyn Device>, _: Open<'_>) {
    let limits = device.description().limits;
    assert!(limits.buffers_max <= FILLABLE_MAX, "open the device under test with buffers_max <= {FILLABLE_MAX}");
    let buffers: Vec<_> = (0..limits.buffers_max).map(|_| host(device.as_mut(), 1, HostKind::Pageable)).collect();
    let refused = device.device_buffer(1).err();
    assert_eq!(refused, Some(DeviceError::Refused { limit: "buffers_max", max: limits.buffers_max as u64 }));
    drop(buffers);
    let too_much = (limits.host_bytes_max.0 as usize).saturating_add(1);
    for kind in [HostKind::Pinned, HostKind::Pageable] {
        let error = device.host_buffer(too_much, kind).expect_err("more than the limit");
        assert!(matches!(error, DeviceError::OutOfMemory { wanted, available, .. } if wanted > available), "{error}");
    }
    let memory_bytes = device.description().memory_bytes.min(limits.device_bytes_max);
    let error = device.device_buffer((memory_bytes.0 as usize).saturating_add(1)).expect_err("more than there is");
    assert!(matches!(error, DeviceError::OutOfMemory { .. }), "{error}");
    drop(host(device.as_mut(), 1, HostKind::Pinned));
}

/// Test of the suite: new buffers hold zeros, also where an earlier one held something else.
pub fn buffers_are_zeroed_and_aligned(mut device: Box<dyn Device>, _: Open<'_>) {
    let device = device.as_mut();
    for round in 0..2 {
        let (pinned, plain) = (host(device, 4097, HostKind::Pinned), host(device, 4097, HostKind::Pageable));
        let there = memory(device, 4097);
        complete(device, EngineClass::D2h, copy(Method::Dma, (&there, 0), (&pinned, 0), 4097));
        for buffer in [&pinned, &plain] {
            same(&format!("new buffer, round {round}"), &read(buffer), &[0; 4097]);
        }
        for buffer in [&pinned, &plain, &there] {
            assert_eq!(claim(buffer, 0..1, Access::Read).as_ptr().addr() % 256, 0);
        }
        write(&pinned, &[0xFF; 4097]);
        complete(device, EngineClass::H2d, copy(Method::Dma, (&pinned, 0), (&there, 0), 4097));
    }
}

/// Test of the suite: without polling, the waker is called, or the device says that it must be polled.
pub fn completions_wake_or_ask_to_be_polled(mut device: Box<dyn Device>, _: Open<'_>) {
    let (source, there) = (host(device.as_mut(), 64, HostKind::Pageable), memory(device.as_mut(), 64));
    for method in [Method::Pageable, Method::Dma] {
        let woken = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&woken);
        device.set_waker(Arc::new(move || flag.store(true, Ordering::Release)));
        let pinned = host(device.as_mut(), 64, HostKind::Pinned);
        let from = if method == Method::Dma { &pinned } else { &source };
        device.submit(EngineClass::H2d, copy(method, (from, 0), (&there, 0), 64), 0).expect("a valid operation");
        let until = clock::now().saturating_add(PATIENCE);
        while !device.must_poll() && !woken.load(Ordering::Acquire) {
            assert!(clock::now() < until, "neither woken nor asked to poll within {PATIENCE}");
            std::thread::yield_now();
        }
        assert_eq!(wait_for(device.as_mut(), 1)[0].result, Ok(()));
    }
}

/// Test of the suite: a device dropped with operations outstanding hangs nowhere and frees nothing too early.
pub fn dropping_a_busy_device_releases_everything(mut device: Box<dyn Device>, _: Open<'_>) {
    // Half of the limit, as one engine may serve both directions.
    let count = (device.description().limits.outstanding_per_engine_max / 2).min(16);
    let bytes = count << 20;
    let (source, there) = (host(device.as_mut(), bytes, HostKind::Pinned), memory(device.as_mut(), bytes));
    let (plain, other) = (host(device.as_mut(), bytes, HostKind::Pageable), memory(device.as_mut(), bytes));
    for at in 0..count {
        let at = at << 20;
        device.submit(EngineClass::H2d, copy(Method::Dma, (&source, at), (&there, at), 1 << 20), 0).expect("room");
        let pageable = copy(Method::Pageable, (&other, at), (&plain, at), 1 << 20);
        device.submit(EngineClass::D2h, pageable, 0).expect("room");
    }
    drop(device);
    for buffer in [source, there, plain, other] {
        drop(claim(&buffer, 0..bytes, Access::Write));
    }
}

/// A launch of the test kernel with its memory.
struct Launch {
    kernel: KernelId,
    input: Buffer,
    output: Buffer,
    state: Buffer,
    lanes: u32,
}

impl Launch {
    /// Loads the kernel and puts a block with zeros for data into place.
    fn new(device: &mut dyn Device, lens: &[u64]) -> Self {
        let bytes = block::block_bytes(lens.iter().copied()).0 as usize;
        let launch = Self {
            kernel: device.load(Arc::new(Xor)).expect("the test kernel loads"),
            input: memory(device, bytes),
            output: memory(device, bytes),
            state: memory(device, Xor.state_bytes(lens.len())),
            lanes: lens.len() as u32,
        };
        let staging = host(device, bytes, HostKind::Pinned);
        let mut content = vec![0; bytes];
        block::write_header(&mut content, 0, lens).expect("the block has this size");
        write(&staging, &content);
        complete(device, EngineClass::H2d, copy(Method::Dma, (&staging, 0), (&launch.input, 0), bytes));
        launch
    }

    fn operation(&self) -> Operation {
        Operation::Launch {
            kernel: self.kernel,
            input: claim(&self.input, 0..self.input.len(), Access::Read),
            output: claim(&self.output, 0..self.output.len(), Access::Write),
            state: Some(claim(&self.state, 0..self.state.len(), Access::Write)),
            lanes: self.lanes,
        }
    }
}

/// The suite's kernel: every byte of lane `i` becomes `byte ^ (i + launches so far)`; the state counts launches per lane.
#[derive(Clone, Copy, Debug)]
pub struct Xor;

impl Kernel for Xor {
    fn id(&self) -> &'static str {
        "conformance-xor"
    }

    fn state_bytes(&self, lanes: usize) -> usize {
        4 * lanes
    }

    fn init_state(&self, _: &[Lane], state: &mut [u8]) -> Result<(), KernelError> {
        state.fill(0);
        Ok(())
    }

    fn run(&self, input: &[u8], output: &mut [u8], state: &mut [u8]) -> Result<(), KernelError> {
        let refuse = |reason: String| KernelError::BadBlock { kernel: "conformance-xor", reason };
        let header = Header::read(input).map_err(|error| refuse(error.to_string()))?;
        let first = block::header_bytes(header.lanes.len());
        if output.len() < input.len() || state.len() < 4 * header.lanes.len() {
            return Err(refuse("output or state is too small".into()));
        }
        output[..first].copy_from_slice(&input[..first]);
        for ((lane, range), state) in (0u32..).zip(header.lanes).zip(state.chunks_exact_mut(4)) {
            let launches = u32::from_le_bytes([state[0], state[1], state[2], state[3]]);
            let mask = lane.wrapping_add(launches) as u8;
            for (to, from) in output[range.clone()].iter_mut().zip(&input[range]) {
                *to = from ^ mask;
            }
            state.copy_from_slice(&launches.wrapping_add(1).to_le_bytes());
        }
        Ok(())
    }

    fn ptx(&self) -> &'static str {
        include_str!("conformance.ptx")
    }

    fn entry(&self) -> &'static str {
        "headway_conformance_xor"
    }

    fn grid(&self, lanes: u32) -> Grid {
        // More dynamic shared memory than a kernel gets without asking, so that asking is tested too.
        Grid { blocks: lanes, threads: 128, shared_bytes: 50 << 10 }
    }
}
