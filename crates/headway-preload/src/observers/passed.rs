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
}

const NAMES: [(Passed, &str); 3] =
    [(Passed::Within, "within a GPU"), (Passed::Peer, "between GPUs"), (Passed::Rows, "in rows with gaps")];

/// Copies and bytes.
static COUNTS: [[AtomicU64; 2]; NAMES.len()] = [const { [const { AtomicU64::new(0) }; 2] }; NAMES.len()];

pub(crate) fn count(what: Passed, bytes: usize) {
    if decide::counts() {
        let [copies, sum] = &COUNTS[what as usize];
        copies.fetch_add(1, Ordering::Relaxed);
        sum.fetch_add(bytes as u64, Ordering::Relaxed);
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
