//! The packed block: what one pipeline cycle moves in one copy.
//!
//! A pipeline serves several streams. What they gathered in a cycle lies in one contiguous block, a *portion* for each, so that one
//! copy and one kernel launch serve them all:
//!
//! ```text
//! 0        u32 magic   u32 portions   u64 cycle
//! 16       portions x { u32 offset, u32 bytes }          offsets count from the start of the block
//! ...      padding to 16, then each portion's data, each starting at a multiple of 16
//! ```
//!
//! All words are little endian. The header travels with the data, so that a kernel needs no second copy to learn the
//! sizes, and the receiver can see that a block of another cycle has arrived in this one's place.

pub use crate::files::workload::LAUNCH_ALIGN;
use crate::units::Bytes;

/// First word of every block.
pub const MAGIC: u32 = u32::from_le_bytes(*b"HWB1");
/// Portion data starts at multiples of this.
pub const ALIGN: usize = 16;
/// Bytes of the header before the portions' entries: magic number, portions, cycle.
pub const HEADER_FIXED_BYTES: usize = 16;
/// Bytes of the header for each portion: offset, bytes.
pub const HEADER_PORTION_BYTES: usize = 8;

/// A block that cannot be written or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// The buffer ends before the block does.
    #[error("a block of {needed} bytes does not fit a buffer of {available}")]
    TooSmall {
        /// Bytes of the block.
        needed: u64,
        /// Bytes of the buffer.
        available: u64,
    },
    /// Offsets are 32 bits wide.
    #[error("a block of {0} bytes is larger than 4 GiB - 1; use fewer streams per pipeline or shorter cycles")]
    TooLarge(u64),
    /// The first word is not [`MAGIC`], or a portion lies outside the block.
    #[error("the buffer holds no valid block: {0}")]
    Corrupt(&'static str),
}

/// Where the data of the first portion starts.
#[must_use]
pub const fn header_bytes(portions: usize) -> usize {
    (HEADER_FIXED_BYTES + HEADER_PORTION_BYTES * portions).next_multiple_of(ALIGN)
}

/// Size of a block whose portions hold `lens` bytes.
pub fn block_bytes(lens: impl IntoIterator<Item = u64>) -> Bytes {
    let (mut portions, mut data) = (0, 0u64);
    for len in lens {
        portions += 1;
        data = data.saturating_add(len.checked_next_multiple_of(ALIGN as u64).unwrap_or(u64::MAX));
    }
    Bytes((header_bytes(portions) as u64).saturating_add(data))
}

/// Writes the header for portions of `lens` bytes into `buffer` and returns the size of the whole block.
///
/// # Errors
/// [`BlockError::TooSmall`] or [`BlockError::TooLarge`]; the buffer is then unchanged.
pub fn write_header(buffer: &mut [u8], cycle: u64, lens: &[u64]) -> Result<Bytes, BlockError> {
    let total = block_bytes(lens.iter().copied());
    if total.0 > u64::from(u32::MAX) {
        return Err(BlockError::TooLarge(total.0));
    }
    if total.0 > buffer.len() as u64 {
        return Err(BlockError::TooSmall { needed: total.0, available: buffer.len() as u64 });
    }
    let header = header_bytes(lens.len());
    buffer[..header].fill(0);
    buffer[..4].copy_from_slice(&MAGIC.to_le_bytes());
    buffer[4..8].copy_from_slice(&(lens.len() as u32).to_le_bytes());
    buffer[8..16].copy_from_slice(&cycle.to_le_bytes());
    let mut offset = header;
    for (portion, &len) in lens.iter().enumerate() {
        let at = HEADER_FIXED_BYTES + HEADER_PORTION_BYTES * portion;
        buffer[at..at + 4].copy_from_slice(&(offset as u32).to_le_bytes());
        buffer[at + 4..at + 8].copy_from_slice(&(len as u32).to_le_bytes());
        offset += (len as usize).next_multiple_of(ALIGN);
    }
    Ok(total)
}

/// A block that was checked: every portion lies inside the buffer, behind the header, and no two overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    /// The cycle the block belongs to.
    pub cycle: u64,
    /// Byte range of each portion in the block.
    pub portions: Vec<std::ops::Range<usize>>,
}

impl BlockHeader {
    /// Reads and checks the header at the start of `buffer`.
    ///
    /// # Errors
    /// [`BlockError::Corrupt`] with what is wrong.
    pub fn read(buffer: &[u8]) -> Result<Self, BlockError> {
        let word = |at: usize| buffer.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        if word(0) != Some(MAGIC) {
            return Err(BlockError::Corrupt("the first word is not the block's magic number"));
        }
        let short = BlockError::Corrupt("it ends inside the header");
        let count = word(4).ok_or_else(|| short.clone())? as usize;
        let cycle =
            u64::from(word(8).ok_or_else(|| short.clone())?) | u64::from(word(12).ok_or_else(|| short.clone())?) << 32;
        if count > (buffer.len() - HEADER_FIXED_BYTES) / HEADER_PORTION_BYTES {
            return Err(short);
        }
        let mut portions = Vec::with_capacity(count);
        let mut end = header_bytes(count);
        for portion in 0..count {
            let at = HEADER_FIXED_BYTES + HEADER_PORTION_BYTES * portion;
            let (Some(offset), Some(len)) = (word(at), word(at + 4)) else { return Err(short) };
            let (offset, len) = (offset as usize, len as usize);
            if offset < end || offset % ALIGN != 0 || len > buffer.len().saturating_sub(offset) {
                return Err(BlockError::Corrupt("a portion lies outside the block or over another one"));
            }
            end = offset + len;
            portions.push(offset..end);
        }
        Ok(Self { cycle, portions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut buffer = vec![0xAA; 512];
        let total = write_header(&mut buffer, 7, &[16, 0, 33]).unwrap();
        assert_eq!(total, Bytes(48 + 16 + 48));
        let header = BlockHeader::read(&buffer).unwrap();
        assert_eq!(header, BlockHeader { cycle: 7, portions: vec![48..64, 64..64, 64..97] });
    }

    #[test]
    fn a_buffer_that_is_too_small_stays_unchanged() {
        let mut buffer = vec![0xAA; 63];
        let error = write_header(&mut buffer, 0, &[32]).unwrap_err();
        assert_eq!(error, BlockError::TooSmall { needed: 64, available: 63 });
        assert!(buffer.iter().all(|&b| b == 0xAA));
    }

    #[test]
    fn damaged_headers_are_refused_and_never_panic() {
        let mut good = vec![0; 96];
        write_header(&mut good, 1, &[16, 16]).unwrap();
        for at in 0..32 {
            for flip in [0x01, 0x80, 0xFF] {
                let mut bad = good.clone();
                bad[at] ^= flip;
                if let Ok(header) = BlockHeader::read(&bad) {
                    assert!(header.portions.iter().all(|portion| portion.end <= bad.len()), "byte {at} ^ {flip:#x}");
                }
            }
        }
        for len in 0..32 {
            assert!(BlockHeader::read(&good[..len]).is_err(), "{len} bytes");
        }
    }
}
