//! Bytes that follow from a key and their offset: what is sent where nobody's data is, so that what arrives can be compared.

use headway_os::threads;

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// Below this, one thread compares faster than several.
const ALONE_MAX: usize = 4 << 20;
/// Threads that compare.
const THREADS_MAX: usize = 8;

/// A permutation of 64 bits whose values look random: the output function of SplitMix64.
pub const fn mixed(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The eight bytes from offset `8 word` on.
const fn word(base: u64, word: u64) -> [u8; 8] {
    mixed(base.wrapping_add(word.wrapping_mul(GOLDEN))).to_le_bytes()
}

/// Writes the bytes of `key` from offset `from` on.
pub fn fill(key: u64, from: usize, into: &mut [u8]) {
    let base = mixed(key);
    let (mut at, mut rest) = (from, into);
    while !rest.is_empty() {
        let skip = at % 8;
        let bytes = word(base, (at / 8) as u64);
        let len = rest.len().min(8 - skip);
        let (now, later) = std::mem::take(&mut rest).split_at_mut(len);
        now.copy_from_slice(&bytes[skip..skip + len]);
        (at, rest) = (at + len, later);
    }
}

/// The offset of the first of `bytes`, which begin at offset `from`, that is not the one of `key`.
#[must_use]
pub fn first_difference(key: u64, from: usize, bytes: &[u8]) -> Option<usize> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    if bytes.len() < ALONE_MAX || threads == 1 {
        return difference(key, from, bytes);
    }
    let part = bytes.len().div_ceil(threads);
    let parts = bytes.chunks(part).enumerate();
    std::thread::scope(|scope| {
        let found: Vec<_> = parts
            .map(|(at, bytes)| {
                threads::without_signals(|| scope.spawn(move || difference(key, from + at * part, bytes)))
            })
            .collect();
        found
            .into_iter()
            .filter_map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .min()
    })
}

fn difference(key: u64, from: usize, bytes: &[u8]) -> Option<usize> {
    let base = mixed(key);
    // Up to the next word byte by byte, then word by word; the last one may be short.
    let lead = from.next_multiple_of(8).saturating_sub(from).min(bytes.len());
    let (first, words) = bytes.split_at(lead);
    let expected = |offset: usize| word(base, (offset / 8) as u64)[offset % 8];
    if let Some(at) = (0..lead).find(|&at| first[at] != expected(from + at)) {
        return Some(from + at);
    }
    let start = from + lead;
    let differs = |(number, found): (usize, &[u8])| {
        let sent = word(base, (start / 8 + number) as u64);
        found != &sent[..found.len()]
    };
    let number = words.chunks(8).enumerate().position(differs)?;
    (start + number * 8..start + words.len()).find(|&at| words[at - start] != expected(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_follow_from_key_and_offset_wherever_they_are_cut() {
        let mut whole = vec![0; 1000];
        fill(3, 0, &mut whole);
        for (from, to) in [(0, 1000), (1, 9), (7, 8), (8, 16), (13, 999), (992, 1000), (500, 500)] {
            let mut part = vec![0; to - from];
            fill(3, from, &mut part);
            assert_eq!(part, whole[from..to], "{from}..{to}");
            assert_eq!(first_difference(3, from, &part), None, "{from}..{to}");
            if from < to {
                assert!(first_difference(4, from, &part).is_some());
                assert!(first_difference(3, from + 1, &part).is_some());
            }
        }
    }

    #[test]
    fn the_first_wrong_byte_is_named_by_one_thread_and_by_several() {
        for len in [1000, 2 * ALONE_MAX + 5] {
            let mut bytes = vec![0; len];
            fill(9, 3, &mut bytes);
            for at in [0, 1, 7, 8, len / 2, len - 1] {
                bytes[at] ^= 1;
                assert_eq!(first_difference(9, 3, &bytes), Some(3 + at), "{len}");
                bytes[len - 1] ^= 2;
                assert_eq!(first_difference(9, 3, &bytes), Some(3 + at), "{len}");
                bytes[len - 1] ^= 2;
                bytes[at] ^= 1;
            }
            assert_eq!(first_difference(9, 3, &bytes), None);
        }
    }
}
