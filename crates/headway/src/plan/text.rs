//! A plan as text for people: verdict and reasons first, then the tightest servers, responses and pipelines.

use std::cmp::Reverse;
use std::fmt::Write;

use headway_core::analysis::schedulability::TestStrength;
use headway_core::files::machine::Confidence;
use headway_core::plan::planner::{Evidence, ModelAnswer, rate_alone};
use headway_core::plan::{
    OperationWork, Outcome, Pipeline, PipelineSource, Plan, PlanChoice, PlannedBatch, Strategy, Strength, Violation,
};
use headway_core::units::{Bytes, Nanos, Rate, percent};

use crate::cpus::Assumption;
use crate::tightest::{self, BATCHES, LINES, more, tightest};
use crate::why::failing;

/// A plan, with `remark` behind the name of the machine.
pub(super) fn of_plan(
    plan: &Plan,
    models: &[ModelAnswer],
    assumes: &Assumption,
    confidence: &Confidence,
    remark: &str,
) -> String {
    let mut text = format!(
        "workload  {} ({})\nmachine   {} ({}){}\nstrategy  {}: {}\n\n",
        plan.workload.name,
        plan.workload.hash,
        plan.machine.name,
        plan.machine.hash,
        remark,
        plan.strategy.name(),
        plan.strategy.summary()
    );
    verdict(&mut text, plan);
    let _ = writeln!(text, "assumes   {}", assumes.text);
    let statement = confidence.statement.strip_prefix("none: ").unwrap_or(&confidence.statement);
    let _ = writeln!(text, "costs     {statement}");
    if let Some(division) = &plan.division {
        let _ = writeln!(text, "division  {}", division.reason());
    }
    let choice = plan.choice();
    model_answers(&mut text, models, choice);
    alternatives(&mut text, plan);
    let _ = writeln!(text, "\n{:<24} {:>12} {:>12}  answer", "server", "utilisation", "margin");
    let servers = tightest(&plan.servers, LINES, |server| tightest::of_server(server));
    for server in &servers {
        let margin = server.verdict.margin_ppm.and_then(factor).unwrap_or_else(none);
        let outcome = answer(server.verdict.outcome, choice.filter(|of| *of == PlanChoice::Windows));
        let _ = writeln!(
            text,
            "{:<24} {:>12} {margin:>12}  {outcome}",
            server.name,
            percent(server.verdict.utilisation_ppm)
        );
    }
    more(&mut text, plan.servers.len(), servers.len(), "servers", "with the least margin");
    responses(&mut text, plan, models);
    let fed = || plan.pipelines.iter().filter(|p| p.source.is_fed());
    let pipelines = tightest(fed(), LINES, |pipeline| tightest::of_pipeline(plan, pipeline));
    if !pipelines.is_empty() {
        let _ = writeln!(
            text,
            "\n{:<24} {:>8} {:>10} {:>10} {:>11}  steps",
            "pipeline", "streams", "period", "window", "block"
        );
        for pipeline in &pipelines {
            row(&mut text, plan, pipeline);
        }
        more(&mut text, fed().count(), pipelines.len(), "pipelines", "that have least room in their windows");
    }
    unplanned(&mut text, plan);
    let batches = tightest(&plan.batches, BATCHES, |batch| Reverse(batch.worst_case));
    for batch in &batches {
        batched(&mut text, batch);
    }
    more(&mut text, plan.batches.len(), batches.len(), "batches", "that take longest");
    text
}

/// How long what recurs can take, beside what it may take.
fn responses(text: &mut String, plan: &Plan, models: &[ModelAnswer]) {
    if plan.verdict.outcome != Outcome::Schedulable {
        return;
    }
    let exact = models.iter().map(|of| &of.bounds).find(|bounds| !bounds.is_empty());
    let exact = |at: usize| exact.and_then(|bounds| bounds.get(at).copied().flatten());
    let planned: Vec<(usize, &Pipeline)> =
        plan.pipelines.iter().enumerate().filter(|(_, pipeline)| pipeline.source.is_planned()).collect();
    let left = |of: &Pipeline| of.relative_deadline().saturating_sub(of.bound().unwrap_or_default());
    let shown = tightest(&planned, LINES, |(_, of)| left(of));
    let _ = writeln!(text, "\n{:<24} {:>14} {:>14} {:>14}", "longest response", "bound", "these offsets", "deadline");
    for (at, pipeline) in &shown {
        let time = |bound: Option<Nanos>| bound.map_or_else(|| "not computed".to_owned(), |bound| bound.exact());
        let (any, here) = (time(pipeline.bound()), time(exact(*at)));
        let _ =
            writeln!(text, "{:<24} {any:>14} {here:>14} {:>14}", pipeline.name, pipeline.relative_deadline().exact());
    }
    more(text, planned.len(), shown.len(), "responses", "nearest to their deadlines");
}

/// Transfers without windows: the chunks they move in, and what they get where nobody else asks for the server.
fn unplanned(text: &mut String, plan: &Plan) {
    let all: Vec<&Pipeline> = plan.pipelines.iter().filter(|p| !p.source.is_planned()).collect();
    if all.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n{:<24} {:>8} {:>11} {:>11} {:>12} {:>13}  method",
        "without windows", "class", "size", "chunks of", "blocks for", "alone"
    );
    for pipeline in all.iter().take(LINES) {
        let step = &pipeline.steps[0];
        let (class, size) = match pipeline.source {
            PipelineSource::Bulk(bytes) => {
                ("bulk", bytes.map_or_else(|| "endless".to_owned(), |bytes| bytes.to_string()))
            }
            _ => ("urgent", pipeline.reserve.to_string()),
        };
        let chunk = if step.chunk == Bytes(0) { pipeline.reserve } else { step.chunk };
        let (chunk, alone) = (chunk.to_string(), Rate(rate_alone(pipeline)).to_string());
        let _ = writeln!(
            text,
            "{:<24} {class:>8} {size:>11} {chunk:>11} {:>12} {alone:>13}  {}",
            pipeline.name,
            step.chunk_cost.to_string(),
            step.name
        );
    }
    more(text, all.len(), all.len().min(LINES), "transfers without windows", "that come first in the workload");
}

/// What every model says, side by side: the first is the verdict.
fn model_answers(text: &mut String, models: &[ModelAnswer], choice: Option<PlanChoice>) {
    let width = models.iter().map(|answer| answer.model.chars().count()).max().unwrap_or(0);
    let _ = writeln!(text, "\n{:<width$} {:>9}  answer", "model", "margin");
    for found in models {
        let margin = found.margin_ppm.and_then(factor).unwrap_or_else(none);
        let proof = match found.strength {
            TestStrength::Exact => "exact",
            TestStrength::Sufficient => "sufficient",
            TestStrength::Necessary => "necessary",
        };
        let unknown = matches!(found.evidence, None | Some(Evidence::Unknown { .. }));
        let said = if unknown { outcome(found.outcome) } else { answer(found.outcome, choice) };
        let _ = writeln!(text, "{:<width$} {margin:>9}  {said}, {proof}", found.model);
    }
    for (answer, which) in models.iter().skip(1).zip(["with these offsets", "with exact costs"]) {
        match &answer.evidence {
            None | Some(Evidence::Demand(_)) => {}
            Some(Evidence::Utilisation { server }) => {
                let _ = writeln!(text, "{which}: the work on `{server}` is more than its time");
            }
            Some(Evidence::Unknown { server, reason }) => {
                let _ = writeln!(text, "{which}: not known for `{server}`: {reason}");
            }
            Some(Evidence::Late { server, name, job, release, deadline, finish }) => {
                let _ = writeln!(
                    text,
                    "{which}: job {job} of `{name}` on `{server}`, released at {} and due at {}, can be on it until {}",
                    release.exact(),
                    deadline.exact(),
                    finish.exact()
                );
            }
        }
    }
}

/// What the strategies would give, where messages leave a choice of three.
fn alternatives(text: &mut String, plan: &Plan) {
    if !plan.alternatives.iter().any(|other| other.strategy == Strategy::Combined) {
        return;
    }
    let _ = writeln!(text, "\n{:<24} {:>12} {:>12}  answer", "strategy", "utilisation", "margin");
    for other in &plan.alternatives {
        let kept = if other.strategy == plan.strategy { ", kept" } else { "" };
        let margin = other.margin_ppm.and_then(factor).unwrap_or_else(none);
        let (name, used, outcome) = (other.strategy.name(), percent(other.utilisation_ppm), outcome(other.outcome));
        let _ = writeln!(text, "{name:<24} {used:>12} {margin:>12}  {outcome}{kept}");
    }
}

/// Like [`outcome`]; a "no" or an undecided answer about something that the planner chose says so.
fn answer(of: Outcome, choice: Option<PlanChoice>) -> &'static str {
    match (of, choice) {
        (Outcome::Schedulable, _) | (_, None) => outcome(of),
        (_, Some(PlanChoice::Windows)) => "not with these windows",
        (_, Some(PlanChoice::Strategy)) => "not with this strategy, and others were not tried",
    }
}

fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Schedulable => "schedulable",
        Outcome::NotSchedulable => "NOT schedulable",
        Outcome::Undecided => "undecided",
    }
}

/// A margin as the factor on all costs, `1.25x`, rounded down. Below a hundredth there is none.
fn factor(ppm: u64) -> Option<String> {
    match ppm {
        ..10_000 => None,
        100_000_000.. => Some(">100x".to_owned()),
        _ => Some(format!("{}.{:02}x", ppm / 1_000_000, ppm % 1_000_000 / 10_000)),
    }
}

fn none() -> String {
    "-".to_owned()
}

fn verdict(text: &mut String, plan: &Plan) {
    let verdict = &plan.verdict;
    let strength = match verdict.strength {
        Strength::Exact => "exact: for these costs, yes and no are both proofs",
        Strength::Sufficient => "sufficient: for these costs, yes is a proof, no may be pessimistic",
    };
    let said = answer(verdict.outcome, plan.choice());
    let _ = writeln!(text, "verdict   {said}");
    let _ = writeln!(text, "holds for {}", verdict.model);
    let _ = writeln!(text, "strength  {strength}");
    if let Some(margin) = verdict.margin_ppm.and_then(factor) {
        let may = if verdict.outcome == Outcome::Schedulable { "may" } else { "would have to" };
        let _ = writeln!(text, "margin    all costs {may} be {margin} what they are");
    }
    if let Some(violation) = &verdict.violation {
        evidence(text, violation);
    }
    if let Some(failing) = failing(plan) {
        let _ = writeln!(text, "servers   {failing}");
    }
    for note in &verdict.notes {
        let _ = writeln!(text, "note      {note}");
    }
}

fn evidence(text: &mut String, violation: &Violation) {
    let Violation { server, blocker, blocking, interval, demand, parts, because } = violation;
    if *interval == Nanos::ZERO {
        let _ = writeln!(text, "because   the work on `{server}` is more than its time: utilisation is above 1");
        for line in because {
            let _ = writeln!(text, "            {line}");
        }
        return;
    }
    let _ = writeln!(
        text,
        "because   in an interval of {} on `{server}`, {} of work are due, {} too much:",
        interval.exact(),
        demand.exact(),
        (*demand - *interval).exact()
    );
    if let Some(blocker) = blocker {
        let _ = writeln!(
            text,
            "            {:>14}  `{blocker}`, begun just before and not to be interrupted",
            blocking.exact()
        );
    }
    let largest = tightest(parts, LINES, |(_, _, time)| Reverse(*time));
    for (name, jobs, time) in &largest {
        let plural = if *jobs == 1 { "" } else { "s" };
        let _ = writeln!(text, "            {:>14}  `{name}`, {jobs} job{plural}", time.exact());
    }
    more(text, parts.len(), largest.len(), "of whom work is due", "with most of it");
}

fn row(text: &mut String, plan: &Plan, pipeline: &Pipeline) {
    let streams = plan.streams.iter().filter(|s| plan.pipelines[s.pipeline as usize] == *pipeline).count();
    let steps: Vec<String> = pipeline
        .steps
        .iter()
        .enumerate()
        .map(|(at, step)| {
            let window = pipeline.windows.get(at).map_or_else(String::new, |window| format!(" of {window}"));
            let chunk = if step.chunk.0 > 0 { format!(" in chunks of {}", step.chunk) } else { String::new() };
            let name = match &step.operations[0].work {
                _ if step.operations.len() > 1 && matches!(pipeline.source, PipelineSource::Parts(_)) => {
                    step.name.clone()
                }
                OperationWork::Copy { class, .. } => format!("{class:?}").to_lowercase(),
                OperationWork::Compute { kernel } => kernel.clone(),
                OperationWork::Hold => step.name.clone(),
            };
            format!("{name} {}{window}{chunk}", step.cost)
        })
        .collect();
    let _ = writeln!(
        text,
        "{:<24} {streams:>8} {:>10} {:>10} {:>11}  {}",
        pipeline.name,
        pipeline.period,
        if pipeline.windows.is_empty() { pipeline.window.to_string() } else { "uneven".to_owned() },
        pipeline.reserve,
        steps.join(", ")
    );
}

fn batched(text: &mut String, batch: &PlannedBatch) {
    let _ = writeln!(text, "\nbatch `{}`: predicted {}, worst case {}", batch.name, batch.predicted, batch.worst_case);
    let bounds: Vec<String> = batch.bounds.iter().map(|(name, bound)| format!("{name} {bound}")).collect();
    let _ = writeln!(text, "  bounds: {} (a prediction is not a bound)", bounds.join(", "));
    let blocks = tightest(&batch.blocks, LINES, |(_, end)| Reverse(*end));
    for (name, end) in &blocks {
        let _ = writeln!(text, "  {name:<32} ends at {end}");
    }
    more(text, batch.blocks.len(), blocks.len(), "blocks", "that end last");
    let mut lines = 0;
    for (before, interval) in batch.intervals.iter().enumerate() {
        if lines + interval.rates.len() > 2 * LINES && before > 0 {
            more(text, batch.intervals.len(), before, "intervals", "at the beginning");
            break;
        }
        lines += interval.rates.len();
        for (at, (name, rate, limit)) in interval.rates.iter().enumerate() {
            let span = if at == 0 { format!("{} - {}", interval.from, interval.to) } else { String::new() };
            let _ = writeln!(text, "  {span:<24} {name:<32} {rate:>10}, limited by {limit}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_rounded_down_and_shares_up() {
        assert_eq!(
            [1_249_999, 999_999, 10_000].map(factor),
            ["1.24x", "0.99x", "0.01x"].map(|text| Some(text.to_owned()))
        );
        assert_eq!([0, 9_999].map(factor), [None, None]);
        assert_eq!(percent(1_000_001_u64), "100.01 %");
    }
}
