//! Which bulk copies out of a GPU a guest's log puts under way, and which small copies were made meanwhile.
//!
//! A log cannot say when a queued copy ended: the program asked only later, or never. So a queued bulk copy counts as under way for
//! the time that its bytes take at a rate that is assumed, behind those that were queued before it.

use std::collections::BTreeMap;

use headway_core::files::guest_log::{BULK_MIN, Became, Copy, Towards};
use headway_core::units::{NANOS_PER_SECOND, Nanos};

/// What a queued bulk copy is taken to move in a second; `--aside` assumes the same of the bulk copies of other guests.
const BULK_BYTES_PER_S: u64 = 20_000_000_000;

/// What a copy out of a GPU was to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It was made by another method, failed, or did not go out of a GPU.
    None,
    /// A small one that a kernel made.
    Aside,
    /// A bulk copy, taken to be under way from one time to another.
    Bulk(Nanos, Nanos),
    /// A small one of the driver's.
    Small(BulkAhead),
}

/// The bulk copy that was under way when a small one came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BulkAhead {
    None,
    /// In its own CUDA stream: whatever the engine does, it must wait.
    SameStream,
    /// In another one, at this position: it waits for the engine.
    OtherStream(usize),
}

/// Bulk copies that are under way at a time.
#[derive(Default)]
struct UnderWay {
    /// By stream, until when, and the position of the copy.
    until: BTreeMap<u64, (Nanos, usize)>,
    /// Until when those that were queued keep the engine.
    queued: Nanos,
}

impl UnderWay {
    fn add(&mut self, at: usize, copy: &Copy) -> Role {
        let mut end = copy.at.saturating_add(copy.took);
        let mut begin = copy.at;
        if !copy.call.waits() && !matches!(copy.became, Became::Fast | Became::PinnedOnce) {
            let takes = u128::from(copy.bytes.0) * u128::from(NANOS_PER_SECOND) / u128::from(BULK_BYTES_PER_S);
            let takes = Nanos(u64::try_from(takes).unwrap_or(u64::MAX));
            begin = self.queued.max(copy.at);
            self.queued = begin.saturating_add(takes);
            end = end.max(self.queued);
        }
        let until = self.until.entry(copy.stream).or_insert((end, at));
        if end >= until.0 {
            *until = (end, at);
        }
        Role::Bulk(begin, end)
    }

    /// The one in its own stream, else the one that ends last.
    fn ahead(&self, copy: &Copy) -> BulkAhead {
        let now = self.until.iter().filter(|(_, (until, _))| *until > copy.at);
        let mut last = None;
        for (stream, (until, at)) in now {
            if *stream == copy.stream {
                return BulkAhead::SameStream;
            }
            if last.is_none_or(|(latest, _)| *until > latest) {
                last = Some((*until, *at));
            }
        }
        last.map_or(BulkAhead::None, |(_, at)| BulkAhead::OtherStream(at))
    }
}

/// What each of `copies` was, in their order, which is that of their times.
pub(crate) fn roles(copies: &[Copy]) -> Vec<Role> {
    let mut under_way = UnderWay::default();
    let role = |(at, copy): (usize, &Copy)| {
        if copy.direction != Towards::Out || copy.status != 0 {
            Role::None
        } else if copy.became == Became::Aside {
            Role::Aside
        } else if copy.bytes.0 >= BULK_MIN {
            under_way.add(at, copy)
        } else {
            Role::Small(under_way.ahead(copy))
        }
    };
    copies.iter().enumerate().map(role).collect()
}
