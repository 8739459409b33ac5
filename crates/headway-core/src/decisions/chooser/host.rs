//! What the host end of a copy is, and when it is worth asking.

use super::{Chooser, CopySituation};
use crate::models::transfer::{Direction, HostMemory, Method};

/// From this size on the driver is asked whether memory is pinned, which takes up to 0.6 us; the driver's own call, which is chosen for
/// smaller copies of ordinary memory, is as fast from pinned memory without being told.
const ASK: u64 = 64 << 10;
/// From this size on pages are looked at if they could change the choice, and in one of [`LOOK_EVERY`] copies anyway. Below it only one
/// copy in [`LOOK_EVERY`] is looked at, and the others are taken to be like it.
const LOOK: u64 = 128 << 10;
/// From this size on pages that appear may take as long as the lead over the driver's call.
const FAULTS: u64 = 8 << 10;
/// From this size on pages are looked at in every copy.
const LOOK_ALWAYS: u64 = 2 << 20;
/// One of so many looks.
const LOOK_EVERY: u32 = 16;

/// What is known of the host end of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKnown {
    Nothing,
    Pinned,
    /// It is ordinary memory; nobody has looked at its pages.
    Ordinary,
    /// It is ordinary memory with pages.
    PagesPresent,
    /// It is ordinary memory, most of whose pages were never touched.
    PagesAbsent,
    /// Only the driver knows how to handle it.
    DriverOnly,
}

/// What takes time to know and decides now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyQuestion {
    /// Is the memory pinned? Any answer but [`HostKnown::Nothing`].
    IsPinned,
    /// Are the pages of the destination there? [`HostKnown::PagesPresent`] or [`HostKnown::PagesAbsent`].
    ArePagesThere,
    /// Which forms of this method can be used? [`Chooser::set_forms`].
    Forms(Method),
}

/// What copies met.
#[derive(Debug, Default)]
pub(super) struct Pages {
    small: u32,
    /// Whether the small copy that looked last found its pages absent.
    were_absent: bool,
    large: u32,
}

/// Whether it is a copy's turn to look.
fn is_due(count: &mut u32) -> bool {
    let due = count.is_multiple_of(LOOK_EVERY);
    *count = count.wrapping_add(1);
    due
}

const fn written(absent: bool) -> HostMemory {
    if absent { HostMemory::Untouched } else { HostMemory::Touched }
}

impl Chooser {
    /// The host memory as far as it decides, and whether the copy can be judged by it: a copy whose pages appear meanwhile is no slower than
    /// the driver for taking longer than into pages that are there. For a copy `by_name` large destinations are looked at.
    pub(super) fn host_memory(
        &mut self,
        situation: &CopySituation,
        by_name: bool,
    ) -> Result<Option<(HostMemory, bool)>, CopyQuestion> {
        let (bytes, whole) = (situation.bytes, situation.bytes.0);
        let sure = |memory| Ok(Some((memory, true)));
        let absent = match situation.host {
            HostKnown::DriverOnly => return Ok(None),
            HostKnown::Pinned => return sure(HostMemory::Pinned),
            HostKnown::Nothing if whole >= ASK => return Err(CopyQuestion::IsPinned),
            _ if situation.direction != Direction::D2h => {
                let file = self.options.mapped_files && whole >= ASK;
                return sure(if file { HostMemory::File } else { HostMemory::Touched });
            }
            HostKnown::PagesPresent => Some(false),
            HostKnown::PagesAbsent => Some(true),
            HostKnown::Nothing | HostKnown::Ordinary => None,
        };
        if whole < LOOK && !by_name {
            if absent.is_none() && is_due(&mut self.pages.small) {
                return Err(CopyQuestion::ArePagesThere);
            }
            self.pages.were_absent = absent.unwrap_or(self.pages.were_absent);
            return Ok(Some((written(self.pages.were_absent), whole < FAULTS || absent == Some(false))));
        }
        if absent.is_some() || whole < LOOK {
            return sure(written(absent == Some(true)));
        }
        if by_name || whole >= LOOK_ALWAYS || is_due(&mut self.pages.large) {
            return Err(CopyQuestion::ArePagesThere);
        }
        let [present, absent] = [false, true].map(|absent| self.case(situation, written(absent)));
        let [there, appears] = [present, absent].map(|case| self.pick(case, bytes));
        let same = there.method == appears.method && there.tuning == appears.tuning;
        if !same || self.learns(present, bytes, there.method) {
            return Err(CopyQuestion::ArePagesThere);
        }
        Ok(Some((HostMemory::Touched, false)))
    }
}
