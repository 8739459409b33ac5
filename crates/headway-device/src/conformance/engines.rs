//! Engines over a GPU: order, times, limits, refusals, wakers, and steps of streams.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use headway_core::files::machine::EngineClass;
use headway_core::models::transfer::Method;
use headway_core::plan::block::{self, BlockHeader};
use headway_os::clock;

use super::{Noise, PATIENCE, claim, read, same, write};
use crate::buffer::{Access, Buffer, HostKind};
use crate::gpu::{Completion, Gpu};
use crate::work::{DeviceCode, LaunchGrid, Portion, StepMemory, Work, WorkError};
use crate::{DeviceError, Engines, Span, Waker};

/// Sizes around the usual borders: line, page, and a megabyte.
const SIZES: [usize; 8] = [0, 1, 3, 64, 4095, 4096, 4097, (1 << 20) - 1];
/// Offsets of source and destination in their buffers.
const OFFSETS: [(usize, usize); 4] = [(0, 0), (1, 64), (64, 3), (4093, 256)];
/// Larger than any size plus any offset, with room for guard bytes.
const ROOM: usize = (1 << 20) + 8192;
/// The suite fills engines and buffer tables up to their limits; these must be small enough for that.
const FILLABLE_MAX: usize = 1 << 16;
use EngineClass::{D2h, Ee, H2d, Peer};
use Method::{Dma, Pageable};

/// Polls until `count` operations have completed, in the order they came.
///
/// # Panics
/// When they do not within two minutes, or when times contradict each other.
pub fn wait_for(engines: &mut Engines, count: usize) -> Vec<Completion> {
    let until = clock::now().saturating_add(PATIENCE);
    let mut done = Vec::new();
    while done.len() < count {
        engines.poll(&mut done);
        assert!(clock::now() < until, "{} of {count} operations completed within {PATIENCE}", done.len());
        std::thread::yield_now();
    }
    for completion in &done {
        let Completion { started, finished, noticed, .. } = *completion;
        assert!(started <= finished && finished <= noticed, "times are out of order: {completion:?}");
    }
    done
}

fn open(gpu: &Arc<dyn Gpu>) -> Engines {
    Engines::open(Arc::clone(gpu)).expect("engines of a GPU that is there")
}

fn ends(from: (&Buffer, usize), to: (&Buffer, usize), bytes: usize) -> (Span, Span) {
    (claim(from.0, from.1, bytes, Access::Read), claim(to.0, to.1, bytes, Access::Write))
}

fn host(engines: &Engines, bytes: usize, kind: HostKind) -> Buffer {
    engines.host_buffer(bytes, kind).expect("host memory within the limits")
}

fn memory(engines: &Engines, bytes: usize) -> Buffer {
    engines.device_buffer(bytes).expect("device memory within the limits")
}

fn all(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    read(buffer, 0, &mut bytes);
    bytes
}

fn complete(engines: &mut Engines, class: EngineClass, method: Method, ends: (Span, Span)) {
    engines.copy(class, method, ends, 1).expect("a valid copy on an idle engine");
    assert_eq!(wait_for(engines, 1)[0].result, Ok(()));
}

fn has(engines: &Engines, class: EngineClass) -> bool {
    engines.description().engines.contains(&class)
}

/// Copies there and back by `method`; every byte arrives, and no byte beside them changes.
fn there_and_back(engines: &mut Engines, method: Method, kind: HostKind) {
    let (source, target) = (host(engines, ROOM, kind), host(engines, ROOM, kind));
    let there = memory(engines, ROOM);
    let mut noise = Noise::new(7);
    let (mut sent, mut on_device) = (vec![0; ROOM], vec![0; ROOM]);
    for size in SIZES {
        for (from, to) in OFFSETS {
            noise.fill(&mut sent);
            write(&source, 0, &sent);
            complete(engines, H2d, method, ends((&source, from), (&there, to), size));
            on_device[to..to + size].copy_from_slice(&sent[from..from + size]);
            complete(engines, D2h, method, ends((&there, 0), (&target, 0), ROOM));
            same(&format!("h2d of {size} bytes from {from} to {to}"), &all(&target), &on_device);

            noise.fill(&mut sent);
            write(&target, 0, &sent);
            complete(engines, D2h, method, ends((&there, to), (&target, from), size));
            sent[from..from + size].copy_from_slice(&on_device[to..to + size]);
            same(&format!("d2h of {size} bytes from {to} to {from}"), &all(&target), &sent);
        }
    }
}

/// Test of the suite: both methods of engines in both directions, all sizes and offsets.
pub fn engines_copy_every_byte_and_no_other(gpu: &Arc<dyn Gpu>) {
    there_and_back(&mut open(gpu), Dma, HostKind::Pinned);
    there_and_back(&mut open(gpu), Pageable, HostKind::Pageable);
}

/// Test of the suite: a copy between two buffers of one GPU, where it serves `peer`.
pub fn the_peer_engine_copies_within_a_device(gpu: &Arc<dyn Gpu>) {
    let mut engines = open(gpu);
    if has(&engines, Peer) {
        let (first, second) = (memory(&engines, ROOM), memory(&engines, ROOM));
        round_trip(&mut engines, None, &first, &second);
    }
}

/// Test for two GPUs of one domain: bytes go from one's memory to the other's and come back.
///
/// # Panics
/// When they do not.
pub fn peers_exchange_every_byte(first: &Arc<dyn Gpu>, second: &Arc<dyn Gpu>) {
    let (mut first, mut second) = (open(first), open(second));
    let (here, there) = (memory(&first, ROOM), memory(&second, ROOM));
    round_trip(&mut first, Some(&mut second), &here, &there);
}

/// Host to `here` (of `first`), `peer` to `there` (of `second`, or of `first`), and from there to the host.
fn round_trip<'a>(first: &'a mut Engines, second: Option<&'a mut Engines>, here: &Buffer, there: &Buffer) {
    let (source, target) = (host(first, ROOM, HostKind::Pinned), host(first, ROOM, HostKind::Pinned));
    let mut sent = vec![0; ROOM];
    Noise::new(11).fill(&mut sent);
    write(&source, 0, &sent);
    complete(first, H2d, Dma, ends((&source, 0), (here, 0), ROOM));
    complete(first, Peer, Method::Peer, ends((here, 5), (there, 5), ROOM - 5));
    complete(second.unwrap_or(first), D2h, Dma, ends((there, 0), (&target, 0), ROOM));
    sent[..5].fill(0);
    same("peer copy", &all(&target), &sent);
}

/// Test of the suite: first come, first served, one at a time.
pub fn operations_of_an_engine_complete_in_order(gpu: &Arc<dyn Gpu>) {
    let mut engines = open(gpu);
    let count = engines.description().limits.outstanding_per_engine_max.min(32);
    let sizes: Vec<usize> = (0..count).map(|at| if at % 3 == 0 { 1 << 18 } else { 64 }).collect();
    let total = sizes.iter().sum();
    let (source, there) = (host(&engines, total, HostKind::Pinned), memory(&engines, total));
    let submitted = clock::now();
    let mut offset = 0;
    for (tag, &size) in (0..).zip(&sizes) {
        engines
            .copy(H2d, Dma, ends((&source, offset), (&there, offset), size), tag)
            .expect("within the engine's limit");
        offset += size;
    }
    let done = wait_for(&mut engines, count);
    assert_eq!(done.iter().map(|completion| completion.tag).collect::<Vec<_>>(), (0..count as u64).collect::<Vec<_>>());
    assert!(done[0].started >= submitted, "an operation started before it was submitted");
    for pair in done.windows(2) {
        assert!(pair[0].finished <= pair[1].started, "two operations of one engine overlap: {pair:?}");
    }
}

/// Test of the suite: work on every engine at once, each given before any is waited for.
pub fn engines_of_all_classes_finish_what_they_are_given(gpu: &Arc<dyn Gpu>) {
    let bytes = 1 << 20;
    let mut engines = open(gpu);
    let (source, target) = (host(&engines, bytes, HostKind::Pinned), host(&engines, bytes, HostKind::Pinned));
    let (first, second) = (memory(&engines, bytes), memory(&engines, bytes));
    let launch = has(&engines, Ee).then(|| Launch::new(&mut engines, &[100, 0, 33]));
    engines.copy(H2d, Dma, ends((&source, 0), (&first, 0), bytes), 0).expect("h2d is served");
    engines.copy(D2h, Dma, ends((&second, 0), (&target, 0), bytes), 1).expect("d2h is served");
    let mut expected = 2;
    if let Some(launch) = launch {
        launch.submit(&mut engines, 2).expect("ee is served");
        expected += 1;
    }
    let mut done = wait_for(&mut engines, expected);
    done.sort_by_key(|completion| completion.tag);
    for (tag, completion) in (0..).zip(&done) {
        assert_eq!((completion.tag, &completion.result), (tag, &Ok(())));
    }
}

/// Test of the suite: tags are the caller's, whatever they are, equal ones included.
pub fn every_tag_comes_back_exactly_once(gpu: &Arc<dyn Gpu>) {
    let mut engines = open(gpu);
    let tags = [0, u64::MAX, 42, 42, 1 << 63, 7];
    let (host, there) = (host(&engines, 64, HostKind::Pinned), memory(&engines, 64));
    let mut seen = Vec::new();
    for pair in tags.chunks(2) {
        for (at, &tag) in pair.iter().enumerate() {
            engines.copy(H2d, Dma, ends((&host, at), (&there, at), 1), tag).expect("within the engine's limit");
        }
        seen.extend(wait_for(&mut engines, pair.len()).iter().map(|completion| completion.tag));
    }
    assert_eq!(seen, tags);
    let mut more = Vec::new();
    engines.poll(&mut more);
    assert_eq!(more, [], "nothing completes twice");
    assert!(!engines.must_poll(), "idle engines do not ask to be polled");
}

/// Test of the suite: an engine takes what its limit says, copies of both methods together, then refuses, and forgets nothing.
pub fn a_full_engine_refuses_and_stays_usable(gpu: &Arc<dyn Gpu>) {
    let mut engines = open(gpu);
    let max = engines.description().limits.outstanding_per_engine_max;
    assert!(max <= FILLABLE_MAX, "open the GPU under test with outstanding_per_engine_max <= {FILLABLE_MAX}");
    let (source, there) = (host(&engines, max + 1, HostKind::Pinned), memory(&engines, max + 1));
    let piece = |at| ends((&source, at), (&there, at), 1);
    for at in 0..max {
        let method = if at % 2 == 0 { Dma } else { Pageable };
        engines.copy(H2d, method, piece(at), at as u64).expect("within the engine's limit");
    }
    for method in [Dma, Pageable] {
        let refused = engines.copy(H2d, method, piece(max), max as u64);
        assert_eq!(refused, Err(DeviceError::Refused { limit: "outstanding_per_engine_max", max: max as u64 }));
    }
    drop(claim(&source, max, 1, Access::Write));
    let mut done = wait_for(&mut engines, max);
    done.sort_by_key(|completion| completion.tag);
    assert!(done.iter().zip(0..).all(|(completion, tag)| completion.tag == tag && completion.result == Ok(())));
    complete(&mut engines, H2d, Dma, piece(max));
}

/// Test of the suite: a class missing from the description is refused by name.
pub fn a_class_that_is_not_served_is_refused(gpu: &Arc<dyn Gpu>) {
    let mut engines = open(gpu);
    let (source, there) = (host(&engines, 8, HostKind::Pinned), memory(&engines, 8));
    for class in [H2d, D2h, Peer, Ee] {
        if !has(&engines, class) {
            let refused = engines.copy(class, Dma, ends((&source, 0), (&there, 0), 8), 0);
            let device = engines.description().name.clone();
            assert_eq!(refused, Err(DeviceError::NoEngine { device, class }));
        }
    }
}

/// Test of the suite: wrong direction, length, memory kind or method are the caller's mistakes, found before anything runs.
pub fn copies_against_the_rules_of_engines_are_refused(gpu: &Arc<dyn Gpu>) {
    let mut engines = open(gpu);
    let (pinned, plain) = (host(&engines, 64, HostKind::Pinned), host(&engines, 64, HostKind::Pageable));
    let there = memory(&engines, 64);
    let mut refused = |what: &str, class, method, ends| {
        let result = engines.copy(class, method, ends, 0);
        assert!(matches!(result, Err(DeviceError::Invalid { .. })), "{what}: {result:?}");
    };
    refused("h2d backwards", H2d, Dma, ends((&there, 0), (&pinned, 0), 8));
    refused("d2h backwards", D2h, Dma, ends((&pinned, 0), (&there, 0), 8));
    refused("host to host", H2d, Pageable, ends((&plain, 0), (&pinned, 0), 8));
    refused("dma from pageable", H2d, Dma, ends((&plain, 0), (&there, 0), 8));
    refused("peer from host", H2d, Method::Peer, ends((&pinned, 0), (&there, 0), 8));
    let reads = |buffer: &Buffer, len| claim(buffer, 0, len, Access::Read);
    refused("8 bytes to 9", H2d, Dma, (reads(&pinned, 8), claim(&there, 0, 9, Access::Write)));
    refused("destination for reading", H2d, Dma, (reads(&pinned, 8), reads(&there, 8)));
    let mut done = Vec::new();
    engines.poll(&mut done);
    assert_eq!(done, [], "a refused operation never completes");
}

/// Test of the suite: three cycles of the test's step, whose state goes on from one to the next.
pub fn steps_write_what_their_cpu_form_writes(gpu: &Arc<dyn Gpu>) {
    let mut engines = open(gpu);
    if !has(&engines, Ee) {
        return;
    }
    for lens in [&[1u64][..], &[0], &[16, 0, 4097, 255], &[1; 33]] {
        let engines = &mut engines;
        let launch = Launch::new(engines, lens);
        let bytes = launch.input.len();
        let staging = host(engines, bytes, HostKind::Pinned);
        let (mut block, mut state) = (vec![0; bytes], vec![0; Xor.state_bytes(lens.len())]);
        for cycle in 0..3 {
            Noise::new(cycle).fill(&mut block);
            block::write_header(&mut block, cycle, lens).expect("the block has this size");
            let mut expected = vec![0; bytes];
            Xor.run(&block, &mut expected, &mut state).expect("a valid block");
            write(&staging, 0, &block);
            complete(engines, H2d, Dma, ends((&staging, 0), (&launch.input, 0), bytes));
            launch.submit(engines, 1).expect("a valid launch on an idle engine");
            assert_eq!(wait_for(engines, 1)[0].result, Ok(()));
            complete(engines, D2h, Dma, ends((&launch.output, 0), (&staging, 0), bytes));
            let found = all(&staging);
            let header = 0..block::header_bytes(lens.len());
            same("header", &found[header.clone()], &expected[header]);
            let header = BlockHeader::read(&found).expect("the kernel copies the header");
            for (portion, range) in header.portions.into_iter().enumerate() {
                same(&format!("cycle {cycle}, portion {portion} of {lens:?}"), &found[range.clone()], &expected[range]);
            }
        }
    }
}

/// Test of the suite: memory that a step's entry must not be given.
pub fn steps_against_the_rules_are_refused(gpu: &Arc<dyn Gpu>) {
    let mut engines = open(gpu);
    if !has(&engines, Ee) {
        return;
    }
    let launch = Launch::new(&mut engines, &[16]);
    let plain = host(&engines, 4096, HostKind::Pageable);
    let len = launch.input.len();
    let mut refused = |what: &str, memory: StepMemory, portions| {
        let result = engines.launch(&launch.work, memory, portions, 0);
        assert!(matches!(result, Err(DeviceError::Invalid { .. })), "{what}: {result:?}");
    };
    let input = |range: Range<usize>| launch.input.claim(range, Access::Read).expect("nobody else holds a claim");
    let output = |range: Range<usize>| launch.output.claim(range, Access::Write).expect("nobody else holds a claim");
    let memory = |input, output| StepMemory { input, output, state: None };
    refused("no portion", memory(input(0..len), output(0..len)), 0);
    refused("a short output", memory(input(0..len), output(0..len - 1)), 1);
    refused("a shifted input", memory(input(1..len), output(0..len)), 1);
    refused("an output for reading", memory(input(0..len), input(0..len)), 1);
    refused("input that is not pinned", memory(claim(&plain, 0, len, Access::Read), output(0..len)), 1);
}

/// Test of the suite: buffers beyond the limits are refused with figures, and given back when dropped.
pub fn buffers_are_bounded_in_number(gpu: &Arc<dyn Gpu>) {
    let engines = open(gpu);
    let limits = engines.description().limits;
    assert!(limits.buffers_max <= FILLABLE_MAX, "open the GPU under test with buffers_max <= {FILLABLE_MAX}");
    let mut buffers = Vec::new();
    // Others may have buffers of the same GPU.
    let refused = loop {
        match engines.host_buffer(1, HostKind::Pageable) {
            Ok(buffer) => buffers.push(buffer),
            Err(error) => break error,
        }
    };
    assert!(buffers.len() <= limits.buffers_max);
    assert_eq!(refused, DeviceError::Refused { limit: "buffers_max", max: limits.buffers_max as u64 });
    assert_eq!(engines.device_buffer(1).err(), Some(refused));
    drop(buffers);
    let too_much = (limits.host_bytes_max.0 as usize).saturating_add(1);
    for kind in [HostKind::Pinned, HostKind::Pageable] {
        let error = engines.host_buffer(too_much, kind).expect_err("more than the limit");
        assert!(matches!(error, DeviceError::OutOfMemory { wanted, available, .. } if wanted > available), "{error}");
    }
    drop(host(&engines, 1, HostKind::Pinned));
}

/// Test of the suite: without polling, the waker is called, or the engines say that they must be polled.
pub fn completions_wake_or_ask_to_be_polled(gpu: &Arc<dyn Gpu>) {
    let mut engines = open(gpu);
    let there = memory(&engines, 64);
    for (method, kind) in [(Pageable, HostKind::Pageable), (Dma, HostKind::Pinned)] {
        let woken = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&woken);
        let waker: Waker = Arc::new(move || flag.store(true, Ordering::Release));
        engines.set_waker(&waker);
        let from = host(&engines, 64, kind);
        engines.copy(H2d, method, ends((&from, 0), (&there, 0), 64), 0).expect("a valid copy");
        let until = clock::now().saturating_add(PATIENCE);
        while !engines.must_poll() && !woken.load(Ordering::Acquire) {
            assert!(clock::now() < until, "neither woken nor asked to poll within {PATIENCE}");
            std::thread::yield_now();
        }
        assert_eq!(wait_for(&mut engines, 1)[0].result, Ok(()));
    }
}

/// Test of the suite: engines dropped with operations outstanding hang nowhere and free nothing too early.
pub fn dropping_busy_engines_releases_everything(gpu: &Arc<dyn Gpu>) {
    let mut engines = open(gpu);
    // Half of the limit, as one engine may serve both directions.
    let count = (engines.description().limits.outstanding_per_engine_max / 2).min(16);
    let bytes = count << 20;
    let (source, there) = (host(&engines, bytes, HostKind::Pinned), memory(&engines, bytes));
    let (plain, other) = (host(&engines, bytes, HostKind::Pageable), memory(&engines, bytes));
    for at in 0..count {
        let at = at << 20;
        engines.copy(H2d, Dma, ends((&source, at), (&there, at), 1 << 20), 0).expect("room");
        engines.copy(D2h, Pageable, ends((&other, at), (&plain, at), 1 << 20), 0).expect("room");
    }
    drop(engines);
    for buffer in [source, there, plain, other] {
        drop(claim(&buffer, 0, bytes, Access::Write));
    }
}

/// A launch of the test's step with its memory.
struct Launch {
    work: Arc<dyn Work>,
    input: Buffer,
    output: Buffer,
    state: Buffer,
    portions: u32,
}

impl Launch {
    /// Loads the work and puts a block with zeros for data into place.
    fn new(engines: &mut Engines, lens: &[u64]) -> Self {
        let bytes = block::block_bytes(lens.iter().copied()).0 as usize;
        let launch = Self {
            work: Arc::new(Xor),
            input: memory(engines, bytes),
            output: memory(engines, bytes),
            state: memory(engines, Xor.state_bytes(lens.len())),
            portions: lens.len() as u32,
        };
        engines.gpu().load(launch.work.as_ref()).expect("the test's step loads");
        let staging = host(engines, bytes, HostKind::Pinned);
        let mut content = vec![0; bytes];
        block::write_header(&mut content, 0, lens).expect("the block has this size");
        write(&staging, 0, &content);
        complete(engines, H2d, Dma, ends((&staging, 0), (&launch.input, 0), bytes));
        launch
    }

    fn submit(&self, engines: &mut Engines, tag: u64) -> Result<(), DeviceError> {
        let memory = StepMemory {
            input: claim(&self.input, 0, self.input.len(), Access::Read),
            output: claim(&self.output, 0, self.output.len(), Access::Write),
            state: Some(claim(&self.state, 0, self.state.len(), Access::Write)),
        };
        engines.launch(&self.work, memory, self.portions, tag)
    }
}

/// The suite's step: every byte of portion `i` becomes `byte ^ (i + launches so far)`; the state counts launches per portion.
#[derive(Clone, Copy, Debug)]
pub struct Xor;

impl Work for Xor {
    fn id(&self) -> &'static str {
        "conformance-xor"
    }

    fn state_bytes(&self, portions: usize) -> usize {
        4 * portions
    }

    fn init_state(&self, _: &[Portion], state: &mut [u8]) -> Result<(), WorkError> {
        state.fill(0);
        Ok(())
    }

    fn run(&self, input: &[u8], output: &mut [u8], state: &mut [u8]) -> Result<(), WorkError> {
        let refuse = |reason: String| WorkError::BadBlock { work: "conformance-xor".to_owned(), reason };
        let header = BlockHeader::read(input).map_err(|error| refuse(error.to_string()))?;
        let first = block::header_bytes(header.portions.len());
        if output.len() < input.len() || state.len() < 4 * header.portions.len() {
            return Err(refuse("output or state is too small".into()));
        }
        output[..first].copy_from_slice(&input[..first]);
        for ((portion, range), state) in (0u32..).zip(header.portions).zip(state.chunks_exact_mut(4)) {
            let launches = u32::from_le_bytes([state[0], state[1], state[2], state[3]]);
            let mask = portion.wrapping_add(launches) as u8;
            for (to, from) in output[range.clone()].iter_mut().zip(&input[range]) {
                *to = from ^ mask;
            }
            state.copy_from_slice(&launches.wrapping_add(1).to_le_bytes());
        }
        Ok(())
    }

    fn code(&self) -> DeviceCode {
        DeviceCode::Ptx(include_str!("../conformance.ptx"))
    }

    fn entry(&self) -> &'static str {
        "headway_conformance_xor"
    }

    fn grid(&self, portions: u32) -> LaunchGrid {
        // More dynamic shared memory than a kernel gets without asking, so that asking is tested too.
        LaunchGrid::line(portions, 128, 50 << 10)
    }
}
