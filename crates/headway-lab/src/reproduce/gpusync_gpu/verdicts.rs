//! What the runs say: a row for each claim, a table of all configurations.

use headway_core::units::Nanos;

use super::results::Measured;
use crate::reproduce::{Row, Said, Verdict, said, silent};

/// At the same load, the worst response of the best run without Headway is to be at least so many times Headway's, and
/// Headway's mean at most so many times as long.
const WORST_GAIN: f64 = 2.0;
const MEAN_LOSS: f64 = 1.05;

/// The repetitions of each configuration at each load, in the order of the first.
pub(super) fn grouped(all: &[Measured]) -> Vec<Vec<&Measured>> {
    let mut order: Vec<Vec<&Measured>> = Vec::new();
    for measured in all {
        let same = |runs: &&mut Vec<&Measured>| runs[0].name == measured.name && runs[0].busy == measured.busy;
        match order.iter_mut().find(same) {
            Some(runs) => runs.push(measured),
            None => order.push(vec![measured]),
        }
    }
    order
}

pub(super) fn mean_of(runs: &[&Measured], of: impl Fn(&Measured) -> f64) -> f64 {
    runs.iter().map(|run| of(run)).sum::<f64>() / runs.len() as f64
}

pub(super) fn worst_of(runs: &[&Measured]) -> f64 {
    runs.iter().map(|run| run.max).fold(0.0, f64::max)
}

fn row(what: &str, paper: Said, ours: String, holds: bool, why: &str) -> Row {
    Row { what: what.to_owned(), paper, ours, verdict: Verdict::own(holds), why: why.to_owned() }
}

/// What the tracks of all runs, as one digest of each, say of each other.
fn same_results(runs: usize, digests: usize) -> String {
    match digests {
        1 => format!("all {runs} runs found the same tracks, and in the first frames those of the CPU form"),
        _ => format!("the tracks of {runs} runs are of {digests} kinds; they should all be the same"),
    }
}

pub(super) fn rows(all: &[Measured], expected: usize) -> Vec<Row> {
    let lost: u64 = all.iter().map(|run| run.lost).sum();
    let frames: u64 = all.iter().map(|run| run.frames).sum();
    let digests: std::collections::BTreeSet<u64> = all.iter().map(|run| run.digest).collect();
    let mut rows = vec![
        row(
            "results",
            silent("not stated"),
            same_results(all.len(), digests.len()),
            digests.len() == 1,
            "a migration must not change a result",
        ),
        row(
            "frames",
            silent("not stated"),
            format!("{frames} tracked, {lost} lost, {} of {expected} runs", all.len()),
            lost == 0,
            "no frame may be lost",
        ),
    ];
    let bounded: Vec<_> = all.iter().filter_map(|run| run.of_bound.map(|share| (share, run))).collect();
    let nearest = bounded.iter().max_by(|a, b| a.0.total_cmp(&b.0));
    rows.push(match nearest {
        Some((share, run)) => row(
            "blocking",
            silent("bounds are proven in an appendix; whether one was exceeded is not said"),
            format!(
                "{} runs with bounds; the nearest, {}, reached {share:.1} % of {}",
                bounded.len(),
                run.name,
                Nanos(run.bound_ns.unwrap_or(0))
            ),
            *share <= 100.0,
            "no wait may exceed its bound",
        ),
        None => Row {
            what: "blocking".into(),
            paper: silent("bounds are proven in an appendix; whether one was exceeded is not said"),
            ours: "no run has a bound".into(),
            verdict: Verdict::NotComparable,
            why: "no run of a configuration that has bounds".into(),
        },
    });
    let mut loads: Vec<u64> = all.iter().map(|run| run.busy).collect();
    loads.dedup();
    rows.extend(loads.into_iter().flat_map(|busy| comparison(all, busy)));
    rows
}

/// Headway's best configuration beside every one without it, at one load.
fn comparison(all: &[Measured], busy: u64) -> Vec<Row> {
    let groups: Vec<_> = grouped(all).into_iter().filter(|runs| runs[0].busy == busy).collect();
    let (managed, others): (Vec<_>, Vec<_>) = groups.iter().partition(|runs| runs[0].managed);
    let Some(ours) = managed.iter().min_by(|a, b| worst_of(a).total_cmp(&worst_of(b))) else { return Vec::new() };
    if others.is_empty() {
        return Vec::new();
    }
    let mean = |runs: &[&Measured]| mean_of(runs, |run| run.mean);
    let (our_worst, our_mean) = (worst_of(ours), mean(ours));
    let list = |text: &dyn Fn(&[&Measured]) -> String| {
        let each = |runs: &&&Vec<&Measured>| format!("{} {}", runs[0].name, text(runs));
        others.iter().map(|runs| each(&runs)).collect::<Vec<_>>().join("; ")
    };
    let least = |of: &dyn Fn(&[&Measured]) -> f64| others.iter().map(|runs| of(runs)).fold(f64::INFINITY, f64::min);
    vec![
        row(
            &format!("worst response, load {busy} %"),
            said("5, Observation 3", "worst responses are not given; on average arbitration costs about 2 %"),
            format!(
                "{} {our_worst:.1} %; {}; {}",
                ours[0].name,
                list(&|runs| format!("{:.1} % ({:.2} times)", worst_of(runs), worst_of(runs) / our_worst)),
                each_repetition(ours, &others)
            ),
            least(&worst_of) >= our_worst * WORST_GAIN,
            "a target of ours: the worst response must be at most half of that of every way without arbitration",
        ),
        row(
            &format!("mean response, load {busy} %"),
            said("5, Observation 3", "about 2 % above the driver"),
            format!(
                "{} {our_mean:.2} %; {}",
                ours[0].name,
                list(&|runs| format!("{:.2} % ({:.3} times)", mean(runs), our_mean / mean(runs)))
            ),
            our_mean <= least(&mean) * MEAN_LOSS,
            "other GPUs and another load: ours must be within 5 % of every way without arbitration",
        ),
    ]
}

/// How many times the least worst response of the `others` is ours, repetition by repetition: the phases are the same in one.
fn ratios(ours: &[&Measured], others: &[&Vec<&Measured>]) -> Vec<f64> {
    let in_repetition = |run: &&Measured| {
        let others = others.iter().filter_map(|runs| runs.iter().find(|other| other.repetition == run.repetition));
        let least = others.map(|other| other.max).fold(f64::INFINITY, f64::min);
        (least.is_finite() && run.max > 0.0).then_some(least / run.max)
    };
    let mut ratios: Vec<f64> = ours.iter().filter_map(in_repetition).collect();
    ratios.sort_by(f64::total_cmp);
    ratios
}

fn each_repetition(ours: &[&Measured], others: &[&Vec<&Measured>]) -> String {
    let ratios = ratios(ours, others);
    let (Some(least), Some(most)) = (ratios.first(), ratios.last()) else { return "no repetition has both".to_owned() };
    let enough = ratios.iter().filter(|ratio| **ratio >= WORST_GAIN).count();
    format!(
        "the better one in each repetition: {least:.2} to {most:.2} times, median {:.2}, {enough} of {} at least {WORST_GAIN}",
        ratios[ratios.len() / 2],
        ratios.len()
    )
}

/// Every configuration: means over its repetitions, worst of all.
pub(super) fn table(all: &[Measured], source: &str) -> String {
    let mut text = format!(
        "Responses in percent of the period ({source}), mean over repetitions, max of all:\n\n\
         | configuration | load | runs | frames | mean | p50 | p99 | max | misses | migrations | kernels busy | copies busy | hand-over p50 | p99 | blocking | of its bound |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n"
    );
    for runs in grouped(all) {
        let sum = |of: fn(&Measured) -> u64| runs.iter().map(|run| of(run)).sum::<u64>();
        let longest = |of: fn(&Measured) -> Option<u64>| {
            let most = runs.iter().filter_map(|run| of(run)).max();
            most.map_or_else(|| "-".to_owned(), |time| Nanos(time).to_string())
        };
        let blocking = runs.iter().map(|run| run.blocking_max_ns).max().unwrap_or(0);
        let bound = runs.iter().filter_map(|run| run.of_bound).fold(f64::NAN, f64::max);
        let p99 = mean_of(&runs, |run| run.p99.unwrap_or(f64::NAN));
        let p99 = if p99.is_nan() { "-".to_owned() } else { format!("{p99:.2}") };
        let bound = if bound.is_nan() { "-".to_owned() } else { format!("{bound:.1} %") };
        text.push_str(&format!(
            "| {} | {} % | {} | {} | {:.2} | {:.2} | {} | {:.2} | {} | {} | {:.1} % | {:.1} % | {} | {} | {} | {bound} |\n",
            runs[0].name,
            runs[0].busy,
            runs.len(),
            sum(|run| run.frames),
            mean_of(&runs, |run| run.mean),
            mean_of(&runs, |run| run.p50),
            p99,
            worst_of(&runs),
            sum(|run| run.misses),
            sum(|run| run.migrations),
            mean_of(&runs, |run| run.kernels_busy),
            mean_of(&runs, |run| run.copies_busy),
            longest(|run| run.hand_over_p50_ns),
            longest(|run| run.hand_over_p99_ns),
            Nanos(blocking),
        ));
    }
    text
}
