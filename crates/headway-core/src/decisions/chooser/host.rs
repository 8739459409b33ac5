//! What the host end of a copy is, and when it is worth asking.

use super::{Chooser, CopySituation};
use crate::models::transfer::{Direction, HostMemory};

/// From this size on the driver is asked whether memory is pinned, which takes up to 0.6 us; the driver's own call, which is chosen for
/// smaller copies of ordinary memory, is as fast from pinned memory without being told.
const ASK: u64 = 64 << 10;
/// From this size on pages are looked at where the choice hangs on it, and in one of [`LOOK_EVERY`] copies; below, in one of those only, and
/// the others are taken to be alike.
const LOOK: u64 = 128 << 10;
/// From this size on pages that appear may take as long as the lead over the driver's call.
const FAULTS: u64 = 8 << 10;
/// From this size on pages are looked at in every copy.
const LOOK_ALWAYS: u64 = 2 << 20;
/// One of so many looks.
const LOOK_EVERY: u32 = 16;

/// What is known of the host end of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostEnd {
    /// Nobody has asked.
    Unasked,
    Pinned,
    Ordinary(PagesSeen),
    /// Only the driver knows how to handle it.
    DriverOnly,
}

/// Whether the pages of ordinary memory are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PagesSeen {
    /// Nobody has looked.
    Unseen,
    Present,
    /// Most of them were never touched.
    Absent,
}

/// What takes time to know and decides now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyQuestion {
    /// Is the memory pinned? Any answer but [`HostEnd::Unasked`].
    IsPinned,
    /// Are the pages of the destination there? [`HostEnd::Ordinary`] with what was seen.
    ArePagesThere,
    /// Which forms of windows can be used? [`Chooser::set_windows`].
    WindowForms,
    /// Which forms of resident copiers can be used? [`Chooser::set_residents`].
    ResidentForms,
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
    /// the driver for taking longer than into pages that are there.
    pub(super) fn host_memory(
        &mut self,
        situation: &CopySituation,
    ) -> Result<Option<(HostMemory, bool)>, CopyQuestion> {
        let seen = match self.known(situation)? {
            Known::Memory(memory) => return Ok(memory.map(|memory| (memory, true))),
            Known::Destination(seen) => seen,
        };
        let bytes = situation.bytes;
        if bytes.0 < LOOK {
            if seen != PagesSeen::Unseen {
                self.pages.were_absent = seen == PagesSeen::Absent;
            } else if is_due(&mut self.pages.small) {
                return Err(CopyQuestion::ArePagesThere);
            }
            let absent = self.pages.were_absent;
            let known = seen != PagesSeen::Unseen && !absent;
            return Ok(Some((written(absent), bytes.0 < FAULTS || known)));
        }
        if seen != PagesSeen::Unseen {
            return Ok(Some((written(seen == PagesSeen::Absent), true)));
        }
        if bytes.0 >= LOOK_ALWAYS || is_due(&mut self.pages.large) {
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

    /// The host memory for a copy whose method is given: large destinations are looked at.
    pub(super) fn memory_now(&self, situation: &CopySituation) -> Result<Option<HostMemory>, CopyQuestion> {
        Ok(match self.known(situation)? {
            Known::Memory(memory) => memory,
            Known::Destination(PagesSeen::Unseen) if situation.bytes.0 >= LOOK => {
                return Err(CopyQuestion::ArePagesThere);
            }
            Known::Destination(seen) => Some(written(seen == PagesSeen::Absent)),
        })
    }

    fn known(&self, situation: &CopySituation) -> Result<Known, CopyQuestion> {
        let small = situation.bytes.0 < ASK;
        let seen = match situation.host {
            HostEnd::DriverOnly => return Ok(Known::Memory(None)),
            HostEnd::Pinned => return Ok(Known::Memory(Some(HostMemory::Pinned))),
            HostEnd::Unasked if !small => return Err(CopyQuestion::IsPinned),
            HostEnd::Unasked => PagesSeen::Unseen,
            HostEnd::Ordinary(seen) => seen,
        };
        let file = self.options.mapped_files && !small;
        Ok(match situation.direction {
            Direction::D2h => Known::Destination(seen),
            _ if file => Known::Memory(Some(HostMemory::File)),
            _ => Known::Memory(Some(HostMemory::Touched)),
        })
    }
}

enum Known {
    Memory(Option<HostMemory>),
    /// Ordinary memory that is written into.
    Destination(PagesSeen),
}
