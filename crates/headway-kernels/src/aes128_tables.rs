//! A second CPU form of `aes128-cbc`, from tables of 32-bit words and the key schedule of this crate: it shares nothing with the
//! first but that schedule's bytes in the state, so that each can check the other.

use headway_device::work::{DeviceCode, LaunchGrid, Portion, Work, WorkError};

use crate::aes128_cbc::{Aes128Cbc, CHAIN, PORTION_STATE, ROUND_KEYS, SBOX, doubled, portions_of_blocks};
use crate::cipher::{BLOCK, ID};

/// Encrypts as [`Aes128Cbc`] does, without the processor's instructions for it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Aes128Tables;

impl Work for Aes128Tables {
    fn id(&self) -> &'static str {
        ID
    }

    fn state_bytes(&self, portions: usize) -> usize {
        Aes128Cbc.state_bytes(portions)
    }

    fn init_state(&self, portions: &[Portion], state: &mut [u8]) -> Result<(), WorkError> {
        Aes128Cbc.init_state(portions, state)
    }

    fn run(&self, input: &[u8], output: &mut [u8], state: &mut [u8]) -> Result<(), WorkError> {
        let portions = portions_of_blocks(input, output, state)?;
        for (portion, state) in portions.iter().zip(state.chunks_exact_mut(PORTION_STATE)) {
            let mut keys = [[0; 4]; ROUND_KEYS];
            for (words, bytes) in keys.iter_mut().zip(state.chunks_exact(BLOCK)) {
                *words = words_of(bytes);
            }
            let mut chain = words_of(&state[CHAIN..]);
            let (plain, cipher) = (&input[portion.clone()], &mut output[portion.clone()]);
            for (plain, cipher) in plain.chunks_exact(BLOCK).zip(cipher.chunks_exact_mut(BLOCK)) {
                let plain = words_of(plain);
                chain = encrypt(std::array::from_fn(|at| chain[at] ^ plain[at]), &keys);
                for (bytes, word) in cipher.chunks_exact_mut(4).zip(chain) {
                    bytes.copy_from_slice(&word.to_be_bytes());
                }
            }
            for (bytes, word) in state[CHAIN..].chunks_exact_mut(4).zip(chain) {
                bytes.copy_from_slice(&word.to_be_bytes());
            }
        }
        Ok(())
    }

    fn resume(&self, portion: &Portion, output: &[u8]) -> Option<Portion> {
        Aes128Cbc.resume(portion, output)
    }

    fn code(&self) -> DeviceCode {
        Aes128Cbc.code()
    }

    fn entry(&self) -> &'static str {
        Aes128Cbc.entry()
    }

    fn grid(&self, portions: u32) -> LaunchGrid {
        Aes128Cbc.grid(portions)
    }
}

fn words_of(bytes: &[u8]) -> [u32; 4] {
    std::array::from_fn(|at| {
        u32::from_be_bytes([bytes[4 * at], bytes[4 * at + 1], bytes[4 * at + 2], bytes[4 * at + 3]])
    })
}

/// Column of `MixColumns` after `SubBytes` for a byte in its first row, FIPS 197, sections 5.1.1 and 5.1.3; other rows rotate it.
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        let (one, two) = (SBOX[at], doubled(SBOX[at]));
        table[at] = u32::from_be_bytes([two, one, one, one ^ two]);
        at += 1;
    }
    table
};

const fn byte(word: u32, row: u32) -> usize {
    (word >> (24 - 8 * row) & 0xff) as usize
}

fn encrypt(block: [u32; 4], keys: &[[u32; 4]; ROUND_KEYS]) -> [u32; 4] {
    let mut state: [u32; 4] = std::array::from_fn(|at| block[at] ^ keys[0][at]);
    for keys in &keys[1..ROUND_KEYS - 1] {
        state = std::array::from_fn(|column| {
            (0..4).fold(keys[column], |sum, row| {
                sum ^ TABLE[byte(state[(column + row as usize) % 4], row)].rotate_right(8 * row)
            })
        });
    }
    std::array::from_fn(|column| {
        let rows: [u8; 4] = std::array::from_fn(|row| SBOX[byte(state[(column + row) % 4], row as u32)]);
        keys[ROUND_KEYS - 1][column] ^ u32::from_be_bytes(rows)
    })
}

#[cfg(test)]
mod tests {
    use headway_core::plan::block;

    use super::*;
    use crate::Cipher;

    #[test]
    fn a_block_is_that_of_fips_197_appendix_b() {
        let key = [0x2b, 0x7e, 0x15, 0x16, 0x28, 0xae, 0xd2, 0xa6, 0xab, 0xf7, 0x15, 0x88, 0x09, 0xcf, 0x4f, 0x3c];
        let plain = [0x3243_f6a8, 0x885a_308d, 0x3131_98a2, 0xe037_0734];
        let portion = Portion { parameters: Cipher { key, iv: [0; 16] }.parameters(), ..Portion::default() };
        let mut state = vec![0; PORTION_STATE];
        Aes128Tables.init_state(&[portion], &mut state).unwrap();
        let keys: Vec<[u32; 4]> = state[..CHAIN].chunks_exact(BLOCK).map(words_of).collect();
        let cipher = encrypt(plain, keys.as_slice().try_into().unwrap());
        assert_eq!(cipher, [0x3925_841d, 0x02dc_09fb, 0xdc11_8597, 0x196a_0b32]);
    }

    #[test]
    fn both_cpu_forms_write_the_same_bytes_and_leave_the_same_state() {
        let lens: Vec<u64> = (0..21).map(|portion| 16 * (portion * 7 % 13)).collect();
        let portions: Vec<Portion> = (0..21u8)
            .map(|at| Portion {
                stream: format!("s{at}"),
                parameters: Cipher { key: [at.wrapping_mul(37); 16], iv: [at ^ 0x5a; 16] }.parameters(),
                item: 0,
            })
            .collect();
        let size = block::block_bytes(lens.iter().copied()).0 as usize;
        let mut input: Vec<u8> = (0..size).map(|at| (at * at / 3) as u8).collect();
        block::write_header(&mut input, 5, &lens).unwrap();
        let forms: [&dyn Work; 2] = [&Aes128Cbc, &Aes128Tables];
        let made = forms.map(|form| {
            let mut state = vec![0; form.state_bytes(portions.len())];
            form.init_state(&portions, &mut state).unwrap();
            let mut output = vec![0; size];
            form.run(&input, &mut output, &mut state).unwrap();
            let once = output.clone();
            form.run(&input, &mut output, &mut state).unwrap();
            (once, output, state)
        });
        assert_eq!(made[0], made[1]);
        assert_ne!(made[0].0, made[0].1, "the second block goes on with the chains");
    }

    #[test]
    fn a_portion_with_a_broken_block_is_refused() {
        let size = block::block_bytes([24]).0 as usize;
        let mut input = vec![0; size];
        block::write_header(&mut input, 0, &[24]).unwrap();
        let refused = Aes128Tables.run(&input, &mut vec![0; size], &mut [0; PORTION_STATE]);
        assert!(matches!(refused, Err(WorkError::BadBlock { .. })), "{refused:?}");
    }
}
