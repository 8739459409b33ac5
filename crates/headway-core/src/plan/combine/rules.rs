//! When two messages can be combined, and what comes of it (`verner-2014`, Definitions IV.4 and IV.5).

use serde::{Deserialize, Serialize};

use crate::plan::message::{Batch, BatchMember, Elementary, Level, Release, SlotGrid, reserve};
use crate::units::{Bytes, Nanos};

/// How the slots are counted that surely lie inside a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Counting {
    /// The paper's: `p1 / p2` if that is whole and the phases agree, else `floor(p1 / p2) - 1`.
    Paper,
    /// The exact least number, from the known offsets. Never smaller; for strictly periodic messages only.
    #[default]
    PhaseAware,
}

/// The most parts into which blocks with windows `slow` can be split over slots `fast`: slots that lie wholly inside
/// *every* window. Zero = not combinable.
///
/// With `g = gcd(p1, p2)` the windows open at most `phi = p2 - g + ((a2 - a1) mod g)` before a slot does, and `n` slots take
/// `phi + (n - 1) p2 + d2` of a window `d1`. The paper's rule takes `phi = p2` unless the grids are aligned; sporadic
/// messages have any phase and use it too.
#[must_use]
pub fn parts_max(slow: &SlotGrid, release: Release, fast: &SlotGrid, counting: Counting) -> u64 {
    let (p1, p2) = (slow.period.0, fast.period.0);
    let behind = |modulus: u64| (fast.start.0 % modulus + modulus - slow.start.0 % modulus) % modulus;
    let aligned = p1.is_multiple_of(p2) && behind(p2) == 0;
    let phi = match (release, counting) {
        (Release::Periodic, _) if aligned => 0,
        (Release::Sporadic, _) | (_, Counting::Paper) => p2,
        (Release::Periodic, Counting::PhaseAware) => {
            let g = gcd(p1, p2);
            p2 - g + behind(g)
        }
    };
    match slow.window.0.checked_sub(phi).and_then(|rest| rest.checked_sub(fast.window.0)) {
        Some(rest) => rest / p2 + 1,
        None => 0,
    }
}

pub(super) const fn gcd(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a, b);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Which of two batches is split over the slots of which: (slow, fast, parts). `None` = not combinable.
///
/// The one with the longer period is split. With equal periods either may be; where both could, the one whose first
/// elementary message comes later is.
#[must_use]
pub(super) fn roles<'a>(a: &'a Batch, b: &'a Batch, counting: Counting) -> Option<(&'a Batch, &'a Batch, u64)> {
    let (p, q) = (a.grid.period, b.grid.period);
    let (slow, fast) = if (q, b.first()) > (p, a.first()) { (b, a) } else { (a, b) };
    let split = |slow: &'a Batch, fast: &'a Batch| {
        let released_by_time = fast.release == Release::Periodic;
        let parts = if released_by_time { parts_max(&slow.grid, slow.release, &fast.grid, counting) } else { 0 };
        (parts > 0).then_some((slow, fast, parts))
    };
    split(slow, fast).or_else(|| if p == q { split(fast, slow) } else { None })
}

/// The grid of two combined messages: the fast one's, from the first slot that starts at or after both `start`s' earlier
/// one. The paper's first slot can be one before, and then before zero; it is always empty.
#[must_use]
pub(super) fn joined_grid(slow: &SlotGrid, fast: &SlotGrid) -> SlotGrid {
    let earlier = fast.start.saturating_sub(slow.start).0 / fast.period.0 * fast.period.0;
    SlotGrid { start: fast.start - Nanos(earlier), ..*fast }
}

/// The fewest parts, at most `parts`, with which a slot reserves no more than with `parts`: what is not needed costs set-up.
#[must_use]
pub(super) fn fewest_parts(bytes: Bytes, parts: u64, granule: Bytes) -> u64 {
    let granules = bytes.0.div_ceil(granule.0);
    granules.div_ceil(granules.div_ceil(parts))
}

/// Combines two batches, or says by `None` that the rules do not allow it.
///
/// Every block of the slower one is split into as many parts as surely find a slot, or fewer where that reserves no more;
/// blocks of the faster one stay as they are. The result's jobs are released by time.
#[must_use]
pub fn combine(a: &Batch, b: &Batch, set: &[Elementary], counting: Counting) -> Option<Batch> {
    let (slow, fast, parts) = roles(a, b, counting)?;
    Some(joined(slow.clone(), fast.clone(), parts, set))
}

/// `slow` split into at most `parts` over the slots of `fast`.
#[must_use]
pub(super) fn joined(slow: Batch, fast: Batch, parts: u64, set: &[Elementary]) -> Batch {
    let grid = joined_grid(&slow.grid, &fast.grid);
    // The same slots, perhaps with an earlier end, are no further splitting.
    let is_split = slow.release == Release::Sporadic || !slow.grid.is_in_phase(&grid);
    let Batch { members: mut slower, .. } = slow;
    let Batch { mut members, .. } = fast;
    for member in &mut slower {
        if is_split {
            let granule = set[member.elementary as usize].granule;
            let parts = fewest_parts(member.reserve, parts, granule);
            let own = set[member.elementary as usize].grid();
            if matches!(member.levels.as_slice(), [one] if one.parts == 1 && one.grid.is_in_phase(&own)) {
                member.levels.clear(); // its slots are the message's own windows
            }
            member.levels.push(Level { grid, parts });
            member.reserve = reserve(member.reserve, parts, granule);
        } else {
            anchor(member, grid);
        }
    }
    members.iter_mut().for_each(|member| anchor(member, grid));
    members.append(&mut slower);
    members.sort_by_key(|member| member.elementary);
    Batch { grid, members, release: Release::Periodic }
}

/// Counts the slots of the last level from another first one, or ends them earlier.
fn anchor(member: &mut BatchMember, grid: SlotGrid) {
    if let Some(last) = member.levels.last_mut() {
        last.grid = grid;
    }
}

/// An elementary message split directly over the slots of `grid`; `None` if no slot surely lies in its windows.
#[must_use]
pub(super) fn direct(elementary: u32, of: &Elementary, grid: SlotGrid, counting: Counting) -> Option<BatchMember> {
    let own = of.grid();
    if of.release == Release::Periodic && own.is_in_phase(&grid) && own.window >= grid.window {
        return Some(BatchMember { elementary, levels: vec![Level { grid, parts: 1 }], reserve: of.bytes });
    }
    let parts = parts_max(&own, of.release, &grid, counting);
    if parts == 0 {
        return None;
    }
    let parts = fewest_parts(of.bytes, parts, of.granule);
    let levels = vec![Level { grid, parts }];
    Some(BatchMember { elementary, levels, reserve: reserve(of.bytes, parts, of.granule) })
}
