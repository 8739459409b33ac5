//! The formulas as the paper prints them (Elliott 2013, appendix A), to compare with. Several are unsafe: the specification of
//! sharing, 6.3, tells where; use [`analyse`](super::super::analyse) to decide. `None` = the result does not fit 64 bits.

use crate::units::{Bytes, Nanos};

/// The letters of the paper's theorems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Letters {
    /// Number of CPUs.
    pub(crate) m: u64,
    /// Tokens per GPU.
    pub(crate) rho: u64,
    pub(crate) g: u64,
    /// Bytes that a job moves.
    pub(crate) d: Bytes,
    /// Chunk size.
    pub(crate) c: Bytes,
    /// `N^C`: blocking copy requests.
    pub(crate) copy_blockers: u64,
    /// `N^E`: blocking kernel requests.
    pub(crate) execute_blockers: u64,
    /// `L^C`: longest chunk.
    pub(crate) longest_copy: Nanos,
    /// `L^E`: longest kernel.
    pub(crate) longest_execute: Nanos,
    /// `L^P`: CPU time while the token is held.
    pub(crate) cpu: Nanos,
}

/// Lemma 3: blockers of a copy under group locks, `rho g - 1`.
pub(crate) fn group_blockers(rho: u64, g: u64) -> Option<u64> {
    rho.checked_mul(g)?.checked_sub(1)
}

/// Lemma 4: blockers of a copy under nested locks, `(rho g - 1)(rho g - 2) / 2`. Unsafe (slips 2 and 3).
pub(crate) fn nested_blockers(rho: u64, g: u64) -> Option<u64> {
    let n = rho.checked_mul(g)?;
    Some(n.checked_sub(1)?.checked_mul(n.checked_sub(2)?)? / 2)
}

/// Theorem 1: `ceil(d/c) N^C L^C + N^E e L^E`. Unsafe for several copies (slip 4).
pub(crate) fn engine_blocking(letters: &Letters, executes: u64) -> Option<Nanos> {
    let copies = chunks(letters)?.checked_mul(letters.copy_blockers)?.checked_mul(letters.longest_copy.0)?;
    let kernels = letters.execute_blockers.checked_mul(executes)?.checked_mul(letters.longest_execute.0)?;
    copies.checked_add(kernels).map(Nanos)
}

/// Lemma 5: `ceil(d/c) (N^C + 1) L^C + (N^E + 1) L^E + L^P`. Unsafe for several kernels (slip 1) or copies (slip 4).
pub(crate) fn token_hold(letters: &Letters) -> Option<Nanos> {
    let one_more = Letters {
        copy_blockers: letters.copy_blockers.checked_add(1)?,
        execute_blockers: letters.execute_blockers.checked_add(1)?,
        ..*letters
    };
    engine_blocking(&one_more, 1)?.0.checked_add(letters.cpu.0).map(Nanos)
}

/// Theorem 2: `(2 ceil(m / (rho g)) - 1) THT_max`.
pub(crate) fn token_blocking(letters: &Letters, longest_hold: Nanos) -> Option<Nanos> {
    let k = letters.rho.checked_mul(letters.g).filter(|k| *k > 0)?;
    letters.m.div_ceil(k).checked_mul(2)?.checked_sub(1)?.checked_mul(longest_hold.0).map(Nanos)
}

/// Theorem 3: `(2 ceil(m / (rho g)) - 1) THT_max + ceil(d/c) N^C L^C + N^E L^E`. Unsafe as Lemma 5 is.
pub(crate) fn blocking(letters: &Letters, longest_hold: Nanos) -> Option<Nanos> {
    let engines = engine_blocking(letters, 1)?;
    token_blocking(letters, longest_hold)?.0.checked_add(engines.0).map(Nanos)
}

fn chunks(letters: &Letters) -> Option<u64> {
    (letters.c.0 > 0).then(|| letters.d.0.div_ceil(letters.c.0))
}
