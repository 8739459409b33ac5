//! What a run keeps of outputs whose files are bounded: a digest of each mebibyte behind the file's end, so that every byte can
//! still be compared.

use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest as _, Sha256};

/// Bytes of one digest.
pub const STRIDE: u64 = 1 << 20;

/// SHA-256 of [`STRIDE`] bytes, or of fewer at the end.
pub type Digest = [u8; 32];

/// Bytes that are not kept, as digests.
#[derive(Clone, Debug, Default)]
pub struct Tail {
    hasher: Sha256,
    filled: u64,
    digests: Vec<Digest>,
}

impl Tail {
    /// Takes the next bytes.
    pub fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min((STRIDE - self.filled) as usize));
            self.hasher.update(now);
            self.filled += now.len() as u64;
            if self.filled == STRIDE {
                self.close();
            }
            bytes = later;
        }
    }

    /// The digests of everything taken.
    #[must_use]
    pub fn finish(mut self) -> Vec<Digest> {
        if self.filled > 0 {
            self.close();
        }
        self.digests
    }

    fn close(&mut self) {
        self.digests.push(self.hasher.finalize_reset().into());
        self.filled = 0;
    }
}

/// What became of bytes that were not kept, for each stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamTails {
    /// Digests of what follows the kept bytes of each stream.
    pub digests: Vec<Vec<Digest>>,
    /// The first cycle of a divided stream whose result was not kept and is not what it must be.
    pub wrong_result: Option<u64>,
}

/// Where a sink leaves what it knows of bytes that were not kept, for whoever compares them after the run.
#[derive(Clone, Debug, Default)]
pub struct Left(Arc<Mutex<StreamTails>>);

impl Left {
    /// Leaves `ends`.
    pub fn put(&self, ends: StreamTails) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = ends;
    }

    /// What was left; nothing before the run has ended.
    #[must_use]
    pub fn take(&self) -> StreamTails {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digests(bytes: &[u8], piece: usize) -> Vec<Digest> {
        let mut tail = Tail::default();
        bytes.chunks(piece).for_each(|piece| tail.write(piece));
        tail.finish()
    }

    #[test]
    fn digests_do_not_depend_on_how_bytes_come_and_name_the_mebibyte_that_differs() {
        let mut bytes: Vec<u8> = (0..(STRIDE as usize * 2 + 17)).map(|at| (at % 251) as u8).collect();
        let whole = digests(&bytes, usize::MAX);
        assert_eq!(whole.len(), 3);
        assert_eq!(whole, digests(&bytes, 4097));
        bytes[STRIDE as usize + 5] ^= 1;
        let other = digests(&bytes, 100_000);
        assert_eq!(whole.iter().zip(&other).map(|(a, b)| a == b).collect::<Vec<_>>(), [true, false, true]);
        assert!(digests(&[], 1).is_empty());
    }
}
