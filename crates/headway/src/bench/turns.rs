//! Several kinds of copies, timed in turns.
//!
//! A kind's turn is a few copies in a row, of which the first is not counted: what copies of other kinds leave behind (whose
//! bytes are in which cache, threads that sleep, copiers that left the GPU) costs up to 50 us, and would be blamed on whoever
//! comes behind them. Turns change their order from round to round, so that what changes with time meets all alike.

use headway_core::transfer::{Load, Way};
use headway_core::units::Nanos;
use headway_os::clock;
use headway_runtime::copy::How;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::Bench;
use super::results::Row;
use super::ways::row;
use crate::Error;
use crate::measure::curves::COMPARED_MAX;
use crate::measure::rig::{Rig, Shot};
use crate::measure::sample::{Effort, Figures};

/// Copies of a turn that count.
const BURST: usize = 4;
/// Copies that take longer come one at a time, each counted: 50 us are little of them.
const LONG: Nanos = Nanos(5_000_000);
/// Who takes more than this many percent of the best median even at best is not timed more often than needed.
const BEHIND_PERCENT: u64 = 130;
/// Counted copies of such a kind, if they are long; and of the others.
const BEHIND_MIN: usize = 2;
const LONG_MIN: usize = 9;

/// One kind of copy, and what it took.
pub(super) struct Entrant {
    pub(super) name: String,
    pub(super) shot: Shot,
    times: Vec<Nanos>,
    cpu: Vec<Nanos>,
    took: Option<Way>,
    /// Copies made, counted or not.
    made: u32,
    last: Nanos,
    failed: bool,
}

impl Entrant {
    pub(super) fn new(name: String, shot: Shot) -> Self {
        let (times, cpu) = (Vec::new(), Vec::new());
        Self { name, shot, times, cpu, took: None, made: 0, last: Nanos::MAX, failed: false }
    }

    fn row(&self, part: &'static str, load: Load) -> Option<Row> {
        let cpu = Figures::of(&self.cpu).map(|figures| figures.median);
        let took = self.took.filter(|_| self.shot.how == How::Auto).map(|way| way.to_string());
        Figures::of(&self.times).map(|figures| row(part, &self.name, &self.shot, load, cpu, took).with(figures))
    }

    /// One copy.
    fn shoot(&mut self, rig: &mut Rig, counts: bool) -> Result<(), Error> {
        let timing = rig.shoot(&self.shot, self.made)?;
        if self.made == 0 || self.shot.bytes <= COMPARED_MAX {
            rig.compare()?;
        }
        self.made += 1;
        self.last = timing.done;
        if counts {
            self.times.push(timing.done);
            self.cpu.extend(timing.cpu);
            self.took = Some(timing.way);
        }
        Ok(())
    }

    /// Its copies in a row.
    fn turn(&mut self, rig: &mut Rig) -> Result<(), Error> {
        // The first copy of all sets things up.
        if self.made == 0 || self.last < LONG {
            self.shoot(rig, false)?;
        }
        for _ in 0..if self.last < LONG { BURST } else { 1 } {
            self.shoot(rig, true)?;
        }
        Ok(())
    }
}

/// Whether an entrant needs further copies, by what there is of all.
fn wants(entrant: &Entrant, best: Nanos, effort: Effort, over: bool) -> bool {
    let (made, is_long) = (entrant.times.len(), entrant.shot.bytes > 16 << 20);
    let limit = Nanos(best.0.saturating_mul(BEHIND_PERCENT) / 100);
    let behind = entrant.times.iter().min().is_some_and(|least| *least > limit);
    let least = effort.n_min as usize;
    let least = match (is_long, behind) {
        (true, true) => least.min(BEHIND_MIN),
        (true, false) => least.max(LONG_MIN.min(3 * least)),
        (false, _) => least,
    };
    !entrant.failed && made < effort.n_max as usize && (made < least || !(over || behind))
}

impl Bench<'_, '_> {
    /// Makes the copies in turns and adds their rows. A kind that fails is left out with a warning.
    pub(super) fn turns(
        &mut self,
        rig: &mut Rig,
        mut entrants: Vec<Entrant>,
        part: &'static str,
        load: Load,
        effort: Effort,
    ) -> Result<(), Error> {
        let until = clock::now().saturating_add(Nanos(effort.time.0.saturating_mul(entrants.len() as u64)));
        let mut random = Pcg64Mcg::seed_from_u64(entrants.first().map_or(0, |entrant| entrant.shot.bytes as u64));
        let mut order: Vec<usize> = (0..entrants.len()).collect();
        loop {
            let over = clock::now() >= until;
            let medians =
                entrants.iter().filter_map(|entrant| Figures::of(&entrant.times)).map(|figures| figures.median);
            let best = medians.min().unwrap_or(Nanos::MAX);
            if !entrants.iter().any(|entrant| wants(entrant, best, effort, over)) {
                break;
            }
            for last in (1..order.len()).rev() {
                order.swap(last, (random.next_u64() % (last as u64 + 1)) as usize);
            }
            for &at in &order {
                let entrant = &mut entrants[at];
                if !wants(entrant, best, effort, over) {
                    continue;
                }
                match entrant.turn(rig) {
                    Ok(()) => {}
                    Err(error @ (Error::Copy(_) | Error::WrongCopy { .. })) => {
                        let size = entrant.shot.bytes;
                        self.session.warnings.push(format!("{} is left out at {size} bytes: {error}", entrant.name));
                        entrant.failed = true;
                    }
                    Err(error) => return Err(error),
                }
                self.session.go_on()?;
            }
        }
        rig.compare()?;
        let kept = entrants.iter().filter(|entrant| !entrant.failed);
        self.rows.extend(kept.filter_map(|entrant| entrant.row(part, load)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use headway_core::machine::Method;
    use headway_core::transfer::{Direction, HostMemory};

    use super::*;

    const EFFORT: Effort = Effort { warm_up: 1, n_min: 3, n_max: 20, time: Nanos(1) };

    fn entrant(bytes: usize, times: &[u64]) -> Entrant {
        let how = How::By(Way::of(Method::Dma));
        let shot = Shot { how, direction: Direction::H2d, memory: HostMemory::Pinned, bytes, window: None };
        let times = times.iter().copied().map(Nanos).collect();
        Entrant { times, ..Entrant::new("dma".to_owned(), shot) }
    }

    #[test]
    fn who_is_far_behind_is_not_timed_longer_than_needed() {
        let wanted = |bytes, times: &[u64], over| wants(&entrant(bytes, times), Nanos(100), EFFORT, over);
        let (small, large) = (64, 1 << 30);
        assert!(wanted(small, &[131; 2], true) && !wanted(small, &[131; 3], false));
        assert!(wanted(small, &[131, 130, 131], false) && !wanted(small, &[130; 3], true));
        assert!(wanted(large, &[131], true) && !wanted(large, &[131; 2], false));
        assert!(wanted(large, &[130; 8], true) && !wanted(large, &[130; 9], true));
        assert!(!wanted(small, &[100; 20], false), "never more than the most");
        assert!(!wants(&Entrant { failed: true, ..entrant(small, &[]) }, Nanos::MAX, EFFORT, false));
    }
}
