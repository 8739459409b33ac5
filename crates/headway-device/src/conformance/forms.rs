//! Windows, paged windows and resident copiers, in every form that the GPU has.

use std::sync::Arc;

use headway_core::models::transfer::{ResidentShape, WindowMapping};
use headway_core::units::Nanos;
use headway_os::clock;

use super::copies::{ByQueue, Ordinary};
use super::{
    Bench, HostCopy, LARGEST, MARGIN, Noise, PATIENCE, claim, memory, note, perform, pinned, read, same, write,
};
use crate::DeviceError;
use crate::buffer::{Access, Buffer};
use crate::gpu::{CpuReach, Gpu, Mover, Operation, Pager, Piece, Resident, ResidentOptions};

/// Stores and loads through the window of a buffer.
struct ByWindow;

impl HostCopy for ByWindow {
    fn put(&mut self, host: &[u8], at: usize, len: usize, there: &Buffer, to: usize) {
        let stored = claim(there, to - 1, len + 2, Access::Write).store(1, &host[at..at + len]);
        assert_eq!(stored, Ok(()), "{len} bytes");
    }

    fn take(&mut self, there: &Buffer, from: usize, host: &mut [u8], at: usize, len: usize) {
        let loaded = claim(there, from - 1, len + 2, Access::Read).load(1, &mut host[at..at + len]);
        assert_eq!(loaded, Ok(()), "{len} bytes");
    }
}

/// The window forms that can be used; of the others it is tested that they cannot.
fn usable_windows(gpu: &dyn Gpu) -> Vec<WindowMapping> {
    let mut usable = Vec::new();
    for (mapping, tried) in gpu.windows() {
        match tried {
            Ok(()) => usable.push(mapping),
            Err(error) => {
                note(&format!("not tested: window by {mapping:?}: {error}"));
                assert!(
                    gpu.device_buffer(64, CpuReach::Window(mapping)).is_err(),
                    "{mapping:?} is said not to be usable"
                );
            }
        }
    }
    usable
}

fn windowed(gpu: &dyn Gpu, mapping: WindowMapping, bytes: usize) -> Buffer {
    gpu.device_buffer(bytes, CpuReach::Window(mapping)).expect("a window of a form said to be usable")
}

/// Test of the suite: every window form, all sizes and alignments.
pub fn windows_store_and_load_every_byte_and_no_other(gpu: &Arc<dyn Gpu>) {
    let gpu = gpu.as_ref();
    for mapping in usable_windows(gpu) {
        let there = windowed(gpu, mapping, LARGEST + MARGIN);
        assert_eq!(claim(&there, 0, 1, Access::Read).memory().window().map(|window| window.mapping()), Some(mapping));
        Bench::new(LARGEST).every_case(&mut ByWindow, &mut ByQueue::new(gpu, LARGEST), &there);
    }
}

/// Test of the suite: what was stored is what work submitted at once afterwards reads, and what it wrote is what is loaded.
pub fn windows_are_seen_by_queues_and_kernels(gpu: &Arc<dyn Gpu>) {
    let gpu = gpu.as_ref();
    let mut queue = gpu.queue(false).expect("a queue");
    let mut noise = Noise::new(23);
    for mapping in usable_windows(gpu) {
        let (there, host) = (windowed(gpu, mapping, 8192), pinned(gpu, 8192));
        let (mut sent, mut found) = (vec![0; 5000], vec![0; 5000]);
        for round in 0..100 {
            noise.fill(&mut sent);
            let len = 1 + noise.below(sent.len());
            ByWindow.put(&sent, 0, len, &there, 9);
            let (from, to) = (claim(&there, 9, len, Access::Read), claim(&host, 0, len, Access::Write));
            let what = if round % 2 == 0 {
                Operation::Copy { from, to }
            } else {
                let pieces = Arc::new([Piece { from: 0, to: 0, len }]);
                Operation::Pieces { from, to, pieces, by: Mover::Kernel { blocks: 1 } }
            };
            match perform(queue.as_mut(), what) {
                Err(DeviceError::Unavailable { .. }) => continue,
                result => assert_eq!(result, Ok(())),
            }
            read(&host, 0, &mut found[..len]);
            same(&format!("{len} bytes stored by {mapping:?}, round {round}"), &found[..len], &sent[..len]);
            noise.fill(&mut sent);
            write(&host, 0, &sent[..len]);
            assert_eq!(perform(queue.as_mut(), super::copy((&host, 0), (&there, 3), len)), Ok(()));
            ByWindow.take(&there, 3, &mut found, 0, len);
            same(&format!("{len} bytes loaded by {mapping:?}, round {round}"), &found[..len], &sent[..len]);
        }
    }
}

/// Copies by a pager, which knows its buffer.
struct ByPager(Box<dyn Pager>);

impl HostCopy for ByPager {
    fn put(&mut self, host: &[u8], at: usize, len: usize, _: &Buffer, to: usize) {
        assert_eq!(self.0.store(to, &host[at..at + len]), Ok(()), "{len} bytes");
    }

    fn take(&mut self, _: &Buffer, from: usize, host: &mut [u8], at: usize, len: usize) {
        assert_eq!(self.0.load(from, &mut host[at..at + len]), Ok(()), "{len} bytes");
    }
}

/// Test of the suite: a pager over a buffer of several spans; moves happen when needed, or before every access.
pub fn a_paged_window_shows_every_part_and_counts_its_moves(gpu: &Arc<dyn Gpu>) {
    let gpu = gpu.as_ref();
    for mapping in usable_windows(gpu) {
        let small = windowed(gpu, mapping, 4096);
        let span = match gpu.pager(mapping, &small) {
            Ok(pager) => pager.span_bytes(),
            Err(error @ DeviceError::Unavailable { .. }) => {
                note(&format!("not tested: paged window by {mapping:?}: {error}"));
                continue;
            }
            Err(error) => panic!("paged window by {mapping:?}: {error}"),
        };
        let bytes = 2 * span + MARGIN + LARGEST;
        let there = windowed(gpu, mapping, bytes);
        let mut by = ByPager(gpu.pager(mapping, &there).expect("the first one was dropped"));
        assert!(matches!(gpu.pager(mapping, &there), Err(DeviceError::Refused { .. })), "one at a time");
        Bench::new(LARGEST).every_case(&mut by, &mut ByQueue::new(gpu, LARGEST), &there);
        pager_moves(&mut by, &there, span, gpu);
        let _held = claim(&there, 10, 10, Access::Read);
        assert!(matches!(by.0.store(19, &[0; 2]), Err(DeviceError::Overlap { .. })));
        assert!(matches!(by.0.load(bytes - 1, &mut [0; 2]), Err(DeviceError::OutOfRange { .. })));
        drop(by);
        drop(gpu.pager(mapping, &there).expect("the earlier one was dropped"));
    }
}

fn pager_moves(by: &mut ByPager, there: &Buffer, span: usize, gpu: &dyn Gpu) {
    let mut noise = Noise::new(29);
    let (mut sent, mut found) = (vec![0; 300], vec![0; 300]);
    by.0.load(0, &mut found[..1]).expect("byte 0");
    for (at, needed) in [(0, 0), (span - 300, 0), (span, 1), (2 * span - 150, 1), (2 * span, 0), (7, 1)] {
        noise.fill(&mut sent);
        let before = by.0.moves();
        by.0.store(at, &sent).expect("within the buffer");
        assert_eq!(by.0.moves() - before, needed, "a store at {at}");
        Ordinary(gpu).take(there, at, &mut found, 0, 300);
        same(&format!("a store by the pager at {at}"), &found, &sent);
    }
    by.0.always_move(true);
    let before = by.0.moves();
    for _ in 0..3 {
        by.0.store(0, &sent).expect("within the buffer");
        by.0.load(0, &mut found).expect("within the buffer");
    }
    assert_eq!(by.0.moves() - before, 6, "it moves before every access");
    same("what was stored last", &found, &sent);
    by.0.always_move(false);
}

const PATIENT: ResidentOptions = ResidentOptions { piece: 256, lease: Nanos(1_000_000_000), patience: PATIENCE };

/// Copies by a resident copier, of ordinary memory or of pinned memory that holds the host's bytes.
struct ByResident {
    copier: Box<dyn Resident>,
    pinned: Option<Buffer>,
}

impl HostCopy for ByResident {
    fn put(&mut self, host: &[u8], at: usize, len: usize, there: &Buffer, to: usize) {
        let mut target = claim(there, to, len, Access::Write);
        let copied = match &self.pinned {
            None => self.copier.copy_in(&mut target, &host[at..at + len]),
            Some(pinned) => {
                write(pinned, at, &host[at..at + len]);
                self.copier.copy(&claim(pinned, at, len, Access::Read), &mut target)
            }
        };
        assert_eq!(copied, Ok(()), "{len} bytes");
    }

    fn take(&mut self, there: &Buffer, from: usize, host: &mut [u8], at: usize, len: usize) {
        let source = claim(there, from, len, Access::Read);
        let copied = match &self.pinned {
            None => self.copier.copy_out(&mut host[at..at + len], &source),
            Some(pinned) => {
                let around = at.saturating_sub(super::GUARD)..(at + len + super::GUARD).min(host.len());
                write(pinned, around.start, &host[around.clone()]);
                let copied = self.copier.copy(&source, &mut claim(pinned, at, len, Access::Write));
                read(pinned, around.start, &mut host[around]);
                copied
            }
        };
        assert_eq!(copied, Ok(()), "{len} bytes");
    }
}

fn usable_residents(gpu: &dyn Gpu) -> Vec<ResidentShape> {
    let mut usable = Vec::new();
    for (shape, tried) in gpu.residents() {
        match tried {
            Ok(()) => usable.push(shape),
            Err(error) => {
                note(&format!("not tested: resident copier {shape:?}: {error}"));
                assert!(gpu.resident(shape, PATIENT).is_err(), "{shape:?} is said not to be usable");
            }
        }
    }
    usable
}

/// Test of the suite: every resident form, ordinary and pinned memory, all sizes and alignments, and more than its buffers
/// hold; with the paper's pieces and larger ones.
pub fn residents_copy_every_byte_and_no_other(gpu: &Arc<dyn Gpu>) {
    const LARGE: usize = (3 << 20) + 5;
    let gpu = gpu.as_ref();
    for shape in usable_residents(gpu) {
        for piece in [256, 4096] {
            // Memory is made first: on a real device that may wait for what is resident on it.
            let there = memory(gpu, LARGE + MARGIN);
            let mut other = ByQueue::new(gpu, LARGE);
            let host = pinned(gpu, LARGE + MARGIN);
            let mut bench = Bench::new(LARGE);
            for pinned in [None, Some(host)] {
                let copier =
                    gpu.resident(shape, ResidentOptions { piece, ..PATIENT }).expect("a form said to be usable");
                assert_eq!(copier.shape(), shape);
                let mut by = ByResident { copier, pinned };
                if piece == 256 {
                    bench.every_case(&mut by, &mut other, &there);
                }
                for (len, offsets) in [(4097, (7, 5)), (LARGE, (1, 63))] {
                    bench.case(&mut by, &mut other, &there, len, offsets);
                }
            }
        }
        let none = ResidentOptions { piece: 0, ..PATIENT };
        assert!(matches!(gpu.resident(shape, none), Err(DeviceError::Invalid { .. })), "pieces of 0 bytes");
    }
}

/// Test of the suite: a copier that was parked, or whose lease has ended, copies again; one dropped leaves.
pub fn parked_residents_start_again(gpu: &Arc<dyn Gpu>) {
    let gpu = gpu.as_ref();
    for shape in usable_residents(gpu) {
        let there = memory(gpu, MARGIN + 5000);
        let mut other = ByQueue::new(gpu, 5000);
        let mut bench = Bench::new(5000);
        let lease = Nanos(2_000_000);
        let copier = gpu.resident(shape, ResidentOptions { lease, ..PATIENT }).expect("a form said to be usable");
        let mut by = ByResident { copier, pinned: None };
        for _ in 0..3 {
            bench.case(&mut by, &mut other, &there, 5000, (1, 5));
            assert_eq!(by.copier.park(), Ok(()));
            assert_eq!(by.copier.park(), Ok(()), "parking twice changes nothing");
            bench.case(&mut by, &mut other, &there, 300, (1, 5));
            // Past the end of the lease or not, depending on how fast it is seen: both must work.
            clock::sleep_until(clock::now().saturating_add(Nanos(2 * lease.0)));
        }
        drop(by);
        let mut again = gpu.resident(shape, PATIENT).expect("the earlier one was dropped");
        let mut span = claim(&there, 0, 4, Access::Write);
        assert_eq!(again.copy_in(&mut span, &[1, 2, 3, 4]), Ok(()));
        assert!(matches!(again.copy_in(&mut span, &[1]), Err(DeviceError::Invalid { .. })), "lengths differ");
        drop(span);
        assert!(matches!(
            again.copy_in(&mut claim(&there, 0, 1, Access::Read), &[1]),
            Err(DeviceError::Invalid { .. })
        ));
        let mut found = [0; 4];
        assert_eq!(again.copy_out(&mut found, &claim(&there, 0, 4, Access::Read)), Ok(()));
        assert_eq!(found, [1, 2, 3, 4]);
    }
}
