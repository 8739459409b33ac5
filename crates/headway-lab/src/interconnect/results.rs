//! Errors of predictions by number of GPUs, mix and length; tables, plots and the summary.

use std::fmt::Write;

use headway_core::files::machine::{CapacityKind, EndpointId, Machine};
use headway_core::interconnect::fit::FitError;
use headway_core::interconnect::{Accuracy, Judged, Network, Scratch};
use headway_core::models::transfer::Method;
use headway_core::units::{Nanos, PPM};
use serde::Serialize;

use super::{Errors, InterconnectBenchReport, Target, Variant};
use headway_measure::Error;
use headway_measure::batches::{BatchTiming, Mix, Routes, TrialBlock};
use headway_measure::bench::TargetOutcome;
use headway_measure::fit::Observed;
use headway_measure::plot::{Figure, PlotLine};
use headway_measure::sets::SetTransfer;

/// Targets: median and 95th percentile of the error of a batch's last end.
const MEDIAN_PPM: u64 = 20_000;
const P95_PPM: u64 = 60_000;

/// A batch with everything known of it.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) gpus: usize,
    pub(super) mix: Mix,
    pub(super) blocks: Vec<TrialBlock>,
    pub(super) took: Vec<BatchTiming>,
    pub(super) judged: Judged,
}

/// Some of the batches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BatchGroup {
    pub what: String,
    /// Errors of the last end of each batch: the median of its repetitions against the prediction.
    pub batches: Errors,
    /// Errors of the end of each block.
    pub blocks: Errors,
    /// Repetitions of all batches.
    pub runs: usize,
    /// Repetitions that took longer than the worst-case time.
    pub exceeded: usize,
    /// The largest measured time over the worst-case time, in ppm.
    pub closest_ppm: u64,
    /// The median of the worst-case time over the measured median, in ppm.
    pub slack_ppm: u64,
}

fn ratio_ppm(above: Nanos, below: Nanos) -> u64 {
    u64::try_from(u128::from(above.0) * u128::from(PPM) / u128::from(below.0.max(1))).unwrap_or(u64::MAX)
}

fn group(what: String, cases: &[&Case]) -> Option<BatchGroup> {
    if cases.is_empty() {
        return None;
    }
    let judged = || cases.iter().map(|case| &case.judged);
    let closest = judged().filter_map(|j| Some(ratio_ppm(*j.took.last()?, j.wcet.value))).max();
    Some(BatchGroup {
        what,
        batches: Accuracy::of(judged().map(Judged::error_ppm).collect()).into(),
        blocks: Accuracy::of(judged().flat_map(Judged::block_errors_ppm).collect()).into(),
        runs: judged().map(|j| j.took.len()).sum(),
        exceeded: judged().map(Judged::exceeded).sum(),
        closest_ppm: closest.unwrap_or(0),
        slack_ppm: Accuracy::of(judged().map(|j| ratio_ppm(j.wcet.value, j.measured())).collect()).median_ppm,
    })
}

/// All batches, then by number of GPUs, by mix and by predicted length.
pub(super) fn groups(cases: &[Case]) -> Vec<BatchGroup> {
    let some = |what: String, fits: &dyn Fn(&Case) -> bool| {
        group(what, &cases.iter().filter(|case| fits(case)).collect::<Vec<_>>())
    };
    let mut groups: Vec<Option<BatchGroup>> = vec![some("all".to_owned(), &|_| true)];
    let most = cases.iter().map(|case| case.gpus).max().unwrap_or(0);
    for gpus in 1..=most {
        let plural = if gpus == 1 { "" } else { "s" };
        groups.push(some(format!("{gpus} GPU{plural}"), &|case| case.gpus == gpus));
    }
    for mix in [Mix::In, Mix::Out, Mix::Both, Mix::Peers, Mix::All] {
        groups.push(some(mix.label().to_owned(), &|case| case.mix == mix));
    }
    let lengths =
        [(0, 100_000, "below 0.1 ms"), (100_000, 1_000_000, "0.1 to 1 ms"), (1_000_000, u64::MAX, "1 ms and more")];
    for (from, to, what) in lengths {
        groups.push(some(what.to_owned(), &|case| (from..to).contains(&case.judged.wcet.prediction.0)));
    }
    groups.into_iter().flatten().collect()
}

/// The targets of the specification against all batches.
pub(super) fn judge(groups: &[BatchGroup]) -> Vec<Target> {
    let Some(all) = groups.first() else { return Vec::new() };
    let met = |enough| if enough { TargetOutcome::Met } else { TargetOutcome::NotMet };
    let n = all.batches.n;
    let error = |what: &str, most: u64, found: u64| Target {
        target: format!("{what} error of the predicted end of a batch: at most {}", percent(most)),
        measured: format!("{} of {n} batches", percent(found)),
        outcome: met(found <= most),
    };
    // With n runs without excess, P(excess) is below this at 95 % confidence.
    let at_most = (1.0 - 0.05_f64.powf(1.0 / all.runs.max(1) as f64)) * 100.0;
    let note = match all.exceeded {
        0 => format!(
            "supports P(excess) <= {at_most:.2} % at 95 % confidence; closest: {} of the bound",
            percent(all.closest_ppm)
        ),
        _ => format!("by up to {}", percent(all.closest_ppm.saturating_sub(PPM))),
    };
    vec![
        error("median", MEDIAN_PPM, all.batches.median_ppm),
        error("95th percentile of the", P95_PPM, all.batches.p95_ppm),
        Target {
            target: "the worst-case time is never exceeded".to_owned(),
            measured: format!("exceeded in {} of {} runs; {note}", all.exceeded, all.runs),
            outcome: met(all.exceeded == 0),
        },
    ]
}

pub(super) fn warnings(machine: &Machine) -> Vec<String> {
    match &machine.calibration {
        Some(_) => Vec::new(),
        None => vec![
            "the machine file has no calibration: the worst-case time is that of one block after the other".to_owned(),
        ],
    }
}

pub(super) fn percent(ppm: u64) -> String {
    format!("{}.{:02} %", ppm / 10_000, ppm % 10_000 / 100)
}

/// A transfer as tables write it.
fn what(member: SetTransfer) -> String {
    match member {
        SetTransfer::H2d(gpu) => format!("host -> gpu{gpu}"),
        SetTransfer::D2h(gpu) => format!("gpu{gpu} -> host"),
        SetTransfer::Peer(from, to) => format!("gpu{from} -> gpu{to}"),
    }
}

pub(super) fn batches_csv(cases: &[Case], source: &str) -> String {
    let mut text = "source,batch,gpus,mix,blocks,bytes,predicted_ns,worst_case_ns,bound,n,median_ns,min_ns,max_ns,error_ppm,exceeded\n".to_owned();
    for (number, case) in cases.iter().enumerate() {
        let Case { gpus, mix, blocks, judged, .. } = case;
        let (min, max) =
            (judged.took.first().copied().unwrap_or_default(), judged.took.last().copied().unwrap_or_default());
        let _ = writeln!(
            text,
            "{source},{number},{gpus},{},{},{},{},{},{:?},{},{},{},{},{},{}",
            mix.label(),
            blocks.len(),
            blocks.iter().map(|block| block.bytes as u64).sum::<u64>(),
            judged.wcet.prediction.0,
            judged.wcet.value.0,
            judged.wcet.bound_used,
            judged.took.len(),
            judged.measured().0,
            min.0,
            max.0,
            judged.error_ppm(),
            judged.exceeded(),
        );
    }
    text
}

/// A time of each repetition, divided by semicolons.
fn each(took: &[BatchTiming], of: impl Fn(&BatchTiming) -> Nanos) -> String {
    took.iter().map(|took| of(took).0.to_string()).collect::<Vec<_>>().join(";")
}

pub(super) fn blocks_csv(cases: &[Case], source: &str) -> String {
    let mut text = "source,batch,block,transfer,bytes,predicted_ns,median_ns,error_ppm,calls_ns,ends_ns\n".to_owned();
    for (number, Case { blocks, took, judged, .. }) in cases.iter().enumerate() {
        let ends = judged.blocks_predicted.iter().zip(&judged.blocks).zip(judged.block_errors_ppm());
        for (at, (block, ((predicted, median), error))) in blocks.iter().zip(ends).enumerate() {
            let (transfer, bytes, calls) = (what(block.member), block.bytes, each(took, |took| took.calls[at]));
            let ends = each(took, |took| took.ends[at]);
            let _ = writeln!(
                text,
                "{source},{number},{at},{transfer},{bytes},{},{},{error},{calls},{ends}",
                predicted.0, median.0
            );
        }
    }
    text
}

/// Rates of every set: medians measured, and what the fitted machine gives.
pub(super) fn sets(observed: &Observed, machine: &Machine) -> Result<String, Error> {
    let mut text =
        "set,transfer,n,median_bytes_per_s,min_bytes_per_s,max_bytes_per_s,model_bytes_per_s,limited_by\n".to_owned();
    let (routes, network, mut scratch) = (Routes::of(machine), Network::new(machine), Scratch::new());
    for (set, rates) in observed.sets.iter().zip(&observed.rates) {
        let methods: Vec<_> = set.members.iter().map(|member| routes.route(*member)).collect::<Result<_, _>>()?;
        let shares = network.allocate(&methods, &mut scratch).map_err(FitError::from)?.to_vec();
        for (at, (member, share)) in set.members.iter().zip(shares).enumerate() {
            let mut found: Vec<u64> = rates.0.iter().map(|rates| rates[at]).collect();
            found.sort_unstable();
            let rank =
                |percent: usize| found.get((found.len().saturating_sub(1)) * percent / 100).copied().unwrap_or(0);
            let limit = &machine.capacities[share.limited_by.at()].id;
            let _ = writeln!(
                text,
                "{},{},{},{},{},{},{},{limit}",
                set.name,
                what(*member),
                found.len(),
                rank(50),
                rank(0),
                rank(100),
                share.rate.0
            );
        }
    }
    Ok(text)
}

/// Plots, each with the name of its file.
pub(super) fn figures(cases: &[Case], variants: &[Variant], source: &str) -> Vec<(&'static str, Figure)> {
    let share = |name: &str, mut errors: Vec<u64>| {
        errors.sort_unstable();
        let n = errors.len().max(1) as f64;
        // An error of nothing has no place on a logarithmic axis.
        let points =
            errors.iter().enumerate().map(|(at, ppm)| ((*ppm).max(10) as f64 / 1e4, (at + 1) as f64 / n * 100.0));
        PlotLine::new(name, points.collect())
    };
    let errors = |of: &dyn Fn(&Case) -> bool| -> Vec<u64> {
        cases.iter().filter(|case| of(case)).map(|case| case.judged.error_ppm()).collect()
    };
    let mut lines = vec![
        share("batches", errors(&|_| true)),
        share("blocks", cases.iter().flat_map(|case| case.judged.block_errors_ppm()).collect()),
    ];
    for mix in [Mix::In, Mix::Out, Mix::Both, Mix::Peers, Mix::All] {
        let found = errors(&|case| case.mix == mix);
        lines.extend((!found.is_empty()).then(|| share(mix.label(), found)));
    }
    let mut by_length: Vec<&Case> = cases.iter().collect();
    by_length.sort_by_key(|case| case.judged.wcet.prediction);
    let against = |name: &str, of: &dyn Fn(&Judged) -> Nanos| {
        let us = |time: Nanos| time.0 as f64 / 1e3;
        let points = by_length.iter().map(|case| (us(case.judged.wcet.prediction), us(of(&case.judged))));
        PlotLine::new(name, points.collect())
    };
    let times = vec![
        against("predicted", &|judged| judged.wcet.prediction),
        against("measured (median)", &Judged::measured).scattered(),
        against("measured (longest)", &|judged| judged.took.last().copied().unwrap_or_default()).scattered(),
        against("worst case", &|judged| judged.wcet.value),
    ];
    let of_models = variants.iter().enumerate().map(|(at, variant)| {
        let (x, share) = (at as f64 + 1.0, |ppm: u64| ppm as f64 / 1e4);
        let [median, p95] = [variant.batches.median_ppm, variant.batches.p95_ppm].map(share);
        PlotLine::new(format!("{}: {}", at + 1, variant.model), vec![(x, median)]).bars(vec![(x, median, p95)])
    });
    let figure = |title: &str, axes: [&str; 2], lines| Figure::new(title, source, axes, lines);
    let models = figure("median error by model", ["model", "error, %"], of_models.collect());
    let models = models.bars("median to 95th percentile");
    vec![
        ("errors", figure("errors of predicted ends", ["error, %", "share of all, %"], lines)),
        ("times", figure("batches: predicted and measured", ["predicted, us", "us"], times)),
        ("models", models),
    ]
}

fn table(text: &mut String, groups: &[BatchGroup]) {
    text.push_str(
        "| batches | n | error: median | p95 | max | blocks | error: median | p95 | max | runs | bound exceeded | closest \
         | bound / measured |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for group in groups {
        let BatchGroup { what, batches, blocks, runs, exceeded, closest_ppm, slack_ppm } = group;
        let errors = |e: &Errors| {
            format!("{} | {} | {} | {}", e.n, percent(e.median_ppm), percent(e.p95_ppm), percent(e.max_ppm))
        };
        let _ = writeln!(
            text,
            "| {what} | {} | {} | {runs} | {exceeded} | {} | {}.{:02} |",
            errors(batches),
            errors(blocks),
            percent(*closest_ppm),
            slack_ppm / PPM,
            slack_ppm % PPM / 10_000
        );
    }
}

impl InterconnectBenchReport {
    /// Everything for people, in Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "# {}\n\nSource `{}`, GPUs: {}; machine {}; seed {}; commit {}. Random batches of copies between pinned \
             host memory and GPUs and between GPUs, submitted by one thread and run {} times each after once to warm up; sizes \
             uniform in their logarithm, whole pages. Times count from the first submission until the last end is noticed; the error of a \
             batch is |median - predicted| / predicted. Bytes are compared in the run that warms up: blocks up to 256 KiB \
             whole, of longer ones 256 KiB at both ends and in the middle.\n\n## Targets\n\n| target | measured | \
             |\n|---|---|---|\n",
            super::TITLE,
            self.source,
            self.gpus.join(", "),
            self.machine,
            self.seed,
            self.commit,
            self.repeats,
        );
        for Target { target, measured, outcome } in &self.targets {
            let _ = writeln!(text, "| {target} | {measured} | {} |", outcome.label());
        }
        text.push_str("\n## Errors\n\n");
        table(&mut text, &self.groups);
        text.push_str("\n## The same batches with parts of the model left out\n\n| model | batches: median | p95 | max | blocks: median | p95 | max |\n|---|---|---|---|---|---|---|\n");
        for Variant { model, batches, blocks } in &self.variants {
            let errors = |e: &Errors| match e.n {
                0 => "- | - | -".to_owned(),
                _ => format!("{} | {} | {}", percent(e.median_ppm), percent(e.p95_ppm), percent(e.max_ppm)),
            };
            let _ = writeln!(text, "| {model} | {} | {} |", errors(batches), errors(blocks));
        }
        if let Some(rates) = &self.rates {
            let _ = writeln!(text, "\n## The machine\n\n{rates}");
        }
        for (name, figure) in figures(&self.cases, &self.variants, self.source) {
            let _ = writeln!(text, "\n![{}]({name}.svg)", figure.title);
        }
        for warning in &self.warnings {
            let _ = writeln!(text, "\n{warning}");
        }
        text
    }
}

/// Rates and set-ups of `machine`, and how well it explains the sets it was fitted to.
pub(super) fn rates(machine: &Machine, observed: Option<&Observed>) -> Result<String, Error> {
    let mut text = "| link or limit | rate | lowest | with the opposite |\n|---|---|---|---|\n".to_owned();
    let pinned = || machine.routes.iter().filter(|route| route.method != Method::Pageable);
    let crossed = |at: usize| pinned().any(|route| route.uses.iter().any(|(id, _)| id.at() == at));
    for (_, capacity) in machine.capacities.iter().enumerate().filter(|(at, _)| crossed(*at)) {
        let both = match &capacity.kind {
            CapacityKind::Link { opposite: Some((_, both)), .. } => both.to_string(),
            _ => "-".to_owned(),
        };
        let _ = writeln!(text, "| {} | {} | {} | {both} |", capacity.id, capacity.rate, capacity.rate_low);
    }
    text.push_str("\n| route | weight | set-up | queued | submission |\n|---|---|---|---|---|\n");
    let name = |end: EndpointId| &machine.endpoints[end.at()].id;
    for route in pinned() {
        let (from, to) = (name(route.from), name(route.to));
        let (weight, setup, queued, submit) = (route.weight, route.setup, route.setup_queued, route.submit);
        let _ = writeln!(text, "| {from} -> {to} | {weight} | {setup} | {queued} | {submit} |");
    }
    if let Some(found) = &machine.calibration {
        let _ = writeln!(
            text,
            "\nCalibration: {} sets, {} repetitions; margin {}, jitter {}, fastest over slowest {}; off by {} (median), {} \
             (p95), {} (max) in {} batches that it was not fitted to.",
            found.sets,
            found.repeats,
            percent(found.margin_ppm),
            found.jitter,
            percent(found.sigma_ppm),
            percent(found.median_ppm),
            percent(found.p95_ppm),
            percent(found.max_ppm),
            found.batches
        );
    }
    if let Some(observed) = observed {
        let _ = writeln!(
            text,
            "\nSets that the fitted machine explains worst (all in sets.csv):\n\n{}",
            worst(observed, machine)?
        );
    }
    Ok(text)
}

/// The ten sets furthest from the model.
fn worst(observed: &Observed, machine: &Machine) -> Result<String, Error> {
    let (routes, network, mut scratch) = (Routes::of(machine), Network::new(machine), Scratch::new());
    let mut rows: Vec<(u64, String)> = Vec::new();
    for (set, rates) in observed.sets.iter().zip(&observed.rates) {
        let methods: Vec<_> = set.members.iter().map(|member| routes.route(*member)).collect::<Result<_, _>>()?;
        let model: u64 =
            network.allocate(&methods, &mut scratch).map_err(FitError::from)?.iter().map(|s| s.rate.0).sum();
        let mut totals: Vec<u64> = rates.0.iter().map(|rates| rates.iter().sum()).collect();
        totals.sort_unstable();
        let Some(&median) = totals.get(totals.len().saturating_sub(1) / 2) else { continue };
        let off = ratio_ppm(Nanos(median.abs_diff(model)), Nanos(model));
        let sign = if median < model { "-" } else { "+" };
        let gb = |rate: u64| rate as f64 / 1e9;
        rows.push((off, format!("| {} | {:.1} | {:.1} | {sign}{} |", set.name, gb(median), gb(model), percent(off))));
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.0));
    let rows: Vec<String> = rows.into_iter().take(10).map(|row| row.1).collect();
    Ok(format!("| set | measured, GB/s in total | model | |\n|---|---|---|---|\n{}", rows.join("\n")))
}
