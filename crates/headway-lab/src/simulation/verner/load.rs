//! What streams known by their rate put into blocks.

use headway_core::plan::stream::{Fluid, class_window};
use headway_core::units::{Bytes, NANOS_PER_SECOND, Nanos};

/// Streams grow by so many bytes: the smallest amount that a cycle carries, and a block of every cipher in use.
pub const GRANULE: Bytes = Bytes(16);

/// The most bytes that a stream of this rate adds to the block of one cycle: what arrives in `cycle`, in whole granules.
#[must_use]
pub fn gathered_bytes(bits_per_second: u64, cycle: Nanos) -> Bytes {
    const UNIT: u64 = GRANULE.0 * 8 * NANOS_PER_SECOND;
    let granules = match bits_per_second.checked_mul(cycle.0) {
        Some(bits) => bits.div_ceil(UNIT),
        None => {
            let bits = u128::from(bits_per_second) * u128::from(cycle.0);
            u64::try_from(bits.div_ceil(u128::from(UNIT))).unwrap_or(u64::MAX)
        }
    };
    Bytes(granules.saturating_mul(GRANULE.0))
}

/// What the streams of all GPUs put into blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockLoad {
    /// Shortest window; class `j` has cycles of `window * 2^j`.
    pub window: Nanos,
    /// Bytes of a block by GPU and class.
    pub blocks: Vec<Vec<Bytes>>,
    /// The longest part of one stream in it: a chain that must be processed in sequence.
    pub chains: Vec<Vec<Bytes>>,
}

impl BlockLoad {
    /// An empty load of this form.
    #[must_use]
    pub fn new(window: Nanos, gpus: usize, classes: u32) -> Self {
        let zero = vec![vec![Bytes(0); classes as usize]; gpus];
        Self { window, blocks: zero.clone(), chains: zero }
    }

    /// Adds a stream to a GPU. `window` is the longest cycle that its deadline allows.
    ///
    /// # Panics
    /// If `window` is below that of the load, or the load has no such GPU.
    pub fn add(&mut self, gpu: usize, stream: Fluid, window: Nanos) {
        let classes = self.blocks[gpu].len() as u32;
        assert!(self.window <= window, "the load has the shortest window of its streams");
        let class = (class_window(self.window, window, classes).0 / self.window.0).ilog2() as usize;
        let bytes = gathered_bytes(stream.bits_per_second, Nanos(self.window.0 << class));
        let block = &mut self.blocks[gpu][class];
        *block = Bytes(block.0.saturating_add(bytes.0));
        let chain = &mut self.chains[gpu][class];
        *chain = bytes.max(*chain);
    }

    /// The cycle of class `class`.
    #[must_use]
    pub fn cycle(&self, class: usize) -> Nanos {
        Nanos(self.window.0 << class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_carries_whole_granules_rounded_up() {
        // 3.1 Mbit/s for 25.0625 ms are 9711.7 bytes: 607 granules.
        assert_eq!(gathered_bytes(3_100_000, Nanos(25_062_500)), Bytes(607 * 16));
        assert_eq!(gathered_bytes(128, Nanos(NANOS_PER_SECOND)), Bytes(16));
        assert_eq!(gathered_bytes(129, Nanos(NANOS_PER_SECOND)), Bytes(32));
        assert_eq!(gathered_bytes(u64::MAX, Nanos(1)), Bytes(u64::MAX.div_ceil(128_000_000_000) * 16));
        assert_eq!(gathered_bytes(u64::MAX, Nanos::MAX), Bytes(u64::MAX));
    }

    #[test]
    fn a_load_keeps_sums_and_longest_chains_by_gpu_and_class() {
        let mut load = BlockLoad::new(Nanos(1_000_000), 2, 2);
        let stream = |bits_per_second| Fluid { bits_per_second, deadline: Nanos(0) };
        load.add(0, stream(128_000), Nanos(1_999_999));
        load.add(0, stream(256_000), Nanos(1_000_000));
        load.add(1, stream(128_000), Nanos(9_000_000));
        assert_eq!(load.blocks, [[Bytes(48), Bytes(0)], [Bytes(0), Bytes(32)]]);
        assert_eq!(load.chains, [[Bytes(32), Bytes(0)], [Bytes(0), Bytes(32)]]);
        assert_eq!(load.cycle(1), Nanos(2_000_000));
    }
}
