//! Copies that are counted and always left to the driver.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::decide;

/// Why nothing is done for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passed {
    /// Within one GPU.
    Within,
    /// Between GPUs.
    Peer,
    /// Rows with gaps between them, or arrays.
    Rows,
    /// Copies of one call (`cuMemcpyBatchAsync`); large ones out of a GPU may still be queued in pieces.
    Batch,
    /// With attributes (`cuMemcpyWithAttributesAsync`).
    Attributes,
}

const NAMES: [(Passed, &str); 5] = [
    (Passed::Within, "within a GPU"),
    (Passed::Peer, "between GPUs"),
    (Passed::Rows, "in rows with gaps"),
    (Passed::Batch, "in batches"),
    (Passed::Attributes, "with attributes"),
];

/// Copies and bytes.
static COUNTS: [[AtomicU64; 2]; NAMES.len()] = [const { [const { AtomicU64::new(0) }; 2] }; NAMES.len()];

pub(crate) fn count(what: Passed, bytes: usize) {
    count_many(what, 1, bytes as u64);
}

pub(crate) fn count_many(what: Passed, copies: u64, bytes: u64) {
    if decide::counts() {
        let [all, sum] = &COUNTS[what as usize];
        all.fetch_add(copies, Ordering::Relaxed);
        sum.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Their lines of what `--stats` prints.
pub(crate) fn table(text: &mut impl Write) -> fmt::Result {
    for (what, name) in NAMES {
        let [copies, bytes] = COUNTS[what as usize].each_ref().map(|count| count.load(Ordering::Relaxed));
        if copies > 0 {
            writeln!(text, "  {name:<33} {copies:>10} copies {bytes:>16} bytes, passed on")?;
        }
    }
    Ok(())
}
