//! Blocks and random bytes for the tests.
#![allow(dead_code, reason = "each test file uses a part")]

use headway_core::plan::block::{BlockHeader, block_bytes, write_header};
use headway_device::work::{Portion, Work};
use headway_kernels::Cipher;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// A generator whose seed the failing test's name tells.
pub(crate) fn random(seed: u64) -> Pcg64Mcg {
    Pcg64Mcg::seed_from_u64(seed)
}

pub(crate) fn bytes(random: &mut impl Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    random.fill_bytes(&mut bytes);
    bytes
}

/// A number below `end`.
pub(crate) fn below(random: &mut impl Rng, end: u32) -> usize {
    (random.next_u32() % end) as usize
}

pub(crate) fn cipher(random: &mut impl Rng) -> Cipher {
    let mut cipher = Cipher { key: [0; 16], iv: [0; 16] };
    random.fill_bytes(&mut cipher.key);
    random.fill_bytes(&mut cipher.iv);
    cipher
}

pub(crate) fn portion(cipher: Cipher) -> Portion {
    Portion { stream: "camera".into(), parameters: cipher.parameters(), item: 0 }
}

/// A block of these portions. Its padding is not zero, as in a buffer that was used before.
pub(crate) fn pack(cycle: u64, portions: &[&[u8]]) -> Vec<u8> {
    let lens: Vec<_> = portions.iter().map(|portion| portion.len() as u64).collect();
    let mut block = vec![0xA5; block_bytes(lens.iter().copied()).0 as usize];
    write_header(&mut block, cycle, &lens).unwrap();
    for (range, portion) in BlockHeader::read(&block).unwrap().portions.into_iter().zip(portions) {
        block[range].copy_from_slice(portion);
    }
    block
}

/// The portions of a block.
pub(crate) fn unpack(block: &[u8]) -> Vec<&[u8]> {
    BlockHeader::read(block).unwrap().portions.into_iter().map(|portion| &block[portion]).collect()
}

/// A fresh state.
pub(crate) fn state(kernel: &dyn Work, portions: &[Portion]) -> Vec<u8> {
    let mut state = vec![0xA5; kernel.state_bytes(portions.len())];
    kernel.init_state(portions, &mut state).unwrap();
    state
}

/// The CPU form's output.
pub(crate) fn run(kernel: &dyn Work, block: &[u8], state: &mut [u8]) -> Vec<u8> {
    let mut output = vec![0x5A; block.len()];
    kernel.run(block, &mut output, state).unwrap();
    output
}
