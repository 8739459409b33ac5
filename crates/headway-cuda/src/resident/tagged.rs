//! Words that say for themselves that they have arrived: four bytes of data below a tag, as in NCCL's LL protocol. The layout is
//! that of `kernels/resident.cuh`.
//!
//! Bytes that a device writes into host memory arrive in any order. A flag behind them needs a fence for the whole system on the
//! device, which waits until all of them have arrived: the largest part of what a small copy takes where GPUs are connected. Tags
//! cost twice the bytes and no fence.

use headway_device::DeviceError;
use headway_device::buffer::Memory;
#[cfg(target_arch = "x86_64")]
use headway_os::copy::LINE_BYTES;

use crate::pool::{Pool, SlabPiece};

/// The longest copy that is tagged.
const BYTES_MAX: usize = 8 << 10;
/// In a command's number of bytes: it is tagged.
pub(super) const FLAG: u64 = 1 << 47;
/// In every tag, so that memory that was only cleared has none; below it the low bits of the command's number.
const TAG: u32 = 1 << 31;
/// Commands are counted from the one behind this, so that their tags repeat soon, and every test sees what happens then.
pub(super) const BEFORE_FIRST: u64 = TAG as u64 - 64;
/// Data in a word.
const DATA_BYTES: usize = 4;
/// The words of the longest copy.
const WORDS_BYTES: usize = BYTES_MAX / DATA_BYTES * size_of::<u64>();
/// Words that are looked at together.
const GROUP: usize = 4;
/// Words that are prefetched, 24 lines: without, and with 8 to 16 lines, a copy of 8 KiB took longer.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 24 * LINE_BYTES / size_of::<u64>();

/// Whether a copy of `bytes` bytes is tagged.
pub(super) const fn suits(bytes: usize) -> bool {
    0 < bytes && bytes <= BYTES_MAX
}

/// Where tagged words arrive: pinned memory in which nothing else is ever written.
pub(super) struct Tagged<M = SlabPiece> {
    memory: M,
    /// Tags repeat when the commands' numbers exceed their bits; these are the bits above, of all words that are there.
    round: u64,
}

impl Tagged {
    pub(super) fn new(pool: &Pool) -> Result<Self, DeviceError> {
        Ok(Self::over(pool.take(WORDS_BYTES)?))
    }
}

impl<M: Memory> Tagged<M> {
    /// In `memory`, which is zeroed.
    fn over(memory: M) -> Self {
        assert!(memory.bytes() >= WORDS_BYTES, "there is room for the words of the longest copy");
        Self { memory, round: round(BEFORE_FIRST) }
    }

    /// The device's address of the words of command `sequence`, which is about to be posted. No other may be under way whose
    /// words have not all been taken.
    pub(super) fn for_command(&mut self, sequence: u64) -> u64 {
        let round = round(sequence);
        if round != self.round {
            // SAFETY: the memory is this long, and written by the device on command only.
            unsafe { self.memory.base().write_bytes(0, WORDS_BYTES) };
            self.round = round;
        }
        self.memory.base().addr() as u64
    }

    /// Takes what has arrived of command `sequence` from its byte `at` on, a multiple of four: into `to`, as far as it goes. Returns
    /// how many bytes; less than there is room for if a word is missing.
    pub(super) fn take(&self, sequence: u64, at: usize, to: &mut [u8]) -> usize {
        assert!(
            at.is_multiple_of(DATA_BYTES) && at + to.len() <= BYTES_MAX,
            "words are taken whole, and within the memory"
        );
        let words = self.memory.base().cast::<u64>().wrapping_add(at / DATA_BYTES);
        // SAFETY: the words of all of `to` lie within the memory; the device writes each of them in one piece.
        unsafe { take(words, sequence as u32 | TAG, to) }
    }
}

/// What of a command's number is not in its tag.
const fn round(sequence: u64) -> u64 {
    sequence / TAG as u64
}

/// [`Tagged::take`] from `words`.
///
/// # Safety
/// There is a word at `words`, aligned, for every four bytes of `to`, the last of which may be fewer.
unsafe fn take(words: *const u64, tag: u32, to: &mut [u8]) -> usize {
    let mut taken = 0;
    for chunk in to.chunks_exact_mut(GROUP * DATA_BYTES) {
        // SAFETY: the caller vouches for the words.
        let Some(data) = (unsafe { group(words.add(taken / DATA_BYTES), tag) }) else { break };
        chunk.copy_from_slice(&data);
        taken += chunk.len();
    }
    // Of a group that is not whole what there is of it.
    for chunk in to[taken..].chunks_mut(DATA_BYTES) {
        // SAFETY: the caller vouches for the words.
        let Some(data) = (unsafe { single(words.add(taken / DATA_BYTES), tag) }) else { break };
        chunk.copy_from_slice(&data[..chunk.len()]);
        taken += chunk.len();
    }
    taken
}

/// The data of a word, if it has arrived.
///
/// # Safety
/// The word is there.
unsafe fn single(word: *const u64, tag: u32) -> Option<[u8; DATA_BYTES]> {
    // SAFETY: the caller vouches for the word. Volatile, as the device writes it at any time.
    let word = unsafe { word.read_volatile() };
    ((word >> 32) as u32 == tag).then(|| (word as u32).to_le_bytes())
}

/// The data of the words of a group, if all of them have arrived.
///
/// # Safety
/// As many words are there.
#[cfg(target_arch = "x86_64")]
unsafe fn group(words: *const u64, tag: u32) -> Option<[u8; GROUP * DATA_BYTES]> {
    use std::arch::x86_64::{
        _MM_HINT_T0, _mm_castps_si128, _mm_castsi128_ps, _mm_cmpeq_epi32, _mm_movemask_epi8, _mm_prefetch,
        _mm_set_epi64x, _mm_set1_epi32, _mm_shuffle_ps, _mm_storeu_si128,
    };
    let mut data = [0; GROUP * DATA_BYTES];
    // SAFETY: the caller vouches for the words, and every x86-64 CPU has SSE2; a prefetch can neither fault nor change anything.
    // Volatile, as the device writes them at any time.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(words.wrapping_add(AHEAD).cast());
        let word = |at| words.add(at).read_volatile().cast_signed();
        let pair = |at| _mm_castsi128_ps(_mm_set_epi64x(word(at + 1), word(at)));
        let (low, high) = (pair(0), pair(2));
        let tags = _mm_castps_si128(_mm_shuffle_ps::<0b11_01_11_01>(low, high));
        if _mm_movemask_epi8(_mm_cmpeq_epi32(tags, _mm_set1_epi32(tag.cast_signed()))) != 0xffff {
            return None;
        }
        _mm_storeu_si128(data.as_mut_ptr().cast(), _mm_castps_si128(_mm_shuffle_ps::<0b10_00_10_00>(low, high)));
    }
    Some(data)
}

/// # Safety
/// As many words are there.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn group(words: *const u64, tag: u32) -> Option<[u8; GROUP * DATA_BYTES]> {
    let mut data = [0; GROUP * DATA_BYTES];
    for (at, data) in data.chunks_exact_mut(DATA_BYTES).enumerate() {
        // SAFETY: the caller vouches for the words.
        data.copy_from_slice(&unsafe { single(words.add(at), tag) }?);
    }
    Some(data)
}

#[cfg(test)]
mod tests {
    use headway_device::buffer::HeapMemory;

    use super::*;

    const OURS: u32 = 7 | TAG;

    /// The words of `data` as a device would write them.
    fn words(data: &[u8], tag: u32) -> Vec<u64> {
        let word = |chunk: &[u8]| {
            let mut bytes = [0; DATA_BYTES];
            bytes[..chunk.len()].copy_from_slice(chunk);
            u64::from(tag) << 32 | u64::from(u32::from_le_bytes(bytes))
        };
        data.chunks(DATA_BYTES).map(word).collect()
    }

    fn taken(words: &[u64], bytes: usize) -> (usize, Vec<u8>) {
        let mut to = vec![0xee; bytes];
        assert!(words.len() >= bytes.div_ceil(DATA_BYTES));
        // SAFETY: there are words for all bytes.
        let taken = unsafe { take(words.as_ptr(), OURS, &mut to) };
        (taken, to)
    }

    /// Writes `data` as the device does for command `sequence`.
    fn write(tagged: &mut Tagged<HeapMemory>, sequence: u64, data: &[u8]) {
        let address = tagged.for_command(sequence);
        assert_eq!(address, tagged.memory.base().addr() as u64);
        for (at, word) in words(data, sequence as u32 | TAG).into_iter().enumerate() {
            // SAFETY: the memory has a word for every four bytes of `data`, and nobody else knows of it.
            unsafe { tagged.memory.base().cast::<u64>().add(at).write(word) };
        }
    }

    #[test]
    fn words_of_an_earlier_round_are_never_taken_for_those_of_a_command_with_the_same_tag() {
        let mut tagged = Tagged::over(HeapMemory::pageable(WORDS_BYTES).unwrap());
        let data: Vec<u8> = (0..=u8::MAX).collect();
        let mut to = vec![0; data.len()];
        let first = BEFORE_FIRST + 1;
        for sequence in [first, first + u64::from(TAG), first + 3 * u64::from(TAG)] {
            tagged.for_command(sequence);
            assert_eq!(tagged.take(sequence, 0, &mut to), 0, "nothing of command {sequence} has arrived yet");
            write(&mut tagged, sequence, &data);
            assert_eq!(tagged.take(sequence, 0, &mut to), data.len());
            assert_eq!(to, data);
        }
    }

    #[test]
    fn every_length_is_taken_whole() {
        let data: Vec<u8> = (0..200).map(|at| at as u8 ^ 0x5a).collect();
        for bytes in 0..data.len() {
            assert_eq!(taken(&words(&data[..bytes], OURS), bytes), (bytes, data[..bytes].to_vec()));
        }
    }

    #[test]
    fn what_is_behind_a_missing_word_waits_for_it() {
        let data: Vec<u8> = (1..=103).collect();
        for missing in 0..26 {
            for stale in [0, u64::from(6 | TAG) << 32 | 0x0403_0201, u64::from(7_u32) << 32 | 0x0403_0201] {
                let mut words = words(&data, OURS);
                words[missing] = stale;
                let (found, to) = taken(&words, data.len());
                assert_eq!(found, missing * DATA_BYTES, "{missing}");
                assert_eq!(to[..found], data[..found]);
                assert!(
                    to[found..].iter().all(|byte| *byte == 0xee),
                    "{missing}: nothing of what is missing is written"
                );
            }
        }
    }
}
