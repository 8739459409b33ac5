//! How long the broker looks for requests before it sleeps: a sleeper must be woken, which takes longer than most answers.
//!
//! It looks longer where that pays: as long as it may after requests that followed each other closely, shorter and shorter
//! where they are far apart. What it spends is bounded by a share of one CPU, so that any pattern of requests costs at most
//! that, in addition to the work itself.

use crate::units::{Nanos, PPM};

/// Time that may be saved up for looking.
const SAVED_MAX: Nanos = Nanos(20_000_000);
/// The shortest look, as a part of the longest.
const SHORTEST: u64 = 16;

/// When to look and when to sleep.
#[derive(Debug)]
pub struct Pace {
    most: Nanos,
    share_ppm: u64,
    /// How long it looks this time.
    limit: Nanos,
    /// Time left for looking.
    saved: Nanos,
    /// Up to when that is counted.
    counted: Nanos,
    idle_since: Option<Nanos>,
}

impl Pace {
    /// Looks for `most` at a time, and for at most `share_ppm` millionths of the time.
    pub fn new(most: Nanos, share_ppm: u64, now: Nanos) -> Self {
        Self { most, share_ppm, limit: most, saved: SAVED_MAX, counted: now, idle_since: None }
    }

    fn count(&mut self, now: Nanos) {
        let passed = u128::from(now.saturating_sub(self.counted).0);
        let earned = passed.saturating_mul(u128::from(self.share_ppm)) / u128::from(PPM);
        let earned = Nanos(u64::try_from(earned).unwrap_or(u64::MAX));
        self.saved = self.saved.saturating_add(earned).min(SAVED_MAX);
        self.counted = now;
    }

    fn pay(&mut self, now: Nanos) {
        if let Some(since) = self.idle_since.take() {
            self.saved = self.saved.saturating_sub(now.saturating_sub(since));
        }
    }

    /// There was something to do.
    pub fn found(&mut self, now: Nanos) {
        if self.idle_since.is_some() {
            self.limit = self.most;
        }
        self.count(now);
        self.pay(now);
    }

    /// There was nothing to do: whether to look again at once.
    pub fn looks_on(&mut self, now: Nanos) -> bool {
        self.count(now);
        let since = *self.idle_since.get_or_insert(now);
        let looked = now.saturating_sub(since);
        looked < self.limit && looked < self.saved
    }

    /// It slept from `from` until `now`, since nothing came.
    pub fn slept(&mut self, from: Nanos, now: Nanos) {
        self.pay(from);
        self.count(now);
        let short = now.saturating_sub(from) <= self.most;
        let shortest = Nanos(self.most.0 / SHORTEST);
        // A little more patience would have seen it come.
        self.limit = if short { self.most } else { Nanos(self.limit.0 / 2).max(shortest) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Nanos = Nanos(100_000);

    /// Requests every `gap` for `count` times; time spent looking, and how many were found without sleeping.
    fn run(share_ppm: u64, gap: u64, count: u64) -> (u64, u64) {
        let mut pace = Pace::new(MOST, share_ppm, Nanos(0));
        let (mut now, mut looked, mut found) = (0, 0, 0);
        for request in 1..=count {
            let arrival = request * gap;
            let step = 1_000;
            while now < arrival && pace.looks_on(Nanos(now)) {
                now += step;
                looked += step;
            }
            if now < arrival {
                pace.slept(Nanos(now), Nanos(arrival));
                now = arrival;
            } else {
                found += 1;
            }
            pace.found(Nanos(now));
        }
        (looked, found)
    }

    #[test]
    fn requests_close_to_each_other_are_found_without_sleeping() {
        let (_, found) = run(PPM, 50_000, 10_000);
        assert_eq!(found, 10_000);
    }

    #[test]
    fn looking_costs_at_most_its_share_whatever_comes() {
        for (share, gap) in [(250_000, 50_000), (250_000, 99_000), (100_000, 10_000), (0, 50_000)] {
            let (looked, _) = run(share, gap, 100_000);
            // What was saved up at the beginning, and the step of this clock at each look.
            let most = gap * 100_000 * share / PPM + SAVED_MAX.0 + 100_000 * 1_000;
            assert!(looked <= most, "{looked} of {most} with {share} ppm, a request every {gap} ns");
        }
    }

    #[test]
    fn requests_far_apart_cost_a_sixteenth_of_a_look() {
        let (looked, found) = run(PPM, 10_000_000, 1_000);
        assert_eq!(found, 0);
        assert!(looked < 1_000 * (MOST.0 / SHORTEST + 1_000) + 2 * MOST.0, "{looked}");
    }
}
