//! Which method copies of ordinary memory take where no profile says it: built-in figures first, then what the copies themselves took.
//!
//! Copies of one [`LearntKind`] and size class have a few *methods*: the driver's own call, and `staged` with one of a few tunings. Most copies go
//! by the cheapest method within 5 % of the fastest. A few are *trials* of another method. What trials take beyond the method in use never exceeds
//! a 32nd of the time that this class of copies takes anyway, 0.2 ms apart, and one trial that turns out slower than was thought.
//! No clock and no threads here: times come in, decisions go out.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::builtin::{BuiltIn, NodeClass};
use super::{Direction, HostMemory, Method, Statistic, Tuning};
use crate::units::{Bytes, Nanos};

/// Times that are kept of a method; their median counts.
const KEPT: usize = 8;
/// Copies of a method until its own times are believed rather than built-in ones.
const BELIEVED: u64 = 3;
/// Copies from one trial to the next: while a method has too few times, then; and at most, where trials change nothing.
const EVERY_NEW: u32 = 4;
const EVERY_MIN: u32 = 16;
const EVERY_MAX: u32 = 256;
/// A method that takes longer than this many percent of the one in use is hopeless: it is tried once in so many turns.
const HOPELESS_PERCENT: u64 = 150;
const HOPELESS_TURNS: u32 = 8;
/// The part of a class's time that trials may take beyond the method in use, and what they may take anyway.
const EXTRA_PART: u64 = 32;
const EXTRA_ANYWAY: Nanos = Nanos(200_000);
/// Of copies by the driver, one in this many is timed once enough have been.
const TIMED: u64 = 16;
/// Copies of this size and more start the threads of staging at once.
const STARTS_IN: Bytes = Bytes(4 << 20);
const STARTS_OUT: Bytes = Bytes(2 << 20);
/// Smaller ones do when so much time could have been saved: starting takes 4 to 20 ms once (H200 and H100, 2026-11-23).
const STARTS_WHEN_MISSED: Nanos = Nanos(5_000_000);
/// A copy that gains so much by staging waits until the threads have started.
const STARTS_AWAITED: Nanos = Nanos(20_000_000);
/// Copies by the driver for which staging is left alone after it could not be used.
const ABSENT: u32 = 64;
/// Size classes: powers of two from 1 MiB to 16 GiB, which has all beyond.
const EXPONENTS: std::ops::RangeInclusive<u32> = 20..=34;

/// How the cheapest of nearly equal methods is weighed against the fastest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Prefer {
    /// The one with the least CPU time of those within 5 % of the fastest.
    #[default]
    Cheapest,
    /// The fastest one, whatever CPU time it takes.
    Fastest,
}

/// A time counts as near the least if it exceeds it by this many percent at most.
const NEAR_PERCENT: u64 = 105;

impl Prefer {
    /// The position of the one to take of `(time, CPU time)`; the first of equals.
    pub fn pick(self, costs: impl Iterator<Item = (Nanos, Nanos)> + Clone) -> Option<usize> {
        let least = costs.clone().map(|(time, _)| time).min()?;
        let near = |time: Nanos| u128::from(time.0) * 100 <= u128::from(least.0) * u128::from(NEAR_PERCENT);
        let all = costs.enumerate();
        match self {
            Self::Fastest => all.min_by_key(|(_, (time, _))| *time).map(|(at, _)| at),
            Self::Cheapest => {
                all.filter(|(_, (time, _))| near(*time)).min_by_key(|(_, (time, cpu))| (*cpu, *time)).map(|(at, _)| at)
            }
        }
    }
}

/// Copies that are judged together, sizes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearntKind {
    pub direction: Direction,
    /// Warm or fresh; files count as warm.
    pub memory: HostMemory,
}

/// What may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearnerLimits {
    /// Most threads of a tuning; 0 = the driver only.
    pub threads_max: u32,
    pub prefer: Prefer,
    /// Whether other methods are tried at all.
    pub learns: bool,
    /// Whether every copy is staged, whatever that costs.
    pub always: bool,
}

/// How one copy is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyAdvice {
    /// `staged` with this tuning, or the driver's own call.
    pub tuning: Option<Tuning>,
    /// Whether what the copy takes is asked for. It is worth waiting for the stream before the clock starts.
    pub timed: bool,
    /// Whether it is a trial of a method that is not in use.
    pub trial: bool,
    /// Whether it gains more than it takes to start the threads of staging.
    pub waits: bool,
}

impl CopyAdvice {
    /// `staged`, or the driver's own call.
    #[must_use]
    pub const fn method(&self) -> Method {
        if self.tuning.is_some() { Method::Staged } else { Method::Pageable }
    }
}

/// What a copy took that ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyTook {
    /// Without waiting for others.
    pub time: Nanos,
    /// CPU time of all threads; `None` = the caller's, for as long as the copy took.
    pub cpu: Option<Nanos>,
}

/// A method with what its last copies took for a MiB.
#[derive(Clone, Debug)]
struct TimedMethod {
    tuning: Option<Tuning>,
    /// The latest last.
    times: Vec<(u64, u64)>,
    /// Copies seen, those of earlier processes included.
    seen: u64,
    /// Number of the class's copy that tried it last.
    tried: u64,
    /// Built-in time and CPU time of a MiB.
    assumed: (u64, u64),
}

impl TimedMethod {
    /// Time and CPU time of a MiB.
    fn cost(&self) -> (u64, u64) {
        if self.times.is_empty() {
            return self.assumed;
        }
        let middle = |mut values: Vec<u64>, assumed: u64| {
            if self.seen < BELIEVED {
                values.push(assumed);
            }
            values.sort_unstable();
            // Of an even number the lesser: a method's first copy may have started threads.
            values[(values.len() - 1) / 2]
        };
        let (times, cpus) = self.times.iter().copied().unzip();
        (middle(times, self.assumed.0), middle(cpus, self.assumed.1))
    }

    fn push(&mut self, time: u64, cpu: u64) {
        if self.times.len() == KEPT {
            self.times.remove(0);
        }
        self.times.push((time, cpu));
        self.seen = self.seen.saturating_add(1);
    }
}

/// One size class.
#[derive(Clone, Debug)]
struct Class {
    /// The driver's own call first.
    methods: Vec<TimedMethod>,
    copies: u64,
    since_trial: u32,
    every: u32,
    trials: u32,
    /// What copies took, as far as known, and trials beyond the method in use.
    elapsed: u64,
    extra: u64,
    /// Copies for which staging is left alone.
    absent: u32,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Learner {
    node: NodeClass,
    limits: LearnerLimits,
    kinds: BTreeMap<LearntKind, BuiltIn>,
    classes: BTreeMap<(LearntKind, u32), Class>,
    started: bool,
    missed: u64,
    /// Copies that were timed by this process.
    timed: u64,
}

const MIB: u64 = 1 << 20;

fn of_mib(time: Nanos, bytes: Bytes) -> u64 {
    u64::try_from(u128::from(time.0) * u128::from(MIB) / u128::from(bytes.0.max(1))).unwrap_or(u64::MAX)
}

fn of_bytes(of_mib: u64, bytes: Bytes) -> u64 {
    u64::try_from(u128::from(of_mib) * u128::from(bytes.0) / u128::from(MIB)).unwrap_or(u64::MAX)
}

fn exponent(bytes: Bytes) -> u32 {
    bytes.0.checked_ilog2().unwrap_or(0).clamp(*EXPONENTS.start(), *EXPONENTS.end())
}

impl Learner {
    /// One that knows the built-in figures of `node`.
    #[must_use]
    pub const fn new(node: NodeClass, limits: LearnerLimits) -> Self {
        Self { node, limits, kinds: BTreeMap::new(), classes: BTreeMap::new(), started: false, missed: 0, timed: 0 }
    }

    /// Copies that were timed since the beginning.
    #[must_use]
    pub const fn timed(&self) -> u64 {
        self.timed
    }

    /// Threads and pinned memory of staging are there: from now on small copies may use them.
    pub const fn started(&mut self) {
        self.started = true;
    }

    fn class(&mut self, kind: LearntKind, bytes: Bytes) -> &mut Class {
        let (node, limits, exponent) = (self.node, self.limits, exponent(bytes));
        let kinds = &mut self.kinds;
        self.classes.entry((kind, exponent)).or_insert_with(|| {
            let figures = kinds.entry(kind).or_insert_with(|| node.figures(kind.direction, kind.memory));
            Class::new(node, kind, figures, Bytes(1 << exponent), limits.threads_max)
        })
    }

    /// How a copy of `bytes` is made.
    pub fn handle_copy(&mut self, kind: LearntKind, bytes: Bytes) -> CopyAdvice {
        let kind = normal(kind);
        let (limits, started) = (self.limits, self.started);
        let class = self.class(kind, bytes);
        class.copies += 1;
        class.absent = class.absent.saturating_sub(1);
        if limits.always && bytes >= NodeClass::LEAST {
            return CopyAdvice { waits: true, ..class.advice(1, false) };
        }
        if bytes < NodeClass::LEAST || limits.threads_max == 0 || class.absent > 0 {
            return class.advice(0, false);
        }
        let used = class.used(limits.prefer);
        let saves = class.could_save(used, bytes);
        class.elapsed = class.elapsed.saturating_add(of_bytes(class.methods[used].cost().0, bytes));
        if !started {
            let starts = if kind.direction == Direction::D2h { STARTS_OUT } else { STARTS_IN };
            if used == 0 || bytes < starts {
                self.missed = self.missed.saturating_add(saves);
                if self.missed < STARTS_WHEN_MISSED.0 {
                    return self.class(kind, bytes).advice(0, false);
                }
            }
            let advice = self.class(kind, bytes).advice(used.max(1), used == 0);
            return CopyAdvice { waits: saves >= STARTS_AWAITED.0, ..advice };
        }
        if !limits.learns {
            return class.advice(used, false);
        }
        match class.trial(used, bytes) {
            Some(method) => class.advice(method, true),
            None => class.advice(used, false),
        }
    }

    /// A copy was made as advised. Not to be told of copies beside which others ran.
    pub fn handle_took(&mut self, kind: LearntKind, bytes: Bytes, advice: CopyAdvice, took: CopyTook) {
        let (kind, prefer) = (normal(kind), self.limits.prefer);
        let class = self.class(kind, bytes);
        let Some(method) = class.methods.iter().position(|method| method.tuning == advice.tuning) else { return };
        let used = class.used(prefer);
        if advice.trial {
            let expected = of_bytes(class.methods[used].cost().0, bytes);
            class.extra = class.extra.saturating_add(took.time.0.saturating_sub(expected));
        }
        let cpu = took.cpu.unwrap_or(took.time);
        class.methods[method].push(of_mib(took.time, bytes), of_mib(cpu, bytes));
        if class.used(prefer) != used {
            class.every = EVERY_MIN;
        }
        self.timed += 1;
    }

    /// Staging could not be used for a copy of this kind: the driver's own call is, for a while.
    pub fn handle_absent(&mut self, kind: LearntKind, bytes: Bytes) {
        self.class(normal(kind), bytes).absent = ABSENT;
    }

    /// All that copies have taught, for a file.
    #[must_use]
    pub fn learnt(&self) -> Vec<LearntClass> {
        let method = |method: &TimedMethod| {
            let (time, cpu) = method.cost();
            (method.seen >= BELIEVED).then_some(LearntMethod {
                tuning: method.tuning,
                copies: method.seen,
                ns_per_mib: time,
                cpu_ns_per_mib: cpu,
            })
        };
        let class = |(&(kind, exponent), class): (&(LearntKind, u32), &Class)| LearntClass {
            kind,
            exponent,
            methods: class.methods.iter().filter_map(method).collect(),
        };
        self.classes.iter().map(class).filter(|class| !class.methods.is_empty()).collect()
    }

    /// Takes what earlier processes have learnt; what this one has learnt itself stays. Methods that are not known, or not allowed, are
    /// left out. The number of copies that it rests on.
    pub fn recall(&mut self, learnt: &[LearntClass]) -> u64 {
        let mut copies = 0u64;
        for past in learnt.iter().filter(|past| EXPONENTS.contains(&past.exponent)) {
            let class = self.class(normal(past.kind), Bytes(1 << past.exponent));
            for method in &past.methods {
                let Some(known) = class.methods.iter_mut().find(|known| known.tuning == method.tuning) else {
                    continue;
                };
                let sane = method.copies >= BELIEVED && (1..=FASTEST_BELIEVED).contains(&method.ns_per_mib);
                if known.seen > 0 || !sane {
                    continue;
                }
                known.times = vec![(method.ns_per_mib, method.cpu_ns_per_mib); BELIEVED as usize];
                known.seen = method.copies;
                copies = copies.saturating_add(method.copies);
            }
        }
        copies
    }
}

/// A MiB that took longer than this was not measured: 1 s.
const FASTEST_BELIEVED: u64 = 1_000_000_000;

/// What was learnt of one size class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearntClass {
    pub kind: LearntKind,
    /// Sizes from 2 to the power of this to just below the next power.
    pub exponent: u32,
    #[serde(alias = "ways")]
    pub methods: Vec<LearntMethod>,
}

/// What was learnt of one method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearntMethod {
    /// Of `staged`; `None` = the driver's own call.
    pub tuning: Option<Tuning>,
    pub copies: u64,
    pub ns_per_mib: u64,
    pub cpu_ns_per_mib: u64,
}

/// What two processes have learnt: of each method what `ours` says, else `theirs`.
#[must_use]
pub fn merge(ours: &[LearntClass], theirs: &[LearntClass]) -> Vec<LearntClass> {
    let mut all: BTreeMap<(LearntKind, u32), Vec<LearntMethod>> = BTreeMap::new();
    for class in ours.iter().chain(theirs) {
        let methods = all.entry((class.kind, class.exponent)).or_default();
        for method in &class.methods {
            if methods.iter().all(|known| known.tuning != method.tuning) {
                methods.push(*method);
            }
        }
    }
    all.into_iter().map(|((kind, exponent), methods)| LearntClass { kind, exponent, methods }).collect()
}

fn normal(kind: LearntKind) -> LearntKind {
    let fresh = kind.direction == Direction::D2h && kind.memory == HostMemory::Untouched;
    LearntKind { memory: if fresh { HostMemory::Untouched } else { HostMemory::Touched }, ..kind }
}

impl Class {
    fn new(node: NodeClass, kind: LearntKind, figures: &BuiltIn, bytes: Bytes, threads_max: u32) -> Self {
        let tunings = node.tunings(kind.direction, kind.memory, bytes, threads_max);
        let (driver, staged) =
            (figures.driver.at(bytes, Statistic::Median), figures.staged.at(bytes, Statistic::Median));
        // The built-in time is that of so many threads.
        let full = node.tunings(kind.direction, kind.memory, bytes, u32::MAX)[0].threads;
        let method = |tuning: Option<Tuning>| {
            let time = match tuning {
                None => driver,
                Some(tuning) if tuning.threads < full => {
                    Nanos(staged.0.saturating_mul(u64::from(full)) / u64::from(tuning.threads.max(1)))
                }
                Some(_) => staged,
            };
            let busy = tuning.map_or(1, |tuning| u64::from(tuning.threads) + 1);
            let assumed = (of_mib(time, bytes), of_mib(time, bytes).saturating_mul(busy));
            TimedMethod { tuning, times: Vec::new(), seen: 0, tried: 0, assumed }
        };
        let methods = std::iter::once(None).chain(tunings.into_iter().map(Some)).map(method).collect();
        Self { methods, copies: 0, since_trial: 0, every: EVERY_NEW, trials: 0, elapsed: 0, extra: 0, absent: 0 }
    }

    /// The way in use.
    fn used(&self, prefer: Prefer) -> usize {
        let costs = self.methods.iter().map(|method| method.cost()).map(|(time, cpu)| (Nanos(time), Nanos(cpu)));
        prefer.pick(costs).unwrap_or(0)
    }

    fn advice(&self, method: usize, trial: bool) -> CopyAdvice {
        let timed = method > 0 || trial || self.methods[0].seen < KEPT as u64 || self.copies.is_multiple_of(TIMED);
        CopyAdvice { tuning: self.methods[method].tuning, timed, trial, waits: false }
    }

    /// What staging could save of a copy: what is known, or a fifth where nothing is and the built-in figures are near each other.
    fn could_save(&self, used: usize, bytes: Bytes) -> u64 {
        let (driver, best) = (self.methods[0].cost().0, self.methods[used].cost().0);
        let known = driver.saturating_sub(best);
        let unknown = used == 0
            && self.methods[1..]
                .iter()
                .any(|method| method.seen < BELIEVED && method.cost().0 <= driver.saturating_mul(2));
        of_bytes(if unknown { driver / 5 } else { known }, bytes)
    }

    /// A method other than `used` to try with this copy.
    fn trial(&mut self, used: usize, bytes: Bytes) -> Option<usize> {
        self.since_trial = self.since_trial.saturating_add(1);
        if self.since_trial < self.every {
            return None;
        }
        let cost = self.methods[used].cost().0;
        let hopeless = |method: &TimedMethod| {
            method.seen >= BELIEVED && method.cost().0.saturating_mul(100) > cost.saturating_mul(HOPELESS_PERCENT)
        };
        let left = (self.elapsed / EXTRA_PART).saturating_add(EXTRA_ANYWAY.0).saturating_sub(self.extra);
        let affordable = |method: &TimedMethod| of_bytes(method.cost().0.saturating_sub(cost), bytes) <= left;
        let turn = (self.trials + 1).is_multiple_of(HOPELESS_TURNS);
        let others = self
            .methods
            .iter()
            .enumerate()
            .filter(|(at, method)| *at != used && affordable(method) && (turn || !hopeless(method)));
        // Methods with few times first, then the one that was tried longest ago.
        let (at, _) = others.min_by_key(|(_, method)| (method.seen.min(BELIEVED), method.tried))?;
        self.methods[at].tried = self.copies;
        (self.since_trial, self.trials) = (0, self.trials.wrapping_add(1));
        let new = self.methods.iter().any(|method| method.seen < BELIEVED && !hopeless(method) && affordable(method));
        self.every = if new { EVERY_NEW } else { self.every.saturating_mul(2).clamp(EVERY_MIN, EVERY_MAX) };
        Some(at)
    }
}

#[cfg(test)]
mod tests;
