//! The figures of a guest's log.

use std::collections::BTreeMap;

use headway_core::files::guest_log::{
    Became, Call, Copy, Difference, DriverReason, LintFinding, SIZES, VerifyCounts, size_class,
};
use headway_core::units::{Bytes, Nanos};
use serde::Serialize;

use super::GuestLog;
use super::under_way::{BulkAhead, Role, roles};

/// Version of the summary's JSON form.
const SCHEMA: u32 = 1;
/// Copies that are listed one by one.
const SLOWEST: usize = 10;
/// Of fewer, a 99th percentile says nothing.
const P99_MIN: u64 = 100;
/// Of fewer copies that the driver made nothing is concluded.
const ALONE_MIN: u64 = 10;
/// What a guest's log says.
#[derive(Clone, Debug, Serialize)]
pub struct GuestSummary {
    /// Version of this JSON form.
    pub schema: u32,
    pub pid: u32,
    /// Its program and arguments.
    pub command: Vec<String>,
    /// Options of the guest.
    pub options: String,
    /// Whether the program came to its end; otherwise it was killed or runs on.
    pub ended: bool,
    /// Whether the log had reached its greatest size, so that later copies were only counted.
    pub full: bool,
    /// Lines that could not be written.
    pub lost: u64,
    /// Lines that were cut off.
    pub torn: u64,
    pub copies: u64,
    pub bytes: Bytes,
    /// Time of all threads in their calls.
    pub blocked: Nanos,
    /// By call, class of sizes and who made them.
    pub groups: Vec<CopyGroup>,
    /// Why copies were passed on.
    pub reasons: Vec<ReasonCount>,
    /// Small copies out of a GPU and bulk ones.
    pub beside: Beside,
    pub slowest: Vec<Copy>,
    /// What `--lint` found.
    pub findings: Vec<LintFinding>,
    /// Copies that `--verify` found wrong.
    pub differences: Vec<Difference>,
    /// What `--verify` did; `None` without it, and where the program was killed.
    pub verified: Option<VerifyCounts>,
}

/// Copies of one call, one class of sizes and one maker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CopyGroup {
    pub call: Call,
    /// The class of sizes.
    pub size: &'static str,
    /// Who made them.
    pub became: Became,
    pub copies: u64,
    pub bytes: Bytes,
    /// Median of the time in the call; `None` where no copy has a line.
    pub median: Option<Nanos>,
    /// 99th percentile; `None` of fewer than 100.
    pub p99: Option<Nanos>,
    pub longest: Nanos,
    /// All together.
    pub blocked: Nanos,
    /// Of copies that Headway made: the median of the driver's by the same call and of the same class of sizes, for fast copies only of
    /// those of ordinary memory; `None` where the driver made fewer than 10 that have lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drivers_median: Option<Nanos>,
}

impl CopyGroup {
    /// Whether the driver's copies took less time.
    pub(super) fn is_slower(&self) -> bool {
        self.median.zip(self.drivers_median).is_some_and(|(ours, drivers)| ours > drivers)
    }
}

/// A reason and how often it was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ReasonCount {
    /// Why copies were passed on.
    pub why: DriverReason,
    pub copies: u64,
}

/// Times of copies of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Times {
    pub copies: u64,
    /// Median of the time in the call; `None` = there is none.
    pub median: Option<Nanos>,
    pub longest: Nanos,
    /// All together.
    pub blocked: Nanos,
}

/// Small copies out of a GPU: with and without a bulk copy out of the same process under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Beside {
    /// Made by the driver, with a bulk copy under way in another CUDA stream: they wait for the engine.
    pub with: Times,
    /// Of these, how many were in the legacy default stream or came while the bulk copy was: they may wait for the order of streams, too.
    pub with_legacy: u64,
    /// Made by the driver, with a bulk copy under way in their own CUDA stream: they wait for its order, whatever the engine does.
    pub same_stream: Times,
    /// Made by the driver, without one.
    pub without: Times,
    /// Made by a kernel (`--aside`).
    pub aside: Times,
    /// What those with a bulk copy took beyond as many medians without one; `None` where too few say it.
    pub waited: Option<Nanos>,
}

/// Times of which each counts for as many copies as its line is a sample of.
#[derive(Default)]
struct Sample {
    times: Vec<(Nanos, u64)>,
}

impl Sample {
    fn add(&mut self, copy: &Copy) {
        self.times.push((copy.took, copy.of));
    }

    fn copies(&self) -> u64 {
        self.times.iter().fold(0, |sum: u64, (_, of)| sum.saturating_add(*of))
    }

    /// The smallest time that `percent` of the copies do not exceed.
    fn quantile(&mut self, percent: u64) -> Option<Nanos> {
        self.times.sort_unstable();
        let rank = (u128::from(self.copies()) * u128::from(percent)).div_ceil(100);
        let mut seen = 0;
        let at = |(time, of): &(Nanos, u64)| {
            seen += u128::from(*of);
            (seen >= rank).then_some(*time)
        };
        self.times.iter().find_map(at)
    }

    fn summed(mut self) -> Times {
        let blocked = self.times.iter().fold(0u64, |sum, (time, of)| sum.saturating_add(time.0.saturating_mul(*of)));
        let longest = self.times.iter().map(|(time, _)| *time).max().unwrap_or_default();
        Times { copies: self.copies(), median: self.quantile(50), longest, blocked: Nanos(blocked) }
    }
}

/// Sums a log up.
#[must_use]
pub fn summarize(log: &GuestLog) -> GuestSummary {
    let groups = groups(log);
    let mut reasons: BTreeMap<DriverReason, u64> = BTreeMap::new();
    for (why, copy) in log.copies.iter().filter_map(|copy| Some((copy.why?, copy))) {
        let copies = reasons.entry(why).or_default();
        *copies = copies.saturating_add(copy.of);
    }
    let mut slowest = log.copies.clone();
    slowest.sort_by_key(|copy| std::cmp::Reverse(copy.took));
    slowest.truncate(SLOWEST);
    GuestSummary {
        schema: SCHEMA,
        pid: log.start.pid,
        command: log.start.command.clone(),
        options: log.start.options.clone(),
        ended: log.end.is_some(),
        full: log.end.is_some_and(|end| end.full),
        lost: log.lost,
        torn: log.torn,
        copies: groups.iter().fold(0, |sum: u64, group| sum.saturating_add(group.copies)),
        bytes: Bytes(groups.iter().fold(0, |sum, group| sum.saturating_add(group.bytes.0))),
        blocked: groups.iter().fold(Nanos::ZERO, |sum, group| sum.saturating_add(group.blocked)),
        groups,
        reasons: reasons.into_iter().map(|(why, copies)| ReasonCount { why, copies }).collect(),
        beside: beside(&log.copies),
        slowest,
        findings: log.findings.clone(),
        differences: log.differences.clone(),
        verified: log.verified,
    }
}

#[derive(Default)]
struct Totals {
    copies: u64,
    bytes: u64,
    blocked: Nanos,
    longest: Nanos,
    sample: Sample,
}

impl Totals {
    fn add(&mut self, copies: u64, bytes: Bytes, took: Nanos, longest: Nanos) {
        self.copies = self.copies.saturating_add(copies);
        self.bytes = self.bytes.saturating_add(bytes.0);
        self.blocked = self.blocked.saturating_add(took);
        self.longest = self.longest.max(longest);
    }
}

fn groups(log: &GuestLog) -> Vec<CopyGroup> {
    let mut totals: BTreeMap<(Call, usize, Became), Totals> = BTreeMap::new();
    // The driver's copies that Headway could have made fast. A call with page-locked memory returns before its copy has ended, and so
    // says nothing of one with ordinary memory.
    let mut ordinary: BTreeMap<(Call, usize), Sample> = BTreeMap::new();
    for copy in &log.copies {
        if copy.became == Became::PassedOn && copy.why != Some(DriverReason::NotOrdinary) {
            ordinary.entry((copy.call, size_class(copy.bytes.0))).or_default().add(copy);
        }
        let totals = totals.entry((copy.call, size_class(copy.bytes.0), copy.became)).or_default();
        // The others that the line is a sample of are counted.
        totals.add(1, copy.bytes, copy.took, copy.took);
        totals.sample.add(copy);
    }
    for counted in &log.counted {
        let totals = totals.entry((counted.call, counted.class, counted.became)).or_default();
        totals.add(counted.copies, counted.bytes, counted.took, counted.longest);
    }
    let median = |sample: &mut Sample| sample.quantile(50).filter(|_| sample.copies() >= ALONE_MIN);
    let passed_on = totals.iter_mut().filter(|((_, _, became), _)| *became == Became::PassedOn);
    let all: BTreeMap<(Call, usize), Nanos> = passed_on
        .filter_map(|((call, class, _), totals)| Some(((*call, *class), median(&mut totals.sample)?)))
        .collect();
    let ordinary: BTreeMap<(Call, usize), Nanos> =
        ordinary.iter_mut().filter_map(|(key, sample)| Some((*key, median(sample)?))).collect();
    let drivers_median = |call: Call, class: usize, became: Became| match became {
        Became::PassedOn => None,
        Became::Fast | Became::PinnedOnce => ordinary.get(&(call, class)).copied(),
        Became::Aside | Became::Chunks => all.get(&(call, class)).copied(),
    };
    let group = |((call, class, became), mut totals): ((Call, usize, Became), Totals)| CopyGroup {
        call,
        size: SIZES.get(class).map_or("?", |(_, name)| name),
        became,
        copies: totals.copies,
        bytes: Bytes(totals.bytes),
        median: totals.sample.quantile(50),
        p99: (totals.sample.copies() >= P99_MIN).then(|| totals.sample.quantile(99)).flatten(),
        longest: totals.longest,
        blocked: totals.blocked,
        drivers_median: drivers_median(call, class, became),
    };
    totals.into_iter().map(group).collect()
}

fn beside(copies: &[Copy]) -> Beside {
    const LEGACY: u64 = 1;
    let [mut with, mut same, mut without, mut aside] = [const { Sample { times: Vec::new() } }; 4];
    let mut with_legacy = 0;
    for (copy, role) in copies.iter().zip(roles(copies)) {
        match role {
            Role::Aside => aside.add(copy),
            Role::Small(BulkAhead::OtherStream(bulk)) => {
                with.add(copy);
                let is_legacy = [copy.stream, copies[bulk].stream].contains(&LEGACY);
                with_legacy = if is_legacy { copy.of.saturating_add(with_legacy) } else { with_legacy };
            }
            Role::Small(BulkAhead::SameStream) => same.add(copy),
            Role::Small(BulkAhead::None) => without.add(copy),
            Role::Bulk(..) | Role::None => {}
        }
    }
    let [with, same_stream, without, aside] = [with, same, without, aside].map(Sample::summed);
    let known = with.copies > 0 && without.copies >= ALONE_MIN;
    let waited = without.median.filter(|_| known).map(|median| {
        let usual = Nanos(median.0.saturating_mul(with.copies));
        with.blocked.saturating_sub(usual)
    });
    Beside { with, with_legacy, same_stream, without, aside, waited }
}
