//! How large a chunk of an unplanned copy is: what an engine gets at once, and others wait for.
//!
//! Planned steps have the sizes for which the schedulability test finds the largest margin instead
//! (`analysis/schedulability/chunks.rs`), and tasks those of their engine locks.

use crate::models::transfer::{Method, Tuning};
use crate::units::Bytes;

/// What a guest's CUDA stream may have under way without being bulk, and what an engine is given of bulk between two words that let others
/// in: an engine serves 4 MiB in 80 us.
pub const STREAM_CHUNK: Bytes = Bytes(4 << 20);
/// From this size on chunks are as large as allowed; below, half of that keeps two of them busy.
const LARGE: u64 = 256 << 20;
/// Claims that one request makes on a buffer at most: chunks grow beyond it.
const CHUNKS_MAX: u64 = 1_024;
/// Chunks between two GPUs are this many times those between host and GPU: the link is seven times as fast.
const PEER_TIMES: u64 = 8;
/// Pages are pinned in quarters of the copy, within these: smaller ones spend their time in calls, larger ones hide less of it. A range
/// ends where a huge page does, so that none is smaller than the least.
const PINNED_PARTS: u64 = 4;
const PINNED_MIN: u64 = 4 << 20;
const PINNED_MAX: u64 = 64 << 20;
/// Ranges that are pinned meet at multiples of this: no two have a page in common, not even a huge one.
pub const PINNED_CUT: u64 = 2 << 20;

/// The chunk of a copy of `bytes` by `method`, where `most` is the largest that is allowed.
///
/// A short copy over an engine is one chunk while it is at most half of `most`, so that small copies of others wait little and the set-up
/// of each is hidden behind the one before. Staging has the size of its buffers, or less as far as pinned memory is short.
#[must_use]
pub fn chunk(method: Method, bytes: Bytes, tuning: Option<Tuning>, most: Bytes) -> Bytes {
    let over_engine = |most: u64| {
        let step = if bytes.0 >= LARGE { most } else { most.div_ceil(2) };
        step.max(bytes.0.div_ceil(CHUNKS_MAX))
    };
    let most = most.0.max(1);
    Bytes(match (method, tuning) {
        (Method::Dma | Method::Register | Method::Kernel, _) => over_engine(most),
        (Method::Peer, _) => over_engine(most.saturating_mul(PEER_TIMES)),
        (Method::Pinning, _) => {
            let most = most.clamp(PINNED_CUT, PINNED_MAX);
            (bytes.0 / PINNED_PARTS).clamp(PINNED_MIN.min(most), most)
        }
        (Method::Staged | Method::Multipath, Some(tuning)) => tuning.buffer.0,
        _ => bytes.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::transfer::Stores;

    const MIB: u64 = 1 << 20;

    #[test]
    fn short_copies_are_one_chunk_and_long_ones_no_more_than_can_be_claimed() {
        let most = Bytes(32 * MIB);
        let dma = |bytes| chunk(Method::Dma, Bytes(bytes), None, most).0;
        assert_eq!([0, MIB, 255 * MIB].map(dma), [16 * MIB; 3]);
        assert_eq!([256 * MIB, 1 << 30, 1 << 36].map(dma), [32 * MIB, 32 * MIB, 64 * MIB]);
        assert_eq!(chunk(Method::Peer, Bytes(1 << 30), None, most), Bytes(256 * MIB));
        assert_eq!(chunk(Method::Dma, Bytes(5), None, Bytes(0)), Bytes(1), "a chunk has a byte at least");
    }

    #[test]
    fn pinning_takes_a_quarter_and_staging_a_buffer() {
        let pinning = |bytes| chunk(Method::Pinning, Bytes(bytes), None, Bytes(32 * MIB)).0;
        assert_eq!([MIB, 64 * MIB, 1 << 30].map(pinning), [4 * MIB, 16 * MIB, 32 * MIB]);
        let tuning = Tuning { threads: 4, buffer: Bytes(8 * MIB), stores: Stores::Plain, in_flight: 3 };
        assert_eq!(chunk(Method::Staged, Bytes(1 << 30), Some(tuning), Bytes(32 * MIB)), Bytes(8 * MIB));
        assert_eq!(chunk(Method::Pageable, Bytes(5), None, Bytes(1)), Bytes(5), "the driver cuts its own copies");
    }
}
