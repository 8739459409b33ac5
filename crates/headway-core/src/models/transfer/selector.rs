//! [`choose`](super::choose()) for one situation, compiled into thresholds of size.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use super::choose::{Available, Case, MethodRequest, compare_lead};
use super::{Curve, Method, Profile, Statistic, Tuning};
use crate::units::{Bytes, Nanos};

/// The method of every size in one situation: a binary search per copy, no allocation.
#[derive(Clone, Debug)]
pub struct Selector {
    /// Ascending; the first starts at 0.
    steps: Vec<SelectorStep>,
    built_in: bool,
}

/// How copies are made from one size to the next.
#[derive(Clone, Debug)]
pub struct SelectorStep {
    from: Bytes,
    pub method: Method,
    /// Of methods through pinned buffers.
    pub tuning: Option<Tuning>,
    curve: Option<Curve>,
}

impl SelectorStep {
    /// What a copy of `bytes` takes; `None` = not known.
    #[must_use]
    pub fn figure(&self, bytes: Bytes, statistic: Statistic) -> Option<Nanos> {
        Some(self.curve.as_ref()?.at(bytes, statistic)).filter(|time| *time != Nanos::MAX)
    }
}

/// A comparison on which a choice can hang. Its sides are linear between two points of the curves, and on either side of a bend beyond
/// the last, so that its outcome changes at most twice there.
#[derive(Clone, Copy)]
enum Test {
    /// Objective of one entry against that of another.
    Less(usize, usize),
    /// Objective of one entry against 97 % of that of another.
    Leads(usize, usize),
    /// Median of one entry against 97 % of that of another.
    MedianLeads(usize, usize),
    /// p99 of one entry against that of another.
    Tail(usize, usize),
}

impl Selector {
    /// Compiles the choices for `request`, whose size does not matter and whose pieces count as one.
    #[must_use]
    pub fn new(profile: &Profile, request: &MethodRequest, available: &Available) -> Self {
        let case = Case::new(profile, &MethodRequest { pieces: 1, ..request.clone() }, available);
        let mut steps: Vec<SelectorStep> = Vec::new();
        let mut last = None;
        for from in changes(&case) {
            let chosen = case.chosen(Bytes(from));
            if last.replace(chosen) == Some(chosen) {
                continue;
            }
            let (at, holds) = chosen;
            let (entry, tuning) = (&case.entries[at], case.tuning_of(at));
            let (method, curve) = (entry.method, entry.curve.clone().filter(|_| holds));
            steps.push(SelectorStep { from: Bytes(from), method, tuning, curve });
        }
        Self { steps, built_in: case.built_in }
    }

    /// How a copy of `bytes` is made.
    #[must_use]
    pub fn step(&self, bytes: Bytes) -> &SelectorStep {
        &self.steps[self.steps.partition_point(|step| step.from <= bytes) - 1]
    }

    /// Whether built-in figures decide, since the driver's own call was not measured here.
    #[must_use]
    pub const fn is_built_in(&self) -> bool {
        self.built_in
    }

    /// From which size on which method is used, ascending from 0.
    pub fn thresholds(&self) -> impl Iterator<Item = (Bytes, Method)> + '_ {
        self.steps.iter().map(|step| (step.from, step.method))
    }
}

/// Every size from which on the choice may differ, ascending from 0.
fn changes(case: &Case) -> BTreeSet<u64> {
    let curves = case.entries.iter().filter_map(|entry| entry.curve.as_ref());
    let bends: Vec<u64> = curves.clone().filter_map(Curve::bend).map(|bytes| bytes.0).collect();
    let sizes = curves.flat_map(Curve::points).map(|point| point.bytes.0);
    // A point is a range of its own: the sizes around it, which staging is judged by, change at it and behind it.
    let mut starts: BTreeSet<u64> = sizes.flat_map(|size| [size, size.saturating_add(1)]).collect();
    starts.extend(bends);
    starts.insert(0);
    let tests = tests(case);
    let ends: Vec<u64> = starts.iter().skip(1).map(|next| next - 1).chain([u64::MAX]).collect();
    let ranges: Vec<(u64, u64)> = starts.iter().copied().zip(ends).collect();
    for (first, last) in ranges {
        for test in &tests {
            let mut from = first;
            // Less, equal, greater or the reverse: at most two changes.
            for _ in 0..2 {
                let Some(change) = first_change(case, *test, from, last) else { break };
                starts.insert(change);
                from = change;
            }
        }
    }
    starts
}

fn tests(case: &Case) -> Vec<Test> {
    let usable = |at: &usize| case.entries[*at].barred.is_none() && case.entries[*at].curve.is_some();
    let usable: Vec<usize> = (0..case.entries.len()).filter(usable).collect();
    let mut tests = Vec::new();
    for (i, a) in usable.iter().enumerate() {
        tests.extend(usable[i + 1..].iter().map(|b| Test::Less(*a, *b)));
        tests.extend((*a != case.driver).then_some(Test::Leads(*a, case.driver)));
        if let (Method::Staged, Some(pageable)) = (case.entries[*a].method, case.pageable()) {
            tests.extend([Test::MedianLeads(*a, pageable), Test::Tail(*a, pageable)]);
        }
    }
    tests
}

/// The first size after `first` and up to `last` at which the outcome is not that of `first`, if that of `last` is not.
fn first_change(case: &Case, test: Test, first: u64, last: u64) -> Option<u64> {
    let start = outcome(case, test, first);
    if outcome(case, test, last) == start {
        return None;
    }
    let (mut same, mut other) = (first, last);
    while other - same > 1 {
        let middle = same + (other - same) / 2;
        if outcome(case, test, middle) == start { same = middle } else { other = middle }
    }
    Some(other)
}

fn outcome(case: &Case, test: Test, bytes: u64) -> Option<Ordering> {
    let cost = |at, statistic| case.cost(at, Bytes(bytes), statistic);
    match test {
        Test::Less(a, b) => Some(cost(a, case.objective)?.compare(cost(b, case.objective)?)),
        Test::Leads(a, b) => Some(compare_lead(cost(a, case.objective)?, cost(b, case.objective)?)),
        Test::MedianLeads(a, b) => Some(compare_lead(cost(a, Statistic::Median)?, cost(b, Statistic::Median)?)),
        Test::Tail(a, b) => Some(cost(a, Statistic::P99)?.compare(cost(b, Statistic::P99)?)),
    }
}
