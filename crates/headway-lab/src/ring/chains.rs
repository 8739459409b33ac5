//! The chain of every stream over a whole run, computed again by the CPU when the last block has come back.
//!
//! The output of a kernel that chains depends on all input before it: if each stream's last packet is what the CPU makes of all
//! that was sent, no block before it was lost, repeated or changed on its way to the kernel. That costs CPU time for every byte
//! of the run, so all CPUs work on it, and only after the run.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use headway_device::work::Work;
use headway_os::threads;
use headway_runtime::blocks::DataError;

use super::{BlockPlace, BlockRing, Checked, fresh};

/// Portions that one thread works on at a time: their blocks of a whole ring fit into its cache.
const GROUP: usize = 32;

/// What is kept of one pipeline until its last block is there.
#[derive(Clone, Default)]
struct Track {
    /// The ring's buffer of each cycle.
    slots: Vec<u32>,
    /// The block of the last cycle.
    end: Vec<u8>,
}

/// The blocks of a run, by their buffers in the ring.
pub(super) struct Chains {
    /// Cycles of each pipeline.
    cycles: Vec<u64>,
    tracks: Vec<Track>,
    /// Pipelines whose last block is missing.
    missing: usize,
}

impl Chains {
    pub(super) fn new(cycles: Vec<u64>) -> Self {
        let missing = cycles.iter().filter(|cycles| **cycles > 0).count();
        Self { tracks: vec![Track::default(); cycles.len()], cycles, missing }
    }

    /// Takes note of a block; whether it was the last of all pipelines.
    pub(super) fn note(&mut self, at: BlockPlace, block: &[u8]) -> bool {
        let BlockPlace { pipeline, cycle, slot } = at;
        let track = &mut self.tracks[pipeline as usize];
        track.slots.push(slot as u32);
        let last = cycle + 1 == self.cycles[pipeline as usize];
        if last {
            track.end = block.to_vec();
            self.missing -= 1;
        }
        last && self.missing == 0
    }

    /// Compares the last packet of every stream that chains with what the CPU makes of the whole run.
    ///
    /// Returns the streams and the bytes that the CPU worked on.
    pub(super) fn compare(&self, ring: &BlockRing, pipelines: &[Checked]) -> Result<(u64, u64), DataError> {
        let mut groups = Vec::new();
        for (number, checked) in pipelines.iter().enumerate() {
            let Some(kernel) = &checked.kernel else { continue };
            let (ranges, end) = (&ring.layouts[number].portions, &self.tracks[number].end);
            let chains = |at: &usize| {
                let last = end.get(ranges[*at].clone());
                last.is_some_and(|last| kernel.resume(&checked.portions[*at], last).is_some())
            };
            let chained: Vec<usize> = (0..checked.portions.len()).filter(chains).collect();
            groups.extend(chained.chunks(GROUP).map(|portions| (number, kernel.as_ref(), portions.to_vec())));
        }
        let next = AtomicUsize::new(0);
        let work = || {
            let (mut streams, mut bytes) = (0, 0);
            while let Some((pipeline, kernel, portions)) = groups.get(next.fetch_add(1, Ordering::Relaxed)) {
                bytes += self.group(ring, *pipeline, &pipelines[*pipeline], *kernel, portions)?;
                streams += portions.len() as u64;
            }
            Ok((streams, bytes))
        };
        let threads = thread::available_parallelism().map_or(1, usize::from).min(groups.len()).max(1);
        thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| threads::without_signals(|| scope.spawn(work))).collect();
            let mut sum = work();
            for other in others {
                let (streams, bytes) = other.join().expect("comparing does not panic")?;
                sum = sum.map(|own: (u64, u64)| (own.0 + streams, own.1 + bytes));
            }
            sum
        })
    }

    /// Runs the kernel's CPU form over all cycles of some portions.
    fn group(
        &self,
        ring: &BlockRing,
        number: usize,
        checked: &Checked,
        kernel: &dyn Work,
        portions: &[usize],
    ) -> Result<u64, DataError> {
        let (track, layout, cycles) = (&self.tracks[number], &ring.layouts[number], self.cycles[number]);
        let mut inputs = BTreeMap::new();
        for &slot in &track.slots {
            if let Entry::Vacant(empty) = inputs.entry(slot) {
                empty.insert(checked.excerpt(
                    ring,
                    BlockPlace { pipeline: number as u32, cycle: 0, slot: slot as usize },
                    portions,
                )?);
            }
        }
        // Blocks of all buffers have the same layout.
        let Some((first, ranges)) = inputs.values().next() else { return Ok(0) };
        let chosen: Vec<_> = portions.iter().map(|&portion| checked.portions[portion].clone()).collect();
        let failed = |error: headway_device::work::WorkError| checked.wrong(cycles, error.to_string());
        let mut state = fresh(kernel, &chosen).map_err(failed)?;
        let mut output = vec![0; first.len()];
        for slot in &track.slots {
            kernel.run(&inputs[slot].0, &mut output, &mut state).map_err(failed)?;
        }
        for (&portion, range) in portions.iter().zip(ranges) {
            if track.end[layout.portions[portion].clone()] != output[range.clone()] {
                let stream = &checked.portions[portion].stream;
                return Err(checked.wrong(cycles - 1, format!("the chain of stream `{stream}` is not the CPU's")));
            }
        }
        Ok(portions.iter().map(|&portion| layout.lens[portion]).sum::<u64>() * track.slots.len() as u64)
    }
}
