//! Which memory the driver has said to be ordinary: asking takes up to 0.6 us, as long as a copy of 16 KiB through a window.
//!
//! Only ordinary memory is remembered. Who pins it later loses some speed until the driver is asked again; pinned memory taken
//! for pinned after it was freed would be used by an engine.

use std::sync::{Mutex, PoisonError};

use headway_device::{DeviceError, HostKind};

/// Ranges that are remembered.
const RANGES: usize = 16;
/// Of this many copies from or to one range, one asks.
const ASK_EVERY: u32 = 32;

/// Memory that was ordinary when the driver was asked.
#[derive(Clone, Copy, Default)]
struct Range {
    start: usize,
    end: usize,
    uses: u32,
}

#[derive(Default)]
struct Inner {
    ranges: [Range; RANGES],
    /// The range that gives way to the next.
    oldest: usize,
}

/// What is remembered of one GPU's driver.
#[derive(Default)]
pub(super) struct Kinds(Mutex<Inner>);

impl Kinds {
    /// The kind of `memory`: ordinary, if `ask` has said so of it before and not too often been trusted, else what `ask` says.
    pub(super) fn of(
        &self,
        memory: &[u8],
        ask: impl FnOnce() -> Result<HostKind, DeviceError>,
    ) -> Result<HostKind, DeviceError> {
        let start = memory.as_ptr().addr();
        let end = start + memory.len();
        // Another thread is looking: asking is as good.
        if let Ok(mut inner) = self.0.try_lock()
            && let Some(range) = inner.ranges.iter_mut().find(|range| range.start <= start && end <= range.end)
            && range.uses < ASK_EVERY
        {
            range.uses += 1;
            return Ok(HostKind::Pageable);
        }
        let kind = ask()?;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).note(start, end, kind);
        Ok(kind)
    }
}

impl Inner {
    /// What was known of the range goes; a neighbour that is ordinary too grows by it.
    fn note(&mut self, start: usize, end: usize, kind: HostKind) {
        if kind == HostKind::Pinned {
            for range in self.ranges.iter_mut().filter(|range| range.start < end && start < range.end) {
                *range = Range::default();
            }
            return;
        }
        let touching = |range: &&mut Range| range.start <= end && start <= range.end && range.start < range.end;
        if let Some(range) = self.ranges.iter_mut().find(touching) {
            *range = Range { start: range.start.min(start), end: range.end.max(end), uses: 0 };
            return;
        }
        self.ranges[self.oldest] = Range { start, end, uses: 0 };
        self.oldest = (self.oldest + 1) % RANGES;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Asks `kinds` about `memory`; whether that asked the driver, which says `kind`.
    fn asked(kinds: &Kinds, memory: &[u8], kind: HostKind) -> bool {
        let asked = Cell::new(false);
        let found = kinds.of(memory, || {
            asked.set(true);
            Ok(kind)
        });
        assert_eq!(found, Ok(if asked.get() { kind } else { HostKind::Pageable }));
        asked.get()
    }

    #[test]
    fn ordinary_memory_is_asked_about_now_and_then() {
        let (kinds, memory) = (Kinds::default(), [0; 100]);
        let times = (0..100).filter(|_| asked(&kinds, &memory, HostKind::Pageable)).count();
        assert_eq!(times, 100_usize.div_ceil(ASK_EVERY as usize + 1));
        assert!(!asked(&kinds, &memory[10..20], HostKind::Pageable), "a part of it is known");
    }

    #[test]
    fn ranges_that_touch_become_one_and_others_are_kept_apart() {
        let (kinds, memory) = (Kinds::default(), [0; 100]);
        assert!(asked(&kinds, &memory[..40], HostKind::Pageable) && asked(&kinds, &memory[30..60], HostKind::Pageable));
        assert!(!asked(&kinds, &memory[10..60], HostKind::Pageable));
        assert!(
            asked(&kinds, &memory[70..80], HostKind::Pageable) && asked(&kinds, &memory[50..80], HostKind::Pageable)
        );
    }

    #[test]
    fn pinned_memory_is_never_remembered_and_ends_what_was() {
        let (kinds, memory) = (Kinds::default(), [0; 100]);
        assert!(asked(&kinds, &memory[..50], HostKind::Pageable));
        assert!((0..3).all(|_| asked(&kinds, &memory[..60], HostKind::Pinned)));
        assert!(asked(&kinds, &memory[..50], HostKind::Pageable));
    }

    #[test]
    fn many_ranges_drive_out_the_oldest() {
        let (kinds, memory) = (Kinds::default(), vec![0; 2 * RANGES + 2]);
        for at in (0..=RANGES).map(|at| 2 * at) {
            assert!(asked(&kinds, &memory[at..=at], HostKind::Pageable));
        }
        assert!(!asked(&kinds, &memory[2..3], HostKind::Pageable) && asked(&kinds, &memory[..1], HostKind::Pageable));
    }
}
