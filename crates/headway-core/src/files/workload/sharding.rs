//! Packets that are divided among all GPUs.

use serde::{Deserialize, Serialize};

use crate::files::document::ValueFault;
use crate::units::Bytes;

/// What the PTX form of a step's kernel reads and writes (input, output, state) starts at multiples of this.
pub const LAUNCH_ALIGN: usize = 256;

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
    /// Operations of the first kernel for each pixel; `None` = its cost depends on its bytes only.
    pub operations: Option<u32>,
    /// Packets after which the data repeats: buffers of the ring that is filled before a run.
    pub ring: u32,
}

impl Sharding {
    /// The parameter with [`Sharding::operations`], for works that have them.
    pub const OPERATIONS: &str = "operations";
    /// The parameter that the items of a run follow from, where they are synthetic.
    pub const SEED: &str = "seed";

    /// Why no plan can divide packets of `packet` bytes so.
    pub(super) fn fault(&self, packet: Bytes) -> Option<ValueFault> {
        let Self { items, item, summary, operations: _, ring } = *self;
        let align = LAUNCH_ALIGN as u64;
        let (fact, help) = if items == 0 || item.0 == 0 || summary.0 == 0 || ring == 0 {
            let fact = format!("its sharding has {items} items of {item}, summaries of {summary} and a ring of {ring}");
            (fact, "give at least one of each".to_owned())
        } else if !summary.0.is_multiple_of(align) {
            let fact = format!("its summaries have {} bytes, no multiple of {align}, on which kernels rely", summary.0);
            (fact, format!("make them {} bytes", summary.0.next_multiple_of(align)))
        } else if packet != self.packet() {
            let fact = format!("its packet of {packet} is not {items} items of {item}");
            (fact, format!("make it {}, or leave it out", self.packet()))
        } else if self.summaries(items).0 > u64::from(u32::MAX) {
            (format!("the summaries of its {items} items have more than 4 GiB"), "make them smaller".to_owned())
        } else {
            return None;
        };
        Some(ValueFault { fact, help })
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
