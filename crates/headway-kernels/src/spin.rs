//! A kernel that only takes time.

use headway_device::work::{DeviceCode, LaunchGrid, Portion, Work, WorkError};

use crate::portions::{WARP, begin, pad};

pub(crate) const ID: &str = "spin";

/// State of a portion, the same in both forms: iterations for each 16 bytes and the sum, little-endian words.
const PORTION_STATE: usize = 8;
/// Bytes that one chain of iterations stands for.
const UNIT: usize = 16;

/// Copies each portion and computes for a time proportional to its bytes.
///
/// The first word of a portion's state is the number of dependent steps for each 16 bytes; a caller may write another one than
/// [`Spin::ITERATIONS`]. A GPU serves a portion with 32 threads, so that each 512 bytes take that many steps. The second
/// word sums the results, which keeps compilers from leaving the work out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spin;

impl Spin {
    /// Steps for each 16 bytes in a fresh state.
    pub const ITERATIONS: u32 = 64;
}

impl Work for Spin {
    fn id(&self) -> &'static str {
        ID
    }

    fn state_bytes(&self, portions: usize) -> usize {
        portions.saturating_mul(PORTION_STATE)
    }

    fn init_state(&self, portions: &[Portion], state: &mut [u8]) -> Result<(), WorkError> {
        assert!(state.len() >= self.state_bytes(portions.len()), "the state has `state_bytes` for these portions");
        for state in state.chunks_exact_mut(PORTION_STATE).take(portions.len()) {
            state[..4].copy_from_slice(&Self::ITERATIONS.to_le_bytes());
            state[4..].fill(0);
        }
        Ok(())
    }

    fn run(&self, input: &[u8], output: &mut [u8], state: &mut [u8]) -> Result<(), WorkError> {
        let portions = begin(ID, input, output, state, PORTION_STATE)?;
        for (portion, state) in portions.iter().zip(state.chunks_exact_mut(PORTION_STATE)) {
            let iterations = word(&state[..4]);
            let units = input[portion.clone()].chunks(UNIT);
            let sum = units.fold(word(&state[4..]), |sum, unit| sum ^ burn(unit, iterations));
            state[4..].copy_from_slice(&sum.to_le_bytes());
            output[portion.clone()].copy_from_slice(&input[portion.clone()]);
            pad(output, portion);
        }
        Ok(())
    }

    fn code(&self) -> DeviceCode {
        DeviceCode::Ptx(include_str!("../ptx/spin.ptx"))
    }

    fn entry(&self) -> &'static str {
        "spin"
    }

    fn grid(&self, portions: u32) -> LaunchGrid {
        LaunchGrid::line(portions.max(1), WARP, 0)
    }
}

/// Little-endian word of up to four bytes.
fn word(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte))
}

/// A chain of `iterations` steps, half of C. Wellons' mixer "lowbias32" each, from the sum of the unit's words.
fn burn(unit: &[u8], iterations: u32) -> u32 {
    let seed = unit.chunks(4).fold(0, |sum, bytes| sum ^ word(bytes));
    (0..iterations).fold(seed, |value, _| (value ^ value >> 15).wrapping_mul(0x2c1b_3c6d))
}
