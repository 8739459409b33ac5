//! What the runs say: a row for each claim, a table of all configurations.

use std::collections::BTreeMap;

use headway_core::units::Nanos;

use super::results::Measured;
use super::simulated::rank_correlation;
use crate::reproduce::gpusync::PUBLISHED;
use crate::reproduce::gpusync::shape::{Means, checks};
use crate::reproduce::{PaperRow, PaperVerdict, RawFigures, Said, raw_figures, said, silent};

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

/// A mean within this share of another counts as near it, as in `gpusync-sim`.
const NEAR: f64 = 0.10;
/// The order of the means on GPUs and in simulation must correlate so much, by Spearman.
const CORRELATED: f64 = 0.8;

fn row(what: &str, paper: Said, ours: String, holds: bool, why: &str) -> PaperRow {
    PaperRow { what: what.to_owned(), paper, ours, verdict: PaperVerdict::own(holds), why: why.to_owned() }
}

/// What the tracks of all runs, as one digest of each, say of each other.
fn same_results(runs: usize, digests: usize) -> String {
    match digests {
        1 => format!("all {runs} runs found the same tracks, and in the first frames those of the CPU form"),
        _ => format!("the tracks of {runs} runs are of {digests} kinds; they should all be the same"),
    }
}

pub(super) fn rows(all: &[Measured], expected: usize) -> Vec<PaperRow> {
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
        None => PaperRow {
            what: "blocking".into(),
            paper: silent("bounds are proven in an appendix; whether one was exceeded is not said"),
            ours: "no run has a bound".into(),
            verdict: PaperVerdict::NotComparable,
            why: "no run of a configuration that has bounds".into(),
        },
    });
    let mut loads: Vec<u64> = all.iter().map(|run| run.busy).collect();
    loads.dedup();
    rows.extend(loads.into_iter().flat_map(|busy| comparison(all, busy)));
    rows
}

/// Headway's best configuration beside every one without it, at one load.
fn comparison(all: &[Measured], busy: u64) -> Vec<PaperRow> {
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

/// Means of the paper's scenarios at one load, by code.
pub(super) fn means_of_paper(all: &[Measured], codes: &BTreeMap<String, String>, busy: u64) -> Means {
    let groups = grouped(all).into_iter().filter(|runs| runs[0].busy == busy);
    groups.filter_map(|runs| Some((codes.get(&runs[0].name)?.clone(), mean_of(&runs, |run| run.mean)))).collect()
}

/// Every scenario of the paper on GPUs: beside the published means and statements, and beside the simulation of the same cameras.
pub(super) fn against_paper(means: &Means, simulated: &Means, busy: u64) -> Vec<PaperRow> {
    let mut rows = vec![against_simulation(means, simulated, busy)];
    for (code, paper, section) in PUBLISHED {
        let (Some(ours), Some(model)) = (means.get(code), simulated.get(code)) else { continue };
        let verdict = PaperVerdict::fitted((ours / paper - 1.0).abs() <= NEAR);
        rows.push(PaperRow {
            what: format!("mean of {code}, load {busy} %"),
            paper: said(section, format!("{paper:.2} %")),
            ours: format!("{ours:.2} %; {model:.2} % in simulation"),
            verdict,
            why: verdict.why(
                "within 10 % of the paper; the work of a frame is scaled so that GPUs are as busy as in the calibrated simulation",
                "off by more than 10 %: copies take another share of a frame than in 2013; the second figure is what the simulation of the same \
                 cameras gives with this node's rates",
            ),
        });
    }
    let modelled = checks(simulated);
    for (check, model) in checks(means).into_iter().zip(modelled) {
        let verdict = PaperVerdict::fitted(check.holds);
        let holds = if model.holds { "holds" } else { "does not hold" };
        rows.push(PaperRow {
            what: format!("statement {} on the means, load {busy} %", check.number),
            paper: said(check.section, check.claim),
            ours: format!("{}; in simulation it {holds}: {}", check.evidence, model.evidence),
            verdict,
            why: verdict.why(
                "as the paper says; the load is scaled to that of the calibrated simulation",
                if model.holds {
                    "the simulation of the same cameras has it, these GPUs do not"
                } else {
                    "it does not hold in the simulation of the same cameras either: with this node's rates there is less to gain"
                },
            ),
        });
    }
    rows
}

fn against_simulation(means: &Means, simulated: &Means, busy: u64) -> PaperRow {
    let pairs: Vec<(&str, f64, f64)> =
        means.iter().filter_map(|(code, ours)| Some((code.as_str(), *ours, *simulated.get(code)?))).collect();
    let (ours, model): (Vec<f64>, Vec<f64>) = pairs.iter().map(|(_, ours, model)| (*ours, *model)).unzip();
    let managed: Vec<&(&str, f64, f64)> = pairs.iter().filter(|(code, ..)| !code.starts_with('T')).collect();
    let (ours_managed, model_managed): (Vec<f64>, Vec<f64>) =
        managed.iter().map(|(_, ours, model)| (*ours, *model)).unzip();
    let correlation = rank_correlation(&ours_managed, &model_managed);
    let near = managed.iter().filter(|(_, ours, model)| (ours / model - 1.0).abs() <= NEAR).count();
    let off = |(_, ours, model): &(&str, f64, f64)| (ours / model).ln().abs();
    let farthest = managed.iter().max_by(|a, b| off(a).total_cmp(&off(b)));
    let farthest = farthest.map_or_else(String::new, |(code, ours, model)| {
        format!("; the farthest is {code} with {ours:.1} % and {model:.1} %")
    });
    PaperRow {
        what: format!("{} scenarios of the paper, means on GPUs and in simulation, load {busy} %", pairs.len()),
        paper: said("5", "each meaningful combination of parameters, and those of the driver"),
        ours: format!(
            "the order of those with tokens correlates with {correlation:.2} (all {:.2}); {near} of {} within 10 % of the simulation{farthest}",
            rank_correlation(&ours, &model),
            managed.len()
        ),
        verdict: PaperVerdict::own(correlation >= CORRELATED),
        why: "the order of the means with tokens must correlate with 0.8 or more (Spearman) with that of the same cameras, load and phases in \
              simulation"
            .into(),
    }
}

/// The means that were compared, as a table.
pub(super) fn means_table(means: &Means, simulated: &Means, busy: u64) -> RawFigures {
    let published =
        |code: &String| PUBLISHED.iter().find(|(of, ..)| of == code).map(|(_, mean, _)| format!("{mean:.2}"));
    raw_figures!("means", means, |(code, ours)| Columns {
        load_percent: busy,
        scenario: code,
        mean_percent: format!("{ours:.3}"),
        simulated_percent: simulated.get(code).map(|mean| format!("{mean:.3}")),
        published_percent: published(code),
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use headway_sim::sharing::{ArbitrationScheme, Scenario};

    /// Means of which every one is one point above the one before.
    fn means(factor: f64) -> Means {
        let of = |(at, scenario): (usize, Scenario)| {
            let base = match scenario.arbitration {
                ArbitrationScheme::TokenOnly => 150.0,
                _ => 60.0,
            };
            (scenario.to_string(), (base + at as f64) * factor)
        };
        Scenario::distinct().into_iter().enumerate().map(of).collect()
    }

    #[test]
    fn all_scenarios_are_compared_with_the_paper_and_the_simulation() {
        let rows = against_paper(&means(1.0), &means(1.05), 75);
        assert_eq!(rows.len(), 1 + 9 + 7);
        assert_eq!(rows[0].verdict, PaperVerdict::OwnCheck, "{:?}", rows[0]);
        assert!(rows[0].ours.contains("correlates with 1.00") && rows[0].ours.contains("30 of 30"), "{:?}", rows[0]);
        for row in &rows {
            assert_eq!(crate::reproduce::quotes::invented("gpusync-gpu", &row.paper), [""; 0], "{row:?}");
        }
        let table = means_table(&means(1.0), &means(1.05), 75);
        assert_eq!((table.lines.len(), table.lines.iter().filter(|line| !line[4].is_empty()).count()), (36, 9));
    }

    #[test]
    fn an_order_that_the_simulation_does_not_have_is_told() {
        let reversed: Means = means(1.0).into_iter().map(|(code, mean)| (code, 1_000.0 - mean)).collect();
        assert_eq!(against_simulation(&means(1.0), &reversed, 75).verdict, PaperVerdict::NotReproduced);
    }
}
