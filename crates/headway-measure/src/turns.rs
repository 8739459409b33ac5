//! Several kinds of copies, timed in turns: for curves, for rows of a benchmark, and for what was predicted, so that all three
//! mean the same.
//!
//! A kind's turn is a few copies in a row, of which the first is not counted: what copies of other kinds leave behind (whose
//! bytes are in which cache, threads that sleep, copiers that left the GPU) costs up to 50 us, and would be blamed on whoever
//! comes behind them. Turns change their order from round to round, so that what changes with time meets all alike: the driver's
//! calls take a quarter more or less for milliseconds at a time.

use headway_core::models::transfer::Method;
use headway_core::units::Nanos;
use headway_os::clock;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::copy_timer::{COMPARED_MAX, CopySpec, CopyTimer};
use super::sample::{Effort, SampleFigures};
use super::session::Session;
use crate::Error;

/// Copies of a turn that count.
const BURST: usize = 4;
/// Copies that take longer come one at a time, each counted: 50 us are little of them.
const LONG: Nanos = Nanos(5_000_000);
/// A method whose best time is more than this many percent of the best median is not timed more often than needed.
const BEHIND_PERCENT: u64 = 130;
/// Counted copies of such a kind, if they are long; and of the others.
const BEHIND_MIN: usize = 2;
const LONG_MIN: usize = 9;
/// Where an answer hangs on the spread, so many times the time goes on top.
const MORE: u64 = 3;

/// One kind of copy, and what it took.
pub struct Entrant {
    pub name: String,
    pub spec: CopySpec,
    /// Until the bytes were in place.
    pub times: Vec<Nanos>,
    /// Until the call returned.
    pub calls: Vec<Nanos>,
    /// CPU time.
    pub cpu: Vec<Nanos>,
    /// How the last copy was made.
    pub took: Option<Method>,
    /// Why it is timed no longer.
    pub failed: Option<Error>,
    /// Copies made, counted or not.
    made: u32,
    last: Nanos,
}

/// Positions of those whose figures an answer hangs on.
pub type Undecided = fn(&[Entrant]) -> Vec<usize>;

/// How turns are taken.
#[derive(Clone, Copy)]
pub struct Rules {
    /// How often each kind is timed; the time is that of one.
    pub effort: Effort,
    /// Whether resident copiers leave the GPU before every turn: while one is there, the driver's calls take a microsecond or two
    /// longer.
    pub parks: bool,
    /// Whether a kind that is far behind is timed less.
    pub spares: bool,
    /// Whose figures an answer still hangs on when time is over; they get more turns, for a while.
    pub undecided: Option<Undecided>,
}

impl Entrant {
    /// One that has not been timed yet.
    pub fn new(name: String, spec: CopySpec) -> Self {
        let (times, calls, cpu) = (Vec::new(), Vec::new(), Vec::new());
        Self { name, spec, times, calls, cpu, took: None, failed: None, made: 0, last: Nanos::MAX }
    }

    /// What its copies took.
    pub fn figures(&self) -> Option<SampleFigures> {
        SampleFigures::of(&self.times)
    }

    /// One copy.
    fn time(&mut self, timer: &mut CopyTimer, counts: bool) -> Result<(), Error> {
        let timing = timer.time(&self.spec, self.made)?;
        if self.made == 0 || self.spec.bytes <= COMPARED_MAX {
            timer.compare()?;
        }
        self.made += 1;
        self.last = timing.done;
        if counts {
            self.times.push(timing.done);
            self.calls.push(timing.call);
            self.cpu.extend(timing.cpu);
            self.took = Some(timing.method);
        }
        Ok(())
    }

    /// Its copies in a row.
    fn turn(&mut self, timer: &mut CopyTimer, parks: bool) -> Result<(), Error> {
        if parks {
            timer.copier().park()?;
        }
        // The first copy of all sets things up.
        if self.made == 0 || self.last < LONG {
            self.time(timer, false)?;
        }
        for _ in 0..if self.last < LONG { BURST } else { 1 } {
            self.time(timer, true)?;
        }
        Ok(())
    }
}

/// Whether an entrant needs further copies, by what there is of all.
fn wants(entrant: &Entrant, best: Nanos, rules: Rules, over: bool) -> bool {
    let (effort, made, is_long) = (rules.effort, entrant.times.len(), entrant.spec.bytes > 16 << 20);
    let limit = Nanos(best.0.saturating_mul(BEHIND_PERCENT) / 100);
    let behind = rules.spares && entrant.times.iter().min().is_some_and(|least| *least > limit);
    let least = effort.n_min as usize;
    let least = match (is_long && rules.spares, behind) {
        (true, true) => least.min(BEHIND_MIN),
        (true, false) => least.max(LONG_MIN.min(3 * least)),
        (false, _) => least,
    };
    entrant.failed.is_none() && made < effort.n_max as usize && (made < least || !(over || behind))
}

/// Makes the copies of `entrants` in turns. One that fails is timed no longer, and says why.
///
/// # Errors
/// [`headway::ErrorKind::Interrupted`], and what is no failure of one way.
pub fn take(
    session: &mut Session<'_>,
    timer: &mut CopyTimer,
    entrants: &mut [Entrant],
    rules: Rules,
) -> Result<(), Error> {
    let time = Nanos(rules.effort.time.0.saturating_mul(entrants.len() as u64));
    let until = clock::now().saturating_add(time);
    let at_last = until.saturating_add(Nanos(time.0.saturating_mul(MORE)));
    let mut random = Pcg64Mcg::seed_from_u64(entrants.first().map_or(0, |entrant| entrant.spec.bytes as u64));
    let mut order: Vec<usize> = (0..entrants.len()).collect();
    loop {
        let now = clock::now();
        let over = now >= until;
        let medians = entrants.iter().filter_map(Entrant::figures).map(|figures| figures.median);
        let best = if rules.spares { medians.min().unwrap_or(Nanos::MAX) } else { Nanos::MAX };
        let mut due: Vec<bool> = entrants.iter().map(|entrant| wants(entrant, best, rules, over)).collect();
        if !due.contains(&true) {
            let more = rules.undecided.filter(|_| now < at_last).map(|undecided| undecided(entrants));
            more.into_iter().flatten().for_each(|at| due[at] = entrants[at].failed.is_none());
        }
        if !due.contains(&true) {
            break;
        }
        for last in (1..order.len()).rev() {
            order.swap(last, (random.next_u64() % (last as u64 + 1)) as usize);
        }
        for &at in order.iter().filter(|at| due[**at]) {
            match entrants[at].turn(timer, rules.parks) {
                Ok(()) => {}
                Err(
                    error @ (Error::WrongCopy { .. }
                    | Error::Headway(headway::Failure::Copy(_) | headway::Failure::Device(_))),
                ) => {
                    entrants[at].failed = Some(error);
                }
                Err(error) => return Err(error),
            }
            session.go_on()?;
        }
    }
    timer.compare()
}

#[cfg(test)]
mod tests {
    use headway_core::models::transfer::{Direction, HostMemory, Method};
    use headway_runtime::copy::How;

    use super::*;

    const EFFORT: Effort = Effort { warm_up: 1, n_min: 3, n_max: 20, time: Nanos(1) };
    const RULES: Rules = Rules { effort: EFFORT, parks: false, spares: true, undecided: None };

    fn entrant(bytes: usize, times: &[u64]) -> Entrant {
        let how = How::By(Method::Dma);
        let spec = CopySpec { how, direction: Direction::H2d, memory: HostMemory::Pinned, bytes, window: None };
        let times = times.iter().copied().map(Nanos).collect();
        Entrant { times, ..Entrant::new("dma".to_owned(), spec) }
    }

    #[test]
    fn who_is_far_behind_is_not_timed_longer_than_needed() {
        let wanted = |bytes, times: &[u64], over| wants(&entrant(bytes, times), Nanos(100), RULES, over);
        let (small, large) = (64, 1 << 30);
        assert!(wanted(small, &[131; 2], true) && !wanted(small, &[131; 3], false));
        assert!(wanted(small, &[131, 130, 131], false) && !wanted(small, &[130; 3], true));
        assert!(wanted(large, &[131], true) && !wanted(large, &[131; 2], false));
        assert!(wanted(large, &[130; 8], true) && !wanted(large, &[130; 9], true));
        assert!(!wanted(small, &[100; 20], false), "never more than the most");
        let failed = Entrant { failed: Some(headway::Failure::Interrupted.into()), ..entrant(small, &[]) };
        assert!(!wants(&failed, Nanos::MAX, RULES, false));
    }

    #[test]
    fn of_curves_every_kind_is_timed_alike() {
        let rules = Rules { spares: false, ..RULES };
        let wanted = |bytes, times: &[u64], over| wants(&entrant(bytes, times), Nanos(100), rules, over);
        assert!(wanted(64, &[900; 19], false) && !wanted(64, &[900; 3], true));
        assert!(wanted(1 << 30, &[900; 2], true) && !wanted(1 << 30, &[900; 3], true));
    }
}
