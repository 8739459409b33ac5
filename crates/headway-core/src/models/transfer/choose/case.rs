//! One situation with its curves looked up, in which methods of copies of any size can be compared.

use std::borrow::Cow;
use std::cmp::{Ordering, Reverse};
use std::collections::BTreeSet;

use super::{Available, Candidate, CostFigures, MethodChoice, MethodRequest, MethodVerdict, RejectionReason};
use crate::models::index::EndpointId;
use crate::models::transfer::curve::{Exact, TAIL_SAMPLES};
use crate::models::transfer::price::price;
use crate::models::transfer::{
    BackgroundLoad, Curve, CurveKey, Direction, HostMemory, Method, Price, PricedTuning, Profile, Statistic, Tuning,
    TuningKey,
};
use crate::models::transfer::{default_tuning, defaults};
use crate::units::{Bytes, Nanos};

/// A lead counts from here on: the faster takes at most 97 of 100.
const LEAD: (u32, u32) = (100, 97);

/// A method with its curve in one situation, and what bars it whatever the size.
#[derive(Clone, Debug)]
struct Entry {
    method: Method,
    curve: Option<Curve>,
    barred: Option<RejectionReason>,
}

/// Everything that decides but the size.
#[derive(Clone, Debug)]
pub(crate) struct MethodCase {
    entries: Vec<Entry>,
    /// Position of the driver's own call.
    driver: usize,
    objective: Statistic,
    /// Of methods through pinned buffers.
    pub(crate) tuning: Tuning,
    /// Built-in figures decide, since the driver's own call was not measured here.
    pub(crate) built_in: bool,
    direction: Direction,
    prices: Vec<PricedTuning>,
    realtime: bool,
    stale: bool,
    /// Figures scatter, so that a small lead means nothing.
    measured: bool,
    /// Pieces asked for, and pieces of the curves.
    pieces: (u32, u32),
    memory: HostMemory,
    why: Vec<String>,
}

/// What a size decides: the entry chosen, the best of the others that could have been, and why each other was not.
struct Pick {
    chosen: usize,
    runner_up: Option<usize>,
    /// The chosen entry's figure may be promised: it is none of a stale profile, and there is a maximum where one is needed.
    holds: bool,
    reasons: Vec<Option<RejectionReason>>,
}

/// Whether `a` leads `b`.
fn leads(a: Exact, b: Exact) -> bool {
    a.times(LEAD.0).compare(b.times(LEAD.1)) != Ordering::Greater
}

/// The situation in which figures are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FigureSituation {
    memory: HostMemory,
    load: BackgroundLoad,
    active: u32,
    pieces: u32,
}

impl MethodCase {
    pub(crate) fn new(profile: &Profile, request: &MethodRequest, available: &Available) -> Self {
        let request = &normal(request);
        let driver = driver(request, available);
        let mut why = Vec::new();
        let (profile, ends, situation) = find(profile, request, available, driver, &mut why);
        let built_in = matches!(profile, Cow::Owned(_));
        let mut entries = entries(&profile, request, available, driver, ends, situation);
        if let Some(difference) = &available.stale {
            why.push(format!(
                "the profile is stale ({difference}): the driver only; `headway measure` writes a new one"
            ));
            for entry in entries.iter_mut().filter(|entry| entry.method != driver) {
                entry.barred = Some(RejectionReason::Stale);
            }
        }
        let driver = entries.iter().position(|entry| entry.method == driver).expect("the driver's call is an entry");
        let key = tuning_key(&profile, request, ends.0);
        let tuning = key
            .and_then(|key| profile.tuning(&key, &available.bounds))
            .unwrap_or_else(|| available.bounds.pick(&[], default_tuning(request.direction, request.memory)));
        let prices = key.map_or_else(Vec::new, |key| profile.prices_of(&key).to_vec());
        let measured = profile.stamp.as_ref().is_some_and(|stamp| stamp.source != "sim");
        Self {
            entries,
            driver,
            objective: request.objective,
            tuning,
            built_in,
            direction: request.direction,
            prices,
            realtime: available.realtime,
            stale: available.stale.is_some(),
            measured,
            pieces: (request.pieces, situation.pieces),
            memory: request.memory,
            why,
        }
    }

    /// The figure of entry `at`, exactly.
    fn cost(&self, at: usize, bytes: Bytes, statistic: Statistic) -> Option<Exact> {
        let curve = self.entries[at].curve.as_ref()?;
        let (asked, had) = self.pieces;
        if asked == had {
            return curve.exact(bytes, statistic);
        }
        // As many requests of the measured number of pieces as it takes, each with its share of the bytes.
        let requests = asked.div_ceil(had);
        Some(curve.exact(Bytes(bytes.0.div_ceil(u64::from(requests))), statistic)?.times(requests))
    }

    /// The position of `pageable`, with which staging is compared.
    fn pageable(&self) -> Option<usize> {
        self.entries.iter().position(|entry| entry.method == Method::Pageable)
    }

    /// Why entry `at` cannot be chosen at this size, whatever the others cost.
    fn bars(&self, at: usize, bytes: Bytes) -> Option<RejectionReason> {
        let entry = &self.entries[at];
        if entry.barred.is_some() {
            return entry.barred;
        }
        if entry.curve.is_none() {
            return Some(RejectionReason::NoCurve);
        }
        if self.realtime && self.cost(at, bytes, Statistic::Max).is_none() {
            return Some(RejectionReason::NoBound);
        }
        if self.cost(at, bytes, self.objective).is_none() {
            return Some(RejectionReason::NoValue(self.objective));
        }
        if entry.method == Method::Staged { self.staging_bars(at, bytes) } else { None }
    }

    /// `staged` against `pageable`, at this size and the measured ones around it.
    fn staging_bars(&self, at: usize, bytes: Bytes) -> Option<RejectionReason> {
        let Some(pageable) = self.pageable() else { return Some(RejectionReason::NoComparison) };
        let points = self.entries[at].curve.as_ref().map_or(&[][..], Curve::points);
        let below = points.iter().rev().map(|p| p.bytes).find(|size| *size < bytes);
        let above = points.iter().map(|p| p.bytes).find(|size| *size > bytes);
        for size in [Some(bytes), below, above].into_iter().flatten() {
            let of = |entry| self.cost(entry, size, Statistic::Median);
            let (Some(ours), Some(theirs)) = (of(at), of(pageable)) else { return Some(RejectionReason::NoComparison) };
            if ours.compare(theirs) != Ordering::Less {
                return Some(RejectionReason::StagingTrails(size));
            }
            if !leads(ours, theirs) {
                return Some(RejectionReason::StagingLead(size));
            }
        }
        // Of fewer copies the 99th percentile is the slowest of all, and one in forty that something else held up tells nothing.
        let few = |entry| (1..TAIL_SAMPLES).contains(&self.samples(entry, bytes));
        if few(at) || few(pageable) {
            return None;
        }
        let tail = |entry| self.cost(entry, bytes, Statistic::P99);
        match (tail(at), tail(pageable)) {
            (Some(ours), Some(theirs)) if ours.compare(theirs) == Ordering::Greater => {
                Some(RejectionReason::StagingTail)
            }
            (None, Some(_)) => Some(RejectionReason::NoComparison),
            _ => None,
        }
    }

    fn pick(&self, bytes: Bytes) -> Pick {
        let mut reasons: Vec<_> = (0..self.entries.len()).map(|at| self.bars(at, bytes)).collect();
        let cost = |at: usize| self.cost(at, bytes, self.objective);
        let mut fit: Vec<(usize, Exact)> = (0..self.entries.len())
            .filter(|at| reasons[*at].is_none())
            .filter_map(|at| Some((at, cost(at)?)))
            .collect();
        // A stable sort: entries are in the order of methods, which breaks ties.
        fit.sort_by(|a, b| a.1.compare(b.1));
        let best = fit.first().copied();
        let mut chosen = best.map_or(self.driver, |(at, _)| at);
        let own = fit.iter().find(|(at, _)| *at == self.driver);
        if let (true, Some((_, best)), Some((_, own))) = (self.measured, best, own)
            && chosen != self.driver
            && !leads(best, *own)
        {
            chosen = self.driver;
        }
        for (at, cost) in &fit {
            let least = own.is_some_and(|(_, own)| cost.compare(*own) == Ordering::Less);
            reasons[*at] = Some(if chosen == self.driver && least {
                RejectionReason::WithinMargin
            } else {
                RejectionReason::Slower
            });
        }
        let runner_up = fit.iter().map(|(at, _)| *at).find(|at| *at != chosen);
        Pick { chosen, runner_up, holds: best.is_some() && !self.stale, reasons }
    }

    /// The method for a copy of `bytes`, and the objective's figure if it may be promised.
    pub(crate) fn best(&self, bytes: Bytes) -> (Method, Option<Nanos>) {
        let pick = self.pick(bytes);
        let cost = if pick.holds { self.cost(pick.chosen, bytes, self.objective) } else { None };
        (self.entries[pick.chosen].method, cost.map(Exact::rounded_up).filter(|time| *time < Nanos::MAX))
    }

    /// The tuning that goes with the entry, if its method goes through pinned buffers.
    fn tuning_of(&self, at: usize) -> Option<Tuning> {
        let occupied = self.entries[at].method.abilities().occupies;
        occupied.staging(self.memory).then_some(self.tuning)
    }

    /// What the entry keeps busy.
    fn price(&self, at: usize) -> Price {
        price(self.entries[at].method, self.direction, self.memory, self.tuning_of(at), &self.prices)
    }

    fn figures(&self, at: usize, bytes: Bytes) -> CostFigures {
        let of = |statistic| self.cost(at, bytes, statistic).map(Exact::rounded_up).filter(|t| *t < Nanos::MAX);
        CostFigures {
            median: of(Statistic::Median),
            p99: of(Statistic::P99),
            max: of(Statistic::Max),
            n: self.samples(at, bytes),
        }
    }

    /// Copies that the figures of entry `at` for this size come from: of the size, or of the sizes around it the fewer; 0 = they
    /// were set.
    fn samples(&self, at: usize, bytes: Bytes) -> u32 {
        let points = self.entries[at].curve.as_ref().map_or(&[][..], Curve::points);
        let next = points.partition_point(|p| p.bytes < bytes);
        let exact = points.get(next).filter(|p| p.bytes == bytes);
        let around = points.iter().take(next + 1).skip(next.saturating_sub(1)).map(|p| p.n).min();
        exact.map(|p| p.n).or(around).unwrap_or(0)
    }

    pub(super) fn choice(&self, bytes: Bytes) -> MethodChoice {
        let pick = self.pick(bytes);
        let figures: Vec<CostFigures> = (0..self.entries.len()).map(|at| self.figures(at, bytes)).collect();
        let mut order: Vec<usize> = (0..self.entries.len()).collect();
        order.sort_by_key(|at| {
            let cost = figures[*at].of(self.objective);
            (Reverse(*at == pick.chosen), cost.is_none(), cost, *at)
        });
        let candidates = order.into_iter().map(|at| {
            let reason = if at == pick.chosen { None } else { pick.reasons[at] };
            let verdict = reason.map_or(MethodVerdict::Chosen, MethodVerdict::Rejected);
            let price = self.price(at);
            Candidate { method: self.entries[at].method, figures: figures[at], price, verdict }
        });
        let predicted = figures[pick.chosen].of(self.objective).filter(|_| pick.holds);
        let mut why = vec![self.decided(&pick, &figures)];
        why.extend(self.why.iter().cloned());
        MethodChoice {
            method: self.entries[pick.chosen].method,
            tuning: self.tuning_of(pick.chosen),
            price: self.price(pick.chosen),
            predicted,
            runner_up: pick.runner_up.map(|at| self.entries[at].method),
            why,
            candidates: candidates.collect(),
        }
    }

    /// The line that says what decided.
    fn decided(&self, pick: &Pick, figures: &[CostFigures]) -> String {
        let (method, n) = (self.entries[pick.chosen].method, figures[pick.chosen].n);
        let objective = match self.objective {
            Statistic::P99 if (1..TAIL_SAMPLES).contains(&n) => format!("the longest of {n}"),
            objective => objective.to_string(),
        };
        let cost = figures[pick.chosen].of(self.objective).filter(|_| pick.holds);
        let Some(cost) = cost else {
            return format!("`{method}` is the driver's own call; no figure holds for any method here");
        };
        let Some(other) = pick.runner_up else { return format!("{objective} {cost}; no other method can be used") };
        let (name, theirs) = (self.entries[other].method, figures[other].of(self.objective).unwrap_or(cost));
        if pick.reasons[other] == Some(RejectionReason::WithinMargin) {
            return format!(
                "`{name}` with {objective} {theirs} leads the driver's own call with {cost} by less than 3 %"
            );
        }
        format!("{objective} {cost}; next is `{name}` with {theirs}")
    }
}

/// The request with fields that mean nothing for its direction set to what curves have there.
fn normal(request: &MethodRequest) -> MethodRequest {
    let mut request = request.clone();
    request.pieces = request.pieces.max(1);
    if request.direction == Direction::Peer {
        request.memory = HostMemory::Pinned;
    } else {
        request.peer = None;
    }
    request
}

/// The driver's own method: `peer` between GPUs, `dma` for pinned memory, else `pageable`, which stands for all three where
/// they are missing.
fn driver(request: &MethodRequest, available: &Available) -> Method {
    let method = Method::of_driver(request.direction, request.memory);
    if available.methods.contains(&method) { method } else { Method::Pageable }
}

/// The profile to use (the one given, else the built-in one), the ends as its keys have them, and the nearest situation to
/// the request in which the driver's own method was measured.
fn find<'p>(
    profile: &'p Profile,
    request: &MethodRequest,
    available: &Available,
    driver: Method,
    why: &mut Vec<String>,
) -> (Cow<'p, Profile>, (EndpointId, Option<EndpointId>), FigureSituation) {
    let ends = (request.gpu, request.peer);
    let any: Vec<Method> = available.methods.iter().copied().chain([driver]).collect();
    // Without the driver's figures nothing shows that another method is not slower; for a deadline it is enough to have a bound.
    let bounded = || available.realtime.then(|| nearest(profile, request, ends, &any)).flatten();
    if let Some(situation) = nearest(profile, request, ends, &[driver]).or_else(bounded) {
        why.extend(assumed(request, situation));
        return (Cow::Borrowed(profile), ends, situation);
    }
    why.push(format!(
        "default: the driver's own call `{driver}` was not measured for {} of this GPU; `headway measure` writes a profile",
        request.direction
    ));
    let (built_in, ends) = (defaults(), (EndpointId(0), request.peer.map(|_| EndpointId(1))));
    let none = FigureSituation { memory: request.memory, load: BackgroundLoad::Alone, active: 1, pieces: 1 };
    let situation = nearest(&built_in, request, ends, &any).unwrap_or(none);
    (Cow::Owned(built_in), ends, situation)
}

/// What a situation differs in from the one asked for, a line each.
fn assumed(request: &MethodRequest, found: FigureSituation) -> Vec<String> {
    let mut lines = Vec::new();
    if found.memory != request.memory {
        lines.push(format!("assumed: {} memory is like {} memory, which was measured", request.memory, found.memory));
    }
    if found.load != request.load {
        lines.push(format!("assumed: under load {} as {}, which was measured", request.load, found.load));
    }
    if found.active != request.active {
        lines.push(format!("assumed: {} active GPUs are like {}, as measured", request.active, found.active));
    }
    if found.pieces != request.pieces {
        lines.push(format!("assumed: {} pieces cost as requests of {}, as measured", request.pieces, found.pieces));
    }
    lines
}

fn nearest(
    profile: &Profile,
    request: &MethodRequest,
    (gpu, peer): (EndpointId, Option<EndpointId>),
    methods: &[Method],
) -> Option<FigureSituation> {
    let mut known: Vec<FigureSituation> = Vec::new();
    for method in methods {
        let from = CurveKey {
            gpu,
            peer,
            method: *method,
            direction: request.direction,
            ..key_of(HostMemory::Pinned, BackgroundLoad::Alone, 0, 0)
        };
        let same = |k: &CurveKey| (k.gpu, k.peer, k.method, k.direction) == (gpu, peer, *method, request.direction);
        let keys = profile.curves.range(from..).map(|(key, _)| key).take_while(|key| same(key));
        known.extend(keys.map(|k| FigureSituation {
            memory: k.memory,
            load: k.load,
            active: k.active,
            pieces: k.pieces,
        }));
    }
    let ordinary = matches!(request.memory, HostMemory::Untouched | HostMemory::File);
    let memory_fits = |memory| memory == request.memory || (ordinary && memory == HostMemory::Touched);
    known.retain(|s| {
        let load_fits = s.load == request.load || s.load == BackgroundLoad::Alone;
        memory_fits(s.memory) && load_fits && (1..=request.pieces).contains(&s.pieces)
    });
    known.into_iter().min_by_key(|s| {
        let away = (s.active.abs_diff(request.active), s.active);
        (Reverse(s.pieces), s.memory != request.memory, s.load != request.load, away)
    })
}

/// A key with everything but the situation left for the caller to set.
fn key_of(memory: HostMemory, load: BackgroundLoad, active: u32, pieces: u32) -> CurveKey {
    let method = Method::Pageable;
    CurveKey { gpu: EndpointId(0), peer: None, method, direction: Direction::H2d, memory, load, active, pieces }
}

/// All methods that have a curve for these ends or are available, in order, with their curves in `situation`.
fn entries(
    profile: &Profile,
    request: &MethodRequest,
    available: &Available,
    driver: Method,
    (gpu, peer): (EndpointId, Option<EndpointId>),
    situation: FigureSituation,
) -> Vec<Entry> {
    let about = |k: &&CurveKey| k.gpu == gpu && k.peer == peer && k.direction == request.direction;
    let mut methods: BTreeSet<Method> = profile.curves.keys().filter(about).map(|key| key.method).collect();
    methods.extend(&available.methods);
    methods.retain(|method| method.abilities().directions.contains(&request.direction));
    methods.insert(driver);
    let key = |method| {
        let base = key_of(situation.memory, situation.load, situation.active, situation.pieces);
        CurveKey { gpu, peer, method, direction: request.direction, ..base }
    };
    let entry = |method| Entry {
        method,
        curve: profile.curves.get(&key(method)).cloned(),
        barred: if method == driver { None } else { barred(method, request, available) },
    };
    methods.into_iter().map(entry).collect()
}

/// What bars `method` whatever it costs.
fn barred(method: Method, request: &MethodRequest, available: &Available) -> Option<RejectionReason> {
    let pinned = request.memory == HostMemory::Pinned;
    let row = method.abilities();
    let tests = [
        (!pinned && row.needs_pinned(), RejectionReason::NotPinned),
        (!row.between_gpus() && !row.memory.contains(&request.memory), RejectionReason::OtherMemory),
        (!available.methods.contains(&method), RejectionReason::NotAvailable),
        (available.no_sm && row.occupies.multiprocessor(), RejectionReason::NoSm),
        (available.no_threads && row.occupies.staging(request.memory), RejectionReason::NoThreads),
        (available.bounds.cpus_max < 2 && row.occupies.staging(request.memory), RejectionReason::Bounded),
        (available.bounds.multiprocessors_max == 0 && row.occupies.multiprocessor(), RejectionReason::Bounded),
        (row.occupies.others && !available.multipath, RejectionReason::NotGranted),
        (row.occupies.others && request.objective != Statistic::Median, RejectionReason::NotForLatency),
        (!request.alignment.is_multiple_of(row.aligned), RejectionReason::Unaligned),
    ];
    tests.into_iter().find(|(bars, _)| *bars).map(|(_, reason)| reason)
}

/// The situation nearest to the request in which a tuning was measured.
fn tuning_key(profile: &Profile, request: &MethodRequest, gpu: EndpointId) -> Option<TuningKey> {
    let ordinary = matches!(request.memory, HostMemory::Untouched | HostMemory::File);
    let fits = |k: &&TuningKey| {
        let memory = k.memory == request.memory || (ordinary && k.memory == HostMemory::Touched);
        k.gpu == gpu && k.direction == request.direction && memory
    };
    let near = |k: &&TuningKey| (k.memory != request.memory, k.active.abs_diff(request.active), k.active);
    profile.tunings.keys().filter(fits).min_by_key(near).copied()
}
