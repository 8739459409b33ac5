//! Numbers that look random and follow from a seed alone, so that a run can be made again.

/// The generator PCG XSL RR 128/64 (MCG) of O'Neill (2014). Not for secrets.
#[derive(Clone, Debug)]
pub struct Pcg64Mcg(u128);

impl Pcg64Mcg {
    const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;

    /// A generator whose numbers follow from `seed`; neighbouring seeds give unlike numbers.
    #[must_use]
    pub fn seed_from_u64(mut seed: u64) -> Self {
        // PCG XSH RR 64/32 spreads the seed over the state, the low bits first.
        let mut word = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(11_634_580_027_462_260_723);
            let mixed = (((seed >> 18) ^ seed) >> 27) as u32;
            u128::from(mixed.rotate_right((seed >> 59) as u32))
        };
        let state = (0..4).fold(0, |state, at| state | (word() << (32 * at)));
        Self(state | 1)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(Self::MULTIPLIER);
        let mixed = (self.0 >> 64) as u64 ^ self.0 as u64;
        mixed.rotate_right((self.0 >> 122) as u32)
    }

    /// Fills `bytes` with the next numbers, each in little-endian order; the last one may be cut.
    pub fn fill_bytes(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let number = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&number[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use rand_core::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn numbers_and_bytes_are_those_of_the_crate_rand_pcg() {
        for seed in [0, 1, 42, u64::MAX, 0x1234_5678_9abc_def0] {
            let (mut ours, mut theirs) = (Pcg64Mcg::seed_from_u64(seed), rand_pcg::Pcg64Mcg::seed_from_u64(seed));
            for _ in 0..1000 {
                assert_eq!(ours.next_u64(), theirs.next_u64());
            }
            let mut bytes = [[0; 21]; 2];
            ours.fill_bytes(&mut bytes[0]);
            theirs.fill_bytes(&mut bytes[1]);
            assert_eq!(bytes[0], bytes[1]);
        }
    }
}
