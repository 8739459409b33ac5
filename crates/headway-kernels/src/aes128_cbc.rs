//! AES-128 in CBC mode: FIPS 197; NIST SP 800-38A, section 6.2.

use std::ops::Range;

use aes::Aes128;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use headway_device::work::{DeviceCode, LaunchGrid, Portion, Work, WorkError};

use crate::cipher::{BLOCK, Cipher, ID};
use crate::portions::{WARP, bad_block, begin};

pub(crate) const ROUND_KEYS: usize = 11;
/// State of a portion, the same in both forms: the round keys in the order of FIPS 197, section 5.2, the first of which is the
/// key itself, then the chaining value.
pub(crate) const PORTION_STATE: usize = (ROUND_KEYS + 1) * BLOCK;
pub(crate) const CHAIN: usize = ROUND_KEYS * BLOCK;
/// Portions that the CPU encrypts in turns: a block waits for the one before it in its chain, not for those of other chains.
const CHAINS: usize = 8;

/// Encrypts each portion with its stream's key, as one CBC message over all blocks of a run.
///
/// Portions must be multiples of 16 bytes: nothing is padded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Aes128Cbc;

impl Work for Aes128Cbc {
    fn id(&self) -> &'static str {
        ID
    }

    fn state_bytes(&self, portions: usize) -> usize {
        portions.saturating_mul(PORTION_STATE)
    }

    fn init_state(&self, portions: &[Portion], state: &mut [u8]) -> Result<(), WorkError> {
        assert!(state.len() >= self.state_bytes(portions.len()), "the state has `state_bytes` for these portions");
        for (portion, state) in portions.iter().zip(state.chunks_exact_mut(PORTION_STATE)) {
            let Some(cipher) = Cipher::of(&portion.parameters) else {
                return Err(WorkError::MissingParameter {
                    work: ID.to_owned(),
                    stream: portion.stream.clone(),
                    missing: "a key and an initialisation vector (`key` and `iv` of the stream)",
                });
            };
            state[..CHAIN].copy_from_slice(&expand_key(&cipher.key));
            state[CHAIN..].copy_from_slice(&cipher.iv);
        }
        Ok(())
    }

    fn run(&self, input: &[u8], output: &mut [u8], state: &mut [u8]) -> Result<(), WorkError> {
        let portions = portions_of_blocks(input, output, state)?;
        for (portions, states) in portions.chunks(CHAINS).zip(state.chunks_mut(CHAINS * PORTION_STATE)) {
            encrypt(input, output, portions, states);
        }
        Ok(())
    }

    fn resume(&self, portion: &Portion, output: &[u8]) -> Option<Portion> {
        let cipher = Cipher::of(&portion.parameters)?;
        // The last block of the ciphertext takes the place of the initialisation vector.
        let iv = *output.last_chunk()?;
        let parameters = portion.parameters.clone().and(Cipher { iv, ..cipher }.parameters());
        Some(Portion { parameters, ..portion.clone() })
    }

    fn code(&self) -> DeviceCode {
        DeviceCode::Ptx(include_str!("../ptx/aes128_cbc.ptx"))
    }

    fn entry(&self) -> &'static str {
        "aes128_cbc"
    }

    fn grid(&self, portions: u32) -> LaunchGrid {
        LaunchGrid::line(portions.max(1), WARP, 0)
    }
}

/// Continues the chains of some portions, whose lengths are multiples of [`BLOCK`].
fn encrypt(input: &[u8], output: &mut [u8], portions: &[Range<usize>], states: &mut [u8]) {
    let keys = states.chunks_exact(PORTION_STATE).filter_map(|state| state.first_chunk::<BLOCK>());
    let ciphers: Vec<_> = keys.map(|key| Aes128::new(key.into())).collect();
    let mut chains: [aes::Block; CHAINS] = Default::default();
    for (chain, state) in chains.iter_mut().zip(states.chunks_exact(PORTION_STATE)) {
        chain.copy_from_slice(&state[CHAIN..]);
    }
    let longest = portions.iter().map(Range::len).max().unwrap_or(0);
    for at in (0..longest).step_by(BLOCK) {
        for ((portion, cipher), chain) in portions.iter().zip(&ciphers).zip(&mut chains) {
            if at >= portion.len() {
                continue;
            }
            let place = portion.start + at..portion.start + at + BLOCK;
            chain.iter_mut().zip(&input[place.clone()]).for_each(|(chain, plain)| *chain ^= plain);
            cipher.encrypt_block(chain);
            output[place].copy_from_slice(chain);
        }
    }
    for (chain, state) in chains.iter().zip(states.chunks_exact_mut(PORTION_STATE)) {
        state[CHAIN..].copy_from_slice(chain);
    }
}

/// The key schedule, FIPS 197, section 5.2.
fn expand_key(key: &[u8; BLOCK]) -> [u8; ROUND_KEYS * BLOCK] {
    let mut keys = [0; ROUND_KEYS * BLOCK];
    keys[..BLOCK].copy_from_slice(key);
    let mut constant = 1;
    for at in (BLOCK..keys.len()).step_by(4) {
        let mut word = [keys[at - 4], keys[at - 3], keys[at - 2], keys[at - 1]];
        if at % BLOCK == 0 {
            word = [
                SBOX[word[1] as usize] ^ constant,
                SBOX[word[2] as usize],
                SBOX[word[3] as usize],
                SBOX[word[0] as usize],
            ];
            constant = doubled(constant);
        }
        for (i, byte) in word.into_iter().enumerate() {
            keys[at + i] = keys[at + i - BLOCK] ^ byte;
        }
    }
    keys
}

/// Like [`begin`], and checks that every portion has whole cipher blocks.
pub(crate) fn portions_of_blocks(
    input: &[u8],
    output: &mut [u8],
    state: &[u8],
) -> Result<Vec<Range<usize>>, WorkError> {
    let portions = begin(ID, input, output, state, PORTION_STATE)?;
    if let Some(at) = portions.iter().position(|portion| portion.len() % BLOCK != 0) {
        let reason = format!("portion {at} has {} bytes, which is no multiple of {BLOCK}", portions[at].len());
        return Err(bad_block(ID, reason));
    }
    Ok(portions)
}

/// Product with x in the field of FIPS 197, section 4.
pub(crate) const fn doubled(a: u8) -> u8 {
    (a << 1) ^ ((a >> 7) * 0x1b)
}

/// FIPS 197, section 5.1.1: the inverse in the field, then an affine map.
///
/// `power` runs through the powers of x + 1, which are all elements but 0, and `inverse` through their inverses.
pub(crate) const SBOX: [u8; 256] = {
    let mut sbox = [0; 256];
    let (mut power, mut inverse) = (1u8, 1u8);
    loop {
        power ^= doubled(power);
        inverse ^= inverse << 1;
        inverse ^= inverse << 2;
        inverse ^= inverse << 4;
        inverse ^= (inverse >> 7) * 0x09;
        sbox[power as usize] = 0x63
            ^ inverse
            ^ inverse.rotate_left(1)
            ^ inverse.rotate_left(2)
            ^ inverse.rotate_left(3)
            ^ inverse.rotate_left(4);
        if power == 1 {
            break;
        }
    }
    sbox[0] = 0x63;
    sbox
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_schedule_is_that_of_fips_197_appendix_a_1() {
        let key = [0x2b, 0x7e, 0x15, 0x16, 0x28, 0xae, 0xd2, 0xa6, 0xab, 0xf7, 0x15, 0x88, 0x09, 0xcf, 0x4f, 0x3c];
        let keys = expand_key(&key);
        assert_eq!(keys[16..20], [0xa0, 0xfa, 0xfe, 0x17]);
        assert_eq!(keys[172..], [0xb6, 0x63, 0x0c, 0xa6]);
    }
}
