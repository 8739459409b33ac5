//! Packets that are divided among all GPUs.

use serde::{Deserialize, Serialize};

use crate::plan::block::LAUNCH_ALIGN;
use crate::units::Bytes;

/// How the packets of a stream are divided among all GPUs: each GPU works on its own items of a packet, sends what it made of
/// them to all others (an all-gather), and then makes the result from what all of them made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sharding {
    /// Items of a packet.
    pub items: u32,
    /// Size of an item.
    pub item: Bytes,
    /// What the first kernel makes of an item, and what comes back to the host: so many bytes each.
    ///
    /// A multiple of [`LAUNCH_ALIGN`]: the summaries of all items lie in one buffer without gaps, and each GPU's first kernel writes into
    /// it from its own first item on.
    pub summary: Bytes,
    /// Operations of the first kernel, as [`crate::files::machine::KernelCost::with_operations`] counts them; `None` = its cost depends on
    /// its bytes only.
    pub operations: Option<u32>,
    /// Packets after which the data repeats: buffers of the ring that is filled before a run.
    pub ring: u32,
}

impl Sharding {
    /// The parameter with [`Sharding::operations`], for works that have them.
    pub const OPERATIONS: &str = "operations";
    /// The parameter that the items of a run follow from, where they are synthetic.
    pub const SEED: &str = "seed";

    /// Why no plan can divide packets of `packet` bytes so, with the remedy.
    pub(crate) fn fault(&self, packet: Bytes) -> Option<String> {
        let Self { items, item, summary, operations: _, ring } = *self;
        let align = LAUNCH_ALIGN as u64;
        if items == 0 || item.0 == 0 || summary.0 == 0 || ring == 0 {
            return Some(format!(
                "its sharding has {items} items of {item}, summaries of {summary} and a ring of {ring}: give at least one of each"
            ));
        }
        if !summary.0.is_multiple_of(align) {
            return Some(format!(
                "its summaries have {} bytes, no multiple of {align}, on which kernels rely: make them {} bytes",
                summary.0,
                summary.0.next_multiple_of(align)
            ));
        }
        if packet != self.packet() {
            let size = self.packet();
            return Some(format!(
                "its packet of {packet} is not {items} items of {item}: make it {size}, or leave it out"
            ));
        }
        if self.summaries(items).0 > u64::from(u32::MAX) {
            return Some(format!("the summaries of its {items} items have more than 4 GiB: make them smaller"));
        }
        None
    }

    /// Size of a packet.
    #[must_use]
    pub const fn packet(&self) -> Bytes {
        Bytes(self.item.0.saturating_mul(self.items as u64))
    }

    /// Size of the summaries of `items` items.
    #[must_use]
    pub const fn summaries(&self, items: u32) -> Bytes {
        Bytes(self.summary.0.saturating_mul(items as u64))
    }
}
