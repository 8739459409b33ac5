//! Copies in the order of a caller's stream, on a driver without a GPU whose streams work by themselves.
#![allow(unsafe_code)]

mod support;

use std::sync::LazyLock;
use std::time::Duration;

use headway_core::models::transfer::Direction;
use headway_core::units::Bytes;
use headway_cuda::{CudaGpu, Driver, OrderedCopier, OrderedOptions, OrderedTicket, RawCopy, StreamHandle};
use headway_device::buffer::Buffer;
use headway_device::gpu::{Caching, CpuReach, Gpu, Operation};
use headway_device::{Access, DeviceError, DeviceLimits};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use support::{Fake, failing, in_time, wait_until};

static STREAMS: LazyLock<Fake> = LazyLock::new(|| Fake::build(&["-DSTREAMS"]));
/// Far longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(100);

fn options() -> OrderedOptions {
    OrderedOptions { threads: 3, slot: Bytes(512 << 10), pipelines: 2, tickets: 16 }
}

struct Setup {
    /// Never unloaded: threads of streams whose context has ended stay in it.
    library: &'static libloading::Library,
    gpu: CudaGpu,
    copier: OrderedCopier,
}

type Create = unsafe extern "C" fn(*mut usize, u32) -> i32;
type Word = unsafe extern "C" fn(usize, u64, u32, u32) -> i32;

impl Setup {
    fn new(fake: &Fake) -> Self {
        let limits = DeviceLimits { host_bytes_max: Bytes(1 << 30), ..DeviceLimits::default() };
        let gpu = CudaGpu::open(&fake.driver(), 0, limits).unwrap();
        let copier = OrderedCopier::new(&gpu, options()).unwrap();
        // SAFETY: the library is loaded already.
        let library = Box::leak(Box::new(unsafe { libloading::Library::new(&fake.path) }.unwrap()));
        Self { library, gpu, copier }
    }

    /// A stream of the caller's.
    fn stream(&self) -> StreamHandle {
        // The library makes streams in the current context.
        self.gpu.host_kind(&[0]).unwrap();
        let mut stream = 0;
        // SAFETY: the function takes a place for the handle, and flags of which it knows 1.
        let code = unsafe { self.library.get::<Create>(b"cuStreamCreate\0").unwrap()(&raw mut stream, 1) };
        assert_eq!(code, 0);
        StreamHandle(stream)
    }

    /// Has a stream write or wait for a word in pinned memory.
    fn word(&self, function: &[u8], stream: StreamHandle, word: &Buffer, value: u32) {
        let address = word.claim(0..4, Access::Read).unwrap().as_ptr().addr() as u64;
        // SAFETY: the functions take these; the word lives as long as the test.
        let code = unsafe { self.library.get::<Word>(function).unwrap()(stream.0, address, value, 0) };
        assert_eq!(code, 0);
    }

    fn device(&self, bytes: usize) -> Buffer {
        self.gpu.device_buffer(bytes, CpuReach::Device).unwrap()
    }

    fn copy(
        &self,
        direction: Direction,
        device: &Buffer,
        host: &mut [u8],
        stream: StreamHandle,
    ) -> Result<OrderedTicket, DeviceError> {
        let device = device.claim(0..host.len(), Access::Read).unwrap().as_ptr().addr() as u64;
        let host_at = host.as_mut_ptr().expose_provenance() as u64;
        let (to, from) = if direction == Direction::H2d { (device, host_at) } else { (host_at, device) };
        // SAFETY: the tests keep both ends until the ticket is done.
        self.copier.copy(unsafe { RawCopy::new(to, from, host.len(), stream) })
    }
}

fn random(bytes: usize, seed: u64) -> Vec<u8> {
    let mut data = vec![0; bytes];
    Pcg64Mcg::seed_from_u64(seed).fill_bytes(&mut data);
    data
}

#[test]
fn every_size_goes_in_and_out_in_the_order_of_the_stream() {
    let setup = Setup::new(&STREAMS);
    let stream = setup.stream();
    for bytes in [0, 1, 4095, 65_536, 65_537, 512 << 10, (512 << 10) + 1, 3 << 20, (9 << 20) + 77] {
        let (mut data, device) = (random(bytes, bytes as u64), setup.device(bytes.max(1)));
        let mut back = vec![0; bytes];
        let first = setup.copy(Direction::H2d, &device, &mut data, stream).unwrap();
        // Nobody waits in between: the stream's order is enough.
        let second = setup.copy(Direction::D2h, &device, &mut back, stream).unwrap();
        second.wait(LIMIT).unwrap();
        assert!(first.is_done().unwrap(), "{bytes} bytes");
        assert!(back == data, "{bytes} bytes");
    }
}

#[test]
fn nothing_moves_before_its_turn_and_what_comes_later_waits() {
    let setup = Setup::new(&STREAMS);
    let (stream, other) = (setup.stream(), setup.stream());
    let word = setup.gpu.pinned_buffer(8, Caching::Cached).unwrap();
    let bytes = 5 << 20;
    let (mut data, device) = (random(bytes, 3), setup.device(bytes));
    let mut early = vec![0; bytes];
    let mut back = vec![0; bytes];
    setup.word(b"cuStreamWaitValue32_v2\0", stream, &word, 1);
    let held = setup.copy(Direction::H2d, &device, &mut data, stream).unwrap();
    let last = setup.copy(Direction::D2h, &device, &mut back, stream).unwrap();
    // Another stream is not held up, and sees the GPU's memory as it was.
    setup.copy(Direction::D2h, &device, &mut early, other).unwrap().wait(LIMIT).unwrap();
    assert!(early.iter().all(|byte| *byte == 0), "device buffers begin with zeros");
    assert!(!held.is_done().unwrap() && !last.is_done().unwrap());
    let timeout = held.wait(Duration::from_millis(20));
    assert!(matches!(timeout, Err(DeviceError::Timeout { .. })), "{timeout:?}");
    // The source is read when its turn has come, not before.
    data[0] ^= 0xff;
    setup.word(b"cuStreamWriteValue32_v2\0", other, &word, 1);
    last.wait(LIMIT).unwrap();
    assert!(back == data);
}

#[test]
fn many_threads_with_streams_of_their_own_get_their_bytes() {
    let setup = Setup::new(&STREAMS);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let setup = &setup;
            scope.spawn(move || {
                let stream = setup.stream();
                for round in 0..6 {
                    let bytes = 100_000 + 777_777 * ((thread + round) % 4);
                    let (mut data, device) = (random(bytes, (10 * thread + round) as u64), setup.device(bytes));
                    let mut back = vec![0; bytes];
                    let first = setup.copy(Direction::H2d, &device, &mut data, stream).unwrap();
                    setup.copy(Direction::D2h, &device, &mut back, stream).unwrap().wait(LIMIT).unwrap();
                    assert!(first.is_done().unwrap() && back == data, "{thread} {round}");
                }
            });
        }
    });
}

#[test]
fn pinned_memory_is_copied_in_the_callers_stream() {
    let setup = Setup::new(&STREAMS);
    let stream = setup.stream();
    let bytes = 20 << 20;
    let (pinned, device) = (setup.gpu.pinned_buffer(bytes, Caching::Cached).unwrap(), setup.device(bytes));
    let mut span = pinned.claim(0..bytes, Access::Write).unwrap();
    let host = span.bytes_mut().unwrap();
    host.copy_from_slice(&random(bytes, 9));
    let before = STREAMS.words();
    setup.copy(Direction::H2d, &device, host, stream).unwrap().wait(LIMIT).unwrap();
    host.fill(0);
    setup.copy(Direction::D2h, &device, host, stream).unwrap().wait(LIMIT).unwrap();
    assert!(host == random(bytes, 9).as_slice());
    // Nothing is known of what lets others in on this GPU, so the copy out stays whole.
    assert!(STREAMS.words() >= before + 2, "one for each end");
}

#[test]
fn bulk_copies_out_of_the_gpu_let_others_in_more_often() {
    static FAKE: LazyLock<Fake> = LazyLock::new(|| Fake::build(&["-DSTREAMS"]));
    let setup = Setup::new(&FAKE);
    setup.gpu.set_turn(Some(Bytes(16 << 20)));
    let (stream, bytes) = (setup.stream(), 36 << 20);
    let (pinned, device) = (setup.gpu.pinned_buffer(bytes, Caching::Cached).unwrap(), setup.device(bytes));
    let address = device.claim(0..bytes, Access::Read).unwrap().as_ptr().addr() as u64;
    let mut span = pinned.claim(0..bytes, Access::Write).unwrap();
    let host = span.bytes_mut().unwrap();
    let mut words = |is_bulk: bool, bytes: usize| {
        let before = FAKE.words();
        // SAFETY: the test keeps both ends until the ticket is done.
        let copy = unsafe { RawCopy::new(host.as_mut_ptr().expose_provenance() as u64, address, bytes, stream) };
        setup.copier.copy(if is_bulk { copy.bulk() } else { copy }).unwrap().wait(LIMIT).unwrap();
        // One is the ticket's.
        FAKE.words() - before - 1
    };
    assert_eq!((words(false, 36 << 20), words(true, 36 << 20)), (2, 35));
    assert_eq!((words(false, 1 << 20), words(true, 1 << 20)), (0, 0));
    setup.gpu.set_turn(Some(Bytes(512 << 10)));
    assert_eq!(words(true, 2 << 20), 3, "what is shorter stays so");
    setup.gpu.set_turn(None);
    assert_eq!(words(true, 8 << 20), 0, "whole copies");
}

#[test]
fn nobody_gets_the_words_that_a_stream_is_still_to_write_for_a_copier_that_is_gone() {
    let fake = Fake::build(&["-DSTREAMS"]);
    let setup = Setup::new(&fake);
    let (stream, device) = (setup.stream(), setup.device(4096));
    fake.hold(true);
    let mut data = random(4096, 5);
    drop(setup.copy(Direction::H2d, &device, &mut data, stream).unwrap());
    let Setup { gpu, copier, .. } = setup;
    drop(copier);
    // Memory of the size that the words had: three for each ticket, in lines.
    let words = 3 * 16 * 64;
    let buffers: Vec<Buffer> = (0..8).map(|_| gpu.pinned_buffer(words, Caching::Cached).unwrap()).collect();
    let mut spans: Vec<_> = buffers.iter().map(|buffer| buffer.claim(0..words, Access::Write).unwrap()).collect();
    spans.iter_mut().for_each(|span| span.bytes_mut().unwrap().fill(0));
    fake.hold(false);
    let last = OrderedCopier::new(&gpu, options()).unwrap();
    let to = device.claim(0..4096, Access::Write).unwrap().as_ptr().addr() as u64;
    let from = data.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: both ends live until the copy is done.
    last.copy(unsafe { RawCopy::new(to, from, 4096, stream) }).unwrap().wait(LIMIT).unwrap();
    assert!(spans.iter_mut().all(|span| span.bytes_mut().unwrap().iter().all(|byte| *byte == 0)));
}

#[test]
fn what_is_wrong_is_refused_before_anything_is_queued() {
    let setup = Setup::new(&STREAMS);
    let (stream, device) = (setup.stream(), setup.device(1000));
    let mut data = random(1000, 1);
    let there = device.claim(0..1000, Access::Read).unwrap().as_ptr().addr() as u64;
    let mut other = random(1000, 2);
    let (here, elsewhere) = (data.as_mut_ptr().addr() as u64, other.as_mut_ptr().addr() as u64);
    for (to, from, bytes) in [
        (there, there + 500, 500),
        (here, elsewhere, 500),
        (there + 1, here, 1000),
        (there, here, usize::MAX),
        (there, u64::MAX - 5, 500),
    ] {
        // SAFETY: none of these is queued.
        let refused = setup.copier.copy(unsafe { RawCopy::new(to, from, bytes, stream) });
        assert!(matches!(refused, Err(DeviceError::Invalid { .. })), "{to:x} {from:x} {bytes}: {refused:?}");
    }
    // All tickets are held by somebody.
    let tickets: Vec<_> = (0..16).map(|_| setup.copy(Direction::H2d, &device, &mut data, stream).unwrap()).collect();
    let beyond = setup.copy(Direction::H2d, &device, &mut data, stream);
    assert!(matches!(beyond, Err(DeviceError::Refused { max: 16, .. })), "{beyond:?}");
    drop(tickets);
    in_time("the last copy", move || {
        loop {
            match setup.copy(Direction::H2d, &device, &mut data, stream) {
                Ok(ticket) => break ticket.wait(LIMIT).unwrap(),
                Err(DeviceError::Refused { .. }) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
    });
}

#[test]
fn a_lost_context_ends_every_wait() {
    let fake = Fake::build(&["-DSTREAMS"]);
    let setup = Setup::new(&fake);
    let (stream, device) = (setup.stream(), setup.device(4 << 20));
    fake.hold(true);
    let mut data = random(4 << 20, 5);
    let ticket = setup.copy(Direction::H2d, &device, &mut data, stream).unwrap();
    fake.fail("", 700, 0);
    fake.hold(false);
    in_time("waiting and dropping", move || {
        let waited = ticket.wait(LIMIT);
        assert!(matches!(waited, Err(DeviceError::Driver { code: 700, .. })), "{waited:?}");
        assert!(setup.copy(Direction::H2d, &device, &mut data, stream).is_err());
        drop(ticket);
        drop(setup.copier);
    });
}

#[test]
fn another_thread_may_have_the_driver_wait_for_all_streams_at_any_time() {
    in_time("a copy beside another thread's `cuMemFree`", || {
        let fake = Fake::build(&["-DSTREAMS"]);
        let setup = Setup::new(&fake);
        for bytes in [1 << 20, 9 << 20] {
            let (stream, device) = (setup.stream(), setup.device(bytes));
            let mut data = random(bytes, 6);
            let mut back = vec![0; bytes];
            fake.keep_out(true);
            let tickets = [
                setup.copy(Direction::H2d, &device, &mut data, stream).unwrap(),
                setup.copy(Direction::D2h, &device, &mut back, stream).unwrap(),
            ];
            for ticket in tickets {
                ticket.wait(LIMIT).unwrap();
            }
            fake.keep_out(false);
            assert!(back == data, "{bytes} bytes");
        }
    });
}

#[test]
fn a_graph_that_another_thread_captures_ends_no_copy() {
    let fake = Fake::build(&["-DSTREAMS"]);
    let setup = Setup::new(&fake);
    let (stream, device) = (setup.stream(), setup.device(4 << 20));
    let mut data = random(4 << 20, 5);
    let (pinned, there) = (setup.gpu.pinned_buffer(4096, Caching::Cached).unwrap(), setup.device(4096));
    fake.hold(true);
    let ticket = setup.copy(Direction::H2d, &device, &mut data, stream).unwrap();
    fake.capture(true);
    // Threads that have called nothing yet.
    let (waited, after, queued) = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| (ticket.wait(Duration::from_millis(250)), mode(setup.library)));
        let (waited, after) = waiting.join().unwrap();
        fake.hold(false);
        let queueing = scope.spawn(|| {
            let from = pinned.claim(0..4096, Access::Read).unwrap();
            let to = there.claim(0..4096, Access::Write).unwrap();
            let mut queue = setup.gpu.queue(false).unwrap();
            queue.submit(Operation::Copy { from, to }, 1).unwrap();
            std::iter::repeat_with(|| queue.poll()).find_map(|done| done).unwrap().result
        });
        (waited, after, queueing.join().unwrap())
    });
    assert!(matches!(waited, Err(DeviceError::Timeout { .. })), "{waited:?}");
    assert_eq!((after, queued), (0, Ok(())), "the thread has the mode that it had");
    ticket.wait(LIMIT).unwrap();
    fake.capture(false);
    let mut back = vec![0; 4 << 20];
    setup.copy(Direction::D2h, &device, &mut back, stream).unwrap().wait(LIMIT).unwrap();
    assert!(back == data);
}

/// The mode that the calling thread has for captures of others.
fn mode(library: &libloading::Library) -> i32 {
    let mut mode = 0;
    // SAFETY: the function exchanges an int.
    unsafe {
        library.get::<unsafe extern "C" fn(*mut i32) -> i32>(b"cuThreadExchangeStreamCaptureMode\0").unwrap()(
            &raw mut mode,
        )
    };
    mode
}

/// A copy that waits for a word in its stream, behind which another one was refused.
struct OneRefused {
    fake: Fake,
    setup: Setup,
    word: Buffer,
    device: Buffer,
    stream: StreamHandle,
    data: Vec<u8>,
    waits: OrderedTicket,
    refused: Result<OrderedTicket, DeviceError>,
}

impl OneRefused {
    fn new() -> Self {
        // Eight chunks each, with a stream of the copier's for each: the second chunk of the second copy is refused.
        let fake = failing("cuMemcpyHtoDAsync_v2", 1, 10, &["-DSTREAMS"]);
        let setup = Setup::new(&fake);
        let (stream, device) = (setup.stream(), setup.device(4 << 20));
        let word = setup.gpu.pinned_buffer(8, Caching::Cached).unwrap();
        let (mut data, mut other) = (random(4 << 20, 4), random(4 << 20, 5));
        setup.word(b"cuStreamWaitValue32_v2\0", stream, &word, 1);
        let waits = setup.copy(Direction::H2d, &device, &mut data, stream).unwrap();
        let refused = setup.copy(Direction::H2d, &device, &mut other, setup.stream());
        Self { fake, setup, word, device, stream, data, waits, refused }
    }
}

#[test]
fn a_copy_that_cannot_be_queued_leaves_those_before_it_alone() {
    let OneRefused { fake: _fake, setup, word, device, stream, mut data, waits, refused } = OneRefused::new();
    assert!(matches!(refused, Err(DeviceError::Driver { code: 1, .. })), "{refused:?}");
    assert!(!waits.is_done().unwrap(), "it goes on");
    setup.word(b"cuStreamWriteValue32_v2\0", setup.stream(), &word, 1);
    waits.wait(LIMIT).unwrap();
    let again = setup.copy(Direction::H2d, &device, &mut data, stream);
    assert!(matches!(again, Err(DeviceError::Driver { code: 1, .. })), "no more copies: {again:?}");
}

#[test]
fn no_stream_waits_for_the_rest_of_a_copy_that_cannot_be_queued() {
    for (direction, call) in [(Direction::H2d, "cuMemcpyHtoDAsync_v2"), (Direction::D2h, "cuMemcpyDtoHAsync_v2")] {
        for at in [1, 4, 12] {
            let fake = failing(call, 1, at, &["-DSTREAMS"]);
            let setup = Setup::new(&fake);
            let (stream, device) = (setup.stream(), setup.device(9 << 20));
            let mut data = random(9 << 20, 4);
            let refused = setup.copy(direction, &device, &mut data, stream);
            assert!(matches!(refused, Err(DeviceError::Driver { code: 1, .. })), "{refused:?}");
            wait_until("no stream waits", || fake.unfinished() == 0);
        }
    }
}

#[test]
fn a_wait_keeps_its_limit_while_another_thread_keeps_the_driver() {
    in_time("a wait", || {
        let fake = Fake::build(&["-DSTREAMS"]);
        let setup = Setup::new(&fake);
        let (stream, device) = (setup.stream(), setup.device(1 << 20));
        let mut data = random(1 << 20, 7);
        fake.hold(true);
        let ticket = setup.copy(Direction::H2d, &device, &mut data, stream).unwrap();
        fake.keep_out(true);
        // Long enough to ask the driver for errors.
        let waited = ticket.wait(Duration::from_millis(300));
        assert!(matches!(waited, Err(DeviceError::Timeout { .. })), "{waited:?}");
        fake.hold(false);
        ticket.wait(LIMIT).unwrap();
        fake.keep_out(false);
    });
}

#[test]
fn a_copy_that_is_refused_when_all_of_it_is_queued_does_not_touch_the_memory_later() {
    // One wait of the test's, one for the turn, one for each of 18 chunks, and that of the caller's stream.
    let fake = failing("cuStreamWaitValue32_v2", 1, 21, &["-DSTREAMS"]);
    let setup = Setup::new(&fake);
    let (stream, other, device) = (setup.stream(), setup.stream(), setup.device(9 << 20));
    let word = setup.gpu.pinned_buffer(8, Caching::Cached).unwrap();
    let mut back = vec![7; 9 << 20];
    setup.word(b"cuStreamWaitValue32_v2\0", stream, &word, 1);
    let refused = setup.copy(Direction::D2h, &device, &mut back, stream);
    assert!(matches!(refused, Err(DeviceError::Driver { code: 1, .. })), "{refused:?}");
    setup.word(b"cuStreamWriteValue32_v2\0", other, &word, 1);
    wait_until("no stream waits", || fake.unfinished() == 0);
    drop(setup.copier);
    assert!(back.iter().all(|byte| *byte == 7), "the memory is the caller's again");
}

#[test]
fn a_context_that_ends_after_a_refused_copy_ends_the_copies_before_it() {
    let one = OneRefused::new();
    // The memory stays to the end.
    let OneRefused { fake, setup, waits, refused, .. } = one;
    refused.unwrap_err();
    fake.fail("", 700, 0);
    in_time("waiting and dropping", move || {
        let waited = waits.wait(LIMIT);
        assert!(matches!(waited, Err(DeviceError::Driver { .. })), "{waited:?}");
        drop((waits, setup.copier));
    });
}

#[test]
fn every_call_that_fails_ends_the_copy_with_its_error() {
    for call in ["cuStreamWriteValue32_v2", "cuStreamWaitValue32_v2", "cuMemcpyHtoDAsync_v2", "cuStreamCreate"] {
        let fake = Fake::build(&["-DSTREAMS"]);
        let setup = Setup::new(&fake);
        let (stream, device) = (setup.stream(), setup.device(4 << 20));
        fake.fail(call, 719, 2 - i32::from(call == "cuStreamCreate"));
        let copied = in_time(call, move || {
            let mut data = random(4 << 20, 5);
            let copied = setup.copy(Direction::H2d, &device, &mut data, stream).map(drop);
            drop(setup.copier);
            copied
        });
        assert!(matches!(copied, Err(DeviceError::Driver { code: 719, .. })), "{call}: {copied:?}");
    }
}

#[test]
fn a_copier_that_is_dropped_lets_its_copies_end() {
    let setup = Setup::new(&STREAMS);
    let (stream, other, device) = (setup.stream(), setup.stream(), setup.device(6 << 20));
    let word = setup.gpu.pinned_buffer(8, Caching::Cached).unwrap();
    let (mut data, mut back) = (random(6 << 20, 4), vec![0; 6 << 20]);
    setup.word(b"cuStreamWaitValue32_v2\0", stream, &word, 1);
    setup.copy(Direction::H2d, &device, &mut data, stream).unwrap();
    let last = setup.copy(Direction::D2h, &device, &mut back, stream).unwrap();
    let Setup { library, gpu, copier } = setup;
    in_time("dropping", move || drop(copier));
    let address = word.claim(0..4, Access::Read).unwrap().as_ptr().addr() as u64;
    gpu.host_kind(&[0]).unwrap();
    // SAFETY: as in `Setup::word`.
    assert_eq!(unsafe { library.get::<Word>(b"cuStreamWriteValue32_v2\0").unwrap()(other.0, address, 1, 0) }, 0);
    last.wait(LIMIT).unwrap();
    assert!(back == data);
}

#[test]
fn a_driver_that_cannot_wait_for_words_is_named() {
    let fake = Fake::build(&["-DcuStreamWaitValue32_v2=gone"]);
    let gpu = CudaGpu::open(&fake.driver(), 0, DeviceLimits::default()).unwrap();
    let made = OrderedCopier::new(&gpu, options()).map(drop);
    assert!(matches!(&made, Err(DeviceError::Unavailable { remedy, .. }) if remedy.contains("11.7")), "{made:?}");
    drop(Driver::load(&fake.path));
}
