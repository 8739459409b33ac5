//! The chunks of a staged copy: even ones, with small ones where the pipeline fills or runs dry.

use std::ops::Range;

use super::StagingDirection;
use crate::models::transfer::Direction;
use crate::models::transfer::Geometry;
use crate::units::Bytes;

/// The smallest chunk of a ramp: below it an engine's set-up weighs more than the wait it saves. The second is for workers
/// that share it.
const RAMP_FROM: u64 = 256 << 10;
const RAMP_FROM_SHARED: u64 = 512 << 10;
/// Sizes of a ramp are multiples of it.
const RAMP_GRAIN: u64 = 64 << 10;
/// On the way in, chunks of a ramp have no parts smaller than this but the last: with more, workers that have just been woken wait
/// for each other at the lock, and rather begin the next chunk.
const RAMP_PART_MIN: u64 = 128 << 10;
/// Boundary in the caller's memory on the way in.
const LINE: u64 = 64;
/// Boundary in the caller's memory on the way out.
const PAGE: u64 = 4 << 10;
/// Boundary in the caller's memory where pages appear as they are written, and are huge.
const HUGE_PAGE: u64 = 2 << 20;

/// How chunks grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ramp {
    /// Chunks of each size.
    round: u32,
    /// The next size in percent of one.
    growth: u32,
    /// The first size.
    from: u64,
}

impl Ramp {
    /// For `workers` workers of all links together, each with chunks of its own: a round of one chunk each, then of twice
    /// the size.
    #[must_use]
    pub const fn own(workers: u32) -> Self {
        Self { round: workers, growth: 200, from: RAMP_FROM }
    }

    /// For workers that share the chunks of each of `links` links: each of twice the size. Steps by a quarter kept the engine
    /// no busier, for each chunk costs it some microseconds.
    #[must_use]
    pub const fn shared(links: u32) -> Self {
        Self { round: links, growth: 200, from: RAMP_FROM_SHARED }
    }
}

/// How one staged copy is cut.
///
/// With a ramp, chunks grow from 256 or 512 KiB up to the buffer: on the way in at the start, where the engine waits for the
/// first chunks; on the way out at the end, where the caller waits for the last ones. A copy too short for the largest size
/// stays at a smaller one. A ramp on the way out keeps to pages, not to huge pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cuts {
    flow: StagingDirection,
    total: u64,
    /// Parts meet at multiples of this in the caller's memory.
    grain: u64,
    /// Offset of the copy's start behind such a multiple.
    phase: u64,
    /// No chunk is larger.
    bound: Bytes,
    even: Geometry,
    /// Of the ramp's chunks: ends before the even ones (in), starts behind them (out).
    ramp: Vec<u64>,
}

impl Cuts {
    /// Even chunks, as [`Geometry::new`] makes them; `address` is where the copy starts in the caller's memory.
    #[must_use]
    pub fn even(flow: StagingDirection, address: u64, total: Bytes, buffer: Bytes) -> Self {
        let even = Geometry::new(direction(flow), address, total, buffer);
        Self {
            flow,
            total: total.0,
            grain: PAGE,
            phase: address % PAGE,
            bound: buffer.min(total),
            even,
            ramp: Vec::new(),
        }
    }

    /// Chunks with a ramp; else as [`Cuts::even`].
    #[must_use]
    pub fn ramped(flow: StagingDirection, address: u64, total: Bytes, buffer: Bytes, ramp: Ramp) -> Self {
        let (sizes, size) = ramp.sizes(total.0, buffer.0);
        let mut at = 0;
        let mut ramp = Vec::with_capacity(sizes.len());
        match flow {
            StagingDirection::In => {
                let shorter = address % LINE;
                ramp.extend(sizes.iter().map(|size| {
                    at += size;
                    at - shorter
                }));
            }
            StagingDirection::Out => {
                // Every start on a page: all sizes but perhaps the last are pages, and the very last chunk is shorter.
                let phase = |start: u64| (address % PAGE + start % PAGE) % PAGE;
                ramp.extend(sizes.iter().map(|size| {
                    at += size;
                    let start = total.0 - at;
                    start + (PAGE - phase(start)) % PAGE
                }));
                ramp.reverse();
            }
        }
        let even = match flow {
            StagingDirection::In => {
                let start = ramp.last().copied().unwrap_or(0);
                Geometry::new(Direction::H2d, address.wrapping_add(start), Bytes(total.0 - start), Bytes(size))
            }
            StagingDirection::Out => {
                let end = ramp.first().copied().unwrap_or(total.0);
                Geometry::new(Direction::D2h, address, Bytes(end), Bytes(size))
            }
        };
        Self { flow, total: total.0, grain: PAGE, phase: address % PAGE, bound: Bytes(size).min(total), even, ramp }
    }

    /// Parts meet on huge pages, so that no two workers have the same huge page appear: each of them would fill it with zeros, and
    /// all but one in vain. `address` is where the copy starts in the caller's memory.
    #[must_use]
    pub fn with_huge_parts(self, address: u64) -> Self {
        Self { grain: HUGE_PAGE, phase: address % HUGE_PAGE, ..self }
    }

    /// Chunks; none for a copy of no bytes.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.even.count() + self.ramp.len() as u64
    }

    /// The bytes of chunk `index`, as offsets from the start of the copy; empty and at its end from [`Cuts::count`] on.
    #[must_use]
    pub fn chunk(&self, index: u64) -> Range<u64> {
        self.start(index)..self.start(index.saturating_add(1))
    }

    /// Part `part` of `parts` of chunk `index`, as offsets from the start of the copy. Parts meet on pages of the caller's
    /// memory (or huge pages), and cover the chunk; where there are fewer pages than parts some are empty, and in the ramp on the way in the last
    /// ones, if there would be less than 128 KiB for each.
    #[must_use]
    pub fn part(&self, index: u64, part: u32, parts: u32) -> Range<u64> {
        let Range { start, end } = self.chunk(index);
        let starts = self.flow == StagingDirection::In && index < self.ramp.len() as u64;
        let parts = if starts { u64::from(parts).min((end - start).div_ceil(RAMP_PART_MIN)) as u32 } else { parts };
        let edge = |part: u32| {
            let at = start + ((end - start) as u128 * u128::from(part) / u128::from(parts.max(1))) as u64;
            let behind = (self.phase + at % self.grain) % self.grain;
            if part == 0 {
                start
            } else if part >= parts {
                end
            } else {
                at.saturating_sub(behind).max(start)
            }
        };
        edge(part)..edge(part.saturating_add(1))
    }

    /// No chunk is larger than this.
    #[must_use]
    pub const fn bound(&self) -> Bytes {
        self.bound
    }

    /// Size of the copy.
    #[must_use]
    pub const fn total(&self) -> Bytes {
        Bytes(self.total)
    }

    fn start(&self, index: u64) -> u64 {
        let edge = |at: u64| usize::try_from(at).ok().and_then(|at| self.ramp.get(at)).copied();
        let ramp = self.ramp.len() as u64;
        match self.flow {
            StagingDirection::In if index == 0 => 0,
            StagingDirection::In => edge(index - 1).unwrap_or_else(|| {
                let even_at = self.ramp.last().copied().unwrap_or(0);
                even_at + self.even.chunk(index - ramp).start
            }),
            StagingDirection::Out => match index.checked_sub(self.even.count()) {
                None => self.even.chunk(index).start,
                Some(at) => edge(at).unwrap_or(self.total),
            },
        }
    }
}

impl Ramp {
    /// Sizes of the ramp's chunks from the small end, and of the even ones.
    fn sizes(self, total: u64, buffer: u64) -> (Vec<u64>, u64) {
        let round = u64::from(self.round.max(1));
        let mut size = self.from.min(buffer.max(1));
        let mut rest = total;
        let mut sizes: Vec<u64> = Vec::new();
        while size < buffer && rest / size >= 3 * round {
            sizes.extend((0..round).map(|_| size));
            rest -= round * size;
            size = (size * u64::from(self.growth) / 100).next_multiple_of(RAMP_GRAIN).min(buffer);
        }
        // Too little is left for two rounds of the next size.
        if rest / size < 2 * round
            && let Some(&last) = sizes.last()
        {
            size = last;
        }
        (sizes, size)
    }
}

const fn direction(flow: StagingDirection) -> Direction {
    match flow {
        StagingDirection::In => Direction::H2d,
        StagingDirection::Out => Direction::D2h,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn sizes(cuts: &Cuts) -> Vec<u64> {
        (0..cuts.count()).map(|index| cuts.chunk(index).end - cuts.chunk(index).start).collect()
    }

    #[test]
    fn a_ramp_doubles_from_256_kib_to_the_buffer_at_the_end_where_somebody_waits() {
        let into = sizes(&Cuts::ramped(StagingDirection::In, 0, Bytes(64 * MIB), Bytes(4 * MIB), Ramp::own(2)));
        let expected = [MIB / 4, MIB / 4, MIB / 2, MIB / 2, MIB, MIB, 2 * MIB, 2 * MIB, 4 * MIB];
        assert_eq!(into[..9], expected);
        let out = sizes(&Cuts::ramped(StagingDirection::Out, 0, Bytes(64 * MIB), Bytes(4 * MIB), Ramp::own(2)));
        let last: Vec<u64> = out.iter().rev().take(9).copied().collect();
        assert_eq!(last[..8], expected[..8]);
        assert_eq!(last[8], 64 * MIB - 30 * MIB / 4 - 14 * 4 * MIB);
    }

    #[test]
    fn shared_chunks_double_one_by_one() {
        let into = sizes(&Cuts::ramped(StagingDirection::In, 0, Bytes(64 * MIB), Bytes(4 * MIB), Ramp::shared(1)));
        let kib: Vec<u64> = into.iter().take(5).map(|size| size >> 10).collect();
        assert_eq!(kib, [512, 1024, 2048, 4096, 4096]);
    }

    #[test]
    fn a_short_copy_stays_at_a_size_that_gives_every_worker_two_chunks() {
        let cuts = Cuts::ramped(StagingDirection::In, 0, Bytes(16 * MIB), Bytes(4 * MIB), Ramp::own(6));
        assert_eq!(cuts.bound(), Bytes(MIB / 2));
        assert_eq!(cuts.count(), 6 + 6 + 23);
        assert_eq!(Cuts::ramped(StagingDirection::In, 0, Bytes(MIB / 4), Bytes(4 * MIB), Ramp::own(6)).count(), 1);
    }

    #[test]
    fn buffers_below_the_smallest_chunk_of_a_ramp_have_none() {
        for flow in [StagingDirection::In, StagingDirection::Out] {
            let ramped = Cuts::ramped(flow, 77, Bytes(MIB), Bytes(4096), Ramp::own(2));
            assert_eq!(sizes(&ramped), sizes(&Cuts::even(flow, 77, Bytes(MIB), Bytes(4096))));
        }
        assert_eq!(Cuts::ramped(StagingDirection::Out, 0, Bytes(0), Bytes(MIB), Ramp::own(2)).count(), 0);
    }

    #[test]
    fn parts_at_the_start_are_not_small_and_at_the_end_as_small_as_asked_for() {
        let parts = |flow, index: u64| {
            let cuts = Cuts::ramped(flow, 0, Bytes(256 * MIB), Bytes(8 * MIB), Ramp::shared(1));
            let index = if flow == StagingDirection::In { index } else { cuts.count() - 1 - index };
            (0..12).map(|part| cuts.part(index, part, 12)).filter(|part| !part.is_empty()).count()
        };
        assert_eq!([0, 1, 2, 5].map(|index| parts(StagingDirection::In, index)), [4, 8, 12, 12]);
        assert_eq!([0, 1, 2, 5].map(|index| parts(StagingDirection::Out, index)), [12; 4]);
    }

    proptest! {
        #[test]
        fn chunks_cover_exactly_fit_the_bound_and_start_on_boundaries(
            out: bool, address: u64, total in 0..300 * MIB, workers in 0..17_u32, ramp: bool, shares: bool, huge: bool,
            buffer in prop_oneof![(1..17_u64).prop_map(|n| n * MIB), 4096..9 * MIB],
        ) {
            let flow = if out { StagingDirection::Out } else { StagingDirection::In };
            let (total, buffer) = (Bytes(total), Bytes(buffer));
            let rounds = if shares { Ramp::shared(workers) } else { Ramp::own(workers) };
            let cuts = if ramp { Cuts::ramped(flow, address, total, buffer, rounds) }
                else { Cuts::even(flow, address, total, buffer) };
            let cuts = if huge { cuts.with_huge_parts(address) } else { cuts };
            let grain = if huge { HUGE_PAGE } else { PAGE };
            prop_assert!(cuts.bound() <= buffer);
            let boundary = if out { PAGE } else { LINE };
            let mut end = 0;
            for index in 0..cuts.count() {
                let chunk = cuts.chunk(index);
                prop_assert_eq!(chunk.start, end);
                prop_assert!(chunk.end > chunk.start && chunk.end - chunk.start <= cuts.bound().0);
                prop_assert!(index == 0 || (address % PAGE + chunk.start).is_multiple_of(boundary), "{:?}", chunk);
                let mut at = chunk.start;
                for part in 0..workers {
                    let piece = cuts.part(index, part, workers);
                    prop_assert!(piece.start == at && piece.end >= at);
                    let inside = at > chunk.start && at < chunk.end;
                    prop_assert!(!inside || (address % grain + at).is_multiple_of(grain));
                    at = piece.end;
                }
                prop_assert!(workers == 0 || at == chunk.end);
                end = chunk.end;
            }
            prop_assert_eq!(end, total.0);
            prop_assert_eq!(cuts.chunk(cuts.count()), total.0..total.0);
        }
    }
}
