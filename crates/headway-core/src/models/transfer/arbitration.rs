//! Who waits for whom at a copy engine: what makes it turn to another stream, how soon, and what that costs the bulk copy.
//!
//! Measured by `headway measure` for each GPU and direction (`[[arbitration]]` of a machine file). Where nobody measured, the
//! figures of the kept runs stand in for GPUs of the same class ([`built_in`]).

mod built_in;

use serde::{Deserialize, Serialize};

use super::Direction;
use crate::units::{Bytes, Nanos, PPM};

pub use self::built_in::built_in;

/// A small copy gets in if it waits for less than this part of the bulk copy.
const SOON: u64 = 10;
/// What a small copy may wait for beside a guest's bulk copies, at the 99th percentile, where nobody says: as beside chunks of 4 MiB
/// on an H100 or H200.
pub const WAIT_GUESTS: Nanos = Nanos(100_000);
/// How long small copies may wait beside Headway's own copies: as beside chunks of 16 MiB there, which cost 2 % of the rate.
pub const WAIT_COPIES: Nanos = Nanos(350_000);

/// What stands between two chunks of a bulk copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChunkGap {
    /// A word that the stream writes to memory, behind a barrier.
    Word,
    /// Nothing, but the next chunk is on another stream, which waits for an event of the first one.
    Streams,
}

impl ChunkGap {
    /// The two, as machine files call them.
    pub const WORDS: [(&'static str, Self); 2] = [("words", Self::Word), ("streams", Self::Streams)];
}

impl std::fmt::Display for ChunkGap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Word => "a written word behind each",
            Self::Streams => "on two streams by turns",
        })
    }
}

/// What small copies waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmallCopyWait {
    /// Number of samples.
    pub n: u32,
    pub median: Nanos,
    /// [`Nanos::MAX`] = not known.
    pub p99: Nanos,
    /// [`Nanos::MAX`] = not known.
    pub max: Nanos,
}

impl SmallCopyWait {
    /// The 99th percentile, or what stands nearest to it.
    #[must_use]
    pub fn long(&self) -> Nanos {
        if self.p99 != Nanos::MAX {
            self.p99
        } else if self.max != Nanos::MAX {
            self.max
        } else {
            self.median
        }
    }

    /// Sorted times in, figures out; a 99th percentile of fewer than a hundred is none. `None` without times.
    #[must_use]
    pub fn of(sorted: &[Nanos]) -> Option<Self> {
        let (median, max) = (*sorted.get(sorted.len() / 2)?, *sorted.last()?);
        let p99 = if sorted.len() >= 100 { sorted[(sorted.len() * 99).div_ceil(100) - 1] } else { Nanos::MAX };
        Some(Self { n: u32::try_from(sorted.len()).unwrap_or(u32::MAX), median, p99, max })
    }
}

/// A bulk copy cut into chunks, with small copies beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// Length of a chunk.
    pub chunk: Bytes,
    /// The bulk copy's rate, in parts per million of that of a whole one with nothing beside it.
    pub share_ppm: u64,
    /// What the small copies waited for.
    pub wait: SmallCopyWait,
}

/// One direction of one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineArbitration {
    /// A whole bulk copy: its length is the chunk.
    pub whole: Cut,
    /// What that takes with nothing beside it.
    pub time: Nanos,
    /// Chunks with a written word behind each, by length; empty = not measured, or it cannot be had here.
    pub words: Vec<Cut>,
    /// Chunks on two streams by turns, by length; empty = not measured, or there is no second stream.
    pub streams: Vec<Cut>,
    /// What a small copy of another process waits for beside a whole bulk copy; `None` = not measured.
    pub process: Option<SmallCopyWait>,
}

/// What lets small copies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArbitrationAdvice {
    /// Nothing is needed: they get in beside whole copies.
    Whole,
    /// They get in where bulk copies are queued in chunks.
    Chunks {
        /// What is between them.
        between: ChunkGap,
        /// How long they are, and what that gave.
        cut: Cut,
    },
    /// Nothing that was measured does.
    Nothing,
}

impl EngineArbitration {
    fn is_soon(&self, wait: &SmallCopyWait) -> bool {
        wait.median.0.saturating_mul(SOON) < self.time.0
    }

    /// Whether small copies get in beside whole ones.
    #[must_use]
    pub fn lets_in(&self) -> bool {
        self.is_soon(&self.whole.wait)
    }

    /// The cuts that let small copies in, by what is between the chunks.
    #[must_use]
    pub fn cuts(&self, between: ChunkGap) -> impl DoubleEndedIterator<Item = Cut> {
        let cuts = match between {
            ChunkGap::Word => &self.words,
            ChunkGap::Streams => &self.streams,
        };
        cuts.iter().filter(|cut| self.is_soon(&cut.wait)).copied()
    }

    /// The largest chunk beside which small copies wait for no more than `bound`, the smallest one that was measured if all let
    /// them wait for longer. Words are preferred, since they need one stream only.
    #[must_use]
    pub fn advise(&self, bound: Nanos) -> ArbitrationAdvice {
        if self.lets_in() {
            return ArbitrationAdvice::Whole;
        }
        let of = |between| {
            let fits = self.cuts(between).rfind(|cut| cut.wait.long() <= bound);
            let cut = fits.or_else(|| self.cuts(between).next())?;
            Some(ArbitrationAdvice::Chunks { between, cut })
        };
        of(ChunkGap::Word).or_else(|| of(ChunkGap::Streams)).unwrap_or(ArbitrationAdvice::Nothing)
    }
}

impl ArbitrationAdvice {
    /// The chunk behind which a word is to be written; `None` = copies stay whole.
    #[must_use]
    pub fn word(&self) -> Option<Bytes> {
        match self {
            Self::Chunks { between: ChunkGap::Word, cut } => Some(cut.chunk),
            _ => None,
        }
    }
}

impl std::fmt::Display for ArbitrationAdvice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Whole => f.write_str("whole copies let small ones in"),
            Self::Nothing => f.write_str("nothing that was measured lets small copies in before a whole one has ended"),
            Self::Chunks { between, cut: Cut { chunk, share_ppm, wait } } => {
                let share = *share_ppm as f64 / PPM as f64;
                write!(
                    f,
                    "chunks of {chunk}, {between}: small copies wait {} (99th percentile {}), the bulk copy keeps {share:.2} of its rate",
                    wait.median,
                    wait.long()
                )
            }
        }
    }
}

/// Directions that have an engine to and from the host.
pub const DIRECTIONS: [Direction; 2] = [Direction::H2d, Direction::D2h];

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(mib: u64, share_ppm: u64, median_us: u64) -> Cut {
        let median = Nanos(median_us * 1_000);
        Cut {
            chunk: Bytes(mib << 20),
            share_ppm,
            wait: SmallCopyWait { n: 100, median, p99: Nanos(median.0 * 2), max: Nanos::MAX },
        }
    }

    fn asked(whole_us: u64, words: &[Cut], streams: &[Cut]) -> EngineArbitration {
        EngineArbitration {
            whole: cut(1024, PPM, whole_us),
            time: Nanos(19_000_000),
            words: words.to_vec(),
            streams: streams.to_vec(),
            process: None,
        }
    }

    #[test]
    fn the_largest_chunk_within_the_bound_is_taken_and_words_come_before_streams() {
        let words = [cut(1, 800_000, 24), cut(4, 930_000, 80), cut(16, 980_000, 300)];
        let this = asked(19_000, &words, &[cut(32, 990_000, 10)]);
        let chunk = |bound_us: u64| match this.advise(Nanos(bound_us * 1_000)) {
            ArbitrationAdvice::Chunks { between: ChunkGap::Word, cut } => cut.chunk.0 >> 20,
            other => panic!("{other:?}"),
        };
        assert_eq!([chunk(47), chunk(48), chunk(159), chunk(160), chunk(600), chunk(10_000)], [1, 1, 1, 4, 16, 16]);
        assert_eq!(this.advise(Nanos(200_000)), ArbitrationAdvice::Chunks { between: ChunkGap::Word, cut: words[1] });
        let streams = asked(19_000, &[cut(4, 970_000, 18_900)], &[cut(4, 940_000, 80)]);
        assert!(
            matches!(streams.advise(WAIT_GUESTS), ArbitrationAdvice::Chunks { between: ChunkGap::Streams, .. }),
            "words do not help"
        );
    }

    #[test]
    fn whole_copies_stay_whole_where_they_let_others_in_or_nothing_does() {
        assert_eq!(asked(12, &[cut(4, 930_000, 80)], &[]).advise(WAIT_GUESTS), ArbitrationAdvice::Whole);
        assert_eq!(asked(19_000, &[cut(4, 930_000, 18_000)], &[]).advise(WAIT_GUESTS), ArbitrationAdvice::Nothing);
        assert_eq!(asked(19_000, &[], &[]).advise(WAIT_GUESTS), ArbitrationAdvice::Nothing);
    }

    #[test]
    fn few_samples_have_no_percentile() {
        let times: Vec<Nanos> = (1..=200).map(Nanos).collect();
        assert_eq!(
            SmallCopyWait::of(&times),
            Some(SmallCopyWait { n: 200, median: Nanos(101), p99: Nanos(198), max: Nanos(200) })
        );
        assert_eq!(SmallCopyWait::of(&times[..99]).map(|wait| (wait.p99, wait.long())), Some((Nanos::MAX, Nanos(99))));
        assert_eq!(SmallCopyWait::of(&[]), None);
    }
}
