//! First-in first-out engines with known times: what the dispatcher and its reference both drive.

use std::collections::BTreeMap;

#[derive(Clone, Debug, Default)]
pub(crate) struct Engines {
    /// When each engine is done with what it has.
    free_at: BTreeMap<(u32, u32), u64>,
    /// Operations under way: (end, number, start).
    under_way: Vec<(u64, u64, u64)>,
}

impl Engines {
    pub(crate) fn submit(&mut self, now: u64, number: u64, engine: (u32, u32), time: u64) {
        let free = self.free_at.entry(engine).or_default();
        let start = now.max(*free);
        *free = start + time;
        self.under_way.push((start + time, number, start));
    }

    pub(crate) fn next_end(&self) -> Option<u64> {
        self.under_way.iter().map(|o| o.0).min()
    }

    /// Takes the operation with the lowest number that has ended by `now`; its number and start.
    pub(crate) fn next_ended(&mut self, now: u64) -> Option<(u64, u64)> {
        let ended = self.under_way.iter().filter(|o| o.0 <= now).map(|o| o.1).min()?;
        let at = self.under_way.iter().position(|o| o.1 == ended)?;
        let (_, number, start) = self.under_way.remove(at);
        Some((number, start))
    }
}
