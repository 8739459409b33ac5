//! How a long copy is cut into chunks (specification of transfers, 2.3).
//!
//! A chunk fills at most one pinned buffer. All but the first start on a boundary of the *caller's* memory, so that no two
//! threads share what lies inside one: 64 bytes on the way in, a page on the way out, a huge page where buffers allow it.

use std::ops::Range;

use super::Direction;
use crate::units::Bytes;

/// A cache line; threads that only read share nothing larger.
const LINE: u64 = 64;
/// A page: what one thread faults in as it writes.
const PAGE: u64 = 4 << 10;
const HUGE_PAGE: u64 = 2 << 20;
/// From this size on a copy to the host is cut on huge pages.
const HUGE_FROM: u64 = 64 << 20;

/// The chunks of one copy: disjoint, ascending, together exactly all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    total: u64,
    first: u64,
    step: u64,
}

impl Geometry {
    /// Cuts `total` bytes that start at `address` of the caller's memory (only its remainder by 2 MiB matters) for buffers
    /// of `buffer` bytes; a buffer of no bytes counts as one of one byte.
    ///
    /// What fits one buffer is one chunk. A buffer that is no multiple of the boundary is used up to the last one within it;
    /// one smaller than the boundary falls back to the next smaller boundary.
    #[must_use]
    pub fn new(direction: Direction, address: u64, total: Bytes, buffer: Bytes) -> Self {
        let (total, buffer) = (total.0, buffer.0.max(1));
        if total <= buffer {
            return Self { total, first: total, step: buffer };
        }
        let to_host = direction == Direction::D2h;
        let boundary = if to_host && total >= HUGE_FROM && buffer.is_multiple_of(HUGE_PAGE) {
            HUGE_PAGE
        } else if to_host && buffer >= PAGE {
            PAGE
        } else if buffer >= LINE {
            LINE
        } else {
            1
        };
        let step = buffer - buffer % boundary;
        Self { total, first: step - address % boundary, step }
    }

    /// Chunks; none for a copy of no bytes.
    #[must_use]
    pub const fn count(&self) -> u64 {
        if self.total == 0 { 0 } else { 1 + (self.total - self.first).div_ceil(self.step) }
    }

    /// The bytes of chunk `index`, as offsets from the start of the copy; empty and at its end from [`Geometry::count`] on.
    #[must_use]
    pub fn chunk(&self, index: u64) -> Range<u64> {
        self.start(index)..self.start(index.saturating_add(1))
    }

    fn start(&self, index: u64) -> u64 {
        if index == 0 {
            return 0;
        }
        let start = (index - 1).checked_mul(self.step).and_then(|rest| rest.checked_add(self.first));
        start.map_or(self.total, |start| start.min(self.total))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn chunks(direction: Direction, address: u64, total: u64, buffer: u64) -> Vec<Range<u64>> {
        let geometry = Geometry::new(direction, address, Bytes(total), Bytes(buffer));
        (0..geometry.count()).map(|i| geometry.chunk(i)).collect()
    }

    #[test]
    fn a_copy_of_no_bytes_has_no_chunk_and_one_that_fits_a_buffer_has_one() {
        assert_eq!(chunks(Direction::H2d, 5, 0, MIB), []);
        let one = |total| Geometry::new(Direction::H2d, 5, Bytes(total), Bytes(MIB));
        assert_eq!((one(1).count(), one(1).chunk(0)), (1, 0..1));
        assert_eq!((one(MIB).count(), one(MIB).chunk(0)), (1, 0..MIB));
    }

    #[test]
    fn the_first_chunk_is_shortened_to_the_next_boundary_of_the_callers_memory() {
        assert_eq!(chunks(Direction::H2d, 0, 300, 128), [0..128, 128..256, 256..300]);
        assert_eq!(chunks(Direction::H2d, 3, 300, 128), [0..125, 125..253, 253..300]);
        assert_eq!(chunks(Direction::D2h, 0x1003, 9000, 8192), [0..8189, 8189..9000]);
        let huge = chunks(Direction::D2h, 2 * MIB - 1, 64 * MIB, 4 * MIB);
        assert_eq!(huge[..2], [0..2 * MIB + 1, 2 * MIB + 1..6 * MIB + 1]);
    }

    #[test]
    fn huge_pages_need_a_large_copy_to_the_host_and_buffers_of_whole_huge_pages() {
        let second = |direction, total, buffer| chunks(direction, MIB + 1, total, buffer)[1].start;
        assert_eq!(second(Direction::D2h, 64 * MIB, 2 * MIB), MIB - 1);
        assert_eq!(second(Direction::D2h, 64 * MIB - 1, 2 * MIB), 2 * MIB - 1);
        assert_eq!(second(Direction::D2h, 64 * MIB, 3 * MIB), 3 * MIB - 1);
        assert_eq!(second(Direction::H2d, 64 * MIB, 2 * MIB), 2 * MIB - 1);
    }

    #[test]
    fn sizes_beyond_32_bits_are_cut_exactly() {
        let cut = Geometry::new(Direction::H2d, 0, Bytes((4 << 30) + 1), Bytes(4 * MIB));
        assert_eq!((cut.count(), cut.chunk(1024)), (1025, 4 << 30..(4 << 30) + 1));
        let largest = Geometry::new(Direction::H2d, 1, Bytes(u64::MAX), Bytes(u64::MAX - 1));
        assert_eq!(largest.chunk(largest.count() - 1).end, u64::MAX);
        assert_eq!(largest.chunk(u64::MAX), u64::MAX..u64::MAX);
    }

    fn direction() -> impl Strategy<Value = Direction> {
        prop_oneof![Just(Direction::H2d), Just(Direction::D2h), Just(Direction::Peer)]
    }

    proptest! {
        #[test]
        fn chunks_cover_exactly_fit_their_buffer_and_start_on_one_boundary(
            direction in direction(), address: u64, total in 0..200 * MIB,
            buffer in prop_oneof![(1..9_u64).prop_map(|n| n * MIB), 300_000..9 * MIB],
        ) {
            let all = chunks(direction, address, total, buffer);
            let mut end = 0;
            for chunk in &all {
                prop_assert_eq!(chunk.start, end);
                prop_assert!(chunk.end > chunk.start && chunk.end - chunk.start <= buffer);
                end = chunk.end;
            }
            prop_assert_eq!(end, total);
            let boundary = if direction == Direction::D2h { PAGE } else { LINE };
            for chunk in all.iter().skip(1) {
                prop_assert_eq!((address % HUGE_PAGE + chunk.start) % boundary, 0);
            }
        }

        #[test]
        fn small_buffers_cover_exactly_too(direction in direction(), address: u64, total in 0..9_000_u64, buffer in 0..200_u64) {
            let all = chunks(direction, address, total, buffer);
            prop_assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start));
            prop_assert!(all.iter().all(|chunk| !chunk.is_empty() && chunk.end - chunk.start <= buffer.max(1)));
            prop_assert_eq!(all.iter().map(|chunk| chunk.end - chunk.start).sum::<u64>(), total);
        }

        #[test]
        fn any_numbers_give_ranges_in_order(direction in direction(), address: u64, total: u64, buffer: u64, index: u64) {
            let cut = Geometry::new(direction, address, Bytes(total), Bytes(buffer));
            let (here, next) = (cut.chunk(index), cut.chunk(index.saturating_add(1)));
            prop_assert!(here.start <= here.end && here.end <= total);
            prop_assert!(index == u64::MAX || here.end == next.start);
            prop_assert_eq!(here.is_empty(), index >= cut.count());
        }
    }
}
