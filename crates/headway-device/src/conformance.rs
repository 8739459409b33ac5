//! What every [`Gpu`] must do, as tests. [`conformance!`](crate::conformance!) makes them `#[test]`s of a GPU.
//!
//! Every method to move bytes is tried in every size and alignment on random data with guard bytes around, and compared through
//! another method. Nothing is asserted about speed. Where the hardware is absent every test prints why it was skipped and passes.

mod copies;
mod engines;
mod forms;
mod launches;
mod rules;

use std::io::Write as _;
use std::sync::Arc;

use headway_core::units::Nanos;
use headway_os::clock;
use headway_os::memory::Mapping;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::buffer::{Access, Buffer, Span};
use crate::gpu::{Caching, Completion, CpuReach, Gpu, Operation, Queue};
use crate::{DeviceError, DeviceLimits};

pub use copies::{
    copies_within_a_device_move_every_byte, gpus_exchange_every_byte,
    ordinary_memory_is_copied_every_byte_and_no_other, pieces_arrive_by_every_mover,
    queues_copy_every_byte_and_no_other, relays_copy_every_byte_and_no_other,
};
pub use engines::{
    Xor, a_class_that_is_not_served_is_refused, a_full_engine_refuses_and_stays_usable, buffers_are_bounded_in_number,
    completions_wake_or_ask_to_be_polled, copies_against_the_rules_of_engines_are_refused,
    dropping_busy_engines_releases_everything, engines_copy_every_byte_and_no_other,
    engines_of_all_classes_finish_what_they_are_given, every_tag_comes_back_exactly_once,
    operations_of_an_engine_complete_in_order, peers_exchange_every_byte, steps_against_the_rules_are_refused,
    steps_write_what_their_cpu_form_writes, the_peer_engine_copies_within_a_device, wait_for,
};
pub use forms::{
    a_paged_window_shows_every_part_and_counts_its_moves, parked_residents_start_again,
    residents_copy_every_byte_and_no_other, windows_are_seen_by_queues_and_kernels,
    windows_store_and_load_every_byte_and_no_other,
};
pub use launches::launches_compute_what_their_cpu_form_does;
pub use rules::{
    a_full_queue_refuses_and_stays_usable, accesses_against_the_rules_are_refused,
    buffers_are_zeroed_aligned_and_bounded, claims_are_released_on_every_path, dropping_a_busy_queue_waits_for_it,
    operations_against_the_rules_are_refused, operations_of_a_queue_end_in_order,
    pinned_memory_is_told_from_ordinary_memory, registered_memory_is_pinned_until_dropped,
    two_threads_use_queues_at_once,
};

/// How long the suite waits for a GPU that may be slow but must not hang.
const PATIENCE: Nanos = Nanos(120_000_000_000);
/// Sizes around the usual borders: a line, a page, a megabyte.
const SIZES: [usize; 10] = [0, 1, 3, 63, 64, 65, 4095, 4096, 4097, (1 << 20) - 1];
/// A size that no buffer of the driver or of ours holds at once.
const LARGE: usize = (100 << 20) + 7;
/// Where host ranges start behind a page.
const HOST_OFFSETS: [usize; 3] = [0, 1, 7];
/// Where device ranges start behind a multiple of 256.
const DEVICE_OFFSETS: [usize; 4] = [0, 1, 5, 63];
/// Bytes looked at on either side of a range.
const GUARD: usize = 64;
/// Where ranges start at the earliest: a page, so that guards fit before them.
const FIRST: usize = 4096;
/// What a buffer needs besides the largest range.
const MARGIN: usize = FIRST + 4096;

/// Why a GPU cannot be tested here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkipReason(pub String);

impl From<DeviceError> for SkipReason {
    fn from(error: DeviceError) -> Self {
        Self(error.to_string())
    }
}

/// Opens the GPU under test; may give the same one again.
pub type OpenGpu<'a> = &'a dyn Fn() -> Result<Arc<dyn Gpu>, SkipReason>;

/// Runs one test of the suite, or prints why not.
pub fn run(test: &str, open: OpenGpu<'_>, body: fn(&Arc<dyn Gpu>)) {
    match open() {
        Ok(gpu) => body(&gpu),
        Err(SkipReason(reason)) => note(&format!("skipped {test}: {reason}")),
    }
}

/// Written past the test harness, which hides the output of tests that pass.
fn note(text: &str) {
    drop(writeln!(std::io::stderr(), "{text}"));
}

/// Makes the suite's tests for one gpu: `conformance!(emulated, || Ok(Arc::new(...)));`.
///
/// The second argument is called once per test and gives `Result<Arc<dyn Gpu>, SkipReason>`.
#[macro_export]
macro_rules! conformance {
    ($name:ident, $open:expr) => {
        $crate::conformance!($name, $open,
            queues_copy_every_byte_and_no_other
            ordinary_memory_is_copied_every_byte_and_no_other
            relays_copy_every_byte_and_no_other
            copies_within_a_device_move_every_byte
            pieces_arrive_by_every_mover
            launches_compute_what_their_cpu_form_does
            windows_store_and_load_every_byte_and_no_other
            windows_are_seen_by_queues_and_kernels
            a_paged_window_shows_every_part_and_counts_its_moves
            residents_copy_every_byte_and_no_other
            parked_residents_start_again
            registered_memory_is_pinned_until_dropped
            pinned_memory_is_told_from_ordinary_memory
            buffers_are_zeroed_aligned_and_bounded
            operations_of_a_queue_end_in_order
            a_full_queue_refuses_and_stays_usable
            operations_against_the_rules_are_refused
            accesses_against_the_rules_are_refused
            claims_are_released_on_every_path
            two_threads_use_queues_at_once
            dropping_a_busy_queue_waits_for_it
            engines_copy_every_byte_and_no_other
            the_peer_engine_copies_within_a_device
            operations_of_an_engine_complete_in_order
            engines_of_all_classes_finish_what_they_are_given
            every_tag_comes_back_exactly_once
            a_full_engine_refuses_and_stays_usable
            a_class_that_is_not_served_is_refused
            copies_against_the_rules_of_engines_are_refused
            steps_write_what_their_cpu_form_writes
            steps_against_the_rules_are_refused
            buffers_are_bounded_in_number
            completions_wake_or_ask_to_be_polled
            dropping_busy_engines_releases_everything
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

/// Test bytes and numbers that follow from a seed.
struct Noise(Pcg64Mcg);

impl Noise {
    fn new(seed: u64) -> Self {
        Self(Pcg64Mcg::seed_from_u64(seed))
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.0.next_u64() % bound.max(1) as u64) as usize
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }
}

/// Polls `queue` until `count` operations have ended, in the order they came.
///
/// # Panics
/// When they do not within two minutes.
pub fn finish(queue: &mut dyn Queue, count: usize) -> Vec<Completion> {
    let until = clock::now().saturating_add(PATIENCE);
    let mut done = Vec::new();
    while done.len() < count {
        match queue.poll() {
            Some(end) => done.push(end),
            None => {
                assert!(clock::now() < until, "{} of {count} operations ended within {PATIENCE}", done.len());
                std::thread::yield_now();
            }
        }
    }
    done
}

/// Submits `what` to an idle queue and waits for its end.
fn perform(queue: &mut dyn Queue, what: Operation) -> Result<(), DeviceError> {
    queue.submit(what, 7)?;
    let done = finish(queue, 1).remove(0);
    assert_eq!((done.tag, queue.outstanding()), (7, 0));
    done.result
}

fn claim(buffer: &Buffer, at: usize, len: usize, access: Access) -> Span {
    buffer.claim(at..at + len, access).expect("nobody else holds a claim")
}

fn copy(from: (&Buffer, usize), to: (&Buffer, usize), len: usize) -> Operation {
    Operation::Copy { from: claim(from.0, from.1, len, Access::Read), to: claim(to.0, to.1, len, Access::Write) }
}

fn write(buffer: &Buffer, at: usize, bytes: &[u8]) {
    claim(buffer, at, bytes.len(), Access::Write).bytes_mut().expect("host memory").copy_from_slice(bytes);
}

fn read(buffer: &Buffer, at: usize, bytes: &mut [u8]) {
    bytes.copy_from_slice(claim(buffer, at, bytes.len(), Access::Read).bytes().expect("host memory"));
}

fn memory(gpu: &dyn Gpu, bytes: usize) -> Buffer {
    gpu.device_buffer(bytes, CpuReach::Device).expect("device memory within the limits")
}

fn pinned(gpu: &dyn Gpu, bytes: usize) -> Buffer {
    gpu.pinned_buffer(bytes, Caching::Cached).expect("pinned memory within the limits")
}

fn same(what: &str, found: &[u8], expected: &[u8]) {
    if found != expected {
        let different = found.iter().zip(expected).position(|(a, b)| a != b);
        panic!("{what}: {} bytes for {}, first difference at {different:?}", found.len(), expected.len());
    }
}

/// Whether both ends of a copy of `size` bytes, and as much again for comparing, fit into the limits of `gpu`.
fn has_room(gpu: &dyn Gpu, size: usize) -> bool {
    let DeviceLimits { host_bytes_max, device_bytes_max, .. } = gpu.description().limits;
    let memory = gpu.description().memory_bytes.min(device_bytes_max);
    let needed = 4 * (size + MARGIN) as u64;
    needed <= host_bytes_max.0 && needed <= memory.0
}

/// Moves bytes between host and device by one method.
trait HostCopy {
    /// Copies `host[at..at + len]` to offset `to` of `there`.
    fn put(&mut self, host: &[u8], at: usize, len: usize, there: &Buffer, to: usize);
    /// Copies `len` bytes from offset `from` of `there` to `host[at..at + len]`.
    fn take(&mut self, there: &Buffer, from: usize, host: &mut [u8], at: usize, len: usize);
}

/// A place to compare in: host memory whose first byte starts a page, and what it should hold.
struct Bench {
    noise: Noise,
    host: Mapping,
    expected: Vec<u8>,
    found: Vec<u8>,
}

impl Bench {
    fn new(largest: usize) -> Self {
        let room = largest + MARGIN;
        let host = Mapping::anonymous(room).expect("memory of the process");
        Self { noise: Noise::new(largest as u64), host, expected: vec![0; room], found: vec![0; room] }
    }

    /// Tries `method` both ways at one size and place; every byte arrives, and no byte beside them changes.
    fn case(
        &mut self,
        method: &mut dyn HostCopy,
        other: &mut dyn HostCopy,
        there: &Buffer,
        len: usize,
        (host, device): (usize, usize),
    ) {
        let (at, on) = (FIRST + host, FIRST + device);
        let all = len + 2 * GUARD;
        let what = format!("{len} bytes, host page + {host}, device page + {device}");
        // Inwards: the device holds noise, of which the range is replaced.
        self.noise.fill(&mut self.expected[..all]);
        other.put(&self.expected, 0, all, there, on - GUARD);
        self.noise.fill(&mut self.host[at - GUARD..at + len + GUARD]);
        method.put(&self.host, at, len, there, on);
        self.expected[GUARD..GUARD + len].copy_from_slice(&self.host[at..at + len]);
        other.take(there, on - GUARD, &mut self.found, 0, all);
        same(&format!("to the device: {what}"), &self.found[..all], &self.expected[..all]);
        // Outwards: the host holds noise, of which the range is replaced by what is on the device.
        self.noise.fill(&mut self.host[at - GUARD..at + len + GUARD]);
        self.found[..all].copy_from_slice(&self.host[at - GUARD..at + len + GUARD]);
        self.found[GUARD..GUARD + len].copy_from_slice(&self.expected[GUARD..GUARD + len]);
        method.take(there, on, &mut self.host, at, len);
        same(&format!("from the device: {what}"), &self.host[at - GUARD..at + len + GUARD], &self.found[..all]);
    }

    /// Tries `method` in all sizes and alignments.
    fn every_case(&mut self, method: &mut dyn HostCopy, other: &mut dyn HostCopy, there: &Buffer) {
        for len in SIZES {
            for host in HOST_OFFSETS {
                for device in DEVICE_OFFSETS {
                    self.case(method, other, there, len, (host, device));
                }
            }
        }
    }
}

/// Largest of [`SIZES`].
const LARGEST: usize = SIZES[SIZES.len() - 1];
