//! Messages: periodic demands for transfers, as the system states them and as they are carried out.
//!
//! An *elementary* message is one transfer operation of the system (`verner-2014`, Definitions IV.1 and IV.3). A *batch* is
//! what the scheduler releases: one job per slot of its grid, with a part of every member's block (Definition IV.2).
//! Combining splits the blocks of a slower message over the slots of a faster one ([`crate::plan::combine`]); the levels that a
//! [`BatchMember`] carries are the map between its jobs and the slots, in both directions.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::files::machine::RouteId;
use crate::interconnect::BatchBlock;
use crate::units::{Bytes, Nanos};

/// Periods and costs stay below this, 4.9 hours, so that products of two of them and a 32-bit fraction fit 128 bits.
pub const TIME_MAX: Nanos = Nanos(1 << 44);

/// How the blocks of a message become ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Release {
    /// Exactly at `start + j period`.
    #[default]
    Periodic,
    /// At any time, at least a period apart.
    Sporadic,
}

/// One transfer operation of the system: blocks of `bytes` are ready at the source at `start`, `start + period`, and so on,
/// and must be at the destination `deadline` later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elementary {
    /// Name, for people.
    pub name: String,
    /// The route it takes.
    pub route: RouteId,
    /// Size of a block, above zero.
    pub bytes: Bytes,
    /// Time between blocks.
    pub period: Nanos,
    /// When the first block is ready.
    pub start: Nanos,
    /// Relative deadline, at most the period; the paper's messages have their period.
    pub deadline: Nanos,
    /// Blocks are cut at multiples of it only; 1 = anywhere.
    pub granule: Bytes,
    /// How blocks become ready.
    pub release: Release,
}

/// An elementary message, or a grouping of them, that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// Nothing to move, or granules of nothing.
    #[error("message `{name}` has blocks or granules of 0 bytes; give both at least 1")]
    NoBytes { name: String },
    /// The period is zero or too long.
    #[error("message `{name}` has a period of {period}; it must be above 0 and below {TIME_MAX}")]
    Period { name: String, period: Nanos },
    /// The deadline is zero or above the period.
    #[error("message `{name}` has a deadline of {deadline}; it must be above 0 and at most the period, {period}")]
    Deadline { name: String, deadline: Nanos, period: Nanos },
    /// Messages of one batch that are not ready together.
    #[error("messages `{name}` and `{other}` are one batch and must be ready and due at the same times, periodically")]
    Group {
        /// One message.
        name: String,
        /// The first of the batch.
        other: String,
    },
    /// A release jitter that leaves no time.
    #[error("message `{name}` can be released {jitter} late and must arrive {deadline} after its nominal release")]
    Jitter { name: String, jitter: Nanos, deadline: Nanos },
}

impl Elementary {
    /// A strictly periodic message with the period as deadline, cut anywhere (Definition IV.1).
    #[must_use]
    pub fn periodic(name: impl Into<String>, route: RouteId, bytes: Bytes, period: Nanos, start: Nanos) -> Self {
        let (deadline, granule, release) = (period, Bytes(1), Release::Periodic);
        Self { name: name.into(), route, bytes, period, start, deadline, granule, release }
    }

    /// The same message when its blocks can be ready up to `jitter` late: it counts from the latest time, with what is left
    /// of the deadline.
    ///
    /// # Errors
    /// [`MessageError::Jitter`] when nothing is left.
    pub fn with_jitter(self, jitter: Nanos) -> Result<Self, MessageError> {
        if jitter >= self.deadline {
            return Err(MessageError::Jitter { name: self.name, jitter, deadline: self.deadline });
        }
        Ok(Self { start: self.start.saturating_add(jitter), deadline: self.deadline - jitter, ..self })
    }

    /// # Errors
    /// [`MessageError`] with what makes no sense.
    pub fn check(&self) -> Result<(), MessageError> {
        let name = || self.name.clone();
        if self.bytes.0 == 0 || self.granule.0 == 0 {
            return Err(MessageError::NoBytes { name: name() });
        }
        if self.period == Nanos::ZERO || self.period >= TIME_MAX {
            return Err(MessageError::Period { name: name(), period: self.period });
        }
        if self.deadline == Nanos::ZERO || self.deadline > self.period {
            return Err(MessageError::Deadline { name: name(), deadline: self.deadline, period: self.period });
        }
        Ok(())
    }

    /// When job `job` is ready and when it must have arrived; for a sporadic message the earliest such window.
    #[must_use]
    pub fn window(&self, job: u64) -> (u128, u128) {
        let ready = u128::from(self.start.0) + u128::from(job) * u128::from(self.period.0);
        (ready, ready + u128::from(self.deadline.0))
    }

    /// Its own grid: one slot per job.
    #[must_use]
    pub const fn grid(&self) -> SlotGrid {
        SlotGrid { start: self.start, period: self.period, window: self.deadline }
    }
}

/// Slots `k = 0, 1, ...`: `[start + k period, start + k period + window)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlotGrid {
    /// Start of slot 0.
    pub start: Nanos,
    /// Distance of slots.
    pub period: Nanos,
    /// Length of a slot, at most the period.
    pub window: Nanos,
}

impl SlotGrid {
    /// Start and end of a slot.
    #[must_use]
    pub fn slot(&self, slot: u64) -> (u128, u128) {
        let from = u128::from(self.start.0) + u128::from(slot) * u128::from(self.period.0);
        (from, from + u128::from(self.window.0))
    }

    /// The first slot that starts at or after `time`.
    #[must_use]
    pub fn first_from(&self, time: u128) -> u64 {
        let after = time.saturating_sub(u128::from(self.start.0));
        u64::try_from(after.div_ceil(u128::from(self.period.0))).unwrap_or(u64::MAX)
    }

    /// The slot that has begun by `time` and whose successor has not; `None` before the first.
    #[must_use]
    pub fn last_until(&self, time: u128) -> Option<u64> {
        let after = time.checked_sub(u128::from(self.start.0))?;
        u64::try_from(after / u128::from(self.period.0)).ok()
    }

    /// Whether the slots of both lie on one another.
    #[must_use]
    pub const fn is_in_phase(&self, other: &Self) -> bool {
        self.period.0 == other.period.0 && self.start.0 % self.period.0 == other.start.0 % self.period.0
    }
}

/// One splitting: every block, or part of one, goes into the first `parts` slots of `grid` that start once it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Level {
    pub grid: SlotGrid,
    /// Into how many.
    pub parts: u64,
}

/// An elementary message inside a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchMember {
    /// Position in the elementary set.
    pub elementary: u32,
    /// The splittings, from the message's own jobs to the batch's slots; at least one. The first may be its own grid.
    pub levels: Vec<Level>,
    /// The most bytes that a slot carries of it.
    pub reserve: Bytes,
}

impl BatchMember {
    /// An elementary message as it is: one slot per job.
    #[must_use]
    pub fn whole(elementary: u32, of: &Elementary) -> Self {
        Self { elementary, levels: vec![Level { grid: of.grid(), parts: 1 }], reserve: of.bytes }
    }

    /// Parts of a job in all, if none is empty: the product over the levels.
    #[must_use]
    pub fn parts_max(&self) -> u64 {
        self.levels.iter().fold(1, |product: u64, level| product.saturating_mul(level.parts))
    }

    /// What `slot` of the batch carries of the message: the job, and bytes of its block. `None` = nothing; always for a
    /// sporadic message, whose blocks are ready when they are.
    #[must_use]
    pub fn carried(&self, of: &Elementary, slot: u64) -> Option<(u64, Range<u64>)> {
        if of.release == Release::Sporadic {
            return None;
        }
        // From the batch's slot up to the job, then down again with the bytes.
        let mut at = slot;
        let mut path = Vec::with_capacity(self.levels.len());
        for (number, level) in self.levels.iter().enumerate().rev() {
            let upper = if number == 0 { of.grid() } else { self.levels[number - 1].grid };
            let window = upper.last_until(level.grid.slot(at).0)?;
            let part = at.checked_sub(level.grid.first_from(upper.slot(window).0))?;
            if part >= level.parts {
                return None;
            }
            path.push((part, level.parts));
            at = window;
        }
        let whole = 0..of.bytes.0;
        let bytes = path.iter().rev().fold(whole, |bytes, &(part, parts)| cut(&bytes, part, parts, of.granule));
        (!bytes.is_empty()).then_some((at, bytes))
    }
}

/// Part `part` of `parts` of a range of bytes, cut at multiples of `granule` from its start.
///
/// Of `G` granules part `i` holds those from `floor(i G / n)` to `floor((i + 1) G / n)`: all parts together are the range,
/// and none is longer than `ceil(G / n)` granules.
#[must_use]
pub fn cut(bytes: &Range<u64>, part: u64, parts: u64, granule: Bytes) -> Range<u64> {
    let len = bytes.end - bytes.start;
    let granules = u128::from(len.div_ceil(granule.0));
    let at = |number: u64| {
        let granule_number = u128::from(number) * granules / u128::from(parts.max(1));
        let offset = (granule_number * u128::from(granule.0)).min(u128::from(len));
        bytes.start + u64::try_from(offset).unwrap_or(len)
    };
    at(part)..at(part + 1)
}

/// The longest part of `reserve` bytes cut into `parts`: `ceil(ceil(x / g) / n) g`, at most `x`.
#[must_use]
pub fn reserve(bytes: Bytes, parts: u64, granule: Bytes) -> Bytes {
    let granules = bytes.0.div_ceil(granule.0).div_ceil(parts.max(1));
    Bytes(granules.saturating_mul(granule.0).min(bytes.0))
}

/// What the scheduler releases once per slot: a part of every member's block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Its slots: a job is released at the start of each and must be complete at its end.
    pub grid: SlotGrid,
    /// Members by ascending position in the elementary set.
    pub members: Vec<BatchMember>,
    /// [`Release::Sporadic`] only for a sporadic message alone; every other batch is released by time.
    pub release: Release,
}

impl Batch {
    /// An elementary message as a batch of its own.
    #[must_use]
    pub fn single(elementary: u32, of: &Elementary) -> Self {
        Self { grid: of.grid(), members: vec![BatchMember::whole(elementary, of)], release: of.release }
    }

    /// The first of its elementary messages: what ties are broken by.
    #[must_use]
    pub fn first(&self) -> u32 {
        self.members.first().map_or(u32::MAX, |member| member.elementary)
    }

    /// What a job moves at most: a block per member, in their order.
    #[must_use]
    pub fn blocks(&self, set: &[Elementary]) -> Vec<BatchBlock> {
        let block = |m: &BatchMember| BatchBlock { route: set[m.elementary as usize].route, bytes: m.reserve };
        self.members.iter().map(block).collect()
    }
}

/// The elementary messages of a system, and how they are carried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageSet {
    /// What is asked for.
    pub elementary: Vec<Elementary>,
    /// What the scheduler releases: every elementary message is in exactly one.
    pub batches: Vec<Batch>,
}

impl MessageSet {
    /// Every message by itself: the set `E` of Definition IV.3.
    ///
    /// # Errors
    /// [`MessageError`] for the first message that makes no sense.
    pub fn new(elementary: Vec<Elementary>) -> Result<Self, MessageError> {
        elementary.iter().try_for_each(Elementary::check)?;
        let batches = (0u32..).zip(&elementary).map(|(number, of)| Batch::single(number, of)).collect();
        Ok(Self { elementary, batches })
    }

    /// The set that is given as batch messages: those of equal `groups` numbers, one per message, become ready together and
    /// move as one.
    ///
    /// # Errors
    /// [`MessageError`] for the first message that makes no sense; [`MessageError::Group`] when two of a group differ in
    /// more than what they move.
    pub fn grouped(elementary: Vec<Elementary>, groups: &[usize]) -> Result<Self, MessageError> {
        let Self { elementary, batches: singles } = Self::new(elementary)?;
        let mut batches: Vec<Batch> = Vec::new();
        let mut places: BTreeMap<usize, usize> = BTreeMap::new();
        for (single, group) in singles.into_iter().zip(groups) {
            match places.get(group) {
                None => {
                    places.insert(*group, batches.len());
                    batches.push(single);
                }
                Some(&at) => {
                    let batch = &mut batches[at];
                    if (batch.grid, batch.release) != (single.grid, single.release)
                        || batch.release == Release::Sporadic
                    {
                        let name = |batch: &Batch| elementary[batch.first() as usize].name.clone();
                        return Err(MessageError::Group { name: name(&single), other: name(batch) });
                    }
                    batch.members.extend(single.members);
                }
            }
        }
        Ok(Self { elementary, batches })
    }
}
