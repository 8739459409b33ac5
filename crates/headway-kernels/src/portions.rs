//! What the CPU forms share: checked access to the portions of a block.

use std::ops::Range;

use headway_core::plan::block::{ALIGN, BlockHeader, HEADER_FIXED_BYTES, HEADER_PORTION_BYTES, header_bytes};
use headway_device::work::WorkError;

/// Threads of a block in the PTX forms: each portion is served by one warp.
pub(crate) const WARP: u32 = 32;

pub(crate) fn bad_block(work: &str, reason: impl Into<String>) -> WorkError {
    WorkError::BadBlock { work: work.to_owned(), reason: reason.into() }
}

/// Checks `input` against the sizes of `output` and `state`, copies the header, and returns the portions.
///
/// After it, `output` can take every portion and the padding behind it, and `state` has `state_bytes` for each.
pub(crate) fn begin(
    kernel: &'static str,
    input: &[u8],
    output: &mut [u8],
    state: &[u8],
    state_bytes: usize,
) -> Result<Vec<Range<usize>>, WorkError> {
    let portions = BlockHeader::read(input).map_err(|error| bad_block(kernel, error.to_string()))?.portions;
    let needed = portions.last().map_or(header_bytes(0), |portion| portion.end.next_multiple_of(ALIGN));
    if output.len() < needed {
        return Err(bad_block(kernel, format!("its output needs {needed} bytes and has {}", output.len())));
    }
    let states = state.len() / state_bytes;
    if states < portions.len() {
        return Err(bad_block(kernel, format!("it has {} portions and the state is for {states}", portions.len())));
    }
    let words = HEADER_FIXED_BYTES + HEADER_PORTION_BYTES * portions.len();
    output[..words].copy_from_slice(&input[..words]);
    output[words..header_bytes(portions.len())].fill(0);
    Ok(portions)
}

/// Zeros from the end of `portion` to the next multiple of [`ALIGN`].
pub(crate) fn pad(output: &mut [u8], portion: &Range<usize>) {
    output[portion.end..portion.end.next_multiple_of(ALIGN)].fill(0);
}
