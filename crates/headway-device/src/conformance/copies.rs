//! Methods of queues and of the driver: copies, relays, pieces, pageable copies, peers.

use std::sync::Arc;

use super::{
    Bench, HostCopy, LARGE, LARGEST, MARGIN, Noise, claim, copy, has_room, memory, note, perform, pinned, read, same,
    write,
};
use crate::DeviceError;
use crate::buffer::{Access, Buffer};
use crate::gpu::{Gpu, Mover, Operation, Piece, Queue};

/// Copies by a queue, from and to pinned memory that holds the host's bytes at the same offsets.
pub(super) struct ByQueue {
    pub(super) queue: Box<dyn Queue>,
    pub(super) pinned: Buffer,
}

impl ByQueue {
    pub(super) fn new(gpu: &dyn Gpu, largest: usize) -> Self {
        Self { queue: gpu.queue(false).expect("a queue"), pinned: pinned(gpu, largest + MARGIN) }
    }
}

impl HostCopy for ByQueue {
    fn put(&mut self, host: &[u8], at: usize, len: usize, there: &Buffer, to: usize) {
        write(&self.pinned, at, &host[at..at + len]);
        let moved = perform(self.queue.as_mut(), copy((&self.pinned, at), (there, to), len));
        assert_eq!(moved, Ok(()), "{len} bytes");
    }

    fn take(&mut self, there: &Buffer, from: usize, host: &mut [u8], at: usize, len: usize) {
        let around = at.saturating_sub(super::GUARD)..(at + len + super::GUARD).min(host.len());
        write(&self.pinned, around.start, &host[around.clone()]);
        let moved = perform(self.queue.as_mut(), copy((there, from), (&self.pinned, at), len));
        assert_eq!(moved, Ok(()), "{len} bytes");
        read(&self.pinned, around.start, &mut host[around]);
    }
}

/// The driver's own copies.
pub(super) struct Ordinary<'a>(pub(super) &'a dyn Gpu);

impl HostCopy for Ordinary<'_> {
    fn put(&mut self, host: &[u8], at: usize, len: usize, there: &Buffer, to: usize) {
        let copied = self.0.copy_in(&mut claim(there, to, len, Access::Write), &host[at..at + len]);
        assert_eq!(copied, Ok(()), "{len} bytes");
    }

    fn take(&mut self, there: &Buffer, from: usize, host: &mut [u8], at: usize, len: usize) {
        let copied = self.0.copy_out(&mut host[at..at + len], &claim(there, from, len, Access::Read));
        assert_eq!(copied, Ok(()), "{len} bytes");
    }
}

/// Copies by a queue through a buffer on the device.
struct ByRelay {
    by: ByQueue,
    through: Buffer,
}

impl ByRelay {
    fn relay(&mut self, from: (&Buffer, usize), to: (&Buffer, usize), len: usize) {
        let (from, to) = (claim(from.0, from.1, len, Access::Read), claim(to.0, to.1, len, Access::Write));
        let through = claim(&self.through, 3, len, Access::Write);
        assert_eq!(perform(self.by.queue.as_mut(), Operation::Relay { from, through, to }), Ok(()), "{len} bytes");
    }
}

impl HostCopy for ByRelay {
    fn put(&mut self, host: &[u8], at: usize, len: usize, there: &Buffer, to: usize) {
        write(&self.by.pinned, at, &host[at..at + len]);
        let source = self.by.pinned.clone();
        self.relay((&source, at), (there, to), len);
    }

    fn take(&mut self, there: &Buffer, from: usize, host: &mut [u8], at: usize, len: usize) {
        let around = at.saturating_sub(super::GUARD)..(at + len + super::GUARD).min(host.len());
        let target = self.by.pinned.clone();
        write(&target, around.start, &host[around.clone()]);
        self.relay((there, from), (&target, at), len);
        read(&target, around.start, &mut host[around]);
    }
}

fn large(gpu: &dyn Gpu, method: &mut dyn HostCopy, other: &mut dyn HostCopy) {
    let there = memory(gpu, LARGE + MARGIN);
    Bench::new(LARGE).case(method, other, &there, LARGE, (1, 5));
}

/// Test of the suite: queues between pinned and device memory, all sizes and alignments, and 100 MiB + 7.
pub fn queues_copy_every_byte_and_no_other(gpu: &Arc<dyn Gpu>) {
    let gpu = gpu.as_ref();
    let there = memory(gpu, LARGEST + MARGIN);
    let mut by = ByQueue::new(gpu, LARGEST);
    Bench::new(LARGEST).every_case(&mut by, &mut Ordinary(gpu), &there);
    drop((there, by));
    if has_room(gpu, LARGE) {
        large(gpu, &mut ByQueue::new(gpu, LARGE), &mut Ordinary(gpu));
    }
}

/// Test of the suite: the driver's own copies of ordinary memory, all sizes and alignments, and 100 MiB + 7.
pub fn ordinary_memory_is_copied_every_byte_and_no_other(gpu: &Arc<dyn Gpu>) {
    let gpu = gpu.as_ref();
    let there = memory(gpu, LARGEST + MARGIN);
    Bench::new(LARGEST).every_case(&mut Ordinary(gpu), &mut ByQueue::new(gpu, LARGEST), &there);
    drop(there);
    if has_room(gpu, LARGE) {
        large(gpu, &mut Ordinary(gpu), &mut ByQueue::new(gpu, LARGE));
    }
}

/// Test of the suite: relays through a buffer on the device, all sizes and alignments.
pub fn relays_copy_every_byte_and_no_other(gpu: &Arc<dyn Gpu>) {
    let gpu = gpu.as_ref();
    let (there, through) = (memory(gpu, LARGEST + MARGIN), memory(gpu, LARGEST + MARGIN));
    let mut relay = ByRelay { by: ByQueue::new(gpu, LARGEST), through };
    Bench::new(LARGEST).every_case(&mut relay, &mut Ordinary(gpu), &there);
}

/// Test of the suite: copies between two buffers of one device.
pub fn copies_within_a_device_move_every_byte(gpu: &Arc<dyn Gpu>) {
    let gpu = gpu.as_ref();
    let (first, second) = (memory(gpu, LARGEST + MARGIN), memory(gpu, LARGEST + MARGIN));
    let mut queue = gpu.queue(false).expect("a queue");
    exchange(gpu, queue.as_mut(), &first, gpu, &second);
}

/// Test for two GPUs that reach each other: bytes go both ways, by queues of either, directly and by a relay.
///
/// # Panics
/// When they do not.
pub fn gpus_exchange_every_byte(first: &dyn Gpu, second: &dyn Gpu) {
    assert!(first.reaches(second.id()) && second.reaches(first.id()), "the gpus are to reach each other");
    let (here, there) = (memory(first, LARGEST + MARGIN), memory(second, LARGEST + MARGIN));
    for gpu in [first, second] {
        let mut queue = gpu.queue(false).expect("a queue");
        exchange(first, queue.as_mut(), &here, second, &there);
        exchange(second, queue.as_mut(), &there, first, &here);
    }
    // Host to the second by way of the first's memory, and back.
    let through = memory(first, LARGEST + MARGIN);
    let mut relay = ByRelay { by: ByQueue::new(first, LARGEST), through };
    Bench::new(LARGEST).every_case(&mut relay, &mut Ordinary(second), &there);
}

/// Copies from `here` to `there` by `queue`; filled and compared by the driver's own copies.
fn exchange(source: &dyn Gpu, queue: &mut dyn Queue, here: &Buffer, target: &dyn Gpu, there: &Buffer) {
    let len = here.len().min(there.len());
    let (mut sent, mut expected, mut found) = (vec![0; len], vec![0; len], vec![0; len]);
    let mut noise = Noise::new(13);
    for (size, from, to) in [(0, 0, 0), (1, 5, 9), (4097, 63, 1), (LARGEST, 1, 3), (LARGEST, 256, 512)] {
        noise.fill(&mut sent);
        Ordinary(source).put(&sent, 0, len, here, 0);
        noise.fill(&mut expected);
        Ordinary(target).put(&expected, 0, len, there, 0);
        assert_eq!(perform(queue, copy((here, from), (there, to), size)), Ok(()), "{size} bytes");
        expected[to..to + size].copy_from_slice(&sent[from..from + size]);
        Ordinary(target).take(there, 0, &mut found, 0, len);
        same(&format!("{size} bytes from {from} to {to}"), &found, &expected);
    }
}

/// Lists of pieces: none, empty ones, unaligned ones, and some that fill everything; destinations do not overlap.
fn lists(noise: &mut Noise, room: usize) -> Vec<Arc<[Piece]>> {
    let mut scattered = Vec::new();
    let mut to = noise.below(40);
    while to < room - 5000 {
        let len = [0, 1, 2, 7, 16, 63, 64, 100, 1024, 4097][noise.below(10)];
        scattered.push(Piece { from: noise.below(room - len), to, len });
        to += len + noise.below(300);
    }
    let mut aligned: Vec<Piece> =
        (0..room / 8192).map(|at| Piece { from: at * 8192, to: (at ^ 1) * 4096, len: 4096 }).collect();
    aligned.retain(|piece| piece.to + piece.len <= room);
    let whole = Piece { from: 0, to: 0, len: room };
    let nothing = Piece { from: room, to: room, len: 0 };
    vec![
        Arc::new([]),
        Arc::new([nothing, nothing]),
        Arc::new([Piece { from: 3, to: 5, len: 1 }]),
        scattered.into(),
        aligned.into(),
        Arc::new([whole]),
    ]
}

/// Test of the suite: pieces by loop, batch and kernel, into, out of and within the device.
pub fn pieces_arrive_by_every_mover(gpu: &Arc<dyn Gpu>) {
    const ROOM: usize = 200_000;
    let gpu = gpu.as_ref();
    let mut queue = gpu.queue(false).expect("a queue");
    let (host, first, second) = (pinned(gpu, ROOM), memory(gpu, ROOM), memory(gpu, ROOM));
    let mut noise = Noise::new(17);
    let (mut sent, mut expected, mut found) = (vec![0; ROOM], vec![0; ROOM], vec![0; ROOM]);
    let fill = |buffer: &Buffer, bytes: &[u8]| match buffer.place() {
        crate::buffer::MemoryPlace::Host { .. } => write(buffer, 0, bytes),
        crate::buffer::MemoryPlace::Device { .. } => Ordinary(gpu).put(bytes, 0, ROOM, buffer, 0),
    };
    for by in [Mover::Loop, Mover::Batch, Mover::Kernel { blocks: 1 }, Mover::Kernel { blocks: 13 }] {
        for (from, to) in [(&host, &first), (&first, &host), (&first, &second)] {
            for pieces in lists(&mut noise, ROOM) {
                noise.fill(&mut sent);
                noise.fill(&mut expected);
                fill(from, &sent);
                fill(to, &expected);
                for piece in pieces.iter() {
                    expected[piece.to..piece.to + piece.len].copy_from_slice(&sent[piece.from..piece.from + piece.len]);
                }
                let count = pieces.len();
                let (from, target) = (claim(from, 0, ROOM, Access::Read), claim(to, 0, ROOM, Access::Write));
                match perform(queue.as_mut(), Operation::Pieces { from, to: target, pieces, by }) {
                    Ok(()) => {}
                    Err(error @ DeviceError::Unavailable { .. }) => {
                        note(&format!("not tested: pieces by {by:?}: {error}"));
                        continue;
                    }
                    Err(error) => panic!("{count} pieces by {by:?}: {error}"),
                }
                match to.place() {
                    crate::buffer::MemoryPlace::Host { .. } => read(to, 0, &mut found),
                    crate::buffer::MemoryPlace::Device { .. } => Ordinary(gpu).take(to, 0, &mut found, 0, ROOM),
                }
                same(&format!("{count} pieces by {by:?} to {:?}", to.place()), &found, &expected);
            }
        }
    }
}
